# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool exports and imports VMs as xapi does, its traps among that."""

import pytest

from kit.pool import transfer
from kit.pool.database import Database
from kit.pool.errors import XenError
from kit.pool.storage import Storage
from kit.pool.vms import Vms


class Small:
    """A running VM with a disk, a CD and a network."""

    def __init__(self):
        self.db = Database()
        self.vms = Vms(self.db, Storage(self.db, None))
        db = self.db
        master = db.create("host")
        db.create("pool", master=master)
        self.sr = db.create("SR", type="lvmoiscsi", content_type="user")
        db.create("PBD", SR=self.sr, host=master, currently_attached=True)
        self.disk = db.create("VDI", SR=self.sr, location="here")
        self.isos = db.create("SR", type="iso", content_type="iso")
        self.iso = db.create("VDI", SR=self.isos, location="tools.iso")
        self.net = db.create("network", name_label="net", bridge="xenbr0")
        more = {"ha_always_run": True, "ha_restart_priority": "restart", "other_config": {"a": "b", "mac_seed": "s"}}
        self.vm = db.create("VM", name_label="web", power_state="Running", blocked_operations={"start": ""}, **more)
        db.create("VBD", VM=self.vm, VDI=self.disk, currently_attached=True)
        db.create("VBD", VM=self.vm, VDI=self.iso, userdevice="3", type="CD", mode="RO", currently_attached=True)
        db.create("VIF", VM=self.vm, network=self.net, MAC="02:00:00:00:00:01")

    def exported(self):
        return transfer.untar(transfer.tar(transfer.export(self.db, self.vm)))["objects"]

    def imported(self, objects, **query):
        return transfer._Import(self.db, self.vms, objects, query, None).run()

    def disks(self, vm):
        return {vbd["userdevice"]: vbd["VDI"] for vbd in self.db.records("VBD", VM=vm).values()}


@pytest.fixture
def small():
    return Small()


def test_an_import_is_a_new_vm_on_the_very_same_disk(small):
    (new,) = small.imported(small.exported())
    record = small.db.record("VM", new)

    assert small.disks(new) == small.disks(small.vm)
    assert record["power_state"] == "Halted" and new in small.vms.that_ha_would_start()
    assert record["blocked_operations"] == {} and record["other_config"]["mac_seed"] != "s"
    (vbd, _) = small.db.records("VBD", VM=new).values()
    assert vbd["currently_attached"], "of a halted VM as well"
    (vif,) = small.db.records("VIF", VM=new).values()
    assert vif["MAC"] != "02:00:00:00:00:01" and vif["network"] == small.net and not vif["currently_attached"]


def test_a_disk_that_is_not_found_fails_it_and_nothing_is_left(small):
    small.db.set("VBD", small.db.refs("VBD", VDI=small.disk)[0], "currently_attached", False)
    objects = small.exported()
    small.db.set("VDI", small.disk, "location", "elsewhere")
    before = small.db.refs("VM")
    with pytest.raises(XenError, match="VDI_LOCATION_MISSING"):
        small.imported(objects)
    (forced,) = small.imported(objects, force="true")
    assert small.disks(forced) == {"3": small.iso}
    small.vms.vm_destroy("", forced)
    small.db.destroy("SR", small.sr)
    with pytest.raises(XenError, match="VDI_CONTENT_ID_MISSING"):
        small.imported(objects)
    assert small.db.refs("VM") == before


def test_cookies_are_read_as_xapi_reads_them():
    for text, found in (
        ("session_id=a;task_id=b", {"session_id": "a", "task_id": "b"}),
        ("session_id=a; task_id=b", {"session_id": "a", " task_id": "b"}),
        ("session_id=a&task_id=b", {"session_id": "a", "task_id": "b"}),
    ):
        assert transfer._request("/import_metadata?dry_run=true", {"Cookie": text}) == (
            "/import_metadata",
            {"dry_run": "true"},
            {"dry_run": "true", **found},
        )


def test_what_an_import_leaves_behind(small):
    small.db.set("VM", small.vm, "domain_type", "hvm")
    for is_a_template in (False, True):
        small.db.set("VM", small.vm, "is_a_template", is_a_template)
        (new,) = small.imported(small.exported())
        vm = small.db.record("VM", new)
        assert "import_task" in vm["other_config"] and vm["is_a_template"] == is_a_template
        assert ("device-model" in vm["platform"]) == (not is_a_template)


def test_a_network_is_the_first_of_its_name_or_of_its_bridge_or_made(small):
    objects = small.exported()
    small.db.set("network", small.net, "name_label", "renamed")
    (new,) = small.imported(objects)
    assert [vif["network"] for vif in small.db.records("VIF", VM=new).values()] == [small.net]
    other = small.db.create("network", name_label="net")
    (new,) = small.imported(objects)
    assert [vif["network"] for vif in small.db.records("VIF", VM=new).values()] == [other]
    small.db.destroy("network", other)
    small.db.destroy("network", small.net)
    small.imported(objects)
    assert [record["bridge"] for record in small.db.records("network").values()] == ["xenbr0"]
