# SPDX-License-Identifier: LGPL-2.1-only
"""A client in the process of the simulated xapi reaches it without a network. It knows no time limit.

Only the socket is another one: what http.client writes and reads is HTTP as it goes over TCP, and the same handler
answers it.
"""

import io
import socket
from contextlib import contextmanager
from unittest import mock

from .server import Handler


@contextmanager
def near(server):
    """In the block, whoever connects to the address of this TcpServer, from this process, needs no network; with TLS,
    everybody does.
    """
    far = socket.create_connection

    def connect(address, *more):
        is_near = address == server.server_address and not server.tls
        return _Socket(server) if is_near else far(address, *more)

    with mock.patch.object(socket, "create_connection", connect):
        yield


class _Socket:
    """What http.client asks of a socket. It writes a whole request before it reads the first byte of the answer."""

    def __init__(self, server):
        self._server, self._request = server, []

    def sendall(self, data):
        self._request.append(data)

    def makefile(self, _mode, buffering=-1):
        request, self._request = b"".join(self._request), []
        answer = _Answer(request, self._server)
        return io.BufferedReader(answer) if buffering else answer

    def gettimeout(self):
        """It never waits."""

    def setsockopt(self, *_):
        pass

    def close(self):
        pass


class _Answer(io.RawIOBase):
    """The request is answered when somebody reads: an exception from there finds a whole HTTPResponse."""

    def __init__(self, request, server):
        self._request, self._server, self._reply = request, server, None

    def readable(self):
        return True

    def readinto(self, buffer):
        if self._reply is None:
            self._reply = io.BytesIO(_Exchange(self._request, self._server).reply)
        return self._reply.readinto(buffer)


class _Exchange(Handler):
    """One request and its `reply`, b"" where the connection ends without one."""

    def __init__(self, request, server):
        self.server, self.client_address = server, ("127.0.0.1", 0)
        self.rfile, self.wfile = io.BytesIO(request), io.BytesIO()
        try:
            self.handle_one_request()
        except Exception:  # noqa: BLE001 - as socketserver does
            server.handle_error(self, self.client_address)
        self.reply = self.wfile.getvalue()
