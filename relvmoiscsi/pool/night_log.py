# SPDX-License-Identifier: LGPL-2.1-only
"""The log of --log FILE: what the pool commands of a night were, how far each came, and how each ended.

One event is one line, for grep: the time in UTC, the id of the process, a word, and a sentence. The id tells the lines
of parallel commands apart. The word says what the line is, whatever names strangers put into its sentence. The lines
are one write at the end of the file. A log that cannot be written stops no work.

A log in /tmp may be there before root opens it: another user's file, whose owner would change the log, or a pipe, where
the open would wait for a reader. So the log is a regular file of the user of this process, and only that user reads it.
"""

import os
import re
import shlex
import time
from typing import Callable, List, Optional, Sequence

from relvmoiscsi.errors import NOTHING_WRITTEN, UsageError
from relvmoiscsi.host.own_path import NotOwn, open_own
from relvmoiscsi.wording import printable

#: the words of the lines
BEGINS, PLAN, ASKED, STEP, NOTE, WARNING = "begins", "plan", "asked", "step", "note", "warning"
RESULT, NEXT, ERROR, ENDS = "result", "next", "error", "ends"


def events(text: str) -> List[str]:
    """Return the events of a result: each of its lines, with the indented lines below."""
    return [re.sub(r"\n +", "; ", event) for event in re.split(r"\n(?! )", text)] if text else []


class NightLog:
    """The log file; without a path, nothing is written."""

    def __init__(self, path: Optional[str], words: Sequence[str], say: Callable[[str], None]) -> None:
        """Begin with the command; `say` gets a sentence if the log cannot be written.

        Raises UsageError where the file cannot be opened.
        """
        self._path, self._file, self._say = path, -1, say
        if path is None:
            return
        try:
            self._file = open_own(path, os.O_WRONLY | os.O_APPEND)
        except NotOwn as problem:
            unsafe = UsageError(f"{path} is no safe place for a log: {problem}.").in_state(NOTHING_WRITTEN)
            raise unsafe.advising("Give a directory of your own.") from None
        except OSError as error:
            raise UsageError(f"The log {path} cannot be opened: {error.strerror}.").in_state(NOTHING_WRITTEN) from error
        self.tell(BEGINS, " ".join(map(shlex.quote, words)))

    def tell(self, word: str, *sentences: str) -> None:
        """Append a line for each sentence. A line break in a sentence is escaped: a stranger may have chosen it."""
        if self._file == -1:
            return
        head = "{} [{}] {}: ".format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), os.getpid(), word)
        text = "".join(f"{head}{printable(sentence)}\n" for sentence in sentences)
        try:
            os.write(self._file, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._say(f"The log {self._path} cannot be written: {error.strerror}. The command goes on.")
            self.close()

    def close(self) -> None:
        if self._file != -1:
            os.close(self._file)
            self._file = -1
