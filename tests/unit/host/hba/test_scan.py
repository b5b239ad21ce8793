# SPDX-License-Identifier: LGPL-2.1-only
"""Adapters are scanned at the same time, with one limit; what that has brought is taken away again."""

import os

import pytest

from kit.clock import over_after
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.disk import holders
from relvmoiscsi.host.hba import scan as scan_module
from relvmoiscsi.host.hba.adapters import adapters, places
from relvmoiscsi.host.hba.scan import scan, take_away

SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"

pytestmark = pytest.mark.processes


def switch(world, number):
    return world.at(f"class/scsi_host/host{number}/scan")


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch):
    monkeypatch.setattr(scan_module, "LOOK_SECONDS", 0.0)


# --- scans


def test_each_adapter_is_told_where_to_look_and_one_that_hangs_or_fails_holds_up_no_other(world, monkeypatch):
    everywhere = places(adapters(host=world.host), 7, host=world.host)
    for number in range(4):
        world.put(f"class/scsi_host/host{number}/scan", "")
    assert scan(everywhere, NO_DEADLINE, world.host) == []
    for number in range(4):
        with open(switch(world, number), encoding="ascii") as file:
            assert file.read() == "- - 7"

    for number in range(3):
        os.unlink(switch(world, number))
    os.mkdir(switch(world, 1))
    os.mkfifo(switch(world, 2))  # opened for writing, it waits for a reader
    os.truncate(switch(world, 3), 0)
    failing, hanging = scan(everywhere, Deadline(600, over_after(3, monkeypatch)), world.host)
    assert failing.startswith("host1 (fcoe): It cannot be scanned for LUNs: Is a directory.")
    over = "host2 (fcoe): The 600 seconds of this call were over before an adapter had been scanned"
    assert hanging.startswith(over)
    assert os.path.getsize(switch(world, 3)) == len("- - 7")


# --- taking away


def test_disks_are_taken_away_after_one_look_at_the_host_for_all(world, monkeypatch):
    looks, users_of_each = [], holders.users_of_each
    monkeypatch.setattr(scan_module, "run_parallel", lambda works, *_: [work() for work in works])
    monkeypatch.setattr(holders, "users_of_each", lambda disks, *how: looks.append(disks) or users_of_each(disks, *how))
    world.lun("1:0:0:7", "sdc")
    world.lun("1:0:0:8", "sdd")
    world.lun("3:0:0:7")

    assert take_away(["1:0:0:7", "1:0:0:8", "3:0:0:7", "3:0:0:8"], NO_DEADLINE, world.host) == {}

    assert looks == [["sdc", "sdd"]]
    for address in ("1:0:0:7", "1:0:0:8", "3:0:0:7"):
        with open(world.at(f"bus/scsi/devices/{address}/delete"), encoding="ascii") as file:
            assert file.read() == "1"


def test_of_a_lun_in_use_through_one_path_the_others_stay_as_well(world):
    """Its user has them all, or is about to: multipathd takes one after the other."""
    world.lun("1:0:0:7", "sdc", scsi_id=SCSI_ID)
    world.lun("3:0:0:7", "sdd", scsi_id=SCSI_ID)
    world.lun("3:0:1:7", scsi_id=SCSI_ID)
    world.lun("1:0:0:8", "sde", scsi_id=SCSI_ID[:-1] + "b")
    world.put("block/sdc/holders/dm-3/dm/name", "mine\n")

    stays = take_away(["1:0:0:7", "3:0:0:7", "3:0:1:7", "1:0:0:8"], NO_DEADLINE, world.host)

    assert stays["1:0:0:7"].startswith("The disk sdc at 1:0:0:7 stays: it is in use by ")
    assert stays["3:0:0:7"] == "The disk sdd at 3:0:0:7 stays: it is in use by device-mapper volume mine."
    assert sorted(stays) == ["1:0:0:7", "3:0:0:7", "3:0:1:7"]
    sizes = [os.path.getsize(world.at(f"bus/scsi/devices/{one}/delete")) for one in [*sorted(stays), "1:0:0:8"]]
    assert sizes == [0, 0, 0, 1]


def test_where_there_is_no_time_to_look_all_stay(world):
    world.lun("1:0:0:7", "sdc")

    stays = take_away(["1:0:0:7", "3:0:0:8"], Deadline(0), world.host)

    assert stays["1:0:0:7"].startswith("The disk sdc at 1:0:0:7 stays: ")
    assert "over before it was known who uses the disk" in stays["3:0:0:8"]
    assert os.path.getsize(world.at("bus/scsi/devices/1:0:0:7/delete")) == 0
