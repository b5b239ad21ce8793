# SPDX-License-Identifier: LGPL-2.1-only
"""Opening a device or image file, and making sure that nobody else uses it.

Every refusal here comes before the first write, and says so; it names who is in the way where that can be found out.
"""

import errno
import fcntl
import logging
import os
import signal
import stat
import time
from typing import Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk.holders import opened_by, users_of_block, users_of_file
from relvmoiscsi.host.files import permission_remedy
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

NOT_WRITTEN = "Nothing was written."
FLOCK_SECONDS = 10.0  #: how long to wait for a udev worker, which keeps a shared lock, or for an LVM command to end
LEASE_SECONDS = 0.5  #: an indexer or backup agent may look at a file just now
LOOK_SECONDS = 0.2  #: between two looks at who has a device open; each goes through all processes

# Linux uapi: linux/fcntl.h. Not every build of the fcntl module has them.
F_SETSIG = getattr(fcntl, "F_SETSIG", 10)
F_SETLEASE = getattr(fcntl, "F_SETLEASE", 1024)

_LAST_STANDARD = 2  #: stderr
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM)


def stat_path(path: str) -> os.stat_result:
    """os.stat, with errors for a person: NotFound or Refused."""
    try:
        return os.stat(path)
    except OSError as error:
        raise _cannot_open(path, error, writable=False) from error


def open_file(path: str, flags: int, writable: bool) -> int:
    """os.open, with errors for a person: NotFound or Refused. Gives the descriptor.

    It is never 0, 1 or 2: where a caller has closed those, what is meant for them must not end up on a disk.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        if descriptor > _LAST_STANDARD:
            return descriptor
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _cannot_open(path, error, writable) from error


def read_only(path: str) -> Refused:
    """The refusal to write to what is meant to stay as it is."""
    return Refused(f"{path} is read-only. Make it writable first.").in_state(NOT_WRITTEN)


def take_alone(path: str, descriptor: int, seconds: float, host: Host = THIS_HOST) -> None:
    """Lock a block device that was opened with O_EXCL against udev, and make sure that nobody else has it open.

    Whoever has it now gets `seconds` in all to end. Raises Refused. The lock goes when the descriptor is closed.
    """
    end = time.monotonic() + seconds
    lock_against_udev(path, descriptor, seconds)
    check_alone(path, descriptor, end - time.monotonic(), host)


def check_alone(path: str, descriptor: int, seconds: float, host: Host = THIS_HOST) -> None:
    """Raises Refused when anybody else has the block device open that was opened here, if only to read it.

    O_EXCL keeps off whoever asks to be alone; qemu, dd and loop devices do not ask. A reader, such as a backup, would
    get half of the old identity and half of the new one. Programs that look at a disk for a moment, as LVM's do, get
    `seconds` to end.
    """
    deadline = time.monotonic() + seconds
    while True:
        users = opened_by(os.fstat(descriptor), descriptor, host)
        if not users:
            return
        if time.monotonic() >= deadline:
            raise Refused(f"{path} is in use by {_listing(users)}.").in_state(NOT_WRITTEN)
        time.sleep(LOOK_SECONDS)


def lock_against_udev(path: str, descriptor: int, seconds: float) -> None:
    """Take the flock for which udev skips a disk. Whoever holds it now (a udev worker) gets `seconds` to end.

    Raises Refused when it stays taken. The lock goes when the descriptor is closed.
    """
    if not flock.take_before(descriptor, time.monotonic() + seconds):
        owners = _listing(flock.owners_of(os.fstat(descriptor)))
        problem = f"{path} is locked by {owners}, and was not free within {seconds:g} seconds."
        raise Refused(problem + " Try again when that has ended.").in_state(NOT_WRITTEN)


def lock_image(path: str, descriptor: int) -> None:
    """Take the flock that keeps a second run off an image file. Raises Refused when it is taken."""
    if not flock.take(descriptor):
        owners = _listing(flock.owners_of(os.fstat(descriptor)))
        problem = f"{path} is locked by {owners}: another relvmoiscsi is at work on it."
        raise Refused(problem).in_state(NOT_WRITTEN)


def check_file_mode(path: str, status: os.stat_result) -> None:
    """Raises Refused for a file without any write permission: root may write it, but it was meant to stay as it is."""
    if not status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise read_only(path)


def check_not_open_elsewhere(path: str, descriptor: int) -> None:
    """Raises Refused when anybody else has the file open, if only for reading: a loop device, qemu, a copy."""
    granted = _is_lease_granted(descriptor)
    if granted:
        return
    users = users_of_file(os.fstat(descriptor), descriptor)
    if users or granted is False:
        raise Refused(f"{path} is in use by {_listing(users)}.").in_state(NOT_WRITTEN)
    log.debug("leases are not supported for %s; no other process was found that has it open", path)


def _is_lease_granted(descriptor: int) -> Optional[bool]:
    """Would the kernel lease the file to us, which it does only when nobody else has it open? None: it cannot tell."""
    deadline = time.monotonic() + LEASE_SECONDS
    while True:
        try:
            _take_and_return_lease(descriptor)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError as error:
            log.debug("no lease on descriptor %d: %s", descriptor, error.strerror)
            return None
        time.sleep(POLL_SECONDS)


def _take_and_return_lease(descriptor: int) -> None:
    # Somebody may open the file in between, for which the kernel sends SIGIO, and that would end the process.
    # SIGURG is ignored unless asked for.
    fcntl.fcntl(descriptor, F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(descriptor, F_SETLEASE, fcntl.F_UNLCK)


def _cannot_open(path: str, error: OSError, writable: bool) -> RelvmoiscsiError:
    """The error for a person, of one that open or stat gave."""
    if error.errno in _GONE:
        return NotFound(f"{path} is not there: {error.strerror}.", sm_key="ISCSIDevice")
    if error.errno == errno.EROFS or (writable and _is_read_only_block(path)):
        return read_only(path)
    if error.errno == errno.EBUSY:
        problem = f"{path} is in use by {_users_of(path)}."
    elif error.errno in (errno.EACCES, errno.EPERM):
        problem = f"{path} cannot be opened: {error.strerror}. {permission_remedy(error.errno)}"
    else:
        problem = f"{path} cannot be opened: {error.strerror}."
    refused = Refused(problem)
    return refused.in_state(NOT_WRITTEN) if writable else refused


def _is_read_only_block(path: str) -> bool:
    """Is that why the kernel did not open it for writing? It answers EACCES, as to a user without the right."""
    try:
        status = os.stat(path)
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        with open(os.path.join("/sys/dev/block", number, "ro"), encoding="ascii") as flag:
            return flag.read().strip() == "1"
    except OSError:
        return False  # no block device, or gone in the meantime; the first error is the one to tell


def _users_of(path: str) -> str:
    try:
        return _listing(users_of_block(os.stat(path)))
    except OSError:
        return _listing([])  # gone in the meantime


def _listing(users: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(users)) or "a program that could not be found out"
