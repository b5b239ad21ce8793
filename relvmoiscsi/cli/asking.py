# SPDX-License-Identifier: LGPL-2.1-only
"""The question before the first change, for every command that has one."""

import argparse
import sys

from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError


def must_be_able_to_ask(arguments: argparse.Namespace) -> None:
    """Raises UsageError where a question would be asked and nobody is there."""
    if arguments.yes or getattr(arguments, "dry_run", False):
        return
    if arguments.json or sys.stdin is None or not sys.stdin.isatty():
        see_plan = ", or --dry-run to see the plan" if hasattr(arguments, "dry_run") else ""
        raise UsageError(f"Nobody can be asked here; say --yes{see_plan}.")


def ask(arguments: argparse.Namespace, question: str) -> None:
    """Go on only with a yes. Raises Refused."""
    if arguments.yes:
        return
    sys.stderr.write(question + " [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("Not confirmed.").in_state(NOTHING_WRITTEN)
