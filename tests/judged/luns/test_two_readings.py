# SPDX-License-Identifier: LGPL-2.1-only
"""Real programs read LUNs that a stranger has forged, and relvmoiscsi refuses what it would read otherwise."""

import json
import struct

import pytest

from kit import build_lvm
from kit.build_volumes import MIB, Qcow2Spec, qcow2_content, qcow2_head
from kit.builder import build_sr, raw
from kit.judges import dice, run
from kit.lvmreader import read_mda
from kit.spoiled import LABEL, Spoiled
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import FormatError, Malformed, Unsupported
from relvmoiscsi.formats import qcow2


def refused(disk, error, words):
    """Nothing plans a run on the disk, and `check` says why."""
    with pytest.raises(error, match=words):
        engine.prepare(disk, dice("new ids"))
    assert isinstance(engine.inspect(disk).problem, FormatError)


def test_lvm_ends_a_list_of_areas_at_the_offset_0_whatever_the_size(lvm, loops):
    forged = Spoiled(build_sr([raw("data")], free_extents=40))
    truth, disk = forged.truth, forged.disk
    text = read_mda(disk, truth.areas[0]).text.replace(b"seqno = ", b"seqno = 7")
    other = Range(truth.pe_start + (truth.pe_count - 20) * truth.extent_size, MIB)
    build_lvm.put_text(disk, other, 512, text)
    forged.poke(other.offset, build_lvm.mda_header(other, [build_lvm.raw_locn(512, text)]))
    theirs = struct.pack("<8QIIQQ8x", truth.pe_start, 0, 0, 1, *other, 0, 1, 2, 1, 0, 1)
    hidden = struct.pack("<6QII16x", 0, 0, *truth.areas[0], 0, 0, 2, 1)  # behind entries that are not all zeros
    forged.poke(LABEL + 72, theirs + hidden).sealed_label()

    (seen,) = lvm.over(loops(disk).path).seen()

    assert seen.vg[2] == f"7{truth.seqno}", "the text of the area behind the entry (0, 1)"
    refused(disk, Malformed, "LVM label at byte 600 .* has the offset 0 and 1 bytes: LVM ends a list there")


WIDE, FREE = 1 << 32, 8
#: numbers of a text, another number of which LVM reads the same
TRUNCATED = {
    "extent_size": ("extent_size = 8192", f"extent_size = {WIDE + 8192}"),
    "pe_count": ("pe_count = 10\n", f"pe_count = {WIDE + 10}\n"),
    "extent_count": ("extent_count = 1", f"extent_count = {WIDE + 1}"),
    "start_extent": ("start_extent = 0", f"start_extent = {WIDE}"),
    "stripe_count": ("stripe_count = 1", f"stripe_count = {WIDE + 1}"),
    "stripes": ('"pv0", 0', f'"pv0", {WIDE}'),
    "negative": ("extent_count = 1", f"extent_count = {1 - WIDE}"),
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_lvm_keeps_32_bits_of_a_number(name, lvm, loops):
    whole = build_sr([raw("data")], free_extents=FREE)
    old, new = TRUNCATED[name]
    disk = build_sr([raw("data")], free_extents=FREE, edit_text=lambda text: text.replace(old, new)).disk
    lun, wide = loops(whole.disk), loops(disk)

    seen = [lvm.over(each.path).seen() for each in (lun, wide)]

    assert whole.disk != disk
    assert repr(seen[1]).replace(wide.path, lun.path) == repr(seen[0])
    refused(disk, Malformed, "expected an integer from|has the stripes")


UNREAD = {
    "limit": ("max_lv = 0", 'max_lv = "0"'),
    "time": ("creation_time = 17", 'creation_time = "17" #'),
    "list": ('"pv0", 0', '"pv0" 0'),
    "name of the group": (" {\nid", "#\n{\nid"),
    "tags of the group": ("max_lv = 0", "max_lv = 0\ntags = [5]"),
    "tags of the PV": ('device = "/dev/sdb"', 'device = "/dev/sdb"\ntags = [5]'),
    "tags of a segment": ("extent_count = 1", "extent_count = 1\ntags = [5]"),
    "host": ('creation_host = "xen', "creation_host = 5 #"),
    "no time": ("creation_time", "xcreation_time"),
    "bootloader area": ('device = "/dev/sdb"', 'device = "/dev/sdb"\nba_start = 5'),
    "flag": ("flags = []\ncreation", 'flags = ["ERROR_WHEN_FULL"]\ncreation'),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_lvm_does_not_show_is_refused(name, lvm, loops):
    disk = build_sr([raw("data")], edit_text=lambda text: text.replace(*UNREAD[name], 1)).disk

    assert "MGT" not in lvm.over(loops(disk).path).attempt("lvs").stdout
    refused(disk, FormatError, "Nothing was written")


def test_lvm_reads_a_status_in_the_flags_behind_cache_vol(lvm, loops):
    old, new = "flags = []\ncreation", 'flags = ["CACHE_VOL", "LOCKED", "PVMOVE"]\ncreation'
    disk = build_sr([raw("data")], edit_text=lambda text: text.replace(old, new, 1)).disk

    attributes = lvm.over(loops(disk).path)("lvs", "--noheadings", "-o", "lv_attr", "-S", "lv_name=MGT")

    assert attributes.strip().startswith("p"), "the volume counts as one that pvmove makes"
    refused(disk, Unsupported, "Logical volume MGT .* its flag is CACHE_VOL")


def image(path, spec, pieces=()):
    """A file with the head of an image, or with all of it."""
    with open(str(path), "wb") as file:
        for offset, data in pieces or qcow2_content(MIB, spec).pieces:
            file.seek(offset)
            file.write(data)
        file.truncate(4 * MIB)
    return str(path)


FORMAT = struct.pack(">I", 0xE2792ACA)


@pytest.mark.parametrize(
    "named, opened",
    [("raw", ["qcow2", "raw"]), ("qcow2", ["qcow2"] * 3), ("twice", ["qcow2"] * 3), ("", ["qcow2"] * 3)],
)
def test_qemu_opens_a_raw_parent_as_the_header_says_or_as_it_looks(named, opened, tmp_path):
    """A raw parent whose data begins like an image leads QEMU to any file of the host."""
    last = image(tmp_path / "secret", Qcow2Spec(MIB, "", "", None, "secret"))
    parent = image(tmp_path / "parent", Qcow2Spec(MIB, last, "qcow2", None, "parent"))

    def head_over(path):
        head = bytearray(b"".join(qcow2_head(Qcow2Spec(MIB, path, named if named == "qcow2" else "raw", None, "x"))))
        if not named:
            head = head.replace(FORMAT, b"none")
        if named == "twice":
            at = head.index(struct.pack(">I", 0x6803F857))  # the feature table, of 144 bytes
            head[at : at + 152] = FORMAT + struct.pack(">I5s3x", 5, b"qcow2") + b"none" + struct.pack(">I128x", 128)
        return bytes(head)

    leaf = str(tmp_path / "leaf")
    rest = [piece for piece in qcow2_content(MIB, Qcow2Spec(MIB, "", "", None, "x")).pieces if piece[0]]
    image(leaf, None, [(0, head_over(parent)), *rest])

    chain = json.loads(run("qemu-img", "info", "--backing-chain", "--output", "json", leaf))

    assert [each["format"] for each in chain] == opened
    path = "/dev/VG_XenStorage-0a0b0c0d-0000-4000-8000-000000000001/LV-0a0b0c0d-0000-4000-8000-000000000002"
    head = head_over(path).ljust(qcow2.HEAD_BYTES, b"\0")
    if named == "raw":
        assert qcow2.parent_of(qcow2.read_qcow2(head, "QCOW2-x", MIB), path.encode(), "QCOW2-x").kind == "raw"
    else:
        with pytest.raises(Unsupported, match="QEMU|a second one"):
            qcow2.parent_of(qcow2.read_qcow2(head, "QCOW2-x", MIB), path.encode(), "QCOW2-x")
