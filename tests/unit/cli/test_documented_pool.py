# SPDX-License-Identifier: LGPL-2.1-only
"""The runs that docs/pool.rst shows are real: in the simulated pool the same words print the same lines, but for UUIDs
and the date.
"""

import itertools
import time

import pytest

from kit.documented import DATE, comparable, is_in_order, shown
from kit.lun_world import World
from kit.pool_lab import Lab
from kit.shell import TOP

PAGE = TOP / "docs/pool.rst"


@pytest.fixture
def lab(name_pool):
    """Three SRs in use, on one of them the disks of a VM, and an array snapshot of each."""
    world = World()
    with world.pool(hosts=("xs1", "xs2", "xs3")) as pool:
        made = Lab(world, pool)
        for name in ("Production", "Testing", "Archive"):
            made.original(name)
        vm = pool.db.create("VM", name_label="web")
        for label in ("root disk", "data"):
            pool.db.create("VBD", VM=vm, VDI=made.vdi("Production", label)[0])
        for name in ("Production", "Testing", "Archive"):
            made.clone(name)
        name_pool(pool)
        yield made


def test_the_runs_on_the_page_print_what_it_says(lab, command):
    on_page, here = {}, {}
    statuses = []
    for argv, lines in shown(PAGE):
        ran = command(*[DATE.sub(time.strftime("%Y-%m-%d"), word) for word in argv])
        statuses.append(ran.status)
        printed = sorted(ran.err.splitlines()) + ran.out.splitlines()
        printed = list(comparable(printed, here))
        wanted = [line for line in comparable(lines, on_page) if line != "..."]
        assert is_in_order(wanted, printed), (argv, printed)
        if ran.status == 9:
            lab.pool.come_back(lab.pool.hosts[2])
        elif argv[1] == "discard":
            lab.pool.go_down(lab.pool.hosts[2])  # as the page has it for what follows

    assert statuses == [0, 0, 0, 0, 9, 0]
    assert len(on_page) == len(here)


def test_the_end_is_as_the_beginning(lab, command):
    before, words = lab.summary(), itertools.islice(shown(PAGE), 4)
    for argv, _ in words:
        assert command(*[DATE.sub(time.strftime("%Y-%m-%d"), word) for word in argv]).status == 0

    assert lab.summary() == before
