# SPDX-License-Identifier: LGPL-2.1-only
"""The multipath maps of a LUN, as the kernel's files show them. No code here makes or removes a map.

`is_on` tells the caller whether multipathing is on. If it is off, `single_path` selects the only usable path.

The kernel's files give the state: /sys/block/dm-*/dm/uuid is "mpath-<SCSIid>", slaves/ has the paths.
"""

import os
from typing import List, Mapping, Sequence

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk.process_search import is_roots
from relvmoiscsi.host.files import attribute, content_of, lines_in, matching, names_in, words_in
from relvmoiscsi.host.this_host import THIS_HOST, Host

WWIDS = "etc/multipath/wwids"  #: the LUNs that were multipathed before, a line "/<SCSIid>/" for each

#: States of a SCSI disk through which no request reaches the LUN. A "blocked" disk may come back.
_DEAD_STATES = ("offline", "transport-offline", "cancel", "deleted")


def is_on(device_config: Mapping[str, str], other_config: Mapping[str, str]) -> bool:
    """Return whether multipathing is on, by the SR's device-config and the host's other-config, as SM decides.

    The device-config counts only with both keys. Source: sm drivers/SR.py, _mpathinit.
    """
    if "multipathing" in device_config and "multipathhandle" in device_config:
        return device_config["multipathing"] == "true" and device_config["multipathhandle"] == "dmp"
    return other_config.get("multipathing") == "true" and other_config.get("multipathhandle", "dmp") == "dmp"


def single_path(scsi_id: str, disks: Sequence[str], host: Host = THIS_HOST) -> str:
    """Return the disk ("sdb") to use without multipathing: the only disk through which the LUN can be reached.

    Raises Refused for several usable disks, NotFound for none.
    """
    alive = usable(disks, host)
    if len(alive) == 1:
        return alive[0]
    if not alive:
        states = [f"{disk} is {attribute(host.at('sys/block', disk, 'device/state')) or 'gone'}" for disk in disks]
        listed = ", ".join(states) or "no disk has its id"
        raise NotFound(f"LUN {scsi_id} cannot be reached: {listed}.", sm_key="ISCSIDevice")
    devices = [os.path.realpath(host.at("sys/block", disk, "device")) for disk in alive]
    listed = ", ".join(f"{disk} at {os.path.basename(device)}" for disk, device in zip(alive, devices))
    raise Refused(
        f"LUN {scsi_id} has {len(alive)} paths ({listed}) and multipathing is off on this host.",
        sm_key="MultipathGenericFailure",
    ).advising(
        "Turn multipathing on, or leave one path: log out of all portals but one, or map the LUN in one fabric. Then "
        "try again."
    )


def usable(disks: Sequence[str], host: Host = THIS_HOST) -> List[str]:
    """Return the disks that the kernel still sends requests to."""
    gone = ("", *_DEAD_STATES)
    return [disk for disk in disks if attribute(host.at("sys/block", disk, "device/state")) not in gone]


def paths_in(maps: Sequence[str], host: Host = THIS_HOST) -> List[str]:
    """Return the disks ("sdb") that are paths of these maps ("dm-3"; see udev.maps_of)."""
    return [path for name in maps for path in names_in(host.at("sys/block", name, "slaves"))]


def mapper_path(name: str, host: Host = THIS_HOST) -> str:
    """Return the device of a map ("dm-3") by its name, which is the SCSIid, or "mpatha" with user_friendly_names."""
    return host.at("dev/mapper", attribute(host.at("sys/block", name, "dm/name")))


def is_daemon_running(host: Host = THIS_HOST) -> bool:
    """Return whether root runs the program multipathd."""
    return any(is_roots(process, ["multipathd"]) for process in matching(host.at("proc"), "[0-9]*"))


def is_listed(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Return whether the LUN had a map before: whether it is listed in the wwids file."""
    lines = lines_in((content_of(host.at(WWIDS)) or b"").decode("utf-8", "replace"))
    return [f"/{scsi_id}/"] in map(words_in, lines)
