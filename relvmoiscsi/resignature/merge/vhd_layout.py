# SPDX-License-Identifier: LGPL-2.1-only
"""Where the blocks of the new VHD lie, and which extents it is made of. Pure.

SM makes every volume exactly as large as a dense image needs, and tapdisk puts new blocks behind the highest block
only. So an unused slot below the highest block is lost for ever, and a disk that fills up runs out of space: an image
that is merely put together from the extents of several images is wrong. Therefore:

    one image of the chain, the primary, stays where it is in the volume
    other images are moved by whole extents, so that their slots fall on the primary's lattice: 513 and 1024 have no
    common factor, so there is such a distance, below 513 extents; or their blocks are copied into new slots
    slots that become free below the highest block, holes, are given to blocks that no image has

The first extents, up to that of slot 0, and the last one are always new: nobody sees these shadows before the commit.
Until then nothing else is written but free space, and sectors that no bitmap shows.
"""

from array import array
from collections import Counter
from heapq import merge
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, align_up
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import extents_of
from relvmoiscsi.formats.vhd import Footer
from relvmoiscsi.formats.vhd_blocks import BLOCK_BYTES, SLOT_UNITS, UNIT
from relvmoiscsi.resignature.merge.compact import Rows
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, NEW, Counts
from relvmoiscsi.resignature.merge.vhd_chain import Member, OwnedBlock, owned_blocks

EXTENT_UNITS = EXTENT_BYTES // UNIT

#: an image with fewer blocks to move than this is copied: moving costs up to 512 extents of slots that are given away
WORTH_MOVING = 256

_HALF = 257  #: 2 * 257 = 1 (mod 513), and an extent is -2 units (mod 513)
_MAX_ENTRY = (1 << 32) - 2
NO_SLOT = 0xFFFFFFFF  #: of a block that no image has


class Moved(NamedTuple):
    """Extents [first, end) of an image's volume, which become the extents from `at` on in the new volume."""

    member: int
    first: int
    end: int
    at: int

    @property
    def extents(self) -> range:
        """Those that they become."""
        return range(self.at, self.at + self.end - self.first)


class Hole(NamedTuple):
    """A slot that is given to a block which no image has."""

    block: int
    slot: int


class Layout(NamedTuple):
    """The new image."""

    primary: int  #: index in the chain of the image whose header, and whose slots, it takes over
    first_unit: int  #: of slot 0
    slots: Sequence[int]  #: by block; NO_SLOT for a block that no image has
    copied: "Rows[OwnedBlock]"  #: blocks that get new slots
    staying: "Rows[OwnedBlock]"  #: blocks whose data is where it was
    moved: Tuple[Moved, ...]  #: the primary's extents first, if any stay
    fresh_head: int  #: number of new extents at the start
    slot_count: int  #: up to the highest in use
    holes: "Rows[Hole]"
    lost_slots: int  #: free slots for which there was no block left: then every block of the disk is there
    size_bytes: int  #: of the new volume, whole extents
    fresh: FrozenSet[int]  #: its new extents, written before the commit

    def entry(self, slot: int) -> int:
        return blocks.entry_of(self.first_unit + SLOT_UNITS * slot)

    def counts(self) -> Counts:
        fills = array("H", (owned.filled_sectors for owned in self.staying if owned.filled_sectors))
        return Counts(
            blocks=len(self.staying) + len(self.copied),
            remapped=len(self.staying),
            filled=len(fills),
            copied=len(self.copied),
            data_bytes=len(self.copied) * BLOCK_BYTES + sum(fills) * SECTOR,
        )

    def source_of(self, extent: int) -> Tuple[int, int]:
        """Which extent of an old volume is at this place, or was before a new one took it: (image, its extent)."""
        if extent < self.fresh_head:
            return self.primary, extent
        piece = next(piece for piece in self.moved if extent in piece.extents)
        return piece.member, extent - piece.at + piece.first


def layouts(members: Sequence[Member], several: "Rows[OwnedBlock]", thick: bool) -> Iterator[Layout]:
    """A layout with each image as the primary, likely the cheapest first; each is large. Raises Refused without any.

    `thick`: the volume is to have room for a full disk.
    """
    fixed = owned_blocks(owned for owned in several if owned.must_be_copied)
    movable: Dict[int, Rows[OwnedBlock]] = {}
    for owned in several:
        if not owned.must_be_copied:
            movable.setdefault(owned.owner, owned_blocks()).append(owned)
    possible = [
        index for index, one in enumerate(members) if one.header.max_bat_entries >= members[0].header.max_bat_entries
    ]
    counts = Counter({index: len(own) for index, own in movable.items()})
    worth = [index for index in possible if counts[index]] or possible[:1]
    any_fits = False
    for primary in sorted(worth, key=lambda index: (_copied_beside(counts, index), -index)):
        made = _layout(members, movable, fixed, primary, thick)
        if made.entry(max(0, made.slot_count - 1)) <= _MAX_ENTRY:
            any_fits = True
            yield made
    if not any_fits:
        raise Refused("The image would be larger than a VHD can be.")


def _copied_beside(counts: Dict[int, int], primary: int) -> int:
    """How many blocks will be copied, without the blocks that turn out to have no room to move to."""
    return sum(count for index, count in counts.items() if index != primary and count < WORTH_MOVING)


class _Builder:
    """A layout while blocks are put into it."""

    def __init__(self, members: Sequence[Member], primary: int) -> None:
        self.members, self.primary = members, primary
        self.first_unit = members[primary].first_unit
        self.head = self.first_unit // EXTENT_UNITS + 1
        self.extents = self.head  # so many are in use
        self.slots = array("I", [NO_SLOT]) * len(members[0].entries)
        self.staying = owned_blocks()
        self.copied = owned_blocks()
        self.moved: List[Moved] = []
        self.slot_count = 0  #: up to the highest in use

    def keep(self, several: "Rows[OwnedBlock]") -> "Rows[OwnedBlock]":
        """Blocks of the primary stay in their slots. Gives the blocks that cannot."""
        rest, reached = owned_blocks(), 0
        for owned in several:
            slot = self._slot_of(owned, self.first_unit)
            if slot is None:
                rest.append(owned)
                continue
            self._stay(owned, slot)
            reached = max(reached, slot + 1)
        end = _extent_behind(self.first_unit + SLOT_UNITS * reached)
        if reached and end > self.head:
            self.moved.append(Moved(self.primary, self.head, end, self.head))
            self.extents = end
        return rest

    def move(self, index: int, several: "Rows[OwnedBlock]", spare_blocks: int) -> "Rows[OwnedBlock]":
        """The blocks of another image move with their extents, if that is worth it. Gives the blocks that do not.

        `spare_blocks`: the number of blocks that no image has.
        """
        first_unit = self.members[index].first_unit
        slots = array("I", [self._slot_of(owned, first_unit) or 0 for owned in several])
        known = array("I", filter(None, slots))  # behind slot 0 are headers, which must stay as they are
        if len(known) < WORTH_MOVING:
            return several
        low, high = min(known), max(known)
        first = (first_unit + SLOT_UNITS * low) // EXTENT_UNITS
        end = _extent_behind(first_unit + SLOT_UNITS * (high + 1))
        at = self.extents + (first + _shift(first_unit, self.first_unit) - self.extents) % SLOT_UNITS
        by = (first_unit + EXTENT_UNITS * (at - first) - self.first_unit) // SLOT_UNITS
        if by + high + 1 - len(self.staying) - len(known) > spare_blocks:
            return several
        self.moved.append(Moved(index, first, end, at))
        self.extents = at + end - first
        rest = owned_blocks()
        for owned, slot in zip(several, slots):
            if slot:
                self._stay(owned, slot + by)
            else:
                rest.append(owned)
        return rest

    def copy(self, several: "Rows[OwnedBlock]") -> None:
        """Blocks get new slots, in new extents."""
        start = EXTENT_UNITS * self.extents if self.moved else self.first_unit
        slot = max(-(-(start - self.first_unit) // SLOT_UNITS), self.slot_count)
        for owned in several:
            self._put(owned, slot)
            slot += 1
        self.copied = several
        if len(several):
            self.extents = max(self.extents, _extent_behind(self.first_unit + SLOT_UNITS * slot))

    def _slot_of(self, owned: OwnedBlock, first_unit: int) -> Optional[int]:
        """The slot of a block in its owner; None where the block lies beside the lattice."""
        unit = blocks.unit_of(self.members[owned.owner].entries[owned.block])
        if unit is None or unit < first_unit or (unit - first_unit) % SLOT_UNITS:
            return None
        return (unit - first_unit) // SLOT_UNITS

    def _stay(self, owned: OwnedBlock, slot: int) -> None:
        self._put(owned, slot)
        self.staying.append(owned)

    def _put(self, owned: OwnedBlock, slot: int) -> None:
        self.slots[owned.block] = slot
        self.slot_count = max(self.slot_count, slot + 1)


def _extent_behind(unit: int) -> int:
    return -(-unit // EXTENT_UNITS)


def _shift(first_unit: int, wanted: int) -> int:
    """By how many extents, modulo 513, slots have to move to fall on another lattice."""
    return (first_unit - wanted) * _HALF % SLOT_UNITS


def _layout(
    members: Sequence[Member],
    movable: Dict[int, "Rows[OwnedBlock]"],
    fixed: "Rows[OwnedBlock]",
    primary: int,
    thick: bool,
) -> Layout:
    builder = _Builder(members, primary)
    block_count = len(members[0].entries)
    spare = block_count - sum(map(len, movable.values())) - len(fixed)
    rest = [fixed, builder.keep(movable.get(primary, owned_blocks()))]
    for index in sorted(set(movable) - {primary}, reverse=True):
        rest.append(builder.move(index, movable[index], spare))
    builder.copy(owned_blocks(merge(*rest)))
    slot_count = builder.slot_count
    holes, lost = _holes(builder.slots, slot_count, block_count)
    still = block_count - len(builder.staying) - len(builder.copied) - len(holes) if thick else 0
    size = _size(builder, slot_count + still, members[0].virtual_size if thick else 0)
    return Layout(
        primary=primary,
        first_unit=builder.first_unit,
        slots=builder.slots,
        copied=builder.copied,
        staying=builder.staying,
        moved=tuple(builder.moved),
        fresh_head=builder.head,
        slot_count=slot_count,
        holes=holes,
        lost_slots=lost,
        size_bytes=size,
        fresh=_fresh(builder, size // EXTENT_BYTES),
    )


def _holes(slots: Sequence[int], slot_count: int, block_count: int) -> Tuple["Rows[Hole]", int]:
    """The free slots, each with a block that has none: neighbours, so that few sectors of the table change."""
    used = bytearray(slot_count)
    for slot in slots:
        if slot != NO_SLOT:
            used[slot] = 1
    free = (slot for slot in range(slot_count) if not used[slot])
    wanted = (block for block in range(block_count) if slots[block] == NO_SLOT)
    given = Rows(Hole, "II", zip(wanted, free))
    return given, used.count(0) - len(given)


def _size(builder: _Builder, slot_count: int, virtual_size: int) -> int:
    """As SM sizes the volume of a dense image: for so many slots, and by its formula; 0 on a thin SR."""
    needed = (builder.first_unit + SLOT_UNITS * slot_count) * UNIT + Footer.SIZE
    if virtual_size:
        needed = max(needed, blocks.formula_size(virtual_size))
    return align_up(max(needed, (builder.head + 1) * EXTENT_BYTES), EXTENT_BYTES)


def _fresh(builder: _Builder, extent_count: int) -> FrozenSet[int]:
    """The head, the extents of copied blocks, and the last extent: the last one alone may have an old one's place."""
    found = set(range(builder.head))
    for owned in builder.copied:
        first = builder.first_unit + SLOT_UNITS * builder.slots[owned.block]
        found.update(range(first // EXTENT_UNITS, _extent_behind(first + SLOT_UNITS)))
    assert not any(extent in found for piece in builder.moved for extent in piece.extents)
    return frozenset(found | {extent_count - 1})


def kept_extents(layout: Layout, members: Sequence[Member]) -> "array[int]":
    """The physical extents that stay, by their place in the new volume, as `strategy.place` wants them."""
    found = array("q", [NEW]) * (layout.size_bytes // EXTENT_BYTES)
    for piece in layout.moved:
        old = extents_of(members[piece.member].lv.segments)[piece.first : piece.end]
        found[piece.at : piece.at + len(old)] = array("q", old)
    return found


def unused_extents(leaf: Member) -> List[int]:
    """Extents of the leaf behind its end of data, which nobody reads, but not the last extent: it holds the footer."""
    first = -(-leaf.end_of_data() // EXTENT_BYTES)
    return extents_of(leaf.lv.segments)[first:-1]
