# SPDX-License-Identifier: LGPL-2.1-only
"""Where each block of the disk is at home: in the topmost image that has any sector of it. Pure.

A block whose other sectors lie further down is filled up in its home, where their bits are clear and nobody sees them;
what no image has becomes zeros there, so that the block is full. The last block of a disk may not become full: then it
is copied. Where a cut may tear a page of 4 KiB, sectors that are in use must not share one with those that are written:
such a block is copied as well.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.formats.vhd.blocks import BLOCK_SECTORS, FULL, bitmap_bytes, first_sectors
from relvmoiscsi.resignature.one_vdi.vhd.members import Member


class Home(NamedTuple):
    """A block of the disk that some image has."""

    block: int
    member: int  #: index in the chain
    bits: int  #: the sectors that are there
    below: Tuple[Tuple[int, int], ...] = ()  #: index in the chain, and the missing sectors that are to be had there
    #: the disk ends in it, or sectors are there that lie behind the end of that image's disk
    is_cut_short: bool = False

    @property
    def must_be_filled(self) -> bool:
        return bool(self.below)

    @property
    def has_mixed_pages(self) -> bool:
        """Whether sectors that are there share a page of 4 KiB with some that are not."""
        return bool(set(bitmap_bytes(self.bits)) - {0, 255})

    @property
    def all_bits(self) -> int:
        """The sectors that any image has."""
        found = self.bits
        for _member, bits in self.below:
            found |= bits
        return found

    @property
    def missing_sectors(self) -> int:
        return BLOCK_SECTORS - bin(self.bits).count("1")


def find_homes(members: Sequence[Member]) -> List[Home]:
    """The homes of all blocks that any image has, in the order of the disk."""
    homes = (_home(block, members) for block in range(len(members[0].entries)))
    return [home for home in homes if home is not None]


def _home(block: int, members: Sequence[Member]) -> Optional[Home]:
    """What lies behind the end of a parent's disk is zero, whatever is below it."""
    home: Optional[Home] = None
    below: List[Tuple[int, int]] = []
    found, seen = 0, FULL
    for index, member in enumerate(members):
        if index:
            seen &= first_sectors(max(0, member.sectors - block * BLOCK_SECTORS))
        bits = member.bits(block)
        new = bits & seen & ~found
        if new and home is None:
            home = Home(block, index, new, is_cut_short=bool(bits & ~seen))
        elif new:
            below.append((index, new))
        found |= new
        if found == seen:
            break
    if home is None or not below:
        return home
    ends_here = members[0].sectors < (block + 1) * BLOCK_SECTORS
    return home._replace(below=tuple(below), is_cut_short=home.is_cut_short or ends_here)
