# SPDX-License-Identifier: LGPL-2.1-only
"""One run of a command: its answer or its error, as text or as one JSON object, and its exit status."""

import logging
import sys
import traceback
from argparse import Namespace
from typing import Any, Callable, Dict

from relvmoiscsi.cli.output import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    RED,
    Answer,
    LogFormatter,
    Unheard,
    print_result,
    say,
)
from relvmoiscsi.errors import (
    AGAIN,
    NOTHING_CHANGED,
    NOTHING_WRITTEN,
    RelvmoiscsiError,
    UsageError,
    error_facts,
    in_options,
    interruption,
)
from relvmoiscsi.host.files import reserve
from relvmoiscsi.json_answer import answer_text
from relvmoiscsi.wording import printable


def run_command(arguments: Namespace, look: str, interrupted: str, printed: Callable[[], None]) -> int:
    """Run the command as `_run` does, and tell `ended` of the words the exit status, as for the last line of a log."""
    status = _run(arguments, look, interrupted, printed)
    if hasattr(arguments, "ended"):
        arguments.ended(status)
    return status


def _run(arguments: Namespace, look: str, interrupted: str, printed: Callable[[], None]) -> int:
    """Run the command of the parsed words, print its answer or its error; return the exit status.

    `look` is the sentence on how to see the state of the LUN, after a space, or "". `interrupted` is said after Ctrl-C,
    if that brings no state. `printed` is called when the result is out: Ctrl-C changes nothing then.
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(arguments.verbose, 2)]
    handler = logging.StreamHandler(Unheard(sys.stderr))
    handler.setFormatter(LogFormatter("relvmoiscsi: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    is_on_lun = getattr(arguments, "device", None) is not None
    facts: Dict[str, Any] = {}
    usage = arguments.usage
    try:
        reserve()
        run: Callable[[], Answer] = arguments.run(arguments)
        usage = None  # the words are right in form
        answer = run()
        is_without_text = arguments.json or arguments.quiet
        for alert in answer.alerts if is_without_text else ():
            say(printable(alert))
        if arguments.json:
            text = answer_text(arguments.command, answer.facts, indent=2)
        else:
            text = "" if arguments.quiet else answer.for_people(sys.stdout)
        status, alerts = answer.status, () if is_without_text else answer.alerts
        if text:  # no text is no line
            status = print_result(text, status, answer.done, alerts)
        printed()
        return status
    except RelvmoiscsiError as error:
        if hasattr(arguments, "vdis"):
            in_options(error)
        if arguments.json and is_on_lun:
            from relvmoiscsi.cli.on_lun import failure_facts  # noqa: PLC0415

            facts = failure_facts(arguments, error)
        if arguments.json:
            print_result(answer_text(arguments.command, {**facts, **error_facts(error)}, indent=2))
        if isinstance(error, UsageError) and usage and not arguments.json:  # as of a word that nobody knows
            Unheard(sys.stderr).write(usage())
        say(printable(str(error)), RED)
        return error.exit_status
    except KeyboardInterrupt as stop:
        message, (state, advice) = "Interrupted.", interruption(stop)
        if not state and usage is not None:  # the command was not made yet
            state = NOTHING_WRITTEN
        if state and not advice:  # behind a change, the repeated command may be refused
            advice = AGAIN if state in (NOTHING_CHANGED, NOTHING_WRITTEN) else look.strip()
        if arguments.json and not is_on_lun:  # the LUN may be the device that does not answer
            facts = {
                "class": "Interrupted",
                "exit_status": EXIT_INTERRUPTED,
                "message": message,
                "disk_state": state,
                "advice": advice,
            }
            facts = {"error": facts, **getattr(stop, "facts", {})}
            print_result(answer_text(arguments.command, facts, indent=2))
        told = " ".join(map(printable, filter(None, (state, advice))))
        say(f"{message} {told}" if told else message + interrupted)
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - a bug: print the traceback, and return EXIT_BUG
        say(traceback.format_exc().rstrip())
        say("This is a bug." + look, RED)
        return EXIT_BUG
