# SPDX-License-Identifier: LGPL-2.1-only
"""Where a VHD keeps its blocks. The numbers are libvhd's and the storage manager's (docs/formats/vhd.rst)."""

import pytest

from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, Malformed, Place, Unsupported
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.vhd import BatmapHeader, DynamicHeader, LocatorEntry
from relvmoiscsi.formats.vhd_blocks import SLOT_UNITS, Batmap

WHERE = Place("VHD-1", 0)
GIB, TIB = 1 << 30, 1 << 40
#: SM asks for a block table that is enough for 2 TiB, so that a disk can grow without moving a block
ENTRIES = 1 << 20
TABLE = 1536
BATMAP = TABLE + 4 * ENTRIES + 512
HEADER = DynamicHeader.zero(table_offset=TABLE, max_bat_entries=ENTRIES, block_size=2 << 20)


def batmap_header(version=vhd.BATMAP_VERSIONS[-1], sectors=ENTRIES // 8 // 512, **more):
    values = {"cookie": b"tdbatmap", "batmap_offset": BATMAP, "batmap_sectors": sectors, "version": version}
    return BatmapHeader.zero(**{**values, **more})


# --- geometry


def test_the_headers_of_an_image_that_sm_made_end_at_sector_8452_and_its_first_entry_is_8455():
    first = blocks.first_slot_unit(HEADER, batmap_header())

    assert blocks.block_table(HEADER) == Range(TABLE, 4 << 20)
    assert vhd.batmap_header_at(HEADER) == BATMAP - 512
    assert blocks.end_of_headers(HEADER, batmap_header()) == 8452 * 512
    assert first == 1056
    assert blocks.entry_of(first) == 8455


@pytest.mark.parametrize("locators, end", [(((0, 8452, 1), (2, 8454, 1)), 8455), (((0, 8452, 512),), 8453)])
def test_locators_behind_the_batmap_belong_to_the_headers(locators, end):
    """Each has a number, a sector, and a space in sectors, or in bytes where it is 512 or more."""
    data = bytearray(bytes(HEADER.locators))
    for number, sector, space in locators:
        entry = LocatorEntry.zero(code=vhd.LOCATOR_MACX, data_space=space, data_length=100, data_offset=sector * 512)
        data[number * LocatorEntry.SIZE : (number + 1) * LocatorEntry.SIZE] = bytes(entry)

    assert blocks.end_of_headers(HEADER.replace(locators=bytes(data)), batmap_header()) == end * 512


# --- sizes


@pytest.mark.parametrize("virtual, size", [(2 << 20, 6430720), (8 * GIB, 8611041280), (2040 * GIB, 2194715840512)])
def test_the_volume_of_a_full_disk_is_as_large_as_sm_makes_it(virtual, size):
    """A dense image and its footer fit, and not a unit more would."""
    end = (1056 + SLOT_UNITS * blocks.block_count(virtual)) * 4096

    assert blocks.formula_size(virtual) == size
    assert 0 <= size - (end + 512) < 4096


# --- the batmap


def verified(data, virtual=100 << 20, **header):
    made = batmap_header(**header)
    made = made.replace(checksum=blocks.batmap_checksum(made.version, data, virtual))
    return blocks.verify_batmap(made, data, virtual, WHERE)


@pytest.mark.parametrize("version", vhd.BATMAP_VERSIONS)
def test_a_block_is_full_where_its_bit_is_set_from_the_highest(version):
    made = Batmap(bytes(512))
    for block in (0, 9, 4095):
        made.set(block)
    assert bytes(made) == b"\x80\x40" + bytes(509) + b"\x01"

    found = verified(bytes(made), version=version)

    assert [block for block in range(4096) if found[block]] == [0, 9, 4095]


def test_a_block_behind_the_batmap_is_not_full():
    """libvhd reads there what lies behind its buffer: a block count of 1 to 7 modulo 4096 leads to that."""
    found = Batmap(b"\xff" * 512)

    assert found[4095] and not found[4096] and not found[1 << 30]


CHECKED = [(2 << 20, 512), (8 * GIB - 1, 512), (8 * GIB, 512), (8 * GIB + (16 << 20), 1024), (2 * TIB, 128 << 10)]


@pytest.mark.parametrize("virtual, length", CHECKED)
def test_so_much_of_it_is_read_and_under_its_checksum(virtual, length):
    assert blocks.checked_bytes(virtual) == length


@pytest.mark.parametrize(
    "version, data, virtual, checksum",
    [
        (0x00010002, bytes(512), 100 << 20, 0xFFFFFFFF),
        (0x00010002, b"\x01" + bytes(511), 100 << 20, 0xFFFFFFFE),
        (0x00010002, b"\xff" * 512, 100 << 20, 0xFFFE01FF),
        (0x00010001, b"\x7f" + bytes(511), 100 << 20, 0xFFFFFF80),
        (0x00010001, b"\xff" + bytes(511), 100 << 20, 0x00000000),
        (0x00010001, b"\x80" * 512, 100 << 20, 0x0000FFFF),
        (0x00010002, bytes(512) + b"\xff" * 512, 8 * GIB, 0xFFFFFFFF),
        (0x00010002, bytes(512) + b"\xff" * 512, 16 * GIB, 0xFFFFFFFF - 512 * 255),
    ],
)
def test_checksums_of_both_versions_cover_the_size_in_use(version, data, virtual, checksum):
    """The older one adds bytes as a signed char, and -1 for 0xff."""
    assert blocks.batmap_checksum(version, data, virtual) == checksum


def test_a_wrong_checksum_is_refused_as_tapdisk_refuses_it():
    with pytest.raises(BadChecksum, match="VHD batmap"):
        blocks.verify_batmap(batmap_header(checksum=1), bytes(512), 100 << 20, WHERE)


def test_a_batmap_that_is_too_short_for_the_disk_is_malformed():
    with pytest.raises(Malformed, match="it has 512 bytes for"):
        verified(bytes(512), virtual=16 * GIB)


@pytest.mark.parametrize("field, error", [({"cookie": b"conectix"}, BadMagic), ({"version": 0x00010003}, Unsupported)])
def test_a_header_that_is_none_is_refused(field, error):
    with pytest.raises(error, match="VHD batmap at byte 0 of VHD-1"):
        vhd.read_batmap_header(bytes(batmap_header(**field)), WHERE)
