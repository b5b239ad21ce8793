# SPDX-License-Identifier: LGPL-2.1-only
"""Who may call the host plugin, by each call of xapi that leads to it, on the master and on another host."""

import pytest

from kit.pool.datamodel import ROLES
from kit.pool.errors import XenError
from kit.pool.simulator import Pool
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.xapi import plugin_caller
from relvmoiscsi.host.xapi.api import XapiFailure

DONE = "done"


class Passed:
    """The session that a plugin gets."""

    def __init__(self, pool, session):
        self._api, self._session = pool.api, session

    def call(self, method, *arguments):
        try:
            return self._api.call(method, (self._session, *arguments))
        except XenError as error:
            raise XapiFailure("xapi answered {}.".format(", ".join(error.description)), error.description) from error


@pytest.fixture
def pool():
    """Its plugins do what they are asked for, if the caller may call them."""
    pool = Pool(None, drivers={})

    def call(session, *_):
        plugin_caller.verify(Passed(pool, session), session)
        return DONE

    pool.api.host_plugins.call = call
    return pool


def log_in(pool, role):
    pool.api.users["somebody"] = ("a word", role)
    return pool.api.call("session.login_with_password", ("somebody", "a word"))


def called(pool, session, host, by_vm=False):
    on = pool.db.create("VM", power_state="Running", resident_on=host) if by_vm else host
    method = "VM.call_host_plugin" if by_vm else "host.call_plugin"
    return pool.api.call(method, (session, on, "relvmoiscsi", "status", {}))


@pytest.mark.parametrize("number", [0, 1], ids=["master", "member"])
@pytest.mark.parametrize("by_vm", [False, True])
def test_root_and_a_pool_admin_may(pool, number, by_vm):
    assert called(pool, log_in(pool, "pool-admin"), pool.hosts[number], by_vm) == DONE
    root = pool.api.call("session.login_with_password", (pool.api.user, pool.api.password))
    assert called(pool, root, pool.hosts[number], by_vm) == DONE


@pytest.mark.parametrize("number", [0, 1], ids=["master", "member"])
def test_a_driver_may(pool, number):
    """As SR.create asks the other hosts whether they have the LUN in use."""
    driver = pool.db.create("session", is_local_superuser=True, auth_user_name="__sm__backend")
    assert called(pool, driver, pool.hosts[number]) == DONE


@pytest.mark.parametrize("number", [0, 1], ids=["master", "member"])
@pytest.mark.parametrize("role", ROLES[1:-1])
def test_the_call_for_a_vm_gives_no_more_than_the_role(pool, number, role):
    with pytest.raises(Refused, match="the caller may not call host.call_plugin"):
        called(pool, log_in(pool, role), pool.hosts[number], by_vm=True)


def test_a_caller_who_has_logged_out_is_refused_without_the_reference_of_a_session(pool):
    """On a member, xapi still has the session that it has made for the call."""
    mine = log_in(pool, "pool-admin")
    made = pool.db.create("session", pool=True, is_local_superuser=True, parent=mine)
    pool.api.call("session.logout", (mine,))
    for passed in (mine, made):
        with pytest.raises(Refused, match="xapi does not say who has called it") as caught:
            plugin_caller.verify(Passed(pool, passed), passed)
        assert "OpaqueRef" not in str(caught.value)


@pytest.mark.parametrize(
    ("description", "advice"),
    [
        (["SESSION_INVALID", "x"], "Repeat the call, and stay logged in until it has ended."),
        (["HANDLE_INVALID", "session", "x"], "Repeat the call, and stay logged in until it has ended."),
        (["CANNOT_CONTACT_HOST", "x"], "Start the host of the pool that is down, then repeat the call."),
        ([], "Make xapi answer (`xe-toolstack-restart` restarts xapi), then repeat the call."),
        (["INTERNAL_ERROR", "x"], ""),
    ],
)
def test_a_caller_whom_xapi_does_not_name_gets_the_advice_for_the_error_of_xapi(description, advice):
    class Failing:
        def call(self, *_):
            raise XapiFailure("xapi said no.", description)

    with pytest.raises(Refused) as caught:
        plugin_caller.verify(Failing(), "a session")
    assert caught.value.advice == advice


def test_a_session_of_the_pool_without_a_caller_or_with_another_one_behind_it_is_refused(pool):
    """With reuse-pool-sessions, each call of a user has the session that a host has made for itself."""
    shared = pool.db.create("session", pool=True, is_local_superuser=True)
    behind = pool.db.create("session", pool=True, is_local_superuser=True, parent=shared)
    for passed in (shared, behind):
        with pytest.raises(Refused):
            plugin_caller.verify(Passed(pool, passed), passed)


def test_no_client_can_write_what_the_answer_follows_from(pool):
    mine = log_in(pool, "pool-operator")
    for call, value in [
        ("set_pool", True),
        ("set_parent", mine),
        ("set_is_local_superuser", True),
        ("set_rbac_permissions", ["host.call_plugin"]),
        ("add_rbac_permissions", "host.call_plugin"),
        ("set_other_config", {}),
    ]:
        with pytest.raises(XenError, match="MESSAGE_METHOD_UNKNOWN|RBAC_PERMISSION_DENIED"):
            pool.api.call("session." + call, (mine, mine, value))
