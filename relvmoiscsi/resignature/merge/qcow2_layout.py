# SPDX-License-Identifier: LGPL-2.1-only
"""The layout of the new QCOW2: the extents of the chain that stay, and the clusters that are copied. Pure.

    head      new extents: header, count table, counts, tables of the first and of the second level, copied clusters
    retained      old extents with data, the extents of each image in a row; they also hold dead clusters
    tail      extents for the clusters that no image has; the run writes nothing there

A cluster in a retained extent is alive when it holds data of the disk, and dead otherwise.

SM makes a volume exactly as large as a full image needs. QEMU puts a new cluster at a place with a count of zero. For a
write of n clusters, QEMU needs n free places in a row. QEMU does not return to free places that QEMU has passed. So a
disk that fills up between scattered free clusters would run out of volume.

So the first layout (roomy) does not count dead clusters as room. Its tail has a place for each cluster that no image
has, so the volume is larger than SM's by the dead clusters. SM accepts the larger volume. But SM then does not grow the
disk by less than the surplus. The clusters of an extent of which half or more is dead are copied: this needs fewer
clusters than it saves.

In both layouts each dead cluster becomes the place of a cluster of the disk that no image has, and reads as zeros. In a
volume of SM's size this is enough, until the guest writes zeros there: then tapdisk makes QEMU free the cluster. So
that layout (second) is only for a LUN without room for the first layout. The second layout copies as few clusters as
possible: the clusters of the extents with the least data. A disk that SM grew later has the same room as with the
second layout.
"""

from array import array
from collections import Counter
from itertools import islice
from typing import Counter as CounterOf
from typing import FrozenSet, Iterator, List, Sequence, Tuple

from relvmoiscsi.errors import Refused
from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.lvm.vg import LogicalVolume
from relvmoiscsi.formats.qcow2 import ENTRY_BYTES, MAX_L1_BYTES
from relvmoiscsi.formats.qcow2_clusters import ZEROS, Needs
from relvmoiscsi.resignature.merge.compact import Arrays, Memory
from relvmoiscsi.resignature.merge.qcow2_chain import (
    BYTES_FOR_TABLE,
    EXTENT_SHIFT,
    TIMES_PACKED,
    Qcow2Member,
    cut_short,
    find_owners,
)
from relvmoiscsi.resignature.merge.strategy import EXTENT_BYTES, NEW, Cost


class Qcow2Layout:
    """The parts of the new image and their places. The volume keeps the extents `retained`, which are in its order.

    With `thick` the volume has room for a full disk, with `is_roomy` beside its dead clusters.
    """

    def __init__(self, disk: "_Disk", retained: Sequence[int], thick: bool, is_roomy: bool) -> None:
        self.unit = disk.unit  #: bytes of a cluster of the new image
        self.units, self.per_table, self.per_extent = disk.units, disk.per_table, disk.per_extent
        self.owners = disk.owners  #: the owners of units, by the number of the table
        self.retained = tuple(retained)  #: extents, as `owner >> EXTENT_SHIFT`
        #: units of the disk that an image has
        self.block_count = sum(disk.alive.values()) + len(disk.cut)
        alive = sum(disk.alive[extent] for extent in retained)
        #: the number of extents in the head; its clusters, beside one cluster for the header
        self.head_extents, self.needed = disk.head(len(retained), alive, self.block_count - alive)
        extents = self.head_extents + len(retained)
        if thick:
            # the tail has room for all clusters, tables and counts that the image lacks
            absent, tail = self.units - self.block_count + disk.table_count - self.needed.second_level, 0
            while is_roomy:
                counts = clusters.counts_for((extents + tail) * self.per_extent, self.unit) - self.needed.counts
                if absent + counts <= tail * self.per_extent:
                    break
                tail = -(-(absent + counts) // self.per_extent)
            extents = max(extents + tail, disk.most_extents)
        else:
            extents += SPARE_EXTENTS
        self.size_bytes = extents * EXTENT_BYTES  #: of the new volume
        empty = (table for table in range(disk.table_count) if table not in self.owners)
        more = self.needed.second_level - len(self.owners)
        #: the tables of the second level, in the order of their numbers: the tables in `owners`, and empty tables
        self.tables = tuple(sorted([*self.owners, *islice(empty, more)]))
        #: the owners of the units that get a new place in the head, by unit, in the order of the places
        self.copied = dict(disk.copied(frozenset(retained)))
        self.cut = disk.cut  #: the units of which a guest sees a part only: the number of bytes
        self.first_copy = self.needed.total  #: the unit of the volume at which the copied units begin
        # the parts of the head, in bytes from the start of the volume; the count table is behind the header
        self.counts_at = (1 + self.needed.count_table) * self.unit
        self.first_level_at = self.counts_at + self.needed.counts * self.unit
        self.second_level_at = self.first_level_at + self.needed.first_level * self.unit
        count = len(self.copied)
        self.cost = Cost(
            blocks=self.block_count,
            remapped=self.block_count - count,
            copied=count,
            data_bytes=count * self.unit,
        )

    def retained_extents(self, lvs: Sequence[LogicalVolume]) -> "array[int]":
        """The physical extents that stay, in the form of `strategy.Room.place`. `lvs` has the volume of each image."""
        found = array("q", [NEW]) * (self.size_bytes // EXTENT_BYTES)
        for index, extent in enumerate(self.retained):
            image, at = divmod(extent, 1 << 56 - EXTENT_SHIFT)
            found[self.head_extents + index] = lvs[image - 1].pes(at, at + 1)[0].start
        return found


#: a layout copies at most so many bytes to save extents
MOST_COPIED_BYTES = 1 << 30

#: spare extents of a thin volume: SM grows a disk there without growing the volume, and larger tables need room
SPARE_EXTENTS = 1

#: memory as measured: for a cluster that is copied, for an extent with data, for the first-level table
_BYTES_FOR_COPY, _BYTES_FOR_ALIVE, _TIMES_FIRST_LEVEL = 200, 300, 5


def layouts(members: Sequence[Qcow2Member], thick: bool, memory: Memory) -> Iterator[Qcow2Layout]:
    """The layouts: first with room beside the dead clusters, then as large as SM makes the volume.

    With `thick` the volume has room for a full disk. `memory` counts the memory for a layout; raises Refused when the
    memory is too much.
    """
    unit, leaf = min(member.cluster_bytes for member in members if member.cluster_bytes), members[0]
    first_level_bytes = ENTRY_BYTES * -(-leaf.virtual_size // (unit * unit // ENTRY_BYTES))
    if first_level_bytes > MAX_L1_BYTES:
        raise Refused(
            f"The disk of {leaf.name} has {leaf.virtual_size} bytes, and an image of its chain has clusters of {unit} "
            "bytes: with such clusters, no QCOW2 has so large a disk.",
            sm_key="InvalidArg",
        ).advising("Let the original coalesce, or ask for all VDIs (`vdis=all`).")
    memory.take(_TIMES_FIRST_LEVEL * first_level_bytes)
    owners, counted = Arrays(), sum(len(member.tables) for member in members)
    for number, table in find_owners(members, unit):
        owners[number] = table
        if len(owners) > counted:  # large clusters, or a raw volume: a table has several tables of the new image
            memory.take(BYTES_FOR_TABLE + TIMES_PACKED * owners.size_bytes(number))
    disk = _Disk(members, unit, owners)
    memory.take(_BYTES_FOR_ALIVE * len(disk.alive))
    dense, everything, as_sm_makes_it = disk.half_alive(), sorted(disk.alive), disk.that_fit()
    memory.take(_BYTES_FOR_COPY * (disk.copied_bytes(dense) // unit))
    yield Qcow2Layout(disk, dense, thick, is_roomy=True)
    if everything != dense:
        yield Qcow2Layout(disk, everything, thick, is_roomy=True)
    if disk.copied_bytes(as_sm_makes_it) <= MOST_COPIED_BYTES:
        yield Qcow2Layout(disk, as_sm_makes_it, thick, is_roomy=False)


class _Disk:
    """The disk of the chain: the owner of each unit, the live units in each extent. Chooses the extents that stay."""

    def __init__(self, members: Sequence[Qcow2Member], unit: int, owners: Arrays) -> None:
        self.unit, self.owners, disk_bytes = unit, owners, members[0].virtual_size
        self.units, self.per_extent, self.per_table = -(-disk_bytes // unit), EXTENT_BYTES // unit, unit // ENTRY_BYTES
        self.cut = cut_short(members, unit, owners)
        self.alive: CounterOf[int] = Counter()  # the number of live units in each extent
        for table in owners:
            self.alive.update([owner >> EXTENT_SHIFT for owner in owners[table] if owner > ZEROS])
        for number in self.cut:
            extent = owners[number // self.per_table][number % self.per_table] >> EXTENT_SHIFT
            self.alive[extent] -= 1
            if not self.alive[extent]:
                del self.alive[extent]
        self.table_count = -(-self.units // self.per_table)
        self.in_tables = sum(min(self.per_table, self.units - table * self.per_table) for table in owners)
        size = clusters.formula_size(disk_bytes)
        if unit < clusters.SM_CLUSTER_BYTES:
            size = max(size, clusters.full_size(disk_bytes, unit))
        self.most_extents = -(-size // EXTENT_BYTES)

    def half_alive(self) -> List[int]:
        """The extents of which more than half is alive, and extents that MOST_COPIED_BYTES forbids to copy."""
        retained = sorted(self.alive, key=lambda extent: (-self.alive[extent], extent))
        copied = 0
        while retained and 2 * self.alive[retained[-1]] <= self.per_extent:
            copied += self.alive[retained[-1]] * self.unit
            if copied > MOST_COPIED_BYTES:
                break
            retained.pop()
        return sorted(retained)

    def that_fit(self) -> List[int]:
        """The extents with the most live clusters, as many as fit beside the head into a volume of SM's size."""
        retained = sorted(self.alive, key=lambda extent: (-self.alive[extent], extent))
        alive, copied = sum(self.alive.values()), len(self.cut)
        while retained and self.head(len(retained), alive, copied)[0] + len(retained) > self.most_extents:
            moved = self.alive[retained.pop()]
            alive, copied = alive - moved, copied + moved
        return sorted(retained)

    def copied_bytes(self, retained: Sequence[int]) -> int:
        return (sum(self.alive.values()) - sum(self.alive[extent] for extent in retained)) * self.unit

    def head(self, retained: int, alive: int, copied: int) -> Tuple[int, Needs]:
        """The number of extents of the head, and the clusters in the head, with tables for all dead units."""
        dead = retained * self.per_extent - alive + self.per_extent  # the last extent of the head has dead units, too
        in_tables = self.in_tables - alive - copied
        more = -(-max(0, dead - in_tables) // self.per_table)
        tables = min(self.table_count, len(self.owners) + more)
        most_units = (self.most_extents + retained + 1) * self.per_extent
        count_table = -(-clusters.counts_for(most_units, self.unit) // self.per_table)
        head, counts = 0, 0
        while True:
            needed = Needs(-(-self.table_count // self.per_table), tables, count_table, counts)
            head = -(-(needed.total + copied) // self.per_extent)
            wanted = clusters.counts_for((head + retained) * self.per_extent, self.unit)
            if wanted == counts:
                return head, needed
            counts = wanted

    def copied(self, retained: FrozenSet[int]) -> Iterator[Tuple[int, int]]:
        """The units that are not in retained extents, and their owners, in the order of the disk."""
        if len(retained) == len(self.alive) and not self.cut:
            return
        for table in self.owners:
            owners = self.owners[table]
            first = table * self.per_table
            for number, owner in enumerate(owners, first):
                if owner > ZEROS and (number in self.cut or owner >> EXTENT_SHIFT not in retained):
                    yield number, owner
