# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool` on VMs: what it prints, how it ends, whom it asks."""

import json
import re
from contextlib import contextmanager

import pytest

from kit.lun_world import World
from kit.pool.errors import XenError
from kit.pool_lab import Image, Lab
from relvmoiscsi import cli, wording
from relvmoiscsi.cli import pool_discard, pool_vms
from relvmoiscsi.pool.vms import choice

pytestmark = pytest.mark.states


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


def facts(ran):
    return json.loads(ran.out)


def test_all_vms_isolated_by_one_command(office, pool_command):
    ran = pool_command("clone", "copy", "--all", "--isolated", "lab", "--name", "{vm} lab", "--yes")

    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith('db: cloned "db lab" (') and "  network 0: office became lab" in lines
    assert "  HA is off" in lines
    (uuid,) = [row["uuid"] for row in office.pool.db.records("VM", name_label="db lab").values()]
    assert f"  next: xe vm-start uuid={uuid}" in lines
    assert "hostname, the machine SID" in ran.out and "first backup of a copy is a full backup" in ran.out
    assert "networks of their originals" not in ran.out
    assert "relvmoiscsi: web: cloned" in ran.err
    ran = pool_command("clone", "copy", "--all", "--isolated", "lab", "--yes", "--json")
    assert [vm["status"] for vm in facts(ran)["vms"]] == ["already there"] * 2
    assert facts(ran)["vms"][0]["name"] == {"old": "db", "new": "db lab"}


def test_what_would_be_done_is_told_and_not_done(office, pool_command, type_in):
    before = office.state()
    ran = pool_command("clone", "copy", "web", "--isolated", "lab", "--dry-run")
    assert ran.status == 0 and "web: would be cloned" in ran.out and "  network 0: office became lab" in ran.out
    assert "became" in ran.out.splitlines()[1] and office.state() == before

    type_in("no\n")
    ran = pool_command("clone", "copy", "web", "--isolated", "lab")
    assert ran.status == 4 and "Clone 1 VM? [y/N]" in ran.err and "would be cloned" in ran.err
    assert office.state() == before
    assert pool_command("clone", "copy", "web", "--json").status == 2


def fresh(office, _run):
    pass


def one_is_there(office, run):
    run("clone", "copy", "web", "--yes")


def all_are_there(office, run):
    run("clone", "copy", "--all", "--isolated", "lab", "--yes")


def one_cannot_be(office, _run):
    office.vm("mixed", office.vdi("Production", "data")[0], office.vdi("Testing", "data")[0])


def all_but_one_cannot_be(office, run):
    """Each of the others has another problem: one is seen only in its records."""
    one_cannot_be(office, run)
    office.vm("diskless")
    ref = office.pool.db.refs("VDI", SR=office.pool.db.by_uuid("SR", office.copy.sr_uuid), name_label="root disk")
    office.vm("thief", *ref)


def one_is_half(office, run):
    office.pool.api.before = lambda method, _: method == "VM.add_to_other_config" and fail()
    run("clone", "copy", "web", "--yes")
    office.pool.api.before = None


def with_a_snapshot(office, _run):
    office.snapshot(office.web, "before the upgrade", office.vdi("Production", "before")[0])
    office.snapshot(office.web, "of today", office.vdi("Testing", "before")[0])


@pytest.mark.states("state", "more", few=8)
@pytest.mark.parametrize("more", [[], ["--isolated", "lab"], ["--snapshots"], ["--isolated", "lab", "--keep-mac"]])
@pytest.mark.parametrize(
    "state",
    [fresh, one_is_there, all_are_there, one_cannot_be, all_but_one_cannot_be, one_is_half, with_a_snapshot],
)
def test_the_dry_run_promises_what_is_then_done(office, pool_command, monkeypatch, state, more):
    monkeypatch.setattr(choice, "PATIENCE_SECONDS", 0.0)
    state(office, pool_command)
    before, words = office.state(), ["clone", "copy", "--all", "--json", *more]
    dry = pool_command(*words, "--dry-run")
    promised = facts(dry)["vms"]
    assert office.state() == before
    ran = pool_command(*words, "--yes")
    done = facts(ran)["vms"]

    assert dry.status == ran.status
    assert [row["status"].replace("would be ", "") for row in promised] == [row["status"] for row in done]
    for would, did in zip(promised, done):
        half = [note for note in would["notes"] if "left the VM unfinished" in note]
        if half and did["error"] is None:
            assert state is one_is_half
            continue
        same = ("disks", "networks", "snapshots", "notes", "error")
        assert [would[name] for name in same] == [did[name] for name in same]
    if not any(row["status"] == "would be cloned" for row in promised):
        assert office.state() == before, "no network is made for nothing"


def test_nobody_is_asked_for_nothing_and_the_question_counts_what_is_made(office, pool_command, type_in):
    one_cannot_be(office, pool_command)
    assert "The copies are on the networks of their originals" in pool_command("clone", "copy", "web", "--yes").out
    type_in("y\n")
    ran = pool_command("clone", "copy", "--all")
    assert ran.status == 9 and "Clone 1 VM? [y/N]" in ran.err
    type_in("")
    ran = pool_command("clone", "copy", "web", "db")
    assert ran.status == 0 and "[y/N]" not in ran.err and ran.out.count(": already there") == 2
    ran = pool_command("clone", "copy", "web", "db", "--isolated", "lab")
    assert ran.status == 9 and "[y/N]" not in ran.err and ran.out.count("is on the network office") == 2
    assert not office.pool.db.refs("network", name_label="lab")
    ran = pool_command("clone", "copy", "mixed", "--yes")
    assert ran.status == 4 and "mixed: failed" in ran.out and "has disks that are not on the copy" in ran.out
    assert "hostname" not in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Production", "--all"], "was not introduced by"),
        (["copy", "--all", "--isolated", "office"], "has physical interfaces"),
        (["copy", "--all", "--network", "office=other"], "no network with the UUID or the name 'other'"),
        (["nothing", "--all"], "no SR with the UUID or the name 'nothing'"),
    ],
)
def test_wrong_words(office, pool_command, words, message):
    before = office.state()
    ran = pool_command("clone", *words, "--yes")
    assert ran.status in (2, 3, 4) and message in ran.err and office.state() == before


def test_the_same_mac_beside_the_original_is_refused(office, pool_command):
    before = office.state()
    ran = pool_command("clone", "copy", "web", "--keep-mac", "--yes")
    assert ran.status == 4 and "is on the network 'office' already" in ran.out and office.state() == before


# --- discard


def test_one_command_to_be_rid_of_it_all(office, pool_command, type_in):
    before = office.state()
    pool_command("clone", "copy", "--all", "--isolated", "lab", "--yes")
    ran = pool_command("discard", "copy", "--with-vms", "--dry-run", "--json")
    assert len(facts(ran)["srs"][0]["vms"]) == 2 and office.pool.db.refs("network", name_label="lab")
    type_in("yes\n")
    ran = pool_command("discard", "copy", "--with-vms")

    assert ran.status == 0 and "and destroy 2 VMs (db " in ran.err
    assert ran.out.splitlines()[0].endswith("discarded") and ran.out.splitlines()[1].startswith("  with the VMs db ")
    after = office.state()
    assert after["VM"] == before["VM"] and set(after["network"]) == set(before["network"])
    assert not office.pool.db.refs("SR", name_label="copy")


def test_who_would_stay_without_disks_is_told_before_and_one_of_two_words_is_said(office, pool_command):
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--yes")
    before = office.state()
    ran = pool_command("discard", "copy", "--dry-run")
    assert "  halted VMs that lose disks on the copy (--yes needs --with-vms or --leave-vms): db too" in ran.out
    assert ran.status == 4 and pool_command("discard", "copy", "--dry-run", "--leave-vms").status == 0
    (row,) = facts(pool_command("discard", "copy", "--dry-run", "--json"))["srs"]
    assert row["vms_left_without_disks"] == ["db too"]
    ran = pool_command("discard", "copy", "--yes")
    assert ran.status == 4 and "would lose their disks: db too. Nothing was changed." in ran.err
    assert "--with-vms" in ran.err and "--leave-vms" in ran.err and office.state() == before

    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0 and "halted VMs that had disks on the copy: db too" in ran.out
    assert f"  next: remove the LUN {office.copy.scsi_id} on the array" in ran.out


@pytest.mark.parametrize("words", [[], ["--with-vms"]])
def test_of_several_copies_none_goes_while_a_vm_would_stay_without_disks(office, pool_command, words):
    """The VM is a person's: --with-vms does not destroy it."""
    (second,) = office.attach(office.clone("Production"))
    there = office.pool.db.refs("VDI", SR=office.pool.db.by_uuid("SR", second.sr_uuid), name_label="data")
    office.vm("experiment", *there)
    before = office.state()
    ran = pool_command("discard", "--all", "--yes", *words)
    assert ran.status == 4 and "would lose their disks: experiment." in ran.err and office.state() == before
    assert pool_command("discard", "--all", "--yes", "--leave-vms", *words).status == 0


@pytest.mark.states("words", few=2)
@pytest.mark.parametrize("words", [["--yes"], ["--yes", "--leave-vms"], ["--yes", "--with-vms"], ["--dry-run"]])
@pytest.mark.parametrize("state", ["Halted", "Running"])
def test_a_disk_that_is_lent_keeps_it_and_the_message_has_the_command_that_gives_it_back(
    office, pool_command, command, state, words
):
    helper = office.vm("helper", office.vdi("Testing", "data")[0], state=state)
    mode = ["--rw"] if state == "Running" else []  # a running HVM VM takes no read-only disk
    assert pool_command("rescue", "copy", "data", "--vm", "helper", "--yes", *mode).status == 0
    before = office.state(), office.pool.db.records("PBD")
    ran = pool_command("discard", "copy", *words)
    assert ran.status == 4 and "Disks of the SR 'copy' are lent to VMs: helper. Nothing was changed." in ran.err
    assert (office.state(), office.pool.db.records("PBD")) == before

    (said,) = re.findall(r"`relvmoiscsi (pool rescue .*)`", ran.err)
    assert command(*said.split(), "--yes").status == 0 and len(office.disks_of(helper)) == 1
    assert pool_command("discard", "copy", "--yes").status == 0


def made(office):
    rows = office.pool.db.records("VM")
    return [ref for ref, vm in rows.items() if "relvmoiscsi:clone-of" in vm["other_config"] and not vm["is_a_snapshot"]]


def test_a_host_that_is_down_keeps_all(office, pool_command):
    pool_command("clone", "copy", "--all", "--isolated", "lab", "--yes")
    office.pool.go_down(office.pool.hosts[1])
    for words in (["--dry-run"], ["--yes"]):
        ran = pool_command("discard", "copy", "--with-vms", *words)
        assert ran.status == 4 and "is still attached on hosts that are down" in ran.err
    assert len(made(office)) == 2


def test_snapshots_that_go_are_named(office, pool_command, type_in):
    pool_command("clone", "copy", "web", "--yes")
    (vm,) = made(office)
    snap = office.snapshot(vm, "before the upgrade")
    office.pool.db.set("VM", snap, "power_state", "Suspended")
    ran = pool_command("discard", "copy", "--with-vms", "--dry-run", "--json")
    assert facts(ran)["srs"][0]["snapshots"] == ["before the upgrade"]
    type_in("y\n")
    ran = pool_command("discard", "copy", "--with-vms")
    assert ran.status == 0 and "with 1 snapshot (before the upgrade)" in ran.err
    assert "  with their snapshots before the upgrade" in ran.out and snap not in office.pool.db.refs("VM")


def test_who_loses_disks_is_named_whatever_the_name(office, pool_command, type_in):
    """A person's VM that is called as a copy is."""
    pool_command("clone", "copy", "web", "--name", "web too", "--yes")
    vdi = office.pool.db.refs("VDI", SR=office.pool.db.by_uuid("SR", office.copy.sr_uuid), name_label="data")[0]
    office.vm("web too", vdi)
    type_in("n\n")
    ran = pool_command("discard", "copy", "--with-vms")
    assert "lose their disks on the copy: web too." in ran.err


@pytest.mark.parametrize("words", [["restore", "copy", "db"], ["clone", "copy", "db"]])
def test_what_comes_while_somebody_is_asked_is_not_robbed(office, pool_command, monkeypatch, words):
    real = pool_discard.ask

    def ask(*more):
        monkeypatch.setattr(pool_discard, "ask", real)
        assert cli.main(["pool", *words, "--yes"]) == 0

    monkeypatch.setattr(pool_discard, "ask", ask)
    ran = pool_command("discard", "copy", "--with-vms", "--yes")
    assert ran.status == 4 and "db" in ran.err and office.pool.db.refs("SR", name_label="copy")
    vbds = office.pool.db.records("VBD", type="Disk").values()
    assert all(vbd["VDI"] in office.pool.db.refs("VDI") for vbd in vbds)


def test_what_is_gone_is_told_where_the_sr_stays(office, pool_command):
    pool_command("clone", "copy", "web", "--name", "gone", "--yes")
    office.pool.api.before = lambda method, _: method == "Async.PBD.unplug" and fail()
    ran = pool_command("discard", "copy", "--with-vms", "--yes", "--json")
    row = facts(ran)["srs"][0]
    assert ran.status == 9 and (row["status"], row["vms"]) == ("failed", ["gone"]) and made(office) == []


def fail():
    raise XenError("SR_BACKEND_FAILURE_46", "", "The VDI is not available", "")


def test_a_half_one_is_told_what_finishes_it(office, pool_command):
    office.pool.api.before = lambda method, _: method == "VM.add_to_other_config" and fail()
    pool_command("clone", "copy", "web", "--yes")
    office.pool.api.before = None
    ran = pool_command("discard", "copy", "--with-vms", "--yes")
    assert ran.status == 4 and "repeat that `clone`" in ran.err
    assert pool_command("clone", "copy", "web", "--yes").status == 0
    assert pool_command("discard", "copy", "--with-vms", "--yes").status == 0


def test_the_network_of_two_copies_goes_with_both(office, pool_command):
    (second,) = office.attach(office.clone("Production"))
    for sr in ("copy", second.sr_uuid):
        assert pool_command("clone", sr, "--all", "--isolated", "lab", "--yes").status == 0
    assert pool_command("discard", "--all", "--with-vms", "--yes").status == 0
    assert not office.pool.db.refs("network", name_label="lab") and made(office) == []


# --- names and networks


@pytest.mark.parametrize("name", ["{vm:d}", "a\x01b"])
def test_a_name_that_cannot_be_is_a_usage_error(office, pool_command, name):
    ran = pool_command("clone", "copy", "web", "--name", name, "--yes", "--json")
    assert ran.status == 2 and "--name" in ran.out + ran.err and made(office) == []


def test_a_network_that_is_gone_is_named_as_it_was(office, pool_command):
    db = office.pool.db
    office.network("lab")
    uuid = db.get("network", office.net, "uuid")
    assert pool_command("save-vms", "Production", "--yes").status == 0
    (copy,) = office.attach(office.clone("Production"))
    for table in ("VIF", "PIF"):
        for ref in db.refs(table, network=office.net):
            db.destroy(table, ref)
    db.destroy("network", office.net)
    words = ["--from-snapshot", "--keep-mac", "--no-vtpm", "--yes", "--json"]
    assert "use --network office=NEW" in pool_command("clone", copy.sr_uuid, "web", *words).out
    for vm, old in (("web", "office"), ("db", uuid)):
        ran = pool_command("clone", copy.sr_uuid, vm, *words, "--network", f"{old}=lab")
        assert ran.status == 0 and facts(ran)["vms"][0]["networks"] == {"0": {"old": "office", "new": "lab"}}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["other=lab"], "none of the VMs has a network card on the network 'other'"),
        (["office=lab", "office=other"], "already has another NEW"),
    ],
)
def test_a_pair_that_does_nothing_is_refused(office, pool_command, pairs, message):
    office.network("lab"), office.network("other")
    words = [word for pair in pairs for word in ("--network", pair)]
    ran = pool_command("clone", "copy", "web", *words, "--yes")
    assert ran.status == 2 and message in ran.err and made(office) == []


# --- restore and rescue


def test_restore_undo_and_home(office, pool_command, type_in):
    own = office.disks_of(office.web)
    ran = pool_command("restore", "copy", "web", "--yes")
    assert ran.status == 4 and "Add --shutdown" in ran.err
    ran = pool_command("restore", "copy", "web", "--dry-run")
    assert ran.status == 4 and "Add --shutdown" in ran.err
    ran = pool_command("restore", "copy", "web", "--shutdown", "--dry-run")
    assert ran.status == 0 and ran.out.startswith("web: would be restored\n  disk 0: ")
    type_in("y\n")
    ran = pool_command("restore", "copy", "web", "--shutdown", "--disk", "0")
    assert ran.status == 0 and "Restore web? [y/N]" in ran.err and "web: restored" in ran.out
    assert "next backup of the VM is a full backup" in ran.out
    assert pool_command("discard", "copy", "--yes").status == 4
    ran = pool_command("restore", "--undo", "web", "--dry-run")
    assert "web: would be undone" in ran.out

    ran = pool_command("restore", "--undo", "web", "--yes", "--json")
    assert facts(ran)["status"] == "undone" and office.disks_of(office.web) == own
    pool_command("restore", "copy", "web", "--yes")
    assert "would be taken home" in pool_command("restore", "--home", "web", "--dry-run").out
    ran = pool_command("restore", "--home", "web", "--yes")
    assert ran.status == 0 and "no longer needed: " + own["0"][1] in ran.out and "disk 0 is being moved" in ran.err
    assert office.disks_of(office.web)["0"][0] == own["0"][0]
    assert pool_command("discard", "copy", "--yes").status == 0


@pytest.mark.parametrize("words", [["restore", "copy", "web"], ["restore", "--undo", "web"]])
def test_a_vm_that_is_shut_down_for_it_is_told_of_before_and_after(office, pool_command, type_in, words):
    vms = office.pool.api.vms
    if "--undo" in words:
        vms.vm_hard_shutdown("", office.web)
        pool_command("restore", "copy", "web", "--yes")
        vms.vm_start("", office.web)
    before = office.state()
    ran = pool_command(*words, "--shutdown", "--dry-run")
    assert "  the VM is running: the run shuts the VM down and leaves the VM halted" in ran.out
    assert facts(pool_command(*words, "--shutdown", "--dry-run", "--json"))["shuts_down"] is True
    type_in("n\n")
    ran = pool_command(*words, "--shutdown")
    assert ran.status == 4 and "web is running. The run shuts the VM down and leaves the VM halted. " in ran.err
    assert office.state() == before

    ran = pool_command(*words, "--shutdown", "--yes")
    assert ran.status == 0 and "  the VM was shut down and is halted: start the VM when you are ready" in ran.out
    assert office.pool.db.get("VM", office.web, "power_state") == "Halted"
    uuid = office.pool.db.get("VM", office.web, "uuid")
    then = f"discard {office.copy.sr_uuid}\n" if "--undo" in words else f"restore --home {uuid}\n  or:   relvmoiscsi"
    assert f"  next: xe vm-start uuid={uuid}\n  then: relvmoiscsi pool {then}" in ran.out
    again = pool_command("restore", "copy", "web", "--shutdown", "--dry-run")
    assert "is running" not in again.out, "it is halted"


def test_nobody_is_asked_to_restore_or_lend_what_is(office, pool_command, type_in):
    pool_command("restore", "copy", "web", "--shutdown", "--yes")
    helper = office.vm("helper", office.vdi("Testing", "data")[0], state="Running")
    lending = ["rescue", "copy", "data", "--vm", "helper", "--rw"]  # a running HVM VM takes no read-only disk
    assert pool_command(*lending, "--yes").status == 0
    for words, said in ((["restore", "copy", "web"], "web: already restored"), (lending, "already lent, helper")):
        assert said in pool_command(*words, "--dry-run").out
        type_in("")
        ran = pool_command(*words)
        assert ran.status == 0 and said in ran.out and "[y/N]" not in ran.err

    (vbd,) = [
        ref for ref in office.pool.db.refs("VBD", VM=helper) if office.pool.db.get("VBD", ref, "userdevice") == "1"
    ]
    office.pool.api.vms.vbd_unplug("", vbd)
    assert "would be lent" in pool_command(*lending, "--dry-run").out
    assert ": lent, helper" in pool_command(*lending, "--yes").out


def test_the_dry_run_of_home_names_the_disks_that_are_moved(halted, pool_command):
    halted.pool.api.vms.vbd_create(
        "", {"VM": halted.web, "VDI": halted.vdi("Production", "before")[0], "userdevice": "1", "mode": "RW"}
    )
    pool_command("restore", "copy", "web", "--yes")
    new = {device: uuid for device, (_, uuid) in halted.disks_of(halted.web).items()}
    home = halted.pool.db.get("SR", halted.originals["Production"][1], "uuid")
    ran = pool_command("restore", "--home", "web", "--dry-run")
    assert [line for line in ran.out.splitlines() if "  disk" in line] == [
        f"  disk {device}: {new[device]} is moved to the SR {home}" for device in "01"
    ]
    moved = []

    def stop(method, _params):
        moved.append(method)
        if moved.count("Async.VDI.pool_migrate") == 2:
            fail()

    halted.pool.api.before = stop
    assert pool_command("restore", "--home", "web", "--yes").status != 0
    halted.pool.api.before = None
    halted.later()
    ran = pool_command("restore", "--home", "web", "--dry-run")
    assert [line for line in ran.out.splitlines() if "  disk" in line] == [
        f"  disk 1: {new['1']} is moved to the SR {home}"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore"], "Missing: SR, VM."),
        (["restore", "copy"], "Missing: VM."),
        (["restore", "--undo", "web", "--disk", ","], "With --undo, --home or --keep"),
        (["restore", "copy", "web", "--disk", ","], "give devices, for example 0,1"),
        (["rescue", "copy"], "Missing: VDI, --vm."),
        (["rescue", "copy", "--vm", "web"], "Missing: VDI."),
        (["rescue", "copy", "data"], "Missing: --vm."),
        (["clone", "copy"], "No VM is selected"),
        (["clone", "copy", "--all", "--network", "x"], "give OLD=NEW"),
        (["clone", "copy", "--all", "--name", "{x}"], "may contain only the fields vm, date and sr in braces"),
        (["clone", "copy", "--all", "--jobs", "0"], "give 1 or more VMs in parallel"),
        (["attach"], "is selected"),
        (["attach", "../x"], "is no SCSIid"),
        (["attach", "--all", "--jobs", "0"], "give 1 or more LUNs in parallel"),
        (["attach", "--all", "--name", "{x}"], "may contain only the fields sr, date and scsi_id"),
        (["attach", "--all", "--map-out", "/nowhere/map"], "/nowhere/map: No such file or directory."),
        (["attach", "--all", "--chap-user", "alice"], "need each other"),
        (["attach", "--all", "--hba", "--target", "x"], "remove --target and --chap-user"),
        (["discard"], "is selected"),
    ],
)
def test_what_is_missing_or_wrong_is_told_before_it_is_said_that_nobody_can_be_asked(office, pool_command, words, said):
    calls = len(office.pool.api.calls)
    ran = pool_command(*words)
    assert ran.status == 2 and said in ran.err and "--yes" not in ran.err
    assert len(office.pool.api.calls) == calls, "nothing was asked of the pool"


def test_rescue(office, pool_command, command):
    helper = office.vm("helper", office.vdi("Testing", "data")[0], state="Running", domain_type="pv_in_pvh")
    assert "would be lent, helper" in pool_command("rescue", "copy", "root disk", "--vm", "helper", "--dry-run").out
    ran = pool_command("rescue", "copy", "root disk", "--vm", "helper", "--yes")
    assert (
        ran.status == 0
        and ": lent, helper, device 1" in ran.out
        and "use --rw, which writes only to the copy" in ran.out
    )
    assert pool_command("discard", "copy", "--yes").status == 4
    (said,) = re.findall("next: relvmoiscsi (pool rescue .* --done)", ran.out)
    assert "would be taken back" in command(*said.split(), "--dry-run").out
    assert "would be taken back" in pool_command("rescue", "copy", "--done", "--dry-run").out
    ran = pool_command("rescue", "copy", "--done", "--yes", "--json")
    assert facts(ran)["disks"][0]["status"] == "taken back" and len(office.disks_of(helper)) == 1
    ran = pool_command("rescue", "copy", "root disk", "--vm", "helper", "--rw", "--yes")
    assert "read-only" not in ran.out and "filesystem IDs would clash" in ran.out


@pytest.mark.parametrize(
    "words",
    [
        ["restore", "copy", "web", "--undo", "web"],
        ["restore", "--home", "web", "--disk", "0"],
        ["restore", "--keep", "web", "--disk", ""],
        ["rescue", "copy", "--rw", "--done"],
    ],
)
def test_wrong_words_of_restore_and_rescue(office, pool_command, words):
    ran = pool_command(*words, "--yes")
    assert ran.status == 2 and "Give a" in ran.err


# --- restore: a way out, and what is said where it ends


@pytest.fixture
def halted(office):
    office.pool.api.vms.vm_hard_shutdown("", office.web)
    return office


def test_kept_as_it_is(halted, pool_command, type_in):
    """It was moved home by another tool."""
    pool_command("restore", "copy", "web", "--yes")
    (vbd,) = halted.pool.db.refs("VBD", VM=halted.web)
    home = halted.originals["Production"][1]
    halted.pool.api.vms.vdi_pool_migrate("", halted.pool.db.get("VBD", vbd, "VDI"), home, {})
    ran = pool_command("restore", "--home", "web", "--yes")
    uuid = halted.pool.db.get("VM", halted.web, "uuid")
    assert ran.status == 4 and f"run `relvmoiscsi pool restore --keep {uuid}`" in ran.err
    before = halted.state()
    ran = pool_command("restore", "--keep", "web", "--dry-run")
    assert ran.status == 0 and "web: would be kept as it is\n  disk 0: " in ran.out and halted.state() == before
    assert "\n  on no VM: " in ran.out
    type_in("n\n")
    ran = pool_command("restore", "--keep", "web")
    assert ran.status == 4 and "Leave the disks of web as they are and remove the journal? [y/N]" in ran.err
    assert "  disk 0: " in ran.err and halted.state() == before
    ran = pool_command("restore", "--keep", "web", "--yes", "--json")
    assert ran.status == 0 and facts(ran)["status"] == "kept as it is" and len(facts(ran)["notes"]) == 2
    assert pool_command("restore", "--keep", "web", "--yes").status == 4
    assert pool_command("discard", "copy", "--yes").status == 0


@pytest.mark.parametrize("is_home", [True, False])
def test_after_keep_the_next_steps_are_to_start_the_vm_and_to_discard_a_copy_without_its_disks(
    halted, pool_command, is_home
):
    pool_command("restore", "copy", "web", "--yes")
    (vbd,) = halted.pool.db.refs("VBD", VM=halted.web)
    if is_home:
        home = halted.originals["Production"][1]
        halted.pool.api.vms.vdi_pool_migrate("", halted.pool.db.get("VBD", vbd, "VDI"), home, {})

    ran = pool_command("restore", "--keep", "web", "--yes")

    uuid, (copy,) = halted.pool.db.get("VM", halted.web, "uuid"), halted.pool.db.refs("SR", name_label="copy")
    discard = f"  then: relvmoiscsi pool discard {halted.pool.db.get('SR', copy, 'uuid')}\n"
    assert ran.status == 0 and ran.out.endswith(f"  next: xe vm-start uuid={uuid}\n" + (discard if is_home else ""))


@pytest.mark.parametrize("text", ["", ",", "0,", " "])
def test_a_list_of_no_disks_is_not_all_of_them_and_a_disk_that_is_named_twice_is_one(halted, pool_command, text):
    before = halted.state()
    ran = pool_command("restore", "copy", "web", "--disk", text, "--yes")
    assert ran.status == 2 and "Without --disk, all disks are restored" in ran.err and halted.state() == before
    ran = pool_command("restore", "copy", "web", "--disk", "0,0", "--dry-run", "--json")
    assert ran.status == 0 and len(facts(ran)["disks"]) == 1


@pytest.mark.processes
@pytest.mark.parametrize("json_words", [[], ["--json"]], ids=["text", "JSON"])
def test_interrupted_in_the_middle_it_says_what_goes_on(halted, pool_command, interrupts, json_words):
    interrupts(halted.pool, ("VBD.create", 1))
    ran = pool_command("restore", "copy", "web", "--yes", *json_words)
    said = facts(ran)["error"]["disk_state"] if json_words else ran.err
    assert ran.status == 130 and "Interrupted." in ran.err
    assert "its start is blocked. Repeat the command, or run `relvmoiscsi pool restore --undo " in said
    assert pool_command("restore", "copy", "web", "--yes").status == 0


def test_in_a_terminal_clone_says_the_remaining_time(office, pool_command, monkeypatch):
    monkeypatch.setattr(wording, "ESTIMATE_SECONDS", 0)
    monkeypatch.setattr(pool_vms, "is_terminal", lambda _: True)
    ran = pool_command("clone", "copy", "--all", "--isolated", "lab", "--yes", "--jobs", "1")

    ends = [line for line in ran.err.splitlines() if ": cloned" in line]
    assert [bool(re.search(": cloned, .* left$", line)) for line in ends] == [True, False]


@pytest.mark.processes
def test_clone_that_is_interrupted_says_how_far_each_vm_is(halted, pool_command, interrupts):
    interrupts(halted.pool, ("PUT /import_metadata", 3))  # each is tried first
    words = ["clone", "copy", "--all", "--yes", "--jobs", "1", "--json"]
    ran = pool_command(*words)
    states = {row["name"].split()[0]: (row["state"], row["what"]) for row in facts(ran)["so_far"]}
    assert ran.status == 130 and states == {"db": ("done", "cloned"), "web": ("under way", "clone")}
    ran = pool_command(*words)
    assert ran.status == 0 and [vm["status"] for vm in facts(ran)["vms"]] == ["already there", "cloned"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "method", "what"),
    [
        (["restore", "--undo", "web"], "VBD.create", "undo"),
        (["restore", "--home", "web"], "Async.VDI.pool_migrate", "home"),
        (["restore", "--keep", "web"], "VM.remove_from_blocked_operations", "keep"),
        (["rescue", "copy", "data", "--vm", "helper"], "VBD.create", "lend"),
        (["save-vms", "Production"], "Async.VDI.create", "save the records"),
    ],
)
def test_a_command_on_one_thing_that_is_interrupted_says_what_was_under_way(
    halted, pool_command, interrupts, words, method, what
):
    if words[0] == "restore":
        pool_command("restore", "copy", "web", "--yes")
    halted.vm("helper", halted.vdi("Testing", "data")[0])
    if what == "keep":
        halted.pool.db.set("VM", halted.web, "blocked_operations", dict.fromkeys(["start"], BLOCKED))
    interrupts(halted.pool, (method, 1))
    (row,) = facts(pool_command(*words, "--yes", "--json"))["so_far"]
    assert (row["state"], row["what"]) == ("under way", what)
    assert pool_command(*words, "--yes").status == 0


BLOCKED = "relvmoiscsi has swapped some of the disks of this VM: for a test"


def test_of_several_that_are_taken_back_one_fails(office, pool_command):
    helper = office.vm("helper", office.vdi("Testing", "data")[0], state="Running", domain_type="pv_in_pvh")
    for name in ("root disk", "data"):
        assert pool_command("rescue", "copy", name, "--vm", "helper", "--yes").status == 0
    held = office.pool.db.refs("VBD", VM=helper, userdevice="1")[0]
    vms = office.pool.api.vms

    def unplug(session, vbd):
        if vbd == held:
            raise XenError("DEVICE_DETACH_REJECTED", "VBD", vbd, "busy")
        vms.vbd_unplug(session, vbd)

    office.pool.api._methods["VBD.unplug"] = unplug
    ran = pool_command("rescue", "copy", "--done", "--yes")
    assert ran.status == 9 and ran.out.count("taken back") == ran.out.count(": failed, helper") == 1
    assert "Unmount the disk in the guest of 'helper', then repeat the command." in ran.out
    ran = pool_command("rescue", "copy", "--done", "--yes", "--json")
    assert ran.status == 6 and facts(ran)["disks"][0]["status"] == "failed"


# --- save-vms


def test_records_are_saved_shown_and_made_vms_of(office, pool_command, command, tmp_path):
    ran = pool_command("save-vms", "Production", "--dry-run")
    assert ran.out == "The records of these VMs would be saved: db, web\n"
    ran = pool_command("save-vms", "Production", "--yes")
    assert ran.status == 0 and ran.out.startswith("db: saved\nweb: saved\nThe VM records of 20")
    assert ran.out.endswith("\nnext: make the snapshot on the array, map its clone, then `relvmoiscsi pool luns`\n")
    clone = office.clone("Production")
    found = {lun["scsi_id"]: lun for lun in facts(pool_command("luns", "--json"))["luns"]}
    assert found[clone]["vms"] == ["db", "web"] and found[clone]["vms_saved"].startswith("20")
    assert "; VMs db, web (20" in pool_command("luns").out

    disk = office.world.lun(clone).disk
    image = tmp_path / "clone.img"
    image.write_bytes(disk.peek(0, disk.size_bytes))
    shown = json.loads(command("show", image, "--json").out)["saved_vms"]
    assert [vm["name_label"] for vm in shown["vms"]] == ["db", "web"] and shown["vms"][1]["power_state"] == "Running"
    assert "  VMs      db, web; their records of 20" in command("show", image).out

    office.pool.api.vms.vm_destroy("", office.db_vm)
    pool_command("attach", clone, "--yes", "--name", "of then")
    ran = pool_command("clone", "of then", "--all", "--from-snapshot", "--isolated", "lab", "--yes", "--json")
    assert [(vm["name"]["old"], vm["status"]) for vm in facts(ran)["vms"]] == [("db", "cloned"), ("web", "cloned")]
    assert pool_command("clone", "copy", "--all", "--from-snapshot", "--yes").status == 3


@pytest.mark.parametrize(
    "words",
    [
        ["copy", "--isolated", "lab", "web"],
        ["--isolated", "lab", "copy", "web"],
        ["copy", "web", "--isolated=lab"],
        ["copy", "--isolated", "lab", "--", "web"],
    ],
)
def test_options_stand_anywhere_between_the_words(office, pool_command, words):
    ran = pool_command("clone", "--yes", *words)
    assert ran.status == 0 and len(made(office)) == 1 and "became lab" in ran.out


def test_an_option_without_its_value_takes_no_other_word(office, pool_command):
    for words in (["copy", "web", "--yes", "--isolated"], ["copy", "--isolated", "--yes", "web"]):
        ran = pool_command("clone", *words)
        assert ran.status == 2 and "--isolated: expected one argument" in ran.err and made(office) == []
