# SPDX-License-Identifier: LGPL-2.1-only
"""The lists that lvmoiscsi prints on stderr when a key is missing: orchestrators find targets and LUNs that way.

Source: SM drivers/BaseISCSI.py (print_entries, print_LUNs); docs/host.rst, "Lists on stderr".
"""

from typing import Dict, Iterable, List, Sequence, Tuple

from relvmoiscsi.host.iscsi.iscsiadm import Target
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.sessions import LunFacts, Session, facts_of
from relvmoiscsi.host.xapi.xml_rpc import escaped
from relvmoiscsi.sr_driver.iscsi.config import ANY_IQN, DEFAULT_PORT


def luns_of(sessions: Iterable[Session]) -> List[LunFacts]:
    """What is known of the LUNs of some sessions, each SCSIid once."""
    found: Dict[str, LunFacts] = {}
    for session in sessions:
        for lun in session.luns:
            facts = facts_of(lun)
            if facts is not None:
                found.setdefault(facts.scsi_id, facts)
    return sorted(found.values(), key=lambda facts: facts.lun.number)


def lun_list(luns: Sequence[LunFacts]) -> str:
    """The XML of error 107."""
    return _document(
        "iscsi-target",
        "LUN",
        (
            (
                ("vendor", facts.vendor),
                ("serial", facts.serial),
                ("LUNid", str(facts.lun.number)),
                ("size", str(facts.size_bytes)),
                ("SCSIid", facts.scsi_id),
            )
            for facts in luns
        ),
    )


def not_there(scsi_id: str, iqn: str, seconds: float, shown: Iterable[Tuple[int, str]]) -> str:
    """The sentence for a LUN that is not behind a target.

    `shown`: number and SCSIid ("" where a LUN tells none) of each LUN that the target shows to this host.
    """
    there = [f"LUN {number} ({scsi or 'without a SCSIid'})" for number, scsi in sorted(set(shown))]
    what = "the target shows {}".format(", ".join(there)) if there else "the target shows this host no LUN"
    return f"No LUN with the SCSIid {scsi_id} appeared behind {iqn} within {seconds:g} seconds; {what}."


def target_list(targets: Sequence[Target], asked: Portal) -> str:
    """The XML of error 96. SM ends it with an entry for all targets of the portal that it was asked for."""
    places = [(target.portal, target.iqn) for target in targets] + [(asked, ANY_IQN)]
    return _document(
        "iscsi-target-iqns",
        "TGT",
        ([("Index", str(index)), *_place(portal), ("TargetIQN", iqn)] for index, (portal, iqn) in enumerate(places)),
    )


def _place(portal: Portal) -> List[Tuple[str, str]]:
    port = [("Port", str(portal.port))] if portal.port != DEFAULT_PORT else []
    return [("IPAddress", portal.address), *port]


def _document(root: str, item: str, rows: Iterable[Sequence[Tuple[str, str]]]) -> str:
    lines = ['<?xml version="1.0" ?>', f"<{root}>"]
    for row in rows:
        lines.append(f"\t<{item}>")
        for name, text in row:
            lines += [f"\t\t<{name}>", "\t\t\t" + escaped(text), f"\t\t</{name}>"]
        lines.append(f"\t</{item}>")
    lines.append(f"</{root}>")
    return "\n".join(lines) + "\n"
