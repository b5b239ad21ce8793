# SPDX-License-Identifier: LGPL-2.1-only
"""Common code of the pool commands: their base, options for the pool, for copies, for confirmation; the session."""

import argparse
import gc
import os
from contextlib import ExitStack, contextmanager
from typing import Callable, Iterator, Optional, Sequence, Tuple, Type

from relvmoiscsi.cli.map_out import file_name
from relvmoiscsi.cli.output import Answer, Asked, must_be_able_to_ask, say, tell, waiting
from relvmoiscsi.errors import Partial, RelvmoiscsiError, UsageError
from relvmoiscsi.host.secret_file import first_line
from relvmoiscsi.pool import night_log, records
from relvmoiscsi.pool.calls import Calls
from relvmoiscsi.pool.commands.so_far import SoFar
from relvmoiscsi.pool.connection import LOCAL, Where, connect, url_of
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.wording import printable

_NAMES = {"host": "XENSERVER_HOST", "user": "XENSERVER_USER", "password": "XENSERVER_PASSWORD"}


def takes_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a pool and a user."""
    parser.add_argument(
        "--pool", metavar="URL", help="URL of a pool host, or `local` in dom0; default: XENSERVER_HOST, else local"
    )
    parser.add_argument("--user", metavar="NAME", help="user name; default: XENSERVER_USER, else root")
    what = "file with the password in its first line; default: XENSERVER_PASSWORD"
    parser.add_argument("--password-file", metavar="FILE", type=file_name, help=what)
    parser.add_argument("--ca", metavar="FILE", type=file_name, help="trusted certificates, PEM")
    flag(parser, "--insecure", "accept any certificate")


def takes_copies(parser: argparse.ArgumentParser) -> None:
    """Add the options that select copies."""
    parser.add_argument(
        "--clones-of",
        metavar="SR",
        action="append",
        default=[],
        help="select all copies of this SR (UUID or name); repeatable",
    )
    flag(parser, "--all", "select all copies")


def changes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that changes something."""
    what = "print what the command would do and change nothing"
    parser.add_argument("-n", "--dry-run", action="store_true", help=what)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def flag(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=text)


def exit_status(errors: Sequence[Optional[RelvmoiscsiError]], is_partial: bool = False) -> int:
    """Return the exit status for results with these errors, None for a good result.

    Where every result has an error, nothing is done in part: the status is the highest of the errors. `is_partial`:
    some work is done and some is not, whatever the errors; a single result has its error's status all the same.
    """
    if errors and all(errors) and (len(errors) == 1 or not is_partial):
        return max(error.exit_status for error in errors if error is not None)
    return Partial.exit_status if is_partial or any(errors) else 0


def user_and_pool(arguments: argparse.Namespace) -> Tuple[str, str]:
    """Return the user and the pool from the options and the environment."""
    pool = arguments.pool or os.environ.get(_NAMES["host"]) or LOCAL
    user = arguments.user or os.environ.get(_NAMES["user"]) or "root"
    return user, LOCAL if pool == "localhost" else pool  # localhost: the default of the Ansible modules


def where(arguments: argparse.Namespace) -> Where:
    """Return the address and the credentials from the options and the environment. Raises UsageError."""
    user, pool = user_and_pool(arguments)
    password = os.environ.get(_NAMES["password"], "")
    if arguments.password_file:
        password = first_line(arguments.password_file)
    if pool != LOCAL and not password:
        raise UsageError("The password is missing.").advising("Give --password-file, or set XENSERVER_PASSWORD.")
    return Where(pool, user, password, arguments.ca, arguments.insecure)


class PoolCommand(Asked):
    """A command on a pool, with its options: those that name the pool, and the options of all."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises UsageError for words that are wrong in form. What is in a file or in the pool is for `run`.

        A pool in the environment is verified too, before a log names it: the text may have a password.
        """
        self.json, self.quiet = bool(arguments.json), bool(arguments.quiet)
        self.given, self.so_far = arguments, SoFar()
        url_of(Where(user_and_pool(arguments)[1], ca=arguments.ca))

    def run(self) -> Answer:
        raise NotImplementedError

    def noted(self, text: str) -> None:
        self.so_far.note(night_log.ASKED, text)

    def note(self, text: str) -> None:
        """Say what is neither an error, a warning nor a question, and write it to the log."""
        self.so_far.note(night_log.NOTE, text)
        if not self.quiet:
            say(printable(text))

    def warn(self, text: str) -> None:
        """Say a warning, also with --quiet, and write it to the log."""
        self.so_far.note(night_log.WARNING, text)
        say("warning: " + printable(text))

    @contextmanager
    def opened(self) -> Iterator[Tuple[Calls, Pool]]:
        """Open a session, and read the pool. Raises NoConnection and PoolFailure."""
        gc.enable()  # other commands end before a collection pays off
        with ExitStack() as stack:
            with waiting("the answer of the pool"):
                calls = stack.enter_context(connect(where(self.given)))
                pool = records.read(calls)
            try:
                yield calls, pool
            finally:
                for note in calls.notes:
                    self.warn(note)


class PoolChange(PoolCommand):
    """A command that changes the pool, with the options of `changes`."""

    beside_yes = ""  #: the options that --yes may need, if the person has given none of them

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.yes: bool = arguments.yes
        self.dry_run: bool = arguments.dry_run

    @contextmanager
    def opened(self) -> Iterator[Tuple[Calls, Pool]]:
        """Open a session, and read the pool. Raises PoolFailure, and UsageError where a question has no terminal."""
        must_be_able_to_ask(self, self.beside_yes)
        with super().opened() as found:
            yield found

    def show(self, plan: Answer) -> None:
        """Print the plan before the question, and write the plan to the log. Raises UsageError where stderr fails."""
        self.so_far.note(night_log.PLAN, *night_log.events(plan.text))
        tell(plan)

    @contextmanager
    def work(self, name: str, what: str) -> Iterator[None]:
        """Report one change to `so_far` for the block."""
        with self.so_far.work(), self.so_far.one(name, what):
            yield


#: called with name, class, summary and text of a command of `relvmoiscsi pool`; returns its parser
CommandMaker = Callable[[str, Type[PoolCommand], str, str], argparse.ArgumentParser]
