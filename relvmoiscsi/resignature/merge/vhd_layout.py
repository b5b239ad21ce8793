# SPDX-License-Identifier: LGPL-2.1-only
"""The slots of the blocks in the new VHD, and the extents of its volume. Pure.

SM makes a volume exactly as large as an image without unused slots needs. tapdisk puts new blocks only behind the
highest block, and never uses an unused slot below. So a disk that fills up in an image with unused slots runs out of
volume. That is why the new image must have no unused slot:

    primary       one image of the chain stays at its place in the volume
    moved images  blocks of other images move by whole extents, so that their slots fall on the primary's lattice. An
                  extent is 1024 units and a slot 513. These have no common factor, so such a distance exists, below 513
                  extents
    copies        blocks that cannot move are copied to new slots
    holes         slots that become free below the highest block are given to blocks that no image has

The extents up to slot 0, and the last extent, are always new: no program reads them before the commit. Until the commit
the run writes only to free extents, and to sectors that no bitmap shows.
"""

from array import array
from collections import Counter
from heapq import merge
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, align_up
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.vhd import Footer
from relvmoiscsi.formats.vhd_blocks import BLOCK_BYTES, SLOT_UNITS, UNIT
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, NEW, Cost
from relvmoiscsi.resignature.merge.vhd_chain import OwnedBlock, OwnedBlocks, VhdMember

EXTENT_UNITS = EXTENT_BYTES // UNIT

#: an image with fewer blocks is copied, not moved: moving an image may cost 512 extents of holes
WORTH_MOVING = 256

_HALF = 257  #: 2 * 257 = 1 (mod 513), and an extent is -2 units (mod 513)
_MAX_ENTRY = (1 << 32) - 2
NO_SLOT = 0xFFFFFFFF  #: of a block that no image has, and that gets no hole


class Moved(NamedTuple):
    """Extents [first, end) of an image's volume, which become the extents from `at` on in the new volume."""

    member: int
    first: int
    end: int
    at: int

    @property
    def extents(self) -> range:
        """The extents in the new volume."""
        return range(self.at, self.at + self.end - self.first)


class VhdLayout:
    """The slots and extents of the new image: `primary`, the index of an image in the chain, stays in its slots.

    `movable` are the blocks that may stay in extents of their images, by image. `fixed` are blocks that are copied.
    """

    def __init__(
        self,
        members: Sequence[VhdMember],
        movable: Dict[int, OwnedBlocks],
        fixed: OwnedBlocks,
        primary: int,
        thick: bool,
    ) -> None:
        self._members, self.primary = members, primary
        self.first_unit = members[primary].first_unit  #: the unit of slot 0
        self.fresh_head = self.first_unit // EXTENT_UNITS + 1  #: number of new extents at the start
        block_count = len(members[0].entries)
        self.slots = array("I", [NO_SLOT]) * block_count  #: by block; NO_SLOT for a block without a slot
        self.staying = OwnedBlocks()  #: blocks whose data stays in its extents
        self.moved: List[Moved] = []  #: the primary's extents first, when any of them stay
        self.slot_count = 0  #: number of slots up to the highest slot in use
        self._extents = self.fresh_head  # number of extents in use
        spare = block_count - sum(map(len, movable.values())) - len(fixed)
        rest = [fixed, self._keep(movable.get(primary, OwnedBlocks()))]
        for index in sorted(set(movable) - {primary}, reverse=True):
            rest.append(self._move(index, movable[index], spare))
        self.copied = OwnedBlocks(merge(*rest))  #: blocks that get new slots, in new extents
        start = EXTENT_UNITS * self._extents if self.moved else self.first_unit
        first_slot = max(-(-(start - self.first_unit) // SLOT_UNITS), self.slot_count)
        for slot, owned in enumerate(self.copied, first_slot):
            self._put(owned, slot)
        # neighbouring blocks get the free slots, so that few sectors of the table change
        used = bytearray(self.slot_count)
        for slot in self.slots:
            if slot != NO_SLOT:
                used[slot] = 1
        self.holes = array("I")  #: blocks that no image has, and that get a free slot below the highest slot
        free = (slot for slot in range(self.slot_count) if not used[slot])
        for block, slot in zip((block for block in range(block_count) if self.slots[block] == NO_SLOT), free):
            self.holes.append(block)
            self.slots[block] = slot
        #: number of free slots for which no block is left: then the image has all blocks of the disk
        self.lost_slots = used.count(0) - len(self.holes)
        still = block_count - len(self.staying) - len(self.copied) - len(self.holes) if thick else 0
        # room for these slots, and on a thick SR at least SM's size
        size = (self.first_unit + SLOT_UNITS * (self.slot_count + still)) * UNIT + Footer.SIZE
        if thick and members[0].virtual_size:
            size = max(size, blocks.formula_size(members[0].virtual_size))
        #: of the new volume, whole extents
        self.size_bytes = align_up(max(size, (self.fresh_head + 1) * EXTENT_BYTES), EXTENT_BYTES)
        # the head, the extents of copied blocks, and the last extent, which may replace an old extent
        fresh = set(range(self.fresh_head))
        for owned in self.copied:
            first = self.first_unit + SLOT_UNITS * self.slots[owned.block]
            fresh.update(range(first // EXTENT_UNITS, _extent_behind(first + SLOT_UNITS)))
        assert not any(extent in fresh for piece in self.moved for extent in piece.extents)
        fresh.add(self.size_bytes // EXTENT_BYTES - 1)
        self.fresh = frozenset(fresh)  #: new extents, which the run writes before the commit
        fills = array("H", (owned.filled_sectors for owned in self.staying if owned.filled_sectors))
        self.cost = Cost(
            blocks=len(self.staying) + len(self.copied),
            remapped=len(self.staying),
            filled=len(fills),
            copied=len(self.copied),
            data_bytes=len(self.copied) * BLOCK_BYTES + sum(fills) * SECTOR,
        )

    def _keep(self, several: OwnedBlocks) -> OwnedBlocks:
        """Let blocks of the primary stay in their slots; returns the blocks that cannot stay."""
        rest, reached = OwnedBlocks(), 0
        for owned in several:
            slot = self._slot_of(owned, self.first_unit)
            if slot is None:
                rest.append(owned)
                continue
            self._put(owned, slot)
            self.staying.append(owned)
            reached = max(reached, slot + 1)
        end = _extent_behind(self.first_unit + SLOT_UNITS * reached)
        if reached and end > self.fresh_head:
            self.moved.append(Moved(self.primary, self.fresh_head, end, self.fresh_head))
            self._extents = end
        return rest

    def _move(self, index: int, several: OwnedBlocks, spare_blocks: int) -> OwnedBlocks:
        """Move blocks of another image with their extents, if the move is worth its cost; returns blocks not moved.

        `spare_blocks` is the number of blocks that no image has.
        """
        first_unit = self._members[index].first_unit
        slots = array("I", [self._slot_of(owned, first_unit) or 0 for owned in several])
        known = array("I", filter(None, slots))  # behind slot 0 are headers, which must stay as they are
        if len(known) < WORTH_MOVING:
            return several
        low, high = min(known), max(known)
        first = (first_unit + SLOT_UNITS * low) // EXTENT_UNITS
        end = _extent_behind(first_unit + SLOT_UNITS * (high + 1))
        shift = (first_unit - self.first_unit) * _HALF % SLOT_UNITS  # extents by which slots fall on the other lattice
        at = self._extents + (first + shift - self._extents) % SLOT_UNITS
        by = (first_unit + EXTENT_UNITS * (at - first) - self.first_unit) // SLOT_UNITS
        if by + high + 1 - len(self.staying) - len(known) > spare_blocks:
            return several
        self.moved.append(Moved(index, first, end, at))
        self._extents = at + end - first
        rest = OwnedBlocks()
        for owned, slot in zip(several, slots):
            if slot:
                self._put(owned, slot + by)
                self.staying.append(owned)
            else:
                rest.append(owned)
        return rest

    def _slot_of(self, owned: OwnedBlock, first_unit: int) -> Optional[int]:
        """The slot of a block in its owner; None for a block that does not lie on the lattice."""
        unit = blocks.unit_of(self._members[owned.owner].entries[owned.block])
        if unit is None or unit < first_unit or (unit - first_unit) % SLOT_UNITS:
            return None
        return (unit - first_unit) // SLOT_UNITS

    def _put(self, owned: OwnedBlock, slot: int) -> None:
        self.slots[owned.block] = slot
        self.slot_count = max(self.slot_count, slot + 1)

    def entry(self, slot: int) -> int:
        return blocks.entry_of(self.first_unit + SLOT_UNITS * slot)

    def source_of(self, extent: int) -> Tuple[int, int]:
        """The extent of an old volume at this place, also when a new extent replaces it: index of the image, extent."""
        if extent < self.fresh_head:
            return self.primary, extent
        piece = next(piece for piece in self.moved if extent in piece.extents)
        return piece.member, extent - piece.at + piece.first

    def retained_extents(self) -> "array[int]":
        """The physical extents that stay, in the form of `strategy.Room.place`."""
        found = array("q", [NEW]) * (self.size_bytes // EXTENT_BYTES)
        for piece in self.moved:
            at = piece.at
            for old in self._members[piece.member].lv.pes(piece.first, piece.end):
                found[at : at + len(old)] = array("q", old)
                at += len(old)
        return found


def _extent_behind(unit: int) -> int:
    return -(-unit // EXTENT_UNITS)


def layouts(members: Sequence[VhdMember], several: OwnedBlocks, thick: bool) -> Iterator[VhdLayout]:
    """A layout with each image as the primary, likely the cheapest first. Raises Refused when there is no layout.

    With `thick` the volume has room for a full disk. A layout takes much memory: callers keep one at a time.
    """
    fixed = OwnedBlocks(owned for owned in several if owned.must_be_copied)
    movable: Dict[int, OwnedBlocks] = {}
    for owned in several:
        if not owned.must_be_copied:
            movable.setdefault(owned.owner, OwnedBlocks()).append(owned)
    possible = [
        index for index, one in enumerate(members) if one.header.max_bat_entries >= members[0].header.max_bat_entries
    ]
    counts = Counter({index: len(own) for index, own in movable.items()})
    worth = [index for index in possible if counts[index]] or possible[:1]
    any_fits = False
    # the blocks that are copied beside each primary; blocks that find no room to move to are not counted
    copied = {one: sum(n for index, n in counts.items() if index != one and n < WORTH_MOVING) for one in worth}
    for primary in sorted(worth, key=lambda index: (copied[index], -index)):
        made = VhdLayout(members, movable, fixed, primary, thick)
        if made.entry(max(0, made.slot_count - 1)) <= _MAX_ENTRY:
            any_fits = True
            yield made
    if not any_fits:
        raise Refused("The image would be larger than a VHD can be.")


def unused_extents(leaf: VhdMember) -> List[range]:
    """The extents of the leaf behind its data, without the last extent, which holds the footer."""
    last = max((entry for entry in leaf.entries if entry != blocks.UNUSED), default=0)
    end = blocks.end_of_headers(leaf.header, leaf.batmap_header)
    if last:
        end = max(end, blocks.data_at(last) + BLOCK_BYTES)
    first = -(-end // EXTENT_BYTES)
    return leaf.lv.pes(first, leaf.lv.extent_count - 1)
