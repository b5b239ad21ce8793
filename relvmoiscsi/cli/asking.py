# SPDX-License-Identifier: LGPL-2.1-only
"""The question before the first change, for every command that has one."""

import argparse
import sys
from typing import Sequence

from relvmoiscsi.cli.output import write_text
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError


def must_be_able_to_ask(arguments: argparse.Namespace) -> None:
    """Raises UsageError where a question would be asked and nobody is there."""
    if arguments.yes or getattr(arguments, "dry_run", False):
        return
    if arguments.json or sys.stdin is None or sys.stderr is None or not sys.stdin.isatty():
        see_plan = ", or --dry-run to see the plan" if hasattr(arguments, "dry_run") else ""
        raise UsageError(f"No terminal to confirm on: use --yes{see_plan}.")


def ask(arguments: argparse.Namespace, question: str) -> None:
    """Go on only with a yes. Raises Refused."""
    if not arguments.yes:
        _go_on_with(("y", "yes"), _typed(question + " [y/N] ").lower())


def ask_for(arguments: argparse.Namespace, question: str, word: str) -> None:
    """Go on only when the person types the word, which the question says what it is. Raises Refused."""
    if not arguments.yes:
        _go_on_with((word,), _typed(question + " "))


def tell(text: str, end: str = "\n") -> None:
    """Say what a person must have read who is asked. Raises UsageError where stderr takes nothing."""
    try:
        write_text(sys.stderr, text + end)
    except OSError as error:
        raise UsageError(f"The question cannot be shown: {error.strerror}. Use --yes.") from error


def _typed(question: str) -> str:
    tell(question, end="")
    return sys.stdin.readline().strip()


def _go_on_with(wanted: Sequence[str], typed: str) -> None:
    if typed not in wanted:
        raise Refused("Not confirmed.").in_state(NOTHING_WRITTEN)
