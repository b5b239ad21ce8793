# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN is held on this host while it is written past its disks, and this host looks at it anew afterwards."""

import errno
import fcntl
import logging
import os
import time

import pytest

from kit.clock import Clock, over_after
from kit.udev_world import LUN, OTHER, UdevWorld, waiting_with
from relvmoiscsi.deadline import NO_DEADLINE, Deadline, OutOfTime
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import exclusive, holders, paths, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.kernel_disks import exclusive_open

pytestmark = pytest.mark.processes


class World(UdevWorld):
    """A host whose disks are files; udev writes its entry of a device anew when somebody waits for that.

    udev passes over a device that is locked.
    """

    def __init__(self, root):
        super().__init__(root)
        self.host = self.host._replace(wait_for=waiting_with(*[self._udev_works] * 20))
        self.ids = {}  #: what each node says of itself now: a SCSIid, or an action
        self.dropped = []  #: of which page caches went, and whether somebody else could lock the disk then
        self.entries = 0

    def has_disks(self, *names, state="running"):
        """sdb has the number 8:16, and so on."""
        for name in names:
            number = f"8:{16 * (ord(name[-1]) - ord('a'))}"
            self.has_disk(name, number)
            self.put(f"sys/block/{name}/device/state", state + "\n")
            self.udev_knows(number, "I:1000000")
            self.ids[name] = LUN

    def has_map_of(self, name, number, *disks):
        self.has_map(name, number)
        self.udev_knows(number, "I:1000000")
        self.put("dev/" + name)
        self.ids[name] = LUN
        for disk in disks:
            self.put(f"sys/block/{name}/slaves/{disk}/dev")

    def _udev_works(self):
        for path in (self.root / "sys/block").glob("*/uevent"):
            if path.read_text() and not self.is_locked(path.parent.name):
                number = (path.parent / "dev").read_text().strip()
                self.entries += 1
                self.udev_knows(number + ".new", "I:1000000", f"N:{self.entries}")
                os.rename(str(self.root / f"run/udev/data/b{number}.new"), str(self.root / f"run/udev/data/b{number}"))

    def events(self):
        return {path.parent.name for path in (self.root / "sys/block").glob("*/uevent") if path.read_text() == "change"}

    def node(self, name):
        return str(self.root / "dev" / name)

    def is_locked(self, name):
        with open(self.node(name), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)

    def live(disk):
        found = world.ids[os.path.basename(disk.name)]
        return found() if callable(found) else found

    def drop_caches(names, deadline, host):
        world.dropped += [(name, world.is_locked(name)) for name in names]

    monkeypatch.setattr(scsi, "live_scsi_id", live)
    monkeypatch.setattr(scsi, "live_size", lambda path: 4096)
    monkeypatch.setattr(scsi, "live_serial", lambda path: "serial")
    monkeypatch.setattr(os, "O_DIRECT", 0)
    monkeypatch.setattr(paths, "drop_caches", drop_caches)
    return world


def test_a_lun_that_this_host_does_not_see_is_held_by_nobody_and_no_event_is_made(world):
    with exclusive_open(LUN, NO_DEADLINE, world.host) as found:
        assert found == []

    assert (world.dropped, world.events()) == ([], set())


def test_each_disk_is_held_until_its_page_cache_is_gone_and_then_udev_looks_at_it(world, monkeypatch):
    world.has_disks("sdb", "sdc")
    flags = []

    def open_file(path, how, writable, deadline, real=exclusive.open_file):
        flags.append(how & (os.O_ACCMODE | os.O_EXCL))
        return real(path, how, writable, deadline=deadline)

    monkeypatch.setattr(exclusive, "open_file", open_file)
    with pytest.raises(ZeroDivisionError), exclusive_open(LUN, NO_DEADLINE, world.host) as found:
        assert found == [world.node("sdb"), world.node("sdc")]
        assert world.is_locked("sdb") and world.is_locked("sdc")
        assert world.events() == set()
        raise ZeroDivisionError  # it goes on its way

    assert world.dropped == [("sdb", True), ("sdc", True)]
    assert world.events() == {"sdb", "sdc"} and world.entries >= 2
    assert not world.is_locked("sdb") and not world.is_locked("sdc")
    assert flags == [os.O_RDONLY | os.O_EXCL] * 2, "to read, and for itself"


def test_a_device_that_the_caller_opens_itself_is_left_out_with_its_paths(world):
    world.has_disks("sdb", "sdc")

    with exclusive_open(LUN, NO_DEADLINE, world.host, but="sdb") as found:
        assert found == [world.node("sdc")]

    assert (world.dropped, world.events()) == ([("sdc", True)], {"sdc"})
    world.has_map_of("dm-0", "253:0", "sdb", "sdc")
    with exclusive_open(LUN, NO_DEADLINE, world.host, but="dm-0") as found:
        assert found == []


def test_a_map_is_held_in_the_place_of_its_paths_and_all_are_looked_at_again(world):
    world.has_disks("sdb", "sdc", "sdd")  # sdd is no path of the map
    world.has_map_of("dm-3", "254:3", "sdb", "sdc")

    with exclusive_open(LUN, NO_DEADLINE, world.host) as found:
        assert found == [world.node("dm-3"), world.node("sdd")]
        assert not world.is_locked("sdb")

    assert world.events() == {"sdb", "sdc", "sdd", "dm-3"}


def test_what_comes_in_the_meantime_is_looked_at_as_well_and_what_has_gone_is_not_waited_for(world, caplog):
    world.has_disks("sdc")
    with exclusive_open(LUN, NO_DEADLINE, world.host):
        del world.ids["sdc"]
        world.loses("sdc")
        world.has_disks("sdb")

    assert [name for name, _ in world.dropped] == ["sdb"] and world.events() == {"sdb"}
    assert f"sdb came while the LUN {LUN} was written, and was not held" in caplog.text


@pytest.mark.parametrize("error", [Refused("no"), OSError(errno.EIO, "no"), ValueError("a bug")])
def test_a_failure_afterwards_is_logged_and_hides_nothing(world, monkeypatch, caplog, error):
    def fails(*_words):
        raise error

    world.has_disks("sdb")
    monkeypatch.setattr(paths, "drop_caches", fails)
    monkeypatch.setattr(udev, "look_again", fails)
    with exclusive_open(LUN, NO_DEADLINE, world.host):
        pass

    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [message.split(" failed")[0] for message in messages] == [
        "dropping page caches", "having udev look at the LUN again",
    ]  # fmt: skip
    assert not world.is_locked("sdb")


def test_the_time_of_the_call_is_over_and_all_is_looked_at(world):
    world.has_disks("sdb")
    clock = Clock()
    deadline = Deadline(50, clock)
    with exclusive_open(LUN, deadline, world.host):
        clock.now += 60

    assert deadline.has_passed and world.events() == {"sdb"}


# --- who is in the way


def test_a_disk_in_use_is_refused_and_the_others_are_free_again(world, monkeypatch):
    world.has_disks("sdb", "sdc")

    def take_alone(path, *how, real=exclusive.take_alone):
        if path.endswith("sdc"):
            raise Refused(f"{path} is in use by process 1 (tar).").in_state("Nothing was written.")
        real(path, *how)

    monkeypatch.setattr(exclusive, "take_alone", take_alone)
    refused = pytest.raises(Refused, match="sdc is in use by process 1 .tar.. Nothing was written")
    with refused as error, exclusive_open(LUN, NO_DEADLINE, world.host):
        pytest.fail("it is in use")

    assert error.value.sm_key == "SRInUse"
    assert not world.is_locked("sdb") and (world.dropped, world.events()) == ([], set())


def test_a_path_that_is_known_to_be_dead_is_not_asked_nor_opened_nor_looked_at(world):
    world.has_disks("sdb")
    world.has_disks("sdc", state="transport-offline")
    world.ids["sdc"] = lambda: time.sleep(6000)

    with exclusive_open(LUN, NO_DEADLINE, world.host) as found:
        assert found == [world.node("sdb")]

    assert world.events() == {"sdb"}


def test_a_path_that_does_not_answer_is_given_up(world, monkeypatch):
    monkeypatch.setattr(paths, "ANSWER_SECONDS", 600)
    world.has_disks("sdb", "sdc")
    world.ids["sdc"] = lambda: time.sleep(6000)

    with exclusive_open(LUN, Deadline(6000, over_after(1, monkeypatch)), world.host) as found:
        assert found == [world.node("sdb")]


def test_who_uses_the_lun_through_a_dead_path_is_refused(world, monkeypatch):
    world.has_disks("sdc", state="blocked")
    monkeypatch.setattr(holders, "users_of_disks", lambda names, *_, **__: [f"the volume MGT on {names[0]}"])

    refused = pytest.raises(Refused, match="through the disk sdc that does not answer: the volume MGT on sdc.*Nothing")
    with refused, exclusive_open(LUN, NO_DEADLINE, world.host):
        pytest.fail("it is in use")


@pytest.mark.parametrize("dead", [True, False])
def test_the_search_for_users_ends_with_the_call_also_of_a_path_that_does_not_answer(world, dead):
    """Each user of the host can have so many descriptors that a search takes minutes."""
    world.put("proc/40/mountinfo", "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n")
    if dead:
        world.has_disks("sdc", state="blocked")
    else:
        world.has_map_of("dm-3", "253:3")

    refused = pytest.raises(OutOfTime, match="^The 0 seconds of the search for programs.* are over.*Nothing was writ")
    with refused, exclusive_open(LUN, Deadline(0), world.host):
        pytest.fail("nobody knows who uses it")


def test_a_disk_that_is_another_lun_by_now_is_left_alone(world, caplog):
    world.has_disks("sdb")
    world.ids["sdb"] = OTHER

    with exclusive_open(LUN, NO_DEADLINE, world.host) as found:
        assert found == []

    assert f"the disk sdb was the LUN {LUN} when this host found it, and is {OTHER} now" in caplog.text


# --- udev


def test_udev_is_at_the_first_event_of_a_disk_before_it_is_asked_again(world):
    world.has_disks("sdb")
    os.unlink(str(world.root / "run/udev/data/b8:16"))
    told = []

    def first():
        told.append(world.events())
        world.udev_knows("8:16", "I:1000000")

    waits = iter([waiting_with(first), waiting_with(world._udev_works)])
    host = world.host._replace(wait_for=lambda *words: next(waits)(*words))  # noqa: PLW0108 - another for each
    udev.look_again(["sdb"], 5, host)

    assert told == [set()] and world.events() == {"sdb"}


def test_an_entry_that_is_not_written_anew_is_refused_when_the_time_is_up_but_a_disk_that_goes_is_not_waited_for(world):
    world.has_disks("sdb")

    with pytest.raises(Refused, match="udev has not looked at sdb again within 0.1 seconds"):
        udev.look_again(["sdb"], 0.1, world.host._replace(wait_for=waiting_with()))
    assert world.events() == {"sdb"}
    udev.look_again(["sdb"], 5, world.host._replace(wait_for=waiting_with(lambda: world.loses("sdb"))))


def test_where_udev_does_not_run_nobody_is_asked_nor_waited_for(world):
    world.has_disks("sdb")
    os.unlink(str(world.root / "run/udev/control"))
    os.unlink(str(world.root / "run/udev/data/b8:16"))
    host = world.host._replace(wait_for=lambda *_: pytest.fail("it waits"))

    udev.settle(["sdb"], 1000, host=host)
    udev.look_again(["sdb"], 5, host)
    assert world.events() == set()


# --- disks are found without udev, and it is waited for


def test_all_paths_of_a_lun_are_found_in_the_order_in_which_they_came(world):
    for name, number in (("sdaa", "65:160"), ("sdb", "8:16"), ("sda", "8:0")):
        world.has_disk(name, number)
    world.has_disk("sdc", "8:32", scsi_id=OTHER)
    world.has_disk("sdd", "8:48", node=False)  # is not there yet
    world.has_map("dm-0", "254:0")

    assert udev.disks_of(LUN, world.host) == ["sda", "sdb", "sdaa"]
    assert udev.disks_of("3600140500000000000000000000000000", world.host) == []


def test_a_disk_that_udev_is_at_is_waited_for_until_it_is_in_the_database_or_gone(world):
    world.has_disk("sda", "8:0")
    steps = [
        lambda: world.udev_knows("8:0", "E:ID_BUS=scsi"),
        lambda: world.udev_knows("8:0", "S:disk/by-diskseq/20", "I:186177866", "E:ID_BUS=scsi", "V:1"),
    ]
    nothing_comes = world.host._replace(wait_for=waiting_with())

    udev.settle(["sda"], host=world.host._replace(wait_for=waiting_with(*steps)))
    udev.settle(["sda"], host=nothing_comes)
    with pytest.raises(Refused, match="did not handle sda within 0 seconds. Either the disk does not answer: "):
        udev.settle(["sda"], 0, since=186.2, host=nothing_comes)  # what an earlier disk of that number left
    udev.settle(["sda"], 0, since=186.2, known=["sda"], host=nothing_comes)
    udev.settle(["sda"], 0, since=186.1, host=nothing_comes)
    world.udev_knows("8:0")
    udev.settle(["sda"], host=world.host._replace(wait_for=waiting_with(lambda: world.loses("sda"))))
    udev.settle(["sda"], host=nothing_comes)


def test_a_database_that_cannot_be_read_is_not_an_empty_one(world):
    world.has_disk("sda", "8:0")
    (world.root / "run/udev/data/b8:0").mkdir(parents=True)

    with pytest.raises(NotFound, match="The entry of sda in udev's database cannot be read"):
        udev.database("sda", world.host)


def test_the_disks_stay_locked_for_a_child_that_still_writes(world):
    """The parent gives up what guards a LUN; the child has copies."""
    world.has_disks("sdb")
    with exclusive_open(LUN, NO_DEADLINE, world.host):
        child = [os.dup(descriptor) for descriptor in list(flock.inherited_lock_fds)]
        flock.hand_over_to_child()
        assert world.is_locked("sdb")
        for descriptor in child:
            os.close(descriptor)
        assert not world.is_locked("sdb")
