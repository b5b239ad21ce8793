# SPDX-License-Identifier: LGPL-2.1-only
"""VMs of the pool and what hangs on them, each class read once, and our marks on them.

The marks are keys of VM.other_config. A copy of a VM is born as a template, which xapi does not start, with COPY_OF,
ON_SR and the id of its run. When every disk of the template was found where it should be, the template becomes a VM and
gets DONE. A copy without DONE is what a run that was cut has left. xapi copies these keys with a VM, so DONE has the
UUID of the copy: a VM that a person has cloned from a copy has the UUID of another VM there.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import ORIGINAL_SR, Pool

NULL = "OpaqueRef:NULL"

#: keys of VM.other_config; a network that a run has made has DONE and ON_SR too
COPY_OF, ON_SR, DONE = "relvmoiscsi:clone-of", "relvmoiscsi:sr", "relvmoiscsi:done"


class Inventory(NamedTuple):
    """The records of the pool at one moment, by reference."""

    vms: Records
    vbds: Records
    vifs: Records
    networks: Records
    vdis: Records

    def named_vms(self) -> Records:
        """The VMs that a person uses: no templates, snapshots or control domains."""
        kinds = ("is_a_template", "is_a_snapshot", "is_control_domain")
        return {ref: vm for ref, vm in self.vms.items() if not any(vm[kind] for kind in kinds)}

    def vbds_of(self, vm: str) -> Records:
        return {ref: vbd for ref, vbd in self.vbds.items() if vbd["VM"] == vm}

    def vifs_of(self, vm: str) -> Records:
        return {ref: vif for ref, vif in self.vifs.items() if vif["VM"] == vm}

    def disks_of(self, vm: str) -> Dict[str, Record]:
        """The VDI records of a VM's disks, by userdevice."""
        return {
            vbd["userdevice"]: self.vdis[vbd["VDI"]]
            for vbd in self.vbds_of(vm).values()
            if vbd["type"] == "Disk" and not vbd["empty"] and vbd["VDI"] in self.vdis
        }

    def users_of(self, vdi: str) -> List[str]:
        """The VMs that have this VDI as a disk, snapshots of VMs left out."""
        refs = {vbd["VM"] for vbd in self.vbds.values() if vbd["VDI"] == vdi and vbd["type"] == "Disk"}
        return sorted(ref for ref in refs if ref in self.vms and not self.vms[ref]["is_a_snapshot"])

    def vdis_of(self, sr: str) -> Records:
        return {ref: vdi for ref, vdi in self.vdis.items() if vdi["SR"] == sr}

    def is_copy(self, vm: str) -> bool:
        """Is this a VM that a run has made, done or half, or a snapshot of such a VM?"""
        record = self.vms.get(vm)
        if record is not None and record["is_a_snapshot"]:
            record = self.vms.get(record["snapshot_of"])
        return record is not None and is_own_or_half(record)

    def copies_on(self, sr_uuid: str) -> Iterator[Tuple[str, Record]]:
        """The VMs and snapshots of VMs that a run has made on this SR (a UUID), done or not."""
        for ref, vm in self.vms.items():
            if vm["other_config"].get(ON_SR) == sr_uuid and COPY_OF in vm["other_config"]:
                yield ref, vm


class Copy(NamedTuple):
    """An attached copy of an SR, and what became of its VDIs."""

    ref: str
    uuid: str
    name: str
    original: str  #: UUID of the original SR
    vdis: Records  #: by reference
    by_uuid: Dict[str, str]  #: references of the VDIs

    def new_of(self, old_uuid: str) -> Optional[Record]:
        """The VDI of the copy that a VDI of the original became; None where there is none, or a hidden parent."""
        ref = self.by_uuid.get(derived_uuid(self.uuid, old_uuid))
        found = self.vdis[ref] if ref is not None else None
        return found if found is not None and found["managed"] else None


def is_own(vm: Record) -> bool:
    """Is this a copy that is done? Its snapshots have the UUID of the copy: VM.revert gives the VM their marks."""
    return COPY_OF in vm["other_config"] and bool(vm["other_config"].get(DONE) == vm["uuid"])


def is_half(vm: Record) -> bool:
    """Is this a copy whose run was cut?"""
    return COPY_OF in vm["other_config"] and DONE not in vm["other_config"] and not vm["is_a_snapshot"]


def is_own_or_half(vm: Record) -> bool:
    """Is this a VM that a run has made, done or not? A VM that was cloned from a copy is not."""
    return is_own(vm) or is_half(vm)


def owners_of(network: Record) -> Set[str]:
    """The SRs (UUIDs) for whose copies a run has made a network: the first in ON_SR, each other in a key of its own."""
    config = network["other_config"]
    if DONE not in config:
        return set()
    more = {key[len(ON_SR) + 1 :] for key in config if key.startswith(ON_SR + ":")}
    return more | ({str(config[ON_SR])} if ON_SR in config else set())


def read(calls: Calls) -> Inventory:
    """Ask the pool. Raises PoolFailure."""
    return Inventory(*(calls.records(kind) for kind in ("VM", "VBD", "VIF", "network", "VDI")))


def copy_of(pool: Pool, found: Inventory, sr: str) -> Copy:
    """The copy that an SR is; the caller has made sure that the SR is a copy."""
    record = pool.srs[sr]
    vdis = found.vdis_of(sr)
    by_uuid = {str(vdi["uuid"]): ref for ref, vdi in vdis.items()}
    return Copy(sr, record["uuid"], record["name_label"], record["other_config"][ORIGINAL_SR], vdis, by_uuid)


def find_vm(found: Inventory, text: str) -> str:
    """The reference of the VM with this UUID or name. Raises NotFound, UsageError."""
    return find(found.named_vms(), text, "VM")


def find(records: Records, text: str, what: str) -> str:
    """The reference of the record with this UUID or name. Raises NotFound, UsageError where several have the name."""
    refs = [ref for ref, record in records.items() if record["uuid"] == text.lower()]
    refs = refs or [ref for ref, record in records.items() if record["name_label"] == text]
    if not refs:
        raise NotFound(f"There is no {what} with the UUID or the name {text!r}.")
    if len(refs) > 1:
        uuids = ", ".join(sorted(str(records[ref]["uuid"]) for ref in refs))
        raise UsageError(f"{len(refs)} {what}s have the name {text!r}; give a UUID: {uuids}.")
    return refs[0]


def in_order(records: Records) -> List[str]:
    """References by name."""
    return sorted(records, key=lambda ref: (str(records[ref]["name_label"]), str(records[ref]["uuid"])))
