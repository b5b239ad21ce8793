# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of a LUN for an ordinary user's process, which reaches the LUN over iSCSI without root.

The lock is an abstract Unix socket with the SCSIid in its name (unix(7)). One process of a network namespace can have
the name. The kernel frees the name when the process ends, however the process ends. No file exists, so the lock needs
no directory that two environments of one user could see differently.

Every user of the machine can take the name. So this lock keeps ordinary users' processes off each other, and one user
can hold up another. A process of root neither takes nor heeds the name: no user can hold up root (lun_lock.py).
"""

import errno
import hashlib
import logging
import os
import socket
import struct
import time
from contextlib import contextmanager
from typing import Iterator

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.locks.sm_locks import WAIT_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

_UCRED = "3i"  # struct ucred: pid, uid, gid


@contextmanager
def user_lock(scsi_id: str, host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of the LUN among ordinary users. `timeout` is in seconds. Raises Refused."""
    # a name has at most 107 bytes, a SCSIid up to 255; a host with another root has locks of its own
    digest = hashlib.sha256(f"{host.root} {scsi_id}".encode()).hexdigest()[:32]
    name = f"\0relvmoiscsi-lun-{digest}"
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        while not _bind(taken, name):
            if time.monotonic() >= deadline:
                raise Refused(
                    f"Another relvmoiscsi is at work on the LUN {scsi_id}: {_holder(name, host)}. Try again when that "
                    "process has ended."
                )
            time.sleep(POLL_SECONDS)
        taken.listen(8)  # the kernel tells a process that connects which process listens
        log.debug("took the name of the LUN %s", scsi_id)
        yield


def _bind(taken: socket.socket, name: str) -> bool:
    try:
        taken.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise Refused(f"The lock of the LUN cannot be taken: {error.strerror}.") from error
        return False
    return True


def _holder(name: str, host: Host) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(name)
            answer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_UCRED))
        pid, uid, _ = struct.unpack(_UCRED, answer)
    except OSError:
        return "a process that could not be found out"
    of = "" if uid == os.geteuid() else f" of the user {uid}"
    return host.named_process(str(pid)) + of
