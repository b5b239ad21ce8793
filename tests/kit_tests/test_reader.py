# SPDX-License-Identifier: LGPL-2.1-only
"""The independent reader accepts what LVM accepts and notices what is wrong."""

import struct

import pytest

from kit import builder
from kit.lvmreader import parse_text
from kit.reader import (
    blkid_sees,
    dm_target,
    essence,
    identities,
    identity_ranges,
    kind_of,
    layout_of,
    lvm_crc,
    read_label,
    read_sr,
    read_vg,
    renamed,
    same_guest,
    sightings,
    vg_view,
)
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range


@pytest.fixture
def lun():
    return builder.everything()


def relabel(disk, offset, data, crc=True):
    """Change bytes of the label sector; `crc` makes its checksum right again."""
    sector = bytearray(disk.peek(512, 512))
    sector[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", sector, 16, lvm_crc(bytes(sector[20:])))
    disk.poke(512, bytes(sector))


def rehead(disk, offset, data, crc=True):
    """Change bytes of the header of the metadata area at 4096."""
    header = bytearray(disk.peek(4096, 512))
    header[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", header, 0, lvm_crc(bytes(header[4:])))
    disk.poke(4096, bytes(header))


@pytest.mark.parametrize(
    "data, crc", [(b"", 0xF597A6CF), (b"a", 0x319B1949), (b"123456789", 0x4991CF02), (bytes(492), 0x02C81F10)]
)
def test_checksum_vectors(data, crc):
    assert lvm_crc(data) == crc


# -- labels


def test_a_label_may_stand_in_any_of_the_first_four_sectors():
    for sector in range(4):
        lun = builder.one_vhd(label_sector=sector)
        assert read_label(lun.disk).sector == sector
        assert blkid_sees(lun.disk)


def test_a_label_in_sector_4_is_not_looked_at(lun):
    lun.disk.poke(2048, lun.disk.peek(512, 512))
    lun.disk.poke(512, bytes(512))

    assert vg_view(lun.disk) == ("no PV",)
    assert read_vg(lun.disk) is None and read_sr(lun.disk) is None
    assert identities(lun.disk) == set() and identity_ranges(lun.disk) == []


def test_a_damaged_magic_does_not_hide_the_label_from_lvm(lun):
    before = vg_view(lun.disk)
    relabel(lun.disk, 0, b"x", crc=False)

    assert vg_view(lun.disk) == before
    assert not blkid_sees(lun.disk)


def test_a_bad_checksum_hides_the_label(lun):
    relabel(lun.disk, 300, b"x", crc=False)

    assert read_label(lun.disk) is None


def test_another_type_hides_the_label(lun):
    relabel(lun.disk, 24, b"RELVM001")

    assert read_label(lun.disk) is None


def test_a_sector_number_that_is_wrong_hides_the_label(lun):
    relabel(lun.disk, 8, struct.pack("<Q", 2))

    assert read_label(lun.disk) is None


def test_lists_without_end_are_no_label(lun):
    relabel(lun.disk, 72, b"\x01" * 440)

    assert read_label(lun.disk) is None


@pytest.mark.parametrize("version, hidden", [(0, False), (1, True), (2, True), (3, False)])
def test_lvm1_at_the_start_hides_everything(lun, version, hidden):
    lun.disk.poke(0, b"HM" + bytes([version, 0]))

    assert (read_label(lun.disk) is None) == hidden


def test_a_second_label_is_a_complaint(lun):
    lun.disk.poke(1024 + 24, b"LVM2 001")

    assert "additional label in sector 2" in read_vg(lun.disk).warnings


def test_the_tail_of_the_label_is_told():
    lun = builder.one_vhd(label_tail=b"our own mark")

    assert read_label(lun.disk).tail.endswith(b"our own mark")
    assert read_vg(lun.disk).warnings == ()


# -- metadata areas


@pytest.mark.parametrize(
    "offset, data, crc",
    [
        (200, b"x", False),
        (4, b"x", True),
        (20, b"\x02", True),
        (24, struct.pack("<Q", 8192), True),
        (56, b"xxxx", True),
        (48, struct.pack("<Q", 100 << 20), True),
        (40, struct.pack("<Q", 100), True),
    ],
)
def test_a_bad_metadata_area_leaves_a_pv_without_vg(lun, offset, data, crc):
    rehead(lun.disk, offset, data, crc)

    kind, pv_id, used, problems = vg_view(lun.disk)

    assert (kind, pv_id, used) == ("PV without VG", lun.truth.pv_id, 1)
    assert len(problems) == 1 and "metadata area at 4096" in problems[0]
    assert essence(lun.disk) == vg_view(lun.disk)


def test_an_area_off_the_disk_is_not_read(lun):
    relabel(lun.disk, 104, struct.pack("<QQ", lun.disk.size_bytes, 1 << 20))

    assert "it leaves the disk" in vg_view(lun.disk)[3][0]


def test_a_blank_header_is_an_orphan(lun):
    rehead(lun.disk, 40, bytes(24))

    assert vg_view(lun.disk) == ("PV without VG", lun.truth.pv_id, 1, ())


def test_the_highest_seqno_wins_and_it_is_a_complaint():
    vg = read_vg(builder.two_metadata_areas("older", seqno=9).disk)

    assert vg.seqno == 9
    assert vg.warnings == ("metadata areas have different seqnos",)


def test_an_ignored_area_is_not_read():
    lun = builder.two_metadata_areas("ignored", seqno=9)

    vg = read_vg(lun.disk)

    assert (vg.seqno, vg.warnings) == (9, ())


def test_areas_with_one_seqno_and_two_texts_are_a_complaint():
    lun, other = builder.two_metadata_areas(), builder.two_metadata_areas(description="another")
    assert read_vg(lun.disk).warnings == ()

    area = lun.truth.areas[1]
    lun.disk.poke(area.offset, other.disk.peek(area.offset, area.length))

    assert read_vg(lun.disk).warnings == ("metadata areas have one seqno and different texts",)


def test_areas_of_two_vgs_are_a_complaint():
    lun, other = builder.two_metadata_areas(), builder.two_metadata_areas(seed=1)
    area = lun.truth.areas[1]
    lun.disk.poke(area.offset, other.disk.peek(area.offset, area.length))

    assert "metadata areas name different VGs" in read_vg(lun.disk).warnings


def test_a_text_in_flight_is_told():
    assert read_vg(builder.one_vhd(precommitted=True).disk).mda.precommitted
    assert not read_vg(builder.one_vhd().disk).mda.precommitted


@pytest.mark.parametrize("before_the_end", [512, 1024, 1536, 200])
def test_a_text_may_wrap_and_needs_no_alignment(before_the_end):
    lun = builder.wrapped_text(before_the_end)

    assert read_vg(lun.disk).warnings == ()
    assert lun.truth.text_offset + lun.truth.text_length > lun.truth.areas[0].length


def test_a_text_that_begins_too_near_the_end_is_a_complaint():
    assert read_vg(builder.wrapped_text(120).disk).warnings == ("text begins within 128 bytes of the end of the area",)


# -- text


def edited(*changes):
    def edit(text):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        return text

    return builder.one_vhd(edit_text=edit, stale_texts=0)


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ('"pv0", 1\n', '"pv0", 0\n', "share extent 0"),
        ('"pv0", 1\n', '"pv0", 4000\n', "uses extents that pv0 does not have"),
        ("start_extent = 0", "start_extent = 1", "has a gap at extent 0"),
        ("dev_size = ", "dev_size = 9", "the disk is smaller"),
        ("pe_count = ", "pe_count = 9", "go past its end"),
        ("seqno = 17\n", "", "KeyError('seqno'"),
        ("segment_count = 1", "segment_count = 2", "another number of segments"),
        ("extent_size = 8192", "extent_size = 8192\nextent_size = 8192", "extent_size comes twice"),
        ("\ncreation_host", "\nhost", "creation time and no creation host"),
        ("version = 1\n", "version = 2\n", "no text format volume group"),
        ("MGT {", "-MGT {", "a name that LVM refuses"),
        ("}\n\n}\n#", "}\n} #\n#", "does not end in the last brace"),
        ('"VISIBLE"]', '"VISIBLE", "NEW"]', "MGT has an unknown status"),
        ("flags = []", "flags = ]", "a value is missing"),
        ("flags = []", "flags {", "is not closed"),
        ("flags = []", "flags", "neither value nor section"),
        ("creation_time = 1795219866\t", 'creation_time = "\t', "cannot read the text"),
        ("}\n#", "}\n}\n#", "a closing brace too many"),
        ("\nseqno", "\nphysical_volumes_ = 1\nseqno", "does not come before physical_volumes"),
        ("VG_", " VG_", "does not begin with the name of a VG"),
        ("VG_", "contents_ = 1\nVG_", "does not begin with the name of a VG"),
    ],
)
def test_what_lvm_would_complain_about(old, new, complaint):
    lun = edited((old, new))

    assert any(complaint in text for text in complaints(lun.disk)), complaints(lun.disk)


def complaints(disk):
    """What is wrong with a VG, or what made it unreadable: the last part of every view."""
    return vg_view(disk)[-1]


def test_a_text_with_a_nul_inside_is_a_complaint():
    assert "text does not end in its only NUL" in complaints(edited(("contents", "\0contents")).disk)[0]


def test_an_id_used_twice_and_a_bad_id_are_complaints():
    lun = builder.one_vhd()
    mgt, disk = lun.truth.volume("MGT").lv_id, lun.truth.volume("disk").lv_id

    assert "an id is used twice" in read_vg(edited((mgt, disk)).disk).warnings
    assert "'{}' is not an LVM id".format("x" * 38) in complaints(edited((mgt, "x" * 38)).disk)[0]


def test_a_pv_that_is_not_the_labels_is_a_complaint():
    lun = builder.one_vhd()
    other = "abcdef-0000-0000-0000-0000-0000-abcdef"

    warnings = read_vg(edited((lun.truth.pv_id, other)).disk).warnings

    assert warnings[:2] == (
        f"the label's PV {lun.truth.pv_id} is not in the VG",
        f"PV {other} of the VG is missing",
    )


def test_a_label_that_does_not_say_used_is_a_complaint(lun):
    relabel(lun.disk, 140, bytes(4))

    assert read_vg(lun.disk).warnings == ("the label does not say that the PV is in use",)


def test_text_of_both_styles_reads_the_same():
    new, old = builder.everything(), builder.everything(style="2.02")

    assert essence(new.disk) == essence(old.disk)


def test_comments_strings_and_numbers():
    text = b'a { # no { "quote"\nb = "x \\" \\\\ # {" c=[1,2 3] d=-5 e=0x10 f=1.5 g=[] }\0rubbish'

    assert parse_text(text) == {"a": {"b": 'x " \\ # {', "c": [1, 2, 3], "d": -5, "e": 16, "f": "1.5", "g": []}}


# -- the SR


def test_the_view_of_a_vg_without_its_generation(lun):
    later = builder.everything(seqno=99)

    assert vg_view(lun.disk) != vg_view(later.disk)
    assert vg_view(lun.disk, with_seqno=False) == vg_view(later.disk, with_seqno=False)
    assert len({vg_view(lun.disk), vg_view(later.disk)}) == 2, "views are hashable"


def test_a_vg_of_another_name_is_no_sr():
    lun = builder.one_vhd(vg_name="vg0")

    assert read_vg(lun.disk).name == "vg0"
    assert read_sr(lun.disk) is None


def test_a_volume_that_is_not_linear_is_not_read_into():
    stripes = ('stripe_count = 1\n\nstripes = [\n"pv0", 1\n]', 'stripe_count = 2\nstripes = ["pv0", 1, "pv0", 5]')
    lun = edited(stripes)

    sr = read_sr(lun.disk)

    assert sr.others == (lun.truth.volume("disk").name,)
    assert len(identity_ranges(lun.disk)) == 2


def test_every_kind_of_volume_is_told_by_its_name(lun):
    kinds = {volume.key: kind_of(volume.name) for volume in lun.truth.volumes}

    assert kinds["MGT"] == "mgt"
    assert kinds["gone"] == kinds["disk"] == "vhd"
    assert (kinds["data"], kinds["qdisk"], kinds["cbtlog of disk"]) == ("raw", "qcow2", "cbt")
    assert (kinds["coalesce of disk"], kinds["trim"]) == ("journal", "other")


def test_journals_give_their_values():
    volumes = [
        builder.vhd("base", hidden=True),
        builder.vhd("disk", "base"),
        builder.journal("clone", "disk", "{base}_{disk}"),
        builder.journal("leaf", "disk", "{base}"),
        builder.journal("inflate", "disk", "8388608"),
    ]
    lun = builder.build_sr(volumes)
    base, disk = lun.truth.volume("base").uuid, lun.truth.volume("disk").uuid

    clone, leaf, inflate = read_sr(lun.disk).journals

    assert (clone.type, clone.uuid, clone.value, clone.in_block) == ("clone", disk, base + "_" + disk, True)
    assert leaf.value == base
    assert (inflate.value, inflate.in_block) == ("8388608", False)
    assert layout_of(lun.disk) == lun.truth.layout
    assert {base, disk} <= identities(lun.disk)
    (place,) = lun.truth.device_ranges("leaf of disk", 0, 512)
    lun.disk.poke(place.offset, b"x" * 512)
    assert read_sr(lun.disk).journals[1].value == ""


def poke_volume(lun, key, offset, data):
    (place,) = lun.truth.device_ranges(key, offset, len(data))
    lun.disk.poke(place.offset, data)


@pytest.mark.parametrize(
    "key, offset, data, complaint",
    [
        ("disk", 0, b"x", "footer at its start is bad"),
        ("disk", 85, b"\x01", "footer at its start is bad"),
        ("disk", 600, b"x", "its header is bad"),
        ("disk", 1300, b"x", "reserved bytes"),
        ("disk", 512 + 64 + 30, b"\0x", "header names the parent"),
        ("disk", 0x420800 + 20, b"x", "MacX names the parent"),
        ("disk", 0x420C00 + 20, b"x", "W2ru names the parent"),
        ("disk", 512 + 576 + 48, bytes(4), "2 parent locators"),
        ("base", 512 + 576, b"MacX", "its header names one"),
        ("disk", 512 + 40, b"x", "prt_uuid is not the footer uuid"),
        ("overraw", 512 + 40, b"x", "its prt_uuid is not zero"),
        ("MGT", 0, b"x", "MGT has no header"),
        ("MGT", 5, b"2049", "MGT length is 2049"),
        ("MGT", 540, b"0", "MGT is of SR 0"),
        ("MGT", 2560, b"x", "MGT record at 2048 has no uuid"),
        ("qdisk", 0, b"x", "it is no QCOW2"),
        ("qdisk", 19, b"\x10", "its backing file"),
    ],
)
def test_what_sm_and_vhd_util_would_complain_about(lun, key, offset, data, complaint):
    assert read_sr(lun.disk).problems == ()

    poke_volume(lun, key, offset, data)

    problems = read_sr(lun.disk).problems
    assert any(complaint in text for text in problems), problems


def test_extensions_of_a_qcow2_image_that_never_end(lun):
    poke_volume(lun, "qdisk", 116, b"\0\1\0\0")

    assert read_sr(lun.disk).qcow2s[1].hidden is None


def test_a_poisoned_vhd_is_told():
    lun = builder.build_sr([builder.vhd("disk", poisoned=True), builder.jvhd("disk")])

    (vhd,) = read_sr(lun.disk).vhds

    assert vhd.poisoned
    assert read_sr(lun.disk).others == ("jvhd_" + lun.truth.volume("disk").uuid,)


def test_targets_of_device_mapper_names():
    assert dm_target("file://./VG_XenStorage--a--b-VHD--c--d") == ("VG_XenStorage-a-b", "VHD-c-d")
    assert dm_target(".\\vg-lv") == ("vg", "lv")
    assert dm_target("/dev/dm_3") == ("", "")
    assert dm_target("") == ("", "")


# -- judging a change


def test_another_lun_is_the_same_lun_under_new_names(lun):
    clone = builder.everything(seed="clone")
    names = {volume.uuid: clone.truth.volume(volume.key).uuid for volume in lun.truth.volumes if volume.uuid}
    names.update({volume.lv_id: clone.truth.volume(volume.key).lv_id for volume in lun.truth.volumes})
    names.update({getattr(lun.truth, what): getattr(clone.truth, what) for what in ("pv_id", "vg_id", "sr_uuid")})
    footers = {v.footer_uuid: clone.truth.volume(v.key).footer_uuid for v in lun.truth.volumes if v.footer_uuid}

    assert essence(clone.disk) != essence(lun.disk)
    assert essence(clone.disk) == renamed(essence(lun.disk), {**names, **footers})
    assert renamed(essence(lun.disk), {}) == essence(lun.disk)
    assert not set(names) & identities(clone.disk)


def test_the_guest_is_data_and_free_extents_and_nothing_that_may_change(lun):
    layout, before = layout_of(lun.disk), lun.disk.copy()
    assert layout == lun.truth.layout

    for item in lun.truth.identity_ranges + [Range(512, 512), Range(4096, 65536)]:
        lun.disk.poke(item.offset, b"\xaa" * item.length)
    assert same_guest(lun.disk, before, layout) and lun.disk != before

    for item in lun.truth.guest_ranges[::7] + [Range(0, 1), Range(2048, 1), Range(lun.disk.size_bytes - 1, 1)]:
        old = lun.disk.peek(item.offset, 1)
        lun.disk.poke(item.offset, bytes([old[0] ^ 0x40]))
        assert not same_guest(lun.disk, before, layout)
        lun.disk.poke(item.offset, old)


def test_sightings_find_every_form():
    disk = SparseDisk(1 << 20)
    sr = "675f20a9-6430-425a-9228-6ce601fec703"
    doubled = sr.replace("-", "--")
    lvm_id = "abcdef-0123-4567-89ab-cdef-0123-456789"
    forms = [
        (100, sr.encode(), "text"),
        (300, doubled.encode(), "doubled dashes"),
        (500, sr.encode("utf-16-be"), "utf-16-be"),
        (800, doubled.encode("utf-16-le"), "doubled dashes, utf-16-le"),
        (1000, bytes.fromhex(sr.replace("-", "")), "binary"),
        (4090, lvm_id.replace("-", "").encode(), "without dashes"),
        (5000, lvm_id.encode(), "text"),
    ]
    for offset, data, _ in forms:
        disk.poke(offset, data)

    found = sightings(disk, [sr, lvm_id])

    for offset, _, form in forms:
        assert any(item.offset == offset and item.form == form for item in found), (offset, form)
    assert [item.offset for item in sightings(disk, [sr, lvm_id], [Range(0, 4096)])] == [5000]
    assert sightings(disk, []) == []
