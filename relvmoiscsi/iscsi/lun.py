# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN over sessions that may be lost. No I/O of its own.

A session is lost with its connection. Then comes a new one with the same ISID, for which the target ends the old one,
and before anything else

    look     is it the same LUN, as large as before? A unit attention is followed by the same look
    fence    LOGICAL UNIT RESET, once on a session that writes: it ends what the target still has of writes of a
             session in another portal group, which the new one does not replace, or of a call on another host
    repeat   all writes since the last flush, batch by batch: a target that has lost its power has lost what it had
             acknowledged. They are kept for that, 64 MiB at most, and there is a flush in between where they are more

and what is left of the batch that was under way: all of its writes, and the reads that were not answered.

An array may put another LUN in the place of this one at any time, and not every target tells of it by a unit attention.
So a batch of writes begins with the question for SCSIid and serial number, and each batch, of reads as well, ends with
it. And the first write of a batch goes alone: where a unit attention answers it, none of those behind it has been sent.
"""

import errno
import logging
from typing import List, NamedTuple, Optional, Sequence

from relvmoiscsi.deadline import OutOfTime
from relvmoiscsi.errors import DeviceError, Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import looking, scsi
from relvmoiscsi.iscsi.carrier import Carrier, Way
from relvmoiscsi.iscsi.faults import Lost, Violation
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.scsi import Verdict
from relvmoiscsi.iscsi.session import Command, Task

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
MAX_VIOLATIONS = 3  #: in a row; what is lost otherwise is repeated until the deadline
READ, WRITE, FLUSH = "read", "write", "flush"

_RESET_DONE = 0


class Operation(NamedTuple):
    """One command of a batch, and where on the LUN it is; the operations of a batch have one action."""

    action: str
    offset: int
    length: int
    command: Command


class Lun:
    """The LUN that `info` speaks of; `carrier` is a session over which it was looked at."""

    def __init__(self, way: Way, carrier: Carrier, info: LunInfo, name: str) -> None:
        self.info, self.name = info, name
        self._way = way
        self._carrier: Optional[Carrier] = carrier
        self._is_known = True  # looked at, and nothing has happened since
        self._is_asked = self._is_sure = False  # of the batch: the LUN has said its name; the first write was taken
        self._fenced: Optional[Carrier] = None  # behind which no late write can come any more
        self._unflushed: List[List[Operation]] = []
        self._unflushed_bytes = 0
        self._to_repeat: List[List[Operation]] = []
        self._epoch = 0  # grows when all since the last flush is to be repeated
        self._losses = self._violations = self._attentions = 0

    def read(self, operations: Sequence[Operation]) -> None:
        """Return once all are done. Raises DeviceError, and Refused when it is another LUN, or reserved."""
        self._run(operations)

    def write(self, operations: Sequence[Operation]) -> None:
        """Return once the target has taken all. Their data must not change before the next flush.

        Raises as `read` does, and Refused when the LUN is read-only.
        """
        for batch in _batches(operations):
            size = sum(operation.length for operation in batch)
            if self._unflushed_bytes + size > KEPT_BYTES:
                self.flush()
            self._run(batch)
            self._unflushed.append(batch)
            self._unflushed_bytes += size

    def flush(self) -> None:
        """Return once everything written is durable, on the LUN that was opened. Raises as `read` does."""
        self._run([Operation(FLUSH, 0, 0, Command(self.info.lun, scsi.synchronize_cache()))])
        self._unflushed, self._unflushed_bytes = [], 0

    def fence(self) -> None:
        """Return once no write of a session before this one can come any more. Raises as `read` does.

        Who does not call it has the same before the first write, and may have read what such a write changes later.
        """
        self._run([Operation(WRITE, 0, 0, Command(self.info.lun, scsi.test_unit_ready()))])

    def pump(self) -> None:
        """Answer what the target has asked meanwhile; for who thinks or waits for long."""
        if self._carrier is not None:
            self._carrier.pump()

    def close(self) -> None:
        """Log out. Does nothing the second time."""
        self._drop(politely=True)

    # --- a batch

    def _run(self, operations: Sequence[Operation]) -> None:
        left, epoch = list(operations), self._epoch
        self._is_asked = self._is_sure = False
        while left:
            try:
                carrier = self._ready(left[0].action == WRITE)
                if self._epoch != epoch and left[0].action == WRITE:  # what was answered may be lost
                    left = list(operations)
                epoch = self._epoch
                self._attempt(carrier, left)
            except Lost as lost:
                self._note_loss(lost, (left or operations)[0])
                if operations[0].action == WRITE:  # what was answered may be lost
                    left = list(operations)
            except OutOfTime as over:
                self._drop(politely=False)
                problem = self._failure((left or operations)[0], over.message.rstrip("."), errno.ETIMEDOUT)
                problem.sm_key = OutOfTime.sm_key
                raise problem from over
        self._losses = self._violations = self._attentions = 0

    def _ready(self, writes: bool) -> Carrier:
        """A session on which the LUN is known, fenced where it is written, and has all since the last flush."""
        while True:
            carrier = self._connected()
            if not self._is_known:
                self._look(carrier)
            elif (writes or self._to_repeat) and self._fenced is not carrier:
                self._fence(carrier)
            elif (writes or self._to_repeat) and not self._is_asked:
                self._ask(carrier)
            elif self._to_repeat:
                batch = self._to_repeat[0]
                self._attempt(carrier, batch)
                if not batch and self._to_repeat and self._to_repeat[0] is batch:
                    del self._to_repeat[0]
            else:
                return carrier

    def _connected(self) -> Carrier:
        if self._carrier is not None and self._carrier.session.wants_end:
            log.info("%s: the target asked for a logout", self.name)
            self._drop(politely=True)
        if self._carrier is None:
            self._carrier = self._way.again(self._losses)
            self._start_over()
        return self._carrier

    def _attempt(self, carrier: Carrier, left: List[Operation]) -> None:
        """Carry out a batch, or its first write; those that are done are taken off it.

        What an operation that failed asks for is heeded.
        """
        now = left[:1] if left[0].action == WRITE and not self._is_sure else list(left)
        names = looking.asking_names(self.info.lun)
        tasks = carrier.session.start([*(operation.command for operation in now), *names])
        whole = list(zip(now, tasks))
        try:
            carrier.wait(lambda: carrier.session.is_idle, f"the {left[0].action} of {self.name}")
        except BaseException:
            self._drop(politely=False)  # or what is still under way would fill memory that is read already
            raise
        finally:
            left[: len(now)] = [operation for operation, task in whole if not self._is_done(operation, task)]
        self._is_sure = True
        self._compare(carrier, tasks[len(now) :])
        failed = [pair for pair in whole if pair[1].is_done and not self._is_done(*pair)]
        if failed:
            self._heed(carrier, *max(failed, key=lambda pair: self._verdict(*pair).value))

    def _is_done(self, operation: Operation, task: Task) -> bool:
        return task.is_done and self._verdict(operation, task) == Verdict.DONE

    def _verdict(self, operation: Operation, task: Task) -> Verdict:
        verdict = scsi.judge(task.status, task.sense)
        if operation.action == FLUSH and verdict == Verdict.UNSUPPORTED:
            return Verdict.DONE  # it writes through
        return Verdict.FAILED if verdict == Verdict.DONE and task.is_short else verdict

    def _heed(self, carrier: Carrier, operation: Operation, task: Task) -> None:
        """Do what a command that was not carried out asks for, or raise what it means."""
        verdict, reason = self._verdict(operation, task), scsi.reason(task.status, task.sense)
        if verdict == Verdict.LATER:
            carrier.session.depth = max(1, carrier.session.depth // 2)
            carrier.pause(looking.PAUSE_SECONDS)
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
        return self._failure(operation, reason, errno.ENODATA if is_medium else errno.EIO)

    def _failure(self, operation: Operation, reason: str, number: int) -> DeviceError:
        return DeviceError(self.name, operation.action, operation.offset, operation.length, reason, number)

    # --- a session

    def _start_over(self) -> None:
        """Nothing is known of the LUN any more."""
        self._is_known = False
        self._to_repeat = [list(batch) for batch in self._unflushed]
        self._epoch += 1

    def _drop(self, politely: bool) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close(politely)

    def _note_loss(self, lost: Lost, operation: Operation) -> None:
        log.info("%s: %s", self.name, lost)
        self._drop(politely=False)
        self._start_over()
        self._losses += 1
        self._violations = self._violations + 1 if isinstance(lost, Violation) else 0
        if self._violations >= MAX_VIOLATIONS:
            reason = f"the target breaks the protocol, {MAX_VIOLATIONS} times in a row. {lost.message}".rstrip(".")
            raise self._failure(operation, reason, errno.EIO) from lost

    def _move(self, reason: str) -> None:
        log.info("%s: this portal has no way to it: %s", self.name, reason)
        if not self._way.move():
            raise no_way(self.name, reason)
        self._drop(politely=True)
        self._start_over()

    def _look(self, carrier: Carrier) -> None:
        """Is it still the same LUN? Raises Refused when it is not."""
        (one,) = looking.look(carrier, [self.info.lun])
        now, was = one.info, self.info
        if not one.is_disk or one.verdict == Verdict.UNMAPPED:
            raise self._gone()
        if one.verdict == Verdict.LATER:  # until the deadline
            return
        if one.verdict == Verdict.ELSEWHERE:
            self._move(now.problem)
            return
        if now.scsi_id is None and now.problem:
            raise self._unusable(now)
        if (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            what = now.scsi_id if now.scsi_id != was.scsi_id else f"one with the serial number {now.serial!r}"
            raise Refused(
                f"The LUN {was.scsi_id} is {what} now: the array has mapped another one in its place. Check the "
                "mapping at the array.",
                "ISCSIDevice",
            )
        if one.verdict != Verdict.DONE:
            raise self._unusable(now)
        self._compare_size(now)
        self._is_known = self._is_asked = True

    def _ask(self, carrier: Carrier) -> None:
        """Is it still the same LUN? Raises Refused when it is not."""
        self._is_asked = True
        self._compare(carrier, looking.read(carrier, looking.asking_names(self.info.lun), f"the name of {self.name}"))

    def _compare(self, carrier: Carrier, tasks: Sequence[Task]) -> None:
        now, was = looking.name_of(self.info.lun, tasks).info, self.info
        if (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            self._is_known = False  # until a look, which may find it busy, has said what has become of it
            self._look(carrier)

    def _unusable(self, now: LunInfo) -> Refused:
        return Refused(f"{self.name} cannot be used any more: {now.problem}.", "ISCSIDevice")

    def _compare_size(self, now: LunInfo) -> None:
        was = self.info
        if (now.size_bytes, now.block_size) != (was.size_bytes, was.block_size):
            raise Refused(
                f"{self.name} had {was.size_bytes} bytes in blocks of {was.block_size}, and has {now.size_bytes} bytes "
                f"in blocks of {now.block_size} now. Try again when nobody changes its size.",
                "ISCSIDevice",
            )

    def _gone(self) -> Refused:
        problem = "{}: the target does not show the LUN {} any more. Check the mapping at the array."
        return Refused(problem.format(self.name, self.info.scsi_id), "ISCSIDevice")

    def _fence(self, carrier: Carrier) -> None:
        """See that no write of a session before this one can come any more."""
        carrier.session.reset_lun(self.info.lun)
        carrier.wait(lambda: carrier.session.reset_response is not None, f"the reset of {self.name}")
        response = carrier.session.reset_response
        if response != _RESET_DONE:
            log.warning("%s: the target does not reset the LUN (response %s)", self.name, response)
        self._is_known = False  # a unit attention tells of the reset
        self._fenced = carrier


def _batches(operations: Sequence[Operation]) -> List[List[Operation]]:
    """The operations in order, cut so that no batch has more than is kept."""
    found: List[List[Operation]] = []
    size = 0
    for operation in operations:
        size += operation.length
        if not found or size > KEPT_BYTES:
            found.append([])
            size = operation.length
        found[-1].append(operation)
    return found


def reserved(name: str) -> Refused:
    return Refused(
        f"{name} is reserved by another host (a SCSI reservation). End what uses it there, or have the array clear the "
        "reservation of the clone.",
        "SRInUse",
    )


def read_only(name: str) -> Refused:
    return Refused(f"{name} is read-only: the array maps it so, or replicates to it. Make it writable first.")


def no_way(name: str, reason: str) -> Refused:
    return Refused(
        f"No portal of the target has a way to {name} now: {reason}. Give the portals of the controller that owns the "
        "LUN, or wait until the array has failed over.",
        "ISCSIDevice",
    )
