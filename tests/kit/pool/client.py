# SPDX-License-Identifier: LGPL-2.1-only
"""Clients of the pool: the XenAPI package from PyPI, over TCP and over the unix socket."""

import http.client
import socket
import xmlrpc.client
from contextlib import contextmanager

import XenAPI


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, **options):
        super().__init__("localhost", **options)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Transport(xmlrpc.client.Transport):
    """Over TCP, or to a unix socket of any `path`: XenAPI.UDSTransport takes only paths without an underscore."""

    def __init__(self, timeout_s, path=None):
        super().__init__()
        self._timeout_s, self._path = timeout_s, path

    def make_connection(self, host):
        if host != self._connection[0]:
            kind, where = (_UnixConnection, self._path) if self._path else (http.client.HTTPConnection, host)
            self._connection = host, kind(where, timeout=self._timeout_s)
        return self._connection[1]


def connected(pool, timeout_s=None):
    """A XenAPI.Session over TCP, logged in as root; the connection is closed at the end.

    `timeout_s`: how long an answer may take before socket.timeout; CloudStack's is 60.
    """
    return _session(pool.url, _Transport(timeout_s), pool.api.user, pool.api.password)


def connected_locally(pool, timeout_s=None):
    """The same over the unix socket, where root needs no password."""
    return _session("http://localhost/", _Transport(timeout_s, str(pool.socket_path)), "root", "")


@contextmanager
def _session(url, transport, user, password):
    session = XenAPI.Session(url, transport)
    try:
        session.xenapi.login_with_password(user, password, "2.21", "tests")
        yield session
    finally:
        session("close")()


def xe_error(failure):
    """What `xe` writes to stderr for a XenAPI.Failure."""
    code, *params = failure.details
    return "Error code: {}\nError parameters: {}\n".format(code, ", ".join(params))
