# SPDX-License-Identifier: LGPL-2.1-only
"""VMs of the pool with VBDs, VIFs, networks and VDIs, each class read once; and relvmoiscsi's marks on VMs.

The marks are keys of VM.other_config. A clone starts as a template, which xapi does not start, with the keys COPY_OF,
ON_SR and RUN. After the check of every disk, `clone` makes the template a VM and sets DONE. A clone without DONE was
left by an interrupted run. xapi copies the keys when a person clones the VM, so DONE holds the UUID of the clone. In a
person's copy of the clone, DONE holds the UUID of another VM.
"""

from typing import Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.formats import naming, saved_vms
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records, passing
from relvmoiscsi.pool.records import CHANGED, ORIGINAL_SR, WAS, Pool, find
from relvmoiscsi.pool.vdis import Origin, is_derived, marked_old
from relvmoiscsi.pool.vms import lineage, restore_entries
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


class _Records(NamedTuple):
    vms: Records
    vbds: Records
    vifs: Records
    networks: Records
    vdis: Records


class Inventory(_Records):
    """The records of the pool at one moment. Keys are references.

    A tenant or a guest can make thousands of records, so no answer about one VM or VDI reads all of them.
    """

    def grouped(self, kind: str, *path: str) -> Dict[str, Records]:
        """Return the records of a class by the text that they have at this path; "" without one. Computed once."""
        name = ":".join((kind, *path))
        if name not in self.__dict__:
            groups: Dict[str, Records] = {}
            for ref, record in getattr(self, kind).items():
                value = record
                for key in path:
                    value = value.get(key, "")
                groups.setdefault(str(value), {})[ref] = record
            self.__dict__[name] = groups
        found: Dict[str, Records] = self.__dict__[name]
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
        known: Dict[str, Dict[Place, List[str]]] = self.__dict__.setdefault("by place", {})
        if vm not in known:
            known[vm] = {}
            for ref, vbd in self.vbds_of(vm).items():
                for place in places_of(vbd["userdevice"]) | places_of(vbd["device"]):
                    known[vm].setdefault(place, []).append(ref)
        return known[vm]

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


class Copy(NamedTuple):
    """An attached copy of an SR, and its VDIs."""

    ref: str
    uuid: str
    name: str
    original: str  #: UUID of the original SR
    vdis: Records  #: by reference, those with a UUID
    by_uuid: Dict[str, str]  #: references of the VDIs, by UUID
    origin: Origin
    earlier_uuids: Mapping[str, Mapping[str, str]] = {}  #: as in `earlier_uuids`
    original_ref: Optional[str] = None  #: reference of the original SR; None where the pool lacks it
    changed: str = ""  #: when LVM last changed the SR, in ISO 8601; "" for an unknown time

    def new_of(self, old_uuid: str) -> Optional[Record]:
        """Return the new VDI of a VDI of the original, or of the VDI that the disk was before it came home.

        None for a VDI of another SR than the original, for a missing VDI, and for a hidden parent.
        """
        known = self.known_as(old_uuid)
        return self.vdis[self.by_uuid[self.origin.new_of(known)]] if known else None

    def why_missing(self, vdi: Record) -> Tuple[str, str]:
        """Return (why the copy lacks the disk of a VDI, what helps), each "" for an unknown reason.

        The reason is the end of a sentence.
        """
        marked = self.earlier_uuids.get(str(vdi["uuid"]), {})
        for uuid, why in marked.items():
            if why and self.origin.new_of(uuid) in self.by_uuid:
                return f": its mark {WAS} names the VDI {uuid}, {why}", ""
        if marked:
            return (
                ": it came home from a copy, which lost it",
                "Attach another clone of the snapshot, which has the disk.",
            )
        if vdi["SR"] == self.original_ref:
            listed = shell_command("relvmoiscsi pool map", self.uuid)
            return (
                ": it is newer than the snapshot, or another tool has moved it to its SR",
                f"`{listed}` lists the disks of the copy, and `rescue` lends a disk to another VM.",
            )
        return "", ""

    def known_as(self, uuid: str) -> str:
        """Return the UUID that the disk of a VDI had when the LUN was copied; "" where `new_of` has no VDI."""
        for known, why in [(uuid, ""), *self.earlier_uuids.get(uuid, {}).items()]:
            ref = self.by_uuid.get(self.origin.new_of(known))
            if ref is None or why or not self.vdis[ref]["managed"]:
                continue
            if known == uuid or not other_use_of(self.vdis[ref]):
                return known
        return ""


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


def lost_with(found: Inventory, sr: str) -> List[Record]:
    """Return the disks without a VM (VDIs) that a copy (a reference) alone has, sorted by name.

    No other LUN has these disks: they were made on the copy, or `restore` has given the VM another disk in their place.
    A writer of the LUN may choose the name.
    """
    alone = [
        vdi
        for ref, vdi in found.vdis_of(sr).items()
        if vdi["managed"] and not vdi["is_a_snapshot"] and not other_use_of(vdi) and not found.owners_of(ref)
        if not is_derived(vdi["uuid"]) or restore_entries.BEFORE in vdi["name_label"]
    ]
    return sorted(alone, key=lambda vdi: (str(vdi["name_label"]), str(vdi["uuid"])))


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

    def those(kind: str, refs: Iterable[str]) -> Records:
        found: Records = {}
        for ref in dict.fromkeys(refs):
            with passing("HANDLE_INVALID"):  # the object was destroyed since, or the field leads nowhere
                found[ref] = calls.call(f"{kind}.get_record", ref)
        return found

    main: Record = calls.call("VM.get_record", vm)
    vms = {vm: main, **those("VM", [*main["snapshots"], str(main.get("parent", NULL))])}
    vbds = {ref: vbd for each in vms for ref, vbd in calls.records("VBD", VM=each).items()}
    vifs = {ref: vif for each in vms for ref, vif in calls.records("VIF", VM=each).items()}
    networks = those("network", [vif["network"] for vif in vifs.values()])
    vdis = [*(vbd["VDI"] for vbd in vbds.values()), *(each["suspend_VDI"] for each in vms.values())]
    return Inventory(vms, vbds, vifs, networks, those("VDI", vdis))


def copy_of(pool: Pool, found: Inventory, sr: str) -> Copy:
    """Return the copy on this SR. The caller has checked that the SR is a copy."""
    record = pool.srs[sr]
    vdis = {ref: vdi for ref, vdi in found.vdis_of(sr).items() if is_uuid(vdi["uuid"])}
    by_uuid = {str(vdi["uuid"]): ref for ref, vdi in vdis.items()}
    original = str(record["other_config"][ORIGINAL_SR])
    original_ref = pool.sr_by_uuid(original)
    origin = _origin(pool, found, sr)
    changed = untrusted.time_text(record["other_config"].get(CHANGED, ""))  # a pool-operator may write the mark
    return Copy(
        sr, record["uuid"], record["name_label"], original, vdis, by_uuid, origin, earlier_uuids(pool, found),
        original_ref, changed,
    )  # fmt: skip


def _origin(pool: Pool, found: Inventory, sr: str) -> Origin:
    return Origin(pool.srs[sr]["uuid"], pool.sr_by_uuid(pool.srs[sr]["other_config"][ORIGINAL_SR]), found.vdis)


def owners_of_disks(found: Inventory, copy: Copy) -> Dict[str, List[str]]:
    """Return the names of the VMs whose data the disks of the original have, by the UUIDs when the LUN was copied."""
    owners: Dict[str, Set[str]] = {}
    for ref, vdi in found.vdis_of(copy.original_ref or "").items():
        names = {str(found.vms[vm]["name_label"]) for vm in found.owners_of(ref)}
        owners.setdefault(copy.known_as(str(vdi["uuid"])) or str(vdi["uuid"]), set()).update(names)
    return {uuid: sorted(names) for uuid, names in owners.items()}


# --- states of one disk


def old_vdis(pool: Pool, found: Inventory) -> Dict[str, str]:
    """Return the UUID of the old VDI of each VDI on an attached copy, by UUID."""
    origins = {sr: _origin(pool, found, sr) for sr, _ in pool.copies()}
    pairs = [(vdi, origin.old_of(vdi)) for sr, origin in origins.items() for vdi in found.vdis_of(sr).values()]
    return {str(vdi["uuid"]): str(old["uuid"]) for vdi, old in pairs if old is not None and is_uuid(vdi["uuid"])}


def kin(found: Inventory, olds: Mapping[str, str], uuid: str) -> Set[str]:
    """Return the UUIDs of all VDIs that have data from where this VDI has data too, as far as the pool knows.

    `olds` has the old VDI of each VDI of a copy. Any other VDI may have a mark of its own, or of the VDI that xapi
    has copied it from: a forged mark adds a VDI, and hides no VDI. So each mark counts here, also one that
    `earlier_uuids` does not count: of two marks that name one VDI, the forged one would take the true one away. A
    vm-admin may write any number of marks, so each mark is read twice, for any number of VDIs that are looked for.
    """
    rows = found.grouped("vdis", "uuid")

    def sources(of: str) -> List[str]:
        marks = [text for vdi in rows.get(of, {}).values() for text in lineage.all_of(vdi)]
        old = [] if of in olds else [marked_old(vdi) for vdi in rows.get(of, {}).values()]
        return [*_before(found, olds, of), *marks, *filter(None, old)]

    later: Dict[str, List[str]] = {}
    for each in rows:
        for source in sources(each):
            later.setdefault(source, []).append(each)
    return lineage.closure(lineage.closure([uuid], sources), lambda of: later.get(of, ()))


def _before(found: Inventory, olds: Mapping[str, str], uuid: str) -> List[str]:
    """Return the UUIDs of the VDIs of which this VDI is a later state, and those of its snapshots and their VDI."""
    before = [olds[uuid]] if uuid in olds else []
    for ref, vdi in found.grouped("vdis", "uuid").get(uuid, {}).items():
        before += lineage.earlier(vdi)
        near = [found.vdis.get(vdi["snapshot_of"]), *found.grouped("vdis", "snapshot_of").get(ref, {}).values()]
        before += [str(each["uuid"]) for each in near if each is not None]
    return before


def whose(pool: Pool, found: Inventory, uuid: str, by_journals: bool = True) -> List[str]:
    """Return the VMs whose data a VDI has (its UUID, also of a VDI that is gone): its owners.

    Without owners, those of all later states of the disk: a disk that came home, a disk of a copy that a VM has and
    that was not lent, and the disks that a journal says the VM had. A VDI that a person has copied is no such state. Of
    the snapshot of a VDI, snapshots of VMs count alone: a backup gives such a VDI to its own VM for a while.

    A vm-admin may write a journal. Without `by_journals`, a VM counts only by the disks that it has now.
    """
    bits, owners = _owners(pool, found, by_journals)
    return sorted(vm for vm, bit in zip(bits, reversed(f"{owners.get(uuid, 0):b}")) if bit == "1")


def on_copies(pool: Pool, found: Inventory, original: str) -> Dict[str, Dict[str, str]]:
    """Return the disks that a restore has put in the place of disks of an SR (a UUID), by VM (a reference), by name.

    By device: the UUID that the disk had on the SR. `restore --keep` ends a journal, so a disk of a copy counts by
    itself too, if its data is the VM's (`whose`). A vm-admin may write a journal: an entry counts while the VM has the
    new disk of the entry. No other code says which VM has its disks on a copy.
    """
    copies = {ref for ref, sr in pool.copies() if sr["other_config"][ORIGINAL_SR] == original}
    olds = old_vdis(pool, found)
    there: Dict[str, Dict[str, str]] = {}
    vms_of: Dict[str, Collection[str]] = {}
    for ref in [ref for ref in in_order(found.named_vms()) if not found.is_copy(ref)]:
        journal = {swap.new: swap.of for swap in restore_entries.read(found.vms[ref])[0]}
        for device, disk in found.disks_of(ref).items():
            old = journal.get(disk["uuid"]) or olds.get(disk["uuid"])
            if disk["SR"] not in copies or old is None:
                continue
            if old not in vms_of:
                vms_of[old] = frozenset(whose(pool, found, old))
            if disk["uuid"] in journal or ref in vms_of[old]:
                there.setdefault(ref, {})[device] = old
    return there


def strangers(pool: Pool, found: Inventory, uuid: str, own: Collection[str]) -> List[str]:
    """Return the names of the VMs of `whose`, but for the VMs `own` (UUIDs) and their clones, sorted."""
    ours = _with_clones(found, own)
    return sorted(str(found.vms[vm]["name_label"]) for vm in whose(pool, found, uuid) if vm not in ours)


def _with_clones(found: Inventory, own: Iterable[str]) -> Set[str]:
    """Return the references of the VMs with these UUIDs, and of their clones."""
    groups = found.grouped("vms", "uuid"), found.grouped("vms", "other_config", COPY_OF)
    return {vm for uuid in own for group in groups for vm in group.get(uuid, {})}


def _owners(pool: Pool, found: Inventory, by_journals: bool = True) -> Tuple[Dict[str, int], Dict[str, int]]:
    """Return (the bit of each VM, the VMs of `whose` for each VDI by UUID as a sum of such bits). Computed once.

    The first VM by name has the lowest bit. A vm-admin may write any number of marks, so no code walks the states of a
    disk again for each mark, nor makes a set of VMs for each VDI.
    """
    name = "owners" if by_journals else "owners now"
    if name not in found.__dict__:
        bits = {vm: 1 << at for at, vm in enumerate(in_order(found.vms))}
        olds = old_vdis(pool, found)
        before: Dict[str, List[str]] = {}
        now: Dict[str, Set[str]] = {}
        owners: Dict[str, Set[str]] = {}
        for uuid, rows in found.grouped("vdis", "uuid").items():
            before[uuid] = _before(found, olds, uuid)
            owners[uuid] = {vm for ref in rows for vm in found.owners_of(ref)}
            for ref, vdi in rows.items():
                users = set(found.vms_with_disk(ref, with_snapshots=True))
                users -= {
                    vbd["VM"] for vbd in found.grouped("vbds", "VDI").get(ref, {}).values() if is_lent(found, vbd)
                }
                users -= {vm for vm in users if vdi["is_a_snapshot"] and not found.vms[vm]["is_a_snapshot"]}
                now.setdefault(uuid, set()).update(found.vms_of(users))
        for ref, vm in found.named_vms().items() if by_journals else ():
            for uuid in restore_entries.named_vdis(vm):
                now.setdefault(uuid, set()).add(ref)
        known = lineage.with_later(before, {uuid: sum(bits[vm] for vm in vms) for uuid, vms in now.items()})
        known.update({uuid: sum(bits[vm] for vm in vms) for uuid, vms in owners.items() if vms})
        found.__dict__[name] = bits, known
    both: Tuple[Dict[str, int], Dict[str, int]] = found.__dict__[name]
    return both


def earlier_uuids(pool: Pool, found: Inventory) -> Dict[str, Dict[str, str]]:
    """Return the UUIDs in the mark of each disk that was moved, by the UUID that the disk has now. Computed once.

    Each UUID has "", or the reason why it does not count, as the end of a sentence: a vm-admin may write the mark.
    """
    if "was" not in found.__dict__:
        marked = [rows for text, rows in found.grouped("vdis", "other_config", WAS).items() if text]
        claims = {str(vdi["uuid"]): dict.fromkeys(lineage.earlier(vdi)) for rows in marked for vdi in rows.values()}
        in_use = {uuid: _use_of(found, uuid) for uuid in {uuid for uuids in claims.values() for uuid in uuids}}
        twice = lineage.claimed_twice(claims)
        bits, owners = _owners(pool, found)
        names = [str(found.vms[vm]["name_label"]) for vm in bits]
        was = found.__dict__["was"] = {}
        for now, uuids in claims.items():
            own = {str(found.vms[vm]["uuid"]) for vm in whose(pool, found, now)}
            ours = sum(bits[vm] for vm in _with_clones(found, own))
            was[now] = {}
            for uuid in uuids:
                others = owners.get(uuid, 0) & ~ours
                if in_use[uuid]:
                    was[now][uuid] = in_use[uuid]
                elif others:  # the lowest bit is that of the first VM
                    was[now][uuid] = f"which has data of the VM {names[(others & -others).bit_length() - 1]!r}"
                elif uuid in twice:
                    other = next(by for by in twice[uuid] if by != now)
                    was[now][uuid] = f"which is in another mark too, of the VDI {other}"
                else:
                    was[now][uuid] = ""
    known: Dict[str, Dict[str, str]] = found.__dict__["was"]
    return known


def _use_of(found: Inventory, uuid: str) -> str:
    """Return for what a VDI is there now, if no moved disk was that VDI, as in `earlier_uuids`; "" without a use."""
    there = found.grouped("vdis", "uuid").get(uuid, {})
    for use in filter(None, map(other_use_of, there.values())):
        return f"which is no disk of a VM, but {use}"
    for vm in (vm for ref in there for vm in found.vms_with_disk(ref)):
        return f"which is a disk of the VM {found.vms[vm]['name_label']!r}"
    return ""


def find_vm(found: Inventory, text: str) -> str:
    """Return the reference of the VM with this UUID or name. Raises NotFound, UsageError."""
    return find(found.named_vms(), text, "VM", "`xe vm-list params=uuid,name-label` lists the VMs.")


def find_network(networks: Records, text: str) -> str:
    """Return the reference of the network with this UUID or name. Raises NotFound, UsageError."""
    return find(networks, text, "network", "`xe network-list params=uuid,name-label` lists the networks.")


def in_order(records: Records) -> List[str]:
    """Return the references, sorted by name."""
    return sorted(records, key=lambda ref: (str(records[ref]["name_label"]), str(records[ref]["uuid"])))
