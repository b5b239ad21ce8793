# SPDX-License-Identifier: LGPL-2.1-only
"""Every wait of a call takes from one budget; what is taken back has a little more."""

import math

import pytest

from kit.clock import Clock
from relvmoiscsi.deadline import CLEANUP_SECONDS, NO_DEADLINE, NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.sr_driver.codes import NUMBERS


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def deadline(clock):
    return Deadline(50, clock)


def test_a_wait_gets_what_it_asks_for_or_what_is_left(deadline, clock):
    assert deadline.within(15) == 15
    clock.now += 40
    assert deadline.within(15) == 10
    clock.now += 40
    assert (deadline.within(15), deadline.left, deadline.has_passed) == (0, 0, True)


def test_without_a_deadline_a_wait_takes_what_it_takes():
    assert (NO_DEADLINE.within(120.0), NO_DEADLINE.left, NO_DEADLINE.has_passed) == (120.0, math.inf, False)
    assert NO_DEADLINE.for_cleanup().within(120.0) == 120.0
    assert NO_DEADLINE.part(8).within(120.0) <= 8


def test_a_part_ends_with_the_whole(deadline, clock):
    part = deadline.part(8)
    clock.now += 45
    later = deadline.part(8)

    assert part.has_passed
    assert later.left == 5


def test_after_it_nothing_is_begun_and_the_message_of_a_call_that_writes_says_what_to_do(clock):
    deadline = Deadline(50, clock, NOT_BEGUN)
    deadline.check("the login")
    clock.now += 50

    with pytest.raises(OutOfTime) as caught:
        deadline.check("the login")

    assert str(caught.value) == (
        "The 50 seconds of this call were over before the login. This call wrote nothing to the LUN. Repeat the "
        "call; it also finishes an interrupted earlier call."
    )
    assert caught.value.sm_key in NUMBERS


def test_a_call_that_only_reads_says_nothing_of_earlier_calls_and_its_parts_know_that(deadline, clock):
    parts = [deadline.part(8), deadline.for_cleanup(), deadline]
    clock.now += 100

    for part in parts:
        assert part.over("the login", "It was busy.").disk_state == part.state == ""
        assert "before the login. It was busy." in str(part.over("the login", "It was busy."))
    writing = Deadline(50, clock, NOT_BEGUN)
    assert {part.over("the login").disk_state for part in (writing.part(8), writing.for_cleanup())} == {NOT_BEGUN}


def test_what_is_taken_back_has_some_seconds_after_it_and_never_none(deadline, clock):
    assert deadline.for_cleanup().left == 50 + CLEANUP_SECONDS
    clock.now += 50
    assert deadline.for_cleanup().left == CLEANUP_SECONDS
    clock.now += 50
    assert 0 < deadline.for_cleanup().left < CLEANUP_SECONDS
