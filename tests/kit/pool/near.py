# SPDX-License-Identifier: LGPL-2.1-only
"""A client in the process of the simulated xapi reaches it without a network. It waits for nothing: where no answer
comes, its time is over at once.

A request   only the socket is another one: what http.client writes and reads is HTTP as it goes over TCP, and the same
            handler answers it
a call      of one piece (`HTTPConnection.request`) has the bytes of its body and of the answer, and no lines of HTTP:
            they were two thirds of the time of a call, and a test of the pool client makes hundreds
"""

import http.client
import io
import socket
from contextlib import ExitStack, contextmanager
from unittest import mock

from .api import GoneAway
from .server import Handler, posted


@contextmanager
def near(server):
    """In the block, whoever connects to the address of this TcpServer, from this process, needs no network; with TLS,
    everybody does.
    """
    far = socket.create_connection

    def connect(address, *more):
        is_near = address == server.server_address and not server.tls
        return _Socket(server) if is_near else far(address, *more)

    far_request, far_answer = http.client.HTTPConnection.request, http.client.HTTPConnection.getresponse

    def request(connection, method, path, body=None, *more, **options):
        is_near = (connection.host, connection.port) == server.server_address and not server.tls
        if method == "POST" and is_near and type(connection) is http.client.HTTPConnection:
            connection.near_call = server, path, body
        else:
            far_request(connection, method, path, body, *more, **options)

    def getresponse(connection):  # several pools may be near
        call = vars(connection).pop("near_call", None)
        return far_answer(connection) if call is None else _Response(*_posted(*call))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(socket, "create_connection", connect))
        stack.enter_context(mock.patch.object(http.client.HTTPConnection, "request", request))
        stack.enter_context(mock.patch.object(http.client.HTTPConnection, "getresponse", getresponse))
        yield


def _posted(server, path, body):
    try:
        return posted(server, path, body)
    except GoneAway:
        pass
    except Exception:  # noqa: BLE001 - as socketserver does
        server.handle_error(None, None)
    raise http.client.RemoteDisconnected("Remote end closed connection without response")


class _Response:
    """What a client asks of the answer to a call."""

    def __init__(self, status, body, _kind):
        self.status, self.reason, self._body = status, http.client.responses[status], body

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self):
        return self._body


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
            exchange = _Exchange(self._request, self._server)
            if exchange.is_silent:
                raise socket.timeout("timed out")
            self._reply = io.BytesIO(exchange.reply)
        return self._reply.readinto(buffer)


class _Exchange(Handler):
    """One request and its `reply`, b"" where the connection ends without one."""

    def __init__(self, request, server):
        self.server, self.client_address, self.is_silent = server, ("127.0.0.1", 0), False
        self.rfile, self.wfile = io.BytesIO(request), io.BytesIO()
        try:
            self.handle_one_request()
        except Exception:  # noqa: BLE001 - as socketserver does
            server.handle_error(self, self.client_address)
        self.reply = self.wfile.getvalue()

    def wait_for_the_end(self):
        self.is_silent = True
