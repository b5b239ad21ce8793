# SPDX-License-Identifier: LGPL-2.1-only
"""The operations on a LUN: inspect, prepare, resignature, recover, undo, compare.

    found = engine.inspect(device)                       # raises no error for the content of the disk
    wanted = engine.ResignatureRequest(scsi_id=scsi_id)  # the request
    plan = engine.prepare(device, os.urandom, wanted)    # reads, plans, checks; writes nothing
    result = engine.resignature(device, plan)            # writes

All inputs are arguments: the device, entropy, the SCSIid. During a write, the caller must have opened the device
exclusively, and must hold LVM's locks. `vg_names` returns the VG names to lock.
"""

import logging
from typing import NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi.arguments import DEVICE, ENTROPY, FUNCTION, TEXT, an, optional, promised
from relvmoiscsi.device import CountingDevice, Device
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    FormatError,
    NotFound,
    Refused,
    RelvmoiscsiError,
    UsageError,
    in_state,
)
from relvmoiscsi.formats import mapfile, naming
from relvmoiscsi.formats.identity import Entropy, IdMap, derived_uuid
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.compare import (
    BOTH_RESIGNATURED,
    CHANGED_SINCE,
    EXCHANGED,
    ONE_VDI,
    Comparison,
    compare,
)
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
from relvmoiscsi.resignature.merge import vdi_choice
from relvmoiscsi.resignature.merge.strategy import Cost
from relvmoiscsi.resignature.merge.vdi_choice import fits, named_now
from relvmoiscsi.resignature.planning import new_ids, run_plan
from relvmoiscsi.resignature.planning.plan_check import check_plan
from relvmoiscsi.resignature.planning.run_plan import NEW_IMAGE, Plan, Planned
from relvmoiscsi.resignature.planning.selection import select_vdis
from relvmoiscsi.resignature.problems import problems_of, refuse_losing_all, tell, telling, unsolved
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
    proves,
    read_commit_record,
    scsi_id_digest,
)
from relvmoiscsi.resignature.protocol.journal import EarlierRun
from relvmoiscsi.resignature.protocol.merged_image import EMPTY_UNIT, FULL_UNIT
from relvmoiscsi.resignature.protocol.run_record import Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.contradictions import verify_resignatured
from relvmoiscsi.resignature.reading.left_behind import no_volume, settle
from relvmoiscsi.resignature.reading.lun_contents import CHECK_ORIGINAL, TAKE_WHOLE, Lun, Volume
from relvmoiscsi.resignature.reading.lun_notes import notes
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.reading.request import OneVdiRequest, ResignatureRequest, naming_who_asks
from relvmoiscsi.resignature.reading.sm_work import database_pools, databases, without_databases
from relvmoiscsi.resignature.reading.survey import GIVE_CLONE
from relvmoiscsi.resignature.reading.volumes import saved
from relvmoiscsi.resignature.recovery import cut_run, earlier_run
from relvmoiscsi.resignature.recovery.cut_run import verify_recoverable
from relvmoiscsi.resignature.recovery.earlier_run import LaterCopy
from relvmoiscsi.resignature.recovery.undo import prepare_undo
from relvmoiscsi.resignature.writing import apply
from relvmoiscsi.resignature.writing.copying import Progress
from relvmoiscsi.scsi_id_text import named_scsi_id
from relvmoiscsi.wording import shell_command

__all__ = [  # described in docs/python.rst, and stable
    "AlreadyDone", "Comparison", "Inspection", "OneVdiRequest", "Prepared", "ResignatureRequest", "Result",
    "compare", "inspect", "prepare", "recover", "resignature", "undo",
]  # fmt: skip
PROMISED = tuple(__all__)
__all__ += [  # for the other packages, which import nothing from `resignature`; may change
    "CAN_BE_ONE", "CANNOT_BE_ONE", "CLEAN", "DAMAGED", "EMPTY", "FOREIGN", "IS_ONE", "RESIGNATURED", "UNFINISHED",
    "EXCHANGED", "ONE_VDI", "DONE", "IN_PROGRESS", "KINDS", "RESIGNATURE", "SWITCHED", "UNDO", "EarlierRun", "Run",
    "BOTH_RESIGNATURED", "CHANGED_SINCE", "CommitRecord",
    "EMPTY_UNIT", "FULL_UNIT", "NEW_IMAGE", "Cost", "LaterCopy", "Plan", "Planned", "Progress", "steps",
    "CHECK_ORIGINAL", "GIVE_CLONE", "TAKE_WHOLE", "Lun", "Volume", "database_pools", "databases", "notes", "saved",
    "OneVdiOutlook", "fits", "one_vdi",
    "copy_unseen", "end_cut", "find_done", "find_unfinished", "goes_back", "is_of_another_lun", "new_sr_of",
    "read_undoable", "verify_recoverable", "verify_undoable", "vg_names",
]  # fmt: skip

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """What a run has done; with a `plan` and no writes, what a run would do."""

    state: str
    lun: Optional[Lun]
    ids: Optional[IdMap]  #: None when the LUN was resignatured and LVM has overwritten the journal since
    scsi_id: Optional[str]
    already_done: bool = False
    writes: int = 0
    bytes_written: int = 0
    flushes: int = 0
    reads: int = 0
    read_batches: int = 0


class AlreadyDone(NamedTuple):
    """The LUN holds a finished resignature for this SCSIid, and all its metadata was read. Nothing remains to be done.

    The LUN may be in use. The commit record alone proves nothing: whoever writes to the LUN can write the record, or
    damage the rest later. So no LUN is done without its `content`, whose PV and VG prove the record.
    """

    content: Lun  #: verified
    run: Optional[Run]

    @property
    def sr_uuid(self) -> str:
        """UUID of the SR on the LUN now."""
        return self.content.sr_uuid

    def __repr__(self) -> str:
        return f"AlreadyDone(sr_uuid={self.sr_uuid!r}, run={self.run!r})"


class Prepared(NamedTuple):
    """A checked plan, and the data behind the plan."""

    state: str  #: of the LUN now, as `inspect` gives it: DAMAGED with `defects`, RESIGNATURED for a second resignature
    plan: Plan
    lun: Lun  #: as read
    device: str  #: name of the device that the plan is for
    reads: int
    read_batches: int
    cost: Optional[Cost] = None  #: of reducing the LUN to one VDI
    defects: Tuple[RelvmoiscsiError, ...] = ()  #: of the LUN with the volumes that the request drops
    writes: int = 0  #: writes that `copy_unseen` has made
    bytes_written: int = 0
    later_copy: Optional[LaterCopy] = None  #: the LUN carries the finished resignature of another SCSIid

    def __repr__(self) -> str:
        return f"Prepared(state={self.state!r}, plan={self.plan!r}, lun={self.lun!r})"


# --- resignature


@promised(device=DEVICE, entropy=ENTROPY, request=an("a ResignatureRequest", ResignatureRequest))
def prepare(
    device: Device,
    entropy: Entropy,
    request: ResignatureRequest = ResignatureRequest(),  # noqa: B008 - a tuple
) -> Union[Prepared, AlreadyDone]:
    """Read the LUN, plan its resignature and check the result of the plan. Nothing is written.

    Raises Unfinished where an earlier run was interrupted (`recover` ends the run). Raises NotFound, Refused or
    FormatError for a LUN that cannot be resignatured or recovered, UsageError for an invalid choice.
    """
    counting = CountingDevice(device)
    cache = ReadCache(counting)
    with in_state(NOTHING_WRITTEN):
        request = request.checked()
        try:
            label = survey.read_label(cache)
        except FormatError as error:
            tell(error, device.name, unsolved(error), request)
            raise
        with telling(cache, label, request):
            record = read_commit_record(label, device.name)
        if record is not None and record.phase != DONE:
            raise cut_run.cut(cache, record)
        done = None if request.again else _done_before(cache, label, record, request)
        if done is not None:
            _refuse_other_content(cache, done, request)
            return done
        with telling(cache, label, request):
            found = survey.read_contents(cache, label)
            if request.without or request.one is not None and request.one.vdi is not None:
                request = _with_present_uuids(request, found, earlier_run.run_or_none(cache, record, label, found))
        with telling(cache, label, request):
            defects = problems_of(found).found if request.one is not None or request.without else ()
            refuse_losing_all(found, request)
            lun = settle(found, request.without)
            lun = without_databases(lun) if request.clear_databases else lun
            selection = select_vdis(cache, lun, request.one, entropy)
            lun = selection.lun
            state = state_of(record, lun)
            last_run = earlier_run.run_or_none(cache, record, label, lun) if state == RESIGNATURED else None
            last_ids = last_run.ids if last_run is not None else None
            ids = new_ids.choose_ids(lun, entropy, request.chosen, request.sr_uuid, last_ids)
            unverified = lun.work.left_behind if lun.work is not None and defects else ()
            made = run_plan.plan_resignature(cache, selection, ids, entropy(16), request.scsi_id, unverified)
            check_plan(cache, lun, made)
            later_copy = earlier_run.later_copy(cache, lun, record, request.scsi_id)
        if selection.cost is not None:
            device.verify_copy(selection.cost.data_bytes)
    return Prepared(
        DAMAGED if defects else state, made, lun, device.name, counting.reads, counting.read_batches,
        selection.cost, defects, later_copy=later_copy,
    )  # fmt: skip


def _with_present_uuids(request: ResignatureRequest, lun: Lun, run: Optional[Run]) -> ResignatureRequest:
    """The request with the present UUIDs of its VDIs; a caller may know a UUID from before the last run, `run`."""
    one = request.one
    if one is not None and one.vdi is not None:
        one = one._replace(vdi=named_now(one.vdi, lun, run))
    return request._replace(one=one, without=tuple(named_now(uuid, lun, run) for uuid in request.without))


def _refuse_other_content(device: Device, done: AlreadyDone, request: ResignatureRequest) -> None:
    """Raises Refused where a LUN that is done is not what is asked for, NotFound for a VDI that it never had."""
    lun, run, one, chosen = done.content, done.run, request.one, request.chosen or IdMap("", {}, {})
    if run is not None:
        ids = run.ids
    else:  # LVM has used the journal's space: a chosen id that is on the LUN is taken as the id of this run
        there = {*new_ids.old_uuids(lun), *new_ids.old_lvm_ids(lun)}
        kept = [{old: new for old, new in ids.items() if new in there} for ids in (chosen.uuids, chosen.lvm_ids)]
        ids = IdMap("", {**kept[0], "": done.sr_uuid}, kept[1])
    found = mapfile.contradictions(chosen, request.sr_uuid, ids)
    if found:
        problem = f"{device.name} already has other ids: {found[0]}."
        raise Refused(problem).advising("Use `again` to resignature the LUN once more.")
    with naming_who_asks(one):
        was_one = one is None and run is not None and run.one is not None
        if not (was_one and run is not None and earlier_run.has_all_volumes(device, lun, run)):
            vdi_choice.refuse_other_vdis(device.name, lun, run, one)
    _refuse_databases(device.name, lun, request.clear_databases)
    _refuse_left_behind(device.name, lun, run, request.without)


def _refuse_databases(name: str, lun: Lun, clear_databases: bool) -> None:
    """Raises Refused where a resignatured LUN holds databases of a pool that were to be cleared."""
    if clear_databases and databases(lun):
        again = shell_command("relvmoiscsi resignature --again --clear-metadata-vdi", name)
        raise Refused(f"{name} was resignatured before, and a VDI is marked as a database of a pool still.").advising(
            f"To remove the mark, run `{again}` on a host that has the LUN, for SR.create on the pool's master."
        )


def _refuse_left_behind(name: str, lun: Lun, run: Optional[Run], without: Sequence[str]) -> None:
    """Raises Refused where a resignatured LUN holds a VDI that was to be left behind; `run` is the last run.

    Raises NotFound where neither the LUN nor the run has the VDI.
    """
    for uuid in without:
        if named_now(uuid, lun, run) in lun.settled().disks():
            again = shell_command("relvmoiscsi resignature --again", name, without=uuid)
            problem = f"{name} was resignatured before, with VDI {uuid}, which was to be left behind."
            raise Refused(problem).advising(f"To leave it behind, run `{again}`.")
        if run is not None:
            # the old or the new UUID, or the UUID before an earlier run that has derived all ids
            had = {*run.ids.uuids, *run.ids.uuids.values()} - {run.ids.sr, run.ids.new_sr}
            if had.isdisjoint((uuid, derived_uuid(run.ids.sr, uuid))):
                raise no_volume(name, uuid)


def find_done(device: Device, request: ResignatureRequest) -> Optional[AlreadyDone]:
    """Return the finished resignature of this LUN, which may be in use; None where `prepare` must look further.

    A LUN whose metadata cannot be read gives None, because a program may be writing to it: `prepare` reads the LUN when
    nobody writes, and raises the error. Raises Refused, NotFound where the LUN is not what the request asks for.
    """
    cache = ReadCache(device)
    try:
        label = survey.read_label(cache)
        done = _done_before(cache, label, read_commit_record(label, device.name), request)
    except (FormatError, Refused, NotFound) as problem:
        log.debug("%s: %s", device.name, problem)
        return None
    if done is not None:
        _refuse_other_content(cache, done, request)
    return done


def new_sr_of(device: Device, scsi_id: str) -> Optional[str]:
    """Return the UUID of the SR that stock tools see after a resignature for this SCSIid, finished or not.

    None for a LUN without such a resignature. The array may have copied a resignatured LUN, so the caller asks the pool
    whether the SR is on another LUN. Raises DeviceError.
    """
    try:
        label = survey.read_label(device)
        record = read_commit_record(label, device.name)
        is_after = record is not None and record.kind == RESIGNATURE and record.phase != IN_PROGRESS
        if not is_after or record is None or record.scsi_id_digest != scsi_id_digest(scsi_id):
            return None
        sr_uuid, vg = survey.read_sr(device, label)
        return sr_uuid if proves(record, sr_uuid, label.pv_id, vg.id) else None
    except (FormatError, Refused, NotFound):
        return None


def _done_before(
    device: Device, label: Label, record: Optional[CommitRecord], request: ResignatureRequest
) -> Optional[AlreadyDone]:
    """Return the finished resignature of the commit record, if made for this LUN. No other function says "done".

    Raises as `verify_same_lun` does, and FormatError for metadata that cannot be read.
    """
    is_copy = request.scsi_id is not None and is_of_another_lun(record, request.scsi_id)
    if record is None or record.phase != DONE or record.kind != RESIGNATURE or is_copy:
        return None
    try:
        with telling(device, label, request._replace(again=True)):
            content = survey.read_lun(device, label)
        if not earlier_run.has_new_ids(record, content):
            log.info("%s: the label says that the LUN was resignatured, and PV and VG have other ids", device.name)
            return None
        try:
            verify_resignatured(content)
        except FormatError as error:
            tell(error, device.name, unsolved(error), request)
            raise
    except FormatError as error:
        error.message += f" {device.name} was resignatured before, and was damaged after that."
        raise
    earlier_run.verify_same_lun(device.name, record, request.scsi_id)
    return AlreadyDone(content, earlier_run.run_or_none(device, record, label, content))


def vg_names(run: Run) -> Tuple[str, str]:
    """Return the old and the new name of the VG, which the caller locks while the run writes."""
    return naming.VG_PREFIX + run.ids.sr, naming.VG_PREFIX + run.ids.new_sr


def copy_unseen(device: Device, prepared: Prepared, progress: Optional[Progress] = None) -> Prepared:
    """Write the parts of a plan that no reader sees before the commit. This may take long, and needs no LVM locks.

    Return the plan, with these writes done. `progress` gets the copied bytes and the total bytes. Raises the errors of
    `resignature`.
    """
    if device.name != prepared.device:  # the same content may be on an original and on its clone
        problem = f"The plan was prepared for {prepared.device}, not for {device.name}."
        raise UsageError(problem).advising(f"Prepare a plan for {device.name}.").in_state(NOTHING_WRITTEN)
    if prepared.plan.digests or not prepared.plan.unseen.chunks:
        return prepared
    counting = CountingDevice(device)
    plan = apply.write_unseen(counting, prepared.plan, progress)
    return prepared._replace(
        plan=plan,
        reads=prepared.reads + counting.reads,
        read_batches=prepared.read_batches + counting.read_batches,
        writes=counting.writes,
        bytes_written=counting.bytes_written,
    )


@promised(device=DEVICE, prepared=an("a Prepared", Prepared), progress=optional(FUNCTION))
def resignature(device: Device, prepared: Prepared, progress: Optional[Progress] = None) -> Result:
    """Execute a prepared plan. Raises UsageError for the plan of another device, Refused, Overtaken, Unfinished or
    DeviceError; the error states the state of the device.

    `progress` gets the number of copied bytes that are read back before the commit. Exceptions of `progress` propagate.
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


# --- interrupted runs


def find_unfinished(device: Device, untouched: str = NOTHING_WRITTEN) -> Optional[EarlierRun]:
    """Return the interrupted run on this device; None without an interrupted run.

    `untouched` is the sentence on the state of the device.
    """
    with in_state(untouched):
        try:
            return earlier_run.find_unfinished(device)
        except FormatError as error:
            if not error.advice:
                tell(error, device.name, unsolved(error), ResignatureRequest())
            raise


@promised(device=DEVICE, earlier=optional(an("an EarlierRun", EarlierRun)), scsi_id=optional(TEXT))
def recover(device: Device, earlier: Optional[EarlierRun] = None, scsi_id: Optional[str] = None) -> Result:
    """End an interrupted run: roll back before its commit; finish after its commit, with the ids of the run.

    Without an interrupted run, nothing is written (`already_done`). A caller that must lock the VG first passes the
    result of `find_unfinished`. Raises the errors of `verify_recoverable`, before a write.
    """
    with in_state(NOTHING_WRITTEN):
        scsi_id = None if scsi_id is None else named_scsi_id(scsi_id)
    earlier = earlier or find_unfinished(device)
    if earlier is None:
        with in_state(NOTHING_WRITTEN):
            found = inspect(device)
            if found.problem is not None:
                raise found.problem
        ids, of = (found.run.ids, found.run.scsi_id) if found.run is not None else (None, None)
        return Result(found.state, found.lun, ids, of, already_done=True)
    return _unless_damaged(*end_cut(device, earlier, scsi_id))


def end_cut(
    device: Device, earlier: EarlierRun, scsi_id: Optional[str] = None, words: Sequence[str] = ()
) -> Tuple[Result, Inspection]:
    """Do as `recover`, and return what the LUN holds then. A LUN that is damaged then is no error.

    `words` are the command to resignature the LUN, for the message of a defect.
    """
    counting, run = CountingDevice(device), earlier.journal.run
    verify_recoverable(counting, earlier, scsi_id)
    if goes_back(earlier):
        cut_run.roll_back(counting, earlier)
        done, ids, unverified = "rolled back", run.ids.reversed(), run.unverified if run.kind != UNDO else ()
    else:
        cut_run.finish(counting, earlier)
        done, ids, unverified = "finished", run.ids, run.unverified if run.kind == UNDO else ()
    found = _inspect_after(device, f"The {KINDS[run.kind]} was {done}.", unverified, words)
    return _result(counting, found.state, found.lun or found.readable, run._replace(ids=ids)), found


def goes_back(earlier: EarlierRun) -> bool:
    """Does `recover` roll the run back? The run was interrupted before its commit."""
    return earlier.commit_record.phase == IN_PROGRESS


def _inspect_after(device: Device, done: str, unverified: Sequence[str], words: Sequence[str] = ()) -> Inspection:
    """Inspect a device after its run was ended; `done` is the state for an error, and for a problem of the device.

    `unverified` are LVs that the LUN has again: then the LUN may be damaged, as it was before the run.
    """
    with in_state(done):
        found = inspect(device, words)
    if found.problem is not None:
        found.problem.in_state(done)
    return found._replace(lun=found.readable) if unverified and found.readable is not None else found


def _unless_damaged(result: Result, found: Inspection) -> Result:
    if found.lun is None and found.problem is not None:
        raise found.problem
    return result


@promised(device=DEVICE, entropy=ENTROPY)
def undo(device: Device, entropy: Entropy) -> Result:
    """Restore the old identities: roll back an interrupted run, or reverse a finished run.

    Raises Refused when the LUN has no run to undo, or when LVM or SM has changed the written data since.
    """
    earlier = read_undoable(device)
    if earlier.commit_record.phase == DONE:
        return _reverse(device, earlier, entropy)
    result, is_undo = recover(device, earlier), earlier.commit_record.kind == UNDO
    if is_undo != goes_back(earlier):  # a finished undo, or a resignature that was rolled back
        return result
    done = "The undo was rolled back" if is_undo else "The resignature was finished"
    return _reverse(device, read_undoable(device, sentences.nothing_written(done)), entropy, done)


def read_undoable(device: Device, untouched: str = NOTHING_WRITTEN) -> EarlierRun:
    """Return the run that `undo` would reverse. Raises the errors of `undo`, before any write.

    `untouched` is the sentence on the state of the device.
    """
    with in_state(untouched):
        earlier = find_unfinished(device, untouched) or earlier_run.finished_run(device)
        if earlier.journal.run.merged is None or goes_back(earlier):
            return earlier
        # the old images share extents with the new image: later writes are in both, and freed slots were reused
        finish = sentences.TAKE_AGAIN
        if earlier.commit_record.phase != DONE:
            recover_it = shell_command("relvmoiscsi recover", device.name)
            finish = f"`{recover_it}` finishes it. {sentences.on_a_copy(device.name, earlier.commit_record)}"
        raise Refused(
            f"{device.name} was reduced to one VDI, which cannot be undone after the commit: the snapshots are gone, "
            "and the old images share extents with the new image."
        ).advising(finish)


def verify_undoable(device: Device, earlier: EarlierRun, entropy: Entropy) -> None:
    """Raise Refused where `undo` of this run would be refused. Nothing is written."""
    with in_state(NOTHING_WRITTEN):
        if earlier.commit_record.phase != DONE:
            verify_recoverable(device, earlier)
        else:
            prepare_undo(device, earlier, entropy)


def _reverse(device: Device, earlier: EarlierRun, entropy: Entropy, before: str = "") -> Result:
    """Undo a finished run by a new run. `before` starts the sentence on the steps that are done."""
    with in_state(sentences.nothing_written(before)):
        made, old = prepare_undo(device, earlier, entropy)
    counting = CountingDevice(device)
    apply.carry_out(counting, made, before)
    if not made.run.unverified:
        return _result(counting, state_of(read_commit_record(old.label, device.name), old), old, made.run)
    found = _inspect_after(device, f"The {KINDS[UNDO]} was finished.", made.run.unverified)
    return _unless_damaged(_result(counting, found.state, found.lun, made.run), found)
