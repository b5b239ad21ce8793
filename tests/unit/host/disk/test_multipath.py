# SPDX-License-Identifier: LGPL-2.1-only
"""Exactly one map is made and taken away, what was there stays; without multipathing there is one path or none.

The answers are those of multipath-tools 0.9.4 in the test VM, with a LIO LUN over two portals; those marked 0.4.9 are
made from its source.
"""

import os
import re
import shutil

import pytest

from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host.command import Completed
from relvmoiscsi.host.disk import multipath
from relvmoiscsi.host.disk.multipath import (
    Map,
    MapState,
    ensure_daemon,
    ensure_map,
    find_map,
    flush_map,
    is_on,
    look,
    single_path,
)
from relvmoiscsi.host.this_host import Host

LUN = "3600140593f176bc54ff48f3bcc0d0073"
OTHER = "3600140593f176bc54ff48f3bcc0d0074"

WWIDS = """# Multipath wwids, Version : 1.0
# NOTE: This file is automatically maintained by multipath and multipathd.
# You should not need to edit this file in normal circumstances.
#
# Valid WWIDs:
"""

RUNS = (["multipathd", "-kshow daemon"], 0, "pid 322 idle\n", "")
DOES_NOT_RUN = (["multipathd", "-kshow daemon"], 1, "", "")
STARTED = (["systemctl", "start", "multipathd.service"], 0, "", "")
LISTED = (["multipath", "-a", LUN], 0, f"wwid '{LUN}' added\n", "")
UNLISTED = (["multipath", "-w", LUN], 0, f"wwid '{LUN}' removed\n", "")
SDA_TAKEN = (["multipathd", "-kadd path sda"], 0, "ok\n", "")
SDB_TAKEN = (["multipathd", "-kadd path sdb"], 0, "ok\n", "")
FLUSHED = (["multipath", "-f", LUN], 0, "", "")
IN_USE = (["multipath", "-f", LUN], 1, "", f"337.602159 | {LUN}: map in use\n")
CREATED = (
    ["multipath", LUN],
    0,
    f"create: {LUN} undef LIO-ORG,FILEIO\nsize=1.0G features='1 queue_if_no_path' hwhandler='1 alua' wp=undef\n"
    "`-+- policy='service-time 0' prio=50 status=undef\n  `- 6:0:0:0 sda 8:0 undef ready running\n",
    f"148.615501 | {LUN}: addmap [0 2097152 multipath 1 queue_if_no_path 1 alua 1 1 service-time 0 1 1 8:0 1]\n",
)


class World:
    """A host whose programs end as the test says, and change it as the test says: `(call, what it does)`."""

    def __init__(self, root):
        self.root = root
        self.calls = []
        self.waits = []
        for directory in ("sys/block", "dev/mapper", "etc/multipath"):
            (root / directory).mkdir(parents=True)
        self.host = Host(str(root), self.run, self.wait_for)

    def expects(self, *calls):
        self.calls += calls
        return self.host

    def run(self, argv, accept=(0,), timeout=None):
        assert self.calls, f"not expected: {list(argv)}"
        (expected, *answer), *effects = call_and_effects(self.calls.pop(0))
        assert list(argv) == expected, f"add: ({list(argv)}, 0, '', '')"
        assert timeout == multipath.COMMAND_SECONDS
        for effect in effects:
            effect(self)
        if answer[0] == 127:
            raise CommandFailed(argv, 127, "there is no such program")
        assert answer[0] in accept
        return Completed(*answer)

    def wait_for(self, condition, timeout_seconds):
        """Three looks, with whatever the test wants to happen before the second."""
        self.waits.append(timeout_seconds)
        for _ in range(3):
            value = condition()
            if value:
                return value
            self.happens()
        return None

    def happens(self):
        pass

    def has_map(self, paths, scsi_id=LUN, kernel_name="dm-0", name=None, suspended="0"):
        name = name or scsi_id
        for path, text in (("uuid", "mpath-" + scsi_id), ("name", name), ("suspended", suspended)):
            self.put(f"sys/block/{kernel_name}/dm/{path}", text + "\n")
        for path in paths:
            self.put(f"sys/block/{kernel_name}/slaves/{path}", "")
        self.put("dev/mapper/" + name, "")

    def loses_map(self, kernel_name="dm-0"):
        shutil.rmtree(str(self.root / "sys/block" / kernel_name))

    def has_disk(self, name, state="running", place="6:0:0:0"):
        self.put(f"sys/devices/{place}/state", state + "\n")
        os.makedirs(str(self.root / "sys/block" / name))
        os.symlink(str(self.root / "sys/devices" / place), str(self.root / "sys/block" / name / "device"))

    def has(self, disks, is_listed, paths, suspended="0"):
        """A LUN with these disks, and if any of them is a path, with a map."""
        for number, name in enumerate(disks, 6):
            self.has_disk(name, place=f"{number}:0:0:0")
        if is_listed:
            self.lists(LUN)
        if paths:
            self.has_map(paths, suspended=suspended)

    def lists(self, *scsi_ids):
        self.put("etc/multipath/wwids", WWIDS + "".join(f"/{scsi_id}/\n" for scsi_id in scsi_ids))

    def put(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def call_and_effects(entry):
    return entry if callable(entry[-1]) else (entry,)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    assert world.calls == []


DEAD = ("offline", "transport-offline", "cancel", "deleted")
FIRST_TIME = MapState(LUN, had_map=False, had_wwid=False)


# --- whether


@pytest.mark.parametrize(
    "device_config, other_config, expected",
    [
        ({}, {}, False),
        ({}, {"multipathing": "true"}, True),
        ({}, {"multipathing": "true", "multipathhandle": "null"}, False),
        ({"multipathing": "true"}, {}, False),
        ({"multipathing": "false"}, {"multipathing": "true"}, True),
        ({"multipathing": "true", "multipathhandle": "dmp"}, {}, True),
        ({"multipathing": "false", "multipathhandle": "dmp"}, {"multipathing": "true"}, False),
    ],
)
def test_device_config_counts_with_both_keys_only_and_then_before_the_host(device_config, other_config, expected):
    assert is_on(device_config, other_config) is expected


# --- without


@pytest.mark.parametrize(
    "states, found",
    [
        ({"sda": "running"}, "sda"),
        *(({"sda": dead, "sdb": "running", "sdgone": ""}, "sdb") for dead in DEAD),
        *(({"sda": "running", "sdb": slow}, "has 2 paths (sda at 6:0:0:0, sdb at 7:0:0:0) and multipathing is off")
          for slow in ("running", "blocked", "quiesce")),
        ({"sda": "offline", "sdb": ""}, "cannot be reached: sda is offline, sdb is gone"),
        ({}, "no disk has its id"),
    ],
)  # fmt: skip
def test_the_only_path_that_lives_is_used_and_more_or_none_are_refused_by_name(world, states, found):
    for number, (name, state) in enumerate(states.items(), 6):
        if state:
            world.has_disk(name, state, place=f"{number}:0:0:0")

    if found in states:
        assert single_path(LUN, list(states), world.host) == found
    else:
        with pytest.raises(Refused if "2 paths" in found else NotFound, match=re.escape(found)):
            single_path(LUN, list(states), world.host)


# --- finding


def test_the_map_of_exactly_this_lun_is_found(world):
    world.has_map(["sdc"], OTHER, "dm-0")
    world.put("sys/block/dm-1/dm/uuid", f"part1-mpath-{LUN}\n")
    world.put("sys/block/dm-2/dm/uuid", "\n")
    world.has_map(["sdb", "sda"], LUN, "dm-3", name="mpatha")

    found = Map("dm-3", "mpatha", ("sda", "sdb"), os.path.join(world.host.dev, "mapper/mpatha"))
    assert find_map(LUN, world.host) == found
    assert find_map(LUN[:-1], world.host) is None


def test_what_there_was_is_remembered(world):
    assert look(LUN, world.host) == MapState(LUN, False, False)

    world.put("etc/multipath/wwids", WWIDS + f"#{LUN}/\n")
    assert not look(LUN, world.host).had_wwid, "an entry that was removed from the list is a comment"
    world.lists(LUN)
    assert look(LUN, world.host) == MapState(LUN, False, True)
    assert look(OTHER, world.host) == MapState(OTHER, False, False)
    world.has_map(["sda"])
    assert look(LUN, world.host) == MapState(LUN, True, True)


# --- making


def comes(*paths):
    return lambda world: world.has_map(paths)


FAILING_LIST = (["multipath", "-a", LUN], 1, "", "")
BLACKLISTED = (["multipathd", "-kadd path sda"], 0, "blacklisted\n", "")
NOTHING_MADE = (["multipath", LUN], 0, "", "")
ONE, TWO = ["sda"], ["sda", "sdb"]


@pytest.mark.parametrize(
    "disks, is_listed, has, calls",
    [
        pytest.param(ONE, False, [], [RUNS, LISTED, (SDA_TAKEN, comes("sda"))], id="never multipathed"),
        pytest.param(ONE, True, ["sda"], [RUNS], id="all paths are there"),
        pytest.param(TWO, True, ["sda"], [RUNS, SDA_TAKEN, (SDB_TAKEN, comes("sdb"))], id="one is added"),
        pytest.param(
            ONE, True, [], [RUNS, SDA_TAKEN, (CREATED, comes("sda"))], id="the daemon says ok and does nothing"
        ),
    ],
)
def test_a_map_has_all_paths(world, disks, is_listed, has, calls):
    world.has(disks, is_listed, has)

    the_map = ensure_map(MapState(LUN, bool(has), is_listed), disks, host=world.expects(*calls))

    assert the_map == Map("dm-0", LUN, tuple(disks), os.path.join(world.host.dev, "mapper", LUN))
    assert (world.waits == []) == (calls == [RUNS])


def test_a_map_is_ready_when_it_is_not_suspended_and_has_its_node(world):
    world.has(ONE, True, ["sda"], suspended="1")
    world.happens = lambda: world.has_map(["sda"])
    node = world.root / "dev/mapper" / LUN
    node.unlink()

    assert ensure_map(FIRST_TIME, ["sda"], host=world.expects(RUNS, SDA_TAKEN)) and node.exists()
    assert world.waits == [multipath.MAP_SECONDS]


@pytest.mark.parametrize(
    "disks, is_listed, has, suspended, calls, words",
    [
        (ONE, False, [], "0", [RUNS, FAILING_LIST, BLACKLISTED, NOTHING_MADE],
         'has no multipath map after 5 seconds; its paths are sda.*multipathd says "blacklisted" of sda[.]'),
        # multipathd has taken the path, and the host was too slow: it is not blamed on the blacklist
        (ONE, False, [], "0", [RUNS, LISTED, SDA_TAKEN, NOTHING_MADE],
         "named no reason. A slow host needs more time: repeat the command"),
        (TWO, True, ["sda"], "0", [RUNS, SDA_TAKEN, SDB_TAKEN], "not ready after 5 seconds; not among its paths: sdb"),
        (ONE, True, ["sda"], "1", [RUNS, SDA_TAKEN], r"is not ready after 5 seconds\. multipathd has named no"),
    ],
    ids=["refused by the daemon", "late", "without one of the paths", "suspended"],
)  # fmt: skip
def test_what_is_not_ready_in_time_is_not_written_through(world, disks, is_listed, has, suspended, calls, words):
    world.has(disks, is_listed, has, suspended=suspended)

    with pytest.raises(NotFound, match=words) as caught:
        ensure_map(FIRST_TIME, disks, 5, world.expects(*calls))

    assert caught.value.sm_key == "MultipathGenericFailure" and world.waits[0] == 5
    assert ("blacklist" in str(caught.value)) == (BLACKLISTED in calls)


# --- the daemon

ABSENT = (["multipathd", "-kshow daemon"], 127, "", "")
SILENT_0_4_9 = (["multipathd", "-kshow daemon"], 0, "ux_socket_connect: Connection refused\n", "")
PID_1 = "System has not been booted with systemd as init system (PID 1). Can't operate.\nFailed to connect to bus\n"
NO_SYSTEMD = (["systemctl", "start", "multipathd.service"], 1, "", PID_1)


def test_a_daemon_that_does_not_run_is_started(world):
    ensure_daemon(world.expects(DOES_NOT_RUN, STARTED, DOES_NOT_RUN, RUNS))


@pytest.mark.parametrize(
    "calls, words",
    [
        ([DOES_NOT_RUN, NO_SYSTEMD, *[SILENT_0_4_9] * 3], "nor could it be started: System has not been booted"),
        ([ABSENT, (STARTED[0], 127), *[ABSENT] * 3], "multipathd does not answer. Start multipathd"),
    ],
)
def test_without_a_daemon_that_can_be_started_there_is_no_multipathing(world, calls, words):
    with pytest.raises(Refused, match=words) as caught:
        ensure_daemon(world.expects(*calls))

    assert caught.value.sm_key == "MultipathdCommsFailure"


# --- taking away


def goes(world):
    world.loses_map()


def crossed_out(*after):
    """What `multipath -w` does to the file: a # over the slash; and what others add."""

    def cross_out(world):
        path = world.root / "etc/multipath/wwids"
        path.write_text(path.read_text().replace(f"/{LUN}/", f"#{LUN}/") + "".join(after))

    return cross_out


GONE_BY_ITSELF = (
    ["multipath", "-f", LUN],
    1,
    "",
    f"135.918327 | libdevmapper: ioctl/libdm-iface.c(1980): device-mapper: table ioctl on {LUN}  failed: "
    f"No such device or address\n135.919140 | {LUN} is not a multipath device\n",
)


@pytest.mark.parametrize(
    "before, the_map, listed, calls, entries",
    [
        pytest.param((False, False), {}, [OTHER, LUN], [(FLUSHED, goes), (UNLISTED, crossed_out())], f"/{OTHER}/\n",
                     id="our map goes, and its entry: the list is as it was"),
        pytest.param((False, False), {}, [LUN], [(FLUSHED, goes), (UNLISTED, crossed_out(f"/{OTHER}/\n"))],
                     f"#{LUN}/\n/{OTHER}/\n", id="what others have added meanwhile stays"),
        pytest.param((False, False), {"name": "mpatha"}, [], [((["multipath", "-f", "mpatha"], 0, "", ""), goes)], "",
                     id="by its own name"),
        pytest.param((True, True), {}, [LUN], [], f"/{LUN}/\n", id="both were there before"),
        pytest.param((True, False), {}, [LUN], [], f"/{LUN}/\n", id="the map was there before"),
        pytest.param((False, True), {}, [LUN], [(FLUSHED, goes)], f"/{LUN}/\n", id="the entry was there before"),
        pytest.param((False, False), None, [], [], "", id="nothing came"),
        pytest.param((False, False), {"scsi_id": OTHER}, [], [], "", id="the map of another LUN"),
        pytest.param((False, False), {}, [], [IN_USE, (FLUSHED, goes)], "", id="in use for a moment"),
        pytest.param((False, False), {}, [], [(GONE_BY_ITSELF, goes)], "", id="multipathd took it away itself"),
    ],
)  # fmt: skip
def test_what_this_call_has_brought_goes_and_nothing_else(world, before, the_map, listed, calls, entries):
    if the_map is not None:
        world.has_map(["sda"], **the_map)
    world.lists(*listed)

    flush_map(MapState(LUN, *before), host=world.expects(*calls))

    assert (world.root / "etc/multipath/wwids").read_text() == WWIDS + entries


def test_a_map_that_stays_in_use_is_reported_and_stays_listed(world):
    world.has(ONE, True, ["sda"])

    with pytest.raises(Refused, match=f"still there after 20 seconds: .*map in use.*`multipath -f {LUN}`"):
        flush_map(FIRST_TIME, host=world.expects(IN_USE, IN_USE, IN_USE))
