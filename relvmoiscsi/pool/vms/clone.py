# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs on an attached copy of their SR: no byte is copied, and no disk of an original is ever reached.

    1 export     the records of the VM, as they are now, or as `save-vms` has kept them
    2 edit       pool/vms/ova.py: every disk is one of the copy, or the VM is refused
    3 dry run    xapi looks whether it would find everything
    4 import     the VM is born halted, with our marks
    5 verify     each disk that it has is compared with the map; a VM with another one is destroyed: an error
    6 MACs       of the original, where they are asked for
    7 done       the last mark

A run that was cut leaves a VM without the last mark: the next one destroys it and makes it again. One with it is found,
and no second one is made. Nothing here starts a VM, and nothing changes an original.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import jobs
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, Records
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, ova, transfer
from relvmoiscsi.pool.vms.choice import Source, Wanted, edit_of, names, network_of, verify_free, whole
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, NULL, Copy, Inventory

#: status of a VM
MADE, ALREADY, WOULD, FAILED = "cloned", "already there", "would be cloned", "failed"

#: what every copy has in common with its original, and a person has to know before it is started
TO_KNOW = (
    "Each copy has the hostname, the machine SID, the keys and the static addresses of its original.",
    "HA is off for them, and backups pass over them (tag xo:no-bak); a backup of a copy begins with a full one.",
)
SAME_NETWORK = "They are on the networks of their originals; --isolated NET puts them on one that leads nowhere."


class Cloned(NamedTuple):
    """What became of a VM."""

    vm: str  #: UUID of the original
    vm_name: str
    status: str
    name: str = ""
    uuid: str = ""  #: of the copy
    disks: Sequence[ova.Disk] = ()
    networks: Mapping[str, Tuple[str, str]] = {}  #: names of the original's network and of its own, by device
    snapshots: Sequence[str] = ()
    notes: Sequence[str] = ()
    error: Optional[RelvmoiscsiError] = None

    def facts(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "vm": {"old": self.vm, "new": self.uuid or None},
            "name": {"old": self.vm_name, "new": self.name or None},
            "status": self.status,
            "disks": [disk._asdict() for disk in self.disks],
            "networks": {device: {"old": old, "new": new} for device, (old, new) in self.networks.items()},
            "snapshots": list(self.snapshots),
            "notes": list(self.notes),
            "error": str(self.error) if self.error is not None else None,
        }


# --- clone


def clone(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, sources: Sequence[Source], wanted: Wanted,
    tell: Any = lambda *_: None,
) -> List[Cloned]:  # fmt: skip
    """A copy of each VM; what became of each, in their order. `tell` is told the name of the VM, and its status when
    it is over, "" when it begins.

    Raises UsageError, and PoolFailure where the pool goes away after the last; nothing for a single VM.
    """
    named = names(found, copy, sources, wanted)

    def one(calls: Calls, source: Source) -> Cloned:
        tell(source.name, "")
        status = FAILED
        try:
            if source.problem is not None:
                raise source.problem
            done = _Clone(calls, pool, found, copy, source, named[source.uuid], wanted).run()
            status = done.status
            return done
        finally:
            tell(source.name, status)

    outcomes = jobs.at_once(calls, sources, one, wanted.jobs)
    results = [
        Cloned(source.uuid, source.name, FAILED, error=each) if isinstance(each, RelvmoiscsiError) else each
        for source, each in zip(sources, outcomes)
    ]
    if any(result.status == MADE for result in results):
        results = _without_twins(calls, copy, results)
        calls.run("SR.scan", copy.ref)  # some releases set snapshot_of and parent of VDIs anew at an import
    return results


def would(found: Inventory, copy: Copy, sources: Sequence[Source], wanted: Wanted) -> List[Cloned]:
    """What `clone` would do, without a call."""
    named = names(found, copy, sources, wanted)
    there = {vm["other_config"][COPY_OF]: str(vm["uuid"]) for _, vm in whole(found, copy)}
    return [_would(found, copy, source, named[source.uuid], there, wanted) for source in sources]


def _would(found: Inventory, copy: Copy, source: Source, name: str, there: Mapping[str, str], wanted: Wanted) -> Cloned:
    if source.uuid in there:
        return Cloned(source.uuid, source.name, ALREADY, name, there[source.uuid])
    try:
        if source.problem is not None:
            raise source.problem
        disks, networks, notes = _planned(found, copy, source, name, wanted)
        verify_free(found, copy, disks)
    except RelvmoiscsiError as error:
        return Cloned(source.uuid, source.name, FAILED, name, error=error)
    return Cloned(source.uuid, source.name, WOULD, name, disks=disks, networks=networks, notes=notes)


def _planned(
    found: Inventory, copy: Copy, source: Source, name: str, wanted: Wanted
) -> Tuple[List[ova.Disk], Dict[str, Tuple[str, str]], List[str]]:
    """(disks, names of networks, notes), of the records that are there or of what the pool has."""
    if source.document:
        edited = ova.edited(source.document, edit_of(found, copy, source, name, wanted))
        return edited.disks, _network_names(found, edited), edited.notes
    disks, networks = [], {}
    for device, vdi in sorted(found.disks_of(source.ref).items()):
        new = copy.new_of(vdi["uuid"])
        disks += [ova.Disk(device, vdi["uuid"], new["uuid"])] if new is not None else []
    for vif in found.vifs_of(source.ref).values():
        old = found.networks[vif["network"]]
        ref = network_of(found, wanted, old["uuid"])
        if ref is not None:
            networks[vif["device"]] = (str(old["name_label"]), str(found.networks[ref]["name_label"]))
    return disks, networks, []


def _network_names(found: Inventory, edited: ova.Edited) -> Dict[str, Tuple[str, str]]:
    names = {ref: str(network["name_label"]) for ref, network in found.networks.items()}
    return {device: (nic.old_network, names[nic.network]) for device, nic in edited.nics.items()}


class _Clone:
    """One VM."""

    def __init__(
        self, calls: Calls, pool: Pool, found: Inventory, copy: Copy, source: Source, name: str, wanted: Wanted
    ) -> None:
        self.calls, self.pool, self.found, self.copy = calls, pool, found, copy
        self.source, self.name, self.wanted = source, name, wanted
        self.label = f"relvmoiscsi: {copy.uuid} has a copy of {source.uuid}"

    def run(self) -> Cloned:
        """Raises PoolFailure, Refused, UsageError."""
        left = transfer.under_way(self.calls, self.label)
        transfer.wait_for(self.calls, left, self.wanted.patience)
        there = self._there(fresh=bool(left))
        if there is not None:
            self._forget(left)
            return Cloned(self.source.uuid, self.source.name, ALREADY, there["name_label"], there["uuid"])
        document = self.source.document
        if not document:
            document = transfer.export_vm(self.calls, self.source.ref, self.wanted.snapshots)
        edited = ova.edited(document, edit_of(self.found, self.copy, self.source, self.name, self.wanted))
        verify_free(self.found, self.copy, edited.disks)
        transfer.import_vm(self.calls, edited.document, self.label, dry_run=True)
        made = transfer.import_vm(self.calls, edited.document, self.label)
        record = self._finished(made, edited)
        self._forget(left)
        networks = _network_names(self.found, edited)
        return Cloned(
            self.source.uuid, self.source.name, MADE, self.name, record["uuid"], edited.disks, networks,
            edited.snapshots, edited.notes,
        )  # fmt: skip

    def _forget(self, tasks: Sequence[str]) -> None:
        """Imports of earlier runs that never began."""
        for task in tasks:
            _gone_is_done(self.calls, "task.destroy", task)

    def _there(self, fresh: bool) -> Optional[Record]:
        """The copy that is done already; what an earlier run has left half is destroyed."""
        vms = self.calls.records("VM") if fresh else self.found.vms
        found = self.found._replace(vms=vms)
        for _, vm in whole(found, self.copy):
            if vm["other_config"][COPY_OF] == self.source.uuid:
                return vm
        half = {
            ref: vm
            for ref, vm in found.copies_on(self.copy.uuid)
            if vm["other_config"][COPY_OF] == self.source.uuid and not vm["is_a_snapshot"]
        }
        for ref in half:
            destroy(self.calls, vms, ref)
        return None

    def _finished(self, made: Sequence[str], edited: ova.Edited) -> Record:
        """The VM, verified and marked. One that is not what it should be is destroyed. Raises Refused, PoolFailure."""
        if len(made) != 1:
            raise PoolFailure(f"An import of one VM made {len(made)}: look at the pool's VMs.")
        record: Record = self.calls.call("VM.get_record", made[0])
        problem = self._problem(made[0], record, edited)
        if problem:
            self._destroy_again(made[0], problem)
        if self.wanted.keep_mac:
            self._restore_macs(record, edited.nics)
        self._mark_done(made[0])
        return record

    def _mark_done(self, vm: str) -> None:
        try:
            self.calls.call("VM.add_to_other_config", vm, DONE, "true")
        except PoolFailure as failure:
            if failure.code != "MAP_DUPLICATE_KEY":  # the answer to the first was lost, and the call was sent again
                raise

    def _destroy_again(self, vm: str, problem: str) -> None:
        try:
            destroy(self.calls, self.calls.records("VM"), vm)
        except RelvmoiscsiError as error:
            raise Refused(
                f"The copy {self.name!r} is not what it should be: {problem}. It could not be destroyed: {error} Do "
                "not start it; destroy it without its disks (xe vm-destroy, never vm-uninstall)."
            ) from error
        raise Refused(f"The copy of {self.source.name!r} was destroyed again: {problem}. No disk was touched.")

    def _problem(self, vm: str, record: Record, edited: ova.Edited) -> str:
        """Why the VM that was made is not the one that was wanted; "" when it is."""
        vms = {vm: record}
        for snapshot in record["snapshots"]:
            vms[snapshot] = self.calls.call("VM.get_record", snapshot)
        vbds: Records = {}
        for each, its in vms.items():
            vbds.update(self.calls.records("VBD", f'field "VM" = "{each}"'))
            if its["power_state"] != "Halted" or its["ha_always_run"]:
                return "it is not halted, or HA is on"
        away = [vbd for vbd in vbds.values() if not self._is_allowed(vbd)]
        if away:
            return f"its disk {away[0]['userdevice']} is not on the copy"
        disks = [vbd for vbd in vbds.values() if vbd["VM"] == vm and vbd["type"] == "Disk"]
        has = sorted((vbd["userdevice"], self.copy.vdis[vbd["VDI"]]["uuid"]) for vbd in disks)
        if has != [(disk.userdevice, disk.new) for disk in edited.disks]:
            return "it has other disks than its original"
        vifs = self.calls.records("VIF", f'field "VM" = "{vm}"')
        if {vif["device"]: vif["network"] for vif in vifs.values()} != {
            device: nic.network for device, nic in edited.nics.items()
        }:
            return "it is on other networks than it should be"
        left = inventory.dangling([*vms.values(), *vbds.values(), *vifs.values()])
        return "it has references that lead nowhere: {}".format(", ".join(left)) if left else ""

    def _is_allowed(self, vbd: Record) -> bool:
        """A disk of the copy, or a drive that is empty or has an ISO."""
        if vbd["type"] == "Disk":
            return vbd["VDI"] in self.copy.vdis
        if vbd["VDI"] == NULL:
            return True
        home = self.found.vdis.get(vbd["VDI"], {}).get("SR")
        return home in self.pool.srs and self.pool.srs[home]["content_type"] == "iso"

    def _restore_macs(self, record: Record, nics: Mapping[str, ova.Nic]) -> None:
        """A VIF has one MAC all its life: another one takes its place."""
        for ref in record["VIFs"]:
            vif = self.calls.call("VIF.get_record", ref)
            fields = {name: vif[name] for name in _VIF if name in vif}
            self.calls.call("VIF.destroy", ref)
            self.calls.call("VIF.create", {**fields, "MAC": nics[vif["device"]].old_mac})


#: fields of a VIF that VIF.create takes
_VIF = (
    "device", "network", "VM", "MTU", "other_config", "qos_algorithm_type", "qos_algorithm_params", "locking_mode",
    "ipv4_allowed", "ipv6_allowed",
)  # fmt: skip


def _without_twins(calls: Calls, copy: Copy, results: Sequence[Cloned]) -> List[Cloned]:
    """Of two copies of a VM, one of which another run has made meanwhile, one goes: that which is not done, or ours.

    Raises PoolFailure, Refused.
    """
    vms = calls.records("VM")
    there = [vm for vm in Inventory(vms, {}, {}, {}, {}).copies_on(copy.uuid) if not vm[1]["is_a_snapshot"]]
    by_uuid = {vm["uuid"]: ref for ref, vm in there}
    kept = {result.vm: result for result in results}
    for ref, vm in there:
        mine = kept.get(vm["other_config"][COPY_OF])
        if mine is None or mine.status != MADE or vm["uuid"] == mine.uuid:
            continue
        if DONE not in vm["other_config"]:
            destroy(calls, vms, ref)
        else:
            destroy(calls, vms, by_uuid[mine.uuid])
            kept[mine.vm] = Cloned(mine.vm, mine.vm_name, ALREADY, vm["name_label"], vm["uuid"])
    return list(kept.values())


# --- destroy


def destroy(calls: Calls, vms: Records, vm: str) -> None:
    """Destroy a VM that bears our marks, and its snapshots; its VDIs stay. Raises Refused, PoolFailure."""
    snapshots = [ref for ref, each in vms.items() if each["snapshot_of"] == vm]
    for ref in [*snapshots, vm]:
        record = vms.get(ref)
        if record is None or COPY_OF not in record["other_config"]:
            raise Refused(f"The VM {ref} is none that `relvmoiscsi pool clone` has made.")
        if record["power_state"] != "Halted":
            raise Refused(f"The VM {record['name_label']!r} is not shut down.")
    for ref in [*snapshots, vm]:
        _gone_is_done(calls, "VM.destroy", ref)


def _gone_is_done(calls: Calls, method: str, ref: str) -> None:
    try:
        calls.call(method, ref)
    except PoolFailure as failure:
        if failure.code != "HANDLE_INVALID":
            raise


def are_whole(results: Sequence[Cloned]) -> bool:
    return all(result.status != FAILED for result in results)
