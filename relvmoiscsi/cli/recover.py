# SPDX-License-Identifier: LGPL-2.1-only
"""The command that settles a run that was cut."""

import argparse

from relvmoiscsi import engine, report
from relvmoiscsi.cli.guard import NOBODY_NEEDED
from relvmoiscsi.cli.identification import identify
from relvmoiscsi.cli.on_lun import FINISHED, Target, answer, opened, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import KINDS, Mark
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.wording import printable

_RECOVER = """\
Run it on any host after a power cut, a lost connection or a killed process. A run that was interrupted before
its commit is rolled back. A run that was interrupted after its commit is finished with the same new
identities. If no run was interrupted, the command changes nothing and does not ask.

example:
  relvmoiscsi recover /dev/sdc"""


_TAKEN_BACK = "{}: the {} was interrupted before its commit and has been rolled back. Run the command again."


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    writes(make(_recover, _RECOVER))


def _recover(arguments: argparse.Namespace) -> Answer:
    with opened(arguments) as target:
        mark = engine.find_unfinished(target.device)
        if mark is None:
            return _nothing_was_cut(target)
        run = mark.journal.run
        target.identify(None, run.ids.sr)
        target.ask(_question(target, mark))
        with target.locks(run):
            result = engine.recover(target.device, mark, target.ids.recorded)
    kind = KINDS[mark.commit_record.kind]
    text = _TAKEN_BACK if engine.goes_back(mark) else FINISHED
    return answer(target, result, text.format(target.path, kind))


def _question(target: Target, mark: Mark) -> str:
    """What will be done, and which SR will be on the LUN then."""
    kind, ids = KINDS[mark.commit_record.kind], mark.journal.run.ids
    what, sr_uuid = ("Take back", ids.sr) if engine.goes_back(mark) else ("Finish", ids.new_sr)
    return printable(f"{what} the {kind} of {target.path} that was interrupted, to SR {sr_uuid}?")


def _nothing_was_cut(target: Target) -> Answer:
    with in_state(NOTHING_WRITTEN):
        found = engine.inspect(target.device)
        if found.problem is not None:
            raise found.problem
    facts = report.inspection_facts(target.path, found)
    facts["lun"] = identify(target.device, target.ids.own, NOBODY_NEEDED, found.lun).facts()
    return Answer(facts, f"{target.path}: no run was interrupted; state {found.state}. Nothing was written.")
