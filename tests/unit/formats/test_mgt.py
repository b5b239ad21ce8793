# SPDX-License-Identifier: LGPL-2.1-only
"""MGT, as every release since 6.0 wrote it: found tag by tag, changed in place (docs/formats/sm.rst)."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.build_volumes import MgtSpec, Record, mgt_content
from kit.examples import examples
from relvmoiscsi.errors import FormatError, Malformed, Unsupported
from relvmoiscsi.formats.mgt import (
    NewRecord,
    changes,
    changes_between,
    other_tags,
    read_length,
    read_mgt,
    with_only,
    with_records,
    without_record,
)

SIZE = 4 << 20
SR = "f0351b7a-1726-4201-9d84-792f2dd894f4"
DISK, SNAPSHOT = "7d2d9e72-1839-4ea5-85bd-6cecf8841738", "46ff1617-8121-4480-8d12-99227603d317"
GONE = "0a0b0c0d-0000-4000-8000-000000000001"
NEW = {
    SR: "11111111-2222-4333-8444-555555555555",
    DISK: "66666666-7777-4888-9999-aaaaaaaaaaaa",
    SNAPSHOT: "bbbbbbbb-cccc-4ddd-8eee-ffffffffffff",
    GONE: "22222222-3333-4444-8555-666666666666",
}

FIELDS = (
    b"<uuid>%s</uuid><is_a_snapshot>%d</is_a_snapshot><snapshot_of>%s</snapshot_of><snapshot_time></snapshot_time>"
    b"<type>user</type><vdi_type>vhd</vdi_type><read_only>0</read_only><managed>1</managed>"
    b"<metadata_of_pool></metadata_of_pool><deleted>0</deleted>%s</vdi>"
)

# sectors that SM 3.2.12 wrote (tests/data/images/golden/chain.tar.xz), padded with spaces
SECTORS = [
    b"XSSM:4096      :1:2",
    b'<?xml version="1.0" ?><uuid>f0351b7a-1726-4201-9d84-792f2dd894f4</uuid><allocation>thick</allocation>',
    b"<name_label>golden chain</name_label>",
    b"<name_description>made for tests &lt;&amp;&gt; \xc3\xa9</name_description>",
    b"<vdi><name_label>disk one \xc3\xa9 &lt;x&gt;</name_label><name_description>d</name_description>",
    FIELDS % (DISK.encode(), 0, b"", b""),
    b"<vdi><name_label>disk one \xc3\xa9 &lt;x&gt;</name_label><name_description></name_description>",
    FIELDS % (SNAPSHOT.encode(), 1, DISK.encode(), b"<offset>3072</offset>"),
]
DATA = b"".join(sector.ljust(512) for sector in SECTORS)


def built(*records, **options):
    """An MGT volume of the builder; its bytes in use."""
    spec = MgtSpec(SR, "label", "", "thick", records, options.get("bug", ""))
    content = mgt_content(SIZE, spec)
    return content.pieces[0][1].ljust(2048 + 1024 * len(records), b" ")[: 2048 + 1024 * len(records)]


def in_record(old, new, data=DATA):
    """The first `old` behind the SR's part becomes `new`; what follows stays where it is."""
    at = data.index(old, 2048)
    return (data[:at] + new + data[at + len(old) :]).ljust(4096)[:4096]


# --- reading


def test_what_sm_wrote_is_read():
    mgt = read_mgt(DATA[: read_length(DATA, SIZE, "MGT")], "MGT")

    assert (mgt.length, mgt.sr_uuid) == (4096, SR)
    assert (mgt.name_label, mgt.name_description) == ("golden chain", "made for tests <&> é")
    first, second = mgt.records
    assert (first.uuid, first.name_label, first.name_description) == (DISK, "disk one é <x>", "d")
    assert (first.vdi_type, first.type, first.is_a_snapshot, first.deleted) == ("vhd", "user", False, False)
    assert (second.uuid, second.is_a_snapshot, second.snapshot_of) == (SNAPSHOT, True, DISK)
    assert mgt.live() == {DISK: first, SNAPSHOT: second}
    assert mgt.damaged == []


@pytest.mark.parametrize(
    "header, length",
    [
        (b"XSSM:2048      :1:2", 2048),
        (b"XSSM:4194304   :1:2", 4194304 - 0),
        (b"XSSM:3072:1:3", 3072),
        (b"XSSM:3072      :1:2\0\0\0", 3072),
        (b"XSSM:0000003072:1:2", 3072),
    ],
)
def test_the_length_in_the_header_is_the_bytes_in_use(header, length):
    assert read_length(header.ljust(512), SIZE + 4096, "MGT") == length


@pytest.mark.parametrize(
    "header, error, sentence",
    [
        (b"XSSM\x00\x08\x00\x00\x01\x00\x02\x00", Unsupported, "the binary form of releases before 6.0"),
        (b"", Malformed, "MGT header at byte 0 of MGT: it begins with b'    '"),
        (b"xssm:2048:1:2", Malformed, "it begins with b'xssm'"),
        (b"XSSM:2048:1", Malformed, "it reads"),
        (b"XSSM:2048:1:2:3", Malformed, "it reads"),
        (b"XSSM::1:2", Malformed, "it reads"),
        (b"XSSM:-2048:1:2", Malformed, "it reads"),
        (b"XSSM:0x800:1:2", Malformed, "it reads"),
        (b"XSSM:20 48:1:2", Malformed, "it reads"),
        ("XSSM:٢٠٤٨:1:2".encode(), Malformed, "it reads"),
        (b"XSSM:2048:2:2", Unsupported, "its version is 2"),
        (b"XSSM:1024:1:2", Malformed, "1024 of 4194304 bytes are in use"),
        (b"XSSM:2560:1:2", Malformed, "2560 of 4194304 bytes are in use"),
        (b"XSSM:4195328:1:2", Malformed, "4195328 of 4194304 bytes are in use"),
        (b"XSSM:" + b"9" * 400 + b":1:2", Malformed, "bytes are in use"),
    ],
)
def test_a_header_that_is_none_is_refused(header, error, sentence):
    with pytest.raises(error, match=sentence):
        read_length(header.ljust(512), SIZE, "MGT")


def test_a_length_beyond_the_volume_is_malformed():
    with pytest.raises(Malformed, match="it says that 4096 of 3584 bytes are in use"):
        read_length(DATA, 3584, "MGT")


def test_deleted_slots_are_read_and_do_not_count():
    mgt = read_mgt(built(Record(DISK, "disk"), Record(GONE, "gone", deleted=True)), "MGT")

    assert [record.deleted for record in mgt.records] == [False, True]
    assert list(mgt.live()) == [DISK]


def test_a_deleted_slot_may_keep_the_uuid_of_a_live_record():
    mgt = read_mgt(built(Record(DISK, "old", deleted=True), Record(DISK, "disk")), "MGT")

    assert mgt.live()[DISK].name_label == "disk"


@pytest.mark.parametrize(
    "snapshot_of, found",
    [("", ""), (GONE, GONE), ("OpaqueRef:8a3b1f0e-1111-4222-8333-944445555666", ""), ("OpaqueRef:NULL", "")],
)
def test_a_snapshot_is_of_a_uuid_or_of_nothing_that_means_something_here(snapshot_of, found):
    (record,) = read_mgt(built(Record(DISK, "snapshot", snapshot_of=snapshot_of, is_a_snapshot=True)), "MGT").records

    assert record.snapshot_of == found


@pytest.mark.parametrize("label", ["x" * 219 + "&", "&" * 300, "é" * 300, "<" * 89, "漢字" * 90])
def test_a_label_cut_inside_an_entity_or_at_its_room_is_read(label):
    (record,) = read_mgt(built(Record(DISK, label, "y" * 300)), "MGT").records

    assert record.uuid == DISK
    assert label.startswith(re.sub("&[alg]?m?$", "", record.name_label))


def test_markup_in_a_label_is_text():
    label = f"</vdi><uuid>{GONE}</uuid> &amp; <deleted>1</deleted>"

    (record,) = read_mgt(built(Record(DISK, label, label)), "MGT").records

    assert (record.uuid, record.name_label, record.name_description) == (DISK, label, label)


def test_records_that_sm_3_0_shifted_are_read():
    records = [Record(uuid, f"é漢字 {n}") for n, uuid in enumerate((DISK, SNAPSHOT))]

    mgt = read_mgt(built(*records, bug="shifted"), "MGT")

    assert [(record.uuid, record.name_label) for record in mgt.records] == [(DISK, "é漢字 0"), (SNAPSHOT, "é漢字 1")]
    assert mgt.damaged == []


def test_a_record_whose_opener_sm_3_0_blanked_is_read_and_told():
    records = [Record(uuid, f"é漢字 {n}") for n, uuid in enumerate((DISK, SNAPSHOT))]

    mgt = read_mgt(built(*records, bug="damaged"), "MGT")

    assert [record.uuid for record in mgt.records] == [DISK, SNAPSHOT]
    assert mgt.damaged == [3072]


def test_text_is_stripped_as_sm_does():
    mgt = read_mgt(in_record(b"<name_label>disk one", b"<name_label> \t disk"), "MGT")

    assert mgt.records[0].name_label.startswith("disk")


def test_bytes_that_are_no_utf_8_are_shown_and_not_refused():
    mgt = read_mgt(in_record(b"\xc3\xa9", b"\xc3\xff"), "MGT")

    assert mgt.records[0].name_label == "disk one \ufffd\ufffd <x>"


# --- refusing


@pytest.mark.parametrize("tag", [b"initial_allocation", b"allocation_quantum"])
def test_an_sr_of_the_xenvm_experiment_is_unsupported(tag):
    extra = b"<%s>16</%s>" % (tag, tag)
    data = DATA[:700] + extra + DATA[700 + len(extra) :]

    with pytest.raises(Unsupported, match="MGT at byte 7.. of MGT: the SR was made by the xenvm experiment"):
        read_mgt(data, "MGT")


@pytest.mark.parametrize(
    "old, new, links",
    [
        (b"<uuid>7d2d", b"<uuid>7D2D", []),
        (b"<uuid>7d2d", b"<UUID>7d2d", []),
        (b"<deleted>0</deleted>", b" " * 20, [DISK]),
        (b"</vdi>", b"      ", [DISK]),
        (b"<snapshot_of></snapshot_of>", b"<snapshot_of>x</snapshot_of>", [DISK]),
        (b"<type>user</type>", b"<deleted>0</deleted>", [DISK]),
        (b"</uuid>", b"<uuid>", [DISK]),
    ],
)
def test_a_record_that_does_not_read_keeps_its_bytes_but_for_the_uuids_in_it(old, new, links):
    mgt = read_mgt(in_record(old, new), "MGT")

    assert [record.uuid for record in mgt.records] == [SNAPSHOT]
    assert [(slot.offset, [link.uuid for link in slot.links]) for slot in mgt.unread] == [(2048, links)]
    changed = {change.offset: change.new.decode() for change in changes(mgt, NEW[SR], NEW)}
    assert [changed[link.at] for link in mgt.unread[0].links] == [NEW[uuid] for uuid in links]


def test_of_two_records_of_one_vdi_the_last_counts_and_both_change():
    mgt = read_mgt(in_record(SNAPSHOT.encode(), DISK.encode()), "MGT")

    assert mgt.duplicates() == [DISK]
    assert mgt.live()[DISK].offset == 3072
    assert [change.new.decode() for change in changes(mgt, NEW[SR], NEW)].count(NEW[DISK]) == 3


def test_an_sr_part_without_uuid_is_malformed():
    with pytest.raises(Malformed, match="MGT record at byte 512 of MGT: its SR UUID is ''"):
        read_mgt(DATA.replace(b"<uuid>f035", b"<xxxx>f035"), "MGT")


@given(st.integers(0, 4000), st.binary(min_size=1, max_size=40))
@settings(max_examples=examples(300))
def test_any_bytes_in_it_are_read_or_refused(offset, noise):
    data = (DATA[:offset] + noise + DATA[offset + len(noise) :])[:4096]

    try:
        mgt = read_mgt(data[: read_length(data, SIZE, "MGT")], "MGT")
    except FormatError:
        return
    assert len(mgt.records) <= 2


# --- changing


def applied(data, found):
    data = bytearray(data)
    for change in found:
        assert bytes(data[change.offset : change.offset + len(change.old)]) == change.old
        data[change.offset : change.offset + len(change.new)] = change.new
    return bytes(data)


def test_uuids_change_in_place_and_nothing_else_does():
    found = changes(read_mgt(DATA, "MGT"), NEW[SR], NEW)

    expected = DATA
    for old, new in NEW.items():
        expected = expected.replace(old.encode(), new.encode())
    assert applied(DATA, found) == expected
    assert len(found) == 4
    assert found[0].what == "MGT: UUID of the SR"


def test_deleted_slots_and_links_to_what_is_gone_change_as_well():
    data = built(Record(GONE, "gone", deleted=True), Record(DISK, "disk", snapshot_of=GONE))

    mgt = read_mgt(applied(data, changes(read_mgt(data, "MGT"), NEW[SR], NEW)), "MGT")

    assert [record.uuid for record in mgt.records] == [NEW[GONE], NEW[DISK]]
    assert mgt.records[1].snapshot_of == NEW[GONE]


def test_a_reference_and_a_uuid_in_a_label_stay():
    record = Record(DISK, "copy of " + GONE, snapshot_of="OpaqueRef:NULL", metadata_of_pool="OpaqueRef:NULL")
    data = built(record)

    after = applied(data, changes(read_mgt(data, "MGT"), NEW[SR], NEW))

    assert after.count(b"OpaqueRef:NULL") == 2
    assert ("copy of " + GONE).encode() in after


def test_blanks_around_a_uuid_stay_where_they_are():
    data = in_record(b"<uuid>" + DISK.encode(), b"<uuid> \n" + DISK.encode())

    found = changes(read_mgt(data, "MGT"), NEW[SR], NEW)

    assert applied(data, found[:2]) == data.replace(SR.encode(), NEW[SR].encode()).replace(
        b"<uuid> \n" + DISK.encode(), b"<uuid> \n" + NEW[DISK].encode()
    )


@pytest.mark.parametrize("bug", ["", "shifted", "damaged"])
def test_positions_are_those_of_the_bytes_however_the_record_was_shifted(bug):
    data = built(Record(DISK, "é漢字"), Record(SNAPSHOT, "ü", snapshot_of=DISK), bug=bug)

    mgt = read_mgt(applied(data, changes(read_mgt(data, "MGT"), NEW[SR], NEW)), "MGT")

    assert [record.uuid for record in mgt.records] == [NEW[DISK], NEW[SNAPSHOT]]
    assert mgt.records[1].snapshot_of == NEW[DISK]


# --- records that are added and freed

BASE = NewRecord("33333333-4444-4555-8666-777777777777", "base copy", "user", "vhd", read_only=True, managed=False)
ROOM = b"\xee" * 2048


def final(before, after):
    """The bytes of MGT once every change between the two is made."""
    data = bytearray(before.data + before.spare)
    for change in changes_between(before, after, SR, {uuid: uuid for uuid in [*NEW, BASE.uuid]}):
        assert change.old == bytes(data[change.offset : change.offset + len(change.old)])
        data[change.offset : change.offset + len(change.new)] = change.new
    return bytes(data)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (b"", b"", []),
        (DISK.encode(), NEW[DISK].encode(), []),
        (b"<type>user</type>", b"<type> user </type>", []),
        (b"<type>user</type>", b"<type>used</type>", ["type"]),
        (b"<managed>1</managed><metadata_of_pool></metadata_of_pool>", b"<sharable>1</sharable>",
         ["managed", "metadata_of_pool", "sharable"]),
        (b"<name_label>disk one", b"<name_label>disk two", ["name_label"]),
        (b"</vdi> ", b"</vdi>!", []),
    ],
)  # fmt: skip
def test_records_are_compared_by_the_tags_that_are_no_uuids(old, new, expected):
    before, after = read_mgt(DATA, "MGT"), read_mgt(in_record(old, new), "MGT")

    assert other_tags(before, before.records[0], after, after.records[0]) == expected


def test_a_record_goes_behind_the_last_one_and_the_length_grows():
    mgt = read_mgt(DATA, "MGT", ROOM)

    after, left_over = with_records(mgt, [BASE], SIZE, "MGT")

    assert left_over == []
    record = after.live()[BASE.uuid]
    assert (record.offset, record.name_label, record.type, record.vdi_type) == (4096, "base copy", "user", "vhd")
    assert b"<read_only>1</read_only><managed>0</managed>" in after.data[4096:]
    assert read_length(after.data, SIZE, "MGT") == 5120
    assert final(mgt, after) == after.data + ROOM[1024:]
    assert after.data[512:4096] == DATA[512:4096]


def test_a_record_takes_the_first_free_slot():
    mgt = read_mgt(in_record(b"<deleted>0", b"<deleted>1"), "MGT", ROOM)

    after, left_over = with_records(mgt, [BASE], SIZE, "MGT")

    assert (left_over, after.length, after.live()[BASE.uuid].offset) == ([], mgt.length, 2048)
    assert final(mgt, after) == after.data + ROOM


def test_a_record_for_which_there_is_no_room_is_told():
    mgt = read_mgt(DATA, "MGT", ROOM)

    after, left_over = with_records(mgt, [BASE], mgt.length, "MGT")

    assert (after.data, left_over) == (DATA, [BASE])


def test_a_freed_record_is_marked_as_sm_marks_it():
    mgt = read_mgt(DATA, "MGT")

    after = without_record(mgt, DISK, "MGT")

    assert DISK not in after.live() and SNAPSHOT in after.live()
    assert [at for at in range(4096) if after.data[at] != DATA[at]] == [DATA.index(b"<deleted>0") + 9]
    assert final(mgt, after) == after.data


# --- one VDI

ONE = NewRecord(DISK, "", "user", "vhd", read_only=False, managed=True)


def test_only_the_record_of_one_vdi_stays_with_its_labels():
    mgt = read_mgt(DATA, "MGT", ROOM)

    after = with_only(mgt, ONE, "MGT")

    assert list(after.live()) == [DISK] and len(after.records) == 1
    assert after.live()[DISK].name_label == "disk one \xe9 <x>"
    assert after.data[512:] == DATA[512:3072]
    assert read_length(after.data, SIZE, "MGT") == 3072
    assert (after.data + after.spare)[3072:] == DATA[3072:] + ROOM


def test_it_moves_to_the_first_slot_and_is_no_snapshot_any_more():
    mgt = read_mgt(DATA, "MGT", ROOM)

    found = with_only(mgt, ONE._replace(uuid=SNAPSHOT), "MGT")
    record = found.live()[SNAPSHOT]

    assert (record.offset, record.is_a_snapshot, record.snapshot_of) == (2048, False, "")
    assert record.name_label == "disk one \xe9 <x>"
    slot = found.data[record.offset : record.offset + 1024]
    assert b"<managed>1</managed>" in slot


def test_its_type_is_that_of_the_volume():
    record = with_only(read_mgt(DATA, "MGT"), ONE._replace(vdi_type="aio"), "MGT").live()[DISK]

    assert record.vdi_type == "aio"


def test_a_vdi_without_a_record_gets_one():
    after = with_only(read_mgt(DATA, "MGT", ROOM), ONE._replace(uuid=GONE), "MGT")

    record = after.live()[GONE]
    assert list(after.live()) == [GONE]
    assert (record.offset, record.type, record.vdi_type, record.is_a_snapshot) == (2048, "user", "vhd", False)


def test_of_an_mgt_without_records_it_makes_one_with_a_record():
    mgt = read_mgt(DATA[:2048].replace(b":4096 ", b":2048 "), "MGT", ROOM)

    assert list(with_only(mgt, ONE, "MGT").live()) == [DISK]


def test_a_deleted_record_of_that_vdi_does_not_come_back():
    mgt = read_mgt(in_record(b"<deleted>0", b"<deleted>1"), "MGT", ROOM)

    record = with_only(mgt, ONE._replace(name_label=""), "MGT").live()[DISK]

    assert record.name_label == ""


def test_every_byte_of_the_change_is_told():
    mgt = read_mgt(DATA, "MGT", ROOM)

    after = with_only(mgt, ONE, "MGT")

    assert final(mgt, after) == after.data + after.spare
