# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on the second driver: its file, the list of drivers, the adapters."""

import os

import pytest

from kit.doctor_world import DROP_IN, HBA_DRIVER, STOCK
from relvmoiscsi.doctor.hba import examine_hba, examine_scans


def test_a_host_that_is_ready(world):
    finding = examine_hba(world.host())

    assert (finding.name, finding.status) == ("fibre-channel", "ok")
    assert HBA_DRIVER in finding.sentence and "has no adapter" in finding.sentence


def test_its_adapters_are_named(world):
    for number, driver in ((0, "ahci"), (1, "qla2xxx"), (2, "qla2xxx"), (3, "lpfc")):
        world.put(f"/sys/class/scsi_host/host{number}/proc_name", driver + "\n")

    assert "adapters are of lpfc, qla2xxx." in examine_hba(world.host()).sentence


@pytest.mark.parametrize("broken", ["absent", "not executable"])
def test_without_its_file_it_is_a_problem(world, broken):
    if broken == "absent":
        os.unlink(world.at(HBA_DRIVER))
    else:
        os.chmod(world.at("/usr/share/relvmoiscsi/drivers/ReLVMoHBASR"), 0o644)

    finding = examine_hba(world.host())

    assert finding.status == "problem" and HBA_DRIVER in finding.sentence


def test_a_list_that_does_not_have_it_is_a_problem(world):
    world.put(DROP_IN, STOCK + " relvmoiscsi\n")

    finding = examine_hba(world.host())

    assert finding.status == "problem" and "does not have relvmohba" in finding.sentence
    assert "sm-whitelist sync" in finding.advice


# --- what a killed call has left


SCSI_ID = "36001405993c87c37fa84d02b7fa62c40"
NOTE = "/run/relvmoiscsi/scanned/" + SCSI_ID


def test_a_host_where_nobody_was_killed_has_nothing_to_say(world):
    assert examine_scans(world.host()) == []


def test_a_lun_that_a_killed_call_may_have_brought_is_a_warning(world):
    world.put(NOTE, "1:0:0:0\n")
    world.put(NOTE + ".new", "")

    (finding,) = examine_scans(world.host())

    assert (finding.name, finding.status) == ("scans", "warning")
    assert SCSI_ID in finding.sentence and ".new" not in finding.sentence
    assert "sr-probe" in finding.advice


def test_one_that_a_call_works_on_is_none(world):
    world.put(NOTE, "1:0:0:0\n")
    path = "/run/relvmoiscsi/hide/" + SCSI_ID
    world.put(path, "")
    status = os.stat(world.at(path))
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    world.process(4711, "ReLVMoHBASR")
    world.put("/proc/locks", f"1: FLOCK  ADVISORY  WRITE 4711 {device} 0 EOF\n")

    assert examine_scans(world.host()) == []
