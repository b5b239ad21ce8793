# SPDX-License-Identifier: LGPL-2.1-only
"""VHDs in a volume: footers and header are verified, the parent's name changes in up to four places."""

import struct
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi.errors import BadChecksum, BadMagic, FormatError, Malformed, Truncated, Unsupported
from relvmoiscsi.formats.naming import RAW, VHD, ParentName
from relvmoiscsi.formats.vhd import (
    HEAD_BYTES,
    changes,
    located_parents,
    may_have_batmap,
    read_vhd,
    used_locators,
    verify_batmap_place,
)

NAME = "VHD-46ff1617-8121-4480-8d12-99227603d317"
SIZE = 8 << 20
SR, VDI, OTHER = (
    "f0351b7a-1726-4201-9d84-792f2dd894f4",
    "efd24831-00a5-4192-9633-f030a9710c2b",
    "0a0b0c0d-0000-4000-8000-000000000001",
)
NEW = {SR: "11111111-2222-4333-8444-555555555555", VDI: "66666666-7777-4888-9999-aaaaaaaaaaaa"}
PARENT = "VG_XenStorage--f0351b7a--1726--4201--9d84--792f2dd894f4-VHD--efd24831--00a5--4192--9633--f030a9710c2b"
CODECS = ("ascii", "utf-16-le", "utf-16-le")
TEXTS = [("file://./" + PARENT).encode("ascii")] + [(".\\" + PARENT).encode("utf-16-le")] * 2

# a snapshot made by SM 3.2.12 and vhd-util (tests/data/images/golden/chain.tar.xz); what is not shown is zero
FOOTER = bytes.fromhex(
    "636f6e6563746978 00000002 00010000"  # conectix, features, version
    "0000000000000200 3293a418 74617000"  # header at 512, timestamp, "tap"
    "00010003 00000000 0000000004000000"  # creator version, host, original size
    "0000000004000000 03c30811 00000004"  # current size, geometry, differencing
    "fffff10a bb471856a1ec42b89f0887c9"  # checksum; uuid ...
    "217fda76 00 00"  # ... saved state, hidden
).ljust(512, b"\0")
HEADER = (
    bytes.fromhex(
        "6378737061727365 ffffffffffffffff"  # cxsparse
        "0000000000000600 00010000 00100000"  # block table at 1536, version, 1048576 entries
        "00200000 ffffc975 e34c1594f5774ae5"  # blocks of 2 MiB, checksum, uuid of the parent's footer ...
        "bcf902c9027666e6 3293a415 00000000"  # ... its timestamp
    )
    + PARENT.encode("utf-16-be").ljust(512, b"\0")
    + bytes.fromhex(
        "4d616358 00000200 0000006e 00000000 0000000000420800"  # MacX: 110 bytes at 4327424
        "57326b75 00000200 000000ce 00000000 0000000000420a00"  # W2ku: 206 bytes at 4327936
        "57327275 00000200 000000ce 00000000 0000000000420c00"  # W2ru: 206 bytes at 4328448
    )
).ljust(1024, b"\0")
SECOND_LOCATOR_AT = 576 + 24


def sealed(data, at):
    total = ~(sum(data) - sum(data[at : at + 4])) & 0xFFFFFFFF
    return data[:at] + struct.pack(">I", total) + data[at + 4 :]


def patched(data, seal_at, *fields):
    data = bytearray(data)
    for offset, form, value in fields:
        struct.pack_into(form, data, offset, value)
    return sealed(bytes(data), seal_at)


def footer(*fields):
    return patched(FOOTER, 64, *fields)


def header(*fields):
    return patched(HEADER, 36, *fields)


def read(first=FOOTER, second=HEADER, last=None, size=SIZE, like=None):
    return read_vhd(first, second, first if last is None else last, NAME, size, like)


HIDDEN = footer((85, ">B", 1))
POISONED = footer((0, "8s", b"v_poison"))
KILLED = b"\xc7" * 512  # by tapdisk, which has the disk open
DYNAMIC = footer((60, ">I", 3)), header((40, "20s", b""), (64, "704s", b""))  # without a parent


# --- reading


def test_a_snapshot_that_sm_made_is_read():
    vhd, table = read(), read().block_table()

    assert vhd.parent == ParentName(SR, VHD, VDI)
    assert [(at // 24, one.code, one.data_offset, one.data_length) for at, one in used_locators(vhd.header)] == [
        (0, 0x4D616358, 4327424, 110),
        (1, 0x57326B75, 4327936, 206),
        (2, 0x57327275, 4328448, 206),
    ]
    assert (vhd.hidden, vhd.virtual_size) == (False, 64 << 20)
    assert located_parents(vhd, TEXTS, NAME) == [vhd.parent] * 3
    assert len(FOOTER) + len(HEADER) == HEAD_BYTES, "so much of a volume must be read"
    assert (table.offset, table.length) == (1536, 4 * 32), "the part of the table that the virtual disk needs"


def test_a_dynamic_vhd_has_no_parent_and_nothing_to_change():
    vhd = read(*DYNAMIC)

    assert (vhd.parent, vhd.locators) == (None, ())
    assert located_parents(vhd, [], NAME) == []
    assert changes(vhd, vhd, [], None, NEW, NAME, SIZE) == []


@pytest.mark.parametrize("text", [PARENT, "./" + PARENT, "file://" + PARENT, "file:///dev/mapper/" + PARENT])
def test_a_parents_name_may_be_a_url_a_path_or_plain(text):
    assert read(FOOTER, header((64, "512s", text.encode("utf-16-be")))).parent == ParentName(SR, VHD, VDI)


def test_hidden_is_a_byte_of_the_footer_which_old_creators_did_not_count():
    assert read(HIDDEN).hidden
    for creator in (0x00000001, 0x00010001):
        old = footer((32, ">I", creator))
        assert read(old[:85] + b"\1" + old[86:]).hidden
    # libvhd looks for "tap", too: from the end of the volume it would go to the copy
    other = footer((32, ">I", 0x00010001), (28, "4s", b"qemu"), (48, ">Q", 1 << 30))
    assert read(last=other).end_footer is not None
    assert read(last=other[:85] + b"\1" + other[86:]).end_footer is None
    with pytest.raises(BadChecksum, match="VHD footer copy at byte 0 of VHD-"):
        read(FOOTER[:85] + b"\1" + FOOTER[86:])


def test_a_locator_that_is_absent_is_skipped_wherever_it_stands():
    vhd = read(FOOTER, header((576, ">I", 0), (576 + 24 * 7, "24s", HEADER[576:600])))

    assert [locator.code for locator in vhd.locators] == [0x57326B75, 0x57327275, 0x4D616358]


def test_the_room_of_a_locator_counts_sectors_below_512():
    assert read(FOOTER, header((580, ">I", 1))).locators[0].data_length == 110


# --- two footers


def test_footers_may_differ_in_what_sm_writes_one_after_the_other():
    """A resize that was cut leaves two sizes, and tapdisk takes the last."""
    hidden, resized = read(HIDDEN, last=FOOTER), read(last=footer((48, ">Q", 96 << 20)))

    assert (hidden.footer.hidden, hidden.end_footer.hidden) == (1, 0)
    assert (resized.virtual_size, resized.footer.current_size) == (96 << 20, 64 << 20)


CUT_INFLATION, TORN = bytes(512), FOOTER[:100] + b"\7" + FOOTER[101:]


@pytest.mark.parametrize("last", [KILLED, CUT_INFLATION, b"conectix" + bytes(504), TORN])
def test_an_end_footer_that_is_not_valid_means_nothing(last):
    vhd = read(last=last)

    assert (vhd.end_footer, vhd.stale_end) == (None, None)
    assert (vhd.hidden, vhd.virtual_size, vhd.parent) == (False, 64 << 20, ParentName(SR, VHD, VDI))
    assert [change.offset for change in changes(vhd, vhd.with_hidden(True), [], None, NEW, NAME, SIZE)] == [0]


@pytest.mark.parametrize("field", [(68, "16s", b"another VHD"), (60, ">I", 3), (16, ">Q", 1024)])
def test_the_valid_footer_of_another_vhd_is_told_apart(field):
    vhd = read(last=footer(field))

    assert vhd.end_footer is None and vhd.stale_end is not None
    (change,) = changes(vhd, vhd._replace(end_footer=vhd.footer, stale_end=None), [], None, NEW, NAME, SIZE)
    assert (change.offset, change.old, change.new) == (SIZE - 512, footer(field), FOOTER)


@pytest.mark.parametrize("hidden", [True, False])
def test_the_hidden_flag_goes_into_both_footers_with_a_new_checksum(hidden):
    before, wanted = (FOOTER, HIDDEN) if hidden else (HIDDEN, FOOTER)
    vhd = read(before)

    found = changes(vhd, vhd.with_hidden(hidden), [], None, NEW, NAME, SIZE)

    assert [(change.offset, change.new) for change in found] == [(0, wanted), (SIZE - 512, wanted)]
    assert changes(vhd, vhd.with_hidden(not hidden), [], None, NEW, NAME, SIZE) == [], "it is so already"


# --- refusing


@given(st.sampled_from([FOOTER, HEADER]), st.data())
@settings(max_examples=examples(120))
def test_a_flipped_bit_of_a_footer_or_of_the_header_is_found(intact, more):
    bit = more.draw(st.integers(0, 8 * len(intact) - 1))
    data = bytearray(intact)
    data[bit // 8] ^= 1 << bit % 8

    with pytest.raises(FormatError):
        read(bytes(data), last=FOOTER) if intact is FOOTER else read(second=bytes(data))
    if intact is FOOTER:
        assert read(last=bytes(data)).end_footer is None


@pytest.mark.parametrize(
    "field, error, sentence",
    [
        ((0, "8s", b"v_poison"), Unsupported, "VHD footer copy at byte 0 of VHD-.* a resize of the VHD was cut"),
        ((0, "8s", b"conectiX"), BadMagic, "VHD footer copy at byte 0"),
        ((12, ">I", 0x00020000), Unsupported, "byte 12 of VHD-.*: its version is 0x00020000"),
        ((60, ">I", 2), Unsupported, "byte 60 of VHD-.*: its disk type is fixed"),
        ((16, ">Q", 1024), Unsupported, "byte 16 of VHD-.*: it puts the dynamic header at 1024"),
    ],
)
def test_a_footer_that_is_none_of_sms_is_refused(field, error, sentence):
    with pytest.raises(error, match=sentence):
        read(footer(field))


@pytest.mark.parametrize("at, structure", [(15, FOOTER), (27, HEADER)])
def test_a_version_counts_only_under_a_correct_checksum(at, structure):
    spoiled = structure[:at] + b"\7" + structure[at + 1 :]

    with pytest.raises(BadChecksum):
        read(spoiled) if structure is FOOTER else read(second=spoiled)


def test_a_footer_disabled_by_a_resize_is_unsupported_at_the_end_too():
    with pytest.raises(Unsupported, match="a resize of the VHD was cut"):
        read(last=POISONED)


@pytest.mark.parametrize(
    "field, error, sentence",
    [
        ((0, "8s", b"cxsparsE"), BadMagic, "VHD header at byte 512"),
        ((24, ">I", 0), Unsupported, "its version is 0x00000000"),
        ((60, ">I", 1), Unsupported, "its reserved bytes are in use"),
        ((8, ">Q", 1024), Malformed, "VHD header at byte 520 .*: tapdisk does not read it: its data_offset is 0x400"),
        ((32, ">I", 0), Malformed, "VHD header at byte 544 .*: tapdisk does not read it: its blocks have 0 bytes"),
        ((32, ">I", 3 << 19), Malformed, "its blocks have 1572864 bytes"),
        ((32, ">I", 1 << 22), Malformed, "its blocks have 4194304 bytes"),
        ((580, ">I", 513), Malformed, "its text has 110 bytes, the room for the text has 0"),  # of no whole sectors
        ((16, ">Q", 512), Malformed, "VHD block table at byte 512 .*: it overlaps the header, which ends at 1536"),
        ((28, ">I", (1 << 21)), Malformed, "VHD block table at byte 1536 .*: it ends at 8390144 of 8388608"),
        ((28, ">I", (1 << 21) + 1), Unsupported, "has 2097153 entries, and the largest VHD needs 2097152"),
        ((28, ">I", 0xFFFFFFFF), Unsupported, "has 4294967295 entries"),
        ((64, "512s", b""), Unsupported, "VHD parent name at byte 576 of VHD-.*: '' names no volume of an SR"),
        ((64, ">H", 0xD800), Malformed, "it is not UTF-16-BE"),
        ((576, ">I", 0x57693272), Unsupported, "VHD parent locator 0 at byte 1088 of VHD-"),
        ((584, ">I", 513), Malformed, "its text has 513 bytes, the room for the text has 512"),
        ((580, ">Q", 0x0000FFFF0000FFFF), Malformed, "its text has 65535 bytes"),
        ((592, ">Q", SIZE - 1023), Malformed, "VHD footer at .* overlaps the parent locator 0, which ends at 8388097"),
        ((592, ">Q", 1 << 60), Malformed, "VHD parent locator 0 at byte 1152921504606846976 .* of 8388608"),
        ((592, ">Q", 1535), Malformed, "VHD parent locator 0 at byte 1535 .*: it overlaps the header"),
        ((SECOND_LOCATOR_AT + 16, ">Q", 4327424), Malformed, "VHD parent locator 1 .* overlaps the parent locator 0"),
    ],
)
def test_a_header_that_is_none_of_sms_is_refused(field, error, sentence):
    with pytest.raises(error, match=sentence):
        read(FOOTER, header(field))


# --- the places of the parts: one part over another would be lost with the first write


BATMAP_HEADER_AT = 1536 + (4 << 20)


def batmap_sector(offset=BATMAP_HEADER_AT + 512, sectors=256, cookie=b"tdbatmap", version=0x00010002):
    return struct.pack(">8sQIII", cookie, offset, sectors, version, 0).ljust(512, b"\0")


def test_a_block_table_in_the_last_sector_is_refused():
    """libvhd writes whole sectors of it."""
    first, second = DYNAMIC
    read(first, patched(second, 36, (28, ">I", (SIZE - 2048) // 4)))

    with pytest.raises(Malformed, match="VHD footer at byte 8388096 .*: it overlaps the block table, which ends at"):
        read(first, patched(second, 36, (28, ">I", (SIZE - 2048) // 4 + 1)))


def place_of_batmap(second=HEADER, size=SIZE, **fields):
    verify_batmap_place(read(second=second, size=size), batmap_sector(**fields), NAME, size)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"offset": 4328960},  # behind the locators
        {"sectors": 1},
        {"cookie": b"conectix", "offset": 0},  # tapdisk opens a parent without a batmap
        {"version": 0x00010003, "offset": 0},
    ],
)
def test_a_batmap_may_lie_wherever_nothing_else_is_or_be_none(fields):
    place_of_batmap(**fields)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"offset": 0}, "VHD batmap at byte 0 of VHD-.*: it overlaps the footer copy, which ends at 512"),
        ({"offset": 512, "sectors": 1}, "VHD header at byte 512 .*: it overlaps the batmap, which ends at 1024"),
        ({"offset": 1536}, "VHD block table at byte 1536 .*: it overlaps the batmap, which ends at 132608"),
        ({"offset": 65536}, "VHD batmap at byte 65536 .*: it overlaps the block table, which ends at 4195840"),
        ({"offset": BATMAP_HEADER_AT}, "VHD batmap header .*: it overlaps the batmap|VHD batmap .* the batmap header"),
        ({"sectors": 257}, "VHD parent locator 0 at byte 4327424 .*: it overlaps the batmap, which ends at 4327936"),
        ({"offset": SIZE - 1024, "sectors": 2}, "VHD footer at byte 8388096 .*: it overlaps the batmap"),
        ({"offset": (1 << 64) - 512}, "VHD batmap at byte 18446744073709551104 .*: it ends at 18446744073709682176"),
        ({"sectors": 0xFFFFFFFF}, "VHD batmap at byte 4196352 .* of 8388608"),
    ],
)
def test_a_batmap_over_another_part_is_refused_by_name_and_place(fields, sentence):
    with pytest.raises(Malformed, match=sentence):
        place_of_batmap(**fields)


@pytest.mark.parametrize("offset", [BATMAP_HEADER_AT, BATMAP_HEADER_AT + 100, BATMAP_HEADER_AT + 131072])
def test_a_locator_in_the_batmap_is_refused(offset):
    """The new text would break the batmap's checksum, and tapdisk would not open the disk."""
    second = header((SECOND_LOCATOR_AT + 16, ">Q", offset))
    read(second=second)

    with pytest.raises(Malformed, match="it overlaps the batmap|it overlaps the parent locator 1"):
        place_of_batmap(second)


def test_the_room_of_a_locator_belongs_to_it():
    """libvhd writes the whole room."""
    with pytest.raises(Malformed, match="VHD parent locator 1 .*: it overlaps the parent locator 0"):
        read(second=header((580, ">I", 2)))


@pytest.mark.parametrize(
    "creator, version, is_looked_for",
    [(b"tap\0", 0x00010001, True), (b"tap ", 0x00010003, True), (b"tap\0", 1, False), (b"qemu", 0x00010003, False)],
)
def test_libvhd_looks_for_a_batmap_by_the_creator_of_the_footer_that_it_reads(creator, version, is_looked_for):
    other = footer((28, "4s", creator), (32, ">I", version))

    assert may_have_batmap(read(other, last=KILLED).read_footer) == is_looked_for
    assert may_have_batmap(read(FOOTER, last=other).read_footer) == is_looked_for


@pytest.mark.parametrize("offset, name", [(40, "parent_uuid"), (64, "parent_name"), (SECOND_LOCATOR_AT, "locators")])
def test_a_dynamic_vhd_that_names_a_parent_is_malformed(offset, name):
    first, second = DYNAMIC

    with pytest.raises(Malformed, match=f"it has a {name}, and the footer says that there is no parent"):
        read(first, patched(second, 36, (offset, ">I", 0x00560047)))


def test_a_differencing_vhd_without_a_locator_is_one_that_tapdisk_cannot_open():
    with pytest.raises(Malformed, match="it has a parent and no parent locator"):
        located_parents(read(FOOTER, header((576, "72s", b""))), [], NAME)


@pytest.mark.parametrize("index", range(3))
def test_a_locator_that_names_another_parent_than_the_header_is_told(index):
    texts = [text.replace(b"8", b"9") if at == index else text for at, text in enumerate(TEXTS)]

    parents = located_parents(read(), texts, NAME)

    assert [parent == read().parent for parent in parents] == [at != index for at in range(3)]


NOWHERE = "VHD parent locator text at byte 4327424 of .* names no volume of an SR"


@pytest.mark.parametrize(
    "index, text, error, sentence",
    [
        (0, b"", Unsupported, NOWHERE),
        (0, b"file://" + TEXTS[0], Unsupported, NOWHERE),
        (0, b"\xff", Malformed, "it is not UTF-"),
        (1, b"\0\xd8", Malformed, "it is not UTF-"),
    ],
)
def test_a_locator_that_names_no_volume_or_cannot_be_read_is_refused(index, text, error, sentence):
    with pytest.raises(error, match=sentence):
        located_parents(read(), [*TEXTS[:index], text, *TEXTS[index + 1 :]], NAME)


def test_a_volume_that_ends_early_is_truncated():
    with pytest.raises(Truncated):
        read(second=HEADER[:-1])


@given(st.integers(0, 1000), st.binary(min_size=1, max_size=12))
@settings(max_examples=examples(300))
def test_any_bytes_in_a_sealed_header_are_read_or_refused(offset, data):
    second = sealed(HEADER[:offset] + data + HEADER[offset + len(data) :], 36)

    try:
        vhd = read(second=second)
    except FormatError:
        return
    assert all(
        0 < locator.data_length <= 4096 and locator.data_offset + locator.data_length <= SIZE
        for locator in vhd.locators
    )


# --- what is known of a volume


ANOTHER = footer((68, "16s", b"another"))
KNOWN = {
    "a snapshot": (FOOTER, HEADER, FOOTER),
    "killed": (FOOTER, HEADER, KILLED),
    "hidden": (HIDDEN, HEADER, HIDDEN),
    "without a footer at its end": (FOOTER, HEADER, bytes(512)),
    "of two VHDs": (FOOTER, HEADER, ANOTHER),
    "dynamic": (*DYNAMIC, DYNAMIC[0]),
}


@pytest.mark.parametrize("known", KNOWN)
def test_what_is_known_of_a_volume_with_some_of_the_same_bytes_changes_nothing(known):
    like = read(*KNOWN[known])
    header_of_another = header((64, "512s", PARENT.replace("efd24831", "efd24832").encode("utf-16-be")))
    headers = [HEADER, DYNAMIC[1], header_of_another, header((592, ">Q", 600)), header((16, ">Q", 0)), bytes(1024)]
    ends = [FOOTER, DYNAMIC[0], ANOTHER, HIDDEN, KILLED, bytes(512), b"v_poison" + FOOTER[8:]]

    def outcome(parts, **more):
        try:
            return read(*parts, **more)
        except FormatError as problem:
            return str(problem)

    for parts in product([FOOTER, DYNAMIC[0], HIDDEN, bytes(512)], headers, ends):
        assert outcome(parts, like=like) == outcome(parts)
    vhd = read()
    assert read(like=vhd) is vhd


# --- changing


def changed(vhd=None, texts=tuple(TEXTS), parent=None, uuids=NEW):
    """The changes of a VHD whose parent stays the one that its header names, unless another is given."""
    vhd = vhd or read()
    return changes(vhd, vhd, texts, parent or vhd.parent, uuids, NAME, SIZE)


def test_four_places_change_in_the_layout_of_vhd_util():
    found = changed()
    head, *texts = (change.new for change in found)
    vhd = read(second=head)

    places = [(change.offset, len(change.old), len(change.new)) for change in found]
    assert places == [(512, 1024, 1024), (4327424, 110, 110), (4327936, 206, 206), (4328448, 206, 206)]
    assert [change.what for change in found] == ["VHD header of " + NAME] + ["VHD parent locator of " + NAME] * 3
    assert vhd.parent == ParentName(NEW[SR], VHD, NEW[VDI])
    assert located_parents(vhd, texts, NAME) == [vhd.parent] * 3
    assert texts[0].startswith(b"file://./VG_") and texts[1].startswith(b".\0\\\0V\0")
    differing = {at for at in range(1024) if head[at] != HEADER[at]}
    assert differing <= set(range(36, 40)) | set(range(64, 64 + 202)), "name and checksum alone"

    back = changed(vhd, texts, uuids={new: old for old, new in NEW.items()})
    assert [change.new for change in back] == [HEADER] + TEXTS


def test_what_lies_behind_the_name_in_the_header_stays():
    second = header((64 + 204, "8s", b"leftover"))

    head = changed(read(second=second))[0].new

    assert read(second=head).parent == ParentName(NEW[SR], VHD, NEW[VDI])
    assert head[64 + 202 : 576] == second[64 + 202 : 576]


@pytest.mark.parametrize("kind, lengths", [(VHD, (110, 206, 206)), (RAW, (109, 204, 204))])
def test_header_and_locators_are_brought_to_one_parent(kind, lengths):
    found = changed(parent=ParentName(SR, kind, OTHER), uuids={**NEW, OTHER: NEW[VDI]})
    head, *texts = (change.new for change in found)

    vhd = read(second=head)
    assert vhd.parent == ParentName(NEW[SR], kind, NEW[VDI])
    assert tuple(locator.data_length for locator in vhd.locators) == lengths
    assert located_parents(vhd, texts, NAME) == [vhd.parent] * 3
    assert [len(text) for text in texts] == [110, 206, 206]


def test_a_longer_name_finds_room_behind_a_shorter_one():
    name = PARENT.replace("-VHD--", "-LV--")
    raw_texts = [text[: text.index(b"V")] + name.encode(codec) for text, codec in zip(TEXTS, CODECS)]
    raw_header = header((64, "512s", name.encode("utf-16-be")), (584, ">I", 109), (608, ">I", 204), (632, ">I", 204))

    found = changed(read(second=raw_header), raw_texts, parent=ParentName(SR, VHD, VDI))
    head, *texts = (change.new for change in found)

    vhd = read(second=head)
    assert [locator.data_length for locator in vhd.locators] == [len(text) for text in texts] == [110, 206, 206]
    assert located_parents(vhd, texts, NAME) == [vhd.parent] * 3 == [ParentName(NEW[SR], VHD, NEW[VDI])] * 3
