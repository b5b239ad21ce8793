# SPDX-License-Identifier: LGPL-2.1-only
"""What a call for Fibre Channel has left on the host: the call was killed, or could not remove what it brought."""

from relvmoiscsi.doctor.finding import AS_ROOT, Finding, listed, ok, unknown, warning
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.disk import cleanup_journal, hiding
from relvmoiscsi.host.this_host import Host

_NEXT_CALL = "Repeat the call, or run `xe sr-probe type=relvmohba` for that SCSIid: both remove the LUN from this host."


def examine_stale_resources(host: Host) -> Finding:
    """LUNs that the scan of a killed call has brought, and disks that are still hidden. No call works on them."""
    try:
        scanned, disks = cleanup_journal.unattended(host), hiding.stale_hidden(host)
    except (OSError, NotFound) as error:
        return unknown("left-overs", f"Leftovers of killed calls cannot be listed: {error}", AS_ROOT)
    if scanned:
        sentence = (
            f"A killed call has left LUN {listed(scanned)} on this host. "
            "The LUN may be a clone with the identities of its original."
        )
        return warning("left-overs", sentence, _NEXT_CALL)
    if disks:
        sentence = f"A killed call has left {listed(disks)} hidden from udev, so its links are missing."
        advice = f"Repeat the call. Or, if LVM may see that disk: `echo change > /sys/block/{disks[0]}/uevent`."
        return warning("left-overs", sentence, advice)
    return ok("left-overs", "There are no leftovers of killed calls.")
