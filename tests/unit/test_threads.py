# SPDX-License-Identifier: LGPL-2.1-only
"""A user's programs may take all threads and processes that he may have: whoever starts one more is told so."""

import threading

import pytest

from relvmoiscsi import threads
from relvmoiscsi.errors import Refused
from relvmoiscsi.iscsi.connect import resolve
from relvmoiscsi.lun.url_source import each_at_once
from relvmoiscsi.portal import Portal


@pytest.mark.parametrize(
    "begins",
    [
        lambda: threads.start_thread(print),
        lambda: each_at_once([int]),
        lambda: resolve(Portal("no.such.name", 3260), 5.0),
    ],
)
def test_a_thread_that_the_kernel_does_not_start_is_told(monkeypatch, begins):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Refused, match="starts no thread or process for relvmoiscsi: can't start new thread") as caught:
        begins()
    assert "`ulimit -u`" in caught.value.advice
