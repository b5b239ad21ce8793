# SPDX-License-Identifier: LGPL-2.1-only
"""The command: show | check | resignature | recover | undo on a LUN; doctor | settings | direct on a host; pool; map.

Results go to stdout, messages to stderr; with --json, stdout is one JSON object. errors.py lists the exit statuses.
`overview` lists the commands, `parser` finds their modules, and `on_lun` has the common code of the commands on a LUN.
`main` imports all other modules while it runs: Ctrl-C during the imports ends the command without a traceback, and
--help imports little.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a type checker takes TYPE_CHECKING for true
    from argparse import Namespace
    from typing import Any, Dict, List, Optional, Sequence

    from relvmoiscsi.cli.output import Answer

EXIT_USAGE = 2  #: of UsageError, and of the argument parser
EXIT_BUG = 70
EXIT_NOT_PRINTED = 74  #: as in sysexits.h, like EXIT_BUG
EXIT_INTERRUPTED = 130
_AGAIN = " Repeat the command."


def main(argv: "Optional[Sequence[str]]" = None) -> int:
    """Run the command; return its exit status."""
    state = " Nothing was written." + _AGAIN
    try:
        with _OneCtrlC():
            try:
                words = _without_help(list(sys.argv[1:] if argv is None else argv))
                if words in ([], ["-h"], ["--help"]):  # the parser takes as long to import as the interpreter to start
                    from relvmoiscsi.cli import overview  # noqa: PLC0415
                    from relvmoiscsi.cli.output import print_text  # noqa: PLC0415

                    is_printed = print_text(overview.page())
                    return (0 if words else EXIT_USAGE) if is_printed else EXIT_NOT_PRINTED
                from relvmoiscsi.cli.parser import make_parser, separated  # noqa: PLC0415

                parser = make_parser([word for word in words if not word.startswith("-")][:1])
                arguments = parser.parse_args(separated(words))
                if arguments.run is None:
                    parser.print_help()
                    return EXIT_USAGE
                arguments.words = ("relvmoiscsi", *words)
                state = _how_to_tell(arguments) or _AGAIN
                return _run(arguments)
            except KeyboardInterrupt:  # outside the handler of `_run`
                return _say_early(state)
    except KeyboardInterrupt:  # before the first line, or behind the last line, of the block
        return _say_early(state)


def _say_early(state: str) -> int:
    from relvmoiscsi.cli.output import say  # noqa: PLC0415

    say("Interrupted." + state)
    return EXIT_INTERRUPTED


def _without_help(words: "List[str]") -> "List[str]":
    """Return the words with `help` and `version`, in the place of a command, as the options that they mean."""
    if words[:1] == ["version"]:
        return ["--version", *words[1:]]
    at = 1 if words[:1] in (["pool"], ["direct"]) else 0
    if words[at : at + 1] == ["help"]:
        return [*words[:at], *words[at + 1 :], "--help"]
    return words


def _run(arguments: "Namespace") -> int:
    import logging  # noqa: PLC0415 - --help needs none of these imports

    from relvmoiscsi.cli.output import RED, LogFormatter, print_result, print_text, say  # noqa: PLC0415
    from relvmoiscsi.errors import RelvmoiscsiError, error_facts  # noqa: PLC0415
    from relvmoiscsi.json_answer import answer_text  # noqa: PLC0415
    from relvmoiscsi.wording import printable, with_options  # noqa: PLC0415

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(arguments.verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    is_on_lun = hasattr(arguments, "device")
    facts: Dict[str, Any] = {}
    try:
        answer: Answer = arguments.run(arguments)
        if arguments.json:
            is_printed = print_result(answer_text(arguments.command, answer.facts, indent=2))
        else:
            is_printed = arguments.quiet or print_text(answer.text)
        return answer.status if is_printed else EXIT_NOT_PRINTED
    except RelvmoiscsiError as error:
        if hasattr(arguments, "vdis"):
            error.message = with_options(error.message)
        if arguments.json and is_on_lun:
            from relvmoiscsi.cli.on_lun import failure_facts  # noqa: PLC0415

            facts = failure_facts(arguments, error)
        if arguments.json:
            print_result(answer_text(arguments.command, {**facts, **error_facts(error)}, indent=2))
        say(printable(str(error)), RED)
        return error.exit_status
    except KeyboardInterrupt as stop:
        message, state = "Interrupted.", str(stop)
        if arguments.json and not is_on_lun:  # the LUN may be the device that does not answer
            facts = {
                "kind": "Interrupted",
                "exit_status": EXIT_INTERRUPTED,
                "message": message,
                "disk_state": state,
            }
            facts = {"error": facts, **getattr(stop, "facts", {})}
            print_result(answer_text(arguments.command, facts, indent=2))
        say(message + (" " + printable(state) if state else _how_to_tell(arguments) or _AGAIN))
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - a bug: print the traceback, and return EXIT_BUG
        import traceback  # noqa: PLC0415

        say(traceback.format_exc().rstrip())
        say("This is a bug." + _how_to_tell(arguments), RED)
        return EXIT_BUG


class _OneCtrlC:
    """Treat SIGTERM and SIGHUP as Ctrl-C: from kill, timeout, systemd, a closed terminal, a lost SSH connection.

    After the first signal, the block ignores the others. Otherwise a second Ctrl-C would end the clean-up and the
    message on the state of the LUN. Only the main thread may set signal handlers. A signal that is ignored or has a
    handler stays unchanged. `_signal` is in the interpreter: nothing is loaded before the first handler is set.
    """

    def __enter__(self) -> None:
        signals: Any = __import__("_signal")

        usual: List[Any] = [(signals.SIGTERM, signals.SIG_DFL), (signals.SIGHUP, signals.SIG_DFL)]
        usual.append((signals.SIGINT, signals.default_int_handler))
        self._before = [(number, before) for number, before in usual if signals.getsignal(number) == before]
        try:
            for number, _before in self._before:
                signals.signal(number, self._stop)
        except ValueError:  # not the main thread
            self._before = []

    def _stop(self, *_signal: object) -> None:
        signals: Any = __import__("_signal")

        for number, _before in self._before:
            signals.signal(number, _ignored)
        raise KeyboardInterrupt

    def __exit__(self, *_error: object) -> None:
        signals: Any = __import__("_signal")

        for number, before in self._before:
            signals.signal(number, before)


def _ignored(*_signal: object) -> None:
    """Do nothing: a child process would inherit SIG_IGN."""


def _how_to_tell(arguments: "Namespace") -> str:
    if not hasattr(arguments, "device"):
        return ""
    from relvmoiscsi.wording import command  # noqa: PLC0415

    return f" {command('relvmoiscsi', 'show', arguments.device)} shows the state of {arguments.device}."
