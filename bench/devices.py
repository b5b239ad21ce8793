# SPDX-License-Identifier: LGPL-2.1-only
"""A device that counts what would go to the kernel."""

from typing import List, NamedTuple, Sequence

from relvmoiscsi.device import Chunk, Device, Range, pieces_of, runs_of, spans_of


class Cost(NamedTuple):
    """What a run asked of a device; operations are counted after merging, as the host's devices merge them."""

    reads: int = 0
    dependent_reads: int = 0  #: batches, each of which had to wait for the one before
    bytes_read: int = 0
    writes: int = 0
    dependent_writes: int = 0
    bytes_written: int = 0
    flushes: int = 0
    waits: int = 0  #: for the latency: of a batch, as many operations go out at once as the queue holds

    @property
    def dependent(self) -> int:
        """All that had to be waited for, one after the other."""
        return self.dependent_reads + self.dependent_writes + self.flushes


class QueueDevice(Device):
    """A disk that takes `depth` operations at a time (0: all at once)."""

    def __init__(self, disk: Device, depth: int = 0) -> None:
        self.name, self.size_bytes, self.block_size = disk.name, disk.size_bytes, disk.block_size
        self.physical_block_size = disk.physical_block_size
        self.cost = Cost()
        self._disk, self._depth = disk, depth

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        operations = sum(len(pieces_of(span.length)) for span in spans)
        cost = self.cost
        self.cost = cost._replace(
            reads=cost.reads + operations,
            dependent_reads=cost.dependent_reads + bool(operations),
            bytes_read=cost.bytes_read + sum(span.length for span in spans),
        )
        self._wait(operations)
        return self._disk.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        lengths = [sum(len(chunk.data) for chunk in run) for run in runs_of(chunks)]
        operations = sum(len(pieces_of(length)) for length in lengths)
        cost = self.cost
        self.cost = cost._replace(
            writes=cost.writes + operations,
            dependent_writes=cost.dependent_writes + bool(operations),
            bytes_written=cost.bytes_written + sum(lengths),
        )
        self._wait(operations)
        self._disk.write(chunks)

    def flush(self) -> None:
        self.cost = self.cost._replace(flushes=self.cost.flushes + 1)
        self._wait(1)
        self._disk.flush()

    def end_late_writes(self, of_another_host: bool = False) -> None:
        """No earlier run has sent a write that is still under way."""

    def _wait(self, operations: int) -> None:
        rounds = -(-operations // self._depth) if self._depth else min(operations, 1)
        self.cost = self.cost._replace(waits=self.cost.waits + rounds)
