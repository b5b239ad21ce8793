# SPDX-License-Identifier: LGPL-2.1-only
"""The answers to a call that does not name its LUN: what it could be."""

from typing import List

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.iscsi.names import Target
from relvmoiscsi.iscsi.opening import list_luns
from relvmoiscsi.iscsi.target_sessions import PORTAL_SECONDS
from relvmoiscsi.sr_driver.iscsi import listing
from relvmoiscsi.sr_driver.iscsi.access import Access
from relvmoiscsi.sr_driver.iscsi.portals import Portal
from relvmoiscsi.sr_driver.transport import Listed


def verify_named(access: Access, deadline: Deadline) -> None:
    """Raises Listed when the IQN or the SCSIid is missing."""
    with terminated.waiting():
        if not access.config.target_iqn:
            raise missing_iqn(access, deadline)
        if not access.config.scsi_id:
            raise missing_scsi_id(access, deadline)


def missing_iqn(access: Access, deadline: Deadline) -> Listed:
    """The answer without targetIQN: what each of the portals offers."""
    targets: List[Target] = []
    failures: List[RelvmoiscsiError] = []
    for number, portal in enumerate(access.portals):
        further = len(access.portals) - 1 - number
        seconds = min(PORTAL_SECONDS, deadline.left / (further + 2)) if further else deadline.left
        try:
            targets += access.discovered(deadline.part(seconds), [portal])
        except RelvmoiscsiError as failure:
            failures.append(failure)
    if failures and not targets:
        raise failures[0]
    text = "The target's IQN (device-config:targetIQN) is missing or incorrect."
    asked = Portal(access.config.target, access.config.portals[0].port)
    return Listed(text, "ConfigTargetIQNMissing", listing.target_list(targets, asked))


def missing_scsi_id(access: Access, deadline: Deadline) -> Listed:
    """The answer without SCSIid: the LUNs behind the target."""
    text, iqn = "The SCSIid (device-config:SCSIid) is missing.", access.config.target_iqn
    try:
        luns = access.in_turn(lambda one: list_luns(access.portals, iqn, one, deadline, access.credentials))
    except RelvmoiscsiError as failure:
        raise access.login_failure(failure, deadline) from failure
    return Listed(text, "ConfigSCSIid", listing.lun_list(luns))
