# SPDX-License-Identifier: LGPL-2.1-only
"""One disk of a copy for a VM that looks into it, and back."""

import re

import pytest

from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from kit.pool_verbs import run, second_copy
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.vms import inventory, rescue, restore


def lend(day, text, vm, rw=False, **more):
    return run(day, lambda calls, found, copy: rescue.lend(calls, found, copy, rescue.find(copy, text), vm, rw, **more))


def take_back(day, vdi=None, vm=None):
    def work(calls, found, copy):
        ref = rescue.find(copy, vdi) if vdi else None
        rows = rescue.take_back(calls, found, copy, rescue.lent(found, copy, ref, vm))
        for row in rows:
            if row.error is not None:
                raise row.error
        return rows

    return run(day, work)


@pytest.fixture
def helper(day):
    """A VM that takes disks while it runs, also to read alone: it is no HVM."""
    return day.lab.vm("helper", day.lab.vdi("Testing", "data")[0], state="Running", domain_type="pv_in_pvh")


def test_a_running_vm_sees_it_at_once_read_only(day, helper):
    before = day.db.records("VBD")
    done = lend(day, "root disk", helper)
    ((ref, vbd),) = [item for item in day.db.records("VBD").items() if item[0] not in before]

    assert (done.status, done.mode, done.userdevice) == ("lent", "RO", "1")
    assert (vbd["VM"], vbd["VDI"], vbd["mode"], vbd["currently_attached"]) == (helper, day.new(day.root), "RO", True)
    assert lend(day, "root disk", helper).status == "already lent" and len(day.db.refs("VBD")) == len(before) + 1
    (back,) = take_back(day)
    assert back.status == "taken back" and day.db.records("VBD") == before and ref not in day.db.refs("VBD")
    with pytest.raises(NotFound, match="No such disk of 'Production 2026-11-22' is lent"):
        take_back(day)


def test_it_is_named_by_its_uuid_or_that_of_the_original(day, helper):
    old, new = (day.db.get("VDI", ref, "uuid") for ref in (day.root, day.new(day.root)))
    assert lend(day, old, helper, dry_run=True).vdi == lend(day, new, helper, dry_run=True).vdi == new
    assert lend(day, "before", helper, dry_run=True).status == "would be lent"
    for text in ("nothing", day.db.get("VDI", day.lab.vdi("Testing", "data")[0], "uuid")):
        with pytest.raises(NotFound):
            lend(day, text, helper)


def test_to_write_and_to_a_halted_vm(day, helper):
    day.lab.pool.api.vms.vm_hard_shutdown("", helper)
    done = lend(day, "data", helper, rw=True)
    vbd = day.db.record("VBD", day.db.refs("VBD", VDI=day.new(day.data))[0])
    assert done.mode == vbd["mode"] == "RW" and not vbd["currently_attached"]
    for dry_run in (True, False):
        with pytest.raises(Refused, match="already has this disk, in another mode"):
            lend(day, "data", helper, dry_run=dry_run)
    assert [each.name for each in take_back(day, "data", helper)] == ["data"]


def test_a_run_that_was_cut_before_the_plug_is_finished(day, helper):
    def dies(name, _params):
        if name == "Async.VBD.plug":
            raise GoneAway()

    day.lab.pool.api.before = dies
    with pytest.raises(PoolFailure, match="closed the connection"):
        lend(day, "data", helper)
    day.lab.pool.api.before = None
    assert lend(day, "data", helper).status == "lent" and len(day.db.refs("VBD", VDI=day.new(day.data))) == 1


def test_what_a_running_vm_does_not_take_it_has_not_at_its_next_boot(day):
    vm = day.lab.vm("windows", day.lab.vdi("Testing", "data")[0], state="Running", tools=False)
    before = day.db.records("VBD")
    words = "has no PV drivers: the pool can plug disks only while the VM is shut down."
    with pytest.raises(PoolFailure, match=re.escape(words)) as refused:
        lend(day, "root disk", vm, rw=True)
    assert "The disk was removed from the VM 'windows'." in str(refused.value) and day.db.records("VBD") == before
    day.lab.pool.api.vms.vm_hard_shutdown("", vm)
    assert lend(day, "root disk", vm, rw=True).status == "lent"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_running_hvm_vm_is_offered_no_read_only_disk(day, dry_run):
    vm = day.lab.vm("windows", day.lab.vdi("Testing", "data")[0], state="Running")
    with pytest.raises(Refused, match="A running HVM VM cannot get a read-only disk. Shut the VM down"):
        lend(day, "root disk", vm, dry_run=dry_run)
    assert "VBD.create" not in day.lab.pool.api.calls

    vms = day.lab.pool.api.vms
    vms.vm_hard_shutdown("", vm)
    assert lend(day, "root disk", vm).status == "lent"
    vms.vm_start("", vm)
    assert lend(day, "root disk", vm, dry_run=dry_run).status == "already lent"


def test_a_vm_that_is_started_meanwhile_does_not_keep_a_read_only_disk(day):
    vm = day.lab.vm("windows", day.lab.vdi("Testing", "data")[0], state="Running", domain_type="pv")
    before = day.db.records("VBD")

    def now_hvm(name, _params):
        if name == "VBD.create":
            day.db.set("VM", vm, "domain_type", "hvm")

    day.lab.pool.api.before = now_hvm
    with pytest.raises(PoolFailure, match="cannot get a read-only disk.* The disk was removed from the VM 'windows'."):
        lend(day, "root disk", vm)
    assert day.db.records("VBD") == before


def test_a_guest_without_drivers_gives_it_back_when_it_is_shut_down(day):
    vm = day.lab.vm("windows", day.lab.vdi("Testing", "data")[0], tools=False)
    lend(day, "data", vm)
    vms = day.lab.pool.api.vms
    vms.vm_start("", vm)
    with pytest.raises(PoolFailure, match="only while the VM is shut down. Shut the VM down"):
        take_back(day)
    vms.vm_hard_shutdown("", vm)
    assert [each.status for each in take_back(day)] == ["taken back"]


def test_never_two_writers(day, helper):
    (copy,) = day.clone("web")
    new = day.db.by_uuid("VM", copy.uuid)
    with pytest.raises(Refused, match="is a disk of the VM 'web 2026-11-22': two VMs must not"):
        lend(day, "root disk", helper, rw=True)
    with pytest.raises(Refused, match="two VMs must not"):
        lend(day, "root disk", new, rw=True)
    assert lend(day, "root disk", helper).mode == "RO"
    take_back(day)
    day.lab.pool.api.vms.vm_start("", new)
    with pytest.raises(Refused, match="two VMs must not use one disk"):
        lend(day, "root disk", helper)


def test_not_to_the_vm_that_has_the_original(day):
    before = day.db.records("VBD")
    with pytest.raises(Refused, match="The VM 'web' has the original of this disk"):
        lend(day, "root disk", day.web, dry_run=True)
    assert day.db.records("VBD") == before


@pytest.mark.parametrize("what", ["another has it", "its VM was started", "its VM is moved"])
def test_what_has_changed_since_the_question(day, helper, what):
    """A restored VM has the disk and is halted: it may be read, as long as that stays so."""
    new = day.new(day.root)
    owner = day.lab.vm("owner", new)

    def meanwhile(calls, found, copy):
        if what == "another has it":
            day.lab.vm("third", new)
        elif what == "its VM was started":
            day.lab.pool.api.vms.vm_start("", owner)
        else:
            day.db.set("VM", owner, "current_operations", {"OpaqueRef:1": "migrate_send"})
        return rescue.lend(calls, found, copy, new, helper, False)

    with pytest.raises(
        Refused, match="has just attached this disk|and is running meanwhile|The pool is busy with the VM 'owner'"
    ):
        run(day, meanwhile)
    assert helper not in [vbd["VM"] for vbd in day.db.records("VBD", VDI=new).values()]


def test_a_guest_that_does_not_let_go_keeps_it(day, helper):
    lend(day, "data", helper)

    def fails(_session, _vbd):
        raise XenError("DEVICE_DETACH_REJECTED", "VBD", "x", "the guest has it mounted")

    day.lab.pool.api._methods["VBD.unplug"] = fails
    with pytest.raises(PoolFailure, match="the guest has it mounted"):
        take_back(day)
    assert day.db.refs("VBD", VDI=day.new(day.data))


# --- what is not lent, and what must not be


def copied(day, helper, vm, vdi):
    """VM.clone and VM.snapshot take VBD.other_config along. Source: xen-api ocaml/xapi/xapi_vbd_helpers.ml, copy."""
    (vbd,) = [row for row in day.db.records("VBD", VM=helper).values() if rescue.LENT in row["other_config"]]
    return day.db.create("VBD", VM=vm, VDI=vdi, userdevice="1", other_config=vbd["other_config"])


def test_a_snapshot_or_a_clone_of_the_helper_keeps_its_disk(day, helper):
    lend(day, "data", helper, rw=True)
    own = day.db.create("VDI", SR=day.sr, location="own", managed=True, name_label="data")
    vbds = [copied(day, helper, day.lab.snapshot(helper, "mine"), own)]
    vbds += [copied(day, helper, day.lab.vm("my experiment", state="Running"), own)]
    assert len(take_back(day)) == 1
    assert all(day.db.exists("VBD", vbd) for vbd in vbds)


def test_one_that_is_mounted_keeps_no_other(day, helper):
    lend(day, "root disk", helper), lend(day, "data", helper)
    held = [ref for ref, row in day.db.records("VBD", VM=helper).items() if rescue.LENT in row["other_config"]][0]
    vms = day.lab.pool.api.vms

    def unplug(session, vbd):
        if vbd == held:
            raise XenError("DEVICE_DETACH_REJECTED", "VBD", vbd, "busy")
        vms.vbd_unplug(session, vbd)

    day.lab.pool.api._methods["VBD.unplug"] = unplug
    found = run(day, lambda calls, found, copy: rescue.take_back(calls, found, copy, rescue.lent(found, copy)))
    assert sorted(each.status for each in found) == ["failed", "taken back"]
    (error,) = [each.facts()["error"] for each in found if each.error]
    assert "Unmount the disk in the guest of 'helper', then repeat the command." in error


def lend_of(day, sr, text, vm):
    def work(calls, found, _):
        copy = inventory.copy_of(records.read(calls), found, sr)
        return rescue.lend(calls, found, copy, rescue.find(copy, text), vm, False)

    return run(day, work)


def test_not_beside_another_copy_of_the_same_disk(day, helper):
    second = second_copy(day)
    (clone,) = day.clone("web")
    lend(day, "root disk", helper)
    with pytest.raises(Refused, match="The VM 'helper' has this or another copy of this disk"):
        lend_of(day, second, "root disk", helper)
    assert lend_of(day, second, "data", helper).status == "lent"
    with pytest.raises(Refused, match="has this or another copy of this disk"):
        lend_of(day, second, "root disk", day.db.by_uuid("VM", clone.uuid))


def test_not_to_a_vm_that_was_restored_from_it_or_from_another(day):
    day.lab.pool.api.vms.vm_hard_shutdown("", day.web)
    second = second_copy(day)
    run(day, lambda calls, found, copy: restore.restore(calls, day.web, restore.plan(found, copy, day.web, [], "then")))
    for sr in (day.sr, second):
        with pytest.raises(Refused, match="The VM 'web' has this or another copy of this disk"):
            lend_of(day, sr, "root disk", day.web)
