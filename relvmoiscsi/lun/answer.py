# SPDX-License-Identifier: LGPL-2.1-only
"""What a run answers in JSON, for the command and for the plugin; and what an open LUN is.

The identification of a clone has its own SCSIid and hardware, the SR on the LUN, and the answer of the pool. No other
module computes the identification. Prompts, the dry run and `show` print the same lines; --json has the same facts as
`lun`.
"""

from typing import Any, Dict, List, NamedTuple, Optional

from relvmoiscsi import engine, report
from relvmoiscsi.engine import AlreadyDone, LaterCopy, Lun, ResignatureRequest, Result
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, in_state
from relvmoiscsi.formats import mapfile, naming
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.disk.scsi_id import Hardware
from relvmoiscsi.lun.opened import IMAGE_FILE, OpenLun
from relvmoiscsi.lun.run import CompletedRun, DryRun, NewRun, Proposal
from relvmoiscsi.lun.users import NOBODY_NEEDED, PoolAnswer
from relvmoiscsi.wording import command, human_size, printable

_AT_WORK = "The storage manager was working on the SR when the copy was taken, or is working now."


class Identification(NamedTuple):
    """A device and its content before a command changes the content."""

    kind: str  #: as OpenLun's
    scsi_id: Optional[str]  #: from the device
    hardware: Hardware
    size_bytes: int
    sr_uuid: Optional[str]
    sr_name_label: Optional[str]  #: None, like `vdis`, where the SR is unreadable
    vdis: Optional[int]
    is_sm_at_work: bool
    pool: PoolAnswer

    def facts(self) -> Dict[str, Any]:
        """Return the value of `lun` for --json."""
        return {
            "kind": self.kind,
            "scsi_id": self.scsi_id,
            "vendor": self.hardware.vendor or None,
            "model": self.hardware.model or None,
            "serial": self.hardware.serial or None,
            "size_bytes": self.size_bytes,
            "sr": {"uuid": self.sr_uuid, "name_label": self.sr_name_label},
            "vdis": self.vdis,
            "storage_manager_at_work": self.is_sm_at_work,
            "pool": self.pool.facts(),
        }

    def lines(self) -> List[str]:
        """Return the facts as lines for people."""
        found = [self.device_line(), *([self._sr_line()] if self.sr_uuid else []), self.pool_line()]
        return [*found, *([f"  note     {_AT_WORK}"] if self.is_sm_at_work else [])]

    def device_line(self) -> str:
        """Return the line with the kind, the name and the size of the device."""
        size = human_size(self.size_bytes)
        if self.kind == IMAGE_FILE:
            return f"  device   image file, {size}"
        name = " ".join(filter(None, [self.hardware.vendor, self.hardware.model]))
        serial = f"serial {self.hardware.serial}" if self.hardware.serial else ""
        scsi_id = f"SCSIid {self.scsi_id}" if self.scsi_id else "no SCSIid"
        return printable("  device   " + ", ".join(filter(None, [scsi_id, name, serial, size])))

    def pool_line(self) -> str:
        """Return the line with the answer of the pool."""
        return printable(f"  pool     {self.pool.sentence}")

    def _sr_line(self) -> str:
        label = f' "{self.sr_name_label}"' if self.sr_name_label else ""
        count = {None: "", 1: ", 1 VDI"}.get(self.vdis, f", {self.vdis} VDIs")
        return printable(f"  SR       {self.sr_uuid}{label}{count}")


def identify(lun: OpenLun, pool: PoolAnswer, content: Optional[Lun], sr_uuid: Optional[str] = None) -> Identification:
    """Identify an open LUN. `content` is what it holds; `sr_uuid` is the SR where the content is unreadable."""
    return Identification(
        kind=lun.kind,
        scsi_id=lun.ids.own,
        hardware=lun.hardware,
        size_bytes=lun.device.size_bytes,
        sr_uuid=content.sr_uuid if content else sr_uuid,
        sr_name_label=(content.mgt.name_label if content.mgt else "") if content else None,
        vdis=len(content.disks()) if content else None,
        is_sm_at_work=any(volume.name.kind == naming.JOURNAL for volume in content.volumes) if content else False,
        pool=pool,
    )


def identification(lun: OpenLun, proposal: Proposal) -> Identification:
    """Identify the LUN of a proposal, as it was before the run."""
    return identify(lun, proposal.pool, proposal.content, proposal.sr_uuid)


# --- the JSON of a run


def completed_facts(lun: OpenLun, done: CompletedRun) -> Dict[str, Any]:
    """Return the facts of a completed run."""
    facts = report.result_facts(lun.name, done.result)
    facts["lun"] = identification(lun, done.proposal).facts()
    if isinstance(done.proposal, NewRun):
        facts.update(_later_copy_facts(done.proposal.prepared.later_copy))
    return facts


def dry_run_facts(lun: OpenLun, planned: DryRun) -> Dict[str, Any]:
    """Return the facts of a plan that was not carried out."""
    prepared, content = planned.prepared, planned.prepared.lun
    facts = report.result_facts(lun.name, Result(prepared.state, content, prepared.plan.run.ids, lun.ids.own))
    facts["lun"] = identify(lun, planned.pool, content).facts()
    facts["plan"] = report.plan_facts(prepared.plan)
    facts.update(_later_copy_facts(prepared.later_copy))
    if prepared.cost is not None:
        facts["cost"] = report.cost_facts(prepared.cost)
    if report.loss_of(prepared) is not None:
        facts["dropped"] = report.dropped_facts(content, prepared.defects)
    return facts


def _later_copy_facts(copy: Optional[LaterCopy]) -> Dict[str, Any]:
    """Return `later_copy`, for a LUN that carries the run of another SCSIid."""
    return {} if copy is None else {"later_copy": copy._asdict()}


def already_done_facts(
    lun: OpenLun, request: ResignatureRequest, done: AlreadyDone, content: Optional[Lun]
) -> Dict[str, Any]:
    """Return the facts of a resignatured LUN. `content` is what it holds, if readable; it may be in use.

    Raises Refused where the finished run does not fit the request.
    """
    with in_state(NOTHING_WRITTEN):
        engine.refuse_databases(lun.name, content, request.clear_databases)
        engine.refuse_left_behind(lun.name, content, done.run, request.without)
    new_ids = done.run.ids if done.run else None
    known = new_ids or IdMap("", {"": done.sr_uuid}, {})
    refuse_contradictions(lun.name, request, known, "Use --again to resignature the LUN once more.")
    result = Result(engine.RESIGNATURED, content, new_ids, lun.ids.own, already_done=True)
    facts = report.result_facts(lun.name, result)
    facts.setdefault("sr", {"old": None, "new": done.sr_uuid})
    facts["lun"] = identify(lun, NOBODY_NEEDED, content, done.sr_uuid).facts()
    return facts


# --- what a script may rely on


def find_finished(lun: OpenLun, request: ResignatureRequest) -> Optional[Dict[str, Any]]:
    """Return the facts of a LUN that an earlier run has resignatured; None for any other LUN. Raises Refused."""
    with in_state(NOTHING_WRITTEN):
        done = engine.find_done(lun.device, lun.ids.own)
        if done is None:
            return None
        content = engine.inspect(lun.device).lun
        if content is not None:
            engine.refuse_other_vdis(lun.device, content, done.run, request.one)
        return already_done_facts(lun, request, done, content)


def refuse_contradictions(name: str, request: ResignatureRequest, ids: IdMap, instead: str) -> None:
    """Raises Refused where the ids of the run differ from the chosen ids, on which a script relies."""
    found = mapfile.contradictions(request.chosen or IdMap("", {}, {}), request.sr_uuid, ids)
    if found:
        raise Refused(f"{name} already has other ids: {found[0]}. {instead}").in_state(NOTHING_WRITTEN)


def refuse_other_run(name: str, request: ResignatureRequest, ids: IdMap) -> None:
    """Raises Refused where finishing the interrupted run would give other ids than the request."""
    recover, undo = command("relvmoiscsi", "recover", name), command("relvmoiscsi", "undo", name)
    instead = f"{recover} finishes the interrupted run, {undo} rolls it back."
    refuse_contradictions(name, request, ids, instead)


def unsaid_copy(name: str, copy: LaterCopy) -> Refused:
    """Return the refusal of a script that has not said that the LUN is a copy.

    A target may give the LUN itself a new SCSIid.
    """
    return Refused(
        f"{printable(copy.sentence(name))} If it is a copy, add --later-copy. If it is that LUN under a new SCSIid, it "
        "has its new identities already."
    ).in_state(NOTHING_WRITTEN)
