# SPDX-License-Identifier: LGPL-2.1-only
"""The commands of `relvmoiscsi pool` on VMs, all of them: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import re

import pytest

from kit.office import RESTORE, made
from kit.pool.database import TABLES
from kit.pool_lab import Image
from relvmoiscsi.formats import saved_vms
from relvmoiscsi.pool import answer_forms
from relvmoiscsi.pool.vms import inventory, restore_entries

pytestmark = pytest.mark.states


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
        (["clone", "copy", "--all", "web"], "Give VMs, or --all."),
        (["discard", "copy", "--all"], "Give SRs, --clones-of SR, or --all."),
        (["discard", "--clones-of", "Production", "--all"], "Give SRs, --clones-of SR, or --all."),
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
