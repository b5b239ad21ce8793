# SPDX-License-Identifier: LGPL-2.1-only
"""The one sequence from whatever an earlier run has left: what the caller's voice is asked, in which order, and what
its no means."""

import shlex
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


def sr_of(disk):
    return engine.inspect(disk).lun.sr_uuid


ONE = image("one VDI")
DONE = done(ONE)
CUT, COMMITTED = cut_before(ONE, IN_PROGRESS), cut_before(ONE, SWITCHED)
CUT_UNDO, COMMITTED_UNDO = (cut_before(DONE, step, run=undo) for step in (IN_PROGRESS, SWITCHED))
FINISHES, TAKES_BACK = ("agrees to finish", "locked", "released"), ("agrees to take back", "locked", "released")


@pytest.mark.parametrize(
    "lun, known, settles, sr, why",
    [
        (ONE, SCSI_ID, (), None, []),
        (CUT, SCSI_ID, TAKES_BACK, ONE, [procedure.BEFORE_COMMIT]),
        (CUT, None, TAKES_BACK, ONE, [procedure.BEFORE_COMMIT]),
        (CUT, OTHER_SCSI_ID, TAKES_BACK, ONE, [procedure.OF_A_COPY]),
        (COMMITTED, OTHER_SCSI_ID, TAKES_BACK, ONE, [procedure.OF_A_COPY]),
        (COMMITTED_UNDO, SCSI_ID, FINISHES, ONE, []),
    ],
)
def test_what_an_earlier_run_has_left_is_settled_and_a_new_run_follows(lun, known, settles, sr, why):
    """A copy of a LUN that was cut is never finished: its identities are those of another."""
    disk, voice = lun.copy(), Recorder()
    outcome = resignature(disk, voice, known, sr_uuid=NEW_SR)

    settled = [*settles, "settled as SR " + sr_of(sr)] if sr else []
    assert voice.said == [*settled, *FIRST_NEW_RUN] and voice.why == why
    assert (outcome.was_cut, outcome.result.state, outcome.result.ids.new_sr) == (False, engine.RESIGNATURED, NEW_SR)
    assert outcome.result.ids.sr == sr_of(ONE) and sr_of(disk) == NEW_SR


@pytest.mark.parametrize("known", [SCSI_ID, None])
def test_a_run_that_was_cut_behind_its_commit_is_finished_with_its_own_ids(known):
    disk, voice = COMMITTED.copy(), Recorder()
    outcome = resignature(disk, voice, known, sr_uuid=NEW_SR)

    assert voice.said == [*FINISHES, "settled as SR " + sr_of(DONE)]
    assert outcome.was_cut and outcome.result.ids.new_sr == sr_of(DONE) != NEW_SR
    assert engine.inspect(disk).state == engine.RESIGNATURED


def test_a_voice_that_wants_the_plan_alone_gets_it():
    disk, voice = ONE.copy(), Recorder(no="agrees to a new run")
    assert isinstance(resignature(disk, voice), Prepared)
    assert disk == ONE and voice.said == FIRST_NEW_RUN[:1]


def test_what_is_done_is_told_and_nobody_is_asked():
    disk, voice = DONE.copy(), Recorder()
    answer = resignature(disk, voice)
    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == sr_of(disk)
    assert disk == DONE and voice.said == []
    assert resignature(disk, voice, again=True).result.state == engine.RESIGNATURED


def test_an_undo_that_was_cut_before_its_commit_is_taken_back_and_the_lun_is_done():
    disk, voice = CUT_UNDO.copy(), Recorder()
    answer = resignature(disk, voice)
    assert voice.said == [*TAKES_BACK, "settled as SR " + sr_of(DONE)]
    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == sr_of(disk) == sr_of(DONE)


# --- a no


@pytest.mark.parametrize(
    "lun, known, no, says, is_settled",
    [
        (COMMITTED, SCSI_ID, "agrees to finish", "Nothing was written.", False),
        (CUT, SCSI_ID, "agrees to take back", "Nothing was written.", False),
        (CUT, OTHER_SCSI_ID, "agrees to a new run",
         "The resignature that was cut was taken back; nothing else was written.", True),
        (COMMITTED_UNDO, SCSI_ID, "agrees to a new run", "The undo was finished; nothing else was written.", True),
    ],
)  # fmt: skip
def test_a_no_leaves_the_lun_as_it_is_then_and_says_what_was_settled(lun, known, no, says, is_settled):
    disk, refusal = lun.copy(), Refused("No.").in_state("Nothing was written.")
    with pytest.raises(Refused) as caught:
        resignature(disk, Recorder(no, refusal), known)

    assert str(caught.value) == "No. " + says and (is_settled or caught.value is refusal)
    assert sr_of(disk) == sr_of(ONE) if is_settled else disk == lun


def test_what_is_said_of_the_disk_behind_a_run_that_was_taken_back_says_that():
    """A sentence that compares with the beginning of the call would not be true."""
    said = set()
    for n in range(1, 200):
        failing = FailingDisk(CUT.copy(), n)
        try:
            resignature(failing, Recorder(), OTHER_SCSI_ID)
        except DeviceError as error:
            if error.disk_state.startswith("The resignature that was cut was taken back"):
                said.add(error.disk_state.replace(shlex.quote(CUT.name), "DEV").replace(CUT.name, "DEV"))
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
