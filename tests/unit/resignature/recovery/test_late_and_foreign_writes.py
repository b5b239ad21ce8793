# SPDX-License-Identifier: LGPL-2.1-only
"""A run stops, others write to the LUN, and then somebody calls `recover`, `undo` or `resignature`: one table.

A row of `SETTLED` says where the run stopped, what others wrote since, who is called, and where that leads: back to the
LUN before the run, or on to the LUN after it, with all that others wrote. A row of `REFUSED` says what no call may
settle: the LUN stays as it is. Block tables, bitmaps, labels and guest data lie in the same blocks as identities: some
in blocks of 512 bytes, all of them in blocks of 4096.

Writes of another host that land late are the table of docs/protocol.rst, below.
"""

import hashlib
import json
import re
import struct
import tracemalloc
import zlib
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any, NamedTuple, Tuple

import pytest

from kit import build_lvm, builder, lvmreader, reader
from kit.builder import AREA_DEFAULT
from kit.crash import CrashDisk, garbage
from kit.cuts import (
    OTHER_SCSI_ID,
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    label_range,
    late_writes,
    lvm_commit,
    read_mark,
    recover,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.examples import WHOLE, some
from kit.live import STATES
from relvmoiscsi import engine, wording
from relvmoiscsi.device import Fence, Range
from relvmoiscsi.errors import FormatError, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.commit_record import COMMIT_RECORD_AT, CommitRecord, with_commit_record
from relvmoiscsi.resignature.recovery import cut_run

pytestmark = pytest.mark.states

# --- where the run stopped: before so many flushes, and so many blocks later

MARKED, CONTENTS, SWITCHED, HEADERS = (3, 0), (4, 0), (5, 0), (6, 0)
BEFORE = [MARKED, (3, 3), CONTENTS]
BEHIND = [SWITCHED, HEADERS]
DONE = [None]

# --- on which LUN

CHAIN = ["a chain"]
#: a run changes flags of one byte here, which others may write by chance
FLAGS = ["leaf: after_hidden, vhd"]
#: blocks of so many bytes, in physical ones of so many, with all kinds of volumes
EVERYTHING = [(512, 512), (512, 4096), (4096, 4096)]
SHAPES = some(["one VDI", "two areas", "second area ignored", "text wraps", "blocks of 4096"], 3, lambda _name: "")


@lru_cache(maxsize=None)
def _everything(logical, physical):
    disk = builder.everything(area=AREA_DEFAULT, block_size=logical).disk
    disk.physical_block_size = physical
    disk.name = f"{logical} in {physical}"
    disk.freeze()
    return disk


def lun(name):
    if name in STATES:
        return STATES[name]().built.disk.copy()
    return image(name) if isinstance(name, str) else _everything(*name).copy()


def planned(disk):
    """The run on a LUN that nobody has touched."""
    return read_mark(done(disk)).journal.run


# --- what others wrote since: `was` is the LUN before the run, `run` the run that stopped


def places(disk):
    """Name of a place beside an identity: (offset on the device, what somebody writes there)."""
    vg = reader.read_vg(disk)
    found = {}
    for lv in vg.lvs:
        kind = reader.kind_of(lv.name)
        at = lambda offset, lv=lv: reader.device_ranges(vg, lv, offset, 8)[0].offset  # noqa: E731
        if kind == "vhd":
            found["block table of " + lv.name] = (at(1536), b"\0\0\x20\x10")
            found["guest data of " + lv.name] = (at(2 << 20), b"written by a guest")
        elif kind == "cbt":
            found["bitmap of " + lv.name] = (at(50), b"\x81\x18")
        elif kind == "mgt":
            label = disk.peek(at(2048), 512).index(b"<name_label>") + len(b"<name_label>")
            found["label in MGT"] = (at(2048) + label, b"LABEL")
    return found


def guests(disk, was, run):
    for offset, data in places(was).values():
        assert disk.peek(offset, len(data)) != data
        disk.poke(offset, data)


def lvm(disk, was, run):
    lvm_commit(disk, with_new_volume)


def lvm_wraps(disk, was, run):
    lvm_commit(disk, with_new_volume)
    lvm_commit(disk, wrap=True)


def lvm_is_cut(disk, was, run):
    """LVM came as far as slot 1: nothing is committed, and LVM itself would drop it."""
    if run is not None:
        lvm_commit(disk, with_new_volume, precommit=True)


def pvresize(disk, was, run):
    """Another device size in the label."""
    label = label_range(disk)
    sector = bytearray(disk.peek(label.offset, 512))
    sector[64:72] = (was.size_bytes - 8192).to_bytes(8, "little")
    disk.poke(label.offset, pv.sealed_label(bytes(sector)))


def second_area(at, disk, was, run):
    if run is not None:
        disk.poke(run.mdas[0].second.offset + at, b"damage")


def other_parent(disk, was, run):
    """A VHD gets the name of another parent, which leads to no volume."""
    field = next(field for field in planned(was).fields if field.kind == "VHD header")
    header, at = field.around[0].offset, field.pieces[0].offset
    disk.poke(at, b"\0f" if disk.peek(at, 2) != b"\0f" else b"\0e")
    disk.poke(header, bytes(vhd.sealed(vhd.DynamicHeader(disk.peek(header, 1024)))))


def other_owner(disk, was, run):
    """A volume is gone and its extents are in other hands."""
    lvm_commit(disk, with_new_volume)
    disk.poke(planned(was).writes[-1].offset, b"somebody else's" * 32)


def other_vhd(disk, was, run):
    """A volume is gone, and another VHD ends in its extents. The one-byte flag in its footer is what the run writes."""
    lvm_commit(disk, with_new_volume)
    flags = [field for field in planned(was).fields if "copy" not in field.what]
    flag = next(field for field in flags if [piece.length for piece in field.pieces] == [1])
    footer, at = flag.around[0].offset, flag.pieces[0].offset
    there = bytearray(was.peek(footer, 512))
    there[at - footer : at - footer + 1] = done(was).peek(at, 1)
    there[68:84] = b"of another disk."
    disk.poke(footer, bytes(vhd.sealed(vhd.Footer(bytes(there)))))


def at_label(offset, data, disk, was, run):
    disk.poke(label_range(was).offset + offset, data)


def identity_in(kind, disk, was, run):
    """Another byte in an identity of a volume of that kind."""
    vg = reader.read_vg(was)
    lvs = [lv for lv in vg.lvs if reader.kind_of(lv.name) == kind]
    parts = [part for lv in lvs for part in reader.device_ranges(vg, lv, 0, vg.extent_bytes * lv.extents)]
    spans = reader.identity_ranges(was)
    at = next(span.offset for span in spans if any(part.offset <= span.offset < part.end for part in parts))
    disk.poke(at, bytes([disk.peek(at, 1)[0] ^ 1]))


def old_text(disk, was, run):
    mda = reader.read_vg(was).mda
    disk.poke(mda.area.offset + mda.text_offset, b"x")


def no_journal(disk, was, run):
    if run is not None:
        found = read_mark(disk).journal
        disk.poke(found.offset, bytes(len(found.data)))


def marked(disk, **fields):
    """Another mark in the label."""
    label = label_range(disk)
    sector = disk.peek(label.offset, 512)
    disk.poke(label.offset, with_commit_record(sector, CommitRecord.at(sector[COMMIT_RECORD_AT:]).replace(**fields)))


def mark(fields, disk, was, run):
    marked(disk, **fields)


def mark_that_misses(fields, disk, was, run):
    no_journal(disk, was, run)
    marked(disk, **dict({"journal_digest": b"y" * 32}, **fields))


def with_journal(data, disk, was, run):
    """Other bytes for a journal, and a mark in the label that speaks of them."""
    disk.poke(read_mark(disk).journal.offset, data)
    marked(disk, journal_digest=hashlib.sha256(data[:64]).digest(), journal_length=len(data))


def packed(payload):
    """A journal of this payload whose digests are right."""
    data = zlib.compress(payload)
    values = {"magic": journal.JOURNAL_MAGIC, "version": journal.VERSION, "payload_length": len(data)}
    values.update(raw_length=len(payload), payload_digest=hashlib.sha256(data).digest())
    return (bytes(journal.JournalHeader.zero(**values)) + data).ljust(8192, b"\0")


def facts(changed, disk, was, run):
    """A journal with other facts, whose digests are right; None: without the fact."""
    data = read_mark(disk).journal.data
    payload = zlib.decompress(data[64 : 64 + struct.unpack_from("<Q", data, 16)[0]])
    (length,) = struct.unpack_from("<Q", payload)
    told = json.loads(payload[8 : 8 + length].decode())
    if "write" in changed:
        told["writes"][0][0] = changed["write"]
    else:
        told.update(changed)
    text = json.dumps({key: value for key, value in told.items() if value is not None}).encode()
    with_journal(packed(struct.pack("<Q", len(text)) + text + payload[8 + length :]), disk, was, run)


# --- who is called


def on_a_copy(disk):
    return recover(disk, OTHER_SCSI_ID)


def again(disk):
    return engine.prepare(disk, entropy(2), engine.ResignatureRequest(scsi_id=SCSI_ID))


EITHER = [recover, undo]

# --- where that leads

BACK, ON = "back", "on"


class Row(NamedTuple):
    stops: Any
    others: Tuple
    acts: Any
    end: str  #: BACK, ON, or words of the refusal
    luns: Any = CHAIN
    run: Any = resignature
    is_sr: bool = True  #: what others wrote leaves an SR
    state: str = engine.UNFINISHED  #: of what is refused
    error: type = Refused


SETTLED = [
    Row(BEFORE, (guests,), EITHER, BACK, EVERYTHING),
    Row(BEFORE, (lvm,), EITHER, BACK, SHAPES),
    Row(BEFORE, (guests, lvm), EITHER, BACK, EVERYTHING[1:2]),
    Row(BEFORE, (pvresize,), EITHER, BACK),
    Row(BEFORE, (partial(second_area, 100),), EITHER, BACK),
    Row(BEFORE, (partial(second_area, 700),), EITHER, BACK),
    Row(BEFORE, (), [on_a_copy], BACK),
    Row([MARKED], (other_parent,), EITHER, BACK, is_sr=False),
    Row([CONTENTS], (other_owner,), EITHER, BACK, is_sr=False),
    Row([CONTENTS], (other_vhd,), EITHER, BACK, FLAGS, is_sr=False),
    Row([MARKED], (no_journal,), EITHER, BACK),
    Row([MARKED], (no_journal,), [recover], BACK, run=undo),
    Row([CONTENTS], (lvm,), [recover], BACK, run=undo),
    Row([SWITCHED], (lvm,), [recover], ON, run=undo),
    Row(BEHIND, (guests,), [recover], ON, EVERYTHING),
    Row(BEHIND, (guests,), [undo], BACK, EVERYTHING),
    Row(BEHIND, (lvm,), [recover], ON, SHAPES),
    Row(BEHIND, (lvm_wraps,), [recover], ON, SHAPES),
    Row([SWITCHED], (lvm_is_cut,), [recover], ON),
    Row(BEHIND, (), [recover, engine.recover], ON),
    Row(DONE, (guests,), [undo], BACK, EVERYTHING),
]

REFUSED = [
    Row(BEHIND, (), [on_a_copy], f"was cut (SCSIid {SCSI_ID!r}). Nothing was written. Run `relvmoiscsi undo"),
    Row([SWITCHED], (partial(second_area, 100),), EITHER, "holds no metadata that reads"),
    # no device tears a sector: docs/protocol.rst, "What an interruption leaves"
    Row([CONTENTS, HEADERS], (partial(at_label, 0, garbage(512, 512)),), EITHER, "the first four sectors hold none",
        state=engine.DAMAGED, error=FormatError),
    # pvremove writes zeros over the sector, wipefs over the eight bytes of its type
    Row([CONTENTS, HEADERS], (partial(at_label, 0, bytes(512)),), EITHER, "", state=engine.FOREIGN),
    Row([CONTENTS, HEADERS], (partial(at_label, 24, bytes(8)),), EITHER, "", state=engine.DAMAGED, error=FormatError),
    Row(DONE, (lvm,), [undo], "LVM has changed the volume group", ["two areas"], state=engine.RESIGNATURED),
    *[Row(DONE, (partial(identity_in, kind),), [undo], "has changed since the resignature", EVERYTHING[:1], state=state)
      for kind, state in (("mgt", engine.DAMAGED), ("cbt", engine.RESIGNATURED), ("vhd", engine.DAMAGED),
                          ("qcow2", engine.DAMAGED))],
    Row(DONE, (no_journal,), [undo], "LVM has reclaimed the space of the journal", state=engine.RESIGNATURED),
    Row(DONE, (old_text,), [undo], "", error=FormatError, state=engine.RESIGNATURED),
    Row([(3, n) for n in range(1, 8)], (no_journal,), EITHER, "Take the clone again", error=FormatError),
    # links lead nowhere: whether they are new or lead to what is gone, nobody knows
    Row([MARKED], (no_journal,), EITHER, "Take the clone again", EVERYTHING[:1], error=FormatError),
    Row([CONTENTS], (no_journal,), [again], "Take the clone again", error=FormatError),
    *[Row([CONTENTS], (partial(mark_that_misses, fields),), EITHER, "Take the clone again", error=FormatError)
      for fields in ({"journal_length": 0}, {"journal_offset": 1 << 40}, {"journal_digest": b"x" * 32})],
    *[Row([CONTENTS], (partial(mark, fields),), [*EITHER, again], "", error=FormatError, state=engine.DAMAGED)
      for fields in ({"version": 2}, {"phase": 0}, {"phase": 4}, {"kind": 0}, {"kind": 3}, {"magic": b"somebody"})],
    # a write over the label, at what is no number; other places, and a payload that lies: protocol/test_journal.py
    *[Row([CONTENTS], (partial(facts, changed),), EITHER, "", error=FormatError)
      for changed in (*({"write": at} for at in (512, "x")),
                      {"mdas": [[[4096, 1 << 40], [8192, 65536]]]}, {"mdas": []}, {"new_pv_id": "short"},
                      {"uuids": {"a": "b"}}, {"uuids": None})],
    *[Row([CONTENTS], (partial(with_journal, packed(payload)),), EITHER, "", error=FormatError)
      for payload in (b"\x04" + bytes(7) + b"{{{{",
                      struct.pack("<Q", 200000) + b"[" * 100000 + b"]" * 100000,
                      b"")],
]  # fmt: skip


def cases(table):
    """Each row on each of its LUNs, stopped at each of its places, settled by each of its calls.

    A sample has each call of each row, which has a letter therefore: digits make no kind.
    """
    return [
        pytest.param(row, act, stop, name, id=f"{ascii_letters[number]} {named(row)} {act.__name__} {stop} {name}")
        for number, row in enumerate(table)
        for act in row.acts
        for stop in row.stops
        for name in row.luns
    ]


def named(row):
    return " and ".join(getattr(each, "func", each).__name__ for each in row.others) or "nobody"


def left(row, stop, name, run=None):
    """The LUN before the run and after it; and the one that is found, with what others wrote on it."""
    original = lun(name)
    start = original if row.run is resignature else done(original)
    disk = done(start, run=row.run) if stop is None else cut_before(start, stop[0], run=row.run, blocks=stop[1])
    disk = disk.copy()
    found = read_mark(disk).journal.run
    for change in row.others:
        change(disk, original, found)
    return original, start, disk


@pytest.mark.parametrize("row, act, stop, name", cases(SETTLED))
def test_what_others_wrote_stays_wherever_the_run_leads(row, act, stop, name):
    original, start, disk = left(row, stop, name)
    expected = (start if row.end == BACK else done(start, run=row.run)).copy()
    for change in row.others:
        change(expected, original, None)

    if row.is_sr:
        act(disk)
        state = engine.inspect(disk).state
        assert state == engine.inspect(expected).state
        assert isinstance(again(disk), {engine.CLEAN: engine.Prepared, engine.RESIGNATURED: engine.AlreadyDone}[state])
        assert reader.vg_view(disk) == reader.vg_view(expected)
        assert reader.read_sr(disk).problems == reader.read_sr(expected).problems
    else:
        with pytest.raises(FormatError) as caught:
            act(disk)
        assert caught.value.disk_state == "The resignature was rolled back."

    # behind the commit LVM's texts move from the second area to the original one
    rings = free_ring(expected) if row.end == BACK else list(reader.read_label(original).mdas)
    # of the label the old bytes are not known without a journal; and an undo that LVM has overtaken leaves its mark
    label = [label_range(original)] if no_journal in row.others or row.run is undo else []
    assert same_but_for(disk, expected, [*rings, *label])
    areas = [reader.read_mda(disk, area) for area in reader.read_label(disk).mdas]
    assert [area.area for area in areas] == list(reader.read_label(original).mdas)
    assert not any(area.precommitted for area in areas)
    assert all(area.text_offset + len(area.text) <= area.area.length for area in areas) or row.end == BACK


@pytest.mark.parametrize("row, act, stop, name", cases(REFUSED))
def test_what_nobody_can_settle_is_refused_and_the_lun_stays_as_it_is(row, act, stop, name):
    _original, _start, disk = left(row, stop, name)
    before = disk.copy()
    disk.reset_counters()

    tracemalloc.start()
    try:
        state = engine.inspect(disk).state
        with pytest.raises(RelvmoiscsiError) as caught:
            act(disk)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert disk == before and disk.writes == disk.flushes == 0
    assert isinstance(caught.value, row.error) and caught.value.disk_state == "Nothing was written."
    assert row.end in str(caught.value)
    assert state == row.state
    assert peak < 24 << 20, f"{peak} bytes were allocated"


def test_a_way_back_that_is_cut_after_others_wrote_is_gone_on_with():
    for name in EVERYTHING:
        row = Row([CONTENTS], (guests,), [recover], BACK)
        original, _start, disk = left(row, CONTENTS, name)
        expected = original.copy()
        guests(expected, original, None)
        crash = CrashDisk(disk)
        recover(crash)

        for cut, found in crash.crash_images(limit=16, samples=2, every=1 if WHOLE else 4):
            recover(found)
            assert same_but_for(found, expected, free_ring(original)), (name, cut)


def test_a_text_of_lvm_that_wraps_and_has_no_room_in_its_original_area_stays_where_lvm_reads_it():
    """LVM has filled the second area, and the ring is small. The next text of LVM wraps no more."""
    disk = cut_before(builder.one_vhd(area=Range(AREA_DEFAULT.offset, 160 << 10)).disk, 5)
    begin, long = b'description = "', b"x" * (80 << 10)
    lvm_commit(disk, lambda text: text.replace(begin, begin + long), wrap=True)
    before = reader.vg_view(disk)

    with pytest.raises(Refused, match="There is no room to bring the metadata text back to its.* Nothing was written"):
        recover(disk)
    assert reader.vg_view(disk) == before

    lvm_commit(disk, lambda text: text.replace(long, b""))
    recover(disk)
    assert engine.inspect(disk).state == engine.RESIGNATURED


def test_lvm_can_go_on_where_recovery_has_finished_a_run():
    disk = cut_before(image("text wraps"), 5)
    lvm_commit(disk, with_new_volume)
    recover(disk)

    lvm_commit(disk, times=300)

    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert reader.vg_view(disk)[-1] == ()


@pytest.mark.parametrize("begun, now", [(SCSI_ID, SCSI_ID), (SCSI_ID, None), (None, SCSI_ID), (None, None)])
def test_where_the_scsi_ids_do_not_contradict_the_run_is_finished(begun, now):
    disk = cut_before(image("a chain"), 5, scsi_id=begun)

    assert recover(disk, now)

    assert engine.inspect(disk).state == engine.RESIGNATURED


# --- writes of another host that land late
#
# On one host no write lands late: the next session of iSCSI ends the one before, and the kernel ends a request of a
# disk before the process is over. So what was settled by then must only stay recognisable: nothing is made of it that
# the LUN never was, and what cannot be told is refused, with its evidence and without a write.

IMAGES = some(["a chain", "two areas", "blocks of 4096", "512e"], 3, lambda _name: "")


def go_on(disk, seed=1):
    """What a user does who wants the LUN resignatured: the same command again, until it says so."""
    for _ in range(3):
        try:
            prepared = engine.prepare(disk, entropy(seed), engine.ResignatureRequest(scsi_id=SCSI_ID))
        except Unfinished:
            recover(disk)
            continue
        if isinstance(prepared, engine.Prepared):
            engine.resignature(disk, prepared)
        return
    raise AssertionError("three calls were not enough")


def seen_on(disk):
    return reader.identities(disk), reader.vg_view(disk)


def ends_of(original):
    """What is seen on the LUN after the run that failed, and after another one."""
    return [seen_on(done(original)), seen_on(done(original, seed=1))]


@pytest.mark.parametrize("name", IMAGES)
def test_a_write_that_failed_and_is_there_is_settled_by_the_same_command(name):
    original = image(name)
    ends = ends_of(original)
    for _n, failing in late_writes(original):
        failing.land()

        go_on(failing.base)

        assert seen_on(failing.base) in ends
        assert engine.inspect(failing.base).state == engine.RESIGNATURED


@pytest.mark.parametrize("settle", [undo, go_on])
@pytest.mark.parametrize("name", IMAGES)
def test_one_that_lands_on_a_lun_that_was_settled_is_harmless_or_refused_without_a_write(name, settle):
    original = image(name)
    refused, ends = 0, ends_of(original)
    # contents: docs/protocol.rst, "What is not covered"
    for n, failing in late_writes(original, end=reader.read_vg(original).pe_start_bytes):
        disk = failing.base
        if settle is undo and engine.inspect(disk).state == engine.CLEAN:
            continue  # there is nothing to roll back
        settle(disk)
        settled = seen_on(disk)
        failing.land()
        landed = disk.copy()

        try:
            go_on(disk)
        except RelvmoiscsiError as error:
            refused += 1
            assert disk == landed, f"write {n}: {error}"
            assert engine.inspect(landed).state in (engine.UNFINISHED, engine.DAMAGED), f"write {n}"
            continue
        assert seen_on(disk) in [settled, *ends], f"write {n}"
        assert reader.read_sr(disk).problems == reader.read_sr(original).problems
        assert engine.inspect(disk).state == engine.RESIGNATURED
    assert refused > 0


def label_that_fails(number, name):
    """The disk on which that write of the label has failed: the mark, the commit, or the final one."""
    return [failing for _n, failing in late_writes(image(name), end=4096)][number]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("number, when", [(0, "before"), (1, "behind"), (2, "")])
def test_a_label_that_does_not_go_with_the_metadata_is_refused_with_what_is_where(name, number, when):
    """A second run is on the LUN by then, and LVM has gone on in it."""
    failing = label_that_fails(number, name)
    disk = failing.base
    go_on(disk)
    lvm_commit(disk)
    failing.land()
    landed = disk.copy()
    found = engine.inspect(disk)

    if not when:  # LVM's own label of the same run: it is right
        assert found.state == engine.RESIGNATURED
        return
    assert found.state == engine.UNFINISHED
    assert f"was cut {when} its commit, and the " in str(found.problem)
    assert "Take the clone again" in str(found.problem)
    for act in (recover, undo, go_on):
        with pytest.raises(RelvmoiscsiError):
            act(disk)
    assert disk == landed


def test_a_commit_that_lands_behind_the_way_back_leads_lvm_nowhere():
    """Its second area has no header any more, so nobody uses what lies there."""
    original, failing = image("a chain"), label_that_fails(1, "a chain")
    undo(failing.base)
    assert same_but_for(failing.base, original, free_ring(original))
    failing.land()

    assert lvmreader.vg_view(failing.base)[0] == "PV without VG"
    assert engine.inspect(failing.base).state == engine.UNFINISHED


@pytest.mark.parametrize(("cut", "area"), [(CONTENTS, "original"), (SWITCHED, "second")])
def test_a_write_that_arrives_while_the_recovery_waits_for_the_lease_is_seen(cut, area, monkeypatch):
    """The host that was cut may write until its lease has ended: after the first look at the metadata areas."""
    disk = cut_before(image("a chain"), cut[0], blocks=cut[1]).copy()
    earlier = read_mark(disk)
    place = getattr(earlier.journal.run.mdas[0], area).offset
    claimed = cut_run._claimed

    def late(device, found):
        ended = claimed(device, found)
        disk.poke(place, bytes(512))
        before.append(disk.copy())
        return ended

    before = []
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 0.0)
    monkeypatch.setattr(cut_run, "_claimed", late)
    with pytest.raises(RelvmoiscsiError, match="Only the commit record of .* was written. Take the clone again."):
        recover(disk)
    assert disk == before[0]


def text_in(area, text, disk):
    """This text in an area whose header lies elsewhere, or has been replaced; away from what a run keeps there."""
    build_lvm.put_text(disk, area, area.length // 2 // 512 * 512, text)
    disk.poke(area.offset, build_lvm.mda_header(area, [build_lvm.raw_locn(area.length // 2 // 512 * 512, text)]))


def of_another_sr(_old, new):
    return re.sub(rb"\AVG_XenStorage-[0-9a-f-]{36}", b"VG_XenStorage-0a0b0c0d-0000-4000-8000-000000000001", new)


@pytest.mark.parametrize(
    ("area", "other", "says"),
    [
        ("second", lambda old, _new: old, "no metadata that reads: .* its PV id is not the one in the metadata text"),
        ("second", of_another_sr, "LUN holds the SR .* not the SR .* of its journal"),
        ("original", lambda old, _new: old, "holds the volume group of PV"),
        ("original", lambda _old, new: re.sub(rb"\nseqno = \d+", b"\nseqno = 99", new), "newer text: seqno 99 at byte"),
        ("second", lambda _old, new: new.replace(b"\npe_count = ", b"\nno_count = "), "no metadata that reads"),
    ],
)
def test_behind_the_commit_a_text_that_the_run_cannot_have_left_is_refused(area, other, says):
    original = image("a chain")
    disk = cut_before(original, *SWITCHED[:1]).copy()
    (move,) = read_mark(disk).journal.run.mdas
    old, new = (lvmreader.read_mda(one, lvmreader.read_label(one).mdas[0]).text for one in (original, disk))
    text_in(getattr(move, area), other(old, new), disk)
    before = disk.copy()

    for act in (recover, undo):
        with pytest.raises(RelvmoiscsiError, match="behind its commit, and the .*" + says) as caught:
            act(disk)
        assert caught.value.disk_state == "Nothing was written." and disk == before


def test_a_roll_back_logs_the_first_of_the_fields_that_another_program_has_changed_and_their_number(
    caplog, monkeypatch
):
    """The journal of a hostile LUN has a hundred thousand fields."""
    monkeypatch.setattr(wording, "_MOST_LOGGED", 3)
    disk = cut_before(image("everything"), CONTENTS[0]).copy()
    run = engine.find_unfinished(disk).journal.run
    for place in [place for field in run.fields for place in field.pieces]:
        disk.poke(place.offset, b"z" * place.length)

    with pytest.raises(FormatError, match="The resignature was rolled back"):
        recover(disk)

    told = [line for line in caplog.messages if "another program has changed a field" in line]
    assert len(told) == 4 and " at byte " in told[0] and told[3].endswith(f"... and {len(run.fields) - 3} more")
