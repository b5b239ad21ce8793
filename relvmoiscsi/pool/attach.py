# SPDX-License-Identifier: LGPL-2.1-only
"""Attach clones on all hosts of a pool. Every step can be repeated: after a kill, the next run starts from the top.

    1 resignature   SR.create of type relvmoiscsi or relvmohba, which reports success as a failure text. The probe then
                    gives the UUID of the new SR.
    2 introduce     SR.introduce of type lvmoiscsi or lvmohba, with marks: the UUID of the original SR, and the SCSIid.
                    gc=false stops the coalescing of the storage manager. indestructible=true stops SR.destroy, which
                    wipes a LUN. No host has the SR yet.
                    All LUNs of a target end steps 1 and 2 before a host plugs the first SR of the target. A host that
                    logs in or scans sees every LUN of the target. While a host sees an untouched clone, the host
                    cannot plug the original again. If a clone does not get new identities, or a LUN is damaged, no
                    host plugs an SR of the target. A host sees at once all LUNs that an array maps to its adapters:
                    these LUNs count as one target.
    3 plug          Hosts with a session add the LUN to the session (hosts.py). Then the master plugs the SR, then the
                    other hosts do. The next run plugs the SR on a host that is down now.
    4 scan, label   SR.scan creates the VDIs with the names on the LUN. Tags and other_config come from the original.

A run skips each part of steps 2 to 4 that is done; attach_plan names the missing steps. No code here calls SR.destroy,
or SR.create of another type.
"""

from contextlib import contextmanager, suppress
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from relvmoiscsi.errors import FormatError, NotFound, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.pool import attach_plan, hosts, jobs, lock, lock_keys, lun_search, luns, marks, secrets, vdis
from relvmoiscsi.pool.attach_plan import AttachRequest, LunPlan, Originals
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.lock_keys import LockName
from relvmoiscsi.pool.luns import (
    ATTACHABLE,
    ATTACHED,
    CLONE,
    DAMAGED,
    ORIGINAL,
    RESIGNATURED,
    UNCONNECTED,
    UNFINISHED,
    UNKNOWN_SR,
    UNSEEN,
    PoolLun,
)
from relvmoiscsi.pool.records import AT_WORK, ORIGINAL_SR, SCSI_ID, Pool
from relvmoiscsi.pool.vdis import Pair

#: the failure by which SR.create of relvmoiscsi's types reports success; docs/host.rst
_DONE_CODE, _DONE_TEXT = "SR_BACKEND_FAILURE_1", "has been successfully resigned"

_LOOK = "`relvmoiscsi pool luns` lists the LUNs; --target names a portal that no SR of the pool has."
#: device-config of relvmoiscsi's types, without the LUN; see drivers/ReLVMoISCSISR and drivers/ReLVMoHBASR
_CREATE = {"clear-metadata-vdi": "true", "resign": "true"}

#: status of a LUN
DONE, ALREADY, PARTIAL, FAILED = "attached", "already attached", "partial", "failed"
#: status of a LUN that gets new identities only
NEW_IDS, HAD_IDS = "resignatured", "already resignatured"
#: status of a LUN that `choose` left out; `error` has the reason, and is no error of the run
SKIPPED = "skipped"

RESIGNATURING, INTRODUCING, ATTACHING = "resignature", "introduce", "attach"

BEGUN, OVER, ENDED = "begun", "over", "ended"  #: states of a step; ENDED: the step has failed
#: called with the SCSIid, the step and the state of the step
Progress = Callable[[str, str, str], None]


class Attached(NamedTuple):
    """Result for one LUN."""

    scsi_id: str  #: "" for all LUNs of a target that gave no list
    status: str  #: DONE, ALREADY, PARTIAL, NEW_IDS, HAD_IDS, SKIPPED or FAILED
    sr_uuid: str = ""  #: the new SR; `of_sr` is the original SR
    of_sr: str = ""
    name: str = ""  #: of the SR: of the new SR as soon as the pool has it, else of the SR on the LUN; "" for none
    hosts: Mapping[str, str] = {}
    vdis: Sequence[Pair] = ()
    error: Optional[RelvmoiscsiError] = None
    notes: Sequence[str] = ()  #: sentences on what the copy lacks
    is_doubtful: bool = False  #: SKIPPED: another pool may use the LUN, or the LUN may be no clone

    def facts(self) -> Dict[str, Any]:
        return {
            "scsi_id": self.scsi_id or None,
            "status": self.status,
            "old_sr": self.of_sr or None,
            "new_sr": self.sr_uuid or None,
            "sr_name_label": self.name or None,
            "hosts": dict(self.hosts),
            "vdi_pairs": [pair.facts() for pair in self.vdis],
            "notes": list(self.notes),
            "problem": str(self.error) if self.error is not None else None,
        }


# --- which


def choose(
    found: Sequence[PoolLun],
    scsi_ids: Sequence[str],
    of: Sequence[str],
    everything: bool = False,
    are_clones: bool = False,
) -> List[PoolLun]:
    """Return the chosen LUNs: by SCSIid, as copies of SRs (UUIDs), or all LUNs that are certainly copies.

    The caller must name a LUN that another pool may use. A LUN with new identities needs its SCSIid. A LUN whose SR
    this pool does not know also needs `are_clones`: the caller vouches that the LUN is a clone. LUNs whose probe failed
    are left out; `unseen` returns these LUNs. Raises NotFound, Refused, UsageError.
    """
    if not scsi_ids and not of and not everything:
        raise UsageError("No LUN is selected.").advising("Give SCSIids, --clones-of SR, or --all.")
    by_id = {lun.scsi_id: lun for lun in found if lun.scsi_id}
    missing = [scsi_id for scsi_id in scsi_ids if scsi_id not in by_id]
    if missing:
        raise NotFound(f"The pool sees no LUN with the SCSIid {', '.join(missing)}.").advising(_LOOK)
    chosen = [by_id[scsi_id] for scsi_id in dict.fromkeys(scsi_ids) if by_id[scsi_id].kind not in UNSEEN]
    for lun in chosen:
        _verify_attachable(lun, are_clones)
    for sr in of:
        if not any(lun.of_sr == sr and _is_copy(lun, are_clones) for lun in found) and not unseen(found, [], of):
            for lun in found:
                if lun.of_sr == sr and lun.kind == UNCONNECTED:
                    _verify_attachable(lun, are_clones)
            raise NotFound(f"The pool sees no clone of the SR {sr}.").advising(_by_scsi_id(found, [sr]) or _LOOK)
    named = {lun.scsi_id for lun in chosen}
    for lun in found:
        is_named = lun.of_sr in of and _is_copy(lun, are_clones)
        if lun.scsi_id not in named and (is_named or everything and _is_copy(lun, False)):
            chosen.append(lun)
    if not chosen and not unseen(found, scsi_ids, of, everything):
        raise NotFound("The pool sees no LUN that can be attached.").advising(_by_scsi_id(found, of) or _LOOK)
    return chosen


def _by_scsi_id(found: Sequence[PoolLun], of: Sequence[str]) -> str:
    """Return an advice on the copies that `choose` takes only by their SCSIid, such as after `discard`; "" for none.

    `of` are the UUIDs of the original SRs; [] for all SRs.
    """
    there = [
        lun.scsi_id for lun in found if lun.kind == RESIGNATURED and not lun.is_ours and (not of or lun.of_sr in of)
    ]
    return f"Give the SCSIid of a copy that is resignatured and not attached: {', '.join(there)}." if there else ""


def _is_copy(lun: PoolLun, are_clones: bool) -> bool:
    """Is the LUN certainly a copy, or does the caller vouch for the LUN (`are_clones`)?"""
    is_vouched = are_clones and lun.kind in (CLONE, UNKNOWN_SR)
    return lun.kind == ATTACHED or lun.kind in ATTACHABLE and (lun.is_ours or is_vouched)


def as_clones(found: Sequence[PoolLun], scsi_ids: Sequence[str], of: Sequence[str]) -> List[PoolLun]:
    """Return the same LUNs, with kind CLONE for each chosen LUN that may be the original.

    The caller vouches that the chosen LUNs are clones; `scsi_ids` and `of` are as for `choose`.
    """
    return [
        lun._replace(kind=CLONE, is_ours=True)
        if lun.kind == UNCONNECTED and (lun.scsi_id in scsi_ids or lun.of_sr in of)
        else lun
        for lun in found
    ]


def unseen(
    found: Sequence[PoolLun], scsi_ids: Sequence[str], of: Sequence[str], everything: bool = False
) -> List[PoolLun]:
    """Return the rows whose content is unknown and which the caller may mean: a failed probe, or a damaged LUN.

    A row without a SCSIid is a target that gave no list. Nobody can say of which SR a damaged LUN is a copy.
    """
    rows = [lun for lun in found if lun.kind in UNSEEN and (of or everything or lun.scsi_id in scsi_ids)]
    lost = everything or of
    return rows + [lun for lun in found if lost and lun.kind == DAMAGED and lun.scsi_id not in scsi_ids]


def doubtful(
    found: Sequence[PoolLun], scsi_ids: Sequence[str], of: Sequence[str] = (), are_clones: bool = False
) -> List[PoolLun]:
    """Return the LUNs that `choose` leaves out because another pool may use the LUN, or the LUN may be no clone."""
    kinds = (CLONE, UNKNOWN_SR, UNCONNECTED, RESIGNATURED, UNFINISHED)
    return [
        lun
        for lun in found
        if lun.kind in kinds and not lun.is_ours and lun.scsi_id not in scsi_ids
        if not (lun.of_sr in of and _is_copy(lun, are_clones))
    ]


def not_attachable(lun: PoolLun) -> Attached:
    """Return the result for a damaged LUN, and for a LUN or a target whose probe failed."""
    kind = FormatError if lun.kind == DAMAGED else PoolFailure
    error = kind(f"Its state is {lun.kind}: {lun.problem}" if lun.scsi_id else lun.of_target())
    error.advising(luns.UNMAP if lun.kind == DAMAGED else "")
    return Attached(lun.scsi_id, FAILED, of_sr=lun.of_sr, name=lun.name, error=error)


def _verify_attachable(lun: PoolLun, are_clones: bool) -> None:
    if lun.kind == ORIGINAL:
        raise Refused(
            f"The LUN {lun.scsi_id} is in use by the SR {lun.name!r} ({lun.sr_uuid}), which is an original or "
            "was attached by hand, not by `relvmoiscsi pool attach`."
        ).advising("Select another LUN.")
    if lun.kind == UNCONNECTED:
        raise Refused(
            f"The LUN {lun.scsi_id} holds the SR {lun.name!r} ({lun.sr_uuid}), which no live host has attached on "
            "another LUN. The LUN may be the original."
        ).advising("Plug the SR first, or forget the SR. If you know that the LUN is a clone, add --unplugged.")
    if lun.kind == UNKNOWN_SR and not are_clones:
        raise Refused(
            f"The LUN {lun.scsi_id} holds the SR {lun.sr_uuid}, which this pool does not know. Another pool may "
            "use the LUN."
        ).advising("If the LUN is an unused clone, add --foreign.")
    if lun.kind == CLONE and not lun.is_ours and not are_clones:
        raise Refused(
            f"The LUN {lun.scsi_id} holds the SR {lun.name!r} ({lun.sr_uuid}), which is also on a LUN that was or may "
            f"have been resignatured. The label of the LUN {lun.scsi_id} does not say that the array copied that LUN. "
            "Another pool may use the LUN."
        ).advising("If the LUN is an unused clone, add --foreign.")
    if lun.kind not in ATTACHABLE:
        kind = FormatError if lun.kind == DAMAGED else Refused
        state = f"Its state is {lun.kind}: {lun.problem}".rstrip(": ")
        raise kind(f"The LUN {lun.scsi_id} holds no SR to attach. {state}").advising(
            luns.UNMAP if lun.kind == DAMAGED else ""
        )


def verify_none_left(found: Sequence[PoolLun], chosen: Sequence[PoolLun]) -> None:
    """Raises Refused where the target of a chosen LUN also shows untouched clones that are not chosen.

    The same holds where a LUN that is not chosen has the SR of a chosen resignatured LUN, behind any target; or the SR
    that a chosen LUN will have after its interrupted run. Nobody can tell which LUN is the copy, because each writer of
    a raw LUN can write its label. After the attachment the pool would take the LUN that is not chosen for a clone.
    """
    iqns = {lun.portal.iqn for lun in chosen}
    srs = {lun.next_sr for lun in chosen if lun.kind in (RESIGNATURED, UNFINISHED)} - {""}
    others = [lun for lun in found if lun not in chosen]
    same = [lun for lun in others if lun.next_sr in srs]
    if same:
        raise Refused(
            "Other LUNs hold the SR of a LUN that you selected: {}. Another pool may use this SR.".format(
                ", ".join(lun.scsi_id for lun in same)
            )
        ).advising(
            "Find out which LUN is the copy. If all these LUNs are unused clones, add --foreign and select these LUNs "
            "too. If you add --leave-others, the pool takes the LUNs that you did not select for clones."
        )
    left = [lun for lun in others if lun.is_untouched and lun.portal.iqn in iqns]
    if left:
        raise Refused(
            "The same target has clones that you did not select: {}. A host that logs in sees these clones too. "
            "While a host sees a clone with old identities, the host cannot plug the original again.".format(
                ", ".join(lun.scsi_id for lun in left)
            )
        ).advising("Select these clones too, or add --leave-others.")


# --- attach


def attach(
    calls: Calls,
    pool: Pool,
    chosen: Sequence[PoolLun],
    wanted: AttachRequest,
    tell: Progress = lambda *_: None,
    found: Sequence[PoolLun] = (),
) -> List[Attached]:
    """Make the plans and execute the plans. Raises the errors of `plan` and `carry_out`."""
    return carry_out(calls, pool, attach_plan.plan(calls, pool, chosen, wanted, found), wanted, tell)


def carry_out(
    calls: Calls, pool: Pool, planned: Sequence[LunPlan], wanted: AttachRequest, tell: Progress = lambda *_: None
) -> List[Attached]:
    """Execute these plans and nothing else; return one result per plan, in the order of the plans.

    `tell` is called only for LUNs with steps. A failed LUN gives a result and raises nothing, also a LUN on which
    another client works, or has changed the SR since the plan. Raises PoolFailure where the pool stops answering
    between the steps.

    During the run, a note in the pool names the LUNs that get new SRs: after a kill, the next run knows the LUNs by the
    note.
    """
    chosen, todo = [row.lun for row in planned], [row.lun for row in planned if row.steps]
    refused: Dict[LockName, Refused] = {}
    with lock.held(calls, [lock_keys.name_for(lun.scsi_id) for lun in todo], "attach", refused) as held:
        refused.update(attach_plan.changed(calls, pool, todo))
        planned = [row._replace(refusal=refused.get(LockName(row.lun.scsi_id), row.refusal)) for row in planned]
        new = {row.lun.scsi_id for row in planned if not row.sr and row.refusal is None}
        begun, notes, key = {each for each in new if not pool.is_begun(each)}, dict(pool.at_work), AT_WORK + wanted.run
        if begun:
            calls.call("pool.remove_from_other_config", pool.ref, key)
            marks.add(calls, "pool", pool.ref, key, " ".join(sorted(begun | notes.get(key, frozenset()))))
            notes[key] = notes.get(key, frozenset()) | new
        work, group = _LunWork(held, pool, wanted, tell, refused), attach_plan.seen_together(chosen)
        done = jobs.in_two_steps(calls, planned, work.begin, work.end, lambda row: group(row.lun), wanted.jobs)
        for row, error in zip(planned, done):
            if isinstance(error, RelvmoiscsiError) and row.refusal is None and work.keeps_ids(row.lun):
                error.advising(luns.UNMAP)
        results = [
            each
            if isinstance(each, Attached)
            else Attached(lun.scsi_id, FAILED, of_sr=lun.of_sr, name=lun.name, error=each)
            for lun, each in zip(chosen, done)
        ]
        # a note goes when all its LUNs have marked SRs; the next run removes the other notes
        marked = {result.scsi_id for result in results if result.sr_uuid}
        marked |= {str(sr["other_config"].get(SCSI_ID)) for _, sr in pool.copies()}
        try:
            for name in [name for name, luns_of in notes.items() if wanted.attaches and luns_of <= marked]:
                calls.call("pool.remove_from_other_config", pool.ref, name)
        except (PoolFailure, PoolGone):
            pass  # the pool stopped answering; the next run removes the notes
        return results


class _LunWork:
    """The two steps for each LUN, under the locks. Several threads take the steps of several LUNs.

    The second step of a LUN begins after the first steps of all LUNs that a host sees together.
    """

    def __init__(
        self,
        held: lock.Held,
        pool: Pool,
        wanted: AttachRequest,
        tell: Progress,
        of_others: Container[LockName] = (),  #: the LUNs that other clients have meanwhile
    ) -> None:
        self._held, self._pool, self._tell, self._of_others = held, pool, tell, of_others
        self._run, self._are_unplugged = wanted.run, wanted.are_unplugged
        self._originals, self._sessions = Originals(pool), hosts.Sessions(pool)
        self._own_ids: Set[str] = set()  #: SCSIids of the LUNs whose new identities a probe has shown

    def keeps_ids(self, lun: PoolLun) -> bool:
        """Does the LUN have the identities of an SR of this pool, as far as the probes of this run show?"""
        return lun.is_untouched and lun.scsi_id not in self._own_ids

    def begin(self, calls: Calls, row: LunPlan) -> LunPlan:
        """Give the LUN new identities and introduce its SR, as planned; return the plan with what the probe shows."""
        lun, pool = row.lun, self._pool
        if row.refusal is not None:
            if lun.scsi_id in self._of_others:
                with suppress(PoolFailure, Refused):  # the other client may have given it new identities
                    self._own_ids.add(identified(calls, pool, lun).scsi_id)
            raise row.refusal
        if row.resignatures:
            with _told(self._tell, row, RESIGNATURING):
                self._held.verify(calls)
                create(calls, pool, lun, self._are_unplugged)
                row = row._replace(lun=identified(calls, pool, lun))
        if not row.attaches:
            self._own_ids.add(lun.scsi_id)
            return row
        with _told(self._tell, row, INTRODUCING):
            if not row.resignatures and lun.kind != ATTACHED:
                row = row._replace(lun=identified(calls, pool, lun))
            self._own_ids.add(lun.scsi_id)
            if row.steps:
                self._held.verify(calls)
                row = introduce(calls, pool, row, self._run)
        return row

    def end(self, calls: Calls, row: LunPlan) -> Attached:
        """Plug the SR on the hosts, scan and label the VDIs, as planned."""
        lun, sr = row.lun, row.sr
        if not row.attaches:
            return Attached(lun.scsi_id, NEW_IDS if row.resignatures else HAD_IDS, lun.sr_uuid, lun.of_sr, lun.name)
        state = f"The LUN {lun.scsi_id} has new identities, and the pool has its SR {row.name!r} ({lun.sr_uuid})."
        try:
            with _told(self._tell, row, ATTACHING):
                with in_state(state, Refused):
                    attach_plan.verify_neighbours(row, self._own_ids)
                if row.steps:
                    self._held.verify(calls)
                on_hosts = hosts.plug_everywhere(calls, self._pool, sr, lun, row.hosts, self._sessions)
                if row.scans:
                    calls.run("SR.scan", sr)
                copies = calls.records("VDI", SR=sr)
                of_sr, origin = self._originals.of_copy(calls, lun, copies)
                if row.labels and of_sr != lun.of_sr:  # LVM overwrote the journal on the LUN, which named the original
                    calls.call("SR.remove_from_other_config", sr, ORIGINAL_SR)
                    marks.add(calls, "SR", sr, ORIGINAL_SR, of_sr)
                notes = vdis.carry_over(calls, origin, copies) if row.labels or row.scans else []
                status = DONE if row.steps else ALREADY
                status = status if all(state == hosts.PLUGGED for state in on_hosts.values()) else PARTIAL
                pairs = vdis.pairs(origin, copies)
                return Attached(lun.scsi_id, status, lun.sr_uuid, of_sr, row.name, on_hosts, pairs, notes=notes)
        except RelvmoiscsiError as error:
            return Attached(lun.scsi_id, FAILED, lun.sr_uuid, lun.of_sr, row.name, error=error)


@contextmanager
def _told(tell: Progress, row: LunPlan, step: str) -> Iterator[None]:
    """Tell how a step of a LUN begins and ends; nothing of a LUN without steps."""
    if not row.steps:
        yield
        return
    tell(row.lun.scsi_id, step, BEGUN)
    try:
        yield
    except RelvmoiscsiError:
        tell(row.lun.scsi_id, step, ENDED)
        raise
    tell(row.lun.scsi_id, step, OVER)


def create(calls: Calls, pool: Pool, lun: PoolLun, is_unplugged: bool) -> None:
    """Give the LUN new identities, unless the LUN has new identities. Raises PoolFailure, Refused.

    `is_unplugged`: the caller vouches that the LUN is a clone, though no host has the original SR attached.
    """
    attach_plan.verify_not_overwritten(pool, lun)
    try:
        config = {**secrets.uncopied(lun.portal.config(lun.scsi_id)), **_CREATE}
        if is_unplugged:
            config["clone-of"] = lun.of_sr
        calls.run("SR.create", pool.master, config, "0", "relvmoiscsi", "", lun.portal.sr_type.name, "user", True, {})
    except PoolFailure as answer:
        if answer.code != _DONE_CODE or _DONE_TEXT not in str(answer):
            raise
    else:
        own = lun.portal.sr_type.name
        raise PoolFailure(f"SR.create of type {own} made an SR, which must never happen.").advising(
            "Check the SRs of the pool."
        )


def identified(calls: Calls, pool: Pool, lun: PoolLun) -> PoolLun:
    """Probe a resignatured LUN and return the LUN with its new SR. Raises PoolFailure, Refused.

    Each writer of the raw LUN can write that the LUN was resignatured. So the SR must be another SR than before, and no
    SR of the pool that is on another LUN. A clone must be a copy of the SR that the caller has seen on the LUN.
    """
    now = lun_search.probe(calls, pool, lun)
    if now.kind != RESIGNATURED or not now.sr_uuid:
        raise PoolFailure(f"The LUN was resignatured, but its probe reports {now.kind}. {now.problem}".strip())
    attach_plan.verify_new(pool, lun, now.sr_uuid)
    attach_plan.verify_no_database(pool, lun.scsi_id, now.metadata_of)
    of_sr = now.of_sr or lun.of_sr
    if lun.kind in (CLONE, UNKNOWN_SR) and of_sr != lun.of_sr:
        raise (
            Refused(
                f"The LUN {lun.scsi_id} held the SR {lun.of_sr} before this run, and a copy of the SR {of_sr} now: "
                "another client has written to the LUN."
            )
            .in_state("The LUN has new identities and was not attached.")
            .advising("Check the LUN, then repeat the command.")
        )
    return lun._replace(kind=RESIGNATURED, sr_uuid=now.sr_uuid, of_sr=of_sr, old_vdis=now.old_vdis)


def introduce(calls: Calls, pool: Pool, row: LunPlan, run: str) -> LunPlan:
    """Introduce the SR of the LUN with marks, on no host; return the plan with the SR. Raises PoolFailure, Refused."""
    if not row.introduces:
        for key, text in row.marks.items():  # keys that another client has set meanwhile keep their values
            marks.add(calls, "SR", row.sr, key, text)
        return row
    lun = row.lun
    description = f"Copy of the SR {lun.name or 'unknown'!r} ({lun.of_sr or 'unknown'}). Discard it, never destroy it."
    try:
        stock = lun.portal.sr_type.stock
        ref = str(calls.call("SR.introduce", lun.sr_uuid, row.name, description, stock, "user", True, {}))
    except PoolFailure as failure:
        if failure.code != "SR_UUID_EXISTS":
            raise
        # the connection lost the first answer, and repeated the call, if the pool did not have the SR before
        is_lost_answer = pool.sr_by_uuid(lun.sr_uuid) is None
        ref = str(calls.call("SR.get_by_uuid", lun.sr_uuid))
        record: Record = calls.call("SR.get_record", ref)
        now = pool.with_records({**pool.srs, ref: record}, calls.records("PBD"))
        attach_plan.verify_same(now, ref, lun, is_begun=is_lost_answer)
        missing = attach_plan.missing_marks(record, lun, run)
        return introduce(calls, now, row._replace(sr=ref, name=str(record["name_label"]), marks=missing), run)
    calls.call("SR.set_other_config", ref, attach_plan.marks_of(lun, run))
    return row._replace(sr=ref)
