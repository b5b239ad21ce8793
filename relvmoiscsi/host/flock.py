# SPDX-License-Identifier: LGPL-2.1-only
"""Locks on files: wait for a flock with a time limit, hold a lock file, name the holders, and keep locks from children.

The holder of a lock file unlinks the file at release. A process may then lock a file that no path leads to. So each
process compares the locked file with the file at the path, and starts again if the two differ:

    open(O_CREAT)  ->  flock(LOCK_EX)  ->  fstat == stat ?  ->  this process has the lock

A lock ends when the last copy of its descriptor is closed, and a forked child has copies (inherited_lock_fds). A child
that hangs in the kernel may outlive its parent, and keeps its copies. A parent that exits releases its locks for all
copies; a parent that is killed does not. So a child closes its copies first.

A child that writes to a LUN may still write after its parent was killed. Such a child keeps two copies: the LUN's lock,
so that no other call begins, and the switch that hides the LUN. The child keeps no other lock, so that SM and LVM do
not wait for a disk that does not answer.
"""

import fcntl
import logging
import os
import stat
import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, Union

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, in_state
from relvmoiscsi.host.files import lines_of, words_in
from relvmoiscsi.host.own_path import NotOwnFile, is_this_user, own_place, refusing
from relvmoiscsi.host.terminated import pause
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05

#: the descriptors of this process that hold a lock, or will soon: does the descriptor guard a LUN?
inherited_lock_fds: Dict[int, bool] = {}


def _verify_of_root(path: str, status: os.stat_result) -> None:
    """Raise NotOwnFile for a file that is not of root or of this user. Its mode is that of SM or LVM."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 and not is_this_user(status.st_uid):
        raise NotOwnFile(f"{path} is no regular file, or belongs to another user")


def open_lock(path: str, flags: int, verify: Callable[[str, os.stat_result], None] = _verify_of_root) -> int:
    """Open a lock file that `verify` takes, and return the descriptor. A missing file is made, with mode 0600.

    In a place such as /run/lock, each user could make the directory first, and lead this process to another lock file.
    Raises Refused then, and for a failed open. Raises FileNotFoundError if there is no such directory.
    """
    with in_state(NOTHING_WRITTEN), refusing(f"The lock {path}", "opened"):
        try:
            with own_place(path) as place:
                return place.open(flags, verify)
        except (FileNotFoundError, NotADirectoryError):
            pass
    raise FileNotFoundError(path)


def open_or_make_lock(
    path: str, make: Callable[[], None], verify: Callable[[str, os.stat_result], None] = _verify_of_root
) -> int:
    """Open a lock file for reading and writing, as `open_lock`. Where its directory is missing, `make` makes it.

    Another program may remove an empty directory at any time, as SM does. Raises Refused if it does so again and again.
    """
    for _ in range(10):
        try:
            return open_lock(path, os.O_RDWR, verify)
        except FileNotFoundError:
            make()
    raise Refused(f"The lock {path} cannot be opened: its directory vanishes again and again.").in_state(
        NOTHING_WRITTEN
    )


def take(descriptor: int, deadline: float = 0.0) -> bool:
    """Try once, and until `deadline`, to take LOCK_EX on an open file. Return whether this process has the lock.

    `deadline` is a value of time.monotonic(). Raises OSError where the file system has no locks.
    """
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        pause(POLL_SECONDS)


@contextmanager
def lock_file(
    path: str,
    opened: Callable[[], int],
    deadline: float,
    taken: Callable[[str, str], Exception],
    host: Host = THIS_HOST,
    guards_lun: bool = False,
) -> Iterator[int]:
    """Hold the lock file `path` while the block runs, and give its descriptor. Then unlink the file; log a failure.

    `opened` opens the file and returns the descriptor; its exceptions go through. Raises `taken(path, holders)` if the
    lock is not free at `deadline`; the holders are words of a sentence. A child that writes keeps a lock that
    `guards_lun`.
    """
    while True:
        descriptor = opened()
        try:
            is_free = take(descriptor, deadline)
            if is_free and is_current(path, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_free or time.monotonic() >= deadline:
            raise taken(path, owner_of(path, host))
    try:
        with inherited(descriptor, guards_lun):
            log.debug("took the lock %s", path)
            yield descriptor
    finally:
        try:
            # Only the holder may unlink the file. So the path leads to the same file between the check and the unlink.
            if not is_handed_over(descriptor):
                if is_current(path, descriptor):
                    os.unlink(path)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # for all copies: a child that hangs would keep its copy locked
        except OSError as error:  # the work that the lock guarded is over, and its outcome stands
            log.warning("The lock file %s could not be removed: %s.", path, error.strerror)
        finally:
            try:
                os.close(descriptor)
            except OSError as error:
                log.warning("The lock file %s could not be closed: %s.", path, error.strerror)
        log.debug("closed the lock %s", path)


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


def owner_of(file: Union[str, int], host: Host = THIS_HOST) -> str:
    """Return the processes with a flock on the file, by path or descriptor, as words of a sentence.

    A process may have ended that took the lock: its child has the lock then.
    """
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return "another process"  # the holder has released the lock since
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # 1: FLOCK ADVISORY WRITE 4711 08:01:12345 0 EOF
    locks = map(words_in, lines_of(host.at("proc/locks")))
    owners = [words[4] for words in locks if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place]
    return ", ".join(map(host.named_process, owners)) or "another process"


# --- locks and child processes


@contextmanager
def inherited(descriptor: int, guards_lun: bool = False) -> Iterator[None]:
    """While the block runs, have each new child close its copy of a descriptor that holds a lock, or will soon.

    A child that writes to the LUN keeps a descriptor that `guards_lun`. Enter the block after the descriptor is open,
    and close the descriptor after the block: the kernel reuses its number at once.
    """
    inherited_lock_fds[descriptor] = guards_lun
    try:
        yield
    finally:
        inherited_lock_fds.pop(descriptor, None)


def close_inherited(but_lun: bool) -> None:
    """In a forked child: close the child's copies of all locks; with `but_lun`, not of the locks and switches of LUNs.

    The parent keeps its copies.
    """
    for descriptor, guards_lun in list(inherited_lock_fds.items()):
        if not (but_lun and guards_lun):
            del inherited_lock_fds[descriptor]
            os.close(descriptor)


def hand_over_to_child() -> None:
    """Give up this process's copies of the locks and switches of LUNs: a child that still writes alone keeps them.

    The descriptors lead to /dev/null afterwards, so closing them releases nothing.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, guards_lun in inherited_lock_fds.items():
        if guards_lun:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def is_handed_over(descriptor: int) -> bool:
    """Return whether `hand_over_to_child` has given up the lock: then the lock file must stay."""
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)
