# SPDX-License-Identifier: LGPL-2.1-only
"""Give an open LUN new identities, for a caller that asks no person: SMlog gets all steps."""

import logging
import os
from typing import Optional, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.engine import AlreadyDone, OneVdiRequest, ResignatureRequest, notes
from relvmoiscsi.errors import Refused
from relvmoiscsi.lun import proposals, run
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.proposals import NewRun, Proposal, Recovery
from relvmoiscsi.sr_driver.transport import CallRequest
from relvmoiscsi.wording import first_of, human_size, said

log = logging.getLogger(__name__)

_WHY = {
    proposals.OF_A_COPY: "rolling the run back, because this LUN is a copy of the run's LUN",
    proposals.OF_UNKNOWN_LUN: "rolling the run back, because the SCSIid of the run's LUN is not known",
    proposals.OTHER_VDIS: "rolling the run back, because the run leads to other VDIs",
    proposals.BEFORE_COMMIT: "rolling the run back, because the run was cut before its commit",
}


def rewrite(lun: OpenLun, config: CallRequest, asked: Optional[Tuple[int, str]], deadline: Deadline) -> str:
    """Give the LUN new identities and return the new SR UUID; an earlier call may have chosen the UUID."""
    one = OneVdiRequest(config.vdi, *asked) if asked is not None else None
    request = ResignatureRequest(lun.scsi_id, one=one, clear_databases=config.clear_databases)
    done = run.resignature(lun, request, os.urandom, log_step, CopyLog(lun.name, deadline), recovers_undo=True)
    if isinstance(done, AlreadyDone):
        log.info("%s was resignatured already, as SR %s", lun.name, done.sr_uuid)
        return done.sr_uuid
    content, ids = done.result.lun, done.result.ids
    assert ids is not None  # of a run that was carried out
    rows = len(content.settled().disks()) if content else 0
    if rows > 1:
        log.warning(
            "the SR has %d VDIs, snapshots and hidden parents among them; CloudStack takes a LUN with exactly one and "
            "will count more",
            rows,
        )
    return ids.new_sr


def log_step(lun: OpenLun, proposal: Proposal) -> None:
    """Consent to a step: the caller of the driver has asked for new identities."""
    if isinstance(proposal, Recovery):
        what = _WHY[proposal.why] if proposal.why else "finishing the run"
        scsi_id = said(str(proposal.earlier.journal.run.scsi_id))
        log.info("%s holds an unfinished run for SCSIid %s; %s", lun.name, scsi_id, what)
    elif isinstance(proposal, NewRun):
        if proposal.prepared.later_copy is not None:
            log.info("%s", proposal.prepared.later_copy.sentence(lun.name))
        for sentence in first_of(notes(proposal.prepared.lun)):
            log.info("%s: %s", lun.name, sentence)
        if proposal.prepared.cost is not None:
            from relvmoiscsi import report  # noqa: PLC0415 - most calls copy nothing

            log.info("%s: %s", lun.name, report.cost_text(proposal.prepared.cost))


class CopyLog:
    """Log a line for each tenth of a copy. Give up when the call's time is over, before the LUN changes visibly."""

    def __init__(self, name: str, deadline: Deadline) -> None:
        self._name, self._deadline, self._tenths = name, deadline, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._deadline.has_passed and done < total:
            raise Refused(
                f"The call's time is over with {human_size(done)} of {human_size(total)} {what}. The command "
                "`relvmoiscsi resignature --vdis one` on the host has no such limit.",
                sm_key="SMGeneral",
            )
        if what == run.COPIED and done * 10 // total > self._tenths:
            self._tenths = done * 10 // total
            log.info("%s: %s of %s copied", self._name, human_size(done), human_size(total))
