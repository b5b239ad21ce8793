# SPDX-License-Identifier: LGPL-2.1-only
"""The command: show | check | resignature | recover | undo on a LUN; doctor | settings | direct on a host; pool; map.

Results go to stdout, messages to stderr; with --json, stdout is one JSON object. errors.py lists the exit statuses.
`overview` lists the commands, `parser` finds their modules, and `on_lun` has the common code of the commands on a LUN.
`main` imports all other modules while it runs: Ctrl-C during the imports ends the command without a traceback, and
--help imports little. `running` runs the command that the parser has found.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a type checker takes TYPE_CHECKING for true
    from typing import Any, List, Optional, Sequence

EXIT_USAGE = 2  #: of UsageError, and of the argument parser
_AGAIN = " Repeat the command."
_UNWRITTEN = " Nothing was written." + _AGAIN


def main(argv: "Optional[Sequence[str]]" = None) -> int:
    """Run the command; return its exit status. Without `argv`, the words are those of this process, which then ends."""
    state = _UNWRITTEN
    try:
        with _OneCtrlC(is_last=argv is None) as ctrl_c:
            try:
                words = list(sys.argv[1:] if argv is None else argv)
                at = 1 if words[:1] in (["pool"], ["direct"]) else 0
                while words[at : at + 1] == ["help"]:  # in the place of a command
                    words = [*words[:at], *words[at + 1 :], "--help"]
                if words[at : at + 1] == ["version"]:
                    words = ["--version", *words[at + 1 :]]
                if words[:1] in (["-h"], ["--help"]) and any(not word.startswith("-") for word in words):
                    words = [*words[1:], "--help"]
                if words in ([], ["-h"], ["--help"]):  # the parser takes as long to import as the interpreter to start
                    from relvmoiscsi.cli import overview  # noqa: PLC0415
                    from relvmoiscsi.cli.output import Answer, print_result, width  # noqa: PLC0415

                    if ctrl_c.is_pressed:
                        raise KeyboardInterrupt
                    page = Answer({}, overview.page(width(sys.stdout))).for_people(sys.stdout)
                    return print_result(page, 0 if words else EXIT_USAGE)
                from relvmoiscsi.cli.parser import make_parser, separated  # noqa: PLC0415

                parser = make_parser([word for word in words if not word.startswith("-")][:1])
                if ctrl_c.is_pressed:
                    raise KeyboardInterrupt
                arguments = parser.parse_args(separated(words))
                if arguments.run is None:
                    parser.print_help()
                    return EXIT_USAGE
                arguments.words = ("relvmoiscsi", *words)
                look = ""
                if getattr(arguments, "device", None) is not None:
                    from relvmoiscsi.cli.on_lun import DeviceCommand  # noqa: PLC0415 - the parser has imported it

                    look = " " + DeviceCommand(arguments).how_to_tell()
                from relvmoiscsi.cli.running import run_command  # noqa: PLC0415 - --help needs none of its imports

                ctrl_c.is_deferred = False
                if ctrl_c.is_pressed:
                    raise KeyboardInterrupt
                is_unwritten = getattr(arguments, "only_reads", False) or look and getattr(arguments, "dry_run", False)
                state = _UNWRITTEN if is_unwritten else look or _AGAIN
                return run_command(arguments, look, state, ctrl_c.ignore)
            except KeyboardInterrupt:  # outside the handler of `run_command`
                return _say_early(state)
    except KeyboardInterrupt:  # before the first line, or behind the last line, of the block
        return _say_early(state)


def _say_early(state: str) -> int:
    from relvmoiscsi.cli.output import EXIT_INTERRUPTED, say  # noqa: PLC0415

    say("Interrupted." + state)
    return EXIT_INTERRUPTED


class _OneCtrlC:
    """Treat SIGTERM and SIGHUP as Ctrl-C: from kill, timeout, systemd, a closed terminal, a lost SSH connection.

    After the first signal, the block ignores the others. Otherwise a second Ctrl-C would end the clean-up and the
    message on the state of the LUN. The block also ignores signals after the result is out: the run is done. With
    `is_last`, the process ends behind the block, and ignores signals until then.

    Only the main thread may set signal handlers. A signal that is ignored or has a handler stays unchanged. `_signal`
    is in the interpreter: nothing is loaded before the first handler is set. The program has blocked the three signals
    (`__main__`) until then.

    During the imports, a signal sets `is_pressed` alone, and `main` looks at that. An exception could be raised in a
    callback of the interpreter, which drops each exception: the command would go on.
    """

    def __init__(self, is_last: bool) -> None:
        self._is_last = is_last

    def __enter__(self) -> "_OneCtrlC":
        self.is_deferred, self.is_pressed = True, False
        signals: Any = __import__("_signal")

        usual: List[Any] = [(signals.SIGTERM, signals.SIG_DFL), (signals.SIGHUP, signals.SIG_DFL)]
        usual.append((signals.SIGINT, signals.default_int_handler))
        self._before = [(number, before) for number, before in usual if signals.getsignal(number) == before]
        try:
            for number, _before in self._before:
                signals.signal(number, self._stop)
        except ValueError:  # not the main thread
            self._before = []
        if self._is_last:
            signals.pthread_sigmask(signals.SIG_UNBLOCK, [number for number, _before in usual])
        return self

    def ignore(self) -> None:
        signals: Any = __import__("_signal")

        for number, _before in self._before:
            signals.signal(number, lambda *_: None)  # a child process would inherit SIG_IGN

    def _stop(self, *_signal: object) -> None:
        self.ignore()
        self.is_pressed = True
        if not self.is_deferred:
            raise KeyboardInterrupt

    def __exit__(self, *_error: object) -> None:
        signals: Any = __import__("_signal")

        if self._is_last:
            self.ignore()
            return
        for number, before in self._before:
            signals.signal(number, before)
