# SPDX-License-Identifier: LGPL-2.1-only
"""A session in its full feature phase: commands, the command window, data, pings, text, logout. No I/O.

    start(commands)      queue commands; the window and `depth` limit how many run in parallel
    is_idle              every started command has ended
    wire                 bytes in, bytes out
    handle(pdu)          handle a PDU of the target; raises Violation and Lost

Error recovery level 0: every error ends the session. Source: RFC 7143 4.2, 11.
"""

from collections import deque
from typing import Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple

from relvmoiscsi import scsi
from relvmoiscsi.errors import Lost
from relvmoiscsi.iscsi import pdu
from relvmoiscsi.iscsi.crc32c import Bytes
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.login import FIRST_CMD_SN, Parameters
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.pdu import FINAL, IMMEDIATE, NO_TAG, PduHeader, Wire
from relvmoiscsi.iscsi.text_keys import MAX_TEXT, Collector
from relvmoiscsi.scsi import Verdict

STEP_BYTES = 1 << 16  #: progress of a session; less of it, and a target could let an answer trickle for days
DEPTH = 32  #: commands in parallel, the usual queue depth of an iSCSI session

_READ, _WRITE, _SIMPLE = 0x40, 0x20, 0x01
_HAS_STATUS, _UNDERFLOW, _OVERFLOW = 0x01, 0x02, 0x04
_CONTINUES = 0x40
_LOGICAL_UNIT_RESET = 5
_LOGOUT_REQUEST, _CONNECTION_GOES, _SESSION_GOES, _RENEGOTIATION = 1, 2, 3, 4

_EMPTY = memoryview(b"")


class Command(NamedTuple):
    """A SCSI command for a LUN, with the memory for its read data or write data."""

    lun: bytes
    cdb: bytes
    into: memoryview = _EMPTY
    data: memoryview = _EMPTY
    may_fail: bool = False  #: after a failure, the commands behind this command still run
    offset: int = 0  #: where the command reads or writes on the LUN

    @property
    def expected(self) -> int:
        """The number of bytes that the command reads or writes."""
        return len(self.into) or len(self.data)


class Task:
    """A command and its outcome."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.is_done = False
        self.status = 0
        self.sense = b""
        self.moved = 0  #: bytes that came, or bytes requested and sent; without a residual
        self.surplus: Optional[int] = None  #: bytes that the target had beyond the expected number; None: none

    @property
    def is_short(self) -> bool:
        """Does the number of bytes that the target speaks of differ from the expected number?"""
        return self.is_done and (self.moved != self.command.expected or self.surplus is not None)

    @property
    def mismatch(self) -> str:
        """Return how a good answer and its residual contradict each other; for a task that `is_short`."""
        expected = self.command.expected
        if self.surplus is not None:
            return f"the target has {self.surplus} bytes more than the {expected} of the command, and calls that good"
        return f"the target moved {self.moved} of {expected} bytes and calls that good"


class Session:
    """A session over one connection."""

    def __init__(self, wire: Wire, parameters: Parameters, last: PduHeader) -> None:
        """`last` is the last login response, which has the first command window."""
        self.wire, self.parameters = wire, parameters
        self.depth = DEPTH
        self.steps = 0  #: grows with each answer that is progress of a command
        self.wants_end = False  #: the target asked for a logout
        self.is_logged_out = False
        self.ping_is_out = False
        self._active: Dict[int, Task] = {}
        self._moved = 0  # bytes of data, of all commands
        self._writes_end = 0  # where the last write command ends, in the bytes of the wire
        self._delays: Dict[Tuple[bytes, int], str] = {}  # by LUN and operation code, in the order of the answers
        self._waiting: Deque[Task] = deque()
        self._cmd_sn = FIRST_CMD_SN
        self._max_cmd_sn = last.word32
        self._exp_stat_sn = _next(last.word24)
        self._tag = 0
        self._ping_tag = self._logout_tag = self._text_tag = self._reset_tag = NO_TAG
        self.text = Collector(MAX_TEXT)  #: of the answer to `ask`
        self.text_is_done = True
        #: 0: done; 5: not supported by the target; None: no answer yet. Source: RFC 7143 11.6.1
        self.reset_response: Optional[int] = None
        wire.header_digest, wire.data_digest = parameters.header_digest, parameters.data_digest
        wire.max_data_bytes = pdu.MAX_DATA_BYTES
        wire.destination = self._destination

    # --- commands

    def start(self, commands: Iterable[Command]) -> List[Task]:
        """Queue commands. After a failed command without `may_fail`, no further command is sent."""
        tasks = [Task(command) for command in commands]
        self._waiting.extend(tasks)
        self._begin_waiting()
        return tasks

    @property
    def has_unsent_write(self) -> bool:
        """Is a write command still with this side? Its data may follow later: the target asks for the data."""
        return self.wire.bytes_sent < self._writes_end or any(task.command.data for task in self._waiting)

    @property
    def is_idle(self) -> bool:
        """No command is running or waiting."""
        return not self._active and not self._waiting

    def _begin_waiting(self) -> None:
        """Send waiting commands, as far as `depth` and the command window let them out."""
        parameters = self.parameters
        while self._waiting and len(self._active) < self.depth and _distance(self._cmd_sn, self._max_cmd_sn) >= 0:
            task = self._waiting.popleft()
            command, at_once = task.command, _EMPTY
            if parameters.immediate_data:
                at_once = command.data[: min(parameters.first_burst_bytes, parameters.max_send_bytes)]
            flags = FINAL | (_READ if command.into else 0) | (_WRITE if command.data else 0) | _SIMPLE
            words = [int.from_bytes(command.cdb.ljust(16, b"\0")[at : at + 4], "big") for at in (0, 4, 8, 12)]
            tag = self._new_tag()
            self._send(
                PduHeader(pdu.SCSI_COMMAND, flags, 0, 0, 0, command.lun, tag, command.expected, 0, 0, *words), at_once
            )
            task.moved = len(at_once)
            if command.data:
                self._writes_end = self.wire.bytes_queued
            self._active[tag] = task

    # --- other requests

    def ping(self) -> None:
        """Send a ping, unless the answer to an earlier ping is still missing."""
        if not self.ping_is_out:
            self.ping_is_out, self._ping_tag = True, self._new_tag()
            self._send(PduHeader(pdu.NOP_OUT | IMMEDIATE, task_tag=self._ping_tag))

    def log_out(self) -> None:
        """Request a logout. `is_logged_out` tells when the target has answered."""
        self._logout_tag = self._new_tag()
        self._send(PduHeader(pdu.LOGOUT | IMMEDIATE, FINAL, task_tag=self._logout_tag, word20=0))

    def ask(self, text: bytes) -> None:
        """Send a text request, and collect the answer until `text_is_done`."""
        self._text_tag, self.text_is_done = self._new_tag(), False
        self._send(PduHeader(pdu.TEXT, task_tag=self._text_tag), text)

    def reset_lun(self, lun: bytes) -> None:
        """Request a LOGICAL UNIT RESET, which ends the tasks of all sessions. `reset_response` has the answer."""
        self._reset_tag, self.reset_response = self._new_tag(), None
        function = FINAL | _LOGICAL_UNIT_RESET
        self._send(PduHeader(pdu.TASK_MANAGEMENT | IMMEDIATE, function, lun=lun, task_tag=self._reset_tag))

    def _send(self, header: PduHeader, data: Bytes = _EMPTY) -> None:
        """Number a request and queue it. A request that is not immediate uses a place in the command window."""
        self.wire.send(header._replace(word24=self._cmd_sn, word28=self._exp_stat_sn), data)
        if not header.opcode & IMMEDIATE:
            self._cmd_sn = _next(self._cmd_sn)

    def _new_tag(self) -> int:
        while True:
            self._tag = _next(self._tag)
            if self._tag != NO_TAG and self._tag not in self._active:
                return self._tag

    # --- answers

    def handle(self, header: PduHeader, data: memoryview) -> None:
        """Handle a PDU. Raises Violation; raises Lost if the target ends the connection."""
        takes_number = (
            header.opcode not in (pdu.R2T, pdu.DATA_IN, pdu.NOP_IN)
            or header.opcode == pdu.DATA_IN
            and header.flags & _HAS_STATUS
            or header.opcode == pdu.NOP_IN
            and header.task_tag != NO_TAG
        )
        if takes_number:
            self._exp_stat_sn = _next(header.word24)
        if _distance(header.word28, header.word32) >= -1 and _distance(self._max_cmd_sn, header.word32) > 0:
            self._max_cmd_sn = header.word32
        if header.opcode == pdu.SCSI_RESPONSE:
            self._task_of(header)
            if header.byte2:
                raise Lost(f"The target failed to carry out a command (response {header.byte2:#04x}).")
            length = int.from_bytes(data[:2], "big")
            self._end(header, bytes(data[2 : 2 + length]))
        elif header.opcode == pdu.DATA_IN:
            task = self._task_of(header)
            if not task.command.into:
                raise Violation("The target sent data for a command that reads none.")
            self._move(task, task.moved + len(data))
            if header.flags & _HAS_STATUS:
                self._end(header, b"")
        elif header.opcode == pdu.R2T:
            self._on_r2t(header)
        elif header.opcode == pdu.TEXT_RESPONSE:
            self._on_text(header, data)
        elif header.opcode == pdu.NOP_IN:
            if header.task_tag == self._ping_tag and self.ping_is_out:
                self.ping_is_out = False
            if header.word20 != NO_TAG:  # a ping of the target: the answer repeats its LUN and its tag
                self._send(PduHeader(pdu.NOP_OUT | IMMEDIATE, lun=header.lun, word20=header.word20))
        elif header.opcode == pdu.LOGOUT_RESPONSE:
            if header.task_tag != self._logout_tag:
                raise Violation("The target answered a logout that was not asked for.")
            self.is_logged_out = True
        elif header.opcode == pdu.TASK_MANAGEMENT_RESPONSE:
            if header.task_tag != self._reset_tag or self.reset_response is not None:
                raise Violation("The target answered a reset that was not asked for.")
            self.reset_response = header.byte2
            self.steps += 1
        elif header.opcode == pdu.ASYNC:
            event = header.word36 >> 24
            self.wants_end = self.wants_end or event in (_LOGOUT_REQUEST, _RENEGOTIATION)
            if event in (_CONNECTION_GOES, _SESSION_GOES):
                raise Lost("The target ends the session.")
        elif header.opcode == pdu.REJECT:
            raise Violation(f"The target rejected a request (reason {header.byte2:#04x}).")
        else:
            raise Violation("The target answered a login that was over.")
        self._begin_waiting()

    def _destination(self, header: PduHeader) -> memoryview:
        """Return the memory for a PDU's data. Data of a read go to the command's memory, strictly in order."""
        if header.opcode != pdu.DATA_IN:
            return memoryview(bytearray(header.lengths))
        task, end = self._task_of(header), header.word40 + header.lengths
        if header.word40 != task.moved or end > len(task.command.into):
            raise Violation("The target sent data of a read that was not asked for, or not in order.")
        return task.command.into[header.word40 : end]

    def _task_of(self, header: PduHeader) -> Task:
        task = self._active.get(header.task_tag)
        if task is None:
            raise Violation(f"The target spoke of a command {header.task_tag:#x} that is not under way.")
        return task

    def _move(self, task: Task, end: int) -> None:
        """Note how far the data of a command have come, and whether that is progress.

        A target could send or ask for a byte at a time, or for none. So the first and the last bytes of a command are
        progress, and each STEP_BYTES of all commands: a slow target may send the data of many commands in turns.
        """
        before, self._moved = self._moved, self._moved + end - task.moved
        is_step = before // STEP_BYTES < self._moved // STEP_BYTES
        self.steps += is_step or task.moved == 0 < end or task.moved < end == task.command.expected
        task.moved = end

    def _end(self, header: PduHeader, sense: bytes) -> None:
        task = self._active.pop(header.task_tag)
        task.is_done, task.status, task.sense = True, header.byte3, sense
        if header.flags & _UNDERFLOW:
            task.moved = min(task.moved, max(0, task.command.expected - header.word44))
        if header.flags & _OVERFLOW:
            task.surplus = header.word44
        self.steps += 1
        if task.status and not task.command.may_fail:
            self._waiting.clear()
        if not (task.status or self._delays):
            return
        # Keep what a LUN has answered to a command that it puts off, until the LUN carries out such a command.
        command = task.command
        self._delays.pop((command.lun, command.cdb[0]), None)
        if scsi.judge(task.status, task.sense) in (Verdict.LATER, Verdict.LOOK_AGAIN):
            is_of_target = command.cdb[0] == scsi.REPORT_LUNS
            which = "The target" if is_of_target else f"LUN {LunInfo(command.lun).number}"
            said = f"{which} last answered with {scsi.reason(task.status, task.sense)}."
            self._delays[command.lun, command.cdb[0]] = said

    @property
    def delay(self) -> str:
        """Return the last answer with which the target put off a command that was not carried out since; "" if none."""
        return list(self._delays.values())[-1] if self._delays else ""

    def _on_r2t(self, header: PduHeader) -> None:
        task = self._task_of(header)
        offset, length = header.word40, header.word44
        is_next = offset == task.moved and offset + length <= len(task.command.data)
        if not is_next or not 0 < length <= self.parameters.max_burst_bytes or header.lengths:
            raise Violation("The target asked for data of a write that are not there, or not in order.")
        self._move(task, offset + length)
        first = PduHeader(
            opcode=pdu.DATA_OUT,
            lun=header.lun,
            task_tag=header.task_tag,
            word20=header.word20,
            word28=self._exp_stat_sn,
            word40=offset,
        )
        self.wire.send_data(first, task.command.data[offset : task.moved], self.parameters.max_send_bytes)

    def _on_text(self, header: PduHeader, data: memoryview) -> None:
        if header.task_tag != self._text_tag or self.text_is_done:
            raise Violation("The target sent text that was not asked for.")
        if header.flags & _CONTINUES and header.flags & FINAL:
            raise Violation("The target ended its text in the middle.")
        if not data and not header.flags & FINAL:
            raise Violation("The target sent a part of a text that is empty.")
        self.text.add(data)
        if header.flags & FINAL:
            self.text_is_done = True
            self.steps += 1
        else:
            self._send(PduHeader(pdu.TEXT, lun=header.lun, task_tag=self._text_tag, word20=header.word20))


def _next(serial: int) -> int:
    return (serial + 1) & 0xFFFFFFFF


def _distance(first: int, second: int) -> int:
    """Return `second` minus `first` in serial arithmetic (RFC 1982); negative if `second` comes before `first`."""
    return ((second - first + 0x80000000) & 0xFFFFFFFF) - 0x80000000
