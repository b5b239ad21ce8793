# SPDX-License-Identifier: LGPL-2.1-only
"""Destroy the clones of VMs on a copy, then forget the SR of the copy. The VDIs leave the pool with the SR.

Or unplug the SR on all hosts, and keep it. Each way to less of a VM passes `verify_copies_left`.

A VM with the marks of another VM is left unchanged: a person has copied a clone together with its marks. `plan` raises
every refusal before `carrying_out` destroys a VM. `carrying_out` makes the checks of `plan` again.
"""

from contextlib import contextmanager
from typing import Callable, Collection, Container, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Busy, Refused, RelvmoiscsiError
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record, Records, passing
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vdis import is_derived
from relvmoiscsi.pool.vms import forget, inventory, owners, run_states, vbds
from relvmoiscsi.pool.vms.forget import Uses
from relvmoiscsi.pool.vms.inventory import COPY_OF, Inventory
from relvmoiscsi.pool.vms.owners import whose
from relvmoiscsi.wording import said, shell_command, some_of

_DEFAULT = "default_template"  #: key of VM.other_config


class DiscardPlan(NamedTuple):
    """The objects that are discarded with some SRs, by reference of the SR."""

    pool: Pool
    uses: Dict[str, Uses]  #: with `force`, as if the VMs in `made` were halted
    made: Dict[str, Records]  #: the VMs that are destroyed, each followed by its snapshots; {} without `with_vms`
    forgets: bool = True  #: False: the SR is unplugged, and stays in the pool with its VDIs; the VMs stay too
    mark: str = ""  #: only VMs with this mark are in `made`
    force: bool = False  #: the VMs in `made` are shut down first, hard
    destroys: Mapping[str, str] = {}  #: the commands to destroy the losers that are copies and nothing more, by VM
    half: Sequence[str] = ()  #: the unfinished clones, which `with_vms` does not destroy
    last: Sequence[str] = ()  #: of `verify_copies_left`: whether the clones are destroyed or stay

    def losers(self, sr: str) -> Dict[str, str]:
        """Return the halted VMs and snapshots that would lose a disk on this SR: names by reference."""
        going = self.made.get(sr, {})
        return {ref: name for ref, name in self.uses[sr].halted.items() if ref not in going}

    def all_losers(self) -> Dict[str, str]:
        """Return the losers of every SR."""
        return {ref: name for sr in self.uses for ref, name in self.losers(sr).items()}

    def clones_left(self) -> Dict[str, str]:
        """Return the losers that `with_vms` would destroy, or refuse as unfinished: names by reference."""
        return {ref: name for ref, name in self.all_losers().items() if self.destroys.get(ref)}

    def eject_advice(self) -> str:
        """Return how a person empties the CD drives that have disks of these SRs, for a sentence; "" without any."""
        return forget.eject_advice(self.uses.values(), self.all_losers())

    def told(self, sr: str) -> Uses:
        """Return the uses of this SR that the plan names, with the VMs that are destroyed."""
        made = {ref: str(vm["name_label"]) for ref, vm in self.made.get(sr, {}).items()}
        return self.uses[sr]._replace(halted={**made, **self.uses[sr].halted})


# --- plan


_SHUT_DOWN = "Shut the VM down, then repeat the command."


def plan(
    calls: Calls,
    srs: Sequence[str],
    with_vms: bool,
    mark: str = "",
    force: bool = False,
    last_copies: bool = False,
    forgets: bool = True,
) -> DiscardPlan:
    """Return what `carrying_out` would do with those of these SRs that the pool has. `with_vms` needs `forgets`.

    Raises PoolFailure; Refused for a refused part, such as the last copy of a VM without `last_copies`. Where another
    client works on a refused SR, the refusal is that of the lock: the advice would be to undo the work of that client.
    """
    pool, found = records.read(calls), inventory.read(calls)
    verify_abandoned(calls, pool, found, srs)
    try:
        may_go = None if last_copies else ()
        planned = _planned(pool, found, srs, with_vms, mark, force, may_go)
        for made in planned.made.values():
            verify_destroyable(calls, made)
        return planned._replace(forgets=forgets)
    except Refused:
        lock.verify_free(calls, [lock_keys.name_of(pool.srs[sr]) for sr in srs if sr in pool.srs])
        raise


def _planned(
    pool: Pool,
    found: Inventory,
    srs: Sequence[str],
    with_vms: bool,
    mark: str,
    force: bool,
    may_go: Optional[Container[str]],
) -> DiscardPlan:
    """Return the plan of `plan` by these records. Raises Refused."""
    there = [sr for sr in srs if sr in pool.srs]
    is_off = with_vms and force
    after = _turned_off(found, {str(pool.srs[sr]["uuid"]) for sr in there}, mark) if is_off else found
    uses = {}
    for sr in there:
        records.verify_copy(pool, sr)
        records.verify_on_own_lun(pool, sr)
        forget.verify_hosts_up(pool, sr)
        uses[sr] = forget.uses_of(after, sr, str(pool.srs[sr]["uuid"]))
    forget.verify_unused(pool, uses)
    for sr, used in uses.items() if mark else ():
        ours = {ref for ref, vm in found.vms.items() if records.is_marked(vm, mark)}
        others = {ref: name for ref, name in used.halted.items() if ref not in ours}
        if others:
            way = "" if others.keys() <= used.ejects.keys() else "Move these disks, or destroy these VMs."
            raise Refused(
                f"VMs that were made without the mark {mark} have disks on the SR {pool.srs[sr]['name_label']!r}: "
                f"{forget.named(others)}."
            ).advising(f"{way}{forget.eject_advice([used], others)}".strip())
    made = {sr: made_on(found, pool, sr, mark, force) for sr in there} if with_vms else {}
    destroys = {ref: found.destroy_command(ref, *there) for used in uses.values() for ref in used.halted}
    half = [ref for sr in there for ref in half_made(found, pool, sr, mark)]
    last = verify_copies_left(pool, found, there, may_go)
    return DiscardPlan(pool, uses, made, mark=mark, force=force, destroys=destroys, half=half, last=last)


def verify_copies_left(
    pool: Pool,
    found: Inventory,
    srs: Sequence[str],
    may_go: Optional[Container[str]] = (),
    of: Optional[Container[str]] = None,
) -> List[str]:
    """Return the last copies of VMs on these SRs, of the VMs `of` or of all.

    Raises Refused for a last copy that may not go; `may_go` has the last copies that a person gives up, None all.
    """
    last = [ref for ref in last_copies_on(pool, found, srs) if of is None or ref in of]
    kept = [ref for ref in last if may_go is not None and ref not in may_go]
    if kept:
        raise _keeping(pool, found, kept)
    return last


def last_copies_on(pool: Pool, found: Inventory, srs: Sequence[str]) -> List[str]:
    """Return the clones with disks on these SRs whose original is gone, by name. Pure.

    A vm-admin may write the keys of any VM, and xapi does not say what VM.copy has copied. So no other copy of a VM
    counts. A VM counts as the original only if it does not go with these SRs, and its disks are left (`_is_left`). What
    a discard has left of a clone has no disk, and so nothing that could be lost. The VMs of another pool are there.
    """
    of_pool = [sr for sr in srs if pool.sr_by_uuid(records.original_of(pool, pool.srs[sr]["uuid"]))]
    clones = dict(row for sr in of_pool for row in found.copies_on(str(pool.srs[sr]["uuid"])))
    own = {}
    for ref in [ref for ref in inventory.in_order(clones) if inventory.is_own(clones[ref])]:
        there = {device: disk for device, disk in _written_by(found, ref).items() if disk["SR"] in srs}
        if there:
            own[ref] = there
    originals = {str(vm["uuid"]): ref for ref, vm in found.named_vms().items() if ref not in own}
    by_clone = {ref: originals.get(clones[ref]["other_config"][COPY_OF]) for ref in own}
    stay = {str(vdi["uuid"]) for vdi in found.vdis.values() if vdi["SR"] not in srs}
    olds = owners.old_vdis(pool, found)
    return [ref for ref, vm in by_clone.items() if vm is None or not _is_left(pool, found, vm, own[ref], olds, stay)]


def _written_by(found: Inventory, vm: str) -> Dict[str, Record]:
    """Return the VDI records of the drives of a VM that are not for reading alone, by userdevice; and its disks. Pure.

    `clone` has made each disk of a clone as a disk. A vm-admin may change the type of a drive to CD since, and xapi
    makes CD drives for reading alone. Source: xen-api ocaml/xapi/xapi_vbd.ml, create.
    """
    drives = [vbd for vbd in found.vbds_of(vm).values() if vbd["mode"] != "RO" and vbd["VDI"] in found.vdis]
    return {**{str(vbd["userdevice"]): found.vdis[vbd["VDI"]] for vbd in drives}, **found.disks_of(vm)}


def _is_left(
    pool: Pool,
    found: Inventory,
    vm: str,
    disks: Mapping[str, Record],
    olds: Mapping[str, str],
    stay: Container[str],
) -> bool:
    """Is each disk still there that these disks of a clone, by device, are copies of, and one of them the VM's? Pure.

    `olds` are those of `owners.old_vdis`, `stay` the UUIDs of the VDIs that stay. A disk that was taken from the VM
    is there still. So is a later state of a disk, which the VM has; a journal gives it none. Where the pool no longer
    has the VDI, another tool may have moved the disk: then the VM has a disk at the device of the clone, and the LUN
    has no copy of that disk. A vm-admin chooses the VM, by a key of the clone, and not what is on the LUN.
    """
    before = {device: olds.get(disk["uuid"], "") for device, disk in disks.items()}
    on_lun = {olds.get(vdi["uuid"]) for disk in disks.values() for vdi in found.vdis_of(disk["SR"]).values()}
    moved = {device for device, disk in found.disks_of(vm).items() if disk["uuid"] not in on_lun}
    own = {
        device
        for device, old in before.items()
        if vm in whose(pool, found, old, by_journals=False)
        or (old not in stay and (device in moved or not is_derived(disks[device]["uuid"])))
    }
    return bool(own) and all(device in own or old in stay for device, old in before.items())


def _keeping(pool: Pool, found: Inventory, last: Sequence[str]) -> Refused:
    """Return the refusal of a run that would take the last copies of VMs."""
    vms = [found.vms[ref] for ref in last]
    there = {str(sr["uuid"]): str(sr["name_label"]) for sr in pool.srs.values()}
    on = [str(vm["other_config"][inventory.ON_SR]) for vm in vms]
    ways = [inventory.copy_command(vm, records.original_of(pool, sr), there[sr]) for vm, sr in zip(vms, on)]
    names = some_of([f"{vm['name_label']!r} ({vm['uuid']})" for vm in vms])
    return Refused(
        f"The pool no longer has the originals of VMs on the copy, or of their disks: with the LUN of the copy, "
        f"{names} would be lost for ever."
    ).advising(
        f"To keep a VM, copy it to another SR: {some_of(ways)}. {inventory.AFTER_COPY} "
        "Then, or to give the VMs up, add --last-copies."
    )


def _turned_off(found: Inventory, sr_uuids: Collection[str], mark: str) -> Inventory:
    """Return the inventory as if the clones on these SRs with this mark were halted. Pure."""
    off = {
        ref: {**vm, "power_state": "Halted", "suspend_VDI": inventory.NULL}
        for ref, vm in found.vms.items()
        if vm["other_config"].get(inventory.ON_SR) in sr_uuids and inventory.is_own(vm) and records.is_marked(vm, mark)
    }
    drives = {ref: {**vbd, "currently_attached": False} if vbd["VM"] in off else vbd for ref, vbd in found.vbds.items()}
    return found._replace(vms={**found.vms, **off}, vbds=drives)


def verify_nobody_left(plan: DiscardPlan) -> None:
    """Raises Refused where VMs would lose their disks."""
    left = [
        f"{forget.named(plan.losers(sr))} (on the copy {plan.pool.srs[sr]['name_label']!r})"
        for sr in plan.uses
        if plan.losers(sr)
    ]
    if left:
        advice = (
            "Add --with-vms, which destroys the VMs that `relvmoiscsi pool clone` has made, or --leave-vms, which "
            "leaves the VMs without these disks."
        )
        if plan.half:  # --with-vms would be refused
            of_half = {ref: plan.destroys.get(ref, "") for ref in plan.half}
            advice = f"Add --leave-vms to leave all these VMs without their disks. {_way_out(of_half)}"
        elif not plan.clones_left():
            advice = "Give these VMs other disks, or add --leave-vms, which leaves them without these disks."
        advice += plan.eject_advice()
        raise Refused(f"These halted VMs would lose their disks: {'; '.join(left)}.").advising(advice)


def verify_as_told(told: DiscardPlan, now: DiscardPlan) -> None:
    """Raises Refused where the plan in `told` does not name a VM that is destroyed or loses a disk, or a lost disk."""
    for sr in now.uses:
        forget.verify_known(now.pool, sr, now.uses[sr], told.told(sr))


def verify_abandoned(calls: Calls, pool: Pool, found: Inventory, srs: Collection[str]) -> None:
    """Raises Busy where another client may be making a VM on one of these SRs: nobody may be told to destroy that VM.

        t0  the caller has read the VMs, and an unfinished clone was among them
        t1  nobody has locked the copy: the run that has made the clone has ended
        t2  the clone is unfinished still, so that run has left it

    The caller does not hold the locks. Raises PoolFailure.
    """
    for sr in [sr for sr in srs if sr in pool.srs]:
        half = half_made(found, pool, sr)
        lock.verify_free(calls, [lock_keys.name_of(pool.srs[sr])] if half else [])
        for vm, name in half.items():
            with passing("HANDLE_INVALID"):
                if inventory.is_own(calls.call("VM.get_record", vm)):
                    raise Busy(f"Another client has just made the VM {name!r}.").advising("Repeat the command.")


def half_made(found: Inventory, pool: Pool, sr: str, mark: str = "") -> Dict[str, str]:
    """Return the names of the VMs with the marks of a clone on an SR that are no finished clone, by reference. Pure."""
    there = {
        ref: str(vm["name_label"])
        for ref, vm in found.copies_on(str(pool.srs[sr]["uuid"]))
        if not (vm["is_a_snapshot"] or inventory.is_own(vm)) and records.is_marked(vm, mark)
        if any(disk["SR"] == sr for disk in found.disks_of(ref).values())
    }
    return dict(sorted(there.items(), key=lambda row: row[1]))


def _way_out(destroys: Mapping[str, str]) -> str:
    """Return what a person does with unfinished clones; `destroys` has the command of each, "" for none."""
    commands = [command for command in destroys.values() if command]
    moves = " Move the disks of a VM without a command." if len(commands) < len(destroys) else ""
    destroy = f" Otherwise destroy each VM: {', '.join(commands)}." if commands else ""
    return f"If a run of `relvmoiscsi pool clone` was interrupted, repeat that run.{destroy}{moves}"


def made_on(found: Inventory, pool: Pool, sr: str, mark: str = "", force: bool = False) -> Records:
    """Return the VMs with this mark that are destroyed with an SR (a reference), each followed by its snapshots. Pure.

    Raises Refused for all unfinished clones at once; for a VM that has a disk on another SR, is busy, or has an
    operation of the run blocked; without `force`, also for a VM that runs.
    """
    made: Records = {}
    half = half_made(found, pool, sr, mark)
    if half:
        what = ", ".join(f"{name!r} ({found.vms[ref]['uuid']})" for ref, name in half.items())
        raise (
            Refused(f"VMs have disks on this copy, and each is not a finished VM of `relvmoiscsi pool clone`: {what}.")
            .in_state("No VM was destroyed.")
            .advising(_way_out({ref: found.destroy_command(ref, sr) for ref in half}))
        )
    in_order = sorted(
        found.copies_on(str(pool.srs[sr]["uuid"])), key=lambda row: (row[1]["name_label"], row[1]["uuid"])
    )
    for ref, vm in in_order:
        homes = {disk["SR"] for disk in found.disks_of(ref).values()}
        if vm["is_a_snapshot"] or (homes and sr not in homes) or not records.is_marked(vm, mark):
            continue
        name = vm["name_label"]
        if not inventory.is_own(vm):
            continue
        for each, record in {ref: vm, **_snapshots_of(found, ref)}.items():
            what, way_out = f"The VM {name!r}", "Detach that disk"
            if each != ref:
                what, way_out = f"The snapshot {record['name_label']!r} of the VM {name!r}", "Delete the snapshot"
            if any(disk["SR"] != sr for disk in found.disks_of(each).values()):
                raise Refused(f"{what} has a disk that is not on this copy.").advising(f"{way_out}.")
            if each == ref and vm["power_state"] != "Halted":
                if not force:
                    raise Refused(f"The VM {name!r} is not shut down.").advising(_SHUT_DOWN)
                vbds.must_be_allowed(vm, "hard_shutdown")
            vbds.must_be_allowed(record, "destroy")
            why, way = _why_it_stays(record)
            if why:
                raise Refused(f"{what} {why}, and xapi does not destroy it.").advising(way)
            if record["current_operations"]:
                busy = ", ".join(sorted(set(map(str, record["current_operations"].values()))))
                raise Refused(f"{what} is busy: {busy}.").advising("Repeat the command when the VM is idle.")
            made[each] = record
    return made


def _why_it_stays(vm: Record) -> Tuple[str, str]:
    """Return (why xapi destroys no such VM or snapshot, what helps), or twice ""; of that which a vm-admin may cause.

    VM.assert_operation_valid tells neither. Source: xen-api ocaml/xapi/xapi_vm_helpers.ml, destroy; xapi_vtpm.ml.
    """
    of_vm = f"uuid={vm['uuid']}"
    if vm["other_config"].get(_DEFAULT, "").lower() in ("true", "1"):
        remove = shell_command("xe vm-param-remove", of_vm, "param-name=other-config", f"param-key={_DEFAULT}")
        return (
            f"has the key {_DEFAULT} of xapi's own templates",
            f"Remove the key: `{remove}`. Then repeat the command.",
        )
    if vm["is_a_snapshot"] and vm["power_state"] == "Suspended" and vm.get("VTPMs"):
        reset = shell_command("xe snapshot-reset-powerstate", of_vm, "force=true")
        return "has memory and a vTPM", f"Give up the memory: `{reset}`. Then repeat the command."
    return "", ""


def verify_destroyable(calls: Calls, made: Records) -> None:
    """Raises PoolFailure where xapi would not destroy one of these VMs and snapshots that do not run."""
    for ref in [ref for ref, vm in made.items() if vm["is_a_snapshot"] or vm["power_state"] == "Halted"]:
        with passing("HANDLE_INVALID VM"):
            calls.call("VM.assert_operation_valid", ref, "destroy")


def _snapshots_of(found: Inventory, vm: str) -> Records:
    """Return the snapshots of a VM, sorted by name."""
    rows = [row for row in found.grouped("vms", "snapshot_of").get(vm, {}).items() if row[1]["is_a_snapshot"]]
    return dict(sorted(rows, key=lambda row: str(row[1]["name_label"])))


# --- carry out


def verify_role(calls: Calls) -> None:
    """Raises PoolFailure where the role of this user may not unplug an SR. To destroy VMs takes a lower role."""
    with run_states.unchanged():
        calls.verify_may_call("PBD.unplug")


@contextmanager
def carrying_out(calls: Calls, told: DiscardPlan) -> Iterator[Callable[[Calls, str, List[str]], None]]:
    """Lock the SRs of a plan, and yield a function that discards or unplugs one of them, if the plan still holds.

    The function does nothing for an SR that is gone. Its list gets the destroyed VMs (references), also before an
    error. It raises PoolFailure; Refused, also where another client works on the SR. Threads may call it. This thread
    has the locks, because after Ctrl-C nobody waits for the others. Raises PoolFailure, also for a lower role.
    """
    verify_role(calls)
    names = {sr: lock_keys.name_of(told.pool.srs[sr]) for sr in told.uses}
    refused: Dict[lock_keys.LockName, Refused] = {}

    def carry_out(calls: Calls, sr: str, gone: List[str]) -> None:
        if names[sr] in refused:
            raise refused[names[sr]]
        with run_states.unchanged():
            pool, found = records.read(calls), inventory.read(calls)
            now = _planned(pool, found, [sr], bool(told.made), told.mark, told.force, told.last)
            if sr not in now.pool.srs:
                return
            verify_as_told(told, now)
        held.verify(calls)
        if told.made:
            destroy_made(calls, held, now.pool, sr, now.made[sr], gone, told.force, told.last)
        (forget.forget if told.forgets else forget.detach)(calls, held, now.pool, sr, now.uses[sr])
        clean_networks(calls)

    with lock.held(calls, names.values(), "discard", refused) as held:
        yield carry_out


def destroy_made(
    calls: Calls,
    held: lock.Held,
    pool: Pool,
    sr: str,
    made: Records,
    gone: Optional[List[str]] = None,
    force: bool = False,
    may_go: Container[str] = (),
) -> None:
    """Destroy the VMs of `made_on` with their snapshots, if the VMs are unchanged; with `force`, after a hard shutdown.

    `held` is the lock of the copy: another client may be making VMs. Skip a VM that is gone. Raises PoolFailure;
    Refused, also for the last copy of a VM that is not in `may_go`.
    """
    held.verify(calls)
    vms = [ref for ref, vm in made.items() if not vm["is_a_snapshot"]]
    if not vms:
        return
    for ref in vms if force else ():
        with passing("HANDLE_INVALID"):
            if calls.call("VM.get_power_state", ref) != "Halted":
                calls.run("VM.hard_shutdown", ref)
    found = inventory.read(calls)
    verify_copies_left(pool, found, [sr], may_go, vms)
    meant = {ref: vm for ref, vm in found.vms.items() if (vm["snapshot_of"] if vm["is_a_snapshot"] else ref) in vms}
    found = found._replace(vms=meant)
    made = made_on(found, pool, sr)
    verify_destroyable(calls, made)
    for ref, vm in made.items():
        if not vm["is_a_snapshot"]:
            destroy(calls, found, ref)
            if gone is not None:
                gone.append(ref)


def destroy(calls: Calls, found: Inventory, vm: str) -> None:
    """Destroy a VM with relvmoiscsi's marks, and all its snapshots; the VDIs stay.

    Raises Refused, PoolFailure.
    """
    record = found.vms.get(vm)
    if record is None or COPY_OF not in record["other_config"]:
        raise Refused(f"The VM {vm} was not made by `relvmoiscsi pool clone`.")
    if record["power_state"] != "Halted":
        raise Refused(f"The VM {record['name_label']!r} is not shut down.").advising(_SHUT_DOWN)
    # a snapshot with memory stays suspended, and VM.destroy accepts the snapshot (xapi_vm_lifecycle.ml)
    for ref in [*_snapshots_of(found, vm), vm]:
        with passing("HANDLE_INVALID VM"):
            calls.call("VM.destroy", ref)


def clean_networks(calls: Calls, but: Collection[str] = ()) -> None:
    """Destroy the networks that `clone` has made for copies that are gone, or for the SRs `but` (UUIDs), without VIFs.

    A network also stays if `clone` has used the network for copies on another SR of the pool. xapi would destroy the
    VIFs of halted VMs together with a network. `calls.notes` gets a sentence where the pool fails, or destroys no such
    network: the copy is gone. A vm-admin may make a network that looks so.
    """
    left = None
    stay: Dict[str, PoolFailure] = {}
    try:
        for ref, network in calls.records("network").items():
            srs = inventory.owners_of(network)
            if not srs or network["PIFs"]:
                continue
            if left is None:
                left = {str(sr["uuid"]) for sr in calls.records("SR").values()} - set(but)
            try:
                with passing("NETWORK_CONTAINS_VIF", "HANDLE_INVALID"):
                    if not srs & left and not calls.call("network.get_VIFs", ref):
                        calls.call("network.destroy", ref)
            except PoolFailure as failure:
                stay[f"{said(network['name_label'])} ({network['uuid']})"] = failure
    except (PoolFailure, PoolGone) as failure:
        _note_once(calls, "Networks that `clone` has made may stay in the pool without a VM", "", failure)
    if stay:
        names = some_of(sorted(stay))
        what = "The pool did not destroy networks with the marks of `clone`"
        _note_once(calls, what, f": {names}", stay[min(stay)])


def _note_once(calls: Calls, what: str, names: str, failure: RelvmoiscsiError) -> None:
    """Note this once for a session, with the failure: a run cleans up behind each SR."""
    calls.notes += [] if any(each.startswith(what) for each in calls.notes) else [f"{what}{names}. {failure}"]
