# SPDX-License-Identifier: LGPL-2.1-only
"""Undo gives the old identities back; and what is made of a LUN that has a past: calls that find nothing to do, a
second resignature, a later clone. What others wrote meanwhile is the table of test_late_and_foreign_writes.
"""

import re

import pytest

from kit import reader
from kit.cuts import (
    IMAGES,
    OTHER_SCSI_ID,
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    lvm_commit,
    read_mark,
    recover,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.examples import some
from kit.sparse import PAGE, SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError, NotFound, Refused, Truncated, Unfinished


def refused(disk, act, kind=Refused):
    """The sentence of a refusal that left the disk as it was."""
    before = disk.copy()
    disk.reset_counters()
    with pytest.raises(kind) as caught:
        act(disk)
    assert disk == before and disk.writes == disk.flushes == 0
    assert caught.value.disk_state == "Nothing was written."
    return str(caught.value)


def prepared(disk, scsi_id=SCSI_ID, **more):
    return engine.prepare(disk, entropy(5), engine.ResignatureRequest(scsi_id=scsi_id, **more))


@pytest.mark.parametrize("name", some(list(IMAGES), 3, lambda _name: ""))
def test_undo_gives_every_byte_back_but_free_space_of_the_ring(name):
    original = image(name)
    disk = done(original)

    result = undo(disk)

    assert result.state == engine.CLEAN
    assert same_but_for(disk, original, free_ring(original))
    assert reader.vg_view(disk) == reader.vg_view(original)
    assert result.ids.reversed() == engine.inspect(done(original)).run.ids


def undone_while_lvm_went_on(disk):
    disk = cut_before(done(disk), 5, run=undo)
    lvm_commit(disk, with_new_volume)
    recover(disk)
    return disk


@pytest.mark.parametrize("past", [lambda disk: disk, lambda disk: done(done(disk), run=undo), undone_while_lvm_went_on])
def test_undo_is_refused_where_nothing_is_resignatured(past):
    assert "holds no resignature" in refused(past(image("one VDI")), undo)


def test_of_a_device_alone_recovery_finishes_a_run_and_writes_nothing_where_none_was_cut():
    """As docs/scripting.rst shows it."""
    original = image("one VDI")

    assert engine.recover(cut_before(original, 5)).already_done is False
    for disk, ids in ((original, None), (done(original), engine.inspect(done(original)).run.ids)):
        before = disk.copy()
        result = engine.recover(disk)
        assert (result.state, result.already_done, result.ids) == (engine.inspect(before).state, True, ids)
        assert (result.writes, result.flushes) == (0, 0) and disk == before
    assert "is empty" in refused(SparseDisk(64 << 20), engine.recover, NotFound)


# --- a resignature of a LUN that has a past


@pytest.mark.parametrize("scsi_id", [SCSI_ID, None])
@pytest.mark.parametrize("has_journal", [True, False])
def test_the_same_lun_is_already_done_and_nothing_is_written(scsi_id, has_journal):
    """Though nobody knows its SCSIid; and after LVM has reclaimed the journal, without the ids."""
    disk = done(image("everything"), scsi_id=scsi_id)
    run = engine.inspect(disk).run
    if not has_journal:
        mark = read_mark(disk)
        disk.poke(mark.journal.offset, bytes(len(mark.journal.data)))
        assert engine.inspect(disk).state == engine.RESIGNATURED
    before = disk.copy()
    disk.reset_counters()

    found = prepared(disk, scsi_id)

    assert isinstance(found, engine.AlreadyDone)
    assert found.run == (run if has_journal else None) and found.sr_uuid == run.ids.new_sr
    assert disk == before and disk.writes == disk.flushes == 0


@pytest.mark.parametrize("first, second, which", [(SCSI_ID, None, "is not known"), (None, SCSI_ID, "was not recorded")])
def test_without_both_scsi_ids_whether_it_is_a_later_clone_cannot_be_told(first, second, which):
    sentence = refused(done(image("one VDI"), scsi_id=first), lambda disk: prepared(disk, second))

    assert re.search("SCSIid .*" + which, sentence)
    assert "run `relvmoiscsi resignature --again " in sentence
    assert ("on a host that has the LUN" in sentence) == (second is not None), "SR.create has no --again"


@pytest.mark.parametrize("name", ["everything", "two areas", "blocks of 4096"])
def test_another_scsi_id_makes_it_a_later_clone_that_gets_ids_of_its_own(name):
    """An undo makes it its parent again."""
    original = image(name)
    first = done(original, seed=1)
    clone = first.copy()

    result = resignature(clone, seed=2, scsi_id=OTHER_SCSI_ID)

    assert result.state == engine.RESIGNATURED and result.scsi_id == OTHER_SCSI_ID
    for other in (original, first):
        assert not reader.identities(clone) & reader.identities(other)
    assert engine.compare(first, clone).problems == []
    assert read_mark(clone).commit_record.run_id != read_mark(first).commit_record.run_id
    assert isinstance(prepared(clone, OTHER_SCSI_ID), engine.AlreadyDone)

    assert undo(clone).lun.sr_uuid == engine.inspect(first).lun.sr_uuid
    assert same_but_for(clone, first, free_ring(first))
    assert engine.inspect(clone).state == engine.RESIGNATURED


def test_again_does_not_start_over_on_an_unfinished_run():
    disk = cut_before(image("one VDI"), 4)

    assert "relvmoiscsi recover" in refused(disk, lambda lun: prepared(lun, again=True), Unfinished)


@pytest.mark.parametrize("name, turns", [("text wraps", 8), ("everything", 2)])
def test_resignature_and_undo_many_times_wears_nothing_out(name, turns):
    """The ring does not fill up, each run is like a first one, and every undo ends in the bytes of the first."""
    original = image(name)
    disk, seen = original.copy(), reader.identities(original)

    for turn in range(turns):
        assert resignature(disk, seed=turn).state == engine.RESIGNATURED
        assert not reader.identities(disk) & seen
        seen |= reader.identities(disk)
        undo(disk, seed=turn)

        assert engine.inspect(disk).state == engine.CLEAN
        assert same_but_for(disk, original, free_ring(original))


@pytest.mark.parametrize("missing", [PAGE, 1 << 24])
def test_an_image_that_is_shorter_than_its_lun_is_said_to_be_short(missing):
    """LVM was said to have reclaimed the space of the journal, which the copy of the LUN had never had."""
    disk = done(image("two areas"))
    end = disk.size_bytes - missing
    short = SparseDisk(end)
    short.adopt(0, disk, 0, end)
    said = refused(short, undo, Truncated)
    assert "reclaimed" not in said, said


@pytest.mark.parametrize("offset", [4096, 4100])
def test_an_undo_of_a_lun_whose_metadata_does_not_read_names_the_damage_and_not_the_journal(offset):
    """LVM was said to have reclaimed the space of the journal, which was there."""
    disk = done(image("one VDI"))
    whole = disk.copy()
    disk.poke(offset, bytes(byte ^ 0xFF for byte in disk.peek(offset, 1)))
    said = refused(disk, undo, FormatError)
    assert "Metadata area header at byte 4096 of " in said and "journal" not in said
    assert said.endswith("If you need the old identities, take the clone again.")
    disk.poke(offset, whole.peek(offset, 1))
    assert undo(disk).state == engine.CLEAN
