# SPDX-License-Identifier: LGPL-2.1-only
"""What a run answers in JSON, for the command and for the plugin; and what an open LUN is.

The identification of a clone has its own SCSIid and hardware, the SR on the LUN, and the answer of the pool. No other
module computes the identification. Prompts, the dry run and `show` print the same lines; --json has the same facts as
`lun`.
"""

from typing import Any, Dict, List, Optional

from relvmoiscsi import engine, report
from relvmoiscsi.engine import AlreadyDone, LaterCopy, Lun, Prepared, Result
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused
from relvmoiscsi.formats import naming
from relvmoiscsi.lun.opened import NOBODY_NEEDED, OpenLun, PoolAnswer
from relvmoiscsi.lun.proposals import NewRun, Proposal
from relvmoiscsi.lun.run import CompletedRun
from relvmoiscsi.wording import human_size, printable

_AT_WORK = "The storage manager was working on the SR when the copy was taken, or is working now."


class Identification:
    """A device and its content before a command changes the content."""

    def __init__(self, lun: OpenLun, pool: PoolAnswer, content: Optional[Lun], sr_uuid: Optional[str] = None) -> None:
        """`content` is what the LUN holds; `sr_uuid` is the SR where the content is unreadable."""
        self._lun, self._pool = lun, pool
        self._sr_uuid = content.sr_uuid if content else sr_uuid
        self._name_label = (content.mgt.name_label if content.mgt else "") if content else None
        self._vdi_count = len(content.disks()) if content else None
        self._is_sm_at_work = content is not None and any(one.name.kind == naming.JOURNAL for one in content.volumes)

    def facts(self) -> Dict[str, Any]:
        """Return the value of `lun` for --json."""
        lun = self._lun
        return {
            "device_kind": lun.kind,
            "scsi_id": lun.scsi_id,
            "vendor": lun.vendor or None,
            "model": lun.model or None,
            "serial": lun.serial or None,
            "size_bytes": lun.device.size_bytes,
            "sr": self._sr_uuid,
            "sr_name_label": self._name_label,
            "vdi_count": self._vdi_count,
            "storage_manager_at_work": self._is_sm_at_work,
            "pool": self._pool.facts(),
        }

    def lines(self) -> List[str]:
        """Return the facts as lines for people."""
        found = [self.device_line()]
        if self._sr_uuid:
            label = f" {self._name_label!r}" if self._name_label else ""
            count = {None: "", 1: ", 1 VDI"}.get(self._vdi_count, f", {self._vdi_count} VDIs")
            found.append(printable(f"  SR       {self._sr_uuid}{label}{count}"))
        return [*found, self.pool_line(), *([f"  note     {_AT_WORK}"] if self._is_sm_at_work else [])]

    def device_line(self) -> str:
        """Return the line with the kind, the name and the size of the device."""
        lun, size = self._lun, human_size(self._lun.device.size_bytes)
        if not lun.is_lun:
            return f"  device   image file, {size}"
        name = " ".join(filter(None, [lun.vendor, lun.model]))
        serial = f"serial {lun.serial}" if lun.serial else ""
        scsi_id = f"SCSIid {lun.scsi_id}" if lun.scsi_id else "no SCSIid"
        loop = f"loop device of {lun.image!r}" if lun.image else ""
        return printable("  device   " + ", ".join(filter(None, [scsi_id, name, loop, serial, size])))

    def pool_line(self) -> str:
        """Return the line with the answer of the pool."""
        return printable(f"  pool     {self._pool.sentence}")


def identification(lun: OpenLun, proposal: Proposal) -> Identification:
    """Identify the LUN of a proposal, as it was before the run."""
    return Identification(lun, proposal.pool, proposal.content, proposal.sr_uuid)


def objection(lun: OpenLun, proposal: Proposal) -> Optional[Refused]:
    """Return why the run of a dry run would be refused: the device cannot be written, or the pool uses the LUN."""
    return lun.device.objection or (None if proposal.pool.is_overridden else proposal.pool.objection)


# --- the JSON of a run


def completed_facts(lun: OpenLun, done: CompletedRun) -> Dict[str, Any]:
    """Return the facts of a completed run. A rollback has no map: the LUN never had the new ids of its run."""
    ids, is_back = done.result.ids, done.proposal.is_rollback
    facts = report.result_facts(lun.name, done.result._replace(ids=None) if is_back else done.result)
    if is_back and ids is not None:
        facts.update(old_sr=None, new_sr=ids.new_sr)  # reversed: the SR that the LUN has
    facts["lun"] = identification(lun, done.proposal).facts()
    return {**facts, **_prepared_facts(done.proposal.prepared)} if isinstance(done.proposal, NewRun) else facts


def unwritten_facts(lun: OpenLun, state: str, done: CompletedRun) -> Dict[str, Any]:
    """Return the facts of a dry run on an earlier run; `state` is that of the LUN, on which nothing was written."""
    result = done.result._replace(state=state, writes=0, bytes_written=0, flushes=0)
    facts = completed_facts(lun, done._replace(result=result))
    facts["plan"] = report.chunks_facts(done.planned)
    refusal = objection(lun, done.proposal)
    facts["would_be_refused"] = refusal.told if refusal else None
    return facts


def dry_run_facts(lun: OpenLun, planned: NewRun) -> Dict[str, Any]:
    """Return the facts of a plan that was not carried out."""
    prepared, content = planned.prepared, planned.prepared.lun
    facts = report.result_facts(lun.name, Result(prepared.state, content, prepared.plan.run.ids, lun.scsi_id))
    facts["lun"] = identification(lun, planned).facts()
    facts["plan"] = report.plan_facts(prepared.plan)
    refusal = objection(lun, planned)
    facts["would_be_refused"] = refusal.told if refusal else None
    if prepared.cost is not None:
        facts["cost"] = report.cost_facts(prepared.cost)
    return {**facts, **_prepared_facts(prepared)}


def finished_facts(lun: OpenLun, found: AlreadyDone) -> Dict[str, Any]:
    """Return the facts of a LUN that an earlier run has resignatured."""
    new_ids = found.run.ids if found.run else None
    result = Result(engine.RESIGNATURED, found.content, new_ids, lun.scsi_id, already_done=True)
    facts = report.result_facts(lun.name, result)
    if "new_sr" not in facts:
        facts.update(old_sr=None, new_sr=found.sr_uuid)
    facts["lun"] = Identification(lun, NOBODY_NEEDED, found.content).facts()
    return facts


def _prepared_facts(prepared: Prepared) -> Dict[str, Any]:
    """Return the facts of a new run that are the same before and after the run."""
    facts: Dict[str, Any] = {}
    if prepared.later_copy is not None:
        facts["later_copy"] = {"run_scsi_id": prepared.later_copy.was, "scsi_id": prepared.later_copy.now}
    if report.loses(prepared):
        facts["dropped"] = report.dropped_facts(prepared.lun, prepared.defects)
    return facts


def unsaid_copy(name: str, copy: LaterCopy) -> Refused:
    """Return the refusal of a script that has not said that the LUN is a copy.

    A target may give the LUN itself a new SCSIid.
    """
    refused = Refused(printable(copy.sentence(name))).in_state(NOTHING_WRITTEN)
    return refused.advising(
        "If it is a copy, add --later-copy. If it is that LUN under a new SCSIid, it has its new identities already."
    )
