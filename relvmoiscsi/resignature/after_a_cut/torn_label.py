# SPDX-License-Identifier: LGPL-2.1-only
"""Find the journal that counts when a cut has torn the label.

A device that tears a sector leaves neither the old label nor the new one, and LVM sees no physical volume. The
journal holds the whole label; it lies on a multiple of 4096 inside the metadata area, so it can be found by looking.
It is believed only if the metadata area headers are exactly those the run found, or exactly those it ends with: those
of its plan, or those that point to what LVM has since written into the second area. Then LVM has changed nothing else,
and hardly an older run's journal passes for it. One does: the journal of a run that is being undone, whose beginning
is the undo's end. The undo's journal holds the label that speaks of that run, and so says which is the older.
"""

import logging
from typing import List, Optional

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.after_a_cut import evidence
from relvmoiscsi.resignature.after_a_cut.evidence import has_begun
from relvmoiscsi.resignature.after_a_cut.journal_search import USUAL_AREA, journals_in, spans
from relvmoiscsi.resignature.after_a_cut.sentences import label_torn
from relvmoiscsi.resignature.planning.labels import switched_label
from relvmoiscsi.resignature.protocol.journal import Journal, Mark
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS, SWITCHED, read_tail
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.writing import landing

log = logging.getLogger(__name__)


def label_to_change(device: Device) -> Label:
    """The label. Raises Unfinished where a cut run has torn it, and otherwise what `read_label` raises."""
    try:
        return survey.read_label(device)
    except (Refused, FormatError, DeviceError):
        if is_torn(device):
            raise label_torn(device.name) from None
        raise


def is_torn(device: Device) -> bool:
    """Whether a journal says how the label should be. Looked for only where LVM's first metadata area begins."""
    if device.size_bytes < survey.MIN_DEVICE_BYTES:
        return False
    first = device.read([Range(USUAL_AREA, layout.MdaHeader.SIZE)])[0]
    if layout.MdaHeader.at(first).magic != layout.MDA_MAGIC:
        return False
    try:
        return find_mark(device) is not None
    except Refused:
        return True
    except DeviceError:
        return False


def find_mark(device: Device) -> Optional[Mark]:
    """The mark that a torn label would have held; None when no journal fits.

    Raises Refused when several journals fit: guessing is not for labels.
    """
    if device.size_bytes < survey.MIN_DEVICE_BYTES:
        return None
    for span in spans(device):
        found = _without_older([mark for journal in journals_in(device, span) for mark in _fits(device, journal)])
        if found:
            return _the_one(device, found)
    return None


def _the_one(device: Device, fitting: List[Mark]) -> Mark:
    unfinished = [mark for mark in fitting if mark.tail.phase == IN_PROGRESS]
    candidates = unfinished or fitting
    if len(candidates) > 1:  # runs that failed before their marks leave journals as well
        prepared = [mark for mark in candidates if evidence.is_prepared(device, mark.journal.run)]
        begun = [mark for mark in prepared if has_begun(device, mark.journal)]
        candidates = begun or prepared[:1] or candidates
    if len(candidates) > 1:
        places = ", ".join(str(mark.journal.offset) for mark in candidates)
        raise Refused(f"{device.name}: the label is torn, and several journals fit (bytes {places}).")
    return candidates[0]


def _without_older(marks: List[Mark]) -> List[Mark]:
    """Without the marks of runs that another one began after: its old label speaks of them."""
    older = set()
    for mark in marks:
        run = mark.journal.run
        where = Place("the journal", 0)
        tail = read_tail(pv.parse_label(run.old_label, run.label_number, where), where)
        older.add(tail.run_id if tail else b"")
    return [mark for mark in marks if mark.journal.run.run_id not in older]


def _fits(device: Device, journal: Journal) -> List[Mark]:
    """The mark to go on from, if the metadata area headers are those of the run."""
    run = journal.run
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    try:
        label = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
        if not _is_torn(device, label):
            return []
        if headers == [move.old_header for move in run.mdas]:
            return [Mark(label, journal.tail(IN_PROGRESS), journal)]
        sector = switched_label(label, run, journal.tail(SWITCHED))
        switched = pv.parse_label(sector, run.label_number, Place("the journal", 0))
        if headers == [move.final_header for move in run.mdas] or _landed(device, switched, journal):
            return [Mark(switched, journal.tail(SWITCHED), journal)]
    except (FormatError, Refused) as problem:
        log.debug("the journal at byte %d of %s does not fit: %s", journal.offset, device.name, problem)
    return []


def _landed(device: Device, switched: Label, journal: Journal) -> bool:
    """Whether the headers point to the texts that are committed in the second areas now."""
    headers, _copies = landing.landed_headers(device, switched, journal)
    return [header.data for header in headers] == device.read([Range(h.offset, SECTOR) for h in headers])


def _is_torn(device: Device, label: Label) -> bool:
    """Whether a label was there and is none any more.

    Whoever wipes one means it: `pvremove` leaves a sector of zeros, `wipefs` a type of zeros. A torn sector may also be
    one that cannot be read at all; writing it heals it.
    """
    try:
        sector = device.read([Range(label.offset, SECTOR)])[0]
        pv.parse_label(sector, label.number, Place(device.name, label.offset))
    except DeviceError:
        return True
    except FormatError:
        return any(layout.LabelHeader.at(sector).type)
    return False
