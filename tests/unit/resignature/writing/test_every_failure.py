# SPDX-License-Identifier: LGPL-2.1-only
"""The n-th read, write or flush fails, once or for good: for each n, or for some in each batch of a run.

The error is one of ours and says what state the LUN is in; that sentence is true. A person acts on it, so it is
checked word for word against the disk, as a healthy host would find it afterwards.
"""

import pytest

from kit import reader
from kit.crash import FailingDisk
from kit.cuts import (
    SCSI_ID,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    lvm_commit,
    recover,
    resignature,
    same_but_for,
    undo,
)
from kit.examples import of_each_kind, some
from relvmoiscsi import engine
from relvmoiscsi.errors import DeviceError, Refused

pytestmark = pytest.mark.states

IMAGES = some(["one VDI", "two areas", "blocks of 4096", "fragmented"], 4, lambda _name: "")
ONE = some(["one VDI", "blocks of 4096"], 2, lambda _name: "")
TWO = some(["two areas", "blocks of 4096"], 2, lambda _name: "")
ONCE = [(False, leaves) for leaves in ("nothing", "half", "all")]
FOR_GOOD = [(True, leaves) for leaves in ("nothing", "all")]
AFTERWARDS = [(False, "half"), (True, "half")]

NOTHING_WRITTEN = "Nothing was written."
FREE_SPACE = "{} is as it was; beyond that only free space of the metadata area was written."
UNFINISHED = (
    "The {1} of {0} was begun and may be unfinished: once the device answers, `relvmoiscsi recover {0}` finishes it or "
    "takes it back."
)
FINISHED = "The {1} was finished."
FINISHED_ONLY = "The {1} was finished; nothing else was written."
FINISHED_AND_FREE_SPACE = "The {1} was finished; beyond that only free space of the metadata area was written."
TAKEN_BACK = "The {1} was taken back."


def failures(base, run, for_good, leaves, tried, skipped=()):
    """(n, error, disk) for operations of a run that can fail; the disk is what is left."""
    for n in tried:
        if n not in skipped:
            disk = base.copy()
            failing = FailingDisk(disk, n, for_good, leaves)
            with pytest.raises(DeviceError) as raised:
                run(failing)
            assert failing.failed
            yield n, raised.value, disk


def operations(base, run):
    """The numbers of the operations of a run, or of some in each of its batches."""
    whole = FailingDisk(base.copy())
    run(whole)
    return of_each_kind([str(tried.batch) for tried in whole.tried], 15, base.name)


class Outcome:
    """What the LUN was, and where finishing and taking back would lead."""

    def __init__(self, original, base, target, kind="resignature"):
        self.original, self.base, self.target, self.kind = original, base, target, kind
        self.original_ring = free_ring(original)
        self.base_ring = free_ring(base) if reader.read_label(base) else self.original_ring
        self.seen, self.known = set(), {}

    def faults(self, n, error, disk):
        """Why the sentence about the state of the disk is not true."""
        problems = ["it speaks of success"] if "success" in str(error) else []
        said = (error.disk_state, disk.content())  # of many failures the same, of the same bytes
        if said not in self.known:
            self.known[said] = self.untrue(error.disk_state, disk)
        return [f"operation {n}: {error}: {problem}" for problem in problems + self.known[said]]

    def untrue(self, state, disk):
        claims = {
            NOTHING_WRITTEN: self.is_untouched,
            FREE_SPACE: self.is_as_it_was,
            UNFINISHED: self.is_settled_by_recover,
            FINISHED: lambda left: left == self.target,
            FINISHED_ONLY: lambda left: left == self.target,
            FINISHED_AND_FREE_SPACE: lambda left: same_but_for(left, self.target, free_ring(self.target)),
            TAKEN_BACK: self.is_original,
        }
        for sentence, claim in claims.items():
            if state == sentence.format(disk.name, self.kind):
                self.seen.add(sentence)
                return [] if claim(disk) else [f"{state!r} is not true"]
        return [f"it does not say what state the disk is in, but {state!r}"]

    def is_untouched(self, disk):
        return disk == self.base

    def is_as_it_was(self, disk):
        return same_but_for(disk, self.base, self.base_ring)

    def is_settled_by_recover(self, disk):
        """Taken back, or finished, or nothing has happened; and undo gives the old LUN back."""
        again = disk.copy()
        recover(again)
        is_over = engine.inspect(again).state != engine.UNFINISHED
        is_known = again == self.target or self.is_as_it_was(again) or self.is_original(again)
        return is_over and is_known and self.can_be_undone(disk.copy())

    def is_original(self, disk):
        return same_but_for(disk, self.original, self.original_ring)

    def can_be_undone(self, disk):
        """Undo gives the old LUN back, or has done so already."""
        try:
            undo(disk)
        except Refused:
            pass
        return self.is_original(disk)


def check(outcome, run, modes, name):
    problems, count, tried = [], 0, operations(outcome.base, run)
    reads = {False: set(), True: set()}  # what a failing write leaves makes no difference to them
    for for_good, leaves in modes:
        skipped = frozenset(reads[for_good])
        for n, error, disk in failures(outcome.base, run, for_good, leaves, tried, skipped):
            count += 1
            problems += outcome.faults(n, error, disk)
            if error.action == "read":
                reads[for_good].add(n)
    print(f"{name}: {count} failures")
    assert problems == []
    return outcome.seen


@pytest.mark.parametrize("modes", [ONCE, FOR_GOOD], ids=["once", "for good"])
@pytest.mark.parametrize("name", IMAGES)
def test_a_resignature_that_fails_says_truly_what_it_left(name, modes):
    original = image(name)
    outcome = Outcome(original, original, done(original))

    seen = check(outcome, resignature, modes, name)

    assert seen == {NOTHING_WRITTEN, FREE_SPACE, UNFINISHED}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("act", [recover, undo])
@pytest.mark.parametrize("flush, blocks", [(3, 2), (4, 0)])
def test_a_way_back_that_fails_can_be_repeated(name, flush, blocks, act):
    original = image(name)
    outcome = Outcome(original, cut_before(original, flush, blocks=blocks), done(original))

    seen = check(outcome, act, AFTERWARDS, name)

    assert seen == {NOTHING_WRITTEN, UNFINISHED, TAKEN_BACK}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("flush", [5, 6])
def test_a_recovery_that_fails_can_be_repeated(name, flush):
    original = image(name)
    outcome = Outcome(original, cut_before(original, flush), done(original))

    seen = check(outcome, recover, AFTERWARDS, name)

    assert seen == {NOTHING_WRITTEN, UNFINISHED, FINISHED}


@pytest.mark.parametrize("name", TWO)
def test_an_undo_that_fails_says_truly_what_it_left(name):
    original = image(name)
    resignatured = done(original)
    outcome = Outcome(original, resignatured, done(resignatured, run=undo), kind="undo")

    seen = check(outcome, undo, ONCE[1:] + FOR_GOOD[1:], name)

    assert seen == {NOTHING_WRITTEN, FREE_SPACE, UNFINISHED}


class OneAfterTheOther:
    """The outcome of two runs in a row: the error is about the one or the other."""

    def __init__(self, first, second):
        self.first, self.second, self.base = first, second, first.base

    @property
    def seen(self):
        return self.first.seen | self.second.seen

    def faults(self, n, error, disk):
        return min(self.first.faults(n, error, disk), self.second.faults(n, error, disk))


@pytest.mark.parametrize("name", ONE)
def test_an_undo_after_the_commit_that_fails_says_truly_what_it_left(name):
    original = image(name)
    switched, resignatured = cut_before(original, 5), done(original)
    outcome = OneAfterTheOther(
        Outcome(original, switched, resignatured),
        Outcome(original, resignatured, done(resignatured, run=undo), kind="undo"),
    )

    seen = check(outcome, undo, AFTERWARDS, name)

    assert seen == {NOTHING_WRITTEN, UNFINISHED, FINISHED, FINISHED_ONLY, FINISHED_AND_FREE_SPACE}


@pytest.mark.parametrize("name", ["one VDI", "blocks of 4096"])
def test_a_device_that_loses_writes_is_noticed(name):
    """It takes a write and keeps the old bytes. Of step 1 and 3 this is found at once; nothing is taken back."""
    original = image(name)

    class Forgetful(FailingDisk):
        written = lost = 0

        def write(self, chunks):
            self.written += 1
            super().write(chunks[:-1] if self.written == self.lost else chunks)

    for lost in (1, 3):
        disk = original.copy()
        device = Forgetful(disk)
        device.lost = lost
        with pytest.raises(Refused) as caught:
            resignature(device)
        sentence = FREE_SPACE if lost == 1 else UNFINISHED
        assert caught.value.disk_state == sentence.format(disk.name, "resignature")
        assert caught.value.sm_key == "EIO"
        outcome = Outcome(original, original, done(original))
        assert outcome.faults(0, caught.value, disk) == []


@pytest.mark.parametrize("moment", ["before", "journal", "contents"])
def test_lvm_that_works_beside_a_run_is_noticed_and_keeps_its_change(moment):
    """From a host that does not see our locks."""
    original = image("two areas")
    disk = original.copy()
    batch = {"before": 0, "journal": 1, "contents": 3}[moment]

    class Shared(FailingDisk):
        flushed = 0

        def flush(self):
            Shared.flushed += 1
            if Shared.flushed == batch:
                lvm_commit(disk)
            super().flush()

    device = Shared(disk)
    prepared = engine.prepare(device, entropy(0), engine.ResignatureRequest(scsi_id=SCSI_ID))
    if moment == "before":
        lvm_commit(disk)
    with pytest.raises(Refused) as caught:
        engine.resignature(device, prepared)

    if moment == "contents":  # its mark is there, and may not be taken back by itself
        assert caught.value.disk_state == UNFINISHED.format(disk.name, "resignature")
        recover(disk)
    assert reader.read_vg(disk).seqno == reader.read_vg(original).seqno + 1
    assert reader.essence(disk) == reader.essence(original)
    assert engine.inspect(disk).state == engine.CLEAN
