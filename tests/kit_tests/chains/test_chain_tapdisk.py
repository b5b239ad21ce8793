# SPDX-License-Identifier: LGPL-2.1-only
"""Tapdisk and libvhd put bytes where the real ones do: their source says it, and tests/judged asks other readers."""

import struct

import pytest

from kit.build_volumes import MIB
from kit.chains.libvhd import ALL, SECTOR, SLOT, Vhd, make, random_uuid
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk

SR = "0a0b0c0d-0000-4000-8000-000000000001"
ONE = "VHD-0a0b0c0d-0000-4000-8000-000000000011"
FIRST = 8455  #: entry of the first block in sm's geometry
BLOCK_SECTORS = 4096


@pytest.fixture
def volume():
    """A VHD without blocks, in a VG of which every byte was somebody's."""
    lun = Lun.new(SR, 40)
    lun.disk.fill(lun.place(0), 40 * EXTENT, b"\xa5" * 4096)
    return make(lun.create(ONE, 7 * EXTENT), 16 * MIB, random_uuid(ONE)).volume


def sectors(number, count=1):
    return b"".join(struct.pack(">Q", number + each) * 64 for each in range(count))


def test_a_block_is_full_when_its_last_sector_is_written(volume):
    disk = Tapdisk(volume)
    disk.write(BLOCK_SECTORS - 1, sectors(1, BLOCK_SECTORS))  # a sector of one block, all but one of the next
    disk.write(2 * BLOCK_SECTORS, sectors(2, BLOCK_SECTORS))
    assert [disk.vhd.is_full(block) for block in (0, 1, 2)] == [False, False, True]
    disk.write(2 * BLOCK_SECTORS - 2, sectors(3, 2))
    assert [disk.vhd.is_full(block) for block in (0, 1, 2)] == [False, True, True]
    disk.close()

    vhd = Vhd(volume)

    assert [vhd.bits(block) for block in (0, 1, 2)] == [1, ALL, ALL]
    assert vhd.batmap[0] == 0x60
    assert volume.read(vhd.bat[1] * SECTOR, SECTOR) == b"\xff" * SECTOR


def test_pads_of_full_blocks_are_zeroed_but_that_of_the_first_place(volume):
    disk = Tapdisk(volume)
    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS, sectors(block, BLOCK_SECTORS if block < 2 else 9))
    pads = [(FIRST + place * SLOT - 7) * SECTOR for place in (0, 1, 2)]
    marks = b"\xee" * (7 * SECTOR)
    for pad in pads:
        volume.write(pad, marks)

    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS + 1, sectors(9))
    assert [volume.read(pad, len(marks)) == marks for pad in pads] == [True, True, True]
    for block in (0, 1, 2):
        disk.write(block * BLOCK_SECTORS, sectors(9))
    assert [volume.read(pad, len(marks)) == marks for pad in pads] == [True, False, True]
    assert volume.read(pads[1], 8 * SECTOR) == bytes(7 * SECTOR) + b"\xff" * SECTOR
