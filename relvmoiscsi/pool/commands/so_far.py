# SPDX-License-Identifier: LGPL-2.1-only
"""The progress of a pool command with each LUN, VM or SR, for the message after Ctrl-C."""

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi.errors import AGAIN, NOTHING_CHANGED, interruption
from relvmoiscsi.pool.night_log import STEP
from relvmoiscsi.wording import printable

DONE, FAILED, UNDER_WAY, NOT_BEGUN = "done", "failed", "under way", "not begun"
PARTLY = "partly done"  #: between two steps: the pool works on nothing of it
_TO_RESUME = "Repeat the command to resume."
_HEADS = {
    DONE: "Done",
    FAILED: "Failed",
    PARTLY: "Done in part",
    UNDER_WAY: "Started; the pool may still finish this work",
    NOT_BEGUN: "Not started",
}
#: the end of the sentence on a step, for the log
_STEPS = {DONE: "is done", FAILED: "has failed", UNDER_WAY: "begins"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has stopped the command; the state and `facts` (for JSON) report the progress."""

    def __init__(self, state: str, advice: str, facts: Dict[str, Any]) -> None:
        super().__init__(state, advice)
        self.facts = facts

    def __str__(self) -> str:
        return " ".join(filter(None, map(str, self.args)))


class SoFar:
    """The progress of each LUN, VM or SR of a command. Several threads may report at once."""

    def __init__(self, log: Callable[..., None] = lambda *_: None) -> None:
        self._log = log  #: gets a word of night_log.py, and the sentences
        self._rows: Dict[str, Tuple[str, str]] = {}
        self._lock = threading.Lock()
        self.is_started = False  #: may the command have changed anything?
        self._is_over = False

    @contextmanager
    def work(self, names: Sequence[str] = ()) -> Iterator[None]:
        """Run a block that changes these objects.

        After Ctrl-C, later reports are ignored: the session ends, and the calls of other threads fail.
        """
        self.is_started = True
        for name in names:
            self._rows.setdefault(name, (NOT_BEGUN, ""))
        try:
            yield
        except KeyboardInterrupt:
            with self._lock:
                self._is_over = True
            raise

    @contextmanager
    def one(self, name: str, what: str) -> Iterator[None]:
        """Run a block that works on one object. An error in the block propagates."""
        self.tell(name, UNDER_WAY, what)
        try:
            yield
        except Exception:
            self.tell(name, FAILED, what)
            raise
        self.tell(name, DONE, what)

    def tell(self, name: str, state: str, what: str, shown: Optional[str] = None) -> None:
        """Report the state of an object; `what` is the step or the result.

        `shown` is the line on the screen, "" for a step that is not shown: the log has the same lines.
        """
        with self._lock:
            if not self._is_over:
                self._rows[name] = state, what
                line = f"{name}: {what} {_STEPS[state]}" if shown is None else shown
                self._log(STEP, *filter(None, [line]))

    def note(self, word: str, *sentences: str) -> None:
        """Write these sentences to the log."""
        self._log(word, *sentences)

    def count(self, names: Iterable[str], state: str) -> int:
        """Return how many of these objects have the state."""
        with self._lock:
            return sum(self._rows.get(name, ("",))[0] == state for name in names)

    def sentences(self) -> List[str]:
        """Return the progress: a sentence for each state that an object has."""
        found = []
        for state, head in _HEADS.items():
            names = [f"{name} ({what})" if what else name for name, (now, what) in self._rows.items() if now == state]
            found += [f"{head}: {', '.join(map(printable, names))}."] if names else []
        return found

    def interrupted(self, stop: KeyboardInterrupt) -> Interrupted:
        """Return the exception that replaces `stop`. The state and advice of `stop` come last."""
        rows = [
            {"worked_on": name, "progress": state, "detail": what or None} for name, (state, what) in self._rows.items()
        ]
        if not self.is_started:
            return Interrupted(NOTHING_CHANGED, AGAIN, {"so_far": rows})
        sentences = self.sentences()
        state, advice = interruption(stop)
        text = " ".join([*sentences, *([state] if state else [])])
        return Interrupted(text, advice or _TO_RESUME, {"so_far": rows})
