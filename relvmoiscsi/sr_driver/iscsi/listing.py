# SPDX-License-Identifier: LGPL-2.1-only
"""The lists that lvmoiscsi prints on stderr when a key is missing: orchestrators find targets and LUNs that way.

Source: SM drivers/BaseISCSI.py (print_entries, print_LUNs); docs/host.rst, "Lists on stderr".
"""

from typing import Dict, Iterable, List, Sequence, Tuple

from relvmoiscsi.iscsi.names import LunInfo, Target
from relvmoiscsi.sr_driver.iscsi.config import ANY_IQN, DEFAULT_PORT
from relvmoiscsi.sr_driver.iscsi.portals import Portal
from relvmoiscsi.sr_driver.protocol import escaped


def lun_list(luns: Sequence[LunInfo]) -> str:
    """The XML of error 107: each SCSIid once, by the numbers that Linux gives to LUNs."""
    found: Dict[str, LunInfo] = {}
    for lun in sorted(luns, key=lambda lun: lun.kernel_number):
        if lun.scsi_id:
            found.setdefault(lun.scsi_id, lun)
    return _document(
        "iscsi-target",
        "LUN",
        (
            (
                ("vendor", lun.vendor),
                ("serial", lun.serial),
                ("LUNid", str(lun.kernel_number)),
                ("size", str(lun.size_bytes)),
                ("SCSIid", lun.scsi_id or ""),
            )
            for lun in found.values()
        ),
    )


def target_list(targets: Sequence[Target], asked: Portal) -> str:
    """The XML of error 96. SM ends it with an entry for all targets of the portal that it was asked for."""
    offered = [(Portal(*portal), target.iqn) for target in targets for portal in target.portals]
    places = [*offered, (asked, ANY_IQN)]
    return _document(
        "iscsi-target-iqns",
        "TGT",
        ([("Index", str(index)), *_place(portal), ("TargetIQN", iqn)] for index, (portal, iqn) in enumerate(places)),
    )


def _place(portal: Portal) -> List[Tuple[str, str]]:
    port = [("Port", str(portal.port))] if portal.port != DEFAULT_PORT else []
    return [("IPAddress", portal.host), *port]


def _document(root: str, item: str, rows: Iterable[Sequence[Tuple[str, str]]]) -> str:
    lines = ['<?xml version="1.0" ?>', f"<{root}>"]
    for row in rows:
        lines.append(f"\t<{item}>")
        for name, text in row:
            lines += [f"\t\t<{name}>", "\t\t\t" + escaped(text), f"\t\t</{name}>"]
        lines.append(f"\t</{item}>")
    lines.append(f"</{root}>")
    return "\n".join(lines) + "\n"
