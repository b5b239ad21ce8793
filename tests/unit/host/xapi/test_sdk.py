# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever a server answers is a value or one of the errors of a failed connection."""

import io
import xmlrpc.client

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi import untrusted_xml
from relvmoiscsi.host.xapi import sdk

HEAD = "<methodResponse><params><param><value>"
ENTITIES = "<!DOCTYPE a [<!ENTITY b '" + "b" * 1000 + "'>]>" + HEAD + "&b;"

TAGS = (
    "methodResponse", "methodCall", "methodName", "params", "param", "value", "struct", "member", "name", "array",
    "data", "int", "i4", "i8", "double", "boolean", "string", "base64", "dateTime.iso8601", "nil", "fault",
)  # fmt: skip
TEXTS = st.sampled_from(["", "1", "²", "٣", "x", "9" * 400, "true", "\udc00", "nan"]) | st.text(max_size=3)
DOCUMENTS = st.recursive(
    TEXTS,
    lambda inside: st.builds("<{0}>{1}</{0}>".format, st.sampled_from(TAGS), st.lists(inside, max_size=4).map("".join)),
    max_leaves=20,
)


def parsed(document):
    """What a session of the SDK takes of a server's answer."""
    transport = sdk.XapiTransport(connection=lambda: None)
    transport.verbose = False
    return transport.parse_response(io.BytesIO(document))


def test_an_answer_is_read():
    assert parsed((xmlrpc.client.dumps(({"Status": "Success", "Value": "v"},), methodresponse=True)).encode()) == (
        {"Status": "Success", "Value": "v"},
    )


@pytest.mark.parametrize(
    "document", ["<a/>", HEAD + "<struct><member></member></struct>", "<fault><int>1</int></fault>"]
)
def test_an_answer_that_the_parser_does_not_expect_is_a_failed_connection(document):
    """Not an IndexError, TypeError or KeyError."""
    with pytest.raises(sdk.GONE):
        parsed(document.encode())


def test_no_answer_has_entities():
    with pytest.raises(sdk.GONE, match="document type"):
        parsed(ENTITIES.encode())
    with pytest.raises(sdk.GONE, match="document type"):
        parsed(ENTITIES.encode("utf-16"))


@settings(max_examples=examples(1000), deadline=None)
@given(DOCUMENTS)
def test_any_answer_is_a_value_or_a_failed_connection(document):
    try:
        parsed(document.encode("utf-8", "surrogatepass"))
    except sdk.GONE:
        pass


@settings(max_examples=examples(1000), deadline=None)
@given(DOCUMENTS | st.text())
def test_any_document_is_a_call_or_a_value_error(document):
    try:
        untrusted_xml.xmlrpc_of(document)
    except (ValueError, xmlrpc.client.Fault):
        pass
