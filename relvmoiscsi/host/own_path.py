# SPDX-License-Identifier: LGPL-2.1-only
"""The way to a file: no other user may be able to lead a path to another file.

A person may let another user run the command as root, with a path as an argument. A directory of that user could be
replaced by a link, between a check and the use. So each directory on the way is verified, from the root on: what root
or this user has, and nobody else can change, stays as it was verified.

A directory that its group may write is refused for each group, also for the group of root: where a directory has an
ACL, the bits of the group are the most that any user or group named in the ACL can have.
"""

import os
import re
import stat
from typing import List, Optional

#: what a shell's `<(command)` or `< FILE` opens for a program
_DESCRIPTOR = re.compile("/dev/(?:stdin|fd/([0-9]{1,4}))|/proc/self/fd/([0-9]{1,4})")
_MOST_LINKS = 40  #: as of Linux


def verify_own_way(path: str) -> None:
    """Raise NotOwn if another user could replace a directory or a link on the way to `path`. Raises OSError.

    The last name of the path is not looked at. In a directory with the sticky bit, such as /tmp, other users can make
    files, and cannot replace what root or this user has made.
    """
    at, links = os.sep, 0
    todo: List[str] = os.path.join(os.getcwd(), path).split(os.sep)[-2::-1]  # the next name is the last item
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
        if links > _MOST_LINKS:
            raise NotOwn(f"{entry} is one of too many links")
        at = os.sep if os.path.isabs(target) else at
        todo += reversed(target.split(os.sep))


def verify_own_file(path: str) -> None:
    """Raise NotOwn unless `path` leads to a regular file that only root and this user can change. Raises OSError.

    Links of root and of this user are followed: the trusted certificates of a system are behind such a link. What was
    verified stays as it was, so the file can be opened by its path. A descriptor of the caller is not looked at.
    """
    if given_descriptor(path) is None:
        verify_own_way(os.path.join(path, ""))
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise NotOwn(f"{path} is no regular file")


def given_descriptor(path: str) -> Optional[int]:
    """Return the descriptor that a path such as /dev/stdin names: the caller has opened the file. None: a real path."""
    match = _DESCRIPTOR.fullmatch(path)
    return int(match.group(1) or match.group(2) or 0) if match else None


class NotOwn(Exception):
    """Another user could lead a path to another file. The text is a clause that names the place."""


def _verify(entry: str) -> bool:
    """Return whether the entry is a link. Raises NotOwn, OSError."""
    status = os.lstat(entry)
    if status.st_uid not in (0, os.geteuid()):
        raise NotOwn(f"{entry} belongs to another user")
    if stat.S_ISLNK(status.st_mode):
        return True
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        what = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        raise NotOwn(f"other users can change the {what} {entry}")
    return False
