# SPDX-License-Identifier: LGPL-2.1-only
"""The command on a loop device is stopped, the command of another host works on another loop device of the same file,
and real LVM changes what that host has left. Then the first command goes on.

test_overtaken.py of the engine and test_overtaken_on_disk.py have more kinds of work. Here are real processes, SIGSTOP,
O_DIRECT, the clock of the machine, and no lock that both hosts have.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import List, NamedTuple

import pytest

from kit.chains.random_chain import random_chain
from kit.command_process import Client
from kit.cuts import image
from kit.examples import WHOLE, of_each_kind
from kit.judges import Loop, Lvm, run, vg_of
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Fence
from relvmoiscsi.host.disk import block_device

pytestmark = pytest.mark.root

SURE = ("--yes", "--not-in-use")
#: longer than the lease of a block device
OUTLAST_SECONDS = Fence.OUTLAST_SECONDS if WHOLE else 3.0
AT_ONCE = 6  #: pairs of hosts: they wait most of the time


def chain():
    return random_chain(34, free=8, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3).disk


#: what is on the LUN, and what the first command does
BEGUN = {"resignature": (lambda: image("one VDI"), ()), "to one": (chain, ("--vdis", "one"))}


class World:
    """Two loop devices of one file: two hosts see one LUN."""

    def __init__(self, directory, name):
        directory.mkdir()
        self._clients = []
        self.directory, (make, self.options) = directory, BEGUN[name]
        self._loop = Loop(make(), directory / "lun.img")
        second = ("losetup", "--find", "--show", "--sector-size", str(self._loop.block_size), self._loop.file)
        self._other = run(*second).strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self._clients:
            client.end()
        run("losetup", "--detach", self._other)
        self._loop.detach()

    def first(self, **more):
        return self._client("a", "resignature", self._loop.path, *SURE, *self.options, **more)

    def other(self, command):
        """Works to its end."""
        options = self.options if command == "resignature" else ()
        client = self._client("b", command, self._other, *SURE, *options, outlast=OUTLAST_SECONDS)
        return client.goes_on(), client.said

    def _client(self, name, *words, **more):
        self._clients.append(Client(self.directory / name, *words, **more))
        return self._clients[-1]

    def lvm_works(self):
        """LVM of the other host changes the volume group that it finds."""
        own = Lvm(self.directory / "lvm").over(self._other)
        own("vgchange", "--addtag", "overtaken", vg_of(self.content()).name)

    def content(self):
        return self._loop.disk()


class Met(NamedTuple):
    """A was stopped at a moment, B has done its work there, and A has gone on."""

    moments: List[str]  #: up to the stop; [] if A had ended before
    before: SparseDisk  #: the work of B
    after: SparseDisk  #: LVM has worked too
    end: SparseDisk
    status: int
    said: str
    of_other: str


def meet(world, command, with_lvm, **first):
    """`first`: where A stops."""
    with world:
        first = world.first(**first)
        if not first.stands():  # a slow machine looks more often: the run that was counted had more moments
            status, end = first.goes_on(), world.content()
            return Met([], end, end, end, status, first.said, "")
        stopped, before = time.monotonic(), world.content()
        moments = first.moments
        status, of_other = world.other(command)
        if world.content() != before:
            assert status == 0, of_other
            if with_lvm:
                world.lvm_works()
        after = world.content()
        # B has waited for nobody if it has found no mark: then the lease of A has to end
        time.sleep(max(0.0, stopped + block_device._LEASE_SECONDS + 0.2 - time.monotonic()))
        status = first.goes_on()
        return Met(moments, before, after, world.content(), status, first.said, of_other)


def faults_of(disk):
    """Of all structures on a LUN: what `check` tells with an exit status of its own."""
    found = engine.inspect(disk)
    mgt = found.lun.settled().mgt if found.lun is not None else None
    told = [found.problem, *found.contradictions, found.unproven, *(mgt.broken if mgt is not None else ())]
    return [each for each in told if each is not None]


def verify(met):
    """Returns what has become of A."""
    where = (len(met.moments), met.moments[-1:], met.status, met.said, met.of_other)
    assert faults_of(met.after) == [], where
    if met.status == 0:  # B had nothing to do or has finished the run of A, or A had not read yet what B has changed
        found = engine.inspect(met.end)
        assert met.after in (met.end, met.before) or "before a write" not in met.moments, where
        assert found.problem is None and found.lun.sr_uuid in met.said, where
        return "done"
    assert met.before != met.after and met.end == met.after, where
    assert "changed at byte" in met.said or "before a write" not in met.moments, where
    return "overtaken"


def all_met(name, command, with_lvm, stops, directory, at=""):
    """What has become of A at each of these stops."""

    def one(stop):
        return verify(meet(World(directory / str(stop), name), command, with_lvm, stop=stop, at=at))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(one, stops))


@pytest.mark.states("command", "with_lvm", few=1)
@pytest.mark.parametrize("with_lvm", [True, False], ids=["then LVM", "alone"])
@pytest.mark.parametrize("command", ["resignature", "recover"])
@pytest.mark.parametrize("name", list(BEGUN))
def test_a_stopped_command_leaves_the_lun_to_the_other_host_and_says_so(name, command, with_lvm, tmp_path):
    with World(tmp_path / "whole", name) as world:
        client = world.first()
        assert client.goes_on() == 0, client.said
        kinds = [moment.split()[-1] for moment in client.moments]
    stops = of_each_kind(kinds, 80, f"{name} {command} {with_lvm}")

    ended = all_met(name, command, with_lvm, stops, tmp_path)

    assert not WHOLE or "overtaken" in ended


WRITE = "before a write"
MARK, WRITES = 3, 8  #: of a run: number of the write of the mark, and all


def test_before_each_write_of_a_run_the_work_of_lvm_on_the_new_sr_stays(tmp_path):
    ended = all_met("resignature", "resignature", True, range(1, WRITES + 1), tmp_path, at=WRITE)

    assert ended == ["overtaken"] * WRITES


def test_twin_without_the_fence_the_lun_of_the_other_host_is_destroyed(tmp_path):
    met = meet(World(tmp_path / "met", "resignature"), "resignature", True, stop=MARK, at=WRITE, fenced=False)

    assert faults_of(met.after) == [] and met.end != met.after and engine.inspect(met.end).problem is not None
