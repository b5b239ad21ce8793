# SPDX-License-Identifier: LGPL-2.1-only
"""PDUs of iSCSI as a target sees them: a header of 48 bytes, data padded to four, digests; and the keys in their text.

    byte   0        1      2      3      4    5..7    8..15            16..19  20..47
          opcode   flags  byte2  byte3  AHS  length  LUN or ISID/TSIH  tag     seven words

Source: RFC 7143, section 11. Written for the tests alone, without a look at the initiator that they judge.
"""

import struct

HEADER = struct.Struct(">BBBBI8sI7I")
NO_TAG = 0xFFFFFFFF
NO_LUN = bytes(8)

NOP_OUT, COMMAND, TASK, LOGIN, TEXT, DATA_OUT, LOGOUT, SNACK = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10
NOP_IN, RESPONSE, TASK_DONE, LOGIN_ANSWER, TEXT_ANSWER, DATA_IN, LOGOUT_ANSWER = range(0x20, 0x27)
R2T, ASYNC, REJECT = 0x31, 0x32, 0x3F
FROM_INITIATOR = (NOP_OUT, COMMAND, TASK, LOGIN, TEXT, DATA_OUT, LOGOUT, SNACK)


class Pdu:
    """One PDU. `words` are bytes 20 to 47; `spoil` names a digest to be sent wrong: "header" or "data"."""

    def __init__(self, opcode, flags=0x80, byte2=0, byte3=0, lun=NO_LUN, tag=NO_TAG, words=(), data=b""):
        self.opcode = opcode & 0x3F
        self.immediate = bool(opcode & 0x40)
        self.flags, self.byte2, self.byte3, self.lun, self.tag = flags, byte2, byte3, lun, tag
        self.words = list(words) + [0] * (7 - len(words))
        self.data = data
        self.ahs_words = 0
        self.padding = b""
        self.spoil = ""

    @classmethod
    def of_header(cls, header):
        first, flags, byte2, byte3, lengths, lun, tag, *words = HEADER.unpack(header)
        pdu = cls(first & 0x7F, flags, byte2, byte3, lun, tag, words)
        pdu.ahs_words, length = lengths >> 24, lengths & 0xFFFFFF
        return pdu, length

    def header(self):
        words = [word & 0xFFFFFFFF for word in self.words]
        first = self.opcode | (0x40 if self.immediate else 0)
        return HEADER.pack(first, self.flags, self.byte2, self.byte3, len(self.data), self.lun, self.tag, *words)

    def encoded(self, header_digest, data_digest):
        header, data = self.header(), bytes(self.data) + bytes(-len(self.data) % 4)
        out = [header]
        if header_digest:
            out.append(crc32c_bytes(header, self.spoil == "header"))
        out.append(data)
        if data_digest and data:
            out.append(crc32c_bytes(data, self.spoil == "data"))
        return b"".join(out)

    @property
    def cdb(self):
        return struct.pack(">4I", *self.words[3:])

    def __repr__(self):
        return f"<PDU {self.opcode:#04x} flags {self.flags:#04x} tag {self.tag:08x}, {len(self.data)} bytes>"


class Gone(Exception):
    """The other side has closed the connection, or it was closed from here."""


class Broken(Exception):
    """Bytes that are no PDU of an initiator: (rule, what is wrong)."""


class Reader:
    """PDUs out of a socket. `header_digest` and `data_digest` may change between two of them."""

    def __init__(self, sock, max_data, rest):
        self._sock, self._pending, self._rest = sock, b"", rest
        self.header_digest = self.data_digest = False
        self.max_data = max_data

    def next(self):
        pdu, length = Pdu.of_header(self._digested(48, self.header_digest, "header"))
        if pdu.opcode not in FROM_INITIATOR:
            raise Broken("opcode", f"an initiator does not send opcode {pdu.opcode:#04x}")
        if pdu.ahs_words:
            raise Broken("ahs", f"{pdu!r} has {pdu.ahs_words} words of additional header")
        if length > self.max_data:
            raise Broken("segment", f"{pdu!r}: {length} bytes of data, and the target takes {self.max_data}")
        padded = length + -length % 4
        data = self._digested(padded, self.data_digest and length, "data")
        pdu.data, pdu.padding = data[:length], data[length:]
        return pdu

    def has_more(self):
        """Whether bytes of a further PDU were received with the last one."""
        return bool(self._pending)

    def _digested(self, size, digest, part):
        data = self._exactly(size)
        if digest and self._exactly(4) != crc32c_bytes(data):
            raise Broken("digest", f"the {part} digest of a PDU is wrong")
        return data

    def _exactly(self, size):
        while len(self._pending) < size:
            try:
                self._rest.until_readable(self._sock)
                piece = self._sock.recv(1 << 18)
            except OSError as error:
                raise Gone(str(error)) from None
            if not piece:
                raise Gone("closed")
            self._pending += piece
        data, self._pending = self._pending[:size], self._pending[size:]
        return data


def _crc32c_table():
    table = []
    for byte in range(256):
        rest = byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
        table.append(rest)
    return table


_TABLE = _crc32c_table()


def crc32c_bytes(data, spoilt=False):
    """As it is on the wire: the lowest byte first (RFC 7143, section 13.1)."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return struct.pack("<I", crc ^ (0xFFFFFFFE if spoilt else 0xFFFFFFFF))


def pairs_of(data):
    """The keys of a text: [(name, value)], in order. Raises Broken for what is no key."""
    pairs = []
    if data and not data.endswith(b"\0"):
        raise Broken("text", f"a text ends in {data[-16:]!r}, without a zero byte")
    for item in data.split(b"\0")[:-1]:
        name, equals, value = item.partition(b"=")
        if not equals or not name or len(name) > 63:
            raise Broken("text", f"{item!r} is no key=value")
        pairs.append((name.decode("ascii"), value.decode("utf-8")))
    return pairs


def text_of(pairs):
    return b"".join(f"{name}={value}".encode() + b"\0" for name, value in pairs)


def after(number, other):
    """Whether a serial number of 32 bits comes after another one (RFC 1982)."""
    return number != other and (number - other) & 0xFFFFFFFF < 0x80000000
