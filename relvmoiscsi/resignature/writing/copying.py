# SPDX-License-Identifier: LGPL-2.1-only
"""Write what nobody sees before the commit: parts of a new image, and copies of guest data."""

import logging
from typing import Callable, Iterator, List, Optional, Sequence

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Unseen
from relvmoiscsi.resignature.writing.reading_back import read_back

log = logging.getLogger(__name__)

#: told how many bytes are copied, and how many will be
Progress = Callable[[int, int], None]

#: a copy is made in pieces of at most so many bytes, and a batch holds at most so many, which is what is in memory
PIECE_BYTES = 1 << 20
BATCH_BYTES = 16 << 20
_BATCH_PIECES = 1024


def write_unseen(device: Device, unseen: Unseen, progress: Optional[Progress] = None) -> None:
    """Write and read back; it is durable with the next flush. Raises DeviceError, or Refused for lost writes."""
    if unseen.chunks:
        device.write(unseen.chunks)
        read_back(device, unseen.chunks)
    total, done = unseen.copied_bytes, 0
    if total:
        log.info("copying %d bytes on %s", total, device.name)
    for several in unseen.copies:
        for batch in _batches(several):
            _copy(device, batch)
            done += sum(copy.length for copy in batch)
            if progress is not None:
                progress(done, total)


def _batches(copies: Sequence[Copy]) -> Iterator[List[Copy]]:
    batch: List[Copy] = []
    length = 0
    for copy in copies:
        for piece in _pieces(copy):
            batch.append(piece)
            length += piece.length
            if length >= BATCH_BYTES or len(batch) >= _BATCH_PIECES:
                yield batch
                batch, length = [], 0
    if batch:
        yield batch


def _pieces(copy: Copy) -> Iterator[Copy]:
    for done in range(0, copy.length, PIECE_BYTES):
        length = min(PIECE_BYTES, copy.length - done)
        yield Copy(copy.target + done, None if copy.source is None else copy.source + done, length)


def _copy(device: Device, batch: Sequence[Copy]) -> None:
    sources = [Range(copy.source, copy.length) for copy in batch if copy.source is not None]
    found = iter(device.read(sources))
    chunks = [Chunk(copy.target, bytes(copy.length) if copy.source is None else next(found)) for copy in batch]
    device.write(chunks)
    read_back(device, chunks)
