# SPDX-License-Identifier: LGPL-2.1-only
"""LVM's lock files: which, in which order, for how long, and what is left of them."""

import fcntl
import logging
import os
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from kit.clock import Clock
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.locks import lvm_locks as lock
from relvmoiscsi.host.locks.lvm_locks import lvm_locks

OLD, NEW = "VG_XenStorage-old", "VG_XenStorage-new"


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "lvm"
    path.mkdir()
    return str(path)


@pytest.fixture
def other(directory):
    """Another program with LVM's locks: take one, and release it as LVM does."""
    program = Other(directory)
    yield program
    program.end()


def paths_of(locks):
    """The lock files held, in the order in which they were taken."""
    return [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in locks]


class Other:
    def __init__(self, directory):
        self.directory = directory
        self.held = {}

    def take(self, name):
        path = os.path.join(self.directory, name)
        descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.held[name] = descriptor

    def release(self, name):
        os.unlink(os.path.join(self.directory, name))
        os.close(self.held.pop(name))

    def end(self):
        for name in list(self.held):
            self.release(name)


def test_the_lock_of_orphans_comes_first_then_the_groups_by_name_and_no_other(directory):
    with lvm_locks([OLD, NEW, OLD], directory) as locks:
        taken = paths_of(locks)
        files = sorted(os.listdir(directory))

    assert taken == [os.path.join(directory, name) for name in ("P_orphans", "V_" + NEW, "V_" + OLD)]
    assert files == ["P_orphans", "V_" + NEW, "V_" + OLD]
    assert os.listdir(directory) == [], "those that were made go with the locks"


def test_while_a_lock_is_held_nobody_else_gets_it_and_it_is_released_after_a_failure_too(directory, other):
    with pytest.raises(KeyError), lvm_locks([OLD, NEW], directory):
        for name in ("P_orphans", "V_" + NEW, "V_" + OLD):
            with pytest.raises(BlockingIOError):
                other.take(name)
        raise KeyError

    assert os.listdir(directory) == []


@pytest.fixture
def clock(monkeypatch):
    """It goes on while a lock is waited for; then `clock.does` is done."""
    found = Clock()
    found.does = lambda: None
    monkeypatch.setattr(flock, "pause", lambda seconds: (found.sleep(seconds), found.does()))
    for module in (flock, lock):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=found))
    return found


def test_a_lock_that_stays_taken_is_refused_by_name_and_the_others_are_released(directory, other, clock):
    other.take("V_" + OLD)
    begun = clock.now

    with pytest.raises(Refused) as caught, ExitStack() as block:
        block.enter_context(lvm_locks([NEW, OLD], directory, timeout=20))

    assert os.path.join(directory, "V_" + OLD) in str(caught.value)
    assert " Nothing was written. " in str(caught.value)
    assert 20 <= clock.now - begun < 21
    assert os.listdir(directory) == ["V_" + OLD]


def test_a_lock_that_is_released_in_time_is_taken_on_the_new_file(directory, other, clock):
    other.take("V_" + OLD)
    clock.does = other.end

    with lvm_locks([OLD], directory, timeout=20) as locks:
        path = paths_of(locks)[-1]
        # The file that was waited for is gone; a lock on it would keep nobody off.
        with pytest.raises(BlockingIOError):
            other.take("V_" + OLD)

    assert not os.path.exists(path)


def test_a_lock_file_that_is_replaced_all_the_time_is_given_up(directory, clock, monkeypatch):
    monkeypatch.setattr(flock, "is_current", lambda _path, _descriptor: False)

    with pytest.raises(Refused, match="P_orphans"):
        lvm_locks([OLD], directory, timeout=0).__enter__()


def test_at_least_one_attempt_is_made_whatever_the_deadline(directory, clock):
    descriptor = os.open(os.path.join(directory, "file"), os.O_CREAT | os.O_RDWR)

    assert flock.take(descriptor, clock.now - 5)

    os.close(descriptor)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "white space", "line\n", "x" * 128, "ü"])
def test_a_name_that_no_volume_group_can_have_is_refused_before_any_lock_is_taken(directory, name):
    with pytest.raises(Refused, match="is not a name of a volume group"), lvm_locks([OLD, name], directory):
        pytest.fail("locked")

    assert os.listdir(directory) == []


def test_a_link_in_the_place_of_a_lock_file_is_not_followed_and_a_directory_is_not_made(directory, tmp_path):
    os.symlink(str(tmp_path / "victim"), os.path.join(directory, "V_" + OLD))

    with pytest.raises(Refused, match="is no regular file"), lvm_locks([OLD], directory):
        pytest.fail("locked")
    assert not (tmp_path / "victim").exists()
    with pytest.raises(NotFound, match="does not exist"), lvm_locks([OLD], str(tmp_path / "nothing")):
        pytest.fail("locked")


def test_the_first_lock_directory_that_exists_is_used_and_where_lvm_never_ran_no_lock_is_needed(
    directory, monkeypatch, tmp_path, caplog
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(lock, "LOCK_DIRECTORIES", (str(tmp_path / "nothing"), directory))
    with lvm_locks([OLD]) as locks:
        assert os.path.dirname(paths_of(locks)[0]) == directory

    monkeypatch.setattr(lock, "LOCK_DIRECTORIES", (str(tmp_path / "nothing"),))
    with lvm_locks([OLD]) as locks:
        assert paths_of(locks) == []
    assert "no LVM lock is needed" in caplog.text


def is_a_link(directory, victim):
    os.rmdir(directory)
    os.symlink(victim, directory)
    os.lchown(directory, 4712, 4712)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (is_a_link, "/lvm belongs to another user"),
        (lambda directory, _: os.chown(directory, 4712, 4712), "/lvm belongs to another user"),
        (lambda directory, _: os.chmod(directory, 0o777), "other users can change the directory .*/lvm"),
    ],
    ids=["link", "owner", "mode"],
)
def test_a_lock_directory_that_another_user_has_made_is_refused(directory, monkeypatch, tmp_path, happens, says):
    victim = tmp_path / "victim"
    victim.mkdir()
    happens(directory, str(victim))
    monkeypatch.setattr(lock, "LOCK_DIRECTORIES", (directory,))
    with pytest.raises(Refused, match=says), lvm_locks([OLD]):
        pytest.fail("locked")
    assert not os.listdir(directory) and not os.listdir(str(victim))


def test_a_lock_file_that_somebody_removed_or_replaced_is_not_ours_to_remove(directory):
    with lvm_locks([OLD, NEW], directory) as locks:
        _, removed, replaced = paths_of(locks)
        os.unlink(removed)
        os.unlink(replaced)
        with open(replaced, "w", encoding="ascii"):
            pass

    assert os.listdir(directory) == ["V_" + OLD]


def test_a_failing_release_is_logged_and_hides_nothing(directory, monkeypatch, caplog):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    with pytest.raises(KeyError, match="the first error"), lvm_locks([OLD], directory) as locks:
        os.close(locks[0])
        monkeypatch.setattr(lock.os, "unlink", fail)
        raise KeyError("the first error")

    assert f"V_{OLD} could not be removed: Permission denied" in caplog.text
    assert "P_orphans could not be removed: Bad file descriptor" in caplog.text
    assert "P_orphans could not be closed: Bad file descriptor" in caplog.text


def test_lock_files_of_a_process_that_was_killed_go_with_the_lock(directory):
    for name in ("P_orphans", "V_" + OLD):
        with open(os.path.join(directory, name), "w"):
            pass

    with lvm_locks([OLD, NEW], directory):
        pass

    assert os.listdir(directory) == []
