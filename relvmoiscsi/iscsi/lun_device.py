# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN as a device of the engine, over sessions that may be lost. This module does no I/O.

When a connection is lost, its session is lost. The next session has the same ISID, so the target ends the lost session.
On a new session, these steps come first:

    look     Check that the LUN is the same, and no smaller. The same look follows each unit attention.
    fence    Before a write or a repeat, read the places of `Device.fence`. A run that was overtaken ends here: it
             neither writes nor resets the LUN of another run.
    reset    Send LOGICAL UNIT RESET, once on a session that writes. The reset ends the commands that the target has
             received in other sessions: of this host in another portal group, and of other hosts.
    repeat   Repeat all writes since the last flush, batch by batch: a target without power loses acknowledged writes.
             The device keeps up to 64 MiB of writes for this, and flushes before it would keep more.

Then come the rest of the interrupted batch: all its writes, or the reads without an answer.

At any time, an array may map another LUN in the place of this LUN, or make this LUN smaller. Some targets send no unit
attention for this. So the device reads SCSIid, serial number and size before each batch of writes, and with each
attempt, also of reads, and with each flush. An attempt has at most 4 MiB of writes. At a slow target, the attempt has
fewer bytes, so that the attempt ends within the lease. The first write of a batch goes alone. If the target answers
that write with a unit attention, no other write was sent. The places of the fence are read together with the names.

Between batches, this side does not read the socket. A target that sends a ping meanwhile may end the session, and the
next batch needs a new session.
"""

import errno
import logging
import math
from typing import List, Optional, Sequence

from relvmoiscsi import scsi
from relvmoiscsi.deadline import OutOfTime
from relvmoiscsi.device import (
    Chunk,
    Device,
    Fence,
    Range,
    cut_out,
    pieces_of,
    runs_of,
    spans_of,
    verify_readable,
    verify_size,
    verify_writable,
)
from relvmoiscsi.errors import DeviceError, Lost, Overtaken, Refused
from relvmoiscsi.iscsi import looking
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.session import Command, Task
from relvmoiscsi.iscsi.target_sessions import TargetSessions
from relvmoiscsi.scsi import Verdict
from relvmoiscsi.wording import human_size

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
ATTEMPT_BYTES = 4 * 1024 * 1024  #: of writes, between two looks at names and fence
LEASE_PART = 4  #: an attempt should take a part of the lease, and begins while as much of the lease is left
MAX_VIOLATIONS = 3  #: in a row. After other losses, new sessions are made until the deadline
READ, WRITE, FLUSH = "read", "write", "flush"

_RESET_DONE = 0


class Questions:
    """What is asked beside the commands of an attempt, or alone: name and size of the LUN, and the fence's places."""

    def __init__(self, names: List[Command], size: Command, places: List[Command], begun: float) -> None:
        self.names, self.places = names, places
        self.all = [*names, size, *places]
        self.begun = begun  #: on the clock of the fence, before the questions are sent


class LunDevice(Device):
    """Reads and writes blocks; all commands of a batch run in parallel.

    Errors are DeviceError. Refused means that the LUN is another LUN now, is reserved, or is read-only. The engine
    expects both kinds after a write.
    """

    def __init__(
        self,
        sessions: TargetSessions,
        link: Link,
        info: LunInfo,
        name: str,
        writable: bool,
        copy_limit_bytes: Optional[int] = None,
        fence: Optional[Fence] = None,
    ) -> None:
        """`link` is a session on which the LUN reported `info`. `fence` is for a device that writes.

        `copy_limit_bytes` is for a target that demands digests, where the kernel has no CRC32C.
        """
        self.info, self.name, self.writable = info, name, writable
        self.size_bytes, self.block_size = info.size_bytes, info.block_size
        self.physical_block_size = info.physical_block_size
        self._copy_limit_bytes, self._fence = copy_limit_bytes, fence
        self._sessions = sessions
        self._link: Optional[Link] = link
        self._is_known = True  # a look has succeeded, and no event has happened since
        self._reset_on: Optional[Link] = None  # the session that reset the LUN: no late write can arrive on it
        self._attempt_bytes = ATTEMPT_BYTES  # as many as this target takes in a part of the lease
        self._unflushed: List[List[Command]] = []
        self._to_repeat: List[List[Command]] = []
        self._action = READ  # of the running batch
        self._batch: Sequence[Command] = ()
        self._rest: List[Command] = []
        self._has_looked = False  # at names and fence, in this batch
        self._first_is_answered = False  # the attempt of this batch that has the first write alone
        self._losses = self._violations = self._attentions = 0

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        for wanted in ranges:
            verify_readable(self, wanted)
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        buffers = [memoryview(bytearray(span.length)) for span in spans]
        commands = []
        for span, buffer in zip(spans, buffers):
            for piece in pieces_of(span.length):
                offset = span.offset + piece.offset
                cdb, into = (
                    scsi.transfer(scsi.READ, *self._blocks(offset, piece.length)),
                    buffer[piece.offset : piece.end],
                )
                commands.append(Command(self.info.lun, cdb, into=into, offset=offset))
        self._run(READ, commands)
        starts = [span.offset for span in spans]
        return [cut_out(wanted, starts, buffers) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            verify_writable(self, chunk, self.writable)
        commands = []
        for run in runs_of(chunks):
            data = memoryview(b"".join([chunk.data for chunk in run]))
            for piece in pieces_of(len(data)):
                offset, part = run[0].offset + piece.offset, data[piece.offset : piece.end]
                cdb = scsi.transfer(scsi.WRITE, *self._blocks(offset, piece.length))
                commands.append(Command(self.info.lun, cdb, data=part, offset=offset))
        for batch in _batches(commands, KEPT_BYTES):
            if sum(map(_bytes_of, [*self._unflushed, batch])) > KEPT_BYTES:
                self.flush()
            self._run(WRITE, batch)
            self._unflushed.append(batch)

    def flush(self) -> None:
        self._run(FLUSH, [Command(self.info.lun, scsi.SYNCHRONIZE_CACHE)])
        self._unflushed = []

    def end_late_writes(self, of_another_host: bool = False) -> None:
        """Reset the LUN, unless this session has. `of_another_host`: after that host's lease, and in any case."""
        if of_another_host:
            self._drop(politely=True)  # the target may ask for an answer meanwhile
            self._sessions.wait(Fence.OUTLAST_SECONDS)
        if self._link is None or self._reset_on is not self._link:
            self._run(WRITE, [])

    def verify_copy(self, data_bytes: int) -> None:
        if self._copy_limit_bytes is not None and data_bytes > self._copy_limit_bytes:
            raise Refused(
                f"The target demands digests, and the kernel of this machine has no CRC32C for them: copying "
                f"{human_size(data_bytes)} of guest data would take very long. Allow a login without digests at the "
                "array, or load the kernel module algif_hash."
            )

    def close(self) -> None:
        """Log out. A second call does nothing. A closed device does not log in again."""
        self.is_closed = True
        self._drop(politely=True)

    def _blocks(self, offset: int, length: int) -> Sequence[int]:
        return offset // self.block_size, length // self.block_size

    # --- a batch

    def _run(self, action: str, batch: Sequence[Command]) -> None:
        """Run a batch, over several sessions if sessions are lost."""
        if self.is_closed:
            raise self._failure("the device is closed", errno.EBADF)
        self._action, self._batch, self._rest = action, batch, list(batch)
        self._has_looked = self._first_is_answered = False
        while True:
            try:
                link = self._ready()
                if self._rest:
                    self._attempt(link, self._rest)
                if not self._rest and self._is_known:
                    break
            except Lost as lost:
                log.info("%s: %s", self.name, lost)
                self._drop(politely=False)
                self._start_over()
                self._losses += 1
                self._violations = self._violations + 1 if isinstance(lost, Violation) else 0
                if self._violations >= MAX_VIOLATIONS:
                    problem = f"the target broke the protocol {MAX_VIOLATIONS} times in a row. {lost.message}"
                    raise self._failure(problem.rstrip("."), errno.EIO).advising(lost.advice) from lost
            except OutOfTime as over:
                self._drop(politely=False)
                failure = self._failure(over.message.rstrip("."), errno.ETIMEDOUT)
                failure.sm_key = OutOfTime.sm_key
                raise failure.advising(over.advice) from over
        self._losses = self._violations = self._attentions = 0

    def _ready(self) -> Link:
        """Return a session that is ready for the batch: LUN known, reset before writes, unflushed writes repeated."""
        while True:
            if self._link is not None and self._link.session.wants_end:
                log.info("%s: the target asked for a logout", self.name)
                self._drop(politely=True)
                self._losses += 1  # a target that asks again and again gets a pause, as after any lost session
            if self._link is None:
                self._link = self._sessions.log_in_again(self._losses)
                self._start_over()
            link, writes = self._link, self._action == WRITE or bool(self._to_repeat)
            lease_left = self.fence.expires - self.fence.clock()
            if not self._is_known:
                self._look(link)
            elif writes and not (self._has_looked and lease_left >= self.fence.lease_seconds / LEASE_PART):
                # names and fence first: a reset aborts the commands of all hosts, an overtaking host's among them
                self._look_at_fence(link)
            elif writes and self._reset_on is not link:
                self._reset(link)
            elif self._to_repeat:
                batch = self._to_repeat[0]
                self._attempt(link, batch)
                if not batch and self._to_repeat and self._to_repeat[0] is batch:
                    del self._to_repeat[0]
            else:
                return link

    def _attempt(self, link: Link, rest: List[Command]) -> None:
        """Send commands, or the first write alone, with the questions of `_questions`; judge all answers.

        Completed commands are removed from `rest`. The caller has looked before a write. No write command leaves
        after the lease of that look. Then a command may take any time: the host that settles this run resets the LUN,
        which ends the command. A slow target gets fewer commands in an attempt: otherwise the lease would end in each
        attempt, and each new session would repeat all.
        """
        is_write = bool(rest[0].data)
        now = _batches(rest, self._attempt_bytes)[0] if is_write else list(rest)
        if is_write and not self._first_is_answered:
            now = rest[:1]
        asked = self._questions(with_fence=is_write)
        tasks = link.session.start([*now, *asked.all])
        if asked.places:
            link.write_until = self.fence.expires
        try:
            link.wait(lambda: link.session.is_idle, f"the {self._action} of {self.name}")
        except BaseException:
            if is_write and not self.fence.is_fresh:
                self._attempt_bytes = max(1, _bytes_of(now) // 4)
            self._drop(politely=False)  # otherwise late data would overwrite buffers that the caller reads
            raise
        finally:
            link.write_until = math.inf
            rest[: len(now)] = [command for command, task in zip(now, tasks) if not _is_done(task)]
        self._first_is_answered = True
        if is_write:  # fit the next attempt to the lease; few bytes tell nothing of many
            count, seconds = _bytes_of(now), self.fence.clock() - asked.begun
            wanted = self.fence.lease_seconds / LEASE_PART
            if seconds > wanted:
                self._attempt_bytes = max(1, int(count * wanted / seconds))
            elif 2 * seconds <= wanted:
                self._attempt_bytes = min(ATTEMPT_BYTES, max(self._attempt_bytes, 2 * count))
        self._judge(link, asked, tasks[len(now) :], tasks[: len(now)])

    # --- names and fence

    def _questions(self, with_fence: bool) -> Questions:
        """Return the questions for name and size of the LUN, and with `with_fence` for the places of the fence."""
        spans = spans_of(self.fence.places, self.block_size, self.size_bytes) if with_fence else []
        places = [
            looking.asking(
                self.info.lun,
                scsi.transfer(scsi.READ, *self._blocks(span.offset, span.length)),
                span.length,
                span.offset,
            )
            for span in spans
        ]
        size = looking.asking_size(self.info.lun, self.info.capacity_cdb)
        return Questions(looking.asking_names(self.info.lun), size, places, self.fence.clock())

    def _look_at_fence(self, link: Link) -> None:
        """Read name, size and the places of the fence, with no write of this run under way."""
        asked = self._questions(with_fence=True)
        tasks = looking.read(link, asked.all, f"the name of {self.name}")
        self._has_looked = True
        self._judge(link, asked, tasks)

    def _judge(self, link: Link, asked: Questions, answers: Sequence[Task], sent: Sequence[Task] = ()) -> None:
        """Judge the answers to the questions, and the tasks that were sent together with the questions.

        First the name, because all other answers may come from another LUN. Then the size. Then failures: of all failed
        commands, the one with the worst verdict is handled, and the fence is looked at again. Without a failure, the
        fence gets what the LUN holds. Raises Refused for another LUN and for a smaller LUN, Overtaken, and the error of
        a failed command.
        """
        names, size, places = answers[: len(asked.names)], answers[len(asked.names)], answers[len(asked.names) + 1 :]
        now, was = looking.name_of(self.info.lun, names), self.info
        if (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            self._is_known = False  # the look may find the LUN busy; then the caller looks again
            try:
                self._look(link)
            except Refused as refused:
                written = [task.command for task in sent if task.command.data]
                if written:
                    first, last = written[0], written[-1]
                    refused.message += (
                        f" Up to {_bytes_of(written)} bytes of this run, between byte {first.offset} and byte "
                        f"{last.offset + last.expected}, may have been written to the LUN that is there now."
                    )
                raise
        is_sized = scsi.judge(size.status, size.sense) == Verdict.DONE
        if is_sized and size.is_done:
            verify_size(self, *(scsi.capacity(size.command.cdb, looking.answer_of(size)) or (0, 0, 0))[:2])
        tasks = [*sent, *places] if is_sized else [*sent, size, *places]
        failed = [task for task in tasks if task.is_done and not _is_done(task)]
        if failed:
            self._has_looked = False
            self._heed(link, max(failed, key=lambda task: _verdict(task).value))
        elif asked.places or not self.fence.places:
            starts, buffers = [one.offset for one in asked.places], [one.into for one in asked.places]
            try:
                self.fence.verify([cut_out(place, starts, buffers) for place in self.fence.places], asked.begun)
            except Overtaken:
                if not sent:
                    raise
                # A target may give a read beside a write of the same block a part of the write: read the block alone.
                self._look_at_fence(link)

    def _heed(self, link: Link, task: Task) -> None:
        """React to a failed command: pause, look again or change the portal; otherwise raise its error."""
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
        elif verdict == Verdict.RESERVED:
            raise reserved(self.name)
        elif verdict == Verdict.READ_ONLY:
            raise read_only(self.name, reason)
        elif verdict == Verdict.UNMAPPED:
            raise self._gone()
        elif task.is_short and scsi.judge(task.status, task.sense) == Verdict.DONE:
            raise self._failure(task.mismatch, errno.EIO, task.command)
        else:
            is_medium = task.status and scsi.parse_sense(task.sense).key == scsi.MEDIUM_ERROR
            number = errno.ENODATA if is_medium else errno.EIO
            cause, advice = scsi.explained(task.status, task.sense)
            raise self._failure(cause, number, task.command).advising(advice)

    def _failure(self, reason: str, number: int, command: Optional[Command] = None) -> DeviceError:
        at = command or [*self._rest, *self._batch, Command(self.info.lun, b"")][0]
        return DeviceError(self.name, self._action, at.offset, at.expected, reason, number)

    # --- a session

    def _start_over(self) -> None:
        """Forget the state of the LUN. Answered commands since the last flush may be lost, so repeat all."""
        self._is_known = self._has_looked = False
        self._to_repeat = [list(batch) for batch in self._unflushed]
        if self._action != READ:
            self._rest = list(self._batch)

    def _drop(self, politely: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(politely)

    def _move(self, reason: str) -> None:
        log.info("%s: this portal has no path to it: %s", self.name, reason)
        if not self._sessions.next_portal():
            raise no_path(self.name, reason)
        self._drop(politely=True)
        self._start_over()

    def _look(self, link: Link) -> None:
        """Check that the LUN is the same. Raises Refused for another LUN."""
        begun = self.fence.clock()
        was = self.info
        (now,) = looking.look(link, [was.lun])
        if not now.is_disk or now.verdict == Verdict.UNMAPPED:
            raise self._gone()
        if now.verdict == Verdict.LATER:  # the caller looks again, until the deadline
            return
        if now.verdict == Verdict.ELSEWHERE:
            self._move(now.problem)
            return
        is_named = now.scsi_id is not None or not now.problem
        if is_named and (now.scsi_id, now.serial) != (was.scsi_id, was.serial):
            raise Refused(
                f"The LUN {looking.called(was, now)} is {looking.called(now, was)} now: the "
                "array has mapped another LUN in its place.",
                "ISCSIDevice",
            ).advising("Check the mapping at the array.")
        if now.verdict != Verdict.DONE:
            raise Refused(f"{self.name} cannot be used any more: {now.problem}.", "ISCSIDevice").advising(
                "Check the LUN at the array."
            )
        verify_size(self, now.size_bytes, now.block_size)
        self._is_known = True
        if not self.fence.places:  # then the names are all that `_ready` would look at
            self._has_looked = True
            self.fence.verify([], begun)

    def _gone(self) -> Refused:
        problem = f"{self.name}: the target does not show the LUN {looking.called(self.info)} any more."
        return Refused(problem, "ISCSIDevice").advising("Check the mapping at the array.")

    def _reset(self, link: Link) -> None:
        """Reset the LUN. Raises Refused if the target does not: late writes could overwrite this session's writes."""
        link.session.reset_lun(self.info.lun)
        link.wait(lambda: link.session.reset_response is not None, f"the reset of {self.name}")
        response = link.session.reset_response
        if response != _RESET_DONE:
            raise Refused(
                f"The target does not reset {self.name} (LUN RESET, response {response}): late writes of an earlier "
                "session could still arrive.",
                "ISCSIDevice",
            ).advising("Log in with iscsiadm and give the block device to the command.")
        self._is_known = False  # the reset causes a unit attention
        self._reset_on = link


def _is_done(task: Task) -> bool:
    return task.is_done and _verdict(task) == Verdict.DONE


def _verdict(task: Task) -> Verdict:
    verdict = scsi.judge(task.status, task.sense)
    if verdict == Verdict.UNSUPPORTED and task.command.cdb == scsi.SYNCHRONIZE_CACHE:
        return Verdict.DONE  # a LUN without this command has no volatile cache
    return Verdict.FAILED if verdict == Verdict.DONE and task.is_short else verdict


def _bytes_of(batch: Sequence[Command]) -> int:
    return sum(command.expected for command in batch)


def _batches(commands: Sequence[Command], most_bytes: int) -> List[List[Command]]:
    """Return the commands in order, in batches of at most `most_bytes`."""
    found: List[List[Command]] = []
    room = 0  # bytes of the last batch that are left
    for command in commands:
        if not found or command.expected > room:
            found.append([])
            room = most_bytes
        found[-1].append(command)
        room -= command.expected
    return found


def reserved(name: str) -> Refused:
    return Refused(
        f"{name} is reserved by another host (a SCSI reservation).",
        "SRInUse",
    ).advising("End what uses the LUN there, or have the array clear the reservation of the clone.")


def read_only(name: str, reason: str = "") -> Refused:
    told = f"{name} is read-only: the array maps the LUN read-only, or replicates to it."
    problem = Refused(f"{told} The LUN answered with {reason}." if reason else told)
    return problem.advising("Make the LUN writable first.")


def no_path(name: str, reason: str) -> Refused:
    return Refused(
        f"No portal of the target has a path to {name} now: {reason}.",
        "ISCSIDevice",
    ).advising("Give the portals of the controller that owns the LUN, or wait until the array has failed over.")
