# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool fails a test that a real pool would have failed."""

import http.client

import pytest
import XenAPI

from kit import lun_world, pool_fakes
from kit.builder import build_sr, vhd
from kit.pool import client

IQN = "iqn.2026-01.test:array"
DONE = pool_fakes.say(pool_fakes.NIL)


def test_a_call_for_a_field_that_xapi_does_not_have_fails_the_test_at_its_end(start, connect):
    pool = start()
    with pytest.raises(XenAPI.Failure):
        connect(pool).xenapi.task.get_all_records_where('field "name_label" = "x"')
    with pytest.raises(AssertionError, match="missing field, task, name_label"):
        pool.stop()
    pool.api.mistakes.clear()


def test_a_mistake_of_the_simulator_fails_the_test_at_its_end(start):
    pool = start()
    connection = http.client.HTTPConnection(pool.url[len("http://") :])
    connection.request("POST", "/", "this is no XML")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()

    with pytest.raises(AssertionError, match="ExpatError"):
        pool.stop()


def test_an_original_and_its_clone_that_nobody_has_touched_cannot_both_be_seen():
    world = lun_world.World()
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


@pytest.mark.processes
def test_what_is_in_use_or_there_already_is_refused_as_xapi_refuses_it(start, connect, errors):
    pool = start({"FakeSR": pool_fakes.shell({"sr_attach": DONE, "sr_detach": DONE})})
    api, db = connect(pool).xenapi, pool.db
    uuid = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"
    sr = api.SR.introduce(uuid, "label", "text", "fake", "user", True, {})
    pbd, other = (api.PBD.create({"host": host, "SR": sr, "device_config": {}}) for host in pool.hosts)
    api.PBD.plug(pbd)
    vdi, vm = db.create("VDI", SR=sr), db.create("VM", power_state="Running", resident_on=pool.master)
    db.create("VBD", VM=vm, VDI=vdi, currently_attached=True)

    assert errors(api.SR.introduce, uuid, "a", "b", "fake", "user", True, {}) == ["SR_UUID_EXISTS", uuid]
    assert errors(api.PBD.create, {"SR": sr, "host": pool.master, "device_config": {}})[0] == "PBD_EXISTS"
    assert errors(api.SR.forget, sr) == errors(api.SR.destroy, sr) == ["SR_HAS_PBD", sr]
    assert errors(api.PBD.destroy, pbd) == ["OPERATION_NOT_ALLOWED", "PBD is currently attached"]
    assert errors(api.PBD.unplug, pbd) == ["VDI_IN_USE", vdi]
    pool.go_down(pool.hosts[1])
    assert errors(api.PBD.plug, other)[0] == "HOST_OFFLINE"
    assert errors(api.SR.scan, "OpaqueRef:1") == ["HANDLE_INVALID", "SR", "OpaqueRef:1"]
