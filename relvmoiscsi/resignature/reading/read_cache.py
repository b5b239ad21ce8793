# SPDX-License-Identifier: LGPL-2.1-only
"""A cache of reads from a device. The cache can also give the bytes that reads would return after planned writes."""

from bisect import bisect_left, bisect_right
from typing import Iterable, List, Optional, Sequence, Tuple, Union

from relvmoiscsi.device import Chunk, Device, ForwardingDevice, Range, align_down, align_up, torn_bytes
from relvmoiscsi.errors import Place, Truncated


class UnwrittenDevice(ForwardingDevice):
    """A device on which a plan is made: nobody writes."""

    def write(self, chunks: Sequence[Chunk]) -> None:
        raise TypeError("a plan does not write")

    def flush(self) -> None:
        raise TypeError("a plan does not write")


class ReadCache(UnwrittenDevice):
    """A device that reads each block of another device once, and caches the blocks."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._whole = torn_bytes(device)
        self._starts: List[int] = []  # offsets of the cached stretches, ascending
        # the bytes of each stretch: whole blocks, no overlap. `overwrite` turns a stretch into a bytearray of its own
        self._known: List[Union[bytes, bytearray]] = []

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        found = [self._whole_part(wanted) for wanted in ranges]
        missing = [part for wanted, data in zip(ranges, found) if data is None for part in self._missing(wanted)]
        if missing:
            for part, data in zip(missing, self._device.read(missing)):
                self._keep(part.offset, data)
        for number, wanted in enumerate(ranges):
            if found[number] is None:  # cached now, maybe in several stretches
                stretches = range(self._first(wanted.offset), bisect_left(self._starts, wanted.end))
                parts = [(wanted.offset - self._starts[index], wanted.end - self._starts[index]) for index in stretches]
                pieces = [self._known[index][max(0, at) : end] for index, (at, end) in zip(stretches, parts)]
                found[number] = b"".join(pieces)
        return [data or b"" for data in found]

    def with_chunks(self, chunks: Sequence[Chunk]) -> "ReadCache":
        """A cache of the device after writes of `chunks`, which must be whole blocks."""
        changed = ReadCache(self._device)
        changed._starts, changed._known = list(self._starts), [bytes(known) for known in self._known]
        for chunk in chunks:
            changed._keep(chunk.offset, chunk.data)
        return changed

    def overwrite(self, chunks: Iterable[Chunk]) -> None:
        """Put the chunks into the cached stretches. Parts of chunks outside the cached stretches are ignored."""
        for chunk in chunks:
            for index in range(self._first(chunk.offset), bisect_left(self._starts, chunk.end)):
                start = self._starts[index]
                first, end = max(start, chunk.offset), min(start + len(self._known[index]), chunk.end)
                self._put_within(index, first, chunk.data[first - chunk.offset : end - chunk.offset])

    def _whole_part(self, wanted: Range) -> Optional[bytes]:
        """The bytes of a range in one cached stretch; None for any other range."""
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
        """The blocks of a range that are not cached yet. Raises Truncated."""
        if wanted.offset < 0 or wanted.length < 0 or wanted.end > self.size_bytes:
            available = self.size_bytes - wanted.offset
            raise Truncated("A structure", Place(self.name, wanted.offset), wanted.length, available)
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
        """Cache these bytes, in place of the cached bytes of the same range."""
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
        """Put bytes into the stretch `index`; False when the stretch does not contain the whole range.

        The first call copies the stretch, later calls do not.
        """
        at, known = offset - self._starts[index], self._known[index]
        if at < 0 or at + len(data) > len(known):
            return False
        if isinstance(known, bytes):
            self._known[index] = known = bytearray(known)
        known[at : at + len(data)] = data
        return True


def uncached(device: Device) -> Device:
    """The device behind a cache, for bytes that are read only once. The cache must not hold planned writes there."""
    return device._device if isinstance(device, ReadCache) else device
