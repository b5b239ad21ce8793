# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create, from call to answer, beside a bare login and logout of the same LUN by iscsiadm; printed, not judged.

One pair proves that it works. `make bench` asks for more (--pairs) and reads driver.json, which is left beside the
report: for each number of VDIs the pairs in the order they were run, in seconds.
"""

import time

from kit import builder
from kit.lab import initiator
from kit.lab.command import settle
from kit.lab.xapi import SUCCESS, created

REPORT = "driver.json"


def bare_login(target, lun):
    """What is the least that anybody has to do: record, login, disk, udev, logout. Gives seconds."""
    began = time.monotonic()
    node = ("-m", "node", "-T", target.iqn, "-p", target.portal)
    initiator.iscsiadm(*node, "-o", "new")
    initiator.iscsiadm(*node, "--login")
    initiator.device_of(lun.scsi_id)
    settle()
    initiator.iscsiadm(*node, "--logout")
    initiator.iscsiadm(*node, "-o", "delete")
    return time.monotonic() - began


def pytest_generate_tests(metafunc):
    if "vdis" in metafunc.fixturenames:
        metafunc.parametrize("vdis", [1] if metafunc.config.getoption("--pairs") == 1 else [1, 50])


def test_a_call_beside_a_bare_login(lab, pool, pytestconfig, report, vdis):
    image = lab.disk(builder.many_vdis(vdis).disk, "many.img")
    pairs = []

    for number in range(pytestconfig.getoption("--pairs")):
        clone = lab.lun(image.clone(f"clone{number}.img"))
        target = lab.target(clone)
        bare = bare_login(target, clone)
        began = time.monotonic()
        answer = created(pool, target, clone)
        pairs.append({"bare_s": bare, "sr_create_s": time.monotonic() - began})
        pairs[-1]["driver_s"] = pool.log.of("sr_create")[-1].duration
        assert answer == SUCCESS

    report[str(vdis)] = pairs
    for pair in pairs:
        print("{} VDIs: bare login and logout {bare_s:.2f} s, SR.create {sr_create_s:.2f} s".format(vdis, **pair))
    assert len(lab.probe(target, clone).vdis) == vdis
