# SPDX-License-Identifier: LGPL-2.1-only
"""Finish a run that was cut, or take it back.

What recovery does follows from the label:

    no mark        nothing: nothing happened
    in progress    steps 3 to 6 again; identities are put right in what is on the disk now (`resignature.repair`)
    switched       steps 5 and 6, with the text that is committed *then*: LVM may have gone on in the second area
    done           nothing

A label may be older than the rest, where a write that was reported as failed has landed late. The metadata areas tell:
once one of them holds the new PV id where only LVM, or step 5, can have put it, the commit has been (`evident_phase`).
After the commit contents that are still old are put right as well: a label "switched" may come late onto a LUN whose
run was taken back.
"""

import errno
import logging
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_up
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, FormatError, Place, Refused, Unfinished, in_state
from relvmoiscsi.formats.lvm import layout, pv, ring
from relvmoiscsi.formats.lvm.pv import Area, Label, Mda
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.resignature import repair, steps, structure
from relvmoiscsi.resignature.apply import cut_sentence, read_back, step
from relvmoiscsi.resignature.canvas import read_canvas
from relvmoiscsi.resignature.journal import Journal, Mark
from relvmoiscsi.resignature.plan import Labels, final_label, switched_label
from relvmoiscsi.resignature.run import MdaMove, Run
from relvmoiscsi.resignature.tail import DONE, IN_PROGRESS, KINDS, RESIGNATURE, SWITCHED, TAIL_AT, UNDO, Tail

log = logging.getLogger(__name__)

TORN = "torn blocks of volumes"  #: the first part of a step that puts contents right: see `resignature.repair`


class Surroundings(NamedTuple):
    """What lies around label and headers now, in blocks larger than a sector; of a torn one, what was there before."""

    blocks: Tuple[Chunk, ...]
    torn: Set[int]  #: where those begin that have to be written as a whole


def finish(device: Device, mark: Mark) -> None:
    """Steps 3 to 6 from wherever the run was cut. Doing it twice equals doing it once.

    Raises Refused when LVM has changed the VG behind an unfinished run, DeviceError when an operation fails.
    """
    run, label = mark.journal.run, mark.label
    unfinished_still = f"{device.name} still holds an unfinished {KINDS[run.kind]}."
    with in_state(unfinished_still, FormatError), in_state(cut_sentence(device.name, run.kind), DeviceError, Refused):
        around = _surroundings(device, run)
        if mark.tail.phase == IN_PROGRESS:
            _verify_prepared(device, mark)
            _put_contents(device, run)
            sector = switched_label(label, run, mark.journal.tail(SWITCHED))
            step(device, steps.COMMIT, [Chunk(label.offset, sector)], *around)
            label = pv.parse_label(sector, label.number, Place(device.name, label.offset))
            around = Surroundings(around.blocks, set())
            _settle(device, label, mark.journal, around, [])
        else:
            _settle(device, label, mark.journal, around, _late_contents(device, run))


# --- contents


def _put_contents(device: Device, run: Run) -> None:
    """Step 3 again. Raises Refused, and writes nothing, where somebody else has given a volume another identity."""
    canvas = read_canvas(device, run)
    torn = repair.torn_blocks(run, canvas, forward=True)
    for field in repair.put_right(run, canvas, forward=True):
        if structure.checksum_range(field.kind) is not None:
            raise Refused(
                f"{device.name}: somebody has changed the {field.what} at byte {field.pieces[0].offset} since the "
                f"{KINDS[run.kind]} was cut. `relvmoiscsi undo {device.name}` takes the "
                f"{KINDS[run.kind]} back and keeps that change.",
                sm_key="SRUnavailable",
            ).in_state(NOTHING_WRITTEN)
        log.warning("%s: %s at byte %d is somebody else's; it stays", device.name, field.what, field.pieces[0].offset)
    chunks = canvas.changes(device.block_size)
    if torn:
        step(device, steps.CONTENTS, torn, what=TORN)
    step(device, steps.CONTENTS, chunks)
    read_back(device, chunks)


def _late_contents(device: Device, run: Run) -> List[Chunk]:
    """What is still old after the commit; only what is surely ours, since LVM may have gone on."""
    if not run.fields:
        return []
    canvas = read_canvas(device, run)
    repair.put_right(run, canvas, forward=True, careful=True)
    return canvas.changes(device.block_size)


# --- label and headers


def _surroundings(device: Device, run: Run) -> Surroundings:
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


def _settle(device: Device, label: Label, journal: Journal, around: Surroundings, late: List[Chunk]) -> None:
    """Steps 5 and 6, from a label that lists the second areas; `late` contents go along with step 5."""
    run = journal.run
    planned = [move.final_header for move in run.mdas if move.moves]
    if _has_moved_on(device, label, run):
        headers, copies = [], []  # type: List[Chunk], List[Chunk]
    else:
        headers, copies = landed_headers(device, label, journal)
    step(device, steps.HEADERS, [*late, *copies, *headers], *around)
    as_planned = [chunk.data for chunk in headers] == planned and label.sector == Labels.of(journal).switched
    if run.kind == UNDO and as_planned:
        sector = run.final_label
    else:
        sector = final_label(label, run, journal.tail(DONE))
    step(device, steps.FINAL, [Chunk(label.offset, sector)], *around)
    read_back(device, [*late, *headers, Chunk(label.offset, sector)])


def _has_moved_on(device: Device, label: Label, run: Run) -> bool:
    """Whether the original areas hold a later text than the second ones: then the label came late."""
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    for move, area, header in zip(run.mdas, label.mdas, headers):
        if move.moves and header not in (move.old_header, move.final_header):
            first, second = _vg_in(device, move.original), _vg_in(device, area)
            if first and first.pv_id == run.new_pv_id and (second is None or first.seqno > second.seqno):
                return True
    return False


def _vg_in(device: Device, area: Area) -> Optional[VolumeGroup]:
    """The volume group that a metadata area speaks of; None when it does not read."""
    place = Place(device.name, area.offset)
    try:
        mda = pv.parse_mda(device.read([Range(area.offset, SECTOR)])[0], area, place)
        if not mda.has_text:
            return None
        text = pv.read_texts(device, [mda])[0]
        pv.verify_text(text, mda.committed, place)
        return read_vg(text[:-1].decode("latin-1"), place)
    except FormatError:
        return None


def evident_phase(device: Device, run: Run) -> Optional[int]:
    """How far a run has come, by the metadata areas alone; None when they are not as any phase leaves them."""
    if is_prepared(device, run):
        return IN_PROGRESS
    moving = [move for move in run.mdas if move.moves]
    for move in moving:
        found = _vg_in(device, move.original)
        if found and found.pv_id == run.new_pv_id:
            return SWITCHED
    headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
    if headers != [move.old_header for move in run.mdas]:
        return None
    for move in moving:
        found = _vg_in(device, move.second)
        if found and found.pv_id == run.new_pv_id:
            return SWITCHED
    return None


def is_prepared(device: Device, run: Run) -> bool:
    """Whether the metadata areas are as step 1 leaves them: LVM has changed nothing since."""
    moving = [move for move in run.mdas if move.moves]
    found = device.read([Range(m.original.offset, SECTOR) for m in run.mdas])
    if found != [move.old_header for move in run.mdas]:
        return False
    seconds = device.read([Range(m.second.offset, SECTOR) for m in moving])
    return seconds == [move.second_header for move in moving] and _texts_hold(device, moving)


def _verify_prepared(device: Device, mark: Mark) -> None:
    if not is_prepared(device, mark.journal.run):
        raise Refused(
            f"LVM has changed the volume group on {device.name} since the {KINDS[mark.journal.run.kind]} was cut. "
            f"`relvmoiscsi undo {device.name}` takes the "
            f"{KINDS[mark.journal.run.kind]} back and keeps LVM's change.",
            sm_key="SRUnavailable",
        ).in_state(NOTHING_WRITTEN)


def _texts_hold(device: Device, moves: Sequence[MdaMove]) -> bool:
    mdas = [pv.parse_mda(move.second_header, move.second, Place(device.name, move.second.offset)) for move in moves]
    try:
        for mda, text in zip(mdas, pv.read_texts(device, mdas)):
            pv.verify_text(text, mda.committed, Place(device.name, mda.area.offset))
    except FormatError:
        return False
    return True


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


# --- taking an unfinished run back


def roll_back(device: Device, mark: Mark) -> None:
    """Give the old contents and the old label back to a LUN whose run was cut before its commit.

    Where LVM has changed the VG since, volumes may be gone and their extents in other hands: then only what is surely
    ours is touched. What others have written stays, in the label too.
    """
    run = mark.journal.run
    with in_state(cut_sentence(device.name, run.kind), DeviceError, Refused):
        around = _surroundings(device, run)
        headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
        careful = headers != [move.old_header for move in run.mdas]
        canvas = read_canvas(device, run)
        torn = [] if careful else repair.torn_blocks(run, canvas, forward=False)
        for field in repair.put_right(run, canvas, forward=False, careful=careful):
            place = field.pieces[0].offset
            log.warning("%s: %s at byte %d is somebody else's; it stays", device.name, field.what, place)
        chunks = canvas.changes(device.block_size)
        if torn:
            step(device, steps.WAY_BACK.contents, torn, what=TORN)
        step(device, steps.WAY_BACK.contents, chunks)
        read_back(device, chunks)
        label = [Chunk(mark.label.offset, label_before(mark))]
        step(device, steps.WAY_BACK.label, label, *around)
        read_back(device, label)


def label_before(mark: Mark) -> bytes:
    """The label as it was before the run, but for what LVM has changed in it since: a `pvresize`, for example."""
    run = mark.journal.run
    labels = Labels.of(mark.journal)
    if mark.label.sector in (labels.before, labels.in_progress):
        return run.old_label
    return pv.sealed_label(mark.label.sector[:TAIL_AT] + run.old_label[TAIL_AT:])


def cut(device: Device, tail: Tail, run: Run) -> Unfinished:
    """The error of whoever meets an unfinished run and its journal: the way out that is open."""
    if tail.phase == IN_PROGRESS and tail.kind == RESIGNATURE and not is_prepared(device, run):
        return Unfinished(
            f"{device.name} holds an unfinished resignature, cut before its commit, and LVM has changed the volume "
            "group since. "
            f"`relvmoiscsi undo {device.name}` takes it back and keeps LVM's change."
        )
    return unfinished(device.name, tail)


def unfinished(name: str, tail: Tail) -> Unfinished:
    """The error of whoever meets an unfinished run and is not the one to finish it."""
    step = "before its commit" if tail.phase == IN_PROGRESS else "after its commit"
    return Unfinished(f"{name} holds an unfinished {KINDS[tail.kind]}, cut {step}. Run `relvmoiscsi recover {name}`.")
