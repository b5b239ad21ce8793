# SPDX-License-Identifier: LGPL-2.1-only
"""The strategies to merge a chain of VHDs, and the bytes of the new image. Each strategy keeps another image in place.

before step 2       head (footer, header, block table, batmap), footer in the last sector, new bitmaps: to free extents
                    copies: blocks to free extents, missing sectors to blocks that stay (no bitmap shows them yet)
with the contents   bitmaps of filled blocks: all ones (old image and new image then have the same content)
after the commit    bitmaps of holes: all zeros; then the entries of holes in the block table
"""

from array import array
from functools import reduce
from hashlib import sha256
from itertools import chain
from operator import or_
from typing import Iterable, Iterator, Sequence, Tuple

from relvmoiscsi.device import SECTOR, Chunk, Device, Range, align_down, torn_bytes
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats import vhd_blocks as blocks
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.ondisk import big_endian
from relvmoiscsi.formats.vhd import DynamicHeader, Footer, Vhd, sealed
from relvmoiscsi.formats.vhd_blocks import BLOCK_BYTES, FULL, UNIT, UNUSED, Batmap
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, MergeStrategy, Room, VolumeRanges, room_on
from relvmoiscsi.resignature.merge.vdi_choice import Chain
from relvmoiscsi.resignature.merge.vhd_chain import (
    OwnedBlock,
    VhdMember,
    bitmaps_as_read,
    built_on,
    find_owners,
    read_members,
    sectors_of,
)
from relvmoiscsi.resignature.merge.vhd_layout import NO_SLOT, VhdLayout, layouts, unused_extents
from relvmoiscsi.resignature.protocol.merged_image import Again, BlockCopy, Expected, MergedImage, TableUnit, Unseen
from relvmoiscsi.resignature.reading.lun_contents import Lun


def strategies(device: Device, lun: Lun, found: Chain, seed: int) -> Iterator[MergeStrategy]:
    """All strategies, likely the cheapest first. `seed` chooses among the free extents.

    Raises Refused when there is no strategy, FormatError for an image that cannot be read.
    """
    if device.block_size != SECTOR:
        raise Refused(f"{device.name} has blocks of {device.block_size} bytes: VHD chains on it are not made one VDI.")
    if lun.vg.pe_start % UNIT:
        where = f"begin at byte {lun.vg.pe_start}, which is no multiple of {UNIT}"
        raise Refused(f"The extents of {device.name} {where}: VHD chains on it are not made one VDI.")
    members = read_members(device, lun.vg, found.members)
    for member in members:
        if any(member.batmap_header.keyhash):
            raise Refused(f"{member.name} is encrypted: its blocks cannot be put together without the key.")
    owned = find_owners(members, tears_pages=torn_bytes(device) > SECTOR)
    thick = lun.vg.size_of(members[0].lv) >= blocks.formula_size(members[0].virtual_size)
    room = room_on(lun, found, unused_extents(members[0]), seed)
    for made in layouts(members, owned, thick):
        yield VhdMerge(lun.vg, members, made, room)


class VhdMerge(MergeStrategy):
    """The merge strategy of a VHD layout."""

    def __init__(self, vg: VolumeGroup, members: Sequence[VhdMember], made: VhdLayout, room: Room) -> None:
        super().__init__(made.cost, made.retained_extents(), made.fresh, room)
        self._vg, self._members, self._layout = vg, members, made
        # footer and header without a parent
        self._footer = sealed(members[0].footer.replace(type=vhd.TYPE_DYNAMIC, hidden=0))
        self._header = sealed(
            members[made.primary].header.replace(
                parent_uuid=bytes(16),
                parent_timestamp=0,
                parent_name=bytes(DynamicHeader.parent_name.size),
                locators=bytes(DynamicHeader.locators.size),
            )
        )
        self.content = Vhd(self._footer, self._footer, None, False, self._header, (), None)

    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Tuple[Unseen, MergedImage]:
        vg, members, made = self._vg, self._members, self._layout
        wanted = built_on(vg, members)
        expected = tuple(Expected(part, sha256(data).digest()) for part, data in zip(wanted, device.read(wanted)))
        new = _NewImage(vg, members, made, lv)
        head = new.head(self._footer, self._header)
        chunks = (*new.chunks(0, head), *new.chunks(made.size_bytes - Footer.SIZE, bytes(self._footer)))
        merged = MergedImage(
            lv_id=lv_id,
            segments=lv.segments,
            full=array("q", new.full_units()),
            empty=array("q", (new.unit(made.slots[block]) for block in new.later_holes())),
            table=tuple(new.table_units(head)),
        )
        copies = Again(new.shadows), Again(new.fills_and_copies)
        unchanged = Again(lambda: bitmaps_as_read(vg, members))
        return Unseen(expected, unchanged, chunks, copies, Again(new.bitmaps)), merged


class _NewImage(VolumeRanges):
    """Computes the bytes of the new image."""

    def __init__(self, vg: VolumeGroup, members: Sequence[VhdMember], made: VhdLayout, lv: LogicalVolume) -> None:
        super().__init__(vg, lv, [member.lv for member in members])
        self.members, self.layout = members, made
        self._copied = bytearray(len(members[0].entries))  # a byte for each block of the disk
        for owned in made.copied:
            self._copied[owned.block] = 1

    def _bits(self, owned: OwnedBlock) -> int:
        """The new bitmap: all ones for a filled block; for a copied block, the sectors that any image has."""
        if owned.filled_sectors and not self._copied[owned.block]:
            return FULL
        return reduce(or_, (bits for _member, bits in sectors_of(owned.block, self.members)))

    def _bitmap_at(self, slot: int) -> int:
        """The place of the bitmap, in bytes from the start of the new volume."""
        return blocks.bitmap_at(self.layout.entry(slot))

    def unit(self, slot: int) -> int:
        """The place on the device of the unit that ends in the slot's bitmap. A unit lies in one extent."""
        return self.at(align_down(self._bitmap_at(slot), UNIT), UNIT)[0].offset

    def _is_fresh(self, slot: int) -> bool:
        """Whether the bitmap of a slot is in a new extent, which the run writes before the commit."""
        return self._bitmap_at(slot) // EXTENT_BYTES in self.layout.fresh

    def later_holes(self) -> Iterator[int]:
        """The blocks with holes in old extents, which the old image may use until the commit."""
        return (block for block in self.layout.holes if not self._is_fresh(self.layout.slots[block]))

    def head(self, footer: Footer, header: DynamicHeader) -> bytes:
        """The bytes of the volume in front of slot 0's bitmap. Their block table lacks the holes in old extents."""
        made = self.layout
        primary, leaf = self.members[made.primary], self.members[0]
        place, own = blocks.block_table(primary.header), primary.batmap_header
        batmap_header_at = vhd.batmap_header_at(primary.header)
        entries = array("I", [UNUSED]) * primary.header.max_bat_entries
        for block, slot in enumerate(made.slots):
            if slot != NO_SLOT:
                entries[block] = made.entry(slot)
        for block in self.later_holes():
            entries[block] = UNUSED
        batmap = Batmap(bytes(own.batmap_sectors * SECTOR))
        covered = 8 * blocks.checked_bytes(leaf.virtual_size)
        for owned in chain(made.staying, made.copied):
            if owned.block < covered and self._bits(owned) == FULL:
                batmap.set(owned.block)
        full = bytes(batmap)
        version = vhd.BATMAP_VERSIONS[-1]
        batmap_header = leaf.batmap_header.replace(
            batmap_offset=own.batmap_offset,
            batmap_sectors=own.batmap_sectors,
            version=version,
            checksum=blocks.batmap_checksum(version, full, leaf.virtual_size),
        )
        data = bytearray(made.first_unit * UNIT + UNIT - SECTOR)
        table = big_endian("I", entries).tobytes().ljust(batmap_header_at - place.offset, b"\xff")
        for at, part in (
            (0, bytes(footer)),
            (vhd.HEADER_OFFSET, bytes(header)),
            (place.offset, table),
            (batmap_header_at, bytes(batmap_header)),
            (own.batmap_offset, full),
        ):
            data[at : at + len(part)] = part
        return bytes(data)

    def bitmaps(self) -> Iterator[Chunk]:
        """The bitmaps in free extents, each with its padding. `head` has the bytes in front of slot 0's bitmap."""
        made = self.layout
        taken = ((owned.block, owned) for owned in chain(made.staying, made.copied))
        for block, used in chain(taken, ((block, None) for block in made.holes)):
            slot = made.slots[block]
            if self._is_fresh(slot):
                bits = self._bits(used) if used is not None else 0
                padding = UNIT - SECTOR if slot else 0
                yield from self.chunks(self._bitmap_at(slot) - padding, bytes(padding) + bits.to_bytes(SECTOR, "big"))

    # --- copies of guest data

    def _data_at(self, owned: OwnedBlock) -> int:
        return blocks.data_at(self.layout.entry(self.layout.slots[owned.block]))

    def shadows(self) -> Iterator[BlockCopy]:
        """The copies of blocks that stay, for the part of their data in an extent that a new extent replaces.

        For a filled block only the sectors of the owner: `fills_and_copies` has the other sectors.
        """
        made = self.layout
        for owned in made.staying:
            start = self._data_at(owned)
            if not any(part.offset // EXTENT_BYTES in made.fresh for part in _by_extent(start, BLOCK_BYTES)):
                continue
            bits = next(sectors_of(owned.block, self.members))[1] if owned.filled_sectors else FULL
            for run in blocks.runs(bits):
                for part in _by_extent(start + run.offset * SECTOR, run.length * SECTOR):
                    extent = part.offset // EXTENT_BYTES
                    if extent in made.fresh:
                        member, old = made.source_of(extent)
                        source = part.offset + (old - extent) * EXTENT_BYTES
                        yield from self.copy(part.offset, member, source, part.length)

    def fills_and_copies(self) -> Iterator[BlockCopy]:
        for owned in self.layout.copied:
            yield from self._put(owned, sectors_of(owned.block, self.members))
        # For each new extent behind the head, by its first byte: the distance to the old extent that it replaces. A
        # block may reach into such an extent while its bitmap stays in an old extent. The bitmap will be all ones also
        # for the old image. So the filled sectors are written to the old extent, too.
        made, replaced = self.layout, {}
        for extent in made.fresh:
            if any(extent in piece.extents for piece in made.moved):
                member, at = made.source_of(extent)
                (new,) = self.at(extent * EXTENT_BYTES, EXTENT_BYTES)
                (old,) = self.vg.ranges(self.members[member].lv, at * EXTENT_BYTES, EXTENT_BYTES)
                replaced[new.offset - self.vg.pe_start] = old.offset - new.offset
        for owned in self.layout.staying:
            if owned.filled_sectors:
                in_place = not self._is_fresh(made.slots[owned.block])
                (_owner, bits), *below = sectors_of(owned.block, self.members)
                for copy in self._put(owned, below, bits):
                    yield copy
                    distance = replaced.get(align_down(copy.target - self.vg.pe_start, EXTENT_BYTES))
                    if in_place and distance is not None:
                        yield copy._replace(target=copy.target + distance)

    def _put(self, owned: OwnedBlock, sources: Iterable[Tuple[int, int]], there: int = 0) -> Iterator[BlockCopy]:
        """The copies of a block's sectors from their images, and zeros for the sectors that no image has."""
        start = self._data_at(owned)
        for member, bits in sources:
            there |= bits
            source = blocks.data_at(self.members[member].entries[owned.block])
            for run in blocks.runs(bits):
                at = run.offset * SECTOR
                yield from self.copy(start + at, member, source + at, run.length * SECTOR)
        for run in blocks.runs(FULL ^ there):
            yield from self.zeros(start + run.offset * SECTOR, run.length * SECTOR)

    # --- writes with the contents, and after the commit

    def full_units(self) -> Iterator[int]:
        """The places of the bitmaps of filled blocks, as far as they stay in old extents."""
        for owned in self.layout.staying:
            slot = self.layout.slots[owned.block]
            if owned.filled_sectors and not self._is_fresh(slot):
                yield self.unit(slot)

    def table_units(self, head: bytes) -> Iterator[TableUnit]:
        """The units of the block table with entries of holes. Whole units, because a cut may tear a unit."""
        table = blocks.block_table(self.members[self.layout.primary].header)
        after = bytearray(head)
        touched = set()
        for block in self.later_holes():
            at = table.offset + blocks.ENTRY_BYTES * block
            entry = self.layout.entry(self.layout.slots[block])
            after[at : at + blocks.ENTRY_BYTES] = big_endian("I", [entry]).tobytes()
            touched.add(align_down(at, UNIT))
        for at in sorted(touched):
            old, new = head[at : at + UNIT], bytes(after[at : at + UNIT])
            first, end = max(0, table.offset - at), min(len(old), table.end - at)
            yield TableUnit(self.at(at, len(old))[0].offset, old, new, first, end)


def _by_extent(offset: int, length: int) -> Iterator[Range]:
    end = offset + length
    while offset < end:
        size = min(end - offset, EXTENT_BYTES - offset % EXTENT_BYTES)
        yield Range(offset, size)
        offset += size
