# SPDX-License-Identifier: LGPL-2.1-only
"""The note of a login: cut, full, removed, looked for by others."""

import errno
import os

import pytest

from kit.iscsi_runs import (
    DISCOVERY,
    OURS,
    dead_note,
    sids,
)
from kit.iscsi_world import (
    IQN,
    PORTAL,
    put,
    put_session,
)
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.iscsi import notes as iscsi_notes
from relvmoiscsi.host.iscsi.notes import dead_notes, new_note


def test_a_line_that_was_cut_does_not_count(world, caplog):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    note.add(sid=4)
    note.close()
    with open(note.path, "a") as file:
        file.write("not json\n" + '{"sid": 5')

    (found,) = dead_notes(world.host)
    assert (found["iqn"], found["sid"], found.portal) == (IQN, 4, PORTAL)
    assert "cannot be read" in caplog.text
    found.remove()


def test_a_note_that_was_cut_in_its_first_line_goes(world):
    path = put(world.root, "var/lib/relvmoiscsi/iscsi/1-0.json", '{"iqn": "iq')

    assert dead_notes(world.host) == []
    assert not os.path.exists(path)


def test_a_note_is_for_root_alone(world):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    assert os.stat(note.path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(note.path)).st_mode & 0o777 == 0o700
    note.remove()
    assert not os.path.exists(os.path.dirname(note.path))


def test_each_login_has_its_own_note(world):
    notes = [new_note(world.host, iqn=IQN, portal=list(PORTAL)) for _ in range(3)]

    assert len({note.path for note in notes}) == 3
    for note in notes:
        note.remove()


def test_a_note_that_somebody_removed_is_only_logged(world, caplog):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    os.unlink(note.path)

    note.remove()

    assert "could not be removed" in caplog.text


def test_notes_that_cannot_be_written_stop_everything(world, iscsi):
    put(world.root, "var/lib/relvmoiscsi", "")
    calls = len(world.calls)

    with pytest.raises(Refused, match="which a cleanup after a crash needs"):
        iscsi.login(PORTAL, IQN)
    assert world.calls[calls:] == [DISCOVERY]


def test_a_note_that_cannot_be_added_to_is_refused(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="No space left"):
        note.add(sid=1)
    note.remove()


def test_a_note_that_goes_while_it_is_looked_for_is_passed_over(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))
    names = os.listdir(os.path.dirname(note.path))
    note.remove()
    monkeypatch.setattr(os, "listdir", lambda path: names)

    assert dead_notes(world.host) == []


def test_a_note_that_cannot_be_opened_is_refused(world):
    os.makedirs(os.path.join(world.root, "var/lib/relvmoiscsi/iscsi/1-0.json"))

    with pytest.raises(Refused, match="Is a directory"):
        dead_notes(world.host)


def test_a_directory_of_notes_that_another_run_removes_is_made_again(world, monkeypatch):
    real, removed = os.open, []

    def open_after_another(path, flags, *mode):
        if not removed and path.endswith(".json"):
            removed.append(path)
            os.rmdir(os.path.dirname(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_after_another)
    new_note(world.host, iqn=IQN, portal=list(PORTAL)).remove()

    assert removed


def test_a_note_that_was_taken_for_a_dead_one_before_its_first_line_is_made_again(world, monkeypatch):
    real, first = iscsi_notes.fcntl.flock, []

    def flock(descriptor, operation):
        if not first:
            first.append(descriptor)
            assert dead_notes(world.host) == []
        real(descriptor, operation)

    monkeypatch.setattr(iscsi_notes.fcntl, "flock", flock)
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL))

    assert os.path.exists(note.path) and first
    note.remove()


def test_without_a_boot_id_sessions_are_told_by_their_number(world, iscsi):
    os.unlink(os.path.join(world.root, "proc/sys/kernel/random/boot_id"))
    dead_note(world, sid=1)
    put_session(world.root, 1)

    iscsi.recover()

    assert sids(world) == []


def test_a_note_that_there_is_room_for_half_of_is_none_and_keeps_what_it_had(world, monkeypatch):
    note = new_note(world.host, iqn=IQN, portal=list(PORTAL), user=None, created=True)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
        with pytest.raises(Refused, match="No space left on device. Make room there. Nothing was changed."):
            note.add(sid=7, marker=[1, 2])
    note.add(sid=8)
    note.close()

    (found,) = dead_notes(world.host)
    assert (found["iqn"], found["sid"], found["marker"]) == (IQN, 8, None)
    found.close()


def test_where_there_is_no_room_for_a_note_nothing_is_left(world, iscsi, monkeypatch):
    before = world.tree()

    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Refused, match="Make room there"):
            iscsi.login(PORTAL, IQN, user=OURS)

    assert world.tree() == before
