# SPDX-License-Identifier: LGPL-2.1-only
"""The state of a device: no SR, or an SR that is clean, unfinished, resignatured or damaged, with each defect. Pure."""

from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.device import Device
from relvmoiscsi.errors import (
    DeviceError,
    FormatError,
    Malformed,
    NotFound,
    Place,
    Refused,
    RelvmoiscsiError,
    Unfinished,
    reading,
)
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.merge.vdi_choice import OneVdiRequest, has_one_row
from relvmoiscsi.resignature.planning import collapse
from relvmoiscsi.resignature.planning.collapse import Cost
from relvmoiscsi.resignature.protocol import sentences
from relvmoiscsi.resignature.protocol.commit_record import DONE, RESIGNATURE, CommitRecord, read_commit_record
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.contradictions import contradictions
from relvmoiscsi.resignature.reading.left_behind import settle
from relvmoiscsi.resignature.reading.lun_contents import Lun, verify_lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.reading.way_out import tell_way_out
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


class OneVdiOutlook(NamedTuple):
    """Whether a LUN has one VDI, or a resignature can make one VDI of the LUN."""

    state: str  #: IS_ONE, CAN_BE_ONE or CANNOT_BE_ONE
    cost: Optional[Cost] = None  #: with CAN_BE_ONE
    problem: Optional[RelvmoiscsiError] = None  #: the reason, with CANNOT_BE_ONE


def inspect(device: Device) -> Inspection:
    """Read a device and give its state. Raises DeviceError when a read fails, and nothing else for any content.

    The result has each defect of a damaged LUN. `prepare` raises the first defect.
    """
    found = _inspected(device)
    for error in (found.problem, *found.defects):
        if isinstance(error, FormatError):
            tell_way_out(error, device.name)
    return found


def _inspected(device: Device) -> Inspection:
    cache = ReadCache(device)
    try:
        label = survey.read_label(cache)
    except NotFound as problem:
        return Inspection(EMPTY, problem=problem)
    except Refused as problem:
        return Inspection(FOREIGN, problem=problem)
    except FormatError as problem:
        return Inspection(DAMAGED, problem=problem, defects=(problem,))
    try:
        record = read_commit_record(label, Place(device.name, label.offset))
    except FormatError as problem:
        return Inspection(DAMAGED, problem=problem, defects=(problem,))
    run = earlier_run.run_or_none(cache, record, label)
    if record is not None and record.phase != DONE:
        return Inspection(UNFINISHED, commit_record=record, run=run, problem=_why_unfinished(cache, record))
    return _inspect_at_rest(cache, label, record, run)


def _why_unfinished(device: Device, record: CommitRecord) -> Unfinished:
    """The error for a LUN with a run that was cut; the message says how to settle the run."""
    try:
        mark = earlier_run.find_unfinished(device)
    except FormatError:
        mark = None
    if mark is None:
        return Unfinished(sentences.journal_lost(device.name, record))
    return cut_run.cut(device, mark)


def _inspect_at_rest(device: Device, label: Label, record: Optional[CommitRecord], run: Optional[Run]) -> Inspection:
    """The state of a LUN without an unfinished run."""
    defects: List[RelvmoiscsiError] = []
    lun = None
    try:
        lun = survey.read_lun(device, label, on_defect=defects.append)
    except Refused as problem:
        if not defects:
            return Inspection(FOREIGN, commit_record=record, problem=problem)
        defects.append(problem)
    except FormatError as problem:
        defects.append(problem)
    except DeviceError as problem:
        if not defects:
            raise
        defects.append(problem)
    if defects:
        readable = lun._replace(work=None) if lun is not None else None  # a damaged LUN is only shown
        return Inspection(DAMAGED, None, record, None, defects[0], tuple(defects), readable)
    return Inspection(state_of(record), lun, record, run, contradictions=contradictions(lun) if lun else ())


def defects_of(lun: Lun) -> Tuple[RelvmoiscsiError, ...]:
    """The defects of a LUN as `survey.read_contents` has read it, also of volumes that a request drops. Pure."""
    found: List[RelvmoiscsiError] = []
    with reading(found.append):
        lun = settle(lun)
    verify_lun(lun.settled(), found.append)
    return tuple(found)


def one_vdi(device: Device, lun: Lun) -> OneVdiOutlook:
    """Whether a resignature can make one VDI of a LUN that `inspect` has found. Writes nothing.

    Reads the block tables of the chain, and the bitmaps of blocks that no batmap marks as full. Raises DeviceError when
    a read fails, and nothing else for any content.
    """
    try:
        cost = collapse.make_one(device, lun, OneVdiRequest()).cost
    except (Refused, FormatError, DeviceError) as problem:
        return OneVdiOutlook(CANNOT_BE_ONE, problem=problem)
    return OneVdiOutlook(IS_ONE) if has_one_row(lun.settled()) else OneVdiOutlook(CAN_BE_ONE, cost)


def state_of(record: Optional[CommitRecord]) -> str:
    """The state of a LUN without an unfinished run."""
    return RESIGNATURED if record is not None and record.kind == RESIGNATURE else CLEAN
