# SPDX-License-Identifier: LGPL-2.1-only
"""A call finds a run of another host that was cut. It claims the run, waits in its child process, and finishes the run.

The locks, the switch that hides the LUN, and both processes are real. What kernel and udev do about a scan is played.
The wait ends when the test says so.
"""

import json
import os
import select
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kit.clock import Clock
from kit.crash import CrashDisk
from kit.cuts import entropy, image, read_mark
from kit.fenced import FencedDisk
from kit.hba_world import CLONE, MappedHost
from kit.outcome import run_on
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Fence
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.host.disk import block_device, exclusive, paths
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lun_lock import is_lun_locked
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.xapi import stale_volumes
from relvmoiscsi.host.xapi.other_hosts import Use
from relvmoiscsi.lun import guard, users
from relvmoiscsi.lun.pool_records import PoolRecords
from relvmoiscsi.sr_driver import create, probe
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.discovery import Discovery
from relvmoiscsi.sr_driver.hba.lun import HbaLun
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport
from relvmoiscsi.sr_types import HBA_SR

pytestmark = pytest.mark.processes

SECONDS = 60  #: no step takes that long
NOBODY = PoolRecords({}, {}, {})
WRITES_OF = b"A   "  #: the other host
CUT = {"before its commit": 4, "behind its commit": 5}  #: the flush before which the other host was cut


def cut_by_another_host(flush):
    crash = CrashDisk(image("one VDI"))
    request = engine.ResignatureRequest(scsi_id=CLONE)
    run_on(FencedDisk(crash, Clock(), writer=WRITES_OF), entropy("a"), request)
    disk = crash.after_group(flush - 1)
    disk.name = crash.name
    return disk


class World(MappedHost):
    """Calls of the driver on a host; `waits` is what a call does in place of a wait."""

    def __init__(self, root, disk, monkeypatch):
        super().__init__(root, disk)
        self._monkeypatch, self.lvm_directory = monkeypatch, self.host.at("run/lock/lvm")
        os.makedirs(self.lvm_directory)
        self._waits, self._to_test = os.pipe()
        self._goes_on, self._to_call = os.pipe()
        time = SimpleNamespace(monotonic=Clock(), sleep=self._stands)
        monkeypatch.setattr(block_device, "time", time)
        monkeypatch.setattr(exclusive, "LEASE_SECONDS", 60)  # another run may look up the file just then
        monkeypatch.setattr(guard, "lvm_locks", lambda names, **more: lvm_locks(names, self.lvm_directory, **more))
        monkeypatch.setattr(paths.scsi, "live_scsi_id", lambda _path: CLONE)
        monkeypatch.setattr(paths.scsi, "live_serial", lambda _path: "")
        monkeypatch.setattr(paths.scsi, "live_size", lambda disk: os.path.getsize(disk.descriptor))
        monkeypatch.setattr(users, "read_pool", lambda _xapi: NOBODY)
        monkeypatch.setattr(users, "Hosts", lambda _xapi: {})
        monkeypatch.setattr(stale_volumes, "use_of_lun", lambda _scsi_id, _host: Use((), ()))

    def _stands(self, seconds):
        os.write(self._to_test, b"%g\n" % seconds)
        os.read(self._goes_on, 1)

    def call(self, act=create.sr_create):
        config = HbaConfig({"SCSIid": CLONE, "resign": "true", "SRmaster": "true"})
        deadline = Deadline(50, Clock())

        def lun(*_):
            found = Discovery(CLONE, config, deadline, 0.0, lambda: NOBODY)
            found.verify_free = lambda *_: None
            return HbaLun(found, False, 0.0, lambda *_: None)

        transport = Transport(HBA_SR, HbaConfig, lun)
        return act(Call("sr_create", {}), config, None, None, deadline, transport)

    @contextmanager
    def under_way(self):
        """Another process makes the call. Gives a list that has the call's answer behind the block."""
        hear, tell = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.write(tell, json.dumps(self._answer()).encode("ascii"))
            finally:
                os._exit(0)
        os.close(tell)
        answer = []
        try:
            yield answer
        finally:
            os.write(self._to_call, b".")
            with open(hear, "rb") as told:
                answer += json.loads(told.read().decode("ascii"))
            os.waitpid(pid, 0)

    def _answer(self):
        try:
            return ["answer", self.call()]
        except RelvmoiscsiError as error:
            return ["error", str(error)]

    def seconds_to_wait(self):
        """What the call is about to wait for the other host. Returns when the call has come so far."""
        poll = select.poll()
        poll.register(self._waits, select.POLLIN)
        assert poll.poll(1000 * SECONDS), "the call does not wait"
        return float(os.read(self._waits, 100))

    def content(self):
        return SparseDisk.from_file(os.path.join(self.array, "sdc"), 512)

    # --- the locks

    def held(self):
        """The locks that a call on this host finds taken."""
        locks = {"LUN": is_lun_locked(CLONE, self.host), "SM": not self._is_free(sm_locks.lvm_lock(self.host, 0))}
        names = [name for name in os.listdir(self.lvm_directory) if name.startswith("V_")]
        locks["LVM"] = any(not self._is_free(lvm_locks([name[2:]], self.lvm_directory, 0)) for name in names)
        return [name for name, is_held in locks.items() if is_held]

    @staticmethod
    def _is_free(lock):
        try:
            with lock:
                return True
        except Refused:
            return False


@pytest.fixture
def make_world(tmp_path, monkeypatch, driver_on):
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 12.0)
    return lambda disk: driver_on(World(tmp_path / "host", disk, monkeypatch))


@pytest.mark.parametrize("when", list(CUT))
def test_a_run_that_another_host_has_begun_is_claimed_waited_for_and_finished(make_world, when):
    world = make_world(cut_by_another_host(CUT[when]))
    begun = read_mark(world.content())
    assert (begun.commit_record.writer, begun.commit_record.claim) == (WRITES_OF, 0)

    with world.under_way() as answer:
        assert world.seconds_to_wait() == 12
        waiting = read_mark(world.content()).commit_record
        assert waiting.claim and waiting.writer != WRITES_OF
        assert waiting.phase == begun.commit_record.phase
        assert world.held() == ["LUN", "SM", "LVM"]
        assert CLONE in world.switches()

    found = engine.inspect(world.content())
    assert (found.state, found.problem) == (engine.RESIGNATURED, None)
    assert answer == ["answer", found.lun.sr_uuid]
    is_of_a = found.lun.sr_uuid == begun.journal.run.ids.new_sr
    assert is_of_a == (when == "behind its commit")
    assert (world.held(), world.switches(), world.seen()) == ([], [], [CLONE])


def test_while_a_call_waits_a_second_call_on_the_host_is_refused_and_a_probe_is_busy(make_world):
    world = make_world(cut_by_another_host(4))

    with world.under_way():
        world.seconds_to_wait()
        before = world.content()
        with pytest.raises(Refused, match=f"{CLONE} is held by .*Nothing was"):
            world.call()
        assert "busy" in world.call(probe.sr_probe)
        assert world.content() == before
        assert world.held() == ["LUN", "SM", "LVM"] and CLONE in world.switches()

    assert engine.inspect(world.content()).state == engine.RESIGNATURED
    assert world.held() == []


def test_a_call_that_is_overtaken_while_it_waits_writes_no_more(make_world):
    """The wait is a stop like any other: a third host has claimed the run, and finished it."""
    world = make_world(cut_by_another_host(4))

    with world.under_way() as answer:
        world.seconds_to_wait()
        third = world.content()
        request = engine.ResignatureRequest(scsi_id=CLONE)
        run_on(FencedDisk(third, Clock(), writer=b"C   "), entropy("c"), request)
        _write_over(os.path.join(world.array, "sdc"), third)

    assert answer[0] == "error" and "changed at byte 512" in answer[1]
    assert world.content() == third
    assert (world.held(), world.switches()) == ([], [])


def _write_over(path, disk):
    """Make the file, which another process has open, hold this disk."""
    with open(path, "r+b") as file:
        for part in SparseDisk.from_file(path, 512).differences(disk):
            file.seek(part.offset)
            file.write(disk.peek(part.offset, part.length))
