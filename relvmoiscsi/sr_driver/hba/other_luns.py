# SPDX-License-Identifier: LGPL-2.1-only
"""The other LUNs that a scan adds: LUNs that the array has mapped to this host since the last scan.

The call hides their disks and removes them again. Such a LUN stays in three cases:

- This host or the pool knows the LUN. A direct LUN of this host, which a VM uses as it is, is neither hidden nor read.
- Another call of relvmoiscsi works on the LUN.
- The LUN came with a target port that has logged in meanwhile.
"""

import logging
from contextlib import ExitStack, suppress
from typing import Callable, ContextManager, Dict, List, Mapping, Optional, Sequence, Set

from relvmoiscsi.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.disk import cleanup_journal, hiding, holders, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address, scsi_id_of_disk
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.hba.scan import take_away
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.lun import pool_records
from relvmoiscsi.lun.opened import lun_locked

log = logging.getLogger(__name__)

NODE_SECONDS = 3.0  #: for device nodes to appear after the scan


def ids_used_here() -> Set[str]:
    """Return the SCSIids of the LUNs that this host uses: its direct LUNs, and the LUNs of its root."""
    of_root = {scsi_id_of_disk(disk, THIS_HOST) for disk in holders.disks_below("/", THIS_HOST)}
    return {*luns_of(THIS_HOST).values(), *filter(None, of_root)}


class OtherLuns:
    """The LUNs that a scan of these adapters adds. Made before the scan; the disks of a killed call count as added."""

    def __init__(
        self,
        adapters: Sequence[hba.Adapter],
        pool: pool_records.PoolRecords,
        read_pool: Callable[[], pool_records.PoolRecords],
        host_ref: str,
        own: str = "",
    ) -> None:
        """`read_pool` reads `pool` again. `own` is the SCSIid of the call's LUN, which is no other LUN."""
        self._adapters, self._read_pool, self._host_ref, self._own = adapters, read_pool, host_ref, own
        self._ports = set(hba.ports_online(hba.adapters()))
        # behind all adapters, because the next call may select other adapters
        disks = {one: hba.disk_at(one) for one in hba.addresses(hba.adapters())}
        self._addresses = [one for one, disk in disks.items() if disk is None or not hiding.is_stale_hidden(disk)]
        self._known = {*hiding.ids_here(), *pool_records.ids_named(pool), *luns_of(THIS_HOST).values()}

    def hidden(self) -> ContextManager[None]:
        """Hide the disks of new LUNs from udev for the block."""
        return hiding.hidden_adapters([one.name for one in self._adapters], sorted(self._known))

    def new_addresses(self) -> List[str]:
        """Return the SCSI addresses behind the adapters that have come since."""
        return [one for one in hba.addresses(self._adapters) if one not in self._addresses]

    @quietly("taking away the other LUNs of a scan")
    def forget(self, deadline: Deadline) -> None:
        """Remove the disks of new LUNs, except LUNs that the pool uses or another call works on. Log a failure.

        A new path to a LUN that had a disk stays: the path may have been down, and no later scan would add it again. A
        LUN behind a port that has logged in since stays: the kernel has added the LUN, not the scan. A LUN without a
        SCSIid stays: no call can name it. The pool is read now, because an administrator may have made an SR on a LUN
        since.
        """
        by_lun: Dict[Optional[str], List[str]] = {}
        for address in self.new_addresses():
            by_lun.setdefault(scsi_id_of_address(address), []).append(address)
        stay = by_lun.pop(None, [])
        known = {self._own, *self._known, *map(scsi_id_of_address, self._addresses)}
        new = {scsi_id: addresses for scsi_id, addresses in by_lun.items() if scsi_id and scsi_id not in known}
        pool = None
        try:
            pool = self._read_pool() if new else None
        except RelvmoiscsiError as problem:  # then any new LUN may be in use
            log.warning(
                "the new LUNs of a scan stay, because xapi does not say whether the pool uses them: %s", problem
            )
        used = ids_used_here() if new else set()
        arrived = set(hba.ports_online(self._adapters)) - self._ports
        with ExitStack() as locks:
            go: Dict[str, List[str]] = {}
            for scsi_id, addresses in new.items():
                if any(one.rpartition(":")[0] in arrived for one in addresses):
                    log.warning("the LUN %s stays: it came with a port that has logged in meanwhile", scsi_id)
                    stay += addresses
                elif pool is None or scsi_id in used or pool_records.users_of(scsi_id, pool, here=self._host_ref):
                    stay += addresses
                else:
                    with suppress(RelvmoiscsiError):  # another call works on the LUN, waits for it and hides it
                        locks.enter_context(lun_locked(scsi_id, THIS_HOST, 0))
                        go[scsi_id] = addresses
            if go or stay:
                _remove(go, stay, self._addresses, deadline)


def _remove(go: Mapping[str, Sequence[str]], stay: Sequence[str], before: Sequence[str], deadline: Deadline) -> None:
    """Remove the LUNs `go`, when udev has handled them and the addresses `stay`. The caller has the locks of the LUNs.

    The clean-up journal tells the next call for a LUN which disks this call could not remove. `before` are the
    addresses before the scan.
    """
    # An earlier call's entry in the clean-up journal stays.
    noted = [scsi_id for scsi_id in go if cleanup_journal.read(scsi_id) is None]
    for scsi_id in noted:
        with quietly("noting what a scan has brought"):
            cleanup_journal.note(scsi_id, before)
    goes = [one for addresses in go.values() for one in addresses]
    awaited = [*goes, *stay]
    THIS_HOST.wait_for(lambda: all(map(hba.disk_at, awaited)), deadline.within(NODE_SECONDS))
    disks = [disk for disk in map(hba.disk_at, awaited) if disk]
    seconds = deadline.within(CLEANUP_SECONDS)
    with quietly("waiting for udev"):  # a late udev would keep 160 disks in use
        udev.settle(disks, seconds)
    failures = take_away(goes, deadline.for_cleanup().part(CLEANUP_SECONDS))
    for sentence in failures.values():
        log.warning("%s", sentence)
    for scsi_id in noted:
        if not any(one in failures for one in go[scsi_id]):
            cleanup_journal.forget(scsi_id)
