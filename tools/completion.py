#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Print supp-pack/relvmoiscsi.bash, by which bash completes the command's words. tools/docs.sh runs it.

Everything in it comes from the command's parser: commands, options, the values of an option that has few, and whether a
value is the name of a file.
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from relvmoiscsi.cli.parser import make_parser

#: what a value or an argument is called if it is a file or a device
FILES = ("DEVICE", "DIR", "FILE")

SCRIPT = """\
# SPDX-License-Identifier: LGPL-2.1-only
# Completion of the words of relvmoiscsi(8) in bash. Made from the command's parser: tools/docs.sh --update

# what may follow the command $1: its commands and options
_relvmoiscsi_words() {{
    case $1 in
{words}
    esac
}}

# what may follow the option $2 of the command $1: words, or FILE for the name of one; fails if no value follows
_relvmoiscsi_value() {{
    case "$1 $2" in
{values}
        *) return 1 ;;
    esac
}}

_relvmoiscsi() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD - 1]}} command='' known n
    for ((n = 1; n < COMP_CWORD; n++)); do
        known=" $(_relvmoiscsi_words "$command") "
        if [[ ${{COMP_WORDS[n]}} != -* && $known == *" ${{COMP_WORDS[n]}} "* ]]; then
            command="${{command:+$command }}${{COMP_WORDS[n]}}"
        fi
    done
    known=$(_relvmoiscsi_value "$command" "$last") || known=$(_relvmoiscsi_words "$command")
    COMPREPLY=()
    if [[ " $known " == *" FILE "* && $current != -* ]]; then
        compopt -o filenames 2>/dev/null || : # not while bash completes: a test
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -W "${{known//FILE/}}" -- "$current")
    fi
}}

complete -F _relvmoiscsi relvmoiscsi
"""


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[Tuple[str, argparse.ArgumentParser]]:
    """Every command that --help lists, by its words, and the command without any."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                yield from parsers(action.choices[listed.dest], f"{name} {listed.dest}".strip())


def words_of(parser: argparse.ArgumentParser) -> List[str]:
    """Commands and options, and FILE if an argument is one."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [listed.dest for listed in action._choices_actions]
        elif action.help != argparse.SUPPRESS:
            found += action.option_strings or (["FILE"] if action.metavar in FILES else [])
    return found


def values_of(parser: argparse.ArgumentParser) -> Dict[str, str]:
    """What follows each option that has a value."""
    found = {}
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            value = " ".join(map(str, action.choices)) if action.choices else "FILE" if action.metavar in FILES else ""
            found.update(dict.fromkeys(action.option_strings, value))
    return found


def script() -> str:
    words, values = [], []
    for name, parser in parsers(make_parser()):
        words.append(f"        '{name}') echo '{' '.join(words_of(parser))}' ;;")
        values += [f"        '{name} {option}') echo '{value}' ;;" for option, value in values_of(parser).items()]
    return SCRIPT.format(words="\n".join(words), values="\n".join(values))


if __name__ == "__main__":
    print(script(), end="")
