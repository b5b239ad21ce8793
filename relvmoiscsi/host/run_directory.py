# SPDX-License-Identifier: LGPL-2.1-only
"""/run/relvmoiscsi: the directory of root's locks and of the switches that hide LUNs, closed to all other users.

A user who can open a file for reading can take a flock on that file, and so hold up root. The product locks nothing
that another user can open:

    /run/relvmoiscsi                 0700, of root. tmpfiles.d makes the directory at boot, otherwise the first call
    /run/relvmoiscsi/locks/<SCSIid>  0600: the lock of a LUN (locks/lun_lock.py)
    /run/relvmoiscsi/hide            the switches (disk/hiding.py)
    /run/relvmoiscsi/*.lock          0600: held for the seconds of one change, of a settings file for instance

A directory that another user has made, or can change, is refused (own_path.py): its owner could rename or replace a
locked file, and then two processes would hold the lock of one LUN.
"""

import os
import time
from typing import ContextManager

from relvmoiscsi.errors import NOTHING_CHANGED, Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.own_path import NotOwnFile, make_directory, verify_alone
from relvmoiscsi.host.this_host import THIS_HOST, Host

RUN_DIRECTORY = "/run/relvmoiscsi"  #: known to the rules in udev/ and to tmpfiles.d

_OTHERS = 0o077


def make_run_directory(host: Host = THIS_HOST, name: str = "") -> None:
    """Make the directory and its subdirectory `name`, if absent. Raises Refused for those of another user."""
    path = host.at(RUN_DIRECTORY)
    make_directory(os.path.dirname(path), 0o755)
    make_directory(os.path.join(path, name) if name else path, 0o700)


def open_lock_file(name: str, host: Host = THIS_HOST, directory: str = "") -> int:
    """Open the file `name` in the directory, or in its subdirectory; make the file if it is absent.

    Raises Refused for a link, and for a file that another user can open.
    """
    path = os.path.join(host.at(RUN_DIRECTORY), directory, name)
    return flock.open_or_make_lock(path, lambda: make_run_directory(host, directory), _verify_closed)


def _verify_closed(path: str, status: os.stat_result) -> None:
    """Raise NotOwn for a file that another user can open."""
    verify_alone(path, status)
    if status.st_mode & _OTHERS:
        raise NotOwnFile(f"other users can open the file {path}")


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
