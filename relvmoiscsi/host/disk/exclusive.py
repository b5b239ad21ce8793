# SPDX-License-Identifier: LGPL-2.1-only
"""Open a device or image file, and verify that no other program uses it.

Every refusal here comes before the first write, and says so. A refusal names the other program if this host shows it.
"""

import errno
import fcntl
import logging
import os
import signal
import stat
import time
from typing import Callable, Optional, Union

from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Busy, NotFound, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk.holders import Users, advice_of, opened_by, users_of_block, users_of_file
from relvmoiscsi.host.files import attribute, remedy
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.locks.sm_locks import USE_THAT
from relvmoiscsi.host.this_host import THIS_HOST, THIS_PROCESS, Host
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

LIST = "`lsblk` lists this machine's disks."  #: advice where a name is none of a disk
FLOCK_SECONDS = 10.0  #: wait for a udev worker, which has a shared lock, or for an LVM command
LEASE_SECONDS = 0.5  #: wait for an indexer or backup agent that has the file open for a moment
LOOK_SECONDS = 0.2  #: between two searches for users of a device; each search reads all of /proc

# Linux uapi: linux/fcntl.h. Some builds of the fcntl module lack these constants.
F_SETSIG = getattr(fcntl, "F_SETSIG", 10)
F_SETLEASE = getattr(fcntl, "F_SETLEASE", 1024)

ANY_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LAST_STANDARD = 2  #: stderr
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM)


class PinnedPath:
    """A path that was followed once: it leads to the same file or device as long as this object lives.

    Another user may own a directory of the path, and put another device, a FIFO or a watchdog there at any time. So
    what follows the first look at the path, such as the open and each question to the device, goes by the link. As
    text, in a message, the object is the path of the caller. For `os.open` and `os.stat` the object is the link.
    """

    def __init__(self, path: str) -> None:
        """Raises NotFound or Refused in the place of OSError. Nothing is opened for a read or a write."""
        self._path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_open(path, error, writable=False) from error

    def __str__(self) -> str:
        return self._path

    def __fspath__(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


AnyPath = Union[str, PinnedPath]


def stat_path(path: AnyPath) -> os.stat_result:
    """Call os.stat, and raise NotFound or Refused in the place of OSError."""
    try:
        return os.stat(path)
    except OSError as error:
        raise _cannot_open(path, error, writable=False) from error


def open_file(
    path: AnyPath,
    flags: int,
    writable: bool,
    is_kind: Optional[Callable[[int], bool]] = None,
    deadline: Deadline = NO_DEADLINE,
) -> int:
    """Open a file, of this kind (a test of its mode) or of any, and return the descriptor.

    The kind is checked before the file is opened, because the open of another device may act on that device. A
    text is followed once, a PinnedPath no more. Raises NotFound or Refused in the place of OSError; UsageError for a
    file of another kind.

    The descriptor is never 0, 1 or 2. If a caller has closed these, output for stdout or stderr must not reach a disk.
    """
    try:
        node = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            mode = os.fstat(node).st_mode
            if is_kind is stat.S_ISBLK and not is_kind(mode):
                raise UsageError(f"{path} is no block device.").advising(LIST)
            if is_kind is stat.S_ISREG and not is_kind(mode):
                kind = "no image file" if stat.S_ISBLK(mode) else "neither a block device nor an image file"
                raise UsageError(f"{path} is {kind}.").advising(LIST)
            descriptor = os.open(f"/proc/self/fd/{node}", flags | os.O_CLOEXEC)
        finally:
            os.close(node)
        if descriptor > _LAST_STANDARD:
            return descriptor
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _cannot_open(path, error, writable, deadline) from error


def read_only(path: str) -> Refused:
    """Return the refusal to write to a read-only device or file."""
    return Refused(f"{path} is read-only.").advising("Make it writable first.").in_state(NOTHING_WRITTEN)


def forbidden(path: str) -> Refused:
    """Return the refusal to write to a device or file that this user may only read."""
    error = OSError(errno.EACCES, os.strerror(errno.EACCES))
    refused = Refused(f"{path} cannot be written: {error.strerror}.").advising(remedy(error, path))
    return refused.in_state(NOTHING_WRITTEN)


def take_alone(
    path: str, descriptor: int, seconds: float, host: Host = THIS_HOST, deadline: Deadline = NO_DEADLINE
) -> None:
    """Lock a block device that was opened with O_EXCL against udev, and verify that no other process has it open.

    The flock makes udev skip the disk. O_EXCL refuses other exclusive opens only; qemu, dd and loop devices do not open
    exclusively. A reader such as a backup would get a mix of the old and the new identity. A udev worker, or a program
    that looks at a disk for a moment, such as an LVM command, gets `seconds` in all to end. The search for other
    processes has the deadline of the call.

    Raises Refused. Closing the descriptor releases the lock.
    """
    end = time.monotonic() + seconds
    if not flock.take(descriptor, end):
        problem = f"{path} is locked by {flock.owner_of(descriptor)}, and was not free within {seconds:g} seconds."
        raise Busy(problem).advising("Try again when that has ended.").in_state(NOTHING_WRITTEN)
    while True:
        with in_state(NOTHING_WRITTEN):
            users = opened_by(os.fstat(descriptor), descriptor, host, deadline)
        if not users:
            return
        if time.monotonic() >= end:
            raise _busy(path, users).in_state(NOTHING_WRITTEN)
        time.sleep(LOOK_SECONDS)


def take_image(path: str, descriptor: int) -> None:
    """Lock an image file against a second run, and verify that no other process or loop device has the file open.

    The lock comes first: of two runs that begin together, one is refused at once, and closes the file for the other.
    Raises Refused.
    """
    if not flock.take(descriptor):
        owner = flock.owner_of(descriptor)
        if owner == THIS_PROCESS:
            raise _busy(path, {owner: ""}).in_state(NOTHING_WRITTEN)
        problem = Busy(f"{path} is locked by {owner}: another relvmoiscsi is at work on it.")
        raise problem.advising("Try again when that has ended.").in_state(NOTHING_WRITTEN)
    with in_state(NOTHING_WRITTEN):
        busy = _busy_image(path, descriptor)
    if busy is not None:
        raise busy.in_state(NOTHING_WRITTEN)


def _busy_image(path: str, descriptor: int) -> Optional[Busy]:
    """Return the refusal of an image file that another descriptor has open; None without one.

    With a lease, no search is needed, for which this user may lack rights. Raises Refused where no search is possible.
    """
    deadline = time.monotonic() + LEASE_SECONDS
    while True:
        is_alone = gets_lease(descriptor, fcntl.F_WRLCK)
        if is_alone is not False or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    users = {} if is_alone else users_of_file(os.fstat(descriptor), descriptor)
    return _busy(path, users) if users or is_alone is False else None


def gets_lease(descriptor: int, kind: int) -> Optional[bool]:
    """Return whether the kernel grants a lease on the file, and give the lease back. None where it grants none at all.

    A lease of the kind F_WRLCK says that no other descriptor of the file is open; F_RDLCK, that none is open for a
    write. The kernel counts descriptors, also one that is on its way in a message.
    """
    try:
        # Another process may open the file between the two leases. Then the kernel sends a signal: by default SIGIO,
        # which would end this process; here SIGURG, which is ignored by default.
        fcntl.fcntl(descriptor, F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, F_SETLEASE, kind)
        fcntl.fcntl(descriptor, F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("no lease on the descriptor %d: %s", descriptor, error.strerror)
        return None
    return True


def in_use(path: str, descriptor: int) -> Optional[Refused]:
    """Return the refusal of an open for a write that a look for other users gives now; None without users."""
    status = os.fstat(descriptor)
    try:
        if not stat.S_ISBLK(status.st_mode):
            return _busy_image(path, descriptor)
        users = users_of_block(status, own_descriptor=descriptor)
    except Refused as refused:
        return refused
    return _used(path, users) if users else None


def _cannot_open(path: AnyPath, error: OSError, writable: bool, deadline: Deadline = NO_DEADLINE) -> RelvmoiscsiError:
    """Return the error for a person in the place of an OSError of open or stat. The search for users has a deadline."""
    name = str(path)
    if error.errno in _GONE:
        is_image = os.path.splitext(name)[1] != ""  # "clone.img", and not "sdc"
        return NotFound(
            f"{name} is not there: {error.strerror}.",
            sm_key="ISCSIDevice",
        ).advising("Check the name." if is_image else f"Check the name. {LIST}")
    try:
        device: Optional[os.stat_result] = os.stat(path)
    except OSError:
        device = None  # the device has vanished since: the first error is the better message
    if device is not None and writable:
        # The kernel answers EACCES to a writable open of a block device that it has read-only.
        number = f"{os.major(device.st_rdev)}:{os.minor(device.st_rdev)}"
        is_without_writers = stat.S_ISREG(device.st_mode) and not device.st_mode & ANY_WRITES  # refused to root too
        if is_without_writers or attribute(f"/sys/dev/block/{number}/ro") == "1":
            return read_only(name)
    if error.errno == errno.EROFS:
        return read_only(name)
    if error.errno == errno.EBUSY:
        try:
            refused = _used(name, users_of_block(device, deadline=deadline) if device else {})
        except Refused:
            refused = _used(name, {})
    else:
        refused = Refused(f"{name} cannot be opened: {error.strerror}.")
        if error.errno in (errno.EACCES, errno.EPERM):
            refused.advising(remedy(error, name))
    return refused.in_state(NOTHING_WRITTEN) if writable else refused


def _used(path: str, users: Users) -> Refused:
    """Return the refusal of a block device with these users, of which some may be claims within the kernel."""
    busy = _busy(path, users)
    if THIS_PROCESS in users:
        return busy
    unseen = (
        f"`{shell_command('lsblk', path)}` shows what is stacked on it and where it is mounted, but no mount of a "
        "container, and no target of this host that exports it."
    )
    return Refused(busy.message).advising(busy.advice if users else unseen)


def _busy(path: str, users: Users) -> Busy:
    """Return the refusal of a device or file with these users."""
    listing = ", ".join(users) or "a program that could not be found out"
    advice = USE_THAT if THIS_PROCESS in users else advice_of(users) or "Try again when that use has ended."
    return Busy(f"{path} is in use by {listing}.").advising(advice)
