# SPDX-License-Identifier: LGPL-2.1-only
"""Compare an original and its clone: the LUNs must share no identity and differ in nothing else, byte for byte."""

from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.arguments import DEVICE, FUNCTION, Kind, optional, promised, some
from relvmoiscsi.device import Chunk, Device, Range, overlaid
from relvmoiscsi.errors import FormatError, Truncated, UsageError
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.resignature.planning import identity_check, volume_writes
from relvmoiscsi.resignature.protocol.commit_record import DONE, RESIGNATURE, CommitRecord, read_commit_record
from relvmoiscsi.resignature.protocol.run_record import Run, joined
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.contradictions import verify_resignatured
from relvmoiscsi.resignature.reading.left_behind import settle
from relvmoiscsi.resignature.reading.lun_contents import Lun, verify_lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.recovery import cut_run, earlier_run
from relvmoiscsi.resignature.writing.copying import Progress
from relvmoiscsi.wording import said, some_of

Kept = TypeVar("Kept", Range, Chunk)

_COMPARE_BYTES = 1 << 20
#: the start of a problem: each LUN was given in the place of the other, or the original was resignatured by mistake
EXCHANGED = "The LUN given as original was resignatured"
#: the start of a problem: two clones of one LUN, or its clone and the original, which was resignatured by mistake
BOTH_RESIGNATURED = "Both LUNs were resignatured"
#: the problem of a clone without most of the original's volumes
ONE_VDI = "A clone that was made one VDI cannot be compared with its original."
#: the start of the problem of an original that is no more what was copied
CHANGED_SINCE = "LVM has changed the original since the copy was taken"
_MOST_NAMED = 3  #: volumes that are named of those at other places


_RANGE = Kind(
    "a Range",
    lambda part: isinstance(part, Range) and all(type(number) is int and number >= 0 for number in part),
)


class Comparison(NamedTuple):
    """The result of `check --original`. Without problems, the clone shares no identity with the original."""

    problems: List[str]
    bytes_compared: int
    left_behind: Tuple[str, ...] = ()  #: UUIDs of VDIs of the original that the clone does not hold
    same_identities: bool = False  #: whether the clone has every identity of the original, and no other
    differing: Tuple[str, ...] = ()  #: the problems that name a place where the data differs
    lacks_mgt: bool = False  #: whether the clone has no MGT volume, and the original has one: the rest was compared

    @property
    def may_be_later_writes(self) -> bool:
        """Whether nothing but data differs: so it does also where one of the LUNs was written since the copy was taken.

        A clone with the same identities may be an untouched copy: that it shares them is no difference.
        """
        return bool(self.differing) and (self.same_identities or len(self.problems) == len(self.differing))


@promised(
    original=DEVICE,
    clone=DEVICE,
    data=optional(some("a list of Range in bytes, from 0", _RANGE)),
    progress=optional(FUNCTION),
)
def compare(
    original: Device, clone: Device, data: Optional[Sequence[Range]] = None, progress: Optional[Progress] = None
) -> Comparison:
    """Compare an original and its clone.

    `data` are the ranges in which guest data is compared: None for all, () for identities and metadata alone.
    In a clone with the same identities, the bytes of all LVs must be the same there, MGT among them.
    `progress` gets the number of bytes compared so far, and the number of all bytes to compare. Raises FormatError,
    Refused or NotFound for a LUN without an SR, Unfinished for a LUN with an interrupted run, UsageError for a range
    that is not on both devices, and for one device in both places.
    """
    if original is clone:
        raise UsageError("The arguments original and clone of compare are the same device.")
    size = min(original.size_bytes, clone.size_bytes)
    for part in data or ():
        if part.end > size:
            raise UsageError(f"The argument data of compare has {part}, which ends behind byte {size} of the devices.")
    cache, clone_cache = ReadCache(original), ReadCache(clone)
    original_label, label = survey.read_label(cache), survey.read_label(clone_cache)
    original_record, record = read_commit_record(original_label, original.name), read_commit_record(label, clone.name)
    for each, found in ((cache, original_record), (clone_cache, record)):
        if found is not None and found.phase != DONE:
            raise cut_run.cut(each, found)
    contents, after = survey.read_contents(cache, original_label), survey.read_lun(clone_cache, label)
    if earlier_run.has_new_ids(record, after):
        verify_resignatured(after)
    lacks_mgt = after.mgt is None and contents.mgt is not None  # an administrator has removed a damaged MGT volume
    if lacks_mgt:
        contents = contents.without([contents.volume(naming.MGT)])._replace(mgt=None)
    missing = _left_behind(contents, after)
    before = settle(contents, missing)
    one, other = before.settled(), after.settled()
    verify_lun(before)
    ids, problems = identity_check.pairing(one, other), identity_check.shared_identities(before, after)
    if problems:
        is_same = identity_check.identities(before).keys() == identity_check.identities(after).keys()
        if ids is None:
            return Comparison([*problems, _elsewhere(one, other)], 0, (), is_same)
        spans = _within(before.vg.lvs, before, original, clone, data) if is_same else []
        differing = _differing(original, clone, spans, [], progress)
        return Comparison([*problems, *differing], sum(span.length for span in spans), (), is_same, tuple(differing))
    run = earlier_run.run_or_none(clone_cache, record, label, after)
    is_one = run is not None and run.one is not None and run.ids.new_sr == after.sr_uuid
    if is_one and not identity_check.has_same_shape(one, other):
        return Comparison([ONE_VDI], 0)
    is_of_original = identity_check.is_made_of(one, other, run.ids if run is not None else None)
    if not is_of_original:
        original_run = earlier_run.run_or_none(cache, original_record, original_label, before)
        problem = _of_resignatured_original(one, other, original_run, run)
        if problem:
            return Comparison([problem], 0)
    if is_of_original and one.vg.seqno >= other.vg.seqno:  # the run has raised that of the copied text by one
        seqnos = f"its seqno is {one.vg.seqno}, and the text that was copied had {other.vg.seqno - 1} at most"
        problem = f"{CHANGED_SINCE}: {seqnos}. They share no identity. Whether anything else differs cannot be told."
        return Comparison([problem], 0)
    if not is_of_original and not identity_check.has_same_shape(one, other):
        return Comparison([_another_sr(before, after, record, run)], 0)
    if ids is None:
        return Comparison([_elsewhere(one, other)], 0)
    problems = identity_check.differences(one, other, ids, max(1, other.vg.seqno - one.vg.seqno))
    if problems and not is_of_original:
        return Comparison([_another_sr(before, after, record, run)], 0)
    if one.mgt is not None and any(record.uuid not in ids.uuids for record in one.mgt.records):
        return Comparison(problems, 0)  # of fewer records: their new UUIDs are not known
    changes = list(volume_writes.volume_changes(before, ids))
    fields = volume_writes.content_fields(one.vg, changes)
    writes = volume_writes.content_writes(one.vg, changes, fields, cache.read, original.block_size)
    allowed = [Chunk(write.offset, write.new) for write in writes]
    spans = _within([volume.lv for volume in one.volumes], one, original, clone, data)
    differing = _differing(original, clone, spans, allowed, progress)
    problems += differing
    if problems and not is_of_original:
        problems.insert(0, _another_sr(before, after, record, run))
    return Comparison(problems, sum(span.length for span in spans), tuple(missing), False, tuple(differing), lacks_mgt)


def _within(
    lvs: Iterable[LogicalVolume], lun: Lun, original: Device, clone: Device, data: Optional[Sequence[Range]]
) -> List[Range]:
    """The parts of `data`, or of all data of both devices, in the extents of these LVs: elsewhere is LVM's metadata."""
    owned = sorted(part for lv in lvs for part in lun.vg.ranges(lv, 0, lun.vg.size_of(lv)))
    ends, spans = [extent.end for extent in owned], []
    for part in joined([*original.data_ranges(), *clone.data_ranges()] if data is None else data):
        for extent in _around(part, owned, ends):
            first, last = max(part.offset, extent.offset), min(part.end, extent.end)
            if first < last:
                spans.append(Range(first, last - first))
    return spans


def _around(part: Range, places: Sequence[Kept], ends: Sequence[int]) -> Sequence[Kept]:
    """The places that have a byte of `part`, and perhaps one more. `places` are sorted and apart; `ends` are theirs.

    This searches: a LUN may have very many places, and a caller asks for each of many parts.
    """
    return places[bisect_right(ends, part.offset) : bisect_left(ends, part.end) + 1]


def _left_behind(original: Lun, clone: Lun) -> List[str]:
    """The VDIs of the original that a run has left behind: nothing of the clone lies at their places.

    A LUN that was made one VDI, or a LUN of another original, has volumes at other places too: then no VDI.
    """
    places = {volume.lv.segments for volume in clone.volumes}
    if not places <= {volume.lv.segments for volume in original.volumes}:
        return []
    expected = original
    with suppress(FormatError):  # of the work of a VDI that was left behind
        expected = settle(original).settled()  # SM's work drops volumes too
    missing = {volume.lv.id for volume in expected.volumes if volume.lv.segments not in places}
    names = [volume.name for volume in original.volumes if volume.lv.id in missing]
    uuids = list(dict.fromkeys(str(name.uuid) for name in names if name.kind in naming.DISK_KINDS))
    # SM drops the leaf of a snapshot that was not completed, and the base is the VDI again
    busy = {volume.name.uuid for volume in original.volumes if volume.name.kind == naming.JOURNAL}
    for gone in ([uuid for uuid in uuids if uuid not in busy], uuids):
        with suppress(FormatError):
            rest = settle(original, gone).settled()
            is_all = {volume.lv.segments for volume in rest.volumes} == places
            if is_all and len(rest.records()) == len(clone.records()):
                return gone
    return []


def _elsewhere(original: Lun, clone: Lun) -> str:
    """The message for volumes of `original` where `clone` has no volume. A VDI has another name on the clone."""
    places = {volume.lv.segments for volume in clone.volumes}
    names = [volume.name.text for volume in original.volumes if volume.lv.segments not in places]
    return f"{clone.name} has no volume where {original.name} has {some_of(names, _MOST_NAMED)}."


def _of_resignatured_original(original: Lun, clone: Lun, original_run: Optional[Run], run: Optional[Run]) -> str:
    """The message for an `original` that was resignatured from the SR that `clone` is, or was made of; "" for no such.

    The runs are the last runs of the LUNs.
    """
    ids, clone_ids = (one.ids if one is not None and one.kind == RESIGNATURE else None for one in (original_run, run))
    if identity_check.is_made_of(clone, original, ids):
        return f"{EXCHANGED}: {original.name} has identities that were made of those of {clone.name}."
    if ids is None or clone_ids is None or ids.sr != clone_ids.sr:
        return ""
    each = f"{clone.name} became SR {clone.sr_uuid}, and {original.name} became SR {original.sr_uuid}"
    return f"{BOTH_RESIGNATURED}: {each}. Both were SR {ids.sr} before."


def _another_sr(original: Lun, clone: Lun, record: Optional[CommitRecord], run: Optional[Run]) -> str:
    """The message for an `original` from which `clone` was not made."""
    made_of = f", which was made of SR {run.ids.sr}" if run is not None and run.ids.new_sr == clone.sr_uuid else ""
    clones, originals = (
        f"{lun.sr_uuid} {said(lun.mgt.name_label)}" if lun.mgt and lun.mgt.name_label else lun.sr_uuid
        for lun in (clone, original)
    )
    told = f"{clone.name} holds SR {clones}{made_of}, and {original.name} holds SR {originals}"
    unless = "" if record is None else " Only a LUN that was resignatured more than once may still be its clone."
    return f"The original is another SR: {told}. Expected is the LUN that {clone.name} was cloned from.{unless}"


def _differing(
    original: Device,
    clone: Device,
    spans: Sequence[Range],
    allowed: Sequence[Chunk],
    progress: Optional[Progress] = None,
) -> List[str]:
    """A sentence for each mebibyte in which the LUNs differ and the clone's bytes are not those of `allowed`.

    `allowed` has the bytes of the clone that may differ. `progress` gets the number of bytes read of each LUN, and
    the number of all bytes to read.
    """
    problems: List[str] = []
    allowed = sorted(allowed)
    ends = [chunk.end for chunk in allowed]
    done, total = 0, sum(span.length for span in spans)
    for span in spans:
        for at in range(span.offset, span.end, _COMPARE_BYTES):
            part = Range(at, min(_COMPARE_BYTES, span.end - at))
            try:
                one, other = original.read([part])[0], clone.read([part])[0]
            except Truncated:
                return problems + [f"{clone.name} is smaller than {original.name}."]
            if one != other:
                expected = overlaid(one, part.offset, _around(part, allowed, ends))
                wrong = (index for index in range(len(other)) if expected[index] != other[index])
                if expected != other:
                    problems.append(f"{clone.name} differs from what is expected at byte {part.offset + next(wrong)}.")
            done += part.length
            if progress is not None:
                progress(done, total)
    return problems
