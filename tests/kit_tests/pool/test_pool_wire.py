# SPDX-License-Identifier: LGPL-2.1-only
"""What the simulated xapi writes to a driver, byte for byte, and what it takes for an answer."""

import xmlrpc.client

from hypothesis import given
from hypothesis import strategies as st

from kit.pool import wire
from kit.pool.runner import request

TEXT = st.text(st.characters(min_codepoint=32, blacklist_categories=("Cs",), blacklist_characters="\x7f\ufffe\uffff"))


def test_a_request_has_bare_strings_and_no_white_space():
    members = {
        "sr_uuid": "5d0d2b3a",
        "command": "sr_create",
        "host_ref": "OpaqueRef:6f0c",
        "args": ["0"],
        "device_config": {"SRmaster": "true", "target": "10.0.0.5", "localIQN": ""},
        "session_ref": "OpaqueRef:aa11",
        "sr_ref": "OpaqueRef:bb22",
        "sr_sm_config": None,
        "subtask_of": "DummyRef:|1|SR.create",
    }

    assert request(members) == (
        "<methodCall><methodName>sr_create</methodName><params><param><value><struct>"
        "<member><name>host_ref</name><value>OpaqueRef:6f0c</value></member>"
        "<member><name>command</name><value>sr_create</value></member>"
        "<member><name>args</name><value><array><data><value>0</value></data></array></value></member>"
        "<member><name>device_config</name><value><struct>"
        "<member><name>SRmaster</name><value>true</value></member>"
        "<member><name>target</name><value>10.0.0.5</value></member>"
        "<member><name>localIQN</name><value/></member>"
        "</struct></value></member>"
        "<member><name>session_ref</name><value>OpaqueRef:aa11</value></member>"
        "<member><name>sr_ref</name><value>OpaqueRef:bb22</value></member>"
        "<member><name>sr_uuid</name><value>5d0d2b3a</value></member>"
        "<member><name>subtask_of</name><value>DummyRef:|1|SR.create</value></member>"
        "</struct></value></param></params></methodCall>"
    )


def test_what_is_empty_is_one_tag():
    text = request({"command": "sr_get_driver_info", "host_ref": "", "args": [], "device_config": {}})

    assert "<name>host_ref</name><value/>" in text
    assert "<name>args</name><value><array><data/></array></value>" in text
    assert "<name>device_config</name><value><struct/></value>" in text


@given(st.dictionaries(TEXT, TEXT), st.lists(TEXT))
def test_python_reads_what_is_written(config, args):
    text = request({"command": "sr_create", "host_ref": "OpaqueRef:1", "args": args, "device_config": config})

    (params,), method = xmlrpc.client.loads(text.encode("utf-8"))

    assert method == "sr_create"
    assert params == {"command": "sr_create", "host_ref": "OpaqueRef:1", "args": args, "device_config": config}


def answer(text):
    return wire.method_response(wire.parse(text.encode("utf-8")))


def test_a_fault_as_python_writes_it_is_read():
    assert answer(xmlrpc.client.dumps(xmlrpc.client.Fault(1, "text"))) == wire.Fault(1, "text")


def test_clients_get_bare_strings_too_and_integers_as_strings():
    value = {"name": "a", "empty": "", "size": -1, "shared": True, "progress": 0.5, "tags": ["x"], "config": {}}

    assert xmlrpc.client.loads(wire.response(value))[0] == (dict(value, size="-1"),)
    assert b"<name>empty</name><value/>" in wire.response(value)


ANY_TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\ufffe\uffff"))
VALUES = st.recursive(
    ANY_TEXT | st.booleans() | st.integers() | st.just(0.5) | st.none(),
    lambda inside: st.lists(inside) | st.dictionaries(TEXT, inside),
)


@given(VALUES)
def test_a_client_without_a_network_reads_what_others_read(value):
    assert wire.as_read(value) == xmlrpc.client.loads(wire.response(value))[0][0]
