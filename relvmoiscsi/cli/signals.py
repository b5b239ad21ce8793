# SPDX-License-Identifier: LGPL-2.1-only
"""Signals that end a command: each does what Ctrl-C does, so that the command says what it has done, and cleans up."""

import signal
import threading
from contextlib import contextmanager
from typing import Iterator

#: `kill`, `timeout` and systemd; a terminal that is closed, a lost SSH connection
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def end_as_ctrl_c() -> Iterator[None]:
    """In the main thread, which alone has signals. A signal that is ignored, or another handler's, is left alone."""
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
