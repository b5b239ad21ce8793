# SPDX-License-Identifier: LGPL-2.1-only
"""The answers to a call that does not name its LUN: what it could be."""

from typing import Callable, List, Sequence

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.iscsi.iscsiadm import Target
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.reach import in_turn, reach
from relvmoiscsi.host.iscsi.sessions import session_by_id
from relvmoiscsi.sr_driver.iscsi import listing
from relvmoiscsi.sr_driver.iscsi.access import Access, log_in, log_out
from relvmoiscsi.sr_driver.transport import Listed


def verify_named(access: Access, read_ids: Callable[[], Sequence[str]]) -> None:
    """Raises Listed when the IQN or the SCSIid is missing. `read_ids`: the SCSIids that the pool names."""
    if not access.config.target_iqn:
        raise missing_iqn(access)
    if not access.config.scsi_id:
        raise missing_scsi_id(access, read_ids())


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


def missing_scsi_id(access: Access, ids_of_pool: Sequence[str]) -> Listed:
    """The answer without SCSIid: the LUNs behind the target."""
    with udev.hidden_target(access.config.target_iqn, ids_of_pool, known_now=access.ids_in_the_end):
        return _listed_luns(access)


def _listed_luns(access: Access) -> Listed:
    text = "The SCSIid (device-config:SCSIid) is missing."
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(access.config.portals, access.deadline):
        try:
            login = log_in(access, portal, seconds)
        except RelvmoiscsiError as failure:
            failures.append(failure)
            continue
        try:
            session = access.open_iscsi().rescan(login)
            found = listing.luns_of([session_by_id(session.sid) or session])
        finally:
            terminated.heed_no_longer()
            log_out(access, login)
        return Listed(text, "ConfigSCSIid", listing.lun_list(found))
    raise failures[0]
