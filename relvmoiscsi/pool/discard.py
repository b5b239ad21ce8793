# SPDX-License-Identifier: LGPL-2.1-only
"""Forget an attached copy: unplug, destroy the PBDs, forget the SR. What is on the LUN stays as it is.

SR.destroy, which wipes a LUN, is never called. Only SRs that `attach` has introduced are forgotten, and none on which a
running VM has a disk. What is gone is done: a run that was killed is finished by the next.
"""

from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Sequence

from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import vdis
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Records
from relvmoiscsi.pool.records import Pool, is_copy
from relvmoiscsi.pool.vms.inventory import is_restored


class Uses(NamedTuple):
    """The VMs that have disks on an SR."""

    running: List[str]  #: names of those that have one plugged, or their memory there while they are suspended
    halted: List[str]  #: of the others; the disk goes from them
    restored: List[str] = []  #: of those whose own disks these are, since a `restore`


def verify_copy(pool: Pool, sr: str) -> None:
    """Raises Refused for an SR that was not introduced by `attach`."""
    record = pool.srs[sr]
    if not is_copy(record):
        raise Refused(
            "The SR {!r} ({}) is no copy that `relvmoiscsi pool attach` has introduced.".format(
                record["name_label"], record["uuid"]
            )
        )


def uses_of(sr_vdis: Records, vbds: Records, vms: Records) -> Uses:
    """Who has disks among these VDIs. Pure."""
    found: Dict[bool, List[str]] = {True: [], False: []}
    restored = set()
    for vbd in vbds.values():
        if vbd["VDI"] in sr_vdis:
            vm = vms.get(vbd["VM"], {})
            name = str(vm.get("name_label", vbd["VM"]))
            found[bool(vbd["currently_attached"])].append(name)
            if vm and is_restored(vm) and not vm["is_a_snapshot"]:
                restored.add(name)
    found[True] += [str(vm["name_label"]) for vm in vms.values() if vm.get("suspend_VDI") in sr_vdis]
    running = sorted(set(found[True]))
    return Uses(running, sorted(set(found[False]) - set(running)), sorted(restored))


def read_uses(calls: Calls, srs: Sequence[str]) -> Dict[str, Uses]:
    """Who has disks on each SR. Raises PoolFailure."""
    vbds, vms = calls.records("VBD"), calls.records("VM")
    return {sr: uses_of(vdis.of_sr(calls, sr), vbds, vms) for sr in srs}


def verify_unused(pool: Pool, uses: Dict[str, Uses]) -> None:
    """Raises Refused where a running VM has a disk there, or one that was restored from it."""
    for sr, found in uses.items():
        if found.restored:
            raise Refused(
                "VMs were restored from the SR {!r} and have their disks there: {}. Take them home first "
                "(`relvmoiscsi pool restore --home`), or undo that (`--undo`).".format(
                    pool.srs[sr]["name_label"], ", ".join(found.restored)
                )
            )
        if found.running:
            raise Refused(
                "Running or suspended VMs have disks on the SR {!r}: {}. Shut them down, or unplug the disks.".format(
                    pool.srs[sr]["name_label"], ", ".join(found.running)
                )
            )


def verify_hosts_up(pool: Pool, sr: str) -> None:
    """Raises Refused where a host is down and has the SR, as far as xapi knows: it would stay half discarded."""
    down = [host for host, (_, pbd) in pool.pbds_of(sr).items() if pbd["currently_attached"] and not pool.live[host]]
    if down:
        raise Refused(
            "The SR {!r} cannot be discarded while these hosts are down, as the pool has it attached there: {}. "
            "Nothing was unplugged. Start them, or remove them from the pool.".format(
                pool.srs[sr]["name_label"], ", ".join(sorted(map(pool.host_name, down)))
            )
        )


def discard(calls: Calls, pool: Pool, sr: str) -> None:
    """Forget one SR; the caller has made sure that it is a copy and not in use. Raises what `detach` does."""
    detach(calls, pool, sr)
    with _gone_is_done():
        calls.call("SR.forget", sr)


def detach(calls: Calls, pool: Pool, sr: str) -> None:
    """Take one SR from all hosts, with its PBDs: hosts plug those that are there when they start. The SR stays, and
    what the pool knows of its VDIs and who has them.

    The caller has made sure that it is a copy and not in use. Raises PoolFailure; Refused where a VM has begun to use
    it, which then goes on as before, or where a host is down.
    """
    verify_hosts_up(pool, sr)
    pbds = pool.pbds_of(sr)
    order = [host for host in reversed(pool.hosts_in_order()) if host in pbds]  # the master is the last
    plugged = [host for host in order if pbds[host][1]["currently_attached"]]
    try:
        _unplug(calls, [pbds[host][0] for host in plugged if host != pool.master])
        if pool.master in pbds:
            _unplug(calls, [pbds[pool.master][0]])
    except PoolFailure as failure:
        if failure.code == "VDI_IN_USE":
            _plug_again(calls, [pbds[host][0] for host in reversed(plugged)])
            verify_unused(pool, read_uses(calls, [sr]))
        raise
    for host in order:
        with _gone_is_done():
            calls.call("PBD.destroy", pbds[host][0])


def _unplug(calls: Calls, pbds: Sequence[str]) -> None:
    """All of them at once. Raises the first PoolFailure, when all have ended."""
    tasks = []
    failures = []
    for pbd in pbds:
        with _gone_is_done():
            tasks.append(calls.start("PBD.unplug", pbd))
    for task in tasks:
        try:
            with _gone_is_done():
                calls.finish("PBD.unplug", task)
        except PoolGone:
            raise
        except PoolFailure as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def _plug_again(calls: Calls, pbds: Sequence[str]) -> None:
    """A VM that uses the SR may then go to other hosts, as before."""
    for pbd in pbds:
        try:
            calls.run("PBD.plug", pbd)
        except PoolFailure:
            pass  # the failure to unplug is what is told; attach plugs what is not


@contextmanager
def _gone_is_done() -> Iterator[None]:
    try:
        yield
    except PoolFailure as failure:
        if failure.code != "HANDLE_INVALID":
            raise
