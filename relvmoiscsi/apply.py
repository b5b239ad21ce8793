# SPDX-License-Identifier: LGPL-2.1-only
"""Carry a plan out, finish one that was cut, take one back.

    step  writes                                   after the flush the LUN holds
    1     journal, second metadata area (free      the old identity
          ring space)
    2     label: mark "in progress"                the old identity, and a journal that decides the new one
    3     contents of volumes                      the same
    4     label: new PV id, second area            the new identity                      <- the commit
    5     metadata area header(s)                  the same
    6     label: original area, mark "done"        the same, where LVM put it

Each step ends in one flush. Before step 1 the device is compared with what was read; after step 1 and after step 3
what was written is read back; after step 6 all of it.

What recovery does follows from the label alone:

    no mark        nothing: nothing happened
    in progress    steps 3 to 6 again; they do not depend on what the sectors hold, torn ones included
    switched       steps 5 and 6, with the text that is committed *then*: LVM may have gone on in the second area
    done           nothing

A failure before step 4 is taken back: contents, label and ring as they were. From step 4 on nothing is taken back by
itself, because nobody knows whether the failed write will still reach the disk; the LUN is whole either way and
`recover` finishes it.
"""

import logging
from typing import List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, align_up
from relvmoiscsi.errors import DeviceError, FormatError, Place, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.journal import DONE, IN_PROGRESS, KINDS, SWITCHED, UNDO, Journal, MdaMove, Run, Tail, Write
from relvmoiscsi.lvm import layout, pv, ring
from relvmoiscsi.lvm.pv import Label, Mda
from relvmoiscsi.plan import Plan, final_label, switched_label

log = logging.getLogger(__name__)

STEPS = 6


def carry_out(device: Device, plan: Plan, untouched: str = "Nothing was written.") -> None:
    """All six steps, on a device that is as it was when the plan was made.

    Raises Refused when it is not (nothing is written), DeviceError when an operation fails; the error says what state
    the device is in. `untouched` is the sentence for a device that nothing was written to yet.
    """
    try:
        ring_before = _compare_with_plan(device, plan)
    except (DeviceError, Refused) as error:
        error.in_state(untouched)
        raise
    labels, headers = plan.labels(), _old_headers(plan.journal)
    try:
        _step(device, 1, "journal and second metadata area", plan.prepared, plan.run)
        _read_back(device, [*plan.prepared, Chunk(labels.offset, labels.before), *headers])
    except (DeviceError, Refused) as error:
        _take_back(device, [], headers, ring_before, error)
        raise
    try:
        _step(device, 2, "label: in progress", [Chunk(labels.offset, labels.in_progress)], plan.run)
        _write_contents(device, plan.run, [Chunk(labels.offset, labels.in_progress), *headers])
    except (DeviceError, Refused) as error:
        contents = [Chunk(write.offset, write.old) for write in plan.run.writes]
        label = whole_blocks(device, [Chunk(labels.offset, labels.before)], plan.run.blocks)
        _take_back(device, [contents, label], headers, ring_before, error)
        raise
    try:
        _step(device, 4, "label: switched", [Chunk(labels.offset, labels.switched)], plan.run)
        _step(device, 5, "metadata area headers", plan.headers, plan.run)
        _step(device, 6, "label: final", [Chunk(labels.offset, labels.final)], plan.run)
        _read_back(device, [Chunk(labels.offset, labels.final), *plan.headers, *plan.areas])
    except (DeviceError, Refused) as error:
        error.in_state(_cut_sentence(device.name, plan.run.kind))
        raise


def _cut_sentence(name: str, kind: int) -> str:
    return "{0} may hold an unfinished {1}; run `relvmoiscsi recover {0}` once the device answers again.".format(
        name, KINDS[kind]
    )


def _step(device: Device, number: int, what: str, chunks: Sequence[Chunk], run: Run) -> None:
    log.info("step %d of %d: %s, %d writes to %s", number, STEPS, what, len(chunks), device.name)
    device.write(whole_blocks(device, chunks, run.blocks))
    device.flush()


def whole_blocks(device: Device, chunks: Sequence[Chunk], blocks: Sequence[Chunk] = ()) -> List[Chunk]:
    """The chunks, widened to blocks of the device: by those of `blocks`, or else by the bytes that are there now."""
    size = device.block_size
    wide = [Range(align_down(c.offset, size), align_up(c.end, size) - align_down(c.offset, size)) for c in chunks]
    odd = [index for index, part in enumerate(wide) if part.length != len(chunks[index].data)]
    given = {_range(block): block.data for block in blocks}
    unknown = [wide[index] for index in odd if wide[index] not in given]
    given.update(zip(unknown, device.read(unknown) if unknown else []))
    found = list(chunks)
    for index in odd:
        data = given[wide[index]]
        inside = chunks[index].offset - wide[index].offset
        patched = data[:inside] + chunks[index].data + data[inside + len(chunks[index].data) :]
        found[index] = Chunk(wide[index].offset, patched)
    return found


def _compare_with_plan(device: Device, plan: Plan) -> List[Chunk]:
    """Everything the plan builds on is as it was read; gives what the prepared chunks will cover, to restore it."""
    labels = plan.labels()
    expected = [Chunk(labels.offset, labels.before), *_old_headers(plan.journal)]
    expected += [Chunk(write.offset, write.old) for write in plan.run.writes]
    ranges = [_range(chunk) for chunk in [*expected, *plan.prepared]]
    found = device.read(ranges)
    for chunk, data in zip(expected, found):
        if data != chunk.data:
            raise Refused(
                "{} changed at byte {} since it was read: something else writes to it.".format(
                    device.name, chunk.offset
                )
            )
    return [Chunk(chunk.offset, data) for chunk, data in zip(plan.prepared, found[len(expected) :])]


def _old_headers(journal: Journal) -> List[Chunk]:
    return [Chunk(move.original.offset, move.old_header) for move in journal.run.mdas]


def _range(chunk: Chunk) -> Range:
    return Range(chunk.offset, len(chunk.data))


def _read_back(device: Device, chunks: Sequence[Chunk]) -> None:
    """Raises Refused when the device does not hold what was written."""
    for chunk, data in zip(chunks, device.read([_range(chunk) for chunk in chunks])):
        if data != chunk.data:
            raise Refused(
                "{} does not hold what was written at byte {}: something else writes to it, or it loses writes.".format(
                    device.name, chunk.offset
                ),
                sm_key="EIO",
            )


def _write_contents(device: Device, run: Run, unchanged: Sequence[Chunk]) -> None:
    """Step 3; `unchanged` is what must still be there when it is done."""
    chunks = [Chunk(write.offset, write.new) for write in run.writes]
    _step(device, 3, "contents of volumes", chunks, run)
    _read_back(device, [*chunks, *unchanged])


def _take_back(
    device: Device,
    groups: Sequence[Sequence[Chunk]],
    headers: Sequence[Chunk],
    ring_before: Sequence[Chunk],
    error: RelvmoiscsiError,
) -> None:
    """Put old bytes back, group by group with a flush behind each, the ring last; `error` then says how that went.

    Where the headers have changed, LVM was at work in the ring: what was free then may hold its text now.
    """
    try:
        for chunks in groups:
            device.write(whole_blocks(device, chunks))
            device.flush()
        if [chunk.data for chunk in headers] != device.read([_range(chunk) for chunk in headers]):
            error.in_state("Volumes and label are as they were; free space of the metadata area was written.")
            return
        device.write(ring_before)
        device.flush()
    except DeviceError as second:
        log.error("taking the run back failed as well: %s", second)
        error.in_state(
            "Taking it back failed as well. Run `relvmoiscsi show {0}` once the device answers again; what it then "
            "calls unfinished, `relvmoiscsi recover {0}` finishes.".format(device.name)
        )
        return
    error.in_state("Everything was put back: {} is as it was.".format(device.name))


# --- recovery


class Mark(NamedTuple):
    """A label with the mark of a run, and the run's journal."""

    label: Label
    tail: Tail
    journal: Journal


def finish(device: Device, mark: Mark) -> None:
    """Steps 3 to 6 from wherever the run was cut. Doing it twice equals doing it once.

    Raises Refused when LVM has changed the VG behind an unfinished run, DeviceError when an operation fails.
    """
    try:
        label = mark.label
        if mark.tail.phase == IN_PROGRESS:
            _verify_prepared(device, mark)
            run = mark.journal.run
            _write_contents(device, run, [])
            sector = switched_label(label, run, mark.journal.tail(SWITCHED))
            _step(device, 4, "label: switched", [Chunk(label.offset, sector)], run)
            label = pv.parse_label(sector, label.number, Place(device.name, label.offset))
        settle(device, label, mark.journal)
    except FormatError as error:
        error.in_state("{} still holds an unfinished {}.".format(device.name, KINDS[mark.journal.run.kind]))
        raise
    except (DeviceError, Refused) as error:
        error.in_state(_cut_sentence(device.name, mark.journal.run.kind))
        raise


def settle(device: Device, label: Label, journal: Journal) -> None:
    """Steps 5 and 6, from a label that lists the second areas."""
    run = journal.run
    headers, copies = landed_headers(device, label, journal)
    _step(device, 5, "metadata area headers", [*copies, *headers], run)
    if run.kind == UNDO and [chunk.data for chunk in headers] == [m.final_header for m in run.mdas if m.moves]:
        sector = run.final_label
    else:
        sector = final_label(label, run, journal.tail(DONE))
    _step(device, 6, "label: final", [Chunk(label.offset, sector)], run)
    _read_back(device, [*headers, Chunk(label.offset, sector)])


def is_overtaken(device: Device, mark: Mark) -> bool:
    """Whether LVM has changed the volume group since a run was cut before its commit.

    Then the old headers, or the second areas prepared in what was free space, are not as the run left them.
    """
    moves = mark.journal.run.mdas
    moving = [move for move in moves if move.moves]
    found = device.read([Range(m.original.offset, SECTOR) for m in moves])
    if found != [move.old_header for move in moves]:
        return True
    seconds = device.read([Range(m.second.offset, SECTOR) for m in moving])
    return seconds != [move.second_header for move in moving] or not _texts_hold(device, moving)


def _verify_prepared(device: Device, mark: Mark) -> None:
    if is_overtaken(device, mark):
        raise Refused(
            "LVM has changed the volume group on {0} since the resignature was cut. `relvmoiscsi undo {0}` takes the "
            "resignature back and keeps LVM's change.".format(device.name),
            sm_key="SRUnavailable",
        ).in_state("Nothing was written.")


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

    Where LVM has changed the VG since, volumes may be gone and their extents in other hands: then only contents
    that are wholly old or wholly new are touched, and anything else is a refusal.
    """
    run = mark.journal.run
    try:
        headers = device.read([Range(move.original.offset, SECTOR) for move in run.mdas])
        if headers != [move.old_header for move in run.mdas]:
            _verify_contents_known(device, run.writes)
        _step(device, 1, "old contents", [Chunk(write.offset, write.old) for write in run.writes], run)
        _read_back(device, [Chunk(write.offset, write.old) for write in run.writes])
        _step(device, 2, "old label", [Chunk(mark.label.offset, run.old_label)], run)
        _read_back(device, [Chunk(mark.label.offset, run.old_label)])
    except (DeviceError, Refused) as error:
        error.in_state(_cut_sentence(device.name, run.kind))
        raise


def _verify_contents_known(device: Device, writes: Sequence[Write]) -> None:
    for write, data in zip(writes, device.read([write.range for write in writes])):
        for at in range(0, len(data), SECTOR):
            part = slice(at, at + SECTOR)
            if data[part] not in (write.old[part], write.new[part]):
                raise Refused(
                    "{}: {} at byte {} is neither as it was nor as it was to become, and LVM has changed the volume "
                    "group since.".format(device.name, write.what, write.offset + at),
                    sm_key="SRUnavailable",
                ).in_state("Nothing was written.")


def verify_undoable(device: Device, writes: Sequence[Write]) -> None:
    """Contents are as the finished run left them. Raises Refused naming the first that is not."""
    for write, data in zip(writes, device.read([write.range for write in writes])):
        if data != write.new:
            raise Refused(
                "{}: {} at byte {} has changed since the resignature; an undo would lose that.".format(
                    device.name, write.what, write.offset
                )
            ).in_state("Nothing was written.")


def unfinished(name: str, tail: Tail) -> Unfinished:
    """The error of whoever meets an unfinished run and is not the one to finish it."""
    step = "before its commit" if tail.phase == IN_PROGRESS else "after its commit"
    return Unfinished(
        "{0} holds an unfinished {1}, cut {2}. Run `relvmoiscsi recover {0}`.".format(name, KINDS[tail.kind], step)
    )
