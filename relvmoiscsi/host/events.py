# SPDX-License-Identifier: LGPL-2.1-only
"""Waiting for block devices by events: of the kernel, and of udev when it has gone through its rules.

`wait_for` asks for what is wanted at each event, and about once a second in between: not everything in sysfs has one.
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

RECHECK_SECONDS = 1.0  #: between two looks without an event
POLL_SECONDS = 0.1  #: the same, where there are no events at all

_KERNEL_EVENTS, _UDEV_EVENTS = 1, 2  #: multicast groups of the socket
_UEVENTS = 15  #: NETLINK_KOBJECT_UEVENT of linux/netlink.h
_RECEIVE_BUFFER = 1 << 20  #: bytes; a scan that finds many LUNs makes many events at once
_MAX_EVENT = 1 << 16  #: bytes

Value = TypeVar("Value")


class Events(ABC):
    """Something to wait on that ends when a block device may have changed."""

    #: how long a wait may last when nothing happens
    recheck_seconds = RECHECK_SECONDS

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return at the next event, all that came until then included; without one after `seconds`."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Listen no longer."""


class SocketEvents(Events):
    """Events of the kernel, and the same ones again when udev has handled them.

    Both come as NUL-terminated words, "SUBSYSTEM=block" among them. udev puts a binary header of 40 bytes before them,
    the same since long before udev 219, which dom0 has; none of it is read.
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
        """Read whatever has come; was one of the wanted subsystem among it?"""
        found = False
        while True:
            try:
                found = self._wanted in self._socket.recv(_MAX_EVENT) or found
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True  # more came than the buffer holds: anything may have happened


class NoEvents(Events):
    """For where the kernel gives no events, as in a container: short waits."""

    recheck_seconds = POLL_SECONDS

    def wait(self, seconds: float) -> None:
        terminated.pause(seconds)


def listen(subsystem: str) -> Events:
    """Listen from now on."""
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
    """What `condition` gives as soon as that is true; None if it is not within `timeout_seconds`.

    It is asked at least once, then after each event of the subsystem, and about once a second in between. Listening
    begins before it is asked for the first time. Its exceptions go through.
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


#: Called like `wait_for`; a test gives one that does not wait.
Waiter = Callable[..., Any]
