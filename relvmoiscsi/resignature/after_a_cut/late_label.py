# SPDX-License-Identifier: LGPL-2.1-only
"""Find the run that counts when the label may have been written late.

A run whose mark "in progress" was reported as not written has ended, and a later run may have begun, with ids of its
own and its journal in the place of the first. Then the first mark lands. So whoever finds such a mark looks for all
journals of runs that began from the same identity: a run whose commit has been counts, then one whose new identities
are in the contents, then the one that the mark speaks of. A run writes no contents before its own mark is durable, so
at most one of them has.
"""

import logging
from typing import Iterable, Optional

from relvmoiscsi.device import Device, Range
from relvmoiscsi.errors import FormatError, Place
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.after_a_cut import evidence
from relvmoiscsi.resignature.after_a_cut.evidence import has_begun
from relvmoiscsi.resignature.after_a_cut.journal_search import SEARCH_BYTES, journals_in
from relvmoiscsi.resignature.planning.labels import switched_label
from relvmoiscsi.resignature.protocol.journal import Journal, Mark, read_journal
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS, SWITCHED, Tail

log = logging.getLogger(__name__)


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
        if evidence.evident_phase(device, journal.run) == SWITCHED:
            log.warning("%s: the mark in its label is a late one; the run has been committed", device.name)
            return _switched(label, journal)
    for journal in others:
        if evidence.is_prepared(device, journal.run) and has_begun(device, journal):
            log.warning("%s: the mark in its label is a late one; a later run has begun", device.name)
            return Mark(label, journal.tail(IN_PROGRESS), journal)
    return Mark(label, tail, own) if own else None


def left_behind(device: Device, label: Label) -> Optional[Mark]:
    """A run that is over for the label, and whose new identities are in the contents: they came late. Else None."""
    for journal in _rivals(device, label):
        ready = evidence.is_prepared(device, journal.run) or evidence.is_going_back(device, journal.run)
        if ready and has_begun(device, journal):
            return Mark(label, journal.tail(IN_PROGRESS), journal)
    return None


def _rivals(device: Device, label: Label) -> Iterable[Journal]:
    """Journals in the metadata areas of runs that began from the identity that the label has."""
    for area in label.mdas:
        length = min(area.size, SEARCH_BYTES, device.size_bytes - area.offset)
        for journal in journals_in(device, Range(area.offset, max(0, length))):
            run = journal.run
            before = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
            if (before.pv_id, before.mdas, before.number) == (label.pv_id, label.mdas, label.number):
                yield journal


def _switched(label: Label, journal: Journal) -> Mark:
    """The mark as it was when the run was committed."""
    tail = journal.tail(SWITCHED)
    sector = switched_label(label, journal.run, tail)
    return Mark(pv.parse_label(sector, label.number, Place("the label", 0)), tail, journal)
