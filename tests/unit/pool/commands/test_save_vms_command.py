# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool save-vms`: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import pytest

from kit.office import CLONE_ALL, RESTORE, made
from relvmoiscsi.pool import lock_keys, marks
from relvmoiscsi.pool.vms import inventory

pytestmark = pytest.mark.states


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


def test_a_vm_whose_restore_was_kept_on_the_copy_is_left_out_by_name_too(halted, pool_command):
    """The journal alone said so: without it, the VM was left out silently and its earlier records were destroyed."""
    assert pool_command("save-vms", "Production", "--yes").status == 0
    assert pool_command(*RESTORE).status == 0
    assert pool_command("restore", "--keep", "web", "--on-copy", "--yes").status == 0
    ran = pool_command("save-vms", "Production", "--yes")
    told = " ".join(ran.out.split())
    assert ran.status == 9 and "VM 'db': saved" in ran.out and "VM 'web': failed: The VM 'web' was restored" in told
    assert "No journal is left of the restore: move the disks to that SR" in told and "are kept." in told
    clone = halted.clone("Production")
    found = {lun["scsi_id"]: lun for lun in pool_command("luns", "--json").json["pool_luns"]}
    assert found[clone]["saved_vm_names"] == ["db", "web"]


def test_a_vm_that_looks_at_a_disk_of_a_copy_is_no_vm_of_the_sr(halted, pool_command):
    """A person may give a disk of the copy to any VM: its data is that of the disk's own VM, which is on the SR."""
    halted.pool.db.create("VBD", VM=halted.helper(), VDI=halted.on_copy("data"), userdevice="7")
    ran = pool_command("save-vms", "Production", "--yes")
    assert ran.status == 0 and "helper" not in ran.out
    rows = pool_command(*CLONE_ALL, "--dry-run", "--json").json["clone_results"]
    assert {row["old_name"] for row in rows} == {"web", "db"}


def test_a_task_that_its_owner_destroys_while_clone_waits_ends_no_clone(office, pool_command, monkeypatch):
    """A vm-operator can make a task with the name of an import that a killed run has left, and destroy it."""
    monkeypatch.setattr("relvmoiscsi.pool.calls.EVENT_SECONDS", 0.1)
    db = office.pool.db
    label = f"relvmoiscsi: {office.copy.sr_uuid} has a copy of {db.get('VM', office.db_vm, 'uuid')}"
    task = db.create("task", name_label=label, status="pending", other_config={"applies_to": "x"})
    office.before("event.from", lambda: db.destroy("task", task), 2)
    ran = pool_command("clone", "copy", "db", "--isolated", "lab", "--yes")
    assert not db.exists("task", task) and ran.status == 0 and len(made(office)) == 1, ran.err


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
@pytest.mark.parametrize(
    ("words", "role", "call", "least"),
    [
        (("save-vms", "Production"), "vm-admin", "SR.add_to_other_config", "pool-operator"),
        (("restore", "--home", "web"), "vm-admin", "VDI.pool_migrate", "vm-power-admin"),
        (("restore", "--keep", "web", "--on-copy"), "vm-operator", "VM.remove_from_other_config", "vm-admin"),
        (("restore", "--undo", "web"), "vm-operator", "VBD.create", "vm-admin"),
        (("restore", "--undo", "web"), "read-only", "VBD.create", "vm-admin"),
        (("rescue", "copy", "data", "--vm", "helper"), "vm-operator", "VBD.create", "vm-admin"),
        (("rescue", "copy", "--done"), "read-only", "VBD.destroy", "vm-admin"),
        (("unlock", "web"), "vm-power-admin", "pool.remove_from_other_config", "pool-operator"),
    ],
    ids=["save-vms", "home", "keep", "undo", "undo, read-only", "rescue", "done", "unlock"],
)
def test_a_role_that_does_not_suffice_is_told_before_the_first_change(
    restored, refused, monkeypatch, words, role, call, least, how
):
    """--home wrote its keys before the move was refused, and no plan said anything."""
    db, helper = restored.pool.db, restored.vm("helper")
    if words[0] == "unlock":
        key = f"{lock_keys.KEY}{db.get('VM', restored.web, 'uuid')}:1"
        db.add_to("pool", restored.pool.pool, "other_config", key, marks.text_of({"token": "x"}))
    if "--done" in words:
        vdi = restored.on_copy("data")
        mark = f"{db.get('VM', helper, 'uuid')} {db.get('VDI', vdi, 'uuid')}"
        db.create("VBD", VM=helper, VDI=vdi, userdevice="0", other_config={inventory.LENT: mark})
    restored.pool.api.users["eve"] = ("pw", role)
    monkeypatch.setenv("XENSERVER_USER", "eve")
    monkeypatch.setenv("XENSERVER_PASSWORD", "pw")
    ran = refused(6, f"The user of this session may not call {call}. Nothing was changed.", *words, how)
    assert f"Use the role {least} or a higher role." in " ".join((ran.out + ran.err).split())
