# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own, at once and undoable.

    1 journal    for each disk a key in VM.other_config: which VDI it was, which it becomes, how its VBD was; all of
                 them before the first disk is touched
    2 swap       VBD.destroy, VBD.create with the same device, mode and the rest: no disk is written or destroyed
    3 free       the VM may be started
    4 rename     the VDI that it was says in its name that it waits: others take a VDI without VM for an orphan. The
                 storage manager writes that name to the LUN of the VDI, if a host has it: the rest does not wait for it

A run that was cut is done again, forward (`restore`) or back (`undo`): the journal says what a disk was even where its
VBD is gone at that moment. The VM is shut down all the while. The run locks the VM and the copy (standstill). The steps
are in swapping; what makes it last is in home, and what leaves it as it is in keep.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool import lock
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill, swapping
from relvmoiscsi.pool.vms.inventory import Copy, Inventory
from relvmoiscsi.pool.vms.restore_journal import Swap
from relvmoiscsi.pool.vms.standstill import LockedVm

#: fields of a VBD that another one in its place has as well
_VBD = (
    "bootable",
    "mode",
    "type",
    "unpluggable",
    "other_config",
    "qos_algorithm_type",
    "qos_algorithm_params",
)

#: status of a VM
DONE, ALREADY, WOULD, UNDONE, HOME = "restored", "already restored", "would be restored", "undone", "home"
WOULD_UNDO, WOULD_HOME = "would be undone", "would be taken home"
KEPT, WOULD_KEEP = "kept as it is", "would be kept as it is"

TO_KNOW = (
    "The next backup of the VM is a full backup, because the disks have other UUIDs. "
    "The VM's snapshots belong to the old disks.",
    "The old disks are kept and renamed. --undo puts the old disks back. --home moves the copy's disks to the VM's SR.",
    "Copies are not coalesced: each deleted snapshot lengthens the chain, up to the limit of 30. Use --home or "
    "--undo soon.",
)


class Restored(NamedTuple):
    """What became of a VM."""

    vm: str  #: UUID
    name: str
    status: str
    disks: Sequence[Swap] = ()
    waiting: Sequence[str] = ()  #: UUIDs of VDIs that nobody needs any more
    notes: Sequence[str] = ()
    shuts_down: bool = False  #: is, or was, the VM shut down for it? It stays halted

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "vm": self.vm,
            "name": self.name,
            "status": self.status,
            "disks": [disk.facts() for disk in self.disks],
            "no_longer_needed": list(self.waiting),
            "notes": list(self.notes),
            "shuts_down": self.shuts_down,
        }


# --- restore


def plan(found: Inventory, copy: Copy, vm: str, chosen: Sequence[str], date: str) -> List[Swap]:
    """The disks that change, all of the VM's unless devices are named.

    Raises Refused where one has nothing on the copy, or its new one is somebody else's; UsageError.
    """
    name = found.vms[vm]["name_label"]
    _verify_ours(found, copy, vm)
    there = {swap.userdevice: swap for swap in restore_journal.journal_of(found.vms[vm])}
    _verify_same_copy(name, there, copy)
    disks = found.disks_of(vm)
    wanted = list(dict.fromkeys(chosen)) or sorted({*disks, *there})
    strange = sorted(set(wanted) - {*disks, *there})
    if strange:
        raise UsageError(
            f"The VM {name!r} has no disk {', '.join(strange)}; it has {', '.join(sorted(disks)) or 'none'}."
        )
    if not wanted:
        raise Refused(f"The VM {name!r} has no disk.")
    return [there.get(device) or _swap(found, copy, vm, device, date) for device in wanted]


def _verify_ours(found: Inventory, copy: Copy, vm: str) -> None:
    if vm in dict(found.copies_on(copy.uuid)):
        raise Refused(f"The VM {found.vms[vm]['name_label']!r} is a copy and already has these disks.")


def _verify_same_copy(name: str, there: Mapping[str, Swap], copy: Copy) -> None:
    other = [swap.sr for swap in there.values() if swap.sr != copy.uuid]
    if other:
        raise Refused(
            f"The VM {name!r} was restored from the copy {other[0]}. First end that restore: `relvmoiscsi pool "
            "restore --undo`, `--home` or, if both fail, `--keep`."
        )


def _swap(found: Inventory, copy: Copy, vm: str, device: str, date: str) -> Swap:
    old = found.disks_of(vm)[device]
    new = copy.new_of(old["uuid"])
    if new is None:
        here = [each for each, vdi in sorted(found.disks_of(vm).items()) if copy.new_of(vdi["uuid"]) is not None]
        more = (
            f"Restore only the other disks: `--disk {','.join(here)}`."
            if here
            else "No disk of the VM is on this copy."
        )
        raise Refused(
            f"The disk {device} of the VM, {old['name_label']!r} ({old['uuid']}), is not on this copy. {more}"
        )
    users = found.users_of(copy.by_uuid[new["uuid"]])
    if users:
        names = ", ".join(sorted(str(found.vms[user]["name_label"]) for user in users))
        raise Refused(
            f"The VDI {new['uuid']}, which the disk {device} would become, is a disk of {names} already. Attach "
            "another copy, or discard these VMs."
        )
    vbd = next(vbd for vbd in found.vbds_of(vm).values() if vbd["userdevice"] == device)
    waiting = f"{old['name_label']} before restore {date}".strip()
    return Swap(
        found.vms[vm]["uuid"],
        device,
        old["uuid"],
        new["uuid"],
        old["name_label"],
        waiting,
        copy.uuid,
        copy.original,
        _kept(vbd),
    )


def restore(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Restored:
    """Put the new disks in place. Raises Refused for a VM that is not shut down or not as planned, PoolFailure."""
    record = verify(calls, vm, [*swaps, *_unfinished(calls, vm, swaps)], shutdown)
    if not standstill.is_begun(record) and _is_done(calls, vm, record, swaps):
        return Restored(record["uuid"], record["name_label"], ALREADY, swaps, notes=notes_of(calls, vm, record, swaps))
    copies = {swap.sr for swap in swaps}
    with standstill.locked(calls, vm, copies, "restore") as locked, swapping.told(swapping.cut_sentence(record)):
        return _restore(locked, swaps, shutdown)


def _restore(locked: LockedVm, swaps: Sequence[Swap], shutdown: bool) -> Restored:
    calls, vm, record = locked.calls, locked.vm, locked.read()
    swaps = [*swaps, *_unfinished(calls, vm, swaps, locked.is_after_a_cut)]
    shuts_down = record["power_state"] == "Running" and not _is_done(calls, vm, record, swaps)
    if not _is_done(calls, vm, record, swaps) or _is_to_be_hung_anew(locked, record):
        swapping.stand_still(locked, swaps, lambda now: _look(calls, vm, now, swaps), shutdown)
        for swap in swaps:
            swapping.hang(locked, swap, swap.new, (swap.old, swap.new, ""))
    swapping.verify_all(locked, [(swap, swap.new) for swap in swaps])
    standstill.end(locked)
    notes = notes_of(calls, vm, record, swaps)
    waiting = {swap.old: swap.waiting_name for swap in swaps if not devices.users_of(calls, swap.old, vm)}
    notes += swapping.rename(calls, waiting)
    return Restored(record["uuid"], record["name_label"], DONE, swaps, notes=notes, shuts_down=shuts_down)


def _is_to_be_hung_anew(locked: LockedVm, record: Record) -> bool:
    """May a call of a run that was cut still be under way? The disks of a VM that runs cannot be taken from it."""
    return locked.is_after_a_cut and bool(record["power_state"] == "Halted")


def would(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Restored:
    """What `restore` would make of the VM at this moment, and nothing is done. Raises what it would raise."""
    swaps = [*swaps, *_unfinished(calls, vm, swaps)]
    record = verify(calls, vm, swaps, shutdown)
    is_done = _is_done(calls, vm, record, swaps)
    shuts_down = record["power_state"] == "Running" and not is_done
    status = ALREADY if is_done and not standstill.is_begun(record) else WOULD
    if status == WOULD:
        lock.verify_free(calls, standstill.names(calls, vm, {swap.sr for swap in swaps}))
    notes = notes_of(calls, vm, record, swaps)
    return Restored(record["uuid"], record["name_label"], status, swaps, notes=notes, shuts_down=shuts_down)


def _unfinished(calls: Calls, vm: str, swaps: Sequence[Swap], with_finished: bool = False) -> List[Swap]:
    """Other disks of the VM that a run which was cut has left."""
    record = calls.call("VM.get_record", vm)
    other = [
        swap
        for swap in restore_journal.journal_of(record)
        if swap.userdevice not in {each.userdevice for each in swaps}
    ]
    return [swap for swap in other if with_finished or devices.read(calls, vm, swap.userdevice).vdi != swap.new]


def verify(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Record:
    """The VM as it is now. Raises Refused where a restore would be refused at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    restore_journal.verify_journal(record, swaps)
    if not _is_done(calls, vm, record, swaps):
        _look(calls, vm, record, swaps)
        swapping.verify_can_be_halted(record, shutdown)
    return record


def _look(calls: Calls, vm: str, record: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where a disk is neither as planned nor as the journal says, or the new one somebody's."""
    restore_journal.verify_journal(record, swaps)
    devices.must_be_idle(record)
    journal = restore_journal.journal_of(record)
    for swap in swaps:
        device = devices.read(calls, vm, swap.userdevice)
        _verify_not_moved(calls, record, swap, device)
        begun = swap in journal
        devices.must_have(record, device, (swap.old, swap.new, "") if begun else (swap.old,), begun)
        if not begun and _kept(device.record) != swap.vbd:
            raise Refused(
                f"The disk {swap.userdevice} of the VM {record['name_label']!r} was changed during this run. "
                "Repeat the command."
            )
        devices.must_be_free(calls, swap.new, device.vbd if device.vdi == swap.new else "")
        _verify_not_shared(calls, vm, swap)


def _verify_not_shared(calls: Calls, vm: str, swap: Swap) -> None:
    """Raises Refused for a disk of a cluster: its other nodes would be on another day's."""
    names = devices.users_of(calls, swap.old, vm)
    if names and calls.call("VDI.get_sharable", devices.ref_of(calls, swap.old)):
        raise Refused(
            f"The disk {swap.userdevice}, {swap.old}, is shared with {', '.join(names)}: a restore would give "
            "only this VM the disk of the copy. Omit the disk (--disk), or remove the disk from the other VMs."
        )


def _verify_not_moved(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> None:
    """Raises Refused. A disk that was on its way and hangs nowhere is the newest there is: never another for it."""
    gone = device.vdi == "" and (restore_journal.is_leaving(record, swap) or restore_journal.arrived_as(record, swap))
    if gone:
        raise Refused(_gone_on_the_way(record, swap))
    if restore_journal.is_home(calls, record, swap, device):
        raise Refused(
            f"The disks of the VM {record['name_label']!r} are being moved to its own SR. Finish with "
            "`relvmoiscsi pool restore --home`, or put the old disks back (`--undo`)."
        )


def _is_done(calls: Calls, vm: str, record: Record, swaps: Sequence[Swap]) -> bool:
    journal = restore_journal.journal_of(record)
    return all(swap in journal and devices.read(calls, vm, swap.userdevice).vdi == swap.new for swap in swaps)


def _kept(vbd: Record) -> Dict[str, Any]:
    return {field: vbd[field] for field in _VBD if field in vbd}


def _gone_on_the_way(record: Record, swap: Swap) -> str:
    arrived = restore_journal.arrived_as(record, swap)
    where = f"as the VDI {arrived}" if arrived else f"perhaps as a VDI of the SR {swap.home}"
    return (
        f"The disk {swap.userdevice} of the VM {record['name_label']!r} was being moved, {where}, and is not "
        "attached now. Find the VDI with the latest data and attach it to the VM. Then `relvmoiscsi pool restore "
        f"--keep {record['uuid']}` ends this."
    )


def notes_of(calls: Calls, vm: str, record: Record, swaps: Sequence[Swap]) -> List[str]:
    """What a person has to know of this VM before its disks are swapped. Raises PoolFailure."""
    notes = []
    names = devices.snapshots_of(calls, record)
    if names:
        notes.append(
            f"It has snapshots ({', '.join(names)}): a revert to a snapshot silently undoes the restore and "
            "removes the journal. --home is refused until the snapshots are deleted."
        )
    for swap in swaps:
        users = devices.users_of(calls, swap.old, vm)
        if users:
            notes.append(
                f"The disk {swap.userdevice} before, {swap.old}, is also one of {', '.join(users)}, and keeps "
                "its name. --undo is refused until then."
            )
    return notes


# --- back


def undo(calls: Calls, vm: str, shutdown: bool = False) -> Restored:
    """Put the disks before back in place. Raises Refused, NotFound where one is gone, PoolFailure."""
    record = verify_undo(calls, vm, shutdown)
    copies = {swap.sr for swap in restore_journal.journal_of(record)}
    with standstill.locked(calls, vm, copies, "restore --undo") as locked, swapping.told(swapping.cut_sentence(record)):
        return _undo(locked, shutdown)


def _undo(locked: LockedVm, shutdown: bool) -> Restored:
    calls, vm, record = locked.calls, locked.vm, locked.read()
    swaps = restore_journal.must_be_restored(record)
    there = restore_journal.disks(calls, vm, swaps)
    for swap in swaps:  # what the VM has written since is named, also where this run is cut and another ends it
        device = there[swap.userdevice]
        if restore_journal.is_home(calls, record, swap, device):
            restore_journal.write_arrived(locked, record, swap, device.vdi)
    is_swapped = any(there[swap.userdevice].vdi != swap.old for swap in swaps)
    if is_swapped or _is_to_be_hung_anew(locked, record):
        swapping.stand_still(locked, swaps, lambda now: _verify_back(calls, vm, now), shutdown)
        moved = restore_journal.all_arrived(locked.read())
        for swap in swaps:
            swapping.hang(locked, swap, swap.old, (swap.old, swap.new, "", *moved))
    swapping.verify_all(locked, [(swap, swap.old) for swap in swaps])
    moved = restore_journal.all_arrived(locked.read())
    left = [uuid for uuid in moved if devices.find(calls, uuid) is not None and not devices.users_of(calls, uuid, "")]
    standstill.end(locked)
    notes = swapping.rename(calls, {swap.old: swap.old_name for swap in swaps})
    restore_journal.forget_all(locked)
    shuts_down = is_swapped and record["power_state"] == "Running"
    return Restored(record["uuid"], record["name_label"], UNDONE, swaps, left, notes, shuts_down=shuts_down)


def would_undo(calls: Calls, vm: str, shutdown: bool = False) -> Restored:
    """What `undo` would make of the VM at this moment, and nothing is done. Raises what it would raise."""
    record = verify_undo(calls, vm, shutdown)
    swaps = restore_journal.journal_of(record)
    shuts_down = record["power_state"] == "Running" and bool(_verify_back(calls, vm, record))
    lock.verify_free(calls, standstill.names(calls, vm, {swap.sr for swap in swaps}))
    return Restored(record["uuid"], record["name_label"], WOULD_UNDO, swaps, shuts_down=shuts_down)


def verify_undo(calls: Calls, vm: str, shutdown: bool = False) -> Record:
    """The VM as it is now. Raises Refused where an undo would be refused at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    if _verify_back(calls, vm, record):
        swapping.verify_can_be_halted(record, shutdown)
    return record


def _verify_back(calls: Calls, vm: str, record: Record) -> List[str]:
    """The devices whose disks are not those before. Raises Refused, NotFound."""
    swaps = restore_journal.must_be_restored(record)
    devices.must_be_idle(record)
    found: List[str] = []
    for swap in swaps:
        if devices.find(calls, swap.old) is None:
            raise NotFound(
                f"The VDI {swap.old}, which was the disk {swap.userdevice}, is no longer in the pool: --undo is "
                "impossible. Use --home to move the copy's disks, or --keep to leave all as it is."
            )
        device = devices.read(calls, vm, swap.userdevice)
        if not restore_journal.is_home(calls, record, swap, device):
            restore_journal.verify_not_between(calls, record, swap, device)
            devices.must_have(record, device, (swap.old, swap.new, ""))
        devices.must_be_free(calls, swap.old, device.vbd if device.vdi == swap.old else "")
        found += [swap.userdevice] if device.vdi != swap.old else []
    return found
