# SPDX-License-Identifier: LGPL-2.1-only
"""XenAPI over a unix socket: answers, errors, and a xapi that is slow, gone, or not itself."""

import socket
import threading

import pytest

from kit.driver_calls import SESSION
from kit.pool.client import connected_locally
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_xapi
from relvmoiscsi.sr_driver.codes import fault_of

UNICODE = "p\u00e4ss<w>&\u00f6rd \u65e5\u672c \U0001f511"


@pytest.fixture
def xapi(pool):
    with connected_locally(pool) as session:
        yield Xapi(session.handle, pool.socket_path)


class Canned:
    """A server that gives everyone who connects the same bytes; `requests` has what they said."""

    def __init__(self, path, reply):
        self.path, self.reply, self.requests = path, reply, []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rb") as file:
                head = b"".join(iter(lambda: file.readline().rstrip(b"\r\n") + b"\n", b"\n"))
                if not head:
                    return
                length = [line for line in head.lower().splitlines() if line.startswith(b"content-length")]
                self.requests.append(head + file.read(int(length[0].split()[1])))
                connection.sendall(self.reply)

    def stop(self):
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.path)
            last.sendall(b"\r\n")
            self._thread.join(10)
        self._socket.close()


@pytest.fixture
def canned(socket_directory):
    """Starts a Canned: `canned(reply)`."""
    servers = []

    def start(reply):
        servers.append(Canned(f"{socket_directory}/canned{len(servers)}", reply))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def http_reply(body, status="200 OK"):
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


def failure_of(call, *arguments):
    with pytest.raises(XapiFailure) as caught:
        call(*arguments)
    return caught.value


# --- answers


def test_records_of_a_pool_a_secret_and_a_session_of_our_own_that_ends_with_the_block(pool, xapi):
    sr = pool.db.create("SR", name_label="san \u65e5", sm_config={"devserial": "scsi-3600"})
    pbd = pool.db.create("PBD", SR=sr, host=pool.master, device_config={"SCSIid": "3600"}, currently_attached=True)
    secret = pool.db.get("secret", pool.db.create("secret", value=UNICODE), "uuid")

    srs, pbds = xapi.records("SR"), xapi.records("PBD")

    assert (srs[sr]["name_label"], srs[sr]["PBDs"], xapi.records("VDI")) == ("san \u65e5", [pbd], {})
    assert (pbds[pbd]["device_config"], pbds[pbd]["currently_attached"]) == ({"SCSIid": "3600"}, True)
    assert xapi.call("host.get_record", pool.master)["other_config"]["iscsi_iqn"] == "iqn.2026-01.test:xs1"
    assert xapi.secret(secret) == UNICODE
    before = pool.db.refs("session")
    with local_xapi(pool.socket_path) as own:
        assert len(own.records("host")) == 2
    assert pool.db.refs("session") == before


# --- errors


@pytest.mark.parametrize(
    "method, arguments, code",
    [
        ("host.get_record", ["OpaqueRef:gone"], "HANDLE_INVALID"),
        ("SR.get_by_uuid", ["no \u65e5 uuid"], "UUID_INVALID"),
        ("SR.juggle", [], "MESSAGE_METHOD_UNKNOWN"),
        ("SR.get_record", [], "MESSAGE_PARAMETER_COUNT_MISMATCH"),
    ],
)
def test_an_error_of_xapi(pool, xapi, method, arguments, code):
    failure = failure_of(xapi.call, method, *arguments)
    pool.api.mistakes.clear()  # of which the pool would tell at its end

    assert failure.code == code
    assert all(argument in str(failure) for argument in [method, code, *arguments])
    assert fault_of(failure).faultCode == 153


def test_a_session_that_is_over(pool):
    assert failure_of(Xapi(SESSION, pool.socket_path).records, "SR").code == "SESSION_INVALID"


@pytest.mark.parametrize("uuid", ["0f4b6c1e-0000-4000-8000-000000000000", "", "\u65e5"])
def test_a_secret_that_is_not_there(xapi, uuid):
    failure = failure_of(xapi.secret, uuid)

    assert (failure.code, failure.sm_key) == ("UUID_INVALID", "InvalidSecret")
    assert fault_of(failure).faultCode == 20


# --- a xapi that is not there, or does not answer


def test_no_answer_in_time_and_nobody_at_the_socket(socket_directory):
    path = socket_directory + "/slow"
    with socket.socket(socket.AF_UNIX) as slow:
        slow.bind(path)
        assert "refused" in str(failure_of(Xapi(SESSION, path).call, "SR.get_all"))
        slow.listen(8)

        assert "timed out" in str(failure_of(Xapi(SESSION, path, timeout=0.05).call, "SR.get_all"))


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"result',
        http_reply(b"", "500 Internal Server Error"),
        http_reply(b"\xff\xfe\x00"),
        http_reply(b"<html><body>It works!</body></html>"),
        http_reply(b"<methodResponse><params/></methodResponse>"),
        http_reply(b'"bare"'),
        http_reply(b"{}"),
        http_reply(b'{"error": "no", "result": ""}'),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_the_call_is_not_made_again(canned, reply):
    server = canned(reply)
    failure = failure_of(Xapi(SESSION, server.path, timeout=600).call, "VDI.destroy", "a")

    assert (fault_of(failure).faultCode, len(server.requests)) == (153, 1)
    assert SESSION not in str(failure)


@pytest.mark.parametrize("session", [b'""', b"1", b'["OpaqueRef:1"]', b'"OpaqueRef:1\\r\\nX: x"'])
def test_a_login_that_gives_no_session_is_an_error_and_no_call_follows(canned, session):
    server = canned(http_reply(b'{"result": %s, "error": null, "id": 1}' % session))

    with pytest.raises(XapiFailure, match="the answer to the login has no session"), local_xapi(server.path):
        pytest.fail("it has no session")
    assert len(server.requests) == 1


# --- what is asked


def test_the_request_names_the_task(canned):
    server = canned(http_reply(b'{"result": "", "error": null, "id": 1}'))

    assert Xapi(SESSION, server.path, subtask_of="DummyRef:|5b0c|SR.create").call("SR.get_name_label", "a") == ""
    assert Xapi(SESSION, server.path).records("SR") == {}
    with_task, without = server.requests
    assert with_task.startswith(b"POST /jsonrpc HTTP/1.1\n")
    assert b"\nSubtask-of: DummyRef:|5b0c|SR.create\n" in with_task
    assert b"Subtask-of" not in without
    assert SESSION.encode("ascii") in with_task
