# SPDX-License-Identifier: LGPL-2.1-only
"""Host A stands still in the middle of a run. Host B does its work meanwhile, and is told that it is done. Then A goes
on: the LUN stays as B has left it, and A says so.
"""

from contextlib import suppress
from functools import partial

import pytest

from kit.chains.random_chain import random_chain
from kit.clock import Clock
from kit.crash import CrashDisk
from kit.cuts import SCSI_ID, cut_before, entropy, image, lvm_commit, with_new_volume
from kit.examples import of_each_kind, some
from kit.fenced import FencedDisk
from kit.outcome import run_on
from relvmoiscsi import engine
from relvmoiscsi.device import Fence
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Overtaken, Refused, RelvmoiscsiError

pytestmark = pytest.mark.states

WAIT_SECONDS = 12.0


@pytest.fixture(autouse=True)
def as_long_as_a_lease(monkeypatch):
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", WAIT_SECONDS)


def chain(_name="a random chain"):
    return random_chain(34, free=40, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3).disk.copy()


# --- what A and B do; each takes a device


def resignature(device, seed="a", **more):
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, **more)
    return run_on(device, entropy(seed), request)


def recover(device):
    return engine.recover(device)


def undo(device):
    return engine.undo(device, entropy("undo"))


to_one = partial(resignature, one=OneVdiRequest())

#: what A does, and from what it begins
BEGUN = {
    "resignature: one VDI": (partial(image, "one VDI"), resignature),
    "resignature: blocks of 4096": (partial(image, "blocks of 4096"), resignature),
    "resignature: two areas": (partial(image, "two areas"), resignature),
    "to one: chain": (chain, to_one),
    "undo: one VDI": (lambda: finished("one VDI"), undo),
    "recover: cut before its commit": (lambda: cut_before(image("one VDI"), 4), recover),
    "recover: cut behind its commit": (lambda: cut_before(image("one VDI"), 5), recover),
}


def finished(name):
    disk = image(name).copy()
    resignature(disk)
    return disk


def resignature_again(device):
    return resignature(device, "b", again=True)


def and_lvm_works(act):
    def both(device):
        done = act(device)
        lvm_commit(device._device, with_new_volume)
        return done

    return both


OVERTAKING = {
    "recover": recover,
    "resignature": partial(resignature, seed="b"),
    "resignature again": resignature_again,
    "undo": undo,
    "recover, then LVM": and_lvm_works(recover),
    "resignature, then LVM": and_lvm_works(partial(resignature, seed="b")),
}


def moments_of(name):
    made, act = BEGUN[name]
    device = FencedDisk(made(), Clock())
    act(device)
    return device.moments


class Meeting:
    """A at a moment of its run, and B that does all of its own there."""

    def __init__(self, name, moment, overtaking):
        made, act = BEGUN[name]
        self.disk, self.clock = made(), Clock()
        self.before = self.found = self.after = self.failure = None
        self.overtaking = overtaking
        self.first = FencedDisk(self.disk, self.clock, moment, self.overtake)
        try:
            act(self.first)
        except RelvmoiscsiError as error:
            self.failure = error

    def overtake(self):
        self.before = self.disk.copy()
        second = FencedDisk(self.disk, self.clock)
        with suppress(Refused):  # no undo of a run that has not begun
            self.overtaking(second)
        self.after = self.disk.copy()


@pytest.mark.parametrize("overtaking", list(OVERTAKING))
@pytest.mark.parametrize("name", list(BEGUN))
def test_a_run_that_was_overtaken_leaves_the_lun_to_the_other_and_says_so(name, overtaking):
    moments = moments_of(name)
    stopped, sampled = 0, of_each_kind(moments, 9, f"{name} {overtaking}")
    others = [number for number in range(1, len(moments) + 1) if number not in sampled]
    for number in [*sampled, *others]:
        if number not in sampled and (stopped or "undo" in overtaking):
            break  # the others are for a sample of which no moment stops the run
        met = Meeting(name, number, OVERTAKING[overtaking])
        where = (number, moments[number - 1], str(met.failure))
        if met.before == met.after:
            assert met.failure is None, where
            continue
        if met.failure is None:  # A had made its last write, or had not read yet what B has changed
            assert met.disk == met.after or number <= moments.index("before a look"), where
            assert engine.inspect(met.disk).problem is None, where
            continue
        stopped += 1
        assert isinstance(met.failure, (Refused, Overtaken)) or moments[number - 1] == "before a read", where
        assert met.disk.differences(met.after) == [], where
    assert stopped or "undo" in overtaking


CUT = {"before": 4, "behind": 5}


@pytest.mark.parametrize("when", list(CUT))
@pytest.mark.parametrize("begun_by, settled_by, waits", [
    (b"A   ", b"A   ", False),
    (b"A   ", b"B   ", True),
    (bytes(4), bytes(4), True),
    (b"A   ", bytes(4), True),
])  # fmt: skip
def test_whoever_settles_waits_for_a_client_that_may_still_write_and_says_so(when, begun_by, settled_by, waits, caplog):
    clock = Clock()
    disk = begun_and_cut(clock, begun_by, CUT[when])
    second = FencedDisk(disk, clock, writer=settled_by)

    recover(second)

    assert second.waited == (WAIT_SECONDS if waits else 0)
    said = [
        "or this host by another way to the LUN: waiting 12 seconds" in record.getMessage() for record in caplog.records
    ]
    assert sum(said) == waits
    assert engine.inspect(disk).state == ("clean" if when == "before" else "resignatured")


def begun_and_cut(clock, writer, flush):
    """One VDI, on which power was lost before this flush of a run."""
    crash = CrashDisk(image("one VDI"))
    resignature(FencedDisk(crash, clock, writer=writer))
    disk = crash.after_group(flush - 1)
    disk.name = "one VDI"
    return disk


@pytest.mark.parametrize("when", list(CUT))
def test_a_claim_that_is_cut_is_no_word_of_the_first_client(when):
    """Host B claims a run of host A, and is cut before it has waited: whoever comes next on B still waits for A."""
    clock = Clock()
    disk = begun_and_cut(clock, b"A   ", CUT[when])
    crash = CrashDisk(disk)
    recover(FencedDisk(crash, clock, writer=b"B   "))

    for number in range(1, len(crash.groups)):
        for of, waits in ((b"A   ", True), (b"B   ", True)):
            left = crash.after_group(number)
            left.name = disk.name
            if engine.find_unfinished(left) is None:
                continue
            third = FencedDisk(left, clock, writer=of)
            recover(third)
            assert bool(third.waited) == waits
            assert engine.inspect(left).state == ("clean" if when == "before" else "resignatured")


def test_a_claim_is_durable_before_anything_is_read():
    """Otherwise a target that loses power would show host A its own mark again."""
    clock, said = Clock(), []

    class Telling(FencedDisk):
        def flush(self):
            said.append("flush")
            super().flush()

        def end_late_writes(self, of_another_host=False):
            said.append("wait" if of_another_host else "reset")

        def write(self, chunks):
            said.append("write")
            super().write(chunks)

    recover(Telling(begun_and_cut(clock, b"A   ", 4), clock))

    assert said[:4] == ["write", "flush", "wait", "write"]


@pytest.mark.parametrize("name", some(list(BEGUN), 2))
def test_without_the_fence_the_lun_is_damaged(name, monkeypatch):
    """The twin: B as above, and A does not look."""
    monkeypatch.setattr(Fence, "look", lambda *_: None)
    monkeypatch.setattr(Fence, "look_if_due", lambda *_: None)
    for number in range(len(moments_of(name)), 0, -1):
        met = Meeting(name, number, OVERTAKING["resignature, then LVM"])
        if met.disk != met.after:
            return
    raise AssertionError("it always ends well")
