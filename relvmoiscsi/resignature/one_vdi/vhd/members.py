# SPDX-License-Identifier: LGPL-2.1-only
"""The block tables of the images of a chain, as read: which blocks there are, where, and which of their sectors."""

import zlib
from array import array
from bisect import bisect_left
from typing import FrozenSet, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, align_up, in_pieces, read_pieces
from relvmoiscsi.errors import Malformed, Place, Refused
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.vhd import HEAD_BYTES, BatmapHeader, DynamicHeader, Footer, Vhd
from relvmoiscsi.formats.vhd_blocks import FULL, UNIT, UNUSED, Batmap, Geometry
from relvmoiscsi.resignature.one_vdi.compact import Memory
from relvmoiscsi.resignature.reading.lun import Volume
from relvmoiscsi.resignature.reading.read_cache import uncached

#: bitmaps that are read in one batch
_BATCH = 2048
#: of memory, for a block of the disk, in each image, and for a bitmap; roughly, as measured
_BYTES_FOR_BLOCK, _BYTES_FOR_BITMAP = 16, 200
CREATOR = b"tap\0"  #: of the images that blktap's tools make: they have a batmap


class Bitmaps:
    """Bitmaps by block, packed one behind the other: there may be a million, and most are a few stretches."""

    def __init__(self) -> None:
        self._blocks = array("I")
        self._ends = array("Q", [0])
        self._packed = bytearray()

    def __getitem__(self, block: int) -> int:
        return blocks.read_bitmap(self._at(bisect_left(self._blocks, block)))

    def items(self) -> Iterator[Tuple[int, bytes]]:
        """The blocks, and their bitmaps as they were put in."""
        return ((block, self._at(index)) for index, block in enumerate(self._blocks))

    def _at(self, index: int) -> bytes:
        return zlib.decompress(self._packed[self._ends[index] : self._ends[index + 1]])

    def append(self, block: int, data: bytes) -> None:
        """The bitmap of a block behind all others."""
        self._packed += zlib.compress(data, 1)
        self._blocks.append(block)
        self._ends.append(len(self._packed))


class Member(NamedTuple):
    """An image of a chain."""

    name: str  #: of its volume
    lv: LogicalVolume
    virtual_size: int  #: bytes
    footer: Footer
    header: DynamicHeader
    batmap_header: BatmapHeader
    entries: Sequence[int]  #: of the blocks that the disk has; UNUSED where a block is not there
    full: Batmap
    bitmaps: "Bitmaps"  #: by block, of those that are there and not known to be full
    #: blocks that do not keep the padding in front of their bitmaps for themselves: no program of SM's makes any
    crowded: FrozenSet[int] = frozenset()

    @property
    def geometry(self) -> Geometry:
        return blocks.geometry(self.header, self.batmap_header)

    @property
    def first_unit(self) -> int:
        """Where slot 0 is: behind the headers, and, as some geometries have it, one unit on for the parent locators."""
        first = self.geometry.first_slot_unit
        unit = blocks.unit_of(min(self.entries, default=UNUSED))
        return first + 1 if unit is not None and (unit - first) % blocks.SLOT_UNITS == 1 else first

    @property
    def sectors(self) -> int:
        return self.virtual_size // SECTOR

    def has(self, block: int) -> bool:
        return block < len(self.entries) and self.entries[block] != UNUSED

    def bits(self, block: int) -> int:
        """The sectors of a block that are here."""
        if not self.has(block):
            return 0
        return FULL if self.full[block] else self.bitmaps[block]

    def end_of_data(self) -> int:
        """Bytes from the start of the volume, where headers and blocks end."""
        last = max((entry for entry in self.entries if entry != UNUSED), default=0)
        end = blocks.end_of_headers(self.header, self.batmap_header)
        return max(end, blocks.data_at(last) + blocks.BLOCK_BYTES) if last else end


def read_members(device: Device, vg: VolumeGroup, volumes: Sequence[Volume]) -> Tuple[Member, ...]:
    """The images of a chain, the leaf first. Raises FormatError or Refused for one that tapdisk has not made.

    What is read of them is read of all at once: tables, then batmaps, then bitmaps.
    """
    contents = [_content(volume) for volume in volumes]
    pieces = [piece for volume, content in zip(volumes, contents) for piece in _tables(vg, volume, content)]
    read = read_pieces(device, pieces)
    places = [Place(one.name.text, blocks.geometry(content.header).batmap_header)
              for one, content in zip(volumes, contents)]  # fmt: skip
    headers = [blocks.read_batmap_header(data, place) for data, place in zip(read[1::2], places)]
    batmaps = read_pieces(device, [_batmap(vg, *item) for item in zip(volumes, contents, headers)])
    members = tuple(_member(vg, *item) for item in zip(volumes, contents, headers, read[::2], batmaps))
    memory = Memory(members[0].name)
    for member in members:
        partial = sum(1 for block, entry in enumerate(member.entries) if entry != UNUSED and not member.full[block])
        memory.take(_BYTES_FOR_BLOCK * len(member.entries) + _BYTES_FOR_BITMAP * partial)
    _read_bitmaps(uncached(device), vg, members)
    return members


def built_on(vg: VolumeGroup, members: Iterable[Member]) -> List[Range]:
    """Where that lies which tells whether an image has been written to: headers, tables, the footer at its end."""
    found: List[Range] = []
    for member in members:
        table = align_up(blocks.ENTRY_BYTES * len(member.entries), SECTOR)
        full = blocks.checked_bytes(member.virtual_size)
        found += vg.ranges(member.lv, 0, HEAD_BYTES)
        found += vg.ranges(member.lv, member.header.table_offset, table)
        found += vg.ranges(member.lv, member.batmap_header.batmap_offset, full)
        found += vg.ranges(member.lv, vg.size_of(member.lv) - SECTOR, SECTOR)
    return found


def bitmaps_as_read(vg: VolumeGroup, members: Iterable[Member]) -> Iterator[Chunk]:
    """And the bitmaps, which alone change where a block has got sectors that it lacked."""
    for member in members:
        for block, data in member.bitmaps.items():
            yield from in_pieces(vg.ranges(member.lv, blocks.bitmap_at(member.entries[block]), SECTOR), data)


def _content(volume: Volume) -> Vhd:
    content = volume.content
    assert isinstance(content, Vhd)  # `choice` refuses what is none
    if content.footer.creator_app != CREATOR:
        raise Refused(f"{volume.name.text} was made by {content.footer.creator_app!r}, not by the storage manager.")
    if content.header.block_size != blocks.BLOCK_BYTES:
        raise Refused(f"{volume.name.text} has blocks of {content.header.block_size} bytes, not of 2 MiB.")
    if blocks.block_count(content.virtual_size) > content.header.max_bat_entries:
        where = Place(volume.name.text, 0)
        raise Malformed("VHD header", where, "its block table is too small for its virtual disk")
    return content


def _tables(vg: VolumeGroup, volume: Volume, content: Vhd) -> List[List[Range]]:
    """Where its block table and the header of its batmap lie."""
    header = blocks.geometry(content.header).batmap_header
    return [vg.ranges(volume.lv, *content.block_table()), vg.ranges(volume.lv, header, BatmapHeader.SIZE)]


def _batmap(vg: VolumeGroup, volume: Volume, content: Vhd, header: BatmapHeader) -> List[Range]:
    length = min(header.batmap_sectors * SECTOR, blocks.checked_bytes(content.virtual_size))
    return vg.ranges(volume.lv, header.batmap_offset, length)


def _member(vg: VolumeGroup, volume: Volume, content: Vhd, header: BatmapHeader, table: bytes, batmap: bytes) -> Member:
    name, entries = volume.name.text, blocks.read_entries(table)
    full = blocks.verify_batmap(header, batmap, content.virtual_size, Place(name, header.batmap_offset))
    _verify_entries(entries, vg.size_of(volume.lv), blocks.end_of_headers(content.header, header), name)
    footer, crowded = content.end_footer or content.footer, _crowded(entries)
    bitmaps = Bitmaps()
    return Member(
        name, volume.lv, content.virtual_size, footer, content.header, header, entries, full, bitmaps, crowded
    )


def _verify_entries(entries: Sequence[int], volume_size: int, first: int, name: str) -> None:
    """Every block lies in the volume, behind the headers, and in none other's place."""
    taken = sorted(entry for entry in entries if entry != UNUSED)
    for entry, following in zip(taken, taken[1:] + [volume_size // SECTOR]):
        where = Place(name, blocks.bitmap_at(entry) if entry else 0)
        if blocks.bitmap_at(entry) < first or blocks.data_at(entry) + blocks.BLOCK_BYTES > volume_size:
            raise Malformed("VHD block", where, "it does not lie between the headers and the end of the volume")
        if entry + 1 + blocks.BLOCK_SECTORS > following:
            raise Malformed("VHD block", where, "it overlaps another one")


def _crowded(entries: Sequence[int]) -> FrozenSet[int]:
    """The blocks in whose padding another one ends."""
    taken = sorted(entry for entry in entries if entry != UNUSED)
    found = {
        following
        for entry, following in zip(taken, taken[1:])
        if blocks.data_at(entry) + blocks.BLOCK_BYTES > align_down(blocks.bitmap_at(following), UNIT)
    }
    return frozenset(block for block, entry in enumerate(entries) if entry in found) if found else frozenset()


def _read_bitmaps(device: Device, vg: VolumeGroup, members: Sequence[Member]) -> None:
    """The bitmaps of blocks that are there and not known to be full."""
    wanted = [
        (member, block)
        for member in members
        for block, entry in enumerate(member.entries)
        if entry != UNUSED and not member.full[block]
    ]
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        pieces = [vg.ranges(one.lv, blocks.bitmap_at(one.entries[block]), SECTOR) for one, block in batch]
        for (member, block), data in zip(batch, read_pieces(device, pieces)):
            member.bitmaps.append(block, data)
