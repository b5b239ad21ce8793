# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool restore`: replace a VM's disks with the disks of a copy."""

import argparse
from contextlib import ExitStack, suppress
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Tuple

from relvmoiscsi.cli.output import Answer, Bar, ask, say, waiting
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.pool import records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status, flag
from relvmoiscsi.pool.commands.vm_steps import SCANS, Steps, named_missing, next_discard, next_start, of_plan
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import choice, inventory, move_home, restore, run_states
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.pool.vms.restore import Restored
from relvmoiscsi.wording import ShellCommand, printable, said, shell_command

_RESTORE = """\
The VM gets the disks of the copy in place of its own disks; no data is copied. The VM must be halted:
--shutdown shuts the VM down. The VM's other_config keeps a journal of the old disks.

Three options end a restore. After --undo, later writes of the VM stay on the copy. --home also moves the disks
of a running VM; afterwards `discard` takes the copy. Use --keep after you have changed the disks of the VM by
hand. After an interruption, repeat the command, or use --undo.

example:
  relvmoiscsi pool restore "Production changed 2026-11-21" web --shutdown
  relvmoiscsi pool restore --undo web"""


def add_command(command: CommandMaker) -> None:
    what = "replace a VM's disks with the disks of a copy"
    restoring = command("restore", RestoreCommand, what, _RESTORE)
    restoring.add_argument("sr", metavar="SR", nargs="?", help="the copy, by UUID, name or SCSIid")
    restoring.add_argument("vms", metavar="VM", nargs="*", help="the VMs to restore, by UUID or name")
    restoring.add_argument("--disk", metavar="LIST", help="of one VM: restore only these disks, by device: 0,1")
    flag(restoring, "--shutdown", "shut the VMs down first")
    ways = restoring.add_mutually_exclusive_group()
    ways.add_argument("--undo", metavar="VM", nargs="+", help="put the old disks of these VMs back")
    ways.add_argument("--home", metavar="VM", help="move the disks of this VM from the copy to the SR of the old disks")
    ways.add_argument("--keep", metavar="VM", help="leave the disks of this VM as they are and remove the journal")
    flag(restoring, "--on-copy", "with --keep --yes: accept that the VM still has disks of the copy")
    changes(restoring)


class RestoreCommand(PoolChange):
    """Replace disks of VMs with the disks of a copy, or end such a restore."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.vms: Sequence[str] = arguments.vms
        alone = {end: [vm] for end, vm in (("home", arguments.home), ("keep", arguments.keep)) if vm}
        ends: Dict[str, List[str]] = {"undo": arguments.undo or [], **alone}
        #: how the command ends a restore; "" for a restore
        self.end: str = next((end for end, vms in ends.items() if vms), "")
        if self.end and (arguments.sr or arguments.disk is not None) or not (self.end or self.vms):
            missing = "" if self.end else named_missing(SR=arguments.sr, VM=self.vms)
            raise UsageError(f"The arguments do not fit.{missing}").advising(
                "Give a copy and a VM: `restore SR VM`. With --undo, --home or --keep, give no copy and no disk: "
                "--undo takes VMs, --home takes one VM, and --keep takes one VM."
            )
        #: the disks to restore; [] for all disks
        self.devices = [] if arguments.disk is None else [device.strip() for device in arguments.disk.split(",")]
        if not all(self.devices):  # such as of an empty shell variable
            raise UsageError(f"--disk {arguments.disk!r} names no disk between its commas.").advising(
                "Give devices, for example 0,1. Without --disk, all disks are restored."
            )
        self.vms = ends.get(self.end, self.vms)
        if self.end in ("", "undo") and not arguments.shutdown:
            self.beside_yes = "--shutdown if a VM runs"
        if self.end == "keep" and not arguments.on_copy:
            self.beside_yes = "--on-copy if the VM still has a disk of the copy"
        if self.end != "keep" and arguments.on_copy:
            raise UsageError("--on-copy is about the disks of a VM that --keep leaves.").advising("Add --keep VM.")
        if self.devices and len(self.vms) > 1:
            raise UsageError("--disk names disks of one VM.").advising("Restore the VMs one by one.")

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            copy = None if self.end else choice.copy_to_use(calls, pool, found, self.given.sr)
            vms = list(dict.fromkeys(inventory.find_vm(found, vm) for vm in self.vms))
            bar = Bar()
            may_stay: Optional[List[str]] = None if self.given.on_copy or not self.yes else []  # a person reads it
            planned = self._of_each(calls, pool, found, copy, vms, bar, may_stay, dry_run=True)
            todo = [row for row in planned if row.status in _WOULD_BE]
            to_know = _TO_KNOW.get(self.end, ()) if todo else ()
            is_scanned = any(row.status == restore.WOULD for row in planned)
            plan = _all_restored(of_plan(planned), [*to_know, *([SCANS] if is_scanned else [])], pool=pool)
            if self.dry_run:
                return plan
            if not todo:
                if copy is not None and any(row.status == restore.ALREADY for row in planned):
                    records.verify_readable(calls, copy.uuid)
                return _all_restored(planned, steps=_next_of(calls, planned)[0])
            if not self.yes:
                self.show(plan)
            ask(self, _QUESTIONS[self.end].format(", ".join(said(row.name) for row in todo)))
            may_stay = None if self.given.on_copy else [vdi for row in planned for vdi in row.on_copies]
            shown: ContextManager[Any] = waiting("the pool")
            if self.end == "home":
                shown = bar
            with self.so_far.work([repr(row.name) for row in todo]), shown:
                results = self._of_each(calls, pool, found, copy, vms, bar, may_stay, dry_run=False)
            steps, notes = _next_of(calls, results)
        # a plan has said what to know before the question
        return _all_restored(results, [*notes, *(to_know if self.yes else ())], steps)

    def _of_each(
        self,
        calls: Calls,
        pool: Pool,
        found: Inventory,
        copy: Optional[Copy],
        vms: Sequence[str],
        bar: Bar,
        may_stay: Optional[Sequence[str]],
        dry_run: bool,
    ) -> List[Restored]:
        """Restore each VM to the copy; without a copy, end its restore. Return the results.

        `may_stay` are the disks that --keep may leave on a copy (UUIDs); None for any disk.
        A VM that fails stops no other; the error of an only VM propagates.
        """
        results = []
        for vm in vms:
            name = str(found.vms[vm]["name_label"])
            is_told = not (dry_run or self.json or self.quiet)
            if is_told:
                say(printable(f"VM {name!r}: begins"))
            try:
                with ExitStack() as stack:
                    if not dry_run:
                        stack.enter_context(self.so_far.one(repr(name), self.end or "restore"))
                    if copy is not None:
                        swaps = restore.plan(calls, pool, found, copy, vm, self.devices, records.now())
                        result = restore.restore(calls, vm, swaps, self.given.shutdown, dry_run)
                    elif self.end == "undo":
                        result = restore.undo(calls, vm, self.given.shutdown, dry_run)
                    elif self.end == "home":

                        def tell(disk: str, of: str = name) -> None:
                            if not (self.json or self.quiet):
                                say(printable(f"VM {of!r}: disk {disk} is being moved"))

                        result = move_home.home(calls, vm, tell, dry_run, bar)
                    else:
                        result = restore.keep(calls, vm, may_stay, dry_run)
                results.append(result)
            except PoolGone:
                raise
            except RelvmoiscsiError as error:
                if len(vms) == 1:
                    raise
                results.append(restore.result_of(found.vms[vm], restore.FAILED, error=error))
            if is_told:
                say(printable(f"VM {name!r}: {results[-1].status}"))
        return results


_TO_KNOW = {"": restore.TO_KNOW, "undo": restore.TO_KNOW_OF_UNDO, "home": restore.TO_KNOW_OF_HOME}
_QUESTIONS = {
    "": "Restore {}?",
    "undo": "Undo the restore of {}?",
    "home": "Move the disks of {} to its own SR, after which --undo is impossible?",
    "keep": "Leave the disks of {} as they are and remove the journal?",
}


def _all_restored(
    results: Sequence[Restored],
    to_know: Sequence[str] = (),
    steps: Steps = (),
    pool: Optional[Pool] = None,
) -> Answer:
    """Return the results, or a plan. The plan of --home names the SRs of `pool`."""
    texts = ["\n".join(map(printable, _lines(result, pool))) for result in results]
    rows = [each.facts() for each in results]
    status = exit_status([each.error for each in results])
    alerts = [f"VM {each.name!r}: {each.error}" for each in results if each.error is not None]
    return Answer({"restore_results": rows}, "\n".join([*texts, *to_know]), status, next_steps=steps, alerts=alerts)


_WOULD_BE = (restore.WOULD, restore.WOULD_UNDO, restore.WOULD_HOME, restore.WOULD_KEEP)


def _lines(result: Restored, pool: Optional[Pool]) -> List[str]:
    lines = [f"VM {result.name!r}: {result.status}"]
    for disk in result.disks:
        old, new = disk.old, disk.new
        if result.status in (restore.UNDONE, restore.WOULD_UNDO):
            old, new = new, old
        if result.status == restore.WOULD_HOME:
            home = pool.sr_by_uuid(disk.home) if pool is not None else None
            name = f"{pool.srs[home]['name_label']!r} ({disk.home})" if pool is not None and home else disk.home
            lines.append(f"  disk {disk.userdevice}: {new} would be moved to the SR {name}")
            lines.append(f"  disk before: {old} would stay there, without a VM")
        elif result.status != restore.HOME:
            lines.append(
                f"  disk {disk.userdevice}: {old} {'would become' if result.status in _WOULD_BE else 'became'} {new}"
            )
    if result.shuts_down and result.status in _WOULD_BE:
        lines.append("  the VM is running: the run would shut the VM down and leave the VM halted")
    if result.waits_for_start:
        was, block = "was shut down and " if result.shuts_down else "", result.start_block
        lines.append(f"  the VM {was}is halted{f'. {block}' if block else ': start the VM when you are ready'}")
    before = {disk.old for disk in result.disks if result.status == restore.HOME}
    for uuid in result.waiting:
        what = "disk before, once nobody needs it" if uuid in before else "no longer needed"
        lines.append(f"  {what}: `{shell_command('xe vdi-destroy', f'uuid={uuid}')}`")
    lines += [f"  {note}" for note in result.notes]
    lines += [f"  {result.error}"] if result.error is not None else []
    if result.status in (restore.DONE, restore.ALREADY):
        lines.append(f"  later: {run_states.restore_command('home', result.vm)}")
        lines.append(f"  or:    {run_states.restore_command('undo', result.vm)}")
    return lines


def _next_of(calls: Calls, results: Sequence[Restored]) -> Tuple[List[ShellCommand], List[str]]:
    """Return (the next steps after restores, and after their ends, notes on copies that stay).

    First come the starts, then each unused copy once.

    The journal of a VM names the copies, and a vm-admin may write the journal. So a step has only a copy of an SR on
    which the VM has a disk now.
    """
    steps, notes = [], []  # type: List[ShellCommand], List[str]
    unused: Dict[str, List[str]] = {}  #: UUIDs of copies that a VM needs no more, by UUID of the VM
    for each in results:
        if each.waits_for_start and not each.start_block:
            steps.append(next_start(each.vm))
        ended = each.status in (restore.UNDONE, restore.HOME)
        unused[each.vm] = [*(disk.sr for disk in each.disks if ended), *each.unused_copies]
    if any(unused.values()):
        with suppress(PoolFailure, PoolGone):  # the work is done
            pool, found, copies = records.read(calls), inventory.read(calls), []
            for ref in [ref for ref, vm in found.vms.items() if unused.get(vm["uuid"])]:
                there = {vdi["SR"] for vdi in found.disks_of(ref).values()}
                originals = {sr["uuid"] for sr_ref, sr in pool.srs.items() if sr_ref in there}
                for copy in unused[found.vms[ref]["uuid"]]:
                    known = pool.known_sr(copy)
                    if known is not None and known.record["other_config"].get(records.ORIGINAL_SR) in originals:
                        copies.append(copy)
            for copy in dict.fromkeys(copies):
                discards, stays = next_discard(calls, copy)
                steps, notes = [*steps, *discards], [*notes, *stays]
    return steps, notes
