# SPDX-License-Identifier: LGPL-2.1-only
"""Files that an option names: no other user may be able to lead a path to another file.

    read_named    reads such a file: --map, --ca, what is at --map-out, and by secret_file.py the files of passwords
    open_own      opens a file to write: --log, the reports of the acceptance kit
    verify_new    verifies the place of a new file: --map-out
    make_own_directory    makes a directory for such a file
    is_own        a message names the path in a command of another program, which verifies nothing

A person may let another user run the command as root, with a path as an argument. A directory of that user could be
replaced by a link, between a check and the use. So each directory on the way is verified, from the root on: what root
or this user has, and nobody else can change, stays as it was verified.

A directory that its group may write is refused for each group, also for the group of root: where a directory has an
ACL, the bits of the group are the most that any user or group named in the ACL can have.

A path such as /dev/stdin names a descriptor that the caller has opened. The descriptor is read as it is. An open by the
path would open the file behind it anew, with the rights of this process.
"""

import os
import re
import stat
from typing import Callable, List, Optional

from relvmoiscsi.host.files import make_directory, open_private

#: what a shell's `<(command)` or `< FILE` opens for a program
_DESCRIPTOR = re.compile("/dev/(?:stdin|fd/([0-9]{1,4}))|/proc/self/fd/([0-9]{1,4})")
#: a link of a process, such as fd/3, root or cwd: the kernel leads to that file, and not to the path that a read shows
_LINK_OF_PROCESS = re.compile("/proc/.+/.+")
_MOST_LINKS = 40  #: as of Linux
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

#: called with the path, the status of the open file, and whether the caller has given a descriptor
Verify = Callable[[str, os.stat_result, bool], None]


def verify_own_way(path: str) -> None:
    """Raise NotOwn if another user could replace a directory or a link on the way to `path`. Raises OSError.

    The last name of the path is not looked at. In a directory with the sticky bit, such as /tmp, other users can make
    files, and cannot replace what root or this user has made.
    """
    way = os.path.dirname(os.path.join(os.getcwd(), path))
    at, links = os.sep, 0
    todo: List[str] = way.split(os.sep)[::-1]  # the next name is the last item
    _verify(at)
    while todo:
        name = todo.pop()
        if name in ("", os.curdir, os.pardir):
            at = os.path.dirname(at) if name == os.pardir else at
            continue
        entry = os.path.join(at, name)
        if not _verify(entry):
            at = entry
            continue
        target, links = os.readlink(entry), links + 1
        if _LINK_OF_PROCESS.fullmatch(entry):
            raise NotOwn(f"{entry} is a link of a process")
        if links > _MOST_LINKS:
            raise NotOwn(f"{entry} is one of too many links")
        at = os.sep if os.path.isabs(target) else at
        todo += reversed(target.split(os.sep))
    if not os.path.samestat(os.lstat(at), os.stat(way)):  # a link of a process, where procfs is mounted elsewhere
        raise NotOwn(f"{way} leads elsewhere than to {at}")


def read_named(path: str, most_bytes: int, verify: Optional[Verify] = None) -> bytes:
    """Return the first bytes of a file that an option names: `most_bytes`, and one more of a longer file.

    `verify` raises for a file that is not to be read; then a link as the last name is refused. Without `verify`, the
    file is a regular file that only root and this user can change. Links of root and of this user are followed then:
    the trusted certificates of a system are behind such a link. A descriptor of the caller is read as it is.

    Raises NotOwn, OSError, and the errors of `verify`.
    """
    given = _DESCRIPTOR.fullmatch(path)
    if given is not None:
        descriptor = os.dup(int(given.group(1) or given.group(2) or 0))
    else:
        verify_own_way(os.path.join(path, "") if verify is None else path)
        follows = 0 if verify is None else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follows)
    try:
        (verify or _verify_trusted)(path, os.fstat(descriptor), given is not None)
        parts = [os.read(descriptor, most_bytes + 1)]
        while parts[-1] and sum(map(len, parts)) <= most_bytes:
            parts.append(os.read(descriptor, most_bytes + 1 - sum(map(len, parts))))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def verify_new(path: str) -> None:
    """Raise NotOwn for a link, and for a file that another user has made or could replace. Raises OSError."""
    verify_own_way(path)
    if os.path.lexists(path):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
            raise NotOwnFile(f"{path} is a link, or belongs to another user")


def open_own(path: str, flags: int) -> int:
    """Open a regular file that is this user's alone, or make it with mode 0600; return the descriptor.

    Raises NotOwn for another file, also for one that appears at the path meanwhile. Raises OSError.
    """
    verify_new(path)
    descriptor = open_private(path, flags | os.O_NONBLOCK)  # no wait for the reader of a pipe
    try:
        status = os.fstat(descriptor)
        _verify_trusted(path, status, False)
        if status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise NotOwn(f"{path} belongs to another user, or has another name too")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_own_directory(path: str, mode: int) -> None:
    """Make a directory and those above it, each with this mode. What is there stays as it is. Raises NotOwn, OSError.

    Each directory is verified before the next one is made in it: no other user can have this process make a directory
    elsewhere.
    """
    try:
        verify_own_way(os.path.join(path, ""))
    except FileNotFoundError:
        make_own_directory(os.path.dirname(os.path.abspath(path)), mode)
        make_directory(path, mode)
        verify_own_way(os.path.join(path, ""))


def is_own(path: str) -> bool:
    """Return whether no other user can exchange what is at `path`, write to a file there, or make a file beside it."""
    try:
        verify_own_way(os.path.join(path, ""))
        directory = os.stat(os.path.dirname(path) or os.curdir)
    except (NotOwn, OSError):
        return False
    return not directory.st_mode & _OTHERS_WRITE


class NotOwn(Exception):
    """Another user could lead a path to another file. The text is a clause that names the place."""


class NotOwnFile(NotOwn):
    """The place is safe, and the file there is not this user's."""


def _verify(entry: str) -> bool:
    """Return whether the entry is a link. Raises NotOwn, OSError."""
    status = os.lstat(entry)
    if status.st_uid not in (0, os.geteuid()):
        raise NotOwn(f"{entry} belongs to another user")
    if stat.S_ISLNK(status.st_mode):
        return True
    is_node = stat.S_ISBLK(status.st_mode)  # who may write to a disk, cannot make its node lead to another disk
    is_directory = stat.S_ISDIR(status.st_mode)
    is_sticky = is_directory and status.st_mode & stat.S_ISVTX  # of a file, the bit says nothing
    if status.st_mode & _OTHERS_WRITE and not is_sticky and not is_node:
        raise NotOwn(f"other users can change the {'directory' if is_directory else 'file'} {entry}")
    return False


def _verify_trusted(path: str, status: os.stat_result, is_given: bool) -> None:
    """Raise NotOwn unless the file is regular; `verify_own_way` has verified its owner and mode."""
    if not is_given and not stat.S_ISREG(status.st_mode):
        raise NotOwn(f"{path} is no regular file")
