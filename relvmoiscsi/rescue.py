# SPDX-License-Identifier: LGPL-2.1-only
"""Find the journal of a cut run when the cut has torn the label that points to it.

A device that tears a sector leaves neither the old label nor the new one, and LVM sees no physical volume. The
journal holds the whole label; it lies on a multiple of 4096 inside the metadata area, so it can be found by looking.
It is believed only if the metadata area headers are exactly those the run found, or exactly those it ends with:
then LVM has changed nothing since, and no older run's journal passes for it.
"""

import logging
from typing import Iterable, List, Optional

from relvmoiscsi.apply import Mark
from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import FormatError, Place, Refused
from relvmoiscsi.journal import (
    ALIGNMENT,
    IN_PROGRESS,
    JOURNAL_MAGIC,
    MAX_JOURNAL_BYTES,
    SWITCHED,
    Journal,
    JournalHeader,
    decode,
    verify_run,
)
from relvmoiscsi.lvm import pv
from relvmoiscsi.plan import switched_label

log = logging.getLogger(__name__)

#: journals are looked for up to here; SM's metadata areas end at 11 or 16 MiB
SEARCH_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 20


def find_mark(device: Device) -> Optional[Mark]:
    """The mark that a torn label would have held; None when no journal fits.

    Raises Refused when several journals fit: guessing is not for labels.
    """
    fitting = [mark for journal in _journals(device) for mark in _fits(device, journal)]
    unfinished = [mark for mark in fitting if mark.tail.phase == IN_PROGRESS]
    candidates = unfinished or fitting
    if len(candidates) > 1:
        places = ", ".join(str(mark.journal.offset) for mark in candidates)
        raise Refused("{}: the label is torn, and several journals fit (bytes {}).".format(device.name, places))
    return candidates[0] if candidates else None


def _journals(device: Device) -> Iterable[Journal]:
    for at in _magics(device):
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


def _magics(device: Device) -> List[int]:
    found = []
    end = min(SEARCH_BYTES, device.size_bytes)
    for start in range(0, end, _WINDOW_BYTES):
        window = device.read([Range(start, min(_WINDOW_BYTES, end - start))])[0]
        for at in range(0, len(window), ALIGNMENT):
            if window[at : at + len(JOURNAL_MAGIC)] == JOURNAL_MAGIC:
                found.append(start + at)
    return found


def _fits(device: Device, journal: Journal) -> List[Mark]:
    """The mark to go on from, if the metadata area headers are those of the run."""
    run = journal.run
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    try:
        label = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
        if not _label_is_torn(device, label.offset):
            return []
        if headers == [move.old_header for move in run.mdas]:
            return [Mark(label, journal.tail(IN_PROGRESS), journal)]
        if headers == [move.final_header for move in run.mdas]:
            sector = switched_label(label, run, journal.tail(SWITCHED))
            switched = pv.parse_label(sector, run.label_number, Place("the journal", 0))
            return [Mark(switched, journal.tail(SWITCHED), journal)]
    except FormatError as problem:
        log.debug("the journal at byte %d of %s does not fit: %s", journal.offset, device.name, problem)
    return []


def _label_is_torn(device: Device, offset: int) -> bool:
    """Something else than zeros is there: `pvremove` and `wipefs` leave zeros, and mean it."""
    return any(device.read([Range(offset, SECTOR)])[0])
