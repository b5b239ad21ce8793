# SPDX-License-Identifier: LGPL-2.1-only
"""What each writer of a raw LUN can write, or its array: a commit record without a run, or with a run of his own."""

from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import Place
from relvmoiscsi.formats.identity import IdMap, dashed, derived_lvm_id
from relvmoiscsi.formats.lvm import pv
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    RECORD_MAGIC,
    RESIGNATURE,
    CommitRecord,
    read_commit_record,
    scsi_id_digest,
    with_commit_record,
)
from relvmoiscsi.resignature.protocol.journal import Journal, encode
from relvmoiscsi.resignature.protocol.run_record import MdaMove, PvAndVg, Run
from relvmoiscsi.resignature.reading import survey

from .build_lvm import replace_in_text

NO_SR, UNKNOWN_SR = "0a0b0c0d-0000-4000-8000-0000000000bb", "0a0b0c0d-0000-4000-8000-0000000000aa"


def forge_record(disk, scsi_id, phase=DONE, replaced=None):
    """Make the label say that the LUN was resignatured for this SCSIid. All identities stay, and no journal comes.

    A label that proves a resignature for another LUN goes on to prove it. `replaced` are the ids of such a label.
    """
    label = pv.find_label(disk.read([Range(0, pv.LABEL_SECTORS * 512)])[0], Place(disk.name, 0))
    replaced = replaced or replaced_ids(disk)
    record = CommitRecord.zero(
        magic=RECORD_MAGIC, version=1, phase=phase, kind=RESIGNATURE, journal_length=4096, run_id=b"r" * 16,
        journal_offset=8192, scsi_id_digest=scsi_id_digest(scsi_id), journal_digest=b"x" * 32,
        replaced_pv_id=replaced.pv_id.encode("ascii"), replaced_vg_id=replaced.vg_id.encode("ascii"),
    )  # fmt: skip
    disk.write([Chunk(label.offset, with_commit_record(label.sector, record))])
    return disk


def prove_record(disk, scsi_id):
    """Make PV, VG and label say that the LUN was resignatured for this SCSIid, whatever SM has under way on it since.

    All else stays: a resignature would settle SM's work.
    """
    label, replaced = survey.read_label(disk), replaced_ids(disk)
    sr_uuid, _vg = survey.read_sr(disk, label)
    new = PvAndVg(*(derived_lvm_id(sr_uuid, old) for old in replaced))
    for old_id, new_id in zip(replaced, new):
        replace_in_text(disk, dashed(old_id).encode("ascii"), dashed(new_id).encode("ascii"))
    disk.write([Chunk(label.offset, label.sector_with(new.pv_id, label.mdas))])
    return forge_record(disk, scsi_id, replaced=replaced)


def replaced_ids(disk):
    """The ids in the record of a LUN; without a record, the ids of the LUN, which prove nothing."""
    label = survey.read_label(disk)
    record = read_commit_record(label, disk.name)
    if record is None:
        return PvAndVg(label.pv_id, survey.read_sr(disk, label)[1].id)
    return PvAndVg(record.replaced_pv_id.decode("ascii"), record.replaced_vg_id.decode("ascii"))


def without_record(disk):
    """Erase the record, as LVM does when LVM writes the label anew."""
    label = survey.read_label(disk)
    disk.write([Chunk(label.offset, with_commit_record(label.sector, None))])
    return disk


def forge_journal(disk, run, phase):
    """Give the LUN the journal of this run, in a place of the forger's choice. All else stays."""
    label, data, at = survey.read_label(disk), encode(run), disk.size_bytes - (1 << 20)
    sector = with_commit_record(label.sector, Journal(run, at, data).commit_record(phase))
    disk.write([Chunk(at, data), Chunk(label.offset, sector)])
    return disk


def forge_run(disk, scsi_id, phase, new_sr=UNKNOWN_SR, kind=RESIGNATURE, **more):
    """Give the LUN a run that makes `new_sr` of an SR that is nowhere. No metadata area moves; all identities stay."""
    label = survey.read_label(disk)
    mdas = [
        MdaMove(one.area, one.area, bytes(one.header), b"", bytes(one.header)) for one in survey.read_mdas(disk, label)
    ]
    old_label = with_commit_record(label.sector, None)
    run = Run(
        kind=kind, run_id=b"r" * 16, scsi_id=scsi_id, tool="1", ids=IdMap(NO_SR, {NO_SR: new_sr, **more}, {}),
        replaced=replaced_ids(disk), label_number=label.number, old_label=old_label, new_pv_id=label.pv_id,
        mdas=tuple(mdas), writes=(), final_label=b"" if kind == RESIGNATURE else old_label,
    )  # fmt: skip
    return forge_journal(disk, run, phase)
