# SPDX-License-Identifier: LGPL-2.1-only
"""A copy is forgotten and never destroyed."""

import pytest

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import forget


def forgotten(lab, uuid):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        ref = pool.sr_by_uuid(uuid)
        if ref is not None:
            records.verify_copy(pool, ref)
            forget.verify_unused(pool, forget.read_uses(calls, [ref]))
            forget.discard(calls, pool, ref)


def give_to_vm(lab, uuid, name, running):
    db = lab.pool.db
    vdi = db.refs("VDI", SR=db.by_uuid("SR", uuid))[0]
    vm = db.create("VM", name_label=name, power_state="Running" if running else "Halted")
    return db.create("VBD", VM=vm, VDI=vdi, currently_attached=running)


def test_it_is_gone_from_the_pool_and_its_lun_is_as_it_was(lab, world):
    clone = lab.clone("Production")
    before = lab.summary()
    (done,) = lab.attach(clone)
    content = world.lun(clone).disk.peek(0, world.lun(clone).disk.size_bytes)
    world.log.clear()
    forgotten(lab, done.sr_uuid)

    assert lab.summary() == before
    assert world.lun(clone).disk.peek(0, world.lun(clone).disk.size_bytes) == content
    assert {command for command, _, _ in world.log} == {"sr_detach"}
    assert not any("destroy" in call and "PBD" not in call and "task" not in call for call in lab.pool.api.calls)


def test_a_detached_copy_stays_without_pbds_and_is_attached_again(lab):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    before = lab.summary()
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        forget.detach(calls, pool, pool.sr_by_uuid(done.sr_uuid))
    _, sr = lab.sr(done.sr_uuid)
    assert (sr["PBDs"], len(sr["VDIs"])) == ([], 4)

    (again,) = lab.attach(clone)
    assert (again.status, again.sr_uuid) == ("attached", done.sr_uuid)
    assert lab.summary() == before


def test_the_master_is_unplugged_last(lab, world):
    (done,) = lab.attach(lab.clone("Production"))
    order = []
    unplug = lab.pool.storage.pbd_unplug

    def told(session, pbd):
        order.append(lab.pool.db.get("PBD", pbd, "host"))
        unplug(session, pbd)

    lab.pool.api._methods["PBD.unplug"] = told
    forgotten(lab, done.sr_uuid)

    assert len(order) == 3 and order[-1] == lab.pool.master


def test_a_running_vm_keeps_it(lab):
    (done,) = lab.attach(lab.clone("Production"))
    vbd = give_to_vm(lab, done.sr_uuid, "rescue", running=True)
    with pytest.raises(Refused, match="Running or suspended VMs have disks on the SR 'Production 2026-11-22': rescue"):
        forgotten(lab, done.sr_uuid)
    assert all(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD").values())

    lab.pool.db.set("VBD", vbd, "currently_attached", False)
    forgotten(lab, done.sr_uuid)
    assert lab.pool.db.refs("SR", uuid=done.sr_uuid) == []


def test_the_memory_of_a_suspended_vm_keeps_it():
    vms = {
        "vm": {"name_label": "sleeping", "suspend_VDI": "vdi", "other_config": {}},
        "other": {"name_label": "awake", "suspend_VDI": "NULL", "other_config": {}},
    }

    assert forget.uses_of({"vdi": {}}, {}, vms) == forget.Uses({"vm": "sleeping"}, {}, {}, {}, {})


def test_a_host_that_is_down_and_has_it_keeps_it_whole(lab):
    """xapi does not take note that a PBD of a crashed host is not attached any more."""
    (done,) = lab.attach(lab.clone("Production"))
    lab.pool.go_down(lab.pool.hosts[2])
    with pytest.raises(Refused, match="attached on hosts that are down: xs3. Nothing was unplugged"):
        forgotten(lab, done.sr_uuid)
    assert all(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD").values())

    lab.pool.come_back(lab.pool.hosts[2])
    forgotten(lab, done.sr_uuid)
    assert lab.pool.db.refs("SR", uuid=done.sr_uuid) == []


@pytest.mark.parametrize("number", [0, 1], ids=["on the master", "on a member"])
def test_a_vm_that_starts_meanwhile_keeps_it_on_all_hosts(lab, number):
    (done,) = lab.attach(lab.clone("Production"))
    db, started = lab.pool.db, []

    def before(method, params):
        if method == "Async.PBD.unplug" and not started:
            started.append(give_to_vm(lab, done.sr_uuid, "web", running=True))
            db.set("VM", db.get("VBD", started[0], "VM"), "resident_on", lab.pool.hosts[number])

    lab.pool.api.before = before
    with pytest.raises(Refused, match="VMs have disks on the SR 'Production 2026-11-22': web"):
        forgotten(lab, done.sr_uuid)
    lab.pool.api.before = None

    ref, _ = lab.sr(done.sr_uuid)
    assert all(pbd["currently_attached"] for pbd in db.records("PBD", SR=ref).values())
    assert not db.refs("task")


def test_who_has_disks_there(lab):
    (done,) = lab.attach(lab.clone("Production"))
    give_to_vm(lab, done.sr_uuid, "off", running=False)
    give_to_vm(lab, done.sr_uuid, "on", running=True)
    give_to_vm(lab, lab.world.sr_uuid(lab.originals["Production"][0]), "elsewhere", running=True)
    with connect(lab.where()) as calls:
        ref, _ = lab.sr(done.sr_uuid)
        uses = forget.read_uses(calls, [ref])[ref]
        assert (list(uses.running.values()), list(uses.halted.values())) == (["on"], ["off"])


def test_an_sr_that_is_no_copy_is_refused(lab, world):
    with pytest.raises(Refused, match="was not introduced by `relvmoiscsi pool attach`"):
        forgotten(lab, world.sr_uuid(lab.originals["Production"][0]))
