# SPDX-License-Identifier: LGPL-2.1-only
"""What an initiator may not do: the target's own assertions, collected as (rule, text) and told at the end of a test.

Rules are words, so that a test of an initiator that is known to break one may leave it out:

    login      flags, versions, stages, tags of the login; `keys`, `key`, `irrelevant`: what stands in it;
               `chap`: challenges
    isid       never open-iscsi's 00 02 3d; `isid kept`: the same one after a session was lost
    cmdsn, window, statsn, tag
    flags, length, lun, immediate data, data-out (offset, length, number, flags), task, reserved
    nop, logout, text, digest, segment, padding, opcode, ahs, session
    identity   a write, on a new session, before the LUN was asked for its identity and its size
"""

from collections import deque

from . import scsi
from .negotiation import NAMING, SECURITY
from .wire import LOGIN, LOGOUT, NO_TAG, NOP_OUT, SNACK, TASK, after

OPEN_ISCSI = b"\x00\x02\x3d"


class LoginWatch:
    """The requests of one login, in order."""

    def __init__(self, complain):
        self._complain = complain
        self._first = None
        self._names = []
        self._stage = 0
        self.exp_stat_sn = None

    def request(self, pdu):
        first = self._first = self._first or pdu
        wrong = self._require
        wrong(pdu.immediate, "login", "a login request without the immediate bit")
        wrong((pdu.byte2, pdu.byte3) == (0, 0), "login", f"versions {pdu.byte2} and {pdu.byte3} instead of 0")
        wrong(pdu.lun == first.lun, "login", "ISID or TSIH changed within a login")
        wrong(pdu.lun[6:] == b"\0\0", "login", f"TSIH {pdu.lun[6:].hex()} in a login that begins a session")
        wrong(pdu.lun[:3] != OPEN_ISCSI, "isid", f"ISID {pdu.lun[:6].hex()} is of open-iscsi's kind")
        wrong(pdu.tag == first.tag and pdu.tag != NO_TAG, "login", f"task tag {pdu.tag:08x}, before {first.tag:08x}")
        wrong(pdu.words[0] == first.words[0], "login", "the CID changed within a login")
        wrong(pdu.words[0] & 0xFFFF == 0 and not any(pdu.words[3:]), "reserved", "reserved bytes in a login request")
        wrong(pdu.words[1] == first.words[1], "cmdsn", "CmdSN changed within a login")
        if self.exp_stat_sn is not None:
            wrong(pdu.words[2] == self.exp_stat_sn, "statsn", f"ExpStatSN {pdu.words[2]:#x}, not {self.exp_stat_sn:#x}")
        self._stages(pdu)

    def _stages(self, pdu):
        goes_on, more = bool(pdu.flags & 0x80), bool(pdu.flags & 0x40)
        stage, following = pdu.flags >> 2 & 3, pdu.flags & 3
        self._require(not pdu.flags & 0x30, "reserved", f"reserved bits in the login's flags {pdu.flags:#x}")
        self._require(not (goes_on and more), "login", "T and C are both set")
        self._require(stage in (0, 1) and stage >= self._stage, "login", f"stage {stage} after {self._stage}")
        self._require(goes_on or following == 0, "reserved", f"a next stage {following} without T")
        self._require(not goes_on or following in (1, 3) and following > stage, "login", f"next stage {following}")
        self._stage = max(self._stage, stage)

    def keys(self, pairs, stage, answers_own):
        """Whole texts, parts joined; `answers_own` are keys that the target has brought up."""
        first_text = not self._names
        for name, value in pairs:
            self._require(name not in self._names or name in ("CHAP_A",), "keys", f"{name} comes twice in a login")
            self._require(name not in NAMING or first_text, "keys", f"{name} not in the first request")
            self._require(len(value) <= (255 if "CHAP" not in name else 2100), "keys", f"{name} is too long")
            if name in SECURITY:
                self._require(stage == 0, "keys", f"{name} in stage {stage}")
            elif name not in NAMING and name not in answers_own:
                self._require(stage == 1, "keys", f"{name} in stage {stage}")
            self._names.append(name)
        if first_text and pairs:
            needed = ("InitiatorName",) if dict(pairs).get("SessionType") == "Discovery" else NAMING[:1] + NAMING[3:]
            for name in needed:
                self._require(name in self._names, "keys", f"no {name} in the first request")

    def _require(self, holds, rule, text):
        if not holds:
            self._complain(rule, text)


class SessionWatch:
    """The full feature phase of one connection."""

    def __init__(self, complain, exp_stat_sn):
        self._complain = complain
        self._stat_sn = exp_stat_sn
        #: of each MaxCmdSN that no command has come up to: (MaxCmdSN, the next StatSN where it first was told)
        self._advertised = deque()
        self._due = exp_stat_sn  #: after the last response to a task
        self._known = {}  #: LUN -> what it was asked on this session
        self.logged_out = False

    def told(self, max_cmd_sn, next_stat_sn, finishes):
        """A PDU of the target with these numbers was sent; `finishes`: it ends a task."""
        if not self._advertised or after(max_cmd_sn, self._advertised[-1][0]):
            self._advertised.append((max_cmd_sn, next_stat_sn))
        if finishes:
            self._due = next_stat_sn

    def request(self, pdu, exp_cmd_sn, max_cmd_sn, next_stat_sn, tags):
        """Whether the target may look at a PDU: numbers, tags and window. Complains of what is wrong."""
        if self.logged_out:
            self._complain("logout", f"{pdu!r} after the logout")
        self.acknowledged(pdu, next_stat_sn)
        if any(pdu.padding):
            self._complain("padding", f"{pdu!r}: padding {pdu.padding.hex()} is not zero")
        if pdu.opcode in (NOP_OUT, LOGOUT, TASK) and not pdu.immediate:
            self._complain("logout" if pdu.opcode == LOGOUT else "cmdsn", f"{pdu!r} is not immediate")
        if pdu.opcode in (SNACK, LOGIN):
            self._complain("session", f"{pdu!r} in the full feature phase")
        if pdu.tag in tags:
            self._complain("tag", f"task tag {pdu.tag:08x} is in use")
        return self._cmd_sn_of(pdu, exp_cmd_sn, max_cmd_sn)

    def _cmd_sn_of(self, pdu, exp_cmd_sn, max_cmd_sn):
        number = pdu.words[1]
        if number != exp_cmd_sn:
            self._complain("cmdsn", f"{pdu!r} has CmdSN {number:#x}, expected was {exp_cmd_sn:#x}")
        if not pdu.immediate and after(number, max_cmd_sn):
            self._complain("window", f"{pdu!r} has CmdSN {number:#x}, MaxCmdSN is {max_cmd_sn:#x}")
            return False
        if not pdu.immediate:
            while self._advertised and after(number, self._advertised[0][0]):
                self._advertised.popleft()
            if self._advertised and after(self._advertised[0][1], pdu.words[2]):
                self._complain("statsn", f"{pdu!r} was sent before it could be, with ExpStatSN {pdu.words[2]:#x}")
        return True

    def acknowledged(self, pdu, next_stat_sn):
        """The ExpStatSN of any PDU: never ahead, never back."""
        number = pdu.words[2]
        if after(number, next_stat_sn):
            self._complain("statsn", f"{pdu!r} acknowledges {number:#x}, next is {next_stat_sn:#x}")
        elif after(self._stat_sn, number):
            self._complain("statsn", f"{pdu!r} has ExpStatSN {number:#x}, after {self._stat_sn:#x}")
        else:
            self._stat_sn = number
        if pdu.opcode == LOGOUT and after(self._due, number):
            self._complain("statsn", f"the logout has ExpStatSN {number:#x}, answers went up to {self._due:#x}")

    def command(self, task):
        """A SCSI command: flags and lengths fit its CDB, and a LUN is known before it is written to."""
        reads, writes = bool(task.flags & 0x40), bool(task.flags & 0x20)
        plan = task.plan
        if not task.flags & 0x80:
            self._complain("flags", f"{task} lacks F, and unsolicited data were not agreed on")
        if (reads, writes) != (plan.way == "in" and bool(task.wanted), plan.way == "out" and bool(task.wanted)):
            self._complain("flags", f"{task}: R {reads}, W {writes}, and the CDB moves data {plan.way or 'nowhere'}")
        if task.flags & 0x18 or task.flags & 7 > 4:
            self._complain("flags", f"{task}: flags {task.flags:#x}")
        if task.wanted != plan.length:
            self._complain("length", f"{task}: expected data transfer length {task.wanted}, the CDB says {plan.length}")
        self._asked(task)

    def _asked(self, task):
        known, operation = self._known.setdefault(task.address, set()), task.cdb[0]
        known.add({scsi.READ_CAPACITY_10: "size", scsi.SERVICE_ACTION_IN: "size"}.get(operation, ""))
        if operation == scsi.INQUIRY and task.cdb[1] & 1:
            known.add("identity")
        if operation in scsi.WRITES and not known >= {"size", "identity"}:
            self._complain("identity", f"{task} before the LUN's identity and size were asked on this session")
