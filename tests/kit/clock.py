# SPDX-License-Identifier: LGPL-2.1-only
"""Time that passes where a test says so."""

from relvmoiscsi.host import own_process


class Clock:
    """Gives seconds, as time.monotonic does; `ticks` pass with each look at it."""

    def __init__(self, *ticks):
        self.now = 1000.0
        self._ticks = list(ticks)

    def __call__(self):
        self.now += self._ticks.pop(0) if self._ticks else 0
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def over_after(answers, monkeypatch):
    """A clock on which a long time has passed once so many pieces of parallel work have answered. What never answers
    is given up then, and what does has all the time that it needs.
    """
    clock, result = Clock(), own_process._result
    left = iter(range(answers - 1, -1, -1))

    def answered(*words, **more):
        try:
            return result(*words, **more)
        finally:
            clock.now += 0 if next(left) else 10000

    monkeypatch.setattr(own_process, "_result", answered)
    return clock
