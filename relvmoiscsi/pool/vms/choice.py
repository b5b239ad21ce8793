# SPDX-License-Identifier: LGPL-2.1-only
"""Choose the VMs to clone, and the names, networks, MACs and edited records of their copies."""

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.pool import jobs, lock, lock_keys, records, vdis
from relvmoiscsi.pool.calls import Calls, Record, Records, passing
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.pool.vdis import Pair
from relvmoiscsi.pool.vms import discard, inventory, ova, owners, rescue, restore_journal, run_states
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, NULL, ON_SR, Inventory
from relvmoiscsi.pool.vms.owners import Copy
from relvmoiscsi.wording import quoted, said, shell_command, some_of

#: what says on which networks the copies of VMs with networks will be
NETWORK_OPTIONS = "--isolated NET, --network OLD=NEW for each network, or --same-networks"
_VM_NOT_CHANGED = "The VM was not changed."
#: key of network.other_config
_INTERNAL = "is_host_internal_management_network"
#: how long `clone` waits for the import of a killed run
PATIENCE_SECONDS = 30.0


class CloneRequest(NamedTuple):
    """What the caller wants `clone` to make."""

    name: str = inventory.NAME  #: {vm}, {date}, {sr}
    run: str = ""
    isolated_name: str = ""  #: UUID or name of the network for every VIF; `on_networks` finds or makes it
    pairs: Sequence[Tuple[str, str]] = ()  #: old and new networks, each a UUID or name; `on_networks` finds them
    isolated: str = ""  #: reference of the network for every VIF
    networks: Mapping[str, str] = {}  #: reference of the new network, by UUID of the original's network
    keep_mac: bool = False
    snapshots: bool = False
    without: Sequence[str] = ()  #: classes to leave out: "VGPU", "VTPM"
    omits_disks: bool = False  #: True: the copy of a VM lacks the disks that are not on the copy of the SR
    jobs: int = jobs.MOST
    patience: float = PATIENCE_SECONDS


class VmSource(NamedTuple):
    """A VM to clone."""

    uuid: str
    name: str
    ref: str = ""  #: reference in the pool; "" for a VM that exists only as saved records
    document: bytes = b""  #: saved records; b"": export the records from the pool
    is_known: bool = True  #: did xapi or `save-vms` of this pool write the records?
    problem: Optional[RelvmoiscsiError] = None  #: why `clone` cannot clone the VM


# --- which


def copy_to_use(calls: Calls, pool: Pool, found: Inventory, text: str) -> Copy:
    """Return the copy as `find_copy`, for a command that locks it. Raises Busy where another client works on the copy.

    The caller has read `pool` and `found` before, so it tells nobody of work that is done, or of nothing to do, while
    a run of another client changes that.
    """
    copy = find_copy(calls, pool, found, text)
    lock.verify_free(calls, [lock_keys.name_of(pool.srs[copy.ref])])
    discard.verify_abandoned(calls, pool, found, [copy.ref])
    return copy


def find_copy(calls: Calls, pool: Pool, found: Inventory, text: str) -> Copy:
    """Return the copy with this UUID, name or SCSIid. Raises NotFound, Refused, UsageError.

    Refuses a copy without a VDI in the pool: its SR is empty, or `attach` was killed before its scan, or the scan
    failed, or has not begun: then another client has the lock, or another client has discarded the copy. The records of
    the pool do not tell an empty SR from an SR that was not scanned.
    """
    ref = records.find_sr(pool, text)
    records.verify_copy(pool, ref)
    copy = owners.copy_of(pool, found, ref)
    if not copy.vdis:
        lock.verify_free(calls, [lock_keys.name_of(pool.srs[ref])])
        records.verify_not_discarded(calls, [copy.uuid])  # between the readings of `pool` and of `found`
        again = shell_command("relvmoiscsi pool attach", str(pool.srs[ref]["other_config"].get(records.SCSI_ID, "")))
        name = f"{copy.name!r} ({copy.uuid})"
        raise Refused(
            f"The pool has no VDI of the copy {name}: `attach` was interrupted, or the SR is empty."
        ).advising(f"Repeat `{again}`. If its result has 0 VDIs, the SR is empty.")
    return copy


def choose(
    pool: Pool, found: Inventory, copy: Copy, names: Sequence[str], everything: bool = False, omits_disks: bool = False
) -> List[VmSource]:
    """Return the VMs with these UUIDs or names, or all VMs with a disk on the copy. Raises NotFound, UsageError.

    A VM that cannot be cloned has the reason as its `problem`, such as a VM that was restored from a copy.
    """
    if not names and not everything:
        raise UsageError("No VM is selected.").advising("Give VMs, or --all.")
    refs, swaps = [inventory.find_vm(found, name) for name in names], _restored(pool, found, copy)
    if everything:
        ours = {ref for ref, vm in found.copies_on(copy.uuid) if inventory.is_clone(vm)}
        there = [
            ref
            for ref in inventory.in_order(found.named_vms())
            if ref in swaps or any(copy.new_of(vdi["uuid"]) is not None for vdi in found.disks_of(ref).values())
        ]
        refs += [ref for ref in there if ref not in ours]
    if not refs:
        raise NotFound(f"No VM of the pool has a disk whose copy is on {copy.name!r}.").advising(
            f"`{shell_command('relvmoiscsi pool map', copy.uuid)}` lists the disks."
        )
    problems = {ref: _problem(pool, found, copy, ref, swaps.get(ref, {}), omits_disks) for ref in refs}
    named = ((ref, found.vms[ref], problem) for ref, problem in problems.items())
    return [VmSource(vm["uuid"], vm["name_label"], ref, problem=problem) for ref, vm, problem in named]


def of_no_vm(pool: Pool, found: Inventory, copy: Copy) -> List[Pair]:
    """Return the disks of the copy that no VM of the pool has, and whose originals no VM has: `choose` finds no VM.

    A snapshot of a VM is no VM here. The VDI of saved records and the image of a suspended VM are no disks.
    """
    by_uuid, swaps = found.grouped("vdis", "uuid"), _restored(pool, found, copy)
    of_vms = {old for disks in swaps.values() for old in disks.values()}
    of_vms.update(copy.known_as(vdi["uuid"]) for vm in found.named_vms() for vdi in found.disks_of(vm).values())
    return [
        pair
        for pair in vdis.pairs(copy.origin, copy.vdis)
        if pair.is_managed and not pair.is_a_snapshot and pair.old not in of_vms
        if not inventory.other_use_of(copy.vdis[copy.by_uuid[pair.new]])
        if not any(found.vms_with_disk(ref) for uuid in (pair.old, pair.new) for ref in by_uuid.get(uuid, {}))
    ]


def _restored(pool: Pool, found: Inventory, copy: Copy) -> Dict[str, Dict[str, str]]:
    """Return the disks of `owners.on_copies` in the place of disks that this copy has."""
    there = owners.on_copies(pool, found, copy.original).items()
    ours = {ref: {at: old for at, old in disks.items() if copy.new_of(old) is not None} for ref, disks in there}
    return {ref: disks for ref, disks in ours.items() if disks}


def _problem(
    pool: Pool, found: Inventory, copy: Copy, vm: str, swaps: Mapping[str, str], omits_disks: bool
) -> Optional[Refused]:
    disks, name, uuid = found.disks_of(vm), found.vms[vm]["name_label"], str(found.vms[vm]["uuid"])
    missing = {device: vdi for device, vdi in sorted(disks.items()) if copy.new_of(vdi["uuid"]) is None}
    if not disks:
        return Refused(f"The VM {name!r} has no disk.")
    if not missing or (omits_disks and len(missing) < len(disks)):
        return None

    def words(devices: Iterable[str]) -> str:
        shown = ((device, missing[device]) for device in devices)
        return ", ".join(
            f"{records.shown_device(device)} {vdi['name_label']!r} ({said(vdi['uuid'])})" for device, vdi in shown
        )

    copies = {ref: str(sr["uuid"]) for ref, sr in pool.copies()}
    of_copies = {device: str(vdi["SR"]) for device, vdi in missing.items() if vdi["SR"] in copies}
    are_lent = {vbd["userdevice"] for vbd in found.vbds_of(vm).values() if inventory.is_lent(found, vbd)}
    lent = sorted(are_lent & set(of_copies))
    if lent:
        srs = sorted({copies[of_copies[device]] for device in lent})
        back = some_of([f"`{shell_command('relvmoiscsi pool rescue --done', sr, vm=uuid)}`" for sr in srs])
        return Refused(f"The VM {name!r} has disks that were lent by `rescue`: {words(lent)}.").advising(
            f"Take the disks back first: {back}."
        )
    back = run_states.restore_command("undo", uuid)
    own = [device for device, sr in of_copies.items() if sr == copy.ref]  # as after `restore --keep`
    restored = sorted(set(swaps) & set(of_copies) - set(own))
    earlier = f"put the earlier disks back first: {back}" if restore_journal.is_restored(found.vms[vm]) else ""
    if restored:
        return Refused(
            f"The VM {name!r} was restored from the copy {pool.srs[of_copies[restored[0]]]['name_label']!r} and has "
            f"disks of that copy: {words(restored)}. The copy {copy.name!r} has copies of the disks that the VM had "
            "before."
        ).advising(
            (f"To clone the VM, {earlier}. " if earlier else "")
            + f"If `save-vms` ran before the snapshot, add --from-snapshot{' instead' if earlier else ''}."
        )
    if own:
        return Refused(
            f"The VM {name!r} has disks of the copy {copy.name!r} itself: {words(own)}. A copy of the VM would write "
            "to the same disks."
        ).advising(f"Use another copy, or {earlier}." if swaps and earlier else "Use another copy.")
    reasons = {
        f" The disk {records.shown_device(device)} is not there{why}.": way
        for device, vdi in missing.items()
        for why, way in [copy.why_missing(vdi)]
        if why
    }
    omit = ["--omit-disks clones the VM without these disks."] if len(missing) < len(disks) else []
    return Refused(
        f"The VM {name!r} has disks that are not on the copy {copy.name!r}: {words(missing)}. A copy of the VM would "
        f"lack these disks or write to the originals.{''.join(reasons)}"
    ).advising(" ".join([*omit, *dict.fromkeys(reasons.values())]))


def verify_free(found: Inventory, copy: Copy, disks: Sequence[ova.CloneDisk]) -> None:
    """Raises Refused where a VM that is no clone has one of these disks. Clones may share disks with each other."""
    for disk in disks:
        for user in found.vms_with_disk(copy.by_uuid[disk.new]):
            if not inventory.is_made_on(found.vms[user], copy.uuid):
                name, way = found.vms[user]["name_label"], rescue.way_back(found, copy, copy.by_uuid[disk.new], user)
                raise Refused(f"The copy of the disk {disk.userdevice} is a disk of the VM {name!r} already.").advising(
                    f"First {way}." if way else ""
                )


def names(found: Inventory, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest) -> Dict[str, str]:
    """Return the name of each copy, by UUID of the original; all names differ. Raises UsageError.

    {date} is the day of the last change of the SR by LVM, as in the name of an SR. A name that is taken gets a number
    behind {vm}: a number at the end would look like the number of a copy of the SR.
    """
    whole, _, unfinished = clones(found, copy)
    there = {vm["other_config"][COPY_OF]: str(vm["name_label"]) for vm in whole.values()}
    taken = {str(vm["name_label"]): 1 for ref, vm in found.vms.items() if ref not in unfinished}
    parts, chosen = verify_template(wanted.name), {}
    several = [source for source in sources if source.problem is None and source.uuid not in there]
    if len(several) > 1 and not any(field == "vm" for _, field in parts):
        form = quoted("--name=" + wanted.name + " {vm}")
        raise UsageError(f"--name {wanted.name!r} gives {len(several)} VMs one name.").advising(
            f"Give a name with {{vm}}, such as {form}."
        )
    end = max((at for at, (_, field) in enumerate(parts) if field == "vm"), default=len(parts)) + 1
    for source in sources:
        known = {"vm": source.name, "date": copy.changed[:10] or "unknown", "sr": copy.name}
        texts = [text + known.get(field, "") for text, field in parts]
        if not "".join(texts).strip():
            raise UsageError(f"--name {wanted.name!r} leaves the copy without a name.")
        wish, behind = "".join(texts[:end]), "".join(texts[end:])
        chosen[source.uuid] = there.get(source.uuid) or records.unused_name(wish, taken, behind)
        taken.setdefault(chosen[source.uuid], 1)
    return chosen


def verify_template(template: str) -> List[Tuple[str, str]]:
    """Return the parts of a template: a text, and the field after the text. Raises UsageError."""
    return records.parts_of_template(template, "vm", "date", "sr")


def clones(found: Inventory, copy: Copy, of: Optional[str] = None) -> Tuple[Records, Records, Records]:
    """Return the finished clones with a disk on the copy of the SR, those without, and the unfinished clones.

    `of` is the UUID of an original: of that VM alone.

    A clone without a disk there is older: since `clone` made it, the SR was discarded and attached again.
    """
    whole, empty, half = {}, {}, {}  # type: Records, Records, Records
    for ref, vm in found.copies_on(copy.uuid, of):
        if inventory.is_unfinished(vm):
            half[ref] = vm
        elif inventory.is_own(vm):
            is_on = any(disk["SR"] == copy.ref for disk in found.disks_of(ref).values())
            (whole if is_on else empty)[ref] = vm
    return whole, empty, half


# --- networks


def on_networks(
    calls: Calls, found: Inventory, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest, dry_run: bool = False
) -> Tuple[CloneRequest, Inventory]:
    """Return the request with the references of the networks that it names, and the inventory with the isolated one.

    A missing isolated network is made, unless `dry_run`. Raises NotFound, Refused, UsageError, PoolFailure.
    """
    if wanted.pairs:
        wanted = wanted._replace(networks=networks(found, sources, wanted.pairs))
    if wanted.isolated_name:
        ref, found = isolated_network(calls, found, wanted.isolated_name, dry_run, copy.uuid)
        wanted = wanted._replace(isolated=ref)
    return wanted, found


def networks(found: Inventory, sources: Sequence[VmSource], pairs: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    """Return `CloneRequest.networks` from pairs of old and new networks, each a UUID or name.

    An old network may exist only in saved records. Raises NotFound, Refused, UsageError.
    """
    used = _networks_of(found, sources)
    chosen: Dict[str, str] = {}
    for old, new in pairs:
        ref = inventory.find_network(found.networks, new)
        try:
            of_vms = {uuid: {"uuid": uuid, "name_label": name} for uuid, name in used.items()}
            uuid = inventory.find_network(of_vms, old)
        except NotFound:
            uuid = str(found.networks[inventory.find_network(found.networks, old)]["uuid"])
        if uuid not in used:
            raise NotFound(
                f"--network {old}={new}: none of the VMs has a network card on the network {old!r}."
            ).advising("Omit the pair.")
        if chosen.get(uuid, ref) != ref:
            raise UsageError(f"--network {old}={new}: the network {old!r} already has another NEW.")
        chosen[uuid] = ref
    return chosen


def _networks_of(found: Inventory, sources: Sequence[VmSource]) -> Dict[str, str]:
    """Return the names of the networks of these VMs, by UUID, from the pool or from saved records."""
    return {uuid: name for source in sources for uuid, name in _by_device(found, source).values()}


def _by_device(found: Inventory, source: VmSource) -> Dict[str, Tuple[str, str]]:
    """Return (UUID, name) of the networks of a VM to clone, by device, from the pool or from saved records."""
    if source.document:
        return ova.networks(source.document)
    on = {vif["device"]: found.networks[vif["network"]] for vif in found.vifs_of(source.ref).values()}
    return {device: (str(network["uuid"]), str(network["name_label"])) for device, network in on.items()}


def network_of(found: Inventory, wanted: CloneRequest, uuid: str) -> Optional[str]:
    """Return the reference of the network that replaces the network with this UUID."""
    if wanted.isolated:
        return wanted.isolated
    here = next((ref for ref, network in found.networks.items() if network["uuid"] == uuid), None)
    return wanted.networks.get(uuid, here)


def isolated_network(
    calls: Calls, found: Inventory, text: str, dry_run: bool = False, sr_uuid: str = ""
) -> Tuple[str, Inventory]:
    """Return the network of this name, which has no physical interface, and the inventory with the network.

    A missing network is made, with the SR of the copies as its owner: `discard` of this SR destroys the network. Raises
    Refused for a network that is not isolated, PoolFailure, UsageError.
    """
    try:
        ref = inventory.find_network(found.networks, text)
    except NotFound:
        records.verify_name("--isolated", text)
        record = {
            "name_label": text,
            "name_description": "Isolated network for copies of VMs. Made by relvmoiscsi.",
            "MTU": "1500",
            "other_config": {DONE: "true", ON_SR: sr_uuid},
            "tags": [],
        }
        ref = NULL if dry_run else str(calls.call("network.create", record))
        record.update(uuid="", PIFs=[], VIFs=[])
        return ref, found._replace(networks={**found.networks, ref: record})
    network = found.networks[ref]
    others = {vif["VM"] for vif in found.vifs.values() if vif["network"] == ref and not found.is_copy(vif["VM"])}
    why = ""
    if network["PIFs"]:
        why = "has physical interfaces: it is not isolated"
    elif network["other_config"].get(_INTERNAL) == "true" or not network.get("managed", True):
        why = "is a network of the hosts themselves: it is not isolated"
    elif others:
        names = sorted(repr(found.vms[vm]["name_label"]) if vm in found.vms else vm for vm in others)
        why = f"has VMs that are not copies: {', '.join(names)}. It is not isolated"
    if why:
        raise Refused(f"The network {text!r} {why}.").advising(
            "Give --isolated another name: the command makes the network."
        )
    srs = inventory.owners_of(network)
    if srs and sr_uuid not in srs and not dry_run:  # made by an earlier run
        with passing("MAP_DUPLICATE_KEY", "RBAC_PERMISSION_DENIED"):
            calls.call("network.add_to_other_config", ref, f"{ON_SR}:{sr_uuid}", "true")
    return ref, found


def verify_macs(found: Inventory, name: str, vifs: Records, own: str = "") -> None:
    """Raises Refused where the copy (`own`) would be on a network that already has the MAC of its original (`name`).

    `vifs` are those of the copy, as in `Edited`. Snapshots of VMs do not count: a snapshot never runs.
    """
    taken = {
        (vif["network"], vif["MAC"].lower())
        for vif in found.vifs.values()
        if vif["VM"] != own and not found.vms.get(vif["VM"], {}).get("is_a_snapshot")
    }
    for new in vifs.values():
        if (new["network"], new["MAC"].lower()) in taken:
            network = found.networks[new["network"]]["name_label"]
            raise Refused(
                f"--keep-mac: the MAC {new['MAC']} of {name!r} is on the network {network!r} already, where its "
                "copy would be."
            ).advising("Use --isolated NET, or --network OLD=NEW.")


def verify_as_wanted(found: Inventory, source: VmSource, sr: str, clone: str, wanted: CloneRequest) -> None:
    """Raises Refused for a finished clone on an SR without the wanted mark, or on another network than wanted.

    `sr` and `clone` are references. Each VIF must be on the network that a new clone's VIF of the same device would be
    on. The source has no VIF for a device that a person has added to the clone: such a VIF must be on the isolated
    network, if one is wanted. Pure.
    """
    vm, mark = found.vms[clone], records.mark_of(wanted.run)
    if not records.is_marked(vm, mark):
        raise Refused(
            f"The VM {vm['name_label']!r} ({vm['uuid']}) is a clone of this VM already, and was made without the mark "
            f"{mark}."
        ).in_state(_VM_NOT_CHANGED)
    new = {device: network_of(found, wanted, uuid) for device, (uuid, _) in _by_device(found, source).items()}
    wrong = [
        (vif, to)
        for vif in found.vifs_of(clone).values()
        for to in [new.get(vif["device"], wanted.isolated or vif["network"])]
        if vif["network"] != to
    ]
    if wrong:
        words = ", ".join(sorted({repr(found.networks[vif["network"]]["name_label"]) for vif, _ in wrong}))
        raise (
            Refused(
                f"The VM {vm['name_label']!r} ({vm['uuid']}) is a clone of this VM already, and is on the network "
                f"{words}."
            )
            .in_state(_VM_NOT_CHANGED)
            .advising(_way_to_networks(found, wrong, wanted, found.destroy_command(clone, sr)))
        )


def _way_to_networks(
    found: Inventory, wrong: Sequence[Tuple[Record, Optional[str]]], wanted: CloneRequest, destroy: str
) -> str:
    """Return what a person does with a clone whose VIFs are on other networks than these (references).

    `destroy` is its `destroy_command`.
    """
    used, moves = {vif["network"] for vif in found.vifs.values()}, []
    for vif, to in wrong:
        if to in found.networks and (to in used or to != wanted.isolated):  # else this run makes the network
            of_vif = f"uuid={vif['uuid']}", f"network-uuid={found.networks[to]['uuid']}"
            moves.append(f"`{shell_command('xe vif-move', *of_vif)}`")
    way = f"Move its VIFs: {', '.join(moves)}" if moves else "Name the networks that the clone is on"
    ways = f"{way}. Or, if nobody needs the clone, shut it down and run {destroy}." if destroy else f"{way}."
    return f"{ways} Then repeat the command."


def used_networks(found: Inventory, sources: Sequence[VmSource], wanted: CloneRequest) -> Dict[str, str]:
    """Return the names of the networks, by UUID, that would hold both an original and its copy."""
    here = {str(network["uuid"]): ref for ref, network in found.networks.items()}
    return {
        uuid: name
        for uuid, name in _networks_of(found, sources).items()
        if uuid in here and network_of(found, wanted, uuid) == here[uuid]
    }


def clones_beside(found: Inventory, copy: Copy, sources: Sequence[VmSource], wanted: CloneRequest) -> List[str]:
    """Return the VMs (references) that are clones of the same VMs from other copies, on the networks of new clones."""
    there = {}  # type: Dict[str, str]
    for source in sources:
        nets = {network_of(found, wanted, uuid) for uuid, _ in _by_device(found, source).values()}
        for ref, vm in found.grouped("vms", "other_config", COPY_OF).get(source.uuid, {}).items():
            on = {vif["network"] for vif in found.vifs_of(ref).values()}
            if inventory.is_clone(vm) and not inventory.is_made_on(vm, copy.uuid) and on & nets:
                there[ref] = str(vm["name_label"])
    return sorted(there, key=lambda ref: (there[ref], ref))


def verify_networks_said(found: Inventory, sources: Sequence[VmSource], wanted: CloneRequest) -> None:
    """Raises UsageError where a copy would be on the network of its original, and the caller has not said so."""
    used = used_networks(found, [source for source in sources if source.problem is None], wanted)
    names = sorted(said(name) for uuid, name in used.items() if uuid not in wanted.networks)
    if names:
        raise UsageError(
            f"The copies would be on the networks of their originals: {', '.join(names)}. Addresses may conflict."
        ).advising(f"Give {NETWORK_OPTIONS}.")
