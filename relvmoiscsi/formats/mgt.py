# SPDX-License-Identifier: LGPL-2.1-only
"""Read the MGT volume, and say which bytes of the volume a new identity changes.

The MGT volume has neither integers nor checksums, only padded text.

    0        header: XSSM:<length>:<major>:<minor>, padded with spaces
    512      SR: <uuid> and <allocation>; from SM 1.12 to 1.15 also <initial_allocation> and <allocation_quantum>, empty
    1024     SR: <name_label>
    1536     SR: <name_description>
    2048     VDI records of 1024 bytes: <vdi><name_label>..<name_description>.. | all other tags </vdi>

SM reads each record with an XML parser, and whoever writes to a raw LUN can write XML that a pattern reads otherwise.
So a record counts only in the form in which SM writes records: SM's tags, each once, with nothing between them, and in
each tag a value that SM writes. MGT with any other record is refused, unless SM's parser cannot read that record.

SM itself has written records that its parser cannot read:

    cut label       SM cuts a long label to its room, so a label may end inside an entity (`&am`)
    shifted record  SM 3.0.0 to 3.0.12 counted characters for bytes: a record with non-ASCII text is k bytes too long,
                    its second sector starts k bytes late, and rewriting it blanked the first k bytes of the next record

One such record makes SM read nothing of MGT: SM then shows all VDIs without labels, and may fail to create VDIs. SM
still attaches the SR. Here a pattern finds the tags of such a record, and a resignature changes only its UUIDs.

Source: SM drivers/srmetadata.py (LVMMetadataHandler), drivers/metadata.py.
"""

import re
from html import unescape
from sys import intern
from typing import Container, Dict, List, Mapping, Match, NamedTuple, Pattern, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Malformed, Place, Unsupported, shown_bytes
from relvmoiscsi.formats.identity import UUID_PATTERN
from relvmoiscsi.formats.naming import MGT
from relvmoiscsi.formats.ondisk import Change

# fmt: off
MAGIC          = b"XSSM"
HEADER_FIELDS  = 4             #: magic, length, major, minor; separated by colons
MAJOR          = 1
MINOR          = 2             #: the least that SM writes
HEADER_BYTES   = 512
SR_START       = 512           #: bytes from the start of the volume
SR_END         = 2048          #: the VDI records start here
RECORD_BYTES   = 1024
MAX_RECORDS    = 4094          #: the volume has 4 MiB
# fmt: on

_LABELS = (b"name_label", b"name_description")
_UUID = UUID_PATTERN.encode("ascii")
_XML_HEADER = b'<?xml version="1.0" ?>'
_TAG = re.compile(rb"<([a-z_]+)>([^<]*)</\1>")
_SR_FORM = re.compile(
    re.escape(_XML_HEADER)
    + rb"<uuid>[^<]*</uuid><allocation>[^<]*</allocation>"
    + rb"(?:<initial_allocation></initial_allocation><allocation_quantum></allocation_quantum>)?[ \0]*"
    + rb"(?:<(name_[a-z]+)>[^<]*</\1>[ \0]*)*"
)
#: an experiment of 2015 (xenvm) that kept its own allocation map. SM 1.12 to 1.15 wrote both tags empty into other SRs
_XENVM = re.compile(rb"<(?:initial_allocation|allocation_quantum)>[^<]")
_VDI_FORM = re.compile(rb"[ \0]*<vdi>(?:<([a-z_]+)>[^<]*</\1>[ \0]*)*</vdi>[ \0]*")
_LABEL = re.compile(rb"(?:[^<>&\0]|&(?:lt|gt|amp);)*")  #: as SM escapes it
#: the UUIDs in a record of which no more can be read, whatever is before them in their tag
_LINK = re.compile(rb"<(?:uuid|snapshot_of)>[^<0-9a-f]*(" + _UUID + rb")(?![0-9a-f])")


def _values(**patterns: bytes) -> Dict[bytes, Pattern[bytes]]:
    return {name.encode("ascii"): re.compile(pattern) for name, pattern in patterns.items()}


#: what SM writes into each tag but the labels
_SR_VALUES = _values(uuid=_UUID, allocation=rb"[a-z]+", initial_allocation=rb"", allocation_quantum=rb"")
_VDI_VALUES = _values(
    uuid=_UUID,
    is_a_snapshot=rb"[01]",
    type=rb"[a-z_]{1,35}",
    vdi_type=rb"[a-z0-9]{1,35}",
    read_only=rb"[01]",
    managed=rb"[01]",
    deleted=rb"[01]",
    snapshot_of=rb"(?:" + _UUID + rb"|OpaqueRef:[0-9A-Za-z-]+)?",
    snapshot_time=rb"[0-9TZ:.+-]{0,35}",
    metadata_of_pool=rb"(?:OpaqueRef:[0-9A-Za-z-]+)?",
    offset=rb"[0-9]{0,10}",
)
#: SM's scan fails without the others
_OPTIONAL = {
    *(b"initial_allocation", b"allocation_quantum"),
    *(b"snapshot_of", b"snapshot_time", b"metadata_of_pool", b"offset"),
}

#: by tag name: the tag in MGT, with its text as group 2
Tags = Dict[bytes, Match[bytes]]


class VdiRecord(NamedTuple):
    """The record in a slot, its texts decoded. A slot that SM has freed still holds the record of the deleted VDI."""

    offset: int  #: bytes from the start of the volume
    uuid: str
    deleted: bool
    name_label: str
    name_description: str
    vdi_type: str  #: "vhd", "aio" (raw), "qcow2"
    type: str  #: xapi's: "user", "system", "metadata", ...
    is_a_snapshot: bool
    managed: bool  #: False for a base copy
    snapshot_of: str  #: a VDI UUID, or "" (none, or a reference into the original pool's database)
    uuid_at: int  #: bytes from the start of the volume
    snapshot_of_at: int  #: bytes from the start of the volume; only with a `snapshot_of`
    deleted_at: int  #: bytes from the start of the volume to the text of the tag `deleted`
    metadata_of_pool: str  #: reference of the pool that writes its database into the VDI; "" for no pool


class Mgt(NamedTuple):
    """The bytes in use of the MGT volume, and their content."""

    data: bytes  #: as stored, the bytes in use
    spare: bytes  #: as stored, some of the bytes behind the bytes in use
    length: int  #: bytes in use
    sr_uuid: str
    sr_uuid_at: int
    name_label: str
    name_description: str
    records: List[VdiRecord]
    broken: List[int]  #: offsets of the parts that SM's parser cannot read: SR_START, and slots
    unread: List[int]  #: offsets of the slots in `broken` whose record cannot be read here either
    links: Dict[int, str]  #: the UUIDs in tags `uuid` and `snapshot_of` of `unread`, by their place in the volume

    def live(self) -> Dict[str, VdiRecord]:
        """The live record of each VDI, by VDI UUID."""
        return {record.uuid: record for record in self.records if not record.deleted}


def read_length(start: bytes, volume_size: int) -> int:
    """The number of bytes in use, from the header in the first sector. Raises FormatError.

    XenServer releases before 6.0 stored a binary header, which SM 3 cannot read either.
    """
    where = Place(MGT, 0)
    header = start[:HEADER_BYTES]
    if header[:4] != MAGIC:
        raise Malformed("MGT header", where, f"it begins with {shown_bytes(header[:4])}")
    if header[4:5] != b":":
        raise Unsupported("MGT header", where, "it has the binary form of releases before 6.0")
    fields = header.rstrip(b" ").decode("ascii", "replace").split(":")
    if len(fields) != HEADER_FIELDS or not all(untrusted.is_number(field.rstrip(" ")) for field in fields[1:]):
        raise Malformed("MGT header", where, "it reads " + shown_bytes(header.rstrip(b" \0")[:64]))
    length, major, minor = (untrusted.number(field.rstrip(" ")) for field in fields[1:])
    if major != MAJOR or minor < MINOR:  # SM 2 writes MGT of an older version anew
        raise Unsupported("MGT header", where, f"its version is {major}.{minor}")
    if header != _header_bytes(header, length):
        raise Malformed("MGT header", where, "it is not in the form of SM")
    whole = length >= SR_END and (length - SR_END) % RECORD_BYTES == 0
    most = SR_END + MAX_RECORDS * RECORD_BYTES
    if not whole or length > min(volume_size, most):
        raise Malformed("MGT header", where, f"it says that {length} of {volume_size} bytes are in use")
    return length


def read_mgt(data: bytes, spare: bytes = b"") -> Mgt:
    """Read the bytes in use, of the length that `read_length` gives. `spare` are bytes behind `data`.

    Raises FormatError.
    """
    xenvm = _XENVM.search(data, SR_START, SR_END)
    if xenvm:
        raise Unsupported("MGT", Place(MGT, xenvm.start()), "the SR was made by the xenvm experiment")
    sr, is_broken = _tags(data, SR_START)
    if not sr:
        raise Malformed("MGT record", Place(MGT, SR_START), "it does not read as the record of an SR")
    records, unread = [], []
    links: Dict[int, str] = {}
    broken = [SR_START] if is_broken else []
    live: Dict[str, int] = {}
    for offset in range(SR_END, len(data), RECORD_BYTES):
        tags, is_broken = _tags(data, offset)
        if is_broken:
            broken.append(offset)
        if not tags:
            unread.append(offset)
            continue
        record = _record(offset, tags)
        records.append(record)
        if not record.deleted and live.setdefault(record.uuid, offset) != offset:
            # SM's scan introduces the first, and fails at the second (LOCATION_NOT_UNIQUE)
            problem = f"it is a second live record of VDI {record.uuid}; the first is at byte {live[record.uuid]}"
            raise Malformed("MGT record", Place(MGT, offset), problem)
    if unread:
        slots = set(unread)
        for match in _LINK.finditer(data, SR_END):
            if slot_of(match.start(1)) in slots or slot_of(match.end(1)) in slots:
                links[match.start(1)] = match.group(1).decode("ascii")
    return Mgt(
        data=data,
        spare=spare,
        length=len(data),
        sr_uuid=_text(sr, b"uuid"),
        sr_uuid_at=sr[b"uuid"].start(2),
        name_label=_text(sr, b"name_label"),
        name_description=_text(sr, b"name_description"),
        records=records,
        broken=broken,
        unread=unread,
        links=links,
    )


def _tags(data: bytes, start: int) -> Tuple[Tags, bool]:
    """The tags of the SR part or of a slot, and whether SM's parser cannot read it. No tags: nor can this module.

    Raises Unsupported for what SM may read and has not written.
    """
    end, form, values, root = start + RECORD_BYTES, _VDI_FORM, _VDI_VALUES, "vdi"
    if start == SR_START:
        end, form, values, root = SR_END, _SR_FORM, _SR_VALUES, "uuid"
    found = list(_TAG.finditer(data, start, end))
    tags = {match.group(1): match for match in found}
    facts = tags.keys() - _LABELS
    is_known = (
        len(tags) == len(found)
        and values.keys() - _OPTIONAL <= facts <= values.keys()
        and all(values[name].fullmatch(tags[name].group(2)) for name in facts)
    )
    labels = [tags[name].group(2) for name in _LABELS if name in tags]
    if is_known and len(labels) == len(_LABELS) and all(map(_is_label, labels)) and form.fullmatch(data, start, end):
        return tags, False
    # SM leaves out as many bytes of the SR part as the XML header has, whatever they are
    if _may_read(data[start + len(_XML_HEADER) if start == SR_START else start : end], root):
        raise Unsupported("MGT record", Place(MGT, start), "it is XML, and not in the form of SM")
    return tags if is_known else {}, True


def _is_label(text: bytes) -> bool:
    """Is this a label as SM writes it, which SM's parser can read?"""
    try:
        said = text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return _LABEL.fullmatch(text) is not None and untrusted.xml_safe(said) == said


def _may_read(part: bytes, root: str) -> bool:
    """May SM read this part, in which it looks for a tag `root`? SM removes NULs, and parses the text in an element.

    SM writes no comment, declaration or processing instruction: a text with one is not parsed here, and counts.
    """
    from relvmoiscsi.untrusted_xml import xml_of  # noqa: PLC0415 - loads an HTTP client, and hardly any LUN needs it

    text = part.replace(b"\0", b"")
    if b"<!" in text or b"<?" in text:
        return True
    try:
        if untrusted.xml_safe(text.decode("utf-8")).encode("utf-8") != text:
            return False
        return any(each.tag.rpartition("}")[2] == root for each in xml_of(b"<m>" + text + b"</m>").iter())
    except ValueError:
        return False


def _record(offset: int, tags: Tags) -> VdiRecord:
    snapshot_of = _text(tags, b"snapshot_of")
    if snapshot_of.startswith("OpaqueRef:"):
        snapshot_of = ""  # SM ignores references, too
    return VdiRecord(
        offset=offset,
        uuid=_text(tags, b"uuid"),
        deleted=_text(tags, b"deleted") == "1",
        name_label=_text(tags, b"name_label"),
        name_description=_text(tags, b"name_description"),
        vdi_type=intern(_text(tags, b"vdi_type")),
        type=intern(_text(tags, b"type")),
        is_a_snapshot=_text(tags, b"is_a_snapshot") == "1",
        managed=_text(tags, b"managed") == "1",
        snapshot_of=snapshot_of,
        uuid_at=tags[b"uuid"].start(2),
        snapshot_of_at=tags[b"snapshot_of"].start(2) if snapshot_of else 0,
        deleted_at=tags[b"deleted"].start(2),
        metadata_of_pool=_text(tags, b"metadata_of_pool").replace("OpaqueRef:NULL", ""),
    )


def _text(tags: Tags, name: bytes) -> str:
    """The text of a tag as SM's parser reads it; "" without the tag."""
    text = tags[name].group(2).decode("utf-8", "replace") if name in tags else ""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return (unescape(text) if "&" in text else text).strip()


def other_tags(one: Mgt, record: VdiRecord, other: Mgt, twin: VdiRecord) -> List[str]:
    """The names of the tags whose texts differ between two records, without the tags that a new identity changes."""
    if _blanked(one, record) == _blanked(other, twin):  # nearly always, and thirty times as fast as the tags
        return []
    first, second = (
        {
            name: text
            for name, text in _TAG.findall(mgt.data, at, at + RECORD_BYTES)
            if name not in (b"uuid", b"snapshot_of")
        }
        for mgt, at in ((one, record.offset), (other, twin.offset))
    )
    return sorted(name.decode("ascii") for name in {*first, *second} if first.get(name) != second.get(name))


def _blanked(mgt: Mgt, record: VdiRecord) -> Tuple[int, int, bytes]:
    """The record with its UUIDs replaced by NULs, and the places of the UUIDs in the slot."""
    slot = bytearray(mgt.data[record.offset : record.offset + RECORD_BYTES])
    places = record.uuid_at - record.offset, record.snapshot_of_at - record.offset if record.snapshot_of else -1
    for at in places:
        if at >= 0:
            slot[at : at + len(record.uuid)] = bytes(len(record.uuid))
    return (*places, bytes(slot))


def slot_of(at: int) -> int:
    """The start of the record slot around a place, both in bytes from the start of the volume."""
    return at - (at - SR_END) % RECORD_BYTES


def changes(before: Mgt, after: Mgt, sr_uuid: str, uuids: Mapping[str, str]) -> List[Change]:
    """The bytes that change under new UUIDs: the UUID of the SR, `uuid` and `snapshot_of` of each record, the `links`.

    `before` is MGT as found, `after` MGT after SM's unfinished work: a slot that the work changes is written whole.
    """
    places = []
    for record in after.records:
        places.append((record.uuid_at, record.uuid, "MGT: UUID of VDI " + record.uuid))
        if record.snapshot_of:
            places.append((record.snapshot_of_at, record.snapshot_of, f"MGT: VDI {record.uuid} is a snapshot of"))
    for at, uuid in after.links.items():
        places.append((at, uuid, f"MGT: UUID in the unreadable record at byte {slot_of(at)}"))
    found = [Change(after.sr_uuid_at, after.sr_uuid.encode(), sr_uuid.encode(), "MGT: UUID of the SR")]
    found += [Change(at, old.encode("ascii"), uuids[old].encode("ascii"), what) for at, old, what in places]
    if after.data == before.data:
        return found
    final = bytearray(after.data)
    for change in found:
        final[change.offset : change.offset + len(change.new)] = change.new
    stored = before.data + before.spare
    slots = [(0, HEADER_BYTES, "MGT: bytes in use")]
    slots += [(at, RECORD_BYTES, f"MGT: record at byte {at}") for at in range(SR_END, len(final), RECORD_BYTES)]
    whole = [
        Change(at, stored[at : at + length], bytes(final[at : at + length]), what)
        for at, length, what in slots
        if stored[at : at + length] != after.data[at : at + length]
    ]
    covered, single = {change.offset for change in whole}, []
    for change in found:
        if change.offset < SR_END or slot_of(change.offset) not in covered:
            single.append(change)
    return single + whole


# --- records that SM would add


def new_record(uuid: str, name_label: str, vdi_type: str, kind: str = "user", managed: bool = True) -> bytes:
    """Both sectors of the record of a new VDI, with the tags in the order in which SM 3 writes them.

    A VDI that is not managed is a base copy, which is read-only.
    """
    names = f"<vdi><name_label>{name_label}</name_label><name_description></name_description>"
    facts = (
        f"<uuid>{uuid}</uuid><is_a_snapshot>0</is_a_snapshot><snapshot_of></snapshot_of><snapshot_time></snapshot_time>"
        f"<type>{kind}</type><vdi_type>{vdi_type}</vdi_type>"
        f"<read_only>{not managed:d}</read_only><managed>{managed:d}</managed>"
        "<metadata_of_pool></metadata_of_pool><deleted>0</deleted></vdi>"
    )
    half = RECORD_BYTES // 2
    return names.encode("utf-8").ljust(half) + facts.encode("utf-8").ljust(half)


def with_records(mgt: Mgt, wanted: Mapping[str, bytes], volume_size: int) -> Tuple[Mgt, List[str]]:
    """MGT with new records in free slots, and the UUIDs of the VDIs for which MGT has no slot left.

    `wanted` has the records by UUID (`new_record`). As SM does, this takes deleted slots first, then slots behind the
    bytes in use.
    """
    data = bytearray(mgt.data)
    free = [record.offset for record in mgt.records if record.deleted]
    most = min(volume_size, SR_END + MAX_RECORDS * RECORD_BYTES, mgt.length + len(mgt.spare))
    left_over = []
    for uuid, slot in wanted.items():
        if free:
            at = free.pop(0)
        elif len(data) + RECORD_BYTES <= most:
            at = len(data)
            data += bytes(RECORD_BYTES)
        else:
            left_over.append(uuid)
            continue
        data[at : at + RECORD_BYTES] = slot
    if len(data) > mgt.length:
        data[:HEADER_BYTES] = _header_bytes(mgt.data[:HEADER_BYTES], len(data))
    return read_mgt(bytes(data), mgt.spare[len(data) - mgt.length :]), left_over


def without_records(mgt: Mgt, uuids: Container[str]) -> Mgt:
    """MGT with the live records of these VDIs marked as deleted, as SM marks records."""
    data = bytearray(mgt.data)
    marked = {record.offset for record in mgt.records if record.uuid in uuids and not record.deleted}
    for record in mgt.records:
        if record.offset in marked:
            data[record.deleted_at : record.deleted_at + 1] = b"1"
    records = [record._replace(deleted=True) if record.offset in marked else record for record in mgt.records]
    return mgt._replace(data=bytes(data), records=records)


def _header_bytes(header: bytes, length: int) -> bytes:
    """The header with another length, padded to ten characters as SM does."""
    fields = header.split(b":")
    fields[1] = b"%-10d" % length
    return b":".join(fields)[:HEADER_BYTES].ljust(HEADER_BYTES)


# --- one record


def with_only(mgt: Mgt, uuid: str, vdi_type: str) -> Mgt:
    """MGT with one record only: the record of the VDI, or a new record, in which the VDI is no snapshot.

    Raises Malformed when the record has no room.
    """
    found = mgt.live().get(uuid)
    slot = new_record(uuid, "", vdi_type)
    if found is not None:
        slot = _with_tags(mgt.data, found, is_a_snapshot="0", snapshot_of="", vdi_type=vdi_type)
    end = SR_END + RECORD_BYTES
    data = _header_bytes(mgt.data[:HEADER_BYTES], end) + mgt.data[HEADER_BYTES:SR_END] + slot
    return read_mgt(data, (mgt.data + mgt.spare)[end:])


def without_pools(mgt: Mgt) -> Mgt:
    """MGT with the tag `metadata_of_pool` of all VDIs empty."""
    data = bytearray(mgt.data)
    for record in mgt.live().values():
        if record.metadata_of_pool:
            data[record.offset : record.offset + RECORD_BYTES] = _with_tags(mgt.data, record, metadata_of_pool="")
    return read_mgt(bytes(data), mgt.spare)


def _with_tags(data: bytes, record: VdiRecord, **texts: str) -> bytes:
    """The slot of a record with other texts in these tags. Raises Malformed when the slot has no room.

    SM writes these tags into the second sector, and pads it with blanks. Another writer may have padded it with NULs.
    """
    slot = data[record.offset : record.offset + RECORD_BYTES]
    for name, text in texts.items():
        tag = f"<{name}>{text}</{name}>".encode("ascii")
        slot = re.sub(f"<{name}>[^<]*</{name}>".encode("ascii"), tag, slot)
    slot = slot.rstrip(b" \0").ljust(RECORD_BYTES)
    if len(slot) > RECORD_BYTES:
        problem = f"the record of VDI {record.uuid} fills its {RECORD_BYTES} bytes, and has no room for other texts"
        raise Malformed("MGT record", Place(MGT, record.offset), problem)
    return slot
