# SPDX-License-Identifier: LGPL-2.1-only
"""The part of a device that a run writes to: as it was found, as it is to be, and what has to be written for that."""

import errno
from bisect import bisect_right
from typing import Container, Iterable, List, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up
from relvmoiscsi.errors import DeviceError
from relvmoiscsi.resignature.protocol.run import Run


class Canvas:
    """Stretches of the device, as they were found and as they are to be.

    `lost` are blocks that do not read; whatever stands for them is not believed. One that is put as a whole is written,
    one that is not stays lost.
    """

    def __init__(self, found: Iterable[Chunk], lost: Iterable[Range] = ()) -> None:
        self._found = sorted(found)
        self._starts = [chunk.offset for chunk in self._found]
        self._now = [bytearray(chunk.data) for chunk in self._found]
        self._lost, self._healed = list(lost), []  # type: List[Range], List[Range]

    def get(self, pieces: Iterable[Range]) -> bytes:
        return b"".join(bytes(self._now[index][part]) for index, part in map(self._place, pieces))

    def put(self, pieces: Iterable[Range], data: bytes) -> None:
        done = 0
        for piece in pieces:
            index, part = self._place(piece)
            self._now[index][part] = data[done : done + piece.length]
            done += piece.length
            self._heal(piece)

    def replace(self, blocks: Sequence[Range], data: bytes) -> None:
        """Put whole blocks, to be written whatever was found there."""
        self.put(blocks, data)
        self._healed += blocks

    def _heal(self, piece: Range) -> None:
        healed = [lost for lost in self._lost if piece.offset <= lost.offset and lost.end <= piece.end]
        self._healed += healed
        self._lost = [lost for lost in self._lost if lost not in healed]

    def is_lost(self, pieces: Iterable[Range]) -> bool:
        """Whether any byte of them could not be read."""
        return any(_overlap(piece, lost) for piece in pieces for lost in self._lost)

    def changes(self, block_size: int) -> List[Chunk]:
        """What has to be written: blocks that are not as they were found, and lost ones that are known now."""
        always = {at for healed in self._healed for at in range(healed.offset, healed.end, block_size)}
        chunks = []
        for chunk, now in zip(self._found, self._now):
            chunks += changed_chunks(chunk, bytes(now), block_size, always)
        return [chunk for chunk in chunks if not self.is_lost([Range(chunk.offset, len(chunk.data))])]

    def _place(self, piece: Range) -> Tuple[int, slice]:
        index = bisect_right(self._starts, piece.offset) - 1
        start = piece.offset - self._starts[index]
        return index, slice(start, start + piece.length)


def _overlap(one: Range, other: Range) -> bool:
    return one.offset < other.end and other.offset < one.end


def changed_chunks(before: Chunk, after: bytes, block_size: int, always: Container[int] = ()) -> List[Chunk]:
    """The blocks in which `after` differs from `before`, neighbours as one chunk; `always`: and the blocks there.

    No block between is written: a write that is torn, or comes late, would take along what others have there.
    """
    chunks: List[Chunk] = []
    if before.data == after and not always:
        return chunks
    for at in range(0, len(after), block_size):
        if before.data[at : at + block_size] == after[at : at + block_size] and before.offset + at not in always:
            continue
        start = at
        if chunks and before.offset + at == chunks[-1].end:
            start = chunks.pop().offset - before.offset
        chunks.append(Chunk(before.offset + start, after[start : at + block_size]))
    return chunks


def spans_of(run: Run, block_size: int) -> List[Range]:
    """What has to be known of the device to put a run's contents right: whole blocks, in order, joined."""
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
    """What is where a run writes to contents. Blocks of which the disk says that they are lost are torn.

    Raises DeviceError for any other failure: what a path that is gone does not give may still be there.
    """
    spans = spans_of(run, device.block_size)
    try:
        return Canvas(map(Chunk, (span.offset for span in spans), device.read(spans)))
    except DeviceError as error:
        if error.errno != errno.ENODATA:
            raise
    lost: List[Range] = []
    found = [Chunk(span.offset, _what_is_left(device, span, lost)) for span in spans]
    return Canvas(found, lost)


def _what_is_left(device: Device, span: Range, lost: List[Range]) -> bytes:
    """The bytes of a span, block by block; zeros for those that are added to `lost`."""
    found = []
    for at in range(span.offset, span.end, device.block_size):
        block = Range(at, device.block_size)
        try:
            found.append(device.read([block])[0])
        except DeviceError as error:
            if error.errno != errno.ENODATA:
                raise
            lost.append(block)
            found.append(bytes(block.length))
    return b"".join(found)
