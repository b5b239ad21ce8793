# SPDX-License-Identifier: LGPL-2.1-only
"""Waiting ends with the event, disks are found without udev, and a LUN stays hidden for exactly as long as it should.

The trees and messages are those of a LIO LUN in the test VM (Linux 6.1, udev 252), with the fields that are read.
"""

import base64
import errno
import fcntl
import os
import re
import shutil
import socket
import subprocess
import time
import types
from pathlib import Path

import pytest

from kit.iscsi_world import put_session
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.host.disk import udev
from relvmoiscsi.host.disk.udev import (
    Events,
    NoEvents,
    PyudevEvents,
    SocketEvents,
    System,
    disks_of,
    hidden,
    hidden_target,
    is_hidden,
    listen,
    settle,
    switch_name,
    wait_for,
)

LUN = "36001405993c87c37fa84d02b7fa62c40"
OTHER = "36001405993c87c37fa84d02b7fa62c41"
PAGE_83 = base64.b64decode(
    "AIMApAEDABBgAUBZk8h8N/qE0Ct/pixAAgEANExJTy1PUkcgRklMRUlPOjk5M2M4N2MzLTdmYTgtNGQwMi1iN2ZhLTYyYzQwNDVjZGJlZQBRlAAE"
    "AAAAAVGVAAQAAAAAAQYABAAAAABTmAAgaXFuLjIwMjYtMDEudGVzdDpvbmUsdCwweDAwMDEAAABTqAAYaXFuLjIwMjYtMDEudGVzdDpvbmUAAAAA"
)

#: received from the kernel (group 1): a workqueue, then a disk; and from udev (group 2), with its header
OF_A_WORKQUEUE = (
    b"add@/devices/virtual/workqueue/scsi_tmf_6\0ACTION=add\0DEVPATH=/devices/virtual/workqueue/scsi_tmf_6\0"
    b"SUBSYSTEM=workqueue\0SEQNUM=1321\0"
)
OF_A_DISK = (
    b"add@/devices/platform/host6/session1/target6:0:0/6:0:0:0/block/sda\0ACTION=add\0"
    b"DEVPATH=/devices/platform/host6/session1/target6:0:0/6:0:0:0/block/sda\0SUBSYSTEM=block\0MAJOR=8\0MINOR=0\0"
    b"DEVNAME=sda\0DEVTYPE=disk\0DISKSEQ=11\0SEQNUM=1343\0"
)
OF_A_MAP_FROM_UDEV = base64.b64decode(
    "bGlidWRldgD+7cr+KAAAACgAAABcAQAA8AMdt3vLxe4CAAQAEIAAAFVERVZfREFUQUJBU0VfVkVSU0lPTj0xAEFDVElPTj1hZGQAREVWUEFUSD0v"
    "ZGV2aWNlcy92aXJ0dWFsL2Jsb2NrL2RtLTAAU1VCU1lTVEVNPWJsb2NrAERFVk5BTUU9L2Rldi9kbS0wAERFVlRZUEU9ZGlzawBESVNLU0VRPTEy"
)


class Host:
    """What sysfs, /dev and udev's database would hold."""

    def __init__(self, root):
        self.root = root
        self.run_dir = str(root / "run/relvmoiscsi")
        rules = (str(root / "etc/udev/rules.d"), str(root / "lib/udev/rules.d"))
        self.system = System(str(root / "sys"), str(root / "dev"), str(root / "run/udev"), rules)
        self.put("run/udev/control")
        self.put("lib/udev/rules.d/57-relvmoiscsi.rules", "# rules\n")
        (root / "sys/block").mkdir(parents=True)
        (root / "dev").mkdir()

    def has_disk(self, name, number, scsi_id=LUN, node=True):
        page = PAGE_83.replace(bytes.fromhex(LUN[1:]), bytes.fromhex(scsi_id[1:]))
        self.put(f"sys/block/{name}/device/vpd_pg83", page)
        self.put(f"sys/block/{name}/device/vendor", "LIO-ORG \n")
        self.put(f"sys/block/{name}/device/model", "FILEIO          \n")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/uevent")
        if node:
            self.put("dev/" + name)

    def has_map(self, name, number, scsi_id=LUN):
        self.put(f"sys/block/{name}/dm/uuid", f"mpath-{scsi_id}\n")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/uevent")

    def loses(self, name):
        shutil.rmtree(str(self.root / "sys/block" / name))

    def udev_knows(self, number, *lines):
        self.put("run/udev/data/b" + number, "\n".join(lines) + "\n")

    def put(self, path, content=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def event_of(self, name):
        return (self.root / "sys/block" / name / "uevent").read_text()

    def hides(self):
        directory = Path(self.run_dir) / "hide"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else None


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class Scripted(Events):
    """Events that change the world as the test says, one step each; then none come."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.waits = []
        self.closed = False

    def __call__(self, _subsystem):
        return self

    def wait(self, seconds):
        self.waits.append(seconds)
        if self.steps:
            self.steps.pop(0)()

    def close(self):
        self.closed = True


def waiting_with(*steps):
    def wait(condition, timeout_seconds, subsystem="block"):
        return wait_for(condition, timeout_seconds, subsystem, Scripted(*steps))

    return wait


# --- waiting


def test_what_is_there_already_needs_no_event():
    events = Scripted()

    assert wait_for(lambda: ["sdb"], 10, listen=events) == ["sdb"]
    assert events.waits == [] and events.closed


def test_listening_begins_before_the_first_look():
    order = []

    def listening(subsystem):
        order.append("listen to " + subsystem)
        return Scripted()

    wait_for(lambda: order.append("look") or True, 10, "scsi", listening)

    assert order == ["listen to scsi", "look"]


def test_each_event_is_a_look_and_the_value_is_given_back():
    found = []
    events = Scripted(lambda: None, lambda: found.append("sdb"))

    assert wait_for(lambda: found, 10, listen=events) == ["sdb"]
    assert len(events.waits) == 2


def test_no_wait_is_longer_than_the_time_between_two_looks_or_than_what_is_left():
    events = Scripted(lambda: None, lambda: time.sleep(0.2))

    assert wait_for(lambda: None, 0.15, listen=events) is None
    assert all(0 < seconds <= 0.15 for seconds in events.waits) and events.closed

    events = Scripted(*[lambda: None] * 5)
    count = iter(range(6))
    wait_for(lambda: next(count) == 5, 1000, listen=events)
    assert max(events.waits) == udev.RECHECK_SECONDS


def test_without_time_it_is_still_looked_once():
    assert wait_for(lambda: "there", 0, listen=Scripted()) == "there"
    assert wait_for(lambda: "", 0, listen=Scripted()) is None


def test_a_failing_condition_ends_the_wait_and_the_listening():
    events = Scripted()

    with pytest.raises(NotFound):
        wait_for(lambda: fail(NotFound("gone")), 10, listen=events)
    assert events.closed


def fail(error):
    raise error


# --- listening


class Socket:
    """A socket that gives these messages, or errors, and is readable as long as there are any."""

    def __init__(self, *messages, bind_error=None):
        self.messages = list(messages)
        self.bind_error = bind_error
        self.readable, self.signal = os.pipe()
        self.calls = []
        if messages:
            os.write(self.signal, b"x")

    def __call__(self, *kind):
        self.calls.append(("socket", *kind))
        return self

    def setsockopt(self, *option):
        self.calls.append(("setsockopt", *option))

    def bind(self, address):
        self.calls.append(("bind", address))
        if self.bind_error:
            raise self.bind_error

    def fileno(self):
        return self.readable

    def recv(self, size):
        message = self.messages.pop(0) if self.messages else BlockingIOError(errno.EAGAIN, "empty")
        if isinstance(message, OSError):
            raise message
        return message[:size]

    def close(self):
        self.calls.append(("close",))
        os.close(self.readable)
        os.close(self.signal)


def test_both_groups_are_listened_to():
    fake = Socket()

    SocketEvents("block", fake).close()

    assert fake.calls[0] == ("socket", 16, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 15)
    assert fake.calls[-2:] == [("bind", (0, 3)), ("close",)]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([OF_A_DISK], id="from the kernel"),
        pytest.param([OF_A_MAP_FROM_UDEV], id="from udev, behind its header"),
        pytest.param([OF_A_WORKQUEUE, OF_A_DISK, OF_A_WORKQUEUE], id="among others"),
        pytest.param([OSError(errno.ENOBUFS, "lost"), OF_A_WORKQUEUE], id="lost ones may have been of that kind"),
    ],
)
def test_an_event_of_the_subsystem_ends_the_wait_and_all_are_read(messages):
    fake = Socket(*messages)
    events = SocketEvents("block", fake)
    began = time.monotonic()

    events.wait(60)

    assert time.monotonic() - began < 30 and fake.messages == []
    events.close()


def test_events_of_other_subsystems_do_not_end_the_wait():
    fake = Socket(OF_A_WORKQUEUE)
    events = SocketEvents("block", fake)
    os.read(fake.readable, 1)
    began = time.monotonic()

    events.wait(0.05)

    assert time.monotonic() - began >= 0.05 and fake.messages == []
    events.close()


def test_other_errors_of_the_socket_go_through():
    events = SocketEvents("block", Socket(OSError(errno.EBADF, "closed")))

    with pytest.raises(OSError, match="closed"):
        events.wait(1)
    events.close()


def test_a_socket_that_cannot_be_bound_is_closed():
    fake = Socket(bind_error=PermissionError(errno.EPERM, "no"))

    with pytest.raises(PermissionError):
        SocketEvents("block", fake)
    assert fake.calls[-1] == ("close",)


class Pyudev:
    """pyudev as it is used, with devices that have come."""

    def __init__(self, *devices):
        self.devices = list(devices)
        self.asked = []
        self.Monitor = self

    def Context(self):
        return "context"

    def from_netlink(self, context, source):
        assert (context, source) == ("context", "udev")
        return self

    def filter_by(self, subsystem):
        self.asked.append(subsystem)

    def start(self):
        self.asked.append("start")

    def poll(self, timeout):
        self.asked.append(timeout)
        return self.devices.pop(0) if self.devices else None


def test_pyudev_is_asked_for_what_udev_has_handled_until_nothing_is_left():
    pyudev = Pyudev("sda", "sdb")
    events = PyudevEvents(pyudev, "block")

    events.wait(5)
    events.close()

    assert pyudev.asked == ["block", "start", 5, 0, 0]


@pytest.mark.parametrize(
    "library, kind",
    [
        pytest.param(Pyudev(), PyudevEvents, id="pyudev"),
        pytest.param(ImportError("No module named pyudev"), SocketEvents, id="without pyudev"),
        pytest.param(ImportError("No library named udev"), SocketEvents, id="pyudev without libudev"),
        pytest.param(types.SimpleNamespace(), SocketEvents, id="another pyudev"),
    ],
)
def test_the_best_way_to_listen_is_taken(library, kind, monkeypatch):
    monkeypatch.setattr(udev.importlib, "import_module", lambda _: library_or_failure(library))
    monkeypatch.setattr(SocketEvents, "__init__", lambda _self, _subsystem: None)

    assert type(listen("block")) is kind


def library_or_failure(library):
    if isinstance(library, Exception):
        raise library
    return library


def test_without_any_events_there_are_short_waits(monkeypatch):
    monkeypatch.setattr(udev.importlib, "import_module", lambda _: library_or_failure(ImportError()))
    monkeypatch.setattr(SocketEvents, "__init__", lambda _self, _subsystem: fail(PermissionError(errno.EPERM, "no")))

    events = listen("block")
    events.wait(0.01)
    events.close()

    assert type(events) is NoEvents and events.recheck_seconds < udev.RECHECK_SECONDS


def test_the_kernel_gives_such_a_socket():
    try:
        events = SocketEvents("block")
    except OSError as error:
        pytest.skip(f"no uevents here: {error}")
    events.wait(0)
    events.close()


# --- disks


def test_all_paths_of_a_lun_are_found_in_the_order_in_which_they_came(host):
    for name, number in (("sdaa", "65:160"), ("sdb", "8:16"), ("sda", "8:0")):
        host.has_disk(name, number)
    host.has_disk("sdc", "8:32", scsi_id=OTHER)
    host.has_map("dm-0", "254:0")

    assert disks_of(LUN, host.system) == ["sda", "sdb", "sdaa"]
    assert disks_of("3600140500000000000000000000000000", host.system) == []


def test_a_disk_without_its_node_is_not_there_yet(host):
    host.has_disk("sda", "8:0", node=False)

    assert disks_of(LUN, host.system) == []


# --- settling


def test_a_disk_in_udevs_database_is_settled(host):
    host.has_disk("sda", "8:0")
    host.udev_knows("8:0", "S:disk/by-diskseq/20", "I:186177866", "E:ID_BUS=scsi", "V:1")

    settle(["sda"], system=host.system, wait_for=waiting_with())


def test_a_disk_that_udev_is_at_is_waited_for(host):
    host.has_disk("sda", "8:0")
    steps = [
        lambda: host.udev_knows("8:0", "E:ID_BUS=scsi"),
        lambda: host.udev_knows("8:0", "I:186177866", "E:ID_BUS=scsi"),
    ]

    settle(["sda"], system=host.system, wait_for=waiting_with(*steps))

    host.loses("sda")
    settle(["sda"], system=host.system, wait_for=waiting_with())


def test_what_the_database_has_of_an_earlier_disk_of_that_number_does_not_count(host):
    host.has_disk("sda", "8:0")
    host.udev_knows("8:0", "I:186177866")

    with pytest.raises(Refused, match="did not handle sda within 0 seconds. Either the disk does not answer, "):
        settle(["sda"], 0, since=186.2, system=host.system, wait_for=waiting_with())
    settle(["sda"], 0, since=186.2, known=["sda"], system=host.system, wait_for=waiting_with())
    settle(["sda"], 0, since=186.1, system=host.system, wait_for=waiting_with())


def test_a_disk_that_goes_away_while_it_is_waited_for_is_settled(host):
    host.has_disk("sda", "8:0")

    settle(["sda"], system=host.system, wait_for=waiting_with(lambda: host.loses("sda")))


def test_where_udev_does_not_run_there_is_nothing_to_wait_for(host):
    host.has_disk("sda", "8:0")
    (host.root / "run/udev/control").unlink()

    settle(["sda"], 1000, system=host.system, wait_for=lambda *_: pytest.fail("it waits"))


def test_a_database_that_cannot_be_read_is_not_an_empty_one(host):
    host.has_disk("sda", "8:0")
    (host.root / "run/udev/data/b8:0").mkdir(parents=True)

    with pytest.raises(NotFound, match="What udev knows of sda cannot be read"):
        is_hidden("sda", host.system)


# --- the switch


def test_a_lun_is_hidden_for_as_long_as_the_block_runs(host):
    with hidden(LUN, host.run_dir, system=host.system):
        assert host.hides() == [LUN, "mpath-" + LUN]
        switch = Path(host.run_dir) / "hide" / LUN
        assert switch.read_text() == f"{os.getpid()}\n"
        assert not can_be_locked(switch)
        assert os.path.samefile(str(switch), str(switch.with_name("mpath-" + LUN)))

    assert host.hides() is None
    assert os.listdir(host.run_dir) == []


def can_be_locked(path):
    """What the rules ask: may one have a shared lock, or does the owner live?"""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_with_multipathing_the_rules_are_told_that_the_map_is_wanted(host):
    with hidden(LUN, host.run_dir, multipath=True, system=host.system):
        assert host.hides() == [LUN, "mpath-" + LUN, "paths-" + LUN]
    assert host.hides() is None


def test_the_switch_goes_also_when_the_block_fails(host):
    with pytest.raises(NotFound), hidden(LUN, host.run_dir, system=host.system):
        raise NotFound("no such LUN")

    assert host.hides() is None


def test_two_luns_are_hidden_independently(host):
    with hidden(LUN, host.run_dir, system=host.system):
        with hidden(OTHER, host.run_dir, system=host.system):
            assert host.hides() == sorted([LUN, OTHER, "mpath-" + LUN, "mpath-" + OTHER])
        assert host.hides() == [LUN, "mpath-" + LUN]


def test_a_lun_is_hidden_by_one_process_only_and_the_other_is_told_by_which(host):
    with hidden(LUN, host.run_dir, system=host.system):
        before = inode_of_switch(host)
        by_another = pytest.raises(Refused, match=f"^LUN {LUN} is being worked on by ")
        with by_another, hidden(LUN, host.run_dir, system=host.system):
            pytest.fail("it was hidden twice")
        assert inode_of_switch(host) == before and not can_be_locked(Path(host.run_dir) / "hide" / LUN)


def inode_of_switch(host):
    return os.stat(os.path.join(host.run_dir, "hide", LUN)).st_ino


def test_what_a_killed_process_left_over_is_replaced_and_cleared(host):
    for name in (LUN, "mpath-" + LUN, "paths-" + LUN, OTHER):
        host.put("run/relvmoiscsi/hide/" + name, "4711\n")

    with hidden(LUN, host.run_dir, system=host.system):
        assert host.hides() == [LUN, "mpath-" + LUN]
        assert not can_be_locked(Path(host.run_dir) / "hide" / LUN)
    assert host.hides() is None


def test_a_switch_that_somebody_removed_is_no_failure_of_the_run(host, caplog):
    with hidden(LUN, host.run_dir, system=host.system):
        shutil.rmtree(host.run_dir)

    assert "could not be removed" in caplog.text


def test_a_file_that_is_not_ours_stays_and_so_does_the_directory(host):
    with hidden(LUN, host.run_dir, system=host.system):
        held = (Path(host.run_dir) / "hide" / "3other").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)

    assert host.hides() == ["3other"]
    held.close()


def test_a_directory_that_cannot_be_made_is_a_refusal(host):
    host.put("run/relvmoiscsi", "a file")

    refused = pytest.raises(Refused, match="cannot be hidden from event handlers")
    with refused, hidden(LUN, host.run_dir, system=host.system):
        pytest.fail("it was hidden")


def test_without_the_rules_nothing_could_be_hidden(host):
    os.unlink(str(host.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))

    refused = pytest.raises(Refused, match="no 57-relvmoiscsi.rules in .*Nothing was written")
    with refused, hidden(LUN, host.run_dir, system=host.system):
        pytest.fail("it was hidden")
    assert not os.path.exists(host.run_dir)


def test_rules_that_are_switched_off_hide_nothing(host):
    (host.root / "etc/udev/rules.d").mkdir(parents=True)
    os.symlink(os.devnull, str(host.root / "etc/udev/rules.d/57-relvmoiscsi.rules"))

    with pytest.raises(Refused, match="57-relvmoiscsi.rules is empty"), hidden(LUN, host.run_dir, system=host.system):
        pytest.fail("it was hidden")


def test_without_udev_the_rules_are_not_missed(host):
    os.unlink(str(host.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))
    os.unlink(str(host.root / "run/udev/control"))

    with hidden(LUN, host.run_dir, system=host.system):
        assert os.path.exists(os.path.join(host.run_dir, "hide", LUN))


def test_a_switch_that_could_be_made_in_part_only_counts_for_nothing(host, monkeypatch):
    real_link = os.link

    def link(source, target):
        if os.path.basename(target) == LUN:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_link(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Refused, match="No space left on device"), hidden(LUN, host.run_dir, system=host.system):
        pytest.fail("it was hidden")

    assert can_be_locked(Path(host.run_dir) / "hide" / ("mpath-" + LUN))


def test_processes_change_the_switches_one_after_the_other(host, monkeypatch):
    monkeypatch.setattr(udev, "LOCK_SECONDS", 0.01)
    os.makedirs(host.run_dir)
    descriptor = os.open(host.run_dir, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(Refused, match="was not free within 0.01 seconds"), hidden(LUN, host.run_dir):
        pytest.fail("it was hidden")
    os.close(descriptor)


# --- the switch of a target

IQN = "iqn.2026-01.test:open"


def has_session(host, iqn=IQN, number="8:48"):
    """A session with the disk sdd (and others), which udev has hidden."""
    put_session(str(host.root), 1, iqn)
    host.put("sys/devices/platform/host6/session1/target6:0:0/6:0:0:7/block/sdd/dev", number + "\n")
    host.put("sys/devices/platform/host6/session1/target6:0:0/6:0:0:7/block/sdd/uevent")
    host.udev_knows(number, "I:186177866", "E:RELVMOISCSI_HIDDEN=all")


def test_a_target_is_hidden_for_as_long_as_the_block_runs(host):
    with hidden_target(IQN, host.run_dir, host.system):
        (name,) = host.hides()
        assert re.match(r"target-[0-9a-f]{8}-" + re.escape(IQN) + r"\Z", name)
        assert not can_be_locked(Path(host.run_dir) / "hide" / name)

    assert host.hides() is None


def test_several_calls_hide_a_target_each_for_itself(host):
    with hidden_target(IQN, host.run_dir, host.system):
        with hidden_target(IQN, host.run_dir, host.system), hidden(LUN, host.run_dir, system=host.system):
            assert len(host.hides()) == 4
        assert len(host.hides()) == 1


def test_disks_of_the_target_that_are_still_there_are_shown_again(host):
    has_session(host)
    with hidden_target(IQN, host.run_dir, host.system):
        assert host.event_of("sdd") == ""

    assert host.event_of("sdd") == "change"


def test_disks_of_other_targets_are_left_alone(host):
    has_session(host, "iqn.2026-01.test:open2")
    with hidden_target(IQN, host.run_dir, host.system):
        pass

    assert host.event_of("sdd") == ""


def test_a_disk_that_udev_does_not_tell_of_is_only_logged(host, caplog):
    has_session(host)
    with hidden_target(IQN, host.run_dir, host.system):
        (host.root / "run/udev/data/b8:48").unlink()
        (host.root / "run/udev/data/b8:48").mkdir()

    assert "was not asked to look at sdd again" in caplog.text


@pytest.mark.parametrize("iqn", ["", "iqn.x y", "iqn.*", "iqn/..", "iqn'x", "x" * 224])
def test_what_a_rule_cannot_look_for_is_no_iqn(host, iqn):
    with pytest.raises(UsageError, match="is no IQN"), hidden_target(iqn, host.run_dir, host.system):
        pytest.fail("it was hidden")


def test_without_the_rules_no_target_is_hidden(host):
    os.unlink(str(host.root / "lib/udev/rules.d/57-relvmoiscsi.rules"))

    with pytest.raises(Refused, match="LUNs? behind"), hidden_target(IQN, host.run_dir, host.system):
        pytest.fail("it was hidden")


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)")
def test_the_program_of_the_rule_knows_the_disks_of_a_hidden_target(host):
    """It succeeds when the disk is none of such a target: then the rule leaves it alone."""
    has_session(host)
    devpath = "/devices/platform/host6/session1/target6:0:0/6:0:0:7/block/sdd"

    def is_left_alone():
        (program,) = re.findall(r"PROGRAM==\"/bin/sh -c '(.*)'\", GOTO", RULES[0].read_text(encoding="utf-8"))
        program = program.replace("$$", "$").replace("$devpath", devpath)
        program = program.replace("/sys/", str(host.root / "sys") + "/").replace("/run/relvmoiscsi", host.run_dir)
        return subprocess.run(["/bin/sh", "-c", program], check=False).returncode == 0

    assert is_left_alone()
    for iqn in (IQN + "2", IQN[:-1], "2026-01.test:open"):
        with hidden_target(iqn, host.run_dir, host.system):
            assert is_left_alone(), iqn
    host.put("run/relvmoiscsi/hide/target-00000000-" + IQN, "of a process that was killed\n")
    assert is_left_alone()
    with hidden_target(IQN, host.run_dir, host.system):
        assert not is_left_alone()
    assert is_left_alone()


# --- and what is seen afterwards


def test_disks_and_map_that_were_hidden_are_shown_again(host):
    host.has_disk("sda", "8:0")
    host.has_disk("sdb", "8:16")
    host.has_disk("sdc", "8:32", scsi_id=OTHER)
    host.has_map("dm-0", "254:0")
    host.has_map("dm-1", "254:1", scsi_id=OTHER)
    with hidden(LUN, host.run_dir, system=host.system):
        for number in ("8:0", "8:32", "254:0", "254:1"):
            host.udev_knows(number, "I:186177866", "E:RELVMOISCSI_HIDDEN=all")
        host.udev_knows("8:16", "I:186177866", "E:DM_MULTIPATH_DEVICE_PATH=1")
        assert is_hidden("sda", host.system) and not is_hidden("sdb", host.system)

    assert [host.event_of(name) for name in ("sda", "sdb", "sdc", "dm-0", "dm-1")] == ["change", "", "", "change", ""]


def test_a_disk_that_goes_at_that_moment_or_cannot_be_read_is_no_failure(host, caplog):
    host.has_disk("sda", "8:0")
    host.udev_knows("8:0", "E:RELVMOISCSI_HIDDEN=all")
    with hidden(LUN, host.run_dir, system=host.system):
        (host.root / "sys/block/sda/uevent").unlink()
        (host.root / "sys/block/sda/uevent").mkdir()
    with hidden(LUN, host.run_dir, system=host.system):
        (host.root / "run/udev/data/b8:0").unlink()
        (host.root / "run/udev/data/b8:0").mkdir()

    assert "was not asked to look" in caplog.text


# --- names


@pytest.mark.parametrize(
    "scsi_id, name",
    [
        (LUN, LUN),
        ("1LIO-ORG_FILEIO:993c87c3-7fa8-4d02", "1LIO-ORG_FILEIO:993c87c3-7fa8-4d02"),
        ("SATA_disk/../../etc", "SATA_disk_.._.._etc"),
        ("0a'b\"c$d%e?f*g,h;i j", "0a_b_c_d_e_f_g_h_i_j"),
        ("0a\\x2fb\\c", "0a\\x2fb_c"),
    ],
)
def test_the_name_of_a_switch_is_what_the_rule_makes_of_the_id(scsi_id, name):
    assert switch_name(scsi_id) == name


@pytest.mark.parametrize("scsi_id", ["", "..", "mpath-" + LUN, "paths-x", "3" * 250])
def test_what_is_not_a_scsi_id_has_no_switch(scsi_id):
    with pytest.raises(UsageError) as caught:
        switch_name(scsi_id)
    assert caught.value.sm_key == "ConfigSCSIid"


# --- the rules

RULES = sorted((Path(__file__).resolve().parents[4] / "udev").glob("*-relvmoiscsi.rules"))


def rule_text():
    return "\n".join(path.read_text(encoding="utf-8") for path in RULES)


def test_the_rules_look_where_the_switch_is():
    text = rule_text()

    assert udev.RUN_DIRECTORY + "/hide" in text
    assert set(re.findall(r"/run/[a-z/]*", text)) == {"/run/relvmoiscsi/hide", "/run/relvmoiscsi/hide/"} | set(
        re.findall(r"/run/relvmoiscsi/hide/(?:paths|mpath|target)", text)
    )
    assert udev._MARK in text


def test_the_rules_come_where_their_comment_says():
    others = ["11-dm-mpath", "56-dm-mpath", "58-scsi-sg3_symlink", "60-multipath", "60-persistent-storage", "69-lvm"]
    others += ["66-kpartx", "62-multipath", "69-dm-lvm-metad", "80-udisks2", "99-systemd", "99-z-dm-mpath-late"]
    first, last = (path.stem for path in RULES)

    order = sorted([*others, first, last])
    assert order.index(first) == 2 and order[-1] == last


def test_every_jump_in_the_rules_has_its_label():
    for path in RULES:
        text = path.read_text(encoding="utf-8")
        labels = re.findall(r'LABEL="(\w+)"', text)
        assert len(labels) == len(set(labels))
        assert set(re.findall(r'GOTO="(\w+)"', text)) == set(labels)
        # udev drops a jump whose label is not further down.
        for match in re.finditer(r'GOTO="(\w+)"', text):
            assert text.index(f'LABEL="{match.group(1)}"') > match.start(), match.group(1)


@pytest.mark.processes
def test_udev_finds_nothing_wrong_with_the_rules():
    udevadm = shutil.which("udevadm")
    options = subprocess.check_output([udevadm, "--help"], encoding="utf-8") if udevadm else ""
    if not re.search(r"^ +verify ", options, re.MULTILINE):
        pytest.skip("udevadm has no `verify` here; it came with systemd 254")
    subprocess.run([udevadm, "verify", "--no-style", *map(str, RULES)], check=True)
