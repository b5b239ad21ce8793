# SPDX-License-Identifier: LGPL-2.1-only
"""iscsid makes a session when the iscsiadm that asked for it, or its call, has ended: a later call ends it."""

import os
import signal
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from kit.iscsi_runs import OURS, THEIRS, THERE, Killed, reference, sids, use_by_sm
from kit.iscsi_world import IQN, PORTAL, put, put_session, transcript
from relvmoiscsi.doctor import programs
from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import status
from relvmoiscsi.host.iscsi.kept import kept_disks
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.notes import dead_notes, noted
from relvmoiscsi.host.iscsi.status import IscsiFailed


def new(world):
    return OpenIscsi(world.host, lock_seconds=1.0, left=set())


def late(world, how):
    """A login whose session is still to come."""
    end = CommandFailed(["iscsiadm"], how, "it did not end") if isinstance(how, int) else Killed()
    world.answers["login"] = partial(world.log_in_late, end=end)
    iscsi = new(world)
    with pytest.MonkeyPatch.context() as patch, suppress(IscsiFailed, Killed):
        if how == "killed":
            patch.setattr(iscsi, "_give_up", lambda note: note.close())  # the kernel does
        iscsi.login(PORTAL, IQN, user=OURS)
    del world.answers["login"]


def finding(world):
    put(world.root, "proc/locks", "")
    return programs.examine_notes(world.host)


ENDS = [TIMED_OUT, -signal.SIGTERM, status.DAEMON_COMMUNICATION, "killed"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
def test_the_next_call_ends_a_session_that_came_after_its_own_look(world, how, there):
    if there:
        world.put_record("127.0.0.1,3260,1/default", text=THERE)
    before = world.tree()
    late(world, how)
    new(world).recover()
    assert sids(world) == [] and reference(world) is None and finding(world).status == "ok"
    assert {name for name in set(world.tree()) - set(before) if "relvmoiscsi" not in name} == set()

    world.coming.pop()()
    assert len(kept_disks(world.host)) == 2 and finding(world).status == "warning"

    new(world).recover()
    assert (sids(world), world.tree(), finding(world).status) == ([], before, "ok")


def test_a_session_that_comes_before_the_one_of_the_next_call_is_ended_by_that(world):
    """iscsid answers in turn: it has made the first one, so there is none to make for the second."""
    before = world.tree()
    late(world, "killed")

    def log_in(argv):
        world.coming.pop()()
        return status.SESSION_EXISTS, "", "iscsiadm: session exists\n"

    world.answers["login"] = log_in
    iscsi = new(world)
    login = iscsi.login(PORTAL, IQN, user=THEIRS)
    assert sids(world) == [1] and login.created and reference(world) == [THEIRS]

    assert iscsi.logout(login) is True
    assert (sids(world), world.tree()) == ([], before)


def test_a_call_that_finds_it_takes_it_over(world):
    late(world, TIMED_OUT)
    world.coming.pop()()

    login = new(world).login(PORTAL, IQN, user=OURS)

    assert login.created and new(world).logout(login) is True
    assert sids(world) == [] and dead_notes(world.host) == []


def test_one_that_an_sr_uses_by_then_stays(world):
    late(world, TIMED_OUT)
    world.coming.pop()()
    use_by_sm(world)

    assert finding(world).status == "ok" and kept_disks(world.host) == set()
    new(world).recover()
    assert sids(world) == [1]


def test_a_session_without_its_mark_is_somebody_elses(world):
    late(world, TIMED_OUT)
    put_session(world.root, 4)

    new(world).recover()

    assert sids(world) == [4] and kept_disks(world.host) == set() and finding(world).status == "ok"


@pytest.mark.parametrize("how", ["an hour", "a reboot"])
def test_its_note_stays_no_longer_than_iscsid_may_take(world, monkeypatch, how):
    before = world.tree()
    late(world, TIMED_OUT)
    if how == "a reboot":
        put(world.root, "proc/sys/kernel/random/boot_id", "two\n")
    else:
        monkeypatch.setattr(iscsi_module, "_LATEST_SECONDS", 0.0)

    new(world).recover()

    assert set(world.tree()) == set(before)


def test_a_login_that_iscsid_refuses_leaves_no_note(world):
    world.answers["login"] = "chap wrong secret: login"
    with pytest.raises(IscsiFailed):
        new(world).login(PORTAL, IQN, user=OURS)
    assert transcript("chap wrong secret: login")[0] > 0 and list(noted(world.host)) == []


def test_a_call_that_is_told_to_end_awaits_the_answer_of_iscsid(world):
    """iscsiadm would end, and the session come all the same."""

    def log_in(argv):
        os.kill(os.getpid(), signal.SIGTERM)
        terminated.pause(0)
        world.log_in(argv)
        return transcript("login")

    world.answers["login"] = log_in
    iscsi = new(world)
    with pytest.raises(terminated.Terminated), terminated.heeded(), ExitStack() as stack:
        stack.callback(iscsi.logout, iscsi.login(PORTAL, IQN, user=OURS))
        terminated.pause(0)
    assert len(world.records_at_login) == 1 and sids(world) == [] and list(noted(world.host)) == []
