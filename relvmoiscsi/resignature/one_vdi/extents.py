# SPDX-License-Identifier: LGPL-2.1-only
"""Which extents of a LUN a new image is made of: old ones that stay, new ones written before the commit. Pure."""

from array import array
from itertools import chain
from typing import Collection, Iterable, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, VolumeGroup, extents_of

EXTENT_BYTES = 4 << 20  #: as SM makes them
NEW = -1  #: of `place`: none that stays


class Room(NamedTuple):
    """Which physical extents there are for the new volume beside those that stay."""

    writable: Sequence[int]  #: may be written before the commit, in the order in which they are taken
    later: Sequence[int]  #: may become part of the volume, and are not written before the commit


def room_on(vg: VolumeGroup, unused: Sequence[int], gone: Iterable[LogicalVolume], lot: int = 0) -> Room:
    """What is free on the LUN, and what becomes free with the commit.

    `unused`: extents of old volumes that no image looks at, in the order in which they are taken, behind the free ones.
    `gone`: volumes that the new one replaces, or that are dropped. `lot`, a large number by chance, says where in the
    free extents to begin: a write of an earlier run that had failed may land late, and is not to hit what this one
    writes.
    """
    taken = bytearray(vg.pe_count)
    for lv in vg.lvs:
        for one in lv.segments:
            taken[one.first_pe : one.first_pe + one.extent_count] = b"\1" * one.extent_count
    free = array("I", (pe for pe, is_taken in enumerate(taken) if not is_taken))
    ends = set(unused)
    later = array("I", (pe for lv in gone for pe in extents_of(lv.segments) if pe not in ends))
    start = lot % len(free) if free else 0
    return Room(free[start:] + free[:start] + array("I", unused), later)


def none_kept(count: int) -> "array[int]":
    """What `place` wants of a volume of so many extents of which none stays: to be filled in."""
    return array("q", [NEW]) * count


def place(kept: "array[int]", fresh: Collection[int], room: Room) -> "array[int]":
    """The physical extents of a new volume, in its order. Raises Refused where there are too few.

    `kept`: physical extents that stay, by their place in the volume, and NEW elsewhere; `fresh`: the places of new ones
    that are written. What is neither is named, and not written before the commit.
    """
    if len(fresh) > len(room.writable):
        raise Refused(
            f"One VDI needs {len(fresh)} free extents of 4 MiB before its commit, {len(room.writable)} are free.",
            sm_key="SRNoSpace",
        )
    found, staying = kept[:], bytearray(1 + max(chain(kept, room.later), default=0))
    for pe in kept:
        if pe != NEW:
            staying[pe] = 1
    writable = iter(room.writable)
    for extent in sorted(fresh):
        found[extent] = next(writable)
    there = len(found) - found.count(NEW)
    rest = chain((pe for pe in room.later if not staying[pe]), writable)
    for extent, known in enumerate(found):
        if known == NEW:
            pe = next(rest, NEW)
            if pe == NEW:
                raise Refused(f"One VDI needs {len(found)} extents of 4 MiB, {there} are there.", sm_key="SRNoSpace")
            found[extent] = pe
            there += 1
    return found


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
