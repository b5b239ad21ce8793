# SPDX-License-Identifier: LGPL-2.1-only
"""Map the old VDIs to the new VDIs of an attached copy, and copy names, tags and other_config to the new VDIs.

Each new UUID is derived from the UUID of the new SR and the old UUID (formats/identity.py): the map needs no journal
and no log. The LUN holds names, descriptions, sizes and the tree of snapshots. Only xapi's database holds tags and
other_config.
"""

import uuid
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.formats.identity import derived_uuid, is_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import OLD_VDI

#: prefixes of keys that are not copied. A backup must not take the copy for the original. xapi sets content_id when a
#: VM detaches the disk, and compares content_id to find equal content. With a copied content_id, a migration of the
#: copy to the SR of the original would copy nothing, and give the original's current disk. The remaining keys are notes
#: of SM and of storage migration.
_NOT_COPIED = (
    "content_id",
    "maps_to",
    "base_mirror",
    "mirror",
    "leaf-coalesce",
    "xo:backup:",
    "xo:base_delta_vdi",
    "xo:copy_of",
    "relvmoiscsi:",
)


class Pair(NamedTuple):
    """A VDI of the copy, and the VDI of the original."""

    old: str  #: UUID; "" where the pool no longer has the VDI
    new: str  #: UUID
    name_label: str  #: of the VDI of the copy
    size_bytes: int
    is_a_snapshot: bool
    is_managed: bool  #: False: a hidden parent

    def facts(self) -> Dict[str, Any]:
        return {
            "old_vdi": self.old or None,
            "new_vdi": self.new,
            "vdi_name": self.name_label,
            "virtual_size_bytes": self.size_bytes,
            "is_a_snapshot": self.is_a_snapshot,
            "is_managed": self.is_managed,
        }


def of_sr(calls: Calls, sr: str) -> Records:
    """Return the VDIs of an SR, by reference. Raises PoolFailure."""
    return calls.records("VDI", SR=sr)


def pairs(new_sr: str, copies: Records, originals: Records) -> List[Pair]:
    """Return the map, sorted by name. `copies` are the VDIs of the SR `new_sr` (a UUID).

    `originals` are the VDIs of the original SR.
    """
    became = _became(new_sr, originals)
    found = []
    for copy in copies.values():
        old = copy["other_config"].get(OLD_VDI) or became.get(copy["uuid"], ("", {}))[0]
        size = untrusted.number(copy["virtual_size"])
        found.append(Pair(old, copy["uuid"], copy["name_label"], size, copy["is_a_snapshot"], copy["managed"]))
    return sorted(found, key=lambda pair: (pair.name_label, pair.new))


def with_unknown(originals: Records, old_uuids: Iterable[str]) -> Records:
    """Return the originals, and for each other UUID a record that holds only the UUID."""
    known = {original["uuid"] for original in originals.values()}
    nothing = {"name_label": "", "name_description": "", "tags": [], "other_config": {}}
    return {**{old: {"uuid": old, **nothing} for old in old_uuids if old not in known}, **originals}


def _became(new_sr: str, originals: Records) -> Dict[str, Tuple[str, Record]]:
    """Return (old UUID, old record) by new UUID."""
    return {derived_uuid(new_sr, old["uuid"]): (old["uuid"], old) for old in originals.values()}


def is_derived(new: str) -> bool:
    """Does the UUID come from a resignature? xapi and the storage manager make random UUIDs, of version 4."""
    return is_uuid(new) and uuid.UUID(new).version == 5


def carry_over(calls: Calls, new_sr: str, copies: Records, originals: Records) -> None:
    """Copy the values of each original VDI to its new VDI. A VDI with the mark is left unchanged.

    The mark is written last, so the next run finishes an interrupted run. Raises PoolFailure.
    """
    became = _became(new_sr, originals)
    names = {"name_label": "VDI.set_name_label", "name_description": "VDI.set_name_description"}
    for ref in unlabelled(new_sr, copies, originals):
        copy = copies[ref]
        old_uuid, original = became[copy["uuid"]]
        for field, method in names.items():
            if original[field] and not copy[field]:  # the name on the LUN dates from the array snapshot, and stays
                calls.call(method, ref, original[field])
        if original["tags"] and sorted(original["tags"]) != sorted(copy["tags"]):
            calls.call("VDI.set_tags", ref, original["tags"])
        carried = {key: value for key, value in original["other_config"].items() if not key.startswith(_NOT_COPIED)}
        calls.call("VDI.set_other_config", ref, {**copy["other_config"], **carried, OLD_VDI: old_uuid})


def unlabelled(new_sr: str, copies: Records, originals: Records) -> List[str]:
    """Return the VDIs of a copy (references) without the mark of `carry_over`. Pure."""
    became = _became(new_sr, originals)
    return [ref for ref, copy in copies.items() if copy["uuid"] in became and OLD_VDI not in copy["other_config"]]


def vms_of(originals: Records, vbds: Records, vms: Records) -> Dict[str, List[str]]:
    """Return the names of the VMs that have each original VDI as a disk, by UUID of the VDI. Pure."""
    found: Dict[str, List[str]] = {}
    for vbd in vbds.values():
        if vbd["VDI"] in originals and vbd["VM"] in vms:
            names = found.setdefault(originals[vbd["VDI"]]["uuid"], [])
            names.append(str(vms[vbd["VM"]]["name_label"]))
    return {uuid: sorted(set(names)) for uuid, names in found.items()}
