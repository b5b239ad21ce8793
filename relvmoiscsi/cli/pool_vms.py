# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on VMs of a pool that have, or are to have, their disks on a copy: clone, restore, rescue, save-vms."""

import argparse
import threading
import time
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.cli.asking import ask, must_be_able_to_ask
from relvmoiscsi.cli.output import Answer, say
from relvmoiscsi.errors import Partial, RelvmoiscsiError, UsageError
from relvmoiscsi.pool import discard, jobs, records
from relvmoiscsi.pool.calls import Calls
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import clone, inventory
from relvmoiscsi.pool.vms.clone import Cloned, Source
from relvmoiscsi.pool.vms.inventory import Copy, Inventory
from relvmoiscsi.wording import printable

_CLONE = """\
Each is a new VM, halted, whose disks are those of the copy, and nothing is copied. A VM with a disk that is not on the
copy is refused. HA, PCI devices, tags and keys of backup tools stay behind, MACs are new. Run it again whatever has
ended it: a VM that is there is found by its marks, and none is made twice.

example:
  relvmoiscsi pool clone "Production 2026-11-22" --all --isolated lab"""


class Tools(NamedTuple):
    """What every command on a pool has."""

    command: Callable[[str, Any, str, str], argparse.ArgumentParser]  #: name, what runs it, what it does, more
    changes: Callable[[argparse.ArgumentParser], None]  #: adds --dry-run and --yes
    opened: Callable[[argparse.Namespace], ContextManager[Tuple[Calls, Pool]]]
    run_id: Callable[[], str]


def add_commands(tools: Tools) -> None:
    """Describe the commands and their arguments."""
    cloning = tools.command("clone", lambda found: _clone(found, tools), "make VMs of the disks of a copy", _CLONE)
    cloning.add_argument("sr", metavar="SR", help="the copy, by UUID or name")
    cloning.add_argument("vms", metavar="VM", nargs="*", help="whose disks it has, by UUID or name")
    cloning.add_argument("--all", action="store_true", help="all VMs that have disks there")
    cloning.add_argument(
        "--name", metavar="TEXT", default=clone.NAME, help="of the new VMs, with {vm}, {date}, {sr}; {vm} {date}"
    )
    nets = cloning.add_mutually_exclusive_group()
    nets.add_argument("--isolated", metavar="NET", help="put all on this network, which leads nowhere; made if need be")
    nets.add_argument(
        "--network",
        metavar="PAIR",
        action="append",
        default=[],
        help="OLD=NEW, networks: put VIFs elsewhere; repeatable",
    )
    cloning.add_argument("--keep-mac", action="store_true", help="the MACs of the originals")
    cloning.add_argument("--snapshots", action="store_true", help="with the snapshots of the VMs that are on the copy")
    cloning.add_argument("--no-vtpm", action="store_true", help="without vTPM, whose contents are secrets")
    cloning.add_argument("--no-vgpu", action="store_true", help="without virtual GPUs")
    cloning.add_argument("--jobs", metavar="N", type=int, default=jobs.MOST, help="VMs at once, 10 unless said")
    tools.changes(cloning)


# --- clone


def _clone(arguments: argparse.Namespace, tools: Tools) -> Answer:
    must_be_able_to_ask(arguments)
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: at least one VM at a time.")
    if not (arguments.vms or arguments.all):
        raise UsageError("No VM is named: give VMs, or --all.")
    with tools.opened(arguments) as (calls, pool):
        found = inventory.read(calls)
        copy = _copy(pool, found, arguments.sr)
        sources = clone.choose(found, copy, arguments.vms, arguments.all)
        wanted, with_network = _wanted(arguments, calls, found, tools.run_id(), dry_run=True)
        clone.verify_macs(found, sources, wanted)
        planned = clone.would(with_network, copy, sources, wanted)
        if arguments.dry_run:
            return Answer({"vms": [each.facts() for each in planned]}, _cloned_text(planned))
        if not arguments.yes:
            say(_cloned_text(planned))
        ask(arguments, f"Clone {len(sources)} VMs?")
        wanted, found = _wanted(arguments, calls, found, tools.run_id(), dry_run=False)
        results = clone.clone(calls, pool, found, copy, sources, wanted, _told(arguments))
    lines = [_cloned_text(results), *_to_know(found, sources, wanted, results)]
    return Answer({"vms": [each.facts() for each in results]}, "\n".join(lines), _status(results))


def _copy(pool: Pool, found: Inventory, text: str) -> Copy:
    """The copy that somebody named. Raises NotFound, Refused, UsageError."""
    ref = records.find_sr(pool, text)
    discard.verify_copy(pool, ref)
    return inventory.copy_of(pool, found, ref)


def _wanted(
    arguments: argparse.Namespace, calls: Calls, found: Inventory, run: str, dry_run: bool
) -> Tuple[clone.Wanted, Inventory]:
    """What the arguments say, and the networks with the isolated one. Raises NotFound, Refused, UsageError."""
    without = [cls for cls, is_out in (("VTPM", arguments.no_vtpm), ("VGPU", arguments.no_vgpu)) if is_out]
    wanted = clone.Wanted(
        arguments.name,
        time.strftime("%Y-%m-%d"),
        run,
        networks=_networks(found, arguments.network),
        keep_mac=arguments.keep_mac,
        snapshots=arguments.snapshots,
        without=without,
        jobs=arguments.jobs,
    )
    if arguments.isolated:
        ref, found = clone.isolated_network(calls, found, arguments.isolated, dry_run)
        wanted = wanted._replace(isolated=ref)
    return wanted, found


def _networks(found: Inventory, texts: Sequence[str]) -> Dict[str, str]:
    chosen = {}
    for text in texts:
        old, separator, new = text.partition("=")
        if not separator:
            raise UsageError(f"--network {text!r}: it is OLD=NEW, names or UUIDs of networks.")
        uuid = str(found.networks[inventory.find_network(found, old)]["uuid"])
        chosen[uuid] = inventory.find_network(found, new)
    return chosen


def _told(arguments: argparse.Namespace) -> Callable[[str, str], None]:
    """Lines of what begins and what ends, from whatever thread."""
    lock = threading.Lock()

    def tell(name: str, status: str) -> None:
        with lock:
            say(printable(f"{name}: {status or 'begins'}"))

    return (lambda *_: None) if arguments.json else tell


def _cloned_text(results: Sequence[Cloned]) -> str:
    lines: List[str] = []
    for each in results:
        of = f' "{each.name}"' + (f" ({each.uuid})" if each.uuid else "") if each.error is None else ""
        lines.append(f"{each.vm_name}: {each.status}{of}")
        lines += [f"  disk {disk.userdevice}: {disk.old} became {disk.new}" for disk in each.disks]
        lines += [f"  network {device}: {old} became {new}" for device, (old, new) in sorted(each.networks.items())]
        lines += [f'  with its snapshot "{name}"' for name in each.snapshots]
        lines += [f"  {note}" for note in each.notes]
        if each.error is not None:
            lines.append(f"  {each.error}")
    return "\n".join(map(printable, lines))


def _to_know(
    found: Inventory, sources: Sequence[Source], wanted: clone.Wanted, results: Sequence[Cloned]
) -> Sequence[str]:
    """What a person has to know before a copy is started."""
    if not any(each.status == clone.MADE for each in results):
        return ()
    return (*clone.TO_KNOW, *((clone.SAME_NETWORK,) if clone.used_networks(found, sources, wanted) else ()))


def _status(results: Sequence[Cloned]) -> int:
    """That of the error where one VM was asked for."""
    if clone.are_whole(results):
        return 0
    error = results[0].error
    if len(results) == 1 and isinstance(error, RelvmoiscsiError):
        return error.exit_status
    return Partial.exit_status
