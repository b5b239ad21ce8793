# SPDX-License-Identifier: LGPL-2.1-only
"""The commit record of a run: the last bytes of the label sector, which LVM leaves alone.

    label sector   0        352               512
                   | LVM's  | CommitRecord    |       phase, address and digest of the journal, under LVM's checksum

LVM keeps the record when LVM updates the VG, and erases the record when LVM changes the identity of the PV. A run moves
the record through the phases IN_PROGRESS, SWITCHED and DONE; docs/protocol.rst says what the LUN holds in each phase. A
label has no record before the first run, and after an undo.

Everybody who writes the LUN can write a record. So the record has the ids that the resignature has replaced: they prove
that PV and VG have new ids (`proves`).
"""

import hashlib
from typing import Optional

from relvmoiscsi.device import SECTOR
from relvmoiscsi.errors import Place, Unsupported, WayOut
from relvmoiscsi.formats.identity import derived_lvm_id
from relvmoiscsi.formats.lvm.pv import Label, sealed_label
from relvmoiscsi.formats.ondisk import Record, le32, le64, raw, u8

RECORD_MAGIC = b"reLVMtag"
RECORD_VERSION = 1

IN_PROGRESS, SWITCHED, DONE = 1, 2, 3
PHASES = (IN_PROGRESS, SWITCHED, DONE)
RESIGNATURE, UNDO = 1, 2
KINDS = {RESIGNATURE: "resignature", UNDO: "undo"}

# fmt: off


class CommitRecord(Record, size=160):
    """The last 160 bytes of the label sector."""

    magic          = raw(0, 8)
    version        = u8(8)
    phase          = u8(9)
    kind           = u8(10)
    reserved1      = u8(11)
    journal_length = le32(12)     #: bytes
    run_id         = raw(16, 16)
    journal_offset = le64(32)     #: bytes from the start of the device
    scsi_id_digest = raw(40, 16)  #: digest of the LUN's SCSIid at the time of the run; zeros: the SCSIid was not known
    writer         = raw(56, 4)   #: of the run: `Fence.writer`; zeros: nobody knows
    claim          = le32(60)     #: of the host that recovers the run: `Fence.claim`; 0: no host does
    journal_digest = raw(64, 32)  #: SHA-256 of the JournalHeader, which has the digest of the payload
    replaced_pv_id = raw(96, 32)  #: before the resignature that this run makes, or that this run takes back
    replaced_vg_id = raw(128, 32) #: the same; both ids without dashes


# fmt: on

COMMIT_RECORD_AT = SECTOR - CommitRecord.SIZE
_BY_THAT_VERSION = WayOut(sentence="Finish or undo the run with that version.")


def proves(record: CommitRecord, sr_uuid: str, pv_id: str, vg_id: str) -> bool:
    """Whether PV and VG have the ids that a resignature has given them: derived for this SR, from the replaced ids.

    The ids of another LUN never prove a resignature: nobody finds a replaced id from which a given id is derived.
    """
    replaced = (replaced.decode("latin-1") for replaced in (record.replaced_pv_id, record.replaced_vg_id))
    return [derived_lvm_id(sr_uuid, old) for old in replaced] == [pv_id, vg_id]


def is_of_another_lun(record: Optional[CommitRecord], scsi_id: Optional[str]) -> bool:
    """Whether the run of `record` was made on a LUN with another SCSIid: then this LUN is a copy of that LUN.

    A LUN whose SCSIid is not known counts as another LUN than one whose SCSIid the record has.
    """
    return record is not None and any(record.scsi_id_digest) and record.scsi_id_digest != scsi_id_digest(scsi_id)


def scsi_id_digest(scsi_id: Optional[str]) -> bytes:
    """The digest of a SCSIid in a record: 16 bytes; zeros when the SCSIid is not known."""
    return hashlib.sha256(b"SCSIid " + scsi_id.encode("utf-8")).digest()[:16] if scsi_id else bytes(16)


def read_commit_record(label: Label, name: str) -> Optional[CommitRecord]:
    """The record in the label of the device `name`; None when the label has no record.

    Raises Unsupported when the place of the record holds unknown bytes, or a record of a later version of relvmoiscsi.
    """
    where = Place(name, label.offset)
    anew = WayOut(("pvchange", "--uuid"), (name,))  # LVM writes a label without unknown bytes
    if label.as_of_today(where).used_end > COMMIT_RECORD_AT:
        raise Unsupported("LVM label", where, "its lists leave no room for a commit record").with_way_out(anew)
    data = label.sector[COMMIT_RECORD_AT:]
    if not any(data):
        return None
    record = CommitRecord.at(data)
    place = where.plus(COMMIT_RECORD_AT)
    if record.magic != RECORD_MAGIC:
        raise Unsupported("LVM label", place, "its last bytes are in use by something else").with_way_out(anew)
    if record.version != RECORD_VERSION or record.phase not in PHASES or record.kind not in KINDS:
        problem = "it was made by another version of relvmoiscsi"
        raise Unsupported("Commit record", place, problem).with_way_out(_BY_THAT_VERSION)
    return record


def written_by(sector: bytes, writer: bytes, claim: int = 0) -> bytes:
    """The label with this writer and this claim in its record."""
    return with_commit_record(sector, CommitRecord.at(sector, COMMIT_RECORD_AT).replace(writer=writer, claim=claim))


def with_commit_record(sector: bytes, record: Optional[CommitRecord]) -> bytes:
    """A label sector with this record, or without a record, and with the checksum of its content."""
    return sealed_label(sector[:COMMIT_RECORD_AT] + (bytes(record) if record else bytes(CommitRecord.SIZE)))
