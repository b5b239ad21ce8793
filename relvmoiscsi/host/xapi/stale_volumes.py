# SPDX-License-Identifier: LGPL-2.1-only
"""Volumes of an SR that are active on a clone's disk, on a host that has not attached the SR: what to do.

    t0  a clone that was not resignatured is a disk of the host
    t1  the PBD of the original is plugged. LVM sees one PV on two disks and takes the clone's for the SR. The storage
        manager activates the volume MGT there, then ends the plug with error 119
    t2  MGT stays active: relvmoiscsi refuses to write to the clone, and the host cannot plug the original

The remedy is to deactivate the volume group by its name. LVM refuses this for an open volume. While the SR is attached
to the host, the disk may be the original in use: then no volume may be deactivated.
Source: sm LVHDoISCSISR.py attach, LVHDSR.py attach, lvutil.py checkPVScsiIds.
"""

import logging
from typing import Any, Callable, Mapping, Optional, Sequence

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_xapi, own_ref
from relvmoiscsi.host.xapi.other_hosts import srs_of, use_of_lun
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

_XAPI_SECONDS = 10.0  #: the time limit for one answer of xapi

Records = Mapping[str, Mapping[str, Any]]


def is_attached(sr_uuid: str, pbds: Records, srs: Records, host_ref: str) -> Optional[bool]:
    """Return whether the host has the SR attached, by xapi's records; None if unknown or while an operation runs."""
    refs = [ref for ref, sr in srs.items() if sr.get("uuid") == sr_uuid]
    mine = [pbd for pbd in pbds.values() if pbd.get("host") == host_ref and pbd.get("SR") in refs]
    if any(pbd.get("currently_attached") for pbd in mine):
        return True
    is_busy = any(srs[ref].get("current_operations") for ref in refs)
    return None if is_busy or not host_ref else False


def is_attached_to(sr_uuid: str, xapi: Xapi, host_ref: str) -> Optional[bool]:
    """Return whether the host has the SR attached; None if that is unknown, also where xapi does not answer."""
    try:
        return is_attached(sr_uuid, xapi.records("PBD"), xapi.records("SR"), host_ref)
    except XapiFailure:
        return None


def is_attached_here(sr_uuid: str, host: Host) -> Optional[bool]:
    """Return whether this host has the SR attached; None if that is unknown, also where xapi does not answer."""
    try:
        with local_xapi(host.xapi_socket, _XAPI_SECONDS) as xapi:
            return is_attached_to(sr_uuid, xapi, own_ref(xapi.records("host"), host))
    except XapiFailure:
        return None


def advise(
    refused: Refused,
    scsi_id: Optional[str],
    read_sr: Callable[[str], str],
    is_attached_here: Callable[[str], Optional[bool]],
    objection_of_pool: Callable[[], Optional[Refused]],
    host: Host = THIS_HOST,
) -> None:
    """Add to a refusal how to remove volumes that SM has activated on a clone. Without such volumes, add nothing.

    `read_sr` returns the UUID of the SR on a disk of the LUN. `is_attached_here` answers for an SR as `is_attached`.
    `objection_of_pool` returns why the pool forbids a write to the LUN. Such a LUN may be the original: the objection
    stands in the place of the advice.
    """
    use = use_of_lun(scsi_id, host) if scsi_id is not None else None
    if use is None or not (use.stacked and use.disks):
        return
    try:
        sr_uuid = read_sr(use.disks[0])
    except (RelvmoiscsiError, RuntimeError) as problem:
        log.warning("which SR the LUN holds could not be read: %s", problem)
        return
    advice = way_out(sr_uuid, use.stacked, is_attached_here)
    if advice:
        objection = objection_of_pool()
        refused.advising(advice if objection is None else objection.told)


def vg_command(sr_uuid: str) -> str:
    """Return the command that deactivates the volumes of an SR on this host."""
    return f"`{shell_command('vgchange -an', f'VG_XenStorage-{sr_uuid}')}`"


def way_out(lun_sr: str, stacked: Sequence[str], is_attached_here: Callable[[str], Optional[bool]]) -> str:
    """Return remedies for a refusal of a LUN that holds the SR `lun_sr`; "" if other devices are stacked on the LUN.

    `stacked` are device-mapper names on the LUN's disks. `is_attached_here` answers for an SR as `is_attached` does.
    """
    if not stacked or any(srs_of([name]) != [lun_sr] for name in stacked):
        return ""
    is_here = is_attached_here(lun_sr)
    what = f"The volumes in use belong to the SR {lun_sr}, which is the SR that this LUN holds."
    if is_here is None:
        return (
            f"{what} It is unknown whether this host has that SR attached. Run "
            f"`{shell_command('xe pbd-list', f'sr-uuid={lun_sr}')}` when xapi answers: if the PBD of this host is "
            "attached, this LUN may be the original in use. Deactivate no volume before that is known. Then repeat the "
            "command."
        )
    if is_here:
        return (
            f"{what} This host has that SR attached: this LUN may be the original in use. If the LUN is a clone, shut "
            "down the VMs that use the SR on this host, unplug the PBD of this host, then repeat the command."
        )
    return (
        f"{what} This host has no attached PBD of that SR: the storage manager activated the volumes on this clone "
        f"when it failed to plug the original. Run {vg_command(lun_sr)} on this host, resignature the clone, then plug "
        "the original."
    )
