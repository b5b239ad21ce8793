# SPDX-License-Identifier: LGPL-2.1-only
"""What the journal has of a run that makes one VDI, and what may still be written when it is read again."""

import hashlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.errors import Place
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.formats.lvm.vg import LogicalVolume, Segment
from relvmoiscsi.formats.vhd import DynamicHeader, Footer
from relvmoiscsi.resignature.protocol import journal, structure
from relvmoiscsi.resignature.protocol.commit_record import RESIGNATURE
from relvmoiscsi.resignature.protocol.journal import decode, encode
from relvmoiscsi.resignature.protocol.rebuilt import (
    EMPTY_UNIT,
    FULL_UNIT,
    UNIT,
    Rebuilt,
    TableUnit,
    decode_units,
    encode_rebuilt,
    given_away,
    merged_table,
    not_given_yet,
)
from relvmoiscsi.resignature.protocol.run import Run

WHERE = Place("/dev/sdc", 65536)
SIZE = 1 << 30
ONE, TWO = "0a0b0c0d-0000-4000-8000-000000000001", "0a0b0c0d-0000-4000-8000-000000000002"

UNUSED = b"\xff\xff\xff\xff"
FOOTER = structure.resealed("VHD footer", bytes(Footer.zero(cookie=b"conectix", version=0x10000)))
HEADER = structure.resealed("VHD header", bytes(DynamicHeader.zero(cookie=b"cxsparse", version=0x10000)))


def entry(sector):
    assert sector % 8 == 7
    return sector.to_bytes(4, "big")


def table(**entries):
    """A unit of the block table: entries by number ("e5"), the others unused."""
    data = bytearray(UNUSED * (UNIT // 4))
    for number, value in entries.items():
        data[4 * int(number[1:]) : 4 * int(number[1:]) + 4] = value
    return bytes(data)


OLD = table(e0=entry(8455), e1=entry(12559), e200=entry(20767))
#: blocks 2 and 300 get a hole each
NEW = table(e0=entry(8455), e1=entry(12559), e200=entry(20767), e2=entry(16663), e300=entry(24871))
TABLE = TableUnit(40 << 20, OLD, NEW, 0, UNIT)

NONE = array("q")
REBUILT = Rebuilt(
    lv_id="b" * 32,
    segments=(Segment(0, 3, 7), Segment(3, 1, 40)),
    full=array("q", (24 << 20, (24 << 20) + 5 * UNIT, 23 << 20)),
    empty=array("q", (32 << 20, 36 << 20)),
    table=(TABLE,),
)


# --- the journal


def run_of(rebuilt):
    return Run(
        kind=RESIGNATURE, run_id=b"0123456789abcdef", scsi_id=None, tool="1.0", ids=IdMap(ONE, {ONE: TWO}, {}),
        label_number=1, old_label=bytes(512), new_pv_id="b" * 32, final_label=b"", mdas=(), writes=(), rebuilt=rebuilt,
    )  # fmt: skip


@pytest.mark.parametrize(
    "rebuilt", [REBUILT, REBUILT._replace(empty=NONE, table=()), REBUILT._replace(full=NONE), Rebuilt("b" * 32, ())]
)
def test_it_comes_back_from_the_journal(rebuilt, monkeypatch):
    data = encode(run_of(rebuilt))
    monkeypatch.setattr(journal, "verify_run", lambda *_: None)

    assert decode(data, WHERE, hashlib.sha256(data[:64]).digest(), SIZE).rebuilt == rebuilt


@given(st.lists(st.integers(0, 1 << 45)))
def test_units_are_kept_as_differences(units):
    assert decode_units(encode_rebuilt(REBUILT._replace(full=array("q", units)))["full"]) == array("q", units)


def test_a_hundred_thousand_holes_in_a_row_take_little_room_in_the_journal():
    many = tuple(range(32 << 20, (32 << 20) + 100000 * 513 * UNIT, 513 * UNIT))

    assert len(encode(run_of(REBUILT._replace(full=many)))) < 16 << 10


def test_what_is_still_to_be_written_lies_in_its_hulls():
    hulls = [(part.offset, part.end) for part in REBUILT.hulls()]

    assert hulls == [(23 << 20, (24 << 20) + 6 * UNIT), (32 << 20, (36 << 20) + UNIT), (40 << 20, (40 << 20) + UNIT)]


# --- whose volume it is


def lv(*segments, lv_id="b" * 32):
    return LogicalVolume("VHD-1", lv_id, frozenset(), (), tuple(Segment(*segment) for segment in segments))


class Group:
    """As much of a volume group as is asked for."""

    def __init__(self, *lvs):
        self.lvs = lvs


@pytest.mark.parametrize(
    "lvs, ours",
    [
        ([lv((0, 3, 7), (3, 1, 40))], True),
        ([lv((0, 3, 7), (3, 1, 40), (4, 9, 50))], True),  # made larger
        ([lv((0, 1, 7), (1, 2, 8), (3, 1, 40))], True),
        ([lv((0, 2, 0), lv_id="c" * 32), lv((0, 3, 7), (3, 1, 40))], True),
        ([lv((0, 3, 7))], False),  # made smaller
        ([lv((0, 3, 8), (3, 1, 40))], False),
        ([lv((0, 3, 7), (3, 1, 40), lv_id="c" * 32)], False),
        ([], False),
    ],
)
def test_the_volume_is_ours_as_long_as_its_extents_are_where_they_were_put(lvs, ours):
    assert REBUILT.is_still_on(Group(*lvs)) is ours


# --- holes


def test_the_entries_that_give_a_hole_away():
    assert list(given_away(TABLE)) == [4 * 2, 4 * 300]


@pytest.mark.parametrize(
    "found, left",
    [
        (OLD, [32 << 20, 36 << 20]),
        (NEW, []),
        (NEW[:512] + OLD[512:], [36 << 20]),
        (OLD[:1024] + NEW[1024:], [32 << 20]),
    ],
    ids=["before", "after", "the first sector", "the rest"],
)
def test_a_hole_that_the_table_names_keeps_its_bitmap(found, left):
    assert list(not_given_yet(REBUILT, [found])) == left


def test_a_block_that_tapdisk_has_put_elsewhere_meanwhile_leaves_its_hole_unused():
    written = OLD[:8] + entry(90007) + OLD[12:]

    assert merged_table(TABLE, written) == written[:1200] + NEW[1200:1204] + written[1204:]


@pytest.mark.parametrize("found", [OLD, NEW, NEW[:512] + OLD[512:]], ids=["old", "new", "half"])
def test_the_table_comes_out_with_its_holes_given_away(found):
    assert merged_table(TABLE, found) == NEW


def test_new_blocks_of_a_guest_stay():
    written = bytearray(OLD)
    written[400:404] = entry(90007)

    expected = bytearray(NEW)
    expected[400:404] = entry(90007)
    assert merged_table(TABLE, bytes(written)) == bytes(expected)


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_any_sectors_of_a_cut_write_lead_to_the_same_table(sectors):
    parts = [(NEW if new else OLD)[512 * n : 512 * n + 512] for n, new in enumerate(sectors)]

    assert merged_table(TABLE, b"".join(parts)) == NEW


def test_merging_twice_is_merging_once():
    written = OLD[:8] + entry(90007) + OLD[12:]

    once = merged_table(TABLE, written)

    assert merged_table(TABLE, once) == once
    assert list(not_given_yet(REBUILT, [once])) == [32 << 20]


def test_bitmaps_are_the_last_sector_of_their_unit():
    assert bytes(3584) + b"\xff" * 512 == FULL_UNIT
    assert bytes(4096) == EMPTY_UNIT


# --- what lies around the table

HEADERS = (FOOTER + HEADER).ljust(1536, b"\0")
FIRST = TableUnit(40 << 20, HEADERS + OLD[1536:], HEADERS + OLD[1536:4092] + entry(16663), 1536, UNIT)


def test_a_footer_and_a_header_that_sm_has_written_meanwhile_stay():
    hidden = structure.resealed("VHD footer", FOOTER[:85] + b"\1" + FOOTER[86:])
    found = hidden + FIRST.old[512:]

    assert merged_table(FIRST, found) == hidden + FIRST.new[512:]


def test_what_follows_a_small_table_stays():
    unit = TableUnit(40 << 20, OLD[:512] + bytes(512), NEW[:512] + bytes(512), 0, 512)
    batmap = b"\x80" + bytes(511)

    assert merged_table(unit, OLD[:512] + batmap) == NEW[:512] + batmap
