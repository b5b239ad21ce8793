# SPDX-License-Identifier: LGPL-2.1-only
"""Running iscsiadm, and what it needs: a daemon that listens, and a name of this host."""

import logging
import os
import time
from typing import Callable, List, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host import terminated
from relvmoiscsi.host.command import TIMED_OUT, Completed
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.iscsi.portals import Portal, parse_portal
from relvmoiscsi.host.iscsi.records import break_stale_lock
from relvmoiscsi.host.iscsi.status import IscsiFailed
from relvmoiscsi.host.this_host import THIS_HOST, Host

log = logging.getLogger(__name__)

RECORD_SECONDS = 40.0  #: iscsiadm itself waits up to 30 s for the lock of its database
START_SECONDS = 30.0
LISTEN_SECONDS = 10.0

INITIATOR_FILE = "etc/iscsi/initiatorname.iscsi"
_WITH_RECORDS = ("node", "discoverydb")  # modes that take the lock of the database
_DAEMON_SOCKET = "@ISCSIADM_ABSTRACT_NAMESPACE"


class Credentials(NamedTuple):
    """One direction of CHAP, the secret in plain text; it does not show when printed."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password='********')"


class Target(NamedTuple):
    """A target that a portal offers."""

    portal: Portal
    tpgt: int
    iqn: str


class Iscsiadm:
    """iscsiadm and iscsid of a host, whose runner starts programs, before `deadline`."""

    def __init__(self, host: Host = THIS_HOST, deadline: Deadline = NO_DEADLINE) -> None:
        self._host = host
        self._run = host.runner
        self._deadline = deadline

    def __call__(
        self,
        arguments: List[str],
        task: str,
        sm_key: str,
        timeout: float = RECORD_SECONDS,
        accept: Sequence[int] = (0,),
        secrets: Sequence[str] = (),
        hint: Callable[[int], str] = lambda status: "",
    ) -> Completed:
        """Run it. Raises IscsiFailed, whose message begins with `task`, for an exit status that is not in `accept`.

        `sm_key` is for those that do not have one of their own, `hint` advice for an exit status.
        """
        try:
            return self._run(["iscsiadm", *arguments], accept=accept, timeout=timeout, secrets=secrets)
        except terminated.Terminated:
            self._was_killed(arguments)
            raise
        except CommandFailed as error:
            if error.status == TIMED_OUT:
                self._was_killed(arguments)
            raise IscsiFailed(task, sm_key, error, hint(error.status)) from error

    def _was_killed(self, arguments: Sequence[str]) -> None:
        """It may have had the lock of its database, which has no owner: for everybody it would be taken from now on."""
        if arguments[1] in _WITH_RECORDS:
            break_stale_lock(self._host)

    def ensure_daemon(self) -> None:
        """Start iscsid unless it runs. Raises CommandFailed or NotFound, ISCSIDaemon both, when it does not start."""
        if self.daemon_listens():
            return
        systemd = os.path.isdir(os.path.join(self._host.run_dir, "systemd/system"))
        argv = ["systemctl", "start", "iscsid.service"] if systemd else ["service", "iscsid", "start"]
        log.info("starting iscsid")
        try:
            self._run(argv, timeout=START_SECONDS)
        except CommandFailed as error:
            error.sm_key = "ISCSIDaemon"
            raise
        if not wait_for(self.daemon_listens, self._deadline.within(LISTEN_SECONDS)):
            problem = "iscsid was started, and does not listen after {:g} seconds. Look at journalctl -u iscsid."
            raise NotFound(problem.format(LISTEN_SECONDS), "ISCSIDaemon")

    def initiator_name(self) -> Optional[str]:
        """The IQN by which iscsid calls this host; None if it has none."""
        try:
            with open(self._host.at(INITIATOR_FILE), encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = f"The initiator name in /{INITIATOR_FILE} cannot be read: {error.strerror}."
            raise Refused(problem, "ISCSIInitiator") from error
        names = [line.partition("=")[2].strip() for line in lines if line.strip().startswith("InitiatorName")]
        return names[-1] if names and names[-1] else None

    def check_initiator(self, wanted: Optional[str]) -> Optional[str]:
        """The `initiator` for `login`: None where iscsid calls this host `wanted` anyway, or whatever if None.

        SM writes another name into the file, removes all node records and starts iscsid anew, which it refuses with
        ISCSIInitiator while there is a session. That would break what others have set up, so here the name is given
        with the one login instead.

        Raises Refused when the host has no name: ConfigISCSIIQNMissing if none is wanted either, ISCSIInitiator else,
        as iscsid does not log in without one of its own.
        """
        present = self.initiator_name()
        if present is None:
            problem = f"This host has no iSCSI initiator name: /{INITIATOR_FILE} has none. Set the IQN of the host."
            raise Refused(problem, "ISCSIInitiator" if wanted else "ConfigISCSIIQNMissing")
        return wanted if wanted and wanted != present else None

    def daemon_listens(self) -> bool:
        """Asking the kernel does not disturb iscsid, as a connection would."""
        sockets = text_of(os.path.join(self._host.proc, "net/unix"))
        return any(line.split()[-1:] == [_DAEMON_SOCKET] for line in sockets.splitlines())


def targets_in(stdout: str) -> List[Target]:
    """From lines such as "10.0.0.1:3260,1 iqn.2001-05.com.example:disk"; a line for each interface."""
    found = []
    for line in stdout.splitlines():
        place, _, iqn = line.strip().partition(" ")
        portal, _, tpgt = place.rpartition(",")
        if iqn and tpgt.isdigit():
            found.append(Target(parse_portal(portal), int(tpgt), iqn.strip()))
    return list(dict.fromkeys(found))


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds; False if it does not within this time. sysfs gives no event for a session."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        terminated.pause(POLL_SECONDS)
    return True
