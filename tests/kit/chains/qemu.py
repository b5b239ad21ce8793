# SPDX-License-Identifier: LGPL-2.1-only
"""What QEMU's block layer, inside tapdisk, does to a QCOW2 in a volume when a guest writes; and what qemu-img makes.

    make(lun, name, size, parent)   `qemu-img create`, and SM's extension
    disk = Qemu(lun, name)          opens for writing
    disk.write(offset, data)        raises OSError with ENOSPC where the volume has no room
    disk.zero(cluster)              a write of zeros that keeps the place

Where a cluster goes   the first place from where the last search ended at which as many clusters are free in a row as
                       the write needs; what was passed by is not looked at again before the image is opened anew
What is written        whole clusters: what the guest does not write comes from the image as it was, or its parents
Zeros                  a cluster that is there keeps its place, and says zeros; it is written there again

Source: QEMU 7.2 block/qcow2-cluster.c (handle_copied, handle_alloc, do_alloc_cluster_offset, zero_in_l2_slice),
qcow2-refcount.c (alloc_clusters_noref, update_refcount, qcow2_alloc_refcount_block).
"""

import struct
from typing import Dict, List, Optional

from ..build_volumes import Qcow2Spec, qcow2_head
from .lun import Lun, no_space
from .qcow2 import PLACE, USED_ONCE, Image, layers_of, span

MOST_IN_A_ROW = 16  #: clusters that one write takes at the most: 1 MiB of 64 KiB each


def make(
    lun: Lun,
    name: str,
    size: int,
    parent: str = "",
    cluster_bits: int = 16,
    hidden: Optional[bool] = False,
) -> None:
    """An empty image in a volume that is there: header, table of counts, counts, first table."""
    volume, cluster = lun.volume(name), 1 << cluster_bits
    backing = f"/dev/{lun.vg_name}/{parent}" if parent else ""
    vate = None if hidden is None else int(hidden)
    spec = Qcow2Spec(size, backing, "raw" if parent.startswith("LV-") else "qcow2", vate, "")
    tables = -(-size // (cluster * (cluster // 8)))
    first = -(-tables * 8 // cluster)
    volume.write(0, b"".join(qcow2_head(spec, cluster_bits)).ljust(cluster, b"\0"))
    volume.write(cluster, struct.pack(">Q", 2 * cluster).ljust(cluster, b"\0"))
    volume.write(2 * cluster, struct.pack(f">{3 + first}H", *[1] * (3 + first)).ljust(cluster, b"\0"))
    volume.write(3 * cluster, bytes(first * cluster))


def set_hidden(lun: Lun, name: str, hidden: bool) -> None:
    head = lun.volume(name).read(0, 4096)
    at = head.index(struct.pack(">II", 0x76617465, 8)) + 8
    lun.volume(name).write(at, bytes([hidden]))


def set_size(lun: Lun, name: str, size: int) -> None:
    """`qemu-img resize`, as far as the first table has room in its cluster."""
    image = Image(lun.volume(name))
    tables = -(-size // (image.cluster * image.per_table))
    assert tables * 8 <= image.cluster and size >= image.size
    image.volume.write(24, struct.pack(">Q", size))
    image.volume.write(36, struct.pack(">I", tables))


class Qemu:
    """An image that is open for a guest."""

    def __init__(self, lun: Lun, name: str) -> None:
        self.lun, self.name, self.volume = lun, name, lun.volume(name)
        image = Image(self.volume)
        self.size, self.cluster, self.per_table = image.size, image.cluster, image.per_table
        self._parents = layers_of(lun, name)[1:]
        self.parent, self._l1_at, self._counts_at = image.parent, image.l1_at, image.counts_at
        self._blocks = list(image._words(image.counts_at, image.counts_clusters * image.per_table))
        self._l1 = list(image.l1)
        self._tables: Dict[int, List[int]] = {n: list(image.table(n)) for n, entry in enumerate(self._l1) if entry}
        self._per_block = self.cluster // 2
        self._counts: Dict[int, List[int]] = {
            number: list(struct.unpack(f">{self._per_block}H", self.volume.read(place, self.cluster)))
            for number, place in enumerate(self._blocks)
            if place
        }
        self._next = 0

    @property
    def clusters(self) -> int:
        return -(-self.size // self.cluster)

    def entry(self, number: int) -> int:
        table, at = divmod(number, self.per_table)
        return self._tables[table][at] if table in self._tables else 0

    # -- what a guest does

    def write(self, offset: int, data: bytes) -> None:
        assert offset + len(data) <= self.size, "guests cannot write past the end of their disks"
        at, end = offset, offset + len(data)
        while at < end:
            number = at // self.cluster
            if self._is_own(number):
                part = min(end, (number + 1) * self.cluster) - at
                self._write_own(number, at, data[at - offset : at - offset + part])
            else:
                last = (end - 1) // self.cluster
                row = 1
                while row < MOST_IN_A_ROW and number + row <= last and not self._is_own(number + row):
                    row += 1
                part = min(end, (number + row) * self.cluster) - at
                self._write_new(number, row, at, data[at - offset : at - offset + part])
            at += part

    def zero(self, number: int) -> None:
        entry = self.entry(number)
        self._set_entry(number, entry | 1)

    def leak(self) -> None:
        """A cluster is counted, and nobody names it: what a crash leaves."""
        self._take(1)

    def _is_own(self, number: int) -> bool:
        return bool(self.entry(number) & USED_ONCE)

    def _write_own(self, number: int, at: int, data: bytes) -> None:
        entry = self.entry(number)
        if entry & 1:
            data, at = self._around(at, data, number, 1), number * self.cluster
            self.volume.write(entry & PLACE, data)
            self._set_entry(number, entry & ~1)
        else:
            self.volume.write((entry & PLACE) + at % self.cluster, data)

    def _write_new(self, number: int, row: int, at: int, data: bytes) -> None:
        whole = self._around(at, data, number, row)
        for table in {number // self.per_table, (number + row - 1) // self.per_table}:
            self._make_table(table)
        place = self._take(row)
        self.volume.write(place, whole)
        for index in range(row):
            self._set_entry(number + index, place + index * self.cluster | USED_ONCE)

    def _around(self, at: int, data: bytes, number: int, row: int) -> bytes:
        start, end = number * self.cluster, (number + row) * self.cluster
        return self._before(start, at) + data + self._before(at + len(data), end)

    def _before(self, start: int, end: int) -> bytes:
        """Bytes [start, end) of the disk, of clusters without data of their own."""
        found: List[bytes] = []
        while start < end:
            part = min(end, start - start % self.cluster + self.cluster) - start
            inside = 0 if self.entry(start // self.cluster) & 1 else max(0, min(part, self.size - start))
            found.append(span(self._parents, start, inside).ljust(part, b"\0"))
            start += part
        return b"".join(found)

    # -- tables

    def _make_table(self, table: int) -> None:
        if table not in self._tables:
            place = self._take(1)
            self.volume.write(place, bytes(self.cluster))
            self._tables[table] = [0] * self.per_table
            self._l1[table] = place | USED_ONCE
            self.volume.write(self._l1_at + 8 * table, struct.pack(">Q", self._l1[table]))

    def _set_entry(self, number: int, entry: int) -> None:
        table, at = divmod(number, self.per_table)
        self._make_table(table)
        self._tables[table][at] = entry
        self.volume.write((self._l1[table] & PLACE) + 8 * at, struct.pack(">Q", entry))

    # -- counts

    def _count(self, cluster: int) -> int:
        block, at = divmod(cluster, self._per_block)
        return self._counts[block][at] if block in self._counts else 0

    def _find(self, row: int) -> int:
        found = 0
        while found < row:
            found = 0 if self._count(self._next) else found + 1
            self._next += 1
        return self._next - row

    def _take(self, row: int) -> int:
        """The place of so many free clusters in a row."""
        while True:
            start = self._find(row)
            if (start + row) * self.cluster > self.volume.size:
                raise no_space(f"{row} clusters in a row in {self.name}")
            blocks = {cluster // self._per_block for cluster in range(start, start + row)}
            missing = [block for block in sorted(blocks) if block not in self._counts]
            if not missing:
                break
            self._next = start
            self._make_counts(missing[0])
        for cluster in range(start, start + row):
            self._set_count(cluster, 1)
        return start * self.cluster

    def _make_counts(self, block: int) -> None:
        place = self._find(1)
        assert block < len(self._blocks), "the table of counts would have to grow"
        if (place + 1) * self.cluster > self.volume.size:
            raise no_space(f"counts in {self.name}")
        self._counts[block] = [0] * self._per_block
        self._blocks[block] = place * self.cluster
        self.volume.write(place * self.cluster, bytes(self.cluster))
        self.volume.write(self._counts_at + 8 * block, struct.pack(">Q", place * self.cluster))
        self._set_count(place, 1)

    def _set_count(self, cluster: int, count: int) -> None:
        block, at = divmod(cluster, self._per_block)
        if block not in self._counts:
            self._make_counts(block)
        self._counts[block][at] = count
        self.volume.write(self._blocks[block] + 2 * at, struct.pack(">H", count))
