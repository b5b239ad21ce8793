# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM ends a call as a failure does, once, where it waits, but not what has begun to write or is taken back."""

import io
import os
import signal
import sys
import threading

import pytest

from relvmoiscsi.host.terminated import (
    Terminated,
    heed_no_longer,
    heeded,
    leave,
    only_here,
    pause,
    put_off,
    quietly,
    waiting,
)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_comes_where_there_is_a_wait_through_all_that_handles_failures_and_once_only():
    said = []

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), heeded():
        assert signal.getsignal(signal.SIGTERM) != before
        try:
            terminate()
            said.append("between no two steps")
            pause(60)
        except OSError:
            said.append("a failure")
        finally:
            with waiting():
                terminate()
            said.append("taken back")

    assert said == ["between no two steps", "taken back"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_has_begun_to_write_goes_on():
    with heeded():
        heed_no_longer()
        with waiting():
            terminate()


def test_what_is_taken_back_after_a_failure_is_taken_back_to_the_end():
    with heeded():
        with pytest.raises(OSError, match="a failure"), only_here():
            raise OSError("a failure")
        with waiting():
            terminate()


def test_it_counts_behind_what_is_taken_back_within_a_call():
    said = []

    with pytest.raises(Terminated), heeded():
        with quietly("taking away what a scan has brought"):
            with put_off():
                terminate()
            pause(0)
            said.append("done")
        pause(0)
        said.append("beyond")

    assert said == ["done"]


def test_it_is_nothing_new_in_a_later_block():
    with heeded():
        terminate()

    with heeded():
        pause(0)


def test_a_thread_that_gets_no_signals_changes_nothing_and_its_wait_is_not_that_of_the_call():
    begun, over, found = threading.Event(), threading.Event(), []
    before = signal.getsignal(signal.SIGTERM)

    def work():
        with heeded():
            found.append(signal.getsignal(signal.SIGTERM))
        with waiting():
            begun.set()
            over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    with heeded():
        terminate()
        over.set()
        thread.join()
    assert found == [before]


# --- the end of a program


class Full(io.StringIO):
    def flush(self):
        raise OSError(28, "No space left on device")


def test_what_was_said_is_out_before_the_end(monkeypatch):
    out, told = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    sys.stdout.write("done")
    leave(3, end=lambda status: told.append((status, out.getvalue())))

    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    leave(0, end=told.append)
    assert told == [(3, b"done"), 0]

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit) as ended:  # left to Python
        leave(4, end=told.append)
    assert (ended.value.code, len(told)) == (4, 2)
