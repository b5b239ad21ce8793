# SPDX-License-Identifier: LGPL-2.1-only
"""The steps that each LUN still needs, as a value: `attach` executes the plan, a dry run prints it, a prompt counts it.

`plan` reads the records of the pool and the answers of the probes, and changes nothing. Each flag of a plan is one step
of `attach`; `attach` executes no other step.
"""

import string
import threading
from typing import AbstractSet, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from relvmoiscsi.errors import Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import hosts, jobs, vdis
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.hosts import HostPlan
from relvmoiscsi.pool.luns import ATTACHED, RESIGNATURED, UNTOUCHED, PoolLun
from relvmoiscsi.pool.records import ORIGINAL_SR, RUN, SCSI_ID, Pool
from relvmoiscsi.wording import shown_time

#: kinds of steps
RESIGNATURE, INTRODUCE, MARK, CREATE_PBD, PLUG = "resignature", "introduce", "mark", "create PBD", "plug"
SCAN, LABEL = "scan", "label VDIs"

_FLAGS = {"gc": "false", "indestructible": "true"}


class AttachStep(NamedTuple):
    """One change of a LUN or of the pool."""

    what: str
    on: str = ""  #: name of the PBD's host, or name of the introduced SR

    def facts(self) -> Dict[str, Optional[str]]:
        return {"step": self.what, "on": self.on or None}


NAME = "{sr} {date}"


class AttachRequest(NamedTuple):
    """What the caller wants `attach` to do with the LUNs."""

    name: str = NAME  #: template for the names of the new SRs: {sr}, {date}, {changed}, {scsi_id}
    date: str = ""
    run: str = ""  #: identifies the run in the marks
    jobs: int = jobs.MOST
    leave_others: bool = False  #: True: hosts may see untouched clones of this pool
    attaches: bool = True  #: False: the LUNs get new identities, and the pool gets no SR
    are_unplugged: bool = False  #: True: no host has the SRs of the LUNs attached, and the caller vouches for clones


class LunPlan(NamedTuple):
    """The steps that one LUN still needs."""

    lun: PoolLun
    name: str  #: of the existing SR, or of the new SR
    sr: str = ""  #: reference of the SR; "" for an SR that `attach` introduces
    resignatures: bool = False
    marks: Mapping[str, str] = {}  #: keys of other_config that the SR lacks
    hosts: Sequence[HostPlan] = ()
    scans: bool = False
    labels: bool = False
    refusal: Optional[RelvmoiscsiError] = None  #: why `attach` can do nothing with the LUN
    neighbours: Sequence[str] = ()  #: SCSIids of the clones that must have new identities before a host plugs the SR
    unplugged: Optional[RelvmoiscsiError] = None  #: why no host will plug the SR: a neighbour is refused
    attaches: bool = True  #: False: the LUN gets new identities, and the pool gets no SR

    @property
    def introduces(self) -> bool:
        return self.attaches and not self.sr and self.refusal is None

    @property
    def steps(self) -> List[AttachStep]:
        """Return the steps of `attach`, in order; [] for a refused LUN."""
        return list(self._steps())

    def _steps(self) -> Iterator[AttachStep]:
        if self.refusal is not None:
            return
        if self.resignatures:
            yield AttachStep(RESIGNATURE)
        if self.introduces:
            yield AttachStep(INTRODUCE, self.name)
        elif self.marks:
            yield AttachStep(MARK)
        yield from (AttachStep(CREATE_PBD, host.name) for host in self.hosts if host.creates)
        yield from (AttachStep(PLUG, host.name) for host in self.hosts if host.plugs)
        if self.scans:
            yield AttachStep(SCAN)
        if self.labels:
            yield AttachStep(LABEL)

    @property
    def plugs(self) -> bool:
        return any(host.plugs for host in self.hosts)

    @property
    def error(self) -> Optional[RelvmoiscsiError]:
        """Return why `attach` will not attach the LUN; None if it will."""
        return self.refusal or self.unplugged

    @property
    def down(self) -> List[str]:
        """Return the names of the hosts that are down; a later run plugs the SR on these hosts."""
        return [host.name for host in self.hosts if host.is_down] if self.refusal is None else []

    def facts(self) -> Dict[str, Any]:
        return {
            "scsi_id": self.lun.scsi_id,
            "steps": [step.facts() for step in self.steps],
            "hosts_down": self.down,
            "error": None if self.error is None else str(self.error),
        }

    def text(self) -> str:
        """Return the plan as text for a person."""
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        parts: Dict[str, List[str]] = {}
        for step in self.steps:
            parts.setdefault(step.what, []).append(f'"{step.on}"' if step.what == INTRODUCE else step.on)
        found = [" ".join([what + _JOINED.get(what, ""), ", ".join(on)]).strip() for what, on in parts.items()]
        found += [f"host {name} is down: repeat the command when the host is up" for name in self.down]
        if self.unplugged is not None:
            return "; ".join([*found, str(self.unplugged)])
        if not self.steps:
            found = ["already attached" + (" on all hosts that are up" if self.down else ": nothing to do"), *found]
        return "; ".join(found)


_JOINED = {INTRODUCE: " as", CREATE_PBD: " on", PLUG: " on"}


def names(pool: Pool, chosen: Sequence[PoolLun], wanted: AttachRequest) -> Dict[str, str]:
    """Return the name of each new SR, by SCSIid; all names differ. Raises UsageError for a bad template.

    Equal names get the time of the SR's last change, and then a number.
    """
    verify_template(wanted.name)
    there = {str(sr["name_label"]) for sr in pool.srs.values()}
    taken = set(there)
    wishes = {lun.scsi_id: _wish(lun, wanted) for lun in chosen}
    times: Dict[str, Set[str]] = {}
    for lun in chosen:
        times.setdefault(wishes[lun.scsi_id], set()).add(lun.changed)
    found = {}
    for lun in chosen:
        wish = wishes[lun.scsi_id]
        if lun.changed and (wish in there or len(times[wish]) > 1):  # the copies of three days differ in it
            wish += f" (changed {shown_time(lun.changed)})"
        name, number = wish, 2
        while name in taken:
            name, number = f"{wish} ({number})", number + 1
        taken.add(name)
        found[lun.scsi_id] = name
    return found


def _wish(lun: PoolLun, wanted: AttachRequest) -> str:
    sr, changed = lun.name or lun.of_sr or lun.scsi_id, shown_time(lun.changed) if lun.changed else "unknown"
    return wanted.name.format(sr=sr, date=wanted.date, changed=changed, scsi_id=lun.scsi_id)


def verify_template(template: str) -> None:
    """Raises UsageError for a template that gives no names."""
    if not template.strip():
        raise UsageError("--name is empty: give the SRs a name.")
    try:
        used = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise UsageError(f"--name {template!r} cannot be read: {error}.") from error
    if any(
        field not in ("sr", "date", "changed", "scsi_id") or form or conversion for _, field, form, conversion in used
    ):
        raise UsageError(f"--name {template!r} may contain only the fields sr, date, changed and scsi_id in braces.")


def plan(
    calls: Calls, pool: Pool, chosen: Sequence[PoolLun], wanted: AttachRequest, found: Sequence[PoolLun] = ()
) -> List[LunPlan]:
    """Return the plans for the chosen LUNs, in order; `found` holds all LUNs that the pool sees.

    Raises UsageError for a bad template of names, PoolFailure.
    """
    if not wanted.attaches:
        return [_only_identities(pool, lun) for lun in chosen]
    originals, named = Originals(pool), names(pool, chosen, wanted)
    planned = [_planned(calls, pool, lun, named[lun.scsi_id], wanted.run, originals) for lun in chosen]
    return planned if wanted.leave_others else with_neighbours(planned, found)


def _planned(calls: Calls, pool: Pool, lun: PoolLun, name: str, run: str, originals: "Originals") -> LunPlan:
    sr = sr_of(pool, lun)
    try:
        verify_not_overwritten(pool, lun)
        if lun.kind == RESIGNATURED:
            verify_no_database(pool, lun.scsi_id, lun.metadata_of)
        if sr is not None:
            verify_same(pool.srs[sr], lun)
    except Refused as refusal:
        return LunPlan(lun, name, sr or "", refusal=refusal)
    on = hosts.planned(pool, sr)
    if sr is None:
        is_new = lun.kind in UNTOUCHED
        return LunPlan(lun, name, "", is_new, marks_of(lun, run), on, scans=True, labels=True)
    record = pool.srs[sr]
    copies = vdis.of_sr(calls, sr)
    return LunPlan(
        lun,
        str(record["name_label"]),
        sr,
        marks=missing_marks(record, lun, run),
        hosts=on,
        scans=not copies or any(host.creates or host.plugs for host in on),
        labels=not copies or _is_to_be_labelled(calls, lun, copies, originals),
    )


def _only_identities(pool: Pool, lun: PoolLun) -> LunPlan:
    """Return the plan for a LUN that gets new identities and no SR. Pure."""
    row = LunPlan(lun, "", sr_of(pool, lun) or "", attaches=False)
    try:
        verify_not_overwritten(pool, lun)
    except Refused as refusal:
        return row._replace(refusal=refusal)
    return row._replace(resignatures=lun.kind in UNTOUCHED)


def seen_together(chosen: Sequence[PoolLun]) -> Callable[[PoolLun], str]:
    """Return a function from a LUN to the group that a host sees together: the target, or "" for all LUNs."""
    is_plain = all(lun.portal.iqn and not set("*,") & set(lun.portal.iqn) for lun in chosen)
    return lambda lun: lun.portal.iqn if is_plain else ""


def with_neighbours(planned: Sequence[LunPlan], found: Sequence[PoolLun]) -> List[LunPlan]:
    """Return the plans with `neighbours`: untouched clones that must be resignatured before a host plugs the SR.

    If a neighbour is refused, `attach` introduces the SR and does not plug it. The same holds for a neighbour whose
    probe fails after a run began to resignature the neighbour: the master may still work on that clone. Pure.
    """
    group = seen_together([row.lun for row in planned])
    clones = [row.lun for row in planned if row.lun.is_untouched] + [lun for lun in found if lun.may_be_untouched]
    resignatured = {row.lun.scsi_id for row in planned if row.refusal is None}

    def beside(row: LunPlan) -> LunPlan:
        row = row._replace(neighbours=tuple(lun.scsi_id for lun in clones if group(lun) == group(row.lun)))
        try:
            verify_neighbours(row, resignatured)
        except Refused as unplugged:
            return row._replace(hosts=(), scans=False, labels=False, unplugged=unplugged)
        return row

    return [beside(row) if row.plugs else row for row in planned]


def verify_neighbours(row: LunPlan, own_ids: AbstractSet[str]) -> None:
    """Raises Refused where `own_ids` (SCSIids of LUNs with new identities) lacks a neighbour."""
    left = [scsi_id for scsi_id in row.neighbours if scsi_id not in own_ids]
    if left:
        raise Refused(
            "The SR on the LUN {} is introduced but not plugged. Clones on the same target may still have the "
            "identities of their originals: {}. Repeat the command, or add --leave-others.".format(
                row.lun.scsi_id, ", ".join(left)
            )
        )


def sr_of(pool: Pool, lun: PoolLun) -> Optional[str]:
    """Return the SR (reference) that the pool has for this LUN; None for an untouched LUN, or without an SR."""
    return pool.sr_by_uuid(lun.sr_uuid) if lun.kind in (ATTACHED, RESIGNATURED) else None


def marks_of(lun: PoolLun, run: str) -> Dict[str, str]:
    """Return the keys that other_config of the SR needs. ORIGINAL_SR comes last, because this key marks a copy."""
    return {**_FLAGS, SCSI_ID: lun.scsi_id, RUN: run, ORIGINAL_SR: lun.of_sr}


def missing_marks(record: Record, lun: PoolLun, run: str) -> Dict[str, str]:
    """Return the keys of `marks_of` that this SR record lacks."""
    return {key: text for key, text in marks_of(lun, run).items() if key not in record["other_config"]}


def _is_to_be_labelled(calls: Calls, lun: PoolLun, copies: Records, originals: "Originals") -> bool:
    of_sr = lun.of_sr or originals.by_ids(calls, lun.sr_uuid, copies)
    old = vdis.with_unknown(originals.of(calls, of_sr), lun.old_vdis)
    return of_sr != lun.of_sr or bool(vdis.unlabelled(lun.sr_uuid, copies, old))


def verify_not_overwritten(pool: Pool, lun: PoolLun) -> None:
    """Raises Refused where the LUN is untouched and the pool still has an SR of an earlier copy on this LUN."""
    earlier = pool.sr_on(lun.scsi_id)
    if earlier is not None and lun.kind in UNTOUCHED:
        name, old = pool.srs[earlier]["name_label"], pool.srs[earlier]["uuid"]
        raise Refused(
            f"The LUN {lun.scsi_id} held the copy {name!r} ({old}) and now holds another SR: the array has "
            "overwritten the LUN. Nothing was written. Discard the old SR (`relvmoiscsi pool discard`), then repeat "
            "the command."
        )


def verify_no_database(pool: Pool, scsi_id: str, metadata_of: Sequence[str]) -> None:
    """Raises Refused where a VDI on a resignatured LUN is flagged to hold the database of this pool."""
    if pool.ref in metadata_of:
        raise Refused(
            f"A VDI on the LUN {scsi_id} has the pool-metadata flag: the pool would write its database to this "
            "VDI after a plug. The LUN was resignatured without --clear-metadata-vdi. Run `relvmoiscsi undo` "
            "for the LUN on a host, then repeat this command."
        )


def verify_same(record: Record, lun: PoolLun) -> None:
    """Raises Refused where the pool's SR with the UUID of the LUN's SR is on another LUN, or has another type."""
    marked_for = record["other_config"].get(SCSI_ID, lun.scsi_id)
    if record["type"] != lun.portal.lvm_type or marked_for != lun.scsi_id:
        raise Refused(
            f"The pool has an SR {lun.sr_uuid} already, of type {record['type']} and on another LUN than "
            f"{lun.scsi_id}. If that SR is not needed, run `xe sr-forget`, then repeat the command."
        )


class Originals:
    """VDIs of the original SRs (by UUID): one call per SR, for any number of copies."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._lock = pool, threading.Lock()
        self._known: Dict[str, Records] = {}
        self._all: Optional[Records] = None

    def of(self, calls: Calls, sr_uuid: str) -> Records:
        """Return the VDIs of an SR. Raises PoolFailure."""
        with self._lock:
            if sr_uuid not in self._known:
                ref = self._pool.sr_by_uuid(sr_uuid)
                self._known[sr_uuid] = vdis.of_sr(calls, ref) if ref is not None else {}
            return self._known[sr_uuid]

    def by_ids(self, calls: Calls, new_sr: str, copies: Records) -> str:
        """Return the UUID of the original SR of these VDIs when the LUN no longer names the original.

        Each new VDI UUID is derived from the new SR's UUID and the old VDI UUID. "" where no VDI of the pool matches.
        Raises PoolFailure.
        """
        with self._lock:
            if self._all is None:
                self._all = calls.records("VDI")
        new = {copy["uuid"] for copy in copies.values()}
        for old in self._all.values():
            if old["SR"] in self._pool.srs and derived_uuid(new_sr, old["uuid"]) in new:
                return str(self._pool.srs[old["SR"]]["uuid"])
        return ""
