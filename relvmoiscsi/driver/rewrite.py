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
from relvmoiscsi.host.lock import lvm_locks
from relvmoiscsi.identity import IdMap
from relvmoiscsi.journal import RESIGNATURE, UNDO, Run
from relvmoiscsi.lun import Lun

log = logging.getLogger(__name__)

LOCK_SECONDS = 15.0


def resignatured(device: Device, scsi_id: str, sr_uuid: str) -> str:
    """The new SR UUID: chosen now, or by the earlier call that is finished or repeated here."""
    try:
        prepared = engine.prepare(device, os.urandom, scsi_id, sr_uuid=sr_uuid or None)
    except Unfinished:
        finished = _finished(device, scsi_id)
        return finished or resignatured(device, scsi_id, sr_uuid)
    if isinstance(prepared, engine.AlreadyDone):
        log.info("%s was resignatured already, as SR %s", device.name, prepared.lun.sr_uuid)
        return prepared.lun.sr_uuid
    with _locks(prepared.plan.run):
        result = engine.resignature(device, prepared)
    _log_map(result.lun, prepared.plan.run.ids)
    log.info("%d writes, %d bytes, %d flushes", result.writes, result.bytes_written, result.flushes)
    return prepared.plan.run.ids.new_sr


def _finished(device: Device, scsi_id: str) -> Optional[str]:
    """Bring an unfinished run to its end: the SR UUID it had chosen, or None where the LUN is a clone again.

    That is so after an undo, and where this is a copy of a LUN that was cut: its ids belong to that LUN.
    """
    mark = engine.find_unfinished(device)
    if mark is None:  # a run that was taken back has written late; undo takes that back as well
        with _locks(engine.read_undoable(device).journal.run):
            engine.undo(device, os.urandom)
        return None
    run = mark.journal.run
    log.info("%s holds an unfinished run for SCSIid %s; finishing it", device.name, run.scsi_id)
    with _locks(run):
        if mark.tail.kind == RESIGNATURE and run.scsi_id not in (None, scsi_id):
            engine.undo(device, os.urandom)
            return None
        result = engine.recover(device, mark, scsi_id)
    _log_map(result.lun, run.ids)
    return None if mark.tail.kind == UNDO else run.ids.new_sr


@contextmanager
def _locks(run: Run) -> Iterator[None]:
    """SM's LVM lock and LVM's own, on both names of the volume group."""
    with smlocks.lvm_lock(timeout=LOCK_SECONDS), lvm_locks(engine.vg_names(run), timeout=LOCK_SECONDS):
        yield


def _log_map(lun: Optional[Lun], ids: IdMap) -> None:
    for line in report.map_text(lun, ids).splitlines():
        log.info("%s", line.strip())
