# SPDX-License-Identifier: LGPL-2.1-only
"""Whose turn it is with a VM: of several runs at once one works, and the others change nothing.

A turn is a key of VM.other_config that ends in a number; the highest number has it. xapi adds no key that is there, so
no two runs get the same number. A run that was killed leaves its key, and whoever finds one looks at the VM for a
while: a run that is alive changes the VM, or xapi is at something with it. Where nothing happens, he takes the next
number. No clocks are compared, and nothing has to be renewed.

The one that was passed over may be slow and not dead. It looks whose turn it is before each step; and of what it has
asked for just then nothing comes, as the one after it hangs each disk anew (swapping) and writes the journal under
other keys (restore_journal).
"""

import time
import uuid
from contextlib import contextmanager
from typing import Any, Dict, Iterator, NamedTuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError, in_state
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.vms import devices

#: begins a key of VM.other_config; its value is the VM's UUID, as keys are copied with a VM, and an id of the run
TURN = "relvmoiscsi:restore-run:"

#: a VM with which nothing happens for so long is no other run's any more
PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 1.0

#: what a run changes of a VM, sooner or later
_SIGNS = ("other_config", "blocked_operations", "VBDs", "power_state", "ha_restart_priority")

BEGUN = "Another run has begun with this VM and has not ended: if nothing happens in {:.0f} seconds, it was cut."


class Turn(NamedTuple):
    """The turn of this run."""

    calls: Calls
    vm: str
    number: int
    value: str
    is_after_a_cut: bool  #: another run had it and did not give it back: a call of its may still be under way

    def read(self) -> Record:
        """The VM's record. Raises Refused where it is another run's turn meanwhile; PoolFailure."""
        record: Record = self.calls.call("VM.get_record", self.vm)
        turns = turns_of(record)
        if turns.get(self.number) != self.value or max(turns) != self.number:
            raise _another(record)
        return record

    def call(self, method: str, *arguments: Any) -> Any:
        """A call on the VM, of which this is the first argument. Raises as `read`."""
        self.read()
        return self.calls.call(method, self.vm, *arguments)

    def give_back(self) -> None:
        """Raises Refused where it is another run's turn meanwhile; PoolFailure."""
        for number in sorted(turns_of(self.read())):
            self.calls.call("VM.remove_from_other_config", self.vm, f"{TURN}{number}")


def turns_of(record: Record) -> Dict[int, str]:
    """The turns with this VM, not with one that it was copied from, that were not given back."""
    return {number: value for number, value in _all(record).items() if value.startswith(record["uuid"])}


def _all(record: Record) -> Dict[int, str]:
    rows = {key[len(TURN) :]: value for key, value in record["other_config"].items() if key.startswith(TURN)}
    return {int(number): value for number, value in rows.items() if number.isdigit()}


@contextmanager
def turn(calls: Calls, vm: str) -> Iterator[Turn]:
    """The turn, for as long as the block lasts. Raises Refused where it is another run's; PoolFailure.

    It is not given back where the pool went away or a person has stopped the run: a call may still be under way.
    """
    mine = _take(calls, vm)
    try:
        yield mine
    except PoolGone:
        raise
    except RelvmoiscsiError:
        try:
            mine.give_back()
        except RelvmoiscsiError:
            pass  # the first error is the one to tell; the next run waits
        raise
    with in_state("All else was done; the same again finds it so."):
        mine.give_back()


def _take(calls: Calls, vm: str) -> Turn:
    record: Record = calls.call("VM.get_record", vm)
    left = turns_of(record)
    if left:
        _must_be_cut(calls, vm, record)
    number = max(_all(record), default=0) + 1
    mine = Turn(calls, vm, number, f"{record['uuid']} {uuid.uuid4()}", bool(left))
    try:
        calls.call("VM.add_to_other_config", vm, f"{TURN}{number}", mine.value)
    except PoolFailure as failure:
        if failure.code != "MAP_DUPLICATE_KEY":
            raise
        raise _another(record) from failure
    if turns_of(mine.read()) != {**left, number: mine.value}:  # another has ended what was cut, and a third has begun
        calls.call("VM.remove_from_other_config", vm, f"{TURN}{number}")
        raise _another(record)
    return mine


def _must_be_cut(calls: Calls, vm: str, before: Record) -> None:
    """Raises Refused as soon as something happens with the VM; PoolFailure."""
    now, end = before, time.monotonic() + PATIENCE_SECONDS
    while True:
        devices.must_be_idle(now)
        if [now[sign] for sign in _SIGNS] != [before[sign] for sign in _SIGNS]:
            raise _another(now)
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _LOOK_SECONDS))
        now = calls.call("VM.get_record", vm)


def _another(record: Record) -> Refused:
    return Refused(
        f"Another run works on the VM {record['name_label']!r} as well. Run the same again when that has ended."
    )
