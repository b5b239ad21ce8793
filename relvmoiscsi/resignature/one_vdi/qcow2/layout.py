# SPDX-License-Identifier: LGPL-2.1-only
"""Which extents of a QCOW2 chain stay, which clusters are copied, and what the new image is made of. Pure.

    head      new extents: header, count table, counts, tables of the first and of the second level, copied clusters
    kept      old extents with data, those of each image in a row; dead clusters among them
    tail      room for what no image has; nothing is written there

SM makes every volume as large as a full image needs, and not larger. QEMU puts new clusters where its counts say that
nobody is, but a write of several clusters only where so many are free in a row, and it does not come back to what it
has passed by: with free clusters in pieces a disk that fills up runs out of its volume. So dead clusters are no room:
the tail has a place for each cluster that no image has, and the volume is larger than SM's by what is dead. SM takes
that, but for growing the disk by less than the volume has too much. Extents of which half or more is dead are copied
together, as that takes less than it saves.

Every dead cluster is given to a cluster of the disk that no image has, as zeros with a place that is there already.
That alone would do in a volume of SM's size, until the guest writes zeros there: tapdisk has QEMU free such a cluster.
So it is the way of a LUN without room for the other, with as few clusters copied as possible, those of the extents with
the least; a disk that has grown since has no more than that either.
"""

from array import array
from collections import Counter
from typing import Counter as CounterOf
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Sequence, Tuple

from relvmoiscsi.formats import qcow2_clusters as clusters
from relvmoiscsi.formats.qcow2 import ENTRY_BYTES
from relvmoiscsi.formats.qcow2_clusters import ZEROS, Needs
from relvmoiscsi.resignature.one_vdi.compact import Arrays, Memory
from relvmoiscsi.resignature.one_vdi.extents import EXTENT_BYTES, none_kept
from relvmoiscsi.resignature.one_vdi.qcow2.members import EXTENT_SHIFT, Member, cut_short, find_homes


class Copied(NamedTuple):
    """A unit that gets a new place, and how many bytes of it are to be seen."""

    number: int
    home: int
    length: int


class Layout(NamedTuple):
    """The new image."""

    unit: int  #: bytes of its clusters
    units: int  #: of the disk
    homes: Arrays  #: of units, by the number of their table
    block_count: int  #: units of the disk that some image has
    tables: Tuple[int, ...]  #: the numbers of its tables of the second level: those of `homes`, and empty ones
    needed: Needs  #: clusters in its head, one for the header beside them
    copied: Tuple[Copied, ...]  #: behind those
    head_extents: int
    kept: Tuple[int, ...]  #: extents, as homes without their last EXTENT_SHIFT bits, in the order of the volume
    size_bytes: int  #: of the new volume, whole extents

    @property
    def per_table(self) -> int:
        return self.unit // ENTRY_BYTES

    @property
    def per_extent(self) -> int:
        return EXTENT_BYTES // self.unit

    @property
    def used_units(self) -> int:
        """Of the volume, in front of its tail."""
        return (self.head_extents + len(self.kept)) * self.per_extent

    @property
    def first_copy(self) -> int:
        """The unit of the volume at which copied clusters begin."""
        return self.needed.total


#: more than this is not copied to save extents
MOST_COPIED_BYTES = 1 << 30

#: of a volume that is to be small: SM grows a disk there without growing the volume, and its tables take some room
SPARE_EXTENTS = 1


#: of memory, roughly, as measured: for a cluster that is copied, and for an extent with data
_BYTES_FOR_COPY, _BYTES_FOR_ALIVE = 300, 300


def layouts(members: Sequence[Member], thick: bool, memory: Memory) -> Iterator[Layout]:
    """The ways to do it, the better first: with room beside the dead clusters, and as large as SM makes it.

    `thick`: the volume is to have room for a full disk. `memory` is told what a way takes, and may refuse.
    """
    unit = min(member.cluster_bytes for member in members if member.cluster_bytes)
    homes = Arrays()
    for number, table in find_homes(members, unit):
        homes[number] = table
    choice = _Choice(members, unit, homes)
    memory.take(_BYTES_FOR_ALIVE * len(choice.alive))
    dense, everything, as_sm_makes_it = choice.half_alive(), sorted(choice.alive), choice.that_fit()
    memory.take(_BYTES_FOR_COPY * (choice.copied_bytes(dense) // unit))
    yield choice.layout(dense, thick, is_roomy=True)
    if everything != dense:
        yield choice.layout(everything, thick, is_roomy=True)
    if choice.copied_bytes(as_sm_makes_it) <= MOST_COPIED_BYTES:
        yield choice.layout(as_sm_makes_it, thick, is_roomy=False)


class _Choice:
    """Which extents stay, and how large that becomes."""

    def __init__(self, members: Sequence[Member], unit: int, homes: Arrays) -> None:
        self.unit, self.homes, self.disk_bytes = unit, homes, members[0].virtual_size
        self.units, self.per_extent, self.per_table = (
            -(-self.disk_bytes // unit),
            EXTENT_BYTES // unit,
            unit // ENTRY_BYTES,
        )
        self.cut = cut_short(members, unit, homes)
        self.alive = _alive(homes)
        for number in self.cut:
            self._forget(homes[number // self.per_table][number % self.per_table])
        self.table_count = -(-self.units // self.per_table)
        self.in_tables = sum(min(self.per_table, self.units - table * self.per_table) for table in homes)
        self.most_extents = -(-max(clusters.formula_size(self.disk_bytes), self._full_size()) // EXTENT_BYTES)

    def _full_size(self) -> int:
        return clusters.full_size(self.disk_bytes, self.unit) if self.unit < clusters.SM_CLUSTER_BYTES else 0

    def _forget(self, home: int) -> None:
        extent = home >> EXTENT_SHIFT
        self.alive[extent] -= 1
        if not self.alive[extent]:
            del self.alive[extent]

    def half_alive(self) -> List[int]:
        """The extents of which more than half is alive, and as many others as would be too much to copy."""
        kept = sorted(self.alive, key=lambda extent: (-self.alive[extent], extent))
        copied = 0
        while kept and 2 * self.alive[kept[-1]] <= self.per_extent:
            copied += self.alive[kept[-1]] * self.unit
            if copied > MOST_COPIED_BYTES:
                break
            kept.pop()
        return sorted(kept)

    def that_fit(self) -> List[int]:
        """As many extents as a volume of SM's size can have beside its head, those of which most is alive."""
        kept = sorted(self.alive, key=lambda extent: (-self.alive[extent], extent))
        alive, copied = sum(self.alive.values()), len(self.cut)
        while kept and self._head(len(kept), alive, copied)[0] + len(kept) > self.most_extents:
            moved = self.alive[kept.pop()]
            alive, copied = alive - moved, copied + moved
        return sorted(kept)

    def copied_bytes(self, kept: Sequence[int]) -> int:
        return (sum(self.alive.values()) - sum(self.alive[extent] for extent in kept)) * self.unit

    def layout(self, kept: Sequence[int], thick: bool, is_roomy: bool) -> Layout:
        alive, all_alive = sum(self.alive[extent] for extent in kept), sum(self.alive.values()) + len(self.cut)
        head, needed = self._head(len(kept), alive, all_alive - alive)
        extents = head + len(kept)
        if thick:
            tail = self._tail(extents, self.units - all_alive, needed) if is_roomy else 0
            extents = max(extents + tail, self.most_extents)
        else:
            extents += SPARE_EXTENTS
        return Layout(
            unit=self.unit,
            units=self.units,
            homes=self.homes,
            block_count=all_alive,
            tables=self._tables(needed.second_level),
            needed=needed,
            copied=tuple(self._copied(frozenset(kept))),
            head_extents=head,
            kept=tuple(kept),
            size_bytes=extents * EXTENT_BYTES,
        )

    def _tail(self, used: int, absent: int, needed: Needs) -> int:
        """How many extents behind the used ones it takes for all that is not there yet: clusters, tables, counts."""
        wanted, tail = absent + self.table_count - needed.second_level, 0
        while True:
            counts = clusters.counts_for((used + tail) * self.per_extent, self.unit) - needed.counts
            if (wanted + counts) <= tail * self.per_extent:
                return tail
            tail = -(-(wanted + counts) // self.per_extent)

    def _head(self, kept: int, alive: int, copied: int) -> Tuple[int, Needs]:
        """How many extents the head takes, with tables for all dead units of the image, and what is in it."""
        dead = kept * self.per_extent - alive + self.per_extent  # and as many in the head, at the most
        in_tables = self.in_tables - alive - copied
        more = -(-max(0, dead - in_tables) // self.per_table)
        tables = min(self.table_count, len(self.homes) + more)
        most_units = (self.most_extents + kept + 1) * self.per_extent
        count_table = -(-clusters.counts_for(most_units, self.unit) // self.per_table)
        head, counts = 0, 0
        while True:
            needed = Needs(-(-self.table_count // self.per_table), tables, count_table, counts)
            head = -(-(needed.total + copied) // self.per_extent)
            wanted = clusters.counts_for((head + kept) * self.per_extent, self.unit)
            if wanted == counts:
                return head, needed
            counts = wanted

    def _tables(self, count: int) -> Tuple[int, ...]:
        empty = (table for table in range(self.table_count) if table not in self.homes)
        return (*self.homes, *(next(empty) for _ in range(count - len(self.homes))))

    def _copied(self, kept: FrozenSet[int]) -> Iterator[Copied]:
        """In the order of the disk."""
        if len(kept) == len(self.alive) and not self.cut:
            return
        for table in self.homes:
            homes = self.homes[table]
            first = table * self.per_table
            for number, home in enumerate(homes, first):
                if home > ZEROS and (number in self.cut or home >> EXTENT_SHIFT not in kept):
                    yield Copied(number, home, self.cut.get(number, self.unit))


def _alive(homes: Arrays) -> CounterOf[int]:
    """How many units of the disk each extent holds."""
    found: CounterOf[int] = Counter()
    for table in homes:
        found.update([home >> EXTENT_SHIFT for home in homes[table] if home > ZEROS])
    return found


def kept_bases(layout: Layout) -> Dict[int, int]:
    """Where each extent that stays begins in the new volume, in bytes."""
    return {extent: (layout.head_extents + index) * EXTENT_BYTES for index, extent in enumerate(layout.kept)}


def extents_kept(layout: Layout, extents: Sequence[List[int]]) -> "array[int]":
    """The physical extents that stay, as `extents.place` wants them; `extents` are those of the images."""
    found = none_kept(layout.size_bytes // EXTENT_BYTES)
    for index, extent in enumerate(layout.kept):
        image, at = divmod(extent, 1 << 56 - EXTENT_SHIFT)
        found[layout.head_extents + index] = extents[image - 1][at]
    return found
