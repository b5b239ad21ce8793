# SPDX-License-Identifier: LGPL-2.1-only
"""The full feature phase of one connection of the scripted target: tasks, text, NOP, logout (RFC 7143, section 11)."""

import struct

from . import scsi
from .wire import (
    ASYNC,
    COMMAND,
    DATA_IN,
    DATA_OUT,
    LOGOUT,
    LOGOUT_ANSWER,
    NO_LUN,
    NO_TAG,
    NOP_IN,
    NOP_OUT,
    R2T,
    REJECT,
    RESPONSE,
    TASK,
    TASK_DONE,
    TEXT,
    TEXT_ANSWER,
    Broken,
    Pdu,
    pairs_of,
    text_of,
)

FINAL, OVERFLOW, UNDERFLOW, STATUS = 0x80, 0x04, 0x02, 0x01
ABORT_TASK, LOGICAL_UNIT_RESET, TARGET_RESETS = 1, 5, (6, 7)


class Task:
    """A SCSI command under way. Quirks may change `result` before it is sent, or set it before it is carried out."""

    def __init__(self, pdu, lun):
        self.tag, self.address, self.cdb, self.flags, self.wanted = pdu.tag, pdu.lun, pdu.cdb, pdu.flags, pdu.words[0]
        self.cmd_sn = pdu.words[1]
        self.lun = lun
        self.plan = scsi.planned(self.cdb, lun.block_size if lun else 512)
        self.data = bytearray()
        self.asked = None  #: the R2T that is open: [transfer tag, offset, end, next DataSN]
        self.r2t_sn = 0
        self.result = None
        self.response = 0
        self.residual = None  #: (flag, count), if a quirk wants another one than the true

    def true_residual(self):
        moved = len(self.result.data) if self.plan.way == "in" else len(self.data)
        if self.result.status != scsi.GOOD and self.plan.way == "out":
            moved = 0
        if self.plan.length > self.wanted and self.plan.exact:
            return OVERFLOW, self.plan.length - self.wanted
        return (UNDERFLOW, self.wanted - moved) if moved < self.wanted else (0, 0)

    def __str__(self):
        return f"command {self.cdb[0]:#04x} (tag {self.tag:08x})"


class FullFeature:
    """Takes PDUs of the initiator, under the target's lock."""

    def __init__(self, connection):
        self._connection, self._target, self._options = connection, connection.target, connection.options
        self._session = connection.session
        self._keys = connection.session.keys
        self.tasks = {}
        self.deferred = []
        self._transfer_tags = 0x100
        self._pings = {}
        self._texts = {}
        self._most_data = self._keys.number("MaxRecvDataSegmentLength")

    def request(self, pdu):
        connection = self._connection
        if pdu.opcode == DATA_OUT:
            self._data_out(pdu)
            return
        tags = () if pdu.opcode == TEXT and pdu.tag in self._texts else self.tasks
        stat_sn = connection.stat_sn
        if not connection.watch.request(pdu, connection.exp_cmd_sn, connection.max_cmd_sn, stat_sn, tags):
            return
        if not pdu.immediate:
            connection.exp_cmd_sn = (pdu.words[1] + 1) & 0xFFFFFFFF
        handlers = {
            NOP_OUT: self._nop,
            COMMAND: self._command,
            TASK: self._task,
            TEXT: self._text,
            LOGOUT: self._logout,
        }
        if self._session.discovery and pdu.opcode in (COMMAND, TASK):
            connection.complain("session", f"{pdu!r} in a discovery session")
        if pdu.opcode not in handlers:
            raise Broken("opcode", f"{pdu!r} in the full feature phase")
        handlers[pdu.opcode](pdu)

    # -- SCSI commands ----------------------------------------------------------------------------------------------

    def _command(self, pdu):
        task = Task(pdu, self._target.lun_at(pdu.lun))
        if pdu.tag == NO_TAG:
            self._connection.complain("tag", f"{task} has the reserved tag")
        self._target.commands.append(task)
        self._connection.watch.command(task)
        self._target.note("command", task.cdb[0])
        self.tasks[task.tag] = task
        self._immediate(task, pdu.data)
        if self._connection.fires("arrived", task, task.cdb[0]):
            return
        if task.result is not None:
            self.answer(task)
            return
        self._go_on(task)

    def _immediate(self, task, data):
        if not data:
            return
        most = min(self._keys.number("FirstBurstLength"), self._options.max_recv or 8192, task.wanted)
        if not self._keys.yes("ImmediateData") or task.plan.way != "out" or len(data) > most:
            self._connection.complain("immediate data", f"{task} has {len(data)} bytes, at most {most} were agreed on")
        task.data += data

    def _go_on(self, task):
        if task.plan.way == "out" and len(task.data) < task.wanted:
            self.ask(task)
        elif self._options.answers_late:
            self.deferred.append(task)
        else:
            self.carry_out(task)

    def carry_out_deferred(self):
        deferred, self.deferred = self.deferred, []
        for task in reversed(deferred):
            self.carry_out(task)

    def ask(self, task):
        """Send an R2T for what is missing, as much as may be asked for at once."""
        self._transfer_tags += 1
        offset = len(task.data)
        length = min(task.wanted - offset, self._keys.number("MaxBurstLength"), self._options.r2t_bytes)
        task.asked = [self._transfer_tags, offset, offset + length, 0]
        words = [self._transfer_tags, 0, 0, 0, task.r2t_sn, offset, length]
        task.r2t_sn += 1
        r2t = Pdu(R2T, lun=task.address, tag=task.tag, words=words)
        if not self._connection.fires("r2t", (task, r2t), task.cdb[0]):
            self._connection.send(r2t)

    def _data_out(self, pdu):
        task = self.tasks.get(pdu.tag)
        if task is None or task.asked is None:
            self._connection.complain("data-out", f"{pdu!r} for a task that waits for no data")
            return
        transfer_tag, offset, end, number = task.asked
        ends = offset + len(pdu.data) == end
        expected = {
            "transfer tag": (pdu.words[0], transfer_tag),
            "LUN": (pdu.lun, task.address),
            "DataSN": (pdu.words[4], number),
            "offset": (pdu.words[5], offset),
            "F": (bool(pdu.flags & FINAL), ends),
            "reserved": ((pdu.flags & 0x7F, pdu.words[1], pdu.words[3], pdu.words[6]), (0, 0, 0, 0)),
            "padding": (any(pdu.padding), False),
        }
        for name, (found, wanted) in expected.items():
            if found != wanted:
                self._connection.complain("data-out", f"{task}: {name} is {found!r}, expected {wanted!r}")
        if offset + len(pdu.data) > end or not pdu.data:
            self._connection.complain("data-out", f"{task}: {len(pdu.data)} bytes at {offset}, {end} is the end")
        self._connection.watch.acknowledged(pdu, self._connection.stat_sn)
        task.data += pdu.data
        task.asked[1:] = [offset + len(pdu.data), end, number + 1]
        self._target.note("data-out", len(pdu.data))
        if ends:
            task.asked = None
            self._go_on(task)

    def carry_out(self, task):
        if task.tag not in self.tasks:
            return  # it was aborted
        attention = self._attention(task)
        if attention is None and self._connection.fires("command", task, task.cdb[0]):
            return
        if attention is not None:
            task.result = attention
        elif task.result is None:
            task.result = self._executed(task)
        self._connection.fires("result", task, task.cdb[0])
        self.answer(task)

    def _executed(self, task):
        luns, refuses = self._target.luns, self._options.refuses
        return scsi.execute(task.lun, task.cdb, bytes(task.data), luns, refuses)

    def _attention(self, task):
        if task.lun is None or task.cdb[0] in scsi.WITHOUT_ATTENTION:
            return None
        waiting = self._session.attentions.get(task.lun.number)
        if waiting is None:
            waiting = [item[1:] for item in self._options.attentions if item[0] in (None, task.lun.number)]
            self._session.attentions[task.lun.number] = waiting
        if not waiting:
            return None
        self._target.note("attention", waiting[0])
        return scsi.check(scsi.ATTENTION, *waiting.pop(0))

    def answer(self, task):
        """Send data and status of a task, which ends with it."""
        self.tasks.pop(task.tag, None)
        result = task.result
        data = result.data[: task.wanted] if task.flags & 0x40 else b""
        flag, residual = task.true_residual() if task.residual is None else task.residual
        pdus = self._data_in(task, data)
        if pdus and result.status == scsi.GOOD and not task.response and not self._options.status_apart:
            pdus[-1].flags |= STATUS | flag
            pdus[-1].byte3, pdus[-1].words[6] = result.status, residual
        else:
            sense = struct.pack(">H", len(result.sense)) + result.sense if result.sense else b""
            words = [0, 0, 0, 0, len(pdus), 0, residual]
            flags = FINAL | (0 if task.response else flag)
            pdus.append(Pdu(RESPONSE, flags, task.response, result.status, tag=task.tag, words=words, data=sense))
        if self._connection.fires("answer", (task, pdus), task.cdb[0]):
            return
        for pdu in pdus:
            self._connection.send(pdu)
        self._target.note("answered", task.cdb[0])
        self._connection.fires("done", task, task.cdb[0])

    def _data_in(self, task, data):
        pdus, offset = [], 0
        burst, most = self._keys.number("MaxBurstLength"), min(self._most_data, self._options.data_in_bytes)
        while offset < len(data):
            length = min(most, burst - offset % burst, len(data) - offset)
            ends = offset + length == len(data) or (offset + length) % burst == 0
            words = [NO_TAG, 0, 0, 0, len(pdus), offset, 0]
            piece = data[offset : offset + length]
            pdus.append(Pdu(DATA_IN, FINAL if ends else 0, tag=task.tag, words=words, data=piece))
            offset += length
        return pdus

    # -- task management --------------------------------------------------------------------------------------------

    def _task(self, pdu):
        function = pdu.flags & 0x7F
        self._target.note("task management", function)
        response = 0
        if function == ABORT_TASK:
            response = 0 if self.tasks.pop(pdu.words[0], None) else 1
        elif function == LOGICAL_UNIT_RESET:
            lun = self._target.lun_at(pdu.lun)
            response = 2 if lun is None else 0
            if lun is not None:
                self._target.reset(lun, self._connection)
        elif function in TARGET_RESETS:
            for lun in self._target.luns:
                self._target.reset(lun, self._connection)
        else:
            response = 5
        self._connection.send(Pdu(TASK_DONE, byte2=response, tag=pdu.tag))

    # -- NOP, text, logout ------------------------------------------------------------------------------------------

    def ping(self, lun=NO_LUN, data=b""):
        """A NOP-In that wants an answer."""
        self._transfer_tags += 1
        self._pings[self._transfer_tags] = lun
        self._target.note("ping")
        self._connection.send(Pdu(NOP_IN, lun=lun, words=[self._transfer_tags], data=data))

    def _nop(self, pdu):
        transfer_tag = pdu.words[0]
        if pdu.tag != NO_TAG:
            self._target.note("pinged")
            if transfer_tag != NO_TAG:
                self._connection.complain("nop", f"{pdu!r} has a task tag and transfer tag {transfer_tag:08x}")
            self._connection.send(Pdu(NOP_IN, lun=pdu.lun, tag=pdu.tag, words=[NO_TAG], data=pdu.data))
            return
        if transfer_tag == NO_TAG:
            self._target.note("nop")
        elif transfer_tag not in self._pings:
            self._connection.complain(
                "nop", f"{pdu!r} answers transfer tag {transfer_tag:08x}, which waits for nothing"
            )
        else:
            lun = self._pings.pop(transfer_tag)
            if lun != pdu.lun:
                self._connection.complain("nop", f"a NOP-In of LUN {lun.hex()} was answered with {pdu.lun.hex()}")
            self._target.note("ping answered")

    def _text(self, pdu):
        if self._connection.fires("text", pdu):
            return
        if pdu.flags & 0xC0 != FINAL:
            self._connection.complain("text", f"{pdu!r} is not a whole text")
        transfer_tag = pdu.words[0]
        if transfer_tag == NO_TAG:
            rest = text_of(self._found(pairs_of(pdu.data)))
        else:
            known = self._texts.pop(pdu.tag, (None, b""))
            rest = known[1]
            if pdu.data or known[0] != transfer_tag:
                self._connection.complain("text", f"{pdu!r} does not ask for the rest of an answer")
        self._answer_text(pdu, rest)

    def _answer_text(self, pdu, rest):
        data, rest = rest[: self._most_data], rest[self._most_data :]
        flags, transfer_tag = FINAL, NO_TAG
        if rest:
            self._transfer_tags += 1
            transfer_tag = self._transfer_tags
            self._texts[pdu.tag] = (transfer_tag, rest)
            flags = 0x40
        self._connection.send(Pdu(TEXT_ANSWER, flags, tag=pdu.tag, words=[transfer_tag], data=data))

    def _found(self, pairs):
        if dict(pairs).keys() != {"SendTargets"}:
            self._connection.complain("text", f"a text request with {pairs}")
        self._target.note("discovery")
        return self._target.send_targets(dict(pairs).get("SendTargets", ""), self._session.discovery)

    def _logout(self, pdu):
        if pdu.flags & 0x7F not in (0, 1):
            self._connection.complain("logout", f"a logout for the reason {pdu.flags & 0x7F}")
        if self.tasks:
            self._connection.complain("logout", f"a logout with {len(self.tasks)} tasks under way")
        self._connection.watch.logged_out = True
        self._target.note("logout")
        if self._connection.fires("logout", pdu):
            return
        self._session.logged_out = True
        self._connection.send(Pdu(LOGOUT_ANSWER, tag=pdu.tag, words=[0, 0, 0, 0, 0, 2 << 16]))
        self._connection.hang_up()

    # -- what the target says by itself -----------------------------------------------------------------------------

    def tell(self, event, parameters=(0, 0, 0)):
        """An asynchronous message: 1 asks for a logout, 2 drops the connection, 3 the session, 4 negotiates anew."""
        first, second, third = parameters
        self._target.note("async", event)
        self._connection.send(Pdu(ASYNC, words=[0, 0, 0, 0, event << 24 | first, second << 16 | third]))

    def reject(self, header, reason=0x04):
        self._target.note("reject", reason)
        self._connection.send(Pdu(REJECT, byte2=reason, data=header))
