# SPDX-License-Identifier: LGPL-2.1-only
"""Reads that are made once: a device that remembers, and can tell what would be read after a write."""

from bisect import bisect_left, bisect_right
from typing import Iterable, List, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up, torn_bytes
from relvmoiscsi.errors import Place, Truncated


class ReadCache(Device):
    """A device that remembers what was read of it, in whole blocks; a block is read once."""

    def __init__(self, device: Device) -> None:
        self.name, self.size_bytes, self.block_size = device.name, device.size_bytes, device.block_size
        self.physical_block_size = device.physical_block_size
        self._whole = torn_bytes(device)
        self._device = device
        self._starts: List[int] = []  # offsets of what is known, ascending
        # the bytes there, whole blocks; no two stretches overlap. Those that were overwritten are our own, to change
        self._known: List[Union[bytes, bytearray]] = []

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        found = [self._whole_part(wanted) for wanted in ranges]
        missing = [part for wanted, data in zip(ranges, found) if data is None for part in self._missing(wanted)]
        if missing:
            for part, data in zip(missing, self._device.read(missing)):
                self._keep(part.offset, data)
        return [self._part(wanted) if data is None else data for wanted, data in zip(ranges, found)]

    def write(self, chunks: Sequence[Chunk]) -> None:
        raise TypeError("a survey does not write")

    def flush(self) -> None:
        raise TypeError("a survey does not write")

    def with_chunks(self, chunks: Sequence[Chunk]) -> "ReadCache":
        """What would be read if the chunks (whole blocks) were on the device."""
        changed = ReadCache(self._device)
        changed._starts, changed._known = list(self._starts), [bytes(known) for known in self._known]
        for chunk in chunks:
            changed._keep(chunk.offset, chunk.data)
        return changed

    def overwrite(self, chunks: Iterable[Chunk]) -> None:
        """As if chunks were on the device as well, as far as something there is known; all else stays unknown."""
        for chunk in chunks:
            for index in range(self._first(chunk.offset), bisect_left(self._starts, chunk.end)):
                start = self._starts[index]
                first, end = max(start, chunk.offset), min(start + len(self._known[index]), chunk.end)
                self._put_within(index, first, chunk.data[first - chunk.offset : end - chunk.offset])

    @property
    def device(self) -> Device:
        """What it reads from."""
        return self._device

    def _whole_part(self, wanted: Range) -> Optional[bytes]:
        """The bytes of a range that lies in one stretch, as most do; None for any other."""
        offset, length = wanted
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or length < 0:
            return None
        at, known = offset - self._starts[index], self._known[index]
        return bytes(known[at : at + length]) if at + length <= len(known) else None

    def _first(self, offset: int) -> int:
        """The index of the first stretch that ends behind a byte."""
        index = bisect_right(self._starts, offset)
        if index and offset < self._starts[index - 1] + len(self._known[index - 1]):
            return index - 1
        return index

    def _missing(self, wanted: Range) -> List[Range]:
        """The blocks of a range that are not known. Raises Truncated."""
        if wanted.offset < 0 or wanted.length < 0 or wanted.end > self.size_bytes:
            left = self.size_bytes - wanted.offset
            raise Truncated("A structure", Place(self.name, wanted.offset), wanted.length, left)
        at = align_down(wanted.offset, self._whole)
        end = min(align_up(wanted.end, self._whole), align_down(self.size_bytes, self.block_size))
        found: List[Range] = []
        for index in range(self._first(at), len(self._starts)):
            start = self._starts[index]
            if start >= end:
                break
            if at < start:
                found.append(Range(at, start - at))
            at = start + len(self._known[index])
        if at < end:
            found.append(Range(at, end - at))
        return found

    def _keep(self, offset: int, data: bytes) -> None:
        """Know these bytes from now on, in place of what was known there."""
        end = offset + len(data)
        first, last = self._first(offset), bisect_left(self._starts, end)
        if last == first + 1 and self._put_within(first, offset, data):
            return
        stretches: List[Tuple[int, Union[bytes, bytearray]]] = [(offset, data)]
        for start, known in zip(self._starts[first:last], self._known[first:last]):
            if start < offset:
                stretches.insert(0, (start, known[: offset - start]))
            if end < start + len(known):
                stretches.append((end, known[end - start :]))
        self._starts[first:last] = [start for start, _known in stretches]
        self._known[first:last] = [known for _start, known in stretches]

    def _put_within(self, index: int, offset: int, data: bytes) -> bool:
        """Put bytes into a stretch that holds all of them; False where it does not. It is copied but once."""
        at, known = offset - self._starts[index], self._known[index]
        if at < 0 or at + len(data) > len(known):
            return False
        if isinstance(known, bytes):
            self._known[index] = known = bytearray(known)
        known[at : at + len(data)] = data
        return True

    def _part(self, wanted: Range) -> bytes:
        """The bytes of a range, all of which are known."""
        part = self._whole_part(wanted)
        if part is not None:
            return part
        found = []
        for index in range(self._first(wanted.offset), bisect_left(self._starts, wanted.end)):
            start, known = self._starts[index], self._known[index]
            found.append(known[max(0, wanted.offset - start) : wanted.end - start])
        return b"".join(found)


def uncached(device: Device) -> Device:
    """For what is read once, and would only be kept: the device behind a cache, which is as it was."""
    return device.device if isinstance(device, ReadCache) else device
