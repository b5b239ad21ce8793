# SPDX-License-Identifier: LGPL-2.1-only
"""The other LUNs that a scan brings: whatever the array has mapped to this host of late.

Their disks are hidden, and the call removes them again. Such a LUN stays where this host or the pool knows the LUN,
where another call of ours works on the LUN, and where the LUN came with a port that has logged in meanwhile.
"""

import logging
from contextlib import ExitStack
from functools import partial
from typing import Callable, ContextManager, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from relvmoiscsi.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.disk import cleanup_journal, hiding, holders, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import take_away
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import lun_users

log = logging.getLogger(__name__)

NODE_SECONDS = 3.0  #: for the kernel, to have their nodes after the scan


class Before(NamedTuple):
    """What there is before a scan."""

    addresses: List[str]  #: of all adapters, as the next call may filter others
    known: Set[str]  #: SCSIids that this host has, or the pool names
    ports: Set[str]  #: of targets, that are online


def look_around(pool: lun_users.Pool) -> Before:
    """What there is, without the disks that a killed call has brought and left hidden."""
    ports = set(hba.ports_online(hba.adapters()))
    disks = {one: hba.disk_at(one) for one in hba.addresses(hba.adapters())}
    there = [one for one, disk in disks.items() if disk is None or not hiding.is_stale_hidden(disk)]
    return Before(there, {*hiding.ids_here(), *lun_users.ids_named(pool)}, ports)


def hidden(adapters: Sequence[hba.Adapter], before: Before) -> ContextManager[None]:
    return hiding.hidden_adapters([one.name for one in adapters], sorted(before.known))


def is_taken(scsi_id: str, pool: lun_users.Pool, host_ref: str) -> bool:
    """Does the pool have something on the LUN, or this host its root? What is in use is no clone to be named."""
    if lun_users.users_of(scsi_id, pool, here=host_ref):
        return True
    return bool(set(udev.disks_of(scsi_id)) & set(holders.disks_below("/")))


def forget_others(
    adapters: Sequence[hba.Adapter],
    before: Before,
    read_pool: Callable[[], lun_users.Pool],
    host_ref: str,
    deadline: Deadline,
) -> None:
    """Remove the disks of LUNs that are new since `before`, but of LUNs that the pool uses or a call of ours works on.

    A new path to a LUN that had a disk stays: the path may have been down for a moment, and nobody would scan for it
    again. A LUN behind a port that has logged in since stays as well: the kernel has brought it, not the scan. The pool
    is asked now, as somebody may have made an SR on a LUN since. The clean-up journal tells the next call for a LUN
    what this call could not remove.
    """
    known = before.known | {scsi_id_of_address(one) or "" for one in before.addresses}
    with ExitStack() as locks:
        came = [one for one in hba.addresses(adapters) if one not in before.addresses]
        free, stay = {}, [one for one in came if scsi_id_of_address(one) is None]
        new = {scsi_id: addresses for scsi_id, addresses in _by_lun(came).items() if scsi_id not in known}
        pool = _pool_now(read_pool) if new else None
        arrived = set(hba.ports_online(adapters)) - before.ports
        for scsi_id, addresses in new.items():
            if any(one.rpartition(":")[0] in arrived for one in addresses):
                log.warning("the LUN %s stays: it came with a port that has logged in meanwhile", scsi_id)
                stay += addresses
            elif pool is None or is_taken(scsi_id, pool, host_ref):
                stay += addresses
            elif _take_lock(scsi_id, locks):  # else the call that is at it waits for it, and hides it
                free[scsi_id] = addresses
        noted = _noted(free, before.addresses)
        goes = [one for addresses in free.values() for one in addresses]
        awaited = goes + stay
        if not awaited:
            return
        THIS_HOST.wait_for(lambda: all(map(hba.disk_at, awaited)), deadline.within(NODE_SECONDS))
        disks = [disk for disk in map(hba.disk_at, awaited) if disk]
        seconds = deadline.within(CLEANUP_SECONDS)
        quietly("waiting for udev", lambda: udev.settle(disks, seconds))  # who is late with 160 of them, else keeps all
        stays = take_away(goes, deadline.for_cleanup().part(CLEANUP_SECONDS))
        for sentence in stays.values():
            log.warning("%s", sentence)
        for scsi_id in noted:
            if not any(one in stays for one in free[scsi_id]):
                cleanup_journal.forget(scsi_id)


def _pool_now(read_pool: Callable[[], lun_users.Pool]) -> Optional[lun_users.Pool]:
    """None while xapi does not answer: then any LUN that came may be in use."""
    try:
        return read_pool()
    except RelvmoiscsiError as problem:
        log.warning("what a scan has brought stays, as it is not known whether the pool has it: %s", problem)
        return None


def _noted(luns: Iterable[str], there: Sequence[str]) -> List[str]:
    """The LUNs with a new entry in the clean-up journal. The entry that an earlier call has left stays."""
    noted = []
    for scsi_id in luns:
        if cleanup_journal.read(scsi_id) is None:
            quietly("noting what a scan has brought", partial(cleanup_journal.note, scsi_id, there))
            noted.append(scsi_id)
    return noted


def _by_lun(addresses: Iterable[str]) -> Dict[str, List[str]]:
    """The addresses by SCSIid, without those of LUNs that have none: no call can name such a LUN."""
    found: Dict[str, List[str]] = {}
    for address in addresses:
        scsi_id = scsi_id_of_address(address)
        if scsi_id is not None:
            found.setdefault(scsi_id, []).append(address)
    return found


def _take_lock(scsi_id: str, locks: ExitStack) -> bool:
    try:
        locks.enter_context(sm_locks.lun_lock(scsi_id, timeout=0))
    except RelvmoiscsiError:
        return False
    return True
