# SPDX-License-Identifier: LGPL-2.1-only
"""What is told of LVM and direct LUNs. tests/judged/luns/test_lvm_filter_judged.py compares the rule with real LVM."""

import pytest

from kit.direct_world import LUN, OTHER, World
from relvmoiscsi.direct import links
from relvmoiscsi.direct.lvm_filter import lvm_problems
from relvmoiscsi.host.disk import udev

LINE = 'global_filter="r|/relvmoiscsi-direct-|"'


class Scene(World):
    """A host whose LVM answers."""

    def __init__(self, root):
        super().__init__(root)
        self.host = self.host._replace(runner=lambda argv, timeout: self.tells_lvm(argv))

    def told(self, *scsi_ids):
        luns = {f"disk{number}": scsi_id for number, scsi_id in enumerate(scsi_ids or [LUN])}
        return [each.told.replace(self.host.root, "") for each in lvm_problems(luns, self.host)]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_without_a_direct_lun_lvm_is_not_asked(scene):
    scene.has_lvm()
    assert lvm_problems({}, scene.host._replace(runner=None)) == []


def test_each_device_of_a_lun_counts_also_a_partition_and_the_map_of_one(scene):
    scene.has_disk("sda")
    scene.put("sys/block/sda/sda1/dev", "8:1\n")
    scene.has_map(paths=["sda"])
    scene.put("sys/block/dm-0/holders/dm-1")
    scene.put("sys/block/dm-0/holders/dm-2")  # a volume of the guest, say
    scene.put("sys/block/dm-1/dm/uuid", f"part1-mpath-{LUN}\n")
    scene.put("sys/block/dm-1/dm/name", LUN + "-part1\n")
    scene.put("sys/block/dm-1/dev", "253:1\n")

    (missing,) = scene.told()
    assert missing == (
        "LVM's filter does not know /dev/sda, /dev/sda1, /dev/dm-0, /dev/dm-1 of a direct LUN: udev has made no link "
        "for that. Have udev apply its rules: `udevadm trigger --action=change --sysname-match sda "
        "--sysname-match sda1 --sysname-match dm-0 --sysname-match dm-1`."
    )
    for name in ("sda", "sda1", "dm-0", "dm-1"):
        scene.links_for_lvm(name)
    scene.has_lvm(devices=LINE)
    assert scene.told() == []


def test_each_device_of_a_host_tells_its_scsi_id_once_however_many_direct_luns_there_are(scene, monkeypatch):
    """A host of 400 disks, a thousand volumes and 40 direct LUNs took 8 seconds."""
    asked = []
    for number, name in enumerate(["sda", "sdb", "sdc"]):
        scene.has_disk(name, f"8:{number}", LUN[:-1] + str(number))
    for room in (udev, links):
        monkeypatch.setattr(
            room,
            "scsi_id_of_disk",
            lambda name, host, real=room.scsi_id_of_disk: asked.append(name) or real(name, host),
        )
    (missing,) = scene.told(LUN[:-1] + "0", LUN[:-1] + "1")
    assert "does not know /dev/sda, /dev/sdb of a" in missing and asked == ["sda", "sdb", "sdc"]


@pytest.mark.parametrize("has", ["", '"a|.*|"', '"a|.*|","r|/relvmoiscsi-direct-|"'])
def test_the_advice_is_a_line_where_no_pattern_of_an_administrator_is_lost(scene, has):
    scene.has_disk("sda")
    scene.links_for_lvm("sda")
    scene.has_lvm(devices=f"global_filter=[{has}]")
    (problem,) = scene.told()
    line = 'global_filter = [ "r|/relvmoiscsi-direct-|" ]'
    where = "Write this line into /etc/lvm/lvmlocal.conf, in the place of a global_filter there"
    assert problem.endswith(f"{where}: devices {{ {line} }}.")
    scene.has_lvm(devices=line)
    assert scene.told() == []


@pytest.mark.parametrize(
    "has, replaced",
    [
        ('"r|^/dev/drbd|"', ""),
        ('"r|^/dev/drbd|","a|.*|"', "'a|.*|'"),
        ('"a|x|","a|/sda$|","a|^/dev/sdb|","r|/relvmoiscsi-direct-|"', "'a|x|', 'a|/sda$|', 'a|^/dev/sdb|'"),
        ('"a|/dev/sd[a-z]+$|","r|.*|"', "'a|/dev/sd[a-z]+$|'"),
    ],
)
@pytest.mark.parametrize("filters", ["", 'filter=["a|.*|"]'])
def test_the_advice_names_the_patterns_that_an_administrator_replaces(scene, has, replaced, filters):
    """LVM puts a `filter` of lvmlocal.conf before that of lvm.conf, so a line for it would change nothing."""
    scene.has_disk("sda")
    scene.links_for_lvm("sda")
    scene.has_lvm(devices=f"global_filter=[{has}]\n{filters}")
    (problem,) = scene.told()
    assert "Have 'r|/relvmoiscsi-direct-|' as the first pattern of the global_filter in /etc/lvm/lvmloc" in problem
    assert "devices {" not in problem
    assert (f" Replace {replaced} there by patterns that accept the disks" in problem) == bool(replaced)

    left = ",".join(each for each in has.split(",") if each.replace('"', "'") not in replaced.split(", "))
    scene.has_lvm(devices=f'global_filter=["r|/relvmoiscsi-direct-|","a|^/dev/disk/by-id/ata-D-part3$|",{left}]')
    assert scene.told() == []


LATER = (
    "With the settings in /etc/lvm, LVM may use a direct LUN, or a partition that a guest makes there, and then acts"
)


@pytest.mark.parametrize(
    "pattern, is_of_host",
    [
        ("/sdb$", False),
        ("^/dev/sda1$", False),  # the guest's partition, or the LUN's after a restart
        ("/dev/sd(b|c)[0-9]*$", False),
        ("^/dev/dm-7$", False),
        ("^/dev/mapper/.*", False),
        ("^/dev/mapper/mpatha$", False),
        ("/dev/md*", False),  # LVM takes /dev/mapper for a match
        ("/dev/nvme0n1|/dev/sda", False),
        ("/dev/nvme(0|)", False),
        ("/dev/nvme(?0)", False),
        ("/dev/nvme(0|*)", False),
        ("nvme0n1", False),  # a label may be so
        ("/dev/d.*b$", False),
        ("/dev/[sv]db", False),
        ("^?/dev/vdb", False),
        ("/dev/disk/by-label/b", False),
        ("/dev/disk/by-path/b", False),
        ("^/dev/disk/by-id/lvm-pv-uuid-b", False),
        ("^/dev/disk/by-id/scsi-.*", False),
        (f"^/dev/disk/by-id/scsi-{LUN}-part1$", False),
        (f"^/dev/disk/by-id/wwn-0x{LUN[1:]}$", False),
        (f"^/dev/mapper/{LUN[:-1]}?", False),
        (f"^/dev/disk/by-id/dm-uuid-part1-mpath-{LUN}$", False),
        ("a|é", False),
        ("^/dev/disk/by-id/scsi-3600508b1001c1234-part3$", True),
        ("^/dev/disk/by-id/wwn-0x600508b1001c1234.*$", True),
        ("^/dev/disk/by-id/dm-uuid-mpath-3600508b1001c1234$", True),
        ("/dev/mapper/3600508b1001c1234p3", True),
        ("^/dev/disk/by-id/ata-DISK-part3$", True),
        ("/dev/nvme0n1p[0-9]+$", True),
        ("/dev/(md|sda)", False),
        ("^/dev/md(0|127)$", True),
        ("/dev/drbd.*", True),
        ("^/dev/xvd[a-z]", True),
    ],
)
def test_an_accepting_pattern_counts_unless_no_direct_lun_ever_has_such_a_path(scene, pattern, is_of_host):
    scene.has_disk("sdq")
    scene.links_for_lvm("sdq")
    scene.has_lvm(devices=f'filter=["r|/relvmoiscsi-direct-|","a#{pattern}#","r|.*|"]')
    assert [problem.startswith(LATER) for problem in scene.told()] == [True] * (not is_of_host)
    # one list that hides the LUN for certain is enough
    scene.has_lvm(devices=f'filter=["a#{pattern}#","r|.*|"]\n{LINE}')
    assert scene.told() == []


@pytest.mark.parametrize(
    "pattern, hides",
    [
        ("r|.*|", True),
        ("r|^/dev/.*$|", True),
        ("r{/dev/}", True),
        ("r|/dev/disk/by-id/relvmoiscsi-direct-.*|", True),
        ("r|/relvmoiscsi-direct-$|", False),
        ("r|^relvmoiscsi-direct-|", False),
        ("r|/sdq$|", False),  # but not a partition
        ("r|/relvmoiscsi-direct-sdq|", False),
        ("r|/dev/sd.*|", False),  # but not a map
        *((each, False) for each in ["x|a|", "r|", "a", "", "r|(|", "r~[]a]~", "r|()a|", "r|?a|", "r|(?i)a|", "r||"]),
    ],
)
def test_a_rejecting_pattern_counts_if_it_rejects_each_link_of_udevs_rule(scene, pattern, hides):
    scene.has_disk("sdq")
    scene.links_for_lvm("sdq")
    scene.has_lvm(devices=f'filter=["{pattern}"]')
    assert [problem.startswith(LATER) for problem in scene.told()] == [True] * (not hides)


def test_a_search_for_a_pvid_takes_any_device(scene):
    scene.has_disk("sda")
    scene.links_for_lvm("sda")
    search = 'use_devicesfile=1\ndevicesfile="system.devices"\nsearch_for_devnames='
    scene.put("etc/lvm/devices/system.devices", "IDTYPE=devname IDNAME=/dev/sdx DEVNAME=/dev/sdx PVID=a\n")
    scene.has_lvm(devices=search + '"auto"')
    assert scene.told() == []
    scene.has_lvm(devices=search + '"all"')
    (problem,) = scene.told()
    assert 'Write this line into /etc/lvm/lvmlocal.conf: devices { search_for_devnames = "auto" }. Remove' in problem
    scene.put("etc/lvm/devices/system.devices", "IDTYPE=sys_wwid IDNAME=naa.5 DEVNAME=/dev/sdx PVID=a\n")
    assert scene.told() == []


def test_a_lun_that_is_away_counts_as_a_disk_that_comes(scene):
    scene.has_lvm(devices=LINE)
    assert scene.told(LUN, OTHER) == []
    scene.has_lvm("etc/lvm/master", 'filter=["r|/relvmoiscsi-direct-|","a|/dev/sd[a-z]+|"]')
    (problem,) = scene.told(LUN, OTHER)
    assert problem.startswith("With the settings in /etc/lvm/master, LVM may use a direct LUN, ")


@pytest.mark.parametrize(
    "line, is_listed",
    [
        ("IDTYPE=sys_wwid IDNAME=naa.{lun} DEVNAME=/dev/sdx PVID=a", True),
        ("IDTYPE=mpath_uuid IDNAME=mpath-3{lun} DEVNAME=/dev/mapper/x PVID=a", True),
        ("IDTYPE=devname IDNAME={sda} PVID=a", True),
        ("IDTYPE=devname IDNAME={sda}a DEVNAME={sda}a PVID=a", False),
        ("# IDTYPE=devname IDNAME={sda}", False),
    ],
)
def test_with_a_devices_file_its_lines_decide(scene, line, is_listed):
    scene.has_disk("sda")
    scene.links_for_lvm("sda")
    scene.has_lvm(devices='use_devicesfile=1\ndevicesfile="system.devices"')
    assert len(scene.told()) == 1, "without the file, the lists count"
    scene.put("etc/lvm/devices/system.devices", line.format(lun=LUN[1:], sda=scene.host.node("sda")) + "\n")
    advice = "Remove the LUN from the devices file in /etc/lvm/devices."
    assert [problem.endswith(advice) for problem in scene.told()] == [True] * is_listed


def test_a_devices_file_that_cannot_be_read_is_told(scene):
    scene.has_lvm(devices='use_devicesfile=1\ndevicesfile="system.devices"\n' + LINE)
    (scene.root / "etc/lvm/devices/system.devices").mkdir(parents=True)
    (problem,) = scene.told()
    assert "/etc/lvm/devices/system.devices cannot be read: Is a directory." in problem


def test_a_database_of_udev_that_cannot_be_read_is_told(scene):
    scene.has_disk("sda")
    scene.links_for_lvm("sda")
    (scene.root / "run/udev/data/b8:0").mkdir(parents=True)
    (problem,) = scene.told()
    assert "The entry of sda in udev's database cannot be read" in problem and "Repair udev's database" in problem
