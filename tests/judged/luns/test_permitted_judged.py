# SPDX-License-Identifier: LGPL-2.1-only
"""Real LVM makes LUNs in states that it and the storage manager permit, and judges what a resignature makes of them.

The same states, many more of them, in memory: tests/unit/resignature/planning/test_permitted.py.
"""

import random

import pytest

from kit.examples import SEED, WHOLE
from kit.judges import MIB, NEW_LV
from kit.outcome import names_of
from kit.permitted import drawn, judged, made_by_lvm, replaced
from kit.sparse import SparseDisk
from relvmoiscsi import engine

#: what LVM says of a disk that has shrunk by more than the start of its extents
SHRUNK = ("Was device resized?", "have changed sizes")


@pytest.mark.parametrize("number", range(300 if WHOLE else 6))
def test_what_lvm_made_and_check_calls_good_is_resignatured_and_lvm_reads_it_beside_the_original(number, lvm, loops):
    """Any other is refused with what `check` says."""
    pick = random.Random(f"{SEED} {number}").choice
    state = drawn(pick)
    original = loops(SparseDisk(state.built().disk.size_bytes + state.lost_bytes))
    made_by_lvm(state, lvm.over(original.path), original, pick)
    original.shrink(state.lost_bytes)
    (before,) = lvm.over(original.path).seen(SHRUNK)

    outcome = judged(original.disk())

    if not isinstance(outcome, Exception):
        clone = loops(outcome.after)
        both = lvm.over(original.path, clone.path)
        assert set(both.seen(SHRUNK)) == {before, under_new_ids(before, names_of(outcome.ids), clone.path)}
        assert lvm.over(clone.path)("vgck", warnings=SHRUNK) == ""


def under_new_ids(seen, names, path):
    """What LVM sees of a volume group once it has these ids: tags stay."""
    new = replaced_in(seen, {**names, seen.pvs[0][0]: path})
    lvs = tuple(sorted(lv[:3] + (old[3],) + lv[4:] for lv, old in zip(new.lvs, seen.lvs)))
    vg = (*new.vg[:2], str(int(seen.vg[2]) + 1), new.vg[3], seen.vg[4], *new.vg[5:])
    return new._replace(vg=vg, lvs=lvs, segments=tuple(sorted(new.segments)))


def replaced_in(value, names):
    if isinstance(value, str):
        return replaced(value, names)
    parts = [replaced_in(part, names) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def test_a_disk_that_shrank_after_pvresize_is_no_damaged_one(lvm, loops):
    """The label keeps the former size, and LVM does not mind."""
    original = loops(SparseDisk(96 * MIB))
    own, vg = lvm.over(original.path), "VG_XenStorage-0a0b0c0d-0000-4000-8000-00000000000a"
    own("vgcreate", "--metadatasize", "10M", vg, original.path)
    own.create(vg, NEW_LV)
    own("pvresize", "-y", "--setphysicalvolumesize", "40m", original.path, warnings=("Pretending size",))
    original.shrink(56 * MIB)
    assert own.headers(original.path)["pv_header.device_size"] == str(96 * MIB)

    outcome = judged(original.disk())

    assert engine.notes(outcome.prepared.lun) == ["The SR has no MGT volume: its VDIs have no labels."]
    clone = loops(outcome.after)
    both = lvm.over(original.path, clone.path)
    assert len(both.seen()) == 2 and both("vgck") == ""
