# SPDX-License-Identifier: LGPL-2.1-only
"""Tapdisk and libvhd put bytes where the real ones do: their source says it, and tests/judged asks other readers."""

import errno
import random
import struct

import pytest

from kit.build_volumes import BLOCK, MIB, SM_BAT_ENTRIES
from kit.chains import digest_of_sectors, flatten
from kit.chains.guest import Guest, Writer
from kit.chains.libvhd import (
    ALL,
    DIFFERENCING,
    DYNAMIC,
    FREE,
    KILLED,
    SECTOR,
    SLOT,
    NotAVhd,
    Vhd,
    make,
    next_entry,
    random_uuid,
    run_bits,
    runs_of,
)
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk
from kit.reader import read_sr

SR = "0a0b0c0d-0000-4000-8000-000000000001"
ONE = "VHD-0a0b0c0d-0000-4000-8000-000000000011"
TWO = "VHD-0a0b0c0d-0000-4000-8000-000000000012"
SIZE = 16 * MIB
FIRST = 8455  #: entry of the first block in sm's geometry
BLOCK_SECTORS = 4096


@pytest.fixture
def lun():
    """A VG of which every byte was somebody's."""
    lun = Lun.new(SR, 40)
    lun.disk.fill(lun.place(0), 40 * EXTENT, b"\xa5" * 4096)
    lun.create("MGT", EXTENT)
    return lun


def dynamic(lun, size=SIZE, extents=7, name=ONE, bat=SM_BAT_ENTRIES):
    return make(lun.create(name, extents * EXTENT), size, random_uuid(name), None, bat)


def child_of(lun, parent, extents=7):
    return make(lun.create(TWO, extents * EXTENT), parent.size, random_uuid(TWO), parent)


def sectors(number, count=1):
    return b"".join(struct.pack(">Q", number + each) * 64 for each in range(count))


@pytest.mark.parametrize("differencing", [False, True])
def test_an_empty_vhd_has_the_geometry_of_sm(lun, differencing):
    vhd = child_of(lun, dynamic(lun)) if differencing else dynamic(lun)
    lun.commit()

    found = read_sr(lun.disk).vhd(vhd.volume.name)

    assert found.problems == () and found.end == "same" and found.virtual_size == SIZE
    assert vhd.type == found.disk_type == (DIFFERENCING if differencing else DYNAMIC)
    assert vhd.parent_name == found.parent[1] == (ONE if differencing else "")
    assert vhd.headers_end == vhd.data_end == (8455 if differencing else 8452)
    assert vhd.physical_size == (4329472 if differencing else 4327936)
    assert (vhd.bat, vhd.hidden, any(vhd.batmap)) == ({}, False, False)
    assert flatten(lun.disk, vhd.volume.name) == digest_of_sectors(SIZE, {})


def test_headers_need_room(lun):
    with pytest.raises(OSError, match="the headers of") as raised:
        dynamic(lun, extents=1)
    assert raised.value.errno == errno.ENOSPC


def test_blocks_go_behind_each_other_in_the_order_of_their_first_write(lun):
    disk = Tapdisk(dynamic(lun).volume)
    for block in (5, 0, 7):
        disk.write(block * BLOCK_SECTORS + 3, sectors(block))
    disk.close()

    vhd = Vhd(lun.volume(ONE))

    assert vhd.bat == {5: FIRST, 0: FIRST + SLOT, 7: FIRST + 2 * SLOT}
    assert vhd.bits(0) == run_bits(3, 1) and not vhd.is_full(0)
    assert vhd.data_end == FIRST + 3 * SLOT - 7
    assert vhd.read_sectors(7, 2, 3) == b"\xa5" * SECTOR + sectors(7) + b"\xa5" * SECTOR  # data are not zeroed
    assert vhd.volume.read((FIRST + SLOT - 7) * SECTOR, 7 * SECTOR) == bytes(7 * SECTOR)  # the gap is
    lun.commit()
    assert flatten(lun.disk, ONE) == digest_of_sectors(SIZE, {b * BLOCK_SECTORS + 3: sectors(b) for b in (5, 0, 7)})


def test_a_hole_below_the_highest_entry_is_not_used(lun):
    vhd = dynamic(lun)
    disk = Tapdisk(vhd.volume)
    disk.write(0, sectors(0))
    disk.write(BLOCK_SECTORS, sectors(1))
    disk.close()
    Vhd(vhd.volume).set_entry(0, FREE)

    again = Tapdisk(vhd.volume)
    again.write(0, sectors(0))

    assert again.vhd.bat == {0: FIRST + 2 * SLOT, 1: FIRST + SLOT}


def test_a_block_is_full_when_its_last_sector_is_written(lun):
    disk = Tapdisk(dynamic(lun).volume)
    disk.write(BLOCK_SECTORS - 1, sectors(1, BLOCK_SECTORS))  # a sector of one block, all but one of the next
    disk.write(2 * BLOCK_SECTORS, sectors(2, BLOCK_SECTORS))
    assert [disk.vhd.is_full(block) for block in (0, 1, 2)] == [False, False, True]
    disk.write(2 * BLOCK_SECTORS - 2, sectors(3, 2))
    assert [disk.vhd.is_full(block) for block in (0, 1, 2)] == [False, True, True]
    disk.close()

    vhd = Vhd(lun.volume(ONE))

    assert [vhd.bits(block) for block in (0, 1, 2)] == [1, ALL, ALL]
    assert vhd.batmap[0] == 0x60
    assert vhd.volume.read(vhd.bat[1] * SECTOR, SECTOR) == b"\xff" * SECTOR


def test_pads_of_full_blocks_are_zeroed_but_that_of_the_first_place(lun):
    vhd = dynamic(lun)
    disk = Tapdisk(vhd.volume)
    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS, sectors(block, BLOCK_SECTORS if block < 2 else 9))
    pads = [(FIRST + place * SLOT - 7) * SECTOR for place in (0, 1, 2)]
    marks = b"\xee" * (7 * SECTOR)
    for pad in pads:
        vhd.volume.write(pad, marks)

    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS + 1, sectors(9))
    assert [vhd.volume.read(pad, len(marks)) == marks for pad in pads] == [True, True, True]
    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS, sectors(9))
    assert [vhd.volume.read(pad, len(marks)) == marks for pad in pads] == [True, False, True]
    assert vhd.volume.read(pads[1], 8 * SECTOR) == bytes(7 * SECTOR) + b"\xff" * SECTOR


def test_the_end_footer_is_away_while_the_disk_is_open(lun):
    vhd = dynamic(lun)
    disk = Tapdisk(vhd.volume)
    end = vhd.volume.size - SECTOR
    assert vhd.volume.read(end, SECTOR) == KILLED

    disk.write(0, sectors(0, BLOCK_SECTORS))
    disk.abandon()
    assert Vhd(vhd.volume).bat == {0: FIRST} and not Vhd(vhd.volume).is_full(0) and Vhd(vhd.volume).bits(0) == ALL

    disk.close()
    assert vhd.volume.read(end, SECTOR) == vhd.volume.read(0, SECTOR) == vhd.footer
    assert Vhd(vhd.volume).is_full(0)


def test_a_disk_that_was_only_opened_keeps_its_footer(lun):
    vhd = dynamic(lun)
    before = vhd.volume.read(0, vhd.volume.size)
    Tapdisk(vhd.volume, strict=False).close()
    assert vhd.volume.read(0, vhd.volume.size) == before


def test_a_block_that_ends_in_the_last_sector_loses_its_last_sector_at_close(lun):
    """Dead space moves the last block onto the footer: the write succeeds, and nobody is told."""
    vhd = dynamic(lun, extents=2)
    vhd.set_entry(0, 2 * EXTENT // SECTOR - 1 - BLOCK_SECTORS)

    disk = Tapdisk(vhd.volume)
    disk.write(BLOCK_SECTORS - 1, sectors(1))
    assert vhd.read_sectors(0, BLOCK_SECTORS - 1, 1) == sectors(1)
    disk.close()

    assert vhd.read_sectors(0, BLOCK_SECTORS - 1, 1) == vhd.footer


def test_a_block_past_the_end_of_the_volume_is_an_error_of_the_guests_write(lun):
    vhd = dynamic(lun, extents=2)
    disk = Tapdisk(vhd.volume)
    disk.write(0, sectors(0))
    disk.write(BLOCK_SECTORS, sectors(1))  # its place ends behind the volume

    with pytest.raises(OSError, match="No space") as raised:
        disk.write(2 * BLOCK_SECTORS - 1, sectors(2))
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        disk.write(2 * BLOCK_SECTORS, sectors(3))
    disk.close()

    assert Vhd(vhd.volume).bat == {0: FIRST, 1: FIRST + SLOT}


def test_entries_have_32_bits():
    assert next_entry(FREE - 8) == FREE - 8
    assert next_entry(FREE - 7) == FREE  # both programs would take it, and find the block free ever after
    with pytest.raises(OSError, match="the table can name"):
        next_entry(FREE + 1)


def test_guests_stay_inside_their_disks(lun):
    disk = Tapdisk(dynamic(lun).volume)
    with pytest.raises(AssertionError, match="past the end"):
        disk.write(SIZE // SECTOR, sectors(1))
    with pytest.raises(AssertionError, match="past the end"):
        disk.vhd.write(SIZE // SECTOR, sectors(1))


@pytest.mark.parametrize(
    "offset, data, complaint",
    [
        (512, b"x", "the header of .* is bad"),
        (4195840, b"x", "has no batmap"),
        (4195840 + 512, b"x", "the checksum of the batmap"),
    ],
)
def test_a_vhd_that_tapdisk_would_not_open(lun, offset, data, complaint):
    volume = dynamic(lun).volume
    volume.write(offset, data)
    with pytest.raises(NotAVhd, match=complaint):
        Tapdisk(volume)


def test_without_any_footer_there_is_no_vhd(lun):
    volume = dynamic(lun).volume
    for offset in (0, volume.size - SECTOR):
        Vhd(volume)
        volume.write(offset, KILLED)
    with pytest.raises(NotAVhd, match="has no footer"):
        Vhd(volume)


def test_hidden_and_size_are_in_both_footers(lun):
    vhd = dynamic(lun)
    vhd.set_hidden(True)
    vhd.set_size(SIZE + 3 * BLOCK)
    lun.commit()

    found = read_sr(lun.disk).vhd(ONE)

    assert (found.hidden, found.virtual_size, found.end, found.problems) == (1, SIZE + 3 * BLOCK, "same", ())
    assert Vhd(vhd.volume).footer == vhd.footer
    assert vhd.footer[56:60] == dynamic(lun, SIZE + 3 * BLOCK, name=TWO).footer[56:60]


def test_libvhd_zeroes_what_it_does_not_write_whole(lun):
    vhd = dynamic(lun)
    vhd.write(5, sectors(5))
    vhd.write(BLOCK_SECTORS, sectors(7, BLOCK_SECTORS))

    assert vhd.bat == {0: FIRST, 1: FIRST + SLOT}
    assert vhd.read_sectors(0, 4, 3) == bytes(SECTOR) + sectors(5) + bytes(SECTOR)
    assert vhd.volume.read((FIRST + SLOT - 7) * SECTOR, 7 * SECTOR) == b"\xa5" * (7 * SECTOR)
    assert not vhd.is_full(0) and Vhd(vhd.volume).is_full(1)
    before = vhd.volume.read(FIRST * SECTOR, 2 * SLOT * SECTOR)
    vhd.write(BLOCK_SECTORS, sectors(7))
    assert vhd.volume.read(FIRST * SECTOR, 2 * SLOT * SECTOR) == before


def test_libvhd_without_room_leaves_what_it_wrote_over_the_footer(lun):
    vhd = dynamic(lun, extents=2)
    vhd.write(0, sectors(0))

    with pytest.raises(OSError, match="No space"):
        vhd.write(BLOCK_SECTORS, sectors(1))

    assert vhd.volume.read(vhd.volume.size - SECTOR, SECTOR) == bytes(SECTOR)
    assert Vhd(vhd.volume).bat == {0: FIRST}


def test_runs_of_bits():
    assert list(runs_of(run_bits(0, 2) | run_bits(4095, 1))) == [(0, 2, True), (2, 4093, False), (4095, 1, True)]
    assert list(runs_of(run_bits(4, 2), 3, 4)) == [(3, 1, False), (4, 2, True), (6, 1, False)]


@pytest.mark.parametrize("seed", range(3))
def test_what_a_guest_writes_is_what_it_reads(lun, seed):
    """In a chain of two, the base an odd number of sectors long."""
    dice = random.Random(seed)
    writer, guest = Writer(dice), Guest(SIZE - 5 * SECTOR)
    parent = dynamic(lun, guest.size)
    for volume in (parent.volume, None):
        disk = Tapdisk(volume or child_of(lun, Vhd(parent.volume)).volume)
        for block in dice.sample(range(8), 5):
            for sector, data in writer.to_block(block, guest.size):
                disk.write(sector, data)
                guest.write(sector, data)
        disk.close()
        lun.commit()
        assert flatten(lun.disk, disk.volume.name) == guest.flat()
