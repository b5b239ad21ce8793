# SPDX-License-Identifier: LGPL-2.1-only
"""Time that passes where a test says so."""


class Clock:
    """Gives seconds, as time.monotonic does; `ticks` pass with each look at it."""

    def __init__(self, *ticks):
        self.now = 1000.0
        self._ticks = list(ticks)

    def __call__(self):
        self.now += self._ticks.pop(0) if self._ticks else 0
        return self.now
