# SPDX-License-Identifier: LGPL-2.1-only
"""List the LUNs behind the iSCSI targets of this host's SRs, for the host plugin.

The plugin opens its own sessions to the targets, which only read. These sessions use the initiator name, the CHAP and
the network interfaces that SM uses for the PBD. So the plugin finds a clone that no kernel session shows, and the host
gets no disk of the clone.
"""

from functools import partial
from typing import ContextManager, Dict, List, NamedTuple, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.iscsi import LunInfo
from relvmoiscsi.lun.call import session_to_read
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.url_source import LISTED_AT_ONCE
from relvmoiscsi.sr_driver.iscsi.iscsi_config import IscsiConfig
from relvmoiscsi.sr_driver.iscsi.target_access import Access, access_of
from relvmoiscsi.sr_types import ISCSI_SR, MOST_LUNS
from relvmoiscsi.threads import Workers
from relvmoiscsi.wording import counted, said

TARGET_SECONDS = 20.0  #: time limit for the list of one target


class TargetLun(NamedTuple):
    """A LUN behind a target."""

    access: Access
    info: LunInfo

    def opened(self, deadline: Deadline) -> ContextManager[OpenLun]:
        """Open the LUN for reading, for the block. Raises RelvmoiscsiError."""
        scsi_id = str(self.info.scsi_id)
        return session_to_read(scsi_id, partial(self.access.lun, self.info.number, scsi_id=scsi_id), deadline)


def luns_of_srs(xapi: Xapi, host_uuid: str, deadline: Deadline) -> Tuple[Dict[str, TargetLun], List[str]]:
    """Return the LUNs by SCSIid, and a sentence for each target that gave no complete list. Raises nothing."""
    try:
        ref = xapi.call("host.get_by_uuid", host_uuid)
        host, srs, pbds = xapi.call("host.get_record", ref), xapi.records("SR"), xapi.records("PBD")
    except RelvmoiscsiError as problem:
        return {}, [f"Which targets this host uses is not known: {problem.told}"]
    configs = [
        pbd["device_config"]
        for pbd in pbds.values()
        if pbd["host"] == ref and srs.get(pbd["SR"], {}).get("type") == ISCSI_SR.stock
    ]
    alike = {(config.get("target"), config.get("targetIQN"), config.get("port")): config for config in configs}
    problems: List[str] = []
    asked: List[Access] = []
    for config in alike.values():
        try:
            asked.append(access_of(IscsiConfig(config), host, xapi, lambda _secret: None))
        except RelvmoiscsiError as problem:
            problems.append(_unknown(config.get("targetIQN", ""), said(config.get("target", "")), problem))
    found: Dict[str, TargetLun] = {}
    for luns, reason in Workers(LISTED_AT_ONCE).run([partial(_luns, access, deadline) for access in asked]):
        for lun in luns:
            found.setdefault(str(lun.info.scsi_id), lun)
        problems += [reason] if reason else []
    return found, sorted(problems)


def _unknown(iqn: str, address: str, problem: RelvmoiscsiError) -> str:
    return f"The LUNs behind {said(iqn) if iqn else 'the targets'} at {address} are not known: {problem.told}"


def _luns(asked: Access, deadline: Deadline) -> Tuple[List[TargetLun], str]:
    """Return the LUNs behind a target, and why the list is incomplete; "" for a complete list.

    Where the device-config names no IQN, or `*`, the targets are all that the portals offer.
    """
    found: List[TargetLun] = []
    unread = 0
    try:
        targets = [asked]
        if not asked.config.target_iqn:
            offered = asked.discovered(deadline.part(TARGET_SECONDS))
            targets = [asked.to(iqn, portals) for iqn, portals in offered.items()]
        for access in targets:
            luns = access.luns(deadline.part(TARGET_SECONDS))
            found += [TargetLun(access, info) for info in luns.disks if info.scsi_id is not None]
            unread += luns.left_out
    except RelvmoiscsiError as problem:
        return found, _unknown(asked.config.target_iqn, str(asked.portals[0]), problem)
    if unread:
        most = f"{MOST_LUNS} LUNs of a target are read at most"
        return found, f"{counted(unread, 'LUN')} behind {asked.portals[0]} are not known: {most}."
    return found, ""
