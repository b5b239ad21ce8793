# SPDX-License-Identifier: LGPL-2.1-only
"""Batches of reads and writes on image files, and who may open one for writing."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from functools import lru_cache

import pytest

from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import DeviceError, NotFound, Refused, Truncated, UsageError
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk import exclusive, holders
from relvmoiscsi.host.disk.block_device import (
    ImageFile,
    Workers,
    open_device,
    same_device,
)
from relvmoiscsi.host.files import permission_remedy, remedy
from relvmoiscsi.host.this_host import Host

KIB = 1024
MIB = 1024 * KIB
SIZE = 4 * MIB


@lru_cache(maxsize=4)
def pattern(length, start=0):
    """Bytes that differ from place to place."""
    return b"".join(b"%015d\n" % number for number in range(start // 16, (start + length) // 16))


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(pattern(SIZE))
    return str(path)


@pytest.fixture
def disk(image):
    with open_device(image, writable=True) as device:
        yield device


class Faulty(ImageFile):
    """An image whose kernel gives short transfers, signals and errors, as the test wants."""

    def __init__(self, path, most=None, interrupted=(), failing=()):
        super().__init__(path, writable=True)
        self.most, self.interrupted, self.failing = most, set(interrupted), failing
        self.ended = []
        self.guard = threading.Lock()

    def _read_some(self, view, offset):
        return self._some(super()._read_some, view, offset)

    def _write_some(self, view, offset):
        return self._some(super()._write_some, view, offset)

    def _some(self, transfer, view, offset):
        with self.guard:
            self.ended.append(offset)
            signalled = offset in self.interrupted
            self.interrupted.discard(offset)
        if signalled:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        if offset in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return transfer(view[: self.most], offset)


# --- reading


def test_ranges_need_no_alignment_and_come_back_in_the_order_asked(disk):
    ranges = [Range(70001, 13), Range(3, 1), Range(600, 5000), Range(3, 1)]

    found = disk.read(ranges)

    assert found == [pattern(SIZE)[item.offset : item.end] for item in ranges]


def test_the_last_bytes_of_a_device_that_ends_within_a_block_can_be_read(tmp_path):
    path = tmp_path / "odd"
    path.write_bytes(pattern(4096 + 512))

    with open_device(str(path), writable=False, block_size=4096) as device:
        assert device.read([Range(4096 + 500, 12)]) == [pattern(4096 + 512)[-12:]]


@pytest.mark.parametrize("wanted", [Range(SIZE - 1, 2), Range(SIZE, 1), Range(2**62, 2**62), Range(0, SIZE + 1)])
def test_a_range_that_is_not_wholly_on_the_device_is_truncated_and_nothing_is_read(disk, wanted):
    with pytest.raises(Truncated) as caught:
        disk.read([Range(0, 512), wanted])

    assert disk.name in str(caught.value)


@pytest.mark.parametrize("wanted", [Range(-1, 2), Range(5, -1)])
def test_a_range_with_a_negative_number_is_a_bug_of_the_caller(disk, wanted):
    with pytest.raises(ValueError):
        disk.read([wanted])


def test_short_reads_and_signals_are_gone_on_with(image):
    with Faulty(image, most=700, interrupted=[0, 700, 8192]) as device:
        assert device.read([Range(0, 4096), Range(2 * MIB, 100)]) == [
            pattern(SIZE)[:4096],
            pattern(SIZE)[2 * MIB : 2 * MIB + 100],
        ]


def test_a_failing_read_names_device_range_and_reason(image):
    with Faulty(image, failing=[MIB]) as device, pytest.raises(DeviceError) as caught:
        device.read([Range(0, 512), Range(MIB, 512), Range(2 * MIB, 512)])

    error = caught.value
    assert (error.device, error.action, error.offset, error.length) == (image, "read", MIB, 512)
    assert error.errno == errno.EIO
    assert str(error) == f"{image}: read of 512 bytes at byte {MIB} failed: Input/output error."


def test_a_file_that_was_cut_while_open_gives_an_error(image):
    with open_device(image, writable=False) as device:
        os.truncate(image, MIB)

        with pytest.raises(DeviceError, match="it ended 512 bytes early"):
            device.read([Range(MIB, 512)])


@pytest.mark.parametrize(
    "ranges, requests",
    [
        ([], []),
        ([Range(SIZE, 0), Range(0, 0)], []),
        ([Range(0, 512), Range(512, 512), Range(1024 + 4096, 512)], [0]),
        ([Range(0, 512), Range(512 + 4096 + 512, 512)], [0, 5120]),
        ([Range(0, 8192), Range(100, 10), Range(8000, 500)], [0]),
        ([Range(1, 2 * MIB + 5)], [0, MIB, 2 * MIB]),
    ],
)
def test_ranges_that_nearly_touch_are_one_request_of_a_mebibyte_at_most(image, ranges, requests):
    with Faulty(image) as device:
        assert device.read(ranges) == [pattern(SIZE)[one.offset : one.end] for one in ranges]
        assert sorted(device.ended) == requests


@pytest.mark.parametrize(
    "offsets, requests", [([], []), ([1024, 0, 512, 2048], [0, 2048]), (range(512, MIB + 1024, 512), [512, MIB + 512])]
)
def test_chunks_that_touch_are_one_request_of_a_mebibyte_at_most(image, offsets, requests):
    with Faulty(image) as device:
        device.write([Chunk(offset, b"x" * 512) for offset in offsets])
        assert sorted(device.ended) == requests


# --- writing


def test_chunks_are_written_where_they_belong_and_nowhere_else(disk, image):
    before = pattern(SIZE)

    disk.write([Chunk(8192, b"b" * 512), Chunk(512, b"a" * 1024)])

    with open(image, "rb") as stored:
        after = stored.read()
    assert after[512:1536] == b"a" * 1024
    assert after[8192:8704] == b"b" * 512
    assert after[:512] + after[1536:8192] + after[8704:] == before[:512] + before[1536:8192] + before[8704:]


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(Chunk(256, b"x" * 512), id="begins within a block"),
        pytest.param(Chunk(512, b"x" * 100), id="ends within a block"),
        pytest.param(Chunk(-512, b"x" * 512), id="before the device"),
        pytest.param(Chunk(SIZE, b"x" * 512), id="behind the device"),
        pytest.param(Chunk(SIZE - 512, b"x" * 1024), id="over the end of the device"),
    ],
)
def test_a_chunk_that_cannot_be_meant_is_a_bug_and_nothing_of_its_batch_is_written(disk, image, chunk):
    with pytest.raises(ValueError):
        disk.write([Chunk(0, b"y" * 512), chunk])

    assert disk.read([Range(0, 512)]) == [pattern(512)]
    assert os.path.getsize(image) == SIZE


def test_a_device_of_large_blocks_takes_no_small_chunks(image):
    with open_device(image, writable=True, block_size=4096) as device:
        with pytest.raises(ValueError, match="blocks of 4096 bytes"):
            device.write([Chunk(512, b"x" * 512)])

        device.write([Chunk(4096, b"x" * 4096)])
        assert device.read([Range(4095, 2)]) == [pattern(16, 4080)[-1:] + b"x"]


def test_chunks_that_overlap_are_a_bug_and_are_not_written(disk):
    with pytest.raises(ValueError, match="overlap at byte 512"):
        disk.write([Chunk(0, b"x" * 1024), Chunk(512, b"y" * 512)])


def test_a_device_open_for_reading_cannot_be_written(image):
    with open_device(image, writable=False) as device, pytest.raises(ValueError, match="for reading only"):
        device.write([Chunk(0, b"x" * 512)])


def test_short_writes_and_signals_are_gone_on_with(image):
    with Faulty(image, most=300, interrupted=[0, 300, MIB]) as device:
        device.write([Chunk(0, b"x" * 4096), Chunk(MIB, b"y" * 512)])

        assert device.read([Range(0, 4096), Range(MIB, 512)]) == [b"x" * 4096, b"y" * 512]


def test_a_write_that_gets_nowhere_is_an_error(image):
    with Faulty(image, most=0) as device, pytest.raises(DeviceError, match="write of 512 bytes at byte 0 failed"):
        device.write([Chunk(0, b"x" * 512)])


def test_of_several_failures_the_first_is_raised_after_all_have_ended(image):
    chunks = [Chunk(number * 8192, b"x" * 512) for number in range(40)]

    with Faulty(image, failing=[3 * 8192, 30 * 8192]) as device:
        with pytest.raises(DeviceError) as caught:
            device.write(chunks)

        assert (caught.value.action, caught.value.offset) == ("write", 3 * 8192)
        assert sorted(device.ended) == [chunk.offset for chunk in chunks]


def test_an_image_stays_sparse(tmp_path):
    path = tmp_path / "sparse"
    path.write_bytes(b"")
    os.truncate(str(path), 1024 * MIB)

    with open_device(str(path), writable=True) as device:
        device.write([Chunk(512 * MIB, b"x" * 4096)])
        device.flush()

    assert os.stat(str(path)).st_blocks * 512 <= 64 * KIB


def test_a_failing_flush_is_an_error(image):
    with open_device(image, writable=True) as device:
        os.close(device._descriptor)

        with pytest.raises(DeviceError, match="flush failed: Bad file descriptor") as caught:
            device.flush()
    assert (caught.value.action, caught.value.errno) == ("flush", errno.EBADF)


# --- batches


def test_operations_of_a_batch_run_at_the_same_time():
    workers = Workers()
    meeting = threading.Barrier(8, timeout=600)

    workers.run([meeting.wait] * 8)  # each returns only when all have come

    workers.close()


def test_a_single_operation_needs_no_thread():
    seen = []

    Workers().run([lambda: seen.append(threading.current_thread())])

    assert seen == [threading.current_thread()]


def test_who_interrupts_a_batch_cancels_what_has_not_begun():
    workers = Workers()
    caller, interrupted, ended = threading.current_thread(), threading.Event(), []

    def operation():
        if threading.current_thread() is caller:
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait(600)
        ended.append(1)

    with pytest.raises(KeyboardInterrupt):
        workers.run([operation] * 500)
    workers.close()

    assert len(ended) < 500


# --- opening


def test_the_size_is_in_whole_sectors(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(b"x" * 1300)

    with open_device(str(path), writable=False) as device:
        assert (device.size_bytes, device.block_size, device.name) == (1024, 512, str(path))


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_not_there_is_not_found(tmp_path, writable):
    with pytest.raises(NotFound, match="is not there: No such file or directory") as caught:
        open_device(str(tmp_path / "nothing"), writable)

    assert caught.value.sm_key == "ISCSIDevice"


def test_what_is_neither_device_nor_file_cannot_be_meant(tmp_path):
    with pytest.raises(UsageError, match="neither a block device nor an image file"):
        open_device(str(tmp_path), writable=False)


def test_a_file_that_went_away_before_it_was_opened_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        ImageFile(str(tmp_path / "nothing"), writable=True)


def test_closing_twice_is_closing_once(image):
    device = open_device(image, writable=True)
    device.close()

    device.close()

    with pytest.raises(DeviceError):
        device.read([Range(0, 1)])


def test_a_failing_close_is_logged_and_hides_nothing(image, caplog):
    device = open_device(image, writable=False)
    os.close(device._descriptor)

    with pytest.raises(KeyError), device:
        raise KeyError("the first error")

    assert "could not be closed: Bad file descriptor" in caplog.text


@pytest.mark.parametrize(
    "number, expected, message",
    [
        (errno.EROFS, Refused, "/x is read-only. Make it writable first. Nothing was written."),
        (errno.EBUSY, Refused, "/x is in use by a program that could not be found out. Nothing was written."),
        (errno.EIO, Refused, "/x cannot be opened: Input/output error. Nothing was written."),
        (errno.ENXIO, NotFound, "/x is not there: No such device or address."),
        (errno.ENOMEDIUM, NotFound, "/x is not there: No medium found."),
    ],
)
def test_each_reason_not_to_open_has_its_sentence(number, expected, message):
    error = exclusive._cannot_open("/x", OSError(number, os.strerror(number)), writable=True)

    assert type(error) is expected
    assert str(error) == message


@pytest.mark.parametrize(
    "number, user, words",
    [
        (errno.EACCES, 1000, "/x cannot be opened: Permission denied. Run this as root. Nothing was written."),
        (errno.EPERM, 1000, "/x cannot be opened: Operation not permitted. Run this as root. Nothing was written."),
        (errno.EACCES, 0, "/x cannot be opened: Permission denied. Root is refused as well: look at SELinux"),
        (errno.EPERM, 0, "/x cannot be opened: Operation not permitted. Root is refused as well: a container may not"),
    ],
)
def test_root_is_not_told_to_become_root(number, user, words, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)

    error = exclusive._cannot_open("/x", OSError(number, os.strerror(number)), writable=True)

    assert str(error).startswith(words)
    assert remedy(OSError(number, "")) == permission_remedy(number)


def test_a_file_without_write_permissions_is_refused_even_to_root(image):
    os.chmod(image, stat.S_IRUSR)

    with pytest.raises(Refused, match="is read-only"):
        # Who is not root does not even get so far, and is told the same in other words.
        open_device(image, writable=True) if os.geteuid() == 0 else exclusive.check_file_mode(image, os.stat(image))
    with open_device(image, writable=False) as device:
        assert device.read([Range(0, 16)]) == [pattern(16)]


def test_a_file_is_open_for_writing_once(image):
    with open_device(image, writable=True), pytest.raises(Refused, match="in use by this very process") as caught:
        open_device(image, writable=True)

    assert str(caught.value).endswith("Nothing was written.")


def test_a_refused_file_is_left_unlocked_and_closed(image):
    with open(image, "rb"), pytest.raises(Refused):
        open_device(image, writable=True)

    with open_device(image, writable=True):
        pass


def test_readers_do_not_exclude_each_other(image):
    with open_device(image, writable=False) as one, open_device(image, writable=False) as other:
        assert one.read([Range(0, 16)]) == other.read([Range(0, 16)])


@pytest.mark.processes
def test_who_has_the_file_open_is_named(image):
    program = "import sys; held = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, image], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(Refused, match=rf"is in use by process {holder.pid} \(python"):
            open_device(image, writable=True)
        holder.stdin.close()

    with open_device(image, writable=True):
        pass


def test_a_lease_is_given_back_at_once(image):
    with open_device(image, writable=True) as device:
        assert fcntl.fcntl(device._descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK


def test_where_leases_are_not_supported_the_open_files_of_all_processes_are_looked_at(image, monkeypatch):
    monkeypatch.setattr(exclusive, "_take_and_return_lease", no_leases)

    with open(image, "rb"), pytest.raises(Refused, match="in use by this very process"):
        open_device(image, writable=True)
    with open_device(image, writable=True):
        pass


def test_where_leases_are_not_supported_a_lock_keeps_a_second_run_off(image, monkeypatch):
    monkeypatch.setattr(exclusive, "_take_and_return_lease", no_leases)
    monkeypatch.setattr(exclusive, "users_of_file", lambda *_: [])

    with open_device(image, writable=True), pytest.raises(Refused, match="another relvmoiscsi is at work") as caught:
        open_device(image, writable=True)

    assert "locked by this very process" in str(caught.value)


def no_leases(_descriptor):
    raise OSError(errno.EINVAL, "Invalid argument")


# --- who is in the way, as the kernel tells it


@pytest.fixture
def system(tmp_path):
    return Host(str(tmp_path))


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def block_device(major, minor):
    """The stat of a device node, without one."""
    fields = [stat.S_IFBLK | 0o600, 77, 5, 1, 0, 0, 0, 0, 0, 0]
    return os.stat_result(fields, {"st_rdev": os.makedev(major, minor)})


def test_volumes_on_a_disk_and_on_its_partitions_are_named(system):
    disk = system.sysfs + "/devices/[x]/sda"
    put(disk + "/dev", "8:0\n")
    put(disk + "/holders/dm-1/dm/name", "36001405\n")
    put(disk + "/holders/dm-1/dm/uuid", "mpath-36001405\n")
    put(disk + "/sda1/partition", "1\n")
    put(disk + "/sda1/dev", "8:1\n")
    put(disk + "/sda1/holders/dm-2/dm/name", "VG-MGT\n")
    put(disk + "/sda1/holders/md0/dev", "9:0\n")
    put(system.proc + "/4/mountinfo", "36 35 8:1 / /mnt rw,noatime - ext4 /dev/sda1 rw\n37 35 8:16 / /other rw\n")
    os.makedirs(system.sysfs + "/dev/block")
    os.symlink("../../devices/[x]/sda", system.sysfs + "/dev/block/8:0")

    assert holders.users_of_block(block_device(8, 0), system) == [
        "multipath map /dev/mapper/36001405 (use that instead)",
        "device-mapper volume VG-MGT",
        "block device md0",
        "the file system mounted at /mnt",
    ]


@pytest.fixture
def host(system):
    """sdb with a partition sdb1, and nobody who uses them."""
    put(system.sysfs + "/block/sdb/dev", "8:16\n")
    put(system.sysfs + "/block/sdb/sdb1/dev", "8:17\n")
    put(system.sysfs + "/block/sdb/sdb1/partition", "1\n")
    put(system.proc + "/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sdc2 partition 9 0 -2\n")
    for number, namespace in (("1", "mnt:[1]"), ("30", "mnt:[1]"), ("40", "mnt:[2]")):
        put(f"{system.proc}/{number}/mountinfo", "36 35 8:32 / /other rw - ext4 /dev/sdc rw\n37 35 8:1\n")
        os.makedirs(f"{system.proc}/{number}/ns")
        os.symlink(namespace, f"{system.proc}/{number}/ns/mnt")
    for name in ("sdb", "sdb1"):
        put(f"{system.dev}/{name}", "")
    return system


def users(host, **options):
    return holders.users_of_disks(["sdb"], host, **options)


def test_several_disks_have_each_its_own_users(host):
    put(host.sysfs + "/block/sdd/dev", "8:48\n")
    put(host.sysfs + "/block/sdd/holders/md0/dev", "9:0\n")
    put(host.proc + "/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sdb1 partition 9 0 -2\n")

    found = holders.users_of_each(["sdb", "sdd", "gone"], host)

    assert found == {"sdb": ["swap space /dev/sdb1"], "sdd": ["block device md0"], "gone": []}
    assert holders.users_of_disks(["sdb", "sdd"], host) == ["swap space /dev/sdb1", "block device md0"]


def test_a_disk_without_users_has_none(host):
    assert users(host) == []
    assert holders.users_of_disks(["gone"], host) == []


def test_what_is_stacked_on_a_disk_uses_it(host):
    put(host.sysfs + "/block/sdb/holders/dm-1/dm/name", "36001405\n")
    put(host.sysfs + "/block/sdb/holders/dm-1/dm/uuid", "mpath-36001405\n")
    put(host.sysfs + "/block/sdb/sdb1/holders/md0/dev", "9:0\n")

    assert users(host) == ["multipath map /dev/mapper/36001405", "block device md0"]


def test_a_mount_uses_a_disk_in_whatever_namespace_it_is(host):
    lines = "36 35 8:17 / /srv rw shared:1 - ext4 /dev/sdb1 rw\n38 35 0:55 / /pool rw - btrfs /dev/sdb rw\n"
    put(host.proc + "/40/mountinfo", lines)

    assert users(host) == ["the file system mounted at /srv", "the file system mounted at /pool"]


def test_swap_and_loop_devices_use_a_disk(host):
    put(host.proc + "/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sdb1 partition 9 0 -2\n")
    put(host.sysfs + "/block/loop3/loop/backing_file", "/dev/sdb\n")
    put(host.sysfs + "/block/loop4/loop/backing_file", "/srv/dev/sdb\n")

    assert users(host) == ["swap space /dev/sdb1", "loop device /dev/loop3"]


def test_an_open_descriptor_uses_a_disk_unless_it_is_that_of_a_watcher(host, monkeypatch):
    monkeypatch.setattr(holders, "_number", lambda link: {"/dev/sdb1": "8:17"}.get(os.readlink(link), ""))
    for number, command, target in (
        ("12", "qemu-dp", "/dev/sdb1"),
        ("13", "multipathd", "/dev/sdb1"),
        ("14", "(udev-worker)", "/dev/sdb1"),
        ("15", "cat", "/dev/null"),
    ):
        os.makedirs(f"{host.proc}/{number}/fd")
        os.symlink(target, f"{host.proc}/{number}/fd/3")
        put(f"{host.proc}/{number}/comm", command + "\n")

    assert users(host) == ["process 12 (qemu-dp)"]


@pytest.fixture
def opened(host, monkeypatch):
    """Gives the function that opens a device for a process: by its number, with these flags."""
    os.makedirs(host.sysfs + "/dev/block")
    os.symlink("../../block/sdb", host.sysfs + "/dev/block/8:16")
    nodes = {"/dev/sdb": "8:16", "/dev/sdb1": "8:17", "/dev/sdc": "8:32", "/srv/container/dev/sdb": "8:16"}
    monkeypatch.setattr(holders, "_number", lambda path: nodes.get(os.readlink(path) if "/fd/" in path else path, ""))

    def open_it(process, command, flags, node="/dev/sdb", descriptor=3):
        os.makedirs(f"{host.proc}/{process}/fd", exist_ok=True)
        os.symlink(node, f"{host.proc}/{process}/fd/{descriptor}")
        put(f"{host.proc}/{process}/comm", command + "\n")
        put(f"{host.proc}/{process}/fdinfo/{descriptor}", f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t25\n")

    return open_it


def opened_by(host, own_descriptor=-1):
    return holders.opened_by(block_device(8, 16), own_descriptor, host)


def test_a_reader_has_a_device_open_as_a_writer_has(host, opened):
    opened(12, "dd", os.O_RDONLY)
    opened(13, "qemu-dp", os.O_RDWR, node="/dev/sdb1")
    opened(14, "cp", os.O_RDONLY, node="/srv/container/dev/sdb")
    opened(15, "dd", os.O_RDONLY, node="/dev/sdc")
    opened(16, "systemd-udevd", os.O_RDONLY)
    opened(17, "ls", os.O_PATH)

    assert opened_by(host) == ["process 12 (dd)", "process 13 (qemu-dp)", "process 14 (cp)"]


def test_of_this_process_only_another_writer_counts(host, opened):
    opened(os.getpid(), "python", os.O_RDWR | os.O_EXCL, descriptor=5)
    opened(os.getpid(), "python", os.O_RDONLY, descriptor=6)
    assert opened_by(host, 5) == []

    opened(os.getpid(), "python", os.O_RDWR, descriptor=7)
    assert opened_by(host, 5) == ["this very process"]


def test_a_loop_device_over_a_node_anywhere_has_it_open(host, opened):
    put(host.sysfs + "/block/loop3/loop/backing_file", "/dev/sdb1\n")
    put(host.sysfs + "/block/loop4/loop/backing_file", "/srv/container/dev/sdb\n")
    put(host.sysfs + "/block/loop5/loop/backing_file", "/dev/sdc\n")

    assert opened_by(host) == ["loop device /dev/loop3", "loop device /dev/loop4"]


@pytest.mark.parametrize("uuid, users", [("mpath-3600", ["process 12 (dd)"]), ("LVM-x", [])])
def test_of_a_path_of_a_multipath_map_only_writers_count(host, opened, uuid, users):
    put(host.sysfs + "/block/sdb/dm/uuid", uuid + "\n")
    put(host.sysfs + "/block/sdb/slaves/sdc/dev", "8:32\n")
    opened(11, "vgs", os.O_RDONLY, node="/dev/sdc")
    opened(12, "dd", os.O_WRONLY, node="/dev/sdc")

    assert opened_by(host) == users


def test_a_claim_within_the_kernel_is_seen_while_the_disk_answers(host, monkeypatch):
    real_open = os.open

    def open_unless_claimed(path, flags, *mode):
        if path.endswith("/sdb1") and flags & os.O_EXCL:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_unless_claimed)
    assert users(host) == ["something in the kernel that has claimed sdb1"]
    assert users(host, answering=False) == []


def test_a_node_that_is_no_block_device_has_no_number(tmp_path):
    assert holders._number(str(tmp_path)) == "" and holders._number(str(tmp_path / "gone")) == ""


def test_a_loop_device_on_a_file_is_named(system, image):
    put(system.sysfs + "/block/loop3/loop/backing_file", image + "\n")
    put(system.sysfs + "/block/loop4/loop/backing_file", "/somewhere/else (deleted)\n")
    put(system.sysfs + "/block/loop5/loop/backing_file", __file__ + "\n")

    assert holders.users_of_file(os.stat(image), -1, system) == ["loop device /dev/loop3"]


def test_processes_with_a_descriptor_of_a_file_are_named_once_each(system, image):
    for number, descriptor in (("12", "3"), ("12", "4"), ("7", "0")):
        os.makedirs(system.proc + "/" + number + "/fd", exist_ok=True)
        os.symlink(image, system.proc + "/" + number + "/fd/" + descriptor)
    os.symlink(image + "-gone", system.proc + "/7/fd/1")
    put(system.proc + "/12/comm", "qemu-dp\n")

    assert holders.users_of_file(os.stat(image), -1, system) == ["process 7", "process 12 (qemu-dp)"]
    assert holders.users_of_block(block_device(7, 9), system) == []


def test_who_holds_a_lock_is_named(system, image):
    status = os.stat(image)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    put(
        system.proc + "/locks",
        f"1: POSIX  ADVISORY  WRITE 5 {place} 0 EOF\n2: FLOCK  ADVISORY  WRITE 6 {place} 0 EOF\n2: -> FLOCK\n",
    )
    put(system.proc + "/6/comm", "udev-worker\n")

    assert flock.owners_of(status, system) == ["process 6 (udev-worker)"]


# --- the same device; where data is


def test_two_paths_to_one_file_are_the_same_device(image, tmp_path):
    os.link(image, str(tmp_path / "link"))
    os.symlink(image, str(tmp_path / "symlink"))
    (tmp_path / "copy").write_bytes(b"")

    assert same_device(image, str(tmp_path / "link"))
    assert same_device(image, str(tmp_path / "symlink"))
    assert not same_device(image, str(tmp_path / "copy"))


def test_a_path_that_leads_nowhere_is_no_answer_to_whether_it_is_the_same(image, tmp_path):
    with pytest.raises(NotFound):
        same_device(image, str(tmp_path / "nothing"))


def test_two_nodes_of_one_device_are_the_same_device(monkeypatch):
    nodes = {"/dev/a": block_device(8, 0), "/dev/b": block_device(8, 0), "/dev/c": block_device(8, 16)}
    monkeypatch.setattr("relvmoiscsi.host.disk.block_device.stat_path", nodes.get)

    assert same_device("/dev/a", "/dev/b")
    assert not same_device("/dev/a", "/dev/c")


def test_only_what_is_allocated_may_hold_data(tmp_path):
    path = str(tmp_path / "sparse")
    with open(path, "wb") as file:
        file.seek(MIB)
        file.write(b"x" * 4096)
        file.truncate(8 * MIB)

    with open_device(path, writable=False) as device:
        assert device.data_ranges() == [Range(MIB, 4096)]


def test_data_reaches_to_the_end_of_the_last_whole_sector(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(b"x" * 1300)

    with open_device(str(path), writable=False) as device:
        assert device.data_ranges() == [Range(0, 1024)]


@pytest.mark.parametrize("length", [0, MIB])
def test_an_image_without_data_has_no_ranges(tmp_path, length):
    path = str(tmp_path / "empty")
    with open(path, "wb") as file:
        file.truncate(length)

    with open_device(path, writable=False) as device:
        assert device.data_ranges() == []


def test_where_holes_are_not_known_everything_may_hold_data(image, monkeypatch):
    def lseek(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    with open_device(image, writable=False) as device:
        monkeypatch.setattr("relvmoiscsi.host.disk.block_device.os.lseek", lseek)

        assert device.data_ranges() == [Range(0, SIZE)]


def test_a_failing_search_for_data_is_an_error(image):
    with open_device(image, writable=False) as device:
        device.close()

        with pytest.raises(DeviceError, match="Bad file descriptor"):
            device.data_ranges()
