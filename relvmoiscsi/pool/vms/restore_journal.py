# SPDX-License-Identifier: LGPL-2.1-only
"""Write the journal of a restore in the VM's record, and the block of the VM's start.

For each disk, VM.other_config has a journal key with the old VDI, the new VDI, and the settings of the VBD. A run
writes all keys before the first disk is touched, and removes the keys at the end. A second key (LEAVING) notes that a
run began to move the disk to the SR of the old disk. A third key (ARRIVED) notes the UUID of the moved VDI.

Between two swaps the VM has disks of two dates. VM.blocked_operations then stops a start by a person, and an empty
restart priority stops a start by HA. A killed run leaves both settings in place. xapi's error to a start names the
command that ends the restore.
"""

from contextlib import contextmanager
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Sequence

from relvmoiscsi.errors import NOTHING_CHANGED, Refused
from relvmoiscsi.pool import lock, lock_keys, marks
from relvmoiscsi.pool.calls import Calls, Record, passing, role_advice
from relvmoiscsi.pool.vms import lineage, run_states, vbds
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.restore_entries import (
    ARRIVED,
    KEYS,
    LEAVING,
    RESTORED,
    Swap,
    arrived_as,
    devices_of,
    journal_of,
    keys_of,
    read,
)
from relvmoiscsi.pool.vms.vbds import VmNow
from relvmoiscsi.wording import said

#: key of the pool's other_config, with the UUID of a VM: the restart priority to restore. A vm-admin may not set a
#: priority, and may write each key of a VM. So the value is where only a pool-operator writes.
_PRIORITY = "relvmoiscsi:restore-ha:"

#: keys that a run removes from one look at its lock to the next: a vm-admin may write any number
_AT_ONCE = 30

_OPERATIONS = ("start", "start_on", "resume")
_REASON = "relvmoiscsi has swapped some of the disks of this VM:"


class LockedVm:
    """A VM that this run has locked, together with the copies of its disks."""

    def __init__(self, calls: Calls, vm: str, held: lock.Held, swaps: Iterable[Swap]) -> None:
        self.calls, self.vm, self.held, self._swaps = calls, vm, held, swaps
        self.first = vbds.read(calls, vm, swaps)  #: the VM as the lock has found it
        #: an earlier run was interrupted during its swaps, and a call of that run may still work. A run writes the
        #: journal before it blocks the start, and a vm-admin may forge the block
        self.is_after_a_cut = is_begun(self.first) and bool(devices_of(self.first.record))

    def read(self) -> Record:
        """Return the VM's record. Raises Refused where another client has broken the lock; PoolFailure."""
        self.held.verify(self.calls)
        record: Record = self.calls.call("VM.get_record", self.vm)
        return record

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method with the VM as its first argument. Raises the errors of `read`."""
        self.held.verify(self.calls)
        self.calls.call(method, self.vm, *arguments)

    def now(self) -> VmNow:
        """Return the VM and what a step needs to know of it, as they are now. Raises the errors of `read`."""
        self.held.verify(self.calls)
        return vbds.read(self.calls, self.vm, self._swaps)


@contextmanager
def locked(
    calls: Calls, vm: str, record: Record, swaps: Sequence[Swap], doing: str, state: ContextManager[None]
) -> Iterator[LockedVm]:
    """Lock a VM (its reference) and the copies of these disks for the block, which runs in `state`.

    Raises Refused where another client has one of the locks; PoolFailure.
    """
    with lock.held(calls, _locks(calls, record, swaps), doing) as mine, state:
        yield LockedVm(calls, vm, mine, swaps)


def verify_free(calls: Calls, record: Record, swaps: Iterable[Swap]) -> None:
    """Raises Refused where `locked` would be refused now; PoolFailure."""
    lock.verify_free(calls, _locks(calls, record, swaps))


def _locks(calls: Calls, record: Record, swaps: Iterable[Swap]) -> List[lock_keys.LockName]:
    return [*lock.names_of(calls, {swap.sr for swap in swaps}), lock_keys.name_for(record["uuid"])]


# --- the journal


def is_restored(vm: Record) -> bool:
    """Does the VM have keys of its own, or unreadable keys, or a block of its start?

    Keys from the VM's original name that other VM. `discard` refuses the copy in an unreadable key, so such a key can
    be removed, too.
    """
    is_own = any(vm["uuid"] in vm["other_config"][key] for key in keys_of(vm, *KEYS))
    return is_own or bool(_blocked(vm)) or bool(read(vm)[1])


def has_an_end(now: VmNow) -> bool:
    """Has a restore of the VM something to end: what `is_restored` says, or a restart priority to set again?"""
    return is_restored(now.record) or is_begun(now)


def must_have_an_end(now: VmNow) -> None:
    """Raises Refused where the restore that this run ends has an end already, since the run read the VM."""
    if not has_an_end(now):
        raise (
            Refused(f"Another client has just ended the restore of the VM {now.record['name_label']!r}.")
            .in_state(NOTHING_CHANGED)
            .advising("Repeat the command.")
        )


def verify_journal(vm: Record, swaps: Sequence[Swap]) -> None:
    """Raises Refused where the journal belongs to another restore, or two disks would become one.

    A vm-admin may write an entry of a second device: a run would stop at that device, after the first one was swapped.
    """
    journal = journal_of(vm)
    there, copies = {swap.userdevice: swap for swap in journal}, {swap.sr for swap in journal}
    if any(there.get(swap.userdevice, swap) != swap or copies - {swap.sr} for swap in swaps):
        raise Refused(f"The VM {vm['name_label']!r} was restored by another run.").advising("Check its disks.")
    first: Dict[str, str] = {}  #: devices by the UUIDs of VDIs
    both = {**there, **{swap.userdevice: swap for swap in swaps}}.values()
    for device, uuid in [(swap.userdevice, uuid) for swap in both for uuid in (swap.old, swap.new)]:
        same = first.setdefault(uuid, device)
        if same != device:
            refused = Refused(
                f"Two disks of the VM {vm['name_label']!r} are one VDI in its restore, {uuid}: {same} and {device}."
            )
            raise refused if journal else refused.advising("Remove the disk from one of these devices.")


def write(vm: LockedVm, swap: Swap) -> None:
    """Write the journal of a disk. Raises Refused where the VM has another journal."""
    record = vm.read()
    verify_journal(record, [swap])
    _put(vm, record, RESTORED + swap.userdevice, marks.text_of(swap._asdict()))


def _put(vm: LockedVm, record: Record, key: str, text: str) -> None:
    there = record["other_config"].get(key)
    if there != text:
        if there is not None:  # the key came from the VM's original
            vm.call("VM.remove_from_other_config", key)
        with passing("MAP_DUPLICATE_KEY"):  # the connection lost the first answer, and repeated the call
            vm.call("VM.add_to_other_config", key, text)


def forget(vm: LockedVm, swaps: Sequence[Swap]) -> None:
    """Remove the journal of these disks. Raises Refused, PoolFailure."""
    there = vm.read()["other_config"]
    for key in [RESTORED + swap.userdevice for swap in swaps]:
        if key in there:  # a user without the right to write the key has no right to remove the key
            vm.call("VM.remove_from_other_config", key)


def forget_all(vm: LockedVm) -> None:
    """Remove all restore keys, also unreadable keys and keys from the VM's original. Raises Refused, PoolFailure.

    ARRIVED keys go last: after an interruption, the next run still knows the moved VDIs.
    """
    for number, key in enumerate(keys_of(vm.read(), *KEYS)):
        if number % _AT_ONCE == 0:
            vm.held.verify(vm.calls)
        vm.calls.call("VM.remove_from_other_config", vm.vm, key)


# --- on the way home


def write_leaving(vm: LockedVm, record: Record, swap: Swap) -> None:
    """Note that a run is about to move the disk home."""
    _put(vm, record, LEAVING + swap.userdevice, _way(record, swap))
    vm.call("VM.remove_from_other_config", ARRIVED + swap.userdevice)


def write_arrived(vm: LockedVm, now: VmNow, swap: Swap) -> None:
    """Note the moved VDI of this disk in the VDI itself, which outlives the journal, and in the journal."""
    mark(vm, now, swap)
    record = vm.read()
    _put(vm, record, ARRIVED + swap.userdevice, _way(record, swap, arrived=now.device(swap.userdevice).vdi))


def mark(vm: LockedVm, now: VmNow, swap: Swap) -> None:
    """Mark the VDI at the device of this entry as the disk of the entry. Raises Refused, PoolFailure."""
    vm.held.verify(vm.calls)
    before = now.find(swap.old)
    older = [] if before is None else lineage.earlier(now.found.vdis[before])
    lineage.write(vm.calls, now.device(swap.userdevice).vdi_ref, [swap.old, swap.of, *older])


def _way(record: Record, swap: Swap, **more: str) -> str:
    return marks.text_of({"vm": record["uuid"], "new": swap.new, **more})


def is_leaving(record: Record, swap: Swap) -> bool:
    """Has a run begun to move this disk home?"""
    return bool(record["other_config"].get(LEAVING + swap.userdevice) == _way(record, swap))


def is_home(now: VmNow, swap: Swap) -> bool:
    """Does the device of the swap have the VDI to which a run has moved the disk of the copy?

    The moved VDI has a new UUID. The journal names this UUID, unless the run was interrupted right after the move. Then
    three conditions must hold:

    - a run began to move the disk
    - the device has another VDI, on the SR of the old disk
    - the VDI on the copy is gone
    """
    arrived = arrived_as(now.record, swap)
    if arrived:
        return now.device(swap.userdevice).vdi == arrived
    return may_be_home(now, swap) and now.find(swap.new) is None


def may_be_home(now: VmNow, swap: Swap) -> bool:
    """Is another VDI at the device, which the run that began to move this disk may have put there?"""
    device = now.device(swap.userdevice)
    is_other = device.vdi not in ("", NULL, swap.old, swap.new)
    return is_leaving(now.record, swap) and is_other and device.sr == swap.home


# --- nobody starts the VM


def block_start(vm: LockedVm, record: Record) -> None:
    """Block the start of the VM. Blocks of other clients stay unchanged. Raises Refused, PoolFailure.

    The block, or the key of the pool, is there from before the priority is emptied until after it is set again. So
    `is_begun` tells a run that was interrupted meanwhile.
    """
    uuid, priority = record["uuid"], str(record["ha_restart_priority"])
    if priority:  # needs more rights than the other calls, so these calls are the first
        ref, pool = vm.calls.pool()
        config, key = pool["other_config"], _PRIORITY + uuid
        if config.get(key) != priority:
            vm.held.verify(vm.calls)
            if key in config:  # of a restore whose VM was deleted
                vm.calls.call("pool.remove_from_other_config", ref, key)
            marks.add(vm.calls, "pool", ref, key, priority)
    for operation in _OPERATIONS:
        if operation not in record["blocked_operations"]:
            text = f"{_REASON} {run_states.restore_command('undo', uuid)}, or the same restore again, ends it."
            with passing("MAP_DUPLICATE_KEY"):
                vm.call("VM.add_to_blocked_operations", operation, text)
    if priority:
        vm.call("VM.set_ha_restart_priority", "")


def allow_start(vm: LockedVm) -> None:
    """Undo `block_start`; do nothing without a block or a key. Raises Refused, PoolFailure.

    A vm-admin may remove the block. The key of the pool alone tells of a priority.
    """
    record = vm.read()
    ref, pool = vm.calls.pool()
    config, key = pool["other_config"], _PRIORITY + record["uuid"]
    if key in config and not record["ha_restart_priority"]:
        vm.call("VM.set_ha_restart_priority", config[key])
    if key in config:
        vm.calls.call("pool.remove_from_other_config", ref, key)
    for operation in _blocked(record):
        vm.call("VM.remove_from_blocked_operations", operation)


def _blocked(record: Record) -> List[str]:
    """Return the operations of a VM that a run has blocked."""
    return [each for each in _OPERATIONS if record["blocked_operations"].get(each, "").startswith(_REASON)]


def is_start_blocked(record: Record) -> bool:
    """Is the start blocked, by a run or by another client?"""
    return all(operation in record["blocked_operations"] for operation in _OPERATIONS)


def start_block(record: Record) -> str:
    """Return the sentence on the block of a VM's start by a user; "" without one. A run removes its own block."""
    if "start" not in record["blocked_operations"] or "start" in _blocked(record):
        return ""
    return (
        f"A user has blocked the start of the VM: {said(record['blocked_operations']['start'])}. Ask that user before "
        f"you remove the block: {vbds.unblock_command(record, 'start')}."
    )


def is_begun(now: VmNow) -> bool:
    """Has a run begun to swap disks of this VM, and not ended? A vm-admin may remove the block, and not the key."""
    return bool(_blocked(now.record)) or _has_priority(now)


def _has_priority(now: VmNow) -> bool:
    """Does the pool have a restart priority that is to be set again?"""
    return _PRIORITY + now.record["uuid"] in now.pool.other_config


def verify_may_end(calls: Calls, now: VmNow, swaps: bool) -> None:
    """Raises PoolFailure, or Refused, where the role of this user may not do what a run does to the VM.

    A run that `swaps` disks empties the restart priority, and each run sets the one that an interrupted run has left.
    """
    calls.verify_may_call("VBD.create" if swaps else "VM.remove_from_other_config")
    record, is_left = now.record, _has_priority(now)
    if not (is_left or (swaps and record["ha_restart_priority"])) or calls.may_call("VM.set_ha_restart_priority"):
        return
    name = record["name_label"]
    what = f"HA restarts the VM {name!r}, and the start must be impossible during the swap."
    if is_left:
        what = f"An interrupted restore has left the HA restart priority of the VM {name!r} in a key of the pool."
    raise Refused(f"{what} The role of this user may not set the priority.").advising(
        role_advice("VM.set_ha_restart_priority")
    )
