# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool clone`: make VMs from the disks of a copy."""

import argparse
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Container, List, Sequence, Tuple

from relvmoiscsi.cli.output import Answer, ask, is_terminal, say, waiting
from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.pool import jobs, records
from relvmoiscsi.pool.commands.options import CommandMaker, PoolChange, changes, exit_status, flag
from relvmoiscsi.pool.commands.so_far import DONE, FAILED, UNDER_WAY
from relvmoiscsi.pool.commands.vm_steps import SCANS, next_start, of_plan
from relvmoiscsi.pool.vdis import Pair
from relvmoiscsi.pool.vms import choice, clone, inventory, save_vms
from relvmoiscsi.pool.vms.choice import VmSource
from relvmoiscsi.pool.vms.clone import Cloned
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.wording import ShellCommand, counted, printable, said, some_of, time_left

_CLONE = """\
The command makes halted VMs that use the disks of the copy; no data is copied. Say which networks the new VMs
are on: --isolated, --network or --same-networks. The command refuses a VM with a disk that is not on the copy,
unless --omit-disks is given. The new VMs have new MACs. They have no HA, no PCI devices, no tags and no keys of
backup tools. After an interrupted or failed run, repeat the command: no VM is made twice.

example:
  relvmoiscsi pool clone "Production changed 2026-11-21" --all --isolated night"""


def add_command(command: CommandMaker) -> None:
    cloning = command("clone", CloneCommand, "make VMs from the disks of a copy", _CLONE)
    cloning.add_argument("sr", metavar="SR", help="the copy, by UUID, name or SCSIid")
    cloning.add_argument("vms", metavar="VM", nargs="*", help="VMs whose disks are on the copy, by UUID or name")
    flag(cloning, "--all", "select all VMs that have disks on the copy")
    cloning.add_argument(
        "--name",
        metavar="TEXT",
        default=inventory.NAME,
        help="name of the new VMs; {vm}, {sr}, and {date}, the day of LVM's last change, are replaced; several VMs "
        "need {vm}; default: " + inventory.NAME,
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


class CloneCommand(PoolChange):
    """Make VMs from the disks of a copy."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        if arguments.jobs < 1:
            raise UsageError(f"--jobs {arguments.jobs} is too small.").advising("Give 1 or more VMs in parallel.")
        if not (arguments.vms or arguments.all):
            raise UsageError("No VM is selected.").advising("Give VMs, or --all.")
        if arguments.vms and arguments.all:
            raise UsageError("--all selects every VM, and VMs are named beside it.").advising("Give VMs, or --all.")
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
        #: without the pairs of networks, which the pool has
        self.request = choice.CloneRequest(
            arguments.name,
            records.run_id(),
            keep_mac=arguments.keep_mac,
            snapshots=arguments.snapshots,
            without=[cls for cls, is_out in (("VTPM", arguments.no_vtpm), ("VGPU", arguments.no_vgpu)) if is_out],
            omits_disks=arguments.omit_disks,
            jobs=arguments.jobs,
            isolated_name=arguments.isolated or "",
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
            wanted = self.request._replace(pairs=[_pair(found, sources, text) for text in self.given.network])
            wanted, with_network = choice.on_networks(calls, found, copy, sources, wanted, dry_run=True)
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
            warnings += [each for each in [clone.warning(found)] if todo and each]
            alone = choice.of_no_vm(pool, found, copy) if is_all and not self.given.from_snapshot else []
            if alone:
                disks = ", ".join(f"{pair.name_label!r} ({pair.new})" for pair in alone)
                ways = _FROM_RECORDS if has_records else ""
                warnings.append(f"{_OF_NO_VM}: {disks}. {ways}`rescue` lends a single disk.")
            plan = _cloned(of_plan(planned), [*self._to_know(wanted), SCANS] if todo else (), alone=alone)
            if todo and not (self.dry_run or self.yes):
                self.show(plan._replace(text=f"Planned:\n{plan.text}"))
            for warning in warnings:
                self.warn(warning)
            if self.dry_run:
                return plan
            halted = {str(vm["uuid"]) for vm in found.vms.values() if vm["power_state"] == "Halted"}
            if not todo:  # no question for an empty plan
                if any(each.status == clone.ALREADY for each in planned):
                    records.verify_readable(calls, copy.uuid)
                return _cloned(planned, halted=halted, alone=alone)
            ask(self, f"Clone {counted(len(todo), 'VM')}?")
            with self.so_far.work(todo), waiting("the pool"):
                tell = partial(self._tell, todo, time.monotonic())
                results = clone.clone(calls, pool, copy, sources, wanted, tell)
        is_any = any(each.status == clone.MADE for each in results)
        # a plan has said it before the question
        return _cloned(results, clone.TO_KNOW if is_any and self.yes else (), halted, alone)

    def _to_know(self, wanted: choice.CloneRequest) -> List[str]:
        """Return what a person must know before the run: the network of the copies, and what their guests share."""
        is_new = wanted.isolated == inventory.NULL
        network = f"The network {self.given.isolated or ''!r} "
        network += "would be made: it would have no physical interface." if is_new else "is there already."
        return [*([network] if wanted.isolated else []), *clone.TO_KNOW]

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
            steps.append(next_start(each.uuid))
    facts = {
        "clone_results": [each.facts() for each in results],
        "disks_of_no_vm": [pair.facts() for pair in alone],
    }
    status = exit_status([each.error for each in results])
    alerts = [f"VM {each.vm_name!r}: {each.error}" for each in results if each.error is not None]
    text = "\n".join([*map(printable, lines), *to_know])
    return Answer(facts, text, status, next_steps=steps, alerts=alerts)
