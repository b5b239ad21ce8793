# SPDX-License-Identifier: LGPL-2.1-only
"""What the merge strategies of all formats share: what a strategy says of itself, and the extents of the new volume.

    for strategy in vhd_image.strategies(...)     likely the cheapest first
        strategy.counts                           what the strategy costs
        strategy.extents()                        of the new volume; Refused where the LUN has too few
        strategy.image(device, lv, id)            everything there is to write, once the new ids are known

The new volume is made of old extents that stay where they are, of new extents that are written before the commit, and
of extents that only become part of the volume.
"""

from abc import ABC, abstractmethod
from array import array
from itertools import chain
from typing import Collection, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up, in_pieces
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, VolumeGroup, extents_of
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Rebuilt, Unseen
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun, Volume

EXTENT_BYTES = 4 << 20  #: as SM makes them
PAGE_BYTES = 4096  #: the largest logical block of a device
NEW = -1  #: in a list of extents that stay: this place gets another extent


class Counts(NamedTuple):
    """What a strategy costs; a block is what the format calls so, and a cluster of a QCOW2."""

    blocks: int  #: blocks of the disk that some image has
    remapped: int  #: blocks among these that stay where they are
    filled: int  #: blocks among these that get sectors from images further down
    copied: int  #: blocks that get another place
    data_bytes: int  #: guest data that is written: fills and copies
    fresh_extents: int = 0  #: free extents that are written before the commit
    free_extents: int = 0  #: free extents of the LUN


class Image(NamedTuple):
    """How the new image is made, in places of the device."""

    unseen: Unseen
    rebuilt: Rebuilt


class Room(NamedTuple):
    """The physical extents for the new volume, beside the extents that stay."""

    writable: Sequence[int]  #: may be written before the commit, in the order in which they are taken
    later: Sequence[int]  #: may become part of the volume, and are not written before the commit


def room_on(lun: Lun, chain_: Sequence[Volume], dropped: Sequence[Volume], unused: Sequence[int], seed: int) -> Room:
    """The extents that are free on the LUN, and the extents that become free with the commit.

    The new volume replaces the volumes of the chain; `dropped` are other volumes that go. `unused` are extents of the
    chain that no image looks at: they are taken behind the free extents, in this order. `seed` is a large random
    number. It says where in the free extents to begin: a write of an earlier run that had failed may land late, and
    must not hit what this run writes.
    """
    vg = lun.vg
    taken = bytearray(vg.pe_count)
    for lv in vg.lvs:
        for one in lv.segments:
            taken[one.first_pe : one.first_pe + one.extent_count] = b"\1" * one.extent_count
    free = array("I", (pe for pe, is_taken in enumerate(taken) if not is_taken))
    ends = set(unused)
    gone = (volume.lv for volume in (*chain_, *dropped))
    later = array("I", (pe for lv in gone for pe in extents_of(lv.segments) if pe not in ends))
    start = seed % len(free) if free else 0
    return Room(free[start:] + free[:start] + array("I", unused), later)


def place(kept: "array[int]", fresh: Collection[int], room: Room) -> "array[int]":
    """The physical extents of a new volume, in its order. Raises Refused where the LUN has too few.

    `kept`: by the place in the volume, the physical extent that stays there, or NEW. `fresh`: the places whose extents
    are written before the commit.
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
    """Extents as LVM lists them: extents in a row are one segment."""
    found: List[Segment] = []
    for extent, pe in enumerate(pes):
        last = found[-1] if found else None
        if last is not None and last.first_pe + last.extent_count == pe:
            found[-1] = last._replace(extent_count=last.extent_count + 1)
        else:
            found.append(Segment(extent, 1, pe))
    return tuple(found)


class MergeStrategy(ABC):
    """One way to merge a chain into one image: a layout of the format, and the room on the LUN."""

    content: Content  #: of the new volume, as it will be read

    def __init__(self, counts: Counts, fresh: Collection[int], room: Room) -> None:
        self.counts = counts._replace(fresh_extents=len(fresh), free_extents=len(room.writable))
        self._fresh, self._room = fresh, room

    def extents(self) -> Sequence[int]:
        """The physical extents of the new volume, in its order. Raises Refused where the LUN has too few."""
        return place(self.kept(), self._fresh, self._room)

    @abstractmethod
    def kept(self) -> "array[int]":
        """The physical extents that stay, by their place in the new volume, as `place` wants them."""

    @abstractmethod
    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Image:
        """Everything there is to write, and what it is built on. `lv` is the new volume, `lv_id` its new id."""


class VolumeRanges:
    """Where bytes of the new volume and of the volumes of the chain lie on the device."""

    def __init__(self, vg: VolumeGroup, lv: LogicalVolume, olds: Iterable[LogicalVolume]) -> None:
        self.vg, self.lv, self._olds = vg, lv, list(olds)

    def at(self, offset: int, length: int) -> List[Range]:
        """Where bytes of the new volume lie."""
        return self.vg.ranges(self.lv, offset, length)

    def chunks(self, offset: int, data: bytes) -> Iterator[Chunk]:
        """Bytes of the new volume, as they are written."""
        return in_pieces(self.at(offset, len(data)), data)

    def copy(self, offset: int, member: int, source: int, length: int) -> Iterator[Copy]:
        """`length` bytes from a volume of the chain, by its index, to the new volume: a copy for each stretch that is
        in one piece on both sides.
        """
        sources = list(reversed(self.vg.ranges(self._olds[member], source, length)))
        for target in self.at(offset, length):
            done = 0
            while done < target.length:
                part = sources.pop()
                size = min(part.length, target.length - done)
                yield Copy(target.offset + done, part.offset, size)
                done += size
                if size < part.length:
                    sources.append(Range(part.offset + size, part.length - size))

    def copy_up_to(self, offset: int, member: int, source: int, seen: int, length: int) -> Iterator[Copy]:
        """As `copy`, with zeros in the place of what lies behind the first `seen` bytes.

        `offset` and `source` begin pages of 4 KiB, and whole pages are written: a device may have such blocks.
        """
        whole = align_down(seen, PAGE_BYTES)
        yield from self.copy(offset, member, source, whole)
        if whole < seen:
            for page in self.copy(offset + whole, member, source + whole, seen - whole):
                yield page._replace(zeros=whole + PAGE_BYTES - seen)
        behind = align_up(seen, PAGE_BYTES)
        yield from self.zeros(offset + behind, length - behind)

    def zeros(self, offset: int, length: int) -> Iterator[Copy]:
        for part in self.at(offset, length):
            yield Copy(part.offset, None, part.length)
