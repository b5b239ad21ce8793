# SPDX-License-Identifier: LGPL-2.1-only
"""Where a VHD keeps its blocks. The numbers are libvhd's and the storage manager's (docs/formats/vhd.rst)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Place, Unsupported
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.vhd import BatmapHeader, DynamicHeader, LocatorEntry
from relvmoiscsi.formats.vhd_blocks import BLOCK_SECTORS, FULL, SLOT_UNITS, UNUSED, Batmap

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
    place = blocks.geometry(HEADER, batmap_header())

    assert place.table == Range(TABLE, 4 << 20)
    assert place.batmap_header == BATMAP - 512
    assert blocks.end_of_headers(HEADER, batmap_header()) == 8452 * 512
    assert place.first_slot_unit == 1056
    assert blocks.entry_of(place.first_slot_unit) == 8455


@pytest.mark.parametrize("locators, end", [(((0, 8452, 1), (2, 8454, 1)), 8455), (((0, 8452, 512),), 8453)])
def test_locators_behind_the_batmap_belong_to_the_headers(locators, end):
    """Each has a number, a sector, and a space in sectors, or in bytes where it is 512 or more."""
    data = bytearray(bytes(HEADER.locators))
    for number, sector, space in locators:
        entry = LocatorEntry.zero(code=vhd.LOCATOR_MACX, data_space=space, data_length=100, data_offset=sector * 512)
        data[number * LocatorEntry.SIZE : (number + 1) * LocatorEntry.SIZE] = bytes(entry)

    assert blocks.end_of_headers(HEADER.replace(locators=bytes(data)), batmap_header()) == end * 512


@pytest.mark.parametrize("sector, entry", [(8448, 8455), (8455, 8455), (8456, 8463)])
def test_the_first_bitmap_is_the_last_sector_of_a_unit_behind_the_headers(sector, entry):
    found = blocks.geometry(HEADER, batmap_header(batmap_offset=sector * 512, sectors=0))

    assert blocks.entry_of(found.first_slot_unit) == entry


@given(st.integers(0, (1 << 29) - 1))
def test_units_and_entries_are_the_same_place_and_its_data_lie_on_4_kib(unit):
    entry = blocks.entry_of(unit)

    assert blocks.unit_of(entry) == unit
    assert (blocks.bitmap_at(entry), blocks.data_at(entry)) == (entry * 512, (entry + 1) * 512)
    assert blocks.data_at(entry) % 4096 == 0
    assert {blocks.unit_of(entry + other) for other in range(-7, 0)} == {None}


# --- sizes


@pytest.mark.parametrize("virtual, size", [(2 << 20, 6430720), (8 * GIB, 8611041280), (2040 * GIB, 2194715840512)])
def test_the_volume_of_a_full_disk_is_as_large_as_sm_makes_it(virtual, size):
    """A dense image and its footer fit, and not a unit more would."""
    end = (1056 + SLOT_UNITS * blocks.block_count(virtual)) * 4096

    assert blocks.formula_size(virtual) == size
    assert 0 <= size - (end + 512) < 4096


@pytest.mark.parametrize("virtual, count", [(0, 0), (1, 1), (2 << 20, 1), ((2 << 20) + 512, 2), (2 * TIB, 1 << 20)])
def test_a_disk_has_so_many_blocks(virtual, count):
    assert blocks.block_count(virtual) == count


# --- table and bitmaps


@given(st.lists(st.integers(0, UNUSED), max_size=20))
def test_a_table_reads_as_what_was_written(entries):
    data = blocks.table_bytes(entries)

    assert list(blocks.read_entries(data)) == entries
    assert data == b"".join(entry.to_bytes(4, "big") for entry in entries)


def test_the_first_sector_is_the_highest_bit():
    assert blocks.read_bitmap(b"\x80" + bytes(511)) == 1 << (BLOCK_SECTORS - 1)
    assert blocks.bitmap_bytes(1) == bytes(511) + b"\x01"
    assert blocks.bitmap_bytes(FULL) == b"\xff" * 512


FIRST_SECTORS = [(0, b"\0"), (1, b"\x80"), (8, b"\xff"), (BLOCK_SECTORS, b"\xff"), (9000, b"\xff")]


@pytest.mark.parametrize("count, first", FIRST_SECTORS)
def test_the_bits_of_the_first_sectors(count, first):
    data = blocks.bitmap_bytes(blocks.first_sectors(count))

    assert data[:1] == first
    assert sum(bin(byte).count("1") for byte in data) == min(count, BLOCK_SECTORS)


@given(st.sets(st.integers(0, BLOCK_SECTORS - 1), max_size=40) | st.just(set(range(BLOCK_SECTORS))))
def test_runs_are_the_sectors_that_are_set_and_no_two_touch(sectors):
    bits = sum(1 << (BLOCK_SECTORS - 1 - sector) for sector in sectors)

    found = blocks.runs(bits)

    assert [sector for run in found for sector in range(run.offset, run.end)] == sorted(sectors)
    assert all(one.end < other.offset for one, other in zip(found, found[1:]))


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
        blocks.read_batmap_header(bytes(batmap_header(**field)), WHERE)


@given(st.binary(min_size=512, max_size=512))
def test_any_bytes_are_a_header_or_an_error_of_the_format(data):
    try:
        assert bytes(blocks.read_batmap_header(data, WHERE)) == data
    except FormatError:
        pass
