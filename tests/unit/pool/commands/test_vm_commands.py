# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool` on VMs: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import json
import re
import shlex
from contextlib import contextmanager

import pytest

from kit.advised import commands_in
from kit.lun_world import World
from kit.pool.database import TABLES
from kit.pool.errors import XenError
from kit.pool_lab import Image, Lab
from kit.xe import xe
from relvmoiscsi import wording
from relvmoiscsi.cli.output import wrapped
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.pool import answer_forms, records
from relvmoiscsi.pool.commands import clone_command, discard_command
from relvmoiscsi.pool.vms import choice, clone, inventory, rescue, restore, restore_entries

pytestmark = pytest.mark.states
CLONE_ALL = ("clone", "copy", "--all", "--isolated", "lab", "--yes")
RESTORE = ("restore", "copy", "web", "--yes")


class Office(Lab):
    """The VMs "web" and "db" on "Production", and a copy of that SR with the name "copy"."""

    def make(self):
        """Gives what the attributes of an Office are."""
        self.original("Production")
        self.original("Testing")
        net, db = self.network("office"), self.pool.db
        root, data = (self.vdi("Production", label)[0] for label in ("root disk", "data"))
        web = self.vm("web", root, networks=[net], state="Running", ha_always_run=True)
        db_vm = self.vm("db", data, networks=[net])
        (copy,) = self.attach(self.clone("Production"))
        db.set("SR", db.by_uuid("SR", copy.sr_uuid), "name_label", "copy")
        return {"net": net, "web": web, "db_vm": db_vm, "copy": copy}

    def state(self):
        """All records but tasks and sessions."""
        tables = ("VM", "VBD", "VIF", "VDI", "SR", "network")
        return {table: self.pool.db.records(table) for table in tables}

    def on_copy(self, label):
        return self.pool.db.refs("VDI", SR=self.pool.db.by_uuid("SR", self.copy.sr_uuid), name_label=label)[0]

    def helper(self, state="Running", domain_type="pv_in_pvh"):
        return self.vm("helper", self.vdi("Testing", "data")[0], state=state, domain_type=domain_type)

    def move_home(self):
        """By another tool."""
        (vbd,) = self.pool.db.refs("VBD", VM=self.web)
        disk, home = self.pool.db.get("VBD", vbd, "VDI"), self.originals["Production"][1]
        self.pool.api.vms.vdi_pool_migrate("", disk, home, {})


@contextmanager
def new_office():
    world = World()
    with world.pool(hosts=("xs1", "xs2")) as simulated:
        yield Office(world, simulated)


@pytest.fixture(scope="session")
def image_of_office():
    with new_office() as made:
        return Image(made, **made.make())


@pytest.fixture
def office(name_pool, image_of_office):
    with new_office() as ready:
        ready.__dict__.update(image_of_office.put(ready))
        name_pool(ready.pool)
        yield ready


@pytest.fixture
def halted(office):
    """The VM "web" does not run."""
    office.pool.api.vms.vm_hard_shutdown("", office.web)
    return office


@pytest.fixture
def restored(halted, pool_command):
    """The VM "web" has the disk of the copy."""
    assert pool_command(*RESTORE).status == 0
    return halted


def fail():
    raise XenError("SR_BACKEND_FAILURE_46", "", "The VDI is not available", "")


def made(office):
    rows = office.pool.db.records("VM")
    return [ref for ref, vm in rows.items() if "relvmoiscsi:clone-of" in vm["other_config"] and not vm["is_a_snapshot"]]


@pytest.fixture
def refused(office, pool_command):
    """`refused(4, "sentence", *words)`: the command ends so, says so, and the pool is as it was."""

    def run(status, says, *words):
        before = office.state()
        ran = pool_command(*words)
        assert ran.status == status and says in ran.err + ran.out and office.state() == before
        return ran

    return run


# --- words that are wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore", "copy"], "Missing: VM."),
        (["restore", "copy", "web", "--undo", "web"], "Give a copy and a VM"),
        (["restore", "--home", "web", "--disk", "0"], "With --undo, --home or --keep, give no copy and no disk"),
        (["restore", "--home", "db", "web"], "--home takes one VM"),
        (["restore", "copy", "web", "--on-copy"], "Add --keep VM."),
        (["restore", "copy", "web", "--disk", "0,"], "Give devices, for example 0,1. Without --disk, all disks are"),
        (["rescue", "copy", "data"], "Missing: --vm."),
        (["rescue", "copy", "--rw", "--done"], "Give a disk and a VM"),
        (["clone", "copy"], "No VM is selected"),
        (["clone", "copy", "--all", "--network", "x"], "Give OLD=NEW"),
        (["clone", "copy", "--all", "--name", "{x}"], "may contain only the fields vm, date and sr in braces"),
        (["clone", "copy", "--all", "--name", "a\x01b"], "--name"),
        (["clone", "copy", "--all", "--jobs", "0"], "Give 1 or more VMs in parallel"),
        (["attach"], "is selected"),
        (["discard"], "is selected"),
        (["attach", "../x"], "is no SCSIid"),
        (["attach", "--all", "--jobs", "0"], "Give 1 or more LUNs in parallel"),
        (["attach", "--all", "--map-out", "/nowhere/map"], "/nowhere/map, cannot be made: No such file"),
        (["attach", "--all", "--hba", "--target", "x"], "Remove --target and --chap-user"),
    ],
)
def test_what_is_missing_or_wrong_is_told_before_it_is_said_that_nobody_can_be_asked(office, pool_command, words, said):
    calls = len(office.pool.api.calls)
    ran = pool_command(*words)
    assert ran.status == 2 and said in ran.err and "--yes" not in ran.err
    assert len(office.pool.api.calls) == calls, "nothing was asked of the pool"


@pytest.mark.parametrize("vms", [["--all"], ["web", "db"]])
def test_one_name_for_several_vms_is_refused_with_the_form_before_a_change(office, refused, pool_command, vms):
    """Each got the name, with a number: nobody could tell whose clone a VM was."""
    form = "Give a name with {vm}, such as --name='night of {sr} {vm}'."
    for more in (["--yes"], ["--dry-run"]):
        refused(2, form, "clone", "copy", *vms, "--name", "night of {sr}", "--isolated", "night", *more)
    ran = pool_command("clone", "copy", "web", "--name", "night of {sr}", "--isolated", "night", "--yes")
    assert ran.status == 0 and "cloned 'night of copy'" in ran.out


@pytest.mark.parametrize(
    ("status", "words", "says"),
    [
        (4, ["copy", "--all", "--isolated", "office"], "has physical interfaces"),
        (3, ["copy", "web", "--network", "other=lab"], "none of the VMs has a network card on the network 'other'"),
        (2, ["copy", "web", "--network", "office=lab", "--network", "office=other"], "already has another NEW"),
    ],
)
def test_what_cannot_be_cloned_so_is_refused(office, refused, status, words, says):
    office.network("lab"), office.network("other")
    refused(status, says, "clone", *words, "--yes")


def test_the_name_of_a_network_may_have_the_sign_between_old_and_new(office, refused, pool_command):
    """A pair that can be read in two ways is refused with both; a UUID has no such sign."""
    db = office.pool.db
    net, new = office.network("a=b"), office.network("lab=1")
    db.set("network", office.net, "name_label", "office=1")
    refused(3, "'office=2=lab=1' names no network", "clone", "copy", "web", "--network", "office=2=lab=1", "--yes")
    ran = pool_command("clone", "copy", "web", "--network", "office=1=lab=1", "--yes")
    assert ran.status == 0 and "network 0: 'office=1' became 'lab=1'" in ran.out

    for vm, network in ((office.web, office.network("a")), (office.db_vm, net)):
        for vif in db.refs("VIF", VM=vm):
            db.set("VIF", vif, "network", network)
    office.network("b=lab=1")
    says = "can be read as 'a' to 'b=lab=1', or as 'a=b' to 'lab=1'."
    ran = refused(2, says, "clone", "copy", "db", "web", "--network", "a=b=lab=1", "--yes")
    assert "Give UUIDs of networks" in ran.err
    pair = "=".join(db.get("network", ref, "uuid") for ref in (net, new))
    ran = pool_command("clone", "copy", "db", "--network", pair, "--yes")
    assert ran.status == 0 and "network 0: 'a=b' became 'lab=1'" in ran.out


@pytest.mark.parametrize("words", [["--isolated", "lab", "copy", "web"], ["copy", "--isolated", "lab", "--", "web"]])
def test_options_stand_anywhere_between_the_words(office, pool_command, words):
    ran = pool_command("clone", "--yes", *words)
    assert ran.status == 0 and len(made(office)) == 1 and "became 'lab'" in ran.out


# --- clone


def fresh(office, _run):
    pass


def one_is_there(office, run):
    run("clone", "copy", "web", "--same-networks", "--yes")


def all_are_there(office, run):
    run(*CLONE_ALL)


def one_cannot_be(office, _run):
    office.vm("mixed", office.vdi("Production", "data")[0], office.vdi("Testing", "data")[0])


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


# --- discard


def test_with_its_vms_the_question_and_the_answer_name_them(office, pool_command, type_in):
    pool_command(*CLONE_ALL)
    snap = office.snapshot(made(office)[0], "before the upgrade")
    office.pool.db.set("VM", snap, "power_state", "Suspended")
    (row,) = pool_command("discard", "copy", "--with-vms", "--dry-run", "--json").json["discard_results"]
    assert (
        len(row["destroyed_vm_names"]) == 2
        and row["destroyed_snapshot_names"] == ["before the upgrade"]
        and len(made(office)) == 2
    )
    type_in("yes\n")
    ran = pool_command("discard", "copy", "--with-vms")

    assert (
        ran.status == 0 and "and destroy 2 VMs ('db " in ran.err and "with 1 snapshot ('before the upgrade')" in ran.err
    )
    assert "  with their snapshots 'before the upgrade'" in ran.out and made(office) == []
    assert not office.pool.db.refs("SR", name_label="copy") and snap not in office.pool.db.refs("VM")


def test_a_discard_that_fails_whole_ends_as_its_error_and_the_advice_has_no_option_that_was_given(
    office, pool_command, refused, monkeypatch
):
    """It ended with 9, "done in part", where another client had the lock."""
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    office.vm("alone", office.on_copy("root disk"))
    ran = refused(4, "'alone'", "discard", "copy", "--with-vms", "--yes")
    assert "add --leave-vms" in ran.err and "--with-vms" not in ran.err
    before = made(office)

    def other_client(*_):
        raise Refused("Another client has locked the copy.")

    monkeypatch.setattr(discard_command.made_vms, "carry_out", other_client)
    refused(4, "failed: Another client", "discard", "copy", "--leave-vms", "--yes")
    assert made(office) == before


NO_VMS_OF_A_PERSON = {
    "template": {"is_a_template": True},
    "snapshot": {"is_a_snapshot": True, "power_state": "Suspended"},  # a snapshot with memory
    "control domain": {"is_control_domain": True},
    "no UUID": {"uuid": "not-a-uuid"},
}


@pytest.mark.parametrize("kind", NO_VMS_OF_A_PERSON)
def test_marks_in_what_no_command_finds_stop_no_discard(office, pool_command, kind):
    """Each vm-admin can write such marks. `restore` and `rescue --done` could end neither."""
    db, vdi = office.pool.db, office.on_copy("data")
    vm = office.vm("evil", vdi if kind != "control domain" else office.vdi("Testing", "data")[0])
    fields = {"other_config": {"relvmoiscsi:restore:0": "x " + office.copy.sr_uuid}, **NO_VMS_OF_A_PERSON[kind]}
    for name, value in fields.items():
        db.set("VM", vm, name, value)
    for vbd in db.refs("VBD", VM=vm):
        mark = f"{db.get('VM', vm, 'uuid')} {db.get('VDI', vdi, 'uuid')}"
        db.set("VBD", vbd, "other_config", {"relvmoiscsi:rescue": mark})
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0, ran.err


@pytest.mark.parametrize("end", ["--keep", "--done"])
def test_marks_in_a_vm_of_a_person_stop_a_discard_until_the_command_that_is_told(office, pool_command, refused, end):
    """The twin of the test above."""
    db, vdi = office.pool.db, office.on_copy("data")
    vm = office.vm("own", vdi)
    uuid, (vbd,) = db.get("VM", vm, "uuid"), db.refs("VBD", VM=vm)
    if end == "--keep":
        db.set("VM", vm, "other_config", {"relvmoiscsi:restore:0": "x " + office.copy.sr_uuid})
        words = ("restore", "--keep", uuid, "--on-copy")
    else:
        db.set("VBD", vbd, "other_config", {"relvmoiscsi:rescue": f"{uuid} {db.get('VDI', vdi, 'uuid')}"})
        words = ("rescue", "copy", "--done")
    assert end in refused(4, "", "discard", "copy", "--yes", "--leave-vms").err
    assert pool_command(*words, "--yes").status == 0
    assert pool_command("discard", "copy", "--yes", "--leave-vms").status == 0


def test_who_would_stay_without_disks_is_told_before_and_one_of_two_words_is_said(office, pool_command, refused):
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    told = "on the copy: 'db too'\n  with --yes alone, the run would be refused: add --with-vms or --leave-vms"
    refused(0, told, "discard", "copy", "--dry-run")  # the run asks, and ends so after a yes
    refused(4, told, "discard", "copy", "--dry-run", "--yes")
    promised = refused(4, "", "discard", "copy", "--dry-run", "--yes", "--json").json["error"]
    ran = refused(4, "Add --with-vms, which destroys", "discard", "copy", "--yes", "--json").json["error"]
    assert promised == ran, "a script has the refusal of the run"
    assert told.split("\n")[1] in refused(4, "", "discard", "copy", "--dry-run", "--yes", "-q").err
    assert "alone" not in refused(0, "", "discard", "copy", "--dry-run", "--yes", "--leave-vms").out
    (row,) = pool_command("discard", "copy", "--dry-run", "--json").json["discard_results"]
    assert row["vms_left_without_disks"] == ["db too"] and row["yes_needs"] == ["--with-vms", "--leave-vms"]
    (row,) = pool_command("discard", "copy", "--dry-run", "--json", "--leave-vms").json["discard_results"]
    assert row["yes_needs"] == []
    ran = refused(
        4, "would lose their disks: 'db too' (on the copy 'copy'). Nothing was changed.", "discard", "copy", "--yes"
    )
    assert "--with-vms" in ran.err and "--leave-vms" in ran.err

    uuid = office.pool.db.get("VM", office.pool.db.refs("VM", name_label="db too")[0], "uuid")
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0 and "halted VMs that had disks on the copy: 'db too'" in ran.out
    destroy = f"`xe vm-destroy uuid={uuid}` (never vm-uninstall or template-uninstall)"
    remove, give = ran.out.splitlines()[-2:]
    assert remove == f"  Remove the LUN {office.copy.scsi_id} on the array."
    assert give == f"Give the VM 'db too' other disks, or destroy it: {destroy}."


def test_a_copy_that_another_client_forgets_at_that_moment_is_not_in_the_pool(office, pool_command):
    (sr,) = office.pool.db.refs("SR", name_label="copy")
    uuid = office.pool.db.get("SR", sr, "uuid")
    office.before("SR.get_all_records", lambda: (office.unplug(sr), office.pool.storage.sr_forget("", sr)), 2)
    ran = pool_command("discard", "copy", "--yes")
    assert ran.status == 0 and ran.out.strip() == f"{uuid}: not in the pool"


def test_a_vm_with_a_disk_of_its_own_is_not_to_be_destroyed_for_the_disk_that_it_has_lost(office, pool_command):
    """A person's VM, and a copy that has got a disk of its own."""
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    own = office.pool.db.create("VDI", SR=office.originals["Production"][1], name_label="mail store", location="mail")
    office.pool.db.create("VBD", VM=made(office)[0], VDI=own, userdevice="7")
    office.vm("payroll", own, office.on_copy("data"))

    ran = pool_command("discard", "copy", "--yes", "--leave-vms")

    assert ran.status == 0 and "vm-destroy" not in ran.out
    assert sorted(ran.out.splitlines()[-2:]) == [f"Give the VM {name!r} other disks." for name in ("db too", "payroll")]


def test_with_vms_is_offered_for_the_clones_alone(halted, pool_command, refused, type_in):
    """A production VM that keeps the disks of a copy was listed before "--with-vms destroys the VMs of `clone`"."""
    assert pool_command("restore", "copy", "db", "--yes").status == 0
    assert pool_command("restore", "--keep", "db", "--yes", "--on-copy").status == 0
    assert "--with-vms" not in refused(4, "lose their disks: 'db'", "discard", "copy", "--yes").err
    assert "add --leave-vms\n" in refused(0, "copy: 'db'", "discard", "copy", "--dry-run").out
    pool_command("clone", "copy", "web", "--name", "{vm} too", "--same-networks", "--yes")
    type_in("n\n")
    told = " ".join(refused(4, "lose their disks on the copy: 'db', 'web too'.", "discard", "copy").err.split())
    assert "--with-vms destroys the VMs that `clone` has made: 'web too'. Discard 'copy'?" in told


def test_after_a_discard_ten_vms_without_disks_have_a_sentence_and_the_others_are_counted(office, pool_command):
    for number in range(12):
        office.vm(f"test {number:02}", office.on_copy("data"))
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    *_, tenth, rest = ran.out.splitlines()
    assert ran.out.count("Give the VM") == 10 and "'test 09'" in tenth
    assert rest == "Do the same for 2 more VMs, named above."


@pytest.mark.parametrize("words", [[], ["--with-vms"]])
def test_of_several_copies_none_goes_while_a_vm_would_stay_without_disks(office, pool_command, refused, type_in, words):
    """The VM is a person's, although it is called as a copy is: --with-vms does not destroy it."""
    pool_command("clone", "copy", "web", "--name", "experiment", "--same-networks", "--yes")
    office.attach(office.clone("Production"))
    office.vm("experiment", office.on_copy("data"))
    refused(4, "would lose their disks: 'experiment' (on the copy 'copy')", "discard", "--all", "--yes", *words)
    type_in("n\n")
    ran = refused(4, "These halted VMs will lose their disks on the copy: ", "discard", "copy", *words)
    assert "Discard 'copy'" in ran.err and ("'experiment'. --with-vms destroys" in ran.err) == (not words)
    assert pool_command("discard", "--all", "--yes", "--leave-vms", *words).status == 0


@pytest.mark.parametrize("way", ["--yes", "--dry-run"])
def test_of_several_copies_the_users_of_each_are_named_at_once(office, refused, way):
    (other,) = office.attach(office.clone("Production"))
    of_other = office.pool.db.refs("VDI", SR=office.pool.db.by_uuid("SR", other.sr_uuid), name_label="data")[0]
    one, two = office.vm("one", office.on_copy("data"), state="Running"), office.vm("two", of_other, state="Running")
    ran = refused(4, "have disks on the SR 'copy': 'one'. ", "discard", "--all", way)
    assert ": 'two'. " in ran.err and ran.err.count("Shut each VM down: ") == 1
    assert all(f"`xe vm-shutdown uuid={office.pool.db.get('VM', vm, 'uuid')}`" in ran.err for vm in (one, two))
    assert " Nothing was changed." in ran.err


@pytest.mark.states("words", few=2)
@pytest.mark.parametrize("words", [["--yes"], ["--yes", "--leave-vms"], ["--yes", "--with-vms"], ["--dry-run"]])
@pytest.mark.parametrize("state", ["Halted", "Running"])
def test_a_disk_that_is_lent_keeps_it_and_the_message_has_the_command_that_gives_it_back(
    office, pool_command, refused, command, state, words
):
    helper = office.helper(state, "hvm")
    mode = ["--rw"] if state == "Running" else []  # a running HVM VM takes no read-only disk
    assert pool_command("rescue", "copy", "data", "--vm", "helper", "--yes", *mode).status == 0
    before = office.pool.db.records("PBD")
    says = "Disks of the SR 'copy' are lent to VMs: 'helper'."
    ran = refused(4, says, "discard", "copy", *words)
    assert office.pool.db.records("PBD") == before and " Nothing was changed." in ran.err

    (said,) = re.findall(r"`relvmoiscsi (pool rescue .*)`", ran.err)
    assert command(*said.split(), "--yes").status == 0 and len(office.disks_of(helper)) == 1
    assert pool_command("discard", "copy", "--yes").status == 0


def test_what_is_gone_is_told_where_the_sr_stays(office, pool_command):
    pool_command("clone", "copy", "web", "--name", "gone", "--same-networks", "--yes")
    office.pool.api.before = lambda method, _: method == "Async.PBD.unplug" and fail()
    ran = pool_command("discard", "copy", "--with-vms", "--yes")
    assert ran.status == 9 and "  destroyed: the VMs 'gone'" in ran.out and made(office) == []
    assert re.search(r": failed: .*The VDI is not available", ran.out)


# --- restore


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
    assert pool_command(*words, "--shutdown", "--dry-run", "--json").json["shuts_down"] is True
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
        assert "VM 'db': not restored\n  There is nothing to undo: " in ran.out
    for again in (words, words[:3]):
        ran = pool_command(*again, "--yes")
        assert ran.status == 0 and "undone" not in ran.out and "next: " not in ran.out
    assert pool_command(*words[:3], "--yes", "--json").json["status"] == "not restored"


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
    for words, said in ((home, "There is nothing to move: the VM"), (back, "is lent to a VM: nothing is taken back.")):
        assert pool_command(*words, "--yes").status == 0
        for how in ("--yes", "--dry-run"):
            ran = refused(0, said, *words, how)
            assert said in ran.out and "next: " not in ran.out
    assert pool_command(*back, "--yes", "--json").json == {"rescue_results": []}
    refused(3, "", "rescue", "copy", "a typo", "--done", "--yes")


@pytest.mark.parametrize("end", ["--keep", "--home"])
def test_a_vm_that_has_the_disks_of_a_copy_without_a_journal_was_not_undone(halted, pool_command, refused, end):
    assert pool_command("restore", "copy", "web", "--yes").status == 0
    more = ["--on-copy"] if end == "--keep" else []
    assert pool_command("restore", end, "web", "--yes", *more).status == 0
    told = refused(4, "was not restored from a copy", "restore", "--undo", "web", "--yes").err
    assert "or --keep has ended its restore" in told and "Find disks from before a restore by" in told


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
    why = "came home from a copy, which lost it. No disk of the VM is on this copy. Attach another clone of"
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
        refused(4, f"run `relvmoiscsi pool restore --keep {uuid}`", "restore", "--home", "web", "--yes")
    ran = refused(0, "VM 'web': would be kept as it is\n  disk 0: ", "restore", "--keep", "web", "--dry-run")
    assert "\n  on no VM: " in ran.out
    way = f"To keep the restored state, run `relvmoiscsi pool restore --home {uuid}` instead."
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
    refused(0, "'web': not restored\n  There is no journal to remove: ", "restore", "--keep", "web", "--yes")
    assert pool_command("discard", "copy", "--yes").status == (0 if is_home else 4)


def test_the_next_step_is_no_discard_while_another_vm_needs_the_copy(halted, pool_command):
    """Each step is typed as it is printed, to the end."""
    assert pool_command("restore", "copy", "web", "db", "--yes").status == 0
    ran = pool_command("restore", "--home", "web", "--yes")
    said = " ".join(ran.out.split())
    assert "The copy cannot be discarded yet. VMs were restored from the SR 'copy': 'db'. End " in said
    assert "Nothing was changed" not in said and "next: " not in said
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


@pytest.mark.parametrize("of_person", [False, True])
@pytest.mark.parametrize("end", [("restore", "--undo", "web"), ("rescue", "copy", "--done")])
def test_no_next_step_takes_the_disks_of_other_vms_with_the_copy(halted, pool_command, end, of_person):
    """With --with-vms or without: only the administrator knows whether a VM on the copy is needed."""
    if of_person:
        halted.vm("experiment", halted.on_copy("data"))
    else:
        assert pool_command("clone", "copy", "db", "--isolated", "night", "--name", "experiment", "--yes").status == 0
    halted.helper("Halted")
    begin = RESTORE[1:-1] if end[0] == "restore" else ("copy", "root disk", "--vm", "helper")
    assert pool_command(end[0], *begin, "--yes").status == 0
    ran = pool_command(*end, "--yes")
    assert "\nThe copy 'copy' has disks of other VMs: 'experiment'. After you no longer need these VMs: " in ran.out
    assert "discard" not in ran.out.partition("next: ")[2]
    (discard,) = re.findall("`relvmoiscsi pool (discard [^`]*)`", ran.out)
    assert ("--with-vms" in discard) == (not of_person)
    assert pool_command(*discard.split(), "--leave-vms", "--yes").status == 0
    assert bool(halted.pool.db.refs("VM", name_label="experiment")) == of_person


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


# --- rescue, before anybody says yes


def test_whoever_lends_or_takes_back_a_disk_is_told_which_disk_how_and_of_which_vm(office, pool_command, type_in):
    office.helper()
    lend = ["rescue", "copy", "data", "--vm", "helper"]
    assert "would be lent, VM 'helper', read-only" in pool_command(*lend, "--dry-run").out
    assert "would be lent, VM 'helper', with write access" in pool_command(*lend, "--rw", "--dry-run").out
    type_in("n\n")
    assert "Lend 'data' to 'helper', read-only? [y/N]" in pool_command(*lend).err
    assert pool_command(*lend, "--yes").status == 0
    type_in("n\n")
    ran = pool_command("rescue", "copy", "--done")
    assert ran.status == 4 and "Take back 'data' from 'helper', which is running? [y/N]" in ran.err


def test_a_disk_of_a_running_copy_of_a_vm_is_lent_after_the_way_that_is_told(office, pool_command, refused):
    assert pool_command("clone", "copy", "db", "--isolated", "lab", "--yes").status == 0
    office.helper()
    (clone,) = made(office)
    office.pool.db.set("VM", clone, "power_state", "Running")
    lend = ["rescue", "copy", "data", "--vm", "helper", "--yes"]
    ran = refused(4, "two VMs must not use one disk. Take another VDI or another copy. Or shut 'db ", *lend)
    (way,) = re.findall("`(xe vm-destroy uuid=.*?)` .*: that leaves its disks", ran.err)
    assert way.endswith(office.pool.db.get("VM", clone, "uuid"))
    office.pool.api.vms.vm_hard_shutdown("", clone)
    office.pool.api.vms.vm_destroy("", clone)
    assert pool_command(*lend).status == 0


# --- restore and rescue, again, and of several


@pytest.mark.parametrize(
    "words",
    [
        ("clone", "copy", "db", "web", "--isolated", "night"),
        ("rescue", "copy", "data", "--vm", "helper"),
        ("restore", "copy", "web"),
        ("restore", "copy", "web", "--shutdown"),
    ],
)
def test_a_copy_that_another_client_discards_during_the_question_is_told(halted, pool_command, monkeypatch, words):
    halted.helper("Halted")

    def asked(*_):
        assert pool_command("discard", "copy", "--yes").status == 0
        asked.before = halted.state()

    monkeypatch.setattr(f"relvmoiscsi.pool.commands.{words[0]}_command.ask", asked)
    if "--shutdown" in words:
        halted.pool.api.vms.vm_start("", halted.web)
    ran = pool_command(*words, "--yes")
    said = f"Another client has discarded the copy {halted.copy.sr_uuid}. Nothing was changed. "
    assert ran.status == 4 and said in ran.err
    assert halted.state() == asked.before, "without a network for the clones"


def test_nobody_is_asked_to_restore_or_lend_what_is(restored, pool_command, type_in):
    helper = restored.helper(domain_type="hvm")
    lending = ["rescue", "copy", "data", "--vm", "helper", "--rw"]  # a running HVM VM takes no read-only disk
    ran = pool_command(*lending, "--yes")
    assert ran.status == 0 and "read-only" not in ran.out
    for words, said in ((RESTORE[:3], "VM 'web': already restored"), (lending, "already lent, VM 'helper'")):
        assert said in pool_command(*words, "--dry-run").out
        type_in("")
        ran = pool_command(*words)
        assert ran.status == 0 and said in ran.out and "[y/N]" not in ran.err

    (vbd,) = restored.pool.db.refs("VBD", VM=helper, userdevice="1")
    restored.pool.api.vms.vbd_unplug("", vbd)
    assert "would be lent" in pool_command(*lending, "--dry-run").out
    assert ": lent, VM 'helper'" in pool_command(*lending, "--yes").out


def test_of_several_that_are_taken_back_one_fails(office, pool_command):
    helper = office.helper()
    for name in ("root disk", "data"):
        ran = pool_command("rescue", "copy", name, "--vm", "helper", "--yes")
        assert re.search("  later: `relvmoiscsi pool rescue --done .*", ran.out) and "next: " not in ran.out
    (held,) = office.pool.db.refs("VBD", VM=helper, userdevice="1")
    vms = office.pool.api.vms

    def unplug(session, vbd):
        if vbd == held:
            raise XenError("DEVICE_DETACH_REJECTED", "VBD", vbd, "busy")
        vms.vbd_unplug(session, vbd)

    office.pool.api._methods["VBD.unplug"] = unplug
    assert pool_command("rescue", "copy", "--done", "--dry-run").out.count("would be taken back") == 2
    ran = pool_command("rescue", "copy", "--done", "--yes")
    assert ran.status == 9 and ran.out.count("taken back") == ran.out.count(": failed, VM 'helper'") == 1
    assert "Unmount the disk in the guest of 'helper', then repeat the command." in ran.out
    assert pool_command("rescue", "copy", "--done", "--yes").status == 6


# --- Ctrl-C


@pytest.mark.processes
def test_interrupted_in_the_middle_it_says_what_goes_on(halted, pool_command, interrupts):
    says = "its start is blocked. Repeat the command, or run `relvmoiscsi pool restore --undo "
    of_error = lambda ran: " ".join(ran.json["error"][key] for key in ("disk_state", "advice"))  # noqa: E731
    for more, said in (([], lambda ran: ran.err), (["--json"], of_error)):
        interrupts(halted.pool, ("VBD.create", 1))
        ran = pool_command(*RESTORE, *more)
        assert ran.status == 130 and "Interrupted." in ran.err and says in said(ran)
    assert ran.json["error"]["advice"].startswith("Repeat the command, or run `")
    assert pool_command(*RESTORE).status == 0


@pytest.mark.processes
def test_clone_that_is_interrupted_says_how_far_each_vm_is(halted, pool_command, interrupts):
    interrupts(halted.pool, ("PUT /import_metadata", 3))  # each is tried first
    words = ["clone", "copy", "--all", "--same-networks", "--yes", "--jobs", "1", "--json"]
    ran = pool_command(*words)
    states = {row["worked_on"].split()[0]: (row["progress"], row["detail"]) for row in ran.json["so_far"]}
    assert ran.status == 130 and states == {"'db'": ("done", "cloned"), "'web'": ("under way", "clone")}
    ran = pool_command(*words)
    assert ran.status == 0 and [vm["status"] for vm in ran.json["clone_results"]] == ["already there", "cloned"]

    clones = [vm["new_vm"] for vm in ran.json["clone_results"]]
    starts = [f"xe vm-start uuid={uuid}" for uuid in clones]
    assert [line.strip() for line in pool_command(*words[:-1]).out.partition("next: ")[2].splitlines()] == starts
    halted.pool.db.set("VM", halted.pool.db.by_uuid("VM", clones[0]), "power_state", "Running")
    assert pool_command(*words[:-1]).out.endswith("next: " + starts[1] + "\n"), "no VM that runs is started"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "method", "what"),
    [
        (["restore", "--undo", "web"], "VBD.create", "undo"),
        (["restore", "--home", "web"], "Async.VDI.pool_migrate", "home"),
        (["rescue", "copy", "data", "--vm", "helper"], "VBD.create", "lend"),
        (["save-vms", "Production"], "Async.VDI.create", "save the records"),
    ],
)
def test_a_command_on_one_thing_that_is_interrupted_says_what_was_under_way(
    restored, pool_command, interrupts, words, method, what
):
    restored.helper("Halted")
    interrupts(restored.pool, (method, 1))
    (row,) = pool_command(*words, "--yes", "--json").json["so_far"]
    assert (row["progress"], row["detail"]) == ("under way", what)
    is_in_part = words[0] == "save-vms"  # without the VM "web", which is restored
    assert pool_command(*words, "--yes").status == (9 if is_in_part else 0)


# --- save-vms


def test_records_are_saved_shown_and_made_vms_of(office, pool_command, refused, command, tmp_path):
    refused(0, "The records of these VMs would be saved: 'db', 'web'\n", "save-vms", "Production", "--dry-run")
    saved = pool_command("save-vms", "Production", "--yes")
    assert saved.status == 0 and saved.out.endswith("map its clone.\nnext: relvmoiscsi pool luns\n")
    clone = office.clone("Production")
    found = {lun["scsi_id"]: lun for lun in pool_command("luns", "--json").json["pool_luns"]}
    assert found[clone]["saved_vm_names"] == ["db", "web"] and found[clone]["saved_at"].startswith("20")

    disk, image = office.world.lun(clone).disk, tmp_path / "clone.img"
    image.write_bytes(disk.peek(0, disk.size_bytes))
    shown = command("show", image, "--json").json["saved_vms"]
    assert [vm["vm_name"] for vm in shown["vms"]] == ["db", "web"] and shown["vms"][1]["power_state"] == "Running"
    assert "  VMs      'db', 'web'; their records of 20" in command("show", image).out

    office.pool.api.vms.vm_destroy("", office.db_vm)
    pool_command("attach", clone, "--yes", "--name", "of then")
    ran = pool_command("clone", "of then", "--all", "--from-snapshot", "--isolated", "lab", "--yes", "--json")
    assert [(vm["old_name"], vm["status"]) for vm in ran.json["clone_results"]] == [("db", "cloned"), ("web", "cloned")]
    refused(3, "", "clone", "copy", "--all", "--from-snapshot", "--yes")


def test_a_restored_vm_is_left_out_by_name_and_its_records_of_an_earlier_save_are_kept(halted, pool_command, refused):
    """Its disks are on the copy: it was left out without a word, and its earlier records were dropped."""
    uuid = halted.pool.db.get("VM", halted.web, "uuid")
    assert pool_command("save-vms", "Production", "--yes").status == 0
    assert pool_command(*RESTORE).status == 0
    why = (
        "The VM 'web' was restored from the copy 'copy': its disks are there, and not on the SR 'Production'. End the "
        f"restore first: `relvmoiscsi pool restore --home {uuid}` or "
        f"`relvmoiscsi pool restore --undo {uuid} --shutdown`."
    )
    dry = refused(0, "would be saved: 'db'\n", "save-vms", "Production", "--dry-run")
    assert f"Left out: {why}" in " ".join(dry.out.split())

    ran = pool_command("save-vms", "Production", "--yes")
    told = " ".join(ran.out.split())
    assert ran.status == 9 and "VM 'db': saved" in ran.out and f"VM 'web': failed: {why} Its records of the" in told
    clone = halted.clone("Production")
    found = {lun["scsi_id"]: lun for lun in pool_command("luns", "--json").json["pool_luns"]}
    assert found[clone]["saved_vm_names"] == ["db", "web"]

    assert pool_command("restore", "copy", "db", "--yes").status == 0
    ran = refused(3, "No VM has a disk on the SR 'Production'.", "save-vms", "Production", "--yes")
    assert why.partition(" End ")[0] in " ".join(ran.err.split()) and ran.err.count("--home") == 2


def test_a_task_that_its_owner_destroys_while_clone_waits_ends_no_clone(office, pool_command, monkeypatch):
    """A vm-operator can make a task with the name of an import that a killed run has left, and destroy it."""
    monkeypatch.setattr("relvmoiscsi.pool.calls.EVENT_SECONDS", 0.1)
    db = office.pool.db
    label = f"relvmoiscsi: {office.copy.sr_uuid} has a copy of {db.get('VM', office.db_vm, 'uuid')}"
    task = db.create("task", name_label=label, status="pending", other_config={"applies_to": "x"})
    office.before("event.from", lambda: db.destroy("task", task), 2)
    ran = pool_command("clone", "copy", "db", "--isolated", "lab", "--yes")
    assert not db.exists("task", task) and ran.status == 0 and len(made(office)) == 1, ran.err


# --- records of strangers

#: the worst values of each type, which a client of a low role can give a field of its own record. Nobody can give a
#: field another type
WORST = {
    "string": ["", 'a" or field "uuid" = "b', "\u202e", "\u00e9" * 300, "9" * 30, "-1", "OpaqueRef:gone"],
    "ref": ["OpaqueRef:NULL", "OpaqueRef:gone"],
    "bool": [True, False],
    "int": [-(2**63), 2**63 - 1, -1, 10**18],
    "float": [float("nan"), float("inf"), float("-inf"), -1.0, 2.0],
    "map": [{}, {"": ""}, {"\u00e9": "\u202e"}],
    "set": [[], [""], ["OpaqueRef:gone"]],
}
#: the classes that the code reads, and of which no stranger makes a record
OF_THE_POOL = {"pool", "host", "host_metrics"}
#: each command, and each that mends; {0} is a clone
EACH_COMMAND = """
    luns|map copy|secrets|save-vms Production --yes
    restore --undo web --dry-run|restore --keep web --dry-run|restore --home web --dry-run
    restore --undo web --yes|restore copy web --yes|restore --home web --yes
    clone copy --all --isolated lab --yes
    rescue copy data --vm helper --yes|rescue copy --done --yes
    attach {0} --yes --name=second|attach {0} --yes --name=second
    clone second db --from-snapshot --isolated lab --yes|discard second --leave-vms --yes
    restore copy db --yes|restore --keep db --yes --on-copy|discard copy --leave-vms --yes|luns
"""


def strangers_records(office):
    """A record for each worst value of each field. The VDIs are on the copy and on the original too, with the name of
    VM records; the tasks have the name of an import that `clone` looks for.
    """
    db = office.pool.db
    srs = [{"SR": db.refs("SR", name_label=name)[0]} for name in ("Testing", "Production", "copy")]
    label = f"relvmoiscsi: {office.copy.sr_uuid} has a copy of {db.get('VM', office.db_vm, 'uuid')}"
    like = {
        "VDI": [{"name_label": saved_vms.NAME_LABEL, **sr} for sr in srs],
        "PBD": srs[:1],
        "task": [{"name_label": label, "status": "pending"}],
    }
    for kind in sorted((set(answer_forms.FIELDS) & set(TABLES)) - OF_THE_POOL):
        for name in answer_forms.FIELDS[kind]:
            for value in WORST.get(TABLES[kind][name].kind, ()):  # a set of references, such as VM.VIFs, nobody writes
                for fields in like.get(kind, [{}]):
                    db.forge(kind, db.create(kind, **fields), name, value)


def test_no_record_of_a_stranger_ends_a_command(restored, pool_command):
    """A form says what type a field has. The value concerns the commands on that record, and no other."""
    restored.helper()
    assert pool_command("save-vms", "Production", "--yes").status == 9, "it leaves out web, which is restored"
    image, clone = Image(restored), restored.clone("Production")
    commands = [words.format(clone).split() for words in re.split(r"[|\n]", EACH_COMMAND) if words.strip()]
    alone = [pool_command(*words) for words in commands]
    image.put(restored)
    assert restored.clone("Production") == clone
    strangers_records(restored)
    for words, before in zip(commands, alone):
        ran = pool_command(*words)
        assert ran.status == before.status, (words, before.err, ran.err)


@pytest.mark.parametrize("fields", [{"is_a_template": True}, {"is_a_snapshot": True}, {"is_control_domain": True}, {}])
def test_a_journal_that_no_restore_can_end_holds_no_copy(office, pool_command, fields):
    """A snapshot copies the journal of its VM, and a vm-admin writes a journal anywhere. `{}`: it has no UUID."""
    vm = office.vm("evil", office.vdi("Testing", "data")[0], **fields)
    office.pool.db.set("VM", vm, "other_config", {restore_entries.RESTORED + "0": "x " + office.copy.sr_uuid})
    if not fields:
        ran = pool_command("discard", "copy", "--yes", "--leave-vms")
        assert ran.status == 4 and "restore --keep" in " ".join(ran.err.replace("--home", "--keep").split())
        office.pool.db.forge("VM", vm, "uuid", "no UUID")
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0, ran.err


def test_a_mark_of_a_loan_on_a_snapshot_with_memory_holds_no_copy(office, pool_command):
    db, disk = office.pool.db, office.on_copy("data")
    snapshot = office.snapshot(office.vm("own", disk), "yesterday", disk)
    db.set("VM", snapshot, "power_state", "Suspended")
    (vbd,) = db.refs("VBD", VM=snapshot)
    db.set("VBD", vbd, "currently_attached", True)
    whose = f"{db.get('VM', snapshot, 'uuid')} {db.get('VDI', disk, 'uuid')}"
    db.set("VBD", vbd, "other_config", {inventory.LENT: whose})
    assert pool_command("rescue", "copy", "--done", "--yes").status == 0
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0, ran.err
