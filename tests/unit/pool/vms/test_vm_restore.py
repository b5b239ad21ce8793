# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own: a journal first, undoable, done again after a cut, home by migration."""

import json

import pytest

from kit.pool.errors import XenError
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool import discard, records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, restore


def run(day, work):
    with connect(day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        return work(calls, pool, found, inventory.copy_of(pool, found, day.sr))


def bring_back(day, vm=None, devices=(), shutdown=False, date="2026-11-22"):
    vm = vm or day.web
    return run(
        day,
        lambda calls, _, found, copy: restore.restore(
            calls, vm, restore.plan(found, copy, vm, devices, date), shutdown
        ),
    )


def undo(day, vm=None, **more):
    return run(day, lambda calls, *_: restore.undo(calls, vm or day.web, **more))


def home(day):
    return run(day, lambda calls, *_: restore.home(calls, day.web))


@pytest.fixture
def halted(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.set("VBD", vbd, "other_config", {"owner": "alice"})
        day.db.set("VBD", vbd, "qos_algorithm_type", "ionice")
    return day


def seen(day):
    """The VM and its disks, without the references of VBDs."""
    vbds = day.db.records("VBD", VM=day.web).values()
    for vbd in vbds:
        vbd.pop("uuid")
    vm = day.db.record("VM", day.web)
    vm.pop("VBDs")
    return vm, sorted(vbds, key=lambda vbd: vbd["userdevice"])


def names(day):
    return [day.db.get("VDI", vdi, "name_label") for vdi in (day.root, day.data)]


def test_it_has_the_disks_of_the_copy_and_all_else_as_before(halted):
    expected, (before, vbds) = halted.expected(halted.web), seen(halted)
    halted.lab.pool.api.calls.clear()
    done = bring_back(halted)

    assert done.status == "restored" and halted.lab.disks_of(halted.web) == expected
    vm, now = seen(halted)
    for old, new in zip(vbds, now):
        assert {**old, "VDI": ""} == {**new, "VDI": ""}
    journal = {key: json.loads(vm["other_config"].pop(key)) for key in list(vm["other_config"]) if "restore" in key}
    assert vm == before and set(journal) == {"relvmoiscsi:restore:0", "relvmoiscsi:restore:1"}
    assert names(halted) == ["root disk before restore 2026-11-22", "data before restore 2026-11-22"]
    calls = halted.lab.pool.api.calls
    assert calls.index("VBD.destroy") > [i for i, call in enumerate(calls) if call == "VM.add_to_other_config"][-1]
    assert not [call for call in calls if call.startswith(("VDI.destroy", "Async.VDI.destroy", "VM.destroy"))]


def test_undone_all_is_as_it_was(halted):
    before, vdis = seen(halted), halted.db.records("VDI")
    bring_back(halted)
    done = undo(halted)

    assert done.status == "undone" and not done.waiting and seen(halted) == before
    after = halted.db.records("VDI")
    for rows in (vdis, after):
        for row in rows.values():
            row.pop("VBDs")
    assert after == vdis
    with pytest.raises(Refused, match="has no disks of a copy that `restore` has put there"):
        undo(halted)


def test_one_disk_of_two(halted):
    bring_back(halted, devices=["1"])
    disks = halted.lab.disks_of(halted.web)
    assert disks["1"][0] == halted.sr and disks["0"][0] != halted.sr
    assert names(halted) == ["root disk", "data before restore 2026-11-22"]
    bring_back(halted, date="2026-11-23")
    assert all(sr == halted.sr for sr, _ in halted.lab.disks_of(halted.web).values())
    assert names(halted) == ["root disk before restore 2026-11-23", "data before restore 2026-11-22"]
    undo(halted)
    assert all(sr != halted.sr for sr, _ in halted.lab.disks_of(halted.web).values())


def test_the_same_again_changes_nothing(halted):
    bring_back(halted)
    before = seen(halted), halted.db.refs("VBD")
    assert bring_back(halted, date="later").status == "already restored"
    assert (seen(halted), halted.db.refs("VBD")) == before


def test_a_running_vm_is_shut_down_if_somebody_says_so(day):
    before = seen(day)
    with pytest.raises(Refused, match="is not halted but running. Say --shutdown"):
        bring_back(day)
    assert seen(day) == before
    bring_back(day, shutdown=True)
    assert day.db.get("VM", day.web, "power_state") == "Halted" and day.lab.disks_of(day.web)["0"][0] == day.sr
    day.lab.pool.api.vms.vm_start("", day.web)
    with pytest.raises(Refused, match="not halted"):
        undo(day)
    undo(day, shutdown=True)
    assert names(day) == ["root disk", "data"]


def test_a_guest_that_does_not_shut_down_keeps_its_disks(day):
    day.lab.pool.api.vms.refuses_shutdown.add(day.web)
    before = seen(day)
    with pytest.raises(PoolFailure, match="VM_SHUTDOWN_TIMEOUT"):
        bring_back(day, shutdown=True)
    assert seen(day) == before


def test_a_suspended_vm_is_refused(day):
    day.db.set("VM", day.web, "power_state", "Suspended")
    with pytest.raises(Refused, match="Its memory would not fit its disks"):
        bring_back(day, shutdown=True)


def test_what_is_refused(halted):
    with pytest.raises(UsageError, match="has no disk 5; it has 0, 1"):
        bring_back(halted, devices=["5"])
    other = halted.lab.vm("other", halted.lab.vdi("Testing", "data")[0])
    with pytest.raises(Refused, match="is not on this copy"):
        bring_back(halted, other)
    with pytest.raises(Refused, match="has no disk"):
        bring_back(halted, halted.lab.vm("bare"))
    (copy,) = halted.clone("web")
    with pytest.raises(Refused, match="is a disk of web 2026-11-22 already"):
        bring_back(halted)
    with pytest.raises(Refused, match="is a copy itself"):
        bring_back(halted, halted.db.by_uuid("VM", copy.uuid))


def test_a_vm_that_was_restored_has_no_copy_on_the_same_disks(halted):
    backup = halted.lab.vm("backup", halted.data)
    bring_back(halted)
    (done,) = halted.clone("backup")
    assert backup and "The copy of the disk" in str(done.error) and "'web' already" in str(done.error)


def test_one_copy_at_a_time(halted):
    bring_back(halted)
    (second,) = halted.lab.attach(halted.lab.clone("Production"))
    first, halted.sr = halted.sr, halted.db.by_uuid("SR", second.sr_uuid)
    with pytest.raises(Refused, match="was restored from the copy"):
        bring_back(halted)
    assert halted.lab.disks_of(halted.web)["0"][0] == first


def test_the_copy_is_not_discarded_under_it(halted):
    bring_back(halted)

    def uses(calls, pool, *_):
        found = discard.read_uses(calls, [halted.sr])
        discard.verify_unused(pool, found)

    with pytest.raises(Refused, match="VMs were restored from the SR .*: web. Take them home first"):
        run(halted, uses)
    undo(halted)
    run(halted, uses)


def test_a_vm_that_was_copied_from_a_restored_one_has_no_journal(halted):
    """xapi copies other_config with the VM: an undo there would take the disks of the other."""
    bring_back(halted)
    marks = halted.db.get("VM", halted.web, "other_config")
    other = halted.lab.vm("a copy of web", halted.lab.vdi("Testing", "data")[0], other_config=marks)
    with pytest.raises(Refused, match="has no disks of a copy"):
        undo(halted, other)
    halted.db.set("VM", halted.lab.vm("no json", other_config={"relvmoiscsi:restore:0": "x"}), "name_label", "spoiled")
    spoiled = halted.db.refs("VM", name_label="spoiled")[0]
    with pytest.raises(Refused, match="cannot be read"):
        run(halted, lambda calls, *_: restore.journal_of(calls.call("VM.get_record", spoiled)))


def test_a_journal_of_another_vm_is_written_over(halted):
    marks = {"relvmoiscsi:restore:0": json.dumps({"vm": "another"})}
    other = {**halted.db.get("VM", halted.web, "other_config"), **marks}
    swap = run(halted, lambda calls, _, found, copy: restore.plan(found, copy, halted.web, [], "today"))[0]
    text = json.dumps({**swap._asdict(), "vm": "another"})
    halted.db.set("VM", halted.web, "other_config", {**other, "relvmoiscsi:restore:0": text})
    bring_back(halted)
    undo(halted)
    assert names(halted) == ["root disk", "data"]


def test_without_the_disk_before_there_is_no_undo(halted):
    bring_back(halted)
    halted.db.destroy("VDI", halted.root)
    before = seen(halted)
    with pytest.raises(NotFound, match="is not in the pool any more"):
        undo(halted)
    assert seen(halted) == before


@pytest.mark.parametrize("cut_work", [bring_back, undo], ids=["restore", "undo"])
@pytest.mark.parametrize("then", [bring_back, undo], ids=["restore", "undo"])
def test_killed_at_every_call_it_goes_forward_or_back(halted, dies, cut_work, then):
    before, expected = seen(halted), halted.expected(halted.web)
    number = 8 + dies.first
    while True:
        if cut_work is undo:
            bring_back(halted)
        death = dies(lambda: cut_work(halted), number)
        journal = inventory.is_restored(halted.db.record("VM", halted.web))
        if then is bring_back:
            assert {entry.new for entry in then(halted).disks} == {uuid for _, uuid in expected.values()}
            assert halted.lab.disks_of(halted.web) == expected, number
            undo(halted)
        elif journal:
            undo(halted)
        assert seen(halted) == before and names(halted) == ["root disk", "data"], number
        number += 2
        if not death.came:
            break
    assert number > 20


# --- home


def test_home_they_are_on_the_sr_of_the_disks_before(halted):
    original = halted.db.get("VDI", halted.root, "SR")
    bring_back(halted)
    halted.lab.pool.api.vms.vm_start("", halted.web)
    done = home(halted)

    assert [sr for sr, _ in halted.lab.disks_of(halted.web).values()] == [original] * 2
    assert sorted(done.waiting) == sorted(halted.db.get("VDI", vdi, "uuid") for vdi in (halted.root, halted.data))
    assert names(halted) == ["root disk before restore 2026-11-22", "data before restore 2026-11-22"]
    vm = halted.db.record("VM", halted.web)
    assert vm["power_state"] == "Running" and not inventory.is_restored(vm)


def test_killed_at_every_call_it_comes_home(halted, dies):
    number = 6
    while True:
        bring_back(halted, date="x")
        death = dies(lambda: home(halted), number)
        if inventory.is_restored(halted.db.record("VM", halted.web)):
            home(halted)
        disks = halted.lab.disks_of(halted.web)
        assert all(sr != halted.sr for sr, _ in disks.values()) and len(disks) == 2, number
        # again: as it was, with another copy
        for vbd in halted.db.refs("VBD", VM=halted.web):
            halted.db.destroy("VBD", vbd)
        for device, vdi in enumerate((halted.root, halted.data)):
            halted.db.create("VBD", VM=halted.web, VDI=vdi, userdevice=str(device))
        halted.lab.pool.storage.sr_scan("", halted.sr)
        number += 3
        if not death.came:
            break
    assert number > 15


def test_undone_on_the_way_home_what_was_moved_is_told(halted):
    bring_back(halted)
    new = halted.new(halted.root)
    moved = halted.lab.pool.api.vms.vdi_pool_migrate("", new, halted.db.get("VDI", halted.root, "SR"), {})
    done = undo(halted)
    assert list(done.waiting) == [halted.db.get("VDI", moved, "uuid")]


def test_a_restore_that_was_cut_does_not_go_home(halted):
    bring_back(halted)
    halted.db.destroy("VBD", halted.db.refs("VBD", VM=halted.web)[0])
    with pytest.raises(Refused, match="was cut. Run it again, or undo it"):
        home(halted)
    assert bring_back(halted).status == "restored"


def test_what_the_pool_refuses_stays_as_it_was(halted):
    bring_back(halted)

    def full(_session, _vdi, _sr, _options):
        raise XenError("SR_BACKEND_FAILURE_44", "", "There is insufficient space", "")

    halted.lab.pool.api._methods["VDI.pool_migrate"] = full
    with pytest.raises(PoolFailure, match="insufficient space"):
        home(halted)
    assert inventory.is_restored(halted.db.record("VM", halted.web))
