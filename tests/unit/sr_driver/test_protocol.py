# SPDX-License-Identifier: LGPL-2.1-only
"""xapi's argument is understood, whatever else comes is refused, and what is answered xapi can read."""

from xmlrpc.client import Fault

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.driver_calls import DEVICE_CONFIG, SESSION, SR, SR_UUID, call_of
from kit.pool import wire
from relvmoiscsi.errors import UsageError
from relvmoiscsi.sr_driver.protocol import fault_response, parse_call, string_response, usage

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE bomb [<!ENTITY a "aaaaaaaaaa">'
    + "".join('<!ENTITY {} "{}">'.format(chr(98 + n), f"&{chr(97 + n)};" * 10) for n in range(9))
    + "]><methodCall><methodName>&j;</methodName><params/></methodCall>"
)


def call_with(value):
    params = f"<params><param><value>{value}</value></param></params>"
    return f"<methodCall><methodName>sr_create</methodName>{params}</methodCall>"


def member(name, value):
    return f"<struct><member><name>{name}</name><value>{value}</value></member></struct>"


def read(response):
    return wire.method_response(wire.parse(response.encode("utf-8")))


NESTED = "<array><data><value>" * 20000 + "</value></data></array>" * 20000  #: deeper than Python calls itself


# --- the call


def test_a_call_of_xapi_and_what_a_command_does_not_have_is_empty():
    call = parse_call(call_of("sr_create"))
    assert (call.command, call.device_config) == ("sr_create", DEVICE_CONFIG)
    assert (call.session_ref, call.sr_ref, call.sr_uuid) == (SESSION, SR, SR_UUID)
    assert (call.host_ref, call.subtask_of) == ("OpaqueRef:cc33", "DummyRef:|5b0c|SR.create")

    absent = dict.fromkeys(("session_ref", "sr_ref", "sr_uuid", "subtask_of"))
    call = parse_call(call_of("sr_get_driver_info", {}, args=[], **absent))
    assert call.device_config == {}
    assert {getattr(call, name) for name in absent} == {""}


@given(st.dictionaries(st.text("abcXYZ_", min_size=1), st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF))))
@example({"target": "", "chappassword": "<a>&\"b\" 'c' p\u00e4ss \u65e5\u672c \U0001f511", "tab": "a\tb\nc"})
def test_any_device_config_comes_through(config):
    assert parse_call(call_of("sr_create", config)).device_config == config


def test_white_space_and_typed_values_are_read_too_and_the_method_name_stands_in_for_a_missing_command():
    call = parse_call(call_with(" " + member("device_config", member("port", "<int>3260</int>")) + "\n"))

    assert (call.command, call.device_config) == ("sr_create", {"port": "3260"})


@pytest.mark.parametrize(
    "text",
    ["", "\0", "{}", "<", "<methodCall/>", "<html><body/></html>"]
    + ["<methodCall><methodName>sr_create</methodName></methodCall>"]
    + ["<methodCall><methodName>sr_create</methodName><params/></methodCall>"]
    + [
        call_with(value)
        for value in (
            *("text", "<int>one</int>", "<int>" + "9" * 50000 + "x</int>", "<boolean>2</boolean>"),
            *("<bigdecimal>nonsense</bigdecimal>", "<base64>=</base64>", "<dateTime.iso8601>x</dateTime.iso8601>"),
            *("<array><data/></array>", "<novelty>1</novelty>", "<struct><member><name>a</name></member></struct>"),
            *("<struct><member><value>a</value></member></struct>", member("device_config", "text"), "&undefined;"),
            member("device_config", "<array><data/></array>"),
            member("device_config", member("port", NESTED)),
            NESTED,
        )
    ]
    + [
        call_with(member("command", "sr_create")).replace("</param>", "</param><param><value>b</value></param>"),
        "<methodResponse><fault><value>" + member("faultCode", "<int>1</int>") + "</value></fault></methodResponse>",
        *(call_of("sr_create") + call_of("sr_create"), call_of("sr_create")[:-1], "x" * 102400, "<a>" * 25600, BOMB),
        '<!DOCTYPE a SYSTEM "file:///etc/passwd">' + call_of("sr_create"),
    ],
)
def test_anything_else_is_no_call(text):
    with pytest.raises(UsageError) as caught:
        parse_call(text)

    assert caught.value.sm_key == "BadRequest"


@given(st.text())
def test_no_text_ends_in_another_error(text):
    for candidate in (text, call_with(text), call_with(f"<struct>{text}</struct>")):
        try:
            parse_call(candidate)
        except UsageError as error:
            assert error.sm_key == "BadRequest"


def test_an_argument_that_python_read_as_ascii_is_utf_8():
    """Python 3.6 with xapi's environment, where no locale is set."""
    text = "p\u00e4ss \u65e5 \U0001f511"

    assert usage(["", text]) == text
    assert usage(["", text.encode("utf-8").decode("ascii", "surrogateescape")]) == text
    assert usage(["", "\udcff broken"]) == "\ufffd broken"


# --- the response


@given(st.text(st.characters(), min_size=1), st.integers(0, 2000))
def test_any_text_makes_a_fault_that_xapi_reads(text, code):
    fault = read(fault_response(Fault(code, "text: " + text)))

    assert fault.code == code
    assert wire.as_string(read(string_response("text: " + text))) == fault.text
