# SPDX-License-Identifier: LGPL-2.1-only
"""What tapdisk does to a VHD that lies on a volume, when a guest writes.

    disk = Tapdisk(volume)          opens for writing; the end footer is destroyed
    disk.write(sector, data)        bitmap, table and pads as tapdisk writes them
    disk.close()                    footers, and then the batmap; or `abandon`, as a host that crashes

Where a block goes   behind the one that ends last, whatever holes there are before, its data on a page of 4 KiB
What is written      gap and bitmap zero, the table's sector, data, the bitmap; the rest of the data stays as it was
A full block         a write to its first sector writes 3584 zero bytes in front of the bitmap, too, except to the block
                     in the very first place
The last sector      of the volume is nobody's as long as the disk is open. At close the footer is written there, over
                     guest data if a block was allocated so far; past the volume's end writes fail with ENOSPC

The guest reads by way of `flat`. Source: blktap `drivers/block-vhd.c`: find_next_free_block, reserve_new_block,
schedule_zero_bm_write, schedule_data_write, schedule_redundant_bm_write, finish_bitmap_transaction, vhd_kill_footer,
_vhd_close; storage of type LVM, so nothing is preallocated.
"""

from .libvhd import ALL, BLOCK_SECTORS, KILLED, PAGE, SECTOR, Piece, Vhd, next_entry, pieces_of, runs_of
from .lun import Volume


class Tapdisk:
    """A VHD that is open for a guest. Raises NotAVhd."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.vhd = Vhd(volume)
        self._first_entry = next_entry(self.vhd.headers_end)
        self._end = self.vhd.data_end
        volume.write(volume.size - SECTOR, KILLED)

    def write(self, sector: int, data: bytes) -> None:
        """The guest writes whole sectors. Raises OSError with ENOSPC; then a part may have been written."""
        assert sector * SECTOR + len(data) <= self.vhd.size, "guests cannot write past the end of their disks"
        for piece in pieces_of(sector, data):
            if piece.block not in self.vhd.bat:
                self._allocate(piece.block)
                self._write_new(piece)
            else:
                self._write_runs(piece)

    def _allocate(self, block: int) -> None:
        entry = next_entry(self._end)
        self.volume.write(self._end * SECTOR, bytes((entry + 1 - self._end) * SECTOR))
        self.vhd.set_entry(block, entry)
        self._end = entry + 1 + BLOCK_SECTORS

    def _write_runs(self, piece: Piece) -> None:
        """To a block that has its place: sectors that are there, and sectors that are not yet, one after the other."""
        for first, count, there in runs_of(self.vhd.bits(piece.block), piece.first, piece.count):
            start = (first - piece.first) * SECTOR
            part = Piece(piece.block, first, piece.data[start : start + count * SECTOR])
            if there:
                self._write_data(part)
                self._write_pad(part)
            else:
                self._write_new(part)

    def _write_new(self, piece: Piece) -> None:
        self._write_data(piece)
        bits = self.vhd.bits(piece.block) | piece.bits
        self.vhd.write_bitmap(piece.block, bits)
        if bits == ALL:
            self.vhd.set_full(piece.block)

    def _write_data(self, piece: Piece) -> None:
        self.volume.write((self.vhd.bat[piece.block] + 1 + piece.first) * SECTOR, piece.data)

    def _write_pad(self, piece: Piece) -> None:
        entry = self.vhd.bat[piece.block]
        if piece.first == 0 and self.vhd.is_full(piece.block) and entry != self._first_entry:
            self.volume.write((entry - (PAGE - 1)) * SECTOR, bytes((PAGE - 1) * SECTOR) + b"\xff" * SECTOR)

    def close(self) -> None:
        self.vhd.write_footers()
        self.vhd.write_batmap()

    def abandon(self) -> None:
        """The host is gone: no footer at the end, and a batmap that knows nothing of the blocks filled since."""
