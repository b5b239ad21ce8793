# SPDX-License-Identifier: LGPL-2.1-only
"""A run on an open LUN: look, recover, plan, consent, carry out, record.

The three runs are `resignature`, `recover` and `undo`. Each run asks who uses the LUN. Then it asks the caller for
consent to a proposal. It takes the locks, asks again who uses the LUN, writes, and logs the map of old and new ids.

The step of `resignature` for each state of the LUN:

    no run; or a finished run, with `again`                     a new run
    a finished run for this LUN                                 AlreadyDone, or a refusal where the pool has its SR on
                                                                another LUN: a stranger may have written the record
    a run interrupted before its commit                         roll back, then a new run
    a run interrupted after its commit                          finish, with the ids on the LUN, unless the pool has its
                                                                SR on another LUN
    the same, and the LUN is a copy of the run's LUN, or may
    be one, or the run keeps other VDIs than requested          finish and undo, then a new run
    the same, and the run has dropped VDIs                      finish; then a new run on a copy, or a refusal
    an interrupted run that `recover` cannot end                the refusal of `recover`
    an interrupted undo                                         Unfinished: a person must say what is wanted. Only the
                                                                driver recovers the undo, then as above

A command and the plugin give a source. `resignature_of` looks at the LUN before it opens the LUN for a write: so a
finished run is found also on a LUN in use.
"""

import logging
import syslog
import time
from contextlib import ExitStack, contextmanager
from typing import Callable, Iterator, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from relvmoiscsi import __version__, engine
from relvmoiscsi.device import Chunk, Device, MemoryDevice, Range
from relvmoiscsi.engine import (
    RESIGNATURED,
    UNDO,
    AlreadyDone,
    EarlierRun,
    Inspection,
    Lun,
    ResignatureRequest,
    Result,
    is_of_another_lun,
)
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, Unfinished, in_state, interruption
from relvmoiscsi.formats import mapfile, naming
from relvmoiscsi.formats.identity import Entropy, IdMap
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun.opened import LunSource, OpenLun, Permission
from relvmoiscsi.lun.proposals import Consent, NewRun, Proposal, Recovery, Undoing
from relvmoiscsi.wording import shell_command

#: the map of each run, for a later investigation: the driver's log has it, and a command writes it to SMlog or syslog
record = logging.getLogger("relvmoiscsi.record")

#: between the two reads of a LUN about which no pool has answered; longer than the lease of a block device (`Fence`)
LOOK_SECONDS = 2.5
#: the label, and the header of the first metadata area where LVM puts both: each change of the VG changes the header
_LABEL_AND_HEADER = Range(0, 8192)

Found = TypeVar("Found")

#: what is done ("copied", "read back"), the bytes done, the bytes in all
Progress = Callable[[str, int, int], None]

#: where a program has the LUN of an unfinished run open
_LET_IT_END = "A run is at work on it, or was cut: let that program end, then repeat the command."

COPIED, READ_BACK = "copied", "read back"


class CompletedRun(NamedTuple):
    """A completed run, and what the caller has consented to."""

    result: Result
    proposal: Proposal
    was_cut: bool = False  #: the completed run is an interrupted run that was finished or rolled back now
    stale: Sequence[str] = ()  #: sentences about what this machine still remembers of the LUN; the caller tells them
    planned: Sequence[Chunk] = ()  #: the writes of a dry run: the result is what they would make of the LUN
    damaged: Optional[Inspection] = None  #: the LUN, where it is damaged when its interrupted run has ended


def no_progress(_what: str, _done: int, _total: int) -> None:
    pass


# --- the runs of a caller that names a LUN


def resignature_of(
    source: LunSource,
    permission: Permission,
    request: ResignatureRequest,
    entropy: Entropy,
    consent: Consent,
    progress: Progress = no_progress,
) -> Tuple[OpenLun, Union[CompletedRun, AlreadyDone]]:
    """Give a LUN new identities; the SCSIid of the request is that of the open LUN. Return the LUN, closed.

    Raises the errors of `resignature`, and Refused where a finished run does not fit the request.
    """
    with in_state(NOTHING_WRITTEN):
        request = request.checked()
    if not request.again:
        with source.opened(permission, to_write=False) as lun:
            request = request._replace(scsi_id=lun.scsi_id)
            with in_state(NOTHING_WRITTEN):
                found = engine.find_done(lun.device, request)
            if found is not None:
                _verify_finished(lun, found.sr_uuid)
                return lun, found

    def work(lun: OpenLun) -> Union[CompletedRun, AlreadyDone]:
        return resignature(lun, request._replace(scsi_id=lun.scsi_id), entropy, consent, progress)

    return _carried_out(source, permission, work)


def plan_of(
    source: LunSource, permission: Permission, request: ResignatureRequest, entropy: Entropy
) -> Tuple[OpenLun, Union[NewRun, AlreadyDone]]:
    """Plan a resignature, as `resignature_of` does the resignature. The pool's objection is a part of the answer."""
    with source.opened_dry(permission) as lun:
        return lun, plan(lun, request._replace(scsi_id=lun.scsi_id), entropy)


def inspected(lun: OpenLun, words: Sequence[str] = ()) -> Inspection:
    """Inspect a LUN. The problem of an interrupted run is Unfinished where `recover` ends it, else as `recover` raises.

    `words` are the command to resignature the LUN.
    """
    found = engine.inspect(lun.device, words)
    earlier = engine.find_unfinished(lun.device) if isinstance(found.problem, Unfinished) else None
    try:
        if earlier is not None:
            _verify_recovery(lun, Recovery(earlier))
    except Refused as refused:
        return found._replace(problem=refused)
    return found


def looked_at(lun: OpenLun, words: Sequence[str] = ()) -> Inspection:
    """Do as `inspected` for a command that only reads: nobody has made sure that no run is at work on the LUN.

    The problem of an unfinished run is Refused where this machine knows that `recover` could not write: another program
    has the device open, or it is read-only.
    """
    found = inspected(lun, words)
    if isinstance(found.problem, Unfinished):
        lun.device.look_for_users()
        objection = lun.device.objection
        if objection is not None:
            refused = Refused(f"{found.problem.message} {objection.message}")
            return found._replace(problem=refused.advising(objection.advice or _LET_IT_END))
    return found


def recover(
    source: LunSource, permission: Permission, consent: Optional[Consent], words: Sequence[str] = ()
) -> Tuple[OpenLun, Union[CompletedRun, Inspection]]:
    """Finish an interrupted run, or roll it back before its commit. Without a run to end, return what was found.

    Only a LUN with an interrupted run is opened for a write. Without `consent`, the run is a dry run. `words` are the
    command to resignature the LUN.
    """

    def work(lun: OpenLun) -> Union[CompletedRun, Inspection]:
        with in_state(NOTHING_WRITTEN):
            found = inspected(lun, words)
            _verify_done(lun, found)
        earlier = engine.find_unfinished(lun.device) if isinstance(found.problem, Unfinished) else None
        if earlier is None:
            return found
        cut = earlier

        def end(device: Device) -> Tuple[Result, Inspection]:
            result, found = engine.end_cut(device, cut, lun.scsi_id, words)
            with _since("" if consent is None else _ended(cut)):
                _verify_done(lun, found)
            return result, found

        return _of_earlier(lun, Recovery(cut), end, consent)

    if consent is not None:
        with source.opened(permission, to_write=False) as lun, in_state(NOTHING_WRITTEN):
            found = engine.inspect(lun.device, words)
            if not isinstance(found.problem, Unfinished):
                _verify_done(lun, found)
                return lun, found
    return _carried_out(source, permission, work, is_dry=consent is None)


def undo(
    source: LunSource, permission: Permission, entropy: Entropy, consent: Optional[Consent]
) -> Tuple[OpenLun, CompletedRun]:
    """Give the LUN its old identities back. Without `consent`, the run is a dry run.

    Raises the errors of `engine.read_undoable` and `engine.undo`.
    """

    def work(lun: OpenLun) -> CompletedRun:
        earlier = engine.read_undoable(lun.device)
        engine.verify_undoable(lun.device, earlier, entropy)
        with in_state(NOTHING_WRITTEN):
            proposal = Undoing(earlier, engine.inspect(lun.device).lun)
        return _of_earlier(lun, proposal, lambda device: (engine.undo(device, entropy), None), consent)

    return _carried_out(source, permission, work, is_dry=consent is None)


def _of_earlier(
    lun: OpenLun,
    proposal: Union[Recovery, Undoing],
    work: Callable[[Device], Tuple[Result, Optional[Inspection]]],
    consent: Optional[Consent],
) -> CompletedRun:
    """Do the work on an earlier run, or on its LUN in memory where no consent is asked for.

    The pool's objection is a part of the answer of a dry run. `work` also returns what the LUN holds then; None where a
    damaged LUN is an error.
    """
    planned: Sequence[Chunk] = ()
    if consent is None:
        unwritten = MemoryDevice(lun.device)
        proposal.pool = lun.guard.ask(proposal.replaced, proposal.new_sr)
        try:
            result, found = work(unwritten)
        except RelvmoiscsiError as error:
            error.disk_state = NOTHING_WRITTEN
            raise
        planned = unwritten.chunks
        if found is not None and found.problem is not None:
            found.problem.disk_state = NOTHING_WRITTEN
    else:
        _ask(lun, proposal, consent)
        with lun.guard.held(engine.vg_names(proposal.earlier.journal.run), proposal.replaced):
            result, found = work(lun.device)
    damaged = found if found is not None and found.lun is None else None
    was_cut = isinstance(proposal, Recovery)
    outcome = CompletedRun(result, proposal, was_cut, planned=planned, damaged=damaged)
    return outcome if consent is None else _recorded(lun, outcome)


def _carried_out(
    source: LunSource,
    permission: Permission,
    work: Callable[[OpenLun], Union[CompletedRun, Found]],
    is_dry: bool = False,
) -> Tuple[OpenLun, Union[CompletedRun, Found]]:
    """Open the LUN for a write, do the work, close the LUN. After a completed run, refresh what this machine remembers.

    The map of a run goes to SMlog, or to syslog on a machine without SM. A dry run opens the LUN only to read.
    """
    if is_dry:
        with source.opened_dry(permission) as lun:
            return lun, work(lun)
    with recording(source.host), source.opened(permission, to_write=True) as lun:
        done = work(lun)
    return lun, done._replace(stale=lun.refresh()) if isinstance(done, CompletedRun) else done


def _verify_finished(lun: OpenLun, sr_uuid: str) -> None:
    """Raise Refused where the pool has the SR of a finished run on another LUN: a stranger may have written the run.

    `sr_uuid` is the SR that was read from the LUN. Whoever says that a resignature is done asks here before.
    """
    with in_state(NOTHING_WRITTEN):
        lun.guard.verify_finished(sr_uuid)


def _verify_done(lun: OpenLun, found: Inspection) -> None:
    """Do as `_verify_finished` with what an inspection has found, if that is a finished run of this LUN."""
    is_done = found.state == RESIGNATURED and not is_of_another_lun(found.commit_record, lun.scsi_id)
    if found.lun is not None and is_done:
        _verify_finished(lun, found.lun.sr_uuid)


def _ended(earlier: EarlierRun) -> str:
    """Return what has become of an interrupted run that was ended, without a full stop."""
    what = "undo" if earlier.commit_record.kind == UNDO else "resignature that was cut"
    return f"The {what} was {'rolled back' if engine.goes_back(earlier) else 'finished'}"


def _verify_recovery(lun: OpenLun, proposal: Recovery) -> None:
    """Raise Refused where the interrupted run cannot be ended as proposed; the advice has the command that ends it.

    Before a run is finished, do as `_verify_finished`.
    """
    engine.verify_recoverable(lun.device, proposal.earlier, None if proposal.unfit else lun.scsi_id)
    try:
        if proposal.finished_sr:
            _verify_finished(lun, proposal.finished_sr)
    except Refused as refused:
        can_undo = proposal.earlier.journal.run.merged is None
        if can_undo and lun.guard.ask((proposal.finished_sr,)).objection is None:
            undo = shell_command("relvmoiscsi undo", lun.name)
            refused.advising(f"The run was interrupted: `{undo}` rolls it back, before a new run.", undo)
        raise


# --- the runs on an open LUN


def resignature(
    lun: OpenLun,
    request: ResignatureRequest,
    entropy: Entropy,
    consent: Consent,
    progress: Progress = no_progress,
    recovers_undo: bool = False,
) -> Union[CompletedRun, AlreadyDone]:
    """Give the LUN new identities, or finish the run that an earlier call has left there.

    With `recovers_undo`, an interrupted undo is recovered as well. Raises the errors of `engine.prepare`,
    `engine.resignature`, `engine.recover` and `engine.undo`, of the guard and of the caller's functions.
    """
    recovered, finished = "", None  # type: str, Optional[CompletedRun]
    try:
        prepared = engine.prepare(lun.device, entropy, request)
    except Unfinished:
        earlier = engine.find_unfinished(lun.device)
        if earlier is not None:  # else another caller has recovered the run
            if earlier.commit_record.kind == UNDO and not recovers_undo:
                raise  # before anybody is asked: nothing was written, and no answer would change that
            recovered, finished = _recover_first(lun, entropy, consent, request, earlier)
        with _since(recovered):
            if finished is not None:  # the run that is requested: the ids on the LUN prove that it is done
                request = request._replace(again=False, scsi_id=finished.result.scsi_id)
            prepared = engine.prepare(lun.device, entropy, request)
    with _since(recovered):
        if isinstance(prepared, AlreadyDone):
            _verify_finished(lun, prepared.sr_uuid)
            return finished or prepared
        proposal = NewRun(prepared)
        _ask(lun, proposal, consent)
        if prepared.cost is not None:  # the copy is written before the locks, and takes long
            with lun.guard.held((), proposal.replaced):
                pass
        prepared = engine.copy_unseen(lun.device, prepared, lambda done, total: progress(COPIED, done, total))
        begun = "A new image was begun where nobody sees it" if prepared.writes else ""
        with _since(begun, always=False), lun.guard.held(engine.vg_names(prepared.plan.run), proposal.replaced):
            result = engine.resignature(lun.device, prepared, lambda done, total: progress(READ_BACK, done, total))
        return _recorded(lun, CompletedRun(result, proposal))


def plan(lun: OpenLun, request: ResignatureRequest, entropy: Entropy) -> Union[NewRun, AlreadyDone]:
    """Plan a resignature, and write nothing. The pool's objection is a part of the answer.

    Raises Unfinished for an interrupted run, also where a run would recover it first: nothing can be planned before.
    Raises Refused instead where this machine knows that no run could write (`looked_at`).
    """
    try:
        prepared = engine.prepare(lun.device, entropy, request)
    except Unfinished:
        earlier, problem = engine.find_unfinished(lun.device), looked_at(lun).problem
        if problem is not None and lun.device.objection is not None:  # another program may be the run itself
            raise problem.in_state(NOTHING_WRITTEN) from None
        if earlier is None or problem is None or earlier.commit_record.kind == UNDO:
            raise
        is_new = _proposed_recovery(lun, request, earlier).why
        goes_on = "rolls it back first and starts a new run" if is_new else "finishes it"
        told = Unfinished(problem.message).advising(problem.advice, *problem.commands).in_state(NOTHING_WRITTEN)
        raise told.advising(
            f"A dry run plans nothing on such a LUN. The same call without --dry-run {goes_on}."
        ) from None
    if isinstance(prepared, AlreadyDone):
        _verify_finished(lun, prepared.sr_uuid)
        return prepared
    proposal = NewRun(prepared)
    proposal.pool = lun.guard.ask(proposal.replaced, proposal.new_sr)
    return proposal


# --- their steps


def _proposed_recovery(lun: OpenLun, request: ResignatureRequest, earlier: EarlierRun) -> Recovery:
    """Return how a request for a new run ends an interrupted run first. Raises Refused where it does not."""
    proposal = Recovery(earlier, request)
    if not (proposal.why or proposal.is_undo):
        instead = (
            f"`{shell_command('relvmoiscsi recover', lun.name)}` finishes the interrupted run, "
            f"`{shell_command('relvmoiscsi undo', lun.name)}` rolls it back."
        )
        chosen, ids = request.chosen or IdMap("", {}, {}), earlier.journal.run.ids
        found = mapfile.contradictions(chosen, request.sr_uuid, ids)
        if found:  # a script relies on its ids
            raise Refused(f"{lun.name} already has other ids: {found[0]}.").advising(instead).in_state(NOTHING_WRITTEN)
    _verify_recovery(lun, proposal)
    return proposal


def _recover_first(
    lun: OpenLun, entropy: Entropy, consent: Consent, request: ResignatureRequest, earlier: EarlierRun
) -> Tuple[str, Optional[CompletedRun]]:
    """Recover an interrupted run. Return what has become of it; and the run, where it is the run that is requested."""
    run, proposal = earlier.journal.run, _proposed_recovery(lun, request, earlier)
    _ask(lun, proposal, consent)
    with lun.guard.held(engine.vg_names(run), proposal.replaced):
        if proposal.why and not engine.goes_back(earlier):
            result = engine.undo(lun.device, entropy)
        else:  # a copy may be finished here, because a new run follows
            result = engine.recover(lun.device, earlier, None if proposal.unfit else request.scsi_id)
    outcome = _recorded(lun, CompletedRun(result, proposal, was_cut=True))
    if proposal.why and not proposal.is_undo:
        return "The resignature that was cut was rolled back", None
    return _ended(earlier), None if proposal.is_undo or proposal.unfit else outcome


def _ask(lun: OpenLun, proposal: Proposal, consent: Consent) -> None:
    """Ask who uses the LUN, then the caller. Raises Refused, or an error of the caller. Nothing was written."""
    with in_state(NOTHING_WRITTEN):
        proposal.pool = lun.guard.ask(proposal.replaced, proposal.new_sr)
        proposal.pool.verify()
        with ExitStack() as watched:
            if lun.is_lun and proposal.pool.is_missing and not proposal.pool.is_overridden:
                watched.enter_context(_unchanged(lun, proposal.content))
            consent(lun, proposal)


@contextmanager
def _unchanged(lun: OpenLun, content: Optional[Lun]) -> Iterator[None]:
    """Read the LUN before and after the block, at least LOOK_SECONDS apart. Raise Refused where it has changed."""
    # LVM changes these ranges with each change of the VG, and the storage manager with each record of the SR.
    compared = [Range(0, min(_LABEL_AND_HEADER.length, lun.device.size_bytes))]
    if content is not None and content.mgt is not None:
        compared += content.vg.ranges(content.volume(naming.MGT).lv, 0, content.mgt.length)
    looked, seen = time.monotonic(), lun.device.read(compared)
    yield
    time.sleep(max(0.0, looked + LOOK_SECONDS - time.monotonic()))
    for part, before, now in zip(compared, seen, lun.device.read(compared)):
        if now != before:
            offset = part.offset + next(at for at, pair in enumerate(zip(now, before)) if pair[0] != pair[1])
            raise Refused(
                f"{lun.name} changed at byte {offset} since the first read. "
                "Another program or host writes to this device: the LUN is in use."
            )


# --- the state of the LUN in errors


@contextmanager
def _since(before: str, always: bool = True) -> Iterator[None]:
    """Add to errors of the block what this call did `before`, a sentence without its full stop; "" for nothing.

    With `always=False`, only an error with the state "nothing was written" is changed. An error without a state is not
    taken for such an error: the run may have written already.
    """
    try:
        yield
    except RelvmoiscsiError as error:
        if before and error.disk_state == NOTHING_WRITTEN:
            error.disk_state = f"{before}; nothing else was written."
        elif before and always:
            error.disk_state = f"{before}. {error.disk_state}".strip()
        raise
    except KeyboardInterrupt as stop:
        state, advice = interruption(stop)
        if before and state == NOTHING_WRITTEN:
            stop.args = (f"{before}; nothing else was written.", advice)
        elif before and state and always:
            stop.args = (f"{before}. {state}", advice)
        raise


# --- the record


@contextmanager
def recording(host: Host) -> Iterator[None]:
    """Write the record of each run in the block to SMlog, or to syslog on a machine without SM."""
    handler = SmLogHandler() if sm_locks.is_sm_here(host) else SmLogHandler((), "relvmoiscsi", syslog.LOG_USER)
    record.addHandler(handler)
    record.setLevel(logging.INFO)
    record.propagate = False
    try:
        yield
    finally:
        record.removeHandler(handler)
        record.propagate = True


def _recorded(lun: OpenLun, outcome: CompletedRun) -> CompletedRun:
    from relvmoiscsi import report  # noqa: PLC0415 - a run that ends before needs no map

    result = outcome.result
    record.info("%s: %s now. This is relvmoiscsi %s.", lun.name, result.state, __version__)
    record.info("%d writes, %d bytes, %d flushes", result.writes, result.bytes_written, result.flushes)
    for line in report.whole_map_lines(result.lun, result.ids) if result.ids is not None else []:
        record.info("%s", line)
    return outcome
