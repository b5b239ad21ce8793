# SPDX-License-Identifier: LGPL-2.1-only
"""The descriptors of this process that hold locks: a child closes its copies of them.

A lock ends with the last copy of its descriptor, and a child that hangs in the kernel keeps its copies for longer than
its parent lives. A parent that ends by itself undoes its locks for all copies; one that is killed does not.

A descriptor is noted once it is open, and forgotten before it is closed, as its number is used again at once.

A child that writes may still write when its parent was killed. So such a child keeps the lock of its LUN, by which no
other call begins, and the switch that hides the LUN. It keeps no other lock: SM and LVM are not to wait for a disk that
does not answer.
"""

import os
from contextlib import contextmanager
from typing import Dict, Iterator

_noted: Dict[int, bool] = {}  # whether it guards a LUN, by the descriptor


def note(descriptor: int, guards_lun: bool = False) -> None:
    """The descriptor holds a lock, or is going to."""
    _noted[descriptor] = guards_lun


def forget(descriptor: int) -> None:
    """The descriptor is going to be closed."""
    _noted.pop(descriptor, None)


@contextmanager
def noted(descriptor: int, guards_lun: bool = False) -> Iterator[None]:
    """Note the descriptor for the block, which does not close it."""
    note(descriptor, guards_lun)
    try:
        yield
    finally:
        forget(descriptor)


def close_all() -> None:
    """In a forked child: close the copies of all locks, which the parent keeps."""
    for descriptor in list(_noted):
        _close(descriptor)


def close_all_but_lun() -> None:
    """The same, without the locks and switches of LUNs."""
    for descriptor in [descriptor for descriptor, guards_lun in _noted.items() if not guards_lun]:
        _close(descriptor)


def _close(descriptor: int) -> None:
    del _noted[descriptor]
    os.close(descriptor)
