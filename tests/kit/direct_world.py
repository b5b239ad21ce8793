# SPDX-License-Identifier: LGPL-2.1-only
"""A host with LUNs, as far as direct LUNs need one: files in a directory, and what is on the disks."""

import os

from relvmoiscsi.direct import links as direct
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.formats.lvm.owner import Owner
from relvmoiscsi.host import this_host

LUN = "36001405993c87c37fa84d02b7fa62c40"
OTHER = "36001405993c87c37fa84d02b7fa62c41"


class World:
    """What sysfs, /dev and udev's database would hold, and what is on the disks."""

    def __init__(self, root):
        self.root = root
        self.content = {}
        self.lvm = {}
        self.steps = []
        for directory in ("sys/block", "dev/mapper", "dev/xapi/block", "etc/multipath", "run"):
            (root / directory).mkdir(parents=True)
        self.host = this_host.Host(str(root), wait_for=self.wait_for)
        self.configure(f"[direct]\ndisk = {LUN}\n")

    def configure(self, text):
        self.put("etc/relvmoiscsi.conf", text)

    def has_iscsi_disk(self, name, session=7, **more):
        device = self.root / f"sys/devices/platform/host3/session{session}/target3:0:0/3:0:0:0/block" / name
        device.mkdir(parents=True)
        (self.root / "sys/block" / name).symlink_to(device)
        self.has_disk(name, **more)

    def has_disk(self, name, number="8:0", scsi_id=LUN, state="running"):
        data = bytes.fromhex(scsi_id[1:])
        self.put(f"sys/block/{name}/device/vpd_pg83", bytes([0, 0x83, 0, 20, 1, 3, 0, 16]) + data)
        self.put(f"sys/block/{name}/device/state", state + "\n")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/size", "131072\n")
        self.put(f"sys/block/{name}/uevent")
        self.put("dev/" + name)

    def has_map(self, name="dm-0", paths=("sda", "sdb"), number="253:0", scsi_id=LUN, suspended="0"):
        for path, text in (("uuid", "mpath-" + scsi_id), ("name", scsi_id), ("suspended", suspended)):
            self.put(f"sys/block/{name}/dm/{path}", text + "\n")
        for path in paths:
            self.put(f"sys/block/{name}/slaves/{path}")
        self.put(f"sys/block/{name}/dev", number + "\n")
        self.put(f"sys/block/{name}/size", "131072\n")
        self.put(f"sys/block/{name}/uevent")
        self.put("dev/" + name)

    def lists(self, scsi_id=LUN):
        self.put("etc/multipath/wwids", f"# Valid WWIDs:\n/{scsi_id}/\n")

    def runs_multipathd(self):
        self.runs("/usr/sbin/multipathd", 0)

    def runs(self, program, user, number="4711", name="multipathd"):
        """A process under the name of multipathd, which each user may give."""
        self.put(f"proc/{number}/comm", name + "\n")
        self.put(f"proc/{number}/status", f"Name:\t{name}\nUid:\t{user}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
        (self.root / "proc" / number / "exe").symlink_to(program)

    def marks(self, number, name="disk"):
        self.put("run/udev/data/b" + number, f"I:1\nE:RELVMOISCSI_DIRECT={name}\n")

    def links(self, target, name="disk"):
        path = self.root / "dev/xapi/block" / name
        if path.is_symlink():
            path.unlink()
        path.symlink_to("../../" + target)

    def links_for_lvm(self, kernel_name):
        """The link by which LVM's filter knows a device of a direct LUN."""
        self.put("dev/disk/by-id/relvmoiscsi-direct-" + kernel_name)

    def has_lvm(self, directory="etc/lvm", devices=""):
        """LVM of this host, with what `dumpconfig` tells of the settings in a directory."""
        self.put(directory + "/lvm.conf")
        self.lvm[self.host.at(directory)] = f"devices {{\n{devices}\n}}\n"

    def tells_lvm(self, argv):
        """What LVM answers, for its directory as a variable of `env`; None if this is no question to LVM."""
        if argv[0] != "env" or argv[2:] != ["lvm", "dumpconfig", "--type", "full", "devices"]:
            return None
        return self.lvm[argv[1].partition("LVM_SYSTEM_DIR=")[2]]

    def put(self, path, content=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def events(self):
        files = sorted((self.root / "sys/block").glob("*/uevent"))
        return [path.parent.name for path in files if path.read_text() == "change"]

    def look(self, path):
        found = self.content.get(os.path.basename(path), Owner())
        if isinstance(found, Exception):
            raise found
        return found

    def wait_for(self, condition, _seconds):
        """Looks, with the next step of the test before the second, the third, ..."""
        while True:
            value = condition()
            if value or not self.steps:
                return value
            self.steps.pop(0)()

    def link_name(self, device):
        return direct.link_name(device, self.host)


def in_process(look, path, _seconds):
    try:
        return look(path)
    except DeviceError as error:
        raise Refused(str(error)) from error
