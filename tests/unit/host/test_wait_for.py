# SPDX-License-Identifier: LGPL-2.1-only
"""Waiting ends with the first look that finds something."""

import time

import pytest

from kit.udev_world import Scripted
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host import this_host
from relvmoiscsi.host.this_host import wait_for


def test_what_is_there_already_needs_no_pause():
    pauses = Scripted()

    assert wait_for(lambda: ["sdb"], 10, pauses) == ["sdb"]
    assert pauses.waits == []


def test_each_pause_ends_with_a_look_and_the_value_is_given_back():
    found = []
    pauses = Scripted(lambda: None, lambda: found.append("sdb"))

    assert wait_for(lambda: found, 600, pauses) == ["sdb"]
    assert len(pauses.waits) == 2
    for found in ("there", ""):  # without time it is still looked once
        assert wait_for(lambda: found, 0, Scripted()) == (found or None)  # noqa: B023 - called at once


def test_no_pause_is_longer_than_the_time_between_two_looks_or_than_what_is_left():
    pauses = Scripted(lambda: None, lambda: time.sleep(0.1))

    assert wait_for(lambda: None, 0.05, pauses) is None
    assert all(0 < seconds <= 0.05 for seconds in pauses.waits)

    pauses = Scripted(*[lambda: None] * 5)
    count = iter(range(6))
    wait_for(lambda: next(count) == 5, 1000, pauses)
    assert max(pauses.waits) == this_host.LOOK_SECONDS


def test_an_error_of_the_condition_ends_the_wait():
    def condition():
        raise NotFound("gone")

    with pytest.raises(NotFound):
        wait_for(condition, 10, Scripted())
