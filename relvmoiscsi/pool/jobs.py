# SPDX-License-Identifier: LGPL-2.1-only
"""Run several jobs in parallel, in as many threads as start, each with a connection. A failed job stops no other job.

A job may have two steps. An item takes the second step after every item of its group has ended the first step. Threads
start the first steps of all items before any second step. Second steps fill the time until the last first step ends.
"""

import threading
from collections import Counter, deque
from contextlib import closing
from typing import Any, Callable, Deque, Hashable, List, Sequence, Tuple, TypeVar, Union

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool.calls import Calls
from relvmoiscsi.threads import Workers

Item = TypeVar("Item")
Found = TypeVar("Found")
Step = Callable[[Calls, Any], Any]

MOST = 10  #: jobs in parallel, by default


def at_once(
    calls: Calls, items: Sequence[Item], job: Callable[[Calls, Item], Found], jobs: int = MOST
) -> List[Union[Found, RelvmoiscsiError]]:
    """Return what `job` returns or raises for each item, in order. Other exceptions than RelvmoiscsiError propagate.

    With one job at a time, all jobs run in the calling thread, on the connection `calls`.
    """
    return _run(calls, items, [job], lambda item: None, jobs)


def in_two_steps(
    calls: Calls,
    items: Sequence[Any],
    first: Step,
    second: Step,
    group: Callable[[Any], Hashable],
    jobs: int = MOST,
) -> List[Any]:
    """Return for each item, in order, `second(first(item))`, or the RelvmoiscsiError of a step.

    No item of a group takes the second step before every item of the group has ended the first step.
    """
    return _run(calls, items, [first, second], group, jobs)


def _run(
    calls: Calls, items: Sequence[Any], steps: Sequence[Step], group: Callable[[Any], Hashable], jobs: int
) -> List[Any]:
    work, workers = _Work(items, steps, group), min(jobs, len(items))

    def take_part() -> None:
        with closing(calls.another()) as connection:
            work.go_on(connection)

    try:
        if workers <= 1:
            work.go_on(calls)
        else:
            Workers(workers).run([take_part] * workers)
    finally:  # after Ctrl-C no code waits for the threads; tasks that were started continue in the pool
        work.stop()
    return work.values


class _Work:
    """The items, and which steps are ready for a thread."""

    def __init__(self, items: Sequence[Any], steps: Sequence[Step], group: Callable[[Any], Hashable]) -> None:
        self.values, self._steps = list(items), steps
        self._ready: Deque[Tuple[int, int]] = deque((0, item) for item in range(len(items)))  #: (step, item)
        self._groups = [group(item) for item in items]
        self._in_first_step = Counter(self._groups)  #: how many items of each group have not ended the first step
        self._busy, self._is_stopped = 0, False
        self._changed = threading.Condition()

    def stop(self) -> None:
        """Let no thread start another step."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def go_on(self, calls: Calls) -> None:
        """Take steps until no step is ready, and no thread may make a step ready."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or not self._busy or self._is_stopped)
                if self._is_stopped or not self._ready:
                    return
                step, item = self._ready.popleft()
                self._busy += 1
            try:
                self.values[item] = self._steps[step](calls, self.values[item])
            except RelvmoiscsiError as error:
                self.values[item] = error
            except BaseException:
                self.stop()
                raise
            with self._changed:
                self._busy -= 1
                group = self._groups[item]
                self._in_first_step[group] -= step == 0
                if step + 1 < len(self._steps) and not self._in_first_step[group]:
                    mine = [each for each, its_group in enumerate(self._groups) if its_group == group]
                    good = [each for each in mine if not isinstance(self.values[each], RelvmoiscsiError)]
                    self._ready.extend((1, each) for each in good)
                self._changed.notify_all()
