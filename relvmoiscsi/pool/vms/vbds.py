# SPDX-License-Identifier: LGPL-2.1-only
"""Read a VM, its drives, the VDIs of its restore and their users: the disk at each device, and the users of a VDI.

Read again before each step: other clients change VMs. What can they change, and what must see it?

    the lock, the power state, blocked_operations       each step, from the record of the VM
    the drives of the VM                                each step: `must_have`, `must_take`
    a VDI that a step gives to the VM, and its users    each step: `must_take`, `must_be_free`
    the journal                                         each look at all disks
    whose data a VDI has                                each look at all disks, if the VM does not have the disk itself

The last question alone needs the records of all VMs and VDIs (`VmNow.whole`). One reading serves all disks of the VM,
because a vm-admin may write the keys of 256 disks.
"""

from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Tuple

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.records import Pool, shown_device
from relvmoiscsi.pool.vms import inventory, restore_entries
from relvmoiscsi.pool.vms.device_numbers import AT_ANOTHER, places_of
from relvmoiscsi.pool.vms.inventory import NULL, Inventory, eject_command
from relvmoiscsi.pool.vms.restore_entries import Swap
from relvmoiscsi.wording import said, shell_command, some_of

_LONGEST = 200  #: characters of the UUID of a moved disk, which is any text that xapi took


class VmDevice(NamedTuple):
    """A device of a VM. All fields but `number` are empty for a device without a VBD."""

    number: str  #: userdevice
    vbd: str = ""  #: reference
    record: Record = {}  #: of the VBD
    vdi: str = ""  #: UUID, which is any text that xapi took; NULL for a VBD without a VDI
    vdi_ref: str = ""
    sr: str = ""  #: UUID


class VmNow:
    """A VM and what `read` found with it. No method but `whole` asks the pool."""

    def __init__(self, calls: Calls, vm: str, pool: Pool, found: Inventory) -> None:
        self.vm, self.pool, self.found = vm, pool, found
        self.record = found.vms[vm]
        self._calls, self._whole = calls, None  # type: Calls, Optional[Inventory]

    def whole(self) -> Inventory:
        """Return the records of the pool, which are read once, at the first call. Raises PoolFailure."""
        if self._whole is None:
            self._whole = inventory.read(self._calls)
        return self._whole

    def device(self, number: str) -> VmDevice:
        """Return the device with this number."""
        for ref, vbd in self.found.vbds_of(self.vm).items():
            if vbd["userdevice"] == number:
                vdi = self.found.vdis.get(vbd["VDI"], {})
                if vdi.get("SR") not in self.pool.srs:
                    return VmDevice(number, ref, vbd, NULL, NULL)
                return VmDevice(number, ref, vbd, str(vdi["uuid"]), vbd["VDI"], self.sr_of(vbd["VDI"]))
        return VmDevice(number)

    def find(self, vdi: str) -> Optional[str]:
        """Return the reference of a VDI; None for a UUID that the pool does not have."""
        return next(iter(self.found.grouped("vdis", "uuid").get(vdi, {})), None)

    def sr_of(self, vdi: str) -> str:
        """Return the UUID of the SR of a VDI (a reference); "" for an SR that was forgotten."""
        return str(self.pool.srs.get(self.found.vdis[vdi]["SR"], {}).get("uuid", ""))

    def users_of(self, vdi: str) -> List[str]:
        """Return the quoted names of the VMs with a VDI (a UUID) as a disk, sorted. [] without VDI."""
        return list(self._users(self.find(vdi)).values())

    def others_with(self, vdi: str) -> List[str]:
        """Return the names of `users_of`, without this VM."""
        return [name for vm, name in self._users(self.find(vdi)).items() if vm != self.vm]

    def must_be_free(self, vdi: str, but: str = "", moves: bool = False) -> None:
        """Raises NotFound; Refused where a VM has the VDI (a UUID) in another drive than the VBD `but`, or as memory.

        A CD drive counts only for a VDI that xapi is to move: xapi moves the VDI for the VM of any one of its drives.
        Source: xen-api message_forwarding.ml, VDI.pool_migrate.
        """
        ref = self.find(vdi)
        if ref is None:
            raise NotFound(f"The VDI {vdi} is no longer in the pool.")
        names = self._users(ref, but)
        if names:
            raise Refused(f"The VDI {vdi} is a disk, or the memory, of {', '.join(names.values())} as well.").advising(
                "Remove the disk from there first. For a "
                f"lent disk, use `{shell_command('relvmoiscsi pool rescue --done', self.sr_of(ref), vdi)}`."
            )
        cds = [vbd for vbd in self.found.grouped("vbds", "VDI").get(ref, {}).values() if vbd["type"] == "CD"]
        if moves and cds:
            tenants = some_of(sorted(set(self._names({vbd["VM"] for vbd in cds}).values())))
            ejects = some_of([eject_command(vbd) for vbd in cds])
            raise Refused(
                f"The VDI {vdi} is in a CD drive of {tenants} too, and xapi may move it for the VM of that drive."
            ).advising(f"Resume a suspended VM first. Then run {ejects}, and repeat the command.")

    def must_take(self, swap: Swap, vdi: str) -> None:
        """Raises the errors of `must_be_free`; Refused where xapi would not make this VDI (a UUID) the disk of a swap.

        A vm-admin may give each VBD any name of a device. A drive that was plugged keeps its place in VBD.device.
        Source: xen-api ocaml/xapi/xapi_vbd.ml, create and destroy.
        """
        number, device = swap.userdevice, self.device(swap.userdevice)
        self.must_be_free(vdi, device.vbd if device.vdi == vdi else "")
        if self.record["power_state"] == "Halted":  # the shutdown of a running VM unplugs its drives
            must_be_unplugged(self.record, device.record)
        name, places = self.record["name_label"], places_of(number)
        if not places:
            raise Refused(f"xapi has no device {number}, which the disk of the VM {name!r} has.").advising(AT_ANOTHER)
        others = self.found.vbds_by_place(self.vm)
        for ref in (ref for place in sorted(places) for ref in others.get(place, ()) if ref != device.vbd):
            vbd = self.found.vbds[ref]
            destroy = shell_command("xe vbd-destroy", f"uuid={vbd['uuid']}")
            way = f"Remove that drive from the VM, which keeps its VDI: `{destroy}`."
            if vbd["type"] != "CD" and vbd["VDI"] in self.found.vdis:  # a disk that the VM may need
                way = "Attach that drive at a free device, with VBD.set_userdevice of XenAPI."
                if not places & places_of(vbd["userdevice"]):
                    way = (
                        f"The drive was at the device {said(vbd['device'])} at the last start of the VM, and xapi "
                        "keeps that until the next start. So start the VM and shut the VM down. Or give each drive the "
                        "device of that start again, with VBD.set_userdevice of XenAPI."
                    )
            raise Refused(
                f"The VM {name!r} has a drive ({said(vbd['type'])}) at the device {said(vbd['userdevice'])}. xapi "
                f"takes this drive and the disk {number} for one device, and would not attach the disk again."
            ).advising(f"{way} Repeat the command after that.")
        ref_of_vdi = self.find(vdi)
        why, way = ("", "") if ref_of_vdi is None else why_no_drive(self.found.vdis[ref_of_vdi], swap.vbd["mode"])
        if why:
            raise Refused(
                f"The VDI {vdi} {why}, and xapi would not attach it as the disk {number} of the VM {name!r}."
            ).advising(way)

    def snapshots(self) -> List[str]:
        """Return the names of the snapshots of the VM."""
        vms = self.found.vms
        return sorted(str(vms[ref]["name_label"]) for ref in self.record["snapshots"] if ref in vms)

    def _users(self, vdi: Optional[str], but: str = "") -> Dict[str, str]:
        """Return the VMs and snapshots with a VDI (a reference) in a drive, or as memory, as `_names` does.

        A CD drive and the VBD `but` do not count. A vm-admin may make a drive one of the type Floppy.
        """
        if vdi is None:
            return {}
        drives = self.found.grouped("vbds", "VDI").get(vdi, {})
        vms = {vbd["VM"] for ref, vbd in drives.items() if vbd["type"] != "CD" and ref != but}
        return self._names(vms.union(self.found.grouped("vms", "suspend_VDI").get(vdi, {})))

    def _names(self, vms: Iterable[str]) -> Dict[str, str]:
        """Return the quoted names of these VMs (references), by reference, sorted by name."""
        names = {vm: repr(self.found.vms[vm]["name_label"]) for vm in vms if vm in self.found.vms}
        return dict(sorted(names.items(), key=lambda item: (item[1], item[0])))


def read(calls: Calls, vm: str, more: Iterable[Swap] = ()) -> VmNow:
    """Read a VM (a reference), its snapshots and drives, and its VDIs with their users. Raises PoolFailure.

    The VDIs are those in the drives, and those of the VM's journal and of the disks `more`. An ISO in a CD drive has no
    users here. Of the pool, hosts and PBDs are not read. The number of calls is the same for any number of disks.

    Other tools move disks meanwhile. A move makes a VDI, gives the VDI to the drive, and destroys the VDI before. So
    the drives are read behind the VDIs, those of the VM once more: a drive with a VDI that is not among them has been
    changed, and counts as one without a VDI. The VMs come last: a user of a VDI that is not among them has gone.
    """
    ref, its = calls.pool()
    pool = Pool(ref, its["master"], {}, {}, calls.records("SR"), {}, its["other_config"])
    record = calls.call("VM.get_record", vm)
    swaps = [*restore_entries.read(record)[0], *more]
    uuids = {uuid for swap in swaps for uuid in (swap.old, swap.new)}
    # a vm-admin may write any text there, and no search takes a quotation mark
    uuids.update(text for text in restore_entries.all_arrived(record) if '"' not in text and len(text) <= _LONGEST)
    in_drives = {vbd["VDI"]: vbd["type"] for vbd in calls.records("VBD", VM=vm).values() if vbd["VDI"] != NULL}
    vdis = calls.records_with("VDI", uuid=uuids, ref=in_drives)
    disks = [ref for ref, vdi in vdis.items() if vdi["uuid"] in uuids or in_drives[ref] != "CD"]
    vbds = calls.records_with("VBD", VM=[vm], VDI=disks)
    users = {*record["snapshots"], *(vbd["VM"] for vbd in vbds.values())} - {vm}
    vms = {**calls.records_with("VM", ref=users, suspend_VDI=disks), vm: record}
    return VmNow(calls, vm, pool, Inventory(vms, vbds, {}, {}, vdis))


def must_have(record: Record, device: VmDevice, expected: Collection[str], begun: bool = True) -> None:
    """Raises Refused for a device with an unexpected VDI. `begun`: the VM has a journal.

    "" in `expected` accepts a device without a VBD.
    """
    if device.vdi in expected:
        return
    wanted = " or ".join(said(uuid) for uuid in sorted(expected) if uuid) or "none"
    found = "none" if not device.vbd else "no VDI" if device.vdi == NULL else f"the VDI {said(device.vdi)}"
    raise Refused(
        f"The disk {device.number} of the VM {record['name_label']!r} is not what it was: it has {found}, and "
        f"not {wanted}."
    ).advising(
        "If the VM needs that disk no more, remove the disk from the VM, and repeat the command."
        if begun
        else "Check the VM, then repeat the command."
    )


#: types of VDIs of which xapi makes drives
_TYPES = ("system", "user", "ephemeral", "suspend", "crashdump", "metadata", "rrd", "pvs_cache")


def why_no_drive(vdi: Record, mode: str) -> Tuple[str, str]:
    """Return (why xapi makes no drive of this mode of a VDI, or starts no VM with that drive; what helps), or twice "".

    The reason is the end of a sentence. A vm-admin may set VDI.read_only, and gives VDI.pool_introduce the other two
    fields. Source: xen-api ocaml/xapi/xapi_vbd.ml, create; xapi_vbd_helpers.ml, valid_operations.
    """
    made = "" if vdi["managed"] else "is hidden"
    made = made if vdi["type"] in _TYPES else f"is of the type {said(vdi['type'])}"
    if made:
        return made, (
            "Check the VDI. If it is a disk of a VM, make its record again: forget the VDI (`xe vdi-forget`), and scan "
            "its SR (`xe sr-scan`). The record then has no tags and no other_config. Then repeat the command."
        )
    if mode == "RW" and vdi["read_only"]:
        return "is for reading alone", (
            "Check why. A vm-admin changes that with VDI.set_read_only of XenAPI. Then repeat the command."
        )
    return "", ""


def must_be_unplugged(vm: Record, vbd: Record) -> None:
    """Raises Refused for a plugged drive of a VM that does not run: xapi would neither unplug nor destroy the VBD."""
    if not vbd.get("currently_attached") or vm["power_state"] == "Running":
        return
    state, reset = str(vm["power_state"]).lower(), way_to_reset(vm)
    raise Refused(
        f"The VM {vm['name_label']!r} is {state}, and its disk {shown_device(vbd['userdevice'])} is plugged in, by "
        "xapi's record."
    ).advising(f"{reset or 'Resume the VM, or shut the VM down.'} Then repeat the command.")


def way_to_reset(vm: Record) -> str:
    """Return how a person clears the wrong record of a halted VM that its drives are plugged; "" for any other VM.

    An import copies VBD.currently_attached. A start sets it before the VM runs, and leaves it there if it fails.
    Source: xen-api ocaml/xapi/import.ml; xapi_xenops.ml, start; xapi_vm_lifecycle.ml, force_state_reset.
    """
    if vm["power_state"] != "Halted" or vm["current_operations"]:
        return ""
    if vm["is_a_template"]:
        return "Restart the toolstack of the master (`xe-toolstack-restart`), which clears that."
    reset = shell_command("xe vm-reset-powerstate", f"uuid={vm['uuid']}", "force=true")
    return f"Clear that, as a pool-operator: `{reset}`."


def must_be_idle(record: Record) -> None:
    """Raises Refused for a VM with a running operation of xapi."""
    busy = ", ".join(sorted(set(record["current_operations"].values())))
    if busy:
        raise Refused(f"The pool is busy with the VM {record['name_label']!r}: {busy}.").advising(
            "Wait, then repeat the command."
        )


def must_be_allowed(record: Record, operation: str) -> None:
    """Raises Refused where blocked_operations of a VM or a snapshot have this operation of xapi.

    Without this check, xapi refuses the operation later, in the middle of a run. A vm-admin chooses the text.
    """
    if operation in record["blocked_operations"]:
        kind, reason = "snapshot" if record["is_a_snapshot"] else "VM", said(record["blocked_operations"][operation])
        raise Refused(
            f"A user has blocked the operation {operation} of the {kind} {record['name_label']!r}: {reason}."
        ).advising(
            f"Ask that user. A vm-admin removes the block: {unblock_command(record, operation)}. Then repeat the "
            "command."
        )


def unblock_command(record: Record, operation: str) -> str:
    """Return the command that removes the block of an operation of a VM, for a sentence; "" without a block."""
    of_vm = f"uuid={record['uuid']}", "param-name=blocked-operations", f"param-key={operation}"
    is_blocked = operation in record["blocked_operations"]
    return f"`{shell_command('xe vm-param-remove', *of_vm)}`" if is_blocked else ""
