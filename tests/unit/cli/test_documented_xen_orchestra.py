# SPDX-License-Identifier: LGPL-2.1-only
"""The steps of docs/xen-orchestra.rst in the simulated pool: xe prints what the page shows, and the calls that Xen
Orchestra makes then lead to an SR on every host, and away from it again.
"""

import json
import re

import pytest

from kit.documented import shown_in
from kit.lun_world import World
from kit.pool.client import connected
from kit.pool_lab import IQN, TARGET, Lab
from kit.shell import TOP
from kit.xe import xe

PAGE = (TOP / "docs/xen-orchestra.rst").read_text(encoding="utf-8")
#: blocks of a list stand further in
RUNS = list(shown_in(re.sub("^   (?=    )", "", PAGE, flags=re.MULTILINE)))


@pytest.fixture
def lab():
    world = World()
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
        made = Lab(world, pool)
        made.original("Production")
        made.copy = made.clone("Production")
        yield made


def with_names(lab, words, new=""):
    values = {"IQN": IQN, "SCSIID": lab.copy, "NEW": new}
    return [re.sub(r"(?<==)(IQN|SCSIID|NEW)$", lambda found: values[found.group()], word) for word in words]


def test_the_way_on_the_page(lab):
    ((program, words, lines),) = RUNS
    assert program == "xe"
    status, _, err = xe(lab.pool, with_names(lab, words))
    assert (status, [line.rstrip() for line in err.splitlines()]) == (1, [line.strip() for line in lines])

    with connected(lab.pool) as session:
        api = session.xenapi
        config = {"target": TARGET, "targetIQN": IQN, "SCSIid": lab.copy}
        told = json.dumps(api.SR.probe(lab.pool.hosts[0], config, "relvmoiscsi", {}))
        new = re.search(r"<new_uuid>\s*([0-9a-f-]{36})", told.replace("\\n", " ")).group(1)
        assert new == lab.world.sr_uuid(lab.copy), "step 2"

        look = next(iter(re.findall(r"^ +(xe sr-probe .*)$", PAGE, re.MULTILINE)))
        for host in lab.pool.hosts:
            words = [word.replace("HOST", api.host.get_uuid(host)) for word in with_names(lab, look.split()[1:])]
            status, _, err = xe(lab.pool, words)
            assert (status, "SR_BACKEND_FAILURE_107" in err, lab.copy in err) == (1, True, True), "step 3"

        sr = api.SR.introduce(new, "Production copy", "a copy", "lvmoiscsi", "user", True, {})  # step 4: reattachSr
        for host in lab.pool.hosts:
            api.PBD.plug(api.PBD.create({"host": host, "SR": sr, "device_config": config}))
        assert [pbd["currently_attached"] for pbd in lab.pool.db.records("PBD", SR=sr).values()] == [True] * 3

        keep = next(iter(re.findall(r"^ +(xe sr-param-set .*)$", PAGE, re.MULTILINE)))
        assert xe(lab.pool, with_names(lab, keep.split()[1:], new))[0] == 0
        assert {"gc": "false", "indestructible": "true"}.items() <= api.SR.get_other_config(sr).items(), "step 5"

        for pbd in api.SR.get_PBDs(sr):  # step 6: forgetSr
            api.PBD.unplug(pbd)
        api.SR.forget(sr)
    assert lab.world.state(lab.copy) == "resignatured"
