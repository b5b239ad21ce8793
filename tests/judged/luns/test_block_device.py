# SPDX-License-Identifier: LGPL-2.1-only
"""Real block devices: loop devices with sectors of 512 and 4096 bytes."""

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from kit.builder import one_vhd
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, Refused, UsageError
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import exclusive
from relvmoiscsi.host.disk.block_device import BLKFLSBUF, BlockDevice, open_device
from relvmoiscsi.host.disk.scsi_id import node_of
from relvmoiscsi.host.this_host import Host

MIB = 1024 * 1024
SIZE = 8 * MIB
CONTENT = b"".join(b"%015d\n" % number for number in range(SIZE // 16))
BLOCK = 4096


@pytest.fixture
def attach():
    """Attach a file to a free loop device; all are detached at the end."""
    attached = []

    def losetup(file, *options):
        command = ["losetup", "--find", "--show", *options, str(file)]
        attached.append(subprocess.check_output(command).decode().strip())
        if os.path.exists("/run/udev/control"):  # else a worker of udev is at the new device for a moment
            subprocess.run(["udevadm", "settle"], check=True)
        return attached[-1]

    yield losetup
    for loop in attached:
        subprocess.run(["losetup", "--detach", loop], check=True)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def loop(attach, image):
    return attach(image, "--sector-size", str(BLOCK))


def is_refused(device, words, writable=True, timeout=0):
    with pytest.raises(Refused, match=words) as caught:
        open_device(device, writable, lock_timeout=timeout)
    return str(caught.value)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [512, 4096])
def test_any_range_is_read_and_what_is_written_is_in_the_file_and_nothing_else(attach, image, block_size):
    loop = attach(image, "--sector-size", str(block_size))
    ranges = [Range(SIZE - 1, 1), Range(0, SIZE), Range(513, 4095), Range(4096, 1), Range(3 * MIB - 7, 14)]
    chunks = [Chunk(number * 3 * block_size, bytes([number]) * block_size) for number in range(50)]
    chunks.append(Chunk(4 * MIB, b"z" * (2 * MIB + block_size)))
    expected = bytearray(CONTENT)
    for chunk in chunks:
        expected[chunk.offset : chunk.end] = chunk.data

    with open_device(loop, writable=True) as device:
        assert isinstance(device, BlockDevice) and device.physical_block_size >= block_size
        assert (device.name, device.size_bytes, device.block_size) == (loop, SIZE, block_size)
        assert device.data_ranges() == [Range(0, SIZE)]
        assert device.read(ranges) == [CONTENT[item.offset : item.end] for item in ranges]
        device.write(chunks)
        device.flush()
        assert image.read_bytes() == expected

        os.truncate(str(image), MIB)  # the loop device keeps its size
        with pytest.raises(DeviceError) as caught:
            device.read([Range(0, 10), Range(2 * MIB + 1, 10)])
        error = caught.value
        assert (error.device, error.action, error.offset, error.length) == (loop, "read", 2 * MIB, block_size)


def test_a_batch_may_be_larger_than_the_kernel_has_mappings_for_a_process(attach, tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(str(path), 70000 * 8192)

    with open_device(attach(path), writable=False) as device:
        assert set(device.read([Range(number * 8192, 1) for number in range(70000)])) == {b"\0"}


@pytest.mark.parametrize("is_permitted", [True, False])
def test_a_reader_through_the_page_cache_sees_what_was_written(loop, monkeypatch, is_permitted):
    """Without the right to drop the page cache the device can still be written."""

    def not_permitted(descriptor, request, argument, ioctl=fcntl.ioctl):
        if request == BLKFLSBUF:
            raise PermissionError(1, "Operation not permitted")
        return ioctl(descriptor, request, argument)

    if not is_permitted:
        monkeypatch.setattr("relvmoiscsi.host.disk.block_device.fcntl.ioctl", not_permitted)
    with open(loop, "rb", buffering=0) as cached:
        assert cached.read(16) == b"%015d\n" % 0
        with open_device(loop, writable=True) as device:
            device.write([Chunk(0, b"n" * BLOCK)])
            cached.seek(0)
            assert not is_permitted or cached.read(16) == b"n" * 16


@pytest.mark.parametrize("how", ["attached", "set"])
def test_a_read_only_device_is_refused_for_writing_only(attach, image, how):
    loop = attach(image, *(["--read-only"] if how == "attached" else []))
    subprocess.run(["blockdev", "--setro", loop], check=True)
    try:
        is_refused(loop, f"{loop} is read-only")
        with open_device(loop, writable=False) as device:
            assert device.read([Range(0, 4)]) == [b"0000"]
            assert str(device.objection).startswith(f"{loop} is read-only"), "a dry run tells it"
    finally:
        if how == "set":
            subprocess.run(["blockdev", "--setrw", loop], check=True)  # the flag outlives the attachment


def test_blocks_of_another_size_and_a_node_that_became_a_file_are_refused(attach, image):
    loop = attach(image, "--sector-size", "2048")
    is_refused(loop, "has logical blocks of 2048 bytes; 512 or 4096 are supported", writable=False)
    with pytest.raises(UsageError, match="is no block device"):
        BlockDevice(str(image), writable=False)


@pytest.mark.parametrize("writable", [False, True])
def test_a_caller_who_wants_an_image_file_gets_no_block_device(loop, writable):
    with pytest.raises(UsageError, match="is no image file"):
        open_device(loop, writable, is_kind=stat.S_ISREG)


@pytest.mark.parametrize("name", ["{}", "clone", "cciss/c0d0"])
def test_the_node_of_a_device_is_found_whatever_its_name(loop, tmp_path, name):
    """A container may call a disk otherwise, and the kernel's cciss!c0d0 is /dev/cciss/c0d0."""
    number, node = os.stat(loop).st_rdev, tmp_path / "dev" / name.format(os.path.basename(loop))
    device, link = tmp_path / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}", tmp_path / "dev/0"
    node.parent.mkdir(parents=True)
    link.symlink_to(loop)
    assert node_of(str(link), Host(str(tmp_path))) == ""
    os.mknod(str(node), 0o600 | stat.S_IFBLK, number)
    (node.parent / "a").touch()
    assert node_of(str(link), Host(str(tmp_path))) == "", "a disk that has gone"
    device.parent.mkdir(parents=True)
    device.symlink_to(os.path.realpath("/sys/block/" + os.path.basename(loop)))
    assert node_of(str(link), Host(str(tmp_path))) == str(node)


@pytest.mark.parametrize("mode, owner", [(0o1777, 0), (0o755, 12345)])
def test_a_node_is_not_looked_for_where_an_ordinary_user_makes_files(loop, tmp_path, mode, owner):
    """In /dev/shm that was no mount of its own, 200,000 directories of a user took the walk 47 seconds."""
    number, shm = os.stat(loop).st_rdev, tmp_path / "dev/shm"
    (shm / "1").mkdir(parents=True)
    (tmp_path / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}").mkdir(parents=True)
    os.mknod(str(shm / "1/node"), 0o600 | stat.S_IFBLK, number)
    assert node_of(loop, Host(str(tmp_path))) == str(shm / "1/node")
    os.chown(str(shm), owner, 0)
    shm.chmod(mode)
    assert node_of(loop, Host(str(tmp_path))) == ""


# -- who has it open --------------------------------------------------------------------------------------------------


def test_a_device_is_open_for_writing_once_and_readers_are_welcome(loop):
    with open_device(loop, writable=False) as first, open_device(loop, writable=True):
        assert is_refused(loop, "is in use by this very process. Nothing was written")
        with open_device(loop, writable=False) as second:
            assert first.read([Range(0, 4)]) == second.read([Range(0, 4)]) == [b"0000"]


def test_udev_is_kept_away_until_the_device_is_closed(loop):
    with open(loop, "rb") as node:
        with open_device(loop, writable=True), pytest.raises(BlockingIOError):
            fcntl.flock(node, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(node, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_udev_worker_is_waited_for_and_named_if_it_does_not_end(loop, monkeypatch):
    node = os.open(loop, os.O_RDONLY)
    fcntl.flock(node, fcntl.LOCK_SH)
    is_refused(loop, "locked by this very process, and was not free within 0 seconds")

    monkeypatch.setattr(flock, "pause", lambda _seconds: os.close(node))
    with open_device(loop, writable=True, lock_timeout=60):
        pass


def test_a_loop_device_over_it_is_named_and_of_an_image_the_one_in_front_of_it(attach, image, loop):
    is_refused(str(image), f"is in use by loop device {loop}")
    over = attach(loop, "--read-only")
    is_refused(loop, f"{loop} is in use by loop device {over}")


def test_a_loop_device_over_a_node_that_was_removed_is_named(attach, loop, tmp_path):
    node = tmp_path / "node"
    os.mknod(str(node), stat.S_IFBLK | 0o600, os.stat(loop).st_rdev)
    over = attach(node, "--read-only")
    node.unlink()
    is_refused(loop, f"{loop} is in use by loop device {over}")


_HOLDER = "import os, sys; held = os.open(sys.argv[1], {}); print('open', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def beside(*argv):
    """Another process, which does something, says so, and stays until the end of the block."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize("flags", ["os.O_RDONLY", "os.O_WRONLY"])
def test_whoever_has_it_open_without_asking_to_be_alone_is_named(loop, flags):
    with beside(sys.executable, "-c", _HOLDER.format(flags), loop) as pid:
        said = is_refused(loop, rf"in use by process {pid} \(")
        assert said.endswith("Nothing was written. Try again when that use has ended.")


def test_a_program_that_looks_for_a_moment_is_waited_for(loop, monkeypatch):
    with contextlib.ExitStack() as looking:
        looking.enter_context(beside(sys.executable, "-c", _HOLDER.format("os.O_RDONLY"), loop))
        ended = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: looking.close())
        monkeypatch.setattr(exclusive, "time", ended)

        with open_device(loop, writable=True, lock_timeout=60):
            pass


@pytest.mark.parametrize("namespace", [(), ("unshare", "--mount")], ids=["here", "in another namespace"])
def test_a_mounted_device_is_refused_and_the_mount_is_named(attach, image, tmp_path, namespace):
    loop, mount = attach(image), tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mkfs.ext2", "-q", loop], check=True)
    with beside(*namespace, "sh", "-c", f"mount {loop} {mount} && echo open && read -r _; umount {mount}"):
        is_refused(loop, f"in use by the file system mounted at {mount}")

    with open_device(loop, writable=True):
        pass


def test_a_device_of_which_nobody_was_asked_takes_more_than_a_yes(attach, tmp_path):
    lun = tmp_path / "lun"
    one_vhd().disk.to_file(str(lun))
    loop, before = attach(lun), lun.read_bytes()

    def run(*words):
        argv = [sys.executable, "-m", "relvmoiscsi", "resignature", loop, "--yes", *words]
        return subprocess.run(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, check=False)

    refused, untouched = run(), lun.read_bytes() == before
    done = run("--not-in-use", "--json")

    assert refused.returncode == 4 and b"the device has no SCSIid" in refused.stderr
    assert untouched and done.returncode == 0
    found = json.loads(done.stdout.decode())["lun"]
    assert (found["device_kind"], found["scsi_id"], found["pool"]["overridden"]) == ("block device", None, True)
