# SPDX-License-Identifier: LGPL-2.1-only
"""Programs and waits of this host, kept to the deadline of a call.

in_time(run, deadline)                    a runner of programs that ends them in time
waiting_in_time(wait_for, deadline)       a wait for a condition that ends in time
"""

from typing import Any, Callable, Sequence

from relvmoiscsi.deadline import CLEANUP_SECONDS, DEFAULT_SECONDS, NO_DEADLINE, NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.host.command import TIMEOUT_SECONDS, Completed, Runner

__all__ = [
    "CLEANUP_SECONDS",
    "DEFAULT_SECONDS",
    "NOT_BEGUN",
    "NO_DEADLINE",
    "Deadline",
    "OutOfTime",
    "in_time",
    "waiting_in_time",
]


def in_time(run: Runner, deadline: Deadline) -> Runner:
    """Programs that are stopped at the deadline, and not started after it: then the runner raises OutOfTime."""

    def run_in_time(argv: Sequence[str], timeout: float = TIMEOUT_SECONDS, **more: Any) -> Completed:
        deadline.check(f"`{argv[0]}` was started")
        return run(argv, timeout=deadline.within(timeout), **more)

    return run_in_time


def waiting_in_time(wait_for: Callable[..., Any], deadline: Deadline) -> Callable[..., Any]:
    """A function that waits for a condition, called with that and seconds, kept to the deadline."""

    def wait_in_time(condition: Callable[[], Any], seconds: float, *more: Any, **named: Any) -> Any:
        return wait_for(condition, deadline.within(seconds), *more, **named)

    return wait_in_time
