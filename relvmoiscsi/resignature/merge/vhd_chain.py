# SPDX-License-Identifier: LGPL-2.1-only
"""A chain of VHDs as read, and the image that owns each block of the disk.

The owner of a block is the topmost image that has a sector of the block. The run fills the block in its owner: parents
give the missing sectors, and zeros fill the sectors that no image has. Until the run sets the bits of the filled
sectors, no reader of the owner sees these sectors. The run copies these blocks instead:

    the last block of a disk, because a block that ends behind the disk may not become full
    a block with sectors behind the end of the disk of its image, or of an image above
    a block in whose padding, in front of its bitmap, another block ends
    a block with a page of 4 KiB that has both sectors in use and sectors to fill, when a cut may tear a page

A disk may have a million blocks. So owned blocks are rows of numbers, without bitmaps. `sectors_of` computes the
bitmaps of one block from the images.
"""

import zlib
from array import array
from bisect import bisect_left
from itertools import compress
from typing import FrozenSet, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, align_up, in_pieces, read_pieces
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Refused, shown_bytes
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import VolumeGroup
from relvmoiscsi.formats.ondisk import big_endian
from relvmoiscsi.formats.vhd import HEAD_BYTES, BatmapHeader, Footer, Vhd
from relvmoiscsi.formats.vhd_blocks import BLOCK_SECTORS, FULL, UNIT, UNUSED, Batmap
from relvmoiscsi.resignature.merge.compact import Memory
from relvmoiscsi.resignature.reading.lun_contents import Volume
from relvmoiscsi.resignature.reading.read_cache import uncached

_BATCH = 2048  #: bitmaps in a batch of reads
#: memory as measured: for a block of the disk in each image, and for a bitmap
_BYTES_FOR_BLOCK, _BYTES_FOR_BITMAP = 16, 200
#: the headers of the largest VHD have half of this: the writer of a LUN claims their end
_MOST_HEADER_BYTES = 16 << 20


class Bitmaps:
    """Bitmaps by block, compressed: an image may have a million bitmaps, most of them with few runs of bits."""

    def __init__(self) -> None:
        self._blocks = array("I")
        self._ends = array("Q", [0])
        self._packed = bytearray()

    def __getitem__(self, block: int) -> bytes:
        index = bisect_left(self._blocks, block)
        return zlib.decompress(self._packed[self._ends[index] : self._ends[index + 1]])

    def append(self, block: int, data: bytes) -> None:
        """Add the bitmap of a block; blocks must come in ascending order."""
        self._packed += zlib.compress(data, 1)
        self._blocks.append(block)
        self._ends.append(len(self._packed))


class VhdMember:
    """An image of a chain. `read_members` reads its tables.

    Raises Refused or Malformed for an image that tapdisk has not made.
    """

    batmap_header: BatmapHeader
    entries: Sequence[int]  #: for each block of the disk; UNUSED for a block that the image does not have
    full: Batmap

    def __init__(self, volume: Volume) -> None:
        content = volume.content
        assert isinstance(content, Vhd)  # `vdi_choice` refuses all other contents
        self.name, self.lv, self.volume_bytes = volume.name.text, volume.lv, volume.size
        self.virtual_size = content.virtual_size  #: bytes
        self.footer, self.header = content.read_footer, content.header
        self.block_table = content.block_table()
        self.bitmaps = Bitmaps()  #: of the blocks that the image has and that the batmap does not mark as full
        #: blocks in whose padding another block ends; no program of SM makes such blocks
        self.crowded: FrozenSet[int] = frozenset()
        if not vhd.may_have_batmap(self.footer):
            app, version = shown_bytes(self.footer.creator_app.rstrip(b"\0")), self.footer.creator_version
            raise Refused(f"{self.name} was made by {app}, version 0x{version:08x}, not by the storage manager.")
        if self.header.block_size != blocks.BLOCK_BYTES:
            raise Refused(f"{self.name} has blocks of {self.header.block_size} bytes, not of 2 MiB.")
        if blocks.block_count(self.virtual_size) > self.header.max_bat_entries:
            problem = "its block table is too small for its virtual disk"
            raise Malformed("VHD header", Place(self.name, 0), problem)

    def verify_blocks(self) -> None:
        """Find the crowded blocks. Raises Malformed for a block that does not lie apart from all other parts."""
        first, last_sector = blocks.end_of_headers(self.header, self.batmap_header), self.volume_bytes - Footer.SIZE
        if first > _MOST_HEADER_BYTES:
            problem = f"its headers end at {first}, and those of the largest VHD end before {_MOST_HEADER_BYTES}"
            raise Malformed("VHD header", Place(self.name, 0), problem)
        taken = sorted(entry for entry in self.entries if entry != UNUSED)
        crowded = set()  # entries in whose padding another block ends
        for entry, following in zip(taken, taken[1:] + [self.volume_bytes // SECTOR]):
            where = Place(self.name, blocks.bitmap_at(entry) if entry else 0)
            end = blocks.data_at(entry) + blocks.BLOCK_BYTES
            if blocks.bitmap_at(entry) < first or end > last_sector:
                raise Malformed("VHD block", where, "it does not lie between the headers and the last sector")
            if entry + 1 + blocks.BLOCK_SECTORS > following:
                raise Malformed("VHD block", where, "it overlaps another block")
            if end > align_down(blocks.bitmap_at(following), UNIT):
                crowded.add(following)
        crowded.discard(self.volume_bytes // SECTOR)  # the end of the volume follows the last block
        if crowded:
            self.crowded = frozenset(block for block, entry in enumerate(self.entries) if entry in crowded)

    @property
    def first_unit(self) -> int:
        """The unit of slot 0: behind the headers; in some geometries one unit later, behind the parent locators."""
        first = blocks.first_slot_unit(self.header, self.batmap_header)
        unit = blocks.unit_of(min(self.entries, default=UNUSED))
        return first + 1 if unit is not None and (unit - first) % blocks.SLOT_UNITS == 1 else first

    def partial(self) -> Iterator[int]:
        """The blocks that the image has and that the batmap does not mark as full."""
        return (block for block, entry in enumerate(self.entries) if entry != UNUSED and not self.full[block])

    def has(self, block: int) -> bool:
        return block < len(self.entries) and self.entries[block] != UNUSED

    def bits(self, block: int) -> int:
        """The bitmap of a block's sectors that this image has."""
        if not self.has(block):
            return 0
        return FULL if self.full[block] else int.from_bytes(self.bitmaps[block], "big")


def read_members(device: Device, vg: VolumeGroup, volumes: Sequence[Volume]) -> Tuple[VhdMember, ...]:
    """The images of a chain, the leaf first. Raises FormatError or Refused for an image that tapdisk has not made.

    Reads the tables of all images in one batch, then all batmaps, then bitmaps in batches.
    """
    members = tuple(map(VhdMember, volumes))
    memory = Memory(members[0].name)
    memory.take(_BYTES_FOR_BLOCK * sum(member.block_table.length // 4 for member in members))
    pieces: List[List[Range]] = []
    for member in members:
        pieces.append(vg.ranges(member.lv, *member.block_table))
        pieces.append(vg.ranges(member.lv, vhd.batmap_header_at(member.header), BatmapHeader.SIZE))
    read = iter(read_pieces(device, pieces))
    for member in members:
        where = Place(member.name, vhd.batmap_header_at(member.header))
        member.entries = big_endian("I", next(read))
        member.batmap_header = vhd.read_batmap_header(next(read), where)
        vhd.verify_parts(member.header, member.name, member.volume_bytes, member.batmap_header)
    pieces = []
    for member in members:
        length = min(member.batmap_header.batmap_sectors * SECTOR, blocks.checked_bytes(member.virtual_size))
        pieces.append(vg.ranges(member.lv, member.batmap_header.batmap_offset, length))
    for member, batmap in zip(members, read_pieces(device, pieces)):
        where = Place(member.name, member.batmap_header.batmap_offset)
        try:
            member.full = blocks.verify_batmap(member.batmap_header, batmap, member.virtual_size, where)
        except BadChecksum:
            if member is members[0]:
                raise
            member.full = Batmap(b"")  # tapdisk opens a parent without its batmap, and reads all bitmaps
        member.verify_blocks()
    memory.take(_BYTES_FOR_BITMAP * sum(sum(1 for _ in member.partial()) for member in members))
    wanted = [(member, block) for member in members for block in member.partial()]
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        pieces = [vg.ranges(one.lv, blocks.bitmap_at(one.entries[block]), SECTOR) for one, block in batch]
        for (member, block), data in zip(batch, read_pieces(uncached(device), pieces)):
            member.bitmaps.append(block, data)
    return members


def built_on(vg: VolumeGroup, members: Iterable[VhdMember]) -> List[Range]:
    """The ranges that change when a program writes to an image: headers, tables, and the footer in the last sector."""
    found: List[Range] = []
    for member in members:
        table = align_up(blocks.ENTRY_BYTES * len(member.entries), SECTOR)
        full = blocks.checked_bytes(member.virtual_size)
        found += vg.ranges(member.lv, 0, HEAD_BYTES)
        found += vg.ranges(member.lv, member.header.table_offset, table)
        found += vg.ranges(member.lv, member.batmap_header.batmap_offset, full)
        found += vg.ranges(member.lv, vg.size_of(member.lv) - SECTOR, SECTOR)
    return found


def bitmaps_as_read(vg: VolumeGroup, members: Iterable[VhdMember]) -> Iterator[Chunk]:
    """The bitmaps as read. A write to sectors that a block lacked changes its bitmap, and no range of `built_on`."""
    for member in members:
        for block in member.partial():
            place = vg.ranges(member.lv, blocks.bitmap_at(member.entries[block]), SECTOR)
            yield from in_pieces(place, member.bitmaps[block])


# --- which image owns each block


class OwnedBlock(NamedTuple):
    """A block of the disk that an image has."""

    block: int
    owner: int  #: index in the chain
    filled_sectors: int = 0  #: number of sectors that the owner lacks; 0 when no parent has any of them
    must_be_copied: bool = False


class OwnedBlocks:
    """A list of owned blocks that takes eight bytes for a block."""

    def __init__(self, found: Iterable[OwnedBlock] = ()) -> None:
        self._columns = [array(code) for code in "IBHB"]
        for owned in found:
            self.append(owned)

    def append(self, owned: OwnedBlock) -> None:
        for column, number in zip(self._columns, owned):
            column.append(number)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[OwnedBlock]:
        return map(OwnedBlock, *self._columns)


def find_owners(members: Sequence[VhdMember], tears_pages: bool) -> OwnedBlocks:
    """All blocks that any image has, in the order of the disk. `tears_pages`: a cut may tear a page of 4 KiB."""
    # this is fast for a large disk with few blocks
    there = bytearray(len(members[0].entries))
    for member in members:
        for block, entry in zip(range(len(there)), member.entries):
            if entry != UNUSED:
                there[block] = 1
    found = OwnedBlocks()
    for block in compress(range(len(there)), there):
        parts = list(sectors_of(block, members))
        if not parts:
            continue
        index, bits = parts[0]
        # sectors of the owner behind the end of its own disk, or of the disk of an image above
        seen = FULL
        for number, member in enumerate(members[: index + 1]):
            seen &= _seen(block, member, number)
        must_be_copied = seen != FULL and bool(members[index].bits(block) & ~seen)
        filled = 0
        if len(parts) > 1:
            filled = BLOCK_SECTORS - bin(bits).count("1")
            ends_here = members[0].virtual_size // SECTOR < (block + 1) * BLOCK_SECTORS
            has_mixed_pages = tears_pages and bool(set(bits.to_bytes(SECTOR, "big")) - {0, 255})
            must_be_copied = must_be_copied or ends_here or block in members[index].crowded or has_mixed_pages
        found.append(OwnedBlock(block, index, filled, must_be_copied))
    return found


def sectors_of(block: int, members: Sequence[VhdMember]) -> Iterator[Tuple[int, int]]:
    """The images from which a guest reads sectors of a block, the owner first: the index in the chain, and the bitmap.

    A guest reads zeros behind the end of a parent's disk, also when a lower image has sectors there.
    """
    found, seen = 0, FULL
    for index, member in enumerate(members):
        seen &= _seen(block, member, index)
        new = member.bits(block) & seen & ~found
        if new:
            yield index, new
        found |= new
        if found == seen:
            return


def _seen(block: int, member: VhdMember, index: int) -> int:
    """The bitmap of the sectors of a block in front of the end of the image's disk; all sectors for the leaf."""
    count = max(0, member.virtual_size // SECTOR - block * BLOCK_SECTORS)
    return FULL ^ FULL >> count if index else FULL
