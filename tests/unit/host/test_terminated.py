# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM ends a call as a failure does, once, and neither what has begun to write nor what is taken back."""

import os
import signal
import threading

import pytest

from relvmoiscsi.host.terminated import Terminated, heed_no_longer, heeded, only_here, put_off


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_comes_through_all_that_handles_failures_and_once_only():
    said = []

    with pytest.raises(Terminated), heeded():
        try:
            terminate()
        except OSError:
            said.append("a failure")
        finally:
            terminate()
            said.append("taken back")

    assert said == ["taken back"]


def test_what_was_there_before_is_there_again():
    before = signal.getsignal(signal.SIGTERM)

    with heeded():
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before


def test_what_has_begun_to_write_goes_on():
    with heeded():
        heed_no_longer()
        terminate()


def test_what_is_taken_back_after_a_failure_is_taken_back_to_the_end():
    with heeded():
        with pytest.raises(OSError, match="a failure"), only_here():
            raise OSError("a failure")
        terminate()


def test_it_counts_at_the_end_of_a_moment_in_which_it_would_do_harm():
    said = []

    with pytest.raises(Terminated), heeded():
        with put_off():
            terminate()
            said.append("done")
        said.append("beyond")

    assert said == ["done"]


def test_it_is_nothing_new_in_a_later_block():
    with heeded():
        heed_no_longer()
        terminate()

    with heeded(), put_off():
        pass


def test_a_thread_that_gets_no_signals_changes_nothing():
    found = []

    def work():
        with heeded():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
