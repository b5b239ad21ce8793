# SPDX-License-Identifier: LGPL-2.1-only
"""Whatever a server answers is a value or one of the errors of a failed connection."""

import gzip
import http.client
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.pool.connection import Where
from relvmoiscsi.pool.connection import _http as connection_of

VALUES = st.recursive(
    st.text(max_size=3) | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=2), inside, max_size=3),
    max_leaves=9,
)
ANSWERS = st.fixed_dictionaries({"result": VALUES, "error": st.none() | VALUES}) | VALUES
#: what no writer of JSON writes, in its place
DAMAGE = st.sampled_from([" ", "\\u0000", "\\udc00", "\x1b", "[" * 20, "9" * 400, "NaN", "-", "e999", ",", "}", '"'])


def test_an_answer_is_read():
    assert rpc.result(b'{"result": [NaN, 0.5, "\xc3\xa4"], "error": null, "id": 1}')[1:] == [0.5, "\xe4"]


def test_of_two_keys_of_a_map_the_first_counts():
    """xapi has pairs, and looks for the first. A client may set two with one key: that ends no other client's call."""
    assert rpc.result(b'{"result": {"a": "1", "b": "2", "a": "3"}, "error": null}') == {"a": "1", "b": "2"}


def test_an_error_of_xapi_is_read():
    """Also where xapi gives it beside a version of the protocol. Source: api_server.ml, jsoncallback."""
    for extra in ('"result": null', '"jsonrpc": "2.0"'):
        with pytest.raises(rpc.Refusal) as caught:
            rpc.result(('{"error": ["HANDLE_INVALID", "SR", "x"], "id": 0, ' + extra + "}").encode())
        assert caught.value.details == ["HANDLE_INVALID", "SR", "x"]


@settings(max_examples=examples(1000), deadline=None)
@given(ANSWERS, st.lists(st.tuples(st.integers(0, 99), DAMAGE), max_size=2))
def test_any_answer_is_a_value_or_an_error_of_a_call(answer, damages):
    document = json.dumps(answer)
    for at, damage in damages:
        document = document[:at] + damage + document[at + 1 :]
    try:
        found = rpc.result(document.encode())
    except (rpc.NoAnswer, rpc.Refusal):
        return
    json.dumps(found, ensure_ascii=False).encode()


@settings(max_examples=examples(200), deadline=None)
@given(st.binary())
def test_any_bytes_are_no_answer(document):
    with pytest.raises(rpc.NoAnswer):
        rpc.result(document)


@pytest.mark.parametrize("items, says", [("1,1,1,", "more than 999 values"), ("[],", "more than 9 lists and objects")])
def test_no_answer_has_many_values(monkeypatch, items, says):
    monkeypatch.setattr(rpc, "_MOST_VALUES", 999)
    monkeypatch.setattr(rpc, "_MOST_INNER", 9)
    with pytest.raises(rpc.NoAnswer, match=says):
        rpc.result(b'{"error": null, "result": [' + items.encode() * 400 + b"0]}")


def test_an_argument_that_is_no_text_is_not_sent():
    """Such as a name on the command line that is not UTF-8."""
    with pytest.raises(UsageError, match="A word for a call to xapi is no text in UTF-8"):
        rpc.Connection(lambda: None).call("SR.get_by_name_label", "\udcff")


def test_a_call_that_xapi_does_not_read_is_not_sent():
    """xapi takes 300 KiB, with the braces. Source: xen-api constants.ml, http_limit_max_rpc_size."""
    frame = len(rpc.body_of({"method": "x", "params": [""], "id": 1}))
    opened = []
    calls = rpc.Connection(lambda: opened.append(1) or connection_of(Where("x"), None, "http://127.0.0.1:1"))
    with pytest.raises(rpc.TooLong):
        calls.call("x", "y" * (rpc.MOST_CALL_BYTES - frame + 1))
    assert not opened
    with pytest.raises(OSError, match="refused"):
        calls.call("x", "y" * (rpc.MOST_CALL_BYTES - frame))


# --- how much of an answer is read


def answer(body, *headers, status="200 OK", length=True):
    lines = [f"HTTP/1.1 {status}", *headers] + [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*pieces):
    lines = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""]]
    return answer(b"".join(lines), "Transfer-Encoding: chunked", length=False)


@pytest.fixture
def asked(monkeypatch):
    """Gives a function that reads an answer as the pool's transfers do, or as a call does."""
    monkeypatch.setattr(rpc, "MOST_ANSWER_BYTES", 1000)

    def asked(data, by_call):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            connection = connection_of(Where("http://pool"), None, "http://pool")
            connection.sock = ours
            if not by_call:
                connection.request("GET", "/")
                return connection.getresponse().read()
            return rpc.Connection(lambda: connection).call("host.get_all")

    return asked


def of_xapi(value):
    return json.dumps({"result": value, "error": None, "id": 1}).encode()


LARGE = of_xapi("x" * 1000)
ZIPPED = gzip.compress(of_xapi("x" * 100))
TOO_MUCH = {
    "length": (answer(LARGE), "more than"),
    "to the end": (answer(LARGE, length=False), "more than"),
    "chunks": (chunked(LARGE[:600], LARGE[600:]), "more than"),
    "gzip": (answer(ZIPPED, "Content-Encoding: gzip"), "is compressed"),
    "error page": (answer(LARGE, status="500 Error"), "more than"),
}


@pytest.mark.parametrize("by_call", [True, False])
@pytest.mark.parametrize("name", TOO_MUCH)
def test_no_server_fills_the_memory(asked, name, by_call):
    data, says = TOO_MUCH[name]
    with pytest.raises(rpc.GONE, match=says):
        asked(data, by_call)


def test_answers_of_all_forms_are_read(asked):
    body = of_xapi("value")
    for data in (answer(body), answer(body, length=False), chunked(body[:9], body[9:])):
        assert asked(data, by_call=True) == "value"
        assert asked(data, by_call=False) == body
    with pytest.raises(http.client.IncompleteRead):
        asked(answer(body)[:-1], by_call=False)
