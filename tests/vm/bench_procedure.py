# SPDX-License-Identifier: LGPL-2.1-only
"""The command beside the procedure of the 2015 pack, activation included, which needs a kernel with device-mapper.

Not part of the suite: `make bench` names it. It leaves procedure.json: for each number of VDIs the pairs, in seconds.
"""

import os
import sys
import time

import pytest

from bench.counts import resignature
from bench.lvm import Lvm
from kit import builder
from kit.lab import initiator, luns
from kit.lab.command import run, settle
from kit.lab.xapi import TOP
from relvmoiscsi.host.disk.block_device import open_device

REPORT = "procedure.json"


def seconds(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def in_process(path):
    with open_device(path, writable=True) as device:
        resignature(device, os.urandom)


def command(path):
    run(sys.executable, "-m", "relvmoiscsi", "resignature", "--yes", "--not-in-use", path, env={"PYTHONPATH": TOP})


@pytest.mark.parametrize("vdis", [6, 50])
def test_the_command_beside_the_procedure(lab, host_with_sm, pytestconfig, report, tmp_path, vdis):
    image = luns.from_disk(builder.many_vdis(vdis).disk, "many.img")
    pairs = []

    for number in range(pytestconfig.getoption("--pairs")):
        clones = [lab.lun(image.clone(f"clone{number}-{which}.img")) for which in range(3)]
        array = lab.target(*clones)
        initiator.login(array.iqn, array.portal)
        first, second, third = (initiator.device_of(clone.scsi_id) for clone in clones)
        lvm = Lvm(str(tmp_path / f"lvm{number}"), third, activation=True)
        pair = {
            "in_process_s": seconds(lambda path=first: in_process(path)),
            "command_s": seconds(lambda path=second: command(path)),
            "procedure_s": seconds(lambda judge=lvm: judge.procedure("VG_XenStorage-" + image.sr.uuid)),
        }
        settle()
        pairs.append(pair)
        initiator.logout(array.iqn)

    report[str(vdis)] = pairs
    for pair in pairs:
        print("{} VDIs: {}".format(vdis, ", ".join("{} {:.2f}".format(*item) for item in pair.items())))
