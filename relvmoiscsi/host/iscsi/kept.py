# SPDX-License-Identifier: LGPL-2.1-only
"""What is ours still: the disks of sessions and scans of our calls that a later call is to end.

Nobody else had them before, and some of them are clones that nobody has resignatured so far. So LVM does not see them
until they have gone or are others'; a line of SM in its session reference file makes them others' at once. The notes
tell (notes.py), those of calls that were killed, or could not end what they had brought, as those of calls at work.
"""

import logging
from typing import Any, List, Mapping, Set

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.iscsi.notes import noted, noted_users
from relvmoiscsi.host.iscsi.sessions import Lun, Session, error_timeouts, sessions_of
from relvmoiscsi.host.locks.sm_locks import SessionReferences
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)


def kept_disks(host: Host = THIS_HOST) -> Set[str]:
    """The disks ("sdb") of this boot that calls of ours have brought and are to take away. Raises Refused."""
    found = []
    for facts in noted(host):
        if facts.get("iqn") and facts.get("boot") == host.boot_id:
            found += _kept_by(facts, host)
    return {lun.disk for lun in found if lun.disk is not None}


def late_sessions(host: Host = THIS_HOST) -> List[Session]:
    """The sessions that iscsid has made when their calls had ended, and that no SR uses: a later call ends them."""
    late = [
        one for facts in _unanswered(host) for one in sessions_of(facts["iqn"], host=host) if _is_of(one, facts, host)
    ]
    return [session for session in late if not _others(session.iqn, host)]


def is_awaited(iqn: str, host: Host = THIS_HOST) -> bool:
    """May iscsid make a session to the target yet, for a login that was given up?"""
    return any(facts["iqn"] == iqn for facts in _unanswered(host))


def _unanswered(host: Host) -> List[Mapping[str, Any]]:
    """The notes of logins that iscsid has not answered, and that nobody waits for any more."""
    left = [facts for facts in noted(host) if facts.get("asked") is not None and facts.get("handed") is not None]
    return [facts for facts in left if facts.get("boot") == host.boot_id]


def _kept_by(facts: Mapping[str, Any], host: Host) -> List[Lun]:
    others = _others(facts["iqn"], host)
    newcomers = others - set(facts.get("others") or [])
    luns: List[Lun] = []
    for session in sessions_of(facts["iqn"], host=host):
        if not _is_of(session, facts, host):
            continue
        if facts.get("created") and not others:
            luns += session.luns
        elif not newcomers:
            luns += [lun for lun in session.luns if _is_brought(lun, facts, host)]
    return luns


def _is_of(session: Session, facts: Mapping[str, Any], host: Host) -> bool:
    if facts.get("sid") is not None:
        return bool(session.sid == facts["sid"])
    if not facts.get("created") or not facts.get("marker") or session.sid in (facts.get("sids") or []):
        return False
    return bool(error_timeouts(session, host) == facts["marker"])  # of a login that was cut


def _is_brought(lun: Lun, facts: Mapping[str, Any], host: Host) -> bool:
    """By a scan of that call. While it goes on, whatever was not there before it is."""
    brought = facts.get("brought") or {}
    if lun.scsi_address in brought:
        return bool(scsi_id_of_address(lun.scsi_address, host) == brought[lun.scsi_address])
    return facts.get("scanned") is False and lun.scsi_address not in facts["scanning"]


def other_users(iqn: str, host: Host = THIS_HOST) -> Set[str]:
    """Whose lines are in SM's session reference file, but for those of our calls. Raises Refused."""
    runs = noted_users(host, iqn)  # one that ends meanwhile takes its line away and then its note
    return set(SessionReferences(host).users(iqn)) - runs - noted_users(host, iqn)


def _others(iqn: str, host: Host) -> Set[str]:
    """The same; of a file that cannot be read nobody's: doctor tells."""
    try:
        return other_users(iqn, host)
    except Refused as problem:
        log.warning("whether an SR uses %s is not known: %s", iqn, problem)
        return set()
