# SPDX-License-Identifier: LGPL-2.1-only
"""Work on a device in a process of its own, which can be given up: a read of a disk that does not answer ends for
no signal, and a process with such a thread does not end either.

    here                              there (the same program, forked)
    waits until the deadline          opens the device, reads, plans
    "may I write?"         <--------- before the first write
    yes, if there is time  --------->
    waits for the end                 writes to the end, whatever the time is

There is no way back to the time before the first write, so what has begun is waited for. What was given up before is
killed, and has written nothing: it is gone as soon as the kernel lets go of it. It dies with this process as well,
unless it hangs. So the locks that it takes it lends, and has none itself: they are undone here, or end with this
process, lest others wait for them until its disk answers. Of the locks of this process it has at most those of its LUN.
A SIGTERM is for this process to heed (terminated.py).
"""

import array
import ctypes
import json
import logging
import math
import os
import select
import signal
import socket
import stat
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from relvmoiscsi.deadline import NOT_BEGUN, Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import inherited_lock_fds, terminated

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # Linux uapi: linux/prctl.h
_REAP_MILLISECONDS = 1000
_YES, _NO = b"y", b"n"
_MAY_I_WRITE, _UNDO = "?", "u"  # what a child asks
_LONGEST_POLL = 1 << 30  # milliseconds
_MAYBE_BEGUN = "The LUN may hold an unfinished resignature; the same call again finishes it."

Begin = Callable[[], None]
#: of work that is done beside other work: what it gives, or why it gives nothing
Outcome = Union[str, RelvmoiscsiError]

_AT_ONCE = 64  #: processes; a host may have thousands of disks
_MOST_LENT = 16  # descriptors at a time
_INT = array.array("i").itemsize

_parent: Optional["_Parent"] = None  # in a child
_given_up: List[int] = []  # processes that had not ended then


def still_there() -> List[int]:
    """Processes that were given up and that the kernel has not let go of, which may have a disk open."""
    _given_up[:] = [pid for pid in _given_up if not _has_ended(pid)]
    return list(_given_up)


class _Stop(BaseException):
    """Ends the work without a write; nobody between here and there is to handle it as a failure of the device."""


class AskingDevice(Device):
    """Passes everything on, and asks before its first write; a flush counts as one, as it takes as long."""

    def __init__(self, device: Device, begin: Begin) -> None:
        self.name, self.size_bytes, self.block_size = device.name, device.size_bytes, device.block_size
        self.physical_block_size = device.physical_block_size
        self._device, self._begin = device, begin
        self._has_begun = False

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        return self._device.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._ask()
        self._device.write(chunks)

    def flush(self) -> None:
        self._ask()
        self._device.flush()

    def _ask(self) -> None:
        if not self._has_begun:
            self._begin()
            self._has_begun = True


@contextmanager
def lending() -> Iterator[Callable[[Sequence[int]], None]]:
    """In a child: a function that takes the descriptors of locks which the block has taken.

    They are the other process's alone from then on, which undoes them when the block ends, after what the block does to
    release them; here are other descriptors of the same files in their place. Elsewhere nothing is done.
    """
    try:
        yield _lend
    finally:
        if _parent is not None:
            _ask(_parent, _UNDO)


def _lend(descriptors: Sequence[int]) -> None:
    if _parent is None or not descriptors:
        return
    rights = array.array("i", descriptors).tobytes()
    _parent.lending.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for descriptor in descriptors:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        other = os.open(os.devnull if is_socket else f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(other, descriptor, inheritable=False)
        os.close(other)


class _Parent(NamedTuple):
    """How a child reaches its parent."""

    lending: socket.socket
    tell: int  #: a descriptor to write to
    hear: int  #: one to read from


def _ask(parent: _Parent, question: str) -> bool:
    """May I? Not when nobody answers."""
    try:
        _tell(parent.tell, question)
        return os.read(parent.hear, 1) == _YES
    except OSError:  # it is not interested any more
        return False


class _Child(NamedTuple):
    pid: int
    lent: socket.socket  #: where copies of the descriptors of its locks come
    locks: List[int]  #: those that have come
    answers: int  #: a descriptor to read from
    orders: int  #: one to write to


def run_in_child(work: Callable[[Begin], str], deadline: Deadline, what: str, only_reads: bool = False) -> str:
    """What `work` gives, done in a process of its own; it calls its argument before its first write.

    Raises OutOfTime when the deadline passes before that; RelvmoiscsiError with the message, key and state of the one
    that `work` raised; RuntimeError for any other exception there, which is logged there. `what` is what was given up,
    such as "the LUN was read". Work that `only_reads` has no part in the locks of this process; other work has in those
    of LUNs, as a write that hangs may come to pass when this process is gone.
    """
    child: Optional[_Child] = None
    begun = False
    try:
        child = _fork(work, guards_lun=not only_reads)
        while True:
            line = _line(child.answers, None if begun else deadline)
            if line is None:
                _kill(child.pid)
                raise deadline.over(what)
            if line == _UNDO.encode("ascii"):
                _undo_locks(child)
                os.write(child.orders, _YES)
                continue
            if line != _MAY_I_WRITE.encode("ascii"):
                return _result(line, begun)
            _take_locks(child)  # on their way they would be nobody's, for whoever waits and looks
            if not deadline.has_passed:
                terminated.heed_no_longer()
                begun = True
            os.write(child.orders, _YES if begun else _NO)
            if not begun:
                raise deadline.over("the first write to the LUN")
    except terminated.Terminated:
        if child is not None:
            _kill(child.pid)
        raise
    finally:
        if child is not None:
            _part_with(child, begun)


def _part_with(child: _Child, begun: bool) -> None:
    """The end of it, whether or not it has ended."""
    os.close(child.answers)
    os.close(child.orders)
    _reap([child.pid])
    if begun and child.pid in _given_up:
        child.lent.detach()  # it still writes, and this process is about to end: the locks go with it
    else:
        _undo_locks(child)
        child.lent.close()


def run_parallel(works: Sequence[Callable[[], str]], deadline: Deadline, what: str) -> List[Outcome]:
    """What each gives, all done at the same time, in processes of their own; an error in the place of what fails.

    That is OutOfTime for work that was not done by the deadline and given up; `what` is what did not come to pass. Of
    very many, some begin when others have ended, and none begins after the deadline. The locks of this process are not
    theirs: should it be killed, they are free, whatever hangs.
    """
    outcomes: Dict[int, Outcome] = {}
    waiting = list(range(len(works)))
    running: Dict[int, _Child] = {}  # by the number of their work
    ended: List[int] = []
    try:
        while True:
            while waiting and len(running) < _AT_ONCE and not deadline.has_passed:
                number = waiting.pop(0)
                running[number] = _fork(_asking_nothing(works[number]), guards_lun=False)
            answering = _answering(running, deadline)
            if not answering:
                break
            for number in answering:
                ended.append(running[number].pid)
                outcomes[number] = _outcome(running.pop(number), deadline, what)
    finally:
        _reap([*ended, *_killed(list(running.values()))])
    return [outcomes[number] if number in outcomes else deadline.over(what) for number in range(len(works))]


def _asking_nothing(work: Callable[[], str]) -> Callable[[Begin], str]:
    return lambda _begin: work()


def _answering(running: Dict[int, _Child], deadline: Deadline) -> List[int]:
    """Those that have something to say, or have ended; none when there are none, or the deadline has come."""
    if not running:
        return []
    numbers = {child.answers: number for number, child in running.items()}
    poll = select.poll()
    for descriptor in numbers:
        poll.register(descriptor, select.POLLIN)
    with terminated.waiting():
        ready = poll.poll(_milliseconds(deadline))
    return sorted(numbers[descriptor] for descriptor, _ in ready)


def _outcome(child: _Child, deadline: Deadline, what: str) -> Outcome:
    try:
        line = _line(child.answers, deadline)
        if line is None:  # it was stopped in the middle
            _kill(child.pid)
            return deadline.over(what)
        return _result(line, begun=False)
    except RelvmoiscsiError as error:
        return error
    finally:
        _close(child)


def _killed(children: Sequence[_Child]) -> List[int]:
    """Their numbers; all are told to end before any is waited for."""
    for child in children:
        _kill(child.pid)
        _close(child)
    return [child.pid for child in children]


def _close(child: _Child) -> None:
    os.close(child.answers)
    os.close(child.orders)
    child.lent.close()


def _fork(work: Callable[[Begin], str], guards_lun: bool) -> _Child:
    """Begin the work, without the locks of this process, or with those that guard a LUN.

    The child, which has this process's handler, never heeds a SIGTERM: it waits for nothing until it has said so.
    """
    answers, tell = os.pipe()
    hear, orders = os.pipe()
    lent, lending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here = os.getpid()
    pid = os.fork()
    if pid:
        os.close(tell)
        os.close(hear)
        lending.close()
        return _Child(pid, lent, [], answers, orders)
    try:
        terminated.heed_no_longer()
        os.close(answers)
        os.close(orders)
        lent.close()
        global _parent  # noqa: PLW0603 - of this process, which does nothing else
        _parent = _Parent(lending, tell, hear)
        if guards_lun:
            inherited_lock_fds.close_all_but_lun()
        else:
            inherited_lock_fds.close_all()
        _part_from(here)
        _tell(tell, json.dumps(_done(work, _parent)))
    finally:
        os._exit(0)  # nothing of what this process was in the middle of is its own to end
    return _Child(0, lent, [], -1, -1)  # not reached


def _part_from(parent: int) -> None:
    """Leave the caller's pipes to the parent, and end with it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _done(work: Callable[[Begin], str], parent: _Parent) -> Dict[str, Any]:
    def begin() -> None:
        if not _ask(parent, _MAY_I_WRITE):
            raise _Stop

    try:
        return {"value": work(begin)}
    except RelvmoiscsiError as error:
        return {"error": [error.message, error.sm_key], "state": error.disk_state}
    except _Stop:
        return {}  # nobody asks
    except BaseException as error:
        log.exception("a bug in the work on a device")
        return {"bug": repr(error)}


def _tell(descriptor: int, text: str) -> None:
    data = text.encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _line(descriptor: int, deadline: Optional[Deadline]) -> Optional[bytes]:
    """The next line, b"" at the end; None when it has not come by the deadline."""
    line = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n"):
        with terminated.waiting():
            ready = poll.poll(_milliseconds(deadline))
        if not ready:
            return None
        # A byte at a time: what comes behind the line is for the next.
        data = os.read(descriptor, 1)
        if not data:
            return b""
        line += data
    return line[:-1]


def _milliseconds(deadline: Optional[Deadline]) -> Optional[float]:
    """What is left, for a poll; None: without an end."""
    left = deadline.left if deadline else math.inf
    return None if math.isinf(left) else min(_LONGEST_POLL, left * 1000)


def _result(line: bytes, begun: bool) -> str:
    answer = json.loads(line.decode("ascii")) if line else {}
    if "value" in answer:
        return str(answer["value"])
    if "error" in answer:
        raise RelvmoiscsiError(*answer["error"]).in_state(answer["state"] or (_MAYBE_BEGUN if begun else ""))
    if "bug" in answer:
        raise RuntimeError(answer["bug"])
    problem = "The process that worked on the LUN was ended from outside."
    raise Refused(problem, "SMGeneral").in_state(_MAYBE_BEGUN if begun else NOT_BEGUN)


def _undo_locks(child: _Child) -> None:
    """Those of a process that has not written and will not; it may hang with them in a disk that does not answer."""
    _take_locks(child)
    while child.locks:
        descriptor = child.locks.pop(0)
        inherited_lock_fds.undo(descriptor)
        inherited_lock_fds.forget(descriptor)
        os.close(descriptor)


def _take_locks(child: _Child) -> None:
    """Those that it has lent so far."""
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    while True:
        try:
            data, ancillary, _, _ = child.lent.recvmsg(1, socket.CMSG_SPACE(_MOST_LENT * _INT), flags)
        except BlockingIOError:
            return  # it is still there, and has lent no more
        if not data:
            return
        for _level, _kind, rights in ancillary:
            for descriptor in array.array("i", rights):
                inherited_lock_fds.note(descriptor)
                child.locks.append(descriptor)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself


def _reap(pids: Sequence[int]) -> None:
    """Take note of their ends; those that the kernel does not let go of, after a second for all, are left to init."""
    poll = select.poll()
    left = list(pids)
    for _ in range(_REAP_MILLISECONDS // 10):
        left = [pid for pid in left if not _has_ended(pid)]
        if not left:
            return
        poll.poll(10)
    for pid in left:
        _given_up.append(pid)
        log.warning("process %d was given up and has not ended yet: its disk does not answer", pid)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # somebody else has taken note: the kernel itself, where SIGCHLD is ignored
        return True
