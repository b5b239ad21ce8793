# SPDX-License-Identifier: LGPL-2.1-only
"""Where each block of the disk is at home: in the topmost image that has any sector of it. Pure.

A block whose other sectors lie further down is filled up in its home, where their bits are clear and nobody sees them;
what no image has becomes zeros there, so that the block is full. The last block of a disk may not become full: then it
is copied. Where a cut may tear a page of 4 KiB, sectors that are in use must not share one with those that are written:
such a block is copied as well.

There may be a million of them, so a home has no bitmaps: those are put together again for the block in question; and
homes are kept as rows of numbers.
"""

from itertools import compress
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.formats.vhd_blocks import BLOCK_SECTORS, FULL, UNUSED, bitmap_bytes, first_sectors
from relvmoiscsi.resignature.one_vdi.compact import Rows
from relvmoiscsi.resignature.one_vdi.vhd.members import Member


class Home(NamedTuple):
    """A block of the disk that some image has."""

    block: int
    member: int  #: index in the chain
    filled_sectors: int = 0  #: so many are put into it: those that it lacks, where some of them are further down
    has_mixed_pages: bool = False  #: sectors that are there share a page of 4 KiB with some that are not
    #: it is copied in any case: the disk ends in it, or sectors are there that lie behind the end of that image's disk,
    #: or it would be filled, and in the padding in front of its bitmap lies what is another block's
    is_cut_short: bool = False

    @property
    def must_be_filled(self) -> bool:
        return self.filled_sectors > 0


def rows_of(homes: Iterable[Home] = ()) -> "Rows[Home]":
    """Homes in nine bytes each."""
    return Rows(Home, "IBHBB", homes)


class Sectors(NamedTuple):
    """What images have of a block."""

    bits: int  #: the sectors in its home
    below: Tuple[Tuple[int, int], ...]  #: index in the chain, and the missing sectors that are to be had there

    @property
    def all_bits(self) -> int:
        """The sectors that any image has."""
        found = self.bits
        for _member, bits in self.below:
            found |= bits
        return found


def find_homes(members: Sequence[Member]) -> "Rows[Home]":
    """The homes of all blocks that any image has, in the order of the disk."""
    homes = (_home(block, members) for block in _blocks_of(members))
    return rows_of(home for home in homes if home is not None)


def _blocks_of(members: Sequence[Member]) -> Iterator[int]:
    """The blocks of the disk that are in any image: most of a large one often are in none."""
    there = bytearray(len(members[0].entries))
    for member in members:
        for block, entry in zip(range(len(there)), member.entries):
            if entry != UNUSED:
                there[block] = 1
    return compress(range(len(there)), there)


def sectors_of(members: Sequence[Member], home: Home) -> Sectors:
    """Which sectors of a block are in its home, and which further down."""
    (_member, bits), *below = _found(home.block, members)
    return Sectors(bits, tuple(below))


def _found(block: int, members: Sequence[Member]) -> Iterator[Tuple[int, int]]:
    """The images that have sectors of a block which none above has, and those sectors.

    What lies behind the end of a parent's disk is zero, whatever is below it.
    """
    found, seen = 0, FULL
    for index, member in enumerate(members):
        seen &= _seen(block, member, index)
        new = member.bits(block) & seen & ~found
        if new:
            yield index, new
        found |= new
        if found == seen:
            return


def _seen(block: int, member: Member, index: int) -> int:
    """The sectors of a block that are to be seen in an image or below it, if they are to be seen there."""
    return first_sectors(max(0, member.sectors - block * BLOCK_SECTORS)) if index else FULL


def _home(block: int, members: Sequence[Member]) -> Optional[Home]:
    parts = list(_found(block, members))
    if not parts:
        return None
    index, bits = parts[0]
    is_cut_short = _has_more(block, members, index)
    if len(parts) == 1:
        return Home(block, index, is_cut_short=is_cut_short)
    ends_here = members[0].sectors < (block + 1) * BLOCK_SECTORS
    is_fixed = is_cut_short or ends_here or block in members[index].crowded
    lacks = BLOCK_SECTORS - bin(bits).count("1")
    return Home(block, index, lacks, bool(set(bitmap_bytes(bits)) - {0, 255}), is_fixed)


def _has_more(block: int, members: Sequence[Member], index: int) -> bool:
    """Whether an image has sectors of a block that are not to be seen, for the end of its disk or of one above it."""
    seen = FULL
    for number, member in enumerate(members[: index + 1]):
        seen &= _seen(block, member, number)
    return seen != FULL and bool(members[index].bits(block) & ~seen)
