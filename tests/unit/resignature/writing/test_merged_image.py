# SPDX-License-Identifier: LGPL-2.1-only
"""A run that makes one VDI: what the journal has of its image, and what is left to do in it on what is there by then.

A unit of 4096 bytes is a part of the block table, or holds the bitmap of a block in its last sector. A hole is a slot
between two blocks; the table gives it to a block that has none, once its bitmap is empty.
"""

import hashlib
import logging
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.sparse import SparseDisk
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import Place
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment
from relvmoiscsi.formats.vhd import DynamicHeader, Footer, sealed
from relvmoiscsi.resignature.protocol import journal
from relvmoiscsi.resignature.protocol.commit_record import RESIGNATURE
from relvmoiscsi.resignature.protocol.journal import decode, encode
from relvmoiscsi.resignature.protocol.merged_image import (
    EMPTY_UNIT,
    UNIT,
    MergedImage,
    TableUnit,
    given_away,
    merged_table,
    not_given_yet,
)
from relvmoiscsi.resignature.protocol.run_record import PvAndVg, Run
from relvmoiscsi.resignature.writing import finalize

MIB = 1 << 20
UNUSED = b"\xff\xff\xff\xff"
ONE, TWO = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000002"


def with_entries(unit, entries):
    """A unit of the block table with other entries: {number: sector}."""
    data = bytearray(unit)
    for number, sector in entries.items():
        data[4 * number : 4 * number + 4] = sector.to_bytes(4, "big")
    return bytes(data)


OLD = with_entries(UNUSED * (UNIT // 4), {0: 8455, 1: 12559, 200: 20767})
#: blocks 2 and 300 get a hole each
NEW = with_entries(OLD, {2: 16663, 300: 24871})
HALF = NEW[:512] + OLD[512:]
TABLE = TableUnit(40 * MIB, OLD, NEW, 0, UNIT)
MERGED = MergedImage(
    lv_id="b" * 32,
    segments=(Segment(0, 3, 7), Segment(3, 1, 40)),
    full=array("q", (24 * MIB, 24 * MIB + 5 * UNIT, 23 * MIB)),
    empty=array("q", (32 * MIB, 36 * MIB)),
    table=(TABLE,),
)

# --- the journal


def in_journal(merged):
    return encode(
        Run(kind=RESIGNATURE, run_id=b"0123456789abcdef", scsi_id=None, tool="1.0", ids=IdMap(ONE, {ONE: TWO}, {}),
            replaced=PvAndVg("a" * 32, "a" * 32),
            label_number=1, old_label=bytes(512), new_pv_id="b" * 32, final_label=b"", mdas=(), writes=(),
            merged=merged)
    )  # fmt: skip


@pytest.mark.parametrize(
    "merged",
    [MERGED, MERGED._replace(empty=array("q"), table=()), MERGED._replace(full=array("q")), MergedImage("b" * 32, ())],
)
def test_it_comes_back_from_the_journal(merged, monkeypatch):
    data = in_journal(merged)
    monkeypatch.setattr(journal, "verify_run", lambda *_: None)

    found = decode(data, Place("/dev/sdc", 65536), hashlib.sha256(data[:64]).digest(), 1 << 30)

    assert found.merged == merged


def test_what_is_still_to_be_written_lies_in_its_hulls():
    hulls = [(part.offset, part.end) for part in MERGED.hulls()]

    assert hulls == [(23 * MIB, 24 * MIB + 6 * UNIT), (32 * MIB, 36 * MIB + UNIT), (40 * MIB, 40 * MIB + UNIT)]


# --- whose volume it is


class Group:
    """As much of a volume group as is asked for: of each volume its segments, and whether its id is another one."""

    def __init__(self, *volumes):
        self.lvs = tuple(
            LogicalVolume("VHD-1", ("c" if "other" in parts else "b") * 32, frozenset(), (),
                          tuple(Segment(*part) for part in parts if part != "other"))
            for parts in volumes
        )  # fmt: skip


OURS = Group([(0, 3, 7), (3, 1, 40)])


@pytest.mark.parametrize(
    "group, is_ours",
    [
        (OURS, True),
        (Group([(0, 3, 7), (3, 1, 40), (4, 9, 50)]), True),  # made larger
        (Group([(0, 3, 7), (3, 1, 40), (4, 10**15, 50)]), True),  # by a text that says so
        (Group([(0, 1, 7), (1, 2, 8), (3, 1, 40)]), True),
        (Group(["other", (0, 2, 0)], [(0, 3, 7), (3, 1, 40)]), True),
        (Group([(0, 3, 7)]), False),  # made smaller
        (Group([(0, 3, 8), (3, 1, 40)]), False),
        (Group(["other", (0, 3, 7), (3, 1, 40)]), False),
        (Group(), False),
    ],
)
def test_the_volume_is_ours_as_long_as_its_extents_are_where_they_were_put(group, is_ours):
    assert MERGED.is_still_on(group) is is_ours


def test_a_volume_of_a_million_extents_is_not_listed():
    tracemalloc.start()
    try:
        assert MERGED.is_still_on(Group([(0, 3, 7), (3, 1, 40), (4, 1000000, 50)]))
        assert not MergedImage("b" * 32, (Segment(0, 1000000, 7),)).is_still_on(Group([(0, 1000000, 8)]))
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 18


# --- holes

ELSEWHERE = {2: 90007}  #: tapdisk has put the block elsewhere meanwhile: its hole stays unused
GUEST = {100: 90007}  #: a new block of a guest
HEADERS = bytes(sealed(Footer.zero(cookie=b"conectix", version=0x10000)))
HEADERS += bytes(sealed(DynamicHeader.zero(cookie=b"cxsparse", version=0x10000)))
HIDDEN = bytes(sealed(Footer(HEADERS[:85] + b"\1" + HEADERS[86:512])))
FIRST = HEADERS.ljust(1536, b"\0") + OLD[1536:]
FIRST_UNIT = TableUnit(40 * MIB, FIRST, with_entries(FIRST, {1022: 16663}), 1536, UNIT)
SMALL_UNIT = TableUnit(40 * MIB, OLD[:512] + bytes(512), NEW[:512] + bytes(512), 0, 512)
BATMAP = b"\x80" + bytes(511)


@pytest.mark.parametrize(
    "unit, found, merged, left",
    [
        (TABLE, OLD, NEW, [32, 36]),
        (TABLE, NEW, NEW, []),
        (TABLE, HALF, NEW, [36]),
        (TABLE, OLD[:1024] + NEW[1024:], NEW, [32]),
        (TABLE, with_entries(OLD, ELSEWHERE), with_entries(NEW, ELSEWHERE), [32, 36]),
        (TABLE, with_entries(NEW, ELSEWHERE), with_entries(NEW, ELSEWHERE), [32]),
        (TABLE, with_entries(OLD, GUEST), with_entries(NEW, GUEST), [32, 36]),
        # a footer that SM has written meanwhile stays, and a batmap behind a small table
        (FIRST_UNIT, HIDDEN + FIRST[512:], HIDDEN + FIRST_UNIT.new[512:], None),
        (SMALL_UNIT, OLD[:512] + BATMAP, NEW[:512] + BATMAP, None),
    ],
)
def test_the_table_comes_out_with_its_holes_given_away_and_a_hole_that_it_names_keeps_its_bitmap(
    unit, found, merged, left
):
    assert merged_table(unit, found) == merged == merged_table(unit, merged)
    if left is not None:
        assert list(given_away(unit)) == [4 * 2, 4 * 300]
        assert list(not_given_yet(MERGED, [found])) == [MIB * place for place in left]


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_any_sectors_of_a_cut_write_lead_to_the_same_table(sectors):
    parts = [(NEW if new else OLD)[512 * n : 512 * n + 512] for n, new in enumerate(sectors)]

    assert merged_table(TABLE, b"".join(parts)) == NEW


# --- what is written


@pytest.fixture
def disk():
    made = SparseDisk(64 * MIB)
    made.name = "/dev/sdc"
    made.poke(TABLE.offset, OLD)
    return made


@pytest.mark.parametrize(
    "found, empty, tables",
    [(OLD, [32, 36], [NEW]), (HALF, [36], [NEW]), (NEW, [], []),
     (with_entries(OLD, GUEST), [32, 36], [with_entries(NEW, GUEST)])],
)  # fmt: skip
def test_first_bitmaps_are_emptied_then_the_table_names_the_slots(disk, found, empty, tables):
    """What is done is not done again; a guest may have used a hole that is given away; its entries stay."""
    disk.poke(TABLE.offset, found)

    before = disk.copy()
    assert finalize.give_slots(disk, MERGED, OURS) == [Chunk(TABLE.offset, table) for table in tables]
    for place in empty:
        before.poke(MIB * place, EMPTY_UNIT)
    assert disk == before


@pytest.mark.parametrize("group", [Group([(0, 3, 8), (3, 1, 40)]), None])
def test_where_the_extents_are_not_ours_any_more_nothing_is_written(disk, group, caplog):
    with caplog.at_level(logging.WARNING):
        assert finalize.give_slots(disk, MERGED, group) == []
    assert "the volume group was changed" in caplog.text
