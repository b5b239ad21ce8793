# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM: what `kill` sends, and a service manager to all that a service has started.

A call of the driver takes SIGTERM for an exception, so that the host is left as after a failure. The exception comes
where the call waits for a program, a lock or an answer, and nowhere else: not between the taking of a lock and the
block that releases the lock. The call ignores SIGTERM during its clean-up (`quietly`), and from the first write to a
LUN on: what has begun goes on to its end. `leave` is the end of a program of ours, once its answer is out.
"""

import logging
import os
import signal
import sys
import threading
import time
from _thread import get_ident
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NoReturn

from relvmoiscsi.errors import RelvmoiscsiError

log = logging.getLogger(__name__)


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


def quietly(what: str, action: Callable[[], object]) -> None:
    """Clean up: a failure, even a bug, is logged and hides nothing that was written. A SIGTERM waits for the end."""
    try:
        with put_off():
            action()
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed, by a bug", what)


def leave(status: int, end: Callable[[int], object] = os._exit) -> None:
    """End this process with an exit status, without Python's own end, which takes 200 modules apart for nothing.

    For the programs that the package installs. Where the rest of the output cannot be written, Python ends the process
    and says so in its way.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # a daemon may have none
                stream.flush()
    except (OSError, ValueError):
        sys.exit(status)
    end(status)


def _on_sigterm(_number: int, _frame: Any) -> None:
    _State.has_come = True
    _heed()


def _heed() -> None:
    if _State.has_come and _State.heeds and _State.waits and not _State.put_off:
        _end()


def _end() -> NoReturn:
    heed_no_longer()
    raise Terminated
