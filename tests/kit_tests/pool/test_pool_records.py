# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI as a client of a pool sees it: sessions, records, errors. No driver runs here."""

import http.client
import os
import socket
import xmlrpc.client

import pytest
import XenAPI

from kit.pool import client
from kit.pool.client import connected_locally, xe_error
from kit.pool_fakes import until


@pytest.fixture
def pool(start):
    return start()


@pytest.fixture
def api(pool, connect):
    return connect(pool).xenapi


def test_a_wrong_password_is_no_session(pool, errors):
    session = XenAPI.Session(pool.url)

    assert errors(session.login_with_password, "root", "wrong") == [
        "SESSION_AUTHENTICATION_FAILED", "root", "Authentication failure",
    ]  # fmt: skip
    session("close")()


def test_root_needs_no_password_on_the_unix_socket(pool):
    with connected_locally(pool) as session:
        assert session.xenapi.pool.get_master(session.xenapi.pool.get_all()[0]) == pool.master


def test_xenapi_local_reaches_the_socket_by_its_pseudo_address(pool):
    session = XenAPI.Session("http://" + str(pool.socket_path).replace("/", "_") + "/", XenAPI.UDSTransport())

    session.xenapi.login_with_password("root", "")

    assert session.xenapi.host.get_all() == pool.hosts
    session("close")()


def test_a_session_ends_with_logout(pool, connect):
    session = connect(pool)
    handle = session.handle
    session.xenapi.session.logout()

    reply = session.pool.get_all(handle)

    assert reply == {"Status": "Failure", "ErrorDescription": ["SESSION_INVALID", handle]}


def test_sessions_cannot_be_listed(pool, api, mistakes):
    assert mistakes(pool, api.session.get_all_records)[0] == "MESSAGE_METHOD_UNKNOWN"


@pytest.mark.parametrize(
    "method", ["SR.destroy_all", "SR.set_type", "SR.add_to_name_label", "Async.SR.get_record", "nonsense"]
)
def test_an_unknown_method(pool, api, mistakes, method):
    assert mistakes(pool, getattr(api, method), "OpaqueRef:1") == ["MESSAGE_METHOD_UNKNOWN", method]


def test_a_wrong_number_of_parameters(pool, api, mistakes):
    assert mistakes(pool, api.SR.get_record) == ["MESSAGE_PARAMETER_COUNT_MISMATCH", "SR.get_record", "2", "1"]
    assert mistakes(pool, api.SR.scan, "a", "b")[0] == "MESSAGE_PARAMETER_COUNT_MISMATCH"


def test_a_call_that_xapi_has_and_the_simulator_not(pool, api, mistakes):
    assert (
        mistakes(pool, api.VM.checkpoint, "OpaqueRef:1", "x")[1] == "xapi has VM.checkpoint, and this simulator has not"
    )


def test_whoever_asks_for_what_there_is_not_fails_at_the_end(start, connect):
    pool = start()
    with pytest.raises(XenAPI.Failure):
        connect(pool).xenapi.task.get_all_records_where('field "name_label" = "x"')
    with pytest.raises(AssertionError, match="missing field, task, name_label"):
        pool.stop()
    pool.api.mistakes.clear()


def test_a_handle_of_nothing(api, errors):
    for call in (api.SR.get_record, api.SR.get_name_label, api.SR.scan, api.SR.forget):
        assert errors(call, "OpaqueRef:1") == ["HANDLE_INVALID", "SR", "OpaqueRef:1"]
    assert errors(api.PBD.plug, "OpaqueRef:1") == ["HANDLE_INVALID", "PBD", "OpaqueRef:1"]


def test_hosts_and_pool(pool, api):
    assert api.host.get_all() == pool.hosts
    assert api.host.get_by_name_label("xs2") == [pool.hosts[1]]
    record = api.host.get_record(pool.hosts[1])
    assert api.host.get_by_uuid(record["uuid"]) == pool.hosts[1]
    assert record["enabled"] is True
    assert api.pool.get_all_records()[pool.pool]["master"] == pool.master


def test_an_unknown_uuid(api, errors):
    assert errors(api.SR.get_by_uuid, "1") == ["UUID_INVALID", "SR", "1"]


def test_the_initiators_name_is_a_field_and_a_key(pool, api):
    host = pool.master
    assert api.host.get_iscsi_iqn(host) == "iqn.2026-01.test:xs1"

    api.host.set_iscsi_iqn(host, "iqn.2026-01.test:other")
    api.host.remove_from_other_config(host, "multipathing")
    api.host.add_to_other_config(host, "multipathing", "true")
    api.host.add_to_other_config(host, "multipathhandle", "dmp")

    assert api.host.get_other_config(host) == {
        "iscsi_iqn": "iqn.2026-01.test:other", "multipathing": "true", "multipathhandle": "dmp",
    }  # fmt: skip
    assert api.host.get_multipathing(host) is True
    api.host.set_multipathing(host, False)
    assert api.host.get_other_config(host)["multipathing"] == "false"


def test_a_key_that_is_there_cannot_be_added_and_one_that_is_not_can_be_removed(pool, api, errors):
    assert errors(api.host.add_to_other_config, pool.master, "iscsi_iqn", "x")[:3] == [
        "MAP_DUPLICATE_KEY", "host", "other_config",
    ]  # fmt: skip
    api.host.remove_from_other_config(pool.master, "nothing")


def test_a_value_of_another_type(pool, api, mistakes):
    assert mistakes(pool, api.host.set_multipathing, pool.master, "maybe") == ["FIELD_TYPE_ERROR", "value"]


def test_secrets_come_and_go(pool, api, errors):
    secret = api.secret.create({"value": "hidden", "other_config": {"a": "b"}})

    assert api.secret.get_value(api.secret.get_by_uuid(api.secret.get_uuid(secret))) == "hidden"
    assert pool.secrets() == ["hidden"]
    api.secret.destroy(secret)
    assert errors(api.secret.get_value, secret) == ["HANDLE_INVALID", "secret", secret]


@pytest.mark.parametrize("expression, names", [
    ('field "name__label" = "xs2" and field "enabled" = "true"', ["xs2"]),
    ('(field "name__label"="xs1")or"xs2"=field "name__label"', ["xs1", "xs2"]),
    ('not field "name__label" = "xs2"', ["xs1"]),
    ("true", ["xs1", "xs2"]),
    ("false", []),
])  # fmt: skip
def test_records_by_an_expression(api, expression, names):
    found = api.host.get_all_records_where(expression)
    assert sorted(host["name_label"] for host in found.values()) == names


@pytest.mark.parametrize(
    "expression",
    ['field "name_label" = "xs2"', 'true or field "x" = ""', 'field "uuid"', "uuid = 1", "(true", "true true"],
)
def test_an_expression_that_a_database_cannot_read(pool, api, mistakes, expression):
    """Fields have its names: a part of a name is joined to the next by two underscores."""
    assert mistakes(pool, api.host.get_all_records_where, expression)[0] == "INTERNAL_ERROR"


def test_a_driver_alone_may_write_some_fields(pool, api, errors):
    sr = pool.db.create("SR", name_label="a")
    pbd = pool.db.create("PBD", SR=sr, host=pool.master)

    assert errors(api.SR.set_physical_size, sr, "1") == ["PERMISSION_DENIED", ""]
    assert errors(api.PBD.set_device_config, pbd, {}) == ["PERMISSION_DENIED", ""]

    drivers = xmlrpc.client.ServerProxy(pool.url)
    for owner, status in ((sr, "Success"), ("OpaqueRef:2", "Failure")):
        session = pool.db.create("session", other_config={"_sm_session": owner})
        assert drivers.SR.set_physical_size(session, sr, "1234")["Status"] == status
    drivers("close")()
    assert api.SR.get_physical_size(sr) == "1234"
    assert api.SR.get_PBDs(sr) == [pbd]


def test_a_task_tells_how_an_asynchronous_call_ended(api):
    task = api.Async.secret.create({"value": "a"})
    until(lambda: api.task.get_status(task) != "pending")
    assert api.task.get_status(task) == "success"
    assert api.task.get_result(task).startswith("<value>OpaqueRef:")

    task = api.Async.SR.scan("OpaqueRef:1")
    until(lambda: api.task.get_status(task) != "pending")
    assert api.task.get_error_info(task) == ["HANDLE_INVALID", "SR", "OpaqueRef:1"]


def test_introducing_and_forgetting_an_sr_is_a_matter_of_records(start, connect, errors):
    pool = start()
    pool.storage.drivers["lvmoiscsi"] = None
    api = connect(pool).xenapi
    uuid = "0a8e1f0c-3b0e-4d5f-9a6b-000000000001"
    sr = api.SR.introduce(uuid, "a", "b", "LVMoISCSI", "user", True, {})

    assert api.SR.get_type(sr) == "lvmoiscsi"
    assert errors(api.SR.introduce, uuid, "a", "b", "lvmoiscsi", "user", True, {}) == ["SR_UUID_EXISTS", uuid]
    assert errors(api.SR.introduce, "", "a", "b", "nfs", "user", True, {}) == ["SR_UNKNOWN_DRIVER", "nfs"]

    config = {"target": "a", "chappassword": "hidden"}
    pbd = api.PBD.create({"SR": sr, "host": pool.master, "device_config": config})
    assert errors(api.PBD.create, {"SR": sr, "host": pool.master, "device_config": config}) == [
        "PBD_EXISTS", sr, pool.master, pbd,
    ]  # fmt: skip
    assert errors(api.PBD.create, {"SR": sr, "host": pool.hosts[1], "device_config": {"SRmaster": "true"}})[0] == (
        "VALUE_NOT_SUPPORTED"
    )
    assert list(api.PBD.get_device_config(pbd)) == ["chappassword_secret", "target"]

    assert errors(api.PBD.create, {"SR": sr, "host": pool.hosts[1], "device_config": {"a": 1}})[0] == "FIELD_TYPE_ERROR"

    before = len(pool.secrets())
    api.SR.forget(sr)
    assert api.SR.get_all() == [] == api.PBD.get_all()
    assert len(pool.secrets()) == before - 1, "its own secret goes with a PBD, the one it was copied from stays"


def test_an_attached_sr_cannot_be_forgotten(pool, api, errors):
    sr = pool.db.create("SR")
    pbd = pool.db.create("PBD", SR=sr, host=pool.master, currently_attached=True)

    assert errors(api.SR.forget, sr) == ["SR_HAS_PBD", sr]
    assert errors(api.SR.destroy, sr) == ["SR_HAS_PBD", sr]
    assert errors(api.PBD.destroy, pbd) == ["OPERATION_NOT_ALLOWED", "PBD is currently attached"]


def test_a_client_that_goes_away_harms_nobody(pool, api):
    address = pool.url[len("http://") :].split(":")
    with socket.create_connection((address[0], int(address[1]))) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")

    assert len(api.host.get_all()) == 2


def test_a_mistake_of_the_simulator_comes_up_at_the_end(start):
    pool = start()
    connection = http.client.HTTPConnection(pool.url[len("http://") :])
    connection.request("POST", "/", "this is no XML")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()

    with pytest.raises(AssertionError, match="ExpatError"):
        pool.stop()


def test_the_socket_goes_with_the_pool(start):
    pool = start()
    assert os.path.exists(pool.socket_path)
    pool.stop()
    assert not os.path.exists(pool.socket_path)


def test_what_xe_prints_of_an_error():
    failure = XenAPI.Failure(["SR_BACKEND_FAILURE_1", "", "The text", ""])

    assert xe_error(failure) == "Error code: SR_BACKEND_FAILURE_1\nError parameters: , The text, \n"


def test_a_client_can_have_enough_of_waiting(pool):
    with pool.db.lock, pytest.raises(OSError, match="timed out"), client.connected(pool, timeout_s=0.05):
        pass
