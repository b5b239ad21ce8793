# SPDX-License-Identifier: LGPL-2.1-only
"""Block devices of this host, and image files that stand for them.

A round trip to an array costs far more than the bytes it carries. So what is left of a batch after merging (`device`)
is handed to the kernel all at once, and the batch takes about as long as its slowest operation.

A device or image file that is open for writing is open nowhere else until `close`:

    block device   one descriptor: O_EXCL keeps off mounts, device-mapper and a second run; nobody else has it open, if
                   only to read; an flock keeps off udev, which would otherwise probe a half-written disk; O_DIRECT
                   keeps off the page cache of other nodes
    image file     nobody else has it open (a lease tells, and is given back at once), then an flock

Closing a block device that was open for writing makes udev look at it anew, so it comes last.

Logical blocks have 512 bytes, or 4096 where a LUN is 4Kn. LVM puts the same layout on such a one, its label at byte 512
(ten releases tried, on loop devices with these blocks), so it can hold a volume group as any other. Loop devices are
where that is tested; no array was at hand that gives such LUNs.
"""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import stat
import struct
import threading
from abc import abstractmethod
from collections import deque
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple, Type, TypeVar

from relvmoiscsi.device import (
    SECTOR,
    Chunk,
    Device,
    Range,
    align_down,
    align_up,
    cut_out,
    pieces_of,
    runs_of,
    spans_of,
    verify_readable,
    verify_writable,
)
from relvmoiscsi.errors import DeviceError, NotFound, Refused, UsageError
from relvmoiscsi.host.disk.exclusive import (
    FLOCK_SECONDS,
    NOT_WRITTEN,
    check_file_mode,
    check_not_open_elsewhere,
    lock_image,
    open_file,
    read_only,
    stat_path,
    take_alone,
)

log = logging.getLogger(__name__)

BLOCK_SIZES = (512, 4096)
WORKERS = 32  #: requests under way at once, the usual queue depth of an iSCSI session

Operation = Callable[[], None]

# Linux uapi: linux/fs.h.
BLKROGET = 0x125E
BLKFLSBUF = 0x1261
BLKSSZGET = 0x1268
BLKPBSZGET = 0x127B
BLKGETSIZE64 = 0x80081272

SelfDevice = TypeVar("SelfDevice", bound="HostDevice")


class HostDevice(Device):
    """What block devices and image files have in common: batches, merging, bounds, errors.

    A context manager; `close` gives the device back.
    """

    def __init__(self, path: str, writable: bool, descriptor: int) -> None:
        self.name = path
        self.writable = writable
        self._descriptor = descriptor
        self._workers = Workers()

    def __enter__(self: SelfDevice) -> SelfDevice:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        for wanted in ranges:
            verify_readable(self, wanted)
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        buffers = _buffers(spans, self.block_size)
        self._workers.run(_operations(self._fill, spans, buffers))
        starts = [span.offset for span in spans]
        return [cut_out(wanted, starts, buffers) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            verify_writable(self, chunk, self.writable)
        runs = runs_of(chunks)
        extents = [Range(run[0].offset, run[-1].end - run[0].offset) for run in runs]
        buffers = _buffers(extents, self.block_size)
        for run, buffer in zip(runs, buffers):
            for chunk in run:
                start = chunk.offset - run[0].offset
                buffer[start : start + len(chunk.data)] = chunk.data
        self._workers.run(_operations(self._drain, extents, buffers))

    def flush(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failure("flush", 0, 0, error) from error

    def data_ranges(self) -> List[Range]:
        """The stretches of the device that may hold anything but zeros, in ascending order."""
        return [Range(0, self.size_bytes)] if self.size_bytes else []

    def close(self) -> None:
        """Give the device back. Does nothing the second time. What was not flushed may not be durable."""
        if self._descriptor < 0:
            return
        self._workers.close()
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.close(descriptor)
        except OSError as error:
            # Durability is the business of flush, whose failures are raised; the descriptor is gone in any case.
            log.warning("%s could not be closed: %s.", self.name, error.strerror)

    @abstractmethod
    def _read_some(self, view: memoryview, offset: int) -> int:
        """Read into `view` and return how many of its bytes are there now. Raises OSError."""

    @abstractmethod
    def _write_some(self, view: memoryview, offset: int) -> int:
        """Write from `view` and return how many of its bytes were taken. Raises OSError."""

    def _fill(self, view: memoryview, offset: int) -> None:
        self._transfer("read", self._read_some, view, offset)

    def _drain(self, view: memoryview, offset: int) -> None:
        self._transfer("write", self._write_some, view, offset)

    def _transfer(self, action: str, some: Callable[[memoryview, int], int], view: memoryview, offset: int) -> None:
        """Go on after short transfers and signals until all of `view` is done. Raises DeviceError."""
        done = 0
        while done < len(view):
            try:
                count = some(view[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise self._failure(action, offset, len(view), error) from error
            if count == 0:
                reason = f"it ended {len(view) - done} bytes early"
                raise DeviceError(self.name, action, offset, len(view), reason, errno.EIO)
            done += count

    def _failure(self, action: str, offset: int, length: int, error: OSError) -> DeviceError:
        reason = error.strerror or str(error)
        return DeviceError(self.name, action, offset, length, reason, error.errno)


class BlockDevice(HostDevice):
    """A block device, read and written past the page cache."""

    def __init__(self, path: str, writable: bool, lock_timeout: float = FLOCK_SECONDS) -> None:
        """Open it; for writing, exclusively: raises Refused when it is in use or locked for `lock_timeout` seconds."""
        flags = os.O_RDWR | os.O_EXCL if writable else os.O_RDONLY
        super().__init__(path, writable, open_file(path, flags | os.O_DIRECT, writable))
        try:
            self.size_bytes = self._query(BLKGETSIZE64, "=Q")
            self.block_size = self._query(BLKSSZGET, "=i")
            self.physical_block_size = self._query(BLKPBSZGET, "=I")
            self._check_geometry()
            if writable:
                self._check_not_read_only()
                take_alone(path, self._descriptor, lock_timeout)
                self._drop_page_cache()
        except BaseException:
            self.close()
            raise

    def _query(self, request: int, layout: str) -> int:
        try:
            answer = fcntl.ioctl(self._descriptor, request, bytes(struct.calcsize(layout)))
        except OSError as error:
            raise Refused(f"{self.name} does not tell its geometry: {error.strerror}.") from error
        (value,) = struct.unpack(layout, answer)
        return int(value)

    def _check_geometry(self) -> None:
        if not self.size_bytes:
            raise NotFound(f"{self.name} has a size of 0 bytes: no disk is behind it.", sm_key="ISCSIDevice")
        if self.block_size not in BLOCK_SIZES:
            raise Refused(
                f"{self.name} has logical blocks of {self.block_size} bytes; 512 or 4096 are supported."
            ).in_state(NOT_WRITTEN)

    def _check_not_read_only(self) -> None:
        if self._query(BLKROGET, "=i"):
            raise read_only(self.name)

    def _drop_page_cache(self) -> None:
        """So that nobody who reads through the page cache is shown the old identity afterwards."""
        try:
            fcntl.ioctl(self._descriptor, BLKFLSBUF, 0)
        except OSError as error:
            # It takes CAP_SYS_ADMIN. Writes with O_DIRECT drop the pages they touch by themselves.
            log.debug("the page cache of %s was not dropped: %s", self.name, error.strerror)

    def _read_some(self, view: memoryview, offset: int) -> int:
        return self._whole_blocks(_pread64(self._descriptor, _address(view), len(view), offset))

    def _write_some(self, view: memoryview, offset: int) -> int:
        return self._whole_blocks(_pwrite64(self._descriptor, _address(view), len(view), offset))

    def _whole_blocks(self, count: int) -> int:
        """O_DIRECT can go on at a block only."""
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return align_down(count, self.block_size)


class ImageFile(HostDevice):
    """A regular file with the bytes of a disk. Holes stay holes, as nothing but the chunks is written."""

    def __init__(self, path: str, writable: bool, block_size: int = SECTOR) -> None:
        """Open it; for writing, as the only one: raises Refused when another process or loop device has it open."""
        super().__init__(path, writable, open_file(path, os.O_RDWR if writable else os.O_RDONLY, writable))
        self.block_size = self.physical_block_size = block_size
        try:
            status = os.fstat(self._descriptor)
            # no disk is smaller than a sector: such a size is told as it is, and nothing is read
            self.size_bytes = max(align_down(status.st_size, SECTOR), min(status.st_size, SECTOR))
            if writable:
                check_file_mode(path, status)
                check_not_open_elsewhere(path, self._descriptor)
                lock_image(path, self._descriptor)
        except BaseException:
            self.close()
            raise

    def data_ranges(self) -> List[Range]:
        found: List[Range] = []
        start = 0
        while start < self.size_bytes:
            data = self._seek(start, os.SEEK_DATA)
            if data is None or data >= self.size_bytes:
                break
            hole = self._seek(data, os.SEEK_HOLE)
            start = min(self.size_bytes if hole is None else hole, self.size_bytes)
            found.append(Range(data, start - data))
        return found

    def _seek(self, offset: int, what: int) -> Optional[int]:
        """Where the next data or hole begins, at `offset` or after; None if none follows."""
        try:
            return os.lseek(self._descriptor, offset, what)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # a file system that knows no holes: all may be data
                return offset if what == os.SEEK_DATA else None
            raise self._failure("seek", offset, 0, error) from error

    def _read_some(self, view: memoryview, offset: int) -> int:
        data = os.pread(self._descriptor, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def _write_some(self, view: memoryview, offset: int) -> int:
        return os.pwrite(self._descriptor, view, offset)


def open_device(path: str, writable: bool, block_size: int = SECTOR, lock_timeout: float = FLOCK_SECONDS) -> HostDevice:
    """Open a block device or an image file; for writing, exclusively.

    `block_size` is that of an image file, a block device has its own. `lock_timeout` is in seconds.
    Raises NotFound, UsageError when it is neither, Refused when it is in use, read-only or not for this user.
    """
    mode = stat_path(path).st_mode
    if stat.S_ISBLK(mode):
        device: HostDevice = BlockDevice(path, writable, lock_timeout)
    elif stat.S_ISREG(mode):
        device = ImageFile(path, writable, block_size)
    else:
        raise UsageError(f"{path} is neither a block device nor an image file.")
    how = "for writing" if writable else "for reading"
    log.debug("opened %s %s: %d bytes in blocks of %d", path, how, device.size_bytes, device.block_size)
    return device


def same_device(first: str, second: str) -> bool:
    """Do two paths lead to the same file, or to nodes of the same device? Raises NotFound when one leads nowhere."""
    one, other = stat_path(first), stat_path(second)
    if stat.S_ISBLK(one.st_mode) and stat.S_ISBLK(other.st_mode):
        return one.st_rdev == other.st_rdev
    return os.path.samestat(one, other)


def _operations(
    transfer: Callable[[memoryview, int], None], extents: Sequence[Range], buffers: Sequence[memoryview]
) -> List[Callable[[], None]]:
    """The requests of a batch: each buffer to or from its place on the device, in pieces."""
    return [
        partial(transfer, buffer[piece.offset : piece.end], extent.offset + piece.offset)
        for extent, buffer in zip(extents, buffers)
        for piece in pieces_of(extent.length)
    ]


def _buffers(extents: Sequence[Range], block_size: int) -> List[memoryview]:
    """Zeroed memory for each of them, begun on a multiple of the block size, as O_DIRECT wants it (open(2), NOTES).

    One mapping for all: the number of mappings of a process is limited. It is shared, so that a fork in between does
    not make the kernel fill a copy.
    """
    ends = list(accumulate(align_up(extent.length, block_size) for extent in extents))
    if not ends:
        return []
    whole = memoryview(mmap.mmap(-1, ends[-1]))
    starts = [0, *ends]
    return [whole[start : start + extent.length] for start, extent in zip(starts, extents)]


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _positioned(name: str) -> Callable[[int, int, int, int], int]:
    """pread64 or pwrite64 of the C library: os.preadv is not in Python 3.6, os.pread has no aligned buffer.

    ctypes lets other threads run during the call.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    call: Callable[[int, int, int, int], int] = function
    return call


_pread64 = _positioned("pread64")
_pwrite64 = _positioned("pwrite64")


class Workers:
    """Runs the operations of a batch at the same time: the caller does, and up to WORKERS - 1 threads beside it.

    Not concurrent.futures: Python 3.6 imports multiprocessing with it (18 ms), and a future for each of thousands of
    operations costs more than the operation.
    """

    def __init__(self) -> None:
        self._threads: List[threading.Thread] = []

    def run(self, operations: Sequence[Operation]) -> None:
        """Return once all have ended. When some fail, then the error of the first of them is raised.

        Whoever interrupts it (Ctrl-C) does not want those that have not begun.
        """
        batch = _Batch(operations)
        try:
            for _ in operations[1:WORKERS]:
                if not batch.waiting:  # a fast device is done before all threads are there
                    break
                self._threads.append(threading.Thread(target=batch.work, name="relvmoiscsi"))
                self._threads[-1].start()
            batch.work()
            self.close()
        except BaseException:
            batch.waiting.clear()
            raise
        for _number, error in sorted(batch.errors.items()):
            raise error

    def close(self) -> None:
        """Return once nothing is under way any more."""
        for thread in self._threads:
            if thread.is_alive():  # one whose start was interrupted is not, and finds nothing to do
                thread.join()
        self._threads = []


class _Batch:
    """Operations that wait for somebody to do them, and what went wrong with those that were done."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.waiting: Deque[Tuple[int, Operation]] = deque(enumerate(operations))
        self.errors: Dict[int, Exception] = {}

    def work(self) -> None:
        """Do one operation after the other until none waits any more."""
        while True:
            try:
                number, operation = self.waiting.popleft()
            except IndexError:
                return
            try:
                operation()
            except Exception as error:  # noqa: BLE001 - `run` raises it, in the thread of the caller
                self.errors[number] = error
