# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM, blkid and qemu-img read the builder's LUNs, and see what the independent reader sees.

The LUNs are image files behind loop devices. There may be no device-mapper, so no volume is activated; contents of
volumes are cut out by the builder's own segments.
"""

import json
import struct

import pytest
from volumes import info

from kit import builder
from kit.judges import NEW_LV, OLD_HEADER, assert_lvm_member, expected, run, vg_of
from kit.reader import lvm_crc, read_label, read_sr, read_vg, vg_view
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range

one_vhd, two_areas = builder.one_vhd, builder.two_metadata_areas

LUNS = {
    "golden_geometry": lambda: one_vhd(area=builder.AREA_16M),
    "five_deep_with_raw_root": builder.five_deep_with_raw_root,
    "fragmented_locators": builder.fragmented_locators,
    "two_metadata_areas": two_areas,
    "ignored_area": lambda: two_areas("ignored"),
    "wrapped_text": builder.wrapped_text,
    "unaligned_text": lambda: builder.wrapped_text(5000 - 96 + 3),
    "many_vdis": lambda: builder.many_vdis(100, chained=True),
    "qcow2_chain": builder.qcow2_chain,
    "four_k": builder.four_k,
    "everything": builder.everything,
    "extension_0": lambda: builder.everything(ext_version=0, style="2.02"),
    "extension_1": lambda: one_vhd(ext_version=1, style="2.02"),
    "label_in_sector_3": lambda: one_vhd(label_sector=3),
    "label_tail": lambda: one_vhd(label_tail=b"our own mark".ljust(64)),
    "small_area": lambda: one_vhd(area=Range(4096, 61440)),
}
OLD_LABELS = ("extension_0", "extension_1")


@pytest.mark.states("name", few=4)
@pytest.mark.parametrize("name", LUNS)
def test_reader_lvm_and_blkid_see_what_the_truth_says_and_lvm_goes_on_from_there(name, lvm, loops):
    lun = LUNS[name]()
    truth, vg, warnings = lun.truth, vg_of(lun.disk), OLD_HEADER if name in OLD_LABELS else ()
    assert (vg.pv_id, vg.name, vg.id, vg.seqno) == (truth.pv_id, truth.vg_name, truth.vg_id, truth.seqno)
    assert [(pv.pe_start, pv.pe_count) for pv in vg.pvs] == [(truth.pe_start // 512, truth.pe_count)]
    found = [(lv.name, lv.id, sorted(lv.tags), "WRITE" in lv.status, segments_of(lv)) for lv in vg.lvs]
    said = [(one.name, one.lv_id, sorted(one.tags), one.writable, [*map(tuple, one.segments)]) for one in truth.volumes]
    assert found == said
    loop = loops(lun.disk)
    own = lvm.over(loop.path)
    assert SparseDisk.from_file(loop.path, lun.disk.block_size) == lun.disk

    assert own.seen(warnings) == (expected(vg, loop.path, ignored_mdas=name == "ignored_area"),)
    assert own("vgck", warnings=warnings) == ""
    headers = own.headers(loop.path, truth.label_sector)
    sizes = [headers[f"mda_header_{number}.size"] for number in range(1, len(truth.areas) + 1)]
    assert sizes == [str(area.length) for area in truth.areas]
    assert_lvm_member(loop.path, truth.pv_id)

    own.create(truth.vg_name, NEW_LV, warnings=warnings)

    after = read_vg(loop.disk())
    assert (own("vgck"), after.warnings, after.seqno) == ("", (), vg.seqno + 1)
    assert (after.lvs[:-1], after.lvs[-1].name) == (vg.lvs, NEW_LV)
    assert (after.id, after.pv_id) == (vg.id, vg.pv_id)


def segments_of(lv):
    return [(segment.extent_count, segment.first_pe) for segment in lv.segments]


# -- contents of volumes ----------------------------------------------------------------------------------------------


def cut_out(lun, volume, folder):
    """The contents of a volume in a file."""
    disk, at = SparseDisk(volume.size), 0
    for item in lun.truth.device_ranges(volume.key, 0, volume.size):
        disk.poke(at, lun.disk.peek(item.offset, item.length))
        at += item.length
    disk.to_file(str(folder / volume.name))
    return folder / volume.name


@pytest.mark.parametrize("key", ["base", "disk", "overraw", "alone"])
def test_qemu_finds_nothing_wrong_with_a_qcow2_image(key, tmp_path):
    lun = builder.qcow2_chain()
    volume = lun.truth.volume(key)
    image = next(image for image in read_sr(lun.disk).qcow2s if image.name == volume.name)
    path = cut_out(lun, volume, tmp_path)

    said = info(path, "-f", "qcow2")
    blockdev = json.dumps({"driver": "qcow2", "file": {"driver": "file", "filename": str(path)}, "backing": None})
    checked = json.loads(run("qemu-img", "check", "--output", "json", "json:" + blockdev))

    assert said["virtual-size"] == image.virtual_size
    assert said.get("backing-filename", "") == image.backing
    assert said.get("backing-filename-format", "") == image.backing_format
    assert (checked["check-errors"], checked["image-end-offset"], checked["allocated-clusters"]) == (0, 6 * 65536, 1)


# -- the reader's rules of acceptance ---------------------------------------------------------------------------------


def poked(lun, offset, data):
    lun.disk.poke(offset, data)
    return lun


def changed(lun, at, offset, data, crc_at=None):
    """Bytes of a sector are others; if it has a checksum, that is right again."""
    sector = bytearray(lun.disk.peek(at, 512))
    sector[offset : offset + len(data)] = data
    if crc_at is not None:
        struct.pack_into("<I", sector, crc_at, lvm_crc(bytes(sector[crc_at + 4 :])))
    return poked(lun, at, bytes(sector))


def label(offset, data, crc_at=16):
    return lambda: changed(one_vhd(), 512, offset, data, crc_at)


def header(offset, data, crc_at=0, area=0, make=one_vhd):
    def made():
        lun = make()
        return changed(lun, lun.truth.areas[area].offset, offset, data, crc_at)

    return made


def second_area_from_another_lun():
    lun, other = two_areas(seqno=30), two_areas(description="x", seqno=31)
    area = lun.truth.areas[1]
    return poked(lun, area.offset, other.disk.peek(area.offset, area.length))


def label_in_sector_4():
    return poked(poked(one_vhd(), 2048, one_vhd(label_sector=0).disk.peek(0, 512)), 512, bytes(512))


ODD = {
    "as it is": one_vhd,
    "magic of the label damaged": label(0, b"x", crc_at=None),
    "checksum of the label wrong": label(300, b"x", crc_at=None),
    "another type": label(24, b"RELVM001"),
    "wrong sector number": label(8, b"\x02"),
    "label zeroed": label(0, bytes(512), crc_at=None),
    "label in sector 4": label_in_sector_4,
    "LVM1 version 1 in sector 0": lambda: poked(one_vhd(), 0, b"HM\1\0"),
    "LVM1 version 3 in sector 0": lambda: poked(one_vhd(), 0, b"HM\3\0"),
    "header checksum wrong": header(300, b"x", crc_at=None),
    "header magic wrong": header(4, b"x"),
    "header version wrong": header(20, b"\x02"),
    "header start wrong": header(24, struct.pack("<Q", 8192)),
    "text checksum wrong": header(56, b"xxxx"),
    "slot 0 empty": header(40, bytes(24)),
    "ignored": header(60, b"\x01"),
    "slot 1 in use": lambda: one_vhd(precommitted=True),
    "second area older": lambda: two_areas("older"),
    "second area newer": second_area_from_another_lun,
    "first area damaged": header(300, b"x", None, make=two_areas),
    "second area damaged": header(300, b"x", None, area=1, make=two_areas),
}


def shown(own, command, *fields):
    """What LVM lists, and what it complains of."""
    said = own.attempt(command, "--reportformat", "json", "-o", ",".join(fields))
    assert said.status == 0, said
    ((rows,),) = [one.values() for one in json.loads(said.stdout.replace("  Retrying metadata scan.\n", ""))["report"]]
    return [tuple(row[field] for field in fields) for row in rows], said.stderr


@pytest.mark.states("what")
@pytest.mark.parametrize("what", ODD)
def test_lvm_and_the_reader_agree_on_what_is_there(what, lvm, loops):
    lun = ODD[what]()
    label, vg = read_label(lun.disk), read_vg(lun.disk)
    own = lvm.over(loops(lun.disk).path)

    pvs, err = shown(own, "pvs", "pv_uuid", "vg_name", "vg_seqno")
    vgs, _ = shown(own, "vgs", "vg_uuid", "vg_name", "vg_seqno")
    pvs = pvs if label else []

    # an unusable metadata area may show its PV as unknown or not at all, but never as a VG
    if vg is None:
        assert vgs == []
        assert all(name in ("", "[unknown]") for _, name, _ in pvs)
    else:
        assert vgs == [(vg.id, vg.name, str(vg.seqno))]
        assert pvs == [(label.pv_id, vg.name, str(vg.seqno))]
    # whether a committed VG has something to complain about is seen by both
    assert bool(vg and vg.warnings) == bool(vg and err), (vg and vg.warnings, err)


@pytest.mark.parametrize("old, new", [
    ('"pv0", 1\n', '"pv0", 0\n'), ('"pv0", 1\n', '"pv0", 4000\n'),  # an extent that is shared, that is not there
    ("start_extent = 0", "start_extent = 1"), ("segment_count = 1", "segment_count = 2"),
    ("seqno = ", "seqno_ = "), ("\ncreation_host", "\nhost"), ("version = 1\n", "version = 2\n"),
    ('"VISIBLE"]', '"VISIBLE", "NEW"]'), ('MGT {\nid = "', 'MGT {\nid = "1'),
    ("}\n#", "}\n}\n#"), ("flags = []", "flags = ]"), ("flags = []", "flags {"), ("VG_", " VG_"),
])  # fmt: skip
def test_lvm_and_the_reader_refuse_the_same_texts(old, new, lvm, loops):
    lun = one_vhd(edit_text=lambda text: text.replace(old, new, 1), stale_texts=0)
    view = vg_view(lun.disk)

    said = lvm.over(loops(lun.disk).path).attempt("vgs", "--noheadings", "-o", "vg_name")

    assert view[0] == "PV without VG" and view[-1]
    assert said.status in (0, 5) and lun.truth.vg_name not in said.stdout.split()
    assert said.stderr
