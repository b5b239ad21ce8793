# SPDX-License-Identifier: LGPL-2.1-only
"""What can be done with a LUN: look at it, resignature it, finish what was cut, take it back, compare it.

    found = engine.inspect(device)                       # never raises for what is on the disk
    wanted = engine.ResignatureRequest(scsi_id=scsi_id)  # what is asked for
    plan = engine.prepare(device, os.urandom, wanted)    # reads, plans, checks; writes nothing
    result = engine.resignature(device, plan)            # writes

Everything comes in as an argument: the device, entropy, the SCSIid. What must be held while a device is written,
exclusive opening and LVM's locks, is the caller's; `vg_names` says which names to lock.
"""

import logging
from typing import NamedTuple, Optional, Tuple, Union

from relvmoiscsi import __version__
from relvmoiscsi.device import CountingDevice, Device
from relvmoiscsi.errors import NOTHING_WRITTEN, FormatError, NotFound, Place, Refused, Unfinished, in_state
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import Entropy, IdMap
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.compare import Comparison, compare
from relvmoiscsi.resignature.inspection import (
    CAN_BE_ONE,
    CANNOT_BE_ONE,
    CLEAN,
    DAMAGED,
    EMPTY,
    FOREIGN,
    IS_ONE,
    RESIGNATURED,
    UNFINISHED,
    Inspection,
    OneVdiOutlook,
    inspect,
    one_vdi,
    state_of,
)
from relvmoiscsi.resignature.merge import choice
from relvmoiscsi.resignature.merge.choice import OneVdiRequest, fits, named_now, said_who_asks
from relvmoiscsi.resignature.planning import collapse, new_ids, run_plan
from relvmoiscsi.resignature.planning.collapse import Cost
from relvmoiscsi.resignature.planning.plan_check import check_plan
from relvmoiscsi.resignature.planning.run_plan import NEW_IMAGE, Plan, Planned
from relvmoiscsi.resignature.protocol import sentences, steps
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    IN_PROGRESS,
    KINDS,
    RESIGNATURE,
    SWITCHED,
    UNDO,
    CommitRecord,
    is_of_another_lun,
    read_commit_record,
    scsi_id_digest,
)
from relvmoiscsi.resignature.protocol.journal import Mark
from relvmoiscsi.resignature.protocol.rebuilt import EMPTY_UNIT, FULL_UNIT, Unseen
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.lun_contents import Lun, Unreadable, Volume
from relvmoiscsi.resignature.reading.lun_notes import notes
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.reading.sm_work import databases, without_databases
from relvmoiscsi.resignature.reading.volumes import saved
from relvmoiscsi.resignature.recovery import cut_run, earlier_run
from relvmoiscsi.resignature.recovery.undo import prepare_undo
from relvmoiscsi.resignature.writing import apply
from relvmoiscsi.resignature.writing.copying import Progress

__all__ = [  # what docs/python.rst describes, and what stays
    "AlreadyDone", "Comparison", "Inspection", "OneVdiRequest", "Prepared", "ResignatureRequest", "Result",
    "compare", "inspect", "prepare", "recover", "resignature", "undo",
]  # fmt: skip
PROMISED = tuple(__all__)
__all__ += [  # for the rest of the package, which imports nothing from `resignature`; this may change
    "CAN_BE_ONE", "CANNOT_BE_ONE", "CLEAN", "DAMAGED", "EMPTY", "FOREIGN", "IS_ONE", "RESIGNATURED", "UNFINISHED",
    "DONE", "IN_PROGRESS", "KINDS", "RESIGNATURE", "SWITCHED", "UNDO", "Mark", "Run", "CommitRecord",
    "EMPTY_UNIT", "FULL_UNIT", "NEW_IMAGE", "Cost", "Plan", "Planned", "Progress", "steps",
    "Lun", "Unreadable", "Volume", "databases", "notes", "saved",
    "OneVdiOutlook", "fits", "one_vdi", "refuse_other_vdis",
    "copy_unseen", "find_done", "find_unfinished", "goes_back", "has_new_identities", "is_of_another_lun",
    "read_undoable", "vg_names",
]  # fmt: skip

log = logging.getLogger(__name__)


class ResignatureRequest(NamedTuple):
    """What is asked of a resignature."""

    scsi_id: Optional[str] = None  #: of this LUN; a finished run for the same SCSIid is not repeated
    chosen: Optional[IdMap] = None  #: some of the new ids
    again: bool = False  #: resignature a LUN that is resignatured already
    sr_uuid: Optional[str] = None  #: of the new SR; None for a random UUID
    one: Optional[OneVdiRequest] = None  #: make a LUN with one VDI
    clear_databases: bool = False  #: take out of MGT which VDIs hold the database of a pool


class Result(NamedTuple):
    """What was done, or, with a `plan` and no writes, what would be."""

    state: str
    lun: Optional[Lun]
    ids: Optional[IdMap]  #: None when the LUN was resignatured and LVM has reclaimed the journal since
    scsi_id: Optional[str]
    already_done: bool = False
    writes: int = 0
    bytes_written: int = 0
    flushes: int = 0
    reads: int = 0
    read_batches: int = 0


class AlreadyDone(NamedTuple):
    """The LUN holds a finished resignature for this SCSIid: there is nothing to do. It may be in use."""

    sr_uuid: str  #: the SR that the LUN holds now
    run: Optional[Run]


class Prepared(NamedTuple):
    """A checked plan, and what it was made of."""

    state: str  #: of the LUN as it is: CLEAN, or RESIGNATURED when it is done again
    plan: Plan
    lun: Lun  #: as found
    reads: int
    read_batches: int
    cost: Optional[Cost] = None  #: of making it one VDI
    writes: int = 0  #: that are made already: see `copy_unseen`
    bytes_written: int = 0


# --- resignature


def prepare(
    device: Device,
    entropy: Entropy,
    request: ResignatureRequest = ResignatureRequest(),  # noqa: B008 - a tuple
) -> Union[Prepared, AlreadyDone]:
    """Read the LUN, plan its resignature and check what the plan leads to. Nothing is written.

    Raises Unfinished where an earlier run was cut (`recover` settles it), NotFound, Refused or FormatError for a
    LUN that will not be resignatured, UsageError for a choice that cannot be.
    """
    counting, one = CountingDevice(device), request.one
    with in_state(NOTHING_WRITTEN):
        cache = ReadCache(counting)
        label = survey.read_label(cache)
        record = read_commit_record(label, Place(device.name, label.offset))
        if record is not None and record.phase != DONE:
            raise sentences.unfinished(device.name, record)
        done = None if request.again else _done_before(cache, label, record, request.scsi_id)
        if done is not None:
            found = survey.read_lun(cache, label)
            with said_who_asks(one):
                refuse_other_vdis(cache, found, done.run, one)
            return done
        lun = survey.read_lun(cache, label)
        lun = without_databases(lun) if request.clear_databases else lun
        if one is not None and one.vdi is not None:
            one = one._replace(vdi=named_now(one.vdi, lun, earlier_run.run_or_none(cache, record, label)))
        with said_who_asks(one):
            way = collapse.make_one(cache, lun, one, int.from_bytes(entropy(8), "big")) if one is not None else None
        lun = way.lun if way is not None else lun
        ids = new_ids.choose_ids(lun, entropy, request.chosen, request.sr_uuid)
        block_bytes = run_plan.block_bytes_of(lun, device)
        image = way.image(cache, ids) if way is not None else None
        rebuilt = image.rebuilt if image is not None else None
        kept = way.leaf.name.uuid if way is not None else None
        made = run_plan.plan_resignature(
            lun, cache.read, block_bytes, ids, entropy(16), request.scsi_id, __version__, rebuilt, kept
        )
        made = made._replace(unseen=image.unseen if image is not None else Unseen())
        check_plan(cache, lun, made)
    cost = way.cost if way is not None else None
    return Prepared(state_of(record), made, lun, counting.reads, counting.read_batches, cost)


def refuse_other_vdis(device: Device, lun: Lun, run: Optional[Run], one: Optional[OneVdiRequest]) -> None:
    """Raises Refused where a LUN that is resignatured does not hold the VDIs that are asked for; `run` if it reads."""
    if one is None and run is not None and run.one is not None and earlier_run.has_kept_all(device, lun, run):
        return
    choice.refuse_other_vdis(device.name, lun, run, one)


def find_done(device: Device, scsi_id: Optional[str] = None) -> Optional[AlreadyDone]:
    """The finished resignature of this very LUN, which may be in use by now; None where there is more to be looked at.

    Raises nothing for what is on the disk: `prepare` says it.
    """
    try:
        label = survey.read_label(device)
        record = read_commit_record(label, Place(device.name, label.offset))
        return _done_before(device, label, record, scsi_id)
    except (FormatError, Refused, NotFound) as problem:
        log.debug("%s: %s", device.name, problem)
        return None


def has_new_identities(device: Device, scsi_id: str) -> bool:
    """Do stock tools see the new SR of a resignature made for this SCSIid, finished or not? False for what is neither.

    Raises DeviceError.
    """
    try:
        label = survey.read_label(device)
        record = read_commit_record(label, Place(device.name, label.offset))
    except (FormatError, Refused, NotFound):
        return False
    is_after = record is not None and record.kind == RESIGNATURE and record.phase != IN_PROGRESS
    return is_after and record is not None and record.scsi_id_digest == scsi_id_digest(scsi_id)


def _done_before(
    device: Device, label: Label, record: Optional[CommitRecord], scsi_id: Optional[str]
) -> Optional[AlreadyDone]:
    """What the mark of a finished resignature says, if it was made for this very LUN. Raises as `is_same_lun` does."""
    if (
        record is None
        or record.phase != DONE
        or record.kind != RESIGNATURE
        or not earlier_run.is_same_lun(device.name, record, scsi_id)
    ):
        return None
    return AlreadyDone(survey.read_sr_uuid(device, label), earlier_run.run_or_none(device, record, label))


def vg_names(run: Run) -> Tuple[str, str]:
    """The old and the new name of the volume group: what to lock while the run is carried out."""
    return naming.VG_PREFIX + run.ids.sr, naming.VG_PREFIX + run.ids.new_sr


def copy_unseen(device: Device, prepared: Prepared, progress: Optional[Progress] = None) -> Prepared:
    """What a plan writes where nobody sees it before the commit, which may take its time: without LVM's locks.

    Gives what is left of the plan. `progress` is told how many bytes are copied, and how many will be. Raises as
    `resignature` does.
    """
    if not (prepared.plan.unseen.chunks or prepared.plan.unseen.copies):
        return prepared
    counting = CountingDevice(device)
    left = apply.write_unseen(counting, prepared.plan, progress)
    return prepared._replace(
        plan=left,
        reads=prepared.reads + counting.reads,
        read_batches=prepared.read_batches + counting.read_batches,
        writes=counting.writes,
        bytes_written=counting.bytes_written,
    )


def resignature(device: Device, prepared: Prepared, progress: Optional[Progress] = None) -> Result:
    """Carry out a prepared plan. Raises Refused or DeviceError; the error says what state the device is in.

    `progress` is told how many copied bytes are read back before the mark, and what it raises goes through.
    """
    prepared = copy_unseen(device, prepared)
    counting = CountingDevice(device)
    apply.carry_out(counting, prepared.plan, progress=progress)
    run = prepared.plan.run
    return _result(counting, RESIGNATURED, prepared.lun, run)._replace(
        reads=prepared.reads + counting.reads,
        read_batches=prepared.read_batches + counting.read_batches,
        writes=prepared.writes + counting.writes,
        bytes_written=prepared.bytes_written + counting.bytes_written,
    )


def _result(counting: CountingDevice, state: str, lun: Optional[Lun], run: Run) -> Result:
    return Result(
        state=state,
        lun=lun,
        ids=run.ids,
        scsi_id=run.scsi_id,
        writes=counting.writes,
        bytes_written=counting.bytes_written,
        flushes=counting.flushes,
        reads=counting.reads,
        read_batches=counting.read_batches,
    )


# --- what was cut


def find_unfinished(device: Device) -> Optional[Mark]:
    """The run that was cut on this device; None when none was."""
    with in_state(NOTHING_WRITTEN):
        return earlier_run.find_unfinished(device)


def recover(device: Device, mark: Optional[Mark] = None, scsi_id: Optional[str] = None) -> Result:
    """Settle a run that was cut: before its commit it is taken back, behind it finished, with the ids it had chosen.

    Where none was cut, nothing is written (`already_done`). `mark` is that of `find_unfinished`, for whoever has to
    know the run before: its volume groups are to be locked.

    Raises Refused when a run that is to be finished was begun on another LUN: this one is a copy of it, and would
    become its twin.
    """
    mark = mark or find_unfinished(device)
    if mark is None:
        with in_state(NOTHING_WRITTEN):
            found = inspect(device)
            if found.problem is not None:
                raise found.problem
        ids, of = (found.run.ids, found.run.scsi_id) if found.run is not None else (None, None)
        return Result(found.state, found.lun, ids, of, already_done=True)
    counting, run = CountingDevice(device), mark.journal.run
    if goes_back(mark):
        cut_run.take_back(counting, mark)
        found = _inspect_after(device, f"The {KINDS[run.kind]} was taken back.")
        return _result(counting, found.state, found.lun, run._replace(ids=run.ids.reversed()))
    digest = scsi_id_digest(scsi_id)
    if any(digest) and any(mark.commit_record.scsi_id_digest) and digest != mark.commit_record.scsi_id_digest:
        undo_first = f"Run `relvmoiscsi undo {device.name}`, then resignature it."
        way_out = sentences.on_a_copy(device.name) if run.rebuilt is not None else undo_first
        raise Refused(
            f"{device.name} is a copy of a LUN whose resignature was cut (SCSIid {run.scsi_id}). {way_out}"
        ).in_state(NOTHING_WRITTEN)
    cut_run.finish(counting, mark)
    found = _inspect_after(device, f"The {KINDS[run.kind]} was finished.")
    return _result(counting, found.state, found.lun, run)


def goes_back(mark: Mark) -> bool:
    """Whether `recover` takes the run back: it was cut before its commit."""
    return mark.commit_record.phase == IN_PROGRESS


def _inspect_after(device: Device, done: str) -> Inspection:
    """What is on a device whose unfinished run is over; `done` says so, should the rest be unreadable."""
    with in_state(done):
        found = inspect(device)
        if found.lun is None:
            raise found.problem or Unfinished(f"{device.name} is still unfinished.")
    return found


def undo(device: Device, entropy: Entropy) -> Result:
    """Give the old identities back: take back a run that was cut, or reverse one that is done.

    Raises Refused when there is nothing to undo, or when it is too late: LVM or SM has changed what was written.
    """
    mark = read_undoable(device)
    _refuse_lost_images(device, mark)
    if mark.commit_record.phase == DONE:
        return _reverse(device, mark, entropy)
    result, is_undo = recover(device, mark), mark.commit_record.kind == UNDO
    if is_undo != goes_back(mark):  # an undo that is finished, or a resignature that was taken back
        return result
    settled = "The undo was taken back" if is_undo else "The resignature was finished"
    return _reverse(device, read_undoable(device, sentences.nothing_written(settled)), entropy, settled)


def _refuse_lost_images(device: Device, mark: Mark) -> None:
    """Old images and the new one share extents: what has been written since is in both, and slots have been reused."""
    if mark.journal.run.rebuilt is None or goes_back(mark):
        return
    way_out = f" `relvmoiscsi recover {device.name}` finishes it. {sentences.on_a_copy(device.name)}"
    finish = "" if mark.commit_record.phase == DONE else way_out
    raise Refused(
        f"{device.name} was made one VDI, and that cannot be undone behind its commit: the snapshots are gone, and the "
        f"old images share their extents with the new one.{finish}"
    ).in_state(NOTHING_WRITTEN)


def read_undoable(device: Device, untouched: str = NOTHING_WRITTEN) -> Mark:
    """The run that `undo` would take back. Raises as `undo` does, before anything is written.

    `untouched` is the sentence about the device until then.
    """
    with in_state(untouched):
        return earlier_run.find_unfinished(device) or earlier_run.finished_mark(device)


def _reverse(device: Device, mark: Mark, entropy: Entropy, before: str = "") -> Result:
    """Undo a finished run, by a run of its own. `before` begins the sentence on what has been done already."""
    with in_state(sentences.nothing_written(before)):
        made, old = prepare_undo(device, mark, entropy)
    counting = CountingDevice(device)
    apply.carry_out(counting, made, before)
    return _result(counting, CLEAN, old, made.run)
