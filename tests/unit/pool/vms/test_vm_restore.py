# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own: a journal first, undoable, done again after a cut."""

import json
import shlex
import threading

import pytest

from kit.advised import commands_in, problem_of
from kit.pool.database import NULL
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_verbs import bring_back, keep, lend, locks, second_copy, take_home, undo, unlock
from kit.xe import xe
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import Where, connect
from relvmoiscsi.pool.vms import inventory, owners, restore, restore_journal, swap_disks, vbds

BOTH = pytest.mark.parametrize("work", [bring_back, undo], ids=["restore", "undo"])


def seen(day):
    """The VM and its disks, without what tells one VBD from another of the same settings."""
    vm, vbds = day.db.record("VM", day.web), day.db.records("VBD", VM=day.web).values()
    return {**vm, "VBDs": ""}, sorted(({**vbd, "uuid": ""} for vbd in vbds), key=lambda vbd: vbd["userdevice"])


def shutting_down(work):
    return lambda day: work(day, shutdown=True)


def of_disk(device):
    return lambda day: bring_back(day, devices=[device])


def test_restored_it_has_the_disks_of_the_copy_and_undone_all_is_as_it_was(halted):
    db, calls = halted.db, halted.lab.pool.api.calls
    for ref in db.refs("VBD", VM=halted.web):
        db.set("VBD", ref, "other_config", {"owner": "alice"}), db.set("VBD", ref, "qos_algorithm_type", "ionice")
    expected, before, vdis = halted.expected(halted.web), seen(halted), halted.rows()["VDI"]
    calls.clear()
    assert bring_back(halted).status == "restored" and halted.lab.disks_of(halted.web) == expected
    vm, vbds = seen(halted)
    assert [{**vbd, "VDI": ""} for vbd in vbds] == [{**vbd, "VDI": ""} for vbd in before[1]]
    assert halted.journal() == ["relvmoiscsi:restore:0", "relvmoiscsi:restore:1"]
    assert {**vm, "other_config": {"folder": "/b"}} == before[0]
    assert halted.names() == ["root disk before restore 2026-11-22", "data before restore 2026-11-22"]
    places = {call: [at for at, each in enumerate(calls) if each == call] for call in calls}
    assert places["VBD.destroy"][0] > places["VM.add_to_other_config"][-1], "the journal comes first"
    # a name is a call to the driver of an SR, which may hang
    assert places["Async.VDI.set_name_label"][0] > places["VM.remove_from_blocked_operations"][-1]
    original = db.get("SR", halted.lab.originals["Production"][1], "uuid")
    assert [entry[1] for entry in halted.lab.world.log if entry[0] == "vdi_update"] == [original] * 2
    assert not {"VDI.destroy", "Async.VDI.destroy", "VM.destroy"} & set(calls)

    there = halted.rows()
    assert bring_back(halted, date="later").status == "already restored" and halted.rows() == there
    done = undo(halted)
    assert (done.status, done.waiting) == ("undone", []) and seen(halted) == before
    without = [{ref: {**row, "VBDs": ""} for ref, row in rows.items()} for rows in (vdis, halted.rows()["VDI"])]
    assert without[0] == without[1]
    there = halted.rows()
    assert undo(halted).status == "not restored" and halted.rows() == there


@pytest.mark.parametrize("work", [bring_back, undo, keep])
def test_no_step_reads_all_vms_of_the_pool(halted, work):
    """A tenant may have thousands: a step needs the VM, its drives, the VDIs of the restore and their users."""
    if work is not bring_back:
        bring_back(halted)
    calls = halted.lab.pool.api.calls
    calls.clear()
    work(halted)
    whole = [calls.count(f"{kind}.get_all_records") for kind in ("VM", "VBD", "VDI")]
    assert whole == [1, 1, 1], "the plan"
    assert len(calls) < 130


def test_a_reading_of_a_vm_answers_what_the_records_of_the_pool_answer(halted):
    """With a snapshot, a VM that shares a disk, and memory."""
    halted.snapshot()
    swaps = bring_back(halted).disks
    memory = halted.lab.vm("asleep", halted.data)
    halted.db.set("VM", memory, "suspend_VDI", halted.root)
    with connect(halted.lab.where()) as calls:
        now = vbds.read(calls, halted.web)
        whole = vbds.VmNow(calls, halted.web, now.pool, now.whole())
    assert len(now.found.vdis) < len(whole.found.vdis)
    for swap in swaps:
        assert now.device(swap.userdevice) == whole.device(swap.userdevice)
        for vdi in (swap.old, swap.new):
            assert now.users_of(vdi) == whole.users_of(vdi) and now.others_with(vdi) == whole.others_with(vdi)
    assert [now.users_of(swap.old) for swap in swaps] == [["'asleep'"], ["'asleep'"]]
    assert now.snapshots() == whole.snapshots() == ["before the update"]


@pytest.mark.parametrize("char", ["\ufffe", "\uffff"], ids=ascii)
def test_a_character_that_xapi_stores_and_xml_forbids_hinders_no_restore(halted, char):
    halted.db.set("VDI", halted.root, "name_label", "root " + char)
    halted.db.set("VBD", halted.vbd("0"), "other_config", {"owner": "alice" + char})
    before = seen(halted)
    assert bring_back(halted).status == "restored" and halted.srs() == {halted.sr}
    assert halted.names() == ["root ? before restore 2026-11-22", "data before restore 2026-11-22"]
    assert undo(halted).status == "undone" and seen(halted) == before
    assert halted.names() == ["root ?", "data"]


def test_a_name_of_any_length_hinders_no_restore(halted):
    """The journal has room for 65536 characters, and needs none of the name."""
    name = "x" * 70000
    halted.db.set("VDI", halted.root, "name_label", name)
    assert bring_back(halted).status == "restored" and halted.srs() == {halted.sr}
    assert halted.names()[0] == name + " before restore 2026-11-22"
    assert undo(halted).status == "undone" and halted.names() == [name, "data"]


def test_a_name_that_a_person_gives_an_old_disk_stays(halted):
    bring_back(halted)
    halted.db.set("VDI", halted.root, "name_label", "of Monday")
    assert undo(halted).notes == [] and halted.names() == ["of Monday", "data"]


def test_one_disk_of_two(halted):
    bring_back(halted, devices=["1"])
    disks = halted.lab.disks_of(halted.web)
    assert disks["1"][0] == halted.sr != disks["0"][0]
    assert halted.names() == ["root disk", "data before restore 2026-11-22"]
    bring_back(halted, date="2026-11-23")
    assert halted.srs() == {halted.sr}
    assert halted.names() == ["root disk before restore 2026-11-23", "data before restore 2026-11-22"]
    undo(halted)
    assert halted.sr not in halted.srs()


def test_a_running_vm_is_shut_down_if_somebody_says_so(day):
    day.refuses(bring_back, "is not halted but running. Nothing was changed. Add --shutdown")
    bring_back(day, shutdown=True)
    assert day.db.get("VM", day.web, "power_state") == "Halted" and day.srs() == {day.sr}
    day.start()
    day.refuses(undo, "not halted")
    undo(day, shutdown=True)
    assert day.names() == ["root disk", "data"]


# --- refused, all is as it was


def its_copy(day):
    """xapi copies other_config with the VM: an undo there would take the disks of the other."""
    bring_back(day)
    day.web = day.lab.vm("a copy", day.elsewhere(), other_config=day.db.get("VM", day.web, "other_config"))


def copied_by_xapi(day):
    """VM.copy of a clone, to the SR of the original: xapi copies the marks of the clone too."""
    return day.lab.pool.api.vms.vm_copy("", day.ref_of(day.clone_one()), "moved", day.lab.originals["Production"][1])


def with_helper(day, vdi):
    day.lab.vm("helper", vdi)


def web_is(vm_of):
    """The commands are given another VM."""
    return lambda day: setattr(day, "web", vm_of(day))


def with_device(device):
    """The first disk of the journal has this userdevice."""

    def change(config):
        values = json.loads(config["relvmoiscsi:restore:0"])
        return {**config, "relvmoiscsi:restore:0": json.dumps({**values, "userdevice": device})}

    return change


HAPPENS = {
    "nothing": lambda day: None,
    "no tools": lambda day: (day.start(), day.db.set("VM", day.web, "guest_metrics", NULL)),
    "a guest that stays": lambda day: (day.start(), day.lab.pool.api.vms.refuses_shutdown.add(day.web)),
    "suspended": lambda day: day.db.set("VM", day.web, "power_state", "Suspended"),
    "elsewhere": web_is(lambda day: day.lab.vm("other", day.elsewhere())),
    "mixed": web_is(lambda day: day.lab.vm("mixed", day.lab.vdi("Production", "before")[0], day.elsewhere())),
    "bare": web_is(lambda day: day.lab.vm("bare")),
    "kept": lambda day: (bring_back(day), keep(day)),
    "one is kept": lambda day: (bring_back(day, devices=["0"]), keep(day)),
    "kept beside another": lambda day: (bring_back(day), keep(day), day.hang("1", day.elsewhere())),
    "copied by xapi": web_is(copied_by_xapi),
    "a copy": web_is(lambda day: day.ref_of(day.clone_one())),
    "has a copy": lambda day: day.clone("web"),
    "has a strange device": lambda day: day.db.set("VBD", day.vbd("1"), "userdevice", "0x1"),
    "is a disk by hand": lambda day: with_helper(day, day.new(day.data)),
    "in a cluster": lambda day: (day.db.set("VDI", day.data, "sharable", True), day.lab.vm("node2", day.data)),
    "cut, and lent by hand": lambda day: (day.cut(bring_back, "VBD.destroy"), with_helper(day, day.new(day.data))),
    "spoiled": lambda day: (bring_back(day), day.set_journal(lambda it: {**it, "relvmoiscsi:restore:0": "x"})),
    "a forged device": lambda day: (bring_back(day), day.set_journal(with_device('9" or field "uuid" = "x'))),
    "old disk gone": lambda day: (bring_back(day), day.db.destroy("VDI", day.root)),
    "old disk elsewhere": lambda day: (bring_back(day), with_helper(day, day.root)),
    "empty drive": lambda day: (bring_back(day), day.db.set("VBD", day.vbd("1"), "VDI", NULL)),
    "busy": lambda day: (bring_back(day), day.db.set("VM", day.web, "current_operations", {"x": "migrate_send"})),
}


@pytest.mark.parametrize(
    ("happens", "work", "said"),
    [
        ("no tools", shutting_down(bring_back), "no PV drivers.* Nothing was changed. Shut down from inside"),
        ("a guest that stays", shutting_down(bring_back), "VM_SHUTDOWN_TIMEOUT"),
        ("suspended", shutting_down(bring_back), "Its memory would not match its disks"),
        ("nothing", of_disk("5"), "has no disk 5. Give disks that it has: 0,1"),
        ("elsewhere", bring_back, "is not on this copy"),
        ("mixed", bring_back, "The disk 1 of the VM.* is not on this copy. Restore only the other disks: `--disk 0`"),
        ("bare", bring_back, "has no disk"),
        ("kept", bring_back, r"The disk 0 of the VM, 'root disk' \('\S{36}'\), is a disk of this copy already.$"),
        ("one is kept", bring_back, "is a disk of this copy already. Restore only the other disks: `--disk 1`"),
        ("kept beside another", of_disk("1"), r"'data' \('\S{36}'\), is not on this copy.$"),
        (
            "has a copy",
            bring_back,
            "already. Attach .*Or shut 'web on Production .*' down, and run `xe vm-destroy uuid=\\S{36}`",
        ),
        (
            "has a strange device",
            bring_back,
            "cannot note the disk '0x1' of .* neither a number nor a name such as xvda",
        ),
        ("has a strange device", of_disk("0x1"), "cannot note the disk .* with --disk"),
        ("is a disk by hand", bring_back, "'helper' already. .* Or shut 'helper' down, and remove the disk from it.$"),
        ("a copy", bring_back, r"The disk 0 of the VM, 'root disk' \('\S{36}'\), is a disk of this copy already.$"),
        ("copied by xapi", bring_back, "The disk 0 of the VM, .* is not on this copy: it is newer than the snapshot"),
        ("in a cluster", bring_back, "is shared with 'node2': a restore would give only this VM"),
        ("cut, and lent by hand", bring_back, "is a disk, or the memory, of 'helper' as well"),
        ("spoiled", undo, "cannot be read: .* --keep"),
        ("a forged device", undo, "its device is neither a number nor a name such as xvda.* --keep"),
        ("old disk gone", undo, "is no longer in the pool"),
        ("old disk elsewhere", undo, "is a disk, or the memory, of 'helper' as well"),
        ("empty drive", undo, "it has no VDI, and not"),
        ("busy", undo, "The pool is busy with the VM 'web': migrate_send"),
        ("busy", take_home, "The pool is busy with the VM 'web': migrate_send"),
    ],
)
def test_what_is_refused(halted, happens, work, said):
    HAPPENS[happens](halted)
    halted.refuses(work, said, (Refused, NotFound, UsageError, PoolFailure))


def test_a_copy_by_a_person_has_the_journal_of_another_vm_and_was_not_restored(halted):
    its_copy(halted)
    before = halted.rows()
    assert undo(halted).status == "not restored" and halted.rows() == before


@pytest.mark.parametrize("work", [bring_back, undo, take_home], ids=["restore", "undo", "home"])
def test_a_disk_of_a_person_stays_where_it_is(halted, work):
    bring_back(halted)
    halted.hang("1", halted.elsewhere())
    halted.refuses(work, "The disk 1 of the VM 'web' is not what it was: it has the VDI")
    halted.db.destroy("VBD", halted.vbd("1"))  # as the sentence says
    assert undo(halted).status == "undone" and halted.names() == ["root disk", "data"]


@pytest.mark.parametrize(
    ("happens", "is_of_second", "said"),
    [
        (lambda day: (bring_back(day), take_home(day)), True, "is not what it was"),
        (bring_back, True, "was restored by another run"),
        (
            lambda day: day.db.set("VBD", day.vbd("1"), "mode", "RO"),
            False,
            "has changed the disk 1 .* Nothing was changed. Repeat the com",
        ),
        (
            lambda day: day.clone("web"),
            False,
            "is a disk, or the memory, of 'web on Production changed 2026-11-21' as well. Nothing was changed. "
            "Remove the disk from there",
        ),
    ],
    ids=["at home again", "restored", "another mode", "a clone"],
)
def test_yes_to_a_plan_that_is_old_changes_nothing(halted, happens, is_of_second, said):
    sr = second_copy(halted) if is_of_second else halted.sr
    with connect(halted.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        swaps = restore.plan(calls, pool, found, owners.copy_of(pool, found, sr), halted.web, [], "then")
        happens(halted)
        halted.refuses(lambda day: restore.restore(calls, day.web, swaps), said)


@pytest.mark.parametrize(
    ("role", "priority", "said"),
    [
        ("vm-operator", "", "may not call VBD.create. .* Use the role vm-admin or a higher role."),
        # VM.set_ha_restart_priority takes pool-operator, and so does the key that keeps the priority
        (
            "vm-power-admin",
            "restart",
            "The role of this user may not set the priority. Nothing was changed. Use the role",
        ),
        ("vm-power-admin", "", ""),
    ],
)
def test_who_may_not_write_the_journal_or_change_ha_shuts_nothing_down(day, role, priority, said):
    day.db.set("VM", day.web, "ha_restart_priority", priority)
    day.lab.pool.api.users["eve"] = ("pw", role)
    where = Where(day.lab.pool.url, "eve", "pw")
    if said:
        for dry_run in (True, False):
            more = {"where": where, "shutdown": True, "dry_run": dry_run}
            day.refuses(lambda day, more=more: bring_back(day, **more), said, RelvmoiscsiError)
    else:
        assert bring_back(day, where=where, shutdown=True).status == "restored"


@BOTH
@pytest.mark.parametrize("priority", ["", "restart"])
def test_started_while_it_was_looked_at_it_is_as_it_was(halted, work, priority):
    halted.db.set("VM", halted.web, "ha_restart_priority", priority)
    if work is undo:
        bring_back(halted)
    before = halted.db.record("VM", halted.web)
    halted.lab.before("VM.add_to_blocked_operations", halted.start)
    with pytest.raises(Refused, match="is not halted but running. Nothing was changed. Add --shutdown"):
        work(halted)
    protected = {"ha_always_run": priority == "restart"}  # as after any start of a VM that HA restarts
    started = {"power_state": "Running", "allowed_operations": [], **protected}
    assert {**halted.db.record("VM", halted.web), "allowed_operations": []} == {**before, **started}


def test_refused_when_it_was_shut_down_that_is_said(day):
    day.lab.before("Async.VM.clean_shutdown", lambda: day.lab.vm("other", day.new(day.root)))
    with pytest.raises(
        RelvmoiscsiError, match="is a disk, or the memory, of 'other' as well.* was shut down for this run"
    ):
        bring_back(day, shutdown=True)
    assert not day.journal() and not day.db.get("VM", day.web, "blocked_operations")


# --- while the SR of the original is away, which is when somebody restores


@pytest.mark.parametrize(("back", "status"), [(undo, "undone"), (keep, "kept as it is")])
def test_without_the_sr_of_the_original_all_is_done_but_the_names(halted, back, status):
    for pbd in halted.db.refs("PBD", SR=halted.lab.originals["Production"][1]):
        halted.db.set("PBD", pbd, "currently_attached", False)
    done = bring_back(halted)
    assert done.status == "restored" and halted.srs() == {halted.sr} and halted.names() == ["root disk", "data"]
    assert not halted.db.get("VM", halted.web, "blocked_operations")
    why = "No suitable host has the SR attached (VDI.set_name_label)."
    expected = [f"The VDI {halted.uuid(vdi)} keeps its name: {why}" for vdi in (halted.root, halted.data)]
    assert [note.split(" Rename")[0] for note in done.notes] == expected
    command = f"xe vdi-param-set uuid={halted.uuid(halted.root)} name-label='root disk before restore 2026-11-22'"
    assert f"`{command}`" in done.notes[0]

    waiting = [f"{name} before restore 2026-11-22" for name in halted.names()]
    for vdi, name in zip((halted.root, halted.data), waiting):  # a person has named them when the SR was there
        halted.db.set("VDI", vdi, "name_label", name)
    if back is keep:
        halted.db.set("VBD", halted.vbd("0"), "VDI", halted.root)
    ended = back(halted)
    assert ended.status == status and not halted.journal() and halted.names() == waiting
    assert any(f"{halted.uuid(halted.root)} keeps its name" in note for note in ended.notes)
    assert not halted.db.get("VM", halted.web, "blocked_operations")


def test_a_name_that_takes_too_long_is_not_waited_for(halted, monkeypatch):
    monkeypatch.setattr(swap_disks, "NAME_SECONDS", 0.05)
    halted.lab.pool.api.tasks_end_at_once, release = False, threading.Event()
    name = halted.lab.answer("VDI.set_name_label", lambda *words: (release.wait(60), name(*words))[1])
    done = bring_back(halted)
    release.set()
    assert done.status == "restored" and "did not end within 0 s and continues in the pool" in done.notes[0]
    until(lambda: halted.lab.pool.is_at_rest)


# --- others have the disks, the journal, the VM


def test_a_disk_that_another_vm_has_keeps_its_name_and_the_other_has_no_copy_on_the_same_disk(halted):
    halted.lab.vm("backup", halted.data)
    (note,) = bring_back(halted).notes
    assert "is also one of 'backup', and keeps its name" in note and halted.names()[1] == "data"
    (done,) = halted.clone("backup")
    assert "The copy of the disk" in str(done.error) and "'web' already" in str(done.error)


def test_a_journal_of_another_vm_is_written_over(halted):
    bring_back(halted)
    journal = halted.db.get("VM", halted.web, "other_config")
    undo(halted)
    other = {key: json.dumps({**json.loads(text), "vm": "another"}) for key, text in journal.items() if key != "folder"}
    halted.set_journal(lambda marks: {**marks, **other})
    bring_back(halted)
    undo(halted)
    assert halted.names() == ["root disk", "data"]


def test_a_person_who_hangs_a_disk_there_at_this_very_moment_keeps_it(halted):
    mine = halted.elsewhere()
    halted.lab.before("VBD.create", lambda: halted.hang("0", mine))
    with pytest.raises((Refused, PoolFailure), match="Another client has just changed the disk 0 of the VM 'web'"):
        bring_back(halted)
    assert halted.lab.disks_of(halted.web)["0"][1] == halted.uuid(mine)
    assert halted.db.get("VM", halted.web, "blocked_operations")


@BOTH
def test_a_disk_that_another_vm_gets_during_the_swap_keeps_the_vm_from_its_start(halted, work):
    """It may come between the last look at the users of the disk and VBD.create."""
    if work is undo:
        bring_back(halted)
    vdi, other = halted.new(halted.data) if work is bring_back else halted.data, halted.lab.vm("other")
    halted.lab.before("VBD.create", lambda: halted.db.create("VBD", VM=other, VDI=vdi, userdevice="0"), 2)
    with pytest.raises(Refused, match="is a disk, or the memory, of 'other' as well"):
        work(halted)
    assert halted.db.get("VM", halted.web, "blocked_operations") and halted.journal()
    (vbd,) = halted.db.refs("VBD", VM=other)
    halted.db.destroy("VBD", vbd)
    assert work(halted).status in ("restored", "undone")
    assert not halted.db.get("VM", halted.web, "blocked_operations")


@pytest.mark.parametrize(
    ("field", "device"), [("userdevice", "xvda"), ("userdevice", "hda"), ("userdevice", "0"), ("device", "xvda")]
)
@pytest.mark.parametrize("work", [bring_back, undo])
def test_a_drive_that_xapi_takes_for_the_device_of_a_disk_stops_a_run_before_its_first_change(
    halted, work, field, device
):
    """A run destroyed the VBD of the disk, and xapi refused the next one. A drive that was plugged has a `device`."""
    if work == undo:
        bring_back(halted)
    fields = {"userdevice": "7", "type": "CD", "mode": "RO", "empty": True, field: device}
    halted.db.create("VBD", VM=halted.web, **fields)
    for dry_run in (True, False):
        said = halted.refuses(
            lambda day, dry_run=dry_run: work(day, dry_run=dry_run), "xapi takes this drive and the disk 0"
        )
    (command,) = commands_in(said)
    assert problem_of(command) == "" and xe(halted.lab.pool, shlex.split(command)[1:])[0] == 0
    assert work(halted).status in ("restored", "undone")


@pytest.mark.parametrize(
    ("fields", "way"),
    [
        ({"userdevice": "7", "device": "xvda"}, "start the VM and shut the VM down"),
        ({"userdevice": "xvda"}, "at a free device, with VBD.set_userdevice"),
        ({"userdevice": "xvda", "type": "Floppy"}, "at a free device, with VBD.set_userdevice"),
    ],
)
def test_no_advice_removes_another_disk_of_the_vm(halted, fields, way):
    """VBD.set_userdevice exchanges the devices of two disks, and VBD.device keeps the old ones until the next start."""
    vbd = halted.db.create("VBD", VM=halted.web, VDI=halted.elsewhere(), **fields)
    said = halted.refuses(lambda day: bring_back(day, devices=["0", "1"]), "xapi takes this drive and the disk 0")
    assert way in said and not commands_in(said), "`xe vbd-destroy` made it a VM without that disk"
    halted.db.set("VBD", vbd, "userdevice", "7"), halted.db.set("VBD", vbd, "device", "xvdh")
    assert bring_back(halted, devices=["0", "1"]).status == "restored"


@pytest.mark.parametrize("work", [bring_back, undo])
def test_after_a_cut_a_plan_says_that_a_disk_cannot_be_attached_again(halted, work):
    halted.cut(bring_back, "VM.remove_from_blocked_operations")
    halted.lab.later()
    halted.db.create("VBD", VM=halted.web, userdevice="xvda", type="CD", mode="RO", empty=True)
    for dry_run in (True, False):
        halted.refuses(lambda day, dry_run=dry_run: work(day, dry_run=dry_run), "xapi takes this drive and the disk 0")


@pytest.mark.parametrize("device", ["sdq", "fdd", "xvda16", "1048576"])
def test_a_disk_at_no_device_of_xapi_is_not_restored(halted, device):
    halted.db.set("VBD", halted.vbd("0"), "userdevice", device)
    halted.refuses(
        bring_back, f"The device {device} of a disk .* is no disk of a bus that xapi knows.* at another device"
    )


@pytest.mark.parametrize("work", [bring_back, undo])
def test_a_vdi_for_reading_alone_stops_a_run_before_its_first_change(halted, work):
    """A vm-admin sets VDI.read_only. xapi makes no VBD that writes to such a VDI."""
    if work == undo:
        bring_back(halted)
    halted.db.set("VDI", halted.new(halted.data) if work == bring_back else halted.data, "read_only", True)
    halted.refuses(work, "is for reading alone, .* as the disk 1")


def test_snapshots_are_told_before(halted):
    halted.snapshot()
    (note,) = bring_back(halted).notes
    assert note.startswith("It has snapshots ('before the update'): a revert to a snapshot silently undoes the restore")


# --- cut; and nobody starts it between the first disk and the last


@pytest.mark.states
@BOTH
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
                assert "Another client has locked" in str(refused)
                refusals += 1
            unlock(halted)
        halted.lab.later()
        if then is bring_back:
            assert {swap.new for swap in then(halted).disks} == {uuid for _, uuid in expected.values()}
            assert halted.lab.disks_of(halted.web) == expected
        if halted.journal():
            undo(halted)
        assert seen(halted) == before and halted.names() == ["root disk", "data"]
    assert refusals


@BOTH
def test_half_swapped_it_cannot_be_started(halted, work):
    if work is undo:
        bring_back(halted)
    halted.cut(work, "VBD.destroy", 2)
    blocked = halted.db.get("VM", halted.web, "blocked_operations")
    assert set(blocked) == {"start", "start_on", "resume"}
    assert f"relvmoiscsi pool restore --undo {halted.db.get('VM', halted.web, 'uuid')}" in blocked["start"]
    halted.refuses(lambda day: day.start(), "OPERATION_BLOCKED", XenError)
    halted.refuses(take_home, "was interrupted")
    undo(halted)
    assert not halted.db.get("VM", halted.web, "blocked_operations")


def test_another_disk_alone_does_not_end_what_was_cut_and_another_copy_is_none(halted):
    second = second_copy(halted)
    halted.cut(bring_back, "VBD.destroy", 2)
    name = f"'{halted.copy.name}' [(]{halted.copy.sr_uuid}[)]"
    halted.refuses(lambda day: bring_back(day, sr=second), f"was restored from the copy {name}[.] ")
    bring_back(halted, devices=["0"])
    assert halted.srs() == {halted.sr}


def test_what_somebody_else_has_blocked_stays_his(halted):
    halted.db.set("VM", halted.web, "blocked_operations", {"start": "mine"})
    bring_back(halted)
    undo(halted)
    assert halted.db.get("VM", halted.web, "blocked_operations") == {"start": "mine"}


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_ha_does_not_start_it_and_has_it_again_afterwards(halted, finish):
    halted.db.set("VM", halted.web, "ha_always_run", True)
    halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
    halted.cut(bring_back, "VBD.destroy", 2)
    assert halted.web not in halted.lab.pool.api.vms.that_ha_would_start()
    finish(halted)
    assert halted.web in halted.lab.pool.api.vms.that_ha_would_start()
    assert not [key for key in halted.db.get("pool", halted.lab.pool.pool, "other_config") if "restore-ha" in key]


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_a_vm_admin_neither_gives_nor_takes_a_restart_priority_by_a_key_of_the_vm(halted, finish):
    """VM.set_ha_restart_priority takes a pool-operator, who is asked to restore the VM or to undo that."""
    key = "relvmoiscsi:restore-ha"
    bring_back(halted)
    uuid = halted.db.get("VM", halted.web, "uuid")
    halted.set_journal(lambda marks: {**marks, key: f"{uuid} restart"})
    finish(halted)
    assert halted.db.get("VM", halted.web, "ha_restart_priority") == ""
    undo(halted)
    halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
    halted.cut(bring_back, "VBD.destroy", 2)
    halted.set_journal(lambda marks: {name: text for name, text in marks.items() if name != key})
    halted.db.set("VM", halted.web, "blocked_operations", {})
    finish(halted)
    assert halted.db.get("VM", halted.web, "ha_restart_priority") == "restart"


def left_without_its_priority(day):
    """A run was cut before its end, and a vm-admin has removed the block of the start."""
    day.db.set("VM", day.web, "ha_restart_priority", "restart")
    day.cut(bring_back, "VM.set_ha_restart_priority", 2)
    day.db.set("VM", day.web, "blocked_operations", {})


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_a_restore_is_over_only_when_the_vm_has_its_restart_priority_again(halted, finish):
    left_without_its_priority(halted)
    for work in (take_home, keep):
        halted.refuses(work, "A restore of the VM 'web' was interrupted")
    halted.lab.pool.api.users["eve"] = ("pw", "vm-admin")
    eve = Where(halted.lab.pool.url, "eve", "pw")
    halted.lab.later()
    halted.refuses(lambda day: finish(day, where=eve), "in a key of the pool.*Use the role pool-operator")
    finish(halted)
    assert halted.db.get("VM", halted.web, "ha_restart_priority") == "restart"
    assert not [key for key in halted.db.get("pool", halted.lab.pool.pool, "other_config") if "restore-ha" in key]


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_a_run_that_was_cut_before_its_block_has_left_the_vm_as_it_was(halted, finish):
    """A vm-admin is told of the key, and neither that disks may be swapped nor that the start is blocked."""
    halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
    halted.cut(bring_back, "VM.add_to_blocked_operations")
    halted.lab.pool.api.users["eve"] = ("pw", "vm-admin")
    eve = Where(halted.lab.pool.url, "eve", "pw")
    halted.lab.later()
    told = halted.refuses(lambda day: finish(day, where=eve), "Nothing was changed. Use the role pool-operator")
    assert "swapped" not in told and "blocked" not in told and "without its" not in told
    finish(halted)
    assert halted.db.get("VM", halted.web, "ha_restart_priority") == "restart"
    assert not [key for key in halted.db.get("pool", halted.lab.pool.pool, "other_config") if "restore-ha" in key]


def test_a_vm_without_a_journal_gets_a_restart_priority_that_was_left(halted):
    """By `keep` alone: nothing says which disks the VM had before."""
    left_without_its_priority(halted)
    halted.set_journal(lambda _: {})
    halted.lab.later()
    for work in (undo, take_home):
        halted.refuses(work, "was interrupted, and the VM has no journal: .*Nothing was changed.*--keep")
    keep(halted)
    assert halted.db.get("VM", halted.web, "ha_restart_priority") == "restart"


@pytest.mark.parametrize("finish", [bring_back, keep], ids=["restore", "keep"])
def test_a_vm_that_has_lost_a_disk_and_its_journal_is_not_called_undone(halted, finish):
    """A vm-admin removes the keys of an interrupted restore."""
    halted.cut(bring_back, "VBD.create")
    halted.set_journal(lambda _: {})
    halted.lab.later()
    for work in (undo, take_home):
        halted.refuses(work, "nothing says which disks the VM had before. .*attach each disk that the VM lacks.*--keep")
    halted.hang("0", halted.root)
    assert finish(halted).status in ("restored", "kept as it is")
    assert halted.db.get("VM", halted.web, "blocked_operations") == {}


@pytest.mark.parametrize("work", [undo, take_home])
def test_a_disk_on_a_copy_that_the_journal_does_not_name_gives_no_vm_of_two_dates(halted, work):
    bring_back(halted)
    halted.set_journal(lambda keys: {key: text for key, text in keys.items() if not key.endswith(":0")})
    halted.refuses(work, "The disk 0 of the VM 'web' is on a copy, and the journal .* does not name that disk.*--keep")
    assert keep(halted).status == "kept as it is"


@pytest.mark.parametrize("work", [undo, take_home])
def test_a_disk_that_was_lent_to_a_restored_vm_is_none_that_its_journal_lacks(halted, work):
    halted.db.destroy("VBD", halted.vbd("1"))
    halted.lab.vm("other", halted.data)
    bring_back(halted)
    lend(halted, halted.uuid(halted.new(halted.data)), halted.web)
    assert work(halted).status in ("undone", "home")


def test_a_forged_block_leaves_nothing_of_a_restore_that_shuts_down_no_vm(day):
    """A vm-admin writes the text of a restore. The run took the block for that of an earlier run."""
    vms, reason = day.lab.pool.api.vms, restore_journal._REASON
    vms.refuses_shutdown.add(day.web)
    vms.vm_add_to_blocked_operations("", day.web, "start", reason + " x")
    with pytest.raises(PoolFailure, match="VM_SHUTDOWN_TIMEOUT.* Nothing was changed"):
        bring_back(day, shutdown=True)
    assert not day.journal() and day.db.get("VM", day.web, "blocked_operations") == {}


@pytest.mark.parametrize("finish", [bring_back, undo], ids=["restore", "undo"])
def test_a_run_that_was_cut_at_any_call_leaves_a_restart_priority_that_the_next_run_sets(halted, finish):
    for method in ("VM.add_to_blocked_operations", "VM.set_ha_restart_priority", "VBD.destroy"):
        halted.db.set("VM", halted.web, "ha_restart_priority", "restart")
        halted.cut(bring_back, method, 1)
        finish(halted)
        assert halted.db.get("VM", halted.web, "ha_restart_priority") == "restart", method
        if finish is bring_back:
            undo(halted)
    assert not [key for key in halted.db.get("pool", halted.lab.pool.pool, "other_config") if "restore-ha" in key]
