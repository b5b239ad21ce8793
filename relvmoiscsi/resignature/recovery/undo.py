# SPDX-License-Identifier: LGPL-2.1-only
"""The undo of a run that is done: a run by the same protocol, which gives the old identities back."""

from typing import List, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.device import Device, Range
from relvmoiscsi.errors import Place, Refused
from relvmoiscsi.formats.identity import Entropy
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.vg import read_vg
from relvmoiscsi.resignature.planning.plan_check import check_undo
from relvmoiscsi.resignature.planning.run_plan import Plan, place_in_ring
from relvmoiscsi.resignature.planning.volume_writes import undone_contents
from relvmoiscsi.resignature.protocol import identities
from relvmoiscsi.resignature.protocol.commit_record import UNDO
from relvmoiscsi.resignature.protocol.identities import read_written
from relvmoiscsi.resignature.protocol.journal import EarlierRun
from relvmoiscsi.resignature.protocol.run_record import Run
from relvmoiscsi.resignature.protocol.sentences import TAKE_AGAIN
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.lun_contents import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache


def prepare_undo(device: Device, earlier: EarlierRun, entropy: Entropy) -> Tuple[Plan, Lun]:
    """The plan that reverses a finished run, and the LUN after the undo. Raises Refused after a change of the LUN."""
    run = earlier.journal.run
    cache = ReadCache(device)
    mdas = survey.read_mdas(cache, earlier.label)
    if [bytes(mda.header) for mda in mdas] != [move.final_header for move in run.mdas]:
        problem = f"{device.name} cannot be undone: LVM has changed the volume group since."
        raise Refused(problem).advising(TAKE_AGAIN)
    buffer = read_written(cache, run)
    changed = identities.first_changed(run, buffer)
    if changed is not None:
        raise Refused(
            f"{cache.name}: {changed.what} at byte {changed.pieces[0].offset} has changed since the resignature; an "
            "undo would lose that."
        ).advising(TAKE_AGAIN)
    writes = undone_contents(run, buffer, cache.read)
    text, live = old_text(cache, run)
    before = pv.parse_label(run.old_label, run.label_number, Place("the journal", 0))
    undone = Run(
        kind=UNDO,
        run_id=entropy(16),
        scsi_id=run.scsi_id,
        tool=__version__,
        ids=run.ids.reversed(),
        replaced=run.replaced,
        label_number=earlier.label.number,
        old_label=earlier.label.sector,
        new_pv_id=before.pv_id,
        final_label=run.old_label,
        mdas=(),
        writes=writes,
        fields=run.fields,
        block_bytes=run.block_bytes,
        unverified=run.unverified,
    )
    # the old text, and the journal of the finished run, stay until the commit of the undo
    retained = [*live, Range(earlier.journal.offset, len(earlier.journal.data))]
    finals = [move.old_header for move in run.mdas]
    made = place_in_ring(undone, "The LUN", mdas, text, finals, retained)
    return made, check_undo(cache, made, run.unverified)


def old_text(device: Device, run: Run) -> Tuple[bytes, List[Range]]:
    """The metadata text from before a run, and the ranges of the texts of all areas.

    When the areas have different texts, the text with the highest seqno counts.
    """
    text, newest, live = b"", -1, []  # type: bytes, int, List[Range]
    for move in run.mdas:
        where = Place(device.name, move.original.offset)
        mda = pv.parse_mda(move.old_header, move.original, where)
        if mda.has_text:
            found = pv.read_text(device, mda)
            seqno = read_vg(found[:-1].decode("latin-1"), where, device.size_bytes).seqno
            if seqno > newest:
                text, newest = found, seqno
            live += pv.text_ranges(mda.area, mda.committed, where)
    return text, live
