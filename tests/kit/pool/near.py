# SPDX-License-Identifier: LGPL-2.1-only
"""A client in the process of the simulated xapi reaches it without a network. It knows no time limit.

a call       the request and the answer come as Python has them, and nobody prints and parses some megabytes of XML in
             each test. What XML may change, or not carry, is printed and parsed
GET and PUT  only the socket is another one: what http.client writes and reads is HTTP as it goes over TCP, and the
             same handler answers it
"""

import http.client
import io
import socket
import xmlrpc.client
from contextlib import ExitStack, contextmanager
from unittest import mock

from . import wire
from .api import GoneAway, reply
from .server import Handler


class _Call:
    """What the client has printed for xmlrpc.client: a call that becomes bytes where it leaves the process."""

    def __init__(self, params, method, **options):
        self.params, self.method, self._options = params, method, options

    def encode(self, *_):
        return self

    def text(self):
        return _dumps(self.params, self.method, **self._options)

    def sent(self):
        """(parameters, method) as the server reads them."""
        try:
            return wire.plain(self.params), self.method
        except ValueError:
            return xmlrpc.client.loads(self.text())


_dumps, _far_request = xmlrpc.client.dumps, xmlrpc.client.Transport.single_request


@contextmanager
def near(server):
    """In the block, whoever connects to the address of this TcpServer, from this process, needs no network; with TLS,
    everybody does.
    """
    far, far_request = socket.create_connection, xmlrpc.client.Transport.single_request

    def connect(address, *more):
        is_near = address == server.server_address and not server.tls
        return _Socket(server) if is_near else far(address, *more)

    def request(transport, host, handler, body, verbose=False):
        connection = transport.make_connection(host)
        is_near = (connection.host, connection.port) == server.server_address and not server.tls
        if not is_near or type(connection) is not http.client.HTTPConnection:
            if far_request is _far_request and isinstance(body, _Call):
                body = body.text().encode("utf-8", "xmlcharrefreplace")
            return far_request(transport, host, handler, body, verbose)
        try:
            return (wire.as_read(reply(server.api, *body.sent(), server.local)),)
        except GoneAway:
            raise http.client.RemoteDisconnected("Remote end closed connection without response") from None
        except Exception as error:
            server.errors.append(error)
            raise http.client.RemoteDisconnected("the simulator has a mistake") from error

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(socket, "create_connection", connect))
        stack.enter_context(mock.patch.object(xmlrpc.client.Transport, "single_request", request))
        stack.enter_context(mock.patch.object(xmlrpc.client, "dumps", _Call))
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
