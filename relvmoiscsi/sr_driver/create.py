# SPDX-License-Identifier: LGPL-2.1-only
"""sr_create: reach the LUN, resignature it, leave the host as it was."""

import logging
import os
from typing import Any, Dict, List, Optional

from relvmoiscsi.errors import Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk import multipath, udev
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.iscsi.iscsiadm import Credentials, Target
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.reach import in_turn, reach
from relvmoiscsi.host.iscsi.sessions import session_by_id
from relvmoiscsi.host.own_process import AskingDevice, Begin, apart
from relvmoiscsi.host.settings import OneVdiSetting, one_vdi
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure
from relvmoiscsi.host.xapi.lun_users import read_pool, verify_unused
from relvmoiscsi.sr_driver import listing
from relvmoiscsi.sr_driver.attach import Access, attached, log_out
from relvmoiscsi.sr_driver.config import Chap, Config
from relvmoiscsi.sr_driver.protocol import Call

log = logging.getLogger(__name__)


class Listed(UsageError):
    """A key is missing; `listing` is the XML of what it could be."""

    def __init__(self, message: str, sm_key: str, xml: str) -> None:
        super().__init__(message, sm_key)
        self.xml = xml


def sr_create(call: Call, config: Config, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline) -> str:
    """Give the LUN new identities; gives the new SR UUID. Raises RelvmoiscsiError.

    No write begins after the deadline; what has begun goes on to its end.
    """
    if not config.is_master:
        raise Refused("A resignature runs on the pool's master.", "LVMMaster").in_state("Nothing was written.")
    access = access_of(call, config, xapi, smlog, deadline)
    if not config.target_iqn:
        raise missing_iqn(access)
    if not config.scsi_id:
        raise missing_scsi_id(access)
    asked = one_vdi(config.vdis)
    if config.vdi is not None and asked is None:
        problem = "device-config:vdi names the one VDI that stays; say device-config:vdis=one as well."
        raise UsageError(problem, "InvalidArg").in_state("Nothing was written.")
    verify_unused(config.scsi_id, read_pool(xapi), call.sr_ref)
    log.info("sr_create: LUN %s behind %s", config.scsi_id, config.target_iqn)
    with attached(access, meanwhile=_load_engine) as path:
        return apart(
            lambda begin: _resignatured(path, config, asked, deadline, begin), deadline, "the LUN had been read"
        )


def _resignatured(path: str, config: Config, asked: Optional[OneVdiSetting], deadline: Deadline, begin: Begin) -> str:
    """Its SR is not the one that xapi has a row of during this call.

    Should xapi die, that row stays, and a second SR of the same UUID could never be introduced.
    """
    from relvmoiscsi.resignature.one_vdi.choice import Request  # noqa: PLC0415 - see _load_engine
    from relvmoiscsi.sr_driver.rewrite import LOCK_SECONDS, resignatured  # noqa: PLC0415 - the same

    one = Request(config.vdi, asked.most_bytes, asked.note) if asked is not None else None
    with open_device(path, writable=True, lock_timeout=deadline.within(LOCK_SECONDS)) as device:
        return resignatured(AskingDevice(device, begin), config.scsi_id, "", deadline, one)


def _load_engine() -> None:
    """While udev is busy with the disk there is nothing else to do; a call that ends before needs no engine."""
    import relvmoiscsi.sr_driver.rewrite  # noqa: F401, PLC0415


def access_of(call: Call, config: Config, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline) -> Access:
    """What is needed to reach the LUN; passwords come from xapi, and are hidden from the log at once."""
    host = _host(call, xapi)
    other_config: Dict[str, str] = dict(host.get("other_config", {}))
    wanted = config.local_iqn or other_config.get("iscsi_iqn") or host.get("iscsi_iqn") or None
    return Access(
        config=config,
        chap=_credentials(config.chap, xapi, smlog),
        incoming_chap=_credentials(config.incoming_chap, xapi, smlog),
        initiator=OpenIscsi().iscsiadm.check_initiator(wanted),
        multipathing=multipath.is_on(call.device_config, other_config),
        sr_uuid=call.sr_uuid or _passing_uuid(),
        deadline=deadline,
    )


def _passing_uuid() -> str:
    """For a call without an SR, a probe: SM counts UUIDs only, and must not log out under it either."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _host(call: Call, xapi: Xapi) -> Dict[str, Any]:
    try:
        found: Dict[str, Any] = xapi.call("host.get_record", call.host_ref)
        return found
    except XapiFailure as failure:
        failure.sm_key = "APILocalhost"
        raise


def _credentials(chap: Optional[Chap], xapi: Xapi, smlog: SmLogHandler) -> Optional[Credentials]:
    if chap is None:
        return None
    password = xapi.secret(chap.password.value) if chap.password.is_secret_uuid else chap.password.value
    smlog.hide(password)
    return Credentials(chap.user, password)


# --- a missing key


def missing_iqn(access: Access) -> Listed:
    """The answer without targetIQN: what the portals offer."""
    targets: List[Target] = []
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(access.config.portals, access.deadline):
        try:
            reached = reach(portal, deadline=access.deadline.part(seconds))
            targets += access.open_iscsi(seconds).discover(reached, access.chap)
        except RelvmoiscsiError as failure:
            failures.append(failure)
    if failures and not targets:
        raise failures[0]
    text = "The target's IQN (device-config:targetIQN) is missing or incorrect."
    asked = Portal(access.config.target, access.config.portals[0].port)
    return Listed(text, "ConfigTargetIQNMissing", listing.target_list(targets, asked))


def missing_scsi_id(access: Access) -> Listed:
    """The answer without SCSIid: the LUNs behind the target."""
    with udev.hidden_target(access.config.target_iqn):
        return _listed_luns(access)


def _listed_luns(access: Access) -> Listed:
    text = "The SCSIid (device-config:SCSIid) is missing."
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(access.config.portals, access.deadline):
        try:
            login = access.open_iscsi(seconds).login(
                reach(portal, deadline=access.deadline.part(seconds)),
                access.config.target_iqn,
                access.chap,
                access.incoming_chap,
                initiator=access.initiator,
                user=access.sr_uuid or None,
            )
        except RelvmoiscsiError as failure:
            failures.append(failure)
            continue
        try:
            session = access.open_iscsi().rescan(login)
            found = listing.luns_of([session_by_id(session.sid) or session])
        finally:
            log_out(access, login)
        return Listed(text, "ConfigSCSIid", listing.lun_list(found))
    raise failures[0]
