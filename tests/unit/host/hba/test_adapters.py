# SPDX-License-Identifier: LGPL-2.1-only
"""Adapters, ports and disks as sysfs has them; which adapters count is SM's rule."""

import os

import pytest

from kit.hba_world import SCSI_ID, WWPNS
from relvmoiscsi.host.hba.adapters import (
    adapters,
    addresses,
    addresses_of,
    disk_at,
    disks,
    numbers_of,
    places,
    ports_online,
    remote_ports,
)

OTHER = "3" + "6001405aaaaaaaaaaaaaaaaaaaaaaaaa"


# --- adapters


@pytest.mark.parametrize(
    "drivers, found",
    [
        (["mpt3sas", "megaraid_sas", "virtio_scsi", "ib_iser", "qla4xxx", "smartpqi", "bnx2fc"], True),
        (["ata_piix", "sata_nv", "pata_amd", "ahci", "pdc_adma", "iscsi_tcp", "usb-storage"], False),
    ],
    ids=["whatever announces LUNs is one", "what is none to SM is none here"],
)
def test_which_drivers_are_of_adapters(world, drivers, found):
    for number, driver in enumerate(drivers, 7):
        world.adapter(number, proc_name=driver)

    assert [adapter.driver for adapter in adapters(host=world.host)[4:]] == (drivers if found else [])


def test_the_name_of_its_driver(world):
    cases = [
        ({"_84xx_fw_version": "", "proc_name": "<NULL>"}, "qla2xxx"),
        ({"lpfc_fcp_class": "3", "proc_name": "<NULL>"}, "lpfc"),
        ({"fnic_state": "Ready", "proc_name": "(null)"}, "fnic"),
        ({"driver_name": "qla2xxx", "proc_name": "other"}, "qla2xxx"),
        ({"driver_name": "<NULL>", "proc_name": "bfa"}, "bfa"),
        ({"proc_name": "<NULL>", "uevent": "A=1\nPHYSDEVDRIVER=mptfc\n"}, "mptfc"),
        ({"proc_name": "<NULL>", "uevent": "A=1\n"}, "Unknown"),
    ]
    for number, (attributes, _) in enumerate(cases, 7):
        world.adapter(number, **attributes)

    assert [adapter.driver for adapter in adapters(host=world.host)[4:]] == [driver for _, driver in cases]


def test_those_of_a_driver_by_the_beginning_of_its_name_in_the_order_of_their_numbers(world):
    for number in (10, 9):
        world.adapter(number, proc_name="qla2xxx")

    counts = {driver: len(adapters(driver, world.host)) for driver in ("any", "fcoe", "fc", "qla2", "qla.xxx", "oe")}
    assert counts == {"any": 6, "fcoe": 4, "fc": 4, "qla2": 2, "qla.xxx": 0, "oe": 0}
    assert [adapter.name for adapter in adapters(host=world.host)[-2:]] == ["host9", "host10"]
    assert adapters(host=world.host._replace(root=world.root + "/nothing")) == []


# --- disks


def test_a_lun_has_its_address_before_it_has_a_disk_and_a_disk_before_its_node(world):
    world.lun("1:0:0:7", scsi_id=OTHER)
    assert addresses_of(OTHER, adapters(host=world.host), world.host) == ["1:0:0:7"]
    assert addresses_of(SCSI_ID, adapters(host=world.host), world.host) == ["1:0:0:0", "3:0:0:0"]
    assert disk_at("1:0:0:7", world.host) is None

    world.lun("1:0:0:8", "sdc", scsi_id=OTHER)
    os.unlink(os.path.join(world.root, "dev", "sdc"))
    assert disk_at("1:0:0:8", world.host) is None


def test_addresses_are_in_the_order_of_their_numbers_and_only_disks_count(world):
    world.lun("1:0:0:10", "sdd")
    world.lun("1:0:0:9", "sdc")
    world.lun("1:0:1:0", kind="13")  # an enclosure
    world.lun("9:0:0:0", "sde")  # behind something that is no adapter

    assert addresses(adapters(host=world.host), world.host) == ["1:0:0:0", "1:0:0:9", "1:0:0:10", "3:0:0:0"]
    for name in ("vpd_pg80", "vpd_pg83", "vendor"):  # a LUN that says nothing of itself
        os.unlink(world.at("bus/scsi/devices/1:0:0:9/" + name))
    (disk,) = [one for one in disks(adapters(host=world.host), world.host) if one.name == "sdc"]
    assert (disk.scsi_id, disk.serial, disk.vendor) == ("", "", "")


# --- ports, and where to look


EVERYWHERE = [f"host{number}" for number in range(4)]


@pytest.mark.parametrize(
    "number, ports, expected",
    [
        (None, None, [(name, "- - -") for name in EVERYWHERE]),
        (7, None, [(name, "- - 7") for name in EVERYWHERE]),
        (7, WWPNS[1:], [("host3", "0 0 7")]),
        (None, WWPNS, [("host1", "0 0 -"), ("host3", "0 0 -")]),
        (7, ["500a098186c37a1d"], []),  # it has not logged in
        # as the kernel takes an address of two bytes for a number, in flat addressing: 0x41, 0x00 is 16640
        (0, WWPNS[:1], [("host1", "0 0 0")]),
        (255, WWPNS[:1], [("host1", "0 0 255")]),
        (256, WWPNS[:1], [("host1", "0 0 256"), ("host1", "0 0 16640")]),
        (16383, WWPNS[:1], [("host1", "0 0 16383"), ("host1", "0 0 32767")]),
        (16384, WWPNS[:1], [("host1", "0 0 16384")]),
    ],
)
def test_where_to_look(world, number, ports, expected):
    found = places(adapters(host=world.host), number, *([ports] if ports else []), host=world.host)

    assert [(place.adapter.name, place.where) for place in found] == expected
    if ports and expected and number is not None:
        assert numbers_of(number) == [int(place.split()[-1]) for _, place in expected]


def test_the_ports_of_targets_that_have_logged_in_and_the_addresses_of_those_that_are_online(world):
    assert ports_online(adapters(host=world.host), world.host) == ["1:0:0", "3:0:0"]

    world.put("class/fc_remote_ports/rport-1:0-0/port_state", "Blocked\n")
    assert ports_online(adapters(host=world.host), world.host) == ["3:0:0"]
    assert remote_ports(adapters(host=world.host), world.host) == list(WWPNS)
    world.put("class/fc_remote_ports/rport-1:0-0/scsi_target_id", "-1\n")
    assert remote_ports(adapters(host=world.host), world.host) == [WWPNS[1]], "a port that has gone is no place"
