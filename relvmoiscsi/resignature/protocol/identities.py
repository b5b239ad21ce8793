# SPDX-License-Identifier: LGPL-2.1-only
"""Give the contents of volumes their old identities back, and leave all other bytes as they are.

After a cut, or after the end of a run, a VM, SM or LVM may write to blocks that hold identities. So an identity goes
back only when the disk holds exactly the old or the new identity, in each block. A field that differs from both stays.
Checksums are computed over the present bytes.

A caller fills a `WriteBuffer` with the bytes of the device; the buffer then gives the blocks to write.
"""

from bisect import bisect_right
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down
from relvmoiscsi.formats.vhd import STRUCTURES, is_whole, sealed
from relvmoiscsi.resignature.protocol.run_record import IdField, Run, joined

#: other programs may write the bytes of a shorter field by chance
_TELLING_BYTES = 16


class WriteBuffer:
    """Ranges of the device: the bytes as found, and the bytes to write."""

    def __init__(self, found: Iterable[Chunk]) -> None:
        self._found = sorted(found)
        self._starts = [chunk.offset for chunk in self._found]
        #: a copy of what a caller changes: of the rest, the bytes as found
        self._now: List[Union[bytes, bytearray]] = [chunk.data for chunk in self._found]

    def get(self, pieces: Iterable[Range]) -> bytes:
        return b"".join(bytes(self._now[index][part]) for index, part in map(self._place, pieces))

    def put(self, pieces: Iterable[Range], data: bytes) -> None:
        done = 0
        for piece in pieces:
            index, part = self._place(piece)
            now = self._now[index]
            if isinstance(now, bytes):
                now = self._now[index] = bytearray(now)
            now[part] = data[done : done + piece.length]
            done += piece.length

    def changes(self, block_size: int) -> List[Chunk]:
        """The blocks that differ from the bytes as found."""
        chunks = []
        for chunk, now in zip(self._found, self._now):
            chunks += changed_chunks(chunk, bytes(now), block_size)
        return chunks

    def with_chunks(self, chunks: Iterable[Chunk]) -> "WriteBuffer":
        """A buffer that was found with the bytes to write of this buffer, and with the bytes of `chunks`."""
        other = WriteBuffer(Chunk(chunk.offset, bytes(now)) for chunk, now in zip(self._found, self._now))
        for chunk in chunks:
            other.put([chunk.range], chunk.data)
        return other

    def _place(self, piece: Range) -> Tuple[int, slice]:
        index = bisect_right(self._starts, piece.offset) - 1
        start = piece.offset - self._starts[index]
        return index, slice(start, start + piece.length)


def changed_chunks(before: Chunk, after: bytes, block_size: int) -> List[Chunk]:
    """The blocks in which `after` differs from `before`; neighbouring blocks are one chunk."""
    if before.data == after:
        return []
    different = [
        Range(at, block_size)
        for at in range(0, len(after), block_size)
        if before.data[at : at + block_size] != after[at : at + block_size]
    ]
    return [Chunk(before.offset + part.offset, after[part.offset : part.end]) for part in joined(different)]


def read_written(device: Device, run: Run) -> WriteBuffer:
    """The present bytes of the device in the whole blocks where a run writes contents. Raises DeviceError."""
    wanted = [write.range for write in run.writes] + [part for field in run.fields for part in field.around]
    spans = joined(part.widened(device.block_size) for part in wanted)
    return WriteBuffer(map(Chunk, (span.offset for span in spans), device.read(spans)))


class _Sides:
    """Compares the present bytes of the device with the old and the new bytes of a run."""

    def __init__(self, run: Run, now: WriteBuffer) -> None:
        self._now, self._block_bytes = now, run.block_bytes
        self._seen: Dict[Range, bool] = {}  #: neighbouring short fields share their blocks
        self.old = now.with_chunks(Chunk(write.offset, write.old) for write in run.writes)
        self._new = now.with_chunks(Chunk(write.offset, write.new) for write in run.writes)

    def is_ours(self, field: IdField, careful: bool) -> bool:
        """Whether the device holds the old or the new bytes of a field, in each block.

        With `careful`, a short field counts only when its whole structure is old or new.
        """
        if not self._is_either(field.pieces):
            return False
        if not careful or sum(piece.length for piece in field.pieces) >= _TELLING_BYTES:
            return True
        return self._is_either(field.around or [piece.widened(self._block_bytes) for piece in field.pieces])

    def _is_either(self, pieces: Sequence[Range]) -> bool:
        """Whether each block holds old or new bytes in these pieces: a cut leaves each block old or new."""
        for piece in pieces:
            if piece not in self._seen:
                self._seen[piece] = self._is_either_throughout(piece)
            if not self._seen[piece]:
                return False
        return True

    def _is_either_throughout(self, piece: Range) -> bool:
        for at in range(align_down(piece.offset, SECTOR), piece.end, SECTOR):
            start, end = max(at, piece.offset), min(at + SECTOR, piece.end)
            part = [Range(start, end - start)]
            if self._now.get(part) not in (self.old.get(part), self._new.get(part)):
                return False
        return True


def put_back(run: Run, buffer: WriteBuffer, careful: bool = False) -> List[IdField]:
    """Give the contents their old identities back. Returns the fields that another program has changed: these stay.

    Pass `careful` when LVM has changed the volume group since the run: other volumes may have the extents.
    """
    sides = _Sides(run, buffer)
    strange = [field for field in run.fields if not sides.is_ours(field, careful)]
    stays, seen = set(strange), {field.around for field in strange}
    for field in run.fields:
        if field not in stays:
            buffer.put(field.pieces, sides.old.get(field.pieces))
    for field in run.fields:
        if field.kind and field.around not in seen:
            seen.add(field.around)
            data, before = (STRUCTURES[field.kind](side.get(field.around)) for side in (buffer, sides.old))
            # the old checksum when only the run has changed the structure, which then may have a wrong checksum
            as_before = data.replace(checksum=before.checksum)
            is_before = as_before == before and is_whole(before)
            buffer.put(field.around, bytes(as_before if is_before else sealed(data)))
    return strange


def first_changed(run: Run, buffer: WriteBuffer) -> Optional[IdField]:
    """The first field that holds neither its old nor its new bytes, or whose structure is damaged."""
    sides = _Sides(run, buffer)
    for field in run.fields:
        is_damaged = bool(field.kind) and not is_whole(STRUCTURES[field.kind](buffer.get(field.around)))
        if is_damaged or not sides.is_ours(field, careful=False):
            return field
    return None


def part_of(pieces: Sequence[Range], part: Range) -> Tuple[Range, ...]:
    """The ranges of a part of `pieces`; `part` counts from the start of the first piece."""
    found, start = [], 0
    for piece in pieces:
        first, last = max(part.offset, start), min(part.end, start + piece.length)
        if first < last:
            found.append(Range(piece.offset + first - start, last - first))
        start += piece.length
    return tuple(found)
