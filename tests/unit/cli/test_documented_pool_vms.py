# SPDX-License-Identifier: LGPL-2.1-only
"""The run that docs/pool-vms.rst shows is real: in the simulated pool the same words print the same lines, but for
UUIDs and times.
"""

import time

import pytest

from kit.documented import DATE, comparable, is_in_order, shown
from kit.lun_world import World
from kit.pool_lab import Lab
from kit.shell import TOP
from relvmoiscsi.formats.saved_vms import NAME_LABEL

PAGE = TOP / "docs/pool-vms.rst"


@pytest.fixture
def lab(name_pool):
    """The VMs "web" and "db" on one SR, and another VM that runs elsewhere."""
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as pool:
        made = Lab(world, pool)
        made.original("Production")
        made.original("Testing")
        net = made.network("office")
        root, data = (made.vdi("Production", label)[0] for label in ("root disk", "data"))
        made.vm("web", root, networks=[net], state="Running", ha_always_run=True, ha_restart_priority="restart")
        made.vm("db", data, networks=[net])
        made.vm("helper", made.vdi("Testing", "data")[0])
        name_pool(pool)
        yield made


def state(lab):
    """Names of VDIs but for saved records, and the disks of VMs."""
    db = lab.pool.db
    vdis = {row["uuid"]: row["name_label"] for row in db.records("VDI").values() if row["name_label"] != NAME_LABEL}
    return vdis, {ref: (vm["name_label"], lab.disks_of(ref)) for ref, vm in db.records("VM").items()}


def test_the_run_on_the_page_prints_what_it_says(lab, command):
    before, on_page, here = state(lab), {}, {}
    for argv, lines in shown(PAGE):
        ran = command(*[DATE.sub(time.strftime("%Y-%m-%d"), word) for word in argv])
        assert ran.status == 0, ran.err
        printed = list(comparable(sorted(ran.err.splitlines()) + ran.out.splitlines(), here))
        wanted = [line for line in comparable(lines, on_page) if line != "..."]
        assert is_in_order(wanted, printed), (argv, printed)
        if argv[1] in ("save-vms", "discard"):
            lab.clone("Production")

    assert state(lab) == before
    assert len(on_page) > 5
