# SPDX-License-Identifier: LGPL-2.1-only
"""Lend a disk of a copy to a VM, read-only unless a person asks for write access; take lent disks back."""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.pool import lock, records
from relvmoiscsi.pool.calls import NO_READ_ONLY_DISK, Calls, PoolFailure, Record, passing
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, owners, restore_entries, run_states, vbds
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.wording import human_size, said, shell_command, some_of

#: fields of the VBD of a lent disk
_VBD: Mapping[str, Any] = {
    "userdevice": "autodetect", "bootable": False, "type": "Disk", "unpluggable": True, "empty": False,
    "qos_algorithm_type": "", "qos_algorithm_params": {},
}  # fmt: skip

#: status of a disk
DONE, ALREADY, WOULD, BACK = "lent", "already lent", "would be lent", "taken back"
WOULD_BACK, FAILED = "would be taken back", "failed"

TO_KNOW = "Do not attach the original to this guest too: LVM and filesystem IDs would clash."
READ_ONLY = (
    "The disk is read-only. If a filesystem must replay its journal to mount, use --rw, which writes only to the copy."
)


class Lent(NamedTuple):
    """Result for one disk."""

    vdi: str  #: UUID
    name: str
    vm_name: str
    status: str
    mode: str = ""  #: RO or RW
    userdevice: str = ""
    error: Optional[RelvmoiscsiError] = None

    def facts(self) -> Dict[str, Any]:
        return {
            "vdi": self.vdi,
            "vdi_name": self.name,
            "vm_name": self.vm_name,
            "status": self.status,
            "mode": self.mode,
            "userdevice": self.userdevice,
            "problem": None if self.error is None else str(self.error),
        }


def find(found: Inventory, copy: Copy, text: str) -> str:
    """Return the VDI of the copy with this UUID or name, or the original VDI's UUID. Raises NotFound, UsageError."""
    new = copy.new_of(text.lower())
    if new is not None:
        return copy.by_uuid[new["uuid"]]
    listed = f"`{shell_command('relvmoiscsi pool map', copy.uuid)}` lists the VDIs of the copy."
    of_disks = owners.of_disks(found, copy)

    def details(vdi: Record) -> str:
        old = copy.origin.old_of(vdi)
        vms = [] if old is None else of_disks.get(old["uuid"], [])
        kinds = ["a snapshot"] if vdi["is_a_snapshot"] else []
        what = ", ".join([*kinds, "of " + some_of(list(map(repr, vms))) if vms else "of no VM"])
        return f" ({what}, {human_size(vdi['virtual_size'])})"

    managed = {ref: vdi for ref, vdi in copy.vdis.items() if vdi["managed"]}
    try:
        return records.find(managed, text, "VDI", listed, details=details)
    except NotFound:
        uuids = {text.lower(), copy.origin.new_of(text.lower())}
        hidden = [vdi for vdi in copy.vdis.values() if not vdi["managed"]]
        if any(vdi["uuid"] in uuids or vdi["name_label"] == text for vdi in hidden):
            raise NotFound(
                f"{text!r} is a hidden base copy: it has the common blocks of other VDIs, and no VM can use it."
            ).advising(f"Give a VDI that is not hidden: {listed}") from None
        raise


# --- lend


def lend(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, vdi: str, vm: str, writable: bool, dry_run: bool = False
) -> Lent:
    """Attach a disk to a VM, and plug the disk in if the VM runs. Raises Refused, PoolFailure.

    If the plug fails, the VBD is destroyed. Otherwise the VM would get the disk at its next boot.
    """
    with run_states.unchanged():
        if _lent_to(found, vdi, vm) is None:
            calls.verify_may_call("VBD.create")
        if dry_run:
            return _plan(pool, found, copy, vdi, vm, writable)
    to = found.vms[vm]
    with lock.held(calls, lock.names_of(calls, [copy.uuid]), "rescue") as held:
        with run_states.unchanged():
            records.verify_not_discarded(calls, [copy.uuid])
            planned = _plan(pool, found, copy, vdi, vm, writable)
            records.verify_readable(calls, copy.uuid)
        vbd, status = _lent_to(found, vdi, vm), ALREADY
        if vbd is None:
            _verify_still_free(calls, found, vdi)
            mark = f"{to['uuid']} {copy.vdis[vdi]['uuid']}"
            held.verify(calls)
            fields = {"VM": vm, "VDI": vdi, "mode": planned.mode, "other_config": {inventory.LENT: mark}}
            vbd, status = str(calls.call("VBD.create", {**_VBD, **fields})), DONE
        if to["power_state"] == "Running" and not calls.call("VBD.get_currently_attached", vbd):
            try:
                calls.run("VBD.plug", vbd)
            except PoolFailure as failure:
                with passing("HANDLE_INVALID"):
                    calls.call("VBD.destroy", vbd)
                raise failure.in_state(f"The disk was removed from the VM {to['name_label']!r}.") from failure
            status = DONE
        return planned._replace(status=status, userdevice=str(calls.call("VBD.get_userdevice", vbd)))


def _plan(pool: Pool, found: Inventory, copy: Copy, vdi: str, vm: str, writable: bool) -> Lent:
    """Return what `lend` would do. Raises Refused."""
    record, to, mode = copy.vdis[vdi], found.vms[vm], "RW" if writable else "RO"
    there = _lent_to(found, vdi, vm)
    for user in [user for user in found.users_of(vdi) if not (user == vm and there)]:
        if writable or found.vms[user]["power_state"] != "Halted":  # the other VM would read changing data
            name = found.vms[user]["name_label"]
            raise Refused(
                f"The VDI {record['uuid']} is a disk of the VM {name!r}: two VMs must not use one disk."
            ).advising(f"Take another VDI or another copy. Or {way_to_free(found, copy, vdi, user)}.")
        vbds.must_be_idle(found.vms[user])
    olds = owners.old_vdis(pool, found)
    kin = owners.kin(found, olds, record["uuid"])
    # an interrupted run may have moved a disk home without a mark
    moved = {swap.userdevice for swap in restore_entries.read(to)[0] if swap.old in kin}
    clash = [
        vbd
        for ref, vbd in found.vbds_of(vm).items()
        if ref != there and vbd["VDI"] in found.vdis
        if found.vdis[vbd["VDI"]]["uuid"] in kin or vbd["userdevice"] in moved
    ]
    if clash:
        uuid = found.vdis[clash[0]["VDI"]]["uuid"]
        what = "the original" if olds.get(record["uuid"]) == uuid else "this or another copy"
        ejects = [inventory.eject_command(vbd) for vbd in clash if vbd["type"] == "CD"]
        raise Refused(
            f"The VM {to['name_label']!r} has {what} of this disk, {said(uuid)}: LVM and filesystem IDs would clash."
        ).advising(
            f"Use another VM. Or empty the CD drive: {some_of(ejects)}."
            if len(ejects) == len(clash)
            else "Use another VM."
        )
    if there is not None and found.vbds[there]["mode"] != mode:
        raise Refused(f"The VM {to['name_label']!r} already has this disk, in another mode.").advising(
            f"Take the disk back first: {_done(copy, vdi, to)}."
        )
    why, way = vbds.why_no_drive(record, mode) if there is None else ("", "")
    if why:
        way = way if vbds.why_no_drive(record, "RO")[0] else f"Lend the disk without --rw. Or: {way}"
        raise Refused(f"The VDI {record['uuid']} {why}, and xapi would not attach it.").advising(way)
    is_running = to["power_state"] == "Running"
    is_whole = there is not None and (not is_running or found.vbds[there]["currently_attached"])
    if is_running and not is_whole and not writable and to.get("domain_type") == "hvm":  # as xapi_vbd.ml plug does
        raise Refused(NO_READ_ONLY_DISK[0]).advising(NO_READ_ONLY_DISK[1])
    return Lent(record["uuid"], record["name_label"], to["name_label"], ALREADY if is_whole else WOULD, mode)


def way_to_free(found: Inventory, copy: Copy, vdi: str, vm: str) -> str:
    """Return how a person takes this disk of the copy from a VM, for "Or ...". No way destroys more than a copy."""
    name, back = found.vms[vm]["name_label"], way_back(found, copy, vdi, vm)
    if back:
        return back
    ejects = found.eject_commands(vdi, vm)
    if ejects:
        return f"eject it from the CD drive of {name!r}: {some_of(ejects)}"
    destroy = found.destroy_command(vm, copy.ref)
    if destroy:
        return f"shut {name!r} down, and run {destroy}: that leaves its disks"
    return f"shut {name!r} down, and remove the disk from it"


def way_back(found: Inventory, copy: Copy, vdi: str, vm: str) -> str:
    """Return how a person takes this disk of the copy back from a VM that it was lent to; "" for any other VM."""
    if not _lent_to(found, vdi, vm):
        return ""
    return f"take the disk back: {_done(copy, vdi, found.vms[vm])}"


def _done(copy: Copy, vdi: str, vm: Record) -> str:
    done = shell_command("relvmoiscsi pool rescue --done", copy.uuid, copy.vdis[vdi]["uuid"], vm=vm["uuid"])
    return f"`{done}`"


def warning(found: Inventory, copy: Copy, vdi: str, vm: str) -> str:
    """Return what a person must know before a disk is lent that halted VMs have too; "" for no such VM.

    A CD drive only reads, as the VM of the lent disk does: it keeps no VM from its start.
    """
    users = [ref for ref in found.users_of(vdi) if ref != vm and not _lent_to(found, vdi, ref)]
    ejects = {ref: found.eject_commands(vdi, ref) for ref in users}
    to, sentences = found.vms[vm], []

    def named(refs: Iterable[str]) -> str:
        return some_of([repr(found.vms[ref]["name_label"]) for ref in refs])

    writers, readers = [ref for ref in users if not ejects[ref]], [ref for ref in users if ejects[ref]]
    if writers:
        sentences.append(
            f"VMs that are shut down have this disk too: {named(writers)}. No such VM can start while "
            f"{to['name_label']!r} runs with the disk. Take the disk back first: {_done(copy, vdi, to)}."
        )
    if readers:
        commands = some_of([each for ref in readers for each in ejects[ref]])
        sentences.append(
            f"The disk is in a CD drive of VMs that are shut down: {named(readers)}. Empty the drive: {commands}."
        )
    return " ".join(sentences)


def _lent_to(found: Inventory, vdi: str, vm: str) -> Optional[str]:
    rows = found.vbds_of(vm)
    return next((ref for ref, vbd in rows.items() if vbd["VDI"] == vdi and inventory.is_lent(found, vbd)), None)


def _verify_still_free(calls: Calls, found: Inventory, vdi: str) -> None:
    """Raises Refused where a VM got the VDI since the pool was read, or changed its power state, or is busy."""
    vbds_now = calls.call("VDI.get_VBDs", vdi)
    known = {ref for ref, vbd in found.vbds.items() if vbd["VM"] in found.vms}  # a VM may be made during a reading
    if not known.issuperset(vbds_now):
        raise Refused("Another client has just attached this disk to a VM.").advising(
            "Check that VM, then repeat the command."
        )
    for vm in {found.vbds[vbd]["VM"] for vbd in vbds_now}:
        now = calls.call("VM.get_record", vm)
        vbds.must_be_idle(now)
        if now["power_state"] != found.vms[vm]["power_state"]:
            raise Refused(f"The VM {now['name_label']!r} has this disk, and is {now['power_state'].lower()} meanwhile.")


# --- take back


def lent(found: Inventory, copy: Copy, vdi: Optional[str] = None, vm: Optional[str] = None) -> List[str]:
    """Return the VBDs that lend disks of the copy, optionally only of a VDI or a VM."""
    return [
        ref
        for ref, vbd in found.vbds.items()
        if vbd["VDI"] in copy.vdis
        and inventory.is_lent(found, vbd)
        and vdi in (None, vbd["VDI"])
        and vm in (None, vbd["VM"])
    ]


def take_back(calls: Calls, found: Inventory, copy: Copy, lent_by: Sequence[str], dry_run: bool = False) -> List[Lent]:
    """Unplug and destroy these VBDs. A disk that fails stops no other disk, such as while another client works.

    Raises PoolFailure where the role of this user does not suffice.
    """
    results = []
    if lent_by:
        with run_states.unchanged():
            calls.verify_may_call("VBD.destroy")
    for vbd in lent_by:
        record = found.vbds[vbd]
        vdi, name = copy.vdis[record["VDI"]], str(found.vms[record["VM"]]["name_label"])
        told = Lent(vdi["uuid"], vdi["name_label"], name, WOULD_BACK, record["mode"], record["userdevice"])
        try:
            vbds.must_be_unplugged(found.vms[record["VM"]], record)
            if not dry_run:
                names = lock.names_of(calls, [copy.uuid])
                with lock.held(calls, names, "rescue --done") as held, passing("HANDLE_INVALID"):
                    if calls.call("VBD.get_currently_attached", vbd):
                        held.verify(calls)
                        calls.run("VBD.unplug", vbd)
                    held.verify(calls)
                    calls.call("VBD.destroy", vbd)
                told = told._replace(status=BACK)
        except RelvmoiscsiError as error:
            # the guest uses the disk
            if isinstance(error, PoolFailure) and error.code in ("DEVICE_DETACH_REJECTED", "DEVICE_DETACH_TIMEOUT"):
                error.advising(f"Unmount the disk in the guest of {name!r}, then repeat the command.")
            told = told._replace(status=FAILED, error=error)
        results.append(told)
    return results
