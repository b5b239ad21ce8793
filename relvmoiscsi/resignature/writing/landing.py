# SPDX-License-Identifier: LGPL-2.1-only
"""The end of a run: headers and label go back to where LVM put them, with the text that is committed then.

LVM may have gone on in the second areas, so the text need not be the one that the run wrote.
"""

import errno
import logging
from typing import List, NamedTuple, Optional, Set, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_up
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused
from relvmoiscsi.formats.lvm import layout, pv, ring
from relvmoiscsi.formats.lvm.pv import Label, Mda
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.resignature.after_a_cut.evidence import vg_in
from relvmoiscsi.resignature.planning.labels import Labels, final_label
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.journal import Journal
from relvmoiscsi.resignature.protocol.mark import DONE, UNDO
from relvmoiscsi.resignature.protocol.run import MdaMove, Run
from relvmoiscsi.resignature.writing import rebuilding
from relvmoiscsi.resignature.writing.apply import step
from relvmoiscsi.resignature.writing.reading_back import read_back

log = logging.getLogger(__name__)


class Surroundings(NamedTuple):
    """What lies around label and headers now, in blocks larger than a sector; of a torn one, what was there before."""

    blocks: Tuple[Chunk, ...]
    torn: Set[int]  #: where those begin that have to be written as a whole


def read_surroundings(device: Device, run: Run) -> Surroundings:
    blocks, torn = [], set()
    for block in run.blocks:
        try:
            found = device.read([Range(block.offset, len(block.data))])[0]
            _verify_marks(found, block.offset, run)
            blocks.append(Chunk(block.offset, found))
        except (DeviceError, FormatError) as problem:
            if isinstance(problem, DeviceError) and problem.errno != errno.ENODATA:
                raise
            log.info("the block at byte %d of %s is torn: %s", block.offset, device.name, problem)
            torn.add(block.offset)
            blocks.append(block)
    return Surroundings(tuple(blocks), torn)


def _verify_marks(data: bytes, start: int, run: Run) -> None:
    """The label or header in a block is whole. Raises FormatError."""
    if start == 0:
        at = run.label_number * SECTOR
        pv.parse_label(data[at : at + SECTOR], run.label_number, Place("a block", at))
    for move in run.mdas:
        if move.original.offset == start:
            pv.parse_mda(data[:SECTOR], move.original, Place("a block", start))


def settle(device: Device, label: Label, journal: Journal, around: Surroundings, late: List[Chunk]) -> None:
    """Steps 5 and 6, from a label that lists the second areas; `late` contents go along with step 5."""
    run = journal.run
    planned = [move.final_header for move in run.mdas if move.moves]
    if _has_moved_on(device, label, run):
        headers, copies = [], []  # type: List[Chunk], List[Chunk]
    else:
        headers, copies = landed_headers(device, label, journal)
    late = [*late, *_free_slots(device, label, run)]
    step(device, steps.HEADERS, [*late, *copies, *headers], *around)
    as_planned = [chunk.data for chunk in headers] == planned and label.sector == Labels.of(journal).switched
    if run.kind == UNDO and as_planned:
        sector = run.final_label
    else:
        sector = final_label(label, run, journal.tail(DONE))
    step(device, steps.FINAL, [Chunk(label.offset, sector)], *around)
    read_back(device, [*late, *headers, Chunk(label.offset, sector)])


def _free_slots(device: Device, label: Label, run: Run) -> List[Chunk]:
    """Empty the bitmaps of slots that are given away; what is to be written behind them."""
    if run.rebuilt is None:
        return []
    vg = _newest_vg(device, label, run)
    units = rebuilding.empty_units(device, run.rebuilt, vg)
    if any(True for _unit in units):
        step(device, steps.HOLES, (), units=units)
    return rebuilding.table_units(device, run.rebuilt, vg)


def _newest_vg(device: Device, label: Label, run: Run) -> Optional[VolumeGroup]:
    """The volume group under its new identity, as LVM has it now."""
    areas = dict.fromkeys([*label.mdas, *(move.original for move in run.mdas)])
    found = [vg for vg in (vg_in(device, area) for area in areas) if vg is not None and vg.pv_id == run.new_pv_id]
    return max(found, key=lambda vg: vg.seqno) if found else None


def _has_moved_on(device: Device, label: Label, run: Run) -> bool:
    """Whether the original areas hold a later text than the second ones: then the label came late."""
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    for move, area, header in zip(run.mdas, label.mdas, headers):
        if move.moves and header != move.old_header:
            first, second = vg_in(device, move.original), vg_in(device, area)
            if second is not None and header == move.final_header:
                continue
            if first and first.pv_id == run.new_pv_id and (second is None or first.seqno > second.seqno):
                return True
    return False


def landed_headers(device: Device, label: Label, journal: Journal) -> Tuple[List[Chunk], List[Chunk]]:
    """What step 5 writes: headers for the original areas that point to the texts committed now.

    A text that wraps inside its second area cannot be pointed to from the original one; it is copied as well. The
    copies are the second result. They go to free space only, so the same comes out however often this is asked. They
    need no flush of their own: until the label lists the original areas again, nobody reads there.
    """
    moving = [(move, area) for move, area in zip(journal.run.mdas, label.mdas) if move.moves]
    current = device.read([Range(area.offset, SECTOR) for _move, area in moving])
    headers: List[Chunk] = []
    copies: List[Chunk] = []
    for (move, area), data in zip(moving, current):
        if area == move.original or data == move.second_header:
            headers.append(Chunk(move.original.offset, move.final_header))
            continue
        mda = pv.parse_mda(data, area, Place(device.name, area.offset))
        text = pv.read_texts(device, [mda])[0]
        pv.verify_text(text, mda.committed, Place(device.name, area.offset))
        at, copy = _landing(mda, move, text, journal)
        copies += copy
        location = pv.text_location(move.original, at, text)
        like = layout.MdaHeader.at(move.old_header)
        headers.append(Chunk(move.original.offset, bytes(pv.mda_header(move.original, location, like))))
    return headers, copies


def _landing(mda: Mda, move: MdaMove, text: bytes, journal: Journal) -> Tuple[int, List[Chunk]]:
    """Where the text is, or will be, in one piece; and the chunk that brings it there, if one is needed."""
    place = Place("the second metadata area", mda.area.offset)
    live = pv.text_ranges(mda.area, mda.committed, place)
    if len(live) == 1:
        return live[0].offset, []
    keep = [Range(mda.area.offset, layout.MDA_HEADER_SIZE), Range(journal.offset, len(journal.data))]
    inside = [part for part in keep if move.original.offset <= part.offset < move.original.end]
    for part in ring.free_ranges(move.original, live, inside):
        if part.length >= align_up(len(text), ring.ALIGNMENT):
            return part.offset, [Chunk(part.offset, text.ljust(align_up(len(text), ring.ALIGNMENT), b"\0"))]
    raise Refused("There is no room to bring the metadata text back to its original area.", sm_key="SRNoSpace")
