# SPDX-License-Identifier: LGPL-2.1-only
"""What an earlier run has left on a LUN: one that was cut, one that is done, one that has lost its journal, or one
that was taken back and has written late.
"""

import logging
from typing import Optional

from relvmoiscsi import __version__
from relvmoiscsi.device import Device
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.formats.lvm.vg import read_vg
from relvmoiscsi.resignature import check
from relvmoiscsi.resignature.after_a_cut import late_label, sentences, stale_label, torn_label
from relvmoiscsi.resignature.after_a_cut.sentences import journal_lost, landed_late, mark_left_over
from relvmoiscsi.resignature.after_a_cut.undo import old_text
from relvmoiscsi.resignature.protocol.journal import Journal, Mark, read_journal
from relvmoiscsi.resignature.protocol.mark import (
    DONE,
    IN_PROGRESS,
    RESIGNATURE,
    SWITCHED,
    UNDO,
    Tail,
    read_tail,
    scsi_id_digest,
    with_tail,
)
from relvmoiscsi.resignature.protocol.run import MdaMove, Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.lun import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache

log = logging.getLogger(__name__)


def run_or_none(device: Device, tail: Optional[Tail], label: Label) -> Optional[Run]:
    """A finished run's journal may be overwritten by LVM at any time; then there is nothing to tell."""
    if tail is None:
        return None
    try:
        return read_journal(device, tail, label).run
    except FormatError as problem:
        log.debug("%s: the journal is gone: %s", device.name, problem)
        return None


def find_unfinished(device: Device) -> Optional[Mark]:
    """The run that was cut; None when none was. Raises what `read_label` does, and FormatError for a lost journal."""
    cache = ReadCache(device)
    try:
        label = survey.read_label(cache)
    except (FormatError, Refused, DeviceError):
        mark = torn_label.find_mark(device)
        if mark is None:
            raise
        return mark
    tail = read_tail(label, Place(device.name, label.offset))
    if stale_label.is_stale(cache, label, tail):
        mark = stale_label.find_mark(device, label, tail)
        if mark is not None:
            return mark
        if tail is not None and tail.phase == SWITCHED:
            raise sentences.label_lost(device.name)
    if tail is None or tail.phase == DONE:
        return None
    mark = late_label.whose_turn(device, label, tail)
    if mark is None:
        _raise_journal_lost(device, label, tail)
    return mark


def unfinished_without_journal(device: Device, label: Label, tail: Tail) -> RelvmoiscsiError:
    """What to say of an unfinished mark whose own journal does not read."""
    try:
        if late_label.whose_turn(device, label, tail) is not None:
            return sentences.unfinished(device.name, tail)
    except Refused as problem:
        return problem
    if _forgotten_lun(device, label, tail) is not None:
        return Unfinished(mark_left_over(device.name, tail))
    return Unfinished(journal_lost(device.name, tail))


def _raise_journal_lost(device: Device, label: Label, tail: Tail) -> None:
    lost = mark_left_over if _forgotten_lun(device, label, tail) is not None else journal_lost
    try:
        read_journal(device, tail, label)
    except FormatError as error:
        error.message += " " + lost(device.name, tail)
        raise


def stale(device: Device, label: Label, tail: Optional[Tail]) -> Optional[Unfinished]:
    """What to say of a label that has landed late and that LVM cannot use; None of any other."""
    found = stale_label.readable_or_none(device, label, tail)
    if found:
        return sentences.label_late(device.name)
    is_ours = found is not None and tail is not None and tail.phase == SWITCHED
    return sentences.label_lost(device.name) if is_ours else None


# --- a run that is done


def is_same_lun(name: str, tail: Tail, scsi_id: Optional[str]) -> bool:
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
            "the SCSIid, or ask for another resignature with --again."
        )
    return False


def has_kept_all(device: Device, lun: Lun, run: Run) -> bool:
    """Whether a LUN has everything that was there before the run that led to it; False where the text from before does
    not read any more.
    """
    where = Place(device.name, 0)
    try:
        text, _live = old_text(device, run)
        names = [naming.parse_lv_name(lv.name, where) for lv in read_vg(text[:-1].decode("latin-1"), where).lvs]
    except FormatError as problem:
        log.debug("%s: the text from before is gone: %s", device.name, problem)
        return False
    there = {volume.name.uuid for volume in lun.volumes}
    return all(name.uuid is None or run.ids.uuids.get(name.uuid) in there for name in names)


def finished_mark(device: Device) -> Mark:
    """The run that is done, or one that has written late. Raises Refused where there is none that can be undone."""
    cache = ReadCache(device)
    label = survey.read_label(cache)
    tail = read_tail(label, Place(device.name, label.offset))
    late = _late_mark(device, cache, label, tail)
    if late is not None:
        return late
    if tail is None or tail.kind == UNDO:
        raise Refused(f"{device.name} holds no resignature that could be undone.", "InvalidArg")
    try:
        return Mark(label, tail, read_journal(device, tail, label))
    except FormatError as error:
        raise Refused(f"{device.name} cannot be undone: LVM has reclaimed the space of the journal.") from error


def _late_mark(device: Device, cache: ReadCache, label: Label, tail: Optional[Tail]) -> Optional[Mark]:
    """The run that has written late onto a LUN at rest. One that holds a finished run is searched if it looks so."""
    if tail is not None and tail.kind == RESIGNATURE:
        try:
            lun_at_rest(cache, label)
        except Unfinished:
            pass
        except (FormatError, Refused) as problem:
            log.debug("%s: %s", device.name, problem)
            return None
        else:
            return None
    return late_label.left_behind(device, label)


def lun_at_rest(cache: ReadCache, label: Label) -> Lun:
    """The LUN. Raises Unfinished where a run that was taken back has written late, and as `read_lun` does."""
    try:
        lun = survey.read_lun(cache, label)
    except FormatError as problem:
        if late_label.left_behind(cache, label) is None:
            raise
        raise Unfinished(landed_late(cache.name)) from problem
    if check.looks_half_written(lun) and late_label.left_behind(cache, label) is not None:
        raise Unfinished(landed_late(cache.name))
    return lun


# --- a mark whose journal is gone


def forgotten_or_raise(cache: ReadCache, label: Label, tail: Tail) -> Lun:
    """The LUN, without the mark of a run that has left no other trace. Raises Unfinished where there is more."""
    if run_or_none(cache, tail, label) is None and late_label.whose_turn(cache, label, tail) is None:
        lun = _forgotten_lun(cache, label, tail)
        if lun is not None:
            return lun
    raise sentences.unfinished(cache.name, tail)


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


def forgotten_mark(device: Device) -> Optional[Mark]:
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
