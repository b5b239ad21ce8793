# SPDX-License-Identifier: LGPL-2.1-only
"""One time budget for a call, shared by all waits of the call.

    deadline = Deadline(50)                   at the start of the call
    deadline.within(15)                       a wait of 15 seconds, or of the remaining time
    deadline.part(8)                          a budget within the budget, for a portal that may not answer
    deadline.for_cleanup()                    extra time for the cleanup, after the deadline as well

NO_DEADLINE is the budget of a caller without a time limit.
"""

import math
import time
from typing import Callable

from relvmoiscsi.errors import Refused

DEFAULT_SECONDS = 50.0  #: CloudStack waits 60 seconds for an answer
CLEANUP_SECONDS = 8.0
#: the limit for each batch of reads or writes after the first write, with lost sessions and retries included.
#: open-iscsi has the same limit (node.session.timeo.replacement_timeout); array controllers take over in half that time
BATCH_SECONDS = 120.0
_LEAST_CLEANUP_SECONDS = 3.0

#: The state of a LUN to which a call was to write and has not written; an earlier call may have written to the LUN.
NOT_BEGUN = "This call wrote nothing to the LUN. Repeat the call; it also finishes an interrupted earlier call."

Clock = Callable[[], float]


class OutOfTime(Refused):
    """The time of the call is over, and the next step was not begun."""

    sm_key = "SRUnavailable"


class Deadline:
    """The time on a clock at which a call must end."""

    of_what = "of this call"  #: what the seconds belong to, in messages

    def __init__(self, seconds: float, clock: Clock = time.monotonic, state: str = "") -> None:
        """Start a budget of `seconds`; `clock` returns seconds and never goes back.

        `state` is the state of the LUN when the time is over: NOT_BEGUN for a call that is to write, "" for any other.
        """
        self.seconds = seconds
        self.state = state
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self._end - self._clock())

    @property
    def has_passed(self) -> bool:
        return self.left <= 0

    def within(self, seconds: float) -> float:
        """Return the shorter of `seconds` and the remaining time."""
        return min(seconds, self.left)

    def check(self, what: str) -> None:
        """Raises OutOfTime when no time remains; `what` names the step that was not begun, such as "the login"."""
        if self.has_passed:
            raise self.over(what)

    def over(self, what: str, why: str = "") -> OutOfTime:
        """Return the error of a caller that gives up because the time is over.

        `why` are sentences about the last answer of the other side.
        """
        problem = "The {} seconds {} were over before {}.{}"
        return OutOfTime(problem.format(self._in_words, self.of_what, what, why and f" {why}")).in_state(self.state)

    @property
    def disk_state(self) -> str:
        """The state with a sentence that the time is over: another error may be a result of the short time."""
        return f"The {self._in_words} seconds {self.of_what} are over. {self.state}".strip()

    @property
    def _in_words(self) -> str:
        return f"{round(self.seconds, 1):g}"  # a step has other seconds than the call has

    def part(self, seconds: float) -> "Deadline":
        """Return a budget of `seconds` from now, at most the remaining time."""
        return Deadline(self.within(seconds), self._clock, self.state)

    def for_cleanup(self, seconds: float = CLEANUP_SECONDS) -> "Deadline":
        """Return a budget for the cleanup: `seconds` after the deadline, and at least a few seconds from now."""
        least = max(_LEAST_CLEANUP_SECONDS, self._end + seconds - self._clock())
        return Deadline(least, self._clock, self.state)


NO_DEADLINE = Deadline(math.inf)
