# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over HTTP, on a unix socket and on TCP, there with TLS if wanted; a thread for each connection, kept alive."""

import http.server
import os
import socket
import socketserver
import ssl
import sys
import threading

from . import jsonrpc, wire
from .api import GoneAway, answer
from .errors import Silent
from .transfer import MOST_HEADER_BYTES

_OVER = (ConnectionError, socket.timeout, ssl.SSLError)
MOST_CALL_BYTES = 300 << 10  #: xapi reads no longer body. Source: xen-api constants.ml, http_limit_max_rpc_size
_NEVER = 3600.0  #: seconds. Nobody polls: in the VM that alone would take a tenth of its time. `stop` knocks


def posted(server, path, body):
    """(status, bytes, their type) of the answer to a call. Raises GoneAway."""
    if len(body) > MOST_CALL_BYTES:
        server.api.mistakes.append(f"a call of {len(body)} bytes")
        return 500, b"", "text/html"
    if path == jsonrpc.PATH:
        return 200, jsonrpc.response(server.api, body, server.local), "application/json"
    return 200, wire.response(answer(server.api, body, server.local)), "text/xml"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a short reply leaves in one piece

    def setup(self):
        self.disable_nagle_algorithm = not self.server.local  # the rest of a long one does not wait for 40 ms
        super().setup()

    def handle(self):
        """To a client of HTTPS, a port of HTTP is silent: the first byte is that of a TLS handshake."""
        if not self.rfile.peek(1).startswith(b"\x16"):
            super().handle()

    def parse_request(self):
        """What http.client and xapi's own clients write. The one of the base class knows all of HTTP, and mail beside
        it: it took a seventh of the time of a test of the pool client.
        """
        self.command, self.path, self.request_version = str(self.raw_requestline, "iso-8859-1").split()
        self.headers, self.head_bytes = {}, len(self.raw_requestline)
        for line in iter(self.rfile.readline, b"\r\n"):
            name, colon, value = str(line, "iso-8859-1").partition(":")
            if not colon:
                return False
            self.headers[name.title()] = value.lstrip(" \t").rstrip("\r\n")
            self.head_bytes += len(line)
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        return True

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        try:
            status, reply, kind = posted(self.server, self.path, body)
        except GoneAway:
            self.close_connection = True
            return
        end = {}
        if status != 200:
            self.close_connection, end = True, {"Connection": "close"}
        self._send(status, reply, {"Content-Type": kind, "Content-Length": len(reply), **end})

    def do_GET(self):
        self._transfer(b"")

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) == int(self.headers["Content-Length"]):
            self._transfer(body)

    def _transfer(self, body):
        """One request a connection; a request whose head is too long has none."""
        self.close_connection = True
        if self.head_bytes > MOST_HEADER_BYTES:
            return
        try:
            status, reply = self.server.api.transferred(self.command, self.path, self.headers, body, self.server.local)
        except GoneAway:
            return
        except Silent:
            self.wait_for_the_end()
            return
        headers = {"Location": reply.decode()} if status == 302 else {}
        if self.command == "GET":
            headers["Content-Length"] = len(reply)
        self._send(status, reply, {**headers, "Connection": "close"})

    def wait_for_the_end(self):
        """The client says nothing more, and ends the connection."""
        self.rfile.read(1)

    def _send(self, status, body, headers):
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format, *args):
        """Nothing: `Api.calls` and the log of driver calls say more."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address, api, local):
        self.api, self.local = api, local
        self.errors = []  #: exceptions of the simulator itself: a mistake in it, or a request it cannot read
        self._connections = {}  #: socket to thread
        super().__init__(address, Handler)
        self.thread = threading.Thread(target=self.serve_forever, args=(_NEVER,), daemon=True)
        self.thread.start()

    def process_request(self, request, client_address):
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._connections[request] = thread
        thread.start()

    def shutdown_request(self, request):
        super().shutdown_request(request)
        self._connections.pop(request, None)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, _OVER):  # a client that went away is none of our business
            self.errors.append(error)

    @property
    def is_idle(self):
        """Nobody is connected. The call of a client that was killed is under way until it has been answered."""
        return not self._connections

    def stop(self):
        """Accept no more, and end the connections there are; calls under way finish unheard."""
        threading.Thread(target=self.shutdown, daemon=True).start()
        while self.thread.is_alive():
            self._knock()
            self.thread.join(0.01)
        self.server_close()  # first: whatever becomes of the calls, the next server may have the address
        for request, thread in list(self._connections.items()):
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its client has closed it already
            thread.join(120)
            assert not thread.is_alive(), "a call to the simulated xapi does not end"

    def _knock(self):
        """Have `serve_forever` look up. Where the machine is busy, many knocks wait: the next one needs no room."""
        with socket.socket(self.address_family) as visitor:
            visitor.setblocking(False)
            visitor.connect_ex(self.server_address)


class TcpServer(_Server):
    """On an address of this machine, at a port of the kernel's choice unless one is given; `url` tells both.

    `tls` is the ssl.SSLContext of a server.
    """

    def __init__(self, api, address="127.0.0.1", port=0, tls=None):
        self.tls = tls
        super().__init__((address, port), api, local=False)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{address}:{self.server_address[1]}"

    def get_request(self):
        request, address = super().get_request()
        if self.tls:  # the handshake is left to the connection's own thread
            request = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address


class UnixServer(_Server):
    """On a unix socket, which must not exist; its directory must."""

    address_family = socket.AF_UNIX

    def __init__(self, api, path):
        self.path = str(path)
        super().__init__(self.path, api, local=True)

    def get_request(self):
        request, _ = self.socket.accept()
        return request, self.path

    def server_close(self):
        super().server_close()
        os.unlink(self.path)
