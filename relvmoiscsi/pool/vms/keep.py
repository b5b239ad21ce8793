# SPDX-License-Identifier: LGPL-2.1-only
"""A VM stays as it is, whatever a restore has made of it: the journal and the standstill end, and no disk is touched.

The way out where the disks of a VM are not what the journal says: moved home by another tool, reverted to a snapshot.
"""

from typing import List

from relvmoiscsi.pool import lock
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill, swapping
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.restore import KEPT, WOULD_KEEP, Restored
from relvmoiscsi.pool.vms.restore_journal import Swap


def keep(calls: Calls, vm: str) -> Restored:
    """End the restore of a VM. Raises Refused where there is none or another run works on it; PoolFailure."""
    copies = {swap.sr for swap in _readable(verify(calls, vm))}
    with standstill.locked(calls, vm, copies, "restore --keep") as locked:
        record = locked.read()
        swaps = _readable(record)
        notes = _notes(calls, vm, record, swaps)
        back = {swap.old: swap.old_name for swap in swaps if devices.read(calls, vm, swap.userdevice).vdi == swap.old}
        standstill.end(locked)
        notes += swapping.rename(calls, back)
        restore_journal.forget_all(locked)
    return Restored(record["uuid"], record["name_label"], KEPT, notes=notes)


def would(calls: Calls, vm: str) -> Restored:
    """What the VM would be left with, and nothing is done. Raises what `keep` would raise."""
    record = verify(calls, vm)
    swaps = _readable(record)
    lock.verify_free(calls, standstill.names(calls, vm, {swap.sr for swap in swaps}))
    notes = _notes(calls, vm, record, swaps)
    return Restored(record["uuid"], record["name_label"], WOULD_KEEP, notes=notes)


def verify(calls: Calls, vm: str) -> Record:
    """The VM as it is now. Raises Refused, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    restore_journal.must_be_marked(record)
    devices.must_be_idle(record)
    return record


def _readable(record: Record) -> List[Swap]:
    """The journal, as far as somebody has not spoiled it."""
    return restore_journal.read(record)[0]


def _notes(calls: Calls, vm: str, record: Record, swaps: List[Swap]) -> List[str]:
    """What the VM has, and what hangs on no VM."""
    lines = [_has(calls, vm, swap) for swap in swaps]
    uuids = {uuid for swap in swaps for uuid in (swap.old, swap.new)} | {*restore_journal.all_arrived(record)}
    for uuid in sorted(uuids):
        vdi = devices.find(calls, uuid)
        if vdi is not None and not calls.call("VDI.get_VBDs", vdi):
            lines.append(f"on no VM: {uuid} {_where(calls, vdi)}")
    return lines


def _has(calls: Calls, vm: str, swap: Swap) -> str:
    device = devices.read(calls, vm, swap.userdevice)
    if device.vdi in ("", NULL):
        return f"disk {swap.userdevice}: none"
    stays = "; it disappears when that copy is discarded" if device.sr == swap.sr else ""
    return f"disk {swap.userdevice}: {device.vdi} {_where(calls, device.vdi_ref)}{stays}"


def _where(calls: Calls, vdi: str) -> str:
    record = calls.call("VDI.get_record", vdi)
    return f"({record['name_label']!r}, on the SR {calls.call('SR.get_name_label', record['SR'])!r})"
