# SPDX-License-Identifier: LGPL-2.1-only
"""Files that an option names: no other user may be able to lead a path to another file, or to hold up this process.

    own_way       pins what is at a path: --map and --ca, a directory. With a mode, it makes the directories
    own_place     pins the directory of a file, which a caller reads, makes, opens or replaces there by its name
    read_named    reads a file of an option
    open_own      opens a file to write: --log, the reports of the acceptance kit
    is_there      a lock of another program is needed where the program has made its directory
    is_own        a message names the path in a command of another program, which verifies nothing

A person may let another user run the command as root, with a path as an argument. A directory of that user could be
replaced by a link, between a check and the use. So each directory on the way is verified, from the root on: what root
or this user has, and nobody else can change, stays as it was verified. No caller walks a path a second time:

    /  ->  open(name, O_PATH | O_NOFOLLOW) in the directory before  ->  its mount  ->  fstat  ->  the next name

A user can mount FUSE at a name of his own in /tmp, and a program that answers nothing then holds up each question. An
open with O_PATH asks the mounted file system nothing. So the kernel tells the mount of what is open, before any
question. A mount that cannot be found is refused as well: another user may have unmounted it, but not ended it. The
mount of the root directory is not looked at: this program is on it, and in a chroot the kernel does not list it.

A directory that its group may write is refused for each group, also for the group of root: where a directory has an
ACL, the bits of the group are the most that any user or group named in the ACL can have.

A path such as /dev/stdin names a descriptor that the caller has opened. The descriptor is read as it is. An open by the
path would open the file behind it anew, with the rights of this process.
"""

import errno
import os
import re
import stat
from contextlib import ExitStack, contextmanager, suppress
from typing import Callable, Iterator, List, NamedTuple, Optional

from relvmoiscsi.errors import Refused
from relvmoiscsi.host.files import attribute, content_of, lines_in, new_directory, open_private, remedy, words_in
from relvmoiscsi.host.mounts import mount_of, mount_with

#: what a shell's `<(command)` or `< FILE` opens for a program
_DESCRIPTOR = re.compile("/dev/(?:stdin|fd/([0-9]{1,4}))|/proc/self/fd/([0-9]{1,4})")
_MOST_LINKS = 40  #: as of Linux
_MOST_WALKS = 10  #: of one call that makes directories
_OVERFLOW_USER = "65534"  #: of a Linux whose /proc/sys does not tell
_ALL_USERS = (1 << 32) - 1
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

#: called with the path, the status of the file, and whether the caller has given a descriptor
Verify = Callable[[str, os.stat_result, bool], None]


class Pinned(NamedTuple):
    """An entry that is open with O_PATH: the same file, whatever another user mounts or makes at its name since."""

    path: str  #: without links
    descriptor: int
    mount: str  #: its number
    kind: str  #: of the file system; "" on the mount of the root directory
    status: os.stat_result

    @property
    def link(self) -> str:
        """A path that leads to this file alone."""
        return f"/proc/self/fd/{self.descriptor}"


class OwnPlace(NamedTuple):
    """A verified directory and a name in it, which may lead to any file or to none."""

    directory: Pinned
    name: str
    path: str  #: as the caller gave it

    @contextmanager
    def entry(self) -> Iterator[Pinned]:
        """Pin what is there, also a link. Owner and mode are not verified yet. Raises NotOwn, OSError."""
        with ExitStack() as opened:
            yield _pin(opened, self.name, self.directory)

    def verify_new(self) -> None:
        """Raise NotOwnFile for a link, and for a file that another user has made. Raises NotOwn, OSError."""
        try:
            with self.entry() as entry:
                _verify_owner(self.path, entry.status)
        except FileNotFoundError:
            pass

    def read(self, most_bytes: int, verify: Optional[Verify] = None) -> bytes:
        """Return the first bytes of the file, as `read_named`; a link is refused. Raises NotOwn, OSError."""
        with self.entry() as entry:
            return _content(self.path, entry, most_bytes, verify or _verify_trusted)

    def make(self, flags: int) -> int:
        """Make the file with mode 0600, and return the descriptor. Raises OSError."""
        return open_private(self.name, flags | os.O_EXCL, self.directory.descriptor)

    def open(self, flags: int, verify: Callable[[str, os.stat_result], None]) -> int:
        """Make the file with mode 0600, or open the file that `verify` takes; return the descriptor.

        With O_EXCL, no file is opened that is there. Raises OSError, NotOwn, and the errors of `verify`.
        """
        while True:
            try:
                return self.make(flags)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
            try:
                with self.entry() as entry:
                    if stat.S_ISDIR(entry.status.st_mode):
                        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
                    verify(self.path, entry.status)
                    return os.open(entry.link, flags | os.O_CLOEXEC)
            except FileNotFoundError:
                pass  # its owner has removed it since

    def rename(self, name: str) -> None:
        """Give the file the new name in the same directory. Raises OSError."""
        directory = self.directory.descriptor
        os.rename(self.name, name, src_dir_fd=directory, dst_dir_fd=directory)

    def unlink(self) -> None:
        """Remove the name. Raises OSError."""
        os.unlink(self.name, dir_fd=self.directory.descriptor)


@contextmanager
def own_way(path: str, make: Optional[int] = None) -> Iterator[Pinned]:
    """Pin what is at the path while the block runs. Raises NotOwn if another user could replace a part of the way.

    Links of root and of this user are followed. Directories that are absent are made with the mode `make`. In a
    directory with the sticky bit, such as /tmp, other users can make files, and cannot replace what root or this user
    has made.

    Raises OSError, and Refused where the kernel tells no mounts.
    """
    with ExitStack() as opened:
        for left in reversed(range(1 if make is None else _MOST_WALKS)):
            try:
                entry = _walked(opened, path, make)
                break
            except FileNotFoundError:  # another process has removed a directory that was just made, and is empty
                opened.close()
                if not left:
                    raise
        yield entry


def _walked(opened: ExitStack, path: str, make: Optional[int]) -> Pinned:
    """Walk the path once, as `own_way`; what is pinned is open until `opened` ends."""
    way, links = [_pin(opened, os.sep)], 0
    # The working directory may be gone, or on a mount that does not answer: an absolute path does not need it.
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    todo: List[str] = path.split(os.sep)[::-1]  # the next name is the last item
    _verify_kept(os.sep, way[0].status)
    while todo:
        name = todo.pop()
        if not stat.S_ISDIR(way[-1].status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"{way[-1].path} is no directory", path)
        if name in ("", os.curdir, os.pardir):
            del way[max(1, len(way) - (name == os.pardir)) :]
            continue
        try:
            entry = _pin(opened, name, way[-1])
        except FileNotFoundError:
            if make is None:
                raise
            try:
                new_directory(name, make, way[-1].descriptor)
            except FileExistsError:  # another process has made it meanwhile, and it stays as it is
                pass
            entry = _pin(opened, name, way[-1])
        _verify_kept(entry.path, entry.status)
        if not stat.S_ISLNK(entry.status.st_mode):
            way.append(entry)
            continue
        links += 1
        if entry.kind == "proc":  # such as fd/3 or root: the kernel leads to that file, and not by the text
            raise NotOwn(f"{entry.path} is a link of a process")
        if links > _MOST_LINKS:
            raise NotOwn(f"{entry.path} is one of too many links")
        target = os.readlink("", dir_fd=entry.descriptor)
        del way[1 if os.path.isabs(target) else len(way) :]
        todo += reversed(target.split(os.sep))
    return way[-1]


@contextmanager
def own_place(path: str) -> Iterator[OwnPlace]:
    """Pin the directory of a path while the block runs, as `own_way`. What is at the last name is not looked at."""
    directory, name = os.path.split(path)
    with own_way(directory) as pinned:
        yield OwnPlace(pinned, name or os.curdir, path)


def make_directory(path: str, mode: int) -> None:
    """Make a directory and those above it, each with this mode. What is there stays as it is. Raises Refused.

    A directory that another user could replace is refused too.
    """
    # the separator at the end: for a file in the place of the directory, an error
    with refusing(f"The directory {path}", "made"), own_way(os.path.join(path, ""), make=mode):
        pass


@contextmanager
def refusing(what: str, verb: str) -> Iterator[None]:
    """Raise Refused in the place of NotOwn and OSError."""
    try:
        yield
    except NotOwn as error:
        advice = "Let root have that place alone, then try again."
        if isinstance(error, NotOwnFile):
            advice = "End what uses that file, such as a run of relvmoiscsi. Then remove the file, and try again."
        raise Refused(f"{what} is not safe: {error}.").advising(advice) from None
    except OSError as error:
        raise Refused(f"{what} cannot be {verb}: {error.strerror}.").advising(remedy(error)) from error


def read_named(path: str, most_bytes: int, verify: Optional[Verify] = None) -> bytes:
    """Return the first bytes of a file that an option names: `most_bytes`, and one more of a longer file.

    `verify` raises for a file that is not to be read, also for a link as the last name. Without `verify`, the file is a
    regular file that only root and this user can change. Links of root and of this user are followed then: the trusted
    certificates of a system are behind such a link. A descriptor of the caller is read as it is.

    Raises NotOwn, OSError, Refused, and the errors of `verify`.
    """
    given = _DESCRIPTOR.fullmatch(path)
    if given is not None:
        descriptor = os.dup(int(given.group(1) or given.group(2) or 0))
        try:
            (verify or _verify_trusted)(path, os.fstat(descriptor), True)
            return _read(descriptor, most_bytes)
        finally:
            os.close(descriptor)
    if verify is None:
        with own_way(path) as entry:
            return _content(path, entry, most_bytes, _verify_trusted)
    with own_place(path) as place:
        return place.read(most_bytes, verify)


def open_own(path: str, flags: int) -> int:
    """Open a regular file that is this user's alone, or make it with mode 0600; return the descriptor.

    Raises NotOwn for another file. Raises OSError, Refused.
    """
    with own_place(path) as place:
        return place.open(flags, verify_alone)


def is_own(path: str) -> bool:
    """Return whether no other user can exchange what is at `path`, write to a file there, or make a file beside it."""
    try:
        with own_way(path), own_way(os.path.dirname(path)) as directory:
            return not directory.status.st_mode & _OTHERS_WRITE
    except (NotOwn, OSError, Refused):  # a message asks
        return False


def is_there(path: str) -> bool:
    """Return whether anything is at the path, also a link.

    True where another user can lead the path elsewhere, or has mounted something: `own_place` then says so at the open.
    True for each other error too: a caller takes no lock where nothing is.
    """
    try:
        with own_place(path) as place, place.entry():
            return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (NotOwn, OSError):
        return True


class NotOwn(Exception):
    """Another user could lead a path to another file. The text is a clause that names the place."""


class NotOwnFile(NotOwn):
    """The place is safe, and the file there is not this user's."""


def _pin(opened: ExitStack, name: str, above: Optional[Pinned] = None, as_directory: int = 0) -> Pinned:
    """Open an entry of a directory until `opened` ends, and look at its mount before its status.

    While `above` is open, the kernel gives the number of its mount to no other mount. `as_directory` is O_DIRECTORY for
    an entry of autofs: only for a directory, and not for O_PATH alone, root's automounter mounts what belongs there.
    """
    path = name if above is None else os.path.join(above.path, name)
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | as_directory
    descriptor = os.open(name, flags, dir_fd=None if above is None else above.descriptor)
    opened.callback(os.close, descriptor)
    number, kind = mount_of(f"/proc/self/fd/{descriptor}"), "" if above is None else above.kind
    if not number:
        problem = "/proc is not mounted here, so nothing tells whose file systems are on the way to a file."
        raise Refused(problem).advising("Run this where /proc is mounted, also in a chroot or a container.")
    if above is not None and number != above.mount:
        mount = mount_with(number)
        if mount is None:
            raise NotOwn(f"the file system at {path} was unmounted, or lies outside of this chroot")
        if mount.is_of_others([0, os.geteuid()] if _has_number_of_each_user() else [0]):
            raise NotOwn(f"the file system at {path}, of type {mount.kind}, is mounted by another user")
        kind = mount.kind
    if kind == "autofs" and not as_directory:
        with suppress(NotADirectoryError):  # a link
            return _pin(opened, name, above, os.O_DIRECTORY)
    return Pinned(path, descriptor, number, kind, os.fstat(descriptor))


def _verify_kept(path: str, status: os.stat_result) -> None:
    """Raise NotOwn for an entry that a user other than root and this one can change."""
    if status.st_uid != 0 and not is_this_user(status.st_uid):
        raise NotOwn(f"{path} belongs to {_other(status.st_uid)}")
    is_node = stat.S_ISBLK(status.st_mode)  # who may write to a disk, cannot make its node lead to another disk
    is_directory = stat.S_ISDIR(status.st_mode)
    is_sticky = is_directory and status.st_mode & stat.S_ISVTX  # of a file, the bit says nothing
    if status.st_mode & _OTHERS_WRITE and not is_sticky and not is_node and not stat.S_ISLNK(status.st_mode):
        raise NotOwn(f"other users can change the {'directory' if is_directory else 'file'} {path}")


def _other(user: int) -> str:
    """Return a user who is not root and not this one, as words of a clause."""
    if not _is_several(user):
        return "another user"
    return f"root or another user: this user namespace (/proc/self/uid_map) shows both as the user {user}"


def _is_several(user: int) -> bool:
    """Return whether this may be any user of the host who has no number in the user namespace of this process.

    The kernel shows all of them as one. After `unshare --map-root-user`, root is one of them. After `unshare --user`
    alone, this process itself is one of them, so that each file would be its own.
    """
    is_overflow = str(user) == (attribute("/proc/sys/kernel/overflowuid") or _OVERFLOW_USER)
    return is_overflow and not _has_number_of_each_user()


def _has_number_of_each_user() -> bool:
    """Return whether each user has a number in the user namespace of this process, as in that of the host."""
    text = content_of("/proc/self/uid_map")  # first, outside, count; no file: a kernel without user namespaces
    lines = lines_in(text.decode("ascii")) if text is not None else []
    return text is None or sum(int(words_in(line)[2]) for line in lines) >= _ALL_USERS


def is_this_user(user: int) -> bool:
    """Return whether the owner of a file is the user of this process, and surely no other."""
    return user == os.geteuid() and not _is_several(user)


def _verify_owner(path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode) or not is_this_user(status.st_uid):
        raise NotOwnFile(f"{path} is a link, or belongs to another user")


def _verify_trusted(path: str, status: os.stat_result, is_given: bool) -> None:
    """Raise NotOwn unless the file is a regular file that only root and this user can change."""
    if not is_given:
        _verify_kept(path, status)
        if not stat.S_ISREG(status.st_mode):
            raise NotOwn(f"{path} is no regular file")


def verify_alone(path: str, status: os.stat_result) -> None:
    """Raise NotOwn unless the file is a regular file of this user alone, with one name."""
    _verify_owner(path, status)
    _verify_trusted(path, status, False)
    if status.st_nlink > 1:  # 0: its owner has removed it since
        raise NotOwnFile(f"{path} has another name too")


def _content(path: str, entry: Pinned, most_bytes: int, verify: Verify) -> bytes:
    verify(path, entry.status, False)
    descriptor = os.open(entry.link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, most_bytes: int) -> bytes:
    parts = [os.read(descriptor, most_bytes + 1)]
    while parts[-1] and sum(map(len, parts)) <= most_bytes:
        parts.append(os.read(descriptor, most_bytes + 1 - sum(map(len, parts))))
    return b"".join(parts)
