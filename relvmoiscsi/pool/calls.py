# SPDX-License-Identifier: LGPL-2.1-only
"""Calls to xapi in a session that is open: what they give, and errors as sentences.

What a driver has to answer goes as a task, whose end is an event: no connection waits without a word for longer than
EVENT_SECONDS, whatever lies between here and the pool. Nothing is logged here: arguments hold secrets.
"""

import http.client
import math
import time
import xmlrpc.client
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Type
from xml.parsers import expat

from relvmoiscsi.errors import NotFound, RelvmoiscsiError
from relvmoiscsi.host.xapi.sdk import GONE, reason

EVENT_SECONDS = 30.0

Record = Dict[str, Any]
Records = Dict[str, Record]  #: by reference

#: the fields that we ask for by value, by class: in xapi's expressions a field has the database's name, which joins the
#: parts of a name by two underscores. Source: xen-api ocaml/database/db_names.ml
DATABASE_NAMES = {
    "task": {"name_label": "name__label"},
    "VBD": {"VM": "VM", "userdevice": "userdevice"},
    "VDI": {"SR": "SR"},
    "VIF": {"VM": "VM"},
}


class PoolFailure(RelvmoiscsiError):
    """The pool did not answer, or answered with an error; `description` is xapi's, its first word the code."""

    exit_status = 6
    sm_key = "APIFailure"

    def __init__(self, message: str, description: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.description = list(description)
        if self.code in _NOT_THERE:
            self.exit_status = NotFound.exit_status

    @property
    def code(self) -> str:
        """The first word of xapi's error: "UUID_INVALID"; "" where it gave none."""
        return self.description[0] if self.description else ""


#: what a driver answers for a LUN, an IQN, a name or a portal that is not there; sr_driver/codes.py has the numbers
_NOT_THERE = [f"SR_BACKEND_FAILURE_{number}" for number in (67, 96, 107, 140, 141)]


class PoolGone(PoolFailure):
    """The pool does not answer any more."""


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """A block that ends where xapi answers with an error of one of these codes, as if it had come to its end: what is
    to be destroyed is gone, a key is there, as the call was made twice when its answer was lost.
    """
    try:
        yield
    except PoolFailure as failure:
        if failure.code not in codes:
            raise


class Calls:
    """A session on the master.

    `proxy` has xapi's methods (XenAPI.Session), and `refusal` is what it raises for xapi's errors (XenAPI.Failure);
    `another` opens one more connection for the session; `http` opens a connection for a GET or PUT.
    """

    _borrowed = ""  #: the session, where it is another one's

    def __init__(
        self,
        proxy: Any,
        refusal: Type[Exception],
        url: str,
        another: Callable[[], Any],
        http: Callable[[], http.client.HTTPConnection],
    ) -> None:
        self._proxy, self._refusal, self._another = proxy, refusal, another
        self.url, self.http = url, http

    @property
    def session(self) -> str:
        """The reference of the session."""
        return str(self._proxy._session)

    def call(self, method: str, *arguments: Any) -> Any:
        """What xapi answers to, say, "SR.get_all_records". Raises PoolFailure."""
        try:
            return self._proxy.xenapi_request(method, arguments)
        except self._refusal as error:
            raise failure(method, getattr(error, "details", [])) from error
        except GONE as error:
            raise PoolGone(f"The pool at {self.url} closed the connection during {method}: {reason(error)}.") from error
        except KeyboardInterrupt:
            self._disconnect()  # it waits for an answer; what is to be cleaned up takes a new connection
            raise

    def records(self, kind: str, **equal: str) -> Records:
        """All records of a class, or the records whose fields have these values. Raises PoolFailure."""
        if not equal:
            found: Records = self.call(kind + ".get_all_records")
        else:
            found = self.call(kind + ".get_all_records_where", expression(kind, equal))
        return found

    def run(self, method: str, *arguments: Any) -> str:
        """The same as `call`, as a task, for what takes time; gives the text of its result. Raises PoolFailure."""
        return self.finish(method, self.start(method, *arguments))

    def start(self, method: str, *arguments: Any) -> str:
        """Begin a task; `finish` waits for it. Raises PoolFailure."""
        return str(self.call("Async." + method, *arguments))

    def finish(self, method: str, task: str, limit_seconds: float = math.inf) -> str:
        """The text of a task's result, when it is over. Raises PoolFailure, also where it is not within the limit."""
        record = self._ended(method, task, limit_seconds)
        try:
            self.call("task.destroy", task)
        except PoolFailure:
            pass  # xapi ends it by itself in a day; what it gave is known
        if record["status"] != "success":
            raise failure(method, record["error_info"] or [record["status"]])
        return result_text(str(record["result"]))

    def _ended(self, method: str, task: str, limit_seconds: float) -> Record:
        token, record, end = "", {}, time.monotonic() + limit_seconds  # type: str, Record, float
        while record.get("status", "pending") in ("pending", "cancelling"):
            left = end - time.monotonic()
            if left <= 0:
                raise PoolFailure(f"{method} did not end within {limit_seconds:.0f} seconds and continues in the pool.")
            batch = self.call("event.from", ["task/" + task], token, min(EVENT_SECONDS, left))
            token = batch["token"]
            told = [event["snapshot"] for event in batch["events"] if event["ref"] == task and "snapshot" in event]
            record = told[-1] if told else self._record_of(task)
        return record

    def _record_of(self, task: str) -> Record:
        """Of a task of which no event has come. Raises PoolGone: tasks end with the toolstack that has begun them."""
        try:
            record: Record = self.call("task.get_record", task)
        except PoolFailure as problem:
            if problem.code != "HANDLE_INVALID":
                raise
            raise PoolGone(
                "The toolstack of the master was restarted during the call. Repeat the command."
            ) from problem
        return record

    def another(self) -> "Calls":
        """One more connection for the same session, for another thread. Close it."""
        other = Calls(self._another(), self._refusal, self.url, self._another, self.http)
        other._borrowed = str(other._proxy._session)
        return other

    def close(self) -> None:
        """End the connection, and not the session. XenAPI logs in again where xapi has ended the session: that session
        belongs to this connection alone, and ends.
        """
        if self._borrowed and str(self._proxy._session) != self._borrowed:
            try:
                self.call("session.logout")
            except PoolFailure:
                pass  # the pool went away, or will end an unused session
        self._disconnect()

    def _disconnect(self) -> None:
        self._proxy("close")()


def expression(kind: str, equal: Mapping[str, str]) -> str:
    """What get_all_records_where takes, for records of this class whose fields have these values."""
    names = DATABASE_NAMES[kind]
    return " and ".join(f'field "{names[name]}" = "{value}"' for name, value in equal.items())


def result_text(value: str) -> str:
    """The text in a task's result, which is XML-RPC's `<value>`; a result that is none is given as it stands."""
    try:
        (found,), _ = xmlrpc.client.loads("<params><param>" + (value or "<value/>") + "</param></params>")
    except (expat.ExpatError, xmlrpc.client.ResponseError, ValueError):
        return value
    return str(found)


def failure(method: str, details: Sequence[Any]) -> PoolFailure:
    """What xapi's error says, as a sentence."""
    method = method.replace("Async.", "", 1)
    description: List[str] = [str(detail) for detail in details]
    code, parameters = (description or [""])[0], [text for text in description[1:] if text]
    sentence = _SENTENCES.get(code)
    if code == "RBAC_PERMISSION_DENIED" and not description[-1].startswith("No permission"):
        sentence = None  # a handler of HTTP has failed, and xapi has put its error there
    if sentence is not None:
        return PoolFailure(sentence.format(method, *(parameters + ["", ""])), description)
    if code.startswith("SR_BACKEND_FAILURE") and parameters:
        return PoolFailure(f"{method}: {parameters[0]}", description)
    return PoolFailure("xapi answered {} to {}.".format(", ".join([code, *parameters]), method), description)


NO_READ_ONLY_DISK = (
    "A running HVM VM cannot get a read-only disk. Shut the VM down and repeat the command, or use --rw, which "
    "lets the VM write to the copy."
)
_SENTENCES = {
    "RBAC_PERMISSION_DENIED": "The user of this session may not call {0}. Use the role pool-operator; --hba "
    "needs pool-admin.",
    "LICENCE_RESTRICTION": "The licence of this pool does not allow {0} ({1}).",
    "HOST_IS_SLAVE": "The master of the pool has changed: connect to {1}.",
    "HOST_OFFLINE": "The host is down.",
    "HOST_NOT_LIVE": "The host is down.",
    "SESSION_AUTHENTICATION_FAILED": "The pool does not accept this user and password.",
    "SR_UNKNOWN_DRIVER": "The pool knows no SRs of type {1}: relvmoiscsi is not installed on its master, or its "
    "toolstack has not been restarted since.",
    "SR_HAS_NO_PBDS": "No suitable host has the SR attached ({0}).",
    "VM_LACKS_FEATURE": "The guest has no PV drivers, so the pool cannot shut the VM down. Shut down from inside "
    "the guest or with `xe vm-shutdown force=true`, then repeat the command.",
    "VM_MISSING_PV_DRIVERS": "The guest has no PV drivers: the pool can plug disks only while the VM is shut "
    "down. Shut the VM down, then repeat the command.",
    "DISK_VBD_MUST_BE_READWRITE_FOR_HVM": NO_READ_ONLY_DISK,
    "XENAPI_MISSING_PLUGIN": "The host has no plugin {1}: relvmoiscsi is not installed there.",
}
