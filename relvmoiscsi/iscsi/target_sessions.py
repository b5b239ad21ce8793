# SPDX-License-Identifier: LGPL-2.1-only
"""Sessions to a target: portals in turn, redirections, CHAP algorithms; and discovery.

The ISID of a session that writes is a function of host, target and LUN. So a new session of this host ends the session
of a killed call, with the writes that were on their way, before the target answers the login (RFC 7143 6.3.5).
Sessions that only read have random ISIDs, or a reader would end a writer. Every ISID is of the random kind, 0x80:
the ISIDs of open-iscsi begin with 00 02 3d, so no session of the kernel is ended.
"""

import hashlib
import logging
import os
import time
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.iscsi import chap
from relvmoiscsi.iscsi.connect import Unreachable, connect
from relvmoiscsi.iscsi.faults import (
    AUTHENTICATION_FAILED,
    NOT_ALLOWED,
    Closed,
    LoginRefused,
    Lost,
    NoCommonAlgorithm,
    Redirected,
    Unproven,
    Violation,
)
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.login import Wanted
from relvmoiscsi.iscsi.names import NO_CREDENTIALS, Credentials, Initiator, Target
from relvmoiscsi.iscsi.text_keys import pack, unpack
from relvmoiscsi.portal import Portal, parse_address

log = logging.getLogger(__name__)

MAX_REDIRECTIONS = 6
PORTAL_SECONDS = 8.0  #: that one of several portals may be silent
_TRIES, _TRY_SECONDS = 5, 1.0  #: at a target that is not in service for now
_MAX_PAUSE_SECONDS = 1.0  #: between sessions that are lost one after the other
_RANDOM_ISID = b"\x80"


def isid_of_reader() -> bytes:
    """The ISID of a session that only reads; no other session has this ISID."""
    return _RANDOM_ISID + os.urandom(5)


def isid_of_writer(host_uuid: str, iqn: str, scsi_id: str) -> bytes:
    """The ISID of every session of this host that writes to the LUN. Source: RFC 7143 11.12.5."""
    if not host_uuid:
        raise UsageError("The UUID of this host is needed to write to a LUN over iSCSI.")
    return _RANDOM_ISID + hashlib.sha256("\0".join((host_uuid, iqn, scsi_id)).encode("utf-8")).digest()[:5]


class TargetSessions:
    """Sessions to one target, all with one ISID."""

    def __init__(
        self,
        portals: Sequence[Portal],
        iqn: str,
        initiator: Initiator,
        credentials: Credentials,
        deadline: Deadline,
        isid: bytes,
    ) -> None:
        if not initiator.name:
            raise UsageError("This host has no iSCSI initiator name. Set the IQN of the host.", "ConfigISCSIIQNMissing")
        self.portals, self.iqn, self.initiator = tuple(portals), iqn, initiator
        self.credentials, self.deadline, self.isid = credentials, deadline, isid
        self._last = self.portals[0]  # which gave the last session
        self._skipped: List[Portal] = []  # whose paths to the LUN are standby
        self._offered: Optional[List[Portal]] = None  # by the target itself, once asked
        self._algorithms = chap.available(chap.FIRST) or chap.available(chap.FALLBACK)

    def log_in(self) -> Link:
        """A session through the first portal that gives one. Raises what the login raises."""
        failures: List[RelvmoiscsiError] = []
        for portal, seconds in in_turn(self._open_portals(), self.deadline):
            try:
                return self._log_in_patiently(portal, self.deadline.part(seconds))
            except OutOfTime as over:
                if self.deadline.has_passed:
                    raise
                failures.append(Lost(f"{portal} did not take the login within {seconds:.1f} seconds."))
                log.info("%s: %s", portal, over.message)
            except (NotFound, Refused) as failure:
                log.info("%s: %s", portal, failure)
                failures.append(failure)
        self.deadline.check("the login")
        refusals = [failure for failure in failures if isinstance(failure, Refused)]
        raise (refusals or failures)[0]

    def log_in_again(self, attempt: int) -> Link:
        """A session in the place of one that was lost, with the same ISID: the target ends the old one.

        `attempt` counts from 1 how often in a row a session was lost. Raises LoginRefused where no attempt will help,
        and OutOfTime, which says what has happened.
        """
        failure = ""
        pause = 0.0 if attempt < 2 else min(_MAX_PAUSE_SECONDS, 0.05 * 2**attempt)
        while True:
            time.sleep(self.deadline.within(pause))
            pause = min(_MAX_PAUSE_SECONDS, max(0.1, 2 * pause))
            for portal, seconds in in_turn(self._open_portals(), self.deadline):
                try:
                    return self._log_in(portal, self.deadline.part(seconds))
                except Unproven:
                    raise
                except LoginRefused as refused:
                    if refused.status in (AUTHENTICATION_FAILED, NOT_ALLOWED):
                        raise
                    failure = refused.message
                except OutOfTime:
                    failure = failure or f"{portal} did not answer in time."
                except (NotFound, Refused) as problem:
                    failure = problem.message
                log.info("%s: %s", portal, failure)
            if self.deadline.has_passed:
                raise self.deadline.over("a new session could be made. " + failure)

    def next_portal(self) -> bool:
        """Have the next session come through another portal of the target; False when all have been tried."""
        self._skipped.append(self._last)
        if not self._open_portals() and self._offered is None:  # the target knows more of itself than the caller
            self._offered = self._portals_offered()
        return bool(self._open_portals())

    def _open_portals(self) -> List[Portal]:
        known = dict.fromkeys([*self.portals, *(self._offered or [])])
        return [portal for portal in known if portal not in self._skipped]

    def _portals_offered(self) -> List[Portal]:
        try:
            targets = discover(self.portals, self.initiator, self.credentials, self.deadline)
        except (NotFound, Refused) as problem:
            log.info("no discovery at %s: %s", self.iqn, problem)
            return []
        return [portal for target in targets if target.iqn == self.iqn for portal in target.portals]

    def _log_in_patiently(self, portal: Portal, deadline: Deadline) -> Link:
        """A session to a target that may be failing over. Raises NotFound (ISCSIDiscovery) where it is not there."""
        for attempt in range(1, _TRIES + 1):
            try:
                return self._log_in(portal, deadline)
            except Unreachable:
                raise
            except (LoginRefused, Lost) as failure:
                passes = isinstance(failure, LoginRefused) and failure.passes
                if attempt == 1 and failure.sm_key == "ISCSILogin":
                    self._verify_offered(portal, deadline, failure, passes)
                if attempt == (_TRIES if passes else 2 if isinstance(failure, Lost) else 1):
                    raise
                if deadline.left < _TRY_SECONDS:
                    raise
                log.info("%s", failure)
            time.sleep(deadline.within(_TRY_SECONDS))
        raise AssertionError("the last attempt gives or raises something")

    def _verify_offered(self, portal: Portal, deadline: Deadline, refused: RelvmoiscsiError, passes: bool) -> None:
        """Raises NotFound where the portal that refused the login has other targets, and not this target.

        LIO says of a target that it does not have that the target is not in service (`passes`), for good.
        """
        try:
            offered = [target.iqn for target in discover([portal], self.initiator, self.credentials, deadline)]
        except (NotFound, Refused) as problem:
            log.info("which targets %s has is not known: %s", portal, problem)
            return
        if self.iqn not in offered and (offered or passes):
            raise NotFound(
                f"{portal} has no target {self.iqn} for this host. Check the IQN, and whether the array shows the "
                f"target to this initiator. {refused.message}",
                "ISCSIDiscovery",
            ) from refused

    def _log_in(self, portal: Portal, deadline: Deadline) -> Link:
        link = self._with_any_algorithm(portal, deadline)
        link.deadline, self._last = self.deadline, portal
        log.info("logged in to %s at %s", self.iqn, link.portal)
        return link

    def _with_any_algorithm(self, portal: Portal, deadline: Deadline) -> Link:
        try:
            return self._at_any_address(portal, deadline)
        except NoCommonAlgorithm:
            if self._algorithms == chap.FALLBACK:
                raise
            self._algorithms = chap.FALLBACK
            return self._at_any_address(portal, deadline)

    def _at_any_address(self, portal: Portal, deadline: Deadline) -> Link:
        """Log in where the target redirects to."""
        wanted = Wanted("", self.initiator.name, self.iqn, self.credentials, self._algorithms)
        place = portal
        for _ in range(MAX_REDIRECTIONS + 1):
            try:
                return _log_in_at(place, wanted, self.initiator, self.isid, deadline)
            except Redirected as redirected:
                place = _place(redirected)
                log.info("%s redirects the login to %s", portal, place)
        raise Refused(
            f"{portal} redirected the login {MAX_REDIRECTIONS + 1} times, and none of the addresses took it. Check the "
            "portals of the array.",
            "ISCSILogin",
        )


def _log_in_at(portal: Portal, wanted: Wanted, initiator: Initiator, isid: bytes, deadline: Deadline) -> Link:
    link = Link(connect(portal, initiator.interface, deadline), portal, deadline)
    try:
        link.log_in(wanted._replace(where=str(portal)), isid, os.urandom)
    except Violation as problem:
        link.close(politely=False)
        raise Violation(f"{portal} does not log in as RFC 7143 wants it. {problem.message}") from problem
    except BaseException:
        link.close(politely=False)
        raise
    return link


def _place(redirected: Redirected) -> Portal:
    try:
        return parse_address(redirected.address)
    except ValueError as error:
        raise Refused(f"{redirected.message} But {error}.", "ISCSILogin") from error


def in_turn(portals: Sequence[Portal], deadline: Deadline) -> Iterator[Tuple[Portal, float]]:
    """Each portal with the seconds it may take, so that enough remain for the further portals and for the work."""
    for number, portal in enumerate(portals):
        further = len(portals) - 1 - number
        yield portal, min(PORTAL_SECONDS, deadline.left / (further + 2)) if further else deadline.left


def discover(
    portals: Sequence[Portal], initiator: Initiator, credentials: Credentials, deadline: Deadline
) -> List[Target]:
    """The targets that the first portal to answer names (SendTargets).

    Raises NotFound (DNSError, ISCSITarget), Refused (ISCSILogin), OutOfTime.
    """
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(portals, deadline):
        try:
            return _discover_at(portal, initiator, credentials, deadline.part(seconds))
        except (NotFound, Refused) as failure:
            log.info("%s: %s", portal, failure)
            failures.append(failure)
    deadline.check("the discovery")
    refusals = [failure for failure in failures if isinstance(failure, Refused)]
    raise (refusals or failures)[0]


def _discover_at(portal: Portal, initiator: Initiator, credentials: Credentials, deadline: Deadline) -> List[Target]:
    """Without CHAP first: many targets want none for this, and some refuse it. With CHAP where that is refused."""
    try:
        return _send_targets(portal, initiator, NO_CREDENTIALS, deadline)
    except (LoginRefused, Closed) as refused:
        if not credentials.user:
            raise
        log.info("%s; now with CHAP", refused)
        return _send_targets(portal, initiator, credentials, deadline)


def _send_targets(portal: Portal, initiator: Initiator, credentials: Credentials, deadline: Deadline) -> List[Target]:
    sessions = TargetSessions([portal], "", initiator, credentials, deadline, isid_of_reader())
    link = sessions._with_any_algorithm(portal, deadline)
    try:
        link.session.ask(pack([("SendTargets", "All")]))
        link.wait(lambda: link.session.text_is_done, f"the discovery at {portal}")
        return targets_in(link.session.take_text(), portal)
    finally:
        link.close(politely=True)


def targets_in(text: bytes, portal: Portal) -> List[Target]:
    """What SendTargets gives; a target without an address is at the portal that was asked. Raises Violation."""
    found: Dict[str, List[Portal]] = {}
    portals: List[Portal] = []
    for name, value in unpack(text):
        if name == "TargetName":
            portals = found.setdefault(value, [])
        elif name == "TargetAddress":
            try:
                portals.append(parse_address(value))
            except ValueError as error:
                log.info("%s names an address that is none: %s", portal, error)
    return [Target(iqn, tuple(dict.fromkeys(places or [portal]))) for iqn, places in found.items()]
