# SPDX-License-Identifier: LGPL-2.1-only
"""VHD headers and footers, which hold changed bytes under a checksum: whoever changes a byte makes it anew. Pure."""

import re
from typing import List, Optional

from relvmoiscsi.device import Range
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats.checksum import vhd_checksum
from relvmoiscsi.formats.vhd import DynamicHeader, Footer

#: bytes that differ and lie this close are one field
_FIELD_GAP_BYTES = 64
_DIFFERENT = re.compile(rb"[^\0](?:\0{0,%d}[^\0])*" % _FIELD_GAP_BYTES)


#: by kind: what the structure begins with, and where its checksum is
_CHECKED = {
    vhd.HEADER_KIND: (vhd.HEADER_COOKIE, Range(DynamicHeader.checksum.offset, DynamicHeader.checksum.size)),
    vhd.FOOTER_KIND: (vhd.FOOTER_COOKIE, Range(Footer.checksum.offset, Footer.checksum.size)),
}


def checksum_range(kind: str) -> Optional[Range]:
    """Where in the structure its checksum is; None for one that has none."""
    return _CHECKED[kind][1] if kind in _CHECKED else None


def is_whole(kind: str, data: bytes) -> bool:
    """Whether these are the bytes of such a structure, under a checksum that is right."""
    if not data.startswith(_CHECKED[kind][0]):
        return False
    return data == resealed(kind, data) or _old_creator_agrees(kind, data)


def resealed(kind: str, data: bytes) -> bytes:
    """The structure with its checksum made anew."""
    place = _CHECKED[kind][1]
    checksum = vhd_checksum(data, place.offset).to_bytes(place.length, "big")
    return data[: place.offset] + checksum + data[place.end :]


def _old_creator_agrees(kind: str, data: bytes) -> bool:
    """Footers of libvhd before 1.2: their checksum does not follow the hidden byte."""
    if kind != vhd.FOOTER_KIND:
        return False
    footer = Footer.at(data)
    shown = bytes(footer.replace(hidden=0))
    return footer.creator_version in vhd.OLD_CREATORS and shown == resealed(kind, shown)


def with_checksum_of(kind: str, data: bytes, other: bytes) -> bytes:
    """`data` with the checksum that `other` has."""
    place = _CHECKED[kind][1]
    return data[: place.offset] + other[place.offset : place.end] + data[place.end :]


def differing(old: bytes, new: bytes, without: Optional[Range] = None) -> List[Range]:
    """The stretches in which two versions differ, neighbours joined; `without` is not looked at."""
    both = bytearray((int.from_bytes(old, "big") ^ int.from_bytes(new, "big")).to_bytes(len(old), "big"))
    if without is not None:
        first, last = max(0, without.offset), min(without.end, len(both))
        both[first:last] = bytes(max(0, last - first))
    return [Range(match.start(), match.end() - match.start()) for match in _DIFFERENT.finditer(both)]
