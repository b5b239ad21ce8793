# SPDX-License-Identifier: LGPL-2.1-only
"""What people would use instead, on loop devices that nothing else sees.

LVM gets a configuration, lock and backup directories of its own and a filter that lets it see one device. The
configuration is not that of the tests' judges, which gives up for speed what people have (use_aio, detection of md and
multipath). The kernel of a build machine may have no device-mapper: nothing is activated but by `procedure`.
"""

import os
import re
import subprocess
from typing import Dict, List, Sequence

from bench.counts import dice
from kit.sparse import SparseDisk
from relvmoiscsi.formats.identity import dashed, lvm_id_from_bytes, new_uuid

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
    activation = %(activation)d
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

_ID = re.compile(r'\bid = "([0-9A-Za-z-]{38})"')
_VG = re.compile(r"VG_XenStorage-[0-9a-f-]{36}")


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
    """LVM that sees one device; `activation`: where there is device-mapper."""

    def __init__(self, directory: str, device: str, activation: bool = False) -> None:
        self._directory, self.device = directory, device
        for name in ("lock", "backup", "archive"):
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        with open(os.path.join(directory, "lvm.conf"), "w") as config:
            config.write(_CONFIG % {"directory": directory, "device": device, "activation": activation})

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
            self("lvrename", vg_name, name, f"{prefix}-{new_uuid(draw)}")

    def restore_edited(self, vg_name: str) -> str:
        """The procedure of the 2015 pack, as far as LVM's metadata goes; gives the new VG's name.

        It saves the metadata to a text file. In the file the VG gets a new name, PV and LVs get new ids and names. Then
        it makes a label with the new PV id, and restores the text. (The pack kept the VG's id. Here the id changes,
        which costs nothing.) The pack's next steps are in `procedure`.
        """
        file = os.path.join(self._directory, "backup", "vg.txt")
        self("vgcfgbackup", "-f", file, vg_name)
        with open(file, encoding="latin-1") as backup:
            text = backup.read()
        draw = dice("procedure")
        ids: Dict[str, str] = {old: dashed(lvm_id_from_bytes(draw(32))) for old in _ID.findall(text)}
        names: Dict[str, str] = {old: new_uuid(draw) for old in set(re.findall("(?:VHD|LV)-([0-9a-f-]{36})", text))}
        new_name = "VG_XenStorage-" + new_uuid(draw)
        text = _VG.sub(new_name, _ID.sub(lambda match: f'id = "{ids[match.group(1)]}"', text))
        text = re.sub("((?:VHD|LV)-)([0-9a-f-]{36})", lambda match: match.group(1) + names[match.group(2)], text)
        with open(file, "w", encoding="latin-1") as backup:
            backup.write(text)
        pv_id = _ID.findall(text[text.index("physical_volumes") :])[0]
        self("pvcreate", "-ff", "-y", "--uuid", pv_id, "--restorefile", file, self.device)
        self("vgcfgrestore", "-f", file, new_name)
        return new_name

    def procedure(self, vg_name: str) -> None:
        """The whole procedure: `restore_edited`, then activate every LV, read and write MGT and a sector of each image,
        and deactivate every LV. A new parent and a new UUID take at least these writes. Needs `activation`.
        """
        new_name = self.restore_edited(vg_name)
        self("vgchange", "-ay", new_name)
        for name in self.lv_names(new_name):
            path = "/dev/mapper/{}-{}".format(new_name.replace("-", "--"), name.replace("-", "--"))
            with open(path, "r+b", buffering=0) as volume:
                sector = volume.read(512)
                volume.seek(0)
                volume.write(sector)
                os.fsync(volume.fileno())
        self("vgchange", "-an", new_name)

    def lv_names(self, vg_name: str) -> List[str]:
        return self("lvs", "--noheadings", "-o", "lv_name", vg_name).split()
