# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM: what `kill` sends, and a service manager to all that a service has started.

For a call of the driver it is an exception, so that the host is left as after a failure. It comes where the call waits,
for a program, a lock or an answer, and nowhere else: not between the taking of a lock and the block that gives it back.
It is not heeded while things are taken back, nor from the first write to a LUN on: what has begun goes on to its end.
"""

import signal
import threading
import time
from _thread import get_ident
from contextlib import contextmanager
from typing import Any, Iterator, NoReturn


class Terminated(BaseException):
    """This process is to end. No `Exception`, as none of those on the way has failed."""


class _State:
    """Of this process; a handler of signals has no other place."""

    thread = 0  #: which has the signals
    heeds = False
    waits = False
    put_off = False
    has_come = False


@contextmanager
def heeded() -> Iterator[None]:
    """Have SIGTERM raise Terminated in the block, once, where it is `waiting`, until `heed_no_longer`.

    Where this is not the main thread, which alone has signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    _State.thread, _State.heeds = get_ident(), True
    _State.waits = _State.put_off = _State.has_come = False
    try:
        yield
    finally:
        heed_no_longer()
        _State.thread = 0
        signal.signal(signal.SIGTERM, before)


def heed_no_longer() -> None:
    """What comes next is done in any case."""
    _State.heeds = False


@contextmanager
def only_here() -> Iterator[None]:
    """The signal is not heeded after this block: what is taken back then is taken back to the end."""
    try:
        yield
    finally:
        heed_no_longer()


@contextmanager
def waiting() -> Iterator[None]:
    """A SIGTERM that comes in the block, or has come since the last one, ends it; what it was to give may be lost."""
    if _State.thread != get_ident():
        yield
        return
    before, _State.waits = _State.waits, True
    try:
        _heed()
        yield
    finally:
        _State.waits = before


def pause(seconds: float) -> None:
    """Wait for as long."""
    with waiting():
        time.sleep(seconds)


@contextmanager
def put_off() -> Iterator[None]:
    """No wait in the block is ended by a SIGTERM: the first one behind it is."""
    before, _State.put_off = _State.put_off, True
    try:
        yield
    finally:
        _State.put_off = before


def _on_sigterm(_number: int, _frame: Any) -> None:
    _State.has_come = True
    _heed()


def _heed() -> None:
    if _State.has_come and _State.heeds and _State.waits and not _State.put_off:
        _end()


def _end() -> NoReturn:
    heed_no_longer()
    raise Terminated
