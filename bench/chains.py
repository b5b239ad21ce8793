# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs with one disk and its snapshot, a base and a leaf above it, as large as you like: their tables alone.

What a guest has written is told in blocks of 2 MiB. The data is zeros, which nobody here looks at.
"""

import random
import uuid
from array import array
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from kit.chains import qemu, sm
from kit.chains.libvhd import Vhd
from kit.chains.lun import Lun, Volume
from kit.chains.qcow2 import USED_ONCE
from kit.chains.random_qcow2 import volume_size
from kit.sparse import SparseDisk

BLOCK = 2 << 20
GIB = 1 << 30
#: so many blocks of a GiB have the base and the leaf
BASE_BLOCKS, LEAF_BLOCKS = 140, 90

_SLOT_SECTORS = 8 * 513
_FIRST_ENTRY = 8455
_CLUSTER = 64 << 10
_PER_BLOCK = BLOCK // _CLUSTER
_PER_TABLE = _CLUSTER // 8
_PER_COUNTS = _CLUSTER // 2


class Written(NamedTuple):
    """What a guest has written to a disk: before its snapshot, and since."""

    gib: int
    base: Sequence[int]
    full: Sequence[int]  #: since, whole blocks
    partial: Sequence[int]  #: since, the first half of blocks that the base has


class Chain(NamedTuple):
    """A LUN with a base and its leaf, and how much there is to move for those who move all of it."""

    disk: SparseDisk
    leaf_bytes: int  #: that the leaf has
    disk_bytes: int  #: that any of the two has


def written(gib: int, partial: int, beside: bool = False) -> Written:
    """By chance, `partial` blocks in part. `beside`: whole blocks are written since where the base has none."""
    dice = random.Random(f"{gib} {partial}")
    count = gib * GIB // BLOCK
    base = dice.sample(range(count), gib * BASE_BLOCKS)
    halves = dice.sample(base, partial)
    there = set(base if beside else halves)
    full = [block for block in dice.sample(range(count), gib * LEAF_BLOCKS) if block not in there]
    return Written(gib, base, full, halves)


def vhds(wanted: Written) -> Chain:
    lun, names = _lun(wanted, "VHD")
    sm.create(lun, names[0], wanted.gib * GIB, uuid.UUID(int=11))
    _fill_vhd(Vhd(lun.volume(names[0])), wanted.base, [])
    sm.snapshot(lun, names[0], names[1], uuid.UUID(int=12))
    _fill_vhd(Vhd(lun.volume(names[0])), wanted.full, wanted.partial)
    lun.commit()
    blocks = len({*wanted.base, *wanted.full})
    return Chain(lun.disk, len(wanted.full) * BLOCK + len(wanted.partial) * BLOCK // 2, blocks * BLOCK)


def qcow2s(wanted: Written) -> Chain:
    lun, names = _lun(wanted, "QCOW2")
    size = wanted.gib * GIB
    lun.create(names[1], volume_size(size, _CLUSTER))
    qemu.make(lun, names[1], size, hidden=True)
    _fill_qcow2(lun.volume(names[1]), size, wanted.base, ())
    lun.create(names[0], volume_size(size, _CLUSTER))
    qemu.make(lun, names[0], size, names[1])
    _fill_qcow2(lun.volume(names[0]), size, wanted.full, wanted.partial)
    lun.commit()
    blocks = len({*wanted.base, *wanted.full})
    return Chain(lun.disk, len(wanted.full) * BLOCK + len(wanted.partial) * BLOCK // 2, blocks * BLOCK)


def _lun(wanted: Written, kind: str) -> Tuple[Lun, List[str]]:
    lun = Lun.new(str(uuid.UUID(int=7)), 3 * wanted.gib * 256 + 1200, f"bench {wanted.gib}")
    return lun, [f"{kind}-{uuid.UUID(int=number)}" for number in (1, 2)]


def _fill_vhd(vhd: Vhd, full: Sequence[int], partial: Sequence[int]) -> None:
    """Blocks in the order in which a guest has written to them."""
    halves = set(partial)
    for slot, block in enumerate([*full, *partial]):
        vhd.set_entry(block, _FIRST_ENTRY + slot * _SLOT_SECTORS)
        if block in halves:
            vhd.write_bitmap(block, (1 << 2048) - 1)
        else:
            vhd.write_bitmap(block, (1 << 4096) - 1)
            vhd.set_full(block)
    vhd.write_batmap()


def _fill_qcow2(volume: Volume, size: int, full: Sequence[int], partial: Sequence[int]) -> None:
    """Clusters in the order in which a guest has written to them; tables and counts where QEMU comes to need them."""
    tables: Dict[int, array[int]] = {}
    first = array("Q", [0]) * -(-size // (_CLUSTER * _PER_TABLE))
    at = 3 + -(-len(first) * 8 // _CLUSTER)
    counts = {0: 2}
    for block, clusters in _runs(full, partial):
        for number in range(block * _PER_BLOCK, block * _PER_BLOCK + clusters):
            table, index = divmod(number, _PER_TABLE)
            while table not in tables or at // _PER_COUNTS not in counts:
                if at // _PER_COUNTS not in counts:
                    counts[at // _PER_COUNTS] = at
                else:
                    tables[table] = array("Q", [0]) * _PER_TABLE
                    first[table] = USED_ONCE | at * _CLUSTER
                at += 1
            tables[table][index] = USED_ONCE | at * _CLUSTER
            at += 1
    for table, entries in tables.items():
        volume.write(first[table] & ~USED_ONCE, _big_endian(entries))
    volume.write(3 * _CLUSTER, _big_endian(first))
    volume.write(_CLUSTER, _big_endian(array("Q", [counts[block] * _CLUSTER for block in sorted(counts)])))
    for block, place in counts.items():
        used = min(at - block * _PER_COUNTS, _PER_COUNTS)
        volume.write(place * _CLUSTER, b"\0\1" * used + bytes(_CLUSTER - 2 * used))


def _runs(full: Sequence[int], partial: Sequence[int]) -> Iterator[Tuple[int, int]]:
    """Blocks, and how many of their first clusters were written."""
    for block in full:
        yield block, _PER_BLOCK
    for block in partial:
        yield block, _PER_BLOCK // 2


def _big_endian(numbers: "array[int]") -> bytes:
    found = array("Q", numbers)
    found.byteswap()
    return found.tobytes()
