# SPDX-License-Identifier: LGPL-2.1-only
"""Edit the exported records of a VM so that an import makes a clone on other disks. Pure.

xapi identifies the disks of an import by the SR's UUID and the VDI's location in the file, without further checks. An
unedited file would give the new VM the disks of the original. So a disk that is not in the map is refused, and every
VDI that is no disk of the copy is removed. `ova_fields` lists the fields that stay. `verify` parses the result and
checks that no other disk is named.

Source: xen-api ocaml/xapi/{export,import}.ml.
"""

import re
from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from relvmoiscsi.errors import Refused, UsageError, in_state
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool.calls import Record, Records
from relvmoiscsi.pool.records import DEVICE, NO_DEVICE, shown_device
from relvmoiscsi.pool.vms import ova_fields, ova_file
from relvmoiscsi.pool.vms.device_numbers import AT_ANOTHER, Place, places_of
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.ova_file import Ova, Thing
from relvmoiscsi.pool.vms.vbds import why_no_drive
from relvmoiscsi.wording import said

#: keys of other_config that are copied, by class. An import checks no rights for a key. Some keys open files in dom0 or
#: assign a device of the host, and xapi lets only a pool-admin write such a key. So an unknown key is left out.
_COPIED: Mapping[str, Sequence[str]] = {
    "VM": (
        "base_template_name", "folder", "install-arch", "install-distro", "install-methods", "install-repository",
        "instant", "last_shutdown_action", "last_shutdown_initiator", "last_shutdown_reason", "last_shutdown_time",
        "linux_template", "mac_seed", "vgpu_pci",
    ),
    "VIF": ("ethtool-gso", "ethtool-rx", "ethtool-sg", "ethtool-tso", "ethtool-tx", "ethtool-ufo", "mtu"),
    "VBD": ("owner",),
}  # fmt: skip
_COPIED_PREFIXES: Mapping[str, Tuple[str, ...]] = {"VM": ("XenCenter.CustomFields.",)}
_OURS = "relvmoiscsi:"  #: begin of keys that other runs have written, for other VMs

#: keys of VM.platform that are copied. Source: xen-api ocaml/xapi/vm_platform.ml, xapi_globs.ml. Not: hvm_serial, which
#: opens files in dom0 for a pool-admin; xenguest and parallel, which name programs and devices of the host
_PLATFORM = (
    "acpi", "acpi_s3", "acpi_s4", "apic", "cores-per-socket", "device-model", "device_id", "exp-nested-hvm",
    "featureset", "generation-id", "hpet", "mmio_size_mib", "nested-virt", "nx", "pae", "revision", "secureboot",
    "stdvga", "timeoffset", "tpm_version", "tsc_mode", "usb", "usb_tablet", "vcpu-unrestricted", "vga", "vgpu_pci_id",
    "videoram", "viridian", "viridian_apic_assist", "viridian_crash_ctl", "viridian_reference_tsc", "viridian_stimer",
    "viridian_time_ref_count",
)  # fmt: skip
_PLATFORM_VALUE = re.compile("[A-Za-z0-9:,._-]{0,1024}")

#: fields of a VIF of the clone that `clone` makes again
_VIF_TEXTS, _VIF_LISTS = ("MTU", "qos_algorithm_type", "locking_mode"), ("ipv4_allowed", "ipv6_allowed")

NETWORK = "maps_to"  #: key of VIF.other_config in the edited file: the network (a reference)

#: keys of VDI.other_config that an import takes from the VDI, unless the file has the keys (xapi_globs.ml)
_SYNCED = ("config-drive",)


#: fields that the edit sets, by class: the edit adds no field to a record, and every release of xapi writes these
_NEEDED: Mapping[str, Sequence[str]] = {
    "VM": ("is_a_template", "power_state", "other_config"),
    "VDI": ("uuid", "location", "SR"),
    "SR": ("uuid", "content_type"),
}

_ISO, _NO_ISO = "iso", "user"  #: content_type of an SR
_PHYSICAL = "udev"  #: type of the SR for the drives of a host
_FOR_READING = "RO"  #: mode of a VBD


class RecordEdit(NamedTuple):
    """The changes that make the records of a VM records of its clone."""

    sr_uuid: str  #: of the copy
    new_disk: Callable[[str], Optional[Record]]  #: from the UUID of a VDI to its VDI on the copy; None without one
    locations: AbstractSet[str]  #: locations of all disks on the copy
    iso_srs: AbstractSet[str]  #: SRs with ISOs, by the pool: the records may claim anything
    network: Callable[[str], Optional[str]]  #: from the UUID of a network in the file to a reference in the pool
    name: str
    description: str
    marks: Mapping[str, str]  #: for other_config, also of snapshots
    is_known: bool  #: are the records of a writer whose values need no check (`ova_fields`)?
    tags: Sequence[str] = ()
    snapshots: bool = False
    without: Sequence[str] = ()  #: classes to leave out: VGPU, VTPM
    omits_disks: bool = False  #: drop the disks that are not on the copy, with a note
    generation_id: str = ""  #: for the clone, if the original has one: xapi makes no new id for a template


class CloneDisk(NamedTuple):
    """A disk of the clone."""

    userdevice: str
    old: str  #: UUID of the original's VDI
    new: str  #: UUID of the clone's VDI

    def facts(self) -> Dict[str, Any]:
        return {"userdevice": self.userdevice, "old_vdi": self.old, "new_vdi": self.new}


class CloneSnapshot(NamedTuple):
    """A snapshot of the clone."""

    name: str
    disks: List[CloneDisk]


class Edited(NamedTuple):
    """The edited file, and a summary of its content."""

    document: bytes
    disks: List[CloneDisk]  #: disks of the VM, without its snapshots
    vifs: Records  #: by device: the VIFs of the clone with the MACs of the original, as VIF.create takes them
    networks: Dict[str, str]  #: by device: name of the original's network
    snapshots: List[CloneSnapshot]
    notes: List[str]  #: differences between clone and original, for people


# --- the edit


def edited(document: bytes, edit: RecordEdit) -> Edited:
    """Return the edited file.

    Raises Refused where a disk of the VM is not on the copy, unless the edit omits such disks. Raises UsageError for a
    network that is not in the pool.
    """
    ova = Ova(document)
    notes: List[str] = []
    main = ova.main()
    for thing in ova.things:
        for name in _NEEDED.get(thing.cls, ()):
            if name not in thing.fields:
                raise _forged(f"a record of a {thing.cls} has no field {name}")
    for thing, name, other in _misled(ova):
        raise _forged(f"the field {name} of a {thing.cls} leads to {other}")
    _clear_references(ova)
    # an import fails for an unknown GPU group, even without a reference to the group
    gone = [*edit.without, *(("VGPU_type", "GPU_group") if "VGPU" in edit.without else ())]
    dropped = [each for each in ova.things if each.cls in gone or not ova_fields.has_rule(each.cls, edit.is_known)]
    told = [thing.cls for thing in dropped if thing.cls in edit.without or ova_fields.is_told(thing.cls)]
    notes += [f"it has no {cls}" for cls in told]
    ova.drop(dropped)
    lost: Set[str] = set()
    for thing in ova.things:
        lost.update(f"{thing.cls}.{name}" for name in ova_fields.rebuild(thing, edit.is_known))
    if lost:
        notes.append(f"without the values of these fields in the records: {', '.join(sorted(lost))}")
    _keep_snapshots(ova, main, edit, notes)
    with in_state("Nothing was made.", Refused):
        _rebuild_drives(ova, edit, notes)
    disks_of = _move_disks(ova, main, edit, notes)
    vifs, old_networks = _move_vifs(ova, main, edit)
    notes += _make_inactive(ova, main, edit)
    main.set("is_a_template", True)  # xapi starts no template: the clone stays a template until every disk was verified
    if main.text("generation_id"):
        main.set("generation_id", edit.generation_id)
    main.set("name_label", edit.name)
    main.set("name_description", f"{main.text('name_description')} {edit.description}".strip())
    _clear_references(ova)  # to the dropped objects
    vms = ova.of("VM")
    snapshots = [CloneSnapshot(vm.text("name_label"), disks_of.get(vm.id, [])) for vm in vms if vm is not main]
    result = Edited(ova.document(), disks_of.get(main.id, []), vifs, old_networks, snapshots, notes)
    verify(result.document, edit)
    return result


def _keep_snapshots(ova: Ova, main: Thing, edit: RecordEdit, notes: List[str]) -> None:
    """Keep the wanted snapshots whose disks are all on the copy. The copy has no disk of a later snapshot.

    The other snapshots go with their objects; the children of a snapshot get its parent. A snapshot of another VM, such
    as the parent of the VM, goes too: `clone` finds the snapshots that it has made by their VM.
    """
    main.set("snapshot_of", NULL)
    gone = {vm.id: vm for vm in ova.of("VM") if vm is not main}
    if edit.snapshots:
        vdis = ova.by_id("VDI")
        there = {ref for ref, vdi in vdis.items() if edit.new_disk(vdi.text("uuid")) is not None}
        lacking = {vbd.text("VM") for vbd in ova.of("VBD") if _is_disk(vbd) and vbd.text("VDI") not in there}
        foreign = {each for each, vm in gone.items() if vm.text("snapshot_of") != main.id}
        gone = {each: vm for each, vm in gone.items() if each in foreign or each in lacking}
        for each, vm in gone.items():
            name, of_another = repr(vm.text("name_label")), each in foreign
            why = "without {}, a snapshot of another VM" if of_another else "its snapshot {} is not on the copy"
            notes.append(why.format(name))
    parents = {each: vm.text("parent") for each, vm in gone.items()}
    for vm in ova.of("VM"):
        if vm.text("parent") in gone:
            vm.set("parent", _first_kept(vm.text("parent"), parents))
    ova.drop([thing for thing in ova.things if thing.id in gone or thing.text("VM") in gone])
    vifs = {vif.id for vif in ova.of("VIF")}
    ova.drop([proxy for proxy in ova.of("PVS_proxy") if proxy.text("VIF") not in vifs])


def _is_disk(vbd: Thing) -> bool:
    """Is the VBD a disk for xapi, which reads the word in any case?"""
    return vbd.text("type").lower() == "disk" and not vbd.truth("empty")


def _first_kept(parent: str, parents: Dict[str, str]) -> str:
    """Return the nearest ancestor outside `parents`, which gets shorter ways; NULL for a circle."""
    way: Dict[str, None] = {}
    while parent in parents and parent not in way:
        way[parent] = None
        parent = parents[parent]
    parent = NULL if parent in parents else parent
    parents.update(dict.fromkeys(way, parent))
    return parent


def _devices_of_disks(ova: Ova) -> Dict[Tuple[str, Place], str]:
    """Return the devices of the disks, by VM (id) and place.

    A vm-admin may give a drive a device that VBD.create does not take. Raises Refused for such a device of a disk, and
    for two disks at one device. Source: xen-api ocaml/xapi/xapi_vbd.ml, create.
    """
    taken: Dict[Tuple[str, Place], str] = {}
    for vbd in filter(_is_disk, ova.of("VBD")):
        device, places = vbd.text("userdevice"), _places(vbd)
        if not places:
            why = NO_DEVICE if DEVICE.fullmatch(device) is None else "no disk of a bus that xapi knows"
            raise Refused(f"A disk of the VM has the device {said(device)}, which is {why}.").advising(AT_ANOTHER)
        for other in [taken[place] for place in places if place in taken]:
            raise Refused(f"xapi takes the disks {other} and {device} of the VM for one device.").advising(AT_ANOTHER)
        taken.update(dict.fromkeys(places, device))
    return taken


def _places(vbd: Thing) -> List[Tuple[str, Place]]:
    """Return the VM (id) of a drive with each place of its device; [] for a device that a run cannot write."""
    device = vbd.text("userdevice")
    return [(vbd.text("VM"), place) for place in places_of(device)] if DEVICE.fullmatch(device) is not None else []


def _rebuild_drives(ova: Ova, edit: RecordEdit, notes: List[str]) -> None:
    """Make each drive that is no disk a CD drive for reading: with its ISO, or empty. Leave out what cannot be one.

    A drive gives way to a disk, and to a drive before it. Raises Refused as `_devices_of_disks` does, and for a disk
    that the type of its drive denies: a vm-admin may set mode and type of a drive.
    """
    vdis, srs = ova.by_id("VDI"), ova.by_id("SR")
    taken = _devices_of_disks(ova)
    gone = []
    for vbd in [vbd for vbd in ova.of("VBD") if not _is_disk(vbd)]:
        device, kind, places = vbd.text("userdevice"), vbd.text("type"), _places(vbd)
        vdi = None if vbd.truth("empty") else vdis.get(vbd.text("VDI"))
        home = srs.get(vdi.text("SR")) if vdi is not None else None
        has_iso = _is_iso(home, edit)
        is_physical = home is not None and home.text("type") == _PHYSICAL
        emptied: List[str] = []
        if vdi is not None and not (has_iso or is_physical):
            of_disk = f"{said(vdi.text('name_label'))} ({said(vdi.text('uuid'))})"
            if vbd.text("mode").upper() == _FOR_READING:
                emptied = [f"its drive {shown_device(device)} is empty: the pool has no such SR with ISOs"]
            elif edit.omits_disks:
                notes.append(f"without {of_disk}, whose drive {shown_device(device)} has the type {said(kind)}")
            else:
                raise Refused(
                    f"The drive {shown_device(device)} of the VM may write to {of_disk}, but has the type "
                    f"{said(kind)}, which is no disk."
                ).advising(
                    "Give the drive the type Disk again if the VM needs the disk. "
                    "--omit-disks clones the VM without the disk."
                )
        if kind.lower() != "cd" or not places or any(place in taken for place in places):
            gone.append(vbd)
            notes.append(f"without its drive {shown_device(device)} of the type {said(kind)}")
            continue
        notes += emptied
        taken.update(dict.fromkeys(places, device))
        vbd.set("mode", _FOR_READING)
        if not has_iso:
            vbd.set("VDI", NULL)
            vbd.set("empty", True)
    ova.drop(gone)


def _move_disks(ova: Ova, main: Thing, edit: RecordEdit, notes: List[str]) -> Dict[str, List[CloneDisk]]:
    """Move every disk to the copy, keep CDs of ISO SRs, and drop VDIs without a VBD, and SRs without a VDI.

    Return the disks of the VM and of each snapshot, by id.
    """
    vdis, srs = ova.by_id("VDI"), ova.by_id("SR")
    used: Set[str] = set()
    moved: Dict[str, Record] = {}  #: VDIs on the copy, by id of the VDI in the file
    homes: Set[str] = set()  #: SRs (ids) of the moved VDIs
    disks_of: Dict[str, List[CloneDisk]] = {}
    omitted, missing = [], []
    for vbd in ova.of("VBD"):
        vbd.set("currently_attached", False)
        vdi, device = vdis.get(vbd.text("VDI")), vbd.text("userdevice")
        if not _is_disk(vbd):
            used.add(vbd.text("VDI"))
            continue
        if vdi is None:
            raise Refused(f"The disk {device} of the VM has no VDI in its records.")
        name, old = vdi.text("name_label"), vdi.text("uuid")
        if not is_uuid(old):
            raise _forged(f"the disk {device} has the UUID {said(old)}")
        new = edit.new_disk(old)
        if new is None:
            omitted.append(vbd)
            missing.append(f"{device} {said(name)} ({old})")
            notes.append(f"without its disk {device}, {said(name)} ({old}), which is not on the copy")
            continue
        home = srs.get(vdi.text("SR"))
        if home is None or _is_iso(home, edit):
            raise _forged(f"the disk {device} is in no SR that has disks")
        why, way = why_no_drive(new, vbd.text("mode").upper())
        if why:
            raise (
                Refused(f"The VDI {new['uuid']} of the copy, for the disk {device} of the VM, {why}.")
                .in_state("Nothing was made.")
                .advising(way)
            )
        moved[vdi.id] = new
        used.add(vdi.id)
        homes.add(vdi.text("SR"))
        disks_of.setdefault(vbd.text("VM"), []).append(CloneDisk(device, old, new["uuid"]))
    if omitted and not edit.omits_disks:
        raise Refused(f"The VM has disks that are not on this copy: {', '.join(missing)}.").advising(
            "--omit-disks clones the VM without these disks." if main.id in disks_of else ""
        )
    if omitted and main.id not in disks_of:
        raise Refused("No disk of the VM is on this copy.").advising("Select other VMs.")
    ova.drop(omitted)
    ova.drop([vdi for vdi in vdis.values() if vdi.id not in used])
    for each, new in moved.items():
        names = {"snapshot_of": NULL, "parent": NULL, "uuid": new["uuid"], "location": new["location"]}
        for field, text in names.items():
            vdis[each].set(field, text)
    for vdi in ova.of("VDI"):
        vdi.set("sm_config", {})  # xapi would look for a SCSIid in sm_config first
        vdi.set("other_config", {key: text for key, text in vdi.map("other_config").items() if key in _SYNCED})
    for sr in srs.values():
        if sr.id in homes:
            sr.set("uuid", edit.sr_uuid)
        # by the record's word, xapi looks for a VDI in all SRs with ISOs, or in this SR alone
        sr.set("content_type", _ISO if _is_iso(sr, edit) else _NO_ISO)
    used_srs = {vdi.text("SR") for vdi in ova.of("VDI")}
    ova.drop([sr for sr in srs.values() if sr.id not in used_srs])
    return {vm: sorted(disks) for vm, disks in disks_of.items()}


def _is_iso(sr: Optional[Thing], edit: RecordEdit) -> bool:
    return sr is not None and sr.text("uuid") in edit.iso_srs


def _move_vifs(ova: Ova, main: Thing, edit: RecordEdit) -> Tuple[Records, Dict[str, str]]:
    """Name the network of every VIF by reference: from a name, xapi takes the first such network, or makes one.

    Return `Edited.vifs` and `Edited.networks`.
    """
    networks = ova.by_id("network")
    found: Records = {}
    names: Dict[str, str] = {}
    for vif in ova.of("VIF"):
        network = networks.get(vif.text("network"))
        uuid, name = (network.text("uuid"), network.text("name_label")) if network is not None else ("", "")
        ref = edit.network(uuid)
        if ref is None:
            raise UsageError(f"The network {said(name)} ({said(uuid)}) is not in the pool.").advising(
                "Use --network OLD=NEW, or --isolated."
            )
        other_config = _kept("VIF", vif.map("other_config"))
        vif.set("other_config", {**other_config, NETWORK: ref})
        vif.set("currently_attached", False)
        if vif.text("VM") == main.id:
            device = vif.text("device")
            record: Record = {"device": device, "network": ref, "MAC": vif.text("MAC"), "other_config": other_config}
            record["qos_algorithm_params"] = vif.map("qos_algorithm_params")
            record.update((key, vif.text(key)) for key in _VIF_TEXTS if key in vif.fields)
            record.update((key, vif.texts(key)) for key in _VIF_LISTS if key in vif.fields)
            found[device], names[device] = record, name
    ova.drop(ova.of("network"))
    return found, names


def _kept(cls: str, other_config: Mapping[str, str]) -> Dict[str, str]:
    """Return the copied keys of other_config of an object of this class."""
    names, begins = _COPIED.get(cls, ()), _COPIED_PREFIXES.get(cls, ())
    kept = {key: value for key, value in other_config.items() if key in names or (begins and key.startswith(begins))}
    return {key: value for key, value in kept.items() if _OURS not in key}


def _kept_platform(platform: Mapping[str, str]) -> Dict[str, str]:
    return {key: value for key, value in platform.items() if key in _PLATFORM and _PLATFORM_VALUE.fullmatch(value)}


def _make_inactive(ova: Ova, main: Thing, edit: RecordEdit) -> List[str]:
    """Make the VM halted, without HA, PCI devices, tags, and keys that let another client start or back up the VM.

    Return notes on what the clone lacks.
    """
    platform, other_config = main.map("platform"), main.map("other_config")
    told = {
        "without the suspended memory: the VM boots as after a power cut": main.text("power_state") == "Suspended",
        "HA is off": main.truth("ha_always_run") or bool(main.text("ha_restart_priority")),
        "without the PCI devices of the host": "pci" in other_config or bool(main.text("PCI_bus")),
        "the VM does not start with its host": other_config.get("auto_poweron") == "true",
    }
    lost = {
        "platform": set(platform) - set(_kept_platform(platform)),
        "other_config": set(other_config) - set(_kept("VM", other_config)),
    }
    for name, keys in lost.items():
        gone = sorted(key for key in keys if _OURS not in key)
        told[f"without these keys of {name}: {', '.join(map(repr, gone))}"] = bool(gone)
    for vm in ova.of("VM"):
        vm.set("power_state", "Halted")
        for name in ("suspend_VDI", "resident_on", "appliance", "protection_policy", "scheduled_to_be_resident_on"):
            vm.set(name, NULL)
        for name in ("is_default_template", "ha_always_run", "is_control_domain"):
            vm.set(name, False)
        # last_booted_record, snapshot_metadata: whole records of VMs, which xapi may take for its own
        for name in (
            "ha_restart_priority", "PCI_bus", "last_booted_record", "snapshot_metadata", "transportable_snapshot_id",
        ):  # fmt: skip
            vm.set(name, "")
        for name in ("last_boot_CPU_flags", "snapshot_info"):
            vm.set(name, {})
        vm.set("platform", _kept_platform(vm.map("platform")))
        vm.set("other_config", {**_kept("VM", vm.map("other_config")), **edit.marks})
        vm.set("tags", edit.tags)
    for vbd in ova.of("VBD"):
        vbd.set("other_config", _kept("VBD", vbd.map("other_config")))
    return [note for note, is_so in told.items() if is_so]


def _misled(ova: Ova) -> Iterator[Tuple[Thing, str, str]]:
    """Yield the references that lead to an object of another class, or to none where xapi needs one.

    Each is (the object, its field, where the reference leads, for a sentence).
    """
    classes = {thing.id: thing.cls for thing in ova.things}
    for thing in ova.things:
        needed = ova_fields.NEEDED_REFERENCES.get(thing.cls, ())
        for name, cls in ova_fields.REFERENCES.get(thing.cls, {}).items():
            found = classes.get(thing.text(name))
            if found is None and name in needed:
                yield thing, name, "no object"
            elif found not in (cls, None):
                yield thing, name, f"an object of the class {said(str(found))}, and not {cls}"


def _dangling(ova: Ova) -> Iterator[Tuple[Thing, str]]:
    """Yield the references to no object of the file: an import would keep a reference of the pool."""
    there = {thing.id for thing in ova.things} | {NULL}
    for thing in ova.things:
        for name in ova_fields.REFERENCES.get(thing.cls, {}):
            if name in thing.fields and thing.text(name) not in there:
                yield thing, name


def _clear_references(ova: Ova) -> None:
    """Set each reference to no object of the file to NULL."""
    for thing, name in list(_dangling(ova)):
        thing.set(name, NULL)


def networks(document: bytes) -> Dict[str, Tuple[str, str]]:
    """Return (UUID, name) of the networks of the VM in these records, by device of the VIF. Raises Refused."""
    ova = Ova(document)
    main, known = ova.main(), ova.by_id("network")
    used = {
        vif.text("device"): known[vif.text("network")]
        for vif in ova.of("VIF")
        if vif.text("VM") == main.id and vif.text("network") in known
    }
    return {device: (network.text("uuid"), network.text("name_label")) for device, network in used.items()}


def disks_of(document: bytes) -> Tuple[str, List[str], List[str]]:
    """Return (the UUID of the VM in these records, the VDIs of its disks, the VDIs of its and its snapshots' disks).

    VDIs are UUIDs, sorted. Raises Refused.
    """
    ova = Ova(document)
    main, vdis = ova.main(), ova.by_id("VDI")
    disks = [vbd for vbd in ova.of("VBD") if _is_disk(vbd) and vbd.text("VDI") in vdis]
    own, every = (
        sorted({vdis[vbd.text("VDI")].text("uuid") for vbd in some})
        for some in ([vbd for vbd in disks if vbd.text("VM") == main.id], disks)
    )
    return main.text("uuid"), own, every


# --- the check


def dangling(cls: str, records: Iterable[Record]) -> List[str]:
    """Return the fields of pool records of a class that still hold a reference of an export file, such as "Ref:5".

    Only references into the file can: a vm-admin may write such a text into others, such as VBD.qos_algorithm_type.
    """
    names = ova_fields.REFERENCES[cls]
    found = {name for record in records for name in names if ova_file.ID.fullmatch(str(record.get(name)))}
    return sorted(f"{cls}.{name}" for name in found)


def verify(document: bytes, edit: RecordEdit) -> None:
    """Parse the file again: every disk must be a disk of the copy or an ISO. Raises Refused."""
    ova, outside = Ova(document), []
    srs, vdis = ova.by_id("SR"), ova.by_id("VDI")
    new = {vbd.text("VDI") for vbd in ova.of("VBD") if _is_disk(vbd)}
    for vdi in vdis.values():
        sr = srs.get(vdi.text("SR"))
        if sr is not None and sr.text("uuid") == edit.sr_uuid:
            is_good = vdi.text("location") in edit.locations
        else:
            is_good = _is_iso(sr, edit) and vdi.id not in new
        if not is_good or vdi.map("sm_config") or not set(vdi.map("other_config")) <= set(_SYNCED):
            outside.append(vdi)
    for sr in srs.values():
        is_iso = _is_iso(sr, edit)
        if not (is_iso or sr.text("uuid") == edit.sr_uuid) or (sr.text("content_type") == _ISO) != is_iso:
            outside.append(sr)
    for thing in ova.things:
        if not ova_fields.has_rule(thing.cls, edit.is_known) or ova_fields.rebuild(thing, edit.is_known):
            outside.append(thing)
    for vbd in ova.of("VBD"):
        is_good = vbd.text("VDI") in vdis if _is_disk(vbd) else vbd.text("mode") == _FOR_READING
        if vbd.truth("currently_attached") or not is_good:
            outside.append(vbd)
    outside += [*(thing for thing, _, _ in _misled(ova)), *(thing for thing, _ in _dangling(ova))]
    for vm in ova.of("VM"):
        config, platform = vm.map("other_config"), vm.map("platform")
        is_started = not (vm.truth("is_a_template") or vm.truth("is_a_snapshot"))  # xapi starts neither
        is_active = vm.text("power_state") != "Halted" or vm.text("suspend_VDI") not in ("", NULL)
        is_kept = config == {**_kept("VM", config), **edit.marks} and platform == _kept_platform(platform)
        if is_started or is_active or not is_kept or vm.truth("ha_always_run") or vm.truth("is_control_domain"):
            outside.append(vm)
    for thing in outside[:1]:
        raise (
            Refused(
                f"The records of the new VM would refer to a disk outside the copy ({thing.cls} {thing.text('uuid')})."
            )
            .in_state("Nothing was made.")
            .advising("This is a bug: please report it.")
        )


def _forged(problem: str) -> Refused:
    """Return the error for records that no xapi writes."""
    return Refused(
        f"The records of the VM cannot be used: {problem}. xapi writes no such records. Records of `save-vms` were "
        "changed by another program."
    ).in_state("Nothing was made.")
