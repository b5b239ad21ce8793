# SPDX-License-Identifier: LGPL-2.1-only
"""The list of error 107 is lvmohba's: orchestrators read it to show LUNs and adapters."""

from xml.etree import ElementTree

import pytest

from kit.hba_world import SCSI_ID, SERIAL, HbaWorld
from relvmoiscsi.host.hba.adapters import adapters, disks
from relvmoiscsi.sr_driver.hba import missing
from relvmoiscsi.sr_driver.hba.missing import device_list

OTHER = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def world(tmp_path):
    return HbaWorld(tmp_path)


def listed(world, is_used=lambda _: False, driver="any"):
    found = adapters(driver, world.host)
    xml, _left_out = device_list(disks(found, world.host), found, is_used, {"fcoe": "FCoE & <VN2VN>"}.get, world.host)
    return ElementTree.fromstring(xml)


def fields(element):
    return [(field.tag, (field.text or "").strip()) for field in element if len(field) == 0]


def test_a_lun_is_listed_once_with_all_its_paths_and_an_adapter_with_what_sysfs_says_of_its_port(world):
    document = listed(world)

    (device,) = document.findall("BlockDevice")
    assert fields(device) == [
        ("path", "/dev/sda [sdb]"), ("numpaths", "2"), ("SCSIid", SCSI_ID), ("vendor", "LIO-ORG"), ("serial", SERIAL),
        ("size", str(64 << 20)), ("adapter", "1"), ("channel", "0"), ("id", "0"), ("lun", "0"), ("hba", "fcoe"),
    ]  # fmt: skip
    adapter = document.findall("Adapter")[1]
    assert dict(fields(adapter)) == {"host": "host1", "name": "fcoe", "manufacturer": "FCoE & <VN2VN>", "id": "1"}
    assert dict(fields(adapter.find("fc_host"))) == {
        "node_name": "0x1000020000000a00",
        "port_name": "0x2000020000000a00",
        "port_state": "Online",
        "speed": "10 Gbit",
        "supported_speeds": "unknown",
    }


@pytest.mark.parametrize("name, who", [("megaraid_sas", None), ("qla4xxx", [("initiatorname", "iqn.2026-01.lab:hw")])])
def test_an_adapter_that_is_no_port_is_listed_without_and_one_of_iscsi_says_who_it_is(world, name, who):
    world.adapter(7, proc_name=name)
    if who:
        world.put("class/iscsi_host/host7/initiatorname", "iqn.2026-01.lab:hw\n")
        world.put("class/iscsi_host/host7/ipaddress", "\n")

    adapter = listed(world).findall("Adapter")[-1]

    assert adapter.find("fc_host") is None and dict(fields(adapter))["manufacturer"] == "Unknown"
    assert who is None or fields(adapter.find("iscsi_host")) == who


def test_a_list_of_disks_has_a_limit_and_says_what_is_left_out(world, monkeypatch):
    monkeypatch.setattr(missing, "MOST_LUNS", 1)
    world.lun("1:0:0:7", "sdc", scsi_id=OTHER, serial="other")
    found = adapters("any", world.host)
    xml, left_out = missing.device_list(disks(found, world.host), found, lambda _: False, str, world.host)
    document = ElementTree.fromstring(xml)
    assert (len(document.findall("BlockDevice")), document.get("left_out"), left_out) == (1, "1", 1)


def test_luns_of_srs_and_disks_without_an_id_are_left_out(world):
    world.lun("1:0:0:7", "sdc", scsi_id=OTHER, serial="other")
    world.lun("1:0:0:8", "sdd")
    for page in ("vpd_pg83", "vpd_pg80"):
        world.put("bus/scsi/devices/1:0:0:8/" + page, "")

    found = listed(world, is_used=lambda scsi_id: scsi_id == SCSI_ID).findall("BlockDevice")

    assert [dict(fields(device))["SCSIid"] for device in found] == [OTHER]
