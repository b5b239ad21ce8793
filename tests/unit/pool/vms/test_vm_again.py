# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs, again: none twice, none half, and nothing of others destroyed."""

import pytest

from kit.pool import transfer
from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import forget
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE


def test_the_same_again_makes_no_second_one(day):
    (first,) = day.clone("web")
    before = sorted(day.db.refs("VM"))
    (again,) = day.clone("web", name="another name")

    assert (again.status, again.uuid, again.name) == (ALREADY, first.uuid, first.name)
    assert sorted(day.db.refs("VM")) == before


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_it_is_startable_only_if_right_and_the_next_run_makes_no_second(day, deaths):
    day.lab.snapshot(day.web, "before the update", day.lab.vdi("Production", "before")[0])
    before, templates = day.originals(), 0
    macs = [vif["MAC"] for vif in day.db.records("VIF", VM=day.web).values()]
    words = {"isolated": "nowhere", "keep_mac": True, "snapshots": True}
    disks = sorted(day.expected(day.web).items())
    for _ in deaths(lambda: day.clone("web", **words)):
        day.lab.later()
        for found in day.copies():
            (vm,) = day.db.records("VM", name_label=found[0]).values()
            templates += vm["is_a_template"]  # xapi starts none
            assert vm["is_a_template"] or found[:3] == ("web 2026-11-22", disks, macs)
        (done,) = day.clone("web", **words)
        assert done.error is None and "start" in day.vm(done.uuid)["allowed_operations"]
        assert day.copies() == [("web 2026-11-22", disks, macs, True)]
        after = day.originals()
        assert all(set(after[table]) == set(before[table]) for table in ("VM", "VBD", "VIF", "VTPM", "VDI"))
    assert templates


def killed_while_importing(day):
    """A client that was killed when it had sent everything: gives what xapi still has to do."""
    api = day.lab.pool.api

    def cut(method, _params):
        if method == "PUT /import_metadata" and api.transfer.imports:
            raise GoneAway()

    api.before = cut
    (failed,) = day.clone("web")
    assert failed.status == FAILED
    api.before = None
    day.lab.later()
    ((_, objects),) = api.transfer.imports
    return lambda: transfer._Import(day.db, api.vms, objects, {}, None).run()


def test_an_import_of_a_killed_client_that_ends_late_is_told_and_left(day):
    """xapi ends that import while the next run is under way: a template is left, which nobody can start."""
    rest = killed_while_importing(day)

    def finish(method, _params):
        if method == "VM.add_to_other_config":
            day.lab.pool.api.before = None
            rest()

    day.lab.pool.api.before = finish
    (done,) = day.clone("web")
    assert done.status == MADE and sorted(each[3] for each in day.copies()) == [False, True]
    (again,) = day.clone("web")
    assert (again.status, again.uuid) == (ALREADY, done.uuid)
    assert "an earlier run also left an unfinished copy" in again.notes[-1] and "xe vm-destroy" in again.notes[-1]


def test_an_import_that_is_under_way_is_waited_for(day):
    rest = killed_while_importing(day)
    (task,) = [
        ref for ref, row in day.db.records("task", status="pending").items() if "has a copy" in row["name_label"]
    ]
    waited = []

    def end(method, params):
        if method == "event.from" and params[1] == ["task/" + task] and params[2]:
            waited.append(task)
            rest()
            day.db.set("task", task, "status", "success")

    day.lab.pool.api.before = end
    (done,) = day.clone("web", patience=0.2)
    assert waited == [task] and done.status == MADE and len(day.copies()) == 1


def test_disks_that_another_vm_gets_meanwhile_are_its_own(day):
    """Ten VMs take minutes, and the pool was read before the first. A person's VM gets the disk during the import."""
    for vbd in day.db.refs("VBD", VM=day.web):
        day.db.set("VBD", vbd, "currently_attached", False)
    seen = []

    def come(method, _params):
        if method == "PUT /import_metadata":
            seen.append(method)
            if len(seen) == 2:  # the first one is the dry run
                day.lab.pool.api.before = None
                take(day)

    day.lab.pool.api.before = come
    (done,) = day.clone("web")
    assert done.status == FAILED and "is a disk of the VM 'forensics' meanwhile" in str(done.error)
    assert day.copies() == []


def take(day):
    day.lab.vm("forensics", day.new(day.data))


def test_restored_meanwhile_it_keeps_its_disks(day):
    day.lab.pool.api.transfer.fail_import = lambda _objects: restored_in_between(day)
    (done,) = day.clone("web")
    assert done.status == FAILED and "is a disk of the VM 'web' meanwhile" in str(done.error)
    assert day.copies() == [] and {sr for sr, _ in day.lab.disks_of(day.web).values()} == {day.sr}


def restored_in_between(day):
    """What `restore` leaves: its own look at the disks is before this one's import."""
    for number, vdi in (("0", day.root), ("1", day.data)):
        (vbd,) = day.db.refs("VBD", VM=day.web, userdevice=number)
        day.db.set("VBD", vbd, "VDI", day.new(vdi))


def is_copy(vm):
    return "relvmoiscsi:clone-of" in vm["other_config"]


def half(day):
    """A copy that a run has left, killed before the last mark."""

    def cut(method, _params):
        if method == "VM.add_to_other_config":
            raise GoneAway()

    day.lab.pool.api.before = cut
    (failed,) = day.clone("web")
    day.lab.pool.api.before = None
    day.lab.later()
    assert failed.status == FAILED
    (vm,) = [ref for ref, each in day.db.records("VM").items() if is_copy(each)]
    return vm


def test_what_a_run_has_left_half_is_verified_and_finished(day):
    """And not destroyed: it may have been started, and the guest has written since."""
    vm = half(day)
    day.lab.pool.api.vms.vm_start("", vm)
    (running,) = day.clone("web")
    assert (
        running.status == FAILED
        and "unfinished: the copy is not halted, or HA is on. The VM was not changed." in str(running.error)
    )
    day.lab.pool.api.vms.vm_hard_shutdown("", vm)
    (again,) = day.clone("web")
    assert (again.status, again.uuid) == (MADE, day.db.get("VM", vm, "uuid")) and len(day.copies()) == 1


def test_a_half_copy_that_has_another_disk_stays_and_is_told(day):
    vm = half(day)
    other = day.lab.vdi("Testing", "data")[0]
    day.lab.pool.api.vms.vbd_create("", {"VM": vm, "VDI": other, "userdevice": "7", "mode": "RW"})
    before = day.db.record("VM", vm)
    (again,) = day.clone("web")
    assert again.status == FAILED and "unfinished: its disk 7 is not on the copy. The VM was not changed." in str(
        again.error
    )
    assert before["uuid"] in str(again.error) and day.db.record("VM", vm) == before
    assert "xe vm-destroy, never vm-uninstall or template-uninstall" in str(again.error)


def test_a_copy_that_was_reverted_to_its_snapshot_is_still_one(day):
    """xapi gives it the snapshot's other_config, and disks with other UUIDs (xapi_vm_snapshot.ml)."""
    day.lab.snapshot(day.web, "before the update", day.lab.vdi("Production", "before")[0])
    (done,) = day.clone("web", snapshots=True)
    db, vm = day.db, day.db.by_uuid("VM", done.uuid)
    (snapshot,) = db.get("VM", vm, "snapshots")
    db.set("VM", vm, "other_config", db.get("VM", snapshot, "other_config"))
    for vbd in db.refs("VBD", VM=vm, type="Disk"):
        device = db.get("VBD", vbd, "userdevice")
        db.set("VBD", vbd, "VDI", db.create("VDI", SR=day.sr, location="reverted " + device, managed=True))
    (again,) = day.clone("web", snapshots=True)
    assert (again.status, again.uuid) == (ALREADY, done.uuid)


def test_a_vm_elsewhere_with_the_marks_of_a_copy_is_none(day):
    """A backup tool, or VM.copy, has put it onto another SR, marks and all; the copy itself is gone."""
    (done,) = day.clone("web")
    vm = day.db.by_uuid("VM", done.uuid)
    day.lab.vm("web, from a backup", day.lab.vdi("Testing", "data")[0], other_config=day.vm(done.uuid)["other_config"])
    day.lab.pool.api.vms.vm_destroy("", vm)
    (again,) = day.clone("web")
    assert again.status == MADE and again.name == "web 2026-11-22"


def test_a_copy_that_has_lost_its_disks_is_none_and_is_told(day):
    """The copy was discarded without its VMs, and the same LUN attached again."""
    (done,) = day.clone("web")
    with connect(day.lab.where()) as calls:
        forget.discard(calls, records.read(calls), day.sr)
    day.lab.attach(day.copy.scsi_id)
    day.sr = day.db.by_uuid("SR", day.copy.sr_uuid)
    (again,) = day.clone("web")
    assert again.status == MADE and day.lab.disks_of(day.db.by_uuid("VM", again.uuid)) == day.expected(day.web)
    assert done.uuid in again.notes[-1] and "is an older copy of this VM" in again.notes[-1]
    assert day.db.refs("VM", uuid=done.uuid)


def test_a_scan_that_fails_at_the_end_is_a_note(day):
    def fails(_session, _sr):
        raise XenError("SR_BACKEND_FAILURE_40", "", "The SR scan failed", "")

    day.lab.pool.api._methods["SR.scan"] = fails
    (done,) = day.clone("web")
    assert done.status == MADE and "the final scan of the copy failed" in done.notes[-1]


def test_an_import_that_fails_leaves_nothing(day):
    before = day.originals()

    def fail(_objects):
        raise XenError("IMPORT_ERROR", "the disk is full")

    day.lab.pool.api.transfer.fail_import = fail
    (done,) = day.clone("web")
    assert done.status == FAILED and "the disk is full" in str(done.error) and day.copies() == []
    assert day.originals() == before


def test_a_task_of_another_that_does_not_end_is_waited_for_and_left(day):
    """It may be that of a client that was killed before it sent anything, or a pool that is busy: none can tell."""
    uuid = day.db.get("VM", day.web, "uuid")
    task = day.db.create("task", name_label=f"relvmoiscsi: {day.copy.sr_uuid} has a copy of {uuid}")
    (done,) = day.clone("web")
    assert done.status == MADE and day.db.get("task", task, "uuid") in done.notes[-1]
    assert "is still active" in done.notes[-1]
    (again,) = day.clone("web")
    assert again.status == ALREADY and day.db.exists("task", task)
