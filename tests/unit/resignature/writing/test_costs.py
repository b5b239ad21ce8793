# SPDX-License-Identifier: LGPL-2.1-only
"""What a resignature costs, counted: operations as they go to the kernel, and how many wait for the one before.

`make bench` prints the same numbers beside times. They are exact: whoever changes one of them changes what a
resignature costs, and says so here.
"""

import re
from functools import lru_cache
from pathlib import Path

import pytest

from bench import luns
from bench.counts import SIZES, cost_of
from kit.builder import build_sr, vhd
from kit.examples import WHOLE

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
    rows = re.findall(r"\* - (.+)\n((?:     - \d+ / \d+ / \d+\n)+)", page)
    told = [(kind, tuple(map(int, row))) for kind, text in rows for row in re.findall(r"(\d+) / (\d+) / (\d+)", text)]

    assert told == [(kind, numbers) for (kind, _), numbers in COSTS.items()]


@pytest.mark.parametrize("kind", luns.KINDS)
def test_bytes_are_those_of_the_formats_and_the_journal(kind):
    """A VDI: 320 bytes of LVM text, 1 KiB of MGT, at most 2.5 KiB of image headers, each read and written with a
    journal of the old and the new; they are compared and read back."""
    few, many = (cost(kind, count) for count in (10, 100))

    assert (many.bytes_written - few.bytes_written) / 90 < 3 << 10
    assert (many.bytes_read - few.bytes_read) / 90 < 14 << 10


@pytest.mark.parametrize("count, waits", [(1, 18), (10, 19), (100, 36)] + WHOLE * [(1000, 183)])
def test_with_32_operations_at_a_time_it_waits_so_often(count, waits):
    assert cost_of(luns.chains(count), depth=32).waits == waits


def test_where_the_block_table_has_room_for_2_tib_the_locators_are_operations_of_their_own():
    """As SM makes VHDs: 4 MiB lie between header and locators, of which there are 6 in 10 VDIs."""
    volumes = [vhd(f"disk{n}", f"disk{n - n % 3}" if n % 3 else "", hidden=not n % 3 and n < 9) for n in range(10)]
    reads, dependent_reads, writes = COSTS["VHD chains", 10]

    found = cost_of(build_sr(volumes))

    assert (found.reads, found.dependent_reads, found.writes) == (reads + 2 * 6, dependent_reads, writes)


@pytest.mark.parametrize("size", SIZES)
def test_the_size_of_the_lun_costs_nothing(size):
    cost = cost_of(luns.of_size(size))

    assert (cost.reads, cost.dependent_reads, cost.writes, cost.flushes) == (21, 7, 14, FLUSHES)


def test_a_second_metadata_area_costs_one_more_wait():
    """Its header is not in the first 64 KiB, and says where its text lies. SM makes PVs with one area."""
    cost = cost_of(luns.two_metadata_areas(100))

    assert (cost.dependent_reads, cost.dependent_writes, cost.flushes) == (DEPENDENT_READS + 1, WRITE_BATCHES, FLUSHES)
