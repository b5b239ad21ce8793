# SPDX-License-Identifier: LGPL-2.1-only
"""Direct LUNs: which device a LUN's link has to lead to, what speaks against it, and having udev make it.

The link is /dev/xapi/block/<name>, which the host's udev SR takes for a VDI: the path of the link is the location of
the VDI, so the LUN stays the same VDI whatever the kernel calls its disk. The rule in udev/ makes the link, and asks
`link_name` at each event of a disk that the configuration names:

    a map                        leads there; its paths have no link
    one disk, no map             leads there, unless multipath will take it
    several disks, no map        no link: writes to one disk pass the caches and queues of the other disks
    hidden by the driver         no link (the rule does not even ask)
    an SR, or LVM nobody reads   no link, clone or not

What cannot be found out at that moment (paths that are down, a LUN that does not answer) leaves the link as it is: a VM
may be using it.
"""

import json
import logging
import os
import re
from typing import Callable, Iterable, List, NamedTuple, Optional

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.direct.config import Entry, read_section
from relvmoiscsi.errors import DeviceError, NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host.config_file import read_config
from relvmoiscsi.host.disk import hiding, holders, multipath, udev
from relvmoiscsi.host.disk.scsi_id import scsi_id_at, scsi_id_of_disk
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.host.xapi import lun_users

log = logging.getLogger(__name__)

LINKS = "xapi/block"  #: below /dev; where sm's udev SR looks
LOOK_SECONDS = 3.0  #: how long a LUN may take to say what is on it, while udev waits
LINK_SECONDS = 60.0  #: on a host that has other things to do; most have the link within one
MARK = "RELVMOISCSI_DIRECT"  #: what the rule sets in udev's database: the name of the link

#: signs that multipath will take the LUNs it has taken before: it runs, SM has it on, it is started at boot
_DAEMON_SOCKET = "@/org/kernel/linux/storage/multipathd"
_MULTIPATH_FLAG = "nonpersistent/multipath_enabled"
_ENABLED = ("multi-user.target.wants", "sysinit.target.wants")

_SESSION = re.compile(r"/(session\d+)/")

#: programs that look at every disk, and leave a disk to its user
_ONLOOKERS = re.compile(r"process \d+ \((multipathd|systemd-udevd|\(?udev-worker\)?)\)\Z")


class Owner(NamedTuple):
    """What is on a LUN, as far as it matters here."""

    vg_name: str = ""
    is_sr: bool = False
    problem: str = ""


#: Looks at a device: `/dev/sdc`. Raises DeviceError.
Looker = Callable[[str], Owner]


def link_of(name: str, host: Host = THIS_HOST) -> str:
    """The link of a direct LUN; its path is the location of the VDI."""
    return os.path.join(host.dev, LINKS, name)


class Uncertain(Refused):
    """It cannot be said at this moment; so nothing should be changed for it."""


# --- which device


def device_of(scsi_id: str, host: Host = THIS_HOST) -> str:
    """The kernel's name of the device that the link of a LUN leads to: "dm-3", "sdc".

    Raises NotFound when the LUN has no disk here, Refused when it has several or is multipath's.
    """
    the_map = multipath.find_map(scsi_id, host)
    if the_map is not None:
        return the_map.kernel_name
    disks = udev.disks_of(scsi_id, host)
    if disks and is_for_multipath(scsi_id, host):
        raise Refused(
            f"Multipathing is on and LUN {scsi_id} was multipathed before, but has no map yet. `multipath -v3 -d "
            f"{scsi_id}` may show the reason."
        )
    if len(disks) == 1:
        return disks[0]  # in whatever state: a path that is down comes back, and the VM's disk with it
    if not disks:
        raise NotFound(f"No disk of this host has the SCSIid {scsi_id}.")
    return multipath.single_path(scsi_id, disks, host)


def is_for_multipath(scsi_id: str, host: Host = THIS_HOST) -> bool:
    """Will multipath take the LUN? It is listed as one that had a map, and multipathing is on."""
    if not multipath.look(scsi_id, host).had_wwid:
        return False
    sockets = text_of(os.path.join(host.proc, "net/unix")).split()
    links = [os.path.join(host.etc, "systemd/system", target, "multipathd.service") for target in _ENABLED]
    signs = [*links, os.path.join(host.run_dir, _MULTIPATH_FLAG)]
    return _DAEMON_SOCKET in sockets or any(os.path.lexists(sign) for sign in signs)


def size_bytes(kernel_name: str, host: Host = THIS_HOST) -> int:
    sectors = text_of(os.path.join(host.sysfs, "block", kernel_name, "size")).strip()
    return int(sectors) * 512 if sectors.isdigit() else 0


# --- what is on it


def check_content(kernel_name: str, look: Looker, host: Host = THIS_HOST, seconds: float = LOOK_SECONDS) -> Owner:
    """What is on the device. Raises Refused for what must not be given to a VM, Uncertain when it does not answer."""
    if text_of(os.path.join(host.sysfs, "block", kernel_name, "dm/suspended")).strip() == "1":
        raise Uncertain(f"The map {kernel_name} is suspended: the owner of the LUN cannot be read.")
    owner = in_time(look, host.node(kernel_name), seconds)
    if owner.is_sr:
        raise Refused(
            f"{kernel_name} holds an SR (volume group {ascii(owner.vg_name)}), or a clone of one. Introduce that "
            "SR. If the data on the LUN is not needed, zero its first MiB."
        )
    if owner.problem:
        raise Refused(f"{kernel_name} holds damaged LVM structures and may belong to an SR: {owner.problem}")
    return owner


def in_time(look: Looker, path: str, seconds: float) -> Owner:
    """What `look` says, if it does so in time. Raises Uncertain otherwise."""

    def told(_begin: Begin) -> str:
        return json.dumps(look(path)._asdict())

    try:
        said = run_in_child(told, Deadline(seconds), "the LUN had been read", only_reads=True)
    except OutOfTime as over:
        raise Uncertain(f"{path} did not answer within {seconds:g} seconds.") from over
    except RelvmoiscsiError as error:
        raise Uncertain(f"{path} cannot be read: {error.message}") from error
    return Owner(**json.loads(said))


def check_transport(disks: Iterable[str], host: Host = THIS_HOST) -> None:
    """Raises Refused for a disk behind an iSCSI session, which nobody keeps for a VM.

    SM logs out of a target when its last SR there is detached, even if another program uses the session; and a host of
    XenServer or XCP-ng logs in to no target by itself when it starts.
    """
    for disk in disks:
        session = _SESSION.search(os.path.realpath(os.path.join(host.sysfs, "block", disk)))
        if session is not None:
            raise Refused(
                f"{disk} is behind the iSCSI {session.group(1)}, and no program keeps that session for a VM. If "
                "you keep the session and log in at boot, add --iscsi."
            )


def check_unused(kernel_name: str, host: Host = THIS_HOST) -> None:
    """Raises Refused when anything has the device open or stacked on it; programs that look at every disk apart."""
    users = users_of(kernel_name, host)
    if users:
        raise Refused("{} is in use by {}.".format(kernel_name, ", ".join(dict.fromkeys(users))))


def users_of(kernel_name: str, host: Host = THIS_HOST) -> List[str]:
    """Who has the device open or stacked on it, in words."""
    try:
        status = os.stat(host.node(kernel_name))
    except FileNotFoundError:
        return []  # gone in the meantime, so nobody uses it
    users = holders.users_of_block(status, host)
    return [user for user in users if not _ONLOOKERS.match(user)]


# --- SRs


def check_no_user(scsi_id: str, pool: lun_users.Pool, link: str = "", host: Host = THIS_HOST) -> None:
    """Raises Refused when anybody in the pool has the LUN, attached or not, or an SR was made on it once.

    `link` is what leads to the LUN, or will: the VDI that it is, is no obstacle.
    """

    def look(path: str) -> Optional[str]:
        return scsi_id_at(path, host)

    for user in lun_users.users_of(scsi_id, pool, look):
        if not user.vdi:
            raise Refused(
                f"LUN {scsi_id} belongs to the SR {user.sr_name}. If the SR is not needed, forget the SR first."
            )
        if user.vdi.get("location") != link:
            raise Refused(
                "LUN {} is the VDI {} ({!r}) already.".format(
                    scsi_id, user.vdi.get("uuid"), user.vdi.get("name_label", "")
                )
            )


# --- udev


def link_name(kernel_name: str, previous: str, look: Looker, host: Host = THIS_HOST) -> str:
    """The name of the link that udev is to give this device now; empty for none. For the rule.

    `previous` is what it has. Other devices of the LUN whose links are to go or to come have an event made for it.
    """
    scsi_id = scsi_id_of_disk(kernel_name, host)
    entry = read_section(read_config(host.config)).of_lun(scsi_id) if scsi_id else None
    if entry is None:
        return ""
    try:
        device = device_of(entry.scsi_id, host)
    except RelvmoiscsiError as reason:
        log.info("%s: no link for %s: %s", entry.name, kernel_name, reason)
        device = ""
    for other in devices_of(entry.scsi_id, host):
        if other not in (kernel_name, device) and marked(other, host):
            udev.make_event(other, host)
    if device != kernel_name:
        return ""
    try:
        check_content(kernel_name, look, host)
    except Uncertain as reason:
        log.info("%s: %s stays as it is: %s", entry.name, kernel_name, reason)
        return entry.name if previous == entry.name else ""
    except Refused as reason:
        log.warning("%s: no link for %s: %s", entry.name, kernel_name, reason)
        return ""
    return entry.name


def devices_of(scsi_id: str, host: Host = THIS_HOST) -> List[str]:
    """Everything the kernel has of a LUN: its disks and its map."""
    the_map = multipath.find_map(scsi_id, host)
    return udev.disks_of(scsi_id, host) + ([the_map.kernel_name] if the_map else [])


def marked(kernel_name: str, host: Host = THIS_HOST) -> str:
    """The name of the link that udev last gave the device; empty if it has none."""
    number = text_of(os.path.join(host.sysfs, "block", kernel_name, "dev")).strip()
    lines = text_of(os.path.join(host.udev_run, "data", "b" + number)).splitlines()
    return next((line[len("E:" + MARK + "=") :] for line in lines if line.startswith("E:" + MARK + "=")), "")


def leads_to(name: str, host: Host = THIS_HOST) -> str:
    """The kernel's name of the device that the link leads to; empty if there is no such link."""
    link = link_of(name, host)
    return os.path.basename(os.path.realpath(link)) if os.path.islink(link) else ""


def renew_link(entry: Entry, device: str, host: Host = THIS_HOST) -> bool:
    """Have udev make the link of a LUN that is there; is it there then?"""
    for name in devices_of(entry.scsi_id, host):
        udev.make_event(name, host)
    return bool(host.wait_for(lambda: leads_to(entry.name, host) == device, LINK_SECONDS))


def remove_link(entry: Entry, host: Host = THIS_HOST) -> bool:
    """Have udev take the link away, the entry being gone; is it gone then?"""
    names = devices_of(entry.scsi_id, host)
    for name in dict.fromkeys([*names, leads_to(entry.name, host)]):
        if name:
            udev.make_event(name, host)
    return bool(host.wait_for(lambda: not leads_to(entry.name, host), LINK_SECONDS))


class Status(NamedTuple):
    """How it stands with a direct LUN."""

    device: str = ""  #: "dm-3"
    size_bytes: int = 0
    is_linked: bool = False
    problem: str = ""  #: why it is not linked


def status_of(entry: Entry, look: Looker, host: Host = THIS_HOST) -> Status:
    """How it stands with a direct LUN, and why there is no link if there is none."""
    try:
        device = device_of(entry.scsi_id, host)
    except (NotFound, Refused, DeviceError) as problem:
        return Status(problem=problem.message)
    found = Status(device, size_bytes(device, host))
    leads = leads_to(entry.name, host)
    if leads == device:
        return found._replace(is_linked=True)
    if leads:
        return found._replace(problem=f"{link_of(entry.name, host)} leads to {leads}.")
    if hiding.is_hidden(device, host):
        return found._replace(problem="relvmoiscsi is giving the LUN new identities.")
    try:
        check_content(device, look, host)
    except Refused as problem:
        return found._replace(problem=problem.message)
    return found._replace(
        problem=(
            f"udev has made no link for {device}; check that the rules of relvmoiscsi are installed, then repeat "
            f"`relvmoiscsi direct add {entry.name} {entry.scsi_id}`."
        )
    )
