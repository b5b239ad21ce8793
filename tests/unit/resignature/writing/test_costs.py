# SPDX-License-Identifier: LGPL-2.1-only
"""What a resignature costs, counted: operations as they go to the kernel, and how many wait for the one before. And
nothing is read or written but what the formats ask for.

`make bench` prints the same numbers beside times. They are exact: whoever changes one of them changes what a
resignature costs, and says so here.
"""

import re
from functools import lru_cache
from pathlib import Path

import pytest

from bench import luns
from bench.counts import SIZES, cost_of
from kit import builder
from kit.builder import AREA_DEFAULT, MIB, build_sr, raw, vhd
from kit.crash import FailingDisk
from kit.cuts import SCSI_ID, cut_before, done, entropy, free_ring, image, recover, resignature, same_but_for, undo
from kit.examples import WHOLE
from relvmoiscsi import engine
from relvmoiscsi.device import ForwardingDevice
from relvmoiscsi.engine import ResignatureRequest
from relvmoiscsi.sr_driver import probe

FLUSHES = 6
WRITE_BATCHES = 6
DEPENDENT_READS = 8

#: kind, VDIs: reads, dependent reads, writes
COSTS = {
    ("dynamic VHD", 1): (13, 6, 8),
    ("dynamic VHD", 10): (22, 6, 17),
    ("dynamic VHD", 100): (113, 7, 107),
    ("dynamic VHD", 1000): (1014, 7, 1007),
    ("VHD chains", 1): (13, 6, 8),
    ("VHD chains", 10): (40, 7, 29),
    ("VHD chains", 100): (311, 8, 239),
    ("VHD chains", 1000): (3012, 8, 2339),
    ("QCOW2 chains", 1): (12, 6, 8),
    ("QCOW2 chains", 10): (33, 6, 23),
    ("QCOW2 chains", 100): (243, 7, 173),
    ("QCOW2 chains", 1000): (2345, 7, 1673),
}


@lru_cache(maxsize=None)
def cost(kind, count):
    return cost_of(luns.KINDS[kind](count))


@pytest.mark.parametrize("kind, count", [row for row in COSTS if WHOLE or row[1] < 1000])
def test_a_resignature_costs_exactly_so_many_operations(kind, count):
    found = cost(kind, count)

    assert (found.reads, found.dependent_reads, found.writes) == COSTS[kind, count]
    assert (found.dependent_writes, found.flushes) == (WRITE_BATCHES, FLUSHES)
    assert found.dependent_reads <= DEPENDENT_READS


def test_the_page_has_these_numbers():
    page = (Path(__file__).resolve().parents[4] / "docs/costs.rst").read_text(encoding="utf-8")
    row = r"(?m)^  (\S.*?) +(\d+) +(\d+) +(\d+) +[\d.]+ .iB +(\d+) +\d+ +[\d.]+ .iB +6$"
    told = {(kind, int(count)): tuple(map(int, numbers)) for kind, count, *numbers in re.findall(row, page)}

    assert {key: told.get(key) for key in COSTS} == COSTS


@pytest.mark.parametrize("count, waits", [(1, 18), (10, 19), (100, 36)] + WHOLE * [(1000, 183)])
def test_with_32_operations_at_a_time_it_waits_so_often(count, waits):
    assert cost_of(luns.chains(count), depth=32).waits == waits


def test_the_size_of_a_lun_costs_nothing():
    for size in SIZES:
        found = cost_of(luns.of_size(size))
        assert (found.reads, found.dependent_reads, found.writes, found.flushes) == (21, 7, 14, FLUSHES)


def probed(disk):
    probe.document(disk, SCSI_ID)


def looked(disk):
    assert engine.find_done(disk, ResignatureRequest(scsi_id=SCSI_ID)) is not None


def prepared(disk):
    assert isinstance(engine.prepare(disk, entropy(1), ResignatureRequest(scsi_id=SCSI_ID)), engine.AlreadyDone)


@pytest.mark.parametrize(
    "look, count, reads, batches",
    [(looked, 1, 7, 4), (looked, 50, 286, 5), (prepared, 1, 7, 4), (prepared, 50, 286, 5), (probed, 1, 7, 6),
     (probed, 50, 286, 7)],
)  # fmt: skip
def test_a_look_at_a_lun_that_is_done_reads_all_metadata_in_few_batches(look, count, reads, batches):
    """The label alone is never believed; what a look reads more than the label goes out at once."""
    disk = done(builder.many_vdis(count, chained=True).disk)
    disk.reset_counters()

    look(disk)

    assert (disk.reads, disk.read_batches) == (reads, batches)
    assert (disk.writes, disk.flushes) == (0, 0)


@pytest.mark.parametrize("count", [1, 50])
def test_an_undo_has_the_same_flushes_and_as_few_batches_and_calls_that_do_nothing_read_only(count):
    disk = builder.many_vdis(count, chained=True).disk
    assert not recover(disk)
    assert (disk.reads, disk.writes, disk.flushes) == (1, 0, 0)
    disk = done(disk)

    disk.reset_counters()
    result = undo(disk)
    assert disk.flushes == result.flushes == FLUSHES
    assert disk.read_batches <= 2 * DEPENDENT_READS + 1
    assert disk.write_batches == FLUSHES


# --- which bytes


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


@pytest.mark.parametrize("block_size", [512, 4096])
def test_only_label_ring_and_identity_fields_are_written(block_size):
    built = builder.everything(area=AREA_DEFAULT, block_size=block_size)
    watched = Watched(built.disk)

    resignature(watched)

    for chunk in watched.written:
        spans = [item for item in built.truth.allowed if item.offset < chunk.end and chunk.offset < item.end]
        # a chunk is whole blocks: it begins in the block of a field and ends in the block of one
        assert spans, f"{len(chunk.data)} bytes at {chunk.offset} hold nothing that may change"
        assert min(item.offset for item in spans) - chunk.offset < block_size
        assert chunk.end - max(item.end for item in spans) < block_size + 512


def test_guest_data_is_not_read():
    """But for what shares the first 64 KiB, or a block, with what is: headers, footers, locators, MGT."""
    built = build_sr([vhd("disk", blocks=2), raw("data", extents=16)], area=AREA_DEFAULT)
    watched = Watched(built.disk)

    resignature(watched)

    data = built.truth.device_ranges("data", 0, 16 * 4 * MIB)
    read = watched.read_ranges
    assert [part for part in read for item in data if part.offset < item.end and item.offset < part.end] == []
    assert sum(part.length for part in read) < 256 << 10


class WholeBlocks(FailingDisk):
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
        act(WholeBlocks(disk))
    for flush in (4, 5):
        recover(WholeBlocks(cut_before(original, flush)))

    assert same_but_for(disk, original, free_ring(original))
