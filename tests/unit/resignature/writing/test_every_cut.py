# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut at every moment of a resignature, an undo, a roll-back, and a recovery.

What has to hold on each disk that is left is said by `cuts.Judge`. Each kind of run has twins, in which one flush is
forgotten and the same judge must find a fault: every flush of the protocol is needed, and here is what it is for.

`pytest -s` or `-rP` shows how many disks were looked at, and of which groups of writes not every subset was taken.
"""

from functools import lru_cache, partial
from itertools import islice
from typing import Any, Dict, NamedTuple

import pytest

from kit import lvmreader, reader
from kit.cuts import (
    BROKEN,
    IMAGES,
    SCSI_ID,
    WITHOUT,
    Judge,
    cut_before,
    done,
    each_fault,
    every_fault,
    image,
    lvm_commit,
    mgt_ranges,
    recorded,
    recover,
    resignature,
    undo,
    with_new_volume,
)
from kit.examples import WHOLE, some
from kit.sparse import SparseDisk
from relvmoiscsi import engine

#: how many disks to look at; the images with many volumes write too many blocks for all subsets
THOROUGH = {"limit": 256, "samples": 16} if WHOLE else {"limit": 16, "samples": 3, "every": 2}
SAMPLED = {"limit": 64, "samples": 8} if WHOLE else {"limit": 8, "samples": 2, "every": 6}
SMALL = ("one VDI", "a chain", "blocks of 4096", "blocks of 4096, text wraps")
pytestmark = pytest.mark.states


def part(names, every):
    return some(names, every, lambda _name: "")


@lru_cache(maxsize=None)
def trial(name):
    """An image, the same resignatured, and that undone: runs that nobody cut."""
    original = image(name)
    resignatured = done(original)
    return original, resignatured, done(resignatured, run=undo)


# --- the runs that are cut


class Cut(NamedTuple):
    """A LUN, the run on it, and the judge of each disk that a cut leaves."""

    base: SparseDisk
    judge: Judge
    run: Any = resignature
    more: Dict[str, Any] = {}

    def recorded(self, **more):
        return recorded(self.base, self.run, **{**self.more, **more})


def a_resignature(name):
    original, resignatured, _undone = trial(name)
    return Cut(original, Judge(original, resignatured))


def an_undo(name):
    original, resignatured, undone = trial(name)
    return Cut(resignatured, Judge(original, resignatured, target=undone, start=resignatured), undo)


def a_roll_back(name, flush=4, blocks=0):
    original, resignatured, _undone = trial(name)
    return Cut(cut_before(original, flush, blocks=blocks), Judge(original, resignatured), undo)


def of_a_later_clone(name, seed):
    """The ring holds the journal of the first run, whose end is the beginning of the second; none brings it back."""
    _original, first, _undone = trial(name)
    more = {"scsi_id": "another", "seed": seed}
    return Cut(first, Judge(first, done(first, **more), states=("resignatured", "resignatured")), more=more)


def without_a_broken_vdi(_name):
    original = BROKEN.disk.copy()
    allowed = [*BROKEN.truth.allowed, *mgt_ranges(BROKEN)]
    judge = Judge(original, done(original, **WITHOUT), states=("damaged", "resignatured"), allowed=allowed)
    return Cut(original, judge, more=WITHOUT)


def an_undo_that_brings_a_broken_vdi_back(_name):
    original = BROKEN.disk.copy()
    resignatured = done(original, **WITHOUT)
    undone = done(resignatured, run=undo)
    allowed = [*BROKEN.truth.allowed, *mgt_ranges(BROKEN)]
    states = ("damaged", "resignatured")
    return Cut(resignatured, Judge(original, resignatured, undone, states, allowed, start=resignatured), undo)


def after_an_undo(name):
    """The ring holds the journals of both earlier runs; a cut leads to the ids of the third."""
    original = done(done(image(name), seed=1), run=undo)
    return Cut(original, Judge(original, done(original, seed=2)), more={"seed": 2})


def a_recovery_that_keeps_what_lvm_wrote(name, edit=with_new_volume, wraps=True):
    """A text that wraps in the second area is copied before the header at the original place points to it."""
    original = image(name)
    went_on = cut_before(original, 5)
    lvm_commit(went_on, edit)
    lvm_commit(went_on, wrap=wraps)
    finished = done(went_on, run=recover)
    assert reader.vg_view(went_on) == reader.vg_view(finished)
    return Cut(went_on, Judge(original, finished), recover)


UNDONE = ["one VDI", "everything", "fragmented", "two areas", "second area ignored", "blocks of 4096, text wraps"]
RECOVERED = ["a chain", "two areas", "second area ignored", "text wraps", "blocks of 4096"]
BIG = part([name for name in IMAGES if name not in SMALL], 5)
#: the run, on which image, how many disks are looked at, on one of how many an undo is tried
CUTS = [
    *((a_resignature, name, THOROUGH, 4) for name in SMALL),
    *((a_resignature, name, SAMPLED, 6) for name in BIG),
    *((an_undo, name, THOROUGH if name in SMALL else SAMPLED, 6) for name in part(UNDONE, 3)),
    *(
        (partial(a_roll_back, flush=flush, blocks=blocks), name, SAMPLED, 3)
        for name in part(["two areas", "blocks of 4096", "fragmented", "qcow2"], 4)
        for flush, blocks in ((3, 0), (3, 3), (4, 0))
    ),
    *((partial(of_a_later_clone, seed=seed), "a chain", THOROUGH, 0) for seed in (1, 2)),
    (after_an_undo, "a chain", THOROUGH, 3),
    (without_a_broken_vdi, "a broken VDI", THOROUGH, 3),
    (an_undo_that_brings_a_broken_vdi_back, "a broken VDI", SAMPLED, 3),
    *(
        (partial(a_recovery_that_keeps_what_lvm_wrote, wraps=wraps), name, THOROUGH, 0)
        for name in part(RECOVERED, 3)
        for wraps in (False, True)
    ),
]


def named(value):
    if isinstance(value, partial):
        return f"{value.func.__name__} {value.keywords}"
    return getattr(value, "__name__", None) or (value if isinstance(value, str) else "")


@pytest.mark.parametrize("of, name, how, undo_every", CUTS, ids=named)
def test_a_run_that_is_cut_is_the_old_lun_or_the_new_one_or_finishes(of, name, how, undo_every):
    made = of(name)

    assert every_fault(made.judge, made.recorded(), undo_every=undo_every, **how) == []


def test_after_a_cut_new_identities_are_those_that_lvm_sees_and_of_this_lun_alone():
    """What has come to a host with a LUN may stay there once its identities are its own."""
    original, resignatured, undone = trial("a chain")

    seen = set()
    for cut, disk in recorded(original).crash_images(limit=64, samples=8):
        is_new = lvmreader.vg_view(disk) == lvmreader.vg_view(resignatured)
        assert (engine.new_sr_of(disk, SCSI_ID) is not None) is is_new, cut
        assert engine.new_sr_of(disk, "another") is None, cut
        seen.add(is_new)

    assert seen == {False, True}
    assert engine.new_sr_of(undone, SCSI_ID) is None


# --- recovery is cut as well

FEW, MANY = {"limit": 16, "samples": 4}, {"limit": 64, "samples": 4}
#: the run that is cut, on which image; of how many unfinished disks recovery is cut on one, and at how many places
SECOND_LEVEL = {
    "one VDI": (a_resignature, 2, MANY),
    "blocks of 4096": (a_resignature, 17, MANY),
    "two areas": (a_resignature, 25, FEW),
    "fragmented": (a_resignature, 19, FEW),
    "everything": (a_resignature, 99, FEW),
    "a broken VDI": (without_a_broken_vdi, 9, FEW),
    "undo: one VDI": (an_undo, 2, MANY),
    "undo: blocks of 4096": (an_undo, 23, MANY),
}


@pytest.mark.parametrize("name", some(list(SECOND_LEVEL), 5, lambda name: name if "undo" in name else ""))
def test_a_recovery_that_is_cut_is_recovered_to_the_same_identity(name):
    of, every, subsets = SECOND_LEVEL[name]
    made = of(name.split(": ")[-1])
    crash = made.recorded()
    cuts = ((cut, disk) for cut, disk in crash.crash_images(limit=64, samples=8) if engine.find_unfinished(disk))
    unfinished = list(islice(cuts, every // 2, None, every))
    judge = made.judge.watch(crash)
    assert unfinished

    found = []
    for first_cut, disk in unfinished:
        for cut, left in recorded(disk, recover).crash_images(**subsets):
            found += judge.new_faults(f"{first_cut}; then {cut}", left, with_undo=False)
    print(f"{name}: recovery is cut on {len(unfinished)} unfinished disks, {judge.looked_at} different ones are left")
    assert found == []


# --- the twins: without any one of the flushes the judge finds a fault

#: what breaks without the n-th flush
NEEDED = {
    1: "journal",  # the mark is there, and the journal is not
    2: "recovery",  # contents are new, and no mark says so
    3: "recovery",  # the identity is new, contents are old, and recovery behind the commit looks at none
    4: "view",  # the header at the original place speaks of the new PV, the label of the old one
    5: "view",  # the label is the new one, the header at the original place the old one
    6: "durable",  # success is reported while the label could still fall back to "switched"
}
TWINS = [
    *((without_a_broken_vdi, "a broken VDI", flush) for flush in NEEDED.items()),
    *((a_resignature, name, flush) for name in ("one VDI", "blocks of 4096") for flush in NEEDED.items()),
    *((an_undo, "one VDI", flush) for flush in NEEDED.items()),
    # the first flush is the claim's: recovery/test_overtaken.py
    *((a_roll_back, "one VDI", flush) for flush in ((2, "recovery"), (3, "durable"))),
    # a text that LVM wrote round the end of the second area is copied and pointed to, then the label goes back
    *((partial(a_recovery_that_keeps_what_lvm_wrote, edit=None), "a chain", flush)
      for flush in ((2, "view"), (3, "durable"))),
]  # fmt: skip


@pytest.mark.parametrize(
    "of, name, flush", TWINS, ids=lambda value: str(value) if isinstance(value, tuple) else named(value)
)
def test_twin_without_a_flush_a_run_that_is_cut_breaks(of, name, flush):
    number, broken = flush
    made = of(name)

    crash = made.recorded(dropped_flush=number)

    assert crash.flushes == (6 if of in (a_resignature, an_undo, without_a_broken_vdi) else 3)
    # Up to that flush a cut leaves what it leaves of the whole run.
    faults = each_fault(made.judge, crash, undo_every=0, limit=2048, first=crash.joined)
    assert broken in (fault.claim for fault in faults)
