# SPDX-License-Identifier: LGPL-2.1-only
"""Put identities right in what is on the disk now, and leave everything else as somebody has written it.

While a run is cut, one of the two identities is live: a VM may run, SM may write labels. Their bytes share blocks with
the identities. So, field by field:

    the field is                                     what becomes of it
    old, new, or a mixture of the two                the field alone is written
    neither, in a structure that is whole            somebody else's: it stays, but identities in MGT text are
                                                     exchanged wherever SM has moved them to
    neither, and nothing around it is whole          torn: the whole blocks of the journal

A block of the journal is put back in two steps, the first with fields that are neither old nor new: as long as the
block may be torn again, it must not look like one of ours.

A checksum is made anew over what is there. Once LVM has changed the volume group the extents may be in other hands;
`careful` then writes only what is surely ours, and takes nothing for torn.

Nothing here reads or writes a device: a `Canvas` is filled with what was read, and says what has to be written.
"""

from bisect import bisect_right
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Range, align_down
from relvmoiscsi.resignature.protocol import structure
from relvmoiscsi.resignature.protocol.run import Field, Run, Write
from relvmoiscsi.resignature.writing.canvas import Canvas

#: a field of fewer bytes may look like ours by chance
_TELLING_BYTES = 16


class _Side:
    """The contents of a run's writes before or after it."""

    def __init__(self, writes: Sequence[Write], new: bool) -> None:
        self._writes = sorted(writes)
        self._starts = [write.offset for write in self._writes]
        self._new = new

    def get(self, pieces: Iterable[Range], otherwise: bytes = b"") -> bytes:
        """The bytes of the pieces; where no write holds them, those of `otherwise`, which is as long."""
        found = bytearray(otherwise) or bytearray(sum(piece.length for piece in pieces))
        done = 0
        for piece in pieces:
            for write in self._around(piece):
                first, last = max(piece.offset, write.offset), min(piece.end, write.range.end)
                data = write.new if self._new else write.old
                at = done + first - piece.offset
                found[at : at + last - first] = data[first - write.offset : last - write.offset]
            done += piece.length
        return bytes(found)

    def parts(self, pieces: Iterable[Range]) -> List[Range]:
        """The parts of the pieces that lie in the writes."""
        found = []
        for piece in pieces:
            for write in self._around(piece):
                first, last = max(piece.offset, write.offset), min(piece.end, write.range.end)
                found.append(Range(first, last - first))
        return found

    def blocks(self, pieces: Iterable[Range], block_bytes: int) -> List[Range]:
        """The blocks of the writes that the pieces touch."""
        found: Set[int] = set()
        for part in self.parts(pieces):
            found.update(range(align_down(part.offset, block_bytes), part.end, block_bytes))
        return [Range(at, block_bytes) for at in sorted(found)]

    def _around(self, piece: Range) -> Iterable[Write]:
        index = max(0, bisect_right(self._starts, piece.offset) - 1)
        while index < len(self._writes) and self._writes[index].offset < piece.end:
            if self._writes[index].range.end > piece.offset:
                yield self._writes[index]
            index += 1


OURS, MOVED, STRANGE, TORN = "ours", "moved", "strange", "torn"


class Verdict(NamedTuple):
    """What a field is, as it was found."""

    field: Field
    state: str  #: OURS, MOVED (by SM, in its text), STRANGE (somebody else's) or TORN


def verdicts(run: Run, canvas: Canvas, careful: bool = False) -> List[Verdict]:
    """What each field of a run is; see above."""
    old, new = _Side(run.writes, new=False), _Side(run.writes, new=True)
    known = dict(run.ids.uuids, **run.ids.reversed().uuids)
    judge = _careful_state if careful else _state
    return [Verdict(field, judge(field, canvas, old, new, run.block_bytes, known)) for field in run.fields]


def _state(field: Field, canvas: Canvas, old: _Side, new: _Side, _block: int, known: Mapping[str, str]) -> str:
    if canvas.is_lost(field.pieces):
        return TORN
    if _is_mixture(canvas.get(field.pieces), old.get(field.pieces), new.get(field.pieces)):
        return OURS
    if not field.kind or canvas.is_lost(field.around) or not structure.is_whole(field.kind, canvas.get(field.around)):
        return TORN
    return _moved_or_strange(field, canvas, old, new, known)


def _moved_or_strange(field: Field, canvas: Canvas, old: _Side, new: _Side, known: Mapping[str, str]) -> str:
    mine = {old.get(field.pieces).decode("latin-1"), new.get(field.pieces).decode("latin-1")}
    found = structure.places(field.kind, canvas.get(field.around), known)
    return MOVED if mine.intersection(found.values()) else STRANGE


def _careful_state(field: Field, canvas: Canvas, old: _Side, new: _Side, block: int, known: Mapping[str, str]) -> str:
    """A field counts as ours if it is exactly old or new, and is long enough or everything around it is ours too."""
    around = field.around or tuple(new.blocks(field.pieces, block))
    if canvas.is_lost(field.pieces) or canvas.is_lost(around):
        return STRANGE
    now, here = canvas.get(field.pieces), canvas.get(around)
    if _is_mixture(here, old.get(around, here), new.get(around, here)):
        return OURS
    if field.kind and not structure.is_whole(field.kind, here):
        return STRANGE
    if now in (old.get(field.pieces), new.get(field.pieces)):
        return OURS if field.length >= _TELLING_BYTES else STRANGE
    return _moved_or_strange(field, canvas, old, new, known) if field.kind else STRANGE


def _is_mixture(found: bytes, old: bytes, new: bytes) -> bool:
    if found in (old, new):
        return True
    return all(byte in pair for byte, pair in zip(found, zip(old, new)))


def put_right(run: Run, canvas: Canvas, forward: bool, careful: bool = False) -> List[Field]:
    """Give the contents their new (`forward`) or their old identities; the result is what stays somebody else's."""
    goal = _Side(run.writes, new=forward)
    if not run.fields:
        return _put_blocks(run, canvas, goal, careful)
    found = verdicts(run, canvas, careful)
    whole = {field.around: not canvas.is_lost(field.around) and structure.is_whole(field.kind, canvas.get(field.around))
             for field in run.fields if field.kind}  # fmt: skip
    torn = [piece for verdict in found if verdict.state == TORN for piece in verdict.field.pieces]
    blocks = goal.blocks(torn, run.block_bytes)
    canvas.replace(blocks, goal.get(blocks))
    uuids = run.ids.uuids if forward else run.ids.reversed().uuids
    for verdict in found:
        if verdict.state == OURS:
            around = verdict.field.around
            if not whole.get(around, True) and structure.checksum_range(verdict.field.kind) is not None:
                known = goal.parts(around)
                canvas.put(known, goal.get(known))
            canvas.put(verdict.field.pieces, goal.get(verdict.field.pieces))
    strange = {verdict.field for verdict in found if verdict.state == STRANGE}
    _finish_structures(run, canvas, goal, uuids, {field.around for field in strange})
    return [verdict.field for verdict in found if verdict.state == STRANGE]


def torn_blocks(run: Run, canvas: Canvas, forward: bool) -> List[Chunk]:
    """The journal's blocks where blocks are torn, every field in them spoiled; to be durable before `put_right` is."""
    if not run.fields:
        return []
    old, goal = _Side(run.writes, new=not forward), _Side(run.writes, new=forward)
    torn = [piece for found in verdicts(run, canvas) if found.state == TORN for piece in found.field.pieces]
    blocks = [Chunk(block.offset, goal.get([block])) for block in goal.blocks(torn, run.block_bytes)]
    first = Canvas(blocks)
    for piece in (piece for field in run.fields for piece in field.pieces):
        for block in blocks:
            start, end = max(piece.offset, block.offset), min(piece.end, block.end)
            if start < end:
                part = [Range(start, end - start)]
                first.put(part, _spoiled(old.get(part), goal.get(part)))
    return [Chunk(block.offset, first.get([Range(block.offset, len(block.data))])) for block in blocks]


def _spoiled(old: bytes, new: bytes) -> bytes:
    """Bytes that are in no place those of the two, and in no text either."""
    return bytes(next(byte for byte in (1, 2, 3) if byte not in pair) for pair in zip(old, new))


def _finish_structures(
    run: Run, canvas: Canvas, goal: _Side, uuids: Mapping[str, str], strange: Set[Tuple[Range, ...]]
) -> None:
    """Checksums, and identities that have moved."""
    kinds: Dict[Tuple[Range, ...], str] = {field.around: field.kind for field in run.fields if field.kind}
    for around, kind in kinds.items():
        data = canvas.get(around)
        if structure.checksum_range(kind) is None:
            if structure.is_whole(kind, data):
                canvas.put(around, structure.renamed(kind, data, uuids))
        elif around not in strange and not canvas.is_lost(around):
            canvas.put(around, _sealed(kind, data, goal.get(around, data)))


def _sealed(kind: str, data: bytes, planned: bytes) -> bytes:
    """The structure with a checksum that is right: the planned one where nobody else has changed anything."""
    as_planned = structure.with_checksum_of(kind, data, planned)
    if as_planned == planned and structure.is_whole(kind, planned):
        return planned
    return structure.resealed(kind, data)


def _put_blocks(run: Run, canvas: Canvas, goal: _Side, careful: bool) -> List[Field]:
    """A journal without fields: whole blocks, or, when careful, the sectors that are wholly old or wholly new."""
    strange = []
    old, new = _Side(run.writes, new=False), _Side(run.writes, new=True)
    for write in run.writes:
        for at in range(write.offset, write.range.end, SECTOR):
            part = (Range(at, SECTOR),)
            if careful and (canvas.is_lost(part) or canvas.get(part) not in (old.get(part), new.get(part))):
                strange.append(Field(part, write.what))
            else:
                canvas.put(part, goal.get(part))
    return strange


def shows_new(run: Run, canvas: Canvas) -> bool:
    """Whether anything of a run's new identities is in the contents. The old ones are in all runs on a LUN."""
    old, new = _Side(run.writes, new=False), _Side(run.writes, new=True)
    parts: List[Tuple[Range, ...]] = [f.pieces for f in run.fields if f.length >= _TELLING_BYTES]
    parts += [(write.range,) for write in run.writes] if not run.fields else []
    return any(canvas.get(part) == new.get(part) != old.get(part) for part in parts)


def tells(run: Run) -> bool:
    """Whether a run changes enough of the contents for `shows_new` to tell."""
    return any(field.length >= _TELLING_BYTES for field in run.fields) or bool(run.writes and not run.fields)


def first_changed(run: Run, canvas: Canvas) -> Optional[Field]:
    """The first field that is neither as a finished run left it nor as it was before, or is in a structure that is
    damaged; None where there is none.
    """
    for found in verdicts(run, canvas):
        field = found.field
        checked = structure.checksum_range(field.kind) is not None
        if found.state in (STRANGE, TORN) or checked and not structure.is_whole(field.kind, canvas.get(field.around)):
            return field
    if run.fields:
        return None
    for write in run.writes:
        if canvas.get([write.range]) not in (write.old, write.new):
            return Field((write.range,), write.what)
    return None


def fields_now(run: Run, canvas: Canvas) -> Tuple[Field, ...]:
    """The fields of a run where they are now; those that SM has moved are looked for in their structure."""
    moved = {found.field.around for found in verdicts(run, canvas) if found.state == MOVED}
    fields = [field for field in run.fields if field.around not in moved]
    known = dict(run.ids.uuids, **run.ids.reversed().uuids)
    names = {field.around: field for field in run.fields}
    for around in sorted(moved):
        field = names[around]
        for at, uuid in structure.places(field.kind, canvas.get(around), known).items():
            fields.append(field._replace(pieces=part_of(around, Range(at, len(uuid)))))
    return tuple(fields)


def part_of(pieces: Sequence[Range], part: Range) -> Tuple[Range, ...]:
    """Where a part of something lies that itself lies in pieces; `part` counts from its start."""
    found, start = [], 0
    for piece in pieces:
        first, last = max(part.offset, start), min(part.end, start + piece.length)
        if first < last:
            found.append(Range(piece.offset + first - start, last - first))
        start += piece.length
    return tuple(found)
