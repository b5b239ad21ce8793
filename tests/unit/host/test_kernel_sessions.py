# SPDX-License-Identifier: LGPL-2.1-only
"""One LUN is added to the kernel's sessions to a target, and nothing else; a card of the host is named."""

import os
import re
import time
from functools import partial

import pytest

from kit.clock import over_after
from kit.iscsi_world import CHAP_IQN, IQN, put, put_session
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.disk import scsi_id
from relvmoiscsi.host.disk.udev import disks_of
from relvmoiscsi.host.iscsi_sessions import add_lun, offload_hint, sessions_to
from relvmoiscsi.host.this_host import Host

LUN_7 = "36001405f3d018bada0f5a2f8ee9dbf17"  #: in the captured session
LINK = "disk/by-id/scsi-" + LUN_7

pytestmark = pytest.mark.processes


class World:
    """Sessions with the LUNs 0 and 1, whose target has LUN 7 by now; and a kernel that finds what it is told to."""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.host = Host(root)
        self.sessions = {}
        os.makedirs(self.host.at("dev/disk/by-id"))
        put(root, "dev/" + LINK, "")
        self._monkeypatch = monkeypatch

    def has_session(self, sid, luns=(0, 1), iqn=IQN, driver="iscsi_tcp", **attributes):
        self.sessions[str(sid + 5)] = partial(put_session, self.root, sid, iqn, **attributes)
        self._put(str(sid + 5), luns)
        put(self.root, f"sys/class/scsi_host/host{sid + 5}/proc_name", driver + "\n")
        put(self.root, f"sys/class/scsi_host/host{sid + 5}/scan", "")

    def _put(self, number, luns):
        self.sessions[number](luns=luns)
        os.makedirs(self.host.at("sys/block"), exist_ok=True)
        for name in os.listdir(self.host.at("sys/block")):
            put(self.root, "dev/" + name, "")

    def finds(self, *brought):
        """A scan brings these LUNs, whatever number it is for."""

        def scan(scsi_host, place, host, write=scsi_id.look_for_luns):
            write(scsi_host, place, host)
            self._put(scsi_host[len("host") :], (0, 1, *brought))

        self._monkeypatch.setattr(scsi_id, "look_for_luns", scan)

    def written(self):
        """What each `scan` file was told, by session."""
        texts = {}
        for number in self.sessions:
            with open(self.host.at(f"sys/class/scsi_host/host{number}/scan"), encoding="ascii") as file:
                texts[int(number) - 5] = file.read()
        return texts


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(str(tmp_path), monkeypatch)


def test_the_one_lun_is_added_to_each_session_to_the_iqn_that_lacks_it(world):
    world.has_session(1)
    world.has_session(2, iqn=CHAP_IQN)
    world.has_session(3)
    world.has_session(4, luns=(0, 7))
    world.finds(7)

    assert add_lun(IQN, LUN_7, 7, Deadline(30), world.host) == []
    assert world.written() == {1: "0 0 7", 2: "", 3: "0 0 7", 4: ""}
    assert len(disks_of(LUN_7, world.host)) == 3


@pytest.mark.parametrize(
    "session, brought, lun, written, words",
    [
        ({"iqn": CHAP_IQN}, [], 7, "", None),
        ({"state": "FAILED"}, [], 7, "", None),
        ({"luns": ()}, [7], 7, "0 0 7", None),  # of iscsi_tcp without LUNs, the target is 0
        # which of the targets of a card it is, nobody tells: the wrong number would scan another target
        ({"luns": (), "driver": "qla4xxx"}, [], 7, "", "which of its targets"),
        # an array may give each host numbers of its own; SM may have found the LUN, so it is not taken away
        ({}, [2], 2, "0 0 2", "for this host, the LUN 2 of the target is 3600140.*which this host sees now"),
        ({}, [], 1, "", "its LUN 1 was 3600140.*`echo 1 > /sys/bus/scsi/devices/6:0:0:1/delete`"),
    ],
)
def test_what_a_session_is_told_and_what_is_the_matter(world, session, brought, lun, written, words):
    world.has_session(1, **session)
    if brought:
        world.finds(*brought)

    problems = add_lun(IQN, LUN_7, lun, Deadline(30) if lun == 7 else NO_DEADLINE, world.host)

    assert world.written() == {1: written}
    assert [bool(re.search(words or "", problem, re.DOTALL)) for problem in problems] == [True] * bool(words)
    assert not os.path.exists(os.path.join(world.root, f"sys/bus/scsi/devices/6:0:0:{lun}/delete"))


def test_the_target_of_a_session_that_has_luns_is_that_of_its_luns(world):
    """A card has the sessions to all targets at one SCSI host. A LUN that it does not have is told with what to do."""
    world.has_session(1, driver="qla4xxx")
    (session,) = sessions_to(IQN, world.host)
    os.rename(os.path.join(session, "target6:0:0"), os.path.join(session, "target6:0:3"))

    (problem,) = add_lun(IQN, LUN_7, 7, NO_DEADLINE, world.host)
    assert world.written() == {1: "0 3 7"}
    assert f"The LUN {LUN_7} was not added to session1 to {IQN}" in problem
    assert "the target has no LUN 7 for this host. Run `iscsiadm -m session --rescan --sid 1`" in problem


def test_a_kernel_that_does_not_come_to_an_end_is_waited_for_until_the_deadline(world, monkeypatch):
    world.has_session(1)
    monkeypatch.setattr(scsi_id, "look_for_luns", lambda *_: time.sleep(6000))

    (problem,) = add_lun(IQN, LUN_7, 7, Deadline(0.3), world.host)
    assert "were over before the session showed the LUN" in problem


def test_a_link_that_udev_does_not_make_is_a_warning(world, monkeypatch):
    world.has_session(1)
    world.finds(7)
    os.unlink(world.host.at("dev", LINK))

    (problem,) = add_lun(IQN, LUN_7, 7, Deadline(600, over_after(1, monkeypatch)), world.host)
    assert "udev has not shown the LUN" in problem


@pytest.mark.parametrize(
    "driver, hint",
    [
        ("iscsi_tcp", ""),
        ("qla4xxx", "This host reaches the target through a card of its own (qla4xxx); use type=relvmohba."),
        (
            "iscsi_iser",
            "This host reaches the target over RDMA (iscsi_iser), which relvmoiscsi does not speak. Log in with "
            "`iscsiadm`, then give the LUN's block device to `relvmoiscsi resignature`.",
        ),
    ],
)
def test_what_is_not_tcp_is_named(world, driver, hint):
    world.has_session(1, driver=driver)

    assert offload_hint(IQN, world.host) == hint
    assert offload_hint(CHAP_IQN, world.host) == ""
