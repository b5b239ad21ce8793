# SPDX-License-Identifier: LGPL-2.1-only
"""Changed-block logs: which VDI a log follows, and which follows it.

The log of VDI X points to an older snapshot (parent) and a newer VDI (child). Zero means that there is none; a link
may name a VDI that is gone. The struct has neither magic nor checksum: name and tag of the volume tell what it is.
"""

from typing import List, Mapping, NamedTuple, Optional

from relvmoiscsi.errors import Place
from relvmoiscsi.formats.identity import uuid_from_bytes, uuid_to_bytes
from relvmoiscsi.formats.ondisk import (
    Change,
    Record,
    le32,
    le64,
    raw,
)

_NONE = bytes(16)


class CbtHeader(Record, size=48):
    """In host byte order, little-endian on x86-64; a bitmap follows. Source: blktap include/cbt-util.h."""

    # fmt: off
    parent     = raw(0, 16)    #: VDI UUID, bytes in the order of its text; zero: none
    child      = raw(16, 16)
    consistent = le32(32)      #: 0: changes may have been missed, SM drops the log
    padding    = le32(36)
    size       = le64(40)      #: bytes of the virtual disk
    # fmt: on


class CbtLog(NamedTuple):
    """The start of a log; the links are None where there is none."""

    header: CbtHeader
    parent: Optional[str]  #: VDI UUID
    child: Optional[str]

    @property
    def initialised(self) -> bool:
        return self.header.size > 0


def read_cbt_log(head: bytes, volume: str) -> Optional[CbtLog]:
    """Read the start of a log. None when it is none yet: SM makes the volume first, and its content is what was there
    before; it is looked at only when somebody asks for the log.
    """
    header = CbtHeader.at(head, 0, Place(volume, 0))
    if header.consistent not in (0, 1):
        return None
    return CbtLog(header, _uuid(header.parent), _uuid(header.child))


def _uuid(data: bytes) -> Optional[str]:
    return None if data == _NONE else uuid_from_bytes(data)


def changes(log: CbtLog, uuids: Mapping[str, str], volume: str) -> List[Change]:
    """The bytes that change under new UUIDs; zero links stay zero."""
    links = (("parent", CbtHeader.parent, log.parent), ("child", CbtHeader.child, log.child))
    return [
        Change(field.offset, uuid_to_bytes(uuid), uuid_to_bytes(uuids[uuid]), f"CBT {which} link of {volume}")
        for which, field, uuid in links
        if uuid is not None
    ]
