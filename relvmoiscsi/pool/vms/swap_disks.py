# SPDX-License-Identifier: LGPL-2.1-only
"""Swap the disks of a VM for restore and undo: halt the VM, block its start, swap each disk, check all disks.

After an interruption, `hang` makes every VBD again, even a VBD with the right disk:

    t0  an interrupted run has sent VBD.destroy or VBD.create, and xapi has not executed the call
    t1  this run destroys the VBD and creates a new VBD at the same device
    t2  xapi executes the old call: VBD.destroy names a VBD that is gone, VBD.create finds the device in use; both fail
"""

from typing import Callable, Iterable, List, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_CHANGED, Refused, RelvmoiscsiError
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record
from relvmoiscsi.pool.vms import restore_entries, restore_journal, run_states, vbds
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.pool.vms.restore_journal import LockedVm
from relvmoiscsi.pool.vms.vbds import VmNow
from relvmoiscsi.wording import shell_command

NAME_SECONDS = 30.0  #: time limit for writing one name to the LUN of an SR


def verify_can_be_halted(record: Record, shutdown: bool) -> None:
    """Raises Refused for a VM that runs without `shutdown`, is suspended or paused, or whose shutdown is blocked."""
    state = record["power_state"]
    if state != "Halted" and (state != "Running" or not shutdown):
        more, advice = ("", "Add --shutdown.")
        if state != "Running":
            more, advice = (" Its memory would not match its disks.", "Shut the VM down.")
        raise Refused(f"The VM {record['name_label']!r} is not halted but {state.lower()}.{more}").advising(advice)
    if state == "Running":
        vbds.must_be_allowed(record, "clean_shutdown")


def halt(locked: LockedVm, journal: Sequence[Swap], look: Callable[[VmNow], object], shutdown: bool) -> None:
    """Write the journal, block the start of the VM, shut the VM down, and call `look` before and after.

    Raises Refused, PoolFailure. After an error, the journal and the block are removed, unless an earlier run began the
    swaps. The VM may be halted.
    """
    calls, now = locked.calls, locked.now()
    there, was_running = restore_entries.journal_of(now.record), False
    written = [swap for swap in journal if swap not in there]
    if locked.is_after_a_cut:
        look(now)
    else:
        with run_states.unchanged():
            look(now)
    try:
        for swap in written:
            restore_journal.write(locked, swap)
        restore_journal.block_start(locked, now.record)
        was_running = shutdown and locked.read()["power_state"] == "Running"
        if was_running:
            calls.run("VM.clean_shutdown", locked.vm)
        now = locked.now()
        verify_can_be_halted(now.record, False)
        look(now)
    except PoolGone:
        raise
    except RelvmoiscsiError as error:
        if not locked.is_after_a_cut:
            is_down = was_running and locked.read()["power_state"] == "Halted"
            restore_journal.allow_start(locked)
            restore_journal.forget(locked, written)
            error.in_state(run_states.SHUT_DOWN if is_down else NOTHING_CHANGED)
        raise


def hang(locked: LockedVm, swap: Swap, uuid: str, expected: Sequence[str]) -> None:
    """Make this VDI the disk at the swap's device; do nothing if the device has this VDI.

    Raises Refused where the VM is not in the expected state, NotFound, PoolFailure.
    """
    calls, now = locked.calls, locked.now()
    record, device = now.record, now.device(swap.userdevice)
    vbds.must_have(record, device, expected)
    if device.vdi == uuid and not locked.is_after_a_cut:
        return
    if not restore_journal.is_start_blocked(record):
        raise Refused(f"Another client has unblocked the start of the VM {record['name_label']!r} during this run.")
    verify_can_be_halted(record, False)
    vbds.must_be_idle(record)
    now.must_take(swap, uuid)
    try:
        if device.vbd:
            calls.call("VBD.destroy", device.vbd)
        fields = {"VM": locked.vm, "VDI": now.find(uuid), "userdevice": swap.userdevice, "empty": False}
        calls.call("VBD.create", {**swap.vbd, **fields})
    except PoolFailure as failure:
        if failure.code not in ("HANDLE_INVALID", "DEVICE_ALREADY_EXISTS"):
            raise
        raise Refused(
            f"Another client has just changed the disk {swap.userdevice} of the VM {record['name_label']!r}."
        ) from failure


def verify_all(now: VmNow, wanted: Sequence[Tuple[Swap, str]]) -> None:
    """Check the journal, each device and each disk once more before the VM may start. Raises Refused.

    xapi gives a VDI to any number of halted VMs: another client may attach the disk just before VBD.create.
    """
    record = now.record
    journal = restore_entries.journal_of(record)
    for swap, uuid in wanted:
        device = now.device(swap.userdevice)
        vbds.must_have(record, device, (uuid,))
        now.must_be_free(uuid, device.vbd)
        if swap not in journal:
            raise Refused(f"The journal of the VM {record['name_label']!r} has lost the disk {swap.userdevice}.")


def rename(calls: Calls, now: VmNow, swaps: Iterable[Swap], name_of: Callable[[Swap, str], str]) -> List[str]:
    """Rename the old VDIs; return a sentence for each VDI that keeps its name. Raises PoolGone.

    `name_of` makes the new name of the present one. The driver of the SR writes the name to the LUN. The SR may be
    detached, so each name has NAME_SECONDS.
    """
    notes = []
    for swap in swaps:
        vdi = now.find(swap.old)
        if vdi is None:
            continue
        name = str(now.found.vdis[vdi]["name_label"])
        text = name_of(swap, name)
        if text == name:
            continue
        try:
            calls.wait("VDI.set_name_label", calls.start("VDI.set_name_label", vdi, text), Deadline(NAME_SECONDS))
        except PoolFailure as failure:
            notes.append(
                f"The VDI {swap.old} keeps its name: {failure} Rename the VDI after its SR is attached: "
                f"`{shell_command('xe vdi-param-set', f'uuid={swap.old}', f'name-label={text}')}`."
            )
    return notes
