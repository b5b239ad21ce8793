# SPDX-License-Identifier: LGPL-2.1-only
"""What a run that makes one VDI does beside exchanging identities, as the journal keeps it. Pure.

Most of the new image is written where nobody looks before the commit, and needs no journal. These do:

    full     bitmaps of blocks that were filled up: all ones. Old and new image mean the same by it, so it is done
             with the contents of volumes, forward and on the way back
    empty    bitmaps of slots that are free: all zeros. The old image may use them, so this comes after the commit,
             and only as long as the block table does not name them
    table    the block table that gives those slots to blocks no image has; after those are durable
"""

from array import array
from itertools import accumulate, chain
from typing import Callable, Dict, Generic, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.device import SECTOR, Chunk, Range
from relvmoiscsi.formats.lvm.vg import Segment, VolumeGroup, extents_of
from relvmoiscsi.formats.vhd import UNUSED_ENTRY
from relvmoiscsi.formats.vhd_blocks import ENTRY_BYTES, UNIT

#: of a slot, the unit that holds its bitmap; the rest of it is padding
FULL_UNIT = bytes(UNIT - SECTOR) + b"\xff" * SECTOR
EMPTY_UNIT = bytes(UNIT)

T = TypeVar("T")


class Copy(NamedTuple):
    """Bytes of the device that are copied to where nobody sees them yet."""

    target: int  #: bytes from the start of the device
    source: Optional[int]  #: the same; None: zeros
    length: int
    zeros: int = 0  #: bytes behind them that are written as zeros

    @property
    def end(self) -> int:
        """Of what is written."""
        return self.target + self.length + self.zeros


class Again(Generic[T]):
    """What is made up whenever it is asked for: there may be millions."""

    def __init__(self, made: Callable[[], Iterator[T]]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[T]:
        return self._made()


class Expected(NamedTuple):
    """Bytes of the device that must be as they were read."""

    range: Range
    digest: bytes  #: SHA-256


class Unseen(NamedTuple):
    """What is written before the mark where nobody sees it: free extents, and sectors that no bitmap shows."""

    expected: Tuple[Expected, ...] = ()  #: what it is built on, and is not written
    unchanged: Iterable[Chunk] = ()  #: the same, as it was read: small pieces, of which there may be very many
    chunks: Tuple[Chunk, ...] = ()
    copies: Tuple[Iterable[Copy], ...] = ()  #: one after the other, behind the chunks
    more: Iterable[Chunk] = ()  #: behind `chunks`: where nothing is that a survey reads

    @property
    def copied_bytes(self) -> int:
        return sum(copy.length for several in self.copies for copy in several)


class Written(NamedTuple):
    """What of a new image is on the device already, and nobody sees; no byte of it is written twice."""

    unseen: Unseen = Unseen()
    digests: bytes = b""  #: SHA-256 of what was written, one behind the other: of each batch as it is made up again

    @property
    def head(self) -> Tuple[Chunk, ...]:
        """The first sector of it: an array that puts the LUN back to what it was takes it away."""
        return tuple(Chunk(chunk.offset, chunk.data[:SECTOR]) for chunk in self.unseen.chunks[:1])


class TableUnit(NamedTuple):
    """What is written when holes in it are given away, before and after: a unit of the volume, or its part in front of
    the first slot. Bytes [first, end) of it are the block table; around it are headers.
    """

    offset: int  #: bytes from the start of the device
    old: bytes
    new: bytes
    first: int
    end: int


class Rebuilt(NamedTuple):
    """The volume that holds the new image, and what is left to do in it."""

    lv_id: str  #: the new one
    segments: Tuple[Segment, ...]  #: of the volume
    full: Sequence[int] = array("q")  #: units, in bytes from the start of the device; always arrays, there are many
    empty: Sequence[int] = array("q")  #: the same, one for each hole
    table: Tuple[TableUnit, ...] = ()  #: whole units of the block table

    def is_still_on(self, vg: VolumeGroup) -> bool:
        """Whether the volume is there and lies where it was put: LVM may have gone on, and only made it larger."""
        mine = extents_of(self.segments)
        return any(lv.id == self.lv_id and extents_of(lv.segments)[: len(mine)] == mine for lv in vg.lvs)

    def hulls(self) -> List[Range]:
        """Stretches of the device with all that is still to be written: of the bitmaps, from the first to the last."""
        found = [Range(min(units), max(units) + UNIT - min(units)) for units in (self.full, self.empty) if units]
        return found + [Range(unit.offset, len(unit.old)) for unit in self.table]


# --- the journal


def encode_rebuilt(rebuilt: Rebuilt) -> Dict[str, object]:
    """Facts for the journal; the table's bytes are not among them."""
    return {
        "lv_id": rebuilt.lv_id,
        "segments": rebuilt.segments,
        "full": _steps(rebuilt.full),
        "empty": _steps(rebuilt.empty),
        "table": [[unit.offset, len(unit.old), unit.first, unit.end] for unit in rebuilt.table],
    }


def _steps(units: Sequence[int]) -> List[int]:
    """Numbers as differences, which pack well."""
    return [unit - before for before, unit in zip(chain([0], units), units)]


def decode_units(steps: Iterable[int]) -> "array[int]":
    """Raises OverflowError for a number that is no place."""
    return array("q", accumulate(map(int, steps)))


# --- bitmaps


def full_units(rebuilt: Optional[Rebuilt]) -> Iterable[Chunk]:
    """The bitmaps of blocks that were filled up."""
    return all_the_same(rebuilt.full if rebuilt else (), FULL_UNIT)


def all_empty_units(rebuilt: Optional[Rebuilt]) -> Iterable[Chunk]:
    """The bitmaps of slots that are given away."""
    return all_the_same(rebuilt.empty if rebuilt else (), EMPTY_UNIT)


def all_the_same(units: Sequence[int], data: bytes) -> "Again[Chunk]":
    return Again(lambda: (Chunk(unit, data) for unit in units))


# --- holes


def given_away(unit: TableUnit) -> Iterator[int]:
    """Where in a unit the entries are that give a hole away."""
    for at in range(unit.first, unit.end, ENTRY_BYTES):
        if unit.old[at : at + ENTRY_BYTES] != unit.new[at : at + ENTRY_BYTES]:
            yield at


def not_given_yet(rebuilt: Rebuilt, found: Sequence[bytes]) -> "array[int]":
    """The holes that the table, as it was found, does not name; their bitmaps may be emptied.

    A guest may have written to one that is named: then its bitmap must stay.
    """
    holes, left = iter(rebuilt.empty), array("q")
    for unit, data in zip(rebuilt.table, found):
        for at in given_away(unit):
            hole = next(holes)
            if data[at : at + ENTRY_BYTES] != unit.new[at : at + ENTRY_BYTES]:
                left.append(hole)
    return left


def merged_table(unit: TableUnit, data: bytes) -> bytes:
    """A unit with its holes given away. What tapdisk has put into the table meanwhile stays."""
    found = bytearray(data)
    for at in given_away(unit):
        if bytes(found[at : at + ENTRY_BYTES]) == UNUSED_ENTRY:
            found[at : at + ENTRY_BYTES] = unit.new[at : at + ENTRY_BYTES]
    return bytes(found)
