# SPDX-License-Identifier: LGPL-2.1-only
"""Target portals: their names resolved and their ports tried in bounded time, before open-iscsi is asked.

iscsiadm tries a portal that does not answer for minutes and says the same of a wrong name, a closed port and a lost
route. Here each has an error of its own.
"""

import errno
import logging
import socket
import threading
import time
from typing import Any, Callable, Iterator, List, Sequence, Tuple

from relvmoiscsi.errors import NotFound
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.iscsi.portals import Portal

log = logging.getLogger(__name__)

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 5.0  #: as SM has it
#: that one of several may be silent, and the only one at its discovery, as SM waits; those that answer need one or two
PORTAL_SECONDS = 8.0

_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)

Lookup = Callable[..., List[Any]]
Connect = Callable[[Tuple[str, int], float], Any]


def resolve(portal: Portal, timeout: float = RESOLVE_SECONDS, lookup: Lookup = socket.getaddrinfo) -> List[Portal]:
    """The numeric portals that this one stands for, as the resolver orders them; `timeout` is in seconds.

    Raises NotFound (DNSError) when the name is unknown, or nothing is known of it in time.
    """
    answers: List[Any] = []
    failures: List[OSError] = []

    def ask() -> None:
        try:
            answers.extend(lookup(portal.address, portal.port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all, such as one with an empty label
            failures.append(error if isinstance(error, OSError) else OSError(str(error)))

    # The resolver has time-outs of its own, of minutes in all, and cannot be told to stop; the thread ends with us.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    with terminated.waiting():
        thread.join(timeout)
    if thread.is_alive():
        raise _no_address(portal, f"no name server answered within {timeout:g} seconds")
    if failures or not answers:
        reason = failures[0].strerror or str(failures[0]) if failures else "it has no address"
        raise _no_address(portal, reason) from (failures[0] if failures else None)
    found = list(dict.fromkeys(Portal(answer[4][0], portal.port) for answer in answers))
    log.debug("%s is %s", portal, ", ".join(map(str, found)))
    return found


def in_turn(portals: Sequence[Portal], deadline: Deadline) -> Iterator[Tuple[Portal, float]]:
    """Each portal with the seconds it may be silent, so that there are enough for those behind it and for the work."""
    for number, portal in enumerate(portals):
        further = len(portals) - 1 - number
        yield portal, min(PORTAL_SECONDS, deadline.left / (further + 2)) if further else deadline.left


def reach(
    portal: Portal,
    timeout: float = CONNECT_SECONDS,
    connect: Connect = socket.create_connection,
    lookup: Lookup = socket.getaddrinfo,
    deadline: Deadline = NO_DEADLINE,
) -> Portal:
    """The numeric portal behind `portal` that takes a TCP connection; `timeout` is in seconds, for each address.

    Raises NotFound: DNSError when the name is not known, ISCSITarget when none of its addresses takes a connection.
    """
    failures = []
    for candidate in resolve(portal, deadline.within(RESOLVE_SECONDS), lookup):
        deadline.check(f"{candidate} was tried")
        started, seconds = time.monotonic(), deadline.within(timeout)
        try:
            with terminated.waiting():
                connect((candidate.address, candidate.port), seconds).close()
        except OSError as error:
            failures.append(_why_not(candidate, error, seconds))
            continue
        log.debug("%s takes connections, after %.3f seconds", candidate, time.monotonic() - started)
        return candidate
    raise NotFound(" ".join(failures), "ISCSITarget")


def _why_not(portal: Portal, error: OSError, timeout: float) -> str:
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return (
            f"The portal {portal} does not answer: no TCP connection within {timeout:g} seconds. Check the address, "
            "the network and "
            "any firewall in between."
        )
    if error.errno == errno.ECONNREFUSED:
        return f"Nothing listens at the portal {portal}. Check the port, and whether the target runs."
    if error.errno in _NO_ROUTE:
        return f"This host has no route to the portal {portal}: {error.strerror}. Check its storage network."
    return f"The portal {portal} takes no TCP connection: {error.strerror or error}."


def _no_address(portal: Portal, reason: str) -> NotFound:
    problem = "The target {} has no address: {}. Check the name, or give an IP address."
    return NotFound(problem.format(portal.address, reason), "DNSError")
