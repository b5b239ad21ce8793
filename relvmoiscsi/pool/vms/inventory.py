# SPDX-License-Identifier: LGPL-2.1-only
"""VMs of the pool with VBDs, VIFs, networks and VDIs, each class read once; and relvmoiscsi's marks on VMs.

The marks are keys of VM.other_config. A clone starts as a template, which xapi does not start, with the keys COPY_OF,
ON_SR and RUN. After the check of every disk, `clone` makes the template a VM and sets DONE. A clone without DONE was
left by an interrupted run. xapi copies the keys when a person clones the VM, so DONE holds the UUID of the clone. In a
person's copy of the clone, DONE holds the UUID of another VM.
"""

from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple, TypeVar

from relvmoiscsi.formats import naming, saved_vms
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import find
from relvmoiscsi.pool.vms.device_numbers import Place, places_of
from relvmoiscsi.wording import said, shell_command

NULL = "OpaqueRef:NULL"

#: keys of VM.other_config; a network that a run has made also has DONE and ON_SR
COPY_OF, ON_SR, DONE = "relvmoiscsi:clone-of", "relvmoiscsi:sr", "relvmoiscsi:done"

#: key of VBD.other_config: UUIDs of the VM and the VDI that `rescue` has lent it. The UUIDs identify the mark, because
#: xapi copies the key with a VM
LENT = "relvmoiscsi:rescue"

#: `vdi_type` in sm_config of a VDI that the driver of an SR on LVM keeps as a raw volume
RAW = naming.MGT_TYPES[naming.RAW]

#: template for the names of clones: whoever sees the VM finds the copy, and so its date, whatever other copies the pool
#: had or gets
NAME = "{vm} on {sr}"


T = TypeVar("T")


class _Records(NamedTuple):
    vms: Records
    vbds: Records
    vifs: Records
    networks: Records
    vdis: Records


class Inventory(_Records):
    """The records of the pool at one moment. Keys are references.

    Another client may have destroyed since what an earlier reading had. So whoever reads again looks for each reference
    of the earlier reading before an index by it.

    A tenant or a guest can make thousands of records, so no answer about one VM or VDI reads all of them.
    """

    def grouped(self, kind: str, *path: str) -> Dict[str, Records]:
        """Return the records of a class by the text that they have at this path; "" without one. Computed once."""

        def group() -> Dict[str, Records]:
            groups: Dict[str, Records] = {}
            for ref, record in getattr(self, kind).items():
                value = record
                for key in path:
                    value = value.get(key, "")
                groups.setdefault(str(value), {})[ref] = record
            return groups

        return self.once(":".join((kind, *path)), group)

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returned at the first call with this name."""
        if name not in self.__dict__:
            self.__dict__[name] = compute()
        found: T = self.__dict__[name]
        return found

    def named_vms(self) -> Records:
        """Return the VMs that a person uses, and can name in a command: those of `is_vm`."""
        return {ref: vm for ref, vm in self.vms.items() if is_vm(vm)}

    def vbds_of(self, vm: str) -> Records:
        return self.grouped("vbds", "VM").get(vm, {})

    def vbds_by_place(self, vm: str) -> Dict[Place, List[str]]:
        """Return the VBDs of a VM by the disks that xapi takes their devices for. Computed once for a VM.

        A drive that was plugged keeps its place in VBD.device, whatever its name is since.
        """

        def places() -> Dict[Place, List[str]]:
            found: Dict[Place, List[str]] = {}
            for ref, vbd in self.vbds_of(vm).items():
                for place in places_of(vbd["userdevice"]) | places_of(vbd["device"]):
                    found.setdefault(place, []).append(ref)
            return found

        return self.once(f"places:{vm}", places)

    def vifs_of(self, vm: str) -> Records:
        return self.grouped("vifs", "VM").get(vm, {})

    def disks_of(self, vm: str) -> Dict[str, Record]:
        """Return the VDI records of a VM's disks, by userdevice."""
        return {
            vbd["userdevice"]: self.vdis[vbd["VDI"]]
            for vbd in self.vbds_of(vm).values()
            if vbd["type"] == "Disk" and not vbd["empty"] and vbd["VDI"] in self.vdis
        }

    def users_of(self, vdi: str) -> List[str]:
        """Return the VMs that use this VDI: in a drive of any type, or as memory. Without snapshots, which never run.

        Whose data the VDI has is another question: a vm-operator may put any VDI into an empty CD drive.
        """
        drives = self.grouped("vbds", "VDI").get(vdi, {}).values()
        refs = {*(vbd["VM"] for vbd in drives), *self.grouped("vms", "suspend_VDI").get(vdi, {})}
        return sorted(ref for ref in refs if ref in self.vms and not self.vms[ref]["is_a_snapshot"])

    def vms_with_disk(self, vdi: str, with_snapshots: bool = False) -> List[str]:
        """Return the VMs of which this VDI is a disk, or the memory. A CD makes nobody the owner of its data.

        To change the type of a drive takes the role vm-admin.
        """
        refs = {vbd["VM"] for vbd in self.grouped("vbds", "VDI").get(vdi, {}).values() if vbd["type"] == "Disk"}
        refs.update(self.grouped("vms", "suspend_VDI").get(vdi, {}))
        return sorted(ref for ref in refs if ref in self.vms and (with_snapshots or not self.vms[ref]["is_a_snapshot"]))

    def eject_commands(self, vdi: str, vm: str) -> List[str]:
        """Return the commands that take this VDI out of the CD drives of a VM; [] where it is a disk of the VM."""
        drives = [vbd for vbd in self.vbds_of(vm).values() if vbd["VDI"] == vdi]
        return [eject_command(vbd) for vbd in drives] if all(vbd["type"] == "CD" for vbd in drives) else []

    def owners_of(self, vdi: str) -> List[str]:
        """Return the VMs whose data a VDI has: whose disk it is, or else the owners of the VDI it is a snapshot of.

        What a snapshot of a VM has belongs to the VM, and to the snapshot where the pool no longer has the VM. No other
        function answers the question whose data a VDI has.

        A vm-admin can make a chain of thousands of snapshots (VDI.pool_introduce): the walk along a chain stops at a
        VDI that is known from another walk.
        """
        known: Dict[str, List[str]] = self.__dict__.setdefault("owners of", {})
        way: List[str] = []
        owners: List[str] = []
        while vdi in self.vdis and vdi not in known and not owners:
            known[vdi] = []  # for a chain that leads in a circle
            way.append(vdi)
            owners = self.vms_of(self.vms_with_disk(vdi, with_snapshots=True))
            vdi = str(self.vdis[vdi]["snapshot_of"])
        owners = owners or known.get(vdi, [])
        known.update(dict.fromkeys(way, owners))
        return owners

    def vms_of(self, users: Iterable[str]) -> List[str]:
        """Return VMs and snapshots, with the VM of a snapshot in its place where the pool has the VM."""
        behind = {str(self.vms[ref]["snapshot_of"]) if self.vms[ref]["is_a_snapshot"] else ref: ref for ref in users}
        return sorted({vm if vm in self.vms else ref for vm, ref in behind.items()})

    def vdis_of(self, sr: str) -> Records:
        return self.grouped("vdis", "SR").get(sr, {})

    def is_copy(self, vm: str) -> bool:
        """Has a run made this VM (finished or not), or the VM of this snapshot?"""
        record = self.vms.get(vm)
        if record is not None and record["is_a_snapshot"]:
            record = self.vms.get(record["snapshot_of"])
        return record is not None and is_clone(record)

    def destroy_command(self, vm: str, *srs: str) -> str:
        """Return the command that destroys a VM without its disks; "" for a VM that is more than a copy on these SRs.

        `vm` and `srs` are references. A run has made the copy or its VM, and each disk of the copy is on these SRs. No
        other function prints the command: a person may run the command without a look at the VM.
        """
        if not self.is_copy(vm) or any(disk["SR"] not in srs for disk in self.disks_of(vm).values()):
            return ""
        # An unfinished clone is a template: the other two commands would destroy its disks on the copy too.
        destroy = shell_command("xe vm-destroy", f"uuid={self.vms[vm]['uuid']}")
        return f"`{destroy}` (never vm-uninstall or template-uninstall)"

    def copies_on(self, sr_uuid: str, of: Optional[str] = None) -> Iterator[Tuple[str, Record]]:
        """Yield the VMs and snapshots that a run has made on this SR, finished or not. `sr_uuid` and `of` are UUIDs."""
        there = self.vms if of is None else self.grouped("vms", "other_config", COPY_OF).get(of, {})
        for ref, vm in there.items():
            if is_made_on(vm, sr_uuid):
                yield ref, vm


def is_vm(record: Record) -> bool:
    """Is this a VM that a person uses: no template, no snapshot, no control domain, and with a UUID?

    A command finds only such a VM. So only such a VM is restored, or has a lent disk, whatever the marks of others say.
    xapi takes any text for the UUID of a VM, a VDI or an SR.
    """
    kinds = ("is_a_template", "is_a_snapshot", "is_control_domain")
    return is_uuid(record["uuid"]) and not any(record[kind] for kind in kinds)


def other_use_of(vdi: Record) -> str:
    """Return for what a VDI is there that can be no disk of a VM, in words; "" for a VDI that can.

    The pool itself and relvmoiscsi have VDIs of their own, and memory is no disk. xapi's templates make disks of type
    "system". Everybody may give a disk the name of records, so the name alone hides no disk.
    """
    if vdi["type"] not in ("user", "system", "ephemeral"):
        return f"of the type {said(vdi['type'])}"
    is_raw = vdi["sm_config"].get("vdi_type", RAW) == RAW
    return "for the records of VMs" if is_raw and saved_vms.may_be(vdi["name_label"], vdi["virtual_size"]) else ""


def is_made_on(vm: Record, sr_uuid: str) -> bool:
    """Has a run made this VM or snapshot on this SR (a UUID), finished or not?"""
    return bool(vm["other_config"].get(ON_SR) == sr_uuid) and _is_marked(vm)


def _is_marked(vm: Record) -> bool:
    """Has the VM the marks of a clone? xapi gives a clone its UUID. A restored import may have any text for one."""
    return COPY_OF in vm["other_config"] and is_uuid(vm["uuid"])


def is_own(vm: Record) -> bool:
    """Is this a finished clone?

    The snapshots of a clone have the UUID of the clone in DONE, because VM.revert copies the keys to the VM.
    """
    return _is_marked(vm) and bool(vm["other_config"].get(DONE) == vm["uuid"])


def is_unfinished(vm: Record) -> bool:
    """Is this an unfinished clone?"""
    return _is_marked(vm) and DONE not in vm["other_config"] and not vm["is_a_snapshot"]


def is_lent(found: Inventory, vbd: Record) -> bool:
    """Does the VBD have the mark of its own VM and VDI? A snapshot or clone of a VM has the mark of that VM.

    A vm-admin may write a mark of the snapshot itself: no disk was lent to a snapshot.
    """
    vm, vdi = found.vms.get(vbd["VM"]), found.vdis.get(vbd["VDI"])
    marked = vbd["other_config"].get(LENT, "").split()
    return vm is not None and vdi is not None and is_vm(vm) and bool(marked == [vm["uuid"], vdi["uuid"]])


def eject_command(vbd: Record) -> str:
    """Return the command that empties a CD drive, for a sentence."""
    uuid = f"uuid={vbd['uuid']}"
    return f"`{shell_command('xe vbd-eject', uuid)}`"


def is_clone(vm: Record) -> bool:
    """Is this a clone that a run has made, finished or not? False for a person's copy of a clone."""
    return is_own(vm) or is_unfinished(vm)


#: on what `copy_command` makes; the keys of the clone mean nothing there, as DONE has the UUID of the clone
AFTER_COPY = (
    "The new VM stays on the network of the clone, and its tag xo:no-bak keeps it out of backups. "
    "Move its VIFs (`xe vif-move`), and remove its tags (`xe vm-param-remove`)."
)


def copy_command(vm: Record, sr: str, copy: str) -> str:
    """Return the command that copies a halted clone to an SR (its UUID, "" for the SR of the clone).

    `copy` is the name of the copy that the clone is on. The new VM gets the name of the original, where `clone` has
    made the name of the clone of both names.
    """
    to, name, end = {"sr-uuid": sr} if sr else {}, str(vm["name_label"]), NAME.format(vm="", sr=copy)
    name = name[: -len(end)] if name.endswith(end) else name
    words = [f"{key}={text}" for key, text in {"uuid": vm["uuid"], **to, "new-name-label": name}.items()]
    return f"`{shell_command('xe vm-copy', *words)}`"


def owners_of(network: Record) -> Set[str]:
    """Return the SRs (UUIDs) whose copies a run has made a network for.

    The first SR stands in the key ON_SR, each other SR in its own key.
    """
    config = network["other_config"]
    if DONE not in config:
        return set()
    more = {key[len(ON_SR) + 1 :] for key in config if key.startswith(ON_SR + ":")}
    return more | ({str(config[ON_SR])} if ON_SR in config else set())


def read(calls: Calls) -> Inventory:
    """Read the records of the pool. Raises PoolFailure.

    A VIF on no network is left out, as xapi itself removes it. Source: xen-api ocaml/xapi/db_gc.ml, gc_VIFs.
    """
    vms, vbds, vifs, networks, vdis = (calls.records(kind) for kind in ("VM", "VBD", "VIF", "network", "VDI"))
    return Inventory(vms, vbds, {ref: vif for ref, vif in vifs.items() if vif["network"] in networks}, networks, vdis)


def of_vm(calls: Calls, vm: str) -> Inventory:
    """Read the records of a VM (a reference), its snapshots and its parent, and of what they have. Raises PoolFailure.

    The time grows with the objects of this VM alone. A VIF on no network is there too, as in an export.
    """
    main: Record = calls.call("VM.get_record", vm)
    vms = {vm: main, **calls.records_with("VM", ref={*main["snapshots"], str(main.get("parent", NULL))} - {NULL, vm})}
    vbds, vifs = calls.records_with("VBD", VM=vms), calls.records_with("VIF", VM=vms)
    networks = calls.records_with("network", ref=[vif["network"] for vif in vifs.values()])
    used = {*(vbd["VDI"] for vbd in vbds.values()), *(each["suspend_VDI"] for each in vms.values())}
    return Inventory(vms, vbds, vifs, networks, calls.records_with("VDI", ref=used - {NULL}))


def find_vm(found: Inventory, text: str) -> str:
    """Return the reference of the VM with this UUID or name. Raises NotFound, UsageError."""
    return find(found.named_vms(), text, "VM", "`xe vm-list params=uuid,name-label` lists the VMs.")


def find_network(networks: Records, text: str) -> str:
    """Return the reference of the network with this UUID or name. Raises NotFound, UsageError."""
    return find(networks, text, "network", "`xe network-list params=uuid,name-label` lists the networks.")


def in_order(records: Records) -> List[str]:
    """Return the references, sorted by name."""
    return sorted(records, key=lambda ref: (str(records[ref]["name_label"]), str(records[ref]["uuid"])))
