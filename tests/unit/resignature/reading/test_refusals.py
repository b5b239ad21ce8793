# SPDX-License-Identifier: LGPL-2.1-only
"""Everything that is refused: with which error, in which words, and without a write.

Each row spoils a LUN in one way and says what `prepare` answers: the class of the error, hence the exit status, and
words of its sentence, the offset where there is one. Why: docs/formats. What a single structure is refused for,
field by field, stands in tests/unit/formats.
"""

import itertools
import struct
import tracemalloc
from typing import Any, NamedTuple, Tuple

import pytest

from kit import build_lvm, builder
from kit.build_volumes import MIB, noise
from kit.builder import AREA_10M, AREA_DEFAULT, SMALL_BAT, Volume, build_sr, cbtlog, jvhd, named, qcow2, raw
from kit.examples import seeds
from kit.outcome import entropy_of, resignatured
from kit.sparse import SparseDisk
from kit.spoiled import LABEL, Spoiled
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

AREA = 4096
OTHER_SR = "0a0b0c0d-0000-4000-8000-00000000000f"
GONE = "0a0b0c0d-0000-4000-8000-000000000001"
EXIT_STATUS = {NotFound: 3, Refused: 4, FormatError: 5, Unfinished: 8}


def vhd(*args, **more):
    return builder.vhd(*args, bat_entries=SMALL_BAT, **more)


def spoiled_sr(*volumes, **options):
    return Spoiled(build_sr(list(volumes), **{"area": AREA_DEFAULT, **options}))


def one_raw(**options):
    return spoiled_sr(raw("data"), **options)


def pair():
    """A base and its child, both small VHDs."""
    return spoiled_sr(vhd("base", hidden=True), vhd("disk", "base"))


# --- ways to spoil a LUN, each of which is made when its row is tried


def lun(*volumes, **options):
    return lambda: spoiled_sr(*volumes, **options)


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
    return label(416, tail + struct.pack("<Q", 8192) + bytes(24) + noise(32, "digest"))


def edited(edit, *volumes):
    """A text that LVM would have written so."""
    return lambda: spoiled_sr(*(volumes or [raw("data")]), edit_text=edit)


def text(old, new, *volumes, count=1):
    return edited(lambda committed: committed.replace(old, new, count), *volumes)


def without_pv(committed):
    return committed[: committed.index("pv0 {")] + "}\n\n" + committed[committed.index("logical_volumes") :]


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


def loop_of_two():
    return spoiled_sr(vhd("one", "two"), vhd("two", "one"))


QCOW2S = (qcow2("base", hidden=True), qcow2("disk", "base"))


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
    spoiled = spoiled_sr(vhd("base"), qcow2("other"), qcow2("disk", "other"))
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
NO_ROOM = "there is no room for the journal"
TEXT_OF_NO_VG = "version 1 of a volume group text"


def with_segments(start):
    """The second of two segments begins elsewhere."""
    return text("start_extent = 1", f"start_extent = {start}", raw("data", segments=((1, 3), (1, 5))))


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
    "VHD on the bare device": foreign(blank((0, b"conectix")), "a disk image, not an SR"),
    "unknown bytes": foreign(blank((0, b"whatever")), "no LVM physical volume", "unknown"),
    "LVM1": foreign(poked(0, b"HM"), "LVM1"),
    "PV without VG": foreign(poked(AREA, build_lvm.mda_header(Range(*AREA_DEFAULT), [])), "without a volume group"),
    "VG of another system": foreign(lun(vg_name="vg0"), "the volume group vg0, which is no SR's"),
    # the label
    "label CRC": bad_checksum(poked(LABEL + 100, b"\7"), "LVM label at byte 512 of"),
    "no metadata area": unsupported(label(104, bytes(16)), "it lists 0 metadata areas"),
    "three metadata areas": unsupported(label(104, areas(4096, 2 << 20, 3 << 20)), "it lists 3 metadata areas"),
    "area beyond the device": malformed(
        label(104, "<Q", 1 << 50), "label at byte 616", "1044480 bytes at 1125899906842624 is not on the device"
    ),
    "metadata area of a petabyte": malformed(label(112, "<Q", 1 << 50), "a metadata area of 1125899906842624 bytes"),
    "metadata area over the label": malformed(label(104, "<Q", 1024), "at 1024 is not on the device"),
    "one metadata area twice": malformed(label(104, areas(4096, 4096)), "metadata areas at 4096 and 4096 overlap"),
    "label of another PV": malformed(label(32, b"x" * 32), "byte 512", "not the one in the metadata text"),
    "no PV id": other(label(32, bytes(32)), "is not an LVM id"),
    "tail in use": unsupported(lun(raw("data"), label_tail=b"somebody"), "byte 928", "in use by something else"),
    "lists in the place of the mark": unsupported(
        label(144, b"\1" * 288 + bytes(16)), "its lists leave no room for the mark"
    ),
    "mark of a later version": unsupported(mark(1, 2), "Mark of a run at byte 928", "another version"),
    "mark of a run that was cut": Row(mark(2), Unfinished, ("unfinished resignature",), engine.UNFINISHED),
    # metadata areas and their texts
    "text of a terabyte": unsupported(area(48, "<Q", 1 << 40), "Metadata text", "1099511627776 bytes"),
    "text CRC": bad_checksum(in_text(b"seqno = 1"), "Metadata text at byte"),
    "one of two areas empty": malformed(second_area(0, b""), "it has no text, and the other area has one"),
    "second area's CRC": bad_checksum(second_area(50, b"\7"), "Metadata area header at byte"),
    "area inside the extents": malformed(text("pe_start = 2048", "pe_start = 1024"), "area lies inside the extents"),
    # the volume group
    "several PVs": unsupported(text("}\n}\n\nlogical", '}\npv1 {\nid = "x"\n}\n}\n\nlogical'), "on 2 physical volumes"),
    "no PV": unsupported(edited(without_pv), "it lies on 0 physical volumes"),
    "PV MISSING": unsupported(
        text("flags = []\ndev", 'flags = ["MISSING"]\ndev'), "Physical volume pv0", "is marked MISSING"
    ),
    "PV EXPORTED": unsupported(text('["ALLOCATABLE"]', '["ALLOCATABLE", "EXPORTED"]'), "its status is EXPORTED"),
    **{
        f"VG {status}": unsupported(text(STATUS, f'["{status}", "RESIZEABLE"'), f"its status is {status}")
        for status in ("EXPORTED", "CLUSTERED", "SHARED", "PVMOVE")
    },
    "LV LOCKED": unsupported(text('"VISIBLE"]', '"VISIBLE", "LOCKED"]'), "Logical volume MGT", "its status is LOCKED"),
    "foreign system_id": unsupported(text(MAX_LV, MAX_LV + '\nsystem_id = "a"'), "another host", "system_id"),
    "lock_type": unsupported(text(MAX_LV, MAX_LV + '\nlock_type = "sanlock"'), "cluster", "lock_type"),
    "lock_args": unsupported(text(MAX_LV, MAX_LV + '\nlock_args = "1.0.0:x"'), "cluster", "lock_args"),
    "another format": unsupported(text('format = "lvm2"', 'format = "lvm1"'), "its format is lvm1"),
    "unknown section": unsupported(text("logical_volumes {", "new {\n}\nlogical_volumes {"), "it has a section new"),
    "raw volume renamed OLD_": unsupported(lun(named("LV-OLD_" + GONE)), "LV-OLD_" + GONE),
    "LV of another type": unsupported(text('type = "striped"', 'type = "thin"'), "Logical volume MGT", "is not linear"),
    "striped LV": unsupported(text("stripe_count = 1", "stripe_count = 2"), "segment1 is not linear"),
    "no contents": unsupported(text("Text Format Volume Group", "Text"), TEXT_OF_NO_VG),
    "another version": unsupported(text("\nversion = 1", "\nversion = 2"), TEXT_OF_NO_VG),
    "two VGs": malformed(text("# Generated", "vg1 {\n}\n# Generated"), "these volume groups", "vg1", "expected one"),
    "text that does not begin with its VG": malformed(text("VG_", "\nVG_"), "it begins with"),
    "LV outside the PV": malformed(text('"pv0", 0', '"pv0", 9999'), "it uses extent 9999, the physical volume has"),
    "LV on another PV": malformed(text('"pv0", 0', '"pv1", 0'), "Logical volume MGT", "has the stripes ['pv1', 0]"),
    "LV at a negative extent": malformed(text('"pv0", 0', '"pv0", -1'), "has the stripes ['pv0', -1]"),
    "overlapping LVs": malformed(text('"pv0", 1', '"pv0", 0'), "it overlaps", "at extent 0"),
    "gap between segments": malformed(with_segments(2), "extent 1 is in no segment or in two"),
    "uncounted segments": malformed(text("segment_count = 1", "segment_count = 2"), "is another number"),
    "duplicate LV names": malformed(text(DATA.name, "MGT", count=-1), "'MGT', expected each name only once"),
    "duplicate LV ids": malformed(text(DATA.lv_id, ONE.volume("MGT").lv_id, count=-1), "it has the id of MGT"),
    "LV with the id of the VG": malformed(text(DATA.lv_id, ONE.vg_id, count=-1), "it has the id of the volume group"),
    "no LVM id": other(text('id = "', 'id = "?'), "id of volume group", "is not an LVM id"),
    "seqno at its end": malformed(text("seqno = 17", "seqno = 4294967295"), "its seqno is 4294967295"),
    "negative seqno": malformed(text("seqno = 17", "seqno = -1"), "seqno is -1, expected an integer of at least 0"),
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
    "stripes of nothing": malformed(text('"pv0", 0', ""), "segment1 has the stripes []"),
    "extents over the label": malformed(text("pe_start = 2048", "pe_start = 0"), "the extents begin at byte 0"),
    "assignment among LVs": malformed(text("logical_volumes {", "logical_volumes {\nx = 1"), "x is in logical_volumes"),
    "text that is none": malformed(text("{", "["), "expected"),
    "extents beyond the device": truncated(text("pe_count = ", "pe_count = 9"), "Physical volume at byte 0"),
    "no max_lv": malformed(text("max_lv = 0\n", "xmax_lv = 0\n"), "it has no max_lv"),
    "no host": malformed(text("creation_host", "xcreation_host"), "it has a creation_time and no creation_host"),
    # journals, and other volumes
    "jvhd_": unsupported(lun(builder.vhd("disk", poisoned=True), jvhd("disk")), "jvhd_", "being resized"),
    "clone_ of no VDI": unsupported(
        journal("clone_{}_1", OTHER_SR + "_"), "clone_", "neither VDI " + GONE, "Clone again"
    ),
    "leaf_ of no VDI": unsupported(journal("leaf_{}_1", OTHER_SR), "leaf_", "neither VDI " + GONE),
    "clone_ that does not read": unsupported(journal("clone_{}_1", "x"), "clone_", "its journal does not read"),
    "leaf_ that does not read": unsupported(journal("leaf_{}_1", "x"), "leaf_", "the journal does not read"),
    "inflate_ of no size": unsupported(journal("inflate_{}_x"), "the size in its name is 'x'"),
    "journal without its tag": unsupported(lun(named(f"inflate_{GONE}_8388608")), "inflate_", "not its tag"),
    "tagged as a journal": unsupported(lun(named("novel", tags=("journaler",))), "novel", "tagged it journaler"),
    "name with a UUID": unsupported(lun(raw("data", uuid=GONE), named("novel-" + GONE)), "its name carries the UUID"),
    "unknown journal": unsupported(lun(raw("data"), builder.journal("novel", "data")), "novel_"),
    "trim volume of another SR": unsupported(lun(named(OTHER_SR + "_trim_lv")), "to another SR, " + OTHER_SR),
    # VHDs
    "poisoned footer": unsupported(lun(vhd("disk", poisoned=True)), "VHD footer", "resize"),
    "footers of two VHDs": malformed(end_footer_of_another, "VHD footer at byte", "it is the footer of another VHD"),
    # parents
    "parent that is OLD_": unsupported(lun(vhd("base", old=True), vhd("disk", "base")), "of an SR", "names no volume"),
    "loop of two": malformed(loop_of_two, "the chain of parents comes back to it"),
    "its own parent": malformed(lun(vhd("one", "one")), "the chain of parents comes back to it"),
    "another VHD than its parent": malformed(child(552, b"\7" * 16), "is not the VHD that this one was made of"),
    "parent in another SR": malformed(renamed_parent("sr", OTHER_SR), "a volume of another SR, " + OTHER_SR),
    "locator of four gigabytes": malformed(child(1096, ">I", 0xFFFFFFFF), "its text has 4294967295 bytes"),
    # QCOW2 images
    "QCOW2 over a VHD": malformed(qcow2_over_vhd, "it is a vhd, and its child is a qcow2"),
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
    # copies that were cut
    "cut behind the label": foreign(cut(8192), "has 8192 bytes: it is too small for a LUN with an SR"),
    "cut in the metadata area": malformed(cut(8 << 20, area=AREA_10M), "is not on the device"),
    "cut in the data": truncated(cut(8 << 20), "Physical volume at byte 0 of built LUN 0", "only 8388608 are there"),
    "without the last sector of the extents": truncated(
        cut(-512 - MIB // 2), "Physical volume at byte 0 of built LUN 0: it needs"
    ),
}


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


@pytest.mark.parametrize(
    "spoil", [lambda lun: lun.cut(-MIB // 2), lambda lun: lun.poke(LABEL + 64, "<Q", 1 << 50).sealed_label()]
)
def test_a_size_of_the_device_that_only_lvm_remembers_refuses_nothing(spoil):
    disk = spoil(one_raw()).disk

    found = engine.inspect(disk)
    after = resignatured(disk).after

    assert found.state == engine.CLEAN
    told = [note for note in engine.notes(found.lun) if "all extents are on it" in note]
    assert len(told) == (disk.size_bytes < found.lun.vg.dev_size)
    assert engine.inspect(after).state == engine.RESIGNATURED


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
    chain = [vhd("base", hidden=True), vhd("leaf", "base")]
    return spoiled_sr(vhd("one"), vhd("two"), *chain, qcow2("three"), raw("data"), cbtlog("data"), second_area="same")


def _spoil_second_text(spoiled):
    area = spoiled.truth.areas[1].offset
    (text_at,) = struct.unpack("<Q", spoiled.disk.peek(area + 40, 8))
    spoiled.poke(area + text_at + 100, bytes(64))


#: how one structure of that LUN is spoiled; of each, what its defect begins with, and the key of its volume
PLACES = {
    "first metadata area": (lambda lun: lun.poke(AREA + 300, b"\7"), "Metadata area header at byte 4096 of", None),
    "second text": (_spoil_second_text, "Metadata text at byte ", None),
    "MGT": (lambda lun: lun.poke(("MGT", 0), bytes(512)), "MGT header at byte 0 of MGT", "MGT"),
    "VHD header": (lambda lun: lun.poke(("one", 600), b"\7"), "VHD header at byte 512 of ", "one"),
    "VHD footer": (lambda lun: lun.poke(("two", 100), b"\7"), "VHD footer copy at byte 0 of ", "two"),
    "parent": (lambda lun: lun.poke(("leaf", 552), b"\7" * 16).sealed_vhd("leaf"), "Parent at byte 0 of ", "leaf"),
    "QCOW2": (lambda lun: lun.poke(("three", 4), b"\0\0\0\4"), "QCOW2 header at byte 0 of ", "three"),
}
PAIRS = [pair for pair in itertools.combinations(PLACES, 2) if set(pair) != {"first metadata area", "second text"}]
SEVERAL = [(name,) for name in PLACES] + [PAIRS[number] for number in seeds(range(len(PAIRS)), 7)] + [tuple(PLACES)[1:]]


def _spoiled(names):
    spoiled = _many()
    for name in names:
        PLACES[name][0](spoiled)
    return spoiled


@pytest.mark.parametrize("names", SEVERAL, ids=" and ".join)
def test_every_defect_is_told_with_its_place_and_what_else_reads_is_listed(names):
    """The first is what a plan is refused with."""
    spoiled = _spoiled(names)
    truth = spoiled.truth

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
        assert row["lv"] == (truth.volume(key).name if key else None)
        assert row["vdi"] == (truth.uuids[key] if key not in (None, "MGT") else None)

    told = report.inspection_facts("LUN", found)
    spoiled_keys = {PLACES[name][2] for name in names}
    assert [lv["name"] for lv in told["lvs"]] == [volume.name for volume in truth.volumes]
    by_uuid = {vdi["uuid"]: vdi for vdi in told["vdis"]}
    for key in ("one", "two", "base", "leaf", "three", "data"):
        vdi = by_uuid[truth.uuids[key]]
        assert (vdi["problem"] is not None) == (key in spoiled_keys)
        assert (vdi["virtual_size_bytes"] is None) == (key in spoiled_keys - {"leaf"})
        assert bool(vdi["name_label"]) == ("MGT" not in spoiled_keys)


def test_each_volume_behind_the_end_of_a_copy_that_was_cut_is_told():
    spoiled = _many()
    truth = spoiled.truth
    starts = {volume.name: truth.device_ranges(volume.key, 0, 1)[0].offset for volume in truth.volumes}
    last = starts[truth.volume("data").name]

    found = engine.inspect(spoiled.cut(last + 512).disk)

    assert found.problem.message.startswith("LVM label at byte ")  # its second metadata area is gone
    told = {report.defect_facts(defect, found.readable)["lv"] for defect in found.defects}
    assert {name for name, start in starts.items() if start >= last} <= told
    assert truth.volume("one").name not in told


def test_no_metadata_area_that_reads_is_said():
    spoiled = _spoiled(["first metadata area"])
    spoiled.poke(spoiled.truth.areas[1].offset + 300, b"\7")

    found = engine.inspect(spoiled.disk)

    assert [type(defect) for defect in found.defects] == [BadChecksum, BadChecksum, Malformed]
    assert "none of its metadata texts reads" in found.defects[-1].message
    assert found.readable is None


def test_a_chain_that_comes_back_to_itself_is_drawn_all_the_same():
    spoiled = loop_of_two()

    told = report.inspection_text("LUN", engine.inspect(spoiled.disk), report.ASCII_BRANCHES)

    rows = [line for line in told.splitlines() if line.startswith(tuple(spoiled.truth.uuids.values()))]
    assert len(rows) == 2 and sum("[has a defect]" in row for row in rows) == 1


def test_a_journal_far_larger_than_it_should_be_is_not_read_whole():
    spoiled = spoiled_sr(vhd("disk"), size_bytes=1 << 30)
    tail = struct.pack("<8sBBBBI", b"reLVMtag", 1, 3, 1, 0, 0xFFFFF000) + bytes(80)
    spoiled.poke(LABEL + 416, tail).sealed_label().disk.reset_counters()

    engine.inspect(spoiled.disk)

    assert spoiled.disk.bytes_read < 4 << 20
