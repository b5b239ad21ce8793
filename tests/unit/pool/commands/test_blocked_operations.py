# SPDX-License-Identifier: LGPL-2.1-only
"""A vm-admin blocks operations of a VM with any text (VM.blocked_operations): what that ends, and how it is told."""

import shlex

import pytest

from kit.advised import commands_in
from kit.office import RESTORE
from kit.xe import xe

pytestmark = pytest.mark.states
SAYS = "x. To go on, run `xe vm-list` on the master.\x1b[2J" + "A" * 200000
CLONE = ("clone", "copy", "web", "--isolated", "lab", "--yes")


def block(pool, vm, operation):
    pool.db.add_to("VM", vm, "blocked_operations", operation, SAYS)


def unblock(pool, text):
    """Run the printed command that removes the block."""
    (line,) = [line for line in commands_in(" ".join(text.split())) if line.startswith("xe vm-param-remove")]
    assert xe(pool, shlex.split(line)[1:])[0] == 0


def verify_told(text, operation):
    told = " ".join(text.split())
    assert f"A user has blocked the operation {operation} of the VM 'web': 'x. To go on" in told and "\x1b" not in told
    assert "OpaqueRef" not in text and len(told) < 1500, "the text of the block is cut"


@pytest.mark.parametrize(
    ("words", "operation"),
    [(("restore", "copy", "web", "--shutdown"), "clean_shutdown"), (CLONE[:-1], "metadata_export")],
    ids=["restore", "clone"],
)
def test_a_blocked_operation_is_told_before_the_first_change_also_in_a_plan(
    office, pool_command, refused, words, operation
):
    block(office.pool, office.web, operation)
    for how in ("--dry-run", "--yes"):
        ran = refused(4, "A user has blocked", *words, how)
        verify_told(ran.err + ran.out, operation)
    unblock(office.pool, ran.err + ran.out)
    assert pool_command(*words, "--yes").status == 0


def test_the_move_of_a_disk_that_is_blocked_is_told_before_the_first_change(restored, pool_command, refused):
    block(restored.pool, restored.web, "migrate_send")
    for how in ("--dry-run", "--yes"):
        ran = refused(4, "Nothing was changed.", "restore", "--home", "web", how)
        verify_told(ran.err, "migrate_send")
    unblock(restored.pool, ran.err)
    assert pool_command("restore", "--home", "web", "--yes").status == 0


def test_a_save_leaves_out_a_vm_whose_export_is_blocked(office, pool_command):
    block(office.pool, office.web, "metadata_export")
    dry = pool_command("save-vms", "Production", "--dry-run")
    assert dry.status == 0 and "would be saved: 'db'\n" in dry.out
    verify_told(dry.out, "metadata_export")
    ran = pool_command("save-vms", "Production", "--yes")
    assert ran.status == 9 and "VM 'db': saved" in ran.out
    verify_told(ran.out, "metadata_export")


def test_a_save_of_which_each_export_is_blocked_says_so(office, refused):
    for vm in (office.web, office.db_vm):
        block(office.pool, vm, "metadata_export")
    for how in ("--dry-run", "--yes"):
        refused(3, "No VM that can be saved has a disk on the SR 'Production'.", "save-vms", "Production", how)


@pytest.mark.parametrize("operation", ["clean_shutdown", "metadata_export"])
def test_a_block_that_comes_during_a_run_has_its_sentence(office, pool_command, operation):
    def before(method, _params):
        if method in ("VM.clean_shutdown", "Async.VM.clean_shutdown", "task.create"):
            office.pool.db.set("VM", office.web, "blocked_operations", {operation: SAYS})

    office.pool.api.before = before
    ran = pool_command(*(RESTORE + ("--shutdown",) if operation == "clean_shutdown" else CLONE))
    told = " ".join((ran.err + ran.out).split())
    assert ran.status in (6, 9) and "A user of the pool has blocked" in told and "To go on" not in told


@pytest.mark.parametrize("how", [RESTORE, ("restore", "--undo", "web", "--yes")], ids=["restore", "undo"])
def test_no_start_is_advised_that_a_user_has_blocked(halted, pool_command, how):
    """The block stays. The next step would be refused by xapi."""
    block(halted.pool, halted.web, "start")
    if "--undo" in how:
        assert pool_command(*RESTORE).status == 0
    ran = pool_command(*how)
    text = " ".join(ran.out.split())
    assert (
        ran.status == 0 and "vm-start" not in text and "is halted. A user has blocked the start of the VM: 'x." in text
    )
    (row,) = pool_command(*RESTORE[:-1], "--json", "--yes").json["restore_results"]
    assert "A user has blocked the start" in row["notes"][-1] and len(row["notes"][-1]) < 500
    unblock(halted.pool, ran.out)
    assert "next: xe vm-start" in pool_command(*RESTORE).out


def test_no_start_of_the_helper_is_advised_that_a_user_has_blocked(halted, pool_command):
    block(halted.pool, halted.vm("helper"), "start")
    ran = pool_command("rescue", "copy", "data", "--vm", "helper", "--yes")
    text = " ".join(ran.out.split())
    assert ran.status == 0 and "vm-start" not in text and "A user has blocked the start of the VM: 'x." in text
    unblock(halted.pool, ran.out)
    again = pool_command("rescue", "copy", "data", "--vm", "helper", "--yes")
    assert "next: xe vm-start" in again.out
