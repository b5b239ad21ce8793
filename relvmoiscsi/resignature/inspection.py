# SPDX-License-Identifier: LGPL-2.1-only
"""The state of a device: no SR, or an SR that is clean, unfinished, resignatured or damaged, with each defect. Pure."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.arguments import DEVICE, TEXTS, promised
from relvmoiscsi.device import Device
from relvmoiscsi.errors import (
    DeviceError,
    FormatError,
    Malformed,
    NotFound,
    Refused,
    RelvmoiscsiError,
    Truncated,
)
from relvmoiscsi.resignature.merge.strategy import Cost
from relvmoiscsi.resignature.merge.vdi_choice import has_one_row
from relvmoiscsi.resignature.planning.selection import select_one
from relvmoiscsi.resignature.problems import Problems, read_problems, tell, unsolved
from relvmoiscsi.resignature.protocol.commit_record import DONE, RESIGNATURE, CommitRecord, read_commit_record
from relvmoiscsi.resignature.protocol.run_record import Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.contradictions import contradictions, verify_resignatured
from relvmoiscsi.resignature.reading.left_behind import settle
from relvmoiscsi.resignature.reading.lun_contents import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.reading.request import OneVdiRequest, ResignatureRequest
from relvmoiscsi.resignature.recovery import cut_run, earlier_run

EMPTY, FOREIGN, CLEAN = "empty", "foreign", "clean"
UNFINISHED, RESIGNATURED, DAMAGED = "unfinished", "resignatured", "damaged"
IS_ONE, CAN_BE_ONE, CANNOT_BE_ONE = "is", "can be", "cannot be"


class Inspection(NamedTuple):
    """The content of a device. `problem` says why `lun` is None."""

    state: str
    lun: Optional[Lun] = None
    commit_record: Optional[CommitRecord] = None
    run: Optional[Run] = None  #: from the journal; None after LVM has overwritten the journal
    problem: Optional[RelvmoiscsiError] = None
    defects: Tuple[RelvmoiscsiError, ...] = ()  #: all defects of a damaged LUN, `problem` first
    readable: Optional[Lun] = None  #: the readable part of a damaged LUN, for `show`; never plan with this
    contradictions: Tuple[Malformed, ...] = ()  #: of parts of `lun` that read well; a resignature carries them over
    #: why a LUN is clean, of which the label says that it was resignatured
    unproven: Optional[Refused] = None
    knows_run: bool = True  #: False where no label with a commit record reads: a run may be interrupted

    @property
    def is_truncated(self) -> bool:
        """Whether the device ends before the last extent of LVM, or before the end of LVM's metadata."""
        return isinstance(self.problem, Truncated) if self.readable is None else self.readable.is_truncated


class OneVdiOutlook(NamedTuple):
    """Whether a LUN has one VDI, or a resignature can make one VDI of the LUN."""

    state: str  #: IS_ONE, CAN_BE_ONE or CANNOT_BE_ONE
    cost: Optional[Cost] = None  #: with CAN_BE_ONE
    problem: Optional[RelvmoiscsiError] = None  #: the reason, with CANNOT_BE_ONE


@promised(device=DEVICE, words=TEXTS)
def inspect(device: Device, words: Sequence[str] = ()) -> Inspection:
    """Read a device and give its state. Raises DeviceError when a read fails, and nothing else for any content.

    The result has each defect of a damaged LUN. `prepare` raises the first defect; its message says what leads on from
    all defects. `words` are the command to resignature the LUN, for this message.
    """
    cache = ReadCache(device)
    try:
        label = survey.read_label(cache)
    except NotFound as problem:
        return Inspection(EMPTY, problem=problem, knows_run=False)
    except Refused as problem:
        return Inspection(FOREIGN, problem=problem, knows_run=False)
    except FormatError as problem:
        return _damaged(device, unsolved(problem), words)._replace(knows_run=False)
    try:
        record = read_commit_record(label, device.name)
    except FormatError as problem:
        return _damaged(device, unsolved(problem), words)._replace(knows_run=False)
    if record is not None and record.phase != DONE:
        run = earlier_run.run_or_none(cache, record, label)
        return Inspection(UNFINISHED, commit_record=record, run=run, problem=cut_run.cut(cache, record))
    try:
        problems = read_problems(cache, label)
    except Refused as problem:
        return Inspection(FOREIGN, commit_record=record, problem=problem)
    if problems.found or problems.lun is None:
        is_again = problems.lun is not None and state_of(record, problems.lun) == RESIGNATURED
        return _damaged(device, problems, words, is_again)
    lun = settle(problems.lun)
    state = state_of(record, lun)
    if state == RESIGNATURED:
        defects: List[FormatError] = []
        verify_resignatured(lun, defects.append)
        if defects:
            return _damaged(device, unsolved(*defects)._replace(lun=problems.lun), words, is_again=True)
    found = Inspection(state, lun, contradictions=contradictions(lun))
    if record is not None and record.kind == RESIGNATURE and state == CLEAN:
        return found._replace(unproven=_unproven(device.name))
    return found._replace(commit_record=record, run=earlier_run.run_or_none(cache, record, label, lun))


def _unproven(name: str) -> Refused:
    return Refused(
        f"The label says that {name} was resignatured. But the ids of its PV and VG are not those of a resignature."
    )


def _damaged(device: Device, problems: Problems, words: Sequence[str], is_again: bool = False) -> Inspection:
    first = problems.found[0]
    if isinstance(first, FormatError):
        tell(first, device.name, problems, ResignatureRequest(again=is_again, words=tuple(words)))
    return Inspection(DAMAGED, None, None, None, first, problems.found, problems.lun)


def one_vdi(device: Device, lun: Lun) -> OneVdiOutlook:
    """Whether a resignature can make one VDI of a LUN that `inspect` has found. Writes nothing.

    Reads the block tables of the chain, and the bitmaps of blocks that no batmap marks as full. Raises DeviceError when
    a read fails, and nothing else for any content.
    """
    try:
        cost = select_one(device, lun, OneVdiRequest()).cost
    except (Refused, FormatError, DeviceError) as problem:
        return OneVdiOutlook(CANNOT_BE_ONE, problem=problem)
    return OneVdiOutlook(IS_ONE) if has_one_row(lun.settled()) else OneVdiOutlook(CAN_BE_ONE, cost)


def state_of(record: Optional[CommitRecord], lun: Lun) -> str:
    """The state of a LUN with this content, and without an unfinished run."""
    return RESIGNATURED if earlier_run.has_new_ids(record, lun) else CLEAN
