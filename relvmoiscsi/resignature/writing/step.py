# SPDX-License-Identifier: LGPL-2.1-only
"""Take a step of the protocol, read back the writes of a step, and split reads and writes into batches."""

import logging
from typing import Callable, Iterable, Iterator, List, Sequence, TypeVar

from relvmoiscsi.device import Chunk, Device, whole_blocks
from relvmoiscsi.errors import Refused
from relvmoiscsi.resignature.protocol.steps import STEPS, Step

log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20  #: bytes in memory at a time
_BATCH_PIECES = 1024

T = TypeVar("T")


def batches(pieces: Iterable[T], length_of: Callable[[T], int]) -> Iterator[List[T]]:
    """The pieces, in lists that may be in memory at a time."""
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
    device: Device, taken: Step, chunks: Sequence[Chunk], known: Sequence[Chunk] = (), units: Iterable[Chunk] = ()
) -> None:
    """Write whole physical blocks, and flush. A cut leaves each block old or new.

    A chunk that does not fill its block gets the rest of the block from `known`, or from a read of the device. `units`
    are whole blocks, maybe millions, and are written in batches.
    """
    count = len(chunks) + sum(1 for _unit in units)
    log.info("step %d of %d: %s, %d writes to %s", taken.number, len(STEPS), taken.name, count, device.name)
    if chunks:
        write(device, chunks, known)
    for part in batches(units, lambda chunk: len(chunk.data)):
        device.write(part)
    flush(device)


def write(device: Device, chunks: Sequence[Chunk], known: Sequence[Chunk] = ()) -> None:
    """Write whole physical blocks, maybe over places of the fence. `known` are blocks that need not be read again."""
    whole = whole_blocks(device, chunks, known)
    device.fence.writing(whole)
    device.write(whole)


def flush(device: Device) -> None:
    """Make all writes durable. From then on the fence wants them."""
    device.flush()
    device.fence.flushed()


def read_back_all(device: Device, chunks: Iterable[Chunk]) -> None:
    """`read_back` in batches."""
    for part in batches(chunks, lambda chunk: len(chunk.data)):
        read_back(device, part)


def read_back(device: Device, chunks: Sequence[Chunk]) -> None:
    """Raises Refused when the device does not hold the chunks, and Overtaken where the fence says why."""
    for chunk, data in zip(chunks, device.read([chunk.range for chunk in chunks])):
        if data != chunk.data:
            raise other_bytes(device, chunk.offset)


def other_bytes(device: Device, offset: int) -> Refused:
    """The error for a read-back that differs from the writes at `offset`, or behind `offset`.

    Raises Overtaken where another run has changed the LUN.
    """
    device.fence.look(device.read)
    return Refused(
        f"{device.name} does not hold what was written at byte {offset}: something else writes to it, or it loses "
        "writes.",
        sm_key="EIO",
    ).advising("Check the array, and whether a host has the LUN attached.")
