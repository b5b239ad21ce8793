# SPDX-License-Identifier: LGPL-2.1-only
"""The one sequence from whatever an earlier run has left: what the caller is asked, in which order, and what its no
means."""

import shlex
from contextlib import ExitStack, contextmanager

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
from kit.damage import DAMAGES
from kit.forged_record import NO_SR, UNKNOWN_SR, forge_journal, forge_record, forge_run
from kit.outcome import Unguarded, opened
from kit.reader import device_ranges, read_sr
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice
from relvmoiscsi.engine import RESIGNATURE, UNDO, AlreadyDone, OneVdiRequest, Prepared
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused, RelvmoiscsiError, Unfinished, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import proposals, run
from relvmoiscsi.lun.opened import LunSource
from relvmoiscsi.lun.proposals import Recovery
from relvmoiscsi.sr_driver import probe

NEW_SR = "11111111-2222-4333-8444-555555555555"
IN_PROGRESS, SWITCHED = 3, 5
FIRST_NEW_RUN = ["agrees to a new run", "locked", "released"]


class Caller(Unguarded):
    """Consents to everything but `no`, and remembers."""

    def __init__(self, no=None, raises=None):
        self.said, self.why, self.replaced, self._no, self._raises = [], [], [], no, raises

    def consent(self, _lun, proposal):
        if isinstance(proposal, Recovery):
            self.why += [proposal.why] if proposal.why else []
            self._say("agrees to roll back" if proposal.why else "agrees to finish")
        else:
            self._say("agrees to a new run")

    def _say(self, sentence):
        self.said.append(sentence)
        if sentence == self._no:
            raise self._raises

    @contextmanager
    def held(self, vg_names, replaced):
        self.said.append("locked")
        self.replaced.append(tuple(replaced))
        yield
        self.said.append("released")


def nothing_is_copied(what, done, total):
    raise AssertionError("nothing is copied where all VDIs stay")


def resignature(disk, caller, scsi_id=SCSI_ID, **more):
    request = engine.ResignatureRequest(scsi_id=scsi_id, **more)
    asked = (opened(disk, caller), request, entropy("ids"), caller.consent, nothing_is_copied)
    return run.resignature(*asked, recovers_undo=True)


def sr_of(disk):
    return engine.inspect(disk).lun.sr_uuid


ONE = image("one VDI")
DONE = done(ONE)
CUT, COMMITTED = cut_before(ONE, IN_PROGRESS), cut_before(ONE, SWITCHED)
#: the same of an image file, whose SCSIid nobody knew
NAMELESS_CUT, NAMELESS = (cut_before(ONE, step, scsi_id=None) for step in (IN_PROGRESS, SWITCHED))
CUT_UNDO, COMMITTED_UNDO = (cut_before(DONE, step, run=undo) for step in (IN_PROGRESS, SWITCHED))
FINISHES, ROLLS_BACK = ("agrees to finish", "locked", "released"), ("agrees to roll back", "locked", "released")


@pytest.mark.parametrize(
    "lun, known, settles, sr, why",
    [
        (ONE, SCSI_ID, (), None, []),
        (CUT, SCSI_ID, ROLLS_BACK, ONE, [proposals.BEFORE_COMMIT]),
        (CUT, None, ROLLS_BACK, ONE, [proposals.BEFORE_COMMIT]),
        (CUT, OTHER_SCSI_ID, ROLLS_BACK, ONE, [proposals.OF_A_COPY]),
        (COMMITTED, OTHER_SCSI_ID, ROLLS_BACK, ONE, [proposals.OF_A_COPY]),
        (NAMELESS_CUT, SCSI_ID, ROLLS_BACK, ONE, [proposals.BEFORE_COMMIT]),
        (NAMELESS, SCSI_ID, ROLLS_BACK, ONE, [proposals.OF_UNKNOWN_LUN]),
        (COMMITTED_UNDO, SCSI_ID, FINISHES, ONE, []),
    ],
)
def test_what_an_earlier_run_has_left_is_settled_and_a_new_run_follows(caplog, lun, known, settles, sr, why):
    """A copy of a LUN that was cut is never finished: its identities are those of another."""
    caplog.set_level("INFO")
    disk, caller = lun.copy(), Caller()
    outcome = resignature(disk, caller, known, sr_uuid=NEW_SR)

    assert caller.said == [*settles, *FIRST_NEW_RUN] and caller.why == why
    assert sr is None or any(sr_of(sr) in line for line in caplog.messages)
    assert (outcome.was_cut, outcome.result.state, outcome.result.ids.new_sr) == (False, engine.RESIGNATURED, NEW_SR)
    assert outcome.result.ids.sr == sr_of(ONE) and sr_of(disk) == NEW_SR
    again = resignature(disk, Caller(), known)
    assert isinstance(again, AlreadyDone) and again.sr_uuid == NEW_SR


def test_a_run_of_an_image_file_is_finished_where_the_scsi_id_is_still_not_known():
    disk, caller = NAMELESS.copy(), Caller()

    outcome = resignature(disk, caller, None)

    assert caller.said == [*FINISHES] and outcome.was_cut
    assert isinstance(resignature(disk, Caller(), None), AlreadyDone)


@pytest.mark.parametrize("forged", [SCSI_ID, OTHER_SCSI_ID, None])
def test_a_committed_run_without_new_ids_is_of_a_stranger_and_nothing_is_written(forged):
    """An untouched copy of the original: no program may call that finished."""
    disk = forge_run(ONE.copy(), forged, engine.SWITCHED, new_sr=sr_of(ONE))
    before = disk.copy()

    for known in (SCSI_ID, OTHER_SCSI_ID, None):
        with pytest.raises(Refused, match="that are not those of a resignature") as caught:
            resignature(disk, Caller(), known)
        assert caught.value.disk_state == "Nothing was written." and disk == before


@pytest.mark.parametrize("known", [SCSI_ID, None])
def test_a_run_that_was_cut_behind_its_commit_is_finished_with_its_own_ids(known):
    disk, caller = COMMITTED.copy(), Caller()
    with pytest.raises(Refused, match=f"already has other ids: .*{NEW_SR}.* finishes the interrupted run"):
        resignature(disk, caller, known, sr_uuid=NEW_SR)
    assert (disk, caller.said) == (COMMITTED, [])

    outcome = resignature(disk, caller, known)

    assert caller.said == [*FINISHES]
    assert outcome.was_cut and outcome.result.ids.new_sr == sr_of(DONE)
    assert engine.inspect(disk).state == engine.RESIGNATURED


@pytest.mark.parametrize(
    "lun, known, replaced",
    [
        (CUT, SCSI_ID, [(sr_of(ONE),), (sr_of(ONE),)]),
        (COMMITTED, OTHER_SCSI_ID, [(sr_of(ONE), sr_of(DONE)), (sr_of(ONE),)]),
        (COMMITTED, SCSI_ID, [()]),
        (CUT_UNDO, SCSI_ID, [()]),
        (COMMITTED_UNDO, SCSI_ID, [(), (sr_of(ONE),)]),
    ],
)
def test_under_the_locks_the_pool_hears_of_each_sr_that_a_step_takes_off_the_lun(lun, known, replaced):
    """What is finished takes nothing off: since the commit, the LUN holds the other SR."""
    caller = Caller()
    resignature(lun.copy(), caller, known)
    assert caller.replaced == replaced


@pytest.mark.parametrize(
    "lun, replaced",
    [
        (CUT, ()),
        (COMMITTED, (sr_of(DONE),)),
        (DONE, (sr_of(DONE),)),
        (CUT_UNDO, (sr_of(DONE),)),
        (COMMITTED_UNDO, ()),
    ],
)
def test_the_pool_hears_of_the_sr_that_an_undo_takes_off_the_lun(lun, replaced):
    assert proposals.Undoing(engine.read_undoable(lun), None).replaced == replaced


@pytest.mark.parametrize("known", [OTHER_SCSI_ID, SCSI_ID])
def test_a_run_to_one_vdi_that_was_cut_on_another_lun_is_finished_and_the_copy_gets_ids_of_its_own(known):
    """One VDI is not undone after the commit: the snapshots are gone."""
    one, lun, caller = OneVdiRequest(), image("a chain"), Caller()
    disk, of_the_run = cut_before(lun, SWITCHED, one=one).copy(), sr_of(done(lun, one=one))

    outcome = resignature(disk, caller, known, one=one)

    assert caller.said[:3] == [*FINISHES] and caller.why == []
    if known == SCSI_ID:
        assert (len(caller.said), outcome.was_cut, sr_of(disk)) == (3, True, of_the_run)
    else:
        assert caller.said[3] == "agrees to a new run" and not outcome.was_cut
        assert outcome.result.ids.sr == of_the_run and sr_of(disk) not in (of_the_run, sr_of(lun))


def test_a_run_that_was_finished_with_a_vdi_that_was_to_be_left_behind_is_no_success():
    lun = image("a chain")
    disk, uuid = cut_before(lun, SWITCHED).copy(), next(iter(engine.inspect(lun).lun.disks()))

    with pytest.raises(Refused, match="which was to be left behind") as caught:
        resignature(disk, Caller(), without=(uuid,))

    assert caught.value.disk_state == "The resignature that was cut was finished; nothing else was written."
    assert engine.inspect(disk).state == engine.RESIGNATURED


def test_a_plan_writes_nothing_and_asks_nobody():
    disk, caller = ONE.copy(), Caller()
    planned = run.plan(opened(disk, caller), engine.ResignatureRequest(scsi_id=SCSI_ID), entropy("ids"))
    assert isinstance(planned.prepared, Prepared) and planned.pool.sentence == "Nobody uses it."
    assert disk == ONE and caller.said == []


def test_what_is_done_is_told_and_nobody_is_asked():
    disk, caller = DONE.copy(), Caller()
    answer = resignature(disk, caller)
    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == sr_of(disk)
    assert disk == DONE and caller.said == []
    assert resignature(disk, caller, again=True).result.state == engine.RESIGNATURED


@pytest.mark.parametrize("lun", [CUT_UNDO, COMMITTED_UNDO])
def test_an_undo_that_was_cut_is_told_before_anybody_is_asked_unless_the_caller_settles_it(lun):
    disk, caller = lun.copy(), Caller()
    caller.ask = lambda replaced, new_sr: caller.said.append("asked")
    with pytest.raises(Unfinished, match="unfinished undo.* recover "):
        run.resignature(opened(disk, caller), engine.ResignatureRequest(), entropy("ids"), caller.consent)
    assert (disk, caller.said) == (lun, [])


def test_an_undo_that_was_cut_before_its_commit_is_taken_back_and_the_lun_is_done():
    disk, caller = CUT_UNDO.copy(), Caller()
    answer = resignature(disk, caller)
    assert caller.said == [*ROLLS_BACK]
    assert isinstance(answer, AlreadyDone) and answer.sr_uuid == sr_of(disk) == sr_of(DONE)


# --- a no


@pytest.mark.parametrize(
    "lun, known, no, says, is_settled",
    [
        (COMMITTED, SCSI_ID, "agrees to finish", "Nothing was written.", False),
        (CUT, SCSI_ID, "agrees to roll back", "Nothing was written.", False),
        (CUT, OTHER_SCSI_ID, "agrees to a new run",
         "The resignature that was cut was rolled back; nothing else was written.", True),
        (COMMITTED_UNDO, SCSI_ID, "agrees to a new run", "The undo was finished; nothing else was written.", True),
    ],
)  # fmt: skip
def test_a_no_leaves_the_lun_as_it_is_then_and_says_what_was_settled(lun, known, no, says, is_settled):
    disk, refusal = lun.copy(), Refused("No.").in_state("Nothing was written.")
    with pytest.raises(Refused) as caught:
        resignature(disk, Caller(no, refusal), known)

    assert str(caught.value) == "No. " + says and (is_settled or caught.value is refusal)
    assert sr_of(disk) == sr_of(ONE) if is_settled else disk == lun


def test_an_error_behind_the_write_does_not_say_that_nothing_was_written():
    """Only the writer knows the state of the LUN: an error without a state keeps none."""

    class Releasing(Caller):
        @contextmanager
        def held(self, vg_names, replaced):
            yield
            raise Refused("The lock is gone.")

    disk = ONE.copy()
    with pytest.raises(Refused) as caught:
        resignature(disk, Releasing())
    assert (str(caught.value), sr_of(disk) == sr_of(ONE)) == ("The lock is gone.", False)


def test_what_is_said_of_the_disk_behind_a_run_that_was_taken_back_says_that():
    """A sentence that compares with the beginning of the call would not be true."""
    said = set()
    for n in range(1, 200):
        failing = FailingDisk(CUT.copy(), n)
        try:
            resignature(failing, Caller(), OTHER_SCSI_ID)
        except DeviceError as error:
            if error.disk_state.startswith("The resignature that was cut was rolled back"):
                said.add(error.disk_state.replace(shlex.quote(CUT.name), "DEV").replace(CUT.name, "DEV"))
            else:
                assert "as it was" not in error.disk_state
                assert error.disk_state != "Nothing was written." or failing.base == CUT
        if not failing.failed:
            break
    assert said == {
        "The resignature that was cut was rolled back; nothing else was written.",
        "The resignature that was cut was rolled back. DEV is as it was; beyond that only free space of the metadata "
        "area was written.",
        "The resignature that was cut was rolled back. The resignature of DEV was begun and may be unfinished.",
    }


class Recovered(ForwardingDevice):
    """A LUN whose cut run another host finishes before read number `at`."""

    def __init__(self, at):
        super().__init__(COMMITTED.copy())
        self.left = at

    def read(self, ranges):
        self.left -= 1
        if self.left == 0:
            self._device = DONE.copy()
        return super().read(ranges)


def test_a_run_that_another_host_finishes_meanwhile_is_found_done_or_is_an_error_and_never_a_bug():
    found = set()
    for number in range(1, 200):
        disk, caller = Recovered(number), Caller()
        try:
            outcome = resignature(disk, caller)
        except RelvmoiscsiError as error:
            outcome = error
        found.add((type(outcome).__name__, *caller.said))
        if disk.left > 0:
            break
    assert ("AlreadyDone",) in found and ("CompletedRun", *FINISHES) in found


@pytest.mark.parametrize(
    "known, one, kind, says",
    [
        (SCSI_ID, None, Unfinished, "Run `relvmoiscsi recover "),
        (None, None, Unfinished, "Run `relvmoiscsi recover "),
        (OTHER_SCSI_ID, None, Refused, "Run `relvmoiscsi undo "),
        (OTHER_SCSI_ID, OneVdiRequest(), Refused, "`relvmoiscsi resignature --vdis one "),
    ],
)
def test_a_look_names_the_one_command_that_ends_an_interrupted_run_on_this_very_lun(known, one, kind, says):
    disk = cut_before(image("a chain"), SWITCHED, one=one).copy()
    found = run.inspected(opened(disk, scsi_id=known)).problem
    (command,) = found.commands
    assert type(found) is kind and f"{command}`" in found.advice and says in found.advice, found


# --- a record of a stranger


class Contradicting(Caller):
    """The pool has the SR of a finished run on another LUN."""

    def verify_finished(self, sr_uuid):
        raise Refused(f"The pool has {sr_uuid} on another LUN.")


class Of(LunSource):
    """A LUN that is open for reading and for a write alike."""

    def __init__(self, disk, caller):
        super().__init__(disk.name, Host("/nowhere"))
        self._lun = opened(disk, caller, SCSI_ID)

    @contextmanager
    def opened_to_read(self, permission=None):
        yield self._lun

    opened_dry = opened_to_read

    def _locked(self, scsi_id, seconds):
        return ExitStack()

    def _find_scsi_id(self, permission):
        return SCSI_ID

    def _opened_alone(self, scsi_id, permission):
        return self.opened_to_read(permission)


def resignature_as_a_driver(disk, caller):
    return resignature(disk, caller)


def resignature_of_a_command(disk, caller):
    asked = engine.ResignatureRequest()
    return run.resignature_of(Of(disk, caller), None, asked, entropy("ids"), caller.consent)[1]


def plan_of_a_command(disk, caller):
    return run.plan_of(Of(disk, caller), None, engine.ResignatureRequest(), entropy("ids"))[1]


@pytest.mark.parametrize("sr_uuid", ["x", sr_of(ONE)[1:], 1])
def test_a_request_that_cannot_be_meant_is_told_before_the_lun_is_opened(sr_uuid):
    """Also for a LUN that is resignatured already, which no plan would look at."""

    class Closed(Of):
        def opened_to_read(self, permission=None):
            raise AssertionError("it was opened")

    asked = engine.ResignatureRequest(sr_uuid=sr_uuid)
    with pytest.raises(UsageError, match="UUID.*Nothing was written.$"):
        run.resignature_of(Closed(DONE, Caller()), None, asked, entropy("ids"), Caller().consent)


@pytest.mark.parametrize(
    "lun, work",
    [
        (DONE, lambda source: run.undo(source, None, entropy("ids"), None)),
        (DONE, lambda source: run.recover(source, None, None)),
        (CUT, lambda source: run.recover(source, None, None)),
        (COMMITTED, lambda source: run.recover(source, None, None)),
    ],
)
def test_a_dry_run_whose_read_fails_says_that_nothing_was_written(lun, work):
    for n in range(1, 500):
        failing = FailingDisk(lun.copy(), n)
        try:
            work(Of(failing, Caller()))
        except DeviceError as error:
            assert error.disk_state == "Nothing was written."
        if not failing.failed:
            break
    assert 5 < n < 500 and failing.base == lun


def recover_dry(disk, caller):
    return run.recover(Of(disk, caller), None, None)[1]


RUNS = [resignature_as_a_driver, resignature_of_a_command, plan_of_a_command, recover_dry]


ALL_DONE = done(image("everything"))


def name_another_sr_in_mgt(disk):
    vg = read_sr(disk).vg
    (part,) = device_ranges(vg, vg.lv("MGT"), 0, 2048)
    disk.poke(part.offset, disk.peek(*part).replace(sr_of(disk).encode(), sr_of(image("everything")).encode()))


CHANGED = {**DAMAGES, "MGT, which names the original's SR": name_another_sr_in_mgt}


@pytest.mark.parametrize("work", RUNS)
@pytest.mark.parametrize("what", CHANGED)
def test_a_lun_that_was_damaged_after_its_resignature_is_damaged_for_every_caller(what, work):
    """A label that says "done" is believed only of a LUN whose other metadata reads."""
    lun, caller = ALL_DONE.copy(), Caller()
    assert isinstance(work(lun.copy(), Caller()), (AlreadyDone, engine.Inspection))
    CHANGED[what](lun)
    disk = lun.copy()

    if work is recover_dry:
        problem = work(disk, caller).problem
    else:
        with pytest.raises(FormatError, match=r" Nothing was written\. ") as caught:
            work(disk, caller)
        problem = caught.value
        after = f" {disk.name} was resignatured before, and was damaged after that."
        assert problem.message.endswith(after) or what == "LVM label"  # which says what was done

    assert isinstance(problem, FormatError) and problem.advice
    assert disk == lun and caller.said == []
    assert "<state>damaged</state>" in probe.document(disk, SCSI_ID)


@pytest.mark.parametrize("work", RUNS)
def test_a_finished_run_that_the_pool_contradicts_is_no_success_and_nothing_is_written(work):
    lun = DONE.copy()
    disk = lun.copy()
    work(disk, Caller())

    with pytest.raises(Refused) as caught:
        work(disk, Contradicting())

    assert str(caught.value) == f"The pool has {sr_of(DONE)} on another LUN. Nothing was written."
    assert disk == lun


def recover_it(disk, caller):
    return run.recover(Of(disk, caller), None, caller.consent)[1]


def undo_it(disk, caller):
    return run.undo(Of(disk, caller), None, entropy("ids"), caller.consent)[1]


def with_end_at(disk, header):
    """The committed run of a LUN, with another header for the end of its metadata area."""
    cut = engine.find_unfinished(disk).journal.run
    moves = tuple(move._replace(final_header=header(move)) for move in cut.mdas)
    return forge_journal(disk, cut._replace(mdas=moves), engine.SWITCHED)


def with_another_sr_at_the_end(disk):
    """The same, with a header for a text that is the committed one but for the name of the volume group."""
    run = engine.find_unfinished(disk).journal.run
    (move,) = run.mdas
    text = pv.read_text(disk, pv.parse_mda(move.second_header, move.second, Place("second area", 0)))
    text, at = text.replace(run.ids.new_sr.encode(), UNKNOWN_SR.encode()), move.second.offset + (16 << 10)
    disk.poke(at, text)
    return with_end_at(disk, lambda move: bytes(pv.mda_header(move.original, at, text)))


#: {what a stranger has written: (the LUN, what is said of it)}; the LUN holds, or would hold, the SR of the original
FORGED = {
    "committed": (lambda: forge_run(ONE.copy(), SCSI_ID, engine.SWITCHED), "the LUN holds the SR"),
    "begun": (lambda: forge_run(ONE.copy(), SCSI_ID, engine.IN_PROGRESS), "the LUN holds the SR"),
    "committed undo": (lambda: forge_run(ONE.copy(), SCSI_ID, engine.SWITCHED, kind=UNDO), "the LUN holds the SR"),
    "of a copy": (lambda: forge_run(ONE.copy(), OTHER_SCSI_ID, engine.SWITCHED), "the LUN holds the SR"),
    "the old text at the end": (
        lambda: with_end_at(COMMITTED.copy(), lambda move: move.old_header),
        "the run would leave no metadata that reads",
    ),
    "another SR at the end": (lambda: with_another_sr_at_the_end(COMMITTED.copy()), "the run would leave the SR"),
}


@pytest.mark.parametrize("work", [*RUNS, recover_it, undo_it])
@pytest.mark.parametrize("what", FORGED)
def test_a_run_that_does_not_lead_to_the_sr_of_its_journal_is_not_recovered(what, work):
    """The pool would be asked about an SR that is not on the LUN."""
    made, says = FORGED[what]
    disk = made()
    before, caller = disk.copy(), Caller()
    try:
        found = work(disk, caller).problem  # of a recovery; each other run raises
    except Refused as refused:
        found = refused

    assert isinstance(found, Refused) and says in found.message
    assert disk == before and caller.said == []


def test_the_end_of_a_run_is_said_of_the_sr_that_is_read_from_the_lun():
    """t0: the pool knows no such SR; t1: the run is finished; t2: the pool has that SR on another LUN."""
    for work in (resignature, recover_it):
        disk, caller, asked = COMMITTED.copy(), Caller(), []

        def contradict(sr_uuid, asked=asked):
            asked.append(sr_uuid)
            if len(asked) == 2:
                raise Refused("The pool has it now.").in_state("Nothing was written.")

        caller.verify_finished = contradict
        with pytest.raises(Refused, match="The pool has it now.") as caught:
            work(disk, caller)
        assert caught.value.disk_state == "The resignature that was cut was finished; nothing else was written."
        assert asked == [sr_of(disk)] * 2


def test_an_undo_asks_about_no_sr_of_a_journal_that_is_not_on_the_lun():
    disk = forge_run(ONE.copy(), SCSI_ID, engine.DONE)
    before = disk.copy()
    with pytest.raises(Refused, match="the LUN holds the SR " + sr_of(ONE)):
        undo_it(disk, Caller())
    assert disk == before


def test_an_undo_that_would_not_give_the_sr_of_its_journal_back_writes_nothing():
    """The record proves the resignature. The journal of a stranger names another SR before it."""
    disk = forge_run(DONE.copy(), SCSI_ID, engine.DONE, sr_of(DONE))
    before = disk.copy()
    with pytest.raises(Refused, match=f"An undo would leave the SR {sr_of(DONE)}, not the SR {NO_SR}") as caught:
        undo_it(disk, Caller())
    assert disk == before and caught.value.disk_state == "Nothing was written."


@pytest.mark.parametrize("work", RUNS)
def test_a_journal_that_is_not_of_the_lun_is_no_map_of_the_finished_run(work):
    """It would name a VDI of another tenant as the old one."""
    disk = forge_run(DONE.copy(), SCSI_ID, engine.DONE)
    assert work(disk, Caller()).run is None

    mine = next(iter(engine.inspect(DONE).lun.disks()))
    of_another = derived_uuid(sr_of(DONE), UNKNOWN_SR)
    for old, is_told in ((UNKNOWN_SR, True), (mine, False)):
        disk = forge_run(DONE.copy(), SCSI_ID, engine.DONE, sr_of(DONE), **{old: of_another})
        assert (work(disk, Caller()).run is not None) is is_told


@pytest.mark.parametrize("old, is_told", [(UNKNOWN_SR, True), (NEW_SR, False)])
@pytest.mark.parametrize(
    "phase, kind", [(engine.SWITCHED, RESIGNATURE), (engine.DONE, RESIGNATURE), (engine.SWITCHED, UNDO)]
)
def test_a_map_that_no_run_makes_is_of_no_run(phase, kind, old, is_told):
    """Else `show`, a probe, SMlog and an answer would name a VDI of another tenant as the one before."""
    made = sr_of(DONE) if kind == RESIGNATURE else NO_SR
    pair = (old, derived_uuid(made, UNKNOWN_SR))
    more = dict([pair if kind == RESIGNATURE else pair[::-1]])
    disk = forge_run(DONE.copy(), SCSI_ID, phase, sr_of(DONE), kind, **more)

    assert (engine.inspect(disk).run is not None) is is_told
    if not is_told:
        with pytest.raises((FormatError, Refused)) as caught:
            engine.read_undoable(disk)
        assert "derived from another UUID" in str(caught.value.__cause__ or caught.value)


def test_again_gives_such_a_lun_new_identities_and_then_it_is_believed():
    disk = forge_record(DONE.copy(), SCSI_ID)
    outcome = resignature(disk, Contradicting(), again=True)
    assert outcome.result.ids.sr == sr_of(DONE) and sr_of(disk) == outcome.result.ids.new_sr
    assert resignature(disk, Caller()).sr_uuid == outcome.result.ids.new_sr


@pytest.mark.parametrize("phase", [engine.DONE, engine.SWITCHED])
def test_a_forged_record_tells_no_new_sr_of_a_lun_with_the_identities_of_an_original(phase):
    assert engine.new_sr_of(forge_record(ONE.copy(), SCSI_ID, phase), SCSI_ID) is None
    assert engine.new_sr_of(forge_record(DONE.copy(), SCSI_ID, phase), SCSI_ID) == sr_of(DONE)
