# SPDX-License-Identifier: LGPL-2.1-only
"""Disks of a copy in place of a VM's own, at once and undoable, and home to the VM's SR later.

    1 journal    for each disk a key in VM.other_config: which VDI it was, which it becomes, how its VBD was; all of
                 them before the first disk is touched
    2 swap       VBD.destroy, VBD.create with the same device, mode and the rest: no VDI is written or destroyed
    3 rename     the VDI that it was says in its name that it waits: others take a VDI without VM for an orphan

A run that was cut is done again, forward (`restore`) or back (`undo`): the journal says what a disk was even where its
VBD is gone at that moment. `home` moves the disks to the SR of the old ones, which xapi does by copying, and is the end
of the journal; the old VDIs stay. The VM is shut down all the while, but for `home`.
"""

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.vms.inventory import NULL, RESTORED, Copy, Inventory, is_restored

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


class Swap(NamedTuple):
    """A disk of a VM, before and after; the entry of the journal."""

    vm: str  #: UUID
    userdevice: str
    old: str  #: UUID of the VDI
    new: str  #: UUID of the VDI
    old_name: str
    waiting_name: str  #: of the old one, while it waits
    sr: str  #: UUID of the copy
    vbd: Dict[str, Any]

    def facts(self) -> Dict[str, str]:
        return {"userdevice": self.userdevice, "old": self.old, "new": self.new}


class Restored(NamedTuple):
    """What became of a VM."""

    vm: str  #: UUID
    name: str
    status: str
    disks: Sequence[Swap] = ()
    waiting: Sequence[str] = ()  #: UUIDs of VDIs that nobody needs any more

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "vm": self.vm,
            "name": self.name,
            "status": self.status,
            "disks": [disk.facts() for disk in self.disks],
            "no_longer_needed": list(self.waiting),
        }


# --- the journal


def journal_of(vm: Record) -> List[Swap]:
    """What the VM's other_config says of its disks, by device; not what it has from a VM of which it was copied.

    Raises Refused for what is no journal of ours.
    """
    found = []
    for key, text in sorted(vm["other_config"].items()):
        if key.startswith(RESTORED):
            try:
                found.append(Swap(**json.loads(text)))
            except (TypeError, ValueError) as error:
                raise Refused(f"{key} of the VM {vm['name_label']!r} cannot be read: {error}.") from error
    return [swap for swap in found if swap.vm == vm["uuid"]]


def _write(calls: Calls, vm: str, swap: Swap) -> None:
    text = json.dumps(swap._asdict(), sort_keys=True, separators=(",", ":"))
    try:
        calls.call("VM.add_to_other_config", vm, RESTORED + swap.userdevice, text)
    except PoolFailure as failure:
        if failure.code != "MAP_DUPLICATE_KEY":
            raise
        there = {each.userdevice: each for each in journal_of(calls.call("VM.get_record", vm))}
        if there.get(swap.userdevice) != swap:
            calls.call(
                "VM.remove_from_other_config", vm, RESTORED + swap.userdevice
            )  # of the VM that it was copied from
            calls.call("VM.add_to_other_config", vm, RESTORED + swap.userdevice, text)


# --- restore


def plan(found: Inventory, copy: Copy, vm: str, devices: Sequence[str], date: str) -> List[Swap]:
    """The disks that change, all of the VM's unless devices are named.

    Raises Refused where one has nothing on the copy, or its new one is somebody else's; UsageError.
    """
    name = found.vms[vm]["name_label"]
    _verify_ours(found, copy, vm)
    there = {swap.userdevice: swap for swap in journal_of(found.vms[vm])}
    _verify_same_copy(name, there, copy)
    disks = found.disks_of(vm)
    wanted = devices or sorted({*disks, *there})
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
    kept = {field: vbd[field] for field in _VBD if field in vbd}
    return Swap(found.vms[vm]["uuid"], device, old["uuid"], new["uuid"], old["name_label"], waiting, copy.uuid, kept)


def restore(calls: Calls, vm: str, swaps: Sequence[Swap], shutdown: bool = False) -> Restored:
    """Put the new disks in place. Raises Refused for a VM that is not shut down, PoolFailure."""
    record = calls.call("VM.get_record", vm)
    done = {swap.userdevice for swap in journal_of(record)} >= {swap.userdevice for swap in swaps}
    if done and all(_vdi_of(calls, vm, swap.userdevice) == swap.new for swap in swaps):
        for swap in swaps:
            _name(calls, swap.old, swap.waiting_name)
        return Restored(record["uuid"], record["name_label"], ALREADY, swaps)
    _halted(calls, vm, record, shutdown)
    for swap in swaps:
        _write(calls, vm, swap)
    for swap in swaps:
        _hang(calls, vm, swap, swap.new)
        _name(calls, swap.old, swap.waiting_name)
    return Restored(record["uuid"], record["name_label"], DONE, swaps)


def _halted(calls: Calls, vm: str, record: Record, shutdown: bool) -> None:
    """Raises Refused."""
    state = record["power_state"]
    if state == "Halted":
        return
    if state != "Running" or not shutdown:
        more = " Say --shutdown." if state == "Running" else " Its memory would not fit its disks: shut it down."
        raise Refused(f"The VM {record['name_label']!r} is not halted but {state.lower()}.{more}")
    calls.run("VM.clean_shutdown", vm)


def _vbd_at(calls: Calls, vm: str, device: str) -> Optional[str]:
    found = calls.records("VBD", f'field "VM" = "{vm}" and field "userdevice" = "{device}"')
    return next(iter(found), None)


def _vdi_of(calls: Calls, vm: str, device: str) -> str:
    """UUID of the VDI that a VM has at a device; "" for none."""
    vbd = _vbd_at(calls, vm, device)
    vdi = calls.call("VBD.get_VDI", vbd) if vbd is not None else NULL
    return str(calls.call("VDI.get_uuid", vdi)) if vdi != NULL else ""


def _hang(calls: Calls, vm: str, swap: Swap, uuid: str) -> None:
    """Make this VDI the disk of the VM at the swap's device, unless it is. Raises NotFound, PoolFailure."""
    vdi = _vdi(calls, uuid)
    vbd = _vbd_at(calls, vm, swap.userdevice)
    if vbd is not None:
        if calls.call("VBD.get_VDI", vbd) == vdi:
            return
        calls.call("VBD.destroy", vbd)
    calls.call("VBD.create", {**swap.vbd, "VM": vm, "VDI": vdi, "userdevice": swap.userdevice, "empty": False})


def _vdi(calls: Calls, uuid: str) -> str:
    """Raises NotFound."""
    try:
        return str(calls.call("VDI.get_by_uuid", uuid))
    except PoolFailure as failure:
        if failure.code != "UUID_INVALID":
            raise
        raise NotFound(f"The VDI {uuid} is not in the pool any more.") from failure


def _name(calls: Calls, uuid: str, name: str) -> None:
    vdi = _vdi(calls, uuid)
    if calls.call("VDI.get_name_label", vdi) != name:
        calls.call("VDI.set_name_label", vdi, name)


# --- back, and home


def undo(calls: Calls, vm: str, shutdown: bool = False) -> Restored:
    """Put the disks before back in place. Raises Refused, NotFound where one is gone, PoolFailure."""
    record = calls.call("VM.get_record", vm)
    swaps = must_be_restored(record)
    for swap in swaps:
        _vdi(calls, swap.old)
    _halted(calls, vm, record, shutdown)
    moved = [_vdi_of(calls, vm, swap.userdevice) for swap in swaps]
    for swap in swaps:
        _hang(calls, vm, swap, swap.old)
        _name(calls, swap.old, swap.old_name)
    _forget(calls, vm, swaps)
    known = {"", *(swap.old for swap in swaps), *(swap.new for swap in swaps)}
    left = [uuid for uuid in moved if uuid not in known]  # on their way home when that was cut
    return Restored(record["uuid"], record["name_label"], UNDONE, swaps, left)


def home(calls: Calls, vm: str, tell: Callable[[str], None] = lambda _: None) -> Restored:
    """Move the disks of the copy to the SR of the disks before, whether the VM runs or not, and end the journal.

    `tell` is told the device of each disk that begins. Raises Refused, NotFound, PoolFailure.
    """
    record = calls.call("VM.get_record", vm)
    swaps = must_be_restored(record)
    for swap in swaps:
        vbd = _vbd_at(calls, vm, swap.userdevice)
        if vbd is None or _vdi_of(calls, vm, swap.userdevice) == swap.old:
            raise Refused(
                f"A restore of the VM {record['name_label']!r} was cut. Run it again, or undo it, before it goes home."
            )
    for swap in swaps:
        if _vdi_of(calls, vm, swap.userdevice) == swap.new:  # else an earlier run has moved it: it has another UUID
            tell(swap.userdevice)
            sr = calls.call("VDI.get_SR", _vdi(calls, swap.old))
            calls.run("VDI.pool_migrate", _vdi(calls, swap.new), sr, {})
    _forget(calls, vm, swaps)
    return Restored(record["uuid"], record["name_label"], HOME, swaps, [swap.old for swap in swaps])


def must_be_restored(record: Record) -> List[Swap]:
    """The journal of a VM. Raises Refused for one that has none."""
    if not is_restored(record):
        raise Refused(f"The VM {record['name_label']!r} has no disks of a copy that `restore` has put there.")
    return journal_of(record)


def _forget(calls: Calls, vm: str, swaps: Sequence[Swap]) -> None:
    for swap in swaps:
        calls.call("VM.remove_from_other_config", vm, RESTORED + swap.userdevice)
