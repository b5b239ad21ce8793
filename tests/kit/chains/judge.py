# SPDX-License-Identifier: LGPL-2.1-only
"""Is a VHD without a parent as good as one that tapdisk wrote? Looks at it, then lets a guest and sm work with it.

    check(disk, lv_name)                Found: what `vhd-util check` would complain of, and how dense it is
    fill_completely(disk, lv_name)      a guest writes every block of its disk
    sm_cycle(disk, lv_name)             deflate, snapshot, write 1 / 3 / all new blocks, inflate, coalesce
    judge(disk, lv_name, flat)          all of it, and whether a guest reads `flat` in the beginning

The last three raise Wrong, an AssertionError. All of them work on copies of the disk. The VG has free extents, but the
image gets only the extents that SM would give it: so dead space inside the image shows as an error. The expected bytes
come from `flat`, never from `Tapdisk`.
"""

import random
import struct
from typing import Iterator, List, NamedTuple, Optional, Tuple

from ..build_volumes import BLOCK
from ..reader import footer_ok
from ..sparse import SparseDisk
from . import sm
from .flat import SECTOR, SECTORS, Flat, flatten, guest_blocks
from .guest import Guest, Writer, unlike
from .libvhd import entries_of, random_uuid
from .lun import EXTENT, Lun, Volume
from .tapdisk import Tapdisk

_FREE = 0xFFFFFFFF
_SLOT = 8 + SECTORS
_MOST_ENTRIES = 1 << 20


class Wrong(AssertionError):
    """What a VHD does that one of tapdisk's would not."""


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
    return _check(Lun.read(disk).volume(lv_name))


def _check(volume: Volume) -> Found:
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


# -- working with it ------------------------------------------------------------------------------------------------


class _Work:
    """A copy of an SR with room, and what the guest of one of its disks should read."""

    def __init__(self, disk: SparseDisk, lv_name: str, seed: object) -> None:
        self.name = lv_name
        self._require_none(check(disk, lv_name).problems, "at first")
        size, blocks = guest_blocks(disk, lv_name)
        self.guest = Guest(size, blocks)
        self.dice = random.Random(f"judge {seed}")
        self.writer = Writer(self.dice)
        self.lun = Lun.read(disk, room=4 + 2 * sm.calc_size_vhd_lv(size) // EXTENT)

    @property
    def blocks(self) -> range:
        return range(-(-self.guest.size // BLOCK))

    def unallocated(self) -> List[int]:
        image = _Image(self.lun.volume(self.name))
        return [block for block in range(image.blocks) if block not in image.used]

    def open(self) -> Tapdisk:
        return Tapdisk(sm.attach(self.lun, self.name))

    def write(self, disk: Tapdisk, block: int, how: str) -> None:
        for sector, data in self.writer.to_block(block, self.guest.size, how):
            self.guest.write(sector, data)
            try:
                disk.write(sector, data)
            except OSError as problem:
                left = len(self.unallocated())
                raise Wrong(f"the guest cannot write block {block}, {left} have no place yet: {problem}") from problem

    def compare(self, when: str) -> None:
        self.lun.commit()
        difference = unlike(flatten(self.lun.disk, self.name), self.guest.flat())
        if difference:
            raise Wrong(f"{when}: {difference}")

    def check(self, when: str) -> None:
        self._require_none(_check(self.lun.volume(self.name)).problems, when)

    @staticmethod
    def _require_none(problems: Tuple[str, ...], when: str) -> None:
        if problems:
            raise Wrong("{}: {}".format(when, "; ".join(problems)))


def fill_completely(disk: SparseDisk, lv_name: str, seed: object = 0) -> None:
    """A guest writes every block, on a volume as large as it is or as sm makes it. Raises Wrong.

    First to each block that has no place, in any order, whole or in part; then to all of them, whole. After each the
    guest reads what it should, and at last the image is one to `check`.
    """
    work = _Work(disk, lv_name, seed)
    new = work.unallocated()
    work.dice.shuffle(new)
    for when, blocks, shapes in (
        ("when every block had a place", new, ("ends", "spots", "tail", "whole", "all but one")),
        ("when some of each block was written", list(work.blocks), ("ends", "head")),
        ("when the whole disk was written", list(work.blocks), ("whole", "whole in pieces")),
    ):
        opened = work.open()
        for block in blocks:
            work.write(opened, block, work.dice.choice(shapes))
        opened.close()
        work.compare(when)
        work.check(when)


def sm_cycle(disk: SparseDisk, lv_name: str, seed: object = 0) -> None:
    """Deflate, snapshot, write to 1, 3 or all of the new blocks, inflate, coalesce. Raises Wrong."""
    for count in (1, 3, 1 << 20):
        _one_cycle(_Work(disk, lv_name, f"{seed} {count}"), count)


def _one_cycle(work: _Work, count: int) -> None:
    new, base = work.unallocated(), "VHD-ffffffff-0000-4000-8000-000000000001"
    chosen = work.dice.sample(new, min(count, len(new)))
    said = f"after {len(chosen)} new blocks"
    sm.snapshot(work.lun, work.name, base, random_uuid(base))
    work.compare("after a snapshot")
    opened = work.open()
    for block in chosen + work.dice.sample(work.blocks, min(2, len(work.blocks))):
        work.write(opened, block, work.dice.choice(("spots", "whole", "all but one")))
    opened.close()
    work.compare(f"{said}, in the leaf")
    try:
        sm.coalesce_leaf(work.lun, work.name)
    except OSError as problem:
        raise Wrong(f"{said}, coalescing fails with -{problem.errno}: {problem}") from problem
    work.compare(f"{said}, coalesced")
    work.check(f"{said}, coalesced")


def judge(disk: SparseDisk, lv_name: str, flat: Optional[Flat] = None, seed: object = 0) -> Found:
    """Everything. Raises Wrong; gives what `check` found, which may not be dense and yet harmless: see Found."""
    difference = unlike(flatten(disk, lv_name), flat) if flat else ""
    if difference:
        raise Wrong(f"at first: {difference}")
    fill_completely(disk, lv_name, seed)
    sm_cycle(disk, lv_name, seed)
    return check(disk, lv_name)
