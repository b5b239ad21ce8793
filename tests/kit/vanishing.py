# SPDX-License-Identifier: LGPL-2.1-only
"""Directories that another program removes while they are empty, just before a file is put there."""

import os
from contextlib import contextmanager
from unittest import mock


@contextmanager
def vanishing(times):
    """The first so many directories that are made are gone at once."""
    left = [times]
    mkdir = os.mkdir

    def made(path, *more, **named):
        mkdir(path, *more, **named)
        if left[0]:
            left[0] -= 1
            os.rmdir(path)

    with mock.patch("os.mkdir", made):
        yield
    assert left == [0]
