# SPDX-License-Identifier: LGPL-2.1-only
"""Forget an attached copy: unplug the SR, destroy the PBDs, forget the SR. The LUN stays unchanged.

No code calls SR.destroy, which wipes a LUN. Only SRs that `attach` has introduced are forgotten. An SR with a disk of a
running VM is refused. The uses of the SR are read again after a question to the person, and again after the unplug:

    t0  the run reads which VMs have disks on the SR, and which disks have no VM
    t1  a halted VM gets a disk on the SR, or somebody makes a disk there
    t2  the unplug succeeds, because a halted VM does not block an unplug
    t3  the run reads the uses again, finds what is new, and plugs the SR again

Nobody makes a disk on an SR without a plugged PBD, and a VDI.create that has begun refuses the unplug. So no disk comes
behind t3. Source: xen-api ocaml/xapi/xapi_sr_operations.ml, message_forwarding.ml.

After a kill, the next run skips the finished steps.
"""

from typing import AbstractSet, Collection, Dict, Iterable, List, Mapping, NamedTuple, Sequence

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, in_state
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record, passing
from relvmoiscsi.pool.hosts import MEMBER_SECONDS
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import restore_entries, run_states
from relvmoiscsi.pool.vms.inventory import Inventory, eject_command, is_lent
from relvmoiscsi.pool.vms.owners import lost_with
from relvmoiscsi.pool.vms.vbds import unblock_command, way_to_reset
from relvmoiscsi.wording import said, shell_command, some_of


class Uses(NamedTuple):
    """VMs that use VDIs of an SR: names, by reference of the VM."""

    running: Dict[str, str]  #: VMs with a plugged VDI, or suspended VMs with their memory on the SR
    halted: Dict[str, str]  #: other VMs, and snapshots of VMs, also snapshots with memory; these VMs lose the disk
    restored: Dict[str, str]  #: by UUID: VMs whose journal names this copy; such a VM may have no disk at the moment
    before: Dict[str, str]  #: by UUID: VMs whose journal names a disk on this SR, from before the restore
    lent: Dict[str, str]  #: VMs with a VDI that `rescue` has lent, running or halted
    control: Dict[str, str]  #: control domains, by their VBDs as `xe` names them: "uuid=..."
    plugged: List[str]  #: the VBDs of the running VMs that xapi unplugs, as `xe` names them
    shutdowns: List[str]  #: for a sentence: the commands that shut the running and the suspended VMs down
    resets: List[str]  #: what helps where xapi's record of a halted VM says that its drives are plugged
    #: for a sentence: the commands that empty the CD drives of VMs without a disk there, by VM
    ejects: Dict[str, List[str]]
    lost: List[Record]  #: the disks without a VM that are lost with the SR: those of `owners.lost_with`
    vdis: AbstractSet[str]  #: the UUIDs of all VDIs of the SR


def eject_advice(uses: Iterable[Uses], vms: Collection[str]) -> str:
    """Return how a person empties the CD drives of these VMs (references), for a sentence; "" without such drives."""
    ejects = [command for used in uses for ref in vms for command in used.ejects.get(ref, ())]
    return f" Empty each CD drive: {some_of(ejects)}." if ejects else ""


def uses_of(found: Inventory, sr: str, sr_uuid: str = "") -> Uses:
    """Return the uses of an SR (a reference). Pure.

    A snapshot of a VM never runs: a snapshot with memory is suspended, and its VBDs are attached permanently.
    """
    vms, vbds, sr_vdis = found.vms, found.vbds, found.vdis_of(sr)
    uuids = {str(vdi["uuid"]) for vdi in sr_vdis.values()}
    uses = Uses({}, {}, {}, {}, {}, {}, [], [], [], {}, lost_with(found, sr), uuids)
    with_disks = {vbd["VM"] for vbd in vbds.values() if vbd["VDI"] in sr_vdis and vbd["type"] != "CD"}
    for vbd in vbds.values():
        if vbd["VDI"] in sr_vdis:
            ref, vm = vbd["VM"], vms.get(vbd["VM"], {})
            if vm.get("is_control_domain"):
                uses.control[f"uuid={vbd['uuid']}"] = str(vm["name_label"])
                continue
            kind = uses.running if vbd["currently_attached"] and not vm.get("is_a_snapshot") else uses.halted
            if vbd["type"] == "CD":
                kind.setdefault(ref, f"{_name_of(ref, vm)} (a CD drive)")
                if ref not in with_disks:
                    uses.ejects.setdefault(ref, []).append(eject_command(vbd))
                continue
            kind[ref] = _name_of(ref, vm)
            can_unplug = kind is uses.running and vm.get("power_state") == "Running"
            uses.plugged.extend([f"uuid={vbd['uuid']}"] if can_unplug else [])
            if is_lent(found, vbd):
                uses.lent[ref] = str(vm["name_label"])
    for vm in found.named_vms().values():
        # The journal of the VM names the SR. The VBDs do not, because an interrupted run may have destroyed a VBD. A VM
        # that was restored from another copy may have a lent disk on this SR. An unreadable journal counts if its text
        # contains the UUID of the SR. `restore` ends the journals of these VMs alone: a snapshot copies the journal.
        swaps, spoiled = restore_entries.read(vm)
        texts = [str(vm["other_config"][key]) for key, _ in spoiled]
        if any(swap.sr == sr_uuid for swap in swaps) or bool(sr_uuid) and any(sr_uuid in text for text in texts):
            uses.restored[str(vm["uuid"])] = str(vm["name_label"])
        elif any(swap.home == sr_uuid for swap in swaps):
            uses.before[str(vm["uuid"])] = str(vm["name_label"])
    for ref, vm in vms.items():
        if vm.get("suspend_VDI") in sr_vdis:
            (uses.halted if vm.get("is_a_snapshot") else uses.running)[ref] = _name_of(ref, vm)
    for vm in [vms[ref] for ref in uses.running if ref in vms]:
        reset = way_to_reset(vm)
        if reset:
            uses.resets.append(reset)
            continue
        of, state = f"uuid={vm['uuid']}", str(vm["power_state"])
        is_asleep = state in ("Suspended", "Paused")  # xapi refuses the clean shutdown
        unblock = unblock_command(vm, "hard_shutdown" if is_asleep else "clean_shutdown")
        first = f"{unblock}, the block of a user, and then " if unblock else ""
        if is_asleep:
            gives_up = shell_command("xe vm-shutdown", of, "force=true")
            uses.shutdowns.append(f"{first}`{gives_up}`, which gives up the memory of the {state.lower()} VM")
        else:
            uses.shutdowns.append(f"{first}`{shell_command('xe vm-shutdown', of)}`")
    return uses._replace(halted={ref: name for ref, name in uses.halted.items() if ref not in uses.running})


def _name_of(ref: str, vm: Record) -> str:
    return str(vm.get("name_label", ref)) + (" (a snapshot)" if vm.get("is_a_snapshot") else "")


def named(found: Mapping[str, str]) -> str:
    """Return the names for a sentence, without duplicates."""
    return ", ".join(map(said, sorted(set(found.values()))))


def read_uses(calls: Calls, srs: Sequence[str]) -> Dict[str, Uses]:
    """Return the uses of each SR. Raises PoolFailure."""
    vbds, vms = calls.records("VBD"), calls.records("VM")
    uuids = {ref: str(record["uuid"]) for ref, record in calls.records("SR").items()}
    vdis = {ref: vdi for sr in srs for ref, vdi in calls.records("VDI", SR=sr).items()}
    found = Inventory(vms, vbds, {}, {}, vdis)
    return {sr: uses_of(found, sr, uuids.get(sr, "")) for sr in srs}


def verify_unused(pool: Pool, uses: Dict[str, Uses]) -> None:
    """Raises Refused where the pool needs a VDI of an SR; the error names the users of all these SRs.

    The user is a running VM, a VM that was restored from the copy, a VM with a lent VDI, or a control domain.
    """
    whats, ways = [], []
    shutdowns: List[str] = []
    unplugs: List[str] = []
    ejects: List[str] = []
    for sr, found in uses.items():
        name, uuid = pool.srs[sr]["name_label"], pool.srs[sr]["uuid"]
        if found.restored or found.before:
            ends = [
                " or ".join(run_states.restore_command(end, vm) for end in ("home", "undo"))
                for vm in sorted({**found.restored, **found.before})
            ]
            if found.restored:
                whats.append(f"VMs were restored from the SR {name!r}: {named(found.restored)}.")
            if found.before:
                whats.append(f"The SR {name!r} has the disks from before a restore of VMs: {named(found.before)}.")
            ways.append(
                f"End each restore first, also an interrupted one: {some_of(ends)}. --home keeps the restored state, "
                "and --undo gives the state up. --keep moves no disk and removes the journal: it is for a VM whose "
                "restored disks a person has replaced by other disks."
            )
        elif found.lent:
            whats.append(f"Disks of the SR {name!r} are lent to VMs: {named(found.lent)}.")
            ways.append(f"Take the disks back: `{shell_command('relvmoiscsi pool rescue --done', uuid)}`.")
        elif found.running:
            halted = ", or halted VMs with plugged drives by xapi's record," if found.resets else ""
            whats.append(f"Running or suspended VMs{halted} have disks on the SR {name!r}: {named(found.running)}.")
            shutdowns += found.shutdowns
            ways += found.resets
            unplugs += [f"`{shell_command('xe vbd-unplug', of)}`" for of in found.plugged]
            ejects += [command for ref in found.running for command in found.ejects.get(ref, ())]
        elif found.control:
            removes = [
                f"`{shell_command('xe vbd-unplug', of)}` and then `{shell_command('xe vbd-destroy', of)}`"
                for of in found.control
            ]
            whats.append(
                f"Control domains have disks of the SR {name!r}: {named(found.control)}. A backup may be reading the "
                "disks."
            )
            ways.append(f"Wait for the backup, or remove each disk: {some_of(removes)}.")
    ways += [f"Shut each VM down: {some_of(list(dict.fromkeys(shutdowns)))}."] if shutdowns else []
    ways += [f"Or unplug the disks: {some_of(unplugs)}."] if unplugs else []
    ways += [f"Or empty each CD drive, which no suspended VM allows: {some_of(ejects)}."] if ejects else []
    ways += ["To keep a VM in use, move its disks to another SR instead."] if unplugs else []
    if whats:
        raise Refused(" ".join(whats)).advising(" ".join(dict.fromkeys(ways)))


def verify_hosts_up(pool: Pool, sr: str) -> None:
    """Raises Refused where a host with the SR is down, by xapi's records: the discard could not finish."""
    down = [host for host, (_, pbd) in pool.pbds_of(sr).items() if pbd["currently_attached"] and not pool.is_live(host)]
    if down:
        name, hosts = pool.srs[sr]["name_label"], ", ".join(sorted(map(pool.host_name, down)))
        raise (
            Refused(f"The SR {name!r} is still attached on hosts that are down: {hosts}.")
            .in_state("Nothing was unplugged.")
            .advising("Start these hosts, or remove the hosts from the pool, then discard again.")
        )


def verify_known(pool: Pool, sr: str, uses: Uses, told: Uses) -> None:
    """Raises Refused where a VM has a disk on the SR, or a disk has no VM, that a person was not told of in `told`.

    Of a VM with a CD drive alone, a person was told that it loses no disk.
    """
    name, only_cd = pool.srs[sr]["name_label"], told.ejects.keys() - uses.ejects.keys()
    new = {ref: vm for ref, vm in uses.halted.items() if ref not in told.halted or ref in only_cd}
    if new:
        raise Refused(f"VMs got disks on the SR {name!r} since the run began: {named(new)}.").advising(
            f"Check these VMs, then repeat the command.{eject_advice([uses], new)}"
        )
    lost = [vdi for vdi in uses.lost if vdi["uuid"] not in told.vdis]
    if lost:
        disks = some_of([f"{said(vdi['name_label'])} ({said(vdi['uuid'])})" for vdi in lost])
        raise Refused(f"The SR {name!r} got disks without a VM since the run began: {disks}.").advising(
            "Check these disks, then repeat the command."
        )


def forget(calls: Calls, held: lock.Held, pool: Pool, sr: str, told: Uses) -> None:
    """Forget an SR that the caller has locked, and checked: a copy without users. Raises the errors of `detach`."""
    detach(calls, held, pool, sr, told)
    held.verify(calls)
    plug = f"`{shell_command('relvmoiscsi pool attach', lock_keys.name_of(pool.srs[sr]))}` plugs the SR again."
    with in_state("The SR is now unplugged on all hosts.", Refused, advice=plug):
        _verify_nothing_new(calls, pool, sr, told)
    with passing("HANDLE_INVALID"):
        calls.call("SR.forget", sr)


def detach(calls: Calls, held: lock.Held, pool: Pool, sr: str, told: Uses) -> None:
    """Unplug one SR on all hosts and destroy its PBDs, which a starting host would plug. The SR and its VDIs stay.

    `told` are the uses that a person knows. The caller has locked the SR, and checked that it is a copy without users.

    Raises PoolFailure. Raises Refused where the SR has got other uses; then the SR is plugged again. Raises Refused
    where a host is down.
    """
    records.verify_on_own_lun(pool, sr)
    verify_hosts_up(pool, sr)
    pbds = pool.pbds_of(sr)
    order = [host for host in reversed(pool.hosts_in_order()) if host in pbds]  # the master unplugs last
    plugged = [host for host in order if pbds[host][1]["currently_attached"]]
    again = [pbds[host][0] for host in reversed(plugged)]
    try:
        _unplug(calls, [pbds[host][0] for host in plugged if host != pool.master])
        _unplug(calls, [pbds[pool.master][0]] if pool.master in pbds else [])
    except PoolFailure as failure:
        if failure.code == "VDI_IN_USE":
            _plug_again(calls, again)
            verify_unused(pool, read_uses(calls, [sr]))
        raise
    try:
        _verify_nothing_new(calls, pool, sr, told)
    except Refused:
        _plug_again(calls, again)
        raise
    held.verify(calls)
    for host in order:
        with passing("HANDLE_INVALID"):
            calls.call("PBD.destroy", pbds[host][0])


def _verify_nothing_new(calls: Calls, pool: Pool, sr: str, told: Uses) -> None:
    """Raises Refused where the SR has got other uses since the last read, PoolFailure."""
    uses = read_uses(calls, [sr])
    verify_unused(pool, uses)
    verify_known(pool, sr, uses[sr], told)


def _unplug(calls: Calls, pbds: Sequence[str]) -> None:
    """Unplug in parallel. Raises the first PoolFailure after all tasks have ended, or MEMBER_SECONDS have passed."""
    tasks: List[str] = []
    failures: List[PoolFailure] = []
    for pbd in pbds:
        with passing("HANDLE_INVALID"):
            tasks.append(calls.start("PBD.unplug", pbd))
    deadline = Deadline(MEMBER_SECONDS)
    for task in tasks:
        try:
            with passing("HANDLE_INVALID"):
                calls.wait("PBD.unplug", task, deadline)
        except PoolFailure as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def _plug_again(calls: Calls, pbds: Sequence[str]) -> None:
    """Plug the PBDs again, so that a VM with a disk on the SR can start on every host."""
    deadline = Deadline(MEMBER_SECONDS)
    for pbd in pbds:
        try:
            calls.wait("PBD.plug", calls.start("PBD.plug", pbd), deadline)
        except (PoolFailure, PoolGone):
            pass  # the caller reports the failed unplug; `attach` plugs the PBD later
