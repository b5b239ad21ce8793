# SPDX-License-Identifier: LGPL-2.1-only
"""Show progress: a bar for each LUN in a terminal with tqdm, lines elsewhere."""

import importlib
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, TextIO

from relvmoiscsi.pool.attach import ATTACHING, BEGUN, ENDED, OVER, RESIGNATURING, Progress
from relvmoiscsi.wording import time_left

_WORDS = {
    (RESIGNATURING, BEGUN): "resignature started",
    (RESIGNATURING, OVER): "resignature finished",
    (RESIGNATURING, ENDED): "resignature failed",
    # introducing an SR takes too little time to show
    (ATTACHING, BEGUN): "attach started",
    (ATTACHING, OVER): "attach finished",
    (ATTACHING, ENDED): "attach failed",
}


def silent(_scsi_id: str, _step: str, _how: str) -> None:
    """Show nothing."""


@contextmanager
def shown(stream: Optional[TextIO], count: int) -> Iterator[Progress]:
    """Yield the function that shows the steps of `count` LUNs, while the block runs."""
    if stream is None:
        yield silent
        return
    tqdm = _tqdm() if stream.isatty() else None
    if tqdm is None:
        yield _Lines(stream, count)
        return
    bars = _Bars(tqdm, stream, count)
    try:
        yield bars
    finally:
        bars.close()


def _tqdm() -> Any:
    """Return the class tqdm; None without the module, as in dom0."""
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None


class _Lines:
    """A line for each step; in a terminal, with the remaining time."""

    def __init__(self, stream: TextIO, count: int) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._begun, self._done, self._all = time.monotonic(), 0, 2 * count if stream.isatty() else 0

    def __call__(self, scsi_id: str, step: str, how: str) -> None:
        if (step, how) not in _WORDS:
            return
        with self._lock:
            self._done += how != BEGUN
            left = time_left(self._done, self._all, time.monotonic() - self._begun)
            self._stream.write(f"relvmoiscsi: {scsi_id} {_WORDS[step, how]}{left}\n")
            self._stream.flush()


class _Bars:
    """One bar for all steps, and one bar for each LUN in work, in the lowest free line."""

    def __init__(self, tqdm: Any, stream: TextIO, count: int) -> None:
        self._tqdm, self._stream, self._lock = tqdm, stream, threading.Lock()
        self._all = tqdm(total=2 * count, desc=f"{count} LUNs", file=stream, position=0, leave=False, unit="step")
        self._bars: Dict[str, Any] = {}
        self._lines: List[int] = []

    def __call__(self, scsi_id: str, step: str, how: str) -> None:
        if (step, how) not in _WORDS:
            return
        with self._lock:
            if how != BEGUN:
                self._all.update(1)
                self._end(scsi_id)
            else:
                line = next(number for number in range(1, len(self._bars) + 2) if number not in self._lines)
                self._lines.append(line)
                text = f"{scsi_id} {_WORDS[step, how]}"
                form = "{desc} {elapsed}"
                bar = self._tqdm(desc=text, file=self._stream, position=line, leave=False, bar_format=form)
                bar.line_taken = line
                self._bars[scsi_id] = bar

    def _end(self, scsi_id: str) -> None:
        bar = self._bars.pop(scsi_id, None)
        if bar is not None:
            self._lines.remove(bar.line_taken)
            bar.close()

    def close(self) -> None:
        for scsi_id in list(self._bars):
            self._end(scsi_id)
        self._all.close()
