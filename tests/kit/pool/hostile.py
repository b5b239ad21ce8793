# SPDX-License-Identifier: LGPL-2.1-only
"""A server that is no xapi: it reads a request of HTTP, and answers with bytes of the test's choice.

A call of XML-RPC has the name of its method, any other request its first line without query and version: "GET /path".
"""

import socket
import threading
import xmlrpc.client


def http(body, *headers, first="HTTP/1.1 200 OK", length=True):
    """The bytes of an answer."""
    body = body if isinstance(body, bytes) else body.encode()
    lines = [first, *headers] + [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def xml(answer):
    """The answer with this value of XML-RPC."""
    document = xmlrpc.client.dumps((answer,), methodresponse=True, allow_none=True)
    return http(document, "Connection: close")  # one connection is served at a time


def success(value):
    return xml({"Status": "Success", "Value": value})


def refusal(*details):
    return xml({"Status": "Failure", "ErrorDescription": list(details)})


class HostileServer:
    """As a context manager. `answers` gives the bytes for the name of a call; after the bytes the connection ends."""

    def __init__(self, answers):
        self._answers, self.calls = answers, []
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(16)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._listening.close()
        assert not self._thread.is_alive()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                try:
                    self._answer(connection)
                except OSError:
                    pass  # the client has seen enough

    def _answer(self, connection):
        with connection.makefile("rb") as request:
            size, (kind, _, target) = 0, request.readline().decode("latin-1").partition(" ")
            for line in iter(request.readline, b"\r\n"):
                if not line:
                    return
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            body = request.read(size)
            method = xmlrpc.client.loads(body)[1] if kind == "POST" else f"{kind} {target.split('?')[0]}"
            self.calls.append(method)
            connection.sendall(self._answers(method))
            connection.shutdown(socket.SHUT_WR)
            while request.read(1 << 16):
                pass
