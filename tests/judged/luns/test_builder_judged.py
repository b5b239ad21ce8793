# SPDX-License-Identifier: LGPL-2.1-only
"""qemu-img reads the builder's images, and real LVM takes and refuses what the independent reader does.

That LVM and blkid see the builder's LUNs as the reader does: test_lvm_judges.py. The LUNs are image files behind loop
devices. There may be no device-mapper, so no volume is activated; contents of volumes are cut out by the builder's own
segments.
"""

import json
import struct

import pytest
from volumes import info

from kit import builder
from kit.judges import run
from kit.reader import lvm_crc, read_label, read_sr, read_vg, vg_view
from kit.sparse import SparseDisk

one_vhd, two_areas = builder.one_vhd, builder.two_metadata_areas

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
