# SPDX-License-Identifier: LGPL-2.1-only
"""A block device in memory that keeps only what is not zero.

Contents are pages of 4 KiB, each an immutable `bytes`. A copy shares them, so thousands of copies of an image cost
little more than the pages in which they differ: `freeze` moves what was written so far, if it is much, into a table
shared by all later copies, and a copy has a small table of its own above it.
"""

import errno
import hashlib
import os
from bisect import bisect_right
from typing import Any, Callable, Container, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range
from relvmoiscsi.errors import Place, Truncated

PAGE = 4096
MAX_SIZE_BYTES = 64 << 40

_ZERO_PAGE = bytes(PAGE)
_FILLER_PAGE = b"\xff" * PAGE
_SHARED_PAGES = {page: page for page in (_ZERO_PAGE, _FILLER_PAGE)}
_COPY_BYTES = 16 << 20
#: a table of so few pages is cheaper to copy than to join with the one below it
_FEW_PAGES = 64


class Counters(NamedTuple):
    """What was asked of a disk through the `Device` interface."""

    read_batches: int
    reads: int
    bytes_read: int
    write_batches: int
    writes: int
    bytes_written: int
    flushes: int


class _Table(Dict[int, bytes]):
    """Pages that copies share; a table equals itself alone."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class Content(NamedTuple):
    """What is on a disk, to be found again: of copies of one disk those are equal that hold the same."""

    size_bytes: int
    table: Dict[int, bytes]
    pages: frozenset  #: of (index, bytes)


class SparseDisk(Device):
    """A disk of any size up to 64 TiB, all zero at first.

    It is strict where a kernel would be: a chunk that is not made of whole blocks, that overlaps another one of its
    batch or that leaves the disk is a mistake of the program under test and raises AssertionError.
    """

    def __init__(self, size_bytes: int, block_size: int = SECTOR, name: str = "sparse disk") -> None:
        assert block_size in (512, 4096), block_size
        assert 0 < size_bytes <= MAX_SIZE_BYTES and size_bytes % block_size == 0, size_bytes
        self.name = name
        self.size_bytes = size_bytes
        self.block_size = self.physical_block_size = block_size
        self._below: Dict[int, bytes] = _Table()
        self._pages: Dict[int, bytes] = {}
        self._noted: Optional[Set[int]] = None
        self.reset_counters()

    # -- the Device interface ---------------------------------------------------------------------------------------

    @property
    def is_own(self) -> bool:
        return True  # as a disk in /dev

    def data_ranges(self) -> List[Range]:
        starts = (index * PAGE for index in sorted({*self._below, *self._pages}))
        return [Range(start, min(PAGE, self.size_bytes - start)) for start in starts]

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        self.read_batches += 1
        for wanted in ranges:
            self._require_inside(wanted)
            self.reads += 1
            self.bytes_read += wanted.length
        return [self.peek(wanted.offset, wanted.length) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        check_chunks(self, chunks)
        self.write_batches += 1
        for chunk in chunks:
            self.writes += 1
            self.bytes_written += len(chunk.data)
            self.poke(chunk.offset, chunk.data)

    def flush(self) -> None:
        self.flushes += 1

    def end_late_writes(self, of_another_host: bool = False) -> None:
        """No earlier run has sent a write that is still under way."""

    # -- counters ---------------------------------------------------------------------------------------------------

    def reset_counters(self) -> None:
        for name in Counters._fields:
            setattr(self, name, 0)

    def counters(self) -> Counters:
        return Counters(*(getattr(self, name) for name in Counters._fields))

    # -- contents, for tests: any alignment, not counted ------------------------------------------------------------

    def peek(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length)."""
        self._require_inside(Range(offset, length))
        first, skip = divmod(offset, PAGE)
        if self._noted is not None:
            self._noted.update(range(first, (offset + length - 1) // PAGE + 1))
        if skip + length <= PAGE:
            return self._page(first)[skip : skip + length]
        last = (offset + length - 1) // PAGE
        own, below = self._pages.get, self._below.get  # `_page`, for the many pages of a metadata area
        return b"".join([own(index) or below(index, _ZERO_PAGE) for index in range(first, last + 1)])[
            skip : skip + length
        ]

    def poke(self, offset: int, data: bytes) -> None:
        """Put bytes anywhere."""
        assert offset >= 0 and offset + len(data) <= self.size_bytes, (offset, len(data), self.size_bytes)
        done = 0
        while done < len(data):
            index, skip = divmod(offset + done, PAGE)
            piece = bytes(data[done : done + PAGE - skip])
            if len(piece) < PAGE:
                old = self._page(index)
                piece = old[:skip] + piece + old[skip + len(piece) :]
            self._set_page(index, piece)
            done += PAGE - skip

    def runs(self, without_filler: bool = False) -> Iterator[Tuple[int, bytes]]:
        """What is not zero, as (offset, bytes): adjoining pages joined, in order, pieces of at most 16 MiB.

        `without_filler` leaves pages of 0xFF out as well; empty block allocation tables are made of them.
        """
        start = 0
        pieces: List[bytes] = []
        for index, page in self._nonzero_pages():
            if without_filler and page is _FILLER_PAGE:
                continue
            if pieces and (index != start + len(pieces) or len(pieces) * PAGE >= _COPY_BYTES):
                yield start * PAGE, b"".join(pieces)
                pieces = []
            if not pieces:
                start = index
            pieces.append(page)
        if pieces:
            yield start * PAGE, b"".join(pieces)

    def copy(self) -> "SparseDisk":
        """The same contents in a disk of its own; counters start at zero."""
        twin = SparseDisk(self.size_bytes, self.block_size, self.name)
        twin.physical_block_size = self.physical_block_size
        twin._below = self._below
        twin._pages = dict(self._pages)
        twin._noted = self._noted
        return twin

    def grown(self, size_bytes: int) -> "SparseDisk":
        """A copy that is longer."""
        assert size_bytes >= self.size_bytes, (size_bytes, self.size_bytes)
        twin = self.copy()
        twin.size_bytes = size_bytes
        return twin

    def adopt(self, offset: int, other: "SparseDisk", other_offset: int, length: int) -> None:
        """Put bytes of another disk here, without a copy of them: whole pages."""
        assert offset % PAGE == other_offset % PAGE == length % PAGE == 0, (offset, other_offset, length)
        first, other_first = offset // PAGE, other_offset // PAGE
        own, below = other._pages.get, other._below.get
        indices = range(other_first, other_first + length // PAGE)
        pages = [own(index) or below(index, _ZERO_PAGE) for index in indices]
        self._pages.update(zip(range(first, first + len(pages)), pages))

    def fill(self, offset: int, length: int, page: bytes) -> None:
        """Put one page everywhere, which is kept but once: whole pages."""
        assert offset % PAGE == length % PAGE == 0 and len(page) == PAGE, (offset, length, len(page))
        page = _SHARED_PAGES.get(page, bytes(page))
        indices = range(offset // PAGE, (offset + length) // PAGE)
        self._pages.update(dict.fromkeys(indices, page))

    def freeze(self) -> None:
        """Make every `copy` from now on cheap, however much has been written until now."""
        if self._pages and (not self._below or len(self._pages) > _FEW_PAGES):
            merged = dict(self._below)
            merged.update(self._pages)
            self._below = _Table((index, page) for index, page in merged.items() if page is not _ZERO_PAGE)
            self._pages = {}

    def content(self) -> Content:
        """A value that is equal for copies of one disk that hold the same; it takes what they have of their own."""
        pages = ((index, page) for index, page in self._pages.items() if page != self._below.get(index, _ZERO_PAGE))
        return Content(self.size_bytes, self._below, frozenset(pages))

    def content_of(self, indices: Container[int]) -> Content:
        """As `content`, of these pages alone."""
        whole = self.content()
        return whole._replace(pages=frozenset(item for item in whole.pages if item[0] in indices))

    def noting(self, indices: Set[int]) -> "SparseDisk":
        """A copy, of which and of whose copies `peek` notes the pages that it looks at."""
        twin = self.copy()
        twin._noted = indices
        return twin

    def __eq__(self, other: object) -> bool:
        """Same size and same contents. Names, block sizes and counters do not matter."""
        if not isinstance(other, SparseDisk):
            return NotImplemented
        return self.size_bytes == other.size_bytes and next(self._pages_unlike(other), None) is None

    __hash__ = None

    def differences(self, other: "SparseDisk") -> List[Range]:
        """Where two disks of one size differ: whole sectors of 512 bytes, neighbours joined, in order."""
        assert self.size_bytes == other.size_bytes, (self.size_bytes, other.size_bytes)
        sectors: List[int] = []
        for index in sorted(self._pages_unlike(other)):
            mine, theirs = self._page(index), other._page(index)
            for skip in range(0, PAGE, SECTOR):
                if mine[skip : skip + SECTOR] != theirs[skip : skip + SECTOR]:
                    sectors.append(index * PAGE + skip)
        return join(Range(offset, SECTOR) for offset in sectors)

    def same_except(self, other: "SparseDisk", ranges: Iterable[Range]) -> bool:
        """Same size, and the same bytes outside of `ranges`, which need no alignment; pages that copies share count
        as the same without a look.
        """
        masks = join(ranges)
        ends = [mask.end for mask in masks]
        for index in self._pages_unlike(other):
            start = index * PAGE
            first = bisect_right(ends, start)
            if _masked(start, self._page(index), masks, first) != _masked(start, other._page(index), masks, first):
                return False
        return self.size_bytes == other.size_bytes

    def digest_except(self, ranges: Iterable[Range]) -> str:
        """SHA-256 of the size and of all bytes outside of `ranges`, which need no alignment."""
        state = hashlib.sha256(b"%d\n" % self.size_bytes)
        masks = join(ranges)
        at = 0
        for index, page in self._nonzero_pages():
            start = index * PAGE
            while at < len(masks) and masks[at].end <= start:
                at += 1
            kept = _masked(start, page, masks, at)
            if kept != _ZERO_PAGE:
                state.update(b"%d\n" % index)
                state.update(kept)
        return state.hexdigest()

    # -- files ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str, block_size: int = SECTOR) -> "SparseDisk":
        """Read an image file or block device; holes are skipped, not read."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            disk = cls(size, block_size, path)
            for start, end in _data_extents(descriptor, size):
                for offset in range(start, end, _COPY_BYTES):
                    disk.poke(offset, _pread_fully(descriptor, min(_COPY_BYTES, end - offset), offset))
        finally:
            os.close(descriptor)
        return disk

    def to_file(self, path: str) -> None:
        """Write a sparse image file of the full size."""
        with open(path, "wb") as image:
            image.truncate(self.size_bytes)
            for offset, data in self.runs():
                image.seek(offset)
                image.write(data[: self.size_bytes - offset])

    # -- pages ------------------------------------------------------------------------------------------------------

    def _page(self, index: int) -> bytes:
        page = self._pages.get(index)
        return page if page is not None else self._below.get(index, _ZERO_PAGE)

    def _set_page(self, index: int, page: bytes) -> None:
        if page == _ZERO_PAGE:  # which looks at the first bytes; a dict would hash all
            page = _ZERO_PAGE
            if index not in self._below:
                self._pages.pop(index, None)
                return
        elif page == _FILLER_PAGE:
            page = _FILLER_PAGE
        self._pages[index] = page

    def _nonzero_pages(self) -> Iterator[Tuple[int, bytes]]:
        for index in sorted(set(self._below) | set(self._pages)):
            page = self._page(index)
            if page is not _ZERO_PAGE:
                yield index, page

    def _pages_unlike(self, other: "SparseDisk") -> Iterator[int]:
        """Indices of pages that differ; a table that both share is not looked at."""
        indices = set(self._pages) | set(other._pages)
        if self._below is not other._below:
            indices |= set(self._below) | set(other._below)
        return (index for index in indices if self._page(index) != other._page(index))

    def _require_inside(self, wanted: Range) -> None:
        if wanted.offset < 0 or wanted.length < 0 or wanted.end > self.size_bytes:
            raise Truncated("a read", Place(self.name, wanted.offset), wanted.length, self.size_bytes - wanted.offset)

    def __repr__(self) -> str:
        pages = sum(1 for _ in self._nonzero_pages())
        return f"<SparseDisk {self.name!r}: {self.size_bytes} bytes, {pages} pages not zero>"


class Recalled:
    """A function of a disk and a name that only looks by `peek`; called anew only where it would see other bytes.

    Copies of one disk with the same pages where it looked give what it gave. So many cuts of a run are cheap to judge.
    """

    _MOST = 40  #: for a name

    def __init__(self, function: Callable[[SparseDisk, str], Any]) -> None:
        self._function = function
        self._known: Dict[str, List[Tuple[Set[int], Content, Any]]] = {}

    def __call__(self, disk: SparseDisk, name: str = "") -> Any:
        known = self._known.setdefault(name, [])
        for indices, content, found in reversed(known):
            if disk.content_of(indices) == content:
                return found
        indices = set()
        found = self._function(disk.noting(indices), name)
        known.append((indices, disk.content_of(indices), found))
        del known[: -self._MOST]
        return found


def check_chunks(device: Device, chunks: Sequence[Chunk]) -> None:
    """Assert what the `Device` contract demands of a batch of writes."""
    reached = 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset):
        assert chunk.offset % device.block_size == 0, f"chunk at {chunk.offset} is not aligned"
        assert chunk.data and len(chunk.data) % device.block_size == 0, (
            f"{len(chunk.data)} bytes at {chunk.offset} are not whole blocks"
        )
        assert reached <= chunk.offset, f"chunk at {chunk.offset} overlaps another that ends at {reached}"
        assert chunk.end <= device.size_bytes, f"chunk ends at {chunk.end}, the disk at {device.size_bytes}"
        reached = chunk.end


def on_device(segments: Iterable[Tuple[int, int]], start: int, extent_size: int, wanted: Range) -> List[Range]:
    """Where bytes of a linear volume lie, of segments of (extent_count, first_pe); `start` is that of extent 0."""
    found: List[Range] = []
    reached = 0
    for count, first in segments:
        end = reached + count * extent_size
        low, high = max(wanted.offset, reached), min(wanted.end, end)
        if low < high:
            found.append(Range(start + first * extent_size + low - reached, high - low))
        reached = end
    return found


def join(ranges: Iterable[Range]) -> List[Range]:
    """The same bytes as few ranges, in order: neighbours and overlaps joined, empty ones dropped."""
    joined: List[Range] = []
    for item in sorted(item for item in ranges if item.length):
        if joined and item.offset <= joined[-1].end:
            start = joined[-1].offset
            joined[-1] = Range(start, max(joined[-1].end, item.end) - start)
        else:
            joined.append(Range(item.offset, item.length))
    return joined


def _masked(start: int, page: bytes, masks: Sequence[Range], first: int) -> bytes:
    """A page that starts at byte `start`, zero where a mask lies; masks before `first` end before the page."""
    out: Optional[bytearray] = None
    while first < len(masks) and masks[first].offset < start + PAGE:
        low, high = max(masks[first].offset, start), min(masks[first].end, start + PAGE)
        out = bytearray(page) if out is None else out
        out[low - start : high - start] = bytes(high - low)
        first += 1
    return page if out is None else bytes(out)


def _data_extents(descriptor: int, size: int) -> Iterator[Tuple[int, int]]:
    """[start, end) of everything in a file that is not a hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # block devices do not know holes
                yield end, size
            return  # ENXIO: nothing but a hole up to the end
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _pread_fully(descriptor: int, length: int, offset: int) -> bytes:
    pieces: List[bytes] = []
    while length:
        piece = os.pread(descriptor, length, offset)
        assert piece, f"the file ended at {offset} while it was being read"
        pieces.append(piece)
        length -= len(piece)
        offset += len(piece)
    return b"".join(pieces)
