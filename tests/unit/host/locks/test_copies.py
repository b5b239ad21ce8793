# SPDX-License-Identifier: LGPL-2.1-only
"""A child closes its copies of the descriptors that hold locks, and none else; see also test_own_process.py."""

import os

import pytest

from relvmoiscsi.host.locks import copies


@pytest.fixture
def files(monkeypatch):
    """Two descriptors that are open; nothing is noted."""
    monkeypatch.setattr(copies, "_noted", {})
    two = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    yield two
    for descriptor in filter(is_open, two):
        os.close(descriptor)


def is_open(descriptor):
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_what_is_noted_is_closed_and_nothing_else(files):
    with copies.noted(files[0]):
        copies.close_all()

    assert list(map(is_open, files)) == [False, True]


def test_what_guards_a_lun_may_stay(files):
    with copies.noted(files[0], guards_lun=True), copies.noted(files[1]):
        copies.close_all_but_lun()
        assert list(map(is_open, files)) == [True, False]
        copies.close_all()

    assert list(map(is_open, files)) == [False, False]


def test_what_was_forgotten_is_not(files):
    for descriptor in files:
        copies.note(descriptor)
        copies.forget(descriptor)
    with pytest.raises(KeyError), copies.noted(files[0]):
        raise KeyError

    copies.close_all()

    assert list(map(is_open, files)) == [True, True]


def test_it_is_done_once(files):
    copies.note(files[0])
    copies.close_all()
    again = os.open(os.devnull, os.O_RDONLY)
    assert again == files[0]  # the number is somebody else's now

    copies.close_all()

    assert is_open(again)
