# SPDX-License-Identifier: LGPL-2.1-only
"""vm_clone, vm_restore, rescue_disk: what is there afterwards, that the second time changes nothing, what is refused,
and that what is told is what happened.

Each module is in one playbook with an interpreter of its own, here or in the examples of test_documented.py; what else
it does is the same in this process.
"""

import pytest

from relvmoiscsi.pool import lock, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, save_vms

MADE = {"sr": "A copy", "all": True, "isolated": "lab"}
ABSENT = {"sr": "A copy", "vms": ["web"], "state": "absent", "force": True}
RESTORED = {"sr": "A copy", "vm": "web", "shutdown": True}
LENT = {"sr": "A copy", "vdi": "data", "vm": "helper"}


@pytest.fixture
def day(day):
    """With a copy of Production."""
    made = day.now("lun", scsi_ids=[day.clone], leave_others=True, name="A copy")
    assert not made["failed"]
    return day


def copies(day):
    records = day.lab.pool.db.records("VM")
    return {ref: vm for ref, vm in records.items() if "relvmoiscsi:clone-of" in vm["other_config"]}


def networks(day, vm):
    db = day.lab.pool.db
    return [db.get("network", vif["network"], "name_label") for vif in db.records("VIF", VM=vm).values()]


# --- copies of VMs


def test_vms_of_a_copy_are_made_started_and_destroyed(day):
    before = day.lab.disks_of(day.web)
    for state in ({}, {"state": "started"}):
        would = day.now("vm_clone", True, **MADE, **state)
        assert would["changed"] and would["vms"][0]["status"] == "would be cloned"
    assert not copies(day)
    found = [day.now("vm_clone", **MADE, **state) for state in ({}, {}, {"state": "started"}, {"state": "started"})]
    (row,) = found[0]["vms"]
    assert (row["old_name"], row["status"], row["networks"]["0"]["new_network"]) == ("web", "cloned", "lab")
    kept = day.now("vm_clone", sr="A copy", all=True, state="absent")
    assert kept["failed"] and "is not shut down" in kept["msg"]
    found += [day.now("vm_clone", **ABSENT), day.now("vm_clone", **ABSENT)]
    assert [each["changed"] for each in found] == [True, False, True, False, True, False], found
    assert [vm["name_label"] for vm in day.lab.pool.db.records("VM").values()] == ["web", "helper"]
    assert day.lab.disks_of(day.web) == before and not day.lab.pool.db.records("network", name_label="lab")


def test_a_vm_is_made_of_the_records_that_were_saved_before_the_snapshot(day):
    with connect(day.lab.where(ca=str(day.ca))) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), "2026-11-22T12:00:00Z")
    later = day.now("lun", scsi_ids=[day.lab.clone("Production")], leave_others=True, name="A saved copy")
    assert not later["failed"], later
    wish = {"sr": "A saved copy", "vms": ["web"], "isolated": "lab", "from_snapshot": True}
    told = [day.now("vm_clone", is_check, **wish) for is_check in (True, False)]
    assert [each["vms"][0]["status"] for each in told] == ["would be cloned", "cloned"] and len(copies(day)) == 1, told


@pytest.mark.parametrize("is_check", [True, False])
def test_no_clone_is_destroyed_while_another_client_works_on_the_copy(day, is_check):
    day.now("vm_clone", **MADE)
    with connect(day.lab.where(ca=str(day.ca))) as calls:
        (sr,) = day.lab.pool.db.records("SR", name_label="A copy").values()
        with lock.held(calls, lock.names_of(calls, [sr["uuid"]]), "clone"):
            kept = day.now("vm_clone", is_check, **ABSENT)
    assert kept["failed"] and "clone" in kept["msg"] and len(copies(day)) == 1


@pytest.mark.parametrize("state", ["present", "started"])
@pytest.mark.parametrize("wish", [{"isolated": "lab"}, {"networks": {"office": "lab"}}])
def test_a_copy_on_another_network_is_refused_and_not_started(day, wish, state):
    if "networks" in wish:
        day.lab.network("lab", wire=False)
    day.now("vm_clone", sr="A copy", all=True, same_networks=True)
    ended, check, real = day.both("vm_clone", sr="A copy", all=True, state=state, **wish)
    assert ended == (True, False) and all("'web" in each["msg"] and "office" in each["msg"] for each in (check, real))
    ((ref, vm),) = copies(day).items()
    assert vm["power_state"] == "Halted" and networks(day, ref) == ["office"]
    assert bool(day.lab.pool.db.records("network", name_label="lab")) == ("networks" in wish)


def test_a_copy_is_on_the_network_of_its_original_only_by_a_word(day):
    ended, check, real = day.both("vm_clone", sr="A copy", all=True)
    assert ended == (True, False) and not copies(day)
    for told in (check, real):
        assert "Nothing was changed. Give isolated, networks with each network, or same_networks=true." in told["msg"]
    found = day.now("vm_clone", sr="A copy", all=True, same_networks=True, isolated="lab")
    assert found["failed"] and "mutually exclusive: isolated|networks|same_networks" in found["msg"] and not copies(day)
    found = day.now("vm_clone", sr="A copy", all=True, same_networks=True)
    ((ref, _),) = copies(day).items()
    assert found["changed"] and networks(day, ref) == ["office"]


def test_a_network_without_a_name_is_an_error(day):
    for wish in ({"isolated": ""}, {"isolated": " "}, {"networks": {"office": ""}}, {"networks": {"office": None}}):
        found = day.now("vm_clone", sr="A copy", all=True, state="started", **wish)
        assert found["failed"] and "empty" in found["msg"] and not copies(day)


@pytest.mark.parametrize("state", ["Suspended", "Paused"])
def test_started_is_running(day, state):
    day.now("vm_clone", **MADE, state="started")
    (ref,) = copies(day)
    day.lab.pool.db.set("VM", ref, "power_state", state)
    assert day.both("vm_clone", **MADE, state="started")[0] == (False, True)
    assert copies(day)[ref]["power_state"] == "Running"
    assert not day.now("vm_clone", **MADE, state="started")["changed"]
    day.lab.pool.db.set("VM", ref, "power_state", state)
    assert day.now("vm_clone", **ABSENT)["changed"] and not copies(day)


@pytest.mark.parametrize(
    ("wish", "state", "operation"),
    [
        ({**ABSENT}, "Running", "hard_shutdown"),
        ({**MADE, "state": "started"}, "Halted", "start"),
        ({**MADE, "state": "started"}, "Suspended", "resume"),
    ],
)
def test_an_operation_that_a_user_has_blocked_is_named_also_in_check_mode(day, wish, state, operation):
    day.now("vm_clone", **MADE)
    ((ref, vm),) = copies(day).items()
    day.lab.pool.db.set("VM", ref, "power_state", state)
    day.lab.pool.db.set("VM", ref, "blocked_operations", {operation: "mine"})
    ended, check, real = day.both("vm_clone", **wish)
    said = f"A user has blocked the operation {operation} of the VM {vm['name_label']!r}: 'mine'."
    assert ended == (True, False) and all(said in told["msg"] for told in (check, real)), (check, real)


@pytest.mark.parametrize("module", ["vm_clone", "lun"])
def test_a_clone_that_xapi_does_not_destroy_is_named_also_in_check_mode(day, module):
    day.now("vm_clone", **MADE)
    ((ref, vm),) = copies(day).items()
    wish = {"scsi_ids": [day.clone], "state": "forgotten", "with_vms": True} if module == "lun" else ABSENT
    day.lab.pool.db.set("VM", ref, "other_config", {**vm["other_config"], "default_template": "true"})
    ended, check, real = day.both(module, **wish)
    said = f"The VM {vm['name_label']!r} has the key default_template"
    assert ended == (True, False) and all(said in told["msg"] for told in (check, real)), (check, real)
    for field in ("is_default_template", "is_a_template"):
        day.lab.pool.db.set("VM", ref, field, True)
    day.lab.pool.db.set("VM", ref, "other_config", vm["other_config"])
    ended, check, real = day.both(module, **wish)
    assert ended == (True, False) and all("VM_IS_TEMPLATE" in told["msg"] for told in (check, real)), (check, real)


def test_an_sr_of_no_vm_has_no_copies(day):
    for ref in list(day.lab.pool.db.records("VBD")):
        day.lab.pool.db.destroy("VBD", ref)
    found = day.now("vm_clone", **MADE)
    assert not found["failed"] and found["vms"] == [] and "No VM" in str(found["warnings"])
    assert day.now("vm_clone", sr="A copy", vms=["web"])["failed"]


# --- restored


def test_a_vm_is_restored_and_that_is_undone_and_check_mode_says_what_would_happen(day):
    """It refuses what would be refused, also of what a run has left."""
    before = day.lab.disks_of(day.web)
    ended, _, refused = day.both("vm_restore", sr="A copy", vm="web")
    assert ended == (True, False) and "is not halted" in refused["msg"]
    would = day.now("vm_restore", True, **RESTORED)
    assert would["changed"] and would["restore"]["status"] == "would be restored"
    assert not day.now("vm_restore", True, vm="web", state="home")["changed"]
    assert day.lab.disks_of(day.web) == before

    first, second = day.tasks(RESTORED, RESTORED, module="vm_restore", anew=True)
    assert first["changed"] and not second["changed"]
    there = day.lab.disks_of(day.web)
    assert set(there) == set(before) and not set(there.values()) & set(before.values())
    assert day.now("vm_restore", True, **RESTORED)["restore"]["status"] == "already restored"
    assert [day.now("vm_restore", vm="web", state="undone")["changed"] for _ in range(2)] == [True, False]
    assert day.lab.disks_of(day.web) == before


def test_a_vm_with_a_disk_of_a_copy_and_no_journal_is_neither_undone_nor_home(day):
    day.now("vm_restore", **RESTORED)
    assert day.now("vm_restore", vm="web", state="kept", on_copy=True)["changed"]
    for state in ("undone", "home"):
        told = day.now("vm_restore", vm="web", state=state)
        assert told["failed"] and "has disks of a copy" in told["msg"] and not told["changed"]
    assert day.now("vm_restore", vm="web", state="kept")["restore"]["status"] == "not restored"


@pytest.mark.parametrize("state, told", [("kept", "would be kept as it is"), ("home", "would be taken home")])
def test_a_restored_vm_is_kept_as_it_is_or_taken_home(day, state, told):
    before = day.lab.disks_of(day.web)
    day.now("vm_restore", **RESTORED)
    there, wish = day.lab.disks_of(day.web), {"vm": "web", "state": state}
    if state == "kept":
        assert "add on_copy" in str(day.now("vm_restore", **wish)) and day.lab.disks_of(day.web) == there
        wish["on_copy"] = True
    would = day.now("vm_restore", True, **wish)
    assert would["changed"] and would["restore"]["status"] == told and day.lab.disks_of(day.web) == there
    assert [day.now("vm_restore", **wish)["changed"] for _ in range(2)] == [True, False]
    now = day.lab.disks_of(day.web)
    if state == "kept":
        assert now == there
    else:
        assert {sr for sr, _ in now.values()} == {sr for sr, _ in before.values()} and now != before


def test_a_journal_that_cannot_be_read_is_removed(day):
    """Until then, the copy cannot be discarded."""
    uuid = day.lab.pool.db.records("SR", name_label="A copy").popitem()[1]["uuid"]
    journal = {"relvmoiscsi:restore:0": f"no journal of {uuid}"}
    day.lab.pool.db.set("VM", day.web, "other_config", journal)
    assert "were restored from the SR 'A copy'" in str(day.now("lun", state="forgotten", srs=["A copy"]))
    assert [day.now("vm_restore", vm="web", state="kept")["changed"] for _ in range(2)] == [True, False]
    assert day.lab.pool.db.get("VM", day.web, "other_config") == {}


def test_a_restore_that_was_cut_has_changed_the_vm(day):
    day.refuses("VBD.create")
    cut = day.now("vm_restore", **RESTORED)
    assert cut["failed"] and cut["changed"] and cut["diff"]["before"] != cut["diff"]["after"]
    assert day.lab.pool.db.get("VM", day.web, "power_state") == "Halted"
    day.lab.pool.api.before = None
    assert day.now("vm_restore", **RESTORED)["changed"]
    refused = day.now("vm_restore", **RESTORED, disks=["7"])
    assert refused["failed"] and not refused["changed"]


# --- lent


def test_a_disk_is_lent_and_taken_back(day):
    back = {"sr": "A copy", "state": "absent"}
    found = [day.now("rescue_disk", **LENT)]
    ended, _, otherwise = day.both("rescue_disk", **LENT, writable=True)
    assert ended == (True, False) and "first: `relvmoiscsi pool rescue --done " in otherwise["msg"]
    for gone in ({"vm": "gone"}, {"vdi": "gone"}):
        nothing = day.now("rescue_disk", **back, **gone)
        assert not nothing["failed"] and not nothing["changed"]
    found += [*day.tasks(LENT, back, module="rescue_disk", anew=True), day.now("rescue_disk", **back)]
    assert [each["changed"] for each in found] == [True, False, True, False]
    assert found[0]["disks"][0]["mode"] == "RO" and not day.lab.disks_of(day.helper)


def test_a_lock_that_stays_is_a_warning_of_the_module(day, monkeypatch):
    monkeypatch.setattr(lock, "RELEASE_SECONDS", 0.01)
    with day.lab.cut("pool.remove_from_other_config"):
        lost = day.now("rescue_disk", **LENT)
    (said,) = [text for text in map(str, lost["warnings"]) if "the lock of this run on" in text]
    assert not lost["failed"] and "`relvmoiscsi pool unlock " in said
