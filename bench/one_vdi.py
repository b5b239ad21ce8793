# SPDX-License-Identifier: LGPL-2.1-only
"""What it takes to make one VDI of a disk with a snapshot, beside what would copy: counted, on LUNs in memory.

Coalescing, as vhd-util does it in a live pool, reads every sector of the leaf and writes it into the parent. `qemu-img
convert` reads all that a guest can read and writes it to a second image. Both are computed from the same chain: what
they move follows from the format. What ours reads and writes is counted.
"""

import random
import uuid
from typing import Any, Dict, List, NamedTuple, Tuple

from bench.table import print_table, size, verdict
from kit.chains import sm
from kit.chains.libvhd import Vhd
from kit.chains.lun import Lun
from kit.cuts import entropy
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import CountingDevice
from relvmoiscsi.resignature.one_vdi.choice import Request

BLOCK = 2 << 20
SLOT_SECTORS = 8 * 513
FIRST_ENTRY = 8455
GIB = 1 << 30
#: so many blocks of a GiB have the base and the leaf; a leaf's last blocks lack a half of their sectors
BASE_BLOCKS, LEAF_BLOCKS = 140, 90
SIZES = ((8, 0), (80, 0), (8, 40), (80, 40))


class Chain(NamedTuple):
    """A LUN with a base and its leaf, and how many sectors the leaf has."""

    disk: SparseDisk
    leaf_sectors: int
    blocks: int  #: that any image has


def chain(gib: int, partial: int) -> Chain:
    """A disk of so many GiB; `partial` of the leaf's blocks have a half of their sectors, the others have all."""
    dice = random.Random(f"{gib} {partial}")
    count = gib * GIB // BLOCK
    lun = Lun.new(str(uuid.UUID(int=7)), 3 * gib * 256 + 1200, f"bench {gib}")
    names = ["VHD-" + str(uuid.UUID(int=number)) for number in (1, 2)]
    sm.create(lun, names[0], gib * GIB, uuid.UUID(int=11))
    base = dice.sample(range(count), gib * BASE_BLOCKS)
    _fill(Vhd(lun.volume(names[0])), base, [])
    sm.snapshot(lun, names[0], names[1], uuid.UUID(int=12))
    leaf = dice.sample(base, partial) + dice.sample(range(count), gib * LEAF_BLOCKS)
    leaf = list(dict.fromkeys(leaf))
    _fill(Vhd(lun.volume(names[0])), leaf[partial:], leaf[:partial])
    lun.commit()
    half = SLOT_SECTORS // 2
    return Chain(lun.disk, (len(leaf) - partial) * BLOCK // 512 + partial * half, len({*base, *leaf}))


def _fill(vhd: Vhd, full: List[int], partial: List[int]) -> None:
    """Blocks in the order in which a guest has written to them. Their data is zeros: nobody here looks at it."""
    for slot, block in enumerate([*full, *partial]):
        vhd.set_entry(block, FIRST_ENTRY + slot * SLOT_SECTORS)
        if block in partial:
            vhd.write_bitmap(block, (1 << 2048) - 1)
        else:
            vhd.write_bitmap(block, (1 << 4096) - 1)
            vhd.set_full(block)
    vhd.write_batmap()


def measured(gib: int, partial: int) -> Tuple[Chain, CountingDevice]:
    made = chain(gib, partial)
    counting = CountingDevice(made.disk)
    engine.resignature(counting, engine.prepare(counting, entropy(0), one=Request()))
    return made, counting


def run(results: Dict[str, Any], unmet: List[str]) -> None:
    rows, written = [], {}
    for gib, partial in SIZES:
        made, ours = measured(gib, partial)
        written[gib, partial] = ours.bytes_written
        moved = [made.leaf_sectors * 512, made.blocks * BLOCK]
        name = f"{gib} GiB" + (f", {partial} partial blocks" if partial else "")
        rows.append([name, size(ours.bytes_read), size(ours.bytes_written), *map(size, moved)])
    print_table(
        "One VDI of a disk with one snapshot: bytes",
        ("", "read", "written", "coalescing moves", "qemu-img convert moves"),
        rows,
        "Counted are ours, identities included; the others are computed.",
    )
    print()
    for partial in sorted({partial for _gib, partial in SIZES}):
        small, large = (written[gib, partial] for gib in (8, 80))
        what = f"one VDI, {partial} partial blocks: ten times the disk, at most 4 MiB more written"
        verdict(what, large - small <= 4 << 20, size(max(0, large - small)), unmet)
    results["one_vdi"] = {f"{gib} GiB, {partial} partial": count for (gib, partial), count in written.items()}
