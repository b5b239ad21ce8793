# SPDX-License-Identifier: LGPL-2.1-only
"""Write what nobody sees before the commit: parts of a new image, and copies of guest data."""

import logging
from itertools import chain
from typing import Callable, Iterable, Iterator, Optional, Sequence

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Unseen
from relvmoiscsi.resignature.writing.reading_back import batches, read_back

log = logging.getLogger(__name__)

#: told how many bytes are copied, and how many will be
Progress = Callable[[int, int], None]

#: a copy is made in pieces of at most so many bytes
PIECE_BYTES = 1 << 20


def write_unseen(device: Device, unseen: Unseen, progress: Optional[Progress] = None) -> None:
    """Write and read back; it is durable with the next flush. Raises DeviceError, or Refused for lost writes."""
    for part in batches(chain(unseen.chunks, unseen.more), lambda chunk: len(chunk.data)):
        device.write(part)
        read_back(device, part)
    total, done = unseen.copied_bytes, 0
    if total:
        log.info("copying %d bytes on %s", total, device.name)
    for several in unseen.copies:
        for batch in batches(_pieces(several), lambda piece: piece.length):
            _copy(device, batch)
            done += sum(copy.length for copy in batch)
            if progress is not None:
                progress(done, total)


def _pieces(copies: Iterable[Copy]) -> Iterator[Copy]:
    return (piece for copy in copies for piece in _parts(copy))


def _parts(copy: Copy) -> Iterator[Copy]:
    for done in range(0, copy.length, PIECE_BYTES):
        length = min(PIECE_BYTES, copy.length - done)
        zeros = copy.zeros if done + length == copy.length else 0
        yield Copy(copy.target + done, None if copy.source is None else copy.source + done, length, zeros)


def _copy(device: Device, batch: Sequence[Copy]) -> None:
    sources = [Range(copy.source, copy.length) for copy in batch if copy.source is not None]
    found = iter(device.read(sources))
    chunks = [
        Chunk(copy.target, (bytes(copy.length) if copy.source is None else next(found)) + bytes(copy.zeros))
        for copy in batch
    ]
    device.write(chunks)
    read_back(device, chunks)
