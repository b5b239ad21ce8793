# SPDX-License-Identifier: LGPL-2.1-only
"""Take a step of the protocol, and read back what it wrote; and how much is read or written at once."""

import logging
from typing import Callable, Iterable, Iterator, List, Sequence, TypeVar

from relvmoiscsi.device import Chunk, Device, Range, whole_blocks
from relvmoiscsi.errors import Refused
from relvmoiscsi.resignature.protocol.steps import STEPS, Step

log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20  #: which is what is in memory
_BATCH_PIECES = 1024

T = TypeVar("T")


def batches(pieces: Iterable[T], length_of: Callable[[T], int]) -> Iterator[List[T]]:
    """Pieces, in lists of so many at a time as may be in memory."""
    batch: List[T] = []
    length = 0
    for piece in pieces:
        batch.append(piece)
        length += length_of(piece)
        if length >= BATCH_BYTES or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def step(
    device: Device, taken: Step, chunks: Sequence[Chunk], around: Sequence[Chunk] = (), units: Iterable[Chunk] = ()
) -> None:
    """Write and flush, in whole physical blocks: a cut leaves each of them as it was, or as it is to be.

    `around`: see `whole_blocks`. `units` are whole blocks, and may be very many: so many at a time are written as may
    be in memory.
    """
    count = len(chunks) + sum(1 for _unit in units)
    log.info("step %d of %d: %s, %d writes to %s", taken.number, len(STEPS), taken.name, count, device.name)
    if chunks:
        device.write(whole_blocks(device, chunks, around))
    for part in batches(units, lambda chunk: len(chunk.data)):
        device.write(part)
    device.flush()


def range_of(chunk: Chunk) -> Range:
    """Where a chunk is written."""
    return Range(chunk.offset, len(chunk.data))


def read_back_all(device: Device, chunks: Iterable[Chunk]) -> None:
    """As `read_back`, so many at a time as may be in memory."""
    for part in batches(chunks, lambda chunk: len(chunk.data)):
        read_back(device, part)


def read_back(device: Device, chunks: Sequence[Chunk]) -> None:
    """Raises Refused when the device does not hold what was written."""
    for chunk, data in zip(chunks, device.read([range_of(chunk) for chunk in chunks])):
        if data != chunk.data:
            raise not_held(device, chunk.offset)


def not_held(device: Device, offset: int) -> Refused:
    """The error of whoever reads back something else than was written at, or behind, a byte."""
    return Refused(
        f"{device.name} does not hold what was written at byte {offset}: something else writes to it, or it loses "
        "writes.",
        sm_key="EIO",
    )
