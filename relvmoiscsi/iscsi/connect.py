# SPDX-License-Identifier: LGPL-2.1-only
"""A TCP connection to a portal within a time limit: resolve the name, bind the interface, explain failures."""

import errno
import ipaddress
import os
import select
import socket
from typing import Any, Callable, Dict, List, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Lost, NoAddress, Refused, Unreachable, refuse_if_short
from relvmoiscsi.portal import Portal
from relvmoiscsi.threads import start_thread

CONNECT_SECONDS = 5.0  #: for each address; the same as in SM
RESOLVE_SECONDS = 10.0

_REASONS = {  #: sentences and what to do
    socket.EAI_ADDRFAMILY: (
        "No connection to the portal {portal} can leave through {interface}: they have addresses of two families.",
        "Check the iface of open-iscsi that names it.",
    ),
    errno.ETIMEDOUT: (
        "The portal {portal} does not answer: no TCP connection within {seconds:g} seconds.",
        "Check the address, the network and any firewall in between.",
    ),
    errno.ECONNREFUSED: (
        "Nothing listens at the portal {portal}.",
        "Check the port, and whether the target runs; a portal for iSER alone takes no TCP connection.",
    ),
    **dict.fromkeys(
        (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EAFNOSUPPORT),
        (
            "This host has no route to the portal {portal}: {name}.",
            "Check its storage network; a host that reaches the target through an iSCSI card uses type=relvmohba.",
        ),
    ),
}
_OTHER_REASON = ("The portal {portal} takes no TCP connection: {name}.", "")

Lookup = Callable[..., List[Any]]


def resolve(portal: Portal, seconds: float, lookup: Lookup = socket.getaddrinfo) -> List[Tuple[int, Tuple[Any, ...]]]:
    """Return the addresses of a portal in the resolver's order: family and socket address.

    Raises NotFound (DNSError) if the name is unknown or the resolver does not answer in time; Refused where this
    process can open no more files.
    """
    answers: List[Any] = []
    failures: List[Exception] = []

    def ask(flags: int = 0) -> None:
        try:
            answers.extend(lookup(portal.host, portal.port, 0, socket.SOCK_STREAM, 0, flags))
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name, such as "a..b"
            failures.append(error)

    ask(socket.AI_NUMERICHOST)
    if failures:
        failures.clear()
        # The resolver's time-outs add up to minutes, and no call stops the resolver. The thread ends with the process.
        thread = start_thread(ask)
        thread.join(seconds)
        if thread.is_alive():
            raise _no_address(portal, f"no name server answered within {seconds:g} seconds")
    for failure in failures:
        if isinstance(failure, OSError):
            refuse_if_short(failure)
    if failures or not answers:
        reason = (getattr(failures[0], "strerror", None) or str(failures[0])) if failures else "it has no address"
        raise _no_address(portal, reason) from (failures[0] if failures else None)
    return list(dict.fromkeys((answer[0], answer[4]) for answer in answers))


def connect(portal: Portal, interface: str, deadline: Deadline, lookup: Lookup = socket.getaddrinfo) -> socket.socket:
    """Return a non-blocking connection. Raises NotFound (DNSError), Unreachable, Lost, Refused, OutOfTime."""
    failures: Dict[str, str] = {}  # sentences and what to do
    is_reset = False
    for family, address in resolve(portal, deadline.within(RESOLVE_SECONDS), lookup):
        deadline.check(f"{portal} was tried")
        seconds = deadline.within(CONNECT_SECONDS)
        try:
            return _connected(family, address, interface, seconds)
        except OSError as error:
            refuse_if_short(error)
            number = error.errno or errno.EIO
        (reason, advice), name = _REASONS.get(number, _OTHER_REASON), errno.errorcode.get(number, str(number))
        candidate = Portal(str(address[0]), portal.port)
        failures[reason.format(portal=candidate, seconds=seconds, name=name, interface=interface)] = advice
        is_reset = number == errno.ECONNRESET  # the target is there, and may accept the next connection
    lost = (Lost if is_reset else Unreachable)(" ".join(failures))
    raise lost.advising(" ".join(dict.fromkeys(failures.values())))


def _connected(family: int, address: Tuple[Any, ...], interface: str, seconds: float) -> socket.socket:
    """Return a non-blocking connection to one address. Raises Refused, and OSError: a kernel may lack the family."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _leave_by(connection, interface)
        number = connection.connect_ex(address)
        if number == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            is_over = poll.poll(int(seconds * 1000))
            number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if is_over else errno.ETIMEDOUT
        if number:
            raise OSError(number, os.strerror(number))
    except BaseException:
        connection.close()
        raise
    return connection


def _leave_by(connection: socket.socket, interface: str) -> None:
    """Bind the connection to a source address of this host, or to a network interface.

    Raises Refused, and OSError for an address of another family.
    """
    if not interface:
        return
    try:
        try:
            ipaddress.ip_address(interface)
            connection.bind((interface, 0))
        except ValueError:  # it is no address
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    except OSError as error:
        if error.errno == socket.EAI_ADDRFAMILY:  # of the portal's addresses, another may be of this family
            raise
        raise Refused(
            f"No connection can leave through {interface}: {error.strerror}.",
            "ISCSIInitiator",
        ).advising("Check the iface of open-iscsi that names it; only root may choose a network interface.") from error


def _no_address(portal: Portal, reason: str) -> NoAddress:
    return NoAddress(f"The target {portal.host} has no address: {reason}.").advising(
        "Check the name, or give an IP address."
    )
