# SPDX-License-Identifier: LGPL-2.1-only
"""Who may call the host plugin: whoever may call host.call_plugin, that is root and the role pool-admin.

xapi 25.22 and later has VM.call_host_plugin, which runs any plugin of the host of a running VM. Its role is
vm-operator. xapi tells a plugin not which call has led to it, so the plugin asks xapi about the session of the caller.

    on the master      xapi passes the session of the caller
    on another host    xapi passes a session of the pool, which may do everything; `parent` is the session of the caller

No client can write the fields `pool`, `parent`, `is_local_superuser` and `rbac_permissions`. All exist since XenServer
5.6. xapi holds no lock while it waits for a plugin, so it answers. Another host passes the question on to the master.

With xapi's setting reuse-pool-sessions, off by default, all calls share one session of the pool. The first host that
logs in to the master makes that session. It then has no parent, and the plugin refuses.

Source: xen-api ocaml/xapi/message_forwarding.ml, do_op_on and call_slave_with_session; xapi_session.ml,
login_no_password_common; rbac.ml, find_first_disallowed_permission; xapi_vm.ml, call_host_plugin.
"""

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.xapi.api import AWAY, Xapi, XapiFailure

PERMISSION = "host.call_plugin"

#: what a caller does whom xapi does not name, by xapi's error; "": xapi did not answer
_ADVICE = {
    **dict.fromkeys(("SESSION_INVALID", "HANDLE_INVALID"), "Repeat the call, and stay logged in until it has ended."),
    **dict.fromkeys(AWAY, "Start the host of the pool that is down, then repeat the call."),
    "": "Make xapi answer (`xe-toolstack-restart` restarts xapi), then repeat the call.",
}


def verify(xapi: Xapi, session_ref: str) -> None:
    """Raise Refused unless the caller may call host.call_plugin. `session_ref` is the session that xapi has passed."""
    try:
        caller = xapi.call("session.get_record", session_ref)
        if caller["pool"]:
            caller = xapi.call("session.get_record", caller["parent"])
    except XapiFailure as failure:  # its text may have the reference of a session, which is as good as a password
        why = failure.code or failure.message.rstrip(".")
        raise Refused(f"The plugin did nothing: xapi does not say who has called it ({why}).").advising(
            _ADVICE.get(failure.code, "")
        ) from failure
    if caller["pool"] or not (caller["is_local_superuser"] or PERMISSION in caller["rbac_permissions"]):
        raise Refused(f"The plugin did nothing: the caller may not call {PERMISSION}.").advising(
            "Log in as root, or as a user with the role pool-admin."
        )
