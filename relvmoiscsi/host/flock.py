# SPDX-License-Identifier: LGPL-2.1-only
"""Flocks: wait for a flock with a time limit, take a lock file that its holder unlinks, and name the holders.

Some holders unlink the lock file at release. A process may then lock a file that no path leads to. So each process
compares the locked file with the file at the path, and starts again if the two differ:

    open(O_CREAT)  ->  flock(LOCK_EX)  ->  fstat == stat ?  ->  this process has the lock
"""

import fcntl
import logging
import os
import time
from typing import Callable, List, Optional

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.own_path import NotOwn, verify_own_way
from relvmoiscsi.host.terminated import pause
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05


def verify_own_lock(path: str) -> None:
    """Raise Refused where another user could lead this process to another lock file than `path`. Raises OSError.

    In a place such as /run/lock, each user could otherwise make the directory of the locks first.
    """
    try:
        verify_own_way(path)
    except NotOwn as problem:
        raise Refused(
            f"The lock {path} is not safe: {problem}. Let root have that place alone, then try again."
        ).in_state("Nothing was written.") from None


def take(descriptor: int) -> bool:
    """Take LOCK_EX on an open file if no other process has it. Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_before(descriptor: int, deadline: float) -> bool:
    """Try `take` until `deadline`, a value of time.monotonic(). Return whether this process has the lock."""
    while not take(descriptor):
        if time.monotonic() >= deadline:
            return False
        pause(POLL_SECONDS)
    return True


def take_file(path: str, opened: Callable[[], int], deadline: float) -> Optional[int]:
    """Lock the lock file `path` and return its descriptor; None if the lock is not free at `deadline`.

    `opened` opens the file and returns the descriptor. Exceptions of `opened` go through.
    """
    while True:
        descriptor = opened()
        try:
            is_free = take_before(descriptor, deadline)
            if is_free and is_current(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_free or time.monotonic() >= deadline:
            return None


def release_file(path: str, descriptor: int) -> None:
    """Unlink a lock file that this process has locked, release the flock, and close the file. Log failures.

    The work that the lock guarded is over, and its outcome stands.
    """
    try:
        # Only the holder may unlink the file. So the path leads to the same file between the check and the unlink.
        if is_current(path, descriptor):
            os.unlink(path)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for all copies: a forked child that hangs would keep its copy locked
    except OSError as error:
        log.warning("The lock file %s could not be removed: %s.", path, error.strerror)
    finally:
        try:
            os.close(descriptor)
        except OSError as error:
            log.warning("The lock file %s could not be closed: %s.", path, error.strerror)


def is_current(path: str, descriptor: int) -> bool:
    """Return whether the path still leads to the open file. A symbolic link leads to no lock file."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def is_held(path: str) -> bool:
    """Return whether a process holds a flock on the file. A file that only root may open counts as held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        # The udev rules also take a shared flock here. An exclusive flock would count as an owner for a moment.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def owners_of(status: os.stat_result, host: Host = THIS_HOST) -> List[str]:
    """Return the processes with a flock on the file or device node of `status`, as words of a sentence."""
    return [host.named_process(number) for number in owner_numbers(status, host)]


def owner_numbers(status: os.stat_result, host: Host = THIS_HOST) -> List[str]:
    """Return the ids of the processes that took a flock on the file. A child may hold the lock of an ended process."""
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    owners = []
    for line in text_of(os.path.join(host.proc, "locks")).splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:12345 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place:
            owners.append(words[4])
    return owners


def owner_of(path: str, host: Host = THIS_HOST) -> str:
    """Return the processes with a flock on the file, joined for a sentence."""
    try:
        return ", ".join(owners_of(os.stat(path), host)) or "another process"
    except FileNotFoundError:
        return "another process"  # the holder has released the lock since
