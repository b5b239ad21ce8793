# SPDX-License-Identifier: LGPL-2.1-only
"""Wait for block devices by events: events of the kernel, and events of udev after udev has applied its rules.

`wait_for` evaluates its condition at each event, and once a second without an event: some sysfs changes send no event.
"""

import errno
import logging
import select
import socket
import time
from abc import ABC, abstractmethod
from contextlib import closing
from typing import Any, Callable, Optional, TypeVar

from relvmoiscsi.host import terminated

log = logging.getLogger(__name__)

RECHECK_SECONDS = 1.0  #: between two evaluations without an event
POLL_SECONDS = 0.1  #: between two evaluations where the kernel sends no events at all

_KERNEL_EVENTS, _UDEV_EVENTS = 1, 2  #: multicast groups of the netlink socket
_UEVENTS = 15  #: NETLINK_KOBJECT_UEVENT of linux/netlink.h
_RECEIVE_BUFFER = 1 << 20  #: bytes; a scan that finds many LUNs sends many events at the same time
_MAX_EVENT = 1 << 16  #: bytes

Value = TypeVar("Value")


class Events(ABC):
    """A source of events that say: a block device may have changed."""

    #: the longest wait between two evaluations of a condition
    recheck_seconds = RECHECK_SECONDS

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return at the next event, or after `seconds`. All events that have arrived by then are consumed."""

    def close(self) -> None:  # noqa: B027 - most sources have nothing to close
        """Stop listening."""


class SocketEvents(Events):
    """Events of the kernel, and udev's copies of these events after udev has handled them.

    An event consists of NUL-terminated words; "SUBSYSTEM=block" is one of the words. udev puts a binary header of 40
    bytes before the words. udev 219 of dom0 and all later releases have this header; this class does not read it.
    """

    def __init__(self, subsystem: str, make_socket: Optional[Callable[..., socket.socket]] = None) -> None:
        self._wanted = f"\0SUBSYSTEM={subsystem}\0".encode("ascii")
        self._socket = (make_socket or socket.socket)(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _UEVENTS
        )
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            self._socket.bind((0, _KERNEL_EVENTS | _UDEV_EVENTS))
        except OSError:
            self._socket.close()
            raise

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while not self._take_all():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            with terminated.waiting():
                poll.poll(left * 1000)

    def close(self) -> None:
        self._socket.close()

    def _take_all(self) -> bool:
        """Read all events that have arrived. Return whether an event of the wanted subsystem was among them."""
        found = False
        while True:
            try:
                found = self._wanted in self._socket.recv(_MAX_EVENT) or found
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True  # the buffer overflowed and events are lost: any device may have changed


class NoEvents(Events):
    """A fallback where the kernel sends no events, as in a container: each wait is short."""

    recheck_seconds = POLL_SECONDS

    def wait(self, seconds: float) -> None:
        terminated.pause(seconds)


def listen(subsystem: str) -> Events:
    """Listen for events of the subsystem from now on."""
    try:
        return SocketEvents(subsystem)
    except OSError as error:
        log.debug("there are no events of devices: %s", error)
    return NoEvents()


def wait_for(
    condition: Callable[[], Optional[Value]],
    timeout_seconds: float,
    subsystem: str = "block",
    listen: Callable[[str], Events] = listen,
) -> Optional[Value]:
    """Return the value of `condition()` as soon as the value is true; None if `timeout_seconds` pass before.

    The function starts to listen, evaluates `condition` once, then evaluates it after each event and once a second.
    Exceptions of `condition` go through.
    """
    deadline = time.monotonic() + timeout_seconds
    with closing(listen(subsystem)) as events:
        while True:
            value = condition()
            if value:
                return value
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            events.wait(min(left, events.recheck_seconds))


#: A function with the signature of `wait_for`; a test passes a function that does not wait.
Waiter = Callable[..., Any]
