# SPDX-License-Identifier: LGPL-2.1-only
"""A run on an open LUN: look, settle, plan, consent, carry out, record.

The three runs are `resignature`, `recover` and `undo`. Each run asks who uses the LUN. Then it asks the caller for
consent to a proposal. It takes the locks, asks again who uses the LUN, writes, and logs the map of old and new ids.

The step of `resignature` for each state of the LUN:

    no run; or a finished run, with `again`                     a new run
    a finished run for this LUN                                 AlreadyDone
    a run interrupted before its commit                         roll back, then a new run
    a run interrupted after its commit                          finish, with the ids on the LUN
    the same, and the LUN is a copy of the run's LUN,
    or the run keeps other VDIs than requested                  finish and undo, then a new run
    the same, and the run has dropped VDIs                      finish; then a new run on a copy, or a refusal
    an interrupted undo                                         roll back or finish, then as above
"""

import logging
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi import __version__, engine, report
from relvmoiscsi.device import Range
from relvmoiscsi.engine import (
    RESIGNATURE,
    UNDO,
    AlreadyDone,
    Lun,
    Mark,
    Prepared,
    ResignatureRequest,
    Result,
    fits,
)
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, Unfinished, in_state
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import Entropy
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.users import NOBODY_NEEDED, PoolAnswer
from relvmoiscsi.wording import human_size

#: the map of each run, for a later investigation: the driver's log has it, and a command writes it to SMlog or syslog
record = logging.getLogger("relvmoiscsi.record")

#: why a run is rolled back
OF_A_COPY, OTHER_VDIS, BEFORE_COMMIT = "of a copy", "other VDIs", "before its commit"

#: between the two reads of a LUN about which no pool has answered; longer than the lease of a block device (`Fence`)
LOOK_SECONDS = 2.5
#: the label, and the header of the first metadata area where LVM puts both: each change of the VG changes the header
_LABEL_AND_HEADER = Range(0, 8192)


# --- what a caller consents to


class Proposal:
    """What a run is about to do to a LUN. A caller consents to it, or raises an error: then nothing was written."""

    pool: PoolAnswer = NOBODY_NEEDED  #: who uses the LUN, as the pool answers

    def __init__(
        self, sr_uuid: str, content: Optional[Lun] = None, replaced: Sequence[str] = (), new_sr: str = ""
    ) -> None:
        self.sr_uuid = sr_uuid  #: the SR on the LUN now
        self.content = content  #: what the LUN holds; None if that is unreadable
        self.replaced = tuple(replaced)  #: UUIDs of the SRs that the LUN will no longer hold
        self.new_sr = new_sr  #: the UUID that a new run gives the SR


class NewRun(Proposal):
    """Give the LUN new identities."""

    def __init__(self, prepared: Prepared) -> None:
        ids = prepared.plan.run.ids
        super().__init__(ids.sr, prepared.lun, (ids.sr,), ids.new_sr)
        self.prepared = prepared


class Settlement(Proposal):
    """Finish an interrupted run, or roll it back. `why` says why it is rolled back; "" finishes it."""

    def __init__(self, mark: Mark, why: str = "", problem: Optional[Unfinished] = None) -> None:
        ids, goes_back = mark.journal.run.ids, engine.goes_back(mark)
        replaced: Tuple[str, ...] = ()  # finishing replaces nothing: the LUN holds the new SR since the commit
        if why and mark.commit_record.kind != UNDO:  # until the new run behind it
            replaced = (ids.sr,) if goes_back else (ids.sr, ids.new_sr)
        super().__init__(ids.sr, replaced=replaced)
        self.mark, self.why, self.problem = mark, why, problem


class Undoing(Proposal):
    """Give the LUN its old identities back."""

    def __init__(self, mark: Mark, content: Optional[Lun]) -> None:
        run = mark.journal.run
        self.old_sr, now = (run.ids.sr, run.ids.new_sr)
        if mark.commit_record.kind != RESIGNATURE:
            self.old_sr, now = now, self.old_sr
        super().__init__(now, content, () if engine.goes_back(mark) else (now,))
        self.mark = mark


#: returns if the caller consents, and raises otherwise
Consent = Callable[[Proposal], None]
#: what is done ("copied", "read back"), the bytes done, the bytes in all
Progress = Callable[[str, int, int], None]

COPIED, READ_BACK = "copied", "read back"


class CompletedRun(NamedTuple):
    """A completed run, and what the caller has consented to."""

    result: Result
    proposal: Proposal
    was_cut: bool = False  #: the completed run is an interrupted run that was finished now


class DryRun(NamedTuple):
    """A checked plan that was not carried out."""

    prepared: Prepared
    pool: PoolAnswer


def consent_unasked(_proposal: Proposal) -> None:
    """Consent to everything: the consent of a caller that has given its consent before."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    pass


# --- the runs


def resignature(
    lun: OpenLun,
    request: ResignatureRequest,
    entropy: Entropy,
    consent: Consent = consent_unasked,
    progress: Progress = no_progress,
) -> Union[CompletedRun, AlreadyDone]:
    """Give the LUN new identities, or finish the run that an earlier call has left there.

    Raises the errors of `engine.prepare`, `engine.resignature`, `engine.recover` and `engine.undo`, of the guard and of
    the caller's functions.
    """
    try:
        prepared = engine.prepare(lun.device, entropy, request)
    except Unfinished as problem:
        settled = _settle(lun, entropy, consent, request, problem)
        if isinstance(settled, CompletedRun):
            return settled
        with _since(settled):
            return _carry_out(lun, consent, progress, engine.prepare(lun.device, entropy, request))
    return _carry_out(lun, consent, progress, prepared)


def plan(lun: OpenLun, request: ResignatureRequest, entropy: Entropy) -> Union[DryRun, AlreadyDone]:
    """Plan a resignature, and write nothing. The pool's objection is a part of the answer."""
    try:
        prepared = engine.prepare(lun.device, entropy, request)
    except Unfinished as problem:
        mark = engine.find_unfinished(lun.device)
        if mark is not None and mark.commit_record.kind == RESIGNATURE:
            goes_on = "rolls it back first and starts a new run" if _takes_back(mark, request) else "finishes it"
            problem.message += f" The same call without --dry-run {goes_on}."
        raise
    if isinstance(prepared, AlreadyDone):
        return prepared
    _check_copy(lun, prepared)
    ids = prepared.plan.run.ids
    return DryRun(prepared, lun.guard.ask((ids.sr,), ids.new_sr))


def recover(lun: OpenLun, consent: Consent) -> Optional[CompletedRun]:
    """Finish an interrupted run, or roll it back before its commit; None without an interrupted run."""
    mark = engine.find_unfinished(lun.device)
    if mark is None:
        return None
    proposal = Settlement(mark)
    _ask(lun, proposal, consent)
    with lun.guard.held(engine.vg_names(mark.journal.run), proposal.replaced):
        result = engine.recover(lun.device, mark, lun.ids.own)
    return _recorded(lun, CompletedRun(result, proposal, was_cut=True))


def undo(lun: OpenLun, entropy: Entropy, consent: Consent) -> CompletedRun:
    """Give the LUN its old identities back. Raises the errors of `engine.read_undoable` and `engine.undo`."""
    mark = engine.read_undoable(lun.device)
    with in_state(NOTHING_WRITTEN):
        proposal = Undoing(mark, engine.inspect(lun.device).lun)
    _ask(lun, proposal, consent)
    with lun.guard.held(engine.vg_names(mark.journal.run), proposal.replaced):
        result = engine.undo(lun.device, entropy)
    return _recorded(lun, CompletedRun(result, proposal))


# --- its steps


def _carry_out(
    lun: OpenLun, consent: Consent, progress: Progress, prepared: Union[Prepared, AlreadyDone]
) -> Union[CompletedRun, AlreadyDone]:
    if isinstance(prepared, AlreadyDone):
        return prepared
    _check_copy(lun, prepared)
    proposal = NewRun(prepared)
    _ask(lun, proposal, consent)
    if prepared.cost is not None:  # the copy is written before the locks, and takes long
        with lun.guard.held(None, proposal.replaced):
            pass
    prepared = engine.copy_unseen(lun.device, prepared, lambda done, total: progress(COPIED, done, total))
    begun = "A new image was begun where nobody sees it" if prepared.writes else ""
    with _since(begun, always=False), lun.guard.held(engine.vg_names(prepared.plan.run), proposal.replaced):
        result = engine.resignature(lun.device, prepared, lambda done, total: progress(READ_BACK, done, total))
    return _recorded(lun, CompletedRun(result, proposal))


def _check_copy(lun: OpenLun, prepared: Prepared) -> None:
    """Raises Refused when the device reports that a copy of this size would take hours."""
    limit, cost = lun.copy_limit_bytes, prepared.cost
    if limit is not None and cost is not None and cost.data_bytes > limit:
        raise Refused(
            f"The target demands digests, and the kernel of this machine has no CRC32C for them: copying "
            f"{human_size(cost.data_bytes)} of guest data would take very long. Allow a login without digests at the "
            "array, or load the kernel module algif_hash."
        ).in_state(NOTHING_WRITTEN)


def _settle(
    lun: OpenLun, entropy: Entropy, consent: Consent, request: ResignatureRequest, problem: Unfinished
) -> Union[CompletedRun, str]:
    """Settle an interrupted run. Return a CompletedRun, or a sentence about it where a new run must follow."""
    mark = engine.find_unfinished(lun.device)
    if mark is None:  # another caller has settled the run
        return ""
    run, why = mark.journal.run, _why_not_finished(mark, request)
    proposal = Settlement(mark, _takes_back(mark, request), problem)
    _ask(lun, proposal, consent)
    with lun.guard.held(engine.vg_names(run), proposal.replaced):
        if proposal.why and not engine.goes_back(mark):
            result = engine.undo(lun.device, entropy)
        else:  # a copy may be finished here, because a new run follows
            result = engine.recover(lun.device, mark, None if why else request.scsi_id)
    outcome = _recorded(lun, CompletedRun(result, proposal, was_cut=True))
    if mark.commit_record.kind == UNDO:
        return "The undo was taken back" if engine.goes_back(mark) else "The undo was finished"
    if proposal.why:
        return "The resignature that was cut was taken back"
    if why:  # one VDI cannot be undone after the commit; `prepare` checks the VDIs for the new run
        return "The resignature that was cut was finished"
    with in_state("The resignature that was cut was finished."):
        engine.refuse_databases(lun.name, result.lun, request.clear_databases)
        engine.refuse_left_behind(lun.name, result.lun, run, request.without)
    return outcome


def _why_not_finished(mark: Mark, request: ResignatureRequest) -> str:
    """Return why an interrupted run is not finished; "" for a run to finish."""
    run, is_undo = mark.journal.run, mark.commit_record.kind == UNDO
    if not is_undo and None not in (run.scsi_id, request.scsi_id) and run.scsi_id != request.scsi_id:
        return OF_A_COPY
    if engine.goes_back(mark):
        return BEFORE_COMMIT
    return "" if is_undo or fits(run, request.one) else OTHER_VDIS


def _takes_back(mark: Mark, request: ResignatureRequest) -> str:
    """Return why an interrupted run is rolled back; "" for a run to finish. One VDI is not undone after the commit."""
    can_go_back = mark.journal.run.rebuilt is None or engine.goes_back(mark)
    return _why_not_finished(mark, request) if can_go_back else ""


# --- consent


def _ask(lun: OpenLun, proposal: Proposal, consent: Consent) -> None:
    """Ask who uses the LUN, then the caller. Where nobody was asked, look whether a program changes the LUN meanwhile.

    Raises Refused, or an error of the caller. Nothing was written.
    """
    with in_state(NOTHING_WRITTEN):
        proposal.pool = lun.guard.ask(proposal.replaced, proposal.new_sr)
        proposal.pool.verify()
        if proposal.pool.is_overridden or not lun.is_lun or not proposal.pool.is_missing:
            return consent(proposal)
        compared = _ranges_of_lvm_and_sm(lun, proposal.content)
        looked, seen = time.monotonic(), lun.device.read(compared)
        consent(proposal)
        time.sleep(max(0.0, looked + LOOK_SECONDS - time.monotonic()))
        for part, before, now in zip(compared, seen, lun.device.read(compared)):
            if now != before:
                offset = part.offset + next(at for at, pair in enumerate(zip(now, before)) if pair[0] != pair[1])
                raise Refused(
                    f"{lun.name} changed at byte {offset} since the first read. "
                    "Another program or host writes to this device: the LUN is in use."
                )
        return None


def _ranges_of_lvm_and_sm(lun: OpenLun, content: Optional[Lun]) -> List[Range]:
    """Return the ranges that change when LVM changes the VG, or the storage manager a record of the SR."""
    found = [Range(0, min(_LABEL_AND_HEADER.length, lun.device.size_bytes))]
    if content is None or content.mgt is None:
        return found
    return found + content.vg.ranges(content.volume(naming.MGT).lv, 0, content.mgt.length)


# --- the state of the LUN in errors


@contextmanager
def _since(settled: str, always: bool = True) -> Iterator[None]:
    """Add to errors of the block that an earlier run was settled before.

    With `always=False`, only an error with the state "nothing was written" is changed.
    """
    try:
        yield
    except RelvmoiscsiError as error:
        if settled:
            error.disk_state = _state_since(settled, error.disk_state or NOTHING_WRITTEN, always)
        raise
    except KeyboardInterrupt as stop:
        if settled and stop.args:
            stop.args = (_state_since(settled, str(stop), always),)
        raise


def _state_since(settled: str, state: str, always: bool) -> str:
    if state == NOTHING_WRITTEN:
        return f"{settled}; nothing else was written."
    return f"{settled}. {state}" if always else state


# --- the record


def _recorded(lun: OpenLun, outcome: CompletedRun) -> CompletedRun:
    result = outcome.result
    record.info("%s: %s now. This is relvmoiscsi %s.", lun.name, result.state, __version__)
    record.info("%d writes, %d bytes, %d flushes", result.writes, result.bytes_written, result.flushes)
    for line in report.whole_map_lines(result.lun, result.ids) if result.ids is not None else []:
        record.info("%s", line)
    return outcome
