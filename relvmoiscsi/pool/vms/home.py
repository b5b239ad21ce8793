# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy that a VM has since a restore go to the SR of its own, and stay: the journal ends.

xapi moves them by copying, whether the VM runs or not; the VDIs that it had before stay, and nobody needs them.
"""

from typing import Callable, List, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool import lock
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill, swapping
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.restore import HOME, WOULD_HOME, Restored
from relvmoiscsi.pool.vms.restore_journal import Swap
from relvmoiscsi.pool.vms.standstill import LockedVm


def home(calls: Calls, vm: str, tell: Callable[[str], None] = lambda _: None) -> Restored:
    """Move the disks of the copy to the SR of the disks before, whether the VM runs or not, and end the journal.

    `tell` is told the device of each disk that begins. Raises Refused, NotFound, PoolFailure.
    """
    record = verify_home(calls, vm)
    copies = {swap.sr for swap in restore_journal.journal_of(record)}
    with standstill.locked(calls, vm, copies, "restore --home") as locked, swapping.told(_cut_sentence(record)):
        swaps = _home(locked, tell)
    left, notes = _left(calls, swaps)
    return Restored(record["uuid"], record["name_label"], HOME, swaps, left, notes)


def _cut_sentence(record: Record) -> str:
    return (
        f"The VM {record['name_label']!r} has some disks on its own SR and the others on the copy, and can be "
        f"used. Repeat the command, or run `relvmoiscsi pool restore --undo {record['uuid']}`."
    )


def _home(locked: LockedVm, tell: Callable[[str], None]) -> List[Swap]:
    calls, vm = locked.calls, locked.vm
    swaps = restore_journal.journal_of(locked.read())
    for swap in swaps:
        if devices.read(calls, vm, swap.userdevice).vdi == swap.new:  # else an earlier run has moved it
            tell(swap.userdevice)
            _move(locked, swap)
    for swap in swaps:
        _verify_is_home(locked, swap)
    restore_journal.forget_all(locked)
    return swaps


def _left(calls: Calls, swaps: Sequence[Swap]) -> Tuple[List[str], List[str]]:
    """The VDIs that nobody needs any more, and sentences on those of them that somebody has all the same."""
    left, notes = [], []
    for uuid in [uuid for swap in swaps for uuid in (swap.old, swap.new)]:
        users = devices.users_of(calls, uuid, "")
        if users:
            notes.append(f"The VDI {uuid} is a disk of {', '.join(users)}: keep the VDI.")
        elif devices.find(calls, uuid) is not None:
            left.append(uuid)
    return left, notes


def would(calls: Calls, vm: str) -> Restored:
    """What `home` would make of the VM at this moment, and nothing is done. Raises what it would raise at once."""
    record = verify_home(calls, vm)
    journal = restore_journal.journal_of(record)
    swaps = [swap for swap in journal if devices.read(calls, vm, swap.userdevice).vdi == swap.new]
    lock.verify_free(calls, standstill.names(calls, vm, {swap.sr for swap in journal}))
    return Restored(record["uuid"], record["name_label"], WOULD_HOME, swaps)


def verify_home(calls: Calls, vm: str) -> Record:
    """The VM as it is now. Raises Refused where it would not come home at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    swaps = restore_journal.must_be_restored(record)
    there = restore_journal.disks(calls, vm, swaps)
    if standstill.is_begun(record) or any(there[swap.userdevice].vdi in ("", swap.old) for swap in swaps):
        raise Refused(
            f"A restore of the VM {record['name_label']!r} was interrupted. First repeat the restore or undo the "
            "restore. To leave the VM as it is, use `relvmoiscsi pool restore --keep`."
        )
    devices.must_be_idle(record)
    for swap in swaps:
        device = there[swap.userdevice]
        if not restore_journal.is_home(calls, record, swap, device):
            restore_journal.verify_not_between(calls, record, swap, device)
            _verify_movable(calls, record, swap, device)
    return record


def _verify_movable(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> None:
    """Raises Refused where xapi would not move this disk, or others with it; NotFound, PoolFailure."""
    name = record["name_label"]
    devices.must_have(record, device, (swap.new,))
    devices.must_be_free(calls, swap.new, device.vbd)
    snapshots = devices.snapshots_of(calls, record)
    if snapshots:
        raise Refused(
            f"The VM {name!r} has snapshots: {', '.join(snapshots)}. Nothing was moved: the pool would move the "
            "disks of the snapshots too, partly to its default SR. Delete the snapshots first, or undo the "
            "restore."
        )
    vdi = calls.call("VDI.get_record", device.vdi_ref)
    if vdi["cbt_enabled"]:
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, has changed block tracking on, "
            f"and the pool cannot move such a VDI. Run `xe vdi-disable-cbt uuid={swap.new}`, then repeat the "
            f"command. The next backup is a full backup in any case."
        )
    if vdi["on_boot"] != "persist":
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, is reset at each start "
            f"(on-boot), and the pool cannot move such a VDI. Run `xe vdi-param-set on-boot=persist "
            f"uuid={swap.new}`, then repeat the command."
        )
    _sr(calls, swap)


def _move(locked: LockedVm, swap: Swap) -> None:
    """Raises Refused, NotFound, PoolFailure."""
    calls, vm, record = locked.calls, locked.vm, locked.read()
    devices.must_be_idle(record)
    device = devices.read(calls, vm, swap.userdevice)
    _verify_movable(calls, record, swap, device)
    restore_journal.write_leaving(locked, record, swap)
    locked.call("VM.remove_from_other_config", restore_journal.ARRIVED + swap.userdevice)
    try:
        calls.run("VDI.pool_migrate", device.vdi_ref, _sr(calls, swap), {})
    except PoolGone:
        raise
    except PoolFailure as failure:
        _note_if_moved(locked, swap, device)
        raise failure.in_state(_not_moved(record, failure)) from failure
    _verify_is_home(locked, swap)
    arrived = devices.read(calls, vm, swap.userdevice).vdi
    restore_journal.write_arrived(locked, record, swap, arrived)


def _note_if_moved(locked: LockedVm, swap: Swap, before: devices.Device) -> None:
    """It may fail when the VM has the new VDI already, as the old one could not be destroyed: the same VBD tells."""
    now = devices.read(locked.calls, locked.vm, swap.userdevice)
    if now.vbd == before.vbd and now.sr == swap.home and now.vdi not in (NULL, swap.old, swap.new):
        restore_journal.write_arrived(locked, locked.read(), swap, now.vdi)


def _not_moved(record: Record, failure: PoolFailure) -> str:
    """What is left to do where the pool does not move disks at all."""
    if failure.code != "LICENCE_RESTRICTION":
        return _cut_sentence(record)
    return (
        f"The VM {record['name_label']!r} stays on the copy and can be used. Shut the VM down, copy the disk "
        "(`xe vdi-copy`) and attach the new VDI in its place. Then run `relvmoiscsi pool restore --keep "
        "{record['uuid']}`. Or use `--undo`."
    )


def _verify_is_home(locked: LockedVm, swap: Swap) -> None:
    """Raises PoolFailure."""
    record = locked.read()
    if not restore_journal.is_home(locked.calls, record, swap, devices.read(locked.calls, locked.vm, swap.userdevice)):
        raise PoolFailure(
            f"The disk {swap.userdevice} of the VM {record['name_label']!r} is not on the SR {swap.home}, although "
            f"the pool reported the move of the VDI {swap.new} as done. The journal stays. Check the disks of "
            f"the VM before you go on."
        )


def _sr(calls: Calls, swap: Swap) -> str:
    """Where the old disk was, whether or not that is still there. Raises NotFound."""
    try:
        return str(calls.call("SR.get_by_uuid", swap.home))
    except PoolFailure as failure:
        if failure.code != "UUID_INVALID":
            raise
        raise NotFound(
            f"The SR {swap.home}, which held the old disks, is no longer in the pool. Introduce the SR again. Or "
            f"run `relvmoiscsi pool restore --keep {swap.vm}`: the VM then stays on the copy."
        ) from failure
