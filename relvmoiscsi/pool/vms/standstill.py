# SPDX-License-Identifier: LGPL-2.1-only
"""A VM that nobody may start: neither a person nor HA, while some of its disks are those of another day.

A run that is killed leaves it so, and what xapi then answers to a start names the command that ends it.
"""

from typing import List

from relvmoiscsi.pool.calls import Calls, PoolFailure, Record

_OPERATIONS = ("start", "start_on", "resume")
_REASON = "relvmoiscsi has swapped some of the disks of this VM:"

#: key of VM.other_config: whose, and the restart priority that HA is to have again
_HA = "relvmoiscsi:restore-ha"


def begin(calls: Calls, vm: str, record: Record) -> None:
    """Raises PoolFailure. What somebody else has blocked stays his."""
    uuid = record["uuid"]
    priority = str(record["ha_restart_priority"])
    if priority:
        key = record["other_config"].get(_HA)
        if key is not None:  # of the VM that it was copied from
            calls.call("VM.remove_from_other_config", vm, _HA)
        _add(calls, vm, "other_config", _HA, f"{uuid} {priority}")
        calls.call("VM.set_ha_restart_priority", vm, "")  # takes more rights than the rest, so it comes first
    for operation in _OPERATIONS:
        if operation not in record["blocked_operations"]:
            text = f"{_REASON} `relvmoiscsi pool restore --undo {uuid}`, or the same restore again, ends it."
            _add(calls, vm, "blocked_operations", operation, text)


def end(calls: Calls, vm: str) -> None:
    """As it was before `begin`; harmless where nothing is to be done. Raises PoolFailure."""
    record = calls.call("VM.get_record", vm)
    whose, _, priority = record["other_config"].get(_HA, "").partition(" ")
    for operation in ours(record):
        calls.call("VM.remove_from_blocked_operations", vm, operation)
    if whose == record["uuid"]:
        if not record["ha_restart_priority"]:
            calls.call("VM.set_ha_restart_priority", vm, priority)
        calls.call("VM.remove_from_other_config", vm, _HA)


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


def _add(calls: Calls, vm: str, field: str, key: str, text: str) -> None:
    try:
        calls.call(f"VM.add_to_{field}", vm, key, text)
    except PoolFailure as failure:
        if failure.code != "MAP_DUPLICATE_KEY":
            raise
