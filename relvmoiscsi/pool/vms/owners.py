# SPDX-License-Identifier: LGPL-2.1-only
"""Whose data a VDI has, and which disk of an attached copy is which disk of the original.

A disk changes its UUID when a restore gives the VM a disk of a copy, and when a run moves that disk home. The owners of
a VDI are therefore those of all later states of the disk. The pool knows the states from the UUIDs of the copies, from
the marks of moved disks (lineage.py), from snapshots, and from the journals of restores.
"""

from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import Record, Records
from relvmoiscsi.pool.records import CHANGED, ORIGINAL_SR, WAS, Pool
from relvmoiscsi.pool.vdis import Origin, is_derived, marked_old
from relvmoiscsi.pool.vms import lineage, restore_entries
from relvmoiscsi.pool.vms.inventory import COPY_OF, Inventory, in_order, is_lent, other_use_of
from relvmoiscsi.wording import shell_command


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


def _origin(pool: Pool, found: Inventory, sr: str) -> Origin:
    return Origin(pool.srs[sr]["uuid"], pool.sr_by_uuid(pool.srs[sr]["other_config"][ORIGINAL_SR]), found.vdis)


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


def of_disks(found: Inventory, copy: Copy) -> Dict[str, List[str]]:
    """Return the names of the VMs whose data the disks of the original have, by the UUIDs when the LUN was copied."""
    owners: Dict[str, Set[str]] = {}
    for ref, vdi in found.vdis_of(copy.original_ref or "").items():
        names = {str(found.vms[vm]["name_label"]) for vm in found.owners_of(ref)}
        owners.setdefault(copy.known_as(str(vdi["uuid"])) or str(vdi["uuid"]), set()).update(names)
    return {uuid: sorted(names) for uuid, names in owners.items()}


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

    def owners_of_all() -> Tuple[Dict[str, int], Dict[str, int]]:
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
        return bits, known

    return found.once("owners" if by_journals else "owners now", owners_of_all)


def earlier_uuids(pool: Pool, found: Inventory) -> Dict[str, Dict[str, str]]:
    """Return the UUIDs in the mark of each disk that was moved, by the UUID that the disk has now. Computed once.

    Each UUID has "", or the reason why it does not count, as the end of a sentence: a vm-admin may write the mark.
    """

    def read_marks() -> Dict[str, Dict[str, str]]:
        marked = [rows for text, rows in found.grouped("vdis", "other_config", WAS).items() if text]
        claims = {str(vdi["uuid"]): dict.fromkeys(lineage.earlier(vdi)) for rows in marked for vdi in rows.values()}
        in_use = {uuid: _use_of(found, uuid) for uuid in {uuid for uuids in claims.values() for uuid in uuids}}
        twice = lineage.claimed_twice(claims)
        bits, owners = _owners(pool, found)
        names = [str(found.vms[vm]["name_label"]) for vm in bits]
        was: Dict[str, Dict[str, str]] = {}
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
        return was

    return found.once("was", read_marks)


def _use_of(found: Inventory, uuid: str) -> str:
    """Return for what a VDI is there now, if no moved disk was that VDI, as in `earlier_uuids`; "" without a use."""
    there = found.grouped("vdis", "uuid").get(uuid, {})
    for use in filter(None, map(other_use_of, there.values())):
        return f"which is no disk of a VM, but {use}"
    for vm in (vm for ref in there for vm in found.vms_with_disk(ref)):
        return f"which is a disk of the VM {found.vms[vm]['name_label']!r}"
    return ""
