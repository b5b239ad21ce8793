# SPDX-License-Identifier: LGPL-2.1-only
"""A XenAPI call: who may make it, which function answers it; sessions, tasks and events.

Source: xen-api ocaml/xapi/{xapi_session,xapi_event}.ml; the roles: ocaml/idl/datamodel.ml, datamodel_host.ml.
"""

import inspect
import threading
import time
import xmlrpc.client
from functools import lru_cache, partial

from . import wire
from .database import Generic
from .errors import XenError
from .host_plugins import HostPlugins
from .transfer import Transfer
from .vms import Vms

#: from the least to the most; each has the rights of those before it
ROLES = ("read-only", "vm-operator", "vm-admin", "vm-power-admin", "pool-operator", "pool-admin")

#: the least role for a call, or for all of a class that change something; a session may always end itself
_NEEDED = {
    "SR": "pool-operator",
    "SR.scan": "vm-power-admin",
    "PBD": "pool-operator",
    "secret": "pool-operator",
    "VDI": "vm-admin",
    "VBD": "vm-admin",
    "VM": "vm-admin",
    "VM.start": "vm-operator",
    "VM.resume": "vm-operator",
    "VM.unpause": "vm-operator",
    "VM.clean_shutdown": "vm-operator",
    "VM.hard_shutdown": "vm-operator",
    "VM.set_ha_restart_priority": "pool-operator",
    "VIF": "vm-admin",
    "VDI.pool_migrate": "vm-power-admin",
    "network": "pool-operator",
    "host": "pool-operator",
    "host.call_plugin": "pool-admin",
    "pool": "pool-operator",
    "task": "read-only",
    "event": "read-only",
    "session": "read-only",
}


class Api:
    """Answers XenAPI calls: `call("SR.get_all", (session,))` gives a value or raises XenError.

    `users` has those besides root: {name: (password, role)}. `latency_s` is how long each call is on its way. `before`
    is called with the name of each call and its parameters; what it raises goes through. `GoneAway` ends the
    connection.
    """

    def __init__(self, database, storage, user="root", password="secret root password"):
        self.database = database
        self.storage = storage
        self.user, self.password = user, password
        self.users = {}
        self.latency_s = 0.0
        self.before = None
        self.host_plugins = HostPlugins(database, storage.offline)
        self.calls = []  #: names of the calls that clients and drivers have made, in order
        self.vms = Vms(database)
        self.transfer = Transfer(database, self.vms, self._require_role)
        self._generic = Generic(database, storage.is_driver_of)
        self._methods = {
            "session.logout": self._logout,
            "task.create": self._task_create,
            "task.destroy": lambda session, task: database.destroy("task", task),
            "event.from": self._event_from,
            "secret.create": storage.secret_create,
            "secret.destroy": storage.secret_destroy,
            "host.call_plugin": self.host_plugins.call,
            "SR.create": storage.sr_create,
            "SR.probe": storage.sr_probe,
            "SR.probe_ext": storage.sr_probe_ext,
            "SR.introduce": storage.sr_introduce,
            "SR.scan": storage.sr_scan,
            "SR.update": storage.sr_update,
            "SR.forget": storage.sr_forget,
            "SR.destroy": storage.sr_destroy,
            "SR.get_supported_types": storage.sr_get_supported_types,
            "PBD.create": storage.pbd_create,
            "PBD.plug": storage.pbd_plug,
            "PBD.unplug": storage.pbd_unplug,
            "PBD.destroy": storage.pbd_destroy,
            "VDI.db_introduce": storage.vdi_db_introduce,
            "VDI.db_forget": storage.vdi_db_forget,
            "VDI.forget": storage.vdi_forget,
            **self.vms.methods(),
        }

    def call(self, method, params, local=False):
        """`local`: it came by the unix socket, where root needs no password."""
        self.calls.append(method)
        if self.before:
            self.before(method, params)
        if self.latency_s:
            time.sleep(self.latency_s)
        if method == "session.login_with_password":
            return self._login(local, *_fitting(method, self._login, params, 1))
        asynchronous = method.startswith("Async.")
        name = method[len("Async.") :] if asynchronous else method
        function = self._methods.get(name) or (None if asynchronous else self._generic.find(name))
        if function is None:
            raise XenError("MESSAGE_METHOD_UNKNOWN", method)
        params = _fitting(method, function, params, 0)
        if not self.database.exists("session", params[0]):
            raise XenError("SESSION_INVALID", params[0])
        self._require_role(params[0], name)
        if asynchronous:
            return self._start(method, function, params)
        return function(*params)

    def transferred(self, method, target, headers, body, local):
        """What a GET or PUT is answered: (HTTP status, body)."""
        name = f"{method} {target.split('?')[0]}"
        self.calls.append(name)
        if self.before:
            self.before(name, (target,))
        if self.latency_s:
            time.sleep(self.latency_s)
        return self.transfer.answer(method, target, headers, body, local)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _login(self, local, user, password, version="1.0", originator=""):
        known = {**self.users, self.user: (self.password, ROLES[-1])}
        expected, role = known.get(user, (None, ""))
        if not local and (expected is None or password != expected):
            raise XenError("SESSION_AUTHENTICATION_FAILED", user, "Authentication failure")
        return self.database.create(
            "session", this_host=self.storage.master(), is_local_superuser=local or user == self.user,
            originator=originator, auth_user_name=user, rbac_permissions=[] if local else [role],
        )  # fmt: skip

    def _require_role(self, session, name, needed=None):
        """Whoever may read may read everything. Sessions of drivers, and root's by the socket, may do everything."""
        held = self.database.get("session", session, "rbac_permissions")
        table, _, operation = name.partition(".")
        if not held or operation.startswith("get_"):
            return
        needed = needed or _NEEDED.get(name, _NEEDED.get(table, "pool-admin"))
        if ROLES.index(held[0]) < ROLES.index(needed):
            raise XenError("RBAC_PERMISSION_DENIED", name.lower(), "No permission in user session")

    def _logout(self, session):
        self.database.destroy("session", session)

    # -- events -------------------------------------------------------------------------------------------------------

    def _event_from(self, _session, classes, token, timeout):
        """Simpler than the real one: nothing that was deleted, and an operation is `mod` unless the token is empty."""
        wanted = {(table, ref or None) for table, _, ref in (each.partition("/") for each in classes)}
        generation, pairs = self.database.wait_for_changes(wanted, int(token or -1), float(timeout))
        events = []
        for number, (table, ref) in enumerate(pairs):
            with self.database.lock:
                if not self.database.exists(table, ref):
                    continue
                record = self.database.record(table, ref)
            events.append({
                "id": str(number), "timestamp": "0.", "class": table, "operation": "mod" if token else "add",
                "ref": ref, "obj_uuid": record["uuid"], "snapshot": record,
            })  # fmt: skip
        return {"events": events, "valid_ref_counts": {}, "token": str(generation)}

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _task_create(self, session, label, description):
        return self.database.create("task", name_label=label, name_description=description)

    def _start(self, method, function, params):
        task = self._task_create(params[0], method, "")
        threading.Thread(target=self._run, args=(task, function, params), daemon=True).start()
        return task

    def _run(self, task, function, params):
        try:
            result = function(*params)
        except XenError as error:
            outcome = {"error_info": error.description, "status": "failure"}
        else:
            outcome = {"result": wire.from_python(result), "progress": 1.0, "status": "success"}
        with self.database.lock:  # who waits for it sees all of it at once
            for name, value in outcome.items():
                self.database.set("task", task, name, value)


def _fitting(method, function, params, own):
    """The parameters, if they are as many as the function takes besides its first `own` ones."""
    needed, most = _parameters(function)
    if not needed - own <= len(params) <= most - own:
        raise XenError("MESSAGE_PARAMETER_COUNT_MISMATCH", method, needed - own, len(params))
    return params


def _parameters(function):
    """How many parameters a function, a method or a partial one takes: (at least, at most)."""
    if isinstance(function, partial):
        needed, most = _parameters(function.func)
        return needed - len(function.args), most - len(function.args)
    if inspect.ismethod(function):
        needed, most = _parameters(function.__func__)
        return needed - 1, most - 1
    return _parameters_of_plain(function)


@lru_cache(maxsize=None)
def _parameters_of_plain(function):
    accepted = inspect.signature(function).parameters.values()
    return sum(1 for parameter in accepted if parameter.default is inspect.Parameter.empty), len(accepted)


class GoneAway(Exception):
    """The connection ends here, as it does when a toolstack restarts."""


class Member:
    """A host that is not the master: it answers a login with the master's address, and nothing else."""

    def __init__(self, master_address):
        self._master_address = master_address

    def call(self, method, params, local=False):
        raise XenError("HOST_IS_SLAVE", self._master_address)


def answer(api, body, local):
    """The reply to an XML-RPC request, bytes for bytes."""
    params, method = xmlrpc.client.loads(body)
    try:
        return wire.success(api.call(method, params, local))
    except XenError as error:
        return wire.failure(error.description)
