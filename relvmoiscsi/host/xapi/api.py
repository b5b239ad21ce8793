# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over the Unix socket of this host, with the session that xapi passes to a plugin.

This module logs nothing: the arguments of a call contain the session.
"""

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import sdk

TIMEOUT_SECONDS = 20.0
_SHORTEST = 0.1  # seconds
_LOGIN_METHOD = "login_with_password"
_LOGIN = ("root", "", "1.0", "relvmoiscsi")  #: the socket's owner needs no password

#: what the SDK raises for an unreadable answer, and what a failed connection raises
_NO_ANSWER = (*sdk.GONE, ValueError, TypeError, LookupError)


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
    """A session that another program opens and closes. Calls raise NotFound without the Python module XenAPI."""

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
        """Return the Value of xapi's answer to a method such as "PBD.get_all_records". Raises XapiFailure."""
        return self._request(self._session(), method, arguments)

    def within(self, seconds: float) -> "Xapi":
        """Return the same session with a time limit of `seconds` for each answer."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, seconds, self._deadline)

    def until(self, deadline: Deadline) -> "Xapi":
        """Return the same session with another deadline, for requests after the deadline of the call."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, self._timeout, deadline)

    def login(self) -> str:
        """Open a session of root and return its reference. Raises XapiFailure."""
        session = self._session()
        self._request(session, _LOGIN_METHOD, _LOGIN)
        return str(session.handle)

    def logout(self) -> None:
        """End the session. Raises XapiFailure."""
        session = self._session()
        session.last_login_method = _LOGIN_METHOD  # the SDK derives the name of the logout call from this
        self._request(session, "session.logout", ())

    def _session(self) -> Any:
        """Return the SDK's session. The SDK knows no login, so it never replaces a session that xapi has ended."""
        headers = {"Subtask-of": self._subtask_of} if self._subtask_of else {}
        # A time limit of 0 would not wait at all; xapi answers in a millisecond.
        seconds = max(_SHORTEST, self._deadline.within(self._timeout))
        made = sdk.Transport(lambda: sdk.UnixConnection(self._socket_path, seconds), True, headers)
        session = sdk.module().Session("http://localhost/", transport=made)
        session._session = self._session_ref
        return session

    def _request(self, session: Any, method: str, arguments: Any) -> Any:
        try:
            with terminated.waiting():
                return session.xenapi_request(method, tuple(arguments))
        except sdk.module().Failure as failure:
            raise XapiFailure(method, [str(detail) for detail in failure.details]) from failure
        except _NO_ANSWER as error:
            raise XapiFailure(method, [], sdk.reason(error)) from error

    def records(self, kind: str) -> Dict[str, Dict[str, Any]]:
        """Return all records of a class, by reference."""
        found: Optional[Dict[str, Dict[str, Any]]] = self.call(kind + ".get_all_records")
        return found or {}

    def secret(self, uuid: str) -> str:
        """Return the value of a secret. Raises XapiFailure with SM's key if there is no such secret."""
        try:
            return str(self.call("secret.get_value", self.call("secret.get_by_uuid", uuid)))
        except XapiFailure as failure:
            failure.sm_key = "InvalidSecret"
            raise


@contextmanager
def local_session(socket_path: str = THIS_HOST.xapi_socket, timeout: float = TIMEOUT_SECONDS) -> Iterator[str]:
    """Open a session for a command that xapi has not started, and close it behind the block.

    `timeout` is for each answer, in seconds. Raises XapiFailure, and NotFound without the Python module XenAPI.
    """
    session_ref = Xapi("", socket_path, timeout=timeout).login()
    try:
        yield session_ref
    finally:
        try:
            Xapi(session_ref, socket_path, timeout=timeout).logout()
        except XapiFailure:
            pass  # xapi has ended, or will end the unused session itself
