# SPDX-License-Identifier: LGPL-2.1-only
"""The checksums of VHD headers and footers, the structures in which a run changes bytes. Pure."""

import re
from typing import List, Optional

from relvmoiscsi.device import Range
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats.checksum import vhd_checksum
from relvmoiscsi.formats.vhd import DynamicHeader, Footer

#: differing bytes with at most so many bytes between them are one field
_FIELD_GAP_BYTES = 64
_DIFFERENT = re.compile(rb"[^\0](?:\0{0,%d}[^\0])*" % _FIELD_GAP_BYTES)


#: bytes of a structure, by kind
SIZES = {vhd.HEADER_KIND: DynamicHeader.SIZE, vhd.FOOTER_KIND: Footer.SIZE}

#: by kind: the magic of the structure, and the place of its checksum
_CHECKED = {
    vhd.HEADER_KIND: (vhd.HEADER_COOKIE, Range(DynamicHeader.checksum.offset, DynamicHeader.checksum.size)),
    vhd.FOOTER_KIND: (vhd.FOOTER_COOKIE, Range(Footer.checksum.offset, Footer.checksum.size)),
}


def checksum_range(kind: str) -> Optional[Range]:
    """The range of the checksum in a structure; None for a structure without a checksum."""
    return _CHECKED[kind][1] if kind in _CHECKED else None


def is_whole(kind: str, data: bytes) -> bool:
    """Whether `data` is a structure of this kind with a correct checksum."""
    if not data.startswith(_CHECKED[kind][0]):
        return False
    if kind != vhd.FOOTER_KIND or data == resealed(kind, data):
        return data == resealed(kind, data)
    # libvhd before 1.2 did not update the checksum with the hidden byte
    footer = Footer.at(data)
    shown = bytes(footer.replace(hidden=0))
    return footer.creator_version in vhd.OLD_CREATORS and shown == resealed(kind, shown)


def resealed(kind: str, data: bytes) -> bytes:
    """The structure with the checksum of its content."""
    place = _CHECKED[kind][1]
    checksum = vhd_checksum(data, place.offset).to_bytes(place.length, "big")
    return data[: place.offset] + checksum + data[place.end :]


def with_checksum_of(kind: str, data: bytes, other: bytes) -> bytes:
    """`data` with the checksum of `other`."""
    place = _CHECKED[kind][1]
    return data[: place.offset] + other[place.offset : place.end] + data[place.end :]


def differing(old: bytes, new: bytes, without: Optional[Range] = None) -> List[Range]:
    """The ranges in which two versions differ, near ranges joined; the range `without` is not compared."""
    both = bytearray((int.from_bytes(old, "big") ^ int.from_bytes(new, "big")).to_bytes(len(old), "big"))
    if without is not None:
        first, last = max(0, without.offset), min(without.end, len(both))
        both[first:last] = bytes(max(0, last - first))
    return [Range(match.start(), match.end() - match.start()) for match in _DIFFERENT.finditer(both)]
