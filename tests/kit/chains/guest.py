# SPDX-License-Identifier: LGPL-2.1-only
"""What a guest has written to its disk, in a flat copy that is kept beside the VHDs; and what guests write.

Each sector of `Writer` has other bytes, which cannot be compressed. So a test notices a sector in the wrong place.
"""

import hashlib
import random
from functools import lru_cache
from typing import Dict, Iterator, List, Set, Tuple

from .flat import BLOCK, SECTOR, SECTORS, Flat, digest


class Guest:
    """A disk as its guest knows it."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self._digests: Dict[int, str] = {}
        self._changed: Set[int] = set()

    @property
    def size(self) -> int:
        return len(self.data)

    def write(self, sector: int, data: bytes) -> None:
        start = sector * SECTOR
        assert data and start + len(data) <= self.size, (sector, len(data), self.size)
        self.data[start : start + len(data)] = data
        self._changed |= set(range(start // BLOCK, (start + len(data) - 1) // BLOCK + 1))

    def grow(self, size: int) -> None:
        self._changed.add(self.size // BLOCK)
        self.data += bytes(size - self.size)

    def flat(self) -> Flat:
        """As `flatten` should find it."""
        for number in self._changed:
            data = bytes(self.data[number * BLOCK : (number + 1) * BLOCK])
            self._digests[number] = digest(data)
        self._changed = set()
        return Flat(self.size, tuple(sorted(item for item in self._digests.items() if item[1])))


_APART = 1299709


@lru_cache(maxsize=None)
def _noise() -> bytes:
    return hashlib.shake_128(b"guests").digest(2 * BLOCK)


class Writer:
    """What guests write, as it comes: each time other bytes."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self._start = dice.getrandbits(128)
        self._count = 0

    def data(self, sectors: int) -> bytes:
        """From a place of its own in one stream of noise; an odd distance between places keeps sectors apart."""
        found: List[bytes] = []
        for done in range(0, sectors * SECTOR, BLOCK):
            self._count += 1
            start = (self._start + self._count * _APART) % BLOCK
            found.append(_noise()[start : start + min(BLOCK, sectors * SECTOR - done)])
        return b"".join(found)

    def zeros_or_data(self, sectors: int) -> bytes:
        """Guests write zeros as well, and these hide what a parent holds there."""
        return bytes(sectors * SECTOR) if self.dice.random() < 0.1 else self.data(sectors)

    def to_block(self, block: int, size: int, how: str = "") -> Iterator[Tuple[int, bytes]]:
        """(guest sector, bytes) of a few writes to one block of a disk; `how` is one of SHAPES."""
        start = block * SECTORS
        end = min(start + SECTORS, size // SECTOR)
        for first, count in self._runs(end - start, how or self.dice.choice(SHAPES)):
            yield start + first, self.zeros_or_data(count)

    def _runs(self, sectors: int, how: str) -> List[Tuple[int, int]]:
        dice, few = self.dice, max(1, min(sectors, 9))
        if how == "whole" or sectors == 1:
            return [(0, sectors)]
        if how == "whole in pieces":
            cut = dice.randrange(1, sectors)
            return [(cut, sectors - cut), (0, cut)]
        if how == "head":
            return [(0, dice.randrange(1, sectors))]
        if how == "tail":
            first = dice.randrange(1, sectors)
            return [(first, sectors - first)]
        if how == "all but one":
            gap = dice.randrange(1, sectors - 1) if sectors > 2 else 1
            return [part for part in ((0, gap), (gap + 1, sectors - gap - 1)) if part[1]]
        if how == "ends":
            return [(0, 1), (sectors - 1, 1)]
        assert how == "spots", how
        return [(first, dice.randint(1, min(few, sectors - first))) for first in dice.sample(range(sectors), few)]


#: What a few writes do to a block: fill it, or leave sectors to the parents.
SHAPES = ("whole", "whole in pieces", "head", "tail", "all but one", "ends", "spots", "spots")
