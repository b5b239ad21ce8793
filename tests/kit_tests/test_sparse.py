# SPDX-License-Identifier: LGPL-2.1-only
"""The disk in memory behaves like a disk, and is strict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.sparse import PAGE, Recalled, SparseDisk
from relvmoiscsi.device import Chunk, Range

SIZE = 16 * PAGE


def pokes():
    offsets = st.integers(0, SIZE - 1)
    return st.lists(st.tuples(offsets, st.binary(min_size=1, max_size=3 * PAGE)), max_size=6)


def poked(disk, changes):
    """A disk and a plain bytearray after the same changes."""
    plain = bytearray(disk.peek(0, SIZE))
    for offset, data in changes:
        kept = data[: SIZE - offset]
        disk.poke(offset, kept)
        plain[offset : offset + len(kept)] = kept
    return bytes(plain)


@given(before=pokes(), one=pokes(), other=pokes())
def test_copies_have_the_same_content_if_they_hold_the_same_bytes(before, one, other):
    disk = SparseDisk(SIZE)
    poked(disk, before)
    disk.freeze()
    copies = disk.copy(), disk.copy()
    plain = [poked(copy, changes) for copy, changes in zip(copies, (one, other))]

    assert (copies[0].content() == copies[1].content()) == (plain[0] == plain[1])
    copies[1].poke(0, plain[0])
    assert len({copy.content() for copy in copies}) == 1


@pytest.mark.parametrize(
    "block_size, places",  # of the chunks: offset and length
    [
        (512, [(1, 512)]),
        (512, [(0, 511)]),
        (512, [(0, 0)]),
        (4096, [(512, 4096)]),
        (4096, [(0, 512)]),
        (512, [(SIZE, 512)]),
        (512, [(1024, 512), (512, 1024)]),
    ],
)
def test_a_write_that_no_disk_would_take_is_a_mistake_of_the_program(block_size, places):
    disk = SparseDisk(SIZE, block_size)

    with pytest.raises(AssertionError):
        disk.write([Chunk(offset, b"x" * length) for offset, length in places])

    assert disk == SparseDisk(SIZE)


@given(changes=pokes(), masks=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=4))
def test_the_digest_does_not_see_what_is_excepted_and_sees_all_else(changes, masks):
    ranges = [Range(offset, min(length, SIZE - offset)) for offset, length in masks]
    disk = SparseDisk(SIZE)
    plain = bytearray(poked(disk, changes))

    for item in ranges:
        plain[item.offset : item.end] = bytes(item.length)
    blanked = SparseDisk(SIZE)
    blanked.poke(0, bytes(plain))

    assert disk.digest_except(ranges) == blanked.digest_except([])
    assert disk.same_except(blanked, ranges) and blanked.same_except(disk, ranges)
    outside = [at for at in range(0, SIZE, 777) if not any(item.offset <= at < item.end for item in ranges)]
    for at in outside[:3]:
        disk.poke(at, bytes([disk.peek(at, 1)[0] ^ 1]))
        assert disk.digest_except(ranges) != blanked.digest_except([])
        assert not disk.same_except(blanked, ranges)
        disk.poke(at, bytes([disk.peek(at, 1)[0] ^ 1]))


def test_what_was_read_of_a_copy_is_recalled_until_a_page_that_was_looked_at_changes():
    disk, asked = SparseDisk(64 * PAGE), []
    disk.poke(0, b"x" * 3 * PAGE)
    disk.freeze()

    def look(copy, name):
        asked.append(name)
        return copy.peek(5, 1), copy.grown(65 * PAGE).peek(2 * PAGE - 1, 2), len(copy.peek(9 * PAGE, 0))

    recalled = Recalled(look)
    elsewhere, there, in_a_copy_of_it, back = (disk.copy() for _ in range(4))
    elsewhere.poke(3 * PAGE, b"else")
    there.poke(5, b"y")
    in_a_copy_of_it.poke(2 * PAGE, b"z")
    back.poke(5, b"y")
    back.poke(5, b"x")

    found = [recalled(each, "one") for each in (disk, elsewhere, there, in_a_copy_of_it, back, there)]

    same = (b"x", b"xx", 0)
    assert found == [same, same, (b"y", b"xx", 0), (b"x", b"xz", 0), same, (b"y", b"xx", 0)]
    assert asked == ["one"] * 3
    assert recalled(disk, "another") == same and asked[3:] == ["another"]
    other = SparseDisk(64 * PAGE)
    assert recalled(other, "one") == (b"\0", b"\0\0", 0), "no copy: nothing is known of it"
