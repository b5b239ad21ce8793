# SPDX-License-Identifier: LGPL-2.1-only
"""Clone VMs onto an attached copy of their SR: no byte is copied, and no clone has a disk of an original.

    1 export     the current records of the VM, compared with the pool's own, or the records that `save-vms` has saved
    2 edit       ova.py: replace every disk by its disk on the copy; refuse a VM with a disk elsewhere
    3 dry run    xapi checks whether the import would find all objects
    4 import     the clone starts as a template with marks: nobody can start a template
    5 verify     compare the clone and its snapshots with the edited records, and check that no other VM has a disk.
                 If the check fails, destroy the clone and report an error.
    6 MACs       set the MACs of the original, with --keep-mac
    7 done       make the template a VM, and set the last mark

Before the first step, the run locks the copy of the SR, scans it, and makes the isolated network. An interrupted run
leaves a template, or a VM without the last mark. The next run verifies and finishes that VM, or leaves the VM unchanged
and says what to do. A VM with the last mark gets no second clone. A run destroys only VMs that the same run has made.
No step starts a VM or changes an original.
"""

import random
import uuid
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.pool import jobs, lock, records
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, Record, Records, passing
from relvmoiscsi.pool.records import RUN, Pool
from relvmoiscsi.pool.vms import (
    checked_export,
    choice,
    inventory,
    ova,
    ova_compare,
    ova_made,
    owners,
    run_states,
    transfer,
)
from relvmoiscsi.pool.vms.choice import CloneRequest, VmSource
from relvmoiscsi.pool.vms.discard import destroy
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, NULL, ON_SR, Inventory
from relvmoiscsi.pool.vms.ova_file import Ova
from relvmoiscsi.pool.vms.owners import Copy, whose
from relvmoiscsi.wording import shell_command

#: status of a VM
MADE, ALREADY, WOULD, FAILED = "cloned", "already there", "would be cloned", "failed"

#: what a person must know about clones, and is known before the run
TO_KNOW = (
    "A copy of a VM has the hostname, the machine SID, the keys and the static addresses of its original.",
    "HA is off for a copy. Xen Orchestra skips copies in backups (tag xo:no-bak). "
    "The first backup of a copy is a full backup.",
)
SAME_NETWORK = "the copies will be on the networks of their originals, {}: expect conflicts of addresses."
SAME_ORIGINAL = (
    "clones of the same VMs from other copies are on the same networks, {}: expect conflicts of addresses. "
    "Give --isolated another network for each copy."
)

TAGS = ("relvmoiscsi", "xo:no-bak=relvmoiscsi clone")  #: of a clone

_MOST_KEYS = 5  #: of VDIs, in a sentence
_MOST_IMPORTS = 10  #: of earlier runs that a run looks at, for each VM


class Cloned(NamedTuple):
    """Result for one VM."""

    vm: str  #: UUID of the original
    vm_name: str
    status: str
    name: str = ""
    uuid: str = ""  #: of the copy
    disks: Sequence[ova.CloneDisk] = ()
    networks: Mapping[str, Tuple[str, str]] = {}  #: names of the networks of original and clone, by device
    snapshots: Sequence[ova.CloneSnapshot] = ()
    notes: Sequence[str] = ()
    error: Optional[RelvmoiscsiError] = None

    def facts(self) -> Dict[str, Any]:
        return {
            "old_vm": self.vm,
            "new_vm": self.uuid or None,
            "old_name": self.vm_name,
            "new_name": self.name or None,
            "status": self.status,
            "disks": [disk.facts() for disk in self.disks],
            "networks": {
                device: {"old_network": old, "new_network": new} for device, (old, new) in self.networks.items()
            },
            "snapshot_names": [snapshot.name for snapshot in self.snapshots],
            "notes": list(self.notes),
            "problem": str(self.error) if self.error is not None else None,
        }


def clone(
    calls: Calls, pool: Pool, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest,
    tell: Callable[[VmSource, str], None] = lambda *_: None,
) -> List[Cloned]:  # fmt: skip
    """Clone each VM; return the results in the order of `sources`.

    `tell` gets a source and "" at the start of its VM, and the status at the end. A VM that was made has an error where
    the copy cannot be read afterwards.

    A missing isolated network is made, once the copy is locked and can be read.

    Raises NotFound, UsageError; Refused where another client works on the copy of the SR; PoolFailure where the pool
    stops answering after the last VM. A failed VM gives a result and raises nothing.
    """
    with lock.held(calls, lock.names_of(calls, [copy.uuid]), "clone") as held:
        with run_states.unchanged():
            records.verify_not_discarded(calls, [copy.uuid])
            records.verify_readable(calls, copy.uuid)
        imports = transfer.under_way(calls, copy)  # before the VMs: an import that has ended since has made its VM
        # Read the pool again: a person may have answered a question since the last read. The run id must be unique, so
        # that `_imported` destroys only VMs of this run.
        found = inventory.read(calls)
        copy = owners.copy_of(pool, found, copy.ref)
        wanted, found = choice.on_networks(calls, found, copy, sources, wanted)
        wanted = wanted._replace(run=f"{wanted.run}-{uuid.uuid4().hex[:12]}")

        def told(one: _Clone) -> Cloned:
            tell(one.source, "")
            try:
                done = one.run(held, imports.get(one.source.uuid, {}))
            except RelvmoiscsiError:
                tell(one.source, FAILED)
                raise
            tell(one.source, done.status)
            return done

        results = _each(calls, pool, found, copy, sources, wanted, told)
        if any(result.status == MADE for result in results):
            try:  # the scan also repairs snapshot_of and parent, which some imports change
                records.verify_readable(calls, copy.uuid)
            except (PoolFailure, PoolGone, Refused) as failure:
                failure.disk_state = "The VM was made."
                results = [each._replace(error=failure) if each.status == MADE else each for each in results]
        return results


def would(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest
) -> List[Cloned]:
    """Return the results that `clone` would give: export and edit the records, and change nothing, so do not scan.

    Raises UsageError.
    """
    return _each(calls, pool, found, copy, sources, wanted, lambda one: one.planned())


def warning(found: Inventory) -> str:
    """Return what a person must know of the VDIs of the pool before an import; "" for nothing."""
    why, way = _unreadable(found.vdis)
    return f"The import may fail, for each VM. {why}. {way}" if why else ""


def _unreadable(vdis: Records) -> Tuple[str, str]:
    """Return (which VDIs an import may not be able to read, what helps), or twice "".

    An import reads the records of all VDIs of the pool: as XML-RPC, unless a setting of xapi says JSON (the default
    since 26). Source: xen-api ocaml/xapi/xapi_globs.ml, use_xmlrpc.
    """
    keys = list(ova_compare.broken_answers("VDI", vdis))
    if not keys:
        return "", ""
    more = f", and {len(keys) - _MOST_KEYS} more such texts are there" if len(keys) > _MOST_KEYS else ""
    has = ". ".join(map(checked_export.has_key, keys[:_MOST_KEYS]))
    why = f"{has}{more}. An import of xapi may read the records of all VDIs as XML, which such a text breaks"
    return why, " ".join(checked_export.way_to_remove(key)[0] for key in keys[:_MOST_KEYS])


def _each(
    calls: Calls, pool: Pool, found: Inventory, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest,
    work: Callable[["_Clone"], Cloned],
) -> List[Cloned]:  # fmt: skip
    """Call `work` for several VMs in parallel; an error becomes a result."""
    named, imports = choice.names(found, copy, sources, wanted), Deadline(wanted.patience)

    def one(calls: Calls, source: VmSource) -> Cloned:
        return work(_Clone(calls, pool, found, copy, source, named[source.uuid], wanted, imports))

    with run_states.cloning():
        outcomes: List[Union[Cloned, RelvmoiscsiError]] = jobs.at_once(calls, sources, one, wanted.jobs)
    return [
        Cloned(source.uuid, source.name, FAILED, named[source.uuid], error=each)
        if isinstance(each, RelvmoiscsiError)
        else each
        for source, each in zip(sources, outcomes)
    ]


class _Clone:
    """The clone of one VM."""

    def __init__(
        self, calls: Calls, pool: Pool, found: Inventory, copy: Copy, source: VmSource, name: str, wanted: CloneRequest,
        imports: Deadline,
    ) -> None:  # fmt: skip
        """`imports` is how long this run waits for all imports of earlier runs."""
        self.imports = imports
        self.calls, self.pool, self.found, self.copy = calls, pool, found, copy
        self.source, self.name, self.wanted = source, name, wanted

    def planned(self) -> Cloned:
        """Return the result that `run` would give now. Raises PoolFailure, Refused, UsageError."""
        if self.source.problem is not None:
            raise self.source.problem
        there, begun, notes = self._earlier()
        if there is not None:
            return there
        edited = self._edited(begun)
        for vm in begun[:1]:
            record: Record = self.calls.call("VM.get_record", vm)
            self._verify_unfinished(vm, record, edited)
            uuid = record["uuid"]
            notes.insert(0, f"an earlier run left the VM unfinished ({uuid}); this run verifies and finishes the VM")
        return self._result(WOULD, self.name, "", edited, notes)

    def run(self, held: lock.Held, under_way: Records) -> Cloned:
        """Make or finish the clone; `under_way` are the tasks of imports of this VM by earlier runs.

        Raises PoolFailure, Refused, UsageError.
        """
        if self.source.problem is not None:
            raise self.source.problem
        calls, active = self.calls, self._wait_for_imports(under_way)
        there, begun, notes = self._earlier()
        if there is not None:
            return there
        edited = self._edited(begun)
        held.verify(calls)
        if begun:  # never destroyed, because a person may have used the clone
            vm = begun[0]
            record: Record = calls.call("VM.get_record", vm)
            self._verify_unfinished(vm, record, edited)
        else:
            self._import(edited, dry_run=True)
            vm, record = self._imported(edited)
        if self.wanted.keep_mac:
            vifs = {vif["device"]: (ref, vif) for ref, vif in calls.records("VIF", VM=vm).items()}
            for device, wanted in edited.vifs.items():  # a run cut after VIF.destroy leaves no VIF
                ref, vif = vifs.get(device, ("", {"MAC": ""}))
                if vif["MAC"].lower() != wanted["MAC"].lower():  # xapi cannot change a MAC: make a new VIF
                    if ref:
                        calls.call("VIF.destroy", ref)
                    calls.call("VIF.create", {**wanted, "VM": vm})
        # The snapshots get the last mark before the VM: VM.revert to a snapshot without the mark would remove the mark
        # from the VM.
        for ref in [*record["snapshots"], vm]:
            if ref == vm:
                calls.call("VM.set_is_a_template", vm, False)
                # set_is_a_template leaves the allowed_operations of a template, and XenCenter would offer no start.
                # This call makes xapi compute allowed_operations again.
                calls.call("VM.remove_from_blocked_operations", vm, "make_into_template")
            with passing("MAP_DUPLICATE_KEY"):
                calls.call("VM.add_to_other_config", ref, DONE, record["uuid"])
        return self._result(MADE, record["name_label"], record["uuid"], edited, [*notes, *active])

    def _result(self, status: str, name: str, uuid: str, edited: ova.Edited, notes: Sequence[str]) -> Cloned:
        found, on_disks, by_uuid = self.found, [], self.found.grouped("vdis", "uuid")
        names = {ref: str(network["name_label"]) for ref, network in found.networks.items()}
        networks = {device: (edited.networks[device], names[vif["network"]]) for device, vif in edited.vifs.items()}
        for disk in [*edited.disks, *(disk for snapshot in edited.snapshots for disk in snapshot.disks)]:
            known = self.copy.known_as(disk.old)
            if known != disk.old:  # a vm-admin may have written the mark
                on_disks.append(
                    f"the disk {disk.userdevice} of {self.source.name!r} ({disk.old}) was {known} when the LUN was "
                    f"copied, by its mark {records.WAS}"
                )
            if self.source.document:  # saved records claim these disks: say which VM has each disk in this pool now
                of_vms = " and ".join(repr(found.vms[vm]["name_label"]) for vm in whose(self.pool, found, disk.old))
                has = "is a disk" if any(map(found.owners_of, by_uuid.get(disk.old, {}))) else "has data"
                on_disks.append(
                    f"{disk.old} (disk {disk.userdevice} of {self.source.name!r} by the records) "
                    + (f"{has} of the VM {of_vms} in this pool" if of_vms else "is a disk of no VM in this pool")
                )
        return Cloned(
            self.source.uuid, self.source.name, status, name, uuid, edited.disks, networks, edited.snapshots,
            [*edited.notes, *on_disks, *notes],
        )  # fmt: skip

    # --- what earlier runs have left

    def _wait_for_imports(self, under_way: Records) -> List[str]:
        """Wait for an import that a killed run has started; return notes on imports that do not end.

        Each vm-operator can make such a task. So the time is for all VMs of this run, and a run looks at a few tasks of
        each VM.
        """
        notes = []
        for ref, task in list(under_way.items())[:_MOST_IMPORTS]:
            try:
                self.calls.wait("the import of an earlier run", ref, self.imports, is_own=False)
            except PoolFailure as failure:
                if not failure.code:
                    notes.append(
                        f"an import of an earlier run is still active ({task['uuid']}) and may leave a second, "
                        "unfinished copy"
                    )
        if under_way:
            self.found = inventory.read(self.calls)
        return notes

    def _earlier(self) -> Tuple[Optional[Cloned], List[str], List[str]]:
        """Return (the result for a finished clone, the unfinished clones sorted by UUID, notes on older clones).

        The result is None without a finished clone. An older clone lost its disks when the SR was discarded. Raises
        Refused for a finished clone that is wrong.
        """
        whole, empty, half = (list(clones.items()) for clones in choice.clones(self.found, self.copy, self.source.uuid))
        half.sort(key=lambda row: str(row[1]["uuid"]))
        for ref, vm in whole[:1]:
            choice.verify_as_wanted(self.found, self.source, self.copy.ref, ref, self.wanted)
            notes = [
                f"an earlier run also left an unfinished copy, {each['name_label']!r} ({each['uuid']}){self._or(other)}"
                for other, each in half
            ]
            done = Cloned(self.source.uuid, self.source.name, ALREADY, vm["name_label"], vm["uuid"], notes=notes)
            return done, [], []
        notes = [
            f"{vm['name_label']!r} ({vm['uuid']}) is an older copy of this VM without a disk on the copy{self._or(ref)}"
            for ref, vm in empty
        ]
        return None, [ref for ref, _ in half], notes

    def _or(self, vm: str) -> str:
        """Return the end of a note on a clone that is not needed; "" where the clone has a disk of its own."""
        destroy = self.found.destroy_command(vm, self.copy.ref)
        return f": if unused, destroy it with {destroy}" if destroy else ""

    def _verify_unfinished(self, vm: str, record: Record, edited: ova.Edited) -> None:
        """Raises Refused where an unfinished clone of another run differs from the edited records."""
        problem = self._problem(vm, edited)
        if problem:
            way, destroy = "", self.found.destroy_command(vm, self.copy.ref)
            if destroy:
                way = f"If the VM is unused and no run is active, run {destroy}, then repeat the command."
            else:
                of_vm = f"uuid={record['uuid']}", "param-name=other-config", f"param-key={COPY_OF}"
                unmark = shell_command("xe vm-param-remove", *of_vm)
                way = f"The VM has a disk of its own. If the VM is no copy, run `{unmark}`, then repeat the command."
            raise (
                Refused(f"Another run left the copy {record['name_label']!r} ({record['uuid']}) unfinished: {problem}.")
                .in_state("The VM was not changed.")
                .advising(way)
            )

    # --- a copy is made

    def _edited(self, begun: Sequence[str]) -> ova.Edited:
        """Return the edited records of the clone. Raises NotFound, PoolFailure, Refused, UsageError."""
        source, copy, wanted = self.source, self.copy, self.wanted
        # the plan has found the VM in an earlier reading
        if not (source.document or source.ref in self.found.vms):
            raise NotFound(f"The VM {source.name!r} is no longer in the pool.").in_state("Nothing was made.")
        document = source.document or checked_export.export(
            self.calls, self.pool, self.found, source.ref, wanted.snapshots
        )
        srs = self.pool.srs.values()
        edit = ova.RecordEdit(
            copy.uuid,
            copy.new_of,
            {str(vdi["location"]) for vdi in copy.vdis.values() if vdi["managed"]},
            {str(sr["uuid"]) for sr in srs if sr["content_type"] == "iso" and sr["type"] != "udev"},
            lambda uuid: choice.network_of(self.found, wanted, uuid),
            self.name,
            f"Copy of the VM {source.uuid} on the SR {copy.name!r}, by relvmoiscsi.",
            {COPY_OF: source.uuid, ON_SR: copy.uuid, RUN: wanted.run},
            source.is_known,
            TAGS,
            wanted.snapshots,
            wanted.without,
            wanted.omits_disks,
            f"{random.getrandbits(63)}:{random.getrandbits(63)}",
        )
        edited = ova.edited(document, edit)
        choice.verify_free(self.found, copy, edited.disks)
        if wanted.keep_mac:
            now = self.found._replace(vifs=self.calls.records("VIF"))
            choice.verify_macs(now, source.name, edited.vifs, begun[0] if begun else "")
            long = [device for device, vif in edited.vifs.items() if self.calls.room({**vif, "VM": NULL}) < 0]
            if long:
                raise Refused(
                    f"The VIF {long[0]} of the VM {source.name!r} has texts that are too long for one call of xapi, so "
                    "the copy cannot get its MAC."
                ).advising("Leave --keep-mac out, or give the VIF shorter texts.")
        return edited

    def _import(self, edited: ova.Edited, dry_run: bool = False) -> List[str]:
        """Import the records; return the references of the new VMs. Raises PoolFailure, Refused."""
        try:
            return transfer.import_vm(self.calls, edited.document, self.copy, self.source.uuid, dry_run)
        except PoolFailure as failure:
            why, way = _unreadable(self.calls.records("VDI")) if failure.code == "IMPORT_ERROR" else ("", "")
            if not why:
                raise
            raise (
                Refused(f"xapi could not import the copy of {self.source.name!r}. {why}.")
                .in_state("Nothing was made.")
                .advising(f"{way} Then repeat the command.")
            ) from failure

    def _imported(self, edited: ova.Edited) -> Tuple[str, Record]:
        """Import a new VM. A VM that differs from the edited records is destroyed. Raises Refused, PoolFailure."""
        made = self._import(edited)
        if len(made) != 1:
            raise PoolFailure(f"An import of one VM made {len(made)} VMs.").advising("Check the VMs of the pool.")
        record: Record = self.calls.call("VM.get_record", made[0])
        problem = self._problem(made[0], edited)
        if not problem:
            return made[0], record
        try:
            self.found = inventory.read(self.calls)
            if record["other_config"].get(RUN) != self.wanted.run:
                raise Refused(
                    f"The VM {record['name_label']!r} was not made by this run. The run destroys only its own VMs."
                )
            for ref, vm in self.found.copies_on(self.copy.uuid, self.source.uuid):  # a snapshot may be of another VM
                if vm["other_config"].get(RUN) == self.wanted.run:
                    destroy(self.calls, self.found, ref)
        except RelvmoiscsiError as error:
            destroys = self.found.destroy_command(made[0], self.copy.ref)
            raise Refused(
                f"The copy {self.name!r} is wrong: {problem}. The copy could not be destroyed: {error.message}"
            ).advising(f"Do not start the copy. Check the VM{f', then run {destroys}' if destroys else ''}.") from error
        raise Refused(f"The copy of {self.source.name!r} was destroyed: {problem}.").in_state("No disk was changed.")

    # --- is the copy what it should be?

    def _problem(self, vm: str, edited: ova.Edited) -> str:
        """Return how a clone differs from the edited records; "" without a difference."""
        calls, copy, file = self.calls, self.copy, Ova(edited.document)

        def more(cls: str) -> Records:  # no VM lists its PVS proxies
            return calls.records(cls) if cls != "PVS_proxy" or file.of(cls) else {}

        made = ova_compare.of_vm(inventory.of_vm(calls, vm), self.pool.srs, more, vm, snapshots=True)
        vms = made["VM"]
        if any(each["power_state"] != "Halted" or each["ha_always_run"] for each in vms.values()):
            return "the copy is not halted, or HA is on"
        # behind this check, `run` makes the VIFs that an interrupted run has taken away
        problem = ova_made.difference(file, made, vm, lacks_vifs=self.wanted.keep_mac)
        if problem:
            return problem
        left = [name for cls in ("VM", "VBD", "VIF") for name in ova.dangling(cls, made[cls].values())]
        if left:
            return "the copy has invalid references: {}".format(", ".join(left))
        on = {copy.by_uuid[disk.new]: disk.userdevice for disk in edited.disks}
        drives = [vbd for vbd in calls.records_with("VBD", VDI=on).values() if vbd["type"] == "Disk"]
        others = calls.records_with("VM", ref={drive["VM"] for drive in drives} - {vm})
        for drive in [drive for drive in drives if drive["VM"] in others]:
            other = others[drive["VM"]]  # clones share the disks that their originals share
            is_copy = other["other_config"].get(ON_SR) == copy.uuid and inventory.is_clone(other)
            if not other["is_a_snapshot"] and not is_copy:
                return f"its disk {on[drive['VDI']]} is a disk of the VM {other['name_label']!r} meanwhile"
        return ""
