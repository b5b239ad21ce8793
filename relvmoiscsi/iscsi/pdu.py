# SPDX-License-Identifier: LGPL-2.1-only
"""PDUs: a header of 48 bytes, an optional digest, data padded to 4 bytes, an optional digest.

    byte 0      opcode; bit 6: immediate          byte 16   initiator task tag
    byte 1      flags                             byte 20   target transfer tag, or bytes that a command expects
    bytes 2, 3  by opcode                         byte 24   StatSN of a target, CmdSN of an initiator
    byte 4      length of further headers, words  byte 28   ExpCmdSN of a target, ExpStatSN of an initiator
    byte 5      length of the data, bytes         byte 32   MaxCmdSN, then by opcode; the command of a SCSI Command
    byte 8      LUN

A `Wire` has both directions of a connection. The reader asks the wire for the buffers of the next bytes. So data of a
read go straight into the memory of the command. Source: RFC 7143 11.2.
"""

import struct
from collections import deque
from itertools import islice
from typing import Callable, Deque, List, NamedTuple, Optional, Sequence

from relvmoiscsi.iscsi.crc32c import Bytes, Checksum, crc32c
from relvmoiscsi.iscsi.faults import Violation

NOP_OUT, SCSI_COMMAND, TASK_MANAGEMENT, LOGIN, TEXT, DATA_OUT, LOGOUT = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
NOP_IN, SCSI_RESPONSE, TASK_MANAGEMENT_RESPONSE, LOGIN_RESPONSE = 0x20, 0x21, 0x22, 0x23
TEXT_RESPONSE, DATA_IN, LOGOUT_RESPONSE, R2T, ASYNC, REJECT = 0x24, 0x25, 0x26, 0x31, 0x32, 0x3F
_FROM_TARGET = frozenset((*range(NOP_IN, LOGOUT_RESPONSE + 1), R2T, ASYNC, REJECT))

IMMEDIATE = 0x40
FINAL = 0x80
NO_TAG = 0xFFFFFFFF
NO_LUN = bytes(8)
HEADER_BYTES = 48
DEFAULT_DATA_BYTES = 8192  #: of data in a PDU, until the receiver has declared its own limit
MAX_DATA_BYTES = 262144  #: the limit that this side declares
_STAGE_BYTES = 65536
_MAX_QUEUED = 200000  #: pieces; the data of one R2T in the smallest PDUs are 100,000 pieces
_BUFFERS = 256  #: for one call of sendmsg

_LAYOUT = struct.Struct(">BBBBI8s8I")


class PduHeader(NamedTuple):
    """The basic header. The name of a word has the number of its first byte."""

    opcode: int
    flags: int = FINAL
    byte2: int = 0
    byte3: int = 0
    lengths: int = 0  #: the upper byte counts words of further headers, the rest bytes of data
    lun: bytes = NO_LUN
    task_tag: int = NO_TAG
    word20: int = NO_TAG
    word24: int = 0
    word28: int = 0
    word32: int = 0
    word36: int = 0
    word40: int = 0
    word44: int = 0


#: gives the memory for the data of a PDU: exactly as many bytes as the header says
Destination = Callable[[PduHeader], memoryview]
#: takes the header and the data of a received PDU; the data are in the memory that `Destination` gave
Handle = Callable[[PduHeader, memoryview], None]

_NOTHING = memoryview(b"")


class Wire:
    """Converts received bytes to PDUs, and PDUs to bytes to send."""

    def __init__(self, checksum: Checksum = crc32c) -> None:
        self.header_digest = self.data_digest = False
        self.max_data_bytes = DEFAULT_DATA_BYTES
        self.destination: Destination = lambda header: memoryview(bytearray(header.lengths))
        self._checksum = checksum
        self._outgoing: Deque[Bytes] = deque()
        self.bytes_queued = self.bytes_sent = 0  #: since the start
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._start = self._end = 0  # the unparsed part of the stage
        self._header: Optional[PduHeader] = None  # of the PDU whose data are arriving
        self._place = _NOTHING
        self._filled = 0

    # --- sending

    def send(self, header: PduHeader, data: Bytes = b"") -> None:
        """Queue a PDU. The caller must not change `data` until the bytes are sent."""
        view = memoryview(data)
        self._queue(self._framed(_LAYOUT.pack(*header._replace(lengths=len(view))), view))

    def send_data(self, first: PduHeader, data: memoryview, most_bytes: int) -> None:
        """Queue all data of an R2T, in PDUs of at most `most_bytes`. `first` is the header of the first PDU.

        A target may want PDUs of 8 KiB, 128 for one MiB. So their headers are packed without a PduHeader each, and go
        to the queue together.
        """
        opcode, _flags, byte2, byte3, _lengths, lun, tag, word20, word24, word28, word32, _number, offset, last = first
        pack, size, flags = _LAYOUT.pack, len(data), 0
        found: List[Bytes] = []
        for number, start in enumerate(range(0, size, most_bytes)):
            part = data[start : start + most_bytes]
            if start + most_bytes >= size:
                flags = FINAL
            found += self._framed(
                pack(
                    opcode, flags, byte2, byte3, len(part), lun, tag, word20, word24, word28, word32, number,
                    offset + start, last,
                ),
                part,
            )  # fmt: skip
        self._queue(found)

    def _framed(self, raw: bytes, data: memoryview) -> Sequence[Bytes]:
        """Return the header `raw` and the data of a PDU, with the digests of the session, as buffers to send."""
        if self.header_digest:
            raw += self._checksum([raw])
        padding = bytes(-len(data) % 4)
        if self.data_digest and data:
            return raw, data, padding + self._checksum([data, padding])
        return (raw, data, padding) if padding else (raw, data) if data else (raw,)

    def outgoing(self) -> List[Bytes]:
        """Return the next bytes to send, in order; [] if none."""
        return list(islice(self._outgoing, _BUFFERS))

    def sent(self, count: int) -> None:
        """Remove `count` sent bytes from the queue."""
        self.bytes_sent += count
        while count:
            first = self._outgoing.popleft()
            if count < len(first):
                self._outgoing.appendleft(first[count:])
                return
            count -= len(first)

    def _queue(self, buffers: Sequence[Bytes]) -> None:
        self._outgoing.extend(buffers)
        self.bytes_queued += sum(map(len, buffers))
        if len(self._outgoing) > _MAX_QUEUED:
            raise Violation("The target does not take the answers that it asks for.")

    # --- receiving

    def buffers(self) -> List[memoryview]:
        """Return the buffers for the next bytes: the memory of the arriving data, then the stage."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._stage):
            left = bytes(self._stage[self._start :])
            self._stage[: len(left)] = left
            self._start, self._end = 0, len(left)
        stage = self._stage[self._end :]
        return [self._place[self._filled :], stage] if self._filled < len(self._place) else [stage]

    def received(self, count: int, handle: Handle) -> None:
        """Take `count` more bytes in the buffers, and give each complete PDU to `handle`. Raises Violation.

        A PDU is handled before the next PDU is parsed: it may change how the next PDU is parsed.
        """
        direct = min(count, len(self._place) - self._filled)
        self._filled += direct
        self._end += count - direct
        while self._header is not None or self._begin():
            step = min(len(self._place) - self._filled, self._end - self._start)
            if step:
                self._place[self._filled : self._filled + step] = self._stage[self._start : self._start + step]
                self._filled += step
                self._start += step
            if self._filled < len(self._place):
                return
            if self._place:
                padding = -len(self._place) % 4
                trailer = self._take(padding + 4 * self.data_digest)
                if trailer is None:
                    return
                if self.data_digest and self._checksum([self._place, trailer[:padding]]) != trailer[padding:]:
                    raise Violation("A data digest of the target is wrong.")
            header, data = self._header, self._place
            assert header is not None  # else `_begin` has returned False
            self._header, self._place, self._filled = None, _NOTHING, 0
            handle(header, data)

    def _begin(self) -> bool:
        """Parse the next header. Return False if the header is incomplete."""
        raw = self._take(HEADER_BYTES + 4 * self.header_digest)
        if raw is None:
            return False
        if self.header_digest and self._checksum([raw[:HEADER_BYTES]]) != raw[HEADER_BYTES:]:
            raise Violation("A header digest of the target is wrong.")
        header = PduHeader(*_LAYOUT.unpack_from(raw))
        header = header._replace(opcode=header.opcode & 0x3F)
        if header.opcode not in _FROM_TARGET:
            raise Violation(f"The target sent a PDU with the opcode 0x{header.opcode:02x}, which no target sends.")
        if header.lengths > self.max_data_bytes:
            raise Violation(f"The target sent more in one PDU than the {self.max_data_bytes} bytes that it may.")
        if header.lengths:
            self._place, self._filled = self.destination(header), 0
        self._header = header
        return True

    def _take(self, count: int) -> Optional[bytes]:
        """Take `count` bytes from the stage; None if the stage has fewer."""
        if self._end - self._start < count:
            return None
        self._start += count
        return bytes(self._stage[self._start - count : self._start])
