# SPDX-License-Identifier: LGPL-2.1-only
"""A proxy on loopback that forwards to a target, and cuts, or falls silent.

    with CuttingProxy(target.portal, [Cut("out", 1234)]) as proxy:      proxy.portal is what the initiator is given
        ...
    proxy.lengths()                                 bytes of the whole run, by direction

"out" is what the initiator sends, "in" is what it gets. A cut counts the bytes of one direction over all connections,
so a further Cut strikes the connection that came after. The bytes before the cut have arrived; no byte after it has.
"""

import socket
import struct
import threading
import time
from typing import NamedTuple

from .idle_time import AT_WORK, Rest, is_unsent

RST, SILENCE = "RST", "silence"
_PIECE = 1 << 16


class Cut(NamedTuple):
    """After `after` bytes in a direction, "out" or "in": RST, or silence of both sides."""

    way: str
    after: int
    how: str = RST


def write_pcap(pieces, path):
    """What went through a proxy as a capture file, for programs that take it apart; the target's port is 3260."""
    reached = {}
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 101))  # raw IP
        for index, (number, way, whole) in enumerate(pieces):
            for start in range(0, len(whole), 32000):
                data = whole[start : start + 32000]
                ports = (40000 + number, 3260) if way == "out" else (3260, 40000 + number)
                here, there = reached.get((number, way), 1), reached.get((number, "in" if way == "out" else "out"), 1)
                tcp = struct.pack(">HHIIBBHHH", *ports, here, there, 0x50, 0x18, 65535, 0, 0)
                length = 40 + len(data)
                ends = b"\x7f\0\0\1\x7f\0\0\2" if way == "out" else b"\x7f\0\0\2\x7f\0\0\1"
                packet = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 64, 6, 0) + ends + tcp + data
                file.write(struct.pack("<IIII", index, 0, length, length) + packet)
                reached[number, way] = here + len(data)


class CuttingProxy:
    """See the module."""

    def __init__(self, portal, cuts=()):
        self._to = _address(portal)
        self._cuts = list(cuts)
        self._lock = threading.Condition()
        self._passed = {"out": 0, "in": 0}
        self._links, self._threads = [], []
        self.rests = []  #: of its threads
        self.pieces = []  #: [(number of the connection, way, bytes)], as they went through
        self.connections = self.cut = 0

    @property
    def portal(self):
        return "{}:{}".format(*self._listener.getsockname()[:2])

    @property
    def port(self):
        return self._listener.getsockname()[1]

    def __enter__(self):
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        AT_WORK.append(self)
        self._start(self._accept, Rest())
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(60)
        self._listener.close()
        for link in list(self._links):
            link.stop()
        AT_WORK.remove(self)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread of the proxy did not end"

    def lengths(self):
        with self._lock:
            return dict(self._passed)

    def wait_for_cut(self, count=1, timeout=600.0):
        with self._lock:
            assert self._lock.wait_for(lambda: self.cut >= count, timeout), f"there was no cut in {timeout} s"

    # -- threads ----------------------------------------------------------------------------------------------------

    def _start(self, function, rest, *args):
        def run():
            try:
                function(rest, *args)
            finally:
                rest.is_over = True

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        self.rests.append(rest)
        thread.start()

    def _accept(self, rest):
        while True:
            try:
                rest.until_readable(self._listener)
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(self._to, 60)
            except OSError:
                _reset(near)
                continue
            link = _Link(near, far, self.connections)
            self._links.append(link)
            self._start(self._forward, Rest([near, far]), link)

    def _forward(self, rest, link):
        """Both directions of a connection, until it ends or is cut."""
        try:
            while True:
                for source in rest.until_readable(link.near, link.far, link.waker):
                    if source is link.waker or not self._pass_on(rest, link, source):
                        return
        except OSError:
            pass  # one side has reset; the other one hears of it now
        finally:
            link.close()
            self._links.remove(link)

    def _pass_on(self, rest, link, source):
        way = "out" if source is link.near else "in"
        data = source.recv(_PIECE)
        if not data:
            return False
        data, cut = self._until_cut(way, data)
        sink = link.far if source is link.near else link.near
        sink.sendall(data)
        self.pieces.append((link.number, way, data))
        if cut is None:
            return True
        with self._lock:
            self.cut += 1
            self._lock.notify_all()
        if cut.how == SILENCE:
            rest.until_readable(link.waker)
        else:
            link.reset(sink)
        return False

    def _until_cut(self, way, data):
        with self._lock:
            before = self._passed[way]
            reached = [cut for cut in self._cuts[:1] if cut.way == way and cut.after <= before + len(data)]
            if reached:
                data = data[: max(0, reached[0].after - before)]
                del self._cuts[0]
            self._passed[way] = before + len(data)
        return data, reached[0] if reached else None


class _Link:
    """A connection from the initiator, `near`, and the one to the target, `far`."""

    def __init__(self, near, far, number):
        self.near, self.far, self.number = near, far, number
        self.waker, self._wake = socket.socketpair()
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(600)

    def reset(self, sink):
        """Bytes sent before a RST are taken by a receiver that reads at once."""
        _await_taken(sink)
        _linger(self.near)
        _linger(self.far)

    def stop(self):
        try:
            self._wake.send(b"x")
        except OSError:
            pass  # it has ended by itself

    def close(self):
        for sock in (self.near, self.far, self.waker, self._wake):
            sock.close()


def _await_taken(sock):
    """Wait, a minute at most, until the other side's kernel has acknowledged all that was sent."""
    for _ in range(60000):
        if not is_unsent(sock):
            return
        time.sleep(0.001)


def _linger(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _reset(sock):
    _linger(sock)
    sock.close()


def _address(portal):
    host, port = portal.rsplit(":", 1)
    return host.strip("[]"), int(port)
