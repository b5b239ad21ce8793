# SPDX-License-Identifier: LGPL-2.1-only
"""The errors that end a connection, and what a person can do about each login status."""

from typing import Dict, Optional, Tuple

from relvmoiscsi.errors import LoginRefused, Lost, NoConnection, NotFound, Refused, RelvmoiscsiError

INITIATOR_ERROR = 0x0200
AUTHENTICATION_FAILED = 0x0201
NOT_ALLOWED = 0x0202
NOT_FOUND = 0x0203
REMOVED = 0x0204
TOO_MANY = 0x0206
UNAVAILABLE = 0x0301
NO_RESOURCES = 0x0302

#: status class and detail of a login response: the cause, the remedy. Source: RFC 7143 11.13.5
_MEANINGS: Dict[int, Tuple[str, str]] = {
    0x0200: ("it found a fault in the request", "Look at the log of the target."),
    AUTHENTICATION_FAILED: ("the authentication failed", "Check CHAP for this initiator at the target."),
    NOT_ALLOWED: ("it does not allow this initiator name", "Allow the initiator name at the array."),
    0x0205: ("it does not speak this version of iSCSI", "Update the software of the target."),
    TOO_MANY: (
        "it has as many sessions as it allows",
        "Allow one more session for this initiator at the array (a session of the kernel may count as well), or log "
        "in with iscsiadm and give the block device to the command.",
    ),
    0x0207: ("it misses a parameter", "Look at the log of the target."),
    0x0208: ("it cannot add this connection to a session", "Look at the log of the target."),
    0x0209: ("it does not offer this type of session", "Look at the log of the target."),
    0x020A: ("the session does not exist", "Try again."),
    0x020B: ("the request came at the wrong time", "Look at the log of the target."),
    0x0300: ("the target has an error of its own", "Look at the log of the target."),
    UNAVAILABLE: ("the target is not in service now", "Wait until the array has failed over, then try again."),
    NO_RESOURCES: (
        "the target has no resources for one more session",
        "End sessions that nobody needs at the array, or raise its limit of sessions.",
    ),
}


class Silent(Lost):
    """The target answers nothing for so long that this side has given the connection up."""


class Violation(Lost):
    """The target broke the protocol, so this side trusts no further answer."""


class Closed(Lost):
    """The target closed the connection before the end of the login."""

    sm_key = "ISCSILogin"


def login_refused(target: str, status: int, reason: str = "", remedy: Optional[str] = None) -> LoginRefused:
    """Return the error of a login response with a status other than success.

    `reason` and `remedy` are of a caller that knows more than the status says.
    """
    known, advice = _MEANINGS.get(status, ("it gives a reason that RFC 7143 does not know", ""))
    refused = LoginRefused(f"{target} refused the login (status {status:04x}): {reason or known}.", status)
    return refused.advising(advice if remedy is None else remedy)


def is_of_secret(failure: RelvmoiscsiError) -> bool:
    """Has the target refused a user or secret? A target may count such logins, and lock the account."""
    if not isinstance(failure, LoginRefused) or isinstance(failure, NoCommonAlgorithm):
        return False
    return failure.status == AUTHENTICATION_FAILED


def is_temporary(failure: RelvmoiscsiError) -> bool:
    """Is the status of the login temporary, as of an array that fails over or starts?"""
    return isinstance(failure, LoginRefused) and failure.status >> 8 == 3


CHECK_TARGET = "Check the IQN, and whether the array shows the target to this initiator."


class NoSuchTarget(NotFound):
    """The portal has no target of this name for this initiator, however it says so."""

    sm_key = "ISCSIDiscovery"


def no_such_target(portal: str, status: int) -> NoSuchTarget:
    """Return the error of a login with the status NOT_FOUND or REMOVED."""
    reason = "the target was removed" if status == REMOVED else "it has no target of this name"
    problem = f"{portal} refused the login (status {status:04x}): {reason}."
    return NoSuchTarget(problem).advising(CHECK_TARGET)


class NoCommonAlgorithm(LoginRefused):
    """The target knows none of the offered CHAP algorithms."""

    def __init__(self, target: str) -> None:
        same = login_refused(target, AUTHENTICATION_FAILED, "it knows none of the CHAP algorithms that were offered")
        super().__init__(same.message, same.status)
        self.advising("Allow MD5, SHA1 or SHA-256 for CHAP at the target.")


class Unproven(NoConnection, Refused):
    """The target did not prove that it knows its own CHAP secret."""

    sm_key = "ISCSILogin"

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target} could not prove itself: {reason}.")
        self.advising("Check the incoming CHAP user and secret on both sides, and that this is the target you mean.")


class Redirected(RelvmoiscsiError):
    """The target is elsewhere. `address` is as the target sent it: "10.0.0.2:3260,1", "[fd00::2]"."""

    sm_key = "ISCSILogin"

    def __init__(self, target: str, address: str) -> None:
        super().__init__(f"{target} redirects the login.")
        self.address = address
