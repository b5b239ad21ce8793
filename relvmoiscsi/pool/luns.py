# SPDX-License-Identifier: LGPL-2.1-only
"""What each LUN is for the pool, from the records of the pool and the probe of the LUN. Pure.

    original        an SR of the pool is on the LUN
    attached        an SR of the pool is on the LUN, and `attach` has introduced this SR as a copy. Where no host has
                    plugged the SR, a probe has found it on the LUN, or could not read the LUN
    clone           the LUN holds an SR of the pool, and a live host has that SR attached on another LUN (known_sr.py).
                    `is_ours`: the label says that the array has copied the LUN, or the SR is on no resignatured LUN
    unknown SR      the LUN holds an SR that this pool does not have. Another pool may use the SR, or this pool has
                    forgotten the SR.
    unconnected     the LUN holds an SR of the pool that no live host has attached on another LUN: the LUN may be a
                    clone, or the original, whose SCSIid may be new
    resignatured    the LUN has new identities, and is not attached to this pool. `is_ours`: a run of this pool was
                    interrupted, or the pool has the SR. Otherwise another pool may use the LUN.
    unfinished      a resignature was interrupted; attach finishes the resignature
    unreachable     the probe failed; a row without a SCSIid stands for all LUNs of a target
    empty, foreign, damaged, busy    as the probe reports

lun_search.py finds the LUNs, lun_answers.py reads what the driver and the plugin tell about a LUN.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.pool.records import CHANGED, HBA, ORIGINAL_SR, Pool, ProbePortal, is_copy, portal_of

ORIGINAL, ATTACHED, CLONE, UNKNOWN_SR = "original", "attached", "clone", "unknown SR"
RESIGNATURED, UNFINISHED = "resignatured", "unfinished"
UNCONNECTED = "unconnected"
UNREACHABLE, BUSY, DAMAGED = "unreachable", "busy", "damaged"

#: kinds of LUNs that `attach` can attach as a copy
ATTACHABLE = (CLONE, UNKNOWN_SR, RESIGNATURED, UNFINISHED, ATTACHED)
#: kinds of LUNs without new identities
UNTOUCHED = (CLONE, UNKNOWN_SR, UNFINISHED)
#: kinds of LUNs whose content no probe has read
UNSEEN = (UNREACHABLE, BUSY)
#: what to do about a clone that keeps the identities of its original
UNMAP = (
    "Unmap a clone that gets no new identities from all hosts on the array: a host that sees it cannot plug the "
    "original again."
)
#: a resignatured LUN was copied by the array: the copy has the identities of that LUN
COPIED = "copied"
CLEAN = "clean"  #: the label of the LUN names no resignature


class PoolLun(NamedTuple):
    """A LUN: first as the pool lists the LUN, then with the report of its probe, at last with its kind."""

    scsi_id: str  #: "" for all LUNs of a target that gave no list
    kind: str  #: "" before the probe; the state that the probe reports, until `classified` knows the kind
    portal: ProbePortal
    size_bytes: int = 0
    sr_uuid: str = ""  #: the SR on the LUN
    of_sr: str = ""  #: UUID of the SR of which the LUN is a copy; "" for an original, and where that is unknown
    name: str = ""  #: of the SR on the LUN, or of the original SR
    problem: str = ""
    one_vdi: str = ""  #: "is", "can be", "cannot be"
    metadata_of: Tuple[str, ...] = ()  #: references of the pools that may write their database to a VDI on the LUN
    is_ours: bool = False  #: the pool's records show that the LUN is a copy of an SR of this pool
    old_vdis: Tuple[str, ...] = ()  #: UUIDs of the original VDIs, while the journal is on the resignatured LUN
    #: names of VMs whose records `save-vms` has saved on the LUN; None where no probe has read the records
    vms: Optional[Tuple[str, ...]] = None
    vms_saved: str = ""  #: when the records were saved
    changed: str = ""  #: when LVM last changed the SR on the LUN, in ISO 8601, as last read; "" where that is unknown
    number: Optional[int] = None  #: the master's kernel number of the LUN; None where the number is unknown
    state: str = ""  #: that a probe reported; "" where no probe has read the LUN
    new_sr: str = ""  #: of the last resignature of the LUN, finished or not; "" where that is unknown

    @property
    def is_untouched(self) -> bool:
        """Does the LUN have the identities of an SR of this pool?"""
        return self.kind in UNTOUCHED and (self.is_ours or self.kind == CLONE)

    @property
    def next_sr(self) -> str:
        """Return the SR that is on the LUN, or will be after the interrupted run."""
        return self.new_sr if self.kind == UNFINISHED else self.sr_uuid

    @property
    def may_be_untouched(self) -> bool:
        """May the LUN have the identities of an SR of this pool, though no probe tells?

        The LUN was a clone when a run of this pool began, and its state is unknown now. Or the LUN is damaged: its
        label may have the PV UUID of an original, and LVM then finds this PV on two devices.
        """
        return self.kind in UNSEEN and self.is_ours or self.kind == DAMAGED

    def of_target(self) -> str:
        """Return the sentence on a row without a SCSIid: a target that gave no list of its LUNs."""
        return f"The LUNs behind {self.portal.named} are unknown: {self.problem}"

    def not_plugged(self, pool: Pool) -> List[str]:
        """Return the names of the hosts on which an attached copy is not plugged, the master first; [] for others."""
        sr = pool.sr_by_uuid(self.sr_uuid) if self.kind == ATTACHED else None
        return [] if sr is None else [each.name for each in pool.host_plans(sr) if not each.is_plugged]

    def facts(self, pool: Pool) -> Dict[str, Any]:
        sr = pool.sr_by_uuid(self.sr_uuid)
        return {
            "scsi_id": self.scsi_id or None,
            "lun_kind": self.kind,
            "size_bytes": self.size_bytes,
            "portal_address": self.portal.target,
            "iqn": self.portal.iqn,
            "sr": self.sr_uuid or None,
            "copy_of": self.of_sr or None,
            "sr_name_label": self.name if sr is None else pool.srs[sr]["name_label"],
            "one_vdi_state": self.one_vdi or None,
            "is_known_copy": self.is_ours or self.kind == ATTACHED,
            "hosts_not_plugged": self.not_plugged(pool),
            "database_of_this_pool": pool.ref in self.metadata_of,
            "changed_at": self.changed or None,
            "saved_vm_names": None if self.vms is None else list(self.vms),
            "saved_at": self.vms_saved or None,
            "problem": self.problem or None,
        }


def doubted(rows: Sequence[PoolLun]) -> List[PoolLun]:
    """Return the rows. No LUN is a clone for certain if only another LUN with its SR has the label of a resignature.

    An array copies the label with the LUN. The label of a resignatured LUN may be forged, and its SR may be that of
    another pool, also where this pool has attached the SR. A LUN of the pool that no probe can read may be such a LUN.
    """
    own: Dict[str, Set[str]] = {}  #: SCSIids of the LUNs whose label says, or may say, that the LUN was resignatured
    for lun in rows:
        if lun.state == RESIGNATURED or lun.kind == ORIGINAL and lun.state not in ("", CLEAN):
            own.setdefault(lun.sr_uuid, set()).add(lun.scsi_id)
    return [
        lun._replace(is_ours=False)
        if lun.kind == CLONE and lun.state != COPIED and own.get(lun.sr_uuid, set()) - {lun.scsi_id}
        else lun
        for lun in rows
    ]


def must_be_read(pool: Pool, scsi_id: str) -> bool:
    """Does only a probe tell what the LUN holds? No probe reads a LUN that an SR of the pool uses."""
    sr = _sr_on(pool, scsi_id)
    return sr is None or _is_unplugged(pool, sr)


def classified(pool: Pool, lun: PoolLun) -> PoolLun:
    """Return the LUN with its kind: from the records of the pool, or from the report of its probe, if it was read.

    The records of the pool tell also what a LUN is that no probe could read.
    """
    sr = _sr_on(pool, lun.scsi_id)
    if sr is None or lun.kind and _is_unplugged(pool, sr) and _has_lost(lun, pool, sr):
        return _of_no_pbd(pool, lun)
    record = pool.srs[sr]
    config = next(iter(pool.pbds_of(sr).values()))[1]["device_config"]
    kind = ATTACHED if is_copy(record) else ORIGINAL
    noted = record["other_config"].get(CHANGED, "") if kind == ATTACHED else ""  # a pool-operator may write the mark
    return PoolLun(
        lun.scsi_id,
        kind,
        portal_of(config) if lun.portal == HBA else lun.portal,  # the LUN may have a portal besides the adapter
        lun.size_bytes,
        sr_uuid=record["uuid"],
        of_sr=record["other_config"].get(ORIGINAL_SR, ""),
        name=record["name_label"],
        changed=untrusted.time_text(lun.changed or noted),
        number=lun.number,
        state=lun.kind,
    )


def _sr_on(pool: Pool, scsi_id: str) -> Optional[str]:
    """Return the SR of the pool that has PBDs, and uses this LUN."""
    sr = pool.sr_on(scsi_id)
    return sr if sr is not None and pool.pbds_of(sr) else None


def _is_unplugged(pool: Pool, ref: str) -> bool:
    """Is the SR a copy that no host has plugged? Then no host notices what happens to its LUN."""
    return is_copy(pool.srs[ref]) and not any(pbd["currently_attached"] for _, pbd in pool.pbds_of(ref).values())


def _has_lost(probed: PoolLun, pool: Pool, ref: str) -> bool:
    """Does the LUN hold the SR no more, or no longer whole? The metadata of the LUN may be damaged.

    Or the array may have overwritten the LUN, also with a copy in the middle of a run.
    """
    return probed.kind == UNFINISHED or probed.kind not in UNSEEN and probed.sr_uuid != pool.srs[ref]["uuid"]


def _of_no_pbd(pool: Pool, lun: PoolLun) -> PoolLun:
    """Classify a LUN that no PBD of the pool names, from the report of its probe."""
    own, old = lun.sr_uuid, lun.of_sr  # the SR on the LUN, and the original as far as the LUN names it
    ref = pool.sr_by_uuid(own) if own else None
    kind, is_begun = _kind(pool, lun), pool.is_begun(lun.scsi_id)
    if kind == RESIGNATURED:  # the LUN names the original, or the marks of its SR do
        of_sr = old or (str(pool.srs[ref]["other_config"].get(ORIGINAL_SR, "")) if ref is not None else "")
        is_ours = ref is not None or is_begun
    elif kind == UNFINISHED:  # the probe of an interrupted run may already show the new SR
        of_sr = old or own
        is_ours = pool.sr_by_uuid(of_sr) is not None or is_begun
    else:
        of_sr = own or old
        # an attached copy may have the SR of a forged label; the array copies the label of a copy with the LUN
        is_certain = ref is not None and (lun.kind == COPIED or not is_copy(pool.srs[ref]))
        is_ours = kind == CLONE and is_certain or kind in UNSEEN and (pool.sr_by_uuid(of_sr) is not None or is_begun)
    srs = [pool.sr_by_uuid(uuid) for uuid in (of_sr, own) if uuid]
    names = [str(pool.srs[sr]["name_label"]) for sr in srs if sr is not None]
    # the pool may have neither SR
    name = names[0] if names else lun.name
    return lun._replace(kind=kind, of_sr=of_sr, name=name, is_ours=is_ours, state=lun.kind)


def _kind(pool: Pool, lun: PoolLun) -> str:
    if lun.kind in (UNFINISHED, "empty", "foreign", DAMAGED, *UNSEEN):
        return lun.kind
    has_own_ids = lun.kind == RESIGNATURED
    sr = pool.known_sr(lun.sr_uuid) if lun.sr_uuid else None
    if sr is None:
        return RESIGNATURED if has_own_ids else UNKNOWN_SR
    is_here = pool.is_on(sr.ref, lun.scsi_id)
    if is_here is False:
        live = [host for host, is_live in pool.live.items() if is_live]
        return CLONE if sr.is_new() or sr.is_attached_elsewhere(live) else UNCONNECTED
    if has_own_ids:
        return RESIGNATURED
    return ORIGINAL if is_here else UNCONNECTED
