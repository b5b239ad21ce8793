# SPDX-License-Identifier: LGPL-2.1-only
"""Undo gives the old identities back, or refuses before it writes; and what a second resignature makes of a first."""

import re

import pytest

from kit import reader
from kit.cuts import (
    IMAGES,
    OTHER_SCSI_ID,
    SCSI_ID,
    Judge,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    label_range,
    lvm_commit,
    read_mark,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from kit.examples import some
from relvmoiscsi import engine
from relvmoiscsi.errors import Refused


def refused(act, disk):
    """The sentence of a refusal that left the disk as it was."""
    before = disk.copy()
    with pytest.raises(Refused) as caught:
        act(disk)
    assert disk == before
    assert caught.value.disk_state == "Nothing was written."
    return str(caught.value)


def run_id(disk):
    return engine.inspect(disk).commit_record.run_id


def place_in(disk, kind):
    """A byte of the device in an identity field of a volume of a kind."""
    vg = reader.read_vg(disk)
    lvs = [lv for lv in vg.lvs if reader.kind_of(lv.name) == kind]
    parts = [part for lv in lvs for part in reader.device_ranges(vg, lv, 0, vg.extent_bytes * lv.extents)]
    return next(
        span.offset
        for span in reader.identity_ranges(disk)
        if any(part.offset <= span.offset < part.end for part in parts)
    )


# --- undo


@pytest.mark.parametrize("name", some(list(IMAGES), 3, lambda _name: ""))
def test_undo_gives_every_byte_back_but_free_space_of_the_ring(name):
    original = image(name)
    disk = done(original)

    result = undo(disk)

    assert result.state == engine.CLEAN
    assert same_but_for(disk, original, free_ring(original))
    assert reader.vg_view(disk) == reader.vg_view(original)
    assert result.ids.reversed() == engine.inspect(done(original)).run.ids


@pytest.mark.parametrize("runs", [[], [resignature, undo]], ids=["never", "undone"])
def test_undo_is_refused_where_nothing_is_resignatured(runs):
    disk = image("one VDI")
    for run in runs:
        run(disk)

    assert "holds no resignature" in refused(undo, disk)


def test_undo_is_refused_once_lvm_has_changed_the_vg():
    disk = done(image("two areas"))
    lvm_commit(disk, with_new_volume)

    assert "LVM has changed the volume group" in refused(undo, disk)


@pytest.mark.parametrize("kind", ["mgt", "vhd", "cbt", "qcow2"])
def test_undo_is_refused_once_a_volume_has_changed_where_it_was_written(kind):
    original = image("everything")
    disk = done(original)
    at = place_in(original, kind)
    disk.poke(at, bytes([disk.peek(at, 1)[0] ^ 1]))

    sentence = refused(undo, disk)

    assert "has changed since the resignature" in sentence


def test_undo_is_refused_once_the_journal_is_overwritten():
    disk = done(image("one VDI"))
    run = read_mark(disk)
    disk.poke(run.journal.offset + 100, b"\0" * 8)

    assert "LVM has reclaimed the space of the journal" in refused(undo, disk)
    assert engine.inspect(disk).state == engine.RESIGNATURED


def test_undo_is_refused_once_the_old_text_is_overwritten():
    """LVM would have moved the header by then; whatever did this, the old text is gone."""
    original = image("one VDI")
    disk = done(original)
    mda = reader.read_vg(original).mda
    disk.poke(mda.area.offset + mda.text_offset, b"x")
    before = disk.copy()

    with pytest.raises(engine.FormatError) as caught:
        undo(disk)

    assert disk == before
    assert caught.value.disk_state == "Nothing was written."


def test_undo_takes_guest_writes_along():
    """What a guest has written since stays; only identities go back."""
    original = image("a chain")
    disk = done(original)
    guest = next(span for span in _guest_spans(original))
    disk.poke(guest, b"written by a guest")

    undo(disk)

    expected = original.copy()
    expected.poke(guest, b"written by a guest")
    assert same_but_for(disk, expected, free_ring(original))


def _guest_spans(disk):
    vg = reader.read_vg(disk)
    for lv in vg.lvs:
        if reader.kind_of(lv.name) == "vhd":
            yield reader.device_ranges(vg, lv, 2 << 20, 512)[0].offset


# --- resignature of a LUN that has a past


def test_resignature_after_an_undo_is_like_a_first_one():
    original = image("everything")
    disk = done(done(original, seed=1), run=undo)

    result = resignature(disk, seed=2)

    assert result.state == engine.RESIGNATURED
    assert not reader.identities(disk) & reader.identities(original)
    assert not reader.identities(disk) & reader.identities(done(original, seed=1))
    undo(disk)
    assert same_but_for(disk, original, free_ring(original))


def test_the_same_lun_is_already_done_and_nothing_is_written():
    disk = done(image("everything"))
    before = disk.copy()
    disk.reset_counters()

    found = engine.prepare(disk, entropy(5), engine.ResignatureRequest(scsi_id=SCSI_ID))

    assert isinstance(found, engine.AlreadyDone)
    assert found.run.ids == engine.inspect(before).run.ids
    assert found.sr_uuid == engine.inspect(before).lun.sr_uuid
    assert disk == before and disk.writes == disk.flushes == 0


def test_a_lun_whose_scsi_id_nobody_knows_is_already_done_too():
    disk = done(image("one VDI"), scsi_id=None)

    assert isinstance(engine.prepare(disk, entropy(5)), engine.AlreadyDone)


def test_already_done_is_told_after_lvm_has_reclaimed_the_journal():
    disk = done(image("one VDI"))
    mark = read_mark(disk)
    disk.poke(mark.journal.offset, bytes(len(mark.journal.data)))

    found = engine.prepare(disk, entropy(5), engine.ResignatureRequest(scsi_id=SCSI_ID))

    assert isinstance(found, engine.AlreadyDone)
    assert found.run is None


@pytest.mark.parametrize("first, second", [(SCSI_ID, None), (None, SCSI_ID)])
def test_without_both_scsi_ids_whether_it_is_a_later_clone_cannot_be_told(first, second):
    disk = done(image("one VDI"), scsi_id=first)

    sentence = refused(lambda lun: engine.prepare(lun, entropy(5), engine.ResignatureRequest(scsi_id=second)), disk)

    assert re.search("SCSIid .*(not known|not recorded)", sentence)
    assert "--again" in sentence


@pytest.mark.parametrize("name", ["everything", "two areas", "blocks of 4096"])
def test_another_scsi_id_makes_it_a_later_clone_that_gets_ids_of_its_own(name):
    original = image(name)
    first = done(original, seed=1)
    clone = first.copy()

    result = resignature(clone, seed=2, scsi_id=OTHER_SCSI_ID)

    assert result.state == engine.RESIGNATURED and result.scsi_id == OTHER_SCSI_ID
    for other in (original, first):
        assert not reader.identities(clone) & reader.identities(other)
    assert engine.compare(first, clone).problems == []
    assert run_id(clone) != run_id(first)
    assert isinstance(
        engine.prepare(clone, entropy(3), engine.ResignatureRequest(scsi_id=OTHER_SCSI_ID)), engine.AlreadyDone
    )


def test_undo_of_a_later_clone_makes_it_its_parent_again():
    first = done(image("a chain"), seed=1)
    clone = done(first, seed=2, scsi_id=OTHER_SCSI_ID)

    result = undo(clone)

    assert same_but_for(clone, first, free_ring(first))
    assert result.lun.sr_uuid == engine.inspect(first).lun.sr_uuid
    assert engine.inspect(clone).state == engine.RESIGNATURED
    assert label_range(clone) == label_range(first)


@pytest.mark.parametrize("scsi_id", [SCSI_ID, None])
def test_again_resignatures_what_is_done(scsi_id):
    first = done(image("a chain"), seed=1)
    disk = first.copy()

    result = resignature(disk, seed=2, scsi_id=scsi_id, again=True)

    assert result.state == engine.RESIGNATURED
    assert not reader.identities(disk) & reader.identities(first)
    assert reader.read_vg(disk).seqno == reader.read_vg(first).seqno + 1


def test_again_does_not_start_over_on_an_unfinished_run():
    disk = cut_before(image("one VDI"), 4)
    before = disk.copy()

    with pytest.raises(engine.Unfinished) as caught:
        engine.prepare(disk, entropy(2), engine.ResignatureRequest(scsi_id=SCSI_ID, again=True))

    assert disk == before
    assert caught.value.disk_state == "Nothing was written."
    assert "relvmoiscsi recover" in str(caught.value)


def test_resignature_and_undo_many_times_wears_nothing_out():
    """The ring does not fill up, and every undo ends in the bytes of the first."""
    original = image("text wraps")
    disk = original.copy()
    judge = Judge(original, done(original))

    for turn in range(8):
        resignature(disk, seed=turn)
        undo(disk, seed=turn)

        assert judge.state(disk) == "clean"
        assert same_but_for(disk, original, free_ring(original))
