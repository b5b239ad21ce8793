# SPDX-License-Identifier: LGPL-2.1-only
"""Metadata area headers and the text in the ring behind them (docs/formats/lvm.rst)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import build_lvm
from kit.examples import examples
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import (
    Area,
    MdaHeader,
    RawLocation,
    mda_header,
    parse_mda,
    text_location,
    text_ranges,
    verify_text,
)

WHERE = Place("/dev/sdc", 4096)
AREA = Area(4096, 11530240)
SMALL = Area(4096, 8192)
TEXT = b"VG_XenStorage-x {\n}\n\0"


def header_with(*slots, area=AREA):
    return build_lvm.mda_header(Range(*area), slots)


def patched(offset, form, value):
    data = bytearray(header_with(build_lvm.raw_locn(512, TEXT)))
    struct.pack_into(form, data, offset, value)
    struct.pack_into("<I", data, 0, build_lvm.crc(bytes(data[4:])))
    return bytes(data)


# --- headers


@pytest.mark.parametrize(
    "area, crc",
    [((4096, 11530240), 0xD1266522), ((4096, 1044480), 0xDB8ED616), ((10736369664, 1048576), 0xD652E498)],
)
def test_a_blank_header_is_the_one_that_real_lvm_writes(area, crc):
    header = mda_header(Area(*area), RawLocation.zero())

    assert header.crc == crc
    assert bytes(header) == build_lvm.mda_header(Range(*area), [])


def test_a_header_with_a_text_is_the_one_that_real_lvm_writes():
    location = RawLocation.zero(offset=512, size=755, crc=0x2FB4DE18)

    assert mda_header(AREA, location).crc == 0x040C1450


def test_the_magic_is_the_one_of_the_format():
    assert bytes.fromhex("20 4c 56 4d 32 20 78 5b 35 41 25 72 30 4e 2a 3e") == pv.MDA_MAGIC


def test_a_header_is_read_with_its_two_slots():
    one, two = build_lvm.raw_locn(512, TEXT), build_lvm.raw_locn(1024, TEXT)

    mda = parse_mda(header_with(one, two), AREA, WHERE)

    assert (mda.committed.offset, mda.committed.size, mda.committed.crc) == (512, len(TEXT), build_lvm.crc(TEXT))
    assert bytes(mda.precommitted) == two
    assert (mda.has_text, mda.ignored) == (True, False)


def test_an_empty_slot_is_no_text():
    mda = parse_mda(header_with(), AREA, WHERE)

    assert (mda.has_text, mda.ignored) == (False, False)


def test_an_ignored_area_has_no_text_that_counts():
    mda = parse_mda(header_with(build_lvm.raw_locn(512, TEXT, build_lvm.IGNORED)), AREA, WHERE)

    assert (mda.has_text, mda.ignored) == (False, True)


@given(st.integers(4 * 8, 512 * 8 - 1))
def test_every_flipped_bit_under_the_checksum_is_found(bit):
    data = bytearray(header_with(build_lvm.raw_locn(512, TEXT)))
    data[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadChecksum, match="Metadata area header at byte 4096 of /dev/sdc"):
        parse_mda(bytes(data), AREA, WHERE)


@pytest.mark.parametrize(
    "offset, form, value, error, sentence",
    [
        (4, "<B", 0x21, BadMagic, "it begins with b'!LVM2 x"),
        (20, "<I", 2, Unsupported, "its version is 2"),
        (24, "<Q", 8192, Malformed, "it says 11530240 bytes at 8192"),
        (32, "<Q", 1044480, Malformed, "it says 1044480 bytes at 4096, the label says 11530240 bytes"),
    ],
)
def test_a_sealed_header_that_is_none_is_refused(offset, form, value, error, sentence):
    with pytest.raises(error) as caught:
        parse_mda(patched(offset, form, value), AREA, WHERE)

    assert sentence in str(caught.value)


def test_a_header_that_is_cut_is_truncated():
    with pytest.raises(Truncated):
        parse_mda(header_with()[:511], AREA, WHERE)


def test_a_new_header_empties_slot_1_and_keeps_what_nobody_knows():
    old = MdaHeader.at(patched(400, "8s", b"whatever")).replace(precommitted=b"\1" * 24)

    new = mda_header(AREA, RawLocation.zero(offset=1024, size=5), old)

    mda = parse_mda(bytes(new), AREA, WHERE)
    assert mda.committed.offset == 1024
    assert not any(bytes(mda.precommitted))
    assert new.rest == old.rest


# --- where a text lies


def test_a_text_in_one_piece_is_one_range():
    location = RawLocation.zero(offset=1024, size=100)

    assert text_ranges(SMALL, location, WHERE) == [Range(4096 + 1024, 100)]


def test_a_text_that_wraps_goes_on_behind_the_header():
    location = RawLocation.zero(offset=8192 - 60, size=100)

    assert text_ranges(SMALL, location, WHERE) == [Range(4096 + 8192 - 60, 60), Range(4096 + 512, 40)]


def test_a_text_may_end_with_the_ring_and_may_fill_it():
    assert text_ranges(SMALL, RawLocation.zero(offset=8092, size=100), WHERE) == [Range(4096 + 8092, 100)]
    assert text_ranges(SMALL, RawLocation.zero(offset=512, size=7680), WHERE) == [Range(4096 + 512, 7680)]


@pytest.mark.parametrize(
    "offset, size", [(0, 10), (511, 10), (8192, 10), (512, 0), (512, 7681), (1 << 63, 10), ((1 << 64) - 1, 10)]
)
def test_a_text_outside_the_ring_is_malformed(offset, size):
    with pytest.raises(Malformed, match=f"its text has {size} bytes at offset {offset} of an area of 8192"):
        text_ranges(SMALL, RawLocation.zero(offset=offset, size=size), WHERE)


def test_a_text_of_a_terabyte_is_not_believed_even_where_the_area_is_that_large():
    with pytest.raises(Unsupported, match="Metadata text .* it has 1099511627776 bytes"):
        text_ranges(Area(4096, 1 << 50), RawLocation.zero(offset=512, size=1 << 40), WHERE)


@given(st.integers(512, 8191), st.integers(1, 7680))
@settings(max_examples=examples(50))
def test_what_the_builder_puts_into_the_ring_is_read_back(offset, size):
    disk, text = SparseDisk(1 << 20), bytes(at % 251 + 1 for at in range(size - 1)) + b"\0"
    build_lvm.put_text(disk, Range(*SMALL), offset, text)
    disk.poke(4096, build_lvm.mda_header(Range(*SMALL), [build_lvm.raw_locn(offset, text)]))

    mda = parse_mda(disk.peek(4096, 512), SMALL, WHERE)
    found = pv.read_texts(disk, [mda])[0]

    assert found == text
    assert disk.read_batches == 1
    verify_text(found, mda.committed, WHERE)


def test_the_place_of_a_new_text_counts_from_the_start_of_its_area():
    location = text_location(SMALL, 4096 + 1024, TEXT)

    assert (location.offset, location.size, location.flags) == (1024, len(TEXT), 0)
    verify_text(TEXT, location, WHERE)


# --- the text itself


@given(st.integers(0, 8 * len(TEXT) - 1))
def test_a_flipped_bit_of_the_text_is_found(bit):
    text = bytearray(TEXT)
    text[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadChecksum, match="Metadata text at byte 4096"):
        verify_text(bytes(text), text_location(SMALL, 4608, TEXT), WHERE)


@pytest.mark.parametrize("text", [b"a", b"a\0b\0", b"a\0\0", b"\0a"])
def test_a_text_that_does_not_end_in_its_only_nul_is_malformed(text):
    with pytest.raises(Malformed, match="it does not end with its first NUL"):
        verify_text(text, text_location(SMALL, 4608, text), WHERE)


@given(st.binary(min_size=88, max_size=88))
def test_whatever_a_sealed_header_holds_it_is_read_or_refused(content):
    data = bytearray(512)
    data[4:92] = content
    struct.pack_into("<I", data, 0, build_lvm.crc(bytes(data[4:])))

    with pytest.raises(FormatError):
        parse_mda(bytes(data), AREA, WHERE)
