# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN is hidden, brought, opened and taken back in one order; the rest is tested in VMs."""

import os
import signal
from contextlib import contextmanager, suppress

import pytest

from kit.clock import Clock
from kit.driver_calls import SCSI_ID
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.cleanup import quietly
from relvmoiscsi.host.deadline import Deadline, OutOfTime
from relvmoiscsi.host.disk import holders, multipath, own_maps, paths, udev
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.terminated import Terminated, heeded, pause
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

    def ids_of_pool(self):
        raise AssertionError("nothing is stale")

    def _step(self, name):
        self._said.append(name)
        if name == self._fails_at:
            raise Refused("It fails here.")


def lun_of(said, multipathing=False, fails_at=""):
    told = Told(said, fails_at)
    return HbaLun(told, multipathing, 0.0, told)


def session(lun, meanwhile=lambda: None, to_write=False):
    return lun.device_session(meanwhile, to_write)


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
    monkeypatch.setattr(udev, "hidden", context("hide"))
    monkeypatch.setattr(udev, "settle", told("settle"))
    monkeypatch.setattr(udev, "disks_of", lambda _: ["sda"])
    monkeypatch.setattr(udev, "give_to_multipath", told("give to multipath", ["sda", "sdb"]))
    monkeypatch.setattr(udev, "wait_for_multipath", lambda disks, _: found.extend(f"wait for {disk}" for disk in disks))
    monkeypatch.setattr(udev, "is_hidden", lambda _: True)
    monkeypatch.setattr(udev, "wait_until_shown", lambda *_: True)
    monkeypatch.setattr(own_maps, "look", lambda _: multipath.Before(SCSI_ID, False, False))
    monkeypatch.setattr(own_maps, "stale", lambda _: None)
    monkeypatch.setattr(own_maps, "note", told("note the map"))
    monkeypatch.setattr(own_maps, "clear", told("clear maps"))
    monkeypatch.setattr(multipath, "find_map", lambda _: None)
    monkeypatch.setattr(multipath, "ensure_map", told("map", multipath.Map("dm-0", "m", ("sdb",), "/dev/mapper/m")))
    monkeypatch.setattr(multipath, "flush_map", told("flush"))
    monkeypatch.setattr(paths, "drop_caches", told("drop caches"))
    monkeypatch.setattr(multipath, "single_path", told("single path", "sdb"))
    monkeypatch.setattr(paths, "verify_unused", told("verify unused"))
    return found


BEFORE = ["lock", "hide", "bring"]
AFTER = ["taken back", "end of hide", "end of lock", "clear maps"]


def test_a_lun_is_opened_by_its_only_path(said):
    with session(lun_of(said), meanwhile=lambda: said.append("meanwhile")) as path:
        assert path == "/dev/sdb"
        said.append("work")

    steps = ["meanwhile", "disks", "settle", "verify", "verify unused", "single path", "work"]
    assert said == [*BEFORE, *steps, *AFTER]


@pytest.mark.parametrize("is_new, waited", [(True, [f"wait until {SCSI_ID} is shown"]), (False, [])])
def test_one_that_is_new_is_waited_for_when_all_may_see_it(said, monkeypatch, is_new, waited):
    monkeypatch.setattr(udev, "wait_until_shown", lambda scsi_id, *_: said.append(f"wait until {scsi_id} is shown"))

    lun = lun_of(said)
    with session(lun):
        lun.discovery.is_new = is_new

    assert [word for word in said if "shown" in word] == waited


def test_where_it_is_written_nobody_may_use_it(said):
    with pytest.raises(Refused), session(lun_of(said, fails_at="verify free"), to_write=True):
        raise AssertionError("there is no path")

    before = [*BEFORE[:-1], "ask the other hosts", "bring"]
    assert said == [*before, "disks", "settle", "verify", "verify free", *AFTER]


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

    assert "map" not in said and "single path" not in said


def test_a_dead_path_in_the_map_is_for_the_map_to_tell(said, monkeypatch):
    monkeypatch.setattr(paths, "verify_unused", VERIFY_UNUSED)
    monkeypatch.setattr(holders, "users_of_disks", lambda names, host, answering: ["multipath map m"])
    monkeypatch.setattr(multipath, "find_map", lambda _: multipath.Map("dm-0", "m", ("sda",), "/dev/mapper/m"))

    with session(lun_of(said, multipathing=True), to_write=True) as path:
        assert path == "/dev/mapper/m"


@pytest.mark.parametrize("paths_of_map, warned", [(("sdb",), False), (("sda",), True), (None, True)])
def test_a_path_that_multipathd_has_taken_is_left_to_its_map_by_the_rules(
    said, monkeypatch, caplog, paths_of_map, warned
):
    monkeypatch.setattr(udev, "is_hidden", lambda _: False)
    the_map = multipath.Map("dm-0", "m", paths_of_map, "/dev/mapper/m") if paths_of_map else None
    monkeypatch.setattr(multipath, "find_map", lambda _: the_map)
    with session(lun_of(said, multipathing=True)):
        pass

    assert ("sdb not hidden from event handlers" in caplog.text) == warned


def test_with_multipathing_it_is_opened_by_a_map_that_goes_before_its_disks(said):
    with session(lun_of(said, multipathing=True)) as path:
        assert path == "/dev/mapper/m"

    before = [*BEFORE[:-1], "note the map", "bring", "give to multipath"]
    # sda does not answer
    found = ["disks", "settle", "wait for sdb", "verify", "map"]
    assert said == [*before, *found, "flush", "drop caches", *AFTER]


@pytest.mark.parametrize("step, error", [("verify", None), ("", OutOfTime), ("", Refused)])
def test_caches_are_dropped_where_a_map_may_have_been_written_through(said, step, error):
    """A disk that does not answer takes all the seconds that there are for it, and its disks are to go yet."""
    with pytest.raises(Refused), session(lun_of(said, multipathing=True, fails_at=step)):
        raise error("It fails at work.")

    assert ("drop caches" in said) == (error is Refused) and "flush" in said


def test_after_the_deadline_a_map_that_stays_leaves_time_for_what_follows(said, monkeypatch):
    seconds = []
    monkeypatch.setattr(lun_module, "_multipath", lambda deadline: seconds.append(deadline.left))
    with session(lun_of(said, multipathing=True)):
        pass

    assert seconds == [50, 53]


def test_a_disk_that_came_while_the_lun_was_being_hidden_is_known_to_have_been_there(said, monkeypatch):
    """Another call has brought it: udev may have looked for the switch before that was on."""
    monkeypatch.setattr(udev, "disks_of", lambda _: ["sda"] if "hide" in said else [])
    given = []
    monkeypatch.setattr(udev, "give_to_multipath", lambda disks: given.extend(disks) or [])

    with session(lun_of(said, multipathing=True)):
        pass

    assert given == ["sda"]


@pytest.mark.parametrize("is_over", [False, True])
def test_the_note_of_a_map_goes_when_its_disks_are_gone(said, monkeypatch, is_over):
    """While they are there multipathd may make it again, as it does when a LUN answers at last."""
    monkeypatch.setattr(own_maps, "stale", lambda scsi_id: multipath.Before(scsi_id, False, False))
    monkeypatch.setattr(own_maps, "is_over", lambda scsi_id: is_over and "taken back" in said)
    monkeypatch.setattr(multipath, "find_map", lambda _: multipath.Map("dm-0", "m", ("sdb",), "/dev/mapper/m"))
    monkeypatch.setattr(own_maps, "hand_over", lambda scsi_id: said.append("forget"))

    with session(lun_of(said, multipathing=True)):
        pass

    last = ["flush", "forget"] if is_over else []
    assert said[-len([*last, *AFTER]) - 2 :] == ["flush", "drop caches", AFTER[0], *last, *AFTER[1:]]


def test_a_map_that_a_killed_call_has_left_goes_where_multipathing_is_off_by_now(said, monkeypatch):
    monkeypatch.setattr(own_maps, "stale", lambda scsi_id: multipath.Before(scsi_id, False, False))
    monkeypatch.setattr(own_maps, "hand_over", lambda scsi_id: said.append("forget"))

    with session(lun_of(said)):
        pass

    assert said[:5] == ["lock", "hide", "flush", "forget", "bring"]


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

    assert ("used" in said) == (not step) and said[-1] == "clear maps"


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
