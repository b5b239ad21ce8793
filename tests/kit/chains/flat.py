# SPDX-License-Identifier: LGPL-2.1-only
"""What a guest reads through a disk of an SR: VHD chains flattened, block by block.

Written for judging, from the format's description and what libvhd and tapdisk do, and not from the engine:

    footer    the last sector of the LV if it is valid, else the copy at offset 0
    header    where the footer says; the block table and the batmap where the header says
    sector    its own if the block has a place and the block's bitmap (or the batmap) has its bit; else the parent's;
              zero where there is no parent or the parent is smaller
    parent    the LV that the header names, as sm's scan reads it; a zero prt_uuid: a raw one. The locators, which
              tapdisk goes by, are compared with it, and so is the footer uuid of the parent

    flatten(disk, "VHD-...")    a Flat: its size, and a digest of each block of 2 MiB that is not all zero

Most blocks of the tests are zeros. So a digest covers only the pages of 4 KiB with other bytes, and their places.
"""

import hashlib
import re
import struct
from typing import Callable, Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..lvmreader import Vg, read_vg
from ..reader import UUID, dm_target, footer_ok, kind_of, lv_bytes
from ..sparse import SparseDisk

SECTOR = 512
BLOCK = 2 << 20
SECTORS = BLOCK // SECTOR
_FREE = 0xFFFFFFFF
_ALL = (1 << SECTORS) - 1
_PAGE = 4096
_ZEROS = bytes(BLOCK)
_ZERO_PAGE = bytes(_PAGE)
_WINDOW = 32 << 10  #: that much is compared with zeros at once


class Flat(NamedTuple):
    """The guest's view of a disk."""

    size: int  #: bytes
    blocks: Tuple[Tuple[int, str], ...]  #: (number, digest) of each block of 2 MiB that is not all zero


class Link(NamedTuple):
    """One layer of a chain, and what is doubtful about how it names its parent."""

    lv_name: str
    doubts: Tuple[str, ...]


class ChainError(Exception):
    """A chain that cannot be read: a parent that is gone or another one, a VHD that is none, a loop."""


class _Layer(NamedTuple):
    lv_name: str
    size: int
    own: Callable[[int], int]  #: block number to the sectors it has, as bits, the first sector highest
    data: Callable[[int, int, int], bytes]  #: block number, offset in it and length to bytes
    parent: str  #: LV name; empty: none
    prt_uuid: bytes
    uuid: bytes  #: footer uuid; empty: a raw volume
    doubts: Tuple[str, ...]


def flatten(
    disk: SparseDisk, lv_name: str, found_as: Optional[Mapping[str, str]] = None, grown: Collection[str] = ()
) -> Flat:
    """What a guest reads through an LV of the VG on `disk`.

    `found_as` maps the name of an LV in the chain to its name on the disk, until a rename is undone. `grown` has the
    names on the disk of LVs whose last sector belongs to another owner. Raises ChainError.
    """
    layers = _layers(disk, lv_name, found_as, grown)
    size = layers[0].size
    digests = ((number, _digest(_pieces(layers, number))) for number in range(-(-size // BLOCK)))
    return Flat(size, tuple((number, found) for number, found in digests if found))


def digest(data: bytes) -> str:
    """Of a block, whole sectors, as a Flat has it; empty where the block is zero."""
    return _digest([(0, data)])


def _digest(pieces: Iterable[Tuple[int, bytes]]) -> str:
    """Of a block that is zero but for pieces, each (offset in the block, whole sectors)."""
    found: List[Tuple[int, bytes]] = []
    for start, data in _whole_pages(list(pieces)):
        for first in range(0, len(data), _WINDOW):
            window = data[first : first + _WINDOW]
            if window != _ZEROS[: len(window)]:
                pages = ((at, window[at : at + _PAGE]) for at in range(0, len(window), _PAGE))
                found += [(start + first + at, page) for at, page in pages if page != _ZERO_PAGE]
    found.sort()
    if not found:
        return ""
    places = struct.pack(f">{len(found)}I", *(at for at, _ in found))
    return hashlib.sha256(places + b"".join(page for _, page in found)).hexdigest()


def _whole_pages(pieces: List[Tuple[int, bytes]]) -> List[Tuple[int, bytes]]:
    """The pieces if they are of whole pages, else the block that they make."""
    if all(start % _PAGE == len(data) % _PAGE == 0 for start, data in pieces):
        return pieces
    return [(0, _joined(pieces))]


def _joined(pieces: Iterable[Tuple[int, bytes]]) -> bytes:
    """One block of the guest's disk."""
    found = bytearray(BLOCK)
    for start, data in pieces:
        found[start : start + len(data)] = data
    return bytes(found)


def links(disk: SparseDisk, lv_name: str) -> Tuple[Link, ...]:
    """The chain of an LV, itself first."""
    return tuple(Link(layer.lv_name, layer.doubts) for layer in _layers(disk, lv_name))


def guest_bytes(disk: SparseDisk, lv_name: str, offset: int, length: int) -> bytes:
    """Bytes a guest reads; they must lie in one block of 2 MiB."""
    number, start = divmod(offset, BLOCK)
    assert start + length <= BLOCK, (offset, length)
    return _block(_layers(disk, lv_name), number)[start : start + length]


def digest_of_sectors(size: int, sectors: Mapping[int, bytes]) -> Flat:
    """The Flat of a disk that holds these sectors and is zero everywhere else."""
    blocks: Dict[int, bytearray] = {}
    for number, data in sectors.items():
        block, at = divmod(number, SECTORS)
        buffer = blocks.setdefault(block, bytearray(min(BLOCK, size - block * BLOCK)))
        buffer[at * SECTOR : (at + 1) * SECTOR] = data
    found = ((number, digest(bytes(data))) for number, data in sorted(blocks.items()))
    return Flat(size, tuple((number, digest) for number, digest in found if digest))


# -- layers ---------------------------------------------------------------------------------------------------------


def _layers(
    disk: SparseDisk, lv_name: str, found_as: Optional[Mapping[str, str]] = None, grown: Collection[str] = ()
) -> List[_Layer]:
    vg = read_vg(disk)
    if vg is None:
        raise ChainError(f"there is no VG on {disk.name}")
    layers: List[_Layer] = []
    name = lv_name
    while name:
        if any(layer.lv_name == name for layer in layers):
            raise ChainError(f"{name} is its own ancestor")
        found = (found_as or {}).get(name, name)
        layer = _layer(disk, vg, name, found, found in grown)
        if layers and layers[-1].prt_uuid != (layer.uuid or bytes(16)):
            raise ChainError(f"{name} is not the parent of {layers[-1].lv_name} by its footer uuid")
        layers.append(layer)
        name = layer.parent
    return layers


def _layer(disk: SparseDisk, vg: Vg, name: str, found: str, grown: bool) -> _Layer:
    lv = next((lv for lv in vg.lvs if lv.name == found), None)
    if lv is None:
        raise ChainError(f"there is no LV {found}")
    size = lv.extents * vg.extent_bytes

    def at(offset: int, length: int) -> bytes:
        inside = max(0, min(length, size - offset))
        return lv_bytes(disk, vg, lv, offset, inside).ljust(length, b"\0")

    if kind_of(found) == "raw":
        return _Layer(name, size, lambda _: _ALL, lambda number, *part: at(number * BLOCK + part[0], part[1]), "", b"",
                      b"", ())  # fmt: skip
    return _vhd_layer(name, 0 if grown else size - SECTOR, at)


def _vhd_layer(name: str, footer_at: int, at: Callable[[int, int], bytes]) -> _Layer:
    footer = next((data for data in (at(footer_at, SECTOR), at(0, SECTOR)) if footer_ok(data)), b"")
    if not footer:
        raise ChainError(f"{name} holds no VHD")
    header_at, size, disk_type = struct.unpack_from(">16xQ24xQ4xI", footer)
    header = at(header_at, 1024)
    cookie, table_at, entries, block_size = struct.unpack_from(">8s8xQ4xII", header)
    if cookie != b"cxsparse" or block_size != BLOCK or disk_type not in (3, 4):
        raise ChainError(f"{name} is no VHD that sm makes")
    used = min(entries, -(-size // BLOCK))
    table = struct.unpack(f">{used}I", at(table_at, 4 * used))
    full = _batmap(at, table_at + -(-4 * entries // SECTOR) * SECTOR, entries)

    def own(number: int) -> int:
        if number >= used or table[number] == _FREE:
            return 0
        if full[number // 8] & 0x80 >> number % 8:
            return _ALL
        return int.from_bytes(at(table[number] * SECTOR, SECTORS // 8), "big")

    def data(number: int, offset: int, length: int) -> bytes:
        return at(table[number] * SECTOR + SECTORS // 8 + offset, length)

    parent, doubts = _parent(name, header, at) if disk_type == 4 else ("", ())
    return _Layer(name, size, own, data, parent, header[40:56], footer[68:84], tuple(doubts))


def _batmap(at: Callable[[int, int], bytes], header_at: int, entries: int) -> bytes:
    """One bit for each block of which all sectors are there; all clear where there is no batmap."""
    cookie, offset, sectors = struct.unpack_from(">8sQI", at(header_at, SECTOR))
    length = -(-entries // 8)
    return at(offset, min(length, sectors * SECTOR)).ljust(length, b"\0") if cookie == b"tdbatmap" else bytes(length)


def _parent(name: str, header: bytes, at: Callable[[int, int], bytes]) -> Tuple[str, Tuple[str, ...]]:
    """The LV that the header names, and which locators name another one."""
    named = dm_target(header[64:576].decode("utf-16-be", "replace").rstrip("\0"))
    if not re.match(f"(VHD|LV)-{UUID}$", named[1]):
        raise ChainError(f"{name} has a parent name that leads nowhere: {named}")
    doubts: List[str] = []
    for number in range(8):
        code, _, length, _, offset = struct.unpack_from(">4sIIIQ", header, 576 + 24 * number)
        if code in (b"MacX", b"W2ku", b"W2ru"):
            text = at(offset, length).decode("utf-8" if code == b"MacX" else "utf-16-le", "replace")
            if dm_target(text) != named:
                doubts.append(f"{code.decode()} names {dm_target(text)[1]}")
    return named[1], tuple(doubts)


def _block(layers: List[_Layer], number: int) -> bytes:
    return _joined(_pieces(layers, number))


def _pieces(layers: List[_Layer], number: int) -> Iterator[Tuple[int, bytes]]:
    """What layers have of a block: (offset in it, whole sectors), in no order; all else of it is zero."""
    missing = _ALL
    for layer in layers:
        inside = max(0, min(SECTORS, (layer.size - number * BLOCK) // SECTOR))
        missing &= _ALL ^ (_ALL >> inside)  # past the end of a smaller parent there are zeros
        own = layer.own(number) if missing else 0
        taken = missing & own
        if taken:
            for run in re.finditer("1+", format(taken, f"0{SECTORS}b")):
                start, end = run.start() * SECTOR, run.end() * SECTOR
                yield start, layer.data(number, start, end - start)
        missing &= ~own
        if not missing:
            break
