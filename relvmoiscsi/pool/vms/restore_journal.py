# SPDX-License-Identifier: LGPL-2.1-only
"""What a VM itself says of its disks that are those of a copy, and that nobody may start the VM meanwhile.

VM.other_config has a journal key for each disk: which VDI the disk was, which VDI it becomes, how its VBD was. A run
writes all keys before it touches the first disk, and removes the keys at the end. Two further keys for a disk say that
the disk was sent to the SR of the VM's own disks, and as which VDI it has arrived there.

VM.blocked_operations and the restart priority of HA keep a person and HA from a start while some disks are those of
another day. A killed run leaves the VM so; what xapi then answers to a start names the command that ends that.
"""

from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused, in_state
from relvmoiscsi.pool import lock, marks
from relvmoiscsi.pool.calls import Calls, Record, passing
from relvmoiscsi.pool.vms import vbds
from relvmoiscsi.pool.vms.inventory import NULL

#: keys of VM.other_config, each ending in the device of a disk: the journal,
RESTORED = "relvmoiscsi:restore:"
#: the VDI of the copy was sent home,
LEAVING = "relvmoiscsi:restore-home:"
#: and has arrived as another VDI
ARRIVED = "relvmoiscsi:restore-arrived:"
_KEYS = (RESTORED, LEAVING, ARRIVED)  #: in the order in which they end
#: key of VM.other_config: UUID of the VM, and the restart priority that HA is to have again
_HA = "relvmoiscsi:restore-ha"

_OPERATIONS = ("start", "start_on", "resume")
_REASON = "relvmoiscsi has swapped some of the disks of this VM:"


class Swap(NamedTuple):
    """A disk of a VM, before and after: an entry of the journal."""

    vm: str  #: UUID
    userdevice: str
    old: str  #: UUID of the VDI
    new: str  #: UUID of the VDI
    old_name: str
    waiting_name: str  #: of the old VDI, while no VM has that VDI
    sr: str  #: UUID of the copy
    home: str  #: UUID of the SR of the old VDI
    vbd: Dict[str, Any]

    def facts(self) -> Dict[str, str]:
        return {"userdevice": self.userdevice, "old": self.old, "new": self.new}


class LockedVm(NamedTuple):
    """A VM and its copy on which this run alone works."""

    calls: Calls
    vm: str  #: reference
    held: lock.Held
    is_after_a_cut: bool  #: a run was cut while it swapped disks: a call of that run may still be under way

    def read(self) -> Record:
        """The VM's record. Raises Refused where another client has broken the lock; PoolFailure."""
        self.held.verify(self.calls)
        record: Record = self.calls.call("VM.get_record", self.vm)
        return record

    def call(self, method: str, *arguments: Any) -> None:
        """A call on the VM, of which the VM is the first argument. Raises as `read`."""
        self.held.verify(self.calls)
        self.calls.call(method, self.vm, *arguments)

    def device(self, swap: Swap) -> vbds.Device:
        """What the VM has at the device of this disk now."""
        return vbds.read(self.calls, self.vm, swap.userdevice)


@contextmanager
def locked(
    calls: Calls, vm: str, record: Record, swaps: Iterable[Swap], doing: str, left_behind: str
) -> Iterator[LockedVm]:
    """A VM (its reference) and the copies of these disks, locked as long as the block lasts. What ends the block early,
    an error or a person, says `left_behind`. Raises Refused where another client has one of the locks; PoolFailure.
    """
    with lock.held(calls, _locks(calls, record, swaps), doing) as mine, in_state(left_behind):
        yield LockedVm(calls, vm, mine, is_begun(calls.call("VM.get_record", vm)))


def verify_free(calls: Calls, record: Record, swaps: Iterable[Swap]) -> None:
    """Raises Refused where `locked` would be refused now; PoolFailure."""
    lock.verify_free(calls, _locks(calls, record, swaps))


def _locks(calls: Calls, record: Record, swaps: Iterable[Swap]) -> List[str]:
    return [*lock.names_of(calls, {swap.sr for swap in swaps}), str(record["uuid"])]


# --- the journal


def read(vm: Record) -> Tuple[List[Swap], List[Tuple[str, str]]]:
    """(the journal by device, the keys that cannot be read and why). A VM that was copied from a restored VM has the
    keys of that VM: they are left out.
    """
    found, spoiled = [], []
    for key, text in sorted(vm["other_config"].items()):
        if key.startswith(RESTORED):
            try:
                found.append(Swap(**marks.values_of(text)))
            except (TypeError, ValueError) as error:
                spoiled.append((key, str(error)))
    return [swap for swap in found if swap.vm == vm["uuid"]], spoiled


def journal_of(vm: Record) -> List[Swap]:
    """The journal by device. Raises Refused for a key that cannot be read."""
    swaps, spoiled = read(vm)
    for key, why in spoiled:
        raise Refused(
            f"{key} of the VM {vm['name_label']!r} cannot be read: {why}. `relvmoiscsi pool restore --keep "
            f"{vm['uuid']}` leaves the VM as it is and removes the journal."
        )
    return swaps


def is_restored(vm: Record) -> bool:
    """Has the VM keys of its own, or was a run on it cut? The keys that it was copied with name another VM."""
    rows = vm["other_config"].items()
    return is_begun(vm) or any(key.startswith(_KEYS) and vm["uuid"] in text for key, text in rows)


def must_be_restored(vm: Record) -> None:
    """Raises Refused for a VM without any key of a restore, readable or not."""
    if not (is_restored(vm) or read(vm)[1]):
        raise Refused(
            f"The VM {vm['name_label']!r} was not restored from a copy: there is nothing to undo, move or keep."
        )


def verify_journal(vm: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where the journal is that of another restore."""
    journal = journal_of(vm)
    there, copies = {swap.userdevice: swap for swap in journal}, {swap.sr for swap in journal}
    if any(there.get(swap.userdevice, swap) != swap or copies - {swap.sr} for swap in swaps):
        raise Refused(
            f"The VM {vm['name_label']!r} was restored by another run. Nothing was changed. Check its disks, "
            "then run `relvmoiscsi pool restore --undo` or `--home` first."
        )


def write(vm: LockedVm, swap: Swap) -> None:
    """Raises Refused for a journal of this VM that says otherwise."""
    record = vm.read()
    verify_journal(record, [swap])
    _put(vm, record, RESTORED + swap.userdevice, marks.text_of(swap._asdict()))


def _put(vm: LockedVm, record: Record, key: str, text: str) -> None:
    there = record["other_config"].get(key)
    if there != text:
        if there is not None:  # of the VM that it was copied from
            vm.call("VM.remove_from_other_config", key)
        with passing("MAP_DUPLICATE_KEY"):  # the call was made twice, as its answer was lost
            vm.call("VM.add_to_other_config", key, text)


def forget(vm: LockedVm, swaps: Sequence[Swap]) -> None:
    """Remove the journal of these disks. Raises Refused, PoolFailure."""
    there = vm.read()["other_config"]
    for key in [RESTORED + swap.userdevice for swap in swaps]:
        if key in there:  # a person who may not write the key may not remove the key
            vm.call("VM.remove_from_other_config", key)


def forget_all(vm: LockedVm) -> None:
    """End the journal, with keys that cannot be read or came with another VM. ARRIVED ends last: a run that is cut here
    is done again, and names the VDIs. Raises Refused, PoolFailure.
    """
    keys = sorted(vm.read()["other_config"])
    for key in [key for begin in _KEYS for key in keys if key.startswith(begin)]:
        vm.call("VM.remove_from_other_config", key)


# --- on the way home


def write_leaving(vm: LockedVm, record: Record, swap: Swap) -> None:
    """The disk is about to be sent home."""
    _put(vm, record, LEAVING + swap.userdevice, _way(record, swap))
    vm.call("VM.remove_from_other_config", ARRIVED + swap.userdevice)


def write_arrived(vm: LockedVm, record: Record, swap: Swap, uuid: str) -> None:
    _put(vm, record, ARRIVED + swap.userdevice, _way(record, swap, arrived=uuid))


def _way(record: Record, swap: Swap, **more: str) -> str:
    return marks.text_of({"vm": record["uuid"], "new": swap.new, **more})


def is_leaving(record: Record, swap: Swap) -> bool:
    """Has a run begun to send this disk home?"""
    return bool(record["other_config"].get(LEAVING + swap.userdevice) == _way(record, swap))


def arrived_as(record: Record, swap: Swap) -> str:
    """The UUID as which this disk has come home; "" where the journal does not say."""
    values = _values(record, ARRIVED + swap.userdevice)
    return str(values["arrived"]) if values.get("new") == swap.new else ""


def all_arrived(record: Record) -> List[str]:
    """The UUIDs as which disks of this VM have come home, whatever else the journal still says of the disks."""
    found = [_values(record, key) for key in sorted(record["other_config"]) if key.startswith(ARRIVED)]
    return [str(values["arrived"]) for values in found if values]


def _values(record: Record, key: str) -> Dict[str, Any]:
    """What a key of ARRIVED says; nothing for a key that is not there, cannot be read, or is another VM's."""
    try:
        values = marks.values_of(record["other_config"].get(key, "{}"))
    except ValueError:
        values = {}
    return values if values.get("vm") == record["uuid"] and "arrived" in values else {}


def is_home(calls: Calls, record: Record, swap: Swap, device: vbds.Device) -> bool:
    """Does the device have the VDI that the disk of the copy became, by a migration of a run?

    The VDI has a new UUID. The journal names that UUID, but for a run that was cut just then. Then all of this holds: a
    run has sent the disk home, the device has another VDI on that SR, and the VDI on the copy is gone.
    """
    arrived = arrived_as(record, swap)
    if arrived:
        return device.vdi == arrived
    return _may_be_home(record, swap, device) and vbds.find(calls, swap.new) is None


def _may_be_home(record: Record, swap: Swap, device: vbds.Device) -> bool:
    is_other = device.vdi not in ("", NULL, swap.old, swap.new)
    return is_leaving(record, swap) and is_other and device.sr == swap.home


def verify_not_between(calls: Calls, record: Record, swap: Swap, device: vbds.Device) -> None:
    """Raises Refused where the disk may have come home although its source is still there.

    xapi points the VM to the new VDI, then destroys the old VDI, and answers with an error where it cannot.
    Source: xen-api ocaml/xapi/xapi_vm_migrate.ml.
    """
    is_known = arrived_as(record, swap) not in ("", device.vdi)
    if not _may_be_home(record, swap, device) or is_known or vbds.users_of(calls, swap.new):
        return
    raise Refused(
        f"The pool was moving the VDI {swap.new}, the disk {swap.userdevice} of the VM {record['name_label']!r}, home. "
        f"The VM has the VDI {device.vdi} there now. The source of the move is still on the copy, without a VM. "
        f"Check that {device.vdi} has the latest data of the VM. If so, destroy {swap.new} (`xe vdi-destroy`) and "
        f"repeat the command. `relvmoiscsi pool restore --keep {record['uuid']}` leaves all as it is."
    )


# --- nobody starts the VM


def block_start(vm: LockedVm, record: Record) -> None:
    """Raises Refused, PoolFailure. What another client has blocked stays blocked by that client."""
    uuid, priority = record["uuid"], str(record["ha_restart_priority"])
    if priority:
        _put(vm, record, _HA, f"{uuid} {priority}")
        vm.call("VM.set_ha_restart_priority", "")  # takes more rights than the rest, so it comes first
    for operation in _OPERATIONS:
        if operation not in record["blocked_operations"]:
            text = f"{_REASON} `relvmoiscsi pool restore --undo {uuid}`, or the same restore again, ends it."
            with passing("MAP_DUPLICATE_KEY"):
                vm.call("VM.add_to_blocked_operations", operation, text)


def allow_start(vm: LockedVm) -> None:
    """As it was before `block_start`; harmless where nothing is to be done. Raises Refused, PoolFailure."""
    record = vm.read()
    for operation in _blocked(record):
        vm.call("VM.remove_from_blocked_operations", operation)
    whose, _, priority = record["other_config"].get(_HA, "").partition(" ")
    if whose == record["uuid"]:
        if not record["ha_restart_priority"]:
            vm.call("VM.set_ha_restart_priority", priority)
        vm.call("VM.remove_from_other_config", _HA)


def _blocked(record: Record) -> List[str]:
    """The operations of a VM that a run has blocked."""
    return [each for each in _OPERATIONS if record["blocked_operations"].get(each, "").startswith(_REASON)]


def is_start_blocked(record: Record) -> bool:
    """By a run or by another client."""
    return all(operation in record["blocked_operations"] for operation in _OPERATIONS)


def is_begun(record: Record) -> bool:
    """Has a run begun to swap disks of this VM, and not ended?"""
    return bool(_blocked(record)) or record["other_config"].get(_HA, "").startswith(record["uuid"])
