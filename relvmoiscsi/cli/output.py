# SPDX-License-Identifier: LGPL-2.1-only
"""What the command says: results to stdout, talk to stderr, and nothing that cannot be printed stops the work."""

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple

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


def say(text: str) -> None:
    try:
        write_line(sys.stderr, "relvmoiscsi: " + text)
    except OSError:  # talk that nobody hears is no reason to stop the work, or to hide how it went
        pass


def print_result(text: str) -> bool:
    """Print a result. False when nobody takes it: `| head` that has ended, a full disk, a closed stdout."""
    try:
        write_line(sys.stdout, text)
    except BrokenPipeError:
        _give_up_stdout()
        return False
    except OSError as error:
        say(f"The result cannot be printed: {error.strerror}.")
        _give_up_stdout()
        return False
    return sys.stdout is not None


def _give_up_stdout() -> None:
    """Python would try to print the rest once more when it ends, and fail with a status of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def write_line(stream: Any, text: str) -> None:
    """The text and the end of its line: see `write_text`."""
    write_text(stream, text + "\n")


def write_text(stream: Any, text: str) -> None:
    """Labels may be in any language, and dom0's locale may know ASCII only. A daemon may have no streams."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
