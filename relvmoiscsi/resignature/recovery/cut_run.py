# SPDX-License-Identifier: LGPL-2.1-only
"""Settle a run that was cut. The mark in the label says whether the run was cut before or after its commit.

    cut before the commit    roll the run back
    cut after the commit     finish the run
    the LUN contradicts      refuse

LVM, SM or a VM may have written to the LUN since the cut. Their writes stay.
"""

import logging
from typing import List, Optional, Sequence

from relvmoiscsi.device import SECTOR, Chunk, Device, Fence, Range
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    FormatError,
    Place,
    Refused,
    Unfinished,
    in_state,
)
from relvmoiscsi.formats.identity import dashed
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.resignature.protocol import identities, steps
from relvmoiscsi.resignature.protocol.commit_record import (
    COMMIT_RECORD_AT,
    IN_PROGRESS,
    KINDS,
    SWITCHED,
    written_by,
)
from relvmoiscsi.resignature.protocol.identities import read_written
from relvmoiscsi.resignature.protocol.journal import Labels, Mark
from relvmoiscsi.resignature.protocol.rebuilt import full_units
from relvmoiscsi.resignature.protocol.run_record import MdaMove, Run
from relvmoiscsi.resignature.protocol.sentences import on_a_copy, since_mark, unfinished, waiting
from relvmoiscsi.resignature.reading.survey import vg_in
from relvmoiscsi.resignature.writing.finalize import finalize
from relvmoiscsi.resignature.writing.step import flush, read_back, read_back_all, step, write

log = logging.getLogger(__name__)


def finish(device: Device, mark: Mark) -> None:
    """Take steps 5 and 6 of a run that was cut after its commit. A second call changes nothing.

    Raises Refused for a LUN that contradicts the mark; Unfinished, Overtaken and DeviceError after a write.
    """
    run = mark.journal.run
    still = f"{device.name} still holds an unfinished {KINDS[run.kind]}."
    with in_state(still, FormatError), since_mark(device.name, run.kind, mark.label.offset):
        _verify_fits(device, mark, NOTHING_WRITTEN)
        mark = _claimed(device, mark)
        _verify_fits(device, mark, f"Only the mark of {device.name} was written.")
        device.fence.hold_also(_headers(device, [area for move in run.mdas for area in (move.original, move.second)]))
        finalize(device, mark.label, mark.journal)


def roll_back(device: Device, mark: Mark) -> None:
    """Give the old contents and the old label back to a LUN whose run was cut before its commit.

    Writes of other programs since the cut stay, in the label too. When LVM has changed the volume group since the cut,
    other volumes may have the extents: then `put_back` is careful. Zeros replace the headers of the second areas:

        t0    host A sends the commit, and stalls
        t1    host B rolls the run back
        t2    host A's commit arrives: the label lists second areas without headers, so LVM sees no half-written SR

    Raises Refused for a LUN that contradicts the mark; Unfinished, Overtaken and DeviceError after a write.
    """
    run = mark.journal.run
    with since_mark(device.name, run.kind, mark.label.offset):
        _verify_fits(device, mark, NOTHING_WRITTEN)
        mark = _claimed(device, mark)
        _verify_fits(device, mark, f"Only the mark of {device.name} was written.")
        headers = _headers(device, [move.original for move in run.mdas])
        device.fence.hold_also(headers)
        careful = [chunk.data for chunk in headers] != [move.old_header for move in run.mdas]
        buffer = read_written(device, run)
        for field in identities.put_back(run, buffer, careful):
            place = field.pieces[0].offset
            log.warning("%s: %s at byte %d was changed by another program; it stays", device.name, field.what, place)
        chunks = buffer.changes(device.block_size)
        for place, data in _headers(device, [move.second for move in run.mdas if move.moves]):
            header = pv.MdaHeader.at(data)
            if (header.magic, header.start) == (pv.MDA_MAGIC, place):  # the header is still on the device
                chunks.append(Chunk(place, bytes(SECTOR)))
        units = () if careful else full_units(run.rebuilt)
        step(device, steps.OLD_CONTENTS, chunks, units=units)
        read_back(device, chunks)
        read_back_all(device, units)
        # the label from before the run, with the changes that LVM has made since: by `pvresize`, for example
        sector = run.old_label
        if mark.label.sector != Labels.of(mark.journal).in_progress:
            sector = pv.sealed_label(mark.label.sector[:COMMIT_RECORD_AT] + sector[COMMIT_RECORD_AT:])
        label = [Chunk(mark.label.offset, sector)]
        step(device, steps.OLD_LABEL, label)
        read_back(device, label)


def _claimed(device: Device, mark: Mark) -> Mark:
    """Claim the run. After that, the client that began the run cannot write any more (`Fence`).

    Where that client was of this host, over the same transport, it has ended: the caller has the lock of the LUN and
    has opened the LUN. Otherwise, say so, and wait for its lease. Returns the mark as it was made, without writer and
    claim.
    """
    found, fence = mark.label.sector, device.fence
    is_ours = any(fence.writer) and mark.commit_record.writer == fence.writer
    fence.hold([Chunk(mark.label.offset, found)])
    claimed = Chunk(mark.label.offset, written_by(found, fence.writer if is_ours else bytes(4), fence.claim))
    write(device, [claimed])
    flush(device)
    if not is_ours:
        log.warning("%s", waiting(device.name, Fence.OUTLAST_SECONDS))  # SMlog, and stderr of the command
        device.end_late_writes(of_another_host=True)
    fence.look(device.read)
    label = pv.parse_label(written_by(found, bytes(4)), mark.label.number, Place(device.name, mark.label.offset))
    return mark._replace(label=label)


def _headers(device: Device, areas: Sequence[Range]) -> List[Chunk]:
    places = [Range(area.offset, SECTOR) for area in areas]
    return [Chunk(place.offset, data) for place, data in zip(places, device.read(places))]


# --- whether the metadata areas contradict the mark


def _verify_fits(device: Device, mark: Mark, state: str) -> None:
    found = misfit(device, mark)
    if found is not None:
        raise Refused(found, sm_key="SRUnavailable").in_state(state)


def misfit(device: Device, mark: Mark) -> Optional[str]:
    """A message about metadata areas that contradict the mark; None when a cut run, or LVM since, left these areas."""
    run = mark.journal.run
    headers = _headers(device, [move.original for move in run.mdas])
    for move, (_offset, header) in zip(run.mdas, headers):
        if not move.moves:
            continue
        first = vg_in(device, move.original) if header != move.old_header else None
        is_old = header == move.old_header or first is not None and first.pv_id == mark.label.pv_id
        wrong = "" if is_old else _holds(move.original, first, mark.label.pv_id)
        if mark.commit_record.phase == SWITCHED:
            wrong = _wrong_behind(run, move, first, vg_in(device, move.second))
        if wrong:
            when = "before" if mark.commit_record.phase == IN_PROGRESS else "behind"
            return (
                f"The label of {device.name} says that a {KINDS[run.kind]} was cut {when} its commit, and {wrong}. A "
                "write of another host may have arrived late. The right content of the LUN is unknown: take the clone "
                "again."
            )
    return None


def _wrong_behind(run: Run, move: MdaMove, first: Optional[VolumeGroup], second: Optional[VolumeGroup]) -> str:
    """A phrase when the second area lacks the new identity, or the original area has another or a newer VG; else ""."""
    if second is None or second.pv_id != run.new_pv_id:
        return _holds(move.second, second, run.new_pv_id)
    if first is not None and first.pv_id != run.new_pv_id:
        return _holds(move.original, first, run.new_pv_id)
    if first is not None and first.seqno > second.seqno:
        newer = f"seqno {first.seqno} at byte {move.original.offset}, {second.seqno} at byte {move.second.offset}"
        return f"the area that it left has the newer text: {newer}"
    return ""


def _holds(area: Range, vg: Optional[VolumeGroup], wanted: str) -> str:
    found = f"the volume group of PV {dashed(vg.pv_id)}" if vg is not None else "no metadata that reads"
    return f"the metadata area at byte {area.offset} holds {found}, not that of PV {dashed(wanted)}"


# --- the error of a command that does not settle the run


def cut(device: Device, mark: Mark) -> Unfinished:
    """The error for an unfinished run with its journal; the message says how to settle the run."""
    wrong = misfit(device, mark)
    if wrong is not None:
        return Unfinished(wrong)
    found = unfinished(device.name, mark.commit_record)
    if mark.commit_record.phase == SWITCHED and mark.journal.run.rebuilt is not None:
        found.message += " " + on_a_copy(device.name)
    return found
