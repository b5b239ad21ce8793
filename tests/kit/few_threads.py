# SPDX-License-Identifier: LGPL-2.1-only
"""A kernel that starts no more threads: other programs of the user have taken all that he may have."""

import threading
from contextlib import contextmanager
from unittest import mock


@contextmanager
def few_threads(most):
    """The first so many threads start, and then none."""
    begun, start = [], threading.Thread.start

    def start_or_refuse(thread):
        begun.append(thread)
        if len(begun) > most:
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, "start", start_or_refuse):
        yield
