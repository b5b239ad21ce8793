# SPDX-License-Identifier: LGPL-2.1-only
"""Read the MGT volume, and say which bytes of the volume a new identity changes.

The MGT volume has neither integers nor checksums, only padded text.

    0        header: XSSM:<length>:<major>:<minor>, padded with spaces
    512      SR: <uuid> and <allocation>
    1024     SR: <name_label>
    1536     SR: <name_description>
    2048     VDI records of 1024 bytes: <vdi><name_label>..<name_description>.. | all other tags </vdi>

This module finds tags by a pattern, not by an XML parser. SM escapes labels, so `<uuid>` always is a tag. And SM has
written two kinds of records that are not XML:

    cut label       SM cuts a long label to its room, so a label may end inside an entity (`&am`)
    shifted record  SM 3.0.0 to 3.0.12 counted characters for bytes: a record with non-ASCII text is k bytes too long,
                    its second sector starts k bytes late, and rewriting it blanked the first k bytes of the next record

A VDI whose record cannot be read loses its label and nothing else: SM attaches such an SR. A resignature changes only
the UUIDs in such a record. When a VDI has several records, the last record counts, for SM and here.

SM reads each record with an XML parser. Whoever writes to a raw LUN can write XML that the pattern here reads
otherwise, for example a record with a blank in a tag. So MGT is refused where SM can read a record that does not have
SM's own form, or a record of that form that this module cannot read and that names a pool for its database.

Source: SM drivers/srmetadata.py (LVMMetadataHandler), drivers/metadata.py.
"""

import re
from collections import Counter
from html import unescape
from sys import intern
from typing import Container, Dict, List, Mapping, NamedTuple, Optional, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Malformed, Place, Unsupported, shown_bytes
from relvmoiscsi.formats.identity import UUID_PATTERN, is_uuid
from relvmoiscsi.formats.naming import MGT
from relvmoiscsi.formats.ondisk import Change
from relvmoiscsi.wording import said

# fmt: off
MAGIC          = b"XSSM"
HEADER_FIELDS  = 4             #: magic, length, major, minor; separated by colons
MAJOR          = 1
HEADER_BYTES   = 512
SR_START       = 512           #: bytes from the start of the volume
SR_END         = 2048          #: the VDI records start here
RECORD_BYTES   = 1024
MAX_RECORDS    = 4094          #: the volume has 4 MiB
#: tags of an experiment of 2015 (xenvm) that kept its own allocation map
XENVM_TAGS     = (b"initial_allocation", b"allocation_quantum")
# fmt: on
#: the types of a VDI that SM and xapi know. Source: xen-api ocaml/idl/datamodel.ml, vdi_type
TYPES = (
    *("system", "user", "ephemeral", "suspend", "crashdump", "ha_statefile", "metadata", "redo_log", "rrd"),
    *("pvs_cache", "cbt_metadata"),
)

_TAG = re.compile(rb"<([a-z_]+)>([^<]*)</\1>")
_END = b"</vdi>"
_OF_POOL, _NO_POOL = b"metadata_of_pool", b"OpaqueRef:NULL"
#: the slot of a record as SM writes it: each tag in its plainest form. SM ignores texts between the tags
_WRITTEN = re.compile(rb"[^<]*<vdi>(?:[^<]*<([a-z_]+)>[^<]*</\1>)*[^<]*</vdi>[^<]*")
_LINK = re.compile(rb"<(?:uuid|snapshot_of)>\s*(" + UUID_PATTERN.encode("ascii") + rb")(?![0-9a-f])")


#: tag names, and the text of each tag as stored
Tags = Dict[bytes, bytes]


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
    damaged: List[int]  #: offsets of records of which a shifted record has blanked the start
    unread: List[int]  #: offsets of slots whose record cannot be read
    links: Dict[int, str]  #: the UUIDs in tags `uuid` and `snapshot_of` of these slots, by their place in the volume

    def live(self) -> Dict[str, VdiRecord]:
        """The last live record of each VDI, by VDI UUID."""
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
    fields = [field.strip().decode("ascii", "replace") for field in header.replace(b"\0", b"").split(b":")]
    if len(fields) != HEADER_FIELDS or not all(untrusted.is_number(field) for field in fields[1:]):
        raise Malformed("MGT header", where, "it reads " + shown_bytes(header.rstrip(b" \0")[:64]))
    length, major, _minor = (untrusted.number(field) for field in fields[1:])
    if major != MAJOR:
        raise Unsupported("MGT header", where, f"its version is {major}")
    whole = length >= SR_END and (length - SR_END) % RECORD_BYTES == 0
    most = SR_END + MAX_RECORDS * RECORD_BYTES
    if not whole or length > min(volume_size, most):
        raise Malformed("MGT header", where, f"it says that {length} of {volume_size} bytes are in use")
    return length


def read_mgt(data: bytes, spare: bytes = b"") -> Mgt:
    """Read the bytes in use, of the length that `read_length` gives. `spare` are bytes behind `data`.

    Raises FormatError.
    """
    sr = _tags(data, SR_START, SR_END, Place(MGT, SR_START))
    for name in XENVM_TAGS:
        if name in sr:
            where = Place(MGT, _at(data, name, sr, SR_START))
            raise Unsupported("MGT", where, "the SR was made by the xenvm experiment")
    records, damaged, unread = [], [], []
    links: Dict[int, str] = {}
    for offset in range(SR_END, len(data), RECORD_BYTES):
        slot = data[offset : offset + RECORD_BYTES]
        try:
            record: Optional[VdiRecord] = _record(data, offset)
        except Malformed:
            record = None
        _verify_form(slot, Place(MGT, offset), record is not None)
        if record is None:
            unread.append(offset)
            for match in _LINK.finditer(data, offset, offset + RECORD_BYTES):
                links[match.start(1)] = match.group(1).decode("ascii")
            continue
        records.append(record)
        if not slot.replace(b"\0", b"").startswith(b"<vdi>"):
            damaged.append(offset)
    sr_uuid = _uuid("SR", sr, Place(MGT, SR_START))
    return Mgt(
        data=data,
        spare=spare,
        length=len(data),
        sr_uuid=sr_uuid,
        sr_uuid_at=_at(data, b"uuid", sr, SR_START),
        name_label=_text(sr, b"name_label"),
        name_description=_text(sr, b"name_description"),
        records=records,
        damaged=damaged,
        unread=unread,
        links=links,
    )


def _verify_form(slot: bytes, where: Place, is_read: bool) -> None:
    """Raise Unsupported where SM may read in a slot what this module does not. `is_read`: this module reads a record.

    A slot in the form of SM hides no tag. If this module reads no record there, the VDI must hold no pool's database.
    """
    is_plain = _WRITTEN.fullmatch(slot) is not None
    if is_plain and not is_read:
        is_plain = all(text.strip() in (b"", _NO_POOL) for name, text in _TAG.findall(slot) if name == _OF_POOL)
    if not is_plain and _may_read(slot):
        raise Unsupported("MGT record", where, "it is XML, and not in the form of SM")


def _may_read(slot: bytes) -> bool:
    """May SM read a record in this slot? SM removes NULs, puts the text into an element, and parses that.

    SM writes no comment, declaration or processing instruction: a text with one is not parsed here, and counts.
    """
    from relvmoiscsi.untrusted_xml import xml_of  # noqa: PLC0415 - loads an HTTP client, and hardly any LUN needs it

    text = slot.replace(b"\0", b"")
    if b"<!" in text or b"<?" in text:
        return True
    try:
        return any(each.tag.rpartition("}")[2] == "vdi" for each in xml_of(b"<m>" + text + b"</m>").iter())
    except ValueError:
        return False


def _tags(data: bytes, start: int, end: int, where: Place) -> Tags:
    pairs = _TAG.findall(data, start, end)
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _text in pairs).most_common(1)[0][0].decode("ascii")
        raise Malformed("MGT record", where, f"it has two tags {name}")
    return found


def _at(data: bytes, name: bytes, tags: Tags, start: int) -> int:
    """The place of a tag's text without its leading blanks, in bytes from the start of the volume; 0 without the tag.

    `tags` were found behind `start`.
    """
    if name not in tags:
        return 0
    text = tags[name]
    opening = b"<" + name + b">"
    return data.index(opening + text + b"</" + name + b">", start) + len(opening) + len(text) - len(text.lstrip())


def _record(data: bytes, offset: int) -> VdiRecord:
    end, where = offset + RECORD_BYTES, Place(MGT, offset)
    tags = _tags(data, offset, end, where)
    if tags.get(b"deleted") not in (b"0", b"1") or data.find(_END, offset, end) < 0:
        raise Malformed("MGT record", where, "it does not read as a VDI record")
    snapshot_of = _text(tags, b"snapshot_of")
    if snapshot_of.startswith("OpaqueRef:"):
        snapshot_of = ""  # SM ignores references, too
    if snapshot_of and not is_uuid(snapshot_of):
        raise Malformed("MGT record", where, f"it is a snapshot of {said(snapshot_of)}")
    return VdiRecord(
        offset=offset,
        uuid=_uuid("VDI", tags, where),
        deleted=tags[b"deleted"] == b"1",
        name_label=_text(tags, b"name_label"),
        name_description=_text(tags, b"name_description"),
        vdi_type=intern(_text(tags, b"vdi_type")),
        type=intern(_text(tags, b"type")),
        is_a_snapshot=_text(tags, b"is_a_snapshot") == "1",
        managed=_text(tags, b"managed") != "0",
        snapshot_of=snapshot_of,
        uuid_at=_at(data, b"uuid", tags, offset),
        snapshot_of_at=_at(data, b"snapshot_of", tags, offset),
        deleted_at=_at(data, b"deleted", tags, offset),
        metadata_of_pool=_text(tags, b"metadata_of_pool").replace("OpaqueRef:NULL", ""),
    )


def _uuid(what: str, tags: Tags, where: Place) -> str:
    text = _text(tags, b"uuid")
    if not is_uuid(text):
        raise Malformed("MGT record", where, f"its {what} UUID is {said(text)}" if text else f"it has no {what} UUID")
    return text


def _text(tags: Tags, name: bytes) -> str:
    text = tags[name].strip().decode("utf-8", "replace") if name in tags else ""
    return unescape(text) if "&" in text else text


def other_tags(one: Mgt, record: VdiRecord, other: Mgt, twin: VdiRecord) -> List[str]:
    """The names of the tags whose texts differ between two records, without the tags that a new identity changes."""
    if _blanked(one, record) == _blanked(other, twin):  # nearly always, and thirty times as fast as the tags
        return []
    first, second = (
        {
            name: text.strip()
            for name, text in _tags(mgt.data, at, at + RECORD_BYTES, Place(MGT, at)).items()
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

    `kind` is one of TYPES, because SM escapes labels alone. A VDI that is not managed is a base copy, which is
    read-only.
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
    now = bytes(data)  # of thousands of records, only the marked records are read again
    records = [_record(now, record.offset) if record.offset in marked else record for record in mgt.records]
    return mgt._replace(data=now, records=records)


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
