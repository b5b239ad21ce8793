# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN is hidden, brought, opened and taken back in one order; the rest is tested in VMs."""

import os
import signal
from contextlib import contextmanager
from functools import partial

import pytest

from kit.clock import Clock
from kit.driver_calls import SCSI_ID
from relvmoiscsi.deadline import NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.device import Fence
from relvmoiscsi.errors import NotFound, Refused, RelvmoiscsiError
from relvmoiscsi.host import terminated
from relvmoiscsi.host.disk import block_device, hiding, holders, multipath, paths, udev
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.lun import call
from relvmoiscsi.lun.guard import CallGuard
from relvmoiscsi.lun.users import Question
from relvmoiscsi.sr_driver.codes import fault_of
from relvmoiscsi.sr_driver.hba import lun as lun_module
from relvmoiscsi.sr_driver.hba.lun import HbaLun

VERIFY_UNUSED = paths.verify_unused


class World:
    """A host where nothing is, and a LUN whose disks tell what is asked of them and may fail at a step.

    `said` is what happens, in order.
    """

    is_new = has_sm_lock = False

    def __init__(self):
        self.said, self.fails_at, self.answering = [], "", ["sdb"]
        self.scsi_id, self.deadline = SCSI_ID, Deadline(50, Clock())

    def verify_unused(self, scsi_id, deadline):
        assert (scsi_id, deadline) == (self.scsi_id, self.deadline)
        self.step("ask the other hosts")

    def bring(self, stack):
        stack.callback(self.said.append, "taken back")
        self.step("bring")

    def disks(self):
        self.step("disks")
        return self.answering

    def verify(self, disks):
        assert list(disks) == self.answering
        self.step("verify")

    def verify_free(self, disks):
        self.step("verify free")

    def step(self, name, value=None, **_):
        self.said.append(name)
        if name == self.fails_at:
            raise Refused("It fails here.")
        return value

    @contextmanager
    def context(self, name, *_, **__):
        self.step(name)
        try:
            yield
        finally:
            self.said.append("end of " + name)

    @contextmanager
    def session(self, to_write=False, multipathing=False):
        lun = HbaLun(self, multipathing, 0.0, self.verify_unused)
        with lun.locked(), lun.device_session(to_write) as nodes:
            yield nodes

    def refused(self, words="It fails here", **more):
        with pytest.raises(Refused, match=words), self.session(**more):
            raise AssertionError("there is no path")


@pytest.fixture
def world(monkeypatch):
    made = World()

    def told(name, value=None):
        return lambda *_, **__: made.step(name, value)

    for module, name, value in (
        (call, "lun_locked", partial(made.context, "lock")),
        (hiding, "hidden", partial(made.context, "hide")),
        (hiding, "is_hidden", lambda _: True),
        (hiding, "wait_until_shown", lambda scsi_id, *_: made.step(f"wait until {scsi_id} is shown")),
        (udev, "settle", told("settle")),
        (udev, "disks_of", lambda _: ["sda"]),
        (udev, "maps_of", lambda _: []),
        (multipath, "single_path", told("single path", "sdb")),
        (paths, "drop_caches", told("drop caches")),
        (paths, "verify_unused", told("verify unused")),
    ):
        monkeypatch.setattr(module, name, value)
    return made


def has_map(monkeypatch, *disks):
    monkeypatch.setattr(udev, "maps_of", lambda _: ["dm-0"] if disks else [])
    monkeypatch.setattr(multipath, "paths_in", lambda maps: disks if maps else ())
    monkeypatch.setattr(multipath, "mapper_path", lambda _: "/dev/mapper/m")


READ = ["lock", "hide", "bring", "disks", "settle", "verify", "single path", "work"]
WRITE = ["lock", "hide", "ask the other hosts", "bring", "disks", "settle", "verify", "verify free",
         "verify unused", "single path", "work", "drop caches"]  # fmt: skip
AFTER = ["taken back", "end of hide", "end of lock"]


@pytest.mark.parametrize("to_write, steps", [(False, READ), (True, WRITE)])
def test_a_lun_is_opened_in_this_order_and_whatever_fails_what_was_done_is_taken_back(world, to_write, steps):
    """The other hosts are asked once they can see that this one has begun: of two that begin at the same time one at
    least sees the other; before the lock, neither might.
    """
    with world.session(to_write) as nodes:
        assert nodes == ["/dev/sdb"]
        world.said.append("work")
    assert world.said == [*steps, *AFTER]

    for number, step in enumerate(steps[: steps.index("work")]):
        world.said, world.fails_at = [], step
        world.refused(to_write=to_write)

        undone = AFTER[0 if "bring" in steps[: number + 1] else 1 if number > 1 else 2 if number else 3 :]
        assert world.said == [*steps[: number + 1], *undone], step


def test_a_call_that_is_told_to_end_takes_back_what_it_has_brought_and_says_what_the_lun_is(world, monkeypatch):
    def told_to_end():
        os.kill(os.getpid(), signal.SIGTERM)
        terminated.pause(0)

    world.deadline = Deadline(50, Clock(), NOT_BEGUN)
    monkeypatch.setattr(world, "disks", told_to_end)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RelvmoiscsiError) as caught:
        HbaLun(world, False, 0.0, world.verify_unused).write(None, None, None)

    why = "SIGTERM ended this call: `kill` or the restart of a service sent the signal."
    assert (str(caught.value), fault_of(caught.value).faultCode) == (f"{why} {NOT_BEGUN}", 47)
    assert world.said[-4:] == ["bring", *AFTER] and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "multipathing, in_map, expected",
    [
        (True, (), ["/dev/sdb", "/dev/sdc"]),
        (True, ("sdb", "sdc"), ["/dev/mapper/m"]),
        (True, ("sdb",), ["/dev/mapper/m", "/dev/sdc"]),
        (False, ("sdb", "sdc"), ["/dev/mapper/m"]),
    ],
)
def test_several_paths_are_opened_and_a_map_that_somebody_has_made_for_its_paths(
    world, monkeypatch, multipathing, in_map, expected
):
    has_map(monkeypatch, *in_map)
    world.answering = ["sdb", "sdc"]
    with world.session(multipathing=multipathing) as nodes:
        assert nodes == expected
    assert "single path" not in world.said


@pytest.mark.parametrize("is_new, waited", [(True, [f"wait until {SCSI_ID} is shown"]), (False, [])])
def test_a_lun_that_is_new_is_waited_for_when_all_may_see_it(world, is_new, waited):
    with world.session():
        world.is_new = is_new

    assert world.said[-3 - len(waited) :] == [*AFTER[:2], *waited, AFTER[2]]


@pytest.mark.parametrize("multipathing", [False, True])
def test_where_it_is_written_nobody_may_use_it_through_a_path_that_does_not_answer(world, monkeypatch, multipathing):
    """It comes back with what is stacked on it, and that writes: a map of the other paths does not tell.

    A dead path in the map is for the map to tell.
    """
    monkeypatch.setattr(paths, "verify_unused", VERIFY_UNUSED)
    monkeypatch.setattr(holders, "users_of_disks", lambda names, *_, **__: [f"the volume MGT on {names[0]}"])
    words = "through the disk sda that does not answer: the volume MGT on sda"
    world.refused(words, to_write=True, multipathing=multipathing)
    assert "single path" not in world.said

    has_map(monkeypatch, "sda")
    with world.session(to_write=True, multipathing=multipathing) as nodes:
        assert nodes == ["/dev/mapper/m", "/dev/sdb"]


def test_a_disk_that_the_rules_did_not_hide_is_warned_of(world, monkeypatch, caplog):
    monkeypatch.setattr(hiding, "is_hidden", lambda _: False)
    with world.session():
        pass

    assert "sdb not hidden from event handlers" in caplog.text


@pytest.mark.parametrize("error", [OutOfTime, Refused])
def test_caches_are_dropped_where_a_write_may_have_begun(world, error):
    """A disk that does not answer takes all the seconds that there are for it, and its disks are to go yet."""
    with pytest.raises(Refused), world.session(to_write=True):
        raise error("It fails at work.")

    assert ("drop caches" in world.said) == (error is Refused)


def test_the_paths_to_the_controller_that_owns_the_lun_come_first(world, monkeypatch, tmp_path):
    for disk, state in (("sdb", "active/non-optimized"), ("sdc", "active/optimized")):
        (tmp_path / f"sys/block/{disk}/device").mkdir(parents=True)
        (tmp_path / f"sys/block/{disk}/device/access_state").write_text(state + "\n")
    host = Host(str(tmp_path))
    monkeypatch.setattr(lun_module, "THIS_HOST", host)
    world.answering = ["sdb", "sdc", "sdd"]

    with world.session(multipathing=True) as nodes:
        assert nodes == [host.node(disk) for disk in ("sdc", "sdd", "sdb")]


class Opened:
    """A path, open until the end of its block."""

    size_bytes, block_size, physical_block_size, objection, disk = 1 << 20, 512, 512, None, None

    def __init__(self, node, said):
        self.name, self.fence, self._said = node, Fence(node), said

    def __enter__(self):
        self._said.append("open " + self.name)
        return self

    def __exit__(self, *_):
        self._said.append("close " + self.name)


@pytest.mark.parametrize("writes", [False, True])
def test_all_paths_that_are_there_are_open_during_the_work(monkeypatch, writes):
    said = []

    def open_device(node, writable, **_):
        assert writable is writes
        if node == "/dev/sdb":
            raise NotFound("It has gone.")
        return Opened(node, said)

    def work(lun):
        said.append("work on " + lun.name)
        return "answer"

    def run(*nodes):
        deadline = Deadline(50, Clock())
        guard = CallGuard(Question("3600a"), None, THIS_HOST, (), deadline)
        to_write = call.disks_to_write(("3600a", "serial"), nodes, deadline, guard, lambda: None)
        with to_write if writes else call.disks_to_read("3600a", nodes) as lun:
            return work(lun)

    monkeypatch.setattr(block_device, "open_device", open_device)
    assert run("/dev/sdb", "/dev/sdc", "/dev/sdd") == "answer"
    assert said == ["open /dev/sdc", "open /dev/sdd", "work on /dev/sdc", "close /dev/sdd", "close /dev/sdc"]
    with pytest.raises(NotFound, match="It has gone"):
        run("/dev/sdb")
