# SPDX-License-Identifier: LGPL-2.1-only
"""Where a VHD keeps its blocks: the block allocation table, the batmap, and the bitmap in front of each block. Pure.

    unit      4096 bytes; all but the first sector of a slot lies on them
    slot      513 units: 7 sectors of padding, 1 of bitmap, 4096 of data. An entry of the table is the bitmap's sector
    lattice   slot k begins k slots behind the first one, which follows the headers: tapdisk and libvhd put every new
              block behind the highest, so the slots of an image lie close together, and SM computes sizes from that

A bitmap has a bit for each sector of the block, the first one in the highest bit; here it is one large integer. A
sector without its bit is the parent's; without a parent it is zero. The batmap says of a block that all bits are set,
and then no program looks at the bitmap.

Sources: blktap drivers/block-vhd.c (reserve_new_block, schedule_redundant_bm_write), vhd/lib/libvhd.c
(vhd_end_of_headers, vhd_batmap_header_offset, vhd_checksum_batmap); SM drivers/lvhdutil.py (calcSizeVHDLV).
"""

import sys
from array import array
from typing import Iterable, List, NamedTuple, Optional, Sequence

from relvmoiscsi.device import SECTOR, Range, align_up
from relvmoiscsi.errors import BadChecksum, Malformed, Place, Unsupported
from relvmoiscsi.formats import vhd
from relvmoiscsi.formats.checksum import byte_sum
from relvmoiscsi.formats.ondisk import expect_magic
from relvmoiscsi.formats.vhd import BatmapHeader, DynamicHeader, LocatorEntry, locator_space

UNIT = 4096  #: bytes
SLOT_UNITS = 513
BLOCK_BYTES = 2 << 20
BLOCK_SECTORS = BLOCK_BYTES // SECTOR
UNUSED = 0xFFFFFFFF  #: entry of a block that is not there
FULL = (1 << BLOCK_SECTORS) - 1  #: the bitmap of a block that has all sectors

_PADDING_SECTORS = 7
ENTRY_BYTES = 4
#: what SM takes for the headers of a VHD, whatever its size: lvhdutil.VHD_FOOTER_SIZE and the rest of calcSizeVHDLV
_FORMULA_BYTES = 4329472


class Geometry(NamedTuple):
    """Where the tables of an image lie, in bytes from the start of its volume."""

    table: Range  #: the whole block allocation table
    batmap_header: int
    first_slot_unit: int  #: of an image without parent locators


def geometry(header: DynamicHeader, batmap: Optional[BatmapHeader] = None) -> Geometry:
    """The geometry that a header and the batmap's header give."""
    table = Range(header.table_offset, ENTRY_BYTES * header.max_bat_entries)
    batmap_header = align_up(table.end, SECTOR)
    end = batmap_header + BatmapHeader.SIZE
    if batmap is not None:
        end = max(end, batmap.batmap_offset + batmap.batmap_sectors * SECTOR)
    return Geometry(table, batmap_header, _unit_behind(end))


def end_of_headers(header: DynamicHeader, batmap: BatmapHeader) -> int:
    """Bytes: where the headers of an image end, its locators included. Source: libvhd, vhd_end_of_headers."""
    end = batmap.batmap_offset + batmap.batmap_sectors * SECTOR
    for index in range(vhd.LOCATOR_COUNT):
        entry = LocatorEntry.at(bytes(header), DynamicHeader.locators.offset + index * LocatorEntry.SIZE)
        if entry.code != vhd.LOCATOR_NONE:
            end = max(end, entry.data_offset + locator_space(entry))
    return end


def _unit_behind(end: int) -> int:
    """The unit whose last sector is the first possible bitmap behind `end` bytes."""
    sector = align_up(end, SECTOR) // SECTOR
    return (sector + (_PADDING_SECTORS - sector) % 8) // 8


def entry_of(unit: int) -> int:
    """The table's entry for a slot that begins at a unit."""
    return unit * 8 + _PADDING_SECTORS


def unit_of(entry: int) -> Optional[int]:
    """The unit at which the slot of an entry begins; None where the data is not on a 4 KiB boundary."""
    return entry // 8 if entry % 8 == _PADDING_SECTORS else None


def bitmap_at(entry: int) -> int:
    """Bytes from the start of the volume to the bitmap of a block."""
    return entry * SECTOR


def data_at(entry: int) -> int:
    """Bytes from the start of the volume to the data of a block."""
    return (entry + 1) * SECTOR


def formula_size(virtual_size: int) -> int:
    """Bytes: how large SM makes the volume of a VHD that may become full, before it rounds up to extents."""
    return virtual_size + _FORMULA_BYTES + UNIT * block_count(virtual_size)


def block_count(virtual_size: int) -> int:
    return -(-virtual_size // BLOCK_BYTES)


# --- the block allocation table


def read_entries(data: bytes) -> Sequence[int]:
    """The entries in the bytes of a table."""
    found = array("I", data)
    if sys.byteorder == "little":
        found.byteswap()
    return found


def table_bytes(entries: Iterable[int]) -> bytes:
    found = array("I", entries)
    if sys.byteorder == "little":
        found.byteswap()
    return found.tobytes()


# --- bitmaps


def bitmap_bytes(bits: int) -> bytes:
    return bits.to_bytes(SECTOR, "big")


def read_bitmap(data: bytes) -> int:
    return int.from_bytes(data, "big")


def first_sectors(count: int) -> int:
    """The bits of the first so many sectors of a block."""
    return FULL ^ (FULL >> count) if count < BLOCK_SECTORS else FULL


def runs(bits: int) -> List[Range]:
    """The stretches of sectors whose bits are set, in sectors from the start of the block."""
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


def read_batmap_header(data: bytes, where: Place) -> BatmapHeader:
    """Raises FormatError; Unsupported for an image that has no batmap."""
    header = BatmapHeader.at(data, 0, where)
    expect_magic("VHD batmap", where, header.cookie, vhd.BATMAP_COOKIE)
    if header.version not in vhd.BATMAP_VERSIONS:
        raise Unsupported("VHD batmap", where, f"its version is 0x{header.version:08x}")
    return header


class Batmap:
    """Which blocks are full, as an image's batmap says."""

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
    """The batmap; `data` are its bytes. Raises FormatError: tapdisk does not open an image whose batmap is wrong."""
    if len(data) < checked_bytes(virtual_size):
        raise Malformed("VHD batmap", where, f"it has {len(data)} bytes for {virtual_size} bytes of disk")
    computed = batmap_checksum(header.version, data, virtual_size)
    if header.checksum != computed:
        raise BadChecksum("VHD batmap", where, header.checksum, computed)
    return Batmap(data)


def batmap_checksum(version: int, data: bytes, virtual_size: int) -> int:
    """The checksum of a batmap; version 1.1 adds bytes as signed numbers. Source: libvhd, vhd_checksum_batmap."""
    covered = data[: checked_bytes(virtual_size)]
    total = byte_sum(covered)
    if version == vhd.BATMAP_VERSIONS[0]:
        total -= 256 * sum(1 for byte in covered if byte > 127)
    return ~total & 0xFFFFFFFF


def checked_bytes(virtual_size: int) -> int:
    """How many bytes of a batmap libvhd reads, and its checksum covers: it tells nothing about blocks behind."""
    return align_up(max(1, virtual_size >> 24), SECTOR)
