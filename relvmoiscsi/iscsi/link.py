# SPDX-License-Identifier: LGPL-2.1-only
"""A session over a socket: read and write until an awaited event has come or the deadline has passed.

After 5 seconds without a byte, this side pings the target. After 10 seconds without a byte, the session is lost. After
30 seconds without progress of a command, the session is lost even if the target answers pings. Between waits, this side
does not read the socket.
"""

import logging
import math
import select
import socket
import time
from typing import Callable, Optional, Tuple

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.errors import Lost, shown_bytes
from relvmoiscsi.iscsi.chap import Entropy
from relvmoiscsi.iscsi.crc32c import fastest_crc32c
from relvmoiscsi.iscsi.faults import Closed, Silent, Violation
from relvmoiscsi.iscsi.login import Handshake, login
from relvmoiscsi.iscsi.names import Credentials
from relvmoiscsi.iscsi.pdu import LOGIN_RESPONSE, REJECT, PduHeader, Wire
from relvmoiscsi.iscsi.session import Session
from relvmoiscsi.portal import DEFAULT_PORT, Portal

log = logging.getLogger(__name__)

PING_SECONDS = 5.0
SILENCE_SECONDS = 10.0
NO_STEP_SECONDS = 30.0
LOGOUT_SECONDS = 2.0
_CHECK_TARGET = "Check the port, and whether the target works."
_FIRST_OF_A_TARGET = (bytes([LOGIN_RESPONSE]), bytes([REJECT]))  #: opcodes of an answer to a login


class Link:
    """A connection to a portal, and after `log_in` the session on the connection."""

    def __init__(
        self,
        connection: socket.socket,
        portal: Portal,
        deadline: Deadline,
    ) -> None:
        """`connection` is non-blocking. `close` closes it."""
        self.session: Session
        self.portal = portal
        self.deadline = deadline
        self.wire = Wire(fastest_crc32c)
        self._first_bytes = b""  #: of the other side's first answer
        self._socket = connection
        self._poll = select.poll()
        self._is_in = False
        self._lost: Optional[Lost] = None
        self.write_until = math.inf  #: on the monotonic clock; after that time no write command is sent
        self._last_byte = self._last_step = time.monotonic()
        self._steps = 0
        self._handshake: Handshake

    def log_in(
        self,
        initiator: str,
        target: str,
        credentials: Credentials,
        algorithms: Tuple[int, ...],
        isid: bytes,
        entropy: Entropy,
    ) -> None:
        """Log in to the IQN `target`; "" for a discovery. `algorithms` are the CHAP algorithms to offer.

        Raises Closed, Lost, Redirected, OutOfTime, and the errors of `login.login`.
        """
        exchange = login(str(self.portal), initiator, target, credentials, algorithms, entropy)
        self._handshake = Handshake(self.wire, exchange, str(self.portal), target, isid)
        try:
            self.wait(lambda: self._is_in, f"the login at {self.portal}")
        except _ClosedByTarget as lost:
            whom = "whose CHAP user they do not know" if credentials.user else "without CHAP"
            closed = Closed(
                f"{self.portal} closed the connection in the middle of the login. Some targets do that to an initiator "
                f"whose name they do not know, or {whom}. A port of another service may do so as well."
            )
            self._handshake.closed(closed.advising("Check the name and CHAP at the target, and the port."))
            raise AssertionError("an error thrown into the login always comes out") from lost
        except Violation as problem:
            if self._first_bytes[:1] in _FIRST_OF_A_TARGET:
                told = f"{self.portal} does not log in as RFC 7143 wants it. {problem.message}"
                raise Violation(told).advising(problem.advice) from problem
            answer = self._first_bytes[:32]
            begin = answer.split(b"\n")[0].rstrip() or answer  # other services begin with a line of text
            raise Violation(
                f"What listens at {self.portal} does not speak iSCSI: its answer begins with {shown_bytes(begin)}."
            ).advising(f"Check the port; the usual port of iSCSI is {DEFAULT_PORT}.") from problem

    def wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Exchange data until `is_done`. Raises Lost, and OutOfTime, whose message has `what`."""
        now = time.monotonic()
        self._last_byte = max(self._last_byte, now)
        self._last_step = now
        if self._lost is not None:
            raise self._lost
        while not is_done():
            if self.deadline.has_passed:
                raise self._over(f"{what} was done")
            now = time.monotonic()
            silent, stuck = now - self._last_byte, now - self._last_step
            if silent >= SILENCE_SECONDS:
                silence = Silent(f"{self.portal} has said nothing for {SILENCE_SECONDS:g} seconds.")
                raise self._is_lost(silence.advising(_CHECK_TARGET))
            if stuck >= NO_STEP_SECONDS:
                lost = Lost(f"{self.portal} has carried out nothing for {NO_STEP_SECONDS:g} seconds.")
                raise self._is_lost(lost.advising(_CHECK_TARGET))
            is_ping_due = silent >= PING_SECONDS
            if self._is_in and is_ping_due:
                self.session.ping()
            next_event = (PING_SECONDS if self._is_in and not is_ping_due else SILENCE_SECONDS) - silent
            self._turn(min(next_event, NO_STEP_SECONDS - stuck, self.deadline.left))

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, and answer the target's requests meanwhile. Raises Lost and OutOfTime."""
        end = time.monotonic() + seconds
        if self._lost is not None:
            raise self._lost
        while True:
            now = time.monotonic()
            if now >= end:
                return
            if self.deadline.has_passed:
                raise self._over("the LUN was ready")
            self._last_byte = self._last_step = now  # no answer is due during a pause
            self._turn(min(end - now, self.deadline.left))

    def close(self, politely: bool) -> None:
        """Close the connection. With `politely`, log out first within LOGOUT_SECONDS. Raises nothing."""
        if self._socket.fileno() < 0:
            return
        try:
            if politely and self._is_in and self._lost is None and self.session.is_idle:
                self.deadline = Deadline(LOGOUT_SECONDS)
                self.session.log_out()
                self.wait(lambda: self.session.is_logged_out, "the logout")
                log.debug("logged out from %s", self.portal)
        except Exception as problem:  # noqa: BLE001 - the logout is optional: the close ends the session as well
            log.debug("no logout from %s: %s", self.portal, problem)
        finally:
            self._socket.close()

    def _over(self, what: str) -> OutOfTime:
        """Return the error of a wait until the deadline, with the last answer that put off a command."""
        delay = self.session.delay if self._is_in else ""
        advice = "Look at the load and the state of the LUN at the array." if delay else "Look at the target."
        return self.deadline.over(what, delay).advising(advice)

    def _turn(self, seconds: float) -> None:
        """Send queued data, and handle the data that arrive within `seconds`."""
        try:
            is_full = False
            outgoing = self.wire.outgoing()
            while outgoing and not is_full:
                if time.monotonic() > self.write_until and self.session.has_unsent_write:
                    raise Lost(f"The writes to {self.portal} could not be sent in time.")
                try:
                    self.wire.sent(self._socket.sendmsg(outgoing))
                    outgoing = self.wire.outgoing()
                except BlockingIOError:
                    is_full = True
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if outgoing else 0))
            events = self._poll.poll(int(seconds * 1000 + 0.999))
            if not events or not events[0][1] & ~select.POLLOUT:
                return
            buffers = self.wire.buffers()
            count = self._socket.recvmsg_into(buffers)[0]
            self._first_bytes = self._first_bytes or bytes(buffers[0][:count])
            if not count:
                raise _ClosedByTarget(f"{self.portal} has closed the connection.")
            self._last_byte = now = time.monotonic()
            self.wire.received(count, self._handle)
            steps = self.session.steps if self._is_in else self._steps
            if steps != self._steps:
                self._steps, self._last_step = steps, now
        except BlockingIOError:
            return
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._is_lost(_ClosedByTarget(f"{self.portal} has closed the connection: {reason}.")) from error
        except Lost as lost:
            self._is_lost(lost)
            raise

    def _handle(self, header: PduHeader, data: memoryview) -> None:
        if self._is_in:
            self.session.handle(header, data)
            return
        self._handshake.handle(header, data)
        if self._handshake.parameters is not None:
            self.session = Session(self.wire, self._handshake.parameters, self._handshake.last)
            self._is_in = True

    def _is_lost(self, lost: Lost) -> Lost:
        self._lost = lost
        return lost


class _ClosedByTarget(Lost):
    """The target closed the connection."""
