# SPDX-License-Identifier: LGPL-2.1-only
"""What a VM itself says of its disks that are those of a copy: its journal, a key of other_config for each disk.

Which VDI the disk was, which it becomes, how its VBD was: all of them are written before the first disk is touched, and
taken away at the end. Further keys say that a disk was sent home, and as what it has arrived there.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, Record, passing
from relvmoiscsi.pool.vms import devices, standstill
from relvmoiscsi.pool.vms.inventory import NULL, RESTORED
from relvmoiscsi.pool.vms.standstill import LockedVm

#: keys of VM.other_config: the disk at this device, a VDI of the copy, was sent home
LEAVING = "relvmoiscsi:restore-home:"
#: and has arrived, as another VDI
ARRIVED = "relvmoiscsi:restore-arrived:"
_KEYS = (RESTORED, LEAVING, ARRIVED)  #: in the order in which they end


class Swap(NamedTuple):
    """A disk of a VM, before and after; the entry of the journal."""

    vm: str  #: UUID
    userdevice: str
    old: str  #: UUID of the VDI
    new: str  #: UUID of the VDI
    old_name: str
    waiting_name: str  #: of the old one, while it waits
    sr: str  #: UUID of the copy
    home: str  #: UUID of the SR of the old one
    vbd: Dict[str, Any]

    def facts(self) -> Dict[str, str]:
        return {"userdevice": self.userdevice, "old": self.old, "new": self.new}


def journal_of(vm: Record) -> List[Swap]:
    """What the VM's other_config says of its disks, by device; not what it has from a VM of which it was copied.

    Raises Refused for what is no journal of ours.
    """
    swaps, spoiled = read(vm)
    for key, why in spoiled:
        raise Refused(
            f"{key} of the VM {vm['name_label']!r} cannot be read: {why}. `relvmoiscsi pool restore --keep "
            f"{vm['uuid']}` leaves the VM as it is and removes the journal."
        )
    return swaps


def read(vm: Record) -> Tuple[List[Swap], List[Tuple[str, str]]]:
    """The same, and what cannot be read: the keys, and why."""
    found, spoiled = [], []
    for key, text in sorted(vm["other_config"].items()):
        if key.startswith(RESTORED):
            try:
                found.append(Swap(**marks.values_of(text)))
            except (TypeError, ValueError) as error:
                spoiled.append((key, str(error)))
    return [swap for swap in found if swap.vm == vm["uuid"]], spoiled


def write(locked: LockedVm, swap: Swap) -> None:
    """Raises Refused for a journal of this VM that says otherwise."""
    key, text = RESTORED + swap.userdevice, marks.text_of(swap._asdict())
    record = locked.read()
    verify_journal(record, [swap])
    if record["other_config"].get(key) != text:
        if key in record["other_config"]:  # of the VM that it was copied from
            locked.call("VM.remove_from_other_config", key)
        with passing("MAP_DUPLICATE_KEY"):  # the call was made twice, as its answer was lost
            locked.call("VM.add_to_other_config", key, text)


def verify_journal(record: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where the journal is that of another restore."""
    journal = journal_of(record)
    there, copies = {swap.userdevice: swap for swap in journal}, {swap.sr for swap in journal}
    if any(there.get(swap.userdevice, swap) != swap or copies - {swap.sr} for swap in swaps):
        raise Refused(
            f"The VM {record['name_label']!r} was restored by another run. Nothing was changed. Check its disks, "
            "then run `relvmoiscsi pool restore --undo` or `--home` first."
        )


def must_be_restored(record: Record) -> List[Swap]:
    """The journal of a VM; empty where a run was cut when it had ended that. Raises Refused for one that has none."""
    if not (_is_marked(record) or standstill.is_begun(record)):
        raise Refused(
            f"The VM {record['name_label']!r} was not restored from a copy: there is nothing to undo, move or keep."
        )
    return journal_of(record)


def must_be_marked(record: Record) -> None:
    """Raises Refused for a VM without any mark of a restore, readable or not."""
    if not read(record)[1]:
        must_be_restored(record)


def _is_marked(record: Record) -> bool:
    """Has the VM keys of its own, of whatever kind? Those that it was copied with name another VM."""
    rows = record["other_config"].items()
    return any(key.startswith(_KEYS) and record["uuid"] in text for key, text in rows)


def forget(locked: LockedVm, swaps: Sequence[Swap]) -> None:
    """Take away what this run has written of these disks. Raises Refused, PoolFailure."""
    record = locked.read()
    for key in [RESTORED + swap.userdevice for swap in swaps]:
        if key in record["other_config"]:
            locked.call("VM.remove_from_other_config", key)


def forget_all(locked: LockedVm) -> None:
    """End the journal, also what cannot be read, and what was copied with another VM. What has arrived is known to the
    last: a run that is cut here is done again, and names it. Raises Refused, PoolFailure.
    """
    keys = sorted(locked.read()["other_config"])
    for key in [key for begin in _KEYS for key in keys if key.startswith(begin)]:
        locked.call("VM.remove_from_other_config", key)


def is_leaving(record: Record, swap: Swap) -> bool:
    """Have we begun to send this disk home?"""
    return bool(record["other_config"].get(LEAVING + swap.userdevice) == _way(record, swap))


def arrived_as(record: Record, swap: Swap) -> str:
    """The UUID as which this disk is known to have come home, "" for one of which that is not known."""
    values = _values(record, ARRIVED + swap.userdevice)
    arrived = str(values.get("arrived", ""))
    return arrived if marks.text_of(values) == _way(record, swap, arrived) else ""


def all_arrived(record: Record) -> List[str]:
    """The UUIDs as which disks of this VM have come home, whatever else the journal still says of them."""
    found = [_values(record, key) for key in sorted(record["other_config"]) if key.startswith(ARRIVED)]
    return [str(values["arrived"]) for values in found if values.get("vm") == record["uuid"] and "arrived" in values]


def _values(record: Record, key: str) -> Dict[str, Any]:
    """What a key holds; nothing where it is not there, or somebody has spoiled it."""
    try:
        return marks.values_of(record["other_config"].get(key, "{}"))
    except ValueError:
        return {}


def _way(record: Record, swap: Swap, arrived: str = "") -> str:
    """What is noted of a disk on its way home, or when it has come."""
    end = {"arrived": arrived} if arrived else {}
    return marks.text_of({"vm": record["uuid"], "new": swap.new, **end})


def write_leaving(locked: LockedVm, record: Record, swap: Swap) -> None:
    _put(locked, record, LEAVING + swap.userdevice, _way(record, swap))


def write_arrived(locked: LockedVm, record: Record, swap: Swap, uuid: str) -> None:
    _put(locked, record, ARRIVED + swap.userdevice, _way(record, swap, uuid))


def _put(locked: LockedVm, record: Record, key: str, text: str) -> None:
    if record["other_config"].get(key) != text:
        locked.call("VM.remove_from_other_config", key)
        locked.call("VM.add_to_other_config", key, text)


def is_home(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> bool:
    """Is what the VM has there what its disk of the copy became, by a migration that we have begun?

    It has a new UUID, and the journal has that as well where the run that has moved it was not cut at that very moment.
    Otherwise: the journal says that it was leaving, it is where it was to go, and the one on the copy is gone.
    """
    arrived = arrived_as(record, swap)
    if arrived:
        return device.vdi == arrived
    return (
        is_leaving(record, swap)
        and device.vdi not in ("", NULL, swap.old, swap.new)
        and device.sr == swap.home
        and devices.find(calls, swap.new) is None
    )


def verify_not_between(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> None:
    """Raises Refused where the disk may have come home although its source is still there.

    xapi points the VM to the new VDI, then destroys the old one, and answers with an error where it cannot.
    Source: xen-api ocaml/xapi/xapi_vm_migrate.ml.
    """
    if not is_leaving(record, swap) or device.vdi in ("", NULL, swap.old, swap.new) or device.sr != swap.home:
        return
    if arrived_as(record, swap) not in ("", device.vdi) or devices.users_of(calls, swap.new, ""):
        return
    raise Refused(
        f"The pool was moving the VDI {swap.new}, the disk {swap.userdevice} of the VM {record['name_label']!r}, home. "
        f"The VM has the VDI {device.vdi} there now. The source of the move is still on the copy, without a VM. "
        f"Check that {device.vdi} has the latest data of the VM. If so, destroy {swap.new} (`xe vdi-destroy`) and "
        f"repeat the command. `relvmoiscsi pool restore --keep {record['uuid']}` leaves all as it is."
    )


def disks(calls: Calls, vm: str, swaps: Sequence[Swap]) -> Dict[str, devices.Device]:
    """What the VM has at each of these devices now. Raises PoolFailure."""
    return {swap.userdevice: devices.read(calls, vm, swap.userdevice) for swap in swaps}
