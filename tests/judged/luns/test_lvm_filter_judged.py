# SPDX-License-Identifier: LGPL-2.1-only
"""Which devices LVM ignores, by real LVM: what is told of a direct LUN is what `pvs --all` shows."""

import os
import re
import subprocess
import sys

import pytest

from kit import builder
from kit.direct_world import LUN, World
from relvmoiscsi.direct.lvm_filter import lvm_problems
from relvmoiscsi.host.command import run

LINE = 'global_filter = [ "r|/relvmoiscsi-direct-|" ]'
OTHER = ["sdb", "disk/by-id/scsi-3600508b1001cb007"]  #: names of a disk that LVM needs
DIRECT = "dev/disk/by-id/relvmoiscsi-direct-sda"

#: of lvm.conf, of lvmlocal.conf, and of the devices file: does LVM ignore the device? If LVM does so until the device
#: gets another name, such as that of a guest's label or of the disk after a restart, the name
ROWS = {
    "nothing": ("", "", None, False),
    "the line of the page": ("", LINE, None, True),
    "in lvm.conf": (LINE, "", None, True),
    "in a comment": ("# " + LINE, "# " + LINE, None, False),
    "filter alone": ("", LINE.replace("global_", ""), None, True),
    "one string": ("", 'global_filter = "r|/relvmoiscsi-direct-|"', None, True),
    "two lists of two files": ('filter = "a|.*|"', LINE.replace("global_", ""), None, False),
    "a list of lvmlocal.conf alone": (LINE, 'global_filter = [ "a|.*|" ]', None, False),
    "another list that accepts all": ('filter = [ "a|.*|" ]', LINE, None, True),
    "all accepted before": ("", 'global_filter = [ "a|.*|", "r|/relvmoiscsi-direct-|" ]', None, False),
    "all accepted behind": ("", 'global_filter = [ "r|/relvmoiscsi-direct-|", "a|.*|" ]', None, False),
    "another name accepted": ("", 'global_filter = [ "r|/relvmoiscsi-direct-|", "a|/sda$|", "r|.*|" ]', None, False),
    "another disk accepted": (
        "",
        'global_filter = [ "r|/relvmoiscsi-direct-|", "a|/sdb$|", "r|.*|" ]',
        None,
        "disk/by-partlabel/sdb",
    ),
    "another disk by its path": ('filter = [ "r|/relvmoiscsi-direct-|", "a|/dev/sdc$|", "r|.*|" ]', "", None, "sdc"),
    "another disk by its id": (
        'filter = [ "r|/relvmoiscsi-direct-|", "a|/dev/disk/by-id/scsi-3600508b1001cb007$|", "r|.*|" ]',
        "",
        None,
        True,
    ),
    "only another disk": ("", 'global_filter = [ "a|/vd[a-z]|", "r|.*|" ]', None, "disk/by-partlabel/vda"),
    "another disk by its end in filter": ('filter = [ "a/sdb/", "r/.*/" ]', "", None, "disk/by-partlabel/sdb"),
    "another disk by its end in one of two lists": ('filter = [ "a/sdb/", "r/.*/" ]', LINE, None, True),
    "a rejection alone": ("", 'global_filter = [ "r|^/dev/drbd|" ]', None, False),
    "a rejection of drbd behind": (
        "",
        'global_filter = [ "r|/relvmoiscsi-direct-|", "r|^/dev/drbd|" ]',
        None,
        True,
    ),
    "a link accepted": ("", 'global_filter = [ "a|/scsi-36001|", "r|.*|" ]', None, False),
    "each name by its own": ("", 'filter = [ "r|/relvmoiscsi-direct-|", "r|/sda$|" ]', None, True),
    "at its beginning": ("", 'filter = [ "r|^relvmoiscsi-direct-|" ]', None, False),
    "devices file without it": ("", "use_devicesfile = 1", "IDTYPE=devname IDNAME=/dev/x DEVNAME=/dev/x\n", True),
    "devices file with it": ("", "use_devicesfile = 1\n" + LINE, "IDTYPE=devname IDNAME={0} DEVNAME={0}\n", False),
    "no devices file": ("", "use_devicesfile = 1\n" + LINE, None, True),
    "devices file with another of its name, and a search for it": (
        "use_devicesfile = 1",
        'search_for_devnames = "all"',
        "IDTYPE=devname IDNAME=/dev/x DEVNAME=/dev/x PVID={1}\n",
        False,
    ),
    "a search for a disk without a name": (
        "use_devicesfile = 1",
        'search_for_devnames = "all"',
        "IDTYPE=sys_wwid IDNAME=naa.1 DEVNAME=/dev/x PVID={1}\n",
        True,
    ),
    # of real hosts: XenServer, Debian, RHEL, Proxmox, Cinder, DRBD
    "of dom0": ('filter = [ "a|.*|" ]', "", None, False),
    "of dom0 with multipath": ('filter = [ "r|/dev/xvd.|", "r|/dev/VG_Xen.*/.*|" ]', LINE, None, True),
    "of Debian": ('filter = [ "r|/dev/cdrom|" ]', "", None, False),
    "of RHEL with a root disk": ('filter = [ "a|/dev/sdc2$|", "r|.*|" ]', "", None, "sdc2"),
    "of RHEL with a map": ('filter = [ "a|/dev/mapper/mpath.*|", "r|.*|" ]', "", None, "mapper/mpathb"),
    "of RHEL with all maps": ('filter = [ "a|/dev/mapper/.*|", "r|^/dev/sd.*|", "r|.*|" ]', "", None, "mapper/x"),
    "of a host with all maps by their ids": (
        'filter = [ "a|/dev/disk/by-id/dm-uuid-.*mpath-.*|", "r|.*|" ]', "", None, "disk/by-id/dm-uuid-mpath-3"),
    "of a host with paths": ('filter = [ "a|/dev/disk/by-path/pci-.*|", "r|.*|" ]', "", None, "disk/by-path/pci-0"),
    "of a host with md as of a shell": ('filter = [ "a|/dev/md*|", "r|.*|" ]', "", None, "mapper/x"),
    "of a host with md": ('filter = [ "a|^/dev/md[0-9]+$|", "r|.*|" ]', "", None, True),
    "of a host with NVMe": ('filter = [ "a|^/dev/nvme.*|", "r|.*|" ]', "", None, True),
    "of Proxmox": ('global_filter = [ "r|/dev/zd.*|", "r|/dev/rbd.*|" ]', "", None, False),
    "of Cinder": ('filter = [ "a/sdc/", "r/.*/" ]', "", None, "sdc"),
    "of DRBD": ('filter = [ "a|/dev/drbd.*|", "r|.*|" ]', "", None, True),
    "of a host with another LUN": ('filter = [ "a|/dev/mapper/3600508b1001c0001|", "r|.*|" ]', "", None, True),
    "of a host with a partition as LVM's page": ('filter = [ "a|^/dev/hda8$|", "r/.*/" ]', "", None, True),
    "of a host with loops": ('filter = [ "a/loop/", "r/.*/" ]', "", None, "disk/by-label/loop"),
    "a rejection of all disks": ('filter = [ "r|/dev/sd.*|" ]', LINE, None, True),
    "disks accepted alone": ("", 'global_filter = [ "a|/dev/sd.*|", "r|.*|" ]', None, False),
    "disks accepted alone, twice": (
        'filter = [ "a|/dev/sd.*|", "r|.*|" ]',
        'global_filter = [ "a|/dev/sd.*|", "r|.*|" ]',
        None,
        False,
    ),
    "accepted after a rejection": ("", 'global_filter = [ "r|/scsi-3600508b1001cb007|", "a|.*|" ]', None, False),
    "devices file not used": ("", "use_devicesfile = 0\n" + LINE, "IDTYPE=devname IDNAME={0} DEVNAME={0}\n", True),
}  # fmt: skip

#: what an administrator alone can change; the others are told a line
IN_WORDS = {
    "another name accepted",
    "another disk accepted",
    "of Proxmox",
    "only another disk",
    "a link accepted",
    "a rejection alone",
    "disks accepted alone",
    "disks accepted alone, twice",
    "accepted after a rejection",
    "devices file with it",
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A disk that the host below `root` calls sda, with the links of udev; beside it, sdb of another SR."""
    root = tmp_path_factory.mktemp("host")
    images = [root / "lun.img", root / "other.img"]
    for image in images:
        builder.one_vhd().disk.to_file(str(image))
    new_ids = [sys.executable, "-m", "relvmoiscsi", "resignature", str(images[1]), "--yes", "--not-in-use"]
    subprocess.check_call(new_ids, stdout=subprocess.DEVNULL)
    loops = [subprocess.check_output(["losetup", "--find", "--show", str(each)]).decode().strip() for each in images]
    world = World(root)
    world.has_disk("sda")
    links = ["disk/by-id/relvmoiscsi-direct-sda", "disk/by-id/scsi-" + LUN]
    world.put("run/udev/data/b8:0", "".join(f"S:{link}\n" for link in links))
    (root / "dev/sda").unlink()
    for name, loop in [*((each, loops[0]) for each in ["sda", *links]), *((each, loops[1]) for each in OTHER)]:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(loop)
    yield world
    subprocess.check_call(["losetup", "--detach", *loops])


def seen_by_lvm(disk):
    """Return whether LVM sees the direct LUN, and whether it sees the other disk."""
    env = {**os.environ, "LC_ALL": "C", "LVM_SYSTEM_DIR": str(disk.root / "etc/lvm"), "LVM_SUPPRESS_FD_WARNINGS": "1"}
    # after a search for a PVID, a file in /run/lvm keeps LVM from the next search
    pvs = "mount -t tmpfs tmpfs /run && exec lvm pvs --all --noheadings -o pv_name"
    names = subprocess.check_output(["unshare", "--mount", "sh", "-c", pvs], env=env).decode().split()
    seen = {os.path.realpath(name) for name in names}
    return [os.path.realpath(str(disk.root / "dev" / name)) in seen for name in ("sda", "sdb")]


def lvm_conf(world, more):
    root = world.root
    return f"""
devices {{
    dir = "{root}/dev"
    scan = [ "{root}/dev" ]
    obtain_device_list_from_udev = 0
    external_device_info_source = "none"
    md_component_detection = 0
    multipath_component_detection = 0
    {more}
}}
global {{
    activation = 0
    locking_dir = "{root}/lock"
    use_lvmpolld = 0
}}
"""


@pytest.mark.parametrize("name", ROWS)
def test_what_is_told_of_a_filter_is_what_lvm_does(disk, name):
    first, second, file, is_ignored = ROWS[name]
    system = disk.root / "etc/lvm"
    disk.put("etc/lvm/lvm.conf", lvm_conf(disk, first))
    second = second.replace("{root}", str(disk.root))
    disk.put("etc/lvm/lvmlocal.conf", f"devices {{\n{second}\n}}\n" if second else "")
    pvid = re.search(rb"LABELONE.{24}(.{32})", (disk.root / "lun.img").read_bytes()[:4096], re.DOTALL).group(1).decode()
    disk.put("etc/lvm/devices/system.devices", (file or "").format(disk.host.node("sda"), pvid))
    if file is None:
        (system / "devices/system.devices").unlink()

    seen, sees_other = seen_by_lvm(disk)
    problems = lvm_problems({"disk": LUN}, disk.host._replace(runner=run))
    told = [each.message for each in problems]

    assert seen is not bool(is_ignored)
    assert bool(told) is (is_ignored is not True), told
    assert all(str(system) in each for each in told)
    if isinstance(is_ignored, str):
        later = disk.root / "dev" / is_ignored
        later.parent.mkdir(parents=True, exist_ok=True)
        later.symlink_to(os.path.realpath(disk.host.node("sda")))
        assert seen_by_lvm(disk)[0]
        later.unlink()

    lines = re.findall("devices { .* }", " ".join(each.advice for each in problems))
    assert bool(lines) is (bool(problems) and name not in IN_WORDS)
    for line in lines:
        is_replaced = re.search(r"devices \{ (\w+) =", line).group(1) == second.partition(" =")[0]
        disk.put("etc/lvm/lvmlocal.conf", line if is_replaced else f"{line}\ndevices {{\n{second}\n}}\n")
        assert seen_by_lvm(disk) == [False, sees_other]
        assert lvm_problems({"disk": LUN}, disk.host._replace(runner=run)) == []


def test_settings_that_lvm_cannot_read_are_told(disk):
    disk.put("etc/lvm/lvm.conf", "devices {\n")
    (problem,) = lvm_problems({"disk": LUN}, disk.host._replace(runner=run))
    assert "lvm dumpconfig --type full devices" in problem.message and problem.advice
