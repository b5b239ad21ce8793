# SPDX-License-Identifier: LGPL-2.1-only
"""Block devices of this host, and image files in the place of block devices.

A round trip to an array takes far longer than the transfer of its bytes. So a batch is merged (`device`), then handed
to the kernel all at once. The batch takes about as long as its slowest operation.

From a writable open to `close`, no other program has the device or image file open:

    block device   one descriptor. O_EXCL excludes mounts, device-mapper and a second run. A search of /proc excludes
                   other readers. A flock excludes udev, which would probe a half-written disk. O_DIRECT bypasses the
                   page cache
    image file     a lease shows that no other process has the file open; then a flock excludes a second run

When a writable block device is closed, udev looks at the device again. So the close is the last step.

A logical block has 512 bytes, or 4096 bytes on a 4Kn LUN. LVM writes the same layout to a 4Kn LUN, with the label at
byte 512, so a 4Kn LUN can hold a volume group. Tested with ten LVM releases on loop devices with 4096-byte blocks; no
array with 4Kn LUNs was available for a test.
"""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import stat
import struct
import time
from abc import abstractmethod
from functools import partial
from itertools import accumulate, chain, count
from typing import Callable, ContextManager, List, Optional, Sequence

from relvmoiscsi.device import (
    SECTOR,
    Chunk,
    Device,
    Fence,
    Range,
    align_down,
    align_up,
    cut_out,
    pieces_of,
    runs_of,
    spans_of,
    verify_readable,
    verify_size,
    verify_writable,
)
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, NoRoom, NotFound, Refused
from relvmoiscsi.host.disk.exclusive import (
    ANY_WRITES,
    FLOCK_SECONDS,
    AnyPath,
    forbidden,
    gets_lease,
    in_use,
    open_file,
    read_only,
    stat_path,
    take_alone,
    take_image,
)
from relvmoiscsi.host.disk.scsi_id import OpenDisk
from relvmoiscsi.host.own_path import is_own
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.threads import Workers

log = logging.getLogger(__name__)

BLOCK_SIZES = (512, 4096)
WORKERS = 32  #: concurrent requests, the usual queue depth of an iSCSI session

#: a look is one read, so it may be repeated often
_LEASE_SECONDS = 2.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# Linux uapi: linux/fs.h.
BLKROGET = 0x125E
BLKFLSBUF = 0x1261
BLKSSZGET = 0x1268
BLKPBSZGET = 0x127B
BLKGETSIZE64 = 0x80081272


class HostDevice(Device, ContextManager["HostDevice"]):
    """The common part of block devices and image files: batches, merging, bounds, errors.

    A context manager; its end calls `close`.
    """

    def __init__(self, path: AnyPath, writable: bool, descriptor: int) -> None:
        self.name = str(path)
        self.writable = writable
        self._descriptor = descriptor
        self._workers = Workers(WORKERS)
        if writable:
            self._fence = _fence(self.name, os.fstat(descriptor))

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def is_own(self) -> bool:
        return is_own(self.name)

    @property
    def disk(self) -> OpenDisk:
        """The device for questions to its LUN."""
        return OpenDisk(self.name, self._descriptor)

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        for wanted in ranges:
            verify_readable(self, wanted)
        return self._read(ranges, self._workers)

    def _read(self, ranges: Sequence[Range], workers: Optional[Workers] = None) -> List[bytes]:
        """By default, read in this thread: the other threads may be at work on a batch."""
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        buffers = _buffers(spans, self.block_size)
        (workers or Workers(1)).run(_operations(partial(self._transfer, "read"), spans, buffers))
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
        self._verify_size()
        self.fence.look(self._read)
        self._workers.run(_operations(partial(self._transfer, "write"), extents, buffers))

    def flush(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failure("flush", 0, 0, error) from error
        self._verify_size()

    def _verify_size(self) -> None:
        """Raise Refused if the kernel has a smaller size than at the open: a write behind the end enlarges a file."""
        try:
            size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise self._failure("seek", 0, 0, error) from error
        verify_size(self, size_bytes, self.block_size)

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def verify_name(self) -> None:
        """Raise Refused where the name leads to another file now, NotFound where the name leads to none."""
        self.verify_same(stat_path(self.name))

    def verify_same(self, other: os.stat_result) -> None:
        """Raise Refused where the status is that of another file than the open one."""
        if not os.path.samestat(other, self.status):
            problem = f"{self.name} is another file now: a program has replaced it since the command began."
            raise Refused(problem).advising("Repeat the command.")

    def _refuse_read_only(self, is_read_only: bool) -> None:
        """Set the objection of a device that cannot be written, and raise the objection after an open for a write."""
        may_write = os.access(f"/proc/self/fd/{self._descriptor}", os.W_OK)
        if is_read_only or not may_write and (os.geteuid() == 0 or os.fstatvfs(self._descriptor).f_flag & os.ST_RDONLY):
            self.objection = read_only(self.name)
        elif not may_write:
            self.objection = forbidden(self.name)
        if self.writable and self.objection is not None:
            raise self.objection

    def look_for_users(self) -> None:
        self.objection = self.objection or in_use(self.name, self._descriptor)

    def end_late_writes(self, of_another_host: bool = False) -> None:
        """Wait for the lease of another host. A process of this host has ended only after its last request."""
        if of_another_host:
            time.sleep(Fence.OUTLAST_SECONDS)

    def close(self) -> None:
        """Close the device; a second call does nothing. Data that was not flushed may not be durable."""
        if self._descriptor < 0:
            return
        self._workers.close()
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.close(descriptor)
        except OSError as error:
            # `flush` makes writes durable and raises its errors. The descriptor is closed even after this error.
            log.warning("%s could not be closed: %s.", self.name, error.strerror)

    @abstractmethod
    def _transfer_some(self, action: str, view: memoryview, offset: int) -> int:
        """Read into `view`, or write from `view`. Return the number of transferred bytes. Raises OSError."""

    def _transfer(self, action: str, view: memoryview, offset: int) -> None:
        """Transfer all of `view`; repeat after short transfers and signals. Raises DeviceError, Overtaken."""
        done = 0
        while done < len(view):
            if action == "write":
                self.fence.look_if_due(self._read)
            try:
                count = self._transfer_some(action, view[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise self._failure(action, offset, len(view), error) from error
            if count == 0:
                reason = f"it ended {len(view) - done} bytes early"
                raise DeviceError(self.name, action, offset, len(view), reason, errno.EIO)
            done += count

    def _failure(self, action: str, offset: int, length: int, error: OSError) -> DeviceError:
        reason, kind = error.strerror or str(error), NoRoom if error.errno in _NO_ROOM else DeviceError
        return kind(self.name, action, offset, length, reason, error.errno)


def _fence(path: str, status: os.stat_result) -> Fence:
    """Return the fence of a device of this host, which answers a look at once.

    The kernel lets one process have a device or an image file open for writing. So while this kernel runs, an earlier
    run on the same device has ended with its last request: it has the same writer. Another path of the LUN, or another
    loop device of the file, is another device: an earlier run may still have that device open.
    """
    boot, is_disk = THIS_HOST.boot_id, stat.S_ISBLK(status.st_mode)
    device = f"disk {status.st_rdev}" if is_disk else f"image {status.st_dev} {status.st_ino}"
    identity = f"{boot} {device}".encode("ascii") if boot else b""
    return Fence.of_writer(path, time.monotonic, identity, os.urandom(4), _LEASE_SECONDS)


class BlockDevice(HostDevice):
    """A block device. Reads and writes bypass the page cache."""

    def __init__(self, path: AnyPath, writable: bool, lock_timeout: float = FLOCK_SECONDS) -> None:
        """Open a block device; for writing, exclusively. Raises Refused if used after `lock_timeout` seconds."""
        flags = os.O_DIRECT | (os.O_RDWR | os.O_EXCL if writable else os.O_RDONLY)
        super().__init__(path, writable, open_file(path, flags, writable, stat.S_ISBLK))
        try:
            self.size_bytes = self._query(BLKGETSIZE64, "=Q")
            self.block_size = self._query(BLKSSZGET, "=i")
            self.physical_block_size = self._query(BLKPBSZGET, "=I")
            if not self.size_bytes:
                raise NotFound(f"{path} has a size of 0 bytes: no disk is behind it.", sm_key="ISCSIDevice")
            if self.block_size not in BLOCK_SIZES:
                problem = f"{path} has logical blocks of {self.block_size} bytes; 512 or 4096 are supported."
                raise Refused(problem).in_state(NOTHING_WRITTEN)
            self._refuse_read_only(bool(self._query(BLKROGET, "=i")))
            if writable:
                take_alone(self.name, self._descriptor, lock_timeout)
                try:  # drop the kernel's cached pages: later reads through the page cache give the new identity
                    fcntl.ioctl(self._descriptor, BLKFLSBUF, 0)
                except OSError as error:
                    # The ioctl needs CAP_SYS_ADMIN. A write with O_DIRECT itself drops the pages that the write covers.
                    log.debug("the page cache of %s was not dropped: %s", path, error.strerror)
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

    def _transfer_some(self, action: str, view: memoryview, offset: int) -> int:
        """Count whole blocks alone: O_DIRECT can continue only at the start of a block."""
        call = _LIBC.pwrite64 if action == "write" else _LIBC.pread64
        count: int = call(self._descriptor, ctypes.addressof(ctypes.c_char.from_buffer(view)), len(view), offset)
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return align_down(count, self.block_size)


_SMALLEST_IMAGE = 1 << 20  #: bytes of a disk that can hold an SR


class ImageFile(HostDevice):
    """A regular file with the bytes of a disk. Only the chunks are written, so holes stay holes."""

    def __init__(self, path: AnyPath, writable: bool, block_size: int = SECTOR) -> None:
        """Open an image file. For writing, raises Refused if another process or loop device has the file open."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        super().__init__(path, writable, open_file(path, flags, writable, stat.S_ISREG))
        self.block_size = self.physical_block_size = block_size
        try:
            status = os.fstat(self._descriptor)
            # A disk has whole sectors. A file that is too small for a disk with an SR keeps its true size, which the
            # refusal names; nothing is written to such a file.
            size = status.st_size
            self.size_bytes = align_down(size, SECTOR) if size >= _SMALLEST_IMAGE else size
            # root may write to a file without any write permission, but the owner forbids it
            self._refuse_read_only(not status.st_mode & ANY_WRITES)
            if writable:
                take_image(self.name, self._descriptor)
        except BaseException:
            self.close()
            raise

    @property
    def is_own(self) -> bool:
        """Nobody has the file open for a write either. A run that writes has found that at its open."""
        return super().is_own and (self.writable or bool(gets_lease(self._descriptor, fcntl.F_RDLCK)))

    @property
    def raw_name(self) -> str:
        names = chain([f"{self.name}.raw"], (f"{self.name}.{number}.raw" for number in count(1)))
        return next(name for name in names if not os.path.lexists(name))

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
        """Return where the next data or hole starts, at `offset` or later; None if none follows."""
        try:
            return os.lseek(self._descriptor, offset, what)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # the file system has no holes: all ranges may hold data
                return offset if what == os.SEEK_DATA else None
            raise self._failure("seek", offset, 0, error) from error

    def _transfer_some(self, action: str, view: memoryview, offset: int) -> int:
        if action == "write":
            return os.pwrite(self._descriptor, view, offset)
        data = os.pread(self._descriptor, len(view), offset)
        view[: len(data)] = data
        return len(data)


def open_device(
    path: AnyPath,
    writable: bool,
    block_size: int = SECTOR,
    lock_timeout: float = FLOCK_SECONDS,
    is_kind: Optional[Callable[[int], bool]] = None,
) -> HostDevice:
    """Open a block device or an image file; for writing, exclusively.

    `block_size` is for an image file; a block device reports its own. `lock_timeout` is in seconds. `is_kind` is
    stat.S_ISBLK or stat.S_ISREG where the caller has decided the kind.
    Raises NotFound; UsageError for any other kind of file; Refused if the device is in use, read-only, or forbidden to
    this user.
    """
    if is_kind is None:
        is_kind = stat.S_ISBLK if stat.S_ISBLK(stat_path(path).st_mode) else stat.S_ISREG
    if is_kind is stat.S_ISBLK:
        device: HostDevice = BlockDevice(path, writable, lock_timeout)
    else:
        device = ImageFile(path, writable, block_size)
    how = "for writing" if writable else "for reading"
    log.debug("opened %s %s: %d bytes in blocks of %d", path, how, device.size_bytes, device.block_size)
    return device


def _operations(
    transfer: Callable[[memoryview, int], None], extents: Sequence[Range], buffers: Sequence[memoryview]
) -> List[Callable[[], None]]:
    """Return the requests of a batch: each transfers a piece of a buffer to or from its range of the device."""
    return [
        partial(transfer, buffer[piece.offset : piece.end], extent.offset + piece.offset)
        for extent, buffer in zip(extents, buffers)
        for piece in pieces_of(extent.length)
    ]


class _CountedMemory(mmap.mmap):
    """Shared memory that counts for the limit of a child: RLIMIT_DATA itself counts private memory alone."""

    counted: mmap.mmap  #: private memory of the same size. Nobody touches it, so it takes no page


def _buffers(extents: Sequence[Range], block_size: int) -> List[memoryview]:
    """Return zeroed memory for each extent. Each buffer starts at a multiple of the block size (open(2), O_DIRECT).

    One mapping holds all buffers, because the kernel limits the number of mappings of a process. The mapping is shared:
    after a fork, the kernel reads into this memory and not into a copy of its pages. Raises MemoryError.
    """
    ends = list(accumulate(align_up(extent.length, block_size) for extent in extents))
    if not ends:
        return []
    try:
        memory = _CountedMemory(-1, ends[-1])
        memory.counted = mmap.mmap(-1, ends[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error
    whole, starts = memoryview(memory), [0, *ends]
    return [whole[start : start + extent.length] for start, extent in zip(starts, extents)]


#: pread64 and pwrite64: Python 3.6 has no os.preadv, and os.pread has no aligned buffer. ctypes lets other threads run
#: during a call
_LIBC = ctypes.CDLL(None, use_errno=True)
for _function in (_LIBC.pread64, _LIBC.pwrite64):
    _function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    _function.restype = ctypes.c_ssize_t
