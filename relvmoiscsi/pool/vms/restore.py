# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own, at once and undoable.

    1 journal    for each disk a key in VM.other_config: which VDI it was, which it becomes, how its VBD was; all of
                 them before the first disk is touched
    2 swap       VBD.destroy, VBD.create with the same device, mode and the rest: no VDI is written or destroyed
    3 rename     the VDI that it was says in its name that it waits: others take a VDI without VM for an orphan

A run that was cut is done again, forward (`restore`) or back (`undo`): the journal says what a disk was even where its
VBD is gone at that moment. The VM is shut down all the while. What makes it last is in home.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill
from relvmoiscsi.pool.vms.inventory import Copy, Inventory
from relvmoiscsi.pool.vms.restore_journal import Swap

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

TO_KNOW = (
    "The next backup of the VM is a full one: its disks have other UUIDs. Its snapshots are of the disks before.",
    "The disks before are kept, and say so in their names; --undo puts them back, --home makes the copy's disks stay.",
)


class Restored(NamedTuple):
    """What became of a VM."""

    vm: str  #: UUID
    name: str
    status: str
    disks: Sequence[Swap] = ()
    waiting: Sequence[str] = ()  #: UUIDs of VDIs that nobody needs any more
    notes: Sequence[str] = ()

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "vm": self.vm,
            "name": self.name,
            "status": self.status,
            "disks": [disk.facts() for disk in self.disks],
            "no_longer_needed": list(self.waiting),
            "notes": list(self.notes),
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
    wanted = chosen or sorted({*disks, *there})
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
        raise Refused(f"The VM {found.vms[vm]['name_label']!r} is a copy itself, and has these disks.")


def _verify_same_copy(name: str, there: Mapping[str, Swap], copy: Copy) -> None:
    other = [swap.sr for swap in there.values() if swap.sr != copy.uuid]
    if other:
        raise Refused(
            f"The VM {name!r} was restored from the copy {other[0]}. Undo that (`relvmoiscsi pool restore --undo`) or "
            "take it home (`--home`) first."
        )


def _swap(found: Inventory, copy: Copy, vm: str, device: str, date: str) -> Swap:
    old = found.disks_of(vm)[device]
    new = copy.new_of(old["uuid"])
    if new is None:
        raise Refused(f"The disk {device} of the VM, {old['name_label']!r} ({old['uuid']}), is not on this copy.")
    users = found.users_of(copy.by_uuid[new["uuid"]])
    if users:
        names = ", ".join(sorted(str(found.vms[user]["name_label"]) for user in users))
        raise Refused(
            f"The VDI {new['uuid']}, which the disk {device} would become, is a disk of {names} already. Attach "
            "another copy, or discard those."
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
    swaps = [*swaps, *_unfinished(calls, vm, swaps)]
    record = verify(calls, vm, swaps, shutdown)
    is_done = _is_done(calls, vm, record, swaps)
    status = ALREADY if is_done and not standstill.is_begun(record) else DONE
    if not is_done:
        _shut_down(calls, vm, record)
        _stand_still(calls, vm, swaps)
    for swap in swaps:
        if not is_done:
            _hang(calls, vm, swap, swap.new, (swap.old, swap.new, ""))
        _name(calls, swap.old, swap.waiting_name)
    standstill.end(calls, vm)
    return Restored(record["uuid"], record["name_label"], status, swaps, notes=notes_of(calls, record))


def would(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Restored:
    """What `restore` would make of the VM at this moment, and nothing is done. Raises what it would raise."""
    swaps = [*swaps, *_unfinished(calls, vm, swaps)]
    record = verify(calls, vm, swaps, shutdown)
    is_done = _is_done(calls, vm, record, swaps) and not standstill.is_begun(record)
    notes = notes_of(calls, record)
    return Restored(record["uuid"], record["name_label"], ALREADY if is_done else WOULD, swaps, notes=notes)


def _unfinished(calls: Calls, vm: str, swaps: Sequence[Swap]) -> List[Swap]:
    """Other disks of the VM that a run which was cut has left."""
    record = calls.call("VM.get_record", vm)
    other = [
        swap
        for swap in restore_journal.journal_of(record)
        if swap.userdevice not in {each.userdevice for each in swaps}
    ]
    return [swap for swap in other if devices.read(calls, vm, swap.userdevice).vdi != swap.new]


def verify(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Record:
    """The VM as it is now. Raises Refused where a restore would be refused at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    restore_journal.verify_journal(record, swaps)
    if not _is_done(calls, vm, record, swaps):
        _verify_swaps(calls, vm, record, swaps)
        _verify_can_be_halted(record, shutdown)
    return record


def _verify_swaps(calls: Calls, vm: str, record: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where a disk is neither as planned nor as the journal says, or the new one somebody's."""
    devices.must_be_idle(record)
    journal = restore_journal.journal_of(record)
    for swap in swaps:
        device = devices.read(calls, vm, swap.userdevice)
        _verify_not_moved(calls, record, swap, device)
        begun = swap in journal
        devices.must_have(record["name_label"], device, (swap.old, swap.new, "") if begun else (swap.old,))
        if not begun and _kept(device.record) != swap.vbd:
            raise Refused(
                f"The disk {swap.userdevice} of the VM {record['name_label']!r} was changed meanwhile. "
                "Run the same again."
            )
        devices.must_be_free(calls, swap.new, device.vbd if device.vdi == swap.new else "")


def _verify_not_moved(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> None:
    """Raises Refused."""
    if restore_journal.is_home(calls, record, swap, device):
        raise Refused(
            f"The disks of the VM {record['name_label']!r} are on their way home. Go on with that (`relvmoiscsi pool "
            "restore --home`), or undo all (`--undo`)."
        )


def _is_done(calls: Calls, vm: str, record: Record, swaps: Sequence[Swap]) -> bool:
    journal = restore_journal.journal_of(record)
    return all(swap in journal and devices.read(calls, vm, swap.userdevice).vdi == swap.new for swap in swaps)


def _kept(vbd: Record) -> Dict[str, Any]:
    return {field: vbd[field] for field in _VBD if field in vbd}


def notes_of(calls: Calls, record: Record) -> List[str]:
    """What a person has to know of this VM before its disks are swapped. Raises PoolFailure."""
    names = devices.snapshots_of(calls, record)
    if not names:
        return []
    return [
        f"It has snapshots ({', '.join(names)}): a revert to one undoes the restore without a word, and what is on the "
        "copy is lost with it; --home waits until they are gone."
    ]


# --- a VM that stands still


def _verify_can_be_halted(record: Record, shutdown: bool) -> None:
    """Raises Refused."""
    state = record["power_state"]
    if state != "Halted" and (state != "Running" or not shutdown):
        more = " Say --shutdown." if state == "Running" else " Its memory would not fit its disks: shut it down."
        raise Refused(f"The VM {record['name_label']!r} is not halted but {state.lower()}.{more}")


def _shut_down(calls: Calls, vm: str, record: Record) -> None:
    if record["power_state"] != "Halted":
        calls.run("VM.clean_shutdown", vm)


def _stand_still(calls: Calls, vm: str, swaps: Sequence[Swap]) -> None:
    """Write the journal, let nobody start the VM, and look again. Raises Refused, and then all is as it was."""
    record = calls.call("VM.get_record", vm)
    written = [swap for swap in swaps if swap not in restore_journal.journal_of(record)]
    _verify_swaps(calls, vm, record, swaps)
    for swap in swaps:
        restore_journal.write(calls, vm, swap)
    standstill.begin(calls, vm, record)
    try:
        now = calls.call("VM.get_record", vm)
        _verify_can_be_halted(now, False)
        _verify_swaps(calls, vm, now, swaps)
    except Refused:
        if len(written) == len(swaps) and not standstill.is_begun(record):  # no disk was touched, now or before
            standstill.end(calls, vm)
            restore_journal.forget(calls, vm, written)
        raise


def _hang(calls: Calls, vm: str, swap: Swap, uuid: str, expected: Sequence[str]) -> None:
    """Make this VDI the disk of the VM at the swap's device, unless it is.

    Raises Refused where the VM is not as it must be, NotFound, PoolFailure.
    """
    record = calls.call("VM.get_record", vm)
    device = devices.read(calls, vm, swap.userdevice)
    devices.must_have(record["name_label"], device, expected)
    if device.vdi == uuid:
        return
    if swap not in restore_journal.journal_of(record):
        raise Refused(
            f"Another run works on the VM {record['name_label']!r} as well. Run the same again when that has ended."
        )
    _verify_can_be_halted(record, False)
    devices.must_be_idle(record)
    devices.must_be_free(calls, uuid)
    if device.vbd:
        calls.call("VBD.destroy", device.vbd)
    vdi = devices.ref_of(calls, uuid)
    calls.call("VBD.create", {**swap.vbd, "VM": vm, "VDI": vdi, "userdevice": swap.userdevice, "empty": False})


def _name(calls: Calls, uuid: str, name: str) -> None:
    """One that is gone has no name."""
    vdi = devices.find(calls, uuid)
    if vdi is not None and calls.call("VDI.get_name_label", vdi) != name:
        calls.call("VDI.set_name_label", vdi, name)


# --- back


def undo(calls: Calls, vm: str, shutdown: bool = False) -> Restored:
    """Put the disks before back in place. Raises Refused, NotFound where one is gone, PoolFailure."""
    record = verify_undo(calls, vm, shutdown)
    swaps = restore_journal.journal_of(record)
    there = restore_journal.disks(calls, vm, swaps)
    moved = [
        there[swap.userdevice].vdi
        for swap in swaps
        if restore_journal.is_home(calls, record, swap, there[swap.userdevice])
    ]
    if any(there[swap.userdevice].vdi != swap.old for swap in swaps):
        _shut_down(calls, vm, record)
        standstill.begin(calls, vm, calls.call("VM.get_record", vm))
        for swap in swaps:
            _hang(calls, vm, swap, swap.old, (swap.old, swap.new, "", *moved))
    for swap in swaps:
        _name(calls, swap.old, swap.old_name)
    standstill.end(calls, vm)
    restore_journal.forget(calls, vm, swaps)
    return Restored(record["uuid"], record["name_label"], UNDONE, swaps, moved)


def would_undo(calls: Calls, vm: str, shutdown: bool = False) -> Restored:
    """What `undo` would make of the VM at this moment, and nothing is done. Raises what it would raise."""
    record = verify_undo(calls, vm, shutdown)
    return Restored(record["uuid"], record["name_label"], WOULD_UNDO, restore_journal.journal_of(record))


def verify_undo(calls: Calls, vm: str, shutdown: bool = False) -> Record:
    """The VM as it is now. Raises Refused where an undo would be refused at this moment; NotFound, PoolFailure."""
    record: Record = calls.call("VM.get_record", vm)
    swaps = restore_journal.must_be_restored(record)
    devices.must_be_idle(record)
    halt = False
    for swap in swaps:
        if devices.find(calls, swap.old) is None:
            raise NotFound(
                f"The VDI {swap.old}, which was the disk {swap.userdevice}, is not in the pool any more: there "
                "is no undo. --home makes the copy's disks stay."
            )
        device = devices.read(calls, vm, swap.userdevice)
        if not restore_journal.is_home(calls, record, swap, device):
            devices.must_have(record["name_label"], device, (swap.old, swap.new, ""))
        devices.must_be_free(calls, swap.old, device.vbd if device.vdi == swap.old else "")
        halt = halt or device.vdi != swap.old
    if halt:
        _verify_can_be_halted(record, shutdown)
    return record
