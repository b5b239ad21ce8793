# SPDX-License-Identifier: LGPL-2.1-only
"""The bar of long work: what it shows on a terminal, and that it shows nothing elsewhere."""

import io

import pytest

from relvmoiscsi.cli.progress import Bar, human_time

GIB = 1 << 30


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def clock():
    return Clock()


def last(terminal):
    """The line as it stands."""
    return terminal.getvalue().split("\r")[-1]


def test_a_terminal_that_goes_away_does_not_stop_the_work(terminal, clock):
    bar = Bar(terminal, clock)
    bar(0, 8 * GIB)

    terminal.write = gone
    clock.now += 60
    with bar:
        bar(2 * GIB, 8 * GIB)
        bar(8 * GIB, 8 * GIB)


def gone(_text):
    raise OSError(5, "Input/output error")


def test_it_shows_what_is_done_and_how_long_the_rest_takes(terminal, clock):
    bar = Bar(terminal, clock)

    bar(0, 8 * GIB)
    clock.now += 60
    bar(2 * GIB, 8 * GIB)

    assert last(terminal) == "  [" + 10 * "#" + 30 * " " + "] 2 GiB of 8 GiB, 3 min left"
    bar(8 * GIB, 8 * GIB)
    assert last(terminal).rstrip(" \n") == "  [" + 40 * "#" + "] 8 GiB of 8 GiB"
    assert last(terminal).endswith("\n")


def test_a_shorter_line_leaves_nothing_of_the_longer_one(terminal, clock):
    bar = Bar(terminal, clock)
    bar(0, 8 * GIB)
    clock.now += 60
    bar(2 * GIB, 8 * GIB)
    long = len(last(terminal))

    bar(8 * GIB, 8 * GIB)

    assert len(last(terminal).rstrip("\n")) == long


def test_a_rate_of_a_moment_is_no_estimate(terminal, clock):
    bar = Bar(terminal, clock)

    bar(0, 8 * GIB)
    clock.now += 1
    bar(GIB, 8 * GIB)

    assert "left" not in terminal.getvalue()


def test_it_is_not_drawn_more_often_than_anybody_can_see(terminal, clock):
    bar = Bar(terminal, clock)

    for done in range(1000):
        bar(done, 1000)
        clock.now += 0.01

    assert terminal.getvalue().count("\r") < 60


def test_work_that_begins_anew_has_a_line_and_a_time_of_its_own(terminal, clock):
    bar = Bar(terminal, clock)
    for _ in range(2):
        bar(0, 4 * GIB)
        clock.now += 10
        bar(1 * GIB, 4 * GIB)
        assert last(terminal).endswith(", 30 s left")
        bar(4 * GIB, 4 * GIB)

    assert terminal.getvalue().count("\n") == 2


def test_the_line_ends_where_the_work_fails(terminal, clock):
    with pytest.raises(ValueError), Bar(terminal, clock) as bar:
        bar(1, 10)
        raise ValueError

    assert terminal.getvalue().endswith("\n")


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_shown_where_nobody_looks(stream, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream)
    with Bar(stream) as bar:
        bar(1, 10)
        bar(10, 10)

    assert stream is None or stream.getvalue() == ""


def test_nothing_to_do_is_no_line(terminal):
    with Bar(terminal) as bar:
        bar(0, 0)

    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    "seconds, words",
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3570, "1 h 0 min"), (3599, "1 h 0 min"), (11100, "3 h 5 min")],
)
def test_a_time_is_told_in_its_two_largest_units(seconds, words):
    assert human_time(seconds) == words
