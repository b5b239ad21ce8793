# SPDX-License-Identifier: LGPL-2.1-only
"""Move the disks of a restored VM from the copy to the SR of the VM's old disks, and end the journal.

xapi copies the disks, while the VM runs or is halted. The old VDIs stay in the pool; the VM no longer needs the VDIs.
"""

from typing import Callable

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.calls import Calls, PoolFailure
from relvmoiscsi.pool.records import shown_device
from relvmoiscsi.pool.vms import restore, restore_ends, restore_entries, restore_journal, run_states, vbds
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.restore import HOME, WOULD_HOME, Restored, result_of
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.pool.vms.restore_journal import LockedVm
from relvmoiscsi.pool.vms.vbds import VmNow
from relvmoiscsi.wording import said, shell_command

_ENCRYPTED = "key_hash"  #: key of VDI.sm_config


def home(
    calls: Calls,
    vm: str,
    tell: Callable[[str], None] = lambda _: None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Restored:
    """Move the disks of the copy to the SR of the old disks, and end the journal. The VM may run.

    `tell` gets the device of each disk before its move, `progress` its moved bytes and its size. Raises Refused,
    NotFound, PoolFailure. `dry_run`: make the same checks and change nothing.
    """
    with run_states.unchanged():
        now = vbds.read(calls, vm)
        over, record = restore.already_ended(calls, now, "home"), now.record
        if over is not None:
            return over
        restore_ends.verify(now, "home")
        swaps = restore_entries.journal_of(record)
        vbds.must_be_idle(record)
        for swap in swaps:
            if not restore_journal.is_home(now, swap):
                _verify_movable(now, swap)
                calls.verify_may_call("VDI.pool_migrate")
                calls.call("VM.assert_operation_valid", vm, "migrate_send")
        if dry_run:
            restore_journal.verify_free(calls, record, swaps)
            return result_of(
                record, WOULD_HOME, [each for each in swaps if now.device(each.userdevice).vdi == each.new]
            )
    with restore_journal.locked(calls, vm, record, swaps, "restore --home", run_states.moving_home(record)) as locked:
        restore_journal.must_have_an_end(locked.first)
        restore_ends.verify(locked.first, "home")
        swaps, moved = restore_entries.journal_of(locked.first.record), []
        for swap in swaps:
            if locked.now().device(swap.userdevice).vdi == swap.new:  # otherwise an earlier run has moved the disk
                tell(swap.userdevice)
                _move(locked, swap, progress)
                moved += [swap.old, swap.new]
        now = locked.now()  # a move may take hours
        for swap in swaps:
            _verify_is_home(now, swap)
            restore_journal.mark(locked, now, swap)  # an earlier run may have moved the disk
        restore_journal.forget_all(locked)
    waiting, notes = [], []
    for uuid in [uuid for swap in swaps for uuid in (swap.old, swap.new)]:
        users = now.users_of(uuid)
        if users:
            notes.append(f"The VDI {uuid} is a disk, or the memory, of {', '.join(users)}: keep the VDI.")
        elif now.find(uuid) is not None:
            if uuid in moved:
                waiting.append(uuid)
            else:
                notes.append(run_states.only_in_journal(uuid))
    return result_of(now.record, HOME, swaps, waiting, notes)


def _verify_movable(now: VmNow, swap: Swap) -> int:
    """Return the size of the disk, in bytes.

    Raises Refused where xapi would not move this disk, or would move other disks too; NotFound, PoolFailure. What xapi
    looks at in the VM, VM.assert_operation_valid tells. Source: xen-api ocaml/xapi/xapi_vm_migrate.ml, vdi_pool_migrate
    and migrate_send'.
    """
    record, device = now.record, now.device(swap.userdevice)
    name = record["name_label"]
    vbds.must_be_allowed(record, "migrate_send")
    now.must_be_free(swap.new, device.vbd, moves=True)
    snapshots = now.snapshots()
    if snapshots:
        raise Refused(
            f"The VM {name!r} has snapshots: {', '.join(map(repr, snapshots))}. The pool would "
            "move the disks of the snapshots too, partly to its default SR."
        ).advising("Delete the snapshots first, or undo the restore.")
    vdi = now.found.vdis[device.vdi_ref]
    if vdi["cbt_enabled"]:
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, has changed block tracking on, "
            "and the pool cannot move such a VDI."
        ).advising(
            f"Run `{shell_command('xe vdi-disable-cbt', f'uuid={swap.new}')}`, "
            "then repeat the command. The next backup is a full backup in any case."
        )
    why, _ = vbds.why_no_drive(vdi, "RO")
    if why:  # to forget the VDI of a drive in use would take it from the VM
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, {why}, and the pool cannot move such "
            "a VDI."
        ).advising(f"Put the old disks back: {run_states.restore_command('undo', record['uuid'])}.")
    if _ENCRYPTED in vdi["sm_config"]:
        remove = shell_command(
            "xe vdi-param-remove", f"uuid={swap.new}", "param-name=sm-config", f"param-key={_ENCRYPTED}"
        )
        raise Refused(
            f"The VDI {swap.new}, the disk {swap.userdevice} of the VM {name!r}, is encrypted by its sm_config "
            f"({_ENCRYPTED}), and the pool cannot move such a VDI."
        ).advising(f"If that is wrong, remove the key: `{remove}`. Then repeat the command.")
    for vbd in now.found.vbds_of(now.vm).values():  # xapi moves the VM, and so looks at the disks that stay too
        other = now.found.vdis.get(vbd["VDI"])
        if other is None or vbd["type"] == "CD" or other["on_boot"] == "persist":
            continue
        of_vdi = f"uuid={other['uuid']}"
        raise Refused(
            f"The VDI {said(other['uuid'])}, the disk {shown_device(vbd['userdevice'])} of the VM {name!r}, is reset "
            "at each start (on-boot). The pool moves no disk of such a VM."
        ).advising(f"Run `{shell_command('xe vdi-param-set on-boot=persist', of_vdi)}`, then repeat the command.")
    size: int = vdi["virtual_size"]
    return size


def _move(locked: LockedVm, swap: Swap, progress: Callable[[int, int], None]) -> None:
    """Move one disk. Raises Refused, NotFound, PoolFailure."""
    calls, now = locked.calls, locked.now()
    record, device = now.record, now.device(swap.userdevice)
    restore_ends.verify(now, "home")
    vbds.must_be_idle(record)
    size = _verify_movable(now, swap)
    restore_journal.write_leaving(locked, record, swap)
    try:
        task = calls.start("VDI.pool_migrate", device.vdi_ref, now.pool.sr_by_uuid(swap.home), {})
        calls.wait("VDI.pool_migrate", task, progress=lambda part: progress(int(part * size), size))
    except PoolFailure as failure:
        now = locked.now()
        its = now.device(swap.userdevice)
        if its.vbd == device.vbd and its.sr == swap.home and its.vdi not in (NULL, swap.old, swap.new):
            # the VM has the new VDI already; only the destruction of the old VDI failed
            restore_journal.write_arrived(locked, now, swap)
        if failure.code != "LICENCE_RESTRICTION":
            raise
        with run_states.not_movable(record):
            raise
    now = locked.now()
    _verify_is_home(now, swap)
    restore_journal.write_arrived(locked, now, swap)


def _verify_is_home(now: VmNow, swap: Swap) -> None:
    """Raises PoolFailure where the disk is not on the SR of the old disk."""
    if not restore_journal.is_home(now, swap):
        raise PoolFailure(
            f"The disk {swap.userdevice} of the VM {now.record['name_label']!r} is not on the SR {swap.home}, although "
            f"the pool reported the move of the VDI {swap.new} as done."
        ).advising("Check the disks of the VM before you go on.")
