# SPDX-License-Identifier: LGPL-2.1-only
"""A call that is killed at any of its steps, and the same call again: the host is as it was, or the new SR is there.

The locks, the switches, the notes and the removal are the real ones, on a recorded host; what the kernel and udev do
about a scan is played.
"""

import os
import signal
import sys
from functools import partial
from itertools import takewhile
from types import SimpleNamespace

import pytest

from kit import golden, hba_world
from kit.clock import Clock
from kit.examples import of_each_kind
from kit.examples import steps as sampled
from kit.hba_world import CLONE, OTHER, MappedHost
from kit.outcome import resignatured
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Range
from relvmoiscsi.host.disk import cleanup_journal, hiding, udev
from relvmoiscsi.host.hba import scan as scan_module
from relvmoiscsi.host.locks import lun_lock, sm_locks
from relvmoiscsi.host.terminated import heeded
from relvmoiscsi.lun import pool_records
from relvmoiscsi.sr_driver.hba import discovery, missing, other_luns
from relvmoiscsi.sr_driver.hba import lun as lun_module
from relvmoiscsi.sr_driver.hba.config import HbaConfig

#: the ends of these are steps: something has changed, or is about to
STEPS = {"lun_lock", "lvm_lock", "_switch_on", "note", "forget", "scan"}
STEPS |= {"settle", "take_away", "_switch_off", "disks"}
OF_SUCCESS = {"is_new", "make_event"}  #: these are steps only of a call that gives new identities
OF_A_LOOK = {"_has_new_identities"}  #: and these of one that does not
NAMES = frozenset(STEPS | OF_SUCCESS | OF_A_LOOK)
MODULES = (cleanup_journal, discovery, hiding, missing, other_luns, scan_module, lun_lock, sm_locks, udev)
FILES = {module.__file__ for module in (*MODULES, hba_world)} | {__file__}
EVERY_KILL, EVERY_SIGTERM = 48, 12  #: a sample takes each so many'th step; of writes, one at each kind of step as well

pytestmark = pytest.mark.processes


class KilledHost(MappedHost):
    """Calls that give the clone new identities, or only look."""

    def __init__(self, root, disk, after):
        super().__init__(root, disk)
        self._after = after  # what a resignature makes of the disk

    def call(self, resignatures):
        pool = pool_records.PoolRecords({}, {}, {})
        found = discovery.Discovery(CLONE, HbaConfig({}), Deadline(50, Clock()), 0.0, lambda: pool)
        found.verify_free = lambda *_: None
        lun = lun_module.HbaLun(found, False, 0.0, lambda *_: None)
        with lun.locked(), lun.device_session(to_write=resignatures) as nodes:
            assert nodes == [self.host.node("sdc")]
            if resignatures:
                self.resignature()
                found.is_new = True

    def resignature(self):
        self._after.to_file(os.path.join(self.array, "sdc"))
        self.is_new()

    def is_new(self):
        with open(os.path.join(self.array, "sdc"), "rb") as file:
            return file.read(1 << 20) == self._after.read([Range(0, 1 << 20)])[0]

    def list(self):
        """A call that names no LUN."""
        xapi = SimpleNamespace(records=lambda kind: {})
        raise missing.missing_scsi_id(HbaConfig({}), xapi, Deadline(50, Clock()), 0.0)

    def steps_of(self, call):
        """The names of all steps of the call, which nobody disturbs."""
        return self.killed_at(0, call).split()

    def killed_at(self, number, call, by=signal.SIGKILL):
        """The names of the steps up to that one; of all where the call has ended before."""
        hear, tell = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(hear)
            try:
                with heeded():
                    sys.settrace(Killer(number, tell, by))
                    call()
            finally:
                os._exit(0)
        os.close(tell)
        os.waitpid(pid, 0)
        with open(hear, encoding="ascii") as told:
            return told.read()


class Killer:
    """A signal to this process, not a child of it, at a step, the first of which is number 1."""

    def __init__(self, number, tell, by):
        self._pid, self._left, self._tell, self._by = os.getpid(), number, tell, by

    def __call__(self, frame, event, _argument):
        code = frame.f_code
        if code.co_name not in NAMES or code.co_filename not in FILES:
            return None
        if event == "return" and os.getpid() == self._pid:
            self._left -= 1
            os.write(self._tell, code.co_name.encode("ascii") + b"\n")
            if not self._left:
                os.kill(self._pid, self._by)
        return self


@pytest.fixture
def make_host(tmp_path, driver_on):
    """Makes host after host, each of them the one that the driver is on from then on."""
    original = golden.load("one").disk
    after = resignatured(original, scsi_id=CLONE).after
    return lambda name: driver_on(KilledHost(tmp_path / name, original, after))


@pytest.mark.states
@pytest.mark.parametrize("resignatures", [False, True])
def test_a_call_that_is_killed_at_any_step_and_a_probe_or_the_call_again(make_host, resignatures):
    first = make_host("undisturbed")
    steps = first.steps_of(partial(first.call, resignatures))
    assert set(steps) == STEPS | (OF_SUCCESS if resignatures else OF_A_LOOK)

    sample = takewhile(lambda number: number <= len(steps), sampled(EVERY_KILL, "probe"))
    for number in of_each_kind(steps, EVERY_KILL, "write") if resignatures else sample:
        host = make_host(str(number))
        step = (number, steps[number - 1])
        assert host.killed_at(number, partial(host.call, resignatures)).split() == steps[:number]
        is_new = host.is_new()

        host.call(resignatures=not resignatures)

        stays = [CLONE] * (is_new or not resignatures)
        assert (host.seen(), host.switches()) == (stays, []), step
        assert set(host.notes()) <= {OTHER}, step  # that it may be there is no harm
        if number % 4 == 1:
            host.call(resignatures=True)
            assert (host.seen(), host.switches(), host.is_new()) == ([CLONE], [], True), step


@pytest.mark.states
@pytest.mark.parametrize("lists", [False, True], ids=["a probe", "a list"])
def test_a_call_that_is_told_to_end_at_any_step_leaves_no_lun_that_its_scan_has_brought(make_host, monkeypatch, lists):
    """It did, and showed them to LVM."""
    monkeypatch.setattr(missing, "device_list", lambda *_: ("", 0))
    first = make_host("undisturbed")
    steps = first.steps_of(first.list if lists else partial(first.call, False))
    assert {"scan", "take_away", "forget"} <= set(steps)

    for number in takewhile(lambda number: number <= len(steps), sampled(EVERY_SIGTERM, str(lists))):
        host = make_host(str(number))
        host.killed_at(number, host.list if lists else partial(host.call, False), by=signal.SIGTERM)
        assert (host.seen(), host.switches()) == ([], []), (number, steps[number - 1])


def test_what_a_scan_has_brought_goes_although_the_call_fails_right_behind_it(make_host, monkeypatch):
    host, scan = make_host("one"), discovery.scan

    def brings_and_fails(*arguments):
        scan(*arguments)
        raise OSError("a failure")

    monkeypatch.setattr(discovery, "scan", brings_and_fails)

    with pytest.raises(OSError, match="a failure"):
        host.call(resignatures=True)

    assert (host.seen(), host.switches()) == ([], [])
