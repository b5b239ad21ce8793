# SPDX-License-Identifier: LGPL-2.1-only
"""Two Fibre Channel fabrics with an array behind them, of the kernel's own means: only in the emulated machine.

    ini0 ==veth== tgt0     FCoE, point to point (VN2VN), once per fabric: adapters of this host, remote ports
                  tcm_fc   the array's ports; its LUNs are those of kit.lab.lio, each in both fabrics or in one

As with a real array, a LUN that is mapped while the ports are logged in appears only after a scan or a link bounce.
After a LUN is unmapped, its disk stays, and does not answer.
"""

import os
from pathlib import Path

from .command import read, run, settle, until, write
from .lio import CONFIG

MODULES = ("target_core_mod", "target_core_file", "target_core_iblock", "fcoe", "tcm_fc", "veth")
BUS = Path("/sys/bus/fcoe")
HOSTS = Path("/sys/class/scsi_host")
BOTH = (0, 1)


class Fabrics:
    """One for a session: it stays as `setup` made it, and `clear` takes away what a test has mapped."""

    def __init__(self):
        self._mapped = {}

    def setup(self):
        run("modprobe", "-a", *MODULES)
        for path in BOTH:
            ini, tgt = f"ini{path}", f"tgt{path}"
            run("ip", "link", "add", ini, "type", "veth", "peer", "name", tgt)
            for name, mac in ((ini, f"02:00:00:00:0a:0{path}"), (tgt, f"02:00:00:00:0b:0{path}")):
                run("ip", "link", "set", name, "mtu", "2500", "address", mac, "up")
            for name in (tgt, ini):
                write(BUS / "ctlr_create", name)
                write(_controller(name) / "mode", "vn2vn")
            self._acl(path).mkdir(parents=True)
        for path in BOTH:
            for name in (f"tgt{path}", f"ini{path}"):
                write(_controller(name) / "enabled", "1")
        until(lambda: all(self.is_logged_in(path) for path in BOTH), "both adapters see the array")
        for port in Path("/sys/class/fc_remote_ports").glob("rport-*"):
            write(port / "dev_loss_tmo", "2")
            if read(port / "fast_io_fail_tmo") != "off":
                write(port / "fast_io_fail_tmo", "1")
        return self

    def teardown(self):
        self.clear()
        for path in BOTH:
            for name in (f"ini{path}", f"tgt{path}"):
                write(_controller(name) / "enabled", "0")
            self._acl(path).rmdir()
            self._group(path).rmdir()
            self._group(path).parent.rmdir()
            for name in (f"ini{path}", f"tgt{path}"):
                write(BUS / "ctlr_destroy", name)
            run("ip", "link", "delete", f"ini{path}")

    # -- the array --------------------------------------------------------------------------------------------------

    def map(self, lun, number, paths=BOTH):
        """Give the host a LUN (kit.lab.lio.Lun) by a number, in these fabrics."""
        for path in paths:
            lun.open()
            entry, access = self._group(path) / "lun" / f"lun_{number}", self._acl(path) / f"lun_{number}"
            entry.mkdir()
            access.mkdir()
            (entry / "storage").symlink_to(lun.directory)
            (access / "storage").symlink_to(entry)
            self._mapped[path, number] = lun
        return lun

    def unmap(self, number, paths=BOTH):
        for path in paths:
            lun = self._mapped.pop((path, number))
            entry, access = self._group(path) / "lun" / f"lun_{number}", self._acl(path) / f"lun_{number}"
            (access / "storage").unlink()
            access.rmdir()
            (entry / "storage").unlink()
            entry.rmdir()
            lun.close()

    # -- the host ---------------------------------------------------------------------------------------------------

    def is_logged_in(self, path):
        """Has the adapter of this fabric a port of the array?"""
        ports = Path("/sys/class/fc_remote_ports").glob("rport-{}:*".format(self.host(path)[len("host") :]))
        return any("Target" in read(port / "roles") and read(port / "port_state") == "Online" for port in ports)

    def host(self, path):
        """The adapter: "host3"."""
        return next(_controller(f"ini{path}").glob("host*")).name

    def wwpn(self, path):
        """Of the array's port, "2000020000000b00"."""
        return read(Path("/sys/class/fc_host") / next(_controller(f"tgt{path}").glob("host*")).name / "port_name")[2:]

    def scan(self, paths=BOTH):
        for path in paths:
            write(HOSTS / self.host(path) / "scan", "- - -")
        settle()

    def cable_out(self, path):
        """While nothing is on its way: else link events and the removal of disks may wait for each other for ever."""
        run("ip", "link", "set", f"ini{path}", "down")

    def cable_in(self, path):
        """The ports log in again, and the kernel looks for LUNs by itself."""
        run("ip", "link", "set", f"ini{path}", "up")
        until(lambda: self.is_logged_in(path), f"fabric {path} is there again")
        settle()

    def clear(self):
        """Take away all LUNs and their disks."""
        for path in BOTH:
            run("ip", "link", "set", f"ini{path}", "up")
        for path, number in list(self._mapped):
            lun = self._mapped[path, number]
            lun.mend()
        for disk in self.disks():
            self.delete(disk)
        for path, number in list(self._mapped):
            self.unmap(number, (path,))
        until(lambda: all(self.is_logged_in(path) for path in BOTH), "both fabrics are there again")
        settle()

    def disks(self):
        """The disks behind the adapters: "sdb"."""
        found = []
        for path in BOTH:
            number = self.host(path)[len("host") :]
            devices = Path("/sys/bus/scsi/devices").glob(f"{number}:*:*:*/block/sd*")
            found += [device.name for device in devices]
        return sorted(found)

    @staticmethod
    def delete(disk):
        """The host forgets a disk, the array does not."""
        if os.path.exists(f"/sys/block/{disk}"):
            write(f"/sys/block/{disk}/device/delete", "1")

    def _group(self, path):
        return CONFIG / "fc" / _colons(self.wwpn(path)) / "tpgt_1"

    def _acl(self, path):
        ini = read(Path("/sys/class/fc_host") / self.host(path) / "port_name")[2:]
        return self._group(path) / "acls" / _colons(ini)


def _controller(interface):
    """Of a network interface: its FCoE controller."""
    return next(Path("/sys/devices/virtual/net", interface).glob("ctlr_*"))


def _colons(wwpn):
    return ":".join(wwpn[at : at + 2] for at in range(0, len(wwpn), 2))
