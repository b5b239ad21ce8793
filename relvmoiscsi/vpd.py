# SPDX-License-Identifier: LGPL-2.1-only
"""The vital product data of a LUN, and the rule that derives the SCSIid. Pure.

Page 0x83 of a disk is a list of designators. A designator names the LUN or the target port:

    byte 0, low nibble   code set: 1 binary, 2 ASCII
    byte 1               bits 4-5 association: 0 the LUN; low nibble: type of the designator
    byte 3               length n of the designator
    bytes 4 .. 4+n       the designator; a NAA has its kind in the high nibble of the first byte

The SCSIid is the type as one hex digit, then the designator; a binary designator in hex. The choice among several
designators must never change, because SM would not find the LUN again. So the order is scsi_id's order, with its
peculiarities. The udev rules and SM ask scsi_id, which reads the first PAGE_BYTES of a page. If a longer read found a
better designator behind these bytes, a LUN would have two SCSIids, and a rule of udev would not know the hidden one.
So whatever begins or ends behind them counts as absent here, whoever has read the page.
Source: SPC-4 7.8.6; systemd src/udev/scsi_id/scsi_serial.c (behaviour only).
"""

import re
from typing import List, NamedTuple, Optional, Tuple

PAGE_83 = 0x83
PAGE_80 = 0x80
BINARY, ASCII = 1, 2
VENDOR_SPECIFIC, T10_VENDOR, EUI_64, NAA = 0, 1, 2, 3
NAA_REGISTERED, NAA_REGISTERED_EXTENDED = 5, 6

#: The order of the search: (type, kind of NAA or None for any kind); for each entry, binary before ASCII.
_PREFERENCE = (
    (NAA, NAA_REGISTERED_EXTENDED),
    (NAA, NAA_REGISTERED),
    (NAA, None),
    (EUI_64, None),
    (T10_VENDOR, None),
    (VENDOR_SPECIFIC, None),
)

PAGE_BYTES = 254  #: of a page of vital product data that scsi_id reads
INQUIRY_BYTES = 36  #: bytes of the standard inquiry data that all devices have, with vendor and model
_MAX_SERIAL = 256  #: characters, with the NUL; scsi_id skips a longer designator
_MAX_OLD_DESIGNATOR = 126  #: bytes at which scsi_id cuts a page of the old kind


class Inquiry(NamedTuple):
    """Vendor and model in standard inquiry data: 8 and 16 characters, padded with blanks. Some SCSIids contain both."""

    vendor: bytes
    model: bytes


def inquiry_of(answer: bytes) -> Optional[Inquiry]:
    """Return vendor and model from standard inquiry data, as sysfs shows both; None where no LUN is mapped.

    Source: SPC-4 6.6.2; Linux drivers/scsi/scsi_scan.c, scsi_sanitize_inquiry_string (behaviour only).
    """
    if len(answer) < INQUIRY_BYTES or answer[0] >> 5:
        return None
    # unprintable characters, and all from the first NUL on, become blanks
    fields = (answer[8:16], answer[16:32])
    return Inquiry(*(re.sub(rb"[^ -~]", b" ", field.split(b"\0")[0]).ljust(len(field)) for field in fields))


def serial_from_page_80(page: bytes) -> str:
    """Return the unit serial number after the header of 4 bytes, whose last byte is the length; "" without a number."""
    return page[4 : min(4 + page[3], PAGE_BYTES)].decode("ascii", "replace").strip("\0 ") if len(page) > 4 else ""


def id_from_page_83(page: bytes, inquiry: Inquiry) -> Optional[str]:
    """Return the SCSIid from page 0x83 with its header; None without a usable designator."""
    if len(page) < 8 or page[1] != PAGE_83:
        return None
    if page[6]:
        # A reserved byte, 0 since SPC-2. Old Symmetrix arrays put a bare NAA there, without a designator header.
        return _printable(b"3" + page[4 : 4 + min(page[3], _MAX_OLD_DESIGNATOR)].hex().encode("ascii"))
    found: List[Tuple[int, int, bytes]] = []  # place in the order of the search, code set, SCSIid before the clean-up
    start, end = 4, min(len(page), PAGE_BYTES, 4 + int.from_bytes(page[2:4], "big"))
    while start + 4 <= end:
        code_set, flags, _, length = page[start : start + 4]
        data = page[start + 4 : start + 4 + length]
        start += 4 + length
        code_set, kind = code_set & 0x0F, flags & 0x0F
        if start > end or flags & 0x30 or not data or code_set not in (BINARY, ASCII):
            continue  # cut off, empty, or of the target port
        # A vendor-specific id is unique only among the disks of one model. A T10 id starts with the vendor already.
        origin = inquiry.vendor + inquiry.model if kind == VENDOR_SPECIFIC else b""
        text = data if code_set == ASCII else data.hex().encode("ascii")
        if 1 + len(text) + (24 if kind == VENDOR_SPECIFIC else 0) + 1 > _MAX_SERIAL:
            continue
        for place, (wanted, naa) in enumerate(_PREFERENCE):
            if kind == wanted and naa in (None, data[0] >> 4):
                found.append((place, code_set, b"%x" % kind + origin + text))
    return _printable(min(found, key=lambda one: one[:2])[2]) if found else None  # the first of equals on the page


def id_from_page_80(page: bytes, inquiry: Inquiry) -> Optional[str]:
    """Return the SCSIid from vendor, model and unit serial number, for disks without a usable page 0x83."""
    if len(page) < 4 or page[1] != PAGE_80 or 1 + 24 + page[3] > _MAX_SERIAL:
        return None
    return _printable(b"S" + inquiry.vendor + inquiry.model + page[4 : 4 + page[3]])


def _printable(raw: bytes) -> Optional[str]:
    """Return the id in SM's form: up to the first NUL, stripped, white space as underscores. None for an empty id.

    None also for an id with a character of UTF-8 beyond ASCII. udev keeps that character, and other programs do not.
    So the LUN would have two names. A rule of udev would not know the name that a call hides.
    """
    text = re.sub(rb"\s+", b"_", raw.split(b"\0")[0].strip())
    if any(ord(character) > 127 for character in text.decode("utf-8", "ignore")):
        return None
    return re.sub(rb"[^!-~]", b"_", text).decode("ascii") if len(text) > 1 else None
