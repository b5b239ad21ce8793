# SPDX-License-Identifier: LGPL-2.1-only
"""Disks that lose power, and disks that fail.

`CrashDisk` records every written block. The blocks between two flushes are a group. A power cut while group g is open
keeps all earlier groups, and any subset of the physical blocks of group g. Each block is old or new, because a device
writes a physical block completely or not at all. `crash_images` makes each of these disks.

    disk = CrashDisk(image)
    apply(plan, disk)
    for cut, after in disk.crash_images():
        ...

`FailingDisk` lets the n-th operation fail, once or from then on.
"""

import hashlib
import itertools
import random
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import Chunk, Device, ForwardingDevice, Range
from relvmoiscsi.errors import DeviceError

from .sparse import SparseDisk, check_chunks


class Block(NamedTuple):
    """One block as it was written."""

    offset: int
    data: bytes


class CrashDisk(ForwardingDevice):
    """A disk whose power can be cut at every moment of what was done to it.

    The disk it is made from stays as it is. `dropped_flush=n` forgets the n-th flush (from 1): the twin of a crash test
    uses it to show that the test can fail. `joined` is then the number of the group that goes on behind that flush.
    """

    def __init__(self, base: SparseDisk, dropped_flush: Optional[int] = None) -> None:
        super().__init__(base)
        base.freeze()
        self.base = base.copy()
        self.current = base.copy()
        self.unit = max(base.block_size, min(base.physical_block_size, 4096))
        self.groups: List[List[Block]] = [[]]
        self.flushes = 0
        self.dropped_flush, self.joined = dropped_flush, 1

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        return self.current.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        check_chunks(self, chunks)
        self.current.write(chunks)
        for chunk in chunks:
            for start in range(chunk.offset - chunk.offset % self.unit, chunk.end, self.unit):
                length = min(self.unit, self.size_bytes - start)
                self.groups[-1].append(Block(start, self.current.peek(start, length)))

    def flush(self) -> None:
        self.flushes += 1
        self.current.flush()
        if self.flushes == self.dropped_flush:
            self.joined = len(self.groups)
        elif self.groups[-1]:
            self.groups.append([])

    def crash_images(
        self, limit: int = 2**10, seed: int = 0, samples: int = 64, every: int = 1, first: int = 1
    ) -> Iterator[Tuple[str, SparseDisk]]:
        """Every disk that a power cut could leave, as (description, disk); the first is the untouched base. Or those of
        a cut in group number `first` or a later one.

        Groups with at most `limit` subsets are enumerated. For larger ones: every prefix in the order of issue, each
        block missing alone, each block alone and `samples` random subsets; of prefixes and single blocks each
        `every`'th. Blocks rewritten with what they held are left out: they change nothing.
        """
        solid = self.base.copy()
        yield "before the first write", self._named(solid.copy())
        for number, group in enumerate(self.groups, 1):
            changes = _changes(solid, group)
            picker = random.Random(f"{seed} {number}")
            for present in _subsets(len(changes), limit, samples, picker, every) if number >= first else ():
                image = self._named(_with_blocks(solid, changes, present))
                yield _describe(number, len(self.groups), changes, present), image
            solid = _with_blocks(solid, group, range(len(group)))

    def some_crash_images(self, picker: random.Random, subsets: int) -> Iterator[Tuple[str, SparseDisk]]:
        """A sample of the same, for runs that write thousands of blocks: for each group none of it, all of it, and so
        many random subsets and prefixes.
        """
        solid = self.base.copy()
        for number, group in enumerate(self.groups, 1):
            changes = _changes(solid, group)
            count = len(changes)
            samples = {(), tuple(range(count))}
            for _ in range(subsets):
                samples.add(tuple(index for index in range(count) if picker.random() < 0.5))
                samples.add(tuple(range(picker.randrange(count + 1))))
            for present in sorted(samples):
                image = self._named(_with_blocks(solid, changes, present))
                yield f"group {number}: {len(present)} of {count} blocks written", image
            solid = _with_blocks(solid, group, range(len(group)))

    def after_group(self, number: int, blocks: int = 0) -> SparseDisk:
        """The disk with so many groups of writes on it, whole, and so many blocks of the next one."""
        image = self.base.copy()
        for group in [*self.groups[:number], *([self.groups[number][:blocks]] if blocks else [])]:
            image = _with_blocks(image, group, range(len(group)))
        return image

    def _named(self, image: SparseDisk) -> SparseDisk:
        image.name = self.name
        return image


# -- subsets of a group ---------------------------------------------------------------------------------------------


def _changes(solid: SparseDisk, group: Sequence[Block]) -> List[Block]:
    """The blocks of a group that change the disk, alone or after another block of the group."""
    writes: Dict[int, int] = {}
    for block in group:
        writes[block.offset] = writes.get(block.offset, 0) + 1
    return [b for b in group if writes[b.offset] > 1 or solid.peek(b.offset, len(b.data)) != b.data]


def _subsets(count: int, limit: int, samples: int, picker: random.Random, every: int) -> Iterator[Tuple[int, ...]]:
    """Non-empty subsets of range(count): all if there are at most `limit`, otherwise the telling ones."""
    if 2**count <= limit:
        for size in range(1, count + 1):
            yield from itertools.combinations(range(count), size)
        return
    everything = tuple(range(count))
    chosen = range(picker.randrange(every), count, every)
    for length in sorted({count, *(index + 1 for index in chosen)}):
        yield everything[:length]
    for index in chosen:
        yield everything[:index] + everything[index + 1 :]
        yield (index,)
    for _ in range(samples):
        share = picker.random()
        yield tuple(index for index in everything if picker.random() < share)


def _with_blocks(solid: SparseDisk, blocks: Sequence[Block], present: Sequence[int]) -> SparseDisk:
    image = solid.copy()
    pieces: List[bytes] = []
    start, end = 0, 0  # blocks that follow each other go at once: a page has eight
    for index in present:
        block = blocks[index]
        if block.offset != end or not pieces:
            image.poke(start, b"".join(pieces))
            start, pieces, end = block.offset, [], block.offset
        pieces.append(block.data)
        end += len(block.data)
    image.poke(start, b"".join(pieces))
    return image


def _describe(number: int, groups: int, changes: Sequence[Block], present: Sequence[int]) -> str:
    absent = sorted(set(range(len(changes))) - set(present))
    if len(present) <= len(absent):
        which = f"only {_offsets(changes, present)}"
    else:
        which = f"all but {_offsets(changes, absent)}" if absent else "all"
    return f"group {number} of {groups}: {len(present)} of {len(changes)} blocks written: {which}"


def _offsets(changes: Sequence[Block], indices: Sequence[int]) -> str:
    shown = ", ".join(str(changes[index].offset) for index in indices[:8])
    return shown + (", ..." if len(indices) > 8 else "")


def garbage(offset: int, length: int) -> bytes:
    """Bytes that nobody wrote; always the same ones at the same place."""
    seed = hashlib.sha256(b"garbage at %d" % offset).digest()
    return (seed * (length // len(seed) + 1))[:length]


# -- failures -------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """What a `FailingDisk` was asked to do."""

    action: str
    offset: int
    batch: int  #: the number of the call that asked for it


class LosingDisk(ForwardingDevice):
    """A disk that says it has written, and does not hold the chunk of number `loses` (from 1) of all written chunks.

    `tried` has all chunks; a run with `loses=0` loses none and tells how many there are.
    """

    def __init__(self, base: Device, loses: int = 0) -> None:
        super().__init__(base)
        self.base, self.loses = base, loses
        self.tried: List[Chunk] = []

    def write(self, chunks: Sequence[Chunk]) -> None:
        lost = self.loses - 1 - len(self.tried)
        self.tried += chunks
        self.base.write([chunk for number, chunk in enumerate(chunks) if number != lost])


class FailingDisk(ForwardingDevice):
    """A disk whose operation number `fail_at` (from 1) fails with DeviceError.

    Each range read, each chunk written and each flush is an operation. Those of a batch are done in order up to the
    one that fails. `for_good`: everything after it fails as well. `leaves` says what a failing write has done:

    nothing   the old bytes are still there
    half      the first half of its blocks is written (a chunk of one block: nothing)
    all       all is written and the failure is a lie; a flush that fails has then flushed
    late      nothing yet; `land` writes it, whenever that may be

    `tried` has what was tried, `operations` its count; a run with `fail_at=0` never fails and tells how many there are.
    """

    def __init__(self, base: Device, fail_at: int = 0, for_good: bool = False, leaves: str = "nothing") -> None:
        assert leaves in ("nothing", "half", "all", "late"), leaves
        super().__init__(base)
        self.base = base
        self.fail_at = fail_at
        self.for_good = for_good
        self.leaves = leaves
        self.tried: List[Operation] = []
        self.batches = 0
        self.failed = False
        self.pending: List[Chunk] = []

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        self.batches += 1
        for wanted in ranges:
            if self._fails("read", wanted.offset):
                raise DeviceError(self.name, "read", wanted.offset, wanted.length, "Input/output error", 5)
        return self.base.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        check_chunks(self, chunks)
        self.batches += 1
        done: List[Chunk] = []
        for chunk in chunks:
            if self._fails("write", chunk.offset):
                done.extend(self._part_of(chunk))
                self.pending += [chunk] if self.leaves == "late" else []
                if done:
                    self.base.write(done)
                raise DeviceError(self.name, "write", chunk.offset, len(chunk.data), "Input/output error", 5)
            done.append(chunk)
        self.base.write(done)

    def flush(self) -> None:
        self.batches += 1
        fails = self._fails("flush", 0)
        if not fails or self.leaves == "all":
            self.base.flush()
        if fails:
            raise DeviceError(self.name, "flush", 0, 0, "Input/output error", 5)

    def land(self) -> None:
        """What was reported as failed reaches the disk."""
        self.base.write(self.pending)

    @property
    def operations(self) -> int:
        return len(self.tried)

    def _fails(self, action: str, offset: int) -> bool:
        self.tried.append(Operation(action, offset, self.batches))
        fails = self.fail_at > 0 and (
            self.operations == self.fail_at or (self.for_good and self.operations > self.fail_at)
        )
        self.failed = self.failed or fails
        return fails

    def _part_of(self, chunk: Chunk) -> List[Chunk]:
        """What of a failing chunk reaches the disk."""
        if self.leaves in ("nothing", "late"):
            return []
        if self.leaves == "all":
            return [chunk]
        unit = max(self.block_size, min(self.physical_block_size, 4096))
        half = len(chunk.data) // unit // 2 * unit
        return [Chunk(chunk.offset, chunk.data[:half])] if half else []
