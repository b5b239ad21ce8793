# SPDX-License-Identifier: LGPL-2.1-only
"""The command: relvmoiscsi show | check | resignature | recover | undo, on a LUN; doctor, settings and direct, on a
host; pool, on a whole pool; map.

Results go to stdout, talk to stderr; with --json, stdout is one JSON object. Exit statuses: errors.py. Each command has
the module of its name here, which adds its parser and runs it; `on_lun` is what those on a LUN share.
"""

import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from relvmoiscsi.cli import overview
from relvmoiscsi.cli.output import Answer, print_result, say

if TYPE_CHECKING:
    from argparse import Namespace

    from relvmoiscsi.errors import RelvmoiscsiError

EXIT_USAGE = 2  #: of UsageError, and of the parser
EXIT_BUG = 70
EXIT_NOT_PRINTED = 74  #: as in sysexits.h, like 70
EXIT_INTERRUPTED = 130


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command; gives its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in ([], ["-h"], ["--help"]):  # needs nothing of what follows
        is_printed = print_result(overview.page())
        return (0 if words else EXIT_USAGE) if is_printed else EXIT_NOT_PRINTED
    from relvmoiscsi.cli.parser import make_parser, separated  # noqa: PLC0415

    parser = make_parser(_named(words))
    arguments = parser.parse_args(separated(words))
    if arguments.run is None:
        parser.print_help()
        return EXIT_USAGE
    return _run(arguments)


def _named(words: Sequence[str]) -> List[str]:
    """The command that is to be run; none if the words name none."""
    return [word for word in words if not word.startswith("-")][:1]


def _run(arguments: "Namespace") -> int:
    import logging  # noqa: PLC0415 - --help needs none of these

    from relvmoiscsi import errors  # noqa: PLC0415
    from relvmoiscsi.cli.device_word import check_login  # noqa: PLC0415
    from relvmoiscsi.cli.signals import end_as_ctrl_c  # noqa: PLC0415

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(arguments.verbose, 2)]
    logging.basicConfig(level=level, format="relvmoiscsi: %(message)s", stream=sys.stderr)
    try:
        check_login(arguments)
        with end_as_ctrl_c():
            answer: Answer = arguments.run(arguments)
    except errors.RelvmoiscsiError as error:
        return _say_failure(arguments, error)
    except KeyboardInterrupt as stop:
        return _say_interrupted(arguments, str(stop), getattr(stop, "facts", {}))
    except Exception:  # noqa: BLE001 - a bug: say so with its traceback, under an exit status of its own
        import traceback  # noqa: PLC0415

        say(traceback.format_exc().rstrip())
        say("This is a bug." + _how_to_tell(arguments))
        return EXIT_BUG
    is_printed = print_result(_json(answer.facts) if arguments.json else answer.text)
    return answer.status if is_printed else EXIT_NOT_PRINTED


def _say_failure(arguments: "Namespace", error: "RelvmoiscsiError") -> int:
    from relvmoiscsi.wording import error_facts, printable  # noqa: PLC0415

    if arguments.json:
        facts: Dict[str, Any] = {}
        if hasattr(arguments, "device"):
            from relvmoiscsi.cli.on_lun import failure_facts  # noqa: PLC0415

            facts = failure_facts(arguments, error)
        print_result(_json(dict(facts, **error_facts(error))))
    say(printable(str(error)))
    return error.exit_status


def _say_interrupted(arguments: "Namespace", state: str, facts: Dict[str, Any]) -> int:
    from relvmoiscsi.wording import printable  # noqa: PLC0415

    if arguments.json and not hasattr(arguments, "device"):  # a LUN may be what does not answer
        error = {"kind": "Interrupted", "exit_status": EXIT_INTERRUPTED, "message": "Interrupted.", "disk_state": state}
        print_result(_json({"error": error, **facts}))
    say("Interrupted." + (" " + printable(state) if state else _how_to_tell(arguments)))
    return EXIT_INTERRUPTED


def _json(facts: Dict[str, Any]) -> str:
    import json  # noqa: PLC0415

    return json.dumps(facts, indent=2)


def _how_to_tell(arguments: "Namespace") -> str:
    if not hasattr(arguments, "device"):
        return ""
    return f" `relvmoiscsi show {arguments.device}` shows the state of {arguments.device}."
