# SPDX-License-Identifier: LGPL-2.1-only
"""A write is reported as failed and reaches the disk all the same: at once, after a recovery, in the middle of another
run, after an undo. Whatever the user does meanwhile, the LUN ends with one identity, whole.

Not every moment is combined with every failure: of the failures of a run each write is taken, of the moments those of
the label, and between the steps of a second run.
"""

import functools
from contextlib import ExitStack

import pytest

from kit import lvmreader, reader
from kit.chains.flat import flatten
from kit.chains.qcow2 import flatten as flatten_qcow2
from kit.chains.random_chain import random_chain
from kit.chains.random_qcow2 import random_qcow2
from kit.crash import FailingDisk
from kit.cuts import (
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    label_range,
    late_writes,
    lvm_commit,
    recover,
    resignature,
    same_but_for,
    undo,
    with_new_volume,
)
from relvmoiscsi import engine, procedure
from relvmoiscsi.errors import FormatError, Refused, RelvmoiscsiError, Unfinished
from relvmoiscsi.resignature.one_vdi.choice import Request

pytestmark = pytest.mark.states

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


# --- a run that was taken back by the call of another one


class _Silent(procedure.Voice):
    def agrees_to_settle(self, mark, take_back, problem):
        pass

    def agrees_to(self, prepared):
        return True

    def locks(self, run):
        return ExitStack()

    def copying(self, done, total):
        pass

    def reading_back(self, done, total):
        pass

    def has_settled(self, mark, result):
        pass


def call(disk, vdis, seed, **more):
    """What `relvmoiscsi resignature` does."""
    return procedure.resignature(disk, entropy(seed), _Silent(), SCSI_ID, one=vdis, **more)


ONE, ALL = Request(), None
WAYS = {"all, then one": (ALL, ONE), "one, then one": (ONE, ONE), "one, then all": (ONE, ALL)}
LABELS = {"mark": 0, "commit": 1}


@functools.lru_cache(maxsize=None)
def _vhds():
    return random_chain(3, depth=2, blocks=4, thick=True, free=40, stale=False), flatten


@functools.lru_cache(maxsize=None)
def _qcow2s():
    return random_qcow2("late", depth=2, clusters=40, bits=16, free=40), flatten_qcow2


CHAINS = {"VHD": _vhds, "QCOW2": _qcow2s}


class _Counting(FailingDisk):
    """A disk that notes which of its operations write the label alone."""

    labels = ()

    def write(self, chunks):
        if len(chunks) == 1 and chunks[0].offset < 4096:
            self.labels += (self.operations + 1,)
        super().write(chunks)


def _label_writes(disk, vdis):
    counting = _Counting(disk.copy())
    call(counting, vdis, 0)
    return counting.labels


def label_that_fails(disk, vdis, number):
    """The disk on which the write of a label of a run has failed; it is on its way still."""
    labels = _label_writes(disk, vdis)
    failing = FailingDisk(disk.copy(), labels[number], leaves="late")
    with pytest.raises(RelvmoiscsiError):
        call(failing, vdis, 0)
    return failing


def guest_data(disk, flat):
    """What a guest reads through each disk of the LUN."""
    volumes = engine.inspect(disk).lun.disks().values()
    return sorted(repr(flat(disk, volume.name.text)) for volume in volumes)


@pytest.mark.parametrize("overtaken", [False, True], ids=["", "LVM goes on"])
@pytest.mark.parametrize("label", sorted(LABELS))
@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_label_of_a_run_that_was_taken_back_does_not_take_the_next_one_away(chain, way, label, overtaken):
    made, flat = CHAINS[chain]()
    first, second = WAYS[way]
    failing = label_that_fails(made.disk, first, LABELS[label])
    disk = failing.base
    call(disk, second, 1)
    if overtaken:
        lvm_commit(disk)
    at_rest = disk.copy()
    view, data = reader.vg_view(disk), guest_data(disk, flat)
    failing.land()

    assert engine.inspect(disk).state in (engine.UNFINISHED, engine.RESIGNATURED)
    for settle in (recover, lambda one: call(one, second, 2)):
        settled = disk.copy()
        settle(settled)

        assert engine.inspect(settled).state == engine.RESIGNATURED
        assert (reader.vg_view(settled), guest_data(settled, flat)) == (view, data)
        assert same_but_for(settled, at_rest, [label_range(settled), *free_ring(settled)])


@pytest.mark.parametrize("overtaken", [False, True], ids=["", "LVM goes on"])
@pytest.mark.parametrize("vdis", [ONE, ALL], ids=["one", "all"])
@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_commit_that_lands_after_an_undo_leads_nowhere_and_the_label_is_put_back(chain, vdis, overtaken):
    made, flat = CHAINS[chain]()
    failing = label_that_fails(made.disk, vdis, LABELS["commit"])
    disk = failing.base
    undo(disk)
    if overtaken:
        lvm_commit(disk)
    at_rest, data = disk.copy(), guest_data(disk, flat)
    failing.land()

    found = engine.inspect(disk)
    assert found.state == engine.UNFINISHED
    assert "has the label of a run that is over" in str(found.problem)
    for settle in (recover, undo):
        settled = disk.copy()
        settle(settled)

        assert settled == at_rest
        assert guest_data(settled, flat) == data


def test_a_way_back_that_was_cut_is_gone_on_with():
    original = image("a chain")
    disk = cut_before(cut_before(original, 4), 2, run=undo)

    assert "was being taken back" in str(engine.inspect(disk).problem)
    assert recover(disk)

    assert same_but_for(disk, original, free_ring(original))


def test_a_late_label_without_a_journal_that_fits_is_refused():
    made, _flat = _vhds()
    failing = label_that_fails(made.disk, ONE, LABELS["commit"])
    disk = failing.base
    journal = engine.find_unfinished(disk).journal
    undo(disk)
    failing.land()
    disk.poke(journal.offset, bytes(len(journal.data)))

    with pytest.raises(Unfinished, match="no journal tells the right one any more"):
        recover(disk)
    assert "no journal tells" in str(engine.inspect(disk).problem)


def _writes_at(disk, vdis, offset):
    """The numbers of the operations of a run that write one sector there."""
    found = []

    class Watch(FailingDisk):
        def write(self, chunks):
            found.extend(self.operations + n for n, chunk in enumerate(chunks, 1) if chunk.offset == offset)
            super().write(chunks)

    call(Watch(disk.copy()), vdis, 0)
    return found


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_header_of_a_run_that_was_undone_is_not_taken_for_the_label(chain):
    """It is a valid one, and LVM refuses the LUN: nothing is finished, and nothing is written."""
    made, _flat = CHAINS[chain]()
    failing = FailingDisk(made.disk.copy(), _writes_at(made.disk, ALL, 4096)[-1], leaves="late")
    with pytest.raises(RelvmoiscsiError):
        call(failing, ALL, 0)
    disk = failing.base
    call(disk, ONE, 1)
    failing.land()
    landed = disk.copy()

    assert engine.inspect(disk).state == engine.DAMAGED
    assert not recover(disk)
    assert attempt(lambda one: call(one, ONE, 2), disk) is not None
    assert disk == landed


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_a_final_label_of_a_run_that_was_undone_is_put_right_by_the_journal_of_the_next(chain):
    made, flat = CHAINS[chain]()
    failing = FailingDisk(made.disk.copy(), _label_writes(made.disk, ALL)[2], leaves="late")
    with pytest.raises(RelvmoiscsiError):
        call(failing, ALL, 0)
    disk = failing.base
    call(disk, ONE, 1)
    view, data = reader.vg_view(disk), guest_data(disk, flat)
    failing.land()

    assert engine.inspect(disk).state == engine.UNFINISHED
    assert recover(disk)

    assert engine.inspect(disk).state == engine.RESIGNATURED
    assert (reader.vg_view(disk), guest_data(disk, flat)) == (view, data)
