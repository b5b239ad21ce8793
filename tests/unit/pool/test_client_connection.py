# SPDX-License-Identifier: LGPL-2.1-only
"""Log in: on the master, with TLS that is verified, and in sentences where it cannot be."""

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.certificates import self_signed
from kit.pool.api import GoneAway, Member
from kit.pool.errors import XenError
from kit.pool.server import TcpServer, UnixServer
from kit.pool.simulator import Pool
from kit.shell import TOP
from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.pool import calls as pool_calls
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure, PoolGone, failure, result_text
from relvmoiscsi.pool.connection import LOCAL, Where, connect, url_of


@pytest.fixture(autouse=True)
def all_are_far(monkeypatch):
    """No client is spared the network."""
    monkeypatch.setattr(Pool, "near", ExitStack)


def names_of_hosts(where):
    with connect(where) as calls:
        return sorted(host["name_label"] for host in calls.records("host").values())


def test_a_session_is_ended(lab):
    sessions = lab.pool.db.refs("session")

    assert names_of_hosts(lab.where()) == ["xs1", "xs2", "xs3"]
    assert lab.pool.db.refs("session") == sessions
    assert lab.pool.api.calls[-1] == "session.logout"


def test_a_member_leads_to_the_master(lab):
    assert names_of_hosts(lab.where()._replace(pool=lab.pool.listen_on_member())) == ["xs1", "xs2", "xs3"]


def test_hosts_that_name_one_another_are_given_up(lab):
    member = lab.pool.listen_on_member().replace("127.0.0.2", "127.0.0.3")
    port = int(member.rsplit(":", 1)[1])

    class Confused:
        def call(self, method, params, local=False):
            raise XenError("HOST_IS_SLAVE", "127.0.0.3")

    server = TcpServer(Confused(), "127.0.0.3", port)
    try:
        with pytest.raises(PoolFailure, match="disagree about"):
            names_of_hosts(lab.where()._replace(pool=member))
    finally:
        server.stop()


def test_a_wrong_password_is_said(lab):
    with pytest.raises(PoolFailure, match="does not accept this user and password") as caught:
        names_of_hosts(lab.where()._replace(password="wrong"))

    assert caught.value.exit_status == 6 and "wrong" not in str(caught.value)


def test_nobody_is_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(PoolFailure, match=f"No pool answers at http://127.0.0.1:{port}: Connection refused"):
        names_of_hosts(Where(f"http://127.0.0.1:{port}", password="x"))


def test_what_answers_is_no_pool():
    class Silly:
        def call(self, method, params, local=False):
            raise GoneAway()

    server = TcpServer(Silly())
    try:
        with pytest.raises(PoolFailure, match="No pool answers|is no XenAPI"):
            names_of_hosts(Where(server.url, password="x"))
    finally:
        server.stop()


@pytest.mark.processes
def test_a_certificate_is_verified_unless_somebody_says_no(world, tmp_path):
    context, certificate = self_signed(tmp_path)
    with world.pool(hosts=("xs1",), tls=context) as pool:
        where = Where(pool.url, pool.api.user, pool.api.password)
        with pytest.raises(PoolFailure, match="certificate of https://127.0.0.1:.* is not trusted.*--ca"):
            names_of_hosts(where)
        assert names_of_hosts(where._replace(ca=certificate)) == ["xs1"]
        assert names_of_hosts(where._replace(insecure=True)) == ["xs1"]
        with pytest.raises(PoolFailure, match="not trusted"):
            names_of_hosts(where._replace(pool=pool.url.replace("127.0.0.1", "localhost"), ca=certificate))


@pytest.mark.processes
def test_a_member_with_a_certificate_of_its_own_says_what_is_to_be_believed(world, tmp_path):
    """Hosts sign their own, and a member leads to the master's address."""
    tls, pems = {}, {}
    for name, address in (("master", "127.0.0.1"), ("member", "127.0.0.2")):
        (tmp_path / name).mkdir()
        tls[name], pems[name] = self_signed(tmp_path / name, address)
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(pem).read_text() for pem in pems.values()))
    with world.pool(hosts=("xs1", "xs2"), tls=tls["master"]) as pool:
        port = pool._servers[0].server_address[1]
        pool._servers.append(TcpServer(Member("127.0.0.1"), "127.0.0.2", port, tls=tls["member"]))
        where = Where(pool._servers[-1].url, pool.api.user, pool.api.password, ca=pems["member"])
        with pytest.raises(
            PoolFailure, match=f"{where.pool} is a member .* at {pool.url}, .*host name of the master"
        ) as caught:
            names_of_hosts(where)
        assert "--insecure" not in str(caught.value)
        assert names_of_hosts(where._replace(ca=str(both))) == ["xs1", "xs2"]


def test_a_file_without_certificates_is_said(tmp_path):
    (tmp_path / "empty.pem").write_text("")

    for path in (tmp_path / "empty.pem", tmp_path / "absent.pem"):
        with pytest.raises(UsageError, match="holds no readable certificates"):
            names_of_hosts(Where("https://127.0.0.1", password="x", ca=str(path)))


def test_the_socket_of_dom0_needs_no_password(world, tmp_path):
    path = tmp_path / "_xapi"
    with world.pool(hosts=("xs1",)) as pool:
        pool._servers.append(UnixServer(pool.api, path))

        assert names_of_hosts(Where(LOCAL, socket_path=str(path))) == ["xs1"]


def test_the_socket_of_a_member_says_who_the_master_is(tmp_path):
    """xapi lets root in there, and refuses what follows."""
    server = UnixServer(Member("192.0.2.1"), tmp_path / "xapi")
    try:
        with pytest.raises(PoolFailure, match=r"no longer, the master of its pool\. .* --pool 192\.0\.2\.1\."):
            names_of_hosts(Where(LOCAL, socket_path=str(tmp_path / "xapi")))
    finally:
        server.stop()


@pytest.mark.parametrize(
    "text, url",
    [
        ("xs1", "https://xs1"),
        ("10.0.0.1", "https://10.0.0.1"),
        ("http://xs1", "http://xs1"),
        ("https://xs1:8443/", "https://xs1:8443"),
        ("https://[fd00::1]", "https://[fd00::1]"),
        ("local", "http://localhost/"),
    ],
)
def test_how_a_pool_may_be_named(text, url):
    assert url_of(Where(text)) == url


@pytest.mark.parametrize("text", ["ftp://xs1", "https://", "https://xs1?x"])
def test_how_it_may_not_be_named(text):
    with pytest.raises(UsageError, match="is not a pool"):
        url_of(Where(text))


def test_certificates_for_a_pool_that_shows_none_are_refused():
    with pytest.raises(UsageError, match="or remove --ca"):
        url_of(Where("http://xs1", ca="/etc/pool.pem"))


@pytest.mark.parametrize("text", ["https://root:hidden@xs1", "root:hidden@xs1", "ftp://root:hidden@"])
def test_a_password_in_a_url_is_refused_and_not_shown(text):
    with pytest.raises(UsageError, match="contains a user or a password") as caught:
        url_of(Where(text))

    assert "hidden" not in str(caught.value)


def test_without_the_module_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "XenAPI", None)

    with pytest.raises(NotFound, match="pip install .\\[pool\\]"), connect(Where("xs1", password="x")):
        pass


@pytest.mark.processes
@pytest.mark.parametrize("flags", ["-IB", "-ISB"])
def test_it_is_found_however_the_command_is_started(flags):
    program = f"import sys; sys.path.insert(0, {str(TOP)!r})\n"
    program += "from relvmoiscsi.host.xapi import sdk; print(sdk.module().__name__)"

    assert subprocess.check_output([sys.executable, flags, "-c", program]) == b"XenAPI\n"


def test_a_pool_that_goes_away_is_said(lab):
    def before(method, params):
        if method == "SR.get_all_records":
            raise GoneAway()

    with connect(lab.where()) as calls:
        lab.pool.api.before = before
        with pytest.raises(PoolFailure, match="closed the connection during SR.get_all_records"):
            records.read(calls)
        lab.pool.api.before = None


def test_a_task_that_fails_raises_what_xapi_says(lab):
    with connect(lab.where()) as calls, pytest.raises(PoolFailure) as caught:
        calls.run("SR.probe", lab.pool.master, {}, "nonsense", {})

    assert caught.value.code == "SR_UNKNOWN_DRIVER" and "no SRs of type nonsense" in str(caught.value)
    assert lab.pool.db.refs("task") == []


def test_a_task_that_a_restart_has_ended_is_not_waited_for(lab, monkeypatch):
    monkeypatch.setattr(pool_calls, "EVENT_SECONDS", 0.01)
    with connect(lab.where()) as calls:
        task = lab.pool.db.create("task", name_label="begun before")
        threading.Timer(0.1, lab.pool.db.destroy, ["task", task]).start()
        with pytest.raises(PoolGone, match="was restarted during the call"):
            calls.finish("SR.scan", task)


def test_another_connection_has_the_same_session(lab):
    with connect(lab.where()) as calls:
        other = calls.another()
        before = len(lab.pool.db.refs("session"))
        assert other.call("SR.get_all") == calls.call("SR.get_all")
        assert len(lab.pool.db.refs("session")) == before
        other.close()


def test_sessions_that_take_the_place_of_one_that_xapi_has_ended_are_ended_too(lab):
    """XenAPI logs in anew, each connection for itself."""
    before = lab.pool.db.refs("session")
    with connect(lab.where()) as calls:
        others = [calls.another(), calls.another()]
        lab.pool.db.destroy("session", calls._proxy._session)
        for one in (calls, *others):
            assert one.call("SR.get_all") is not None
        assert len(lab.pool.db.refs("session")) == len(before) + 3
        for other in others:
            other.close()
        assert calls.call("SR.get_all") is not None

    assert lab.pool.db.refs("session") == before
    assert lab.pool.api.calls.count("session.logout") == 3


@pytest.mark.parametrize(
    "value, text",
    [("<value>a &lt; b</value>", "a < b"), ("<value/>", ""), ("", ""), ("OpaqueRef:x", "OpaqueRef:x")],
)
def test_the_result_of_a_task(value, text):
    assert result_text(value) == text


def test_a_right_that_is_missing_is_said():
    assert "may not call SR.create" in str(
        failure("SR.create", ["RBAC_PERMISSION_DENIED", "sr.create", "No permission in user session"])
    )


def test_an_sr_that_is_busy_for_two_hours_is_said():
    """xapi has waited for the other operation for that long (xapi_sr_operations.ml, helpers.ml)."""
    busy = failure("Async.SR.scan", ["OTHER_OPERATION_IN_PROGRESS", "SR", "OpaqueRef:1", "vdi_create", "OpaqueRef:2"])
    assert "busy with another operation (vdi_create) on the same SR" in str(busy) and "did not run SR.scan" in str(busy)
    assert "on the same SR" in str(failure("PBD.unplug", ["OTHER_OPERATION_IN_PROGRESS", "SR"]))


@pytest.mark.parametrize("code", ["HOST_OFFLINE", "CANNOT_CONTACT_HOST"])
def test_a_host_that_does_not_answer_is_down(code):
    """Until its heartbeat is late, xapi takes it for live and cannot reach it."""
    assert str(failure("PBD.plug", [code, "OpaqueRef:1"])) == "The host is down."
