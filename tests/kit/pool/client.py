# SPDX-License-Identifier: LGPL-2.1-only
"""Clients of the pool: the XenAPI package from PyPI, over TCP and over the unix socket."""

import http.client
import socket
import xmlrpc.client
from contextlib import contextmanager

import XenAPI


class _TcpTransport(xmlrpc.client.Transport):
    def __init__(self, timeout_s):
        super().__init__()
        self._timeout_s = timeout_s

    def make_connection(self, host):
        if host != self._connection[0]:
            self._connection = host, http.client.HTTPConnection(host, timeout=self._timeout_s)
        return self._connection[1]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout_s):
        super().__init__("localhost")
        self._path, self._timeout_s = path, timeout_s

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


class _UnixTransport(xmlrpc.client.Transport):
    """To any path. XenAPI.UDSTransport takes only paths without an underscore."""

    def __init__(self, path, timeout_s):
        super().__init__()
        self._path, self._timeout_s = path, timeout_s

    def make_connection(self, host):
        if host != self._connection[0]:
            self._connection = host, _UnixConnection(self._path, self._timeout_s)
        return self._connection[1]


@contextmanager
def connected(pool, timeout_s=None):
    """A XenAPI.Session over TCP, logged in as root; the connection is closed at the end.

    `timeout_s`: how long an answer may take before socket.timeout; CloudStack's is 60.
    """
    with _closing(XenAPI.Session(pool.url, _TcpTransport(timeout_s))) as session:
        session.xenapi.login_with_password(pool.api.user, pool.api.password, "2.21", "tests")
        yield session


@contextmanager
def connected_locally(pool, timeout_s=None):
    """The same over the unix socket, where root needs no password."""
    with _closing(XenAPI.Session("http://localhost/", _UnixTransport(str(pool.socket_path), timeout_s))) as session:
        session.xenapi.login_with_password("root", "", "2.21", "tests")
        yield session


@contextmanager
def _closing(session):
    try:
        yield session
    finally:
        session("close")()


def xe_error(failure):
    """What `xe` writes to stderr for a XenAPI.Failure."""
    code, *params = failure.details
    return "Error code: {}\nError parameters: {}\n".format(code, ", ".join(params))
