# SPDX-License-Identifier: LGPL-2.1-only
"""xo-server's own client, npm's xen-api, makes the calls of docs/xen-orchestra.rst in the simulated pool."""

import json

import pytest

from clients.conftest import FETCHED, HERE
from kit.lun_world import World
from kit.pool.datamodel import RELEASES
from kit.pool_lab import IQN, TARGET, Lab

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("transport", ["json-rpc", "xml-rpc"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_way_of_the_page(run, release, transport):
    world = World(release=release)
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        pool.api.tasks_end_at_once = False
        pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
        lab = Lab(world, pool)
        lab.original("Production")
        copy, second = lab.clone("Production"), lab.clone("Production")
        original = pool.db.records("SR")[lab.originals["Production"][1]]["uuid"]
        told = json.loads(run(
            pool, "node", HERE / "xen-orchestra.mjs", TARGET, IQN, copy, second,
            XEN_API=f"{FETCHED}/node/node_modules/xen-api/index.mjs", TRANSPORT=transport,
        ))  # fmt: skip
        left, refreshed = pool.db.refs("task"), pool.api.calls.count("task.get_all_records") - 1

    assert (told["hosts"], told["iommu"], told["before"]) == (3, "true", [original])
    assert told["list"]["code"] == "SR_BACKEND_FAILURE_107" and copy in told["list"]["params"][2]
    for created in ("created", "createdAgain"):
        assert told[created]["code"] == "SR_BACKEND_FAILURE_1"
        assert "successfully resigned" in told[created]["params"][1]
    new = world.sr_uuid(copy)
    assert (told["plugin"]["old_sr"], told["plugin"]["new_sr"]) == (original, world.sr_uuid(second))
    assert {copy, second} < {lun["scsi_id"] for lun in told["classified"]["host_luns"]}
    assert told["noPlugin"]["code"] == "XENAPI_MISSING_PLUGIN"
    assert original in told["probed"] and told["attached"]["uuid"] == new != original
    assert (told["attached"]["pbds"], told["attached"]["vdis"]) == ([True] * 3, 4)
    assert told["destroyed"]["code"] == "SR_INDESTRUCTIBLE"
    assert told["forgotten"] == {"pbds": 0, "vdis": 0, "after": [original]}
    assert [world.state(each) for each in (copy, second)] == ["resignatured"] * 2
    assert (left, refreshed) == ([], 0), "the client's count of tasks, by the events, is the pool's"
