# SPDX-License-Identifier: LGPL-2.1-only
"""The night of docs/night.rst is real, over iSCSI and over Fibre Channel: in the simulated pool the same words, and the
same answers to the prompts, print the same lines, but for UUIDs and the date.
"""

import re
import time

import pytest

from kit.documented import DATE, comparable, is_in_order, shown_in
from kit.lun_world import FABRIC, World
from kit.pool_lab import IQN, TARGET, Lab
from kit.shell import TOP
from kit.xe import xe

PAGE = (TOP / "docs/night.rst").read_text(encoding="utf-8")
PROMPT = "[y/N] "


def section(number):
    """The text of the section whose title begins with this number, up to the next title."""
    return re.search(rf"^{number}\. .*\n-+\n((?:.*\n)*?)(?=.*\n---+\n|\Z)", PAGE, re.MULTILINE).group(1)


@pytest.fixture(params=["3a", "3b"])
def night(request, name_pool):
    """(the sections of the page that are read, the lab): an SR in use with the disks of a VM, and a clone of it."""
    world, on_fabric = World(), request.param == "3b"
    with world.pool(hosts=("xs1", "xs2")) as pool:
        pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
        lab = Lab(world, pool)
        lab.original("Production", target=FABRIC if on_fabric else TARGET, iqn="" if on_fabric else IQN)
        disks = [lab.vdi("Production", label)[0] for label in ("root disk", "data")]
        lab.vm("web", *disks, networks=[lab.network("office")], state="Running")
        clone = lab.clone("Production")
        if on_fabric:  # mapped to the master alone
            world.unmapped.update((host, clone) for host in pool.hosts[1:])
        name_pool(pool)
        yield [request.param, "4", "5"], lab


def today(text):
    return DATE.sub(time.strftime("%Y-%m-%d"), text)


def names(lab):
    """What an administrator sees in the pool."""
    tables = ("SR", "VM", "VDI", "network")
    return {table: sorted(row["name_label"] for row in lab.pool.db.records(table).values()) for table in tables}


def test_the_night_prints_what_the_page_says_and_leaves_nothing(night, command, type_in):
    sections, lab = night
    before, on_page, here, statuses = names(lab), {}, {}, []
    for program, argv, lines in shown_in(today("".join(map(section, sections)))):
        type_in("y\n")
        status, out, err = command(*argv) if program == "relvmoiscsi" else xe(lab.pool, argv)
        statuses.append((argv[0] if program == "xe" else argv[1], status))
        typed = err.replace(PROMPT, PROMPT + "y\n") + out
        printed = list(comparable(map(str.rstrip, typed.splitlines()), here))
        wanted = [line for line in comparable(lines, on_page) if line.strip() != "..."]
        assert is_in_order(wanted, printed), (argv, typed)
        assert err.count(PROMPT) == sum(PROMPT in line for line in lines), "each prompt is on the page"
        if argv[0] == "sr-create":
            lab.world.unmapped.clear()  # as the page has it for what follows
        if argv[0] == "vm-start":
            assert "web " + time.strftime("%Y-%m-%d") in names(lab)["VM"]

    assert names(lab) == before
    assert statuses[-4:] == [("clone", 0), ("vm-start", 0), ("vm-shutdown", 0), ("discard", 0)]
    assert [status for _, status in statuses].count(1) == (sections[0] == "3b"), "the error that is success"


def test_every_page_shows_the_error_that_is_success_as_xe_prints_it():
    """The driver's own words: tests/unit/sr_driver/test_main.py has them byte for byte."""
    found = []
    for page in sorted((TOP / "docs").rglob("*.rst")):
        for line in re.findall("^ *Error parameters: (.*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            found.append((page.name, line.replace("lvmohba", "lvmoiscsi")))

    words = ", Error reporting error, unknown key The SR has been successfully resigned. "
    assert [each for each in found if each[1] != words + "Use the lvmoiscsi type to attach it, "[:-1]] == []
    assert {page for page, _ in found} >= {"cloudstack.rst", "night.rst", "xen-orchestra.rst"}
