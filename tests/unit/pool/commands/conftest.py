# SPDX-License-Identifier: LGPL-2.1-only
"""The commands of `relvmoiscsi pool` in this process, and Ctrl-C at a call of the pool."""

import signal
import threading

import pytest


@pytest.fixture
def pool_command(command):
    return lambda *words: command("pool", *words)


@pytest.fixture
def interrupts():
    """`interrupts(pool, *moments)`: a person presses Ctrl-C at each of these calls of the pool, (method, how many'th
    since the moment before). A thread that makes such a call goes on when the main one, interrupted, cleans up.
    """
    left = []

    def at(pool, *moments, number=signal.SIGINT):
        left[:] = moments
        main, seen, cleans_up = threading.main_thread(), [], threading.Event()

        def before(method, _params):
            is_main = threading.current_thread() is main
            if is_main:
                cleans_up.set()
            seen.append(method)
            if left and (method, seen.count(method)) == left[0]:
                del left[0], seen[:]
                cleans_up.clear()
                signal.pthread_kill(main.ident, number)  # raises, where it is our own
                assert is_main or cleans_up.wait(60)

        pool.api.before = before

    yield at
    assert not left, "it was not interrupted"
