# SPDX-License-Identifier: LGPL-2.1-only
"""The bytes of the new image: what is written before the commit, what is copied, and what is left for afterwards. Pure.

before the mark     head: footer, header, block table, batmap; the end's footer; new bitmaps     into free extents
                    copies: blocks into free extents, missing sectors into blocks that stay     nobody sees them
with the contents   bitmaps of the blocks that were filled: all ones                            says the same
after the commit    bitmaps of holes: all zeros; then their entries in the block table          density
"""

from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Range, align_down
from relvmoiscsi.formats.checksum import vhd_checksum
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.vhd import blocks, layout
from relvmoiscsi.formats.vhd.blocks import BLOCK_BYTES, FULL, UNIT, UNUSED, Batmap
from relvmoiscsi.formats.vhd.layout import DynamicHeader, Footer
from relvmoiscsi.resignature.one_vdi.homes import Home
from relvmoiscsi.resignature.one_vdi.layout import EXTENT_BYTES, Layout, expanded
from relvmoiscsi.resignature.one_vdi.members import Member
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Rebuilt, TableUnit, Unseen


class Image(NamedTuple):
    """How the new image is made, in places of the device."""

    footer: Footer
    header: DynamicHeader
    unseen: Unseen
    rebuilt: Rebuilt


class _Making:
    """What the parts of an image share."""

    def __init__(self, vg: VolumeGroup, members: Sequence[Member], made: Layout, lv: LogicalVolume) -> None:
        self.vg, self.members, self.layout, self.lv = vg, members, made, lv
        self.fresh = made.fresh_extents()
        self.copied = {home.block for home in made.copied}
        self.homes: Dict[int, Home] = {home.block: home for home in [*made.staying, *made.copied]}

    def at(self, offset: int, length: int) -> List[Range]:
        """Where bytes of the new volume lie."""
        return self.vg.ranges(self.lv, offset, length)

    def chunk(self, offset: int, data: bytes) -> Iterator[Chunk]:
        done = 0
        for part in self.at(offset, len(data)):
            yield Chunk(part.offset, data[done : done + part.length])
            done += part.length

    def copy(self, offset: int, member: int, source: int, length: int) -> Iterator[Copy]:
        """`length` bytes from an image's volume to the new one."""
        targets = self.at(offset, length)
        sources = self.vg.ranges(self.members[member].lv, source, length)
        return _paired(targets, sources)

    def zeros(self, offset: int, length: int) -> Iterator[Copy]:
        for part in self.at(offset, length):
            yield Copy(part.offset, None, part.length)

    def bitmap(self, home: Home) -> int:
        """Bytes from the start of the new volume."""
        return blocks.bitmap_at(self.layout.entry(self.layout.slots[home.block]))

    def bits(self, home: Home) -> int:
        """The new bitmap: a block that stays is filled up wholly, one that is copied has what the images have."""
        if home.block in self.copied:
            return home.all_bits
        return FULL if home.must_be_filled else home.bits

    def unit(self, home: Home) -> int:
        return align_down(self.bitmap(home), UNIT)

    def is_fresh_slot(self, slot: int) -> bool:
        """Whether the bitmap of a slot is in a new extent: then it is written before the commit."""
        return self.is_fresh(blocks.bitmap_at(self.layout.entry(slot)))

    def is_fresh(self, offset: int) -> bool:
        return offset // EXTENT_BYTES in self.fresh


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


def make_image(
    vg: VolumeGroup,
    members: Sequence[Member],
    made: Layout,
    lv: LogicalVolume,
    lv_id: str,
    expected: Sequence[Chunk],
) -> Image:
    """Everything there is to write. `lv` is the new volume, `lv_id` its new id, `expected` what the old images held."""
    making = _Making(vg, members, made, lv)
    new_footer = plain_footer(members[0].footer)
    header = plain_header(members[made.primary].header)
    head = _head(making, new_footer, header)
    chunks = [*making.chunk(0, head), *_bitmaps(making)]
    chunks += making.chunk(made.size_bytes - Footer.SIZE, bytes(new_footer))
    rebuilt = Rebuilt(
        lv_id=lv_id,
        segments=tuple((one.start_extent, one.extent_count, one.first_pe) for one in lv.segments),
        full=tuple(_full_units(making)),
        empty=tuple(_hole_units(making)),
        table=tuple(_table_writes(making, head)),
    )
    copies = tuple(_shadows(making)), tuple(_fills_and_copies(making))
    return Image(new_footer, header, Unseen(tuple(expected), tuple(chunks), copies), rebuilt)


def plain_footer(footer: Footer) -> Footer:
    """The footer of an image that is a leaf without a parent."""
    plain = footer.replace(type=layout.TYPE_DYNAMIC, hidden=0)
    return plain.replace(checksum=vhd_checksum(bytes(plain), Footer.checksum.offset))


def plain_header(header: DynamicHeader) -> DynamicHeader:
    """The header without a parent."""
    plain = header.replace(
        parent_uuid=bytes(16),
        parent_timestamp=0,
        parent_name=bytes(DynamicHeader.parent_name.size),
        locators=bytes(DynamicHeader.locators.size),
    )
    return plain.replace(checksum=vhd_checksum(bytes(plain), DynamicHeader.checksum.offset))


def _entries(making: _Making) -> List[int]:
    """The block table without the blocks that get holes in old extents."""
    found = [UNUSED] * making.members[making.layout.primary].header.max_bat_entries
    for block, slot in making.layout.slots.items():
        found[block] = making.layout.entry(slot)
    for hole in making.layout.holes:
        if making.is_fresh_slot(hole.slot):
            found[hole.block] = making.layout.entry(hole.slot)
    return found


def _head(making: _Making, footer: Footer, header: DynamicHeader) -> bytes:
    """All bytes of the volume in front of slot 0's bitmap."""
    primary, leaf = making.members[making.layout.primary], making.members[0]
    place = primary.geometry
    data = bytearray(making.layout.first_unit * UNIT + UNIT - SECTOR)
    table = blocks.table_bytes(_entries(making))
    data[: Footer.SIZE] = bytes(footer)
    data[layout.HEADER_OFFSET : layout.HEADER_OFFSET + DynamicHeader.SIZE] = bytes(header)
    data[place.table.offset : place.batmap_header] = table.ljust(place.batmap_header - place.table.offset, b"\xff")
    full = _batmap(making, primary.batmap_header.batmap_sectors * SECTOR)
    version = layout.BATMAP_VERSIONS[-1]
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
    for home in making.homes.values():
        if home.block < covered and making.bits(home) == FULL:
            found.set(home.block)
    return found


def _bitmaps(making: _Making) -> Iterator[Chunk]:
    """Bitmaps in free extents, with the padding in front of them; that of slot 0 belongs to the head."""
    for home in making.homes.values():
        at = making.bitmap(home)
        if not making.is_fresh(at):
            continue
        data = blocks.bitmap_bytes(making.bits(home))
        if making.layout.slots[home.block]:
            yield from making.chunk(at - at % UNIT, bytes(at % UNIT) + data)
        else:
            yield from making.chunk(at, data)
    for hole in making.layout.holes:
        at = blocks.bitmap_at(making.layout.entry(hole.slot))
        if making.is_fresh(at):
            first = at - at % UNIT if hole.slot else at  # in front of slot 0's bitmap are headers
            yield from making.chunk(first, bytes(at - first + SECTOR))


# --- what is copied


def _shadows(making: _Making) -> List[Copy]:
    """The data of blocks that stay, as far as it lies in an extent that is replaced by a new one."""
    found: List[Copy] = []
    made = making.layout
    moved_to = {extent: (piece, extent - piece.at + piece.first) for piece in made.moved
                for extent in range(piece.at, piece.at + piece.end - piece.first)}  # fmt: skip
    for home in made.staying:
        start = blocks.data_at(made.entry(made.slots[home.block]))
        for part in _by_extent(start, BLOCK_BYTES):
            extent = part.offset // EXTENT_BYTES
            if extent not in making.fresh:
                continue
            if extent < made.fresh_head:
                member, source = made.primary, part.offset
            else:
                piece, old = moved_to[extent]
                member, source = piece.member, part.offset + (old - extent) * EXTENT_BYTES
            found += making.copy(part.offset, member, source, part.length)
    return found


def _by_extent(offset: int, length: int) -> Iterator[Range]:
    end = offset + length
    while offset < end:
        size = min(end - offset, EXTENT_BYTES - offset % EXTENT_BYTES)
        yield Range(offset, size)
        offset += size


def _fills_and_copies(making: _Making) -> List[Copy]:
    found: List[Copy] = []
    for home in making.layout.copied:
        found += _sectors(making, home, [(home.member, home.bits), *home.below])
    for home in making.layout.staying:
        if home.must_be_filled:
            copies = list(_sectors(making, home, home.below, home.bits))
            found += copies
            if not making.is_fresh(making.bitmap(home)):
                found += _in_the_old_image(making, copies)
    return found


def _in_the_old_image(making: _Making, copies: Iterable[Copy]) -> Iterator[Copy]:
    """The same sectors where the old image has them, if the end of a block lies in an extent that is replaced.

    The old bitmap will say that they are there.
    """
    made, extents = making.layout, expanded(making.lv)
    replaced = {extents[extent]: extent for extent in making.fresh if extent >= made.fresh_head}
    for copy in copies:
        pe, offset = divmod(copy.target - making.vg.pe_start, EXTENT_BYTES)
        if pe not in replaced:
            continue
        extent = replaced[pe]
        for piece in made.moved:
            if piece.at <= extent < piece.at + piece.end - piece.first:
                old = expanded(making.members[piece.member].lv)[extent - piece.at + piece.first]
                yield copy._replace(target=making.vg.pe_start + old * EXTENT_BYTES + offset)


def _sectors(making: _Making, home: Home, sources: Iterable[Tuple[int, int]], there: int = 0) -> Iterator[Copy]:
    """The sectors of a block from where they are; zeros where nobody has them."""
    start = blocks.data_at(making.layout.entry(making.layout.slots[home.block]))
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
        if home.must_be_filled and not making.is_fresh(making.bitmap(home)):
            yield making.at(making.unit(home), UNIT)[0].offset


def _hole_units(making: _Making) -> Iterator[int]:
    for hole in making.layout.holes:
        if not making.is_fresh_slot(hole.slot):
            at = align_down(blocks.bitmap_at(making.layout.entry(hole.slot)), UNIT)
            yield making.at(at, UNIT)[0].offset


def _table_writes(making: _Making, head: bytes) -> Iterator[TableUnit]:
    """The parts of the block table in which holes are given away: whole units, which is what a cut may tear."""
    table = making.members[making.layout.primary].geometry.table
    after = bytearray(head)
    touched = set()
    for hole in making.layout.holes:
        if making.is_fresh_slot(hole.slot):
            continue
        at = table.offset + 4 * hole.block
        after[at : at + 4] = blocks.table_bytes([making.layout.entry(hole.slot)])
        touched.add(align_down(at, UNIT))
    for at in sorted(touched):
        old, new = head[at : at + UNIT], bytes(after[at : at + UNIT])
        first, end = max(0, table.offset - at), min(len(old), table.end - at)
        yield TableUnit(making.at(at, len(old))[0].offset, old, new, first, end)
