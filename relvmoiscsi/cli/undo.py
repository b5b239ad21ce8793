# SPDX-License-Identifier: LGPL-2.1-only
"""The command that gives a LUN its old identities back."""

import argparse
import os

from relvmoiscsi import engine
from relvmoiscsi.cli.on_lun import answer, opened, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import RESIGNATURE
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.wording import printable

_UNDO = """\
Possible until LVM next changes the volume group, for example when the SR is attached. An interrupted run is
rolled back. Every byte is restored, except some KiB of free space in LVM's metadata area. The journals of
both runs stay there.

example:
  relvmoiscsi undo /dev/sdc"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    writes(make(_undo, _UNDO))


def _undo(arguments: argparse.Namespace) -> Answer:
    with opened(arguments) as target:
        mark = engine.read_undoable(target.device)
        run = mark.journal.run
        old, now = (
            (run.ids.sr, run.ids.new_sr) if mark.commit_record.kind == RESIGNATURE else (run.ids.new_sr, run.ids.sr)
        )
        with in_state(NOTHING_WRITTEN):
            lun = engine.inspect(target.device).lun
        target.identify(lun, now)
        target.ask(printable(f"Give {target.path} back the identities of SR {old}?"))
        with target.locks(run):
            result = engine.undo(target.device, os.urandom)
    return answer(target, result, f"{target.path} has its old identities back.")
