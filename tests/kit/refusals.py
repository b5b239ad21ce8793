# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs that are refused, each spoiled in one way: the error, words of its sentence, and the state of the LUN.

A message also says what helps, as a command that works on the clone, or that nothing helps: `ways_out_in`.
"""

import re
import struct
from typing import Any, NamedTuple, Tuple

from kit import build_lvm, builder
from kit.build_volumes import MIB, noise
from kit.builder import AREA_10M, AREA_DEFAULT, SMALL_BAT, Volume, build_sr, jvhd, named, qcow2, raw
from kit.sparse import SparseDisk
from kit.spoiled import LABEL, Spoiled
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import (
    BadChecksum,
    BadMagic,
    FormatError,
    Malformed,
    NotFound,
    Refused,
    Truncated,
    Unsupported,
)

AREA = 4096
OTHER_SR = "0a0b0c0d-0000-4000-8000-00000000000f"
GONE = "0a0b0c0d-0000-4000-8000-000000000001"


def vhd(*args, **more):
    return builder.vhd(*args, bat_entries=SMALL_BAT, **more)


def spoiled_sr(*volumes, **options):
    return Spoiled(build_sr(list(volumes), **{"area": AREA_DEFAULT, **options}))


def one_raw(**options):
    return spoiled_sr(raw("data"), **options)


def pair():
    """A base and its child, both small VHDs, and another disk."""
    return spoiled_sr(vhd("base", hidden=True), vhd("disk", "base"), raw("rest"))


# --- ways to spoil a LUN, each of which is made when its row is tried


def lun(*volumes, **options):
    return lambda: spoiled_sr(*volumes, **options)


def tearing(block_bytes, *volumes, **options):
    """A LUN whose physical blocks are larger than its logical blocks."""

    def made():
        spoiled = spoiled_sr(*volumes, **options)
        spoiled.disk.physical_block_size = block_bytes
        return spoiled

    return made


def blank(*pokes, size=64 * MIB):
    """A disk with nothing on it but some bytes: (offset, bytes)."""

    def made():
        spoiled = spoiled_sr()
        spoiled.disk = SparseDisk(size)
        for place, data in pokes:
            spoiled.poke(place, data)
        return spoiled

    return made


def poked(offset, data, *values):
    return lambda: one_raw().poke(offset, data, *values)


def label(offset, data, *values):
    """Another label, sealed: what is at an offset of its sector."""
    return lambda: one_raw().poke(LABEL + offset, data, *values).sealed_label()


def areas(*offsets):
    """The lists of a label with these metadata areas."""
    return b"".join(struct.pack("<QQ", offset, 1044480) for offset in offsets) + bytes(40)


def area(offset, data, *values):
    """Another header of the metadata area, sealed."""

    def made():
        spoiled = one_raw().poke(AREA + offset, data, *values)
        return spoiled.poke(AREA, "<I", build_lvm.crc(spoiled.disk.peek(AREA + 4, 508)))

    return made


def mark(phase, version=1):
    tail = struct.pack("<8sBBBBI", b"reLVMtag", version, phase, 1, 0, 4096) + noise(16, "run id")
    return label(352, tail + struct.pack("<Q", 8192) + bytes(24) + noise(32, "digest"))


def edited(edit, *volumes):
    """A text that LVM would have written so."""
    return lambda: spoiled_sr(*(volumes or [raw("data")]), edit_text=edit)


def text(old, new, *volumes, count=1):
    return edited(lambda committed: committed.replace(old, new, count), *volumes)


def without_pv(committed):
    return committed[: committed.index("pv0 {")] + "}\n\n" + committed[committed.index("logical_volumes") :]


def owned(keys):
    """A group of another host as LVM writes it: with WRITE_LOCKED, also in each volume, in the place of WRITE."""

    def edit(committed):
        head, pv, rest = committed.partition("physical_volumes {")
        pvs, lvs, rest = rest.partition("logical_volumes {")
        head, rest = (
            part.replace(', "WRITE"', "").replace("flags = []", 'flags = ["WRITE_LOCKED"]') for part in (head, rest)
        )
        return head.replace(MAX_LV, f"{MAX_LV}\n{keys}") + pv + pvs + lvs + rest

    return edited(edit)


def in_text(data):
    def made():
        spoiled = one_raw()
        return spoiled.poke(spoiled.truth.areas[0].offset + spoiled.truth.text_offset + 200, data)

    return made


def second_area(offset, data):
    def made():
        spoiled = one_raw(second_area="same")
        area = spoiled.truth.areas[1]
        return spoiled.poke(area.offset + offset, data or build_lvm.mda_header(area, []))

    return made


def mgt(offset, data, *values):
    return lambda: one_raw().poke(("MGT", offset), data, *values)


def cut(size, **options):
    return lambda: one_raw(**options).cut(size)


def child(offset, data, *values):
    """A VHD with a parent, and other bytes; sealed."""
    return lambda: pair().poke(("disk", offset), data, *values).sealed_vhd("disk")


def renamed_parent(key, new):
    """Header and locators agree on another parent."""

    def made():
        spoiled = pair()
        old = spoiled.truth.uuids[key].replace("-", "--")
        for part in spoiled.truth.volume("disk").identities[1:]:
            data = spoiled.peek(("disk", part.offset), part.length)
            for codec in ("utf-16-be" if part.offset == 576 else "utf-16-le", "ascii"):
                data = data.replace(old.encode(codec), new.replace("-", "--").encode(codec))
            spoiled.poke(("disk", part.offset), data)
        return spoiled.sealed_vhd("disk")

    return made


def end_footer_of_another():
    spoiled = pair()
    size = spoiled.truth.volume("base").size
    footer = spoiled.peek(("base", size - 512), 512)
    return spoiled.poke(("disk", spoiled.truth.volume("disk").size - 512), footer)


def parent_without_uuid():
    """A child with the UUID of its parent, which is zeros: so tapdisk takes the parent for a raw one."""
    spoiled = pair().poke(("base", 68), bytes(16)).poke(("disk", 512 + 40), bytes(16))
    spoiled.poke(("base", spoiled.truth.volume("base").size - 512 + 68), bytes(16))
    return spoiled.sealed_vhd("base").sealed_vhd("disk")


def loop_of_two():
    return spoiled_sr(vhd("one", "two"), vhd("two", "one"), raw("rest"))


QCOW2S = (qcow2("base", hidden=True), qcow2("disk", "base"), raw("rest"))


def qcow2_at(offset, data, *values):
    return lambda: spoiled_sr(*QCOW2S).poke(("disk", offset), data, *values)


def with_other(spoiled, old, new):
    """The first bytes of a volume with other ones for some of them."""
    head = spoiled.peek(("disk", 0), 4096)
    assert old in head
    return spoiled.poke(("disk", 0), head.replace(old, new, 1).ljust(4096, b"\0")[:4096])


def backing(old, new):
    return lambda: with_other(spoiled_sr(*QCOW2S), old, new)


def qcow2_over_vhd():
    spoiled = spoiled_sr(vhd("base"), qcow2("other"), qcow2("disk", "other"), raw("rest"))
    uuids = spoiled.truth.uuids
    with_other(spoiled, b"/QCOW2-" + uuids["other"].encode(), b"/VHD-" + uuids["base"].encode())
    return spoiled.poke(("disk", 16), ">I", 96)


def partition_table(kind):
    return bytes(446) + bytes(4) + bytes([kind]) + bytes(11) + bytes(48) + b"\x55\xaa"


# --- the rows


class Row(NamedTuple):
    make: Any
    error: type
    words: Tuple[str, ...]
    state: str = engine.DAMAGED


def row(error, state=engine.DAMAGED):
    return lambda make, *words: Row(make, error, words, state)


foreign = row(Refused, engine.FOREIGN)
no_room = row(Refused, engine.CLEAN)
malformed, unsupported, truncated, bad_checksum = map(row, (Malformed, Unsupported, Truncated, BadChecksum))
bad_magic, other = row(BadMagic), row(FormatError)

ONE = one_raw().truth
DATA = ONE.volume("data")
SR = spoiled_sr(*QCOW2S).truth.sr_uuid.encode()
MAX_LV = "max_lv = 0"
STATUS = '["RESIZEABLE"'
LAST_PV = "}\n}\n\nlogical"
NO_ROOM = "there is no room for the journal"
TEXT_OF_NO_VG = "version 1 of a volume group text"


def with_segments(start):
    """The second of two segments begins elsewhere."""
    return text("start_extent = 1", f"start_extent = {start}", raw("data", segments=((1, 3), (1, 5))))


def no_vhd(*volumes):
    """A volume that SM's VDI.create has made, and into which it has put nothing yet."""
    return lambda: spoiled_sr(vhd("disk", in_mgt=False), *volumes).poke(("disk", 0), bytes(8192))


def journal(name, value=""):
    """A journal of a VDI that has no volume."""
    return lun(Volume("journal", "journal", name=name.format(GONE), value=value, tags=("journaler",)))


ROWS = {
    # what is no SR
    "empty device": Row(blank(), NotFound, ("is empty",), engine.EMPTY),
    "MBR": foreign(blank((0, partition_table(0x8E))), "no LVM physical volume", "partition table"),
    "GPT": foreign(blank((0, partition_table(0xEE)), (512, b"EFI PART")), "no LVM physical volume", "GPT"),
    "partition table as well": foreign(poked(0, partition_table(0x83)), "partition table beside its LVM label"),
    "ext4": foreign(blank((1080, b"\x53\xef")), "ext2, ext3 or ext4"),
    "VHD on the bare device": foreign(blank((0, b"conectix")), "a disk image (format vpc), not an SR"),
    "unknown bytes": foreign(blank((0, b"whatever")), "no LVM physical volume", "unknown"),
    "LVM1": foreign(poked(0, b"HM"), "LVM1"),
    "PV without VG": foreign(poked(AREA, build_lvm.mda_header(Range(*AREA_DEFAULT), [])), "without a volume group"),
    "VG of another system": foreign(lun(vg_name="vg0"), "the volume group vg0, which is no SR's"),
    "VG with almost the name of an SR's": foreign(lun(vg_name=f"VG_XenStorage-{GONE}1"), f"{GONE}1, which is no SR's"),
    "VG with the UUID of an SR": foreign(
        lun(vg_name="VG_XenStorage_" + GONE), f"VG_XenStorage_{GONE}, which is no SR's"
    ),
    # the label
    "label CRC": bad_checksum(poked(LABEL + 100, b"\7"), "LVM label at byte 512 of"),
    "no metadata area": unsupported(label(104, areas()), "it lists 0 metadata areas"),
    "three metadata areas": unsupported(label(104, areas(4096, 2 << 20, 3 << 20)), "it lists 3 metadata areas"),
    "area list that LVM ends earlier": malformed(
        label(104, areas(4096, 0, 8192)),
        "LVM label at byte 632",
        "the offset 0 and 1044480 bytes: LVM ends a",
    ),
    "area beyond the device": malformed(
        label(104, "<Q", 1 << 50), "label at byte 616", "1044480 bytes at 1125899906842624 is not on the device"
    ),
    "metadata area of a petabyte": malformed(label(112, "<Q", 1 << 50), "a metadata area of 1125899906842624 bytes"),
    "metadata area over the label": malformed(label(104, "<Q", 1024), "at 1024 is not on the device"),
    "one metadata area twice": malformed(
        label(104, areas(4096, 4096)), "a metadata area at byte 4096 and a metadata area at byte 4096 overlap"
    ),
    "label of another PV": malformed(label(32, b"x" * 32), "byte 512", "not the one in the metadata text"),
    "no PV id": other(label(32, bytes(32)), "is not an LVM id"),
    "tail in use": unsupported(lun(raw("data"), label_tail=b"somebody"), "byte 864", "in use by something else"),
    "list of areas behind an extension of version 0": unsupported(
        label(136, struct.pack("<II", 0, 0) + 13 * struct.pack("<QQ", 1 << 20, 4096)), "its extension has version 0"
    ),
    "no room for a commit record behind the extension of today": unsupported(
        label(104, areas(*range(1 << 20, 15 << 20, 1 << 20))), "leave no room for a commit record"
    ),
    "lists in the place of the commit record": unsupported(
        label(144, b"\1" * 288 + bytes(16)), "its lists leave no room for a commit record"
    ),
    "commit record of a later version": unsupported(mark(1, 2), "Commit record at byte 864", "another version"),
    "commit record of a run that was cut": Row(
        mark(2), BadMagic, ("unfinished resignature whose journal does not read",), engine.UNFINISHED
    ),
    # metadata areas and their texts
    "text of a terabyte": unsupported(area(48, "<Q", 1 << 40), "Metadata text", "1099511627776 bytes"),
    "text CRC": bad_checksum(in_text(b"seqno = 1"), "Metadata text at byte"),
    "one of two areas empty": malformed(second_area(0, b""), "it has no text, and the other area has one"),
    "second area's CRC": bad_checksum(second_area(50, b"\7"), "Metadata area header at byte"),
    "area inside the extents": malformed(
        text("pe_start = 2048", "pe_start = 1024"), "the extents at byte 524288 overlap"
    ),
    # the volume group
    "several PVs": unsupported(text(LAST_PV, '}\npv1 {\nid = "x"\n' + LAST_PV), "on 2 physical volumes", "vgreduce"),
    "no PV": unsupported(edited(without_pv), "it lies on 0 physical volumes"),
    "PV MISSING": unsupported(
        text("flags = []\ndev", 'flags = ["MISSING"]\ndev'), "Physical volume pv0", "its flag is MISSING"
    ),
    "PV EXPORTED": unsupported(text('["ALLOCATABLE"]', '["ALLOCATABLE", "EXPORTED"]'), "its status is EXPORTED"),
    **{
        f"VG {status}": unsupported(text(STATUS, f'["{status}", "RESIZEABLE"'), f"its status is {status}")
        for status in ("EXPORTED", "CLUSTERED", "SHARED", "PVMOVE")
    },
    # LVM reads the words of a status behind CACHE_VOL, and no group in which a linear volume has ERROR_WHEN_FULL
    **{
        f"flag of a volume, {word}": unsupported(
            text("flags = []\ncreation", f'flags = ["CACHE_VOL", "{word}"]\ncreation'), "its flag is CACHE_VOL"
        )
        for word in ("LOCKED", "PVMOVE")
    },
    "ERROR_WHEN_FULL": unsupported(
        text("flags = []\ncreation", 'flags = ["ERROR_WHEN_FULL"]\ncreation'), "its flag is ERROR_WHEN_FULL"
    ),
    "flag of the group": unsupported(text("flags = []", 'flags = ["NEW"]'), "Volume group VG_", "its flag is NEW"),
    "LV LOCKED": unsupported(text('"VISIBLE"]', '"VISIBLE", "LOCKED"]'), "Logical volume MGT", "its status is LOCKED"),
    "LV with a fixed minor": unsupported(
        text('"VISIBLE"]', '"FIXED_MINOR", "VISIBLE"]\nmajor = 253\nminor = 77'),
        "FIXED_MINOR",
        "lvchange --config",
        "-Mn",
    ),
    "foreign system_id": unsupported(owned('system_id = "a"'), "another host", "system_id", "--systemid ''"),
    "lock_type": unsupported(
        owned('lock_type = "sanlock"\nlock_args = "1.0.0:x"'), "cluster", "lock_type", "--lock-type none"
    ),
    "lock_args": unsupported(text(MAX_LV, MAX_LV + '\nlock_args = "1.0.0:x"'), "cluster", "lock_args"),
    "pr": unsupported(
        text(MAX_LV, 'pr = [ "require", "autostart" ]\n' + MAX_LV),
        "persistent reservation",
        "it has a pr",
        "vgchange --config",
        "--setpersist n",
    ),
    "another format": unsupported(text('format = "lvm2"', 'format = "lvm1"'), "its format is lvm1"),
    "unknown section": unsupported(text("logical_volumes {", "new {\n}\nlogical_volumes {"), "it has a section new"),
    "raw volume renamed OLD_": unsupported(lun(named("LV-OLD_" + GONE)), "LV-OLD_" + GONE),
    "LV of another type": unsupported(text('type = "striped"', 'type = "thin"'), "Logical volume MGT", "is not linear"),
    "striped LV": unsupported(text("stripe_count = 1", "stripe_count = 2"), "segment1 is not linear"),
    "reshaped LV": unsupported(text("stripe_count = 1", "stripe_count = 1\nreshape_count = 2"), "is not linear"),
    "profile of a VG without a name": malformed(text("max_lv =", 'profile = ""\nmax_lv ='), "reads no profile ''"),
    "profile of an LV with a path": malformed(
        text("segment_count = 1", 'profile = ["a/b"]\nsegment_count = 1'), "volume MGT", "reads no profile 'a/b'"
    ),
    "LV that is locked, and a VG without an owner": unsupported(
        text("flags = []\ncreation", 'flags = ["WRITE_LOCKED"]\ncreation'), "MGT has the flag WRITE_LOCKED"
    ),
    "VG that is locked, and has no owner": unsupported(
        text('"WRITE"]\nflags = []', '"WRITE"]\nflags = ["WRITE_LOCKED"]'), "has the flag WRITE_LOCKED"
    ),
    "no contents": unsupported(text("Text Format Volume Group", "Text"), TEXT_OF_NO_VG),
    "another version": unsupported(text("\nversion = 1", "\nversion = 2"), TEXT_OF_NO_VG),
    "two VGs": malformed(text("# Generated", "vg1 {\n}\n# Generated"), "these volume groups", "vg1", "expected one"),
    "text that does not begin with its VG": malformed(text("VG_", "\nVG_"), "it begins with"),
    "LV outside the PV": malformed(text('"pv0", 0', '"pv0", 9999'), "it uses extent 9999, the physical volume has"),
    "LV on another PV": malformed(text('"pv0", 0', '"pv1", 0'), "Logical volume MGT", "has the stripes pv1, 0"),
    "LV at a negative extent": malformed(text('"pv0", 0', '"pv0", -1'), "has the stripes pv0, -1"),
    "overlapping LVs": malformed(text('"pv0", 1', '"pv0", 0'), "it overlaps", "at extent 0"),
    "gap between segments": malformed(with_segments(2), "extent 1 is in no segment or in two"),
    "uncounted segments": malformed(text("segment_count = 1", "segment_count = 2"), "is another number"),
    "duplicate LV names": malformed(text(DATA.name, "MGT", count=-1), "'MGT', expected each name only once"),
    "duplicate LV ids": malformed(text(DATA.lv_id, ONE.volume("MGT").lv_id, count=-1), "it has the id of MGT"),
    "LV with the id of the VG": malformed(text(DATA.lv_id, ONE.vg_id, count=-1), "it has the id of the volume group"),
    "no LVM id": other(text('id = "', 'id = "?'), "id of volume group", "is not an LVM id"),
    "seqno at its end": malformed(text("seqno = 17", "seqno = 4294967295"), "its seqno is 4294967295"),
    **{
        f"{key} over 32 bits": malformed(
            text(f"{key} = {number}", f"{key} = {(1 << 32) + number}"), f"{key} is {(1 << 32) + number}, expected"
        )
        for key, number in (("extent_size", 8192), ("extent_count", 1), ("start_extent", 0), ("stripe_count", 1))
    },
    "stripe over 32 bits": malformed(text('"pv0", 0', f'"pv0", {1 << 32}'), "has the stripes pv0, 4294967296"),
    "limit that is a text": malformed(text(MAX_LV, 'max_lv = "0"'), "max_lv is '0', expected an integer"),
    "time that is a text": malformed(
        text("creation_time = 17", 'creation_time = "17" #'), "creation_time is '17', expected an integer"
    ),
    "VG without a space behind its name": malformed(
        edited(lambda committed: committed.replace(" {", "#\n{", 1)), "it begins with 'VG_XenStorage-"
    ),
    **{
        f"tags of {name}": malformed(text(before, before + "\ntags = [5]"), "tags is a list of 5; expected strings")
        for name, before in (
            ("the group", MAX_LV),
            ("the PV", 'device = "/dev/sdb"'),
            ("a segment", "extent_count = 1"),
        )
    },
    "host that is a number": malformed(text('creation_host = "xen', "creation_host = 5 #"), "creation_host is 5"),
    "no time": malformed(text("creation_time", "xcreation_time"), "it has a creation_host and no creation_time"),
    **{
        f"half of a bootloader area, {half}": malformed(
            text('device = "/dev/sdb"', 'device = "/dev/sdb"\n' + half), "Physical volume pv0", "it has half of a"
        )
        for half in ("ba_start = 5", "ba_size = 5", "ba_start = 0 ba_size = 5")
    },
    "stripes without a comma": malformed(text('"pv0", 0', '"pv0" 0'), "'0', expected `,` or `]`"),
    "negative seqno": malformed(text("seqno = 17", "seqno = -1"), "seqno is -1, expected an integer from 0 to"),
    "extents of no size": malformed(text("extent_size = 8192", "extent_size = 0"), "extent_size is 0"),
    "no section of PVs": malformed(
        edited(lambda text: text[: text.index("physical_volumes")] + text[text.index("logical_volumes") :]),
        "it has no section physical_volumes",
    ),
    "no seqno": malformed(text("seqno = 17", "xseqno = 17"), "it has no seqno"),
    "number that is a list": malformed(text("seqno = 17", "seqno = [17]"), "seqno is a list, expected one value"),
    "number that is a text": malformed(text("seqno = 17", 'seqno = "17"'), "seqno is '17', expected an integer"),
    "text that is a number": malformed(text('format = "lvm2"', "format = 7"), "format is 7, expected a string"),
    "flags that are no texts": malformed(text('["READ", ', "[7, "), "expected strings"),
    "stripes of nothing": malformed(text('"pv0", 0', ""), "segment1 has the stripes none"),
    "extents over the label": malformed(
        text("pe_start = 2048", "pe_start = 0"), "the label at byte 0 and the extents at byte 0 overlap"
    ),
    "assignment among LVs": malformed(text("logical_volumes {", "logical_volumes {\nx = 1"), "x is in logical_volumes"),
    "text that is none": malformed(text("{", "["), "expected"),
    "extents beyond the device": truncated(text("pe_count = ", "pe_count = 9"), "Physical volume at byte 0"),
    "no max_lv": malformed(text("max_lv = 0\n", "xmax_lv = 0\n"), "it has no max_lv"),
    "no host": malformed(text("creation_host", "xcreation_host"), "it has a creation_time and no creation_host"),
    # journals, and other volumes
    "jvhd_": unsupported(lun(builder.vhd("disk", poisoned=True), jvhd("disk"), raw("rest")), "jvhd_", "being resized"),
    "clone_ of no VDI": unsupported(journal("clone_{}_1", OTHER_SR + "_"), "clone_", "neither VDI " + GONE),
    "leaf_ of no VDI": unsupported(journal("leaf_{}_1", OTHER_SR), "leaf_", "neither VDI " + GONE),
    "clone_ that does not read": unsupported(journal("clone_{}_1", "x"), "clone_", "its journal does not read"),
    "leaf_ that does not read": unsupported(journal("leaf_{}_1", "x"), "leaf_", "the journal does not read"),
    "inflate_ of no size": unsupported(journal("inflate_{}_x"), "the size in its name is 'x'"),
    "journal without its tag": unsupported(lun(named(f"inflate_{GONE}_8388608")), "inflate_", "not its tag"),
    "tagged as a journal": unsupported(lun(named("novel", tags=("journaler",))), "novel", "has the tag journaler"),
    **{
        f"{what}, tagged {tag}": unsupported(lun(*volumes), f"it has the tag {tag}, by which", "lvchange --config")
        for what, tag, volumes in (
            ("disk", "jvhd", (raw("data", tags=("jvhd",)),)),
            ("disk", "journaler", (vhd("data", tags=("journaler",)),)),
            ("disk", "cbtlog", (qcow2("data", tags=("hidden", "cbtlog")),)),
            ("zero_", "jvhd", (vhd("data"), named("zero_{data}_1", tags=("jvhd",)))),
            ("changed-block log", "journaler", (vhd("data"), builder.cbtlog("data", tags=("cbtlog", "journaler")))),
            ("other volume", "jvhd", (raw("data"), named("novel", tags=("jvhd",)))),
        )
    },
    "MGT, tagged cbtlog": unsupported(
        edited(
            lambda committed: committed.replace("flags = []\ncreation", 'flags = []\ntags = ["cbtlog"]\ncreation', 1)
        ),
        "Logical volume MGT",
        "it has the tag cbtlog",
        "--deltag cbtlog",
    ),
    "zero_ without a value": unsupported(
        lun(raw("data"), named("zero_{data}", tags=("journaler",))), "zero_", "no value in its name", "lvremove"
    ),
    "disk that LVM does not show": unsupported(
        edited(
            lambda text: ', "VISIBLE"'.join(text.rsplit(', "VISIBLE"', 2)[:2]) + text.rsplit(', "VISIBLE"', 2)[2],
            raw("rest"),
            raw("data"),
        ),
        "Logical volume LV-",
        "LVM does not show it to the storage manager",
        " --without ",
    ),
    "MGT that LVM does not show": unsupported(
        text(', "VISIBLE"', ""), "Logical volume MGT", "LVM does not show it to the storage manager"
    ),
    "name with a UUID": unsupported(lun(raw("data", uuid=GONE), named("novel-" + GONE)), "its name carries the UUID"),
    "unknown journal": unsupported(lun(raw("data"), builder.journal("novel", "data")), "novel_"),
    "trim volume of another SR": unsupported(lun(named(OTHER_SR + "_trim_lv")), "to another SR, " + OTHER_SR),
    # VHDs
    "no VHD yet": malformed(
        no_vhd(raw("data")), "Disk image at byte 0 of VHD-", "it holds no VHD, and MGT has no record", "error 46"
    ),
    "no VHD any more": bad_magic(
        lambda: spoiled_sr(vhd("disk"), raw("rest")).poke(("disk", 0), bytes(8192)), "VHD footer copy"
    ),
    "poisoned footer": unsupported(lun(vhd("disk", poisoned=True), raw("rest")), "VHD footer", "resize"),
    "footers of two VHDs": malformed(end_footer_of_another, "VHD footer at byte", "it is the footer of another VHD"),
    # parents
    "parent that is OLD_": unsupported(
        lun(vhd("base", old=True), vhd("disk", "base"), raw("rest")), "of an SR", "names no volume"
    ),
    "loop of two": malformed(loop_of_two, "the chain of parents comes back to it"),
    "its own parent": malformed(lun(vhd("one", "one"), raw("rest")), "the chain of parents comes back to it"),
    "another VHD than its parent": malformed(child(552, b"\7" * 16), "is not the VHD that this one was made of"),
    "parent that tapdisk opens as raw": malformed(parent_without_uuid, "is not the VHD that this one was made of"),
    "parent in another SR": malformed(renamed_parent("sr", OTHER_SR), "a volume of another SR, " + OTHER_SR),
    "batmap over the block table": malformed(
        child(2056, ">Q", 1536), "VHD block table at byte 1536 of VHD-", "it overlaps the batmap, which ends at 2048"
    ),
    "locator in the batmap": malformed(
        child(1152, ">Q", 2560), "VHD parent locator 2 at byte 2560 of VHD-", "it overlaps the batmap, which ends at"
    ),
    "batmap behind the volume": malformed(child(2056, ">Q", 1 << 40), "VHD batmap at byte 1099511627776", "ends at"),
    "locator of four gigabytes": malformed(child(1096, ">I", 0xFFFFFFFF), "its text has 4294967295 bytes"),
    # QCOW2 images
    "QCOW2 over a VHD": unsupported(qcow2_over_vhd, "QEMU opens its parent as 'qcow2'; the name says vhd"),
    "backing file in another SR": malformed(backing(SR, OTHER_SR.encode()), "a volume of another SR, " + OTHER_SR),
    "backing file of four gigabytes": malformed(qcow2_at(16, ">I", 0xFFFFFFFF), "path has 4294967295 bytes"),
    "QCOW2 magic": bad_magic(qcow2_at(0, ">I", 7), "QCOW2 header at byte 0 of QCOW2-"),
    "two volumes of one VDI": malformed(
        lun(raw("data", uuid=GONE), vhd("disk", uuid=GONE, in_mgt=False)), "at byte 0", "the same VDI"
    ),
    # MGT
    "binary MGT": unsupported(mgt(0, "<4sIHH", b"XSSM", 12, 1, 2), "binary form", "MGT header"),
    "MGT of a gigabyte": malformed(mgt(5, b"999999488 "), "999999488 of 4194304 bytes are in use"),
    # room for what a run writes
    "no room for the journal": no_room(lun(raw("data"), area=Range(4096, 40960)), NO_ROOM + ": it needs", "are free"),
    "a ring full of text": no_room(lun(*(vhd(f"d{n}") for n in range(9)), area=Range(4096, 12288)), NO_ROOM),
    "extents that are no whole blocks": unsupported(
        lun(raw("data"), block_size=4096, area=Range(4096, 1044992), pe_start=1049088),
        "byte 1049088",
        "not made of blocks of 4096",
    ),
    "an extent that is no whole block": unsupported(
        lun(
            raw("data"),
            block_size=4096,
            edit_text=lambda text: text.replace("extent_size = 8192", "extent_size = 8193"),
        ),
        "byte 1048576",
        "not made of blocks of 4096",
    ),
    # blocks that the device writes at once, and that two structures share
    "extents in a block of the first area": unsupported(
        tearing(4096, raw("data"), area=Range(4096, 1044992), pe_start=1049088),
        "Physical volume at byte 1048576",
        "a metadata area at byte 4096 and the extents at byte 1049088 share a block of 4096 bytes",
    ),
    "second area in a block of the extents": unsupported(
        tearing(4096, raw("data"), pe_start=1052160, second_area="same", second_is_next=True),
        "the extents at byte 1052160 and a metadata area at byte",
        "share a block of 4096 bytes",
    ),
    "metadata area in the block of the label": unsupported(
        lun(raw("data"), block_size=4096, area=Range(2048, 1046528)),
        "Physical volume at byte 0",
        "the label at byte 0 and a metadata area at byte 2048 share a block of 4096 bytes",
    ),
    # copies that were cut
    "cut behind the label": foreign(cut(8192), "has 8192 bytes: it is too small for a LUN with an SR"),
    "cut in the metadata area": truncated(
        cut(8 << 20, area=AREA_10M), "Metadata area at byte 4096", "8384512 are there"
    ),
    "cut in the data": truncated(cut(8 << 20), "Physical volume at byte 0 of built LUN 0", "only 8388608 are there"),
    "without the last sector of the extents": truncated(
        cut(-512 - MIB // 2), "Physical volume at byte 0 of built LUN 0: it needs"
    ),
}


#: how a message says what helps: (commands of relvmoiscsi, of other programs), or that nothing does
COMMANDS = re.compile(
    r"`(relvmoiscsi resignature (?:'[^`']+'|[^ `']+)(?: --without [-0-9a-f]{36})+|relvmoiscsi recover [^`]*"
    r"|(?:lv|vg|pv)[a-z]+ --config [^`]*|vgimportclone [^`]*|wipefs [^`]*)`"
)
NO_COMMAND = re.compile(
    "(No command (?:mends|enlarges)|Give the clone of an SR|give the (?:clone of an SR|device of that partition)"
    "|has not filled|(?<!if it is whole, )take the copy again|Finish or undo the run with that version"
    "|Have the array present)"
)


def ways_out_in(sentence):
    return COMMANDS.findall(sentence) or NO_COMMAND.findall(sentence)
