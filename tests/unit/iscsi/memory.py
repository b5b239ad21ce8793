# SPDX-License-Identifier: LGPL-2.1-only
"""A target in memory, at the other end of a `Session`: no socket, no thread, no clock.

    target = MemoryTarget(Lun(0, MIB), script={3: LOST, 5: kit.iscsi.scsi.check(6, 0x29)})

`script` says what happens to the command of a number. Commands are counted over all sessions, from 0, without the
`uncounted`: they are asked beside every batch.
LOST: the connection ends before it is carried out; ANSWER_LOST: behind it; a Result: the command gets it instead; or a
function of the target.
"""

from kit.iscsi import scsi
from kit.iscsi.wire import (
    COMMAND,
    DATA_IN,
    DATA_OUT,
    LOGOUT,
    NO_TAG,
    NOP_OUT,
    R2T,
    RESPONSE,
    TASK,
    Pdu,
)
from relvmoiscsi.deadline import OutOfTime
from relvmoiscsi.errors import Lost
from relvmoiscsi.iscsi.login import Parameters
from relvmoiscsi.iscsi.pdu import PduHeader, Wire
from relvmoiscsi.iscsi.session import Session
from relvmoiscsi.portal import Portal

LOST, ANSWER_LOST = "lost", "answer lost"
PORTAL = Portal("memory")
LOGIN_RESPONSE = PduHeader(0x23, word24=99, word28=1, word32=32)


def session(window=32, **parameters):
    """A session as a login leaves it: the next StatSN is 100, the first CmdSN 1."""
    last = LOGIN_RESPONSE._replace(word32=window)
    return Session(Wire(), Parameters(**parameters), last)


def take(wire):
    """All bytes that a side wants to send."""
    found = b""
    while wire.outgoing():
        piece = bytes(wire.outgoing()[0])
        wire.sent(len(piece))
        found += piece
    return found


def pdus_in(data):
    """PDUs without digests, as a target reads them."""
    found = []
    while data:
        pdu, length = Pdu.of_header(data[:48])
        pdu.data = data[48 : 48 + length]
        found.append(pdu)
        data = data[48 + length + -length % 4 :]
    return found


def put(wire, data, piece, handle):
    """Give bytes to a wire in pieces of a size."""
    for start in range(0, len(data), piece):
        rest = data[start : start + piece]
        while rest:
            buffer = wire.buffers()[0]
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            wire.received(count, handle)


class MemoryTarget:
    """See the module."""

    def __init__(self, lun, script=None, piece=1 << 20):
        self.lun, self.script, self.piece = lun, dict(script or {}), piece
        self.commands = []  #: operation codes, in order
        self.events = []  #: "session", "reset", "logout", and operation codes of what changes something or reads it
        self.sessions = 0
        self.reset_response = 0
        self.uncounted = (scsi.INQUIRY, scsi.SERVICE_ACTION_IN)

    def result(self, cdb, data):
        said = None
        if cdb[0] not in self.uncounted:
            said = self.script.get(len(self.commands))
            self.commands.append(cdb[0])
        if callable(said):
            said = said(self)
        if said == LOST:
            raise Lost("the connection was cut")
        if isinstance(said, scsi.Result):
            return said
        if cdb[0] in scsi.READS + scsi.WRITES + scsi.FLUSHES:
            self.events.append(cdb[0])
        found = scsi.execute(self.lun, cdb, data, [self.lun])
        if said == ANSWER_LOST:
            raise Lost("the connection was cut")
        return found


class MemoryLink:
    """A session with a MemoryTarget."""

    def __init__(self, target):
        self.target, self.portal = target, PORTAL
        self.session = Session(Wire(), Parameters(), LOGIN_RESPONSE)
        self._stat_sn, self._exp_cmd_sn = 100, 1
        self._under_way = {}
        self.is_closed = False
        target.sessions += 1
        target.events.append("session")

    def wait(self, is_done, what):
        while not is_done():
            assert not self.is_closed
            sent = pdus_in(take(self.session.wire))
            assert sent, f"{what} waits for ever"
            for pdu in sent:
                for answer in self._answers(pdu):
                    data = self._numbered(answer).encoded(False, False)
                    put(self.session.wire, data, self.target.piece, self.session.handle)

    def _numbered(self, answer):
        answer.words[1:4] = [self._stat_sn, self._exp_cmd_sn, self._exp_cmd_sn + 31]
        if answer.opcode != R2T and not (answer.opcode == DATA_IN and not answer.flags & 1):
            self._stat_sn += 1
        return answer

    def _answers(self, pdu):
        if not pdu.immediate and pdu.opcode != DATA_OUT:
            assert pdu.words[1] == self._exp_cmd_sn
            self._exp_cmd_sn += 1
        if pdu.opcode == COMMAND:
            self._under_way[pdu.tag] = pdu
            return self._go_on(pdu)
        if pdu.opcode == DATA_OUT:
            command = self._under_way[pdu.tag]
            assert pdu.words[5] == len(command.data)
            command.data += pdu.data
            return self._go_on(command) if pdu.flags & 0x80 else []
        if pdu.opcode == TASK:
            self.target.events.append("reset")
            return [Pdu(0x22, 0x80, self.target.reset_response, tag=pdu.tag)]
        assert pdu.opcode in (LOGOUT, NOP_OUT)
        if pdu.opcode == LOGOUT:
            self.target.events.append("logout")
        return [Pdu(0x26 if pdu.opcode == LOGOUT else 0x20, tag=pdu.tag, words=[NO_TAG])]

    def _go_on(self, command):
        """An R2T for what is missing, or the answer."""
        wanted, has = command.words[0], len(command.data)
        if command.flags & 0x20 and has < wanted:
            length = min(wanted - has, self.session.parameters.max_burst_bytes)
            return [Pdu(0x31, lun=command.lun, tag=command.tag, words=[7, 0, 0, 0, 0, has, length])]
        del self._under_way[command.tag]
        found = self.target.result(command.cdb, command.data)
        sense = len(found.sense).to_bytes(2, "big") + found.sense if found.sense else b""
        data = [
            Pdu(DATA_IN, 0, tag=command.tag, words=[NO_TAG, 0, 0, 0, 0, at, 0], data=found.data[at : at + 65536])
            for at in range(0, len(found.data), 65536)
        ]
        short = wanted - len(found.data) if command.flags & 0x40 else 0
        flags = 0x82 if short else 0x80
        return [*data, Pdu(RESPONSE, flags, 0, found.status, tag=command.tag, words=[0] * 6 + [short], data=sense)]

    def pause(self, seconds):
        self.target.events.append(f"pause {seconds:g}")

    def close(self, politely):
        if politely and not self.is_closed:
            self.session.log_out()
            self.wait(lambda: self.session.is_logged_out, "logout")
        self.is_closed = True


class MemorySessions:
    """Sessions to a MemoryTarget."""

    def __init__(self, target, most=1000):
        self.target, self._most = target, most
        self.moves = 0

    def log_in(self):
        return MemoryLink(self.target)

    def log_in_again(self, attempt):
        if self.target.sessions >= self._most:
            raise OutOfTime("The 50 seconds of this call were over before a new session could be made.")
        return self.log_in()

    def next_portal(self):
        self.moves += 1
        return self.moves < 2
