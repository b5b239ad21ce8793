# SPDX-License-Identifier: LGPL-2.1-only
"""vm_clone, vm_restore and rescue_disk, in this process: what is refused, and that what is told is what happened."""

import pytest

from kit.pool.errors import XenError

MADE = {"sr": "A copy", "all": True, "isolated": "lab"}


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


def refuses(day, method, code="INTERNAL_ERROR"):
    def before(called, _params):
        if called == method:
            raise XenError(code, "no")

    day.lab.pool.api.before = before


# --- networks


@pytest.mark.parametrize("state", ["present", "started"])
@pytest.mark.parametrize("wish", [{"isolated": "lab"}, {"networks": {"office": "lab"}}])
def test_a_copy_on_another_network_is_refused_and_not_started(day, wish, state):
    if "networks" in wish:
        day.lab.network("lab", wire=False)
    day.now("vm_clone", sr="A copy", all=True)
    for check in (True, False):
        found = day.now("vm_clone", check, sr="A copy", all=True, state=state, **wish)
        assert found["failed"] and not found["changed"] and "'web" in found["msg"] and "office" in found["msg"]
    ((ref, vm),) = copies(day).items()
    assert vm["power_state"] == "Halted" and networks(day, ref) == ["office"]
    assert bool(day.lab.pool.db.records("network", name_label="lab")) == ("networks" in wish)


def test_a_copy_on_the_networks_that_are_asked_for_is_started(day):
    day.lab.network("lab", wire=False)
    wish = {"sr": "A copy", "all": True, "networks": {"office": "lab"}}
    day.now("vm_clone", **wish)
    found = day.now("vm_clone", **wish, state="started")
    assert found["changed"] and not found["failed"]


EMPTY = [{"isolated": ""}, {"isolated": " "}, {"networks": {"office": ""}}, {"networks": {"office": None}}]


@pytest.mark.parametrize("wish", EMPTY)
def test_a_network_without_a_name_is_an_error(day, wish):
    found = day.now("vm_clone", sr="A copy", all=True, state="started", **wish)
    assert found["failed"] and "empty" in found["msg"] and not copies(day)


# --- started


@pytest.mark.parametrize("state", ["Suspended", "Paused"])
def test_started_is_running(day, state):
    day.now("vm_clone", **MADE, state="started")
    (ref,) = copies(day)
    day.lab.pool.db.set("VM", ref, "power_state", state)
    check, found, again = (day.now("vm_clone", check, **MADE, state="started") for check in (True, False, False))
    assert [each["changed"] for each in (check, found, again)] == [True, True, False]
    assert copies(day)[ref]["power_state"] == "Running"
    day.lab.pool.db.set("VM", ref, "power_state", state)
    gone = day.now("vm_clone", sr="A copy", all=True, state="absent", force=True)
    assert gone["changed"] and not copies(day)


def test_a_start_that_fails_is_no_change(day):
    refuses(day, "Async.VM.start", "HOST_NOT_ENOUGH_FREE_MEMORY")
    first, second = (day.now("vm_clone", **MADE, state="started") for _ in range(2))
    assert first["failed"] and first["changed"] and second["failed"] and not second["changed"]


def test_an_sr_of_no_vm_has_no_copies(day):
    for ref in list(day.lab.pool.db.records("VBD")):
        day.lab.pool.db.destroy("VBD", ref)
    found = day.now("vm_clone", **MADE)
    assert not found["failed"] and found["vms"] == [] and "No VM" in str(found["warnings"])
    assert day.now("vm_clone", sr="A copy", vms=["web"])["failed"]


# --- absent


def test_one_of_two_copies_goes_and_the_other_runs_on(day):
    snapshot, _ = day.lab.vdi("Production", "before")
    day.lab.vm("db", snapshot)
    day.now("vm_clone", **MADE, state="started")
    found = day.now("vm_clone", sr="A copy", vms=["web"], state="absent", force=True)
    assert found["changed"] and not found["failed"] and len(found["vms"]) == 1
    ((_, left),) = copies(day).items()
    assert left["name_label"].startswith("db") and left["power_state"] == "Running"


# --- restored, lent


def test_a_restore_that_was_cut_has_changed_the_vm(day):
    wish = {"sr": "A copy", "vm": "web", "shutdown": True}
    refuses(day, "VBD.create")
    cut = day.now("vm_restore", **wish)
    assert cut["failed"] and cut["changed"] and cut["diff"]["before"] != cut["diff"]["after"]
    assert day.lab.pool.db.get("VM", day.web, "power_state") == "Halted"
    day.lab.pool.api.before = None
    assert day.now("vm_restore", **wish)["changed"]
    refused = day.now("vm_restore", **{**wish, "disks": ["7"]})
    assert refused["failed"] and not refused["changed"]


def test_check_mode_refuses_a_disk_that_is_lent_otherwise(day):
    lent = {"sr": "A copy", "vdi": "data", "vm": "helper"}
    day.now("rescue_disk", **lent)
    for check in (True, False):
        found = day.now("rescue_disk", check, **lent, writable=True)
        assert found["failed"] and "state: absent" in found["msg"]


@pytest.mark.parametrize("wish", [{"vm": "gone"}, {"vdi": "gone"}])
def test_a_vm_that_is_gone_has_no_disk(day, wish):
    day.now("rescue_disk", sr="A copy", vdi="data", vm="helper")
    found = day.now("rescue_disk", sr="A copy", state="absent", **wish)
    assert not found["failed"] and not found["changed"]
