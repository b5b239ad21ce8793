# SPDX-License-Identifier: LGPL-2.1-only
"""Find the LUNs that the pool sees. Nothing is written, and no session or device stays on a host.

The driver of type relvmoiscsi lists the LUNs, so the storage manager does not read an untouched clone. The host plugin
of the master lists LUNs behind adapters; the plugin does not scan.
"""

import threading
import time
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union

from relvmoiscsi import untrusted
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.pool import jobs, secrets
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.lun_answers import listed, listed_iqns, of_row, reported
from relvmoiscsi.pool.luns import CLONE, COPIED, ORIGINAL, UNREACHABLE, PoolLun, classified, doubted, must_be_read
from relvmoiscsi.pool.records import Pool, ProbePortal
from relvmoiscsi.sr_types import MOST_LUNS
from relvmoiscsi.wording import counted, human_time, repr_without, said, some_of

MOST_IQNS = 500  #: of a portal that are asked for their LUNs
PORTAL_SECONDS = 1800.0  #: for the probes of all targets and LUNs of one portal: each may answer as late as it can
_MOST_NAMED = 3  #: targets that an error names
#: of an answer of the plugin, which is shorter (`relvmoiscsi.plugin`)
_MOST_PAGE_BYTES = 16 << 20
_MOST_PAGES = 1000  #: of a list: of 4096 LUNs that each take the longest time, a page has six


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
            raise PoolFailure(f"The {limit} for {portal.place} were over before this was read.").advising(
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
            luns, unread = listed(there, portal)
            for lun in luns:
                if lun.scsi_id not in found and taken.setdefault(portal.target, 0) < MOST_LUNS:
                    found[lun.scsi_id] = lun
                    taken[portal.target] += 1
                unread += lun.scsi_id not in found
            if unread:
                failures.append((portal, _unread(portal, unread)))
        except PoolFailure as failure:
            failures.append((portal, failure))
    failures += _unasked(unasked)
    if failures and not found:
        raise failures[0][1]

    def read(one: Calls, lun: PoolLun) -> PoolLun:
        try:
            with times.of_one(lun.portal, min(at_once, len(found))):
                return probe(one, pool, lun)
        except PoolFailure as failure:
            return lun._replace(kind=UNREACHABLE, problem=str(failure))

    def look(one: Calls, lun: PoolLun) -> PoolLun:
        return classified(pool, read(one, lun) if must_be_read(pool, lun.scsi_id) else lun)

    rows = _all_of(jobs.at_once(calls, list(found.values()), look, at_once))
    srs = {lun.sr_uuid for lun in rows if lun.kind == CLONE and lun.is_ours and lun.state != COPIED}
    of_clones = {number: lun for number, lun in enumerate(rows) if lun.kind == ORIGINAL and lun.sr_uuid in srs}
    for number, lun in zip(of_clones, _all_of(jobs.at_once(calls, list(of_clones.values()), read, at_once))):
        rows[number] = rows[number]._replace(state=lun.kind)
    return doubted(rows) + [PoolLun("", UNREACHABLE, portal, problem=str(failure)) for portal, failure in failures]


def _all_of(outcomes: Sequence[Union[PoolLun, RelvmoiscsiError]]) -> List[PoolLun]:
    """Return the LUNs. Raises the first error: the pool has stopped answering."""
    rows = []
    for outcome in outcomes:
        if isinstance(outcome, RelvmoiscsiError):
            raise outcome
        rows.append(outcome)
    return rows


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
        many = PoolFailure(f"{portal.place} lists {len(iqns)} targets, and the first {MOST_IQNS} were read.").advising(
            "Give another target with --target and --iqn."
        )
        failures.append((portal, many))
    return [portal._replace(iqn=iqn).with_chap_of(there.get(iqn, portal)) for iqn in iqns[:MOST_IQNS]]


def _unread(portal: ProbePortal, count: int) -> PoolFailure:
    """Return the failure of a target of which this many LUNs were not read."""
    luns = counted(count, "LUN")
    problem = f"{portal.place} lists more than {MOST_LUNS} LUNs: {luns} of {said(portal.iqn)} were not read."
    advice = "Give another target with --target and --iqn, or map fewer LUNs to the master."
    return PoolFailure(problem).advising(advice)


def _unasked(portals: Sequence[ProbePortal]) -> List[Tuple[ProbePortal, PoolFailure]]:
    """Return a failure for each portal with targets that were not asked: its time was over."""
    iqns: Dict[Tuple[str, str], List[str]] = {}
    for portal in portals:
        iqns.setdefault((portal.target, portal.port), []).append(portal.iqn)
    found = []
    for (target, port), names in iqns.items():
        asked = ProbePortal(target, port=port)
        problem = (
            f"{asked.place} answers slowly: its {human_time(PORTAL_SECONDS)} were over before the lists of LUNs of "
            f"{counted(len(names), 'target')}: {some_of(list(map(said, names)), _MOST_NAMED)}."
        )
        slow = PoolFailure(problem).advising("Give one: --target, --iqn.")
        found.append((asked, slow))
    return found


def _probe_fails(calls: Calls, pool: Pool, portal: ProbePortal) -> PoolFailure:
    """Send a probe that lacks a key. Return the failure, which holds the list."""
    try:
        calls.run("SR.probe", pool.master, portal.config(), portal.sr_type.name, {})
    except PoolFailure as failure:
        return failure
    return PoolFailure(f"The driver gave no list of LUNs for {portal.place}.")


def find_on_master(calls: Calls, pool: Pool) -> List[PoolLun]:
    """Return every LUN behind the adapters of the master (Fibre Channel, SAS), from its host plugin.

    Needs the role pool-admin. Raises PoolFailure.
    """
    found: List[PoolLun] = []
    start, last = "", ""
    for _ in range(_MOST_PAGES):
        text = calls.run("host.call_plugin", pool.master, "relvmoiscsi", "classify", {"from": start, "hba": "true"})
        try:
            page = untrusted.object_of(text, _MOST_PAGE_BYTES)
            for row in page["host_luns"]:
                found.append(classified(pool, of_row(row)))
                last = _behind(last, found[-1].scsi_id)
            if page["next"] is None:
                return doubted(found)
            start = _behind(last, untrusted.text_of(page["next"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PoolFailure(f"The answer of the plugin on the master cannot be read: {error}.").advising(
                "Install the same version of relvmoiscsi on all hosts."
            ) from error
    raise PoolFailure(
        f"The plugin on the master lists LUNs without end: {_MOST_PAGES} answers were not the last."
    ).advising("Check the master.")


def _behind(last: str, scsi_id: str) -> str:
    """Return the SCSIid. Raises ValueError where it does not come behind the last one: a plugin sorts its LUNs."""
    if scsi_id <= last:
        raise ValueError(f"{scsi_id[:40]!r} follows on {last[:40]!r}, and the LUNs are not sorted")
    return scsi_id


def probe(calls: Calls, pool: Pool, lun: PoolLun) -> PoolLun:
    """Return the LUN with the report of its probe on the master. Raises PoolFailure."""
    config = lun.portal.config(lun.scsi_id)
    return reported(lun, calls.run("SR.probe", pool.master, config, lun.portal.sr_type.name, {}))
