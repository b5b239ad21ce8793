# SPDX-License-Identifier: LGPL-2.1-only
"""What the simulated xapi writes to a driver, byte for byte, and what it takes for an answer."""

import xmlrpc.client

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import pool_fakes
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


def test_markup_is_escaped_and_control_characters_are_dropped():
    assert wire.escape("<a & \"b\"> 'c'\x01\x1f\t\n\r\x7fé") == "&lt;a &amp; &quot;b&quot;&gt; 'c'\t\n\r\x7fé"


@given(st.dictionaries(TEXT, TEXT), st.lists(TEXT))
def test_python_reads_what_is_written(config, args):
    text = request({"command": "sr_create", "host_ref": "OpaqueRef:1", "args": args, "device_config": config})

    (params,), method = xmlrpc.client.loads(text.encode("utf-8"))

    assert method == "sr_create"
    assert params == {"command": "sr_create", "host_ref": "OpaqueRef:1", "args": args, "device_config": config}


def answer(text):
    return wire.method_response(wire.parse(text.encode("utf-8")))


@pytest.mark.parametrize(
    "value",
    ["<nil/>", "\n <nil/>\n"],
)
def test_only_nil_is_nothing(value):
    assert wire.as_nil(answer(pool_fakes.result(value))) is None


@pytest.mark.parametrize("value", ["", "<string/>", "text", "<int>0</int>", "<nil/><nil/>", '<nil a="b"/>', "<nil/>x"])
def test_anything_else_is_not_nil(value):
    with pytest.raises(wire.RunTimeTypeError):
        wire.as_nil(answer(pool_fakes.result(value)))


@pytest.mark.parametrize(
    "value, text",
    [
        ("text", "text"),
        ("<string>text</string>", "text"),
        ("", ""),
        ("<string/>", ""),
        ("<string> \n</string>", ""),
        ("<string>&lt;SRlist/&gt; é</string>", "<SRlist/> é"),
        ("<string><![CDATA[<a>]]></string>", "<a>"),
    ],
)
def test_strings(value, text):
    assert wire.as_string(answer(pool_fakes.result(value))) == text


@pytest.mark.parametrize("value", ["<int>1</int>", "<nil/>", '<string a="b">c</string>', "<string>a<b/></string>"])
def test_what_is_no_string(value):
    with pytest.raises(wire.RunTimeTypeError):
        wire.as_string(answer(pool_fakes.result(value)))


@pytest.mark.parametrize("kind", ["int", "i4"])
def test_a_fault_is_a_code_and_a_text(kind):
    text = pool_fakes.fault(107, "The SCSIid &amp; more").replace("int>", kind + ">")

    assert answer(text) == wire.Fault(107, "The SCSIid & more")


@pytest.mark.parametrize("body", ["<member><name>a</name></member>", "<member><name><b/></name><value/></member>"])
def test_what_is_no_struct(body):
    with pytest.raises(wire.RunTimeTypeError):
        wire.as_structure(answer(pool_fakes.result(f"<struct>{body}</struct>")))


def test_a_fault_as_python_writes_it_is_read():
    assert answer(xmlrpc.client.dumps(xmlrpc.client.Fault(1, "text"))) == wire.Fault(1, "text")


@pytest.mark.parametrize(
    "change",
    [
        ("<int>1</int>", "1"),
        ("<int>1</int>", "<int>one</int>"),
        ("<int>1</int>", "<int>4294967296</int>"),
        ("<fault>", "<fault><value/>"),
        ("<fault>", '<fault kind="bad">'),
        ("faultString", "faultText"),
    ],
)
def test_what_is_no_fault(change):
    with pytest.raises(wire.RunTimeTypeError):
        answer(pool_fakes.fault(1, "text").replace(*change))


@pytest.mark.parametrize(
    "text",
    ["", "\n", "done\n" + pool_fakes.NIL, pool_fakes.NIL + "\ndone", pool_fakes.NIL * 2, "<a>", "<a>&nbsp;</a>"],
)
def test_what_is_not_one_document(text):
    with pytest.raises(wire.NotXml):
        answer(text)


def test_clients_get_bare_strings_too_and_integers_as_strings():
    value = {"name": "a", "empty": "", "size": -1, "shared": True, "progress": 0.5, "tags": ["x"], "config": {}}

    assert xmlrpc.client.loads(wire.success(value))[0] == ({"Status": "Success", "Value": dict(value, size="-1")},)
    assert b"<name>empty</name><value/>" in wire.success(value)
    assert xmlrpc.client.loads(wire.failure(["A", "", "b"]))[0] == (
        {"Status": "Failure", "ErrorDescription": ["A", "", "b"]},
    )
