# SPDX-License-Identifier: LGPL-2.1-only
"""What a VM itself says of its disks that are those of a copy: its journal, a key of other_config for each disk.

Which VDI the disk was, which it becomes, how its VBD was: all of them are written before the first disk is touched, and
taken away at the end. Further keys say that a disk was sent home, and as what it has arrived there.
"""

import json
from typing import Any, Dict, List, NamedTuple, Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.vms import devices
from relvmoiscsi.pool.vms.inventory import NULL, RESTORED, is_restored

#: keys of VM.other_config: the disk at this device, a VDI of the copy, was sent home
LEAVING = "relvmoiscsi:restore-home:"
#: and has arrived, as another VDI
ARRIVED = "relvmoiscsi:restore-arrived:"


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
    found = []
    for key, text in sorted(vm["other_config"].items()):
        if key.startswith(RESTORED):
            try:
                found.append(Swap(**json.loads(text)))
            except (TypeError, ValueError) as error:
                raise Refused(f"{key} of the VM {vm['name_label']!r} cannot be read: {error}.") from error
    return [swap for swap in found if swap.vm == vm["uuid"]]


def write(calls: Calls, vm: str, swap: Swap) -> None:
    """Raises Refused for a journal of this VM that says otherwise."""
    text = json.dumps(swap._asdict(), sort_keys=True, separators=(",", ":"))
    key = RESTORED + swap.userdevice
    try:
        calls.call("VM.add_to_other_config", vm, key, text)
    except PoolFailure as failure:
        if failure.code != "MAP_DUPLICATE_KEY":
            raise
        record = calls.call("VM.get_record", vm)
        verify_journal(record, [swap])
        if swap not in journal_of(record):  # of the VM that it was copied from
            calls.call("VM.remove_from_other_config", vm, key)
            calls.call("VM.add_to_other_config", vm, key, text)


def verify_journal(record: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where the journal is that of another restore."""
    journal = journal_of(record)
    there, copies = {swap.userdevice: swap for swap in journal}, {swap.sr for swap in journal}
    if any(there.get(swap.userdevice, swap) != swap or copies - {swap.sr} for swap in swaps):
        raise Refused(
            f"The VM {record['name_label']!r} was restored meanwhile, by another run. Nothing was done; look at what "
            "it has now, and undo that (`relvmoiscsi pool restore --undo`) or take it home (`--home`) first."
        )


def must_be_restored(record: Record) -> List[Swap]:
    """The journal of a VM. Raises Refused for one that has none."""
    if not is_restored(record):
        raise Refused(f"The VM {record['name_label']!r} has no disks of a copy that `restore` has put there.")
    return journal_of(record)


def forget(calls: Calls, vm: str, swaps: Sequence[Swap]) -> None:
    for swap in swaps:
        for key in (RESTORED, LEAVING, ARRIVED):
            calls.call("VM.remove_from_other_config", vm, key + swap.userdevice)


def mark_of(record: Record, swap: Swap) -> str:
    return f"{record['uuid']} {swap.new}"


def is_home(calls: Calls, record: Record, swap: Swap, device: devices.Device) -> bool:
    """Is what the VM has there what its disk of the copy became, by a migration that we have begun?

    It has a new UUID; the journal says that it was leaving, it is where it was to go, and the one on the copy is gone.
    Where the run that has moved it was not cut at that very moment, the journal has the new UUID as well.
    """
    leaving, _, arrived = record["other_config"].get(ARRIVED + swap.userdevice, "").rpartition(" ")
    if leaving == mark_of(record, swap) and device.vdi != arrived:
        return False
    return (
        record["other_config"].get(LEAVING + swap.userdevice) == mark_of(record, swap)
        and device.vdi not in ("", NULL, swap.old, swap.new)
        and device.sr == swap.home
        and devices.find(calls, swap.new) is None
    )


def disks(calls: Calls, vm: str, swaps: Sequence[Swap]) -> Dict[str, devices.Device]:
    """What the VM has at each of these devices now. Raises PoolFailure."""
    return {swap.userdevice: devices.read(calls, vm, swap.userdevice) for swap in swaps}
