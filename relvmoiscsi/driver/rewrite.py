# SPDX-License-Identifier: LGPL-2.1-only
"""New identities for a LUN at hand, whatever an earlier call has left of it."""

import logging
import os
from contextlib import contextmanager
from typing import Iterator, Optional

from relvmoiscsi import engine, report
from relvmoiscsi.device import Device
from relvmoiscsi.errors import Unfinished
from relvmoiscsi.host import smlocks
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.lock import lvm_locks
from relvmoiscsi.identity import IdMap
from relvmoiscsi.journal import RESIGNATURE, UNDO, Run
from relvmoiscsi.lun import Lun

log = logging.getLogger(__name__)

LOCK_SECONDS = 15.0  #: for a udev worker that looks at the disk
VG_LOCK_SECONDS = 600.0  #: for LVM commands and other calls, as far as the deadline allows


def resignatured(device: Device, scsi_id: str, sr_uuid: str, deadline: Deadline) -> str:
    """The new SR UUID: chosen now, or by the earlier call that is finished or repeated here."""
    try:
        prepared = engine.prepare(device, os.urandom, scsi_id, sr_uuid=sr_uuid or None)
    except Unfinished:
        finished = _finished(device, scsi_id, deadline)
        return finished or resignatured(device, scsi_id, sr_uuid, deadline)
    if isinstance(prepared, engine.AlreadyDone):
        log.info("%s was resignatured already, as SR %s", device.name, prepared.lun.sr_uuid)
        return prepared.lun.sr_uuid
    with _locks(prepared.plan.run, deadline):
        result = engine.resignature(device, prepared)
    _log_map(result.lun, prepared.plan.run.ids)
    log.info("%d writes, %d bytes, %d flushes", result.writes, result.bytes_written, result.flushes)
    return prepared.plan.run.ids.new_sr


def _finished(device: Device, scsi_id: str, deadline: Deadline) -> Optional[str]:
    """Bring an unfinished run to its end: the SR UUID it had chosen, or None where the LUN is a clone again.

    That is so after an undo, and where this is a copy of a LUN that was cut: its ids belong to that LUN.
    """
    mark = engine.find_unfinished(device)
    if mark is None:
        return None
    run = mark.journal.run
    log.info("%s holds an unfinished run for SCSIid %s; finishing it", device.name, run.scsi_id)
    with _locks(run, deadline):
        if mark.tail.kind == RESIGNATURE and run.scsi_id not in (None, scsi_id):
            engine.undo(device, os.urandom)
            return None
        result = engine.recover(device, mark, scsi_id)
    _log_map(result.lun, run.ids)
    return None if mark.tail.kind == UNDO else run.ids.new_sr


@contextmanager
def _locks(run: Run, deadline: Deadline) -> Iterator[None]:
    """SM's LVM lock and LVM's own, on both names of the volume group."""
    with smlocks.lvm_lock(timeout=deadline.within(VG_LOCK_SECONDS)), lvm_locks(
        engine.vg_names(run), timeout=deadline.within(VG_LOCK_SECONDS)
    ):
        yield


def _log_map(lun: Optional[Lun], ids: IdMap) -> None:
    for line in report.map_text(lun, ids).splitlines():
        log.info("%s", line.strip())
    rows = len(lun.disks()) if lun else 0
    if rows > 1:
        log.warning(
            "the SR has %d VDIs, snapshots and hidden parents among them; CloudStack takes a LUN with exactly one and "
            "will count more",
            rows,
        )
