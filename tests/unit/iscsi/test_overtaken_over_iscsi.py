# SPDX-License-Identifier: LGPL-2.1-only
"""Over sockets: client A stands still at each moment of its run, client B does all of its work, and A goes on.

test_overtaken.py of the engine has more kinds of work. Here are sessions, resets, unit attentions and the lease.
"""

from contextlib import ExitStack
from functools import partial

import pytest

from kit.chains.random_chain import random_chain
from kit.cuts import entropy, image
from kit.examples import WHOLE, of_each_kind, seeds
from kit.iscsi import idle_time
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.overtaking import SCSI_ID, A, B, Moments, Quiet, by_command, by_driver, serving
from kit.iscsi.quirks import quirk
from kit.outcome import run_on
from relvmoiscsi import engine
from relvmoiscsi.device import Chunk, Fence
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import DeviceError, Overtaken, Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import link
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.iscsi.target_sessions import TargetSessions

pytestmark = pytest.mark.states


@pytest.fixture(autouse=True)
def real_wait(monkeypatch, clock):
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 12.0)
    return clock


# --- what a client does


def resignature(device, seed="a", **more):
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, **more)
    return run_on(device, entropy(seed), request)


to_one = partial(resignature, one=OneVdiRequest())
resignature_of_b = partial(resignature, seed="b")


def chain():
    return random_chain(34, free=40, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3).disk.copy()


LUNS = {"one VDI": (lambda: image("one VDI"), resignature), "to one": (chain, to_one)}
WAYS = [by_command, by_driver]


def moments_of(name, way, monkeypatch):
    make, act = LUNS[name]
    with monkeypatch.context() as patch, serving(make()) as target:
        moments = Moments(patch)
        way(target, A, act)
    return moments.names


#: who overtakes: with which initiator, and how it opens the LUN; to recover, or for a run of the same kind
OVERTAKING = {
    "recover, another host": (B, by_command),
    "resignature, another host": (B, by_command),
    "driver, another host": (B, by_driver),
    "recover, same host": (A, by_command),
    "driver, same host": (A, by_driver),
}


def met(name, way, overtaking, kind, number, monkeypatch, clock):
    """Returns what A has raised, and the LUN before and behind the work of B, and at the end."""
    make, act = LUNS[name]
    who, opened = OVERTAKING[overtaking]
    work = engine.recover if overtaking.startswith("recover") else partial(act, seed="b")
    held, failure = [], None
    with monkeypatch.context() as patch, serving(make(), kind) as target:

        def overtake():
            idle_time.something_comes(has_come=lambda: False)  # the target does what A has sent so far
            held.append(target.lun(0).disk.copy())
            opened(target, who, work)
            held.append(target.lun(0).disk.copy())
            # Before the mark, B has nobody to wait for, and A may still have its lease. A unit attention ends a command
            # that was sent alone, and not the commands behind it.
            if kind is Quiet or name == "to one":
                clock.now += Fence.LEASE_SECONDS + 1

        Moments(patch, number, overtake)
        try:
            way(target, A, act)
        except RelvmoiscsiError as error:
            failure = error
        end = target.lun(0).disk.copy()
        # how much goes into a socket at once is up to the kernel: this run may have fewer moments than the counted
        return failure, (*(held or (end, end)), end)


@pytest.mark.states("overtaking", "kind")
@pytest.mark.parametrize("kind", [HostileTarget, Quiet])
@pytest.mark.parametrize("overtaking", list(OVERTAKING))
@pytest.mark.parametrize("way", WAYS if WHOLE else seeds(WAYS, 2))
@pytest.mark.parametrize("name", list(LUNS) if WHOLE else seeds(list(LUNS), 2))
def test_whoever_was_overtaken_leaves_the_lun_to_the_other_and_says_so(name, way, overtaking, kind, monkeypatch, clock):
    names = moments_of(name, way, monkeypatch)
    first_change = names.index("before the write")
    headers = [number for number, moment in enumerate(names, 1) if moment == "before the name"][-2]
    opened = names.index("before the reset")
    for behind_opening in of_each_kind(names[opened:-2], 40, f"{name} {overtaking} {kind} {way}"):
        number = opened + behind_opening
        failure, (before, after, end) = met(name, way, overtaking, kind, number, monkeypatch, clock)
        where = (number, names[number - 1], str(failure))
        if before == after or number <= first_change and end != after:  # A had not read yet what B has changed
            assert failure is None and engine.inspect(end).problem is None, where
            continue
        assert end.differences(after) == [], where
        # from the headers on, B finishes the run in the very bytes in which A would have
        is_told = isinstance(failure, (Refused, Overtaken, DeviceError))
        assert is_told or number <= first_change or number >= headers, where


# --- a dead client's late writes


class Killed(BaseException):
    """SIGKILL."""


def killed_at(target, monkeypatch):
    """A ends at the first quirk of the target; what was under way then is held there."""

    def dies(_sessions, _attempt):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TargetSessions, "log_in_again", dies)
        by_command(target, A, resignature)
    target.new_call()
    assert target.count("kept a write") == 1


def late(number, stop, way, who, monkeypatch):
    """A is killed at its write `number`. At the moment `stop` of the run of B this write is let go. Never: 0.

    Returns the moments of B, what B has raised, the LUN, and what was the LUN when A had ended.
    """
    failure = None
    held = [quirk("late_write", skip=number - 1)]
    with monkeypatch.context() as patch, serving(image("one VDI"), quirks=held) as target:
        killed_at(target, patch)
        moments = Moments(patch, stop, target.late_writes_land)
        try:
            way(target, who, resignature_of_b)
        except RelvmoiscsiError as error:
            failure = error
        if failure is not None:
            target.late_writes_land()
            by_command(target, who, resignature_of_b)
        return moments.names, failure, target.lun(0).disk.copy()


WRITES_OF_A = 8  #: with the last of them, the run is over


@pytest.mark.parametrize("who", [A, B])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(1, WRITES_OF_A + 1))
def test_a_late_write_of_a_dead_client_changes_nothing_behind_the_look_that_decides(number, way, who, monkeypatch):
    names, _none, expected = late(number, 0, way, who, monkeypatch)
    for stop in of_each_kind(["" for _ in names], 25, f"{number} {way} {who.name}"):
        _names, failure, disk = late(number, stop, way, who, monkeypatch)
        where = (stop, names[stop - 1], str(failure))
        if failure is None:
            assert disk.differences(expected) == [] or stop <= names.index("behind the reset"), where
        else:  # the LUN had changed since B had read it for its plan
            assert isinstance(failure, (Refused, Overtaken)) and stop <= names.index("behind the reset"), where
        found = engine.inspect(disk)
        assert (found.state, found.problem) == (engine.RESIGNATURED, None), where


@pytest.mark.parametrize("who, waits", [(A, False), (B, True)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [5, 7])  # before the commit, behind it
def test_only_another_host_waits_for_the_last_write_of_a_killed_call(number, way, who, waits, monkeypatch, clock):
    with serving(image("one VDI"), quirks=[quirk("late_write", skip=number - 1)]) as target:
        killed_at(target, monkeypatch)
        began = clock.now
        way(target, who, resignature_of_b)
        assert engine.inspect(target.lun(0).disk).state == engine.RESIGNATURED

    assert (clock.now - began >= Fence.OUTLAST_SECONDS) == waits


# --- targets that are slow


@pytest.mark.parametrize("seconds", [0.5, 2, 4, 8])
def test_a_target_that_needs_longer_than_the_lease_for_a_batch_gets_smaller_parts(seconds, monkeypatch, clock):
    """Otherwise the lease would end in each attempt, and each next session would begin the batch again."""
    mib = 1 << 20
    data = b"".join(bytes([number]) * mib for number in range(1, 9))
    target = HostileTarget([Lun(0, 16 * mib)], window=1)
    real = Lun.write

    def slow(lun, offset, part):
        clock.now += seconds * len(part) / mib
        real(lun, offset, part)

    monkeypatch.setattr(Lun, "write", slow)
    with target:
        began = clock.now

        def act(device):
            device.fence.hold([Chunk(12 * mib, bytes(512))])
            device.write([Chunk(0, data)])
            device.flush()

        by_command(target, A, act)

        assert target.lun(0).disk.peek(0, len(data)) == data
        assert target.count("session") == 1
        assert target.lun(0).writes == 8
    assert clock.now - began < 8 * seconds + 1


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_one_write_that_takes_longer_than_the_lease_is_waited_for_and_the_next_looks_again(
    is_overtaken, monkeypatch, clock
):
    """The look was fresh when the command was sent. A host that settles the run resets the LUN, which ends it."""
    mib, seconds, real = 1 << 20, Fence.LEASE_SECONDS + 5, Lun.write
    monkeypatch.setattr(link, "SILENCE_SECONDS", 60.0)  # a slow LUN: its target answers pings meanwhile
    target = HostileTarget([Lun(0, 16 * mib)], window=1)

    def slow(lun, offset, part):
        clock.now += seconds
        real(lun, offset, part)
        if is_overtaken:
            lun.disk.poke(12 * mib, b"B" * 512)

    def act(device):
        device.fence.hold([Chunk(12 * mib, bytes(512))])
        device.write([Chunk(0, b"1" * mib + b"2" * mib)])

    monkeypatch.setattr(Lun, "write", slow)
    with target:
        began = clock.now
        with pytest.raises(Overtaken) if is_overtaken else ExitStack():
            by_command(target, A, act)
        written = 1 if is_overtaken else 2
        assert (target.lun(0).writes, target.count("session")) == (written, 1)
    assert clock.now - began < written * seconds + 1


def test_of_a_client_that_stands_still_in_an_attempt_nothing_leaves_after_the_lease(monkeypatch, clock):
    """The target has answered only a part of the writes, so the rest is still with the client: window=1."""
    mib, sends, real = 1 << 20, [], Link._turn

    def stops(link, seconds):
        if link.wire.outgoing() and target.lun(0).writes == 3:
            sends.append(clock.now)
            if len(sends) == 1:
                target.lun(0).disk.poke(12 * mib, b"B" * 512)
                clock.now += Fence.LEASE_SECONDS + 1
        real(link, seconds)

    def act(device):
        device.fence.hold([Chunk(12 * mib, bytes(512))])
        monkeypatch.setattr(Link, "_turn", stops)
        device.write([Chunk(0, b"A" * 8 * mib)])

    with HostileTarget([Lun(0, 16 * mib)], window=1) as target:
        with pytest.raises(Overtaken) as caught:
            by_command(target, A, act)
        writes = target.lun(0).writes

    assert caught.value.offset == 12 * mib
    assert sends and writes == 3


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_block_that_is_read_in_part_beside_its_write_is_read_again_alone(is_overtaken, monkeypatch):
    """As from a target with a file in place of a disk, whose threads copy the block at the same moment."""
    place, new, beside = 8192, b"new." * 128, []
    target = HostileTarget([Lun(0, 1 << 20)])
    real_write, disk = Lun.write, target.lun(0).disk
    real_peek = disk.peek

    def write(lun, offset, data):
        real_write(lun, offset, data)
        beside.append(offset)

    def peek(offset, length):
        found = bytearray(real_peek(offset, length))
        if beside and offset <= place < offset + length:
            found[place - offset + 256 : place - offset + 512] = bytes(256)
            if not is_overtaken:
                beside.clear()
        return bytes(found)

    def act(device):
        device.fence.hold([Chunk(place, bytes(512))])
        device.fence.writing([Chunk(place, new)])
        device.write([Chunk(place, new)])
        device.flush()

    with target, pytest.raises(Overtaken) if is_overtaken else ExitStack():
        monkeypatch.setattr(Lun, "write", write)
        monkeypatch.setattr(disk, "peek", peek)
        by_command(target, A, act)
    assert real_peek(place, 512) == new
