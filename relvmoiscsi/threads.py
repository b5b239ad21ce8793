# SPDX-License-Identifier: LGPL-2.1-only
"""Start threads. A user, a slice of systemd and a host have a limit of threads and processes, which count alike."""

import logging
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Sequence, Tuple, TypeVar

from relvmoiscsi.errors import Refused

log = logging.getLogger(__name__)

Found = TypeVar("Found")


def start_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Call `work` with these arguments in a thread that ends with this process, and return it. Raises Refused."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_room(error) from error
    return thread


def no_room(error: Exception) -> Refused:
    """Return the refusal for a thread or process that the kernel does not start."""
    reason = getattr(error, "strerror", None) or error
    return Refused(f"The kernel starts no thread or process for relvmoiscsi: {reason}.").advising(
        "End other programs of this user, or raise the limit: `ulimit -u` of the shell, `TasksMax` of the slice that "
        "`systemctl status` shows for the shell."
    )


class Workers:
    """Calls functions in parallel: in the caller's thread and in up to `most` - 1 other threads, as many as start.

    concurrent.futures is too slow here. Python 3.6 imports multiprocessing with it (18 ms). With thousands of
    functions, a future costs more than the read of a block.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: List[threading.Thread] = []

    def run(self, works: Sequence[Callable[[], Found]]) -> List[Found]:
        """Call all functions, and return the results in order. Raises the first error, by position, after the last end.

        After Ctrl-C no other function begins, and `run` does not wait for the running ones: they end with this process.
        """
        waiting: Deque[Tuple[int, Callable[[], Found]]] = deque(enumerate(works))
        found: Dict[int, Found] = {}
        errors: Dict[int, Exception] = {}

        def work() -> None:
            while True:
                try:
                    number, one = waiting.popleft()
                except IndexError:
                    return
                try:
                    found[number] = one()
                except Exception as error:  # noqa: BLE001 - raised below, in the thread of the caller
                    errors[number] = error

        try:
            for _ in works[1 : self._most]:
                if not waiting:  # the running threads have already taken all
                    break
                self._threads.append(threading.Thread(target=work, name="relvmoiscsi", daemon=True))
                try:
                    self._threads[-1].start()
                except RuntimeError as problem:  # the kernel starts no more: fewer threads do the same work
                    log.debug("%d threads at work: %s", len(self._threads), problem)
                    break
            work()
            self.close()
        except BaseException:
            waiting.clear()
            raise
        for _number, error in sorted(errors.items()):
            raise error
        return [found[number] for number in range(len(works))]

    def close(self) -> None:
        """Wait for the end of all running functions."""
        for thread in self._threads:
            if thread.is_alive():  # false for a thread whose start was interrupted
                thread.join()
        self._threads = []
