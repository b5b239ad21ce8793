# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever a server answers is a value or one of the errors of a failed connection."""

import gzip
import http.client
import io
import socket
import xmlrpc.client

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi import untrusted_xml
from relvmoiscsi.host.xapi import sdk
from relvmoiscsi.pool.connection import Where
from relvmoiscsi.pool.connection import _http as connection_of

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
    assert parsed(of_xapi("v")) == ({"Status": "Success", "Value": "v"},)


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


# --- how much of an answer is read


def answer(body, *headers, status="200 OK", length=True):
    lines = [f"HTTP/1.1 {status}", *headers] + [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*pieces):
    lines = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""]]
    return answer(b"".join(lines), "Transfer-Encoding: chunked", length=False)


@pytest.fixture
def asked(monkeypatch):
    """Gives a function that reads an answer as the pool's transfers do, or as a session of the SDK does."""
    monkeypatch.setattr(sdk, "MOST_ANSWER_BYTES", 1000)

    def asked(data, by_session):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            connection = connection_of(Where("http://pool"), None, "http://pool")
            connection.sock = ours
            if not by_session:
                connection.request("GET", "/")
                return connection.getresponse().read()
            session = xmlrpc.client.ServerProxy("http://pool", transport=sdk.XapiTransport(lambda: connection))
            return session.host.get_all()

    return asked


def of_xapi(value):
    return xmlrpc.client.dumps(({"Status": "Success", "Value": value},), methodresponse=True).encode()


LARGE = of_xapi("x" * 900)
ZIPPED = gzip.compress(of_xapi("x" * 100))
TOO_MUCH = {
    "length": (answer(LARGE), "more than"),
    "to the end": (answer(LARGE, length=False), "more than"),
    "chunks": (chunked(LARGE[:600], LARGE[600:]), "more than"),
    "gzip": (answer(ZIPPED, "Content-Encoding: gzip"), "is compressed"),
    "error page": (answer(LARGE, status="500 Error"), "more than"),
}


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("name", TOO_MUCH)
def test_no_server_fills_the_memory(asked, name, by_session):
    data, says = TOO_MUCH[name]
    with pytest.raises(sdk.GONE, match=says):
        asked(data, by_session)


def test_answers_of_all_forms_are_read(asked):
    body = of_xapi("value")
    for data in (answer(body), answer(body, length=False), chunked(body[:9], body[9:])):
        assert asked(data, by_session=True)["Value"] == "value"
        assert asked(data, by_session=False) == body
    with pytest.raises(http.client.IncompleteRead):
        asked(answer(body)[:-1], by_session=False)
