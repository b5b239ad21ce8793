# SPDX-License-Identifier: LGPL-2.1-only
"""A VHD in a volume as libvhd has it open: its parts, where the next block would go, and how vhd-util writes.

    make(volume, size, parent=None)     `vhd-util create` and `snapshot`, in the geometry of sm
    vhd = Vhd(volume)                   as `vhd_open`: the footer at the end if it is one, else the copy
    vhd.write(sector, data)             as `vhd_io_write`: its own way to allocate, footers after each call

Sources: blktap `vhd/lib/libvhd.c`: vhd_open, vhd_end_of_headers, vhd_end_of_data, __vhd_io_allocate_block,
__vhd_io_dynamic_write, vhd_write_batmap, vhd_checksum_batmap, vhd_write_footer, vhd_set_virt_size_no_write.
"""

import struct
import uuid
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from relvmoiscsi.device import align_up

from ..build_volumes import BLOCK, BLOCK_SECTORS, SM_BAT_ENTRIES, Parent, VhdSpec, noise, vhd_content, vhd_places
from ..reader import dm_target, footer_ok
from .lun import Volume, no_space

SECTOR = 512
SLOT = 8 + BLOCK_SECTORS  #: sectors: pad, bitmap, data
PAGE = 8  #: sectors
FREE = 0xFFFFFFFF
ALL = (1 << BLOCK_SECTORS) - 1
DYNAMIC, DIFFERENCING = 3, 4
KILLED = b"\xc7" * SECTOR
_NOTHING = b"\xff" * 4096


class NotAVhd(Exception):
    """What a volume holds is none, or one that tapdisk would not open for writing."""


class Piece(NamedTuple):
    """A part of a write that lies in one block."""

    block: int
    first: int  #: sector of the block
    data: bytes

    @property
    def count(self) -> int:
        return len(self.data) // SECTOR

    @property
    def bits(self) -> int:
        """The sectors as bits of the block's bitmap, the first sector highest."""
        return run_bits(self.first, self.count)


def run_bits(first: int, count: int) -> int:
    return ((1 << count) - 1) << (BLOCK_SECTORS - first - count)


def runs_of(bits: int, first: int = 0, count: int = BLOCK_SECTORS) -> Iterator[Tuple[int, int, bool]]:
    """(first, count, whether set) of each run of equal bits in sectors [first, first + count) of a block."""
    text = format(bits, f"0{BLOCK_SECTORS}b")
    end = first + count
    while first < end:
        at = text.find("0" if text[first] == "1" else "1", first, end)
        at = end if at < 0 else at
        yield first, at - first, text[first] == "1"
        first = at


def pieces_of(sector: int, data: bytes) -> Iterator[Piece]:
    """A write cut at the borders of blocks."""
    assert data and len(data) % SECTOR == 0, len(data)
    done = 0
    while done < len(data):
        block, first = divmod(sector + done // SECTOR, BLOCK_SECTORS)
        piece = data[done : done + (BLOCK_SECTORS - first) * SECTOR]
        yield Piece(block, first, piece)
        done += len(piece)


def with_sum(data: bytes, at: int) -> bytes:
    """A footer or header with its checksum."""
    total = sum(data[:at]) + sum(data[at + 4 :])
    return data[:at] + struct.pack(">I", ~total & FREE) + data[at + 4 :]


def make(
    volume: Volume,
    virtual_size: int,
    footer_uuid: uuid.UUID,
    parent: Optional["Vhd"] = None,
    bat_entries: int = SM_BAT_ENTRIES,
) -> "Vhd":
    """A new VHD without blocks. Nothing behind its headers is written but the footer. Raises OSError."""
    link = Parent(volume.lun.vg_name, parent.volume.name, uuid.UUID(bytes=parent.uuid)) if parent else None
    places = vhd_places(bat_entries, parent is not None, 0)
    if places.end + SECTOR > volume.size:
        raise no_space(f"the headers of {volume.name}, which has {volume.size}")
    volume.write(0, bytes(places.table))
    volume.write(places.batmap_header, bytes(places.end - places.batmap_header))
    for offset, data in vhd_content(volume.size, _new_spec(footer_uuid, virtual_size, bat_entries, link)).pieces:
        volume.write(offset, data)
    return Vhd(volume)


def _new_spec(footer_uuid: uuid.UUID, virtual_size: int, bat_entries: int, link: Optional[Parent]) -> VhdSpec:
    return VhdSpec(footer_uuid, virtual_size, bat_entries, 0, False, link, False, "")


class Vhd:
    """An open VHD. Raises NotAVhd."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        candidates = (volume.read(volume.size - SECTOR, SECTOR), volume.read(0, SECTOR))
        self.footer = next((data for data in candidates if footer_ok(data)), b"")
        if not self.footer:
            raise NotAVhd(f"{volume.name} has no footer")
        self.header = volume.read(SECTOR, 1024)
        if self.header[:8] != b"cxsparse" or with_sum(self.header, 36) != self.header:
            raise NotAVhd(f"the header of {volume.name} is bad")
        self.table_at, self.max_bat = struct.unpack_from(">16xQ4xI", self.header)
        self._read_tables()

    def _read_tables(self) -> None:
        length = 4 * self.max_bat
        self.bat: Dict[int, int] = dict(entries_of(self.volume.read(self.table_at, length)))
        self.batmap_header_at = self.table_at + align_up(length, SECTOR)
        self.batmap_header = self.volume.read(self.batmap_header_at, SECTOR)
        cookie, self.batmap_at, self.batmap_sectors = struct.unpack_from(">8sQI", self.batmap_header)
        if cookie != b"tdbatmap":
            raise NotAVhd(f"{self.volume.name} has no batmap")
        self.batmap = bytearray(self.volume.read(self.batmap_at, self.batmap_sectors * SECTOR))
        if struct.unpack_from(">I", self.batmap_header, 24)[0] != self._batmap_sum():
            raise NotAVhd(f"the checksum of the batmap of {self.volume.name} is wrong")

    # -- facts ------------------------------------------------------------------------------------------------------

    @property
    def uuid(self) -> bytes:
        return self.footer[68:84]

    @property
    def size(self) -> int:
        """Bytes of the guest's disk."""
        return int(struct.unpack_from(">Q", self.footer, 48)[0])

    @property
    def type(self) -> int:
        return int(struct.unpack_from(">I", self.footer, 60)[0])

    @property
    def hidden(self) -> bool:
        return self.footer[85] == 1

    @property
    def parent_name(self) -> str:
        """The LV that the header names; empty for a dynamic VHD."""
        return dm_target(self.header[64:576].decode("utf-16-be", "replace").rstrip("\0"))[1]

    @property
    def headers_end(self) -> int:
        """Sector behind everything that is no block."""
        ends = [SECTOR + 1024, self.table_at + align_up(4 * self.max_bat, SECTOR), self.batmap_header_at + SECTOR]
        ends.append(self.batmap_at + self.batmap_sectors * SECTOR)
        for number in range(8):
            code, space, offset = struct.unpack_from(">4sI8xQ", self.header, 576 + 24 * number)
            if code != bytes(4):
                ends.append(offset + (space if space >= SECTOR else space * SECTOR))
        return -(-max(ends) // SECTOR)

    @property
    def data_end(self) -> int:
        """Sector behind the last block: where the next one goes."""
        return max([entry + 1 + BLOCK_SECTORS for entry in self.bat.values()] + [self.headers_end])

    @property
    def physical_size(self) -> int:
        """Bytes of the smallest volume: `vhd-util query -s`."""
        return self.data_end * SECTOR + SECTOR

    def bits(self, block: int) -> int:
        """The sectors that an allocated block has, the first one highest."""
        if self.is_full(block):
            return ALL
        return int.from_bytes(self.volume.read(self.bat[block] * SECTOR, SECTOR), "big")

    def is_full(self, block: int) -> bool:
        """Whether the batmap says that it is."""
        return bool(self.batmap[block // 8] & 0x80 >> block % 8)

    def read_sectors(self, block: int, first: int, count: int) -> bytes:
        """Of an allocated block, whatever its bitmap says."""
        return self.volume.read((self.bat[block] + 1 + first) * SECTOR, count * SECTOR)

    # -- writing ----------------------------------------------------------------------------------------------------

    def write_footers(self) -> None:
        """At the end of the volume and at its start."""
        self.volume.write(self.volume.size - SECTOR, self.footer)
        self.volume.write(0, self.footer)

    def set_hidden(self, hidden: bool) -> None:
        self._change_footer(85, bytes([hidden]))

    def set_size(self, size: int) -> None:
        """A larger disk for the guest: current size and geometry; no block changes."""
        assert self.size <= size <= self.max_bat * BLOCK, (self.size, size)
        spec = _new_spec(uuid.UUID(bytes=self.uuid), size, 1, None)
        like = vhd_content(4 * BLOCK, spec).pieces[0][1]
        self._change_footer(48, struct.pack(">Q", size) + like[56:60])

    def _change_footer(self, at: int, data: bytes) -> None:
        self.footer = with_sum(self.footer[:at] + data + self.footer[at + len(data) :], 64)
        self.write_footers()

    def set_entry(self, block: int, sector: int) -> None:
        """An entry of the table, in memory and on the disk."""
        self.bat[block] = sector
        self.volume.write(self.table_at + 4 * block, struct.pack(">I", sector))

    def write_bitmap(self, block: int, bits: int) -> None:
        self.volume.write(self.bat[block] * SECTOR, bits.to_bytes(SECTOR, "big"))

    def set_full(self, block: int) -> None:
        """In memory; see `write_batmap`."""
        self.batmap[block // 8] |= 0x80 >> block % 8

    def write_batmap(self) -> None:
        head = bytearray(self.batmap_header)
        struct.pack_into(">I", head, 24, self._batmap_sum())
        self.batmap_header = bytes(head)
        self.volume.write(self.batmap_header_at, self.batmap_header)
        self.volume.write(self.batmap_at, bytes(self.batmap))

    def _batmap_sum(self) -> int:
        """Over as much of the map as the disk's size needs, whole sectors, at least one."""
        covered = max(SECTOR, align_up(self.size >> 24, SECTOR))
        return ~sum(self.batmap[:covered]) & FREE

    def write(self, sector: int, data: bytes) -> None:
        """Write as vhd-util does. Raises OSError with ENOSPC; what was written until then stays, footers do not."""
        assert sector * SECTOR + len(data) <= self.size, "a write past the end is refused by vhd_io_write"
        for piece in pieces_of(sector, data):
            if piece.block not in self.bat:
                self._allocate(piece.block, piece.count < BLOCK_SECTORS)
            self.volume.write((self.bat[piece.block] + 1 + piece.first) * SECTOR, piece.data)
            if not self.is_full(piece.block):
                self._set_bits(piece)
        self.write_footers()

    def _allocate(self, block: int, zero: bool) -> None:
        end = self.data_end
        entry = next_entry(end)
        if zero:
            self.volume.write(end * SECTOR, bytes((entry + 1 + BLOCK_SECTORS - end) * SECTOR))
        self.set_entry(block, entry)

    def _set_bits(self, piece: Piece) -> None:
        bits = self.bits(piece.block) | piece.bits
        self.write_bitmap(piece.block, bits)
        if bits == ALL:
            self.set_full(piece.block)
            self.write_batmap()


def entries_of(table: bytes) -> Iterator[Tuple[int, int]]:
    """(block, entry) of what is allocated; quick where nothing is."""
    for start in range(0, len(table), len(_NOTHING)):
        part = table[start : start + len(_NOTHING)]
        if part != _NOTHING[: len(part)]:
            for number, entry in enumerate(struct.unpack(f">{len(part) // 4}I", part), start // 4):
                if entry != FREE:
                    yield number, entry


def next_entry(end: int) -> int:
    """Where the bitmap of a block goes that is allocated at a sector: its data begin on a page."""
    entry = end + -(end + 1) % PAGE
    if entry > FREE:
        raise no_space("a block beyond the last sector that the table can name")
    return entry


def random_uuid(seed: str) -> uuid.UUID:
    """Always the same for the same seed."""
    return uuid.UUID(bytes=noise(16, "footer " + seed), version=4)
