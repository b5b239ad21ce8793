# SPDX-License-Identifier: LGPL-2.1-only
"""The locks of the storage manager (SM), which our work on iSCSI and LVM has to respect, and one of our own.

    what is guarded       SM                  lock
    a run of iscsiadm     up to 3.0           /var/lock/sm/iscsiadm/running; set-iscsi-initiator: flock on the same file
                          3.2.12 and later    /var/lock/sm/iscsiadm/isciadm_running (sic)
    an LVM command        2.x                 /var/lock/sm/.nil/lvm
                          3.2.0 and later     Fairlock: unix socket /run/fairlock/devicemapper
    one LUN               only we             /run/lock/relvmoiscsi/<SCSIid>
    a session of an IQN   all                 /var/run/sr-ref/<IQN>: a line for each SR; the last one logs out

SM locks with fcntl, which ties a lock to the process and drops it as soon as the process closes any descriptor of the
file. The locks of open file descriptions (F_OFD_SETLK, Linux 3.15) exclude those of SM and do neither, so they are
taken here. The files of SM stay where they are: SM does not look whether the file it has locked is still the one that
its name leads to, so removing one would give the lock to two. A forked child has a copy of what was open, and may hang
in a disk for longer than its parent lives: so each lock is undone, which is for all copies, before its file is closed;
and a child closes its copies, but for that of its LUN's if it writes (copies.py), as a parent that is killed undoes
nothing. What a child has taken by itself is lent to its parent (own_process.lending).

All of these are of this host only. Whoever takes several takes them in this order: the LUN, iscsiadm, LVM.
Source: SM drivers/lock.py, flock.py, lvutil.py, util.py (_incr_iscsiSR_refcount); misc/fairlock; set-iscsi-initiator.
"""

import fcntl
import logging
import os
import signal
import stat
import struct
import time
from contextlib import ExitStack, contextmanager
from glob import escape, glob
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Sequence

from relvmoiscsi.errors import CommandFailed, Refused, UsageError
from relvmoiscsi.host import flock, terminated
from relvmoiscsi.host.command import Runner
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.disk.scsi_id_text import is_scsi_id
from relvmoiscsi.host.files import content_of, remedy, text_of
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.locks import copies
from relvmoiscsi.host.this_host import THIS_HOST, Host

if TYPE_CHECKING:
    import socket

log = logging.getLogger(__name__)

WAIT_SECONDS = 45.0  #: SM holds the iscsiadm lock through a login, which takes open-iscsi that long at times

ISCSIADM_LOCKS = ("var/lock/sm/iscsiadm/running", "var/lock/sm/iscsiadm/isciadm_running")
LVM_LOCK = "var/lock/sm/.nil/lvm"
FAIRLOCK = "run/fairlock/devicemapper"
FAIRLOCK_SERVICE = "fairlock@devicemapper.service"
SM_LOCKS = ("var/lock/sm", "run/lock/sm")
LUN_LOCKS = "run/lock/relvmoiscsi"
REFERENCES = ("var/run/sr-ref", "run/sr-ref")
ALONE_SECONDS = 1.0  #: SM has one of these files open for much less
_LOOKS = 5

_F_OFD_GETLK, _F_OFD_SETLK = 36, 37  # in Python's fcntl since 3.9
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length (0: to the end), pid (must be 0)


class Busy(Refused):
    """A lock is held by somebody else and did not become free in time."""


@contextmanager
def iscsiadm_lock(host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep SM from running iscsiadm while the block runs, whichever SM it is: the locks of all eras are taken.

    `timeout` is in seconds, for all of them. Raises Refused, before the block, when one stays taken.
    """
    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        for number, name in enumerate(ISCSIADM_LOCKS):
            descriptor = held.enter_context(_sm_lock(host.at(name), deadline, host))
            if number == 0 and not flock.take_before(descriptor, deadline):
                raise _taken(host.at(name), "set-iscsi-initiator")
        yield


@contextmanager
def lvm_lock(host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[List[int]]:
    """Keep SM from running LVM commands while the block runs; `timeout` in seconds. Raises Refused if it cannot.

    Gives the descriptors of what is held, for `undo`. The locks of LVM itself are in lvm_locks.py; they keep every LVM
    command away, not only those of SM.
    """
    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        descriptor = held.enter_context(_sm_lock(host.at(LVM_LOCK), deadline, host))
        fairlock = held.enter_context(_fairlock(host.at(FAIRLOCK), deadline, host.runner))
        yield [descriptor, *fairlock]


def undo(descriptor: int) -> None:
    """Undo the lock on an open file, of whatever kind, or end the connection that is one; for all copies of it."""
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        import socket  # noqa: PLC0415 - slow to import, and a Fairlock is not everywhere

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(descriptor)) as connection:
            _end(connection)
    else:
        _unlock(descriptor, "of a process that was given up")


def is_sm_here(host: Host = THIS_HOST) -> bool:
    """Has a storage manager taken locks on this host since it started? One takes some when it attaches the first SR."""
    return any(os.path.isdir(host.at(name)) for name in [*SM_LOCKS, os.path.dirname(FAIRLOCK)])


@contextmanager
def lun_lock(scsi_id: str, host: Host = THIS_HOST, timeout: float = WAIT_SECONDS) -> Iterator[None]:
    """Only one of us on this host works on the LUN with this SCSIid at a time; `timeout` in seconds.

    The file goes with the lock. Raises Refused, before the block, when another one is at work on it.
    """
    if not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid.", "ConfigSCSIid")
    path = os.path.join(host.at(LUN_LOCKS), scsi_id)
    deadline = time.monotonic() + timeout
    while True:
        with _sm_lock(path, deadline, host, guards_lun=True) as descriptor:
            # As the holder removes the file, its name may lead elsewhere by the time the lock is ours.
            if not flock.is_current(path, descriptor):
                continue
            try:
                yield
            finally:
                _remove(path)
            return


def is_lun_locked(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Is one of us at work on the LUN? The lock is not touched. Raises UsageError for what is no SCSIid."""
    if not is_scsi_id(scsi_id):
        raise UsageError(f"{scsi_id!r} is no SCSIid.", "ConfigSCSIid")
    try:
        descriptor = os.open(os.path.join(host.at(LUN_LOCKS), scsi_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, _F_OFD_GETLK, query))
        return bool(kind != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


class SessionReferences:
    """Which SRs use the sessions of an IQN on this host, as SM notes it: a file for each IQN, an SR UUID a line.

    SM logs out of all portals of an IQN when its line was the last one, and leaves the sessions to the others else. So
    whoever uses a session adds a line, lest SM ends the session under it, and whoever takes the last line out logs out:
    of what it has logged in to, and of what SM has left to it.
    """

    def __init__(self, host: Host = THIS_HOST) -> None:
        paths = [host.at(name) for name in REFERENCES]
        # One directory by two names nearly everywhere, as /var/run is a symbolic link.
        self._directories = [paths[0]] if os.path.realpath(paths[0]) == os.path.realpath(paths[1]) else paths

    def users(self, iqn: str) -> List[str]:
        """The SR UUIDs in the file of this IQN, and any other line in it: what is not understood counts as a user.

        Raises Refused (LVMRefCount) when the file is there and cannot be read.
        """
        found = []
        for path in self._paths(iqn):
            found += [line.strip() for line in _content(path).splitlines() if line.strip()]
        return list(dict.fromkeys(found))

    def add(self, iqn: str, sr_uuid: str) -> None:
        """Note that this SR uses the sessions of the IQN; once, however often it is called."""
        if sr_uuid in self.users(iqn):
            return
        directory = next(filter(os.path.isdir, self._directories), self._directories[0])
        _make_directory(directory)
        path = os.path.join(directory, _file_name(iqn))
        try:
            with open(path, "a", encoding="ascii") as file:
                file.write(sr_uuid + "\n")
        except OSError as error:
            raise _no_reference(path, error) from error
        log.info("added %s to %s", sr_uuid, path)

    def remove(self, iqn: str, sr_uuid: Optional[str]) -> None:
        """Take this SR's lines out, no other's; a file without lines stays, for SM to remove at its next detach.

        SM does not lock these files, and empties one before it writes the lines that stay: who removes a file because
        it is empty takes those with it. So the lines are overwritten by blanks in their place, which SM passes over,
        and a line that SM adds meanwhile survives.
        """
        for path in self._paths(iqn) if sr_uuid else []:
            try:
                # More than once, as SM may just have waited to write back what it had read before.
                for _ in range(_LOOKS):
                    if not _blank_lines(path, (sr_uuid or "").encode("ascii")):
                        break
            except FileNotFoundError:
                continue  # SM has removed it
            except OSError as error:
                raise _no_reference(path, error) from error

    def _paths(self, iqn: str) -> List[str]:
        return [os.path.join(directory, _file_name(iqn)) for directory in self._directories]


def _blank_lines(path: str, text: bytes) -> bool:
    """False if the file has no such line."""
    found = False
    with open(path, "r+b", buffering=0) as file, _alone(file.fileno()):
        start = 0
        for line in file.read().splitlines(True):
            if line.strip() == text:
                found = True
                os.pwrite(file.fileno(), b" " * len(line.rstrip(b"\n")), start)
                log.info("removed %s from %s", text.decode("ascii"), path)
            start += len(line)
    return found


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Nobody else has the file open while the block runs: others are waited for, and wait when they open it.

    It is a lease (fcntl(2)), of which SM need not know. Where there is none to be had, in ALONE_SECONDS, the block runs
    all the same.
    """
    deadline = time.monotonic() + ALONE_SECONDS
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # that another one waits; SIGIO would end this process
    while not _try_lease(descriptor) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _end_lease(descriptor)


def _try_lease(descriptor: int) -> bool:
    """One attempt; False while somebody else has the file open."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("the file has no leases: %s", error.strerror)
    return True


def _end_lease(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # there was none


def _file_name(iqn: str) -> str:
    if "/" in iqn or "\0" in iqn or iqn in ("", ".", ".."):
        raise UsageError(f"{iqn!r} is no IQN.", "ConfigTargetIQNMissing")
    return iqn


def _content(path: str) -> str:
    """The lines of a file; none where nobody uses the IQN."""
    try:
        return (content_of(path) or b"").decode("utf-8", "backslashreplace")
    except OSError as error:
        raise _no_reference(path, error) from error


def _no_reference(path: str, error: OSError) -> Refused:
    problem = "{}, where SM notes which SRs use an iSCSI session, cannot be used: {}. {}"
    return Refused(problem.format(path, error.strerror, remedy(error)), "LVMRefCount")


@contextmanager
def _sm_lock(path: str, deadline: float, host: Host, guards_lun: bool = False) -> Iterator[int]:
    """Hold a record lock on the whole file, which is made if need be; the descriptor of the file."""
    descriptor = _open(path)
    try:
        with copies.noted(descriptor, guards_lun):
            while not _try_lock(descriptor, path):
                if time.monotonic() >= deadline:
                    raise _taken(path, _holder(descriptor, host))
                terminated.pause(POLL_SECONDS)
            log.debug("took the lock %s", path)
            yield descriptor
    finally:
        _unlock(descriptor, path)
        os.close(descriptor)
        log.debug("closed the lock %s", path)


def _open(path: str) -> int:
    """SM removes the directory of a lock at times, between our making it and our opening the file, so: repeatedly."""
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
        fcntl.fcntl(descriptor, _F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system pleases
        return False
    except OSError as error:
        raise Refused(f"The file {path} cannot be locked: {error.strerror}.") from error
    return True


def _unlock(descriptor: int, path: str) -> None:
    """Undo the record lock, and an flock on the same file, for whoever has a copy of the descriptor."""
    try:
        fcntl.fcntl(descriptor, _F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        log.warning("The lock %s could not be undone: %s.", path, error.strerror)
    flock.undo(descriptor, path)


def _holder(descriptor: int, host: Host) -> str:
    """Who holds the lock, as words for a message. Only SM's kind of lock tells the process; ours are looked for."""
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, _F_OFD_GETLK, query))
    if kind != fcntl.F_UNLCK and pid > 0:
        return f"process {pid}"
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "another program"
    return ", ".join(_of_ours(process, path, host) for process in _holders_of_ours(path, host)) or "another program"


def _holders_of_ours(path: str, host: Host) -> List[str]:
    """The numbers of the processes that hold our kind of lock on a file, without children that have a copy of it."""
    links = _locked(os.path.join(escape(host.proc), "[0-9]*"), lambda name: name == path)
    found = [link.split(os.sep)[-3] for link in links]
    parents = {
        process: line.split()[1]
        for process in found
        for line in text_of(os.path.join(host.proc, process, "status")).splitlines()
        if line.startswith("PPid:")
    }
    return sorted({process for process in found if parents.get(process) not in found}, key=int)


def _of_ours(process: str, path: str, host: Host) -> str:
    """A call of ours, with the LUN that it works on, where that is not what the lock is for."""
    top = os.path.realpath(host.at(LUN_LOCKS))
    luns: List[str] = []
    if os.path.dirname(path) != top:
        luns = sorted(
            _locked(os.path.join(escape(host.proc), process), lambda name: os.path.dirname(name) == top).values()
        )
    named = holders.named_process(process, host)
    return named + (f", which is at work on the LUN {', '.join(map(os.path.basename, luns))}," if luns else "")


def _locked(processes: str, is_wanted: Callable[[str], bool]) -> Dict[str, str]:
    """The /proc/*/fd/* of wanted files on which these processes hold our kind of lock, and the names of the files."""
    found = {}
    for link in glob(os.path.join(processes, "fd", "*")):
        try:
            name = os.readlink(link)
        except OSError:
            continue  # closed in the meantime
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
        pass  # others use it


@contextmanager
def _fairlock(path: str, deadline: float, run: Runner) -> Iterator[List[int]]:
    """Hold a Fairlock: one has it from its server's greeting to the end of the connection. None where there is none."""
    if not os.path.isdir(os.path.dirname(path)):
        log.debug("no Fairlock is needed: %s does not exist", os.path.dirname(path))
        yield []
        return
    connection = _greeted(path, deadline, run)
    with connection, copies.noted(connection.fileno()):
        log.debug("took the Fairlock %s", path)
        try:
            connection.sendall(f"{os.getpid()} - relvmoiscsi".encode("ascii"))
            yield [connection.fileno()]
        finally:
            _end(connection)
    log.debug("released the Fairlock %s", path)


def _greeted(path: str, deadline: float, run: Runner) -> "socket.socket":
    """A connection on which the greeting has arrived. The service is started, once, when nobody answers."""
    import socket  # noqa: PLC0415 - as in `undo`

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


def _end(connection: "socket.socket") -> None:
    import socket  # noqa: PLC0415 - as in `undo`

    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the server has ended it


def _start_service(argv: Sequence[str], run: Runner) -> None:
    try:
        run(argv)
    except CommandFailed as error:
        log.warning("%s", error)  # whether the lock can be had is seen in the next attempt
