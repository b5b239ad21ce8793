# SPDX-License-Identifier: LGPL-2.1-only
"""A write is reported as failed and reaches the disk all the same: at once, after a recovery, in the middle of another
run, after an undo. Whatever the user does meanwhile, the LUN ends with one identity, whole.

Not every moment is combined with every failure: of the failures of a run each write is taken, of the moments those of
the label, and between the steps of a second run.
"""

import pytest

from kit import lvmreader, reader
from kit.crash import FailingDisk
from kit.cuts import (
    SCSI_ID,
    done,
    entropy,
    free_ring,
    image,
    late_writes,
    lvm_commit,
    recover,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError, Refused, RelvmoiscsiError, Unfinished

IMAGES = ["a chain", "two areas", "blocks of 4096", "512e"]
SECOND = {"seed": 1}


def go_on(disk, seed=1):
    """What a user does who wants the LUN resignatured: the same command again, until it says so."""
    for _ in range(3):
        try:
            prepared = engine.prepare(disk, entropy(seed), SCSI_ID)
        except Unfinished:
            if not recover(disk):
                undo(disk)
            continue
        if isinstance(prepared, engine.Prepared):
            engine.resignature(disk, prepared)
        return
    raise AssertionError("three calls were not enough")


class Whole:
    """What a LUN may be, in the end."""

    def __init__(self, original, *others):
        self.states = [(reader.identities(disk), reader.vg_view(disk)) for disk in (original, *others)]
        self.problems = reader.read_sr(original).problems

    def faults(self, what, disk):
        try:
            found = (reader.identities(disk), reader.vg_view(disk))
            if found not in self.states:
                return [f"{what}: it is neither of the LUNs it may be"]
            if reader.read_sr(disk).problems != self.problems:
                return [f"{what}: {reader.read_sr(disk).problems}"]
            state = engine.inspect(disk).state
            return [] if state in (engine.CLEAN, engine.RESIGNATURED) else [f"{what}: it is {state}"]
        except (RelvmoiscsiError, AssertionError) as error:
            return [f"{what}: {error}"]


def attempt(act, disk):
    """An act that may be refused; it must not be by an error that is a bug."""
    try:
        act(disk)
    except (Refused, FormatError, Unfinished) as error:
        return error
    return None


@pytest.mark.parametrize("name", IMAGES)
def test_a_write_that_lands_after_the_error_is_settled_by_the_same_command(name):
    original = image(name)
    whole = Whole(done(original), done(original, **SECOND))
    problems = []
    for n, failing in late_writes(original):
        disk = failing.base
        failing.land()
        go_on(disk)
        problems += whole.faults(f"write {n}", disk)
    assert problems == []


@pytest.mark.parametrize("name", IMAGES)
def test_a_write_that_lands_after_a_recovery_or_a_second_run_is_settled(name):
    original = image(name)
    whole = Whole(done(original), done(original, **SECOND))
    problems, count = [], 0
    for n, failing in late_writes(original):
        disk = failing.base
        go_on(disk)
        failing.land()
        go_on(disk)
        count += 1
        problems += whole.faults(f"write {n}", disk)
    print(f"{name}: {count} late writes")
    assert problems == []


class Meanwhile(FailingDisk):
    """A disk on which a late write lands behind the n-th flush."""

    def __init__(self, base, late, flush):
        super().__init__(base)
        self.late, self.at, self.flushes = late, flush, 0

    def flush(self):
        super().flush()
        self.flushes += 1
        if self.flushes == self.at:
            self.base.write(self.late)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("flush", [1, 2, 3, 4, 5])
def test_a_write_that_lands_in_the_middle_of_a_second_run_is_settled(name, flush):
    original = image(name)
    whole = Whole(done(original), done(original, **SECOND))
    problems = []
    for n, failing in late_writes(original):
        disk = failing.base
        attempt(go_on, Meanwhile(disk, failing.pending, flush))
        go_on(disk)
        problems += whole.faults(f"write {n}", disk)
    assert problems == []


@pytest.mark.parametrize("name", IMAGES)
def test_a_write_that_lands_after_an_undo_is_settled_by_another_undo_or_by_going_on(name):
    """Of a run that failed before its commit. After it `undo` is a run of its own, and a header or a label of the first
    one that lands behind it is one that nobody tells from LVM's: wait until failed writes cannot land any more."""
    original = image(name)
    whole = Whole(original, done(original), done(original, **SECOND))
    problems = []
    for n, failing in late_writes(original):
        disk = failing.base
        if lvmreader.vg_view(disk) != lvmreader.vg_view(original):
            continue
        attempt(undo, disk)
        failing.land()
        again = disk.copy()
        attempt(undo, disk)
        problems += whole.faults(f"write {n}, undo", disk)
        go_on(again)
        problems += whole.faults(f"write {n}, the same command", again)
    assert problems == []


@pytest.mark.parametrize("name", IMAGES)
def test_a_late_write_of_an_undo_is_settled(name):
    original = image(name)
    finished = done(original)
    whole = Whole(original, finished)
    problems = []
    for n, failing in late_writes(finished, run=undo):
        disk = failing.base
        recover(disk)
        failing.land()
        recover(disk)
        problems += whole.faults(f"write {n}", disk)
    assert problems == []


@pytest.mark.parametrize("name", IMAGES)
def test_the_first_write_of_a_mark_may_land_when_lvm_has_gone_on_after_the_second_run(name):
    """Then the metadata areas are the newer ones, and only the label is put right."""
    original = image(name)
    marks = [failing for _n, failing in late_writes(original) if failing.pending[0].offset < 4096]
    for failing in marks[:1] + marks[-1:]:
        disk = failing.base
        go_on(disk)
        lvm_commit(disk, with_new_volume)
        seen = reader.vg_view(disk)
        failing.land()

        if engine.inspect(disk).state == engine.UNFINISHED:
            assert recover(disk)

        assert reader.vg_view(disk) == seen
        assert engine.inspect(disk).state == engine.RESIGNATURED


def test_a_second_run_leaves_the_first_one_s_identity_nowhere():
    original = image("a chain")
    for _n, failing in late_writes(original):
        go_on(failing.base)
        failing.land()
        go_on(failing.base)
        found = reader.identities(failing.base)
        assert found in (reader.identities(done(original)), reader.identities(done(original, **SECOND)))


def test_where_nothing_failed_nothing_is_taken_for_late():
    original = image("a chain")
    undone = done(done(original), run=undo)

    with pytest.raises(Refused, match="holds no resignature"):
        undo(undone)
    assert same_but_for(undone, original, free_ring(original))


def test_what_a_later_run_wrote_late_onto_a_finished_lun_is_taken_back_and_the_first_run_stays():
    first = done(image("a chain"), scsi_id="3600a0980first")
    for _n, failing in late_writes(first, run=lambda disk: resignature(disk, seed=1)):
        disk = failing.base
        if engine.inspect(disk).tail.phase != 1:
            continue
        undo(disk)
        failing.land()
        if disk != first and not same_but_for(disk, first, free_ring(first)):
            undo(disk)
        assert same_but_for(disk, first, free_ring(first))
