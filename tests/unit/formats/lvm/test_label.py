# SPDX-License-Identifier: LGPL-2.1-only
"""The label: found where and when LVM finds it, verified, and made anew without losing a byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import build_lvm
from relvmoiscsi.device import Range
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Area, find_label, parse_label

WHERE = Place("/dev/sdc", 512)
START = Place("/dev/sdc", 0)
PV_ID = "nXFYJpoRBjLp75i94cqU3vVrUa3sLAf9"
AREA = Area(4096, 11530240)


def unhex(dump):
    """The bytes of a commented hex dump: offset, 16 bytes, comment; up to a sector of zeros behind."""
    rows = [line.split()[1:17] for line in dump.strip().splitlines()]
    return bytes.fromhex("".join("".join(row) for row in rows)).ljust(512, b"\0")


# a 10 GiB LUN that LVM 2.03.16 made with a metadata area of 10 MiB (docs/formats/lvm.rst)
SECTOR = unhex("""
0200: 4c 41 42 45 4c 4f 4e 45 01 00 00 00 00 00 00 00  LABELONE | sector 1
0210: 46 32 2f 6e 20 00 00 00 4c 56 4d 32 20 30 30 31  CRC 0x6e2f3246 | contents at 32 | LVM2 001
0220: 6e 58 46 59 4a 70 6f 52 42 6a 4c 70 37 35 69 39  nXFYJpoRBjLp75i9
0230: 34 63 71 55 33 76 56 72 55 61 33 73 4c 41 66 39  4cqU3vVrUa3sLAf9
0240: 00 00 00 80 02 00 00 00 00 00 b0 00 00 00 00 00  dev size | data 11534336
0250: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  size 0   | end of data list
0260: 00 00 00 00 00 00 00 00 00 10 00 00 00 00 00 00           | mda 4096
0270: 00 f0 af 00 00 00 00 00 00 00 00 00 00 00 00 00  11530240 | end of mda list
0280: 00 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00           | ext version 2, USED
""")


def label_sector(number=1, areas=(AREA,), ext_version=2, tail=b""):
    ranges = [Range(*area) for area in areas]
    return build_lvm.label_sector(build_lvm.Label(number, PV_ID, 10 << 30, 11534336, ranges, ext_version, tail))


def start_with(**sectors):
    """The first four sectors of a device; `s1=...` is sector 1."""
    return b"".join(sectors.get(f"s{number}", bytes(512)) for number in range(4))


def patched(offset, form, value, sealed=True):
    sector = bytearray(SECTOR)
    struct.pack_into(form, sector, offset, value)
    return pv.sealed_label(bytes(sector)) if sealed else bytes(sector)


# --- reading


def test_a_label_that_real_lvm_wrote_is_read():
    label = parse_label(SECTOR, 1, WHERE)

    assert label.pv_id == PV_ID
    assert label.device_size == 10 << 30
    assert label.mdas == (AREA,)
    assert (label.number, label.offset) == (1, 512)


@pytest.mark.parametrize(
    "areas, ext_version, used",
    [(0, 0, 120), (1, 0, 136), (2, 0, 152), (0, 2, 144), (1, 1, 160), (1, 2, 160), (2, 2, 176)],
)
def test_lvms_own_content_ends_where_measured(areas, ext_version, used):
    sector = label_sector(areas=[AREA, Area(10726932480, 10485760)][:areas], ext_version=ext_version)

    assert parse_label(sector, 1, WHERE).used_end == used


def test_bootloader_areas_belong_to_lvms_content():
    sector = bytearray(label_sector())
    struct.pack_into("<QQ", sector, 144, 1 << 20, 2 << 20)

    assert parse_label(pv.sealed_label(bytes(sector)), 1, WHERE).used_end == 176


@pytest.mark.parametrize("number", range(4))
def test_label_is_searched_in_the_first_four_sectors(number):
    start = start_with(**{f"s{number}": label_sector(number)})

    assert find_label(start, START).number == number


def test_no_sector_that_looks_like_a_label_is_no_label():
    assert find_label(bytes(2048), START) is None
    assert find_label(bytes(2048) + SECTOR, START) is None


def test_two_labels_are_refused():
    with pytest.raises(Malformed, match="sectors 1 and 3 both hold one"):
        find_label(start_with(s1=label_sector(1), s3=label_sector(3)), START)


def test_a_sector_that_lvm_takes_for_its_type_alone_is_a_damaged_label():
    with pytest.raises(BadMagic, match="LVM label at byte 1024 of /dev/sdc: it begins with b'labelone'"):
        find_label(start_with(s2=b"labelone" + label_sector(2)[8:]), START)


def test_a_label_with_a_wrong_checksum_is_not_skipped_as_lvm_does():
    with pytest.raises(BadChecksum, match="LVM label at byte 512 .* 0x6e2f3246"):
        find_label(start_with(s1=patched(500, "<B", 1, sealed=False), s2=label_sector(2)), START)


@given(st.integers(20 * 8, 512 * 8 - 1))
def test_every_flipped_bit_under_the_checksum_is_found(bit):
    sector = bytearray(SECTOR)
    sector[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadChecksum):
        parse_label(bytes(sector), 1, WHERE)


def test_a_hidden_label_is_unsupported():
    with pytest.raises(Unsupported, match="its type is b'LVM2 xxx'"):
        parse_label(patched(24, "8s", b"LVM2 xxx"), 1, WHERE)


@pytest.mark.parametrize("offset, value, sentence", [(8, 2, "it says sector 2"), (20, 40, "contents at 40")])
def test_a_label_that_says_it_lies_elsewhere_is_malformed(offset, value, sentence):
    with pytest.raises(Malformed, match=sentence):
        parse_label(patched(offset, "<I", value), 1, WHERE)


@pytest.mark.parametrize("pv_id", [bytes(32), b"n" * 31 + b"$", b"\xff" * 32])
def test_a_pv_id_of_other_characters_is_refused(pv_id):
    with pytest.raises(FormatError, match="PV id of the LVM label at byte 512 of /dev/sdc: .* is not an LVM id"):
        parse_label(patched(32, "32s", pv_id), 1, WHERE)


def test_an_extension_of_a_later_version_is_unsupported():
    with pytest.raises(Unsupported, match="LVM label at byte 648 of /dev/sdc: its extension has version 3"):
        parse_label(patched(136, "<I", 3), 1, WHERE)


@pytest.mark.parametrize("first", [72, 104, 144])
def test_a_list_that_never_ends_is_truncated_at_the_end_of_the_sector(first):
    sector = SECTOR[:first] + b"\1" * (512 - first)

    with pytest.raises(Truncated, match="AreaEntry|ExtensionHeader"):
        parse_label(pv.sealed_label(sector), 1, WHERE)


@given(st.binary(min_size=480, max_size=480))
def test_whatever_a_sealed_label_holds_it_is_read_or_refused(content):
    sector = pv.sealed_label(SECTOR[:32] + content)

    try:
        label = parse_label(sector, 1, WHERE)
    except FormatError:
        return
    assert label.sector == sector


# --- making


def test_another_pv_id_changes_the_id_and_the_checksum_only():
    label = parse_label(SECTOR, 1, WHERE)

    sector = label.sector_with(pv_id="A" * 32)

    changed = [at for at in range(512) if sector[at] != SECTOR[at]]
    assert set(changed) <= set(range(0x10, 0x14)) | set(range(0x20, 0x40))
    assert parse_label(sector, 1, WHERE)._replace(sector=b"") == label._replace(sector=b"", pv_id="A" * 32)


def test_other_metadata_areas_change_the_list_and_the_checksum_only():
    second = Area(5767168, 5767168)

    sector = parse_label(SECTOR, 1, WHERE).sector_with(mdas=(second,))

    changed = [at for at in range(512) if sector[at] != SECTOR[at]]
    assert set(changed) <= set(range(0x10, 0x14)) | set(range(0x68, 0x78))
    assert parse_label(sector, 1, WHERE).mdas == (second,)


def test_the_same_values_give_the_same_sector():
    label = parse_label(SECTOR, 1, WHERE)

    assert label.sector_with(label.pv_id, label.mdas) == SECTOR


def test_the_number_of_areas_cannot_change():
    with pytest.raises(ValueError, match="2 metadata areas given, the label has 1"):
        parse_label(SECTOR, 1, WHERE).sector_with(mdas=(AREA, AREA))


@pytest.mark.parametrize("ext_version", [0, 1, 2])
def test_a_label_of_today_has_the_extension_of_lvm_2_02_143(ext_version):
    label = parse_label(label_sector(ext_version=ext_version), 1, WHERE)

    today = label.as_of_today(WHERE)

    assert today.sector[136:144] == struct.pack("<II", 2, 1)
    assert (today.pv_id, today.mdas, today.as_of_today(WHERE)) == (label.pv_id, label.mdas, today)


@given(st.binary(min_size=64, max_size=64), st.sampled_from([0, 1, 2]))
def test_bytes_behind_lvms_content_survive(tail, ext_version):
    label = parse_label(label_sector(ext_version=ext_version, tail=tail), 1, WHERE)

    sector = label.sector_with("B" * 32, (Area(8192, 4096),))

    assert sector[-64:] == tail
