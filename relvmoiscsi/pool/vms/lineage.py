# SPDX-License-Identifier: LGPL-2.1-only
"""The mark of a disk that has changed its UUID: a guest must not get a second copy, and a copy has an earlier UUID.

VDI.pool_migrate gives the disk a VDI with another UUID, and xapi keeps no relation between the two VDIs. So a run marks
the new VDI before it ends the journal, which is the only other record of the relation.

xapi copies the mark with VDI.copy, VDI.clone and VDI.snapshot, and not with VDI.pool_migrate. Source: xen-api
ocaml/xapi/xapi_vdi.ml, xapi_vm_migrate.ml (intra_pool_vdi_remap).
"""

from typing import Callable, Collection, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, Record
from relvmoiscsi.pool.records import WAS

_MOST = 100  #: UUIDs of a mark: a restore adds one, and the writer may be a stranger


def write(calls: Calls, vdi: str, uuids: Iterable[str]) -> None:
    """Mark a VDI (a reference) as the disk that had these UUIDs before, the latest first. Raises PoolFailure."""
    record: Record = calls.call("VDI.get_record", vdi)
    text = " ".join([*dict.fromkeys([str(record["uuid"]), *uuids])][:_MOST])
    if record["other_config"].get(WAS) != text:
        calls.call("VDI.remove_from_other_config", vdi, WAS)
        marks.add(calls, "VDI", vdi, WAS, text)


def earlier(vdi: Record) -> List[str]:
    """Return the UUIDs that the disk of this VDI had before, by its mark, the latest first.

    A vm-admin may have written the mark: owners.earlier_uuids says which of the UUIDs count.
    [] for a copy of such a VDI, which has the mark with the UUID of that other VDI.
    """
    uuids = all_of(vdi)
    return uuids[1:] if uuids[:1] == [vdi["uuid"]] else []


def all_of(vdi: Record) -> List[str]:
    """Return the UUIDs in the mark of a VDI. A vm-admin may have written it."""
    return [text for text in str(vdi["other_config"].get(WAS, "")).split()[:_MOST] if is_uuid(text)]


def claimed_twice(claims: Mapping[str, Collection[str]]) -> Dict[str, Tuple[str, str]]:
    """Return the UUIDs in the marks of two disks, with two such disks, neither of which was the other. Pure.

    `claims` has the UUIDs in the mark of each disk. The mark of a disk that came home twice has the UUIDs of the mark
    of its first arrival, and that arrival itself. So of the disks with one UUID in their marks, in the order of the
    lengths of the marks, each is in the mark of the next. A vm-admin may write any number of marks: no two disks are
    compared but such neighbours.
    """
    claimed: Dict[str, List[str]] = {}
    for now in sorted(claims, key=lambda now: len(claims[now])):
        for uuid in claims[now]:
            claimed.setdefault(uuid, []).append(now)
    found: Dict[str, Tuple[str, str]] = {}
    for uuid, disks in claimed.items():
        for pair in zip(disks, disks[1:]):
            if pair[0] not in claims[pair[1]] and pair[1] not in claims[pair[0]]:
                found[uuid] = pair
                break
    return found


def closure(first: Iterable[str], nexts: Callable[[str], Iterable[str]]) -> Set[str]:
    """Return these UUIDs, and all that `nexts` leads to. Pure."""
    known: Set[str] = set()
    left = list(first)
    while left:
        uuid = left.pop()
        if uuid not in known:
            known.add(uuid)
            left += nexts(uuid)
    return known


def with_later(before: Mapping[str, Sequence[str]], owners: Mapping[str, int]) -> Dict[str, int]:
    """Return the owners of each VDI, together with those of all its later states. Pure; each relation is read twice.

    `before` has the VDIs of which each VDI is a later state. `owners` has a number with a bit for each owner. A
    vm-admin may write the relations, so they may lead in a circle: the VDIs of a circle have the same owners. In the
    order below, the walk from the first VDI of a circle finds the whole circle, and otherwise only VDIs that are known
    (the strongly connected components of a graph, by Kosaraju and Sharir).
    """
    later: Dict[str, List[str]] = {}
    for uuid, earlier_states in before.items():
        for each in earlier_states:
            later.setdefault(each, []).append(uuid)
    order: List[str] = []
    seen: Set[str] = set()
    walk: List[Tuple[str, bool]] = [(uuid, False) for uuid in (*before, *later, *owners)]
    while walk:
        uuid, is_left = walk.pop()
        if is_left:
            order.append(uuid)
        elif uuid not in seen:
            seen.add(uuid)
            walk += [(uuid, True), *((each, False) for each in before.get(uuid, ()))]
    known: Dict[str, int] = {}
    for first in reversed(order):
        circle: Set[str] = set()
        found, left = 0, [first]
        while left:
            uuid = left.pop()
            if uuid in known:
                found |= known[uuid]
            elif uuid not in circle:
                circle.add(uuid)
                found |= owners.get(uuid, 0)
                left += later.get(uuid, ())
        known.update(dict.fromkeys(circle, found))
    return known
