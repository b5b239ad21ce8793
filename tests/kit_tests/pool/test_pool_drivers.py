# SPDX-License-Identifier: LGPL-2.1-only
"""How drivers are run, which answers the pool takes, and that it fails a test that a real pool would have failed. The
drivers are scripts of these tests.
"""

import http.client
import json
import os
import socket
import xmlrpc.client
from xml.parsers import expat

import pytest
import XenAPI
from hypothesis import given
from hypothesis import strategies as st

from kit import lun_world, pool_fakes
from kit.builder import build_sr, vhd
from kit.pool import client, database, jsonrpc, wire
from kit.pool.runner import PATH, request
from kit.pool_fakes import NIL, fault, say, until

CREATE = ({"target": "a"}, "0", "label", "text", "fake", "user", True, {})
DONE = "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it"


@pytest.fixture
def answers(start, connect, errors):
    """The ErrorDescription of an SR.create whose driver runs this shell."""

    def of(shell):
        pool = start({"FakeSR": pool_fakes.shell({"sr_create": shell})})
        return errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)

    return of


# -- the process ------------------------------------------------------------------------------------------------------

SNOOP = """
import json, os
print("<methodResponse><fault><value><struct><member><name>faultCode</name><value><int>7</int></value></member>"
      "<member><name>faultString</name><value/></member></struct></value></fault></methodResponse>")
sys.stderr.write(json.dumps({
    "argv": sys.argv, "environment": dict(os.environ), "cwd": os.getcwd(), "stdin": sys.stdin.read(),
    "files": [os.path.isfile("/proc/self/fd/1"), os.path.isfile("/proc/self/fd/2")],
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
}))
"""


@pytest.mark.processes
def test_what_a_driver_is_given(start, connect, errors, tmp_path):
    pool = start({"FakeSR": pool_fakes.python(SNOOP)})
    code, _, _, stderr = errors(connect(pool).xenapi.SR.create, pool.master, *CREATE)
    seen = json.loads(stderr)
    seen["environment"].pop("LC_CTYPE", None)  # Python sets it for itself in the C locale
    (entry,) = pool.log.of("sr_create")
    path = str(tmp_path / "sm" / "FakeSR")
    assert code == "SR_BACKEND_FAILURE_7" and seen["argv"] == [path, entry.argv[1]] and entry.argv[0] == path
    assert seen["environment"] == {"PATH": PATH, "ORIGINATOR": "SM"} == entry.environment
    assert seen["cwd"] == "/" and seen["stdin"] == "" and seen["files"] == [True, True]
    assert seen["descriptors"] == [0, 1, 2]


FAULT, FAILURE = fault(107, "no SCSIid"), "SR_BACKEND_FAILURE"


@pytest.mark.processes
@pytest.mark.parametrize("shell, description", [
    (say(fault(1, DONE)), ["SR_BACKEND_FAILURE_1", "", DONE, ""]),
    (say(FAULT) + "\nprintf '<LUN>' >&2", ["SR_BACKEND_FAILURE_107", "", "no SCSIid", "<LUN>"]),
    (say(FAULT) + "\necho no >&2; exit 3", [FAILURE, "non-zero exit", FAULT + "\n", "no\n"]),
    (say("Traceback") + "\necho no >&2", [FAILURE, "XML Error", "Traceback\n", "no\n"]),
    (say("debug\n" + NIL), [FAILURE, "XML Error", "debug\n" + NIL + "\n", ""]),
    (say(NIL + "\n" + NIL), [FAILURE, "XML Error", NIL + "\n" + NIL + "\n", ""]),
    (say(pool_fakes.result("")), ["INTERNAL_ERROR", "XMLRPC.RunTimeTypeError"]),
    (say(pool_fakes.result("<string>done</string>")), ["INTERNAL_ERROR", "XMLRPC.RunTimeTypeError"]),  # it must be nil
])  # fmt: skip
def test_what_becomes_of_an_answer(answers, shell, description):
    found = answers(shell)
    assert len(found) == len(description)
    for index, (text, wanted) in enumerate(zip(found, description)):
        assert text == wanted or index == 1 and text.startswith(wanted), found


@pytest.mark.processes
def test_the_log_has_every_call_and_finds_a_secret(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": "echo hush >&2\n" + say(fault(7, "psst"))})})
    errors(connect(pool).xenapi.SR.create, pool.master, {"target": "whisper"}, *CREATE[1:])
    assert [entry.command for entry in pool.log] == ["sr_get_driver_info", "sr_create"]
    for secret, place in (("whisper", "argv"), ("hush", "stderr"), ("psst", "stdout")):
        assert pool.log.grep(secret) == [f"call 2 (sr_create): {place}"]
    assert pool.log.grep("ORIGINATOR")[1:] == ["call 2 (sr_create): environment"]


@pytest.mark.processes
def test_the_end_of_the_pool_is_the_end_of_its_drivers(start, connect):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": "exec sleep 3600"})})
    connect(pool).xenapi.Async.SR.create(pool.master, *CREATE)
    pid = pool.log.wait_for_start("sr_create").pid
    pool.stop()
    until(lambda: not pool.log.running())
    assert not os.path.exists(f"/proc/{pid}/exe")


# -- what would have failed a real pool -------------------------------------------------------------------------------


@pytest.mark.parametrize("expression, mistake", [
    ('field "name_label" = "x"', "missing field', 'name_label'"), ("field name = x", "Expression_error")
])  # fmt: skip
def test_a_call_that_no_real_xapi_knows_fails_the_test_at_its_end(start, connect, expression, mistake):
    pool = start()
    with pytest.raises(XenAPI.Failure):
        connect(pool).xenapi.task.get_all_records_where(expression)
    with pytest.raises(AssertionError, match=mistake):
        pool.stop()
    pool.api.mistakes.clear()


def test_while_a_vm_is_busy_its_export_is_not_answered(start):
    pool = start()
    vm = pool.db.create("VM", current_operations={"task": "snapshot"})
    session = pool.api.call("session.login_with_password", (pool.api.user, pool.api.password))
    connection = http.client.HTTPConnection(pool.url[len("http://") :], timeout=0.05)
    connection.request("GET", f"/export_metadata?ref={vm}", headers={"Cookie": f"session_id={session}"})
    with pytest.raises(socket.timeout):
        connection.getresponse()
    connection.close()


def test_a_mistake_of_the_simulator_fails_the_test_at_its_end(start):
    pool = start()
    connection = http.client.HTTPConnection(pool.url[len("http://") :])
    connection.request("POST", "/", "this is no XML")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()
    with pytest.raises(AssertionError, match="ExpatError"):
        pool.stop()


def test_an_original_and_its_clone_that_nobody_has_touched_cannot_both_be_seen():
    world = lun_world.World()
    lun = world.add("10.0.0.5", "iqn.2026-01.test:array", build_sr([vhd("disk")]).disk)
    with world.pool() as pool, client.connected(pool) as session:
        world.attach_original(pool, lun, "original")
        pbd = pool.db.refs("PBD", host=pool.hosts[1])[0]
        session.xenapi.PBD.unplug(pbd)
        twin = world.clone(lun)
        with pytest.raises(XenAPI.Failure, match="SR_BACKEND_FAILURE_119"):
            session.xenapi.PBD.plug(pbd)
        config = {"target": "10.0.0.5", "targetIQN": "iqn.2026-01.test:array", "SCSIid": twin}
        with pytest.raises(XenAPI.Failure, match="successfully resigned"):
            session.xenapi.SR.create(pool.master, config, "0", "", "", "relvmoiscsi", "user", True, {})
        session.xenapi.PBD.plug(pbd)
    assert world.state(twin) == "resignatured" and world.sr_uuid(twin) != world.sr_uuid(lun)


# -- the XML ----------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(min_codepoint=32, blacklist_categories=("Cs",), blacklist_characters="\x7f\ufffe\uffff"))


def test_a_request_has_bare_strings_no_white_space_and_one_tag_for_what_is_empty():
    members = {
        "sr_uuid": "5d0d2b3a", "command": "sr_create", "host_ref": "", "args": [], "sr_sm_config": None,
        "device_config": {"SRmaster": "true", "localIQN": ""}, "session_ref": "OpaqueRef:aa11",
    }  # fmt: skip
    assert request(members) == (
        "<methodCall><methodName>sr_create</methodName><params><param><value><struct>"
        "<member><name>host_ref</name><value/></member>"
        "<member><name>command</name><value>sr_create</value></member>"
        "<member><name>args</name><value><array><data/></array></value></member>"
        "<member><name>device_config</name><value><struct>"
        "<member><name>SRmaster</name><value>true</value></member>"
        "<member><name>localIQN</name><value/></member>"
        "</struct></value></member>"
        "<member><name>session_ref</name><value>OpaqueRef:aa11</value></member>"
        "<member><name>sr_uuid</name><value>5d0d2b3a</value></member>"
        "</struct></value></param></params></methodCall>"
    )
    assert "<name>device_config</name><value><struct/></value>" in request({**members, "device_config": {}})


PLAIN_TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufffe\uffff"))
PLAIN_NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufffe\uffff<>&"))
VALUES = st.recursive(
    PLAIN_TEXT | st.booleans() | st.integers() | st.just(0.5) | st.none(),
    lambda inside: st.lists(inside) | st.dictionaries(PLAIN_NAMES, inside),
)


class Answers:
    """A host that answers each call with this value."""

    def __init__(self, value):
        self.value = value

    def call(self, *_):
        return self.value


@given(VALUES)
def test_a_client_of_json_reads_what_a_client_of_xml_reads(value):
    request = json.dumps({"method": "x", "params": [], "id": 1}).encode()
    read = json.loads(jsonrpc.response(Answers(value), request, False).decode())
    assert read == {"id": 1, "error": None, "result": xmlrpc.client.loads(wire.response(value))[0][0]}


SETS_OF_OTHERS = [
    (table, name) for table, fields in database.TABLES.items() for name in fields if "." in fields[name].kind
]


@pytest.mark.parametrize("table, name", SETS_OF_OTHERS)
def test_a_client_that_has_read_all_records_reads_the_change_of_one_and_of_what_leads_to_it(table, name):
    db = database.Database()
    reader = database.Generic(db, None).find(f"{table}.get_all_records")
    ref, (other, field) = db.create(table), database.TABLES[table][name].kind.split(".")

    def read():
        request = json.dumps({"method": f"{table}.get_all_records", "params": [], "id": 1}).encode()
        record = json.loads(jsonrpc.response(Answers(reader("")), request, False).decode())["result"][ref]
        return record["uuid"], record[name]

    assert read() == (db.get(table, ref, "uuid"), [])
    leading = db.create(other, **{field: ref})
    assert read()[1] == [leading]
    db.set(table, ref, "uuid", "another")
    db.destroy(other, leading)
    assert read() == ("another", [])


def test_markup_in_the_name_of_a_member_is_markup_for_a_client_of_xml():
    """As ocaml-rpc writes it. To a driver, xapi writes the same name as a text."""
    forged = {"a</name><value>x</value></member><member><name>b": "y"}
    assert xmlrpc.client.loads(wire.response(forged)) == (({"a": "x", "b": "y"},), None)
    (members,) = xmlrpc.client.loads("<params><param>" + wire.strings(forged) + "</param></params>")[0]
    assert members == forged
    with pytest.raises(expat.ExpatError):
        xmlrpc.client.loads(wire.response({"a&b": ""}))
