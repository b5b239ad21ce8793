# SPDX-License-Identifier: LGPL-2.1-only
"""What can be done with a LUN: look at it, resignature it, finish what was cut, take it back, compare it.

    found = engine.inspect(device)                       # never raises for what is on the disk
    plan = engine.prepare(device, os.urandom)            # reads, plans, checks; writes nothing
    result = engine.resignature(device, plan)            # writes

Everything comes in as an argument: the device, entropy, the SCSIid. What must be held while a device is written,
exclusive opening and LVM's locks, is the caller's; `vg_names` says which names to lock.
"""

import logging
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi import __version__
from relvmoiscsi.device import Chunk, CountingDevice, Device, Range
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    DeviceError,
    FormatError,
    NotFound,
    Place,
    Refused,
    RelvmoiscsiError,
    Truncated,
    Unfinished,
    in_state,
)
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import Entropy, IdMap
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.formats.lvm.vg import read_vg
from relvmoiscsi.resignature import (
    apply,
    check,
    journal_search,
    plan,
    recovery,
    repair,
    survey,
)
from relvmoiscsi.resignature.canvas import read_canvas
from relvmoiscsi.resignature.journal import Journal, Mark, decode, read_journal
from relvmoiscsi.resignature.lun import Lun
from relvmoiscsi.resignature.plan import Plan
from relvmoiscsi.resignature.read_cache import ReadCache
from relvmoiscsi.resignature.run import MdaMove, Run, verify_run
from relvmoiscsi.resignature.tail import (
    DONE,
    IN_PROGRESS,
    KINDS,
    RESIGNATURE,
    UNDO,
    Tail,
    read_tail,
    scsi_id_digest,
    with_tail,
)

log = logging.getLogger(__name__)

EMPTY, FOREIGN, CLEAN = "empty", "foreign", "clean"
UNFINISHED, RESIGNATURED, DAMAGED = "unfinished", "resignatured", "damaged"


class Inspection(NamedTuple):
    """What is on a device. `problem` says why there is no `lun`."""

    state: str
    lun: Optional[Lun] = None
    tail: Optional[Tail] = None
    run: Optional[Run] = None  #: of the journal, where it still lies on the LUN
    problem: Optional[RelvmoiscsiError] = None


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


def inspect(device: Device) -> Inspection:
    """What is on a device. Raises DeviceError only: whatever the disk holds is an answer."""
    cache = ReadCache(device)
    try:
        label = survey.read_label(cache)
    except NotFound as problem:
        return Inspection(EMPTY, problem=problem)
    except (Refused, FormatError) as problem:
        if _is_torn(device):
            return Inspection(UNFINISHED, problem=_torn(device.name))
        return Inspection(FOREIGN if isinstance(problem, Refused) else DAMAGED, problem=problem)
    except DeviceError:
        if _is_torn(device):
            return Inspection(UNFINISHED, problem=_torn(device.name))
        raise
    try:
        tail = read_tail(label, Place(device.name, label.offset))
    except FormatError as problem:
        return Inspection(DAMAGED, problem=problem)
    run = _run_or_none(cache, tail, label)
    if tail is not None and tail.phase != DONE:
        cut = recovery.cut(cache, tail, run) if run else _unfinished_without_journal(cache, label, tail)
        return Inspection(UNFINISHED, tail=tail, run=run, problem=cut)
    try:
        lun = survey.read_lun(cache, label)
    except Refused as problem:
        return Inspection(FOREIGN, tail=tail, problem=problem)
    except FormatError as problem:
        return Inspection(DAMAGED, tail=tail, problem=problem)
    return Inspection(_state_of(tail), lun, tail, run)


def _state_of(tail: Optional[Tail]) -> str:
    """The state of a LUN without an unfinished run."""
    return RESIGNATURED if tail is not None and tail.kind == RESIGNATURE else CLEAN


def _is_torn(device: Device) -> bool:
    """Whether a journal says how the label should be. Looked for only where LVM's first metadata area begins."""
    if device.size_bytes < survey.MIN_DEVICE_BYTES:
        return False
    first = device.read([Range(journal_search.USUAL_AREA, layout.MdaHeader.SIZE)])[0]
    if layout.MdaHeader.at(first).magic != layout.MDA_MAGIC:
        return False
    try:
        return journal_search.find_mark(device) is not None
    except Refused:
        return True
    except DeviceError:
        return False


def _torn(name: str) -> Unfinished:
    return Unfinished(
        f"{name} has lost its label in a run that was cut, and holds the journal of that run. "
        f"Run `relvmoiscsi recover {name}`."
    )


def _lost(name: str, tail: Tail) -> str:
    return (
        f"{name} holds an unfinished {KINDS[tail.kind]} whose journal does not read; LVM may have used its space "
        "since. Volumes may name "
        "parents of another SR: take the clone again."
    )


def _forgotten(name: str, tail: Tail) -> str:
    return (
        "{0} has the mark of a {1} whose journal does not read any more; nothing of that {1} is on it. `relvmoiscsi "
        "undo {0}` takes the mark away.".format(name, KINDS[tail.kind])
    )


def _late(name: str) -> str:
    return (
        f"{name} holds identities of a run that was taken back: a write that had failed has landed late. Run "
        "`relvmoiscsi "
        f"undo {name}`."
    )


def _unfinished_without_journal(device: Device, label: Label, tail: Tail) -> RelvmoiscsiError:
    """What to say of an unfinished mark whose own journal does not read."""
    try:
        if journal_search.whose_turn(device, label, tail) is not None:
            return recovery.unfinished(device.name, tail)
    except Refused as problem:
        return problem
    if _forgotten_lun(device, label, tail) is not None:
        return Unfinished(_forgotten(device.name, tail))
    return Unfinished(_lost(device.name, tail))


def _forgotten_lun(device: Device, label: Label, tail: Tail) -> Optional[Lun]:
    """The LUN under a mark "in progress" whose journal is gone, when nothing of that run is on it; else None.

    Its label is then as it was before, with what can be known of the mark that it had.
    """
    if tail.phase != IN_PROGRESS:
        return None
    try:
        lun = survey.read_lun(device, label)
    except (FormatError, Refused) as problem:
        log.info("%s: %s", device.name, problem)
        return None
    doubts = check.foreign_identities(lun)
    for sentence in doubts:
        log.info("%s: %s", device.name, sentence)
    if doubts:
        return None
    done = tail.replace(phase=DONE, kind=RESIGNATURE) if tail.kind == UNDO else None
    before = pv.parse_label(with_tail(label.sector, done), label.number, Place(device.name, label.offset))
    return lun._replace(label=before)


def _run_or_none(device: Device, tail: Optional[Tail], label: Label) -> Optional[Run]:
    """A finished run's journal may be overwritten by LVM at any time; then there is nothing to tell."""
    if tail is None:
        return None
    try:
        return read_journal(device, tail, label).run
    except FormatError as problem:
        log.debug("%s: the journal is gone: %s", device.name, problem)
        return None


# --- resignature


def prepare(
    device: Device,
    entropy: Entropy,
    scsi_id: Optional[str] = None,
    chosen: Optional[IdMap] = None,
    again: bool = False,
    sr_uuid: Optional[str] = None,
) -> Union[Prepared, AlreadyDone]:
    """Read the LUN, plan its resignature and check what the plan leads to. Nothing is written.

    `chosen` gives some of the new ids, `sr_uuid` the new SR's; `again` resignatures a LUN that is already done.

    Raises Unfinished where an earlier run was cut (`recover` finishes it), NotFound, Refused or FormatError for a
    LUN that will not be resignatured, UsageError for a choice that cannot be.
    """
    counting = CountingDevice(device)
    with in_state(NOTHING_WRITTEN):
        cache = ReadCache(counting)
        label = _label_to_change(cache)
        tail = read_tail(label, Place(device.name, label.offset))
        forgotten = None if tail is None or tail.phase == DONE else _forgotten_or_raise(cache, label, tail)
        if forgotten is not None:
            tail = read_tail(forgotten.label, Place(device.name, label.offset))
        done = None if again else _done_before(cache, label, tail, scsi_id)
        if done is not None:
            return done
        lun = forgotten or _lun_at_rest(cache, label)
        ids = plan.choose_ids(lun, entropy, chosen, sr_uuid)
        block_bytes = plan.block_bytes_of(lun, device)
        made = plan.plan_resignature(lun, _known(cache), block_bytes, ids, entropy(16), scsi_id, __version__)
        made = made._replace(label_now=label.sector)
        _check_plan(cache, lun, made)
    return Prepared(_state_of(tail), made, lun, counting.reads, counting.read_batches)


def find_done(device: Device, scsi_id: Optional[str] = None) -> Optional[AlreadyDone]:
    """The finished resignature of this very LUN, which may be in use by now; None where there is more to be looked at.

    Raises nothing for what is on the disk: `prepare` says it.
    """
    try:
        label = survey.read_label(device)
        tail = read_tail(label, Place(device.name, label.offset))
        return _done_before(device, label, tail, scsi_id)
    except (FormatError, Refused, NotFound) as problem:
        log.debug("%s: %s", device.name, problem)
        return None


def _done_before(device: Device, label: Label, tail: Optional[Tail], scsi_id: Optional[str]) -> Optional[AlreadyDone]:
    """What the mark of a finished resignature says, if it was made for this very LUN. Raises as `_same_lun` does."""
    if tail is None or tail.phase != DONE or tail.kind != RESIGNATURE or not _same_lun(device.name, tail, scsi_id):
        return None
    return AlreadyDone(survey.read_sr_uuid(device, label), _run_or_none(device, tail, label))


def _forgotten_or_raise(cache: ReadCache, label: Label, tail: Tail) -> Lun:
    """The LUN, without the mark of a run that has left no other trace. Raises Unfinished where there is more."""
    if _run_or_none(cache, tail, label) is None and journal_search.whose_turn(cache, label, tail) is None:
        lun = _forgotten_lun(cache, label, tail)
        if lun is not None:
            return lun
    raise recovery.unfinished(cache.name, tail)


def _lun_at_rest(cache: ReadCache, label: Label) -> Lun:
    """The LUN. Raises Unfinished where a run that was taken back has written late, and as `read_lun` does."""
    try:
        lun = survey.read_lun(cache, label)
    except FormatError as problem:
        if journal_search.left_behind(cache, label) is None:
            raise
        raise Unfinished(_late(cache.name)) from problem
    if check.looks_half_written(lun) and journal_search.left_behind(cache, label) is not None:
        raise Unfinished(_late(cache.name))
    return lun


def _late_mark(device: Device, label: Label, tail: Optional[Tail]) -> Optional[Mark]:
    """The run that has written late onto a LUN at rest. One that holds a finished run is searched if it looks so."""
    if tail is not None and tail.kind == RESIGNATURE:
        try:
            _lun_at_rest(ReadCache(device), label)
        except Unfinished:
            pass
        except (FormatError, Refused) as problem:
            log.debug("%s: %s", device.name, problem)
            return None
        else:
            return None
    return journal_search.left_behind(device, label)


def _label_to_change(device: Device) -> Label:
    """The label. Raises Unfinished where a cut run has torn it, and otherwise what `read_label` raises."""
    try:
        return survey.read_label(device)
    except (Refused, FormatError, DeviceError):
        if _is_torn(device):
            raise _torn(device.name) from None
        raise


def _same_lun(name: str, tail: Tail, scsi_id: Optional[str]) -> bool:
    """Whether a finished resignature was made for this very LUN; False for a copy taken after it.

    Raises Refused when that cannot be told, because one of the two SCSIids is not known.
    """
    digest = scsi_id_digest(scsi_id)
    if digest == tail.scsi_id_digest:
        return True
    if not any(digest) or not any(tail.scsi_id_digest):
        which = "of this LUN is not known" if not any(digest) else "it was made for was not recorded"
        raise Refused(
            f"{name} was resignatured before, and the SCSIid {which}: whether it is a later copy cannot be told. Give "
            "the "
            "SCSIid, or ask for another resignature with --again."
        )
    return False


def _known(cache: ReadCache) -> plan.Known:
    return lambda wanted: cache.read([wanted])[0]


def _check_plan(cache: ReadCache, lun: Lun, made: Plan) -> None:
    """Read back, in memory, what the LUN will hold after the commit and at the end. Raises Refused or FormatError."""
    _check_journal(made, cache)
    labels = made.labels()
    written = [*made.prepared, *(Chunk(write.offset, write.new) for write in made.run.writes)]
    after: Optional[Lun] = None
    for sector, headers in ((labels.switched, ()), (labels.final, made.headers)):
        chunks = apply.whole_blocks(cache, [Chunk(labels.offset, sector), *headers], made.run.blocks)
        result = cache.with_chunks([*written, *chunks])
        after = survey.read_lun(result, survey.read_label(result), after)
        check.verify_result(lun, after, made.run.ids)


def _check_journal(made: Plan, device: Device) -> None:
    """What is going to be written as the journal will be believed. Raises Refused or FormatError."""
    where = Place("the planned journal", 0)
    found = decode(made.journal.data, where, made.journal.tail(IN_PROGRESS).journal_digest)
    verify_run(found, device.size_bytes, where)
    if found != made.run:
        raise Refused("The planned journal does not read back as what it was made of.", sm_key="MetadataError")


def vg_names(run: Run) -> Tuple[str, str]:
    """The old and the new name of the volume group: what to lock while the run is carried out."""
    return naming.VG_PREFIX + run.ids.sr, naming.VG_PREFIX + run.ids.new_sr


def resignature(device: Device, prepared: Prepared) -> Result:
    """Carry out a prepared plan. Raises Refused or DeviceError; the error says what state the device is in."""
    counting = CountingDevice(device)
    apply.carry_out(counting, prepared.plan)
    run = prepared.plan.run
    return _result(counting, RESIGNATURED, prepared.lun, run)._replace(
        reads=prepared.reads + counting.reads, read_batches=prepared.read_batches + counting.read_batches
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


def read_mark(device: Device) -> Optional[Mark]:
    """The mark of a run and its journal; None without a mark. Raises FormatError for a journal that is damaged."""
    label = survey.read_label(device)
    tail = read_tail(label, Place(device.name, label.offset))
    return None if tail is None else Mark(label, tail, read_journal(device, tail, label))


def find_unfinished(device: Device) -> Optional[Mark]:
    """The run that was cut on this device; None when none was.

    A label that the cut has torn is no label any more; then the journal is looked for in the metadata area.
    """
    with in_state(NOTHING_WRITTEN):
        return _find_unfinished(device)


def _find_unfinished(device: Device) -> Optional[Mark]:
    try:
        label = survey.read_label(device)
    except (FormatError, Refused, DeviceError):
        mark = journal_search.find_mark(device)
        if mark is None:
            raise
        return mark
    tail = read_tail(label, Place(device.name, label.offset))
    if tail is None or tail.phase == DONE:
        return None
    mark = journal_search.whose_turn(device, label, tail)
    if mark is None:
        _raise_journal_lost(device, label, tail)
    return mark


def _raise_journal_lost(device: Device, label: Label, tail: Tail) -> None:
    lost = _forgotten if _forgotten_lun(device, label, tail) is not None else _lost
    try:
        read_journal(device, tail, label)
    except FormatError as error:
        error.message += " " + lost(device.name, tail)
        raise


def recover(device: Device, mark: Mark, scsi_id: Optional[str] = None) -> Result:
    """Finish a run that was cut, with the ids it had chosen.

    An undo that LVM has overtaken cannot be finished any more; it is taken back, and the LUN is resignatured still.

    Raises Refused when the run was begun on another LUN: this one is a copy of it, and would become its twin.
    """
    digest = scsi_id_digest(scsi_id)
    if any(digest) and any(mark.tail.scsi_id_digest) and digest != mark.tail.scsi_id_digest:
        raise Refused(
            f"{device.name} is a copy of a LUN whose resignature was cut (SCSIid {mark.journal.run.scsi_id}). Run "
            f"`relvmoiscsi undo {device.name}`, then "
            "resignature it."
        ).in_state(NOTHING_WRITTEN)
    is_undo = mark.tail.kind == UNDO and mark.tail.phase == IN_PROGRESS
    if is_undo and not recovery.is_prepared(device, mark.journal.run):
        return _roll_back(device, mark)
    counting = CountingDevice(device)
    recovery.finish(counting, mark)
    found = _inspect_after(device, f"The {KINDS[mark.tail.kind]} was finished.")
    return _result(counting, found.state, found.lun, mark.journal.run)


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
    if mark.tail.phase == DONE:
        return _reverse(device, mark, entropy)
    if mark.tail.kind == RESIGNATURE and mark.tail.phase == IN_PROGRESS:
        return _roll_back(device, mark)
    result = recover(device, mark)
    if mark.tail.kind == UNDO:
        if result.state == RESIGNATURED:
            raise Refused(
                f"{device.name} cannot be undone: LVM has changed the volume group since an earlier undo was cut."
            ).in_state("That undo was taken back; the LUN keeps its new identities.")
        return result
    finished = "The resignature was finished"
    return _reverse(device, read_undoable(device, apply.nothing_written(finished)), entropy, finished)


def read_undoable(device: Device, untouched: str = NOTHING_WRITTEN) -> Mark:
    """The run that `undo` would take back. Raises as `undo` does, before anything is written.

    `untouched` is the sentence about the device until then.
    """
    with in_state(untouched):
        try:
            return _find_unfinished(device) or _finished_mark(device)
        except FormatError:
            mark = _forgotten_mark(device)
            if mark is None:
                raise
            return mark


def _roll_back(device: Device, mark: Mark) -> Result:
    counting = CountingDevice(device)
    recovery.roll_back(counting, mark)
    found = _inspect_after(device, f"The {KINDS[mark.tail.kind]} was taken back.")
    return _result(counting, found.state, found.lun, mark.journal.run._replace(ids=mark.journal.run.ids.reversed()))


def _forgotten_mark(device: Device) -> Optional[Mark]:
    """A mark whose journal is gone, with a run in its place that has nothing to give back but the label."""
    label = survey.read_label(device)
    tail = read_tail(label, Place(device.name, label.offset))
    lun = _forgotten_lun(device, label, tail) if tail is not None else None
    if tail is None or lun is None:
        return None
    nothing = Run(
        kind=RESIGNATURE,
        run_id=tail.run_id,
        scsi_id=None,
        tool=__version__,
        ids=IdMap(lun.sr_uuid, {lun.sr_uuid: lun.sr_uuid}, {}),
        label_number=label.number,
        old_label=lun.label.sector,
        new_pv_id=label.pv_id,
        final_label=b"",
        mdas=tuple(MdaMove(mda.area, mda.area, bytes(mda.header), b"", bytes(mda.header)) for mda in lun.mdas),
        writes=(),
    )
    return Mark(label, tail.replace(kind=RESIGNATURE), Journal(nothing, 0, b""))


def _finished_mark(device: Device) -> Mark:
    label = survey.read_label(device)
    tail = read_tail(label, Place(device.name, label.offset))
    late = _late_mark(device, label, tail)
    if late is not None:
        return late
    if tail is None or tail.kind == UNDO:
        raise Refused(f"{device.name} holds no resignature that could be undone.", "InvalidArg")
    try:
        return Mark(label, tail, read_journal(device, tail, label))
    except FormatError as error:
        raise Refused(f"{device.name} cannot be undone: LVM has reclaimed the space of the journal.") from error


def _reverse(device: Device, mark: Mark, entropy: Entropy, before: str = "") -> Result:
    """Undo a finished run, by a run of its own. `before` begins the sentence on what has been done already."""
    with in_state(apply.nothing_written(before)):
        made, old = _prepare_undo(device, mark, entropy)
    counting = CountingDevice(device)
    apply.carry_out(counting, made, before)
    return _result(counting, CLEAN, old, made.run)


def _prepare_undo(device: Device, mark: Mark, entropy: Entropy) -> Tuple[Plan, Lun]:
    """The plan that reverses a finished run, and the LUN it leads to. Raises Refused when it is too late."""
    run = mark.journal.run
    cache = ReadCache(device)
    mdas = survey.read_mdas(cache, mark.label)
    if [bytes(mda.header) for mda in mdas] != [move.final_header for move in run.mdas]:
        raise Refused(f"{device.name} cannot be undone: LVM has changed the volume group since.")
    contents = _contents_undone(cache, run)
    text, live = _old_text(cache, run)
    made = plan.plan_undo(mark.journal, mark.label, mdas, text, live, _known(cache), contents, entropy(16), __version__)
    return made, _check_undo(cache, made)


def _contents_undone(cache: ReadCache, run: Run) -> plan.Undone:
    """What an undo writes to volumes. Raises Refused naming the first identity that somebody has changed."""
    canvas = read_canvas(cache, run)
    changed = repair.first_changed(run, canvas)
    if changed is not None:
        raise Refused(
            f"{cache.name}: {changed.what} at byte {changed.pieces[0].offset} has changed since the resignature; an "
            "undo would lose that."
        )
    return plan.undone_contents(run, canvas, _known(cache))


def _old_text(device: Device, run: Run) -> Tuple[bytes, List[Range]]:
    """The metadata text from before a run, the newest where the areas differ, and all the places texts lie in."""
    text, newest, live = b"", -1, []  # type: bytes, int, List[Range]
    for move in run.mdas:
        where = Place(device.name, move.original.offset)
        mda = pv.parse_mda(move.old_header, move.original, where)
        if mda.has_text:
            found = pv.read_texts(device, [mda])[0]
            pv.verify_text(found, mda.committed, where)
            seqno = read_vg(found[:-1].decode("latin-1"), where).seqno
            if seqno > newest:
                text, newest = found, seqno
            live += pv.text_ranges(mda.area, mda.committed, where)
    return text, live


def _check_undo(cache: ReadCache, made: Plan) -> Lun:
    _check_journal(made, cache)
    labels = made.labels()
    chunks = [*made.prepared, *(Chunk(write.offset, write.new) for write in made.run.writes)]
    ends = apply.whole_blocks(cache, [Chunk(labels.offset, labels.final), *made.headers], made.run.blocks)
    result = cache.with_chunks([*chunks, *ends])
    return survey.read_lun(result, survey.read_label(result))


# --- two LUNs


class Comparison(NamedTuple):
    """What `check --original` found; without problems the clone shares nothing with the original."""

    problems: List[str]
    bytes_compared: int


def compare(original: Device, clone: Device, data: Optional[Sequence[Range]] = None) -> Comparison:
    """Whether two LUNs share no identity and differ in nothing else.

    `data` are the ranges of both devices that may hold anything but zeros; None compares no guest data.
    Raises FormatError, Refused or NotFound for a LUN that holds no SR.
    """
    caches = [ReadCache(original), ReadCache(clone)]
    before, after = (survey.read_lun(cache, survey.read_label(cache)) for cache in caches)
    problems = check.shared_identities(before, after)
    one, other = before.settled(), after.settled()
    ids = check.pairing(one, other)
    if ids is None:
        return Comparison(problems + ["Their volumes do not lie at the same places."], 0)
    if problems:
        return Comparison(problems, 0)
    problems += check.differences(one, other, ids, max(1, other.vg.seqno - one.vg.seqno))
    changes = plan.volume_changes(before, ids)
    writes = plan.content_writes(one.vg, changes, _known(caches[0]), original.block_size)
    allowed = {write.offset: write.new for write in writes}
    spans = _extents(one, data or [])
    found = _differing(original, clone, spans, allowed)
    return Comparison(problems + found, sum(span.length for span in spans))


def _extents(lun: Lun, data: Sequence[Range]) -> List[Range]:
    """The parts of `data` that belong to volumes; everything else is LVM's."""
    vg, found = lun.vg, []
    owned = sorted(part for lv in vg.lvs for part in vg.ranges(lv, 0, vg.size_of(lv)))
    for part in data:
        for extent in owned:
            first, last = max(part.offset, extent.offset), min(part.end, extent.end)
            if first < last:
                found.append(Range(first, last - first))
    return found


_COMPARE_BYTES = 1 << 20


def _differing(original: Device, clone: Device, spans: Sequence[Range], allowed: Dict[int, bytes]) -> List[str]:
    problems: List[str] = []
    for span in spans:
        for at in range(span.offset, span.end, _COMPARE_BYTES):
            part = Range(at, min(_COMPARE_BYTES, span.end - at))
            try:
                one, other = original.read([part])[0], clone.read([part])[0]
            except Truncated:
                return problems + [f"{clone.name} is smaller than {original.name}."]
            if one != other:
                problems += _explained(part, one, other, allowed, clone.name)
    return problems


def _explained(part: Range, one: bytes, other: bytes, allowed: Dict[int, bytes], name: str) -> List[str]:
    expected = bytearray(one)
    for offset, new in allowed.items():
        first, last = max(offset, part.offset), min(offset + len(new), part.end)
        if first < last:
            expected[first - part.offset : last - part.offset] = new[first - offset : last - offset]
    if bytes(expected) == other:
        return []
    at = next(index for index in range(len(other)) if expected[index] != other[index])
    return [f"{name} differs from what is expected at byte {part.offset + at}."]
