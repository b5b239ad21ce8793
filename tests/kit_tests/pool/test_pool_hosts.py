# SPDX-License-Identifier: LGPL-2.1-only
"""What a client of a whole pool meets: tasks and events, roles, members, hosts that are down, flags."""

import threading

import pytest
import XenAPI

from kit import lun_world
from kit.builder import build_sr, vhd
from kit.certificates import self_signed
from kit.pool import client
from kit.pool.api import GoneAway

IQN = "iqn.2026-01.test:array"


@pytest.fixture
def world():
    return lun_world.World()


def event_from(session, *arguments):
    return session.xenapi_request("event.from", arguments)


def test_the_end_of_a_task_is_an_event(world):
    lun = world.add("10.0.0.5", IQN, build_sr([vhd("disk")]).disk)
    with world.pool() as pool, client.connected(pool) as session:
        config = {"target": "10.0.0.5", "targetIQN": IQN, "SCSIid": lun}
        task = session.xenapi.Async.SR.probe(pool.master, config, "relvmoiscsi", {})
        seen, token = [], ""
        while "success" not in seen:
            batch = event_from(session, ["task/" + task], token, 30.0)
            token = batch["token"]
            seen += [event["snapshot"]["status"] for event in batch["events"]]

        assert "<SRlist>" in session.xenapi.task.get_result(task).replace("&lt;", "<").replace("&gt;", ">")


def test_where_nothing_happens_the_wait_ends_without_an_event(world):
    with world.pool() as pool, client.connected(pool) as session:
        token = event_from(session, ["host"], "", 1.0)["token"]

        assert event_from(session, ["host"], token, 0.05)["events"] == []


def test_a_change_ends_the_wait(world):
    with world.pool() as pool, client.connected(pool) as session:
        token = event_from(session, ["host"], "", 1.0)["token"]
        threading.Timer(0.05, pool.go_down, [pool.hosts[1]]).start()

        events = event_from(session, ["host_metrics"], token, 30.0)["events"]

    assert [event["snapshot"]["live"] for event in events] == [False]


@pytest.mark.parametrize(
    "role, may, may_not",
    [("read-only", "get_all", "forget"), ("vm-power-admin", "scan", "forget"), ("pool-operator", "forget", None)],
)
def test_a_role_bounds_what_a_session_may_do(world, role, may, may_not):
    with world.pool() as pool:
        pool.api.users["alice"] = ("secret", role)
        with client._closing(XenAPI.Session(pool.url)) as session:
            session.xenapi.login_with_password("alice", "secret", "2.21", "tests")
            arguments = [] if may == "get_all" else ["OpaqueRef:none"]
            try:
                getattr(session.xenapi.SR, may)(*arguments)
            except XenAPI.Failure as failure:
                assert failure.details[0] == "HANDLE_INVALID"
            if may_not:
                with pytest.raises(XenAPI.Failure) as caught:
                    getattr(session.xenapi.SR, may_not)("OpaqueRef:none")
                assert caught.value.details[:2] == ["RBAC_PERMISSION_DENIED", "sr." + may_not]


def test_a_plugin_needs_the_highest_role(world):
    with world.pool() as pool:
        pool.api.users["alice"] = ("secret", "pool-operator")
        pool.api.host_plugins.functions["x"] = lambda host, name, args: name
        with client._closing(XenAPI.Session(pool.url)) as session:
            session.xenapi.login_with_password("alice", "secret", "2.21", "tests")
            with pytest.raises(XenAPI.Failure, match="RBAC"):
                session.xenapi.host.call_plugin(pool.master, "x", "version", {})
        with client.connected(pool) as session:
            assert session.xenapi.host.call_plugin(pool.master, "x", "version", {}) == "version"


def test_a_member_tells_where_the_master_is(world):
    with world.pool() as pool, client._closing(XenAPI.Session(pool.listen_on_member())) as session, pytest.raises(
        XenAPI.Failure
    ) as caught:
        session.xenapi.login_with_password("root", "wrong", "2.21", "tests")

    assert caught.value.details == ["HOST_IS_SLAVE", "127.0.0.1"]


def test_nothing_is_plugged_on_a_host_that_is_down(world):
    lun = world.add("10.0.0.5", IQN, build_sr([vhd("disk")]).disk)
    with world.pool() as pool, client.connected(pool) as session:
        sr = world.attach_original(pool, lun, "original")
        pbd = pool.db.refs("PBD", host=pool.hosts[1])[0]
        session.xenapi.PBD.unplug(pbd)
        pool.go_down(pool.hosts[1])
        with pytest.raises(XenAPI.Failure, match="HOST_OFFLINE"):
            session.xenapi.PBD.plug(pbd)
        pool.come_back(pool.hosts[1])
        session.xenapi.PBD.plug(pbd)

        assert {record["currently_attached"] for record in pool.db.records("PBD", SR=sr).values()} == {True}


def test_an_sr_that_is_marked_is_not_destroyed(world):
    lun = world.add("10.0.0.5", IQN, build_sr([vhd("disk")]).disk)
    with world.pool() as pool, client.connected(pool) as session:
        sr = world.attach_original(pool, lun, "original")
        for pbd in pool.db.refs("PBD"):
            session.xenapi.PBD.unplug(pbd)
        session.xenapi.SR.add_to_other_config(sr, "indestructible", "true")
        with pytest.raises(XenAPI.Failure, match="SR_INDESTRUCTIBLE"):
            session.xenapi.SR.destroy(sr)


def test_a_connection_may_end_in_the_middle(world):
    def before(method, params):
        if method == "SR.get_all":
            raise GoneAway()

    with world.pool() as pool, client.connected(pool) as session:
        pool.api.before = before
        with pytest.raises(ConnectionError):
            session.xenapi.SR.get_all()


@pytest.mark.processes
def test_it_listens_with_tls(world, tmp_path):
    context, certificate = self_signed(tmp_path)
    with world.pool(tls=context) as pool:
        assert pool.url.startswith("https://")
        with client._closing(XenAPI.Session(pool.url, ignore_ssl=True)) as session:
            session.xenapi.login_with_password(pool.api.user, pool.api.password, "2.21", "tests")


def test_an_original_and_its_clone_that_nobody_has_touched_cannot_both_be_seen(world):
    lun = world.add("10.0.0.5", IQN, build_sr([vhd("disk")]).disk)
    with world.pool() as pool, client.connected(pool) as session:
        world.attach_original(pool, lun, "original")
        pbd = pool.db.refs("PBD", host=pool.hosts[1])[0]
        session.xenapi.PBD.unplug(pbd)
        twin = world.clone(lun)
        with pytest.raises(XenAPI.Failure, match="SR_BACKEND_FAILURE_119"):
            session.xenapi.PBD.plug(pbd)
        config = {"target": "10.0.0.5", "targetIQN": IQN, "SCSIid": twin}
        with pytest.raises(XenAPI.Failure, match="successfully resigned"):
            session.xenapi.SR.create(pool.master, config, "0", "", "", "relvmoiscsi", "user", True, {})
        session.xenapi.PBD.plug(pbd)

    assert world.state(twin) == "resignatured" and world.sr_uuid(twin) != world.sr_uuid(lun)
