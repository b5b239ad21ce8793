# SPDX-License-Identifier: LGPL-2.1-only
"""Which VMs are to have copies, and what is to become of them: names, networks, MACs, and the edit of their records."""

import random
import string
import unicodedata
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.pool import jobs, records
from relvmoiscsi.pool.calls import Calls, Record, passing
from relvmoiscsi.pool.records import RUN, Pool
from relvmoiscsi.pool.vms import inventory, ova, rescue
from relvmoiscsi.pool.vms.inventory import COPY_OF, DONE, NULL, ON_SR, Copy, Inventory

NAME = "{vm} {date}"
#: key of network.other_config
_INTERNAL = "is_host_internal_management_network"
#: categories of characters: controls, halves of pairs, and what is none
_NO_TEXT = ("Cc", "Cs", "Cn")
TAGS = ("relvmoiscsi", "xo:no-bak=relvmoiscsi clone")

#: how long an import that a killed run has begun may be silent, before it is taken for dead
PATIENCE_SECONDS = 30.0


class Wanted(NamedTuple):
    """What is to become of the VMs."""

    name: str = NAME  #: {vm}, {date}, {sr}
    date: str = ""
    run: str = ""
    isolated: str = ""  #: reference of the network for every VIF
    networks: Mapping[str, str] = {}  #: reference of another network, by the UUID of the original's
    keep_mac: bool = False
    snapshots: bool = False
    without: Sequence[str] = ()  #: classes: "VGPU", "VTPM"
    jobs: int = jobs.MOST
    patience: float = PATIENCE_SECONDS


class Source(NamedTuple):
    """A VM that is to have a copy."""

    uuid: str
    name: str
    ref: str = ""  #: in the pool; "" where only its records are left
    document: bytes = b""  #: its records, where they are not to be asked for
    problem: Optional[RelvmoiscsiError] = None  #: why it cannot have one


# --- which


def find_copy(pool: Pool, found: Inventory, text: str) -> Copy:
    """The copy that somebody named. Raises NotFound, Refused, UsageError."""
    ref = records.find_sr(pool, text)
    records.verify_copy(pool, ref)
    return inventory.copy_of(pool, found, ref)


def choose(found: Inventory, copy: Copy, names: Sequence[str], everything: bool = False) -> List[Source]:
    """The VMs that are meant, by UUID or name, or all that have a disk on the copy. Raises NotFound, UsageError.

    One that cannot be cloned says why, as its `problem`.
    """
    if not names and not everything:
        raise UsageError("No VM is selected: give VMs, or --all.")
    refs = [inventory.find_vm(found, name) for name in names]
    if everything:
        ours = {ref for ref, _ in found.copies_on(copy.uuid)}
        refs += [ref for ref in inventory.in_order(found.named_vms()) if ref not in ours and _has_any(found, copy, ref)]
    if not refs:
        raise NotFound(f"No VM of the pool has a disk whose copy is on {copy.name!r}.")
    return [_source(found, copy, ref) for ref in dict.fromkeys(refs)]


def _has_any(found: Inventory, copy: Copy, vm: str) -> bool:
    return any(copy.new_of(vdi["uuid"]) is not None for vdi in found.disks_of(vm).values())


def _source(found: Inventory, copy: Copy, ref: str) -> Source:
    vm, disks = found.vms[ref], found.disks_of(ref)
    problem = None
    missing = {device: vdi for device, vdi in sorted(disks.items()) if copy.new_of(vdi["uuid"]) is None}
    lent = {device: vdi for device, vdi in missing.items() if _is_lent(found, ref, device)}
    if not disks:
        problem = Refused(f"The VM {vm['name_label']!r} has no disk.")
    elif lent:
        problem = Refused(
            f"The VM {vm['name_label']!r} has disks that were lent by `rescue`: {_named(lent)}. Take the disks "
            "back first: `relvmoiscsi pool rescue SR --done`, where SR is their copy."
        )
    elif missing:
        words = _named(missing)
        problem = Refused(
            f"The VM {vm['name_label']!r} has disks that are not on the copy {copy.name!r}: {words}. A copy of "
            "the VM would lack these disks or write to the originals."
        )
    return Source(vm["uuid"], vm["name_label"], ref, problem=problem)


def _is_lent(found: Inventory, vm: str, device: str) -> bool:
    vbds = found.vbds_of(vm).values()
    return any(rescue.is_lent(found, vbd) for vbd in vbds if vbd["userdevice"] == device)


def _named(disks: Mapping[str, Record]) -> str:
    return ", ".join(f"{device} {vdi['name_label']!r} ({vdi['uuid']})" for device, vdi in sorted(disks.items()))


def verify_free(found: Inventory, copy: Copy, disks: Sequence[ova.Disk]) -> None:
    """Raises Refused where a VM that is no copy has one of these disks. Copies share what their originals share."""
    ours = dict(found.copies_on(copy.uuid))
    for disk in disks:
        for user in found.users_of(copy.by_uuid[disk.new]):
            if user not in ours:
                name = found.vms[user]["name_label"]
                raise Refused(f"The copy of the disk {disk.userdevice} is a disk of the VM {name!r} already.")


def names(found: Inventory, copy: Copy, sources: Sequence[Source], wanted: Wanted) -> Dict[str, str]:
    """The name of each copy, by the UUID of the original: no two alike. Raises UsageError."""
    there = {vm["other_config"][COPY_OF]: str(vm["name_label"]) for _, vm in whole(found, copy)}
    unfinished = {ref for ref, _ in half(found, copy)}
    taken = {str(vm["name_label"]) for ref, vm in found.vms.items() if ref not in unfinished}
    chosen = {}
    for source in sources:
        wish = _name(wanted, source, copy)
        name, number = there.get(source.uuid, wish), 2
        while name in taken and source.uuid not in there:
            name, number = f"{wish} ({number})", number + 1
        taken.add(name)
        chosen[source.uuid] = name
    return chosen


def _name(wanted: Wanted, source: Source, copy: Copy) -> str:
    known = {"vm": source.name, "date": wanted.date, "sr": copy.name}
    parts = verify_template(wanted.name)
    name = "".join(text + (known[field] if field is not None else "") for text, field in parts)
    if not name.strip():
        raise UsageError(f"--name {wanted.name!r} leaves the copy without a name.")
    return name


def verify_template(template: str) -> List[Tuple[str, Optional[str]]]:
    """Its parts: text, and the field behind it. Raises UsageError for a template that cannot be one."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"--name {template!r} cannot be read: {error}.") from error
    if any(field not in ("vm", "date", "sr", None) or spec or conversion for _, field, spec, conversion in parts):
        raise UsageError(f"--name {template!r} may contain only the fields vm, date and sr in braces.")
    if any(unicodedata.category(character) in _NO_TEXT for character in template):
        raise UsageError(f"--name {template!r} contains bytes that are not text.")
    if not template.strip():
        raise UsageError(f"--name {template!r} leaves the copy without a name.")
    return [(text, field) for text, field, _, _ in parts]


def whole(found: Inventory, copy: Copy) -> List[Tuple[str, Record]]:
    """The VMs that are done and have a disk there, with their references."""
    return [(ref, vm) for ref, vm in found.copies_on(copy.uuid) if inventory.is_own(vm) and _is_there(found, copy, ref)]


def empty(found: Inventory, copy: Copy) -> List[Tuple[str, Record]]:
    """Those that were done, and have no disk there any more: the copy was discarded meanwhile, and attached again."""
    ours = found.copies_on(copy.uuid)
    return [(ref, vm) for ref, vm in ours if inventory.is_own(vm) and not _is_there(found, copy, ref)]


def half(found: Inventory, copy: Copy) -> List[Tuple[str, Record]]:
    """Those that are not done."""
    return [(ref, vm) for ref, vm in found.copies_on(copy.uuid) if inventory.is_half(vm)]


def _is_there(found: Inventory, copy: Copy, vm: str) -> bool:
    return any(disk["SR"] == copy.ref for disk in found.disks_of(vm).values())


# --- networks, and the edit


def edit_of(found: Inventory, copy: Copy, source: Source, name: str, wanted: Wanted) -> ova.Edit:
    """What the records of a VM have to say to become those of its copy."""

    def new_disk(old_uuid: str) -> Optional[ova.NewDisk]:
        new = copy.new_of(old_uuid)
        return ova.NewDisk(new["uuid"], new["location"]) if new is not None else None

    return ova.Edit(
        copy.uuid,
        new_disk,
        {str(vdi["location"]) for vdi in copy.vdis.values() if vdi["managed"]},
        lambda uuid: network_of(found, wanted, uuid),
        name,
        f"Copy of the VM {source.uuid} on the SR {copy.name}, by relvmoiscsi.",
        {COPY_OF: source.uuid, ON_SR: copy.uuid, RUN: wanted.run},
        TAGS,
        wanted.snapshots,
        wanted.without,
        f"{random.getrandbits(63)}:{random.getrandbits(63)}",
    )


def networks(found: Inventory, sources: Sequence[Source], pairs: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    """`Wanted.networks`, of pairs of old and new networks, each by UUID or name; the old ones may be in the records
    alone that were saved of the VMs. Raises NotFound, Refused, UsageError.
    """
    used = dict(_networks_of(found, sources))
    chosen: Dict[str, str] = {}
    for old, new in pairs:
        ref = inventory.find_network(found, new)
        uuid = _old_network(found, used, old)
        if uuid not in used:
            raise UsageError(f"--network {old}={new}: none of the VMs has a network card on the network {old!r}.")
        if chosen.get(uuid, ref) != ref:
            raise UsageError(f"--network {old}={new}: the network {old!r} already has another NEW.")
        chosen[uuid] = ref
    return chosen


def _networks_of(found: Inventory, sources: Sequence[Source]) -> Iterator[Tuple[str, str]]:
    """(UUID, name) of the networks on which these VMs are, or were when their records were saved."""
    for source in sources:
        if source.document:
            yield from ova.networks(source.document)
        elif source.ref:
            for vif in found.vifs_of(source.ref).values():
                network = found.networks[vif["network"]]
                yield str(network["uuid"]), str(network["name_label"])


def _old_network(found: Inventory, used: Mapping[str, str], text: str) -> str:
    """The UUID of a network that one of the VMs has, or that the pool has."""
    if text.lower() in used:
        return text.lower()
    named = sorted(uuid for uuid, name in used.items() if name == text)
    if len(named) > 1:
        raise UsageError(f"{len(named)} networks have the name {text!r}; give a UUID: {', '.join(named)}.")
    if named:
        return named[0]
    return str(found.networks[inventory.find_network(found, text)]["uuid"])


def network_of(found: Inventory, wanted: Wanted, uuid: str) -> Optional[str]:
    """The reference of the network that takes the place of that with this UUID."""
    if wanted.isolated:
        return wanted.isolated
    here = next((ref for ref, network in found.networks.items() if network["uuid"] == uuid), None)
    return wanted.networks.get(uuid, here)


def isolated_network(
    calls: Calls, found: Inventory, text: str, dry_run: bool = False, sr_uuid: str = ""
) -> Tuple[str, Inventory]:
    """(reference of the network of this name, which leads nowhere, the inventory with it): made if there is none, for
    copies on an SR, with which it goes.

    Raises Refused for one that leads somewhere, PoolFailure, UsageError.
    """
    try:
        ref = inventory.find_network(found, text)
    except NotFound:
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
    _verify_isolated(found, ref, text)
    if not dry_run:
        _own_as_well(calls, found, ref, sr_uuid)
    return ref, found


def _own_as_well(calls: Calls, found: Inventory, ref: str, sr_uuid: str) -> None:
    """A network that an earlier run has made goes with the last of the copies for which it is there."""
    owners = inventory.owners_of(found.networks[ref])
    if owners and sr_uuid not in owners:
        with passing("MAP_DUPLICATE_KEY", "RBAC_PERMISSION_DENIED"):
            calls.call("network.add_to_other_config", ref, f"{ON_SR}:{sr_uuid}", "true")


def _verify_isolated(found: Inventory, ref: str, text: str) -> None:
    network = found.networks[ref]
    if network["PIFs"]:
        raise Refused(f"The network {text!r} has physical interfaces: it is not isolated.")
    if network["other_config"].get(_INTERNAL) == "true" or not network.get("managed", True):
        raise Refused(f"The network {text!r} is a network of the hosts themselves: it is not isolated.")
    others = {vif["VM"] for vif in found.vifs.values() if vif["network"] == ref and not found.is_copy(vif["VM"])}
    if others:
        names = sorted(str(found.vms[vm]["name_label"]) if vm in found.vms else vm for vm in others)
        raise Refused(f"The network {text!r} has VMs that are not copies: {', '.join(names)}. It is not isolated.")


def verify_macs(found: Inventory, sources: Sequence[Source], wanted: Wanted) -> None:
    """Raises Refused where a MAC would be twice on one network."""
    if not wanted.keep_mac:
        return
    for source in sources:
        for vif in found.vifs_of(source.ref).values():
            network = found.networks[vif["network"]]
            if network_of(found, wanted, network["uuid"]) == vif["network"]:
                raise Refused(
                    f"--keep-mac: the MAC {vif['MAC']} of {source.name!r} would exist twice on the network "
                    f"{network['name_label']!r}. Use --isolated NET, or --network {network['name_label']}=NEW."
                )


def verify_nics(found: Inventory, name: str, nics: Iterable[ova.Nic], own: str = "") -> None:
    """Raises Refused where the MAC of an original (`name`) is on the network already that its copy (`own`) will be on.
    Snapshots of VMs never run.
    """
    for nic in nics:
        for vif in found.vifs.values():
            is_same = (vif["network"], vif["MAC"].lower()) == (nic.network, nic.old_mac.lower())
            if is_same and vif["VM"] != own and not found.vms.get(vif["VM"], {}).get("is_a_snapshot"):
                raise Refused(
                    f"--keep-mac: the MAC {nic.old_mac} of {name!r} is on the network "
                    f"{found.networks[nic.network]['name_label']!r} already, where its copy would be."
                )


def used_networks(found: Inventory, sources: Sequence[Source], wanted: Wanted) -> Set[str]:
    """Names of networks on which originals and copies would be."""
    names = set()
    for source in sources:
        for vif in found.vifs_of(source.ref).values():
            network = found.networks[vif["network"]]
            if network_of(found, wanted, network["uuid"]) == vif["network"]:
                names.add(str(network["name_label"]))
    return names
