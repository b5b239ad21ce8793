# SPDX-License-Identifier: LGPL-2.1-only
"""Copies of VMs on an attached copy of their SR: no byte is copied, and no disk of an original is ever reached.

    1 export     the records of the VM, as they are now, or as `save-vms` has kept them
    2 edit       pool/vms/ova.py: every disk is one of the copy, or the VM is refused
    3 dry run    xapi looks whether it would find everything
    4 import     it is born with our marks, and as a template: nobody can start it
    5 verify     each disk that it has is compared with the map, and nobody else has one of them; else the VM is
                 destroyed: an error
    6 MACs       of the original, where they are asked for
    7 done       the template becomes a VM and gets the last mark

The run has locked the copy of the SR. A run that was cut leaves a template, or a VM without the last mark: the next run
verifies and finishes that VM, or leaves it and tells what to do. A VM with the mark is found, and no second one is
made. A run destroys what it has made itself, and nothing else. Nothing here starts a VM, and nothing changes an
original.
"""

import uuid
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import jobs, lock
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record, Records, passing
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vms import inventory, ova, transfer
from relvmoiscsi.pool.vms.choice import (
    Source,
    Wanted,
    edit_of,
    empty,
    half,
    names,
    verify_free,
    verify_nics,
    whole,
)  # fmt: skip
from relvmoiscsi.pool.vms.cloned import ALREADY, FAILED, MADE, WOULD, Cloned
from relvmoiscsi.pool.vms.destroying import BY_HAND, destroy_own
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, NULL, ON_SR, Copy, Inventory

#: what every copy has in common with its original, and a person has to know before it is started
TO_KNOW = (
    "Each copy has the hostname, the machine SID, the keys and the static addresses of its original.",
    "HA is off for the copies. Xen Orchestra skips the copies in backups (tag xo:no-bak). "
    "The first backup of a copy is a full backup.",
)
SAME_NETWORK = "The copies are on the networks of their originals: expect conflicts. --isolated NET avoids them."


# --- clone


def clone(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, sources: Sequence[Source], wanted: Wanted,
    tell: Any = lambda *_: None,
) -> List[Cloned]:  # fmt: skip
    """A copy of each VM; what became of each, in their order. `tell` is told the source of the VM, and its status
    when it is over, "" when it begins.

    Raises UsageError; Refused where another client works on the copy of the SR; PoolFailure where the pool goes away
    after the last; nothing for a single VM.
    """
    with lock.held(calls, lock.names_of(calls, [copy.uuid]), "clone") as held:
        return _cloned(calls, held, pool, copy, sources, wanted, tell)


def _cloned(
    calls: Calls, held: lock.Held, pool: Pool, copy: Copy, sources: Sequence[Source], wanted: Wanted, tell: Any
) -> List[Cloned]:
    # what was seen before somebody's question is old; and the id of a run is in no other VM than those that it makes
    found = inventory.read(calls)
    copy = inventory.copy_of(pool, found, copy.ref)
    wanted = wanted._replace(run=f"{wanted.run}-{uuid.uuid4().hex[:12]}")
    named = names(found, copy, sources, wanted)

    def one(calls: Calls, source: Source) -> Cloned:
        tell(source, "")
        try:
            if source.problem is not None:
                raise source.problem
            done = _Clone(calls, pool, found, copy, source, named[source.uuid], wanted).run(held)
        except RelvmoiscsiError:
            tell(source, FAILED)
            raise
        tell(source, done.status)
        return done

    results = _or_why(sources, jobs.at_once(calls, sources, one, wanted.jobs))
    if any(result.status == MADE for result in results):
        try:
            calls.run("SR.scan", copy.ref)  # some releases set snapshot_of and parent of VDIs anew at an import
        except PoolFailure as failure:
            note = f"the final scan of the copy failed: {failure}"
            results = [each.noted(note) if each.status == MADE else each for each in results]
    return results


def would(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, sources: Sequence[Source], wanted: Wanted
) -> List[Cloned]:
    """What `clone` would do, by its own looks: records are exported and edited, and nothing is changed. Raises
    UsageError; Refused where there is something to do and another client works on the copy.
    """
    named = names(found, copy, sources, wanted)

    def one(calls: Calls, source: Source) -> Cloned:
        if source.problem is not None:
            raise source.problem
        return _Clone(calls, pool, found, copy, source, named[source.uuid], wanted).planned()

    results = _or_why(sources, jobs.at_once(calls, sources, one, wanted.jobs), named)
    if any(result.status == WOULD for result in results):
        lock.verify_free(calls, lock.names_of(calls, [copy.uuid]))
    return results


def _or_why(sources: Sequence[Source], outcomes: Sequence[Any], named: Mapping[str, str] = {}) -> List[Cloned]:
    """The outcomes, an error as a row that has it."""
    return [
        Cloned(source.uuid, source.name, FAILED, named.get(source.uuid, ""), error=each)
        if isinstance(each, RelvmoiscsiError)
        else each
        for source, each in zip(sources, outcomes)
    ]


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

    def run(self, held: lock.Held) -> Cloned:
        """Raises PoolFailure, Refused, UsageError."""
        left = transfer.under_way(self.calls, self.label)
        transfer.wait_for(self.calls, left, self.wanted.patience)
        if left:
            self.found = inventory.read(self.calls)
        there = self._there()
        return there if there is not None else self._made(held, transfer.pending(self.calls, left))

    def planned(self) -> Cloned:
        """What `run` would make of the VM at this moment. Raises PoolFailure, Refused, UsageError."""
        there, begun = self._there(), self._begun()
        if there is not None:
            return there
        edited = self._edited(begun)
        notes = [self._half_note(vm, edited) for vm in begun[:1]]
        return Cloned(
            self.source.uuid, self.source.name, WOULD, self.name, "", edited.disks,
            _network_names(self.found, edited), edited.snapshots, [*edited.notes, *notes, *self._beside()],
        )  # fmt: skip

    def _half_note(self, vm: str, edited: ova.Edited) -> str:
        """What becomes of what another run has left half. Raises Refused, PoolFailure."""
        record: Record = self.calls.call("VM.get_record", vm)
        lacks_vifs = self.wanted.keep_mac and len(record["VIFs"]) < len(edited.nics)  # they are made anew first
        if not lacks_vifs:
            self._verify_half(vm, record, edited)
        return f"an earlier run left the VM unfinished ({record['uuid']}); this run verifies and finishes the VM"

    def _edited(self, begun: Sequence[str]) -> ova.Edited:
        """The records of the copy. Raises PoolFailure, Refused, UsageError."""
        document = self.source.document
        if not document:
            document = transfer.export_vm(self.calls, self.source.ref, self.wanted.snapshots)
        edited = ova.edited(document, edit_of(self.found, self.copy, self.source, self.name, self.wanted))
        verify_free(self.found, self.copy, edited.disks)
        self._verify_macs(edited, begun)
        return edited

    def _made(self, held: lock.Held, left: Sequence[str]) -> Cloned:
        begun = self._begun()
        edited = self._edited(begun)
        held.verify(self.calls)
        if begun:
            record = self._taken_up(begun[0], edited)
        else:
            transfer.import_vm(self.calls, edited.document, self.label, dry_run=True)
            record = self._finished(transfer.import_vm(self.calls, edited.document, self.label), edited)
        networks = _network_names(self.found, edited)
        return Cloned(
            self.source.uuid, self.source.name, MADE, record["name_label"], record["uuid"], edited.disks, networks,
            edited.snapshots, [*edited.notes, *self._beside(), *map(_not_ended, left)],
        )  # fmt: skip

    def _verify_macs(self, edited: ova.Edited, begun: Sequence[str]) -> None:
        if self.wanted.keep_mac:
            now = self.found._replace(vifs=self.calls.records("VIF"))
            verify_nics(now, self.source.name, edited.nics.values(), begun[0] if begun else "")

    def _beside(self) -> List[str]:
        """What is said of a VM that was a copy of the same, when there was another of this SR."""
        return [
            f"{vm['name_label']!r} ({vm['uuid']}) is an older copy of this VM without a disk on the copy: if "
            "unused, destroy the older copy (xe vm-destroy)"
            for _, vm in empty(self.found, self.copy)
            if vm["other_config"][COPY_OF] == self.source.uuid
        ]

    def _there(self) -> Optional[Cloned]:
        """The copy that is done already."""
        for _, vm in whole(self.found, self.copy):
            if vm["other_config"][COPY_OF] == self.source.uuid:
                notes = [_half_beside(self.found.vms[ref]) for ref in self._begun()]
                return Cloned(self.source.uuid, self.source.name, ALREADY, vm["name_label"], vm["uuid"], notes=notes)
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
        self._verify_half(vm, record, edited)
        return self._finish(vm, record, edited)

    def _verify_half(self, vm: str, record: Record, edited: ova.Edited) -> None:
        """Raises Refused where what another run has left half is not what it should be."""
        problem = self._problem(vm, record, edited) or self._taken(vm, edited)
        if problem:
            raise Refused(
                f"Another run left the copy {record['name_label']!r} ({record['uuid']}) unfinished: "
                f"{problem}. The VM was not changed. If the VM is unused and no run is active, {BY_HAND}, then "
                f"repeat the command."
            )

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
            raise PoolFailure(f"An import of one VM made {len(made)} VMs: check the VMs of the pool.")
        record: Record = self.calls.call("VM.get_record", made[0])
        problem = self._problem(made[0], record, edited) or self._taken(made[0], edited)
        if problem:
            self._destroy_again(made[0], problem)
        return self._finish(made[0], record, edited)

    def _finish(self, vm: str, record: Record, edited: ova.Edited) -> Record:
        """MACs, and the last mark: the snapshots have it first, as VM.revert would take it away from the VM. What is
        right by then may be started.
        """
        if self.wanted.keep_mac:
            self._restore_macs(record, edited.nics)
        for snapshot in record["snapshots"]:
            self._mark_done(snapshot, record["uuid"])
        self.calls.call("VM.set_is_a_template", vm, False)
        # This renews allowed_operations, which that leaves those of a template: XenCenter would offer no start.
        self.calls.call("VM.remove_from_blocked_operations", vm, "make_into_template")
        self._mark_done(vm, record["uuid"])
        return record

    def _taken(self, vm: str, edited: ova.Edited) -> str:
        """Which VM that is no copy has one of the disks now; "" where none has. Copies share what originals share."""
        for disk in edited.disks:
            for vbd in self.calls.call("VDI.get_VBDs", self.copy.by_uuid[disk.new]):
                with passing("HANDLE_INVALID"):  # it was taken off just now
                    ref = str(self.calls.call("VBD.get_VM", vbd))
                    other: Record = self.calls.call("VM.get_record", ref)
                    if ref != vm and not other["is_a_snapshot"] and not self._is_copy(other):
                        return f"its disk {disk.userdevice} is a disk of the VM {other['name_label']!r} meanwhile"
        return ""

    def _is_copy(self, vm: Record) -> bool:
        is_here = vm["other_config"].get(ON_SR) == self.copy.uuid
        return is_here and (inventory.is_own(vm) or inventory.is_half(vm))

    def _mark_done(self, vm: str, uuid_of_copy: str) -> None:
        with passing("MAP_DUPLICATE_KEY"):
            self.calls.call("VM.add_to_other_config", vm, DONE, uuid_of_copy)

    def _destroy_again(self, vm: str, problem: str) -> None:
        try:
            destroy_own(self.calls, vm, self.wanted.run)
        except RelvmoiscsiError as error:
            raise Refused(
                f"The copy {self.name!r} is wrong: {problem}. The copy could not be destroyed: {error} Do not "
                f"start the copy; {BY_HAND}."
            ) from error
        raise Refused(f"The copy of {self.source.name!r} was destroyed: {problem}. No disk was changed.")

    def _problem(self, vm: str, record: Record, edited: ova.Edited) -> str:
        """Why the VM that was made is not the one that was wanted; "" when it is."""
        vms = {vm: record}
        for snapshot in record["snapshots"]:
            vms[snapshot] = self.calls.call("VM.get_record", snapshot)
        vbds: Records = {}
        for each, its in vms.items():
            vbds.update(self.calls.records("VBD", VM=each))
            if its["power_state"] != "Halted" or its["ha_always_run"]:
                return "the copy is not halted, or HA is on"
        away = [vbd for vbd in vbds.values() if not self._is_allowed(vbd)]
        if away:
            return f"its disk {away[0]['userdevice']} is not on the copy"
        disks = [vbd for vbd in vbds.values() if vbd["VM"] == vm and vbd["type"] == "Disk"]
        has = sorted((vbd["userdevice"], self.copy.vdis[vbd["VDI"]]["uuid"]) for vbd in disks)
        if has != [(disk.userdevice, disk.new) for disk in edited.disks]:
            return "the copy has other disks than its original"
        vifs = self.calls.records("VIF", VM=vm)
        if {vif["device"]: vif["network"] for vif in vifs.values()} != {
            device: nic.network for device, nic in edited.nics.items()
        }:
            return "the copy is on the wrong networks"
        left = inventory.dangling([*vms.values(), *vbds.values(), *vifs.values()])
        return "the copy has invalid references: {}".format(", ".join(left)) if left else ""

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


def _half_beside(vm: Record) -> str:
    return f"an earlier run also left an unfinished copy, {vm['name_label']!r} ({vm['uuid']}): {BY_HAND}"


def _not_ended(task: str) -> str:
    return f"an import of an earlier run is still active ({task}) and may leave a second, unfinished copy"
