# SPDX-License-Identifier: LGPL-2.1-only
"""The extents that a new volume may take: those of no volume, and those of the volumes that go."""

import tracemalloc
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.lvm.vg import LogicalVolume, segments_of
from relvmoiscsi.resignature.merge.strategy import NEW, room_on


def volume(runs):
    lv = LogicalVolume("LV", "a" * 32, frozenset(), (), segments_of(runs))
    return SimpleNamespace(lv=lv)


def room(pe_count, chain, others, unused=(), seed=0, trims=()):
    volumes = (*chain, *others, *trims)
    lun = SimpleNamespace(vg=SimpleNamespace(pe_count=pe_count), volumes=volumes, is_trim=trims.__contains__)
    return room_on(lun, SimpleNamespace(members=chain[:1], dropped=chain[1:]), unused, seed)


def listed(runs):
    return [pe for run in runs for pe in run]


#: of each extent: of no volume, of another volume, of the image, unused in the image, of a volume that goes, of a trim
FREE, OTHER, IMAGE, UNUSED, DROPPED, TRIM = range(6)


@settings(max_examples=examples(200))
@given(st.lists(st.integers(FREE, TRIM), max_size=24), st.integers(0, 1 << 64), st.data())
def test_it_is_each_free_extent_once_and_each_extent_that_becomes_free(uses, seed, data):
    of = {use: [range(pe, pe + 1) for pe, its in enumerate(uses) if its == use] for use in range(6)}
    image = [range(pe, pe + 1) for pe, use in enumerate(uses) if use in (IMAGE, UNUSED)]

    chain, others, trims = [volume(image), volume(of[DROPPED])], [volume(of[OTHER])], [volume(of[TRIM])]
    found = room(len(uses), chain, others, of[UNUSED], seed, trims)

    free = [pe for pe, use in enumerate(uses) if use in (FREE, TRIM)]
    at = seed % len(free) if free else 0
    assert listed(found.writable) == free[at:] + free[:at] + listed(of[UNUSED])
    assert found.free_extents == len(free) + len(of[UNUSED])
    assert listed(found.later) == listed(of[IMAGE]) + listed(of[DROPPED])
    staying = data.draw(st.lists(st.sampled_from(listed(of[IMAGE])), unique=True)) if of[IMAGE] else []
    fresh = range(len(staying), len(staying) + min(2, found.free_extents))
    rest = len(found.writable) and data.draw(st.integers(0, len(uses)))
    retained = array("q", staying + [NEW] * (len(fresh) + rest))
    there = [pe for pe in listed(found.later) if pe not in staying] + listed(found.writable)[len(fresh) :]
    if len(there) < rest:
        with pytest.raises(Refused, match="One VDI needs"):
            found.place(retained, fresh)
    else:
        expected = [*staying, *listed(found.writable)[: len(fresh)], *there[:rest]]
        assert list(found.place(retained, fresh)) == expected


def test_no_extents_are_listed_on_a_lun_of_four_tebibytes():
    tracemalloc.start()
    try:
        found = room(1 << 20, [volume([range(1 << 19)])], [], seed=1 << 70)
        assert list(found.place(array("q", [NEW, (1 << 19) - 1, NEW]), [0])) == [1 << 19, (1 << 19) - 1, 0]
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 18
