# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool restore`: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import json
import re

import pytest

from kit.office import RESTORE, one_cannot_be
from relvmoiscsi.cli.output import wrapped
from relvmoiscsi.pool.commands import restore_command
from relvmoiscsi.pool.vms import restore, restore_entries

pytestmark = pytest.mark.states


def test_no_name_is_said_to_be_new_while_the_sr_of_the_original_is_away(halted, pool_command):
    for pbd in halted.pool.db.refs("PBD", SR=halted.originals["Production"][1]):
        halted.pool.db.set("PBD", pbd, "currently_attached", False)
    ran = pool_command(*RESTORE)
    assert ran.status == 0 and "keeps its name: " in ran.out and "kept and renamed" not in ran.out
    assert "Each is renamed, unless a note says that it keeps its name." in ran.out


@pytest.mark.parametrize("words", [["restore", "copy", "web"], ["restore", "--undo", "web"]])
def test_a_vm_that_is_shut_down_for_it_is_told_of_before_and_after(office, pool_command, refused, type_in, words):
    vms = office.pool.api.vms
    if "--undo" in words:
        vms.vm_hard_shutdown("", office.web)
        pool_command(*RESTORE)
        vms.vm_start("", office.web)
    for how in ("--yes", "--dry-run"):
        refused(4, "Add --shutdown", *words, how)
    ahead = "  the VM is running: the run would shut the VM down and leave the VM halted"
    refused(0, ahead, *words, "--shutdown", "--dry-run")
    (row,) = pool_command(*words, "--shutdown", "--dry-run", "--json").json["restore_results"]
    assert row["shuts_down"] is True and row["problem"] is None
    type_in("n\n")
    asked = ("Undo the restore of" if "--undo" in words else "Restore") + " 'web'? [y/N]"
    ran = refused(4, asked, *words, "--shutdown")
    assert ahead in ran.err and ran.err.count("shut the VM down") == 1 and "begins" not in ran.err
    lost = "All that the VM has written since the restore stays on the copy. `relvmoiscsi pool discard` of the copy "
    assert (lost in " ".join(ran.err.split())) == ("--undo" in words), "before the question"

    assert not pool_command(*words, "--dry-run", "--shutdown", "-q").err
    ran = pool_command(*words, "--shutdown", "--yes")
    begun, ended = (
        "relvmoiscsi: VM 'web': " + how for how in ("begins\n", "undone" if "--undo" in words else "restored")
    )
    assert ran.status == 0 and ran.err.index(begun) < ran.err.index(ended)
    assert (lost in " ".join(ran.out.split())) == ("--undo" in words)
    assert office.pool.db.get("VM", office.web, "power_state") == "Halted"
    again = pool_command("restore", "copy", "web", "--shutdown", "--dry-run")
    assert "is running" not in again.out, "it is halted"


@pytest.mark.parametrize("end", [["--undo"], ["--home"], ["--on-copy", "--keep"]])
def test_what_a_quiet_restore_and_its_end_do_is_not_said(halted, pool_command, end):
    for words in (RESTORE, ("restore", *end, "web", "--yes")):
        ran = pool_command(*words, "-q")
        assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_an_undo_is_repeated_and_one_that_is_done_fails_neither_alone_nor_beside_others(halted, pool_command, refused):
    """After an interruption, the repeated command failed the VM that it had finished."""
    assert pool_command("restore", "copy", "web", "db", "--yes").status == 0
    assert pool_command("restore", "--undo", "db", "--yes").status == 0
    words = ("restore", "--undo", "db", "web")
    for how, done in (("--dry-run", "would be undone"), ("--yes", "undone")):
        ran = pool_command(*words, how)
        assert ran.status == 0 and f"VM 'web': {done}\n" in ran.out
        assert "VM 'db': not restored\n  There is no restore to end: " in ran.out
    for again in (words, words[:3]):
        ran = pool_command(*again, "--yes")
        assert ran.status == 0 and "undone" not in ran.out and "next: " not in ran.out
    for one in (words[:3], words):
        rows = pool_command(*one, "--yes", "--json").json["restore_results"]
        assert {row["status"] for row in rows} == {"not restored"}, "one form for one VM and for several"


def test_the_way_back_that_is_printed_works_after_the_start_that_is_printed(halted, pool_command):
    """--undo was refused then, until --shutdown was added: in the result of a restore, and in a refused discard."""
    before = halted.disks_of(halted.web)
    for told_by in ("result", "refusal"):
        told = {"result": pool_command("restore", "copy", "web", "--yes").out}
        told["refusal"] = pool_command("discard", "copy", "--yes").err
        assert f"next: xe vm-start uuid={halted.pool.db.get('VM', halted.web, 'uuid')}\n" in told["result"]
        halted.pool.db.set("VM", halted.web, "power_state", "Running")
        (undo,) = re.findall("`relvmoiscsi pool (restore --undo [^`]*)`", told[told_by])
        assert pool_command(*undo.split(), "--yes").status == 0 and halted.disks_of(halted.web) == before


def test_a_move_home_and_a_taking_back_are_repeated(halted, pool_command, refused):
    """After an interruption whose message said "Done ... Repeat the command", the repeated command failed."""
    halted.helper()
    assert pool_command("restore", "copy", "web", "--yes").status == 0
    assert pool_command("rescue", "copy", "data", "--vm", "helper", "--yes").status == 0
    home, back = ("restore", "--home", "web"), ("rescue", "copy", "--done")
    for words, said in ((home, "There is no restore to end: "), (back, "is lent to a VM: nothing is taken back.")):
        assert pool_command(*words, "--yes").status == 0
        for how in ("--yes", "--dry-run"):
            ran = refused(0, said, *words, how)
            assert said in ran.out and "next: " not in ran.out
    assert pool_command(*back, "--yes", "--json").json == {"rescue_results": []}
    refused(3, "", "rescue", "copy", "a typo", "--done", "--yes")


ENDS = ("--undo", "--home", "--keep")


@pytest.mark.parametrize("end", ENDS)
def test_a_vm_that_a_restore_or_its_end_leaves_halted_is_said_to_be_halted(office, pool_command, end):
    """After `restore --home`, the VM stayed halted, and no line told of it."""
    uuid = office.pool.db.get("VM", office.web, "uuid")
    told, start = "the VM is halted: start the VM when you are ready", f"next: xe vm-start uuid={uuid}\n"
    ran = pool_command(*RESTORE, "--shutdown")
    assert told.replace("is", "was shut down and is", 1) in ran.out and start in ran.out
    assert pool_command(*RESTORE, "--dry-run").out.count(told) == 1
    words = ("restore", end, "web", "--yes", *(["--on-copy"] if end == "--keep" else []))
    assert told not in pool_command(*words, "--dry-run").out
    ran = pool_command(*words)
    assert ran.status == 0 and told in ran.out and start in ran.out


@pytest.mark.parametrize("end", ENDS)
def test_a_restore_that_has_an_end_gets_no_other_and_no_end_fails(restored, pool_command, refused, end):
    """--undo behind --home failed, and a repeated --home did not."""
    if end == "--keep":
        restored.move_home()
    assert pool_command("restore", end, "web", "--yes").status == 0
    for other in ENDS:
        for how in ("--yes", "--dry-run"):
            ran = refused(0, "VM 'web': not restored\n  There is no restore to end: ", "restore", other, "web", how)
            assert "next: " not in ran.out
            assert ("after which --undo is impossible" in " ".join(ran.out.split())) == (end != "--undo")


def test_a_vm_with_a_disk_of_a_copy_and_no_journal_was_neither_undone_nor_moved_home(restored, pool_command, refused):
    """Its disks go with the copy, so a script must not go on."""
    assert pool_command("restore", "--keep", "web", "--yes", "--on-copy").status == 0
    for end in ENDS[:2]:
        told = refused(4, "has disks of a copy (0 on 'copy') and no journal", "restore", end, "web", "--yes").err
        assert "or --keep has ended its restore" in told and "Find disks from before a restore by" in told
    refused(0, "There is no restore to end: ", "restore", "--keep", "web", "--yes")


@pytest.mark.parametrize("way", ["--yes", "asked"])
def test_the_restore_of_several_vms_is_undone_and_one_with_a_spoiled_journal_stops_no_other(
    halted, pool_command, refused, type_in, way
):
    before = {vm: halted.disks_of(vm) for vm in (halted.web, halted.db_vm)}
    pool_command("restore", "copy", "web", "db", "--yes")
    spoiled = {restore_entries.RESTORED + "0": "x"}
    halted.pool.db.set("VM", halted.helper(state="Halted"), "other_config", spoiled)
    words = ("restore", "--undo", "web", "helper", "db")
    dry = refused(9, "VM 'web': would be undone", *words, "--dry-run")
    assert "VM 'db': would be undone" in dry.out and "VM 'helper': would fail" in dry.out
    type_in("y\n")
    ran = pool_command(*words, *(["--yes"] if way == "--yes" else []))
    assert ran.status == 9 and all(word in ran.out for word in ("'web': undone", "'db': undone", "'helper': failed"))
    assert way == "--yes" or "Undo the restore of 'web', 'db'? [y/N]" in ran.err
    steps = ran.out[ran.out.index("next: ") + len("next: ") :].split("\n")
    uuids = [halted.pool.db.get("VM", vm, "uuid") for vm in (halted.web, halted.db_vm)]
    starts = [f"xe vm-start uuid={uuid}" for uuid in uuids]
    discard = f"relvmoiscsi pool discard {halted.copy.sr_uuid}"
    assert [step.strip() for step in steps if step] == [*starts, discard], "each once, and the VMs first"
    assert {vm: halted.disks_of(vm) for vm in before} == before


@pytest.mark.parametrize("way", ["--yes", "asked"])
def test_of_several_vms_one_that_cannot_be_restored_stops_no_other(halted, pool_command, refused, type_in, way):
    one_cannot_be(halted, pool_command)
    words = ("restore", "copy", "web", "db", "mixed")
    refused(2, "--disk names disks of one VM", *words, "--disk", "0", "--yes")
    dry = refused(9, "VM 'web': would be restored", *words, "--dry-run")
    assert "VM 'db': would be restored" in dry.out and "VM 'mixed': would fail" in dry.out
    quiet = pool_command(*words, "--dry-run", "-q")
    assert quiet.out == "" and quiet.err.startswith("relvmoiscsi: VM 'mixed': The disk ")
    refused(3, "has no disk 7", "restore", "copy", "web", "--disk", "7", "--yes")
    none = ("restore", "copy", "mixed", "helper")
    halted.helper(state="Halted")
    for how in ("--dry-run", "--yes"):
        refused(4, "VM 'helper': ", *none, how)
    type_in("y\n")
    ran = pool_command(*words, *(["--yes"] if way == "--yes" else []))
    assert ran.status == 9 and all(word in ran.out for word in ("'web': restored", "'db': restored", "'mixed': failed"))
    assert way == "--yes" or "Restore 'web', 'db'? [y/N]" in ran.err
    for sentence in restore.TO_KNOW:
        assert sentence in " ".join(dry.out.split()), "the plan says what is known before"
        said = " ".join(ran.out.split()), " ".join(ran.err.split())
        assert [sentence in text for text in said] == [way == "--yes", way != "--yes"], "once, and before a question"
    assert "is not on this copy" in " ".join(ran.out.split())
    for vm in (halted.web, halted.db_vm):
        assert {sr for sr, _ in halted.disks_of(vm).values()} == {halted.pool.db.by_uuid("SR", halted.copy.sr_uuid)}
    rows = {
        row["vm_name"]: (row["status"], bool(row["problem"]))
        for row in pool_command(*words, "--json", "--yes").json["restore_results"]
    }
    assert rows == {"web": ("already restored", False), "db": ("already restored", False), "mixed": ("failed", True)}


def test_home_the_plan_and_the_run_name_the_disks_that_are_moved_and_those_before(restored, pool_command, type_in):
    """The disk before is the last state of the VM on its SR from before the restore."""
    ((_, moved),) = restored.disks_of(restored.web).values()
    uuid = restored.pool.db.get("SR", restored.originals["Production"][1], "uuid")
    ran = pool_command("restore", "--home", "web", "--dry-run")
    said = f"disk 0: {moved} would be moved to the SR 'Production' ({uuid})"
    assert ran.status == 0 and said in " ".join(ran.out.split()), "a person knows the name"
    named = [vdi for vdi in restored.pool.db.records("VDI").values() if " before restore " in vdi["name_label"]]
    ((name, before),) = [(vdi["name_label"], vdi["uuid"]) for vdi in named]
    assert re.fullmatch(r"root disk before restore 20..-..-.. ..:..:..", name), "several restores in a night"
    assert f"\n  disk before: {before} would stay there" in ran.out
    assert "--undo is impossible after --home" in " ".join(ran.out.split())
    type_in("n\n")
    assert "to its own SR, after which --undo is impossible?" in pool_command("restore", "--home", "web").err
    ran = pool_command("restore", "--home", "web", "--yes")
    assert ran.status == 0 and f"\n  disk before, once nobody needs it: `xe vdi-destroy uuid={before}`" in ran.out
    assert "no longer needed" not in ran.out and "disk 0 is being moved" in ran.err
    why = "a copy, which lost it. Nothing was changed. No disk of the VM is on this copy. Attach another clone of"
    assert why in " ".join(pool_command("restore", "copy", "web", "--yes").err.split())
    assert "came home from a copy, which lost it" in " ".join(
        pool_command("clone", "copy", "web", "--same-networks", "--yes").out.split()
    )
    assert pool_command("discard", "copy", "--yes").status == 0


@pytest.mark.parametrize("is_home", [True, False])
def test_kept_as_it_is(restored, pool_command, refused, type_in, is_home):
    uuid = restored.pool.db.get("VM", restored.web, "uuid")
    if is_home:
        restored.move_home()
        refused(4, f"`relvmoiscsi pool restore --keep {uuid}` leaves all disks", "restore", "--home", "web", "--yes")
    ran = refused(0, "VM 'web': would be kept as it is\n  disk 0: ", "restore", "--keep", "web", "--dry-run")
    assert "\n  on no VM: " in ran.out
    way = f"`relvmoiscsi pool restore --home {uuid}` keeps the restored state, on the SR of the VM."
    is_warned = way in " ".join(ran.out.split())
    assert is_warned is not is_home, "a person in a hurry reads `keep` as `keep the restored state`"
    type_in("n\n")
    says = "Leave the disks of 'web' as they are and remove the journal? [y/N]"
    asked = refused(4, says, "restore", "--keep", "web").err
    assert "  disk 0: " in asked and (way in " ".join(asked.split())) is not is_home

    if not is_home:
        for words in (("--yes",), ("--yes", "--dry-run")):
            ran = refused(4, way, "restore", "--keep", "web", *words)
            assert "To remove the journal all the same, add --on-copy." in " ".join(ran.err.split())
    ran = pool_command("restore", "--keep", "web", "--yes", *([] if is_home else ["--on-copy"]))
    discard = f"      relvmoiscsi pool discard {restored.copy.sr_uuid}\n" if is_home else ""
    assert ran.status == 0 and ran.out.endswith(f"next: xe vm-start uuid={uuid}\n" + discard)
    refused(0, "'web': not restored\n  There is no restore to end: ", "restore", "--keep", "web", "--yes")
    assert pool_command("discard", "copy", "--yes").status == (0 if is_home else 4)


def test_a_person_agrees_to_keep_the_disks_that_the_plan_named(halted, pool_command, monkeypatch, type_in):
    """Another client restores another disk while a person reads the plan of --keep."""
    halted.pool.db.create("VBD", VM=halted.web, VDI=halted.vdi("Production", "data")[0], userdevice="1")
    assert pool_command(*RESTORE, "--disk", "0").status == 0
    runs = [lambda: pool_command(*RESTORE)]
    type_in("y\n")
    monkeypatch.setattr(restore_command, "ask", lambda *_: runs and runs.pop()())
    ran = pool_command("restore", "--keep", "web")
    assert ran.status == 4 and "still has disks of the copy" in " ".join(ran.err.split())
    assert pool_command("restore", "--keep", "web").status == 0, "this plan names the disks"


def test_the_next_step_is_no_discard_while_another_vm_needs_the_copy(halted, pool_command):
    """Each step is typed as it is printed, to the end."""
    assert pool_command("restore", "copy", "web", "db", "--yes").status == 0
    ran = pool_command("restore", "--home", "web", "--yes")
    said = " ".join(ran.out.split())
    assert "The copy cannot be discarded yet. VMs were restored from the SR 'copy': 'db'. End " in said
    assert "Nothing was changed" not in said and "next: relvmoiscsi" not in said and ran.out.count("xe vm-start") == 1
    (undo,) = re.findall("`relvmoiscsi pool (restore --undo [^`]*)`", ran.out)
    ran = pool_command(*undo.split(), "--yes")
    (discard,) = re.findall("      relvmoiscsi pool (discard .*)", ran.out)
    assert pool_command(*discard.split(), "--yes").status == 0


def test_no_next_step_discards_a_copy_of_an_sr_that_has_no_disk_of_the_vm(halted, pool_command):
    """Whoever may write the journal, names any copy there; --undo refuses such a journal."""
    (other,) = halted.attach(halted.clone("Testing"))
    db, key = halted.pool.db, restore_entries.RESTORED + "0"
    assert pool_command("restore", "copy", "web", "--yes").status == 0
    written = json.loads(db.get("VM", halted.web, "other_config")[key])
    assert pool_command("restore", "--undo", "web", "--yes").status == 0
    for named in (other.sr_uuid, written["home"], "99999999-0000-4000-8000-000000000000"):
        db.set("VM", halted.web, "other_config", {key: json.dumps({**written, "sr": named})})
        assert pool_command("restore", "--undo", "web", "--yes").status == 4
        ran = pool_command("restore", "--keep", "web", "--yes")
        assert ran.status == 0 and ran.out.endswith(f"next: xe vm-start uuid={written['vm']}\n")


def test_a_disk_is_taken_back_from_a_copy_that_a_restored_vm_needs(restored, pool_command):
    helper = restored.pool.db.get("VM", restored.helper(state="Halted"), "uuid")
    ran = pool_command("rescue", "copy", "data", "--vm", "helper", "--yes")
    assert ran.out.endswith(f"\nnext: xe vm-start uuid={helper}\n")
    (done,) = re.findall("\n  later: `relvmoiscsi pool (.*)`\n", ran.out)
    ran = pool_command(*done.split(), "--yes")
    assert "\nThe copy cannot be discarded yet. VMs were restored from the SR 'copy': 'web'. " in ran.out
    assert "next: " not in ran.out


@pytest.mark.parametrize("of", ["clone", "a person", "restore --keep"])
@pytest.mark.parametrize("end", [("restore", "--undo", "web"), ("rescue", "copy", "--done")])
def test_no_next_step_takes_the_disks_of_other_vms_with_the_copy(halted, pool_command, end, of):
    """Only the administrator knows whether a VM of `clone` is needed. A VM that `clone` has not made is in use: the
    sentence led to a discard of the disks of a production VM.
    """
    if of == "a person":
        halted.vm("experiment", halted.on_copy("data"))
    elif of == "restore --keep":
        halted.pool.db.set("VM", halted.db_vm, "name_label", "experiment")
        assert pool_command("restore", "copy", "experiment", "--yes").status == 0
        assert pool_command("restore", "--keep", "experiment", "--on-copy", "--yes").status == 0
    else:
        assert pool_command("clone", "copy", "db", "--isolated", "night", "--name", "experiment", "--yes").status == 0
    halted.helper("Halted")
    begin = RESTORE[1:-1] if end[0] == "restore" else ("copy", "root disk", "--vm", "helper")
    assert pool_command(end[0], *begin, "--yes").status == 0
    ran = pool_command(*end, "--yes")
    assert "discard" not in ran.out.partition("next: ")[2]
    found = re.findall("`relvmoiscsi pool (discard --with-vms [^`]*)`", ran.out)
    if of != "clone":
        said = "\nThe copy 'copy' has disks of VMs that `clone` has not made: 'experiment'. Keep the copy, or move "
        assert said in ran.out and "no longer need" not in ran.out and not found
        return
    assert "\nThe copy 'copy' has VMs of `clone`: 'experiment'. After you no longer need these VMs: " in ran.out
    (discard,) = found
    assert pool_command(*discard.split(), "--yes").status == 0
    assert not halted.pool.db.refs("VM", name_label="experiment")


XE = "xe vdi-destroy uuid=x"
ADVICE = (f"no longer needed: `{XE}`", f"disk before, once nobody needs it: `{XE}`", f"later: {XE}", f"next: {XE}")


@pytest.mark.parametrize(
    "name", [*("  " + text for text in ADVICE), "\u3164" + ADVICE[-1], "a" * 56 + "  " + ADVICE[-1]]
)
def test_no_line_begins_with_a_name(halted, pool_command, name):
    db, disk = halted.pool.db, halted.on_copy("data")
    uuid, vdi = db.get("VM", halted.web, "uuid"), db.get("VDI", disk, "uuid")
    db.set("VM", halted.web, "name_label", name)
    db.set("VDI", disk, "name_label", name)
    shown = []
    for words in (
        ["restore", "--undo", uuid, "--yes"], ["clone", "copy", uuid, "--same-networks", "--yes"],
        ["discard", "copy", "--with-vms", "--dry-run"], ["rescue", "copy", vdi, "--vm", uuid, "--yes"],
        ["discard", "copy", "--yes"], ["rescue", "copy", "--done", "--yes"], ["map", "copy"],
        ["save-vms", "Production", "--yes"], ["discard", "copy", "--with-vms", "--yes"],
    ):  # fmt: skip
        ran = pool_command(*words)
        shown += wrapped(ran.out + ran.err, 80).splitlines()
    assert len([line for line in shown if re.search(": `?xe vd", line)]) >= 9
    assert [line for line in shown if line.lstrip(" \u3164").startswith(ADVICE)] == []


def test_the_copy_lacks_a_disk_that_came_home_also_after_a_scan(halted, pool_command, refused):
    """The storage manager deletes the volume: a scan in the kit brought the VDI back, and then clone took it."""
    assert pool_command(*RESTORE).status == 0
    assert pool_command("restore", "--home", "web", "--yes").status == 0
    halted.pool.storage.sr_scan("", halted.pool.db.by_uuid("SR", halted.copy.sr_uuid))
    ran = pool_command("clone", "copy", "web", "--isolated", "lab", "--dry-run")
    assert ran.status == 4 and "it came home from a copy, which lost it" in " ".join(ran.out.split())
    assert pool_command("clone", "copy", "db", "--isolated", "lab", "--yes").status == 0
