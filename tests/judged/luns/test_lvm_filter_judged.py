# SPDX-License-Identifier: LGPL-2.1-only
"""Which devices LVM ignores, by real LVM: what is told of a direct LUN is what `pvs --all` shows."""

import os
import re
import subprocess

import pytest

from kit import builder
from kit.direct_world import LUN, World
from relvmoiscsi.direct.lvm_filter import lvm_problems
from relvmoiscsi.host.command import run

LINE = 'global_filter = [ "r|/relvmoiscsi-direct-|" ]'
DIRECT = "dev/disk/by-id/relvmoiscsi-direct-sda"

#: of lvm.conf, of lvmlocal.conf, and of the devices file: does LVM ignore the device?
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
    "another disk accepted": ("", 'global_filter = [ "r|/relvmoiscsi-direct-|", "a|/sdb$|", "r|.*|" ]', None, True),
    "only another disk": ("", 'global_filter = [ "a|/vd[a-z]|", "r|.*|" ]', None, True),
    "a link accepted": ("", 'global_filter = [ "a|/scsi-36001|", "r|.*|" ]', None, False),
    "each name by its own": ("", 'filter = [ "r|/relvmoiscsi-direct-|", "r|/sda$|" ]', None, True),
    "with braces and escapes": ("", r'filter = [ "r{/relvmoiscsi\\-direct\\-}", "a(/sd{1})" ]', None, True),
    "with no such escape": ("", r'filter = [ "r|/relvmoiscsi-\\direct|" ]', None, True),
    "by a class and an alternative": ("", 'filter = [ "r#/(relvmo|x)[^/]*-direct-[a-z]+$#" ]', None, True),
    "at its beginning": ("", 'filter = [ "r|^relvmoiscsi-direct-|" ]', None, False),
    "devices file without it": ("", "use_devicesfile = 1", "IDTYPE=devname IDNAME=/dev/x DEVNAME=/dev/x\n", True),
    "devices file with it": ("", "use_devicesfile = 1\n" + LINE, "IDTYPE=devname IDNAME={0} DEVNAME={0}\n", False),
    "no devices file": ("", "use_devicesfile = 1\n" + LINE, None, True),
    "devices file not used": ("", "use_devicesfile = 0\n" + LINE, "IDTYPE=devname IDNAME={0} DEVNAME={0}\n", True),
}  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A disk that the host below `root` calls sda, with the links of udev."""
    root = tmp_path_factory.mktemp("host")
    image = root / "lun.img"
    builder.one_vhd().disk.to_file(str(image))
    loop = subprocess.check_output(["losetup", "--find", "--show", str(image)]).decode().strip()
    world = World(root)
    world.has_disk("sda")
    links = ["disk/by-id/relvmoiscsi-direct-sda", "disk/by-id/scsi-" + LUN]
    world.put("run/udev/data/b8:0", "".join(f"S:{link}\n" for link in links))
    (root / "dev/sda").unlink()
    for name in ["sda", *links]:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(loop)
    yield world
    subprocess.check_call(["losetup", "--detach", loop])


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
    disk.put("etc/lvm/lvmlocal.conf", f"devices {{\n{second}\n}}\n" if second else "")
    disk.put("etc/lvm/devices/system.devices", (file or "").format(disk.host.node("sda")))
    if file is None:
        (system / "devices/system.devices").unlink()

    env = {**os.environ, "LC_ALL": "C", "LVM_SYSTEM_DIR": str(system), "LVM_SUPPRESS_FD_WARNINGS": "1"}
    seen = subprocess.check_output(["lvm", "pvs", "--all", "--noheadings", "-o", "pv_name"], env=env).decode().split()
    problems = lvm_problems({"disk": LUN}, disk.host._replace(runner=run))
    told = [each.message for each in problems]

    assert bool(seen) is not is_ignored, seen
    assert bool(told) is not is_ignored, told
    assert all(str(system) in each and "/dev/sda" in each for each in told)

    for line in re.findall("devices { .* }", " ".join(each.advice for each in problems)):
        disk.put("etc/lvm/lvmlocal.conf", line)
        assert subprocess.check_output(["lvm", "pvs", "--all", "--noheadings", "-o", "pv_name"], env=env) == b""


def test_settings_that_lvm_cannot_read_are_told(disk):
    disk.put("etc/lvm/lvm.conf", "devices {\n")
    (problem,) = lvm_problems({"disk": LUN}, disk.host._replace(runner=run))
    assert "lvm dumpconfig --type full devices" in problem.message and problem.advice
