# SPDX-License-Identifier: LGPL-2.1-only
"""Recover a run that was cut. The commit record in the label says whether the run was cut before or after its commit.

    cut before the commit    roll the run back
    cut after the commit     finish the run
    the LUN contradicts      refuse

LVM, SM or a VM may have written to the LUN since the cut. Their writes stay.
"""

import logging
from typing import List, Optional, Sequence

from relvmoiscsi.device import SECTOR, Chunk, Device, Fence, MemoryDevice, Range
from relvmoiscsi.errors import (
    NOTHING_WRITTEN,
    FormatError,
    Place,
    Refused,
    RelvmoiscsiError,
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
    CommitRecord,
    is_of_another_lun,
    written_by,
)
from relvmoiscsi.resignature.protocol.identities import read_written
from relvmoiscsi.resignature.protocol.journal import EarlierRun
from relvmoiscsi.resignature.protocol.merged_image import FULL_UNIT, all_the_same
from relvmoiscsi.resignature.protocol.sentences import on_a_copy, since_begun, unfinished
from relvmoiscsi.resignature.reading.survey import read_label, read_sr, vg_in
from relvmoiscsi.resignature.recovery.earlier_run import contradiction, find_unfinished, wrong_ids
from relvmoiscsi.resignature.writing.finalize import finalize, metadata_end
from relvmoiscsi.resignature.writing.step import flush, read_back, read_back_all, step, write
from relvmoiscsi.wording import first_of, said, shell_command

log = logging.getLogger(__name__)


def finish(device: Device, earlier: EarlierRun) -> None:
    """Take steps 5 and 6 of a run that was cut after its commit. A second call changes nothing.

    The caller has verified the run (`verify_recoverable`). Raises Refused for a LUN that contradicts the commit record
    since; Unfinished, Overtaken and DeviceError after a write.
    """
    run = earlier.journal.run
    still = f"{device.name} still holds an unfinished {KINDS[run.kind]}."
    with in_state(still, FormatError), since_begun(device.name, run.kind, earlier.label.offset):
        earlier = _claimed(device, earlier)
        _verify_fits(device, earlier, f"Only the commit record of {device.name} was written.")
        device.fence.hold_also(_headers(device, [area for move in run.mdas for area in (move.original, move.second)]))
        finalize(device, earlier.label, earlier.journal)


def roll_back(device: Device, earlier: EarlierRun) -> None:
    """Give the old contents and the old label back to a LUN whose run was cut before its commit.

    Writes of other programs since the cut stay, in the label too. When LVM has changed the volume group since the cut,
    other volumes may have the extents: then `put_back` is careful. Zeros replace the headers of the second areas:

        t0    host A sends the commit, and stalls
        t1    host B rolls the run back
        t2    host A's commit arrives: the label lists second areas without headers, so LVM sees no half-written SR

    The caller has verified the run (`verify_recoverable`). Raises Refused for a LUN that contradicts the commit record
    since; Unfinished, Overtaken and DeviceError after a write.
    """
    run = earlier.journal.run
    with since_begun(device.name, run.kind, earlier.label.offset):
        earlier = _claimed(device, earlier)
        _verify_fits(device, earlier, f"Only the commit record of {device.name} was written.")
        headers = _headers(device, [move.original for move in run.mdas])
        device.fence.hold_also(headers)
        careful = [chunk.data for chunk in headers] != [move.old_header for move in run.mdas]
        buffer = read_written(device, run)
        stay = identities.put_back(run, buffer, careful)
        for field in first_of([f"{one.what} at byte {one.pieces[0].offset}" for one in stay]):
            log.warning("%s: another program has changed a field, which stays: %s", device.name, field)
        chunks = buffer.changes(device.block_size)
        for place, data in _headers(device, [move.second for move in run.mdas if move.moves]):
            header = pv.MdaHeader.at(data)
            if (header.magic, header.start) == (pv.MDA_MAGIC, place):  # the header is still on the device
                chunks.append(Chunk(place, bytes(SECTOR)))
        units = all_the_same(run.merged.full if run.merged is not None and not careful else (), FULL_UNIT)
        step(device, steps.OLD_CONTENTS, chunks, units=units)
        read_back(device, chunks)
        read_back_all(device, units)
        # the label from before the run, with the changes that LVM has made since: by `pvresize`, for example
        sector = run.old_label
        if earlier.label.sector != earlier.journal.label(IN_PROGRESS):
            sector = pv.sealed_label(earlier.label.sector[:COMMIT_RECORD_AT] + sector[COMMIT_RECORD_AT:])
        label = [Chunk(earlier.label.offset, sector)]
        step(device, steps.OLD_LABEL, label)
        read_back(device, label)


def _claimed(device: Device, earlier: EarlierRun) -> EarlierRun:
    """Claim the run. After that, the client that began the run cannot write any more (`Fence`).

    Where that client was of this host, over the same transport, it has ended: the caller has the lock of the LUN and
    has opened the LUN. Otherwise, say so, and wait for its lease. Returns the run as it was found, without writer and
    claim.
    """
    found, fence = earlier.label.sector, device.fence
    is_ours = fence.is_alone or any(fence.writer) and earlier.commit_record.writer == fence.writer
    fence.hold([Chunk(earlier.label.offset, found)])
    claimed = Chunk(earlier.label.offset, written_by(found, fence.writer if is_ours else bytes(4), fence.claim))
    write(device, [claimed])
    flush(device)
    if not is_ours:
        log.warning(  # SMlog, and stderr of the command
            "Another host may have begun the run on %s, or this host by another way to the LUN: waiting %g seconds "
            "for its last write.",
            device.name,
            Fence.OUTLAST_SECONDS,
        )
        device.end_late_writes(of_another_host=True)
    fence.look(device.read)
    label = pv.parse_label(written_by(found, bytes(4)), earlier.label.number, Place(device.name, earlier.label.offset))
    return earlier._replace(label=label)


def _headers(device: Device, areas: Sequence[Range]) -> List[Chunk]:
    places = [Range(area.offset, SECTOR) for area in areas]
    return [Chunk(place.offset, data) for place, data in zip(places, device.read(places))]


# --- whether `recover` ends the run


def verify_recoverable(device: Device, earlier: EarlierRun, scsi_id: Optional[str] = None) -> None:
    """Raises Refused for a run that `recover` does not end on the LUN of this SCSIid. Nothing was written.

    The metadata areas contradict the commit record, or the run must be finished and was begun on another LUN:
    finishing would give this copy the ids of that LUN.
    """
    with in_state(NOTHING_WRITTEN):
        _verify_fits(device, earlier, NOTHING_WRITTEN)
    name, run, record = device.name, earlier.journal.run, earlier.commit_record
    if record.phase == IN_PROGRESS or not scsi_id or not is_of_another_lun(record, scsi_id):
        return
    command = shell_command("relvmoiscsi undo", name)
    way_out = f"Run `{command}`, then resignature it."
    if run.merged is not None:
        way_out, command = on_a_copy(name, record), shell_command("relvmoiscsi resignature --vdis one", name)
    problem = f"{name} is a copy of a LUN whose resignature was cut (SCSIid {said(run.scsi_id or 'unknown')})."
    raise Refused(problem).advising(way_out, command).in_state(NOTHING_WRITTEN)


def _verify_fits(device: Device, earlier: EarlierRun, state: str) -> None:
    with in_state(state, FormatError, Refused):
        found = misfit(device, earlier) or _wrong_end(device, earlier)
        if found:
            raise contradiction(device.name, earlier.commit_record, found)


def _wrong_end(device: Device, earlier: EarlierRun) -> str:
    """A clause about the LUN where the run would not end with the ids of its journal; "" for any other run."""
    if earlier.commit_record.phase == IN_PROGRESS:
        return ""
    end, after = metadata_end(device, earlier.label, earlier.journal), MemoryDevice(device)
    after.write([*end.copies, *end.headers, end.label])
    try:
        found = wrong_ids(earlier, *read_sr(after, read_label(after)))
    except FormatError as error:
        found = f"no metadata that reads: {error.message.rstrip('.')}"
    return f"the run would leave {found}" if found else ""


def misfit(device: Device, earlier: EarlierRun) -> str:
    """A clause about metadata areas that contradict the commit record; "" where a cut run, or LVM, left them."""
    run = earlier.journal.run
    headers = _headers(device, [move.original for move in run.mdas])
    for move, (_offset, header) in zip(run.mdas, headers):
        if not move.moves:
            continue
        first = vg_in(device, move.original) if header != move.old_header else None
        wrong = ""  # a phrase about the area that contradicts the commit record
        if earlier.commit_record.phase == SWITCHED:
            second = vg_in(device, move.second)
            if second is None or second.pv_id != run.new_pv_id:
                wrong = _holds(move.second, second, run.new_pv_id)
            elif first is not None and first.pv_id != run.new_pv_id:
                wrong = _holds(move.original, first, run.new_pv_id)
            elif first is not None and first.seqno > second.seqno:
                places = f"at byte {move.original.offset}, {second.seqno} at byte {move.second.offset}"
                wrong = f"the area that it left has the newer text: seqno {first.seqno} {places}"
        elif header != move.old_header and (first is None or first.pv_id != earlier.label.pv_id):
            wrong = _holds(move.original, first, earlier.label.pv_id)
        if wrong:
            return wrong
    return ""


def _holds(area: Range, vg: Optional[VolumeGroup], wanted: str) -> str:
    found = f"the volume group of PV {dashed(vg.pv_id)}" if vg is not None else "no metadata that reads"
    return f"the metadata area at byte {area.offset} holds {found}, not that of PV {dashed(wanted)}"


# --- the error of a command that does not recover the run


def cut(device: Device, record: CommitRecord) -> RelvmoiscsiError:
    """The error for the run of this commit record: Unfinished where `recover` ends the run, else as `recover` raises.

    Whether the run was begun on this LUN, the caller knows.
    """
    try:
        earlier = find_unfinished(device)
        if earlier is not None:
            verify_recoverable(device, earlier)
    except (FormatError, Refused) as problem:
        return problem
    found = unfinished(device.name, record)
    if earlier is not None and earlier.commit_record.phase == SWITCHED and earlier.journal.run.merged is not None:
        found.advising(on_a_copy(device.name, record))
    return found
