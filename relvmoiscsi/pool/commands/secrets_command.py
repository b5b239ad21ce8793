# SPDX-License-Identifier: LGPL-2.1-only
"""Remove Secrets with CHAP passwords that calls have left in a pool: `secrets`, and the option --clean-secrets."""

import argparse
import time
from typing import List

from relvmoiscsi.cli.map_out import file_name
from relvmoiscsi.cli.output import Answer, ask, must_be_able_to_ask, say
from relvmoiscsi.host.secret_file import first_line
from relvmoiscsi.pool import orphans, secrets
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone
from relvmoiscsi.pool.commands.options import CommandMaker, PoolCommand, flag
from relvmoiscsi.pool.records import Pool
from relvmoiscsi.wording import counted, printable

_SECRETS = """\
xapi makes a Secret for each call with a CHAP password and never removes the Secret. The command lists Secrets
that hold a CHAP password of an SR of this pool, or the password in --chap-password-file. A Secret is not
listed if it has other_config keys, or if a record of the pool has its UUID: the third example protects the Secret of
a script.

--remove waits five minutes after your answer, because a running call has such a Secret too. Then it destroys
the Secrets that are still unused.

example:
  relvmoiscsi pool secrets
  relvmoiscsi pool secrets --remove
  xe pool-param-set uuid=POOL other-config:my-script=UUID-OF-THE-SECRET"""


def add_command(command: CommandMaker) -> None:
    parser = command("secrets", SecretsCommand, "list or remove unused Secrets with CHAP passwords", _SECRETS)
    flag(parser, "--remove", "destroy the listed Secrets")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    what = "also find this CHAP password, which no SR uses now"
    parser.add_argument("--chap-password-file", metavar="FILE", type=file_name, help=what)


class SecretsCommand(PoolCommand):
    """List or remove unused Secrets with CHAP passwords."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.yes, self.remove = bool(arguments.yes), bool(arguments.remove)

    def run(self) -> Answer:
        file = self.given.chap_password_file
        passwords: List[str] = [first_line(file)] if file else []
        if self.remove:
            must_be_able_to_ask(self)
        with self.opened() as (calls, pool):
            found = orphans.find(calls, pool, passwords)
            uuids = sorted(found.values())
            if not self.remove or not found:
                count = f"{len(found)} Secrets hold a CHAP password and are unused; --remove destroys the Secrets."
                none = "There is no unused Secret with a CHAP password of this pool."
                return Answer({"secrets": uuids, "removed": False}, "\n".join([*uuids, count]) if found else none)
            if not self.yes:
                say("\n".join(uuids))
            ask(self, f"Destroy {counted(len(found), 'Secret')}?")
            say(f"Listing the Secrets again in {orphans.CALL_SECONDS:.0f} seconds: a running call may need a Secret.")
            time.sleep(orphans.CALL_SECONDS)
            now = orphans.find(calls, pool, passwords)
            gone = {ref: uuid for ref, uuid in found.items() if ref in now}
            with self.so_far.work():
                destroyed = secrets.destroy(calls, gone)
        return Answer({"secrets": sorted(gone.values()), "removed": True}, f"{destroyed} Secrets were destroyed.")


def clean(calls: Calls, pool: Pool, is_dry: bool) -> None:
    """Destroy the Secrets of killed runs, for --clean-secrets.

    A failure is only printed: the command has done its work, and must still print its result.
    """
    try:
        stale = secrets.stale(calls, pool, time.time())
        if is_dry:
            say(f"{len(stale)} Secrets of killed runs would be destroyed.")
        else:
            say(f"{secrets.destroy(calls, stale)} Secrets of killed runs were destroyed.")
    except (PoolFailure, PoolGone) as failure:
        say(printable(f"The Secrets of killed runs could not be destroyed: {failure}"))
