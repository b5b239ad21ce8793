# SPDX-License-Identifier: LGPL-2.1-only
"""Batches: merging what lies side by side, and carrying the rest out at the same time.

A round trip to an array costs far more than the bytes it carries. So operations that touch, or nearly do, become one,
what remains is handed to the kernel all at once, and a batch takes about as long as its slowest operation.
"""

import threading
from collections import deque
from typing import Callable, Deque, Dict, List, Sequence, Tuple

from relvmoiscsi.device import Chunk, Range, align_down, align_up

NEAR = 4096  #: bytes; reading a gap of this size costs less than a second request
PIECE = 1024 * 1024  #: bytes; the largest single request, as large as block devices usually take whole
WORKERS = 32  #: requests under way at once, the usual queue depth of an iSCSI session

Operation = Callable[[], None]


def spans_of(ranges: Sequence[Range], block_size: int, size_bytes: int) -> List[Range]:
    """The fewest stretches that hold all ranges, in ascending order, begun and ended on block bounds.

    Ranges of no length need no bytes and have no span. Where the device ends within a block, so does the span.
    """
    spans: List[Range] = []
    for wanted in sorted(item for item in ranges if item.length):
        start = align_down(wanted.offset, block_size)
        end = min(align_up(wanted.end, block_size), size_bytes)
        if spans and start - spans[-1].end <= NEAR:
            first = spans.pop()
            start, end = first.offset, max(first.end, end)
        spans.append(Range(start, end - start))
    return spans


def runs_of(chunks: Sequence[Chunk]) -> List[List[Chunk]]:
    """Chunks grouped where one ends exactly where the next begins, in ascending order.

    Raises ValueError when two overlap: which of them would be on the device afterwards is anybody's guess.
    """
    runs: List[List[Chunk]] = []
    for chunk in sorted((item for item in chunks if item.data), key=lambda item: item.offset):
        end = runs[-1][-1].end if runs else 0
        if chunk.offset < end:
            raise ValueError(f"two chunks of one batch overlap at byte {chunk.offset}")
        if runs and chunk.offset == end:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def pieces_of(length: int) -> List[Range]:
    """[0, length) cut into requests of at most PIECE bytes."""
    return [Range(start, min(PIECE, length - start)) for start in range(0, length, PIECE)]


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
