# SPDX-License-Identifier: LGPL-2.1-only
"""A guest knows what it has written, and never writes the same twice."""

import random
import zlib

import pytest

from kit.chains import BLOCK, SECTOR, SECTORS, Flat, digest_of_sectors
from kit.chains.guest import SHAPES, Guest, Writer, unlike


def test_the_flat_copy():
    guest, sector = Guest(3 * BLOCK), b"ab" * 256
    assert guest.flat() == Flat(3 * BLOCK, ())
    guest.write(4095, sector * 2)
    assert guest.flat() == digest_of_sectors(3 * BLOCK, {4095: sector, 4096: sector})
    guest.write(4096, bytes(SECTOR))
    assert guest.flat() == digest_of_sectors(3 * BLOCK, {4095: sector})
    assert Guest(3 * BLOCK, {0: bytes(BLOCK - SECTOR) + sector}).flat() == guest.flat()


def test_a_disk_that_grows_inside_a_block():
    guest, sector = Guest(BLOCK - SECTOR), b"ab" * 256
    guest.write(5, sector)
    small = guest.flat()
    guest.grow(2 * BLOCK)
    assert guest.flat() == digest_of_sectors(2 * BLOCK, {5: sector}) != small
    with pytest.raises(AssertionError):
        guest.write(2 * SECTORS, sector)


def test_unlike_says_where():
    one, other = Guest(4 * BLOCK), Guest(4 * BLOCK)
    assert unlike(one.flat(), other.flat()) == ""
    one.write(SECTORS, b"x" * SECTOR)
    other.write(3 * SECTORS, b"x" * SECTOR)
    assert unlike(one.flat(), other.flat()) == "blocks [1, 3] of 4 hold something else"
    other.grow(5 * BLOCK)
    assert unlike(one.flat(), other.flat()) == "the disk has 8388608 bytes and should have 10485760"


@pytest.mark.parametrize("how", sorted(set(SHAPES)))
@pytest.mark.parametrize("size", [BLOCK + BLOCK, BLOCK + 3 * SECTOR, BLOCK + 2 * SECTOR, BLOCK + SECTOR])
def test_writes_to_a_block_stay_in_it(how, size):
    writer, guest = Writer(random.Random(how)), Guest(size)
    for number in range(20):
        for sector, data in writer.to_block(number % 2, size, how):
            assert number % 2 * SECTORS <= sector and sector + len(data) // SECTOR <= (number % 2 + 1) * SECTORS
            guest.write(sector, data)
    if how.startswith("whole"):
        assert writer._count and sum(bool(any(guest.data[at : at + SECTOR])) for at in range(0, size, SECTOR)) > 0


def test_no_two_sectors_are_alike_but_zeros_and_nothing_can_be_compressed():
    writer = Writer(random.Random(1))
    seen = [writer.data(100) for _ in range(5)] + [writer.zeros_or_data(100) for _ in range(50)]
    sectors = [run[at : at + SECTOR] for run in seen if any(run) for at in range(0, len(run), SECTOR)]
    assert len(set(sectors)) == len(sectors) < 5500
    assert bytes(100 * SECTOR) in seen
    assert len(zlib.compress(seen[0])) > len(seen[0])
