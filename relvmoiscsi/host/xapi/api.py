# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over the socket of this host, with the session that xapi hands to a plugin.

A reply is a struct: Status, and Value or ErrorDescription. Nothing is logged here: arguments hold the session.
"""

import socket
from contextlib import contextmanager
from typing import Any, BinaryIO, Dict, Iterator, List, Optional

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import xml_rpc

TIMEOUT_SECONDS = 20.0
_SHORTEST = 0.1  # seconds
_LONGEST_LINE = 1 << 16  #: bytes, of a header


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
        self._session_ref = session_ref
        self._socket_path, self._subtask_of = socket_path, subtask_of
        self._timeout, self._deadline = timeout, deadline

    def call(self, method: str, *arguments: Any) -> Any:
        """The Value of xapi's answer to, say, "PBD.get_all_records". Raises XapiFailure."""
        return self._call(method, self._session_ref, *arguments)

    def within(self, seconds: float) -> "Xapi":
        """The same session, with so many seconds for each answer."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, seconds, self._deadline)

    def until(self, deadline: Deadline) -> "Xapi":
        """The same session, with another deadline: for what is asked when that of the call is over."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, self._timeout, deadline)

    def login(self) -> str:
        """A session of root, for somebody else to use: the socket's owner needs no password. Raises XapiFailure."""
        return str(self._call("session.login_with_password", "root", "", "1.0", "relvmoiscsi"))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            reply = xml_rpc.parse_response(self._post(xml_rpc.call_text(method, list(arguments)).encode("utf-8")))
        except (OSError, ValueError, xml_rpc.Fault) as error:
            raise XapiFailure(method, [], str(error) or type(error).__name__) from error
        if not isinstance(reply, dict) or reply.get("Status") != "Success":
            description = reply.get("ErrorDescription", []) if isinstance(reply, dict) else []
            raise XapiFailure(method, [str(item) for item in description])
        return reply.get("Value")

    def _post(self, body: bytes) -> bytes:
        """The body of the answer. A connection for each: xapi ends one that is idle for as long as a LUN may take.

        Raises OSError, and ValueError for what is no answer.
        """
        head = ["POST / HTTP/1.1", "Host: localhost", "Content-Type: text/xml", f"Content-Length: {len(body)}"]
        head += ["Connection: close", *([f"Subtask-of: {_header_value(self._subtask_of)}"] if self._subtask_of else [])]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # 0 would mean not to wait at all, for what is answered in a millisecond
            connection.settimeout(max(_SHORTEST, self._deadline.within(self._timeout)))
            with terminated.waiting():
                connection.connect(self._socket_path)
                connection.sendall("\r\n".join([*head, "", ""]).encode("ascii") + body)
                with connection.makefile("rb") as answer:
                    return _body(answer)

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


def _header_value(text: str) -> str:
    """The text, if a header can hold it. Raises ValueError."""
    if not all(" " <= char <= "~" for char in text):
        raise ValueError(f"{text!a} is no value of a header")
    return text


def _body(answer: BinaryIO) -> bytes:
    """What an HTTP answer of success brings. Raises OSError, ValueError for any other."""
    status = _line(answer).split(None, 2)
    if len(status) < 2 or not status[0].startswith("HTTP/1.") or status[1] != "200":
        raise ValueError("it answered {!a}".format(" ".join(status)[:80]))
    length = None
    for line in iter(lambda: _line(answer), ""):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
        elif name.strip().lower() == "transfer-encoding":
            raise ValueError(f"its answer is {value.strip()[:40]!a}")
    body = answer.read() if length is None else answer.read(length)
    if length is not None and len(body) < length:
        raise ValueError(f"its answer ends after {len(body)} of {length} bytes")
    return body


def _line(answer: BinaryIO) -> str:
    line = answer.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("its answer is cut" if line else "it gave no answer")
    return line.decode("latin-1").rstrip("\r\n")


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
