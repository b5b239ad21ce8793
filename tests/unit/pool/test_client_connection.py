# SPDX-License-Identifier: LGPL-2.1-only
"""Log in: on the master, with TLS that is verified, and in sentences where it cannot be. Several connections at once:
in which order steps are taken, and that one which fails stops no other.
"""

import errno
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from math import inf, nan
from pathlib import Path

import pytest

from kit.certificates import self_signed
from kit.few_threads import few_threads
from kit.pool import datamodel
from kit.pool.api import GoneAway, Member
from kit.pool.errors import XenError
from kit.pool.server import TcpServer, UnixServer
from kit.pool.simulator import Pool
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import LoginRefused, Lost, NoAddress, NotFound, Refused, Unreachable, UsageError
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.pool import calls as pool_calls
from relvmoiscsi.pool import jobs, records
from relvmoiscsi.pool.calls import NotConnected, PoolFailure, PoolGone, failure, result_text
from relvmoiscsi.pool.connection import LOCAL, Where, connect, url_of


@pytest.fixture(autouse=True)
def all_are_far(monkeypatch):
    """No client is spared the network."""
    monkeypatch.setattr(Pool, "near", ExitStack)


@pytest.fixture
def serve(request):
    """Gives what starts a server: of this kind, with these arguments."""

    def serve(kind, *arguments, **more):
        server = kind(*arguments, **more)
        request.addfinalizer(server.stop)
        return server

    return serve


class Answers:
    """A host that answers each call with this error."""

    def __init__(self, error):
        self.error = error

    def call(self, method, params, local=False):
        raise self.error


def names_of_hosts(where):
    with connect(where) as calls:
        return sorted(host["name_label"] for host in calls.records("host").values())


def test_a_session_is_ended_also_of_a_member_that_leads_to_the_master(lab):
    sessions = lab.pool.db.refs("session")
    for pool in (lab.where().pool, lab.pool.listen_on_member()):
        assert names_of_hosts(lab.where()._replace(pool=pool)) == ["xs1", "xs2", "xs3"]
        assert lab.pool.db.refs("session") == sessions and lab.pool.api.calls[-1] == "session.logout"


def test_after_an_interrupted_call_the_next_call_has_a_new_connection(lab, monkeypatch):
    """Ctrl-C while an answer is awaited: the connection is in the middle of a call, and cannot take another call."""
    api, answered = lab.pool.api, threading.Event()
    real = api.call

    def interrupt(method, *arguments, **more):
        if method == "SR.get_all":
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert answered.wait(60)
        return real(method, *arguments, **more)

    with connect(lab.where()) as calls:
        monkeypatch.setattr(api, "call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            calls.call("SR.get_all")
        try:
            assert len(calls.call("host.get_all")) == 3
        finally:
            answered.set()


def test_a_wrong_password_is_told(lab):
    with pytest.raises(LoginRefused, match="does not accept this user and password"):
        names_of_hosts(lab.where()._replace(password="a wrong word"))


def test_hosts_that_name_one_another_are_given_up(lab, serve):
    member = lab.pool.listen_on_member().replace("127.0.0.2", "127.0.0.3")
    confused = Answers(XenError("HOST_IS_SLAVE", "127.0.0.3"))
    serve(TcpServer, confused, "127.0.0.3", int(member.rsplit(":", 1)[1]))
    with pytest.raises(PoolFailure, match="disagree about"):
        names_of_hosts(lab.where()._replace(pool=member))


def test_nobody_is_there_or_no_pool(serve):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unreachable, match=f"No pool answers at {url}: Connection refused"):
        names_of_hosts(Where(url, password="x"))
    with pytest.raises(NoAddress, match="No pool answers at http://nobody.invalid"):
        names_of_hosts(Where("http://nobody.invalid", password="x"))
    with pytest.raises((Lost, NotConnected), match="No pool answers|is no XenAPI"):
        names_of_hosts(Where(serve(TcpServer, Answers(GoneAway())).url, password="x"))


def test_where_this_process_can_open_no_more_files_the_pool_is_not_blamed(monkeypatch):
    def full(*_arguments, **_more):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "create_connection", full)
    with pytest.raises(Refused, match="^This process cannot open enough files: "):
        names_of_hosts(Where("http://127.0.0.1:1", password="x"))


@pytest.mark.processes
def test_a_certificate_is_verified_unless_somebody_says_no(world, tmp_path):
    context, certificate = self_signed(tmp_path)
    with world.pool(hosts=("xs1",), tls=context) as pool:
        where = Where(pool.url, pool.api.user, pool.api.password)
        with pytest.raises(PoolFailure, match="certificate of https://127.0.0.1:.* is not trusted.*--ca"):
            names_of_hosts(where)
        assert names_of_hosts(where._replace(ca=certificate)) == ["xs1"]
        (tmp_path / "empty.pem").write_text("")
        with pytest.raises(UsageError, match="empty.pem holds no readable certificates"):
            names_of_hosts(where._replace(ca=str(tmp_path / "empty.pem")))
        assert names_of_hosts(where._replace(insecure=True)) == ["xs1"]
        with pytest.raises(PoolFailure, match="not trusted"):
            names_of_hosts(where._replace(pool=pool.url.replace("127.0.0.1", "localhost"), ca=certificate))


@pytest.mark.processes
def test_certificates_of_a_pipe_are_read_once_for_all_connections(world, tmp_path):
    context, certificate = self_signed(tmp_path)
    reader, writer = os.pipe()
    os.write(writer, "# Größe\n".encode() + Path(certificate).read_bytes())
    os.close(writer)
    with world.pool(hosts=("xs1",), tls=context) as pool, ExitStack() as stack:
        calls = stack.enter_context(connect(Where(pool.url, pool.api.user, pool.api.password, f"/dev/fd/{reader}")))
        other = calls.another()
        assert other.records("host").keys() == calls.records("host").keys()
        other.close()
    os.close(reader)


def test_no_other_user_says_which_certificates_are_trusted(tmp_path):
    """Whoever calls: the command, the collection for Ansible, or a program."""
    writable = tmp_path / "writable.pem"
    writable.write_text("")
    writable.chmod(0o666)
    (tmp_path / "link.pem").symlink_to(writable)
    for path in (writable, tmp_path / "link.pem", tmp_path):
        with pytest.raises(UsageError, match="The file of --ca is not safe"):
            names_of_hosts(Where("https://127.0.0.1", password="x", ca=str(path)))


@pytest.mark.processes
def test_a_member_with_a_certificate_of_its_own_says_what_is_to_be_believed(world, tmp_path, serve):
    """Hosts sign their own, and a member leads to the master's address."""
    tls, pems = {}, {}
    for name, address in (("master", "127.0.0.1"), ("member", "127.0.0.2")):
        (tmp_path / name).mkdir()
        tls[name], pems[name] = self_signed(tmp_path / name, address)
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(pem).read_text() for pem in pems.values()))
    with world.pool(hosts=("xs1", "xs2"), tls=tls["master"]) as pool:
        port = pool._servers[0].server_address[1]
        member = serve(TcpServer, Member("127.0.0.1", pool.api), "127.0.0.2", port, tls=tls["member"])
        where = Where(member.url, pool.api.user, pool.api.password, ca=pems["member"])
        said = f"{where.pool} is a member .* at {pool.url}, .*host name of the master"
        with pytest.raises(PoolFailure, match=said) as caught:
            names_of_hosts(where)
        assert "--insecure" not in str(caught.value)
        assert names_of_hosts(where._replace(ca=str(both))) == ["xs1", "xs2"]


@pytest.mark.parametrize("is_member", [False, True])
def test_the_socket_of_dom0_needs_no_password_on_the_master_or_a_member(lab, tmp_path, serve, is_member):
    sessions = lab.pool.db.refs("session")
    serve(UnixServer, Member("192.0.2.1", lab.pool.api) if is_member else lab.pool.api, tmp_path / "xapi")
    assert names_of_hosts(Where(LOCAL, socket_path=str(tmp_path / "xapi"))) == ["xs1", "xs2", "xs3"]
    assert lab.pool.db.refs("session") == sessions


def test_a_call_that_xapi_would_not_read_is_an_error_of_this_call_alone(lab):
    """A run that has begun something undoes it: the pool answers still."""
    with connect(lab.where()) as calls:
        (sr,) = lab.pool.db.refs("SR")[:1]
        with pytest.raises(PoolFailure, match=r"SR\.set_name_label was not called: .* shorter texts"):
            calls.call("SR.set_name_label", sr, "x" * (300 << 10))
        calls.call("SR.set_name_label", sr, "x" * calls.room(sr, ""))
        assert "SR.set_name_label" in lab.pool.api.calls


def test_a_call_is_encoded_once(lab, monkeypatch):
    """The arguments may have 300 KiB, and a run makes a call for each of thousands of VDIs."""
    encoded, real = [], rpc.body_of
    with connect(lab.where()) as calls:
        monkeypatch.setattr(rpc, "body_of", lambda value: encoded.append(value) or real(value))
        calls.call("SR.get_all_records")
        assert len(encoded) == 1


def test_a_master_that_is_a_member_since_the_login_is_said(lab):
    def is_member_now(method, _params):
        if method != "session.login_with_password":
            raise XenError("HOST_IS_SLAVE", "192.0.2.1")

    lab.pool.api.before = is_member_now
    with pytest.raises(PoolFailure, match=r"no longer, the master of its pool\. .* --pool the name of another host"):
        names_of_hosts(lab.where())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("xs1", "https://xs1"),
        ("http://xs1", "http://xs1"),
        ("https://xs1:8443/", "https://xs1:8443"),
        ("https://[fd00::1]", "https://[fd00::1]"),
        ("local", "http://localhost/"),
    ],
)
def test_how_a_pool_may_be_named(text, url):
    assert url_of(Where(text)) == url


@pytest.mark.parametrize(
    ("text", "ca", "said"),
    [
        *((text, None, "is not a pool") for text in ("ftp://xs1", "https://", "https://xs1?x")),
        *((text + "root:hidden@xs1", None, "contains a user or a password") for text in ("", "https://", "ftp://")),
        ("http://xs1", "/etc/pool.pem", "or remove --ca"),
        ("https://127.0.0.1", "/nowhere/absent.pem", "cannot be read: No such file"),
        ("https://127.0.0.1", "/dev/null", "file of --ca is not safe: other users can change"),
    ],
)
def test_how_it_may_not_be_named(text, ca, said):
    """A password is not shown."""
    with pytest.raises(UsageError, match=said) as caught:
        names_of_hosts(Where(text, password="x", ca=ca))
    assert "hidden" not in str(caught.value)


# --- calls


def test_a_pool_that_goes_away_is_said(lab):
    said = "closed the connection during SR.get_all_records"
    with connect(lab.where()) as calls, lab.cut("SR.get_all_records"), pytest.raises(PoolGone, match=said):
        records.read(calls)


def test_a_task_that_fails_raises_what_xapi_says(lab):
    with connect(lab.where()) as calls, pytest.raises(PoolFailure, match="no SRs of type nonsense") as caught:
        calls.run("SR.probe", lab.pool.master, {}, "nonsense", {})
    assert caught.value.code == "SR_UNKNOWN_DRIVER" and lab.pool.db.refs("task") == []


@pytest.mark.parametrize("end, told", [("failure", [0.3, 0.99]), ("success", [0.3, 0.99, 1.0])])
@pytest.mark.parametrize("strange, shown", [(1.0, 0.99), (2.0, 0.99), (inf, 0.99), (nan, 0), (-1.0, 0), (-inf, 0)])
def test_a_task_is_told_as_done_only_after_a_success(lab, monkeypatch, end, told, strange, shown):
    """xapi sets the progress of a task to 1 before it says that the task has failed. A client may set any number."""
    seen = iter([(0.3, "pending"), (strange, "pending"), (1.0, end)])
    told = [told[0], shown, *told[2:]]

    def answer(method, *_):
        if method != "task.get_record":
            return {"token": "", "events": []}
        progress, status = next(seen)
        return {
            "uuid": "u",
            "progress": progress,
            "status": status,
            "error_info": ["INTERNAL_ERROR", "full"],
            "result": "",
        }

    found = []
    with connect(lab.where()) as calls:
        monkeypatch.setattr(calls, "call", answer)
        try:
            calls.wait("VDI.pool_migrate", "task", progress=found.append)
        except PoolFailure as error:
            assert end == "failure" and "full" in str(error)
        monkeypatch.undo()

    assert found == told


def test_a_task_without_progress_is_not_waited_for_without_end(lab, monkeypatch):
    """Such as a task that xapi has forwarded to a host which has died. Each progress gives the task time anew."""
    now = [0.0]
    monkeypatch.setattr(pool_calls, "Deadline", lambda seconds: Deadline(seconds, clock=lambda: now[0]))
    parts = iter([0.0, 0.2, 0.4, 0.4, 0.4, 0.3])
    seen = []

    def answer(method, *words):
        if method == "event.from":
            now[0] += 2 * 3600
            assert words[2] <= pool_calls.EVENT_SECONDS
            return {"token": "", "events": []}
        seen.append(next(parts))
        return {"uuid": "the task", "progress": seen[-1], "status": "pending"}

    with connect(lab.where()) as calls:
        monkeypatch.setattr(calls, "call", answer)
        with pytest.raises(
            PoolFailure, match="SR.create made no progress for 3 h 0 min and continues in the pool"
        ) as e:
            calls.wait("SR.create", "task")
        assert seen == [0.0, 0.2, 0.4, 0.4, 0.4]
        now[0], parts = 0.0, iter([0.1, 0.2])
        with pytest.raises(PoolFailure, match="SR.create did not end within 3 h 0 min"):  # a deadline is one
            calls.wait("SR.create", "task", Deadline(3 * 3600, clock=lambda: now[0]))
        monkeypatch.undo()
    for command in ("`xe task-list uuid='the task'`", "`xe task-cancel uuid='the task'`", "Then repeat the command."):
        assert command in str(e.value)


def test_tasks_that_run_in_parallel_share_one_deadline_and_none_is_overlooked(lab):
    with connect(lab.where()) as calls:
        over = Deadline(0)
        sr = lab.originals["Production"][1]
        assert calls.wait("SR.scan", calls.start("SR.scan", sr), over) == ""
        hung = lab.pool.db.create("task", name_label="begun before", status="pending")
        with pytest.raises(PoolFailure, match="continues in the pool, with an unknown result"):
            calls.wait("SR.scan", hung, over)


def test_a_task_that_a_restart_has_ended_is_not_waited_for(lab, monkeypatch):
    monkeypatch.setattr(pool_calls, "EVENT_SECONDS", 0.01)
    with connect(lab.where()) as calls:
        task = lab.pool.db.create("task", name_label="begun before")
        threading.Timer(0.1, lab.pool.db.destroy, ["task", task]).start()
        with pytest.raises(PoolGone, match="was restarted during the call"):
            calls.wait("SR.scan", task)


def test_the_pool_is_asked_once_what_a_session_may(lab):
    """A restore asks at each of its steps. The user of a new session may have got another role."""
    with connect(lab.where()) as calls:
        lab.pool.api.calls.clear()
        assert calls.may_call("VM.start") and calls.may_call("PBD.unplug")
        assert lab.pool.api.calls == ["session.get_record"]
        lab.pool.db.destroy("session", calls.session)
        assert calls.call("SR.get_all") is not None
        assert calls.may_call("VM.start") and lab.pool.api.calls.count("session.get_record") == 2


def test_connections_share_a_session_and_each_that_takes_its_place_is_ended_too(lab):
    """When xapi has ended it, each connection logs in anew, for itself."""
    before = lab.pool.db.refs("session")
    with connect(lab.where()) as calls:
        others = [calls.another(), calls.another()]
        assert others[0].call("SR.get_all") == calls.call("SR.get_all")
        assert len(lab.pool.db.refs("session")) == len(before) + 1
        lab.pool.db.destroy("session", calls.session)
        for one in (calls, *others):
            assert one.call("SR.get_all") is not None
        assert len(lab.pool.db.refs("session")) == len(before) + 3
        for other in others:
            other.close()
        assert calls.call("SR.get_all") is not None
    assert lab.pool.db.refs("session") == before
    assert lab.pool.api.calls.count("session.logout") == 3


@pytest.mark.parametrize(
    ("value", "text"), [("<value>a &lt; b</value>", "a < b"), ("<value/>", ""), ("OpaqueRef:x", "OpaqueRef:x")]
)
def test_the_result_of_a_task(value, text):
    assert result_text(value) == text


BUSY = ["OTHER_OPERATION_IN_PROGRESS", "SR", "OpaqueRef:1", "vdi_create", "OpaqueRef:2"]


@pytest.mark.parametrize(
    ("method", "details", "said"),
    [
        ("SR.create", ["RBAC_PERMISSION_DENIED", "sr.create", "No permission"], "may not call SR.create"),
        # of an HTTP handler, as xapi 25.33.1 has said it
        (
            "GET /export_metadata",
            ["RBAC_PERMISSION_DENIED", "http/get_export_metadata", "no session in context"],
            "may not call GET /export_metadata",
        ),
        ("GET /export_metadata", ["RBAC_PERMISSION_DENIED", "http/get_export_metadata", "End_of_file"], "End_of_file"),
        # xapi has waited for the other operation for two hours (xapi_sr_operations.ml, helpers.ml)
        ("Async.SR.scan", BUSY, "busy with another operation (vdi_create) on the same SR"),
        ("Async.SR.scan", BUSY, "did not run SR.scan"),
        ("PBD.unplug", BUSY[:2], "on the same SR"),
        # until its heartbeat is late, xapi takes a host for live and cannot reach it
        ("PBD.plug", ["HOST_OFFLINE", "OpaqueRef:1"], "A host that PBD.plug needs is down."),
        ("PBD.plug", ["CANNOT_CONTACT_HOST", "OpaqueRef:1"], "A host that PBD.plug needs is down."),
        # of a start, xapi does not say what is missing
        ("VM.start", ["NO_HOSTS_AVAILABLE"], "enough free memory, and HVM for a guest that needs it."),
        ("Async.VM.resume", ["NO_HOSTS_AVAILABLE"], "enough free memory, and HVM for a guest that needs it."),
        ("PUT /import_raw_vdi", ["NO_HOSTS_AVAILABLE"], "has all SRs attached that PUT /import_raw_vdi needs."),
        ("Async.VDI.create", ["SR_BACKEND_FAILURE_1", "errno=2"], "VDI.create: errno=2."),
        # a stranger may have chosen a parameter
        ("VM.start", ["VM_BAD", "Ref:1", "`a b`\n"], r"xapi answered VM_BAD, Ref:1, '`a b`\n' to VM.start."),
        ("VM.start", ["HANDLE_INVALID", "a\x1b", "OpaqueRef:1"], r"The 'a\x1b' that VM.start needs"),
        ("VM.start", ["OPERATION_BLOCKED", "OpaqueRef:1", "`a b`"], "has blocked VM.start for a VM."),
    ],
)
def test_what_xapi_answers_is_said_in_a_sentence(method, details, said):
    assert said in str(failure(method, details))


PLUGIN = ["RELVMOISCSI_FAILURE", "map", "A sentence of the plugin. " * 20 + "Its advice."]


def test_the_sentence_of_our_host_plugin_stays_whole():
    """It was quoted, and cut after 200 characters, so its advice was lost."""
    assert str(failure("Async.host.call_plugin", PLUGIN)) == f"host.call_plugin: {PLUGIN[-1]}"


@pytest.mark.parametrize(
    ("method", "details"),
    [
        ("VM.start", PLUGIN),
        ("VM.call_host_plugin", PLUGIN),
        ("host.call_plugin", ["XENAPI_PLUGIN_FAILURE", *PLUGIN[1:]]),
        ("host.call_plugin", [*PLUGIN, "more"]),
    ],
)
def test_no_other_answer_stands_for_a_sentence_of_our_host_plugin(method, details):
    said = str(failure(method, details))
    assert said.startswith("xapi answered ") and "advice" not in said and len(said) < 500


@pytest.mark.parametrize("code", ["A_CODE", "HANDLE_INVALID", "OPERATION_BLOCKED", "SR_BACKEND_FAILURE_1", "A" * 9999])
def test_an_error_of_xapi_is_cut_whatever_its_parameters_are(code):
    assert len(str(failure("VM.start", [code, "a b" * 100000, "a b" * 100000]))) < 9000


# --- several jobs at once


class Line:
    """A connection that counts how many are open."""

    opened = closed = 0

    def another(self):
        Line.opened += 1
        return Line()

    def close(self):
        Line.closed += 1


def two_steps(items, first, second, at_once, group=lambda item: item):
    return jobs.in_two_steps(Line(), items, first, second, group, at_once)


def test_results_come_in_the_order_of_the_items():
    found = jobs.at_once(Line(), range(20), lambda calls, number: number * 2, 4)
    assert found == list(range(0, 40, 2)) and Line.opened == Line.closed > 0
    assert jobs.at_once(Line(), [], lambda calls, item: item) == []


def test_who_is_free_takes_the_second_step_of_others_while_the_last_first_step_goes_on():
    """Three at once, four items: the second steps of the first three are over before the fourth item's first one."""
    seconds, lock, enough = [], threading.Lock(), threading.Event()

    def first(_calls, item):
        if item == "d":
            assert enough.wait(60), "nobody has taken the second steps of the others meanwhile"
        return item

    def second(_calls, item):
        with lock:
            seconds.append(item)
            if len(seconds) == 3:
                enough.set()
        return item

    assert two_steps("abcd", first, second, 3) == list("abcd") and seconds[-1] == "d"


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_no_item_goes_on_before_all_of_its_group_are_there_or_have_ended_with_an_error(at_once):
    order, lock = [], threading.Lock()

    def first(_calls, item):
        if item == "a2":
            raise NotFound("it ends here")
        with lock:
            order.append((1, item))
        return item + "!"

    def second(_calls, item):
        with lock:
            order.append((2, item))
        return item

    found = two_steps(["a1", "b1", "a2", "b2", "b3", "c1"], first, second, at_once, lambda item: item[0])
    assert [str(each) for each in found] == ["a1!", "b1!", "it ends here", "b2!", "b3!", "c1!"]
    assert isinstance(found[2], NotFound)
    for group in "abc":
        mine = [step for step, item in order if item[0] == group]
        assert mine == sorted(mine) and mine.count(2) == mine.count(1)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_bug_comes_through_and_nobody_waits_for_ever(at_once):
    with pytest.raises(ZeroDivisionError):
        jobs.at_once(Line(), range(6), lambda _, number: 1 // (number - 1), at_once)


def test_who_is_interrupted_waits_for_nobody():
    """Ctrl-C comes to the thread of the caller, which works too."""
    hung, release = threading.Event(), threading.Event()

    def work(*_):
        if threading.current_thread() is threading.main_thread():
            assert hung.wait(60)
            raise KeyboardInterrupt
        hung.set()
        release.wait(60)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        jobs.at_once(Line(), range(6), work, 3)
    assert time.monotonic() - begun < 30
    release.set()


@pytest.mark.parametrize("others", [0, 1])
def test_where_the_kernel_starts_few_threads_these_do_all_jobs(others):
    with few_threads(others):
        assert jobs.at_once(Line(), range(6), lambda _, number: number * 2, 3) == [0, 2, 4, 6, 8, 10]
        assert two_steps("abcd", lambda _, item: item, lambda _, item: item, 3, lambda _: 0) == list("abcd")


@pytest.mark.parametrize("value", ['9" or field "uuid" = "x', '"'])
def test_no_value_adds_conditions_to_a_search(value):
    """In xapi's expressions a quotation mark ends a value, and nothing escapes one."""
    with pytest.raises(PoolFailure, match="has a quotation mark"):
        pool_calls.expression("task", {"other_config": "()", "name_label": value}.items())
    others = {"other_config": "()", "name_label": "1\\' or true"}
    wanted = 'field "other_config" = "()" and field "name__label" = "1\\\' or true"'
    assert pool_calls.expression("task", others.items()) == wanted
    assert pool_calls.expression("VM", [("ref", "a"), ("ref", "b")], "or") == 'field "_ref" = "a" or field "_ref" = "b"'


def test_the_advice_to_a_lower_role_names_the_role_of_the_call():
    rows = [line.split("\t") for line in (datamodel.DATA / "calls.tsv").read_text(encoding="utf-8").splitlines()]
    roles = {row[0]: row[1] for row in rows[2:] if row[1] != "read-only"}
    assert {*roles.values()} == {"vm-operator", "vm-admin", "vm-power-admin", "pool-operator", "pool-admin"}
    for name, role in roles.items():
        method = f"PUT {name}" if name.startswith("/") else name
        told = str(failure(method, ["RBAC_PERMISSION_DENIED", method.lower(), "No permission in user session"]))
        least = "vm-admin" if role == "vm-operator" else role  # each of our commands on VMs makes a call of a vm-admin
        wanted = f"Use the role {least}{'' if least == 'pool-admin' else ' or a higher role'}."
        assert told.endswith(wanted), (method, told)
