# SPDX-License-Identifier: LGPL-2.1-only
"""Whether a device holds what was written to it."""

from typing import Sequence

from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.errors import Refused


def range_of(chunk: Chunk) -> Range:
    """Where a chunk is written."""
    return Range(chunk.offset, len(chunk.data))


def read_back(device: Device, chunks: Sequence[Chunk]) -> None:
    """Raises Refused when the device does not hold what was written."""
    for chunk, data in zip(chunks, device.read([range_of(chunk) for chunk in chunks])):
        if data != chunk.data:
            raise Refused(
                f"{device.name} does not hold what was written at byte {chunk.offset}: something else writes to it, "
                "or it loses writes.",
                sm_key="EIO",
            )
