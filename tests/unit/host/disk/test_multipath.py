# SPDX-License-Identifier: LGPL-2.1-only
"""Exactly one map is made and taken away, what was there stays; without multipathing there is one path or none.

The answers are those of multipath-tools 0.9.4 in the test VM, with a LIO LUN over two portals; those marked 0.4.9 are
made from its source.
"""

import os
import shutil

import pytest

from relvmoiscsi.errors import CommandFailed, NotFound, Refused
from relvmoiscsi.host.command import Completed
from relvmoiscsi.host.disk import multipath
from relvmoiscsi.host.disk.multipath import (
    Before,
    Map,
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
            effect()
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


THE_MAP = Map("dm-0", LUN, ("sda",), "/dev/mapper/" + LUN)
FIRST_TIME = Before(LUN, had_map=False, had_wwid=False)


# --- whether


@pytest.mark.parametrize(
    "device_config, other_config, expected",
    [
        ({}, {}, False),
        ({}, {"multipathing": "true"}, True),
        ({}, {"multipathing": "true", "multipathhandle": "dmp"}, True),
        ({}, {"multipathing": "true", "multipathhandle": "null"}, False),
        ({}, {"multipathing": "false", "multipathhandle": "dmp"}, False),
        ({"multipathing": "true"}, {}, False),
        ({"multipathing": "false"}, {"multipathing": "true"}, True),
        ({"multipathing": "true", "multipathhandle": "dmp"}, {}, True),
        ({"multipathing": "false", "multipathhandle": "dmp"}, {"multipathing": "true"}, False),
        ({"multipathing": "true", "multipathhandle": "null"}, {"multipathing": "true"}, False),
    ],
)
def test_device_config_counts_with_both_keys_only_and_then_before_the_host(device_config, other_config, expected):
    assert is_on(device_config, other_config) is expected


# --- without


def test_the_only_path_is_used(world):
    world.has_disk("sda")

    assert single_path(LUN, ["sda"], world.host) == "sda"


@pytest.mark.parametrize("dead", ["offline", "transport-offline", "cancel", "deleted"])
def test_a_dead_path_does_not_count(world, dead):
    world.has_disk("sda", dead)
    world.has_disk("sdb", place="7:0:0:0")

    assert single_path(LUN, ["sda", "sdb", "sdgone"], world.host) == "sdb"


@pytest.mark.parametrize("second", ["running", "blocked", "quiesce"])
def test_several_paths_are_refused_by_name(world, second):
    world.has_disk("sda")
    world.has_disk("sdb", second, place="7:0:0:0")

    with pytest.raises(Refused, match=r"has 2 paths \(sda at 6:0:0:0, sdb at 7:0:0:0\) and multipathing is off"):
        single_path(LUN, ["sda", "sdb"], world.host)


def test_no_usable_path_says_what_became_of_each(world):
    world.has_disk("sda", "offline")

    with pytest.raises(NotFound, match="cannot be reached: sda is offline, sdb is gone"):
        single_path(LUN, ["sda", "sdb"], world.host)
    with pytest.raises(NotFound, match="no disk has its id"):
        single_path(LUN, [], world.host)


# --- finding


def test_the_map_of_exactly_this_lun_is_found(world):
    world.has_map(["sdc"], OTHER, "dm-0")
    world.put("sys/block/dm-1/dm/uuid", f"part1-mpath-{LUN}\n")
    world.put("sys/block/dm-2/dm/uuid", "\n")
    world.has_map(["sdb", "sda"], LUN, "dm-3", name="mpatha")

    assert find_map(LUN, world.host) == Map(
        "dm-3", "mpatha", ("sda", "sdb"), os.path.join(world.host.dev, "mapper/mpatha")
    )
    assert find_map(LUN[:-1], world.host) is None


def test_what_there_was_is_remembered(world):
    assert look(LUN, world.host) == Before(LUN, False, False)

    world.lists(LUN)
    assert look(LUN, world.host) == Before(LUN, False, True)
    assert look(OTHER, world.host) == Before(OTHER, False, False)

    world.has_map(["sda"])
    assert look(LUN, world.host) == Before(LUN, True, True)


def test_an_entry_that_was_removed_from_the_list_is_a_comment(world):
    world.put("etc/multipath/wwids", WWIDS + f"#{LUN}/\n")

    assert not look(LUN, world.host).had_wwid


# --- making


def test_a_lun_that_was_never_multipathed_is_listed_and_its_path_given_to_the_daemon(world):
    world.has_disk("sda")
    system = world.expects(RUNS, LISTED, (SDA_TAKEN, lambda: world.has_map(["sda"])))

    the_map = ensure_map(FIRST_TIME, ["sda"], host=system)

    assert the_map == THE_MAP._replace(device=os.path.join(system.dev, "mapper", LUN))


def test_a_map_that_has_all_paths_is_used_as_it_is(world):
    world.has_disk("sda")
    world.has_map(["sda"])

    assert ensure_map(Before(LUN, True, True), ["sda"], host=world.expects(RUNS)).paths == ("sda",)
    assert world.waits == []


def test_a_path_that_the_map_lacks_is_added(world):
    world.has_disk("sda")
    world.has_disk("sdb", place="7:0:0:0")
    world.has_map(["sda"])
    world.lists(LUN)
    system = world.expects(RUNS, SDA_TAKEN, (SDB_TAKEN, lambda: world.has_map(["sdb"])))

    assert ensure_map(Before(LUN, True, True), ["sda", "sdb"], host=system).paths == ("sda", "sdb")


def test_a_daemon_that_says_ok_and_does_nothing_is_helped(world):
    world.has_disk("sda")
    world.lists(LUN)
    system = world.expects(RUNS, SDA_TAKEN, (CREATED, lambda: world.has_map(["sda"])))

    assert ensure_map(FIRST_TIME, ["sda"], host=system).name == LUN


def test_a_map_is_ready_when_it_is_not_suspended_and_has_its_node(world):
    world.has_disk("sda")
    world.lists(LUN)
    world.has_map(["sda"], suspended="1")
    world.happens = lambda: world.has_map(["sda"])
    node = world.root / "dev/mapper" / LUN
    node.unlink()

    assert ensure_map(FIRST_TIME, ["sda"], host=world.expects(RUNS, SDA_TAKEN)) and node.exists()
    assert world.waits == [multipath.MAP_SECONDS]


def test_a_map_that_does_not_come_is_reported_with_what_to_look_at(world):
    world.has_disk("sda")
    unlistable = (["multipath", "-a", LUN], 1, "", "")
    refusing = (["multipathd", "-kadd path sda"], 0, "blacklisted\n", "")
    nothing = (["multipath", LUN], 1, "", "")

    with pytest.raises(NotFound, match="has no multipath map after 5 seconds; its paths are sda") as caught:
        ensure_map(FIRST_TIME, ["sda"], 5, world.expects(RUNS, unlistable, refusing, nothing))

    assert 'multipathd says "blacklisted" of sda.' in str(caught.value)
    assert caught.value.sm_key == "MultipathGenericFailure" and world.waits == [5]


def test_a_map_that_is_late_is_not_blamed_on_the_blacklist(world):
    """multipathd has taken the path, and the host was too slow for the time that was left."""
    world.has_disk("sda")
    nothing = (["multipath", LUN], 0, "", "")

    with pytest.raises(NotFound, match="named no reason. A slow host needs more time: repeat the command") as caught:
        ensure_map(FIRST_TIME, ["sda"], 2.7, world.expects(RUNS, LISTED, SDA_TAKEN, nothing))

    assert "blacklist" not in str(caught.value)


def test_a_map_without_one_of_the_paths_is_not_written_through(world):
    world.has_disk("sda")
    world.has_disk("sdb", place="7:0:0:0")
    world.has_map(["sda"])
    world.lists(LUN)

    with pytest.raises(NotFound, match="is not ready after 5 seconds; not among its paths: sdb"):
        ensure_map(FIRST_TIME, ["sda", "sdb"], 5, world.expects(RUNS, SDA_TAKEN, SDB_TAKEN))


def test_a_suspended_map_is_not_ready(world):
    world.has_map(["sda"], suspended="1")
    world.lists(LUN)

    with pytest.raises(NotFound, match=r"is not ready after 5 seconds\. multipathd has named no"):
        ensure_map(FIRST_TIME, ["sda"], 5, world.expects(RUNS, SDA_TAKEN))


# --- the daemon


def test_a_daemon_that_does_not_run_is_started(world):
    ensure_daemon(world.expects(DOES_NOT_RUN, STARTED, DOES_NOT_RUN, RUNS))


def test_a_daemon_that_cannot_be_started_is_a_refusal_that_says_why(world):
    failed = (
        ["systemctl", "start", "multipathd.service"],
        1,
        "",
        "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
        "Failed to connect to bus: Host is down\n",
    )
    # 0.4.9
    silent = (["multipathd", "-kshow daemon"], 0, "ux_socket_connect: Connection refused\n", "")

    with pytest.raises(Refused, match="nor could it be started: System has not been booted") as caught:
        ensure_daemon(world.expects(DOES_NOT_RUN, failed, silent, silent, silent))

    assert caught.value.sm_key == "MultipathdCommsFailure"


def test_without_the_programs_there_is_no_multipathing(world):
    absent = (["multipathd", "-kshow daemon"], 127, "", "")

    with pytest.raises(Refused, match="multipathd does not answer. Start multipathd"):
        ensure_daemon(
            world.expects(absent, (["systemctl", "start", "multipathd.service"], 127), absent, absent, absent)
        )


# --- taking away


def test_our_map_goes_and_its_entry_in_the_list(world):
    world.has_map(["sda"])
    world.lists(OTHER, LUN)

    flush_map(FIRST_TIME, host=world.expects((FLUSHED, world.loses_map), UNLISTED))


def crosses_out(world, *after):
    """What `multipath -w` does to the file: a # over the slash."""

    def cross_out():
        path = world.root / "etc/multipath/wwids"
        path.write_text(path.read_text().replace(f"/{LUN}/", f"#{LUN}/") + "".join(after))

    return cross_out


def test_the_list_of_luns_to_multipath_is_as_it_was(world):
    world.has_map(["sda"])
    world.lists(OTHER, LUN)

    flush_map(FIRST_TIME, host=world.expects((FLUSHED, world.loses_map), (UNLISTED, crosses_out(world))))

    assert (world.root / "etc/multipath/wwids").read_text() == WWIDS + f"/{OTHER}/\n"


def test_what_others_have_added_to_the_list_meanwhile_stays(world):
    world.has_map(["sda"])
    world.lists(LUN)
    others = f"/{OTHER}/\n"

    flush_map(FIRST_TIME, host=world.expects((FLUSHED, world.loses_map), (UNLISTED, crosses_out(world, others))))

    assert (world.root / "etc/multipath/wwids").read_text() == WWIDS + f"#{LUN}/\n" + others


def test_a_map_is_taken_away_by_its_own_name(world):
    world.has_map(["sda"], name="mpatha")

    flush_map(FIRST_TIME, host=world.expects(((["multipath", "-f", "mpatha"], 0, "", ""), world.loses_map)))


def test_a_map_and_an_entry_that_were_there_before_stay(world):
    world.has_map(["sda", "sdb"])
    world.lists(LUN)
    flush_map(Before(LUN, True, True), host=world.expects())
    flush_map(Before(LUN, True, False), host=world.expects())

    flush_map(Before(LUN, False, True), host=world.expects((FLUSHED, world.loses_map)))


def test_where_nothing_came_nothing_is_run(world):
    flush_map(FIRST_TIME, host=world.expects())


def test_the_map_of_another_lun_is_not_touched(world):
    world.has_map(["sdc"], OTHER)

    flush_map(FIRST_TIME, host=world.expects())


def test_a_map_that_is_in_use_for_a_moment_is_tried_again(world):
    world.has_map(["sda"])

    flush_map(FIRST_TIME, host=world.expects(IN_USE, (FLUSHED, world.loses_map)))


def test_a_map_that_stays_in_use_is_reported_and_stays_listed(world):
    world.has_map(["sda"])
    world.lists(LUN)

    with pytest.raises(Refused, match=f"still there after 20 seconds: .*map in use.*`multipath -f {LUN}`"):
        flush_map(FIRST_TIME, host=world.expects(IN_USE, IN_USE, IN_USE))


def test_a_map_that_multipathd_took_away_itself_is_gone(world):
    world.has_map(["sda"])
    gone = (
        ["multipath", "-f", LUN],
        1,
        "",
        f"135.918327 | libdevmapper: ioctl/libdm-iface.c(1980): device-mapper: table ioctl on {LUN}  failed: "
        f"No such device or address\n135.919140 | {LUN} is not a multipath device\n",
    )

    flush_map(FIRST_TIME, host=world.expects((gone, world.loses_map)))
