# SPDX-License-Identifier: LGPL-2.1-only
"""The exit statuses of iscsiadm: what each means, what a person can do, which of SM's errors it is.

The numbers are the same in all releases; those from 29 on came between 2.0.874 and 2.1.8. That a name is unknown or a
port closed never comes as far as iscsiadm here, see reach.py, but may still happen between the two.
Source: open-iscsi include/iscsi_err.h, usr/initiator.c, usr/login.c; seen with 2.1.8 against LIO
(tests/data/transcripts/).
"""

from typing import Dict, NamedTuple, Sequence

from relvmoiscsi.errors import CommandFailed
from relvmoiscsi.host.command import NO_SUCH_PROGRAM, NOT_EXECUTABLE, TIMED_OUT

SESSION_NOT_FOUND = 2
TRANSPORT_TIMEOUT = 8
INTERNAL = 9
PDU_TIMEOUT = 11
SESSION_EXISTS = 15
DAEMON_COMMUNICATION = 18
FATAL_LOGIN = 19
DAEMON_NOT_CONNECTED = 20
NOTHING_FOUND = 21
AUTHENTICATION_FAILED = 24
NOT_CONNECTED = 32

#: What comes of a logout while iscsid does not run (NOTHING_FOUND, of all), or starts and has not taken over the
#: sessions yet.
DAEMON_NOT_READY = (
    SESSION_NOT_FOUND,
    INTERNAL,
    DAEMON_COMMUNICATION,
    DAEMON_NOT_CONNECTED,
    NOTHING_FOUND,
    NOT_CONNECTED,
)


def is_of_iscsid(status: int) -> bool:
    """Does iscsiadm end so when iscsid has answered, or was not asked? Else iscsid may still do what it was asked."""
    return status >= 0 and status not in (TIMED_OUT, DAEMON_COMMUNICATION)


class Meaning(NamedTuple):
    """What an exit status says. `sm_key` is "" where it depends on what was tried."""

    name: str  #: open-iscsi's, without ISCSI_ERR_
    sentence: str
    advice: str
    sm_key: str


_DAEMON = "Look at the log of iscsid (journalctl -u iscsid), and start it again."
_REPORT = "Look at the log of iscsid (journalctl -u iscsid) for the reason."
_NETWORK = "Check the target, the network and any firewall in between, then try again."

#: Every exit status that is not success, in open-iscsi's order.
MEANINGS: Dict[int, Meaning] = {
    1: Meaning("GENERIC", "open-iscsi failed and gives no reason", _REPORT, ""),
    2: Meaning("SESS_NOT_FOUND", "iscsid does not know the session", _REPORT, ""),
    3: Meaning("NOMEM", "open-iscsi got no memory", "Free memory on this host.", "ISCSIDaemon"),
    4: Meaning("TRANS", "the connection to the target failed", _NETWORK, "ISCSITarget"),
    5: Meaning(
        "LOGIN",
        "the target did not complete the login, and trying again did not help",
        "Check that the target is up and its portal group enabled, and how many sessions it allows.",
        "ISCSILogin",
    ),
    6: Meaning(
        "IDBM",
        "open-iscsi cannot use its database of nodes",
        "Check the space and permissions of /var/lib/iscsi or /etc/iscsi, and that no stale "
        "/run/lock/iscsi/lock.write is left while no iscsiadm runs.",
        "ISCSIQueryDaemon",
    ),
    7: Meaning(
        "INVAL",
        "open-iscsi does not accept a parameter",
        "This is an error of this program, or a setting in iscsid.conf that this release does not know.",
        "ISCSIQueryDaemon",
    ),
    8: Meaning(
        "TRANS_TIMEOUT",
        "the target did not take the connection in time, or said again and again that it is not available",
        _NETWORK,
        "ISCSITarget",
    ),
    9: Meaning("INTERNAL", "iscsid had an internal error, or the session is in no state for this", _DAEMON, ""),
    10: Meaning("LOGOUT", "the logout failed", _REPORT, "ISCSILogout"),
    11: Meaning("PDU_TIMEOUT", "the target took the connection and did not answer in time", _NETWORK, "ISCSITarget"),
    12: Meaning(
        "TRANS_NOT_FOUND",
        "the iSCSI driver is not loaded",
        "Load it (modprobe iscsi_tcp) and look at the kernel's log.",
        "ISCSIDaemon",
    ),
    13: Meaning("ACCESS", "iscsid refuses to serve this user", "Run this as root.", "ISCSIDaemon"),
    14: Meaning(
        "TRANS_CAPS",
        "the iSCSI driver cannot do this",
        "Check the interface (iface.transport_name) in the node record.",
        "ISCSIDaemon",
    ),
    15: Meaning("SESS_EXISTS", "there is such a session already", "Use it, or log it out.", ""),
    16: Meaning(
        "INVALID_MGMT_REQ",
        "iscsid does not know the request",
        "iscsiadm and iscsid are of different releases: restart iscsid.",
        "ISCSIDaemon",
    ),
    17: Meaning("ISNS_UNAVAILABLE", "the iSNS service is not there", _REPORT, "ISCSIDiscovery"),
    18: Meaning("ISCSID_COMM_ERR", "the talk with iscsid broke off", _DAEMON, "ISCSIDaemon"),
    19: Meaning(
        "FATAL_LOGIN",
        "the target refused the login for good",
        "Check that the target has this IQN, at this portal, and serves it.",
        "ISCSILogin",
    ),
    20: Meaning("ISCSID_NOTCONN", "iscsid does not run", _DAEMON, "ISCSIDaemon"),
    21: Meaning("NO_OBJS_FOUND", "open-iscsi found no such record, target, session or portal", _REPORT, ""),
    22: Meaning("SYSFS_LOOKUP", "the kernel has no such session", _REPORT, ""),
    23: Meaning("HOST_NOT_FOUND", "the address, or the iSCSI host for it, is not known", _REPORT, "DNSError"),
    24: Meaning(
        "LOGIN_AUTH_FAILED",
        "the target refused this host's credentials",
        "Check the CHAP user and secret, and that the target allows this host's initiator name.",
        "ISCSILogin",
    ),
    25: Meaning("ISNS_QUERY", "the iSNS query failed", _REPORT, "ISCSIDiscovery"),
    26: Meaning("ISNS_REG_FAILED", "the iSNS registration failed", _REPORT, "ISCSIDiscovery"),
    27: Meaning("OP_NOT_SUPP", "open-iscsi does not support this", _REPORT, "ISCSIQueryDaemon"),
    28: Meaning(
        "BUSY",
        "the session is in use, and iscsid is told to keep such (iscsid.safe_logout)",
        "Unmount what is on its disks.",
        "ISCSILogout",
    ),
    29: Meaning("AGAIN", "open-iscsi failed for now", "Try again.", ""),
    30: Meaning("UNKNOWN_DISCOVERY_TYPE", "open-iscsi does not know the kind of discovery", _REPORT, "ISCSIDiscovery"),
    31: Meaning("CHILD_TERMINATED", "a process of open-iscsi was ended", _REPORT, ""),
    32: Meaning(
        "SESSION_NOT_CONNECTED",
        "the session has lost its target, and iscsid still tries to get it back",
        "Try again when the target is back, or when node.session.timeo.replacement_timeout is over.",
        "ISCSILogout",
    ),
    33: Meaning("REQ_TIMEDOUT", "iscsid did not answer in time", _DAEMON, "ISCSIDaemon"),
    NO_SUCH_PROGRAM: Meaning("", "there is no iscsiadm on this host", "Install open-iscsi.", "ISCSIDaemon"),
    NOT_EXECUTABLE: Meaning("", "iscsiadm cannot be started", "Reinstall open-iscsi.", "ISCSIDaemon"),
    TIMED_OUT: Meaning("", "iscsiadm did not end in time and was stopped", _NETWORK, ""),
}

_UNKNOWN = Meaning("", "iscsiadm ended with a status that no release had so far", _REPORT, "")


class IscsiFailed(CommandFailed):
    """iscsiadm failed; `status` is its exit status, one of MEANINGS."""

    def __init__(self, task: str, default_key: str, cause: CommandFailed, hint: str = "") -> None:
        super().__init__(cause.argv, cause.status, cause.stderr)
        meaning = meaning_of(cause.status)
        self.message = "{}: {}. {} `{}` ended with status {}: {}".format(
            task,
            meaning.sentence,
            hint or meaning.advice,
            " ".join(cause.argv),
            cause.status,
            _gist(cause.stderr) or "no message.",
        )
        self.args = (self.message,)
        self.sm_key = meaning.sm_key or default_key


def meaning_of(status: int) -> Meaning:
    return MEANINGS.get(status, _UNKNOWN)


def login_hint(status: int, with_chap: bool, with_incoming_chap: bool) -> str:
    """Advice that fits the credentials that were used; "" where that of the table does.

    A target that knows no such IQN and one that fails to prove itself to us both come as FATAL_LOGIN; a wrong CHAP
    secret and an initiator that is not on the target's list both as LOGIN_AUTH_FAILED (LIO).
    """
    if status == AUTHENTICATION_FAILED and not with_chap:
        return "Either the target asks for CHAP, and no CHAP user was given, or it does not allow this initiator name."
    if status == FATAL_LOGIN and with_incoming_chap:
        return (
            "Either the target could not prove itself, and then the incoming CHAP user or secret is wrong, or it has "
            "no such IQN at this portal."
        )
    return ""


def _gist(stderr: str) -> str:
    """What iscsiadm said, in one line."""
    lines: Sequence[str] = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " ".join(line if line.endswith(".") else line + "." for line in lines)
