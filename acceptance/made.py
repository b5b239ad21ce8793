# SPDX-License-Identifier: LGPL-2.1-only
"""Make, recognise and remove the objects of the kit on a pool.

Every name starts with PREFIX and the id of the run. The id of a run starts with the UUID of the scratch SR, so runs on
two SRs do not collide. VMs, VDIs and networks have the key MARK in other_config from their creation. xapi may create a
VDI before xapi sets other_config, so on the scratch SR the name of a VDI is enough. `pool clone` copies no key that it
does not know. So the clone of a VM has the client's own mark in place of MARK. A copy of the SR is recognised by its
name and by the mark of `pool attach`.
"""

import os
import re
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import lock, records
from relvmoiscsi.pool.calls import Calls, Record, passing
from relvmoiscsi.pool.records import AT_WORK, ORIGINAL_SR
from relvmoiscsi.pool.vms.inventory import COPY_OF
from relvmoiscsi.sr_types import STOCK_TYPES
from relvmoiscsi.wording import said, shell_command

SCRATCH = "relvmoiscsi-scratch"  #: key of SR.other_config: a person sets this key on an SR whose content may be lost
MARK = "relvmoiscsi-acceptance"  #: key of other_config; the value is the UUID of the scratch SR
PREFIX = "relvmoiscsi acceptance "
NOTE = AT_WORK + "acceptance-"  #: start of the key of pool.other_config that identifies a run
NULL = "OpaqueRef:NULL"

_USER = "SUDO_USER"  #: where a lock looks first for who runs a command: `client_process.user_name`

VDI_BYTES = 4 << 20
VM_BYTES = str(256 << 20)
_ISOLATED = "relvmoiscsi:done"  #: key of networks that `pool clone --isolated` has made

#: runs `relvmoiscsi pool` with these arguments and returns its JSON; raises Failed
Command = Callable[..., Dict[str, Any]]


class Failed(Exception):
    """The result differs from the expected result."""


class Scratch(NamedTuple):
    """The SR whose content may be lost."""

    ref: str
    record: Record

    @property
    def uuid(self) -> str:
        return str(self.record["uuid"])

    def new_run(self) -> str:
        """Return a new id for a run."""
        return f"{self.uuid[:8]}-{records.run_id()}"

    def names(self, record: Record) -> bool:
        """Has a run on this SR named the object?"""
        run = self.uuid[:8] + r"-[0-9]{8}T[0-9]{6}Z-[0-9]+ "
        return bool(re.match(re.escape(PREFIX) + run, record["name_label"]))

    def marks(self, record: Record) -> bool:
        """Has a run on this SR named and marked the object?"""
        keys = record["other_config"]
        return self.names(record) and (keys.get(MARK) == self.uuid or COPY_OF in keys)


class Left(NamedTuple):
    """The kit's objects in the pool: records by reference, and keys of pool.other_config."""

    vms: Dict[str, Record]
    srs: Dict[str, Record]
    vdis: Dict[str, Record]
    networks: Dict[str, Record]
    notes: Tuple[str, ...]
    pool: str

    def names(self) -> List[str]:
        """Return the names for a sentence; [] without objects."""
        kinds = (("VM", self.vms), ("SR", self.srs), ("VDI", self.vdis), ("network", self.networks))
        named = [f"{kind} {row['name_label']!r}" for kind, rows in kinds for row in rows.values()]
        return named + [f"the note {key} of the pool" for key in self.notes]


def scratch_of(calls: Calls, text: str) -> Scratch:
    """Return the SR with this UUID or name. Raises Refused for an SR that is no scratch SR, NotFound, UsageError."""
    pool = records.read(calls)
    ref = records.find_sr(pool, text)
    sr = pool.srs[ref]
    name = sr["name_label"]
    if not is_uuid(sr["uuid"]):  # `SR.introduce` takes any text, and the id of a run is the name of a file
        raise Refused(f"The SR {name!r} has the UUID {said(sr['uuid'])}, which is no UUID.").advising(
            "Make another SR for the kit."
        )
    if sr["type"] not in STOCK_TYPES:
        raise Refused(f"The SR {name!r} has the type {sr['type']}; the kit needs lvmoiscsi or lvmohba.")
    if records.is_copy(sr):
        copy = Refused(f"The SR {name!r} is a copy that `relvmoiscsi pool attach` has introduced.")
        raise copy.advising("Name an original.")
    if sr["other_config"].get(SCRATCH) != "true":
        mark = shell_command("xe sr-param-set", f"uuid={sr['uuid']}", f"other-config:{SCRATCH}=true")
        raise Refused(f"The SR {name!r} is not marked as a scratch SR.").advising(
            f"If everything on its LUN may be lost, mark it: `{mark}`."
        )
    return Scratch(ref, sr)


def verify_ready(calls: Calls, scratch: Scratch) -> None:
    """Raises Refused where VMs have disks on the SR, a host has not plugged it, or an earlier run has left objects."""
    left = find(calls, scratch)
    if left.names():
        there = Refused(f"An earlier run has left {', '.join(left.names())}.")
        raise there.advising("Run `make acceptance-clean` first.")
    name, vdis = scratch.record["name_label"], calls.records("VDI")
    here = {ref for ref, vdi in vdis.items() if vdi["SR"] == scratch.ref}
    vms = calls.records("VM")
    users = {vbd["VM"] for vbd in calls.records("VBD").values() if vbd["VDI"] in here}
    users |= {ref for ref, vm in vms.items() if vm["suspend_VDI"] in here}
    if users:
        names = ", ".join(sorted(repr(vms[ref]["name_label"]) if ref in vms else ref for ref in users))
        raise Refused(f"VMs that the kit has not made have disks on the SR {name!r}: {names}.")
    pool = records.read(calls)
    plugged = {host for host, (_, pbd) in pool.pbds_of(scratch.ref).items() if pbd["currently_attached"]}
    if set(pool.hosts) - plugged:
        away = ", ".join(sorted(map(pool.host_name, set(pool.hosts) - plugged)))
        raise Refused(f"The SR {name!r} is not plugged on these hosts: {away}.")


# --- make


#: constant fields of new records; VM.create requires all fields of _VM
_VDI: Record = {
    "virtual_size": str(VDI_BYTES), "type": "user", "sharable": False, "read_only": False, "xenstore_data": {},
    "tags": [],
}  # fmt: skip
_VM: Record = {
    "name_description": "No operating system. It may be destroyed.", "user_version": "1", "is_a_template": False,
    "affinity": NULL, "memory_static_max": VM_BYTES, "memory_dynamic_max": VM_BYTES, "memory_dynamic_min": VM_BYTES,
    "memory_static_min": VM_BYTES, "VCPUs_params": {}, "VCPUs_max": "1", "VCPUs_at_startup": "1",
    "actions_after_shutdown": "destroy", "actions_after_reboot": "restart", "actions_after_crash": "destroy",
    "PV_bootloader": "", "PV_kernel": "", "PV_ramdisk": "", "PV_args": "", "PV_bootloader_args": "",
    "PV_legacy_args": "", "HVM_boot_policy": "BIOS order", "HVM_boot_params": {"order": "c"}, "PCI_bus": "",
    "HVM_shadow_multiplier": 1.0, "platform": {"acpi": "1", "apic": "true", "pae": "true"}, "recommendations": "",
}  # fmt: skip
_QOS: Record = {"other_config": {}, "qos_algorithm_type": "", "qos_algorithm_params": {}}
_VBD: Record = {
    "userdevice": "0",
    "bootable": True,
    "mode": "RW",
    "type": "Disk",
    "unpluggable": True,
    "empty": False,
    **_QOS,
}
_VIF: Record = {"device": "0", "MAC": "", "MTU": "1500", **_QOS}


def _named(scratch: Scratch, run: str, name: str) -> Dict[str, Any]:
    return {"name_label": f"{PREFIX}{run} {name}", "other_config": {MARK: scratch.uuid}}


def new_network(calls: Calls, scratch: Scratch, run: str) -> str:
    """Make a network without a physical interface; return its reference. Raises PoolFailure, as below."""
    return str(
        calls.call("network.create", {"name_description": "", "MTU": "1500", "tags": [], **_named(scratch, run, "net")})
    )


def new_vdi(calls: Calls, scratch: Scratch, run: str, name: str, is_raw: bool) -> str:
    """Make an empty VDI on the scratch SR; return its reference."""
    more = {"name_description": f"{name} of an acceptance run", "sm_config": {"type": "raw"} if is_raw else {}}
    return calls.run("VDI.create", {"SR": scratch.ref, **_VDI, **more, **_named(scratch, run, name)})


def new_vm(calls: Calls, scratch: Scratch, run: str, name: str) -> str:
    """Make a halted HVM without disks, network cards and operating system; return its reference."""
    return str(calls.call("VM.create", {**_VM, **_named(scratch, run, name)}))


def new_disk(calls: Calls, vm: str, vdi: str) -> str:
    """Make a VBD; return its reference."""
    return str(calls.call("VBD.create", {"VM": vm, "VDI": vdi, **_VBD}))


def new_vif(calls: Calls, vm: str, network: str) -> str:
    """Make a VIF with a MAC of xapi's choice; return its reference."""
    return str(calls.call("VIF.create", {"VM": vm, "network": network, **_VIF}))


@contextmanager
def locks_of(run: str) -> Iterator[None]:
    """Let the locks of this process and of its commands name the run as their user, so that `clean` knows them.

    Another command of this machine may be at work on a LUN as well.
    """
    before = os.environ.get(_USER)
    os.environ[_USER] = f"{PREFIX}{run} command"
    try:
        yield
    finally:
        del os.environ[_USER]
        if before is not None:
            os.environ[_USER] = before


# --- remove


def find(calls: Calls, scratch: Scratch) -> Left:
    """Return the objects of kit runs on this scratch SR that the pool still has. Raises PoolFailure."""
    pool = records.read(calls)
    return Left(
        {ref: vm for ref, vm in calls.records("VM").items() if scratch.marks(vm)},
        {ref: sr for ref, sr in pool.srs.items() if scratch.names(sr) and _is_copy(sr, scratch)},
        {ref: vdi for ref, vdi in calls.records("VDI").items() if scratch.names(vdi) and vdi["SR"] == scratch.ref},
        {ref: net for ref, net in calls.records("network").items() if scratch.marks(net) or _is_isolated(net, scratch)},
        tuple(key for key in sorted(pool.at_work) if key.startswith(NOTE + scratch.uuid[:8])),
        pool.ref,
    )


def _is_copy(sr: Record, scratch: Scratch) -> bool:
    """Is this SR a copy of the scratch SR? `attach` marks an SR after the introduction; before, the SR has no PBD."""
    of = sr["other_config"].get(ORIGINAL_SR)
    return bool(of == scratch.uuid or of is None and not sr["PBDs"])


def _is_isolated(network: Record, scratch: Scratch) -> bool:
    return scratch.names(network) and _ISOLATED in network["other_config"]


def clean(calls: Calls, command: Command, scratch: Scratch) -> List[str]:
    """Remove all objects of kit runs on this scratch SR. Return a sentence for each object that stays.

    An object that stays does not stop the removal of other objects. Raises PoolFailure where the pool cannot be read.
    """
    left, problems = find(calls, scratch), []  # type: Tuple[Left, List[str]]
    for what, one in lock.read(calls).items():
        if scratch.names({"name_label": one.who}):
            lock.unlock(calls, lock.to_break(calls, what))
    ways: List[Tuple[str, Dict[str, Record], Callable[[str, Record], object]]] = [
        ("VM", left.vms, lambda ref, vm: _take_vm(calls, ref, vm)),
        ("SR", left.srs, lambda ref, sr: _take_sr(calls, command, ref, sr)),
        ("VDI", left.vdis, lambda ref, _: _take_vdi(calls, ref)),
        ("network", left.networks, lambda ref, _: calls.call("network.destroy", ref)),
    ]
    for kind, rows, take in ways:
        for ref, row in rows.items():
            try:
                with passing("HANDLE_INVALID"):
                    take(ref, row)
            except (Failed, RelvmoiscsiError) as error:
                problems.append(f"The {kind} {row['name_label']!r} ({row['uuid']}) stays: {error}")
    for key in left.notes:
        calls.call("pool.remove_from_other_config", left.pool, key)
    if not problems:
        problems = [f"{name} stays." for name in find(calls, scratch).names()]
    return problems


def _take_vm(calls: Calls, ref: str, vm: Record) -> None:
    """Destroy a VM; its disks stay. Raises PoolFailure."""
    if vm["power_state"] != "Halted":
        calls.run("VM.hard_shutdown", ref)
    calls.run("VM.destroy", ref)


def _take_vdi(calls: Calls, ref: str) -> None:
    """Destroy a VDI. Raises Refused for a disk of an existing VM, PoolFailure."""
    if calls.call("VDI.get_VBDs", ref):
        raise Refused("It is a disk of a VM that the kit has not made.")
    calls.run("VDI.destroy", ref)


def _take_sr(calls: Calls, command: Command, ref: str, sr: Record) -> None:
    """Forget a copy, and never destroy the copy. Raises Failed, PoolFailure."""
    if ORIGINAL_SR in sr["other_config"]:
        command("discard", sr["uuid"], "--yes")
    else:
        calls.call("SR.forget", ref)


def all_refs(calls: Calls) -> Dict[str, List[str]]:
    """Return the references of all objects that a run could leave in a pool, by class. Raises PoolFailure."""
    kinds = ("SR", "PBD", "VDI", "VM", "VBD", "VIF", "network", "secret")
    return {kind: sorted(calls.call(kind + ".get_all")) for kind in kinds}


def vdi_facts(calls: Calls, sr: str) -> Dict[str, Record]:
    """Return the fields of an SR's VDIs that a run must not change, by UUID. Raises PoolFailure."""
    names = ("name_label", "name_description", "virtual_size", "type", "sharable", "read_only", "managed", "missing",
             "is_a_snapshot")  # fmt: skip
    found = [vdi for vdi in calls.records("VDI").values() if vdi["SR"] == sr]
    return {str(vdi["uuid"]): {name: vdi[name] for name in names} for vdi in found}
