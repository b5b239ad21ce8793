# SPDX-License-Identifier: LGPL-2.1-only
"""Batches, carried out at the same time.

A round trip to an array costs far more than the bytes it carries. So what is left of a batch after merging (`device`)
is handed to the kernel all at once, and the batch takes about as long as its slowest operation.
"""

import threading
from collections import deque
from typing import Callable, Deque, Dict, List, Sequence, Tuple

WORKERS = 32  #: requests under way at once, the usual queue depth of an iSCSI session

Operation = Callable[[], None]


class Workers:
    """Runs the operations of a batch at the same time: the caller does, and up to WORKERS - 1 threads beside it.

    Not concurrent.futures: Python 3.6 imports multiprocessing with it (18 ms), and a future for each of thousands of
    operations costs more than the operation.
    """

    def __init__(self) -> None:
        self._threads: List[threading.Thread] = []

    def run(self, operations: Sequence[Operation]) -> None:
        """Return once all have ended. When some fail, then the error of the first of them is raised.

        Whoever interrupts it (Ctrl-C) does not want those that have not begun.
        """
        batch = _Batch(operations)
        try:
            for _ in operations[1:WORKERS]:
                if not batch.waiting:  # a fast device is done before all threads are there
                    break
                self._threads.append(threading.Thread(target=batch.work, name="relvmoiscsi"))
                self._threads[-1].start()
            batch.work()
            self.close()
        except BaseException:
            batch.waiting.clear()
            raise
        for _number, error in sorted(batch.errors.items()):
            raise error

    def close(self) -> None:
        """Return once nothing is under way any more."""
        for thread in self._threads:
            if thread.is_alive():  # one whose start was interrupted is not, and finds nothing to do
                thread.join()
        self._threads = []


class _Batch:
    """Operations that wait for somebody to do them, and what went wrong with those that were done."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.waiting: Deque[Tuple[int, Operation]] = deque(enumerate(operations))
        self.errors: Dict[int, Exception] = {}

    def work(self) -> None:
        """Do one operation after the other until none waits any more."""
        while True:
            try:
                number, operation = self.waiting.popleft()
            except IndexError:
                return
            try:
                operation()
            except Exception as error:  # noqa: BLE001 - `run` raises it, in the thread of the caller
                self.errors[number] = error
