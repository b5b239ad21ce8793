# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool fails a test that a real pool would have failed."""

import http.client

import pytest
import XenAPI

from kit import lun_world
from kit.builder import build_sr, vhd
from kit.pool import client

IQN = "iqn.2026-01.test:array"


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
