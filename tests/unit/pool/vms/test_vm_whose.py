# SPDX-License-Identifier: LGPL-2.1-only
"""Whose data a VDI has: of a VM whose disk the VDI was before, and not of whoever says so in records or in a mark."""

import pytest

from kit.pool_verbs import bring_back, keep, lend, run, second_copy, take_home
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.pool import records
from relvmoiscsi.pool.vms import choice, clone, save_vms, transfer

GONE = "aaaaaaaa-0000-4000-8000-000000000000"
WISH = choice.CloneRequest(run="r", jobs=1, patience=0.01)


def destroy_disks(day):
    for vdi in (day.root, day.data):
        day.db.destroy("VDI", vdi)


def destroy_web(day):
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.destroy("VBD", vbd)
    day.db.destroy("VM", day.web)
    destroy_disks(day)


def restored(day):
    bring_back(day)


def came_home(day):
    bring_back(day)
    take_home(day)


def came_home_alone(day):
    came_home(day)
    destroy_disks(day)


def kept(day):
    bring_back(day)
    keep(day)


def cut_between_swaps(day):
    """The journal alone says whose the disk is."""
    bring_back(day)
    day.db.destroy("VBD", day.vbd("1"))


def clone_alone(day):
    day.clone_one()
    destroy_web(day)


#: what became of "web" since the LUN was copied
FATES = [restored, came_home, came_home_alone, kept, cut_between_swaps]


def from_records(day, sr, vm, disk):
    """(Why the records are not believed, the result): records of an unknown writer say that this VM has the disk."""

    def work(calls, found, copy):
        pool = records.read(calls)
        document = transfer.export_vm(calls, day.tenant, snapshots=False)
        (own,) = [vdi["uuid"] for vdi in found.disks_of(day.tenant).values()]
        for old, new in ((found.vms[day.tenant]["uuid"], vm), (own, disk)):
            document = document.replace(old.encode(), new.encode())
        one = saved_vms.SavedVm(vm, "mine", "Halted", (saved_vms.SavedDisk("0", disk, "x"),))
        packed = saved_vms.packed(one, document)
        content = saved_vms.pack(copy.original, "2026-11-22T12:00:00Z", 9, [packed], b"")
        saved = saved_vms.unpack(saved_vms.read_header(content, "x"), content[saved_vms.SavedHeader.SIZE :], "x")
        sources = save_vms.choose(pool, found, copy, (saved, False), ["mine"])
        (done,) = clone.clone(calls, pool, found, copy, sources, WISH)
        return str(sources[0].problem or ""), done

    return run(day, work, sr)


@pytest.fixture
def tenants(halted):
    """The day, with a second copy, and a VM of a tenant with a disk of its own."""
    halted.other = second_copy(halted)
    halted.tenant = halted.lab.vm("tenant", halted.lab.vdi("Production", "before")[0])
    return halted


@pytest.mark.parametrize("fate", [*FATES, clone_alone])
def test_trusted_records_give_a_new_vm_no_earlier_state_of_a_disk_of_another_vm(tenants, fate):
    data = tenants.uuid(tenants.data)
    fate(tenants)
    problem, done = from_records(tenants, tenants.other, GONE, data)
    assert f"the disk '{data}' has data of the VM 'web" in problem
    assert done.status == clone.FAILED


def test_trusted_records_make_again_a_vm_of_which_only_clones_are_left(tenants):
    web, data = tenants.db.get("VM", tenants.web, "uuid"), tenants.uuid(tenants.data)
    clone_alone(tenants)
    problem, done = from_records(tenants, tenants.other, web, data)
    assert (problem, done.status) == ("", clone.MADE)
    assert any(f"{data} (disk 0 of 'mine' by the records) has data of the VM 'web on" in note for note in done.notes)


def test_a_disk_that_was_lent_is_no_disk_of_the_helper(tenants):
    data = tenants.uuid(tenants.data)
    lend(tenants, data, tenants.lab.vm("helper"))
    destroy_web(tenants)
    problem, done = from_records(tenants, tenants.other, GONE, data)
    assert (problem, done.status) == ("", clone.MADE)
