# SPDX-License-Identifier: LGPL-2.1-only
"""Read the disk at a device of a VM, and the users of a VDI. Read again before each step: other clients change VMs."""

from typing import Collection, Dict, List, NamedTuple, Optional

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool.calls import Calls, Record, Records, passing
from relvmoiscsi.pool.vms import run_states
from relvmoiscsi.pool.vms.inventory import NULL, Inventory, eject_command
from relvmoiscsi.wording import said, shell_command, some_of


class VmDevice(NamedTuple):
    """A device of a VM. All fields but `number` are empty for a device without a VBD."""

    number: str  #: userdevice
    vbd: str = ""  #: reference
    record: Record = {}  #: of the VBD
    vdi: str = ""  #: UUID, which is any text that xapi took; NULL for a VBD without a VDI
    vdi_ref: str = ""
    sr: str = ""  #: UUID


def read(calls: Calls, vm: str, number: str) -> VmDevice:
    """Return the device `number` of a VM. Raises PoolFailure."""
    for vbd, record in calls.records("VBD", VM=vm, userdevice=number).items():
        ref = record["VDI"]
        if ref != NULL:
            with passing("HANDLE_INVALID"):  # the SR of the VDI was forgotten since VBD.get_all_records
                vdi = calls.call("VDI.get_record", ref)
                return VmDevice(number, vbd, record, str(vdi["uuid"]), ref, str(calls.call("SR.get_uuid", vdi["SR"])))
        return VmDevice(number, vbd, record, NULL, NULL)
    return VmDevice(number)


def device_in(found: Inventory, srs: Records, vm: str, number: str) -> VmDevice:
    """Return the device `number` of a VM by these records. Pure."""
    for ref, vbd in found.vbds_of(vm).items():
        if vbd["userdevice"] == number:
            vdi = found.vdis.get(vbd["VDI"], {})
            if vdi.get("SR") not in srs:
                return VmDevice(number, ref, vbd, NULL, NULL)
            return VmDevice(number, ref, vbd, str(vdi["uuid"]), vbd["VDI"], str(srs[vdi["SR"]]["uuid"]))
    return VmDevice(number)


def must_have(record: Record, device: VmDevice, expected: Collection[str], begun: bool = True) -> None:
    """Raises Refused for a device with an unexpected VDI. `begun`: the VM has a journal.

    "" in `expected` accepts a device without a VBD.
    """
    if device.vdi in expected:
        return
    wanted = " or ".join(said(uuid) for uuid in sorted(expected) if uuid) or "none"
    found = "none" if not device.vbd else "no VDI" if device.vdi == NULL else f"the VDI {said(device.vdi)}"
    keep = (
        f"To keep that disk, run {run_states.restore_command('keep', record['uuid'])}. Otherwise remove the disk "
        "from the VM and repeat the command."
    )
    raise Refused(
        f"The disk {device.number} of the VM {record['name_label']!r} is not what it was: it has {found}, and "
        f"not {wanted}."
    ).advising(f"{keep if begun else 'Check the VM, then repeat the command.'}")


def must_be_free(calls: Calls, vdi: str, but: str = "") -> None:
    """Raises Refused where the VDI (a UUID) is a disk of a VM at a VBD other than `but`, or its memory; NotFound."""
    ref = ref_of(calls, vdi)
    names = _users(calls, ref, but)
    if names:
        sr = str(calls.call("SR.get_uuid", calls.call("VDI.get_record", ref)["SR"]))
        raise Refused(f"The VDI {vdi} is a disk, or the memory, of {', '.join(names.values())} as well.").advising(
            "Remove the disk from there first. For a "
            f"lent disk, use `{shell_command('relvmoiscsi pool rescue --done', sr, vdi)}`."
        )


def must_be_in_no_cd_drive(calls: Calls, vdi: str) -> None:
    """Raises Refused where a CD drive has the VDI (a reference), which xapi is to move for the VM of its disk.

    xapi moves the VDI for the VM of any one of its drives. Source: xen-api message_forwarding.ml, VDI.pool_migrate.
    """
    there = [calls.call("VBD.get_record", vbd) for vbd in calls.call("VDI.get_VBDs", vdi)]
    drives = [vbd for vbd in there if vbd["type"] == "CD"]
    if drives:
        names = some_of(sorted({repr(calls.call("VM.get_name_label", vbd["VM"])) for vbd in drives}))
        ejects = some_of([eject_command(vbd) for vbd in drives])
        raise Refused(
            f"The VDI {calls.call('VDI.get_uuid', vdi)} is in a CD drive of {names} too, and xapi may move it for the "
            "VM of that drive."
        ).advising(f"Resume a suspended VM first. Then run {ejects}, and repeat the command.")


def users_of(calls: Calls, vdi: str, but: str = "") -> List[str]:
    """Return the names of the VMs with a VDI (a UUID) as a disk, without the VM `but` (a reference). [] without VDI."""
    ref = find(calls, vdi)
    return [name for vm, name in _users(calls, ref).items() if vm != but] if ref is not None else []


def _users(calls: Calls, vdi: str, but: str = "") -> Dict[str, str]:
    """Return the quoted names of the VMs with a VDI (a reference) as a disk, by reference, sorted by name.

    `Inventory.vms_with_disk` says which these are, with snapshots. The VBD `but` does not count.
    """
    there = {vbd: calls.call("VBD.get_record", vbd) for vbd in calls.call("VDI.get_VBDs", vdi) if vbd != but}
    vms = {vm: calls.call("VM.get_record", vm) for vm in {vbd["VM"] for vbd in there.values()}}
    found = Inventory({**calls.records("VM", suspend_VDI=vdi), **vms}, there, {}, {}, {})
    names = {vm: repr(found.vms[vm]["name_label"]) for vm in found.vms_with_disk(vdi, with_snapshots=True)}
    return dict(sorted(names.items(), key=lambda item: item[1]))


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
        of_vm = f"uuid={record['uuid']}", "param-name=blocked-operations", f"param-key={operation}"
        raise Refused(
            f"A user has blocked the operation {operation} of the {kind} {record['name_label']!r}: {reason}."
        ).advising(
            "Ask that user. A vm-admin removes the block: "
            f"`{shell_command('xe vm-param-remove', *of_vm)}`. Then repeat the command."
        )


def ref_of(calls: Calls, vdi: str) -> str:
    """Return the reference of a VDI. Raises NotFound."""
    ref = find(calls, vdi)
    if ref is None:
        raise NotFound(f"The VDI {vdi} is no longer in the pool.")
    return ref


def find(calls: Calls, vdi: str) -> Optional[str]:
    """Return the reference of a VDI; None for a UUID that the pool does not have."""
    with passing("UUID_INVALID"):
        return str(calls.call("VDI.get_by_uuid", vdi))
    return None


def snapshots_of(calls: Calls, record: Record) -> List[str]:
    """Return the names of the snapshots of a VM."""
    return sorted(str(calls.call("VM.get_name_label", ref)) for ref in record["snapshots"])
