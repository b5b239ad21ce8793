# SPDX-License-Identifier: LGPL-2.1-only
"""vm_clone, vm_restore, rescue_disk: what is there afterwards, and that the second time changes nothing.

Each module is in one playbook with an interpreter of its own, here or in the examples of test_documented.py; what else
it does is the same in this process.
"""


def attach(stage):
    return "lun", {"clones_of": ["Production"], "leave_others": True, "name": "A copy"}


def test_vms_of_a_copy_are_made_started_and_destroyed(day):
    made = {"sr": "A copy", "all": True, "isolated": "lab"}
    tasks = [
        ("vm_clone", made),
        ("vm_clone", made),
        ("vm_clone", {**made, "state": "started"}),
        ("vm_clone", {**made, "state": "started"}),
        ("vm_clone", {"sr": "A copy", "all": True, "state": "absent"}),
        ("vm_clone", {"sr": "A copy", "vms": ["web"], "state": "absent", "force": True}),
        ("vm_clone", {"sr": "A copy", "vms": ["web"], "state": "absent", "force": True}),
    ]
    before = day.lab.disks_of(day.web)
    _, *found = day.quickly(attach(day), *tasks)
    assert [each["changed"] for each in found] == [True, False, True, False, False, True, False], found
    (row,) = found[0]["vms"]
    assert (row["name"]["old"], row["status"], row["networks"]["0"]["new"]) == ("web", "cloned", "lab")
    assert found[4]["failed"] and "is not shut down" in found[4]["msg"]
    assert [vm["name_label"] for vm in day.lab.pool.db.records("VM").values()] == ["web", "helper"]
    assert day.lab.disks_of(day.web) == before
    assert not day.lab.pool.db.records("network", name_label="lab")


def test_check_mode_makes_no_vm(day):
    day.quickly(attach(day))
    rows = [{"sr": "A copy", "all": True, "isolated": "lab"}, {"sr": "A copy", "all": True, "state": "started"}]
    for found in day.quickly(*rows, check=True, module="vm_clone"):
        assert found["changed"] and found["vms"][0]["status"] == "would be cloned"
    assert len(day.lab.pool.db.records("VM")) == 2


def test_a_vm_is_restored_and_that_is_undone(day):
    before = day.lab.disks_of(day.web)
    restored = "vm_restore", {"sr": "A copy", "vm": "web", "shutdown": True}
    undone = "vm_restore", {"vm": "web", "state": "undone"}
    _, refused = day.quickly(attach(day), ("vm_restore", {"sr": "A copy", "vm": "web"}))
    first, second = day.tasks(restored, restored, anew=True)
    assert refused["failed"] and "is not halted" in refused["msg"]
    assert first["changed"] and not second["changed"]
    now = day.lab.disks_of(day.web)
    assert set(now) == set(before) and not set(now.values()) & set(before.values())

    third, fourth = day.quickly(undone, undone)
    assert third["changed"] and not fourth["changed"]
    assert day.lab.disks_of(day.web) == before


def test_check_mode_of_a_restore_is_what_would_happen(day):
    """It refuses what would be refused, and says what would change, also of what a run has left."""
    before = day.lab.disks_of(day.web)
    tasks = [
        {"sr": "A copy", "vm": "web"},
        {"sr": "A copy", "vm": "web", "shutdown": True},
        {"vm": "web", "state": "home"},
    ]
    day.quickly(attach(day))
    refused, would, nothing = day.quickly(*tasks, check=True, module="vm_restore")
    assert refused["failed"] and "is not halted" in refused["msg"]
    assert would["changed"] and would["restore"]["status"] == "would be restored"
    assert not nothing["changed"]
    assert day.lab.disks_of(day.web) == before

    day.quickly(tasks[1], module="vm_restore")
    there = day.lab.disks_of(day.web)
    again, at_home = day.quickly(tasks[1], tasks[2], check=True, module="vm_restore")
    assert not again["changed"] and again["restore"]["status"] == "already restored"
    assert at_home["changed"] and at_home["restore"]["status"] == "would be taken home"
    assert day.lab.disks_of(day.web) == there

    done, twice = day.quickly(tasks[2], tasks[2], module="vm_restore")
    assert done["changed"] and not twice["changed"]
    now = day.lab.disks_of(day.web)
    assert {sr for sr, _ in now.values()} == {sr for sr, _ in before.values()} and now != before


def test_a_restored_vm_is_kept_as_it_is(day):
    restored = {"sr": "A copy", "vm": "web", "shutdown": True}
    kept = {"vm": "web", "state": "kept"}
    day.quickly(attach(day), ("vm_restore", restored))
    there = day.lab.disks_of(day.web)
    would = day.now("vm_restore", check=True, **kept)
    assert would["changed"] and would["restore"]["status"] == "would be kept as it is"
    done, twice = day.quickly(kept, kept, module="vm_restore")
    assert done["changed"] and not twice["changed"] and day.lab.disks_of(day.web) == there


def test_a_disk_is_lent_and_taken_back(day):
    lent = "rescue_disk", {"sr": "A copy", "vdi": "data", "vm": "helper"}
    back = "rescue_disk", {"sr": "A copy", "state": "absent"}
    day.quickly(attach(day))
    found = [*day.quickly(lent), *day.tasks(lent, back, anew=True), *day.quickly(back)]
    assert [each["changed"] for each in found] == [True, False, True, False]
    assert found[0]["disks"][0]["mode"] == "RO"
    assert not day.lab.disks_of(day.helper)
