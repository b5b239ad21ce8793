# SPDX-License-Identifier: LGPL-2.1-only
"""Fixtures of the judged tests: real LVM2 and loop devices, of which nothing is left behind."""

from contextlib import ExitStack
from itertools import count

import pytest

from kit.judges import Loop, Lvm


@pytest.fixture
def lvm(tmp_path):
    return Lvm(tmp_path / "lvm")


@pytest.fixture
def loops(tmp_path):
    """Put a disk of the tests on a loop device: `loops(disk)`."""
    with ExitStack() as attached:
        numbers = count()

        def attach_disk(disk):
            loop = Loop(disk, tmp_path / f"disk{next(numbers)}.img")
            attached.callback(loop.detach)
            return loop

        yield attach_disk
