# SPDX-License-Identifier: LGPL-2.1-only
"""Many small values in little memory are the same values."""

import random
from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.resignature.one_vdi.compact import Arrays, Places, Rows


class Pair(NamedTuple):
    number: int
    is_odd: bool


def test_rows_come_back_in_their_order():
    pairs = [Pair(number, bool(number % 2)) for number in (5, 2, 1 << 31)]

    rows = Rows(Pair, "IB", pairs)

    assert list(rows) == list(rows) == pairs and len(rows) == 3
    assert isinstance(next(iter(rows)), Pair)


@given(st.dictionaries(st.integers(0, 99), st.integers(0, (1 << 32) - 2)))
def test_places_are_those_of_a_dict(meant):
    places = Places(100)
    for number, place in meant.items():
        places[number] = 0
        places[number] = place

    assert dict(places.items()) == meant and len(places) == len(meant)
    assert sorted(places) == sorted(meant) and sorted(places.values()) == sorted(meant.values())
    assert all((number in places) == (number in meant) for number in range(100))


def test_a_place_that_is_not_there():
    with pytest.raises(KeyError):
        Places(3)[1]


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, (1 << 64) - 1))))
def test_arrays_are_those_of_a_dict(meant):
    arrays = Arrays()
    for number, numbers in meant.items():
        arrays[number] = numbers

    assert {number: list(arrays[number]) for number in arrays} == meant and len(arrays) == len(meant)
    assert arrays.get(10) is None and 10 not in arrays


def test_numbers_that_count_on_take_next_to_nothing():
    dice = random.Random(1)
    arrays = Arrays()

    arrays[0] = array("Q", range(1 << 56, (1 << 56) + (8192 << 16), 1 << 16))
    arrays[1] = array("Q", [dice.randrange(1 << 24) << 16 for _ in range(8192)])

    assert arrays.size_bytes(0) < 1024
    assert arrays.size_bytes(1) < 4 * 8192, "four bytes for each, in whatever order"
