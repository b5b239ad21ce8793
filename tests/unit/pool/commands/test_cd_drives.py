# SPDX-License-Identifier: LGPL-2.1-only
"""A vm-operator puts any VDI into an empty CD drive (VBD.insert): what that blocks, and the command that ends it."""

import json
import shlex

import pytest

from kit.advised import commands_in
from kit.office import RESTORE
from kit.pool.database import NULL
from kit.xe import xe
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import discard

pytestmark = pytest.mark.states
CLONE = ("clone", "copy", "web", "--isolated", "n", "--yes")


def insert(lab, vm, vdi, device="3", **fields):
    lab.pool.db.create("VBD", VM=vm, VDI=vdi, userdevice=device, type="CD", mode="RO", empty=False, **fields)


def disk_of(lab, name):
    """A disk of the copy with this name."""
    (sr,) = lab.pool.db.refs("SR", name_label=name)
    return next(ref for ref, vdi in lab.pool.db.records("VDI", SR=sr).items() if vdi["managed"])


def eject(lab, text):
    """Run each printed `xe vbd-eject`."""
    commands = [line for line in commands_in(" ".join(text.split())) if line.startswith("xe vbd-eject")]
    assert commands, text
    for line in commands:
        assert xe(lab.pool, shlex.split(line)[1:])[0] == 0


@pytest.mark.parametrize("whose", ["another VM", "the VM itself"])
@pytest.mark.parametrize("words", [RESTORE, CLONE], ids=["restore", "clone"])
def test_a_cd_drive_with_the_disk_of_the_copy_blocks_nothing(halted, pool_command, words, whose):
    (sr,) = halted.pool.db.refs("SR", name_label="copy")
    vm = halted.vm("tenant") if whose == "another VM" else halted.web
    vdis = [ref for ref, vdi in halted.pool.db.records("VDI", SR=sr).items() if vdi["managed"]]
    for device, vdi in enumerate(vdis, 3):
        insert(halted, vm, vdi, str(device))
    ran = pool_command(*words)
    assert ran.status == 0, ran.err + ran.out


def inserted_after_restore(day, where):
    swap = json.loads(day.pool.db.get("VM", day.web, "other_config")["relvmoiscsi:restore:0"])
    insert(day, day.vm("tenant"), day.pool.db.by_uuid("VDI", swap[where]))


@pytest.mark.parametrize("where", ["old", "new"])
@pytest.mark.parametrize("end", [["--undo"], ["--home"], ["--on-copy", "--keep"]], ids=["undo", "home", "keep"])
def test_a_cd_drive_blocks_no_end_of_a_restore_but_a_move_by_xapi(restored, pool_command, end, where):
    """xapi moves a VDI for the VM of any one of its drives: for a CD drive, it would take the wrong VM."""
    inserted_after_restore(restored, where)
    ran = pool_command("restore", *end, "web", "--yes")
    if (end, where) == (["--home"], "new"):
        told = "in a CD drive of 'tenant' too, and xapi may move it for the VM of that drive"
        assert ran.status == 4 and told in " ".join(ran.err.split())
        eject(restored, ran.err)
        ran = pool_command("restore", *end, "web", "--yes")
    assert ran.status == 0, ran.err


@pytest.mark.parametrize("state", ["Running", "Halted"])
@pytest.mark.parametrize("words", [("--with-vms", "--yes"), ("--yes",)])
def test_a_discard_that_a_cd_drive_blocks_prints_the_command_that_ends_it(lab, copy, pool_command, state, words):
    insert(lab, lab.vm("tenant", state=state), disk_of(lab, "a copy"), currently_attached=state == "Running")
    ran = pool_command("discard", "a copy", *words)
    assert ran.status == 4 and "'tenant (a CD drive)'" in ran.err
    eject(lab, ran.err)
    assert pool_command("discard", "a copy", *words).status == 0


@pytest.mark.parametrize("name", ["Production", "a copy"])
def test_a_rescue_refuses_a_vm_with_the_original_in_its_cd_drive_and_prints_the_command(lab, copy, pool_command, name):
    helper, lent = lab.vm("helper"), disk_of(lab, "a copy")
    label = lab.pool.db.get("VDI", lent, "name_label")
    insert(lab, helper, lab.vdi("Production", label)[0] if name == "Production" else lent)
    words = ("rescue", "a copy", lab.pool.db.get("VDI", lent, "uuid"), "--vm", "helper", "--yes")
    ran = pool_command(*words)
    assert ran.status == 4
    eject(lab, ran.err)
    assert pool_command(*words).status == 0


@pytest.mark.parametrize(
    ("state", "more", "is_refused"),
    [("Halted", [], False), ("Halted", ["--rw"], True), ("Running", [], True), ("Running", ["--rw"], True)],
)
def test_a_rescue_of_a_disk_in_a_cd_drive_of_another_vm_prints_the_command(
    lab, copy, pool_command, state, more, is_refused
):
    """Two VMs that only read start both."""
    lab.vm("helper")
    lent = disk_of(lab, "a copy")
    insert(lab, lab.vm("tenant", state=state), lent, currently_attached=state == "Running")
    words = ("rescue", "a copy", lab.pool.db.get("VDI", lent, "uuid"), "--vm", "helper", *more, "--yes")
    ran = pool_command(*words)
    text = " ".join(ran.err.split())
    assert ran.status == (4 if is_refused else 0)
    assert is_refused or "warning: The disk is in a CD drive of VMs that are shut down: 'tenant'. Empty" in text
    assert "No such VM can start" not in text
    eject(lab, ran.err)
    assert pool_command(*words).status == 0


@pytest.mark.parametrize("with_disk", [False, True])
def test_a_discard_with_a_mark_prints_the_command_that_ends_it(lab, copy, with_disk):
    """As Ansible's `lun` calls it. A VM with a disk there has another way."""
    insert(lab, lab.vm("tenant"), disk_of(lab, "a copy"))
    if with_disk:
        lab.vm("other", disk_of(lab, "a copy"))
    srs = lab.pool.db.refs("SR", name_label="a copy")
    with connect(lab.where()) as calls:
        with pytest.raises(Refused, match="made without the mark nightly") as refused:
            discard.plan(calls, srs, with_vms=True, mark="nightly")
        assert ("Move these disks, or destroy these VMs. " in str(refused.value)) == with_disk
        eject(lab, str(refused.value))
        for vm in lab.pool.db.refs("VM", name_label="other"):
            lab.pool.api.vms.vm_destroy("", vm)
        assert discard.plan(calls, srs, with_vms=True, mark="nightly").uses


def test_the_question_of_a_discard_names_a_cd_drive_and_its_command(lab, copy, pool_command, type_in):
    insert(lab, lab.vm("tenant"), disk_of(lab, "a copy"))
    type_in("y\n")
    ran = pool_command("discard", "a copy")
    assert ran.status == 0 and "'tenant (a CD drive)'. Empty each CD drive: `xe vbd-eject" in " ".join(ran.err.split())
    assert "Give the VM" not in ran.out


def test_a_cd_that_comes_during_a_discard_is_named_with_the_command(lab, copy, pool_command):
    vdi, vm = disk_of(lab, "a copy"), lab.vm("tenant")
    lab.before("PBD.destroy", lambda: insert(lab, vm, vdi))
    ran = pool_command("discard", "a copy", "--yes")
    assert ran.status == 4 and "got disks on the SR" in ran.out
    eject(lab, ran.out)
    assert pool_command("discard", "a copy", "--yes").status == 0


@pytest.mark.parametrize("moment", ["pool.add_to_other_config", "Async.PBD.unplug", "PBD.destroy"])
def test_a_vm_that_was_told_of_for_its_cd_drive_loses_no_disk(lab, copy, pool_command, moment):
    vdi, vm, db = disk_of(lab, "a copy"), lab.vm("tenant"), lab.pool.db
    insert(lab, vm, vdi)
    lab.before(moment, lambda: db.create("VBD", VM=vm, VDI=vdi, userdevice="0", type="Disk", bootable=True))
    ran = pool_command("discard", "a copy", "--yes", "--leave-vms")
    assert ran.status == 4 and "got disks on the SR 'a copy' since the run began: 'tenant'. " in ran.out
    assert db.refs("SR", name_label="a copy")


def test_a_cd_drive_hides_no_disk_that_goes_with_the_copy(lab, copy, pool_command):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    vdi = lab.pool.db.create(
        "VDI", SR=sr, location="new", managed=True, name_label="precious", virtual_size=8 << 20, type="user"
    )
    insert(lab, lab.vm("tenant"), vdi)
    assert "'precious'" in pool_command("discard", "a copy", "--leave-vms", "--dry-run").out


def test_a_disk_in_a_running_cd_drive_is_lent_after_the_printed_command(lab, copy, pool_command):
    vdi, helper = disk_of(lab, "a copy"), lab.vm("helper")
    insert(lab, lab.vm("tenant", state="Running"), vdi, currently_attached=True)
    words = ("rescue", "a copy", lab.pool.db.get("VDI", vdi, "uuid"), "--vm", "helper", "--rw", "--yes")
    ran = pool_command(*words)
    assert ran.status == 4 and "eject it from the CD drive of 'tenant'" in " ".join(ran.err.split())
    eject(lab, ran.err)
    assert pool_command(*words).status == 0 and len(lab.pool.db.refs("VBD", VM=helper)) == 1


@pytest.mark.parametrize("mode", ["RO", "RW"])
@pytest.mark.parametrize("kind", ["CD", "Floppy"])
def test_an_empty_drive_of_any_type_and_mode_keeps_no_clone_from_being_made(halted, pool_command, kind, mode):
    """VBD.set_type and VBD.set_mode take what VBD.create refuses; an import makes each drive by VBD.create."""
    halted.pool.db.create("VBD", VM=halted.web, VDI=NULL, userdevice="3", type=kind, mode=mode, empty=True)
    ran = pool_command(*CLONE)
    assert ran.status == 0, ran.err
    made = halted.pool.db.refs("VBD", type="CD", mode="RO", empty=True)
    assert len(made) == (1 if mode == "RW" else 2) if kind == "CD" else not made


@pytest.mark.parametrize("kind", ["CD", "Floppy"])
def test_a_disk_that_became_a_drive_for_writing_is_refused_by_the_plan(halted, pool_command, kind):
    (vbd,) = halted.pool.db.refs("VBD", VM=halted.web)
    halted.pool.db.create("VBD", VM=halted.web, VDI=halted.vdi("Production", "data")[0], userdevice="1")
    halted.pool.db.set("VBD", vbd, "type", kind)
    for last in ("--dry-run", "--yes"):
        ran = pool_command(*CLONE[:-1], last)
        text = " ".join((ran.err + ran.out).split())
        assert ran.status == 4 and "drive 0 of the VM may write to 'root disk'" in text and "--omit-disks" in text
    assert pool_command(*CLONE, "--omit-disks").status == 0


@pytest.mark.parametrize("device", ["xvda", "hda"])
def test_two_disks_at_one_device_are_refused_by_the_plan(halted, pool_command, device):
    halted.pool.db.create("VBD", VM=halted.web, VDI=halted.vdi("Production", "data")[0], userdevice=device)
    ran = pool_command(*CLONE[:-1], "--dry-run")
    assert ran.status == 4 and f"takes the disks 0 and {device} of the VM for one" in " ".join(
        (ran.err + ran.out).split()
    )
