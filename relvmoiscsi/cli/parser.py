# SPDX-License-Identifier: LGPL-2.1-only
"""The words of a command line: the commands, and the arguments of the one that is named."""

import argparse
import importlib
import re
from types import ModuleType
from typing import Any, Iterable, List, Optional

from relvmoiscsi import __version__
from relvmoiscsi.cli import overview
from relvmoiscsi.cli.output import Command


def separated(words: Iterable[str]) -> List[str]:
    """The words with -vv as -v -v. Before 3.8, a parser without abbreviations does not take it apart (bpo-26967)."""
    return [part for word in words for part in (["-v"] * (len(word) - 1) if re.match("-v{2,}$", word) else [word])]


class Parser(argparse.ArgumentParser):
    """Takes an option by its whole name alone: half of one must not mean --not-in-use. So do its commands' parsers.

    Options may stand between the other words. (parse_intermixed_args, of Python 3.7, does not work with commands.)
    """

    def __init__(self, prog: Optional[str] = None, **more: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None and self._subparsers is None:
            args = self._options_first(list(args))
        return super().parse_known_args(args, namespace)

    def _options_first(self, words: List[str]) -> List[str]:
        """The same words, the options with their values before the others. Words that lack a value are left as they
        are: argparse says what is missing.
        """
        options: List[str] = []
        others: List[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                return [*options, *others, word, *left]
            action = self._option_string_actions.get(word)
            if action is None:
                (options if word.startswith("-") and word != "-" else others).append(word)
                continue
            options.append(word)
            if action.nargs != 0:
                if action.nargs is not None or not left or left[0].startswith("-"):
                    return words
                options.append(left.pop(0))
        return [*options, *others]


class _TopParser(Parser):
    """Prints the page of `overview`, which is the same on every Python."""

    def format_help(self) -> str:
        return overview.page() + "\n"


def make_parser(whole: Iterable[str] = overview.COMMANDS) -> argparse.ArgumentParser:
    """The parser, with the arguments of the commands in `whole`. The others are listed: udev waits for one of them."""

    def plain(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100)

    parser = _TopParser("relvmoiscsi", formatter_class=plain)
    parser.add_argument("--version", action="version", version="relvmoiscsi " + __version__)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", prog="relvmoiscsi", parser_class=Parser)

    for name, what in overview.COMMANDS.items():
        sub = commands.add_parser(name, help=what, formatter_class=plain)
        if name in whole:
            _describe(sub, what, _module(name))
    return parser


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module("relvmoiscsi.cli." + name)
    except ModuleNotFoundError as error:
        if error.name != "relvmoiscsi.cli." + name:
            raise
        return importlib.import_module("relvmoiscsi.cli.not_installed")


def _describe(sub: argparse.ArgumentParser, what: str, module: ModuleType) -> None:
    def command(run: Command, more: str) -> argparse.ArgumentParser:
        sub.description = what + ".\n\n" + more
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
        sub.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=0,
            help="print more on stderr; twice: every command and its output",
        )
        return sub

    module.add_command(command)
