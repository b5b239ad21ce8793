# SPDX-License-Identifier: LGPL-2.1-only
"""The n-th read, write or flush fails, once or for good: for each n, or for some in each batch of a run.

The error is one of ours and says what state the LUN is in; that sentence is true. A person acts on it, so it is
checked word for word against the disk, as a healthy host would find it afterwards.
"""

import shlex
from functools import lru_cache, partial

import pytest

from kit import reader
from kit.chains.random_chain import random_chain
from kit.crash import FailingDisk, LosingDisk
from kit.cuts import (
    BROKEN,
    SCSI_ID,
    WITHOUT,
    cut_before,
    done,
    entropy,
    free_ring,
    image,
    lvm_commit,
    recorded,
    recover,
    resignature,
    same_but_for,
    undo,
)
from kit.examples import of_each_kind, some
from relvmoiscsi import engine
from relvmoiscsi.errors import DeviceError, FormatError, Overtaken, Refused, RelvmoiscsiError, Unfinished

pytestmark = pytest.mark.states

ONCE = [(False, leaves) for leaves in ("nothing", "half", "all")]
FOR_GOOD = [(True, leaves) for leaves in ("nothing", "all")]
AFTERWARDS = [(False, "half"), (True, "half")]

NOTHING_WRITTEN = "Nothing was written."
FREE_SPACE = "{} is as it was; beyond that only free space of the metadata area was written."
UNFINISHED = "The {1} of {0} was begun and may be unfinished."
RECOVER = "Once the device answers, `relvmoiscsi recover {}` finishes it or rolls it back."
FINISHED = "The {1} was finished."
FINISHED_ONLY = "The {1} was finished; nothing else was written."
FINISHED_AND_FREE_SPACE = "The {1} was finished; beyond that only free space of the metadata area was written."
ROLLED_BACK = "The {1} was rolled back."


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
            ROLLED_BACK: self.is_original,
        }
        for sentence, claim in claims.items():
            if state == sentence.format(disk.name, self.kind, shlex.quote(disk.name)):
                self.seen.add(sentence)
                return [] if claim(disk) else [f"{state!r} is not true"]
        return [f"it does not say what state the disk is in, but {state!r}"]

    def is_untouched(self, disk):
        return disk == self.base

    def is_as_it_was(self, disk):
        return same_but_for(disk, self.base, self.base_ring)

    def is_settled_by_recover(self, disk):
        """Rolled back, or finished, or nothing has happened; and undo gives the old LUN back."""
        again = disk.copy()
        recover(again)
        is_over = engine.inspect(again).state != engine.UNFINISHED
        is_known = again == self.target or self.is_as_it_was(again) or self.is_original(again)
        return is_over and is_known and self.can_be_undone(disk.copy())

    def is_original(self, disk):
        return same_but_for(disk, self.original, self.original_ring)

    def can_be_undone(self, disk):
        """Undo gives the old LUN back, or has done so already: then the error of a LUN with a broken VDI is that."""
        try:
            undo(disk)
        except (Refused, FormatError):
            pass
        return self.is_original(disk)


def check(outcome, run, modes):
    """Each operation of a run fails, or some in each of its batches do: what is said of the disk is true."""
    whole = FailingDisk(outcome.base.copy())
    run(whole)
    tried = of_each_kind([str(tried.batch) for tried in whole.tried], 15, outcome.base.name)
    problems, reads = [], {False: set(), True: set()}  # what a failing write leaves makes no difference to them
    for for_good, leaves in modes:
        for n in sorted(set(tried) - reads[for_good]):
            disk = outcome.base.copy()
            failing = FailingDisk(disk, n, for_good, leaves)
            with pytest.raises(DeviceError) as raised:
                run(failing)
            assert failing.failed
            problems += outcome.faults(n, raised.value, disk)
            if raised.value.action == "read":
                reads[for_good].add(n)
    assert problems == []
    return outcome.seen


class OneAfterTheOther:
    """The outcome of two runs in a row: the error is about the one or the other."""

    def __init__(self, first, second):
        self.first, self.second, self.base = first, second, first.base

    @property
    def seen(self):
        return self.first.seen | self.second.seen

    def faults(self, n, error, disk):
        return min(self.first.faults(n, error, disk), self.second.faults(n, error, disk))


# --- the runs of which an operation fails


def a_run(original):
    return Outcome(original, original, done(original))


def an_undo(original):
    resignatured = done(original)
    return Outcome(original, resignatured, done(resignatured, run=undo), kind="undo")


def a_run_without(original):
    return Outcome(original, original, done(original, **WITHOUT))


def way_back_without(original):
    return Outcome(original, cut_before(original, 4, **WITHOUT), done(original, **WITHOUT))


def undo_of_a_run_without(original):
    resignatured = done(original, **WITHOUT)
    return Outcome(original, resignatured, done(resignatured, run=undo), kind="undo")


def way_back(flush, blocks, original):
    return Outcome(original, cut_before(original, flush, blocks=blocks), done(original))


def way_on(flush, original):
    return way_back(flush, 0, original)


def undo_after_the_commit(original):
    return OneAfterTheOther(Outcome(original, cut_before(original, 5), done(original)), an_undo(original))


def part(names, every):
    return some(names, every, lambda _name: "")


BROKEN_VDI = "a broken VDI"
TWO = part(["two areas", "blocks of 4096"], 2)
BEGUN = {NOTHING_WRITTEN, FREE_SPACE, UNFINISHED}
#: the run, on which images, how an operation fails, and what all is said of the LUN then
FAILURES = [
    (resignature, a_run, part(["one VDI", "two areas", "blocks of 4096", "fragmented"], 4), ONCE, BEGUN),
    (resignature, a_run, part(["one VDI", "two areas", "blocks of 4096", "fragmented"], 4), FOR_GOOD, BEGUN),
    *((act, partial(way_back, *at), TWO, AFTERWARDS, {NOTHING_WRITTEN, UNFINISHED, ROLLED_BACK})
      for act in (recover, undo) for at in ((3, 2), (4, 0))),
    *((recover, partial(way_on, at), TWO, AFTERWARDS, {NOTHING_WRITTEN, UNFINISHED, FINISHED}) for at in (5, 6)),
    (undo, an_undo, TWO, ONCE[1:] + FOR_GOOD[1:], BEGUN),
    (undo, undo_after_the_commit, part(["one VDI", "blocks of 4096"], 2), AFTERWARDS,
     {NOTHING_WRITTEN, UNFINISHED, FINISHED, FINISHED_ONLY, FINISHED_AND_FREE_SPACE}),
    (partial(resignature, **WITHOUT), a_run_without, [BROKEN_VDI], ONCE + FOR_GOOD[1:], BEGUN),
    (recover, way_back_without, [BROKEN_VDI], AFTERWARDS, {NOTHING_WRITTEN, UNFINISHED, ROLLED_BACK}),
    (undo, undo_of_a_run_without, [BROKEN_VDI], ONCE[1:], BEGUN | {FINISHED}),
]  # fmt: skip


def named(value):
    """Of the row what its kind is: which functions, on which image, once or for good."""
    found = getattr(value, "func", value)
    return getattr(found, "__name__", None) or (found if isinstance(found, str) else "once" if found is ONCE else "")


@pytest.mark.parametrize(
    "act, of, name, modes, said", [(*row[:2], name, *row[3:]) for row in FAILURES for name in row[2]], ids=named
)
def test_a_run_that_fails_says_truly_what_it_left_and_can_be_repeated(act, of, name, modes, said):
    original = BROKEN.disk.copy() if name == BROKEN_VDI else image(name)
    assert check(of(original), act, modes) == said


class Forgetful(FailingDisk):
    """Takes the write of one batch, and keeps the old bytes of its last chunk."""

    def __init__(self, disk, lost):
        super().__init__(disk)
        self.lost = lost

    def write(self, chunks):
        self.lost -= 1
        super().write(chunks if self.lost else chunks[:-1])


@pytest.mark.parametrize("name", ["one VDI", "blocks of 4096"])
def test_a_device_that_loses_writes_is_noticed(name):
    """Of step 1 and 3 this is found at once; nothing is rolled back."""
    original = image(name)

    for lost in (1, 3):
        disk = original.copy()
        with pytest.raises(Refused if lost == 1 else Unfinished) as caught:
            resignature(Forgetful(disk, lost))
        sentence = FREE_SPACE if lost == 1 else UNFINISHED
        assert caught.value.disk_state == sentence.format(disk.name, "resignature", shlex.quote(disk.name))
        assert (RECOVER.format(shlex.quote(disk.name)) in caught.value.advice) is (sentence is UNFINISHED)
        assert caught.value.sm_key == "EIO"
        outcome = Outcome(original, original, done(original))
        assert outcome.faults(0, caught.value, disk) == []


@pytest.mark.parametrize("name", ["one VDI", "blocks of 4096"])
def test_a_device_that_loses_a_write_of_the_way_back_is_noticed_and_the_way_back_can_be_repeated(name):
    for lost in (1, 2, 3):  # the claim, the contents, the label
        disk = cut_before(image(name), 4)
        with pytest.raises(Overtaken if lost in (1, 3) else Unfinished) as caught:
            recover(Forgetful(disk, lost))
        if lost == 2:
            assert caught.value.disk_state == UNFINISHED.format(disk.name, "resignature", shlex.quote(disk.name))
        recover(disk)
        assert same_but_for(disk, image(name), free_ring(disk))


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
    with pytest.raises(Overtaken if moment == "contents" else (Refused, Overtaken)) as caught:
        engine.resignature(device, prepared)

    if moment == "contents":  # its mark is there, and may not be rolled back by itself
        assert caught.value.disk_state == UNFINISHED.format(disk.name, "resignature", shlex.quote(disk.name))
        recover(disk)
    assert reader.read_vg(disk).seqno == reader.read_vg(original).seqno + 1
    assert reader.essence(disk) == reader.essence(original)
    assert engine.inspect(disk).state == engine.CLEAN


# --- a write that is lost: the device says it is done


TO_ONE = partial(resignature, one=engine.OneVdiRequest())


@lru_cache(maxsize=None)
def a_chain():
    """Making one VDI of it fills bitmaps in place, and gives free slots away."""
    return random_chain(34, bat_entries=4096, free=20, blocks=5, depth=3).disk


#: what runs, from where, and how many of its chunks may be lost without a word: what the run writes again later
LOST = {
    "resignature: a chain": (lambda: image("a chain"), resignature, 1),
    "resignature: two areas": (lambda: image("two areas"), resignature, 1),
    "one VDI: a chain": (a_chain, TO_ONE, 2),
    "undo: a chain": (lambda: done(image("a chain")), undo, 1),
    "rollback: a chain": (lambda: cut_before(image("a chain"), 4), recover, 0),
    "rollback: one VDI": (lambda: recorded(a_chain(), TO_ONE).after_group(2), recover, 0),
    "finish: text wraps": (lambda: cut_before(image("text wraps"), 5), recover, 0),
    "finish: one VDI": (lambda: recorded(a_chain(), TO_ONE).after_group(4), recover, 0),
}


@pytest.mark.parametrize("name", LOST)
def test_a_run_of_which_a_chunk_is_lost_says_so_or_writes_it_again(name):
    made, run, again = LOST[name]
    start = made()
    whole = LosingDisk(start.copy())
    run(whole)

    unsaid = []
    for number in range(1, len(whole.tried) + 1):
        losing = LosingDisk(start.copy(), number)
        try:
            run(losing)
        except RelvmoiscsiError as error:
            assert not error.disk_state.endswith((" was finished.", " was rolled back.")), error
            continue
        assert losing.base == whole.base, whole.tried[number - 1].range
        unsaid.append(number)
    assert len(unsaid) == again, unsaid
