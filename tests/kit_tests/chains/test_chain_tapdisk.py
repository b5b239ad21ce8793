# SPDX-License-Identifier: LGPL-2.1-only
"""Tapdisk and libvhd put bytes where the real ones do: their source says it, and tests/judged asks other readers."""

import errno
import struct

import pytest

from kit.build_volumes import MIB, SM_BAT_ENTRIES
from kit.chains import digest_of_sectors, flatten
from kit.chains.libvhd import ALL, KILLED, SECTOR, SLOT, Vhd, make, random_uuid, run_bits
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk

SR = "0a0b0c0d-0000-4000-8000-000000000001"
ONE = "VHD-0a0b0c0d-0000-4000-8000-000000000011"
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


def sectors(number, count=1):
    return b"".join(struct.pack(">Q", number + each) * 64 for each in range(count))


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
