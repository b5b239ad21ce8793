# SPDX-License-Identifier: LGPL-2.1-only
"""Show progress: a bar for each LUN in a terminal with tqdm, lines elsewhere."""

import importlib
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

from relvmoiscsi.pool.attach import ATTACHING, BEGUN, ENDED, INTRODUCING, OVER, RESIGNATURING, Progress
from relvmoiscsi.wording import counted, printable, time_left

_WORDS = {
    (RESIGNATURING, BEGUN): "resignature started",
    (RESIGNATURING, OVER): "resignature finished",
    (RESIGNATURING, ENDED): "resignature failed",
    (INTRODUCING, ENDED): "attach failed",  # what succeeds takes too little time to show
    (ATTACHING, BEGUN): "attach started",
    (ATTACHING, OVER): "attach finished",
    (ATTACHING, ENDED): "attach failed",
}


def line_of(scsi_id: str, step: str, how: str) -> str:
    """Return the line for a step of a LUN; "" for a step that is not shown."""
    return printable(f"{scsi_id} {_WORDS[step, how]}") if (step, how) in _WORDS else ""


def silent(_scsi_id: str, _step: str, _how: str) -> None:
    """Show nothing."""


@contextmanager
def shown(stream: Any, steps: Dict[str, int], jobs: int) -> Iterator[Progress]:
    """Yield the function that shows the steps of LUNs while the block runs; `jobs` LUNs are in work at a time.

    `steps` has for each SCSIid how many steps of `_WORDS` the LUN needs.
    """
    if stream is None:
        yield silent
        return
    tqdm = _tqdm() if stream.isatty() else None
    if tqdm is None:
        yield _Lines(stream, steps, jobs)
        return
    bars = _Bars(tqdm, stream, steps)
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


class _Steps:
    """How many steps of all LUNs are done, of how many; a LUN whose step has failed has no further steps."""

    def __init__(self, steps: Dict[str, int]) -> None:
        self._left = dict(steps)
        self.done, self.all = 0, sum(steps.values())

    def take(self, scsi_id: str, step: str, how: str) -> None:
        left = self._left.get(scsi_id, 0)
        if how == ENDED:
            self.all -= left
            self._left[scsi_id] = 0
        elif how == OVER and (step, how) in _WORDS and left:
            self.done += 1
            self._left[scsi_id] = left - 1


class _Lines:
    """A line for each step; in a terminal, with the remaining time."""

    def __init__(self, stream: Any, steps: Dict[str, int], jobs: int) -> None:
        self._stream, self._lock, self._jobs = stream, threading.Lock(), jobs
        self._steps, self._begun = _Steps(steps), time.monotonic()

    def __call__(self, scsi_id: str, step: str, how: str) -> None:
        with self._lock:
            self._steps.take(scsi_id, step, how)
            line = line_of(scsi_id, step, how)
            if not line:
                return
            is_known = self._stream.isatty() and self._steps.done >= self._jobs
            left = time_left(self._steps.done, self._steps.all, time.monotonic() - self._begun) if is_known else ""
            self._stream.write(f"relvmoiscsi: {line}{left}\n")
            self._stream.flush()


class _Bars:
    """One bar for all steps, and one bar for each LUN in work, in the lowest free line."""

    def __init__(self, tqdm: Any, stream: Any, steps: Dict[str, int]) -> None:
        self._tqdm, self._stream, self._lock, self._steps = tqdm, stream, threading.Lock(), _Steps(steps)
        name = counted(len(steps), "LUN")
        self._all = tqdm(total=self._steps.all, desc=name, file=stream, position=0, leave=False, unit="step")
        self._bars: Dict[str, Any] = {}
        self._lines: List[int] = []

    def __call__(self, scsi_id: str, step: str, how: str) -> None:
        with self._lock:
            self._steps.take(scsi_id, step, how)
            self._all.total, self._all.n = self._steps.all, self._steps.done
            self._all.refresh()
            if (step, how) not in _WORDS:
                return
            if how != BEGUN:
                self._end(scsi_id)
            else:
                line = next(number for number in range(1, len(self._bars) + 2) if number not in self._lines)
                self._lines.append(line)
                form = "{desc} {elapsed}"
                bar = self._tqdm(
                    desc=line_of(scsi_id, step, how), file=self._stream, position=line, leave=False, bar_format=form
                )
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
