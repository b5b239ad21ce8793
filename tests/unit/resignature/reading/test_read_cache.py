# SPDX-License-Identifier: LGPL-2.1-only
"""A device that remembers what was read of it gives the same bytes, and those that were laid over it."""

from hypothesis import given
from hypothesis import strategies as st

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.resignature.reading.read_cache import ReadCache

BLOCKS, BLOCK = 24, 512
SIZE = BLOCKS * BLOCK


def ranges():
    pairs = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted)
    return st.lists(pairs.map(lambda pair: Range(pair[0], pair[1] - pair[0])), max_size=5)


def chunks(name):
    """Whole blocks; they may overlap, and the last one counts."""
    places = st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.integers(1, 6)), max_size=5)
    return places.map(
        lambda found: [
            Chunk(first * BLOCK, bytes([97 + number + 5 * name]) * (min(count, BLOCKS - first) * BLOCK))
            for number, (first, count) in enumerate(found)
        ]
    )


def laid_over(plain, parts):
    for part in parts:
        plain = plain[: part.offset] + part.data + plain[part.end :]
    return plain


@given(before=ranges(), first=chunks(0), between=ranges(), second=chunks(1), after=ranges())
def test_it_gives_what_a_device_with_the_chunks_on_it_would(before, first, between, second, after):
    disk = SparseDisk(SIZE)
    plain = bytes(number % 251 for number in range(SIZE))
    disk.poke(0, plain)
    cache = ReadCache(disk)
    cache.read(before)

    one = cache.with_chunks(first)
    one.read(between)
    two = one.with_chunks(second)

    told = [(cache, plain), (one, laid_over(plain, first)), (two, laid_over(laid_over(plain, first), second))]
    for found, expected in told + told:
        data = found.read(after)
        assert data == [expected[item.offset : item.end] for item in after]
        assert all(type(part) is bytes for part in data)


def test_a_block_is_read_once():
    disk = SparseDisk(SIZE)
    cache = ReadCache(disk)

    cache.read([Range(0, 600)])
    cache.read([Range(512, 512), Range(100, 900)])

    assert disk.bytes_read == 1024
