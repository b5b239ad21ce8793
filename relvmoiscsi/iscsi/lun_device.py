# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN as a device of the engine, over sessions that may be lost. No I/O of its own.

A session is lost with its connection. The next session has the same ISID, so the target ends the lost session. Before
anything else comes

    look     Is it the same LUN, and as large as before? A unit attention is followed by the same look.
    reset    LOGICAL UNIT RESET, once on a session that writes. The reset ends late writes of a session in another
             portal group, which the new session does not replace, and of a call on another host.
    repeat   All writes since the last flush, batch by batch: a target that lost its power lost what it had
             acknowledged. 64 MiB of writes are kept for that; a flush comes before more are kept.

and what remains of the batch that was under way: all of its writes, and the reads without an answer.

An array may put another LUN in the place of this LUN at any time, and some targets do not tell of it by a unit
attention. So a batch of writes begins with the question for SCSIid and serial number, and each batch, of reads as well,
ends with that question. The first write of a batch goes alone: where a unit attention answers it, none of the other
writes has been sent.

Nobody reads the socket between batches. A target that pings meanwhile, and ends the session for want of an answer,
costs a new session.
"""

import errno
import logging
from typing import List, NamedTuple, Optional, Sequence

from relvmoiscsi.deadline import OutOfTime
from relvmoiscsi.device import (
    Chunk,
    Device,
    Range,
    cut_out,
    pieces_of,
    runs_of,
    spans_of,
    verify_readable,
    verify_writable,
)
from relvmoiscsi.errors import DeviceError, Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import looking, scsi
from relvmoiscsi.iscsi.faults import Lost, Violation
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.scsi import Verdict
from relvmoiscsi.iscsi.session import Command, Task
from relvmoiscsi.iscsi.target_sessions import TargetSessions

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
MAX_VIOLATIONS = 3  #: in a row; a session that is lost otherwise is made anew until the deadline
READ, WRITE, FLUSH = "read", "write", "flush"

_RESET_DONE = 0


class Operation(NamedTuple):
    """One command of a batch, and its place on the LUN."""

    offset: int
    length: int
    command: Command


class LunDevice(Device):
    """Reads and writes in blocks, each batch at once.

    Errors are DeviceError, and Refused where the LUN is another one now, is reserved or read-only: after a write each
    of them comes as the engine expects it.
    """

    def __init__(
        self,
        sessions: TargetSessions,
        link: Link,
        info: LunInfo,
        name: str,
        writable: bool,
        copy_limit_bytes: Optional[int] = None,
    ) -> None:
        """`link` is a session on which the LUN gave `info`."""
        self.info, self.name, self.writable = info, name, writable
        self.size_bytes, self.block_size = info.size_bytes, info.block_size
        self.physical_block_size = info.physical_block_size
        #: more should not be copied: the target demands digests, and the kernel has no CRC32C
        self.copy_limit_bytes = copy_limit_bytes
        self._sessions = sessions
        self._link: Optional[Link] = link
        self._is_known = True  # looked at, and nothing has happened since
        self._reset_on: Optional[Link] = None  # the session since whose reset no late write can come
        self._unflushed: List[List[Operation]] = []
        self._to_repeat: List[List[Operation]] = []
        self._action = READ  # of the batch that is under way
        self._batch: Sequence[Operation] = ()
        self._rest: List[Operation] = []
        self._is_asked = self._is_sure = False  # of the batch: the LUN has said its name; the first write was taken
        self._losses = self._violations = self._attentions = 0

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        for wanted in ranges:
            verify_readable(self, wanted)
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        buffers = [memoryview(bytearray(span.length)) for span in spans]
        operations = []
        for span, buffer in zip(spans, buffers):
            for piece in pieces_of(span.length):
                place = Range(span.offset + piece.offset, piece.length)
                command = Command(self.info.lun, scsi.read(*self._blocks(place)), into=buffer[piece.offset : piece.end])
                operations.append(Operation(place.offset, place.length, command))
        self._run(READ, operations)
        starts = [span.offset for span in spans]
        return [cut_out(wanted, starts, buffers) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            verify_writable(self, chunk, self.writable)
        operations = []
        for run in runs_of(chunks):
            data = memoryview(b"".join([chunk.data for chunk in run]))
            for piece in pieces_of(len(data)):
                place = Range(run[0].offset + piece.offset, piece.length)
                command = Command(self.info.lun, scsi.write(*self._blocks(place)), data=data[piece.offset : piece.end])
                operations.append(Operation(place.offset, place.length, command))
        for batch in _batches(operations):
            if sum(map(_bytes_of, [*self._unflushed, batch])) > KEPT_BYTES:
                self.flush()
            self._run(WRITE, batch)
            self._unflushed.append(batch)

    def flush(self) -> None:
        self._run(FLUSH, [Operation(0, 0, Command(self.info.lun, scsi.synchronize_cache()))])
        self._unflushed = []

    def end_late_writes(self) -> None:
        """Return once no write of an earlier session can come any more. Raises as `write` does.

        A caller that reads before it writes calls this: a late write could change what was read.
        """
        self._run(WRITE, [])

    def close(self) -> None:
        """Log out. Does nothing the second time."""
        self._drop(politely=True)

    def _blocks(self, place: Range) -> Sequence[int]:
        return place.offset // self.block_size, place.length // self.block_size

    # --- a batch

    def _run(self, action: str, batch: Sequence[Operation]) -> None:
        """Carry out a batch over as many sessions as that takes."""
        self._action, self._batch, self._rest = action, batch, list(batch)
        self._is_asked = self._is_sure = False
        while True:
            try:
                link = self._ready()
                if self._rest:
                    self._attempt(link, self._rest)
                if not self._rest and self._is_known:
                    break
            except Lost as lost:
                self._note_loss(lost)
            except OutOfTime as over:
                self._drop(politely=False)
                problem = self._failure(over.message.rstrip("."), errno.ETIMEDOUT)
                problem.sm_key = OutOfTime.sm_key
                raise problem from over
        self._losses = self._violations = self._attentions = 0

    def _ready(self) -> Link:
        """A session on which the LUN is known, reset where it is written, and has all since the last flush."""
        while True:
            link, writes = self._connected(), self._action == WRITE or bool(self._to_repeat)
            if not self._is_known:
                self._look(link)
            elif writes and self._reset_on is not link:
                self._reset(link)
            elif writes and not self._is_asked:
                self._is_asked = True
                asked = looking.asking_names(self.info.lun)
                self._compare(link, looking.read(link, asked, f"the name of {self.name}"))
            elif self._to_repeat:
                batch = self._to_repeat[0]
                self._attempt(link, batch)
                if not batch and self._to_repeat and self._to_repeat[0] is batch:
                    del self._to_repeat[0]
            else:
                return link

    def _connected(self) -> Link:
        if self._link is not None and self._link.session.wants_end:
            log.info("%s: the target asked for a logout", self.name)
            self._drop(politely=True)
        if self._link is None:
            self._link = self._sessions.log_in_again(self._losses)
            self._start_over()
        return self._link

    def _attempt(self, link: Link, rest: List[Operation]) -> None:
        """Carry out operations, or the first write alone; what is done leaves `rest`. A failed operation is heeded."""
        is_first_write = bool(rest[0].command.data) and not self._is_sure
        now = rest[:1] if is_first_write else list(rest)
        names = looking.asking_names(self.info.lun)
        tasks = link.session.start([*(operation.command for operation in now), *names])
        whole = list(zip(now, tasks))
        try:
            link.wait(lambda: link.session.is_idle, f"the {self._action} of {self.name}")
        except BaseException:
            self._drop(politely=False)  # or what is still under way would fill memory that is read already
            raise
        finally:
            rest[: len(now)] = [operation for operation, task in whole if not _is_done(task)]
        self._is_sure = True
        self._compare(link, tasks[len(now) :])
        failed = [pair for pair in whole if pair[1].is_done and not _is_done(pair[1])]
        if failed:
            self._heed(link, *max(failed, key=lambda pair: _verdict(pair[1]).value))

    def _heed(self, link: Link, operation: Operation, task: Task) -> None:
        """Do what a command that was not carried out asks for, or raise what it means."""
        verdict, reason = _verdict(task), scsi.reason(task.status, task.sense)
        if verdict == Verdict.LATER:
            link.session.depth = max(1, link.session.depth // 2)
            link.pause(looking.PAUSE_SECONDS)
        elif verdict == Verdict.LOOK_AGAIN and self._attentions < looking.TRIES:
            log.info("%s: %s", self.name, reason)
            self._attentions += 1
            self._start_over()
        elif verdict == Verdict.ELSEWHERE:
            self._move(reason)
        else:
            raise self._error(operation, task, verdict, reason)

    def _error(self, operation: Operation, task: Task, verdict: Verdict, reason: str) -> RelvmoiscsiError:
        if verdict == Verdict.RESERVED:
            return reserved(self.name)
        if verdict == Verdict.READ_ONLY:
            return read_only(self.name)
        if verdict == Verdict.UNMAPPED:
            return self._gone()
        if task.is_short and scsi.judge(task.status, task.sense) == Verdict.DONE:
            reason = f"the target moved {task.moved} of {operation.length} bytes and calls that good"
        is_medium = task.status and scsi.parse_sense(task.sense).key == scsi.MEDIUM_ERROR
        return self._failure(reason, errno.ENODATA if is_medium else errno.EIO, operation)

    def _failure(self, reason: str, number: int, operation: Optional[Operation] = None) -> DeviceError:
        nothing = Operation(0, 0, Command(self.info.lun, b""))
        at = operation if operation is not None else [*self._rest, *self._batch, nothing][0]
        return DeviceError(self.name, self._action, at.offset, at.length, reason, number)

    # --- a session

    def _start_over(self) -> None:
        """Nothing is known of the LUN any more, and what was answered since the last flush may be lost."""
        self._is_known = False
        self._to_repeat = [list(batch) for batch in self._unflushed]
        if self._action != READ:
            self._rest = list(self._batch)

    def _drop(self, politely: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(politely)

    def _note_loss(self, lost: Lost) -> None:
        log.info("%s: %s", self.name, lost)
        self._drop(politely=False)
        self._start_over()
        self._losses += 1
        self._violations = self._violations + 1 if isinstance(lost, Violation) else 0
        if self._violations >= MAX_VIOLATIONS:
            reason = f"the target broke the protocol {MAX_VIOLATIONS} times in a row. {lost.message}".rstrip(".")
            raise self._failure(reason, errno.EIO) from lost

    def _move(self, reason: str) -> None:
        log.info("%s: this portal has no path to it: %s", self.name, reason)
        if not self._sessions.next_portal():
            raise no_path(self.name, reason)
        self._drop(politely=True)
        self._start_over()

    def _look(self, link: Link) -> None:
        """Is it still the same LUN? Raises Refused when it is not."""
        (one,) = looking.look(link, [self.info.lun])
        now, was = one.info, self.info
        if not one.is_disk or one.verdict == Verdict.UNMAPPED:
            raise self._gone()
        if one.verdict == Verdict.LATER:  # until the deadline
            return
        if one.verdict == Verdict.ELSEWHERE:
            self._move(now.problem)
            return
        is_named = now.scsi_id is not None or not now.problem
        if is_named and (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            what = now.scsi_id if now.scsi_id != was.scsi_id else f"a LUN with the serial number {now.serial!r}"
            raise Refused(
                f"The LUN {was.scsi_id} is {what} now: the array has mapped another LUN in its place. Check the "
                "mapping at the array.",
                "ISCSIDevice",
            )
        if one.verdict != Verdict.DONE:
            raise Refused(
                f"{self.name} cannot be used any more: {now.problem}. Check the LUN at the array.", "ISCSIDevice"
            )
        if (now.size_bytes, now.block_size) != (was.size_bytes, was.block_size):
            raise Refused(
                f"{self.name} had {was.size_bytes} bytes in blocks of {was.block_size}, and has {now.size_bytes} bytes "
                f"in blocks of {now.block_size} now. Try again when nobody changes its size.",
                "ISCSIDevice",
            )
        self._is_known = self._is_asked = True

    def _compare(self, link: Link, tasks: Sequence[Task]) -> None:
        """Is it still the same LUN? `tasks` asked for its name. Raises Refused when it is not."""
        now, was = looking.name_of(self.info.lun, tasks).info, self.info
        if (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            self._is_known = False  # until a look, which may find it busy, has said what has become of it
            self._look(link)

    def _gone(self) -> Refused:
        problem = "{}: the target does not show the LUN {} any more. Check the mapping at the array."
        return Refused(problem.format(self.name, self.info.scsi_id), "ISCSIDevice")

    def _reset(self, link: Link) -> None:
        """Raises Refused where the target does not reset the LUN: late writes could change what this session writes."""
        link.session.reset_lun(self.info.lun)
        link.wait(lambda: link.session.reset_response is not None, f"the reset of {self.name}")
        response = link.session.reset_response
        if response != _RESET_DONE:
            raise Refused(
                f"The target does not reset {self.name} (LUN RESET, response {response}): late writes of an earlier "
                "session could still arrive. Log in with iscsiadm and give the block device to the command.",
                "ISCSIDevice",
            )
        self._is_known = False  # a unit attention tells of the reset
        self._reset_on = link


def _is_done(task: Task) -> bool:
    return task.is_done and _verdict(task) == Verdict.DONE


def _verdict(task: Task) -> Verdict:
    verdict = scsi.judge(task.status, task.sense)
    if verdict == Verdict.UNSUPPORTED and task.command.cdb == scsi.synchronize_cache():
        return Verdict.DONE  # the LUN writes through
    return Verdict.FAILED if verdict == Verdict.DONE and task.is_short else verdict


def _bytes_of(batch: Sequence[Operation]) -> int:
    return sum(operation.length for operation in batch)


def _batches(operations: Sequence[Operation]) -> List[List[Operation]]:
    """The operations in order, cut so that no batch has more than is kept."""
    found: List[List[Operation]] = []
    for operation in operations:
        if not found or _bytes_of(found[-1]) + operation.length > KEPT_BYTES:
            found.append([])
        found[-1].append(operation)
    return found


def reserved(name: str) -> Refused:
    return Refused(
        f"{name} is reserved by another host (a SCSI reservation). End what uses the LUN there, or have the array "
        "clear the reservation of the clone.",
        "SRInUse",
    )


def read_only(name: str) -> Refused:
    return Refused(
        f"{name} is read-only: the array maps the LUN read-only, or replicates to it. Make the LUN writable first."
    )


def no_path(name: str, reason: str) -> Refused:
    return Refused(
        f"No portal of the target has a path to {name} now: {reason}. Give the portals of the controller that owns the "
        "LUN, or wait until the array has failed over.",
        "ISCSIDevice",
    )
