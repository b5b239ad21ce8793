# SPDX-License-Identifier: LGPL-2.1-only
"""The commands that settle an earlier run: `recover` an interrupted run; `undo` any run, and restore its old ids."""

import argparse
import os

from relvmoiscsi import engine, report
from relvmoiscsi.cli.identification import identify
from relvmoiscsi.cli.on_lun import FINISHED, Target, answer, opened, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import KINDS, RESIGNATURE, Mark
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.lun.users import NOBODY_NEEDED
from relvmoiscsi.wording import printable

_RECOVER = """\
Run the command on any host after a power cut, a lost connection or a killed process. The command rolls back a
run that was interrupted before its commit. The command finishes a run that was interrupted after its commit,
with the same new identities. If no run was interrupted, the command changes nothing and does not ask.

example:
  relvmoiscsi recover /dev/sdc"""

_UNDO = """\
Use the command until LVM next changes the volume group: a host that attaches the SR makes LVM do so. The
command also rolls back an interrupted run. It restores every byte, except some KiB of free space in LVM's
metadata area, where the journals of both runs stay.

example:
  relvmoiscsi undo /dev/sdc"""


def add_recover(make: Maker) -> None:
    writes(make(_recover, _RECOVER))


def add_undo(make: Maker) -> None:
    writes(make(_undo, _UNDO))


_TAKEN_BACK = "{}: the {} was interrupted before its commit and has been rolled back. Run the command again."


def _recover(arguments: argparse.Namespace) -> Answer:
    with opened(arguments) as target:
        mark = engine.find_unfinished(target.device)
        if mark is None:
            return _nothing_was_interrupted(target)
        run = mark.journal.run
        target.identify(None, run.ids.sr)
        target.ask(_question(target, mark))
        with target.locks(run):
            result = engine.recover(target.named, mark, target.ids.own)
    text = _TAKEN_BACK if engine.goes_back(mark) else FINISHED
    return answer(target, result, text.format(target.path, KINDS[mark.commit_record.kind]))


def _question(target: Target, mark: Mark) -> str:
    """Return the question: what `recover` will do, and which SR the LUN will then hold."""
    kind, ids = KINDS[mark.commit_record.kind], mark.journal.run.ids
    what, sr_uuid = ("Roll back", ids.sr) if engine.goes_back(mark) else ("Finish", ids.new_sr)
    return printable(f"{what} the {kind} of {target.path} that was interrupted, to SR {sr_uuid}?")


def _nothing_was_interrupted(target: Target) -> Answer:
    with in_state(NOTHING_WRITTEN):
        found = engine.inspect(target.device)
        if found.problem is not None:
            raise found.problem
    facts = report.inspection_facts(target.path, found)
    facts["lun"] = identify(target.device, target.ids.own, NOBODY_NEEDED, found.lun).facts()
    return Answer(facts, f"{target.path}: no run was interrupted; state {found.state}. Nothing was written.")


def _undo(arguments: argparse.Namespace) -> Answer:
    with opened(arguments) as target:
        mark = engine.read_undoable(target.device)
        run = mark.journal.run
        old, now = (
            (run.ids.sr, run.ids.new_sr) if mark.commit_record.kind == RESIGNATURE else (run.ids.new_sr, run.ids.sr)
        )
        with in_state(NOTHING_WRITTEN):
            lun = engine.inspect(target.device).lun
        target.identify(lun, now, () if engine.goes_back(mark) else (now,))
        target.ask(printable(f"Give {target.path} back the identities of SR {old}?"))
        with target.locks(run):
            result = engine.undo(target.named, os.urandom)
    return answer(target, result, f"{target.path} has its old identities back.")
