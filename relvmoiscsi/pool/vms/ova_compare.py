# SPDX-License-Identifier: LGPL-2.1-only
"""Does an export say of a VM what the pool's own records say? Pure.

xapi writes the names of the members of a struct into an export as they are, and some of these names are keys that a
vm-operator may write. Such a key can end a record, and begin other records. So an export counts only as far as the
pool's records say the same. The pool gives these records as JSON, where a key is a text.

The objects of an export are those of `of_vm`, each once. Compared are the values that an import takes, or that
`ova.edited` reads. xapi writes both kinds of records with the same functions, but for these fields:

    references    lead into the file; a reference to an object outside the file leads nowhere
    VTPM          has its content, which no record has. xapi writes vTPMs last: no key follows that could hide a vTPM
    not compared  what `ova_fields` calls unread, or `ova.edited` overwrites; times

Objects of the classes in `_METRICS` count only for a VM that leads to them: they say how a VM has run, and a guest may
write most of it. Source: xen-api ocaml/xapi/{export,import,importexport}.ml; mirage/ocaml-rpc src/lib/{xml,json}rpc.ml.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterator, Mapping, NamedTuple

from relvmoiscsi.pool.calls import Records
from relvmoiscsi.pool.vms import ova_fields
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.ova_file import Ova, members_of, text_of
from relvmoiscsi.untrusted import xml_safe
from relvmoiscsi.wording import said

ByClass = Mapping[str, Records]  #: records by class, and by reference

#: compared values besides those of `ova_fields` that pass
_ALSO: Mapping[str, str] = {
    "VM": "name_label name_description power_state is_a_template is_a_snapshot snapshot_of parent "
    "platform other_config bios_strings generation_id",
    "VBD": "VM VDI empty other_config",
    "VIF": "VM network other_config",
    "VDI": "SR location other_config",
    "SR": "type",
    "network": "name_label",
    "host": "",  # an import finds a host by its UUID
    "VGPU": "VM type GPU_group device other_config",
    "VGPU_type": "vendor_name model_name identifier",
    "GPU_group": "GPU_types",
    "VTPM": "VM is_unique is_protected",
    "PVS_proxy": "site VIF",
    "PVS_site": "PVS_uuid",
}
_METRICS = {"VM_metrics": "metrics", "VM_guest_metrics": "guest_metrics"}  #: class: field of the VM

#: maps of which xe can remove a key. Source: xen-api ocaml/xapi-cli-server/records.ml
_OF_XE: Mapping[str, Collection[str]] = {
    "VM": (
        "other_config", "xenstore_data", "platform", "VCPUs_params", "HVM_boot_params", "blocked_operations", "NVRAM",
    ),
    "VBD": ("other_config", "qos_algorithm_params"),
    "VIF": ("other_config", "qos_algorithm_params"),
    **dict.fromkeys(("VDI", "SR", "network", "VGPU", "GPU_group"), ("other_config",)),
}  # fmt: skip


def _compared(cls: str) -> FrozenSet[str]:
    rules = ova_fields.FIELDS.get(cls)
    return frozenset(_ALSO[cls].split()) | (rules.passes | set(rules.of_known) if rules is not None else set())


COMPARED: Mapping[str, FrozenSet[str]] = {cls: _compared(cls) for cls in _ALSO}


def of_vm(found: Inventory, srs: Records, others: Callable[[str], Records], vm: str, snapshots: bool) -> ByClass:
    """Return the records of the objects that an export of this VM (a reference) has, by class, without the hosts.

    `others` gives the records of a class that inventory and pool lack. It is asked where a VM has such an object.
    """
    main = found.vms[vm]
    vms = _those(found.vms, [vm, *main["snapshots"], str(main.get("parent"))] if snapshots else [vm])
    vbds = {ref: vbd for each in vms for ref, vbd in found.vbds_of(each).items()}
    vifs = {ref: vif for each in vms for ref, vif in found.vifs_of(each).items()}
    memory = [each["suspend_VDI"] for each in vms.values() if each["power_state"] == "Suspended"]
    vdis = _those(found.vdis, [*memory, *(vbd["VDI"] for vbd in vbds.values() if not vbd["empty"])])

    def those(cls: str, refs: Collection[str]) -> Records:
        return _those(others(cls), refs) if refs else {}

    vgpus = those("VGPU", [ref for each in vms.values() for ref in each.get("VGPUs", ())])
    proxies = {ref: proxy for ref, proxy in others("PVS_proxy").items() if proxy["VIF"] in vifs}
    return {
        "VM": vms,
        "VBD": vbds,
        "VIF": vifs,
        "VDI": vdis,
        "SR": _those(srs, [vdi["SR"] for vdi in vdis.values()]),
        "network": _those(found.networks, [vif["network"] for vif in vifs.values()]),
        "VGPU": vgpus,
        "VGPU_type": those("VGPU_type", [vgpu["type"] for vgpu in vgpus.values()]),
        "GPU_group": those("GPU_group", [vgpu["GPU_group"] for vgpu in vgpus.values()]),
        "VTPM": those("VTPM", [ref for each in vms.values() for ref in each.get("VTPMs", ())]),
        "PVS_proxy": proxies,
        "PVS_site": those("PVS_site", [proxy["site"] for proxy in proxies.values()]),
    }


def _those(records: Records, refs: Collection[str]) -> Records:
    return {ref: records[ref] for ref in refs if ref in records}


# --- the comparison


def difference(ova: Ova, pool: ByClass, hosts: Records) -> str:
    """Return how an export differs from the pool's records of `of_vm`, as a clause; "" without a difference."""
    known = {**pool, "host": _used(ova, hosts)}
    ids: Dict[str, str] = {}  #: by reference in the pool
    for cls, records in known.items():
        things = {plain(thing.text("uuid")): thing for thing in ova.of(cls)}
        refs = {str(record["uuid"]): ref for ref, record in records.items()}
        if len(things) != len(ova.of(cls)) or len(refs) != len(records):
            return f"two objects of the class {cls} have the same UUID"
        for uuid in sorted(set(things) ^ set(refs)):
            return f"only {'the export' if uuid in things else 'the pool'} has the {cls} {said(uuid)}"
        ids.update((ref, things[uuid].id) for uuid, ref in refs.items())
    for cls, field in _METRICS.items():
        if not {thing.id for thing in ova.of(cls)} <= {vm.text(field) for vm in ova.of("VM")}:
            return f"a {cls} belongs to no VM"
    there = {thing.id: thing for thing in ova.things}
    pairs = [(there[ids[ref]], record) for records in known.values() for ref, record in records.items()]
    for thing, record in pairs:
        for name in sorted(COMPARED[thing.cls]):
            value, own = thing.fields.get(name), record.get(name)
            if name in ova_fields.REFERENCES.get(thing.cls, {}):
                lead = ids.get(str(own))
                is_same = thing.text(name) == lead if lead is not None else thing.text(name) not in there
            else:
                is_same = _is_same(value, own) if value is not None else own is None
            if not is_same:
                return f"the {thing.cls} {said(str(record['uuid']))} has another {name}"
    return ""


def _used(ova: Ova, hosts: Records) -> Records:
    """Return the hosts of the pool that the export has: `resident_on`, which no import takes, changes at any time."""
    used = {plain(host.text("uuid")) for host in ova.of("host")}
    return {ref: host for ref, host in hosts.items() if host["uuid"] in used}


def _is_same(value: ET.Element, own: Any) -> bool:
    """Is a value of the export that of a record?"""
    if not isinstance(own, float):
        return bool(_of_export(value) == _of_record(own))
    try:
        written = float(text_of(value)[:40])
    except ValueError:
        return False
    # with 15 or 17 digits. A vm-power-admin may set NaN, which equals nothing
    return math.isclose(written, own) or (math.isnan(written) and math.isnan(own))


def _of_export(value: ET.Element) -> Any:
    if value.find("struct") is not None:
        return {plain(name): _of_export(each) for name, each in members_of(value).items()}
    if value.find("array") is not None:
        return [_of_export(each) for each in value.findall("array/data/value")]
    return plain(text_of(value))


def _of_record(own: Any) -> Any:
    if isinstance(own, bool):
        return "1" if own else "0"
    if isinstance(own, Mapping):
        return {plain(name): _of_record(each) for name, each in own.items()}
    if isinstance(own, list):
        return [_of_record(each) for each in own]
    return plain("" if own is None else str(own))


def plain(text: str) -> str:
    """Return a text as `untrusted_xml` reads it from an export: with one kind of line ends, and `xml_safe`."""
    return xml_safe(text).replace("\r\n", "\n").replace("\r", "\n")


# --- keys that an export cannot have


_OF_MAP = "remove_from"


class Key(NamedTuple):
    """A key of a map in a record of the pool, or another text there."""

    cls: str
    uuid: str
    field: str
    text: str
    call: str = _OF_MAP  #: begin of the call of XenAPI that removes the text

    @property
    def is_of_xe(self) -> bool:
        """Can xe remove the key?"""
        return self.call == _OF_MAP and self.field in _OF_XE.get(self.cls, ())


_MARKUP = re.compile("[<&]|]]>")


def broken_keys(pool: ByClass) -> Iterator[Key]:
    """Return the keys that an export cannot have: a reader of XML takes a part of them for markup, or two for one."""
    for cls, records in pool.items():
        for record in records.values():
            for field, keys in record.items():
                if isinstance(keys, Mapping):
                    count = Counter(map(plain, keys))
                    broken = (key for key in keys if _MARKUP.search(key) or count[plain(key)] > 1)
                    yield from (Key(cls, str(record["uuid"]), field, key) for key in broken)


def broken_answers(cls: str, records: Records) -> Iterator[Key]:
    """Return the texts for which an answer in XML-RPC with these records has no reader, or other records.

    xapi escapes all texts but the keys of maps, and no text loses the characters that XML forbids.
    """
    for record in records.values():
        uuid = str(record["uuid"])
        for field, value in record.items():
            if isinstance(value, Mapping):
                for key, text in value.items():
                    if _MARKUP.search(key) or xml_safe(key + str(text)) != key + str(text):
                        yield Key(cls, uuid, field, key)
            elif isinstance(value, list):
                yield from (Key(cls, uuid, field, text, "remove") for text in value if xml_safe(str(text)) != text)
            elif isinstance(value, str) and xml_safe(value) != value:
                yield Key(cls, uuid, field, value, "set")
