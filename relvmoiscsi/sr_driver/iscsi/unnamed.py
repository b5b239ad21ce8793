# SPDX-License-Identifier: LGPL-2.1-only
"""The answers to a call that names no target or no LUN: the lists that lvmoiscsi prints on stderr.

Orchestrators find targets and LUNs with these lists. Source: SM drivers/BaseISCSI.py (print_entries, print_LUNs);
docs/host.rst, "Lists on stderr".
"""

from typing import Dict, List, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.target_sessions import ends_all, in_turn
from relvmoiscsi.portal import DEFAULT_PORT, Portal
from relvmoiscsi.sr_driver.iscsi.iscsi_config import ANY_IQN
from relvmoiscsi.sr_driver.iscsi.target_access import Access
from relvmoiscsi.sr_driver.protocol import list_document, list_element, said_left_out
from relvmoiscsi.sr_driver.transport import MissingKey
from relvmoiscsi.sr_types import MOST_LUNS


def missing_key(access: Access, deadline: Deadline) -> MissingKey:
    """Return the error for a missing IQN, with the targets of each portal; or for a missing SCSIid, with the LUNs."""
    if not access.config.target_iqn:
        targets: List[Tuple[Portal, str]] = []
        failures: List[RelvmoiscsiError] = []
        for portal, seconds in in_turn(access.portals, deadline):
            try:
                offered = access.discovered(deadline.part(seconds), [portal])
                targets += [(at, iqn) for iqn, portals in offered.items() for at in portals]
            except RelvmoiscsiError as failure:
                if ends_all(failure, access.credentials):
                    raise
                failures.append(failure)
        if failures and not targets:
            raise failures[0]
        text = "The target's IQN (device-config:targetIQN) is missing or incorrect."
        asked = access.config.target, access.config.portals[0].port
        left_out = max(0, len(targets) - MOST_LUNS)
        text += said_left_out(left_out, "target")
        return MissingKey(text, "ConfigTargetIQNMissing", target_list(targets[:MOST_LUNS], asked, left_out))
    found = access.luns(deadline)
    text = "The SCSIid (device-config:SCSIid) is missing." + said_left_out(found.left_out, "LUN")
    return MissingKey(text, "ConfigSCSIid", lun_list(found.disks, found.left_out))


def lun_list(luns: Sequence[LunInfo], left_out: int = 0) -> str:
    """Return the XML of error 107: each SCSIid once, in the order of Linux's LUN numbers."""
    found: Dict[str, LunInfo] = {}
    for lun in sorted(luns, key=lambda lun: lun.kernel_number):
        if lun.scsi_id:
            found.setdefault(lun.scsi_id, lun)
    lines: List[str] = []
    for lun in found.values():
        rows = [("vendor", lun.vendor), ("serial", lun.serial), ("LUNid", str(lun.kernel_number))]
        lines += list_element("LUN", [*rows, ("size", str(lun.size_bytes)), ("SCSIid", lun.scsi_id or "")])
    return list_document("iscsi-target", lines, left_out)


def target_list(targets: Sequence[Tuple[Portal, str]], asked: Tuple[str, int], left_out: int = 0) -> str:
    """Return the XML of error 96. As in SM, the last entry stands for all targets of the portal.

    `asked` is `target` of the device-config, perhaps with several addresses, and the port.
    """
    lines: List[str] = []
    for index, ((address, number), iqn) in enumerate([*targets, (asked, ANY_IQN)]):
        port = [("Port", str(number))] if number != DEFAULT_PORT else []
        lines += list_element("TGT", [("Index", str(index)), ("IPAddress", address), *port, ("TargetIQN", iqn)])
    return list_document("iscsi-target-iqns", lines, left_out)
