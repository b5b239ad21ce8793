# SPDX-License-Identifier: LGPL-2.1-only
"""What answers at the address of a pool may be anything. Each answer ends the command with a sentence and a status, and
nothing of the answer moves the cursor of a terminal.
"""

import errno
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection

import pytest

from kit.examples import dice, seeds
from kit.pool.hostile import HostileServer, forged_answer, http, refusal, said, success
from relvmoiscsi.errors import NoConnection, Refused
from relvmoiscsi.pool import answer_forms
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.connection import Where, connect
from relvmoiscsi.pool.vms import transfer

DEEP = '{"error": null, "result": ' + "[" * 20000 + "]" * 20000 + "}"
CHUNKED = "Transfer-Encoding: chunked"


def chunks(text):
    return http(text, CHUNKED, length=False)


NO_HTTP, NO_XAPI, NO_JSON = "the answer is no HTTP", "no answer of xapi", "the answer is no JSON"
#: (bytes that answer the login, what is said)
LOGINS = {
    # no HTTP
    "nothing": (b"", "No pool answers at"),
    "a blank line": (b"\r\n\r\n", NO_HTTP),
    "a banner of SSH": (b"SSH-2.0-OpenSSH_9.9\r\n", NO_HTTP),
    "a page without a head": (b"<html>", NO_HTTP),
    "no status": (b"HTTP/1.1\r\n\r\n", NO_HTTP),
    "a word for the status": (b"HTTP/1.1 two OK\r\n\r\n", NO_HTTP),
    "a status of four digits": (b"HTTP/1.1 2000 OK\r\n\r\n", NO_HTTP),
    "a negative status": (b"HTTP/1.1 -200 OK\r\n\r\n", NO_HTTP),
    "a digit that is none": ("HTTP/1.1 20\u00b2 OK\r\n\r\n".encode("latin-1"), NO_HTTP),
    "another version": (http("", first="HTTP/9.9 200 OK"), NO_HTTP),
    "no version": (http("", first="HTTP/x 200 OK"), NO_HTTP),
    "a long first line": (b"HTTP/1.1 200 " + b"x" * 100000, "more than"),
    "a long header": (http("", "X: " + "x" * 100000), "more than"),
    "many headers": (http("", *["X: x"] * 200), "more than"),
    "headers without an end": (b"HTTP/1.1 200 OK\r\nX: x\r\n", NO_JSON),
    # HTTP, and no answer to a call
    "an error": (http("", first="HTTP/1.1 500 Broken"), "it answered 500 Broken"),
    "an error that paints": (http("", first="HTTP/1.1 500 \x1b[2J\x9b1m"), r"500 \x1b[2J\x9b1m"),
    "a redirect": (http("", "Location: http://[", first="HTTP/1.1 301 Moved"), "it answered 301 Moved"),
    "a password is asked for": (http("", "WWW-Authenticate: Basic", first="HTTP/1.1 401 No"), "it answered 401 No"),
    "no content": (http("", first="HTTP/1.1 204 None", length=False), "it answered 204 None"),
    "another protocol": (http("", "Upgrade: x", first="HTTP/1.1 101 Switch", length=False), "it answered 101 Switch"),
    "empty": (http(""), NO_JSON),
    "compressed": (http("x", "Content-Encoding: gzip"), "is compressed"),
    "a size of a word": (http("<a/>", "Content-Length: x", length=False), NO_JSON),
    "a negative size": (http("<a/>", "Content-Length: -1", length=False), NO_JSON),
    "a size of a digit that is none": (http("<a/>", "Content-Length: \u00b2", length=False), NO_JSON),
    "a size beyond the end": (http("<a/>", "Content-Length: 9", length=False), "incomplete"),
    "a huge size": (http("<a/>", "Content-Length: " + "9" * 30, length=False), "more than 128 MiB"),
    "a size of many digits": (http("<a/>", "Content-Length: " + "9" * 5000, length=False), NO_JSON),
    "no size of a chunk": (chunks("\r\n<a/>\r\n0\r\n\r\n"), "incomplete"),
    "a word for the size of a chunk": (chunks("x\r\n<a/>\r\n0\r\n\r\n"), "incomplete"),
    "a negative size of a chunk": (chunks("-1\r\n" + "<a/>" * 999), "incomplete"),
    "another negative size of a chunk": (chunks("-5\r\n" + "<a/>" * 999), "incomplete"),
    "a huge size of a chunk": (chunks("f" * 30 + "\r\n<a/>\r\n0\r\n\r\n"), "incomplete"),
    "a long size of a chunk": (chunks("0" * 70000 + "\r\n"), "more than"),
    "a chunk without an end": (chunks("9\r\n<a/>"), "incomplete"),
    "a beginning without an end": (b"HTTP/1.1 100 Continue\r\n\r\n" * 400000, "lines without end"),
    "an end without an end": (chunks("1\r\na\r\n0\r\n" + "X: x\r\n" * 1500000), "lines without end"),
    # no JSON
    "a web page": (http("<!DOCTYPE html><html></html>"), NO_JSON),
    "an answer in XML-RPC": (http("<methodResponse><params/></methodResponse>"), NO_JSON),
    "half a document": (http('{"result": "OpaqueRef:1", "error'), NO_JSON),
    "bytes": (http(b"\x00\xff{}"), NO_JSON),
    "another encoding": (http('{"result": "OpaqueRef:1", "error": null}'.encode("utf-16")), NO_JSON),
    "two documents": (http("{}{}"), NO_JSON),
    "a number of many digits": (http('{"error": null, "result": ' + "9" * 5000 + "}"), "is out of range"),
    "a fraction of many digits": (http('{"error": null, "result": 0.' + "9" * 5000 + "}"), "has no session"),
    "half a character": (http('{"error": null, "result": "\\udc00"}'), NO_JSON),
    "deep": (http(DEEP), "levels deep"),
    # JSON, and no answer of xapi
    **{f"a bare {value!r}": (said(value), NO_XAPI) for value in ("x", 1, None, True, [], ["result"], {}, {"x": "y"})},
    "an error without a result": (said({"error": None}), NO_XAPI),
    **{
        f"an error of {details!r}": (said({"result": "OpaqueRef:1", "error": details}), NO_XAPI)
        for details in ("", "HOST_IS_SLAVE", [], {}, {"0": "x"}, 1, False, [1], [["HOST_IS_SLAVE"]], ["x", None])
    },
    # answers of xapi that are no session
    **{
        f"a session of {value!r}": (success(value), "the answer to the login has no session")
        for value in ("", "a\r\nX: x", "a;task_id=b", "\u00e9", "x" * 300, 1, None, True, ["OpaqueRef:1"], {"x": "y"})
    },
    "no session": (refusal("SESSION_INVALID", "x"), "SESSION_INVALID, x to session.login"),
    "an empty error": (refusal(""), "xapi answered"),
    "an unknown error": (refusal("X\x9b2J", "\u202e"), r"'X\x9b2J', '\u202e'"),
    # members without a master
    "a member without a master": (refusal("HOST_IS_SLAVE"), "'' for the address of the master"),
    **{
        f"a master at {address[:40]!r}": (refusal("HOST_IS_SLAVE", address), "for the address of the master")
        for address in (
            "", " ", "/", "a/b", "a@b", "a b", "a\nb", "a?b", "a#b", "a:b", ":", ":::", "[::1]", "::1%eth0", "1:2:3",
            "::1]:80/x", ".", "..", "a..b", "-\x9b2J", "\u202e", "\u0441", "a" * 64, "a." * 200, "127.0.0.1:80",
        )
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("XENSERVER_PASSWORD", "a secret word")


@pytest.fixture
def ended(command):
    """Ends as a failed call of the pool, with a sentence; gives the text of the message."""

    def ended(url):
        ran = command("pool", "luns", "--pool", url)
        said = " ".join(ran.err.split())
        assert (ran.status, ran.out) == (NoConnection.exit_status, ""), said[-2000:]
        assert ran.err.replace("\n", "").isprintable() and "a secret word" not in ran.err and len(ran.err) < 2000
        return said

    return ended


@pytest.mark.states("name")
@pytest.mark.parametrize("name", LOGINS)
def test_no_answer_to_the_login_is_a_bug(ended, name):
    data, says = LOGINS[name]
    with HostileServer(lambda _: data) as server:
        said = ended(server.url)
        assert says in said and set(server.calls) == {"session.login_with_password"}


@pytest.mark.states("name")
@pytest.mark.parametrize("name", LOGINS)
def test_a_closed_connection_is_said_where_the_connection_was_closed_alone(name):
    """An answer that is junk is said as it came, and so is silence."""
    data, says = LOGINS[name]
    answers = {"session.login_with_password": success("OpaqueRef:session"), "session.logout": success("")}
    with HostileServer(lambda method: answers.get(method, data)) as server, connect(Where(server.url)) as calls:
        with pytest.raises((PoolFailure, PoolGone)) as failed:
            calls.call("SR.get_all_records")
        is_closed = name == "nothing" or says == "incomplete"
        assert ("closed the connection during SR.get_all_records" in failed.value.message) == is_closed
        if says in (NO_HTTP, NO_XAPI, NO_JSON):
            junk = f"The answer of the pool at {server.url} to SR.get_all_records cannot be read: the answer "
            assert failed.value.message.startswith(junk)


def test_what_is_no_http_is_said_as_it_came(ended):
    with HostileServer(lambda _: b"SSH-2.0-\x1b[2JOpenSSH " + b"x" * 1000 + b"\r\n") as server:
        assert r"the answer is no HTTP, and begins with 'SSH-2.0-\x1b[2JOpenSSH xx" in ended(server.url)


def test_a_pool_that_is_silent_is_said():
    def silent():
        raise socket.timeout("timed out")

    with pytest.raises(PoolGone, match="The pool at http://xs1 did not answer SR.get_all_records: timed out"):
        Calls("http://xs1", silent, "root", "").call("SR.get_all_records")


def test_a_master_that_does_not_answer_is_said(ended):
    """A name that no resolver knows, an address that nobody has; the password goes to no third host."""
    with HostileServer(lambda _: refusal("HOST_IS_SLAVE", "nobody.invalid")) as server:
        assert "No pool answers at http://nobody.invalid" in ended(server.url)


@pytest.mark.parametrize("text", ["https://[", "[::1", "xs1:x", "xs1:99999", "a..b", "a" * 64 + ".b", "xs1\x1b[2J"])
def test_no_address_that_a_person_types_is_a_bug(command, text):
    ran = command("pool", "luns", "--pool", text)
    assert ran.status == 2 and "is not a pool" in ran.err and ran.err.replace("\n", "").isprintable()


# --- a transfer by GET or PUT

CLOSED, OTHER, UNREAD = "closed the connection during /", "the host xs2.example", "_raw_vdi cannot be read: "
MOVED = "HTTP/1.1 302 Found"


def moved(address):
    return http("", f"Location: {address}", first=MOVED)


#: (bytes that answer a transfer, what is said of a GET; of a PUT, "" where the task decides, and has failed)
TRANSFERS = {
    "nothing": (b"", CLOSED, CLOSED),
    "a banner of SSH": (b"SSH-2.0-OpenSSH_9.9\r\n", UNREAD + NO_HTTP, UNREAD + NO_HTTP),
    "no status": (b"HTTP/1.1\r\n\r\n", UNREAD + NO_HTTP, UNREAD + NO_HTTP),
    "another version": (http("", first="HTTP/9.9 200 OK"), NO_HTTP, NO_HTTP),
    "a long header": (http("", "X: " + "x" * 100000), UNREAD, UNREAD),
    "many headers": (http("", *["X: x"] * 200), UNREAD, UNREAD),
    "announced for ever": (b"HTTP/1.1 100 Continue\r\n\r\n" * 400000, "without end", "without end"),
    "compressed": (http("x", "Content-Encoding: gzip"), "is compressed", "is compressed"),
    "a size beyond the end": (http("x", "Content-Length: 9", length=False), "", ""),
    "a huge size": (http("x", "Content-Length: " + "9" * 30, length=False), "more than 128 MiB", ""),
    "a huge size of a chunk": (chunks("f" * 30 + "\r\nx\r\n0\r\n\r\n"), "", ""),
    "a negative size of a chunk": (chunks("-1\r\n" + "x" * 999), "", ""),
    "an error": (http("no <b>way</b>", first="HTTP/1.1 500 Broken"), "answered 500 to", "answered 500 to"),
    "an error that paints": (http("\x1b[2J\u202e", first="HTTP/1.1 500 x"), "answered 500 to", "answered 500 to"),
    "an error of many tags": (http("<" * 60000, first="HTTP/1.1 500 x"), "answered 500 to", "answered 500 to"),
    "an error of a long number": (http("&#" + "9" * 5000 + ";", first="HTTP/1.1 500 x"), " 500 to", " 500 to"),
    "no content": (http("", first="HTTP/1.1 204 None", length=False), "answered 204 to", "answered 204 to"),
    "another protocol": (http("", first="HTTP/1.1 101 x", length=False), "answered 101 to", "answered 101 to"),
    "another host": (moved("https://xs2.example/export_raw_vdi?vdi=x"), OTHER, OTHER),
    **{
        f"a redirect to {address!r}": (moved(address), "; the host ", "; the host ")
        for address in (
            "x", "https://[", "https://[::1/x", "https://a]/", "https://\u00b2/", "https:///x", "//xs2/x",
            "https://user@xs2/x", "https://x\x1b[2J/", "https://" + "x" * 400 + "/", "https://xs2",
        )
    },
    **{
        f"a redirect to {what}": (answer, "another host has it. ", "another host has it. ")
        for what, answer in (("nowhere", http("", first=MOVED)), ("an empty address", moved("")))
    },
}  # fmt: skip


def transfers(answer, status):
    """A pool that answers so to each transfer; the task of the transfer has this status."""
    task = {"uuid": "u", "status": status, "result": "", "progress": 0.5, "error_info": [], "other_config": {}}
    task["name_description"] = ""
    answers = {
        "session.login_with_password": success("OpaqueRef:session"),
        "task.create": success("OpaqueRef:task"),
        "event.from": success({"token": "", "events": [{"ref": "OpaqueRef:task", "snapshot": task}]}),
        **dict.fromkeys(["task.set_status", "task.destroy", "session.logout"], success("")),
    }
    return HostileServer(lambda method: answers.get(method, answer))


@pytest.mark.states("name")
@pytest.mark.parametrize("name", TRANSFERS)
def test_no_answer_to_a_transfer_is_a_bug(monkeypatch, name):
    monkeypatch.setattr(transfer, "VERDICT_SECONDS", 0)
    answer, of_get, of_put = TRANSFERS[name]
    with transfers(answer, "pending" if of_put else "failure") as server, connect(Where(server.url)) as calls:
        with pytest.raises((PoolFailure, PoolGone)) as failed:
            transfer.export_raw(calls, "OpaqueRef:vdi")
        assert of_get in str(failed.value) and len(str(failed.value)) < 1000
        if of_put:
            with pytest.raises((PoolFailure, PoolGone)) as failed:
                transfer.import_raw(calls, "OpaqueRef:vdi", b"x")
            assert of_put in str(failed.value) and len(str(failed.value)) < 1000


@contextmanager
def resets():
    """The port of a server that resets each connection at its first byte, as within the handshake of TLS."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()


class Refusing(HTTPConnection):
    def connect(self):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


@pytest.mark.parametrize("kind", [HTTPSConnection, Refusing])
def test_a_transfer_that_never_got_a_connection_says_the_cause(monkeypatch, kind):
    """It said "Bad file descriptor" of a socket that TLS had given up, and without a socket it was a bug."""
    answers = {"task.create": success("OpaqueRef:task"), "session.login_with_password": success("OpaqueRef:session")}
    answers["session.logout"] = success("")
    said_ = "closed the connection during /(export|import)_raw_vdi: Connection reset by peer"
    with HostileServer(answers.get) as server, resets() as port, connect(Where(server.url)) as calls:
        monkeypatch.setattr(calls, "http", lambda: kind(f"127.0.0.1:{port}", timeout=60))
        with pytest.raises(PoolGone, match=said_):
            transfer.export_raw(calls, "OpaqueRef:vdi")
        with pytest.raises(PoolGone, match=said_):
            transfer.import_raw(calls, "OpaqueRef:vdi", b"x")


def test_a_redirect_of_many_letters_is_read_at_once():
    """A header may have 64 KiB, and lines that go on; a pattern that begins at each letter takes minutes."""
    with transfers(moved("a" * 60000), "failure") as server, connect(Where(server.url)) as calls:
        began = time.process_time()
        with pytest.raises(PoolFailure, match="; the host aaa"):
            transfer.export_raw(calls, "OpaqueRef:vdi")
        assert time.process_time() - began < 1


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 512, b"ova.xml" + bytes(1000)], ids=repr)
def test_no_export_of_a_vm_is_a_bug(content):
    with transfers(http(content), "success") as server, connect(Where(server.url)) as calls, pytest.raises(Refused):
        transfer.export_vm(calls, "OpaqueRef:vm", True)


# --- after the login

WORK = [
    ("luns",),
    ("attach", "--all", "--dry-run"),
    ("attach", "--all", "--yes"),
    ("map", "copy"),
    ("discard", "--all", "--yes"),
]


@pytest.mark.parametrize("number", seeds(range(1, 81), 8))
def test_a_forged_answer_after_the_login_ends_no_command_with_a_bug(lab, command, name_pool, number):
    """One value of one answer is another, or is not there."""
    lab.clone("Production")
    name_pool(lab.pool)
    with forged_answer(lab.pool.api, dice(f"answers {number}"), 25) as told:
        for words in WORK:
            ran = command("pool", *words, *(["--name", "copy"] if words[0] == "attach" else []))
            assert ran.status != 70, (told, ran.err[-3000:])


@pytest.mark.parametrize("count", [0, 2])
def test_a_pool_has_one_record(count):
    pools = {f"OpaqueRef:{number}": {"master": "OpaqueRef:xs1", "other_config": {}} for number in range(count)}
    with pytest.raises(ValueError, match="has not the one record of the pool"):
        answer_forms.verify("pool.get_all_records", pools)


def test_markup_in_a_key_is_a_text(lab):
    """A vm-operator writes the key. For a client of XML-RPC it would be markup of the answer: another record."""
    key = "XenCenter.CustomFields.a</name><value/></member><member><name>b&"
    sr = lab.originals["Production"][1]
    lab.pool.db.set("SR", sr, "other_config", {key: "x"})
    with connect(lab.where()) as calls:
        assert calls.records("SR")[sr]["other_config"] == {key: "x"}
