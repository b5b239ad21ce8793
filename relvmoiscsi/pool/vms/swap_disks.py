# SPDX-License-Identifier: LGPL-2.1-only
"""What restore and undo have in common: the VM is halted and its start blocked, its disks are swapped one by one, and
all are read once more.

After a run that was cut each disk is hung anew, also a disk that is right: a VBD.destroy that was under way then has no
VBD any more, and a VBD.create finds a VBD at the device.
"""

import shlex
from typing import Callable, List, Mapping, Sequence, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.vms import left_behind, restore_journal, vbds
from relvmoiscsi.pool.vms.restore_journal import LockedVm, Swap

NAME_SECONDS = 30.0  #: for one name to be written to the LUN of an SR


def verify_can_be_halted(record: Record, shutdown: bool) -> None:
    """Raises Refused."""
    state = record["power_state"]
    if state != "Halted" and (state != "Running" or not shutdown):
        more = " Add --shutdown." if state == "Running" else " Its memory would not match its disks: shut the VM down."
        raise Refused(f"The VM {record['name_label']!r} is not halted but {state.lower()}.{more}")


def halt(locked: LockedVm, journal: Sequence[Swap], look: Callable[[Record], object], shutdown: bool) -> None:
    """Write the journal, block the start of the VM, shut the VM down, and look again: `look` is given its record.

    Raises Refused, PoolFailure. Then all is as it was, but that the VM may be down; unless an earlier run had begun.
    """
    calls, record = locked.calls, locked.read()
    there, was_running = restore_journal.journal_of(record), False
    written = [swap for swap in journal if swap not in there]
    look(record)
    try:
        for swap in written:
            restore_journal.write(locked, swap)
        restore_journal.block_start(locked, record)
        was_running = shutdown and locked.read()["power_state"] == "Running"
        if was_running:
            calls.run("VM.clean_shutdown", locked.vm)
        now = locked.read()
        verify_can_be_halted(now, False)
        look(now)
    except PoolGone:
        raise
    except RelvmoiscsiError as error:
        if not restore_journal.is_begun(record):
            is_down = was_running and locked.read()["power_state"] == "Halted"
            restore_journal.allow_start(locked)
            restore_journal.forget(locked, written)
            error.in_state(left_behind.SHUT_DOWN if is_down else left_behind.NOTHING)
        raise


def hang(locked: LockedVm, swap: Swap, uuid: str, expected: Sequence[str]) -> None:
    """Make this VDI the disk of the VM at the swap's device, unless it is.

    Raises Refused where the VM is not as it must be, NotFound, PoolFailure.
    """
    calls, record, device = locked.calls, locked.read(), locked.device(swap)
    vbds.must_have(record, device, expected)
    if device.vdi == uuid and not locked.is_after_a_cut:
        return
    if not restore_journal.is_start_blocked(record):
        raise Refused(f"Another client has unblocked the start of the VM {record['name_label']!r} during this run.")
    verify_can_be_halted(record, False)
    vbds.must_be_idle(record)
    vbds.must_be_free(calls, uuid, device.vbd if device.vdi == uuid else "")
    try:
        if device.vbd:
            calls.call("VBD.destroy", device.vbd)
        fields = {"VM": locked.vm, "VDI": vbds.ref_of(calls, uuid), "userdevice": swap.userdevice, "empty": False}
        calls.call("VBD.create", {**swap.vbd, **fields})
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
        vbds.must_have(record, locked.device(swap), (uuid,))
        if swap not in journal:
            raise Refused(f"The journal of the VM {record['name_label']!r} has lost the disk {swap.userdevice}.")


def rename(calls: Calls, names: Mapping[str, str]) -> List[str]:
    """Give VDIs (by UUID) these names, as far as that can be done; a sentence for each VDI that keeps its name.

    The pool has the driver of the SR write a name to its LUN. The SR may be away, so nothing waits long for the name.
    Raises PoolGone.
    """
    notes = []
    for uuid, text in names.items():
        vdi = vbds.find(calls, uuid)
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
