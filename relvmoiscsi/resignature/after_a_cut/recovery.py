# SPDX-License-Identifier: LGPL-2.1-only
"""Finish a run that was cut, or take it back.

What recovery does follows from the label:

    no mark        nothing: nothing happened
    in progress    the contents and what comes behind them once more; identities are put right in what is on the disk
                   now (`resignature.after_a_cut.repair`)
    switched       headers and label, with the text that is committed *then*: LVM may have gone on in the second area
    done           nothing

A label may be older than the rest, where a write that was reported as failed has landed late. The metadata areas tell:
once one of them holds the new PV id where only LVM, or the step of the headers, can have put it, the commit has been
(`resignature.after_a_cut.evidence`). After the commit contents that are still old are put right as well: a label
"switched" may come late onto a LUN whose run was taken back.
"""

import logging
from typing import List

from relvmoiscsi.device import SECTOR, Chunk, Device, Range
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, FormatError, Place, Refused, Unfinished, in_state
from relvmoiscsi.formats.lvm import layout, pv
from relvmoiscsi.resignature.after_a_cut import repair
from relvmoiscsi.resignature.after_a_cut.evidence import is_going_back, is_prepared
from relvmoiscsi.resignature.after_a_cut.sentences import cut_sentence, on_a_copy, unfinished
from relvmoiscsi.resignature.planning.labels import Labels, switched_label
from relvmoiscsi.resignature.protocol import steps, structure
from relvmoiscsi.resignature.protocol.journal import Mark
from relvmoiscsi.resignature.protocol.mark import (
    IN_PROGRESS,
    KINDS,
    RESIGNATURE,
    SWITCHED,
    TAIL_AT,
    Tail,
)
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.writing import rebuilding
from relvmoiscsi.resignature.writing.apply import step
from relvmoiscsi.resignature.writing.canvas import read_canvas
from relvmoiscsi.resignature.writing.landing import Surroundings, read_surroundings, settle
from relvmoiscsi.resignature.writing.reading_back import read_back, read_back_all

log = logging.getLogger(__name__)

TORN = (
    "torn blocks of volumes"  #: the first part of a step that puts contents right: see `resignature.after_a_cut.repair`
)


def finish(device: Device, mark: Mark) -> None:
    """All steps from the contents on, wherever the run was cut. Doing it twice equals doing it once.

    Raises Refused when LVM has changed the VG behind an unfinished run, DeviceError when an operation fails.
    """
    run, label = mark.journal.run, mark.label
    still = f"{device.name} still holds an unfinished {KINDS[run.kind]}."
    with in_state(still, FormatError), in_state(cut_sentence(device.name, run.kind), DeviceError, Refused):
        around = read_surroundings(device, run)
        if mark.tail.phase == IN_PROGRESS:
            _verify_prepared(device, mark)
            _put_contents(device, run)
            sector = switched_label(label, run, mark.journal.tail(SWITCHED))
            step(device, steps.COMMIT, [Chunk(label.offset, sector)], *around)
            label = pv.parse_label(sector, label.number, Place(device.name, label.offset))
            around = Surroundings(around.blocks, set())
            settle(device, label, mark.journal, around, [])
        else:
            settle(device, label, mark.journal, around, _late_contents(device, run))


# --- contents


def _put_contents(device: Device, run: Run) -> None:
    """The contents once more.

    Raises Refused, and writes nothing, where somebody else has given a volume another identity.
    """
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


def _verify_prepared(device: Device, mark: Mark) -> None:
    if not is_prepared(device, mark.journal.run):
        raise Refused(
            f"LVM has changed the volume group on {device.name} since the {KINDS[mark.journal.run.kind]} was cut. "
            f"`relvmoiscsi undo {device.name}` takes the {KINDS[mark.journal.run.kind]} back and keeps LVM's change.",
            sm_key="SRUnavailable",
        ).in_state(NOTHING_WRITTEN)


# --- taking an unfinished run back


def roll_back(device: Device, mark: Mark) -> None:
    """Give the old contents and the old label back to a LUN whose run was cut before its commit.

    Where LVM has changed the VG since, volumes may be gone and their extents in other hands: then only what is surely
    ours is touched. What others have written stays, in the label too.
    """
    run = mark.journal.run
    with in_state(cut_sentence(device.name, run.kind), DeviceError, Refused):
        around = read_surroundings(device, run)
        headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
        careful = headers != [move.old_header for move in run.mdas]
        canvas = read_canvas(device, run)
        torn = [] if careful else repair.torn_blocks(run, canvas, forward=False)
        for field in repair.put_right(run, canvas, forward=False, careful=careful):
            place = field.pieces[0].offset
            log.warning("%s: %s at byte %d is somebody else's; it stays", device.name, field.what, place)
        chunks = [*canvas.changes(device.block_size), *_second_headers(device, run, careful)]
        units = () if careful else rebuilding.full_units(run)
        if torn:
            step(device, steps.WAY_BACK.contents, torn, what=TORN)
        step(device, steps.WAY_BACK.contents, chunks, units=units)
        read_back(device, chunks)
        read_back_all(device, units)
        label = [Chunk(mark.label.offset, label_before(mark))]
        step(device, steps.WAY_BACK.label, label, *around)
        read_back(device, label)


def _second_headers(device: Device, run: Run, careful: bool) -> List[Chunk]:
    """Zeros for the headers that the commit of a run would lead to; where others may have written since, no more than
    what is one.
    """
    moving = [move for move in run.mdas if move.moves]
    found = []
    for move, data in zip(moving, device.read([Range(move.second.offset, SECTOR) for move in moving])):
        header = layout.MdaHeader.at(data)
        is_one = (header.magic, header.start) == (layout.MDA_MAGIC, move.second.offset)
        if is_one or not careful and any(data):
            found.append(Chunk(move.second.offset, bytes(SECTOR)))
    return found


def label_before(mark: Mark) -> bytes:
    """The label as it was before the run, but for what LVM has changed in it since: a `pvresize`, for example."""
    run = mark.journal.run
    labels = Labels.of(mark.journal)
    if mark.label.sector in (labels.before, labels.in_progress):
        return run.old_label
    return pv.sealed_label(mark.label.sector[:TAIL_AT] + run.old_label[TAIL_AT:])


def cut(device: Device, tail: Tail, run: Run) -> Unfinished:
    """The error of whoever meets an unfinished run and its journal: the way out that is open."""
    if tail.phase == IN_PROGRESS and is_going_back(device, run):
        return Unfinished(
            f"{device.name} holds a {KINDS[tail.kind]} that was being taken back when that was cut. `relvmoiscsi "
            f"recover {device.name}` goes on with it."
        )
    if tail.phase == IN_PROGRESS and tail.kind == RESIGNATURE and not is_prepared(device, run):
        return Unfinished(
            f"{device.name} holds an unfinished resignature, cut before its commit, and LVM has changed the volume "
            f"group since. `relvmoiscsi undo {device.name}` takes it back and keeps LVM's change."
        )
    if run.rebuilt is not None and tail.phase == IN_PROGRESS:
        return Unfinished(
            f"{device.name} holds a resignature that was to make one VDI, cut before its commit. `relvmoiscsi recover "
            f"{device.name}` takes it back; nothing is lost."
        )
    found = unfinished(device.name, tail)
    if run.rebuilt is not None:
        found.message += " " + on_a_copy(device.name)
    if run.one is not None and tail.phase == IN_PROGRESS and tail.kind == RESIGNATURE:
        found.message += (
            f" It leads to one VDI: then snapshots and all other VDIs are gone. `relvmoiscsi undo {device.name}` takes "
            "it back and keeps them."
        )
    return found
