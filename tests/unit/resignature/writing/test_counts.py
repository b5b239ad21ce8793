# SPDX-License-Identifier: LGPL-2.1-only
"""The time of a run is that of its round trips: six flushes, and reads in batches whose number does not grow with the
number of volumes or the size of the LUN. Nothing is read or written but what the formats ask for."""

import pytest

from kit import builder, reader
from kit.builder import MIB, raw, vhd
from kit.crash import FailingDisk
from kit.cuts import (
    AREA_DEFAULT,
    SCSI_ID,
    cut_before,
    entropy,
    free_ring,
    image,
    recover,
    resignature,
    same_but_for,
    undo,
)
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice

FLUSHES = 6
READ_BATCHES = 8
GIB = 1 << 30


class Watched(ForwardingDevice):
    """Notes every range read and written."""

    def __init__(self, disk):
        super().__init__(disk)
        self.read_ranges, self.written = [], []

    def read(self, ranges):
        self.read_ranges.extend(ranges)
        return super().read(ranges)

    def write(self, chunks):
        self.written.extend(chunks)
        super().write(chunks)


def resignatured(disk):
    watched = Watched(disk)
    prepared = engine.prepare(watched, entropy(0), engine.ResignatureRequest(scsi_id=SCSI_ID))
    assert (disk.writes, disk.flushes) == (0, 0)
    return watched, engine.resignature(watched, prepared)


@pytest.mark.parametrize("block_size", [512, 4096])
def test_only_label_ring_and_identity_fields_are_written(block_size):
    built = builder.everything(area=AREA_DEFAULT, block_size=block_size)
    allowed = built.truth.allowed

    watched, _result = resignatured(built.disk)

    for chunk in watched.written:
        spans = [item for item in allowed if item.offset < chunk.end and chunk.offset < item.end]
        # a chunk is whole blocks: it begins in the block of a field and ends in the block of one
        assert spans, f"{len(chunk.data)} bytes at {chunk.offset} hold nothing that may change"
        assert min(item.offset for item in spans) - chunk.offset < block_size
        assert chunk.end - max(item.end for item in spans) < block_size + 512


def test_guest_data_is_not_read():
    """But for what shares the first 64 KiB, or a block, with what is: headers, footers, locators, MGT."""
    built = builder.build_sr([vhd("disk", blocks=2), raw("data", extents=16)], area=AREA_DEFAULT)

    watched, _result = resignatured(built.disk)

    data = built.truth.device_ranges("data", 0, 16 * 4 * MIB)
    touched = [
        part for part in watched.read_ranges for item in data if part.offset < item.end and item.offset < part.end
    ]
    assert touched == []
    assert sum(part.length for part in watched.read_ranges) < 256 << 10


@pytest.mark.parametrize("count", [1, 50])
def test_an_undo_has_the_same_flushes_and_as_few_batches(count):
    disk = builder.many_vdis(count, chained=True).disk
    resignatured(disk)
    disk.reset_counters()

    result = undo(disk)

    print(f"{count} VDIs: undo takes {disk.read_batches} batches of reads")
    assert disk.flushes == result.flushes == FLUSHES
    assert disk.read_batches <= 2 * READ_BATCHES
    assert disk.write_batches == FLUSHES


def test_where_nothing_is_unfinished_recovery_reads_label_and_text_and_writes_nothing():
    disk = builder.one_vhd().disk

    assert not recover(disk)

    assert (disk.reads, disk.writes, disk.flushes) == (1, 0, 0)


def test_already_done_costs_reads_only():
    disk = builder.many_vdis(20).disk
    resignatured(disk)
    before = disk.copy()
    disk.reset_counters()

    found = engine.prepare(disk, entropy(1), engine.ResignatureRequest(scsi_id=SCSI_ID))

    assert isinstance(found, engine.AlreadyDone)
    assert (disk.writes, disk.flushes) == (0, 0)
    assert disk.read_batches <= READ_BATCHES
    assert disk == before and reader.vg_view(disk) == reader.vg_view(before)


class _Watched(FailingDisk):
    """A disk that takes whole physical blocks alone."""

    def write(self, chunks):
        for chunk in chunks:
            assert chunk.offset % 4096 == len(chunk.data) % 4096 == 0, f"{len(chunk.data)} bytes at {chunk.offset}"
        super().write(chunks)


@pytest.mark.parametrize("name", ["512e", "512e, text wraps"])
def test_what_is_written_is_whole_physical_blocks(name):
    """Which a device writes wholly or not at all; and nothing else in them changes."""
    original = image(name)
    disk = original.copy()

    for act in (resignature, undo):
        act(_Watched(disk))
    for flush in (4, 5):
        recover(_Watched(cut_before(original, flush)))

    assert same_but_for(disk, original, free_ring(original))
