# SPDX-License-Identifier: LGPL-2.1-only
"""The command for Secrets with CHAP passwords that calls have left in a pool."""

import argparse
import time
from typing import Callable, Dict, List

from relvmoiscsi.cli.asking import ask, must_be_able_to_ask
from relvmoiscsi.cli.output import Answer, say
from relvmoiscsi.cli.pool_vms import Tools
from relvmoiscsi.pool import orphans

_SECRETS = """\
xapi keeps a Secret of each call with a CHAP password, and removes none. Listed are those that hold a CHAP password of
an SR of this pool, or the one in --chap-password-file, that have no other_config, and that no record of the pool
names. --remove looks a second time after five minutes, as a call that is under way has such a Secret too. A Secret
that only a script of yours names looks the same: give it an other_config, and it is left alone.

example:
  relvmoiscsi pool secrets
  relvmoiscsi pool secrets --remove"""


def add_command(tools: Tools, first_line: Callable[[str], str]) -> None:
    """Describe the command; `first_line` reads a file with a password."""
    parser = tools.command("secrets", _secrets, "tell, or remove, Secrets with CHAP passwords of nobody", _SECRETS)
    parser.add_argument("--remove", action="store_true", help="destroy them")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--chap-password-file", metavar="FILE", help="a CHAP password that no SR has any more")
    parser.set_defaults(tools=tools, first_line=first_line)


def _secrets(arguments: argparse.Namespace) -> Answer:
    if arguments.remove:
        must_be_able_to_ask(arguments)
    file = arguments.chap_password_file
    passwords: List[str] = [arguments.first_line(file)] if file else []
    with arguments.tools.opened(arguments) as (calls, pool):
        found = orphans.find(calls, pool, passwords)
        if not arguments.remove or not found:
            return _listed(found)
        if not arguments.yes:
            say("\n".join(sorted(found.values())))
        ask(arguments, f"Destroy these {len(found)} Secrets?")
        say(f"Looking again in {orphans.CALL_SECONDS:.0f} seconds, as a call that is under way may need one of them.")
        time.sleep(orphans.CALL_SECONDS)
        now = orphans.find(calls, pool, passwords)
        gone = {ref: uuid for ref, uuid in found.items() if ref in now}
        count = orphans.remove(calls, gone)
    return Answer({"secrets": sorted(gone.values()), "removed": True}, f"{count} Secrets are gone.")


def _listed(found: Dict[str, str]) -> Answer:
    lines = sorted(found.values())
    lines.append(f"{len(found)} Secrets hold a CHAP password and belong to nothing; --remove destroys them.")
    text = "\n".join(lines) if found else "No Secret with a CHAP password of this pool belongs to nothing."
    return Answer({"secrets": sorted(found.values()), "removed": False}, text)
