# SPDX-License-Identifier: LGPL-2.1-only
"""The bytes of the new image: what is written before the commit, what is copied, and what is left for afterwards. Pure.

before the mark     head: footer, header, block table, batmap; the end's footer; new bitmaps     into free extents
                    copies: blocks into free extents, missing sectors into blocks that stay     nobody sees them
with the contents   bitmaps of the blocks that were filled: all ones                            says the same
after the commit    bitmaps of holes: all zeros; then their entries in the block table          density
"""

from array import array
from itertools import chain
from typing import Dict, Iterable, Iterator, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Range, align_down
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup, extents_of
from relvmoiscsi.formats.vhd import DynamicHeader, Footer, sealed
from relvmoiscsi.formats.vhd_blocks import BLOCK_BYTES, FULL, UNIT, UNUSED, Batmap
from relvmoiscsi.resignature.one_vdi.extents import EXTENT_BYTES
from relvmoiscsi.resignature.one_vdi.vhd.homes import Home, Sectors, sectors_of
from relvmoiscsi.resignature.one_vdi.vhd.layout import Hole, Layout
from relvmoiscsi.resignature.one_vdi.vhd.members import Member, bitmaps_as_read
from relvmoiscsi.resignature.one_vdi.way import Image, Places
from relvmoiscsi.resignature.protocol.rebuilt import Again, Copy, Expected, Rebuilt, TableUnit, Unseen


class _Making(Places):
    """What the parts of an image share."""

    def __init__(self, vg: VolumeGroup, members: Sequence[Member], made: Layout, lv: LogicalVolume) -> None:
        super().__init__(vg, lv, [member.lv for member in members])
        self.members, self.layout = members, made
        self._copied = bytearray(len(members[0].entries))  # a byte for each block of the disk
        for home in made.copied:
            self._copied[home.block] = 1

    @property
    def homes(self) -> Iterator[Home]:
        return chain(self.layout.staying, self.layout.copied)

    def slot(self, home: Home) -> int:
        return self.layout.slots[home.block]

    def bits(self, home: Home) -> int:
        """The new bitmap: a block that stays is filled up wholly, one that is copied has what the images have."""
        if self._copied[home.block]:
            return self.sectors(home).all_bits
        return FULL if home.must_be_filled else self.sectors(home).bits

    def sectors(self, home: Home) -> Sectors:
        return sectors_of(self.members, home)

    def bitmap(self, slot: int) -> int:
        """Bytes from the start of the new volume."""
        return blocks.bitmap_at(self.layout.entry(slot))

    def unit(self, slot: int) -> int:
        """Where on the device the unit lies that ends in the slot's bitmap: in one extent, so in one piece."""
        return self.at(align_down(self.bitmap(slot), UNIT), UNIT)[0].offset

    def is_fresh(self, slot: int) -> bool:
        """Whether the bitmap of a slot is in a new extent: then it is written before the commit."""
        return self.bitmap(slot) // EXTENT_BYTES in self.layout.fresh

    def later_holes(self) -> Iterator[Hole]:
        """Those that the old image may use until the commit."""
        return (hole for hole in self.layout.holes if not self.is_fresh(hole.slot))


def make_image(
    vg: VolumeGroup,
    members: Sequence[Member],
    made: Layout,
    lv: LogicalVolume,
    lv_id: str,
    expected: Sequence[Expected],
) -> Image:
    """Everything there is to write. `lv` is the new volume, `lv_id` its new id, `expected` what the old images held
    beside their bitmaps.
    """
    making = _Making(vg, members, made, lv)
    new_footer = plain_footer(members[0].footer)
    header = plain_header(members[made.primary].header)
    head = _head(making, new_footer, header)
    chunks = [*making.chunks(0, head), *making.chunks(made.size_bytes - Footer.SIZE, bytes(new_footer))]
    rebuilt = Rebuilt(
        lv_id=lv_id,
        segments=lv.segments,
        full=array("q", _full_units(making)),
        empty=array("q", (making.unit(hole.slot) for hole in making.later_holes())),
        table=tuple(_table_units(making, head)),
    )
    copies = Again(lambda: _shadows(making)), Again(lambda: _fills_and_copies(making))
    bitmaps = Again(lambda: _bitmaps(making))
    unchanged = Again(lambda: bitmaps_as_read(vg, members))
    return Image(Unseen(tuple(expected), unchanged, tuple(chunks), copies, bitmaps), rebuilt)


def plain_footer(footer: Footer) -> Footer:
    """The footer of an image that is a leaf without a parent."""
    return sealed(footer.replace(type=vhd.TYPE_DYNAMIC, hidden=0))


def plain_header(header: DynamicHeader) -> DynamicHeader:
    """The header without a parent."""
    return sealed(
        header.replace(
            parent_uuid=bytes(16),
            parent_timestamp=0,
            parent_name=bytes(DynamicHeader.parent_name.size),
            locators=bytes(DynamicHeader.locators.size),
        )
    )


def _entries(making: _Making) -> "array[int]":
    """The block table without the blocks that get holes in old extents."""
    found = array("I", [UNUSED]) * making.members[making.layout.primary].header.max_bat_entries
    for block, slot in making.layout.slots.items():
        found[block] = making.layout.entry(slot)
    for hole in making.layout.holes:
        if making.is_fresh(hole.slot):
            found[hole.block] = making.layout.entry(hole.slot)
    return found


def _head(making: _Making, footer: Footer, header: DynamicHeader) -> bytes:
    """All bytes of the volume in front of slot 0's bitmap."""
    primary, leaf = making.members[making.layout.primary], making.members[0]
    place = primary.geometry
    data = bytearray(making.layout.first_unit * UNIT + UNIT - SECTOR)
    table = blocks.table_bytes(_entries(making))
    data[: Footer.SIZE] = bytes(footer)
    data[vhd.HEADER_OFFSET : vhd.HEADER_OFFSET + DynamicHeader.SIZE] = bytes(header)
    data[place.table.offset : place.batmap_header] = table.ljust(place.batmap_header - place.table.offset, b"\xff")
    full = _batmap(making, primary.batmap_header.batmap_sectors * SECTOR)
    version = vhd.BATMAP_VERSIONS[-1]
    batmap_header = leaf.batmap_header.replace(
        batmap_offset=primary.batmap_header.batmap_offset,
        batmap_sectors=primary.batmap_header.batmap_sectors,
        version=version,
        checksum=blocks.batmap_checksum(version, bytes(full), leaf.virtual_size),
    )
    data[place.batmap_header : place.batmap_header + SECTOR] = bytes(batmap_header)
    at = primary.batmap_header.batmap_offset
    data[at : at + len(bytes(full))] = bytes(full)
    return bytes(data)


def _batmap(making: _Making, size: int) -> Batmap:
    found = Batmap(bytes(size))
    covered = 8 * blocks.checked_bytes(making.members[0].virtual_size)
    for home in making.homes:
        if home.block < covered and making.bits(home) == FULL:
            found.set(home.block)
    return found


def _bitmaps(making: _Making) -> Iterator[Chunk]:
    """Bitmaps in free extents, with the padding in front of them; in front of slot 0's are headers."""
    for home in making.homes:
        if making.is_fresh(making.slot(home)):
            yield from _bitmap(making, making.slot(home), making.bits(home))
    for hole in making.layout.holes:
        if making.is_fresh(hole.slot):
            yield from _bitmap(making, hole.slot, 0)


def _bitmap(making: _Making, slot: int, bits: int) -> Iterator[Chunk]:
    padding = UNIT - SECTOR if slot else 0
    yield from making.chunks(making.bitmap(slot) - padding, bytes(padding) + blocks.bitmap_bytes(bits))


# --- what is copied


def _shadows(making: _Making) -> Iterator[Copy]:
    """The data of blocks that stay, as far as it lies in an extent that is replaced by a new one.

    Of a block that is filled up, only the sectors that are there: nothing is written twice.
    """
    made = making.layout
    for home in made.staying:
        start = blocks.data_at(made.entry(making.slot(home)))
        if not any(part.offset // EXTENT_BYTES in made.fresh for part in _by_extent(start, BLOCK_BYTES)):
            continue
        bits = making.sectors(home).bits if home.must_be_filled else FULL
        for run in blocks.runs(bits):
            for part in _by_extent(start + run.offset * SECTOR, run.length * SECTOR):
                extent = part.offset // EXTENT_BYTES
                if extent in made.fresh:
                    member, old = made.source_of(extent)
                    source = part.offset + (old - extent) * EXTENT_BYTES
                    yield from making.copy(part.offset, member, source, part.length)


def _by_extent(offset: int, length: int) -> Iterator[Range]:
    end = offset + length
    while offset < end:
        size = min(end - offset, EXTENT_BYTES - offset % EXTENT_BYTES)
        yield Range(offset, size)
        offset += size


def _fills_and_copies(making: _Making) -> Iterator[Copy]:
    for home in making.layout.copied:
        found = making.sectors(home)
        yield from _sectors(making, home, [(home.member, found.bits), *found.below])
    replaced = _replaced(making)
    for home in making.layout.staying:
        if home.must_be_filled:
            in_place = not making.is_fresh(making.slot(home))
            found = making.sectors(home)
            for copy in _sectors(making, home, found.below, found.bits):
                yield copy
                old = replaced.get(align_down(copy.target - making.vg.pe_start, EXTENT_BYTES))
                if in_place and old is not None:
                    yield copy._replace(target=copy.target + old)


def _replaced(making: _Making) -> Dict[int, int]:
    """How far from a new extent the old one is whose place it takes, by the new one's first byte; but for the head.

    Where a block reaches into such an extent and its bitmap stays, the old bitmap will say that its sectors are there:
    so they are written to the old extent as well.
    """
    made, found = making.layout, {}
    new = extents_of(making.lv.segments)
    for extent in made.fresh:
        if any(extent in piece.extents for piece in made.moved):
            member, old = made.source_of(extent)
            pe = extents_of(making.members[member].lv.segments)[old]
            found[new[extent] * EXTENT_BYTES] = (pe - new[extent]) * EXTENT_BYTES
    return found


def _sectors(making: _Making, home: Home, sources: Iterable[Tuple[int, int]], there: int = 0) -> Iterator[Copy]:
    """The sectors of a block from where they are; zeros where nobody has them."""
    start = blocks.data_at(making.layout.entry(making.slot(home)))
    for member, bits in sources:
        there |= bits
        source = blocks.data_at(making.members[member].entries[home.block])
        for run in blocks.runs(bits):
            at = run.offset * SECTOR
            yield from making.copy(start + at, member, source + at, run.length * SECTOR)
    for run in blocks.runs(FULL ^ there):
        yield from making.zeros(start + run.offset * SECTOR, run.length * SECTOR)


# --- what is left


def _full_units(making: _Making) -> Iterator[int]:
    """Bitmaps of filled blocks that are where they were."""
    for home in making.layout.staying:
        slot = making.slot(home)
        if home.must_be_filled and not making.is_fresh(slot):
            yield making.unit(slot)


def _table_units(making: _Making, head: bytes) -> Iterator[TableUnit]:
    """The parts of the block table in which holes are given away: whole units, which is what a cut may tear."""
    table = making.members[making.layout.primary].geometry.table
    after = bytearray(head)
    touched = set()
    for hole in making.later_holes():
        at = table.offset + blocks.ENTRY_BYTES * hole.block
        after[at : at + blocks.ENTRY_BYTES] = blocks.table_bytes([making.layout.entry(hole.slot)])
        touched.add(align_down(at, UNIT))
    for at in sorted(touched):
        old, new = head[at : at + UNIT], bytes(after[at : at + UNIT])
        first, end = max(0, table.offset - at), min(len(old), table.end - at)
        yield TableUnit(making.at(at, len(old))[0].offset, old, new, first, end)
