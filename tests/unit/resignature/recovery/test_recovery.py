# SPDX-License-Identifier: LGPL-2.1-only
"""What recovery does when the LUN has a history: LVM went on, it is a copy, its label is damaged or wiped, its journal
is damaged or hostile."""

import hashlib
import json
import struct
import tracemalloc
import zlib
from functools import partial

import pytest

from kit import reader
from kit.crash import garbage
from kit.cuts import (
    OTHER_SCSI_ID,
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    label_range,
    lvm_commit,
    read_mark,
    recover,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.examples import some
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import FormatError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.commit_record import COMMIT_RECORD_AT, CommitRecord, with_commit_record

pytestmark = pytest.mark.states

IN_PROGRESS, CONTENTS_WRITTEN, SWITCHED, HEADERS_WRITTEN = 3, 4, 5, 6
NEW_VOLUME = "LV-0a0b0c0d-0000-4000-8000-00000000000a"
SHAPES = some(["one VDI", "two areas", "second area ignored", "text wraps", "blocks of 4096"], 3, lambda _name: "")


def refused(disk, act=recover, kind=Refused):
    """The sentence of a refusal; the disk is as it was."""
    before = disk.copy()
    disk.reset_counters()
    with pytest.raises(kind) as caught:
        act(disk)
    assert disk == before and disk.writes == disk.flushes == 0
    assert caught.value.disk_state == "Nothing was written."
    return str(caught.value)


# --- called with a device alone, as docs/scripting.rst shows it


@pytest.mark.parametrize("flush", [SWITCHED, HEADERS_WRITTEN])
def test_a_device_is_enough_to_finish_a_run(flush):
    original = image("one VDI")
    disk = cut_before(original, flush)
    wanted = done(original)

    result = engine.recover(disk)

    assert (result.state, result.already_done) == (engine.RESIGNATURED, False)
    assert reader.vg_view(disk) == reader.vg_view(wanted)


@pytest.mark.parametrize("is_resignatured", [False, True])
def test_nothing_is_written_where_nothing_was_cut(is_resignatured):
    disk = image("one VDI").copy()
    if is_resignatured:
        disk = done(disk)
    before = disk.copy()

    result = engine.recover(disk)

    assert (result.state, result.already_done) == (engine.inspect(before).state, True)
    assert (result.writes, result.flushes) == (0, 0) and disk == before
    assert (result.ids is not None) == is_resignatured


def test_what_is_no_sr_is_refused():
    assert "is empty" in refused(SparseDisk(64 << 20), engine.recover, NotFound)


# --- LVM went on after the commit


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("flush", [SWITCHED, HEADERS_WRITTEN])
@pytest.mark.parametrize("wraps", [False, True])
def test_what_lvm_has_written_into_the_second_area_is_what_lands(name, flush, wraps):
    original = image(name)
    disk = cut_before(original, flush)
    lvm_commit(disk, with_new_volume)
    lvm_commit(disk, wrap=wraps)
    seen = reader.vg_view(disk)

    assert recover(disk)

    vg = reader.read_vg(disk)
    assert reader.vg_view(disk) == seen
    assert NEW_VOLUME in [lv.name for lv in vg.lvs]
    assert vg.label.mdas == reader.read_label(original).mdas
    assert [reader.read_mda(disk, area).precommitted for area in vg.label.mdas] == [False] * len(vg.label.mdas)
    assert vg.mda.text_offset + len(vg.mda.text) <= vg.mda.area.length
    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert reader.read_sr(disk).problems == reader.read_sr(done(original)).problems


def test_lvm_can_go_on_where_recovery_has_landed():
    disk = cut_before(image("text wraps"), SWITCHED)
    lvm_commit(disk, with_new_volume)
    recover(disk)

    lvm_commit(disk, times=300)

    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert reader.vg_view(disk)[-1] == ()


def test_an_update_that_lvm_left_half_done_in_the_second_area_is_not_landed():
    """Slot 1 is what LVM had not committed; it is dropped, as LVM itself would."""
    disk = cut_before(image("a chain"), SWITCHED)
    seen = reader.vg_view(disk)
    lvm_commit(disk, with_new_volume, precommit=True)

    assert recover(disk)

    assert reader.vg_view(disk) == seen
    assert not reader.read_vg(disk).mda.precommitted


def test_an_undo_that_lvm_went_on_after_keeps_lvms_change_and_the_old_identity():
    original = image("a chain")
    disk = cut_before(done(original), SWITCHED, run=undo)
    lvm_commit(disk, with_new_volume)

    assert recover(disk)

    vg = reader.read_vg(disk)
    assert NEW_VOLUME in [lv.name for lv in vg.lvs]
    assert (vg.id, vg.name, vg.pv_id) == (reader.read_vg(original).id, reader.read_vg(original).name,
                                          reader.read_vg(original).pv_id)  # fmt: skip
    assert engine.inspect(disk).state == engine.CLEAN
    assert "holds no resignature" in refused(disk, undo)


def test_a_second_area_that_is_damaged_is_refused_with_its_place_and_nothing_is_written():
    disk = cut_before(image("a chain"), SWITCHED)
    area = reader.read_label(disk).mdas[0]
    disk.poke(area.offset + 100, b"damage")

    assert f"the metadata area at byte {area.offset} holds no metadata that reads" in refused(disk)
    assert f"byte {area.offset} holds" in str(engine.inspect(disk).problem)


# --- LVM changed the VG before the commit


@pytest.mark.parametrize("act", [recover, undo])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("flush, blocks", [(IN_PROGRESS, 0), (IN_PROGRESS, 1), (CONTENTS_WRITTEN, 0)])
def test_the_run_is_taken_back_and_lvms_change_stays(name, flush, blocks, act):
    original = image(name)
    disk = cut_before(original, flush, blocks=blocks)
    lvm_commit(disk, with_new_volume)
    expected = original.copy()
    lvm_commit(expected, with_new_volume)

    act(disk)

    assert engine.inspect(disk).state == engine.CLEAN
    assert reader.essence(disk) == reader.essence(expected)
    assert same_but_for(disk, expected, free_ring(expected))


def test_what_is_somebody_elses_by_then_is_left_alone():
    """A volume may be gone and its extents be in other hands: only what is surely ours is touched."""
    original = image("a chain")
    disk = cut_before(original, CONTENTS_WRITTEN)
    write = read_mark(disk).journal.run.writes[-1]
    lvm_commit(disk, with_new_volume)
    expected = original.copy()
    lvm_commit(expected, with_new_volume)
    for somewhere in (disk, expected):
        somewhere.poke(write.offset, b"somebody else's" * 32)

    with pytest.raises(FormatError) as caught:  # what is there is no SR any more
        recover(disk)

    assert caught.value.disk_state == "The resignature was taken back."
    assert same_but_for(disk, expected, free_ring(expected))


@pytest.mark.parametrize("at", [100, 700])
def test_a_second_area_is_not_needed_to_take_a_run_back(at):
    original = image("a chain")
    disk = cut_before(original, CONTENTS_WRITTEN)
    disk.poke(read_mark(disk).journal.run.mdas[0].second.offset + at, b"other")

    assert recover(disk)

    assert same_but_for(disk, original, free_ring(original))


# --- copies of an unfinished LUN


@pytest.mark.parametrize("flush", [SWITCHED, HEADERS_WRITTEN])
def test_a_copy_of_an_unfinished_lun_is_not_finished_with_the_same_ids(flush):
    disk = cut_before(image("a chain"), flush)

    sentence = refused(disk, lambda lun: recover(lun, OTHER_SCSI_ID))

    assert "copy of a LUN" in sentence and SCSI_ID in sentence and "relvmoiscsi undo" in sentence
    undo(disk)
    assert isinstance(
        engine.prepare(disk, entropy(9), engine.ResignatureRequest(scsi_id=OTHER_SCSI_ID)), engine.Prepared
    )


@pytest.mark.parametrize("flush", [IN_PROGRESS, CONTENTS_WRITTEN])
def test_before_the_commit_a_copy_is_taken_back_like_any_other(flush):
    original = image("a chain")
    disk = cut_before(original, flush)

    assert recover(disk, OTHER_SCSI_ID)

    assert same_but_for(disk, original, free_ring(original))


@pytest.mark.parametrize("begun, now", [(SCSI_ID, SCSI_ID), (SCSI_ID, None), (None, SCSI_ID), (None, None)])
def test_where_the_scsi_ids_do_not_contradict_the_run_is_finished(begun, now):
    disk = cut_before(image("a chain"), SWITCHED, scsi_id=begun)

    assert recover(disk, now)

    assert engine.inspect(disk).state == engine.RESIGNATURED


# --- labels that are damaged or wiped


@pytest.mark.parametrize("flush", [CONTENTS_WRITTEN, HEADERS_WRITTEN])
def test_a_label_that_is_damaged_is_refused_and_stays(flush):
    """No device tears a sector: docs/protocol.rst, "What a cut leaves"."""
    disk = cut_before(image("a chain"), flush)
    label = label_range(disk)
    disk.poke(label.offset, garbage(label.offset, 512))

    assert "no LVM physical volume" in refused(disk)
    assert engine.inspect(disk).state == engine.FOREIGN


@pytest.mark.parametrize("flush", [CONTENTS_WRITTEN, HEADERS_WRITTEN])
@pytest.mark.parametrize("wipe", ["pvremove", "wipefs"])
def test_a_label_that_was_wiped_stays_wiped(flush, wipe):
    """pvremove writes zeros over the sector, wipefs over the eight bytes of its type."""
    disk = cut_before(image("a chain"), flush)
    label = label_range(disk)
    place = Range(label.offset, 512) if wipe == "pvremove" else Range(label.offset + 24, 8)
    disk.poke(place.offset, bytes(place.length))
    before = disk.copy()

    with pytest.raises(RelvmoiscsiError) as caught:
        recover(disk)

    assert disk == before
    assert caught.value.disk_state == "Nothing was written."


# --- hostile journals


def with_journal(disk, data, **tail):
    """The unfinished LUN with other bytes for a journal, and a mark in the label that speaks of them."""
    mark = read_mark(disk)
    disk.poke(mark.journal.offset, data)
    return with_mark(disk, journal_digest=hashlib.sha256(data[:64]).digest(), journal_length=len(data), **tail)


def with_mark(disk, **fields):
    mark = read_mark(disk) if not fields.get("journal_digest") else None
    label = label_range(disk)
    sector = disk.peek(label.offset, 512)
    tail = CommitRecord.at(sector[COMMIT_RECORD_AT:]).replace(**fields)
    disk.poke(label.offset, with_commit_record(sector, tail))
    assert mark is None or mark.commit_record != tail
    return disk


def packed(payload, **fields):
    """A journal of this payload whose digests are right."""
    data = zlib.compress(payload)
    values = {
        "magic": journal.JOURNAL_MAGIC,
        "version": journal.VERSION,
        "payload_length": len(data),
        "raw_length": len(payload),
        "payload_digest": hashlib.sha256(data).digest(),
    }
    header = journal.JournalHeader.zero(**dict(values, **fields))
    return (bytes(header) + data).ljust(8192, b"\0")


def facts_of(disk):
    """The facts in the journal of an unfinished LUN, and the bytes behind them."""
    data = read_mark(disk).journal.data
    payload = zlib.decompress(data[64 : 64 + struct.unpack_from("<Q", data, 16)[0]])
    (length,) = struct.unpack_from("<Q", payload)
    return json.loads(payload[8 : 8 + length].decode()), payload[8 + length :]


def hostile(disk, edit):
    """The LUN with a journal whose facts were changed and whose digests are right."""
    facts, blobs = facts_of(disk)
    edit(facts)
    text = json.dumps(facts).encode()
    return with_journal(disk, packed(struct.pack("<Q", len(text)) + text + blobs))


def refused_everywhere(disk):
    """Neither inspect, recover, undo nor rescue crashes, writes, or takes much memory."""
    disk.reset_counters()
    before = disk.copy()
    tracemalloc.start()
    try:
        state = engine.inspect(disk).state
        for act in (recover, undo):
            with pytest.raises(RelvmoiscsiError) as caught:
                act(disk)
            assert caught.value.disk_state == "Nothing was written."
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert disk == before and disk.writes == 0
    assert peak < 24 << 20, f"{peak} bytes were allocated"
    return state


def write_at(offset):
    def edit(facts):
        facts["writes"][0][0] = offset

    return edit


HOSTILE_FACTS = {
    "a write over the label": write_at(512),
    "a write over the metadata area": write_at(8192),
    "a write before the device": write_at(-512),
    "a write past the end": write_at(1 << 62),
    "a place that is no number": write_at("x"),
    "an area elsewhere": lambda facts: facts.update(mdas=[[[4096, 1 << 40], [8192, 65536]]]),
    "no areas": lambda facts: facts.update(mdas=[]),
    "a PV id that is none": lambda facts: facts.update(new_pv_id="short"),
    "UUIDs that are none": lambda facts: facts.update(uuids={"a": "b"}),
    "no UUIDs": lambda facts: facts.pop("uuids"),
}


PAYLOADS = {
    "facts that are no JSON": b"\x04" + bytes(7) + b"{{{{",
    "facts nested deeply": struct.pack("<Q", 200000) + b"[" * 100000 + b"]" * 100000,
    "nothing": b"",
}
HEADERS = {
    "a bomb that says how large it is": {"raw_length": 1 << 30},
    "a payload that is longer than anything": {"payload_length": (1 << 64) - 1},
    "another digest": {"payload_digest": b"x" * 32},
}
HOSTILE = {
    **{what: partial(hostile, edit=edit) for what, edit in HOSTILE_FACTS.items()},
    **{what: partial(with_journal, data=packed(payload)) for what, payload in PAYLOADS.items()},
    **{what: partial(with_journal, data=packed(bytes(4 << 20), **lie)) for what, lie in HEADERS.items()},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_journal_is_refused_without_a_write(what):
    disk = HOSTILE[what](cut_before(image("a chain"), CONTENTS_WRITTEN))

    assert refused_everywhere(disk) == engine.UNFINISHED


MARKS_THAT_MISS = [
    {"journal_length": 0},
    {"journal_length": (1 << 32) - 1},
    {"journal_offset": (1 << 64) - 1},
    {"journal_offset": 1 << 40},
    {"journal_offset": 0},
    {"journal_digest": b"x" * 32},
]


@pytest.mark.parametrize("fields", MARKS_THAT_MISS)
def test_a_mark_that_points_nowhere_is_refused_without_a_write(fields):
    """And contents are new."""
    disk = cut_before(image("a chain"), CONTENTS_WRITTEN)
    found = read_mark(disk).journal
    disk.poke(found.offset, bytes(len(found.data)))
    with_mark(disk, **dict({"journal_digest": b"y" * 32}, **fields))

    assert engine.inspect(disk).state == engine.UNFINISHED
    for act in (recover, undo, lambda lun: engine.prepare(lun, entropy(2), engine.ResignatureRequest(scsi_id=SCSI_ID))):
        assert "take the clone again" in refused(disk, act, kind=RelvmoiscsiError) or act not in (recover, undo)


@pytest.mark.parametrize("fields", [{"version": 2}, {"phase": 9}, {"kind": 7}, {"magic": b"somebody"}])
def test_a_mark_of_another_version_is_left_alone(fields):
    disk = with_mark(cut_before(image("a chain"), CONTENTS_WRITTEN), **fields)

    refused(disk, kind=FormatError)
    refused(disk, undo, kind=FormatError)
    refused(
        disk, lambda lun: engine.prepare(lun, entropy(2), engine.ResignatureRequest(scsi_id=SCSI_ID)), kind=FormatError
    )
    assert engine.inspect(disk).state == engine.DAMAGED
