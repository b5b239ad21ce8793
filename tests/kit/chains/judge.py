# SPDX-License-Identifier: LGPL-2.1-only
"""Is a VHD without a parent as good as one that tapdisk wrote?

    check(disk, lv_name)    Found: what `vhd-util check` would complain of, and how dense the VHD is

SM gives a volume the size of its formula, so dead space may leave a guest or a coalesce without room.
"""

import struct
from typing import Iterator, NamedTuple, Tuple

from ..build_volumes import BLOCK
from ..reader import footer_ok
from ..sparse import SparseDisk
from . import sm
from .flat import SECTOR, SECTORS
from .libvhd import entries_of
from .lun import Lun, Volume

_FREE = 0xFFFFFFFF
_SLOT = 8 + SECTORS
_MOST_ENTRIES = 1 << 20


class Found(NamedTuple):
    """What is to be said of a VHD."""

    problems: Tuple[str, ...]
    allocated: int  #: blocks
    unallocated: int  #: blocks of the guest's disk that have no place; with none, nobody ever allocates
    dead_bytes: int  #: from the first block's place to the last block's end, beyond what the blocks take
    full_bytes: int  #: volume that it needs when every block has a place
    size: int  #: bytes of the guest's disk

    @property
    def dense(self) -> bool:
        """As one that tapdisk wrote, or done with allocating."""
        return self.dead_bytes == 0 or self.unallocated == 0

    @property
    def above_formula(self) -> int:
        """Bytes of volume that it needs beyond what sm gives it. Harmless only where no block is unallocated."""
        return max(0, self.full_bytes - sm.calc_size_vhd_lv(self.size))

    @property
    def can_be_filled(self) -> bool:
        """On a volume as large as SM makes it, by a guest, and in a coalesce."""
        return self.unallocated == 0 or self.above_formula == 0


# -- looking --------------------------------------------------------------------------------------------------------


class _Image:
    """The parts of a dynamic VHD, by offset; nothing is believed."""

    def __init__(self, volume: Volume) -> None:
        self.volume, self.at = volume, volume.read
        self.first, self.last = self.at(0, SECTOR), self.at(volume.size - SECTOR, SECTOR)
        self.header = self.at(SECTOR, 1024)
        self.header_at, self.size, self.type = struct.unpack_from(">16xQ24xQ4xI", self.first)
        self.table_at, self.entries, self.block_size = struct.unpack_from(">16xQ4xII", self.header)
        self.used = dict(entries_of(self.at(self.table_at, 4 * min(self.entries, _MOST_ENTRIES))))
        self.map_header_at = self.table_at + -(-4 * self.entries // SECTOR) * SECTOR
        self.map_header = self.at(self.map_header_at, SECTOR)
        self.map_at, self.map_sectors = struct.unpack_from(">8xQI", self.map_header)
        self.map = self.at(self.map_at, min(self.map_sectors, 4096) * SECTOR)

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def headers_end(self) -> int:
        """Sector. A VHD without locators has nothing behind its batmap."""
        return max(self.map_at // SECTOR + self.map_sectors, self.map_header_at // SECTOR + 1)

    @property
    def first_entry(self) -> int:
        return self.headers_end + -(self.headers_end + 1) % 8

    def full(self, block: int) -> bool:
        return bool(self.map[block // 8] & 0x80 >> block % 8)


def check(disk: SparseDisk, lv_name: str) -> Found:
    """What `vhd-util check` and tapdisk's own rules demand of a dynamic VHD that is at rest, and its density."""
    volume = Lun.read(disk).volume(lv_name)
    image = _Image(volume)
    problems = [*_footers(image), *_header(image)]
    if not problems:
        problems = [*_batmap(image), *_places(image)]
    unallocated = sum(block not in image.used for block in range(image.blocks))
    end = max([image.first_entry - 8 - SECTORS, *image.used.values()]) + 1 + SECTORS
    dead = end - (image.first_entry - 7) - len(image.used) * _SLOT
    return Found(tuple(f"{volume.name}: {problem}" for problem in problems), len(image.used), unallocated,
                 dead * SECTOR, (end + unallocated * _SLOT + 1) * SECTOR, image.size)  # fmt: skip


def _footers(image: _Image) -> Iterator[str]:
    for where, data in (("start", image.first), ("end", image.last)):
        if not footer_ok(data):
            yield f"the footer at its {where} is bad"
    if image.first != image.last:
        yield "its two footers differ"
    if image.type != 3:
        yield f"it is of type {image.type} and not dynamic"
    if image.first[84:86] != b"\0\0":
        yield "it is hidden, or saved"
    if any(image.first[86:]) or not any(image.first[68:84]):
        yield "reserved bytes of its footer are not zero, or its uuid is"


def _header(image: _Image) -> Iterator[str]:
    header = image.header
    summed = ~(sum(header[:36]) + sum(header[40:])) & _FREE
    if image.header_at != SECTOR or header[:16] != b"cxsparse" + b"\xff" * 8:
        yield "it has no header"
    elif summed != struct.unpack_from(">I", header, 36)[0]:
        yield "the checksum of its header is wrong"
    if image.block_size != BLOCK or image.entries < image.blocks:
        yield f"{image.entries} blocks of {image.block_size} bytes are none of sm's, or too few"
    for what, start, end in (
        ("parent uuid", 40, 56),
        ("parent timestamp", 56, 60),
        ("reserved field", 60, 64),
        ("parent name", 64, 576),
        ("locators", 576, 768),
        ("reserved bytes", 768, 1024),
    ):
        if any(header[start:end]):
            yield f"the {what} of its header is not zero"


def _batmap(image: _Image) -> Iterator[str]:
    cookie, _, sectors, version, stored = struct.unpack_from(">8sQIII", image.map_header)
    if cookie != b"tdbatmap" or version != 0x00010002 or sectors * SECTOR * 8 < image.entries:
        yield "it has no batmap of version 1.2 for all its blocks"
        return
    covered = max(SECTOR, -(-(image.size >> 24) // SECTOR) * SECTOR)
    if ~sum(image.map[:covered]) & _FREE != stored:
        yield "the checksum of its batmap is wrong"
    used = enumerate(image.map.rstrip(b"\0"))
    marked = [8 * at + bit for at, byte in used if byte for bit in range(8) if byte & 0x80 >> bit]
    for block in marked:
        if block not in image.used:
            yield f"the batmap calls block {block} full, which is nowhere"
        elif block >= 8 * covered:
            yield f"the batmap has a bit for block {block}, behind what its checksum covers"


def _places(image: _Image) -> Iterator[str]:
    end = 0
    for entry, block in sorted((entry, block) for block, entry in image.used.items()):
        if block >= image.blocks:
            yield f"block {block} has a place and is behind the end of the disk"
        if entry % 8 != 7:  # else its pad, too, is nobody else's
            yield f"the data of block {block} at sector {entry} are not on a page"
        if entry < image.headers_end:
            yield f"block {block} at sector {entry} lies in the headers"
        if entry < end:
            yield f"block {block} at sector {entry} lies in another block"
        end = entry + 1 + SECTORS
        if end * SECTOR > image.volume.size - SECTOR:
            yield f"block {block} at sector {entry} lies in the footer or behind it"
        yield from _bitmap(image, block, entry)


def _bitmap(image: _Image, block: int, entry: int) -> Iterator[str]:
    inside = min(SECTORS, image.size // SECTOR - block * SECTORS)
    bits = int.from_bytes(image.at(entry * SECTOR, SECTOR), "big")
    if bits & ((1 << (SECTORS - inside)) - 1):
        yield f"block {block} has sectors behind the end of the disk"
    if image.full(block) and bits != (1 << SECTORS) - 1:
        yield f"the batmap calls block {block} full, and its bitmap does not"
