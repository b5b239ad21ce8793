# SPDX-License-Identifier: LGPL-2.1-only
"""Run work on a device in a child process, so that the call can give the work up.

A read of a disk that does not answer ends for no signal. A process with a thread in such a read does not end either.
Metadata of a stranger may take hours to verify, and no code in between asks for the time.

    parent                            child (the same program, forked)
    waits until the deadline          opens the device, reads, plans
    "may I write?"         <--------- before the first write
    yes, if time is left   --------->
    waits BATCH_SECONDS               writes to the end, even after the deadline
                           <--------- before each further batch, from when the parent waits anew

The parent waits for a child that has begun to write, because a write cannot be taken back. The parent kills a child
that has not begun at the deadline. That child has written nothing, and ends as soon as its read returns. A child also
dies with the parent, unless the child hangs in the kernel. A child that hangs keeps its locks. So the parent takes the
locks that the work asks for (`in_call`), and a child has at most the locks of its LUN. The parent also answers what
the work asks xapi (`ask_parent`): a child cannot use the parent's connection. Only the parent heeds a SIGTERM
(terminated.py).

The parent also kills a child whose batch hangs: SM and LVM must not wait for a LUN that may never answer, such as a
map that queues without paths. The hanging write may land later. So the locks of the LUN stay with that child until it
has ended, as after the end of the parent.

What a stranger wrote may take much memory, too. So a child has a limit of memory beyond that of its parent. If the
memory of the host runs out below that limit, the kernel ends the child before any other program.
"""

import ctypes
import json
import logging
import math
import os
import resource
import select
import signal
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from relvmoiscsi.deadline import BATCH_SECONDS, NO_DEADLINE, Deadline, OutOfTime
from relvmoiscsi.errors import Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host import flock, terminated
from relvmoiscsi.host.files import reserve, words_in
from relvmoiscsi.threads import no_room
from relvmoiscsi.untrusted import number
from relvmoiscsi.wording import cut

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # Linux uapi: linux/prctl.h
_REAP_MILLISECONDS = 1000
_MAY_I_WRITE, _CALL, _UNLOCK = b"?", b"c", b"u"  #: first byte of a child's question; the child's result is JSON
_LONGEST_POLL = 1 << 30  # milliseconds
_PIPE_BYTES = 1 << 16  #: that Linux lets wait in a pipe
_MOST_ANSWER_BYTES = 16 << 20  #: of JSON; the names of the 4094 VDIs of an SR take some 6 MiB
#: of memory that a child may take beyond its parent: more than the largest SR needs (docs/security.rst)
MOST_MEMORY_BYTES = 768 << 20
_STACK_BYTES = 1 << 20  #: of a thread: the kernel counts each stack as a whole, and a disk is read by 31 threads
_FIRST_TO_END = b"1000"  #: for the kernel when the host's memory runs out. Source: Linux proc(5), oom_score_adj
_MAYBE_BEGUN, _CALL_AGAIN = "The LUN may hold an unfinished resignature.", "The same call again finishes it."

Begin = Callable[[], None]
#: takes the locks that some values of JSON name; the caller defines the values
Lock = Callable[..., ContextManager[object]]
#: what a child has its parent do, with values of JSON: a Lock, or a function that may raise a RelvmoiscsiError
Call = Callable[..., Optional[ContextManager[object]]]
#: of one piece of parallel work: its result, or the error that it raised
Outcome = Union[Any, RelvmoiscsiError]

_FILES_OF_CHILD = 8  #: two pipes, which the next child has open too, and its own files
_AT_ONCE = 64  #: processes; a host may have thousands of disks

_parent: Optional[Tuple[int, "_Lines"]] = None  # in a child only: the descriptor for questions, and the answers
_given_up: List[int] = []  # children that had not ended when this process gave them up


def still_there() -> List[int]:
    """Return the given-up children that the kernel still holds. Such a child may have a disk open."""
    _given_up[:] = [pid for pid in _given_up if not _has_ended(pid)]
    return list(_given_up)


class _Stop(BaseException):
    """Ends the work without a write. No code in between may handle this exception as a failure of the device."""


@contextmanager
def in_call(lock: Lock, *what: Any) -> Iterator[None]:
    """Hold the locks `lock(*what)` while the block runs. In a child, the parent holds the locks, as in `ask_parent`."""
    if _parent is None:
        with lock(*what):
            yield
        return
    ask_parent(lock, *what)
    try:
        yield
    finally:
        _ask(_UNLOCK)


def ask_parent(function: Call, *what: Any) -> None:
    """Call `function(*what)`. In a child, the parent calls the function, which is one of the `calls` of `run_in_child`.

    `what` are values of JSON.

    In a child, raises Refused for any RelvmoiscsiError that the parent's function raises.
    """
    if _parent is None:
        function(*what)
        return
    answer = _ask(_CALL + json.dumps([function.__name__, what]).encode("ascii"))
    if "error" in answer:
        raise Refused(*answer["error"]).advising(answer["advice"]).in_state(answer["state"])


def _ask(question: bytes) -> Dict[str, Any]:
    """In a child: return the parent's answer. Raises _Stop if the parent has closed its pipes."""
    assert _parent is not None
    tell, hear = _parent
    try:
        _tell(tell, question)
        line = hear.next(NO_DEADLINE)
    except OSError as error:  # the parent has given this child up
        raise _Stop from error
    if not line:
        raise _Stop
    answer: Dict[str, Any] = json.loads(line.decode("ascii"))
    return answer


def _begin() -> None:
    """In a child: ask the parent before a write. Raises _Stop if the parent refuses."""
    if not _ask(_MAY_I_WRITE)["yes"]:
        raise _Stop


class _Lines:
    """The lines of a pipe. Bytes behind a line wait for the next call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._waiting = descriptor, bytearray()

    def next(self, deadline: Deadline) -> Optional[bytes]:
        """Return the next line, b"" at the end of the pipe; None at the deadline, also in the middle of a line."""
        poll, searched, is_late = select.poll(), 0, False
        poll.register(self._descriptor, select.POLLIN)
        while True:
            end = self._waiting.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._waiting[:end])
                del self._waiting[: end + 1]
                return line
            if is_late:
                return None
            searched = len(self._waiting)
            with terminated.waiting():
                ready = poll.poll(min(_LONGEST_POLL, deadline.left * 1000))
            if ready:
                data = os.read(self._descriptor, _PIPE_BYTES)
                if not data:
                    return b""
                self._waiting += data
            is_late = deadline.has_passed


class _Child:
    """A child process that does a work, seen from its parent."""

    def __init__(self, work: Callable[[], Any], guards_lun: bool) -> None:
        """Fork. With `guards_lun`, the child keeps the locks that guard a LUN; else no lock. Raises Refused.

        The child inherits this process's SIGTERM handler and never heeds the signal: before its first wait, the child
        calls `heed_no_longer`.
        """
        self.answers, tell = os.pipe()
        self.lines = _Lines(self.answers)
        hear, self.orders = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            self.close()
            os.close(tell)
            os.close(hear)
            raise no_room(error) from error
        if self.pid:
            os.close(tell)
            os.close(hear)
            return
        try:
            terminated.heed_no_longer()
            self.close()
            global _parent  # noqa: PLW0603 - of the child, which does nothing but this work
            _parent = tell, _Lines(hear)
            _tell(tell, _answer_of(partial(_work_of, parent, guards_lun, work)))
        finally:
            os._exit(0)  # the parent's finally blocks and exit handlers must not run in the child

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the process has ended

    def tell(self, answer: Dict[str, Any]) -> None:
        """Answer a question of the work."""
        try:
            _tell(self.orders, json.dumps(answer).encode("ascii"))
        except BrokenPipeError:
            pass  # the child has ended; its other pipe reports the end

    def close(self) -> None:
        """Close the pipes."""
        os.close(self.answers)
        os.close(self.orders)


def _work_of(parent: int, guards_lun: bool, work: Callable[[], Any]) -> Any:
    """In a child: let go of all that is the parent's but the locks of LUNs, then do the work and return its result."""
    flock.close_inherited(but_lun=guards_lun)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the caller's
        os.dup2(nothing, descriptor)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with terminated.quietly("limiting the memory of the work on a LUN"):
        _limit_memory()
    if os.getppid() != parent:  # the parent has ended before the call
        os._exit(0)
    return work()


def _limit_memory() -> None:
    """In a child: take at most MOST_MEMORY_BYTES more, and end before other programs of the host do."""
    threading.stack_size(_STACK_BYTES)
    with open("/proc/self/statm", "rb") as statm:  # pages; the sixth number: data and stack
        present = number(words_in(statm.read().decode("ascii"))[5]) * resource.getpagesize()
    limits = [limit for limit in resource.getrlimit(resource.RLIMIT_DATA) if limit != resource.RLIM_INFINITY]
    most = min([present + MOST_MEMORY_BYTES, *limits])
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with open("/proc/self/oom_score_adj", "wb") as adjustment:
        adjustment.write(_FIRST_TO_END)


def run_in_child(
    work: Callable[[Begin], Any],
    deadline: Deadline,
    what: str,
    only_reads: bool = False,
    calls: Sequence[Call] = (),
    grace_seconds: float = 0.0,
) -> Any:
    """Run `work` in a child process and return its result, a value of JSON. `work` calls its argument before it writes.

    From then on `work` calls the argument at least each BATCH_SECONDS, or is given up.

    `what` is the step that did not happen by the deadline, such as "the LUN was read". A child with `only_reads` keeps
    no locks of this process. Any other child keeps the locks of LUNs: its hanging write may complete after this process
    has ended. `calls` are the functions that the work passes to `in_call` and `ask_parent`.

    The waits of `work` itself may end at the same deadline. Such work gets `grace_seconds` more, to clean up and to say
    for what it has waited. A child that lives longer computes, or hangs.

    - Refused: the kernel starts no process.
    - OutOfTime: the deadline passed before the first write.
    - Refused: after the first write, `work` was silent for BATCH_SECONDS.
    - RelvmoiscsiError: `work` raised a RelvmoiscsiError; message, key and state are the same.
    - RuntimeError: `work` raised another exception, which the child has logged.
    """
    with in_state(deadline.state, Refused):
        child, begun, locks = _Child(partial(work, _begin), guards_lun=not only_reads), False, ExitStack()
    limit = deadline.for_cleanup(grace_seconds) if grace_seconds else deadline
    try:
        while True:
            line = child.lines.next(Deadline(BATCH_SECONDS + grace_seconds) if begun else limit)
            answer: Dict[str, Any] = {}
            if line is None:
                child.kill()
                if not begun:
                    raise deadline.over(what)
                problem = f"The LUN did not answer for {BATCH_SECONDS:g} seconds in the middle of the work."
                raise Refused(problem, OutOfTime.sm_key).in_state(_MAYBE_BEGUN).advising(_CALL_AGAIN)
            if line == _MAY_I_WRITE:
                if not begun and deadline.has_passed:
                    child.tell({"yes": False})
                    raise deadline.over("the first write to the LUN")
                terminated.heed_no_longer()
                begun, answer = True, {"yes": True}
            elif line == _UNLOCK:
                locks.close()
            elif line.startswith(_CALL):
                name, values = json.loads(line[len(_CALL) :].decode("ascii"))
                try:
                    held = {each.__name__: each for each in calls}[name](*values)
                    if held is not None:
                        locks.enter_context(held)
                except RelvmoiscsiError as error:
                    answer = _as_json(error)
            else:
                return _result(line, begun, deadline.state)
            child.tell(answer)
    except terminated.Terminated:
        child.kill()
        raise
    finally:
        child.close()
        _reap([child.pid])
        if begun and child.pid in _given_up:  # the child still writes
            flock.hand_over_to_child()
        locks.close()


def _answer_of(work: Callable[[], Any]) -> bytes:
    """In a child: do the work and return its answer, a line for the parent."""
    try:
        answer = {"value": work()}
    except RelvmoiscsiError as error:
        answer = _as_json(error)
    except _Stop:
        answer = {}  # the parent does not read the answer
    except MemoryError:
        return b'{"memory":null}'  # made without memory: the error still has that of the work
    except BaseException as error:
        log.exception("a bug in the work on a device")
        answer = {"bug": cut(repr(error))}
    line = json.dumps(answer).encode("ascii")
    if len(line) > _MOST_ANSWER_BYTES:
        problem = f"The work on the LUN found {len(line)} bytes, at most {_MOST_ANSWER_BYTES} are read."
        refused = Refused(problem, "SMGeneral").advising("Check who writes to the LUN: an SR has less.")
        line = json.dumps(_as_json(refused)).encode("ascii")
    return line


def _as_json(error: RelvmoiscsiError) -> Dict[str, Any]:
    """Return an error for the other process. A LUN may have chosen words of any length, so each text is cut."""
    texts = {"advice": cut(error.advice), "state": cut(error.disk_state)}
    return {"error": [cut(error.message), error.sm_key], **texts}


def run_parallel(
    works: Sequence[Callable[[], Any]],
    deadline: Deadline,
    what: str,
    at_once: int = _AT_ONCE,
    seconds: float = math.inf,
) -> List[Outcome]:
    """Run each work in a child process, all at the same time. Return a result or an error for each, in order.

    Work that missed the deadline, or took more than `seconds`, is given up; its error is OutOfTime. `what` is the step
    that did not happen. At most `at_once` children run at a time; none starts after the deadline. The children keep no
    locks of this process: if this process is killed, its locks are free even if a child hangs.

    Fewer children run where this process can open fewer files. Raises Refused, as `reserve`, and if the kernel starts
    no process.
    """
    at_once = min(at_once, reserve() // _FILES_OF_CHILD)
    outcomes: Dict[int, Outcome] = {}
    waiting = list(range(len(works)))
    # by the descriptor of the answers: the index of the work, and when the child is given up
    running: Dict[int, Tuple[int, _Child, Deadline]] = {}
    ended: List[int] = []
    poll = select.poll()
    try:
        while True:
            while waiting and len(running) < at_once and not deadline.has_passed:
                with in_state(deadline.state, Refused):
                    child = _Child(works[waiting[0]], guards_lun=False)
                limit = deadline if seconds == math.inf else deadline.part(seconds)
                running[child.answers] = waiting.pop(0), child, limit
                poll.register(child.answers, select.POLLIN)
            if not running:
                break
            with terminated.waiting():
                left = min(limit.left for _number, _child, limit in running.values())
                ready = {descriptor for descriptor, _ in poll.poll(min(_LONGEST_POLL, left * 1000))}
            if not ready and deadline.has_passed:
                break
            late = {one for one, (_number, _child, limit) in running.items() if limit.has_passed}
            for descriptor in ready | late:
                number, child, limit = running.pop(descriptor)
                poll.unregister(descriptor)
                ended.append(child.pid)
                try:
                    line = child.lines.next(limit)
                    if line is None:  # no answer, or the child was stopped in the middle of its answer
                        child.kill()
                        outcomes[number] = limit.over(what)
                    else:
                        outcomes[number] = _result(line, begun=False, state=deadline.state)
                except RelvmoiscsiError as error:
                    outcomes[number] = error
                finally:
                    child.close()
    finally:
        for _number, child, _limit in running.values():  # kill all, before any is waited for
            child.kill()
            child.close()
            ended.append(child.pid)
        _reap(ended)
    return [outcomes[number] if number in outcomes else deadline.over(what) for number in range(len(works))]


def _tell(descriptor: int, line: bytes) -> None:
    data = line + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _result(line: bytes, begun: bool, state: str) -> Any:
    answer = json.loads(line.decode("ascii")) if line else {}
    if "value" in answer:
        return answer["value"]
    if "error" in answer:
        error = RelvmoiscsiError(*answer["error"]).advising(answer["advice"])
        is_unknown = begun and not answer["state"]
        raise error.in_state(_MAYBE_BEGUN if is_unknown else answer["state"]).advising(
            _CALL_AGAIN if is_unknown else ""
        )
    if "bug" in answer:
        raise RuntimeError(answer["bug"])
    problem, again = "The process that worked on the LUN was ended from outside.", "" if state else "Repeat the call."
    if "memory" in answer:
        most = f"{MOST_MEMORY_BYTES >> 20} MiB"
        problem = f"The work on the LUN needs more memory than this host gives it, which is {most} at most."
        again = "Check who writes to the LUN: an SR needs less."
    refused = Refused(problem, "SMGeneral").in_state(_MAYBE_BEGUN if begun else state)
    raise refused.advising(_CALL_AGAIN if begun else again)


def _reap(pids: Sequence[int]) -> None:
    """Reap these children. After a second, give up the children that the kernel still holds; init reaps them."""
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
    except ChildProcessError:  # the child was reaped elsewhere: by the kernel, if SIGCHLD is ignored
        return True
