# SPDX-License-Identifier: LGPL-2.1-only
"""Which extents of a LUN a new image is made of: old ones that stay, new ones written before the commit. Pure."""

from itertools import chain
from typing import Collection, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, VolumeGroup, extents_of

EXTENT_BYTES = 4 << 20  #: as SM makes them


class Room(NamedTuple):
    """Which physical extents there are for the new volume beside those that stay."""

    writable: Tuple[int, ...]  #: may be written before the commit, in the order in which they are taken
    later: Tuple[int, ...]  #: may become part of the volume, and are not written before the commit


def room_on(vg: VolumeGroup, unused: Sequence[int], gone: Iterable[LogicalVolume], lot: int = 0) -> Room:
    """What is free on the LUN, and what becomes free with the commit.

    `unused`: extents of old volumes that no image looks at, in the order in which they are taken, behind the free ones.
    `gone`: volumes that the new one replaces, or that are dropped. `lot`, a large number by chance, says where in the
    free extents to begin: a write of an earlier run that had failed may land late, and is not to hit what this one
    writes.
    """
    used = {pe for lv in vg.lvs for pe in extents_of(lv.segments)}
    free = [pe for pe in range(vg.pe_count) if pe not in used]
    ends = set(unused)
    later = [pe for lv in gone for pe in extents_of(lv.segments) if pe not in ends]
    start = lot % len(free) if free else 0
    return Room((*free[start:], *free[:start], *unused), tuple(later))


def place(count: int, kept: Mapping[int, int], fresh: Collection[int], room: Room) -> Tuple[int, ...]:
    """The physical extents of a new volume of `count` extents, in its order. Raises Refused where there are too few.

    `kept`: physical extents that stay, by their place in the volume; `fresh`: the places of new ones. What is neither
    is named, and not written before the commit.
    """
    if len(fresh) > len(room.writable):
        raise Refused(
            f"One VDI needs {len(fresh)} free extents of 4 MiB before its commit, {len(room.writable)} are free.",
            sm_key="SRNoSpace",
        )
    found = dict(kept)
    writable = iter(room.writable)
    found.update((extent, next(writable)) for extent in sorted(fresh))
    staying = set(kept.values())
    rest = chain((pe for pe in room.later if pe not in staying), writable)
    for extent in range(count):
        pe = found.get(extent)
        pe = next(rest, None) if pe is None else pe
        if pe is None:
            there = sum(1 for one in range(count) if one in found)
            raise Refused(f"One VDI needs {count} extents of 4 MiB, {there} are there.", sm_key="SRNoSpace")
        found[extent] = pe
    return tuple(found[extent] for extent in range(count))


def segments_of(pes: Sequence[int]) -> Tuple[Segment, ...]:
    """Extents as LVM lists them: those in a row as one segment."""
    found: List[Segment] = []
    for extent, pe in enumerate(pes):
        last = found[-1] if found else None
        if last is not None and last.first_pe + last.extent_count == pe:
            found[-1] = last._replace(extent_count=last.extent_count + 1)
        else:
            found.append(Segment(extent, 1, pe))
    return tuple(found)
