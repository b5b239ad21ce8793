# SPDX-License-Identifier: LGPL-2.1-only
"""The descriptors of this process that hold locks. A child process closes its copies of these descriptors.

A lock ends when its last descriptor copy is closed. A child that hangs in the kernel may outlive its parent. Such
a child keeps its copies. A parent that exits releases its locks for all copies; a parent that is killed does not.

Note a descriptor after the descriptor is open, and forget it before it is closed: the kernel reuses its number at once.

A child that writes to a LUN may still write after its parent was killed. Such a child keeps two copies: the LUN's lock,
so that no other call begins, and the switch that hides the LUN. The child keeps no other lock, so that SM and LVM do
not wait for a disk that does not answer.
"""

import os
import stat
from contextlib import contextmanager
from typing import Dict, Iterator

_noted: Dict[int, bool] = {}  # by descriptor: does it hold the lock or the switch of a LUN?


def note(descriptor: int, guards_lun: bool = False) -> None:
    """Note a descriptor that holds a lock, or will hold a lock soon."""
    _noted[descriptor] = guards_lun


def forget(descriptor: int) -> None:
    """Forget a descriptor before it is closed."""
    _noted.pop(descriptor, None)


@contextmanager
def noted(descriptor: int, guards_lun: bool = False) -> Iterator[None]:
    """Note the descriptor while the block runs. The block must not close the descriptor."""
    note(descriptor, guards_lun)
    try:
        yield
    finally:
        forget(descriptor)


def close_copies(but_lun: bool) -> None:
    """In a forked child: close the child's copies of all locks; with `but_lun`, not of the locks and switches of LUNs.

    The parent keeps its copies.
    """
    for descriptor, guards_lun in list(_noted.items()):
        if not (but_lun and guards_lun):
            del _noted[descriptor]
            os.close(descriptor)


def leave_to_child() -> None:
    """Give up this process's copies of the locks and switches of LUNs: a child that still writes alone keeps them.

    The descriptors lead to /dev/null afterwards, so closing them releases nothing.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, guards_lun in _noted.items():
        if guards_lun:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def is_left(descriptor: int) -> bool:
    """Return whether `leave_to_child` has given up the lock: then the lock file must stay."""
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)
