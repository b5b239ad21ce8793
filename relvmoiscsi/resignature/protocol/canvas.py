# SPDX-License-Identifier: LGPL-2.1-only
"""The part of a device that a run writes to: as it was found, as it is to be, and what has to be written for that."""

from bisect import bisect_right
from typing import Iterable, List, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up
from relvmoiscsi.resignature.protocol.run import Run


class Canvas:
    """Stretches of the device, as they were found and as they are to be."""

    def __init__(self, found: Iterable[Chunk]) -> None:
        self._found = sorted(found)
        self._starts = [chunk.offset for chunk in self._found]
        self._now = [bytearray(chunk.data) for chunk in self._found]

    def get(self, pieces: Iterable[Range]) -> bytes:
        return b"".join(bytes(self._now[index][part]) for index, part in map(self._place, pieces))

    def put(self, pieces: Iterable[Range], data: bytes) -> None:
        done = 0
        for piece in pieces:
            index, part = self._place(piece)
            self._now[index][part] = data[done : done + piece.length]
            done += piece.length

    def changes(self, block_size: int) -> List[Chunk]:
        """What has to be written: blocks that are not as they were found."""
        chunks = []
        for chunk, now in zip(self._found, self._now):
            chunks += changed_chunks(chunk, bytes(now), block_size)
        return chunks

    def _place(self, piece: Range) -> Tuple[int, slice]:
        index = bisect_right(self._starts, piece.offset) - 1
        start = piece.offset - self._starts[index]
        return index, slice(start, start + piece.length)


def changed_chunks(before: Chunk, after: bytes, block_size: int) -> List[Chunk]:
    """The blocks in which `after` differs from `before`, neighbours as one chunk, and no block between."""
    chunks: List[Chunk] = []
    if before.data == after:
        return chunks
    for at in range(0, len(after), block_size):
        if before.data[at : at + block_size] == after[at : at + block_size]:
            continue
        start = at
        if chunks and before.offset + at == chunks[-1].end:
            start = chunks.pop().offset - before.offset
        chunks.append(Chunk(before.offset + start, after[start : at + block_size]))
    return chunks


def spans_of(run: Run, block_size: int) -> List[Range]:
    """What has to be known of the device to take a run's contents back: whole blocks, in order, joined."""
    wanted = [write.range for write in run.writes] + [part for field in run.fields for part in field.around]
    joined: List[Range] = []
    for start, end in sorted((align_down(w.offset, block_size), align_up(w.end, block_size)) for w in wanted):
        if joined and start <= joined[-1].end:
            before = joined.pop()
            joined.append(Range(before.offset, max(end, before.end) - before.offset))
        else:
            joined.append(Range(start, end - start))
    return joined


def read_canvas(device: Device, run: Run) -> Canvas:
    """What is where a run writes to contents. Raises DeviceError."""
    spans = spans_of(run, device.block_size)
    return Canvas(map(Chunk, (span.offset for span in spans), device.read(spans)))
