# SPDX-License-Identifier: LGPL-2.1-only
"""What our scan of a session brings goes again, unless it is somebody's by then."""

import os
import shutil
from glob import glob

import pytest

from kit.iscsi_runs import (
    OURS,
    THEIRS,
    USERS,
    Killed,
    dead_note,
    put_user,
    reference,
    removed,
    sids,
    use_by_sm,
)
from kit.iscsi_world import (
    CHAP_IQN,
    IQN,
    PORTAL,
    put,
    put_session,
    remove_session,
    transcript,
)
from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host.command import TIMED_OUT
from relvmoiscsi.host.deadline import Deadline, OutOfTime
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import luns as iscsi_luns
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.luns import tell_kernel
from relvmoiscsi.host.iscsi.notes import dead_notes, dead_notes_in_turn
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.locks.sm_locks import iscsiadm_lock, lun_lock


def test_a_rescan_gives_the_session_with_its_new_luns(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN)

    world.answers["scan"] = lambda: put_session(world.root, 1)
    assert [lun.number for lun in iscsi.rescan(login).luns] == [0, 1, 2, 7]
    assert world.told == [("class/scsi_host/host6/scan", "- - -")]
    assert world.calls == []


def test_of_the_disks_that_are_there_the_wanted_lun_alone_is_asked(world, iscsi):
    """Another one may not be ready, and whoever asks it waits for 100 seconds."""
    put_session(world.root, 1)
    login = iscsi.login(PORTAL, IQN)

    iscsi.rescan(login, scsi_id_of_address("6:0:0:2", world.host))

    assert world.told[1:] == [("bus/scsi/devices/6:0:0:2/rescan", "1")]


def scan_brings(world, *luns, sid=1):
    """A scan finds these LUNs beside LUN 0."""

    def scan():
        put_session(world.root, sid, luns=(0, *luns))
        for number in luns:
            put(world.root, f"sys/bus/scsi/devices/{sid + 5}:0:0:{number}/delete", "")

    world.answers["scan"] = scan


@pytest.fixture
def scanned(world, iscsi):
    """A session of others, with LUN 0, in which a scan of ours has found LUNs 1 and 7."""
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)
    return login


def test_what_our_scan_has_brought_goes_again_and_what_was_there_stays(world, iscsi, scanned):
    put(world.root, "sys/bus/scsi/devices/6:0:0:0/delete", "")

    assert iscsi.logout(scanned) is False

    assert removed(world, 0, 1, 7) == [1, 7]
    assert sids(world) == [1] and dead_notes(world.host) == []


def test_after_a_second_scan_all_that_both_have_brought_goes(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    for luns in ([1], [1, 7]):
        scan_brings(world, *luns)
        iscsi.rescan(login)

    iscsi.logout(login)
    assert removed(world, 1, 7) == [1, 7]


@pytest.mark.parametrize("how", list(USERS))
def test_a_lun_that_somebody_uses_by_then_stays(world, iscsi, scanned, no_patience, caplog, how):
    put_user(world, os.path.join(world.root, "sys/devices/platform/host6/session1"), how)

    iscsi.logout(scanned)

    assert removed(world, 1, 7) == [1] and USERS[how] in caplog.text
    assert dead_notes(world.host) == []


@pytest.fixture
def silent_removal(world, scanned):
    """LUN 1 of session 1 does not answer: who writes to its switch hangs, for as long as the test."""
    switch = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/delete")
    os.unlink(switch)
    os.mkfifo(switch)
    yield
    os.close(os.open(switch, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.processes
def test_a_lun_that_does_not_answer_is_left_to_a_later_run(world, scanned, silent_removal):
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(2))

    with pytest.raises(OutOfTime, match="before what a scan of session 1 .* has brought was removed"):
        hurried.logout(scanned)

    assert scanned.note["brought"] and reference(world) is None
    with iscsiadm_lock(world.host, 0):
        pass


@pytest.mark.processes
def test_what_a_killed_run_has_left_on_a_lun_that_does_not_answer_takes_little_time(
    world, scanned, silent_removal, monkeypatch, caplog
):
    monkeypatch.setattr(iscsi_module, "_RECOVERY_SECONDS", 0.2)
    scanned.note.close()
    world.put_session_of_record(9, CHAP_IQN)
    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(3600))

    caller.logout(caller.login(PORTAL, CHAP_IQN, user=OURS))

    assert "After an earlier run: The 0.2 seconds of this call were over before what a scan" in caplog.text
    assert len(dead_notes(world.host)) == 1


@pytest.fixture
def silent_sessions(world, clock):
    """What five killed runs have left, each behind a target of its own that does not answer any more."""

    def logout(argv):
        if int(argv[4]) < 20:
            return world.task_of(argv)[2](argv) or transcript("logout by sid")
        tried.append(int(argv[4]))
        clock.now += world.timeout
        raise CommandFailed(argv, TIMED_OUT, "it did not end in time and was stopped")

    tried = []
    for number in range(5):
        iqn = f"iqn.2026-01.test:silent{number}"
        dead_note(world, iqn=iqn, sid=20 + number)
        put_session(world.root, 20 + number, iqn, state="FAILED", luns=())
        (newest,) = [path for path in note_paths(world) if os.stat(path).st_mtime > 1000]
        os.utime(newest, (number, number))
    world.answers["logout"] = logout
    return tried


def note_paths(world):
    return glob(os.path.join(world.root, "var/lib/relvmoiscsi/iscsi/*.json"))


@pytest.mark.processes
def test_what_many_killed_runs_have_left_takes_no_more_time_than_what_one_has(world, clock, silent_sessions):
    """Until now five seconds for each, three times in a call, under SM's lock: with ten no call came to its work."""
    before, began = world.tree(), clock.now

    for turn in range(1, 4):
        caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(50, clock))
        caller.logout(caller.login(PORTAL, IQN, user=OURS))

        assert clock.now - began <= 5.0 * turn
        assert silent_sessions == [20, 21, 22][:turn], "those first that were not tried yet"
    assert set(sids(world)) == {20, 21, 22, 23, 24} and world.tree() == before


@pytest.mark.processes
def test_what_a_killed_run_has_left_behind_the_very_target_comes_first(world, clock, silent_sessions):
    """Its session to the portal is taken over, the one to another portal is ended, whatever else there is."""
    for sid, portal in ((7, Portal("10.0.0.7", 3260)), (8, PORTAL)):
        dead_note(world, sid=sid, portal=list(portal), user=OURS)
        put_session(world.root, sid, portal=portal)

    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(50, clock))
    login = caller.login(PORTAL, IQN, user=OURS)

    assert login.session.sid == 8 and login.created
    assert 7 not in sids(world) and silent_sessions == [20]


def test_who_looks_into_one_note_of_a_killed_run_does_not_hold_the_others(world):
    """A process that hangs in a disk has a copy of all that was open when it began, and holds that."""
    for _ in range(2):
        dead_note(world)

    found = dead_notes_in_turn(world.host)
    first = next(found)

    (other,) = dead_notes(world.host)
    assert other.path != first.path
    other.remove()
    assert list(found) == []


def test_luns_stay_once_another_sr_is_attached(world, iscsi, scanned, caplog):
    """On most hosts of a pool such an SR has nothing open, and its disk may be the one that we have brought."""
    caplog.set_level("INFO")
    use_by_sm(world)

    iscsi.logout(scanned)

    assert removed(world, 1, 7) == [] and "2 LUNs that a scan has brought stay, as " + THEIRS in caplog.text


def test_luns_go_although_an_sr_was_attached_before_the_scan(world, iscsi):
    use_by_sm(world)
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    iscsi.logout(login)
    assert removed(world, 1) == [1]


def test_a_lun_that_the_pool_has_stays_for_sm_may_wait_for_it(world, caplog):
    """SM has taken its line, and looks for the disk only after our scan."""
    caplog.set_level("INFO")
    use_by_sm(world)
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    iscsi = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: ["true", lun_id(world, 1)])
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    iscsi.logout(login)

    assert removed(world, 1, 7) == [7]
    assert "at 6:0:0:1, which a scan has brought, stays: the pool has it" in caplog.text
    assert dead_notes(world.host) == []


def test_while_the_pool_cannot_be_asked_luns_stay_for_a_later_run(world, iscsi, caplog):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    unsure = OpenIscsi(world.host, lock_seconds=1.0, ids_of_pool=lambda: None)
    login = unsure.login(PORTAL, IQN, user=OURS)
    unsure.rescan(login)

    unsure.logout(login)
    assert removed(world, 1) == [] and "1 LUNs that a scan has brought stay for now" in caplog.text

    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_another_lun_at_the_place_of_one_that_we_brought_stays(world, iscsi, scanned):
    page = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/vpd_pg83")
    shutil.copy(os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:7/vpd_pg83"), page)

    iscsi.logout(scanned)
    assert removed(world, 1, 7) == [7]


def test_a_lun_that_another_call_works_on_is_removed_by_that(world, iscsi):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1, 7)
    first, second = (iscsi.login(PORTAL, IQN, user=user) for user in (OURS, "another call"))
    scsi_id = lun_id(world, 1)
    iscsi.rescan(first)
    with lun_lock(scsi_id, world.host, timeout=1):
        iscsi.logout(first)
        assert removed(world, 1, 7) == [7]

        iscsi.logout(second, done_with=scsi_id)
        assert removed(world, 1, 7) == [1, 7]
    assert dead_notes(world.host) == []


def lun_id(world, number):
    put_session(world.root, 2, luns=(number,))
    found = scsi_id_of_address(f"7:0:0:{number}", world.host)
    remove_session(world.root, 2)
    return found


def test_a_session_that_is_taken_over_may_lack_luns_and_a_new_one_does_not(world, iscsi):
    """It is ours as a new one is, and may be days old."""
    logins = [iscsi.login(PORTAL, IQN, user=OURS)]
    logins[0].note.close()  # the call was killed
    logins.append(iscsi.login(PORTAL, IQN, user=OURS))
    logins.append(iscsi.login(PORTAL, IQN, user=THEIRS))

    assert [(login.created, login.is_new) for login in logins] == [(True, True), (True, False), (False, False)]


def test_a_scan_that_was_killed_counts_with_that_of_the_run_that_takes_its_session_over(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    sid = login.session.sid
    put_session(world.root, sid, luns=(0,))
    login.note.close()
    scan_brings(world, 1, sid=sid)
    scan = world.answers["scan"]

    def killed():
        scan()
        raise Killed()

    world.answers["scan"] = killed
    login = iscsi.login(PORTAL, IQN, user=OURS)
    with pytest.raises(Killed):
        iscsi.rescan(login)
    login.note.close()

    scan_brings(world, 1, 7, sid=sid)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    iscsi.rescan(login)

    assert sorted(login.note["brought"]) == [f"{sid + 5}:0:0:1", f"{sid + 5}:0:0:7"]


@pytest.mark.parametrize("moment", ["during the scan", "afterwards"])
def test_what_the_scan_of_a_killed_run_has_brought_goes_with_the_next_run(world, iscsi, moment):
    put_session(world.root, 1, luns=(0,))
    scan_brings(world, 1)
    login = iscsi.login(PORTAL, IQN, user=OURS)
    if moment == "during the scan":
        scan = world.answers["scan"]

        def killed():
            scan()
            raise Killed()

        world.answers["scan"] = killed
        with pytest.raises(Killed):
            iscsi.rescan(login)
    else:
        iscsi.rescan(login)
    login.note.close()

    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_a_lun_that_cannot_be_removed_is_tried_again(world, iscsi, scanned, caplog):
    switch = os.path.join(world.root, "sys/bus/scsi/devices/6:0:0:1/delete")
    os.unlink(switch)
    os.makedirs(switch)

    with pytest.raises(Refused, match="The LUN at 6:0:0:1 could not be removed"):
        iscsi.logout(scanned)
    scanned.note.close()
    os.rmdir(switch)
    iscsi.recover()
    assert removed(world, 7) == [7] and dead_notes(world.host) == []


def test_a_session_that_is_gone_cannot_be_rescanned(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    remove_session(world.root, 1)

    with pytest.raises(NotFound, match="session 1 .* has ended") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


def test_a_session_that_lost_its_target_is_not_scanned_as_that_would_hang(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    put_session(world.root, 1, state="FAILED")
    world.calls.clear()

    with pytest.raises(NotFound, match="has lost its target .it is FAILED"):
        iscsi.rescan(login)
    assert world.calls == []


def test_a_session_that_ends_during_the_rescan_is_an_error(world, iscsi):
    login = iscsi.login(PORTAL, IQN)
    world.answers["scan"] = lambda: remove_session(world.root, 1)

    with pytest.raises(NotFound, match="session 1 .* has ended") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


@pytest.fixture
def kernel_of_files(monkeypatch):
    monkeypatch.setattr(iscsi_luns, "tell_kernel", tell_kernel)


def test_a_switch_that_is_gone_is_no_matter_and_one_that_cannot_be_used_is(world, iscsi, kernel_of_files):
    login = iscsi.login(PORTAL, IQN)
    iscsi.rescan(login)
    os.makedirs(os.path.join(world.root, "sys/class/scsi_host/host6/scan"))

    with pytest.raises(Refused, match="This host cannot be scanned for new LUNs: .*scan: Is a directory") as caught:
        iscsi.rescan(login)
    assert caught.value.sm_key == "ISCSIDevice"


@pytest.fixture
def endless_scan(world, kernel_of_files, monkeypatch):
    """Who tells the kernel to scan host 6 waits for as long as the test."""
    monkeypatch.setattr(iscsi_module, "_SCAN_SECONDS", 0.2)
    path = os.path.join(world.root, "sys/class/scsi_host/host6/scan")
    os.makedirs(os.path.dirname(path))
    os.mkfifo(path)
    yield
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.processes
def test_a_scan_that_does_not_end_is_no_failure_and_what_it_brings_later_goes(world, endless_scan, caplog):
    put_session(world.root, 1, luns=(0,))
    caller = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(3600))
    login = caller.login(PORTAL, IQN, user=OURS)

    assert [lun.number for lun in caller.rescan(login).luns] == [0]
    assert "takes more than 0.2 seconds, and is not waited for" in caplog.text
    with iscsiadm_lock(world.host, 0):
        pass

    scan_brings(world, 1)
    world.answers["scan"]()
    caller.logout(login)
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def test_what_a_scan_may_still_bring_is_left_to_a_later_run(world, iscsi, monkeypatch):
    """The process that scans hangs in the kernel, and nothing has come yet."""
    put_session(world.root, 1, luns=(0,))
    login = iscsi.login(PORTAL, IQN, user=OURS)
    monkeypatch.setattr(iscsi_luns.Luns, "scan", given_up)
    iscsi.rescan(login)

    with monkeypatch.context() as patch, pytest.raises(Refused, match="Process 4711 of this call hangs"):
        patch.setattr(iscsi_module, "still_there", lambda session: [4711])
        iscsi.logout(login)
    login.note.close()

    scan_brings(world, 1)
    world.answers["scan"]()
    iscsi.recover()
    assert removed(world, 1) == [1] and dead_notes(world.host) == []


def given_up(_luns, session, _scsi_id):
    raise OutOfTime(f"before {session} was scanned for LUNs")


@pytest.mark.processes
def test_a_scan_that_uses_up_the_time_of_the_call_is_one(world, endless_scan):
    put_session(world.root, 1, luns=(0,))
    hurried = OpenIscsi(world.host, lock_seconds=1.0, deadline=Deadline(0.1))

    with pytest.raises(OutOfTime, match="before session 1 .* was scanned for LUNs"):
        hurried.rescan(OpenIscsi(world.host, lock_seconds=1.0).login(PORTAL, IQN, user=OURS))
