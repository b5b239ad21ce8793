# SPDX-License-Identifier: LGPL-2.1-only
"""A record is its bytes, and a field a window on them; checksums, against values that real LVM and vhd-util wrote."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relvmoiscsi.errors import BadMagic, Place, Truncated
from relvmoiscsi.formats import cbt, qcow2, vhd
from relvmoiscsi.formats.checksum import lvm_crc, vhd_checksum
from relvmoiscsi.formats.lvm import pv as lvm
from relvmoiscsi.formats.ondisk import Record, be32, be64, expect_magic, le32, le64, raw, u8
from relvmoiscsi.resignature.protocol import commit_record, journal

TABLES = [
    value
    for module in (lvm, vhd, qcow2, cbt, commit_record, journal)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Record) and value.__module__ == module.__name__
]


class Sample(Record, size=32):
    magic = raw(0, 4)
    flag = u8(4)
    reserved = raw(5, 3)
    small = le32(8)
    big = be32(12)
    far = le64(16)
    wide = be64(24)


def test_a_field_decodes_in_the_byte_order_of_its_type():
    record = Sample(bytes(range(32)))

    assert record.as_dict() == {
        "magic": b"\x00\x01\x02\x03",
        "flag": 4,
        "reserved": b"\x05\x06\x07",
        "small": 0x0B0A0908,
        "big": 0x0C0D0E0F,
        "far": 0x1716151413121110,
        "wide": 0x18191A1B1C1D1E1F,
    }
    field = Sample.big
    assert (field.name, field.offset, field.size, field.end) == ("big", 12, 4, 16)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_replacing_a_field_changes_its_bytes_and_no_others(table, data):
    content, other = (data.draw(st.binary(min_size=table.SIZE, max_size=table.SIZE)) for _ in range(2))
    record, field = table.at(b"before" + content + b"behind", 6), data.draw(st.sampled_from(table.fields()))
    assert bytes(record) == content and table.zero(**record.as_dict()) == record, "what is read is written back"

    changed = bytes(record.replace(**{field.name: getattr(table(other), field.name)}))

    assert changed == content[: field.offset] + other[field.offset : field.end] + content[field.end :]


def test_a_buffer_that_ends_early_is_truncated_at_its_place():
    where = Place("/dev/sdc", 4096)

    with pytest.raises(Truncated, match="Sample at byte 4096 of /dev/sdc: it needs 32 bytes, only 12 are there"):
        Sample.at(bytes(20), 8, where)


@pytest.mark.parametrize(
    "make, error, sentence",
    [
        (lambda: Sample.zero(small=-1), OverflowError, None),
        (lambda: Sample.zero(small=1 << 32), OverflowError, None),
        (lambda: Sample.zero(magic=b"abc"), ValueError, "magic: 3 bytes given, the field has 4"),
        (lambda: Sample(bytes(31)), ValueError, "Sample has 32 bytes, 31 given"),
    ],
)
def test_what_does_not_fit_is_neither_cut_nor_padded(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


def test_records_are_equal_when_type_and_bytes_are():
    class Twin(Record, size=32):
        all = raw(0, 32)

    one = Sample.zero(flag=1)

    assert one == Sample.zero(flag=1) and hash(one) == hash(Sample.zero(flag=1))
    assert one != Sample.zero() and one != Twin(bytes(one))
    assert repr(one).startswith("Sample(magic=b'\\x00\\x00\\x00\\x00', flag=1, ")


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"first": le32(0), "second": le32(8)}, "Table.second is at 8, expected 4"),
        ({"first": le32(0), "second": le32(2)}, "Table.second is at 2, expected 4"),
        ({"first": le32(0)}, "the fields of Table end at 4, its size is 12"),
    ],
    ids=["gap", "overlap", "early end"],
)
def test_fields_that_do_not_tile_a_record_make_none(fields, sentence):
    with pytest.raises(TypeError, match=sentence):
        type("Table", (Record,), fields, size=12)


def test_a_wrong_magic_says_what_was_found_and_what_is_expected():
    where = Place("/dev/sdc", 512)

    with pytest.raises(BadMagic, match=r"Label at byte 512 of /dev/sdc: it begins with b'ab', expected b'cd'\."):
        expect_magic("Label", where, b"ab", b"cd")


# --- checksums

LVM_CRCS = [(b"", 0xF597A6CF), (b"a", 0x319B1949), (b"123456789", 0x4991CF02), (bytes(492), 0x02C81F10)]


@pytest.mark.parametrize("data, crc", LVM_CRCS)
def test_the_lvm_checksum_gives_the_values_measured_with_real_lvm(data, crc):
    assert lvm_crc(data) == crc


@given(st.binary(max_size=300), st.integers(0, 300))
def test_the_lvm_checksum_goes_on_over_a_second_buffer(data, cut):
    assert lvm_crc(data[cut:], lvm_crc(data[:cut])) == lvm_crc(data)


# the first 84 bytes of a footer that vhd-util wrote (data/images/golden/chain.tar.xz); the rest of the sector is zero
FOOTER = bytes.fromhex(
    "636f6e6563746978 00000002 00010000"  # conectix, features, version
    "0000000000000200 3293a418 74617000"  # header at 512, timestamp, "tap"
    "00010003 00000000 0000000004000000"  # creator version, host, original size
    "0000000004000000 03c30811 00000004"  # current size, geometry, type 4
    "fffff10a bb471856a1ec42b89f0887c9"  # the checksum; uuid ...
    "217fda76"
).ljust(512, b"\0")


@given(st.binary(max_size=1024) | st.integers(0, 1024).map(lambda length: b"\xff" * length))
def test_the_vhd_checksum_is_the_complement_of_the_sum_of_all_other_bytes(data):
    assert vhd_checksum(FOOTER, 64) == int.from_bytes(FOOTER[64:68], "big") == 0xFFFFF10A, "as vhd-util wrote it"
    assert vhd_checksum(data, 64) == ~(sum(data[:64]) + sum(data[68:])) & 0xFFFFFFFF
