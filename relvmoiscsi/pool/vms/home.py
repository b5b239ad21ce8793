# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy that a VM has since a restore go to the SR of its own, and stay: the journal ends.

xapi moves them by copying, whether the VM runs or not; the VDIs that it had before stay, and nobody needs them.
"""

from typing import Callable

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill
from relvmoiscsi.pool.vms.restore import HOME, WOULD_HOME, Restored
from relvmoiscsi.pool.vms.restore_journal import Swap


def home(calls: Calls, vm: str, tell: Callable[[str], None] = lambda _: None) -> Restored:
    """Move the disks of the copy to the SR of the disks before, whether the VM runs or not, and end the journal.

    `tell` is told the device of each disk that begins. Raises Refused, NotFound, PoolFailure.
    """
    record = verify_home(calls, vm)
    swaps = restore_journal.journal_of(record)
    for swap in swaps:
        if devices.read(calls, vm, swap.userdevice).vdi == swap.new:  # else an earlier run has moved it
            tell(swap.userdevice)
            _move(calls, vm, swap)
    for swap in swaps:
        _verify_is_home(calls, vm, swap)
    restore_journal.forget(calls, vm, swaps)
    left = [swap.old for swap in swaps if devices.find(calls, swap.old) is not None]
    return Restored(record["uuid"], record["name_label"], HOME, swaps, left)


def would(calls: Calls, vm: str) -> Restored:
    """What `home` would make of the VM at this moment, and nothing is done. Raises what it would raise at once."""
    record = verify_home(calls, vm)
    return Restored(record["uuid"], record["name_label"], WOULD_HOME, restore_journal.journal_of(record))


def verify_home(calls: Calls, vm: str) -> Record:
    """The VM as it is now. Raises Refused where it would not come home at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    swaps = restore_journal.must_be_restored(record)
    there = restore_journal.disks(calls, vm, swaps)
    if standstill.is_begun(record) or any(there[swap.userdevice].vdi in ("", swap.old) for swap in swaps):
        raise Refused(
            f"A restore of the VM {record['name_label']!r} was cut. Run it again, or undo it, before it goes home."
        )
    devices.must_be_idle(record)
    for swap in swaps:
        device = there[swap.userdevice]
        if not restore_journal.is_home(calls, record, swap, device):
            _verify_movable(calls, record, swap, device)
    return record


def _verify_movable(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> None:
    """Raises Refused where xapi would not move this disk, or others with it; NotFound, PoolFailure."""
    name = record["name_label"]
    devices.must_have(name, device, (swap.new,))
    devices.must_be_free(calls, swap.new, device.vbd)
    snapshots = devices.snapshots_of(calls, record)
    if snapshots:
        raise Refused(
            f"The VM {name!r} has snapshots: {', '.join(snapshots)}. The pool would move their disks too, those of "
            "before the restore to its default SR. Delete the snapshots first, or undo the restore; nothing was moved."
        )
    vdi = calls.call("VDI.get_record", device.vdi_ref)
    if vdi["cbt_enabled"]:
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, has changed block tracking on, and "
            f"the pool moves no such VDI. Switch it off (`xe vdi-disable-cbt uuid={swap.new}`): the next backup is a "
            "full one anyway. Then run the same again."
        )
    if vdi["on_boot"] != "persist":
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, is reset at each start (on-boot), and "
            f"the pool moves no such VDI. Say `xe vdi-param-set on-boot=persist uuid={swap.new}`, and run the same "
            "again."
        )
    _sr(calls, swap)


def _move(calls: Calls, vm: str, swap: Swap) -> None:
    """Raises Refused, NotFound, PoolFailure."""
    record = calls.call("VM.get_record", vm)
    devices.must_be_idle(record)
    device = devices.read(calls, vm, swap.userdevice)
    _verify_movable(calls, record, swap, device)
    if record["other_config"].get(restore_journal.LEAVING + swap.userdevice) != restore_journal.mark_of(record, swap):
        calls.call("VM.remove_from_other_config", vm, restore_journal.LEAVING + swap.userdevice)
        calls.call(
            "VM.add_to_other_config",
            vm,
            restore_journal.LEAVING + swap.userdevice,
            restore_journal.mark_of(record, swap),
        )
    calls.call("VM.remove_from_other_config", vm, restore_journal.ARRIVED + swap.userdevice)
    calls.run("VDI.pool_migrate", device.vdi_ref, _sr(calls, swap), {})
    _verify_is_home(calls, vm, swap)
    arrived = devices.read(calls, vm, swap.userdevice).vdi
    calls.call(
        "VM.add_to_other_config",
        vm,
        restore_journal.ARRIVED + swap.userdevice,
        f"{restore_journal.mark_of(record, swap)} {arrived}",
    )


def _verify_is_home(calls: Calls, vm: str, swap: Swap) -> None:
    """Raises PoolFailure."""
    record = calls.call("VM.get_record", vm)
    if not restore_journal.is_home(calls, record, swap, devices.read(calls, vm, swap.userdevice)):
        raise PoolFailure(
            f"The disk {swap.userdevice} of the VM {record['name_label']!r} is not on the SR {swap.home}, to which the "
            f"pool says it has moved the VDI {swap.new}. The journal stays; look at the VM's disks before "
            "anything else."
        )


def _sr(calls: Calls, swap: Swap) -> str:
    """Where the old disk was, whether or not that is still there. Raises NotFound."""
    try:
        return str(calls.call("SR.get_by_uuid", swap.home))
    except PoolFailure as failure:
        if failure.code != "UUID_INVALID":
            raise
        raise NotFound(f"The SR {swap.home}, where the disks were, is not in the pool any more.") from failure
