# SPDX-License-Identifier: LGPL-2.1-only
"""What LUNs answer to SCSI commands (SPC-4, SBC-3): a status, data or sense. Nothing here knows of iSCSI.

plan = planned(cdb)             which way data goes, and how much
result = execute(lun, cdb, data_out, luns)
"""

import struct
from typing import NamedTuple

TEST_UNIT_READY, REQUEST_SENSE, INQUIRY, MODE_SENSE_6, MODE_SENSE_10 = 0x00, 0x03, 0x12, 0x1A, 0x5A
READ_CAPACITY_10, READ_10, WRITE_10, SYNCHRONIZE_CACHE_10 = 0x25, 0x28, 0x2A, 0x35
READ_16, WRITE_16, SYNCHRONIZE_CACHE_16, SERVICE_ACTION_IN, REPORT_LUNS = 0x88, 0x8A, 0x91, 0x9E, 0xA0
READS, WRITES, FLUSHES = (READ_10, READ_16), (WRITE_10, WRITE_16), (SYNCHRONIZE_CACHE_10, SYNCHRONIZE_CACHE_16)
#: a unit attention is never told to them (SPC-4, 5.14)
WITHOUT_ATTENTION = (INQUIRY, REPORT_LUNS, REQUEST_SENSE)

GOOD, CHECK_CONDITION, BUSY, RESERVATION_CONFLICT, TASK_SET_FULL, ACA_ACTIVE = 0x00, 0x02, 0x08, 0x18, 0x28, 0x30
NO_SENSE, NOT_READY, MEDIUM, HARDWARE, ILLEGAL, ATTENTION, PROTECT, ABORTED = 0, 2, 3, 4, 5, 6, 7, 0xB


class Plan(NamedTuple):
    """What a CDB asks for: "in", "out" or "" and how many bytes; `exact` when it is not an allocation length."""

    way: str
    length: int
    exact: bool


class Result(NamedTuple):
    """What a command comes to: SCSI status, data for the initiator, sense data."""

    status: int
    data: bytes = b""
    sense: bytes = b""


def good(data=b""):
    return Result(GOOD, data)


def check(key, asc, ascq=0):
    """CHECK CONDITION with sense data."""
    return Result(CHECK_CONDITION, b"", bytes([0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0]))


def blocks_of(cdb):
    """(first block, blocks) of a read, write or flush."""
    if cdb[0] in (READ_16, WRITE_16, SYNCHRONIZE_CACHE_16):
        return struct.unpack_from(">QI", cdb, 2)
    return struct.unpack_from(">IxH", cdb, 2)


def planned(cdb, block_size):
    operation = cdb[0]
    if operation in READS + WRITES:
        return Plan("in" if operation in READS else "out", blocks_of(cdb)[1] * block_size, True)
    if operation == READ_CAPACITY_10:
        return Plan("in", 8, False)
    if operation in (SERVICE_ACTION_IN, REPORT_LUNS):
        at = 10 if operation == SERVICE_ACTION_IN else 6
        return Plan("in", struct.unpack_from(">I", cdb, at)[0], False)
    if operation in (INQUIRY, MODE_SENSE_10):
        return Plan("in", struct.unpack_from(">H", cdb, 3 if operation == INQUIRY else 7)[0], False)
    if operation in (REQUEST_SENSE, MODE_SENSE_6):
        return Plan("in", cdb[4], False)
    return Plan("", 0, False)


def execute(lun, cdb, data_out, luns, refuses=()):
    """The Result of a command. `lun` is None where there is none; `luns` are all; `refuses` are not known."""
    operation = cdb[0]
    length = planned(cdb, lun.block_size if lun else 512).length
    if operation == REPORT_LUNS:
        return good(_report(luns)[:length])
    if operation == INQUIRY:
        return _inquiry(lun, cdb, length)
    if operation == REQUEST_SENSE:
        return good(check(NO_SENSE, 0).sense[:length])
    if lun is None:
        return check(ILLEGAL, 0x25)
    if operation in refuses or operation not in _KNOWN:
        return check(ILLEGAL, 0x20)
    return _KNOWN[operation](lun, cdb, data_out, length)


def _report(luns):
    return struct.pack(">I4x", 8 * len(luns)) + b"".join(lun.address for lun in luns)


def _inquiry(lun, cdb, length):
    if lun is None:
        return good((b"\x7f" + bytes(3) + bytes([31]) + bytes(31))[:length])
    if cdb[1] & 1 == 0:
        return check(ILLEGAL, 0x24) if cdb[2] else good(lun.inquiry()[:length])
    page = lun.page(cdb[2])
    return check(ILLEGAL, 0x24) if page is None else good(page[:length])


def _capacity_16(lun, cdb, _data, length):
    return good(lun.capacity_16()[:length]) if cdb[1] & 0x1F == 0x10 else check(ILLEGAL, 0x24)


def _mode_sense_6(lun, _cdb, _data, length):
    return good(bytes([3, 0, 0x80 if lun.read_only else 0, 0])[:length])


def _mode_sense_10(lun, _cdb, _data, length):
    return good(bytes([0, 6, 0, 0x80 if lun.read_only else 0, 0, 0, 0, 0])[:length])


def _outside(lun, cdb):
    first, count = blocks_of(cdb)
    return first + count > lun.size_bytes // lun.block_size


def _read(lun, cdb, _data, length):
    if _outside(lun, cdb):
        return check(ILLEGAL, 0x21)
    return good(lun.disk.peek(blocks_of(cdb)[0] * lun.block_size, length) if length else b"")


def _write(lun, cdb, data, length):
    if lun.read_only:
        return check(PROTECT, 0x27)
    if _outside(lun, cdb):
        return check(ILLEGAL, 0x21)
    if length:
        lun.write(blocks_of(cdb)[0] * lun.block_size, data[:length])
    return good()


def _flush(lun, cdb, _data, _length):
    if _outside(lun, cdb):
        return check(ILLEGAL, 0x21)
    lun.flush()
    return good()


_KNOWN = {
    TEST_UNIT_READY: lambda *_: good(),
    READ_CAPACITY_10: lambda lun, *_: good(lun.capacity_10()),
    SERVICE_ACTION_IN: _capacity_16,
    MODE_SENSE_6: _mode_sense_6,
    MODE_SENSE_10: _mode_sense_10,
    READ_10: _read,
    READ_16: _read,
    WRITE_10: _write,
    WRITE_16: _write,
    SYNCHRONIZE_CACHE_10: _flush,
    SYNCHRONIZE_CACHE_16: _flush,
}
