# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over the socket of this host, with the session that xapi hands to a plugin.

A reply is a struct: Status, and Value or ErrorDescription. Nothing is logged here: arguments hold the session.
"""

import http.client
import socket
import xmlrpc.client
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple
from xml.parsers.expat import ExpatError

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.this_host import THIS_HOST

TIMEOUT_SECONDS = 20.0
_SHORTEST = 0.1  # seconds


class XapiFailure(RelvmoiscsiError):
    """xapi did not answer, or answered with an error."""

    exit_status = 6
    sm_key = "APIFailure"

    def __init__(self, method: str, description: List[str], problem: str = "") -> None:
        answer = "xapi answered {} to {}.".format(", ".join(description) or "nothing", method)
        super().__init__(f"{method} could not be asked of xapi: {problem}." if problem else answer)
        self.method = method
        self.description = description

    @property
    def code(self) -> str:
        """The first word of xapi's error: "UUID_INVALID"."""
        return self.description[0] if self.description else ""


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _SocketTransport(xmlrpc.client.Transport):
    def __init__(self, path: str, timeout: Callable[[], float], headers: Mapping[str, str]) -> None:
        super().__init__()
        self._path, self._timeout, self._extra = path, timeout, dict(headers)

    def make_connection(self, host: Any) -> _SocketConnection:
        # Kept where the base class closes it.
        self._connection = host, _SocketConnection(self._path, self._timeout())
        return self._connection[1]

    def send_headers(self, connection: Any, headers: List[Tuple[str, str]]) -> None:
        super().send_headers(connection, [*headers, *self._extra.items()])


class Xapi:
    """A session that somebody else has opened and will close."""

    def __init__(
        self,
        session_ref: str,
        socket_path: str = THIS_HOST.xapi_socket,
        subtask_of: str = "",
        timeout: float = TIMEOUT_SECONDS,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        headers = {"Subtask-of": subtask_of} if subtask_of else {}
        # 0 would mean not to wait at all, for what is answered in a millisecond
        transport = _SocketTransport(socket_path, lambda: max(_SHORTEST, deadline.within(timeout)), headers)
        self._session_ref = session_ref
        self._proxy = xmlrpc.client.ServerProxy("http://localhost/", transport=transport)

    def call(self, method: str, *arguments: Any) -> Any:
        """The Value of xapi's answer to, say, "PBD.get_all_records". Raises XapiFailure."""
        return self._call(method, self._session_ref, *arguments)

    def login(self) -> str:
        """A session of root, for somebody else to use: the socket's owner needs no password. Raises XapiFailure."""
        return str(self._call("session.login_with_password", "root", "", "1.0", "relvmoiscsi"))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            reply = getattr(self._proxy, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error, ExpatError, ValueError) as error:
            raise XapiFailure(method, [], str(error) or type(error).__name__) from error
        finally:
            self._proxy("close")()  # xapi ends a connection that is idle for as long as a LUN may take
        if not isinstance(reply, dict) or reply.get("Status") != "Success":
            description = reply.get("ErrorDescription", []) if isinstance(reply, dict) else []
            raise XapiFailure(method, [str(item) for item in description])
        return reply.get("Value")

    def records(self, kind: str) -> Dict[str, Dict[str, Any]]:
        """All records of a class, by reference."""
        found: Optional[Dict[str, Dict[str, Any]]] = self.call(kind + ".get_all_records")
        return found or {}

    def secret(self, uuid: str) -> str:
        """The value of a secret. Raises XapiFailure with SM's key for a secret that is not there."""
        try:
            return str(self.call("secret.get_value", self.call("secret.get_by_uuid", uuid)))
        except XapiFailure as failure:
            failure.sm_key = "InvalidSecret"
            raise


@contextmanager
def local_session(socket_path: str = THIS_HOST.xapi_socket, timeout: float = TIMEOUT_SECONDS) -> Iterator[str]:
    """A session of our own, for a command that xapi has not started; `timeout` is for each answer, in seconds.

    Raises XapiFailure.
    """
    session_ref = Xapi("", socket_path, timeout=timeout).login()
    try:
        yield session_ref
    finally:
        try:
            Xapi(session_ref, socket_path, timeout=timeout).call("session.logout")
        except XapiFailure:
            pass  # xapi went away, or will end a session that nobody uses
