# SPDX-License-Identifier: LGPL-2.1-only
"""Batches of reads and writes on image files, and who may open one for writing."""

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import threading

import pytest

from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.device import Chunk, Range
from relvmoiscsi.errors import Busy, DeviceError, NoRoom, NotFound, Refused, Truncated, UsageError
from relvmoiscsi.host import files, flock, mounts, own_process
from relvmoiscsi.host.disk import exclusive, holders, process_search
from relvmoiscsi.host.disk.block_device import ImageFile, open_device
from relvmoiscsi.host.own_process import run_in_child
from relvmoiscsi.host.this_host import Host

KIB = 1024
MIB = 1024 * KIB
SIZE = 4 * MIB
PATTERN = b"".join(b"%015d\n" % number for number in range(SIZE // 16))  #: bytes that differ from place to place


def bytes_of(ranges):
    return [PATTERN[one.offset : one.end] for one in ranges]


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(PATTERN)
    return str(path)


@pytest.fixture(autouse=True)
def a_lease_is_waited_for(monkeypatch):
    """The kernel gives none while another process looks up the file, as a scan of /proc by another run does."""
    monkeypatch.setattr(exclusive, "LEASE_SECONDS", 60)


class Faulty(ImageFile):
    """An image whose kernel gives short transfers, signals and errors, as the test wants."""

    def __init__(self, path, most=None, interrupted=(), failing=()):
        super().__init__(path, writable=True)
        self.most, self.interrupted, self.failing = most, set(interrupted), failing
        self.ended = []
        self.guard = threading.Lock()

    def _transfer_some(self, action, view, offset):
        with self.guard:
            self.ended.append(offset)
            signalled = offset in self.interrupted
            self.interrupted.discard(offset)
        if signalled:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        if offset in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return super()._transfer_some(action, view[: self.most], offset)


@pytest.mark.parametrize("number, kind", [(errno.ENOSPC, NoRoom), (errno.EDQUOT, NoRoom), (errno.EIO, DeviceError)])
def test_a_file_system_without_room_is_told_from_a_disk_that_fails(image, number, kind):
    class Full(ImageFile):
        def _transfer_some(self, action, view, offset):
            raise OSError(number, os.strerror(number))

    with Full(image, writable=True) as device, pytest.raises(DeviceError) as failed:
        device.write([Chunk(0, bytes(512))])

    assert type(failed.value) is kind and failed.value.exit_status == 7
    assert ("on the file system of the image file" in str(failed.value)) == (kind is NoRoom)


# --- reading and writing


@pytest.mark.parametrize(
    "ranges, requests",
    [
        ([], []),
        ([Range(SIZE, 0), Range(0, 0)], []),
        ([Range(70001, 13), Range(3, 1), Range(600, 5000), Range(3, 1)], [0, 69632]),
        ([Range(0, 512), Range(512, 512), Range(1024 + 4096, 512)], [0]),
        ([Range(0, 512), Range(512 + 4096 + 512, 512)], [0, 5120]),
        ([Range(1, 2 * MIB + 5)], [0, MIB, 2 * MIB]),
    ],
)
def test_ranges_need_no_alignment_and_those_that_nearly_touch_are_one_request_of_a_mebibyte_at_most(
    image, ranges, requests
):
    with Faulty(image) as device:
        assert device.read(ranges) == bytes_of(ranges)
        assert sorted(device.ended) == requests


@pytest.mark.parametrize(
    "offsets, requests", [([], []), ([1024, 0, 512, 2048], [0, 2048]), (range(512, MIB + 1024, 512), [512, MIB + 512])]
)
def test_chunks_are_written_where_they_belong_alone_in_requests_of_a_mebibyte_at_most(image, offsets, requests):
    expected = bytearray(PATTERN)
    for offset in offsets:
        expected[offset : offset + 512] = b"%512d" % offset
    with Faulty(image) as device:
        device.write([Chunk(offset, b"%512d" % offset) for offset in offsets])
        assert sorted(device.ended) == requests
    with open(image, "rb") as stored:
        assert stored.read() == expected


@pytest.mark.parametrize(
    "wanted, error",
    [
        *((one, Truncated) for one in (Range(SIZE - 1, 2), Range(SIZE, 1), Range(2**62, 2**62), Range(0, SIZE + 1))),
        *((one, ValueError) for one in (Range(-1, 2), Range(5, -1))),
    ],
)
def test_a_range_that_is_not_wholly_on_the_device_is_truncated_and_a_negative_one_a_bug(image, wanted, error):
    with open_device(image, writable=True) as device, pytest.raises(
        error, match=device.name if error is Truncated else None
    ):
        device.read([Range(0, 512), wanted])


@pytest.mark.parametrize(
    "chunk, words",
    [
        (Chunk(256, b"x" * 512), "blocks of 512 bytes"),
        (Chunk(512, b"x" * 100), "blocks of 512 bytes"),
        (Chunk(-512, b"x" * 512), None),
        (Chunk(SIZE, b"x" * 512), None),
        (Chunk(SIZE - 512, b"x" * 1024), None),
        (Chunk(0, b"x" * 512), "overlap at byte 0"),
    ],
)
def test_a_chunk_that_cannot_be_meant_is_a_bug_and_nothing_of_its_batch_is_written(image, chunk, words):
    with open_device(image, writable=True) as device:
        with pytest.raises(ValueError, match=words):
            device.write([Chunk(0, b"y" * 512), chunk])
        assert device.read([Range(0, 512)]) == [PATTERN[:512]]
    assert os.path.getsize(image) == SIZE


def test_a_device_of_large_blocks_takes_no_small_chunks(image):
    os.truncate(image, MIB + 512)
    with open_device(image, writable=True, block_size=4096) as device:
        with pytest.raises(ValueError, match="blocks of 4096 bytes"):
            device.write([Chunk(512, b"x" * 512)])

        device.write([Chunk(4096, b"x" * 4096)])
        assert device.read([Range(4095, 2)]) == [PATTERN[4095:4096] + b"x"]
        assert device.read([Range(MIB + 500, 12)]) == bytes_of([Range(MIB + 500, 12)]), "it ends within a block"


def test_a_device_open_for_reading_cannot_be_written(image):
    with open_device(image, writable=False) as device, pytest.raises(UsageError, match="for reading only"):
        device.write([Chunk(0, b"x" * 512)])


def test_short_transfers_and_signals_are_gone_on_with(image):
    ranges = [Range(0, 4096), Range(2 * MIB, 512)]
    with Faulty(image, most=700, interrupted=[0, 700, 8192]) as device:
        assert device.read(ranges) == bytes_of(ranges)
    with Faulty(image, most=300, interrupted=[0, 300, 2 * MIB]) as device:
        device.write([Chunk(one.offset, b"x" * one.length) for one in ranges])
        assert device.read(ranges) == [b"x" * 4096, b"x" * 512]


def test_a_failing_read_names_device_range_and_reason(image):
    with Faulty(image, failing=[MIB]) as device, pytest.raises(DeviceError) as caught:
        device.read([Range(0, 512), Range(MIB, 512), Range(2 * MIB, 512)])

    error = caught.value
    assert (error.device, error.action, error.offset, error.length) == (image, "read", MIB, 512)
    assert error.errno == errno.EIO
    assert str(error) == f"{image}: read of 512 bytes at byte {MIB} failed: Input/output error."


def test_a_transfer_that_gets_nowhere_is_an_error(image):
    with Faulty(image, most=0) as device, pytest.raises(DeviceError, match="write of 512 bytes at byte 0 failed"):
        device.write([Chunk(0, b"x" * 512)])
    with open_device(image, writable=False) as device:
        os.truncate(image, MIB)
        with pytest.raises(DeviceError, match="it ended 512 bytes early"):
            device.read([Range(MIB, 512)])


def test_of_several_failures_the_first_is_raised_after_all_have_ended(image):
    chunks = [Chunk(number * 8192, b"x" * 512) for number in range(40)]

    with Faulty(image, failing=[3 * 8192, 30 * 8192]) as device:
        with pytest.raises(DeviceError) as caught:
            device.write(chunks)

        assert (caught.value.action, caught.value.offset) == ("write", 3 * 8192)
        assert sorted(device.ended) == [chunk.offset for chunk in chunks]


@pytest.mark.parametrize("action", ["flush", "data_ranges"])
def test_a_failing_flush_or_search_for_data_is_an_error(image, action):
    with open_device(image, writable=True) as device:
        os.close(device._descriptor)
        with pytest.raises(DeviceError, match=" failed: Bad file descriptor") as caught:
            getattr(device, action)()
    assert caught.value.errno == errno.EBADF


def test_a_device_that_has_become_smaller_is_not_written_and_no_flush_succeeds(image):
    """A write behind the end would enlarge an image file again, and leave a hole. A larger one is gone on with."""
    with open_device(image, writable=True) as device:
        os.truncate(image, SIZE + 4096)
        device.write([Chunk(0, b"x" * 512)])
        device.flush()

        os.truncate(image, SIZE - 512)

        for act in (device.flush, lambda: device.write([Chunk(SIZE - 512, b"y" * 512)])):
            said = f"had {SIZE} bytes in blocks of 512, and has {SIZE - 512} bytes"
            with pytest.raises(Refused, match=said) as caught:
                act()
            assert caught.value.advice == "Restore its size."  # in mid-run too, where a repeated command is wrong
    assert os.path.getsize(image) == SIZE - 512


# --- opening


@pytest.mark.parametrize(
    "path, error, words",
    [
        ("nothing", NotFound, "is not there: No such file or directory"),
        (".", UsageError, "neither a block device nor an image file"),
    ],
)
def test_what_cannot_be_opened(tmp_path, path, error, words):
    with pytest.raises(error, match=words) as caught:
        open_device(str(tmp_path / path), writable=False)
    if error is NotFound:
        assert caught.value.sm_key == "ISCSIDevice"
        with pytest.raises(NotFound):  # it went away before it was opened
            ImageFile(str(tmp_path / path), writable=True)


def test_a_caller_who_wants_a_block_device_gets_no_image_file_also_behind_a_link(image, tmp_path):
    (tmp_path / "link").symlink_to(image)
    for path in (image, str(tmp_path / "link"), "/dev/null"):
        for writable in (False, True):
            with pytest.raises(UsageError, match="is no block device"):
                open_device(path, writable, is_kind=stat.S_ISBLK)


@pytest.mark.parametrize("now", ["/dev/null", "fifo"])
def test_a_path_that_leads_elsewhere_after_the_look_opens_nothing_there(image, tmp_path, monkeypatch, now):
    """A FIFO would wait for a writer, and a watchdog would restart the host."""
    os.mkfifo(str(tmp_path / "fifo"))
    link = tmp_path / "link"
    link.symlink_to(image)
    there = os.stat

    def stat_then_swap(path, **more):
        found = there(path, **more)
        if path == str(link):
            link.unlink()
            link.symlink_to(tmp_path / now)
        return found

    monkeypatch.setattr(exclusive.os, "stat", stat_then_swap)
    opened = []
    monkeypatch.setattr(
        exclusive.os, "open", lambda path, flags, real=os.open: opened.append(flags) or real(path, flags)
    )
    with pytest.raises(UsageError, match="is neither a block device nor an image file"):
        open_device(str(link), writable=False)
    assert opened == [os.O_PATH | os.O_CLOEXEC]


@pytest.mark.processes
@pytest.mark.parametrize("size", [160, 32])
def test_the_memory_of_a_batch_counts_for_the_limit_of_a_child(tmp_path, monkeypatch, size):
    """A byte of each block gives a batch far larger than its result, and a writer of a LUN chooses what is read."""
    monkeypatch.setattr(own_process, "MOST_MEMORY_BYTES", 96 * MIB)
    image = tmp_path / "sparse"
    image.touch()
    os.truncate(str(image), size * MIB)

    def work(_begin):
        with open_device(str(image), writable=False) as device:
            return len(device.read([Range(start, 1) for start in range(0, size * MIB, 4 * KIB)]))

    if size < 96:
        assert run_in_child(work, NO_DEADLINE, "it was read", only_reads=True) == size * 256
    else:
        with pytest.raises(Refused, match="needs more memory than this host gives it, which is 96 MiB at most"):
            run_in_child(work, NO_DEADLINE, "it was read", only_reads=True)


def test_closing_twice_is_closing_once_and_a_failing_close_is_logged_and_hides_nothing(image, caplog):
    device = open_device(image, writable=False)
    os.close(device._descriptor)

    with pytest.raises(KeyError), device:
        raise KeyError("the first error")
    device.close()

    assert caplog.text.count("could not be closed: Bad file descriptor") == 1
    with pytest.raises(DeviceError):
        device.read([Range(0, 1)])


@pytest.mark.parametrize(
    "number, user, expected, message",
    [
        (errno.EROFS, 0, Refused, "/x is read-only. Nothing was written. Make it writable first."),
        (
            errno.EBUSY,
            0,
            Refused,
            "/x is in use by a program that could not be found out. Nothing was written. `lsblk /x` shows what is ",
        ),
        (errno.EIO, 0, Refused, "/x cannot be opened: Input/output error. Nothing was written."),
        (errno.ENXIO, 0, NotFound, "/x is not there: No such device or address."),
        # root is not told to become root
        (errno.EACCES, 7, Refused, "/x cannot be opened: Permission denied. Nothing was written. Run this as root."),
        (
            errno.EACCES,
            0,
            Refused,
            "/x cannot be opened: Permission denied. Nothing was written. Root is refused as well: look at SELinux",
        ),
        (
            errno.EPERM,
            0,
            Refused,
            "/x cannot be opened: Operation not permitted. Nothing was written. Root is refused as well: a container",
        ),
        (
            errno.EPERM,
            7,
            Refused,
            "/x cannot be opened: Operation not permitted. Nothing was written. Run this as root.",
        ),
    ],
)
def test_each_reason_not_to_open_has_its_sentence(number, user, expected, message, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)

    error = exclusive._cannot_open("/x", OSError(number, os.strerror(number)), writable=True)

    assert type(error) is expected and str(error).startswith(message)


def test_a_file_that_nobody_may_write_has_one_next_step_for_every_user_and_command(image, monkeypatch):
    """`check` said to make the file writable, and the run said to be root, who is refused as well."""
    os.chmod(image, 0o444)
    another = os.stat(image).st_uid + 1000
    monkeypatch.setattr(os, "geteuid", lambda: another)

    to_write = exclusive._cannot_open(image, OSError(errno.EACCES, os.strerror(errno.EACCES)), writable=True)

    with open_device(image, writable=False) as device:
        assert (device.objection.told, device.objection.advice) == (to_write.told, to_write.advice)
    assert to_write.advice == "Make it writable first."


@pytest.mark.parametrize("path, advice", [
    ("/dev/sdx", "Check the name. `lsblk` lists this machine's disks."),
    ("sdx", "Check the name. `lsblk` lists this machine's disks."),
    ("/dev/my dir/clone.img", "Check the name."), ("clone.img", "Check the name."),
])  # fmt: skip
def test_the_name_of_an_image_is_not_looked_up_in_the_list_of_disks(path, advice):
    error = exclusive._cannot_open(path, OSError(errno.ENOENT, os.strerror(errno.ENOENT)), writable=False)
    assert (type(error), error.advice) == (NotFound, advice)


def test_a_file_without_write_permissions_is_refused_even_to_root(image):
    os.chmod(image, stat.S_IRUSR)

    with pytest.raises(Refused, match="is read-only"):
        # Who is not root does not even get so far, and is told the same in other words.
        open_device(image, writable=True) if os.geteuid() == 0 else exclusive.take_image(
            image, os.open(image, os.O_RDONLY)
        )
    with open_device(image, writable=False) as one, open_device(image, writable=False) as other:
        assert one.read([Range(0, 16)]) == other.read([Range(0, 16)]), "readers do not exclude each other"


def test_who_may_only_read_a_file_that_its_owner_can_write_is_told_who_may(image, monkeypatch):
    """`check` said to make the file writable, and the run said to be root."""
    os.chmod(image, 0o644)
    another = os.stat(image).st_uid + 1000
    monkeypatch.setattr(os, "geteuid", lambda: another)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    with open_device(image, writable=False) as device:
        assert device.objection.told == f"{image} cannot be written: Permission denied. Run this as root."


@pytest.mark.parametrize("leases", [True, False])
def test_a_file_is_open_for_writing_once_and_when_refused_it_is_left_unlocked_and_closed(image, monkeypatch, leases):
    if not leases:  # then the open files of all processes are looked at
        monkeypatch.setattr(exclusive, "F_SETLEASE", NO_LEASES)
    refused = pytest.raises(
        Busy, match="in use by this very process.* Nothing was written. Use that device, or close it first.$"
    )
    with monkeypatch.context() as patch, open(image, "rb"), refused:
        patch.setattr(exclusive, "LEASE_SECONDS", 0)
        open_device(image, writable=True)
    with open_device(image, writable=True) as device:
        assert fcntl.fcntl(device._descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK, "given back at once"


def test_where_leases_are_not_supported_a_lock_keeps_a_second_run_off(image, monkeypatch):
    monkeypatch.setattr(exclusive, "F_SETLEASE", NO_LEASES)
    monkeypatch.setattr(exclusive, "users_of_file", lambda *_: {})

    with open_device(image, writable=True) as device:
        with pytest.raises(
            Busy, match="in use by this very process. Nothing was written. Use that device, or close it first."
        ):
            open_device(image, writable=True)
        monkeypatch.setattr(exclusive.flock, "owner_of", lambda _file: "process 12 (python3)")
        with pytest.raises(
            Busy,
            match=r"locked by process 12 .python3.: another relvmoiscsi is at work on it. Nothing was written. Try",
        ):
            open_device(image, writable=True)
        assert not device.is_closed


def test_of_two_runs_that_begin_together_the_second_gives_way_before_it_looks_for_users(image, monkeypatch):
    """Both have the file open. Each waited for the other to close the file, and both were refused."""
    late, looks, real = os.open(image, os.O_RDWR), [], fcntl.fcntl

    def noted(descriptor, command, *words):
        if command == exclusive.F_SETLEASE:
            looks.append(descriptor)
            if looks == [descriptor]:  # the first looks: the second begins
                with pytest.raises(Busy, match="Nothing was written"):
                    exclusive.take_image(image, late)
                os.close(late)
        return real(descriptor, command, *words)

    monkeypatch.setattr(exclusive.fcntl, "fcntl", noted)
    with open_device(image, writable=True):
        assert late not in looks


NO_LEASES = -1  #: a command of fcntl for which the kernel answers EINVAL, as a file system without leases does


@pytest.mark.processes
def test_who_has_the_file_open_is_named(image, monkeypatch):
    monkeypatch.setattr(exclusive, "LEASE_SECONDS", 0)
    program = "import sys; held = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", program, image]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(Busy, match=rf"is in use by process {holder.pid} \(python.*Try again when"):
            open_device(image, writable=True)
        holder.stdin.close()


def test_a_search_that_does_not_end_in_time_refuses_and_takes_no_message_away(image, monkeypatch):
    monkeypatch.setattr(process_search, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(exclusive, "F_SETLEASE", NO_LEASES)
    over = "^The 0 seconds of the search for programs"
    with open(image, "rb") as file:
        assert re.search(over, exclusive.in_use(image, file.fileno()).message)
    with pytest.raises(Refused, match=over + ".* Nothing was written"):
        open_device(image, writable=True)

    def busy(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "open", busy)
    with pytest.raises(Refused, match="is in use by a program that could not be found out"):
        exclusive.open_file(image, os.O_RDWR, writable=True)


# --- who is in the way, as the kernel tells it


@pytest.fixture
def host(tmp_path):
    """sdb with a partition sdb1, and nobody who uses them."""
    system = Host(str(tmp_path))
    put(system.at("sys/block/sdb/dev"), "8:16\n")
    put(system.at("sys/block/sdb/sdb1/dev"), "8:17\n")
    put(system.at("sys/block/sdb/sdb1/partition"), "1\n")
    put(system.at("proc/swaps"), SWAPS + "/dev/sdc2 partition 9 0 -2\n")
    for number, namespace in (("1", "mnt:[1]"), ("30", "mnt:[1]"), ("40", "mnt:[2]")):
        put(system.at(f"proc/{number}/mountinfo"), "36 35 8:32 / /other rw - ext4 /dev/sdc rw\n37 35 8:1\n")
        os.makedirs(system.at(f"proc/{number}/ns"))
        os.symlink(namespace, system.at(f"proc/{number}/ns/mnt"))
    for name in ("sdb", "sdb1"):
        put(system.at(f"dev/{name}"), "")
    for process in ("1", "self"):  # all files of this test are on one mount; two other mounts are of servers
        lines = [f"{mount_here(tmp_path)} 1 8:1 / / rw - ext4 /dev/sda1 rw", *OF_SERVERS]
        put(system.at(f"proc/{process}/mountinfo"), "\n".join(lines) + "\n")
    os.makedirs(system.at("sys/dev/block"))
    os.symlink("../../block/sdb", system.at("sys/dev/block/8:16"))
    return system


OF_SERVERS = ["900001 1 0:50 / /nfs rw - nfs server:/srv rw", "900002 1 0:51 / /fuse rw - fuse.sshfs alice: rw"]


def mount_here(directory):
    """The number of the mount of this directory."""
    descriptor = os.open(str(directory), os.O_RDONLY)
    try:
        return mounts.mount_of(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def block_device(major, minor):
    """The stat of a device node, without one."""
    fields = [stat.S_IFBLK | 0o600, 77, 5, 1, 0, 0, 0, 0, 0, 0]
    return os.stat_result(fields, {"st_rdev": os.makedev(major, minor)})


def users(host, **options):
    return holders.users_of_disks(["sdb"], host, **options)


def test_the_disks_below_a_file_system_are_found_through_all_stacked_devices(tmp_path):
    """A volume of LVM on a RAID of a partition and a whole disk."""
    host, device = Host(str(tmp_path)), os.stat(str(tmp_path)).st_dev
    for path in ("dm-0/dev", "md0/dev", "sda/sda2/partition", "sdb/dev", "sdc/dev"):
        put(host.at("sys/block", path), "1\n")
    for name, below in (("dm-0", "md0"), ("md0", "sda/sda2"), ("md0", "sdb")):
        link = host.at("sys/block", name, "slaves", os.path.basename(below))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(host.at("sys/block", below), link)
    assert holders.disks_below(str(tmp_path), host) == []

    os.makedirs(host.at("sys/dev/block"))
    os.symlink("../../block/dm-0", host.at(f"sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    assert holders.disks_below(str(tmp_path), host) == ["sda", "sdb"]


STACKED = {
    "sys/block/sdb/holders/dm-1/dm/name": "36001405\n",
    "sys/block/sdb/holders/dm-1/dm/uuid": "mpath-36001405\n",
    "sys/block/sdb/holders/dm-3/dm/name": "36001405-part1\n",
    "sys/block/sdb/holders/dm-3/dm/uuid": "part1-mpath-36001405\n",
    "sys/block/sdb/sdb1/holders/dm-2/dm/name": "VG-MGT\n",
    "sys/block/sdb/sdb1/holders/md0/dev": "9:0\n",
}
MOUNTS = "36 35 8:17 / /srv rw shared:1 - ext4 /dev/sdb1 rw\n38 35 0:55 / /pool rw - btrfs /dev/sdb rw\n"
#: a user mounts these in a namespace of his own, with a text as the source
OF_A_USER = "".join(
    f"36 35 0:{number} / /mnt rw - {kind} /dev/sdb rw\n"
    for number, kind in enumerate(["tmpfs", "fuse", "fuse.btrfs", "overlay", "ramfs"], 60)
)

#: a user mounts a tmpfs on directories of these names: the kernel escapes only what it separates by itself
OF_A_NAME = [
    f"36 35 0:60 / /mnt/x{end}{word.join(['36', '35', '8:16', '/', '/forged', ''])} rw - tmpfs none rw\n"
    for end, word in (("\u2028", "\u2003"), ("\x1c", "\xa0"), ("\r", "\x0b"))
]


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, {}),
        (
            STACKED,
            {
                "multipath map /dev/mapper/36001405": "Use that map instead.",
                "map of a partition /dev/mapper/36001405-part1": "`kpartx -d /dev/sdb` removes it, if nobody uses it.",
                "device-mapper volume VG-MGT": "`lsblk /dev/sdb1` shows what is stacked on it.",
                "block device md0": "`lsblk /dev/sdb1` shows what is stacked on it.",
            },
        ),
        (
            {
                "sys/block/sdb/dm/name": "map\n",
                "sys/block/sdb/holders/dm-3/dm/name": "map1\n",
                "sys/block/sdb/holders/dm-3/dm/uuid": "part1-mpath-36001405\n",
            },
            {"map of a partition /dev/mapper/map1": "`kpartx -d /dev/mapper/map` removes it, if nobody uses it."},
        ),
        (
            {"proc/40/mountinfo": MOUNTS},
            {
                "the file system mounted at /srv": "`umount /dev/sdb1` unmounts it, unless a container has mounted it.",
                "the file system mounted at /pool": "`umount /dev/sdb` unmounts it, unless a container has mounted it.",
            },
        ),
        ({"proc/40/mountinfo": OF_A_USER}, {}),
        *(({"proc/40/mountinfo": line}, {}) for line in OF_A_NAME),
        (
            {"proc/swaps": SWAPS + "/dev/sdb1 partition 9 0 -2\n"},
            {"swap space /dev/sdb1": "`swapoff /dev/sdb1` ends it."},
        ),
        (
            {"sys/block/loop3/loop/backing_file": "/dev/sdb\n"},
            {"loop device /dev/loop3": "`losetup --detach /dev/loop3` detaches it when nobody uses it."},
        ),
        ({"sys/block/loop4/loop/backing_file": "/srv/dev/sdb\n"}, {}),
    ],
)
def test_what_uses_a_disk_or_a_partition_of_it(host, tmp_path, files, expected):
    for path, text in files.items():
        put(str(tmp_path / path), text)

    assert users(host) == list(expected)
    assert holders.users_of_block(block_device(8, 16), host) == expected


def test_a_disk_that_the_kernel_has_in_use_is_refused_with_what_a_person_does(host, tmp_path, monkeypatch):
    for path, text in {**STACKED, "proc/40/mountinfo": MOUNTS}.items():
        put(str(tmp_path / path), text)
    found = holders.users_of_block(block_device(8, 16), host)
    monkeypatch.setattr(exclusive, "users_of_block", lambda *_, **__: found)
    refused = exclusive._cannot_open(str(tmp_path), OSError(errno.EBUSY, "busy"), writable=True)
    assert type(refused) is Refused and refused.message == f"{tmp_path} is in use by {', '.join(found)}."
    assert refused.advice == (
        "Use that map instead. `kpartx -d /dev/sdb` removes it, if nobody uses it. "
        "`lsblk /dev/sdb1` shows what is stacked on it. "
        "`umount /dev/sdb1` unmounts it, unless a container has mounted it. "
        "`umount /dev/sdb` unmounts it, unless a container has mounted it."
    )


@pytest.fixture
def opened(host, monkeypatch):
    """Gives the function that opens a device for a process: by its node, with these flags."""
    real, nodes = os.fstat, {}
    for node, minor in (("dev/sdb", 16), ("dev/sdb1", 17), ("dev/sdc", 32), ("jail/drive", 16)):
        put(host.at("nodes", node), "")
        nodes[os.stat(host.at("nodes", node)).st_ino] = block_device(8, minor)
    monkeypatch.setattr(os, "fstat", lambda descriptor: nodes.get(real(descriptor).st_ino) or real(descriptor))

    def open_it(process, command, flags, node="dev/sdb", descriptor=3, program=None, uids=("0",) * 4, mount=None):
        os.makedirs(host.at(f"proc/{process}/fd"), exist_ok=True)
        os.symlink(host.at("nodes", node), host.at(f"proc/{process}/fd/{descriptor}"))
        put(host.at(f"proc/{process}/comm"), command + "\n")
        if program is not None:
            os.symlink(program, host.at(f"proc/{process}/exe"))
            put(
                host.at(f"proc/{process}/status"),
                "\t".join([f"Name:\t{command}\nUid:", *uids]) + "\nGid:\t0\t0\t0\t0\n",
            )
        number = mount or mount_here(host.root)
        put(host.at(f"proc/{process}/fdinfo/{descriptor}"), f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t{number}\n")

    return open_it


def opened_by(host, own_descriptor=-1):
    return list(holders.opened_by(block_device(8, 16), own_descriptor, host))


#: (the name, the file) of programs that only watch the disk
WATCHERS = [
    ("systemd-udevd", "/usr/lib/systemd/systemd-udevd"),
    ("multipathd", "/usr/sbin/multipathd (deleted)"),
    ("(udev-worker)", "/usr/bin/udevadm"),
]


@pytest.mark.parametrize(
    "flags, program, uids",
    [
        (os.O_RDONLY, "/home/user/evil", ("0",) * 4),
        (os.O_RDONLY, "/home/user/multipathd", ("65534",) * 4),
        (os.O_RDONLY, "/usr/sbin/multipathd", ("65534", "0", "0", "0")),
        (os.O_RDWR, "/usr/sbin/multipathd", ("0",) * 4),
        (os.O_WRONLY, "/usr/sbin/multipathd", ("0",) * 4),
    ],
)
def test_a_process_with_the_name_of_a_watcher_that_is_none_is_a_user(host, opened, flags, program, uids):
    """A process of any user takes any name, and may have inherited the disk. A watcher does not write."""
    opened(12, "multipathd", flags, program=program, uids=uids)

    assert opened_by(host) == users(host) == ["process 12 (multipathd)"]


def test_a_reader_has_a_device_open_as_a_writer_has_but_not_a_watcher(host, opened):
    opened(12, "dd", os.O_RDONLY)
    opened(13, "qemu-dp", os.O_RDWR, node="dev/sdb1")
    opened(14, "cp", os.O_RDONLY, node="jail/drive")
    opened(15, "dd", os.O_RDONLY, node="dev/sdc")
    for number, (watcher, program) in enumerate(WATCHERS, 16):
        opened(number, watcher, os.O_RDONLY, program=program)
    opened(20, "ls", os.O_PATH)

    assert opened_by(host) == users(host) == ["process 12 (dd)", "process 13 (qemu-dp)", "process 14 (cp)"]


def test_no_file_is_looked_at_that_a_server_or_a_user_may_hold_up(host, opened):
    """A stat of such a file may hang. Its mount may also have gone since, as after `umount --lazy`."""
    for process, mount in enumerate(("900001", "900002", "900003"), 12):
        opened(process, "dd", os.O_RDWR, mount=mount)
    put(host.at("sys/block/loop3/loop/backing_file"), "/nfs/dev/sdb\n")
    put(host.at("sys/block/loop4/loop/backing_file"), "/fuse/dev/sdb\n")

    assert opened_by(host) == users(host) == []


def test_of_this_process_only_another_writer_counts(host, opened):
    opened(os.getpid(), "python", os.O_RDWR | os.O_EXCL, descriptor=5)
    opened(os.getpid(), "python", os.O_RDONLY, descriptor=6)
    assert opened_by(host, 5) == []

    opened(os.getpid(), "python", os.O_RDWR, descriptor=7)
    assert opened_by(host, 5) == ["this very process"]


def test_a_loop_device_over_a_node_anywhere_has_it_open(host, opened):
    os.symlink(host.at("nodes/dev/sdb"), host.at("nodes/link"))  # since the owner of the directory has put it there
    nodes = [host.at("nodes", name) for name in ("dev/sdb1", "jail/drive", "dev/sdc", "link")]
    for number, node in enumerate(["/dev/sdb", *nodes], 2):
        put(host.at(f"sys/block/loop{number}/loop/backing_file"), node + "\n")

    assert opened_by(host) == [f"loop device /dev/loop{number}" for number in (2, 3, 4)]


@pytest.mark.parametrize(
    "size, offset, sizelimit, is_user",
    [
        (8192, 0, 0, True),
        (8190, 1024, 0, True),
        (8190, 700, 0, True),  # the kernel rounds its size down to sectors
        (2, 4096, 1024, True),
        (8192, 512, 4194304, False),
        (2, 0, 0, False),  # an image file that somebody has deleted
        (16384, 0, 0, False),
    ],
)
def test_a_loop_device_whose_node_was_removed_may_be_one_of_each_device_that_ends_where_it_ends(
    host, size, offset, sizelimit, is_user
):
    """A file that has the name since tells nothing."""
    path = host.at("nodes/removed (deleted)")
    for name, text in (("loop/backing_file", path), ("size", size), ("loop/offset", offset)):
        put(host.at("sys/block/loop2", name), f"{text}\n")
    put(host.at("sys/block/loop2/loop/sizelimit"), f"{sizelimit}\n")
    put(host.at("sys/block/sdb/size"), "8192\n")
    assert opened_by(host) == (["loop device /dev/loop2"] if is_user else [])
    put(path, "")
    assert opened_by(host) == (["loop device /dev/loop2"] if is_user else [])
    put(host.at("sys/block/sdc/size"), "8192\n")
    assert list(holders.users_of_each(["sdb", "sdc"], host)) == (["sdb", "sdc"] if is_user else [])


@pytest.mark.parametrize("uuid, users", [("mpath-3600", ["process 12 (dd)"]), ("LVM-x", [])])
def test_of_a_path_of_a_multipath_map_only_writers_count(host, opened, uuid, users):
    put(host.at("sys/block/sdb/dm/uuid"), uuid + "\n")
    put(host.at("sys/block/sdb/slaves/sdc/dev"), "8:32\n")
    opened(11, "vgs", os.O_RDONLY, node="dev/sdc")
    opened(12, "dd", os.O_WRONLY, node="dev/sdc")

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


def test_who_has_a_file_open_or_locked_is_named_once(host, image):
    for number, path in enumerate((image, "/somewhere/else (deleted)", __file__), 3):
        put(host.at(f"sys/block/loop{number}/loop/backing_file"), path + "\n")
    us = os.getpid()
    for number, descriptor, path in (
        (12, 3, image),
        (12, 4, image),
        (7, 0, image),
        (7, 1, image + "-gone"),
        (us, 5, image),
    ):
        os.makedirs(host.at(f"proc/{number}/fd"), exist_ok=True)
        os.symlink(path, host.at(f"proc/{number}/fd/{descriptor}"))
        put(host.at(f"proc/{number}/fdinfo/{descriptor}"), f"mnt_id:\t{mount_here(host.root)}\n")
    put(host.at("proc/12/comm"), "qemu-dp\n")
    status = os.stat(image)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = f"1: POSIX  ADVISORY  WRITE 5 {place} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 {place} 0 EOF\n2: -> FLOCK\n"
    put(host.at("proc/locks"), locks)

    named = ["loop device /dev/loop3", "process 7", "process 12 (qemu-dp)"]
    assert list(holders.users_of_file(status, 5, host)) == named
    assert flock.owner_of(image, host) == "process 12 (qemu-dp)"


def test_of_another_file_system_no_open_file_is_looked_at(host, image):
    """A stat of a file on a server that does not answer would hang."""
    us, ours = str(os.getpid()), mount_here(host.root)
    for process, mount in ((us, ours), ("12", "900031"), ("13", "900030"), ("14", "900099")):
        for name, content in (("fdinfo/5", f"pos:\t0\nflags:\t02100002\nmnt_id:\t{mount}\n"), ("comm", "qemu-dp\n")):
            put(host.at("proc", process, name), content)
        os.makedirs(host.at("proc", process, "fd"))
        os.symlink(image, host.at("proc", process, "fd/5"))
    of_server = "900030 1 0:50 / /run/sr-mount/nfs rw shared:1 - nfs server:/srv rw\n"
    put(host.at("proc", us, "mountinfo"), f"{ours} 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + of_server)
    put(host.at("proc/12/mountinfo"), "900031 30 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + of_server)

    assert list(holders.users_of_file(os.stat(image), 5, host)) == ["process 12 (qemu-dp)"]


def test_what_has_the_file_is_named_with_what_ends_the_use(image, monkeypatch):
    monkeypatch.setattr(exclusive, "F_SETLEASE", NO_LEASES)
    users = {"loop device /dev/loop3": "Detach it.", "process 12 (qemu-dp)": "", "loop device /dev/loop10": "Wait."}
    monkeypatch.setattr(exclusive, "users_of_file", lambda _status, _descriptor: users)
    with open(image, "rb") as file:
        refused = exclusive.in_use(image, file.fileno())

    assert refused.message == f"{image} is in use by {', '.join(users)}."
    assert refused.advice == "Detach it. Wait."
    monkeypatch.setattr(exclusive, "users_of_file", lambda _status, _descriptor: {"process 12 (qemu-dp)": ""})
    with open(image, "rb") as file:
        assert exclusive.in_use(image, file.fileno()).advice == "Try again when that use has ended."


def test_a_dry_run_asks_no_more_of_an_image_than_a_run_does(image, monkeypatch):
    """An ordinary user may lack the right to list /sys/block, where loop devices tell their files."""
    monkeypatch.setattr(holders, "_loop_devices", lambda _host: files.names_in(no_directory))
    no_directory = os.path.join(os.path.dirname(image), "a" * 300)  # no list of it: the name is too long
    monkeypatch.setattr(exclusive, "LEASE_SECONDS", 0)
    with open(image, "rb") as file:
        assert exclusive.in_use(image, file.fileno()) is None
        with open(image, "rb"):
            assert "cannot be listed" in exclusive.in_use(image, file.fileno()).message
    open_device(image, writable=True).close()


# --- where data is


@pytest.mark.parametrize(
    "content, length, size, data",
    [
        (b"x" * 1300, MIB + 1300, MIB + 1024, [Range(0, 4096)]),  # whole sectors
        (bytes(MIB) + b"x" * 4096, 8 * MIB, 8 * MIB, [Range(MIB, 4096)]),
        (b"", 0, 0, []),
        (b"", MIB, MIB, []),
    ],
)
def test_only_what_is_allocated_may_hold_data_and_an_image_stays_sparse(tmp_path, content, length, size, data):
    path = str(tmp_path / "sparse")
    with open(path, "wb") as file:
        file.seek(content.count(b"\0"))
        file.write(content.lstrip(b"\0"))
        file.truncate(length)

    with open_device(path, writable=True) as device:
        assert (device.size_bytes, device.block_size, device.name) == (size, 512, path)
        assert device.data_ranges() == data
        if length > 4 * MIB:
            device.write([Chunk(4 * MIB, b"x" * 4096)])
            device.flush()
    assert os.stat(path).st_blocks * 512 <= 64 * KIB


def test_where_holes_are_not_known_everything_may_hold_data(image, monkeypatch):
    def lseek(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    with open_device(image, writable=False) as device:
        monkeypatch.setattr("relvmoiscsi.host.disk.block_device.os.lseek", lseek)

        assert device.data_ranges() == [Range(0, SIZE)]
