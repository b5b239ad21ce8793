# SPDX-License-Identifier: LGPL-2.1-only
"""What is written where nobody sees it: pieces of a new image, and copies of guest data, in batches."""

import hashlib

import pytest

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.resignature.protocol.rebuilt import Copy, Expected, Unseen
from relvmoiscsi.resignature.writing import copying, step
from relvmoiscsi.resignature.writing.copying import read_back_written, write_unseen

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


def written(disk, unseen, progress=None, verify=lambda there: None):
    return write_unseen(disk, unseen, verify, progress)


@pytest.fixture
def disk():
    return Watched()


def test_pieces_are_written_and_copies_made(disk):
    disk.poke(8 * MIB, b"\xee" * 4096)
    copies = ((Copy(16 * MIB, 64 * MIB, 8192), Copy(8 * MIB, None, 4096)),)

    written(disk, Unseen(chunks=(Chunk(0, b"head".ljust(512)),), copies=copies))

    assert disk.peek(0, 512) == b"head".ljust(512)
    assert disk.peek(16 * MIB, 8192) == DATA[:8192]
    assert disk.peek(8 * MIB, 4096) == bytes(4096)
    assert disk.flushes == 0, "the step that follows flushes"


def test_what_is_expected_is_not_written(disk):
    written(disk, Unseen(expected=(Expected(Range(4096, 512), bytes(32)),)))

    assert disk.written == []


def test_what_is_copied_first_is_there_for_what_is_copied_then(disk):
    copies = ((Copy(16 * MIB, 64 * MIB, 4096),), (Copy(32 * MIB, 16 * MIB, 4096),))

    written(disk, Unseen(copies=copies))

    assert disk.peek(32 * MIB, 4096) == DATA[:4096]


def test_a_large_copy_is_made_in_pieces_that_fit_into_memory(disk):
    length = 40 * MIB + 4096

    written(disk, Unseen(copies=((Copy(128 * MIB, 64 * MIB, length),),)))

    assert disk.peek(128 * MIB, 4 * MIB) == DATA
    assert sum(size for _, size in disk.written) == length
    assert max(size for _, size in disk.written) == copying.PIECE_BYTES
    assert disk.most == step.BATCH_BYTES


def test_zeros_are_written_behind_what_is_copied(disk):
    disk.poke(128 * MIB, b"\xee" * 4 * MIB)
    copies = ((Copy(128 * MIB, 64 * MIB, 2 * MIB - 512, zeros=512),),)

    written(disk, Unseen(copies=copies))

    assert disk.peek(128 * MIB, 2 * MIB) == DATA[: 2 * MIB - 512] + bytes(512)
    assert disk.peek(130 * MIB, 2 * MIB) == b"\xee" * 2 * MIB


def test_many_small_copies_are_few_batches(disk):
    small = tuple(Copy(16 * MIB + 1024 * number, 64 * MIB + 512 * number, 512) for number in range(3000))
    batches = []

    written(disk, Unseen(copies=(small,)), lambda done, total: batches.append(done))

    assert [batch // 512 for batch in batches] == [1024, 2048, 3000]
    assert all(disk.peek(copy.target, 512) == disk.peek(copy.source, 512) for copy in small)


def test_progress_goes_up_to_all_there_is(disk):
    told = []
    copies = ((Copy(128 * MIB, 64 * MIB, 20 * MIB),), (Copy(16 * MIB, None, 4 * MIB),))

    written(disk, Unseen(copies=copies), lambda done, total: told.append((done, total)))

    assert told == [(16 * MIB, 24 * MIB), (20 * MIB, 24 * MIB), (24 * MIB, 24 * MIB)]


def test_without_copies_nobody_is_told(disk):
    written(disk, Unseen(chunks=(Chunk(0, bytes(512)),)), lambda done, total: 1 / 0)


BOTH = Unseen(
    chunks=(Chunk(0, b"head".ljust(512)),),
    more=(Chunk(4096, b"bitmap".ljust(512)),),
    copies=((Copy(16 * MIB, 64 * MIB, 20 * MIB, zeros=512),), (Copy(128 * MIB, None, 512),)),
)


@pytest.mark.parametrize("lost", [0, 4096, 16 * MIB, 19 * MIB, 128 * MIB])
def test_a_write_that_is_lost_is_noticed(disk, lost):
    disk.poke(128 * MIB, b"\xee" * 512)
    disk.loses = lost
    there = written(disk, BOTH)

    with pytest.raises(Refused, match="does not hold what was written at byte"):
        read_back_written(disk, there)


@pytest.mark.parametrize("changed", [0, 4096, 16 * MIB, 36 * MIB, 128 * MIB])
def test_what_somebody_else_writes_there_is_noticed_to_the_byte(disk, changed):
    there = written(disk, BOTH)
    read_back_written(disk, there)
    disk.poke(changed + 511, b"\xab")

    with pytest.raises(Refused, match="does not hold what was written at byte"):
        read_back_written(disk, there)


def test_progress_of_reading_back_goes_up_to_all_there_is(disk):
    there, told = written(disk, BOTH), []

    read_back_written(disk, there, lambda done, total: told.append((done, total)))

    assert told[-1] == (20 * MIB + 512, 20 * MIB + 512) and len(told) == 3


def test_before_each_batch_it_is_asked_whether_it_may_be_written(disk):
    """With what tells that the array has not put the LUN back, once there is anything."""
    seen = []

    written(disk, BOTH, verify=lambda there: seen.append((there.head, len(disk.written))))

    assert [head for head, _ in seen] == [(), *[BOTH.chunks] * 3]
    assert [count for _, count in seen] == [0, 2, 18, 22]


@pytest.mark.parametrize("allowed", range(4))
def test_where_it_may_not_nothing_more_is_written(disk, allowed):
    asked = []

    def verify(there):
        asked.append(len(disk.written))
        if len(asked) > allowed:
            raise Refused("no more")

    with pytest.raises(Refused, match="no more"):
        written(disk, BOTH, verify=verify)

    assert len(disk.written) == asked[-1]


def test_a_read_that_fails_stops_it(disk, monkeypatch):
    def fails(ranges):
        raise DeviceError("disk", "read", 0, 512, "no luck", 5)

    monkeypatch.setattr(disk, "read", fails)
    with pytest.raises(DeviceError):
        written(disk, Unseen(copies=((Copy(16 * MIB, 64 * MIB, 512),),)))
    assert disk.written == []
