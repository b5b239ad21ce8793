# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over the Unix socket of this host, with the session that xapi passes to a plugin.

A call is sent once and has a time limit. `pool` has its own client: its calls go to the master of any pool over TLS,
for hours, as tasks, over several connections of a session that is renewed.

This module logs nothing: the arguments of a call contain the session. `rpc` is imported for the first call.
"""

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.this_host import THIS_HOST, Host

if TYPE_CHECKING:
    from relvmoiscsi.host.xapi.rpc import Connection

TIMEOUT_SECONDS = 20.0
_SHORTEST = 0.1  # seconds

NO_XAPI = "No xapi answers on this machine, which may be no dom0."

#: xapi's errors for a host that does not answer the master. xapi takes a host for live until its heartbeat is late
AWAY = ("HOST_OFFLINE", "HOST_NOT_LIVE", "HOST_STILL_BOOTING", "CANNOT_CONTACT_HOST")


class XapiFailure(RelvmoiscsiError):
    """xapi did not answer, or answered with an error; `description` is xapi's error, first the code."""

    exit_status = 6
    sm_key = "APIFailure"

    def __init__(self, message: str, description: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.description = list(description)
        self.code = self.description[0] if self.description else ""  #: "UUID_INVALID"; "" where xapi gave none


class NoXapi(XapiFailure):
    """No xapi runs on this machine. A xapi that runs and cannot be understood raises XapiFailure."""


class Xapi:
    """A session that another program opens and closes."""

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
        return self._asked(method, lambda xapi: xapi.call(method, self._session_ref, *arguments))

    def log_in(self) -> None:
        """Open a session of root. The owner of the socket needs no password. Raises XapiFailure, NoXapi."""
        self._session_ref = self._asked("", lambda xapi: xapi.log_in("root", ""))

    def within(self, seconds: float) -> "Xapi":
        """Return the same session with a time limit of `seconds` for each answer."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, seconds, self._deadline)

    def until(self, deadline: Deadline) -> "Xapi":
        """Return the same session with another deadline, for requests after the deadline of the call."""
        return Xapi(self._session_ref, self._socket_path, self._subtask_of, self._timeout, deadline)

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

    def _asked(self, method: str, ask: Callable[["Connection"], Any]) -> Any:
        """Return what `ask` returns of a connection to xapi; `method` is what it calls, "" for the login."""
        from relvmoiscsi.host.xapi import rpc  # noqa: PLC0415 - its imports are slow, and many commands make no call

        headers = {"Subtask-of": self._subtask_of} if self._subtask_of else {}
        # A time limit of 0 would not wait at all; xapi answers in a millisecond.
        seconds = max(_SHORTEST, self._deadline.within(self._timeout))
        connection = rpc.Connection(partial(rpc.UnixConnection, self._socket_path, seconds), True, headers)
        try:
            with terminated.waiting():
                return ask(connection)
        except rpc.Refusal as refusal:
            raise XapiFailure(rpc.sentence(method or "the login", refusal.details), refusal.details) from refusal
        except rpc.GONE as error:
            if not method and rpc.is_nobody(error):
                raise NoXapi(NO_XAPI).advising("Run the command in dom0 of a host of the pool.") from error
            raise XapiFailure(f"{method or 'The login'} could not be asked of xapi: {rpc.reason(error)}.") from error


@contextmanager
def local_xapi(socket_path: str = THIS_HOST.xapi_socket, timeout: float = TIMEOUT_SECONDS) -> Iterator[Xapi]:
    """Open a session of root for a command that xapi has not started, and close it behind the block.

    `timeout` is for each answer, in seconds. Raises XapiFailure, and NoXapi.
    """
    xapi = Xapi("", socket_path, timeout=timeout)
    xapi.log_in()
    try:
        yield xapi
    finally:
        try:
            xapi.call("session.logout")
        except XapiFailure:
            pass  # xapi has ended, or will end the unused session itself


def own_ref(hosts: Mapping[str, Mapping[str, Any]], host: Host = THIS_HOST) -> str:
    """Return the reference of this host among xapi's hosts; "" if xapi does not know this host."""
    uuid = host.installation_uuid
    return next((ref for ref, record in hosts.items() if uuid and record.get("uuid") == uuid), "")
