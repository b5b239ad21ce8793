# SPDX-License-Identifier: LGPL-2.1-only
"""Which descriptors of this process hold locks: for a child that is to have no copies of them.

A lock ends with the last copy of its descriptor, and a child that hangs in the kernel keeps its copies for longer than
its parent lives. A parent that ends by itself undoes its locks for all copies; one that is killed does not.

A descriptor is noted once it is open, and forgotten before it is closed, as its number is used again at once. So
nothing else is closed here.

A child that writes may write yet when its parent was killed, and then keeps what guards its LUN, and that alone: its
lock, so that none of us begins anew, and what hides it. SM and LVM are not to wait for a disk that does not answer.
"""

import os
from contextlib import contextmanager
from typing import Dict, Iterator

_noted: Dict[int, bool] = {}  # whether it guards a LUN, by the descriptor


def note(descriptor: int, guards_lun: bool = False) -> None:
    """It holds a lock, or is going to."""
    _noted[descriptor] = guards_lun


def forget(descriptor: int) -> None:
    """It is going to be closed."""
    _noted.pop(descriptor, None)


@contextmanager
def noted(descriptor: int, guards_lun: bool = False) -> Iterator[None]:
    """Both; the block does not close it."""
    note(descriptor, guards_lun)
    try:
        yield
    finally:
        forget(descriptor)


def close_all() -> None:
    """In a forked child: have no locks of its parent's, which keeps them, and neither uses nor ends them."""
    for descriptor in list(_noted):
        _close(descriptor)


def close_all_but_lun() -> None:
    """The same, but for what guards LUNs."""
    for descriptor in [descriptor for descriptor, guards_lun in _noted.items() if not guards_lun]:
        _close(descriptor)


def _close(descriptor: int) -> None:
    del _noted[descriptor]
    os.close(descriptor)
