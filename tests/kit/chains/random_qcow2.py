# SPDX-License-Identifier: LGPL-2.1-only
"""SRs with one live VDI and a chain of QCOW2 images under it, by chance; as `random_chain` has them of VHDs.

    chain = random_qcow2(7)                 the same for the same seed; what chance would choose may be fixed

Clusters of several sizes, disks that have grown, zeros over data, images without any, leaked clusters, a raw base,
volumes in pieces on extents that were not empty, thick ones and thin ones, hardly any free extents.
"""

import random
from typing import Any, Dict, Optional, Union

from ..build_volumes import Record, uuids_by_key
from .guest import Guest, Writer
from .lun import EXTENT
from .qemu import Qemu, make, set_hidden, set_size
from .random_chain import Chain, _Life, chosen, made_once


@made_once
def random_qcow2(seed: Union[int, str], **fixed: Any) -> Chain:
    """An SR by chance. What is `fixed` is named as `_by_chance` names it."""
    dice = random.Random(f"qcow2 {seed}")
    return _Qcow2Life(dice, chosen(fixed, _by_chance(fixed.get("depth"), fixed.get("bits"), dice))).run()


def _by_chance(depth: Optional[int], bits: Optional[int], dice: random.Random) -> Dict[str, Any]:
    chance = dice.choice((2, 2, 2, 3, 3, 4, 5, 6, dice.randint(7, 30)))
    depth = chance if depth is None else depth
    chance = dice.choice((12, 12, 14, 16, 16, 16))
    bits = chance if bits is None else bits
    return {
        "depth": depth,  # images from the leaf to the last base
        "clusters": dice.choice((40, 64, 100, 150) if bits >= 16 else (500, 1024, 1300, 2600)),  # of the disk, at first
        "bits": bits,  # of a cluster's size
        "mixed": dice.random() < 0.2,  # images have clusters of other sizes
        "odd": dice.random() < 0.25,  # the first size is no multiple of a cluster
        "grown": dice.random() < 0.4,
        "thick": dice.random() < 0.6,
        "snapshots": dice.random() < 0.6,
        "empty": dice.choice((0.0, 0.2, 0.2, 0.5)),  # how often an image has no cluster
        "busy": dice.choice((0.02, 0.1, 0.3, 0.7, 1.0)) / (3 if depth > 6 else 1),  # how many of them an image writes
        "full": dice.random() < 0.3,  # the base is written completely
        "zeros": dice.choice((0.0, 0.1, 0.4)),  # how many of the written ones are zeroed
        "leaks": dice.choice((0, 0, 3, 20)),
        "raw": dice.random() < 0.2,  # the last base is a raw volume
        "free": dice.choice((4, 8, 40)),  # extents that the VG has left
        "pieces": dice.choice((1, 2, 5, 1000)),  # the longest run of extents
        "stale": True,
    }


def volume_size(size: int, cluster: int) -> int:
    """Bytes of a volume in which every cluster of a disk can be, in whole extents."""
    data = -(-size // cluster)
    tables = -(-data // (cluster // 8))
    first = -(-tables * 8 // cluster)
    counts = 0
    while counts * (cluster // 2) < 2 + data + tables + first + counts:
        counts += 1
    return -(-(2 + data + tables + first + counts) * cluster // EXTENT) * EXTENT


class _Qcow2Life(_Life):
    """An SR, from its first VDI on. What is of extents and of MGT is as it is with VHDs."""

    def __init__(self, dice: random.Random, options: Any) -> None:
        super().__init__(dice, options)
        self.leaf = "QCOW2-" + self.uuids["leaf"]
        self.bits = options.bits

    def _first(self) -> None:
        size = self.options.clusters << self.bits
        if self.options.odd:
            size -= self.dice.choice((512, 1 << self.bits - 1, (1 << self.bits) - 512))
        self.guest = Guest(size)
        self.records.append(Record(self.uuids["leaf"], "the disk", vdi_type="qcow2"))
        if self.options.raw and self.options.depth > 1:
            self._begin_raw(-(-size // EXTENT) * EXTENT)
            return
        self._soil(size)
        self.lun.create(self.leaf, self._volume_size(size))
        make(self.lun, self.leaf, size, "", self.bits)
        self.story.append(f"disk of {size} bytes, clusters of {1 << self.bits}")

    def _begin_raw(self, size: int) -> None:
        """A VDI of an old pool, that has been snapshotted since."""
        base = self._new_uuid("raw base")
        self._soil(size)
        volume = self.lun.create("LV-" + base, size)
        data = Writer(self.dice).data(size // 512)
        volume.write(0, data)
        volume.tags = ("hidden",)
        self.guest = Guest(size)
        self.guest.write(0, data)
        self.base_copy("LV-" + base, "aio")
        self.lun.create(self.leaf, self._volume_size(size))
        make(self.lun, self.leaf, size, "LV-" + base, self.bits)
        self.story.append(f"raw base of {size} bytes, clusters of {1 << self.bits}")

    def _volume_size(self, size: int) -> int:
        return volume_size(size, 1 << self.bits)

    def _a_day(self) -> None:
        dice = self.dice
        if self.options.grown and dice.random() < 0.5:
            self._grow()
        if dice.random() < self.options.empty:
            self.story.append("nothing written")
            return
        disk = Qemu(self.lun, self.leaf)
        for _ in range(dice.randint(0, self.options.leaks)):
            self._try(disk.leak)
        whole = self.options.full and not self.members
        count = disk.clusters if whole else max(1, round(disk.clusters * self.options.busy))
        left = count
        while left > 0:
            start = dice.randrange(disk.clusters)
            row = min(dice.choice((1, 1, 2, 5, 16, 40)), disk.clusters - start, left)
            self._write(disk, start, row)
            left -= row
        for _ in range(round(count * self.options.zeros)):
            self._zero(disk, dice.randrange(disk.clusters))
        self.story.append(f"{count} clusters written")

    def _write(self, disk: Qemu, start: int, row: int) -> None:
        cluster = disk.cluster
        first, end = start * cluster, min((start + row) * cluster, self.guest.size)
        if self.dice.random() < 0.5 and end - first > 1024:
            first += 512 * self.dice.randrange(1, min(cluster // 512, (end - first) // 512))
        data = self.writer.data((end - first) // 512)
        self._try(lambda: disk.write(first, data))
        self.guest.write(first // 512, data)

    def _zero(self, disk: Qemu, number: int) -> None:
        first = number * disk.cluster
        end = min(first + disk.cluster, self.guest.size)
        self._try(lambda: disk.zero(number))
        self.guest.write(first // 512, bytes(end - first))

    def _try(self, work: Any) -> None:
        """Leaks take room that SM has not reckoned with."""
        try:
            work()
        except OSError:
            self.lun.resize(self.lun.volume(self.leaf), self.lun.volume(self.leaf).size + EXTENT)
            work()

    def _grow(self) -> None:
        size = (-(-self.guest.size >> self.bits) + self.dice.choice((1, 7, 40))) << self.bits
        if size <= self.guest.size or -(-size // (1 << 2 * self.bits - 3)) * 8 > 1 << self.bits:
            return
        volume = self.lun.volume(self.leaf)
        self.lun.resize(volume, max(volume.size, self._volume_size(size)))
        set_size(self.lun, self.leaf, size)
        self.guest.grow(size)
        self.story.append(f"grown to {size} bytes")

    def _snapshot(self) -> None:
        base = self._new_uuid(f"base {len(self.members)}")
        self.lun.rename(self.lun.volume(self.leaf), "QCOW2-" + base)
        set_hidden(self.lun, "QCOW2-" + base, True)
        self.lun.volume("QCOW2-" + base).writable = False
        self.base_copy("QCOW2-" + base, "qcow2")
        if self.options.mixed:
            self.bits = max(12, min(18, self.bits + self.dice.choice((-2, -1, 0, 1, 2))))
        size = self.guest.size
        self._soil(size)
        thick = self.options.thick or self.dice.random() < 0.5
        self.lun.create(self.leaf, self._volume_size(size) if thick else EXTENT)
        make(self.lun, self.leaf, size, "QCOW2-" + base, self.bits)
        if not thick:
            self.lun.resize(self.lun.volume(self.leaf), self._volume_size(size))
        if self.options.snapshots and self.dice.random() < 0.6:
            copy = self._new_uuid(f"snapshot {len(self.members)}")
            self.lun.create("QCOW2-" + copy, EXTENT)
            make(self.lun, "QCOW2-" + copy, size, "QCOW2-" + base, self.bits)
            self.shown_copy("QCOW2-" + copy, "qcow2")
        self.story.append("snapshot")

    def _evening(self) -> None:
        """Nobody crashes."""

    def _new_uuid(self, key: str) -> str:
        return uuids_by_key([key], self.seed)[key]
