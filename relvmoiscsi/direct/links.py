# SPDX-License-Identifier: LGPL-2.1-only
"""Direct LUNs: the device that a LUN's link leads to, the reasons for no link, and events that make udev set the link.

The configuration alone decides which LUN is direct: the administrator names each SCSIid. A guest writes any bytes to
its LUN, so only the command that adds a LUN reads it, once, before a guest has it (`check_content`).

The link is /dev/xapi/block/<name>, which the host's udev SR takes for a VDI. The link's path is the location of the
VDI, so the LUN stays the same VDI under every kernel name of its disk. The rule in udev/ makes the link. The rule calls
`link_name` at each event of a disk that the configuration names:

    a map                        the link leads to the map; its paths have no link
    one disk, no map             the link leads to the disk, unless multipath will take the disk
    several disks, no map        no link: writes to one disk bypass the caches and queues of the other disks
    hidden by the driver         no link (the rule does not call `link_name`)

Each disk and map of a direct LUN, linked or not, is kept from the programs of this host that act on content.
"""

import logging
import os
import re
from typing import Callable, Collection, Dict, Iterable, List, NamedTuple, Optional

from relvmoiscsi import untrusted
from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.errors import DeviceError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.formats.lvm.owner import Owner
from relvmoiscsi.host.disk import hiding, holders, multipath, udev
from relvmoiscsi.host.disk.scsi_id import PARTITION_MAP, scsi_id_at, scsi_id_of_disk
from relvmoiscsi.host.files import attribute, lines_of, names_in
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.lun import pool_records
from relvmoiscsi.wording import shell_command

log = logging.getLogger(__name__)

LINKS = "xapi/block"  #: below /dev; sm's udev SR reads this directory
LOOK_SECONDS = 3.0  #: limit for reading the owner of a LUN
LINK_SECONDS = 60.0  #: limit for a link on a busy host; most hosts need a second
MARK = "RELVMOISCSI_DIRECT"  #: the rule sets this property in udev's database: the name of the link, or NO_LINK
NO_LINK = "-"  #: the answer to the rule for a device of a direct LUN that has no link; no LUN has this name

#: signs that multipath will take a LUN that had a map, beside a multipathd that runs: SM has multipath on, or the boot
#: starts it
_MULTIPATH_FLAG = "nonpersistent/multipath_enabled"
_ENABLED = ("multi-user.target.wants", "sysinit.target.wants")

_SESSION = re.compile(r"/(session\d+)/")


#: Reads the owner of the LUN from a device such as `/dev/sdc`. Raises DeviceError.
Looker = Callable[[str], Owner]


def link_of(name: str, host: Host = THIS_HOST) -> str:
    """Return the path of a direct LUN's link, which is the location of the VDI."""
    return host.at("dev", LINKS, name)


# --- the device of a LUN


def device_of(scsi_id: str, host: Host = THIS_HOST) -> str:
    """Return the kernel's name of the device that the LUN's link leads to: "dm-3", "sdc".

    Raises NotFound if the LUN has no disk here. Raises Refused if the LUN has several disks and no map, or waits for
    its map.
    """
    maps = udev.maps_of(scsi_id, host)
    if maps:
        return maps[0]
    disks = udev.disks_of(scsi_id, host)
    if disks and is_for_multipath(scsi_id, host):
        raise Refused(f"Multipathing is on and LUN {scsi_id} was multipathed before, but has no map yet.").advising(
            f"`{shell_command('multipath -v3 -d', scsi_id)}` may show the reason."
        )
    if len(disks) == 1:
        return disks[0]  # in any state: a path that is down may come back, and the VM's disk with the path
    if not disks:
        raise NotFound(f"No disk of this host has the SCSIid {scsi_id}.")
    return multipath.single_path(scsi_id, disks, host)


def is_for_multipath(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Return whether multipath will take the LUN: the LUN had a map before, and multipathing is on."""
    if not multipath.is_listed(scsi_id, host):
        return False
    links = [host.at(f"etc/systemd/system/{target}/multipathd.service") for target in _ENABLED]
    signs = [*links, host.at("run/" + _MULTIPATH_FLAG)]
    return any(os.path.lexists(sign) for sign in signs) or multipath.is_daemon_running(host)


def size_bytes(kernel_name: str, host: Host = THIS_HOST) -> int:
    sectors = attribute(host.at("sys/block", kernel_name, "size"))
    return untrusted.number(sectors) * 512 if untrusted.is_number(sectors) else 0


# --- the content of a LUN


def check_content(kernel_name: str, look: Looker, host: Host = THIS_HOST, seconds: float = LOOK_SECONDS) -> None:
    """Raise Refused if the device holds an SR, or may hold one, or does not answer. No guest has the device yet."""
    if attribute(host.at("sys/block", kernel_name, "dm/suspended")) == "1":
        raise Refused(f"The map {kernel_name} is suspended: the owner of the LUN cannot be read.")
    owner = in_time(look, host.node(kernel_name), seconds)
    if owner.is_sr:
        raise Refused(f"{kernel_name} holds an SR (volume group {ascii(owner.vg_name)}), or a clone of one.").advising(
            "Introduce that SR. If the data on the LUN is not needed, zero its first MiB."
        )
    if owner.problem:
        raise Refused(f"{kernel_name} holds damaged LVM structures and may belong to an SR: {owner.problem}")


def in_time(look: Looker, path: str, seconds: float) -> Owner:
    """Return the result of `look` within `seconds`. Raises Refused otherwise."""

    def told(_begin: Begin) -> Owner:
        return look(path)

    try:
        return Owner(*run_in_child(told, Deadline(seconds), "the LUN had been read", only_reads=True))
    except OutOfTime as over:
        raise Refused(f"{path} did not answer within {seconds:g} seconds.") from over
    except RelvmoiscsiError as error:
        raise Refused(f"{path} cannot be read: {error.message}").advising(error.advice) from error


def check_transport(disks: Iterable[str], host: Host = THIS_HOST) -> None:
    """Raise Refused for a disk behind an iSCSI session, because no program keeps the session for a VM.

    SM logs out of a target when the target's last SR is detached, even if another program uses the session. At boot, a
    host of XenServer or XCP-ng logs in to no target by itself.
    """
    for disk in disks:
        session = _SESSION.search(os.path.realpath(host.at("sys/block", disk)))
        if session is not None:
            raise Refused(
                f"{disk} is behind the iSCSI {session.group(1)}, and no program keeps that session for a VM."
            ).advising("If you keep the session and log in at boot, add --iscsi.")


def check_unused(kernel_name: str, host: Host = THIS_HOST) -> None:
    """Raise Refused if a program has the device open, or a device is stacked on it; watchers of disks do not count."""
    users = users_of(kernel_name, host)
    if users:
        raise Refused(f"{kernel_name} is in use by {', '.join(users)}.").advising(holders.advice_of(users))


def users_of(kernel_name: str, host: Host = THIS_HOST) -> holders.Users:
    """Return the programs that have the device open, and the devices stacked on it."""
    try:
        status = os.stat(host.node(kernel_name))
    except FileNotFoundError:
        return {}  # the device has vanished, so it has no user
    return holders.users_of_block(status, host)


# --- SRs


def check_no_user(scsi_id: str, pool: pool_records.PoolRecords, link: str = "", host: Host = THIS_HOST) -> None:
    """Raise Refused if an SR or VDI of the pool has the LUN, attached or not, or an SR was made on the LUN.

    `link` is the path of the LUN's link. The VDI at that path is no obstacle.
    """

    def look(path: str) -> Optional[str]:
        return scsi_id_at(path, host)

    for user in pool_records.users_of(scsi_id, pool, look):
        if not user.vdi:
            sr = pool_records.name_of(user.sr)
            raise Refused(f"LUN {scsi_id} belongs to the SR {sr}.").advising(
                "If the SR is not needed, forget the SR first."
            )
        if user.vdi.get("location") != link:
            name_label = user.vdi.get("name_label", "")
            raise Refused(f"LUN {scsi_id} is the VDI {user.vdi.get('uuid')} ({name_label!r}) already.").advising(
                "If the VDI is not needed, run `xe vdi-forget`."
            )


# --- udev


def link_name(kernel_name: str, host: Host = THIS_HOST) -> Optional[str]:
    """Return the name of the link that udev shall give this device now; "" for a device of a direct LUN without a link.

    None if the LUN is not direct. The udev rule calls this. If the links of other devices of the LUN must change, make
    an event for each of these devices.
    """
    scsi_id = _lun_of_partition(kernel_name, host) or scsi_id_of_disk(kernel_name, host)
    name = next((name for name, one in luns_of(host).items() if one == scsi_id), None)
    if scsi_id is None or name is None:
        return None
    try:
        device = device_of(scsi_id, host)
    except RelvmoiscsiError as reason:
        log.info("%s: no link for %s: %s", name, kernel_name, reason)
        device = ""
    for other in devices_of(scsi_id, host):
        if other not in (kernel_name, device) and marked(other, host):
            udev.make_event(other, host)
    return name if device == kernel_name else ""


def devices_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """Return the kernel's names of the LUN's disks and of its map."""
    return udev.disks_of(scsi_id, host) + udev.maps_of(scsi_id, host)


def every_device_of(scsi_ids: Collection[str], host: Host = THIS_HOST) -> Dict[str, List[str]]:
    """Return by SCSIid the paths below /sys/block of disks and maps, each with its partitions: "sda", "sda/sda1".

    A partition of a map is a map too: "dm-4".
    """
    disks, maps = (udev.by_scsi_id(scsi_ids, pattern, host) for pattern in ("sd*", "dm-*"))
    found = {}
    for scsi_id in disks:
        there = [name for name in disks[scsi_id] + maps[scsi_id] if os.path.exists(host.node(name))]
        found[scsi_id] = [each for name in there for each in (name, *partitions_of(name, host))]
    return found


def partitions_of(kernel_name: str, host: Host = THIS_HOST) -> List[str]:
    """Return the paths below /sys/block of the partitions that a guest has written, for `every_device_of`."""
    directory = host.at("sys/block", kernel_name)
    maps = [each for each in names_in(os.path.join(directory, "holders")) if _lun_of_partition(each, host)]
    return [os.path.join(kernel_name, each) for each in names_in(directory, kernel_name + "*")] + maps


def _lun_of_partition(kernel_name: str, host: Host) -> Optional[str]:
    """Return the SCSIid of the LUN of a map that is a partition of a multipath map."""
    found = PARTITION_MAP.match(attribute(host.at("sys/block", kernel_name, "dm/uuid")))
    return found.group(1) if found else None


def marked(kernel_name: str, host: Host = THIS_HOST) -> str:
    """Return the name of the link that udev last gave the device; "" if none."""
    start = f"E:{MARK}="
    marks = [line[len(start) :] for line in lines_of(udev.entry_of(kernel_name, host)) if line.startswith(start)]
    return next((mark for mark in marks if mark != NO_LINK), "")


def leads_to(name: str, host: Host = THIS_HOST) -> str:
    """Return the kernel's name of the device that the link leads to; "" if there is no link."""
    link = link_of(name, host)
    return os.path.basename(os.path.realpath(link)) if os.path.islink(link) else ""


def renew_link(name: str, scsi_id: str, device: str, host: Host = THIS_HOST) -> bool:
    """Have udev make the link of a LUN, or remove the link, where `device` is "". Return whether udev has done so.

    The partitions that a guest has written have their events after their disk's, and follow it.
    """
    for other in dict.fromkeys([*devices_of(scsi_id, host), leads_to(name, host)]):
        if other:
            for name_below_sys in [other, *partitions_of(other, host)]:
                udev.make_event(name_below_sys, host)
    return bool(host.wait_for(lambda: leads_to(name, host) == device, LINK_SECONDS))


class Status(NamedTuple):
    """The state of a direct LUN."""

    device: str = ""  #: "dm-3"
    size_bytes: int = 0
    is_linked: bool = False
    problem: Optional[RelvmoiscsiError] = None  #: why the link is missing, or no VM may use the LUN

    @property
    def reason(self) -> str:
        """The problem, and what to do; "" for none."""
        return self.problem.told if self.problem is not None else ""


def status_of(name: str, scsi_id: str, host: Host = THIS_HOST) -> Status:
    """Return the state of a direct LUN, with the reason if there is no link."""
    try:
        device = device_of(scsi_id, host)
    except (NotFound, Refused, DeviceError) as problem:
        return Status(problem=problem)
    found = Status(device, size_bytes(device, host))
    leads = leads_to(name, host)
    if leads == device:
        return found._replace(is_linked=True)
    if leads:
        return found._replace(problem=Refused(f"{link_of(name, host)} leads to {leads}."))
    if hiding.is_hidden(device, host):
        return found._replace(problem=Refused("relvmoiscsi is giving the LUN new identities."))
    return found._replace(
        problem=Refused(f"udev has made no link for {device}.").advising(
            "Check that the rules of relvmoiscsi are installed, then repeat "
            f"`{shell_command('relvmoiscsi direct add', name, scsi_id)}`."
        )
    )
