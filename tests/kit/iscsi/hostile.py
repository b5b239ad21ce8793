# SPDX-License-Identifier: LGPL-2.1-only
"""A scripted iSCSI target on a real socket of this machine: correct, but for the quirks that it is given.

    with HostileTarget(luns=[Lun(0, 8 * MIB), Lun(300, disk=disk)], quirks=["pings", quirk("busy", times=5)],
                       chap=Chap("user", "secret")) as target:
        ... target.portal ("127.0.0.1:41233"), target.port, target.iqn, target.portals ...
        target.wait_for("session")              # until it has happened, no sleep; fails after 10 minutes
        target.count("command", WRITE_10)       # how often something has happened
        target.lun(300).disk.peek(0, 512)       # what the LUN holds; .unflushed: what no flush has made durable

- `luns`: one Lun of 1 MiB at 0 by default. lun.py: number, size or SparseDisk, block size, serial, NAA, read-only.
- `quirks`: names of quirks.QUIRKS, or quirk(name, skip=, times=, kinds=, and what its act takes).
- All of options.py can be given by name: window=1, iqn=, chap=, mutual=, keys={"ImmediateData": "No"},
  header_digest=("CRC32C",), addresses=("127.0.0.1", "127.0.0.1"), which makes two portals. Quirks may set them.
- The end of `with` closes everything and raises AssertionError if the initiator has broken a rule (watch.py), unless an
  exception is on its way, whose text then matters more: `target.violations`. `ignore=("isid kept",)` leaves rules out.
  A test that plays two calls, of which the first was killed, says `target.new_call()` between them.
- Things that a test can do at any time: power_cut(), drop(how=RST), replace(number, ...), stop_listening(),
  listen_again(), late_writes_land().
- Names of what happens: connected, login request (stage), login refused (status), session (ISID), discovery,
  command (operation code), data-out (bytes), answered (operation code), attention, ping, ping answered, pinged, nop,
  async, reject, task management (function), logout, reinstated, quirk (its name), gone, power cut, kept a
  write, landed.

Everything runs in threads of this process; it starts no other and opens no device. Python 3.6 to current.
"""

import socket
import threading
from typing import NamedTuple, Optional

from . import scsi
from .connection import RST, Connection, Session
from .idle_time import AT_WORK, Rest
from .lun import Lun
from .options import Options
from .quirks import quirk

PATIENCE = 600.0  #: seconds that a test waits for something that should take none


class Event(NamedTuple):
    """Something that happened, and what with."""

    name: str
    detail: object = None


class HostileTarget:
    """See the module."""

    def __init__(self, luns=None, quirks=(), ignore=(), **options):
        self._armed = [_Armed(quirk(item) if isinstance(item, str) else item) for item in quirks]
        changes = {}
        for armed in self._armed:
            _merge(changes, armed.quirk.options)
        _merge(changes, options)
        self.options = Options()._replace(**changes)
        self.luns = self._luns() if luns is None else list(luns)
        self.lock = threading.RLock()
        self.events, self.commands, self.violations, self.failures = [], [], [], []
        self.challenges = []  #: of initiators
        self.sessions, self._connections = [], []
        self._ignored, self._expected_isids = tuple(ignore), {}
        self.call = 0  #: of the initiator, whose sessions keep their ISID
        self._happened = threading.Condition()
        self._listeners, self._accepting, self._tsih = [], [], 0
        self._doors = []  #: the Rest of each thread that accepts
        self._closing = False
        self.portals = []

    def _luns(self):
        makers = [armed.quirk.luns for armed in self._armed if armed.quirk.luns]
        return makers[0]() if makers else [Lun()]

    @property
    def iqn(self):
        return self.options.iqn

    @property
    def portal(self):
        """The first portal, "address:port"."""
        return self.portals[0]

    @property
    def port(self):
        return int(self.portal.rsplit(":", 1)[1])

    def lun(self, number):
        return next(lun for lun in self.luns if lun.number == number)

    def lun_at(self, address):
        return next((lun for lun in self.luns if lun.address == address), None)

    # -- life -------------------------------------------------------------------------------------------------------

    def __enter__(self):
        self.listen_again()
        return self

    def __exit__(self, kind, _error, _traceback):
        self.close()
        if kind is None:
            self.check()

    def listen_again(self):
        """Take connections, at the ports of before if there were any."""
        ports = [int(portal.rsplit(":", 1)[1]) for portal in self.portals] or [0] * len(self.options.addresses)
        self._listeners = [_listener(*where) for where in zip(self.options.addresses, ports)]
        self.portals = [_portal(listener) for listener in self._listeners]
        if self not in AT_WORK:
            AT_WORK.append(self)
        for number, listener in enumerate(self._listeners):
            self._doors.append(Rest())
            thread = threading.Thread(target=self._accept, args=(listener, number, self._doors[-1]), daemon=True)
            self._accepting.append(thread)
            thread.start()

    def stop_listening(self):
        """Refuse connections; those that there are stay."""
        for listener in self._listeners:
            try:
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            except OSError:
                pass  # no thread waits
        for thread in self._accepting:
            thread.join(PATIENCE)
        for listener in self._listeners:
            listener.close()
        self._listeners, self._accepting = [], []

    @property
    def rests(self):
        with self.lock:
            return self._doors + [connection.rest for connection in self._connections]

    def close(self):
        self._closing = True
        self.stop_listening()
        self.drop()
        for connection in list(self._connections):
            if not connection.join(PATIENCE):
                self.failures.append("a connection's thread did not end")
        AT_WORK.remove(self)
        self.late_writes_land()

    def check(self):
        """Raise AssertionError for what the initiator, or this kit, did wrong."""
        assert not self.failures, "\n".join(self.failures)
        assert not self.violations, "\n".join(f"{rule}: {text}" for rule, text in self.violations)

    def _accept(self, listener, number, rest):
        while True:
            try:
                rest.until_readable(listener)
                sock, _ = listener.accept()
            except OSError:
                rest.is_over = True
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, sock, number)
            with self.lock:
                self._connections = [known for known in self._connections if not known.join(0)] + [connection]
                self.note("connected", number)
                connection.start()

    # -- what happens -----------------------------------------------------------------------------------------------

    def note(self, name, detail=None):
        with self._happened:
            self.events.append(Event(name, detail))
            self._happened.notify_all()

    def count(self, name, detail: Optional[object] = None):
        with self._happened:
            return self._count(name, detail)

    def _count(self, name, detail):
        return sum(event.name == name and (detail is None or event.detail == detail) for event in self.events)

    def wait_for(self, name, detail=None, count=1, timeout=PATIENCE):
        """Return once it has happened so often; AssertionError after `timeout` seconds."""
        with self._happened:
            came = self._happened.wait_for(lambda: self._count(name, detail) >= count, timeout)
        assert came, f"{name} {detail if detail is not None else ''} did not happen {count} times in {timeout} s"

    def complain(self, rule, text):
        if rule not in self._ignored:
            self.violations.append((rule, text))

    # -- quirks -----------------------------------------------------------------------------------------------------

    def fire(self, connection, at, subject, kind):
        dealt_with = False
        for armed in self._armed:
            if not dealt_with and armed.fires(at, kind):
                self.note("quirk", armed.quirk.name)
                dealt_with = bool(armed.quirk.act(connection, subject, **armed.quirk.how))
        return dealt_with

    # -- sessions ---------------------------------------------------------------------------------------------------

    def login_begins(self, login):
        expected = None if login.discovery else self._expected_isids.pop(login.initiator, None)
        if expected not in (None, login.isid):
            self.complain("isid kept", f"ISID {login.isid.hex()} after {expected.hex()} was lost or redirected")

    def expect_isid(self, login, isid):
        if login.initiator is not None and not login.discovery:
            self._expected_isids[login.initiator] = isid

    def new_call(self):
        """What follows is another call of the initiator: its ISID may be another one."""
        with self.lock:
            self.call += 1  # of a session that ends only now, no ISID is expected
            self._expected_isids.clear()

    def session_of(self, login, connection):
        """A new Session, which ends one of the same nexus."""
        self._tsih = self._tsih % 0xFFFF + 1
        session = Session(login, connection, self._tsih)
        if login.discovery:
            return session
        for old in [old for old in self.sessions if _nexus(old) == _nexus(session)]:
            self.note("reinstated", old.isid)
            self._end(old)
        self.sessions.append(session)
        return session

    def _end(self, session):
        session.late, session.logged_out = [], True
        self.sessions.remove(session)
        session.connection.end(RST)

    def ended(self, connection):
        """A connection is gone, and its session with it (error recovery level 0)."""
        with self.lock:
            session = connection.session
            if session is None or session.discovery or session not in self.sessions:
                return
            if session.logged_out:
                self.sessions.remove(session)
                self.late_writes_land()
                return
            session.lost = True
            if not self._closing and session.call == self.call:
                self._expected_isids[session.initiator] = session.isid
            if not session.late:
                self.sessions.remove(session)

    def reset(self, lun, connection):
        """LOGICAL UNIT RESET: no session's task on it goes on, and other sessions are told."""
        for session in self.sessions:
            session.late = [late for late in session.late if late[0] is not lun]
            if session.connection is not connection:
                session.attentions.setdefault(lun.number, []).append((0x29, 0x03))
            tasks = session.connection.tasks
            for tag in [tag for tag, task in tasks.items() if task.lun is lun]:
                del tasks[tag]

    def late_writes_land(self):
        """Dead sessions carry out what they were sent; each once."""
        with self.lock:
            for session in self.sessions:
                late, session.late = session.late, []
                for lun, offset, data in late:
                    lun.write(offset, data)
                    self.note("landed", offset)

    def send_targets(self, which, discovery):
        names = ([] if self.options.unlisted else [self.iqn]) + list(self.options.other_targets)
        if which != "All":
            names = [name for name in names if name == (which or ("" if discovery else self.iqn))]
        addresses = [("TargetAddress", f"{portal},{number + 1}") for number, portal in enumerate(self.portals)]
        return [pair for name in names for pair in [("TargetName", name)] + addresses]

    # -- what a test does -------------------------------------------------------------------------------------------

    def drop(self, how=RST):
        """End all connections."""
        with self.lock:
            for connection in self._connections:
                connection.end(how)

    def power_cut(self, keeps=None):
        """What was not flushed is lost, but for writes of which `keeps(number)` is true; no session is left."""
        with self.lock:
            for session in self.sessions:
                session.late = []
            for lun in self.luns:
                lun.lose_unflushed(keeps)
            self.options = self.options._replace(attentions=((None, 0x29, 0x00),))
            self.note("power cut")
            self.drop()

    def replace(self, number, **changes):
        """Another LUN at the number, of the same size: zeros, and an identity of its own."""
        with self.lock:
            old = self.lun(number)
            new = Lun(number, old.size_bytes, block_size=old.block_size, **changes)
            self.luns[self.luns.index(old)] = new
        return new

    def written(self):
        """Whether anything was ever written to a LUN."""
        return any(task.cdb[0] in scsi.WRITES for task in self.commands)


class _Armed:
    """A quirk and how often its point was passed."""

    def __init__(self, item):
        self.quirk, self._passed = item, 0

    def fires(self, at, kind):
        item = self.quirk
        if at != item.at or (item.kinds and kind not in item.kinds):
            return False
        self._passed += 1
        number = self._passed - 1 - item.skip
        return number >= 0 and (item.times is None or number < item.times)


def _merge(options, more):
    for name, value in more.items():
        options[name] = dict(options.get(name, {}), **value) if isinstance(value, dict) else value


def _nexus(session):
    return session.initiator, session.isid, session.tpgt


def _listener(address, port):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(64)
    return sock


def _portal(listener):
    address, port = listener.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
