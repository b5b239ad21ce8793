# SPDX-License-Identifier: LGPL-2.1-only
"""Sessions to a target: portals in turn, redirections, CHAP algorithms; and discovery.

The ISID of a writing session depends on host, target and LUN alone. So a new writing session of this host ends the
session of a killed call, and the outstanding writes of that session. The target ends that session before it answers the
login (RFC 7143 6.3.5).

A session that only reads has a random ISID; otherwise a reader would end a writer. Every ISID is of the random kind,
0x80. The ISIDs of open-iscsi begin with 00 02 3d, so no session of the kernel is ended.
"""

import hashlib
import logging
import os
import re
import time
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.device import Fence
from relvmoiscsi.errors import LoginRefused, Lost, NotFound, Refused, RelvmoiscsiError, Unreachable, UsageError
from relvmoiscsi.iscsi import chap
from relvmoiscsi.iscsi.connect import connect
from relvmoiscsi.iscsi.faults import (
    AUTHENTICATION_FAILED,
    CHECK_TARGET,
    INITIATOR_ERROR,
    NOT_ALLOWED,
    Closed,
    NoCommonAlgorithm,
    NoSuchTarget,
    Redirected,
    Silent,
    Unproven,
    is_of_secret,
    is_temporary,
)
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.names import MAX_NAME_BYTES, NO_CREDENTIALS, Credentials, Initiator
from relvmoiscsi.iscsi.text_keys import pack, unpack
from relvmoiscsi.portal import Portal, parse_address
from relvmoiscsi.wording import said

log = logging.getLogger(__name__)

MAX_REDIRECTIONS = 6
PORTAL_SECONDS = 8.0  #: limit for a silent portal, if there are several portals
_TRIES, _TRY_SECONDS = 5, 1.0  #: at a target that is out of service for now
MAX_PORTALS = 256  #: of one target
_MAX_PAUSE_SECONDS = 1.0  #: between sessions that are lost in a row
_RANDOM_ISID = b"\x80"
#: of a target in a discovery. Source: RFC 7143 4.2.7.1; arrays use `_` and capital letters as well
_NAME = re.compile(f"[A-Za-z0-9._:-]{{1,{MAX_NAME_BYTES}}}")

#: from a discovery: the portals of each target, by its IQN
Targets = Dict[str, Tuple[Portal, ...]]


def isid_of_reader() -> bytes:
    """Return a new ISID for a session that only reads; no other session has this ISID."""
    return _RANDOM_ISID + os.urandom(5)


def isid_of_writer(host_uuid: str, iqn: str, scsi_id: str) -> bytes:
    """Return the ISID of every session of this host that writes to the LUN. Source: RFC 7143 11.12.5."""
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
            raise UsageError("This host has no iSCSI initiator name.", "ConfigISCSIIQNMissing").advising(
                "Set the IQN of the host."
            )
        self.portals, self.iqn, self.initiator = tuple(portals), iqn, initiator
        self.credentials, self.deadline, self.isid = credentials, deadline, isid
        self._last = self.portals[0]  # the portal of the last session
        self._skipped: List[Portal] = []  # portals whose paths to the LUN are standby
        self._offered: Optional[List[Portal]] = None  # the portals from a discovery; None before a discovery
        self._algorithms = chap.available(chap.BEST_FIRST)

    def log_in(self) -> Link:
        """Return a session through the first portal that accepts a login. Raises the errors of the login."""
        failures: List[RelvmoiscsiError] = []
        for portal, seconds in in_turn(self._open_portals(), self.deadline):
            try:
                return self._log_in_retrying(portal, self.deadline.part(seconds))
            except OutOfTime as over:
                if self.deadline.has_passed:
                    raise
                failures.append(Lost(f"{portal} did not take the login within {seconds:.1f} seconds."))
                log.info("%s: %s", portal, over.message)
            except (NotFound, Refused) as failure:
                if ends_all(failure, self.credentials):
                    raise
                log.info("%s: %s", portal, failure)
                failures.append(failure)
        self.deadline.check("the login")
        answered = [failure for failure in failures if isinstance(failure, (Refused, NoSuchTarget))]
        raise (answered or failures)[0]

    def log_in_again(self, attempt: int) -> Link:
        """Return a session in the place of a lost session. The ISID is the same, so the target ends the old session.

        `attempt` counts the sessions that were lost in a row, from 1. Raises LoginRefused if no attempt will help.
        Raises OutOfTime with the last failure.
        """
        failure: Optional[RelvmoiscsiError] = None
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
                    failure = refused
                except OutOfTime:
                    failure = failure or Lost(f"{portal} did not answer in time.")
                except (NotFound, Refused) as problem:
                    failure = problem
            log.info("no new session to %s yet: %s", self.iqn, failure)  # one line, of some hundred portals as well
            if self.deadline.has_passed:
                last = failure or Lost("")
                raise self.deadline.over("a new session could be made", last.message).advising(last.advice)

    def fence(self, name: str) -> Fence:
        """Return the fence of the LUN `name` behind these sessions.

        The target ends each earlier session with the same initiator name and ISID. So what such a session has sent
        cannot change the LUN any more: it has the same writer.
        """
        identity = b"\0".join((b"iSCSI", self.initiator.name.encode("utf-8"), self.isid))
        return Fence.of_writer(name, time.monotonic, identity, os.urandom(4))

    def wait(self, seconds: float) -> None:
        """Wait. Raises OutOfTime where the deadline comes first."""
        time.sleep(self.deadline.within(seconds))
        self.deadline.check("the last write of the earlier run was over")

    def next_portal(self) -> bool:
        """Let the next session use another portal of the target. Return False if all portals have been tried."""
        self._skipped.append(self._last)
        if not self._open_portals() and self._offered is None:  # a discovery may find further portals
            self._offered = []
            try:
                targets = discover(self.portals, self.initiator, self.credentials, self.deadline)
                self._offered = list(targets.get(self.iqn, ()))
            except (NotFound, Refused) as problem:
                log.info("no discovery at %s: %s", self.iqn, problem)
        return bool(self._open_portals())

    def _open_portals(self) -> List[Portal]:
        known = dict.fromkeys([*self.portals, *(self._offered or [])])
        return [portal for portal in known if portal not in self._skipped]

    def _log_in_retrying(self, portal: Portal, deadline: Deadline) -> Link:
        """Return a session to a target that may fail over. Raises NotFound (ISCSIDiscovery) for an unknown target."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._log_in(portal, deadline)
            except Unreachable:
                raise
            except (LoginRefused, Lost) as failure:
                if isinstance(failure, Silent) and attempt > 1:
                    failure.message = (
                        f"{failure.message.rstrip('.')} in each of {attempt} logins. It takes connections."
                    )
                passes = is_temporary(failure)
                if attempt == 1 and failure.sm_key == "ISCSILogin" and not ends_all(failure, self.credentials):
                    self._verify_offered(portal, deadline, failure, passes)
                most = _TRIES if passes else 2 if isinstance(failure, Lost) else 1  # this failure alone decides
                if attempt >= most or deadline.left < _TRY_SECONDS:
                    raise
                log.info("%s", failure)
            time.sleep(deadline.within(_TRY_SECONDS))

    def _verify_offered(self, portal: Portal, deadline: Deadline, refused: RelvmoiscsiError, passes: bool) -> None:
        """Raise NotFound if the portal that refused the login offers other targets, but not this target.

        For a target that does not exist, LIO answers "not in service", a temporary status (`passes`), every time. The
        discovery has no CHAP: a portal that refuses the secret there would get the secret again with the next login.
        """
        try:
            offered = discover([portal], self.initiator, NO_CREDENTIALS, deadline)
        except (NotFound, Refused) as problem:
            log.info("which targets %s has is not known: %s", portal, problem)
            return
        if self.iqn not in offered and (offered or passes):
            sentences = f"{portal} has no target {self.iqn} for this host. {refused.message}"
            raise NoSuchTarget(sentences).advising(CHECK_TARGET) from refused

    def _log_in(self, portal: Portal, deadline: Deadline) -> Link:
        """Log in, and offer MD5 alone to a target that refuses the list.

        tgt takes the number of SHA-256 for SHA-1, as drafts of the RFC had it, and ends the login with INITIATOR_ERROR.
        """
        try:
            link = self._at_any_address(portal, deadline)
        except LoginRefused as refused:
            is_of_list = isinstance(refused, NoCommonAlgorithm) or refused.status == INITIATOR_ERROR
            md5_alone = chap.available(chap.MD5_ALONE)
            if not (is_of_list and self.credentials.user and md5_alone) or self._algorithms == md5_alone:
                raise
            self._algorithms = md5_alone
            link = self._at_any_address(portal, deadline)
        link.deadline, self._last = self.deadline, portal
        log.info("logged in to %s at %s", self.iqn or "a discovery", link.portal)
        return link

    def _at_any_address(self, portal: Portal, deadline: Deadline) -> Link:
        """Log in, and follow redirections of the target."""
        place = portal
        for _ in range(MAX_REDIRECTIONS + 1):
            link = Link(connect(place, self.initiator.interface, deadline), place, deadline)
            try:
                link.log_in(self.initiator.name, self.iqn, self.credentials, self._algorithms, self.isid, os.urandom)
                return link
            except Redirected as redirected:
                link.close(politely=False)
                try:
                    place = parse_address(redirected.address)
                except ValueError as error:
                    raise Refused(f"{redirected.message} But {error}.", "ISCSILogin") from error
                log.info("%s redirects the login to %s", portal, place)
            except BaseException:
                link.close(politely=False)
                raise
        raise Refused(
            f"{portal} redirected the login {MAX_REDIRECTIONS + 1} times, and none of the addresses took it.",
            "ISCSILogin",
        ).advising("Check the portals of the array.")


def ends_all(failure: RelvmoiscsiError, credentials: Credentials) -> bool:
    """Has a target refused the CHAP user or secret? Then no other login may follow, also at no other portal."""
    return bool(credentials.user) and is_of_secret(failure)


def in_turn(portals: Sequence[Portal], deadline: Deadline) -> Iterator[Tuple[Portal, float]]:
    """Give each portal with a time limit that leaves enough time for the other portals and for the work."""
    for number, portal in enumerate(portals):
        further = len(portals) - 1 - number
        yield portal, min(PORTAL_SECONDS, deadline.left / (further + 2)) if further else deadline.left


def discover(portals: Sequence[Portal], initiator: Initiator, credentials: Credentials, deadline: Deadline) -> Targets:
    """Return the targets, and the portals of each, from the first portal that answers a discovery (SendTargets).

    Raises NotFound (DNSError, ISCSITarget), Refused (ISCSILogin), OutOfTime.
    """
    failures: List[RelvmoiscsiError] = []
    for portal, seconds in in_turn(portals, deadline):
        part = deadline.part(seconds)
        try:
            try:
                return _send_targets(portal, initiator, NO_CREDENTIALS, part)
            except (LoginRefused, Closed) as refused:  # many targets want no CHAP for a discovery, and some refuse CHAP
                if not credentials.user:
                    raise
                log.info("%s; now with CHAP", refused)
                return _send_targets(portal, initiator, credentials, part)
        except (NotFound, Refused) as failure:
            if ends_all(failure, credentials):
                raise
            log.info("%s: %s", portal, failure)
            failures.append(failure)
    deadline.check("the discovery")
    refusals = [failure for failure in failures if isinstance(failure, Refused)]
    raise (refusals or failures)[0]


def _send_targets(portal: Portal, initiator: Initiator, credentials: Credentials, deadline: Deadline) -> Targets:
    sessions = TargetSessions([portal], "", initiator, credentials, deadline, isid_of_reader())
    link = sessions._log_in(portal, deadline)
    try:
        link.session.ask(pack([("SendTargets", "All")]))
        link.wait(lambda: link.session.text_is_done, f"the discovery at {portal}")
        return targets_in(link.session.text.take(), portal)
    finally:
        link.close(politely=True)


def targets_in(text: bytes, portal: Portal) -> Targets:
    """Parse the answer to SendTargets. A target without an address is at the asked portal. Raises Violation.

    Callers repeat the name of a target for each of its portals, and print the name. So a name that is too long, or has
    other characters than a name may have, is left out with its portals. A target has its first MAX_PORTALS portals.
    """
    found: Dict[str, Dict[Portal, None]] = {}
    portals: Dict[Portal, None] = {}
    left_out: List[str] = []
    for key, value in unpack(text):
        if key == "TargetName":
            is_name = _NAME.fullmatch(value) is not None
            portals = found.setdefault(value, {}) if is_name else {}
            left_out += [] if is_name else [f"{said(value)} is no name of a target"]
        elif key == "TargetAddress" and len(portals) < MAX_PORTALS:
            try:
                portals[parse_address(value)] = None
            except ValueError as error:
                left_out.append(str(error))
        elif key == "TargetAddress":
            left_out.append(f"a target has at most {MAX_PORTALS} portals here")
    if left_out:
        log.info("%s: %d names and addresses were left out; the first: %s", portal, len(left_out), left_out[0])
    return {iqn: tuple(places or [portal]) for iqn, places in found.items()}
