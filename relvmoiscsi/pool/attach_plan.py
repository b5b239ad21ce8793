# SPDX-License-Identifier: LGPL-2.1-only
"""What there is to do with each LUN, as a value: `attach` executes it, a dry run prints it, a prompt counts it.

A plan is computed from what the pool and the probes have said; nothing is changed for it. Each flag of a plan is a
step of `attach`, and `attach` takes no other step.
"""

import string
import threading
from typing import AbstractSet, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import hosts, jobs, vdis
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.hosts import HostPlan
from relvmoiscsi.pool.luns import ATTACHED, RESIGNATURED, UNTOUCHED, PoolLun
from relvmoiscsi.pool.records import ORIGINAL_SR, RUN, SCSI_ID, Pool

#: what a step does
RESIGNATURE, INTRODUCE, MARK, CREATE_PBD, PLUG = "resignature", "introduce", "mark", "create PBD", "plug"
SCAN, LABEL = "scan", "label VDIs"

_FLAGS = {"gc": "false", "indestructible": "true"}


class Step(NamedTuple):
    """One change of a LUN or of the pool."""

    what: str
    on: str = ""  #: name of the host of a PBD; of the SR that is introduced

    def facts(self) -> Dict[str, Optional[str]]:
        """For JSON."""
        return {"step": self.what, "on": self.on or None}


NAME = "{sr} {date}"


class Wanted(NamedTuple):
    """What is to become of the LUNs."""

    name: str = NAME  #: of the new SRs: {sr}, {date}, {scsi_id}
    date: str = ""
    run: str = ""  #: identifies the run in the marks
    jobs: int = jobs.MOST
    leave_others: bool = False  #: hosts may see untouched clones of this pool
    attaches: bool = True  #: False: the LUNs get new identities, and the pool gets no SR


class LunPlan(NamedTuple):
    """What there is to do with a LUN."""

    lun: PoolLun
    name: str  #: of the SR, the one there is or the new one
    sr: str = ""  #: reference; "" for an SR that is to be introduced
    resignatures: bool = False
    marks: Mapping[str, str] = {}  #: keys of other_config that the SR has not
    hosts: Sequence[HostPlan] = ()
    scans: bool = False
    labels: bool = False
    refusal: Optional[RelvmoiscsiError] = None  #: why nothing can be done
    neighbours: Sequence[str] = ()  #: SCSIids of the clones that must have new identities before a host plugs the SR
    unplugged: Optional[RelvmoiscsiError] = None  #: why no host will plug the SR: a neighbour is refused
    attaches: bool = True  #: False: the LUN gets new identities, and the pool gets no SR

    @property
    def introduces(self) -> bool:
        return self.attaches and not self.sr and self.refusal is None

    @property
    def steps(self) -> List[Step]:
        """All that `attach` does, in its order; nothing for a LUN that is refused."""
        return list(self._steps())

    def _steps(self) -> Iterator[Step]:
        if self.refusal is not None:
            return
        if self.resignatures:
            yield Step(RESIGNATURE)
        if self.introduces:
            yield Step(INTRODUCE, self.name)
        elif self.marks:
            yield Step(MARK)
        yield from (Step(CREATE_PBD, host.name) for host in self.hosts if host.creates)
        yield from (Step(PLUG, host.name) for host in self.hosts if host.plugs)
        if self.scans:
            yield Step(SCAN)
        if self.labels:
            yield Step(LABEL)

    @property
    def plugs(self) -> bool:
        return any(host.plugs for host in self.hosts)

    @property
    def error(self) -> Optional[RelvmoiscsiError]:
        """Why the LUN will not be attached."""
        return self.refusal or self.unplugged

    @property
    def down(self) -> List[str]:
        """Names of the hosts that are down, and are left for a later run."""
        return [host.name for host in self.hosts if host.is_down] if self.refusal is None else []

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "scsi_id": self.lun.scsi_id,
            "steps": [step.facts() for step in self.steps],
            "hosts_down": self.down,
            "error": None if self.error is None else str(self.error),
        }

    def text(self) -> str:
        """For a person."""
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


def names(pool: Pool, chosen: Sequence[PoolLun], wanted: Wanted) -> Dict[str, str]:
    """The name of each new SR, by SCSIid: no two alike. Raises UsageError for a template that cannot be one."""
    verify_template(wanted.name)
    taken = {str(sr["name_label"]) for sr in pool.srs.values()}
    found = {}
    for lun in chosen:
        wish = wanted.name.format(sr=lun.name or lun.of_sr or lun.scsi_id, date=wanted.date, scsi_id=lun.scsi_id)
        name, number = wish, 2
        while name in taken:
            name, number = f"{wish} ({number})", number + 1
        taken.add(name)
        found[lun.scsi_id] = name
    return found


def verify_template(template: str) -> None:
    """Raises UsageError for a template that cannot be one."""
    if not template.strip():
        raise UsageError("--name is empty: give the SRs a name.")
    try:
        used = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise UsageError(f"--name {template!r} cannot be read: {error}.") from error
    if any(field not in ("sr", "date", "scsi_id") or form or conversion for _, field, form, conversion in used):
        raise UsageError(f"--name {template!r} may contain only the fields sr, date and scsi_id in braces.")


def plan(
    calls: Calls, pool: Pool, chosen: Sequence[PoolLun], wanted: Wanted, found: Sequence[PoolLun] = ()
) -> List[LunPlan]:
    """What there is to do with the chosen LUNs, in their order; `found` are all LUNs that the pool sees.

    Raises UsageError for a template of names that cannot be one, PoolFailure.
    """
    if not wanted.attaches:
        return [_only_identities(pool, lun) for lun in chosen]
    originals, named = Originals(pool), names(pool, chosen, wanted)
    planned = [_planned(calls, pool, lun, named[lun.scsi_id], wanted.run, originals) for lun in chosen]
    return planned if wanted.leave_others else with_neighbours(planned, found)


def _planned(calls: Calls, pool: Pool, lun: PoolLun, name: str, run: str, originals: "Originals") -> LunPlan:
    sr = sr_of(pool, lun)
    try:
        _verify(pool, lun, sr)
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
    """The plan for a LUN that gets new identities and no SR. Pure."""
    row = LunPlan(lun, "", sr_of(pool, lun) or "", attaches=False)
    try:
        verify_not_overwritten(pool, lun)
    except Refused as refusal:
        return row._replace(refusal=refusal)
    return row._replace(resignatures=lun.kind in UNTOUCHED)


def seen_together(chosen: Sequence[PoolLun]) -> Callable[[PoolLun], str]:
    """Gives what all LUNs have in common which a host sees when it sees one of them: a target, or all there are."""
    is_plain = all(lun.portal.iqn and not set("*,") & set(lun.portal.iqn) for lun in chosen)
    return lambda lun: lun.portal.iqn if is_plain else ""


def with_neighbours(planned: Sequence[LunPlan], found: Sequence[PoolLun]) -> List[LunPlan]:
    """The same plans, where each SR that is to be plugged waits for the untouched clones that a plug shows to a host.

    An SR beside a refused clone is introduced, and not plugged. The same holds beside a clone with which a run has
    begun and which cannot be looked at: the master may be at work on that clone. Pure.
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
    """Raises Refused where a neighbour is not among the LUNs (SCSIids) that have identities of their own."""
    left = [scsi_id for scsi_id in row.neighbours if scsi_id not in own_ids]
    if left:
        raise Refused(
            "The SR on the LUN {} is introduced but not plugged. Clones on the same target may still have the "
            "identities of their originals: {}. Repeat the command, or add --leave-others.".format(
                row.lun.scsi_id, ", ".join(left)
            )
        )


def sr_of(pool: Pool, lun: PoolLun) -> Optional[str]:
    """The SR (reference) that `attach` makes of this LUN, where the pool has it. Then the LUN has its identities."""
    return pool.sr_by_uuid(lun.sr_uuid) if lun.kind in (ATTACHED, RESIGNATURED) else None


def marks_of(lun: PoolLun, run: str) -> Dict[str, str]:
    """What other_config of the SR on this LUN is to have; ORIGINAL_SR, which makes it a copy of ours, is the last."""
    return {**_FLAGS, SCSI_ID: lun.scsi_id, RUN: run, ORIGINAL_SR: lun.of_sr}


def missing_marks(record: Record, lun: PoolLun, run: str) -> Dict[str, str]:
    """Those of `marks_of` that the SR with this record lacks."""
    return {key: text for key, text in marks_of(lun, run).items() if key not in record["other_config"]}


def _is_to_be_labelled(calls: Calls, lun: PoolLun, copies: Records, originals: "Originals") -> bool:
    of_sr = lun.of_sr or originals.by_ids(calls, lun.sr_uuid, copies)
    old = vdis.with_unknown(originals.of(calls, of_sr), lun.old_vdis)
    return of_sr != lun.of_sr or bool(vdis.unlabelled(lun.sr_uuid, copies, old))


def _verify(pool: Pool, lun: PoolLun, sr: Optional[str]) -> None:
    """Raises Refused."""
    verify_not_overwritten(pool, lun)
    if lun.kind == RESIGNATURED:
        verify_no_database(pool, lun.scsi_id, lun.metadata_of)
    if sr is not None:
        verify_same(pool.srs[sr], lun)


def verify_not_overwritten(pool: Pool, lun: PoolLun) -> None:
    """Raises Refused where the pool still has, on hosts or detached, the copy that was on this LUN before."""
    earlier = pool.sr_on(lun.scsi_id)
    if earlier is not None and lun.kind in UNTOUCHED:
        name, old = pool.srs[earlier]["name_label"], pool.srs[earlier]["uuid"]
        raise Refused(
            f"The LUN {lun.scsi_id} was that of the SR {name!r} ({old}), and holds another one now: the array has "
            "overwritten the LUN. Nothing was written. Discard the old SR (`relvmoiscsi pool discard`), then repeat "
            "the command."
        )


def verify_no_database(pool: Pool, scsi_id: str, metadata_of: Sequence[str]) -> None:
    """Raises Refused where a VDI on a LUN with identities of its own is to hold the database of this pool."""
    if pool.ref in metadata_of:
        raise Refused(
            f"A VDI on the LUN {scsi_id} has the pool-metadata flag: the pool would write its database to this "
            "VDI after a plug. The LUN was resignatured without --clear-metadata-vdi. Run `relvmoiscsi undo` "
            "for the LUN on a host, then repeat this command."
        )


def verify_same(record: Record, lun: PoolLun) -> None:
    """Raises Refused for an SR of the pool (its record) that has the UUID of the one on this LUN, and is another."""
    marked_for = record["other_config"].get(SCSI_ID, lun.scsi_id)
    if record["type"] != lun.portal.lvm_type or marked_for != lun.scsi_id:
        raise Refused(
            f"The pool has an SR {lun.sr_uuid} already, of type {record['type']} and on another LUN than {lun.scsi_id}."
        )


class Originals:
    """The VDIs of SRs (UUIDs) that the pool has: one call for an SR, however many copies of it there are."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._lock = pool, threading.Lock()
        self._known: Dict[str, Records] = {}
        self._all: Optional[Records] = None

    def of(self, calls: Calls, sr_uuid: str) -> Records:
        """Raises PoolFailure."""
        with self._lock:
            if sr_uuid not in self._known:
                ref = self._pool.sr_by_uuid(sr_uuid)
                self._known[sr_uuid] = vdis.of_sr(calls, ref) if ref is not None else {}
            return self._known[sr_uuid]

    def by_ids(self, calls: Calls, new_sr: str, copies: Records) -> str:
        """The original SR (UUID) of these VDIs, where the LUN does not say it any more: new ids follow from old ids.

        "" where the pool has none of them. Raises PoolFailure.
        """
        with self._lock:
            if self._all is None:
                self._all = calls.records("VDI")
        new = {copy["uuid"] for copy in copies.values()}
        for old in self._all.values():
            if old["SR"] in self._pool.srs and derived_uuid(new_sr, old["uuid"]) in new:
                return str(self._pool.srs[old["SR"]]["uuid"])
        return ""
