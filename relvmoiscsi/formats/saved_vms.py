# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs on a small raw VDI of their SR, which `relvmoiscsi pool save-vms` writes.

The array's snapshot contains the records. They say which VM used each disk, and describe the VM, without the pool.

    0      header, 512 bytes: magic, version, checksum of the header, lengths, digest of index and records
    512    index: JSON; the SR, the time, and for each VM its UUID, name, state, disks, and the place of its records
    ...    the records of each VM: ova.xml as xapi exports the VM, without vTPM, compressed (zlib)
    ...    the header once more: a save that was cut before its end lacks it
    ...    zeros to the end of the VDI

    t0     a save makes a new VDI and writes the records
    t1     the save destroys the VDI of the save before

A save that is cut between t0 and t1 leaves the VDI of the save before. So does a snapshot that the array takes between
t0 and t1. When several VDIs can be read, the VDI with the highest serial counts: clocks of hosts may be wrong.
docs/formats/saved-vms.rst.

A guest that can write to the VDI may write any bytes there. So each length, count and depth has a limit. The records of
a VM are unpacked only when a caller asks for that VM. `unpack` refuses content that `pack` never makes.
"""

import hashlib
import hmac
import json
import zlib
from itertools import accumulate
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.errors import BadChecksum, BadMagic, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.formats.ondisk import Record, le32, le64, raw
from relvmoiscsi.untrusted import size_of, text_of

NAME_LABEL = "VM records (relvmoiscsi)"  #: of the VDI
MAGIC = b"relvmoiscsi VMs\0"
VERSION = 1
MOST_BYTES = 64 << 20  #: of index and all records, compressed
MOST_VDI_BYTES = 68 << 20  #: of the VDI, which has whole extents: MOST_BYTES, and a header before and behind
MOST_INDEX_BYTES = 4 << 20
MOST_RECORDS_BYTES = 16 << 20  #: of one VM, unpacked
MOST_UNPACKED_BYTES = 256 << 20  #: of all VMs of one call of `documents`
MOST_SERIAL = 1 << 48
MOST_NAMES_BYTES = 16 << 10  #: of the names of VMs in an answer about a LUN, as JSON
_MOST_NAME = 128  #: characters of such a name
_MOST_VALUES = MOST_INDEX_BYTES // 12  #: of the index: the row of a disk has four in 51 bytes or more
MOST_NAME = 256  #: characters of a name in the index; a name in the records of the VM is whole
_FRAME_BYTES = 1 << 10  #: what the index has beside its rows

_WHAT = "Saved VM records"
_MORE = "…"
_SEALED = b"relvmoiscsi VM records\0"  #: what the pool's key seals with the digest
_FINGERPRINT = 16  #: hexadecimal digits


class SavedHeader(Record, size=512):
    """The start of the VDI; little-endian."""

    # fmt: off
    magic        = raw(0, 16)
    version      = le32(16)
    crc          = le32(20)     #: CRC-32 of these 512 bytes with this field zero
    index_length = le64(24)     #: bytes, from byte 512
    length       = le64(32)     #: bytes of the index and all records, from byte 512
    digest       = raw(40, 32)  #: SHA-256 of the index and all records
    seal         = raw(72, 32)  #: HMAC-SHA256 of the digest, by a key of the pool; zeros without a key
    reserved     = raw(104, 408)
    # fmt: on


class SavedDisk(NamedTuple):
    """A disk of a VM, at the time of the save."""

    userdevice: str
    vdi: str  #: UUID
    name_label: str


class SavedVm(NamedTuple):
    """A VM, at the time of the save."""

    uuid: str
    name_label: str
    power_state: str
    disks: Tuple[SavedDisk, ...]
    saved_at: str = ""  #: UTC, of the save that has made the records; "" for the save that has them


class PackedVm(NamedTuple):
    """A VM to save."""

    vm: SavedVm
    body: bytes  #: its ova.xml, compressed
    unpacked_bytes: int  #: of its ova.xml

    def row(self, offset: int) -> Dict[str, Any]:
        """The row of the index."""
        row = {**self.vm._asdict(), "disks": [disk._asdict() for disk in self.vm.disks]}
        if not self.vm.saved_at:
            del row["saved_at"]
        return {**row, "offset": offset, "length": len(self.body)}


class SavedVms(NamedTuple):
    """The content of a VDI with saved records."""

    sr_uuid: str  #: of the SR that held the VDI at the time of the save
    when: str  #: UTC: "2026-11-22T12:00:00Z"
    serial: int  #: the number of the save on that SR, from 1
    vms: Tuple[SavedVm, ...]
    places: Mapping[str, slice]  #: of each ova.xml in `packed`, by UUID of the VM
    packed: bytes  #: each ova.xml, compressed; b"" from `read_index`
    volume: str  #: name of the volume, for messages
    digest: bytes  #: of index and records
    seal: bytes

    def is_sealed_by(self, key: bytes) -> bool:
        """Did a writer with this key write the records?"""
        return bool(key) and hmac.compare_digest(self.seal, _seal(key, self.digest))

    def names_json(self) -> str:
        """The names of the VMs as a JSON list of at most MOST_NAMES_BYTES; "…" stands for all that do not fit."""
        shown: List[str] = []
        left_bytes = MOST_NAMES_BYTES - len(json.dumps([_MORE]))
        for vm in self.vms:
            name = vm.name_label[:_MOST_NAME]
            left_bytes -= len(json.dumps(name)) + len(", ")
            if left_bytes < 0:
                return json.dumps([*shown, _MORE])
            shown.append(name)
        return json.dumps(shown)

    @property
    def fingerprint(self) -> str:
        """A short name of these records, by which a person recognizes the output of the save."""
        return self.digest.hex()[:_FINGERPRINT]

    @property
    def order(self) -> Tuple[int, str]:
        """A key to sort saves by: the last save has the greatest key."""
        return self.serial, self.when

    def documents(self, uuids: Sequence[str]) -> Dict[str, bytes]:
        """The ova.xml of each of these VMs, by UUID. Raises Malformed."""
        found: Dict[str, bytes] = {}
        where, remaining = Place(self.volume, SavedHeader.SIZE), MOST_UNPACKED_BYTES
        for uuid in uuids:
            limit = min(remaining, MOST_RECORDS_BYTES)
            unpacking = zlib.decompressobj()
            try:
                document = unpacking.decompress(self.packed[self.places[uuid]], limit + 1)
            except zlib.error as error:
                raise Malformed(_WHAT, where, f"the records of {uuid} cannot be unpacked ({error})") from error
            if not unpacking.eof or unpacking.unused_data or len(document) > limit:
                problem = f"the records of {uuid} unpack to more than {limit} bytes, or do not end"
                raise Malformed(_WHAT, where, problem)
            found[uuid] = document
            remaining -= len(document)
        return found


def may_be(name_label: str, size_bytes: int) -> bool:
    """May a VDI with this name and virtual size have records? Everybody may give a VDI the name."""
    return name_label == NAME_LABEL and 0 < size_bytes <= MOST_VDI_BYTES


def packed(vm: SavedVm, document: bytes) -> PackedVm:
    """A VM to save, with its ova.xml."""
    return PackedVm(vm, zlib.compress(document), len(document))


def fitting(vms: Sequence[PackedVm]) -> List[PackedVm]:
    """The VMs that one save has room for, in their order: the largest are left out.

    A tenant gives VMs and disks names, keys and snapshots of any length. The save is for the VMs of all tenants.
    """
    rows = {each.vm.uuid: len(json.dumps(each.row(MOST_BYTES))) + len(", ") for each in vms}
    measures: Sequence[Tuple[int, Callable[[PackedVm], int]]] = (
        (MOST_INDEX_BYTES - _FRAME_BYTES, lambda each: rows[each.vm.uuid]),
        (MOST_BYTES - _FRAME_BYTES, lambda each: rows[each.vm.uuid] + len(each.body)),
        (MOST_UNPACKED_BYTES, lambda each: each.unpacked_bytes),
    )
    kept = list(vms)
    for room, size in measures:
        kept = [kept[at] for at in sorted(untrusted.smallest(list(map(size, kept)), room))]
    return kept


def pack(sr_uuid: str, when: str, serial: int, vms: Sequence[PackedVm], key: bytes = b"") -> bytes:
    """The content of the VDI, without the zeros at the end, sealed by `key`.

    The caller must keep the limits; `fitting` does.
    """
    starts = [0, *accumulate(len(each.body) for each in vms)]
    rows = [each.row(offset) for each, offset in zip(vms, starts)]
    facts = {"sr": sr_uuid, "when": when, "serial": serial, "vms": rows}
    index = json.dumps(facts, sort_keys=True).encode("utf-8")
    content = index + b"".join(each.body for each in vms)
    digest = hashlib.sha256(content).digest()
    header = SavedHeader(bytes(SavedHeader.SIZE)).replace(
        magic=MAGIC,
        version=VERSION,
        index_length=len(index),
        length=len(content),
        digest=digest,
        seal=_seal(key, digest) if key else bytes(len(digest)),
    )
    head = bytes(header.replace(crc=_crc(header)))
    return head + content + head


def read_header(head: bytes, volume: str) -> SavedHeader:
    """The header in the first 512 bytes. Raises FormatError."""
    where = Place(volume, 0)
    header = SavedHeader.at(head, 0, where)
    if header.magic != MAGIC:
        raise BadMagic(_WHAT, where, header.magic, MAGIC)
    if header.crc != _crc(header):
        raise BadChecksum(_WHAT, where, header.crc, _crc(header))
    if header.version != VERSION:
        raise Unsupported(_WHAT, where, f"their version is {header.version}")
    if not header.index_length <= header.length <= MOST_BYTES or header.index_length > MOST_INDEX_BYTES:
        raise Malformed(_WHAT, where, f"{header.length} bytes with an index of {header.index_length}")
    return header


def unpack(header: SavedHeader, content: bytes, volume: str) -> SavedVms:
    """The index and the records in `content`, the bytes behind the header; surplus bytes are ignored.

    Raises FormatError.
    """
    where = Place(volume, SavedHeader.SIZE)
    content, end = content[: header.length], content[header.length : header.length + SavedHeader.SIZE]
    if len(content) + len(end) < header.length + SavedHeader.SIZE:
        raise Truncated(_WHAT, where, header.length + SavedHeader.SIZE, len(content) + len(end))
    if hashlib.sha256(content).digest() != header.digest:
        raise Malformed(_WHAT, where, "their digest and the digest in the header differ")
    found = read_index(header, content[: header.index_length], end, volume)
    return found._replace(packed=content[header.index_length :])


def read_index(header: SavedHeader, index: bytes, end: bytes, volume: str) -> SavedVms:
    """The save without its records: their digest is not verified. `end` are the 512 bytes behind the records.

    Raises FormatError.
    """
    where = Place(volume, SavedHeader.SIZE)
    if end != bytes(header):
        raise Malformed(_WHAT, where, "the header does not follow the records once more")
    try:
        facts = untrusted.object_of(index, MOST_INDEX_BYTES, _MOST_VALUES)
        sr_uuid, when = text_of(facts["sr"]), text_of(facts["when"])
        untrusted.utc_seconds(when)
        serial = size_of(facts.get("serial", 0))
        if serial > MOST_SERIAL:
            raise ValueError("the serial is out of range")
        vms: List[SavedVm] = []
        places: Dict[str, slice] = {}
        at = 0
        for row in _list(facts["vms"]):
            disks = tuple(
                SavedDisk(text_of(disk["userdevice"]), text_of(disk["vdi"]), text_of(disk["name_label"]))
                for disk in _list(row["disks"])
            )
            names = text_of(row["uuid"]), text_of(row["name_label"]), text_of(row["power_state"])
            vm = SavedVm(*names, disks, text_of(row.get("saved_at", "")))
            if vm.saved_at:
                untrusted.utc_seconds(vm.saved_at)
            if not is_uuid(vm.uuid):
                raise ValueError("the UUID of a VM is none")
            if size_of(row["offset"]) != at or vm.uuid in places:
                raise ValueError("records overlap, leave a gap, or belong to one VM twice")
            vms.append(vm)
            places[vm.uuid] = slice(at, at + size_of(row["length"]))
            at += row["length"]
        if at != header.length - header.index_length:
            raise ValueError("the records end before the content, or behind it")
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(_WHAT, where, f"their index cannot be read ({error})") from error
    return SavedVms(sr_uuid, when, serial, tuple(vms), places, b"", volume, header.digest, header.seal)


def _seal(key: bytes, digest: bytes) -> bytes:
    return hmac.new(key, _SEALED + digest, hashlib.sha256).digest()


def _crc(header: SavedHeader) -> int:
    return zlib.crc32(bytes(header.replace(crc=0)))


def _list(value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise ValueError("a value is not a list")
    return value
