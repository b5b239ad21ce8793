# SPDX-License-Identifier: LGPL-2.1-only
"""Output and questions of the command: results go to stdout; messages, questions and bars go to stderr.

If stderr is no terminal, the terminal where a person types the answer has the question.

Results for people fit the terminal, and 80 columns where no terminal is; COLUMNS of the environment overrides both.
Messages fit a terminal too; elsewhere, as in a log, each is one line. A terminal shows errors in red and headings bold,
unless NO_COLOR is set. A failed write to stderr never stops the work.
"""

import errno
import logging
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    NamedTuple,
    Optional,
    Sequence,
    TextIO,
    Union,
)

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError
from relvmoiscsi.wording import (
    ESTIMATE_SECONDS,
    ShellCommand,
    human_size,
    human_time,
    in_encoding,
    printable,
    printable_lines,
    said,
    time_left,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


EXIT_BUG = 70
EXIT_NOT_PRINTED = 74  #: the run succeeded, and its result was not printed or not written to a file; as in sysexits.h
EXIT_INTERRUPTED = 130
NEXT = "next: "
NARROWEST = 20  #: columns


class Answer(NamedTuple):
    """Result and exit status of a command."""

    facts: Dict[str, Any]
    text: str  #: the verdict, then its reasons, and what to do where no command does it
    status: int = 0
    done: str = ""  #: what a run did, and the command that shows it again: said where the result cannot be printed
    next_steps: Sequence[ShellCommand] = ()  #: whole commands, in the order in which a person takes them
    alerts: Sequence[str] = ()  #: of the text, what has failed or must be kept: on stderr where no text is printed

    def leading(self, step: str) -> "Answer":
        """Return the answer with what a person does next: a command, a sentence (it ends the text), or nothing: ""."""
        if isinstance(step, ShellCommand):
            return self._replace(next_steps=[*self.next_steps, step])
        return self._replace(text=f"{self.text}\n{step}") if step else self

    def for_people(self, stream: Any) -> str:
        """Return the lines for this stream (None: a file), with bold headings on a terminal.

        `next:` stands before the next steps: no other text has `next:`. A person pastes them, so no line breaks them.
        """
        columns, lines = width(stream), []
        heads = re.compile(r"[^ ].*:\Z|[A-Z]+  +[A-Z]")
        for line in printable_lines(self.text).split("\n") if self.text else ():
            is_head = heads.match(line)
            broken = wrapped(line, columns).split("\n")
            lines += [painted(stream, each, BOLD) if is_head else each for each in broken]
        for number, step in enumerate(self.next_steps):
            lines.append((" " * len(NEXT) if number else NEXT) + printable(step))
        return "\n".join(lines)


#: makes a command of its words: a UsageError is about words that are wrong in form, and the usage is shown. What it
#: returns runs the command: a UsageError is about what is in a file, on the LUN, in the pool, or at the terminal
Command = Callable[["Namespace"], Callable[[], Answer]]
#: called with the function that makes a command, and the text of its --help after the first line; returns the parser
Maker = Callable[[Command, str], "ArgumentParser"]


def takes_output_options(parser: "ArgumentParser", **more: Any) -> None:
    """Add the options of all commands. `more` is the default of a command of a group, whose group has the options."""
    what = "print one JSON object and nothing else on stdout"
    parser.add_argument("--json", action="store_true", help=what, **more)
    what = "print only errors, warnings and questions"
    parser.add_argument("-q", "--quiet", action="store_true", help=what, **more)
    what = "print more on stderr; twice: every command and its output"
    more = {"default": 0, **more}
    parser.add_argument("-v", "--verbose", action="count", help=what, **more)


# --- lines


RED, BOLD = "31", "1"


def painted(stream: Any, text: str, code: str) -> str:
    """Return the text in a colour, unless the stream is no terminal, TERM is dumb, or NO_COLOR is set."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(stream)
    return text if is_plain else f"\033[{code}m{text}\033[0m"


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def width(stream: Any) -> int:
    """Return the number of columns of a line: NARROWEST or more, so that each line has room behind its indent."""
    columns = 0
    with suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", ""))
    if columns <= 0:
        with suppress(OSError, ValueError, AttributeError):  # no terminal, a closed stream, or no stream
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(columns, NARROWEST) if columns > 0 else 80


#: a command, alone on an indented line
_COMMAND_LINE = " +(xe|relvmoiscsi|for host in) "
#: what no line may begin inside: a command in backticks, a text in quotes as `repr` writes it
_WHOLE = re.compile(r"""`[^`]*`|(?<![\w\\])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def fitted(text: str, stream: Any) -> str:
    """Return a message with its long lines broken for a terminal. Elsewhere no line is broken: a log has lines."""
    return wrapped(text, width(stream)) if is_terminal(stream) else text


def wrapped(text: str, columns: int, below: int = 2) -> str:
    """Return the text with its long lines broken between words.

    A broken line continues under the start of its last column in the left half, or `below` characters from the left. A
    command stays whole: in backticks, or alone on an indented line. The last column of a row, if in the right half,
    moves to a line of its own. A text in quotes, as a name is, stays whole, also where it is longer than a line: so a
    person can copy the name.
    """
    lines = []
    for line in text.split("\n"):
        if len(line) <= columns or re.match(_COMMAND_LINE, line):
            lines.append(line)
            continue
        whole = _WHOLE.sub(lambda found: found.group().replace(" ", "\0"), line)
        starts = [cell.end() for cell in re.finditer("  +", whole)] or [0]
        indent = max([below, *(start for start in starts if start <= columns // 2)])
        if columns // 2 < starts[-1] <= columns:  # a row of a table
            rest = wrapped(" " * indent + whole[starts[-1] :], columns)
            lines.append(f"{whole[: starts[-1]].rstrip()}\n{rest}".replace("\0", " "))
            continue
        from textwrap import fill  # noqa: PLC0415 - slow to import, and udev waits

        longest = max(map(len, whole.split()))
        if longest <= columns - 2:  # a name of a volume fits, if not under its column
            indent = min(indent, columns - longest)
        filled = fill(whole, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        lines.append(filled.replace("\0", " "))
    return "\n".join(lines)


# --- results and talk


class Unheard:
    """A stream whose failed writes are no errors: a message without a reader must not stop the work."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return is_terminal(self._stream)

    def write(self, text: str) -> None:
        """Write and flush the text; drop it where the stream is missing, closed, full or without a reader."""
        try:
            write_text(self._stream, text)
        except (OSError, ValueError):
            with suppress(OSError, ValueError, AttributeError):  # a stream that is no file
                _give_up(self._stream)

    def flush(self) -> None:
        """Do nothing: `write` has flushed."""


def say(text: str, code: str = "") -> None:
    text = fitted(printable_lines("relvmoiscsi: " + text), sys.stderr)
    Unheard(sys.stderr).write((painted(sys.stderr, text, code) if code else text) + "\n")


class LogFormatter(logging.Formatter):
    """Messages of the log on stderr. A message may quote a LUN, a target or a pool: only a terminal breaks its line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return fitted(printable(super().formatMessage(record)), sys.stderr)

    def formatException(self, ei: Any) -> str:
        return printable_lines(super().formatException(ei))


def print_result(text: str, status: int = 0, done: str = "", alerts: Sequence[str] = ()) -> int:
    """Print the result of a run that ends with this status; return the exit status of the process.

    Stdout fails after the end of `| head`, on a full disk, or when closed. A message with `done` says so, but for a
    pipe without a reader. Then stderr gets the alerts, and `unless_lost` decides on the exit status.
    """
    try:
        write_text(sys.stdout, text + "\n")
        if sys.stdout is not None:
            return status
        problem = "the standard output is closed"
    except OSError as error:
        problem = "" if isinstance(error, BrokenPipeError) else str(error.strerror)
        _give_up(sys.stdout)
    if problem:
        say(f"The result cannot be printed: {problem}. {done}".rstrip(), RED)
    for alert in alerts:
        say(printable(alert))
    return unless_lost(status)


def unless_lost(status: int) -> int:
    """Return the exit status of a run whose result was lost: a failure keeps its own status, which says more."""
    return status or EXIT_NOT_PRINTED


def _give_up(stream: Any) -> None:
    """Replace a stream by /dev/null, so that Python's exit does not flush the rest again and fail."""
    number = stream.fileno()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def write_text(stream: Any, text: str) -> None:
    """Write text, with escapes for characters outside the stream's encoding. Skip a missing stream, as in a daemon."""
    if stream is None:
        return
    stream.write(in_encoding(text, getattr(stream, "encoding", None) or "ascii"))
    stream.flush()


# --- the question before the first change


class Asked:
    """The options of a command that asks a person before the first change."""

    yes = False
    json = False

    def noted(self, text: str) -> None:
        """Get a question, and that a person has confirmed: a command with a log writes the text to the log."""


def must_be_able_to_ask(arguments: "Union[Namespace, Asked]", beside_yes: str = "") -> None:
    """Raises UsageError where the command needs to ask, and asks nobody: with --json, and without a terminal.

    `beside_yes` are the options without which --yes is refused.
    """
    if arguments.yes or getattr(arguments, "dry_run", False):
        return
    problem = "With --json nobody is asked." if arguments.json else "No terminal to confirm on."
    if arguments.json or sys.stdin is None or sys.stderr is None or not sys.stdin.isatty():
        see_plan = ", or --dry-run to see the plan" if hasattr(arguments, "dry_run") else ""
        raise UsageError(problem).advising(f"Use --yes{beside_yes and ' with ' + beside_yes}{see_plan}.")


def ask(arguments: "Union[Namespace, Asked]", question: str, scsi_id: str = "") -> None:
    """Return only after a yes, or after the person types the SCSIid of the LUN, if given. Raises Refused."""
    if not arguments.yes:
        if isinstance(arguments, Asked):
            arguments.noted(question)
        typed = _typed(question if scsi_id else question + " [y/N]")
        if not _is_confirmed(typed, scsi_id):
            if not scsi_id or typed.lower() in ("", "n", "no"):
                raise Refused("Not confirmed.").in_state(NOTHING_WRITTEN)
            raise (
                Refused(f"Not confirmed: the SCSIid of this LUN is {printable(scsi_id)}, and not {said(typed)}.")
                .advising("Check at the array which LUN is the clone.")
                .in_state(NOTHING_WRITTEN)
            )
        if isinstance(arguments, Asked):
            arguments.noted("Confirmed.")


def _is_confirmed(typed: str, scsi_id: str) -> bool:
    if not scsi_id:
        return typed.lower() in ("y", "yes")
    from relvmoiscsi.scsi_id_text import named_scsi_id  # noqa: PLC0415 - few questions need a SCSIid

    try:
        return named_scsi_id(typed) == scsi_id
    except UsageError:  # nothing, "no", or a text that may be a number of several kinds
        return False


def tell(what: Union[str, Answer], end: str = "\n") -> None:
    """Print the text or the plan that a person must read before the question. Raises UsageError where that fails."""
    with _beside_answer() as stream:
        text = what.for_people(stream) if isinstance(what, Answer) else fitted(printable_lines(what), stream)
        try:
            write_text(stream, text + end)
        except OSError as error:
            raise UsageError(f"The question cannot be shown: {error.strerror}.").advising("Use --yes.") from error


@contextmanager
def _beside_answer() -> Iterator[Any]:
    """Return where a person reads a question: stderr; if that is no terminal, the terminal where the answer is typed.

    `2>log` would hide the question, and the command would wait for an answer without a word.
    """
    terminal = None
    if not is_terminal(sys.stderr):
        with suppress(OSError, ValueError):  # stdin is no file, or nobody finds its terminal
            path = os.ttyname(sys.stdin.fileno())
            terminal = os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "w")
    if terminal is None:
        yield sys.stderr
        return
    with terminal:
        yield terminal


def _typed(question: str) -> str:
    tell(question, end=" ")
    line = ""
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:  # no text in the encoding of stdin, so no yes
        line = "\n"
    except OSError as error:
        if error.errno == errno.EIO:  # the terminal was closed; SIGHUP may come later
            raise KeyboardInterrupt from error
        raise UsageError(f"The answer cannot be read: {error.strerror}.").advising("Use --yes.") from error
    finally:
        if not line.endswith("\n"):  # Ctrl-C or Ctrl-D: the message begins its own line
            with _beside_answer() as stream:
                Unheard(stream).write("\n")
    return line.strip()


# --- long work

BAR, SHORTEST_BAR = 40, 5  #: characters
REDRAW_SECONDS = 0.2


class Bar:
    """A progress bar on a terminal, with the bytes done and the remaining time at the average rate.

    Call the bar with the bytes done and the total bytes. A lower number than before starts a new measurement. As a
    context manager, the bar ends its line, also after an error.
    """

    def __init__(self, stream: Optional[TextIO] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = Unheard(sys.stderr if stream is None else stream)
        self._clock = clock
        self._shows = is_terminal(self._stream)
        self._begun = self._drawn = clock()
        self._done = self._length = 0

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_error: object) -> None:
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
        text = f"{human_size(done)} of {human_size(total)}{time_left(done, total, now - self._begun)}"
        columns = width(self._stream) - 1  # behind its last column, a terminal goes on in the next line
        bar = min(BAR, columns - len("  [] ") - len(text))
        filled = "#" * (bar * done // total)
        text = (f"  [{filled:{bar}}] {text}" if bar >= SHORTEST_BAR else f"  {text}")[:columns]
        self._stream.write("\r" + text.ljust(self._length))
        self._length = len(text)
        if done >= total:
            self._end_line()

    def _end_line(self) -> None:
        if self._length:
            self._length = self._done = 0
            self._stream.write("\n")


@contextmanager
def waiting(what: str, limit_seconds: Optional[float] = None) -> Iterator[None]:
    """After two seconds of the block, say on a terminal what the command waits for, and how long at most."""
    if not is_terminal(sys.stderr):
        yield
        return
    from threading import Timer  # noqa: PLC0415 - slow to import, and udev waits

    limit = "" if limit_seconds is None else f", at most {human_time(limit_seconds)}"
    timer = Timer(ESTIMATE_SECONDS, say, [f"Waiting for {what}{limit}."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
