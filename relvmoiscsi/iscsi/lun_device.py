# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN over iSCSI as a device of the engine."""

from typing import List, Optional, Sequence

from relvmoiscsi.device import (
    Chunk,
    Device,
    Range,
    cut_out,
    pieces_of,
    runs_of,
    spans_of,
    verify_readable,
    verify_writable,
)
from relvmoiscsi.iscsi import scsi
from relvmoiscsi.iscsi.lun import READ, WRITE, Lun, Operation
from relvmoiscsi.iscsi.names import LunInfo
from relvmoiscsi.iscsi.session import Command


class LunDevice(Device):
    """Reads and writes in blocks, each batch at once.

    Errors are DeviceError, and Refused where the LUN is another one now, is reserved or read-only: after a write each
    of them comes as the engine expects it.
    """

    def __init__(self, lun: Lun, writable: bool, copy_limit_bytes: Optional[int] = None) -> None:
        self.name, self.writable = lun.name, writable
        self.size_bytes, self.block_size = lun.info.size_bytes, lun.info.block_size
        self.physical_block_size = lun.info.physical_block_size
        #: more than this should not be copied: the target demands digests, and the kernel has no CRC32C to lend
        self.copy_limit_bytes = copy_limit_bytes
        self._lun = lun

    @property
    def info(self) -> LunInfo:
        return self._lun.info

    def pump(self) -> None:
        """Answer what the target has asked meanwhile; call it about each second while waiting for something else."""
        self._lun.pump()

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        for wanted in ranges:
            verify_readable(self, wanted)
        spans = spans_of(ranges, self.block_size, self.size_bytes)
        buffers = [memoryview(bytearray(span.length)) for span in spans]
        operations = []
        for span, buffer in zip(spans, buffers):
            for piece in pieces_of(span.length):
                place, into = Range(span.offset + piece.offset, piece.length), buffer[piece.offset : piece.end]
                command = Command(self._lun.info.lun, scsi.read(*self._blocks(place)), into=into)
                operations.append(Operation(READ, place.offset, place.length, command))
        self._lun.read(operations)
        starts = [span.offset for span in spans]
        return [cut_out(wanted, starts, buffers) for wanted in ranges]

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            verify_writable(self, chunk, self.writable)
        operations = []
        for run in runs_of(chunks):
            data = memoryview(b"".join([chunk.data for chunk in run]))
            for piece in pieces_of(len(data)):
                place = Range(run[0].offset + piece.offset, piece.length)
                cdb = scsi.write(*self._blocks(place))
                command = Command(self._lun.info.lun, cdb, data=data[piece.offset : piece.end])
                operations.append(Operation(WRITE, place.offset, place.length, command))
        self._lun.write(operations)

    def flush(self) -> None:
        self._lun.flush()

    def _blocks(self, place: Range) -> Sequence[int]:
        return place.offset // self.block_size, place.length // self.block_size
