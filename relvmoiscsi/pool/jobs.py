# SPDX-License-Identifier: LGPL-2.1-only
"""Several jobs at once, each with a connection of its own; one that fails stops no other.

A job may have several steps. Whoever is free takes the item that is the least far, so that the long first steps are all
begun as early as possible, and the short ones after them fill the time in which the last of those are awaited. Before
one of the steps items may wait for others.
"""

import threading
from collections import Counter
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool.calls import Calls

Item = TypeVar("Item")
Found = TypeVar("Found")

MOST = 10  #: at once, unless somebody says otherwise


class Together(NamedTuple):
    """No item takes this step before all of its group have come to it, or have ended in an error."""

    step: int  #: its place in the list of steps; not the first
    group: Callable[[Any], Hashable]  #: gives that of an item


def at_once(
    calls: Calls, items: Sequence[Item], job: Callable[[Calls, Item], Found], jobs: int = MOST
) -> List[Union[Found, RelvmoiscsiError]]:
    """What `job` gives or raises for each item, in their order; other exceptions go through.

    With one job at a time everything happens in this thread, on the connection that is there.
    """
    return in_steps(calls, items, [job], jobs)


def in_steps(
    calls: Calls,
    items: Sequence[Any],
    steps: Sequence[Callable[[Calls, Any], Any]],
    jobs: int = MOST,
    together: Optional[Together] = None,
) -> List[Any]:
    """What the last step gives for each item, or the RelvmoiscsiError in which one of them has ended, in their order.

    Each step gets what the one before has given. Other exceptions go through.
    """
    workers = min(jobs, len(items))
    work = _Work(items, steps, together)
    if workers <= 1:
        work.go_on(calls)
        return work.found()
    connections: List[Calls] = []
    threads = []
    try:
        for _ in range(workers):
            connections.append(calls.another())
            threads.append(threading.Thread(target=work.go_on_until_a_bug, args=(connections[-1],), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return work.found()
    finally:  # whoever is interrupted waits for nobody: what was begun goes on in the pool
        work.stop()
        for thread, connection in zip(threads, connections):
            if not thread.is_alive():
                connection.close()


class _Work:
    """The items of several threads, and how far each is."""

    def __init__(
        self, items: Sequence[Any], steps: Sequence[Callable[[Calls, Any], Any]], together: Optional[Together]
    ) -> None:
        self._steps = steps
        self._values: Dict[int, Any] = dict(enumerate(items))
        self._barrier = together.step if together else None
        self._groups = [together.group(item) if together else None for item in items]
        self._behind = Counter(self._groups)  #: how many of a group are not at the barrier yet
        self._held: Dict[Hashable, List[int]] = {group: [] for group in self._groups}  #: those that are
        self._waiting = [[*self._values]] + [[] for _ in steps[1:]]  # type: List[List[int]]  # by the next step
        self._busy = 0
        self._is_spoiled = False
        self._bug: Optional[BaseException] = None
        self._changed = threading.Condition()

    def go_on_until_a_bug(self, calls: Calls) -> None:
        """The same, in a thread: `found` raises what came."""
        try:
            self.go_on(calls)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._bug = self._bug or error

    def stop(self) -> None:
        """Let nobody begin another step."""
        with self._changed:
            self._is_spoiled = True
            self._changed.notify_all()

    def go_on(self, calls: Calls) -> None:
        """Take steps until there are none left."""
        while True:
            taken = self._take()
            if taken is None:
                return
            self._step(calls, *taken)

    def _step(self, calls: Calls, number: int, item: int) -> None:
        following: Optional[int] = number + 1
        is_bug = True
        try:
            self._values[item] = self._steps[number](calls, self._values[item])
            is_bug = False
        except RelvmoiscsiError as error:
            self._values[item], following, is_bug = error, None, False
        finally:
            self._put(item, number, following, is_bug)

    def _take(self) -> Optional[Tuple[int, int]]:
        """(step, item); None when nothing is left to do. Waits while somebody may bring more."""
        with self._changed:
            while self._busy and not any(self._waiting) and not self._is_spoiled:
                self._changed.wait()
            if self._is_spoiled:
                return None
            for number, waiting in enumerate(self._waiting):
                if waiting:
                    self._busy += 1
                    return number, waiting.pop(0)
            return None

    def _put(self, item: int, number: int, following: Optional[int], is_bug: bool) -> None:
        with self._changed:
            self._busy -= 1
            self._is_spoiled = self._is_spoiled or is_bug
            if following is not None and following == self._barrier:
                self._held[self._groups[item]].append(item)
            elif following is not None and following < len(self._steps):
                self._waiting[following].append(item)
            self._release(item, number, following)
            self._changed.notify_all()

    def _release(self, item: int, number: int, following: Optional[int]) -> None:
        """Let a group go on when its last item has come to the barrier, or has ended before it."""
        if self._barrier is None or number >= self._barrier or following is not None and following < self._barrier:
            return
        group = self._groups[item]
        self._behind[group] -= 1
        if not self._behind[group]:
            self._waiting[self._barrier] += self._held[group]

    def found(self) -> List[Any]:
        if self._bug is not None:
            raise self._bug
        return [self._values[item] for item in sorted(self._values)]
