# SPDX-License-Identifier: LGPL-2.1-only
"""What the commands on VMs do, each in a session of its own: to the VM "web" and the copy of tests/unit/pool/vms."""

from relvmoiscsi.pool import lock, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, move_home, restore


def run(day, work, sr=None, where=None):
    """What `work` gives of (calls, inventory, copy)."""
    with connect(where or day.lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        return work(calls, found, inventory.copy_of(pool, found, sr or day.sr))


def bring_back(day, vm=None, devices=(), date="2026-11-22", sr=None, where=None, **more):
    vm = vm or day.web

    def work(calls, found, copy):
        return restore.restore(calls, vm, restore.plan(found, copy, vm, devices, date), **more)

    return run(day, work, sr, where)


def undo(day, vm=None, **more):
    return run(day, lambda calls, *_: restore.undo(calls, vm or day.web, **more))


def take_home(day):
    return run(day, lambda calls, *_: move_home.home(calls, day.web))


def keep(day, vm=None, **more):
    return run(day, lambda calls, *_: restore.keep(calls, vm or day.web, **more))


def locks(day):
    with connect(day.lab.where()) as calls:
        return list(lock.read(calls).values())


def unlock(day):
    with connect(day.lab.where()) as calls:
        for each in lock.read(calls).values():
            lock.unlock(calls, each)


def second_copy(day):
    (second,) = day.lab.attach(day.lab.clone("Production"))
    return day.db.by_uuid("SR", second.sr_uuid)
