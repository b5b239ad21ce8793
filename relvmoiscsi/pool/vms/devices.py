# SPDX-License-Identifier: LGPL-2.1-only
"""What a VM has at a device at this moment: read anew before each step, as others change VMs as well."""

from typing import Collection, Dict, List, NamedTuple, Optional

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.pool.calls import Calls, Record, Records, passing
from relvmoiscsi.pool.vms.inventory import NULL


class Device(NamedTuple):
    """What is at a device; without a VBD all is ""."""

    number: str  #: userdevice
    vbd: str  #: reference
    record: Record  #: of the VBD
    vdi: str  #: UUID; NULL for a VBD without one
    vdi_ref: str
    sr: str  #: UUID


def read(calls: Calls, vm: str, number: str) -> Device:
    """Raises PoolFailure."""
    rows = calls.records("VBD", VM=vm, userdevice=number)
    if not rows:
        return Device(number, "", {}, "", "", "")
    ((vbd, record),) = list(rows.items())[:1]
    ref = record["VDI"]
    if ref == NULL:
        return Device(number, vbd, record, NULL, NULL, "")
    vdi: Record = {}
    with passing("HANDLE_INVALID"):  # of an SR that was forgotten just now
        vdi = calls.call("VDI.get_record", ref)
    if not vdi:
        return Device(number, vbd, record, NULL, NULL, "")
    return Device(number, vbd, record, str(vdi["uuid"]), ref, str(calls.call("SR.get_uuid", vdi["SR"])))


def must_have(record: Record, device: Device, expected: Collection[str], begun: bool = True) -> None:
    """Raises Refused for a VDI that is none of the expected; "" for a device without VBD. `begun`: with a journal."""
    if device.vdi in expected:
        return
    wanted = " or ".join(sorted(uuid for uuid in expected if uuid)) or "none"
    keep = (
        f"To keep that disk, run `relvmoiscsi pool restore --keep {record['uuid']}`. Otherwise remove the disk "
        "from the VM and repeat the command."
    )
    raise Refused(
        f"The disk {device.number} of the VM {record['name_label']!r} is not what it was: it has {_said(device)}, and "
        f"not {wanted}. This disk was not changed. {keep if begun else 'Check the VM, then repeat the command.'}"
    )


def _said(device: Device) -> str:
    return "none" if not device.vbd else "no VDI" if device.vdi == NULL else f"the VDI {device.vdi}"


def must_be_free(calls: Calls, vdi: str, but: str = "") -> None:
    """Raises Refused where a VBD other than this one has the VDI (its UUID), whatever VM that is of; NotFound."""
    users = [vbd for vbd in calls.call("VDI.get_VBDs", ref_of(calls, vdi)) if vbd != but]
    if users:
        names = sorted({_owner(calls, vbd) for vbd in users})
        raise Refused(
            f"The VDI {vdi} is a disk of {', '.join(names)} as well. Remove the disk from there first. For a "
            "lent disk, use `relvmoiscsi pool rescue --done`."
        )


def users_of(calls: Calls, vdi: str, but: str) -> List[str]:
    """Names of the VMs, but for this one (a reference), that have a VDI (its UUID). One that is gone has none."""
    ref = find(calls, vdi)
    vbds = [] if ref is None else calls.call("VDI.get_VBDs", ref)
    others = {calls.call("VBD.get_VM", vbd) for vbd in vbds} - {but}
    return sorted(repr(calls.call("VM.get_name_label", vm)) for vm in others)


def _owner(calls: Calls, vbd: str) -> str:
    return repr(calls.call("VM.get_name_label", calls.call("VBD.get_VM", vbd)))


def must_be_idle(record: Record) -> None:
    """Raises Refused for a VM with which xapi has something to do."""
    if record["current_operations"]:
        found: Dict[str, str] = record["current_operations"]
        raise Refused(
            f"The pool is busy with the VM {record['name_label']!r}: {', '.join(sorted(set(found.values())))}. Nothing "
            "was changed. Wait, then repeat the command."
        )


def ref_of(calls: Calls, vdi: str) -> str:
    """Raises NotFound."""
    ref = find(calls, vdi)
    if ref is None:
        raise NotFound(f"The VDI {vdi} is no longer in the pool.")
    return ref


def find(calls: Calls, vdi: str) -> Optional[str]:
    """The reference of a VDI; None for one that is not in the pool."""
    with passing("UUID_INVALID"):
        return str(calls.call("VDI.get_by_uuid", vdi))
    return None


def snapshots_of(calls: Calls, record: Record) -> List[str]:
    """Names of the snapshots of a VM."""
    names: Records = {ref: calls.call("VM.get_name_label", ref) for ref in record["snapshots"]}
    return sorted(map(str, names.values()))
