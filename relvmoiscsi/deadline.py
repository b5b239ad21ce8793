# SPDX-License-Identifier: LGPL-2.1-only
"""One budget of time for a call, from which every wait takes.

    deadline = Deadline(50)                   at the start of the call
    deadline.within(15)                       a wait of 15 seconds, or of what is left
    deadline.part(8)                          a budget within the budget, for a portal that may be silent
    deadline.for_cleanup()                    what is taken back is taken back after the deadline as well

Whoever has none waits as long as he pleases: NO_DEADLINE.
"""

import math
import time
from typing import Callable

from relvmoiscsi.errors import Refused

DEFAULT_SECONDS = 50.0  #: CloudStack waits 60 for an answer
CLEANUP_SECONDS = 8.0
_LEAST_CLEANUP_SECONDS = 3.0

#: The state of a LUN that a call has not written to; what an earlier call has left there is no part of it.
NOT_BEGUN = "This call wrote nothing to the LUN. The same call again does it, or finishes what an earlier one began."

Clock = Callable[[], float]


class OutOfTime(Refused):
    """The time of the call is over, and what was to come next is not begun."""

    sm_key = "SRUnavailable"


class Deadline:
    """The moment on a clock by which something is to be over."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        """`seconds` from now on; `clock` gives seconds and never goes back."""
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; never less than none."""
        return max(0.0, self._end - self._clock())

    @property
    def has_passed(self) -> bool:
        return self.left <= 0

    def within(self, seconds: float) -> float:
        """How long a wait of at most so many seconds may take."""
        return min(seconds, self.left)

    def check(self, what: str) -> None:
        """Raises OutOfTime when nothing is left; `what` is what was not begun any more, such as "the login"."""
        if self.has_passed:
            raise self.over(what)

    def over(self, what: str) -> OutOfTime:
        """The error of whoever gives up because the time is over."""
        problem = "The {} seconds of this call were over before {}."
        return OutOfTime(problem.format(self._in_words, what)).in_state(NOT_BEGUN)

    @property
    def disk_state(self) -> str:
        """NOT_BEGUN, and that the time is over: what else went wrong has had less time for it than it says."""
        return f"The {self._in_words} seconds of this call are over. {NOT_BEGUN}"

    @property
    def _in_words(self) -> str:
        return f"{round(self.seconds, 1):g}"

    def part(self, seconds: float) -> "Deadline":
        """So many seconds from now, as far as they are left."""
        return Deadline(self.within(seconds), self._clock)

    def for_cleanup(self, seconds: float = CLEANUP_SECONDS) -> "Deadline":
        """For what must be done whether or not the time is over: so many seconds more, and never less than a few."""
        return Deadline(max(_LEAST_CLEANUP_SECONDS, self._end + seconds - self._clock()), self._clock)


NO_DEADLINE = Deadline(math.inf)
