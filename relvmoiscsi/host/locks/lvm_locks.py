# SPDX-License-Identifier: LGPL-2.1-only
"""The lock files of LVM.

LVM guards a volume group by a flock on `<dir>/V_<name of the group>`. The holder unlinks the file at release (flock.py
has the loop that this needs).

    P_orphans         up to 2.02.188, `pvcreate`, `vgcreate` and `vgextend` hold P_orphans while they look for the
                      groups of all disks. A `pvcreate` that waited for V_<old name> alone would find no group, and
                      would make a new PV of the clone
    V_<old name>      a command that changes the old group reads and writes under this lock, or then finds no such group
    V_<new name>      the same for the new group, which LVM sees from the commit on

This module does not take P_global: P_global would protect no bytes of the clone, and commands on other groups and disks
wait for P_global. A command that makes or wipes a PV opens the device with O_EXCL. The run has the device open with
O_EXCL, so that command fails. docs/formats/lvm.rst ("LVM's writes and locks") has the commands.

The run takes P_orphans first, then the V_ files by name. `vgremove` takes V_<old name>, then P_orphans: the run waits,
is refused after its time limit, and `vgremove` goes on. These locks have no effect on other hosts.
Source: LVM2 lib/misc/lvm-flock.c, _do_flock and _undo_flock; lib/locking/locking.c.
"""

import logging
import os
import re
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Iterable, Iterator, List, Optional

from relvmoiscsi.errors import NOTHING_WRITTEN, NotFound, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.own_path import is_there

log = logging.getLogger(__name__)

LOCK_DIRECTORIES = ("/run/lock/lvm", "/var/lock/lvm")
ORPHANS_LOCK = "P_orphans"
WAIT_SECONDS = 30.0  #: an LVM command on a group of slow disks takes up to 30 seconds

_VG_NAME = re.compile(r"[A-Za-z0-9+_.-]{1,127}\Z")


@contextmanager
def lvm_locks(
    names: Iterable[str], directory: Optional[str] = None, timeout: float = WAIT_SECONDS
) -> Iterator[List[int]]:
    """Keep the LVM commands of this host away from the volume groups `names` while the block runs.

    `timeout` is in seconds, for all locks together. The default of `directory` is the first of LOCK_DIRECTORIES that
    exists. If neither exists, LVM has not run since this host started, and no lock is taken. Gives the descriptors.

    Raises Refused, before the block, if a lock stays taken, or a name is no name of a volume group. Raises Refused if
    another user could replace the directory. Raises NotFound if `directory` is given and does not exist.
    """
    groups = sorted(set(names))
    for name in groups:  # a name comes from a disk and must not lead out of the lock directory
        if not _VG_NAME.match(name):
            problem = f"{name!r} is not a name of a volume group, so it cannot be locked."
            raise Refused(problem).in_state(NOTHING_WRITTEN)
    lock_names = [ORPHANS_LOCK] + ["V_" + name for name in groups]
    found = directory or next((path for path in LOCK_DIRECTORIES if is_there(path)), None)
    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        descriptors: List[int] = []
        for path in [os.path.join(found, name) for name in lock_names] if found is not None else ():
            opened = partial(flock.open_lock, path, os.O_APPEND | os.O_RDWR)
            try:
                descriptors.append(held.enter_context(flock.lock_file(path, opened, deadline, _taken)))
            except FileNotFoundError as error:
                raise NotFound(f"The directory of the LVM lock {path} does not exist.").advising(
                    "Install LVM2, or check locking_dir in lvm.conf."
                ) from error
        if found is None:
            log.debug("no LVM lock is needed: none of %s exists, LVM has not run here", ", ".join(LOCK_DIRECTORIES))
        yield descriptors


def _taken(path: str, holders: str) -> Refused:
    return (
        Refused(f"The LVM lock {path} is held by {holders} and did not become free in time.")
        .advising("Let the LVM commands on that volume group end, then try again.")
        .in_state(NOTHING_WRITTEN)
    )
