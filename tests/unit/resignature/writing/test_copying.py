# SPDX-License-Identifier: LGPL-2.1-only
"""What is written where nobody sees it: pieces of a new image, and copies of guest data, in batches."""

import hashlib

import pytest

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import Refused
from relvmoiscsi.resignature.protocol.merged_image import BlockCopy, Expected, Unseen
from relvmoiscsi.resignature.writing import copying, step
from relvmoiscsi.resignature.writing.copying import read_back_unseen, write_unseen

MIB = 1 << 20
DATA = hashlib.shake_128(b"guest").digest(4 * MIB)


class Watched(SparseDisk):
    """A disk that notes what it is asked, and may lose what is written."""

    def __init__(self, size=256 * MIB):
        super().__init__(size)
        self.written, self.most, self.flushes, self.loses = [], 0, 0, None
        self.poke(64 * MIB, DATA)

    def write(self, chunks):
        self.most = max(self.most, sum(len(chunk.data) for chunk in chunks))
        self.written += [(chunk.offset, len(chunk.data)) for chunk in chunks]
        super().write([chunk for chunk in chunks if chunk.offset != self.loses])

    def flush(self):
        self.flushes += 1


@pytest.fixture
def disk():
    return Watched()


def test_pieces_are_written_and_copies_made_one_group_after_the_other(disk):
    disk.poke(8 * MIB, b"\xee" * 4096)
    disk.poke(128 * MIB, b"\xee" * 4 * MIB)
    first = (BlockCopy(16 * MIB, 64 * MIB, 8192), BlockCopy(8 * MIB, None, 4096))
    then = (BlockCopy(32 * MIB, 16 * MIB, 4096), BlockCopy(128 * MIB, 64 * MIB, 2 * MIB - 512, zeros=512))
    expected = (Expected(Range(4096, 512), bytes(32)),)  # is not written

    write_unseen(disk, Unseen(chunks=(Chunk(0, b"head".ljust(512)),), copies=(first, then), expected=expected))

    assert disk.peek(0, 512) == b"head".ljust(512)
    assert disk.peek(16 * MIB, 8192) == DATA[:8192]
    assert disk.peek(32 * MIB, 4096) == DATA[:4096]
    assert disk.peek(8 * MIB, 4096) == bytes(4096)
    assert disk.peek(128 * MIB, 4 * MIB) == DATA[: 2 * MIB - 512] + bytes(512) + b"\xee" * 2 * MIB
    assert 4096 not in [offset for offset, _ in disk.written]
    assert disk.flushes == 0, "the step that follows flushes"


def test_a_large_copy_is_made_in_pieces_that_fit_into_memory(disk):
    length = 40 * MIB + 4096

    write_unseen(disk, Unseen(copies=((BlockCopy(128 * MIB, 64 * MIB, length),),)))

    assert disk.peek(128 * MIB, 4 * MIB) == DATA
    assert sum(size for _, size in disk.written) == length
    assert max(size for _, size in disk.written) == copying.PIECE_BYTES
    assert disk.most == step.BATCH_BYTES


BOTH = Unseen(
    chunks=(Chunk(0, b"head".ljust(512)),),
    more=(Chunk(4096, b"bitmap".ljust(512)),),
    copies=((BlockCopy(16 * MIB, 64 * MIB, 20 * MIB, zeros=512),), (BlockCopy(128 * MIB, None, 512),)),
)


def test_progress_goes_up_to_all_there_is_and_without_copies_nobody_is_told(disk):
    told = []

    there = write_unseen(disk, BOTH, lambda done, total: told.append((done, total)))
    read_back_unseen(disk, BOTH, there, lambda done, total: told.append((done, total)))

    total = 20 * MIB + 512
    assert told == [(16 * MIB, total), (20 * MIB, total), (total, total)] * 2
    write_unseen(disk, Unseen(chunks=(Chunk(0, bytes(512)),)), lambda done, total: 1 / 0)


@pytest.mark.parametrize("place", [0, 4096, 16 * MIB, 19 * MIB, 36 * MIB, 128 * MIB])
def test_a_write_that_is_lost_and_what_somebody_else_writes_there_is_noticed_to_the_byte(disk, place):
    there = write_unseen(disk, BOTH)
    read_back_unseen(disk, BOTH, there)
    disk.poke(place + 511, b"\xab")
    with pytest.raises(Refused, match="does not hold what was written at byte"):
        read_back_unseen(disk, BOTH, there)

    lossy = Watched()
    lossy.poke(128 * MIB, b"\xee" * 512)
    lossy.poke(36 * MIB, b"\xee" * 512)
    lossy.loses = place if place != 36 * MIB else 35 * MIB  # its piece
    there = write_unseen(lossy, BOTH)
    with pytest.raises(Refused, match="does not hold what was written at byte"):
        read_back_unseen(lossy, BOTH, there)
