# SPDX-License-Identifier: LGPL-2.1-only
"""Find the label that counts where the one on the LUN has landed late and does not go with the metadata areas.

A commit or a final label was reported as not written; its run was taken back, or finished, and others have come since.
Then it lands. A run that is taken back leaves a second area without a header, so LVM finds nothing by its commit; and
a label whose PV id the metadata text does not have, LVM refuses as well. So nobody uses such a LUN, and what it holds
is that of the metadata area where LVM put it:

    the text there has the new PV id of a run      that run has been committed; it is finished
    a run has begun to write its contents          that run was cut; its mark is put back
    the text there has the PV id from before       the label from before, which was there when that run was taken back

A header that has landed late looks alike, and then the label is right. So where LVM finds metadata by the label, only
a run whose new identities are in the contents counts, and the label's own run must not be such a one.

Journals are found by looking, and several that lead to different labels are refused.
"""

import logging
from typing import Iterable, NamedTuple, Optional, Sequence

from relvmoiscsi.device import SECTOR, Device, Range
from relvmoiscsi.errors import FormatError, Place, Refused
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.after_a_cut import evidence, repair
from relvmoiscsi.resignature.after_a_cut.evidence import has_begun, vg_in
from relvmoiscsi.resignature.after_a_cut.journal_search import journals_in, spans
from relvmoiscsi.resignature.planning.labels import Labels, switched_label
from relvmoiscsi.resignature.protocol.journal import Journal, Mark, read_journal
from relvmoiscsi.resignature.protocol.mark import IN_PROGRESS, SWITCHED, Tail
from relvmoiscsi.resignature.protocol.run import MdaMove, Run
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.writing.canvas import read_canvas

log = logging.getLogger(__name__)

_IN_THE_JOURNAL = Place("the journal", 0)


def is_stale(device: Device, label: Label, tail: Optional[Tail]) -> bool:
    """Whether the label does not go with the metadata areas, as only one that has landed late does."""
    if tail is not None and tail.phase == SWITCHED:
        try:
            own = read_journal(device, tail, label).run
        except FormatError:
            return not any(found and found.pv_id == label.pv_id for found in (vg_in(device, a) for a in label.mdas))
        return not _is_genuine(device, own)
    if tail is not None and tail.phase == IN_PROGRESS:
        return False  # `late_label` looks at these
    try:
        mdas = [mda for mda in survey.read_mdas(device, label) if mda.has_text]
        texts = pv.read_texts(device, mdas)
    except FormatError:
        return False
    pv_id = dashed(label.pv_id).encode("ascii")
    return bool(texts) and not any(pv_id in text for text in texts)


def _is_genuine(device: Device, run: Run) -> bool:
    """Whether the metadata areas are as a run's commit, its step 5 or LVM behind them leave them."""
    for move in (move for move in run.mdas if move.moves):
        header = device.read([Range(move.original.offset, SECTOR)])[0]
        first, second = vg_in(device, move.original), vg_in(device, move.second)
        was_switched = second is not None and second.pv_id == run.new_pv_id
        if first is not None and first.pv_id == run.new_pv_id:
            fits = was_switched or header in (move.old_header, move.final_header) or not _ends_otherwise(device, run)
        elif was_switched:  # a header of an earlier run may have landed late, and then it is not the label
            fits = first is None or header == move.old_header or _shows(device, run)
        else:
            fits = (first is None or header == move.old_header) and not _is_gone(device, run, move)
        if not fits:
            return False
    return True


def _is_gone(device: Device, run: Run, move: MdaMove) -> bool:
    """Whether a second area was taken away: its header is zeros, or another run has written there since."""
    place = Range(move.second.offset, SECTOR)
    if not any(device.read([place])[0]):
        return True
    others = [journal for journal in _journals(device) if journal.run.run_id != run.run_id]
    taken = [Range(journal.offset, len(journal.data)) for journal in others]
    taken += [Range(*other.second) for journal in others for other in journal.run.mdas if other.moves]
    return any(part.offset <= place.offset < part.end for part in taken)


def _ends_otherwise(device: Device, run: Run) -> bool:
    """Whether another run with the same new PV id, which was chosen then, has left its journal."""
    return any(j.run.run_id != run.run_id and j.run.new_pv_id == run.new_pv_id for j in _journals(device))


def find_mark(device: Device, label: Label, tail: Optional[Tail]) -> Optional[Mark]:
    """The run to go on from; None when no journal fits. Raises Refused where several do."""
    journals = list(_journals(device))
    own = tail.run_id if tail is not None else b""
    others = [journal for journal in journals if journal.run.run_id != own]
    mine = [journal for journal in journals if journal.run.run_id == own]
    if _leads_somewhere(device, label):  # then it may be a header that has landed late, and the contents must tell
        if any(_shows(device, journal.run) or not repair.tells(journal.run) for journal in mine):
            return None
        others = [journal for journal in others if _shows(device, journal.run)]
        journals = mine + others
    looks = ((others, _begun), (mine, _before), (others, _committed), (others, _before), (mine, _committed))
    for several, mark in looks:
        found = [one for one in (mark(device, journal) for journal in several) if one is not None]
        if found:
            return _the_one(device, found)
    return None


def _leads_somewhere(device: Device, label: Label) -> bool:
    """Whether LVM finds metadata by a label, be it that of another PV."""
    return any(vg_in(device, area) is not None for area in label.mdas)


def _shows(device: Device, run: Run) -> bool:
    """Whether new identities of a run are in the contents."""
    return repair.shows_new(run, read_canvas(device, run))


class _Candidate(NamedTuple):
    """A run to go on from, and what makes it another one than the next."""

    mark: Mark
    leads_to: bytes


def _the_one(device: Device, found: Sequence[_Candidate]) -> Mark:
    if len({one.leads_to for one in found}) > 1:
        places = ", ".join(str(one.mark.journal.offset) for one in found)
        raise Refused(f"{device.name}: a label has landed late, and several journals fit (bytes {places}).")
    mark = found[0].mark
    log.warning("%s: its label is a late one; the journal at byte %d counts", device.name, mark.journal.offset)
    return mark


def _journals(device: Device) -> Iterable[Journal]:
    seen = set()
    for span in spans(device):
        for journal in journals_in(device, span):
            if journal.offset not in seen:
                seen.add(journal.offset)
                yield journal


def _before_of(journal: Journal) -> Label:
    return pv.parse_label(journal.run.old_label, journal.run.label_number, _IN_THE_JOURNAL)


def _committed(device: Device, journal: Journal) -> Optional[_Candidate]:
    """The mark "switched" of a run, where the original areas say that it has been committed."""
    run = journal.run
    texts = [vg_in(device, move.original) for move in run.mdas if move.moves]
    if not any(vg is not None and vg.pv_id == run.new_pv_id for vg in texts):
        return None
    if evidence.is_taken_back(device, run):
        return None
    tail = journal.tail(SWITCHED)
    sector = switched_label(_before_of(journal), run, tail)
    mark = Mark(pv.parse_label(sector, run.label_number, _IN_THE_JOURNAL), tail, journal)
    return _Candidate(mark, run.run_id)


def _begun(device: Device, journal: Journal) -> Optional[_Candidate]:
    """The mark "in progress" of a run that was cut while it wrote contents."""
    if not (evidence.is_prepared(device, journal.run) and has_begun(device, journal)):
        return None
    sector = Labels.of(journal).in_progress
    label = pv.parse_label(sector, journal.run.label_number, _IN_THE_JOURNAL)
    return _Candidate(Mark(label, journal.tail(IN_PROGRESS), journal), journal.run.run_id)


def _before(device: Device, journal: Journal) -> Optional[_Candidate]:
    """The way back to the label from before a run; of one that has not begun, to nothing but that."""
    before, run = _before_of(journal), journal.run
    texts = [vg_in(device, move.original) for move in run.mdas if move.moves]
    if not any(vg is not None and vg.pv_id == before.pv_id for vg in texts):
        return None
    if not evidence.is_taken_back(device, run):
        run = run._replace(writes=(), fields=(), rebuilt=None)
    mark = Mark(before, journal.tail(IN_PROGRESS), journal._replace(run=run), back=True)
    return _Candidate(mark, run.old_label)


def readable_or_none(device: Device, label: Label, tail: Optional[Tail]) -> Optional[bool]:
    """Whether a stale label can be put right; None: it is not stale. Raises DeviceError only."""
    try:
        if not is_stale(device, label, tail):
            return None
        return find_mark(device, label, tail) is not None
    except Refused:
        return True
