# SPDX-License-Identifier: LGPL-2.1-only
"""Look at files of other programs without a wait for a server, or for a program of a user, that does not answer.

A stat of a file on NFS, CIFS or FUSE waits for an answer, and no deadline ends that wait. The kernel tells the mount of
an open file without a look at the file. So a caller names the mounts at which a stat cannot hang, and each function
here returns None for a file on another mount.
"""

import os
import re
from typing import Callable, Container, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import Refused, refuse_if_short
from relvmoiscsi.host.files import words_in
from relvmoiscsi.host.this_host import THIS_HOST, Host

#: File systems that answer a stat of an open file from memory. An overlay may lie over any other file system.
_LOCAL = (
    "devtmpfs",
    "tmpfs",
    "ramfs",
    "rootfs",
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "bcachefs",
    "f2fs",
    "squashfs",
)

_FUSE = ("fuse", "fuseblk")  #: also as fuse.sshfs

#: for a file of a process that has ended or closed the file, or that belongs to another user
_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError)

_FIRST_LINES = 256  #: bytes of pos, flags and mnt_id, which are the first lines of each fdinfo


class Mount(NamedTuple):
    """A mount, as a line of /proc/PID/mountinfo tells it."""

    number: str  #: the kernel gives it to one mount at a time
    file_system: str  #: as major:minor
    directory: str  #: with a blank as \040
    kind: str
    source: str  #: any text: a user mounts a tmpfs with it, in a mount namespace of his own
    options: str  #: of the file system, such as rw,user_id=1000

    @property
    def is_local(self) -> bool:
        """Return whether a stat of a file of this mount cannot hang."""
        return self.kind in _LOCAL

    def is_of_others(self, users: Sequence[int]) -> bool:
        """Return whether a program of a user other than these answers for the files (FUSE).

        The kernel tells a user's number of the user namespace where the mount was made. In another user namespace, the
        number may be that of this process, and the user another.
        """
        found = re.findall("(?:^|,)user_id=([0-9]+)(?=,|$)", self.options)
        return self.kind.partition(".")[0] in _FUSE and (not found or not set(map(str, users)).issuperset(found))


#: called with a mount that a process shows
Wanted = Callable[[Mount], bool]


def mounts_in(lines: Iterable[bytes]) -> Iterator[Mount]:
    """Give the mounts of a mountinfo: 36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw."""
    for line in lines:
        words = words_in(line.decode("utf-8", "replace").rstrip("\n"))
        if "-" in words[5:-2]:
            kind, source, *options = words[words.index("-", 5) + 1 :]
            yield Mount(words[0], words[2], words[4], kind, source, "".join(options[:1]))


def mount_with(number: str, host: Host = THIS_HOST) -> Optional[Mount]:
    """Return the mount with this number in the mount namespace of this process.

    The caller has a file of the mount open since before: then the kernel gives the number to no other mount meanwhile.
    A host can have tens of thousands of mounts, most of them younger than those of the system: the kernel lists the
    others no further than the mount. Raises OSError.
    """
    begin = f"{number} ".encode()
    with open(host.at("proc/self/mountinfo"), "rb") as lines:
        return next(mounts_in(line for line in lines if line.startswith(begin)), None)


def mount_of(link: str) -> str:
    """Return the number of the mount of a descriptor, /proc/*/fd/*; "" for a closed descriptor.

    Raises OSError where this process can open no more files. Raises Refused on a kernel that does not tell the mount:
    each search there would find no user of any disk.
    """
    return _mount_in(_lines_of(link))


def _lines_of(link: str) -> bytes:
    """Return the first lines of a descriptor's fdinfo; b"" for a closed descriptor.

    A search reads them for each open file of the host. So the read takes no more bytes than these lines have.
    """
    try:
        descriptor = os.open(link.replace("/fd/", "/fdinfo/"), os.O_RDONLY | os.O_CLOEXEC)
    except _GONE:
        return b""
    try:
        return os.read(descriptor, _FIRST_LINES)
    except OSError:
        return b""  # the process has ended since
    finally:
        os.close(descriptor)


def _mount_in(lines: bytes) -> str:
    """Return the number of the mount in the lines of a fdinfo, as `mount_of`."""
    if not lines:
        return ""
    found = re.search(rb"^mnt_id:\t([0-9]+)$", lines, re.MULTILINE)
    if found is None:
        raise Refused("This kernel does not tell the mount of an open file (mnt_id in /proc/self/fdinfo).").advising(
            "Use a host with Linux 3.15 or later."
        )
    return found.group(1).decode()


def _has_o_path(lines: bytes) -> bool:
    """Return whether the lines of a fdinfo are of a descriptor that was opened with O_PATH."""
    flags = re.search(rb"^flags:\t([0-7]{1,12})$", lines, re.MULTILINE)
    return flags is not None and bool(int(flags.group(1), 8) & os.O_PATH)


def status_of_open(
    link: str, mounts: Container[str], is_still: Optional[Callable[[str, int], bool]] = None
) -> Optional[os.stat_result]:
    """Return the status of the file of a descriptor, /proc/*/fd/*, on a mount with one of these numbers.

    t0: the kernel tells the mount. t1: the process replaces the descriptor by that of a file on a server that does not
    answer. t2: a stat of the link hangs. So the link is opened as O_PATH, and the kernel tells the mount once more.
    `is_still` gets the number and this descriptor, and says whether the number is that of the same mount as before.

    None for a descriptor with O_PATH, which reads and writes nothing: such are those of this search and of others.
    """
    lines = _lines_of(link)
    if _mount_in(lines) not in mounts or _has_o_path(lines):
        return None
    try:
        pinned = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        refuse_if_short(error)
        return None  # the process has closed the descriptor since
    try:
        number = mount_of(f"/proc/self/fd/{pinned}")
        is_there = number in mounts and (is_still is None or is_still(number, pinned))
        return os.fstat(pinned) if is_there else None
    finally:
        os.close(pinned)


def status_of_path(path: str, host: Host, is_wanted: Optional[Wanted] = None) -> Optional[os.stat_result]:
    """Return the status of the file at a path that the kernel tells, which has no link.

    The way there enters only wanted mounts, and mounts at which a stat cannot hang. The owner of a directory on the way
    can have put a link or a mount there since. So the walk follows no link, and looks at the mount of each directory
    that it has open. This program is on the mount of the root directory, and in a chroot the kernel does not list it.
    Raises Refused where this process can open no more files.
    """
    opened: List[int] = []  #: the directory above, and the last
    last = ""
    try:
        for name in [os.sep, *path.split(os.sep)[1:]]:
            above = opened[-1] if opened else None
            opened.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above))
            number = mount_of(f"/proc/self/fd/{opened[-1]}")  # before the directory above is closed
            if above is not None:
                os.close(opened.pop(0))
            if number != last and above is not None:
                mount = mount_with(number, host)
                if mount is None or not (mount.is_local or is_wanted is not None and is_wanted(mount)):
                    return None
            last = number
        return os.fstat(opened[-1])
    except OSError as error:
        refuse_if_short(error)
        return None  # deleted, or in another mount namespace
    finally:
        for descriptor in opened:
            os.close(descriptor)
