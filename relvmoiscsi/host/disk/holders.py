# SPDX-License-Identifier: LGPL-2.1-only
"""The users of a device or image file: for messages, for a file without a kernel lease, and before a disk is removed.

A user is a phrase for a sentence: "process 4711 (qemu-dp)". With a user goes a sentence that says what ends or shows
the use. That sentence names only devices: a user of the host may choose a mount point, in a mount namespace of his own.
A process that this process may not inspect is left out.

Each search of the processes ends at its deadline, and at the latest after SEARCH_SECONDS: with OutOfTime.
"""

import errno
import os
import stat
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.device import SECTOR
from relvmoiscsi.errors import refuse_if_short
from relvmoiscsi.host.disk.process_search import ProcessSearch, is_roots
from relvmoiscsi.host.disk.scsi_id import PARTITION_MAP
from relvmoiscsi.host.files import attribute, lines_of, matching, names_in, text_of, words_in
from relvmoiscsi.host.mounts import Mount, mount_of, status_of_path
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.wording import shell_command

Users = Dict[str, str]  #: by user: what a person does against the use; "" for a user that ends by itself

#: Programs of root that read disks only to watch the disks. A watcher loses nothing when a disk is removed. A udevd of
#: today, and its workers, run the file udevadm.
_WATCHERS = ("multipathd", "systemd-udevd", "udevd", "udevadm")

#: File systems whose mounts have device numbers of their own. Only root can mount these: the mount source is a device.
_OF_SEVERAL_DEVICES = ("btrfs", "bcachefs")


class _Devices:
    """The block devices whose users are looked for."""

    def __init__(self, directories: Dict[str, str], host: Host, deadline: Deadline) -> None:
        """`directories` are those of sysfs, by the name of the device. Raises OutOfTime, as each method may."""
        self.directories, self._host, self._search = directories, host, ProcessSearch(deadline, host)
        #: the names by major:minor; a device without a number has vanished
        self.names = {attribute(directory, "dev"): name for name, directory in directories.items()}
        self.names.pop("", None)
        #: (device name, directory) of the mounted file systems, in every mount namespace of a process
        self._mounted: List[Tuple[str, str]] = []
        self._local: Set[str] = set()  #: numbers of the mounts at which a stat cannot hang
        nodes = {"/dev/" + name: name for name in self.names.values()}
        for mount in self._search.mounts():
            mounted = nodes.get(mount.source) if mount.kind in _OF_SEVERAL_DEVICES else None
            mounted = mounted or self.names.get(mount.file_system)
            if mounted is not None:
                self._mounted.append((mounted, mount.directory))
            if mount.is_local:
                self._local.add(mount.number)

    def claims(self) -> Iterator[Tuple[str, str, str]]:
        """Give (device name, user, what a person does) for each claim that the kernel shows.

        A claim makes an exclusive open fail.
        """
        # devices that the kernel has stacked on this device: device-mapper, md, bcache
        for device, directory in self.directories.items():
            for path in matching(directory, "holders/*"):
                name = attribute(path, "dm/name")
                if attribute(path, "dm/uuid").startswith("mpath-"):
                    yield device, f"multipath map /dev/mapper/{name}", "Use that map instead."
                elif PARTITION_MAP.match(attribute(path, "dm/uuid")):
                    of_map = attribute(directory, "dm/name")
                    remove = shell_command("kpartx -d", f"/dev/mapper/{of_map}" if of_map else "/dev/" + device)
                    yield device, f"map of a partition /dev/mapper/{name}", f"`{remove}` removes it, if nobody uses it."
                else:
                    use = f"device-mapper volume {name}" if name else f"block device {os.path.basename(path)}"
                    yield device, use, f"`{shell_command('lsblk', '/dev/' + device)}` shows what is stacked on it."
        for mounted, directory in self._mounted:
            unmount = shell_command("umount", "/dev/" + mounted)
            way = f"`{unmount}` unmounts it, unless a container has mounted it."
            yield mounted, f"the file system mounted at {directory}", way
        for line in lines_of(self._host.at("proc/swaps"))[1:]:  # /dev/sdb1  partition  1048572  0  -2
            path = words_in(line)[0]
            if os.path.basename(path) in self.directories:
                device = os.path.basename(path)
                yield device, f"swap space {path}", f"`{shell_command('swapoff', '/dev/' + device)}` ends it."

    def opens(self, own_descriptor: int = -1, paths: Sequence[str] = ()) -> Iterator[Tuple[str, str, str]]:
        """Give the same for each open of a device, without watchers and without `own_descriptor`.

        Of this process only writers count, and of the devices `paths` (major:minor).
        """
        for loop, way, backing, directory in _loop_devices(self._host):
            device = os.path.basename(backing)
            if os.path.dirname(backing) != "/dev" or device not in self.directories:
                node = status_of_path(backing, self._host)
                device = self.names.get(_number(node), "") if node else ""
            if device:
                yield device, loop, way
            elif backing.endswith(" (deleted)"):  # nothing tells which device the node was of
                for name, whole in self.directories.items():
                    if _has_end_of(directory, whole):
                        yield name, loop, way
        us, found = str(os.getpid()), set()
        own = self._host.at("proc", us, "fd", str(own_descriptor))
        for link, status in self._search.open_files(self._local, lambda mount: mount.is_local):
            number = _number(status)
            if link == own or number not in self.names and number not in paths:
                continue
            process, flags = link.split(os.sep)[-3], os.O_RDONLY
            for line in lines_of(link.replace("/fd/", "/fdinfo/")):
                if line.startswith("flags:"):  # flags:	02100002
                    flags = int(words_in(line)[1], 8)
            is_writer = flags & os.O_ACCMODE != os.O_RDONLY
            is_reader = process != us and number in self.names
            if is_writer or is_reader and not is_roots(self._host.at("proc", process), _WATCHERS):
                found.add((int(process), self.names.get(number, "")))
        for one, device in sorted(found):
            yield device, self._host.named_process(str(one)), ""


def users_of_block(
    status: os.stat_result, host: Host = THIS_HOST, own_descriptor: int = -1, deadline: Deadline = NO_DEADLINE
) -> Users:
    """Return the users of the block device of `status` and of its partitions, in every mount namespace.

    `own_descriptor` is no user.

    Users are processes and loop devices with an open descriptor, and claims within the kernel.
    """
    devices = _devices_at(status, host, deadline)
    return {use: way for _name, use, way in [*devices.claims(), *devices.opens(own_descriptor)]}


def opened_by(
    status: os.stat_result, own_descriptor: int, host: Host = THIS_HOST, deadline: Deadline = NO_DEADLINE
) -> Users:
    """Return the processes and loop devices that have the block device of `status`, or a partition, open.

    Watchers and `own_descriptor` are left out. Of this process only writers count: the readers of this process know of
    the write. On a path of a multipath map only writers count: a read on a dead path cannot end, and does not use the
    map.
    """
    devices = _devices_at(status, host, deadline)
    maps = [each for each in devices.directories.values() if attribute(each, "dm/uuid").startswith("mpath-")]
    paths = [attribute(path) for each in maps for path in matching(each, "slaves/*/dev")]
    return {use: way for _name, use, way in devices.opens(own_descriptor, paths)}


def _devices_at(status: os.stat_result, host: Host, deadline: Deadline) -> _Devices:
    """Return the block device of `status` and its partitions."""
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    directory = os.path.realpath(host.at("sys/dev/block", number))
    devices = _Devices(_with_parts(directory), host, deadline)
    devices.names[number] = os.path.basename(directory)
    return devices


def users_of_disks(
    names: Sequence[str], host: Host = THIS_HOST, answering: bool = True, deadline: Deadline = NO_DEADLINE
) -> List[str]:
    """Return the users that would lose data or access if these disks ("sdb") went, in every mount namespace.

    Users of partitions count. With `answering`, the caller knows that opening the disks does not hang. Only then does
    the search open the disks. So it finds kernel claims that no file shows: a target's backstore, or a file system in
    a mount namespace out of reach.
    """
    users = dict.fromkeys(user for found in users_of_each(names, host, deadline).values() for user in found)
    if answering and not users:
        return claims_of_disks(names, host)
    return list(users)


def users_of_each(
    names: Sequence[str], host: Host = THIS_HOST, deadline: Deadline = NO_DEADLINE
) -> Dict[str, List[str]]:
    """Return the users of each disk that has users, with one search for all. No disk is opened (`users_of_disks`)."""
    parts = {disk: _with_parts(host.at("sys/block", disk)) for disk in names}
    devices = _Devices({name: path for of_disk in parts.values() for name, path in of_disk.items()}, host, deadline)
    uses = [*devices.claims(), *devices.opens()]
    found = {disk: list(dict.fromkeys(use for name, use, _ in uses if name in parts[disk])) for disk in names}
    return {disk: users for disk, users in found.items() if users}


def _loop_devices(host: Host) -> Iterator[Tuple[str, str, str, str]]:
    """Give (loop device as a user, what a person does, path of its backing file, its directory of sysfs) for each."""
    for path in matching(host.at("sys/block"), "loop*/loop/backing_file"):
        node = "/dev/" + path.split(os.sep)[-3]
        way = f"`{shell_command('losetup --detach', node)}` detaches it when nobody uses it."
        yield f"loop device {node}", way, text_of(path).rstrip("\n"), os.path.dirname(os.path.dirname(path))


def _has_end_of(loop: str, device: str) -> bool:
    """Return whether a loop device over the device would end where this one ends. Both are directories of sysfs.

    A loop device without a size limit ends in the last sector of its backing file.
    """
    offset, limit = (int(attribute(loop, "loop", name) or 0) for name in ("offset", "sizelimit"))
    size, whole = (SECTOR * int(attribute(each, "size") or 0) for each in (loop, device))
    left = whole - offset - size
    return left >= 0 if limit else 0 <= left < SECTOR


def claims_of_disks(names: Sequence[str], host: Host = THIS_HOST) -> List[str]:
    """Return kernel claims on these disks or their partitions. The disks are opened: on a dead disk this hangs."""
    found = []
    for name in [name for disk in names for name in _with_parts(host.at("sys/block", disk))]:
        try:  # the exclusive open is read-only, so that udev takes no notice
            os.close(os.open(host.node(name), os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            refuse_if_short(error)
            if error.errno == errno.EBUSY:
                found.append(f"something in the kernel that has claimed {name}")
    return found


def _with_parts(directory: str) -> Dict[str, str]:
    """Return sysfs's directories of a block device and of its partitions, by name."""
    parts = [os.path.dirname(path) for path in matching(directory, "*/partition")]
    return {os.path.basename(path): path for path in (directory, *parts)}


def disks_below(path: str, host: Host = THIS_HOST) -> List[str]:
    """Return the disks ("sda") under the file system of a directory, below all stacked devices."""
    number = os.stat(path).st_dev
    todo, found = [host.at(f"sys/dev/block/{os.major(number)}:{os.minor(number)}")], set()
    while todo:
        directory = os.path.realpath(todo.pop())
        slaves = matching(directory, "slaves/*")
        if os.path.exists(os.path.join(directory, "partition")):
            found.add(os.path.basename(os.path.dirname(directory)))
        elif not slaves and os.path.isdir(directory):
            found.add(os.path.basename(directory))
        else:
            todo += slaves
    return sorted(found)


def stacked(name: str, host: Host = THIS_HOST) -> List[str]:
    """Return the names of the device-mapper devices that are stacked on a disk or on the disk's multipath map."""
    found: List[str] = []
    for holder in names_in(host.at("sys/block", name, "holders")):
        directory = host.at("sys/block", holder)
        if attribute(directory, "dm/uuid").startswith("mpath-"):
            found += stacked(holder, host)
        else:
            found.append(attribute(directory, "dm/name") or holder)
    return found


def users_of_file(status: os.stat_result, own_descriptor: int, host: Host = THIS_HOST) -> Users:
    """Return the loop devices and processes that have the file of `status` open, without `own_descriptor`."""
    own = host.at("proc", str(os.getpid()), "fd", str(own_descriptor))
    search = ProcessSearch(NO_DEADLINE, host)
    # The file system of each mount, as major:minor. `st_dev` is another number on btrfs and overlayfs.
    file_systems = {mount.number: mount.file_system for mount in search.mounts()}
    here = mount_of(own)
    # this process has a file there open: that file system answers
    mounts = {here, *(number for number, each in file_systems.items() if each == file_systems.get(here))}

    def is_wanted(mount: Mount) -> bool:
        return mount.number == here or mount.file_system == file_systems.get(here)

    found = [(name, way, status_of_path(backing, host, is_wanted)) for name, way, backing, _ in _loop_devices(host)]
    loops = {name: way for name, way, each in found if each is not None and os.path.samestat(each, status)}
    opened = search.open_files(mounts, is_wanted if here in file_systems else None)
    links = [link for link, each in opened if link != own and os.path.samestat(each, status)]
    numbers = {link.split(os.sep)[-3] for link in links}
    return {**loops, **dict.fromkeys((host.named_process(number) for number in sorted(numbers, key=int)), "")}


def advice_of(users: Users) -> str:
    """Return what a person does against all these users; "" where each use ends by itself."""
    return " ".join(filter(None, dict.fromkeys(users.values())))


def _number(status: os.stat_result) -> str:
    """Return the major:minor of a block device; "" for another file."""
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if stat.S_ISBLK(status.st_mode) else ""
