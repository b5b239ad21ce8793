# SPDX-License-Identifier: LGPL-2.1-only
"""Is what an import has made what the edited file says? Pure.

xapi finds the objects of an import in answers to itself. Where these answers are XML-RPC (the default of 25.33), a key
that a vm-operator may write forges a record there: an import takes the disk of another VM for a disk of the file. So
each VM and each snapshot is compared, with its disks, drives, networks, virtual GPUs, vTPMs and PVS proxies.

Not compared is what an import writes down as the file has it, such as a name. A drive may be empty: the pool may lack
the ISO. Source: xen-api ocaml/xapi/{import,helpers}.ml, make_rpc.
"""

from typing import Any, Dict, List, Tuple

from relvmoiscsi.pool.calls import Records
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.ova import NETWORK
from relvmoiscsi.pool.vms.ova_compare import ByClass, plain
from relvmoiscsi.pool.vms.ova_file import Ova
from relvmoiscsi.wording import said

_CLASSES = ("VM", "VBD", "VIF", "VDI", "SR", "VGPU", "GPU_group", "VTPM", "PVS_proxy", "PVS_site")
_DRIVES, _NETWORKS = "drives", "networks"
_ISO = "iso"  #: content_type of an SR

_Parts = Dict[str, List[Tuple[Any, ...]]]


def difference(ova: Ova, made: ByClass, vm: str, lacks_vifs: bool = False) -> str:
    """Return how the records `made` of a VM (a reference) and its snapshots differ from the file, as a clause.

    "" without a difference. `lacks_vifs`: the VM may lack VIFs of the file.
    """
    planned, main = _of_file(ova), ova.main()
    parts, of_file = _parts(made, vm), _parts(planned, main.id)
    if lacks_vifs:
        there = {device for device, _ in parts[_NETWORKS]}
        of_file[_NETWORKS] = [each for each in of_file[_NETWORKS] if each[0] in there]
    has = _snapshots(made, [ref for ref, each in made["VM"].items() if each["snapshot_of"] == vm])
    wanted = _snapshots(planned, [ref for ref in planned["VM"] if ref != main.id])
    if [key for key, _ in has] != [key for key, _ in wanted]:
        return "the copy has other snapshots than its original"
    pairs = [("the copy", of_file, parts)]
    pairs += [(f"its snapshot {said(key[0])}", old, new) for (key, old), (_, new) in zip(wanted, has)]
    for what, old, new in pairs:
        for name in old:
            if new[name] != old[name] and not (name == _DRIVES and _may_be(old[name], new[name])):
                return f"{what} has other {name} than its original"
    return ""


def _of_file(ova: Ova) -> ByClass:
    """Return the objects of the file as records, with the references of the file."""
    records: Dict[str, Records] = {
        cls: {thing.id: {name: thing.text(name) for name in thing.fields} for thing in ova.of(cls)} for cls in _CLASSES
    }
    for vif in ova.of("VIF"):
        records["VIF"][vif.id]["network"] = vif.map("other_config").get(NETWORK, "")
    for group in ova.of("GPU_group"):
        records["GPU_group"][group.id]["GPU_types"] = group.texts("GPU_types")
    return records


def _snapshots(of: ByClass, vms: List[str]) -> List[Tuple[Tuple[str, str], _Parts]]:
    """Return ((name, digits of the time), parts) of each of these VMs, sorted."""
    rows = []
    for ref in vms:
        record = of["VM"][ref]
        time = "".join(filter(str.isdigit, str(record.get("snapshot_time", ""))))
        rows.append(((plain(record["name_label"]), time), _parts(of, ref)))
    return sorted(rows, key=repr)


def _parts(of: ByClass, vm: str) -> _Parts:
    """Return what a VM has, in words that file and pool share."""
    own = {cls: {ref: each for ref, each in of[cls].items() if each.get("VM") == vm} for cls in _CLASSES}
    found: _Parts = {"disks": [], _DRIVES: []}
    for vbd in own["VBD"].values():
        vdi = of["VDI"].get(vbd["VDI"])
        sr = of["SR"].get(vdi["SR"], {}) if vdi is not None else {}
        if vbd["type"].lower() == "disk":
            uuids = (sr.get("uuid"), vdi["uuid"]) if vdi is not None else ()
            found["disks"].append((vbd["userdevice"], *uuids))
        else:
            is_iso = vdi is not None and sr.get("content_type") == _ISO
            iso = str(vdi["location"]) if vdi is not None and is_iso else "" if vbd["VDI"] in ("", NULL) else None
            found[_DRIVES].append((vbd["userdevice"], iso))
    found[_NETWORKS] = [(vif["device"], vif["network"]) for vif in own["VIF"].values()]
    groups = [of["GPU_group"].get(vgpu["GPU_group"]) for vgpu in own["VGPU"].values()]
    found["virtual GPUs"] = [(group["GPU_types"] if group is not None else [],) for group in groups]
    found["virtual TPMs"] = [()] * len(own["VTPM"])
    found["PVS proxies"] = [
        (own["VIF"][proxy["VIF"]]["device"], of["PVS_site"][proxy["site"]]["PVS_uuid"])
        for proxy in of["PVS_proxy"].values()
        if proxy["VIF"] in own["VIF"]
    ]
    return {name: sorted(each, key=repr) for name, each in found.items()}


def _may_be(planned: List[Tuple[Any, ...]], has: List[Tuple[Any, ...]]) -> bool:
    """Are the drives those of the file, where a drive may be empty?"""
    isos = {each[0]: each[1] for each in planned}
    return len(has) == len(planned) and all(device in isos and iso in ("", isos[device]) for device, iso in has)
