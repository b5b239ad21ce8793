# SPDX-License-Identifier: LGPL-2.1-only
"""A resignature from whatever an earlier run has left of the LUN. The one sequence; the command and the driver each
have a voice in it, which says what is said, asks whom it asks, holds what it holds, and may say no.

    nothing, or a run that is done and another one is wanted    a new run
    a run that is done, for this LUN                            AlreadyDone
    a run that was cut before its commit                        taken back; a new run
    a run that was cut behind its commit                        finished: its ids are on the LUN
    the same, of the LUN that this is a copy of,
    or to other VDIs than wanted                                finished and undone; a new run
    the same where VDIs are gone by then                        finished; a new run on a copy, otherwise refused
    an undo that was cut                                        taken back or finished likewise; then as above
"""

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Any, ContextManager, Iterator, NamedTuple, Union

from relvmoiscsi import engine
from relvmoiscsi.device import Device
from relvmoiscsi.engine import UNDO, AlreadyDone, Mark, Prepared, ResignatureRequest, Result, Run, fits
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.formats.identity import Entropy
from relvmoiscsi.wording import human_size

__all__ = [
    "BEFORE_COMMIT", "OF_A_COPY", "OTHER_VDIS", "Outcome", "Voice", "check_copy", "resignature",
]  # fmt: skip

#: why a run is taken back
OF_A_COPY, OTHER_VDIS, BEFORE_COMMIT = "of a copy", "other VDIs", "before its commit"


class Voice(ABC):
    """Whoever wants the resignature."""

    @abstractmethod
    def agrees_to_settle(self, mark: Mark, take_back: str, problem: Unfinished) -> None:
        """Before a run that was cut is finished, or taken back: `take_back` says why. What it raises goes through;
        nothing was written.
        """

    @abstractmethod
    def agrees_to(self, prepared: Prepared) -> bool:
        """Before a new run; False: it stays at the plan. What it raises goes through; nothing was written by it."""

    @abstractmethod
    def locks(self, run: Run) -> ContextManager[Any]:
        """What is held while a run is carried out, finished or taken back."""

    @abstractmethod
    def copying(self, done: int, total: int) -> None:
        """While guest data is copied, which only one VDI of several images takes: so many bytes of so many."""

    @abstractmethod
    def reading_back(self, done: int, total: int) -> None:
        """The same while it is read back under the locks, up to the last moment at which nothing has happened."""

    @abstractmethod
    def has_settled(self, mark: Mark, result: Result) -> None:
        """A run that was cut is over. A new one may follow."""


class Outcome(NamedTuple):
    """What was carried out."""

    result: Result
    was_cut: bool  #: it was an earlier run, which is finished now


def resignature(
    device: Device,
    entropy: Entropy,
    voice: Voice,
    request: ResignatureRequest = ResignatureRequest(),  # noqa: B008 - a tuple
) -> Union[Outcome, AlreadyDone, Prepared]:
    """New identities for the LUN: an Outcome, or AlreadyDone, or the plan where the voice wanted no more.

    The errors are those of `engine.prepare`, `engine.resignature`, `engine.recover` and `engine.undo`, and whatever the
    voice raises.
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
    """Raises Refused when the device says that so many bytes of guest data would take hours to copy."""
    limit = getattr(device, "copy_limit_bytes", None)
    if limit is not None and size_bytes > limit:
        raise Refused(
            f"The target demands digests, and the kernel of this machine has no CRC32C for them: copying "
            f"{human_size(size_bytes)} of guest data would take very long. Allow a login without digests at the "
            "array, or load the kernel module algif_hash."
        ).in_state(NOTHING_WRITTEN)


@contextmanager
def _since(settled: str, always: bool = True) -> Iterator[None]:
    """Around what comes after an earlier run was settled: what an error says of the disk means since, and says so.

    Not `always`: only where it says that nothing was written.
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


def _settle(
    device: Device, entropy: Entropy, voice: Voice, request: ResignatureRequest, problem: Unfinished
) -> Union[Outcome, str]:
    """Bring a run that was cut to its end: the Outcome, or what was done where a new run is to follow."""
    mark = engine.find_unfinished(device)
    if mark is None:  # somebody has settled it since
        return ""
    run = mark.journal.run
    why = _why_not_finished(mark, request)
    take_back = why if run.rebuilt is None or engine.goes_back(mark) else ""
    is_undone = take_back and not engine.goes_back(mark)
    voice.agrees_to_settle(mark, take_back, problem)
    with voice.locks(run):
        known = None if why else request.scsi_id  # a copy may be finished here: a new run follows
        result = engine.undo(device, entropy) if is_undone else engine.recover(device, mark, known)
    voice.has_settled(mark, result)
    if mark.commit_record.kind == UNDO:
        return "The undo was taken back" if engine.goes_back(mark) else "The undo was finished"
    if take_back:
        return "The resignature that was cut was taken back"
    if why:  # there is no way back from one VDI behind the commit; what is done then is seen by who prepares anew
        return "The resignature that was cut was finished"
    return Outcome(result, was_cut=True)


def _why_not_finished(mark: Mark, request: ResignatureRequest) -> str:
    """Why a run that was cut is not finished; empty where it is."""
    run, is_undo = mark.journal.run, mark.commit_record.kind == UNDO
    if not is_undo and None not in (run.scsi_id, request.scsi_id) and run.scsi_id != request.scsi_id:
        return OF_A_COPY
    if engine.goes_back(mark):
        return BEFORE_COMMIT
    return "" if is_undo or fits(run, request.one) else OTHER_VDIS
