# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own: a journal first, undoable, done again after a cut, home by migration."""

import json
import re
import threading

import pytest

from kit.pool.api import GoneAway
from kit.pool.database import NULL
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_verbs import bring_back, keep, locks, run, second_copy, take_home, undo, unlock
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, move_home, restore, restore_journal, swap_disks


def uuid(day, vdi):
    return day.db.get("VDI", vdi, "uuid")


def vbd(day, device):
    return day.db.refs("VBD", VM=day.web, userdevice=device)[0]


def another_disk(day, device):
    """A person has given the VM a disk of another SR there."""
    mine = day.lab.vdi("Testing", "data")[0]
    day.db.destroy("VBD", vbd(day, device))
    day.db.create("VBD", VM=day.web, VDI=mine, userdevice=device)


def revert(day, device):
    """What VM.revert does to a disk: a clone of the snapshot's VDI takes its place, on the same SR.

    Source: xapi_vm_snapshot.ml, revert_vbds.
    """
    old = day.db.record("VBD", vbd(day, device))
    day.db.destroy("VBD", vbd(day, device))
    day.db.destroy("VDI", old["VDI"])
    new = day.db.create("VDI", SR=day.sr, location="reverted-" + device, managed=True)
    day.db.create("VBD", VM=day.web, VDI=new, userdevice=device)


def cut_before(day, method, number):
    """The client dies before the call of this method that has this number."""
    seen = []

    def before(name, _params):
        if name == method:
            seen.append(name)
            if len(seen) >= number:  # XenAPI says it again
                raise GoneAway()

    day.lab.pool.api.before = before


def cut_between_the_disks(day, work=bring_back):
    cut_before(day, "VBD.destroy", 2)
    with pytest.raises(PoolFailure):
        work(day)
    day.lab.pool.api.before = None


def planned(day, calls, sr):
    pool, found = records.read(calls), inventory.read(calls)
    return restore.plan(found, inventory.copy_of(pool, found, sr), day.web, [], "then")


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


def left_of(day):
    """What restore, undo, home and keep have left in the VM's other_config."""
    return [key for key in day.db.get("VM", day.web, "other_config") if key.startswith("relvmoiscsi:restore")]


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
    with pytest.raises(Refused, match="was not restored from a copy"):
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
    with pytest.raises(Refused, match="is not halted but running. Add --shutdown"):
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


def test_a_guest_without_tools_keeps_its_disks_and_is_told_how_to_shut_it_down(day):
    day.db.set("VM", day.web, "guest_metrics", NULL)
    before = seen(day)
    with pytest.raises(PoolFailure, match="no PV drivers.* Shut down from inside") as refused:
        bring_back(day, shutdown=True)
    assert "Nothing was changed." in str(refused.value) and seen(day) == before
    assert day.db.get("VM", day.web, "power_state") == "Running" and not left_of(day)


# --- while the SR of the original is away, which is when somebody restores


def away(day):
    """No host has the SR of the original any more."""
    original = day.db.get("VDI", day.root, "SR")
    for pbd in day.db.refs("PBD", SR=original):
        day.db.set("PBD", pbd, "currently_attached", False)


@pytest.mark.parametrize("back, status", [(undo, "undone"), (keep, "kept as it is")], ids=["undo", "keep"])
def test_without_the_sr_of_the_original_all_is_done_but_the_names(halted, back, status):
    away(halted)
    done = bring_back(halted)
    on_copy = halted.lab.disks_of(halted.web)

    assert done.status == "restored" and names(halted) == ["root disk", "data"]
    assert {sr for sr, _ in on_copy.values()} == {halted.sr} and not halted.db.get(
        "VM", halted.web, "blocked_operations"
    )
    why = "No suitable host has the SR attached (VDI.set_name_label)."
    assert [note.split(" Rename")[0] for note in done.notes] == [
        f"The VDI {uuid(halted, vdi)} keeps its name: {why}" for vdi in (halted.root, halted.data)
    ]
    said = f"`xe vdi-param-set uuid={uuid(halted, halted.root)} name-label='root disk before restore 2026-11-22'`"
    assert said in done.notes[0]

    for vdi in (halted.root, halted.data):  # an earlier restore has named them when the SR was there
        halted.db.set("VDI", vdi, "name_label", "waits")
    if back is keep:
        halted.db.set("VBD", vbd(halted, "0"), "VDI", halted.root)
    ended = back(halted)
    assert ended.status == status and not left_of(halted) and not halted.db.get("VM", halted.web, "blocked_operations")
    assert any(f"{uuid(halted, halted.root)} keeps its name" in note for note in ended.notes)
    assert names(halted) == ["waits", "waits"]


def test_a_name_is_written_when_the_vm_may_be_started(halted):
    """It is a call to the driver of an SR, and that may hang."""
    bring_back(halted)
    calls = halted.lab.pool.api.calls
    last = max(number for number, call in enumerate(calls) if call == "VM.remove_from_blocked_operations")
    assert "Async.VDI.set_name_label" not in calls[:last] and calls.count("Async.VDI.set_name_label") == 2
    original = halted.db.get("SR", halted.db.get("VDI", halted.root, "SR"), "uuid")
    assert [entry[1] for entry in halted.lab.world.log if entry[0] == "vdi_update"] == [original] * 2


def test_a_name_that_takes_too_long_is_not_waited_for(halted, monkeypatch):
    monkeypatch.setattr(swap_disks, "NAME_SECONDS", 0.05)
    api, release = halted.lab.pool.api, threading.Event()
    api.tasks_end_at_once, name = False, api._methods["VDI.set_name_label"]
    api._methods["VDI.set_name_label"] = lambda *words: (release.wait(60), name(*words))[1]
    done = bring_back(halted)
    release.set()
    assert done.status == "restored" and "did not end within 0 seconds" in done.notes[0]
    until(lambda: halted.lab.pool.is_at_rest)


def test_a_suspended_vm_is_refused(day):
    day.db.set("VM", day.web, "power_state", "Suspended")
    with pytest.raises(Refused, match="Its memory would not match its disks"):
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
    with pytest.raises(Refused, match="is a copy and already"):
        bring_back(halted, halted.db.by_uuid("VM", copy.uuid))


def test_a_vm_that_was_restored_has_no_copy_on_the_same_disks(halted):
    backup = halted.lab.vm("backup", halted.data)
    bring_back(halted)
    (done,) = halted.clone("backup")
    assert backup and "The copy of the disk" in str(done.error) and "'web' already" in str(done.error)


def test_one_copy_at_a_time(halted):
    bring_back(halted)
    with pytest.raises(Refused, match="was restored from the copy"):
        bring_back(halted, sr=second_copy(halted))
    assert halted.lab.disks_of(halted.web)["0"][0] == halted.sr


def test_a_vm_that_was_copied_from_a_restored_one_has_no_journal(halted):
    """xapi copies other_config with the VM: an undo there would take the disks of the other."""
    bring_back(halted)
    marks = halted.db.get("VM", halted.web, "other_config")
    other = halted.lab.vm("a copy of web", halted.lab.vdi("Testing", "data")[0], other_config=marks)
    with pytest.raises(Refused, match="was not restored from a copy"):
        undo(halted, other)
    halted.db.set("VM", halted.lab.vm("no json", other_config={"relvmoiscsi:restore:0": "x"}), "name_label", "spoiled")
    spoiled = halted.db.refs("VM", name_label="spoiled")[0]
    with pytest.raises(Refused, match="cannot be read"):
        run(halted, lambda calls, *_: restore_journal.journal_of(calls.call("VM.get_record", spoiled)))


def test_a_journal_of_another_vm_is_written_over(halted):
    marks = {"relvmoiscsi:restore:0": json.dumps({"vm": "another"})}
    other = {**halted.db.get("VM", halted.web, "other_config"), **marks}
    swap = run(halted, lambda calls, found, copy: restore.plan(found, copy, halted.web, [], "today"))[0]
    text = json.dumps({**swap._asdict(), "vm": "another"})
    halted.db.set("VM", halted.web, "other_config", {**other, "relvmoiscsi:restore:0": text})
    bring_back(halted)
    undo(halted)
    assert names(halted) == ["root disk", "data"]


def test_without_the_disk_before_there_is_no_undo(halted):
    bring_back(halted)
    halted.db.destroy("VDI", halted.root)
    before = seen(halted)
    with pytest.raises(NotFound, match="is no longer in the pool"):
        undo(halted)
    assert seen(halted) == before


@pytest.mark.states
@pytest.mark.parametrize("work", [bring_back, undo], ids=["restore", "undo"])
def test_killed_at_a_call_of_each_kind_it_goes_forward_or_back(halted, deaths, work):
    """When the lock is stale; or at once, when a person has broken the lock."""
    before, expected, refusals = seen(halted), halted.expected(halted.web), 0
    if work is undo:
        bring_back(halted)
    ways = [(then, is_broken) for then in (bring_back, undo) for is_broken in (True, False)]
    for then, is_broken in deaths(lambda: work(halted), *ways):
        if is_broken and locks(halted):
            try:
                then(halted)
            except Refused as refused:
                assert re.search("Another client has locked|was not restored from a copy", str(refused))
                refusals += 1
            unlock(halted)
        halted.lab.later()
        if then is bring_back:
            assert {swap.new for swap in then(halted).disks} == {uuid for _, uuid in expected.values()}
            assert halted.lab.disks_of(halted.web) == expected
        if left_of(halted):
            undo(halted)
        assert seen(halted) == before and names(halted) == ["root disk", "data"]
    assert refusals


# --- others change the VM as well


@pytest.mark.parametrize("work", [bring_back, undo, take_home], ids=["restore", "undo", "home"])
def test_a_disk_of_a_person_stays_where_it_is(halted, work):
    bring_back(halted)
    another_disk(halted, "1")
    before = seen(halted)
    with pytest.raises(Refused, match="The disk 1 of the VM 'web' is not what it was: it has the VDI"):
        work(halted)
    assert seen(halted) == before
    halted.db.destroy("VBD", vbd(halted, "1"))  # as the sentence says
    assert undo(halted).status == "undone" and names(halted) == ["root disk", "data"]


def test_a_vm_that_was_reverted_on_the_copy_is_not_at_home(halted):
    """The journal stays, and so the copy cannot be discarded."""
    bring_back(halted)
    revert(halted, "0"), revert(halted, "1")
    with pytest.raises(Refused, match="is not what it was"):
        take_home(halted)
    assert restore_journal.is_restored(halted.db.record("VM", halted.web))


def test_a_drive_without_a_disk_is_not_what_it_was(halted):
    bring_back(halted)
    halted.db.set("VBD", vbd(halted, "1"), "VDI", "OpaqueRef:NULL")
    with pytest.raises(Refused, match="it has no VDI, and not"):
        undo(halted)


def test_yes_to_a_plan_that_is_old_changes_nothing(halted):
    second = second_copy(halted)
    with connect(halted.lab.where()) as calls:
        swaps = planned(halted, calls, second)
        bring_back(halted)
        take_home(halted)
        before = seen(halted)
        with pytest.raises(Refused, match="is not what it was"):
            restore.restore(calls, halted.web, swaps)
    assert seen(halted) == before


def test_a_disk_that_was_changed_since_the_plan(halted):
    with connect(halted.lab.where()) as calls:
        swaps = planned(halted, calls, halted.sr)
        halted.db.set("VBD", vbd(halted, "1"), "mode", "RO")
        with pytest.raises(Refused, match="The disk 1 of the VM 'web' was changed during this run. Repeat the command"):
            restore.restore(calls, halted.web, swaps)


def test_a_journal_of_the_same_vm_is_never_written_over(halted):
    second = second_copy(halted)
    with connect(halted.lab.where()) as calls:
        swaps = planned(halted, calls, second)
        bring_back(halted)
        before = seen(halted)
        with pytest.raises(Refused, match="was restored by another run"):
            restore.restore(calls, halted.web, swaps)
    assert seen(halted) == before


def test_a_disk_that_a_clone_has_got_meanwhile_is_not_taken(halted):
    with connect(halted.lab.where()) as calls:
        swaps = planned(halted, calls, halted.sr)
        halted.clone("web")
        before = seen(halted)
        with pytest.raises(Refused, match="is a disk of 'web 2026-11-22' as well. Remove the disk from there first"):
            restore.restore(calls, halted.web, swaps)
    assert seen(halted) == before


def test_run_again_after_a_cut_it_looks_again_whose_the_disk_is(halted):
    cut_before(halted, "VBD.destroy", 1)
    with pytest.raises(PoolFailure):
        bring_back(halted)
    halted.lab.pool.api.before = None
    halted.lab.vm("helper", halted.new(halted.data))
    with pytest.raises(Refused, match="is a disk of 'helper' as well"):
        bring_back(halted)
    assert undo(halted).status == "undone"


def test_a_disk_before_that_another_vm_has_got_is_not_put_back(halted):
    bring_back(halted)
    halted.lab.vm("helper", halted.root, state="Running")
    before = seen(halted)
    with pytest.raises(Refused, match="is a disk of 'helper' as well"):
        undo(halted)
    assert seen(halted) == before


def test_a_person_who_hangs_a_disk_there_at_this_very_moment_keeps_it(halted):
    mine = halted.lab.vdi("Testing", "data")[0]

    def before(name, _params):
        if name == "VBD.create":
            halted.lab.pool.api.before = None
            halted.db.create("VBD", VM=halted.web, VDI=mine, userdevice="0")

    halted.lab.pool.api.before = before
    with pytest.raises((Refused, PoolFailure), match="Another client has just changed the disk 0 of the VM 'web'"):
        bring_back(halted)
    assert halted.lab.disks_of(halted.web)["0"][1] == uuid(halted, mine)
    assert halted.db.get("VM", halted.web, "blocked_operations")


def test_the_pool_is_busy_with_the_vm(halted):
    bring_back(halted)
    halted.db.set("VM", halted.web, "current_operations", {"OpaqueRef:1": "migrate_send"})
    for work in (undo, take_home):
        with pytest.raises(Refused, match="The pool is busy with the VM 'web': migrate_send"):
            work(halted)


def test_snapshots_are_told_before(halted):
    halted.lab.snapshot(halted.web, "before the update", halted.lab.vdi("Production", "before")[0])
    (note,) = bring_back(halted).notes
    assert note.startswith("It has snapshots (before the update): a revert to a snapshot silently undoes the restore")


# --- nobody starts it between the first disk and the last


@pytest.mark.parametrize("work", [bring_back, undo], ids=["restore", "undo"])
def test_half_swapped_it_cannot_be_started(halted, work):
    if work is undo:
        bring_back(halted)
    cut_between_the_disks(halted, work)
    blocked = halted.db.get("VM", halted.web, "blocked_operations")
    assert set(blocked) == {"start", "start_on", "resume"}
    assert "relvmoiscsi pool restore --undo " + uuid_of(halted) in blocked["start"]
    with pytest.raises(XenError, match="OPERATION_BLOCKED"):
        halted.lab.pool.api.vms.vm_start("", halted.web)
    with pytest.raises(Refused, match="was interrupted"):
        take_home(halted)
    undo(halted)
    assert not halted.db.get("VM", halted.web, "blocked_operations")


def uuid_of(day):
    return day.db.get("VM", day.web, "uuid")


def test_another_disk_alone_does_not_end_what_was_cut(halted):
    cut_between_the_disks(halted)
    bring_back(halted, devices=["0"])
    assert all(sr == halted.sr for sr, _ in halted.lab.disks_of(halted.web).values())


def test_what_somebody_else_has_blocked_stays_his(halted):
    halted.db.set("VM", halted.web, "blocked_operations", {"start": "mine"})
    bring_back(halted)
    undo(halted)
    assert halted.db.get("VM", halted.web, "blocked_operations") == {"start": "mine"}


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_ha_does_not_start_it_and_has_it_again_afterwards(halted, finish):
    db, vms = halted.db, halted.lab.pool.api.vms
    db.set("VM", halted.web, "ha_always_run", True)
    db.set("VM", halted.web, "ha_restart_priority", "restart")
    cut_between_the_disks(halted)
    assert halted.web not in vms.that_ha_would_start()
    finish(halted)
    assert halted.web in vms.that_ha_would_start()
    assert not [key for key in db.get("VM", halted.web, "other_config") if key.startswith("relvmoiscsi:restore-")]


def test_started_while_it_was_looked_at_it_is_as_it_was(halted):
    def before(name, _params):
        if name == "VM.add_to_blocked_operations":
            halted.lab.pool.api.before = None
            halted.lab.pool.api.vms.vm_start("", halted.web)

    expected = seen(halted)[0]["other_config"]
    halted.lab.pool.api.before = before
    with pytest.raises(Refused, match="is not halted but running"):
        bring_back(halted)
    vm = halted.db.record("VM", halted.web)
    assert vm["blocked_operations"] == {} and vm["other_config"] == expected
    assert all(sr != halted.sr for sr, _ in halted.lab.disks_of(halted.web).values())


# --- home


def test_home_refuses_while_a_disk_is_lent(halted):
    bring_back(halted)
    helper = halted.lab.vm("helper", state="Running")
    halted.db.create("VBD", VM=helper, VDI=halted.new(halted.root), mode="RO", userdevice="5")
    with pytest.raises(Refused, match="is a disk of 'helper' as well.*rescue --done"):
        take_home(halted)


def test_home_looks_at_what_was_moved(halted):
    """xapi takes the VM of the first VBD, and points only that one's to the new VDI."""
    bring_back(halted)

    def of_another(session, vdi, sr, options):
        mine = vbd(halted, "0")
        halted.lab.pool.api.vms.vdi_pool_migrate(session, vdi, sr, options)
        halted.db.destroy("VBD", mine)

    halted.lab.pool.api._methods["VDI.pool_migrate"] = of_another
    with pytest.raises(PoolFailure, match="The disk 0 of the VM 'web' is not on the SR .* The journal stays"):
        take_home(halted)
    assert restore_journal.is_restored(halted.db.record("VM", halted.web))


def test_home_refuses_with_snapshots(halted):
    halted.lab.snapshot(halted.web, "before the update", halted.lab.vdi("Production", "before")[0])
    bring_back(halted)
    with pytest.raises(
        Refused,
        match="has snapshots: before the update. Nothing was moved: the pool would move the disks of the snapshots too",
    ):
        take_home(halted)
    assert all(sr == halted.sr for sr, _ in halted.lab.disks_of(halted.web).values())


def test_home_when_the_disks_before_were_destroyed(halted):
    bring_back(halted)
    original = halted.db.get("VDI", halted.root, "SR")
    for vdi in (halted.root, halted.data):
        halted.lab.pool.api.vms.vdi_destroy("", vdi)
    with pytest.raises(NotFound, match="--undo is impossible. Use --home to move the copy's disks"):
        undo(halted)
    done = take_home(halted)
    assert done.status == "home" and not done.waiting
    assert {sr for sr, _ in halted.lab.disks_of(halted.web).values()} == {original}


def test_home_without_the_sr_that_they_were_on(halted):
    bring_back(halted)
    halted.db.destroy("SR", halted.db.get("VDI", halted.root, "SR"))
    with pytest.raises(NotFound, match="which held the old disks, is no longer in the pool.*--keep"):
        take_home(halted)


@pytest.mark.parametrize(
    "field, value, said", [("cbt_enabled", True, "changed block tracking"), ("on_boot", "reset", "on-boot=persist")]
)
def test_home_names_what_the_pool_does_not_move(halted, field, value, said):
    bring_back(halted)
    halted.db.set("VDI", halted.new(halted.data), field, value)
    with pytest.raises(Refused, match="the disk 1 of the VM 'web'.*" + said):
        take_home(halted)
    assert halted.db.exists("VDI", halted.new(halted.root))  # not half the way
    halted.db.set("VDI", halted.new(halted.data), field, {"cbt_enabled": False}.get(field, "persist"))
    assert take_home(halted).status == "home"


def test_home_they_are_on_the_sr_of_the_disks_before(halted):
    original = halted.db.get("VDI", halted.root, "SR")
    bring_back(halted)
    halted.lab.pool.api.vms.vm_start("", halted.web)
    done = take_home(halted)

    assert [sr for sr, _ in halted.lab.disks_of(halted.web).values()] == [original] * 2
    assert sorted(done.waiting) == sorted(halted.db.get("VDI", vdi, "uuid") for vdi in (halted.root, halted.data))
    assert names(halted) == ["root disk before restore 2026-11-22", "data before restore 2026-11-22"]
    vm = halted.db.record("VM", halted.web)
    assert vm["power_state"] == "Running" and not restore_journal.is_restored(vm)


def test_home_reports_the_moved_bytes_of_each_disk(halted):
    bring_back(halted)
    sizes = [int(halted.db.get("VDI", halted.new(vdi), "virtual_size")) for vdi in (halted.root, halted.data)]
    told = []
    run(halted, lambda calls, *_: move_home.home(calls, halted.web, progress=lambda *bytes_: told.append(bytes_)))

    assert [size for done, size in told if done == size] == sizes
    assert all(0 <= done <= size for done, size in told)


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_it_comes_home(halted, deaths):
    original = halted.db.get("VDI", halted.root, "SR")
    bring_back(halted)
    for _ in deaths(lambda: take_home(halted), each_moment=True):
        halted.lab.later()
        until(lambda: halted.lab.pool.is_at_rest)
        if left_of(halted):
            take_home(halted)
        assert [sr for sr, _ in halted.lab.disks_of(halted.web).values()] == [original] * 2 and not left_of(halted)


def half_way_home(day):
    """Restored, and one disk of two was moved; gives that one's reference."""
    bring_back(day)
    cut_before(day, "Async.VDI.pool_migrate", 2)
    with pytest.raises(PoolFailure):
        take_home(day)
    day.lab.pool.api.before = None
    return day.db.get("VBD", vbd(day, "0"), "VDI")


def test_undone_on_the_way_home_what_was_moved_is_told(halted):
    moved = half_way_home(halted)
    done = undo(halted)
    assert list(done.waiting) == [uuid(halted, moved)] and names(halted) == ["root disk", "data"]


def test_a_disk_of_a_person_where_one_has_come_home(halted):
    """On the same SR: it is not the one that has come."""
    half_way_home(halted)
    mine = halted.lab.vdi("Production", "before")[0]
    halted.db.destroy("VBD", vbd(halted, "0"))
    halted.db.create("VBD", VM=halted.web, VDI=mine, userdevice="0")
    for work in (undo, take_home):
        with pytest.raises(Refused, match="The disk 0 of the VM 'web' is not what it was"):
            work(halted)


def test_on_the_way_home_it_is_not_restored_again(halted):
    """It is refused before the VM is shut down for it."""
    half_way_home(halted)
    halted.lab.pool.api.vms.vm_start("", halted.web)
    with pytest.raises(Refused, match="are being moved to its own SR"):
        bring_back(halted, shutdown=True)
    assert halted.db.get("VM", halted.web, "power_state") == "Running"
    assert take_home(halted).status == "home"


def test_a_restore_that_was_cut_does_not_go_home(halted):
    bring_back(halted)
    halted.db.destroy("VBD", halted.db.refs("VBD", VM=halted.web)[0])
    with pytest.raises(Refused, match="was interrupted. First repeat the restore"):
        take_home(halted)
    assert bring_back(halted).status == "restored"


def test_what_the_pool_refuses_stays_as_it_was(halted):
    bring_back(halted)

    def full(_session, _vdi, _sr, _options):
        raise XenError("SR_BACKEND_FAILURE_44", "", "There is insufficient space", "")

    halted.lab.pool.api._methods["VDI.pool_migrate"] = full
    with pytest.raises(PoolFailure, match="insufficient space"):
        take_home(halted)
    assert restore_journal.is_restored(halted.db.record("VM", halted.web))
