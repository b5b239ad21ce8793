# SPDX-License-Identifier: LGPL-2.1-only
"""The judge accepts what tapdisk has written, and finds what is wrong with anything else."""

import re
import struct

import pytest

from kit.build_volumes import MIB
from kit.chains import SECTOR, SECTORS
from kit.chains.judge import check
from kit.chains.libvhd import SLOT, Vhd, make, random_uuid, run_bits, with_sum
from kit.chains.lun import EXTENT, Lun
from kit.chains.tapdisk import Tapdisk

SR = "0a0b0c0d-0000-4000-8000-000000000001"
NAME = "VHD-0a0b0c0d-0000-4000-8000-000000000011"
SIZE = 5 * MIB  #: three blocks, the last one half
FIRST = 8455
MAP_HEADER = 4195840
MAP = MAP_HEADER + 512


class Image:
    """A VHD with blocks 0 and 2 of three."""

    def __init__(self, size=SIZE, blocks=(0, 2), extents=3):
        self.lun = Lun.new(SR, 6)
        self.lun.disk.fill(self.lun.place(0), 6 * EXTENT, b"\xa5" * 4096)
        self.volume = self.lun.create(NAME, extents * EXTENT)
        make(self.volume, size, random_uuid(NAME))
        disk = Tapdisk(self.volume)
        for block in blocks:
            disk.write(block * SECTORS, b"data" * 128)
        disk.close()
        self.lun.commit()
        self.vhd = Vhd(self.volume)

    @property
    def disk(self):
        return self.lun.disk

    def put(self, at, data):
        self.volume.write(at, data)

    def put_footers(self, at, data):
        self.vhd._change_footer(at, data)

    def put_full(self, block):
        self.vhd.set_full(block)
        self.vhd.write_batmap()

    def put_beyond_the_checksum(self):
        self.put(MAP + 512, b"\x80")
        self.vhd.set_entry(4096, FIRST + 2 * SLOT)

    def put_header(self, at, data):
        header = self.vhd.header
        self.put(SECTOR, with_sum(header[:at] + data + header[at + len(data) :], 36))


def test_what_tapdisk_wrote_is_right_and_dense():
    found = check(Image().disk, NAME)

    assert found.problems == () and found.dense and found.above_formula == 0
    assert (found.allocated, found.unallocated, found.dead_bytes, found.size) == (2, 1, 0, SIZE)
    assert found.full_bytes == (FIRST - 7 + 3 * SLOT + 1) * SECTOR


@pytest.mark.parametrize(
    "damage, complaint",
    [
        (lambda image: image.put(0, b"x"), "the footer at its start is bad"),
        (lambda image: image.put(image.volume.size - 512, b"\xc7" * 512), "the footer at its end is bad"),
        (lambda image: image.put(0, with_sum(image.vhd.footer[:24] + b"now" + image.vhd.footer[27:], 64)), "differ"),
        (lambda image: image.put_footers(60, struct.pack(">I", 4)), "of type 4"),
        (lambda image: image.put_footers(85, b"\1"), "it is hidden"),
        (lambda image: image.put_footers(16, struct.pack(">Q", 1024)), "it has no header"),
        (lambda image: image.put_header(28, struct.pack(">I", 2)), "2 blocks of 2097152 bytes"),
        (lambda image: image.put_header(40, b"x"), "parent uuid"),
        (lambda image: image.put_header(576, b"MacX"), "locators"),
        (lambda image: image.put(MAP, b"\x01"), "the checksum of its batmap"),
        (lambda image: image.put_full(1), "calls block 1 full, which is nowhere"),
        (Image.put_beyond_the_checksum, "a bit for block 4096, behind what its checksum covers"),
        (Image.put_beyond_the_checksum, "block 4096 has a place and is behind the end of the disk"),
        (lambda image: image.put_full(0), "calls block 0 full, and its bitmap does not"),
        (lambda image: image.vhd.write_bitmap(2, run_bits(0, 2049)), "block 2 has sectors behind the end of the disk"),
        (lambda image: image.vhd.set_entry(1, FIRST + 2 * SLOT + 1), "block 1 at sector 16664 are not on a page"),
        (lambda image: image.vhd.set_entry(1, 8447), "block 1 at sector 8447 lies in the headers"),
        (lambda image: image.vhd.set_entry(1, FIRST + 4096), "block 2 at sector 12559 lies in another block"),
        (lambda image: image.vhd.set_entry(1, 3 * 8192 - 4097), "block 1 at sector 20479 lies in the footer"),
    ],
)
def test_it_complains(damage, complaint):
    image = Image()
    assert check(image.disk, NAME).problems == ()

    damage(image)

    found = check(image.disk, NAME)
    assert any(NAME in problem and re.search(complaint, problem) for problem in found.problems), found


def test_dead_space_and_a_last_block_in_the_footer_s_place_take_more_than_sm_gives():
    """The extents of a chain's members, one after the other under one table, would leave dead space."""
    for image, entry in ((Image(blocks=(0,)), FIRST + 2 * SLOT), (Image(4 * MIB, ()), 3 * 8192 - 4097 - SLOT)):
        image.vhd.set_entry(0, entry)
        image.vhd.write_bitmap(0, run_bits(0, 1))
        found = check(image.disk, NAME)
        assert found.problems == () and not found.dense and not found.can_be_filled
