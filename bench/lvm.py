# SPDX-License-Identifier: LGPL-2.1-only
"""What people would use instead, on loop devices that nothing else sees.

LVM gets a configuration, lock and backup directories of its own and a filter that lets it see one device. The
configuration is not that of the tests' judges, which gives up for speed what people have (use_aio, detection of md and
multipath). The kernel of a build machine may have no device-mapper: nothing is activated.
"""

import os
import subprocess
import uuid
from typing import List, Sequence

from bench.counts import dice
from kit.sparse import SparseDisk

_CONFIG = """
devices {
    dir = "/dev"
    scan = [ "/dev" ]
    use_devicesfile = 0
    hints = "none"
    obtain_device_list_from_udev = 0
    external_device_info_source = "none"
    global_filter = [ "a|^%(device)s$|", "r|.*|" ]
}
global {
    activation = 0
    locking_type = 1
    locking_dir = "%(directory)s/lock"
    use_lvmpolld = 0
    use_lvmlockd = 0
    event_activation = 0
}
activation {
    udev_sync = 0
    udev_rules = 0
    monitoring = 0
}
backup {
    backup = 0
    archive = 0
    backup_dir = "%(directory)s/backup"
    archive_dir = "%(directory)s/archive"
}
"""


class Loop:
    """A LUN in a sparse file behind a loop device; `reset` makes it the clone again that it was."""

    def __init__(self, disk: SparseDisk, path: str, ring_end: int) -> None:
        self._path = path
        self._disk, self._ring_end = disk, ring_end
        disk.to_file(path)
        command = ["losetup", "--find", "--show", "--sector-size", str(disk.block_size), path]
        self.device = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().strip()

    def reset(self) -> None:
        descriptor = os.open(self.device, os.O_WRONLY)
        try:
            os.pwrite(descriptor, bytes(self._ring_end), 0)
            for offset, data in self._disk.runs(without_filler=True):
                os.pwrite(descriptor, data, offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def detach(self) -> None:
        subprocess.run(["losetup", "--detach", self.device], check=True)
        os.unlink(self._path)


class Lvm:
    """LVM that sees one device."""

    def __init__(self, directory: str, device: str) -> None:
        self._directory, self.device = directory, device
        for name in ("lock", "backup", "archive"):
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        with open(os.path.join(directory, "lvm.conf"), "w") as config:
            config.write(_CONFIG % {"directory": directory, "device": device})

    def __call__(self, *argv: str) -> str:
        environment = dict(os.environ, LVM_SYSTEM_DIR=self._directory, LVM_SUPPRESS_FD_WARNINGS="1", LC_ALL="C")
        done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        if done.returncode:
            raise RuntimeError("{}: {}".format(" ".join(argv), done.stderr.decode()))
        return done.stdout.decode()

    def version(self) -> str:
        return self("lvm", "version").split("LVM version:")[1].split()[0]

    # -- the alternatives

    def vgimportclone(self, new_name: str) -> None:
        """New PV and VG ids and a new VG name; LV ids and names, MGT and images keep naming the original."""
        self("vgimportclone", "-n", new_name, self.device)

    def rename_all(self, vg_name: str, lv_names: Sequence[str]) -> None:
        """New names for all volumes, one command each, as LVM has no other way; their ids stay."""
        draw = dice("renames")
        for name in lv_names:
            prefix, _dash, _uuid = name.partition("-")
            self("lvrename", vg_name, name, f"{prefix}-{uuid.UUID(bytes=draw(16), version=4)}")

    def lv_names(self, vg_name: str) -> List[str]:
        return self("lvs", "--noheadings", "-o", "lv_name", vg_name).split()
