# SPDX-License-Identifier: LGPL-2.1-only
"""The log of --log FILE: what the pool commands of a night were, how far each came, and how each ended.

One event is one line, for grep: the time in UTC, the id of the process, a word, and a sentence. The id tells the lines
of parallel commands apart; the first line of each says who runs the command, and on which pool. The word says what the
line is, whatever names strangers put into its sentence. The lines are one write at the end of the file. A log that
cannot be written stops no work.

A command that was killed writes no last line. The next command with the same log, on the same machine, writes it.

A log in /tmp may be there before root opens it: another user's file, whose owner would change the log, or a pipe, where
the open would wait for a reader. So the log is a regular file of the user of this process, and only that user reads it.
"""

import os
import re
import shlex
import socket
import time
from typing import Callable, Dict, List, Optional, Sequence

from relvmoiscsi.errors import NOTHING_WRITTEN, UsageError
from relvmoiscsi.host.own_path import NotOwn, open_own
from relvmoiscsi.pool.client_process import is_in_use, user_name
from relvmoiscsi.wording import printable

#: the words of the lines
BEGINS, PLAN, ASKED, STEP, NOTE, WARNING = "begins", "plan", "asked", "step", "note", "warning"
RESULT, NEXT, ERROR, ENDS = "result", "next", "error", "ends"

_LOST = "without a last line: the process was killed, or its machine stopped. The exit status is unknown"
_LINE = re.compile(r"\S+ \[([0-9]{1,10})\] (begins|ends): (.*)")
_MOST_READ = 1 << 20  #: bytes at the end of the log, in which a command looks for others that were killed


def events(text: str) -> List[str]:
    """Return the events of a result: each of its lines, with the indented lines below."""
    return [re.sub(r"\n +", "; ", event) for event in re.split(r"\n(?! )", text)] if text else []


class NightLog:
    """The log file; without a path, nothing is written."""

    def __init__(self, path: Optional[str], words: Sequence[str], who: str, say: Callable[[str], None]) -> None:
        """Begin with the command, and with its user and pool in `who`.

        `say` gets a sentence if the log cannot be written, and one for each earlier command that was killed.

        Raises UsageError where the file cannot be opened.
        """
        self._path, self._file, self._say = path, -1, say
        if path is None:
            return
        try:
            self._file = open_own(path, os.O_RDWR | os.O_APPEND)
        except NotOwn as problem:
            unsafe = UsageError(f"{path} is no safe place for a log: {problem}.").in_state(NOTHING_WRITTEN)
            raise unsafe.advising("Give a directory of your own.") from None
        except OSError as error:
            raise UsageError(f"The log {path} cannot be opened: {error.strerror}.").in_state(NOTHING_WRITTEN) from error
        where = f" on {socket.gethostname()}, as "
        for process, command in self._lost(where).items():
            self._append(process, ENDS, _LOST)
            say(f"An earlier command of the log {path} was killed: {printable(command)}")
        self.tell(BEGINS, f"{' '.join(map(shlex.quote, words))} (by {user_name()}{where}{who})")

    def _lost(self, where: str) -> Dict[str, str]:
        """Return the commands on this machine that have begun, have not ended, and do not run, by process id.

        An earlier process with the id of this one does not run.
        """
        size = os.fstat(self._file).st_size
        text = os.pread(self._file, _MOST_READ, max(0, size - _MOST_READ)).decode("utf-8", "replace")
        begun: Dict[str, str] = {}
        for line in filter(None, map(_LINE.fullmatch, text.split("\n"))):
            process, word, sentence = line.groups()
            if word == ENDS:
                begun.pop(process, None)
            elif where in sentence:
                begun[process] = sentence
        return {pid: command for pid, command in begun.items() if pid == str(os.getpid()) or not is_in_use(pid)}

    def tell(self, word: str, *sentences: str) -> None:
        """Append a line for each sentence. A line break in a sentence is escaped: a stranger may have chosen it."""
        self._append(str(os.getpid()), word, *sentences)

    def _append(self, process: str, word: str, *sentences: str) -> None:
        if self._file == -1:
            return
        head = "{} [{}] {}: ".format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), process, word)
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
