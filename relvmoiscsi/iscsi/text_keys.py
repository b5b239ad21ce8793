# SPDX-License-Identifier: LGPL-2.1-only
"""The text of logins and discovery, and the steps of a login. Each `Key=value` ends with a NUL.

Source: RFC 7143 6.1, 6.2, 11.12.
"""

import base64
import re
from typing import List, NamedTuple, Sequence, Tuple

from relvmoiscsi.iscsi.crc32c import Bytes
from relvmoiscsi.iscsi.faults import Violation

Keys = Sequence[Tuple[str, str]]

MAX_TEXT = 4 * 1024 * 1024  #: bytes of one answer to SendTargets; 900 targets take 100 KiB
MAX_LOGIN_TEXT = 65536
MAX_KEYS = 32768  #: of one text: a key takes some 200 bytes of memory, and a line or more of a list of targets
_MAX_BINARY = 1024  #: bytes of a value such as a CHAP challenge
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9.+@_#-]{0,254}\Z")
_NUMBER = re.compile(r"(?:[0-9]{1,10}|0[xX][0-9a-fA-F]{1,8})\Z")

#: values for a key that is not negotiated
NO_ANSWER = ("NotUnderstood", "Irrelevant", "Reject")

#: the stages of a login, and the stage behind each
SECURITY, OPERATIONAL, FULL_FEATURE = 0, 1, 3
NEXT = {SECURITY: OPERATIONAL, OPERATIONAL: FULL_FEATURE}


class Request(NamedTuple):
    """A login request in a stage. `goes_on` asks for the next stage."""

    stage: int
    goes_on: bool
    keys: Keys


class TextAnswer(NamedTuple):
    """The target's answer to a request. `went_on` says that the next stage has begun."""

    went_on: bool
    keys: Keys


def pack(keys: Keys) -> bytes:
    return b"".join(f"{name}={value}\0".encode("utf-8", "surrogateescape") for name, value in keys)


def unpack(text: bytes) -> List[Tuple[str, str]]:
    """Return the keys in their order; a name may occur several times. Raises Violation."""
    if text.rstrip(b"\0").count(b"\0") >= MAX_KEYS:
        raise Violation(f"The target sent more than {MAX_KEYS} keys of text.")
    found = []
    for part in text.split(b"\0"):
        name, equals, value = part.decode("utf-8", "replace").partition("=")
        if not part:
            continue  # the end of the text, or padding that a target counts as data
        if not equals or not _NAME.match(name):
            raise Violation("The target sent text that is no `key=value`.")
        found.append((name, value))
    return found


def number(name: str, value: str, least: int, most: int) -> int:
    """Parse a decimal or hexadecimal number from `least` to `most`, both included. Raises Violation."""
    found = int(value, 16 if value[1:2] in ("x", "X") else 10) if _NUMBER.match(value) else -1
    if not least <= found <= most:
        raise Violation(f"The target sent {name}={value[:40]!r}, which is no number from {least} to {most}.")
    return found


def binary(name: str, value: str) -> bytes:
    """Parse 1 to 1024 bytes in hexadecimal ("0x...") or base64 ("0b..."). Raises Violation."""
    kind, digits = value[:2].lower(), value[2:]
    try:
        if kind == "0x":
            found = bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
        elif kind == "0b":
            found = base64.b64decode(digits.encode("ascii"), validate=True)
        else:
            found = b""
    except ValueError:  # also binascii.Error and UnicodeEncodeError
        found = b""
    if not 0 < len(found) <= _MAX_BINARY:
        raise Violation(f"The target sent a {name} that is no binary value of 1 to {_MAX_BINARY} bytes.")
    return found


class Collector:
    """Text that arrives in parts. A part may end anywhere, even within a name."""

    def __init__(self, most: int) -> None:
        self._text, self._most = bytearray(), most

    def add(self, part: Bytes) -> None:
        """Append a part. Raises Violation if the text becomes too long."""
        self._text += bytes(part)
        if len(self._text) > self._most:
            raise Violation(f"The target sent more than {self._most} bytes of text.")

    def take(self) -> bytes:
        """Return the whole text. The next part begins a new text."""
        text, self._text = bytes(self._text), bytearray()
        return text
