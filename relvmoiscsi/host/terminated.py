# SPDX-License-Identifier: LGPL-2.1-only
"""SIGTERM: what `kill` sends, and a service manager to all that a service has started.

For a call of the driver it is an exception, wherever the call is, so that the host is left as after a failure. It is
not heeded while things are taken back, nor from the first write to a LUN on: what has begun goes on to its end.
"""

from contextlib import contextmanager
from typing import Any, Iterator, NoReturn


class Terminated(BaseException):
    """This process is to end. No `Exception`, as none of those on the way has failed."""


class _State:
    """Of this process; a handler of signals has no other place."""

    heeds = False
    put_off = False
    has_come = False


@contextmanager
def heeded() -> Iterator[None]:
    """Have SIGTERM raise Terminated in the block, once, until `heed_no_longer`.

    Where this is not the main thread, which alone has signals, nothing is changed.
    """
    import signal  # noqa: PLC0415 - who runs a program needs this module, and neither of these
    import threading  # noqa: PLC0415

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    _State.heeds, _State.put_off, _State.has_come = True, False, False
    try:
        yield
    finally:
        heed_no_longer()
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
def put_off() -> Iterator[None]:
    """A SIGTERM that comes in the block counts at its end; a process that is forked in it never heeds any."""
    _State.put_off = True
    try:
        yield
    finally:
        _State.put_off = False
    if _State.heeds and _State.has_come:
        _end()


def _on_sigterm(_number: int, _frame: Any) -> None:
    _State.has_come = True
    if _State.heeds and not _State.put_off:
        _end()


def _end() -> NoReturn:
    heed_no_longer()
    raise Terminated
