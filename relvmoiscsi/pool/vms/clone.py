# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs on an attached copy of their SR: no byte is copied, and no disk of an original is ever reached.

    1 export     the records of the VM, as they are now, or as `save-vms` has kept them
    2 edit       pool/vms/ova.py: every disk is one of the copy, or the VM is refused
    3 dry run    xapi looks whether it would find everything
    4 import     the VM is born halted, with our marks
    5 verify     each disk that it has is compared with the map; a VM with another one is destroyed: an error
    6 MACs       of the original, where they are asked for
    7 done       the last mark

A run that was cut leaves a VM without the last mark: the next one verifies and finishes it, or leaves it and tells what
to do. One with the mark is found, and no second one is made. A run destroys what it has made itself, and nothing else.
Nothing here starts a VM, and nothing changes an original.
"""

import time
import uuid
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import jobs
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, Records
from relvmoiscsi.pool.records import RUN, Pool
from relvmoiscsi.pool.vms import inventory, ova, transfer
from relvmoiscsi.pool.vms.choice import (
    Source,
    Wanted,
    edit_of,
    empty,
    half,
    names,
    network_of,
    verify_free,
    verify_nics,
    whole,
)  # fmt: skip
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
    # what was seen before somebody's question is old; and the id of a run is in no other VM than those that it makes
    found = inventory.read(calls)
    copy = inventory.copy_of(pool, found, copy.ref)
    wanted = wanted._replace(run=f"{wanted.run}-{uuid.uuid4().hex[:12]}")
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
        results = _without_twins(calls, copy, results, wanted.run)
        try:
            calls.run("SR.scan", copy.ref)  # some releases set snapshot_of and parent of VDIs anew at an import
        except PoolFailure as failure:
            results = _noted(results, f"the scan of the copy at the end failed: {failure}")
    return results


def _noted(results: Sequence[Cloned], note: str) -> List[Cloned]:
    """With a note at what was made."""
    return [each._replace(notes=[*each.notes, note]) if each.status == MADE else each for each in results]


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
        if left:
            self.found = inventory.read(self.calls)
        there, begun = self._there(), self._begun()
        if there is None and begun:
            time.sleep(self.wanted.patience)  # whoever has made it may be about to finish it
            self.found = inventory.read(self.calls)
            there, begun = self._there(), self._begun()
        if there is not None:
            self._forget(left)
            return Cloned(self.source.uuid, self.source.name, ALREADY, there["name_label"], there["uuid"])
        return self._made(left, begun)

    def _made(self, left: Sequence[str], begun: Sequence[str]) -> Cloned:
        document = self.source.document
        if not document:
            document = transfer.export_vm(self.calls, self.source.ref, self.wanted.snapshots)
        edited = ova.edited(document, edit_of(self.found, self.copy, self.source, self.name, self.wanted))
        verify_free(self.found, self.copy, edited.disks)
        self._verify_macs(edited, begun)
        if begun:
            record = self._taken_up(begun[0], edited)
        else:
            transfer.import_vm(self.calls, edited.document, self.label, dry_run=True)
            record = self._finished(transfer.import_vm(self.calls, edited.document, self.label), edited)
        self._forget(left)
        networks = _network_names(self.found, edited)
        return Cloned(
            self.source.uuid, self.source.name, MADE, record["name_label"], record["uuid"], edited.disks, networks,
            edited.snapshots, [*edited.notes, *self._beside()],
        )  # fmt: skip

    def _verify_macs(self, edited: ova.Edited, begun: Sequence[str]) -> None:
        if self.wanted.keep_mac:
            now = self.found._replace(vifs=self.calls.records("VIF"))
            verify_nics(now, self.source.name, edited.nics.values(), begun[0] if begun else "")

    def _beside(self) -> List[str]:
        """What is said of a VM that was a copy of the same, when there was another of this SR."""
        return [
            f"{vm['name_label']!r} ({vm['uuid']}) was its copy and has no disk here any more: destroy it if you do not "
            "need it (xe vm-destroy)"
            for _, vm in empty(self.found, self.copy)
            if vm["other_config"][COPY_OF] == self.source.uuid
        ]

    def _forget(self, tasks: Sequence[str]) -> None:
        """Imports of earlier runs that never began."""
        for task in tasks:
            _gone_is_done(self.calls, "task.destroy", task)

    def _there(self) -> Optional[Record]:
        """The copy that is done already."""
        for _, vm in whole(self.found, self.copy):
            if vm["other_config"][COPY_OF] == self.source.uuid:
                return vm
        return None

    def _begun(self) -> List[str]:
        """What earlier runs have left half."""
        ours = [(vm, ref) for ref, vm in half(self.found, self.copy)]
        refs = [(vm["uuid"], ref) for vm, ref in ours if vm["other_config"][COPY_OF] == self.source.uuid]
        return [ref for _, ref in sorted(refs)]

    def _taken_up(self, vm: str, edited: ova.Edited) -> Record:
        """What another run has left half, verified as one of our own and marked; it is never destroyed: somebody may
        have used it. Raises Refused, PoolFailure.
        """
        record: Record = self.calls.call("VM.get_record", vm)
        if self.wanted.keep_mac and record["power_state"] == "Halted":
            self._add_missing_vifs(vm, record, edited.nics)
            record = self.calls.call("VM.get_record", vm)
        problem = self._problem(vm, record, edited)
        if problem:
            raise Refused(
                f"Another run has left the copy {record['name_label']!r} ({record['uuid']}) half: {problem}. It was "
                "not changed. If nobody uses it and no run is at work, destroy it without its disks (xe vm-destroy, "
                "never vm-uninstall), then run this again."
            )
        self._finish(vm, record, edited)
        return record

    def _add_missing_vifs(self, vm: str, record: Record, nics: Mapping[str, ova.Nic]) -> None:
        """A run that is cut between VIF.destroy and VIF.create leaves none."""
        there = {self.calls.call("VIF.get_device", ref) for ref in record["VIFs"]}
        for device, nic in nics.items():
            if device not in there:
                fields = {"VM": vm, "device": device, "network": nic.network, "MAC": nic.old_mac}
                self.calls.call("VIF.create", {**nic.settings, **fields})

    def _finished(self, made: Sequence[str], edited: ova.Edited) -> Record:
        """The VM, verified and marked. One that is not what it should be is destroyed. Raises Refused, PoolFailure."""
        if len(made) != 1:
            raise PoolFailure(f"An import of one VM made {len(made)}: look at the pool's VMs.")
        record: Record = self.calls.call("VM.get_record", made[0])
        problem = self._problem(made[0], record, edited)
        if problem:
            self._destroy_again(made[0], problem)
        self._finish(made[0], record, edited)
        return record

    def _finish(self, vm: str, record: Record, edited: ova.Edited) -> None:
        """MACs, and the last mark: the snapshots have it first, as VM.revert would take it away from the VM."""
        if self.wanted.keep_mac:
            self._restore_macs(record, edited.nics)
        for each in [*record["snapshots"], vm]:
            self._mark_done(each, record["uuid"])

    def _mark_done(self, vm: str, uuid_of_copy: str) -> None:
        try:
            self.calls.call("VM.add_to_other_config", vm, DONE, uuid_of_copy)
        except PoolFailure as failure:
            if failure.code != "MAP_DUPLICATE_KEY":  # the answer to the first was lost, and the call was sent again
                raise

    def _destroy_again(self, vm: str, problem: str) -> None:
        try:
            destroy_own(self.calls, vm, self.wanted.run)
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
            if vif["MAC"].lower() == nics[vif["device"]].old_mac.lower():
                continue
            fields = {name: vif[name] for name in _VIF if name in vif}
            self.calls.call("VIF.destroy", ref)
            self.calls.call("VIF.create", {**fields, "MAC": nics[vif["device"]].old_mac})


#: fields of a VIF that VIF.create takes
_VIF = (
    "device", "network", "VM", "MTU", "other_config", "qos_algorithm_type", "qos_algorithm_params", "locking_mode",
    "ipv4_allowed", "ipv6_allowed",
)  # fmt: skip


def _without_twins(calls: Calls, copy: Copy, results: Sequence[Cloned], run: str) -> List[Cloned]:
    """Two runs at once may each have made a copy: that of the run that began first stays, and whoever has made another
    destroys it. What is half is told.
    """
    try:
        found = inventory.read(calls)
        return [_without_twin(calls, found, copy, each, run) if each.status == MADE else each for each in results]
    except PoolFailure as failure:
        return _noted(results, f"whether another run has made one too could not be seen: {failure}")


def _without_twin(calls: Calls, found: Inventory, copy: Copy, mine: Cloned, run: str) -> Cloned:
    def of_same(vms: Sequence[Tuple[str, Record]]) -> List[Tuple[str, str, str, Record]]:
        same = [(ref, vm) for ref, vm in vms if vm["other_config"][COPY_OF] == mine.vm]
        return sorted((vm["other_config"].get(RUN, ""), str(vm["uuid"]), ref, vm) for ref, vm in same)

    notes = [
        f"another run has left a copy half beside it, {vm['name_label']!r} ({uuid_of_vm}): destroy it without its "
        "disks if nobody uses it (xe vm-destroy, never vm-uninstall)"
        for _, uuid_of_vm, _, vm in of_same(half(found, copy))
    ]
    twins = of_same(whole(found, copy))
    ref = next((ref for _, uuid_of_vm, ref, _ in twins if uuid_of_vm == mine.uuid), None)
    others = [(uuid_of_vm, vm) for _, uuid_of_vm, _, vm in twins if uuid_of_vm != mine.uuid]
    if ref is not None and others and twins[0][1] != mine.uuid:
        try:
            destroy_own(calls, ref, run, copy)
            return Cloned(mine.vm, mine.vm_name, ALREADY, twins[0][3]["name_label"], twins[0][1], notes=notes)
        except Refused as error:
            notes.append(f"it stays: {error}")
    notes += [f"another run has made a copy too, {vm['name_label']!r} ({uuid_of_vm})" for uuid_of_vm, vm in others]
    return mine._replace(notes=[*mine.notes, *notes])


# --- destroy


def destroy_own(calls: Calls, vm: str, run: str, copy: Optional[Copy] = None) -> None:
    """Destroy a VM that this run has made, that never ran, and that has no disk but those of the copy, where one is
    given; all of this as it is now. Raises Refused, PoolFailure.
    """
    vms = calls.records("VM")
    record = vms.get(vm)
    if record is None:
        return
    if record["other_config"].get(RUN) != run:
        raise Refused(f"The VM {record['name_label']!r} was not made by this run.")
    if record["uuid"] in record.get("last_booted_record", ""):
        raise Refused(f"The VM {record['name_label']!r} was started meanwhile.")
    vbds = calls.records("VBD", f'field "VM" = "{vm}"') if copy is not None else {}
    if copy is not None and any(vbd["type"] == "Disk" and vbd["VDI"] not in copy.vdis for vbd in vbds.values()):
        raise Refused(f"The VM {record['name_label']!r} has got another disk meanwhile.")
    destroy(calls, vms, vm)


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
