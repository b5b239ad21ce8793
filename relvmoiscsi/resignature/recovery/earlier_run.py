# SPDX-License-Identifier: LGPL-2.1-only
"""Find an earlier run on a LUN: a run that was cut, a run that is done, or a run whose journal LVM has overwritten."""

import logging
from typing import NamedTuple, Optional, Tuple

from relvmoiscsi import __version__
from relvmoiscsi.device import Device
from relvmoiscsi.errors import FormatError, Place, Refused, in_state
from relvmoiscsi.formats import naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.formats.lvm.vg import VolumeGroup, read_vg
from relvmoiscsi.resignature.planning import identity_check
from relvmoiscsi.resignature.protocol.commit_record import (
    DONE,
    IN_PROGRESS,
    KINDS,
    RESIGNATURE,
    SWITCHED,
    UNDO,
    CommitRecord,
    is_of_another_lun,
    proves,
    read_commit_record,
    scsi_id_digest,
    with_commit_record,
)
from relvmoiscsi.resignature.protocol.journal import EarlierRun, Journal, read_journal
from relvmoiscsi.resignature.protocol.run_record import MdaMove, PvAndVg, Run
from relvmoiscsi.resignature.protocol.sentences import TAKE_AGAIN, TAKE_NEW_CLONE, journal_lost
from relvmoiscsi.resignature.reading import survey
from relvmoiscsi.resignature.reading.lun_contents import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache
from relvmoiscsi.resignature.recovery.undo import old_text
from relvmoiscsi.wording import first_of, said, shell_command

log = logging.getLogger(__name__)


def run_or_none(
    device: Device, record: Optional[CommitRecord], label: Label, lun: Optional[Lun] = None
) -> Optional[Run]:
    """The run of a commit record; None without a commit record, and without a journal of the SR on the LUN.

    `lun` is None for a caller that has not read LVM's text. LVM may overwrite the journal of a finished run at any
    time.
    """
    if record is None:
        return None
    try:
        held = (lun.sr_uuid, lun.vg) if lun is not None else None
        return _earlier_run(device, label, record, held).journal.run
    except (FormatError, Refused) as problem:
        log.debug("%s: no journal of this LUN: %s", device.name, problem)
        return None


def _earlier_run(
    device: Device, label: Label, record: CommitRecord, held: Optional[Tuple[str, VolumeGroup]] = None
) -> EarlierRun:
    """The run of a commit record. Refused is raised where the LUN has other identities (`wrong_ids`).

    `held` is as `survey.read_sr` returns it; None where LVM's text is still to be read.

    Everybody who writes the LUN can write label and journal. Raises FormatError for a lost journal, and for metadata of
    a finished run that does not read. Raises Refused for such metadata of an interrupted run. A cut leaves metadata
    that read. A roll back would write what the journal of a stranger says, the label included.
    """
    earlier = EarlierRun(label, record, read_journal(device, record, label))
    try:
        sr_uuid, vg = held or survey.read_sr(device, label)
    except FormatError as error:
        if record.phase == DONE:
            raise
        unread = f"the LUN holds no metadata that reads: {error.message.rstrip('.')}"
        raise contradiction(device.name, record, unread) from error
    wrong = wrong_ids(earlier, sr_uuid, vg)
    if wrong:
        raise contradiction(device.name, record, f"the LUN holds {wrong}")
    return earlier


def wrong_ids(earlier: EarlierRun, sr_uuid: str, vg: VolumeGroup) -> str:
    """A phrase about identities which a LUN with this SR must not hold in this phase of the run; "" for any other.

    The SR is that of the journal. After the commit of a resignature, PV and VG prove the resignature.
    """
    record, wanted = earlier.commit_record, earlier.journal.run.held_sr(earlier.commit_record.phase)
    if sr_uuid != wanted:
        return f"the SR {sr_uuid}, not the SR {wanted} of its journal"
    if record.phase == IN_PROGRESS or record.kind == UNDO or proves(record, sr_uuid, vg.pv_id, vg.id):
        return ""
    return "a PV and a VG with ids that are not those of a resignature"


def contradiction(name: str, record: CommitRecord, found: str) -> Refused:
    """The error for a LUN that contradicts its commit record; `found` is a clause about the LUN."""
    when = {IN_PROGRESS: "cut before its commit", SWITCHED: "cut behind its commit", DONE: "finished"}[record.phase]
    return Refused(
        f"The label of {name} says that a {KINDS[record.kind]} was {when}, and {found}. A write of another host may "
        "have arrived late. The right content of the LUN is unknown.",
        "SRUnavailable",
    ).advising(TAKE_NEW_CLONE)


def find_unfinished(device: Device) -> Optional[EarlierRun]:
    """The run that was cut; None when no run was cut. Raises as `read_label` and `_earlier_run`.

    Raises Truncated for a LUN that is too short now: its extents, and what the journal would write, are not all there.
    """
    device = ReadCache(device)
    label = survey.read_label(device)
    record = read_commit_record(label, device.name)
    if record is None or record.phase == DONE:
        return None
    survey.verify_size(device, label)
    try:
        return _earlier_run(device, label, record)
    except FormatError as error:
        log.info("%s: %s", device.name, error)
        earlier = _forgotten_run(device, label, record)
        if earlier is None:
            error.message += " " + journal_lost(device.name, record)
            error.advising(TAKE_NEW_CLONE)
            raise
        return earlier


# --- a run that is done


def has_new_ids(record: Optional[CommitRecord], lun: Lun) -> bool:
    """Whether the LUN with this content was resignatured: the commit record says so, and PV and VG prove it."""
    if record is None or record.phase != DONE or record.kind != RESIGNATURE:
        return False
    return proves(record, lun.sr_uuid, lun.label.pv_id, lun.vg.id)


def verify_same_lun(name: str, record: CommitRecord, scsi_id: Optional[str]) -> None:
    """Raises Refused when the SCSIid of this LUN, or of the LUN of the run, is not known: one may be a copy."""
    digest = scsi_id_digest(scsi_id)
    if digest == record.scsi_id_digest:
        return
    again = shell_command("relvmoiscsi resignature --again", name)  # SR.create then finds it done
    if not any(digest):
        raise Refused(f"{name} was resignatured before, and the SCSIid of this LUN is not known.").advising(
            f"If the LUN is a later copy, run `{again}`. If not, it has its new identities already."
        )
    raise Refused(f"{name} was resignatured before, and the SCSIid it was made for was not recorded.").advising(
        f"If the LUN is a later copy, run `{again}` on a host that has the LUN, for "
        "SR.create on the pool's master. If not, it has its new identities already."
    )


class LaterCopy(NamedTuple):
    """A LUN with the finished resignature of another SCSIid, which is taken for a later copy of that LUN."""

    was: Optional[str]  #: SCSIid of the LUN of the run; None when LVM has overwritten the journal
    now: str  #: SCSIid of this LUN

    def sentence(self, name: str) -> str:
        was = f"LUN {said(self.was)}" if self.was else "another LUN"
        return f"{name} was resignatured as {was}, and is the LUN {self.now} now: it is taken for a later copy."


def later_copy(device: Device, lun: Lun, record: Optional[CommitRecord], scsi_id: Optional[str]) -> Optional[LaterCopy]:
    """The LUN with this content as a later copy; None without a finished resignature of another SCSIid."""
    if scsi_id is None or not is_of_another_lun(record, scsi_id) or not has_new_ids(record, lun):
        return None
    run = run_or_none(device, record, lun.label, lun)
    return LaterCopy(run.scsi_id if run is not None else None, scsi_id)


def has_all_volumes(device: Device, lun: Lun, run: Run) -> bool:
    """Whether a LUN has all volumes from before its last run. False when LVM has overwritten the text from before."""
    where = Place(device.name, 0)
    try:
        text, _live = old_text(device, run)
        vg = read_vg(text[:-1].decode("latin-1"), where, device.size_bytes)
        names = [naming.parse_lv_name(lv.name, where) for lv in vg.lvs]
    except FormatError as problem:
        log.debug("%s: the text from before is gone: %s", device.name, problem)
        return False
    there = {volume.name.uuid for volume in lun.volumes}
    return all(name.uuid is None or run.ids.uuids.get(name.uuid) in there for name in names)


def finished_run(device: Device) -> EarlierRun:
    """The resignature that is done. Raises Refused without one, whatever is damaged, and without its journal.

    Raises FormatError for metadata that does not read, Truncated as `find_unfinished`.
    """
    label = survey.read_label(device)
    record = read_commit_record(label, device.name)
    if record is None or record.kind == UNDO:
        show = shell_command("relvmoiscsi show", device.name)
        raise Refused(f"{device.name} holds no resignature that could be undone.", "InvalidArg").advising(
            f"`{show}` shows what the LUN holds.", show
        )
    survey.verify_size(device, label)
    with in_state("", FormatError, advice=TAKE_AGAIN):
        held = survey.read_sr(device, label)
    try:
        return _earlier_run(device, label, record, held)
    except FormatError as error:
        problem = f"{device.name} cannot be undone: LVM has reclaimed the space of the journal."
        raise Refused(problem).advising(TAKE_AGAIN) from error


# --- a run whose journal LVM has overwritten


def _forgotten_run(device: Device, label: Label, record: CommitRecord) -> Optional[EarlierRun]:
    """A run "in progress" whose journal LVM has overwritten, when the LUN has no identity of the run; else None.

    The `run` of the result is a substitute, which gives back only the label.
    """
    if record.phase != IN_PROGRESS:
        return None
    try:
        lun = survey.read_lun(device, label)
    except (FormatError, Refused) as problem:
        log.info("%s: %s", device.name, problem)
        return None
    doubts = identity_check.foreign_identities(lun)
    for sentence in first_of(doubts):
        log.info("%s: %s", device.name, sentence)
    if doubts:
        return None
    done = record.replace(phase=DONE, kind=RESIGNATURE) if record.kind == UNDO else None
    run = Run(  # without writes, with the run id of the commit record
        kind=record.kind,
        run_id=record.run_id,
        scsi_id=None,
        tool=__version__,
        ids=IdMap(lun.sr_uuid, {lun.sr_uuid: lun.sr_uuid}, {}),
        replaced=PvAndVg(lun.label.pv_id, lun.vg.id),
        label_number=lun.label.number,
        old_label=with_commit_record(lun.label.sector, done),
        new_pv_id=lun.label.pv_id,
        final_label=b"",
        mdas=tuple(MdaMove(mda.area, mda.area, bytes(mda.header), b"", bytes(mda.header)) for mda in lun.mdas),
        writes=(),
    )
    return EarlierRun(label, record, Journal(run, 0, b""))
