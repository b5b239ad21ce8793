# SPDX-License-Identifier: LGPL-2.1-only
"""The steps that each LUN still needs, as a value: `attach` executes the plan, a dry run prints it, a prompt counts it.

`plan` reads the records of the pool and the answers of the probes, and changes nothing. Each flag of a plan is one step
of `attach`; `attach` executes no other step.
"""

import threading
from itertools import groupby
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError
from relvmoiscsi.pool import jobs, lock, lock_keys, records, vdis
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.lock_keys import LockName
from relvmoiscsi.pool.luns import ATTACHED, DAMAGED, RESIGNATURED, UNFINISHED, UNMAP, UNTOUCHED, PoolLun
from relvmoiscsi.pool.records import CHANGED, ORIGINAL_SR, RUN, SCSI_ID, HostPlan, Pool
from relvmoiscsi.pool.vdis import Origin
from relvmoiscsi.wording import change, shell_command, shown_time

#: kinds of steps; _PLANNED has the words of a plan for each
RESIGNATURE, INTRODUCE, MARK, CREATE_PBD, PLUG = "resignature", "introduce", "mark", "create PBD", "plug"
SCAN, LABEL = "scan", "label VDIs"

_FLAGS = {"gc": "false", "indestructible": "true"}


#: template of names: of three copies of an SR, each name tells which data the copy holds
NAME = "{sr} changed {date}"


class AttachRequest(NamedTuple):
    """What the caller wants `attach` to do with the LUNs."""

    name: str = NAME  #: template for the names of the new SRs: {sr}, {date}, {changed}, {scsi_id}
    run: str = ""  #: identifies the run in the marks
    jobs: int = jobs.MOST
    leave_others: bool = False  #: True: hosts may see untouched clones of this pool
    attaches: bool = True  #: False: the LUNs get new identities, and the pool gets no SR
    are_unplugged: bool = False  #: True: no host has the SRs of the LUNs attached, and the caller vouches for clones


WOULD_FAIL = "would fail"  #: status of a LUN that a run will not attach


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
    neighbours: Mapping[str, str] = {}  #: clones that must have new identities before a plug: kind by SCSIid
    unplugged: Optional[RelvmoiscsiError] = None  #: why no host will plug the SR: a neighbour is refused
    attaches: bool = True  #: False: the LUN gets new identities, and the pool gets no SR

    @property
    def introduces(self) -> bool:
        return self.attaches and not self.sr and self.refusal is None

    @property
    def steps(self) -> List[Tuple[str, str]]:
        """Return the steps of `attach`, in order, each with its host or new SR (""); [] for a refused LUN."""
        if self.refusal is not None:
            return []
        steps = [(RESIGNATURE, "")] if self.resignatures else []
        if self.introduces:
            steps.append((INTRODUCE, self.name))
        elif self.marks:
            steps.append((MARK, ""))
        steps += [(CREATE_PBD, host.name) for host in self.hosts if host.creates]
        steps += [(PLUG, host.name) for host in self.hosts if host.plugs]
        return steps + ([(SCAN, "")] if self.scans else []) + ([(LABEL, "")] if self.labels else [])

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

    @property
    def status(self) -> str:
        """Return the status that the run will have for the LUN, in the words of a plan."""
        if self.error is not None:
            return WOULD_FAIL
        return "would be partial" if self.down else "would be attached" if self.steps else "already attached"

    def facts(self) -> Dict[str, Any]:
        return {
            "scsi_id": self.lun.scsi_id,
            "status": self.status,
            "steps": [{"step": what, "on": on or None} for what, on in self.steps],
            "changed_at": self.lun.changed or None,
            "hosts_down": self.down,
            "problem": None if self.error is None else str(self.error),
        }

    def text(self) -> str:
        """Return the plan as text for a person."""
        if self.refusal is not None:
            return f"would be refused: {self.refusal}"
        parts: Dict[str, List[str]] = {}
        for what, on in self.steps:
            parts.setdefault(what, []).append(repr(on) if on else "")
        found = ["; ".join(" ".join([_PLANNED[what], ", ".join(ons)]).strip() for what, ons in parts.items())]
        found = [f"would be {steps}" for steps in found if steps]
        found += [f"host {name!r} is down: repeat the command when the host is up" for name in self.down]
        if self.unplugged is not None:
            return "; ".join([*found, str(self.unplugged)])
        if not self.steps:
            found = ["already attached" + (" on all hosts that are up" if self.down else ""), *found]
        return "; ".join(found)


#: the words of a plan for a step, behind "would be"; hosts, or the name of the new SR, follow
_PLANNED = {
    RESIGNATURE: "resignatured",
    INTRODUCE: "introduced as",
    MARK: "marked as a copy",
    CREATE_PBD: "given a PBD on",
    PLUG: "plugged on",
    SCAN: "scanned",
    LABEL: "given the labels of the original's VDIs",
}


def names(pool: Pool, chosen: Sequence[PoolLun], wanted: AttachRequest) -> Dict[str, str]:
    """Return the name of each new SR, by SCSIid; all names differ. Raises UsageError for a bad template.

    The names of LUNs that are attached together do not depend on the order of `chosen`.

    {date} is the day, and {changed} the time, of the last change of the SR by LVM. A name that is taken, or that LUNs
    with several such times would get, has the time in place of the day. A name that is taken again gets a number.
    """
    parts, there = verify_template(wanted.name), {str(sr["name_label"]) for sr in pool.srs.values()}
    known: Dict[str, Dict[str, str]] = {}  #: the values of the fields, by SCSIid
    wishes: Dict[str, str] = {}
    times: Dict[str, Set[str]] = {}
    for lun in chosen:
        changed, day = (shown_time(lun.changed), lun.changed[:10]) if lun.changed else ("unknown", "unknown")
        sr = lun.name or lun.of_sr or lun.scsi_id
        of_lun = known[lun.scsi_id] = {"sr": sr, "date": day, "changed": changed, "scsi_id": lun.scsi_id}
        wish = wishes[lun.scsi_id] = "".join(text + of_lun.get(field, "") for text, field in parts)
        times.setdefault(wish, set()).add(lun.changed)
    taken, found = dict.fromkeys(there, 1), {}
    for lun in sorted((lun for lun in chosen if sr_of(pool, lun) is None), key=lambda lun: lun.scsi_id):
        wish = wishes[lun.scsi_id]
        if lun.changed and (wish in there or len(times[wish]) > 1):
            with_time = {**known[lun.scsi_id], "date": shown_time(lun.changed)}
            wish = "".join(text + with_time.get(field, "") for text, field in parts)
            is_timed = any(field in ("date", "changed") for _, field in parts)
            wish += "" if is_timed else f" ({change(lun.changed)})"
        found[lun.scsi_id] = records.unused_name(wish, taken)
    return found


def verify_template(template: str) -> List[Tuple[str, str]]:
    """Return the parts of a template: a text, and the field after the text. Raises UsageError."""
    return records.parts_of_template(template, "sr", "date", "changed", "scsi_id")


def plan(
    calls: Calls,
    pool: Pool,
    chosen: Sequence[PoolLun],
    wanted: AttachRequest,
    found: Sequence[PoolLun] = (),
    refused: Mapping[LockName, Refused] = {},
) -> List[LunPlan]:
    """Return the plans for the chosen LUNs, in order; `found` holds all LUNs that the pool sees.

    A LUN is refused that another client has locked, or has changed since the pool was read, also without a step: the
    other client may undo what is done there. `refused` has more refusals of chosen LUNs.

    Raises UsageError for a bad template of names, PoolFailure.
    """
    originals, named = Originals(pool), names(pool, chosen, wanted) if wanted.attaches else {}
    refused = {**of_others(calls, pool, chosen), **refused}
    planned = []
    for lun in chosen:
        sr, is_new = sr_of(pool, lun), lun.kind in UNTOUCHED
        row = LunPlan(lun, named.get(lun.scsi_id, ""), sr or "", attaches=wanted.attaches)
        try:
            verify_not_overwritten(pool, lun)
            if lun.kind == RESIGNATURED and wanted.attaches:
                verify_no_database(pool, lun.scsi_id, lun.metadata_of)
            if sr is not None and wanted.attaches:
                verify_same(pool, sr, lun, pool.is_begun(lun.scsi_id))
        except Refused as refusal:
            planned.append(row._replace(refusal=refusal))
            continue
        if not wanted.attaches:
            row = row._replace(resignatures=is_new)
        elif sr is None:
            on, marks = pool.host_plans(None), marks_of(lun, wanted.run)
            row = row._replace(resignatures=is_new, marks=marks, hosts=on, scans=True, labels=True)
        else:
            record, on, copies = pool.srs[sr], pool.host_plans(sr), calls.records("VDI", SR=sr)
            labels = not copies
            if copies:
                of_sr, origin = originals.of_copy(calls, lun, copies)
                labels = of_sr != lun.of_sr or bool(vdis.unlabelled(origin, copies))
            row = row._replace(
                name=str(record["name_label"]),
                marks=missing_marks(record, lun, wanted.run),
                hosts=on,
                scans=not copies or any(host.creates or host.plugs for host in on),
                labels=labels,
            )
        planned.append(row._replace(refusal=refused.get(LockName(lun.scsi_id))))
    return planned if wanted.leave_others or not wanted.attaches else with_neighbours(planned, found)


def of_others(calls: Calls, pool: Pool, found: Sequence[PoolLun]) -> Dict[LockName, Refused]:
    """Return the refusal of each LUN that another client has locked, or has changed. Raises PoolFailure."""
    locked = lock.refusals(calls, [lock_keys.name_for(lun.scsi_id) for lun in found], lock.LUN_STAYS) if found else {}
    return {**locked, **changed(calls, pool, found)}


def changed(calls: Calls, pool: Pool, found: Sequence[PoolLun]) -> Dict[LockName, Refused]:
    """Return the refusal of each LUN that another client has attached or discarded since the pool was read."""
    now = pool.with_records(calls.records("SR"), calls.records("PBD")) if found else pool
    return {
        lock_keys.name_for(lun.scsi_id): Refused(
            f"Another client has just attached or discarded the LUN {lun.scsi_id}."
        )
        .advising("Repeat the command.")
        .in_state(lock.LUN_STAYS)
        for lun in found
        if (sr_of(now, lun), now.sr_on(lun.scsi_id)) != (sr_of(pool, lun), pool.sr_on(lun.scsi_id))
    }


def seen_together(chosen: Sequence[PoolLun]) -> Callable[[PoolLun], str]:
    """Return a function from a LUN to the group that a host sees together: the target, or "" for all LUNs."""
    is_plain = all(lun.portal.iqn and not set("*,") & set(lun.portal.iqn) for lun in chosen)
    return lambda lun: lun.portal.iqn if is_plain else ""


def with_neighbours(planned: Sequence[LunPlan], found: Sequence[PoolLun]) -> List[LunPlan]:
    """Return the plans with `neighbours`: untouched clones that must be resignatured before a host plugs the SR.

    An untouched clone is a clone of an SR of the pool, or of the SR that the host plugs.
    If a neighbour is refused, `attach` introduces the SR and does not plug it. The same holds for a damaged LUN, and
    for a neighbour whose probe fails after a run began to resignature the neighbour: the master may still work on that
    clone. Pure.
    """
    group = seen_together([row.lun for row in planned])
    clones = [row.lun for row in planned if row.lun.is_untouched] + [lun for lun in found if lun.may_be_untouched]
    in_groups = groupby(sorted(clones, key=group), group)
    beside_each = {key: {lun.scsi_id: lun.kind for lun in there} for key, there in in_groups}
    new: Dict[Tuple[str, Optional[str]], Dict[str, str]] = {}  # LUNs that this run resignatures, by group and SR
    for row in planned:
        if row.resignatures:
            new.setdefault((group(row.lun), row.lun.sr_uuid), {})[row.lun.scsi_id] = row.lun.kind
    resignatured = {row.lun.scsi_id for row in planned if row.refusal is None}
    rows = list(planned)
    for number, row in enumerate(rows):
        if row.plugs:
            there = beside_each.get(group(row.lun), {})
            same = {} if row.resignatures else new.get((group(row.lun), row.lun.sr_uuid), {})
            beside = row._replace(neighbours={**there, **same} if same else there)
            try:
                verify_neighbours(beside, resignatured)
            except Refused as unplugged:
                beside = beside._replace(hosts=(), scans=False, labels=False, unplugged=unplugged)
            rows[number] = beside
    return rows


def verify_neighbours(row: LunPlan, own_ids: AbstractSet[str]) -> None:
    """Raises Refused where `own_ids` (SCSIids of LUNs with new identities) lacks a neighbour."""
    left = {scsi_id: kind for scsi_id, kind in row.neighbours.items() if scsi_id not in own_ids}
    if left:
        names = [f"{scsi_id} (damaged)" if kind == DAMAGED else scsi_id for scsi_id, kind in left.items()]
        raise Refused(
            f"No host can plug the SR on the LUN {row.lun.scsi_id} yet. Clones on the same target may still have the "
            f"identities of their originals: {', '.join(names)}."
        ).advising(
            f"{UNMAP} Then repeat the command, or add --leave-others."
            if DAMAGED in left.values()  # and no repeated command helps before
            else f"Repeat the command, or add --leave-others. {UNMAP}"
        )


def sr_of(pool: Pool, lun: PoolLun) -> Optional[str]:
    """Return the SR (reference) that the pool has for this LUN; None for an untouched LUN, or without an SR."""
    return pool.sr_by_uuid(lun.sr_uuid) if lun.kind in (ATTACHED, RESIGNATURED) else None


def marks_of(lun: PoolLun, run: str) -> Dict[str, str]:
    """Return the keys that other_config of the SR needs. ORIGINAL_SR comes last, because this key marks a copy."""
    changed = {CHANGED: lun.changed} if lun.changed else {}
    return {**_FLAGS, **changed, SCSI_ID: lun.scsi_id, RUN: run, ORIGINAL_SR: lun.of_sr}


def missing_marks(record: Record, lun: PoolLun, run: str) -> Dict[str, str]:
    """Return the keys of `marks_of` that this SR record lacks."""
    return {key: text for key, text in marks_of(lun, run).items() if key not in record["other_config"]}


def verify_not_overwritten(pool: Pool, lun: PoolLun) -> None:
    """Raises Refused where the LUN is untouched and the pool still has an SR of an earlier copy on this LUN.

    The driver writes to no LUN that a PBD names, and finishes no interrupted run there.
    """
    earlier = pool.sr_on(lun.scsi_id)
    if earlier is not None and lun.kind in UNTOUCHED:
        name, old = pool.srs[earlier]["name_label"], pool.srs[earlier]["uuid"]
        now = "an interrupted resignature" if lun.kind == UNFINISHED else "another SR"
        raise (
            Refused(
                f"The LUN {lun.scsi_id} held the copy {name!r} ({old}) and now holds {now}: the array has overwritten "
                "the LUN."
            )
            .in_state(NOTHING_WRITTEN)
            .advising(f"Run `{shell_command('relvmoiscsi pool discard', old)}`, then repeat the command.")
        )


def verify_no_database(pool: Pool, scsi_id: str, metadata_of: Sequence[str]) -> None:
    """Raises Refused where a VDI on a resignatured LUN is flagged to hold the database of this pool."""
    if pool.ref in metadata_of:
        raise Refused(
            f"A VDI on the LUN {scsi_id} has the pool-metadata flag: the pool would write its database to this "
            "VDI after a plug. The LUN was resignatured without --clear-metadata-vdi."
        ).advising("Undo the resignature of the LUN on a host, then repeat this command.")


def verify_new(pool: Pool, lun: PoolLun, sr_uuid: str) -> None:
    """Raises Refused where the SR on a resignatured LUN is the SR from before, or an SR of the pool on another LUN.

    `lun` is the LUN as it was before. A LUN whose run was interrupted may hold its new SR since then.
    """
    sr = pool.sr_by_uuid(sr_uuid)
    was_same = lun.kind in UNTOUCHED and lun.kind != UNFINISHED and sr_uuid == lun.sr_uuid
    if was_same or sr is not None and pool.is_on(sr, lun.scsi_id) is False:
        raise (
            Refused(
                f"The label of the LUN {lun.scsi_id} says that the LUN was resignatured, but the LUN holds the old SR "
                f"{sr_uuid}."
            )
            .in_state("Nothing was attached.")
            .advising("Resignature the LUN on a host with --again, then repeat the command.")
        )


def verify_same(pool: Pool, sr: str, lun: PoolLun, is_begun: bool) -> None:
    """Raises Refused where `attach` has not made the pool's SR with the UUID of the LUN's SR for this LUN.

    A run that was killed behind SR.introduce leaves an SR without marks, which no host has had. `is_begun`: a run of
    this pool has begun to attach the LUN.
    """
    record = pool.srs[sr]
    marks, known = record["other_config"], pool.known_sr(lun.sr_uuid)
    forget = f"run `{shell_command('xe sr-forget', f'uuid={lun.sr_uuid}')}`"
    if any(pbd["currently_attached"] for _, pbd in pool.pbds_of(sr).values()):
        forget = "detach and forget that SR"
    is_here = marks.get(SCSI_ID, lun.scsi_id) == lun.scsi_id and pool.is_on(sr, lun.scsi_id) is not False
    if record["type"] != lun.portal.sr_type.stock or not is_here:
        raise Refused(
            f"The pool has an SR {lun.sr_uuid} already, of type {record['type']} and on another LUN than {lun.scsi_id}."
        ).advising(f"If that SR is not needed, {forget}, then repeat the command.")
    is_without_marks = {SCSI_ID, RUN, ORIGINAL_SR}.isdisjoint(marks)
    if is_without_marks and not (is_begun and known is not None and known.is_new()):
        raise Refused(
            f"The pool has an SR {lun.sr_uuid} already, which `relvmoiscsi pool attach` has not introduced."
        ).advising(f"If that SR is not needed, {forget}, then repeat the command.")


class Originals:
    """The origin of each copy; one call reads the VDIs of the pool, for any number of copies."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._lock = pool, threading.Lock()
        self._known: Optional[Records] = None

    def of_copy(self, calls: Calls, lun: PoolLun, copies: Records) -> Tuple[str, Origin]:
        """Return (the UUID of the original SR of a copy, the origin of its VDIs); `copies` are the VDIs of the copy.

        Where the LUN no longer names the original, the VDIs do. "" where no SR of the pool, or more than one SR,
        matches. Raises PoolFailure.
        """
        srs, of_sr = self._pool.srs, lun.of_sr
        with self._lock:
            self._known = known = calls.records("VDI") if self._known is None else self._known
        ref = self._pool.sr_by_uuid(of_sr) if of_sr else vdis.original_of(lun.sr_uuid, copies, known)
        of_sr = str(srs[ref]["uuid"]) if ref in srs else of_sr
        return of_sr, Origin(lun.sr_uuid, ref, known, lun.old_vdis)
