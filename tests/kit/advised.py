# SPDX-License-Identifier: LGPL-2.1-only
"""Commands that a message tells a person to run: a shell takes them as they stand, and so does the program."""

import argparse
import re
import shlex
from functools import lru_cache

from relvmoiscsi.cli import overview
from relvmoiscsi.cli.parser import make_parser, separated

#: in backticks, behind the word that says when, or alone on an indented line
ADVISED = re.compile(
    r"`((?:relvmoiscsi|xe) [^`]+)`"
    r"|^ *(?:next|later|or): +((?:relvmoiscsi|xe) .+)$"
    r"|^ +((?:relvmoiscsi|xe) .+)$",
    re.MULTILINE,
)
#: xe's commands with the parameters that each needs; `a|b`: one of them.
#: Source: xen-api ocaml/xapi-cli-server/cli_frontend.ml
XE = {
    "host-call-plugin": "host-uuid plugin fn",
    "host-list": "",
    "network-list": "",
    "pbd-create": "host-uuid sr-uuid",
    "pbd-list": "",
    "pbd-plug": "uuid",
    "pbd-unplug": "uuid",
    "pif-list": "",
    "pool-param-set": "uuid",
    "sr-create": "name-label type",
    "sr-forget": "uuid",
    "secret-create": "value",
    "secret-list": "",
    "sr-introduce": "uuid type name-label",
    "sr-list": "",
    "sr-param-add": "uuid param-name",
    "sr-param-clear": "uuid param-name",
    "sr-param-get": "uuid param-name",
    "sr-param-remove": "uuid param-name param-key",
    "sr-param-set": "uuid",
    "sr-probe": "type",
    "sr-scan": "uuid",
    "task-cancel": "uuid",
    "task-list": "",
    "snapshot-reset-powerstate": "uuid force",
    "vbd-create": "vm-uuid vdi-uuid device",
    "vbd-destroy": "uuid",
    "vbd-eject": "uuid",
    "vbd-list": "",
    "vbd-plug": "uuid",
    "vbd-unplug": "uuid",
    "vdi-copy": "uuid",
    "vdi-destroy": "uuid",
    "vdi-disable-cbt": "uuid",
    "vdi-forget": "uuid",
    "vdi-introduce": "uuid sr-uuid type location",
    "vdi-list": "",
    "vdi-param-remove": "uuid param-name param-key",
    "vdi-param-set": "uuid",
    "vdi-pool-migrate": "uuid sr-uuid",
    "vif-move": "uuid network-uuid",
    "vm-copy": "uuid new-name-label",
    "vm-destroy": "uuid",
    "vm-list": "",
    "vm-param-get": "uuid param-name",
    "vm-param-remove": "uuid param-name param-key",
    "vm-reset-powerstate": "uuid force",
    "vm-shutdown": "uuid|vm",
    "vm-start": "uuid|vm",
    "vm-uninstall": "uuid|vm",
}


def commands_in(text):
    """The commands of the text. A backslash at the end of a line continues a command."""
    return [next(filter(None, found)) for found in ADVISED.findall(text.replace("\\\n", ""))]


def problem_of(command):
    """Why a person cannot run the command as it stands; "" where nothing is wrong."""
    try:
        program, *words = shlex.split(command.rstrip("."))
    except ValueError as error:
        return str(error)
    return _problem_for_xe(words) if program == "xe" else _problem_for_us(words)


def _problem_for_xe(words):
    if words[0] not in XE:
        return f"xe has no command {words[0]} in the table"
    given = {word.partition("=")[0].partition(":")[0] for word in words[1:]}
    missing = [names for names in XE[words[0]].split() if not given & set(names.split("|"))]
    return f"xe {words[0]} needs {missing}" if missing and words[1:] else ""  # a command alone is only its name


@lru_cache(maxsize=None)
def _parser():
    return make_parser()


def _problem_for_us(words):
    try:
        _parser().parse_args(separated(words))
    except SystemExit as ended:
        return "" if not ended.code or _is_name(words) else "our own parser refuses it"
    except argparse.ArgumentError as error:
        return str(error)
    return ""


def _is_name(words):
    """Is it the name of a command, or of an option of the command, without its arguments?"""
    is_ours = words[0] in overview.COMMANDS or words[0] == "COMMAND"
    return is_ours and all(re.fullmatch("[a-z-]+|--[a-z-]+|COMMAND", word) for word in words) and len(words) < 4
