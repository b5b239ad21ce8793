# SPDX-License-Identifier: LGPL-2.1-only
"""Write, and read back, the parts of a new image and the copies of guest data that no program reads before the commit.

A batch is 16 MiB or 1024 pieces, and is in memory as a whole.
"""

import logging
from hashlib import sha256
from itertools import chain
from typing import Callable, Iterable, Iterator, List, Optional, Sequence

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.resignature.protocol.merged_image import BlockCopy, Unseen
from relvmoiscsi.resignature.writing.step import batches, other_bytes

log = logging.getLogger(__name__)

#: gets the number of bytes copied or read back so far, and the number of all bytes
Progress = Callable[[int, int], None]

#: a long copy is made in pieces of so many bytes
PIECE_BYTES = 1 << 20

_DIGEST_BYTES = sha256().digest_size


def write_unseen(device: Device, unseen: Unseen, progress: Optional[Progress] = None) -> bytes:
    """Write a new image. Returns the SHA-256 of each batch. The caller must flush, and then call `read_back_unseen`.

    Raises DeviceError, Overtaken, and the errors of `progress`.
    """
    digests = bytearray()

    def put(chunks: Sequence[Chunk]) -> None:
        device.write(chunks)
        digests.extend(_digest(chunk.data for chunk in chunks))

    for part in _pieces_of(unseen):
        put(part)
    total, done = unseen.copied_bytes, 0
    if total:
        log.info("copying %d bytes on %s", total, device.name)
    for batch in _copies_of(unseen):
        found = iter(device.read([Range(copy.source, copy.length) for copy in batch if copy.source is not None]))
        data = [(bytes(copy.length) if copy.source is None else next(found)) + bytes(copy.zeros) for copy in batch]
        put([Chunk(copy.target, part) for copy, part in zip(batch, data)])
        done += sum(copy.length for copy in batch)
        if progress is not None:
            progress(done, total)
    return bytes(digests)


def read_back_unseen(device: Device, unseen: Unseen, digests: bytes, progress: Optional[Progress] = None) -> None:
    """Raises Refused when the device has other bytes than `write_unseen` has written.

    `progress` gets the number of bytes read back so far, and the number of all bytes.
    """
    starts = iter(range(0, len(digests), _DIGEST_BYTES))

    def compare(ranges: List[Range]) -> None:
        start = next(starts)
        if _digest(device.read(ranges)) != digests[start : start + _DIGEST_BYTES]:
            raise other_bytes(device, min(ranges).offset)

    for part in _pieces_of(unseen):
        compare([chunk.range for chunk in part])
    total, done = unseen.copied_bytes, 0
    for batch in _copies_of(unseen):
        compare([copy.range for copy in batch])
        done += sum(copy.length for copy in batch)
        if progress is not None:
            progress(done, total)


def _digest(parts: Iterable[bytes]) -> bytes:
    found = sha256()
    for part in parts:
        found.update(part)
    return found.digest()


def _pieces_of(unseen: Unseen) -> Iterator[List[Chunk]]:
    return batches(chain(unseen.chunks, unseen.more), lambda chunk: len(chunk.data))


def _copies_of(unseen: Unseen) -> Iterator[List[BlockCopy]]:
    """The copies in batches, each copy in pieces of at most PIECE_BYTES."""

    def pieces(copies: Iterable[BlockCopy]) -> Iterator[BlockCopy]:
        for copy in copies:
            for done in range(0, copy.length, PIECE_BYTES):
                length = min(PIECE_BYTES, copy.length - done)
                zeros = copy.zeros if done + length == copy.length else 0
                yield BlockCopy(copy.target + done, None if copy.source is None else copy.source + done, length, zeros)

    for several in unseen.copies:
        yield from batches(pieces(several), lambda piece: piece.length)
