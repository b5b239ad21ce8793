# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create, from call to answer, beside what it replaces and what comes before it, of the same LUN in one run.

Beside a bare login and logout by iscsiadm, and beside SR.probe of the stock type, by the stand-in for it. Not part of
the suite: `make bench` names it. It leaves driver.json: for each number of VDIs the rounds in the order they were run,
in seconds.
"""

import time

import pytest

from kit import builder
from kit.lab import initiator, luns
from kit.lab.command import settle
from kit.lab.xapi import SUCCESS, config_of, created
from kit.pool import client
from kit.reader import read_sr
from kit.sparse import SparseDisk

REPORT = "driver.json"


def seconds(action):
    began = time.monotonic()
    answer = action()
    return time.monotonic() - began, answer


def bare_login(target, lun):
    """The least that anybody has to do to have a disk: record, login, disk, udev, logout."""
    node = ("-m", "node", "-T", target.iqn, "-p", target.portal)
    initiator.iscsiadm(*node, "-o", "new")
    initiator.iscsiadm(*node, "--login")
    initiator.device_of(lun.scsi_id)
    settle()
    initiator.iscsiadm(*node, "--logout")
    initiator.iscsiadm(*node, "-o", "delete")


def stock_probe(pool, target, lun):
    with client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        return session.xenapi.SR.probe(host, config_of(target, lun, resign=None), "lvmoiscsi", {})


@pytest.mark.parametrize("vdis", [1, 50])
def test_a_call_beside_a_bare_login_and_a_stock_probe(lab, make_pool, standin_sees, pytestconfig, report, vdis):
    image = luns.from_disk(builder.many_vdis(vdis).disk, "many.img")
    rounds = []
    pool = make_pool(executes=True)
    pool.runner.in_process.clear()  # a stock driver is a process as well

    for number in range(pytestconfig.getoption("--pairs")):
        clone = lab.lun(image.clone(f"clone{number}.img"))
        target = lab.target(clone)
        standin_sees(target)
        bare_s, _ = seconds(lambda array=target, lun=clone: bare_login(array, lun))
        probe_s, probed = seconds(lambda array=target, lun=clone: stock_probe(pool, array, lun))
        initiator.logout_all()  # the record stays when SM logs out
        sr_create_s, answer = seconds(lambda array=target, lun=clone: created(pool, array, lun))
        driver_s = pool.log.of("sr_create")[-1].duration
        rounds.append({"bare_s": bare_s, "probe_s": probe_s, "sr_create_s": sr_create_s, "driver_s": driver_s})
        assert answer == SUCCESS and image.sr.uuid in probed

    report[str(vdis)] = rounds
    for one in rounds:
        print(f"{vdis} VDIs: " + ", ".join(f"{name} {value:.2f}" for name, value in one.items()))
    sr = read_sr(SparseDisk.from_file(clone.path))
    assert sr.problems == () and len([record for record in sr.mgt.records if not record.deleted]) == vdis
