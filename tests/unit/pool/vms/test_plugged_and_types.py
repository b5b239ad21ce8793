# SPDX-License-Identifier: LGPL-2.1-only
"""What xapi refuses for a drive is known before the first change: the drive is plugged in by the record of a VM that
does not run, or the VDI is of a type that gets no drive. A vm-admin can write both.
"""

import shlex

import pytest

from kit.advised import commands_in
from kit.pool_verbs import bring_back, discard, lend, run, take_back, undo
from kit.xe import xe
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import inventory, owners, rescue, transfer

PLUGGED = "The VM 'web' is halted, and its disk 1 is plugged in, by xapi's record. Nothing was changed. "


def plug(day, vm, state="Halted"):
    """By the records alone, as an import of metadata leaves a VM."""
    for vbd in day.db.refs("VBD", VM=vm):
        day.db.set("VBD", vbd, "currently_attached", True)
    day.db.set("VM", vm, "power_state", state)


def follow(day, text):
    """Run the one command of `xe` in the text."""
    (line,) = [line for line in commands_in(text) if line.startswith("xe vm-reset-powerstate ")]
    assert xe(day.lab.pool, shlex.split(line)[1:]) == (0, "", "")


def dry(work):
    return lambda day: work(day, dry_run=True)


@pytest.mark.parametrize("work", [bring_back, undo])
def test_a_drive_that_is_plugged_in_a_halted_vm_stops_a_run_before_its_first_change(halted, work):
    """The second disk: a run had swapped the first one, and neither the same command nor --undo went on."""
    if work is undo:
        bring_back(halted)
    halted.db.set("VBD", halted.vbd("1"), "currently_attached", True)
    halted.refuses(dry(work), PLUGGED)
    follow(halted, halted.refuses(work, PLUGGED + "Clear that, as a pool-operator"))
    assert work(halted).status in ("restored", "undone")


def test_a_running_vm_is_shut_down_and_so_unplugged(day):
    assert bring_back(day, shutdown=True).status == "restored"


def test_an_imported_vm_whose_records_say_that_it_ran(day):
    with connect(day.lab.where()) as calls:
        document = transfer.export_vm(calls, day.web, False)
        pool, found = records.read(calls), inventory.read(calls)
        (ref,) = transfer.import_vm(calls, document, owners.copy_of(pool, found, day.sr), "x")
    day.shut_down()
    day.lab.pool.api.vms.vm_destroy("", day.web)
    day.web = ref
    assert day.db.get("VM", ref, "power_state") == "Halted" and day.db.get("VBD", day.vbd("1"), "currently_attached")
    day.refuses(bring_back, "is halted, and its disk 0 is plugged in")


def test_a_halted_vm_that_is_being_started_is_left_alone(halted):
    """xapi plugs the drives of a VM by their records before it runs."""
    plug(halted, halted.web)
    halted.db.set("VM", halted.web, "current_operations", {"OpaqueRef:task": "start"})
    assert "reset" not in halted.refuses(bring_back, "The pool is busy with the VM 'web': start")


@pytest.mark.parametrize("is_template", [False, True])
def test_a_discard_says_how_the_record_of_a_halted_vm_is_mended(halted, is_template):
    """`xe vm-shutdown` and `xe vbd-unplug` do nothing for such a VM, and `xe` resets no template."""
    other = halted.lab.vm("other", halted.new(halted.data), is_a_template=is_template)
    plug(halted, other)
    with connect(halted.lab.where()) as calls, pytest.raises(Refused, match="halted VMs with plugged drives") as said:
        made_vms.plan(calls, [halted.sr], with_vms=False)
    text = str(said.value)
    assert "vm-shutdown" not in text and "vbd-unplug" not in text
    if is_template:
        assert "`xe-toolstack-restart`" in text
        return
    follow(halted, text)
    with connect(halted.lab.where()) as calls:
        made_vms.plan(calls, [halted.sr], with_vms=False)


def test_no_unplug_is_advised_for_a_suspended_vm(halted):
    plug(halted, halted.lab.vm("other", halted.new(halted.data)), "Suspended")
    with connect(halted.lab.where()) as calls, pytest.raises(Refused, match="gives up the memory") as said:
        made_vms.plan(calls, [halted.sr], with_vms=False)
    assert "vbd-unplug" not in str(said.value)


@pytest.mark.parametrize("state", ["Halted", "Suspended"])
def test_a_lent_disk_of_a_vm_that_does_not_run_is_not_taken_back_by_the_plan(halted, state):
    helper = halted.lab.vm("helper", halted.elsewhere())
    lend(halted, "data", helper)
    plug(halted, helper, state)

    def plan(calls, found, copy):
        return rescue.take_back(calls, found, copy, rescue.lent(found, copy), dry_run=True)

    (row,) = run(halted, plan)
    assert row.status == "failed" and f"is {state.lower()}, and its disk 1 is plugged in" in str(row.error)
    text = halted.refuses(take_back, "is plugged in")
    if state == "Halted":
        follow(halted, text)
        assert take_back(halted)[0].status == "taken back"
    else:
        assert "Resume the VM, or shut the VM down" in text


@pytest.mark.parametrize(("work", "kind"), [(bring_back, "ha_statefile"), (undo, "redo_log"), (undo, "hidden")])
def test_a_vdi_that_gets_no_drive_stops_a_run_before_its_first_change(halted, work, kind):
    vdi = halted.new(halted.data)
    if work is undo:
        bring_back(halted)
        vdi = halted.data
    field, value = ("managed", False) if kind == "hidden" else ("type", kind)
    halted.db.set("VDI", vdi, field, value)
    said = f"is {'hidden' if kind == 'hidden' else f'of the type {kind!r}'}, and xapi would not attach it as the disk 1"
    for each in (dry(work), work):
        text = halted.refuses(each, said)
    assert "`xe vdi-forget`" in text and "`xe sr-scan`" in text
    halted.lab.pool.api.vms.vdi_forget("", vdi)
    halted.lab.pool.storage.sr_scan("", halted.sr if work is bring_back else halted.lab.originals["Production"][1])
    assert work(halted).status in ("restored", "undone")


def test_a_vdi_of_such_a_type_is_neither_lent_nor_cloned(halted):
    halted.db.set("VDI", halted.new(halted.data), "type", "redo_log")
    helper = halted.lab.vm("helper", halted.elsewhere())
    for is_dry in (True, False):
        for rw in (True, False):
            halted.refuses(
                lambda day, dry=is_dry, rw=rw: lend(day, day.uuid(day.data), helper, rw=rw, dry_run=dry),
                "is of the type 'redo_log', and xapi would not attach it",
            )
    before = halted.db.records("VM")
    done = halted.clone_one()
    assert done.status == "failed" and "is of the type 'redo_log'. Nothing was made." in str(done.error)
    assert halted.db.records("VM") == before
    discard(halted)
