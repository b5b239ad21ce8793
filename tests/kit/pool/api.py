# SPDX-License-Identifier: LGPL-2.1-only
"""A XenAPI call: who may make it, which function answers it; sessions and tasks."""

import inspect
import threading
import xmlrpc.client

from . import wire
from .database import Generic
from .errors import XenError
from .host_plugins import HostPlugins


class Api:
    """Answers XenAPI calls: `call("SR.get_all", (session,))` gives a value or raises XenError."""

    def __init__(self, database, storage, user="root", password="secret root password"):
        self.database = database
        self.storage = storage
        self.user, self.password = user, password
        self.host_plugins = HostPlugins(database)
        self.calls = []  #: names of the calls that clients and drivers have made, in order
        self._generic = Generic(database, storage.is_driver_of)
        self._methods = {
            "session.logout": self._logout,
            "task.create": self._task_create,
            "task.destroy": lambda session, task: database.destroy("task", task),
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
        }

    def call(self, method, params, local=False):
        """`local`: it came by the unix socket, where root needs no password."""
        self.calls.append(method)
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
        if asynchronous:
            return self._start(method, function, params)
        return function(*params)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _login(self, local, user, password, version="1.0", originator=""):
        if not local and (user, password) != (self.user, self.password):
            raise XenError("SESSION_AUTHENTICATION_FAILED", user, "Authentication failure")
        return self.database.create(
            "session", this_host=self.storage.master(), is_local_superuser=True, originator=originator
        )

    def _logout(self, session):
        self.database.destroy("session", session)

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
            outcome = {"result": wire.to_string(wire.from_python(result)), "progress": 1.0, "status": "success"}
        for name, value in outcome.items():  # status last: who waits for it reads the others
            self.database.set("task", task, name, value)


def _fitting(method, function, params, own):
    """The parameters, if they are as many as the function takes besides its first `own` ones."""
    accepted = list(inspect.signature(function).parameters.values())[own:]
    needed = sum(1 for parameter in accepted if parameter.default is inspect.Parameter.empty)
    if not needed <= len(params) <= len(accepted):
        raise XenError("MESSAGE_PARAMETER_COUNT_MISMATCH", method, needed, len(params))
    return params


def answer(api, body, local):
    """The reply to an XML-RPC request, bytes for bytes."""
    params, method = xmlrpc.client.loads(body)
    try:
        return wire.success(api.call(method, params, local))
    except XenError as error:
        return wire.failure(error.description)
