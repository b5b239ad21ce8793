# SPDX-License-Identifier: LGPL-2.1-only
"""Who is another writer of a disk, and whom the next run on the disk waits for.

A process that stands still while another host works: tests/judged/luns/test_overtaken_judged.py, and of the engine
test_overtaken.py.
"""

import os
from types import SimpleNamespace

import pytest

from kit.clock import Clock
from kit.cuts import SCSI_ID, entropy, image
from kit.outcome import run_on
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Fence
from relvmoiscsi.host.disk import block_device
from relvmoiscsi.host.disk.block_device import ImageFile


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 12.0)
    monkeypatch.setattr(block_device, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock


def resignature(device):
    return run_on(device, entropy("a"), engine.ResignatureRequest(scsi_id=SCSI_ID))


def content(path):
    return SparseDisk.from_file(path, 512)


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
