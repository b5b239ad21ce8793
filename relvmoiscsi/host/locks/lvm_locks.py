# SPDX-License-Identifier: LGPL-2.1-only
"""The lock files of LVM.

LVM guards a volume group by flock on `<dir>/V_<name of the group>`. The holder unlinks the file when it lets go
(flock.py has the loop that this takes).

    P_orphans         up to 2.02.188: `pvcreate`, `vgcreate` and `vgextend` look under it for the groups of all disks. A
                      `pvcreate` that waited for V_<old name> alone would find no group, and make a new PV of the clone
    V_<old name>      a command that changes the old group reads and writes under it, or finds no such group then
    V_<new name>      the same for the new group, which LVM sees from the commit on

P_global is not taken: it would keep no old bytes away, and commands on other groups and disks wait for it. What makes
or wipes a PV needs the device for itself (O_EXCL), as a run has it. docs/formats/lvm.rst ("LVM's writes and locks") has
the commands.

P_orphans comes first, then the V_ files by name. A command that holds V_<old name> and waits for P_orphans, such as
`vgremove`, makes the run wait in vain: the run is refused in time, and the command goes on. Other hosts know nothing of
these locks.
Source: LVM2 lib/misc/lvm-flock.c, _do_flock and _undo_flock; lib/locking/locking.c.
"""

import logging
import os
import re
import time
from contextlib import contextmanager
from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import flock, inherited_lock_fds
from relvmoiscsi.host.files import remedy

log = logging.getLogger(__name__)

LOCK_DIRECTORIES = ("/run/lock/lvm", "/var/lock/lvm")
ORPHANS_LOCK = "P_orphans"
WAIT_SECONDS = 30.0  #: an LVM command on a group of slow disks takes that long

_VG_NAME = re.compile(r"[A-Za-z0-9+_.-]{1,127}\Z")


class _Held(NamedTuple):
    """A lock file that is ours at present."""

    path: str
    descriptor: int


class LvmLocks:
    """The lock files held by a run; `release` gives them back, in the reverse order."""

    def __init__(self) -> None:
        self._held: List[_Held] = []

    def take(self, path: str, deadline: float) -> None:
        """Hold the lock file `path`. Raises Refused when it is not free until `deadline` (time.monotonic())."""
        descriptor = flock.take_file(path, lambda: _open(path), deadline)
        if descriptor is None:
            raise Refused(
                f"The LVM lock {path} is held by {_owner(path)} and did not become free in time. "
                "Let the LVM commands on that volume group end, then try again."
            ).in_state("Nothing was written.")
        inherited_lock_fds.note(descriptor)
        self._held.append(_Held(path, descriptor))
        log.debug("took the LVM lock %s", path)

    def release(self) -> None:
        """Give all locks back. What fails is logged: the work that the locks guarded is over and its outcome stands."""
        while self._held:
            _let_go(self._held.pop())


@contextmanager
def lvm_locks(
    names: Iterable[str], directory: Optional[str] = None, timeout: float = WAIT_SECONDS
) -> Iterator[LvmLocks]:
    """Keep the LVM commands of this host away from the volume groups `names` while the block runs.

    `timeout` is in seconds, for all locks together. Without `directory` it is the first of LOCK_DIRECTORIES that
    exists; where none does, LVM never ran since this host started, and no lock is taken.

    Raises Refused, before the block, when a lock stays taken or a name cannot be one of a volume group; NotFound when
    the directory given does not exist.
    """
    lock_names = [ORPHANS_LOCK] + ["V_" + _checked(name) for name in sorted(set(names))]
    locks = LvmLocks()
    try:
        _take_all(locks, lock_names, directory or _default_directory(), time.monotonic() + timeout)
        yield locks
    finally:
        locks.release()


def _take_all(locks: LvmLocks, lock_names: Sequence[str], directory: Optional[str], deadline: float) -> None:
    if directory is None:
        log.debug("no LVM lock is needed: none of %s exists, LVM has not run here", ", ".join(LOCK_DIRECTORIES))
        return
    for name in lock_names:
        locks.take(os.path.join(directory, name), deadline)


def _default_directory() -> Optional[str]:
    return next((path for path in LOCK_DIRECTORIES if os.path.isdir(path)), None)


def _checked(name: str) -> str:
    """`name`, if it is one LVM accepts: it comes from a disk, and must not lead out of the lock directory."""
    if not _VG_NAME.match(name):
        raise Refused(f"{name!r} is not a name of a volume group, so it cannot be locked.").in_state(
            "Nothing was written."
        )
    return name


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError as error:
        raise NotFound(f"The directory of the LVM lock {path} does not exist.") from error
    except OSError as error:
        problem = f"The LVM lock {path} cannot be opened: {error.strerror}. {remedy(error)}"
        raise Refused(problem).in_state("Nothing was written.") from error


def _owner(path: str) -> str:
    try:
        return flock.owner_of(os.stat(path))
    except FileNotFoundError:
        return "another process"  # until now


def _let_go(held: _Held) -> None:
    try:
        # While the lock is held nobody else may unlink the file, so what the path leads to cannot change in between.
        if flock.is_current(held.path, held.descriptor):
            os.unlink(held.path)
    except OSError as error:
        log.warning("The LVM lock file %s could not be removed: %s.", held.path, error.strerror)
    flock.undo(held.descriptor, held.path)
    inherited_lock_fds.forget(held.descriptor)
    try:
        os.close(held.descriptor)
    except OSError as error:
        log.warning("The LVM lock file %s could not be closed: %s.", held.path, error.strerror)
    else:
        log.debug("released the LVM lock %s", held.path)
