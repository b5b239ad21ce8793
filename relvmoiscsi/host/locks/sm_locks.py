# SPDX-License-Identifier: LGPL-2.1-only
"""The lock of the storage manager (SM) for LVM commands, and the product's own lock of a LUN.

    what is guarded       who takes it        lock
    an LVM command        SM 2.x              /var/lock/sm/.nil/lvm
                          SM 3.2.0 and later  Fairlock: unix socket /run/fairlock/devicemapper
    one LUN               relvmoiscsi         /run/lock/relvmoiscsi/<SCSIid>

SM locks with fcntl. Such a lock belongs to the process, and ends as soon as the process closes any descriptor of the
file. This module takes locks of open file descriptions (F_OFD_SETLK, Linux 3.15). These locks exclude SM's locks and
have neither property. This module never removes a lock file of SM: SM does not check whether its locked file is still
the file at the path, so after a removal two processes could have the lock.

A forked child has copies of all descriptors, and may hang in a disk for longer than its parent lives. So the parent
releases each lock for all copies before it closes the file. A parent that is killed releases nothing. So a child closes
its copies (inherited_lock_fds.py); a child that writes keeps its copy of the LUN's lock. A child takes no lock itself:
its parent takes the lock (own_process.in_call).

All these locks are of this host only. A process that takes several takes the LUN's lock first, then LVM's lock.
Source: SM drivers/lock.py, flock.py, lvutil.py; misc/fairlock.
"""

import fcntl
import logging
import os
import socket
import struct
import time
from contextlib import contextmanager
from glob import escape, glob
from typing import Callable, Dict, Iterator, List, Sequence

from relvmoiscsi.errors import CommandFailed, Refused, UsageError
from relvmoiscsi.host import flock, inherited_lock_fds, terminated
from relvmoiscsi.host.command import Runner
from relvmoiscsi.host.files import remedy, text_of
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.scsi_id_text import is_scsi_id

log = logging.getLogger(__name__)

F_OFD_GETLK, F_OFD_SETLK = 36, 37  #: in Python's fcntl since 3.9
RECORD_LOCK = "hhqqi4x"  #: struct flock: type, whence, start, length (0: to the end), pid (must be 0)

WAIT_SECONDS = 45.0  #: an LVM command of SM on a slow LUN takes up to 45 seconds

LVM_LOCK = "var/lock/sm/.nil/lvm"
FAIRLOCK = "run/fairlock/devicemapper"
FAIRLOCK_SERVICE = "fairlock@devicemapper.service"
SM_LOCKS = ("var/lock/sm", "run/lock/sm")
LUN_LOCKS = "run/lock/relvmoiscsi"


class Busy(Refused):
    """Another process holds a lock, and the lock did not become free in time."""


@contextmanager
def lvm_lock(host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep SM from running LVM commands while the block runs. `timeout` is in seconds. Raises Refused on failure.

    lvm_locks.py has LVM's own locks, which keep every LVM command away, not only the commands of SM.
    """
    deadline = time.monotonic() + timeout
    with _sm_lock(host.at(LVM_LOCK), deadline, host), _fairlock(host.at(FAIRLOCK), deadline, host.runner):
        yield


def is_sm_here(host: Host = THIS_HOST) -> bool:
    """Return whether SM has taken locks since this host started. SM takes locks when it attaches its first SR."""
    return any(os.path.isdir(host.at(name)) for name in [*SM_LOCKS, os.path.dirname(FAIRLOCK)])


@contextmanager
def lun_lock(scsi_id: str, host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of the LUN: one process of relvmoiscsi on this host works on a LUN at a time. `timeout` in seconds.

    The holder removes the lock file at release. Raises Refused, before the block, if another process has the lock.
    """
    if not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid.", "ConfigSCSIid")
    path = os.path.join(host.at(LUN_LOCKS), scsi_id)
    deadline = time.monotonic() + timeout
    while True:
        with _sm_lock(path, deadline, host, guards_lun=True) as descriptor:
            # t0 the holder removes the file, t1 this process gets the lock: the path now leads to another file or none
            if not flock.is_current(path, descriptor):
                continue
            try:
                yield
            finally:
                if not inherited_lock_fds.is_left(descriptor):
                    _remove(path)
            return


def is_lun_locked(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Return whether a process of relvmoiscsi holds the LUN's lock, without taking the lock. Raises UsageError."""
    if not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid.", "ConfigSCSIid")
    try:
        descriptor = os.open(os.path.join(host.at(LUN_LOCKS), scsi_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        query = struct.pack(RECORD_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(RECORD_LOCK, fcntl.fcntl(descriptor, F_OFD_GETLK, query))
        return bool(kind != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


@contextmanager
def _sm_lock(path: str, deadline: float, host: Host, guards_lun: bool = False) -> Iterator[int]:
    """Hold a record lock on the whole file and give its descriptor. Make the file if it is absent."""
    descriptor = _open(path)
    try:
        with inherited_lock_fds.noted(descriptor, guards_lun):
            while not _try_lock(descriptor, path):
                if time.monotonic() >= deadline:
                    raise _taken(path, _holder(descriptor, host))
                terminated.pause(POLL_SECONDS)
            log.debug("took the lock %s", path)
            yield descriptor
    finally:
        _undo(descriptor, path)
        os.close(descriptor)
        log.debug("closed the lock %s", path)


def _open(path: str) -> int:
    """Open the lock file; repeat if SM removes its directory between `_make_directory` and `os.open`."""
    for _ in range(10):
        _make_directory(os.path.dirname(path))
        try:
            return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Refused(f"The lock {path} cannot be opened: {error.strerror}. {remedy(error)}") from error
    raise Refused(f"The lock {path} cannot be opened: its directory vanishes again and again.")


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, 0o755, exist_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be made: {error.strerror}. {remedy(error)}") from error


def _try_lock(descriptor: int, path: str) -> bool:
    try:
        fcntl.fcntl(descriptor, F_OFD_SETLK, struct.pack(RECORD_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):  # the kernel answers EAGAIN or EACCES
        return False
    except OSError as error:
        raise Refused(f"The file {path} cannot be locked: {error.strerror}.") from error
    return True


def _undo(descriptor: int, path: str) -> None:
    """Release the lock of all copies of the descriptor."""
    try:
        fcntl.fcntl(descriptor, F_OFD_SETLK, struct.pack(RECORD_LOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        log.warning("The lock %s could not be undone: %s.", path, error.strerror)


def _holder(descriptor: int, host: Host) -> str:
    """Return the holder of the lock for a message. The kernel names the holder of SM's kind of lock only."""
    query = struct.pack(RECORD_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(RECORD_LOCK, fcntl.fcntl(descriptor, F_OFD_GETLK, query))
    if kind != fcntl.F_UNLCK and pid > 0:
        return f"process {pid}"
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "another program"
    return ", ".join(_described(process, path, host) for process in _ofd_holders(path, host)) or "another program"


def _ofd_holders(path: str, host: Host) -> List[str]:
    """Return the ids of the processes with an OFD lock on the file, without children that have a copy of it."""
    links = _ofd_locked(os.path.join(escape(host.proc), "[0-9]*"), lambda name: name == path)
    found = [link.split(os.sep)[-3] for link in links]
    parents = {
        process: line.split()[1]
        for process in found
        for line in text_of(os.path.join(host.proc, process, "status")).splitlines()
        if line.startswith("PPid:")
    }
    return sorted({process for process in found if parents.get(process) not in found}, key=int)


def _described(process: str, path: str, host: Host) -> str:
    """Return the process for a message, with the LUN whose lock it holds if `path` is another lock."""
    top = os.path.realpath(host.at(LUN_LOCKS))
    luns: List[str] = []
    if os.path.dirname(path) != top:
        luns = sorted(
            _ofd_locked(os.path.join(escape(host.proc), process), lambda name: os.path.dirname(name) == top).values()
        )
    named = host.named_process(process)
    return named + (f" (at work on the LUN {', '.join(map(os.path.basename, luns))})" if luns else "")


def _ofd_locked(processes: str, is_wanted: Callable[[str], bool]) -> Dict[str, str]:
    """Return the /proc/*/fd/* links of wanted files on which these processes hold OFD locks, with the files' names."""
    found = {}
    for link in glob(os.path.join(processes, "fd", "*")):
        try:
            name = os.readlink(link)
        except OSError:
            continue  # the process has closed the file since
        if is_wanted(name) and "OFDLCK" in text_of(link.replace("/fd/", "/fdinfo/")):
            found[link] = name
    return found


def _taken(path: str, holder: str) -> Busy:
    problem = "The lock {} is held by {} and did not become free in time. Try again when that has ended."
    return Busy(problem.format(path, holder)).in_state("Nothing was changed.")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.warning("The lock file %s could not be removed: %s.", path, error.strerror)
    _remove_directory(os.path.dirname(path))


def _remove_directory(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        pass  # the directory has other lock files


@contextmanager
def _fairlock(path: str, deadline: float, run: Runner) -> Iterator[None]:
    """Hold a Fairlock if the service exists. A client has the lock from the greeting until its connection ends."""
    if not os.path.isdir(os.path.dirname(path)):
        log.debug("no Fairlock is needed: %s does not exist", os.path.dirname(path))
        yield
        return
    connection = _greeted(path, deadline, run)
    with connection, inherited_lock_fds.noted(connection.fileno()):
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
            raise _taken(path, "another program") from error
        except (FileNotFoundError, ConnectionError) as error:
            answer = error.strerror or str(error)
            if not started:
                _start_service(["systemctl", "start", FAIRLOCK_SERVICE], run)
                started = True
        except BaseException:
            connection.close()
            raise
        connection.close()
        if time.monotonic() >= deadline:
            raise Refused(f"The lock service at {path} does not answer: {answer}.")
        terminated.pause(POLL_SECONDS)


def _start_service(argv: Sequence[str], run: Runner) -> None:
    try:
        run(argv)
    except CommandFailed as error:
        log.warning("%s", error)  # the next attempt shows whether the service answers
