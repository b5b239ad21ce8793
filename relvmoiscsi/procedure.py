# SPDX-License-Identifier: LGPL-2.1-only
"""Resignature a LUN in any state that an earlier run has left. The command and the driver share this sequence.

Each caller passes a `Voice`: the Voice prints, asks, locks, and may refuse. The step for each state of the LUN:

    no run; or a finished run, with `again`                     a new run
    a finished run for this LUN                                 AlreadyDone
    a run interrupted before its commit                         roll back, then a new run
    a run interrupted after its commit                          finish, with the ids on the LUN
    the same, and the LUN is a copy of the run's LUN,
    or the run keeps other VDIs than requested                  finish and undo, then a new run
    the same, and the run has dropped VDIs                      finish; then a new run on a copy, or a refusal
    an interrupted undo                                         roll back or finish, then as above
"""

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Any, ContextManager, Iterator, NamedTuple, Tuple, Union

from relvmoiscsi import engine
from relvmoiscsi.device import Device
from relvmoiscsi.engine import UNDO, AlreadyDone, Mark, Prepared, ResignatureRequest, Result, Run, fits
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, Unfinished, in_state
from relvmoiscsi.formats.identity import Entropy
from relvmoiscsi.wording import human_size

__all__ = [
    "BEFORE_COMMIT", "OF_A_COPY", "OTHER_VDIS", "Outcome", "Voice", "check_copy", "replaced_srs",
    "resignature",
]  # fmt: skip

#: why a run is rolled back
OF_A_COPY, OTHER_VDIS, BEFORE_COMMIT = "of a copy", "other VDIs", "before its commit"


class Voice(ABC):
    """The caller's side of a resignature: messages, questions, locks."""

    @abstractmethod
    def agrees_to_settle(self, mark: Mark, take_back: str, problem: Unfinished) -> None:
        """Called before an interrupted run is finished, or rolled back; `take_back` is the reason of a rollback.

        Exceptions propagate; nothing was written.
        """

    @abstractmethod
    def agrees_to(self, prepared: Prepared) -> bool:
        """Called before a new run; False stops after the plan. Exceptions propagate; the run has written nothing."""

    @abstractmethod
    def locks(self, run: Run) -> ContextManager[Any]:
        """Return the locks for writing, finishing or rolling back a run."""

    @abstractmethod
    def copying(self, done: int, total: int) -> None:
        """Called during the copying of guest data, with the copied bytes and the total bytes.

        Only a reduction of several images to one VDI copies data.
        """

    @abstractmethod
    def reading_back(self, done: int, total: int) -> None:
        """Called during the read-back of the copy, under the locks, before the LUN changes visibly."""

    @abstractmethod
    def has_settled(self, mark: Mark, result: Result) -> None:
        """Called after an interrupted run was settled. A new run may follow."""


class Outcome(NamedTuple):
    """A completed run."""

    result: Result
    was_cut: bool  #: the completed run is an interrupted run that was finished now


def resignature(
    device: Device,
    entropy: Entropy,
    voice: Voice,
    request: ResignatureRequest = ResignatureRequest(),  # noqa: B008 - a tuple
) -> Union[Outcome, AlreadyDone, Prepared]:
    """Resignature the LUN. Return an Outcome, AlreadyDone, or the plan where `agrees_to` returned False.

    Raises the errors of `engine.prepare`, `engine.resignature`, `engine.recover` and `engine.undo`, and of the Voice.
    """
    try:
        prepared = engine.prepare(device, entropy, request)
    except Unfinished as problem:
        settled = _settle(device, entropy, voice, request, problem)
        if isinstance(settled, Outcome):
            return settled
        with _since(settled):
            return _carried_out(device, voice, engine.prepare(device, entropy, request))
    return _carried_out(device, voice, prepared)


def _carried_out(
    device: Device, voice: Voice, prepared: Union[Prepared, AlreadyDone]
) -> Union[Outcome, AlreadyDone, Prepared]:
    if isinstance(prepared, AlreadyDone) or not voice.agrees_to(prepared):
        return prepared
    prepared = engine.copy_unseen(device, prepared, voice.copying)
    begun = "A new image was begun where nobody sees it" if prepared.writes else ""
    with _since(begun, always=False), voice.locks(prepared.plan.run):
        return Outcome(engine.resignature(device, prepared, voice.reading_back), was_cut=False)


def check_copy(device: Device, size_bytes: int) -> None:
    """Raises Refused when the device reports that a copy of this size would take hours."""
    limit = getattr(device, "copy_limit_bytes", None)
    if limit is not None and size_bytes > limit:
        raise Refused(
            f"The target demands digests, and the kernel of this machine has no CRC32C for them: copying "
            f"{human_size(size_bytes)} of guest data would take very long. Allow a login without digests at the "
            "array, or load the kernel module algif_hash."
        ).in_state(NOTHING_WRITTEN)


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


def replaced_srs(mark: Mark, take_back: str) -> Tuple[str, ...]:
    """Return the UUIDs of the SRs that the LUN holds before a rollback and the new run behind it, and not afterwards.

    Finishing a run replaces nothing: the LUN holds the new SR since the commit. Nor does a rollback of an undo.
    """
    ids = mark.journal.run.ids
    if not take_back or mark.commit_record.kind == UNDO:
        return ()
    return (ids.sr,) if engine.goes_back(mark) else (ids.sr, ids.new_sr)


def _settle(
    device: Device, entropy: Entropy, voice: Voice, request: ResignatureRequest, problem: Unfinished
) -> Union[Outcome, str]:
    """Settle an interrupted run. Return the Outcome; or a sentence on the settled run, where a new run must follow."""
    mark = engine.find_unfinished(device)
    if mark is None:  # another caller has settled the run
        return ""
    run = mark.journal.run
    why = _why_not_finished(mark, request)
    take_back = why if run.rebuilt is None or engine.goes_back(mark) else ""
    is_undone = take_back and not engine.goes_back(mark)
    voice.agrees_to_settle(mark, take_back, problem)
    with voice.locks(run):
        known = None if why else request.scsi_id  # a copy may be finished here, because a new run follows
        result = engine.undo(device, entropy) if is_undone else engine.recover(device, mark, known)
    voice.has_settled(mark, result)
    if mark.commit_record.kind == UNDO:
        return "The undo was taken back" if engine.goes_back(mark) else "The undo was finished"
    if take_back:
        return "The resignature that was cut was taken back"
    if why:  # one VDI cannot be undone after the commit; `prepare` checks the VDIs for the new run
        return "The resignature that was cut was finished"
    with in_state("The resignature that was cut was finished."):
        engine.refuse_databases(device.name, result.lun, request.clear_databases)
        engine.refuse_left_behind(device.name, result.lun, run, request.without)
    return Outcome(result, was_cut=True)


def _why_not_finished(mark: Mark, request: ResignatureRequest) -> str:
    """Return why an interrupted run is not finished; "" for a run to finish."""
    run, is_undo = mark.journal.run, mark.commit_record.kind == UNDO
    if not is_undo and None not in (run.scsi_id, request.scsi_id) and run.scsi_id != request.scsi_id:
        return OF_A_COPY
    if engine.goes_back(mark):
        return BEFORE_COMMIT
    return "" if is_undo or fits(run, request.one) else OTHER_VDIS
