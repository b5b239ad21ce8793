# SPDX-License-Identifier: LGPL-2.1-only
"""A chain of QCOW2 images as read, and the image that owns each cluster of the disk.

    unit        the smallest cluster size of the chain: the cluster size of the new image
    owner       of a unit: ABSENT, ZEROS, or a number; the bits from 56 on are the index of the owning image in the
                chain plus one, the bits below are the place of the unit in that image's volume

A disk has millions of units. So this module gives owners as arrays, one for each table of the new image's second level.
The arrays, and the tables of the images, are compressed (`compact.Arrays`).
"""

import hashlib
from array import array
from heapq import merge
from itertools import chain, groupby
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Device, Range, in_pieces, read_pieces
from relvmoiscsi.errors import Malformed, Place
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup, segments_of
from relvmoiscsi.formats.qcow2 import ENTRY_BYTES, HEAD_BYTES, MAX_L1_BYTES, Qcow2, Qcow2Header
from relvmoiscsi.formats.qcow2_clusters import ABSENT, ZEROS
from relvmoiscsi.resignature.merge.compact import Arrays, Memory
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES
from relvmoiscsi.resignature.protocol.merged_image import Expected
from relvmoiscsi.resignature.reading.lun_contents import Volume

IMAGE_SHIFT = 56
EXTENT_SHIFT = 22  #: `owner >> EXTENT_SHIFT` is the image and the extent
#: memory as measured: for a table 700 bytes and four times its compressed size; for an extent of a volume; for all else
BYTES_FOR_TABLE, TIMES_PACKED, _BYTES_FOR_EXTENT, _BYTES_AT_LEAST = 700, 4, 200, 8 << 20
#: memory for a cluster of an image's volume, and of the new volume, which is about as large as the leaf's volume
_BYTES_FOR_CLUSTER, _BYTES_FOR_NEW_CLUSTER = 1, 2
_BATCH_BYTES = 1 << 20  #: bytes of tables in a batch of reads


class Qcow2Member:
    """An image of a chain; a raw volume has neither head nor tables. `read` reads and verifies the tables.

    `taken` has a byte for each cluster of the volume: 1 when the header, a table or an entry uses the cluster.
    """

    def __init__(self, device: Device, vg: VolumeGroup, lv: LogicalVolume, name: str, virtual_size: int) -> None:
        self.name, self.lv, self.virtual_size = name, lv, virtual_size
        self.head = b""  #: the header with its extensions
        self.cluster_bytes = 0  #: 0 for a raw volume
        self.tables = Arrays()  #: the clusters of `read_entries` for each table of the second level
        self.taken = bytearray()
        self.built_on: List[Expected] = []  #: digests of header and tables
        self._device, self._vg = device, vg

    def read(self, header: Qcow2Header, head: bytes, memory: Optional[Memory] = None) -> None:
        """Read the tables of an image. Raises FormatError when tables overlap, or lie outside the volume.

        `memory` counts the memory for the tables; raises Refused when the memory is too much.
        """
        self.head, self.cluster_bytes = head, 1 << header.cluster_bits
        if memory is not None:
            memory.take(_BYTES_FOR_CLUSTER * (self._vg.size_of(self.lv) >> header.cluster_bits) + self.cluster_bytes)
        self.taken = bytearray(self._vg.size_of(self.lv) // self.cluster_bytes)
        self._take(0, "QCOW2 header")
        what = "QCOW2 table of the first level"
        there = self._table(header.l1_table_offset, ENTRY_BYTES * header.l1_size, what)
        counts_bytes = header.refcount_clusters << header.cluster_bits
        for _index, place in self._table(header.refcount_table_offset, counts_bytes, "QCOW2 table of counts"):
            self._take(place, "QCOW2 counts")
        for _index, place in there:
            self._take(place, "QCOW2 table of the second level")
        batch = max(1, _BATCH_BYTES // self.cluster_bytes)
        for start in range(0, len(there), batch):
            part = there[start : start + batch]
            found = self._read([Range(place, self.cluster_bytes) for _index, place in part])
            for (index, place), data in zip(part, found):
                self.tables[index], taken = clusters.read_entries(data, Place(self.name, place))
                self._take_all(taken)
                if memory is not None:
                    memory.take(BYTES_FOR_TABLE + TIMES_PACKED * self.tables.size_bytes(index))
        if header.l1_size * self.cluster_bytes * (self.cluster_bytes // ENTRY_BYTES) < self.virtual_size:
            where = Place(self.name, 0)
            raise Malformed("QCOW2 header", where, "its table is too small for its virtual disk")
        self._expect(self._vg.ranges(self.lv, 0, HEAD_BYTES), head)

    def unused_extents(self) -> List[range]:
        """The physical extents of the volume in which the image uses no cluster."""
        if not self.cluster_bytes:
            return []
        per_extent = EXTENT_BYTES // self.cluster_bytes
        every = enumerate(chain.from_iterable(self.lv.pes(0, self.lv.extent_count)))
        unused = (pe for index, pe in every if not any(self.taken[index * per_extent : (index + 1) * per_extent]))
        return [one.pes for one in segments_of(range(pe, pe + 1) for pe in unused)]

    def owners(self, table: int, unit: int, image: int) -> Optional[Sequence[int]]:
        """The owners of the units of a table of the new image, from this image alone; None when all are ABSENT.

        `image` has the bits from 56 on of the owners. Units behind the end of the image's disk are ZEROS.
        """
        count = unit // ENTRY_BYTES
        first, end = table * count, -(-self.virtual_size // unit)
        if first >= end:
            return [ZEROS] * count
        found: Optional[Sequence[int]] = None
        if not self.cluster_bytes:
            found = range(image + first * unit, image + (first + count) * unit, unit)
        else:
            times = self.cluster_bytes // unit  # a table of this image covers times * times tables of the new image
            own = self.tables.get(table // (times * times))  # `find_owners` asks in the order of the disk
            if own is not None:
                at = table % (times * times) * (count // times)
                found = clusters.marked(own[at : at + count // times], image)
                if times > 1:
                    steps = range(0, self.cluster_bytes, unit)
                    found = [entry + step if entry > ZEROS else entry for entry in found for step in steps]
        if end >= first + count:
            return found
        inside = list(found[: end - first]) if found is not None else [ABSENT] * (end - first)
        return inside + [ZEROS] * (first + count - end)

    def tables_with_data(self, unit: int) -> Iterator[int]:
        """The tables of the new image in which this image may have data, in their order.

        An image can claim a disk of any size. So this gives what the image has, and not each table of its disk.
        """
        count = unit // ENTRY_BYTES
        if not self.cluster_bytes:
            yield from range(-(-self.virtual_size // (unit * count)))
        times = self.cluster_bytes // unit
        for index in self.tables:
            if times == 1:
                yield index
                continue
            there = (at * times // count for at, entry in enumerate(self.tables[index]) if entry > ZEROS)
            yield from (index * times * times + at for at, _ in groupby(there))

    # --- the tables

    def _take(self, place: int, what: str) -> None:
        """Mark the cluster at `place` as used. Raises Malformed for a cluster that is marked already."""
        index, within = divmod(place, self.cluster_bytes)
        where = Place(self.name, place)
        if within:
            raise Malformed(what, where, "it does not begin at a cluster")
        if index >= len(self.taken):
            raise Malformed(what, where, "it lies behind the end of the volume")
        if self.taken[index]:
            raise Malformed(what, where, "its cluster is used twice")
        self.taken[index] = 1

    def _table(self, offset: int, length: int, what: str) -> List[Tuple[int, int]]:
        """The used entries of a first-level table or a count table, as `read_tables`."""
        if offset + length > len(self.taken) * self.cluster_bytes or length > MAX_L1_BYTES:
            raise Malformed(what, Place(self.name, offset), f"it has {length} bytes there")
        for place in range(offset, offset + length, self.cluster_bytes):
            self._take(place, what)
        return clusters.read_tables(self._read([Range(offset, length)])[0], what, Place(self.name, offset))

    def _take_all(self, places: Sequence[int]) -> None:
        """`_take` for millions of clusters."""
        taken, size = self.taken, self.cluster_bytes
        end = len(taken) * size
        if places and places[0] % size == 0 and places[-1] < end:
            first, row = places[0] // size, range(places[0], places[0] + len(places) * size, size)
            if array("Q", row) == places and not any(taken[first : first + len(places)]):
                taken[first : first + len(places)] = b"\1" * len(places)
                return
        for place in places:
            if place >= end or place % size or taken[place // size]:
                self._take(place, "QCOW2 cluster")
            taken[place // size] = 1

    def _read(self, wanted: Sequence[Range]) -> List[bytes]:
        pieces = [self._vg.ranges(self.lv, part.offset, part.length) for part in wanted]
        found = read_pieces(self._device, pieces)
        for ranges, data in zip(pieces, found):
            self._expect(ranges, data)
        return found

    def _expect(self, ranges: Sequence[Range], data: bytes) -> None:
        for part in in_pieces(ranges, data):
            self.built_on.append(Expected(part.range, hashlib.sha256(part.data).digest()))


def place_of(owner: int) -> Tuple[int, int]:
    """The index of the owning image in the chain, and the place of the unit in the image's volume."""
    return (owner >> IMAGE_SHIFT) - 1, owner & (1 << IMAGE_SHIFT) - 1


def find_owners(members: Sequence[Qcow2Member], unit: int) -> Iterator[Tuple[int, "array[int]"]]:
    """The number of each table of the new image that is not empty, and the owners of the units of the table."""
    count, units = unit // ENTRY_BYTES, -(-members[0].virtual_size // unit)
    for table, _ in groupby(merge(*(member.tables_with_data(unit) for member in members))):
        found: Optional[Sequence[int]] = None
        for index, member in enumerate(members):
            own = member.owners(table, unit, index + 1 << IMAGE_SHIFT)
            if own is None:
                continue
            found = own if found is None else [upper or lower for upper, lower in zip(found, own)]
            if ABSENT not in found:
                break
        if found is not None and max(found) > ZEROS:
            yield table, array("Q", found[: units - table * count])


def cut_short(members: Sequence[Qcow2Member], unit: int, owners: Arrays) -> Dict[int, int]:
    """The units in which the disk of the owning parent ends: by unit, the number of bytes on the parent's disk.

    The parent's cluster may have bytes behind the end of the disk, which a guest must not see.
    """
    found: Dict[int, int] = {}
    for number in {member.virtual_size // unit for member in members[1:] if member.virtual_size % unit}:
        table, at = divmod(number, unit // ENTRY_BYTES)
        own = owners.get(table) or ()
        owner = own[at] if at < len(own) else ABSENT
        if owner > ZEROS:
            index, _place = place_of(owner)
            seen = min((member.virtual_size for member in members[1 : index + 1]), default=unit * (number + 1))
            if seen < unit * (number + 1):
                found[number] = seen - unit * number
    return found


# --- reading


def read_members(device: Device, vg: VolumeGroup, volumes: Sequence[Volume], memory: Memory) -> Tuple[Qcow2Member, ...]:
    """The images of a chain, the leaf first. Raises FormatError for an image that cannot be merged.

    `memory` counts the memory for these images and for the new image; raises Refused when the memory is too much.
    """
    found, leaf = [], volumes[0]
    if isinstance(leaf.content, Qcow2):
        memory.take(_BYTES_AT_LEAST)
        memory.take(_BYTES_FOR_NEW_CLUSTER * (vg.size_of(leaf.lv) >> leaf.content.header.cluster_bits))
    for volume in volumes:
        name = volume.name.text
        memory.take(_BYTES_FOR_EXTENT * (vg.size_of(volume.lv) // vg.extent_size))
        if volume.virtual_size % SECTOR:
            raise Malformed("QCOW2 header", Place(name, 0), f"its disk has {volume.virtual_size} bytes")
        member = Qcow2Member(device, vg, volume.lv, name, volume.virtual_size)
        if isinstance(volume.content, Qcow2):
            (head,) = read_pieces(device, [vg.ranges(volume.lv, 0, HEAD_BYTES)])
            clusters.verify_plain(volume.content, head, name)
            member.read(volume.content.header, head, memory)
        found.append(member)
    return tuple(found)
