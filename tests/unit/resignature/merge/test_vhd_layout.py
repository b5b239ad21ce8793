# SPDX-License-Identifier: LGPL-2.1-only
"""Large images, as tables alone: extents of one are moved between those of another, and every block is found again.

What is checked does not use the layout's own arithmetic: a block's old and new place are followed down to physical
extents, through the segments.
"""

import random
from array import array

import pytest

from kit.examples import seeds
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, segments_of
from relvmoiscsi.formats.naming import LvName
from relvmoiscsi.formats.vhd import BatmapHeader, DynamicHeader, Footer, Vhd
from relvmoiscsi.formats.vhd_blocks import UNUSED, Batmap
from relvmoiscsi.resignature.merge import vhd_chain
from relvmoiscsi.resignature.merge import vhd_layout as layout
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, Room
from relvmoiscsi.resignature.merge.vhd_chain import VhdMember, find_owners, sectors_of
from relvmoiscsi.resignature.reading.lun_contents import Volume

SECTOR = 512
BLOCK = 2 << 20
SM_ENTRIES = 1 << 20


class World:
    """A LUN's extents, given away by chance."""

    def __init__(self, seed, extents):
        self.dice = random.Random(seed)
        self.free = list(range(extents))

    def take(self, count, longest=200):
        """Extents in runs, as an LV that was made and grown has them."""
        segments, start = [], 0
        while start < count:
            length = min(self.dice.randint(1, longest), count - start)
            at = self.dice.randrange(len(self.free) - length)
            run = self.free[at : at + length]
            whole = next((n for n in range(1, length) if run[n] != run[0] + n), length)
            del self.free[at : at + whole]
            segments.append(Segment(start, whole, run[0]))
            start += whole
        return tuple(segments)

    def image(self, name, block_count, present, entries=SM_ENTRIES, first=None):
        """An image with the blocks of `present`, in that order, all of them full."""
        header = DynamicHeader.zero(table_offset=1536, max_bat_entries=entries, block_size=BLOCK)
        at = 1536 + 4 * entries + 512
        batmap = BatmapHeader.zero(batmap_offset=at, batmap_sectors=max(1, entries // 8 // SECTOR), version=0x10002)
        unit = first or blocks.first_slot_unit(header, batmap)
        table, full = array("I", [UNUSED] * block_count), Batmap(bytes(entries // 8))
        for slot, block in enumerate(present):
            table[block] = blocks.entry_of(unit + 513 * slot)
            full.set(block)
        size = (unit + 513 * len(present)) * 4096 + SECTOR
        segments = self.take(-(-size // EXTENT_BYTES) + 3)
        lv = LogicalVolume(name, name, frozenset(), (), segments)
        footer = Footer.zero(creator_app=b"tap\0", creator_version=0x10003, current_size=block_count * BLOCK)
        content = Vhd(footer, footer, None, False, header, (), None)
        found = VhdMember(Volume(lv, LvName(name, "vhd"), lv.extent_count * EXTENT_BYTES, content, None, ()))
        found.batmap_header, found.entries, found.full = batmap, table, full
        return found


def test_blocks_that_no_image_has_are_not_looked_at(monkeypatch):
    """A large disk of which little is written, in a chain of many images: that took minutes."""
    world, seen, real = World(1, 9000), [], vhd_chain.sectors_of
    members = tuple(world.image(f"image {n}", 1 << 16, [n, 9000 * n]) for n in range(1, 6))
    monkeypatch.setattr(vhd_chain, "sectors_of", lambda block, *more: (seen.append(block), real(block, *more))[1])

    found = [owned.block for owned in find_owners(members, False)]

    assert found == seen == [1, 2, 3, 4, 5, 9000, 18000, 27000, 36000, 45000]


def place_of(segments, offset):
    """Where a byte of a volume lies: (physical extent, offset in it)."""
    extent = offset // EXTENT_BYTES
    for segment in segments:
        if segment.start_extent <= extent < segment.start_extent + segment.extent_count:
            return segment.first_pe + extent - segment.start_extent, offset % EXTENT_BYTES
    raise AssertionError(f"byte {offset} is in no segment")


def laid_out(world, members, thick=True):
    """The cheapest layout that there is room for, and the new volume."""
    owners = find_owners(members, False)
    used = sorted({pe for member in members for one in member.lv.segments for pe in one.pes})
    room = Room(*([range(pe, pe + 1) for pe in pes] for pes in (world.free, used)))
    for made in layout.layouts(members, owners, thick):
        try:
            placed = room.place(made.retained_extents(), made.fresh)
            return made, segments_of(range(pe, pe + 1) for pe in placed), owners
        except Refused:
            continue
    raise AssertionError("no room")


def verify(members, made, segments, owners, free):
    count = sum(segment.extent_count for segment in segments)
    pes = [segment.first_pe + n for segment in segments for n in range(segment.extent_count)]
    assert len(set(pes)) == len(pes) == count, "an extent is named twice"
    assert count * EXTENT_BYTES == made.size_bytes
    given = {made.slots[block] for block in made.holes}
    slots = sorted(slot for slot in made.slots if slot != layout.NO_SLOT and slot not in given)
    assert len(set(slots)) == len(slots) == len(owners), "two blocks share a slot"
    fresh = made.fresh
    assert all(pes[extent] in free for extent in fresh), "an extent that is in use is written"
    copied = {owned.block for owned in made.copied}
    for owned in owners:
        new = (made.first_unit + 513 * made.slots[owned.block]) * 4096
        old = blocks.unit_of(members[owned.owner].entries[owned.block]) * 4096
        assert new + 513 * 4096 + SECTOR <= made.size_bytes
        border = EXTENT_BYTES - new % EXTENT_BYTES
        for at in [0, 4095, *(one for one in (border - 1, border) if one < 513 * 4096), 513 * 4096 - 1]:
            extent = (new + at) // EXTENT_BYTES
            if owned.block in copied:
                assert extent in fresh
            elif extent not in fresh:
                assert place_of(segments, new + at) == place_of(members[owned.owner].lv.segments, old + at), owned
    assert len(given) == len(made.holes) and not set(made.holes) & {owned.block for owned in owners}
    dead = set(range(made.slot_count)) - given - set(slots)
    unallocated = len(members[0].entries) - len(owners) - len(made.holes)
    assert not dead or not unallocated, "a slot is lost, and a guest can run out of space"
    assert len(dead) == made.lost_slots


def images(world, *sizes, disk=4096, entries=()):
    """Images with so many blocks of a disk, by chance: (name, count); the parents first. The leaf comes first."""
    found = [
        world.image(name, disk, world.dice.sample(range(disk), count), **({"entries": disk} if name in entries else {}))
        for name, count in sizes
    ]
    return found[::-1]


def verified(seed, extents, *sizes, **how):
    world = World(seed, extents)
    members = images(world, *sizes, **how)
    made, segments, owners = laid_out(world, members)
    verify(members, made, segments, owners, set(world.free))
    return made


@pytest.mark.parametrize("seed", seeds(range(4), 4))
def test_two_large_images_are_put_together_without_a_copy(seed):
    """8 GiB, of which the base has 1100 blocks and the leaf 700, as in the measurement of docs/one-vdi.rst."""
    made = verified(seed, 9000, ("base", 1100), ("leaf", 700))

    assert len(made.copied) <= 1  # the block in slot 0 of the image that moves


@pytest.mark.parametrize("seed", seeds(range(3), 3))
def test_small_images_are_copied_and_large_ones_move(seed):
    made = verified(seed, 12000, ("base", 1500), ("small", 20), ("middle", 600), ("leaf", 40), disk=6000)

    assert 0 < len(made.copied) < 65


def test_an_image_of_another_geometry_moves_onto_the_lattice():
    """A base with a small table from elsewhere: its slots have another distance to the extents' borders."""
    made = verified(1, 9000, ("base", 1000), ("leaf", 900), entries=["base"])

    assert made.primary == 0
    assert len(made.moved) == 2
    assert (made.moved[1].at - made.moved[1].first) % 513 != 0


def test_without_blocks_for_its_holes_an_image_is_copied():
    """A full disk: nobody could be given the slots between two images, so there must be none."""
    made = verified(2, 9000, ("base", 1500), ("leaf", 300), disk=1500)

    assert len(made.copied) == made.lost_slots == 300


def test_of_the_leaf_only_what_lies_behind_its_last_block_may_be_written_before_the_commit():
    leaf = World(5, 2000).image("leaf", 100, range(50))
    end = (blocks.first_slot_unit(leaf.header, leaf.batmap_header) + 513 * 50) * 4096
    behind = [pe for one in leaf.lv.segments for pe in one.pes][-(-end // EXTENT_BYTES) : -1]

    assert behind and [pe for run in layout.unused_extents(leaf) for pe in run] == behind


def test_of_a_parent_that_is_smaller_than_its_child_nothing_behind_the_end_of_its_disk_is_read():
    """Its last block is full, as the batmap says, and the child has grown."""
    world = World(6, 4000)
    leaf, parent = world.image("leaf", 10, []), world.image("parent", 10, [9])
    members, parent.virtual_size = [leaf, parent], 9 * BLOCK + 8 * SECTOR

    (owned,) = find_owners(members, False)

    assert owned.must_be_copied
    assert next(sectors_of(owned.block, members))[1] == blocks.FULL ^ blocks.FULL >> 8
