# SPDX-License-Identifier: LGPL-2.1-only
"""The ways to make a chain of QCOW2 images one QCOW2."""

from typing import Iterator, List, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, Range, torn_bytes
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.lvm.vg import LogicalVolume, extents_of
from relvmoiscsi.formats.qcow2 import HEAD_BYTES, Qcow2, read_qcow2
from relvmoiscsi.resignature.one_vdi.choice import Chain
from relvmoiscsi.resignature.one_vdi.compact import Memory
from relvmoiscsi.resignature.one_vdi.extents import EXTENT_BYTES, Room, place, room_on
from relvmoiscsi.resignature.one_vdi.qcow2 import image
from relvmoiscsi.resignature.one_vdi.qcow2.image import Tables
from relvmoiscsi.resignature.one_vdi.qcow2.layout import Layout, extents_kept, layouts
from relvmoiscsi.resignature.one_vdi.qcow2.members import Member, read_member, read_members
from relvmoiscsi.resignature.one_vdi.way import Counts, Image, Places, Way
from relvmoiscsi.resignature.protocol.rebuilt import Again, Rebuilt, Unseen
from relvmoiscsi.resignature.reading.lun import Lun
from relvmoiscsi.resignature.reading.read_cache import ReadCache, uncached


class Qcow2Way(Way):
    """A layout, and where there is room for it."""

    def __init__(self, lun: Lun, members: Tuple[Member, ...], made: Layout, room: Room) -> None:
        self._vg, self._members, self._layout, self._room = lun.vg, members, made, room
        self.counts = _counts(made, len(room.writable))
        head = image.plain_head(made, members[0])
        self.content: Qcow2 = read_qcow2(head, members[0].name, made.size_bytes)

    def extents(self) -> Sequence[int]:
        made = self._layout
        kept = extents_kept(made, [extents_of(member.lv.segments) for member in self._members])
        return place(kept, range(made.head_extents), self._room)

    def image(self, device: Device, lv: LogicalVolume, lv_id: str) -> Image:
        places = Places(self._vg, lv, [member.lv for member in self._members])
        first = [
            chunk
            for offset, data in image.first_pieces(self._layout, self._members[0])
            for chunk in places.chunks(offset, data)
        ]
        tables = Tables(self._layout)
        self._verify(device, places, first, tables)
        more = Again(lambda: (chunk for piece in tables.pieces() for chunk in places.chunks(*piece)))
        expected = tuple(one for member in self._members for one in member.built_on)
        copies = Again(lambda: image.copies(self._layout, places))
        unseen = Unseen(expected=expected, chunks=tuple(first), copies=(copies,), more=more)
        return Image(unseen, Rebuilt(lv_id=lv_id, segments=lv.segments))

    def _verify(self, device: Device, places: Places, first: Sequence[Chunk], tables: Tables) -> None:
        """The planned image is read back in memory."""
        written = _Planned(ReadCache(device).with_chunks(first), places, self._layout.head_extents, tables)
        (head,) = written.read(places.at(0, HEAD_BYTES))
        name, made = self._members[0].name, self._layout
        content = read_qcow2(head, name, made.size_bytes)
        new = read_member(written, self._vg, places.lv, name, content, head)
        image.verify_image(made, new, tables.counts(), places, self._members)


class _Planned(Device):
    """A device with a planned image on it, to be read: what is made up piece by piece is made up for it."""

    def __init__(self, device: Device, places: Places, head_extents: int, tables: Tables) -> None:
        self.name, self.size_bytes, self.block_size = device.name, device.size_bytes, device.block_size
        self._device, self._tables = device, tables
        self._base = places.vg.pe_start
        pes = extents_of(places.lv.segments)[:head_extents]
        self._extents = {pe: index for index, pe in enumerate(pes)}
        self._start, self._piece = 0, b""

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        return [self._read(part) for part in ranges]

    def _read(self, part: Range) -> bytes:
        pe, within = divmod(part.offset - self._base, EXTENT_BYTES)
        offset = self._extents[pe] * EXTENT_BYTES + within if pe in self._extents else None
        if offset is None or not self._tables.has(offset):
            return self._device.read([part])[0]
        if not self._start <= offset < self._start + len(self._piece):
            self._start, self._piece = self._tables.read_piece(offset)
        at = offset - self._start
        return self._piece[at : at + part.length]

    def write(self, chunks: Sequence[Chunk]) -> None:
        raise TypeError("a plan does not write")

    def flush(self) -> None:
        raise TypeError("a plan does not write")


def ways(device: Device, lun: Lun, chain: Chain, lot: int) -> Iterator[Way]:
    """Every way, the better first. `lot` is that of `room_on`.

    Raises FormatError for an image that cannot be put together with others.
    """
    if lun.vg.pe_start % torn_bytes(device):
        raise Refused(f"The extents of {device.name} do not begin where its blocks do.")
    memory = Memory(chain.leaf.name.text)
    members = read_members(uncached(device), lun.vg, chain.members, memory)
    thick = lun.vg.size_of(members[0].lv) >= clusters.formula_size(members[0].virtual_size)
    gone = [*(member.lv for member in members), *(volume.lv for volume in chain.dropped)]
    unused = [pe for member in members for pe in member.unused_extents()]
    room = room_on(lun.vg, unused, gone, lot)
    light = tuple(member.without_tables() for member in members)
    for made in layouts(members, thick, memory):
        yield Qcow2Way(lun, light, made, room)


def _counts(made: Layout, free: int) -> Counts:
    blocks, copied = made.block_count, len(made.copied)
    return Counts(
        blocks=blocks,
        remapped=blocks - copied,
        filled=0,
        copied=copied,
        data_bytes=copied * made.unit,
        fresh_extents=made.head_extents,
        free_extents=free,
    )
