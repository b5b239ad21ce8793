# SPDX-License-Identifier: LGPL-2.1-only
"""SCSI commands, their answers, and the reaction to each status. Source: SPC-4, SBC-3."""

from enum import Enum
from typing import Dict, NamedTuple, Optional, Tuple

GOOD, CHECK_CONDITION, CONDITION_MET, BUSY = 0x00, 0x02, 0x04, 0x08
RESERVATION_CONFLICT, TASK_SET_FULL, ACA_ACTIVE, TASK_ABORTED = 0x18, 0x28, 0x30, 0x40

NO_SENSE, RECOVERED, NOT_READY, MEDIUM_ERROR, HARDWARE_ERROR, ILLEGAL_REQUEST = range(6)
UNIT_ATTENTION, DATA_PROTECT, ABORTED_COMMAND = 0x06, 0x07, 0x0B
_STATUSES = {
    BUSY: "busy",
    TASK_SET_FULL: "too many commands at once",
    ACA_ACTIVE: "busy",
    TASK_ABORTED: "ended by the target",
    RESERVATION_CONFLICT: "reserved by another host",
}
REPORT_LUNS = 0xA0
READ, WRITE = (0x28, 0x88), (0x2A, 0x8A)  #: the codes of the 10-byte and of the 16-byte command

#: commands without parameters
TEST_UNIT_READY = bytes(6)
READ_CAPACITY_16 = bytes([0x9E, 0x10, *bytes(8), 0, 0, 0, 32, 0, 0])
READ_CAPACITY_10 = bytes([0x25, *bytes(9)])
CAPACITY_BYTES = {READ_CAPACITY_16: 32, READ_CAPACITY_10: 8}  #: of the answer. READ CAPACITY(16) is asked first
#: MODE SENSE(6) of all pages without block descriptors. Only the header of the answer is used
MODE_SENSE = bytes([0x1A, 0x08, 0x3F, 0, 4, 0])
#: SYNCHRONIZE CACHE(10) with zeros, which means the whole LUN
SYNCHRONIZE_CACHE = bytes([0x35, *bytes(9)])


def inquiry(size: int, page: Optional[int] = None) -> bytes:
    """INQUIRY for the standard data, or for a page of vital product data."""
    return bytes([0x12, page is not None, page or 0, *size.to_bytes(2, "big"), 0])


def report_luns(size: int) -> bytes:
    return bytes([REPORT_LUNS, 0, 0, 0, 0, 0, *size.to_bytes(4, "big"), 0, 0])


def transfer(codes: Tuple[int, int], block: int, blocks: int) -> bytes:
    """READ or WRITE: the 10-byte command, which every disk knows, or the 16-byte command for larger values."""
    short, long = codes
    if block < 2**32 and blocks < 2**16:
        return bytes([short, 0, *block.to_bytes(4, "big"), 0, *blocks.to_bytes(2, "big"), 0])
    return bytes([long, 0, *block.to_bytes(8, "big"), *blocks.to_bytes(4, "big"), 0, 0])


def capacity(command: bytes, answer: bytes) -> Optional[Tuple[int, int, int]]:
    """Return the size, the size of a block and of a physical block, in bytes, by an answer to a READ CAPACITY.

    None if the answer is too short, and if the LUN is too large for READ CAPACITY(10).
    """
    is_long = command == READ_CAPACITY_16
    width = 8 if is_long else 4
    last, block_size = int.from_bytes(answer[:width], "big"), int.from_bytes(answer[width : width + 4], "big")
    if len(answer) < (16 if is_long else 8) or not is_long and last == 0xFFFFFFFF:
        return None
    return (last + 1) * block_size, block_size, block_size << (answer[13] & 0x0F if is_long else 0)


class Sense(NamedTuple):
    """The sense data of a failed command."""

    key: int
    code: int
    qualifier: int
    is_deferred: bool = False  #: the sense data belong to an earlier command


def parse_sense(data: bytes) -> Sense:
    """Parse sense data in either format; unreadable data give a hardware error without a code. Source: SPC-4 4.5."""
    kind = data[0] & 0x7F if data else 0
    if kind in (0x72, 0x73) and len(data) >= 4:
        return Sense(data[1] & 0x0F, data[2], data[3], kind == 0x73)
    if kind in (0x70, 0x71) and len(data) >= 3:
        whole = data.ljust(14, b"\0")
        return Sense(whole[2] & 0x0F, whole[12], whole[13], kind == 0x71)
    return Sense(HARDWARE_ERROR, 0, 0)


class Verdict(Enum):
    """The reaction to an ended command. If a batch has several failures, the verdict with the highest value counts."""

    DONE = 0
    LATER = 1  #: repeat after a pause, with fewer commands in parallel
    LOOK_AGAIN = 2  #: the LUN has changed: look at the LUN, then repeat
    ELSEWHERE = 3  #: repeat through another portal
    RESERVED = 4
    READ_ONLY = 5
    UNMAPPED = 6
    UNSUPPORTED = 7  #: the LUN does not know the command
    FAILED = 8


class Meaning(NamedTuple):
    """What sense data mean: the reaction, the words for a person, and what a person can do at the array."""

    verdict: Verdict
    words: str
    advice: str = ""


_READ_ONLY = Meaning(Verdict.READ_ONLY, "write protected")
_LOOK_AT_IT = "Look at the state of the LUN at the array."

#: By key, code and qualifier; None stands for every value without a row of its own. "In progress" and "becoming" in
#: T10's words end by themselves, so the command is repeated later, as Linux does.
#: Source: SPC-4 4.5, annex F; SBC-3 4.7.3.6 (full pools); Linux drivers/scsi/scsi_lib.c, scsi_error.c (behaviour only)
MEANINGS: Dict[Tuple[int, Optional[int], Optional[int]], Meaning] = {
    (NO_SENSE, None, None): Meaning(Verdict.DONE, "no sense"),
    (RECOVERED, None, None): Meaning(Verdict.DONE, "recovered error"),
    (NOT_READY, None, None): Meaning(Verdict.FAILED, "not ready", _LOOK_AT_IT),
    (NOT_READY, 0x04, 0x00): Meaning(Verdict.FAILED, "not ready, for a cause that is not reported", _LOOK_AT_IT),
    (NOT_READY, 0x04, 0x01): Meaning(Verdict.LATER, "becoming ready"),
    (NOT_READY, 0x04, 0x02): Meaning(Verdict.FAILED, "not ready: stopped", "Start the LUN at the array."),
    (NOT_READY, 0x04, 0x03): Meaning(Verdict.FAILED, "not ready until somebody intervenes", _LOOK_AT_IT),
    (NOT_READY, 0x04, 0x04): Meaning(Verdict.LATER, "format in progress"),
    (NOT_READY, 0x04, 0x05): Meaning(Verdict.LATER, "rebuild in progress"),
    (NOT_READY, 0x04, 0x06): Meaning(Verdict.LATER, "recalculation in progress"),
    (NOT_READY, 0x04, 0x07): Meaning(Verdict.LATER, "operation in progress"),
    (NOT_READY, 0x04, 0x08): Meaning(Verdict.LATER, "long write in progress"),
    (NOT_READY, 0x04, 0x09): Meaning(Verdict.LATER, "self-test in progress"),
    (NOT_READY, 0x04, 0x0A): Meaning(Verdict.LATER, "failover in progress"),
    (NOT_READY, 0x04, 0x0B): Meaning(Verdict.ELSEWHERE, "this port is on standby"),
    (NOT_READY, 0x04, 0x0C): Meaning(Verdict.ELSEWHERE, "this port is unavailable"),
    (NOT_READY, 0x04, 0x0E): Meaning(Verdict.LATER, "security session in progress"),
    (NOT_READY, 0x04, 0x11): Meaning(Verdict.LATER, "waiting for the permission to spin up"),
    (NOT_READY, 0x04, 0x12): Meaning(Verdict.ELSEWHERE, "offline"),  # LIO says this of a port group
    (NOT_READY, 0x04, 0x13): Meaning(Verdict.LATER, "security association in progress"),
    (NOT_READY, 0x04, 0x14): Meaning(Verdict.LATER, "space allocation in progress"),
    (NOT_READY, 0x04, 0x1A): Meaning(Verdict.LATER, "start or stop in progress"),
    (NOT_READY, 0x04, 0x1B): Meaning(Verdict.LATER, "sanitization in progress"),
    (NOT_READY, 0x04, 0x1C): Meaning(Verdict.LATER, "waiting for the permission to use more power"),
    (NOT_READY, 0x04, 0x1D): Meaning(Verdict.LATER, "configuration in progress"),
    (NOT_READY, 0x04, 0x24): Meaning(Verdict.LATER, "depopulation in progress"),
    (NOT_READY, 0x04, 0x25): Meaning(Verdict.LATER, "restoration of depopulated elements in progress"),
    (NOT_READY, 0x3A, None): Meaning(Verdict.FAILED, "not ready: no medium", _LOOK_AT_IT),
    (NOT_READY, 0x3E, 0x00): Meaning(Verdict.LATER, "not yet configured by itself"),
    (MEDIUM_ERROR, None, None): Meaning(Verdict.FAILED, "medium error"),
    (HARDWARE_ERROR, None, None): Meaning(Verdict.FAILED, "hardware error"),
    (ILLEGAL_REQUEST, None, None): Meaning(Verdict.FAILED, "illegal request"),
    (ILLEGAL_REQUEST, 0x20, None): Meaning(Verdict.FAILED, "access denied", "Allow this initiator at the array."),
    (ILLEGAL_REQUEST, 0x20, 0x00): Meaning(Verdict.UNSUPPORTED, "illegal request: unknown command"),
    (ILLEGAL_REQUEST, 0x25, None): Meaning(Verdict.UNMAPPED, "illegal request: no such LUN"),
    (UNIT_ATTENTION, None, None): Meaning(Verdict.LOOK_AGAIN, "unit attention"),
    (UNIT_ATTENTION, 0x38, 0x07): Meaning(Verdict.LOOK_AGAIN, "unit attention: the array's pool is nearly full"),
    (DATA_PROTECT, None, None): Meaning(Verdict.FAILED, "access to protected data", _LOOK_AT_IT),
    (DATA_PROTECT, 0x00, 0x00): _READ_ONLY,
    (DATA_PROTECT, 0x27, None): _READ_ONLY,
    (DATA_PROTECT, 0x27, 0x07): Meaning(
        Verdict.FAILED, "no space left for this thin LUN", "Free space in the array's pool, or add space to the pool."
    ),
    (DATA_PROTECT, 0x5A, 0x02): _READ_ONLY,
    (0x08, None, None): Meaning(Verdict.FAILED, "blank check"),
    (0x09, None, None): Meaning(Verdict.FAILED, "an error that only the vendor defines"),
    (0x0A, None, None): Meaning(Verdict.FAILED, "copy aborted"),
    (ABORTED_COMMAND, None, None): Meaning(Verdict.LOOK_AGAIN, "aborted command"),
    (0x0C, None, None): Meaning(Verdict.FAILED, "an error that SPC-4 does not define"),
    (0x0D, None, None): Meaning(Verdict.FAILED, "volume overflow"),
    (0x0E, None, None): Meaning(Verdict.FAILED, "miscompare"),
    (0x0F, None, None): Meaning(Verdict.FAILED, "completed"),
}


def meaning_of(sense: Sense) -> Meaning:
    """Return the meaning of sense data of the command itself: the row that names most of key, code and qualifier."""
    key, code, qualifier = sense.key, sense.code, sense.qualifier
    rows = ((key, code, qualifier), (key, code, None), (key, None, None))
    return next(MEANINGS[row] for row in rows if row in MEANINGS)


def judge(status: int, sense: bytes) -> Verdict:
    """Return the verdict on a command by its status. The caller checks separately whether all data have come."""
    simple = {
        GOOD: Verdict.DONE,
        CONDITION_MET: Verdict.DONE,
        BUSY: Verdict.LATER,
        TASK_SET_FULL: Verdict.LATER,
        ACA_ACTIVE: Verdict.LATER,
        TASK_ABORTED: Verdict.LOOK_AGAIN,
        RESERVATION_CONFLICT: Verdict.RESERVED,
    }
    if status != CHECK_CONDITION:
        return simple.get(status, Verdict.FAILED)
    found = parse_sense(sense)
    return Verdict.FAILED if found.is_deferred else meaning_of(found).verdict


def judge_question(status: int, sense: bytes) -> Verdict:
    """Return the verdict on a question. A LUN that knows the command but not the page or field refuses the request."""
    verdict = judge(status, sense)
    is_refused = verdict == Verdict.FAILED and status == CHECK_CONDITION and parse_sense(sense).key == ILLEGAL_REQUEST
    return Verdict.UNSUPPORTED if is_refused else verdict


def reason(status: int, sense: bytes) -> str:
    """Return the cause of a failure for a person: "sense 3/11/00 (medium error)", "status 18 (...)"."""
    if status == CHECK_CONDITION:
        found = parse_sense(sense)
        earlier = ", of an earlier command" if found.is_deferred else ""
        return f"sense {found.key:x}/{found.code:02x}/{found.qualifier:02x} ({meaning_of(found).words}){earlier}"
    return f"status {status:02x} ({_STATUSES.get(status, 'unknown')})"


def explained(status: int, sense: bytes) -> Tuple[str, str]:
    """Return the cause of a failure, a clause, and what a person can do at the array: sentences, or ""."""
    return reason(status, sense), meaning_of(parse_sense(sense)).advice if status == CHECK_CONDITION else ""
