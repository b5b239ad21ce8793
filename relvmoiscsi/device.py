# SPDX-License-Identifier: LGPL-2.1-only
"""The interface of a device: batches of reads, batches of writes, flushes, and the fence of the writes.

The operations of a batch do not depend on each other. A device may execute the operations in any order or in parallel.
So the time of a run is counted in batches, for any number of volumes. A write is durable only after `flush`.

A round trip to an array costs far more than the transferred bytes. So `spans_of` and `runs_of` join operations that
touch, or nearly touch.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from hashlib import sha256
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, Overtaken, Place, Refused, Truncated, UsageError

__all__ = [
    "MAX_TORN_BYTES", "NEAR", "PIECE", "SECTOR", "Chunk", "CountingDevice", "Device", "Fence", "ForwardingDevice",
    "MemoryDevice", "Range", "align_down", "align_up", "cut_out", "in_pieces", "overlaid", "pieces_of", "read_pieces",
    "runs_of", "spans_of", "torn_bytes", "verify_readable", "verify_size", "verify_writable", "whole_blocks",
]  # fmt: skip

SECTOR = 512
NEAR = 4096  #: bytes; reading a gap of this size costs less than a second request
PIECE = 1024 * 1024  #: bytes; the largest single request, and the largest that block devices usually accept undivided


class Range(NamedTuple):
    """Bytes [offset, offset + length) of a device."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    def widened(self, unit: int) -> "Range":
        """Return the range, widened to multiples of `unit`."""
        start = align_down(self.offset, unit)
        return Range(start, align_up(self.end, unit) - start)


class Chunk(NamedTuple):
    """Bytes for a write, and their offset."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def range(self) -> Range:
        return Range(self.offset, len(self.data))


class Fence:
    """What an open LUN must hold for a run to write to it. A run that was overtaken finds out, and writes no more.

    A process, a virtual machine or a host may stand still between any two instructions:

        t0  host A looks at the LUN, and stands still
        t1  host B recovers the run of A, or gives the LUN new identities, and has ended
        t2  host A goes on, and sends the write for which it has looked

    So each write has a condition and a lease, and a host that recovers a run claims the run:

        condition  the LUN holds what this run last wrote or found, in the places of `hold`
        lease      a write leaves this host at most `lease_seconds` after the look that found the condition true. A
                   transport compares the clock directly before it sends
        claim      the recovering host writes its `claim` into the commit record, and waits OUTLAST_SECONDS. By then,
                   each look of host A from before the claim is too old, and each later look finds the claim

    A transport looks where that costs no time of its own: with the questions for the name of the LUN, or by one read
    before a batch.
    """

    LEASE_SECONDS = 10.0  #: the longest lease
    OUTLAST_SECONDS = 12.0  #: the longest lease, and time for the way of the last write to the LUN
    SLOW_LOOKS = 30  #: looks in a row that took longer than the lease
    is_alone = False  #: whether no other client can write to the device: it is in memory

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = lambda: 0.0,
        lease_seconds: float = LEASE_SECONDS,
        writer: bytes = bytes(4),
        claim: int = 1,
    ) -> None:
        """`clock` returns seconds and never goes back.

        `writer`, 4 bytes, goes into the commit records of this run. A later run that has the same `writer`, and has the
        LUN open, knows that this run can send nothing any more. Zeros: nobody knows. `claim` is a number that no other
        open LUN has, from 1 to 2**32 - 1.
        """
        self.name, self.clock, self.lease_seconds = name, clock, lease_seconds
        self.writer, self.claim = writer, claim
        self.expires = float("-inf")  #: the time on the clock at which the lease of the last look ends
        self._versions: Dict[Range, List[bytes]] = {}  # by place: the bytes of the last flush, then each write since

    @classmethod
    def of_writer(
        cls,
        name: str,
        clock: Callable[[], float],
        identity: bytes,
        entropy: bytes,
        lease_seconds: float = LEASE_SECONDS,
    ) -> "Fence":
        """Return the fence of a device that writes. Two devices have one `identity` only if they have one `writer`.

        `identity` is b"" where nothing is known about earlier runs. `entropy` are 4 random bytes.
        """
        writer = sha256(identity).digest()[:4] if identity else bytes(4)
        claim = 1 + int.from_bytes(entropy, "big") % (2**32 - 1)
        return cls(name, clock, lease_seconds, writer, claim)

    # --- the condition: what the LUN must hold

    def hold(self, chunks: Iterable[Chunk]) -> None:
        """From now on, write only while the LUN holds these bytes, or the writes of this run over them."""
        self._versions, self.expires = {}, float("-inf")
        self.hold_also(chunks)

    def hold_also(self, chunks: Iterable[Chunk]) -> None:
        """Add places to those of `hold`."""
        self._versions.update((chunk.range, [chunk.data]) for chunk in chunks)

    @property
    def places(self) -> List[Range]:
        """The ranges that a look reads."""
        return list(self._versions)

    def writing(self, chunks: Iterable[Chunk]) -> None:
        """These chunks go out now. Until a flush, the LUN may hold what they cover as it was before, or as written."""
        for chunk in chunks:
            for place, versions in self._versions.items():
                if max(chunk.offset, place.offset) < min(chunk.end, place.end):
                    versions.append(overlaid(versions[-1], place.offset, [chunk]))

    def flushed(self) -> None:
        """All chunks of `writing` are durable."""
        self._versions = {place: versions[-1:] for place, versions in self._versions.items()}

    # --- the lease: a look finds the condition true, and lets writes out for some seconds

    def verify(self, found: Sequence[bytes], begun: float) -> None:
        """`found` is what the LUN holds in `places`, read after the time `begun`. Raises Overtaken."""
        for (place, versions), data in zip(self._versions.items(), found):
            if data not in versions:
                raise Overtaken(self.name, place.offset)
        self.expires = begun + self.lease_seconds

    def look(self, read: Callable[[Sequence[Range]], List[bytes]]) -> None:
        """Read the places, and compare. Raises Overtaken, and the errors of `read`."""
        if self._versions:
            begun = self.clock()
            self.verify(read(self.places), begun)

    def look_if_due(self, read: Callable[[Sequence[Range]], List[bytes]]) -> None:
        """Look again when the lease is over. Call this directly before a write leaves.

        Raises DeviceError for a LUN whose every answer takes longer than the lease.
        """
        for _ in range(self.SLOW_LOOKS):
            if not self._versions or self.is_fresh:
                return
            self.look(read)
        reason = f"each answer to a read takes longer than {self.lease_seconds:g} seconds"
        raise DeviceError(self.name, "write", self.places[0].offset, self.places[0].length, reason)

    @property
    def is_fresh(self) -> bool:
        """Whether the last look is young enough for a write."""
        return self.clock() <= self.expires


class Device(ABC):
    """A block device, or an image file in place of a block device."""

    name = ""  #: for messages: "/dev/sdc"
    size_bytes = 0
    block_size = SECTOR  #: logical block size in bytes, 512 or 4096; chunks start and end on its multiples
    physical_block_size = SECTOR  #: bytes that the device writes at once; a 512e disk has 4096, with blocks of 512
    is_closed = False  #: whether its caller has closed it: then no function of the engine takes the device
    objection: Optional[Refused] = None  #: why an open for a write would be refused, as an open for reading knows
    _fence: Optional[Fence] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def fence(self) -> Fence:
        """The condition of all writes. Only a device of its transport looks; the others hand it on, or have nobody
        beside them.
        """
        if self._fence is None:
            self._fence = Fence(self.name)
        return self._fence

    @property
    def is_own(self) -> bool:
        """Whether `name` is a path that another program may be told: no other user can lead it elsewhere, or make a
        file beside it.
        """
        return False

    @property
    def raw_name(self) -> str:
        """Of a regular file: the path of no file, for a program that converts the file to a raw image. Otherwise ""."""
        return ""

    @abstractmethod
    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        """Return the bytes of each range, in the order of `ranges`. Ranges need no alignment.

        Raises Truncated for a range that is not wholly on the device, DeviceError when a read fails.
        """

    @abstractmethod
    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write chunks that do not overlap, in any order.

        Raises DeviceError when a write fails; then any chunk may be written, wholly or in part. Raises Overtaken where
        the LUN does not hold what `fence` says.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all written data is durable. Raises DeviceError."""

    @abstractmethod
    def end_late_writes(self, of_another_host: bool = False) -> None:
        """Return when no write that an earlier run has sent can change the LUN any more. Raises the errors of `write`.

        `of_another_host`: the earlier run may still be at work. So wait first until its lease has ended.
        """

    def look_for_users(self) -> None:  # noqa: B027 - most devices do not know who else uses them
        """Set the objection of a dry run where other programs of this machine have the device open."""

    def verify_copy(self, data_bytes: int) -> None:  # noqa: B027 - most devices copy as fast as they read and write
        """Raise Refused where a copy of so many bytes to another place of the device would take hours."""

    def data_ranges(self) -> List[Range]:
        """Return the ranges of the device that may hold bytes other than zero, in ascending order."""
        return [Range(0, self.size_bytes)] if self.size_bytes else []


#: LVM puts the label into one page of this size, and the metadata area into the next page. A larger physical block is
#: an allocation unit of the storage, not the unit of a write.
MAX_TORN_BYTES = 4096


def torn_bytes(device: Device) -> int:
    """Return the unit, in bytes, that the device writes wholly or not at all, aligned; 512 to 4096."""
    return max(device.block_size, min(device.physical_block_size, MAX_TORN_BYTES))


def whole_blocks(device: Device, chunks: Sequence[Chunk], around: Sequence[Chunk] = ()) -> List[Chunk]:
    """Return the chunks, widened to whole physical blocks with the current bytes of the device.

    `around` holds blocks whose bytes are known; these blocks are not read again.
    """
    unit, end = torn_bytes(device), align_down(device.size_bytes, device.block_size)
    spans: List[Range] = []
    inside: List[List[Chunk]] = []
    for chunk in sorted(chunks):
        start, stop = align_down(chunk.offset, unit), min(align_up(chunk.end, unit), end)
        if spans and start < spans[-1].end:
            start = spans.pop().offset
            inside[-1].append(chunk)
        else:
            inside.append([chunk])
        spans.append(Range(start, stop - start))
    is_whole = [len(several[0].data) == span.length for span, several in zip(spans, inside)]
    known = {block.range: block.data for block in around}
    unknown = [span for span, whole in zip(spans, is_whole) if not whole and span not in known]
    known.update(zip(unknown, device.read(unknown) if unknown else []))
    return [
        several[0] if whole else Chunk(span.offset, overlaid(known[span], span.offset, several))
        for span, several, whole in zip(spans, inside, is_whole)
    ]


def overlaid(data: bytes, offset: int, chunks: Iterable[Chunk]) -> bytes:
    """Return `data`, which starts at `offset` on the device, with the parts of the chunks that lie there."""
    found = bytearray(data)
    for chunk in chunks:
        first, last = max(chunk.offset, offset), min(chunk.end, offset + len(data))
        if first < last:
            found[first - offset : last - offset] = chunk.data[first - chunk.offset : last - chunk.offset]
    return bytes(found)


def read_pieces(device: Device, pieces: Sequence[Sequence[Range]]) -> List[bytes]:
    """Read many things in one batch; each thing is a list of ranges, and gets one result."""
    parts = iter(device.read([part for several in pieces for part in several]))
    return [next(parts) if len(several) == 1 else b"".join([next(parts) for _ in several]) for several in pieces]


def in_pieces(pieces: Iterable[Range], data: bytes) -> Iterator[Chunk]:
    """Yield the bytes of a thing as chunks; `pieces` are the ranges of the thing on the device."""
    done = 0
    for piece in pieces:
        yield Chunk(piece.offset, data[done : done + piece.length])
        done += piece.length


def align_down(offset: int, alignment: int) -> int:
    return offset - offset % alignment


def align_up(offset: int, alignment: int) -> int:
    return offset + -offset % alignment


def verify_readable(device: Device, wanted: Range) -> None:
    """Raises Truncated for a range that is not wholly on the device, ValueError for negative numbers."""
    if wanted.offset < 0 or wanted.length < 0:
        raise ValueError(f"{wanted} is no range of a device")
    if wanted.end > device.size_bytes:
        available = device.size_bytes - wanted.offset
        raise Truncated("the range to read", Place(device.name, wanted.offset), wanted.length, available)


def verify_writable(device: Device, chunk: Chunk, writable: bool) -> None:
    """Raises UsageError for a device that is open for reading, before any write.

    Raises ValueError for a chunk that does not fit the device: a bug of the caller.
    """
    if not writable:
        problem = UsageError(f"{device.name} is open for reading only.").in_state(NOTHING_WRITTEN)
        raise problem.advising("Open it for writing (`writable=True`).")
    if chunk.offset % device.block_size or len(chunk.data) % device.block_size:
        raise ValueError(
            f"a chunk of {len(chunk.data)} bytes at byte {chunk.offset} does not fit the blocks of "
            f"{device.block_size} bytes of {device.name}"
        )
    if chunk.offset < 0 or chunk.end > device.size_bytes:
        what = f"a chunk of {len(chunk.data)} bytes at byte {chunk.offset}"
        raise ValueError(f"{what} is not wholly on {device.name}")


def verify_size(device: Device, size_bytes: int, block_size: int) -> None:
    """Raise Refused for a device that is smaller than at its open, or has other blocks. `size_bytes` is its size now.

    A device that has grown is not refused: all that a run reads and writes lies before the old end.
    """
    if size_bytes < device.size_bytes or block_size != device.block_size:
        raise Refused(
            f"{device.name} had {device.size_bytes} bytes in blocks of {device.block_size}, and has {size_bytes} bytes "
            f"in blocks of {block_size} now.",
            "ISCSIDevice",
        ).advising("Restore its size.")


def cut_out(wanted: Range, starts: Sequence[int], buffers: Sequence[memoryview]) -> bytes:
    """Return the bytes of a range from the buffer of its span; `starts` are the offsets of the spans."""
    if not wanted.length:
        return b""
    index = bisect_right(starts, wanted.offset) - 1
    start = wanted.offset - starts[index]
    return bytes(buffers[index][start : start + wanted.length])


def spans_of(ranges: Sequence[Range], block_size: int, size_bytes: int) -> List[Range]:
    """Return the fewest spans that contain all ranges, in ascending order, aligned to blocks.

    An empty range has no span. Where the device ends within a block, the span ends there too.
    """
    spans: List[Range] = []
    for wanted in sorted(item for item in ranges if item.length):
        start = align_down(wanted.offset, block_size)
        end = min(align_up(wanted.end, block_size), size_bytes)
        if spans and start - spans[-1].end <= NEAR:
            first = spans.pop()
            start, end = first.offset, max(first.end, end)
        spans.append(Range(start, end - start))
    return spans


def runs_of(chunks: Sequence[Chunk]) -> List[List[Chunk]]:
    """Return the chunks in groups; in a group, each chunk ends where the next chunk starts. Groups are ascending.

    Raises ValueError when two chunks overlap, because the result on the device would be undefined.
    """
    runs: List[List[Chunk]] = []
    for chunk in sorted((item for item in chunks if item.data), key=lambda item: item.offset):
        end = runs[-1][-1].end if runs else 0
        if chunk.offset < end:
            raise ValueError(f"two chunks of one batch overlap at byte {chunk.offset}")
        if runs and chunk.offset == end:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def pieces_of(length: int) -> List[Range]:
    """Return [0, length) cut into ranges of at most PIECE bytes."""
    return [Range(start, min(PIECE, length - start)) for start in range(0, length, PIECE)]


class ForwardingDevice(Device):
    """A device that forwards all operations to another device; the base of devices that add a step to an operation."""

    def __init__(self, device: Device) -> None:
        self.name, self.size_bytes, self.block_size = device.name, device.size_bytes, device.block_size
        self.physical_block_size = device.physical_block_size
        self._device, self._fence, self.objection = device, device.fence, device.objection

    @property
    def is_own(self) -> bool:
        return self._device.is_own

    @property
    def raw_name(self) -> str:
        return self._device.raw_name

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        return self._device.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._device.write(chunks)

    def flush(self) -> None:
        self._device.flush()

    def end_late_writes(self, of_another_host: bool = False) -> None:
        self._device.end_late_writes(of_another_host)

    def verify_copy(self, data_bytes: int) -> None:
        self._device.verify_copy(data_bytes)

    def data_ranges(self) -> List[Range]:
        return self._device.data_ranges()


class CountingDevice(ForwardingDevice):
    """Forwards all operations and counts them, before the device merges or splits an operation."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.reads = self.read_batches = self.bytes_read = 0
        self.writes = self.write_batches = self.bytes_written = 0
        self.flushes = 0

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        found = super().read(ranges)
        self.reads += len(ranges)
        self.read_batches += bool(ranges)
        self.bytes_read += sum(part.length for part in ranges)
        return found

    def write(self, chunks: Sequence[Chunk]) -> None:
        super().write(chunks)
        self.writes += len(chunks)
        self.write_batches += bool(chunks)
        self.bytes_written += sum(len(chunk.data) for chunk in chunks)

    def flush(self) -> None:
        super().flush()
        self.flushes += 1


class MemoryDevice(ForwardingDevice):
    """Keeps all writes in memory: a run on this device is a dry run. A read gives what the run has left."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._fence = Fence(device.name)
        self._fence.is_alone = True
        self.chunks: List[Chunk] = []  #: in the order of the writes
        self._by_place: Dict[int, List[Chunk]] = {}  #: the same, by each PIECE of the device: a run may write millions

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        answers = []
        for part, data in zip(ranges, super().read(ranges)):
            pieces, offset = [], part.offset
            while offset < part.end:
                end = min((offset // PIECE + 1) * PIECE, part.end)
                piece = data[offset - part.offset : end - part.offset]
                pieces.append(overlaid(piece, offset, self._by_place.get(offset // PIECE, ())))
                offset = end
            answers.append(b"".join(pieces))
        return answers

    def write(self, chunks: Sequence[Chunk]) -> None:
        self.chunks += chunks
        for chunk in chunks:
            for place in range(chunk.offset // PIECE, -(-chunk.end // PIECE)):
                self._by_place.setdefault(place, []).append(chunk)

    def flush(self) -> None:
        pass

    def end_late_writes(self, of_another_host: bool = False) -> None:
        pass
