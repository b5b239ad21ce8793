# SPDX-License-Identifier: LGPL-2.1-only
"""VMs of the pool and what hangs on them, each class read once, and our marks on them.

The marks are keys of VM.other_config. A copy of a VM is born as a template, which xapi does not start, with COPY_OF,
ON_SR and the id of its run. The template becomes a VM and gets DONE as soon as every disk of it was found where it
should be; a copy without DONE is what a run that was cut has left. xapi copies these keys with a VM, so DONE has the
copy's UUID: in a VM that somebody has cloned from a copy it is that of another.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from relvmoiscsi.errors import NotFound, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import ORIGINAL_SR, Pool

NULL = "OpaqueRef:NULL"

#: keys of VM.other_config; DONE and ON_SR are also a network's that we have made
COPY_OF, ON_SR, DONE = "relvmoiscsi:clone-of", "relvmoiscsi:sr", "relvmoiscsi:done"


class Inventory(NamedTuple):
    """A snapshot, by reference."""

    vms: Records
    vbds: Records
    vifs: Records
    networks: Records
    vdis: Records

    def named_vms(self) -> Records:
        """Those that somebody uses: no templates, snapshots or control domains."""
        return {ref: vm for ref, vm in self.vms.items() if is_ordinary(vm)}

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
        """Is this a VM that a run has made, done or half, or a snapshot of one? None that was cloned from a copy is."""
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
    original: str  #: UUID of the SR that it is a copy of
    vdis: Records  #: by reference
    by_uuid: Dict[str, str]  #: references of the same

    def new_of(self, old_uuid: str) -> Optional[Record]:
        """The VDI of the copy that a VDI of the original became; None where there is none. Hidden ones are none."""
        ref = self.by_uuid.get(derived_uuid(self.uuid, old_uuid))
        found = self.vdis[ref] if ref is not None else None
        return found if found is not None and found["managed"] else None


def is_own(vm: Record) -> bool:
    """Are the marks its own, and was it done? The snapshots of a copy have its UUID, for VM.revert gives it theirs."""
    return COPY_OF in vm["other_config"] and bool(vm["other_config"].get(DONE) == vm["uuid"])


def is_half(vm: Record) -> bool:
    """Has a run been cut before it was done?"""
    return COPY_OF in vm["other_config"] and DONE not in vm["other_config"] and not vm["is_a_snapshot"]


def is_own_or_half(vm: Record) -> bool:
    """Is this a VM that a run has made, done or not? A VM that was cloned from a copy is not."""
    return is_own(vm) or is_half(vm)


def owners_of(network: Record) -> Set[str]:
    """The SRs (UUIDs) for whose copies a network of ours is there: the first in one key, each more in its own."""
    config = network["other_config"]
    if DONE not in config:
        return set()
    more = {key[len(ON_SR) + 1 :] for key in config if key.startswith(ON_SR + ":")}
    return more | ({str(config[ON_SR])} if ON_SR in config else set())


def is_ordinary(vm: Record) -> bool:
    return not (vm["is_a_template"] or vm["is_a_snapshot"] or vm["is_control_domain"])


def read(calls: Calls) -> Inventory:
    """Ask the pool. Raises PoolFailure."""
    return Inventory(*(calls.records(kind) for kind in ("VM", "VBD", "VIF", "network", "VDI")))


def copy_of(pool: Pool, found: Inventory, sr: str) -> Copy:
    """The copy that an SR is; the caller has made sure that it is one."""
    record = pool.srs[sr]
    vdis = found.vdis_of(sr)
    by_uuid = {str(vdi["uuid"]): ref for ref, vdi in vdis.items()}
    return Copy(sr, record["uuid"], record["name_label"], record["other_config"][ORIGINAL_SR], vdis, by_uuid)


def find_vm(found: Inventory, text: str) -> str:
    """The VM that somebody named, by UUID or by a name that only one has. Raises NotFound, UsageError."""
    return find(found.named_vms(), text, "VM")


def find(records: Records, text: str, what: str) -> str:
    """The reference of the record that somebody named, by UUID or by a name that only one has.

    Raises NotFound, UsageError.
    """
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
