# SPDX-License-Identifier: LGPL-2.1-only
"""Time that passes only while nobody has anything to do: no machine is too slow for a limit, and no test waits for one.

    clock = patched_in(monkeypatch)     of the initiator and of every Deadline
    clock.now += 51                     a test may let time pass as well

An initiator in this process that waits for a byte waits in earnest until scripted targets and proxies rest: each of
their threads waits for a socket that has nothing for it. Nothing can come any more then, so all the time that the
initiator would have waited has passed at once.
"""

import fcntl
import itertools
import select
import struct
import termios
import time
from types import SimpleNamespace

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.iscsi import link, target_sessions

#: targets and proxies at work; each has `rests`, the Rest of each of its threads
AT_WORK = []
_WAKES = itertools.count()  #: counts how often a thread goes back to work; `next` of it is atomic
_TOO_LONG = 120.0  #: seconds in earnest: some thread of this kit never rests


class Rest:
    """Of a thread: what it waits for, if it does. `sends_to`: sockets to which it has sent."""

    def __init__(self, sends_to=()):
        self._waits_for, self._sends_to = None, sends_to
        self.is_over = False  #: the thread ends, or has ended

    def until_readable(self, *socks):
        """Those that are."""
        poll = _poll_of(socks)
        self._waits_for = socks
        ready = {descriptor for descriptor, _ in poll.poll()}
        self._waits_for = None
        next(_WAKES)
        return [sock for sock in socks if sock.fileno() in ready]

    def until_set(self, event):
        self._waits_for = ()
        event.wait()
        self._waits_for = None
        next(_WAKES)

    def is_on(self):
        """Looks for data first: while there are none, and the thread waits, it does not go back to work."""
        if self.is_over:
            return True
        waits_for = self._waits_for
        try:
            if waits_for is None or _poll_of(waits_for).poll(0) or any(map(is_unsent, self._sends_to)):
                return False
        except (OSError, ValueError):
            return False  # it is being closed
        return self._waits_for is waits_for


def _poll_of(socks):
    poll = select.poll()
    for sock in socks:
        poll.register(sock, select.POLLIN)
    return poll


def is_unsent(sock):
    """Whether the other side's kernel does not have all that was sent."""
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0] > 0


def _all_rest():
    """All rested, and none has gone back to work while they were looked at for a second time."""
    before = next(_WAKES)
    return all(one.is_on() for _ in range(2) for at_work in list(AT_WORK) for one in list(at_work.rests)) and (
        next(_WAKES) == before + 1
    )


def something_comes(sock=None, has_come=None):
    """Wait until something has come; False once nothing can come any more. `has_come` looks without a wait."""
    has_come = has_come or (lambda: _poll_of([sock]).poll(0))
    end = time.monotonic() + _TOO_LONG
    while not has_come():
        if (sock is None or not is_unsent(sock)) and _all_rest():
            return bool(has_come())
        assert time.monotonic() < end, "a thread of the kit does not come to rest"
        time.sleep(0.0005)
    return True


class Clock:
    """In the place of the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        something_comes(has_come=lambda: False)
        self.now += seconds


class _Poll:
    """In the place of select.poll."""

    def __init__(self, clock):
        self._clock, self._real, self._socket = clock, select.poll(), None

    def register(self, sock, events):
        self._real.register(sock, events)
        self._socket = sock

    def poll(self, milliseconds):
        events = self._real.poll(min(milliseconds, 1))
        if not events and not something_comes(self._socket, lambda: events.extend(self._real.poll(0)) or events):
            self._clock.now += max(milliseconds, 1) / 1000
        return events


def patched_in(monkeypatch):
    """The clock of what an initiator in this process does."""
    clock = Clock()
    monkeypatch.setattr(Deadline.__init__, "__defaults__", (clock.monotonic, ""))
    monkeypatch.setattr(link, "time", clock)
    monkeypatch.setattr(target_sessions, "time", clock)
    poll = SimpleNamespace(poll=lambda: _Poll(clock), POLLIN=select.POLLIN, POLLOUT=select.POLLOUT)
    monkeypatch.setattr(link, "select", poll)
    return clock
