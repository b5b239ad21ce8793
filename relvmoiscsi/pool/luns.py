# SPDX-License-Identifier: LGPL-2.1-only
"""Classify each LUN that the pool sees. Nothing is written, and no session or device stays on a host.

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

The driver of type relvmoiscsi lists the LUNs, so the storage manager does not read an untouched clone. A list comes
as a failure whose last parameter is XML: error 96 without an IQN, error 107 without a SCSIid. The host plugin of the
master lists LUNs behind adapters; the plugin does not scan.
"""

import threading
import time
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi import untrusted, untrusted_xml
from relvmoiscsi.errors import UsageError
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import jobs, secrets
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.records import CHANGED, HBA, ORIGINAL_SR, Pool, ProbePortal, is_copy, portal_of
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import counted, human_time, repr_without, said, some_of

IQN_MISSING, SCSI_ID_MISSING = "SR_BACKEND_FAILURE_96", "SR_BACKEND_FAILURE_107"
_ANY_IQN = "*"
MOST_IQNS = 500  #: of a portal that are asked for their LUNs
MOST_LUNS = 4096  #: of a portal that are read, behind all its targets
PORTAL_SECONDS = 1800.0  #: for the probes of all targets and LUNs of one portal: each may answer as late as it can
_MOST_NAMED = 3  #: targets that an error names
_MOST_SHOWN = 60  #: characters of a text that is refused

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
_COPIED = "copied"
_CLEAN = "clean"  #: the label of the LUN names no resignature


class PoolLun(NamedTuple):
    """A LUN: first as the pool lists the LUN, then with the report of its probe, at last with its kind."""

    scsi_id: str  #: "" for all LUNs of a target that gave no list
    kind: str  #: "" before the probe; the state that the probe reports, until `named` knows the kind
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
            "database_of_this_pool": pool.ref in self.metadata_of,
            "changed_at": self.changed or None,
            "saved_vm_names": None if self.vms is None else list(self.vms),
            "saved_at": self.vms_saved or None,
            "problem": self.problem or None,
        }


class PortalTimes:
    """The time that the probes of each portal have taken in one command, PORTAL_SECONDS at most."""

    def __init__(self) -> None:
        self._spent: Dict[Tuple[str, str], float] = {}  #: seconds by address and port
        self._lock = threading.Lock()

    def is_over(self, portal: ProbePortal) -> bool:
        with self._lock:
            return self._spent.get((portal.target, portal.port), 0.0) >= PORTAL_SECONDS

    @contextmanager
    def of_one(self, portal: ProbePortal, in_parallel: int = 1) -> Iterator[None]:
        """Count the time of the block, which runs beside others. Raises PoolFailure where the portal has no time."""
        key, begin = (portal.target, portal.port), time.monotonic()
        if self.is_over(portal):
            limit = human_time(PORTAL_SECONDS)
            raise PoolFailure(f"The {limit} for {portal.target} were over before this was read.").advising(
                "Give one target: --target, --iqn."
            )
        try:
            yield
        finally:
            with self._lock:
                self._spent[key] = self._spent.get(key, 0.0) + (time.monotonic() - begin) / in_parallel


class LunSearch(NamedTuple):
    """Where a command looks for LUNs, from the command's options."""

    target: str = ""  #: "" for the portals of all SRs of the pool
    iqn: str = ""
    port: str = ""
    chap_user: str = ""
    chap_password: str = ""
    is_hba: bool = False
    at_once: int = jobs.MOST

    def __repr__(self) -> str:
        return repr_without(self, "chap_password")

    def verify(self) -> None:
        """Raises UsageError for options that contradict each other."""
        if self.at_once < 1:
            raise UsageError(f"--jobs {self.at_once} is too small.").advising("Give 1 or more LUNs in parallel.")
        if self.is_hba and (self.target or self.chap_user):
            raise UsageError("--hba lists the master's adapters.").advising("Remove --target and --chap-user.")
        if self.chap_user and not self.target:
            raise UsageError("--chap-user needs --target: no other array may receive the password.")
        if (self.iqn or self.port) and not self.target:
            raise UsageError(
                "--iqn and --port need --target: without --target, the command reads all targets of the pool."
            )
        if self.port and not (untrusted.is_number(self.port) and 0 < untrusted.number(self.port) < 65536):
            raise UsageError(f"--port {self.port!r} is not a port.").advising("Give a number from 1 to 65535.")


#: of an answer of the plugin, which is shorter (`relvmoiscsi.plugin`)
_MOST_PAGE_BYTES = 16 << 20
_MOST_PAGES = 1000  #: of a list: of 4096 LUNs that each take the longest time, a page has six


@contextmanager
def seen(calls: Calls, pool: Pool, source: LunSearch, tell: Callable[[str], None]) -> Iterator[List[PoolLun]]:
    """Yield every LUN of the source. During the block, a Secret of the pool holds the CHAP password of the source.

    Raises UsageError where the pool has no target, PoolFailure. `tell` gets a sentence if the Secret stays in the pool.
    """
    if source.is_hba:
        yield find_on_master(calls, pool)
        return
    known = pool.portals()
    portals = [ProbePortal(source.target, source.iqn, source.port).as_known(known)] if source.target else known
    if not portals:
        raise UsageError("No SR of the pool has an iSCSI target.").advising(
            "Give --target, or --hba for Fibre Channel or SAS."
        )
    with secrets.chap(calls, portals, source.chap_user, source.chap_password, tell) as ready:
        yield find(calls, pool, ready, source.at_once)


def find(calls: Calls, pool: Pool, portals: Iterable[ProbePortal], at_once: int = jobs.MOST) -> List[PoolLun]:
    """Return every LUN behind these portals, each SCSIid once; and a row with a problem for each target without a list.

    A portal without an IQN stands for all IQNs there. Raises PoolFailure where no target gives a list.
    """
    found: Dict[str, PoolLun] = {}
    failures: List[Tuple[ProbePortal, PoolFailure]] = []
    known, targets = pool.portals(), []  # type: List[ProbePortal], List[List[ProbePortal]]
    asked, times = set(), PortalTimes()
    taken: Dict[str, int] = {}  #: LUNs by address of the portal
    unasked: List[ProbePortal] = []
    for portal in portals:
        try:
            if portal.iqn:
                targets.append([portal])
            elif portal[:3] not in asked:
                asked.add(portal[:3])
                with times.of_one(portal):
                    targets.append(_targets(calls, pool, portal, known, failures))
        except PoolFailure as failure:
            failures.append((portal, failure))
    for portal in chain.from_iterable(zip_longest(*targets)):  # in turn, so that no array keeps the others waiting
        if portal is None or portal[:3] in asked:
            continue
        asked.add(portal[:3])
        if times.is_over(portal):
            unasked.append(portal)
            continue
        try:
            with times.of_one(portal):
                there = _probe_fails(calls, pool, portal)
            left_out = 0
            for lun in listed(there, portal):
                if lun.scsi_id not in found and taken.setdefault(portal.target, 0) < MOST_LUNS:
                    found[lun.scsi_id] = lun
                    taken[portal.target] += 1
                left_out += lun.scsi_id not in found
            if left_out:
                problem = (
                    f"{portal.target} lists more than {MOST_LUNS} LUNs: {counted(left_out, 'LUN')} of "
                    f"{said(portal.iqn)} were not read."
                )
                advice = "Give another target with --target and --iqn, or map fewer LUNs to the master."
                failures.append((portal, PoolFailure(problem).advising(advice)))
        except PoolFailure as failure:
            failures.append((portal, failure))
    failures += _unasked(unasked)
    if failures and not found:
        raise failures[0][1]

    def timed(one: Calls, lun: PoolLun) -> PoolLun:
        with times.of_one(lun.portal, min(at_once, len(found))):
            return probe(one, pool, lun)

    outcomes = jobs.at_once(calls, list(found.values()), lambda one, lun: look(one, pool, lun, timed), at_once)
    rows = []
    for lun, outcome in zip(found.values(), outcomes):
        if isinstance(outcome, PoolGone):
            raise outcome
        unreachable = lun._replace(kind=UNREACHABLE, problem=str(outcome), is_ours=pool.is_begun(lun.scsi_id))
        rows.append(outcome if isinstance(outcome, PoolLun) else unreachable)
    srs = {lun.sr_uuid for lun in rows if lun.kind == CLONE and lun.is_ours and lun.state != _COPIED}
    read = {number: lun for number, lun in enumerate(rows) if lun.kind == ORIGINAL and lun.sr_uuid in srs}
    for number, outcome in zip(read, jobs.at_once(calls, list(read.values()), timed, at_once)):
        if isinstance(outcome, PoolGone):
            raise outcome
        rows[number] = rows[number]._replace(state=outcome.kind if isinstance(outcome, PoolLun) else UNREACHABLE)
    return _doubted(rows) + [PoolLun("", UNREACHABLE, portal, problem=str(failure)) for portal, failure in failures]


def _doubted(rows: Sequence[PoolLun]) -> List[PoolLun]:
    """Return the rows. No LUN is a clone for certain if only another LUN with its SR has the label of a resignature.

    An array copies the label with the LUN. The label of a resignatured LUN may be forged, and its SR may be that of
    another pool, also where this pool has attached the SR. A LUN of the pool that no probe can read may be such a LUN.
    Pure.
    """
    own: Dict[str, Set[str]] = {}  #: SCSIids of the LUNs whose label says, or may say, that the LUN was resignatured
    for lun in rows:
        if lun.state == RESIGNATURED or lun.kind == ORIGINAL and lun.state not in ("", _CLEAN):
            own.setdefault(lun.sr_uuid, set()).add(lun.scsi_id)
    return [
        lun._replace(is_ours=False)
        if lun.kind == CLONE and lun.state != _COPIED and own.get(lun.sr_uuid, set()) - {lun.scsi_id}
        else lun
        for lun in rows
    ]


def _targets(
    calls: Calls,
    pool: Pool,
    portal: ProbePortal,
    known: Sequence[ProbePortal],
    failures: List[Tuple[ProbePortal, PoolFailure]],
) -> List[ProbePortal]:
    """Return the targets of a portal without an IQN, each with its CHAP. Raises PoolFailure.

    Only the first MOST_IQNS targets are returned: each costs a probe. The rest is a failure of the portal.
    """
    has_own = portal.chap_secret not in {one.chap_secret for one in known} | {""}  # from the command line
    there = {} if has_own else {one.iqn: one for one in known if one.address == portal.address}
    iqns = listed_iqns(_probe_fails(calls, pool, portal))
    if len(iqns) > MOST_IQNS:
        many = PoolFailure(f"{portal.target} lists {len(iqns)} targets, and the first {MOST_IQNS} were read.").advising(
            "Give another target with --target and --iqn."
        )
        failures.append((portal, many))
    return [portal._replace(iqn=iqn).with_chap_of(there.get(iqn, portal)) for iqn in iqns[:MOST_IQNS]]


def _unasked(portals: Sequence[ProbePortal]) -> List[Tuple[ProbePortal, PoolFailure]]:
    """Return a failure for each portal with targets that were not asked: its time was over."""
    iqns: Dict[Tuple[str, str], List[str]] = {}
    for portal in portals:
        iqns.setdefault((portal.target, portal.port), []).append(portal.iqn)
    found = []
    for (target, port), names in iqns.items():
        problem = (
            f"{target} answers slowly: its {human_time(PORTAL_SECONDS)} were over before the lists of LUNs of "
            f"{counted(len(names), 'target')}: {some_of(list(map(said, names)), _MOST_NAMED)}."
        )
        slow = PoolFailure(problem).advising("Give one: --target, --iqn.")
        found.append((ProbePortal(target, port=port), slow))
    return found


def _probe_fails(calls: Calls, pool: Pool, portal: ProbePortal) -> PoolFailure:
    """Send a probe that lacks a key. Return the failure, which holds the list."""
    try:
        calls.run("SR.probe", pool.master, portal.config(), portal.sr_type.name, {})
    except PoolFailure as failure:
        return failure
    return PoolFailure(f"The driver gave no list of LUNs for {portal.target}.")


def find_on_master(calls: Calls, pool: Pool) -> List[PoolLun]:
    """Return every LUN behind the adapters of the master (Fibre Channel, SAS), from its host plugin.

    Needs the role pool-admin. Raises PoolFailure.
    """
    found: List[PoolLun] = []
    start, last = "", ""  # type: Optional[str], str
    for _ in range(_MOST_PAGES):
        text = calls.run("host.call_plugin", pool.master, "relvmoiscsi", "classify", {"from": start, "hba": "true"})
        try:
            page = untrusted.object_of(text, _MOST_PAGE_BYTES)
            for row in page["host_luns"]:
                found.append(_of_row(pool, row))
                last = _behind(last, found[-1].scsi_id)
            if page["next"] is None:
                return _doubted(found)
            start = _behind(last, untrusted.text_of(page["next"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PoolFailure(f"The answer of the plugin on the master cannot be read: {error}.").advising(
                "Install the same version of relvmoiscsi on all hosts."
            ) from error
    raise PoolFailure(
        f"The plugin on the master lists LUNs without end: {_MOST_PAGES} answers were not the last."
    ).advising("Check the master.")


def _of_row(pool: Pool, row: Dict[str, Any]) -> PoolLun:
    """Classify the LUN of a row of the plugin. Raises PoolFailure, and the errors of a row that cannot be read."""
    lun = PoolLun(untrusted.text_of(row["scsi_id"]), "", HBA, untrusted.size_of(row.get("size_bytes") or 0))
    verify_scsi_id(lun.scsi_id)
    texts: Dict[str, Any] = {name: untrusted.text_of(row.get(key) or "") for name, key in _ROW.items()}
    for name in ("sr_uuid", "of_sr", "new_sr"):
        verify_uuid(texts[name])
    state = untrusted.text_of(row["state"] or UNREACHABLE)
    databases = tuple(untrusted.texts_of(row.get("metadata_of") or []))
    probed = lun._replace(kind=_state(state, bool(row.get("copied"))), metadata_of=databases, **texts)
    sr = pool.sr_on(lun.scsi_id)
    if sr is not None and pool.pbds_of(sr) and not (_is_unplugged(pool, sr) and _has_lost(probed, pool, sr)):
        config = next(iter(pool.pbds_of(sr).values()))[1]["device_config"]
        return _in_use(pool, sr, lun._replace(portal=portal_of(config), state=state, changed=probed.changed))
    if state == UNREACHABLE:
        return lun._replace(kind=UNREACHABLE, problem=probed.problem, is_ours=pool.is_begun(lun.scsi_id))
    return named(pool, probed)


def _behind(last: str, scsi_id: str) -> str:
    """Return the SCSIid. Raises ValueError where it does not come behind the last one: a plugin sorts its LUNs."""
    if scsi_id <= last:
        raise ValueError(f"{scsi_id[:40]!r} follows on {last[:40]!r}, and the LUNs are not sorted")
    return scsi_id


#: fields of PoolLun, and the plugin's names of these fields
_ROW = {
    **{"sr_uuid": "sr", "of_sr": "old_sr", "new_sr": "new_sr"},
    **{"name": "sr_name_label", "problem": "problem", "changed": "changed_at"},
}


def look(calls: Calls, pool: Pool, lun: PoolLun, probed_by: Callable[[Calls, PoolLun], PoolLun]) -> PoolLun:
    """Classify one listed LUN. No probe reads a LUN that an SR of the pool uses. Raises PoolFailure."""
    sr = pool.sr_on(lun.scsi_id)
    if sr is None or not pool.pbds_of(sr):
        return named(pool, probed_by(calls, lun))
    if _is_unplugged(pool, sr):
        try:
            probed = probed_by(calls, lun)
            if _has_lost(probed, pool, sr):
                return named(pool, probed)
            lun = lun._replace(changed=probed.changed)
        except PoolFailure:
            pass  # the records of the pool say what the LUN is
    return _in_use(pool, sr, lun)


def _is_unplugged(pool: Pool, ref: str) -> bool:
    """Is the SR a copy that no host has plugged? Then no host notices what happens to its LUN."""
    return is_copy(pool.srs[ref]) and not any(pbd["currently_attached"] for _, pbd in pool.pbds_of(ref).values())


def _has_lost(probed: PoolLun, pool: Pool, ref: str) -> bool:
    """Does the LUN hold the SR no more, or no longer whole? The metadata of the LUN may be damaged.

    Or the array may have overwritten the LUN, also with a copy in the middle of a run.
    """
    return probed.kind == UNFINISHED or probed.kind not in UNSEEN and probed.sr_uuid != pool.srs[ref]["uuid"]


def probe(calls: Calls, pool: Pool, lun: PoolLun) -> PoolLun:
    """Return the LUN with the report of its probe on the master. Raises PoolFailure."""
    config = lun.portal.config(lun.scsi_id)
    return reported(lun, calls.run("SR.probe", pool.master, config, lun.portal.sr_type.name, {}))


def _in_use(pool: Pool, ref: str, lun: PoolLun) -> PoolLun:
    sr = pool.srs[ref]
    kind, of_sr = ATTACHED if is_copy(sr) else ORIGINAL, sr["other_config"].get(ORIGINAL_SR, "")
    noted = sr["other_config"].get(CHANGED, "") if kind == ATTACHED else ""  # a pool-operator may write the mark
    changed = untrusted.time_text(lun.changed or noted)
    return lun._replace(kind=kind, sr_uuid=sr["uuid"], of_sr=of_sr, name=sr["name_label"], changed=changed)


def named(pool: Pool, lun: PoolLun) -> PoolLun:
    """Classify a LUN that no PBD of the pool names, from the report of its probe. Pure."""
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
        is_certain = ref is not None and (lun.kind == _COPIED or not is_copy(pool.srs[ref]))
        is_ours = kind == CLONE and is_certain or kind == BUSY and (pool.sr_by_uuid(of_sr) is not None or is_begun)
    srs = [pool.sr_by_uuid(uuid) for uuid in (of_sr, own) if uuid]
    names = [str(pool.srs[sr]["name_label"]) for sr in srs if sr is not None]
    # the pool may have neither SR
    name = names[0] if names else lun.name
    return lun._replace(kind=kind, of_sr=of_sr, name=name, is_ours=is_ours, state=lun.kind)


def _kind(pool: Pool, lun: PoolLun) -> str:
    if lun.kind in (UNFINISHED, "empty", "foreign", DAMAGED, BUSY):
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


# --- the XML of the driver; pure


def listed_iqns(failure: PoolFailure) -> List[str]:
    """Return the IQNs of error 96, without duplicates. Raises PoolFailure for any other failure."""
    rows = _rows(failure, IQN_MISSING, "TGT")
    return list(dict.fromkeys(row["TargetIQN"] for row in rows if row.get("TargetIQN", _ANY_IQN) != _ANY_IQN))


def listed(failure: PoolFailure, portal: ProbePortal) -> List[PoolLun]:
    """Return the LUNs of error 107, behind this portal. A LUN without a SCSIid is left out.

    Raises PoolFailure for any other failure, and for a text that is no SCSIid.
    """
    found = []
    for row in _rows(failure, SCSI_ID_MISSING, "LUN"):
        scsi_id, size, number = (row.get(name, "") for name in ("SCSIid", "size", "LUNid"))
        verify_scsi_id(scsi_id)
        if scsi_id:
            found.append(PoolLun(scsi_id, "", portal, _number(size) or 0, number=_number(number)))
    return found


def verify_scsi_id(text: str) -> None:
    """Raises PoolFailure for a listed text that is no SCSIid; "" stands for a LUN without a SCSIid."""
    if text and not is_scsi_id(text):
        raise PoolFailure(f"The driver lists the SCSIid {text[:_MOST_SHOWN]!r}, which is none.").advising(
            "Install the same version of relvmoiscsi on all hosts."
        )


def verify_uuid(text: str) -> None:
    """Raises PoolFailure for the UUID of an SR on a LUN that is none; "" stands for a LUN without a UUID."""
    if text and not is_uuid(text):
        raise PoolFailure(f"The answer about a LUN has the UUID {text[:_MOST_SHOWN]!r}, which is none.").advising(
            "Check the LUN."
        )


def reported(lun: PoolLun, document: str) -> PoolLun:
    """Return the LUN with the answer of its successful probe. Raises PoolFailure for another text."""
    rows = _parsed(document, "SR")
    if len(rows) != 1 or "state" not in rows[0]:
        raise PoolFailure(
            "The probe's answer has no state of the LUN: the driver on the master has another version."
        ).advising("Install the same version.")
    row = rows[0]
    for name in ("UUID", "old_uuid", "new_uuid"):
        verify_uuid(row.get(name, ""))
    vms: Optional[Tuple[str, ...]] = None
    try:  # a guest may have written the names: unreadable names hide no LUN
        vms = tuple(untrusted.texts_of(untrusted.json_of(row.get("vms", "[]"), saved_vms.MOST_NAMES_BYTES)))
    except ValueError:
        pass
    return lun._replace(
        kind=_state(row["state"], row.get("copied") == "true"),
        sr_uuid=row.get("UUID", ""),
        of_sr=row.get("old_uuid", ""),
        new_sr=row.get("new_uuid", ""),
        name=row.get("name_label", ""),
        problem=row.get("problem", ""),
        one_vdi=row.get("one_vdi", ""),
        metadata_of=tuple(row.get("metadata_of", "").split()),
        old_vdis=tuple(filter(is_uuid, row.get("old_vdis", "").split())),
        vms=vms if row["state"] != DAMAGED else None,
        vms_saved=row.get("vms_saved", ""),
        changed=row.get("changed", ""),
    )


def _state(state: str, is_copied: bool) -> str:
    """Return the state of a LUN, which is the array's copy of another LUN with the same identities if `is_copied`."""
    return _COPIED if is_copied and state == RESIGNATURED else state


def _rows(failure: PoolFailure, code: str, tag: str) -> List[Dict[str, str]]:
    if failure.code != code:
        raise failure
    return _parsed(failure.description[-1], tag)


def _parsed(document: str, tag: str) -> List[Dict[str, str]]:
    """Return the children of each element `tag`, as text by name. Raises PoolFailure."""
    try:
        root = untrusted_xml.xml_of(document.strip())
    except ValueError as error:
        raise PoolFailure(f"The driver's list cannot be read: {error}.") from error
    return [{child.tag: (child.text or "").strip() for child in item} for item in root.iter(tag)]


def _number(text: str) -> Optional[int]:
    return untrusted.number(text) if untrusted.is_number(text) else None
