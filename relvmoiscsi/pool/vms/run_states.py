# SPDX-License-Identifier: LGPL-2.1-only
"""The state that a failed or interrupted run on VMs leaves in the pool, and what a person does then.

A block that runs in such a state adds both to its error, or to the message after Ctrl-C.
"""

from typing import ContextManager

from relvmoiscsi.errors import NOTHING_CHANGED, RelvmoiscsiError, in_state
from relvmoiscsi.pool.calls import Record
from relvmoiscsi.wording import said, shell_command

#: for a restore that was refused after the shutdown
SHUT_DOWN = "The VM was shut down for this run; nothing else was changed."


def restore_command(end: str, vm: str) -> str:
    """Return the command that ends a restore of the VM with this UUID: "undo", "home" or "keep"."""
    shutdown = end == "undo"  # of a VM that runs meanwhile; a halted VM stays so
    return f"`{shell_command('relvmoiscsi pool restore', **{end: vm}, shutdown=shutdown)}`"


def only_in_journal(vdi: str) -> str:
    """Return the sentence for a VDI (UUID) without a VM that this run has not taken from the VM.

    A vm-admin may write the journal, so no command to destroy the VDI is printed.
    """
    return (
        f"The VDI {said(vdi)} is on no VM, and only the journal of the VM names it. Check the VDI before you destroy "
        "it."
    )


def unchanged() -> ContextManager[None]:
    """For the checks of one VM or SR before its first change. Other VMs of the run may be changed at a Ctrl-C."""
    return in_state(NOTHING_CHANGED, RelvmoiscsiError)


def cloning() -> ContextManager[None]:
    return in_state(
        "A VM that is not finished is a template, which nobody can start.",
        advice="Repeat the command: it finishes the VM and makes no VM twice.",
    )


def keeping() -> ContextManager[None]:
    return in_state(
        "The disks of the VM are as they were. Parts of the journal may remain.", advice="Repeat the command."
    )


def saving() -> ContextManager[None]:
    return in_state(
        "The records of an earlier complete save stay valid, if the SR has any. The next save removes a VDI that this "
        "save has left on the SR."
    )


def swapping(vm: Record) -> ContextManager[None]:
    """For restore and undo."""
    return in_state(
        f"Some disks of the VM {vm['name_label']!r} may be swapped and others not, and its start is blocked.",
        advice=f"Repeat the command, or run {restore_command('undo', vm['uuid'])}.",
    )


def moving_home(vm: Record) -> ContextManager[None]:
    return in_state(
        f"The VM {vm['name_label']!r} can be used: each restored disk is on the copy still, or on its own SR already.",
        advice=f"Repeat the command, or run {restore_command('undo', vm['uuid'])}.",
    )


def not_movable(vm: Record) -> ContextManager[None]:
    """For a pool whose licence does not allow the migration of disks."""
    keep, undo = restore_command("keep", vm["uuid"]), restore_command("undo", vm["uuid"])
    return in_state(
        f"The VM {vm['name_label']!r} stays on the copy and can be used.",
        advice="Shut the VM down, copy the disk to its own SR, and attach the new VDI in its place. Then run "
        f"{keep}. Or run {undo}.",
    )
