# SPDX-License-Identifier: LGPL-2.1-only
"""What calls for Fibre Channel have left on the host that were killed, or that could not take all away again."""

from relvmoiscsi.doctor.finding import AS_ROOT, Finding, listed, ok, unknown, warning
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.disk import cleanup_journal, own_maps, udev
from relvmoiscsi.host.this_host import Host

_NEXT_CALL = "Repeat the call, or run `xe sr-probe type=relvmohba` for that SCSIid: both remove the LUN from this host."


def examine_stale_resources(host: Host) -> Finding:
    """LUNs that a scan of a killed call has brought, disks that are hidden, maps. No call is at work at any of them."""
    try:
        scanned = cleanup_journal.unattended(cleanup_journal.SCAN, host)
        disks, maps = udev.stale_hidden(host), own_maps.stale_luns(host)
    except (OSError, NotFound) as error:
        return unknown("left-overs", f"Leftovers of killed calls cannot be listed: {error}", AS_ROOT)
    if scanned:
        sentence = (
            f"A killed call has left LUN {listed(scanned)} on this host. "
            "The LUN may be a clone with the identities of its original."
        )
        return warning("left-overs", sentence, _NEXT_CALL)
    if maps:
        return warning("left-overs", f"A killed call has left the multipath map of LUN {listed(maps)}.", _NEXT_CALL)
    if disks:
        sentence = f"A killed call has left {listed(disks)} hidden from udev, so its links are missing."
        advice = f"Repeat the call. Or, if LVM may see that disk: `echo change > /sys/block/{disks[0]}/uevent`."
        return warning("left-overs", sentence, advice)
    return ok("left-overs", "There are no leftovers of killed calls.")
