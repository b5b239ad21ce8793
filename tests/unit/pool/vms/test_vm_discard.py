# SPDX-License-Identifier: LGPL-2.1-only
"""The VMs that were made go with the copy; nobody else's do, and no VDI is destroyed."""

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import discard, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import choice, inventory
from relvmoiscsi.pool.vms import discard as made_vms


def discard_all(day):
    with connect(day.lab.where()) as calls:
        pool = records.read(calls)
        ref = pool.sr_by_uuid(day.copy.sr_uuid)
        if ref is None:
            return made_vms.clean_networks(calls, [day.copy.sr_uuid])
        discard.verify_unused(pool, discard.read_uses(calls, [ref]))
        made = made_vms.made_on(inventory.read(calls), pool, [ref])
        made_vms.destroy_made(calls, pool, ref, made[ref])
        discard.discard(calls, pool, ref)
        return made_vms.clean_networks(calls, [day.copy.sr_uuid])


def rows(day):
    return {table: set(day.db.refs(table)) for table in ("VM", "VBD", "VIF", "VDI", "SR", "PBD", "network")}


def test_they_go_with_their_snapshots_and_nothing_else_does(day):
    snap = day.lab.vdi("Production", "before")[0]
    day.lab.snapshot(day.web, "before", snap)
    copy = day.db.records("VDI", SR=day.sr)
    before = rows(day)
    day.clone("web", snapshots=True, isolated="nowhere")
    day.lab.pool.api.calls.clear()

    assert discard_all(day) == ["nowhere"]
    after = rows(day)
    assert {table: before[table] - after[table] for table in ("VM", "VBD", "VIF", "network")} == dict.fromkeys(
        ("VM", "VBD", "VIF", "network"), set()
    )
    assert before["VDI"] - after["VDI"] == set(copy) and before["SR"] - after["SR"] == {day.sr}
    assert not {"VDI.destroy", "Async.VDI.destroy", "SR.destroy", "VM.uninstall"} & set(day.lab.pool.api.calls)


def test_what_runs_or_has_disks_elsewhere_stays(day):
    (done,) = day.clone("web")
    new = day.db.by_uuid("VM", done.uuid)
    day.lab.pool.api.vms.vm_start("", new)
    with pytest.raises(Refused, match="Running or suspended VMs have disks on the SR"):
        discard_all(day)
    day.lab.pool.api.vms.vm_hard_shutdown("", new)
    other = day.lab.vdi("Testing", "data")[0]
    vbd = day.lab.pool.api.vms.vbd_create("", {"VM": new, "VDI": other, "userdevice": "7", "mode": "RW"})
    with pytest.raises(Refused, match="has a disk that is not on this copy"):
        discard_all(day)
    day.db.destroy("VBD", vbd)
    day.db.set("VM", new, "power_state", "Suspended")
    with pytest.raises(Refused, match="is not shut down"):
        discard_all(day)
    assert new in day.db.refs("VM") and day.sr in day.db.refs("SR")


def test_a_vm_that_somebody_has_copied_elsewhere_stays(day):
    """xapi copies other_config with the VM, our marks among it."""
    (done,) = day.clone("web")
    marks = day.vm(done.uuid)["other_config"]
    other = day.lab.vm("a full copy", day.lab.vdi("Testing", "data")[0], other_config=marks)
    discard_all(day)
    assert other in day.db.refs("VM") and not day.db.refs("VM", uuid=done.uuid)


def test_a_vm_that_somebody_has_cloned_from_a_copy_is_named_and_nothing_is_destroyed(day):
    """A fast clone on the same SR, marks and all."""
    (done,) = day.clone("web")
    own = day.db.create("VDI", SR=day.sr, location="fast clone", name_label="root disk", managed=True)
    mine = day.lab.vm("my experiment", own, other_config=day.vm(done.uuid)["other_config"])
    with pytest.raises(Refused, match=r"The VM 'my experiment' \(.*It is not destroyed"):
        discard_all(day)
    assert mine in day.db.refs("VM") and day.db.refs("VM", uuid=done.uuid)
    for vbd in day.db.refs("VBD", VM=mine):
        day.db.destroy("VBD", vbd)
    discard_all(day)
    assert mine in day.db.refs("VM") and not day.db.refs("VM", uuid=done.uuid)


def test_what_became_otherwise_while_somebody_was_asked_stays(day):
    (done,) = day.clone("web")
    with connect(day.lab.where()) as calls:
        pool = records.read(calls)
        made = made_vms.made_on(inventory.read(calls), pool, [day.sr])[day.sr]
        vm = day.db.by_uuid("VM", done.uuid)
        day.db.create("VBD", VM=vm, VDI=day.lab.vdi("Testing", "data")[0], userdevice="7")
        with pytest.raises(Refused, match="has a disk that is not on this copy"):
            made_vms.destroy_made(calls, pool, day.sr, made)
    assert vm in day.db.refs("VM")


def test_a_network_of_a_run_that_is_beginning_stays(day):
    """Of copies on another SR: nobody is on it yet. And one that gets a VIF at the last moment."""
    day.clone("web", isolated="nowhere")
    with connect(day.lab.where()) as calls:
        ref, _ = choice.isolated_network(calls, inventory.read(calls), "lab of another", sr_uuid="another")

    def appear(method, params):
        if method == "network.get_VIFs":
            day.lab.vm("late", networks=[params[1]])

    day.lab.pool.api.before = appear
    assert discard_all(day) == [] and day.db.exists("network", ref)
    assert "network.destroy" not in day.lab.pool.api.calls


def test_a_network_that_is_used_stays(day):
    day.clone("web", isolated="nowhere")
    day.lab.vm("router", networks=[day.db.refs("network", name_label="nowhere")[0]])
    assert discard_all(day) == [] and day.db.refs("network", name_label="nowhere")


@pytest.mark.states
def test_killed_at_every_call_the_next_run_finishes_it(lab, day, dies):
    day.lab.attach(day.copy.scsi_id)
    before = rows(day)
    number = dies.first
    while True:
        day.lab.attach(day.copy.scsi_id)
        day.sr = day.db.by_uuid("SR", day.copy.sr_uuid)
        day.clone("web", isolated="nowhere")
        death = dies(lambda: discard_all(day), number)
        discard_all(day)
        after = rows(day)
        assert not any(after[table] - before[table] for table in after), number
        assert day.web in after["VM"] and not day.db.refs("VM", name_label="web 2026-11-22"), number
        number += 2
        if not death.came:
            break
    assert number > 20
