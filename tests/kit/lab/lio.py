# SPDX-License-Identifier: LGPL-2.1-only
"""iSCSI targets of the kernel (LIO), made with nothing but files under /sys/kernel/config/target."""

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .command import read, run, settle, until, write
from .guest import INITIATOR

CONFIG = Path("/sys/kernel/config/target")
CORE = CONFIG / "core"
ISCSI = CONFIG / "iscsi"

#: of the lab's own device-mapper devices below a LUN that can break
PREFIX = "lab-"


class Lun:
    """A logical unit on an image file.

    `number` is its LUN. `serial` makes its SCSI id; two LUNs with one serial are one disk to the initiator. A
    `breakable` one lies on device-mapper and can `freeze`, be `slow` and `heal`.
    """

    def __init__(self, path, number=0, serial=None, breakable=False):
        self.path, self.number, self.serial, self.breakable = str(path), number, serial or str(uuid.uuid4()), breakable
        self.name = f"{Path(self.path).stem}-{uuid.uuid4().hex[:6]}"
        self._users, self._loop, self._is_broken = 0, "", False

    @property
    def scsi_id(self):
        """As dom0's scsi_id prints it: NAA 6, Linux-IO's company id, 25 digits of the serial."""
        digits = "".join(letter for letter in self.serial if letter in "0123456789abcdefABCDEF")
        return "36001405" + digits[:25].lower().ljust(25, "0")

    @property
    def directory(self):
        return CORE / ("iblock_0" if self.breakable else "fileio_0") / self.name

    def open(self):
        """Make the backstore; once, however many targets export it."""
        self._users += 1
        if self._users > 1:
            return
        self.directory.mkdir(parents=True)
        if self.breakable:
            self._loop = run("losetup", "--find", "--show", self.path).out.strip()
            run("dmsetup", "create", PREFIX + self.name, "--noudevsync", stdin=self._table("linear {dev} 0"))
            device = "/dev/mapper/" + PREFIX + self.name
            until(lambda: os.path.exists(device), device)
            control = "udev_path=" + device
        else:
            control = f"fd_dev_name={self.path},fd_dev_size={os.path.getsize(self.path)},fd_buffered_io=1"
        write(self.directory / "control", control + "\n")
        write(self.directory / "wwn" / "vpd_unit_serial", self.serial + "\n")
        write(self.directory / "enable", "1\n")

    def close(self):
        self._users -= 1
        if self._users:
            return
        self.mend()
        self.directory.rmdir()
        with suppress(OSError):  # as long as another LUN lies there
            self.directory.parent.rmdir()  # rtslib counts backstores from 0, and takes none that is there
        if self.breakable:
            run("dmsetup", "remove", "--retry", "--noudevsync", PREFIX + self.name)
            settle()  # otherwise udev may remove the node of the next device of that name
            run("losetup", "--detach", self._loop)

    # -- breaking ---------------------------------------------------------------------------------------------------

    def freeze(self):
        """From now on commands are neither answered nor refused, until `heal`."""
        self._is_broken = True
        self._dmsetup("suspend", "--noflush", "--nolockfs")

    def slow(self, milliseconds):
        """From now on every command takes that long, until `heal`."""
        self._reload("delay {dev} 0 " + str(milliseconds))

    def heal(self):
        self._reload("linear {dev} 0")
        self._is_broken = False

    def mend(self):
        """`heal`, if something has broken it since."""
        if self._is_broken:
            self.heal()

    def _table(self, target):
        return f"0 {os.path.getsize(self.path) // 512} {target.format(dev=self._loop)}\n"

    def _reload(self, target):
        self._is_broken = True
        self._dmsetup("load", stdin=self._table(target))
        self._dmsetup("suspend", "--noflush", "--nolockfs")
        self._dmsetup("resume")

    def _dmsetup(self, command, *options, stdin=""):
        assert self.breakable, f"{self.path} was not made breakable"
        run("dmsetup", command, PREFIX + self.name, "--noudevsync", *options, stdin=stdin)


class Chap(NamedTuple):
    """A user and a password, as the target wants them (`chap`) or gives them (`mutual`)."""

    user: str
    password: str


class Target:
    """A target with its LUNs; each portal, "address:port", is a group of its own."""

    def __init__(self, iqn, luns=(), portals=("127.0.0.1:3260",), chap=None, mutual=None):
        self.iqn, self.luns, self.portals, self.chap, self.mutual = iqn, list(luns), list(portals), chap, mutual
        self.portal, self.directory, self._opened = portals[0], ISCSI / iqn, []

    def create(self):
        for portal, group in zip(self.portals, self._groups()):
            group.mkdir(parents=True)
            (group / "np" / portal).mkdir()
            write(group / "attrib" / "authentication", "1\n" if self.chap else "0\n")
            write(group / "attrib" / "generate_node_acls", "0\n")
            acl = group / "acls" / INITIATOR
            acl.mkdir()
            for suffix, chap in (("", self.chap), ("_mutual", self.mutual)):
                if chap:
                    write(acl / "auth" / f"userid{suffix}", chap.user)
                    write(acl / "auth" / f"password{suffix}", chap.password)
        for lun in self.luns:
            self._connect(lun)
        self.enable()
        return self

    def _groups(self):
        return [self.directory / f"tpgt_{number}" for number in range(1, len(self.portals) + 1)]

    def enable(self):
        """Open the portals."""
        for group in self._groups():
            write(group / "enable", "1\n")

    def disable(self):
        """The target vanishes: sessions are cut, logins refused, discovery does not name it."""
        for group in self._groups():
            if read(group / "enable") == "1":
                write(group / "enable", "0\n")

    def add_lun(self, lun):
        """A LUN is mapped while sessions are open; the initiator does not look by itself."""
        self.luns.append(lun)
        self._connect(lun)
        return lun

    def remove_lun(self, lun):
        """Unmap a LUN, even while it is in use."""
        self.luns.remove(lun)
        self._disconnect(lun)

    def _connect(self, lun):
        lun.open()
        self._opened.append(lun)
        name = f"lun_{lun.number}"
        for group in self._groups():
            (group / "lun" / name).mkdir()
            (group / "lun" / name / "storage").symlink_to(lun.directory)
            for acl in (group / "acls").iterdir():
                (acl / name).mkdir()
                (acl / name / "storage").symlink_to(group / "lun" / name)
                write(acl / name / "write_protect", "0\n")

    def _disconnect(self, lun):
        name = f"lun_{lun.number}"
        for group in self._groups():
            for acl in (group / "acls").iterdir():
                (acl / name / "storage").unlink()
                (acl / name).rmdir()
            (group / "lun" / name / "storage").unlink()
            (group / "lun" / name).rmdir()
        self._opened.remove(lun)
        lun.close()

    def remove(self):
        """Take it away, sessions or not; a second call does nothing."""
        if not self.directory.exists():
            return
        for lun in self.luns:
            lun.mend()
        self.disable()
        for lun in list(self._opened):
            self._disconnect(lun)
        for group in filter(Path.exists, self._groups()):  # one that failed has not all of them
            for kind in ("acls", "np"):
                for entry in (group / kind).iterdir():
                    entry.rmdir()
            group.rmdir()
        self.directory.rmdir()
