# SPDX-License-Identifier: LGPL-2.1-only
"""What restore and undo have in common: a VM that stands still, its disks swapped one by one, a last look at all.

Where the run before was cut, each disk is hung anew, also one that is right: a VBD.destroy that was under way then has
no VBD any more, and a VBD.create finds one at the device.
"""

import shlex
from contextlib import contextmanager
from typing import Callable, Iterator, List, Mapping, Sequence, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError, in_state
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.vms import devices, restore_journal, standstill
from relvmoiscsi.pool.vms.restore_journal import Swap
from relvmoiscsi.pool.vms.standstill import LockedVm

AS_IT_WAS = "Nothing was changed."
NAME_SECONDS = 30.0  #: for one name to be written to the LUN of an SR
_DOWN = "The VM was shut down for this run; nothing else was changed."


def cut_sentence(record: Record) -> str:
    """What a VM is like whose disks are being swapped, and what ends it."""
    return (
        f"Some disks of the VM {record['name_label']!r} may be swapped and others not, and its start is blocked. "
        f"Repeat the command, or run `relvmoiscsi pool restore --undo {record['uuid']}`."
    )


@contextmanager
def told(sentence: str) -> Iterator[None]:
    """Whatever ends the block, an error or a person, says in what state that leaves the VM."""
    with in_state(sentence):
        try:
            yield
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*(stop.args or (sentence,))) from stop


def verify_can_be_halted(record: Record, shutdown: bool) -> None:
    """Raises Refused."""
    state = record["power_state"]
    if state != "Halted" and (state != "Running" or not shutdown):
        more = " Add --shutdown." if state == "Running" else " Its memory would not match its disks: shut the VM down."
        raise Refused(f"The VM {record['name_label']!r} is not halted but {state.lower()}.{more}")


def stand_still(locked: LockedVm, journal: Sequence[Swap], look: Callable[[Record], object], shutdown: bool) -> None:
    """Write the journal, let nobody start the VM, shut it down, and look again: `look` is given its record.

    Raises Refused, PoolFailure. Then all is as it was, but that it may be down; unless an earlier run had begun.
    """
    calls, vm, record = locked.calls, locked.vm, locked.read()
    there = restore_journal.journal_of(record)
    written = [swap for swap in journal if swap not in there]
    was_begun, was_running = standstill.is_begun(record), False
    look(record)
    try:
        for swap in written:
            restore_journal.write(locked, swap)
        standstill.begin(locked, record)
        was_running = shutdown and locked.read()["power_state"] == "Running"
        if was_running:
            calls.run("VM.clean_shutdown", vm)
        now = locked.read()
        verify_can_be_halted(now, False)
        look(now)
    except PoolGone:
        raise
    except RelvmoiscsiError as error:
        if not was_begun:
            down = _put_right(locked, written)["power_state"] == "Halted" and was_running
            error.in_state(_DOWN if down else AS_IT_WAS)
        raise


def _put_right(locked: LockedVm, written: Sequence[Swap]) -> Record:
    record = locked.read()
    standstill.end(locked)
    restore_journal.forget(locked, written)
    return record


def hang(locked: LockedVm, swap: Swap, uuid: str, expected: Sequence[str]) -> None:
    """Make this VDI the disk of the VM at the swap's device, unless it is.

    Raises Refused where the VM is not as it must be, NotFound, PoolFailure.
    """
    calls, vm, record = locked.calls, locked.vm, locked.read()
    device = devices.read(calls, vm, swap.userdevice)
    devices.must_have(record, device, expected)
    if device.vdi == uuid and not locked.is_after_a_cut:
        return
    if not standstill.holds(record):
        raise Refused(f"Another client has unblocked the start of the VM {record['name_label']!r} during this run.")
    verify_can_be_halted(record, False)
    devices.must_be_idle(record)
    devices.must_be_free(calls, uuid, device.vbd if device.vdi == uuid else "")
    try:
        if device.vbd:
            calls.call("VBD.destroy", device.vbd)
        vdi = devices.ref_of(calls, uuid)
        calls.call("VBD.create", {**swap.vbd, "VM": vm, "VDI": vdi, "userdevice": swap.userdevice, "empty": False})
    except PoolFailure as failure:
        if failure.code not in ("HANDLE_INVALID", "DEVICE_ALREADY_EXISTS"):
            raise
        raise Refused(
            f"Another client has just changed the disk {swap.userdevice} of the VM {record['name_label']!r}."
        ) from failure


def verify_all(locked: LockedVm, wanted: Sequence[Tuple[Swap, str]]) -> None:
    """Read the journal and each device again, before the VM may be started. Raises Refused, PoolFailure."""
    record = locked.read()
    journal = restore_journal.journal_of(record)
    for swap, uuid in wanted:
        devices.must_have(record, devices.read(locked.calls, locked.vm, swap.userdevice), (uuid,))
        if swap not in journal:
            raise Refused(f"The journal of the VM {record['name_label']!r} has lost the disk {swap.userdevice}.")


def rename(calls: Calls, names: Mapping[str, str]) -> List[str]:
    """Give VDIs (by UUID) these names, as far as that can be done; what could not is told in sentences.

    The pool has the driver of the SR write a name to its LUN, and the SR may be away: nothing may wait for it. Raises
    PoolGone.
    """
    notes = []
    for uuid, text in names.items():
        vdi = devices.find(calls, uuid)
        if vdi is None or calls.call("VDI.get_name_label", vdi) == text:
            continue
        try:
            calls.finish("VDI.set_name_label", calls.start("VDI.set_name_label", vdi, text), NAME_SECONDS)
        except PoolGone:
            raise
        except PoolFailure as failure:
            notes.append(
                f"The VDI {uuid} keeps its name: {failure} Rename the VDI after its SR is attached: `xe vdi-param-set "
                f"uuid={uuid} name-label={shlex.quote(text)}`."
            )
    return notes
