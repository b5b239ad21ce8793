# SPDX-License-Identifier: LGPL-2.1-only
"""The command: relvmoiscsi show | check | resignature | recover | undo, on a LUN; doctor and direct, on a host; map.

Results go to stdout, talk to stderr; with --json, stdout is one JSON object. Exit statuses: errors.py. Each command has
the module of its name here, which adds its parser and runs it; `on_lun` is what those on a LUN share.
"""

import argparse
import importlib
import json
import logging
import sys
import traceback
from types import ModuleType
from typing import List, Optional, Sequence

from relvmoiscsi import __version__
from relvmoiscsi.cli.output import Answer, Command, print_result, say
from relvmoiscsi.errors import RelvmoiscsiError, UsageError
from relvmoiscsi.wording import error_facts, printable

EXIT_BUG = 70
EXIT_NOT_PRINTED = 74  #: as in sysexits.h, like 70
EXIT_INTERRUPTED = 130

#: The commands, in the order of --help; each is the module of that name.
_COMMANDS = ("show", "check", "resignature", "recover", "undo", "map", "doctor", "direct")

_DESCRIPTION = """\
Give an array clone of a XenServer or XCP-ng SR (lvmoiscsi, lvmohba, lvm) new identities, so that it can be used
beside its original. DEVICE is a block device or an image file; it must be the clone.
"""

_EPILOG = """\
example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi resignature /dev/sdc
  relvmoiscsi check /dev/sdc --original /dev/sdb

exit status:
  0 done     2 usage     3 not found     4 refused: unsafe; doctor: not ready     5 unreadable or damaged
  6 a program failed     7 the device failed     8 an unfinished run: recover it     70 a bug
  74 it is done, but the result could not be printed     130 interrupted
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command; gives its exit status."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(words)
    arguments = parser.parse_args(words)
    if arguments.run is None:
        parser.print_help()
        return UsageError.exit_status
    logging.basicConfig(level=_log_level(arguments.verbose), format="relvmoiscsi: %(message)s", stream=sys.stderr)
    try:
        answer: Answer = arguments.run(arguments)
    except RelvmoiscsiError as error:
        return _failed(arguments, error)
    except KeyboardInterrupt:
        say("Interrupted." + _how_to_tell(arguments))
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - a bug: say so with its traceback, under an exit status of its own
        traceback.print_exc()
        say("This is a bug." + _how_to_tell(arguments))
        return EXIT_BUG
    is_printed = print_result(json.dumps(answer.facts, indent=2) if arguments.json else answer.text)
    return answer.status if is_printed else EXIT_NOT_PRINTED


def _log_level(verbose: int) -> int:
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


def _how_to_tell(arguments: argparse.Namespace) -> str:
    if not hasattr(arguments, "device"):
        return ""
    return f" `relvmoiscsi show {arguments.device}` tells what state {arguments.device} is in."


def _failed(arguments: argparse.Namespace, error: RelvmoiscsiError) -> int:
    if arguments.json:
        facts = _module("on_lun").failure_facts(arguments.device) if hasattr(arguments, "device") else {}
        print_result(json.dumps(dict(facts, **error_facts(error)), indent=2))
    say(printable(str(error)))
    return error.exit_status


def _module(name: str) -> ModuleType:
    return importlib.import_module("relvmoiscsi.cli." + name)


def _modules(words: Sequence[str]) -> List[ModuleType]:
    """The module of the command that `words` names, for udev waits for one of them; all, if it names none."""
    command = next((word for word in words if not word.startswith("-")), None)
    return [_module(name) for name in _COMMANDS if name == command or command not in _COMMANDS]


def _parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    def plain(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100)

    parser = argparse.ArgumentParser("relvmoiscsi", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=plain)
    parser.add_argument("--version", action="version", version="relvmoiscsi " + __version__)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def add(name: str, run: Command, what: str, more: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=what, description=what + ".\n\n" + more, formatter_class=plain)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
        sub.add_argument("-v", "--verbose", action="count", default=0, help="say more on stderr; twice: everything")
        return sub

    for module in _modules(words):
        module.add_command(add)
    return parser
