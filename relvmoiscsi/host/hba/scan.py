# SPDX-License-Identifier: LGPL-2.1-only
"""Scan adapters for LUNs, and remove the disks that a scan has added.

A scan asks each target for its LUNs, and hangs at a dead port (scsi_id.look_for_luns). So a child process scans each
adapter; all children run at the same time, with one deadline.
"""

import logging
import time
from functools import partial
from typing import Dict, Iterable, List, Optional, Sequence

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.hba.adapters import ScanPlace, disk_at
from relvmoiscsi.host.own_process import Outcome, run_parallel
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0  #: for short users of a disk, such as an LVM command that scans all disks
POLL_SECONDS = 0.1


@terminated.put_off()
def scan(places: Sequence[ScanPlace], deadline: Deadline, host: Host = THIS_HOST) -> List[str]:
    """Have the kernel look for LUNs at all these places at the same time. Return a sentence for each failure.

    A scan that missed the deadline goes on in the kernel and may add a LUN later. So a SIGTERM does not end the wait:
    a clean-up that begins before the scan ends would miss the new LUN.
    """
    works = [partial(scsi.look_for_luns, place.adapter.name, place.where, host) for place in places]
    outcomes = run_parallel(works, deadline, "an adapter had been scanned")
    return [
        f"{place.adapter.name} ({place.adapter.driver}): {outcome}"
        for place, outcome in zip(places, outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    ]


def take_away(addresses: Iterable[str], deadline: Deadline, host: Host = THIS_HOST) -> Dict[str, str]:
    """Remove the unused disks at these SCSI addresses. Return a sentence for each disk that stays, by address.

    If one path of a LUN has a user, all paths of that LUN stay: multipathd, for example, may open the next path soon.
    The caller ensures that no call works on these LUNs.
    """
    there = {address: disk_at(address, host) for address in addresses}
    # One search finds the users of all disks: a search takes a while on a large host.
    looking = [partial(_users_after_wait, [disk for disk in there.values() if disk], host)]
    (users,) = run_parallel(looking, deadline, "it was known who uses the disk")
    outcomes: Sequence[Outcome] = [users] * len(there)
    if not isinstance(users, RelvmoiscsiError):
        luns = {address: scsi.scsi_id_of_address(address, host) or address for address in there}
        of_lun: Dict[str, List[str]] = {lun: [] for lun in luns.values()}
        for address, disk in there.items():
            of_lun[luns[address]] += users.get(disk or "", [])
        uses = {address: list(dict.fromkeys(of_lun[lun])) for address, lun in luns.items()}
        works = [partial(_remove, address, disk, uses[address], host) for address, disk in there.items()]
        outcomes = run_parallel(works, deadline, "the disk had been removed")
    return {
        address: f"The disk {disk or 'without a name'} at {address} stays: {outcome}"
        for (address, disk), outcome in zip(there.items(), outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    }


def _users_after_wait(disks: Sequence[str], host: Host) -> Dict[str, List[str]]:
    """Return the users of each used disk after LOOK_SECONDS, by disk; earlier if no disk has a user."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        users = {disk: found for disk, found in holders.users_of_each(disks, host).items() if found}
        if not users or time.monotonic() >= until:
            return users
        time.sleep(POLL_SECONDS)


def _remove(address: str, disk: Optional[str], users: Sequence[str], host: Host) -> str:
    until = time.monotonic() + LOOK_SECONDS
    while True:
        claims = users or (holders.claims_of_disks([disk], host) if disk else ())
        if not claims:
            break
        if users or time.monotonic() >= until:
            raise Refused("it is in use by {}.".format(", ".join(claims)))
        time.sleep(POLL_SECONDS)
    scsi.remove_lun(address, host)
    return ""
