# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN of the scripted target: bytes, identity, and a write cache that a power cut empties."""

import struct

from kit.sparse import SparseDisk

MIB = 1 << 20


class Lun:
    """One LUN. What it holds is `disk`, a SparseDisk; give one, or a size.

    `address` are the 8 bytes that REPORT LUNS gives: LUNs of 256 and more have flat addressing. `serial` is page 80.
    `naa` is the 16 hex digits of page 83; the SCSIid is "3" + naa. With a `naa` of "", page 83 has no identifier.
    """

    def __init__(self, number=0, size_bytes=MIB, disk=None, serial=None, naa=None, **more):
        self.number = number
        self.disk = disk if disk is not None else SparseDisk(size_bytes, more.get("block_size", 512))
        self.size_bytes = self.disk.size_bytes
        self.block_size = more.get("block_size", self.disk.block_size)
        self.physical_block_size = more.get("physical_block_size", max(self.block_size, self.disk.physical_block_size))
        self.serial = f"HOSTILE{number:06d}" if serial is None else serial
        self.naa = f"6001405{number:09x}" + "0" * 16 if naa is None else naa
        self.vendor, self.product = more.get("vendor", "HOSTILE"), more.get("product", "SCRIPTED")
        self.read_only = more.get("read_only", False)
        self.address = more.get("address", address_of(number))
        self.unflushed = []  #: [(offset, bytes before, bytes after)], of each write since the last flush
        self.flushes = self.writes = 0

    @property
    def scsi_id(self):
        """As udev's scsi_id prints it; for a LUN with a NAA designator."""
        return "3" + self.naa

    @property
    def blocks(self):
        return self.size_bytes // self.block_size

    def write(self, offset, data):
        self.unflushed.append((offset, self.disk.peek(offset, len(data)), bytes(data)))
        self.disk.poke(offset, data)
        self.writes += 1

    def flush(self):
        self.flushes += 1
        self.unflushed = []

    def lose_unflushed(self, keeps=None):
        """Lose unflushed writes, as a power cut does, except writes for which `keeps(number of the write)` is true."""
        writes, self.unflushed = self.unflushed, []
        for offset, before, _ in reversed(writes):
            self.disk.poke(offset, before)
        for number, (offset, _, data) in enumerate(writes):
            if keeps is not None and keeps(number):
                self.disk.poke(offset, data)

    # -- pages of INQUIRY -------------------------------------------------------------------------------------------

    def inquiry(self):
        words = f"{self.vendor:8.8}{self.product:16.16}0001".encode()
        return bytes([0, 0, 6, 0x12, 31, 0, 0, 2]) + words

    def page(self, code):
        """The vital product data page, or None."""
        pages = {0x80: self._page_80, 0x83: self._page_83, 0xB0: self._page_b0}
        if code == 0:
            return _page(0, bytes([0] + sorted(pages)))
        return pages[code]() if code in pages else None

    def _page_80(self):
        return _page(0x80, self.serial.encode())

    def _page_83(self):
        text = f"{self.vendor:8.8}{self.serial}".encode()
        designators = [bytes([0x02, 0x01, 0, len(text)]) + text]
        if self.naa:
            designators.append(bytes([0x01, 0x03, 0, len(self.naa) // 2]) + bytes.fromhex(self.naa))
        designators.append(bytes([0x51, 0x94, 0, 4, 0, 0, 0, 1]))  # relative port: of the port, not of the LUN
        return _page(0x83, b"".join(designators))

    def _page_b0(self):
        return _page(0xB0, struct.pack(">BBHII", 0, 0, 1, 0, 0).ljust(60, b"\0"))

    def capacity_10(self):
        return struct.pack(">II", min(self.blocks - 1, 0xFFFFFFFF), self.block_size)

    def capacity_16(self):
        exponent = (self.physical_block_size // self.block_size).bit_length() - 1
        return struct.pack(">QIBB", self.blocks - 1, self.block_size, 0, exponent).ljust(32, b"\0")


def address_of(number):
    """The 8 bytes of a LUN: peripheral below 256, then flat (SAM-5, 4.7.7)."""
    first = number.to_bytes(2, "big") if number < 256 else (0x4000 | number).to_bytes(2, "big")
    return first + bytes(6)


def _page(code, content):
    return struct.pack(">BBH", 0, code, len(content)) + content
