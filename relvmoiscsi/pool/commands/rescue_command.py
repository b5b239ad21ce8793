# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool rescue`: add a disk of a copy to a VM for a while."""

import argparse
from typing import List, Sequence

from relvmoiscsi.cli.output import Answer, ask, waiting
from relvmoiscsi.errors import UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status, flag
from relvmoiscsi.pool.commands.so_far import DONE, FAILED, UNDER_WAY
from relvmoiscsi.pool.commands.vm_steps import SCANS, Steps, named_missing, next_discard, next_start
from relvmoiscsi.pool.vms import choice, inventory, rescue, restore_journal
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.pool.vms.rescue import Lent
from relvmoiscsi.wording import printable, said, shell_command

_RESCUE = """\
If the VM runs, the command plugs the disk in. Without --rw the disk is read-only.

example:
  relvmoiscsi pool rescue "Production changed 2026-11-21" data --vm helper
  relvmoiscsi pool rescue "Production changed 2026-11-21" --done"""


def add_command(command: CommandMaker) -> None:
    rescuing = command("rescue", RescueCommand, "add a disk of a copy to a VM for a while", _RESCUE)
    rescuing.add_argument("sr", metavar="SR", help="the copy, by UUID, name or SCSIid")
    rescuing.add_argument(
        "vdi", metavar="VDI", nargs="?", help="the disk, by its UUID, the UUID of the original VDI, or its name"
    )
    rescuing.add_argument("--vm", metavar="VM", help="the VM that gets the disk, by UUID or name")
    flag(rescuing, "--rw", "let the VM write to the disk on the copy")
    flag(rescuing, "--done", "take the disk back; without VDI, take all lent disks of this copy back")
    changes(rescuing)


class RescueCommand(PoolChange):
    """Lend a disk of a copy to a VM, or take lent disks back."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        done = arguments.done
        if done and arguments.rw or not done and not (arguments.vdi and arguments.vm):
            missing = "" if done else named_missing(VDI=arguments.vdi, **{"--vm": arguments.vm})
            raise UsageError(f"The arguments do not fit.{missing}").advising(
                "Give a disk and a VM: `rescue SR VDI --vm VM`. To take disks back, use --done."
            )

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            copy, rw = choice.copy_to_use(calls, pool, found, self.given.sr), self.given.rw
            vdi = rescue.find(found, copy, self.given.vdi) if self.given.vdi else None
            vm = inventory.find_vm(found, self.given.vm) if self.given.vm else None
            if self.given.done:
                vbds = rescue.lent(found, copy, vdi, vm)
                rows = rescue.take_back(calls, found, copy, vbds, dry_run=True)
                if not vbds:
                    return _lent(copy, [], [f"No such disk of {copy.name!r} is lent to a VM: nothing is taken back."])
                if self.dry_run:
                    return _lent(copy, rows)
                ask(self, f"Take back {', '.join(_taken(found, vbd, row) for vbd, row in zip(vbds, rows))}?")
                lent = [f"{row.name!r} ({row.vdi}), VM {row.vm_name!r}" for row in rows]
                results: List[Lent] = []
                with self.so_far.work(lent):
                    for name, vbd in zip(lent, vbds):
                        self.so_far.tell(name, UNDER_WAY, "take back")
                        results += rescue.take_back(calls, found, copy, [vbd])
                        self.so_far.tell(name, DONE if results[-1].error is None else FAILED, "take back")
                is_back = all(each.status == rescue.BACK for each in results)
                steps, notes = next_discard(calls, copy.uuid) if is_back else ([], [])
                return _lent(copy, results, notes, steps)
            assert vdi is not None and vm is not None
            planned = rescue.lend(calls, pool, found, copy, vdi, vm, rw, dry_run=True)
            warning = rescue.warning(found, copy, vdi, vm)
            if warning:
                self.warn(warning)
            if self.dry_run:
                return _lent(copy, [planned], [SCANS] if planned.status == rescue.WOULD else [])
            if planned.status == rescue.WOULD:
                ask(self, f"Lend {said(planned.name)} to {said(planned.vm_name)}, {_MODES[planned.mode]}?")
            with self.work(repr(planned.name), "lend"), waiting("the pool"):
                result = rescue.lend(calls, pool, found, copy, vdi, vm, rw)
        to = found.vms[vm]
        is_halted, block = to["power_state"] == "Halted", restore_journal.start_block(to)
        to_know = [rescue.TO_KNOW, *([] if rw else [rescue.READ_ONLY]), *([block] if is_halted and block else [])]
        return _lent(copy, [result], to_know, [next_start(to["uuid"])] if is_halted and not block else [])


_MODES = {"RO": "read-only", "RW": "with write access"}


def _taken(found: Inventory, vbd: str, row: Lent) -> str:
    """Return which disk is taken back from which VM, and whether that VM runs, as part of a question."""
    is_running = found.vms[found.vbds[vbd]["VM"]]["power_state"] == "Running"
    return f"{said(row.name)} from {said(row.vm_name)}" + (", which is running" if is_running else "")


def _lent(copy: Copy, results: Sequence[Lent], to_know: Sequence[str] = (), steps: Steps = ()) -> Answer:
    lines = []
    for each in results:
        at = f", device {records.shown_device(each.userdevice)}" if each.userdevice else ""
        at = f", {_MODES[each.mode]}" if each.status == rescue.WOULD else at
        lines.append(printable(f"disk {each.name!r} ({each.vdi}): {each.status}, VM {each.vm_name!r}{at}"))
        lines += [printable(f"  {each.error}")] if each.error is not None else []
        if each.status in (rescue.DONE, rescue.ALREADY):
            lines.append(f"  later: `{shell_command('relvmoiscsi pool rescue --done', copy.uuid, each.vdi)}`")
    status = exit_status([each.error for each in results])
    facts = {"rescue_results": [each.facts() for each in results]}
    alerts = [f"disk {each.name!r} ({each.vdi}): {each.error}" for each in results if each.error is not None]
    return Answer(facts, "\n".join([*lines, *to_know]), status, next_steps=steps, alerts=alerts)
