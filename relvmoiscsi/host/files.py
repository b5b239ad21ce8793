# SPDX-License-Identifier: LGPL-2.1-only
"""Small files: read where they may be absent, and replaced: a cut at any moment leaves the old one or the new one."""

import errno
import os
from typing import Callable, Optional

_NEW_MODE = 0o644
_TRIES = 100  # each takes somebody who removes the directory in the same microseconds

#: what forbids it even to root
_FORBIDDEN_TO_ROOT = {
    errno.EACCES: "Root is refused as well: look at SELinux, at `nodev` mounts, and at the file server's rules.",
    errno.EPERM: "Root is refused as well: a container may not have the device, or a file is immutable (`lsattr`).",
}
_REMEDIES = {
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there.",
    errno.EROFS: "Mount it for writing.",
    errno.EIO: "Look at the kernel's log.",
}


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be made or written; a look at it, where the error tells no more."""
    number = error.errno or 0
    if number in _FORBIDDEN_TO_ROOT:
        return permission_remedy(number)
    return _REMEDIES.get(number, "Look at what is in its place.")


def permission_remedy(number: int) -> str:
    """What to do about EACCES or EPERM; root is told what may be meant."""
    return _FORBIDDEN_TO_ROOT[number] if os.geteuid() == 0 else "Run this as root."


def text_of(path: str) -> str:
    """The text of a file, of the kernel for one; empty where it is not there or not for us."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def content_of(path: str) -> Optional[bytes]:
    """The bytes of a file; None where there is none. Raises OSError when it cannot be read: that is another answer."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace(path: str, content: bytes, new: str) -> None:
    """Put new content in the place of a file. What the file was, owner and mode, it stays; a first one has mode 0644.

    `new` is a path in the same file system that nobody has: there the content is made durable, before it gets the name.
    That it has it is durable after `sync_directory`. Raises OSError; then the old file is there, and no new one.
    """
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            take_over(path, descriptor)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def in_directory(directory: str, mode: int, make: Callable[[], None]) -> None:
    """Make a file in a directory that is made if need be, and that others remove when they find it empty.

    Raises OSError: what `make` raised last.
    """
    for again in reversed(range(_TRIES)):
        try:
            os.makedirs(directory, mode, exist_ok=True)
            make()
            return
        except (FileNotFoundError, FileExistsError):  # makedirs says the latter of what was there and has just gone
            if not again:
                raise


def append(descriptor: int, line: bytes) -> None:
    """Write the line to the end of a file that is open for appending: all of it, or nothing. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def take_over(path: str, descriptor: int) -> None:
    """Give a new file the owner and mode of the one at `path` that it is to replace; a first one has mode 0644."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        os.fchmod(descriptor, _NEW_MODE)
        return
    os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & 0o7777)


def sync_directory(path: str) -> None:
    """Make durable which names the directory has. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
