# SPDX-License-Identifier: LGPL-2.1-only
"""What the commands on VMs share: sentences of a plan, and the next steps."""

from contextlib import suppress
from typing import Any, List, Sequence, Tuple, TypeVar

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms import forget
from relvmoiscsi.pool.vms.clone import Cloned
from relvmoiscsi.pool.vms.restore import Restored
from relvmoiscsi.wording import ShellCommand, printable, shell_command

Steps = Sequence[ShellCommand]

#: of a plan, which is made from the records of the pool
SCANS = "The run would scan the copy first, and change nothing if the LUN of the copy cannot be read."

Row = TypeVar("Row", Cloned, Restored)


def of_plan(rows: Sequence[Row]) -> List[Row]:
    """Return the rows of a plan: none has failed yet."""
    return [row if row.error is None else row._replace(status="would fail") for row in rows]


def named_missing(**arguments: Any) -> str:
    """Return the names of the missing arguments, as a sentence."""
    names = [name for name, value in arguments.items() if not value]
    return f" Missing: {', '.join(names)}."


def next_discard(calls: Calls, copy: str) -> Tuple[List[ShellCommand], List[str]]:
    """Return (the discard of a copy (a UUID) that a VM needs no more, or why the copy stays), each a list.

    A discard takes the disks of halted VMs, and with --with-vms the VMs that `clone` has made: nobody has said that
    these are not needed. A VM that `clone` has not made is in use, as after `restore --keep`: no sentence leads to a
    discard of its disks.
    """
    with suppress(PoolFailure, PoolGone):  # the work is done; `discard` makes the same plan
        sr = records.read(calls).sr_by_uuid(copy)
        try:
            plan = made_vms.plan(calls, [] if sr is None else [sr], with_vms=True)
        except Refused as used:
            return [], [printable(f"The copy cannot be discarded yet. {used.told}")]
        made = {ref: str(vm["name_label"]) for of_sr in plan.made.values() for ref, vm in of_sr.items()}
        losers = plan.all_losers()
        if made or losers:
            name = plan.pool.srs[plan.pool.sr_by_uuid(copy) or ""]["name_label"]
            later = shell_command("relvmoiscsi pool discard --with-vms", copy)
            said_ = f"VMs of `clone`: {forget.named(made)}. After you no longer need these VMs: `{later}`"
            if losers:
                said_ = (
                    f"disks of VMs that `clone` has not made: {forget.named(losers)}. Keep the copy, or move these "
                    "disks to another SR before you discard the copy." + plan.eject_advice()
                )
            return [], [printable(f"The copy {name!r} has {said_}")]
    return [shell_command("relvmoiscsi pool discard", copy)], []


def next_start(vm: str) -> ShellCommand:
    return shell_command("xe vm-start", f"uuid={vm}")
