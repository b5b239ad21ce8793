# SPDX-License-Identifier: LGPL-2.1-only
"""The blocks of a VHD: the block allocation table, the batmap, and the bitmap in front of each block. Pure.

    unit      4096 bytes of the volume; the data of a block begins at a unit
    slot      513 units: 7 sectors of padding, 1 of bitmap, 4096 of data. An entry of the table is the bitmap's sector
    lattice   slot k begins k slots behind slot 0, which follows the headers: tapdisk and libvhd put each new block
              behind the highest block, so the slots of an image have no gaps, and SM's sizes of volumes rely on that

A bitmap has a bit for each sector of the block: the highest bit is the first sector. In this module a bitmap is one
large integer. When the bit of a sector is clear, the sector reads as in the parent, or as zeros without a parent. When
the batmap marks a block as full, programs do not read the block's bitmap.

Sources: blktap drivers/block-vhd.c (reserve_new_block, schedule_redundant_bm_write), vhd/lib/libvhd.c
(vhd_end_of_data, vhd_checksum_batmap); SM drivers/lvhdutil.py (calcSizeVHDLV).
"""

from typing import List, Optional

from relvmoiscsi.device import SECTOR, Range, align_up
from relvmoiscsi.errors import BadChecksum, Malformed, Place
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats.vhd import BatmapHeader, DynamicHeader, byte_sum

UNIT = 4096  #: bytes
SLOT_UNITS = 513
BLOCK_BYTES = 2 << 20
BLOCK_SECTORS = BLOCK_BYTES // SECTOR
UNUSED = 0xFFFFFFFF  #: entry of a block that the image does not have
FULL = (1 << BLOCK_SECTORS) - 1  #: the bitmap of a block that has all sectors

_PADDING_SECTORS = 7
ENTRY_BYTES = 4
#: the bytes that SM reserves for the headers of a VHD of any size: VHD_FOOTER_SIZE and the overhead in calcSizeVHDLV
_FORMULA_BYTES = 4329472


def block_table(header: DynamicHeader) -> Range:
    """The range of the whole block allocation table, in the volume."""
    return Range(header.table_offset, ENTRY_BYTES * header.max_bat_entries)


def first_slot_unit(header: DynamicHeader, batmap: BatmapHeader) -> int:
    """The unit of slot 0 in an image without parent locators."""
    end = max(vhd.batmap_header_at(header) + BatmapHeader.SIZE, batmap.batmap_offset + batmap.batmap_sectors * SECTOR)
    sector = align_up(end, SECTOR) // SECTOR  # of the first bitmap that may lie behind the headers
    return (sector + (_PADDING_SECTORS - sector) % 8) // 8


def end_of_headers(header: DynamicHeader, batmap: BatmapHeader) -> int:
    """The end of the headers of an image, locator texts included, in bytes. Blocks lie behind this end."""
    return max(part.range.end for part in vhd.header_parts(header, batmap))


def entry_of(unit: int) -> int:
    """The table's entry for the slot that begins at `unit`."""
    return unit * 8 + _PADDING_SECTORS


def unit_of(entry: int) -> Optional[int]:
    """The unit at which the slot of an entry begins; None when the block's data does not begin at a unit."""
    return entry // 8 if entry % 8 == _PADDING_SECTORS else None


def bitmap_at(entry: int) -> int:
    """The bytes from the start of the volume to the bitmap of a block."""
    return entry * SECTOR


def data_at(entry: int) -> int:
    """The bytes from the start of the volume to the data of a block."""
    return (entry + 1) * SECTOR


def formula_size(virtual_size: int) -> int:
    """The bytes that SM computes for the volume of a full VHD, before SM rounds up to extents."""
    return virtual_size + _FORMULA_BYTES + UNIT * block_count(virtual_size)


def block_count(virtual_size: int) -> int:
    return -(-virtual_size // BLOCK_BYTES)


# --- bitmaps


def runs(bits: int) -> List[Range]:
    """The ranges of sectors whose bits are set, in sectors from the start of the block."""
    text, end = format(bits, f"0{BLOCK_SECTORS}b"), 0
    found: List[Range] = []
    while True:
        start = text.find("1", end)
        if start < 0:
            return found
        end = text.find("0", start)
        end = BLOCK_SECTORS if end < 0 else end
        found.append(Range(start, end - start))


# --- the batmap


class Batmap:
    """The blocks that an image's batmap marks as full."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)

    def __getitem__(self, block: int) -> bool:
        at = block >> 3
        return at < len(self._data) and bool(self._data[at] & 0x80 >> (block & 7))

    def set(self, block: int) -> None:
        self._data[block >> 3] |= 0x80 >> (block & 7)

    def __bytes__(self) -> bytes:
        return bytes(self._data)


def verify_batmap(header: BatmapHeader, data: bytes, virtual_size: int, where: Place) -> Batmap:
    """The batmap with the bytes `data`. Raises FormatError: tapdisk does not open an image with a wrong batmap."""
    if len(data) < checked_bytes(virtual_size):
        raise Malformed("VHD batmap", where, f"it has {len(data)} bytes for {virtual_size} bytes of disk")
    computed = batmap_checksum(header.version, data, virtual_size)
    if header.checksum != computed:
        raise BadChecksum("VHD batmap", where, header.checksum, computed)
    return Batmap(data)


def batmap_checksum(version: int, data: bytes, virtual_size: int) -> int:
    """The checksum of a batmap; for version 1.1 bytes are signed. Source: libvhd, vhd_checksum_batmap."""
    covered = data[: checked_bytes(virtual_size)]
    total = byte_sum(covered)
    if version == vhd.BATMAP_VERSIONS[0]:
        total -= 256 * sum(1 for byte in covered if byte > 127)
    return ~total & 0xFFFFFFFF


def checked_bytes(virtual_size: int) -> int:
    """The number of bytes of a batmap that libvhd reads, and that the checksum covers.

    The batmap says nothing about the blocks behind these bytes.
    """
    return align_up(max(1, virtual_size >> 24), SECTOR)
