# SPDX-License-Identifier: LGPL-2.1-only
"""What proves a finished resignature: the ids of PV and VG, derived from the ids that the commit record names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.cuts import (
    OTHER_SCSI_ID,
    SCSI_ID,
    cut_before,
    done,
    entropy,
    image,
    lvm_commit,
    read_mark,
    resignature,
    undo,
)
from kit.forged_record import forge_record, forge_run, without_record
from relvmoiscsi import engine
from relvmoiscsi.formats.identity import derived_lvm_id
from relvmoiscsi.resignature.protocol import commit_record
from relvmoiscsi.resignature.protocol.run_record import PvAndVg
from relvmoiscsi.resignature.recovery import earlier_run

ONE = image("one VDI")
DONE = done(ONE)
LVM_IDS = st.text(st.sampled_from("abcXYZ019!#"), min_size=32, max_size=32)
UUIDS = st.uuids().map(str)


def is_done(disk, scsi_id=SCSI_ID):
    """Whether the engine says so, at each of its entrances."""
    request = engine.ResignatureRequest(scsi_id=scsi_id)
    found, asked = engine.inspect(disk.copy()), engine.prepare(disk.copy(), entropy(9), request)
    answers = {
        found.state == engine.RESIGNATURED,
        isinstance(asked, engine.AlreadyDone),
        engine.find_done(disk.copy(), request) is not None,
        engine.new_sr_of(disk.copy(), SCSI_ID) is not None,
    }
    (answer,) = answers
    assert answer or found.run is found.commit_record is None
    return answer


def without_journal(disk):
    mark = read_mark(disk)
    disk.poke(mark.journal.offset, bytes(len(mark.journal.data)))
    return disk


def used_by_sm(disk):
    """LVM has changed the volume group three times."""
    lvm_commit(disk, times=3)
    return disk


def recovered(disk):
    engine.recover(disk)
    return disk


def again(disk):
    resignature(disk, seed=2, scsi_id=SCSI_ID, again=True)
    return disk


LEFT = {
    "finished": DONE.copy,
    "finished, and LVM has used the space of the journal": lambda: without_journal(DONE.copy()),
    "finished, and in use since": lambda: used_by_sm(DONE.copy()),
    "in use for long": lambda: without_journal(used_by_sm(DONE.copy())),
    "resignatured twice": lambda: again(DONE.copy()),
    "the second run is undone": lambda: done(again(DONE.copy()), undo),
    "interrupted after the commit, and finished": lambda: recovered(cut_before(ONE, 5)),
    "the undo was interrupted before its commit, and rolled back": lambda: recovered(cut_before(DONE, 3, run=undo)),
    "the same, without its journal": lambda: recovered(without_journal(cut_before(DONE, 3, run=undo))),
    "all kinds of volumes": lambda: done(image("everything")),
    "two areas": lambda: done(image("two areas")),
}


@pytest.mark.parametrize("left", LEFT)
def test_a_lun_that_a_run_has_left_proves_its_resignature(left):
    assert is_done(LEFT[left]())


UNDONE = {
    "untouched": ONE.copy,
    "undone": lambda: done(DONE, undo),
    "interrupted before the commit, and rolled back": lambda: recovered(cut_before(ONE, 3)),
    "LVM has written the label anew": lambda: without_record(DONE.copy()),
    "a forged record": lambda: forge_record(ONE.copy(), SCSI_ID),
    "a forged run": lambda: forge_run(ONE.copy(), SCSI_ID, engine.DONE),
    "the record of the resignature on the LUN from before": lambda: forge_record(
        ONE.copy(), SCSI_ID, replaced=earlier_ids(DONE)
    ),
}


def earlier_ids(disk):
    found = engine.inspect(disk).commit_record
    return PvAndVg(found.replaced_pv_id.decode(), found.replaced_vg_id.decode())


@pytest.mark.parametrize("left", UNDONE)
def test_a_lun_with_the_identities_of_an_original_proves_none(left):
    assert not is_done(UNDONE[left]())


@given(LVM_IDS, LVM_IDS)
def test_no_forged_record_proves_the_ids_of_an_original(pv_id, vg_id):
    lun = engine.inspect(ONE).lun
    for replaced in (PvAndVg(pv_id, vg_id), PvAndVg(lun.label.pv_id, lun.vg.id), PvAndVg(lun.vg.id, lun.label.pv_id)):
        found = engine.inspect(forge_record(ONE.copy(), SCSI_ID, replaced=replaced))
        assert (found.state, found.commit_record, found.run) == (engine.CLEAN, None, None)
        assert "are not those of a resignature" in found.unproven.message


@given(UUIDS, UUIDS, LVM_IDS, LVM_IDS)
def test_a_record_proves_the_ids_that_its_run_derives_and_no_others(sr_uuid, other_sr, pv_id, vg_id):
    record = commit_record.CommitRecord.zero(replaced_pv_id=pv_id.encode(), replaced_vg_id=vg_id.encode())
    made = derived_lvm_id(sr_uuid, pv_id), derived_lvm_id(sr_uuid, vg_id)
    assert commit_record.proves(record, sr_uuid, *made)
    for wrong in ((other_sr, *made), (sr_uuid, pv_id, made[1]), (sr_uuid, made[0], vg_id), (sr_uuid, *made[::-1])):
        assert commit_record.proves(record, *wrong) == (wrong == (sr_uuid, *made))
    assert not commit_record.proves(commit_record.CommitRecord.zero(), sr_uuid, *made)


def test_a_later_copy_proves_the_resignature_of_the_lun_that_it_was_copied_from():
    lun, record = engine.inspect(DONE).lun, engine.inspect(DONE).commit_record
    assert earlier_run.has_new_ids(record, lun)
    prepared = engine.prepare(DONE.copy(), entropy(9), engine.ResignatureRequest(scsi_id=OTHER_SCSI_ID))
    assert prepared.later_copy.was == SCSI_ID
    forged = forge_record(ONE.copy(), OTHER_SCSI_ID)
    assert engine.prepare(forged, entropy(9), engine.ResignatureRequest(scsi_id=SCSI_ID)).later_copy is None
