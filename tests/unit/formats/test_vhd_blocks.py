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
BATMAP_HEADER = TABLE + 4 * ENTRIES
BATMAP = BATMAP_HEADER + 512

HEADER = DynamicHeader.zero(table_offset=TABLE, max_bat_entries=ENTRIES, block_size=2 << 20)


def batmap_header(version=vhd.BATMAP_VERSIONS[-1], sectors=ENTRIES // 8 // 512, **more):
    values = {"cookie": b"tdbatmap", "batmap_offset": BATMAP, "batmap_sectors": sectors, "version": version}
    return BatmapHeader.zero(**{**values, **more})


def with_locator(header, number, offset, sectors):
    entry = LocatorEntry.zero(code=vhd.LOCATOR_MACX, data_space=sectors, data_length=100, data_offset=offset)
    data = bytearray(bytes(header.locators))
    data[number * LocatorEntry.SIZE : (number + 1) * LocatorEntry.SIZE] = bytes(entry)
    return header.replace(locators=bytes(data))


# --- geometry


def test_the_headers_of_an_image_that_sm_made_end_at_sector_8452_and_its_first_entry_is_8455():
    place = blocks.geometry(HEADER, batmap_header())

    assert place.table == Range(TABLE, 4 << 20)
    assert place.batmap_header == BATMAP_HEADER
    assert blocks.end_of_headers(HEADER, batmap_header()) == 8452 * 512
    assert place.first_slot_unit == 1056
    assert blocks.entry_of(place.first_slot_unit) == 8455


def test_locators_behind_the_batmap_belong_to_the_headers():
    located = with_locator(HEADER, 0, 8452 * 512, 1)
    located = with_locator(located, 2, 8454 * 512, 1)

    assert blocks.end_of_headers(located, batmap_header()) == 8455 * 512


def test_a_locator_may_give_its_space_in_bytes():
    assert blocks.end_of_headers(with_locator(HEADER, 0, 8452 * 512, 512), batmap_header()) == 8453 * 512


@pytest.mark.parametrize("sector, entry", [(8448, 8455), (8455, 8455), (8456, 8463), (8, 15)])
def test_the_first_bitmap_is_the_last_sector_of_a_unit_behind_the_headers(sector, entry):
    found = blocks.geometry(HEADER, batmap_header(batmap_offset=sector * 512, sectors=0)) if sector > 8194 else None

    unit = found.first_slot_unit if found else blocks._unit_behind(sector * 512)
    assert blocks.entry_of(unit) == entry


def test_bitmap_and_data_of_an_entry():
    assert (blocks.bitmap_at(8455), blocks.data_at(8455)) == (8455 * 512, 8456 * 512)
    assert blocks.data_at(8455) % 4096 == 0


@given(st.integers(0, (1 << 29) - 1))
def test_units_and_entries_are_the_same_place(unit):
    assert blocks.unit_of(blocks.entry_of(unit)) == unit


@pytest.mark.parametrize("entry", [8448, 8454, 8456, 0])
def test_an_entry_whose_data_is_not_on_4_kib_has_no_unit(entry):
    assert blocks.unit_of(entry) is None


# --- sizes


@pytest.mark.parametrize("virtual, size", [(2 << 20, 6430720), (8 * GIB, 8611041280), (2040 * GIB, 2194715840512)])
def test_the_volume_of_a_full_disk_is_as_large_as_sm_makes_it(virtual, size):
    assert blocks.formula_size(virtual) == size
    assert size == virtual + 4329472 + 4096 * (virtual >> 21)


def test_a_dense_image_and_its_footer_fit_what_sm_computes_and_not_a_unit_more_would():
    virtual = 100 << 20
    end = (1056 + SLOT_UNITS * blocks.block_count(virtual)) * 4096

    assert 0 <= blocks.formula_size(virtual) - (end + 512) < 4096


@pytest.mark.parametrize("virtual, count", [(0, 0), (1, 1), (2 << 20, 1), ((2 << 20) + 512, 2), (2 * TIB, 1 << 20)])
def test_a_disk_has_so_many_blocks(virtual, count):
    assert blocks.block_count(virtual) == count


# --- the table


def test_entries_are_big_endian():
    assert list(blocks.read_entries(b"\0\0\x21\x07\xff\xff\xff\xff")) == [8455, UNUSED]
    assert blocks.table_bytes([8455, UNUSED]) == b"\0\0\x21\x07\xff\xff\xff\xff"


@given(st.lists(st.integers(0, UNUSED), max_size=20))
def test_a_table_reads_as_what_was_written(entries):
    assert list(blocks.read_entries(blocks.table_bytes(entries))) == entries


# --- bitmaps


def test_the_first_sector_is_the_highest_bit():
    assert blocks.read_bitmap(b"\x80" + bytes(511)) == 1 << (BLOCK_SECTORS - 1)
    assert blocks.bitmap_bytes(1) == bytes(511) + b"\x01"
    assert blocks.bitmap_bytes(FULL) == b"\xff" * 512


@pytest.mark.parametrize(
    "count, first", [(0, b"\0"), (1, b"\x80"), (8, b"\xff"), (BLOCK_SECTORS, b"\xff"), (9000, b"\xff")]
)
def test_the_bits_of_the_first_sectors(count, first):
    data = blocks.bitmap_bytes(blocks.first_sectors(count))

    assert data[:1] == first
    assert sum(bin(byte).count("1") for byte in data) == min(count, BLOCK_SECTORS)


@given(st.sets(st.integers(0, BLOCK_SECTORS - 1), max_size=40))
def test_runs_are_the_sectors_that_are_set_and_no_two_touch(sectors):
    bits = sum(1 << (BLOCK_SECTORS - 1 - sector) for sector in sectors)

    found = blocks.runs(bits)

    assert [sector for run in found for sector in range(run.offset, run.end)] == sorted(sectors)
    assert all(one.end < other.offset for one, other in zip(found, found[1:]))


def test_the_runs_of_whole_blocks():
    assert blocks.runs(0) == []
    assert blocks.runs(FULL) == [Range(0, BLOCK_SECTORS)]


# --- the batmap


def verified(data, virtual=100 << 20, **header):
    made = batmap_header(**header)
    made = made.replace(checksum=blocks.batmap_checksum(made.version, data, virtual))
    return blocks.verify_batmap(made, data, virtual, WHERE)


def test_a_block_is_full_where_its_bit_is_set():
    found = verified(b"\x80\x01" + bytes(510))

    assert [block for block in range(20) if found[block]] == [0, 15]


def test_bits_are_set_from_the_highest():
    made = Batmap(bytes(512))
    for block in (0, 9, 4095):
        made.set(block)

    assert bytes(made) == b"\x80\x40" + bytes(509) + b"\x01"


def test_a_block_behind_the_batmap_is_not_full():
    """libvhd reads there what lies behind its buffer: a block count of 1 to 7 modulo 4096 leads to that."""
    found = Batmap(b"\xff" * 512)

    assert found[4095] and not found[4096] and not found[1 << 30]


@pytest.mark.parametrize(
    "virtual, length",
    [(2 << 20, 512), (8 * GIB - 1, 512), (8 * GIB, 512), (8 * GIB + (16 << 20), 1024), (2 * TIB, 128 << 10)],
)
def test_so_much_of_it_is_read_and_under_its_checksum(virtual, length):
    assert blocks.checked_bytes(virtual) == length


@pytest.mark.parametrize(
    "version, data, checksum",
    [
        (0x00010002, bytes(512), 0xFFFFFFFF),
        (0x00010002, b"\x01" + bytes(511), 0xFFFFFFFE),
        (0x00010002, b"\xff" + bytes(511), 0xFFFFFF00),
        (0x00010002, b"\xff" * 512, 0xFFFE01FF),
        (0x00010001, b"\x7f" + bytes(511), 0xFFFFFF80),
        (0x00010001, b"\xff" + bytes(511), 0x00000000),
        (0x00010001, b"\x80" * 512, 0x0000FFFF),
    ],
)
def test_checksums_of_both_versions(version, data, checksum):
    """The older one adds bytes as a signed char, and -1 for 0xff."""
    assert blocks.batmap_checksum(version, data, 100 << 20) == checksum


def test_what_lies_behind_the_size_in_use_is_not_under_the_checksum():
    data = bytes(512) + b"\xff" * 512

    assert blocks.batmap_checksum(0x00010002, data, 8 * GIB) == 0xFFFFFFFF
    assert blocks.batmap_checksum(0x00010002, data, 16 * GIB) == 0xFFFFFFFF - 512 * 255


@pytest.mark.parametrize("version", vhd.BATMAP_VERSIONS)
def test_a_batmap_of_each_version_is_read(version):
    assert verified(b"\xf0" + bytes(511), version=version)[3]


def test_a_wrong_checksum_is_refused_as_tapdisk_refuses_it():
    with pytest.raises(BadChecksum, match="VHD batmap"):
        blocks.verify_batmap(batmap_header(checksum=1), bytes(512), 100 << 20, WHERE)


def test_a_batmap_that_is_too_short_for_the_disk_is_malformed():
    with pytest.raises(Malformed, match="it has 512 bytes for"):
        verified(bytes(512), virtual=16 * GIB)


@pytest.mark.parametrize(
    "header, error", [(batmap_header(cookie=b"conectix"), BadMagic), (batmap_header(version=0x00010003), Unsupported)]
)
def test_a_header_that_is_none_is_refused(header, error):
    with pytest.raises(error, match="VHD batmap at byte 0 of VHD-1"):
        blocks.read_batmap_header(bytes(header), WHERE)


@given(st.binary(min_size=512, max_size=512))
def test_any_bytes_are_a_header_or_an_error_of_the_format(data):
    try:
        assert bytes(blocks.read_batmap_header(data, WHERE)) == data
    except FormatError:
        pass
