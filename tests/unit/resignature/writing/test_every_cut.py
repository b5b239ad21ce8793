# SPDX-License-Identifier: LGPL-2.1-only
"""Power is cut at every moment of a resignature, an undo, a roll-back, and a recovery.

What has to hold on each disk that is left is said by `cuts.Judge`. Each test of a run has a twin, in which one flush is
forgotten and the same judge must find a fault: every flush of the protocol is needed, and here is what it is for.

`pytest -s` or `-rP` shows how many disks were looked at, and of which groups of writes not every subset was taken.
"""

from functools import lru_cache
from itertools import islice

import pytest

from kit import lvmreader, reader
from kit.cuts import (
    IMAGES,
    SCSI_ID,
    Judge,
    cut_before,
    done,
    each_fault,
    every_fault,
    image,
    lvm_commit,
    recorded,
    recover,
    resignature,
    undo,
    with_new_volume,
)
from kit.examples import WHOLE, some
from relvmoiscsi import engine

#: how many disks to look at; the images with many volumes write too many blocks for all subsets
THOROUGH = {"limit": 256, "samples": 16} if WHOLE else {"limit": 16, "samples": 3, "every": 2}
SAMPLED = {"limit": 64, "samples": 8} if WHOLE else {"limit": 8, "samples": 2, "every": 6}
SMALL = ("one VDI", "a chain", "blocks of 4096", "blocks of 4096, text wraps")
pytestmark = pytest.mark.states


def any_kind(_name):
    return ""


#: of the images that take long a part
SOME = [*SMALL, *some([name for name in IMAGES if name not in SMALL], 5, any_kind)]


def how(name):
    return dict(THOROUGH, undo_every=4) if name in SMALL else dict(SAMPLED, undo_every=6)


@lru_cache(maxsize=None)
def trial(name):
    """An image, the same resignatured, and that undone: runs that nobody cut."""
    original = image(name)
    resignatured = done(original)
    return original, resignatured, done(resignatured, run=undo)


# --- the runs that nobody cuts, by which the others are judged


# --- every cut


@pytest.mark.parametrize("name", SOME)
def test_a_cut_resignature_is_the_old_lun_or_the_new_one_or_finishes(name):
    original, resignatured, _undone = trial(name)

    crash = recorded(original)

    assert every_fault(Judge(original, resignatured), crash, **how(name)) == []


UNDONE = ["one VDI", "everything", "fragmented", "two areas", "second area ignored", "blocks of 4096, text wraps"]


@pytest.mark.parametrize("name", some(UNDONE, 3, any_kind))
def test_a_cut_undo_is_the_new_lun_or_the_old_one_or_finishes(name):
    original, resignatured, _undone = trial(name)

    crash = recorded(resignatured, undo)

    judge = Judge(original, resignatured, target=done(resignatured, run=undo), start=resignatured)
    assert every_fault(judge, crash, **how(name)) == []


@pytest.mark.parametrize("name", some(["two areas", "blocks of 4096", "fragmented", "qcow2"], 4, any_kind))
@pytest.mark.parametrize("flush, blocks", [(3, 0), (3, 3), (4, 0)])
def test_a_cut_roll_back_is_still_unfinished_or_the_old_lun(name, flush, blocks):
    original, resignatured, _undone = trial(name)
    unfinished = cut_before(original, flush, blocks=blocks)

    crash = recorded(unfinished, undo)

    assert crash.flushes == 2
    assert every_fault(Judge(original, resignatured), crash, undo_every=3, **SAMPLED) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cut_in_the_resignature_of_a_later_clone_does_not_bring_the_first_one_back(seed):
    """The ring then holds the journal of the first run, whose end is the beginning of the second."""
    first = done(image("a chain"))
    second = done(first, scsi_id="another", seed=seed)

    crash = recorded(first, scsi_id="another", seed=seed)

    judge = Judge(first, second, states=("resignatured", "resignatured"))
    assert every_fault(judge, crash, undo_every=0, **THOROUGH) == []


def test_a_cut_in_a_resignature_after_an_undo_leads_to_its_own_ids():
    """The ring then holds the journals of both earlier runs."""
    original = done(done(image("a chain"), seed=1), run=undo)
    resignatured = done(original, seed=2)

    crash = recorded(original, seed=2)

    assert every_fault(Judge(original, resignatured), crash, undo_every=3, **THOROUGH) == []


def test_after_a_cut_new_identities_are_those_that_lvm_sees_and_of_this_lun_alone():
    """What has come to a host with a LUN may stay there once its identities are its own."""
    original, resignatured, _undone = trial("a chain")
    crash = recorded(original)

    seen = set()
    for cut, disk in crash.crash_images(limit=64, samples=8):
        is_new = lvmreader.vg_view(disk) == lvmreader.vg_view(resignatured)
        assert engine.has_new_identities(disk, SCSI_ID) is is_new, cut
        assert not engine.has_new_identities(disk, "another"), cut
        seen.add(is_new)

    assert seen == {False, True}
    assert not engine.has_new_identities(done(resignatured, run=undo), SCSI_ID)


# --- recovery is cut as well


def unfinished_images(name, every, run=resignature, base=None):
    """Of the unfinished disks that a cut run leaves every n-th."""
    crash = recorded(base or image(name), run)
    cuts = ((cut, disk) for cut, disk in crash.crash_images(limit=64, samples=8) if engine.find_unfinished(disk))
    found = list(islice(cuts, every // 2, None, every))
    print(f"{name}: recovery is cut on {len(found)} unfinished disks")
    assert found
    return crash, found


SECOND_LEVEL = {
    "one VDI": (2, {"limit": 64, "samples": 4}),
    "blocks of 4096": (17, {"limit": 64, "samples": 4}),
    "two areas": (25, {"limit": 16, "samples": 4}),
    "fragmented": (19, {"limit": 16, "samples": 4}),
    "everything": (99, {"limit": 16, "samples": 4}),
}


@pytest.mark.parametrize("name", some(list(SECOND_LEVEL), 5, any_kind))
def test_a_recovery_that_is_cut_is_recovered_to_the_same_identity(name):
    original, resignatured, _undone = trial(name)
    every, subsets = SECOND_LEVEL[name]
    crash, unfinished = unfinished_images(name, every)
    judge = Judge(original, resignatured).watch(crash)

    assert faults_of_cut_recoveries(judge, unfinished, subsets) == []


@pytest.mark.parametrize("name, every", [("one VDI", 2), ("blocks of 4096", 23)])
def test_a_recovery_of_an_undo_that_is_cut_is_recovered_to_the_same_identity(name, every):
    original, resignatured, undone = trial(name)
    crash, unfinished = unfinished_images(name, every, undo, resignatured)
    judge = Judge(original, resignatured, target=undone, start=resignatured).watch(crash)

    assert faults_of_cut_recoveries(judge, unfinished, SECOND_LEVEL["one VDI"][1]) == []


def faults_of_cut_recoveries(judge, unfinished, subsets):
    found, states = [], 0
    for first_cut, disk in unfinished:
        second = recorded(disk, recover)
        for cut, left in second.crash_images(**subsets):
            found += judge.new_faults(f"{first_cut}; then {cut}", left, with_undo=False)
        states += second.report.states
    print(f"{states} disks after a second cut, {judge.looked_at} different ones")
    return found


@pytest.mark.parametrize(
    "name", some(["a chain", "two areas", "second area ignored", "text wraps", "blocks of 4096"], 3, any_kind)
)
@pytest.mark.parametrize("wraps", [False, True])
def test_a_cut_recovery_keeps_what_lvm_wrote_after_the_commit(name, wraps):
    """A text that wraps in the second area is copied before the header at the original place points to it."""
    original = image(name)
    went_on = cut_before(original, 5)
    lvm_commit(went_on, with_new_volume)
    lvm_commit(went_on, wrap=wraps)
    finished = done(went_on, run=recover)
    crash = recorded(went_on, recover)

    judge = Judge(original, finished)
    assert reader.vg_view(went_on) == reader.vg_view(finished)
    assert every_fault(judge, crash, undo_every=0, **THOROUGH) == []


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


@pytest.mark.parametrize("flush", NEEDED)
@pytest.mark.parametrize("name", ["one VDI", "blocks of 4096"])
def test_twin_without_a_flush_a_cut_resignature_breaks(name, flush):
    original, resignatured, _undone = trial(name)

    crash = recorded(original, dropped_flush=flush)

    assert crash.flushes == 6
    faults = each_fault(Judge(original, resignatured), crash, undo_every=0, limit=2048)
    assert NEEDED[flush] in (fault.claim for fault in faults)


@pytest.mark.parametrize("flush", NEEDED)
def test_twin_without_a_flush_a_cut_undo_breaks(flush):
    original, resignatured, undone = trial("one VDI")

    crash = recorded(resignatured, undo, dropped_flush=flush)

    assert crash.flushes == 6
    judge = Judge(original, resignatured, target=undone, start=resignatured)
    faults = each_fault(judge, crash, undo_every=0, limit=2048)
    assert NEEDED[flush] in (fault.claim for fault in faults)


@pytest.mark.parametrize("flush, broken", [(1, "recovery"), (2, "durable")])
def test_twin_without_a_flush_a_cut_roll_back_breaks(flush, broken):
    original, resignatured, _undone = trial("one VDI")

    crash = recorded(cut_before(original, 4), undo, dropped_flush=flush)

    faults = each_fault(Judge(original, resignatured), crash, undo_every=0, limit=2048)
    assert broken in (fault.claim for fault in faults)


@pytest.mark.parametrize("flush, broken", [(1, "view"), (2, "durable")])
def test_twin_without_a_flush_a_cut_recovery_breaks(flush, broken):
    """A text that LVM wrote round the end of the second area is copied and pointed to, then the label goes back."""
    original = image("a chain")
    went_on = cut_before(original, 5)
    lvm_commit(went_on, wrap=True)
    finished = done(went_on, run=recover)

    crash = recorded(went_on, recover, dropped_flush=flush)

    assert crash.flushes == 2
    faults = each_fault(Judge(original, finished), crash, undo_every=0, limit=2048)
    assert broken in (fault.claim for fault in faults)


# --- what a success means
