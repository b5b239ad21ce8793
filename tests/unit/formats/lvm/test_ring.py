# SPDX-License-Identifier: LGPL-2.1-only
"""Free space in the text ring: nothing handed out touches a header, a live text or what has to stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relvmoiscsi.device import Range
from relvmoiscsi.formats.lvm.ring import ALIGNMENT, MIN_AREA_BYTES, free_ranges, place_journal, place_second_area

AREA = Range(4096, 1044480)
KIB = 1024


@st.composite
def rings(draw):
    """An area, the one or two ranges of its live text, and ranges that are taken."""
    size = 512 * draw(st.integers(4, 4000))
    area = Range(4096 * draw(st.integers(1, 3)) + draw(st.sampled_from([0, 0, 512])), size)
    start, length = draw(st.integers(512, size - 1)), draw(st.integers(1, size - 512))
    live = [Range(area.offset + start, min(length, size - start))]
    if start + length > size:
        live.append(Range(area.offset + 512, start + length - size))
    at = draw(st.integers(512, size - 1))
    taken = [Range(area.offset + at, draw(st.integers(1, size - at)))]
    return area, live, taken


def overlap(one, other):
    return one.offset < other.end and other.offset < one.end and one.length and other.length


@given(rings())
def test_free_ranges_are_all_whole_blocks_that_nothing_uses_in_the_order_in_which_lvm_goes_round(ring):
    area, live, taken = ring
    used = [Range(area.offset, 512), *live, *taken]

    free = free_ranges(area, live, taken)

    blocks = range(area.offset + -area.offset % ALIGNMENT, area.end - ALIGNMENT + 1, ALIGNMENT)
    unused = [at for at in blocks if not any(overlap(Range(at, ALIGNMENT), other) for other in used)]
    assert all(part.offset % ALIGNMENT == part.length % ALIGNMENT == 0 < part.length for part in free)
    assert sorted(at for part in free for at in range(part.offset, part.end, ALIGNMENT)) == unused
    around = [(part.offset - live[-1].end) % area.length for part in free]
    assert around == sorted(around)


def test_the_second_area_goes_behind_the_live_text_and_the_journal_just_before_it():
    live = [Range(AREA.offset + 512 * KIB, 3000)]
    free = free_ranges(AREA, live)

    second, journal = place_second_area(free, 3000, spare=True), place_journal(free, 8192)

    assert live[0].end <= second.offset < second.end <= AREA.end
    assert journal == Range(live[0].offset - 8192, 8192)


def test_the_second_area_has_room_for_two_more_texts_where_it_is_to_have_spare_and_leaves_lvm_as_much():
    live = Range(AREA.offset + 512, 3000)

    plain, roomy = (place_second_area(free_ranges(AREA, [live]), 30000, spare) for spare in (False, True))

    assert plain.length == 32768 + 4096
    assert roomy.length - plain.length >= 2 * 30000
    assert place_second_area(free_ranges(AREA, [live]), 3000, spare=True).offset - live.end >= 2 * 3000


@given(st.integers(1, 1 << 20), st.booleans(), st.lists(st.integers(1, 300), max_size=4))
def test_a_second_area_is_whole_blocks_of_one_free_range_or_nothing(text_bytes, spare, blocks):
    free = [Range(number << 24, 4096 * count) for number, count in enumerate(blocks, 1)]

    area = place_second_area(free, text_bytes, spare)

    smallest = max(512 + text_bytes, MIN_AREA_BYTES)
    if area is None:
        assert spare or all(part.length < smallest + ALIGNMENT for part in free)
    else:
        assert area.offset % ALIGNMENT == area.length % ALIGNMENT == 0 and area.length >= smallest
        assert any(part.offset <= area.offset and area.end <= part.end for part in free)


@pytest.mark.parametrize(
    "free, length, expected",
    [
        ([], 4096, None),
        ([Range(4096, 4096), Range(65536, 8192)], 12288, None),
        ([Range(65536, 8192), Range(4096, 8192)], 8192, Range(4096, 8192)),
        ([Range(65536, 8192), Range(4096, 4096)], 8192, Range(65536, 8192)),
    ],
)
def test_a_journal_takes_the_range_that_fits_and_that_lvm_reaches_last(free, length, expected):
    assert place_journal(free, length) == expected
