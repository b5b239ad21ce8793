# SPDX-License-Identifier: LGPL-2.1-only
"""List the LUNs behind a target, and read what each LUN reports about itself; some thousand LUNs at the same time."""

from typing import Any, Callable, Dict, List, Optional, Sequence

from relvmoiscsi import scsi
from relvmoiscsi.iscsi.faults import Violation
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.pdu import NO_LUN
from relvmoiscsi.iscsi.session import Command, Task
from relvmoiscsi.scsi import Verdict
from relvmoiscsi.vpd import INQUIRY_BYTES, PAGE_80, PAGE_83, PAGE_BYTES, id_from_page_80, id_from_page_83, inquiry_of
from relvmoiscsi.vpd import serial_from_page_80 as serial_of

TRIES = 8  #: unit attentions that may be pending, one after the other
PAUSE_SECONDS = 0.1
_LIST_BYTES = 8192
_MAX_LIST_BYTES = 16 + 8 * 65536
_AT_ONCE = 2048  #: LUNs in one round trip; the answers of a LUN take less than 1 KiB of memory
_DISK = 0  #: peripheral device type
#: other types. Source: SPC-5 6.7.2
_TYPES = {
    0x01: "a tape",
    0x03: "a processor",
    0x05: "a CD or DVD drive",
    0x07: "an optical disk",
    0x08: "a media changer",
    0x0C: "the controller of an array",
    0x0D: "an enclosure",
    0x0E: "a disk with the reduced command set",
    0x11: "an object store",
    0x14: "a zoned disk",
    0x1E: "a well-known logical unit",
}
_BLOCK_SIZES = (512, 4096)
_WRITE_PROTECTED = 0x80


def called(info: LunInfo, beside: Optional[LunInfo] = None) -> str:
    """Return what a message calls a LUN; with the serial number where the SCSIid is that of the LUN `beside`."""
    name = info.scsi_id or f"{info.number} without a SCSIid"
    if beside is not None and info.scsi_id == beside.scsi_id:
        name += f" with the serial number {info.serial!r}" if info.serial else " without a serial number"
    return name


def distinct(looks: Sequence[LunInfo]) -> List[LunInfo]:
    """Return the LUNs without the second address of a LUN. A target may list a LUN under two addressing methods.

    Below 256, the peripheral and the flat method name the same LUN by the same number (SAM-5 4.7.7).
    """
    found: Dict[Any, LunInfo] = {}
    for one in looks:
        is_known = one.is_disk and one.verdict == Verdict.DONE and one.scsi_id is not None and bool(one.serial)
        key = (one.number, one.scsi_id, one.serial, one.vendor, one.model) if is_known else one.lun
        found.setdefault(key, one)
    return list(found.values())


def read(link: Link, commands: Sequence[Command], what: str) -> List[Task]:
    """Run commands that may fail one by one, and return their tasks."""
    tasks = link.session.start(commands)
    link.wait(lambda: link.session.is_idle, what)
    return tasks


def asking(lun: bytes, cdb: bytes, size: int, offset: int = 0) -> Command:
    """Return a command that reads at most `size` bytes. The answer may be shorter or absent."""
    return Command(lun, cdb, into=memoryview(bytearray(size)), may_fail=True, offset=offset)


def answer_of(task: Task) -> bytes:
    """Return the answer to a command; b"" if the command failed."""
    return bytes(task.command.into[: task.moved]) if _verdict(task) == Verdict.DONE else b""


def _verdict(task: Task) -> Verdict:
    return scsi.judge_question(task.status, task.sense)


def luns_in(answer: bytes) -> List[bytes]:
    """Return the LUNs in an answer to REPORT LUNS, 8 bytes each, without duplicates. Raises Violation."""
    if len(answer) < 8:
        raise Violation("The target sent a list of LUNs that is too short.")
    end = min(len(answer), luns_bytes(answer))
    return list(dict.fromkeys(answer[at : at + 8] for at in range(8, end - 7, 8)))


def luns_bytes(answer: bytes) -> int:
    """Return the length of the whole answer to REPORT LUNS. Raises Violation."""
    size = 8 + int.from_bytes(answer[:4], "big")
    if size > _MAX_LIST_BYTES:
        raise Violation(f"The target says that it has {size // 8} LUNs.")
    return size


def list_luns(link: Link) -> List[bytes]:
    """Return the LUNs that the target maps to this initiator, in the target's order. Raises Lost, OutOfTime."""
    size, tries = _LIST_BYTES, 0
    while tries < TRIES:
        (task,) = read(link, [asking(NO_LUN, scsi.report_luns(size), size)], "the list of LUNs")
        answer = answer_of(task)
        if answer and luns_bytes(answer) <= size:
            return luns_in(answer)
        if answer:
            size = luns_bytes(answer)
        elif _verdict(task) == Verdict.LATER:
            link.pause(PAUSE_SECONDS)  # raises OutOfTime at the deadline
            continue
        elif _verdict(task) != Verdict.LOOK_AGAIN:
            break
        tries += 1
    raise Violation(f"The target does not list its LUNs: {scsi.reason(task.status, task.sense)}.")


def look(link: Link, luns: Sequence[bytes], waits: bool = True) -> List[LunInfo]:
    """Read the state of each LUN. One round trip suffices if all LUNs are ready. Raises Lost, OutOfTime.

    Without `waits`, a busy LUN is not asked again.
    """

    def once(link: Link, luns: Sequence[bytes]) -> List[LunInfo]:
        commands: List[Command] = []
        for lun in luns:  # TEST UNIT READY comes first and takes a pending unit attention
            commands += [asking(lun, scsi.TEST_UNIT_READY, 0), *asking_names(lun)]
            commands += [asking_size(lun, scsi.READ_CAPACITY_16), asking(lun, scsi.MODE_SENSE, 4)]
        tasks, found, old = read(link, commands, "a look at the LUNs"), [], []
        for number, lun in enumerate(luns):
            _ready, *of_names, capacity, mode = tasks[6 * number : 6 * number + 6]
            one = name_of(lun, of_names)
            if one.is_disk and one.verdict == Verdict.DONE:
                flags = answer_of(mode)
                is_read_only = len(flags) > 2 and bool(flags[2] & _WRITE_PROTECTED)
                one = _with_capacity(one._replace(is_read_only=is_read_only), capacity)
            if one.is_disk and one.verdict == Verdict.UNSUPPORTED:
                old.append(number)
            found.append(one)
        sizes = read(link, [asking_size(luns[number], scsi.READ_CAPACITY_10) for number in old], "a look at old LUNs")
        for number, task in zip(old, sizes):
            found[number] = _with_capacity(found[number], task)
        return found

    return _until_ready(link, luns, once, waits)


def names(link: Link, luns: Sequence[bytes]) -> List[LunInfo]:
    """Read only the names of each LUN: for a thousand LUNs in half the time of `look`. Raises Lost, OutOfTime."""

    def once(link: Link, luns: Sequence[bytes]) -> List[LunInfo]:
        tasks = read(link, [command for lun in luns for command in asking_names(lun)], "a look at the names of LUNs")
        return [name_of(lun, tasks[3 * number : 3 * number + 3]) for number, lun in enumerate(luns)]

    return _until_ready(link, luns, once)


def _until_ready(
    link: Link, luns: Sequence[bytes], once: Callable[[Link, Sequence[bytes]], List[LunInfo]], waits: bool = True
) -> List[LunInfo]:
    """Read the LUNs, and repeat the read for LUNs that had a unit attention, and with `waits` for busy LUNs."""
    if len(luns) > _AT_ONCE:
        parts = [luns[start : start + _AT_ONCE] for start in range(0, len(luns), _AT_ONCE)]
        return [one for part in parts for one in _until_ready(link, part, once, waits)]
    found = once(link, luns)
    repeated = (Verdict.LATER, Verdict.LOOK_AGAIN) if waits else (Verdict.LOOK_AGAIN,)
    for _ in range(TRIES - 1):
        again = [number for number, one in enumerate(found) if one.verdict in repeated]
        if not again:
            break
        if any(found[number].verdict == Verdict.LATER for number in again):
            link.pause(PAUSE_SECONDS)
        for number, one in zip(again, once(link, [luns[number] for number in again])):
            found[number] = one
    return found


def asking_names(lun: bytes) -> List[Command]:
    """Return the commands for `name_of`. A pending unit attention does not make these commands fail."""
    return [
        asking(lun, scsi.inquiry(INQUIRY_BYTES), INQUIRY_BYTES),
        asking(lun, scsi.inquiry(PAGE_BYTES, PAGE_83), PAGE_BYTES),
        asking(lun, scsi.inquiry(PAGE_BYTES, PAGE_80), PAGE_BYTES),
    ]


def asking_size(lun: bytes, cdb: bytes) -> Command:
    return asking(lun, cdb, scsi.CAPACITY_BYTES[cdb])


def name_of(lun: bytes, tasks: Sequence[Task]) -> LunInfo:
    """Return the names of a LUN. A refused page counts as absent; any other failed read of a page is a problem."""
    unread = [task for task in tasks if _verdict(task) not in (Verdict.DONE, Verdict.UNSUPPORTED, Verdict.UNMAPPED)]
    if unread:
        problem = f"it does not tell what it is: {scsi.reason(unread[0].status, unread[0].sense)}"
        return LunInfo(lun, problem=problem, verdict=_verdict(unread[0]))
    standard, page_83, page_80 = map(answer_of, tasks)
    inquiry = inquiry_of(standard)
    if inquiry is None:
        return LunInfo(lun, is_disk=False)
    if standard[0] & 0x1F != _DISK:
        kind = standard[0] & 0x1F
        return LunInfo(lun, is_disk=False, what=_TYPES.get(kind, f"a device of type {kind:#04x}"))
    return LunInfo(
        lun,
        id_from_page_83(page_83, inquiry) or id_from_page_80(page_80, inquiry),
        inquiry.vendor.decode("ascii").strip(),
        inquiry.model.decode("ascii").strip(),
        serial_of(page_80),
    )


def _with_capacity(one: LunInfo, task: Task) -> LunInfo:
    verdict = _verdict(task)
    if verdict != Verdict.DONE:
        problem = f"its size is not known: {scsi.reason(task.status, task.sense)}"
        return one._replace(problem=problem, verdict=verdict)
    size_bytes, block_size, physical_block_size = scsi.capacity(task.command.cdb, answer_of(task)) or (0, 0, 0)
    if block_size not in _BLOCK_SIZES:
        problem = f"it has blocks of {block_size} bytes" if block_size else "it does not tell its size"
        return one._replace(problem=problem, verdict=Verdict.FAILED)
    return one._replace(
        size_bytes=size_bytes,
        block_size=block_size,
        physical_block_size=physical_block_size,
        capacity_cdb=task.command.cdb,
        problem="",
        verdict=Verdict.DONE,
    )
