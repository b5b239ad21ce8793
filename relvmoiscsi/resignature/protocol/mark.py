# SPDX-License-Identifier: LGPL-2.1-only
"""The mark of a run: the last bytes of the label sector, which LVM leaves alone.

    label sector   0        416               512
                   | LVM's  | Tail            |       phase, address and digest of the journal, under LVM's checksum

The tail lives and dies with the label: LVM keeps it when it updates the VG and erases it when it changes the identity
of the PV. A run moves the tail through the phases IN_PROGRESS, SWITCHED and DONE; docs/protocol.rst says what
the LUN holds in each of them. No tail: nothing of ours, or an undo gave the old label back.
"""

import hashlib
from typing import Optional

from relvmoiscsi.device import SECTOR
from relvmoiscsi.errors import Place, Unsupported
from relvmoiscsi.formats.lvm.pv import Label, sealed_label
from relvmoiscsi.formats.ondisk import Record, le32, le64, raw, u8

TAIL_MAGIC = b"reLVMtag"
TAIL_VERSION = 1

IN_PROGRESS, SWITCHED, DONE = 1, 2, 3
PHASES = (IN_PROGRESS, SWITCHED, DONE)
RESIGNATURE, UNDO = 1, 2
KINDS = {RESIGNATURE: "resignature", UNDO: "undo"}

# fmt: off


class Tail(Record, size=96):
    """The last 96 bytes of the label sector."""

    magic          = raw(0, 8)
    version        = u8(8)
    phase          = u8(9)
    kind           = u8(10)
    reserved1      = u8(11)
    journal_length = le32(12)     #: bytes
    run_id         = raw(16, 16)
    journal_offset = le64(32)     #: bytes from the start of the device
    scsi_id_digest = raw(40, 16)  #: of the SCSIid the run was made for; zero: it was not known
    reserved2      = le64(56)
    journal_digest = raw(64, 32)  #: SHA-256 of the JournalHeader, which holds that of the rest


# fmt: on

TAIL_AT = SECTOR - Tail.SIZE


def is_of_another_lun(tail: Optional[Tail], scsi_id: str) -> bool:
    """Was the run that left this mark one on a LUN with another SCSIid? Then the LUN is a copy of that one."""
    return tail is not None and any(tail.scsi_id_digest) and tail.scsi_id_digest != scsi_id_digest(scsi_id)


def scsi_id_digest(scsi_id: Optional[str]) -> bytes:
    """What the tail keeps of a SCSIid: 16 bytes, zero when it is not known."""
    return hashlib.sha256(b"SCSIid " + scsi_id.encode("utf-8")).digest()[:16] if scsi_id else bytes(16)


def read_tail(label: Label, where: Place) -> Optional[Tail]:
    """The mark of an earlier run in a label; None when there is none.

    Raises Unsupported when the place is taken by bytes nobody here knows, or by a later version of this project.
    """
    if label.used_end > TAIL_AT:
        raise Unsupported("LVM label", where, "its lists leave no room for the mark of a run")
    data = label.sector[TAIL_AT:]
    if not any(data):
        return None
    tail = Tail.at(data)
    place = where.plus(TAIL_AT)
    if tail.magic != TAIL_MAGIC:
        raise Unsupported("LVM label", place, "its last bytes are in use by something else")
    if tail.version != TAIL_VERSION or tail.phase not in PHASES or tail.kind not in KINDS:
        raise Unsupported("Mark of a run", place, "it was made by another version of relvmoiscsi")
    return tail


def with_tail(sector: bytes, tail: Optional[Tail]) -> bytes:
    """A label sector with this mark, or with none; checksum made anew."""
    return sealed_label(sector[:TAIL_AT] + (bytes(tail) if tail else bytes(Tail.SIZE)))
