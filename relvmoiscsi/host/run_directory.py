# SPDX-License-Identifier: LGPL-2.1-only
"""/run/relvmoiscsi: the directory of root's locks and of the switches that hide LUNs, closed to all other users.

A user who can open a file for reading can take a flock on that file, and so hold up root. The product locks nothing
that another user can open:

    /run/relvmoiscsi                 0700, of root. tmpfiles.d makes the directory at boot, otherwise the first call
    /run/relvmoiscsi/locks/<SCSIid>  0600: the lock of a LUN (locks/lun_lock.py)
    /run/relvmoiscsi/hide            the switches (disk/hiding.py)
    /run/relvmoiscsi/*.lock          0600: held for the seconds of one change, of a settings file for instance

A directory that another user has made, or can change, is refused: its owner could rename or replace a locked file, and
then two processes would hold the lock of one LUN.
"""

import os
import stat
import time
from typing import ContextManager

from relvmoiscsi.errors import NOTHING_CHANGED, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.files import make_directory, open_private, remedy
from relvmoiscsi.host.this_host import THIS_HOST, Host
from relvmoiscsi.wording import shell_command

RUN_DIRECTORY = "/run/relvmoiscsi"  #: known to the rules in udev/ and to tmpfiles.d

_OTHERS, _OTHERS_WRITE = 0o077, 0o022


def run_directory(host: Host = THIS_HOST, name: str = "") -> str:
    """Return the path of the directory, or of its subdirectory `name`. Make what is absent. Raises Refused."""
    path = host.at(RUN_DIRECTORY)
    parent = os.path.dirname(path)
    try:
        make_directory(parent, 0o755)
        status = os.stat(parent)
    except OSError as error:
        raise Refused(f"{parent} cannot be used: {error.strerror}.").advising(remedy(error)) from error
    is_sticky = status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & _OTHERS_WRITE and not is_sticky:
        own, close = shell_command("chown root", parent), shell_command("chmod 755", parent)
        raise Refused(f"Other users can rename what is in {parent}.").advising(f"Run `{own}` and `{close}`.")
    _make_private(path)
    if not name:
        return path
    inner = os.path.join(path, name)
    _make_private(inner)
    return inner


def open_lock_file(name: str, host: Host = THIS_HOST, directory: str = "") -> int:
    """Open the file `name` in the directory, or in its subdirectory; make the file if it is absent.

    Raises Refused for a link, and for a file that another user can open.
    """
    path = os.path.join(run_directory(host, directory), name)
    try:
        descriptor = open_private(path, os.O_RDWR)
    except OSError as error:
        raise Refused(f"The lock {path} cannot be opened: {error.strerror}.").advising(remedy(error)) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        os.close(descriptor)
        raise Refused(f"Another user can open the lock {path}.").advising(
            "End all runs of relvmoiscsi, and remove that file."
        )
    return descriptor


def only_one(name: str, host: Host, seconds: float, what: str) -> ContextManager[object]:
    """Hold the lock file `name` in the directory while a block changes files of the product on this host.

    Raises Refused, also if the lock is not free within `seconds`: a sentence that begins with `what`, such as "The file
    is being changed by".
    """
    return flock.lock_file(
        os.path.join(host.at(RUN_DIRECTORY), name),
        lambda: open_lock_file(name, host),
        time.monotonic() + seconds,
        lambda _path, owner: (
            Refused(f"{what} {owner}.").advising("Try again when that has ended.").in_state(NOTHING_CHANGED)
        ),
        host,
    )


def _make_private(path: str) -> None:
    """Make the directory if it is absent, and take the rights of other users away. Raises Refused for a foreign one."""
    try:
        if not os.path.lexists(path):
            make_directory(path, 0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            is_foreign = status.st_uid != os.geteuid() or bool(status.st_mode & _OTHERS_WRITE)
            if not is_foreign and status.st_mode & _OTHERS:  # others could read only, and could change nothing
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Refused(f"The directory {path} cannot be used: {error.strerror}.").advising(remedy(error)) from error
    if is_foreign:
        raise Refused(f"Another user has made the directory {path}, or can change it.").advising(
            "Find out who, end all runs of relvmoiscsi, and remove the directory."
        )
