# SPDX-License-Identifier: LGPL-2.1-only
"""A busy host, dead portals, a LUN that does not answer: a call ends in its time, and the same call may come again."""

import fcntl
import os
import socket
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest

from kit.lab import initiator
from kit.lab.command import read, until
from kit.lab.xapi import SUCCESS, Call, config_of, created
from kit.pool import client

CONFIG = "/etc/relvmoiscsi.conf"
TWO_GROUPS = [["127.0.0.1:3260"], ["127.0.0.2:3260"]]
MUTE, DEAF = "127.0.0.8", "127.0.0.9"
ISCSIADM_LOCK = "/run/lock/sm/iscsiadm/isciadm_running"


@pytest.fixture
def deadline():
    """Sets it, in seconds."""

    def put(seconds):
        with open(CONFIG, "w", encoding="utf-8") as file:
            file.write(f"[driver]\ndeadline = {seconds}\n")

    yield put
    if os.path.exists(CONFIG):
        os.unlink(CONFIG)


@contextmanager
def mute_portal():
    """It takes connections and says nothing."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((MUTE, 3260))
        server.listen(64)
        yield


@contextmanager
def deaf_portal():
    """Not even a connection comes about: as many wait to be accepted as may, and the kernel drops what comes then."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((DEAF, 3260))
        server.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex((DEAF, 3260))
        yield


def probed(pool, target, lun):
    with client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        answer = session.xenapi.SR.probe(host, config_of(target, lun), "relvmoiscsi", {})
    (row,) = ElementTree.fromstring(answer).findall("SR")
    return {field.tag: field.text.strip() for field in row}


# -- portals --------------------------------------------------------------------------------------------------------


def test_two_silent_portals_of_three_leave_time_for_the_work(lab, pool, clone, deadline):
    copies = lab.target(clone)
    deadline(30)

    with mute_portal(), deaf_portal(), lab.untouched():
        assert created(pool, copies, clone, target=",".join((MUTE, DEAF, "127.0.0.1"))) == SUCCESS

    log = lab.smlog()
    assert any(MUTE in line and "The discovery" in line for line in log), log
    assert any(DEAF in line and "no TCP connection" in line for line in log), log
    assert not any("logging in to" in line and MUTE in line for line in log), log


@pytest.mark.parametrize("multipathing", ["false", "true"])
def test_a_session_that_has_lost_its_target_is_no_way_and_no_obstacle(lab, make_pool, clone, multipathing):
    pool = make_pool(multipathing=multipathing)
    copies = lab.target(clone, groups=TWO_GROUPS)
    for portal in copies.portals:
        initiator.login(copies.iqn, portal)
    states = "/sys/class/iscsi_session/session{}/state"
    first = min(int(name[len("session") :]) for name in os.listdir("/sys/class/iscsi_session"))

    with lab.multipathing(clone.scsi_id) if multipathing == "true" else mute_portal():
        copies.disable(1)
        until(lambda: read(states.format(first)) == "FAILED", "the session has lost its target")
        assert created(pool, copies, clone, target="127.0.0.1,127.0.0.2") == SUCCESS
        copies.enable(1)

    assert len(initiator.sessions()) == 2
    initiator.logout(copies.iqn)
    assert lab.probe(copies, clone).problems == ()


# -- a LUN that does not answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("logged_in", [True, False], ids=["session_there", "own_session"])
def test_a_call_whose_lun_does_not_answer_ends_at_its_deadline_and_may_come_again(
    lab, pool, image, deadline, logged_in
):
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    copies = lab.target(clone)
    if logged_in:
        initiator.login(copies.iqn, copies.portal)
        initiator.device_of(clone.scsi_id)
    digest = lab.digest(clone)
    before = lab.world()
    deadline(15)

    clone.freeze()
    call = Call(lab, pool, copies, clone)
    answer = call.end(58)  # CloudStack waits for 60 seconds

    assert answer[0] == f"SR_BACKEND_FAILURE_{47 if logged_in else 67}", answer
    assert "The 15 seconds of this call {} over".format("were" if logged_in else "are") in answer[2], answer
    assert "This call wrote nothing to the LUN. The same call again does it" in answer[2], answer
    clone.heal()
    assert lab.digest(clone) == digest
    os.unlink(CONFIG)
    assert created(pool, copies, clone) == SUCCESS
    assert before.diff(lab.world(), except_for=["links:*lvm-pv-uuid-*"]) == []
    assert lab.probe(copies, clone).problems == ()


# -- a probe --------------------------------------------------------------------------------------------------------


def test_a_probe_does_not_wait_for_sm(lab, pool, clone):
    copies = lab.target(clone)

    with open(ISCSIADM_LOCK, "r+") as file, lab.untouched():
        fcntl.lockf(file, fcntl.LOCK_EX)
        row = probed(pool, copies, clone)

    assert row["state"] == "busy" and f"process {os.getpid()}" in row["problem"], row
    assert probed(pool, copies, clone)["state"] == "clean"


def test_a_probe_does_not_wait_for_a_call_on_the_lun(lab, pool, image):
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    copies = lab.target(clone)
    clone.slow(300)

    with lab.untouched():
        call = Call(lab, pool, copies, clone)
        call.reach("step 1 of 6")
        row = probed(pool, copies, clone)
        assert call.answer is None, "the probe has waited"
        clone.heal()
        assert call.end() == SUCCESS

    assert row["state"] == "busy", row
