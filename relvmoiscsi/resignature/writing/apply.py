# SPDX-License-Identifier: LGPL-2.1-only
"""Carry out a plan: take the steps of the table `resignature.protocol.steps`. Each step ends in one flush.

    before step 1            compare the device with the bytes that the plan was made of
    after steps 1 and 3      read back the writes of the step
    before and after step 2  read back the new image
    in step 5                read back the empty bitmaps
    after step 6             read back the headers and the label

When an operation fails, the run ends. The run takes nothing back by itself, and erases no journal. `recover` ends
the run by the label (docs/protocol.rst, "Recover"; `resignature.recovery.cut_run`).
"""

import logging
from hashlib import sha256
from typing import List, Optional

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, torn_bytes
from relvmoiscsi.errors import NOTHING_WRITTEN, Overtaken, Refused, UsageError, in_state
from relvmoiscsi.resignature.planning.run_plan import Plan
from relvmoiscsi.resignature.protocol import steps
from relvmoiscsi.resignature.protocol.commit_record import COMMIT_RECORD_AT, DONE, KINDS, CommitRecord, written_by
from relvmoiscsi.resignature.protocol.identities import changed_chunks
from relvmoiscsi.resignature.protocol.sentences import (
    IF_ONE_VDI,
    nothing_written,
    only_free_space,
    overtaken,
    since_begun,
    unfinished,
    while_unseen,
)
from relvmoiscsi.resignature.writing import copying
from relvmoiscsi.resignature.writing.copying import Progress
from relvmoiscsi.resignature.writing.step import batches, read_back, read_back_all, step

log = logging.getLogger(__name__)


def write_unseen(device: Device, plan: Plan, progress: Optional[Progress] = None) -> Plan:
    """Write the new image, as far as no program reads it before the commit. Returns the plan with `digests`.

    The first flush of `carry_out` makes the writes durable. Raises as `carry_out`.
    """
    with in_state(NOTHING_WRITTEN):
        device.end_late_writes()
        _compare_with_plan(device, plan)
    device.fence.hold(plan.deciding)
    with while_unseen(device.name), in_state(overtaken(device.name), Overtaken, advice=IF_ONE_VDI):
        return plan._replace(digests=copying.write_unseen(device, plan.unseen, progress))


def carry_out(device: Device, plan: Plan, before: str = "", progress: Optional[Progress] = None) -> None:
    """Take all steps of a plan, after `write_unseen`.

    Raises Refused, without a write, when the device has changed since the plan. Raises DeviceError when an operation
    fails, Overtaken after a write of another host, Unfinished for a refusal in the middle. The error says in what state
    the device is; `before` is a sentence about earlier writes, for this error.
    `progress` gets the number of bytes of the new image that are read back before step 2; its errors go through.

    The new image is read back twice:

        before step 2    from step 2 on, a run or its rollback may write the bitmaps of filled blocks
        after step 2     another host may write a new image to the same places. That host reads the label before each
                         batch, and stops at the commit record. So the second reading finds its batches from before
    """
    run, deciding = plan.run, plan.deciding
    headers = deciding[1:]
    with while_unseen(device.name) if run.merged else in_state(nothing_written(before)):
        device.end_late_writes()
        known_blocks = _compare_with_plan(device, plan)
    device.fence.hold(deciding)
    with while_unseen(device.name) if run.merged else in_state(only_free_space(device.name, before)):
        prepared = plan.chunks_of(steps.JOURNAL)
        step(device, steps.JOURNAL, prepared, known_blocks)
        read_back(device, [*prepared, *deciding])
        if run.merged is not None:
            copying.read_back_unseen(device, plan.unseen, plan.digests, progress)
    device.fence.hold_also([*(Chunk(chunk.offset, chunk.data[:SECTOR]) for chunk in prepared), *_head(plan)])
    mark, commit = (  # with the writer of this run
        [Chunk(chunk.offset, written_by(chunk.data, device.fence.writer)) for chunk in plan.chunks_of(taken)]
        for taken in (steps.BEGIN, steps.COMMIT)
    )
    with since_begun(device.name, run.kind, run.label_offset):
        step(device, steps.BEGIN, mark, known_blocks)
        copying.read_back_unseen(device, plan.unseen, plan.digests)
        contents: List[Chunk] = []  # the journalled blocks that change
        for write in run.writes:
            blocks = changed_chunks(Chunk(write.offset, write.old), write.new, max(device.block_size, run.block_bytes))
            contents += blocks
        step(device, steps.CONTENTS, contents, known_blocks, units=plan.bitmaps_of(steps.CONTENTS))
        read_back(device, [*contents, *mark, *headers])
        read_back_all(device, plan.bitmaps_of(steps.CONTENTS))
        step(device, steps.COMMIT, commit, known_blocks)
        if run.merged is not None and len(run.merged.empty):
            step(device, steps.HOLES, (), units=plan.bitmaps_of(steps.HOLES))
            read_back_all(device, plan.bitmaps_of(steps.HOLES))  # before the block table names these slots
        for taken in (steps.HEADERS, steps.FINAL):
            step(device, taken, plan.chunks_of(taken), known_blocks)
        read_back(device, [*plan.chunks_of(steps.FINAL), *plan.chunks_of(steps.HEADERS), *plan.areas])


def _compare_with_plan(device: Device, plan: Plan) -> List[Chunk]:
    """Returns the blocks of label and headers. Raises Refused when a range on which the plan depends has changed,
    UsageError or Unfinished when this plan's own run has changed it.
    """
    deciding = plan.deciding
    expected = [*deciding, *_head(plan), *(Chunk(write.offset, write.old) for write in plan.run.writes)]
    blocks = [chunk.range.widened(torn_bytes(device)) for chunk in deciding]
    blocks = [Range(block.offset, min(block.end, device.size_bytes) - block.offset) for block in blocks]
    parts = [*blocks, *(chunk.range for chunk in expected[len(deciding) :])]
    found = [Chunk(part.offset, data) for part, data in zip(parts, device.read(parts))]
    for wanted, there in zip(expected, found):
        start = wanted.offset - there.offset
        if there.data[start : start + len(wanted.data)] != wanted.data:
            record = CommitRecord.at(found[0].data[plan.run.label_offset - found[0].offset :], COMMIT_RECORD_AT)
            if record.run_id == plan.run.run_id and record.phase == DONE:
                raise UsageError(f"This plan was carried out before: {device.name} has its identities.")
            if record.run_id == plan.run.run_id and record.kind in KINDS:
                raise unfinished(device.name, record)
            raise _changed(device, wanted.offset)
    for batch in batches(plan.unseen.expected, lambda one: one.range.length):
        for one, data in zip(batch, device.read([one.range for one in batch])):
            if sha256(data).digest() != one.digest:
                raise _changed(device, one.range.offset)
    for part in batches(plan.unseen.unchanged, lambda chunk: len(chunk.data)):
        for chunk, data in zip(part, device.read([chunk.range for chunk in part])):
            if data != chunk.data:
                raise _changed(device, chunk.offset)
    return found[: len(deciding)]


def _head(plan: Plan) -> List[Chunk]:
    """The first written sector of a new image: an array that restores an older snapshot also restores this sector."""
    return [Chunk(chunk.offset, chunk.data[:SECTOR]) for chunk in plan.unseen.chunks[:1]] if plan.digests else []


def _changed(device: Device, offset: int) -> Refused:
    return Refused(f"{device.name} changed at byte {offset} since it was read: something else writes to it.").advising(
        "Detach the LUN from all hosts, then take the clone again."
    )
