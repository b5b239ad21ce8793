# SPDX-License-Identifier: LGPL-2.1-only
"""Disks are found without udev, and udev is waited for."""

import pytest

from kit.udev_world import LUN, OTHER, UdevWorld, waiting_with
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk.hiding import is_hidden
from relvmoiscsi.host.disk.udev import disks_of, settle


@pytest.fixture
def world(tmp_path):
    return UdevWorld(tmp_path)


# --- disks


def test_all_paths_of_a_lun_are_found_in_the_order_in_which_they_came(world):
    for name, number in (("sdaa", "65:160"), ("sdb", "8:16"), ("sda", "8:0")):
        world.has_disk(name, number)
    world.has_disk("sdc", "8:32", scsi_id=OTHER)
    world.has_map("dm-0", "254:0")

    assert disks_of(LUN, world.host) == ["sda", "sdb", "sdaa"]
    assert disks_of("3600140500000000000000000000000000", world.host) == []


def test_a_disk_without_its_node_is_not_there_yet(world):
    world.has_disk("sda", "8:0", node=False)

    assert disks_of(LUN, world.host) == []


# --- settling


def test_a_disk_in_udevs_database_is_settled(world):
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", "S:disk/by-diskseq/20", "I:186177866", "E:ID_BUS=scsi", "V:1")

    settle(["sda"], host=world.host._replace(wait_for=waiting_with()))


def test_a_disk_that_udev_is_at_is_waited_for(world):
    world.has_disk("sda", "8:0")
    steps = [
        lambda: world.udev_knows("8:0", "E:ID_BUS=scsi"),
        lambda: world.udev_knows("8:0", "I:186177866", "E:ID_BUS=scsi"),
    ]

    settle(["sda"], host=world.host._replace(wait_for=waiting_with(*steps)))

    world.loses("sda")
    settle(["sda"], host=world.host._replace(wait_for=waiting_with()))


def test_what_the_database_has_of_an_earlier_disk_of_that_number_does_not_count(world):
    world.has_disk("sda", "8:0")
    world.udev_knows("8:0", "I:186177866")

    with pytest.raises(Refused, match="did not handle sda within 0 seconds. Either the disk does not answer: "):
        settle(["sda"], 0, since=186.2, host=world.host._replace(wait_for=waiting_with()))
    settle(["sda"], 0, since=186.2, known=["sda"], host=world.host._replace(wait_for=waiting_with()))
    settle(["sda"], 0, since=186.1, host=world.host._replace(wait_for=waiting_with()))


def test_a_disk_that_goes_away_while_it_is_waited_for_is_settled(world):
    world.has_disk("sda", "8:0")

    settle(["sda"], host=world.host._replace(wait_for=waiting_with(lambda: world.loses("sda"))))


def test_where_udev_does_not_run_there_is_nothing_to_wait_for(world):
    world.has_disk("sda", "8:0")
    (world.root / "run/udev/control").unlink()

    settle(["sda"], 1000, host=world.host._replace(wait_for=lambda *_: pytest.fail("it waits")))


def test_a_database_that_cannot_be_read_is_not_an_empty_one(world):
    world.has_disk("sda", "8:0")
    (world.root / "run/udev/data/b8:0").mkdir(parents=True)

    with pytest.raises(NotFound, match="The entry of sda in udev's database cannot be read"):
        is_hidden("sda", world.host)
