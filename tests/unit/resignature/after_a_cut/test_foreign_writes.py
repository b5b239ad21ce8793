# SPDX-License-Identifier: LGPL-2.1-only
"""A run is cut, a VM runs on the LUN, SM writes labels; then somebody calls `recover` or `undo`. Nothing of it is lost.

A block table entry, a bit of a changed-block log, a label and guest data lie in the same blocks as identities: some in
blocks of 512 bytes, all of them in blocks of 4096.
"""

import hashlib
import json
import struct
import zlib

import pytest

from kit import builder, lvmreader, reader
from kit.builder import AREA_DEFAULT
from kit.crash import CrashDisk, garbage
from kit.cuts import (
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    label_range,
    lvm_commit,
    recover,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.errors import DeviceError, FormatError, Refused
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.mark import TAIL_AT, Tail, with_tail

pytestmark = pytest.mark.states

IN_PROGRESS, CONTENTS_WRITTEN, SWITCHED = 3, 4, 5
LOGICAL_AND_PHYSICAL = [(512, 512), (512, 4096), (4096, 4096)]


def everything(logical, physical):
    disk = builder.everything(area=AREA_DEFAULT, block_size=logical).disk
    disk.physical_block_size = physical
    disk.name = f"{logical} in {physical}"
    disk.freeze()
    return disk


def places(disk):
    """Name of a place: (offset on the device, what somebody writes there)."""
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
            found["label in MGT"] = (label_in(disk, at(2048)), b"LABEL")
    return found


def label_in(disk, record):
    return record + disk.peek(record, 512).index(b"<name_label>") + len(b"<name_label>")


def scribbled(disk, spots):
    disk = disk.copy()
    for offset, data in spots.values():
        assert disk.peek(offset, len(data)) != data
        disk.poke(offset, data)
    return disk


@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
@pytest.mark.parametrize("flush, blocks", [(IN_PROGRESS, 0), (IN_PROGRESS, 5), (CONTENTS_WRITTEN, 0), (SWITCHED, 0)])
def test_recovery_keeps_what_others_wrote_since_the_cut(logical, physical, flush, blocks):
    original = everything(logical, physical)
    spots = places(original)
    assert {name.split()[0] for name in spots} == {"block", "guest", "bitmap", "label"}
    disk = scribbled(cut_before(original, flush, blocks=blocks), spots)

    assert recover(disk)

    assert disk == scribbled(done(original), spots)


@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
@pytest.mark.parametrize("flush, blocks", [(IN_PROGRESS, 0), (IN_PROGRESS, 5), (CONTENTS_WRITTEN, 0), (SWITCHED, 0)])
def test_undo_keeps_what_others_wrote_since_the_cut(logical, physical, flush, blocks):
    original = everything(logical, physical)
    spots = places(original)
    disk = scribbled(cut_before(original, flush, blocks=blocks), spots)

    undo(disk)

    assert same_but_for(disk, scribbled(original, spots), free_ring(original))


@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
def test_undo_of_a_finished_run_keeps_what_others_wrote_since(logical, physical):
    original = everything(logical, physical)
    spots = places(original)
    disk = scribbled(done(original), spots)

    undo(disk)

    assert same_but_for(disk, scribbled(original, spots), free_ring(original))


@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
def test_a_cut_recovery_after_others_wrote_is_recovered_too(logical, physical):
    """Every block of the second step 3 alone, missing and torn; what a tear takes along is as it was before the run."""
    original = everything(logical, physical)
    spots = places(original)
    target = scribbled(done(original), spots)
    crash = CrashDisk(scribbled(cut_before(original, IN_PROGRESS), spots))
    recover(crash)

    torn = 0
    for cut, disk in crash.crash_images(torn=True, limit=16, samples=2):
        if "torn" in cut or "mixture" in cut:
            torn += 1
            if torn % 7:
                continue
        if engine.find_unfinished(disk) is None:
            continue
        recover(disk)
        lost = [] if "torn" not in cut and "mixture" not in cut else spots_lost(disk, original, spots)
        assert same_but_for(disk, target, lost), cut
    print(crash.report, torn)


def spots_lost(disk, original, spots):
    """Places whose block was torn: they hold what was there before the run."""
    return [
        Range(offset, len(data))
        for offset, data in spots.values()
        if disk.peek(offset, len(data)) == original.peek(offset, len(data))
    ]


@pytest.mark.parametrize("flush", [CONTENTS_WRITTEN, IN_PROGRESS])
def test_undo_keeps_what_others_wrote_after_lvm_went_on_too(flush):
    original = everything(512, 4096)
    spots = places(original)
    disk = scribbled(cut_before(original, flush), spots)
    lvm_commit(disk, with_new_volume)
    expected = scribbled(original, spots)
    lvm_commit(expected, with_new_volume)

    undo(disk)

    assert same_but_for(disk, expected, free_ring(expected))


def test_undo_of_a_finished_run_follows_a_record_that_sm_has_written_anew():
    original = everything(512, 512)
    disk = done(original)
    mgt = next(lv for lv in reader.read_vg(disk).lvs if lv.name == "MGT")
    at = reader.device_ranges(reader.read_vg(disk), mgt, 2048, 1024)[0].offset
    uuid = disk.peek(at + 512, 512).index(b"<uuid>")
    sector = disk.peek(at + 512, 512)
    disk.poke(at + 512, (sector[:uuid] + b"<x>1</x>" + sector[uuid:])[:512])
    undone = original.peek(at + 512, 512)
    place = undone.index(b"<uuid>")

    undo(disk)

    assert disk.peek(at + 512, 512) == (undone[:place] + b"<x>1</x>" + undone[place:])[:512]
    disk.poke(at + 512, undone)
    assert same_but_for(disk, original, free_ring(original))


# --- the label


def resized(disk, size):
    """What `pvresize` does to a label: another device size."""
    label = label_range(disk)
    sector = bytearray(disk.peek(label.offset, 512))
    sector[64:72] = size.to_bytes(8, "little")
    disk.poke(label.offset, pv.sealed_label(bytes(sector)))


@pytest.mark.parametrize("flush", [IN_PROGRESS, CONTENTS_WRITTEN])
@pytest.mark.parametrize("act", [recover, undo])
def test_a_label_that_was_changed_meanwhile_keeps_the_change(flush, act):
    original = image("a chain")
    disk = cut_before(original, flush)
    size = disk.size_bytes - 8192
    resized(disk, size)

    act(disk)

    label = lvmreader.read_label(disk)
    expected = reader.read_label(original if act is undo else done(original))
    assert label.device_size == size
    assert (label.pv_id, label.mdas) == (expected.pv_id, expected.mdas)
    assert engine.inspect(disk).state in (engine.CLEAN, engine.RESIGNATURED)


# --- blocks that do not read


class Lost(SparseDisk):
    """A disk that says of some blocks that they are lost, until they are written."""

    lost, errno = (), 61

    def read(self, ranges):
        for part in ranges:
            for at in self.lost:
                if part.offset < at + 512 and at < part.end:
                    raise DeviceError(self.name, "read", part.offset, part.length, "No data available", self.errno)
        return super().read(ranges)

    def write(self, chunks):
        self.lost = [at for at in self.lost if not any(c.offset <= at < c.end for c in chunks)]
        super().write(chunks)


def lost_copy(disk, lost, errno=61):
    copy = Lost(disk.size_bytes)
    for start, data in disk.runs():
        copy.poke(start, data)
    copy.lost, copy.errno = lost, errno
    return copy


@pytest.mark.parametrize("act", [recover, undo])
def test_blocks_of_contents_that_the_disk_has_lost_are_written_anew(act):
    original = image("a chain")
    unfinished = cut_before(original, CONTENTS_WRITTEN)
    fields = engine.read_mark(unfinished).journal.run.fields
    lost = sorted({field.pieces[0].offset // 512 * 512 for field in fields})[:3]
    disk = lost_copy(unfinished, lost)

    act(disk)

    if act is recover:
        assert disk.copy() == done(original)
    else:
        assert same_but_for(disk.copy(), original, free_ring(original))


def test_blocks_that_a_path_does_not_give_are_not_taken_for_lost():
    unfinished = cut_before(image("a chain"), CONTENTS_WRITTEN)
    field = engine.read_mark(unfinished).journal.run.fields[0]
    disk = lost_copy(unfinished, [field.pieces[0].offset // 512 * 512], errno=5)

    with pytest.raises(DeviceError) as caught:
        recover(disk)

    disk.lost = []
    assert disk.copy() == unfinished
    assert "`relvmoiscsi recover sparse disk` finishes" in caught.value.disk_state


def test_a_name_that_somebody_has_given_a_volume_meanwhile_is_a_reason_to_stop_and_undo_keeps_it():
    original = image("a chain")
    disk = cut_before(original, IN_PROGRESS)
    field = next(f for f in engine.read_mark(disk).journal.run.fields if f.kind == "VHD header")
    header = field.around[0].offset
    sector = bytearray(disk.peek(header, 1024))
    at = field.pieces[0].offset - header
    sector[at : at + 2] = b"\0f" if sector[at : at + 2] != b"\0f" else b"\0e"
    sector[36:40] = bytes(4)
    sector[36:40] = (~sum(sector) & 0xFFFFFFFF).to_bytes(4, "big")
    disk.poke(header, bytes(sector))
    before = disk.copy()

    with pytest.raises(Refused, match="somebody has changed the VHD header of .* `relvmoiscsi undo"):
        recover(disk)
    assert disk == before

    with pytest.raises(FormatError) as caught:  # the name leads to no volume
        undo(disk)
    assert caught.value.disk_state == "The resignature was taken back."
    assert disk.peek(header, 1024) == bytes(sector)


# --- a journal that is gone


def without_journal(disk):
    found = engine.read_mark(disk).journal
    disk.poke(found.offset, bytes(len(found.data)))
    return disk


def test_a_mark_without_a_journal_goes_where_nothing_of_its_run_is_there():
    original = image("a chain")
    disk = without_journal(cut_before(original, IN_PROGRESS))

    assert engine.inspect(disk).state == engine.UNFINISHED
    assert "takes the mark away" in str(engine.inspect(disk).problem)
    with pytest.raises(FormatError, match="takes the mark away"):
        recover(disk)
    result = undo(disk)

    assert result.state == engine.CLEAN
    assert same_but_for(disk, original, [*free_ring(original), label_range(original)])
    assert reader.vg_view(disk) == reader.vg_view(original)


def test_such_a_lun_can_be_resignatured_at_once_and_undone():
    original = image("a chain")
    disk = without_journal(cut_before(original, IN_PROGRESS))

    resignature(disk, seed=3)

    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert reader.identities(disk) == reader.identities(done(original, seed=3))
    undo(disk)
    assert reader.identities(disk) == reader.identities(original)
    assert engine.inspect(disk).state == engine.CLEAN


@pytest.mark.parametrize("name, blocks", [("a chain", n) for n in range(1, 8)] + [("everything", 0)])
def test_a_mark_without_a_journal_stays_where_anything_of_its_run_may_be_there(name, blocks):
    """On the last of them links lead nowhere: whether they are new or to what is gone, nobody knows."""
    disk = without_journal(cut_before(image(name), IN_PROGRESS, blocks=blocks))
    before = disk.copy()

    for act in (recover, undo):
        with pytest.raises(FormatError, match="take the clone again"):
            act(disk)
    with pytest.raises(engine.Unfinished):
        engine.prepare(disk, entropy(1), SCSI_ID)
    assert disk == before


def test_the_mark_of_an_undo_without_a_journal_goes_as_well():
    finished = done(image("a chain"))
    disk = without_journal(cut_before(finished, IN_PROGRESS, run=undo))

    undo(disk)

    assert reader.identities(disk) == reader.identities(finished)
    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert isinstance(engine.prepare(disk, entropy(1), SCSI_ID), engine.AlreadyDone)


# --- journals of the version before


def version_1(disk):
    """The LUN as the version before would have left it: a journal of blocks only."""
    mark = engine.read_mark(disk)
    data = mark.journal.data
    payload = zlib.decompress(data[64 : 64 + struct.unpack_from("<Q", data, 16)[0]])
    (length,) = struct.unpack_from("<Q", payload)
    facts = json.loads(payload[8 : 8 + length].decode())
    del facts["fields"], facts["block_bytes"]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    payload = struct.pack("<Q", len(text)) + text + payload[8 + length :]
    packed = zlib.compress(payload, 6)
    header = journal.JournalHeader.zero(
        magic=journal.JOURNAL_MAGIC,
        version=1,
        payload_length=len(packed),
        raw_length=len(payload),
        payload_digest=hashlib.sha256(packed).digest(),
    )
    old = (bytes(header) + packed).ljust(len(data), b"\0")
    assert len(old) == len(data)
    disk.poke(mark.journal.offset, old)
    label = label_range(disk)
    sector = disk.peek(label.offset, 512)
    tail = Tail.at(sector[TAIL_AT:]).replace(journal_digest=hashlib.sha256(bytes(header)).digest())
    disk.poke(label.offset, with_tail(sector, tail))
    assert engine.read_mark(disk).journal.run.fields == ()
    return disk


@pytest.mark.parametrize("name", ["a chain", "blocks of 4096", "fragmented"])
@pytest.mark.parametrize("flush, blocks", [(IN_PROGRESS, 0), (IN_PROGRESS, 2), (CONTENTS_WRITTEN, 0), (SWITCHED, 0)])
@pytest.mark.parametrize("act", [recover, undo])
def test_a_run_that_the_version_before_began_is_finished_or_taken_back(name, flush, blocks, act):
    original = image(name)
    disk = version_1(cut_before(original, flush, blocks=blocks))
    mark = engine.read_mark(disk).journal
    if flush == IN_PROGRESS and blocks == 2:
        write = mark.run.writes[-1]
        disk.poke(write.offset, garbage(write.offset, 512))

    act(disk)

    expected = original if act is undo else done(original)
    ring = [*free_ring(expected), *([] if act is undo else [label_range(expected)])]
    assert same_but_for(disk, expected, ring)
    assert engine.inspect(disk).state == (engine.CLEAN if act is undo else engine.RESIGNATURED)


def test_a_finished_run_of_the_version_before_is_undone_or_refused():
    original = image("a chain")
    disk = version_1(done(original))
    undone = done(disk, run=undo)
    assert same_but_for(undone, original, free_ring(original))

    write = engine.read_mark(disk).journal.run.writes[0]
    disk.poke(write.offset + 3, b"\xff")
    with pytest.raises(Refused, match="has changed since the resignature"):
        undo(disk)


def test_of_a_run_of_the_version_before_undo_leaves_alone_what_it_does_not_know_once_lvm_went_on():
    original = image("a chain")
    disk = version_1(cut_before(original, CONTENTS_WRITTEN))
    write = engine.read_mark(disk).journal.run.writes[0]
    lvm_commit(disk, with_new_volume)
    disk.poke(write.offset + 510, b"\1")
    stays = disk.peek(write.offset, 512)

    undo(disk)

    assert disk.peek(write.offset, 512) == stays
