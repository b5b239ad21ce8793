# SPDX-License-Identifier: LGPL-2.1-only
"""Whether two paths of this machine lead to the same bytes.

    another name        a hard link, a symbolic link, another node of a device
    a loop device       from the first byte on, its bytes are those of its backing file, which may be a block device
    a multipath map     its paths

A partition, or another map, has the bytes of its disk at other places, or other bytes, as dm-snapshot has.
"""

import os
import stat
from contextlib import ExitStack
from typing import Container, List, Set, Tuple

from relvmoiscsi.host.disk.exclusive import open_file
from relvmoiscsi.host.files import attribute, names_in, text_of
from relvmoiscsi.host.mounts import mount_of, status_of_path
from relvmoiscsi.host.this_host import THIS_HOST, Host


def same_device(first: str, second: str, host: Host = THIS_HOST) -> bool:
    """Return whether two paths lead to the same file or the same device. Raises NotFound if a path leads nowhere."""
    with ExitStack() as opened:
        mounts: Set[str] = set()  # that have just answered
        both = [_pinned(path, opened, mounts) for path in (first, second)]
        one, other = (_faces(status, mounts, host) for status in both)
    return not one.isdisjoint(other)


def backing_file(path: str, host: Host = THIS_HOST) -> str:
    """Return the path of the file behind the loop device at `path`, as the kernel tells it; "" for another device."""
    try:
        directory = _directory(os.stat(path), host)
    except OSError:  # the device has vanished since
        return ""
    return text_of(os.path.join(directory, "loop/backing_file")).rstrip("\n")


def _directory(status: os.stat_result, host: Host) -> str:
    """Return the directory of sysfs of a block device; for a file, a directory that does not exist."""
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if stat.S_ISBLK(status.st_mode) else "none"
    return os.path.realpath(host.at("sys/dev/block", number))


def _pinned(path: str, opened: ExitStack, mounts: Set[str]) -> os.stat_result:
    """Return the status of a path. Add the number of its mount to `mounts`, unless it is that of a device node.

    The path is open until `opened` ends: the kernel gives the number to no other mount meanwhile.
    """
    descriptor = open_file(path, os.O_PATH, writable=False)
    opened.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    if not stat.S_ISBLK(status.st_mode):
        mounts.add(mount_of(f"/proc/self/fd/{descriptor}"))
    return status


def _faces(status: os.stat_result, mounts: Container[str], host: Host) -> Set[Tuple[int, ...]]:
    """Return the numbers of a file or device, and of all files and devices that have its bytes behind it."""
    found: Set[Tuple[int, ...]] = set()
    todo = [status]
    while todo:
        status = todo.pop()
        is_disk = stat.S_ISBLK(status.st_mode)
        face = (status.st_rdev,) if is_disk else (status.st_dev, status.st_ino)
        if face not in found:
            found.add(face)
            todo += _behind(_directory(status, host), mounts, host)
    return found


def _behind(directory: str, mounts: Container[str], host: Host) -> List[os.stat_result]:
    """Return the status of what has the same bytes behind the device with this directory of sysfs.

    A stat of a loop device's file could wait for a server, for ever. So the file is looked at only on these mounts, and
    on mounts that answer from memory.
    """
    is_map = attribute(directory, "dm/uuid").startswith("mpath-")
    paths = [host.node(name) for name in names_in(os.path.join(directory, "slaves")) if is_map]
    if attribute(directory, "loop/offset") == "0":
        paths.append(text_of(os.path.join(directory, "loop/backing_file")).rstrip("\n"))
    found = (status_of_path(path, host, lambda mount: mount.number in mounts) for path in paths)
    return [status for status in found if status is not None]
