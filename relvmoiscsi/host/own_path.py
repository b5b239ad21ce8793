# SPDX-License-Identifier: LGPL-2.1-only
"""The way to a file: no other user may be able to lead a path to another file.

A person may let another user run the command as root, with a path as an argument. A directory of that user could be
replaced by a link, between a check and the use. So each directory on the way is verified, from the root on: what root
or this user has, and nobody else can change, stays as it was verified.

A directory that its group may write is refused for each group, also for the group of root: where a directory has an
ACL, the bits of the group are the most that any user or group named in the ACL can have.
"""

import os
import stat
from typing import List

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
        raise NotOwn(f"other users can change the directory {entry}")
    return False
