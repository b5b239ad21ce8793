# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs, again: none twice, none half, and nothing of others destroyed."""

import pytest

from kit.pool import transfer
from kit.pool.errors import XenError
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms.clone import ALREADY, FAILED, MADE


def test_the_same_again_makes_no_second_one(day):
    (first,) = day.clone("web")
    before = day.rows()
    (again,) = day.clone("web", name="another name")
    assert (again.status, again.uuid, again.name) == (ALREADY, first.uuid, first.name) and day.rows() == before


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_it_is_startable_only_if_right_and_the_next_run_makes_no_second(day, deaths):
    day.snapshot()
    before, templates = day.originals(), 0
    macs = [vif["MAC"] for vif in day.db.records("VIF", VM=day.web).values()]
    words = {"isolated": "nowhere", "keep_mac": True, "snapshots": True}
    disks = sorted(day.expected(day.web).items())
    for _ in deaths(lambda: day.clone("web", **words)):
        day.lab.later()
        for found in day.copies():
            (vm,) = day.db.records("VM", name_label=found[0]).values()
            templates += vm["is_a_template"]  # xapi starts none
            assert vm["is_a_template"] or found[:3] == ("web on Production changed 2026-11-21", disks, macs)
        done = day.clone_one(**words)
        assert done.error is None and "start" in day.vm(done.uuid)["allowed_operations"]
        assert day.copies() == [("web on Production changed 2026-11-21", disks, macs, True)]
        after = day.originals()
        assert all(set(after[table]) == set(before[table]) for table in ("VM", "VBD", "VIF", "VTPM", "VDI"))
    assert templates


# --- an import that goes on


def killed_while_importing(day):
    """A client that was killed when it had sent everything: gives what xapi still has to do."""
    with day.lab.cut("PUT /import_metadata", 2):  # the first one is the dry run
        assert day.clone_one().status == FAILED
    day.lab.later()
    ((_, objects),) = day.lab.pool.api.transfer.imports
    return lambda: transfer._Import(day.db, day.lab.pool.api.vms, objects, {}, None).run()


def test_an_import_of_a_killed_client_that_ends_late_is_told_and_left(day):
    """xapi ends that import while the next run is under way: a template is left, which nobody can start."""
    rest = killed_while_importing(day)
    day.lab.before("VM.add_to_other_config", rest)
    done = day.clone_one()
    assert done.status == MADE and sorted(each[3] for each in day.copies()) == [False, True]
    again = day.clone_one()
    assert (again.status, again.uuid) == (ALREADY, done.uuid)
    assert "an earlier run also left an unfinished copy" in again.notes[-1] and "xe vm-destroy" in again.notes[-1]


def task_of_operator(day, vm_uuid):
    """A task that only a vm-operator, or a higher role, can make: read-only users may not write this key."""
    label, marks = f"relvmoiscsi: import of a VM onto the copy {day.copy.sr_uuid}", {"applies_to": day.sr}
    return day.db.create("task", name_label=label, name_description=vm_uuid, other_config=marks)


def test_an_import_that_is_under_way_is_waited_for(day):
    rest = killed_while_importing(day)
    (task,) = [
        ref for ref, row in day.db.records("task", status="pending").items() if "onto the copy" in row["name_label"]
    ]
    waited = []

    def end(method, params):
        if method == "event.from" and params[1] == ["task/" + task] and params[2]:
            waited.append(task)
            rest()
            day.db.set("task", task, "status", "success")

    day.lab.pool.api.before = end
    done = day.clone_one(patience=0.2)
    assert waited == [task] and done.status == MADE and len(day.copies()) == 1


def test_a_task_of_another_that_does_not_end_is_waited_for_and_left(day):
    """It may be that of a client that was killed before it sent anything, or a pool that is busy: none can tell."""
    uuid = day.db.get("VM", day.web, "uuid")
    task = task_of_operator(day, uuid)
    done = day.clone_one()
    assert done.status == MADE and day.db.get("task", task, "uuid") in done.notes[-1]
    assert "is still active" in done.notes[-1]
    assert day.clone_one().status == ALREADY and day.db.exists("task", task)


def test_a_task_of_another_that_goes_during_the_wait_has_ended(day):
    """A vm-operator makes such a task, and destroys it: that is no restart of the toolstack."""
    task = task_of_operator(day, day.db.get("VM", day.web, "uuid"))
    day.lab.before("event.from", lambda: day.db.destroy("task", task))
    done = day.clone_one()
    assert done.status == MADE and not done.notes and not day.db.exists("task", task)


def test_tasks_of_others_delay_a_run_once_and_few_are_looked_at(day, monkeypatch):
    """A vm-operator can make any number of tasks, for each VM. A read-only user can, for the pool's answer."""
    db_vm = day.lab.vm("db", day.lab.vdi("Production", "before")[0])
    for uuid in (day.db.get("VM", vm, "uuid") for vm in (day.web, db_vm)):
        for _ in range(25):
            task_of_operator(day, uuid)
    deadlines, wait, asked, call = [], Calls.wait, [], Calls.call
    monkeypatch.setattr(Calls, "call", lambda calls, *words: asked.append(words[0]) or call(calls, *words))

    def waited(calls, name, *more, **others):
        if name == "the import of an earlier run":
            deadlines.append(more[1])
        return wait(calls, name, *more, **others)

    monkeypatch.setattr(Calls, "wait", waited)
    done = day.lab.clone_vms(day.copy.sr_uuid, "web", "db")
    assert [each.status for each in done] == [MADE, MADE]
    assert len(deadlines) == 20 and len(set(map(id, deadlines))) == 1
    assert asked.count("task.get_all_records_where") == 1


def test_no_task_of_a_user_who_may_only_read_is_waited_for(day, monkeypatch):
    """Such a task delayed each clone by 30 s. Only the key that this user may not write makes a task count."""
    day.lab.pool.api.users["eve"] = ("x", "read-only")
    uuid = day.db.get("VM", day.web, "uuid")
    with connect(day.lab.where()._replace(user="eve", password="x")) as eve:
        task = eve.call("task.create", f"relvmoiscsi: import of a VM onto the copy {day.copy.sr_uuid}", uuid)
        with pytest.raises(PoolFailure, match="may not call task.add_to_other_config"):
            eve.call("task.add_to_other_config", task, "applies_to", "x")
        eve.call("task.add_to_other_config", task, "another key", "x")
    waited, wait, answers, records = [], Calls.wait, [], Calls.records
    monkeypatch.setattr(Calls, "wait", lambda calls, *words: waited.append(words[0]) or wait(calls, *words))
    monkeypatch.setattr(
        Calls, "records", lambda *words, **equal: answers.append(records(*words, **equal)) or answers[-1]
    )
    done = day.clone_one()
    assert answers and not any(task in answer for answer in answers), "the pool leaves them out, however many there are"
    assert day.db.get("task", task, "status") == "pending"
    assert done.status == MADE and not done.notes and "the import of an earlier run" not in waited


# --- others get the disks meanwhile


def other(day):
    day.lab.vm("forensics", day.new(day.data))


def restored(day):
    """As `restore` leaves it: its own look at the disks is before this one's import."""
    for device, vdi in (("0", day.root), ("1", day.data)):
        day.db.set("VBD", day.vbd(device), "VDI", day.new(vdi))


@pytest.mark.parametrize(("comes", "whose"), [(other, "forensics"), (restored, "web")])
def test_disks_that_another_vm_gets_meanwhile_are_its_own(halted, comes, whose):
    """Ten VMs take minutes, and the pool was read before the first. A person's VM gets the disk during the import."""
    halted.lab.before("PUT /import_metadata", lambda: comes(halted), 2)
    done = halted.clone_one()
    assert done.status == FAILED and f"is a disk of the VM '{whose}' meanwhile" in str(done.error)
    assert halted.copies() == [] and (comes is other or halted.srs() == {halted.sr})


# --- what a run has left


def half(day, method="VM.add_to_other_config"):
    """A copy that a run has left, killed before the last mark."""
    with day.lab.cut(method):
        assert day.clone_one().status == FAILED
    day.lab.later()
    (vm,) = [ref for ref, row in day.db.records("VM").items() if "relvmoiscsi:clone-of" in row["other_config"]]
    return vm


def test_a_template_that_a_run_has_left_is_finished_and_is_a_vm(day):
    """Its generation id is another than that of its original, of which xapi makes none for a template."""
    left = day.db.record("VM", half(day, "VM.set_is_a_template"))
    done = day.clone_one()
    vm = day.vm(done.uuid)
    assert (done.status, done.uuid) == (MADE, left["uuid"])
    assert (left["is_a_template"], vm["is_a_template"]) == (True, False)
    low, high = map(int, vm["generation_id"].split(":"))
    assert vm["generation_id"] == left["generation_id"] and 0 <= low < 2**63 and 0 <= high < 2**63
    assert day.clone_one().status == ALREADY


def with_disk_elsewhere(day, vm):
    day.db.create("VBD", VM=vm, VDI=day.elsewhere(), userdevice="7")


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda day, vm: day.start(vm), "the copy is not halted, or HA is on. The VM was not changed."),
        (with_disk_elsewhere, "the copy has other disks than its original. The VM was not changed."),
    ],
    ids=["started", "another disk"],
)
def test_what_a_run_has_left_half_is_verified_and_finished_or_told(day, happens, said):
    """And not destroyed: it may have been started, and the guest has written since."""
    vm = half(day)
    happens(day, vm)
    before = day.db.record("VM", vm)
    done = day.clone_one()
    assert done.status == FAILED and day.db.record("VM", vm) == before
    assert f"({before['uuid']}) unfinished: {said}" in str(done.error)
    destroy = f"`xe vm-destroy uuid={before['uuid']}` (never vm-uninstall or template-uninstall)"
    assert (destroy in str(done.error)) is (happens is not with_disk_elsewhere)
    if happens is not with_disk_elsewhere:
        day.shut_down(vm)
        again = day.clone_one()
        assert (again.status, again.uuid) == (MADE, before["uuid"]) and len(day.copies()) == 1


def test_a_vm_that_only_its_marks_call_a_half_copy_gets_no_vif_and_no_mac(day):
    victim = day.lab.vm("victim", day.elsewhere())
    marks = {"relvmoiscsi:clone-of": day.db.get("VM", day.web, "uuid"), "relvmoiscsi:sr": day.copy.sr_uuid}
    day.db.set("VM", victim, "other_config", marks)
    before = day.db.records("VIF")
    done = day.clone_one(isolated="nowhere", keep_mac=True)
    assert done.status == FAILED and "the copy has other disks than its original. The VM was not changed." in str(
        done.error
    )
    assert day.db.records("VIF") == before


def test_a_copy_that_was_reverted_to_its_snapshot_is_still_one(day):
    """xapi gives it the snapshot's other_config, and disks with other UUIDs (xapi_vm_snapshot.ml)."""
    day.snapshot()
    done = day.clone_one(snapshots=True)
    db, vm = day.db, day.ref_of(done)
    (snapshot,) = db.get("VM", vm, "snapshots")
    db.set("VM", vm, "other_config", db.get("VM", snapshot, "other_config"))
    for vbd in db.refs("VBD", VM=vm, type="Disk"):
        db.set("VBD", vbd, "VDI", day.new(day.lab.vdi("Production", "before")[0]))
    again = day.clone_one(snapshots=True)
    assert (again.status, again.uuid) == (ALREADY, done.uuid)


def test_a_vm_elsewhere_with_the_marks_of_a_copy_is_none(day):
    """A backup tool, or VM.copy, has put it onto another SR, marks and all; the copy itself is gone."""
    done = day.clone_one()
    day.lab.vm("web, from a backup", day.elsewhere(), other_config=day.vm(done.uuid)["other_config"])
    day.lab.pool.api.vms.vm_destroy("", day.ref_of(done))
    again = day.clone_one()
    assert again.status == MADE and again.name == "web on Production changed 2026-11-21"


def test_a_copy_that_has_lost_its_disks_is_none_and_is_told(day):
    """The copy was discarded without its VMs, and the same LUN attached again."""
    done = day.clone_one()
    day.lab.discard(day.db.record("SR", day.sr)["uuid"])
    day.lab.attach(day.copy.scsi_id)
    day.sr = day.db.by_uuid("SR", day.copy.sr_uuid)
    again = day.clone_one()
    assert again.status == MADE and day.lab.disks_of(day.ref_of(again)) == day.expected(day.web)
    assert done.uuid in again.notes[-1] and "is an older copy of this VM" in again.notes[-1]
    assert day.db.refs("VM", uuid=done.uuid)


# --- what fails


def test_a_scan_that_fails_at_the_end_is_an_error_of_each_vm_that_was_made(day):
    with day.lab.cut("Async.SR.scan", 2, XenError("SR_BACKEND_FAILURE_40", "", "The SR scan failed", "")):
        done = day.clone_one()
    assert done.status == MADE and "The SR scan failed" in str(done.error)


def test_an_import_that_fails_leaves_nothing(day):
    def fail(_objects):
        raise XenError("IMPORT_ERROR", "the disk is full")

    before, day.lab.pool.api.transfer.fail_import = day.originals(), fail
    done = day.clone_one()
    assert done.status == FAILED and "the disk is full" in str(done.error)
    assert day.copies() == [] and day.originals() == before
