# SPDX-License-Identifier: LGPL-2.1-only
"""A server that is no xapi: it reads a request of HTTP, and answers with bytes of the test's choice.

A call of JSON-RPC has the name of its method, any other request its first line without query and version: "GET /path".
"""

import copy
import json
import socket
import threading
from contextlib import contextmanager

JUNK = ["", "x", True, 7, 0.5, [], {}, ["x"], {"x": "y"}, [["x"]], "OpaqueRef:NULL", "\u009b2J", "9" * 30, None]


def http(body, *headers, first="HTTP/1.1 200 OK", length=True):
    """The bytes of an answer."""
    body = body if isinstance(body, bytes) else body.encode()
    lines = [first, *headers] + [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def said(document):
    """The answer that is this value of JSON."""
    return http(json.dumps(document), "Connection: close")  # one connection is served at a time


def success(value):
    return said({"result": value, "error": None, "id": 1})


def refusal(*details):
    return said({"result": None, "error": list(details), "id": 1})


@contextmanager
def forged_answer(api, chance, most):
    """A block in which one of the first `most` answers of a simulated pool has another value at one place, or none.

    Gives a list that gets the method and the answer.
    """
    told, real, left = [], api.call, [chance.randrange(1, most)]

    def call(method, *words, **more):
        found = real(method, *words, **more)
        left[0] -= method != "session.login_with_password"
        if left[0] == 0:
            told.append((method, _forged(found, chance)))
            return told[0][1]
        return found

    api.call = call
    try:
        yield told
    finally:
        del api.call
        api.mistakes.clear()  # a forged reference is one that no real xapi has


def _forged(value, chance):
    value = copy.deepcopy(value)
    *way, last = chance.choice([at for at in _places(value) if at] or [("",)])
    if last == "":
        return chance.choice(JUNK)
    inside = value
    for key in way:
        inside = inside[key]
    if isinstance(inside, dict) and not chance.randrange(3):
        del inside[last]
    else:
        inside[last] = chance.choice(JUNK)
    return value


def _places(value, at=()):
    """The ways to each value in an answer."""
    yield at
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(each, (*at, key))


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
            method = json.loads(body.decode())["method"] if kind == "POST" else f"{kind} {target.split('?')[0]}"
            self.calls.append(method)
            connection.sendall(self._answers(method))
            connection.shutdown(socket.SHUT_WR)
            while request.read(1 << 16):
                pass
