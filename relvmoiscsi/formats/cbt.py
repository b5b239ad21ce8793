# SPDX-License-Identifier: LGPL-2.1-only
"""Changed-block logs: read the links of a log, and say which bytes of the log a new identity changes.

The log of VDI X links to an older snapshot (parent) and to a newer VDI (child). A link of zeros names no VDI. A link
may name a VDI that was deleted. The header has neither magic nor checksum: SM knows a log by the volume's name and tag.
"""

from struct import Struct
from typing import List, Mapping, Optional

from relvmoiscsi.errors import Place
from relvmoiscsi.formats.identity import uuid_from_bytes, uuid_to_bytes
from relvmoiscsi.formats.ondisk import Change, Field, Record, le32, le64


def _link(offset: int) -> "Field[Optional[str]]":
    """A VDI UUID, as 16 bytes in the order of its text; None as zeros."""
    return Field(
        offset,
        Struct("16s"),
        lambda uuid: uuid_to_bytes(uuid) if uuid is not None else bytes(16),
        lambda data: uuid_from_bytes(data) if any(data) else None,
    )


class CbtLog(Record, size=48):
    """The start of a log, in host byte order: little-endian on x86-64. The bitmap of changed blocks follows.

    Source: blktap include/cbt-util.h.
    """

    # fmt: off
    parent     = _link(0)      #: an older snapshot
    child      = _link(16)     #: a newer VDI
    consistent = le32(32)      #: 0: changes may have been missed, SM drops the log. SM writes 0 or 1, and reads all
    padding    = le32(36)
    size       = le64(40)      #: bytes of the virtual disk; 0: the log is not initialised
    # fmt: on

    @property
    def is_written(self) -> bool:
        """Whether this is a log, so that each link of it is one.

        SM makes the volume before the log. Until SM writes the log, the volume holds old bytes of the LUN.
        """
        return self.consistent in (0, 1)


def read_cbt_log(head: bytes, volume: str) -> CbtLog:
    """Read the start of a log from the start of a volume."""
    return CbtLog.at(head, 0, Place(volume, 0))


def renamed(log: CbtLog, uuids: Mapping[str, str]) -> CbtLog:
    """The log under new UUIDs. A link that is not in `uuids` stays, so that old bytes of the LUN stay."""
    links = {field.name: getattr(log, field.name) for field in (CbtLog.parent, CbtLog.child)}
    return log.replace(**{name: uuids.get(uuid, uuid) for name, uuid in links.items()})


def changes(log: CbtLog, uuids: Mapping[str, str], volume: str) -> List[Change]:
    """The bytes of a log that change under new UUIDs."""
    after = renamed(log, uuids)
    return [
        Change(field.offset, field.stored(log), field.stored(after), f"CBT {field.name} link of {volume}")
        for field in (CbtLog.parent, CbtLog.child)
        if field.stored(log) != field.stored(after)
    ]
