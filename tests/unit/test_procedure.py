# SPDX-License-Identifier: LGPL-2.1-only
"""The one sequence from whatever an earlier run has left: what the caller's voice is asked, in which order, and what
its no means."""

from contextlib import contextmanager

import pytest

from kit.crash import FailingDisk
from kit.cuts import (
    OTHER_SCSI_ID,
    SCSI_ID,
    cut_before,
    done,
    entropy,
    image,
    undo,
)
from relvmoiscsi import engine, procedure
from relvmoiscsi.engine import AlreadyDone, Prepared
from relvmoiscsi.errors import DeviceError, Refused, Unfinished

NEW_SR = "11111111-2222-4333-8444-555555555555"
IN_PROGRESS, SWITCHED = 3, 5
FIRST_NEW_RUN = ["agrees to a new run", "locked", "released"]


class Recorder(procedure.Voice):
    """Agrees to everything but `no`, and remembers."""

    def __init__(self, no=None, raises=None):
        self.said, self.why, self._no, self._raises = [], [], no, raises

    def _say(self, sentence):
        self.said.append(sentence)
        if sentence == self._no:
            if self._raises is not None:
                raise self._raises
            return False
        return True

    def agrees_to_settle(self, mark, take_back, problem):
        assert isinstance(problem, Unfinished)
        self.why += [take_back] if take_back else []
        self._say("agrees to take back" if take_back else "agrees to finish")

    def agrees_to(self, prepared):
        assert isinstance(prepared, Prepared)
        return self._say("agrees to a new run")

    def copying(self, done, total):
        raise AssertionError("nothing is copied where all VDIs stay")

    def reading_back(self, done, total):
        raise AssertionError("nothing is copied where all VDIs stay")

    @contextmanager
    def locks(self, run):
        self.said.append("locked")
        yield
        self.said.append("released")

    def has_settled(self, mark, result):
        self.said.append("settled as SR " + result.lun.sr_uuid)


def resignature(disk, voice, scsi_id=SCSI_ID, **more):
    return procedure.resignature(disk, entropy("ids"), voice, engine.ResignatureRequest(scsi_id=scsi_id, **more))


def old_sr(disk):
    return engine.inspect(disk).lun.sr_uuid


def taken_back(original):
    return ["agrees to take back", "locked", "released", "settled as SR " + old_sr(original)]


def test_a_clone_gets_a_new_run():
    disk, voice = image("one VDI").copy(), Recorder()

    outcome = resignature(disk, voice, sr_uuid=NEW_SR)

    assert voice.said == FIRST_NEW_RUN
    assert (outcome.was_cut, outcome.result.state, outcome.result.ids.new_sr) == (False, engine.RESIGNATURED, NEW_SR)
    assert engine.inspect(disk).lun.sr_uuid == NEW_SR


def test_a_voice_that_wants_the_plan_alone_gets_it():
    disk, voice = image("one VDI").copy(), Recorder(no="agrees to a new run")
    before = disk.copy()

    assert isinstance(resignature(disk, voice), Prepared)
    assert disk == before and voice.said == FIRST_NEW_RUN[:1]


def test_what_is_done_is_told_and_nobody_is_asked():
    disk, voice = done(image("one VDI")).copy(), Recorder()
    before = disk.copy()

    answer = resignature(disk, voice)

    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == old_sr(disk)
    assert disk == before and voice.said == []
    assert resignature(disk, voice, again=True).result.state == engine.RESIGNATURED


@pytest.mark.parametrize("known", [SCSI_ID, None])
def test_a_run_that_was_cut_behind_its_commit_is_finished_with_its_own_ids(known):
    original = image("one VDI")
    disk, voice = cut_before(original, SWITCHED), Recorder()

    outcome = resignature(disk, voice, known, sr_uuid=NEW_SR)

    chosen = old_sr(done(original))
    assert voice.said == ["agrees to finish", "locked", "released", "settled as SR " + chosen]
    assert outcome.was_cut and outcome.result.ids.new_sr == chosen != NEW_SR
    assert engine.inspect(disk).state == engine.RESIGNATURED


@pytest.mark.parametrize("known", [SCSI_ID, None])
def test_a_run_that_was_cut_before_its_commit_is_taken_back_and_a_new_one_follows(known):
    original = image("one VDI")
    disk, voice = cut_before(original, IN_PROGRESS), Recorder()

    outcome = resignature(disk, voice, known, sr_uuid=NEW_SR)

    assert voice.said == [*taken_back(original), *FIRST_NEW_RUN] and voice.why == [procedure.BEFORE_COMMIT]
    assert (outcome.was_cut, outcome.result.ids.new_sr) == (False, NEW_SR)
    assert engine.inspect(disk).lun.sr_uuid == NEW_SR


@pytest.mark.parametrize("cut", [IN_PROGRESS, SWITCHED])
def test_on_a_copy_of_a_lun_that_was_cut_the_run_is_taken_back_and_a_new_one_follows(cut):
    original = image("one VDI")
    disk, voice = cut_before(original, cut), Recorder()

    outcome = resignature(disk, voice, OTHER_SCSI_ID, sr_uuid=NEW_SR)

    assert voice.said == [*taken_back(original), *FIRST_NEW_RUN] and voice.why == [procedure.OF_A_COPY]
    assert (outcome.was_cut, outcome.result.ids.new_sr) == (False, NEW_SR)
    assert outcome.result.ids.sr == old_sr(original)


def test_an_undo_that_was_cut_behind_its_commit_is_finished_and_a_new_run_follows():
    original = image("one VDI")
    disk, voice = cut_before(done(original), SWITCHED, run=undo), Recorder()

    outcome = resignature(disk, voice, sr_uuid=NEW_SR)

    assert voice.said == ["agrees to finish", "locked", "released", "settled as SR " + old_sr(original), *FIRST_NEW_RUN]
    assert outcome.result.ids.new_sr == NEW_SR


def test_an_undo_that_was_cut_before_its_commit_is_taken_back_and_the_lun_is_done():
    finished = done(image("one VDI"))
    disk, voice = cut_before(finished, IN_PROGRESS, run=undo), Recorder()

    answer = resignature(disk, voice)

    assert voice.said == taken_back(finished)
    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == old_sr(finished)


@pytest.mark.parametrize("no, cut", [("agrees to finish", SWITCHED), ("agrees to take back", IN_PROGRESS)])
def test_a_no_before_a_run_is_settled_leaves_the_lun_as_it_is(no, cut):
    disk = cut_before(image("one VDI"), cut)
    before = disk.copy()
    no_ = Refused("No.").in_state("Nothing was written.")

    with pytest.raises(Refused) as caught:
        resignature(disk, Recorder(no, no_))

    assert caught.value is no_ and str(no_) == "No. Nothing was written."
    assert disk == before


def test_a_no_after_a_run_was_taken_back_says_so():
    original = image("one VDI")
    disk = cut_before(original, IN_PROGRESS)
    no = Refused("No.").in_state("Nothing was written.")

    with pytest.raises(Refused) as caught:
        resignature(disk, Recorder("agrees to a new run", no), OTHER_SCSI_ID)

    assert str(caught.value) == "No. The resignature that was cut was taken back; nothing else was written."
    assert old_sr(disk) == old_sr(original)


def test_a_refusal_of_the_new_run_after_an_undo_was_finished_says_so():
    disk = cut_before(done(image("one VDI")), SWITCHED, run=undo)

    with pytest.raises(Refused) as caught:
        resignature(disk, Recorder("agrees to a new run", Refused("No.")))

    assert str(caught.value) == "No. The undo was finished; nothing else was written."


def test_what_is_said_of_the_disk_behind_a_run_that_was_taken_back_says_that():
    """A sentence that compares with the beginning of the call would not be true."""
    cut = cut_before(image("one VDI"), IN_PROGRESS)
    said = set()
    for n in range(1, 200):
        failing = FailingDisk(cut.copy(), n)
        try:
            resignature(failing, Recorder(), OTHER_SCSI_ID)
        except DeviceError as error:
            if error.disk_state.startswith("The resignature that was cut was taken back"):
                said.add(error.disk_state.replace(cut.name, "DEV"))
            else:
                assert "as it was" not in error.disk_state
        if not failing.failed:
            break
    assert said == {
        "The resignature that was cut was taken back; nothing else was written.",
        "The resignature that was cut was taken back. DEV is as it was; beyond that only free space of the metadata "
        "area was written.",
        "The resignature that was cut was taken back. The resignature of DEV was begun and may be unfinished: once the "
        "device answers, `relvmoiscsi recover DEV` finishes it or takes it back.",
    }
