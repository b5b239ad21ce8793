# SPDX-License-Identifier: LGPL-2.1-only
"""A copy of a built LUN, to be spoiled: bytes of any structure change, and its checksum is made to be right again."""

import struct
from typing import Any, Tuple, Union

from kit import build_lvm
from kit.builder import BuiltSr
from kit.sparse import SparseDisk

LABEL = 512
#: a byte of the device, or (key of a volume, offset in it)
Place = Union[int, Tuple[str, int]]


class Spoiled:
    """Its methods give it back, so that one can follow the other."""

    def __init__(self, built: BuiltSr) -> None:
        self.truth, self.disk = built.truth, built.disk.copy()

    def poke(self, place: Place, data: Any, *values: Any) -> "Spoiled":
        """Bytes, or values as `struct` packs them; what does not fit on the device is left out."""
        content = struct.pack(data, *values) if values else data
        if isinstance(place, int):
            self.disk.poke(place, content[: max(0, self.disk.size_bytes - place)])
            return self
        for part in self.truth.device_ranges(place[0], place[1], len(content)):
            self.disk.poke(part.offset, content[: part.length])
            content = content[part.length :]
        return self

    def peek(self, place: Place, length: int) -> bytes:
        if isinstance(place, int):
            return self.disk.peek(place, length)
        return b"".join(self.disk.peek(*part) for part in self.truth.device_ranges(place[0], place[1], length))

    def sealed_label(self) -> "Spoiled":
        return self.poke(LABEL + 16, "<I", build_lvm.crc(self.disk.peek(LABEL + 20, 492)))

    def sealed_area(self, number: int = 0) -> "Spoiled":
        at = self.truth.areas[number].offset
        return self.poke(at, "<I", build_lvm.crc(self.disk.peek(at + 4, 508)))

    def sealed_vhd(self, key: str) -> "Spoiled":
        """Both footers and the header."""
        size = self.truth.volume(key).size
        for offset, length, field in ((0, 512, 64), (size - 512, 512, 64), (512, 1024, 36)):
            data = self.peek((key, offset), length)
            total = sum(data) - sum(data[field : field + 4])
            self.poke((key, offset + field), ">I", ~total & 0xFFFFFFFF)
        return self

    def cut(self, size: int) -> "Spoiled":
        """Shorter: so many bytes from the beginning, or without so many at the end."""
        size = size if size > 0 else self.disk.size_bytes + size
        disk = SparseDisk(size, self.disk.block_size, self.disk.name)
        disk.poke(0, self.disk.peek(0, size))
        self.disk = disk
        return self
