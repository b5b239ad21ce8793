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
from bisect import bisect
from itertools import chain
from typing import Collection, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up, in_pieces
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup, segments_of
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

    def __init__(self, writable: Sequence[range], later: Sequence[range]) -> None:
        self.writable, self.later = writable, later
        self.free_extents = sum(map(len, writable))

    def place(self, retained: "array[int]", fresh: Collection[int]) -> "array[int]":
        """The physical extents of a new volume, in the order of the volume. Raises Refused when the LUN has too few.

        `retained` has for each place in the volume the physical extent that stays there, or NEW. `fresh` are the places
        whose extents the run writes before the commit: these take the first extents of `writable`.
        """
        if len(fresh) > self.free_extents:
            raise Refused(
                f"One VDI needs {len(fresh)} free extents of 4 MiB before its commit, {self.free_extents} are free.",
                sm_key="SRNoSpace",
            ).advising(_ENLARGE)
        found, writable = retained[:], chain.from_iterable(self.writable)
        for extent in sorted(fresh):
            found[extent] = next(writable)
        there = len(found) - found.count(NEW)
        staying = segments_of(range(pe, pe + 1) for pe in retained if pe != NEW)
        rest = chain(chain.from_iterable(_without(self.later, (one.pes for one in staying))), writable)
        for extent, known in enumerate(found):
            if known == NEW:
                pe = next(rest, NEW)
                if pe == NEW:
                    problem = f"One VDI needs {len(found)} extents of 4 MiB, {there} are there."
                    raise Refused(problem, sm_key="SRNoSpace").advising(_ENLARGE)
                found[extent] = pe
                there += 1
        return found


def _without(pes: Iterable[range], taken: Iterable[range]) -> Iterator[range]:
    """The extents of `pes`, in order, that are not in `taken`. The ranges of `taken` must not overlap."""
    sorted_taken = sorted((one.start, one.stop) for one in taken)
    for each in pes:
        free_from, index = each.start, max(0, bisect(sorted_taken, (each.start,)) - 1)
        while index < len(sorted_taken) and sorted_taken[index][0] < each.stop:
            start, stop = sorted_taken[index]
            yield range(free_from, start)
            free_from, index = max(free_from, stop), index + 1
        yield range(free_from, each.stop)


def room_on(lun: Lun, images: Chain, unused: Sequence[range], seed: int) -> Room:
    """The extents that are free on the LUN, and the extents that become free with the commit.

    The volume of SM's trim holds no data: its extents are free. The new volume replaces the volumes of the chain
    `images`; the run removes other volumes. `unused` are extents of the chain that no image uses: they follow the free
    extents in `Room.writable`, in this order. `seed` is a large random number, which chooses the first of the free
    extents:

        t0    an earlier run with another seed fails; one of its writes is still on the way
        t1    this run writes a new image
        t2    the late write arrives, and most likely hits no extent of this run
    """
    taken = (one.pes for volume in lun.volumes if not lun.is_trim(volume) for one in volume.lv.segments)
    free = list(_without([range(lun.vg.pe_count)], taken))
    before: List[range] = []  # the free extents before the first one, and behind it
    behind: List[range] = []
    start = seed % max(1, sum(map(len, free)))
    for run in free:
        before.append(run[:start])
        behind.append(run[start:])
        start = max(0, start - len(run))
    gone = (volume.lv for volume in (*images.members, *images.dropped))
    return Room([*behind, *before, *unused], list(_without((one.pes for lv in gone for one in lv.segments), unused)))


class MergeStrategy(ABC):
    """A strategy to merge a chain into one image."""

    content: Content  #: content of the new volume, as a survey will read it

    def __init__(self, cost: Cost, retained: "array[int]", fresh: Collection[int], room: Room) -> None:
        """`retained` and `fresh` are the extents of the new volume in the form of `Room.place`."""
        self.cost = cost._replace(fresh_extents=len(fresh), free_extents=room.free_extents)
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
