# SPDX-License-Identifier: LGPL-2.1-only
"""Old and new VDIs of an attached copy, and what goes along from the old to the new.

New UUIDs follow from the UUID of the new SR and the old UUIDs (formats/identity.py): the map needs no journal, no log.
Names, descriptions, sizes and the tree of snapshots are on the LUN; tags and other_config are in xapi's database alone.
"""

import uuid
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import OLD_VDI

#: keys that do not come along. What the original is to a backup, the copy is not. content_id is xapi's word for "equal
#: content", made when a VM last let go of the disk: with it, a migration of the copy to where the original is would
#: copy nothing, and give the original's disk of today. The others are notes of SM and of storage migration.
_STAY = (
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

    old: str  #: UUID; "" where the pool knows no such VDI any more
    new: str  #: UUID
    name_label: str  #: of the copy
    size_bytes: int
    is_a_snapshot: bool
    is_managed: bool  #: False: a hidden parent

    def facts(self) -> Dict[str, Any]:
        return {**self._asdict(), "old": self.old or None}


def of_sr(calls: Calls, sr: str) -> Records:
    """The VDIs of an SR, by reference. Raises PoolFailure."""
    return calls.records("VDI", SR=sr)


def pairs(new_sr: str, copies: Records, originals: Records) -> List[Pair]:
    """The map, by name; `copies` are the VDIs of the SR `new_sr` (a UUID), `originals` the VDIs of the original SR."""
    became = _became(new_sr, originals)
    found = []
    for copy in copies.values():
        old = copy["other_config"].get(OLD_VDI) or became.get(copy["uuid"], ("", {}))[0]
        size = int(copy["virtual_size"])
        found.append(Pair(old, copy["uuid"], copy["name_label"], size, copy["is_a_snapshot"], copy["managed"]))
    return sorted(found, key=lambda pair: (pair.name_label, pair.new))


def with_unknown(originals: Records, old_uuids: Iterable[str]) -> Records:
    """The originals, and originals that the pool does not have, of which only the UUIDs are known."""
    known = {original["uuid"] for original in originals.values()}
    nothing = {"name_label": "", "name_description": "", "tags": [], "other_config": {}}
    return {**{old: {"uuid": old, **nothing} for old in old_uuids if old not in known}, **originals}


def _became(new_sr: str, originals: Records) -> Dict[str, Tuple[str, Record]]:
    """(old UUID, its record) by new UUID."""
    return {derived_uuid(new_sr, old["uuid"]): (old["uuid"], old) for old in originals.values()}


def is_derived(new: str) -> bool:
    """Does the UUID come from a resignature? Those that xapi and the storage manager make are random, of version 4."""
    return uuid.UUID(new).version == 5


def carry_over(calls: Calls, new_sr: str, copies: Records, originals: Records) -> bool:
    """Give each VDI of a copy what the original has. A VDI that was labelled before is left as it is.

    The mark comes last, so that a run that is cut is done again. Gives whether anything was set. Raises PoolFailure.
    """
    became = _became(new_sr, originals)
    found = unlabelled(new_sr, copies, originals)
    for ref in found:
        old_uuid, original = became[copies[ref]["uuid"]]
        _carry(calls, ref, copies[ref], old_uuid, original)
    return bool(found)


def unlabelled(new_sr: str, copies: Records, originals: Records) -> List[str]:
    """The VDIs of a copy (references) that have not got what the original has. Pure."""
    became = _became(new_sr, originals)
    return [ref for ref, copy in copies.items() if copy["uuid"] in became and OLD_VDI not in copy["other_config"]]


def _carry(calls: Calls, ref: str, copy: Record, old_uuid: str, original: Record) -> None:
    names = {"name_label": "VDI.set_name_label", "name_description": "VDI.set_name_description"}
    for field, method in names.items():
        if original[field] and not copy[field]:  # what the LUN has is of the moment of the snapshot, and stays
            calls.call(method, ref, original[field])
    if original["tags"] and sorted(original["tags"]) != sorted(copy["tags"]):
        calls.call("VDI.set_tags", ref, original["tags"])
    other_config = {**copy["other_config"], **_carried(original["other_config"]), OLD_VDI: old_uuid}
    calls.call("VDI.set_other_config", ref, other_config)


def _carried(other_config: Mapping[str, str]) -> Dict[str, str]:
    return {key: value for key, value in other_config.items() if not key.startswith(_STAY)}


def vms_of(originals: Records, vbds: Records, vms: Records) -> Dict[str, List[str]]:
    """The names of the VMs that have each of these VDIs as a disk, by its UUID. Pure."""
    found: Dict[str, List[str]] = {}
    for vbd in vbds.values():
        if vbd["VDI"] in originals and vbd["VM"] in vms:
            names = found.setdefault(originals[vbd["VDI"]]["uuid"], [])
            names.append(str(vms[vbd["VM"]]["name_label"]))
    return {uuid: sorted(set(names)) for uuid, names in found.items()}
