# SPDX-License-Identifier: LGPL-2.1-only
"""Whether a QCOW2 that was made of a chain is as good as one that QEMU wrote, for guest and storage manager.

    judge(disk, "QCOW2-...", flat)      everything; raises Wrong

A guest fills the disk, in long writes and in short writes, and writes first to the blocks without a place. The volume
has its present size, or the size that SM would give it. The image must fit into the volume, and no other volume may
change. If the volume has room, the guest first writes zeros to these blocks, so that QEMU frees the places that they
have.
"""

import random
from typing import List, Optional, Tuple

from ..sparse import SparseDisk
from .flat import Flat
from .guest import Guest, Writer, unlike
from .judge import Wrong
from .lun import EXTENT, Lun
from .qcow2 import PLACE, Found, Image, check, flatten, read_disk
from .qemu import Qemu
from .random_qcow2 import volume_size


def judge(disk: SparseDisk, name: str, flat: Optional[Flat] = None, seed: object = 0) -> Found:
    """Everything; gives what `check` has found first."""
    difference = unlike(flatten(disk, name), flat) if flat else ""
    if difference:
        raise Wrong(f"at first: {difference}")
    found = _checked(disk, name, "at first")
    if found.unallocated and found.pieces > 1:
        raise Wrong(f"{found.free} free clusters lie in {found.pieces} pieces, {found.unallocated} have no place")
    fill_completely(disk, name, seed)
    if has_room(found):
        fill_completely(disk, name, seed, is_zeroed=True)
    return found


def has_room(found: Found) -> bool:
    """Whether there is a free cluster for each that has no data."""
    return found.free >= found.unallocated + found.given


def _checked(disk: SparseDisk, name: str, when: str) -> Found:
    found = check(disk, name)
    if found.problems:
        raise Wrong("{}: {}".format(when, "; ".join(found.problems[:5])))
    return found


def fill_completely(disk: SparseDisk, name: str, seed: object = 0, is_zeroed: bool = False) -> None:
    """A guest writes to every cluster of its disk, zeros first where nothing was if asked to. Raises Wrong."""
    dice = random.Random(f"fill {seed}")
    lun = Lun.read(disk, room=2 + Image(Lun.read(disk).volume(name)).size // EXTENT)
    volume = lun.volume(name)
    image = Image(volume)
    wanted = volume_size(image.size, image.cluster)
    if volume.size < wanted:
        lun.resize(volume, wanted)
    others = {part.offset: part for other in lun.volumes.values() if other is not volume
              for part in other.ranges(0, other.size)}  # fmt: skip
    before = lun.disk.copy()
    guest = Guest(image.size)
    guest.write(0, read_disk(lun, name, 0, image.size))
    qemu, writer = Qemu(lun, name), Writer(dice)
    if is_zeroed:
        for number in range(qemu.clusters):
            if qemu.entry(number) & (PLACE | 1) == 0 or qemu.entry(number) & 1:
                qemu.unmap(number)
    for start, row in _rows(dice, qemu):
        first, end = start * qemu.cluster, min((start + row) * qemu.cluster, image.size)
        data = writer.data((end - first) // 512)
        try:
            qemu.write(first, data)
        except OSError as problem:
            raise Wrong(f"the guest cannot write {row} clusters at {start}: {problem}") from problem
        guest.write(first // 512, data)
    lun.commit()
    difference = unlike(flatten(lun.disk, name), guest.flat())
    if difference:
        raise Wrong(f"when the disk was written: {difference}")
    _checked(lun.disk, name, "when the disk was written")
    if any(lun.disk.peek(part.offset, part.length) != before.peek(part.offset, part.length)
           for part in others.values()):  # fmt: skip
        raise Wrong("another volume was written to")


def _rows(dice: random.Random, qemu: Qemu) -> List[Tuple[int, int]]:
    """Rows of clusters, in any order: those that have no place first."""
    rows: List[Tuple[int, int]] = []
    at = 0
    while at < qemu.clusters:
        row = min(dice.choice((1, 3, 16, 16, 16)), qemu.clusters - at)
        rows.append((at, row))
        at += row
    dice.shuffle(rows)
    return sorted(rows, key=lambda row: bool(qemu.entry(row[0]) & PLACE))
