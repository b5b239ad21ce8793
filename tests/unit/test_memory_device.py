# SPDX-License-Identifier: LGPL-2.1-only
"""A dry run keeps its writes in memory, and a read gives what they left."""

import random

from kit.sparse import SparseDisk
from relvmoiscsi import device
from relvmoiscsi.device import Chunk, MemoryDevice, Range

PAGE = 64 * 1024


def test_a_read_gives_the_last_write_of_each_byte():
    rng, size = random.Random(4), 5 * PAGE
    under, expected = SparseDisk(size), bytearray(size)
    memory = MemoryDevice(under)
    for number in range(300):
        offset = rng.randrange(size - 1)
        data = bytes([number % 255 + 1]) * min(rng.choice([1, 512, PAGE, 3 * PAGE]), size - offset)
        memory.write([Chunk(offset, data)])
        expected[offset : offset + len(data)] = data
        first = rng.randrange(size)
        length = rng.randrange(size - first)
        assert memory.read([Range(first, length)]) == [bytes(expected[first : first + length])]
    assert under.read([Range(0, size)]) == [bytes(size)]


def test_a_read_looks_only_at_the_writes_that_lie_near(monkeypatch):
    count = 2000
    memory = MemoryDevice(SparseDisk((count + 1) * PAGE))
    memory.write([Chunk(at * PAGE, b"x" * 512) for at in range(count)])
    looked = []
    real = device.overlaid

    def counted(data, offset, chunks):
        looked.append(len(chunks))
        return real(data, offset, chunks)

    monkeypatch.setattr(device, "overlaid", counted)
    assert set(memory.read([Range(at * PAGE, 512) for at in range(count)])) == {b"x" * 512}
    assert sum(looked) == count
