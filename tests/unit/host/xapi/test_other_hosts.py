# SPDX-License-Identifier: LGPL-2.1-only
"""Other hosts are asked what they have of a LUN; volumes on it are a refusal that names the host and the SR."""

import os

import pytest

from kit.hba_world import SCSI_ID, HbaWorld
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import hiding
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.xapi.api import XapiFailure
from relvmoiscsi.host.xapi.other_hosts import Use, from_json, srs_of, to_json, use_of_lun, verify_unused

SR = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
MGT = "VG_XenStorage--{}-MGT".format(SR.replace("-", "--"))


class Xapi:
    """One that answers for three hosts, with what their plugins say."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def records(self, kind):
        return {"own": {"name_label": "xs1"}, "two": {"name_label": "xs2"}, "three": {"name_label": ""}}

    def within(self, seconds):
        return self

    def call(self, method, *arguments):
        self.asked.append((method, *arguments))
        answer = self.answers[arguments[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def nothing():
    return to_json(Use((), ()))


def test_whoever_has_nothing_of_it_lets_us():
    xapi = Xapi(two=nothing(), three=nothing())

    verify_unused(xapi, "own", SCSI_ID, NO_DEADLINE)

    assert sorted(xapi.asked) == [
        ("host.call_plugin", "three", "relvmoiscsi", "lun", {"scsi_id": SCSI_ID}),
        ("host.call_plugin", "two", "relvmoiscsi", "lun", {"scsi_id": SCSI_ID}),
    ]


@pytest.mark.parametrize(
    "host, use, words",
    [
        ("two", Use(("sdb", "sdc"), (MGT,)), f"The host 'xs2' runs the SR {SR} on the clone's disk sdb, sdc"),
        ("three", Use(("sdb",), ("crypt",)), "The host 'three' runs crypt on the clone's disk sdb"),
        ("three", Use(("sdb",), (), True), f"The host 'three' is at work on the LUN {SCSI_ID}"),
    ],
)
def test_whoever_uses_it_or_is_at_work_on_it_is_a_refusal(host, use, words):
    xapi = Xapi(**{"two": nothing(), "three": nothing(), host: to_json(use)})

    with pytest.raises(Refused, match=words + ".*Nothing was written"):
        verify_unused(xapi, "own", SCSI_ID, NO_DEADLINE)


def test_one_that_only_sees_it_is_a_warning(caplog):
    verify_unused(Xapi(two=to_json(Use(("sdb",), ())), three=nothing()), "own", SCSI_ID, NO_DEADLINE)

    assert "the host 'xs2' sees the LUN as sdb" in caplog.text


def test_one_that_cannot_be_asked_is_a_warning(caplog):
    xapi = Xapi(two=XapiFailure("xapi answered HOST_OFFLINE to host.call_plugin.", ["HOST_OFFLINE"]), three="no JSON")

    verify_unused(xapi, "own", SCSI_ID, Deadline(5))

    assert "'xs2' was not asked" in caplog.text and "HOST_OFFLINE" in caplog.text
    assert "'three' was not asked" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"disk_names": 7, "stacked": []}', '{"disk_names": []}', '{"disk_names": [], "stacked": []}'],
)
def test_what_is_no_answer(text):
    with pytest.raises(ValueError):
        from_json(text)


# --- the host that is asked


@pytest.fixture
def world(tmp_path):
    return HbaWorld(tmp_path)


def stack(world, below, holder, **dm):
    os.makedirs(world.at(f"block/{below}/holders/{holder}"))
    for attribute, text in dm.items():
        world.put(f"block/{holder}/dm/{attribute}", text + "\n")


def test_what_a_host_has_of_a_lun(world):
    """Its multipath map is no use, but what is stacked on that; md has no name but the kernel's."""
    assert from_json(to_json(use_of_lun("36001405" + "0" * 25, world.host))) == Use((), ())
    for disk in ("sda", "sdb"):
        stack(world, disk, "dm-0", uuid="mpath-" + SCSI_ID, name=SCSI_ID)
    assert use_of_lun(SCSI_ID, world.host) == Use(("sda", "sdb"), ())

    stack(world, "dm-0", "dm-3", uuid="LVM-x", name=MGT)
    assert use_of_lun(SCSI_ID, world.host) == Use(("sda", "sdb"), (MGT,))
    assert srs_of(use_of_lun(SCSI_ID, world.host).stacked) == [SR]
    stack(world, "sda", "md127")
    assert "md127" in use_of_lun(SCSI_ID, world.host).stacked


@pytest.mark.processes
@pytest.mark.parametrize("works", [lun_lock, hiding.hidden], ids=["lock", "switch"])
def test_a_host_whose_call_is_at_work_on_the_lun(world, works):
    os.symlink("/proc", world.host.at("proc"))

    with works(SCSI_ID, host=world.host):
        assert use_of_lun(SCSI_ID, world.host).is_worked_on
        assert not use_of_lun("36001405" + "0" * 25, world.host).is_worked_on
        assert from_json(to_json(use_of_lun(SCSI_ID, world.host))).is_worked_on

    assert not use_of_lun(SCSI_ID, world.host).is_worked_on
