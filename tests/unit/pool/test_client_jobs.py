# SPDX-License-Identifier: LGPL-2.1-only
"""Several jobs at once: in which order their steps are taken, and that one which fails stops no other."""

import threading

import pytest

from relvmoiscsi.errors import NotFound
from relvmoiscsi.pool import jobs


class Line:
    """A connection that counts how many are open."""

    opened = closed = 0

    def another(self):
        Line.opened += 1
        return Line()

    def close(self):
        Line.closed += 1


def test_results_come_in_the_order_of_the_items():
    found = jobs.at_once(Line(), range(20), lambda calls, number: number * 2, 4)

    assert found == list(range(0, 40, 2)) and Line.opened == Line.closed > 0


def two_steps(items, first, second, at_once, group=lambda item: item):
    return jobs.in_two_steps(Line(), items, first, second, group, at_once)


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_second_step_gets_what_the_first_has_given_and_an_error_ends_one_item(at_once):
    def add(_calls, number):
        if number == 2:
            raise NotFound("two")
        return number + 10

    found = two_steps(range(5), add, lambda _, number: f"{number}!", at_once)

    assert [str(each) for each in found] == ["10!", "11!", "two", "13!", "14!"]
    assert isinstance(found[2], NotFound)


def test_who_is_free_takes_the_second_step_of_others_while_the_last_first_step_goes_on():
    """Three at once, four items: the second steps of the first three are over before the fourth item's first one."""
    seconds, lock, enough = [], threading.Lock(), threading.Event()

    def first(_calls, item):
        if item == "d":
            assert enough.wait(60), "nobody has taken the second steps of the others meanwhile"
        return item

    def second(_calls, item):
        with lock:
            seconds.append(item)
            if len(seconds) == 3:
                enough.set()
        return item

    assert two_steps("abcd", first, second, 3) == list("abcd")
    assert seconds[-1] == "d"


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_no_item_goes_on_before_all_of_its_group_are_there_or_have_ended(at_once):
    order, lock = [], threading.Lock()

    def first(_calls, item):
        if item == "a2":
            raise NotFound("it ends here")
        with lock:
            order.append((1, item))
        return item

    def second(_calls, item):
        with lock:
            order.append((2, item))
        return item

    items = ["a1", "b1", "a2", "b2", "b3", "c1"]
    found = two_steps(items, first, second, at_once, lambda item: item[0])

    assert [str(each) for each in found] == ["a1", "b1", "it ends here", "b2", "b3", "c1"]
    for group in "abc":
        mine = [step for step, item in order if item[0] == group]
        assert mine == sorted(mine) and mine.count(2) == mine.count(1)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_bug_comes_through_and_nobody_waits_for_ever(at_once):
    def job(_calls, number):
        if number == 1:
            raise ZeroDivisionError("a bug")
        return number

    with pytest.raises(ZeroDivisionError):
        jobs.at_once(Line(), range(6), job, at_once)


def test_who_is_interrupted_waits_for_nobody(monkeypatch):
    """Ctrl-C comes to the thread that waits for the others."""
    hung, release = threading.Event(), threading.Event()

    def job(_calls, number):
        hung.set()
        release.wait(60)
        return number

    def interrupted(thread):
        assert hung.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.at_once(Line(), range(6), job, 3)
    release.set()


def test_nothing_to_do():
    assert jobs.at_once(Line(), [], lambda calls, item: item) == []
