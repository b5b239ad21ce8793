# SPDX-License-Identifier: LGPL-2.1-only
"""Who may call a host plugin of the simulated pool, and which session the plugin gets."""

import pytest

from kit.pool.datamodel import ROLES
from kit.pool.errors import XenError
from kit.pool.simulator import Pool

WORDS = ("plugin", "function", {})


@pytest.fixture
def pool():
    return Pool(None, drivers={})


def logged_in(pool, role):
    pool.api.users["somebody"] = ("a word", role)
    return pool.api.call("session.login_with_password", ("somebody", "a word"))


def passed_by(pool, method, *params):
    """(the session that a plugin gets, its record while the plugin runs)."""
    found = []
    pool.api.host_plugins.call = lambda session, *_: found.append((session, pool.db.record("session", session)))
    pool.api.call(method, params)
    return found[0]


def test_the_permissions_of_a_session_are_the_calls_that_its_role_may_make(pool):
    held = {role: set(pool.db.get("session", logged_in(pool, role), "rbac_permissions")) for role in ROLES}
    assert all(held[less] < held[more] for less, more in zip(ROLES, ROLES[1:]))
    assert [role for role in ROLES if "host.call_plugin" in held[role]] == ["pool-admin"]
    assert [role for role in ROLES if "vm.call_host_plugin" in held[role]] == list(ROLES[1:])


def test_a_plugin_on_the_master_gets_the_session_of_its_caller(pool):
    mine = logged_in(pool, "pool-admin")
    session, record = passed_by(pool, "host.call_plugin", mine, pool.master, *WORDS)
    assert (session, record["pool"], record["is_local_superuser"]) == (mine, False, False)


def test_a_plugin_on_another_host_gets_a_session_of_the_pool_whose_parent_is_the_callers(pool):
    mine = logged_in(pool, "pool-admin")
    session, record = passed_by(pool, "host.call_plugin", mine, pool.hosts[1], *WORDS)
    assert (record["pool"], record["is_local_superuser"], record["rbac_permissions"]) == (True, True, [])
    assert record["parent"] == mine and not pool.db.exists("session", session)


@pytest.mark.parametrize("number", [0, 1])
def test_a_vm_operator_reaches_every_plugin_of_the_host_of_a_running_vm(pool, number):
    mine, host = logged_in(pool, "vm-operator"), pool.hosts[number]
    vm = pool.db.create("VM", power_state="Running", resident_on=host)
    session, record = passed_by(pool, "VM.call_host_plugin", mine, vm, *WORDS)
    assert mine in (session, record["parent"])

    for who, state, code in [
        ("vm-operator", "Halted", "VM_BAD_POWER_STATE"),
        ("read-only", "Running", "RBAC_PERMISSION_DENIED"),
    ]:
        pool.db.set("VM", vm, "power_state", state)
        with pytest.raises(XenError) as caught:
            pool.api.call("VM.call_host_plugin", (logged_in(pool, who), vm, *WORDS))
        assert caught.value.description[0] == code
    with pytest.raises(XenError, match="RBAC_PERMISSION_DENIED"):
        pool.api.call("host.call_plugin", (mine, host, *WORDS))


def test_the_call_came_with_25_22(pool):
    pool.db.release = "25.21"
    vm = pool.db.create("VM", power_state="Running", resident_on=pool.master)
    with pytest.raises(XenError, match="MESSAGE_METHOD_UNKNOWN"):
        pool.api.call("VM.call_host_plugin", (logged_in(pool, "pool-admin"), vm, *WORDS))
