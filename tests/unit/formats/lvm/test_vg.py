# SPDX-License-Identifier: LGPL-2.1-only
"""A volume group as values: extents mapped to bytes, and the text under new identities.

What is refused stands in tests/unit/resignature/reading/test_refusals.py, row by row.
"""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit import build_lvm
from kit.build_lvm import LvText, VgText
from kit.examples import examples
from relvmoiscsi.device import Range
from relvmoiscsi.errors import FormatError, Place, Truncated, Unsupported
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import MAX_LVS, Segment, read_vg, renamed_text

MIB = 1 << 20
WHERE, SIZE = Place("/dev/sdc", 4608), 11 * MIB + 2557 * 4 * MIB
SR, VDI = "f0351b7a-1726-4201-9d84-792f2dd894f4", "efd24831-00a5-4192-9633-f030a9710c2b"
NEW_SR, NEW_VDI = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-aaaaaaaaaaaa"


def text_of_two_volumes():
    """XenServer's geometry: first extent at 22528 sectors, extents of 8192 (docs/formats/lvm.rst). The builder's text,
    which real LVM judges, with hints, a key that nobody knows, and segments in any order and form.
    """
    lvs = (
        LvText("MGT", "2CfqVV-MeOh-bdML-KjFK-birL-PWc4-M5nko2", True, (), ((1, 0),), 1795219866),
        LvText(
            "LV-" + VDI, "3CfqVV-MeOh-bdML-KjFK-birL-PWc4-M5nko2", False, ("hidden", VDI), ((2, 100), (1, 7), (4, 2)), 1
        ),
    )
    ids = "rZFKhv-iR0f-uRM4-3uEC-qX2I-80Ix-Nx16K1", "dTe5Oc-yT95-CMTP-UPrR-Qgmm-7EcL-0FVDK7"
    note = f"lvcreate -n LV-{VDI} VG_XenStorage-{SR}"
    vg = VgText("VG_XenStorage-" + SR, ids[0], 5, 8192, ids[1], 20 << 20, 22528, 2557, lvs, "2.03", note)
    text = build_lvm.vg_text(vg)[:-1].decode()
    hints = 'device = "/dev/sdb"\ndevice_id_type = "sys_wwid"\ndevice_id = "naa.600140500000000000000001"\n'
    text = text.replace('device = "/dev/sdb"\n', hints)
    text = text.replace("segment_count = 3\n", "segment_count = 3\nunknown_to_all = 7\n")
    first, second = re.findall(r"segment[12] \{.*?\n\}\n", text[text.index("unknown_to_all") :], re.DOTALL)
    text = text.replace(first + "\n" + second, second.replace("count = 1\n\nst", "count = 1\t# linear\n\nst") + first)
    return text.replace('[\n"pv0", 100\n]', '["pv0", 100]')


TEXT = text_of_two_volumes()


@pytest.fixture(name="vg", scope="module")
def fixture_vg():
    return read_vg(TEXT, WHERE, SIZE)


# --- values


def test_a_text_is_read_as_values_in_bytes(vg):
    mgt, lv = vg.lvs

    assert (vg.name, vg.id, vg.seqno) == ("VG_XenStorage-" + SR, "rZFKhviR0fuRM43uECqX2I80IxNx16K1", 5)
    assert (vg.pv_id, vg.dev_size) == ("dTe5OcyT95CMTPUPrRQgmm7EcL0FVDK7", 10 << 30)
    assert (vg.pe_start, vg.pe_count, vg.extent_size) == (11 * MIB, 2557, 4 * MIB)
    assert vg.data_end == 11 * MIB + 2557 * 4 * MIB
    assert ("WRITE" in mgt.status, mgt.tags) == (True, ())
    assert ("WRITE" in lv.status, lv.tags) == (False, ("hidden", VDI))
    assert lv.segments == (Segment(0, 2, 100), Segment(2, 1, 7), Segment(3, 4, 2)), "whatever their names"
    assert (lv.extent_count, vg.size_of(lv)) == (7, 28 * MIB)


def test_a_text_whose_extents_are_not_on_the_device_is_refused(vg):
    with pytest.raises(Truncated, match=f"it needs {vg.data_end} bytes, only {vg.data_end - 1} are there"):
        read_vg(TEXT, WHERE, vg.data_end - 1)


def test_the_extents_of_a_part_of_a_volume_are_runs_and_a_part_outside_of_the_volume_has_none(vg):
    _mgt, lv = vg.lvs
    every = [pe for one in lv.segments for pe in one.pes]

    parts = [(first, end) for first in range(9) for end in range(first, 10)]

    assert [[pe for run in lv.pes(*part) for pe in run] for part in parts] == [every[slice(*part)] for part in parts]
    assert lv.pes(1, 6) == [range(101, 102), range(7, 8), range(2, 5)]


def test_a_group_without_volumes_has_no_section_for_them():
    start, end = TEXT.index("logical_volumes"), TEXT.index("}\n# Generated")

    assert read_vg(TEXT[:start] + TEXT[end:], WHERE, SIZE).lvs == ()


# --- extents to bytes


@pytest.mark.parametrize("offset, length", [(28 * MIB - 1, 2), (-1, 1), (0, -1), (1 << 63, 1 << 63)])
def test_a_range_that_leaves_the_volume_is_truncated(vg, offset, length):
    with pytest.raises(Truncated, match=f"byte {offset} of LV-"):
        vg.ranges(vg.lvs[1], offset, length)


@given(st.integers(0, 28 * MIB), st.integers(0, 28 * MIB))
@settings(max_examples=examples(50))
@example(8 * MIB - 100, 4 * MIB + 300)
@example(8 * MIB, 0)
def test_every_byte_lies_in_the_extent_that_the_segments_say(offset, length):
    vg = read_vg(TEXT, WHERE, SIZE)
    pes = [100, 101, 7, 2, 3, 4, 5]
    length = min(length, 28 * MIB - offset)

    found = vg.ranges(vg.lvs[1], offset, length)

    assert vg.ranges(vg.lvs[0], 0, 4 * MIB) == [Range(11534336, 4194304)], "the first extent of a XenServer LUN"
    assert len(found) <= 3, "one for each segment"
    at = offset
    for part in found:
        for inside in (0, part.length - 1):
            extent, rest = divmod(at + inside, 4 * MIB)
            assert part.offset + inside == vg.pe_start + pes[extent] * 4 * MIB + rest
        at += part.length
    assert at == offset + length


class Counted(tuple):
    """Segments that count how many of them were looked at."""

    looked_at = 0

    def __getitem__(self, index):
        self.looked_at += 1
        return super().__getitem__(index)

    def __iter__(self):
        self.looked_at += len(self)
        return super().__iter__()


@pytest.mark.parametrize("extent", [0, 10000, 19998])
def test_a_range_looks_at_few_segments_wherever_it_lies(vg, extent):
    """A merged QCOW2 image has tens of thousands of segments."""
    segments = Counted(Segment(number, 1, 2 * (20000 - number)) for number in range(20000))

    found = vg.ranges(vg.lvs[0]._replace(segments=segments), (extent + 1) * vg.extent_size - 10, 30)

    places = [vg.pe_start + 2 * (20000 - number) * vg.extent_size for number in (extent, extent + 1)]
    assert found == [Range(places[0] + vg.extent_size - 10, 10), Range(places[1], 20)]
    assert 0 < segments.looked_at < 30


# --- volumes in the form in which LVM writes them


def lv(tags=(), segments=((7, 30),), old=False):
    """A volume as the builder writes it, which real LVM judges."""
    name, lv_id = "LV-00000000-00a5-4192-9633-f030a9710c2b", "4CfqVV-MeOh-bdML-KjFK-birL-PWc4-M5nko2"
    return build_lvm.lv_text(LvText(name, lv_id, False, tags, segments, 1), old)


OWN_FORM = {
    "plain": lv(),
    "several segments": lv(segments=((7, 30), (7, 90))),
    "tags": lv(("hidden", "aZ09._-+/=!:&#")),
    "tags, no flags": lv(("hidden",)).replace("flags = []\n", ""),
    "no tags": lv().replace("flags = []\n", "flags = []\ntags = []\n"),
    "LVM 2.02": lv(old=True),
    "no creation": re.sub("creation_.*\n", "", lv()),
}


def in_own_form(name):
    """TEXT with one volume more between its two."""
    return TEXT.replace("\nLV-", "\n" + OWN_FORM[name] + "\nLV-", 1)


@pytest.mark.parametrize("text", [TEXT, *map(in_own_form, OWN_FORM)], ids=["text", *OWN_FORM])
def test_a_volume_is_read_and_renamed_in_the_form_of_each_release_of_lvm(text):
    before, after = read_vg(text, WHERE, SIZE), read_vg(renamed(text), WHERE, SIZE)

    assert len(before.lvs) == (2 if text == TEXT else 3)
    assert [lv[2:] for lv in after.lvs] == [lv[2:] for lv in before.lvs], "status, tags and segments"
    assert (after.seqno, after.name) == (6, "VG_XenStorage-" + NEW_SR)


@given(st.data())
@settings(max_examples=examples(200))
def test_a_text_with_a_line_lost_or_doubled_is_read_or_refused(data):
    lines = TEXT.split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at : at + 1] = data.draw(st.sampled_from([[], [lines[at]] * 2, [lines[at][::-1]]]))

    try:
        read_vg("\n".join(lines), WHERE, SIZE)
    except FormatError as problem:
        assert "of /dev/sdc" in str(problem)


@pytest.mark.parametrize("name", ["VG_XenStorage-" + SR, "pv0", "MGT", "segment1", "segment_count"])
def test_a_name_that_lvm_does_not_allow_is_refused_before_anything_repeats_it(name):
    defects = []

    with pytest.raises(FormatError, match="a name has 100000 characters, LVM allows 127") as caught:
        read_vg(TEXT.replace(name + " ", "a" * 100000 + " ", 1), WHERE, SIZE, defects.append)

    assert defects == [] and len(str(caught.value)) < 300


def test_the_longest_name_that_lvm_allows_is_read():
    assert read_vg(TEXT.replace("MGT {", "a" * 127 + " {"), WHERE, SIZE).lvs[0].name == "a" * 127


@pytest.mark.parametrize("tag", ["x,hidden", "hidden x", "hid\\\\den", r"hid\den", r"\"", "", "hidden\n", "h\xe9"])
def test_a_tag_that_lvm_does_not_allow_is_unsupported(tag):
    """SM splits what `lvs` prints, at blanks and commas."""
    with pytest.raises(Unsupported, match="Logical volume LV-.* LVM does not allow its tags: "):
        read_vg(TEXT.replace('"hidden"', f'"{tag}"'), WHERE, SIZE)


@pytest.mark.parametrize("flag", ["NOAUTOACTIVATE", "ACTIVATION_SKIP"])
def test_flags_that_say_when_lvm_activates_stay(flag):
    text = TEXT.replace("flags = []\ncreation", f'flags = ["{flag}"]\ncreation')

    assert text != TEXT and read_vg(text, WHERE, SIZE).lvs == read_vg(TEXT, WHERE, SIZE).lvs


LONG = "x" * 100000
QUOTED = {
    "id of the group": ('id = "rZFKhv', f'id = "{LONG}'),
    "id of a volume": ('id = "2CfqVV', f'id = "{LONG}'),
    "status": ('"RESIZEABLE"', f'"{LONG}"'),
    "format": ('"lvm2"', f'"{LONG}"'),
    "seqno": ("seqno = 5", f'seqno = "{LONG}"'),
    "stripes": ('"pv0", 0', f'"{LONG}", 0'),
    "tags": ('"hidden"', f'7, "{LONG}"'),
    "groups": ("# Generated", "".join(f"vg{number} {{ a = 1 }}\n" for number in range(1000)) + "# Generated"),
}


@pytest.mark.parametrize("name", QUOTED)
def test_a_message_quotes_little_of_a_word_whatever_its_length(name):
    assert TEXT.count(QUOTED[name][0])

    with pytest.raises(FormatError) as caught:
        read_vg(TEXT.replace(*QUOTED[name]), WHERE, SIZE)

    assert len(str(caught.value)) < 600


def test_a_group_of_more_volumes_than_any_sr_has_is_refused_without_a_defect_for_each():
    many = "".join(f"lv{number} {{{' ' * 90}}}\n" for number in range(MAX_LVS))
    defects = []

    with pytest.raises(FormatError, match=f"it has {MAX_LVS + 2} volumes, an SR has at most {MAX_LVS}"):
        read_vg(TEXT.replace("logical_volumes {\n", "logical_volumes {\n" + many), WHERE, SIZE, defects.append)

    assert defects == []


def test_a_group_on_very_many_physical_volumes_is_refused_in_little_time():
    count, room = 8000, " " * 100
    pvs = "".join(f"p{number} {{{room}}}\n" for number in range(count))
    segments = "".join(f's{number} {{stripes = ["x", "y"]{room}}}\n' for number in range(count))
    text = TEXT.replace("physical_volumes {\n", "physical_volumes {\n" + pvs)
    text = text.replace("logical_volumes {\n", f"logical_volumes {{\nlv {{\n{segments}}}\n")
    began = time.process_time()

    with pytest.raises(FormatError, match=f"it lies on {count + 1} physical volumes"):
        read_vg(text, WHERE, SIZE)

    assert time.process_time() - began < 2  # each volume beside each segment takes three times as long


# --- new identities


def renamed(text, change=lambda lv: lv):
    """The text under new identities, and each volume as `change` wants it."""
    vg = read_vg(text, WHERE, SIZE)
    ids = {old: chr(ord("a") + n) * 32 for n, old in enumerate([vg.pv_id, vg.id] + [lv.id for lv in vg.lvs])}
    lvs = {lv.name: change(lv._replace(name=lv.name.replace(VDI, NEW_VDI))) for lv in vg.lvs}
    return renamed_text(vg, "VG_XenStorage-" + NEW_SR, lvs, IdMap(SR, {SR: NEW_SR, VDI: NEW_VDI}, ids))


def test_identities_generation_note_and_hints_change_and_nothing_else():
    expected = TEXT.replace("seqno = 5", "seqno = 6").replace(SR, NEW_SR)
    expected = re.sub("device_id.*\n", "", expected)
    expected = expected.replace(VDI, NEW_VDI).replace(f', "{NEW_VDI}"]', f', "{VDI}"]')  # a tag stays
    for letter, old in zip("abcd", ("dTe5Oc-", "rZFKhv-", "2CfqVV-", "3CfqVV-")):
        dashed = "-".join(letter * count for count in (6, 4, 4, 4, 4, 4, 6))
        expected = re.sub(f'"{old}[^"]*"', f'"{dashed}"', expected)

    assert renamed(TEXT) == expected


@pytest.mark.parametrize(
    "old, new",
    [
        ('device = "/dev/sdb"', 'device = "/dev/disk/by-id/lvm-pv-uuid-dTe5Oc-yT95-CMTP-UPrR-Qgmm-7EcL-0FVDK7"'),
        ('description = "', 'description = "lvchange -S lv_uuid=2CfqVV-MeOh-bdML-KjFK-birL-PWc4-M5nko2 '),
        ('description = "', f'description = "lvchange --addtag f{VDI}a '),
        ("unknown_to_all = 7", f'unknown_to_all = "{SR}"'),
        ("unknown_to_all = 7", f"unknown_to_all = 7 # {SR}"),
    ],
    ids=["path of the disk", "LVM id in the note", "UUID among other digits", "unknown key", "comment"],
)
def test_an_identity_changes_wherever_else_it_stands(old, new):
    text = renamed(TEXT.replace(old, new))

    assert TEXT.count(old) >= 1 and len(text) == len(renamed(TEXT)) + len(new) - len(old)
    for identity in (SR, "dTe5Oc-yT95", "2CfqVV-MeOh"):
        assert identity not in text
    assert text.count(VDI) == 1  # in a tag, where it stays


def test_a_longer_generation_makes_room_and_bytes_that_are_no_ascii_survive():
    text = renamed(TEXT.replace("seqno = 5", "seqno = 99").replace('"xen-host-1"', '"h\xc3\xb6st"'))

    assert "seqno = 100\n" in text and text.count('"h\xc3\xb6st"') == 3


@pytest.mark.parametrize("gone, first, behind", [(0, "\n\nMGT {", "\n\nLV-"), (1, "\n\nLV-", "\n}\n\n}\n# Gen")])
def test_a_removed_volume_leaves_the_others_byte_for_byte(gone, first, behind):
    whole, wanted = renamed(TEXT), read_vg(TEXT, WHERE, SIZE).lvs[gone].id

    text = renamed(TEXT, lambda lv: None if lv.id == wanted else lv)

    assert text == whole[: whole.index(first)] + whole[whole.index(behind) :]


class Sliced(str):
    """A text that counts the characters that are copied out of it."""

    copied = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        Sliced.copied += len(found)
        return found


def test_the_removal_of_many_volumes_copies_the_text_few_times():
    ids, names = [f"{number:06}-MeOh-bdML-KjFK-birL-PWc4-M5nko2" for number in range(300)], []
    names = [f"LV-{number:08}-00a5-4192-9633-f030a9710c2b" for number in range(300)]
    lvs = [
        build_lvm.lv_text(LvText(name, one, False, (), ((1, at + 500),), 1))
        for at, (name, one) in enumerate(zip(names, ids))
    ]
    vg = read_vg(TEXT.replace("\nLV-", "\n" + "\n".join(lvs) + "\nLV-", 1), WHERE, SIZE)
    new = {old: chr(ord("a") + n) * 32 for n, old in enumerate([vg.pv_id, vg.id])}
    new.update((lv.id, lv.id) for lv in vg.lvs)

    text = renamed_text(
        vg._replace(text=Sliced(vg.text)),
        "VG_XenStorage-" + NEW_SR,
        {lv.name: None if lv.name in names else lv for lv in vg.lvs},
        IdMap(SR, {SR: NEW_SR, VDI: NEW_VDI}, new),
    )

    assert [lv.name for lv in read_vg(text, WHERE, SIZE).lvs] == [lv.name for lv in read_vg(TEXT, WHERE, SIZE).lvs]
    assert len(vg.lvs) == 302 and 0 < Sliced.copied < 5 * len(vg.text)


SEGMENTS = (Segment(0, 2, 700), Segment(2, 1, 30), Segment(3, 40, 1000))


def with_segments(number, segments, text=TEXT):
    """The text renamed, where the LV of that number gets other segments."""
    wanted = read_vg(text, WHERE, SIZE).lvs[number].id
    return renamed(text, lambda lv: lv._replace(segments=segments) if lv.id == wanted else lv)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("segments", [SEGMENTS, (Segment(0, 7, 200),)], ids=["three", "one"])
def test_new_segments_take_the_place_of_the_old_ones(number, segments):
    text = with_segments(number, segments)

    before, after = read_vg(renamed(TEXT), WHERE, SIZE), read_vg(text, WHERE, SIZE)
    assert after.lvs[number] == before.lvs[number]._replace(segments=segments)
    assert after.lvs[1 - number] == before.lvs[1 - number]
    assert text.count("segment2") == sum(len(lv.segments) > 1 for lv in after.lvs), "no rest of an old one"


def test_what_stands_beside_the_segments_stays():
    before, after = renamed(TEXT), with_segments(1, SEGMENTS)

    start, end = before.index("segment2 {"), before.index("# Generated by LVM2")
    assert after.startswith(before[:start])  # three before, three now
    assert after.endswith("]\n}\n}\n}\n\n}\n" + before[end:])
    assert "\nsegment_count = 3\nunknown_to_all = 7\n" in after and "# linear" not in after


def test_new_segments_name_the_disk_as_the_text_does():
    text = with_segments(0, SEGMENTS[2:], TEXT.replace("pv0", "pv7"))

    assert '"pv7", 1000\n' in text and "pv0" not in text


@pytest.mark.parametrize("words", [("READ",), ("READ", "VISIBLE"), ("READ", "WRITE", "VISIBLE")])
def test_the_status_of_a_volume_is_written_as_lvm_writes_it(words):
    text = renamed(TEXT, lambda lv: lv._replace(status=frozenset(words)))

    assert {lv.status for lv in read_vg(text, WHERE, SIZE).lvs} == {frozenset(words)}
    assert "status = [{}]".format(", ".join(f'"{word}"' for word in words)) in text


@pytest.mark.parametrize("tags", [(), ("hidden",), ("hidden", "journaler")])
def test_the_tags_of_a_volume_come_go_and_change(tags):
    after = read_vg(renamed(TEXT, lambda lv: lv._replace(tags=tags)), WHERE, SIZE)

    assert {lv.tags for lv in after.lvs} == {tags}
    assert [lv.segments for lv in after.lvs] == [lv.segments for lv in read_vg(TEXT, WHERE, SIZE).lvs]
