# SPDX-License-Identifier: LGPL-2.1-only
"""A process stands still around each request to the kernel, another host does its work, and the process goes on.

test_overtaken.py of the engine has more kinds of work.
"""

import os
from functools import partial
from types import SimpleNamespace

import pytest

from kit.chains.random_chain import random_chain
from kit.clock import Clock
from kit.cuts import SCSI_ID, entropy, image
from kit.examples import of_each_kind
from kit.outcome import run_on
from kit.sparse import SparseDisk
from kit.standing import Standing
from relvmoiscsi import engine
from relvmoiscsi.device import Fence
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import Overtaken, Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import block_device
from relvmoiscsi.host.disk.block_device import ImageFile
from relvmoiscsi.host.disk.paths import NamedPath
from relvmoiscsi.lun.gate import ChildGate, GatedDevice

pytestmark = pytest.mark.states


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Of both hosts. One thread for all requests, and no lock that reaches from one host to the other."""
    clock = Clock()
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 12.0)
    monkeypatch.setattr(block_device, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    monkeypatch.setattr(block_device, "WORKERS", 1)
    monkeypatch.setattr(block_device, "take_image", lambda *_: None)
    return clock


class Stopped(Standing, ImageFile):
    def __init__(self, path, stop=0, then=None):
        super().__init__(path, writable=True, stop=stop, then=then)


def bare(device):
    return device


def named(device):
    """As the driver for host bus adapters and the command open a disk: NamedPath, in a child that asks its parent."""
    path = NamedPath(device, (SCSI_ID, ""))
    path.verify_name = lambda: None
    return GatedDevice(path, ChildGate(lambda: None))


def resignature(device, seed="a", one=None):
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, one=one)
    return run_on(device, entropy(seed), request)


def chain():
    return random_chain(34, free=40, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3, stale=False).disk


#: what is on the LUN, and what both hosts are asked for
BEGUN = {"one VDI": (lambda: image("one VDI"), None), "to one": (chain, OneVdiRequest())}


def other_host(path, work):
    with ImageFile(path, writable=True) as device:
        device.fence.writer = b"B   "
        work(device)


def content(path):
    return SparseDisk.from_file(path, 512)


OVERTAKING = {"recover": lambda device, one: engine.recover(device), "resignature": partial(resignature, seed="b")}


@pytest.mark.states("opened", "overtaking", few=2)
@pytest.mark.parametrize("overtaking", list(OVERTAKING))
@pytest.mark.parametrize("opened", [bare, named])
@pytest.mark.parametrize("name", list(BEGUN))
def test_a_process_that_was_overtaken_leaves_the_disk_to_the_other_host(name, opened, overtaking, tmp_path, clock):
    (make, one), path, held = BEGUN[name], str(tmp_path / "image"), []
    make().to_file(path)
    with Stopped(path) as device:
        resignature(opened(device), one=one)
        moments = device.moments

    def overtake():
        held.append(content(path))
        other_host(path, partial(OVERTAKING[overtaking], one=one))
        held.append(content(path))
        clock.sleep(block_device._LEASE_SECONDS + 1)

    for number in of_each_kind(moments, 20 if one is None else 120, f"{name} {opened} {overtaking}"):
        make().to_file(path)
        failure = None
        del held[:]
        with Stopped(path, number, overtake) as device:
            try:
                resignature(opened(device), one=one)
            except RelvmoiscsiError as error:
                failure = error
        before, after, end = *held, content(path)
        where = (number, moments[number - 1], str(failure))
        if failure is None and end != after:  # B had nothing to do, or A had not read yet
            assert before == after or number <= moments.index("before a write"), where
            assert engine.inspect(end).problem is None, where
        elif failure is not None:
            assert isinstance(failure, (Refused, Overtaken)) or moments[number - 1].endswith("a read"), where
            assert end.differences(after) == [], where


@pytest.mark.parametrize("flush, state", [(3, "clean"), (4, "resignatured")])
def test_the_next_run_on_a_disk_whose_process_was_killed_waits_for_nobody(flush, state, tmp_path, clock):
    """The process has ended, because the kernel has let the next one open the disk."""
    path = str(tmp_path / "image")
    image("one VDI").to_file(path)
    flushes = []

    class Killed(ImageFile):
        def flush(self):
            flushes.append(None)
            if len(flushes) == flush:
                raise KeyboardInterrupt
            super().flush()

    with Killed(path, writable=True) as device, pytest.raises(KeyboardInterrupt):
        resignature(device)
    began = clock.now
    with ImageFile(path, writable=True) as device:
        engine.recover(device)

    assert clock.now == began
    assert engine.inspect(content(path)).state == state


def test_whoever_has_opened_another_file_or_disk_is_another_writer(tmp_path):
    """Of two loop devices of one file, or two paths of one LUN, the kernel excludes nobody."""
    writers = []
    for name in ("one", "other", "one"):
        (tmp_path / name).write_bytes(bytes(4096))
        with ImageFile(str(tmp_path / name), writable=True) as device:
            writers.append(device.fence.writer)

    assert writers[0] == writers[2] != writers[1]
    nodes = [os.stat_result((0o60660, 5, 6, *[0] * 7), {"st_rdev": number}) for number in (1792, 1793, 1792)]
    writers = [block_device._fence("/dev/loop", node).writer for node in nodes]
    assert writers[0] == writers[2] != writers[1]
