# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN that is written past the disk that this host has of it, on a real block device with its real page cache.

The host is simulated, except the node of its disk, which is a loop device. A write to the file of the loop device goes
past the device, as a write over the driver's session goes past the kernel's disk.
"""

import fcntl
import os
import stat
import subprocess
import sys
from contextlib import closing

import pytest

from kit.sparse import SparseDisk
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.host.disk import exclusive, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.this_host import Host

LUN = "36001405993c87c37fa84d02b7fa62c40"
MIB = 1 << 20

#: opens argv[1] with the flags argv[2], then reads the first 4096 bytes for each line that it is given
_READER = """
import os, sys
disk = os.open(sys.argv[1], int(sys.argv[2]))
print("open", flush=True)
for line in sys.stdin:
    print(os.pread(disk, 4096, 0)[:1].decode(), flush=True)
"""


class Reader:
    """Another process that has the device open."""

    def __init__(self, path, flags=os.O_RDONLY):
        argv = [sys.executable, "-c", _READER, path, str(flags)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        assert self._process.stdout.readline() == "open\n"

    def reads(self):
        self._process.stdin.write("read\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self):
        self._process.communicate()


@pytest.fixture
def disk(loops):
    disk = SparseDisk(8 * MIB)
    disk.poke(0, b"o" * 4096)
    return loops(disk)


@pytest.fixture
def host(tmp_path, monkeypatch, disk):
    """A host that has the loop device as sdb."""
    root, number = tmp_path / "host", os.stat(disk.path).st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    for directory in ("dev", "sys/block/sdb/device", "sys/dev/block"):
        (root / directory).mkdir(parents=True)
    os.mknod(str(root / "dev/sdb"), 0o600 | stat.S_IFBLK, number)
    (root / "sys/block/sdb/device/state").write_text("running\n")
    (root / "sys/block/sdb/dev").write_text(name + "\n")
    (root / "sys/dev/block" / name).symlink_to(root / "sys/block/sdb")
    (root / "proc").symlink_to("/proc")
    monkeypatch.setattr(udev, "scsi_id_of_disk", lambda name, host: LUN if name == "sdb" else None)
    for asked, answer in (("live_scsi_id", LUN), ("live_size", 8 * MIB), ("live_serial", "serial")):
        monkeypatch.setattr(scsi, asked, lambda path, answer=answer: answer)
    monkeypatch.setattr(exclusive, "FLOCK_SECONDS", 0.5)
    return Host(str(root))


def write_past(disk):
    """New bytes to the LUN, and not through the disk that the kernel has of it."""
    with open(disk.file, "r+b") as file:
        file.write(b"n" * 4096)


def test_a_reader_that_keeps_the_disk_open_reads_what_is_there_once_the_block_has_ended(disk, host):
    held = exclusive_open(LUN, NO_DEADLINE, host)
    assert held.__enter__() == [host.node("sdb")]
    with closing(Reader(disk.path)) as reader:
        assert reader.reads() == "o"
        write_past(disk)
        assert reader.reads() == "o", "the page cache has nothing old: this test shows nothing"
        held.__exit__(None, None, None)

        assert reader.reads() == "n"


def test_so_does_a_reader_of_a_disk_that_came_in_the_meantime(disk, host):
    os.rename(host.node("sdb"), host.node("later"))
    held = exclusive_open(LUN, NO_DEADLINE, host)
    assert held.__enter__() == []
    os.rename(host.node("later"), host.node("sdb"))
    with closing(Reader(disk.path)) as reader:
        assert reader.reads() == "o"
        write_past(disk)
        held.__exit__(None, None, None)

        assert reader.reads() == "n"


def test_nobody_else_gets_the_disk_for_himself_meanwhile(disk, host):
    with exclusive_open(LUN, NO_DEADLINE, host):
        with pytest.raises(OSError, match="busy"):
            os.open(disk.path, os.O_RDONLY | os.O_EXCL)
        with open(host.node("sdb"), "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as udev does before it looks at a disk

    os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL))
