# SPDX-License-Identifier: LGPL-2.1-only
"""Who else uses a device or an image file: for messages, and where the kernel gives no lease on a file.

Answers are phrases for a sentence: "process 4711 (qemu-dp)". What cannot be looked at is left out.
"""

import os
import stat
from glob import escape, glob
from typing import Iterator, List, NamedTuple


class System(NamedTuple):
    """Where the kernel tells about itself; a test has its own."""

    sysfs: str = "/sys"
    proc: str = "/proc"


HERE = System()


def users_of_block(status: os.stat_result, system: System = HERE) -> List[str]:
    """Who has a claim on the block device of this stat, or on one of its partitions."""
    number = "{}:{}".format(os.major(status.st_rdev), os.minor(status.st_rdev))
    directory = os.path.realpath(os.path.join(system.sysfs, "dev/block", number))
    parts = [os.path.dirname(path) for path in sorted(glob(os.path.join(escape(directory), "*/partition")))]
    users: List[str] = []
    for device in [directory, *parts]:
        users += _holders(device)
        users += _mounts(_text(os.path.join(device, "dev")), system)
    return users + _processes(status, -1, system)


def users_of_file(status: os.stat_result, own_descriptor: int, system: System = HERE) -> List[str]:
    """Which loop devices and processes have the file of this stat open, `own_descriptor` apart."""
    return _loops(status, system) + _processes(status, own_descriptor, system)


def owners_of_flock(status: os.stat_result, system: System = HERE) -> List[str]:
    """Which processes hold an flock on the file or device node of this stat."""
    place = "{:02x}:{:02x}:{}".format(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    owners = []
    for line in _text(os.path.join(system.proc, "locks")).splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:12345 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place:
            owners.append(_process(words[4], system))
    return owners


def _holders(device: str) -> Iterator[str]:
    """The devices the kernel has stacked on this one: device-mapper, md, bcache."""
    for path in sorted(glob(os.path.join(escape(device), "holders", "*"))):
        name, uuid = _text(os.path.join(path, "dm/name")), _text(os.path.join(path, "dm/uuid"))
        if uuid.startswith("mpath-"):
            yield "multipath map /dev/mapper/{} (use that instead)".format(name)
        elif name:
            yield "device-mapper volume {}".format(name)
        else:
            yield "block device {}".format(os.path.basename(path))


def _mounts(number: str, system: System) -> Iterator[str]:
    for line in _text(os.path.join(system.proc, "self/mountinfo")).splitlines():
        words = line.split()  # 36 35 98:0 /mnt1 /mnt2 rw,noatime ...
        if number and len(words) > 4 and words[2] == number:
            yield "the file system mounted at {}".format(words[4])


def _loops(status: os.stat_result, system: System) -> List[str]:
    loops = []
    for path in sorted(glob(os.path.join(escape(system.sysfs), "block/loop*/loop/backing_file"))):
        backing = _text(path)
        try:
            same = os.path.samestat(os.stat(backing), status)
        except OSError:
            continue  # deleted, or in another mount namespace
        if same:
            loops.append("loop device /dev/{}".format(path.split(os.sep)[-3]))
    return loops


def _processes(status: os.stat_result, own_descriptor: int, system: System) -> List[str]:
    """Processes with an open descriptor of this very file, or of a node of this device."""
    own = os.path.join(system.proc, str(os.getpid()), "fd", str(own_descriptor))
    numbers = []
    for link in glob(os.path.join(escape(system.proc), "[0-9]*/fd/*")):
        number = link.split(os.sep)[-3]
        if link != own and number not in numbers and _is_same(link, status):
            numbers.append(number)
    return [_process(number, system) for number in sorted(numbers, key=int)]


def _is_same(link: str, status: os.stat_result) -> bool:
    try:
        there = os.stat(link)
    except OSError:
        return False  # closed in the meantime
    if stat.S_ISBLK(status.st_mode):
        return stat.S_ISBLK(there.st_mode) and there.st_rdev == status.st_rdev
    return os.path.samestat(there, status)


def _process(number: str, system: System) -> str:
    command = _text(os.path.join(system.proc, number, "comm"))
    if number == str(os.getpid()):
        return "this very process"
    return "process {} ({})".format(number, command) if command else "process {}".format(number)


def _text(path: str) -> str:
    """A line or table of the kernel; empty if it is not there or not for us."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return lines.read().rstrip("\n")
    except OSError:
        return ""
