# SPDX-License-Identifier: LGPL-2.1-only
"""Scan adapters for LUNs, and remove the disks that a scan has added.

A scan asks each target for its LUNs, and hangs at a dead port (scsi_id.look_for_luns). So a child process scans each
adapter; all children run at the same time, with one deadline.
"""

import logging
import time
from functools import partial
from typing import Callable, Dict, Iterable, List, Optional, Sequence, TypeVar

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.hba.adapters import ScanPlace, disk_at
from relvmoiscsi.host.own_process import run_parallel
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0  #: for short users of a disk, such as an LVM command that scans all disks
POLL_SECONDS = 0.1

Found = TypeVar("Found")


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
    disks = {address: disk_at(address, host) for address in addresses}
    problems: Dict[str, object] = {}
    # One search finds the users of all disks: a search takes a while on a large host.
    search = partial(holders.users_of_each, [disk for disk in disks.values() if disk], host, deadline)
    (users,) = run_parallel([partial(_lasting, search)], deadline, "it was known who uses the disk")
    if isinstance(users, RelvmoiscsiError):
        problems = dict.fromkeys(disks, users)
    else:
        luns = {address: scsi.scsi_id_of_address(address, host) or address for address in disks}
        for address, lun in luns.items():
            paths = [disk for other, disk in disks.items() if disk and luns[other] == lun]
            of_lun = dict.fromkeys(user for disk in paths for user in users.get(disk, ()))
            if of_lun:
                problems[address] = f"it is in use by {', '.join(of_lun)}."
        unused = [address for address in disks if address not in problems]
        works = [partial(_remove, address, disks[address], host) for address in unused]
        outcomes = zip(unused, run_parallel(works, deadline, "the disk had been removed"))
        problems.update((address, outcome) for address, outcome in outcomes if isinstance(outcome, RelvmoiscsiError))
    return {
        address: f"The disk {disk or 'without a name'} at {address} stays: {problems[address]}"
        for address, disk in disks.items()
        if address in problems
    }


def _remove(address: str, disk: Optional[str], host: Host) -> str:
    names = [disk] if disk else []
    claims = _lasting(lambda: holders.claims_of_disks(names, host))
    if claims:
        raise Refused(f"it is in use by {', '.join(claims)}.")
    scsi.remove_lun(address, host)
    return ""


def _lasting(look: Callable[[], Found]) -> Found:
    """Return what `look` gives after LOOK_SECONDS; earlier, as soon as it gives nothing."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        found = look()
        if not found or time.monotonic() >= until:
            return found
        time.sleep(POLL_SECONDS)
