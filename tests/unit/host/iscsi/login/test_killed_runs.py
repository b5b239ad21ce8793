# SPDX-License-Identifier: LGPL-2.1-only
"""What a run that was killed has left: the next one takes it over, ends it, or hands it to who uses it."""

import os
from pathlib import Path

import pytest

from kit.examples import EVERY_DEATH
from kit.iscsi_runs import (
    ALICE,
    OURS,
    PLAIN_RECORD,
    THEIRS,
    THERE,
    USERS,
    Killed,
    dead_note,
    patience,
    put_user,
    reference,
    sids,
    use_by_sm,
)
from kit.iscsi_world import (
    IQN,
    PORTAL,
    World,
    put,
    put_session,
    remove_session,
)
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import replace
from relvmoiscsi.host.iscsi import login as iscsi_module
from relvmoiscsi.host.iscsi import luns as iscsi_luns
from relvmoiscsi.host.iscsi import notes as iscsi_notes
from relvmoiscsi.host.iscsi.changes import new_marker
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.notes import dead_notes, new_note
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.records import put_back, settings_in, write_record


class Call:
    """Kills the run before or after its n-th call of a program, of a note or of a record."""

    def __init__(self, number):
        self.left = number

    def __call__(self, function):
        def wrapper(*arguments, **options):
            self.tick()
            result = function(*arguments, **options)
            self.tick()
            return result

        return wrapper

    def tick(self):
        self.left -= 1
        if self.left == 0:
            raise Killed()


def killed_after(world, number, monkeypatch, chap):
    """A run that is killed at its n-th step; True if it got to its end before."""
    step = Call(number)

    def killed_halfway(path, text, new):
        Path(new).write_bytes(text[:100])
        step.tick()
        os.unlink(new)
        replace(path, text, new)

    with monkeypatch.context() as patch:
        patch.setattr("relvmoiscsi.host.iscsi.records.replace", killed_halfway)
        patch.setattr(world, "run", step(world.run))
        patch.setattr(iscsi_notes.Note, "add", step(iscsi_notes.Note.add))
        patch.setattr("relvmoiscsi.host.iscsi.changes.write_record", step(write_record))
        patch.setattr("relvmoiscsi.host.iscsi.changes.put_back", step(put_back))
        # What a killed process does not do.
        patch.setattr(OpenIscsi, "_give_up", lambda self, note: None)
        patch.setattr("relvmoiscsi.host.iscsi.records._unlink", step(os.unlink))
        run = OpenIscsi(world.host, lock_seconds=1.0)
        login = None
        try:
            login = run.login(PORTAL, IQN, chap, user=OURS)
            run.logout(login)
        except Killed:
            close_notes(patch)
            return False
    return True


def close_notes(patch):
    """The kernel closes what a killed process had open; here the garbage collector has no such habit."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            continue
        if "/var/lib/relvmoiscsi/iscsi/" in target:
            os.close(int(name))


@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
@pytest.mark.parametrize("again", ["recover", "the same login"])
def test_after_a_kill_anywhere_the_next_run_leaves_the_host_as_it_was(tmp_path, monkeypatch, there, again):
    for number in range(1, 200, EVERY_DEATH):
        world = World(tmp_path / str(number))
        if there:
            world.put_record("127.0.0.1,3260,1/default", text=THERE)
        before = world.tree()
        finished = killed_after(world, number, monkeypatch, ALICE)

        iscsi = OpenIscsi(world.host, lock_seconds=1.0)
        if again == "recover":
            iscsi.recover()
        else:
            login = iscsi.login(PORTAL, IQN, ALICE, user=THEIRS)
            assert login.created, number
            assert reference(world) == [THEIRS], number
            assert iscsi.logout(login) is True

        assert sids(world) == [], number
        with monkeypatch.context() as patch:  # iscsid may come to a login yet, until it is too late
            patch.setattr(iscsi_module, "_LATEST_SECONDS", 0)
            iscsi.recover()
        assert world.tree() == before, number
        assert not os.path.exists(os.path.join(world.root, "run/lock/iscsi/lock.write")), number
        if finished:
            break
    assert finished and number > 20


@pytest.mark.parametrize("how", list(USERS))
def test_a_session_in_use_is_handed_over_and_never_ended(world, iscsi, caplog, no_patience, how):
    """Until now it was left for a later run, which would have ended it at any later time."""
    dead_note(world, sid=1)
    device = put_session(world.root, 1)
    put(world.root, "sys/class/iscsi_session/session1/recovery_tmo", "20\n")
    put_user(world, device, how)

    iscsi.recover()

    assert sids(world) == [1] and USERS[how] in caplog.text and "stays, as its disks are in use" in caplog.text
    assert dead_notes(world.host) == []
    assert patience(world) == "144"


def test_a_session_whose_disk_a_given_up_process_of_ours_hangs_in_is_not_handed_over(world, iscsi, monkeypatch):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    hanging = [4711]
    monkeypatch.setattr(iscsi_module, "still_there", lambda session: list(hanging))
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: ["process 4711"] if hanging else [])

    with pytest.raises(Refused, match="Process 4711 of this call hangs in a disk that does not answer"):
        iscsi.logout(login)
    assert sids(world) == [1] and reference(world) is None

    login.note.close()  # the kernel has let go of the process, which had it as well
    hanging.clear()
    iscsi.recover()
    assert sids(world) == [] and world.records() == {}


def test_no_other_path_of_a_target_is_looked_at_where_one_hangs(world, iscsi, monkeypatch):
    """Each look would take all the time that a cleanup has, and the array is silent on all of them."""
    login = iscsi.login(PORTAL, IQN, user=OURS)
    put_session(world.root, 2, portal=Portal("127.0.0.2", 3260))
    monkeypatch.setattr(iscsi_module, "still_there", lambda session: [4711] if "127.0.0.2" in session else [])
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: pytest.fail("a disk was looked at"))

    with pytest.raises(Refused, match="Process 4711 of this call hangs .* so session 1 to .* stays"):
        iscsi.logout(login)
    assert sids(world) == [1, 2]


def test_the_record_that_a_session_of_sm_was_made_with_stays(world, iscsi):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    # SM attaches an SR behind the target while we work: it finds our session, so it makes no record.
    put(world.root, "var/run/sr-ref/" + IQN, OURS + "\n" + THEIRS + "\n", 0o644)
    assert iscsi.logout(login) is False
    # SM detaches, which keeps the record, and attaches again: it logs in with the record that it finds.
    os.unlink(os.path.join(world.root, "var/run/sr-ref", IQN))
    remove_session(world.root, 1)
    use_by_sm(world)
    put_session(world.root, 2)

    iscsi.recover()

    record = [PLAIN_RECORD.format(IQN)]
    assert list(world.records()) == record, "an iscsid that is started anew takes over sessions with a record only"


@pytest.mark.parametrize("how", list(USERS))
def test_a_session_of_ours_that_got_users_is_handed_over_at_the_logout(world, iscsi, caplog, no_patience, how):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    device = put_session(world.root, 1)
    put_user(world, device, how)

    assert iscsi.logout(login) is False

    assert sids(world) == [1] and USERS[how] in caplog.text
    assert list(world.records()) == [PLAIN_RECORD.format(IQN)], "an iscsid that is started anew needs it"
    assert reference(world) is None and dead_notes(world.host) == []


def test_a_record_that_was_there_is_back_when_a_session_in_use_is_handed_over(world, iscsi, no_patience):
    path = world.put_record("127.0.0.1,3260,1/default", text=THERE)
    login = iscsi.login(PORTAL, IQN, ALICE)
    put_user(world, put_session(world.root, 1), "swap")

    assert iscsi.logout(login) is False

    with open(path) as file:
        assert file.read() == THERE
    assert dead_notes(world.host) == []


def test_who_only_looks_at_a_disk_is_waited_for(world, iscsi, monkeypatch):
    login = iscsi.login(PORTAL, IQN, user=OURS)
    looks = [["process 4711 (pvs)"], []]
    monkeypatch.setattr(iscsi_luns.holders, "users_of_disks", lambda *_: looks.pop(0))

    assert iscsi.logout(login) is True
    assert looks == []


def test_a_session_of_an_earlier_boot_is_not_ours(world, iscsi):
    dead_note(world, sid=1)
    put(world.root, "proc/sys/kernel/random/boot_id", "two\n")
    put_session(world.root, 1)

    iscsi.recover()

    assert sids(world) == [1]
    assert dead_notes(world.host) == []


MARKER = [47, 93]
MARKED = {"lu_reset_tmo": "47", "tgt_reset_tmo": "93"}


def test_a_note_without_a_session_number_means_the_session_that_its_login_made(world, iscsi):
    dead_note(world, sids=[2], marker=MARKER)
    put_session(world.root, 2, **MARKED)
    put_session(world.root, 3)
    put_session(world.root, 4, **MARKED)

    login = iscsi.login(PORTAL, IQN)

    assert (login.created, login.session.sid) == (True, 4)


@pytest.mark.parametrize(
    "facts, session",
    [
        ({"sids": [], "marker": MARKER}, {"lu_reset_tmo": "30", "tgt_reset_tmo": "30"}),
        ({"sids": [], "marker": MARKER}, {"lu_reset_tmo": "47", "tgt_reset_tmo": "30"}),
        ({"sids": [], "marker": MARKER}, {}),
        ({"sids": [3], "marker": MARKER}, MARKED),
        ({}, {}),
    ],
    ids=["by a stranger", "nearly alike", "an old kernel", "there before", "the note of an older release"],
)
def test_a_session_that_does_not_provably_come_from_the_login_is_somebody_elses(world, iscsi, facts, session):
    dead_note(world, **facts)
    put_session(world.root, 3, **session)

    iscsi.recover()

    assert sids(world) == [3] and world.calls == []
    assert dead_notes(world.host) == []


def test_each_login_is_marked_in_its_own_way(world, iscsi):
    names = ["node.session.err_timeo.lu_reset_timeout", "node.session.err_timeo.tgt_reset_timeout"]
    for _ in range(4):
        iscsi.logout(iscsi.login(PORTAL, IQN))

    texts = [text for records in world.records_at_login for text in records.values()]
    markers = [tuple(settings_in(text.encode(), names).values()) for text in texts]
    assert len(set(markers)) > 1


def test_a_mark_is_no_pair_that_open_iscsi_gives_and_no_longer_patience():
    seconds = [one for _ in range(200) for one in new_marker()]
    assert set(seconds) == set(range(15, 30))


def test_a_recovery_that_fails_is_tried_again(world, iscsi, caplog):
    dead_note(world, sid=1)
    put_session(world.root, 1)
    world.answers["logout"] = lambda argv: (10, "", "no\n")

    iscsi.recover()

    assert "After an earlier run: The logout" in caplog.text
    del world.answers["logout"]
    iscsi.recover()
    assert sids(world) == []


def test_the_lock_of_the_database_that_a_killed_run_held_is_freed(world, iscsi):
    dead_note(world, locked=True)
    put(world.root, "run/lock/iscsi/lock.write", "")

    iscsi.recover()

    assert not os.path.exists(os.path.join(world.root, "run/lock/iscsi/lock.write"))


@pytest.mark.parametrize("order", ["the owner is killed", "who uses it as well is killed"])
@pytest.mark.parametrize("end", ["logout", "failure"])
def test_a_call_that_was_killed_beside_ours_does_not_keep_the_session(world, order, end):
    before = world.tree()
    calls = [OpenIscsi(world.host, lock_seconds=1.0, left=set()) for _ in range(2)]
    logins = [call.login(PORTAL, IQN, user=user) for call, user in zip(calls, (OURS, THEIRS))]
    dead = 0 if order == "the owner is killed" else 1
    logins[dead].note.close()

    if end == "logout":
        assert calls[1 - dead].logout(logins[1 - dead]) is True
    else:
        calls[1 - dead]._give_up(logins[1 - dead].note)
        assert sids(world) == ([] if dead else [1]), "it ends what is its own"
        OpenIscsi(world.host, lock_seconds=1.0).recover()

    assert (sids(world), reference(world), world.tree()) == ([], None, before)


def test_notes_of_live_runs_are_left_alone(world, iscsi):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)

    iscsi.recover()

    assert os.path.exists(note.path)
    note.remove()
