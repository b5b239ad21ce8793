# SPDX-License-Identifier: LGPL-2.1-only
"""Read the MGT volume, and say which of its bytes a new identity changes.

Tags are found where they stand, not by an XML parser: labels are escaped, so `<uuid>` is a tag wherever it appears,
and two things that SM itself has written are no XML. A label cut to its room may end inside an entity (`&am`). And
SM 3.0.0 to 3.0.12 counted characters for bytes: a record with non-ASCII text is longer than its room by k bytes, its
second sector starts k bytes late, and rewriting it blanked the first k bytes of the record behind.
"""

import re
from html import unescape
from sys import intern
from typing import Dict, List, Mapping, NamedTuple, Optional

from relvmoiscsi.errors import Malformed, Place, Unsupported
from relvmoiscsi.identity import UUID_PATTERN, is_uuid
from relvmoiscsi.mgt import layout
from relvmoiscsi.ondisk import Change, Structure

_TAG = re.compile(rb"<([a-z_]+)>([^<]*)</\1>")
_END = b"</vdi>"


class Tag(NamedTuple):
    """The text of a tag and where it stands."""

    text: bytes  #: as stored, blanks at both ends removed
    at: int  #: bytes from the start of the volume to the text


class VdiRecord(NamedTuple):
    """One slot. Texts are decoded; a slot that SM has freed keeps its old content."""

    offset: int  #: bytes from the start of the volume
    uuid: str
    deleted: bool
    name_label: str
    name_description: str
    vdi_type: str  #: "vhd", "aio" (raw), "qcow2"
    type: str  #: xapi's: "user", "system", "metadata", ...
    is_a_snapshot: bool
    snapshot_of: str  #: a VDI UUID, or "" (none, or a reference into the original pool's database)
    uuid_at: int  #: bytes from the start of the volume
    snapshot_of_at: int  #: the same; of no use where `snapshot_of` is ""
    others: Dict[str, bytes]  #: the tags beside those two, as stored


class Mgt(NamedTuple):
    """What the MGT volume says, as far as it is in use."""

    length: int  #: bytes in use
    sr_uuid: str
    sr_uuid_at: int
    name_label: str
    name_description: str
    records: List[VdiRecord]
    damaged: List[int]  #: offsets of records whose `<vdi>` or label was blanked by the record before

    def live(self) -> Dict[str, VdiRecord]:
        """The records that count, by VDI UUID."""
        return {record.uuid: record for record in self.records if not record.deleted}


def read_length(start: bytes, volume_size: int, volume: str) -> int:
    """Bytes in use, from the header in the first sector. Raises FormatError.

    Releases before 6.0 stored a binary header: SM 3 cannot read it either.
    """
    where = Place(volume, 0)
    header = start[: layout.HEADER_BYTES]
    if header[:4] != layout.MAGIC:
        raise Malformed("MGT header", where, "it begins with {!r}".format(header[:4]))
    if header[4:5] != b":":
        raise Unsupported("MGT header", where, "it has the binary form of releases before 6.0")
    fields = header.replace(b"\0", b"").split(b":")
    if len(fields) != layout.HEADER_FIELDS or not all(field.strip().isdigit() for field in fields[1:]):
        raise Malformed("MGT header", where, "it reads {!r}".format(header.rstrip(b" \0")[:64]))
    length, major, _minor = (int(field.strip()[:18]) for field in fields[1:])
    if major != layout.MAJOR:
        raise Unsupported("MGT header", where, "its version is {}".format(major))
    whole = length >= layout.SR_END and (length - layout.SR_END) % layout.RECORD_BYTES == 0
    most = layout.SR_END + layout.MAX_RECORDS * layout.RECORD_BYTES
    if not whole or length > min(volume_size, most):
        raise Malformed("MGT header", where, "it says that {} of {} bytes are in use".format(length, volume_size))
    return length


def read_mgt(data: bytes, volume: str) -> Mgt:
    """Read the bytes in use (`read_length` says how many). Raises FormatError."""
    sr = _tags(data, layout.SR_START, layout.SR_END, Place(volume, layout.SR_START))
    for name in layout.XENVM_TAGS:
        if name in sr:
            raise Unsupported("MGT", Place(volume, sr[name].at), "the SR was made by the xenvm experiment")
    records, damaged = [], []
    for offset in range(layout.SR_END, len(data), layout.RECORD_BYTES):
        records.append(_record(data, offset, Place(volume, offset)))
        if not data[offset : offset + layout.RECORD_BYTES].replace(b"\0", b"").startswith(b"<vdi>"):
            damaged.append(offset)
    _verify_live_uuids(records, volume)
    sr_uuid = _uuid("SR", sr, Place(volume, layout.SR_START))
    return Mgt(
        length=len(data),
        sr_uuid=sr_uuid,
        sr_uuid_at=sr["uuid"].at,
        name_label=_text(sr.get("name_label")),
        name_description=_text(sr.get("name_description")),
        records=records,
        damaged=damaged,
    )


def _tags(data: bytes, start: int, end: int, where: Place) -> Dict[str, Tag]:
    found: Dict[str, Tag] = {}
    for match in _TAG.finditer(data, start, end):
        name = intern(match.group(1).decode("ascii"))
        if name in found:
            raise Malformed("MGT record", where, "it has two tags {}".format(name))
        text = match.group(2)
        at = match.start(2) + len(text) - len(text.lstrip())
        found[name] = Tag(text.strip(), at)
    return found


def _record(data: bytes, offset: int, where: Place) -> VdiRecord:
    end = offset + layout.RECORD_BYTES
    tags = _tags(data, offset, end, where)
    if "deleted" not in tags or data.find(_END, offset, end) < 0:
        raise Malformed("MGT record", where, "it does not read as a VDI record")
    return VdiRecord(
        offset=offset,
        uuid=_uuid("VDI", tags, where),
        deleted=tags["deleted"].text != b"0",
        name_label=_text(tags.get("name_label")),
        name_description=_text(tags.get("name_description")),
        vdi_type=_text(tags.get("vdi_type")),
        type=_text(tags.get("type")),
        is_a_snapshot=_text(tags.get("is_a_snapshot")) == "1",
        snapshot_of=_snapshot_of(tags.get("snapshot_of"), where),
        uuid_at=tags["uuid"].at,
        snapshot_of_at=tags["snapshot_of"].at if "snapshot_of" in tags else 0,
        others={name: tag.text for name, tag in tags.items() if name not in ("uuid", "snapshot_of")},
    )


def _uuid(what: str, tags: Mapping[str, Tag], where: Place) -> str:
    text = _text(tags.get("uuid"))
    if not is_uuid(text):
        raise Malformed("MGT record", where, "its {} UUID is {!r}".format(what, text))
    return text


def _snapshot_of(tag: Optional[Tag], where: Place) -> str:
    """A reference (`OpaqueRef:`) belongs to the original pool's database; SM ignores it, and so does this."""
    text = _text(tag)
    if text == "" or text.startswith("OpaqueRef:"):
        return ""
    if not is_uuid(text):
        raise Malformed("MGT record", where, "it is a snapshot of {!r}".format(text))
    return text


def _text(tag: Optional[Tag]) -> str:
    return unescape(tag.text.decode("utf-8", "replace")) if tag else ""


def _verify_live_uuids(records: List[VdiRecord], volume: str) -> None:
    seen: Dict[str, int] = {}
    for record in records:
        if record.deleted:
            continue
        if record.uuid in seen:
            problem = "its VDI {} has another record at byte {}".format(record.uuid, seen[record.uuid])
            raise Malformed("MGT record", Place(volume, record.offset), problem)
        seen[record.uuid] = record.offset


def changes(mgt: Mgt, sr_uuid: str, uuids: Mapping[str, str], volume: str) -> List[Change]:
    """The bytes that change: the SR's UUID, every slot's UUID, and the UUIDs of what a snapshot was made of."""
    room = Structure(layout.TEXT_KIND, layout.SR_START, layout.SR_END - layout.SR_START)
    found = [Change(mgt.sr_uuid_at, mgt.sr_uuid.encode(), sr_uuid.encode(), "MGT: UUID of the SR", room)]
    for record in mgt.records:
        room = Structure(layout.TEXT_KIND, record.offset, layout.RECORD_BYTES)
        found.append(_change(record.uuid_at, record.uuid, uuids, "MGT: UUID of VDI " + record.uuid, room))
        if record.snapshot_of:
            what = "MGT: VDI {} is a snapshot of".format(record.uuid)
            found.append(_change(record.snapshot_of_at, record.snapshot_of, uuids, what, room))
    return found


def _change(at: int, old: str, uuids: Mapping[str, str], what: str, room: Structure) -> Change:
    return Change(at, old.encode("ascii"), uuids[old].encode("ascii"), what, room)


# --- text that SM may have written anew meanwhile

_UUID_TAG = re.compile(rb"<(uuid|snapshot_of)>[\s\0]*(" + UUID_PATTERN.encode("ascii") + rb")[\s\0]*</\1>")
_NO_TEXT = re.compile(rb"[\x01-\x08\x0b-\x1f\x7f]")


def is_text(room: bytes) -> bool:
    """Whether the room of a record, or the SR's, holds what SM writes: text with a UUID in it, and nothing else."""
    return not _NO_TEXT.search(room) and _UUID_TAG.search(room) is not None


def uuid_places(room: bytes) -> Dict[int, str]:
    """Where UUIDs stand that are identities; one in a label is none. SM moves them when it writes a record anew."""
    return {match.start(2): match.group(2).decode("ascii") for match in _UUID_TAG.finditer(room)}
