# SPDX-License-Identifier: LGPL-2.1-only
"""A restored VM comes home by migration; where neither this nor undo can end the restore, it is kept as it is."""

import json
import shlex

import pytest

from kit.advised import commands_in, problem_of
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_verbs import VBD, bring_back, discard, keep, second_copy, take_home, undo
from kit.xe import xe
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import restore_entries, vbds
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.pool.vms.run_states import only_in_journal

HAS_SNAPSHOTS = "has snapshots: 'before the update'. The pool would move the disks of the snapshots too"


@pytest.fixture
def restored(day_after):
    return day_after(bring_back)


def original(day):
    return day.lab.originals["Production"][1]


def is_restored(day):
    return "relvmoiscsi:restore:0" in day.journal()


# --- home


def test_home_the_disks_are_on_the_sr_of_those_before_and_the_moved_bytes_are_told(restored):
    db, old = restored.db, [restored.root, restored.data]
    sizes = [int(db.get("VDI", restored.new(vdi), "virtual_size")) for vdi in old]
    restored.start()
    moved, devices = [], []
    done = take_home(restored, tell=devices.append, progress=lambda *sizes: moved.append(sizes))
    assert done.status == "home" and restored.srs() == {original(restored)} and not restored.journal()
    assert set(done.waiting) == {restored.uuid(vdi) for vdi in old} and devices == ["0", "1"]
    assert restored.names() == ["root disk before restore 2026-11-22", "data before restore 2026-11-22"]
    assert db.get("VM", restored.web, "power_state") == "Running"
    assert [size for part, size in moved if part == size] == sizes and all(0 <= part <= size for part, size in moved)


def test_home_of_a_halted_vm_for_which_no_host_has_memory_says_what_xapi_looks_for(restored):
    restored.lab.pool.api.vms.free_memory_bytes = 1 << 20
    with pytest.raises(PoolFailure, match="xapi found no running host for VDI.pool_migrate. .* enough free memory"):
        take_home(restored)
    restored.lab.pool.api.vms.free_memory_bytes = 8 << 30
    assert take_home(restored).status == "home"


def test_home_when_the_disks_before_were_destroyed(restored):
    for vdi in (restored.root, restored.data):
        restored.lab.pool.api.vms.vdi_destroy("", vdi)
    restored.refuses(
        undo,
        "--undo is impossible. Nothing was changed. `relvmoiscsi pool restore --home .* keeps the restored state",
        NotFound,
    )
    done = take_home(restored)
    assert done.status == "home" and not done.waiting and restored.srs() == {original(restored)}


@pytest.mark.states
def test_killed_at_a_call_of_each_kind_it_comes_home(restored, deaths):
    for _ in deaths(lambda: take_home(restored), each_moment=True):
        restored.lab.later()
        until(lambda: restored.lab.pool.is_at_rest)
        if restored.journal():
            take_home(restored)
        assert restored.srs() == {original(restored)} and not restored.journal()


def test_a_disk_before_that_somebody_has_is_not_called_no_longer_needed(restored):
    restored.lab.vm("forensics", restored.root)
    restored.db.create("VBD", VM=restored.web, VDI=restored.data, userdevice="7")
    done = take_home(restored)
    assert not done.waiting
    assert (
        f"The VDI {restored.uuid(restored.root)} is a disk, or the memory, of 'forensics': keep the VDI." in done.notes
    )
    assert f"The VDI {restored.uuid(restored.data)} is a disk, or the memory, of 'web': keep the VDI." in done.notes


def test_a_disk_before_in_a_floppy_drive_of_another_vm_is_not_called_no_longer_needed(restored):
    """A printed `xe vdi-destroy` would take the VDI from that VM."""
    restored.db.create("VBD", VM=restored.lab.vm("forensics"), VDI=restored.root, userdevice="0", type="Floppy")
    done = take_home(restored)
    kept = f"The VDI {restored.uuid(restored.root)} is a disk, or the memory, of 'forensics': keep the VDI."
    assert restored.uuid(restored.root) not in done.waiting and kept in done.notes


def reverted(day):
    """What VM.revert does to disks: a clone of the snapshot's VDI takes the place, on the same SR.

    Source: xapi_vm_snapshot.ml, revert_vbds. The journal stays, and so the copy cannot be discarded.
    """
    for device in "01":
        old = day.db.get("VBD", day.vbd(device), "VDI")
        day.hang(device, day.vdi_on_copy("reverted-" + device)), day.db.destroy("VDI", old)


def reverted_after_an_undo(day):
    """To a snapshot of after the restore: xapi gives back the journal as well."""
    journal = day.db.get("VM", day.web, "other_config")
    undo(day)
    day.set_journal(lambda _: journal), day.db.set("VBD", day.vbd("0"), "VDI", day.vdi_on_copy("reverted"))


def half_way_home(day):
    """One disk of two was moved; gives that one's reference."""
    day.cut(take_home, "Async.VDI.pool_migrate", 2)
    return day.db.get("VBD", day.vbd("0"), "VDI")


def of_copy(field, value):
    return lambda day: day.db.set("VDI", day.new(day.data), field, value)


def on_boot_reset(day, vdi):
    day.db.set("VDI", vdi, "on_boot", "reset")
    return vdi


def lent(day):
    day.db.create("VBD", VM=day.lab.vm("helper", state="Running"), VDI=day.new(day.root), userdevice="5")


def in_a_floppy_drive(vm_of, device):
    """A vm-admin sets the type (VBD.set_type). xapi moves a VDI for the VM of any drive with the VDI."""
    return lambda day: day.db.create("VBD", VM=vm_of(day), VDI=day.new(day.root), userdevice=device, type="Floppy")


HAPPENS = {
    "in a floppy drive": in_a_floppy_drive(lambda day: day.lab.vm("helper"), "0"),
    "in a floppy drive of its own": in_a_floppy_drive(lambda day: day.web, "fda"),
    "reverted": reverted,
    "reverted after an undo": reverted_after_an_undo,
    "lent": lent,
    "has a snapshot": lambda day: day.snapshot(),
    "no SR": lambda day: day.db.destroy("SR", original(day)),
    "tracks blocks": of_copy("cbt_enabled", True),
    "is reset": of_copy("on_boot", "reset"),
    "another disk is reset": lambda day: day.db.create(
        "VBD", VM=day.web, VDI=on_boot_reset(day, day.elsewhere()), userdevice="7"
    ),
    "encrypted": of_copy("sm_config", {"key_hash": "x"}),
    "hidden": of_copy("managed", False),
    "no disk": lambda day: day.db.destroy("VBD", day.vbd("0")),
    # a disk on the same SR: it is not the one that has come
    "another one": lambda day: (half_way_home(day), day.hang("0", day.lab.vdi("Production", "before")[0])),
    "half the way": lambda day: (half_way_home(day), day.start()),
}


@pytest.mark.parametrize(
    ("happens", "work", "said"),
    [
        ("reverted", take_home, "is not what it was"),
        ("reverted after an undo", undo, "--keep"),
        ("reverted after an undo", take_home, "--keep"),
        ("reverted after an undo", bring_back, "--keep"),
        ("lent", take_home, "is a disk, or the memory, of 'helper' as well.*rescue --done"),
        ("in a floppy drive", take_home, "is a disk, or the memory, of 'helper' as well"),
        ("in a floppy drive of its own", take_home, "is a disk, or the memory, of 'web' as well"),
        ("has a snapshot", take_home, HAS_SNAPSHOTS),
        ("no SR", take_home, "held the old disks, is no longer in the pool.*--keep"),
        ("tracks blocks", take_home, "the disk 1 of the VM 'web'.*changed block tracking"),
        ("is reset", take_home, "the disk 1 of the VM 'web'.*on-boot=persist"),
        ("another disk is reset", take_home, "the disk 7 of the VM 'web'.*on-boot=persist"),
        ("encrypted", take_home, "the disk 1 of the VM 'web', is encrypted by its sm_config"),
        ("hidden", take_home, "the disk 1 of the VM 'web', is hidden, and the pool cannot move .*--undo"),
        ("no disk", take_home, "was interrupted, .* Nothing was changed. .* --undo .* --keep"),
        ("another one", undo, "The disk 0 of the VM 'web' is not what it was"),
        ("another one", take_home, "The disk 0 of the VM 'web' is not what it was"),
        ("half the way", lambda day: bring_back(day, shutdown=True), "are being moved to its own SR"),
    ],
)
def test_what_is_refused_keeps_disks_and_journal(restored, happens, work, said):
    HAPPENS[happens](restored)
    restored.refuses(work, said, (Refused, NotFound))
    assert is_restored(restored)


@pytest.mark.parametrize("happens", ["tracks blocks", "is reset", "another disk is reset", "encrypted"])
def test_the_command_of_the_refusal_lets_the_disk_be_moved(restored, happens):
    HAPPENS[happens](restored)
    with pytest.raises(Refused) as refused:
        take_home(restored)
    (command,) = commands_in(str(refused.value))
    assert problem_of(command) == "" and xe(restored.lab.pool, shlex.split(command)[1:]) == (0, "", "")
    assert take_home(restored).status == "home"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("power_state", "Paused", "VM_BAD_POWER_STATE"), ("metrics", "an SR", "VM_metrics")],
)
def test_what_xapi_does_not_move_it_says_in_the_plan(restored, field, value, said):
    restored.db.forge("VM", restored.web, field, restored.sr if value == "an SR" else value)
    for work in (lambda day: take_home(day, dry_run=True), take_home):
        restored.refuses(work, said, PoolFailure)


def test_home_looks_at_what_was_moved(restored):
    """xapi takes the VM of the first VBD, and points only that one's to the new VDI."""
    mine = restored.vbd("0")
    real = restored.lab.answer("VDI.pool_migrate", lambda *words: (real(*words), restored.db.destroy("VBD", mine)))
    with pytest.raises(PoolFailure, match="not on the SR .* as done. The VM .* each restored disk is on the copy"):
        take_home(restored)
    assert is_restored(restored)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (("SR_BACKEND_FAILURE_44", "", "There is insufficient space", ""), ["insufficient space"]),
        (
            ("LICENCE_RESTRICTION", "Storage_motion"),
            ["does not allow VDI.pool_migrate (Storage_motion).", "stays on the copy", "--keep", "--undo"],
        ),
    ],
)
def test_what_the_pool_does_not_move_stays_on_the_copy_with_its_journal(restored, error, said):
    restored.lab.refuse("VDI.pool_migrate", *error)
    with pytest.raises(PoolFailure) as failed:
        take_home(restored)
    assert all(words in str(failed.value) for words in said)
    assert is_restored(restored) and restored.srs() == {restored.sr}


@pytest.mark.parametrize("ends", [take_home, keep])
def test_disks_that_came_home_are_restored_and_cloned_from_every_other_copy(halted, ends):
    """They have new UUIDs, which no copy of an earlier snapshot has."""
    other, old = second_copy(halted), halted.lab.disks_of(halted.web)
    bring_back(halted)
    if ends is keep:
        for device in "01":
            halted.hang(device, halted.db.create("VDI", SR=original(halted), managed=True, name_label="moved"))
    ends(halted)
    at_home = halted.lab.disks_of(halted.web)
    for number in (1, 2):
        done = bring_back(halted, sr=other, date=f"2026-12-0{number}")
        assert done.status == "restored" and halted.srs() == {other}
        undo(halted)
        assert halted.lab.disks_of(halted.web) == at_home
    uuid = halted.db.get("SR", other, "uuid")
    (cloned,) = halted.lab.clone_vms(uuid, everything=True)
    expected = {device: (other, derived_uuid(uuid, vdi)) for device, (_, vdi) in old.items()}
    assert cloned.status == "cloned" and halted.lab.disks_of(halted.ref_of(cloned)) == expected


def test_after_the_second_way_home_a_third_copy_still_has_the_disks(restored):
    second, third = second_copy(restored), second_copy(restored)
    take_home(restored)
    bring_back(restored, sr=second), take_home(restored)
    assert bring_back(restored, sr=third).status == "restored" and restored.srs() == {third}


@pytest.mark.parametrize("has_it", ["the disk before", "a copy by xapi"])
def test_a_disk_that_came_home_is_the_disk_of_one_vm(restored, has_it):
    """Two VMs with the same disk of a copy would write to it: no mark gives a VM the disk of another one."""
    second = second_copy(restored)
    take_home(restored)
    if has_it == "the disk before":
        restored.lab.vm("forensics", restored.root, restored.data)
        restored.refuses(lambda day: bring_back(day, sr=second), "is not on this copy")
    else:  # VM.copy takes other_config of the VDIs along
        config = restored.db.get("VDI", restored.db.get("VBD", restored.vbd("0"), "VDI"), "other_config")
        copied = restored.db.create("VDI", SR=original(restored), managed=True, other_config=config)
        vm = restored.lab.vm("copied", copied)
        restored.refuses(lambda day: bring_back(day, vm, sr=second), "is not on this copy")
        assert bring_back(restored, sr=second).status == "restored"


def test_a_move_by_another_tool_within_one_look_is_seen(restored):
    """The tool moves the disk home after the look has found the VDI of the copy."""
    there, home = restored.new(restored.root), original(restored)
    was = restored.uuid(there)
    restored.lab.before(
        "VBD.get_all_records_where", lambda: restored.lab.pool.api.vms.vdi_pool_migrate("", there, home, {}), 2
    )
    with connect(restored.lab.where()) as calls:
        now = vbds.read(calls, restored.web)
    assert now.find(was) is not None and now.device("0").vdi != was


# --- half the way home


def test_undone_on_the_way_home_what_was_moved_is_told_also_by_the_run_after_a_cut(restored):
    """What the VM has written since is there."""
    moved = restored.uuid(half_way_home(restored))
    restored.cut(undo, "VM.remove_from_blocked_operations")
    done = undo(restored)
    assert (list(done.waiting), done.notes) == ([], [only_in_journal(moved)])
    assert restored.names() == ["root disk", "data"]


def test_undone_on_the_way_home_what_was_moved_is_no_longer_needed(restored):
    moved = restored.uuid(half_way_home(restored))
    done = undo(restored)
    assert (list(done.waiting), done.notes) == ([moved], [])


def moves_and_fails(day):
    """A migration: xapi points the VBDs to the new VDI, then cannot destroy the old one. Source: xapi_vm_migrate.ml."""

    def migrate(_session, vdi, sr, _options):
        row = day.db.record("VDI", vdi)
        new = day.db.create("VDI", SR=sr, location="moved" + vdi, managed=True, name_label=row["name_label"])
        for each in row["VBDs"]:
            day.db.set("VBD", each, "VDI", new)
        raise XenError("SR_BACKEND_FAILURE_46", "", "The VDI is not available", "")

    bring_back(day, devices=["0"])
    day.lab.answer("VDI.pool_migrate", migrate)
    with pytest.raises(PoolFailure, match="The VDI is not available.* Repeat the command"):
        take_home(day)
    return day.lab.disks_of(day.web)["0"]


def test_moved_and_the_source_is_left_it_is_home(halted):
    moved = moves_and_fails(halted)
    done = take_home(halted)
    assert done.status == "home" and halted.lab.disks_of(halted.web)["0"] == moved
    left = [halted.uuid(halted.root), halted.uuid(halted.new(halted.root))]
    assert (done.waiting, done.notes) == ([], list(map(only_in_journal, left)))


@pytest.mark.parametrize("is_known", [True, False], ids=["known as what", "cut at that moment"])
def test_what_was_moved_and_hangs_nowhere_has_nothing_of_before_in_its_place(halted, is_known):
    _, of_the_week = moves_and_fails(halted)
    if not is_known:
        halted.set_journal(lambda marks: {key: text for key, text in marks.items() if "arrived" not in key})
        for work in (undo, take_home):
            source = halted.uuid(halted.new(halted.root))
            halted.refuses(work, f"VDI {source} is on no VM, .* Check that {of_the_week!r} has the latest data")
    halted.db.destroy("VBD", halted.vbd("0"))
    said = "was being moved" + (f", as the VDI {of_the_week!r}" if is_known else "")
    halted.refuses(lambda day: bring_back(day, devices=["0"]), said)
    halted.refuses(take_home, "was interrupted")


@pytest.mark.parametrize("work", [undo, take_home])
def test_a_forged_journal_gets_no_command_that_destroys_a_vdi(halted, work):
    """A vm-admin can write that a run has moved the disk. The refusal said to destroy the VDI of that journal."""
    _, at_home = moves_and_fails(halted)
    halted.set_journal(lambda marks: {key: text for key, text in marks.items() if "arrived" not in key})
    with pytest.raises(Refused, match="was moving the VDI") as refused:
        work(halted)
    assert "vdi-destroy" not in str(refused.value) and "before you destroy it" in str(refused.value)
    assert halted.lab.disks_of(halted.web)["0"][1] == at_home


# --- kept as it is


def test_moved_home_by_hand_it_is_kept_as_it_is(restored):
    """ "Migrate VDI", as Xen Orchestra and XenCenter have it."""
    earlier = second_copy(restored)
    for device in "01":
        vdi = restored.db.get("VBD", restored.vbd(device), "VDI")
        restored.lab.pool.api.vms.vdi_pool_migrate("", vdi, original(restored), {})
    disks = restored.lab.disks_of(restored.web)
    for work in (undo, take_home):
        restored.refuses(work, "Nothing was changed.* `relvmoiscsi pool restore --keep .* leaves all disks")
    done = keep(restored)

    assert done.status == "kept as it is" and not restored.journal() and restored.lab.disks_of(restored.web) == disks
    assert f"disk 0: {disks['0'][1]!r} ('root disk', on the SR 'Production')" in done.notes
    name = "'root disk before restore 2026-11-22', on the SR 'Production'"
    assert f"on no VM: {restored.uuid(restored.root)!r} ({name})" in done.notes
    for copy in (earlier, second_copy(restored)):
        assert bring_back(restored, sr=copy).status == "restored" and restored.srs() == {copy}
        assert undo(restored).status == "undone" and restored.lab.disks_of(restored.web) == disks


def test_what_would_be_kept_is_told_and_nothing_done(restored):
    before = restored.rows()
    told = keep(restored, dry_run=True)
    assert told.status == "would be kept as it is" and "it disappears when that copy is discarded" in told.notes[0]
    assert restored.rows() == before
    other = restored.lab.vm("other")
    before = restored.rows()
    assert keep(restored, other).status == "not restored" and restored.rows() == before


def test_a_vm_without_a_disk_is_kept_and_what_it_lacks_is_told(halted):
    bring_back(halted)
    halted.db.destroy("VBD", halted.vbd("0"))
    done = keep(halted)
    assert "disk 0: none" in done.notes and done.notes[1].startswith("disk 1: ") and not halted.journal()
    assert "lacks the disk 0" in done.start_block and not done.unused_copies


def test_keep_ends_no_restore_that_another_client_begins_before_its_lock(halted):
    """All disks were on the copy then, and without the journal neither --undo nor --home was possible."""
    bring_back(halted, devices=["0"])
    known = keep(halted, dry_run=True).on_copies
    assert len(known) == 1, "one disk is on the copy, and the other is not"
    halted.lab.before("pool.add_to_other_config", lambda: bring_back(halted))
    with pytest.raises(Refused, match="still has disks of the copy, .* Nothing was changed.* --home "):
        keep(halted, may_stay=known)
    assert halted.srs() == {halted.sr} and undo(halted).status == "undone"


def test_a_disk_that_is_its_own_again_has_its_name_again(restored):
    restored.db.set("VBD", restored.vbd("0"), "VDI", restored.root)
    keep(restored)
    assert restored.names() == ["root disk", "data before restore 2026-11-22"]


def spoiled(day):
    day.set_journal(lambda marks: {**marks, "relvmoiscsi:restore:0": "x"})


@pytest.mark.parametrize("happens", [reverted_after_an_undo, spoiled])
def test_what_no_other_command_ends_is_kept(restored, happens):
    happens(restored)
    assert keep(restored).status == "kept as it is" and not restored.journal()


HOSTILE = ["²", '{"a": ' + "9" * 5000 + "}", "[" * 200000, "[" * 1200 + "]" * 1200, "null", '{"vm": {}, "arrived": []}']
#: what `restore` writes, each member a number
NUMBERS = json.dumps(dict.fromkeys(Swap._fields, 1))


def test_a_vm_admin_sends_no_disk_to_another_sr_by_a_key_of_the_vm(restored):
    """VDI.pool_migrate takes a vm-power-admin, who is asked to move the disks to the SR of the VM."""
    other = restored.db.get("SR", restored.lab.originals["Testing"][1], "uuid")
    home = restored.db.get("SR", original(restored), "uuid")
    restored.set_journal(lambda marks: {key: text.replace(home, other) for key, text in marks.items()})
    restored.refuses(take_home, "names the SR .* and that disk is on no copy of that SR. Nothing was changed")


RIGHT_BUT_ONE = json.dumps({**dict.fromkeys(Swap._fields, "x"), "vbd": {}, "new": ["x"]})
#: XML-RPC has no such number, and VBD.create no such field or map
VBDS = [{"bootable": 10**12}, {"new": "x"}, {"other_config": {"a": 10**12}}, {"qos_algorithm_params": "x"}]
RIGHT_BUT_VBD = [json.dumps({**dict.fromkeys(Swap._fields, "x"), "vbd": {**VBD, **vbd}}) for vbd in VBDS]


@pytest.mark.states("text", few=4)
@pytest.mark.parametrize("text", [*HOSTILE, NUMBERS, RIGHT_BUT_ONE, *RIGHT_BUT_VBD])
def test_no_key_of_a_vm_ends_a_command_with_a_bug(restored, text):
    """A vm-admin may write any of them."""
    keys = [begin + end for begin in restore_entries.KEYS for end in ("0", "xvda")]
    restored.set_journal(lambda marks: {**marks, **dict.fromkeys(keys, text), "relvmoiscsi:restore-ha": text})
    with pytest.raises(Refused, match="cannot be read: .* --keep"):
        undo(restored)
    with pytest.raises(RelvmoiscsiError):
        take_home(restored)
    with pytest.raises(Refused):
        discard(restored)
    assert keep(restored).status == "kept as it is"
    assert [key for key in restored.journal() if key != "relvmoiscsi:restore-ha"] == []
