# SPDX-License-Identifier: LGPL-2.1-only
"""The LUNs behind the iSCSI targets that the SRs of this host name, for the host plugin.

They are asked for over sessions of this process, which only read, as the initiator that this host is and with the CHAP
of the PBD. So a clone is found that no kernel session has shown yet, and nothing of it comes to the host.
"""

from contextlib import contextmanager
from functools import partial
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from relvmoiscsi.cli.over_iscsi import each_at_once
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.iscsi import Credentials, Initiator, LunDevice, LunInfo, Portal, discover, list_luns, open_lun
from relvmoiscsi.sr_driver.iscsi.config import Chap, Config, parse_config

TARGET_SECONDS = 20.0  #: for a target to list its LUNs
_TYPE = "lvmoiscsi"


class SrTarget(NamedTuple):
    """A target, and what a login to it takes."""

    portals: Tuple[Portal, ...]
    iqn: str
    initiator: Initiator
    credentials: Credentials


class TargetLun(NamedTuple):
    """A LUN behind a target."""

    target: SrTarget
    info: LunInfo

    @property
    def url(self) -> str:
        return f"iscsi://{self.target.portals[0]}/{self.target.iqn}/{self.info.number}"

    @contextmanager
    def opened(self, deadline: Deadline) -> Iterator[LunDevice]:
        """The LUN, to be read, for the block. Raises RelvmoiscsiError."""
        to, info = self.target, self.info
        with open_lun(
            to.portals, to.iqn, to.initiator, info.number, False, deadline, to.credentials, scsi_id=info.scsi_id
        ) as device:
            yield device


def luns_of_srs(xapi: Xapi, host_uuid: str, deadline: Deadline) -> Tuple[Dict[str, TargetLun], List[str]]:
    """The LUNs by SCSIid, and a sentence for each target whose LUNs are not known. Nothing is raised."""
    try:
        ref = xapi.call("host.get_by_uuid", host_uuid)
        host, srs, pbds = xapi.call("host.get_record", ref), xapi.records("SR"), xapi.records("PBD")
    except RelvmoiscsiError as problem:
        return {}, [f"Which targets this host uses is not known: {problem.message}"]
    name = host["other_config"].get("iscsi_iqn") or host.get("iscsi_iqn")
    if not name:
        return {}, ["No target was asked: xapi has no iSCSI initiator name of this host."]
    initiator = Initiator(str(name), host_uuid)
    configs = [
        pbd["device_config"]
        for pbd in pbds.values()
        if pbd["host"] == ref and srs.get(pbd["SR"], {}).get("type") == _TYPE
    ]
    alike = {(config.get("target"), config.get("targetIQN"), config.get("port")): config for config in configs}
    problems: List[str] = []
    asked: List[SrTarget] = []
    for device_config in alike.values():
        try:
            asked.append(_target(xapi, parse_config(device_config), initiator))
        except RelvmoiscsiError as problem:
            problems.append(_unknown(device_config.get("targetIQN", ""), device_config.get("target", ""), problem))
    found: Dict[str, TargetLun] = {}
    for luns, reason in each_at_once([partial(_luns, target, deadline) for target in asked]):
        for lun in luns:
            found.setdefault(str(lun.info.scsi_id), lun)
        problems += [reason] if reason else []
    return found, sorted(problems)


def _target(xapi: Xapi, config: Config, initiator: Initiator) -> SrTarget:
    """Raises XapiFailure."""
    portals = tuple(Portal(*portal) for portal in config.portals)
    credentials = Credentials(*_secret(xapi, config.chap), *_secret(xapi, config.incoming_chap))
    return SrTarget(portals, config.target_iqn, initiator, credentials)


def _unknown(iqn: str, address: object, problem: RelvmoiscsiError) -> str:
    return f"The LUNs behind {iqn or 'the targets'} at {address} are not known: {problem.message}"


def _luns(asked: SrTarget, deadline: Deadline) -> Tuple[List[TargetLun], str]:
    """The LUNs behind a target, and why there are not all of them; "" where there are."""
    found: List[TargetLun] = []
    try:
        for target in _with_iqn(asked, deadline.part(TARGET_SECONDS)):
            where = (target.portals, target.iqn, target.initiator, deadline.part(TARGET_SECONDS), target.credentials)
            found += [TargetLun(target, info) for info in list_luns(*where) if info.scsi_id is not None]
    except RelvmoiscsiError as problem:
        return found, _unknown(asked.iqn, asked.portals[0], problem)
    return found, ""


def _with_iqn(asked: SrTarget, deadline: Deadline) -> List[SrTarget]:
    """The target; where a device-config names none, or all (`*`), each that its portals offer."""
    if asked.iqn:
        return [asked]
    offered = discover(asked.portals, asked.initiator, asked.credentials, deadline)
    return [asked._replace(portals=one.portals or asked.portals, iqn=one.iqn) for one in offered]


def _secret(xapi: Xapi, chap: Optional[Chap]) -> Tuple[str, str]:
    if chap is None:
        return "", ""
    return chap.user, xapi.secret(chap.password.value) if chap.password.is_secret_uuid else chap.password.value
