# SPDX-License-Identifier: LGPL-2.1-only
"""The common part of the merge strategies of all formats: costs, and the extents of the new volume.

    for strategy in vhd_image.strategies(...)     likely the cheapest first
        strategy.cost                             the cost
        strategy.extents()                        the extents of the new volume; Refused when the LUN has too few
        strategy.image(device, lv, id)            all writes, once the new ids are known

The new volume has three kinds of extents: old extents that stay at their place, new extents that the run writes before
the commit, and extents that the run does not write.
"""

from abc import ABC, abstractmethod
from array import array
from itertools import chain
from typing import Collection, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up, in_pieces
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment, VolumeGroup, extents_of
from relvmoiscsi.resignature.merge.vdi_choice import Chain
from relvmoiscsi.resignature.protocol.merged_image import BlockCopy, MergedImage, Unseen
from relvmoiscsi.resignature.reading.lun_contents import Content, Lun

EXTENT_BYTES = 4 << 20  #: as SM makes them
PAGE_BYTES = 4096  #: the largest logical block size of a device
_ENLARGE = "Ask for all VDIs (`vdis=all`): the clone's own SR can then lose snapshots, or be enlarged."
NEW = -1  #: in a list of extents that stay: another extent comes to this place


class Cost(NamedTuple):
    """The cost of making one VDI. A block is a block of a VHD, or a cluster of a QCOW2."""

    images: int = 1  #: images of the chain
    dropped: int = 0  #: volumes that the run removes, volumes of SM's unfinished work included
    blocks: int = 0  #: blocks of the disk that an image has
    remapped: int = 0  #: blocks that stay at their place
    filled: int = 0  #: blocks that stay and get sectors from parents
    copied: int = 0  #: blocks that get another place
    data_bytes: int = 0  #: bytes of guest data that the run writes: fills and copies
    fresh_extents: int = 0  #: free extents that are written before the commit
    free_extents: int = 0  #: free extents of the LUN


class Room:
    """Physical extents that the new volume may take, beside the extents that stay.

    `writable` are free extents, which the run may write before the commit. `later` are extents that become free with
    the commit, and must not be written before the commit.
    """

    def __init__(self, writable: Sequence[int], later: Sequence[int]) -> None:
        self.writable, self.later = writable, later

    def place(self, retained: "array[int]", fresh: Collection[int]) -> "array[int]":
        """The physical extents of a new volume, in the order of the volume. Raises Refused when the LUN has too few.

        `retained` has for each place in the volume the physical extent that stays there, or NEW. `fresh` are the places
        whose extents the run writes before the commit: these take the first extents of `writable`.
        """
        if len(fresh) > len(self.writable):
            raise Refused(
                f"One VDI needs {len(fresh)} free extents of 4 MiB before its commit, {len(self.writable)} are free.",
                sm_key="SRNoSpace",
            ).advising(_ENLARGE)
        found, staying = retained[:], bytearray(1 + max(chain(retained, self.later), default=0))
        for pe in retained:
            if pe != NEW:
                staying[pe] = 1
        writable = iter(self.writable)
        for extent in sorted(fresh):
            found[extent] = next(writable)
        there = len(found) - found.count(NEW)
        rest = chain((pe for pe in self.later if not staying[pe]), writable)
        for extent, known in enumerate(found):
            if known == NEW:
                pe = next(rest, NEW)
                if pe == NEW:
                    problem = f"One VDI needs {len(found)} extents of 4 MiB, {there} are there."
                    raise Refused(problem, sm_key="SRNoSpace").advising(_ENLARGE)
                found[extent] = pe
                there += 1
        return found


def room_on(lun: Lun, images: Chain, unused: Sequence[int], seed: int) -> Room:
    """The extents that are free on the LUN, and the extents that become free with the commit.

    The new volume replaces the volumes of the chain `images`; the run removes other volumes. `unused` are extents of
    the chain that no image uses: they follow the free extents in `Room.writable`, in this order. `seed` is a large
    random number, which chooses the first of the free extents:

        t0    an earlier run with another seed fails; one of its writes is still on the way
        t1    this run writes a new image
        t2    the late write arrives, and most likely hits no extent of this run
    """
    vg = lun.vg
    taken = bytearray(vg.pe_count)
    for lv in vg.lvs:
        for one in lv.segments:
            taken[one.first_pe : one.first_pe + one.extent_count] = b"\1" * one.extent_count
    free = array("I", (pe for pe, is_taken in enumerate(taken) if not is_taken))
    ends = set(unused)
    gone = (volume.lv for volume in (*images.members, *images.dropped))
    later = array("I", (pe for lv in gone for pe in extents_of(lv.segments) if pe not in ends))
    start = seed % len(free) if free else 0
    return Room(free[start:] + free[:start] + array("I", unused), later)


def segments_of(pes: Sequence[int]) -> Tuple[Segment, ...]:
    """The segments of a volume with these physical extents: extents in a row are one segment."""
    found: List[Segment] = []
    for extent, pe in enumerate(pes):
        last = found[-1] if found else None
        if last is not None and last.first_pe + last.extent_count == pe:
            found[-1] = last._replace(extent_count=last.extent_count + 1)
        else:
            found.append(Segment(extent, 1, pe))
    return tuple(found)


class MergeStrategy(ABC):
    """A strategy to merge a chain into one image."""

    content: Content  #: content of the new volume, as a survey will read it

    def __init__(self, cost: Cost, retained: "array[int]", fresh: Collection[int], room: Room) -> None:
        """`retained` and `fresh` are the extents of the new volume in the form of `Room.place`."""
        self.cost = cost._replace(fresh_extents=len(fresh), free_extents=len(room.writable))
        self._retained, self._fresh, self._room = retained, fresh, room

    def extents(self) -> Sequence[int]:
        """The physical extents of the new volume, in order. Raises Refused when the LUN has too few."""
        return self._room.place(self._retained, self._fresh)

    @abstractmethod
    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Tuple[Unseen, MergedImage]:
        """All writes that make the new image, and the bytes on which they depend: outside the journal, and in it.

        `lv` is the new volume, `lv_id` the new id of the volume.
        """


class VolumeRanges:
    """The places on the device of bytes of the new volume, and of the volumes of the chain."""

    def __init__(self, vg: VolumeGroup, lv: LogicalVolume, olds: Iterable[LogicalVolume]) -> None:
        self.vg, self.lv, self._olds = vg, lv, list(olds)

    def at(self, offset: int, length: int) -> List[Range]:
        """The ranges of the device that hold bytes [offset, offset + length) of the new volume."""
        return self.vg.ranges(self.lv, offset, length)

    def chunks(self, offset: int, data: bytes) -> Iterator[Chunk]:
        """The writes to the device that put `data` at `offset` of the new volume."""
        return in_pieces(self.at(offset, len(data)), data)

    def copy(self, offset: int, member: int, source: int, length: int) -> Iterator[BlockCopy]:
        """Copy `length` bytes from offset `source` of the chain's volume `member` to `offset` of the new volume.

        Gives a copy for each part that is in one piece in both volumes.
        """
        sources = list(reversed(self.vg.ranges(self._olds[member], source, length)))
        for target in self.at(offset, length):
            done = 0
            while done < target.length:
                part = sources.pop()
                size = min(part.length, target.length - done)
                yield BlockCopy(target.offset + done, part.offset, size)
                done += size
                if size < part.length:
                    sources.append(Range(part.offset + size, part.length - size))

    def copy_up_to(self, offset: int, member: int, source: int, seen: int, length: int) -> Iterator[BlockCopy]:
        """As `copy`, with zeros in place of the bytes behind the first `seen` bytes.

        `offset` and `source` must be multiples of 4 KiB, and the copies are, too: a device may have blocks of 4 KiB.
        """
        whole = align_down(seen, PAGE_BYTES)
        yield from self.copy(offset, member, source, whole)
        if whole < seen:
            for page in self.copy(offset + whole, member, source + whole, seen - whole):
                yield page._replace(zeros=whole + PAGE_BYTES - seen)
        behind = align_up(seen, PAGE_BYTES)
        yield from self.zeros(offset + behind, length - behind)

    def zeros(self, offset: int, length: int) -> Iterator[BlockCopy]:
        for part in self.at(offset, length):
            yield BlockCopy(part.offset, None, part.length)
