# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool clone`: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import re
import shlex

import pytest

from kit.advised import commands_in
from kit.office import CLONE_ALL, RESTORE, fail, made, one_cannot_be
from kit.xe import xe
from relvmoiscsi import wording
from relvmoiscsi.pool import records
from relvmoiscsi.pool.commands import clone_command
from relvmoiscsi.pool.vms import choice, clone, rescue, restore

pytestmark = pytest.mark.states


def fresh(office, _run):
    pass


def one_is_there(office, run):
    run("clone", "copy", "web", "--same-networks", "--yes")


def all_are_there(office, run):
    run(*CLONE_ALL)


def all_but_one_cannot_be(office, run):
    """Each of the others has another problem: one is seen only in its records."""
    one_cannot_be(office, run)
    office.vm("diskless")
    office.vm("thief", office.on_copy("root disk"))


def one_is_half(office, run):
    office.pool.api.before = lambda method, _: method == "VM.add_to_other_config" and fail()
    run("clone", "copy", "web", "--same-networks", "--yes")
    office.pool.api.before = None


def with_a_snapshot(office, _run):
    office.snapshot(office.web, "before the upgrade", office.vdi("Production", "before")[0])
    office.snapshot(office.web, "of today", office.vdi("Testing", "before")[0])


@pytest.mark.states("state", "more", few=8)
@pytest.mark.parametrize(
    "more",
    [
        ["--same-networks"],
        ["--isolated", "lab"],
        ["--same-networks", "--snapshots"],
        ["--isolated", "lab", "--keep-mac"],
    ],
)
@pytest.mark.parametrize(
    "state", [fresh, one_is_there, all_are_there, one_cannot_be, all_but_one_cannot_be, one_is_half, with_a_snapshot]
)
def test_the_dry_run_promises_what_is_then_done(office, pool_command, monkeypatch, state, more):
    monkeypatch.setattr(choice, "PATIENCE_SECONDS", 0.0)
    state(office, pool_command)
    before, words = office.state(), ["clone", "copy", "--all", "--json", *more]
    dry = pool_command(*words, "--dry-run")
    promised = dry.json["clone_results"]
    assert office.state() == before
    ran = pool_command(*words, "--yes")
    done = ran.json["clone_results"]

    assert dry.status == ran.status
    kept = {"would be cloned": "cloned", "would fail": "failed", "already there": "already there"}
    assert [kept[row["status"]] for row in promised] == [row["status"] for row in done]
    for would, did in zip(promised, done):
        if did["problem"] is None and any("left the VM unfinished" in note for note in would["notes"]):
            assert state is one_is_half
            continue
        same = ("disks", "networks", "snapshot_names", "notes", "problem")
        assert [would[name] for name in same] == [did[name] for name in same]
    if not any(row["status"] == "would be cloned" for row in promised):
        assert office.state() == before, "no network is made for nothing"


def test_a_vm_that_goes_before_its_turn_fails_alone(office, pool_command):
    """The run reads the pool once more behind the plan, when it has the lock."""

    def delete():
        for table in ("VBD", "VIF"):
            for ref in office.pool.db.refs(table, VM=office.db_vm):
                office.pool.db.destroy(table, ref)
        office.pool.db.destroy("VM", office.db_vm)

    office.before("pool.add_to_other_config", delete)
    ran = pool_command("clone", "copy", "--all", "--isolated", "lab", "--yes", "--json")
    rows = {row["old_name"]: (row["status"], row["problem"]) for row in ran.json["clone_results"]}
    assert rows.pop("db") == ("failed", "The VM 'db' is no longer in the pool. Nothing was made.")
    assert rows == {"web": ("cloned", None)}


def test_the_map_of_a_copy_names_the_clones_on_it(office, pool_command):
    pool_command("clone", "copy", "web", "--same-networks", "--yes")
    ran, (row,) = pool_command("map", "copy"), pool_command("map", "copy", "--json").json["clones"]
    assert row["new_name"] == "web on copy" and f"\n  clone 'web on copy'\n    VM {row['new_vm']}\n" in ran.out


def test_the_map_of_a_copy_names_the_vms_that_have_its_disks(halted, pool_command):
    """A restored VM was nowhere in the map: its disk was one of no VM."""
    halted.helper()
    for words in (("restore", "copy", "web"), ("rescue", "copy", "data", "--vm", "helper")):
        assert pool_command(*words, "--yes").status == 0
    told = pool_command("map", "copy").out
    assert re.search(r"'root disk'.* \[used by the VM 'web'\]\n", told), told
    assert re.search(r"'data' \[VM 'db'; used by the VM 'helper'\]\n", told), told
    rows = pool_command("map", "copy", "--json").json["vdi_pairs"]
    assert sorted(name for row in rows for name in row["user_vm_names"]) == ["helper", "web"]


def test_a_plan_shows_the_disks_of_the_snapshots(office, pool_command):
    """VM.revert gives them to the clone."""
    with_a_snapshot(office, pool_command)
    planned = pool_command("clone", "copy", "--all", "--same-networks", "--snapshots", "--dry-run").out
    assert re.search("  with its snapshot '.*'\n    disk 0: [0-9a-f-]{36} would become [0-9a-f-]{36}\n", planned)


_TRUE_AT_ANY_TIME = (
    *(*clone.TO_KNOW, *restore.TO_KNOW, *restore.TO_KNOW_OF_UNDO, *restore.TO_KNOW_OF_HOME, rescue.TO_KNOW),
)
CLONED = ("clone", "copy", "--all", "--isolated", "lab", "--yes")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ((), ("clone", "copy", "--all", "--isolated", "lab")),
        ((), ("clone", "copy", "--all", "--same-networks", "--snapshots")),
        ((), ("restore", "copy", "web", "db", "--shutdown")),
        ((), ("restore", "copy", "web", "--shutdown")),
        ((RESTORE,), ("restore", "--undo", "web")),
        ((RESTORE,), ("restore", "--home", "web")),
        ((RESTORE,), ("restore", "--keep", "web", "--on-copy")),
        ((), ("rescue", "copy", "data", "--vm", "helper")),
        ((("rescue", "copy", "data", "--vm", "helper", "--yes"),), ("rescue", "copy", "--done")),
        ((), ("save-vms", "Production")),
        ((), ("discard", "copy")),
        ((CLONED,), ("discard", "copy", "--with-vms")),
        ((CLONED,), ("discard", "copy")),
    ],
)
def test_each_line_of_a_plan_speaks_of_the_future_and_no_line_of_the_result_does(
    office, pool_command, monkeypatch, first, words
):
    office.helper()
    if first and first[0] == RESTORE:
        office.pool.api.vms.vm_hard_shutdown("", office.web)
    for each in first:
        assert pool_command(*each).status == 0
    facts = pool_command(*words, "--dry-run", "--json").json
    rows = [row for part in facts.values() if isinstance(part, list) for row in [facts, *part] if isinstance(row, dict)]
    notes = [note for row in rows for note in row.get("notes", ())]  # what a copy lacks, before the run and after it
    monkeypatch.setenv("COLUMNS", "999")
    plan = pool_command(*words, "--dry-run").out
    for line in plan.splitlines():
        is_part = line in _TRUE_AT_ANY_TIME or line[2:] in notes or line.startswith("  with ")
        assert is_part or re.search(r"\b(would|will)\b", line), line
    more = ["--leave-vms"] if words[0] == "discard" and "--with-vms" not in words else []
    ran = pool_command(*words, "--yes", *more)
    done = [line for line in ran.out.partition("\nnext: ")[0].splitlines() if line not in _TRUE_AT_ANY_TIME]
    assert ran.status == 0 and plan and not re.search(r"\b(would|will)\b", "\n".join(done)), ran.out


def test_nobody_is_asked_for_nothing_and_the_question_counts_what_is_made(office, pool_command, refused, type_in):
    one_cannot_be(office, pool_command)
    type_in("no\n")
    ran = refused(4, "Clone 1 VM? [y/N]", "clone", "copy", "web", "--isolated", "lab")
    assert "VM 'web': would be cloned" in ran.err and "  network 0: 'office' would become 'lab'" in ran.err
    told = " ".join(ran.err[: ran.err.index("[y/N]")].split())
    assert "The network 'lab' would be made: " in told and all(sentence in told for sentence in clone.TO_KNOW)
    refused(2, "Use --yes", "clone", "copy", "web", "--json")
    warned = "warning: the copies will be on the networks of their originals, 'office'"
    ran = pool_command("clone", "copy", "web", "--same-networks", "--yes", "-q")
    assert warned in ran.err and not ran.out, "a warning is not kept back"
    type_in("y\n")
    ran = pool_command("clone", "copy", "--all", "--same-networks")
    before = ran.err[: ran.err.index("[y/N]")]
    assert warned in " ".join(before.split()), "before the question"
    assert "hostname" in before and "hostname" not in ran.out and "The network" not in before
    assert ran.status == 9 and "Clone 1 VM? [y/N]" in ran.err and "relvmoiscsi: VM 'db': cloned" in ran.err
    type_in("")
    ran = refused(0, ": already there", "clone", "copy", "web", "db", "--same-networks")
    assert "[y/N]" not in ran.err and ran.out.count(": already there") == 2
    ran = refused(4, "is on the network 'office'", "clone", "copy", "web", "db", "--isolated", "lab")
    assert "[y/N]" not in ran.err and not office.pool.db.refs("network", name_label="lab")
    ran = refused(4, "has disks that are not on the copy", "clone", "copy", "mixed", "--yes")
    assert "'mixed': failed" in ran.out and "hostname" not in ran.out


def test_what_yes_needs_beside_it_is_said_with_yes(office, refused):
    """A person got one missing option for each run."""
    needs = "--isolated NET, --network OLD=NEW for each network, or --same-networks"
    refused(2, f"Use --yes with {needs}, or --dry-run", "clone", "copy", "web", "--json")
    refused(2, f"Give {needs}.", "clone", "copy", "web", "--yes")
    refused(2, "Use --yes, or --dry-run", "clone", "copy", "web", "--isolated", "lab", "--json")
    refused(2, "Use --yes with --shutdown if a VM runs, or", "restore", "copy", "web", "--json")
    refused(2, "Use --yes, or", "restore", "copy", "web", "--shutdown", "--json")
    refused(2, "Use --yes with --with-vms or --leave-vms", "discard", "copy", "--json")
    refused(2, "Use --yes, or --dry-run", "discard", "copy", "--with-vms", "--json")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 2),
        (["--network", "yard=lab"], 2),
        (["--network", "office=lab"], 0),
        (["--network", "office=office"], 0),
        (["--same-networks"], 0),
        (["--isolated", "wire"], 0),
    ],
)
@pytest.mark.parametrize("way", ["--yes", "--dry-run"])
def test_no_copy_is_on_the_network_of_its_original_unless_somebody_says_so(
    office, pool_command, refused, words, status, way
):
    office.network("lab")
    office.vm("bare", office.vdi("Production", "before")[0], networks=[office.network("yard")])
    vms = ["web", "bare"] if "yard=lab" in words else ["web"]
    if status:
        refused(
            2, "The copies would be on the networks of their originals: 'office'.", "clone", "copy", *vms, *words, way
        )
        return
    ran = pool_command("clone", "copy", *vms, *words, way)
    warned = (
        "warning: the copies will be on the networks of their originals, 'office'" in ran.err.partition("begins")[0]
    )
    assert "warning" not in ran.out, "the warning stands before the first change"
    assert ran.status == 0 and warned == (words[-1] in ("--same-networks", "office=office"))
    assert ("network 0: 'office' would become " in ran.out) == (way == "--dry-run")


@pytest.mark.parametrize(
    "words", [("--same-networks",), ("--network", "office=office"), ("--network", "office=yard"), ("--isolated", "lab")]
)
def test_a_copy_that_is_on_another_network_than_the_words_say_is_refused_without_a_warning(
    office, pool_command, refused, words
):
    office.network("yard")
    assert pool_command("clone", "copy", "web", "--isolated", "night", "--yes").status == 0
    assert pool_command("clone", "copy", "web", "--isolated", "night", "--yes").out.startswith(
        "VM 'web': already there"
    )
    ran = refused(4, "is on the network 'night'", "clone", "copy", "web", *words, "--yes")
    assert "warning" not in ran.out
    moves = [move for move in commands_in(" ".join(ran.out.split())) if "vif-move" in move]
    if words == ("--isolated", "lab"):  # no VIF can move there
        told = " ".join(ran.out.split())
        assert not moves and "Name the networks that the clone is on. Or, if nobody needs the clone, shut it " in told
        (destroy,) = [command for command in commands_in(told) if "vm-destroy" in command]
        assert xe(office.pool, shlex.split(destroy)[1:])[0] == 0
        assert pool_command("clone", "copy", "web", *words, "--yes").status == 0
        return
    for move in moves:
        assert xe(office.pool, shlex.split(move)[1:])[0] == 0
    assert moves and "already there" in pool_command("clone", "copy", "web", *words, "--yes").out


def test_a_vm_with_a_disk_elsewhere_is_cloned_with_the_disks_that_are_on_the_copy(office, pool_command, refused):
    one_cannot_be(office, pool_command)
    ran = refused(4, "--omit-disks clones the VM without these disks", "clone", "copy", "mixed", "--yes")
    assert "has disks that are not on the copy" in ran.out
    ran = pool_command("clone", "copy", "mixed", "--omit-disks", "--yes")
    (clone,) = made(office)
    elsewhere = office.pool.db.get("VDI", office.vdi("Testing", "data")[0], "uuid")
    assert ran.status == 0 and f"without its disk 1, 'data' ({elsewhere}), which is not on the copy" in ran.out
    assert list(office.disks_of(clone)) == ["0"]
    office.vm("stranger", office.vdi("Testing", "data")[0])
    ran = refused(4, "has disks that are not on the copy", "clone", "copy", "stranger", "--omit-disks", "--yes")
    assert "--omit-disks clones" not in ran.out


def test_the_clones_of_one_vm_from_several_copies_tell_of_which_and_conflict(office, pool_command, refused):
    first, second = (office.attach(office.clone("Production"))[0] for _ in range(2))
    ran = pool_command("clone", first.sr_uuid, "web", "--isolated", "night", "--yes")
    assert f"'web on {first.name}'" in ran.out and "warning" not in ran.err
    warned = f"on the same networks, 'web on {first.name}': expect conflicts of addresses."
    for way in ("--dry-run", "--yes"):
        ran = pool_command("clone", second.sr_uuid, "--all", "--isolated", "night", way)
        assert ran.status == 0 and f"'web on {second.name}'" in ran.out
        assert warned in ran.err and "'db on" not in ran.err
    ran = pool_command("clone", second.sr_uuid, "web", "--isolated", "other", "--dry-run")
    assert warned not in ran.err
    assert pool_command("clone", first.sr_uuid, "web", "--isolated", "night", "--dry-run").err == ""
    sr = office.pool.db.by_uuid("SR", first.sr_uuid)
    config = {**office.pool.db.get("SR", sr, "other_config"), records.CHANGED: "of an operator"}
    office.pool.db.set("SR", sr, "other_config", config)
    ran = pool_command("clone", first.sr_uuid, "db", "--isolated", "other", "--name", "{vm} {date}", "--dry-run")
    assert ran.status == 0 and "of an operator" not in ran.out, "no text but a time gets into a name"


def test_a_saved_vm_with_a_disk_elsewhere_has_the_same_way_out(office, pool_command, refused):
    one_cannot_be(office, pool_command)
    assert pool_command("save-vms", "Production", "--yes").status == 0
    pool_command("attach", office.clone("Production"), "--yes", "--name", "of then")
    words = ("clone", "of then", "mixed", "--from-snapshot", "--isolated", "lab")
    ran = refused(4, "has disks that are not on this copy: 1 'data' (", *words, "--dry-run")
    assert "--omit-disks clones the VM without these disks." in ran.out
    ran = pool_command(*words, "--omit-disks", "--yes")
    assert ran.status == 0 and "without its disk 1, 'data' (" in ran.out


def test_of_a_vm_that_was_deleted_clone_names_the_saved_records_where_the_copy_has_them(office, pool_command, refused):
    assert pool_command("save-vms", "Production", "--yes").status == 0
    pool_command("attach", office.clone("Production"), "--yes", "--name", "of then")
    office.pool.api.vms.vm_destroy("", office.db_vm)
    words = ("--isolated", "lab", "--yes")
    ran = refused(3, "There is no VM 'db'.", "clone", "of then", "db", *words)
    assert "--from-snapshot clones a VM that the pool no longer has, from the saved records" in ran.err
    assert "--from-snapshot" not in refused(3, "There is no VM 'db'.", "clone", "copy", "db", *words).err
    assert pool_command("clone", "of then", "db", "--from-snapshot", *words).status == 0


def test_in_a_terminal_clone_says_the_remaining_time(office, pool_command, monkeypatch):
    monkeypatch.setattr(wording, "ESTIMATE_SECONDS", 0)
    monkeypatch.setattr(clone_command, "is_terminal", lambda _: True)
    ran = pool_command(*CLONE_ALL, "--jobs", "1")
    ends = [line for line in ran.err.splitlines() if ": cloned" in line]
    assert [bool(re.search(": cloned, .* left$", line)) for line in ends] == [True, False]


def test_the_disks_of_no_vm_are_named_beside_the_clones_of_all_vms(office, pool_command):
    """A VM that was destroyed by mistake is what a person looks for, and `--all` did not say that it makes no copy."""
    words = ["clone", "copy", "--all", "--isolated", "lab"]
    assert pool_command(*words, "--dry-run", "--json").json["disks_of_no_vm"] == []
    office.pool.api.vms.vm_hard_shutdown("", office.web)
    office.pool.api.vms.vm_destroy("", office.web)
    root = office.pool.db.get("VDI", office.on_copy("root disk"), "uuid")
    for more in (["--dry-run"], ["--yes", "-q"], ["--yes"]):
        ran = pool_command(*words, *more)
        assert ran.status == 0 and f"they will not be cloned: 'root disk' ({root}). `rescue` lends" in ran.err
    (row,) = pool_command(*words, "--yes", "--json").json["disks_of_no_vm"]
    assert (row["new_vdi"], row["vdi_name"]) == (root, "root disk")
    assert pool_command("clone", "copy", "db", "--isolated", "lab", "--yes", "--json").json["disks_of_no_vm"] == []
    office.pool.db.set("VDI", office.on_copy("root disk"), "type", "suspend")  # memory of a VM of another pool
    assert pool_command(*words, "--dry-run", "--json").json["disks_of_no_vm"] == []


def test_a_vif_that_xapi_would_not_make_again_is_not_destroyed(halted, pool_command):
    """--keep-mac destroys the VIF of the copy and makes another. Its texts were written in several calls."""
    db = halted.pool.db
    words = ("clone", "copy", "web", "--isolated", "n", "--keep-mac", "--yes")
    (vif,) = db.refs("VIF", VM=halted.web)
    db.set("VIF", vif, "qos_algorithm_params", {f"k{number}": '"' * 100000 for number in range(2)})
    before = db.refs("VIF"), db.refs("VM")
    for more in (["--dry-run"], []):
        ran = pool_command(*words, *more)
        assert ran.status == 4 and "the copy cannot get its MAC" in " ".join((ran.out + ran.err).split())
        assert (db.refs("VIF"), db.refs("VM")) == before
