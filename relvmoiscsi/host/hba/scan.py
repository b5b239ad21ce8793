# SPDX-License-Identifier: LGPL-2.1-only
"""Looking for LUNs behind adapters, and taking away again what that has brought.

A scan asks each target for its LUNs; at a dead port it hangs until the kernel gives up, in a process that cannot be
ended. So each adapter is scanned in a process of its own, all of them at the same time, with one limit.
"""

import json
import logging
import os
import time
from functools import partial
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.hba.adapters import Place, disk_at
from relvmoiscsi.host.own_process import Outcome, run_parallel
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0  #: for whoever only looks at a disk, such as LVM that scans all of them
POLL_SECONDS = 0.1


@terminated.put_off()
def scan(places: Sequence[Place], deadline: Deadline, host: Host = THIS_HOST) -> List[str]:
    """Have the kernel look for LUNs at all these places at the same time; sentences about those that could not be.

    Such a scan may still go on in the kernel afterwards, and bring a LUN later. So a SIGTERM does not end the wait for
    it: whoever looks then for what it has brought would be too early.
    """
    works = [partial(_scan, place, host) for place in places]
    outcomes = run_parallel(works, deadline, "an adapter had been scanned")
    return [
        f"{place.adapter.name} ({place.adapter.driver}): {outcome}"
        for place, outcome in zip(places, outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    ]


def _scan(place: Place, host: Host) -> str:
    path = os.path.join(host.sysfs, "class/scsi_host", place.adapter.name, "scan")
    try:
        with open(path, "w", encoding="ascii") as switch:
            switch.write(str(place))
    except OSError as error:
        raise Refused(f"It cannot be scanned for LUNs: {error.strerror}.") from error
    return ""


def take_away(addresses: Iterable[str], deadline: Deadline, host: Host = THIS_HOST) -> Dict[str, str]:
    """Remove the disks at these SCSI addresses, but those in use; sentences about what stays, by address.

    Of a LUN with a user all of these stay: whoever has one path of it open may have the others next, as multipathd has.
    That the LUNs behind them are nobody's work at the moment is for the caller to know.
    """
    there = {address: disk_at(address, host) for address in addresses}
    # One look is for all, as it takes a while on a large host.
    looking = [partial(_looked, [disk for disk in there.values() if disk], host)]
    (users,) = run_parallel(looking, deadline, "it was known who uses the disk")
    outcomes: Sequence[Outcome] = [users] * len(there)
    if not isinstance(users, RelvmoiscsiError):
        by_lun = _users_by_lun(there, json.loads(users), host)
        works = [partial(_remove, address, disk, by_lun[address], host) for address, disk in there.items()]
        outcomes = run_parallel(works, deadline, "the disk had been removed")
    return {
        address: f"The disk {disk or 'without a name'} at {address} stays: {outcome}"
        for (address, disk), outcome in zip(there.items(), outcomes)
        if isinstance(outcome, RelvmoiscsiError)
    }


def _users_by_lun(
    there: Mapping[str, Optional[str]], users: Mapping[str, List[str]], host: Host
) -> Dict[str, List[str]]:
    """Who uses the LUN at each address, through whatever disk; `users` is by disk."""
    luns = {address: scsi.scsi_id_of_address(address, host) or address for address in there}
    found: Dict[str, List[str]] = {lun: [] for lun in luns.values()}
    for address, lun in luns.items():
        found[lun] += users.get(there[address] or "", [])
    return {address: list(dict.fromkeys(found[lun])) for address, lun in luns.items()}


def _looked(disks: Sequence[str], host: Host) -> str:
    """Who uses the disks that are in use, and still are after some seconds, by disk; JSON."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        users = {disk: found for disk, found in holders.users_of_each(disks, host).items() if found}
        if not users or time.monotonic() >= until:
            return json.dumps(users)
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
