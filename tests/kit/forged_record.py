# SPDX-License-Identifier: LGPL-2.1-only
"""What each writer of a raw LUN can write, or its array: a commit record without a run."""

from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import Place
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    RECORD_MAGIC,
    RESIGNATURE,
    CommitRecord,
    scsi_id_digest,
    with_commit_record,
)


def forge_record(disk, scsi_id, phase=DONE):
    """Make the label say that the LUN was resignatured for this SCSIid. All identities stay, and no journal comes."""
    label = pv.find_label(disk.read([Range(0, pv.LABEL_SECTORS * 512)])[0], Place(disk.name, 0))
    record = CommitRecord.zero(
        magic=RECORD_MAGIC, version=1, phase=phase, kind=RESIGNATURE, journal_length=4096, run_id=b"r" * 16,
        journal_offset=8192, scsi_id_digest=scsi_id_digest(scsi_id), journal_digest=b"x" * 32,
    )  # fmt: skip
    disk.write([Chunk(label.offset, with_commit_record(label.sector, record))])
    return disk
