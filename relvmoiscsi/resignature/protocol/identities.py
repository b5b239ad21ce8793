# SPDX-License-Identifier: LGPL-2.1-only
"""Take the identities of a run back in what is on the disk now, and leave every other byte as it is.

While a run is cut, or once it is done, somebody may use the LUN: a VM, SM, LVM. Their bytes share blocks with the
identities. So an identity goes back only where the disk holds exactly the old or the new one, block by block; what it
holds else is somebody else's, and stays. A checksum is made anew over what is there.

Nothing here reads or writes a device: a `Canvas` is filled with what was read, and says what has to be written.
"""

from bisect import bisect_right
from typing import Iterable, List, Optional, Sequence, Set, Tuple

from relvmoiscsi.device import SECTOR, Range, align_down, align_up
from relvmoiscsi.resignature.protocol import structure
from relvmoiscsi.resignature.protocol.canvas import Canvas
from relvmoiscsi.resignature.protocol.run import Field, Run, Write

#: a field of fewer bytes may look like ours by chance
_TELLING_BYTES = 16


class _Side:
    """The contents of a run's writes before or after it."""

    def __init__(self, writes: Sequence[Write], new: bool) -> None:
        self._writes = sorted(writes)
        self._starts = [write.offset for write in self._writes]
        self._new = new

    def get(self, pieces: Iterable[Range], otherwise: bytes) -> bytes:
        """The bytes of the pieces; where no write holds them, those of `otherwise`, which is as long."""
        found, done = bytearray(otherwise), 0
        for piece in pieces:
            for write in self._around(piece):
                first, last = max(piece.offset, write.offset), min(piece.end, write.range.end)
                data = write.new if self._new else write.old
                at = done + first - piece.offset
                found[at : at + last - first] = data[first - write.offset : last - write.offset]
            done += piece.length
        return bytes(found)

    def _around(self, piece: Range) -> Iterable[Write]:
        index = max(0, bisect_right(self._starts, piece.offset) - 1)
        while index < len(self._writes) and self._writes[index].offset < piece.end:
            if self._writes[index].range.end > piece.offset:
                yield self._writes[index]
            index += 1


class _Sides:
    """What the disk holds, beside what a run found there and what it writes."""

    def __init__(self, run: Run, canvas: Canvas) -> None:
        self._canvas, self._block_bytes = canvas, run.block_bytes
        self._old, self._new = _Side(run.writes, new=False), _Side(run.writes, new=True)

    def old(self, pieces: Sequence[Range]) -> bytes:
        return self._old.get(pieces, self._canvas.get(pieces))

    def is_ours(self, field: Field, careful: bool) -> bool:
        """Whether a field is the old or the new one. `careful`: a short one counts only with all that is around it."""
        if not self._is_either(field.pieces):
            return False
        return not careful or field.length >= _TELLING_BYTES or self._is_either(field.around or self._blocks(field))

    def _blocks(self, field: Field) -> List[Range]:
        size = self._block_bytes
        found: Set[Range] = set()
        for piece in field.pieces:
            start, end = align_down(piece.offset, size), align_up(piece.end, size)
            found.update(Range(at, size) for at in range(start, end, size))
        return sorted(found)

    def _is_either(self, pieces: Sequence[Range]) -> bool:
        """A cut leaves each block old or new."""
        for piece in pieces:
            for at in range(align_down(piece.offset, SECTOR), piece.end, SECTOR):
                start, end = max(at, piece.offset), min(at + SECTOR, piece.end)
                part = [Range(start, end - start)]
                now = self._canvas.get(part)
                if now not in (self._old.get(part, now), self._new.get(part, now)):
                    return False
        return True


def put_back(run: Run, canvas: Canvas, careful: bool = False) -> List[Field]:
    """Give the contents their old identities; the result is what somebody else has changed, and stays.

    `careful`: LVM has changed the volume group since, so that the extents may be in other hands.
    """
    sides = _Sides(run, canvas)
    strange = [field for field in run.fields if not sides.is_ours(field, careful)]
    kept, seen = set(strange), {field.around for field in strange}
    for field in run.fields:
        if field not in kept:
            canvas.put(field.pieces, sides.old(field.pieces))
    for field in run.fields:
        if field.kind and field.around not in seen:
            seen.add(field.around)
            canvas.put(field.around, _sealed(field.kind, canvas.get(field.around), sides.old(field.around)))
    return strange


def _sealed(kind: str, data: bytes, before: bytes) -> bytes:
    """The structure with a checksum that is right: that from before where nobody else has changed anything."""
    as_before = structure.with_checksum_of(kind, data, before)
    return as_before if as_before == before and structure.is_whole(kind, before) else structure.resealed(kind, data)


def first_changed(run: Run, canvas: Canvas) -> Optional[Field]:
    """The first field that is neither as the run left it nor as it was before, or whose structure is damaged."""
    sides = _Sides(run, canvas)
    for field in run.fields:
        is_damaged = bool(field.kind) and not structure.is_whole(field.kind, canvas.get(field.around))
        if is_damaged or not sides.is_ours(field, careful=False):
            return field
    return None


def part_of(pieces: Sequence[Range], part: Range) -> Tuple[Range, ...]:
    """Where a part of something lies that itself lies in pieces; `part` counts from its start."""
    found, start = [], 0
    for piece in pieces:
        first, last = max(part.offset, start), min(part.end, start + piece.length)
        if first < last:
            found.append(Range(piece.offset + first - start, last - first))
        start += piece.length
    return tuple(found)
