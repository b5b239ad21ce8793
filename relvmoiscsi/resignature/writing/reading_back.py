# SPDX-License-Identifier: LGPL-2.1-only
"""Whether a device holds what was written to it; and how much of something is read or written at once."""

from typing import Callable, Iterable, Iterator, List, Sequence, TypeVar

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import Refused

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
