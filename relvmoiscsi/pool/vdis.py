# SPDX-License-Identifier: LGPL-2.1-only
"""Map the old VDIs to the new VDIs of an attached copy, and copy names, tags and other_config to the new VDIs.

Each new UUID is derived from the UUID of the new SR and the old UUID (formats/identity.py): the map needs no journal
and no log. The LUN holds names, descriptions, sizes and the tree of snapshots. Only xapi's database holds tags and
other_config. `Origin` has the rule which VDI is the new VDI of which old VDI.
"""

import uuid
from itertools import chain
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, TypeVar

from relvmoiscsi import untrusted
from relvmoiscsi.formats.identity import derived_uuid, is_uuid
from relvmoiscsi.host.xapi import rpc
from relvmoiscsi.known_sr import vdis_elsewhere
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, Record, Records
from relvmoiscsi.pool.records import OLD_VDI, WAS
from relvmoiscsi.wording import counted

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


Part = TypeVar("Part")
_NAMES = {"name_label": "VDI.set_name_label", "name_description": "VDI.set_name_description"}


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


class Origin:
    """Which VDI of a copy comes from which old VDI: no other code pairs old and new VDIs.

    Each writer of the LUN can give any name to a volume, and a vm-admin can write OLD_VDI. So an old VDI counts only if
    both conditions hold:

    - the UUID of the new VDI is derived from the UUIDs of the new SR and of the old VDI
    - the pool has the old VDI on the original SR, or does not have the old VDI
    """

    def __init__(self, new_sr: str, original: Optional[str], known: Records, named: Iterable[str] = ()) -> None:
        """`new_sr` is a UUID, `original` a reference. `known` are all VDIs of the pool.

        `named` are the UUIDs of the old VDIs that the LUN names.
        """
        self._new_sr = new_sr
        self._elsewhere = vdis_elsewhere(original, known)
        here = {str(vdi["uuid"]): vdi for vdi in known.values() if vdi["SR"] == original}
        olds = [old for old in (*named, *here) if old not in self._elsewhere]
        self._olds = {self.new_of(old): here.get(old, {**_NO_VALUES, "uuid": old}) for old in olds}

    def new_of(self, old: str) -> str:
        """Return the UUID that the new VDI of an old VDI has; "" for an old VDI that does not count."""
        return "" if old in self._elsewhere else derived_uuid(self._new_sr, old)

    def old_of(self, copy: Record) -> Optional[Record]:
        """Return the old VDI of a VDI of the copy, without values where the pool does not have the old VDI."""
        marked = copy["other_config"].get(OLD_VDI, "")
        if copy["uuid"] not in self._olds and is_uuid(marked) and self.new_of(marked) == copy["uuid"]:
            return {**_NO_VALUES, "uuid": marked}
        return self._olds.get(copy["uuid"])


_NO_VALUES: Record = {"name_label": "", "name_description": "", "tags": [], "other_config": {}}


def original_of(new_sr: str, copies: Records, known: Records) -> Optional[str]:
    """Return the SR (a reference) of the old VDIs of a copy whose LUN no longer names the original.

    `known` are all VDIs of the pool. None where no SR has such a VDI, or several SRs do.
    """
    new = {copy["uuid"] for copy in copies.values()}
    srs = {str(old["SR"]) for old in known.values() if derived_uuid(new_sr, old["uuid"]) in new}
    return srs.pop() if len(srs) == 1 else None


def pairs(origin: Origin, copies: Records) -> List[Pair]:
    """Return the map, sorted by name. `copies` are the VDIs of the copy."""
    found = []
    for copy in copies.values():
        old, size = origin.old_of(copy), copy["virtual_size"]
        old_uuid = "" if old is None else str(old["uuid"])
        found.append(Pair(old_uuid, copy["uuid"], copy["name_label"], size, copy["is_a_snapshot"], copy["managed"]))
    return sorted(found, key=lambda pair: (pair.name_label, pair.new))


def marked_old(vdi: Record) -> str:
    """Return the UUID of the old VDI in the mark of `carry_over`; "" without one. A vm-admin may have written it.

    xapi copies the mark with VDI.copy, VDI.clone and VDI.snapshot of a VDI of a copy.
    """
    marked = str(vdi["other_config"].get(OLD_VDI, ""))
    return marked if is_uuid(marked) else ""


def is_derived(new: str) -> bool:
    """Does the UUID come from a resignature? xapi and the storage manager make random UUIDs, of version 4."""
    return is_uuid(new) and uuid.UUID(new).version == 5


def carry_over(calls: Calls, origin: Origin, copies: Records) -> List[str]:
    """Copy the values of each original VDI to its new VDI. A VDI with the mark is left unchanged.

    Return a sentence about each value that no call has room for. The mark is written last, so the next run finishes an
    interrupted run. Raises PoolFailure.
    """
    notes: List[str] = []
    for ref, original in unlabelled(origin, copies).items():
        copy = copies[ref]
        left = _carry_texts(calls, ref, original, copy)
        if OLD_VDI in copy["other_config"]:
            calls.call("VDI.remove_from_other_config", ref, OLD_VDI)
        marks.add(calls, "VDI", ref, OLD_VDI, original["uuid"])
        notes += [
            f"The VDI {copy['uuid']} does not get {what} of the original: xapi reads no call so long." for what in left
        ]
    return notes


def _carry_texts(calls: Calls, ref: str, original: Record, copy: Record) -> List[str]:
    """Copy the values of one VDI; return what no call has room for. Raises PoolFailure."""
    left: List[str] = []
    for field, method in _NAMES.items():
        if original[field] and not copy[field]:  # the name on the LUN dates from the array snapshot, and stays
            if calls.room(ref, original[field]) < 0:
                left.append("the " + field)
            else:
                calls.call(method, ref, original[field])
    if original["tags"] and sorted(original["tags"]) != sorted(copy["tags"]):
        tags = _fitting([[tag] for tag in original["tags"]], calls.room(ref, []))
        calls.call("VDI.set_tags", ref, [tag for (tag,) in tags])
        left += _counted(len(original["tags"]) - len(tags), "tag")
    there: Dict[str, str] = copy["other_config"]
    config = original["other_config"].items()
    carried = {key: value for key, value in config if key == WAS or not key.startswith(_NOT_COPIED)}
    fitting = _fitting([{key: value} for key, value in carried.items()], calls.room(ref, there))
    if fitting:
        calls.call("VDI.set_other_config", ref, dict(chain(there.items(), *(each.items() for each in fitting))))
    return left + _counted(len(carried) - len(fitting), "key", " of other_config")


def _fitting(parts: Sequence[Part], room: int) -> List[Part]:
    """Return the parts of a list or object that fit into `room` bytes, the shortest first: most are kept."""
    return [parts[at] for at in untrusted.smallest([len(rpc.body_of(part)) for part in parts], room)]


def _counted(number: int, noun: str, of: str = "") -> List[str]:
    return [counted(number, noun) + of] if number else []


def unlabelled(origin: Origin, copies: Records) -> Records:
    """Return the old VDI of each VDI of a copy (a reference) without the right mark of `carry_over`. Pure."""
    olds = {ref: origin.old_of(copy) for ref, copy in copies.items()}
    return {
        ref: old
        for ref, old in olds.items()
        if old is not None and copies[ref]["other_config"].get(OLD_VDI) != old["uuid"]
    }
