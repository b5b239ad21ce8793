# SPDX-License-Identifier: LGPL-2.1-only
"""What the command says and asks: results go to stdout; talk, questions and bars go to stderr.

Lines fit the terminal, or 80 columns; the environment variable COLUMNS has another number. A terminal shows errors in
red and headings bold, unless NO_COLOR is set. Text that cannot be printed never stops the work.
"""

import os
import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Sequence, TextIO, Type

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError
from relvmoiscsi.wording import human_size

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


class Answer(NamedTuple):
    """What a command says and how it ends."""

    facts: Dict[str, Any]
    text: str
    status: int = 0


Command = Callable[["Namespace"], Answer]
#: Gives the parser of a command what runs it, and what it says beyond the line in --help: more, with an example.
Maker = Callable[[Command, str], "ArgumentParser"]


# --- lines


RED, BOLD = "31", "1"


def painted(stream: Any, text: str, code: str) -> str:
    """The text in a colour, on a terminal that shows colours to a person who wants them."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not _is_terminal(stream)
    return text if is_plain else f"\033[{code}m{text}\033[0m"


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def width(stream: Any) -> int:
    """Columns that a line may have."""
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):  # no terminal, a closed stream, no stream
        return 80


def wrapped(text: str, columns: int) -> str:
    """The text with its long lines broken between words.

    A sentence behind columns goes on under its own begin. Whole stay: a command to copy, which is in backticks or
    stands alone on an indented line, and a table whose last column begins in the right half.
    """
    return "\n".join(line if len(line) <= columns else _wrapped_line(line, columns) for line in text.split("\n"))


def _wrapped_line(line: str, columns: int) -> str:
    indent = max(2, line.rfind("  ") + 2)
    if indent > columns // 2 or re.match(" +(xe|relvmoiscsi) ", line):
        return line
    from textwrap import fill  # noqa: PLC0415 - udev waits for a command, which says one word

    whole = re.sub("`[^`]*`", lambda command: command.group().replace(" ", "\0"), line)
    filled = fill(whole, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


# --- results and talk


def say(text: str, code: str = "") -> None:
    text = wrapped("relvmoiscsi: " + text, width(sys.stderr))
    try:
        write_text(sys.stderr, (painted(sys.stderr, text, code) if code else text) + "\n")
    except OSError:  # talk that nobody hears is no reason to stop the work, or to hide how it went
        pass


def print_text(text: str) -> bool:
    """Print what people read, its headings bold; as `print_result`."""
    lines = wrapped(text, width(sys.stdout)).split("\n")
    heads = re.compile(r"[^ ].*:\Z|[A-Z]+  +[A-Z]")
    return print_result("\n".join(painted(sys.stdout, line, BOLD) if heads.match(line) else line for line in lines))


def print_result(text: str) -> bool:
    """Print a result. False when nobody takes it: `| head` that has ended, a full disk, a closed stdout."""
    try:
        write_text(sys.stdout, text + "\n")
    except BrokenPipeError:
        _give_up_stdout()
        return False
    except OSError as error:
        say(f"The result cannot be printed: {error.strerror}.", RED)
        _give_up_stdout()
        return False
    return sys.stdout is not None


def _give_up_stdout() -> None:
    """Python would try to print the rest once more when it ends, and fail with a status of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def write_text(stream: Any, text: str) -> None:
    """Labels may be in any language, and dom0's locale may know ASCII only. A daemon may have no streams."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


# --- the question before the first change


def must_be_able_to_ask(arguments: "Namespace") -> None:
    """Raises UsageError where a question would be asked and nobody is there."""
    if arguments.yes or getattr(arguments, "dry_run", False):
        return
    if arguments.json or sys.stdin is None or sys.stderr is None or not sys.stdin.isatty():
        see_plan = ", or --dry-run to see the plan" if hasattr(arguments, "dry_run") else ""
        raise UsageError(f"No terminal to confirm on: use --yes{see_plan}.")


def ask(arguments: "Namespace", question: str) -> None:
    """Go on only with a yes. Raises Refused."""
    if not arguments.yes:
        _go_on_with(("y", "yes"), _typed(question + " [y/N]").lower())


def ask_for(arguments: "Namespace", question: str, word: str) -> None:
    """Go on only when the person types the word that the question asks for. Raises Refused."""
    if not arguments.yes:
        _go_on_with((word,), _typed(question))


def tell(text: str, end: str = "\n") -> None:
    """Say what a person must have read before the question. Raises UsageError where stderr takes nothing."""
    try:
        write_text(sys.stderr, wrapped(text, width(sys.stderr)) + end)
    except OSError as error:
        raise UsageError(f"The question cannot be shown: {error.strerror}. Use --yes.") from error


def _typed(question: str) -> str:
    tell(question, end=" ")
    return sys.stdin.readline().strip()


def _go_on_with(wanted: Sequence[str], typed: str) -> None:
    if typed not in wanted:
        raise Refused("Not confirmed.").in_state(NOTHING_WRITTEN)


# --- long work

BAR = 40  #: characters
REDRAW_SECONDS = 0.2
ESTIMATE_SECONDS = 2.0  #: before that a rate says nothing


class Bar:
    """A line on a terminal that is drawn anew: a bar, how much is done, and how long the rest takes at the rate so far.

    Called with the bytes that are done and all bytes. Work of which less is done than before has begun anew. As a
    context manager it ends its line, also where the work fails.
    """

    def __init__(self, stream: Optional[TextIO] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shows = _is_terminal(self._stream)
        self._begun = self._drawn = clock()
        self._done = self._length = 0

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._end_line()

    def __call__(self, done: int, total: int) -> None:
        if not self._shows or total <= 0:
            return
        now = self._clock()
        if done < self._done or not self._length:
            self._begun = now
        elif done < total and now - self._drawn < REDRAW_SECONDS:
            return
        self._done, self._drawn = done, now
        filled = "#" * (BAR * done // total)
        text = f"  [{filled:{BAR}}] {human_size(done)} of {human_size(total)}{self._left(done, total)}"
        self._write("\r" + text.ljust(self._length))
        self._length = len(text)
        if done >= total:
            self._end_line()

    def _left(self, done: int, total: int) -> str:
        spent = self._drawn - self._begun
        if not 0 < done < total or spent < ESTIMATE_SECONDS:
            return ""
        return f", {human_time(spent * (total - done) / done)} left"

    def _end_line(self) -> None:
        if self._length:
            self._length = self._done = 0
            self._write("\n")

    def _write(self, text: str) -> None:
        """A terminal that has gone away is no reason to stop the work."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._shows = False


def human_time(seconds: float) -> str:
    """A time as people read it: "40 s", "12 min", "3 h 5 min"."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    minutes = (whole + 30) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
