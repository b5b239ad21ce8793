# SPDX-License-Identifier: LGPL-2.1-only
"""The kernel's iSCSI sessions, which SM or an administrator has made: add one LUN to them, and find offload cards.

    /sys/class/iscsi_session/session4/            targetname, state
                             session4/device   -> /sys/devices/platform/host7/session4
                                       target7:0:0/7:0:0:12/     a LUN by its SCSI address: host, channel, target, LUN
    /sys/class/scsi_host/host7/proc_name          iscsi_tcp, or the driver of a card: qla4xxx
                               scan               takes "channel target LUN": the kernel looks for a LUN there

Stock SM does not scan an existing session when it looks for a LUN. If the target mapped the LUN after the login, SM
does not find the LUN: error 107. `add_lun` adds this one LUN by its number, and no other LUN of the target.
"""

import logging
import os
import re
from functools import partial
from typing import List, Optional

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import hiding, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.files import attribute, matching
from relvmoiscsi.host.own_process import run_parallel
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.wording import quoted, shell_command

log = logging.getLogger(__name__)

ADD_SECONDS = 15.0  #: for the kernel and udev to add the LUN
_LOGGED_IN = "LOGGED_IN"
_TCP, _RDMA = "iscsi_tcp", ("iscsi_iser", "ib_iser")  #: drivers; any other driver is of a card that speaks TCP itself
_SESSION = re.compile(r"/host\d+/session\d+\Z")
_TARGET = re.compile(r"/target\d+:(\d+):(\d+)\Z")


def add_lun(iqn: str, scsi_id: str, number: int, deadline: Deadline, host: Host = THIS_HOST) -> List[str]:
    """Have each session of this host to the IQN show this LUN, so that SM finds the LUN.

    `number` is the kernel's number of the LUN (LunInfo.kernel_number). Return a sentence for each failure, with what to
    do by hand.
    """
    before = udev.disks_of(scsi_id, host)
    lacking = []
    for session in sessions_to(iqn, host):
        luns = matching(session, "target*/[0-9]*:*")
        shown = {scsi.scsi_id_of_address(os.path.basename(path), host) for path in luns}
        state = attribute(host.at("sys/class/iscsi_session", os.path.basename(session), "state"))
        if state == _LOGGED_IN and scsi_id not in shown:
            lacking.append(session)
    if not lacking:
        return []
    limit = deadline.part(ADD_SECONDS)
    works = [partial(_add, session, scsi_id, number, host) for session in lacking]
    outcomes = run_parallel(works, limit, "the session showed the LUN")
    problems = []
    for session, outcome in zip(lacking, outcomes):
        if isinstance(outcome, RelvmoiscsiError):
            name = os.path.basename(session)
            rescan = shell_command("iscsiadm -m session --rescan", sid=name[len("session") :])
            problems.append(
                f"The LUN {scsi_id} was not added to {name} to {iqn}: {outcome} "
                f"Run `{rescan}` before SR.probe or PBD.plug."
            )
    added = len(lacking) - len(problems)
    if not added:
        return problems
    try:
        # The LUN has a disk for each session, udev has handled the disks, and the link that SM reads exists.
        is_shown = host.wait_for(lambda: len(udev.disks_of(scsi_id, host)) >= len(before) + added, limit.left)
        if is_shown:
            udev.settle(udev.disks_of(scsi_id, host), limit.left, host=host)
            is_shown = hiding.wait_until_shown(scsi_id, limit.left, host)
    except RelvmoiscsiError as error:
        log.debug("%s", error)
        is_shown = False
    if not is_shown:
        problems.append(
            f"udev has not shown the LUN {scsi_id} within {ADD_SECONDS:g} seconds. Wait for `udevadm settle` before "
            "SR.probe or PBD.plug."
        )
    return problems


def offload_hint(iqn: str, host: Host = THIS_HOST) -> str:
    """Return what to do about a portal of this target that refuses TCP connections; "" if the cause is unknown.

    An offload card may have the session, on a network on which the host itself has no address.
    """
    drivers = [_driver(session, host) for session in sessions_to(iqn, host)]
    others = [driver for driver in drivers if driver not in ("", _TCP)]
    if not others:
        return ""
    if others[0] in _RDMA:
        return (
            f"This host reaches the target over RDMA ({others[0]}), which relvmoiscsi does not speak. Log in with "
            "`iscsiadm`, then give the LUN's block device to `relvmoiscsi resignature`."
        )
    return f"This host reaches the target through a card of its own ({others[0]}); use type=relvmohba."


def sessions_to(iqn: str, host: Host = THIS_HOST) -> List[str]:
    """Return the kernel's sessions of this host to the IQN: directories in sysfs, such as ".../host7/session4".

    A session that vanishes during the read is left out.
    """
    paths = matching(host.at("sys/class/iscsi_session"), "session*")
    found = [os.path.realpath(os.path.join(path, "device")) for path in paths if attribute(path, "targetname") == iqn]
    return [directory for directory in found if _SESSION.search(directory)]


def _add(session: str, scsi_id: str, number: int, host: Host) -> str:
    # A card has all its sessions at one SCSI host.
    scsi_host = os.path.basename(os.path.dirname(session))
    places = [_TARGET.search(path) for path in matching(session, "target*")]
    channel, target = next((place.groups() for place in places if place), ("0", "0"))
    if not any(places) and _driver(session, host) not in (_TCP, *_RDMA):
        raise Refused("the card does not tell which of its targets the session has.")
    address = f"{scsi_host[len('host') :]}:{channel}:{target}:{number}"
    stale = _at(address, host)
    if stale is not None:
        switch = f"/sys/bus/scsi/devices/{address}/delete"
        raise Refused(f"its LUN {number} was {stale} at the login.").advising(
            f"If nothing uses that disk: `echo 1 > {quoted(switch)}`."
        )
    scsi.look_for_luns(scsi_host, f"{channel} {target} {number}", host)
    found = _at(address, host)
    if found is None:
        raise Refused(f"the target has no LUN {number} for this host.")
    if found != scsi_id:
        raise Refused(f"for this host, the LUN {number} of the target is {found}, which this host sees now.")
    return ""


def _at(address: str, host: Host) -> Optional[str]:
    """Return the SCSIid of the LUN at the address, or "a LUN without an id"; None if there is no LUN."""
    if not os.path.isdir(host.at("sys/bus/scsi/devices", address)):
        return None
    return scsi.scsi_id_of_address(address, host) or "a LUN without an id"


def _driver(session: str, host: Host) -> str:
    """Return the driver of the session's SCSI host: "iscsi_tcp", "qla4xxx"; "" if the kernel does not report it."""
    return attribute(host.at("sys/class/scsi_host", os.path.basename(os.path.dirname(session)), "proc_name"))
