# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN: one process of root on this host works on a LUN at a time.

The lock is a flock on root's file /run/relvmoiscsi/locks/<SCSIid> (0600). The holder unlinks the file at release, so
each taker compares the locked file with the file at the path. The kernel releases the lock of a killed process; a
child that still writes keeps its copy of the lock (flock.py has both). The next taker locks the file
that a killed process has left. Other users can neither open nor replace the file (run_directory.py).

An ordinary user's process, which reaches the LUN over iSCSI, has another lock (`user_lock`): an abstract Unix socket
with the SCSIid in its name (unix(7)). One process of a network namespace can have the name. The kernel frees the name
when the process ends, however the process ends. No file exists, so the lock needs no directory that two environments of
one user could see differently.

Every user of the machine can take the name. So that lock keeps ordinary users' processes off each other, and one user
can hold up another. A process of root neither takes nor heeds the name: no user can hold up root. The LUN itself keeps
off such a user, and another host: the newer session ends the older session, and the older run finds the newer run's
mark and stops.
"""

import errno
import hashlib
import logging
import os
import socket
import time
from contextlib import contextmanager
from typing import ContextManager, Dict, Iterator

from relvmoiscsi.errors import Busy, Refused, UsageError
from relvmoiscsi.host import flock
from relvmoiscsi.host.files import names_in
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.locks.sm_locks import WAIT_SECONDS, busy
from relvmoiscsi.host.run_directory import RUN_DIRECTORY, open_lock_file
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

LOCKS = "locks"  #: subdirectory of RUN_DIRECTORY


def lun_lock(scsi_id: str, host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> ContextManager[object]:
    """Hold the lock of the LUN while a block runs. `timeout` is in seconds.

    Raises, before the block, Busy if another process keeps the lock, Refused if the lock file cannot be trusted.
    """
    path, deadline = _path(scsi_id, host), time.monotonic() + timeout
    return flock.lock_file(path, lambda: open_lock_file(scsi_id, host, LOCKS), deadline, busy, host, guards_lun=True)


@contextmanager
def user_lock(scsi_id: str, host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of the LUN among ordinary users. `timeout` is in seconds. Raises Refused."""
    # a name has at most 107 bytes, a SCSIid up to 255; a host with another root has locks of its own
    digest = hashlib.sha256(f"{host.root} {scsi_id}".encode()).hexdigest()[:32]
    name = "relvmoiscsi-lun-" + digest
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        while True:
            try:
                taken.bind("\0" + name)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise Refused(f"The lock of the LUN cannot be taken: {error.strerror}.") from error
            if time.monotonic() >= deadline:
                listed = shell_command("ss -xlp src", "@" + name)
                raise Busy(f"Another relvmoiscsi is at work on the LUN {scsi_id}.").advising(
                    "Try again when that process has ended. "
                    f"`{listed}` names the process to the user of the process, and to root."
                )
            time.sleep(POLL_SECONDS)
        taken.listen(1)  # for `ss`, which lists listening sockets
        log.debug("took the name of the LUN %s", scsi_id)
        yield


def is_lun_locked(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Return whether a process holds the LUN's lock, without taking the lock. Raises UsageError."""
    return flock.is_held(_path(scsi_id, host))


def locked_luns(host: Host = THIS_HOST) -> Dict[str, str]:
    """Return the SCSIids of LUNs whose lock is held, each with the holder as words of a sentence."""
    directory = os.path.join(host.at(RUN_DIRECTORY), LOCKS)
    locked = [name for name in names_in(directory) if is_scsi_id(name) and is_lun_locked(name, host)]
    return {scsi_id: flock.owner_of(_path(scsi_id, host), host) for scsi_id in locked}


def _path(scsi_id: str, host: Host) -> str:
    """Return the path of the LUN's lock. Raises UsageError."""
    if not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid.", "ConfigSCSIid")
    return os.path.join(host.at(RUN_DIRECTORY), LOCKS, scsi_id)
