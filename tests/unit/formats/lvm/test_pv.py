# SPDX-License-Identifier: LGPL-2.1-only
"""A physical volume: its label, found where and when LVM finds it and made anew without losing a byte; the headers of
its metadata areas, and the text in the ring behind each (docs/formats/lvm.rst).
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import build_lvm
from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import (
    MdaHeader,
    RawLocation,
    find_label,
    mda_header,
    parse_label,
    parse_mda,
    text_ranges,
    verify_text,
)

WHERE, START = Place("/dev/sdc", 512), Place("/dev/sdc", 0)
PV_ID = "nXFYJpoRBjLp75i94cqU3vVrUa3sLAf9"
AREA, SMALL = Range(4096, 11530240), Range(4096, 8192)


def flipped(data, bit):
    data = bytearray(data)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


# --- labels

# of a 10 GiB LUN that LVM 2.03.16 made with a metadata area of 10 MiB (docs/formats/lvm.rst)
SECTOR = bytes.fromhex(
    "4c41 4245 4c4f 4e45 0100 0000 0000 0000"  # LABELONE | sector 1
    "4632 2f6e 2000 0000 4c56 4d32 2030 3031"  # CRC 0x6e2f3246 | contents at 32 | LVM2 001
    "6e58 4659 4a70 6f52 426a 4c70 3735 6939"  # nXFYJpoRBjLp75i9
    "3463 7155 3376 5672 5561 3373 4c41 6639"  # 4cqU3vVrUa3sLAf9
    "0000 0080 0200 0000 0000 b000 0000 0000"  # dev size | data 11534336
    "0000 0000 0000 0000 0000 0000 0000 0000"  # size 0   | end of data list
    "0000 0000 0000 0000 0010 0000 0000 0000"  # .        | mda 4096
    "00f0 af00 0000 0000 0000 0000 0000 0000"  # 11530240 | end of mda list
    "0000 0000 0000 0000 0200 0000 0100 0000"  # .        | ext version 2, USED
).ljust(512, b"\0")


def label_sector(number=1, areas=(AREA,), ext_version=2, tail=b""):
    return build_lvm.label_sector(build_lvm.Label(number, PV_ID, 10 << 30, 11534336, areas, ext_version, tail))


def start_with(**sectors):
    """The first four sectors of a device; `s1=...` is sector 1."""
    return b"".join(sectors.get(f"s{number}", bytes(512)) for number in range(4))


def patched(offset, form, value, sealed=True):
    sector = bytearray(SECTOR)
    struct.pack_into(form, sector, offset, value)
    return pv.sealed_label(bytes(sector)) if sealed else bytes(sector)


def test_a_label_that_real_lvm_wrote_is_read():
    label = parse_label(SECTOR, 1, WHERE)

    assert (label.pv_id, label.device_size, label.mdas) == (PV_ID, 10 << 30, (AREA,))
    assert (label.number, label.offset) == (1, 512)


@pytest.mark.parametrize("areas, ext_version, used", [(0, 0, 120), (1, 0, 136), (2, 0, 152), (1, 1, 160), (2, 2, 176)])
def test_lvms_own_content_ends_where_measured(areas, ext_version, used):
    sector = label_sector(areas=[AREA, Range(10726932480, 10485760)][:areas], ext_version=ext_version)

    assert parse_label(sector, 1, WHERE).used_end == used


def test_bootloader_areas_belong_to_lvms_content():
    assert parse_label(patched(144, "16s", struct.pack("<QQ", 1 << 20, 2 << 20)), 1, WHERE).used_end == 176


@pytest.mark.parametrize("number", range(4))
def test_a_label_is_searched_in_the_first_four_sectors(number):
    assert find_label(start_with(**{f"s{number}": label_sector(number)}), START).number == number
    assert find_label(bytes(2048) + SECTOR, START) is None


@pytest.mark.parametrize(
    "sectors, error, sentence",
    [
        ({"s1": label_sector(1), "s3": label_sector(3)}, Malformed, "sectors 1 and 3 both hold one"),
        # LVM takes the first for its type alone, and skips the second
        ({"s2": b"labelone" + label_sector(2)[8:]}, BadMagic, 'at byte 1024 of /dev/sdc: it begins with "labelone"'),
        ({"s1": patched(500, "<B", 1, sealed=False), "s2": label_sector(2)}, BadChecksum, "at byte 512 .* 0x6e2f3246"),
    ],
)
def test_two_labels_and_damaged_ones_are_refused(sectors, error, sentence):
    with pytest.raises(error, match="LVM label.* " + sentence):
        find_label(start_with(**sectors), START)


@pytest.mark.parametrize(
    "offset, form, value, error, sentence",
    [
        (24, "8s", b"LVM2 xxx", Unsupported, 'its type is "LVM2 xxx"'),  # hidden
        (8, "<I", 2, Malformed, "it says sector 2"),
        (20, "<I", 40, Malformed, "contents at 40"),
        (32, "32s", b"n" * 31 + b"$", FormatError, "PV id of the LVM label at byte 512 .* is not an LVM id"),
        (136, "<I", 3, Unsupported, "LVM label at byte 648 of /dev/sdc: its extension has version 3"),
        (72, "440s", b"\1" * 440, Truncated, "AreaEntry"),  # lists that never end
        (144, "368s", b"\1" * 368, Truncated, "AreaEntry|ExtensionHeader"),
        # LVM ends a list at the offset 0, whatever the size: its next list begins behind such an entry
        (
            96,
            "<Q",
            1,
            Malformed,
            "LVM label at byte 600 of .* area lists has the offset 0 and 1 ",
        ),
        (
            128,
            "<Q",
            1 << 63,
            Malformed,
            "LVM label at byte 632 of .* area lists has the offset 0",
        ),
        (152, "<Q", 4096, Malformed, "LVM label at byte 656 of .* area lists has the offset 0"),
    ],
)
def test_a_sealed_label_that_is_none_is_refused(offset, form, value, error, sentence):
    with pytest.raises(error, match=sentence):
        parse_label(patched(offset, form, value), 1, WHERE)


@given(st.integers(20 * 8, 512 * 8 - 1))
def test_every_flipped_bit_under_the_checksum_of_a_label_is_found(bit):
    with pytest.raises(BadChecksum):
        parse_label(flipped(SECTOR, bit), 1, WHERE)


@given(st.binary(min_size=480, max_size=480))
def test_whatever_a_sealed_label_holds_it_is_read_or_refused(content):
    sector = pv.sealed_label(SECTOR[:32] + content)

    try:
        label = parse_label(sector, 1, WHERE)
    except FormatError:
        return
    assert label.sector == sector


SECOND = Range(5767168, 5767168)


@pytest.mark.parametrize(
    "new, start, end", [({}, 0, 0), ({"pv_id": "A" * 32}, 0x20, 0x40), ({"mdas": (SECOND,)}, 0x68, 0x78)]
)
def test_another_id_or_area_changes_its_bytes_and_the_checksum_only(new, start, end):
    label = parse_label(SECTOR, 1, WHERE)

    sector = label.sector_with(**{"pv_id": label.pv_id, "mdas": label.mdas, **new})

    assert {at for at in range(512) if sector[at] != SECTOR[at]} <= {*range(0x10, 0x14), *range(start, end)}
    assert parse_label(sector, 1, WHERE)._replace(sector=b"") == label._replace(sector=b"", **new)
    assert (sector == SECTOR) == (not new)


@pytest.mark.parametrize("ext_version", [0, 1, 2])
def test_a_label_of_today_has_the_extension_of_lvm_2_02_143(ext_version):
    label = parse_label(label_sector(ext_version=ext_version), 1, WHERE)

    today = label.as_of_today(WHERE)

    assert today.sector[136:144] == struct.pack("<II", 2, 1)
    assert (today.pv_id, today.mdas, today.as_of_today(WHERE)) == (label.pv_id, label.mdas, today)


@pytest.mark.parametrize("number_of_bytes", [5, 8, 9, 23, 24])
def test_bytes_that_would_be_an_extension_or_a_list_of_today_are_refused(number_of_bytes):
    sector = bytearray(label_sector(ext_version=0))
    sector[136 + number_of_bytes - 1] = 1

    with pytest.raises(Unsupported, match="LVM label at byte 648 .* version 0, and the bytes behind are in use"):
        parse_label(pv.sealed_label(bytes(sector)), 1, WHERE)


@given(st.binary(min_size=64, max_size=64), st.sampled_from([0, 1, 2]))
def test_bytes_behind_lvms_content_survive(tail, ext_version):
    label = parse_label(label_sector(ext_version=ext_version, tail=tail), 1, WHERE)

    assert label.sector_with("B" * 32, (Range(8192, 4096),))[-64:] == tail


# --- headers of metadata areas

AT = Place("/dev/sdc", 4096)
TEXT = b"VG_XenStorage-x {\n}\n\0"


def header_with(*slots):
    return build_lvm.mda_header(AREA, slots)


def patched_header(offset, form, value):
    data = bytearray(header_with(build_lvm.raw_locn(512, TEXT)))
    struct.pack_into(form, data, offset, value)
    struct.pack_into("<I", data, 0, build_lvm.crc(bytes(data[4:])))
    return bytes(data)


@pytest.mark.parametrize(
    "area, location, crc",
    [
        (Range(4096, 11530240), {}, 0xD1266522),
        (Range(4096, 1044480), {}, 0xDB8ED616),
        (Range(10736369664, 1048576), {}, 0xD652E498),
        (Range(4096, 11530240), {"offset": 512, "size": 755, "crc": 0x2FB4DE18}, 0x040C1450),
    ],
)
def test_a_header_has_the_checksum_that_real_lvm_writes(area, location, crc):
    slots = [bytes(RawLocation.zero(**location))] if location else []

    mda = parse_mda(build_lvm.mda_header(area, slots), area, AT)

    assert mda.header.crc == crc
    assert bytes.fromhex("20 4c 56 4d 32 20 78 5b 35 41 25 72 30 4e 2a 3e") == pv.MDA_MAGIC


def test_a_header_is_read_with_its_two_slots():
    one, two = build_lvm.raw_locn(512, TEXT), build_lvm.raw_locn(1024, TEXT)

    mda = parse_mda(header_with(one, two), AREA, AT)

    assert (mda.committed.offset, mda.committed.size, mda.committed.crc) == (512, len(TEXT), build_lvm.crc(TEXT))
    assert bytes(mda.precommitted) == two
    assert (mda.has_text, mda.ignored) == (True, False)


@given(st.integers(4 * 8, 512 * 8 - 1))
def test_every_flipped_bit_under_the_checksum_of_a_header_is_found(bit):
    with pytest.raises(BadChecksum, match="Metadata area header at byte 4096 of /dev/sdc"):
        parse_mda(flipped(header_with(build_lvm.raw_locn(512, TEXT)), bit), AREA, AT)


@pytest.mark.parametrize(
    "offset, form, value, error, sentence",
    [
        (4, "<B", 0x21, BadMagic, 'it begins with "!LVM2 x'),
        (20, "<I", 2, Unsupported, "its version is 2"),
        (24, "<Q", 8192, Malformed, "it says 11530240 bytes at 8192"),
        (32, "<Q", 1044480, Malformed, "it says 1044480 bytes at 4096, the label says 11530240 bytes"),
    ],
)
def test_a_sealed_header_that_is_none_is_refused(offset, form, value, error, sentence):
    with pytest.raises(error, match=sentence):
        parse_mda(patched_header(offset, form, value), AREA, AT)


def test_a_new_header_empties_slot_1_and_keeps_what_nobody_knows():
    old = MdaHeader.at(patched_header(400, "8s", b"whatever")).replace(precommitted=b"\1" * 24)

    new = mda_header(AREA, AREA.offset + 1024, TEXT, old)

    mda = parse_mda(bytes(new), AREA, AT)
    assert bytes(mda.committed) == build_lvm.raw_locn(1024, TEXT)
    assert not any(bytes(mda.precommitted))
    assert new.rest == old.rest
    assert bytes(mda_header(AREA, AREA.offset + 1024, TEXT)) == header_with(build_lvm.raw_locn(1024, TEXT))


# --- texts


@pytest.mark.parametrize(
    "offset, size, expected",
    [
        (1024, 100, [Range(4096 + 1024, 100)]),
        (8192 - 60, 100, [Range(4096 + 8192 - 60, 60), Range(4096 + 512, 40)]),  # on behind the header
        (512, 7680, [Range(4096 + 512, 7680)]),
    ],
)
def test_a_text_lies_in_one_piece_or_wraps(offset, size, expected):
    assert text_ranges(SMALL, RawLocation.zero(offset=offset, size=size), AT) == expected


OUTSIDE = [(0, 10), (511, 10), (8192, 10), (512, 0), (512, 7681), ((1 << 64) - 1, 10)]


@pytest.mark.parametrize("offset, size", OUTSIDE)
def test_a_text_outside_the_ring_is_malformed(offset, size):
    with pytest.raises(Malformed, match=f"its text has {size} bytes at offset {offset} of an area of 8192"):
        text_ranges(SMALL, RawLocation.zero(offset=offset, size=size), AT)


@given(st.integers(0, 8 * len(TEXT) - 1))
def test_a_flipped_bit_of_the_text_is_found(bit):
    with pytest.raises(BadChecksum, match="Metadata text at byte 4096"):
        verify_text(flipped(TEXT, bit), RawLocation(build_lvm.raw_locn(512, TEXT)), AT)


@pytest.mark.parametrize("text", [b"a", b"a\0b\0", b"a\0\0", b"\0a"])
def test_a_text_that_does_not_end_in_its_only_nul_is_malformed(text):
    with pytest.raises(Malformed, match="it does not end with its first NUL"):
        verify_text(text, RawLocation(build_lvm.raw_locn(512, text)), AT)


def test_no_text_is_read_that_is_larger_than_what_lvm_writes_into_an_area_of_sm():
    area = Range(4096, 11530240)
    of_lvm, forged = (pv.RawLocation.zero(offset=512, size=size) for size in (5764352, (6 << 20) + 1))

    assert sum(part.length for part in pv.text_ranges(area, of_lvm, Place("/dev/sdc", 4096))) == 5764352
    with pytest.raises(Unsupported, match=r"it has 6291457 bytes, .*5764352"):
        pv.text_ranges(area, forged, Place("/dev/sdc", 4096))
