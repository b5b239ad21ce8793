# SPDX-License-Identifier: LGPL-2.1-only
"""What a format of images has to say of its chains: the ways to make one of them one image, and what each takes.

for way in vhd.ways(...)        likely the cheapest first
    way.cost                    what it takes
    way.extents()               of the new volume; Refused where there is no room for it
    way.image(device, lv, id)   everything there is to write, once the new ids are known
"""

from abc import ABC, abstractmethod
from typing import Iterator, List, NamedTuple, Sequence

from relvmoiscsi.device import Chunk, Device, Range, align_down, align_up, in_pieces
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Rebuilt, Unseen
from relvmoiscsi.resignature.reading.lun_contents import Content

PAGE_BYTES = 4096  #: the largest logical block of a device


class Cost(NamedTuple):
    """What it takes to make one VDI. A block is what the format calls so, a cluster of a QCOW2."""

    images: int  #: of the chain
    dropped: int  #: volumes that go, those of SM's unfinished work among them
    blocks: int  #: of the disk, that some image has
    remapped: int  #: of them, that stay where they are
    filled: int  #: of them, that get sectors from further down
    copied: int  #: blocks that get another place
    data_bytes: int  #: guest data that is written: fills and copies
    fresh_extents: int  #: free extents that are written before the commit
    free_extents: int  #: that there are


class Image(NamedTuple):
    """How the new image is made, in places of the device."""

    unseen: Unseen
    rebuilt: Rebuilt


class Way(ABC):
    """One way to make a chain one image."""

    cost: Cost  #: with the volumes of the chain alone among those that go
    content: Content  #: of the new volume, as it will be read

    @abstractmethod
    def extents(self) -> Sequence[int]:
        """The physical extents of the new volume, in its order. Raises Refused where there are too few."""

    @abstractmethod
    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Image:
        """Everything there is to write, and what it is built on. `lv` is the new volume, `lv_id` its new id."""


class Places:
    """Where bytes of the new volume and of old ones lie on the device."""

    def __init__(self, vg: VolumeGroup, lv: LogicalVolume, olds: Sequence[LogicalVolume]) -> None:
        self.vg, self.lv, self._olds = vg, lv, olds

    def at(self, offset: int, length: int) -> List[Range]:
        """Where bytes of the new volume lie."""
        return self.vg.ranges(self.lv, offset, length)

    def chunks(self, offset: int, data: bytes) -> Iterator[Chunk]:
        """Bytes of the new volume, as they are written."""
        return in_pieces(self.at(offset, len(data)), data)

    def copy(self, offset: int, member: int, source: int, length: int) -> Iterator[Copy]:
        """`length` bytes from an old volume, by its index in the chain, to the new one."""
        return _paired(self.at(offset, length), self.vg.ranges(self._olds[member], source, length))

    def copy_up_to(self, offset: int, member: int, source: int, seen: int, length: int) -> Iterator[Copy]:
        """As `copy`, with zeros in the place of what lies behind the first `seen` bytes.

        `offset` and `source` begin pages of 4 KiB, and so does all that is written: a device may have such blocks.
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


def _paired(targets: Sequence[Range], sources: Sequence[Range]) -> Iterator[Copy]:
    """One copy for each stretch that is in one piece on both sides."""
    queue = list(reversed(sources))
    for target in targets:
        done = 0
        while done < target.length:
            source = queue.pop()
            length = min(source.length, target.length - done)
            yield Copy(target.offset + done, source.offset, length)
            done += length
            if length < source.length:
                queue.append(Range(source.offset + length, source.length - length))
