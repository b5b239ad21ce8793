# SPDX-License-Identifier: LGPL-2.1-only
"""Work in parallel. A user's programs may take all threads and processes that he may have."""

import threading
from functools import partial

import pytest

from kit.few_threads import few_threads
from relvmoiscsi import threads
from relvmoiscsi.errors import Refused
from relvmoiscsi.iscsi.connect import resolve
from relvmoiscsi.portal import Portal
from relvmoiscsi.threads import Workers


@pytest.mark.parametrize(
    "begins",
    [
        lambda: threads.start_thread(print),
        lambda: resolve(Portal("no.such.name", 3260), 5.0),
    ],
)
def test_a_thread_that_the_kernel_does_not_start_is_told(begins):
    says = "starts no thread or process for relvmoiscsi: can't start new thread"
    with few_threads(0), pytest.raises(Refused, match=says) as caught:
        begins()
    assert "`ulimit -u`" in caught.value.advice


def test_works_of_a_batch_run_at_the_same_time_and_a_single_one_needs_no_thread():
    workers, seen = Workers(8), []
    meeting = threading.Barrier(8, timeout=600)

    workers.run([meeting.wait] * 8)  # each returns only when all have come
    workers.run([lambda: seen.append(threading.current_thread())])
    workers.close()

    assert seen == [threading.current_thread()]


@pytest.mark.parametrize("others", [0, 2])
def test_a_batch_needs_no_thread_that_the_kernel_does_not_start(others):
    """Other programs of the user took all his processes: the run ended with a traceback, behind its first write too."""
    workers = Workers(8)
    with few_threads(others):
        for _ in range(2):
            assert workers.run([partial(pow, number, 2) for number in range(20)]) == [number**2 for number in range(20)]
            workers.close()


def test_who_interrupts_a_batch_cancels_what_has_not_begun():
    workers = Workers(8)
    caller, interrupted, ended = threading.current_thread(), threading.Event(), []

    def operation():
        if threading.current_thread() is caller:
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait(600)
        ended.append(1)

    with pytest.raises(KeyboardInterrupt):
        workers.run([operation] * 500)
    workers.close()

    assert len(ended) < 500
