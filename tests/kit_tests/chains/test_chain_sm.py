# SPDX-License-Identifier: LGPL-2.1-only
"""The storage manager's sizes, and what a guest reads after each of its acts."""

import errno
import random

import pytest

from kit.build_volumes import BLOCK, MIB
from kit.chains import flatten, links, sm
from kit.chains.guest import Guest, Writer
from kit.chains.libvhd import ALL, SECTOR, Vhd, random_uuid
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk
from kit.reader import read_sr

SR = "0a0b0c0d-0000-4000-8000-000000000001"
LEAF, BASE, COPY, BASE2 = (f"VHD-0a0b0c0d-0000-4000-8000-00000000001{number}" for number in range(4))
SIZE = 12 * MIB


class World:
    """A disk, its guest, and the storage manager."""

    def __init__(self, thick=True, size=SIZE):
        self.lun = Lun.new(SR, 60)
        self.lun.disk.fill(self.lun.place(0), 60 * EXTENT, b"\xa5" * 4096)
        self.writer, self.guest, self.thick = Writer(random.Random(size)), Guest(size), thick
        sm.create(self.lun, LEAF, size, random_uuid(LEAF), thick)

    def write(self, *blocks, how="whole"):
        disk = Tapdisk(sm.attach(self.lun, LEAF))
        for block in blocks:
            for sector, data in self.writer.to_block(block, self.guest.size, how):
                disk.write(sector, data)
                self.guest.write(sector, data)
        disk.close()

    def snapshot(self, base, copy="", **options):
        sm.snapshot(
            self.lun, LEAF, base, random_uuid(base + "child"), copy, random_uuid(base + copy), self.thick, **options
        )

    def reads(self, name=LEAF):
        self.lun.commit()
        assert read_sr(self.lun.disk).problems == ()
        return flatten(self.lun.disk, name)

    def size(self, name=LEAF):
        return self.lun.volume(name).size // EXTENT


def test_the_formula_is_the_dense_image_and_its_footer():
    assert sm.calc_size_vhd_lv(BLOCK) == 2 * EXTENT
    assert sm.calc_size_vhd_lv(2 << 40) == (2 << 40) + 4096 * (1 << 20) + 2 * EXTENT
    for blocks in (1, 7, 8, 1000):
        dense = (8455 + 4104 * blocks - 7) * SECTOR + SECTOR
        assert 0 <= sm.calc_size_vhd_lv(blocks * BLOCK) - dense < EXTENT + 4096
    assert sm.calc_size_vhd_lv(SIZE - 1) == sm.calc_size_vhd_lv(SIZE)


@pytest.mark.parametrize("thick, extents", [(True, 5), (False, 2)])
def test_a_new_disk(thick, extents):
    world = World(thick)
    assert world.size() == extents
    assert world.reads() == world.guest.flat()


def test_a_guest_fills_its_disk_however_thin_it_was():
    world = World(thick=False)
    world.write(*range(6))
    assert world.size() == 5 and len(world.lun.volume(LEAF).extents) == 5
    sm.deflate(world.lun, world.lun.volume(LEAF))
    assert world.size() == 5
    assert world.reads() == world.guest.flat() and len(Vhd(world.lun.volume(LEAF)).bat) == 6


def test_deflating_keeps_the_data_and_puts_the_footer_at_the_new_end():
    world = World()
    world.write(3, how="ends")
    volume = world.lun.volume(LEAF)
    sm.kill_end_footer(volume)
    sm.deflate(world.lun, volume)
    assert world.size() == 2
    assert volume.read(volume.size - SECTOR, SECTOR) == volume.read(0, SECTOR)
    sm.deflate(world.lun, volume)
    sm.inflate(world.lun, volume, 3 * EXTENT)
    sm.inflate(world.lun, volume, 1)
    assert world.size() == 3
    assert volume.read(volume.size - SECTOR, SECTOR) == volume.read(0, SECTOR)
    assert world.reads() == world.guest.flat()


@pytest.mark.parametrize("thick, sizes", [(True, [5, 2, 2]), (False, [2, 2, 2])])
def test_a_snapshot(thick, sizes):
    world = World(thick)
    world.write(0, 1, how="spots")
    then = world.guest.flat()
    world.snapshot(BASE, COPY)
    assert [world.size(name) for name in (LEAF, COPY)] == sizes[:2]
    world.write(1, 2, how="head")

    assert world.reads() == world.guest.flat() != then
    assert world.reads(COPY) == world.reads(BASE) == then
    sr = read_sr(world.lun.disk)
    assert [sr.vhd(name).hidden for name in (LEAF, COPY, BASE)] == [0, 0, 1]
    assert "WRITE" not in sr.vg.lv(BASE).status and "WRITE" in sr.vg.lv(LEAF).status


@pytest.mark.parametrize("over_empty", [True, False])
def test_a_base_without_blocks_may_be_passed_by(over_empty):
    world = World()
    world.write(0)
    world.snapshot(BASE)
    world.snapshot(BASE2, over_empty=over_empty)
    world.write(1)

    assert world.reads() == world.guest.flat()
    chain = [link.lv_name for link in links(world.lun.disk, LEAF)]
    assert chain == ([LEAF, BASE2, BASE] if over_empty else [LEAF, BASE])


@pytest.mark.parametrize("thick", [True, False])
def test_a_leaf_coalesces(thick):
    world = World(thick)
    world.write(0, 1, how="spots")
    world.write(4)
    world.snapshot(BASE)
    world.write(1, 2, 4, how="all but one")
    world.write(3)

    sm.coalesce_leaf(world.lun, LEAF, thick)

    vhd = Vhd(world.lun.volume(LEAF))
    assert list(world.lun.volumes) == [LEAF] and world.size() == (5 if thick else 4)
    assert world.reads() == world.guest.flat()
    assert (vhd.hidden, vhd.volume.writable, vhd.parent_name) == (False, True, "")
    assert vhd.is_full(3) and vhd.is_full(4) and vhd.bits(2) not in (0, ALL)
    world.write(*range(6))
    assert world.reads() == world.guest.flat()


def test_a_grown_leaf_coalesces_into_a_parent_that_grows():
    world = World(size=SIZE - MIB)
    world.write(5)
    world.snapshot(BASE)
    sm.grow(world.lun, LEAF, SIZE + BLOCK)
    world.guest.grow(SIZE + BLOCK)
    world.write(6)
    assert world.reads() == world.guest.flat()

    sm.coalesce(world.lun, LEAF)

    assert world.reads(BASE) == world.reads() == world.guest.flat()


def test_coalescing_into_an_image_with_dead_space_fails():
    world = World()
    world.write(0)
    world.snapshot(BASE)
    base = Vhd(world.lun.volume(BASE))
    world.lun.resize(base.volume, 4 * EXTENT)
    base.set_entry(0, base.bat[0] + 8192)
    base.write_footers()
    world.write(1, 2, 3)

    with pytest.raises(OSError, match="No space") as raised:
        sm.coalesce(world.lun, LEAF)
    assert raised.value.errno == errno.ENOSPC


def test_a_thick_volume_above_the_formula_cannot_be_grown_a_little():
    world = World()
    world.lun.resize(world.lun.volume(LEAF), 9 * EXTENT)
    with pytest.raises(AssertionError, match="sm: VHD-.* has 37748736 bytes"):
        sm.grow(world.lun, LEAF, SIZE + BLOCK)


def test_growing_a_thin_disk_takes_no_extents():
    world = World(thick=False)
    sm.grow(world.lun, LEAF, 2 * SIZE, thick=False)
    world.guest.grow(2 * SIZE)
    assert world.size() == 2
    world.write(11)
    assert world.reads() == world.guest.flat()


def test_a_full_vg_cannot_attach():
    world = World(thick=False)
    world.lun.free = []
    with pytest.raises(OSError, match="3 extents for VHD"):
        sm.attach(world.lun, LEAF)
