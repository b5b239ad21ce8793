# SPDX-License-Identifier: LGPL-2.1-only
"""One disk of a copy lent to a VM, read-only unless somebody says otherwise, and taken back."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import lock
from relvmoiscsi.pool.calls import NO_READ_ONLY_DISK, Calls, PoolFailure, PoolGone, Record, passing
from relvmoiscsi.pool.records import OLD_VDI
from relvmoiscsi.pool.vms import devices, inventory
from relvmoiscsi.pool.vms.inventory import Copy, Inventory

#: key of VBD.other_config: UUIDs of the copy, of the VM and of the VDI, as xapi copies it when it copies a VM
LENT = "relvmoiscsi:rescue"

#: status of a disk
DONE, ALREADY, WOULD, BACK = "lent", "already lent", "would be lent", "taken back"
WOULD_BACK, FAILED = "would be taken back", "failed"

#: the guest is at work with the disk
_HELD = ("DEVICE_DETACH_REJECTED", "DEVICE_DETACH_TIMEOUT")

TO_KNOW = "Do not attach the original to this guest too: LVM and filesystem IDs would clash."
READ_ONLY = (
    "The disk is read-only. If a filesystem must replay its journal to mount, use --rw, which writes only to the copy."
)


class Lent(NamedTuple):
    """What became of a disk."""

    vdi: str  #: UUID
    name: str
    vm: str  #: name of the VM
    status: str
    mode: str = ""  #: RO or RW
    userdevice: str = ""
    error: Optional[RelvmoiscsiError] = None

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "error": None if self.error is None else str(self.error)}


def find(copy: Copy, text: str) -> str:
    """The VDI of the copy that somebody named: by its UUID, that of the original, or a name.

    Raises NotFound, UsageError.
    """
    new = copy.new_of(text.lower())
    if new is not None:
        return copy.by_uuid[new["uuid"]]
    return inventory.find_vdi({ref: vdi for ref, vdi in copy.vdis.items() if vdi["managed"]}, text)


def lend(calls: Calls, found: Inventory, copy: Copy, vdi: str, vm: str, writable: bool, dry_run: bool = False) -> Lent:
    """Hang a disk on a VM, and plug it in if that runs. Raises Refused, PoolFailure."""
    names = lock.names_of(calls, [copy.uuid])
    if dry_run:
        planned = _lend(calls, found, copy, vdi, vm, writable, dry_run)
        lock.verify_free(calls, names if planned.status == WOULD else ())
        return planned
    with lock.held(calls, names, "rescue"):
        return _lend(calls, found, copy, vdi, vm, writable, dry_run)


def _lend(calls: Calls, found: Inventory, copy: Copy, vdi: str, vm: str, writable: bool, dry_run: bool) -> Lent:
    record, to = copy.vdis[vdi], found.vms[vm]
    mode = "RW" if writable else "RO"
    there = _lent_to(found, vdi, vm)
    _verify_free(found, copy, vdi, vm if there is not None else "", writable)
    _verify_not_beside_itself(found, copy, vdi, vm, there)
    if there is not None and found.vbds[there]["mode"] != mode:
        raise Refused(
            f"The VM {to['name_label']!r} already has this disk, in another mode. Take the disk back first (--done)."
        )
    told = Lent(record["uuid"], record["name_label"], to["name_label"], WOULD, mode)
    is_running = to["power_state"] == "Running"
    is_whole = there is not None and (not is_running or found.vbds[there]["currently_attached"])
    if is_running and not is_whole and not writable and to.get("domain_type") == "hvm":  # xapi_vbd.ml plug
        raise Refused(NO_READ_ONLY_DISK)
    if dry_run:
        return told._replace(status=ALREADY) if is_whole else told
    if there is None:
        _verify_still_free(calls, found, vdi)
    vbd = there or str(calls.call("VBD.create", _vbd(found, copy, vdi, vm, mode)))
    plugged = is_running and _plug(calls, vbd, to["name_label"])
    device = str(calls.call("VBD.get_userdevice", vbd))
    return told._replace(status=DONE if plugged or there is None else ALREADY, userdevice=device)


def _vbd(found: Inventory, copy: Copy, vdi: str, vm: str, mode: str) -> Dict[str, Any]:
    mark = f"{copy.uuid} {found.vms[vm]['uuid']} {copy.vdis[vdi]['uuid']}"
    return {
        "VM": vm,
        "VDI": vdi,
        "userdevice": "autodetect",
        "bootable": False,
        "mode": mode,
        "type": "Disk",
        "unpluggable": True,
        "empty": False,
        "other_config": {LENT: mark},
        "qos_algorithm_type": "",
        "qos_algorithm_params": {},
    }


def _lent_to(found: Inventory, vdi: str, vm: str) -> Optional[str]:
    rows = found.vbds_of(vm)
    return next((ref for ref, vbd in rows.items() if vbd["VDI"] == vdi and is_lent(found, vbd)), None)


def is_lent(found: Inventory, vbd: Record) -> bool:
    """Is the mark its own, and not of a VM of which this one is a snapshot or a clone?"""
    vm, vdi = found.vms.get(vbd["VM"]), found.vdis.get(vbd["VDI"])
    whose = vbd["other_config"].get(LENT, "").split()[1:]
    return vm is not None and vdi is not None and bool(whose == [vm["uuid"], vdi["uuid"]])


def _verify_free(found: Inventory, copy: Copy, vdi: str, vm: str, writable: bool) -> None:
    """Raises Refused where two would write, or read what another writes."""
    for user in found.users_of(vdi):
        if user != vm and (writable or found.vms[user]["power_state"] != "Halted"):
            name = found.vms[user]["name_label"]
            raise Refused(
                f"The VDI {copy.vdis[vdi]['uuid']} is a disk of the VM {name!r}: two VMs must not use one disk. "
                "Take another VDI or another copy."
            )


def _verify_still_free(calls: Calls, found: Inventory, vdi: str) -> None:
    """Raises Refused where somebody has got the VDI since the pool was read, or starts or moves a VM that has it."""
    vbds = calls.call("VDI.get_VBDs", vdi)
    if not set(vbds) <= set(found.vbds):
        raise Refused("Another client has just attached this disk to a VM. Check that VM, then repeat the command.")
    for vm in {found.vbds[vbd]["VM"] for vbd in vbds}:
        now = calls.call("VM.get_record", vm)
        devices.must_be_idle(now)
        if now["power_state"] != found.vms[vm]["power_state"]:
            raise Refused(f"The VM {now['name_label']!r} has this disk, and is {now['power_state'].lower()} meanwhile.")


def _verify_not_beside_itself(found: Inventory, copy: Copy, vdi: str, vm: str, there: Optional[str]) -> None:
    """Raises Refused where the VM has the disk already, or the one of which it is the copy, or another copy of that."""
    by_uuid = {str(record["uuid"]): record for record in found.vdis.values()}
    mine = _ancestors(by_uuid, copy.vdis[vdi])
    for ref, vbd in found.vbds_of(vm).items():
        disk = found.vdis.get(vbd["VDI"])
        if ref == there or disk is None:
            continue
        is_original = derived_uuid(copy.uuid, disk["uuid"]) == copy.vdis[vdi]["uuid"]
        if is_original or mine & _ancestors(by_uuid, disk):
            what = "the original" if is_original else "this or another copy"
            raise Refused(
                f"The VM {found.vms[vm]['name_label']!r} has {what} of this disk, {disk['uuid']}: LVM and "
                "filesystem IDs would clash. Use another VM."
            )


def _ancestors(by_uuid: Dict[str, Record], vdi: Record) -> Set[str]:
    """The UUIDs of a VDI and of those that it is a copy of, one of the other, as far as the pool knows them."""
    uuid, found = str(vdi["uuid"]), set()  # type: str, Set[str]
    while uuid and uuid not in found:
        found.add(uuid)
        uuid = by_uuid[uuid]["other_config"].get(OLD_VDI, "") if uuid in by_uuid else ""
    return found


def _plug(calls: Calls, vbd: str, name: str) -> bool:
    """Gives whether it was not plugged in. A VM that does not take the disk now does not get it at its next boot: the
    VBD goes. Raises PoolFailure.
    """
    if calls.call("VBD.get_currently_attached", vbd):
        return False
    try:
        calls.run("VBD.plug", vbd)
    except PoolGone:
        raise
    except PoolFailure as failure:
        with passing("HANDLE_INVALID"):
            calls.call("VBD.destroy", vbd)
        raise failure.in_state(f"The disk was removed from the VM {name!r}.") from failure
    return True


def lent(found: Inventory, copy: Copy, vdi: Optional[str] = None, vm: Optional[str] = None) -> List[str]:
    """The VBDs by which disks of the copy are lent: all, or those of a VDI or to a VM. Raises NotFound."""
    rows = [
        ref
        for ref, vbd in found.vbds.items()
        if vbd["VDI"] in copy.vdis and is_lent(found, vbd) and vdi in (None, vbd["VDI"]) and vm in (None, vbd["VM"])
    ]
    if not rows:
        raise NotFound(f"No such disk of {copy.name!r} is lent to a VM.")
    return rows


def take_all_back(calls: Calls, found: Inventory, copy: Copy, vbds: Sequence[str]) -> List[Lent]:
    """The same of several, where one that fails stops no other."""
    results = []
    for vbd in vbds:
        try:
            results.append(take_back(calls, found, copy, vbd))
        except RelvmoiscsiError as error:
            results.append(told(found, copy, vbd, FAILED)._replace(error=error))
    return results


def take_back(calls: Calls, found: Inventory, copy: Copy, vbd: str) -> Lent:
    """Unplug a lent disk and take it from its VM. Raises PoolFailure; Refused where another client works on the
    copy.
    """
    with lock.held(calls, lock.names_of(calls, [copy.uuid]), "rescue --done"):
        _take_back(calls, found, vbd)
    return told(found, copy, vbd, BACK)


def _take_back(calls: Calls, found: Inventory, vbd: str) -> None:
    try:
        if calls.call("VBD.get_currently_attached", vbd):
            calls.run("VBD.unplug", vbd)
        calls.call("VBD.destroy", vbd)
    except PoolFailure as failure:
        if failure.code in _HELD:
            name = found.vms[found.vbds[vbd]["VM"]]["name_label"]
            failure.in_state(f"Unmount the disk in the guest of {name!r}, then repeat the command.")
        if failure.code != "HANDLE_INVALID":
            raise


def told(found: Inventory, copy: Copy, vbd: str, status: str) -> Lent:
    """What is, or was, lent by a VBD."""
    record = found.vbds[vbd]
    vdi, name = copy.vdis[record["VDI"]], found.vms[record["VM"]]["name_label"]
    return Lent(vdi["uuid"], vdi["name_label"], name, status, record["mode"], record["userdevice"])
