# SPDX-License-Identifier: LGPL-2.1-only
"""Changed-block logs: read the links of a log, and say which bytes of the log a new identity changes.

The log of VDI X links to an older snapshot (parent) and to a newer VDI (child). A link of zeros names no VDI. A link
may name a VDI that was deleted. The header has neither magic nor checksum: SM knows a log by the volume's name and tag.
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
    """The start of a log, in host byte order: little-endian on x86-64. The bitmap of changed blocks follows.

    Source: blktap include/cbt-util.h.
    """

    # fmt: off
    parent     = raw(0, 16)    #: VDI UUID, bytes in the order of its text; zeros: no parent
    child      = raw(16, 16)
    consistent = le32(32)      #: 0: changes may have been missed, SM drops the log
    padding    = le32(36)
    size       = le64(40)      #: bytes of the virtual disk
    # fmt: on


class CbtLog(NamedTuple):
    """The header of a log and its links; a link of zeros is None."""

    header: CbtHeader
    parent: Optional[str]  #: VDI UUID
    child: Optional[str]

    @property
    def initialised(self) -> bool:
        return self.header.size > 0


def read_cbt_log(head: bytes, volume: str) -> Optional[CbtLog]:
    """Read the header of a log from the start of a volume; None when SM has not written the log yet.

    SM makes the volume before the log. Until SM writes the log, the volume holds old bytes of the LUN.
    """
    header = CbtHeader.at(head, 0, Place(volume, 0))
    if header.consistent not in (0, 1):
        return None
    return CbtLog(header, _uuid(header.parent), _uuid(header.child))


def _uuid(data: bytes) -> Optional[str]:
    return None if data == _NONE else uuid_from_bytes(data)


def changes(log: CbtLog, uuids: Mapping[str, str], volume: str) -> List[Change]:
    """The bytes of a log that change under new UUIDs; a link of zeros stays."""
    links = (("parent", CbtHeader.parent, log.parent), ("child", CbtHeader.child, log.child))
    return [
        Change(field.offset, uuid_to_bytes(uuid), uuid_to_bytes(uuids[uuid]), f"CBT {which} link of {volume}")
        for which, field, uuid in links
        if uuid is not None
    ]
