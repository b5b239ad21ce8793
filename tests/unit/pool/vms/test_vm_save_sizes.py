# SPDX-License-Identifier: LGPL-2.1-only
"""A save is for the VMs of all tenants: the long names, keys and records of one tenant are no matter of another one."""

import base64
import random

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import saved_vms
from unit.pool.vms.test_vm_saved import LATER, Office

OURS = ["db", "web"]
LONG_NAME = "\U0001f600" * 75000  #: 300 KB for xapi, and three times as much in the index


@pytest.fixture
def office(lab):
    return Office(lab).make()


def noise(count):
    """A text that no compression makes much smaller."""
    return base64.b64encode(bytes(random.Random(1).choices(range(256), k=count))).decode()


def tenant(office, name="tenant", noise_bytes=0):
    """A VM of a tenant, with a disk on the SR."""
    vm = office.lab.vm(name, office.lab.vdi("Production", "before")[0])
    office.db.set("VM", vm, "other_config", {"XenCenter.CustomFields.1": noise(noise_bytes)})
    return vm


def with_long_names(office):
    mine = tenant(office, LONG_NAME)
    for number in range(2, 7):
        vdi = office.db.create(
            "VDI", SR=office.lab.originals["Production"][1], name_label=LONG_NAME, location=f"l{number}", managed=True
        )
        office.db.create("VBD", VM=mine, VDI=vdi, userdevice=str(number), type="Disk", empty=False)


def test_long_names_are_cut_in_the_index_and_whole_in_the_records(office):
    with_long_names(office)
    saved, _, failed = office.save(LATER)
    assert failed == {} and sorted(vm.name_label for vm in saved.vms)[:2] == OURS
    (mine,) = (vm for vm in saved.vms if vm.name_label not in OURS)
    assert {len(name) for name in (mine.name_label, *(disk.name_label for disk in mine.disks[1:]))} == {
        256 + len("...")
    }
    assert LONG_NAME.encode() in saved.documents([mine.uuid])[mine.uuid]


@pytest.mark.parametrize(
    "limit, most, noise_bytes",
    [("MOST_BYTES", 60000, 30000), ("MOST_UNPACKED_BYTES", 120000, 30000), ("MOST_INDEX_BYTES", 2500, 0)],
)
def test_the_largest_are_left_out_and_named(office, monkeypatch, limit, most, noise_bytes):
    """The names are long for an index so small."""
    tenants = [tenant(office, f"tenant{number}" + "x" * 240, noise_bytes) for number in range(4)]
    monkeypatch.setattr(saved_vms, limit, most)
    saved, _, failed = office.save(LATER)
    assert {*OURS} < {vm.name_label for vm in saved.vms}
    left = {office.db.get("VM", vm, "uuid") for vm in tenants} - {vm.uuid for vm in saved.vms}
    assert 0 < len(left) < 4 and set(failed) == left
    for name, why in failed.values():
        assert name.startswith("tenant") and "the largest are left out. Delete snapshots of the VM" in why
    assert len(saved.documents([vm.uuid for vm in saved.vms])) == len(saved.vms)


def test_a_vm_that_has_become_too_large_keeps_the_records_of_the_save_before(office, monkeypatch):
    office.db.set("VM", office.other, "other_config", {"XenCenter.CustomFields.1": noise(60000)})
    monkeypatch.setattr(saved_vms, "MOST_BYTES", 40000)
    saved, _, failed = office.save(LATER)
    assert sorted(vm.name_label for vm in saved.vms) == OURS
    ((name, why),) = failed.values()
    assert name == "db" and "the largest are left out" in why and "Its records of the save of 2026-11-22" in why
    assert noise(60000).encode() not in saved.documents([office.uuids[office.other]])[office.uuids[office.other]]


def test_where_no_vm_fits_nothing_is_saved(office, monkeypatch):
    before = office.vdis()
    monkeypatch.setattr(saved_vms, "MOST_INDEX_BYTES", 100)
    with pytest.raises(Refused, match="the largest are left out. Delete snapshots"):
        office.save()
    assert office.vdis() == before
