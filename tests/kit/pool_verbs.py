# SPDX-License-Identifier: LGPL-2.1-only
"""What the commands on VMs do, each in a session of its own: to the VM "web" and the copy of tests/unit/pool/vms."""

from relvmoiscsi.pool import lock, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import inventory, move_home, owners, rescue, restore

#: of a disk, as an entry of a journal has it
VBD = {
    **{"bootable": True, "mode": "RW", "type": "Disk", "unpluggable": True},
    **{"other_config": {}, "qos_algorithm_type": "", "qos_algorithm_params": {}},
}


def run(day, work, sr=None, where=None):
    """What `work` gives of (calls, inventory, copy)."""
    with connect(where or day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        return work(calls, found, owners.copy_of(pool, found, sr or day.sr))


def bring_back(day, vm=None, devices=(), date="2026-11-22", sr=None, where=None, **more):
    vm = vm or day.web

    def work(calls, found, copy):
        return restore.restore(
            calls, vm, restore.plan(calls, records.read(calls), found, copy, vm, devices, date), **more
        )

    return run(day, work, sr, where)


def undo(day, vm=None, where=None, **more):
    return run(day, lambda calls, *_: restore.undo(calls, vm or day.web, **more), where=where)


def take_home(day, **more):
    return run(day, lambda calls, *_: move_home.home(calls, day.web, **more))


def keep(day, vm=None, where=None, **more):
    return run(day, lambda calls, *_: restore.keep(calls, vm or day.web, **more), where=where)


def lend(day, text, vm, rw=False, sr=None, **more):
    """`text` names the disk."""

    def work(calls, found, copy):
        return rescue.lend(calls, records.read(calls), found, copy, rescue.find(found, copy, text), vm, rw, **more)

    return run(day, work, sr)


def take_back(day, text=None, vm=None):
    """What became of each disk; the error of one alone is raised."""

    def work(calls, found, copy):
        vdi = rescue.find(found, copy, text) if text else None
        return rescue.take_back(calls, found, copy, rescue.lent(found, copy, vdi, vm))

    rows = run(day, work)
    if len(rows) == 1 and rows[0].error is not None:
        raise rows[0].error
    return rows


def discard(day, uuid=None, told=lambda plan: None):
    """The names of the networks that go with the copy (a UUID); `told` gets the plan before it is carried out."""
    uuid, networks = uuid or day.copy.sr_uuid, day.db.records("network")
    with connect(day.lab.where()) as calls:
        ref = records.read(calls).sr_by_uuid(uuid)
        if ref is not None:
            plan = made_vms.plan(calls, [ref], with_vms=True)
            told(plan)
            with made_vms.carrying_out(calls, plan) as carry_out:
                carry_out(calls, ref, [])
        made_vms.clean_networks(calls)
    return [row["name_label"] for ref, row in networks.items() if not day.db.exists("network", ref)]


def locks(day):
    with connect(day.lab.where()) as calls:
        return list(lock.read(calls).values())


def unlock(day):
    with connect(day.lab.where()) as calls:
        for what in lock.read(calls):
            lock.unlock(calls, lock.to_break(calls, what))


def second_copy(day, name="Production"):
    """The reference of another copy, of this original."""
    (second,) = day.lab.attach(day.lab.clone(name))
    return day.db.by_uuid("SR", second.sr_uuid)
