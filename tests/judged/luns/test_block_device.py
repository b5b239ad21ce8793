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
from relvmoiscsi.errors import DeviceError, NotFound, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import exclusive
from relvmoiscsi.host.disk.block_device import BLKFLSBUF, BlockDevice, open_device, same_device
from relvmoiscsi.host.disk.scsi_id import scsi_id_of

pytestmark = pytest.mark.root

MIB = 1024 * 1024
SIZE = 8 * MIB
CONTENT = b"".join(b"%015d\n" % number for number in range(SIZE // 16))


@pytest.fixture
def attach():
    """Attach a file to a free loop device; all are detached at the end."""
    attached = []

    def losetup(file, *options):
        command = ["losetup", "--find", "--show", *options, str(file)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        attached.append(done.stdout.decode().strip())
        if os.path.exists("/run/udev/control"):  # else a worker of udev is at the new device for a moment
            subprocess.run(["udevadm", "settle"], check=True)
        return attached[-1]

    yield losetup
    for loop in attached:
        subprocess.run(["losetup", "--detach", loop], check=True)


@pytest.fixture
def unattached(tmp_path):
    """A loop device without a file, of a number that `losetup --find` does not give to anybody."""
    number, add, remove = 2000 + os.getpid() % 1000, 0x4C80, 0x4C81  # linux/loop.h, LOOP_CTL_ADD and LOOP_CTL_REMOVE
    node = str(tmp_path / "loop")
    with open("/dev/loop-control", "rb", buffering=0) as control:
        fcntl.ioctl(control, add, number)
        os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(7, number))
        yield node
        fcntl.ioctl(control, remove, number)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def block_size():
    """Tests for which it matters have both: `of_both_sizes`."""
    return 4096


of_both_sizes = pytest.mark.parametrize("block_size", [512, 4096])


@pytest.fixture
def loop(attach, image, block_size):
    return attach(image, "--sector-size", str(block_size))


@of_both_sizes
def test_size_and_block_size_are_those_of_the_device(loop, block_size):
    with open_device(loop, writable=False) as device:
        assert isinstance(device, BlockDevice)
        assert (device.name, device.size_bytes, device.block_size) == (loop, SIZE, block_size)
        assert device.physical_block_size >= block_size
        assert device.data_ranges() == [Range(0, SIZE)]


@of_both_sizes
def test_any_range_can_be_read_whatever_the_block_size(loop, image):
    whole = image.read_bytes()
    ranges = [Range(SIZE - 1, 1), Range(0, SIZE), Range(513, 4095), Range(4096, 1), Range(3 * MIB - 7, 14)]

    with open_device(loop, writable=False) as device:
        assert device.read(ranges) == [whole[item.offset : item.end] for item in ranges]


def test_a_batch_may_be_larger_than_the_kernel_has_mappings_for_a_process(attach, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"")
    os.truncate(str(path), 70000 * 8192)

    with open_device(attach(path), writable=False) as device:
        found = device.read([Range(number * 8192, 1) for number in range(70000)])

        assert set(found) == {b"\0"}


@of_both_sizes
def test_what_is_written_and_flushed_is_in_the_file_and_the_rest_is_as_before(loop, image, block_size):
    expected = bytearray(image.read_bytes())
    chunks = [Chunk(number * 3 * block_size, bytes([number]) * block_size) for number in range(50)]
    chunks.append(Chunk(4 * MIB, b"z" * (2 * MIB + block_size)))

    with open_device(loop, writable=True) as device:
        device.write(chunks)
        device.flush()

    for chunk in chunks:
        expected[chunk.offset : chunk.end] = chunk.data
    assert image.read_bytes() == expected


def test_a_reader_through_the_page_cache_sees_what_was_written(loop, block_size):
    with open(loop, "rb", buffering=0) as cached:
        assert cached.read(16) == b"%015d\n" % 0

        with open_device(loop, writable=True) as device:
            device.write([Chunk(0, b"n" * block_size)])
            cached.seek(0)
            assert cached.read(16) == b"n" * 16


def test_a_device_is_open_for_writing_once(loop):
    with open_device(loop, writable=True), pytest.raises(Refused, match="is in use by this very process") as caught:
        open_device(loop, writable=True)

    assert str(caught.value).endswith("Nothing was written.")


def test_readers_are_welcome_while_it_is_open_for_writing(loop):
    with open_device(loop, writable=True), open_device(loop, writable=False) as reader:
        assert reader.read([Range(0, 4)]) == [b"0000"]


def test_a_mounted_device_is_refused_and_the_mount_is_named(attach, image, tmp_path):
    loop = attach(image)
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mkfs.ext2", "-q", loop], check=True)
    subprocess.run(["mount", loop, str(mount)], check=True)
    try:
        with pytest.raises(Refused, match=f"in use by the file system mounted at {mount}"):
            open_device(loop, writable=True)
    finally:
        subprocess.run(["umount", str(mount)], check=True)

    with open_device(loop, writable=True):
        pass


def test_a_read_only_device_is_refused_for_writing_only(attach, image):
    loop = attach(image, "--read-only")

    with pytest.raises(Refused, match=f"{loop} is read-only"):
        open_device(loop, writable=True)
    with open_device(loop, writable=False) as device:
        assert device.read([Range(0, 4)]) == [b"0000"]


def test_a_device_set_read_only_is_refused(attach, image):
    loop = attach(image)
    subprocess.run(["blockdev", "--setro", loop], check=True)

    try:
        with pytest.raises(Refused, match=f"{loop} is read-only"):
            open_device(loop, writable=True)
    finally:
        subprocess.run(["blockdev", "--setrw", loop], check=True)  # the flag outlives the attachment


def test_blocks_of_another_size_are_refused(attach, image):
    with pytest.raises(Refused, match="has logical blocks of 2048 bytes; 512 or 4096 are supported"):
        open_device(attach(image, "--sector-size", "2048"), writable=False)


def test_without_the_right_to_drop_the_page_cache_the_device_can_still_be_written(loop, block_size, monkeypatch):
    ioctl = fcntl.ioctl

    def not_permitted(descriptor, request, argument):
        if request == BLKFLSBUF:
            raise PermissionError(1, "Operation not permitted")
        return ioctl(descriptor, request, argument)

    monkeypatch.setattr("relvmoiscsi.host.disk.block_device.fcntl.ioctl", not_permitted)

    with open_device(loop, writable=True) as device:
        device.write([Chunk(0, b"x" * block_size)])


def test_a_node_that_became_a_file_is_refused(image):
    with pytest.raises(Refused, match="does not tell its geometry"):
        BlockDevice(str(image), writable=False)


@pytest.mark.parametrize("writable", [True, False])
def test_a_loop_device_without_a_file_is_not_found(unattached, writable):
    with pytest.raises(NotFound):
        open_device(unattached, writable)


def test_udev_is_kept_away_until_the_device_is_closed(loop):
    node = os.open(loop, os.O_RDONLY)

    with open_device(loop, writable=True), pytest.raises(BlockingIOError):
        fcntl.flock(node, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(node, fcntl.LOCK_SH | fcntl.LOCK_NB)

    os.close(node)


def test_a_udev_worker_is_waited_for(loop, monkeypatch):
    node = os.open(loop, os.O_RDONLY)
    fcntl.flock(node, fcntl.LOCK_SH)
    monkeypatch.setattr(flock, "pause", lambda _seconds: os.close(node))

    with open_device(loop, writable=True, lock_timeout=60):
        pass


def test_a_worker_that_does_not_end_is_named_and_the_device_refused(loop):
    node = os.open(loop, os.O_RDONLY)
    fcntl.flock(node, fcntl.LOCK_SH)

    with pytest.raises(Refused, match="locked by this very process, and was not free within 0 seconds"):
        open_device(loop, writable=True, lock_timeout=0)

    os.close(node)
    with open_device(loop, writable=True):
        pass


def test_an_image_behind_a_loop_device_is_refused_and_the_loop_device_is_named(loop, image):
    with pytest.raises(Refused, match=f"is in use by loop device {loop}"):
        open_device(str(image), writable=True)


@of_both_sizes
def test_failing_reads_and_writes_name_the_range(loop, image, block_size):
    with open_device(loop, writable=True) as device:
        os.truncate(str(image), MIB)  # the loop device keeps its size

        with pytest.raises(DeviceError) as caught:
            device.read([Range(0, 10), Range(2 * MIB + 1, 10)])

    error = caught.value
    assert (error.device, error.action, error.offset, error.length) == (loop, "read", 2 * MIB, block_size)


def test_nodes_of_one_device_are_the_same_device(loop, image, tmp_path):
    node = str(tmp_path / "node")
    os.mknod(node, 0o600 | stat.S_IFBLK, os.stat(loop).st_rdev)

    assert same_device(loop, node)
    assert not same_device(loop, str(image))


def test_a_loop_device_has_no_scsi_id(loop):
    assert scsi_id_of(loop) is None


# --- who has it open


_HOLDER = "import os, sys; held = os.open(sys.argv[1], {}); print('open', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def held_open(node, flags):
    """Another process has the device open, until the end of the block."""
    program = [sys.executable, "-c", _HOLDER.format(flags), node]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"open\n"
        try:
            yield holder.pid
        finally:
            holder.stdin.close()


@pytest.mark.parametrize("flags", ["os.O_RDONLY", "os.O_WRONLY"])
def test_whoever_has_it_open_without_asking_to_be_alone_is_named(loop, flags):
    with held_open(loop, flags) as pid, pytest.raises(Refused, match=rf"in use by process {pid} \(") as caught:
        open_device(loop, writable=True, lock_timeout=0)

    assert str(caught.value).endswith("Nothing was written.")


def test_a_program_that_looks_for_a_moment_is_waited_for(loop, monkeypatch):
    with contextlib.ExitStack() as looking:
        looking.enter_context(held_open(loop, "os.O_RDONLY"))
        ended = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: looking.close())
        monkeypatch.setattr(exclusive, "time", ended)

        with open_device(loop, writable=True, lock_timeout=60):
            pass


def test_a_reader_in_this_process_is_no_obstacle(loop):
    with open_device(loop, writable=False) as reader, open_device(loop, writable=True):
        assert reader.read([Range(0, 4)]) == [b"0000"]


def test_a_loop_device_over_it_is_named(attach, image, loop):
    over = attach(loop, "--read-only")

    with pytest.raises(Refused, match=f"{loop} is in use by loop device {over}"):
        open_device(loop, writable=True, lock_timeout=0)


def test_a_mount_in_another_namespace_is_named(attach, image, tmp_path):
    loop, mount = attach(image), tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mkfs.ext2", "-q", loop], check=True)
    program = f"mount {loop} {mount} && echo mounted && read -r _"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"mounted\n"
        with pytest.raises(Refused, match=f"in use by the file system mounted at {mount}"):
            open_device(loop, writable=True, lock_timeout=0)
        other.stdin.close()


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
    assert (found["kind"], found["scsi_id"], found["pool"]["overridden"]) == ("block device", None, True)
