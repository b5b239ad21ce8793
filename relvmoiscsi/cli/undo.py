# SPDX-License-Identifier: LGPL-2.1-only
"""The command that gives a LUN its old identities back."""

import argparse
import os

from relvmoiscsi import engine
from relvmoiscsi.cli import guard
from relvmoiscsi.cli.asking import ask, must_be_able_to_ask
from relvmoiscsi.cli.on_lun import answer, opened, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.resignature.protocol.mark import RESIGNATURE
from relvmoiscsi.wording import printable

_UNDO = """\
Possible until LVM next changes the volume group, for example when the SR is used. A run that was cut is taken back.
Every byte comes back, but for some KiB of free space in LVM's metadata area: there the journals of both runs stay.

example:
  relvmoiscsi undo /dev/sdc"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    writes(make(_undo, _UNDO), "do not ask")


def _undo(arguments: argparse.Namespace) -> Answer:
    with in_state(NOTHING_WRITTEN):
        must_be_able_to_ask(arguments)
    with opened(arguments, writable=True) as (device, ids):
        mark = engine.read_undoable(device)
        guard.verify_not_in_use(arguments, ids)
        run = mark.journal.run
        old = run.ids.sr if mark.tail.kind == RESIGNATURE else run.ids.new_sr
        ask(arguments, printable(f"Give {arguments.device} back the identities of SR {old}?"))
        with guard.write_locks(arguments.device, engine.vg_names(run)):
            result = engine.undo(device, os.urandom)
    return answer(arguments.device, result, f"{arguments.device} has its old identities back.")
