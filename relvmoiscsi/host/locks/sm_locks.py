# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of the storage manager (SM) for LVM commands.

    SM 2.x              /var/lock/sm/.nil/lvm
    SM 3.2.0 and later  Fairlock: unix socket /run/fairlock/devicemapper

SM locks with fcntl. Such a lock belongs to the process, and ends as soon as the process closes any descriptor of the
file. This module takes a lock of an open file description (F_OFD_SETLK, Linux 3.15). Such a lock excludes SM's locks
and has neither property. This module never removes a lock file of SM: SM does not check whether its locked file is
still the file at the path, so after a removal two processes could have the lock.

A forked child has copies of all descriptors, and may hang in a disk for longer than its parent lives. So the parent
releases the lock for all copies before it closes the file. A parent that is killed releases nothing. So a child closes
its copies (flock.py). A child takes no lock itself: its parent takes the lock (own_process.in_call).

These locks are of this host only. A process that takes several locks takes the LUN's lock first (lun_lock.py).
Source: SM drivers/lock.py, flock.py, lvutil.py; misc/fairlock.
"""

import fcntl
import logging
import os
import socket
import struct
import time
from contextlib import contextmanager
from typing import Iterator

from relvmoiscsi.errors import NOTHING_CHANGED, Busy, CommandFailed, Refused
from relvmoiscsi.host import flock, terminated
from relvmoiscsi.host.command import Runner
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.own_path import is_there, make_directory
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

F_OFD_GETLK, F_OFD_SETLK = 36, 37  #: in Python's fcntl since 3.9
_WHOLE = os.SEEK_SET, 0, 0, 0
RECORD_LOCK = "hhqqi4x"  #: struct flock: type, whence, start, length (0: to the end), pid (must be 0)

WAIT_SECONDS = 45.0  #: an LVM command of SM on a slow LUN takes up to 45 seconds

LVM_LOCK = "var/lock/sm/.nil/lvm"
FAIRLOCK = "run/fairlock/devicemapper"
FAIRLOCK_SERVICE = "fairlock@devicemapper.service"
_MODE_OF_SM = 0o755  #: of SM's directories
SM_LOCKS = ("var/lock/sm", "run/lock/sm")


USE_THAT = "Use that device, or close it first."  #: advice where this very process has opened the LUN


def busy(path: str, holder: str) -> Busy:
    """Return the error for a lock that stayed taken."""
    problem = Busy(f"The lock {path} is held by {holder} and did not become free in time.").advising(
        "Try again when that has ended."
    )
    return problem.in_state(NOTHING_CHANGED)


@contextmanager
def lvm_lock(host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep SM's lvutil from running LVM commands while the block runs. `timeout` is in seconds. Raises Refused.

    Some programs of SM use LVM without this lock (docs/host.rst, "SM on the same host"). lvm_locks.py has LVM's own
    locks, which keep every LVM command away.
    """
    deadline = time.monotonic() + timeout
    with _sm_lock(host.at(LVM_LOCK), deadline), _fairlock(host.at(FAIRLOCK), deadline, host.runner):
        yield


def is_sm_here(host: Host = THIS_HOST) -> bool:
    """Return whether SM has taken locks since this host started. SM takes locks when it attaches its first SR.

    Whatever is at the place counts, whoever has made it. Where every user may write to /run/lock, a user could make the
    directory first, and SM would take its locks there. `lvm_lock` refuses such a directory.
    """
    return any(is_there(host.at(name)) for name in [*SM_LOCKS, os.path.dirname(FAIRLOCK)])


@contextmanager
def _sm_lock(path: str, deadline: float) -> Iterator[None]:
    """Hold a record lock on the whole file. Make the file if it is absent."""
    whole, unlocked = struct.pack(RECORD_LOCK, fcntl.F_WRLCK, *_WHOLE), struct.pack(RECORD_LOCK, fcntl.F_UNLCK, *_WHOLE)
    descriptor = _open(path)
    try:
        with flock.inherited(descriptor):
            while True:
                try:
                    fcntl.fcntl(descriptor, F_OFD_SETLK, whole)
                    break
                except (BlockingIOError, PermissionError):  # the kernel answers EAGAIN or EACCES
                    pass
                except OSError as error:
                    raise Refused(f"The file {path} cannot be locked: {error.strerror}.") from error
                if time.monotonic() >= deadline:
                    # The kernel names the holder of SM's kind of lock only.
                    kind, _, _, _, pid = struct.unpack(RECORD_LOCK, fcntl.fcntl(descriptor, F_OFD_GETLK, whole))
                    is_named = kind != fcntl.F_UNLCK and pid > 0
                    raise busy(path, f"process {pid}" if is_named else "another run of relvmoiscsi")
                terminated.pause(POLL_SECONDS)
            log.debug("took the lock %s", path)
            yield
    finally:
        try:
            fcntl.fcntl(descriptor, F_OFD_SETLK, unlocked)  # for all copies of the descriptor
        except OSError as error:
            log.warning("The lock %s could not be undone: %s.", path, error.strerror)
        os.close(descriptor)
        log.debug("closed the lock %s", path)


def _open(path: str) -> int:
    """Open the lock file. Make its directory if SM has removed it.

    A shared lock of another user on a file that he may read would hold up SM and this process. SM makes its files
    readable for all users, so that only a directory of root alone could keep them away. What is made here is not.
    """
    return flock.open_or_make_lock(path, lambda: make_directory(os.path.dirname(path), _MODE_OF_SM))


@contextmanager
def _fairlock(path: str, deadline: float, run: Runner) -> Iterator[None]:
    """Hold a Fairlock if the service exists. A client has the lock from the greeting until its connection ends."""
    if not os.path.isdir(os.path.dirname(path)):
        log.debug("no Fairlock is needed: %s does not exist", os.path.dirname(path))
        yield
        return
    connection = _greeted(path, deadline, run)
    with connection, flock.inherited(connection.fileno()):
        log.debug("took the Fairlock %s", path)
        try:
            connection.sendall(f"{os.getpid()} - relvmoiscsi".encode("ascii"))
            yield
        finally:
            try:
                connection.shutdown(socket.SHUT_RDWR)  # ends the connection for all copies of the descriptor
            except OSError:
                pass  # the server has ended the connection
    log.debug("released the Fairlock %s", path)


def _greeted(path: str, deadline: float, run: Runner) -> socket.socket:
    """Return a connection on which the greeting has arrived. Start the service, once, if no server answers."""
    started = False
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            with terminated.waiting():
                connection.connect(path)
                greeting = connection.recv(16)
            if greeting:
                connection.settimeout(None)
                return connection
            answer = "it ended the connection"
        except BlockingIOError:
            answer = "too many wait for it"
        except socket.timeout as error:
            connection.close()
            raise busy(path, "another program") from error
        except (FileNotFoundError, ConnectionError) as error:
            answer = error.strerror or str(error)
            if not started:
                started = True
                try:
                    run(["systemctl", "start", FAIRLOCK_SERVICE])
                except CommandFailed as failure:
                    log.warning("%s", failure)  # the next attempt shows whether the service answers
        except BaseException:
            connection.close()
            raise
        connection.close()
        if time.monotonic() >= deadline:
            raise Refused(f"The lock service at {path} does not answer: {answer}.")
        terminated.pause(POLL_SECONDS)
