# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM, blkid, qemu-img and libvhdi read the builder's LUNs, and see what the independent reader sees.

The LUNs are image files behind loop devices. There may be no device-mapper, so no volume is activated; contents of
volumes are cut out by the builder's own segments.
"""

import json
import struct

import pytest

from kit import builder
from kit.judges import NEW_LV, OLD_HEADER, assert_lvm_member, expected, run, vg_of
from kit.reader import lvm_crc, read_label, read_sr, read_vg, vg_view
from kit.sparse import SparseDisk
from relvmoiscsi.device import Range

LUNS = {
    "one_vhd": builder.one_vhd,
    "golden_geometry": lambda: builder.one_vhd(area=builder.AREA_16M),
    "five_deep_with_raw_root": builder.five_deep_with_raw_root,
    "fragmented_locators": builder.fragmented_locators,
    "two_metadata_areas": builder.two_metadata_areas,
    "ignored_area": lambda: builder.two_metadata_areas("ignored"),
    "wrapped_text": builder.wrapped_text,
    "unaligned_text": lambda: builder.wrapped_text(5000 - 96 + 3),
    "many_vdis": lambda: builder.many_vdis(100, chained=True),
    "qcow2_chain": builder.qcow2_chain,
    "four_k": builder.four_k,
    "labels": builder.labels,
    "everything": builder.everything,
    "extension_0": lambda: builder.everything(ext_version=0, style="2.02"),
    "extension_1": lambda: builder.one_vhd(ext_version=1, style="2.02"),
    "label_in_sector_3": lambda: builder.one_vhd(label_sector=3),
    "label_tail": lambda: builder.one_vhd(label_tail=b"our own mark".ljust(64)),
    "small_area": lambda: builder.one_vhd(area=Range(4096, 61440)),
}
OLD_LABELS = ("extension_0", "extension_1")


@pytest.mark.states("name", few=4)
@pytest.mark.parametrize("name", sorted(LUNS))
def test_reader_lvm_and_blkid_see_what_the_truth_says_and_lvm_goes_on_from_there(name, lvm, loops):
    lun = LUNS[name]()
    truth, vg, warnings = lun.truth, vg_of(lun.disk), OLD_HEADER if name in OLD_LABELS else ()
    assert (vg.pv_id, vg.name, vg.id, vg.seqno) == (truth.pv_id, truth.vg_name, truth.vg_id, truth.seqno)
    assert [(pv.pe_start, pv.pe_count) for pv in vg.pvs] == [(truth.pe_start // 512, truth.pe_count)]
    found = [(lv.name, lv.id, sorted(lv.tags), "WRITE" in lv.status, segments_of(lv)) for lv in vg.lvs]
    assert found == [
        (one.name, one.lv_id, sorted(one.tags), one.writable, [tuple(part) for part in one.segments])
        for one in truth.volumes
    ]
    loop = loops(lun.disk)
    own = lvm.over(loop.path)

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


def test_a_block_device_is_read_like_a_file(loops):
    lun = builder.four_k()

    assert SparseDisk.from_file(loops(lun.disk).path, 4096) == lun.disk


# -- contents of volumes


def cut_out(lun, volume, folder):
    """The contents of a volume in a file."""
    disk = SparseDisk(volume.size)
    at = 0
    for item in lun.truth.device_ranges(volume.key, 0, volume.size):
        disk.poke(at, lun.disk.peek(item.offset, item.length))
        at += item.length
    path = str(folder / volume.name)
    disk.to_file(path)
    return path


def test_qemu_reads_the_guest_data_of_a_dynamic_vhd(tmp_path):
    lun = builder.fragmented_locators()
    volume = next(v for v in lun.truth.volumes if v.kind == "vhd" and not v.parent)
    out = str(tmp_path / "raw")

    run("qemu-img", "convert", "-f", "vpc", "-O", "raw", cut_out(lun, volume, tmp_path), out)

    guest = SparseDisk.from_file(out)
    assert guest.size_bytes == 64 << 20
    blocks = len(volume.guest) // 4
    for number, item in enumerate(volume.guest):
        block, sector = number // 4, (0, 1, 100, 4095)[number % 4]
        (place,) = lun.truth.device_ranges(volume.key, item.offset, item.length)
        assert guest.peek(block * (2 << 20) + sector * 512, 512) == lun.disk.peek(place.offset, 512)
    assert sum(len(data) for _, data in guest.runs()) <= blocks * 3 * 4096


@pytest.mark.parametrize("key", ["base", "disk", "overraw", "alone"])
def test_qemu_finds_nothing_wrong_with_a_qcow2_image(key, tmp_path):
    lun = builder.qcow2_chain()
    volume = lun.truth.volume(key)
    image = next(image for image in read_sr(lun.disk).qcow2s if image.name == volume.name)
    path = cut_out(lun, volume, tmp_path)

    info = json.loads(run("qemu-img", "info", "-f", "qcow2", "--output", "json", path))
    blockdev = json.dumps({"driver": "qcow2", "file": {"driver": "file", "filename": path}, "backing": None})
    checked = run("qemu-img", "check", "--output", "json", "json:" + blockdev)

    assert info["virtual-size"] == image.virtual_size
    assert info.get("backing-filename", "") == image.backing
    assert info.get("backing-filename-format", "") == image.backing_format
    result = json.loads(checked)
    assert (result["check-errors"], result["image-end-offset"], result["allocated-clusters"]) == (0, 6 * 65536, 1)


# -- the reader's rules of acceptance


def relabelled(lun, offset, data, crc=True):
    sector = bytearray(lun.disk.peek(512, 512))
    sector[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", sector, 16, lvm_crc(bytes(sector[20:])))
    lun.disk.poke(512, bytes(sector))
    return lun


def reheaded(lun, offset, data, crc=True, area=0):
    at = lun.truth.areas[area].offset
    header = bytearray(lun.disk.peek(at, 512))
    header[offset : offset + len(data)] = data
    if crc:
        struct.pack_into("<I", header, 0, lvm_crc(bytes(header[4:])))
    lun.disk.poke(at, bytes(header))
    return lun


def poked(lun, offset, data):
    lun.disk.poke(offset, data)
    return lun


def second_from_another_lun():
    lun, other = builder.two_metadata_areas(seqno=30), builder.two_metadata_areas(description="x", seqno=31)
    area = lun.truth.areas[1]
    return poked(lun, area.offset, other.disk.peek(area.offset, area.length))


ODD = {
    "as it is": builder.one_vhd,
    "magic of the label damaged": lambda: relabelled(builder.one_vhd(), 0, b"x", crc=False),
    "checksum of the label wrong": lambda: relabelled(builder.one_vhd(), 300, b"x", crc=False),
    "another type": lambda: relabelled(builder.one_vhd(), 24, b"RELVM001"),
    "wrong sector number": lambda: relabelled(builder.one_vhd(), 8, b"\x02"),
    "label zeroed": lambda: poked(builder.one_vhd(), 512, bytes(512)),
    "label in sector 4": lambda: poked(
        poked(builder.one_vhd(), 2048, builder.one_vhd(label_sector=0).disk.peek(0, 512)), 512, bytes(512)
    ),
    "LVM1 version 1 in sector 0": lambda: poked(builder.one_vhd(), 0, b"HM\1\0"),
    "LVM1 version 3 in sector 0": lambda: poked(builder.one_vhd(), 0, b"HM\3\0"),
    "header checksum wrong": lambda: reheaded(builder.one_vhd(), 300, b"x", crc=False),
    "header magic wrong": lambda: reheaded(builder.one_vhd(), 4, b"x"),
    "header version wrong": lambda: reheaded(builder.one_vhd(), 20, b"\x02"),
    "header start wrong": lambda: reheaded(builder.one_vhd(), 24, struct.pack("<Q", 8192)),
    "text checksum wrong": lambda: reheaded(builder.one_vhd(), 56, b"xxxx"),
    "slot 0 empty": lambda: reheaded(builder.one_vhd(), 40, bytes(24)),
    "ignored": lambda: reheaded(builder.one_vhd(), 60, b"\x01"),
    "slot 1 in use": lambda: builder.one_vhd(precommitted=True),
    "second area older": lambda: builder.two_metadata_areas("older"),
    "second area newer": second_from_another_lun,
    "first area damaged": lambda: reheaded(builder.two_metadata_areas(), 300, b"x", crc=False),
    "second area damaged": lambda: reheaded(builder.two_metadata_areas(), 300, b"x", crc=False, area=1),
}


def shown(own, command, *fields):
    """What LVM lists, and what it complains of."""
    said = own.attempt(command, "--reportformat", "json", "-o", ",".join(fields))
    assert said.status == 0, said
    ((rows,),) = [one.values() for one in json.loads(said.stdout.replace("  Retrying metadata scan.\n", ""))["report"]]
    return [tuple(row[field] for field in fields) for row in rows], said.stderr


@pytest.mark.states("what")
@pytest.mark.parametrize("what", sorted(ODD))
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


SPOILED_TEXT = {
    "a shared extent": ('"pv0", 1\n', '"pv0", 0\n'),
    "an extent that is not there": ('"pv0", 1\n', '"pv0", 4000\n'),
    "a gap": ("start_extent = 0", "start_extent = 1"),
    "no seqno": ("seqno = ", "seqno_ = "),
    "a wrong segment count": ("segment_count = 1", "segment_count = 2"),
    "a creation time without host": ("\ncreation_host", "\nhost"),
    "another version": ("version = 1\n", "version = 2\n"),
    "an unknown status": ('"VISIBLE"]', '"VISIBLE", "NEW"]'),
    "a bad id": ('MGT {\nid = "', 'MGT {\nid = "1'),
    "a brace too many": ("}\n#", "}\n}\n#"),
    "no value": ("flags = []", "flags = ]"),
    "a section that is not closed": ("flags = []", "flags {"),
    "a blank before the name": ("VG_", " VG_"),
}


@pytest.mark.parametrize("what", sorted(SPOILED_TEXT))
def test_lvm_and_the_reader_refuse_the_same_texts(what, lvm, loops):
    old, new = SPOILED_TEXT[what]
    lun = builder.one_vhd(edit_text=lambda text: text.replace(old, new, 1), stale_texts=0)
    view = vg_view(lun.disk)

    said = lvm.over(loops(lun.disk).path).attempt("vgs", "--noheadings", "-o", "vg_name")

    assert view[0] == "PV without VG" and view[-1]
    assert said.status in (0, 5) and lun.truth.vg_name not in said.stdout.split()
    assert said.stderr
