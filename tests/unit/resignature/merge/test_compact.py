# SPDX-License-Identifier: LGPL-2.1-only
"""Many small values in little memory are the same values."""

import random
from array import array
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.resignature.merge.compact import Arrays, Rows


class Pair(NamedTuple):
    number: int
    is_odd: bool


def test_rows_come_back_in_their_order():
    pairs = [Pair(number, bool(number % 2)) for number in (5, 2, 1 << 31)]

    rows = Rows(Pair, "IB", pairs)

    assert list(rows) == list(rows) == pairs and len(rows) == 3
    assert isinstance(next(iter(rows)), Pair)


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
