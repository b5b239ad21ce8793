# SPDX-License-Identifier: LGPL-2.1-only
"""Search the open files and the mounts of all processes of this host, within a deadline.

No process is skipped; docs/security.rst names what the search does not see. A process without any right to a disk may
have the disk open: by inheritance, as a qemu that has given up its rights, or by a message over a socket. But any user
can have millions of descriptors, each a copy of the next, and mount namespaces full of long names. Of an open file, the
kernel tells the mount with all locks that its process has there: 20,000 of them take 0.1 seconds. So a search that
does not end in time is refused, and nothing is written. The refusal names the user whose processes took the most time.
"""

import os
from functools import partial
from itertools import chain
from typing import Container, Dict, Generator, Iterable, Iterator, Optional, Sequence, Set, Tuple, TypeVar

from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.errors import refuse_if_short
from relvmoiscsi.host.files import lines_of, matching, reserve, words_in
from relvmoiscsi.host.mounts import Mount, Wanted, mounts_in, status_of_open
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.wording import shell_command

#: for one search. A host of a thousand VMs has some 100,000 descriptors, which take about a second
SEARCH_SECONDS = 10.0

_MOST_KEPT = 256  #: mounts that a search keeps at a time; a process may often have 1024 descriptors

Item = TypeVar("Item")
OpenFile = Tuple[str, os.stat_result]


class ProcessSearch:
    """One search, with the time that it has spent on the processes of each user."""

    def __init__(self, deadline: Deadline, host: Host) -> None:
        """The search ends at the deadline, and after SEARCH_SECONDS. Raises Refused, as `reserve`."""
        self._most_kept = min(_MOST_KEPT, reserve() // 2)
        self._deadline, self._host = deadline.part(SEARCH_SECONDS), host
        self._left, self._owner = self._deadline.left, os.geteuid()
        self._spent: Dict[int, float] = {}
        self._kept: Dict[str, int] = {}  #: a descriptor on each mount that was found to be wanted, by number
        self._shown: Dict[str, str] = {}  #: the directory of a thread that has shown the mount, by number
        self._charged: Optional[int] = None  #: the user whose descriptor a look at other processes is for

    def mounts(self, number: str = "") -> Iterator[Mount]:
        """Give each mount, from every mount namespace of a process, and from every root directory in a namespace.

        The main thread of a process may have ended. Then the other threads show the mounts. With a number, give only
        the mount with this number. Raises OutOfTime.
        """
        seen: Set[int] = set()
        for process in self._processes():
            has_any = yield from self._mounts(process, seen, number)
            for thread in () if has_any else self._threads(process):
                yield from self._mounts(thread, seen, number)

    def _mounts(self, thread: str, seen: Set[int], number: str = "") -> Generator[Mount, None, bool]:
        """Give the mounts of a thread whose lines are not `seen` yet. Return whether the thread shows any mount.

        Most processes show the same lines. The path of a root directory tells no two of them apart: two mounts can lie
        over each other there. Python hashes bytes with a secret, so no user makes two lines of one hash.
        """
        has_any, begin = False, f"{number} ".encode() if number else b""
        try:
            with open(os.path.join(thread, "mountinfo"), "rb") as lines:
                for line in self._in_time(lines):
                    has_any = True
                    if line.startswith(begin) and hash(line) not in seen:
                        seen.add(hash(line))
                        for mount in mounts_in([line]):
                            self._shown[mount.number] = thread
                            yield mount
        except OSError as error:
            refuse_if_short(error)  # else the thread has ended, or belongs to another user
        return has_any

    def open_files(self, mounts: Container[str], is_wanted: Optional[Wanted] = None) -> Iterator[OpenFile]:
        """Give the path of each descriptor, /proc/*/fd/*, and the status of its file, for files on these mounts.

        `mounts` are numbers of wanted mounts, at which a stat cannot hang. Without `is_wanted`, the caller has a file
        open on each. All threads of a process count as one, with the descriptors of the first thread that has a
        descriptor: the main thread may have ended. Raises OutOfTime.
        """
        try:
            for process in self._processes():
                has_any = yield from self._descriptors(os.path.join(process, "fd"), mounts, is_wanted)
                for thread in () if has_any else self._threads(process):
                    if (yield from self._descriptors(os.path.join(thread, "fd"), mounts, is_wanted)):
                        break
        finally:
            self._release()

    def _is_still(self, is_wanted: Wanted, number: str, pinned: int) -> bool:
        """Return whether the number is still that of a wanted mount. `pinned` is open on the mount with this number.

        t0: `mounts` gives a mount. t1: a user unmounts it, and mounts FUSE, which gets the same number. t2: a stat of a
        file there waits for the program of the user. So the mount is looked for again while the file is open. Then a
        descriptor keeps the number from any other mount.

        The thread that has shown the mount is asked first. If it has ended, the user of the descriptor is charged with
        the look at all processes: a user can have descriptors on thousands of mounts that no process shows any more.
        """
        if number in self._kept:
            return True
        near = self._mounts(self._shown[number], set(), number) if number in self._shown else ()
        self._charged = self._owner
        try:
            mount = next(chain(near, self.mounts(number)), None)
        finally:
            self._owner, self._charged = self._charged, None
        if mount is None or not is_wanted(mount):
            return False
        if len(self._kept) >= self._most_kept:
            self._release()
        self._kept[number] = os.dup(pinned)
        return True

    def _release(self) -> None:
        while self._kept:
            os.close(self._kept.popitem()[1])

    def _descriptors(
        self, directory: str, mounts: Container[str], is_wanted: Optional[Wanted]
    ) -> Generator[OpenFile, None, bool]:
        """Give the descriptors of files on these mounts. Return whether the directory shows any descriptor.

        A host of many VMs has tens of thousands of descriptors, most of them of sockets, pipes and events. So this
        makes a single call for each descriptor without a path. That call fails for a path that is too long.
        """
        has_any = False
        is_still = None if is_wanted is None else partial(self._is_still, is_wanted)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            refuse_if_short(error)
            return False  # the process has ended, or belongs to another user
        try:
            with os.scandir(directory) as entries:
                for entry in self._in_time(entries):
                    has_any = True
                    has_path = link_of(entry.name, descriptor)[:1] in ("", os.sep)
                    status = status_of_open(entry.path, mounts, is_still) if has_path else None
                    if status is not None:
                        yield entry.path, status
        except OSError as error:
            refuse_if_short(error)  # else the process has ended since
        finally:
            os.close(descriptor)
        return has_any

    def _processes(self) -> Iterator[str]:
        """Give the directory of each process."""
        for process in matching(self._host.at("proc"), "[0-9]*"):
            self._look_at_clock()
            try:
                self._owner = os.stat(process).st_uid
            except OSError:
                continue  # the process has ended
            yield process

    def _threads(self, process: str) -> Iterator[str]:
        """Give the directory of each thread of a process."""
        directory = os.path.join(process, "task")
        try:
            names = os.listdir(directory)
        except OSError as error:
            refuse_if_short(error)
            return iter(())  # the process has ended, or belongs to another user
        return self._in_time(os.path.join(directory, name) for name in names)

    def _in_time(self, items: Iterable[Item]) -> Iterator[Item]:
        """Give the items, with a look at the clock behind each: one of them may take the kernel a long time."""
        for item in items:
            yield item
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """Add the time since the last look to that of the present process's user. Raises OutOfTime at the deadline."""
        before, self._left = self._left, self._deadline.left
        owner = self._owner if self._charged is None else self._charged
        self._spent[owner] = self._spent.get(owner, 0.0) + before - self._left
        if not self._left:
            user = max(self._spent, key=lambda uid: self._spent[uid])
            whole, part = (f"{round(each, 1):g}" for each in (self._deadline.seconds, self._spent[user]))
            raise OutOfTime(
                f"The {whole} seconds of the search for programs that use the disk or image file are over. The "
                f"processes of the user {user} took {part} of these seconds."
            ).advising(f"End the processes that `{shell_command('ps -u', str(user))}` lists, then try again.")


def is_roots(process: str, programs: Sequence[str]) -> bool:
    """Return whether root runs one of these programs as the process with this directory of /proc.

    Each local user can have a process with any name, also a process of root: a set-uid program that was started by a
    link. The kernel tells the program's own file, and who has started it.
    """
    program = os.path.basename(link_of(os.path.join(process, "exe")))
    if program.partition(" (deleted)")[0] not in programs:  # an update deletes the program, which runs on
        return False
    return is_of_root(process)


def is_of_root(process: str) -> bool:
    """Return whether all user ids of the process with this directory of /proc are root's."""
    return ["Uid:", "0", "0", "0", "0"] in map(words_in, lines_of(process, "status"))  # the name is a line there, too


def link_of(path: str, directory: Optional[int] = None) -> str:
    """Return where a link leads; "" if the link is gone, or belongs to another user."""
    try:
        return os.readlink(path, dir_fd=directory)
    except OSError:
        return ""
