# SPDX-License-Identifier: LGPL-2.1-only
"""What is on a device: no SR, or an SR that is clean, unfinished, resignatured or damaged, with each defect. Pure."""

from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.device import Device
from relvmoiscsi.errors import DeviceError, FormatError, NotFound, Place, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.merge.choice import OneVdiRequest, has_one_row
from relvmoiscsi.resignature.planning import collapse
from relvmoiscsi.resignature.planning.collapse import Cost
from relvmoiscsi.resignature.protocol import sentences
from relvmoiscsi.resignature.protocol.commit_record import DONE, RESIGNATURE, CommitRecord, read_commit_record
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.lun_contents import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.recovery import cut_run, earlier_run

EMPTY, FOREIGN, CLEAN = "empty", "foreign", "clean"
UNFINISHED, RESIGNATURED, DAMAGED = "unfinished", "resignatured", "damaged"
IS_ONE, CAN_BE_ONE, CANNOT_BE_ONE = "is", "can be", "cannot be"


class Inspection(NamedTuple):
    """What is on a device. `problem` says why there is no `lun`."""

    state: str
    lun: Optional[Lun] = None
    commit_record: Optional[CommitRecord] = None
    run: Optional[Run] = None  #: of the journal, where it still lies on the LUN
    problem: Optional[RelvmoiscsiError] = None
    defects: Tuple[RelvmoiscsiError, ...] = ()  #: of a LUN that is damaged: all that were found, `problem` first
    readable: Optional[Lun] = None  #: what can be read of such a LUN, for telling; nothing may be planned with it


class OneVdiOutlook(NamedTuple):
    """Whether a LUN is one with a single VDI, or can be made one."""

    state: str  #: IS_ONE, CAN_BE_ONE or CANNOT_BE_ONE
    cost: Optional[Cost] = None  #: of making it one
    problem: Optional[RelvmoiscsiError] = None  #: why it cannot be


def inspect(device: Device) -> Inspection:
    """What is on a device. Raises DeviceError only: whatever the disk holds is an answer.

    A damaged LUN is read to its end, and each defect is told. `prepare` stops at the first of them.
    """
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
    """What to say of a run that was cut: the way on."""
    try:
        mark = earlier_run.find_unfinished(device)
    except FormatError:
        mark = None
    if mark is None:
        return Unfinished(sentences.journal_lost(device.name, record))
    return cut_run.cut(device, mark)


def _inspect_at_rest(device: Device, label: Label, record: Optional[CommitRecord], run: Optional[Run]) -> Inspection:
    """What is on a LUN without an unfinished run, as far as it reads."""
    defects: List[RelvmoiscsiError] = []
    lun = None

    def keep(defect: FormatError) -> None:
        if defect not in defects:  # one object: what does not read may be met again where parts are compared
            defects.append(defect)

    try:
        lun = survey.read_lun(device, label, on_defect=keep)
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
        readable = lun._replace(work=None) if lun is not None else None  # its work is not going to be finished
        return Inspection(DAMAGED, None, record, None, defects[0], tuple(defects), readable)
    return Inspection(state_of(record), lun, record, run)


def one_vdi(device: Device, lun: Lun) -> OneVdiOutlook:
    """Whether the LUN that `inspect` has found can be made one with a single VDI. Whatever is on it is an answer.

    Nothing is written. Of a chain the block tables are read, and the bitmaps of blocks that are not known to be full.
    """
    try:
        cost = collapse.make_one(device, lun, OneVdiRequest()).cost
    except (Refused, FormatError, DeviceError) as problem:
        return OneVdiOutlook(CANNOT_BE_ONE, problem=problem)
    return OneVdiOutlook(IS_ONE) if has_one_row(lun.settled()) else OneVdiOutlook(CAN_BE_ONE, cost)


def state_of(record: Optional[CommitRecord]) -> str:
    """The state of a LUN without an unfinished run."""
    return RESIGNATURED if record is not None and record.kind == RESIGNATURE else CLEAN
