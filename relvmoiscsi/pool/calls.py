# SPDX-License-Identifier: LGPL-2.1-only
"""Calls to xapi in an open session: results, and errors as sentences.

Calls that a driver answers run as tasks, and an event reports the end of a task. So no connection is silent for longer
than EVENT_SECONDS: a device between the client and the pool might drop a silent connection. Nothing is logged here,
because arguments hold secrets.
"""

import http.client
import re
import socket
import xmlrpc.client
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type

from relvmoiscsi import untrusted_xml
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NoConnection, NotFound
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.host.xapi.api import AWAY, XapiFailure
from relvmoiscsi.host.xapi.rpc import GONE, Connection, Refusal, reason
from relvmoiscsi.pool import answer_forms
from relvmoiscsi.wording import cut, human_time, shell_command

EVENT_SECONDS = 30.0
#: how long a task may go without progress: xapi itself waits two hours for another operation on the same object, and
#: fails the task then (xen-api ocaml/xapi/helpers.ml). A task behind a dead host may stay pending for ever
QUIET_SECONDS = 3 * 3600.0
_FRAME_BYTES = 1 << 10  #: what a call has beside its arguments: the method, the session, braces
_NO_POOL = "Check --pool, and the release of xapi there."
#: against records that a user has filled
_SHORTER = (
    "Give these objects in the pool shorter or fewer texts: tags, names, other_config, gui_config of the pool. "
    "`xe-toolstack-restart` on the master removes all tasks."
)

Record = Dict[str, Any]
Records = Dict[str, Record]  #: by reference

#: the fields that `records` and `records_with` filter by, for each class. A field has the name of the database in
#: xapi's expressions, which joins the parts of a name with two underscores. Source: xen-api ocaml/database/db_names.ml
DATABASE_NAMES = {
    "task": {"name_label": "name__label", "other_config": "other_config"},
    "VBD": {"VM": "VM", "VDI": "VDI"},
    "VDI": {"SR": "SR", "uuid": "uuid"},
    "VIF": {"VM": "VM"},
    "VM": {"suspend_VDI": "suspend_VDI"},
}
_MOST_VALUES = 1000  #: of an expression, which is far below rpc.MOST_CALL_BYTES then


class PoolGone(XapiFailure):
    """The pool stopped answering, or what answers is no pool: nobody goes on after it. Any call raises it."""


class PoolFailure(XapiFailure):
    """The pool answered with an error, or has not ended a call in time."""


class NotSeenByPool(NotFound, PoolFailure):
    """The master sees no such LUN or target: an error of a driver."""


class NoWayToTarget(NoConnection, PoolFailure):
    """The master has no connection to a portal, or no login there: an error of a driver."""


#: the class of a driver's error, by its code; sr_driver/codes.py has the numbers. Any other code is a PoolFailure
_OF_DRIVER: Dict[str, Type[PoolFailure]] = {
    "SR_BACKEND_FAILURE_67": NotSeenByPool,  # LUN
    "SR_BACKEND_FAILURE_96": NotSeenByPool,  # IQN
    "SR_BACKEND_FAILURE_107": NotSeenByPool,  # SCSIid
    "SR_BACKEND_FAILURE_68": NoWayToTarget,  # login
    "SR_BACKEND_FAILURE_140": NoWayToTarget,  # name of the portal
    "SR_BACKEND_FAILURE_141": NoWayToTarget,  # portal
}


class NotConnected(NoConnection, PoolFailure):
    """The certificate of the pool is not trusted, its hosts disagree, or what answers is no pool."""


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """End the block without an error where xapi answers with one of these codes, or codes with a first parameter.

    A connection repeats a call whose answer was lost. The second call then fails: the object is already destroyed, or
    the key is already there.
    """
    try:
        yield
    except PoolFailure as failure:
        if failure.code not in codes and " ".join(failure.description[:2]) not in codes:
            raise


class Calls:
    """A session on the master at `url`; `http` opens a connection to it, for calls and for a GET or PUT."""

    def __init__(
        self, url: str, http: Callable[[], http.client.HTTPConnection], user: str, password: str, session: str = ""
    ) -> None:
        self.url, self.http = url, http
        self._user, self._password = user, password
        self.session = self._shared_session = session  #: the reference of the session
        self._sessions: Records = {}  #: those whose permissions are known
        self._connection = Connection(http)
        #: what a person must know, whatever the result; the connections of a session share it
        self.notes: List[str] = []

    def log_in(self) -> None:
        """Open a session. Raises Refusal, and the errors in GONE."""
        self.session = self._connection.log_in(self._user, self._password)

    def log_out(self) -> None:
        """End the session. Raises PoolFailure."""
        self._answered("session.logout", lambda: self._connection.call("session.logout", self.session))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, such as "SR.get_all_records", and return xapi's answer. Raises PoolFailure."""
        found = self._answered(method, lambda: self._in_session(method, arguments))
        try:
            answer_forms.verify(method, found)
        except ValueError as error:
            raise self._unread(method, str(error)) from None
        return found

    def room(self, *arguments: Any) -> int:
        """Return how many bytes a call with these arguments may have beside them: below 0, xapi does not read the call.

        Other users of the pool write many long texts in many calls. So a call with several of their texts may be longer
        than each of the calls that have written the texts.
        """
        return rpc.MOST_CALL_BYTES - _FRAME_BYTES - len(rpc.body_of(arguments))

    def _in_session(self, method: str, arguments: Sequence[Any]) -> Any:
        """Return xapi's answer. If xapi has ended the session, as a restart of the toolstack does, log in again."""
        try:
            return self._connection.call(method, self.session, *arguments)
        except Refusal as refusal:
            if refusal.details[0] != "SESSION_INVALID":
                raise
        self.log_in()
        return self._connection.call(method, self.session, *arguments)

    def _answered(self, method: str, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns. Raises PoolFailure."""
        try:
            return ask()
        except Refusal as refusal:
            raise failure(method, refusal.details) from refusal
        except rpc.TooLong as error:
            raise PoolFailure(f"{method} was not called: {error}.").advising(
                "Give the object in the pool shorter texts: names, tags, other_config."
            ) from error
        except GONE as error:
            raise self.gone(method, error) from error

    def gone(self, what: str, error: BaseException) -> PoolGone:
        """Return the error of a call or transfer that has raised one of GONE: junk, silence, a closed connection."""
        if rpc.is_junk(error):
            return self._unread(what, reason(error), _SHORTER if isinstance(error, rpc.TooLarge) else _NO_POOL)
        did = f"did not answer {what}" if isinstance(error, socket.timeout) else f"closed the connection during {what}"
        return PoolGone(f"The pool at {self.url} {did}: {reason(error)}.").advising("Repeat the command.")

    def _unread(self, what: str, why: str, advice: str = _NO_POOL) -> PoolGone:
        return PoolGone(f"The answer of the pool at {self.url} to {what} cannot be read: {why}.").advising(advice)

    def records(self, kind: str, **equal: str) -> Records:
        """Return all records of a class, or the records whose fields have these values. Raises PoolFailure."""
        if not equal:
            found: Records = self.call(kind + ".get_all_records")
        else:
            found = self.call(kind + ".get_all_records_where", expression(kind, equal.items()))
        return found

    def records_with(self, kind: str, **any_of: Iterable[str]) -> Records:
        """Return the records of a class in which one of these fields has one of these values. Raises PoolFailure.

        `ref` is the reference of a record. Without a value, no call is made.
        """
        pairs = [(name, value) for name, values in any_of.items() for value in sorted(set(values))]
        found: Records = {}
        for at in range(0, len(pairs), _MOST_VALUES):
            text = expression(kind, pairs[at : at + _MOST_VALUES], "or")
            found.update(self.call(kind + ".get_all_records_where", text))
        return found

    def pool(self) -> Tuple[str, Record]:
        """Return the pool: its reference and record. Raises PoolFailure."""
        ((ref, record),) = self.records("pool").items()
        return ref, record

    def may_call(self, method: str) -> bool:
        """May the user of this session call a method, such as "VM.start"? Raises PoolFailure.

        The pool is asked once: xapi writes the permissions of a session at its login.
        """
        if self.session not in self._sessions:
            self._sessions[self.session] = self.call("session.get_record", self.session)
        session = self._sessions[self.session]
        return bool(session["is_local_superuser"]) or method.lower() in session["rbac_permissions"]

    def verify_may_call(self, method: str) -> None:
        """Raises the PoolFailure of xapi to a user who may not call a method, without a call of the method."""
        if not self.may_call(method):
            raise failure(method, ["RBAC_PERMISSION_DENIED", method.lower(), "No permission in user session"])

    def run(self, method: str, *arguments: Any) -> str:
        """Run a slow call as a task and return the text of the result. Raises PoolFailure."""
        return self.wait(method, self.start(method, *arguments))

    def start(self, method: str, *arguments: Any) -> str:
        """Start a task, which `wait` awaits. Raises PoolFailure."""
        return str(self.call("Async." + method, *arguments))

    def wait(
        self,
        method: str,
        task: str,
        deadline: Optional[Deadline] = None,
        progress: Callable[[float], None] = lambda _: None,
        is_own: bool = True,
    ) -> str:
        """Wait for a task and return the text of its result. Raises PoolFailure, also for a task that does not end.

        Nobody removes a task of this run but a restart of the toolstack: that is PoolGone. The task of another run may
        go at any time: that is a PoolFailure with the code HANDLE_INVALID.

        Without a `deadline`, the task has QUIET_SECONDS from each progress to the next. Each task is looked at, also
        after the deadline: so tasks that run in parallel share one deadline. `progress` gets the done part of the task,
        from 0 to 1, at each change.
        """
        token, done, limit = "", 0.0, deadline or Deadline(QUIET_SECONDS)
        while True:
            batch = self.call("event.from", ["task/" + task], token, limit.within(EVENT_SECONDS))
            token = batch["token"]
            told = [event["snapshot"] for event in batch["events"] if event["ref"] == task and "snapshot" in event]
            try:
                record = told[-1] if told else self.call("task.get_record", task)
            except PoolFailure as problem:
                if problem.code != "HANDLE_INVALID" or not is_own:
                    raise
                raise PoolGone("The toolstack of the master was restarted during the call.").advising(
                    "Repeat the command."
                ) from problem
            if record["status"] not in ("pending", "cancelling"):
                break
            part = max(0.0, min(float(record["progress"]), 0.99))  # xapi writes 1 before it writes that the task failed
            progress(part)
            if part > done and deadline is None:
                limit = Deadline(QUIET_SECONDS)
            done = max(done, part)
            if limit.has_passed:
                raise endless(method, str(record["uuid"]), limit.seconds, deadline is None)
        try:
            self.call("task.destroy", task)
        except XapiFailure:
            pass  # xapi deletes the task within two hours; the result is known
        if record["status"] != "success":
            raise failure(method, record["error_info"] or [record["status"]])
        progress(1.0)
        return result_text(str(record["result"]))

    def another(self) -> "Calls":
        """Open one more connection to the same session, for another thread. The caller closes the connection."""
        made = Calls(self.url, self.http, self._user, self._password, self.session)
        made.notes = self.notes
        return made

    def close(self) -> None:
        """Close the connection without ending the session.

        If xapi ended the session meanwhile, this connection has logged in again. Only this connection uses the new
        session, so `close` ends the new session.
        """
        if self._shared_session and self.session != self._shared_session:
            try:
                self.log_out()
            except XapiFailure:
                pass  # the pool stopped answering; xapi ends an unused session
        self._connection.close()


def expression(kind: str, equal: Iterable[Tuple[str, str]], joint: str = "and") -> str:
    """Return the expression for get_all_records_where: records of this class with all, or any, of these values.

    A quotation mark ends a value, and the language has no escape for a quotation mark: the rest of the value would be
    more conditions. So such a value raises PoolFailure. Source: xen-api ocaml/database/db_filter_lex.mll.
    """
    names, conditions = {**DATABASE_NAMES.get(kind, {}), "ref": "_ref"}, []
    for name, value in equal:
        if '"' in value:
            raise PoolFailure(
                f"The pool cannot search a {kind} by the {name} {value!r}: the value has a quotation mark."
            ).advising("Check the records of the VM.")
        conditions.append(f'field "{names[name]}" = "{value}"')
    return f" {joint} ".join(conditions)


def result_text(value: str) -> str:
    """Return the text in a task's result, an XML-RPC `<value>`; any other result is returned unchanged."""
    try:
        (found,), _ = untrusted_xml.xmlrpc_of("<params><param>" + (value or "<value/>") + "</param></params>")
    except (ValueError, xmlrpc.client.Fault):
        return value
    return found if isinstance(found, str) else value


def endless(method: str, task_uuid: str, seconds: float, is_quiet: bool) -> PoolFailure:
    """Return the error of a task that is no longer waited for. `is_quiet`: it made no progress during these seconds."""
    task, what = f"uuid={task_uuid}", "made no progress for" if is_quiet else "did not end within"
    look, end = shell_command("xe task-list", task), shell_command("xe task-cancel", task)
    return PoolFailure(
        f"{method} {what} {human_time(seconds)} and continues in the pool, with an unknown result."
    ).advising(f"Look at the task: `{look}`. If no host works on it, end it: `{end}`. Then repeat the command.")


def role_advice(method: str) -> str:
    """Return the advice to a user whose role may not call a method. It names the least role that may."""
    role = next((role for role, calls in _LEAST_ROLES.items() if calls.fullmatch(method)), "pool-operator")
    return f"Use the role {role}{'' if role == 'pool-admin' else ' or a higher role'}."


def failure(method: str, details: Sequence[Any]) -> PoolFailure:
    """Return xapi's error as a sentence."""
    method = method.replace("Async.", "", 1)
    description: List[str] = [str(detail) for detail in details]
    code, parameters = (description or [""])[0], [text for text in description[1:] if text]
    words = list(map(rpc.word, parameters))
    if not answer_forms.has_parameters(description):  # nobody takes it for the error of that code
        missing = f"xapi answered {rpc.word(code)} to {method}, without the parameters of that error."
        return PoolFailure(missing).advising(_NO_POOL)
    sentence, advice = _SENTENCES.get(code, (None, ""))
    if code == "RBAC_PERMISSION_DENIED" and not description[-1].startswith(_DENIALS):
        sentence = None  # an HTTP handler failed, and xapi put the handler's error into these details
    if code == "RBAC_PERMISSION_DENIED":
        advice = role_advice(method)
    if code == "NO_HOSTS_AVAILABLE" and method.startswith("VM."):
        sentence, advice = _NO_HOST_FOR_VM
    if code == "NO_HOSTS_AVAILABLE" and method == "VDI.pool_migrate":
        sentence, advice = _NO_HOST_FOR_MOVE
    if code == "INTERNAL_ERROR" and method in _NAMES_A_VDI and _NO_VDI in description[-1]:
        sentence, advice = _NAME_NOT_WRITTEN
    if sentence is not None:
        known = [method, *words, "", "", ""]
        return PoolFailure(sentence.format(*known), description).advising(advice.format(*known))
    if code.startswith("SR_BACKEND_FAILURE") and parameters:
        said = cut(_OWN_KEY.sub("", parameters[0]))  # sentences, of relvmoiscsi's driver or of SM
        kind = _OF_DRIVER.get(code, PoolFailure)
        return kind(f"{method}: {said.rstrip('.')}.", description).advising(_REMEDIES.get(code, ""))
    return PoolFailure(rpc.sentence(method, [code, *parameters]), description)


#: how xapi says that a role is missing, of a call and of an HTTP handler. Source: xen-api ocaml/xapi/rbac.ml
_DENIALS = ("No permission", "no session in context")
#: the least role of each other call that a command makes, but for pool-operator; a command of VMs makes several calls,
#: for which vm-admin suffices. Source: xen-api ocaml/idl/datamodel.ml
_LEAST_ROLES = {
    "pool-admin": re.compile(r"host\.call_(plugin|extension)"),
    "vm-power-admin": re.compile(r"SR\.scan|VDI\.pool_migrate"),
    "vm-admin": re.compile(
        r"(GET|PUT) /.*|(VBD|VIF|VDI)\..*|VM\.(?!set_ha_restart_priority$).*|network\.(create|destroy)"
    ),
}
#: the end of a text of relvmoiscsi's driver: the key of its error, for SMlog
_OWN_KEY = re.compile(r" \[[A-Za-z]+\]\Z")
#: what to do against a driver error, by its code
_REMEDIES = {
    "SR_BACKEND_FAILURE_140": "Check the name, and the name service of the pool master.",
    "SR_BACKEND_FAILURE_141": "Check the address and the port. The pool master must reach the portal.",
}

NO_READ_ONLY_DISK = (
    "A running HVM VM cannot get a read-only disk.",
    "Shut the VM down and repeat the command, or use --rw, which lets the VM write to the copy.",
)
_NO_HOST_FOR_VM = (
    "No running host can run the VM ({0}). A host needs the SRs and networks of the VM, enough free memory, and HVM "
    "for a guest that needs it. xapi does not say which is missing.",
    "A start with on=<host> says it for one host.",
)
#: xapi moves a disk on the host of its VM; it looks for a host that could start a halted VM, and has the target SR.
#: Source: xen-api message_forwarding.ml, VDI.pool_migrate
_NO_HOST_FOR_MOVE = (
    "xapi found no running host for {0}. A host needs both SRs of the move. For a halted VM, a host also needs all "
    "that a start of the VM needs: its SRs and networks, enough free memory, and HVM. xapi does not say which is "
    "missing.",
    "A start of the VM with on=<host> says what that host lacks.",
)
#: what xapi makes of each error of the driver that writes a name to a LUN. Source: xen-api storage_smapiv1.ml, stat
_NAMES_A_VDI = ("VDI.set_name_label", "VDI.set_name_description")
_NO_VDI = "Vdi_does_not_exist"
_NAME_NOT_WRITTEN = (
    "The driver of the SR did not write the name of a VDI to its LUN ({0}).",
    "/var/log/SMlog of the master has the reason.",
)
#: what xapi's error means, and what to do
_SENTENCES: Dict[str, Tuple[str, str]] = {
    "RBAC_PERMISSION_DENIED": ("The user of this session may not call {0}.", ""),
    "HANDLE_INVALID": ("The {1} that {0} needs is no longer in the pool: another client has removed it.", ""),
    "LICENCE_RESTRICTION": ("The licence of this pool does not allow {0} ({1}).", ""),
    "HOST_IS_SLAVE": (
        "The host is not, or no longer, the master of its pool.",
        "Repeat the command, or give --pool the name of another host.",
    ),
    **dict.fromkeys(
        AWAY,
        (
            "A host that {0} needs is down.",
            "`xe host-list params=name-label,host-metrics-live` names the host. Start it, and repeat the command.",
        ),
    ),
    "OTHER_OPERATION_IN_PROGRESS": (
        "The pool is busy with another operation ({3}) on the same {1}, so the pool did not run {0}.",
        "`xe task-list` shows the running operations. Repeat the command when they have ended.",
    ),
    "OPERATION_BLOCKED": (
        "A user of the pool has blocked {0} for a VM.",
        "`xe vm-list params=uuid,name-label,blocked-operations` shows each block, and a vm-admin removes it.",
    ),
    "SESSION_AUTHENTICATION_FAILED": ("The pool does not accept this user and password.", ""),
    "SESSION_AUTHORIZATION_FAILED": ("The pool gives this user no role.", ""),
    "SR_UNKNOWN_DRIVER": (
        "The pool knows no SRs of type {1}: relvmoiscsi is not installed on its master, or its toolstack has not been "
        "restarted since.",
        "",
    ),
    "SR_HAS_NO_PBDS": ("No suitable host has the SR attached ({0}).", ""),
    "NO_HOSTS_AVAILABLE": ("No running host has all SRs attached that {0} needs.", ""),
    "VM_LACKS_FEATURE": (
        "The guest has no PV drivers, so the pool can neither shut the VM down nor move its disks ({0}).",
        "Shut down from inside the guest, or by xe with force=true, then repeat the command.",
    ),
    "VM_MISSING_PV_DRIVERS": (
        "The guest has no PV drivers: the pool can plug disks only while the VM is shut down.",
        "Shut the VM down, then repeat the command.",
    ),
    "DISK_VBD_MUST_BE_READWRITE_FOR_HVM": NO_READ_ONLY_DISK,
    "XENAPI_MISSING_PLUGIN": ("The host has no plugin {1}: relvmoiscsi is not installed there.", ""),
}
