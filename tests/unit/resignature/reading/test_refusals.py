# SPDX-License-Identifier: LGPL-2.1-only
"""Everything that is refused: with which error, in which words, and without a write.

Each row spoils a LUN in one way and says what `prepare` answers: the class of the error, hence the exit status, and
words of its sentence, the offset where there is one. Why: docs/formats.
"""

import itertools
import struct
import tracemalloc
from typing import Any, NamedTuple, Tuple

import pytest

from kit import build_lvm, builder
from kit.build_volumes import MIB, noise
from kit.builder import (
    AREA_10M,
    AREA_DEFAULT,
    SMALL_BAT,
    Volume,
    build_sr,
    cbtlog,
    journal,
    jvhd,
    named,
    qcow2,
    raw,
    trim,
    vhd,
)
from kit.examples import seeds
from kit.outcome import entropy_of
from kit.sparse import SparseDisk
from relvmoiscsi import engine, report
from relvmoiscsi.device import Range
from relvmoiscsi.errors import (
    BadChecksum,
    BadMagic,
    FormatError,
    Malformed,
    NotFound,
    Refused,
    Truncated,
    Unfinished,
    Unsupported,
)

LABEL = 512
AREA = 4096
OTHER_SR = "0a0b0c0d-0000-4000-8000-00000000000f"
GONE = "0a0b0c0d-0000-4000-8000-000000000001"
EXIT_STATUS = {NotFound: 3, Refused: 4, FormatError: 5, Unfinished: 8}


class Spoiled:
    """A built LUN to be spoiled in one way."""

    def __init__(self, volumes=(), **options):
        options.setdefault("area", AREA_DEFAULT)
        self.built = build_sr(volumes, **options)
        self.truth = self.built.truth
        self.disk = self.built.disk.copy()
        self.text_at = self.truth.areas[0].offset + self.truth.text_offset

    def at(self, key, offset):
        """Where on the device a byte of a volume is."""
        return self.truth.device_ranges(key, offset, 1)[0].offset

    def poke(self, offset, data):
        self.disk.poke(offset, data)
        return self

    def pack(self, offset, form, *values):
        return self.poke(offset, struct.pack(form, *values))

    def in_volume(self, key, offset, data):
        return self.poke(self.at(key, offset), data)

    def replaced(self, key, old, new):
        """The first `old` in a volume's first MiB becomes `new`, of the same length."""
        assert len(old) == len(new)
        at = self.disk.peek(self.at(key, 0), MIB).index(old)
        return self.in_volume(key, at, new)

    def sealed_label(self):
        return self.pack(LABEL + 16, "<I", build_lvm.crc(self.disk.peek(LABEL + 20, 492)))

    def sealed_area(self, number=0):
        at = self.truth.areas[number].offset
        return self.pack(at, "<I", build_lvm.crc(self.disk.peek(at + 4, 508)))

    def sealed_vhd(self, key):
        size = self.truth.volume(key).size
        for offset, length, field in ((0, 512, 64), (size - 512, 512, 64), (512, 1024, 36)):
            data = self.disk.peek(self.at(key, offset), length)
            total = sum(data) - sum(data[field : field + 4])
            self.in_volume(key, offset + field, struct.pack(">I", ~total & 0xFFFFFFFF))
        return self

    def cut(self, size):
        disk = SparseDisk(size, self.disk.block_size, self.disk.name)
        disk.poke(0, self.disk.peek(0, size))
        self.disk = disk
        return self


def text(old, new, count=1):
    """A LUN whose text LVM would have written with `new` in the place of `old`."""

    return lambda: Spoiled([raw("data")], edit_text=lambda committed: committed.replace(old, new, count))


def one_raw():
    return Spoiled([raw("data")])


def pair(**options):
    """A base and its child, both small VHDs."""
    return Spoiled(
        [vhd("base", hidden=True, bat_entries=SMALL_BAT), vhd("disk", "base", bat_entries=SMALL_BAT, **options)]
    )


def blank(size=64 * MIB, **pokes):
    """A disk with nothing on it but some bytes: `at512=b"..."`."""
    spoiled = Spoiled()
    spoiled.disk = SparseDisk(size)
    for place, data in pokes.items():
        spoiled.poke(int(place[2:]), data)
    return spoiled


def partition_table(kind):
    return bytes(446) + bytes(4) + bytes([kind]) + bytes(11) + bytes(48) + b"\x55\xaa"


class Row(NamedTuple):
    make: Any
    error: type
    words: Tuple[str, ...]
    state: str = engine.DAMAGED


def foreign(make, *words, error=Refused):
    return Row(make, error, words, engine.FOREIGN)


def malformed(make, *words):
    return Row(make, Malformed, words)


def unsupported(make, *words):
    return Row(make, Unsupported, words)


SMALL = {"bat_entries": SMALL_BAT}


def _three_areas():
    spoiled = one_raw()
    areas = struct.pack("<QQQQQQ", 4096, 1044480, 2 << 20, 1 << 20, 3 << 20, 1 << 20)
    return spoiled.poke(LABEL + 104, areas + bytes(16 + 24)).sealed_label()


def _same_area_twice():
    return one_raw().poke(LABEL + 104, struct.pack("<QQQQ", 4096, 1044480, 4096, 1044480) + bytes(40)).sealed_label()


def _long_lists():
    """Bootloader areas that reach into the place of the mark."""
    spoiled = one_raw()
    return spoiled.poke(LABEL + 144, struct.pack("<QQ", 1 << 20, 4096) * 18 + bytes(16)).sealed_label()


def _marked(phase, version=1):
    tail = struct.pack("<8sBBBBI", b"reLVMtag", version, phase, 1, 0, 4096) + noise(16, "run id")
    tail += struct.pack("<Q", 8192) + bytes(24) + noise(32, "digest")
    return one_raw().poke(LABEL + 416, tail).sealed_label()


def _in_text(data):
    spoiled = one_raw()
    return spoiled.poke(spoiled.text_at + 200, data)


def _second_area_empty():
    spoiled = Spoiled([raw("data")], second_area="same")
    area = spoiled.truth.areas[1]
    return spoiled.poke(area.offset, build_lvm.mda_header(area, []))


def _second_area_spoiled():
    spoiled = Spoiled([raw("data")], second_area="same")
    return spoiled.poke(spoiled.truth.areas[1].offset + 50, b"\7")


def _area_in_extents():
    return text("pe_start = 2048", "pe_start = 1024")()


def _without_pv():
    def edit(committed):
        start, end = committed.index("pv0 {"), committed.index("logical_volumes")
        return committed[:start] + "}\n\n" + committed[end:]

    return Spoiled([raw("data")], edit_text=edit)


def _segments(change):
    """A raw volume of two segments, whose text is changed."""
    return Spoiled([raw("data", segments=((1, 3), (1, 5)))], edit_text=change)


def _overlapping_segments():
    return _segments(lambda committed: committed.replace("start_extent = 1", "start_extent = 0"))


def _gap_between_segments():
    return _segments(lambda committed: committed.replace("start_extent = 1", "start_extent = 2"))


def _duplicate_names():
    spoiled = one_raw()
    name = spoiled.truth.volume("data").name
    return Spoiled([raw("data")], edit_text=lambda committed: committed.replace(name, "MGT"))


def _duplicate_ids():
    truth = one_raw().truth
    ids = truth.volume("data").lv_id, truth.volume("MGT").lv_id
    return Spoiled([raw("data")], edit_text=lambda committed: committed.replace(*ids))


def _id_of_the_vg():
    truth = one_raw().truth
    ids = truth.volume("data").lv_id, truth.vg_id
    return Spoiled([raw("data")], edit_text=lambda committed: committed.replace(*ids))


def _vhd(offset, data, both=False):
    """A small VHD with other bytes, in both footers if need be; sealed if a checksum is not what the row is about."""
    spoiled = Spoiled([vhd("disk", **SMALL)])
    size = spoiled.truth.volume("disk").size
    spoiled.in_volume("disk", offset % size, data)
    if both:
        spoiled.in_volume("disk", size - 512 + offset, data)
    sealed = both or offset in (540, 552, 576, 1280)
    return spoiled.sealed_vhd("disk") if sealed else spoiled


def _end_footer_of_another():
    spoiled = pair()
    sizes = [spoiled.truth.volume(key).size for key in ("disk", "base")]
    footer = spoiled.disk.peek(spoiled.at("base", sizes[1] - 512), 512)
    return spoiled.in_volume("disk", sizes[0] - 512, footer)


def _renamed_parent(key, new):
    """Header and locators agree on another parent."""
    spoiled = pair()
    old = spoiled.truth.uuids[key].replace("-", "--")
    for part in spoiled.truth.volume("disk").identities[1:]:
        data = spoiled.disk.peek(spoiled.at("disk", part.offset), part.length)
        for codec in ("utf-16-be" if part.offset == 576 else "utf-16-le", "ascii"):
            data = data.replace(old.encode(codec), new.replace("-", "--").encode(codec))
        spoiled.in_volume("disk", part.offset, data)
    return spoiled.sealed_vhd("disk")


def _loop():
    """Two VHDs that name each other; the builder makes them one after the other."""
    return Spoiled([vhd("one", "two", **SMALL), vhd("two", "one", **SMALL)])


def _own_parent():
    return Spoiled([vhd("one", "one", **SMALL)])


def _first_locator(spoiled):
    return spoiled.truth.volume("disk").identities[2].offset


def _locator(data):
    spoiled = pair()
    return spoiled.in_volume("disk", _first_locator(spoiled), data)


def _entry(offset, form, *values):
    """The first locator's entry in the header."""
    return pair().in_volume("disk", 1088 + offset, struct.pack(form, *values)).sealed_vhd("disk")


def _qcow2_pair():
    return Spoiled([qcow2("base", hidden=True), qcow2("disk", "base")])


def _qcow2(offset, form, value):
    return _qcow2_pair().in_volume("disk", offset, struct.pack(form, value))


def _backing(key, new):
    spoiled = _qcow2_pair()
    return spoiled.replaced("disk", spoiled.truth.uuids[key].encode(), new.encode())


def _backing_path():
    spoiled = _qcow2_pair()
    return spoiled.replaced("disk", b"/dev/VG_XenStorage", b"/tmp/VG_XenStorage")


def _qcow2_over_vhd():
    spoiled = Spoiled([vhd("base", **SMALL), qcow2("other"), qcow2("disk", "other")])
    for old, new in (
        (b"/QCOW2-", b"/VHD-"),
        (spoiled.truth.uuids["other"].encode(), spoiled.truth.uuids["base"].encode()),
    ):
        at = spoiled.at("disk", 0)
        spoiled.poke(at, spoiled.disk.peek(at, 1024).replace(old, new))
    return spoiled.pack(spoiled.at("disk", 16), ">I", 96)


def _one_uuid_twice():
    return Spoiled([raw("data", uuid=GONE), vhd("disk", uuid=GONE, in_mgt=False, **SMALL)])


def _without_last_sector():
    spoiled = one_raw()
    return spoiled.cut(spoiled.disk.size_bytes - 512)


def _mgt(offset, data):
    return one_raw().in_volume("MGT", offset, data)


UNUSABLE = {
    "empty device": Row(blank, NotFound, ("is empty",), engine.EMPTY),
    "MBR partition table": foreign(
        lambda: blank(at0=partition_table(0x8E)), "no LVM physical volume", "partition table"
    ),
    "GPT": foreign(lambda: blank(at0=partition_table(0xEE), at512=b"EFI PART"), "no LVM physical volume", "GPT"),
    "partition table beside the label": foreign(
        lambda: one_raw().poke(0, partition_table(0x83)), "partition table beside its LVM label"
    ),
    "ext4": foreign(lambda: blank(at1080=b"\x53\xef"), "ext2, ext3 or ext4"),
    "XFS": foreign(lambda: blank(at0=b"XFSB"), "XFS"),
    "VHD on the bare device": foreign(lambda: blank(at0=b"conectix"), "a disk image, not an SR"),
    "QCOW2 on the bare device": foreign(lambda: blank(at0=b"QFI\xfb"), "a disk image, not an SR"),
    "unknown bytes": foreign(lambda: blank(at0=b"whatever"), "no LVM physical volume", "unknown"),
    "LVM1": foreign(lambda: one_raw().poke(0, b"HM"), "LVM1"),
    "PV without VG": foreign(
        lambda: one_raw().poke(AREA, build_lvm.mda_header(Range(*AREA_DEFAULT), [])), "without a volume group"
    ),
    "VG of another system": foreign(lambda: Spoiled(vg_name="vg0"), "the volume group vg0, which is no SR's"),
    "SR of files on LVM": foreign(lambda: Spoiled(vg_name="XSLocalEXT-" + GONE), "XSLocalEXT-", "no SR's"),
}

LABELS = {
    "label CRC": Row(lambda: one_raw().poke(LABEL + 100, b"\7"), BadChecksum, ("LVM label at byte 512 of",)),
    "no metadata area": unsupported(
        lambda: one_raw().poke(LABEL + 104, bytes(16)).sealed_label(), "it lists 0 metadata areas"
    ),
    "three metadata areas": unsupported(_three_areas, "it lists 3 metadata areas"),
    "metadata area outside the device": malformed(
        lambda: one_raw().pack(LABEL + 104, "<Q", 1 << 50).sealed_label(),
        "LVM label at byte 616",
        "a metadata area of 1044480 bytes at 1125899906842624 is not on the device",
    ),
    "metadata area of a petabyte": malformed(
        lambda: one_raw().pack(LABEL + 112, "<Q", 1 << 50).sealed_label(), "a metadata area of 1125899906842624 bytes"
    ),
    "metadata area over the label": malformed(
        lambda: one_raw().pack(LABEL + 104, "<Q", 1024).sealed_label(), "at 1024 is not on the device"
    ),
    "one metadata area twice": malformed(_same_area_twice, "metadata areas at 4096 and 4096 overlap"),
    "label of another PV": malformed(
        lambda: one_raw().poke(LABEL + 32, b"x" * 32).sealed_label(), "byte 512", "not the one in the metadata text"
    ),
    "no PV id": Row(lambda: one_raw().poke(LABEL + 32, bytes(32)).sealed_label(), FormatError, ("is not an LVM id",)),
    "tail in use by unknown bytes": unsupported(
        lambda: Spoiled([raw("data")], label_tail=b"somebody"), "byte 928", "in use by something else"
    ),
    "lists up to the end of the sector": unsupported(_long_lists, "its lists leave no room for the mark of a run"),
    "mark of a later relvmoiscsi": unsupported(
        lambda: _marked(1, version=2), "Mark of a run at byte 928", "another version of relvmoiscsi"
    ),
}


AREAS = {
    "mda CRC": Row(lambda: one_raw().poke(AREA + 300, b"\7"), BadChecksum, ("Metadata area header at byte 4096 of",)),
    "text of a terabyte": unsupported(
        lambda: one_raw().pack(AREA + 48, "<Q", 1 << 40).sealed_area(), "Metadata text", "1099511627776 bytes"
    ),
    "text CRC": Row(lambda: _in_text(b"seqno = 1"), BadChecksum, ("Metadata text at byte",)),
    "text torn": Row(lambda: _in_text(bytes(512)), BadChecksum, ("Metadata text at byte",)),
    "one of two areas empty": malformed(_second_area_empty, "it has no text, and the other area has one"),
    "second area's CRC": Row(_second_area_spoiled, BadChecksum, ("Metadata area header at byte",)),
    "area inside the extents": malformed(_area_in_extents, "a metadata area lies inside the extents"),
}


UNREADABLE_BY_LVM = [("max_lv = 0\n", "it has no max_lv"), ("max_pv = 0\n", "it has no max_pv")]
UNREADABLE_BY_LVM += [("creation_host", "it has a creation_time and no creation_host")]

TEXTS = {
    "several PVs": unsupported(
        text("}\n}\n\nlogical", '}\npv1 {\nid = "x"\n}\n}\n\nlogical'), "it lies on 2 physical volumes"
    ),
    "no PV": unsupported(_without_pv, "it lies on 0 physical volumes"),
    "PV MISSING": unsupported(
        text("flags = []\ndev_size", 'flags = ["MISSING"]\ndev_size'), "Physical volume pv0", "is marked MISSING"
    ),
    "PV EXPORTED": unsupported(text('["ALLOCATABLE"]', '["ALLOCATABLE", "EXPORTED"]'), "its status is EXPORTED"),
    "VG EXPORTED": unsupported(text('["RESIZEABLE"', '["EXPORTED", "RESIZEABLE"'), "its status is EXPORTED"),
    "VG CLUSTERED": unsupported(text('["RESIZEABLE"', '["CLUSTERED", "RESIZEABLE"'), "its status is CLUSTERED"),
    "VG SHARED": unsupported(text('["RESIZEABLE"', '["SHARED", "RESIZEABLE"'), "its status is SHARED"),
    "VG in a pvmove": unsupported(text('["RESIZEABLE"', '["PVMOVE", "RESIZEABLE"'), "its status is PVMOVE"),
    "LV LOCKED": unsupported(text('"VISIBLE"]', '"VISIBLE", "LOCKED"]'), "Logical volume MGT", "its status is LOCKED"),
    "foreign system_id": unsupported(text("max_lv = 0", 'max_lv = 0\nsystem_id = "a"'), "another host", "system_id"),
    "lock_type": unsupported(text("max_lv = 0", 'max_lv = 0\nlock_type = "sanlock"'), "cluster", "lock_type"),
    "lock_args": unsupported(text("max_lv = 0", 'max_lv = 0\nlock_args = "1.0.0:x"'), "cluster", "lock_args"),
    "another format": unsupported(text('format = "lvm2"', 'format = "lvm1"'), "its format is lvm1"),
    "unknown section": unsupported(
        text("logical_volumes {", "historical_logical_volumes {\n}\nlogical_volumes {"),
        "it has a section historical_logical_volumes",
    ),
    "raw volume renamed OLD_": unsupported(lambda: Spoiled([named("LV-OLD_" + GONE)]), "LV-OLD_" + GONE),
    "snapshot LV": unsupported(text('type = "striped"', 'type = "snapshot"'), "Logical volume MGT", "is not linear"),
    "thin LV": unsupported(text('type = "striped"', 'type = "thin"'), "segment1 is not linear"),
    "mirrored LV": unsupported(text('type = "striped"', 'type = "raid1"'), "segment1 is not linear"),
    "striped LV": unsupported(text("stripe_count = 1", "stripe_count = 2"), "segment1 is not linear"),
    "no contents": unsupported(text("Text Format Volume Group", "Text"), "version 1 of a volume group text"),
    "another version": unsupported(text("\nversion = 1", "\nversion = 2"), "version 1 of a volume group text"),
    "two VGs": malformed(text("# Generated", "vg1 {\n}\n# Generated"), "these volume groups", "vg1", "expected one"),
    "text that does not begin with its VG": malformed(text("VG_", "\nVG_"), "it begins with"),
    "LV outside the PV": malformed(text('"pv0", 0', '"pv0", 9999'), "it uses extent 9999, the physical volume has"),
    "LV on another PV": malformed(text('"pv0", 0', '"pv1", 0'), "Logical volume MGT", "has the stripes ['pv1', 0]"),
    "LV at a negative extent": malformed(text('"pv0", 0', '"pv0", -1'), "has the stripes ['pv0', -1]"),
    "overlapping LVs": malformed(text('"pv0", 1', '"pv0", 0'), "it overlaps", "at extent 0"),
    "overlapping segments": malformed(_overlapping_segments, "extent 1 is in no segment or in two"),
    "gap between segments": malformed(_gap_between_segments, "extent 1 is in no segment or in two"),
    "segments that were not counted": malformed(
        text("segment_count = 1", "segment_count = 2"), "segment_count is another number"
    ),
    "duplicate LV names": malformed(_duplicate_names, "'MGT', expected each name only once"),
    "duplicate LV ids": malformed(_duplicate_ids, "it has the id of MGT"),
    "LV with the id of the VG": malformed(_id_of_the_vg, "it has the id of the volume group"),
    "no LVM id": Row(text('id = "', 'id = "?'), FormatError, ("id of volume group", "is not an LVM id")),
    "seqno at its end": malformed(text("seqno = 17", "seqno = 4294967295"), "its seqno is 4294967295"),
    "negative seqno": malformed(text("seqno = 17", "seqno = -1"), "seqno is -1, expected an integer of at least 0"),
    "extents of no size": malformed(text("extent_size = 8192", "extent_size = 0"), "extent_size is 0"),
    "number of 200 digits": malformed(text("seqno = 17", "seqno = 1" + "0" * 200), "expected a value"),
    "extents over the label": malformed(text("pe_start = 2048", "pe_start = 0"), "the extents begin at byte 0"),
    "assignment among the LVs": malformed(
        text("logical_volumes {", "logical_volumes {\nx = 1"), "x is in logical_volumes"
    ),
    "text that is none": malformed(text("{", "["), "expected"),
    "PV larger than the device": Row(text("dev_size = ", "dev_size = 9"), Truncated, ("Physical volume at byte 0",)),
    "extents larger than the device": Row(
        text("pe_count = ", "pe_count = 9"), Truncated, ("Physical volume at byte 0",)
    ),
}
for _key, _words in UNREADABLE_BY_LVM:
    TEXTS["LVM needs: " + _words] = malformed(text(_key, "x" + _key), _words)


def _journal(name, value=""):
    """A journal of a VDI that has no volume."""
    return Volume("journal", "journal", name=name.format(GONE), value=value, tags=("journaler",))


JOURNALS = {
    "jvhd_": unsupported(lambda: Spoiled([vhd("disk", poisoned=True), jvhd("disk")]), "jvhd_", "being resized"),
    "clone_ of a VDI that is gone": unsupported(
        lambda: Spoiled([_journal("clone_{}_1", OTHER_SR + "_")]), "clone_", "neither VDI " + GONE, "Clone again once"
    ),
    "leaf_ of a VDI that is gone": unsupported(
        lambda: Spoiled([_journal("leaf_{}_1", OTHER_SR)]), "leaf_", "neither VDI " + GONE
    ),
    "clone_ that does not read": unsupported(
        lambda: Spoiled([_journal("clone_{}_1", "x")]), "clone_", "its journal does not read"
    ),
    "leaf_ that does not read": unsupported(
        lambda: Spoiled([_journal("leaf_{}_1", "x")]), "leaf_", "the journal does not read"
    ),
    "inflate_ of no size": unsupported(lambda: Spoiled([_journal("inflate_{}_x")]), "the size in its name is 'x'"),
    "journal without its tag": unsupported(
        lambda: Spoiled([named(f"inflate_{GONE}_8388608")]), "inflate_", "not its tag"
    ),
    "tagged as a journal, and none that is known": unsupported(
        lambda: Spoiled([named("novel", tags=("journaler",))]), "novel", "tagged it journaler"
    ),
    "name with the UUID of a VDI": unsupported(
        lambda: Spoiled([raw("data", uuid=GONE), named("novel-" + GONE)]), "novel-" + GONE, "its name carries the UUID"
    ),
    "unknown journal": unsupported(lambda: Spoiled([raw("data"), journal("novel", "data")]), "novel_"),
    "trim volume of another SR": unsupported(
        lambda: Spoiled([named(OTHER_SR + "_trim_lv")]), "it belongs to another SR, " + OTHER_SR
    ),
}

VHDS = {
    "poisoned footer": unsupported(lambda: Spoiled([vhd("disk", poisoned=True, **SMALL)]), "VHD footer", "resize"),
    "footer CRC": Row(lambda: _vhd(100, b"\7"), BadChecksum, ("VHD footer copy at byte 0 of VHD-",)),
    "footers of two VHDs": malformed(_end_footer_of_another, "VHD footer at byte", "it is the footer of another VHD"),
    "block table beyond the volume": malformed(lambda: _vhd(540, b"\xff" * 4), "its block table ends at 17179870716"),
}


PARENTS = {
    "parent that is hidden away as OLD_": malformed(
        lambda: Spoiled([vhd("base", old=True, **SMALL), vhd("disk", "base", **SMALL)]), "of an SR", "names no volume"
    )._replace(error=Unsupported),
    "loop of two": malformed(_loop, "the chain of parents comes back to it"),
    "its own parent": malformed(_own_parent, "the chain of parents comes back to it"),
    "another VHD than the one it was made of": malformed(
        lambda: pair().in_volume("disk", 552, b"\7" * 16).sealed_vhd("disk"), "is not the VHD that this one was made of"
    ),
    "parent in another SR": malformed(lambda: _renamed_parent("sr", OTHER_SR), "a volume of another SR, " + OTHER_SR),
    "locator that names no volume": unsupported(
        lambda: _locator(b"file://./dm-7".ljust(110, b"x")), "VHD parent locator text", "names no volume of an SR"
    ),
    "locator that is no UTF-8": malformed(lambda: _locator(b"\xff" * 110), "it is not UTF-8"),
    "parent name of a device node": unsupported(
        lambda: pair().in_volume("disk", 576, "dm-7".encode("utf-16-be").ljust(512, b"\0")).sealed_vhd("disk"),
        "VHD parent name at byte 576",
        "'dm-7' names no volume of an SR",
    ),
    "locator of four gigabytes": malformed(lambda: _entry(8, ">I", 0xFFFFFFFF), "its text has 4294967295 bytes"),
    "locator of four gigabytes with room": malformed(
        lambda: _entry(4, ">II", 0xFFFFFFFF, 0xFFFFFFFF), "locator 0", "its text has 4294967295 bytes"
    ),
    "locator beyond the volume": malformed(lambda: _entry(16, ">Q", 1 << 60), "runs into something else"),
    "QCOW2 over a VHD": malformed(_qcow2_over_vhd, "it is a vhd, and its child is a qcow2"),
    "backing file in another SR": malformed(lambda: _backing("sr", OTHER_SR), "a volume of another SR, " + OTHER_SR),
    "backing file of no SR": unsupported(_backing_path, "QCOW2 backing file", "names no volume of an SR"),
    "backing file of four gigabytes": malformed(lambda: _qcow2(16, ">I", 0xFFFFFFFF), "path has 4294967295 bytes"),
    "backing file beyond the first cluster": malformed(lambda: _qcow2(8, ">Q", 1 << 60), "1152921504606846976"),
    "QCOW2 magic": Row(lambda: _qcow2(0, ">I", 7), BadMagic, ("QCOW2 header at byte 0 of QCOW2-",)),
    "QCOW2 extension of four gigabytes": malformed(lambda: _qcow2(116, ">I", 0xFFFFFFFF), "it has 4294967295 bytes"),
    "two volumes of one VDI": malformed(_one_uuid_twice, "Logical volume at byte 0", "holds the same VDI"),
}


MGTS = {
    "binary MGT": unsupported(lambda: _mgt(0, struct.pack("<4sIHH", b"XSSM", 12, 1, 2)), "binary form", "MGT header"),
    "MGT of a gigabyte": malformed(
        lambda: _mgt(5, b"999999488 "), "it says that 999999488 of 4194304 bytes are in use"
    ),
    "xenvm": unsupported(lambda: _mgt(1200, b"<allocation_quantum>1</allocation_quantum>"), "xenvm experiment"),
}


ROOM = {
    "no room for the journal": Row(
        lambda: Spoiled([raw("data")], area=Range(4096, 40960)),
        Refused,
        ("there is no room for the journal: it needs", "bytes of the metadata area are free"),
        engine.CLEAN,
    ),
    "a ring full of text": Row(
        lambda: Spoiled([vhd(f"d{n}", **SMALL) for n in range(9)], area=Range(4096, 12288)),
        Refused,
        ("there is no room for the journal",),
        engine.CLEAN,
    ),
    "extents that are no whole blocks": unsupported(
        lambda: Spoiled([raw("data")], block_size=4096, area=Range(4096, 1044480 + 512), pe_start=1049088),
        "byte 1049088",
        "not made of blocks of 4096 bytes",
    ),
}

CUT = {
    "image cut behind the label": Row(
        lambda: one_raw().cut(8192), Refused, ("has 8192 bytes: it is too small for a LUN with an SR",), engine.FOREIGN
    ),
    "image cut in the metadata area": malformed(
        lambda: Spoiled([raw("data")], area=AREA_10M).cut(8 << 20), "is not on the device"
    ),
    "image cut in the data": Row(
        lambda: one_raw().cut(8 << 20),
        Truncated,
        ("Physical volume at byte 0 of built LUN 0", "only 8388608 are there"),
    ),
    "image without its last sector": Row(
        _without_last_sector,
        Truncated,
        ("Physical volume at byte 0 of built LUN 0: it needs",),
    ),
}

UNFINISHED_RUNS = {"switched": Row(lambda: _marked(2), Unfinished, ("unfinished resignature",), engine.UNFINISHED)}

TABLES = [UNUSABLE, LABELS, AREAS, TEXTS, JOURNALS, VHDS, PARENTS, MGTS, ROOM, CUT, UNFINISHED_RUNS]
ROWS = {str(name): row for table in TABLES for name, row in table.items()}


@pytest.mark.parametrize("name", ROWS)
def test_it_is_refused_in_words_that_name_the_thing_and_nothing_is_written(name):
    row = ROWS[name]
    disk = row.make().disk
    before = disk.copy()
    disk.reset_counters()

    with pytest.raises(row.error) as caught:
        engine.prepare(disk, entropy_of("ids"))

    sentence = str(caught.value)
    assert [words for words in row.words if words not in sentence] == [], sentence
    assert caught.value.exit_status == next(n for family, n in EXIT_STATUS.items() if issubclass(row.error, family))
    assert "Nothing was written." in sentence and sentence.endswith(".")

    found = engine.inspect(disk)

    assert found.state == row.state
    assert isinstance(found.problem, row.error) or row.state == engine.CLEAN
    assert bool(found.defects) == (row.state == engine.DAMAGED)
    if found.defects:
        assert (found.problem, found.problem.message) == (found.defects[0], caught.value.message)
    assert (disk.writes, disk.flushes) == (0, 0)
    assert disk == before


HOSTILE = [name for name in ROWS if "gigabyte" in name or "terabyte" in name or "petabyte" in name or "beyond" in name]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_size_on_the_disk_is_not_believed(name):
    disk = ROWS[name].make().disk
    disk.reset_counters()

    tracemalloc.start()
    try:
        engine.inspect(disk)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8 << 20
    assert disk.bytes_read < 1 << 20


@pytest.mark.parametrize(
    "size, data",
    [(size, b"") for size in (512, 4096, 4608, (1 << 20) - 512)]
    + [(size, b"whatever") for size in (512, 4096, 4608, 8192, (1 << 20) - 512)],
)
def test_a_device_too_small_for_any_sr_gets_an_answer(size, data):
    disk = SparseDisk(size)
    disk.poke(0, data)

    found = engine.inspect(disk)

    assert found.state == engine.FOREIGN
    assert f"has {size} bytes: it is too small for a LUN with an SR." in str(found.problem)


# --- what is wrong in several places at once


def _many():
    """A LUN with one volume of each kind, and two metadata areas."""
    volumes = [
        vhd("one", **SMALL),
        vhd("two", **SMALL),
        vhd("base", hidden=True, **SMALL),
        vhd("leaf", "base", **SMALL),
        qcow2("three"),
        raw("data"),
        cbtlog("data"),
    ]
    return Spoiled(volumes, second_area="same")


def _last_text(spoiled):
    area = spoiled.truth.areas[1].offset
    (text_at,) = struct.unpack("<Q", spoiled.disk.peek(area + 40, 8))
    return spoiled.poke(area + text_at + 100, bytes(64))


def _first_header(spoiled):
    return spoiled.poke(AREA + 300, b"\7")


#: how one structure of that LUN is spoiled; of each, what its defect begins with, and the key of its volume
PLACES = {
    "first metadata area": (_first_header, "Metadata area header at byte 4096 of", None),
    "second text": (_last_text, "Metadata text at byte ", None),
    "MGT": (lambda spoiled: spoiled.in_volume("MGT", 0, bytes(512)), "MGT header at byte 0 of MGT", "MGT"),
    "VHD header": (lambda spoiled: spoiled.in_volume("one", 600, b"\7"), "VHD header at byte 512 of ", "one"),
    "VHD footer": (lambda spoiled: spoiled.in_volume("two", 100, b"\7"), "VHD footer copy at byte 0 of ", "two"),
    "parent of a VHD": (
        lambda spoiled: spoiled.in_volume("leaf", 552, b"\7" * 16).sealed_vhd("leaf"),
        "Parent at byte 0 of ",
        "leaf",
    ),
    "QCOW2": (lambda spoiled: spoiled.in_volume("three", 4, b"\0\0\0\4"), "QCOW2 header at byte 0 of ", "three"),
}


def _spoiled(names):
    spoiled = _many()
    for name in names:
        PLACES[name][0](spoiled)
    return spoiled


ALONE = [(name,) for name in PLACES]
PAIRS = [pair for pair in itertools.combinations(PLACES, 2) if set(pair) != {"first metadata area", "second text"}]
SEVERAL = ALONE + [PAIRS[number] for number in seeds(range(len(PAIRS)), 7)]


@pytest.mark.parametrize("names", SEVERAL + [tuple(PLACES)[1:]], ids=" and ".join)
def test_every_defect_is_told_with_its_place_and_the_first_is_what_a_plan_is_refused_with(names):
    spoiled = _spoiled(names)

    found = engine.inspect(spoiled.disk)
    with pytest.raises(FormatError) as refused:
        engine.prepare(spoiled.disk, entropy_of("ids"))

    messages = [defect.message for defect in found.defects]
    assert (found.state, len(messages)) == (engine.DAMAGED, len(names))
    assert messages[0] == found.problem.message == refused.value.message
    facts = [report.defect_facts(defect, found.readable) for defect in found.defects]
    for name in names:
        _spoil, words, key = PLACES[name]
        (row,) = [row for row in facts if row["message"].startswith(words)]
        assert words.startswith(row["structure"] + " at byte ")
        assert f" at byte {row['offset']} of {row['container']}: " in row["message"]
        assert row["lv"] == (spoiled.truth.volume(key).name if key else None)
        assert row["vdi"] == (spoiled.truth.uuids[key] if key not in (None, "MGT") else None)


@pytest.mark.parametrize("names", SEVERAL, ids=" and ".join)
def test_what_reads_of_a_damaged_lun_is_listed_and_what_does_not_is_marked(names):
    spoiled = _spoiled(names)
    keys = {PLACES[name][2] for name in names} - {None}

    facts = report.inspection_facts("LUN", engine.inspect(spoiled.disk))

    assert [lv["name"] for lv in facts["lvs"]] == [volume.name for volume in spoiled.truth.volumes]
    by_uuid = {vdi["uuid"]: vdi for vdi in facts["vdis"]}
    for key in ("one", "two", "base", "leaf", "three", "data"):
        vdi = by_uuid[spoiled.truth.uuids[key]]
        assert (vdi["problem"] is not None) == (key in keys)
        assert (vdi["virtual_size_bytes"] is None) == (key in keys - {"leaf"})
        assert bool(vdi["name_label"]) == ("MGT" not in keys)


def test_a_cbt_log_that_does_not_read_is_told_beside_defects():
    spoiled = _spoiled(["VHD header"])
    log = "cbtlog of data"
    spoiled.in_volume(log, 32, b"\7")

    text = report.defects_text("LUN", engine.inspect(spoiled.disk))

    assert text.splitlines()[0] == "LUN: damaged, 1 defect:"
    assert f"note: The CBT log {spoiled.truth.volume(log).name} was not yet initialised" in text


def test_each_volume_behind_the_end_of_a_copy_that_was_cut_is_told():
    spoiled = _many()
    last = spoiled.truth.device_ranges("data", 0, 1)[0].offset
    cut = spoiled.cut(last + 512)

    found = engine.inspect(cut.disk)

    assert found.problem.message.startswith("LVM label at byte ")  # its second metadata area is gone
    names = {report.defect_facts(defect, found.readable)["lv"] for defect in found.defects}
    lost = {volume.name for volume in cut.truth.volumes if cut.truth.device_ranges(volume.key, 0, 1)[0].offset > last}
    assert cut.truth.volume("data").name in names and lost <= names
    assert cut.truth.volume("one").name not in names


def test_several_volumes_that_lvm_would_refuse_are_each_told():
    def edit(committed):
        return committed.replace('type = "striped"', 'type = "raid1"', 2)

    spoiled = Spoiled([raw("one"), raw("two"), raw("three")], edit_text=edit)

    found = engine.inspect(spoiled.disk)

    assert [defect.message.split(" at byte")[0] for defect in found.defects] == [
        "Logical volume MGT",
        "Logical volume " + spoiled.truth.volume("one").name,
    ]
    assert [str(volume.name.uuid) for volume in found.readable.volumes] == [
        spoiled.truth.uuids["two"],
        spoiled.truth.uuids["three"],
    ]


def test_no_metadata_area_that_reads_is_said():
    spoiled = _first_header(_many())
    spoiled.poke(spoiled.truth.areas[1].offset + 300, b"\7")

    found = engine.inspect(spoiled.disk)

    assert [type(defect) for defect in found.defects] == [BadChecksum, BadChecksum, Malformed]
    assert "none of its metadata texts reads" in found.defects[-1].message
    assert found.readable is None


def test_a_chain_that_comes_back_to_itself_is_drawn_all_the_same():
    text = report.inspection_text("LUN", engine.inspect(_loop().disk), report.ASCII_BRANCHES)

    rows = [line for line in text.splitlines() if line.startswith(tuple(_loop().truth.uuids.values()))]
    assert len(rows) == 2 and sum("[has a defect]" in row for row in rows) == 1


def test_a_journal_far_larger_than_it_should_be_is_not_read_whole():
    spoiled = _marked(3)
    spoiled.disk = builder.one_vhd(size_bytes=1 << 30).disk.copy()
    tail = struct.pack("<8sBBBBI", b"reLVMtag", 1, 3, 1, 0, 0xFFFFF000) + bytes(80)
    spoiled.poke(LABEL + 416, tail).sealed_label()
    spoiled.disk.reset_counters()

    engine.inspect(spoiled.disk)

    assert spoiled.disk.bytes_read < 4 << 20


def test_a_harmless_trim_volume_and_old_leaves_are_no_reason_to_refuse():
    spoiled = Spoiled([vhd("gone", GONE, old=True, **SMALL), trim()])

    prepared = engine.prepare(spoiled.disk, entropy_of("ids"))

    assert isinstance(prepared, engine.Prepared)
