# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN is hidden, brought, opened and taken back in one order; the rest is tested in VMs."""

import os
import signal
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from kit.clock import Clock
from kit.driver_calls import SCSI_ID
from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk import hiding, holders, multipath, paths, udev
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.terminated import Terminated, heeded, pause, quietly
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.sr_driver.hba import lun as lun_module
from relvmoiscsi.sr_driver.hba.lun import HbaLun

VERIFY_UNUSED = paths.verify_unused


class Told:
    """The disks of a LUN, which tell what is asked of them, and may fail at a step."""

    is_new = has_sm_lock = False

    def __init__(self, said, fails_at):
        self.scsi_id, self.deadline = SCSI_ID, Deadline(50, Clock())
        self._said, self._fails_at = said, fails_at

    def verify_unused(self, scsi_id, deadline):
        assert (scsi_id, deadline) == (self.scsi_id, self.deadline)
        self._step("ask the other hosts")

    def bring(self, stack):
        stack.callback(self._said.append, "taken back")
        self._step("bring")

    def disks(self):
        self._step("disks")
        return ["sdb"]

    def verify(self, disks):
        assert list(disks) == ["sdb"]
        self._step("verify")

    def verify_free(self, disks):
        self._step("verify free")

    def _step(self, name):
        self._said.append(name)
        if name == self._fails_at:
            raise Refused("It fails here.")


def lun_of(said, multipathing=False, fails_at=""):
    told = Told(said, fails_at)
    return HbaLun(told, multipathing, 0.0, told)


def session(lun, meanwhile=lambda: None, to_write=False):
    return lun.device_session(meanwhile, to_write)


def the_map(*disks):
    return multipath.Map("dm-0", "m", disks, "/dev/mapper/m")


@pytest.fixture
def said(monkeypatch):
    """What happens, in order, on a host where nothing is."""
    found = []

    def context(name):
        @contextmanager
        def of(*_, **__):
            found.append(name)
            try:
                yield
            finally:
                found.append("end of " + name)

        return of

    def told(name, value=None):
        def of(*_, **__):
            found.append(name)
            return value

        return of

    monkeypatch.setattr(sm_locks, "lun_lock", context("lock"))
    monkeypatch.setattr(hiding, "hidden", context("hide"))
    monkeypatch.setattr(hiding, "is_hidden", lambda _: True)
    monkeypatch.setattr(hiding, "wait_until_shown", lambda scsi_id, *_: found.append(f"wait until {scsi_id} is shown"))
    monkeypatch.setattr(udev, "settle", told("settle"))
    monkeypatch.setattr(udev, "disks_of", lambda _: ["sda"])
    monkeypatch.setattr(multipath, "find_map", lambda _: None)
    monkeypatch.setattr(multipath, "single_path", told("single path", "sdb"))
    monkeypatch.setattr(paths, "drop_caches", told("drop caches"))
    monkeypatch.setattr(paths, "verify_unused", told("verify unused"))
    return found


BEFORE = ["lock", "hide", "bring"]
AFTER = ["taken back", "end of hide", "end of lock"]
TO_WRITE = [*BEFORE[:-1], "ask the other hosts", "bring"]


def test_a_lun_is_opened_by_its_only_path(said):
    with session(lun_of(said), meanwhile=lambda: said.append("meanwhile")) as nodes:
        assert nodes == ["/dev/sdb"]
        said.append("work")

    assert said == [*BEFORE, "meanwhile", "disks", "settle", "verify", "single path", "work", *AFTER]


def test_to_be_written_it_is_opened_when_nobody_uses_it_and_no_cache_shows_what_was_there(said):
    with session(lun_of(said), to_write=True):
        said.append("work")

    steps = ["disks", "settle", "verify", "verify free", "verify unused", "single path", "work", "drop caches"]
    assert said == [*TO_WRITE, *steps, *AFTER]


@pytest.mark.parametrize(
    "multipathing, in_map, expected",
    [
        (True, None, ["/dev/sdb", "/dev/sdc"]),
        (True, ("sdb", "sdc"), ["/dev/mapper/m"]),
        (True, ("sdb",), ["/dev/mapper/m", "/dev/sdc"]),
        (False, ("sdb", "sdc"), ["/dev/mapper/m"]),
    ],
)
def test_several_paths_are_opened_and_a_map_that_somebody_has_made_for_its_paths(
    said, monkeypatch, multipathing, in_map, expected
):
    monkeypatch.setattr(multipath, "find_map", lambda _: the_map(*in_map) if in_map else None)
    lun = lun_of(said, multipathing)
    monkeypatch.setattr(lun.discovery, "disks", lambda: ["sdb", "sdc"])
    monkeypatch.setattr(lun.discovery, "verify", lambda disks: None)
    with session(lun) as nodes:
        assert nodes == expected
    assert "single path" not in said


@pytest.mark.parametrize("is_new, waited", [(True, [f"wait until {SCSI_ID} is shown"]), (False, [])])
def test_a_lun_that_is_new_is_waited_for_when_all_may_see_it(said, is_new, waited):
    lun = lun_of(said)
    with session(lun):
        lun.discovery.is_new = is_new

    assert said == [*BEFORE, "disks", "settle", "verify", "single path", *AFTER[:2], *waited, AFTER[2]]


def test_where_it_is_written_nobody_may_use_it(said):
    with pytest.raises(Refused), session(lun_of(said, fails_at="verify free"), to_write=True):
        raise AssertionError("there is no path")

    assert said == [*TO_WRITE, "disks", "settle", "verify", "verify free", *AFTER]


def test_the_other_hosts_are_asked_once_they_can_see_that_this_one_has_begun(said):
    """Of two that begin at the same time one at least sees the other; before the lock, neither might."""
    with pytest.raises(Refused), session(lun_of(said, fails_at="ask the other hosts"), to_write=True):
        raise AssertionError("there is no path")

    assert said == [*BEFORE[:-1], "ask the other hosts", *AFTER[1:]]


@pytest.mark.parametrize("multipathing", [False, True])
def test_nor_through_a_path_that_does_not_answer(said, monkeypatch, multipathing):
    """It comes back with what is stacked on it, and that writes: a map of the other paths does not tell."""
    monkeypatch.setattr(paths, "verify_unused", VERIFY_UNUSED)
    monkeypatch.setattr(holders, "users_of_disks", lambda names, host, answering: [f"the volume MGT on {names[0]}"])

    refused = pytest.raises(Refused, match="through the disk sda that does not answer: the volume MGT on sda")
    with refused, session(lun_of(said, multipathing), to_write=True):
        raise AssertionError("there is no path")

    assert "single path" not in said


def test_a_dead_path_in_the_map_is_for_the_map_to_tell(said, monkeypatch):
    monkeypatch.setattr(paths, "verify_unused", VERIFY_UNUSED)
    monkeypatch.setattr(holders, "users_of_disks", lambda names, host, answering: ["multipath map m"])
    monkeypatch.setattr(multipath, "find_map", lambda _: the_map("sda"))

    with session(lun_of(said, multipathing=True), to_write=True) as nodes:
        assert nodes == ["/dev/mapper/m", "/dev/sdb"]


def test_a_disk_that_the_rules_did_not_hide_is_warned_of(said, monkeypatch, caplog):
    monkeypatch.setattr(hiding, "is_hidden", lambda _: False)
    with session(lun_of(said)):
        pass

    assert "sdb not hidden from event handlers" in caplog.text


@pytest.mark.parametrize("step, error", [("verify", None), ("", OutOfTime), ("", Refused)])
def test_caches_are_dropped_where_a_write_may_have_begun(said, step, error):
    """A disk that does not answer takes all the seconds that there are for it, and its disks are to go yet."""
    with pytest.raises(Refused), session(lun_of(said, fails_at=step), to_write=True):
        raise error("It fails at work.")

    assert ("drop caches" in said) == (error is Refused)


def test_the_paths_to_the_controller_that_owns_the_lun_come_first(said, monkeypatch, tmp_path):
    for disk, state in (("sdb", "active/non-optimized"), ("sdc", "active/optimized")):
        (tmp_path / f"sys/block/{disk}/device").mkdir(parents=True)
        (tmp_path / f"sys/block/{disk}/device/access_state").write_text(state + "\n")
    host = Host(str(tmp_path))
    monkeypatch.setattr(lun_module, "THIS_HOST", host)

    nodes = lun_of(said, multipathing=True)._nodes(["sdb", "sdc", "sdd"], to_write=False)

    assert nodes == [host.node(disk) for disk in ("sdc", "sdd", "sdb")]


class Opened:
    """A path, open until the end of its block."""

    size_bytes, block_size, physical_block_size = 1 << 20, 512, 512

    def __init__(self, node, said):
        self.name, self._said = node, said

    def __enter__(self):
        self._said.append("open " + self.name)
        return self

    def __exit__(self, *_):
        self._said.append("close " + self.name)


@pytest.mark.parametrize("writes", [False, True])
def test_all_paths_that_are_there_are_open_during_the_work(monkeypatch, writes):
    said, name = [], ("3600a", "serial")

    def open_device(node, writable, **_):
        assert writable is writes
        if node == "/dev/sdb":
            raise NotFound("It has gone.")
        return Opened(node, said)

    def work(device):
        said.append("work on " + device.name)
        return "answer"

    monkeypatch.setattr(lun_module, "open_device", open_device)
    nodes, begin = ["/dev/sdb", "/dev/sdc", "/dev/sdd"], lambda: None
    if writes:
        assert lun_module._written(nodes, work, name, Deadline(50, Clock()), begin) == "answer"
    else:
        assert lun_module._read(nodes, work, begin) == "answer"
    opened = ["open /dev/sdc", "open /dev/sdd"]
    assert said == [*opened, "work on /dev/sdc", "close /dev/sdd", "close /dev/sdc"]

    nothing = lun_module._opened(["/dev/sdb"], partial(open_device, writable=writes))
    with pytest.raises(NotFound, match="It has gone"), nothing:
        raise AssertionError("there is no path")


@pytest.mark.parametrize("step", ["bring", "disks", "verify"])
def test_whatever_fails_what_was_done_is_taken_back_in_order(said, step):
    with pytest.raises(Refused, match="It fails here"), session(lun_of(said, fails_at=step)):
        raise AssertionError("there is no path")

    assert said[said.index(step) + 1 :] == AFTER


@pytest.mark.parametrize("step", ["bring", ""], ids=["after a failure", "after its use"])
def test_what_is_taken_back_is_taken_back_to_the_end_although_the_call_is_told_to_end(said, monkeypatch, step):
    lun = lun_of(said, fails_at=step)
    bring = lun.discovery.bring
    monkeypatch.setattr(
        lun.discovery, "bring", lambda stack: (stack.callback(os.kill, os.getpid(), signal.SIGTERM), bring(stack))
    )

    with heeded(), suppress(Refused), session(lun):
        said.append("used")

    assert ("used" in said) == (not step) and said[-1] == AFTER[-1]


def test_a_call_that_does_not_get_the_lock_finishes_nothing(said, monkeypatch):
    def busy(*_, **__):
        raise Refused("It is locked.")

    monkeypatch.setattr(sm_locks, "lun_lock", busy)
    with pytest.raises(Refused, match="It is locked"), session(lun_of(said)):
        raise AssertionError("there is no path")

    assert said == []


@pytest.mark.parametrize(
    "failure, logged",
    [
        (Refused("The disk stays."), "the removal failed: The disk stays."),
        (RuntimeError("KeyError('flowers')"), "the removal failed, by a bug"),
    ],
    ids=["a failure", "a bug in a process of its own"],
)
def test_a_cleanup_that_fails_is_logged_and_the_next_one_follows(caplog, failure, logged):
    def fail():
        raise failure

    quietly("the removal", fail)

    assert logged in caplog.text


def test_a_cleanup_in_the_middle_of_a_call_comes_to_its_end_before_the_call_does():
    said = []

    def clean_up():
        os.kill(os.getpid(), signal.SIGTERM)
        pause(0)
        said.append("done")

    with pytest.raises(Terminated), heeded():
        quietly("taking away what a scan has brought", clean_up)
        pause(0)
        said.append("beyond")

    assert said == ["done"]
