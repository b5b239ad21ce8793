# SPDX-License-Identifier: LGPL-2.1-only
"""Find the journal that counts when the label does not tell: torn by a cut, or written late.

A torn label:

A device that tears a sector leaves neither the old label nor the new one, and LVM sees no physical volume. The
journal holds the whole label; it lies on a multiple of 4096 inside the metadata area, so it can be found by looking.
It is believed only if the metadata area headers are exactly those the run found, or exactly those it ends with: those
of its plan, or those that point to what LVM has since written into the second area. Then LVM has changed nothing else,
and hardly an older run's journal passes for it. One does: the journal of a run that is being undone, whose beginning
is the undo's end. The undo's journal holds the label that speaks of that run, and so says which is the older.

A late label: a run whose mark "in progress" was reported as not written has ended, and a later run may have begun, with
ids of its own and its journal in the place of the first. Then the first mark lands. So whoever finds such a mark looks
for all journals of runs that began from the same identity: a run whose commit has been counts, then one whose new
identities are in the contents, then the one that the mark speaks of. A run writes no contents before its own mark is
durable, so at most one of them has.
"""

import logging
from typing import Iterable, List, Optional

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature import recovery, repair
from relvmoiscsi.resignature.canvas import read_canvas
from relvmoiscsi.resignature.journal import (
    ALIGNMENT,
    JOURNAL_MAGIC,
    MAX_JOURNAL_BYTES,
    Journal,
    JournalHeader,
    Mark,
    decode,
    read_journal,
)
from relvmoiscsi.resignature.plan import switched_label
from relvmoiscsi.resignature.run import verify_run
from relvmoiscsi.resignature.tail import IN_PROGRESS, SWITCHED, Tail, read_tail

log = logging.getLogger(__name__)

#: journals are looked for up to here; SM's metadata areas end at 11 or 16 MiB
SEARCH_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 20
_WINDOWS_AT_ONCE = 16  #: SM's metadata areas are read at once
#: each run leaves one, and the next but one overwrites it; whoever puts more there is up to something
MAX_JOURNALS = 64
#: LVM puts the first metadata area here
USUAL_AREA = 4096


def find_mark(device: Device) -> Optional[Mark]:
    """The mark that a torn label would have held; None when no journal fits.

    Raises Refused when several journals fit: guessing is not for labels.
    """
    for span in _spans(device):
        found = _without_older([mark for journal in _journals(device, span) for mark in _fits(device, journal)])
        if found:
            return _the_one(device, found)
    return None


def _the_one(device: Device, fitting: List[Mark]) -> Mark:
    unfinished = [mark for mark in fitting if mark.tail.phase == IN_PROGRESS]
    candidates = unfinished or fitting
    if len(candidates) > 1:  # runs that failed before their marks leave journals as well
        prepared = [mark for mark in candidates if recovery.is_prepared(device, mark.journal.run)]
        begun = [mark for mark in prepared if _has_begun(device, mark.journal)]
        candidates = begun or prepared[:1] or candidates
    if len(candidates) > 1:
        places = ", ".join(str(mark.journal.offset) for mark in candidates)
        raise Refused(f"{device.name}: the label is torn, and several journals fit (bytes {places}).")
    return candidates[0]


def _spans(device: Device) -> Iterable[Range]:
    """Where to look: in the metadata area that lies where LVM puts the first one, then everywhere."""
    header = layout.MdaHeader.at(device.read([Range(USUAL_AREA, layout.MdaHeader.SIZE)])[0])
    end = min(SEARCH_BYTES, device.size_bytes)
    if header.magic == layout.MDA_MAGIC and header.start == USUAL_AREA:
        yield Range(USUAL_AREA, min(header.size, end - USUAL_AREA))
    yield Range(0, end)


def _without_older(marks: List[Mark]) -> List[Mark]:
    """Without the marks of runs that another one began after: its old label speaks of them."""
    older = set()
    for mark in marks:
        run = mark.journal.run
        where = Place("the journal", 0)
        tail = read_tail(pv.parse_label(run.old_label, run.label_number, where), where)
        older.add(tail.run_id if tail else b"")
    return [mark for mark in marks if mark.journal.run.run_id not in older]


def _journals(device: Device, span: Range) -> Iterable[Journal]:
    for at in _magics(device, span):
        try:
            header = JournalHeader.at(device.read([Range(at, JournalHeader.SIZE)])[0])
            length = JournalHeader.SIZE + header.payload_length
            length += -length % ALIGNMENT
            if length > min(MAX_JOURNAL_BYTES, device.size_bytes - at):
                continue
            data = device.read([Range(at, length)])[0]
            run = decode(data, Place(device.name, at))
            verify_run(run, device.size_bytes, Place(device.name, at))
        except FormatError as problem:
            log.debug("no journal at byte %d of %s: %s", at, device.name, problem)
            continue
        yield Journal(run, at, data)


def _magics(device: Device, span: Range) -> List[int]:
    starts = range(span.offset, span.end, _WINDOW_BYTES)
    windows = [Range(start, min(_WINDOW_BYTES, span.end - start)) for start in starts]
    found = []
    for first in range(0, len(windows), _WINDOWS_AT_ONCE):
        batch = windows[first : first + _WINDOWS_AT_ONCE]
        for window, data in zip(batch, device.read(batch)):
            for at in range(0, len(data), ALIGNMENT):
                if data[at : at + len(JOURNAL_MAGIC)] == JOURNAL_MAGIC:
                    found.append(window.offset + at)
    if len(found) > MAX_JOURNALS:
        raise Refused(f"{device.name}: the label does not tell, and there are {len(found)} journals.")
    return found


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
    headers, _copies = recovery.landed_headers(device, switched, journal)
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


# --- a label that may be late


def whose_turn(device: Device, label: Label, tail: Tail) -> Optional[Mark]:
    """The run that an unfinished mark leads to, which need not be the one it speaks of.

    None when its journal does not read and no other run has begun. Raises Refused as `find_mark` does.
    """
    try:
        own: Optional[Journal] = read_journal(device, tail, label)
    except FormatError as problem:
        log.info("%s: %s", device.name, problem)
        own = None
    if own is not None and tail.phase != IN_PROGRESS:
        return Mark(label, tail, own)
    others = [journal for journal in _rivals(device, label) if own is None or journal.run.run_id != own.run.run_id]
    for journal in ([own] if own else []) + others:
        if recovery.evident_phase(device, journal.run) == SWITCHED:
            log.warning("%s: the mark in its label is a late one; the run has been committed", device.name)
            return _switched(label, journal)
    for journal in others:
        if recovery.is_prepared(device, journal.run) and _has_begun(device, journal):
            log.warning("%s: the mark in its label is a late one; a later run has begun", device.name)
            return Mark(label, journal.tail(IN_PROGRESS), journal)
    return Mark(label, tail, own) if own else None


def left_behind(device: Device, label: Label) -> Optional[Mark]:
    """A run that is over for the label, and whose new identities are in the contents: they came late. Else None."""
    for journal in _rivals(device, label):
        if recovery.is_prepared(device, journal.run) and _has_begun(device, journal):
            return Mark(label, journal.tail(IN_PROGRESS), journal)
    return None


def _rivals(device: Device, label: Label) -> Iterable[Journal]:
    """Journals in the metadata areas of runs that began from the identity that the label has."""
    for area in label.mdas:
        length = min(area.size, SEARCH_BYTES, device.size_bytes - area.offset)
        for journal in _journals(device, Range(area.offset, max(0, length))):
            run = journal.run
            before = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
            if (before.pv_id, before.mdas, before.number) == (label.pv_id, label.mdas, label.number):
                yield journal


def _has_begun(device: Device, journal: Journal) -> bool:
    return repair.shows_new(journal.run, read_canvas(device, journal.run))


def _switched(label: Label, journal: Journal) -> Mark:
    """The mark as it was when the run was committed."""
    tail = journal.tail(SWITCHED)
    sector = switched_label(label, journal.run, tail)
    return Mark(pv.parse_label(sector, label.number, Place("the label", 0)), tail, journal)
