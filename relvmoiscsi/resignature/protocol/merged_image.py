# SPDX-License-Identifier: LGPL-2.1-only
"""The writes to a new image that a run to one VDI keeps in its journal. Pure.

No program reads the other parts of the new image before the commit, so these parts need no journal. These writes do:

    full     bitmaps of filled blocks: all ones. Both the old and the new image have the same content with these
             bitmaps. So the run writes them with the contents of volumes, and a rollback writes them, too
    empty    bitmaps of free slots: all zeros. The old image may use the slots, so the run writes them after the commit,
             and only as long as the block table does not name the slots
    table    the block table that gives the free slots to blocks that no image has, after the empty bitmaps are durable
"""

from array import array
from typing import Callable, Generic, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.device import SECTOR, Chunk, Range
from relvmoiscsi.formats.lvm.vg import Segment, VolumeGroup, segments_of
from relvmoiscsi.formats.vhd import UNUSED_ENTRY
from relvmoiscsi.formats.vhd_blocks import ENTRY_BYTES, UNIT

#: the unit with the bitmap of a slot: padding and bitmap
FULL_UNIT = bytes(UNIT - SECTOR) + b"\xff" * SECTOR
EMPTY_UNIT = bytes(UNIT)

T = TypeVar("T")


class BlockCopy(NamedTuple):
    """A copy within the device, to a place that no program reads before the commit."""

    target: int  #: bytes from the start of the device
    source: Optional[int]  #: bytes from the start of the device; None: write zeros
    length: int
    zeros: int = 0  #: number of zeros to write behind the copy

    @property
    def range(self) -> Range:
        """The written bytes, zeros included."""
        return Range(self.target, self.length + self.zeros)


class Again(Generic[T]):
    """An iterable that computes its items again for each loop: there may be millions of items."""

    def __init__(self, made: Callable[[], Iterator[T]]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[T]:
        return self._made()


class Expected(NamedTuple):
    """A range of the device that must not change between plan and run."""

    range: Range
    digest: bytes  #: SHA-256


class Unseen(NamedTuple):
    """The writes of a new image before step 2: to free extents, and to sectors that no bitmap shows."""

    expected: Tuple[Expected, ...] = ()  #: ranges that the new image depends on
    unchanged: Iterable[Chunk] = ()  #: small ranges that the new image depends on, with their bytes; maybe millions
    chunks: Tuple[Chunk, ...] = ()
    copies: Tuple[Iterable[BlockCopy], ...] = ()  #: to make after all chunks, in this order
    more: Iterable[Chunk] = ()  #: to write after `chunks`; a survey does not read these places

    @property
    def copied_bytes(self) -> int:
        return sum(copy.length for several in self.copies for copy in several)


class TableUnit(NamedTuple):
    """A unit of the volume with entries of holes, before and after; a last unit ends at the first slot.

    Bytes [first, end) of the unit are block table, the other bytes are headers.
    """

    offset: int  #: bytes from the start of the device
    old: bytes
    new: bytes
    first: int
    end: int


class MergedImage(NamedTuple):
    """The volume of the new image, and the writes to the volume that are journalled."""

    lv_id: str  #: new id of the volume
    segments: Tuple[Segment, ...]  #: of the volume
    full: Sequence[int] = array("q")  #: places of units, in bytes from the start of the device; always an array
    empty: Sequence[int] = array("q")  #: places of units, one for each hole, in bytes from the start of the device
    table: Tuple[TableUnit, ...] = ()  #: whole units of the block table

    def is_still_on(self, vg: VolumeGroup) -> bool:
        """Whether the volume exists and begins with the run's segments. LVM may have enlarged the volume since."""
        mine, count = segments_of(one.pes for one in self.segments), sum(one.extent_count for one in self.segments)
        return any(lv.id == self.lv_id and segments_of(lv.pes(0, count)) == mine for lv in vg.lvs)

    def hulls(self) -> List[Range]:
        """Ranges of the device that contain all these writes; for bitmaps, from the first bitmap to the last."""
        found = [Range(min(units), max(units) + UNIT - min(units)) for units in (self.full, self.empty) if units]
        return found + [Range(unit.offset, len(unit.old)) for unit in self.table]


# --- bitmaps


def all_the_same(units: Sequence[int], data: bytes) -> "Again[Chunk]":
    """The writes of `data` to the places `units`."""
    return Again(lambda: (Chunk(unit, data) for unit in units))


# --- holes


def given_away(unit: TableUnit) -> Iterator[int]:
    """The offsets, in a unit, of the entries that name a hole."""
    for at in range(unit.first, unit.end, ENTRY_BYTES):
        if unit.old[at : at + ENTRY_BYTES] != unit.new[at : at + ENTRY_BYTES]:
            yield at


def not_given_yet(merged: MergedImage, found: Sequence[bytes]) -> "array[int]":
    """The holes that the present block table, `found`, does not name: the run may empty the bitmaps of these holes.

    A guest may have written to a slot that the table names, so the bitmap of such a slot must stay.
    """
    holes, not_named = iter(merged.empty), array("q")
    for unit, data in zip(merged.table, found):
        for at in given_away(unit):
            hole = next(holes)
            if data[at : at + ENTRY_BYTES] != unit.new[at : at + ENTRY_BYTES]:
                not_named.append(hole)
    return not_named


def merged_table(unit: TableUnit, data: bytes) -> bytes:
    """The bytes `data` of a unit, with the entries of its holes. Entries that tapdisk has written since stay."""
    found = bytearray(data)
    for at in given_away(unit):
        if bytes(found[at : at + ENTRY_BYTES]) == UNUSED_ENTRY:
            found[at : at + ENTRY_BYTES] = unit.new[at : at + ENTRY_BYTES]
    return bytes(found)
