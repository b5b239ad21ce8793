# SPDX-License-Identifier: LGPL-2.1-only
"""A VM that nobody may start: neither a person nor HA, while some of its disks are those of another day.

A run that is killed leaves it so, and what xapi then answers to a start names the command that ends it.
"""

from typing import List

from relvmoiscsi.pool.calls import Record, passing
from relvmoiscsi.pool.vms.owner import Turn

_OPERATIONS = ("start", "start_on", "resume")
_REASON = "relvmoiscsi has swapped some of the disks of this VM:"

#: key of VM.other_config: whose, and the restart priority that HA is to have again
_HA = "relvmoiscsi:restore-ha"


def begin(turn: Turn, record: Record) -> None:
    """Raises Refused, PoolFailure. What somebody else has blocked stays his."""
    uuid = record["uuid"]
    priority = str(record["ha_restart_priority"])
    if priority:
        key = record["other_config"].get(_HA)
        if key is not None:  # of the VM that it was copied from
            turn.call("VM.remove_from_other_config", _HA)
        _add(turn, "VM.add_to_other_config", _HA, f"{uuid} {priority}")
        turn.call("VM.set_ha_restart_priority", "")  # takes more rights than the rest, so it comes first
    for operation in _OPERATIONS:
        if operation not in record["blocked_operations"]:
            text = f"{_REASON} `relvmoiscsi pool restore --undo {uuid}`, or the same restore again, ends it."
            _add(turn, "VM.add_to_blocked_operations", operation, text)


def end(turn: Turn) -> None:
    """As it was before `begin`; harmless where nothing is to be done. Raises Refused, PoolFailure."""
    record = turn.read()
    whose, _, priority = record["other_config"].get(_HA, "").partition(" ")
    for operation in ours(record):
        turn.call("VM.remove_from_blocked_operations", operation)
    if whose == record["uuid"]:
        if not record["ha_restart_priority"]:
            turn.call("VM.set_ha_restart_priority", priority)
        turn.call("VM.remove_from_other_config", _HA)


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


def _add(turn: Turn, method: str, key: str, text: str) -> None:
    with passing("MAP_DUPLICATE_KEY"):
        turn.call(method, key, text)
