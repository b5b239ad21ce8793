# SPDX-License-Identifier: LGPL-2.1-only
"""SR, PBD and VDI calls: records before, during and after; secrets; what runs at the same time and what does not."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kit import pool_fakes
from kit.pool import client
from kit.pool_fakes import until

pytestmark = pytest.mark.processes

CONFIG = {"target": "10.0.0.5", "targetIQN": "iqn.2026-01.test:a", "chapuser": "alice", "chappassword": "hidden word"}
DONE = pool_fakes.say(pool_fakes.NIL)
REFUSE = pool_fakes.say(pool_fakes.fault(68, "login failed"))


def create(api, host, config=None, type_="fake", shared=True):
    return api.SR.create(host, dict(config or CONFIG), "0", "label", "text", type_, "user", shared, {"a": "b"})


def members(pool, command):
    return [entry.params for entry in pool.log.of(command)]


# -- SR.create that fails ---------------------------------------------------------------------------------------------


def test_records_are_there_while_the_driver_runs_and_gone_after_it_failed(start, connect, gate, together):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": gate.shell + REFUSE})})
    api = connect(pool).xenapi

    with together(pool) as call:
        failed = call(lambda api: create(api, pool.master))
        params = pool.log.wait_for_start("sr_create").params
        sr = api.SR.get_record(params["sr_ref"])
        pbds = api.PBD.get_all_records()
        session = api.session.get_record(params["session_ref"])
        gate.let_one_through()
        until(failed.done)

    assert failed.result() == ["SR_BACKEND_FAILURE_68", "", "login failed", ""]
    assert (sr["uuid"], sr["type"], sr["shared"], sr["physical_size"]) == (params["sr_uuid"], "fake", True, "-1")
    assert (sr["name_label"], sr["sm_config"], sr["PBDs"]) == ("label", {"a": "b"}, list(pbds))
    assert [(pbd["host"], pbd["currently_attached"]) for pbd in pbds.values()] == [(host, False) for host in pool.hosts]
    assert session["other_config"] == {"_sm_session": params["sr_ref"]}
    assert session["this_host"] == pool.master and session["originator"] == "xapi"
    assert api.SR.get_all() == [] == api.PBD.get_all()
    assert not pool.db.exists("session", params["session_ref"])


def test_the_request(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": REFUSE})})
    errors(create, connect(pool).xenapi, pool.hosts[1], {"target": "10.0.0.5", "port": ""})

    (params,) = members(pool, "sr_create")
    assert params["host_ref"] == pool.master, "a shared SR is created on the master"
    assert params["args"] == ["0"] and params["sr_sm_config"] is None
    assert list(params["device_config"].items()) == [("SRmaster", "true"), ("port", ""), ("target", "10.0.0.5")]
    assert params["subtask_of"].startswith("DummyRef:|") and params["subtask_of"].endswith("|SR.create")
    assert (
        pool.log.of("sr_create")[0]
        .argv[1]
        .startswith(
            "<methodCall><methodName>sr_create</methodName><params><param><value><struct><member><name>host_ref</name>"
        )
    )


def test_an_sr_that_is_not_shared_is_created_on_the_host_named(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": REFUSE})})
    errors(create, connect(pool).xenapi, pool.hosts[1], shared=False)

    (params,) = members(pool, "sr_create")
    assert params["host_ref"] == pool.hosts[1] and params["device_config"]["SRmaster"] == "true"


@pytest.mark.parametrize("hosts", [("xs1",), ("xs1", "xs2", "xs3")])
def test_a_password_becomes_secrets_which_a_failure_leaves_behind(start, connect, errors, hosts):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": REFUSE})}, hosts=hosts)
    errors(create, connect(pool).xenapi, pool.master)

    (params,) = members(pool, "sr_create")
    config = dict(params["device_config"])
    secret = config.pop("chappassword_secret")
    assert config == {
        "SRmaster": "true", "target": "10.0.0.5", "targetIQN": "iqn.2026-01.test:a", "chapuser": "alice",
    }  # fmt: skip
    assert pool.db.get("secret", pool.db.by_uuid("secret", secret), "value") == "hidden word"
    assert pool.secrets() == ["hidden word"] * (len(hosts) + 1)
    assert pool.log.grep("hidden word") == []


def test_older_versions_pass_a_password_in_clear(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": REFUSE})}, move_secrets=False)
    errors(create, connect(pool).xenapi, pool.master)

    (params,) = members(pool, "sr_create")
    assert list(params["device_config"]) == ["SRmaster"] + list(CONFIG)
    assert params["device_config"]["chappassword"] == "hidden word"
    assert pool.secrets() == []
    assert pool.log.grep("hidden word") == ["call 2 (sr_create): argv"]


def test_a_secret_that_the_client_made_is_copied(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": REFUSE})}, move_secrets=False)
    api = connect(pool).xenapi
    own = api.secret.get_uuid(api.secret.create({"value": "hidden word"}))
    errors(create, api, pool.master, {"target": "a", "chappassword_secret": own})

    (params,) = members(pool, "sr_create")
    assert params["device_config"]["chappassword_secret"] != own
    assert pool.secrets() == ["hidden word"] * 3


def test_an_unknown_type_leaves_no_records(start, connect, errors):
    pool = start()
    api = connect(pool).xenapi

    assert errors(create, api, pool.master, None, "Nonsense") == ["SR_UNKNOWN_DRIVER", "nonsense"]
    assert api.SR.get_all() == [] == api.PBD.get_all()


def test_a_driver_may_look_around_and_log_out(start, connect, errors):
    body = """
import http.client, re, xmlrpc.client
session = re.search("session_ref</name><value>([^<]*)", sys.argv[1]).group(1)
sr = re.search("sr_ref</name><value>([^<]*)", sys.argv[1]).group(1)
xapi = xmlrpc.client.ServerProxy("{url}")
seen = [xapi.SR.get_name_label(session, sr)["Value"], xapi.SR.set_physical_size(session, sr, "5")["Status"]]
xapi.session.logout(session)
seen.append(xapi.SR.get_all(session)["ErrorDescription"][0])
print(xmlrpc.client.dumps(xmlrpc.client.Fault(7, repr(seen))))
"""
    pool = start()
    pool_fakes.install(pool.sm_dir, "FakeSR", pool_fakes.python(body.replace("{url}", pool.url)))
    pool.restart_toolstack()

    assert errors(create, connect(pool).xenapi, pool.master)[2] == "['label', 'Success', 'SESSION_INVALID']"


# -- SR.create that succeeds ------------------------------------------------------------------------------------------


def test_after_a_success_every_host_is_plugged_with_the_masters_secret(start, connect):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": DONE, "sr_attach": DONE})})
    api = connect(pool).xenapi

    sr = create(api, pool.master)

    records = list(api.PBD.get_all_records().values())
    assert [record["currently_attached"] for record in records] == [True, True]
    assert records[0]["device_config"] == records[1]["device_config"]
    assert sorted(
        (params["host_ref"], params["device_config"]["SRmaster"]) for params in members(pool, "sr_attach")
    ) == (sorted([(pool.hosts[0], "true"), (pool.hosts[1], "false")]))
    assert {params["sr_ref"] for params in members(pool, "sr_attach")} == {sr}


def test_a_plug_that_fails_does_not_fail_the_creation(start, connect):
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": DONE, "sr_attach": REFUSE})})
    api = connect(pool).xenapi

    sr = create(api, pool.master)

    assert [api.PBD.get_currently_attached(pbd) for pbd in api.SR.get_PBDs(sr)] == [False, False]


# -- the life of an SR ------------------------------------------------------------------------------------------------

INTRODUCE = """
import re, xmlrpc.client
def member(name):
    return re.search("<name>" + name + "</name><value>([^<]*)", sys.argv[1]).group(1)
answer = None
if member("command") == "sr_scan":
    xapi = xmlrpc.client.ServerProxy("{url}")
    session, sr = member("session_ref"), member("sr_ref")
    def introduce(uuid, location, sr=sr):
        return xapi.VDI.db_introduce(
            session, uuid, "disk", "", sr, "user", False, False, {}, location, {}, {}, True, "4096", "8192",
            "OpaqueRef:NULL", False, xmlrpc.client.DateTime("19700101T00:00:00Z"), "OpaqueRef:NULL")
    one = "0a8e1f0c-3b0e-4d5f-9a6b-00000000000"
    assert introduce(one + "1", "one")["Status"] == "Success"
    gone = introduce(one + "2", "two")["Value"]
    assert introduce(one + "3", "one")["ErrorDescription"] == ["LOCATION_NOT_UNIQUE", sr, "one"]
    assert introduce("3", "three")["ErrorDescription"] == ["UUID_INVALID", "VDI", "3"]
    assert introduce(one + "1", "three")["ErrorDescription"][0] == "INTERNAL_ERROR"
    assert introduce(one + "4", "four", "OpaqueRef:1")["ErrorDescription"][0] == "HANDLE_INVALID"
    assert xapi.VDI.db_forget(session, gone)["Status"] == "Success"
    xapi.SR.add_to_other_config(session, sr, "dirty", "")
print(xmlrpc.client.dumps((answer,), methodresponse=True, allow_none=True))
"""


def test_an_sr_is_introduced_plugged_scanned_unplugged_and_forgotten(start, connect, errors):
    pool = start()
    pool_fakes.install(pool.sm_dir, "FakeSR", pool_fakes.python(INTRODUCE.replace("{url}", pool.url)))
    pool.restart_toolstack()
    api = connect(pool).xenapi
    sr = api.SR.introduce("", "label", "", "fake", "user", True, {})
    assert errors(api.SR.scan, sr) == ["SR_HAS_NO_PBDS", sr]
    pbds = [api.PBD.create({"SR": sr, "host": host, "device_config": {"target": "a"}}) for host in pool.hosts]

    for pbd in pbds:
        api.PBD.plug(pbd)
        api.PBD.plug(pbd)
    api.SR.scan(sr)

    assert len(pool.log.of("sr_attach")) == 2, "a second plug does nothing"
    (scan,) = members(pool, "sr_scan")
    assert scan["host_ref"] == pool.master and scan["device_config"] == {"SRmaster": "true", "target": "a"}
    (vdi,) = api.SR.get_VDIs(sr)
    assert (api.VDI.get_virtual_size(vdi), api.VDI.get_location(vdi)) == ("4096", "one")
    assert api.SR.get_virtual_allocation(sr) == "4096" and api.SR.get_other_config(sr) == {}
    assert errors(api.VDI.db_forget, vdi) == ["PERMISSION_DENIED", ""]
    assert errors(api.SR.forget, sr) == ["SR_HAS_PBD", sr]

    for pbd in pbds:
        api.PBD.unplug(pbd)
        api.PBD.unplug(pbd)
    assert len(pool.log.of("sr_detach")) == 2
    assert errors(api.SR.destroy, sr) == ["SR_NOT_EMPTY"]
    api.SR.forget(sr)
    assert api.SR.get_all() == [] == api.PBD.get_all() == api.VDI.get_all()


def test_what_a_vm_has_plugged_keeps_its_hosts_pbd(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_attach": DONE, "sr_detach": DONE})})
    api, db = connect(pool).xenapi, pool.db
    sr = api.SR.introduce("db0cd78a-53f4-4682-a7b3-6e2f53d22f96", "label", "text", "fake", "user", True, {})
    pbds = [api.PBD.create({"host": host, "SR": sr, "device_config": {}}) for host in pool.hosts]
    for pbd in pbds:
        api.PBD.plug(pbd)
    vdi = db.create("VDI", SR=sr)
    vm = db.create("VM", power_state="Running", resident_on=pool.hosts[1])
    vbd = db.create("VBD", VM=vm, VDI=vdi, currently_attached=True)

    api.PBD.unplug(pbds[0])
    assert errors(api.PBD.unplug, pbds[1]) == ["VDI_IN_USE", vdi]
    db.set("VBD", vbd, "currently_attached", False)
    api.PBD.unplug(pbds[1])


def test_an_sr_that_is_not_shared_is_plugged_once(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_attach": DONE})})
    api = connect(pool).xenapi
    sr = api.SR.introduce("", "label", "", "fake", "user", False, {})
    first, second = (api.PBD.create({"SR": sr, "host": host, "device_config": {}}) for host in pool.hosts)
    api.PBD.plug(first)

    assert errors(api.PBD.plug, second) == ["SR_NOT_SHARABLE", sr, pool.master]


def test_destroying_attaches_and_deletes(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_attach": DONE, "sr_delete": DONE})})
    api = connect(pool).xenapi
    sr = api.SR.introduce("", "label", "", "fake", "user", True, {})
    assert errors(api.SR.destroy, sr) == ["SR_HAS_NO_PBDS", sr]
    api.PBD.create({"SR": sr, "host": pool.master, "device_config": {}})

    api.SR.destroy(sr)

    assert [entry.command for entry in pool.log][1:] == ["sr_attach", "sr_delete"]
    assert api.SR.get_all() == []


def test_what_a_driver_does_not_do(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({})})
    api = connect(pool).xenapi
    sr = api.SR.introduce("", "label", "", "fake", "user", True, {})
    pbd = api.PBD.create({"SR": sr, "host": pool.master, "device_config": {}})

    assert errors(api.PBD.plug, pbd) == ["INTERNAL_ERROR", "Smint.Not_implemented_in_backend"]
    pool.db.set("PBD", pbd, "currently_attached", True)
    assert errors(api.SR.scan, sr) == ["SR_OPERATION_NOT_SUPPORTED", sr]
    assert errors(api.SR.update, sr) == ["SR_OPERATION_NOT_SUPPORTED", sr]


# -- SR.probe ---------------------------------------------------------------------------------------------------------


def test_a_probe_has_no_sr_and_gives_the_drivers_text(start, connect, errors):
    shell = pool_fakes.say(pool_fakes.result("<string>&lt;SRlist/&gt;\n</string>"))
    pool = start({"FakeSR": pool_fakes.shell({"sr_probe": shell})})
    api = connect(pool).xenapi

    assert api.SR.probe(pool.hosts[1], CONFIG, "Fake", {"metadata": "true"}) == "<SRlist/>\n"

    (params,) = members(pool, "sr_probe")
    assert params["host_ref"] == pool.hosts[1] and params["device_config"]["SRmaster"] == "true"
    assert params["sr_sm_config"] == {"metadata": "true"} and params["args"] == []
    assert params["sr_ref"] is None is params["sr_uuid"]
    assert "chappassword_secret" in params["device_config"]
    assert "<name>sr_sm_config</name>" in pool.log.of("sr_probe")[0].argv[1]
    assert pool.secrets() == ["hidden word"]
    assert errors(api.SR.probe_ext, pool.master, {}, "fake", {}) == ["SR_OPERATION_NOT_SUPPORTED"]


def test_probing_needs_the_capability(start, connect, errors):
    info = dict(pool_fakes.INFO, capabilities="<array><data/></array>")
    pool = start({"FakeSR": pool_fakes.shell({}, info=info)})

    assert errors(connect(pool).xenapi.SR.probe, pool.master, {}, "fake", {}) == [
        "SR_BACKEND_FAILURE", "Operation 'sr_probe' not supported by this SR type", "", "",
    ]  # fmt: skip
    assert pool.log.of("sr_probe") == []


@pytest.mark.parametrize("answer", ["<nil/>", "<int>1</int>"])
def test_a_probe_must_answer_a_string(start, connect, errors, answer):
    pool = start({"FakeSR": pool_fakes.shell({"sr_probe": pool_fakes.say(pool_fakes.result(answer))})})

    assert errors(connect(pool).xenapi.SR.probe, pool.master, {}, "fake", {})[0] == "INTERNAL_ERROR"


# -- at the same time -------------------------------------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path):
    """Shell that waits until the test lets one through."""
    path = str(tmp_path / "gate")

    class Gate:
        shell = f"until rm {path} 2>/dev/null; do sleep 0.01; done\n"

        @staticmethod
        def let_one_through():
            with open(path, "w"):
                pass

    return Gate


@pytest.fixture
def together():
    """Makes calls at the same time: `with together(pool) as call: outcome = call(lambda api: api.SR.scan(sr))`."""

    @contextmanager
    def run(pool):
        def on_its_own(function):
            with client.connected(pool) as session:
                try:
                    return function(session.xenapi)
                except client.XenAPI.Failure as failure:
                    return failure.details

        with ThreadPoolExecutor(8) as threads:
            try:
                yield lambda function: threads.submit(on_its_own, function)
            finally:
                pool.runner.kill_all()

    return run


def test_creations_run_at_the_same_time_and_beside_an_attach(start, connect, gate, together):
    waiting = gate.shell + REFUSE
    pool = start({"FakeSR": pool_fakes.shell({"sr_create": waiting, "sr_attach": waiting})})
    pbds = _pbds(pool, connect(pool).xenapi)

    with together(pool) as call:
        outcomes = [call(lambda api: create(api, pool.master)) for _ in range(2)]
        outcomes.append(call(lambda api: api.PBD.plug(pbds[0])))
        until(lambda: len(pool.log.running()) == 3)
        for left in (2, 1, 0):
            gate.let_one_through()
            until(lambda left=left: len(pool.log.running()) == left)

        assert [outcome.result()[0] for outcome in outcomes] == ["SR_BACKEND_FAILURE_68"] * 3


def test_attach_detach_and_probe_of_a_host_run_one_after_the_other(start, connect, gate, together):
    texts = {"sr_attach": gate.shell + DONE, "sr_probe": gate.shell + pool_fakes.say(pool_fakes.result("found"))}
    pool = start({"FakeSR": pool_fakes.shell(texts)})
    here, there = _pbds(pool, connect(pool).xenapi)

    with together(pool) as call:
        outcomes = [call(lambda api: api.PBD.plug(here))]
        pool.log.wait_for_start("sr_attach", host_ref=pool.hosts[0])
        outcomes.append(call(lambda api: api.SR.probe(pool.hosts[0], {}, "fake", {})))
        outcomes.append(call(lambda api: api.PBD.plug(there)))
        pool.log.wait_for_start("sr_attach", host_ref=pool.hosts[1])
        until(lambda: pool.api.calls.count("SR.probe") == 1)
        assert len(pool.log.running()) == 2, "the probe waits for the attach on its host, the other host does not"
        for ended in (1, 2, 3):
            gate.let_one_through()
            until(lambda ended=ended: len(pool.log) == 1 + ended)

        assert [outcome.result() for outcome in outcomes] == ["", "found", ""]
    first, second = (entry for entry in pool.log if entry.params["host_ref"] == pool.hosts[0] and entry.number > 1)
    assert first.started + first.duration <= second.started


def _pbds(pool, api):
    sr = api.SR.introduce("", "label", "", "fake", "user", True, {})
    return [api.PBD.create({"SR": sr, "host": host, "device_config": {}}) for host in pool.hosts]
