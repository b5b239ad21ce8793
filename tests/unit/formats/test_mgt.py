# SPDX-License-Identifier: LGPL-2.1-only
"""MGT, as every release since 6.0 wrote it: read in the form of SM alone, changed in place (docs/formats/sm.rst)."""

import re
from xml.dom import minidom
from xml.parsers.expat import ExpatError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.build_volumes import MgtSpec, Record, mgt_content
from kit.examples import examples
from relvmoiscsi.errors import FormatError, Malformed, Unsupported
from relvmoiscsi.formats.mgt import (
    changes,
    new_record,
    other_tags,
    read_length,
    read_mgt,
    slot_of,
    with_only,
    with_records,
    without_records,
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
EMPTY_TAGS = b"<initial_allocation></initial_allocation><allocation_quantum></allocation_quantum>"
#: as SM 1.12.0 to 1.15.1 wrote the sector of each new SR (XenServer 7.0)
DATA_OF_7_0 = DATA.replace(b"</allocation>" + b" " * len(EMPTY_TAGS), b"</allocation>" + EMPTY_TAGS)


def built(*records, bug=""):
    """An MGT volume of the builder; its bytes in use."""
    content = mgt_content(SIZE, MgtSpec(SR, "label", "", "thick", records, bug))
    return content.pieces[0][1].ljust(2048 + 1024 * len(records), b" ")[: 2048 + 1024 * len(records)]


def read(data=DATA, spare=b""):
    return read_mgt(data, spare)


def in_record(old, new, data=DATA):
    """The first `old` behind the SR's part becomes `new`; what follows stays where it is."""
    at = data.index(old, 2048)
    return (data[:at] + new + data[at + len(old) :]).ljust(4096)[:4096]


def applied(data, found):
    data = bytearray(data)
    for change in found:
        assert bytes(data[change.offset : change.offset + len(change.old)]) == change.old
        data[change.offset : change.offset + len(change.new)] = change.new
    return bytes(data)


def renamed(data):
    """The bytes under new UUIDs."""
    return applied(data, changes(read(data), read(data), NEW[SR], NEW))


# --- reading


def test_what_sm_wrote_is_read():
    mgt = read(DATA[: read_length(DATA, SIZE)])

    assert (mgt.length, mgt.sr_uuid) == (4096, SR)
    assert (mgt.name_label, mgt.name_description) == ("golden chain", "made for tests <&> é")
    first, second = mgt.records
    assert (first.uuid, first.name_label, first.name_description) == (DISK, "disk one é <x>", "d")
    assert (first.vdi_type, first.type, first.is_a_snapshot, first.deleted) == ("vhd", "user", False, False)
    assert (second.uuid, second.is_a_snapshot, second.snapshot_of) == (SNAPSHOT, True, DISK)
    assert mgt.live() == {DISK: first, SNAPSHOT: second}
    assert (mgt.broken, mgt.unread) == ([], [])


def test_empty_tags_of_an_allocation_that_sm_1_12_to_1_15_wrote_are_read_and_keep_their_bytes():
    mgt = read(DATA_OF_7_0)

    assert (mgt.sr_uuid, mgt.name_label, len(mgt.records), mgt.broken) == (SR, "golden chain", 2, [])
    assert EMPTY_TAGS in renamed(DATA_OF_7_0)[:1024]
    assert renamed(DATA_OF_7_0).replace(EMPTY_TAGS, b" " * len(EMPTY_TAGS)) == renamed(DATA)


@pytest.mark.parametrize(
    "header, length",
    [(b"XSSM:2048      :1:2", 2048), (b"XSSM:4194304   :1:3", SIZE)],
)
def test_the_length_in_the_header_is_the_bytes_in_use(header, length):
    assert read_length(header.ljust(512), SIZE + 4096) == length


@pytest.mark.parametrize(
    "header, error, sentence",
    [
        (b"XSSM\x00\x08\x00\x00\x01\x00\x02\x00", Unsupported, "the binary form of releases before 6.0"),
        (b"", Malformed, 'MGT header at byte 0 of MGT: it begins with "    "'),
        (b"XSSM:2048:1", Malformed, "it reads"),
        (b"XSSM:-2048:1:2", Malformed, "it reads"),
        ("XSSM:٢٠٤٨:1:2".encode(), Malformed, "it reads"),
        (b"XSSM:2048      :2:2", Unsupported, "its version is 2.2"),
        (b"XSSM:2048      :1:1", Unsupported, "its version is 1.1"),
        (b"XSSM:2048:1:2", Malformed, "it is not in the form of SM"),
        (b"XSSM:0000002048:1:2", Malformed, "it is not in the form of SM"),
        (b"XSSM:20\x0048     :1:2", Malformed, "it reads"),
        (b"XSSM:2048      :1:2" + bytes(493), Malformed, "it reads"),
        (b"XSSM:1024      :1:2", Malformed, "1024 of 4194304 bytes are in use"),
        (b"XSSM:2560      :1:2", Malformed, "2560 of 4194304 bytes are in use"),
        (b"XSSM:4195328   :1:2", Malformed, "4195328 of 4194304 bytes are in use"),
        (b"XSSM:" + b"9" * 400 + b":1:2", Malformed, "it reads .XSSM:999"),
    ],
)
def test_a_header_that_is_none_is_refused(header, error, sentence):
    with pytest.raises(error, match=sentence):
        read_length(header.ljust(512), SIZE)


def test_deleted_slots_are_read_and_do_not_count_even_with_the_uuid_of_a_live_record():
    mgt = read(built(Record(DISK, "old", deleted=True), Record(DISK, "disk"), Record(GONE, "gone", deleted=True)))

    assert [record.deleted for record in mgt.records] == [True, False, True]
    assert {uuid: record.name_label for uuid, record in mgt.live().items()} == {DISK: "disk"}


@pytest.mark.parametrize("snapshot_of, found", [("", ""), (GONE, GONE), ("OpaqueRef:NULL", "")])
def test_a_snapshot_is_of_a_uuid_or_of_nothing_that_means_something_here(snapshot_of, found):
    (record,) = read(built(Record(DISK, "snapshot", snapshot_of=snapshot_of, is_a_snapshot=True))).records

    assert record.snapshot_of == found


@pytest.mark.parametrize(
    "label, broken",
    [("x" * 219 + "&", [2048]), ("&" * 300, [2048]), ("é" * 300, []), ("<" * 89, [2048]), ("x\uffff", [2048])],
)
def test_a_label_is_read_that_sm_cuts_to_its_room_and_cannot_read_itself(label, broken):
    mgt = read(built(Record(DISK, label, "y" * 300)))

    (record,) = mgt.records
    assert (record.uuid, mgt.broken, mgt.unread) == (DISK, broken, [])
    assert label.startswith(re.sub("&[alg]?m?t?$", "", record.name_label))


def test_an_sr_is_read_whose_label_sm_has_cut_inside_an_entity():
    mgt = read(built(Record(DISK, "disk")).replace(b"<name_label>label<", b"<name_label>RD&am<"))

    assert (mgt.sr_uuid, mgt.name_label, mgt.broken) == (SR, "RD&am", [512])
    assert [record.uuid for record in read(renamed(mgt.data)).records] == [NEW[DISK]]


@pytest.mark.parametrize("bug, broken", [("", []), ("shifted", []), ("damaged", [3072])])
def test_records_that_sm_3_0_shifted_or_blanked_are_read_and_change_where_they_are(bug, broken):
    data = built(Record(DISK, "é漢字 0"), Record(SNAPSHOT, "é漢字 1", snapshot_of=DISK), bug=bug)

    before, after = read(data), read(renamed(data))

    assert [record.uuid for record in before.records] == [DISK, SNAPSHOT]
    assert before.broken == broken and (broken or before.records[1].name_label == "é漢字 1")
    assert [record.uuid for record in after.records] == [NEW[DISK], NEW[SNAPSHOT]]
    assert after.records[1].snapshot_of == NEW[DISK]


def test_text_is_stripped_as_sm_does_and_bytes_that_are_no_utf_8_are_shown():
    data = in_record(b"<name_label>disk", b"<name_label>\xc2\xa0\td\r\ns")

    assert (
        read(data[:2048] + data[2048:3072].rstrip(b" ").ljust(1024) + DATA[3072:]).records[0].name_label
        == "d\ns one é <x>"
    )
    assert read(in_record(b"\xc3\xa9", b"\xc3\xff")).records[0].name_label == "disk one \ufffd\ufffd <x>"


# --- refusing


@pytest.mark.parametrize("tag", [b"initial_allocation", b"allocation_quantum"])
def test_an_sr_of_the_xenvm_experiment_is_unsupported(tag):
    extra = b"<%s>16</%s>" % (tag, tag)

    with pytest.raises(Unsupported, match="MGT at byte 7.. of MGT: the SR was made by the xenvm experiment"):
        read(DATA[:700] + extra + DATA[700 + len(extra) :])


@pytest.mark.parametrize(
    "old, new, links",
    [
        (b"<uuid>7d2d", b"<uuid>7D2D", []),
        (b"<deleted>0</deleted>", b" " * 20, [DISK]),
        (b"<snapshot_of></snapshot_of>", b"<snapshot_of>x</snapshot_of>", [DISK]),
        (b"<type>user</type>", b"<deleted>0</deleted>", [DISK]),
        (b"</uuid>", b"<uuid>", [DISK]),
        (b"<uuid>7", b"<uuid>\0\xc2\xa07", [DISK]),
    ],
)
def test_a_record_that_sm_cannot_read_keeps_its_bytes_but_for_the_uuids_in_it(old, new, links):
    slot = in_record(old, new)[2048:3072].replace(b"<vdi>", b"     ").rstrip(b" ").ljust(1024)
    mgt = read(DATA[:2048] + slot + DATA[3072:])

    assert [record.uuid for record in mgt.records] == [SNAPSHOT]
    assert mgt.broken == mgt.unread == [2048]
    assert [(slot_of(at), uuid) for at, uuid in mgt.links.items()] == [(2048, uuid) for uuid in links]
    changed = {change.offset: change.new.decode() for change in changes(mgt, mgt, NEW[SR], NEW)}
    assert [changed[at] for at in mgt.links] == [NEW[uuid] for uuid in links]


OF_POOL = b"<metadata_of_pool>OpaqueRef:1a2b</metadata_of_pool>"


@pytest.mark.parametrize(
    "old, new",
    [
        (OF_POOL, OF_POOL.replace(b"_pool>", b"_pool >")),
        (OF_POOL, OF_POOL.replace(b"<metadata_of_pool", b"<metadata_of_pool a=''")),
        (OF_POOL, OF_POOL.replace(b"Op", b"<!-- -->Op")),
        (OF_POOL, OF_POOL.replace(b"Op", b"<![CDATA[]]>Op")),
        (OF_POOL, OF_POOL.replace(b"data_", b"data\0_")),
        (OF_POOL, b"<metadata_of_pool />" + OF_POOL),
        (OF_POOL, OF_POOL * 2),
        (b"<deleted>0</deleted>", b"<deleted>1</deleted><deleted>0</deleted>"),
        (b"<deleted>0</deleted>", b"<deleted>00</deleted>"),
        (b"<deleted>0</deleted>", b"<deleted>&#48;</deleted>"),
        (b"<deleted>0</deleted>", b"<deleted></deleted> "),
        (b"<deleted>0</deleted>", b"<deleted> 0 </deleted>"),
        (b"<managed>1", b"<managed>00"),
        (b"<is_a_snapshot>0", b"<is_a_snapshot>2"),
        (b"<type>user", b"<type>us\0er"),
        (b"<type>user</type>", b""),
        (b"<offset>", b"<x></x><offset>"),
        (b"disk one", b"di\0sk one"),
        (b"disk one", b"disk > one"),
        (b"disk one", b"disk &#65; one"),
        (b"<vdi>", b"<vdi>x"),
        (b"<vdi>", b"x<vdi>"),
        (b"<uuid>7d2d", b"<uuid>\x007d2d"),
        (b"<uuid>7d2d", b"<uuid>\xc2\xa07d2d"),
        (b"<uuid>7d2d", b"<uuid>&#x37;d2d"),
        (b"<deleted>0</deleted>", b" " * 20),
        (b"<vdi>", b"<vdi a=''>"),
        (b"<vdi>", b"<vdi xmlns='x'>"),
        (b"<uuid>7d2d", b"<uuid>7D2D"),
        (b"<snapshot_of></snapshot_of>", b"<snapshot_of>x</snapshot_of>"),
        (b"</vdi>", b"</vdi><vdi></vdi>"),
    ],
)
def test_a_record_that_sm_reads_and_that_is_not_in_the_form_of_sm_is_unsupported(old, new):
    """SM reads with an XML parser, for example for which pool a VDI holds the database."""
    slot = DATA[2048:3072].replace(b"<metadata_of_pool></metadata_of_pool>", OF_POOL)
    slot = slot.replace(b"<deleted>0</deleted>", b"<deleted>0</deleted><offset>2048</offset>")
    assert old in slot
    with pytest.raises(Unsupported, match="MGT record at byte 2048 of MGT: it is XML, and not in the form of SM"):
        read(DATA[:2048] + slot.replace(old, new).rstrip(b" ").ljust(1024) + DATA[3072:])


@pytest.mark.parametrize(
    "old, new",
    [
        (b"</uuid>", b"</uuid><uuid a=''>" + SNAPSHOT.encode() + b"</uuid>"),
        (b"</uuid>", b"</uuid><uuid>" + SR.encode() + b"</uuid>"),
        (b"<uuid>", b"<uuid>\0"),
        (b"<uuid>f", b"<uuid>&#102;"),
        (b"<allocation>", b"x<allocation>"),
        (b"</name_label>", b"</name_label><name_label >other</name_label>"),
        (b'<?xml version="1.0" ?>', b'<?xml version="1.1" ?>'),
        (b"</allocation>", b"</allocation>" + EMPTY_TAGS[:41]),
        (b"</allocation>", b"</allocation>" + EMPTY_TAGS[41:]),
        (b"</allocation>", b"</allocation>" + EMPTY_TAGS[41:] + EMPTY_TAGS[:41]),
        (b"</allocation>", b"</allocation> " + EMPTY_TAGS),
        (b"<name_label>", EMPTY_TAGS + b"<name_label>"),
        (b"</allocation>", b"</allocation>" + EMPTY_TAGS * 2),
    ],
)
def test_an_sr_part_that_sm_reads_and_that_is_not_in_the_form_of_sm_is_unsupported(old, new):
    part = DATA[512:2048].replace(old, new).rstrip(b" ").ljust(1536)
    with pytest.raises(Unsupported, match="MGT record at byte 512 of MGT: it is XML, and not in the form of SM"):
        read(DATA[:512] + part + DATA[2048:])


def test_two_live_records_of_one_vdi_are_malformed():
    """The scan of SM fails with them, and leaves the pool's database in the first."""
    with pytest.raises(Malformed, match=f"byte 3072 of MGT: it is a second live record of VDI {DISK}; the .* 2048"):
        read(in_record(SNAPSHOT.encode(), DISK.encode()))


def parsed(part):
    """The tags of a part of MGT as SM's drivers/metadata.py reads them, with its parser."""

    def walked(parent):
        tags = {}
        for node in parent.childNodes:
            if node.nodeType == node.ELEMENT_NODE:
                texts = (child.nodeValue.strip() for child in node.childNodes if child.nodeType == child.TEXT_NODE)
                tags[node.nodeName] = "".join(texts) or walked(node) or ""
        return tags

    return walked(minidom.parseString(b"<m>" + part.replace(b"\0", b"") + b"</m>").documentElement)


def as_sm_reads(data):
    """MGT as SM's drivers/srmetadata.py reads it: the tags of the SR, and those of each slot; None for an exception."""
    try:
        found = [parsed(data[534:2048])]
        for offset in range(2048, len(data), 1024):
            found.append(parsed(data[offset : offset + 1024])["vdi"])
            found[-1]["deleted"], found[-1]["uuid"]
        return found
    except (ExpatError, KeyError, TypeError):
        return None


PARTS = [
    *(b"<", b">", b"/", b" ", b"\0", b"<a/>", b"<!---->", b"<?x?>", b"&#48;", b"</vdi>", b"<vdi>", b"&", b"<![CDATA["),
    *(b"]]>", b"<deleted>1</deleted>", b"<deleted >0</deleted>", OF_POOL, OF_POOL.replace(b"_pool>", b"_pool >")),
    *(b"\xc2\xa0", b"\x01", b"\r\n", b"\t", b"&#160;", b"&#x37;", b"&amp;", b"&am", b"0", b"1", b"x", b"\xef\xbf\xbf"),
    *(b"<uuid>" + DISK.encode() + b"</uuid>", b"<uuid >" + SNAPSHOT.encode() + b"</uuid>", b"<type >user</type>"),
    *(EMPTY_TAGS, b"<name_label >x</name_label>", b"<managed>0</managed>", b"<offset>2048</offset>", b"<snapshot_of>"),
]
EDGES = sorted({at for tag in re.finditer(rb"<[^>]*>", DATA) for at in tag.span()})
NOISE = st.lists(st.sampled_from(PARTS) | st.binary(max_size=3), max_size=3).map(b"".join)
CHANGED_PLACES = st.lists(st.tuples(st.sampled_from(EDGES) | st.integers(512, 4095), NOISE), max_size=2)


@given(
    CHANGED_PLACES,
    st.sampled_from([b"", b"<managed>", b"<is_a_snapshot>", b"<deleted>"]),
    st.booleans(),
    st.sampled_from([DATA, DATA_OF_7_0]),
)
@settings(max_examples=examples(3000))
def test_what_sm_reads_is_what_is_read_here_before_and_after_a_resignature(places, flag, of_one_vdi, data):
    data = data.replace(b"<uuid>" + SNAPSHOT.encode(), b"<uuid>" + DISK.encode()) if of_one_vdi else data
    data = data.replace(flag + b"0", flag + b"1") if flag else data
    for at, noise in places:
        start = max(start for start in (512, 1024, 1536, 2048, 3072) if start <= at)
        end = start + (512 if start < 2048 else 1024)
        data = data[:start] + (data[start:at] + noise + data[at:end])[: end - start] + data[end:]
    of_sm = as_sm_reads(data)
    try:
        mgt = read(data)
    except FormatError:
        return
    assert bool(mgt.broken) == (of_sm is None), "the SR is told as one that SM cannot read"
    if of_sm is None:
        return
    sr, *records = of_sm
    assert (mgt.sr_uuid, mgt.name_label, mgt.name_description) == (sr["uuid"], sr["name_label"], sr["name_description"])
    assert len({tags["uuid"] for tags in records if tags["deleted"] != "1"}) == len(mgt.live())
    for record, tags in zip(mgt.records, records):
        for name in ("uuid", "name_label", "name_description", "type", "vdi_type"):
            assert getattr(record, name) == tags[name]
        for name in ("is_a_snapshot", "managed"):
            assert getattr(record, name) == bool(int(tags[name]))
        assert record.deleted == (tags["deleted"] == "1")
        assert record.snapshot_of == tags.get("snapshot_of", "")
        assert record.metadata_of_pool == tags.get("metadata_of_pool", "")
    mapped = [{name: NEW.get(text, text) for name, text in tags.items()} for tags in of_sm]
    assert as_sm_reads(renamed(data)) == mapped


def test_an_sr_part_without_uuid_is_malformed():
    with pytest.raises(Malformed, match="MGT record at byte 512 of MGT: it does not read as the record of an SR"):
        read(DATA.replace(b"<uuid>f035", b"<xxxx>f035"))


@given(st.integers(0, 4000), st.binary(min_size=1, max_size=40))
@settings(max_examples=examples(300))
def test_any_bytes_in_it_are_read_or_refused(offset, noise):
    data = (DATA[:offset] + noise + DATA[offset + len(noise) :])[:4096]

    try:
        mgt = read(data[: read_length(data, SIZE)])
    except FormatError:
        return
    assert len(mgt.records) <= 2


# --- changing


def test_uuids_change_in_place_and_nothing_else_does():
    found = changes(read(), read(), NEW[SR], NEW)

    expected = DATA
    for old, new in NEW.items():
        expected = expected.replace(old.encode(), new.encode())
    assert applied(DATA, found) == expected
    assert (len(found), found[0].what) == (4, "MGT: UUID of the SR")


def test_of_a_deleted_and_a_live_record_of_one_vdi_both_change():
    mgt = read(in_record(b"<deleted>0", b"<deleted>1", in_record(SNAPSHOT.encode(), DISK.encode())))

    assert mgt.live()[DISK].offset == 3072
    assert [change.new.decode() for change in changes(mgt, mgt, NEW[SR], NEW)].count(NEW[DISK]) == 3


def test_a_reference_and_a_uuid_in_a_label_stay():
    record = Record(DISK, "copy of " + GONE, snapshot_of="OpaqueRef:NULL", metadata_of_pool="OpaqueRef:NULL")

    after = renamed(built(record))

    assert after.count(b"OpaqueRef:NULL") == 2
    assert ("copy of " + GONE).encode() in after


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (b"", b"", []),
        (DISK.encode(), NEW[DISK].encode(), []),
        (b"<type>user</type>", b"<type>used</type>", ["type"]),
        (b"<snapshot_time></snapshot_time>", b"<offset>3072</offset>", ["offset", "snapshot_time"]),
        (b"</vdi> ", b"</vdi>\0", []),
    ],
)
def test_records_are_compared_by_the_tags_that_are_no_uuids(old, new, expected):
    before, after = read(), read(in_record(old, new))

    assert other_tags(before, before.records[0], after, after.records[0]) == expected


# --- records that are added and freed

BASE = "33333333-4444-4555-8666-777777777777"
NEW_BASE = {BASE: new_record(BASE, "base copy", "vhd", managed=False)}
ROOM = b"\xee" * 2048


def test_a_slot_that_the_work_leaves_alone_changes_in_its_uuids_only():
    """Somebody else may have written the rest of it."""
    before, after = read(), read(in_record(b"<type>user", b"<type>none"))

    found = changes(before, after, NEW[SR], NEW)

    of_snapshot = [(change.offset, len(change.new)) for change in found if change.offset >= 3072]
    assert [len(change.new) for change in found if 2048 <= change.offset < 3072] == [1024]
    assert len(of_snapshot) == 2 and {length for _, length in of_snapshot} == {36}
    assert applied(DATA, found) == renamed(after.data)


def final(before, after):
    """The bytes of MGT once every change between the two is made."""
    found = changes(before, after, SR, {uuid: uuid for uuid in [*NEW, BASE]})
    return applied(before.data + before.spare, found)


def test_a_record_goes_behind_the_last_one_and_the_length_grows():
    mgt = read(spare=ROOM)

    after, left_over = with_records(mgt, NEW_BASE, SIZE)

    record = after.live()[BASE]
    assert left_over == []
    assert (record.offset, record.name_label, record.type, record.vdi_type) == (4096, "base copy", "user", "vhd")
    assert b"<read_only>1</read_only><managed>0</managed>" in after.data[4096:]
    assert read_length(after.data, SIZE) == 5120
    assert final(mgt, after) == after.data + ROOM[1024:]
    assert after.data[512:4096] == DATA[512:4096]


def test_a_record_takes_the_first_free_slot():
    mgt = read(in_record(b"<deleted>0", b"<deleted>1"), ROOM)

    after, left_over = with_records(mgt, NEW_BASE, SIZE)

    assert (left_over, after.length, after.live()[BASE].offset) == ([], mgt.length, 2048)
    assert final(mgt, after) == after.data + ROOM


def test_a_freed_record_is_marked_as_sm_marks_it():
    mgt = read()

    after = without_records(mgt, [DISK])

    assert DISK not in after.live() and SNAPSHOT in after.live()
    assert [at for at in range(4096) if after.data[at] != DATA[at]] == [DATA.index(b"<deleted>0") + 9]
    assert final(mgt, after) == after.data


# --- one VDI


def test_only_the_record_of_one_vdi_stays_with_its_labels():
    mgt = read(spare=ROOM)

    after = with_only(mgt, DISK, "vhd")

    assert list(after.live()) == [DISK] and len(after.records) == 1
    assert after.live()[DISK].name_label == "disk one \xe9 <x>"
    assert after.data[512:] == DATA[512:3072]
    assert read_length(after.data, SIZE) == 3072
    assert (after.data + after.spare)[3072:] == DATA[3072:] + ROOM
    assert final(mgt, after) == after.data + after.spare, "every byte of the change is told"


def test_it_moves_to_the_first_slot_is_no_snapshot_any_more_and_has_the_type_of_its_volume():
    found = with_only(read(spare=ROOM), SNAPSHOT, "aio")

    (record,) = found.records
    assert (record.uuid, record.offset, record.is_a_snapshot, record.snapshot_of) == (SNAPSHOT, 2048, False, "")
    assert (record.name_label, record.vdi_type) == ("disk one \xe9 <x>", "aio")
    assert b"<managed>1</managed>" in found.data[2048:]


IN_USE_IS_THE_HEAD = DATA[:2048].replace(b":4096 ", b":2048 ")
DELETED = in_record(b"<deleted>0", b"<deleted>1")


@pytest.mark.parametrize("data, uuid", [(DATA, GONE), (IN_USE_IS_THE_HEAD, DISK), (DELETED, DISK)])
def test_a_vdi_without_a_live_record_gets_a_new_one(data, uuid):
    (record,) = with_only(read(data, ROOM), uuid, "vhd").records

    assert (record.uuid, record.offset, record.name_label, record.deleted) == (uuid, 2048, "", False)
    assert (record.type, record.vdi_type, record.is_a_snapshot) == ("user", "vhd", False)


@pytest.mark.parametrize("padding", [b" ", b"\0"])
def test_a_record_gets_the_longer_type_of_its_volume_in_place_of_padding(padding):
    data = in_record(b"<vdi_type>vhd", b"<vdi_type>aio")
    at = data.index(b"</vdi>", 2048) + len(b"</vdi>")
    data = data[:at].ljust(3072, padding) + data[3072:]

    after = with_only(read(data, ROOM), DISK, "qcow2")

    assert [(one.uuid, one.vdi_type) for one in after.records] == [(DISK, "qcow2")]
    assert after.length == len(after.data) == 3072 and not after.unread


def test_a_record_without_room_for_the_type_of_its_volume_is_told_as_such():
    slot = DATA[2048:3072].rstrip(b" ")
    full = DATA[:2048] + slot.replace(b">d<", b">" + b"d" * (1025 - len(slot)) + b"<") + DATA[3072:]

    with pytest.raises(Malformed, match=f"MGT record at byte 2048 of MGT: the record of VDI {DISK} fills its 1024"):
        with_only(read(full, ROOM), DISK, "qcow2")
