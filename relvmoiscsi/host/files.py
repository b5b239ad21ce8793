# SPDX-License-Identifier: LGPL-2.1-only
"""Small files: read a file that may be absent; replace a file so that a power cut leaves the old or the new content.

The kernel and udev write a line for each thing, and escape in a name only what separates names in their files: blank,
tab and line feed. A local user, or a writer of a LUN, chooses such names. Python's own `splitlines` and `split` also
separate at carriage returns, file separators and a dozen characters of Unicode, and so does a file that is opened as
text. So these files are read here, as bytes: `lines_of` and `words_in` separate where the writer does.

The caller of a command sets how many files the command can open, also for root by sudo. At that limit, a reader that
takes any error for an absent file, as Python's `glob` does, finds no disks of a LUN, and no users of a disk. So
`names_in` and `matching` list directories, and raise the error. `reserve` raises the limit before anything is read.
`errors.refuse_if_short` is for what remains: a host without memory, or a limit of the whole host, which binds ordinary
users.

xapi, cron and people start this product under any umask. Each directory and each file of the product is made here, with
the mode that the caller names.
"""

import errno
import fnmatch
import os
import resource
import stat
from contextlib import ExitStack, suppress
from typing import List, Optional, Tuple

from relvmoiscsi.errors import SHORT, Refused, refuse_if_short, short
from relvmoiscsi.wording import shell_command

_NEW_MODE = 0o644
_BLANKS = " \t\n"
_MOST_BYTES = 1 << 20  #: of a text; each user can have millions of locks, and so lines in /proc/locks
#: files that the product opens at a time, at the most: 272 of a search for users, three pipes of each of 64 children
MOST_OPEN = 512
LEAST_OPEN = 64  #: enough for a command without children, and for a search that keeps fewer files open
#: of a directory: ESRCH of a process that has ended, ENODEV of a device that has gone
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV)
_OWNER_MAY = stat.S_IRUSR | stat.S_IWUSR

#: remedies for errors that even root gets
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


def remedy(error: OSError, path: str = "") -> str:
    """Return what a person can do about the error. After EACCES and EPERM, root and the owner of `path` differ.

    The kernel answers EACCES to an owner whom the mode refuses. It answers EPERM for an immutable file, whatever the
    mode is.
    """
    number = error.errno or 0
    if number in SHORT:
        return short(error).advice
    if number not in _FORBIDDEN_TO_ROOT:
        return _REMEDIES.get(number, "Look at what is in its place.")
    if os.geteuid() == 0:
        return _FORBIDDEN_TO_ROOT[number]
    directory = os.path.dirname(os.path.abspath(path))
    try:
        of_directory = os.stat(directory)
        is_new = not os.path.lexists(path)  # also in a directory that lets nobody look
        refuses = stat.S_IXUSR | stat.S_IWUSR if is_new else stat.S_IXUSR
        if path and of_directory.st_uid == os.geteuid() and of_directory.st_mode & refuses != refuses:
            return f"The directory is yours: `{shell_command('chmod u+rwx', directory)}` lets you."
        status = os.stat(path)
    except OSError:  # also without a path
        return "Run this as root."
    if status.st_uid != os.geteuid():
        return "Run this as root."
    if number == errno.EPERM:
        return "Its mode is not the reason: it may be immutable (`lsattr`)."
    if status.st_mode & _OWNER_MAY == _OWNER_MAY:
        return "Its mode lets you: look at SELinux, and at the file server's rules."
    return f"The file is yours: `{shell_command('chmod u+rw', path)}` lets you."


def text_of(path: str) -> str:
    """Return the text of a file, such as a file of sysfs; "" if the file is absent or unreadable.

    Of a file with more than 1 MiB, return the start. The kernel refuses a read of 4 MiB from a file of /proc/sys.
    Raises Refused where this process can open no more files.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        refuse_if_short(error)
        return ""


def names_in(directory: str, pattern: str = "*") -> List[str]:
    """Return the sorted names in a directory that match; [] if the directory is absent. Raises Refused."""
    try:
        return sorted(fnmatch.filter(os.listdir(directory), pattern))
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        refuse_if_short(error)
        problem = f"{directory} cannot be listed: {error.strerror}."
        raise Refused(problem).advising(remedy(error, directory)) from error


def matching(directory: str, pattern: str) -> List[str]:
    """Return the sorted paths below a directory that match a pattern such as "sd*/*/partition". Raises Refused."""
    found = [directory]
    for part in pattern.split(os.sep):
        if "*" in part:
            found = [os.path.join(above, name) for above in found for name in names_in(above, part)]
        else:
            found = [path for path in (os.path.join(above, part) for above in found) if os.path.lexists(path)]
    return found


def attribute(*path: str) -> str:
    """Return the text of a file of the kernel without blanks at both ends; "" if the file is absent or unreadable.

    `path` has the directories and the name of the file.
    """
    return text_of(os.path.join(*path)).strip(_BLANKS)


def lines_of(*path: str) -> List[str]:
    """Return the lines of a file that have a text; [] if the file is absent or unreadable. Only LF ends a line.

    `path` has the directories and the name of the file.
    """
    return lines_in(text_of(os.path.join(*path)))


def lines_in(text: str) -> List[str]:
    """Return the lines of a text that have a text. Only LF ends a line."""
    return [line for line in text.split("\n") if line]


def words_in(line: str) -> List[str]:
    """Return the words of a line. Only blanks and tabs separate words."""
    return [word for word in line.replace("\t", " ").split(" ") if word]


def content_of(path: str) -> Optional[bytes]:
    """Return the bytes of a file; None if there is no file. Raises OSError if the file exists and a read fails."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace(path: str, content: bytes, new: str) -> None:
    """Replace the content of a file. Owner and mode stay; a new file has mode 0644.

    `new` is an unused path in the same file system. `replace` makes the content durable at `new`, then renames `new` to
    `path`. Call `sync_directory` to make the rename durable. Raises OSError; then the old file is there, and `new` is
    not.
    """
    descriptor = open_private(new, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                old = os.stat(path)
                os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, old.st_mode & 0o7777)
            except FileNotFoundError:
                os.fchmod(descriptor, _NEW_MODE)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def open_private(path: str, flags: int, directory: Optional[int] = None) -> int:
    """Open a file, and return the descriptor. A file that is not there is made with mode 0600. Raises OSError.

    A relative path begins in the open `directory`.

    The mode of a file that is there stays, but for the rights of its owner, which a umask may have taken away.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and status.st_mode & 0o600 != 0o600:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | 0o600)
    return descriptor


def new_directory(path: str, mode: int, directory: Optional[int] = None) -> None:
    """Make a directory with this mode. A relative path begins in the open `directory`. Raises OSError."""
    os.mkdir(path, mode & 0o700, dir_fd=directory)
    os.chmod(path, mode, dir_fd=directory)


def append(descriptor: int, line: bytes) -> None:
    """Append the line to a file that is open with O_APPEND: the whole line, or nothing. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- how many files this process can open


def reserve() -> int:
    """Let this process open MOST_OPEN more files, or as many as a user's hard limit allows. Return how many.

    Raises Refused for fewer than LEAST_OPEN.
    """
    count, _ = _room()
    if count == MOST_OPEN:
        return count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + 2 * MOST_OPEN  # the caller's own files may have higher numbers than the limit allows
    for limits in ((wanted, max(hard, wanted)), (hard, hard)):  # only root may raise the second
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            break
    count, error = _room()
    if error is not None and count < LEAST_OPEN:
        raise short(error) from error
    return count


def _room() -> Tuple[int, Optional[OSError]]:
    """Return how many more files this process can open, up to MOST_OPEN, and the error of the next one."""
    with ExitStack() as opened:
        for count in range(MOST_OPEN):
            try:
                opened.callback(os.close, os.open(os.sep, os.O_PATH | os.O_CLOEXEC))
            except OSError as error:
                return count, error
    return MOST_OPEN, None
