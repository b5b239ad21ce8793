# SPDX-License-Identifier: LGPL-2.1-only
"""A run is cut, a VM runs on the LUN, SM writes labels; then somebody calls `recover` or `undo`. Nothing of it is lost.

A block table entry, a bit of a changed-block log, a label and guest data lie in the same blocks as identities: some in
blocks of 512 bytes, all of them in blocks of 4096.
"""

import pytest

from kit import builder, lvmreader, reader
from kit.builder import AREA_DEFAULT
from kit.crash import CrashDisk
from kit.cuts import (
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
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.examples import WHOLE
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError
from relvmoiscsi.formats.lvm import pv

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


@pytest.mark.parametrize("act", [recover, undo])
@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
@pytest.mark.parametrize("flush, blocks", [(IN_PROGRESS, 0), (IN_PROGRESS, 5), (CONTENTS_WRITTEN, 0)])
def test_taking_back_keeps_what_others_wrote_since_the_cut(logical, physical, flush, blocks, act):
    original = everything(logical, physical)
    spots = places(original)
    assert {name.split()[0] for name in spots} == {"block", "guest", "bitmap", "label"}
    disk = scribbled(cut_before(original, flush, blocks=blocks), spots)

    act(disk)

    assert same_but_for(disk, scribbled(original, spots), free_ring(original))


@pytest.mark.parametrize("logical, physical", LOGICAL_AND_PHYSICAL)
def test_recovery_keeps_what_others_wrote_behind_the_commit(logical, physical):
    original = everything(logical, physical)
    spots = places(original)
    disk = scribbled(cut_before(original, SWITCHED), spots)

    assert recover(disk)

    assert disk == scribbled(done(original), spots)
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
def test_a_way_back_that_is_cut_after_others_wrote_is_gone_on_with(logical, physical):
    original = everything(logical, physical)
    spots = places(original)
    crash = CrashDisk(scribbled(cut_before(original, CONTENTS_WRITTEN), spots))
    recover(crash)

    for cut, disk in crash.crash_images(limit=16, samples=2, every=1 if WHOLE else 4):
        recover(disk)
        assert same_but_for(disk, scribbled(original, spots), free_ring(original)), cut
    print(crash.report)


@pytest.mark.parametrize("flush", [CONTENTS_WRITTEN, IN_PROGRESS])
def test_taking_back_keeps_what_others_wrote_after_lvm_went_on_too(flush):
    original = everything(512, 4096)
    spots = places(original)
    disk = scribbled(cut_before(original, flush), spots)
    lvm_commit(disk, with_new_volume)
    expected = scribbled(original, spots)
    lvm_commit(expected, with_new_volume)

    recover(disk)

    assert same_but_for(disk, expected, free_ring(expected))


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
    expected = reader.read_label(original)
    assert label.device_size == size
    assert (label.pv_id, label.mdas) == (expected.pv_id, expected.mdas)
    assert engine.inspect(disk).state == engine.CLEAN


def test_a_name_that_somebody_has_given_a_volume_meanwhile_stays():
    original = image("a chain")
    disk = cut_before(original, IN_PROGRESS)
    field = next(f for f in read_mark(disk).journal.run.fields if f.kind == "VHD header")
    header = field.around[0].offset
    sector = bytearray(disk.peek(header, 1024))
    at = field.pieces[0].offset - header
    sector[at : at + 2] = b"\0f" if sector[at : at + 2] != b"\0f" else b"\0e"
    sector[36:40] = bytes(4)
    sector[36:40] = (~sum(sector) & 0xFFFFFFFF).to_bytes(4, "big")
    disk.poke(header, bytes(sector))

    with pytest.raises(FormatError) as caught:  # the name leads to no volume
        recover(disk)

    assert caught.value.disk_state == "The resignature was taken back."
    assert disk.peek(header, 1024) == bytes(sector)


# --- a journal that is gone


def without_journal(disk):
    found = read_mark(disk).journal
    disk.poke(found.offset, bytes(len(found.data)))
    return disk


@pytest.mark.parametrize("act", [recover, undo])
def test_a_mark_without_a_journal_goes_where_nothing_of_its_run_is_there(act):
    original = image("a chain")
    disk = without_journal(cut_before(original, IN_PROGRESS))
    assert engine.inspect(disk).state == engine.UNFINISHED

    act(disk)

    assert engine.inspect(disk).state == engine.CLEAN
    assert same_but_for(disk, original, [*free_ring(original), label_range(original)])
    assert reader.vg_view(disk) == reader.vg_view(original)
    resignature(disk, seed=3)
    assert reader.identities(disk) == reader.identities(done(original, seed=3))


@pytest.mark.parametrize("name, blocks", [("a chain", n) for n in range(1, 8)] + [("everything", 0)])
def test_a_mark_without_a_journal_stays_where_anything_of_its_run_may_be_there(name, blocks):
    """On the last of them links lead nowhere: whether they are new or to what is gone, nobody knows."""
    disk = without_journal(cut_before(image(name), IN_PROGRESS, blocks=blocks))
    before = disk.copy()

    for act in (recover, undo):
        with pytest.raises(FormatError, match="take the clone again"):
            act(disk)
    with pytest.raises(engine.Unfinished):
        engine.prepare(disk, entropy(1), engine.ResignatureRequest(scsi_id=SCSI_ID))
    assert disk == before


def test_the_mark_of_an_undo_without_a_journal_goes_as_well():
    finished = done(image("a chain"))
    disk = without_journal(cut_before(finished, IN_PROGRESS, run=undo))

    recover(disk)

    assert reader.identities(disk) == reader.identities(finished)
    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert isinstance(engine.prepare(disk, entropy(1), engine.ResignatureRequest(scsi_id=SCSI_ID)), engine.AlreadyDone)
