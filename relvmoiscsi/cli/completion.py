# SPDX-License-Identifier: LGPL-2.1-only
"""What `relvmoiscsi --completion` prints: a script by which bash or zsh completes the words of the command.

Everything in it comes from the command's parser: commands, options, the values of an option that has few, and whether a
value is the name of a file.
"""

import argparse
from typing import Iterator, List, Tuple

#: what a value or an argument is called if it is a file or a device
_FILES = ("DEVICE", "DIR", "FILE")
_WORDS = ("help", "version")  #: what `main` takes in the place of a command

TABLES = """\
# Completion of the words of relvmoiscsi(8) in {shell}. Made from the command's parser: --completion

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
"""

#: a name of a file is left to readline, which knows the quotes of the word; bash 3.2 has neither compopt nor mapfile
BASH = """
_relvmoiscsi() {
    local current=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} command='' known n
    if [[ $current == = ]]; then current=''; fi # --option=value is three words
    if [[ $last == = ]]; then last=${COMP_WORDS[COMP_CWORD - 2]}; fi
    for ((n = 1; n < COMP_CWORD; n++)); do
        known=" $(_relvmoiscsi_words "$command") "
        if [[ ${COMP_WORDS[n]} != -* && $known == *" ${COMP_WORDS[n]} "* ]]; then
            command="${command:+$command }${COMP_WORDS[n]}"
        fi
    done
    known=$(_relvmoiscsi_value "$command" "$last") || known=$(_relvmoiscsi_words "$command")
    COMPREPLY=()
    if [[ " $known " != *" FILE "* || $current == -* ]]; then
        compopt +o default 2>/dev/null
        COMPREPLY=($(compgen -W "${known//FILE/}" -- "$current"))
    fi
}

complete -o default -F _relvmoiscsi relvmoiscsi
"""

#: a file of a directory in $fpath is loaded by its name, which is that of the function
ZSH = """
_relvmoiscsi() {
    local current=$words[CURRENT] last=$words[CURRENT-1] command='' known n
    if [[ $current == --*=* ]]; then
        last=${current%%=*} current=${current#*=}
        compset -P '*='
    fi
    for ((n = 2; n < CURRENT; n++)); do
        known=" $(_relvmoiscsi_words "$command") "
        if [[ $words[n] != -* && $known == *" $words[n] "* ]]; then
            command="${command:+$command }$words[n]"
        fi
    done
    known=$(_relvmoiscsi_value "$command" "$last") || known=$(_relvmoiscsi_words "$command")
    if [[ " $known " == *" FILE "* && $current != -* ]]; then
        _files
    else
        compadd -- ${=known//FILE/}
    fi
}

if [[ $funcstack[1] == _relvmoiscsi ]]; then
    _relvmoiscsi "$@"
else
    compdef _relvmoiscsi relvmoiscsi
fi
"""

#: shell -> what follows the tables
SHELLS = {"bash": BASH, "zsh": ZSH}


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for one of `overview.SHELLS`. `parser` is the parser of all commands."""
    words, values = [], []
    row = "        '{}') echo '{}' ;;"
    for name, each in parsers(parser):
        known: List[str] = []
        for action in each._actions:
            file = ["FILE"] if action.metavar in _FILES else []
            if isinstance(action, argparse._SubParsersAction):
                commands = [listed.dest for listed in action._choices_actions]
                known += [*commands, *_WORDS]
                helped = {f"{name} help".strip(), f"help {name}".strip()}
                words += [row.format(asked, " ".join(commands)) for asked in sorted(helped)]
            elif action.help != argparse.SUPPRESS:
                known += action.option_strings or file
            if action.option_strings and action.nargs != 0:
                value = " ".join(map(str, action.choices or file))
                values += [row.format(f"{name} {option}", value) for option in action.option_strings]
        words.append(row.format(name, " ".join(known)))
    head = "#compdef relvmoiscsi\n" if shell == "zsh" else ""
    return head + TABLES.format(shell=shell, words="\n".join(words), values="\n".join(values)) + SHELLS[shell]


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[Tuple[str, argparse.ArgumentParser]]:
    """Yield every command that --help lists, by its words, and the command without any."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                yield from parsers(action.choices[listed.dest], f"{name} {listed.dest}".strip())
