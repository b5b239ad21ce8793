# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on VMs with disks on a copy: clone, restore, rescue, save-vms."""

import argparse
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Container, ContextManager, Dict, List, Optional, Sequence, Tuple, TypeVar

from relvmoiscsi.cli.output import Answer, Bar, ask, is_terminal, say, waiting
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.pool import jobs, records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status, flag
from relvmoiscsi.pool.commands.so_far import DONE, FAILED, UNDER_WAY
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vdis import Pair
from relvmoiscsi.pool.vms import choice, clone, forget, inventory, move_home, rescue, restore, save_vms
from relvmoiscsi.pool.vms import discard as made_vms
from relvmoiscsi.pool.vms.choice import VmSource
from relvmoiscsi.pool.vms.clone import Cloned
from relvmoiscsi.pool.vms.inventory import Copy, Inventory
from relvmoiscsi.pool.vms.rescue import Lent
from relvmoiscsi.pool.vms.restore import Restored
from relvmoiscsi.wording import ShellCommand, counted, printable, said, shell_command, some_of, time_left

Steps = Sequence[ShellCommand]

_CLONE = """\
The command makes halted VMs that use the disks of the copy; no data is copied. Say which networks the new VMs
are on: --isolated, --network or --same-networks. The command refuses a VM with a disk that is not on the copy,
unless --omit-disks is given. The new VMs have new MACs. They have no HA, no PCI devices, no tags and no keys of
backup tools. After an interrupted or failed run, repeat the command: no VM is made twice.

example:
  relvmoiscsi pool clone "Production changed 2026-11-21" --all --isolated night"""

_RESTORE = """\
The VM gets the disks of the copy in place of its own disks; no data is copied. The VM must be halted:
--shutdown shuts the VM down. The VM's other_config keeps a journal of the old disks. Three options end a
restore:

--undo puts the old disks back; later writes of the VM stay on the copy.

--home moves the disks from the copy to the SR of the old disks, also while the VM runs. Then `discard` takes
the copy.

--keep leaves all disks as they are and removes the journal. Use --keep after you have changed the disks of the
VM by hand. With --yes, a VM that still has a disk of the copy needs --on-copy.

example:
  relvmoiscsi pool restore "Production changed 2026-11-21" web --shutdown
  relvmoiscsi pool restore --undo web"""

_RESCUE = """\
The command adds the disk to the VM. If the VM runs, it plugs the disk in. Without --rw the disk is read-only.
--done takes the disk back.

example:
  relvmoiscsi pool rescue "Production changed 2026-11-21" data --vm helper
  relvmoiscsi pool rescue "Production changed 2026-11-21" --done"""

_SAVE = """\
Run the command before each snapshot of the array. It saves the records of all VMs with disks on the SR to a
raw VDI of some 4 MiB on the same SR. The records have no vTPM contents. `show` and `pool luns` read the
records from a clone. `clone --from-snapshot` makes VMs from the records, even VMs that the pool no longer has.
Each run replaces the records of the last run.

example:
  relvmoiscsi pool save-vms Production --yes"""

#: of a plan, which is made from the records of the pool
_SCANS = "The run would scan the copy first, and change nothing if the LUN of the copy cannot be read."


def add_commands(command: CommandMaker) -> None:
    cloning = command("clone", CloneCommand, "make VMs from the disks of a copy", _CLONE)
    cloning.add_argument("sr", metavar="SR", help="the copy, by UUID, name or SCSIid")
    cloning.add_argument("vms", metavar="VM", nargs="*", help="VMs whose disks are on the copy, by UUID or name")
    flag(cloning, "--all", "select all VMs that have disks on the copy")
    cloning.add_argument(
        "--name",
        metavar="TEXT",
        default=choice.NAME,
        help="name of the new VMs; {vm}, {sr}, and {date}, the day of LVM's last change, are replaced; several VMs "
        "need {vm}; default: {vm} on {sr}",
    )
    nets = cloning.add_mutually_exclusive_group()
    nets.add_argument(
        "--isolated",
        metavar="NET",
        help="connect all new VMs to this isolated network; the network is made if it does not exist",
    )
    nets.add_argument(
        "--network",
        metavar="PAIR",
        action="append",
        default=[],
        help="OLD=NEW: connect VIFs on network OLD to network NEW; repeatable",
    )
    flag(
        nets, "--same-networks", "connect the new VMs to the networks of their originals; their addresses may conflict"
    )
    flag(cloning, "--omit-disks", "clone a VM without its disks that are not on the copy")
    flag(cloning, "--keep-mac", "keep the MACs of the originals")
    flag(cloning, "--snapshots", "also make the VMs' snapshots that are on the copy")
    flag(cloning, "--from-snapshot", "use the VM records that `save-vms` has saved on the copy")
    cloning.add_argument(
        "--trust-records",
        metavar="VDI",
        default="",
        help="with --from-snapshot: trust the records on this VDI of the copy, whose writer is unknown",
    )
    flag(cloning, "--no-vtpm", "omit the vTPM, whose contents are secrets")
    flag(cloning, "--no-vgpu", "omit virtual GPUs")
    cloning.add_argument(
        "--jobs", metavar="N", type=int, default=jobs.MOST, help="number of VMs in parallel; default: 10"
    )
    changes(cloning)
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
    flag(restoring, "--on-copy", "with --keep --yes: leave disks of the VM on the copy")
    changes(restoring)
    rescuing = command("rescue", RescueCommand, "add a disk of a copy to a VM for a while", _RESCUE)
    rescuing.add_argument("sr", metavar="SR", help="the copy, by UUID, name or SCSIid")
    rescuing.add_argument(
        "vdi", metavar="VDI", nargs="?", help="the disk, by its UUID, the UUID of the original VDI, or its name"
    )
    rescuing.add_argument("--vm", metavar="VM", help="the VM that gets the disk, by UUID or name")
    flag(rescuing, "--rw", "let the VM write to the disk on the copy")
    flag(rescuing, "--done", "take the disk back; without VDI, take all lent disks of this copy back")
    changes(rescuing)
    what = "save VM records on the SR before the array's snapshot"
    saving = command("save-vms", SaveVmsCommand, what, _SAVE)
    saving.add_argument("sr", metavar="SR", help="the original, by UUID or name")
    changes(saving)


# --- clone


class CloneCommand(PoolChange):
    """Make VMs from the disks of a copy."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        if arguments.jobs < 1:
            raise UsageError(f"--jobs {arguments.jobs} is too small.").advising("Give 1 or more VMs in parallel.")
        if not (arguments.vms or arguments.all):
            raise UsageError("No VM is selected.").advising("Give VMs, or --all.")
        if not (arguments.isolated or arguments.network or arguments.same_networks):
            self.beside_yes = choice.NETWORK_OPTIONS
        if arguments.trust_records and not arguments.from_snapshot:
            raise UsageError("--trust-records is about saved records.").advising("Add --from-snapshot.")
        for text in arguments.network:
            if "=" not in text:
                raise UsageError(f"--network {text!r} is no pair of networks.").advising(
                    "Give OLD=NEW, with names or UUIDs of networks."
                )
        choice.verify_template(arguments.name)
        #: without the networks, which the pool has
        self.request = choice.CloneRequest(
            arguments.name,
            records.run_id(),
            keep_mac=arguments.keep_mac,
            snapshots=arguments.snapshots,
            without=[cls for cls, is_out in (("VTPM", arguments.no_vtpm), ("VGPU", arguments.no_vgpu)) if is_out],
            omits_disks=arguments.omit_disks,
            jobs=arguments.jobs,
        )

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            copy = choice.copy_to_use(calls, pool, found, self.given.sr)
            vms, is_all = self.given.vms, self.given.all
            has_records = any(map(save_vms.is_named, copy.vdis.values()))
            if self.given.from_snapshot:
                saved = save_vms.read(calls, copy, self.given.trust_records)
                sources = save_vms.choose(pool, found, copy, saved, vms, is_all)
            else:
                try:
                    sources = choice.choose(pool, found, copy, vms, is_all, self.request.omits_disks)
                except NotFound as error:
                    error.advising(_GONE if has_records else "")
                    raise
            wanted, with_network = self._with_networks(calls, found, copy, sources, dry_run=True)
            if not self.given.same_networks:
                choice.verify_networks_said(found, sources, wanted)
            planned = clone.would(calls, pool, with_network, copy, sources, wanted)
            copied = [source for source, each in zip(sources, planned) if each.error is None]
            used = ", ".join(map(said, sorted(set(choice.used_networks(found, copied, wanted).values()))))
            warnings = [clone.SAME_NETWORK.format(used)] if used else []
            new = [source for source, each in zip(sources, planned) if each.status == clone.WOULD]
            beside = [repr(found.vms[ref]["name_label"]) for ref in choice.clones_beside(found, copy, new, wanted)]
            warnings += [clone.SAME_ORIGINAL.format(some_of(beside))] if beside else []
            todo = [_said(source) for source, each in zip(sources, planned) if each.status == clone.WOULD]
            alone = choice.of_no_vm(found, copy) if is_all and not self.given.from_snapshot else []
            if alone:
                disks = ", ".join(f"{pair.name_label!r} ({pair.new})" for pair in alone)
                ways = _FROM_RECORDS if has_records else ""
                warnings.append(f"{_OF_NO_VM}: {disks}. {ways}`rescue` lends a single disk.")
            plan = _cloned(_of_plan(planned), [*self._to_know(wanted), _SCANS] if todo else (), alone=alone)
            if todo and not (self.dry_run or self.yes):
                self.show(plan._replace(text=f"Planned:\n{plan.text}"))
            for warning in warnings:
                self.warn(warning)
            if self.dry_run:
                return plan
            halted = {str(vm["uuid"]) for vm in found.vms.values() if vm["power_state"] == "Halted"}
            if not todo:  # no question for an empty plan
                return _cloned(planned, halted=halted, alone=alone)
            ask(self, f"Clone {counted(len(todo), 'VM')}?")
            records.verify_not_discarded(calls, [copy.uuid])  # before a network is made for the clones
            found = inventory.read(calls)  # the pool may have changed during the question
            with self.so_far.work(todo), waiting("the pool"):
                records.verify_readable(calls, copy.uuid)
                wanted, found = self._with_networks(calls, found, copy, sources, dry_run=False)
                results = clone.clone(
                    calls, pool, found, copy, sources, wanted, partial(self._tell, todo, time.monotonic())
                )
        is_any = any(each.status == clone.MADE for each in results)
        # a plan has said it before the question
        return _cloned(results, clone.TO_KNOW if is_any and self.yes else (), halted, alone)

    def _to_know(self, wanted: choice.CloneRequest) -> List[str]:
        """Return what a person must know before the run: the network of the copies, and what their guests share."""
        is_new = wanted.isolated == inventory.NULL
        network = f"The network {self.given.isolated or ''!r} "
        network += "would be made: it would have no physical interface." if is_new else "is there already."
        return [*([network] if wanted.isolated else []), *clone.TO_KNOW]

    def _with_networks(
        self, calls: Calls, found: Inventory, copy: Copy, sources: Sequence[VmSource], dry_run: bool
    ) -> Tuple[choice.CloneRequest, Inventory]:
        """Return the request with the networks of the pool, and the inventory with the isolated network.

        Raises NotFound, Refused, UsageError.
        """
        pairs = [_pair(found, sources, text) for text in self.given.network]
        wanted = self.request._replace(networks=choice.networks(found, sources, pairs))
        if self.given.isolated:
            ref, found = choice.isolated_network(calls, found, self.given.isolated, dry_run, copy.uuid)
            wanted = wanted._replace(isolated=ref)
        return wanted, found

    def _tell(self, todo: Sequence[str], begun: float, source: VmSource, status: str) -> None:
        """Print the start ("") or end of a VM, and report to `so_far`. Several threads may call.

        In a terminal, also print the remaining time, by the VMs of `todo` that were made since `begun`.
        """
        state = UNDER_WAY if not status else FAILED if status == clone.FAILED else DONE
        line = printable(f"VM {source.name!r}: {status or 'begins'}")
        self.so_far.tell(_said(source), state, status if state == DONE else "clone", line)
        if not (self.json or self.quiet):
            made, failed = self.so_far.count(todo, DONE), self.so_far.count(todo, FAILED)
            is_known = is_terminal(sys.stderr) and made >= self.request.jobs
            left = time_left(made, len(todo) - failed, time.monotonic() - begun) if is_known else ""
            say(line + left)


def _pair(found: Inventory, sources: Sequence[VmSource], text: str) -> Tuple[str, str]:
    """Return an old and a new network of OLD=NEW. Raises NotFound, UsageError for a name with "=" that is not clear."""
    parts = text.split("=")
    pairs = [("=".join(parts[:at]), "=".join(parts[at:])) for at in range(1, len(parts))]
    if len(pairs) == 1:
        return pairs[0]
    meant = []
    for pair in pairs:
        with suppress(NotFound):
            choice.networks(found, sources, [pair])
            meant.append(pair)
    if not meant:
        raise NotFound(f"--network {text!r} names no network of the VMs and a network of the pool.").advising(
            "`xe network-list params=uuid,name-label` lists the networks."
        )
    if len(meant) > 1:
        ways = ", or as ".join(f"{said(old)} to {said(new)}" for old, new in meant)
        raise UsageError(f"--network {text!r} can be read as {ways}.").advising("Give UUIDs of networks.")
    return meant[0]


Row = TypeVar("Row", Cloned, Restored)


def _of_plan(rows: Sequence[Row]) -> List[Row]:
    """Return the rows of a plan: none has failed yet."""
    return [row if row.error is None else row._replace(status="would fail") for row in rows]


def _said(source: VmSource) -> str:
    return f"{source.name!r} ({source.uuid})"


_OF_NO_VM = "These disks are on the copy, but no VM of the pool has them, and they will not be cloned"
_GONE = "--from-snapshot clones a VM that the pool no longer has, from the saved records on the copy."
_FROM_RECORDS = "--from-snapshot clones VMs from saved records. "


def _cloned(
    results: Sequence[Cloned], to_know: Sequence[str] = (), halted: Container[str] = (), alone: Sequence[Pair] = ()
) -> Answer:
    """Return the results, or a plan. `halted` are VMs (UUIDs): a clone of an earlier run among them can be started.

    `alone` are the disks that no VM has. A warning has named them.
    """
    lines: List[str] = []
    steps: List[ShellCommand] = []
    for each in results:
        of = (
            f" {each.name!r}" + (f" ({each.uuid})" if each.uuid else "")
            if each.error is None or each.status == clone.MADE
            else ""
        )
        verb = "would become" if each.status == clone.WOULD else "became"
        lines.append(f"VM {each.vm_name!r}: {each.status}{of}")
        lines += [f"  disk {disk.userdevice}: {disk.old} {verb} {disk.new}" for disk in each.disks]
        lines += [f"  network {device}: {old!r} {verb} {new!r}" for device, (old, new) in sorted(each.networks.items())]
        for name, disks in each.snapshots:
            lines += [f"  with its snapshot {name!r}"]
            lines += [f"    disk {disk.userdevice}: {disk.old} {verb} {disk.new}" for disk in disks]
        lines += [f"  {note}" for note in each.notes]
        if each.error is not None:
            lines.append(f"  {each.error}")
        is_new = each.status == clone.MADE and each.error is None
        if is_new or each.status == clone.ALREADY and each.uuid in halted:
            steps.append(_start(each.uuid))
    facts = {
        "clone_results": [each.facts() for each in results],
        "disks_of_no_vm": [pair.facts() for pair in alone],
    }
    status = exit_status([each.error for each in results])
    alerts = [f"VM {each.vm_name!r}: {each.error}" for each in results if each.error is not None]
    text = "\n".join([*map(printable, lines), *to_know])
    return Answer(facts, text, status, next_steps=steps, alerts=alerts)


# --- restore


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
            missing = "" if self.end else _missing(SR=arguments.sr, VM=self.vms)
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
            planned = self._of_each(calls, pool, found, copy, vms, bar, dry_run=True)
            todo = [row for row in planned if row.status in _WOULD_BE]
            to_know = _TO_KNOW.get(self.end, ()) if todo else ()
            is_scanned = any(row.status == restore.WOULD for row in planned)
            plan = _all_restored(_of_plan(planned), [*to_know, *([_SCANS] if is_scanned else [])], pool=pool)
            if self.dry_run:
                return plan
            if not todo:
                return _all_restored(planned, steps=_next_of(calls, planned)[0])
            if not self.yes:
                self.show(plan)
            ask(self, _QUESTIONS[self.end].format(", ".join(repr(row.name) for row in todo)))
            shown: ContextManager[Any] = waiting("the pool")
            if self.end == "home":
                shown = bar
            with self.so_far.work([repr(row.name) for row in todo]), shown:
                results = self._of_each(calls, pool, found, copy, vms, bar, dry_run=False)
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
        dry_run: bool,
    ) -> List[Restored]:
        """Restore each VM to the copy; without a copy, end its restore. Return the results.

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
                        swaps = restore.plan(pool, found, copy, vm, self.devices, records.now())
                        result = restore.restore(calls, vm, swaps, self.given.shutdown, dry_run)
                    elif restore.nothing_to_end(found, pool, vm, self.end):
                        notes = [restore.nothing_to_end(found, pool, vm, self.end)]
                        result = restore.result_of(found.vms[vm], restore.NOT_RESTORED, notes=notes)
                    elif self.end == "undo":
                        result = restore.undo(calls, vm, self.given.shutdown, dry_run)
                    elif self.end == "home":

                        def tell(disk: str, of: str = name) -> None:
                            if not (self.json or self.quiet):
                                say(printable(f"VM {of!r}: disk {disk} is being moved"))

                        result = move_home.home(calls, vm, tell, dry_run, bar)
                    else:
                        may_stay = self.given.on_copy or not self.yes  # a person reads the plan
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
    if len(results) == 1:
        return _restored(results[0], to_know, steps, pool)
    answers = [_restored(result) for result in results]
    texts = [each.text for each in answers]
    rows = [{**each.facts(), "problem": None if each.error is None else str(each.error)} for each in results]
    status = exit_status([each.error for each in results])
    alerts = [f"VM {each.name!r}: {each.error}" for each in results if each.error is not None]
    return Answer({"restore_results": rows}, "\n".join([*texts, *to_know]), status, next_steps=steps, alerts=alerts)


def _missing(**arguments: Any) -> str:
    """Return the names of the missing arguments, as a sentence."""
    names = [name for name, value in arguments.items() if not value]
    return f" Missing: {', '.join(names)}."


_SHUTS_DOWN = "the VM is running: the run would shut the VM down and leave the VM halted"
_WOULD_BE = (restore.WOULD, restore.WOULD_UNDO, restore.WOULD_HOME, restore.WOULD_KEEP)


def _restored(result: Restored, to_know: Sequence[str] = (), steps: Steps = (), pool: Optional[Pool] = None) -> Answer:
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
    if result.shuts_down:
        is_ahead = result.status in _WOULD_BE
        lines.append(
            f"  {_SHUTS_DOWN if is_ahead else 'the VM was shut down and is halted: start the VM when you are ready'}"
        )
    before = {disk.old for disk in result.disks if result.status == restore.HOME}
    for uuid in result.waiting:
        what = "disk before, once nobody needs it" if uuid in before else "no longer needed"
        lines.append(f"  {what}: `{shell_command('xe vdi-destroy', f'uuid={uuid}')}`")
    lines += [f"  {note}" for note in result.notes]
    lines += [f"  {result.error}"] if result.error is not None else []
    if result.status in (restore.DONE, restore.ALREADY):
        lines.append(f"  later: {shell_command('relvmoiscsi pool restore', home=result.vm)}")
        lines.append(f"  or:    {shell_command('relvmoiscsi pool restore', undo=result.vm, shutdown=True)}")
    return Answer(result.facts(), "\n".join([*map(printable, lines), *to_know]), next_steps=steps)


def _next_of(calls: Calls, results: Sequence[Restored]) -> Tuple[List[ShellCommand], List[str]]:
    """Return (the next steps after restores, and after their ends, notes on copies that stay).

    First come the starts, then each unused copy once.

    The journal of a VM names the copies, and a vm-admin may write the journal. So a step has only a copy of an SR on
    which the VM has a disk now.
    """
    steps, notes = [], []  # type: List[ShellCommand], List[str]
    unused: Dict[str, List[str]] = {}  #: UUIDs of copies that a VM needs no more, by UUID of the VM
    for each in results:
        if each.status in (restore.DONE, restore.UNDONE) or each.is_halted:
            steps.append(_start(each.vm))
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
                discards, stays = _discard(calls, copy)
                steps, notes = [*steps, *discards], [*notes, *stays]
    return steps, notes


def _discard(calls: Calls, copy: str) -> Tuple[List[ShellCommand], List[str]]:
    """Return (the discard of a copy (a UUID) that a VM needs no more, or why the copy stays), each a list.

    A discard takes the disks of halted VMs, and with --with-vms the VMs: nobody has said that these are not needed.
    """
    with suppress(PoolFailure, PoolGone):  # the work is done; `discard` makes the same plan
        sr = records.read(calls).sr_by_uuid(copy)
        try:
            plan = made_vms.plan(calls, [] if sr is None else [sr], with_vms=True)
        except Refused as used:
            return [], [printable(f"The copy cannot be discarded yet. {used.told}")]
        made = {ref: str(vm["name_label"]) for of_sr in plan.made.values() for ref, vm in of_sr.items()}
        if made or plan.all_losers():
            later = shell_command("relvmoiscsi pool discard", copy, with_vms=bool(made))
            users = forget.named({**made, **plan.all_losers()})
            name = plan.pool.srs[plan.pool.sr_by_uuid(copy) or ""]["name_label"]
            said_ = f"The copy {name!r} has disks of other VMs: {users}. After you no longer need these VMs: `{later}`"
            return [], [printable(said_)]
    return [shell_command("relvmoiscsi pool discard", copy)], []


def _start(vm: str) -> ShellCommand:
    return shell_command("xe vm-start", f"uuid={vm}")


# --- rescue


class RescueCommand(PoolChange):
    """Lend a disk of a copy to a VM, or take lent disks back."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        done = arguments.done
        if done and arguments.rw or not done and not (arguments.vdi and arguments.vm):
            missing = "" if done else _missing(VDI=arguments.vdi, **{"--vm": arguments.vm})
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
                steps, notes = _discard(calls, copy.uuid) if is_back else ([], [])
                return _lent(copy, results, notes, steps)
            assert vdi is not None and vm is not None
            planned = rescue.lend(calls, pool, found, copy, vdi, vm, rw, dry_run=True)
            warning = rescue.warning(found, copy, vdi, vm)
            if warning:
                self.warn(warning)
            if self.dry_run:
                return _lent(copy, [planned], [_SCANS] if planned.status == rescue.WOULD else [])
            if planned.status == rescue.WOULD:
                ask(self, f"Lend {planned.name!r} to {planned.vm_name!r}, {_MODES[planned.mode]}?")
            with self.work(repr(planned.name), "lend"), waiting("the pool"):
                result = rescue.lend(calls, pool, found, copy, vdi, vm, rw)
        to = found.vms[vm]
        start = [_start(to["uuid"])] if to["power_state"] == "Halted" else []
        return _lent(copy, [result], [rescue.TO_KNOW] + ([] if rw else [rescue.READ_ONLY]), start)


_MODES = {"RO": "read-only", "RW": "with write access"}


def _taken(found: Inventory, vbd: str, row: Lent) -> str:
    """Return which disk is taken back from which VM, and whether that VM runs, as part of a question."""
    is_running = found.vms[found.vbds[vbd]["VM"]]["power_state"] == "Running"
    return f"{row.name!r} from {row.vm_name!r}" + (", which is running" if is_running else "")


def _lent(copy: Copy, results: Sequence[Lent], to_know: Sequence[str] = (), steps: Steps = ()) -> Answer:
    lines = []
    for each in results:
        at = f", device {each.userdevice}" if each.userdevice else ""
        at = f", {_MODES[each.mode]}" if each.status == rescue.WOULD else at
        lines.append(printable(f"disk {each.name!r} ({each.vdi}): {each.status}, VM {each.vm_name!r}{at}"))
        lines += [printable(f"  {each.error}")] if each.error is not None else []
        if each.status in (rescue.DONE, rescue.ALREADY):
            lines.append(f"  later: `{shell_command('relvmoiscsi pool rescue --done', copy.uuid, each.vdi)}`")
    status = exit_status([each.error for each in results])
    facts = {"rescue_results": [each.facts() for each in results]}
    alerts = [f"disk {each.name!r} ({each.vdi}): {each.error}" for each in results if each.error is not None]
    return Answer(facts, "\n".join([*lines, *to_know]), status, next_steps=steps, alerts=alerts)


# --- save-vms


class SaveVmsCommand(PoolChange):
    """Save VM records on an SR, for the clones of the next snapshot."""

    def run(self) -> Answer:
        with self.opened() as (calls, pool):
            found = inventory.read(calls)
            sr = records.find_sr(pool, self.given.sr)
            refs = save_vms.vms_on(pool, found, sr)
            names = ", ".join(repr(found.vms[ref]["name_label"]) for ref in refs)
            if self.dry_run:
                would = [{"vm": found.vms[ref]["uuid"], "vm_name": found.vms[ref]["name_label"]} for ref in refs]
                lines = [f"The records of these VMs would be saved: {names}"]
                lines += [f"Left out: {each.told}" for each in save_vms.away_from(pool, found, sr).values()]
                return Answer({"would_save": would}, "\n".join(map(printable, lines)))
            ask(self, f"Save the records of {names}?")
            with self.work(repr(pool.srs[sr]["name_label"]), "save the records"), waiting("the pool"):
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                saved, vdi, failed = save_vms.save(calls, pool, found, sr, when)
        vms = [vm for vm in saved.vms if vm.uuid not in failed]
        lines = [f"VM {vm.name_label!r}: saved" for vm in vms]
        alerts = [f"VM {said(name)}: failed: {error}" for name, error in failed.values()]
        lines += alerts
        lines.append(f"The VM records of {saved.when} are on the VDI {vdi}, without vTPM contents.")
        alerts.append(f"The fingerprint of the records is {saved.fingerprint}: note it for use in another pool.")
        lines.append(alerts[-1])
        lines.append("Make the snapshot on the array, and map its clone.")
        step = shell_command("relvmoiscsi pool luns")
        facts: Dict[str, Any] = {
            "sr": saved.sr_uuid,
            "records_vdi": vdi,
            "saved_at": saved.when,
            "saved": [{"vm": vm.uuid, "vm_name": vm.name_label} for vm in vms],
            "not_saved": [{"vm_name": name, "problem": error} for name, error in failed.values()],
            "fingerprint": saved.fingerprint,
        }
        status = exit_status([], is_partial=bool(failed))
        return Answer(facts, "\n".join(map(printable, lines)), status, next_steps=[step], alerts=alerts)
