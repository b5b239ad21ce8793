# SPDX-License-Identifier: LGPL-2.1-only
"""Flocks: waiting for one with a bound, the loop around a lock file that goes with its lock, and who holds one.

Where the holder of a lock file unlinks it, whoever was given the lock must look whether the name still leads to the
file that was locked, and begin anew where it does not:

    open(O_CREAT)  ->  flock(LOCK_EX)  ->  fstat == stat ?  ->  the lock is ours
"""

import fcntl
import logging
import os
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional

from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.terminated import pause
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05


def take(descriptor: int) -> bool:
    """Take LOCK_EX on an open file, if it is free now. Raises OSError where locks are not supported."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_before(descriptor: int, deadline: float) -> bool:
    """The same, with further attempts until `deadline`, a value of time.monotonic()."""
    while not take(descriptor):
        if time.monotonic() >= deadline:
            return False
        pause(POLL_SECONDS)
    return True


def take_file(path: str, opened: Callable[[], int], deadline: float) -> Optional[int]:
    """The locked descriptor of the lock file `path`, which `opened` opens; None if it was not free until `deadline`.

    What `opened` raises goes through.
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


def undo(descriptor: int, path: str) -> None:
    """Give up an flock for whoever has a copy of the descriptor: a child that was forked and hangs would keep it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        log.warning("The lock %s could not be undone: %s.", path, error.strerror)


def is_current(path: str, descriptor: int) -> bool:
    """Does the path still lead to the file that is open?"""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def owners_of(status: os.stat_result, host: Host = THIS_HOST) -> List[str]:
    """Which processes hold an flock on the file or device node of this stat, for a sentence."""
    return [host.named_process(number) for number in owner_numbers(status, host)]


def owner_numbers(status: os.stat_result, host: Host = THIS_HOST) -> List[str]:
    """The numbers of the processes that took an flock on it which is held now, maybe by a child of one that is gone."""
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    owners = []
    for line in text_of(os.path.join(host.proc, "locks")).splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:12345 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place:
            owners.append(words[4])
    return owners


def owner_of(status: os.stat_result) -> str:
    """The same for a sentence."""
    return ", ".join(owners_of(status)) or "another process"


@contextmanager
def directory(
    path: str,
    seconds: float,
    taken: Callable[[str], Exception],
    unusable: Callable[[OSError], Exception] = lambda error: error,
) -> Iterator[None]:
    """Hold an flock on a directory, whose files are replaced or come and go, while the block runs.

    Raises what `taken` makes of its owners when it is not free within `seconds`, and what `unusable` makes of the
    failure to open it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable(error) from error
    try:
        if not take_before(descriptor, time.monotonic() + seconds):
            raise taken(owner_of(os.fstat(descriptor)))
        yield
    finally:
        os.close(descriptor)
