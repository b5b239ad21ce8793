# SPDX-License-Identifier: LGPL-2.1-only
"""Steps 5 and 6: the original metadata areas get headers with the committed text, and the label lists these areas.

After a cut, LVM may have committed newer texts in the second areas. The headers then point to the newest text.

Step 5 also gives the free slots of a new image away: first empty bitmaps, then the entries in the block table. Writes
of tapdisk since the commit stay. When LVM has given the extents to another volume, step 5 writes nothing to them.
"""

import logging
from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_up
from relvmoiscsi.errors import Place, Refused
from relvmoiscsi.formats.lvm import pv, ring
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.commit_record import DONE, SWITCHED
from relvmoiscsi.resignature.protocol.journal import Journal
from relvmoiscsi.resignature.protocol.merged_image import (
    EMPTY_UNIT,
    MergedImage,
    all_the_same,
    merged_table,
    not_given_yet,
)
from relvmoiscsi.resignature.reading.survey import vg_in
from relvmoiscsi.resignature.writing.step import read_back, read_back_all, step
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)


def finalize(device: Device, label: Label, journal: Journal) -> None:
    """Take steps 5 and 6 on a device whose label lists the second areas."""
    run = journal.run
    end = metadata_end(device, label, journal)
    slots: List[Chunk] = []  # writes to the block table, which need the empty bitmaps to be durable
    if run.merged is not None:
        # the volume group under its new identity, from the newest committed text
        areas = dict.fromkeys([*label.mdas, *(move.original for move in run.mdas)])
        found = [vg for vg in (vg_in(device, area) for area in areas) if vg is not None and vg.pv_id == run.new_pv_id]
        vg = max(found, key=lambda vg: vg.seqno) if found else None
        slots = give_slots(device, run.merged, vg)
    step(device, steps.HEADERS, [*slots, *end.copies, *end.headers])
    step(device, steps.FINAL, [end.label])
    read_back(device, [*slots, *end.headers, end.label])


class MetadataEnd(NamedTuple):
    """LVM's metadata at the end of a run: the writes of steps 5 and 6."""

    headers: List[Chunk]
    copies: List[Chunk]  #: of texts
    label: Chunk


def metadata_end(device: Device, label: Label, journal: Journal) -> MetadataEnd:
    """The writes to LVM's metadata that end a run on a device whose label lists the second areas. Writes nothing."""
    planned = [move.final_header for move in journal.run.mdas if move.moves]
    headers, copies = _final_headers(device, label, journal)
    as_planned = [chunk.data for chunk in headers] == planned and label.sector == journal.label(SWITCHED)
    return MetadataEnd(headers, copies, Chunk(label.offset, journal.label(DONE, None if as_planned else label)))


def _final_headers(device: Device, label: Label, journal: Journal) -> Tuple[List[Chunk], List[Chunk]]:
    """The writes of step 5: headers for the original areas that point to the committed texts, and copies of texts.

    A header of the original area cannot point to a text that wraps inside the second area. So such a text is copied to
    free space: the second result. A second call gives the same writes. The copies need no flush of their own: LVM does
    not read the original areas before the label lists these areas again.
    """
    moving = [(move, area) for move, area in zip(journal.run.mdas, label.mdas) if move.moves]
    current = device.read([Range(area.offset, SECTOR) for _move, area in moving])
    headers: List[Chunk] = []
    copies: List[Chunk] = []
    for (move, area), data in zip(moving, current):
        if data == move.second_header:
            headers.append(Chunk(move.original.offset, move.final_header))
            continue
        mda = pv.parse_mda(data, area, Place(device.name, area.offset))
        text = pv.read_text(device, mda)
        live = pv.text_ranges(mda.area, mda.committed, Place("the second metadata area", area.offset))
        at = live[0].offset
        if len(live) > 1:
            retained = [Range(area.offset, pv.MDA_HEADER_SIZE), Range(journal.offset, len(journal.data))]
            inside = [part for part in retained if move.original.offset <= part.offset < move.original.end]
            padded = text.ljust(align_up(len(text), ring.ALIGNMENT), b"\0")
            free = (part for part in ring.free_ranges(move.original, live, inside) if part.length >= len(padded))
            room = next(free, None)
            if room is None:
                problem = "There is no room to bring the metadata text back to its original area."
                again = shell_command("relvmoiscsi recover", device.name)
                raise Refused(problem, sm_key="SRNoSpace").advising(
                    f"LVM uses the LUN as it is. After LVM's next change of the volume group, `{again}` may find room."
                )
            at = room.offset
            copies.append(Chunk(at, padded))
        header = pv.mda_header(move.original, at, text, pv.MdaHeader.at(move.old_header))
        headers.append(Chunk(move.original.offset, bytes(header)))
    return headers, copies


def give_slots(device: Device, merged: MergedImage, vg: Optional[VolumeGroup]) -> List[Chunk]:
    """Empty the bitmaps of free slots that the block table does not name yet.

    Returns the writes that give these slots away: units of the block table that lack slots, with all slots. Does
    nothing when other volumes have the extents.
    """
    if vg is None or not merged.is_still_on(vg):
        log.warning("%s: the volume group was changed; free slots of the new image stay unused", device.name)
        return []
    table = [Range(unit.offset, len(unit.old)) for unit in merged.table]
    holes = not_given_yet(merged, device.read(table))
    if holes:
        empty = all_the_same(holes, EMPTY_UNIT)
        step(device, steps.HOLES, (), units=empty)
        read_back_all(device, empty)
    found = [Chunk(part.offset, data) for part, data in zip(table, device.read(table))]
    full = [Chunk(unit.offset, merged_table(unit, chunk.data)) for unit, chunk in zip(merged.table, found)]
    return [after for before, after in zip(found, full) if after != before]
