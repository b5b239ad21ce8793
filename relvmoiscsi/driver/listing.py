# SPDX-License-Identifier: LGPL-2.1-only
"""The lists that lvmoiscsi prints on stderr when a key is missing: orchestrators find targets and LUNs that way.

Source: SM drivers/BaseISCSI.py (print_entries, print_LUNs); facts/xapi-plugin.md 3.2.
"""

from typing import Dict, Iterable, List, Sequence, Tuple
from xml.sax.saxutils import escape

from relvmoiscsi.host.iscsi_admin import Target
from relvmoiscsi.host.iscsi_sessions import LunFacts, Session, facts_of


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


def target_list(targets: Sequence[Target]) -> str:
    """The XML of error 96."""
    return _document(
        "iscsi-target-iqns",
        "TGT",
        (
            (("Index", str(index)), ("IPAddress", target.portal.address), ("TargetIQN", target.iqn))
            for index, target in enumerate(targets)
        ),
    )


def _document(root: str, item: str, rows: Iterable[Sequence[Tuple[str, str]]]) -> str:
    lines = ['<?xml version="1.0" ?>', "<{}>".format(root)]
    for row in rows:
        lines.append("\t<{}>".format(item))
        for name, text in row:
            lines += ["\t\t<{}>".format(name), "\t\t\t" + escape(text), "\t\t</{}>".format(name)]
        lines.append("\t</{}>".format(item))
    lines.append("</{}>".format(root))
    return "\n".join(lines) + "\n"
