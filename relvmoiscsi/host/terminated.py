# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM: `kill` sends SIGTERM to a process, and a service manager sends SIGTERM to all processes of a service.

A call of the driver on adapters turns SIGTERM into an exception, so that its clean-up runs as after a failure. It comes
only where the call waits for a program, a lock or an answer. So it never comes between the taking of a lock and the
block that releases the lock. The call ignores SIGTERM during its clean-up (`quietly`), and from its first write to a
LUN on: the call completes what it has begun to write. `leave` ends a program of the product after its answer is out.
"""

import logging
import os
import signal
import sys
import threading
import time
from _thread import get_ident
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from relvmoiscsi.errors import RelvmoiscsiError

log = logging.getLogger(__name__)


class Terminated(BaseException):
    """SIGTERM has arrived. Not an `Exception`: code on the way must not handle it as a failure."""


class _State:
    """The state of this process. A signal handler can reach global state only."""

    thread = 0  #: id of the thread that receives the signals
    heeds = False
    waits = False
    put_off = False
    has_come = False


@contextmanager
def heeded() -> Iterator[None]:
    """Have SIGTERM raise Terminated in the block: once, inside `waiting`, until `heed_no_longer`.

    In a thread other than the main thread this does nothing: only the main thread receives signals.
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
    """Ignore SIGTERM from now on."""
    _State.heeds = False


@contextmanager
def only_here() -> Iterator[None]:
    """Ignore SIGTERM after the block, so that the clean-up behind the block completes."""
    try:
        yield
    finally:
        heed_no_longer()


@contextmanager
def waiting() -> Iterator[None]:
    """Raise Terminated for a SIGTERM in the block, or since the last `waiting`. A result of the block may be lost."""
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
    """Sleep; a SIGTERM ends the sleep."""
    with waiting():
        time.sleep(seconds)


@contextmanager
def put_off() -> Iterator[None]:
    """Put off a SIGTERM that arrives in the block until the first `waiting` after the block."""
    before, _State.put_off = _State.put_off, True
    try:
        yield
    finally:
        _State.put_off = before


@contextmanager
def quietly(what: str) -> Iterator[None]:
    """Log a failure of the clean-up in the block, even a bug: it hides no earlier error. Put a SIGTERM off."""
    try:
        with put_off():
            yield
    except (RelvmoiscsiError, OSError) as error:
        log.error("%s failed: %s", what, error)
    except Exception:
        log.exception("%s failed, by a bug", what)


def leave(status: int, end: Callable[[int], object] = os._exit) -> None:
    """Flush the output and end this process with an exit status. Skip Python's own exit, which takes 200 modules apart.

    Use this at the end of a program that the package installs. If the flush fails, Python itself ends the process and
    prints the error.
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
        heed_no_longer()
        raise Terminated
