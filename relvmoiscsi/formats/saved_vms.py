# SPDX-License-Identifier: LGPL-2.1-only
"""Records of VMs on a small raw VDI of their SR, written by `relvmoiscsi pool save-vms`: they travel in the array's
snapshot, and tell of each disk whose it was, and what that VM was, without the pool.

    0      header, 512 bytes: magic, version, checksum of the header, lengths, digest of all that follows
    512    index: JSON; the SR, the time, and for each VM its UUID, name, state, disks, and where its records are
    ...    the records of each VM: ova.xml as xapi exports it, without vTPM, compressed (zlib)
    ...    zeros to the end of the VDI

Every save makes a VDI of its own and destroys the one before when it is whole. So one that is cut, or caught by the
array's snapshot, leaves the one before; of several that read, the last one counts. docs/formats/saved-vms.rst.
"""

import hashlib
import json
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import BadChecksum, BadMagic, Malformed, Place, Truncated, Unsupported
from relvmoiscsi.formats.ondisk import Record, le32, le64, raw

NAME_LABEL = "VM records (relvmoiscsi)"  #: of the VDI
MAGIC = b"relvmoiscsi VMs\0"
VERSION = 1
MOST_BYTES = 256 << 20  #: of index and records, and of what one VM's unpack to

_WHAT = "Saved VM records"


class SavedHeader(Record, size=512):
    """The start of the VDI; little-endian."""

    # fmt: off
    magic        = raw(0, 16)
    version      = le32(16)
    crc          = le32(20)     #: CRC-32 of these 512 bytes with this field zero
    index_length = le64(24)     #: bytes, from byte 512
    length       = le64(32)     #: bytes of the index and all records, from byte 512
    digest       = raw(40, 32)  #: SHA-256 of these
    reserved     = raw(72, 440)
    # fmt: on


class SavedDisk(NamedTuple):
    """A disk of a VM, as it was."""

    userdevice: str
    vdi: str  #: UUID
    name_label: str


class SavedVm(NamedTuple):
    """A VM, as it was."""

    uuid: str
    name_label: str
    power_state: str
    disks: Tuple[SavedDisk, ...]


class SavedVms(NamedTuple):
    """What a VDI says."""

    sr_uuid: str  #: of the SR on which it was saved
    when: str  #: UTC: "2026-11-22T12:00:00Z"
    vms: Tuple[SavedVm, ...]
    documents: Mapping[str, bytes]  #: ova.xml by UUID of the VM


def pack(sr_uuid: str, when: str, vms: Sequence[Tuple[SavedVm, bytes]]) -> bytes:
    """The content of the VDI, without the zeros behind it; each VM with its ova.xml."""
    bodies = [zlib.compress(document) for _, document in vms]
    rows: List[Dict[str, Any]] = []
    offset = 0
    for (vm, _), body in zip(vms, bodies):
        disks = [disk._asdict() for disk in vm.disks]
        rows.append({**vm._asdict(), "disks": disks, "offset": offset, "length": len(body)})
        offset += len(body)
    index = json.dumps({"sr": sr_uuid, "when": when, "vms": rows}, sort_keys=True).encode("utf-8")
    content = index + b"".join(bodies)
    header = SavedHeader(bytes(SavedHeader.SIZE)).replace(
        magic=MAGIC,
        version=VERSION,
        index_length=len(index),
        length=len(content),
        digest=hashlib.sha256(content).digest(),
    )
    return bytes(header.replace(crc=_crc(header))) + content


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
    if not header.index_length <= header.length <= MOST_BYTES:
        raise Malformed(_WHAT, where, f"{header.length} bytes with an index of {header.index_length}")
    return header


def unpack(header: SavedHeader, content: bytes, volume: str) -> SavedVms:
    """What is behind the header, of which there may be more than it says. Raises FormatError."""
    where = Place(volume, SavedHeader.SIZE)
    content = content[: header.length]
    if len(content) < header.length:
        raise Truncated(_WHAT, where, header.length, len(content))
    if hashlib.sha256(content).digest() != header.digest:
        raise Malformed(_WHAT, where, "they are not what their digest says")
    try:
        index = json.loads(content[: header.index_length].decode("utf-8"))
        bodies = content[header.index_length :]
        vms = tuple(_vm(row) for row in index["vms"])
        documents = {
            str(row["uuid"]): _document(bodies[row["offset"] : row["offset"] + row["length"]]) for row in index["vms"]
        }
        return SavedVms(str(index["sr"]), str(index["when"]), vms, documents)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Malformed(_WHAT, where, f"their index cannot be read ({error})") from error


def _crc(header: SavedHeader) -> int:
    return zlib.crc32(bytes(header.replace(crc=0)))


def _vm(row: Mapping[str, Any]) -> SavedVm:
    disks = tuple(SavedDisk(**disk) for disk in row["disks"])
    return SavedVm(str(row["uuid"]), str(row["name_label"]), str(row["power_state"]), disks)


def _document(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    document = unpacking.decompress(body, MOST_BYTES)
    if not unpacking.eof:
        raise ValueError("records that go on")
    return document
