# SPDX-License-Identifier: LGPL-2.1-only
"""A session over a socket: reading and writing at once, until what is awaited has come or the time is over.

A target that says nothing for 5 seconds is pinged, and lost after 10; one that answers pings and carries out nothing is
lost after 30. Nobody reads the socket between waits.
"""

import logging
import select
import socket
import time
from typing import Callable, Optional

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.iscsi.chap import Entropy
from relvmoiscsi.iscsi.crc32c import fastest_crc32c
from relvmoiscsi.iscsi.faults import Lost
from relvmoiscsi.iscsi.login import Handshake, Wanted
from relvmoiscsi.iscsi.pdu import Pdu, Wire
from relvmoiscsi.iscsi.session import Session
from relvmoiscsi.portal import Portal

log = logging.getLogger(__name__)

PING_SECONDS = 5.0
SILENCE_SECONDS = 10.0
NO_STEP_SECONDS = 30.0
LOGOUT_SECONDS = 2.0


class Link:
    """A connection to a portal, and the session on it once `log_in` is done."""

    def __init__(
        self,
        connection: socket.socket,
        portal: Portal,
        deadline: Deadline,
    ) -> None:
        """`connection` does not block; it is closed with this."""
        self.session: Session
        self.portal = portal
        self.deadline = deadline
        self.wire = Wire(fastest_crc32c)
        self._socket = connection
        self._poll = select.poll()
        self._is_in = False
        self._lost: Optional[Lost] = None
        self._last_byte = self._last_step = time.monotonic()
        self._steps = 0
        self._handle: Callable[[Pdu], None]

    def log_in(self, wanted: Wanted, isid: bytes, entropy: Entropy) -> None:
        """Raises Closed, Lost, Redirected, OutOfTime, and what `login.login` raises."""
        handshake = Handshake(self.wire, wanted, isid, entropy)

        def handle(answer: Pdu) -> None:
            handshake.handle(answer)
            if handshake.parameters is not None:
                self.session = Session(self.wire, handshake.parameters, handshake.last)
                self._handle, self._is_in = self.session.handle, True

        self._handle = handle
        try:
            self.wait(lambda: self._is_in, f"the login at {self.portal}")
        except _ClosedByTarget as lost:
            handshake.closed(
                f"{self.portal} closed the connection in the middle of the login. Some targets do that to an initiator "
                "whose name they do not know, or that comes without CHAP: check both at the target."
            )
            raise AssertionError("what is thrown into a login comes out") from lost

    def wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Return once it is done. Raises Lost, and OutOfTime, which says what was not done in time."""
        now = time.monotonic()
        self._last_byte = max(self._last_byte, now)
        self._last_step = now
        self._raise_if_lost()
        while not is_done():
            if self.deadline.has_passed:
                raise self.deadline.over(f"{what} was done")
            self._turn(self._seconds_to_wait())

    def pause(self, seconds: float) -> None:
        """Wait for as long, and answer the target meanwhile. Raises Lost and OutOfTime."""
        end = time.monotonic() + seconds
        self._raise_if_lost()
        while True:
            now = time.monotonic()
            if now >= end:
                return
            if self.deadline.has_passed:
                raise self.deadline.over(f"{self.portal} was ready")
            self._last_byte = self._last_step = now  # nothing is awaited
            self._turn(min(end - now, self.deadline.left))

    def close(self, politely: bool) -> None:
        """End it; politely: with a logout, for which the target has a moment. Raises nothing."""
        if self._socket.fileno() < 0:
            return
        try:
            if politely and self._is_in and self._lost is None and self.session.is_idle:
                self.deadline = Deadline(LOGOUT_SECONDS)
                self.session.log_out()
                self.wait(lambda: self.session.is_logged_out, "the logout")
                log.debug("logged out from %s", self.portal)
        except Exception as problem:  # noqa: BLE001 - a logout is a courtesy: closing ends the session too
            log.debug("no logout from %s: %s", self.portal, problem)
        finally:
            self._socket.close()

    def _seconds_to_wait(self) -> float:
        """How long to wait for the next byte; pings, and raises Lost, when that is due."""
        now = time.monotonic()
        silent, stuck = now - self._last_byte, now - self._last_step
        if silent >= SILENCE_SECONDS:
            raise self._is_lost(Lost(f"{self.portal} has said nothing for {SILENCE_SECONDS:g} seconds."))
        if stuck >= NO_STEP_SECONDS:
            raise self._is_lost(Lost(f"{self.portal} has carried out nothing for {NO_STEP_SECONDS:g} seconds."))
        next_event = SILENCE_SECONDS - silent
        if self._is_in and silent < PING_SECONDS:
            next_event = PING_SECONDS - silent
        elif self._is_in:
            self.session.ping()
        return min(next_event, NO_STEP_SECONDS - stuck, self.deadline.left)

    def _turn(self, seconds: float) -> None:
        """Send what can be sent, and take what comes within so many seconds."""
        try:
            is_sending = self._send()
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if is_sending else 0))
            events = self._poll.poll(int(seconds * 1000 + 0.999))
            if not events or not events[0][1] & ~select.POLLOUT:
                return
            count = self._socket.recvmsg_into(self.wire.buffers())[0]
            if not count:
                raise _ClosedByTarget(f"{self.portal} has closed the connection.")
            self._take(count)
        except BlockingIOError:
            return
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._is_lost(_ClosedByTarget(f"{self.portal} has closed the connection: {reason}.")) from error
        except Lost as lost:
            self._is_lost(lost)
            raise

    def _send(self) -> bool:
        """Send as much as the socket takes; is there more?"""
        while True:
            buffers = self.wire.outgoing()
            if not buffers:
                return False
            try:
                self.wire.sent(self._socket.sendmsg(buffers))
            except BlockingIOError:
                return True

    def _take(self, count: int) -> None:
        now = time.monotonic()
        self._last_byte = now
        for answer in self.wire.received(count):
            self._handle(answer)
        steps = self.session.steps if self._is_in else self._steps
        if steps != self._steps:
            self._steps, self._last_step = steps, now

    def _is_lost(self, lost: Lost) -> Lost:
        self._lost = lost
        return lost

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost


class _ClosedByTarget(Lost):
    """The connection was closed from the other side."""
