# SPDX-License-Identifier: LGPL-2.1-only
"""Sentences on the state that a failed or interrupted run on VMs leaves in the pool, with the command to repeat.

`errors.in_state` appends the sentence to the error, or to the message after Ctrl-C.
"""

from relvmoiscsi.pool.calls import Record
from relvmoiscsi.wording import said, shell_command

NOTHING = "Nothing was changed."
#: for a restore that was refused after the shutdown
SHUT_DOWN = "The VM was shut down for this run; nothing else was changed."
CLONES = (
    "A VM that is not finished is a template, which nobody can start. Repeat the command: it finishes the VM and makes "
    "no VM twice."
)
KEEPING = "The disks of the VM are as they were. Parts of the journal may remain. Repeat the command."
SAVING = (
    "The records of an earlier complete save stay valid, if the SR has any. The next save removes a VDI that this save "
    "has left on the SR."
)


def restore_command(end: str, vm: str) -> str:
    """Return the command that ends a restore of the VM with this UUID: "undo", "home" or "keep"."""
    return f"`{shell_command('relvmoiscsi pool restore', **{end: vm})}`"


def only_in_journal(vdi: str) -> str:
    """Return the sentence for a VDI (UUID) without a VM that this run has not taken from the VM.

    A vm-admin may write the journal, so no command to destroy the VDI is printed.
    """
    return (
        f"The VDI {said(vdi)} is on no VM, and only the journal of the VM names it. Check the VDI before you destroy "
        "it."
    )


def swapping(vm: Record) -> str:
    """Return the sentence for restore and undo."""
    return (
        f"Some disks of the VM {vm['name_label']!r} may be swapped and others not, and its start is blocked. "
        f"Repeat the command, or run {restore_command('undo', vm['uuid'])}."
    )


def moving_home(vm: Record) -> str:
    return (
        f"The VM {vm['name_label']!r} has some disks on its own SR and the others on the copy, and can be "
        f"used. Repeat the command, or run {restore_command('undo', vm['uuid'])}."
    )


def not_movable(vm: Record) -> str:
    """Return the sentence for a pool whose licence does not allow the migration of disks."""
    return (
        f"The VM {vm['name_label']!r} stays on the copy and can be used. Shut the VM down, copy the disk "
        "to its own SR, and attach the new VDI in its place. Then run "
        f"{restore_command('keep', vm['uuid'])}. Or run "
        f"{restore_command('undo', vm['uuid'])}."
    )
