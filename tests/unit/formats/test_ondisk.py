# SPDX-License-Identifier: LGPL-2.1-only
"""A record is its bytes, and a field a window on them.

Checksums of what real LVM and vhd-util wrote are those of lvm/test_pv.py and test_vhd.py.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relvmoiscsi.errors import Place, Truncated
from relvmoiscsi.formats import cbt, qcow2, vhd
from relvmoiscsi.formats.lvm import pv as lvm
from relvmoiscsi.formats.ondisk import Record, be32, be64, le32, le64, raw, u8
from relvmoiscsi.resignature.protocol import commit_record, journal

TABLES = [
    value
    for module in (lvm, vhd, qcow2, cbt, commit_record, journal)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Record) and value.SIZE and value.__module__ == module.__name__
]


class Sample(Record, size=32):
    magic = raw(0, 4)
    flag = u8(4)
    reserved = raw(5, 3)
    small = le32(8)
    big = be32(12)
    far = le64(16)
    wide = be64(24)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_replacing_a_field_changes_its_bytes_and_no_others(table, data):
    content, other = (data.draw(st.binary(min_size=table.SIZE, max_size=table.SIZE)) for _ in range(2))
    record, field = table.at(b"before" + content + b"behind", 6), data.draw(st.sampled_from(table.fields()))
    assert (
        bytes(record) == content
        and table.zero(**{field.name: getattr(record, field.name) for field in table.fields()}) == record
    ), "what is read is written back"

    changed = bytes(record.replace(**{field.name: getattr(table(other), field.name)}))

    assert changed == content[: field.offset] + other[field.offset : field.end] + content[field.end :]


def test_a_buffer_that_ends_early_is_truncated_at_its_place():
    where = Place("/dev/sdc", 4096)

    with pytest.raises(Truncated, match="Sample at byte 4096 of /dev/sdc: it needs 32 bytes, only 12 are there"):
        Sample.at(bytes(20), 8, where)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: Sample.zero(small=-1), "small: -1 does not fit into 4 bytes"),
        (lambda: Sample.zero(small=1 << 32), "small: 4294967296 does not fit into 4 bytes"),
        (lambda: Sample.zero(magic=b"abc"), "magic: 3 bytes given, the field has 4"),
        (lambda: Sample(bytes(31)), "Sample has 32 bytes, 31 given"),
    ],
)
def test_what_does_not_fit_is_neither_cut_nor_padded(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
