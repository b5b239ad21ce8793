# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI, the SDK: its Python module, a transport with a time limit for its sessions, and reasons of failed calls.

In dom0 the module is beside the storage manager's drivers; elsewhere the module comes from PyPI. The SDK has no time
limit and no certificates. The SDK rejects Unix sockets with an underscore in the path. `Transport` takes any
connection.
"""

import http.client
import importlib
import io
import math
import os
import re
import site
import socket
import ssl
import sys
import time
import xmlrpc.client
from functools import partial
from typing import Any, Callable, Mapping, Optional, cast
from xml.parsers import expat

from relvmoiscsi import untrusted_xml
from relvmoiscsi.errors import NotInstalled

#: what a failed connection raises; on Python 3.6 a certificate for another host is no OSError
GONE = (OSError, ssl.CertificateError, http.client.HTTPException, xmlrpc.client.Error, expat.ExpatError)


#: of one answer: the records of all VDIs of a pool with some 100000 of them
MOST_ANSWER_BYTES = 256 << 20
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
        """Read as HTTPResponse does. Raises HTTPException for an answer that is too large."""
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
            raise http.client.HTTPException(f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB")


def module() -> Any:
    """Return the module XenAPI. Raises NotInstalled if Python cannot import it."""
    if sys.flags.no_site:  # the package starts Python with -S, which is faster but cannot find dom0's XenAPI
        site.main()
    try:
        return importlib.import_module("XenAPI")
    except ImportError as error:
        raise NotInstalled(
            "The Python module XenAPI is not here; dom0 has its own. On this machine install it, with "
            "`pip install '.[pool]'` in a clone of relvmoiscsi's repository, and give a pool command --pool."
        ) from error


#: such as `OpaqueRef:…`. References of a session and of a task become parts of headers
_REFERENCE = re.compile("[A-Za-z0-9:._-]{1,255}")


def is_reference(value: Any) -> bool:
    """Is this the name of an object of xapi?"""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def session(url: str, transport: xmlrpc.client.Transport) -> Any:
    """Return a session of the SDK without a login. Raises NotInstalled without the module.

    The SDK takes any answer to a login for the session, and sends it back with each call.
    """

    class VerifiedSession(module().Session):  # type: ignore[misc]
        def _login(self, method: str, params: Any) -> None:
            super()._login(method, params)
            if not is_reference(self.handle):
                self._session = None
                raise xmlrpc.client.ResponseError("the answer to the login has no session")

    return VerifiedSession(url, transport=transport)


class XapiTransport(xmlrpc.client.Transport):
    """Calls over connections that `connection` makes and gives a time limit.

    The standard library repeats a call if the answer to the first was lost. With `is_sent_once` the transport sends a
    call once, over a new connection: xapi closes a connection that is idle for as long as a resignature may take.
    """

    accept_gzip_encoding = False  # BoundedResponse refuses a compressed answer

    def __init__(
        self,
        connection: Callable[[], http.client.HTTPConnection],
        is_sent_once: bool = False,
        headers: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__()
        self._make, self._is_sent_once = connection, is_sent_once
        self._extra_headers = list((headers or {}).items())

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        if self._connection[1] is None:
            self._connection = host, self._make()
        return cast(http.client.HTTPConnection, self._connection[1])

    def request(self, host: Any, handler: str, request_body: Any, verbose: bool = False) -> Any:
        if not self._is_sent_once:
            return super().request(host, handler, request_body, verbose)
        try:
            return self.single_request(host, handler, request_body, verbose)
        finally:
            self.close()

    def getparser(self) -> Any:
        return untrusted_xml.xmlrpc_parser()

    def parse_response(self, response: Any) -> Any:
        """Return an answer that the SDK can read. Raises the errors in GONE, for any bytes."""
        try:
            found = super().parse_response(response)
        except xmlrpc.client.Fault as fault:
            if isinstance(fault.faultCode, int) and isinstance(fault.faultString, str):
                raise
            raise xmlrpc.client.ResponseError("the answer is a fault without a text") from fault
        except GONE:
            raise
        except Exception as error:  # the parser raises errors of many kinds for values that it does not expect
            raise xmlrpc.client.ResponseError(f"the answer is no XML-RPC ({error or type(error).__name__})") from error
        answer = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
        details = answer.get("ErrorDescription")
        is_success = answer.get("Status") == "Success" and "Value" in answer
        is_error = answer.get("Status") == "Failure" and isinstance(details, list) and len(details) > 0
        # The SDK looks at the values without a check.
        if not is_success and not (is_error and all(isinstance(detail, str) for detail in details or ())):
            raise xmlrpc.client.ResponseError("the answer is XML-RPC, and no answer of xapi")
        return found


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


def reason(error: BaseException) -> str:
    """Return why a connection failed, in words."""
    if isinstance(error, ssl.SSLError):
        return (getattr(error, "verify_message", "") or error.reason or str(error)).rstrip(".")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, xmlrpc.client.ProtocolError):
        return f"it answered {error.errcode} {error.errmsg}"
    if isinstance(error, xmlrpc.client.ResponseError):
        return str(error.args[0]) if error.args else "the answer is no XML-RPC"
    if isinstance(error, expat.ExpatError):
        return f"the answer is no XML ({error})"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer is incomplete"
    if isinstance(error, (http.client.BadStatusLine, http.client.UnknownProtocol)) and not isinstance(error, OSError):
        return "the answer is no HTTP"
    if isinstance(error, xmlrpc.client.Fault):
        return f"it answered the fault {error.faultCode}, {error.faultString}"
    return str(error) or type(error).__name__
