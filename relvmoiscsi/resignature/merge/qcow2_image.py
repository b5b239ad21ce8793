# SPDX-License-Identifier: LGPL-2.1-only
"""The strategies to merge a chain of QCOW2 images, and the bytes of the new image. The last parent may be a raw volume.

The run writes the head of the new image and all copies to new extents, before the commit.
"""

from array import array
from hashlib import sha256
from itertools import chain
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.device import Device, Range, torn_bytes
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import qcow2
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.lvm.vg import LogicalVolume, VolumeGroup
from relvmoiscsi.formats.ondisk import big_endian
from relvmoiscsi.formats.qcow2 import COUNT_BYTES, ENTRY_BYTES, HEAD_BYTES, Qcow2, read_qcow2
from relvmoiscsi.formats.qcow2_clusters import ABSENT, ZEROS
from relvmoiscsi.resignature.merge.compact import Arrays, Memory
from relvmoiscsi.resignature.merge.qcow2_chain import EXTENT_SHIFT, Qcow2Member, place_of, read_members
from relvmoiscsi.resignature.merge.qcow2_layout import Qcow2Layout, layouts
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, MergeStrategy, Room, VolumeRanges, room_on
from relvmoiscsi.resignature.merge.vdi_choice import Chain
from relvmoiscsi.resignature.protocol.merged_image import Again, BlockCopy, MergedImage, Unseen
from relvmoiscsi.resignature.reading.lun_contents import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache, UnwrittenDevice, uncached

PIECE_BYTES = 1 << 20  #: bytes of the head in a write
_WITHIN = EXTENT_BYTES - 1


def strategies(device: Device, lun: Lun, found: Chain, seed: int) -> Iterator[MergeStrategy]:
    """All strategies, the cheapest first. `seed` chooses among the free extents.

    Raises FormatError for an image that cannot be merged.
    """
    if lun.vg.pe_start % torn_bytes(device):
        raise Refused(f"The extents of {device.name} do not begin at blocks of the device.")
    memory = Memory(found.leaf.name.text)
    members = read_members(uncached(device), lun.vg, found.members, memory)
    thick = lun.vg.size_of(members[0].lv) >= clusters.formula_size(members[0].virtual_size)
    unused = [run for member in members for run in member.unused_extents()]
    room = room_on(lun, found, unused, seed)
    for made in layouts(members, thick, memory):
        for member in members:  # free the memory of the tables, which `unused_extents` and `layouts` have used
            member.tables, member.taken = Arrays(), bytearray()
        yield Qcow2Merge(lun.vg, members, made, room)


class Qcow2Merge(MergeStrategy):
    """The merge strategy of a QCOW2 layout."""

    def __init__(self, vg: VolumeGroup, members: Sequence[Qcow2Member], made: Qcow2Layout, room: Room) -> None:
        retained = made.retained_extents([member.lv for member in members])
        super().__init__(made.cost, retained, range(made.head_extents), room)
        self._vg, self._members, self._layout, leaf = vg, members, made, members[0]
        tables_at = made.first_level_at, made.unit
        self._head = clusters.plain_head(leaf.head, made.unit, made.needed, tables_at, leaf.name)
        self.content: Qcow2 = read_qcow2(self._head, leaf.name, made.size_bytes)

    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Tuple[Unseen, MergedImage]:
        made, members = self._layout, self._members
        places = VolumeRanges(self._vg, lv, [member.lv for member in members])
        first = tuple(chunk for piece in first_pieces(made, self._head) for chunk in places.chunks(*piece))
        tables = Tables(made)
        # read the planned image back, in memory
        name, size = members[0].name, made.size_bytes
        planned = _Planned(ReadCache(device).with_chunks(first), places, made.head_extents, tables)
        (head,) = planned.read(places.at(0, HEAD_BYTES))
        new = Qcow2Member(planned, self._vg, lv, name, members[0].virtual_size)
        new.read(read_qcow2(head, name, size).header, head)
        verify_image(made, new, tables.counts(), places, members)
        unseen = Unseen(
            expected=tuple(one for member in members for one in member.built_on),
            chunks=first,
            copies=(Again(lambda: copies(made, places)),),
            more=Again(lambda: (chunk for piece in tables.pieces() for chunk in places.chunks(*piece))),
        )
        return unseen, MergedImage(lv_id=lv_id, segments=lv.segments)


def first_pieces(made: Qcow2Layout, header: bytes) -> Iterator[Tuple[int, bytes]]:
    """The part of the head that a survey reads: the head in front of the second-level tables, without the counts.

    Gives offsets, in bytes from the start of the volume, and the bytes at each offset.
    """
    unit = made.unit
    yield 0, header.ljust(unit, b"\0")
    table = big_endian("Q", range(made.counts_at, made.first_level_at, unit)).tobytes()
    yield unit, table.ljust(made.needed.count_table * unit, b"\0")
    first = array("Q", [0]) * (made.needed.first_level * made.per_table)
    for index, number in enumerate(made.tables):
        first[number] = qcow2.ENTRY_USED_ONCE | made.second_level_at + index * unit
    data = big_endian("Q", first).tobytes()
    for start in range(0, len(data), PIECE_BYTES):
        yield made.first_level_at + start, data[start : start + PIECE_BYTES]


class Tables:
    """The counts and the tables of the second level, in pieces. A piece is computed each time when a caller reads it.

    The plan computes a piece to verify the piece, the run computes the piece again to write the piece. A digest over
    all pieces tells whether the written bytes are the verified bytes.
    """

    def __init__(self, made: Qcow2Layout) -> None:
        self._made = made
        self._at_once = max(1, PIECE_BYTES // made.unit)  # tables of the second level in a piece
        self._entries, self._used = _tables(made)
        self._verified: Dict[int, bytes] = {}

    def pieces(self) -> Iterator[Tuple[int, bytes]]:
        """The offset of each piece in the volume, and the piece. Raises Refused for bytes that were not verified."""
        for offset in self._starts():
            data = self._piece(offset)
            if self._verified.get(offset) not in (None, sha256(data).digest()):
                _refuse(f"the bytes to write at byte {offset} differ from the verified bytes")
            yield offset, data

    def read_piece(self, offset: int) -> Optional[Tuple[int, bytes]]:
        """For verification: the piece that holds the byte at `offset`, and its place; None when no piece holds it."""
        made = self._made
        first, end, size = made.counts_at, made.first_level_at, PIECE_BYTES
        if offset >= made.second_level_at:
            first, size = made.second_level_at, self._at_once * made.unit
            end = first + len(made.tables) * made.unit
        if not first <= offset < end:
            return None
        start = first + (offset - first) // size * size
        data = self._piece(start)
        self._verified[start] = sha256(data).digest()
        return start, data

    def counts(self) -> Iterator[bytes]:
        """For verification: the counts, in pieces."""
        starts = range(self._made.counts_at, self._made.first_level_at, PIECE_BYTES)
        return (data for _start, data in filter(None, map(self.read_piece, starts)))

    def _starts(self) -> Iterator[int]:
        yield from range(self._made.counts_at, self._made.first_level_at, PIECE_BYTES)
        for index in range(0, len(self._made.tables), self._at_once):
            yield self._made.second_level_at + index * self._made.unit

    def _piece(self, offset: int) -> bytes:
        made = self._made
        if offset < made.first_level_at:
            start = offset - made.counts_at
            end = min(start + PIECE_BYTES, made.needed.counts * made.unit)
            used = self._used[start // COUNT_BYTES : end // COUNT_BYTES]
            found = bytearray(end - start)
            found[COUNT_BYTES - 1 : len(used) * COUNT_BYTES : COUNT_BYTES] = used
            return bytes(found)
        first = (offset - made.second_level_at) // made.unit
        numbers = made.tables[first : first + self._at_once]
        return b"".join(big_endian("Q", self._entries[number]).tobytes().ljust(made.unit, b"\0") for number in numbers)


def _tables(made: Qcow2Layout) -> Tuple[Arrays, bytearray]:
    """The tables of the second level by number, and a byte for each unit in front of the tail: 1 for a used unit."""
    used = bytearray((made.head_extents + len(made.retained)) * made.per_extent)
    first_copy = made.first_copy
    used[: first_copy + len(made.copied)] = b"\1" * (first_copy + len(made.copied))
    tables = Arrays()
    for number, entries in _entries(made):
        for entry in entries:
            if entry:
                used[(entry & qcow2.ENTRY_PLACE) // made.unit] = 1
        tables[number] = entries
    if sum(used) != first_copy + made.block_count:
        raise Refused("The planned image does not check: two clusters have one place.", sm_key="MetadataError")
    for number in made.tables:
        if number not in tables:
            tables[number] = array("Q", [ABSENT]) * min(made.per_table, made.units - number * made.per_table)
    _give_away(made, tables, used)
    return tables, used


def _give_away(made: Qcow2Layout, tables: Arrays, used: bytearray) -> None:
    """Give dead units to units of the disk that no image has, with entries that read as zeros."""
    mark, dead = qcow2.ENTRY_USED_ONCE | qcow2.ENTRY_ZEROS, used.find(b"\0")
    for number in made.tables:
        if dead < 0:
            return
        table = tables[number]
        if ABSENT not in table:
            continue
        for at, entry in enumerate(table):
            if entry == ABSENT and dead >= 0:
                table[at] = mark | dead * made.unit
                used[dead] = 1
                dead = used.find(b"\0", dead + 1)
        tables[number] = table


def _entries(made: Qcow2Layout) -> Iterator[Tuple[int, "array[int]"]]:
    """The number and the entries of each table with a cluster of an image."""
    once = qcow2.ENTRY_USED_ONCE
    bases = {extent: once | (made.head_extents + at) * EXTENT_BYTES for at, extent in enumerate(made.retained)}
    copies = {number: index for index, number in enumerate(made.copied)}
    touched = {number // made.per_table for number in copies}
    for table in made.owners:
        owners = made.owners[table]
        if table not in touched:
            entries = [bases[owner >> EXTENT_SHIFT] | owner & _WITHIN if owner > ZEROS else ABSENT for owner in owners]
            yield table, array("Q", entries)
            continue
        found = array("Q", [ABSENT]) * len(owners)
        for at, (number, owner) in enumerate(enumerate(owners, table * made.per_table)):
            if number in copies:
                found[at] = once | (made.first_copy + copies[number]) * made.unit
            elif owner > ZEROS:
                found[at] = bases[owner >> EXTENT_SHIFT] | owner & _WITHIN
        yield table, found


def copies(made: Qcow2Layout, places: VolumeRanges) -> Iterator[BlockCopy]:
    """The copies of the clusters that get a new place."""
    for index, (number, owner) in enumerate(made.copied.items()):
        target = (made.first_copy + index) * made.unit
        image, source = place_of(owner)
        yield from places.copy_up_to(target, image, source, made.cut.get(number, made.unit), made.unit)


# --- the planned image, read back


def verify_image(
    made: Qcow2Layout, new: Qcow2Member, counts: Iterable[bytes], places: VolumeRanges, olds: Sequence[Qcow2Member]
) -> None:
    """Compare `new`, the planned image as read back, with its layout. `counts` are its counts, in pieces.

    Each unit that an image has must be at the place of its data, or at the place to which its data will be copied. All
    other units must read as zeros. The counts must be those of the used clusters. Raises Refused.
    """
    at: Dict[int, int] = {}  # by extent of the new volume, or of an owner: its place on the device
    for mark, member in enumerate([new, *olds]):
        for extent, pe in enumerate(chain.from_iterable(member.lv.pes(0, member.lv.extent_count))):
            at[mark << 56 - EXTENT_SHIFT | extent] = places.vg.pe_start + pe * EXTENT_BYTES
    targets = {number: (made.first_copy + index) * made.unit for index, number in enumerate(made.copied)}
    copied: Dict[int, Dict[int, int]] = {}
    for number, target in targets.items():
        copied.setdefault(number // made.per_table, {})[number % made.per_table] = target
    for table in sorted({*new.tables, *made.owners}):
        count = min(made.per_table, made.units - table * made.per_table)
        entries, owners = new.tables.get(table) or (), made.owners.get(table) or ()
        found = [at[entry >> EXTENT_SHIFT] + (entry & _WITHIN) if entry > ZEROS else 0 for entry in entries[:count]]
        meant = [at[owner >> EXTENT_SHIFT] + (owner & _WITHIN) if owner > ZEROS else 0 for owner in owners]
        for index, target in copied.get(table, {}).items():
            meant[index] = at[target >> EXTENT_SHIFT] + (target & _WITHIN)
        if (found or [0] * count) != (meant or [0] * count):
            _refuse(f"clusters of table {table} are not where they should be")
    known = 0
    for piece in counts:
        found_counts = piece[COUNT_BYTES - 1 :: COUNT_BYTES]
        taken = bytes(new.taken[known : known + len(found_counts)]).ljust(len(found_counts), b"\0")
        if any(piece[::COUNT_BYTES]) or found_counts != taken:
            _refuse("its counts are wrong")
        known += len(found_counts)
    if any(new.taken[known:]):
        _refuse("its counts end before its clusters")


class _Planned(UnwrittenDevice):
    """A device for reads, with the bytes of the planned image."""

    def __init__(self, device: Device, places: VolumeRanges, head_extents: int, tables: Tables) -> None:
        super().__init__(device)
        self._tables, self._base = tables, places.vg.pe_start
        pes = chain.from_iterable(places.lv.pes(0, head_extents))
        self._extents = {pe: index for index, pe in enumerate(pes)}
        self._start, self._piece = 0, b""

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        found = []
        for part in ranges:
            pe, within = divmod(part.offset - self._base, EXTENT_BYTES)
            offset = self._extents[pe] * EXTENT_BYTES + within if pe in self._extents else -1
            if not self._start <= offset < self._start + len(self._piece):
                piece = self._tables.read_piece(offset)
                if piece is None:
                    found += self._device.read([part])
                    continue
                self._start, self._piece = piece
            at = offset - self._start
            found.append(self._piece[at : at + part.length])
        return found


def _refuse(problem: str) -> None:
    raise Refused(f"The planned image does not check: {problem}.", sm_key="MetadataError")


assert ENTRY_BYTES == 8  # the arrays hold numbers of 64 bits
