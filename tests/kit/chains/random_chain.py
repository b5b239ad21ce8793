# SPDX-License-Identifier: LGPL-2.1-only
"""SRs with one live VDI and a chain of VHDs under it, as guests and the storage manager make them, by chance.

    chain = random_chain(7)                 the same for the same seed; what chance would choose may be fixed
    chain.disk                              a LUN, which the engine resignatures
    chain.flats["VHD-..."]                  what a guest reads through a volume, whoever it is
    chain.leaf, chain.members, chain.snapshots

Depths of 1 to 30, partial and full blocks, members without any, disks that have grown, odd sizes, thick and thin,
snapshots beside the bases, end footers that a host's crash has destroyed, extents in pieces, hardly any free ones.
Blocks lie on what was there before: nothing is zero that nobody has written.
"""

import random
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from ..build_volumes import MIB, SM_BAT_ENTRIES, MgtSpec, Record, mgt_content, noise, uuids_by_key
from ..sparse import PAGE, SparseDisk
from . import sm
from .flat import BLOCK, SECTOR, Flat
from .guest import Guest, Writer
from .libvhd import random_uuid
from .lun import EXTENT, Lun
from .tapdisk import Tapdisk

_SNAPSHOT = Record(
    "", "of then", is_a_snapshot=True, snapshot_time="20260101T00:00:00Z", metadata_of_pool="OpaqueRef:NULL"
)


class Chain(NamedTuple):
    """An SR, and what is in it."""

    disk: SparseDisk
    sr_uuid: str
    leaf: str  #: LV name
    members: Tuple[str, ...]  #: LV names, the leaf first
    snapshots: Tuple[str, ...]  #: LV names
    flats: Dict[str, Flat]  #: LV name to what a guest reads: of members and snapshots
    thick: bool
    free: int  #: extents
    story: str  #: what happened, for the reader of a failed test


def made_once(make: Callable[..., Chain]) -> Callable[..., Chain]:
    """Have `make` called once for equal arguments. Each caller gets a copy of the disk, and may change it."""
    kept = lru_cache(maxsize=32)(make)

    @wraps(make)
    def copied(*arguments: Any, **options: Any) -> Chain:
        found = kept(*arguments, **options)
        return found._replace(disk=found.disk.copy())

    return copied


@made_once
def random_chain(seed: Union[int, str], **fixed: Any) -> Chain:
    """An SR by chance. What is `fixed` is named as `_by_chance` names it."""
    dice = random.Random(f"chain {seed}")
    return _Life(dice, chosen(fixed, _by_chance(fixed.get("depth"), dice))).run()


def _by_chance(depth: Optional[int], dice: random.Random) -> Dict[str, Any]:
    chance = dice.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 6, dice.randint(7, 30)))
    depth = chance if depth is None else depth
    return {
        "depth": depth,  # VHDs from the leaf to the last base
        "blocks": dice.choice((4, 6, 8) if depth > 6 else (4, 4, 6, 8, 8, 12, 16, 32)),  # of the disk, at first
        "odd": dice.random() < 0.25,  # the first size is no multiple of a block
        "grown": dice.random() < 0.4,  # children are larger than their parents, now and then
        "thick": dice.random() < 0.6,
        "snapshots": dice.random() < 0.7,  # some of the bases have one beside the chain
        "empty": dice.choice((0.0, 0.2, 0.2, 0.5)),  # how often a member has no block
        "busy": dice.choice((0.1, 0.3, 0.6, 1.0)) / (3 if depth > 6 else 1),  # how many of its blocks a member writes
        "killed": dice.random() < 0.5,  # end footers of the leaf, and now and then of a base
        "free": dice.choice((0, 2, 4, 8, 40, 200)),  # extents that the VG has left
        "pieces": dice.choice((1, 2, 5, 1000)),  # the longest run of extents
        "record": dice.random() < 0.95,  # the leaf has one in MGT
        "stale": True,  # what nobody has written is not zero
        "bat_entries": SM_BAT_ENTRIES,
    }


def chosen(fixed: Mapping[str, Any], chance: Mapping[str, Any]) -> SimpleNamespace:
    """What is fixed, and of all else what chance has chosen."""
    assert not set(fixed) - set(chance), fixed
    return SimpleNamespace(**{**chance, **{name: value for name, value in fixed.items() if value is not None}})


class _Life:
    """An SR, from its first VDI on."""

    def __init__(self, dice: random.Random, options: SimpleNamespace) -> None:
        self.dice, self.options, self.writer = dice, options, Writer(dice)
        self.seed = f"{dice.getrandbits(64):x}"
        self.uuids = uuids_by_key(["sr", "leaf"], self.seed)
        self.lun = Lun.new(self.uuids["sr"], 4000, self.seed)
        self.stale = noise(PAGE, self.seed) if options.stale else bytes(PAGE)
        self.leaf = "VHD-" + self.uuids["leaf"]
        self.guest = Guest(0)
        self.flats: Dict[str, Flat] = {}
        self.members: List[str] = []
        self.snapshots: List[str] = []
        self.story: List[str] = []
        self.records: List[Record] = []
        self.touched = 0  #: extents that somebody has had

    def run(self) -> Chain:
        options = self.options
        self.lun.create("MGT", EXTENT)
        self._first()
        while len(self.members) + 1 < options.depth:
            self._a_day()
            self._snapshot()
        self._a_day()
        self._evening()
        self.flats[self.leaf] = self.guest.flat()
        self._write_mgt()
        return Chain(self._packed(), self.uuids["sr"], self.leaf, (self.leaf, *self.members[::-1]),
                     tuple(self.snapshots), self.flats, options.thick, options.free,
                     "; ".join(self.story))  # fmt: skip

    def base_copy(self, name: str, vdi_type: str = "vhd") -> None:
        """The disk as it is now is a base of this name."""
        self.flats[name] = self.guest.flat()
        self.members.append(name)
        uuid = name.split("-", 1)[1]
        self.records.append(Record(uuid, "base copy", vdi_type=vdi_type, read_only=True, managed=False))

    def shown_copy(self, name: str, vdi_type: str = "vhd") -> None:
        """And a snapshot of this name, which the pool shows."""
        self.flats[name] = self.guest.flat()
        self.snapshots.append(name)
        uuid = name.split("-", 1)[1]
        self.records.append(_SNAPSHOT._replace(uuid=uuid, snapshot_of=self.uuids["leaf"], vdi_type=vdi_type))

    # what happens

    def _first(self) -> None:
        size = self.options.blocks * BLOCK
        if self.options.odd:
            less = (deficit for deficit in (BLOCK - SECTOR, MIB, 8 * SECTOR) if _has_room(size, deficit))
            size -= self.dice.choice((SECTOR, *less))
        self._soil(size)
        sm.create(self.lun, self.leaf, size, self._footer(), self.options.thick, self.options.bat_entries)
        self.guest = Guest(size)
        self.story.append(f"disk of {size} bytes on a {'thick' if self.options.thick else 'thin'} SR")
        if self.options.record:
            self.records.append(Record(self.uuids["leaf"], "the disk"))

    def _a_day(self) -> None:
        """The guest writes."""
        dice = self.dice
        if self.options.grown and dice.random() < 0.5:
            self._grow()
        if dice.random() < self.options.empty:
            self.story.append("nothing written")
            return
        self._soil(self.guest.size)
        disk = Tapdisk(sm.attach(self.lun, self.leaf))
        count = -(-self.guest.size // BLOCK)
        chosen = dice.sample(range(count), max(1, round(count * self.options.busy)))
        for block in chosen:
            for sector, data in self.writer.to_block(block, self.guest.size):
                self.guest.write(sector, data)
                disk.write(sector, data)
        disk.close()
        self.story.append(f"blocks {sorted(chosen)} written")

    def _grow(self) -> None:
        size = -(-self.guest.size // BLOCK) * BLOCK + self.dice.choice((0, 1, 1, 2)) * BLOCK
        if self.guest.size < size <= self.options.bat_entries * BLOCK:
            self._soil(size)
            sm.grow(self.lun, self.leaf, size, self.options.thick)
            self.guest.grow(size)
            self.story.append(f"grown to {size} bytes")

    def _snapshot(self) -> None:
        number = len(self.members)
        base, copy = list(uuids_by_key([f"base {number}", f"snapshot {number}"], self.seed).values())
        kept = self.options.snapshots and self.dice.random() < 0.6
        self._soil(self.guest.size)
        sm.snapshot(self.lun, self.leaf, "VHD-" + base, self._footer(), "VHD-" + copy if kept else "",
                    self._footer(), self.options.thick)  # fmt: skip
        self.base_copy("VHD-" + base)
        if kept:
            self.shown_copy("VHD-" + copy)
        self.story.append("snapshot" if kept else "snapshot, deleted")

    def _evening(self) -> None:
        """The VM is shut down, or its host has crashed."""
        dice = self.dice
        if self.options.killed:
            self._soil(self.guest.size)
            disk = Tapdisk(sm.attach(self.lun, self.leaf))
            for block in {0, dice.randrange(-(-self.guest.size // BLOCK))}:
                for sector, data in self.writer.to_block(block, self.guest.size):
                    disk.write(sector, data)
                    self.guest.write(sector, data)
            disk.abandon()
            bases = [name for name in self.members if dice.random() < 0.2]
            for name in bases:
                sm.kill_end_footer(self.lun.volume(name))
            self.story.append(f"crash; {len(bases)} bases without an end footer")
        elif not self.options.thick:
            sm.deflate(self.lun, self.lun.volume(self.leaf))

    # extents

    def _soil(self, size: int) -> None:
        """The extents that will be taken next hold what a deleted VDI has left, if nobody has had them yet."""
        likely = 2 * (sm.calc_size_vhd_lv(size) // EXTENT) + 8
        for extent in self.lun.free[:likely]:
            if extent >= self.touched:
                self.lun.disk.fill(self.lun.place(extent), EXTENT, self.stale)
                self.touched = extent + 1

    def _packed(self) -> SparseDisk:
        """The same volumes on a LUN just large enough, their extents in pieces in any order."""
        lun, free = self.lun, self.options.free
        self._soil(0)
        olds = [extent for volume in lun.volumes.values() for extent in volume.extents] + lun.free[:free]
        found = Lun.new(self.uuids["sr"], len(olds), self.seed)
        places = self._shuffled(len(olds))
        for old, new in zip(olds, places):
            found.disk.adopt(found.place(new), lun.disk, lun.place(old), EXTENT)
        new_place = dict(zip(olds, places))
        for volume in lun.volumes.values():
            volume.extents = [new_place[extent] for extent in volume.extents]
        found.volumes = lun.volumes
        found.commit()
        found.disk.freeze()
        return found.disk

    def _shuffled(self, count: int) -> List[int]:
        """All extents, in runs of any order."""
        runs: List[List[int]] = []
        while sum(map(len, runs)) < count:
            start = sum(map(len, runs))
            runs.append(list(range(start, min(count, start + self.dice.randint(1, self.options.pieces)))))
        self.dice.shuffle(runs)
        return [extent for run in runs for extent in run]

    # MGT

    def _write_mgt(self) -> None:
        self.records += [Record(self._uuid(), "gone", deleted=True)] if self.dice.random() < 0.3 else []
        allocation = "thick" if self.options.thick else "thin"
        spec = MgtSpec(self.uuids["sr"], "random SR", "", allocation, tuple(self.records), "")
        volume = self.lun.volume("MGT")
        volume.write(0, bytes(EXTENT))
        for offset, data in mgt_content(EXTENT, spec).pieces:
            volume.write(offset, data)

    def _uuid(self) -> str:
        return list(uuids_by_key([f"record {len(self.records)}"], self.seed).values())[0]

    def _footer(self) -> Any:
        return random_uuid(f"{self.seed} {self.dice.getrandbits(64)}")


def _has_room(size: int, deficit: int) -> bool:
    """Whether sm's volumes take all blocks of a disk of so odd a size. Its own disks are whole blocks."""
    dense = size + size // BLOCK * 4096 + sm.OVERHEAD - 4096 + SECTOR
    return sm.calc_size_vhd_lv(size - deficit) >= dense
