# SPDX-License-Identifier: LGPL-2.1-only
"""Which descriptors of this process hold locks: for a child that is to have no copies of them.

A lock ends with the last copy of its descriptor, and a child that hangs in the kernel keeps its copies for longer than
its parent lives. A parent that ends by itself undoes its locks for all copies; one that is killed does not.

A descriptor is noted once it is open, and forgotten before it is closed, as its number is used again at once. So
nothing else is closed here.
"""

import os
from contextlib import contextmanager
from typing import Iterator, Set

_noted: Set[int] = set()


def note(descriptor: int) -> None:
    """It holds a lock, or is going to."""
    _noted.add(descriptor)


def forget(descriptor: int) -> None:
    """It is going to be closed."""
    _noted.discard(descriptor)


@contextmanager
def noted(descriptor: int) -> Iterator[None]:
    """Both; the block does not close it."""
    note(descriptor)
    try:
        yield
    finally:
        forget(descriptor)


def close_all() -> None:
    """In a forked child: have no locks of its parent's, which keeps them, and neither uses nor ends them."""
    while _noted:
        os.close(_noted.pop())
