# SPDX-License-Identifier: LGPL-2.1-only
"""A XenAPI call: who may make it, which function answers it; sessions, tasks and events.

What there is to be called, with what and by whom, is in datamodel.py; to ask for something else is a mistake.
Source: xen-api ocaml/xapi/{xapi_session,xapi_event,rbac,taskHelper}.ml.
"""

import threading
import time
import traceback
import xmlrpc.client
from contextlib import contextmanager

from . import datamodel, wire
from .database import NULL, TABLES, Generic
from .database import time as moment
from .datamodel import LOCAL_ROOT, ROLES, Presence
from .errors import Mistake, XenError
from .host_plugins import HostPlugins
from .transfer import Transfer
from .vms import Vms

LIST_METHODS = "system.listMethods"


class Api:
    """Answers XenAPI calls: `call("SR.get_all", (session,))` gives a value or raises XenError.

    `users` has those besides root: {name: (password, role)}. `latency_s` is how long each call is on its way. `before`
    is called with the name of each call and its parameters; what it raises goes through. `GoneAway` ends the
    connection. `clock` gives the time of the hosts, in seconds since 1970. With `tasks_end_at_once` a task is over when
    its client learns its reference: no thread is started for it.
    """

    tasks_end_at_once = False

    def __init__(self, database, storage, user="root", password="secret root password"):
        self.database = database
        self.storage = storage
        self.user, self.password = user, password
        self.users = {}
        self.latency_s = 0.0
        self.before = None
        self.clock = time.time  #: of the hosts
        self.host_plugins = HostPlugins(storage.require_live)
        self.calls = []  #: names of the calls that clients and drivers have made, in order
        self.mistakes = []  #: descriptions of what clients have asked for that no real xapi knows
        self._owners = {}  #: names of users by task
        self._roles = {}  #: of the sessions of users besides root
        self.vms = Vms(database, storage)
        self.transfer = Transfer(database, self.vms, self._require_role)
        self._generic = Generic(database, storage.is_driver_of)
        self._methods = _answered_by(self, storage, self.vms)

    def call(self, method, params, local=False):
        """`local`: it came by the unix socket, where root needs no password."""
        self._on_its_way(method, params)
        try:
            return self._answered(method, params, local)
        except Mistake as mistake:
            self.mistakes.append(mistake.description)
            raise

    def _answered(self, method, params, local):
        asynchronous = method.startswith("Async.")
        name = method[len("Async.") :] if asynchronous else method
        if name == LIST_METHODS:
            return datamodel.names(self.database.release)
        described = datamodel.find(name)
        if described is None or asynchronous and not described.is_async:
            raise Mistake("MESSAGE_METHOD_UNKNOWN", method)
        presence = described.life.at(self.database.release)
        if name == "session.login_with_password":
            _verify(method, described, params, 0)
            return self._login(local, *params)
        _verify(method, described, params, 1)
        if not self.database.exists("session", params[0]):
            raise XenError("SESSION_INVALID", params[0])
        if presence is Presence.REMOVED:
            raise XenError("MESSAGE_REMOVED")
        if presence is Presence.NOT_YET:  # it may be an extension
            self._require_role(params[0], "host.call_extension", datamodel.find("host.call_extension").role)
            self.host_call_extension(params[0], "", name)
        self._require_role(params[0], name, described.role_for(params[1:]))
        function = self._methods.get(name) or self._generic.find(name)
        if function is None:
            raise Mistake("INTERNAL_ERROR", f"xapi has {name}, and this simulator has not")
        if asynchronous:
            return self._start(method, function, params)
        return function(*params)

    def transferred(self, method, target, headers, body, local):
        """What a GET or PUT is answered: (HTTP status, body)."""
        name = f"{method} {target.split('?')[0]}"
        self._on_its_way(name, (target,))
        return self.transfer.answer(method, target, headers, body, local)

    def _on_its_way(self, name, params):
        self.calls.append(name)
        if self.before:
            self.before(name, params)
        if self.latency_s:
            time.sleep(self.latency_s)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _login(self, local, user, password, version="1.0", originator=""):
        known = {**self.users, self.user: (self.password, LOCAL_ROOT)}
        expected, role = known.get(user, (None, ""))
        if not local and (expected is None or password != expected):
            raise XenError("SESSION_AUTHENTICATION_FAILED", user, "Authentication failure")
        is_root = local or role == LOCAL_ROOT
        session = self.database.create(
            "session", this_host=self.storage.master(), is_local_superuser=is_root, originator=originator,
            auth_user_name=user,
            rbac_permissions=[] if is_root else datamodel.permissions(role, self.database.release),
        )  # fmt: skip
        if not is_root:
            self._roles[session] = role
        return session

    def _require_role(self, session, name, needed):
        """Root on a host may do everything, and so may the sessions of drivers and of hosts."""
        held = self._roles.get(session)
        if held and (needed not in ROLES or ROLES.index(held) < ROLES.index(needed)):
            raise XenError("RBAC_PERMISSION_DENIED", name.lower(), "No permission in user session")

    def session_logout(self, session):
        self.database.destroy("session", session)

    @contextmanager
    def _forwarded(self, session, host):
        """The session that a call has on a host: the caller's own on the master. Another host gets a session of the
        pool, for that call alone, which may do everything; its parent is the caller's. Source: message_forwarding.ml,
        do_op_on and call_slave_with_session; xapi_session.ml, login_no_password_common_create_session.
        """
        if host == self.storage.master():
            yield session
            return
        made = self.database.create(
            "session", this_host=host, pool=True, is_local_superuser=True, originator="xapi", parent=session
        )
        try:
            yield made
        finally:
            self.database.destroy("session", made)

    def host_call_plugin(self, session, host, plugin, function, args):
        with self._forwarded(session, host) as passed:
            return self.host_plugins.call(passed, host, plugin, function, args)

    def vm_call_host_plugin(self, session, vm, plugin, function, args):
        """Any plugin of the host of that VM: the master, where a test has named none. Source: xapi_vm.ml and
        message_forwarding.ml, call_host_plugin.
        """
        state = self.database.get("VM", vm, "power_state")
        if state != "Running":
            raise XenError("VM_BAD_POWER_STATE", vm, "running", state.lower())
        host = self.database.get("VM", vm, "resident_on")
        host = self.storage.master() if host == NULL else host
        return self.host_call_plugin(session, host, plugin, function, args)

    def host_call_extension(self, _session, _host, call):
        """No host has one. Source: xapi_extensions.ml."""
        raise XenError("MESSAGE_METHOD_UNKNOWN", call)

    def host_compute_free_memory(self, _session, host):
        self.storage.require_live(host)
        return self.vms.free_memory_bytes

    def host_get_servertime(self, _session, host):
        self.storage.require_live(host)
        return moment(time.strftime("%Y%m%dT%H:%M:%SZ", time.gmtime(self.clock())))

    # -- events -------------------------------------------------------------------------------------------------------

    def event_from(self, _session, classes, token, timeout):
        """Classes are named in any case, "*" for all. Of what came and went meanwhile nobody hears."""
        wanted = set()
        for table, _, ref in (each.partition("/") for each in classes):
            tables = [name for name in TABLES if table == "*" or name.lower() == table.lower()]
            wanted |= {(name, ref or None) for name in tables if name not in _WITHOUT_EVENTS}
        since = int(token.split(",")[0]) if token else 0
        with self.database.lock:
            generation, changes = self.database.wait_for_changes(wanted, since, float(timeout))
            counts = {name.lower(): wire.Int32(len(self.database.refs(name))) for name in TABLES}
        events = [
            {"id": str(change.generation), "timestamp": "0.0", "class": change.table.lower(),
             "operation": change.operation, "ref": change.ref,
             **({"snapshot": change.snapshot} if change.snapshot else {})}
            for change in sorted(changes, key=lambda change: _ORDER.index(change.operation))
        ]  # fmt: skip
        return {"events": events, "valid_ref_counts": counts, "token": _token(generation)}

    def event_inject(self, _session, table, ref):
        """Gives the token of the moment before a change of this record that changes nothing."""
        with self.database.lock:
            if table not in TABLES or not self.database.exists(table, ref):
                raise XenError("HANDLE_INVALID", table, ref)
            before = self.database.generation
            self.database.touch(table, ref)
            return _token(before)

    # -- tasks --------------------------------------------------------------------------------------------------------

    def task_create(self, session, label, description):
        task = self.database.create("task", name_label=label, name_description=description)
        self._owners[task] = self.database.get("session", session, "auth_user_name")
        return task

    def task_destroy(self, session, task):
        """One that has not ended stays: xapi destroys it only when somebody has ended it. Source: xapi_task.ml."""
        self._require_task(session, task)
        if self.database.get("task", task, "status") not in ("pending", "cancelling"):
            self.database.destroy("task", task)

    def task_set_status(self, session, task, status):
        self._require_task(session, task)
        self.database.set("task", task, "status", status)

    def task_cancel(self, session, task):
        """A wish, which no task of this pool looks at: it ends as it would have ended. Source: xapi_task.ml."""
        self._require_task(session, task)

    def _require_task(self, session, task):
        """One's own; those of others take more, and a task that is gone is nobody's. Source: taskHelper.ml."""
        is_own = self._owners.get(task) == self.database.get("session", session, "auth_user_name")
        if not (is_own and self.database.exists("task", task)):
            self._require_role(session, "task.destroy/any", "pool-operator")

    def _start(self, method, function, params):
        task = self.task_create(params[0], method, "")
        if self.tasks_end_at_once:
            self._run(task, function, params)
        else:
            threading.Thread(target=self._run, args=(task, function, params), daemon=True).start()
        return task

    def _run(self, task, function, params):
        try:
            result = function(*params)
        except XenError as error:
            if isinstance(error, Mistake):
                self.mistakes.append(error.description)
            outcome = {"error_info": error.description, "status": "failure"}
        except Exception:  # noqa: BLE001  a mistake of this kit: as xapi tells its own, or its client would wait for ever
            outcome = {"error_info": ["INTERNAL_ERROR", traceback.format_exc()], "status": "failure"}
        else:
            outcome = {"result": wire.from_python(result), "progress": 1.0, "status": "success"}
        with self.database.lock:  # who waits for it sees all of it at once
            for name, value in outcome.items():
                self.database.set("task", task, name, value)


#: a session of a client or driver makes no events. Source: datamodel.ml, gen_events
_WITHOUT_EVENTS = ("session",)
_ORDER = ("add", "mod", "del")


def _token(generation):
    """Of the database and of the messages, of which there are none."""
    return f"{generation:020d},{0:020d}"


def _answered_by(*objects):
    """{"SR.create": its method sr_create, ...}: a method is named as the call that it answers."""
    tables = {table.lower(): table for table in datamodel.FIELDS}
    found = {}
    for each in objects:
        for name in dir(type(each)):
            table, _, operation = name.partition("_")
            if table in tables and datamodel.find(f"{tables[table]}.{operation}"):
                found[f"{tables[table]}.{operation}"] = getattr(each, name)
    return found


def _verify(method, described, params, own):
    """Raises Mistake for what is not as the data model has it; the session is one parameter more."""
    needed = own + sum(not param.is_optional for param in described.params)
    if not needed <= len(params) <= own + len(described.params):
        raise Mistake("MESSAGE_PARAMETER_COUNT_MISMATCH", method, needed, len(params))
    for param, value in zip(described.params, params[own:]):
        if not datamodel.fits(param.type, value):
            raise Mistake("FIELD_TYPE_ERROR", param.name)
        record, _, kind = param.type.partition("record ")
        lacking = sorted(datamodel.NEEDS[kind] - set(value)) if kind and not record else ()
        if lacking:
            raise Mistake("INTERNAL_ERROR", f"{method}: the record lacks {', '.join(lacking)}")


class GoneAway(Exception):
    """The connection ends here, as it does when a toolstack restarts."""


class Member:
    """A host that is not the master: to who comes by the network, it answers with the master's address. It lets root
    log in by the unix socket, and passes what follows there on to the master. Source: api_server.ml, callback1.
    """

    def __init__(self, master_address, master):
        self._master_address, self._master = master_address, master

    def call(self, method, params, local=False):
        if not local:
            raise XenError("HOST_IS_SLAVE", self._master_address)
        return self._master.call(method, params, local)


def answer(api, body, local):
    """The reply to an XML-RPC request (bytes), as XenAPI has it in Python."""
    params, method = xmlrpc.client.loads(body)
    try:
        value = api.call(method, params, local)
        return value if method == LIST_METHODS else {"Status": "Success", "Value": value}
    except XenError as error:
        return {"Status": "Failure", "ErrorDescription": error.description}
