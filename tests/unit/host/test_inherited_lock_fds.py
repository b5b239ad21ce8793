# SPDX-License-Identifier: LGPL-2.1-only
"""A child closes its copies of the descriptors that hold locks, and none else; see also test_own_process.py."""

import os

import pytest

from relvmoiscsi.host import inherited_lock_fds


@pytest.fixture
def files(monkeypatch):
    """Two descriptors that are open; nothing is noted."""
    monkeypatch.setattr(inherited_lock_fds, "_noted", {})
    two = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    yield two
    for descriptor in filter(is_open, two):
        os.close(descriptor)


def is_open(descriptor):
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_what_is_noted_is_closed_and_nothing_else(files):
    with inherited_lock_fds.noted(files[0]):
        inherited_lock_fds.close_all()

    assert list(map(is_open, files)) == [False, True]


def test_what_guards_a_lun_may_stay(files):
    with inherited_lock_fds.noted(files[0], guards_lun=True), inherited_lock_fds.noted(files[1]):
        inherited_lock_fds.close_all_but_lun()
        assert list(map(is_open, files)) == [True, False]
        inherited_lock_fds.close_all()

    assert list(map(is_open, files)) == [False, False]


def test_what_was_forgotten_is_not(files):
    for descriptor in files:
        inherited_lock_fds.note(descriptor)
        inherited_lock_fds.forget(descriptor)
    with pytest.raises(KeyError), inherited_lock_fds.noted(files[0]):
        raise KeyError

    inherited_lock_fds.close_all()

    assert list(map(is_open, files)) == [True, True]


def test_it_is_done_once(files):
    inherited_lock_fds.note(files[0])
    inherited_lock_fds.close_all()
    again = os.open(os.devnull, os.O_RDONLY)
    assert again == files[0]  # the number is somebody else's now

    inherited_lock_fds.close_all()

    assert is_open(again)
