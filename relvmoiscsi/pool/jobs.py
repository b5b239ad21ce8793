# SPDX-License-Identifier: LGPL-2.1-only
"""Several jobs at once, each with a connection of its own; one that fails stops no other."""

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Sequence, TypeVar, Union

from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool.calls import Calls

Item = TypeVar("Item")
Found = TypeVar("Found")

MOST = 10  #: at once, unless somebody says otherwise


def at_once(
    calls: Calls, items: Sequence[Item], job: Callable[[Calls, Item], Found], jobs: int = MOST
) -> List[Union[Found, RelvmoiscsiError]]:
    """What `job` gives or raises for each item, in their order; other exceptions go through.

    With one job at a time everything happens in this thread, on the connection that is there.
    """
    workers = min(jobs, len(items))
    if workers <= 1:
        return [_outcome(job, calls, item) for item in items]
    connections: List[Calls] = []
    free: queue.Queue[Calls] = queue.Queue()

    def one(item: Item) -> Union[Found, RelvmoiscsiError]:
        connection = free.get()
        try:
            return _outcome(job, connection, item)
        finally:
            free.put(connection)

    try:
        for _ in range(workers):
            connections.append(calls.another())
            free.put(connections[-1])
        with ThreadPoolExecutor(workers) as threads:
            return list(threads.map(one, items))
    finally:
        for connection in connections:
            connection.close()


def _outcome(job: Callable[[Calls, Item], Found], calls: Calls, item: Item) -> Union[Found, RelvmoiscsiError]:
    try:
        return job(calls, item)
    except RelvmoiscsiError as error:
        return error
