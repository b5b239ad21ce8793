# SPDX-License-Identifier: LGPL-2.1-only
"""How far long work is, for whoever looks at a terminal; nothing anywhere else."""

import sys
import time
from types import TracebackType
from typing import Callable, Optional, TextIO, Type

from relvmoiscsi.wording import human_size

BAR = 40  #: characters
REDRAW_SECONDS = 0.2
ESTIMATE_SECONDS = 2.0  #: before that a rate says nothing


class Bar:
    """A line that is drawn anew: a bar, how much is done, and how long the rest takes at the rate so far.

    Called with the bytes that are done and all bytes. Work of which less is done than before has begun anew. As a
    context manager it ends its line, also where the work fails.
    """

    def __init__(self, stream: Optional[TextIO] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shows = self._stream is not None and self._stream.isatty()
        self._begun = self._drawn = clock()
        self._done = self._length = 0

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._end_line()

    def __call__(self, done: int, total: int) -> None:
        if not self._shows or total <= 0:
            return
        now = self._clock()
        if done < self._done or not self._length:
            self._begun = now
        elif done < total and now - self._drawn < REDRAW_SECONDS:
            return
        self._done, self._drawn = done, now
        filled = "#" * (BAR * done // total)
        text = f"  [{filled:{BAR}}] {human_size(done)} of {human_size(total)}{self._left(done, total)}"
        self._write("\r" + text.ljust(self._length))
        self._length = len(text)
        if done >= total:
            self._end_line()

    def _left(self, done: int, total: int) -> str:
        spent = self._drawn - self._begun
        if not 0 < done < total or spent < ESTIMATE_SECONDS:
            return ""
        return f", {human_time(spent * (total - done) / done)} left"

    def _end_line(self) -> None:
        if self._length:
            self._length = self._done = 0
            self._write("\n")

    def _write(self, text: str) -> None:
        """A terminal that has gone away is no reason to stop the work."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._shows = False


def human_time(seconds: float) -> str:
    """A time as people read it: "40 s", "12 min", "3 h 5 min"."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    minutes = (whole + 30) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
