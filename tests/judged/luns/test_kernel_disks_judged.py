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

from kit.judges import attempt, run
from kit.sparse import SparseDisk
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.errors import Refused
from relvmoiscsi.host.disk import exclusive, udev
from relvmoiscsi.host.disk import scsi_id as scsi
from relvmoiscsi.host.disk.kernel_disks import exclusive_open
from relvmoiscsi.host.this_host import Host

pytestmark = pytest.mark.root

LUN = "36001405993c87c37fa84d02b7fa62c40"
MIB = 1 << 20
OLD, NEW = b"o" * 4096, b"n" * 4096

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
        assert self._line() == "open"

    def reads(self):
        self._process.stdin.write("read\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self):
        return self._process.stdout.readline().strip()

    def close(self):
        self._process.communicate()


@pytest.fixture
def disk(loops):
    disk = SparseDisk(8 * MIB)
    disk.poke(0, OLD)
    return loops(disk)


@pytest.fixture
def host(tmp_path, monkeypatch, disk):
    """A host that has the loop device as sdb."""
    root = tmp_path / "host"
    number = os.stat(disk.path).st_rdev
    (root / "dev").mkdir(parents=True)
    os.mknod(str(root / "dev/sdb"), 0o600 | stat.S_IFBLK, number)
    (root / "sys/block/sdb/device").mkdir(parents=True)
    (root / "sys/block/sdb/device/state").write_text("running\n")
    (root / "sys/block/sdb/dev").write_text(f"{os.major(number)}:{os.minor(number)}\n")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").symlink_to(root / "sys/block/sdb")
    (root / "proc").symlink_to("/proc")
    monkeypatch.setattr(udev, "scsi_id_of_disk", lambda name, host: LUN if name == "sdb" else None)
    monkeypatch.setattr(scsi, "live_scsi_id", lambda path: LUN)
    monkeypatch.setattr(scsi, "live_size", lambda path: 8 * MIB)
    monkeypatch.setattr(scsi, "live_serial", lambda path: "serial")
    monkeypatch.setattr(exclusive, "FLOCK_SECONDS", 0.5)
    return Host(str(root))


def write_past(disk, content):
    """To the LUN, and not through the disk that the kernel has of it."""
    with open(disk.file, "r+b") as file:
        file.write(content)


def test_a_reader_that_keeps_the_disk_open_reads_what_is_there_once_the_block_has_ended(disk, host):
    held = exclusive_open(LUN, NO_DEADLINE, host)
    assert held.__enter__() == [host.node("sdb")]
    with closing(Reader(disk.path)) as reader:
        assert reader.reads() == "o"
        write_past(disk, NEW)
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
        write_past(disk, NEW)
        held.__exit__(None, None, None)

        assert reader.reads() == "n"


def test_twin_without_the_end_of_the_block_the_reader_goes_on_reading_old_bytes(disk):
    with closing(Reader(disk.path)) as reader:
        assert reader.reads() == "o"
        write_past(disk, NEW)

        assert reader.reads() == "o"
        with open(disk.path, "rb") as another:
            assert another.read(1) == b"o"


def test_nobody_else_gets_the_disk_for_himself_meanwhile(disk, host):
    with exclusive_open(LUN, NO_DEADLINE, host):
        with pytest.raises(OSError, match="busy"):
            os.open(disk.path, os.O_RDONLY | os.O_EXCL)
        with open(host.node("sdb"), "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as udev does before it looks at a disk

    os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL))


def is_refused(host, by_whom):
    with pytest.raises(Refused, match=f"in use by .*{by_whom}.*Nothing was written") as refused:  # noqa: SIM117
        with exclusive_open(LUN, NO_DEADLINE, host):
            pytest.fail("it is in use")
    return refused.value.sm_key == "SRInUse"


def test_a_disk_that_another_process_reads_is_refused(disk, host):
    with closing(Reader(disk.path)):
        assert is_refused(host, "process [0-9]+ [(]python")


def test_a_disk_that_another_process_has_for_itself_is_refused(disk, host):
    with closing(Reader(disk.path, os.O_RDONLY | os.O_EXCL)):
        assert is_refused(host, "")


def test_a_disk_with_a_mounted_file_system_is_refused(disk, host, tmp_path):
    (tmp_path / "mnt").mkdir()
    run("mkfs.ext4", "-q", "-F", disk.path)
    if attempt("mount", "-o", "ro", disk.path, str(tmp_path / "mnt")).status:
        pytest.skip("this machine mounts no ext4")
    try:
        assert is_refused(host, "the file system mounted at")
    finally:
        run("umount", str(tmp_path / "mnt"))
