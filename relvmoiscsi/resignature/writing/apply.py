# SPDX-License-Identifier: LGPL-2.1-only
"""Carry a plan out: the protocol, in the steps of the table `resignature.protocol.steps`.

`resignature.after_a_cut.recovery` finishes what was cut, or takes it back.

Each step ends in one flush. Before step 1 the device is compared with what was read; after step 1 and after step 3
what was written is read back; after step 6 all of it. What nobody sees is read back before the mark and behind it.

A write that was reported as failed may still reach the disk, minutes later: nobody can take it back. So after a failure
nothing is taken back and nothing is erased:

    in step 1      the LUN is as it was. What may still land lands in free ring space: the second area lies behind a
                   gap, the journal where LVM comes last, so LVM has to write many texts before it gets there; and the
                   next run uses other places (`formats.lvm.ring`)
    from step 2    the label is unmarked, or marked; `recover` does what it says. A later run may overwrite the
                   journal of one that never got its mark. Should the mark land then, the journals on the LUN and what
                   the metadata areas and the contents hold tell whose turn it is (`resignature.after_a_cut.late_label`)

A commit that lands behind the way back leads nowhere, and `resignature.after_a_cut.stale_label` finds the right label.

Two things nobody can mend. A late write of a block that others have written to since brings its old bytes along; that
is why no more than the blocks that change are written. And a header or label of step 5 or 6 that lands behind an undo,
or behind a change of LVM, is a valid one: undo a run that failed there when its writes cannot land any more, after a
logout for example.
"""

import logging
from hashlib import sha256
from typing import Container, Iterable, List, Optional, Sequence

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, Refused, in_state
from relvmoiscsi.resignature.after_a_cut.sentences import (
    cut_sentence,
    nothing_written,
    only_free_space,
    only_unseen,
    overtaken,
)
from relvmoiscsi.resignature.planning.plan import Plan
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.journal import Journal
from relvmoiscsi.resignature.protocol.rebuilt import Unseen, Written
from relvmoiscsi.resignature.protocol.run import Run
from relvmoiscsi.resignature.protocol.steps import STEPS, Step
from relvmoiscsi.resignature.writing import copying, rebuilding
from relvmoiscsi.resignature.writing.canvas import changed_chunks
from relvmoiscsi.resignature.writing.copying import Progress
from relvmoiscsi.resignature.writing.reading_back import batches, range_of, read_back, read_back_all

log = logging.getLogger(__name__)


def write_unseen(device: Device, plan: Plan, progress: Optional[Progress] = None) -> Plan:
    """What nobody sees before the commit, on a device that is as it was when the plan was made; gives what is left.

    It is durable with the first flush of `carry_out`. Raises as that does.
    """
    with in_state(NOTHING_WRITTEN, DeviceError, Refused):
        _compare_with_plan(device, plan)
    with in_state(only_unseen(device.name)):
        written = copying.write_unseen(device, plan.unseen, lambda there: _verify_ours(device, plan, there), progress)
    unseen = plan.unseen
    return plan._replace(unseen=Unseen(unseen.expected, unseen.unchanged), written=written)


def carry_out(device: Device, plan: Plan, before: str = "", progress: Optional[Progress] = None) -> None:
    """All steps, on a device that is as it was when the plan was made.

    Raises Refused when it is not (nothing is written), DeviceError when an operation fails; the error says what state
    the device is in. `before` begins that sentence, where something has been done to it already. What nobody sees is
    written already (`write_unseen`). `progress` is told how much of it is read back before the mark, and what it raises
    goes through.

    It is read back twice. Before the mark, as from there on the bitmaps of filled blocks are made all ones, on the way
    back too. Behind the mark, as another host that writes where this one has written looks at the label before each
    batch, and stops at a mark.
    """
    run, labels = plan.run, plan.labels()
    untouched = only_unseen(device.name) if run.rebuilt else nothing_written(before)
    with in_state(untouched, DeviceError, Refused):
        _compare_with_plan(device, plan)
    headers = _old_headers(plan.journal)
    written = only_unseen(device.name) if run.rebuilt else only_free_space(device.name, before)
    with in_state(written, DeviceError, Refused):
        prepared = plan.chunks_of(steps.JOURNAL)
        step(device, steps.JOURNAL, prepared)
        read_back(device, [*prepared, Chunk(labels.offset, plan.label_now or labels.before), *headers])
        if run.rebuilt is not None:
            copying.read_back_written(device, plan.written, progress)
            _verify_ours(device, plan, plan.written)
    with in_state(cut_sentence(device.name, run.kind), DeviceError, Refused):
        step(device, steps.MARK, plan.chunks_of(steps.MARK), run.blocks)
        copying.read_back_written(device, plan.written)
        contents = content_chunks(run, device.block_size)
        step(device, steps.CONTENTS, contents, units=rebuilding.full_units(run))
        read_back(device, [*contents, *plan.chunks_of(steps.MARK), *headers])
        read_back_all(device, rebuilding.full_units(run))
        step(device, steps.COMMIT, plan.chunks_of(steps.COMMIT), run.blocks)
        if run.rebuilt is not None and len(run.rebuilt.empty):
            step(device, steps.HOLES, (), units=rebuilding.all_empty_units(run))
        for taken in (steps.HEADERS, steps.FINAL):
            step(device, taken, plan.chunks_of(taken), run.blocks)
        read_back(device, [*plan.chunks_of(steps.FINAL), *plan.chunks_of(steps.HEADERS), *plan.areas])


def content_chunks(run: Run, block_size: int) -> List[Chunk]:
    """What the contents step writes: of the journalled blocks those that change."""
    chunks: List[Chunk] = []
    for write in run.writes:
        chunks += changed_chunks(Chunk(write.offset, write.old), write.new, block_size)
    return chunks


def step(
    device: Device,
    taken: Step,
    chunks: Sequence[Chunk],
    blocks: Sequence[Chunk] = (),
    torn: Container[int] = (),
    what: str = "",
    units: Iterable[Chunk] = (),
) -> None:
    """Write and flush; `blocks` and `torn` are for `whole_blocks`. `what` names a part of a step.

    `units` are whole blocks, and may be very many: so many at a time are written as may be in memory.
    """
    what, count = what or taken.name, len(chunks) + sum(1 for _unit in units)
    log.info("step %d of %d: %s, %d writes to %s", taken.number, len(STEPS), what, count, device.name)
    if chunks:
        device.write(whole_blocks(device, chunks, blocks, torn))
    for part in batches(units, lambda chunk: len(chunk.data)):
        device.write(part)
    device.flush()


def whole_blocks(
    device: Device, chunks: Sequence[Chunk], blocks: Sequence[Chunk] = (), torn: Container[int] = ()
) -> List[Chunk]:
    """The chunks, widened to blocks of the device by what `blocks` hold, or else by what is there now.

    A chunk in one of `blocks` whose start is in `torn` is widened to that block, which may be larger than the device's.
    """
    found = []
    for chunk in chunks:
        start, end = align_down(chunk.offset, device.block_size), align_up(chunk.end, device.block_size)
        around = next((block for block in blocks if block.offset <= chunk.offset and chunk.end <= block.end), None)
        if around is not None and around.offset in torn:
            start, end = around.offset, around.end
        found.append(
            chunk if (start, end) == (chunk.offset, chunk.end) else _widened(device, chunk, start, end, around)
        )
    return found


def _widened(device: Device, chunk: Chunk, start: int, end: int, around: Optional[Chunk]) -> Chunk:
    if around is None:
        data = device.read([Range(start, end - start)])[0]
    else:
        data = around.data[start - around.offset : end - around.offset]
    return Chunk(start, data[: chunk.offset - start] + chunk.data + data[chunk.end - start :])


def _compare_with_plan(device: Device, plan: Plan) -> None:
    """Everything the plan builds on is as it was read."""
    expected = [*_deciding(plan), *plan.run.blocks, *plan.written.head]
    expected += [Chunk(write.offset, write.old) for write in plan.run.writes]
    for chunk, data in zip(expected, device.read([range_of(chunk) for chunk in expected])):
        if data != chunk.data:
            raise _changed(device, chunk.offset)
    for batch in batches(plan.unseen.expected, lambda one: one.range.length):
        for one, data in zip(batch, device.read([one.range for one in batch])):
            if sha256(data).digest() != one.digest:
                raise _changed(device, one.range.offset)
    copying.verify_unchanged(device, plan.unseen.unchanged, lambda offset: _changed(device, offset))


def _verify_ours(device: Device, plan: Plan, written: Written) -> None:
    """Nobody has marked, committed or changed the volume group, and nobody has put the LUN back to what it was.

    Read afresh: no more than a few sectors, as it is done before each batch that is written.
    """
    with in_state(overtaken(device.name), Refused):
        copying.verify_unchanged(device, [*_deciding(plan), *written.head], lambda offset: _changed(device, offset))


def _deciding(plan: Plan) -> List[Chunk]:
    """The label, and the headers of the metadata areas, as they were read."""
    labels = plan.labels()
    return [Chunk(labels.offset, plan.label_now or labels.before), *_old_headers(plan.journal)]


def _changed(device: Device, offset: int) -> Refused:
    return Refused(f"{device.name} changed at byte {offset} since it was read: something else writes to it.")


def _old_headers(journal: Journal) -> List[Chunk]:
    return [Chunk(move.original.offset, move.old_header) for move in journal.run.mdas]
