# SPDX-License-Identifier: LGPL-2.1-only
"""A VM that this run has locked, and that nobody may start: neither a person nor HA, while some of its disks are those
of another day.

A run that is killed leaves the VM so, and what xapi then answers to a start names the command that ends it.
"""

from contextlib import contextmanager
from typing import Any, Iterable, Iterator, List, NamedTuple

from relvmoiscsi.pool import lock
from relvmoiscsi.pool.calls import Calls, Record, passing

_OPERATIONS = ("start", "start_on", "resume")
_REASON = "relvmoiscsi has swapped some of the disks of this VM:"

#: key of VM.other_config: whose, and the restart priority that HA is to have again
_HA = "relvmoiscsi:restore-ha"


class LockedVm(NamedTuple):
    """A VM and a copy on which this run alone works."""

    calls: Calls
    vm: str  #: reference
    held: lock.Held
    is_after_a_cut: bool  #: a run was cut while it swapped disks: a call of that run may still be under way

    def read(self) -> Record:
        """The VM's record. Raises Refused where somebody has broken the lock; PoolFailure."""
        self.held.verify(self.calls)
        record: Record = self.calls.call("VM.get_record", self.vm)
        return record

    def call(self, method: str, *arguments: Any) -> Any:
        """A call on the VM, of which this is the first argument. Raises as `read`."""
        self.held.verify(self.calls)
        return self.calls.call(method, self.vm, *arguments)


@contextmanager
def locked(calls: Calls, vm: str, copies: Iterable[str], doing: str) -> Iterator[LockedVm]:
    """A VM (its reference) and copies (UUIDs of SRs), locked for as long as the block lasts. Raises Refused where
    another client works on one of them; PoolFailure.
    """
    with lock.held(calls, names(calls, vm, copies), doing) as mine:
        yield LockedVm(calls, vm, mine, is_begun(calls.call("VM.get_record", vm)))


def names(calls: Calls, vm: str, copies: Iterable[str]) -> List[str]:
    """What is locked for a VM and copies. Raises PoolFailure."""
    return [*lock.names_of(calls, copies), str(calls.call("VM.get_record", vm)["uuid"])]


def begin(vm: LockedVm, record: Record) -> None:
    """Raises Refused, PoolFailure. What somebody else has blocked stays his."""
    uuid = record["uuid"]
    priority = str(record["ha_restart_priority"])
    if priority:
        key = record["other_config"].get(_HA)
        if key is not None:  # of the VM that it was copied from
            vm.call("VM.remove_from_other_config", _HA)
        _add(vm, "VM.add_to_other_config", _HA, f"{uuid} {priority}")
        vm.call("VM.set_ha_restart_priority", "")  # takes more rights than the rest, so it comes first
    for operation in _OPERATIONS:
        if operation not in record["blocked_operations"]:
            text = f"{_REASON} `relvmoiscsi pool restore --undo {uuid}`, or the same restore again, ends it."
            _add(vm, "VM.add_to_blocked_operations", operation, text)


def end(vm: LockedVm) -> None:
    """As it was before `begin`; harmless where nothing is to be done. Raises Refused, PoolFailure."""
    record = vm.read()
    whose, _, priority = record["other_config"].get(_HA, "").partition(" ")
    for operation in ours(record):
        vm.call("VM.remove_from_blocked_operations", operation)
    if whose == record["uuid"]:
        if not record["ha_restart_priority"]:
            vm.call("VM.set_ha_restart_priority", priority)
        vm.call("VM.remove_from_other_config", _HA)


def ours(record: Record) -> List[str]:
    """The operations of a VM that we have blocked."""
    blocked = record["blocked_operations"]
    return sorted(operation for operation in _OPERATIONS if str(blocked.get(operation, "")).startswith(_REASON))


def holds(record: Record) -> bool:
    """Is the VM blocked, by us or by somebody else?"""
    return all(operation in record["blocked_operations"] for operation in _OPERATIONS)


def is_begun(record: Record) -> bool:
    """Has a run begun and not ended, with this VM?"""
    return bool(ours(record)) or record["other_config"].get(_HA, "").startswith(record["uuid"])


def _add(vm: LockedVm, method: str, key: str, text: str) -> None:
    with passing("MAP_DUPLICATE_KEY"):
        vm.call(method, key, text)
