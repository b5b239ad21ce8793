# SPDX-License-Identifier: LGPL-2.1-only
"""Work on a device in a process of its own, which can be given up: a read of a disk that does not answer ends for
no signal, and a process with such a thread does not end either.

    here                              there (the same program, forked)
    waits until the deadline          opens the device, reads, plans
    "may I write?"         <--------- before the first write
    yes, if there is time  --------->
    waits for the end                 writes to the end, whatever the time is

There is no way back to the time before the first write, so what has begun is waited for. A child that was given up
before is killed, and has written nothing: it is gone as soon as the kernel lets go of it. It dies with this process as
well, unless it hangs. A child that hangs would keep its locks for as long. So this process takes the locks that the
work asks for (`in_call`), and a child has at most the locks of its LUN. This process alone heeds a SIGTERM
(terminated.py).
"""

import ctypes
import json
import logging
import math
import os
import select
import signal
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

from relvmoiscsi.deadline import NOT_BEGUN, Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import inherited_lock_fds, terminated

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # Linux uapi: linux/prctl.h
_REAP_MILLISECONDS = 1000
_MAY_I_WRITE, _LOCK, _UNLOCK = b"?", b"l", b"u"  #: how what a child asks begins; its result is JSON
_LONGEST_POLL = 1 << 30  # milliseconds
_MAYBE_BEGUN = "The LUN may hold an unfinished resignature; the same call again finishes it."

Begin = Callable[[], None]
#: takes the locks that a text names; the text is the caller's own
Lock = Callable[[str], ContextManager[object]]
#: of work that is done beside other work: what it gives, or why it gives nothing
Outcome = Union[str, RelvmoiscsiError]

_AT_ONCE = 64  #: processes; a host may have thousands of disks

_parent: Optional["_Parent"] = None  # in a child
_given_up: List[int] = []  # processes that had not ended then
_kept: List[ExitStack] = []  # locks of children that still write: they end with this process


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
def in_call(lock: Lock, what: str) -> Iterator[None]:
    """Hold the locks `lock(what)` while the block runs; in a child its parent holds them, by the same function.

    Raises in a child Refused for whatever RelvmoiscsiError the parent's function raises.
    """
    if _parent is None:
        with lock(what):
            yield
        return
    answer = _ask(_parent, _LOCK + what.encode("ascii"))
    if "error" in answer:
        raise Refused(*answer["error"]).in_state(answer["state"])
    try:
        yield
    finally:
        _ask(_parent, _UNLOCK)


class _Parent(NamedTuple):
    """How a child reaches its parent."""

    tell: int  #: a descriptor to write to
    hear: int  #: one to read from


def _ask(parent: _Parent, question: bytes) -> Dict[str, Any]:
    """The parent's answer. Raises _Stop when nobody answers."""
    try:
        _tell(parent.tell, question)
        line = _line(parent.hear, None)
    except OSError as error:  # the parent is not interested any more
        raise _Stop from error
    if not line:
        raise _Stop
    answer: Dict[str, Any] = json.loads(line.decode("ascii"))
    return answer


class _Child(NamedTuple):
    pid: int
    answers: int  #: a descriptor to read from
    orders: int  #: one to write to


def run_in_child(
    work: Callable[[Begin], str], deadline: Deadline, what: str, only_reads: bool = False, lock: Optional[Lock] = None
) -> str:
    """What `work` gives, done in a process of its own; it calls its argument before its first write.

    Raises OutOfTime when the deadline passes before that; RelvmoiscsiError with the message, key and state of the one
    that `work` raised; RuntimeError for any other exception there, which is logged there. `what` is what was given up,
    such as "the LUN was read". Work that `only_reads` has no part in the locks of this process; other work has in those
    of LUNs, as a write that hangs may come to pass when this process is gone. `lock` is what the work gives `in_call`.
    """
    child: Optional[_Child] = None
    begun = False
    locks = ExitStack()
    try:
        child = _fork(work, guards_lun=not only_reads)
        while True:
            line = _line(child.answers, None if begun else deadline)
            if line is None:
                _kill(child.pid)
                raise deadline.over(what)
            if line.startswith(_LOCK) and lock is not None:
                _answer(child, _locked(locks, lock, line[len(_LOCK) :].decode("ascii")))
            elif line == _UNLOCK:
                locks.close()
                _answer(child, {})
            elif line == _MAY_I_WRITE:
                if not deadline.has_passed:
                    terminated.heed_no_longer()
                    begun = True
                _answer(child, {"yes": begun})
                if not begun:
                    raise deadline.over("the first write to the LUN")
            else:
                return _result(line, begun)
    except terminated.Terminated:
        if child is not None:
            _kill(child.pid)
        raise
    finally:
        if child is not None:
            _close(child)
            _reap([child.pid])
            if begun and child.pid in _given_up:
                _kept.append(locks)  # the child still writes, and this process is about to end
            else:
                locks.close()


def _answer(child: _Child, answer: Dict[str, Any]) -> None:
    try:
        _tell(child.orders, json.dumps(answer).encode("ascii"))
    except BrokenPipeError:
        pass  # the child has ended, which its other pipe tells


def _locked(locks: ExitStack, lock: Lock, what: str) -> Dict[str, Any]:
    try:
        locks.enter_context(lock(what))
    except RelvmoiscsiError as error:
        return _as_json(error)
    return {}


def _as_json(error: RelvmoiscsiError) -> Dict[str, Any]:
    return {"error": [error.message, error.sm_key], "state": error.disk_state}


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


def _fork(work: Callable[[Begin], str], guards_lun: bool) -> _Child:
    """Begin the work, without the locks of this process, or with those that guard a LUN.

    The child, which has this process's handler, never heeds a SIGTERM: it waits for nothing until it has said so.
    """
    answers, tell = os.pipe()
    hear, orders = os.pipe()
    here = os.getpid()
    pid = os.fork()
    if pid:
        os.close(tell)
        os.close(hear)
        return _Child(pid, answers, orders)
    try:
        terminated.heed_no_longer()
        os.close(answers)
        os.close(orders)
        global _parent  # noqa: PLW0603 - of this process, which does nothing else
        _parent = _Parent(tell, hear)
        if guards_lun:
            inherited_lock_fds.close_all_but_lun()
        else:
            inherited_lock_fds.close_all()
        _part_from(here)
        _tell(tell, json.dumps(_done(work, _parent)).encode("ascii"))
    finally:
        os._exit(0)  # nothing of what this process was in the middle of is its own to end
    return _Child(0, -1, -1)  # not reached


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
        if not _ask(parent, _MAY_I_WRITE)["yes"]:
            raise _Stop

    try:
        return {"value": work(begin)}
    except RelvmoiscsiError as error:
        return _as_json(error)
    except _Stop:
        return {}  # nobody asks
    except BaseException as error:
        log.exception("a bug in the work on a device")
        return {"bug": repr(error)}


def _tell(descriptor: int, line: bytes) -> None:
    data = line + b"\n"
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
