# SPDX-License-Identifier: LGPL-2.1-only
"""Calls to xapi as JSON-RPC 1.0, over a connection with a time limit and a size limit; and reasons of failed calls.

xapi answers the same calls as XML-RPC, which its SDK uses. There xapi writes the keys of a map as they are: whoever may
write a key, such as one of a VM's other_config with `</name>` in it, can forge records for each client that reads
XML-RPC. In JSON, a key is a text. The hosts of a pool call their master by JSON-RPC as well. Source: xen-api
ocaml/xapi/api_server.ml, helpers.ml; mirage/ocaml-rpc src/lib/jsonrpc.ml, src/lib/xmlrpc.ml.
"""

import http.client
import io
import json
import math
import os
import re
import socket
import ssl
import time
from functools import partial
from http import HTTPStatus
from typing import Any, Callable, List, Mapping, Optional, Sequence, cast

from relvmoiscsi import untrusted
from relvmoiscsi.errors import UsageError
from relvmoiscsi.wording import cut, said

PATH = "/jsonrpc"
#: of one answer: the records of all VDIs of a pool with some 50000 of them
MOST_ANSWER_BYTES = 128 << 20
MOST_CALL_BYTES = 300 << 10  #: xapi reads no longer body of a call. Source: ocaml/xapi-consts/constants.ml
_MOST_VALUES, _MOST_INNER = 1 << 22, 1 << 20  #: of such an answer; a record of a VDI has 70 and 12
SLOWEST_BYTES = 256 << 10  #: a second, of a large answer over a slow line
_PIECE_BYTES = 1 << 16
#: of all lines of one answer: status, headers, sizes of chunks, and what follows the last chunk
_MOST_LINE_BYTES = 8 << 20


class _BoundedLines(io.BufferedReader):
    """The file of an answer. Lines may come for ever: http.client skips each `100 Continue`, and each trailer."""

    _left = _MOST_LINE_BYTES

    def readline(self, limit: Optional[int] = -1) -> bytes:
        line = super().readline(limit)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException("the answer has lines without end")
        return line


class _TimedSocket(io.RawIOBase):
    """The bytes of one answer. The time limit of the socket is for the answer, and not for each byte of it.

    Each SLOWEST_BYTES give one second more.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._file = connection, cast(io.RawIOBase, connection.makefile("rb", buffering=0))
        self._limit = connection.gettimeout()
        self._until = math.inf if self._limit is None else time.monotonic() + self._limit

    def makefile(self, *_: Any) -> _BoundedLines:
        """Return the file, as HTTPResponse asks a socket for it."""
        return _BoundedLines(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        """Raises socket.timeout."""
        if self._limit is None:
            return self._file.readinto(buffer)
        left = self._until - time.monotonic()
        if left <= 0:
            raise socket.timeout(f"the answer was not complete after {self._limit:.0f} seconds")
        self._socket.settimeout(left)
        try:
            count = self._file.readinto(buffer)
        finally:
            self._socket.settimeout(self._limit)
        self._until += (count or 0) / SLOWEST_BYTES
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    """An answer that is read up to MOST_ANSWER_BYTES, and within its time: a hostile server could send for ever."""

    _read_bytes = 0

    def __init__(self, sock: Any, *arguments: Any, **more: Any) -> None:
        super().__init__(cast(Any, _TimedSocket(sock)), *arguments, **more)

    def begin(self) -> None:
        """Read the headers. Raises HTTPException for a compressed answer: some bytes could become any number."""
        super().begin()
        if self.getheader("Content-Encoding", "identity") != "identity":
            raise http.client.HTTPException("the answer is compressed")

    def read(self, amt: Optional[int] = None) -> bytes:
        """Read as HTTPResponse does. Raises TooLarge."""
        if amt is None and self.length is None:  # a server may end such an answer where it likes, or never
            return b"".join(iter(partial(self.read, _PIECE_BYTES), b""))
        self._read_bytes += self.length or 0 if amt is None else 0
        self._verify()
        data = super().read(amt)
        self._read_bytes += len(data) if amt is not None else 0
        self._verify()
        return data

    def _read_next_chunk_size(self) -> int:
        """Raises ValueError, which http.client takes for a broken answer: a negative size would have no limit."""
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise ValueError(size)
        return size

    def _verify(self) -> None:
        if self._read_bytes > MOST_ANSWER_BYTES:
            raise TooLarge(f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB")


_MOST_SAID = 60  #: characters of an answer in a message

#: such as `OpaqueRef:…`. References of a session and of a task become parts of headers
_REFERENCE = re.compile("[A-Za-z0-9:._-]{1,255}")


def is_reference(value: Any) -> bool:
    """Is this the name of an object of xapi?"""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


#: a name in an error of xapi: of a class, a field, an operation, an object. Any other text may be a stranger's
_NAME = re.compile("[A-Za-z0-9/:._-]{1,80}")


def word(parameter: str) -> str:
    """Return the code or a parameter of an error of xapi, for a sentence: in quotes and cut, unless it is a name."""
    return parameter if _NAME.fullmatch(parameter) else said(parameter)


#: how many parts an error of relvmoiscsi's own host plugin has: this code, the function, a sentence
_OF_PLUGIN, _PARTS = "RELVMOISCSI_FAILURE", 3


def sentence(method: str, details: Sequence[str]) -> str:
    """Return an error of xapi to a method as a sentence: the code and the parameters as words.

    The host plugin of relvmoiscsi answers a sentence, in which it has quoted and cut the words of strangers. Only root
    of a host writes a plugin, and only host.call_plugin has an answer of one.
    """
    if method == "host.call_plugin" and details[0] == _OF_PLUGIN and len(details) == _PARTS:
        return f"{method}: {cut(details[-1]).rstrip('.')}."
    return f"xapi answered {', '.join(map(word, details))} to {method}."


class Refusal(Exception):
    """xapi's error: the code, and its parameters."""

    def __init__(self, details: List[str]) -> None:
        super().__init__(*details)
        self.details = details


class NoAnswer(Exception):
    """What was answered is no answer of xapi; the text is a clause."""


class TooLarge(NoAnswer):
    """An answer was not read to its end, or not taken apart. It may be xapi's: users of a pool fill its records."""


class TooLong(NoAnswer):
    """A call was not sent, because xapi reads no call so long."""


#: what a failed connection raises; on Python 3.6 a certificate for another host is no OSError
GONE = (OSError, ssl.CertificateError, http.client.HTTPException, NoAnswer)


class Connection:
    """Calls over a connection that `make` opens, for the first call and after each failure.

    A connection that was idle may be closed: xapi closes one that is idle for as long as a resignature may take. Then
    the call is repeated once, unless `is_sent_once`. xapi may have run the first call, and its answer was lost.
    """

    def __init__(
        self,
        make: Callable[[], http.client.HTTPConnection],
        is_sent_once: bool = False,
        headers: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._make, self._is_sent_once = make, is_sent_once
        self._headers = {**(headers or {}), "Content-Type": "application/json", "User-Agent": "relvmoiscsi"}
        self._open: Optional[http.client.HTTPConnection] = None

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method. Raises Refusal for an error of xapi, UsageError, and the errors in GONE."""
        body = body_of({"method": method, "params": arguments, "id": 1})
        if len(body) > MOST_CALL_BYTES:
            raise TooLong("the arguments are longer than xapi reads")
        if not self._is_sent_once:
            try:
                return self._exchange(body)
            except (BrokenPipeError, ConnectionAbortedError, ConnectionResetError):
                pass
        return self._exchange(body)

    def log_in(self, user: str, password: str) -> str:
        """Return the reference of a new session. Raises the errors of `call`."""
        session: str = self.call("session.login_with_password", user, password, "1.0", "relvmoiscsi")
        if not is_reference(session):
            raise NoAnswer("the answer to the login has no session")
        return session

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _exchange(self, body: bytes) -> Any:
        """Raises the errors of `call`. A connection that has failed may be in the middle of an answer."""
        if self._open is None:
            self._open = self._make()
        try:
            self._open.request("POST", PATH, body, self._headers)
            with self._open.getresponse() as response:
                text = response.read()
                if response.status != HTTPStatus.OK:
                    raise NoAnswer(f"it answered {response.status} {response.reason}")
        except BaseException:
            self.close()
            raise
        if self._is_sent_once:
            self.close()
        return result(text)


def body_of(value: Any) -> bytes:
    """Return a call, or a part of one, as it is sent. Raises UsageError."""
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("A word for a call to xapi is no text in UTF-8.") from error


def result(text: bytes) -> Any:
    """Return the result in an answer. Raises Refusal, and NoAnswer for any other bytes."""
    try:
        # xapi keeps a map as a list of pairs, and looks for the first; a client may set two with one key.
        answer = untrusted.json_of(
            text, MOST_ANSWER_BYTES, _MOST_VALUES, _MOST_INNER, fraction=float, members=untrusted.first_of_each
        )
    except untrusted.OverLimit as error:
        raise TooLarge(f"the answer is too large: {error}") from error
    except ValueError as error:
        raise NoAnswer(f"the answer is no JSON ({error})") from error
    details = answer.get("error") if isinstance(answer, dict) else ""
    if details is None and "result" in answer:
        return answer["result"]
    if isinstance(details, list) and details and all(isinstance(detail, str) for detail in details):
        raise Refusal(details)
    raise NoAnswer("the answer is JSON, and no answer of xapi")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, with a time limit for each answer."""

    response_class = BoundedResponse

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = os.fspath(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def is_nobody(error: BaseException) -> bool:
    """Did a connection to a Unix socket fail because no program listens there?"""
    return isinstance(error, (FileNotFoundError, ConnectionRefusedError))


def is_junk(error: BaseException) -> bool:
    """Did bytes come that are no answer? Else none came, or not all: the connection was closed, or silent."""
    is_cut = isinstance(error, (OSError, http.client.IncompleteRead))
    return isinstance(error, (http.client.HTTPException, NoAnswer)) and not is_cut


def reason(error: BaseException) -> str:
    """Return why a connection failed, in words."""
    if isinstance(error, ssl.SSLError):
        return (getattr(error, "verify_message", "") or error.reason or str(error)).rstrip(".")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, http.client.IncompleteRead):
        return "the answer is incomplete"
    if isinstance(error, (http.client.BadStatusLine, http.client.UnknownProtocol)) and not isinstance(error, OSError):
        return f"the answer is no HTTP, and begins with {said(str(error)[:_MOST_SAID].strip())}"
    return str(error) or type(error).__name__
