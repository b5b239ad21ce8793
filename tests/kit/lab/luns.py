# SPDX-License-Identifier: LGPL-2.1-only
"""Image files for LUNs: the golden ones of the real storage manager, built ones, empty ones; clones and digests."""

import hashlib
import os
import zlib

from kit.reader import read_sr
from kit.sparse import SparseDisk

from .command import run
from .guest import LUNS

_BLOCK = 65536
_ZEROS = bytes(_BLOCK)


class Image:
    """A file that can be a LUN; the same bytes are seen through the target (which caches nothing of its own)."""

    def __init__(self, path):
        self.path = str(path)

    @property
    def sr(self):
        """The SR on it, by tests/kit/reader.py; None if there is none."""
        return read_sr(SparseDisk.from_file(self.path))

    def clone(self, name):
        """What an array makes of a volume: every byte the same."""
        run("cp", "--sparse=always", self.path, LUNS / name)
        return Image(LUNS / name)


def digest(lun):
    """Of an image, or of a LUN: stands for size and contents; zeros count the same, stored or a hole.

    Not against an adversary: a checksum of each block is several times faster than a hash where all is emulated.
    """
    state = hashlib.sha256(b"%d\n" % os.path.getsize(lun.path))
    with open(lun.path, "rb") as image:
        for start, end in _extents(image.fileno()):
            for offset in range(start - start % _BLOCK, end, _BLOCK):
                block = os.pread(image.fileno(), _BLOCK, offset)
                if block != _ZEROS[: len(block)]:
                    state.update(b"%d %d %d\n" % (offset, zlib.crc32(block), zlib.adler32(block)))
    return state.hexdigest()


def from_disk(disk, name):
    """A new file with a disk of tests/kit, such as `builder.one_vhd().disk`."""
    disk.to_file(str(LUNS / name))
    return Image(LUNS / name)


def blank(name, size=64 << 20):
    """A new file of zeros; `size` in bytes."""
    with (LUNS / name).open("wb") as image:
        image.truncate(size)
    return Image(LUNS / name)


def names():
    """Of the files that are there."""
    return {entry.name for entry in LUNS.iterdir()}


def remove_all(keep=()):
    """All files, but those of the names in `keep`."""
    for name in names() - set(keep):
        (LUNS / name).unlink()


def _extents(descriptor):
    """[start, end) of what is stored, widened to blocks that no two extents share."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole up to the end
        start = max(start - start % _BLOCK, end)
        end = os.lseek(descriptor, start, os.SEEK_HOLE) if start >= end else end
        end = min(size, -(-max(end, start + 1) // _BLOCK) * _BLOCK)
        yield start, end
