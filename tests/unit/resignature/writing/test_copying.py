# SPDX-License-Identifier: LGPL-2.1-only
"""What is written where nobody sees it: pieces of a new image, and copies of guest data, in batches."""

import pytest

from kit.build_volumes import noise
from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Expected, Unseen
from relvmoiscsi.resignature.writing import copying, reading_back
from relvmoiscsi.resignature.writing.copying import write_unseen

MIB = 1 << 20
DATA = noise(4 * MIB, "guest")


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


def test_pieces_are_written_and_copies_made(disk):
    disk.poke(8 * MIB, b"\xee" * 4096)
    copies = ((Copy(16 * MIB, 64 * MIB, 8192), Copy(8 * MIB, None, 4096)),)

    write_unseen(disk, Unseen(chunks=(Chunk(0, b"head".ljust(512)),), copies=copies))

    assert disk.peek(0, 512) == b"head".ljust(512)
    assert disk.peek(16 * MIB, 8192) == DATA[:8192]
    assert disk.peek(8 * MIB, 4096) == bytes(4096)
    assert disk.flushes == 0, "the step that follows flushes"


def test_what_is_expected_is_not_written(disk):
    write_unseen(disk, Unseen(expected=(Expected(Range(4096, 512), bytes(32)),)))

    assert disk.written == []


def test_what_is_copied_first_is_there_for_what_is_copied_then(disk):
    copies = ((Copy(16 * MIB, 64 * MIB, 4096),), (Copy(32 * MIB, 16 * MIB, 4096),))

    write_unseen(disk, Unseen(copies=copies))

    assert disk.peek(32 * MIB, 4096) == DATA[:4096]


def test_a_large_copy_is_made_in_pieces_that_fit_into_memory(disk):
    length = 40 * MIB + 4096

    write_unseen(disk, Unseen(copies=((Copy(128 * MIB, 64 * MIB, length),),)))

    assert disk.peek(128 * MIB, 4 * MIB) == DATA
    assert sum(size for _, size in disk.written) == length
    assert max(size for _, size in disk.written) == copying.PIECE_BYTES
    assert disk.most == reading_back.BATCH_BYTES


def test_zeros_are_written_behind_what_is_copied(disk):
    disk.poke(128 * MIB, b"\xee" * 4 * MIB)
    copies = ((Copy(128 * MIB, 64 * MIB, 2 * MIB - 512, zeros=512),),)

    write_unseen(disk, Unseen(copies=copies))

    assert disk.peek(128 * MIB, 2 * MIB) == DATA[: 2 * MIB - 512] + bytes(512)
    assert disk.peek(130 * MIB, 2 * MIB) == b"\xee" * 2 * MIB


def test_many_small_copies_are_few_batches(disk):
    small = tuple(Copy(16 * MIB + 1024 * number, 64 * MIB + 512 * number, 512) for number in range(3000))
    batches = []

    write_unseen(disk, Unseen(copies=(small,)), lambda done, total: batches.append(done))

    assert [batch // 512 for batch in batches] == [1024, 2048, 3000]
    assert all(disk.peek(copy.target, 512) == disk.peek(copy.source, 512) for copy in small)


def test_progress_goes_up_to_all_there_is(disk):
    told = []
    copies = ((Copy(128 * MIB, 64 * MIB, 20 * MIB),), (Copy(16 * MIB, None, 4 * MIB),))

    write_unseen(disk, Unseen(copies=copies), lambda done, total: told.append((done, total)))

    assert told == [(16 * MIB, 24 * MIB), (20 * MIB, 24 * MIB), (24 * MIB, 24 * MIB)]


def test_without_copies_nobody_is_told(disk):
    write_unseen(disk, Unseen(chunks=(Chunk(0, bytes(512)),)), lambda done, total: 1 / 0)


@pytest.mark.parametrize("lost", [0, 16 * MIB])
def test_a_write_that_is_lost_is_noticed(disk, lost):
    disk.loses = lost

    with pytest.raises(Refused, match=f"does not hold what was written at byte {lost}"):
        write_unseen(disk, Unseen(chunks=(Chunk(0, b"head".ljust(512)),), copies=((Copy(16 * MIB, 64 * MIB, 512),),)))


def test_a_read_that_fails_stops_it(disk, monkeypatch):
    def fails(ranges):
        raise DeviceError("disk", "read", 0, 512, "no luck", 5)

    monkeypatch.setattr(disk, "read", fails)
    with pytest.raises(DeviceError):
        write_unseen(disk, Unseen(copies=((Copy(16 * MIB, 64 * MIB, 512),),)))
    assert disk.written == []
