# SPDX-License-Identifier: LGPL-2.1-only
"""What a VM itself says of its disks that are those of a copy: its journal, a key of other_config for each disk.

Which VDI the disk was, which it becomes, how its VBD was: all of them are written before the first disk is touched, and
taken away at the end. Further keys say that a disk was sent home, and as what it has arrived there.
"""

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.vms import devices, owner, standstill
from relvmoiscsi.pool.vms.inventory import NULL, RESTORED, is_restored
from relvmoiscsi.pool.vms.owner import Turn

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
    swaps, spoiled = read(vm)
    for key, why in spoiled:
        raise Refused(
            f"{key} of the VM {vm['name_label']!r} cannot be read: {why}. `relvmoiscsi pool restore --keep "
            f"{vm['uuid']}` leaves the VM as it is and takes the journal away."
        )
    return swaps


def read(vm: Record) -> Tuple[List[Swap], List[Tuple[str, str]]]:
    """The same, and what cannot be read: the keys, and why."""
    found, spoiled = [], []
    for key, text in sorted(vm["other_config"].items()):
        if key.startswith(RESTORED):
            try:
                found.append(Swap(**json.loads(text)))
            except (TypeError, ValueError) as error:
                spoiled.append((key, str(error)))
    own = {swap.userdevice: swap for swap in found if swap.vm == vm["uuid"]}  # for a moment one may have two keys
    return list(own.values()), spoiled


def write(turn: Turn, swap: Swap) -> None:
    """Raises Refused for a journal of this VM that says otherwise.

    Where the run before was cut, under a key that this one alone has: the other may be about to take the one away that
    it knows.
    """
    text = json.dumps(swap._asdict(), sort_keys=True, separators=(",", ":"))
    key = RESTORED + swap.userdevice + (f":{turn.number}" if turn.is_after_a_cut else "")
    record = turn.read()
    verify_journal(record, [swap])
    if record["other_config"].get(key) != text:
        if key in record["other_config"]:  # of the VM that it was copied from
            turn.call("VM.remove_from_other_config", key)
        try:
            turn.call("VM.add_to_other_config", key, text)
        except PoolFailure as failure:
            if failure.code != "MAP_DUPLICATE_KEY":
                raise
            verify_journal(turn.read(), [swap])
    for other in _keys_of(record, swap):
        if other != key:
            turn.call("VM.remove_from_other_config", other)


def _keys_of(record: Record, swap: Swap) -> List[str]:
    """The keys of a disk, of whatever run and whatever VM."""
    key = RESTORED + swap.userdevice
    return sorted(each for each in record["other_config"] if each == key or each.startswith(key + ":"))


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
    """The journal of a VM; empty where a run was cut when it had ended that. Raises Refused for one that has none."""
    if not (is_restored(record) or standstill.is_begun(record) or owner.turns_of(record)):
        raise Refused(f"The VM {record['name_label']!r} has no disks of a copy that `restore` has put there.")
    return journal_of(record)


def must_be_marked(record: Record) -> None:
    """Raises Refused for a VM without any mark of a restore, readable or not."""
    if not read(record)[1]:
        must_be_restored(record)


def forget(turn: Turn, swaps: Sequence[Swap]) -> None:
    """What has arrived is known to the last: a run that is cut here is done again, and names it."""
    record = turn.read()
    keys = [key for swap in swaps for key in _keys_of(record, swap)]
    keys += [begin + swap.userdevice for begin in (LEAVING, ARRIVED) for swap in swaps]
    for key in keys:
        if key in record["other_config"]:
            turn.call("VM.remove_from_other_config", key)


def forget_all(turn: Turn) -> None:
    """Also what cannot be read, and what was copied with another VM. Raises Refused, PoolFailure."""
    for key in sorted(turn.read()["other_config"]):
        if key.startswith((RESTORED, LEAVING, ARRIVED)):
            turn.call("VM.remove_from_other_config", key)


def mark_of(record: Record, swap: Swap) -> str:
    return f"{record['uuid']} {swap.new}"


def is_leaving(record: Record, swap: Swap) -> bool:
    """Have we begun to send this disk home?"""
    return bool(record["other_config"].get(LEAVING + swap.userdevice) == mark_of(record, swap))


def arrived_as(record: Record, swap: Swap) -> str:
    """The UUID as which this disk is known to have come home, "" for one of which that is not known."""
    leaving, _, arrived = str(record["other_config"].get(ARRIVED + swap.userdevice, "")).rpartition(" ")
    return arrived if leaving == mark_of(record, swap) else ""


def all_arrived(record: Record) -> List[str]:
    """The UUIDs as which disks of this VM have come home, whatever else the journal still says of them."""
    found = [text.split() for key, text in sorted(record["other_config"].items()) if key.startswith(ARRIVED)]
    return [words[2] for words in found if len(words) == 3 and words[0] == record["uuid"]]


def write_leaving(turn: Turn, record: Record, swap: Swap) -> None:
    _put(turn, record, LEAVING + swap.userdevice, mark_of(record, swap))


def write_arrived(turn: Turn, record: Record, swap: Swap, uuid: str) -> None:
    _put(turn, record, ARRIVED + swap.userdevice, f"{mark_of(record, swap)} {uuid}")


def _put(turn: Turn, record: Record, key: str, text: str) -> None:
    if record["other_config"].get(key) != text:
        turn.call("VM.remove_from_other_config", key)
        turn.call("VM.add_to_other_config", key, text)


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
        f"The VM has the VDI {device.vdi} there now, and the one that was moved is still on the copy, on no VM; "
        f"if {device.vdi} has what the VM has written, destroy {swap.new} (`xe vdi-destroy`), which is of before, and "
        f"run the same again; `relvmoiscsi pool restore --keep {record['uuid']}` leaves all as it is."
    )


def disks(calls: Calls, vm: str, swaps: Sequence[Swap]) -> Dict[str, devices.Device]:
    """What the VM has at each of these devices now. Raises PoolFailure."""
    return {swap.userdevice: devices.read(calls, vm, swap.userdevice) for swap in swaps}
