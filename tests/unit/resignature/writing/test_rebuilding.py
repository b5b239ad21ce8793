# SPDX-License-Identifier: LGPL-2.1-only
"""What is left to do in an image that was made anew, on whatever is there by then."""

import logging

import pytest

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment
from relvmoiscsi.resignature.protocol.rebuilt import EMPTY_UNIT, FULL_UNIT, UNIT, Rebuilt, TableUnit, full_units
from relvmoiscsi.resignature.writing import finalize

MIB = 1 << 20
UNUSED = b"\xff" * UNIT
ENTRY = (24871).to_bytes(4, "big")
TABLE = TableUnit(8 * MIB, UNUSED, ENTRY + UNUSED[4:], 0, UNIT)
SECOND = TableUnit(8 * MIB + UNIT, UNUSED, UNUSED[:-4] + ENTRY, 0, UNIT)

REBUILT = Rebuilt(
    lv_id="b" * 32,
    segments=(Segment(0, 3, 7),),
    full=(16 * MIB, 17 * MIB),
    empty=(20 * MIB, 24 * MIB),
    table=(TABLE, SECOND),
)


class Group:
    def __init__(self, *segments):
        self.lvs = (LogicalVolume("VHD-1", "b" * 32, frozenset(), (), segments),)


OURS, OTHERS = Group(Segment(0, 3, 7)), Group(Segment(0, 3, 8))


@pytest.fixture
def disk():
    made = SparseDisk(64 * MIB)
    made.name = "/dev/sdc"
    made.poke(TABLE.offset, TABLE.old + SECOND.old)
    return made


# --- before the commit


def test_bitmaps_of_filled_blocks_become_all_ones():
    assert list(full_units(REBUILT)) == [Chunk(16 * MIB, FULL_UNIT), Chunk(17 * MIB, FULL_UNIT)]


def test_a_run_that_rebuilds_nothing_has_nothing_to_do():
    assert list(full_units(None)) == []


# --- holes


def test_first_bitmaps_are_emptied_then_the_table_names_the_slots(disk):
    assert list(finalize.empty_units(disk, REBUILT, OURS)) == [
        Chunk(20 * MIB, EMPTY_UNIT),
        Chunk(24 * MIB, EMPTY_UNIT),
    ]
    assert finalize.table_units(disk, REBUILT, OURS) == [
        Chunk(TABLE.offset, TABLE.new),
        Chunk(SECOND.offset, SECOND.new),
    ]


def test_what_is_done_is_not_done_again(disk):
    disk.poke(TABLE.offset, TABLE.new + SECOND.new)

    assert list(finalize.empty_units(disk, REBUILT, OURS)) == []
    assert finalize.table_units(disk, REBUILT, OURS) == []


def test_a_hole_that_is_given_away_already_keeps_its_bitmap_for_a_guest_may_have_used_it(disk):
    disk.poke(TABLE.offset, TABLE.new)

    assert list(finalize.empty_units(disk, REBUILT, OURS)) == [Chunk(24 * MIB, EMPTY_UNIT)]
    assert finalize.table_units(disk, REBUILT, OURS) == [Chunk(SECOND.offset, SECOND.new)]


def test_entries_of_a_guest_stay(disk):
    mine = (90007).to_bytes(4, "big")
    disk.poke(TABLE.offset + 100, mine)

    (chunk, _second) = finalize.table_units(disk, REBUILT, OURS)

    assert chunk.data == TABLE.new[:100] + mine + TABLE.new[104:]


@pytest.mark.parametrize("group", [OTHERS, None], ids=["extents of others", "no group"])
def test_where_the_extents_are_not_ours_any_more_nothing_is_written(disk, group, caplog):
    with caplog.at_level(logging.WARNING):
        assert list(finalize.empty_units(disk, REBUILT, group)) == []
    assert finalize.table_units(disk, REBUILT, group) == []
    assert "the volume group was changed" in caplog.text
