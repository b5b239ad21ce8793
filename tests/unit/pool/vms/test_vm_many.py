# SPDX-License-Identifier: LGPL-2.1-only
"""Thousands of records, which a tenant or a guest can make: the work grows with their number, not with its square."""

import uuid

import pytest

from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vdis import Origin
from relvmoiscsi.pool.vms import choice, discard, inventory, rescue
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, ON_SR, Inventory
from relvmoiscsi.pool.vms.owners import Copy

SR = "5f1a3d1c-0000-4000-8000-000000000000"
COPY = Copy("the SR", SR, "", "", {}, {}, None)


class Read(dict):
    """Counts the entries that somebody has read."""

    count = 0

    def items(self):
        self.count += len(self)
        return super().items()

    def values(self):
        self.count += len(self)
        return super().values()

    def __contains__(self, key):
        self.count += 1
        return super().__contains__(key)


IDLE = {"power_state": "Halted", "blocked_operations": {}, "current_operations": {}, "snapshot_of": ""}


def pool_with(count):
    """This many clones, each with two disks on the copy."""
    vms, vbds, vdis = Read(), Read(), Read()
    for at in range(count):
        own = str(uuid.UUID(int=at))
        config = {COPY_OF: f"original {at}", ON_SR: SR, DONE: own}
        vms[f"vm {at}"] = {"uuid": own, "other_config": config, "is_a_snapshot": False, "name_label": "web", **IDLE}
        for device in ("0", "1"):
            vdi = f"vdi {at} {device}"
            vdis[vdi] = {"SR": "the SR", "uuid": "", "name_label": ""}
            vbds[f"vbd {vdi}"] = {"VM": f"vm {at}", "VDI": vdi, "type": "Disk", "empty": False, "userdevice": device}
    return Inventory(vms, vbds, {}, {}, vdis)


def test_the_clones_of_each_original_are_found_with_one_reading_of_the_pool():
    found = pool_with(300)

    for at in range(300):
        whole, empty, half = choice.clones(found, COPY, f"original {at}")
        assert (list(whole), empty, half) == ([f"vm {at}"], {}, {})
        assert found.users_of(f"vdi {at} 0") == [f"vm {at}"]

    assert found.vms.count < 4 * 300 and found.vbds.count < 4 * 600 and found.vdis.count < 4 * 600


def test_thousands_of_disks_of_one_name_are_told_apart_with_one_reading_of_the_pool():
    """1600 of them took 39 seconds."""
    disk = {"name_label": "data", "managed": True, "is_a_snapshot": False, "snapshot_of": "", "virtual_size": 1}
    olds, news, vdis = [str(uuid.UUID(int=at)) for at in range(300)], {}, Read()
    for at, old in enumerate(olds):
        vdis[f"old {at}"] = {**disk, "uuid": old, "SR": "original", "other_config": {}}
        vdis[f"new {at}"] = {**disk, "uuid": derived_uuid(SR, old), "SR": "the SR", "other_config": {}}
        news[f"new {at}"] = vdis[f"new {at}"]
    found = Inventory({}, {}, {}, {}, vdis)
    by_uuid = {vdi["uuid"]: ref for ref, vdi in news.items()}
    copy = Copy("the SR", SR, "", "", news, by_uuid, Origin(SR, "original", vdis), original_ref="original")
    vdis.count = 0

    with pytest.raises(UsageError, match="300 VDIs have the name 'data'.*of no VM.* and 280 more"):
        rescue.find(found, copy, "data")

    assert vdis.count < 4 * 600


def test_the_last_copies_among_thousands_of_clones_are_found_with_one_reading_of_the_pool(lab):
    """For each clone of an original that is gone, the plan of a discard read all copies of that original."""
    (copy,) = lab.attach(lab.clone("Production"))
    sr = lab.pool.db.by_uuid("SR", copy.sr_uuid)
    for at in range(60):
        disk = lab.pool.db.create("VDI", SR=sr, managed=True)
        vm = lab.vm(f"web {at:02}", disk)
        own = lab.pool.db.get("VM", vm, "uuid") if at < 30 else "of a clone that a person has copied"
        lab.pool.db.set("VM", vm, "other_config", {COPY_OF: "gone", ON_SR: copy.sr_uuid, DONE: own})
    with connect(lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
    found = found._replace(vms=Read(found.vms), vdis=Read(found.vdis))

    last = discard.last_copies_on(pool, found, [sr])

    assert [found.vms[ref]["name_label"] for ref in last] == [f"web {at:02}" for at in range(30)]
    assert found.vms.count + found.vdis.count < 10 * 60


def test_thousands_of_clones_are_destroyed_with_a_copy_by_one_reading_of_the_pool():
    found = pool_with(300)
    pool = records.Pool("", "", {}, {}, {"the SR": {"uuid": SR, "other_config": {}}}, {}, {})

    assert len(discard.made_on(found, pool, "the SR")) == 300

    assert found.vms.count < 10 * 300


def test_an_answer_is_of_the_records_that_the_inventory_has_now():
    found = pool_with(2)
    assert list(found.vbds_of("vm 1")) == ["vbd vdi 1 0", "vbd vdi 1 1"]
    assert list(found._replace(vbds={}).vbds_of("vm 1")) == []


def test_thousands_of_equal_names_get_a_number_each_at_once():
    taken = Read.fromkeys(["web", "web (3)"], 1)

    names = [records.unused_name("web", taken) for _ in range(3000)]

    assert names[:3] == ["web (2)", "web (4)", "web (5)"] and len(set(names)) == 3000
    assert taken.count < 4 * 3000


def test_the_macs_of_a_vm_with_thousands_of_cards_are_compared_with_one_reading_of_the_pool():
    found = pool_with(1)._replace(
        networks={"net": {"name_label": "office"}},
        vifs=Read({f"vif {at}": {"VM": "vm 0", "network": "net", "MAC": f"02:{at:010}"} for at in range(3000)}),
    )
    new = {f"new {at}": {"network": "net", "MAC": f"06:{at:010}"} for at in range(3000)}

    choice.verify_macs(found, "web", new)
    with pytest.raises(Refused, match="the MAC 02:0000000007 of 'web' is on the network 'office' already"):
        choice.verify_macs(found, "web", {**new, "last": {"network": "net", "MAC": "02:0000000007"}})

    assert found.vifs.count <= 2 * 3000
