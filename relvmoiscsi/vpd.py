# SPDX-License-Identifier: LGPL-2.1-only
"""What a LUN says of itself (vital product data), and the SCSIid that comes of it: the one rule. Pure.

Page 0x83 of a disk is a list of designators; each says what it names (the LUN, the target port) and how:

    byte 0, low nibble   code set: 1 binary, 2 ASCII
    byte 1               bits 4-5 association: 0 the LUN; low nibble: type of the designator
    byte 3               length n of the designator
    bytes 4 .. 4+n       the designator; a NAA has its kind in the high nibble of the first byte

The SCSIid is the type as one hex digit, then the designator, binary ones in hex. Which of several is taken must never
change, or a LUN would not be found again; so the order is scsi_id's, with its peculiarities.
Source: SPC-4 7.8.6; systemd src/udev/scsi_id/scsi_serial.c (behaviour only).
"""

import re
from typing import Iterator, NamedTuple, Optional

PAGE_83 = 0x83
PAGE_80 = 0x80
BINARY, ASCII = 1, 2
VENDOR_SPECIFIC, T10_VENDOR, EUI_64, NAA = 0, 1, 2, 3
NAA_REGISTERED, NAA_REGISTERED_EXTENDED = 5, 6

#: What is looked for, in this order: (type, kind of NAA or None for any); binary before ASCII for each.
_PREFERENCE = (
    (NAA, NAA_REGISTERED_EXTENDED),
    (NAA, NAA_REGISTERED),
    (NAA, None),
    (EUI_64, None),
    (T10_VENDOR, None),
    (VENDOR_SPECIFIC, None),
)

INQUIRY_BYTES = 36  #: of standard inquiry data, as all devices have them, vendor and model among them
_MAX_SERIAL = 256  #: characters, the NUL included; scsi_id passes over a designator that would be longer
_MAX_OLD_DESIGNATOR = 126  #: bytes; where scsi_id cuts a page of the old kind


class Designator(NamedTuple):
    """One entry of page 0x83 that names the LUN."""

    code_set: int
    kind: int
    data: bytes


class Inquiry(NamedTuple):
    """The standard inquiry data that some ids contain: 8 and 16 characters, padded with blanks."""

    vendor: bytes
    model: bytes


def inquiry_of(answer: bytes) -> Optional[Inquiry]:
    """Vendor and model out of standard inquiry data, as the kernel has them in sysfs; None where no LUN is mapped.

    Source: SPC-4 6.6.2; Linux drivers/scsi/scsi_scan.c, scsi_sanitize_inquiry_string (behaviour only).
    """
    if len(answer) < INQUIRY_BYTES or answer[0] >> 5:
        return None
    return Inquiry(_sanitized(answer[8:16]), _sanitized(answer[16:32]))


def _sanitized(text: bytes) -> bytes:
    """Blanks in the place of a NUL and what is behind it, and of what cannot be printed."""
    return re.sub(rb"[^ -~]", b" ", text.split(b"\0")[0]).ljust(len(text))


def serial_from_page_80(page: bytes) -> str:
    """The unit serial number: a header of 4 bytes, whose last is the length, and the text. "" if there is none."""
    return page[4 : 4 + page[3]].decode("ascii", "replace").strip("\0 ") if len(page) > 4 else ""


def id_from_page_83(page: bytes, inquiry: Inquiry) -> Optional[str]:
    """The id that page 0x83, header included, gives; None if it has none that can be used."""
    if len(page) < 8 or page[1] != PAGE_83:
        return None
    if page[6]:
        # A reserved byte, 0 since SPC-2. Old Symmetrix arrays put a bare NAA there, without a designator header.
        return _printable(b"3" + page[4 : 4 + min(page[3], _MAX_OLD_DESIGNATOR)].hex().encode("ascii"))
    designators = list(_designators(page))
    for kind, naa in _PREFERENCE:
        for code_set in (BINARY, ASCII):
            for designator in designators:
                if _is_wanted(designator, kind, naa, code_set):
                    return _id_of_designator(designator, inquiry)
    return None


def id_from_page_80(page: bytes, inquiry: Inquiry) -> Optional[str]:
    """The id made from vendor, model and unit serial number, for disks without a usable page 0x83."""
    if len(page) < 4 or page[1] != PAGE_80:
        return None
    return _printable(b"S" + inquiry.vendor + inquiry.model + page[4 : 4 + page[3]])


def _designators(page: bytes) -> Iterator[Designator]:
    """Those that name the LUN and lie wholly within the page, in the order of the page."""
    end = min(len(page), 4 + int.from_bytes(page[2:4], "big"))
    start = 4
    while start + 4 <= end:
        code_set, flags, _, length = page[start : start + 4]
        data = page[start + 4 : start + 4 + length]
        start += 4 + length
        if start <= end and not flags & 0x30:
            yield Designator(code_set & 0x0F, flags & 0x0F, data)


def _is_wanted(designator: Designator, kind: int, naa: Optional[int], code_set: int) -> bool:
    """Is it of this type and code set, and short enough to be an id?"""
    if (designator.kind, designator.code_set) != (kind, code_set) or not designator.data:
        return False
    if naa is not None and designator.data[0] >> 4 != naa:
        return False
    length = len(designator.data) * (1 if code_set == ASCII else 2) + (24 if kind == VENDOR_SPECIFIC else 0)
    return 1 + length + 1 <= _MAX_SERIAL


def _id_of_designator(designator: Designator, inquiry: Inquiry) -> Optional[str]:
    # A vendor's own id is unique within its models only. The T10 one begins with the vendor by itself.
    origin = inquiry.vendor + inquiry.model if designator.kind == VENDOR_SPECIFIC else b""
    data = designator.data if designator.code_set == ASCII else designator.data.hex().encode("ascii")
    return _printable(b"%x" % designator.kind + origin + data)


def _printable(raw: bytes) -> Optional[str]:
    """As SM keeps it: up to the first NUL, stripped, each run of white space an underscore. None if nothing is left."""
    text = re.sub(rb"\s+", b"_", raw.split(b"\0")[0].strip())
    return re.sub(rb"[^!-~]", b"_", text).decode("ascii") if len(text) > 1 else None
