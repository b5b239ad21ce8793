# SPDX-License-Identifier: LGPL-2.1-only
"""The map of a LUN is found by the kernel's files; without multipathing there is one path or none."""

import os
import re

import pytest

from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk.multipath import is_listed, is_on, mapper_path, paths_in, single_path
from relvmoiscsi.host.disk.udev import maps_of
from relvmoiscsi.host.this_host import Host

LUN = "3600140593f176bc54ff48f3bcc0d0073"
OTHER = "3600140593f176bc54ff48f3bcc0d0074"

WWIDS = """# Multipath wwids, Version : 1.0
# NOTE: This file is automatically maintained by multipath and multipathd.
# You should not need to edit this file in normal circumstances.
#
# Valid WWIDs:
"""


class World:
    """A host's files of disks and maps."""

    def __init__(self, root):
        self.root = root
        for directory in ("sys/block", "dev/mapper", "etc/multipath"):
            (root / directory).mkdir(parents=True)
        self.host = Host(str(root))

    def has_map(self, paths, scsi_id=LUN, kernel_name="dm-0", name=None, suspended="0"):
        name = name or scsi_id
        for path, text in (("uuid", "mpath-" + scsi_id), ("name", name), ("suspended", suspended)):
            self.put(f"sys/block/{kernel_name}/dm/{path}", text + "\n")
        for path in paths:
            self.put(f"sys/block/{kernel_name}/slaves/{path}", "")
        self.put("dev/mapper/" + name, "")

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


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


DEAD = ("offline", "transport-offline", "cancel", "deleted")


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

    assert (maps_of(LUN, world.host), maps_of(LUN[:-1], world.host)) == (["dm-3"], [])
    assert paths_in(["dm-3"], world.host) == ["sda", "sdb"]
    assert mapper_path("dm-3", world.host) == world.host.at("dev/mapper/mpatha")


def test_a_lun_that_had_a_map_before_is_listed(world):
    assert not is_listed(LUN, world.host)

    world.put("etc/multipath/wwids", WWIDS + f"#{LUN}/\n")
    assert not is_listed(LUN, world.host), "an entry that was removed from the list is a comment"
    world.lists(LUN)
    assert is_listed(LUN, world.host) and not is_listed(OTHER, world.host)
