# SPDX-License-Identifier: LGPL-2.1-only
"""XML-RPC is read and written as the standard library does it, and nothing else is taken for it."""

import tracemalloc
import xmlrpc.client

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.host.xapi.xml_rpc import (
    BadDocument,
    Fault,
    call_text,
    fault_text,
    parse_call,
    parse_response,
    response_text,
)

#: XML turns a carriage return into a line feed, whoever reads it
letters = st.characters(min_codepoint=32, max_codepoint=0xD7FF) | st.sampled_from("\t\n<>&'\"\U0001f511")
texts = st.text(letters, max_size=20)
values = st.recursive(
    texts | st.booleans() | st.integers(-(2**31), 2**31 - 1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def value(text):
    return f"<methodResponse><params><param><value>{text}</value></param></params></methodResponse>".encode()


@given(values)
def test_an_answer_is_written_as_the_library_writes_it_and_read_back(found):
    text = response_text(found)

    assert text == xmlrpc.client.dumps((found,), methodresponse=True)
    assert parse_response(text.encode("utf-8")) == found


@given(st.text("abc_.XYZ", min_size=1), st.lists(values, max_size=3))
def test_a_call_is_written_as_the_library_writes_it_and_read_back(method, parameters):
    text = call_text(method, parameters)

    assert xmlrpc.client.loads(text) == (tuple(parameters), method)
    assert parse_call(text) == (method, parameters)


@given(st.integers(0, 10000), texts)
def test_a_fault_is_written_as_the_library_writes_it_and_read_back(code, text):
    document = fault_text(code, text)

    assert document == xmlrpc.client.dumps(xmlrpc.client.Fault(code, text))
    with pytest.raises(Fault) as caught:
        parse_response(document.encode("utf-8"))
    assert (caught.value.code, caught.value.text) == (code, text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("bare", "bare"),
        ("", ""),
        ("<string/>", ""),
        ("<i4>-7</i4>", -7),
        ("<i8>9007199254740993</i8>", 9007199254740993),
        ("<double>1.5</double>", 1.5),
        ("<nil/>", None),
        ("<boolean>0</boolean>", False),
        ("<dateTime.iso8601>20261122T01:02:03Z</dateTime.iso8601>", "20261122T01:02:03Z"),
        (" <array> <data> <value>a</value> </data> </array> ", ["a"]),
        ("<struct/>", {}),
        ("<![CDATA[<a>]]>", "<a>"),
    ],
)
def test_every_type_that_xapi_sends(text, expected):
    assert parse_response(value(text)) == expected


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"text",
        b"<methodResponse/>",
        b"<methodResponse><params/></methodResponse>",
        b"<methodResponse><novelty/></methodResponse>",
        b"<methodResponse><fault><value>text</value></fault></methodResponse>",
        b"<methodResponse><fault><value><struct/></value></fault></methodResponse>",
        b"<methodResponse><params><param/></params></methodResponse>",
        b"<methodResponse><params><param><value/><value/></param></params></methodResponse>",
        b"<methodResponse><params><param><value/></param><param><value/></param></params></methodResponse>",
        b"<!DOCTYPE a>" + value("text"),
        b"<?xml version='1.0' encoding='nothing'?>" + value("text"),
        b"<methodResponse><fault><value><struct><member><name>faultCode</name><value><nil/></value></member>"
        b"<member><name>faultString</name><value>x</value></member></struct></value></fault></methodResponse>",
        value("text")[:-1],
        value("text") + value("text"),
        value("\xff").decode().encode("latin-1"),
        value("<string><string/></string>"),
        value("<string/><string/>"),
        value("<novelty/>"),
        value("<int/>"),
        value("<int>1.5</int>"),
        value("<i8>123456789012345678901</i8>"),
        value("<boolean>true</boolean>"),
        value("<array/>"),
        value("<array><value/></array>"),
        value("<array><data><string/></data></array>"),
        value("<struct><value/></struct>"),
        value("<struct><member><value/><name>a</name></member></struct>"),
        value("<array><data><value>" * 100 + "</value></data></array>" * 100),
    ],
)
def test_nothing_else_is_an_answer(document):
    with pytest.raises(BadDocument):
        parse_response(document)


def test_what_xapi_never_gets_is_not_written():
    with pytest.raises(TypeError, match="bytes is not sent"):
        response_text(b"bytes")


def test_the_records_of_a_large_pool_take_no_more_room_than_they_say():
    """dom0 has little memory, and a pool may have ten thousand VDIs, of 3 KiB of XML each."""
    members = "".join(f"<member><name>field{number}</name><value>{'x' * 30}</value></member>" for number in range(30))
    record = "<member><name>OpaqueRef:{}</name><value><struct>" + members + "</struct></value></member>"
    document = value("<struct>" + "".join(record.format(number) for number in range(200)) + "</struct>")

    tracemalloc.start()
    try:
        found = parse_response(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(found) == 200
    assert peak < 4 * len(document)
