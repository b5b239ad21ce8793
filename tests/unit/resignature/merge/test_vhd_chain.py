# SPDX-License-Identifier: LGPL-2.1-only
"""Bitmaps of a million blocks fit into memory, and read as they were."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from kit.chains.random_chain import random_chain
from kit.cuts import entropy
from relvmoiscsi import engine
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.resignature.merge.vhd_chain import Bitmaps


@given(st.dictionaries(st.integers(0, 1 << 20), st.binary(min_size=512, max_size=512)))
def test_bitmaps_are_what_was_put_in(given_bitmaps):
    found = Bitmaps()

    for block in sorted(given_bitmaps):
        found.append(block, given_bitmaps[block])

    for block, data in given_bitmaps.items():
        assert blocks.bitmap_bytes(found[block]) == data


def test_a_bitmap_of_a_few_stretches_takes_less_than_a_hundred_bytes():
    tracemalloc.start()
    try:
        found = Bitmaps()
        for block in range(10000):
            found.append(block, bytes(block % 400) + b"\xff" * 40 + bytes(472 - block % 400))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 100 * 10000


def test_copies_can_be_asked_for_more_than_once():
    chain = random_chain(34, bat_entries=4096, free=20, blocks=5, depth=3)

    unseen = engine.prepare(chain.disk, entropy(0), engine.ResignatureRequest(one=OneVdiRequest())).plan.unseen

    first = [list(several) for several in unseen.copies]
    assert any(first) and first == [list(several) for several in unseen.copies]
    assert unseen.copied_bytes == sum(copy.length for several in first for copy in several)
