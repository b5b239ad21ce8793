# SPDX-License-Identifier: LGPL-2.1-only
"""The argument parser: all commands, and the arguments of the given command."""

import argparse
import importlib
import os
import re
import sys
from typing import Any, Iterable, List, NoReturn, Optional

from relvmoiscsi import __version__
from relvmoiscsi.cli import overview
from relvmoiscsi.cli.output import (
    RED,
    Command,
    Unheard,
    fitted,
    painted,
    print_result,
    takes_output_options,
    width,
    wrapped,
)
from relvmoiscsi.errors import NotInstalled, UsageError
from relvmoiscsi.wording import nearest, printable_lines, shell_command

#: the module of each command: imported only for a run of that command
_MODULES = {
    "show": "cli.reading",
    "check": "cli.reading",
    "resignature": "cli.resignature",
    "recover": "cli.recover",
    "undo": "cli.recover",
    "map": "cli.map",
    "doctor": "doctor.doctor_command",
    "settings": "cli.settings_command",
    "direct": "direct.direct_command",
    "pool": "pool.commands.pool_command",
}


def separated(words: Iterable[str]) -> List[str]:
    """Return the words with -vv as -v -v: before Python 3.8, a parser without abbreviations rejects -vv (bpo-26967).

    Behind `--`, the word is a name.
    """
    given = list(words)
    end = given.index("--") if "--" in given else len(given)
    parts = [["-v"] * (len(word) - 1) if re.match("-v{2,}$", word) else [word] for word in given[:end]]
    return [part for each in parts for part in each] + given[end:]


#: how a person gives a name that may be an option, to every command
_DASH = "A name that begins with a dash stands behind `--`."
_DASHED_VALUE = "A value that begins with a dash stands behind `=`: {}=..."

#: what a person means by the name of another program's command, by the program and the word
_MEANT = {
    "relvmoiscsi": {
        **dict.fromkeys(("compare", "diff"), "check CLONE --original ORIGINAL"),
        "verify": "check DEVICE",
        **dict.fromkeys(("revert", "rollback"), "undo DEVICE"),
        **dict.fromkeys(("info", "status", "list"), "show DEVICE"),
    },
    "relvmoiscsi pool": {"list": "luns"},
}


def _meant(prog: str, word: str, names: Iterable[str]) -> List[str]:
    """Return the commands that a person means by a word behind `prog`; [] where no word is near."""
    known = {name: [name] for name in (*names, "help", *(["version"] if prog == "relvmoiscsi" else []))}
    others = [(other, words) for other, words in _MEANT.get(prog, {}).items()]
    others += [(each, f"{name} {each}") for name, group in overview.GROUPS.items() if name in known for each in group]
    for other, words in others:
        known.setdefault(other, []).append(words)
    return [words for each in ([word] if word in known else nearest(word, known)) for words in known[each]]


def _may_be_name(word: str) -> bool:
    """May a person mean a word with one dash as a name? A single letter is an option of another command."""
    return len(word) > 2


def _nearest_option(word: str, options: Iterable[str]) -> List[str]:
    """Return the option that a person means by a word; [] where none is near. The dashes make no two options near."""
    name = word.partition("=")[0]
    known = {option.lstrip("-"): option for option in options if option == name or option.startswith("--")}
    return [known[each] for each in nearest(name.lstrip("-"), known)]


class Parser(argparse.ArgumentParser):
    """Accepts only whole option names, so that no prefix means --not-in-use. The parsers of the commands do the same.

    Options may stand between the other words. (parse_intermixed_args, of Python 3.7, does not work with commands.)
    """

    def __init__(self, prog: Optional[str] = None, **more: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **more)
        self._dashed: List[str] = []  #: words that begin as an option does, and are none
        self._lacks_value = ""  #: the option before a word that begins as an option does, and is none

    def print_help(self, file: Any = None) -> None:
        """Print the help on stdout. If that fails, end the command as for any other result."""
        status = print_result(wrapped(self.format_help().rstrip("\n"), width(sys.stdout)))
        if status:
            sys.exit(status)

    def error(self, message: str) -> NoReturn:
        """Print the usage of this command and the error, and end."""
        dashed = self._dashed if "required" in message else []
        message += "".join(f". {word} is no option." for word in dashed[:1])
        message += "".join(f" {_DASH}" for word in dashed[:1] if _may_be_name(word))
        if self._lacks_value and "expected one argument" in message:
            message += f". {_DASHED_VALUE.format(self._lacks_value)}"
        self._end(f"{self.format_usage()}{self.prog}: error: {message}")

    def _end(self, told: str) -> NoReturn:
        text = fitted(printable_lines(told), sys.stderr)
        Unheard(sys.stderr).write(painted(sys.stderr, text, RED) + "\n")
        sys.exit(UsageError.exit_status)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return what a word means. End the command for a word that is wrong in form, as a refused URL."""
        try:
            return super()._get_value(action, arg_string)
        except UsageError as refused:
            self.error(str(argparse.ArgumentError(action, refused.told)))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = [listed.dest for listed in action._choices_actions]
            near = [f"{self.prog} {words}" for words in _meant(self.prog, value, names)]
            if "show" in names and ("/" in value or os.path.isfile(value)):
                near.append(shell_command("relvmoiscsi show", value))
            told = "".join(f" Did you mean `{words}`?" for words in near)
            self.error(f"there is no command {value!r}.{told} The commands: {', '.join(names)}.")
        super()._check_value(action, value)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Give argparse the options and their values first. If an option lacks its value, argparse reports that."""
        if args is None or self._subparsers is not None:
            return self._all_known(super().parse_known_args(args, namespace))
        self._dashed, self._lacks_value = [], ""
        words = list(args)
        options: List[str] = []
        others: List[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                others += [word, *left]
                break
            action = self._option_string_actions.get(word)
            if action is None:
                is_option = self._parse_optional(word) is not None  # not "-a mail", and not -1
                self._dashed += [word] if is_option and not word.startswith("--") else []
                (options if is_option else others).append(word)
                continue
            options.append(word)
            if action.nargs != 0:
                if action.nargs is not None or not left or left[0].startswith("-"):
                    is_option = not left or left[0].partition("=")[0] in ("--", *self._option_string_actions)
                    self._lacks_value = word if word.startswith("--") and not is_option else ""
                    return self._all_known(super().parse_known_args(words, namespace))
                options.append(left.pop(0))
        return self._all_known(super().parse_known_args([*options, *others], namespace))

    def _all_known(self, parsed: Any) -> Any:
        """Return what was parsed, with `usage` of the innermost command: a command for which words are wrong shows it.

        End the command for an unknown word, with the nearest option. Where an option is unknown, the error names no
        other word: another word may be the value of the option, and what argparse took for a name may be as well.
        """
        unknown = parsed[1]
        parsed[0].usage = getattr(parsed[0], "usage", self.format_usage)
        if unknown:
            command = parsed[0].usage.__self__  # the innermost: of a group, the unknown words stand before the command
            options = command._option_string_actions
            dashed = [word for word in unknown if word.startswith("-")]
            meant = [name for word in dashed for name in _nearest_option(word, options)]
            near = [
                f"Did you mean {name}?" if command is self else f"Did you mean `{command.prog} {name}`?"
                for name in meant
            ]
            if command is self and unknown[0] in options:  # behind `--`
                near = ["Options stand before `--`."]
            elif unknown[0] in self._dashed and _may_be_name(unknown[0]) and not near:
                near = [_DASH]
            if hasattr(parsed[0], "device") and not dashed:
                near.append("This command takes one DEVICE only.")
                near += ["Did you mean --original?"] if getattr(parsed[0], "original", "") is None else []
            self.error("\n".join(["unrecognized arguments: " + " ".join(dashed or unknown), *near]))
        return parsed


class _Told(argparse.Action):
    """Prints the version, or the script by which a shell completes the words of the command, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, _space: Any, shell: Any, _option: Any = None) -> NoReturn:
        text = "relvmoiscsi " + __version__
        if getattr(parser, "is_json", False):
            from relvmoiscsi.json_answer import answer_text  # noqa: PLC0415 - udev waits

            text = answer_text("version", {"version": __version__}, indent=2)
        if shell:
            from relvmoiscsi.cli import completion  # noqa: PLC0415 - udev waits

            text = completion.script(shell, make_parser(overview.COMMANDS)).rstrip("\n")
        sys.exit(print_result(text))


class _TopParser(Parser):
    """Prints the overview, which is equal on every Python."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.is_json = "--json" in (args or ())  #: for --version, which ends before the words behind it are parsed
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        return overview.page(width(sys.stdout)) + "\n"


class _Help(argparse.HelpFormatter):
    """Fits the help to the terminal, up to 100 columns. A paragraph with indented lines stays unchanged.

    No line ends inside an option such as --with-vms, or inside a command.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(width(sys.stdout), 100))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if "\n  " in part else "\n".join(self._split_lines(part, width)) for part in parts)

    def _split_lines(self, text: str, width: int) -> List[str]:
        return wrapped(" ".join(text.split()), width, 0).split("\n")


def make_parser(whole: Iterable[str] = tuple(overview.COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of the commands in `whole` only: udev waits for `direct udev`.

    If `whole` has no command, the parser knows the name of each command: argparse lists the names in its error.
    """
    parser = _TopParser("relvmoiscsi", formatter_class=_Help)
    parser.add_argument("--version", action=_Told, nargs=0, help="show program's version number and exit")
    what = "print the script by which bash or zsh completes words"
    parser.add_argument("--completion", action=_Told, choices=overview.SHELLS, metavar="SHELL", help=what)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", prog="relvmoiscsi", parser_class=Parser)

    wanted = [name for name in overview.COMMANDS if name in whole]
    for name in wanted or overview.COMMANDS:
        what = overview.COMMANDS[name]
        sub = commands.add_parser(name, help=what, formatter_class=_Help)
        if wanted:
            _add_command(name, sub, what[:1].upper() + what[1:] + ".\n\n")
    return parser


def _add_command(name: str, sub: argparse.ArgumentParser, what: str) -> None:
    """Add the arguments of a command to its parser. In dom0, `relvmoiscsi pool` has a package of its own."""

    def command(run: Command, more: str) -> argparse.ArgumentParser:
        sub.description = what + more
        sub.set_defaults(run=run, command=name)
        takes_output_options(sub)
        return sub

    def not_installed(_arguments: argparse.Namespace) -> NoReturn:
        raise NotInstalled("The command `relvmoiscsi pool` is not installed here.").advising(
            "Install its package, which is built beside that of "
            f"relvmoiscsi: `yum install ./relvmoiscsi-pool-{__version__}-1.noarch.rpm`. It may run on any other "
            "machine as well: `pip install .` in a clone of its repository."
        )

    module = "relvmoiscsi." + _MODULES[name]
    try:
        getattr(importlib.import_module(module), "add_" + name)(command)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the command imports a module that is not there
            raise
        command(not_installed, "It is not installed.").prefix_chars = "\0"  # the parser takes options as words
        sub.add_argument("words", nargs="*", help=argparse.SUPPRESS)
