# SPDX-License-Identifier: LGPL-2.1-only
"""Millions of small values in little memory. Pure."""

import zlib
from array import array
from typing import Dict, Iterator, Mapping, Optional, Sequence

from relvmoiscsi.errors import Refused

#: a quarter of the smallest dom0: a dom0 has 2 to 8 GiB for all programs, xapi and SM included
MOST_MEMORY_BYTES = 512 << 20

_NUMBER_BYTES = 8


class Memory:
    """An estimate of the memory that a chain takes. Callers count each part before they allocate the part."""

    def __init__(self, disk: str) -> None:
        self._disk = disk  #: the name of the leaf's volume
        self._bytes = 0

    def take(self, count: int) -> None:
        """Count bytes before their allocation. Raises Refused when the sum exceeds MOST_MEMORY_BYTES."""
        self._bytes += count
        if self._bytes > MOST_MEMORY_BYTES:
            raise Refused(
                f"One VDI of {self._disk} takes {self._bytes >> 20} MiB of memory or more, and "
                f"{MOST_MEMORY_BYTES >> 20} MiB at the most are taken.",
                sm_key="InvalidArg",
            ).advising("Let the original coalesce, or ask for all VDIs (`vdis=all`).")


class Arrays(Mapping[int, "array[int]"]):
    """Compressed arrays of 64-bit numbers, each under a number.

    Most numbers of an array are consecutive. Before compression all first bytes of the numbers come first, then all
    second bytes, and so on: high bytes are equal and low bytes repeat, so an array shrinks a hundredfold.

    The array that was read last stays as it is, for a caller that reads parts of it. A caller that changes an array
    puts it back.
    """

    def __init__(self) -> None:
        self._packed: Dict[int, bytes] = {}
        self._last: Optional[int] = None
        self._found = array("Q")

    def __setitem__(self, number: int, numbers: Sequence[int]) -> None:
        self._last = None
        data = array("Q", numbers).tobytes()
        self._packed[number] = zlib.compress(b"".join(data[at::_NUMBER_BYTES] for at in range(_NUMBER_BYTES)), 1)

    def __getitem__(self, number: int) -> "array[int]":
        if number == self._last:
            return self._found
        planes = zlib.decompress(self._packed[number])
        count, data = len(planes) // _NUMBER_BYTES, bytearray(len(planes))
        for at in range(_NUMBER_BYTES):
            data[at::_NUMBER_BYTES] = planes[at * count : (at + 1) * count]
        found = array("Q")
        found.frombytes(data)
        self._last, self._found = number, found
        return found

    def size_bytes(self, number: int) -> int:
        """The bytes of memory of a compressed array."""
        return len(self._packed[number])

    def __contains__(self, number: object) -> bool:
        return number in self._packed

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[int]:
        return iter(self._packed)
