# SPDX-License-Identifier: LGPL-2.1-only
"""Who else uses a device or an image file: for messages, where the kernel gives no lease on a file, before a disk goes.

Answers are phrases for a sentence: "process 4711 (qemu-dp)". What cannot be looked at is left out.
"""

import errno
import os
import stat
from glob import escape, glob
from typing import Container, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.this_host import THIS_HOST, Host

#: Programs that keep disks open, or open them again and again, only to watch them: they lose nothing when a disk goes.
WATCHERS = ("multipathd", "systemd-udevd", "(udev-worker)", "udevd")


def users_of_block(status: os.stat_result, host: Host = THIS_HOST) -> List[str]:
    """Who has a claim on the block device of this stat, or on one of its partitions."""
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    directory = os.path.realpath(os.path.join(host.sysfs, "dev/block", number))
    parts = [os.path.dirname(path) for path in sorted(glob(os.path.join(escape(directory), "*/partition")))]
    users: List[str] = []
    for device in [directory, *parts]:
        users += _holders(device)
        users += _mounts(_text(os.path.join(device, "dev")), host)
    return users + _processes(status, -1, host)


def users_of_disks(names: Sequence[str], host: Host = THIS_HOST, answering: bool = True) -> List[str]:
    """Who would lose something if these disks ("sdb") went, in whatever mount namespace. Partitions count as well.

    `answering`: the disks are within reach, so that opening them does not hang. Only then are claims within the kernel
    seen that are shown nowhere: a target's backstore, a file system mounted where this process cannot look.
    """
    users = dict.fromkeys(user for found in users_of_each(names, host).values() for user in found)
    if answering and not users:
        return claims_of_disks(names, host)
    return list(users)


def users_of_each(names: Sequence[str], host: Host = THIS_HOST) -> Dict[str, List[str]]:
    """The same by disk, with one look at this host for all of them, and without what is seen only by opening them."""
    devices = {name: disk for disk in names for name in _with_parts(disk, host)}
    numbers = {_text(os.path.join(_directory(name, disk, host), "dev")): name for name, disk in devices.items()}
    numbers.pop("", None)  # gone
    uses = [(name, use) for name, disk in devices.items() for use in _holders(_directory(name, disk, host), advice="")]
    uses += _mounts_anywhere(numbers, host)
    uses += _swaps(devices, host)
    uses += _loops_over(devices, host)
    uses += _processes_with(numbers, host)
    found: Dict[str, List[str]] = {disk: [] for disk in names}
    for disk, use in dict.fromkeys((devices[name], use) for name, use in uses):
        found[disk].append(use)
    return found


def claims_of_disks(names: Sequence[str], host: Host = THIS_HOST) -> List[str]:
    """What within the kernel has claimed these disks, or partitions of them; opening one that is dead hangs."""
    return _claims([name for disk in names for name in _with_parts(disk, host)], host)


def _with_parts(disk: str, host: Host) -> List[str]:
    """The kernel's names of the disk and its partitions."""
    parts = sorted(glob(os.path.join(escape(host.sysfs), "block", escape(disk), "*/partition")))
    return [disk, *(os.path.basename(os.path.dirname(path)) for path in parts)]


def _directory(name: str, disk: str, host: Host) -> str:
    """Of the disk itself, or of a partition of it."""
    return os.path.join(host.sysfs, "block", *((disk,) if name == disk else (disk, name)))


def disks_below(path: str, host: Host = THIS_HOST) -> List[str]:
    """The disks ("sda") under the file system of a directory of this host, whatever is stacked in between."""
    number = os.stat(path).st_dev
    return sorted(
        _below(os.path.realpath(os.path.join(host.sysfs, f"dev/block/{os.major(number)}:{os.minor(number)}")))
    )


def stacked(name: str, host: Host = THIS_HOST) -> List[str]:
    """The names of the device-mapper devices that somebody has stacked on a disk, or on its multipath map."""
    found: List[str] = []
    for path in sorted(glob(os.path.join(escape(host.sysfs), "block", name, "holders/*"))):
        holder = os.path.basename(path)
        directory = os.path.join(host.sysfs, "block", holder)
        if _text(os.path.join(directory, "dm/uuid")).startswith("mpath-"):
            found += stacked(holder, host)
        else:
            found.append(_text(os.path.join(directory, "dm/name")) or holder)
    return found


def _below(directory: str) -> Set[str]:
    if os.path.exists(os.path.join(directory, "partition")):
        return {os.path.basename(os.path.dirname(directory))}
    slaves = glob(os.path.join(escape(directory), "slaves/*"))
    if not slaves:
        return {os.path.basename(directory)} if os.path.isdir(directory) else set()
    return set().union(*(_below(os.path.realpath(slave)) for slave in slaves))


def users_of_file(status: os.stat_result, own_descriptor: int, host: Host = THIS_HOST) -> List[str]:
    """Which loop devices and processes have the file of this stat open, `own_descriptor` apart."""
    return _loops(status, host) + _processes(status, own_descriptor, host)


def _holders(device: str, advice: str = " (use that instead)") -> Iterator[str]:
    """The devices the kernel has stacked on this one: device-mapper, md, bcache."""
    for path in sorted(glob(os.path.join(escape(device), "holders", "*"))):
        name, uuid = _text(os.path.join(path, "dm/name")), _text(os.path.join(path, "dm/uuid"))
        if uuid.startswith("mpath-"):
            yield f"multipath map /dev/mapper/{name}{advice}"
        elif name:
            yield f"device-mapper volume {name}"
        else:
            yield f"block device {os.path.basename(path)}"


def _mounts(number: str, host: Host) -> Iterator[str]:
    for line in _text(os.path.join(host.proc, "self/mountinfo")).splitlines():
        words = line.split()  # 36 35 98:0 /mnt1 /mnt2 rw,noatime ...
        if number and len(words) > 4 and words[2] == number:
            yield f"the file system mounted at {words[4]}"


def _mounts_anywhere(numbers: Dict[str, str], host: Host) -> Iterator[Tuple[str, str]]:
    """File systems on these devices (major:minor to name) in every mount namespace that some process is in."""
    names = {"/dev/" + name: name for name in numbers.values()}
    seen = set()
    for process in sorted(glob(os.path.join(escape(host.proc), "[0-9]*"))):
        namespace = _link(os.path.join(process, "ns/mnt"))
        if namespace and namespace in seen:
            continue
        seen.add(namespace)
        for line in _text(os.path.join(process, "mountinfo")).splitlines():
            words = line.split()  # 36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw
            # btrfs has numbers of its own; its source tells.
            source = words[words.index("-") + 2] if "-" in words[:-2] else ""
            name = (numbers.get(words[2]) if len(words) > 4 else None) or names.get(source)
            if name is not None:
                yield name, f"the file system mounted at {words[4]}"


def _swaps(devices: Container[str], host: Host) -> Iterator[Tuple[str, str]]:
    for line in _text(os.path.join(host.proc, "swaps")).splitlines()[1:]:  # /dev/sdb1  partition  1048572  0  -2
        path = line.split()[0] if line.strip() else ""
        if os.path.basename(path) in devices:
            yield os.path.basename(path), f"swap space {path}"


def _loops_over(devices: Container[str], host: Host) -> Iterator[Tuple[str, str]]:
    for path in sorted(glob(os.path.join(escape(host.sysfs), "block/loop*/loop/backing_file"))):
        backing = _text(path)
        if os.path.dirname(backing) == "/dev" and os.path.basename(backing) in devices:
            yield os.path.basename(backing), f"loop device /dev/{path.split(os.sep)[-3]}"


def _processes_with(numbers: Dict[str, str], host: Host) -> Iterator[Tuple[str, str]]:
    """Processes with an open descriptor of one of these devices (major:minor to name); watchers left out."""
    found: Set[Tuple[int, str]] = set()
    for link in _open_devices(host):
        number = _number(link)
        if number in numbers:
            found.add((int(link.split(os.sep)[-3]), numbers[number]))
    for process, name in sorted(found):
        if _text(os.path.join(host.proc, str(process), "comm")) not in WATCHERS:
            yield name, named_process(str(process), host)


def writers_of_block(status: os.stat_result, own_descriptor: int, host: Host = THIS_HOST) -> List[str]:
    """Processes that have the block device of this stat open for writing, `own_descriptor` apart; watchers left out.

    The kernel lets two of them write, unless one asks to be alone.
    """
    wanted = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    own = os.path.join(host.proc, str(os.getpid()), "fd", str(own_descriptor))
    found: Dict[str, None] = {}
    for link in _open_devices(host):
        if link != own and _number(link) == wanted and _is_for_writing(link):
            found[link.split(os.sep)[-3]] = None
    return [
        named_process(one, host)
        for one in sorted(found, key=int)
        if _text(os.path.join(host.proc, one, "comm")) not in WATCHERS
    ]


def _open_devices(host: Host) -> Iterator[str]:
    """Paths of all descriptors, /proc/*/fd/*, of what lies in a /dev.

    Nothing else may be asked for its number: a file on a server that does not answer would hang.
    """
    for process in glob(os.path.join(escape(host.proc), "[0-9]*")):
        directory = os.path.join(process, "fd")
        yield from (os.path.join(directory, name) for name in _devices_among(directory))


def _devices_among(directory: str) -> List[str]:
    # A host of many VMs has tens of thousands of descriptors: one call for each.
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []  # gone, or not for us
    try:
        return [name for name in os.listdir(descriptor) if "/dev/" in _link(name, descriptor)]
    except OSError:
        return []  # it has ended in the meantime
    finally:
        os.close(descriptor)


def _is_for_writing(link: str) -> bool:
    """What /proc/*/fdinfo/* says of a descriptor: `flags:	02100002`, octal."""
    for line in _text(link.replace("/fd/", "/fdinfo/")).splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _number(path: str) -> str:
    """The major:minor of the block device at the path; "" if it is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""  # closed in the meantime
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if stat.S_ISBLK(status.st_mode) else ""


def _claims(devices: Sequence[str], host: Host) -> List[str]:
    """Devices that the kernel gives to nobody else, whoever has them. Opened to read only: udev takes no notice."""
    found = []
    for name in devices:
        try:
            os.close(os.open(host.node(name), os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EBUSY:
                found.append(f"something in the kernel that has claimed {name}")
    return found


def _link(path: str, directory: Optional[int] = None) -> str:
    try:
        return os.readlink(path, dir_fd=directory)
    except OSError:
        return ""  # gone, or not for us


def _loops(status: os.stat_result, host: Host) -> List[str]:
    loops = []
    for path in sorted(glob(os.path.join(escape(host.sysfs), "block/loop*/loop/backing_file"))):
        backing = _text(path)
        try:
            same = os.path.samestat(os.stat(backing), status)
        except OSError:
            continue  # deleted, or in another mount namespace
        if same:
            loops.append(f"loop device /dev/{path.split(os.sep)[-3]}")
    return loops


def _processes(status: os.stat_result, own_descriptor: int, host: Host) -> List[str]:
    """Processes with an open descriptor of this very file, or of a node of this device."""
    own = os.path.join(host.proc, str(os.getpid()), "fd", str(own_descriptor))
    numbers = []
    for link in glob(os.path.join(escape(host.proc), "[0-9]*/fd/*")):
        number = link.split(os.sep)[-3]
        if link != own and number not in numbers and _is_same(link, status):
            numbers.append(number)
    return [named_process(number, host) for number in sorted(numbers, key=int)]


def _is_same(link: str, status: os.stat_result) -> bool:
    try:
        there = os.stat(link)
    except OSError:
        return False  # closed in the meantime
    if stat.S_ISBLK(status.st_mode):
        return stat.S_ISBLK(there.st_mode) and there.st_rdev == status.st_rdev
    return os.path.samestat(there, status)


def named_process(number: str, host: Host) -> str:
    """A process for a sentence."""
    command = _text(os.path.join(host.proc, number, "comm"))
    if number == str(os.getpid()):
        return "this very process"
    return f"process {number} ({command})" if command else f"process {number}"


def _text(path: str) -> str:
    """A line or table of the kernel."""
    return text_of(path).rstrip("\n")
