# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI, the SDK: its module, the transport that gives its sessions a time limit, and why a call has failed.

dom0 has the module, where the storage manager's drivers find it; elsewhere it comes from PyPI. It knows no time limit
and no certificates, and of unix sockets only those whose path has no underscore: `Transport` takes any connection.
"""

import http.client
import importlib
import os
import site
import socket
import ssl
import sys
import xmlrpc.client
from typing import Any, Callable, Mapping, Optional, cast
from xml.parsers import expat

from relvmoiscsi.errors import NotFound

#: what a connection may end in; on Python 3.6 a certificate for another host is no OSError
GONE = (OSError, ssl.CertificateError, http.client.HTTPException, xmlrpc.client.Error, expat.ExpatError)


def module() -> Any:
    """The module XenAPI. Raises NotFound where there is none."""
    if sys.flags.no_site:  # as the package starts Python: it begins faster so, and without dom0's XenAPI
        site.main()
    try:
        return importlib.import_module("XenAPI")
    except ImportError as error:
        raise NotFound(
            "The Python module XenAPI is not here. Install it: `pip install .[pool]` in a clone of relvmoiscsi's "
            "repository; dom0 has its own."
        ) from error


class Transport(xmlrpc.client.Transport):
    """Calls over the connections that `connection` makes; they have the time limit.

    The standard library sends a call once more where the answer to a first one was lost. With `is_sent_once` a call is
    sent once, over a connection of its own: xapi ends a connection that is idle for as long as a LUN may take.
    """

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


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, with a time limit for each wait."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = os.fspath(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def reason(error: BaseException) -> str:
    """Why a connection failed, in words."""
    if isinstance(error, ssl.SSLError):
        return (getattr(error, "verify_message", "") or error.reason or str(error)).rstrip(".")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, xmlrpc.client.ProtocolError):
        return f"it answered {error.errcode} {error.errmsg}"
    if isinstance(error, xmlrpc.client.Fault):
        return f"it answered the fault {error.faultCode}, {error.faultString}"
    return str(error) or type(error).__name__
