# SPDX-License-Identifier: LGPL-2.1-only
"""The time that a login has, the patience of its session, and SM's lock."""

import os
from contextlib import contextmanager

import pytest

from kit.iscsi_runs import (
    ALICE,
    DISCOVERY,
    OURS,
    THEIRS,
    patience,
    sids,
)
from kit.iscsi_world import (
    IQN,
    PORTAL,
    put,
    put_session,
    transcript,
)
from relvmoiscsi.errors import CommandFailed, Refused
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.deadline import Deadline, OutOfTime
from relvmoiscsi.host.iscsi import changes, records
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.notes import dead_notes
from relvmoiscsi.host.iscsi.status import IscsiFailed
from relvmoiscsi.host.terminated import Terminated

# --- the time


def lasting(clock, seconds):
    """A discovery that takes so long."""

    def discovery(_argv):
        clock.now += seconds
        return transcript("discovery nonpersistent")

    return discovery


def test_no_program_gets_more_time_than_is_left(world, clock):
    seen = {}
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(7.5, clock))

    def discovery(argv):
        seen["discovery"] = world.timeout
        clock.now += 0.5
        return transcript("discovery nonpersistent")

    def login(argv):
        seen["login"] = world.timeout
        world.log_in(argv)
        return 0, "", ""

    world.answers.update({"discovery": discovery, "login": login})
    hurried.login(PORTAL, IQN)

    assert seen == {"discovery": 7.5, "login": 7}, "of 8 and 30 seconds"
    (record,) = world.records_at_login[0].values()
    assert "node.conn[0].timeo.login_timeout = 5\n" in record, "iscsid gives up before iscsiadm is stopped"


def test_no_login_begins_that_would_leave_others_a_session_with_too_little_time_for_its_return(world, hurried, clock):
    world.answers["discovery"] = lasting(clock, 3.5)
    with pytest.raises(OutOfTime, match="before the login to"):
        hurried.login(PORTAL, IQN)

    assert sids(world) == [] and world.records() == {} and dead_notes(world.host) == []


@pytest.mark.parametrize("chap", [None, ALICE])
def test_sm_waits_no_longer_than_some_seconds_for_a_portal_that_says_nothing(world, clock, chap):
    """Of whoever has but one portal, too: until now SM's lock was held for 20 seconds, by each call anew."""
    seen = []
    iscsi = OpenIscsi(world.host, 1.0, Deadline(50, clock), answer_seconds=50)

    def silent(argv):
        seen.append(world.timeout)
        raise CommandFailed(argv, TIMED_OUT, "it did not end in time and was stopped")

    world.answers.update({"discovery": "discovery needs chap" if chap else silent, "discovery with CHAP": silent})
    with pytest.raises(IscsiFailed):
        iscsi.login(PORTAL, IQN, chap)

    assert seen == [8.0]


def test_a_portal_that_is_one_of_several_gets_less_time_to_answer(world, clock):
    seen = {}
    iscsi = OpenIscsi(world.host, 1.0, Deadline(50, clock), answer_seconds=8)
    world.answers["discovery"] = lambda argv: (
        seen.update(discovery=world.timeout) or transcript("discovery nonpersistent")
    )

    iscsi.login(PORTAL, IQN)

    assert seen == {"discovery": 8}
    (record,) = world.records_at_login[0].values()
    assert "node.conn[0].timeo.login_timeout = 8\n" in record


def test_waiting_for_sm_is_not_the_time_of_the_portal(world, clock, monkeypatch):
    waits = []

    @contextmanager
    def lock(root, timeout):
        waits.append(timeout)
        clock.now += 15
        yield

    monkeypatch.setattr(iscsi_module, "iscsiadm_lock", lock)

    assert OpenIscsi(world.host, 45.0, Deadline(55, clock), answer_seconds=8).login(PORTAL, IQN).created
    assert waits == [45.0, 40.0, 25.0]


def test_after_the_deadline_no_login_is_begun(world, hurried, clock):
    before = world.tree()

    world.answers["discovery"] = lasting(clock, 11)
    with pytest.raises(OutOfTime, match="The 10 seconds of this call were over before the login to .* The same call"):
        hurried.login(PORTAL, IQN)

    assert world.calls == [DISCOVERY]
    assert world.tree() == before


@pytest.mark.processes  # who uses its disks is asked apart
def test_what_a_login_that_used_up_the_time_leaves_is_cleaned_up_after_the_deadline(world, hurried, clock):
    before = world.tree()

    def slow(argv):
        world.put_session_of_record(1)
        clock.now += 11
        raise CommandFailed(argv, TIMED_OUT, "it did not end within 10 seconds and was stopped")

    world.answers["login"] = slow
    with pytest.raises(IscsiFailed, match="did not end in time"):
        hurried.login(PORTAL, IQN)

    assert world.calls[-1] == ("iscsiadm", "-m", "session", "-r", "1", "-u")
    assert 0 < world.timeout <= 8
    assert sids(world) == [] and world.tree() == before


def test_sm_may_run_iscsiadm_between_our_discovery_and_our_login(world, monkeypatch):
    events = []

    @contextmanager
    def lock(root, timeout):
        events.append("locked")
        yield
        events.append("free")

    def run(argv, **more):
        events.append(world.task_of(list(argv))[0])
        return world.run(argv, **more)

    monkeypatch.setattr(iscsi_module, "iscsiadm_lock", lock)
    OpenIscsi(world.host._replace(runner=run)).login(PORTAL, IQN)

    at = events.index("discovery")
    assert events[at - 1 : at + 2] == ["locked", "discovery", "free"]
    assert events[at + 2 :] == ["locked", "new record", "login", "free"]


# --- how long I/O waits for a lost connection


@pytest.fixture
def with_recovery_tmo(world):
    def login(argv):
        put_session(world.root, 1)
        put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", "144\n")
        return 0, "", ""

    world.answers["login"] = login


@pytest.mark.parametrize("multipath, seconds", [(False, "20"), (True, "15")])
def test_our_own_session_gives_up_before_our_caller_does(world, iscsi, with_recovery_tmo, multipath, seconds):
    iscsi.login(PORTAL, IQN, multipath=multipath)

    assert patience(world) == seconds


def test_a_session_that_sm_uses_now_has_the_patience_of_sm(world, iscsi, with_recovery_tmo):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert patience(world) == "144"


@pytest.mark.parametrize("multipathd, seconds", [(None, "15"), ("5", "5")])
def test_a_path_that_sm_uses_now_has_the_patience_of_a_path(world, iscsi, with_recovery_tmo, multipathd, seconds):
    login = iscsi.login(PORTAL, IQN, multipath=True, user=OURS)
    if multipathd:  # which has a time of its own for the paths of its maps
        put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", multipathd + "\n")
    with open(os.path.join(world.root, "var/run/sr-ref", IQN), "a") as file:
        file.write(THEIRS + "\n")

    assert iscsi.logout(login) is False
    assert patience(world) == seconds


def test_a_session_that_was_there_keeps_its_patience(world, iscsi):
    put_session(world.root, 4)
    put(world.root, "sys/class/iscsi_session/session4/recovery_tmo", "120\n")

    iscsi.login(PORTAL, IQN)

    assert patience(world, 4) == "120"


# --- locks


def test_iscsiadm_runs_under_the_lock_of_sm(world, iscsi):
    def locked(argv):
        with pytest.raises(Refused, match="isciadm_running|running"):
            OpenIscsi(world.host, lock_seconds=0.0).discover(PORTAL)
        return transcript("discovery nonpersistent")

    world.answers["discovery"] = locked
    iscsi.discover(PORTAL)


def take_database(world):
    put(world.root, "run/lock/iscsi/lock", b"")
    os.link(os.path.join(world.root, "run/lock/iscsi/lock"), os.path.join(world.root, "run/lock/iscsi/lock.write"))


def test_open_iscsis_lock_is_waited_for_no_longer_than_there_is_time(world, clock, monkeypatch):
    waited = []

    def database_lock(host, seconds, changed):
        waited.append(seconds)
        return records.database_lock(host, 0, changed)

    monkeypatch.setattr(changes, "database_lock", database_lock)
    take_database(world)
    with pytest.raises(Refused, match="lock.write of open-iscsi's database is taken"):
        OpenIscsi(world.host, deadline=Deadline(10, clock)).login(PORTAL, IQN, user=OURS)

    assert waited == [10, changes.UNDO_LOCK_SECONDS]


@pytest.mark.parametrize("end", [Terminated(), CommandFailed(["iscsiadm"], TIMED_OUT, "it did not end")], ids=repr)
def test_a_lock_that_an_iscsiadm_had_when_it_was_stopped_is_freed(world, iscsi, end):
    before = world.tree()

    def stopped(_argv):
        take_database(world)
        raise end

    world.answers["new record"] = stopped
    with pytest.raises((Terminated, IscsiFailed)):
        iscsi.login(PORTAL, IQN, user=OURS)

    assert not os.path.exists(os.path.join(world.root, "run/lock/iscsi/lock.write"))
    assert world.tree().keys() - {"run/lock/iscsi"} == before.keys() and list(dead_notes(world.host)) == []
