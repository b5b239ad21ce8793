# SPDX-License-Identifier: LGPL-2.1-only
"""A device in memory is what a dry run leaves: the last write at each byte, whatever lies over what."""

import random

from kit.sparse import SparseDisk
from relvmoiscsi import device as device_module
from relvmoiscsi.device import PIECE, Chunk, MemoryDevice, Range


def test_the_last_write_at_each_byte_is_read():
    dice, size = random.Random(1), 3 * PIECE
    expected, in_memory = bytearray(size), MemoryDevice(SparseDisk(size))
    for _ in range(100):
        offset = dice.randrange(size - 1)
        data = bytes([dice.randrange(1, 256)]) * dice.randrange(1, min(size - offset, 2 * PIECE) + 1)
        in_memory.write([Chunk(offset, data)])
        expected[offset : offset + len(data)] = data

    assert b"".join(in_memory.read([Range(0, 7), Range(7, size - 7)])) == bytes(expected)


def test_a_read_looks_at_the_writes_of_its_place_alone(monkeypatch):
    """A run may write millions of chunks."""
    looked, real = [], device_module.overlaid
    monkeypatch.setattr(device_module, "overlaid", lambda *args: looked.append(len(args[2])) or real(*args))
    in_memory = MemoryDevice(SparseDisk(1000 * PIECE))
    in_memory.write([Chunk(number * PIECE, b"x" * 512) for number in range(1000)])

    assert in_memory.read([Range(5 * PIECE, 512)]) == [b"x" * 512]
    assert looked == [1]


def test_a_device_shows_its_class_and_its_name():
    disk = SparseDisk(512)
    disk.name = "a clone"

    assert repr(MemoryDevice(disk)) == "MemoryDevice('a clone')"
