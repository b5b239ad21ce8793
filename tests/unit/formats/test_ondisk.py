# SPDX-License-Identifier: LGPL-2.1-only
"""A record is its bytes; a field is a window on them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relvmoiscsi.errors import BadMagic, Place, Truncated
from relvmoiscsi.formats import cbt, qcow2, vhd
from relvmoiscsi.formats.lvm import pv as lvm
from relvmoiscsi.formats.ondisk import (
    Record,
    be32,
    be64,
    expect_magic,
    le32,
    le64,
    raw,
    u8,
)
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

    values = record.as_dict()

    assert values == {
        "magic": b"\x00\x01\x02\x03",
        "flag": 4,
        "reserved": b"\x05\x06\x07",
        "small": 0x0B0A0908,
        "big": 0x0C0D0E0F,
        "far": 0x1716151413121110,
        "wide": 0x18191A1B1C1D1E1F,
    }


def test_a_field_of_the_class_knows_where_it_is():
    field = Sample.big

    assert (field.name, field.offset, field.size, field.end) == ("big", 12, 4, 16)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_replacing_a_field_changes_its_bytes_and_no_others(table, data):
    record = table(data.draw(st.binary(min_size=table.SIZE, max_size=table.SIZE)))
    field = data.draw(st.sampled_from(table.fields()))
    other = table(data.draw(st.binary(min_size=table.SIZE, max_size=table.SIZE)))

    changed = record.replace(**{field.name: getattr(other, field.name)})

    before, after, wanted = bytes(record), bytes(changed), bytes(other)
    assert after[field.offset : field.end] == wanted[field.offset : field.end]
    assert after[: field.offset] + after[field.end :] == before[: field.offset] + before[field.end :]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_what_was_read_is_written_back_byte_for_byte(table, data):
    content = data.draw(st.binary(min_size=table.SIZE, max_size=table.SIZE))

    record = table.at(b"before" + content + b"behind", 6)

    assert bytes(record) == content
    assert table.zero(**record.as_dict()) == record


def test_a_buffer_that_ends_early_is_truncated_at_its_place():
    where = Place("/dev/sdc", 4096)

    with pytest.raises(Truncated, match="Sample at byte 4096 of /dev/sdc: it needs 32 bytes, only 12 are there"):
        Sample.at(bytes(20), 8, where)


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_a_value_that_does_not_fit_is_not_cut(value):
    with pytest.raises(OverflowError):
        Sample.zero(small=value)


def test_bytes_of_another_length_are_not_padded():
    with pytest.raises(ValueError, match="magic: 3 bytes given, the field has 4"):
        Sample.zero(magic=b"abc")


def test_a_record_has_its_size():
    with pytest.raises(ValueError, match="Sample has 32 bytes, 31 given"):
        Sample(bytes(31))


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
