# SPDX-License-Identifier: LGPL-2.1-only
"""The commands that settle an earlier run: `recover` an interrupted run; `undo` any run, and restore its old ids."""

import argparse
import os

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import FINISHED, Terminal, answer, next_line, opened_to_write, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import KINDS, Mark
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import identify
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.run import Proposal, Settlement, Undoing
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
    with opened_to_write(arguments) as lun:
        terminal = Terminal(arguments, lun)

        def consent(proposal: Proposal) -> None:
            assert isinstance(proposal, Settlement)
            terminal.identify(proposal)
            terminal.ask(proposal, _question(lun.name, proposal.mark))

        outcome = run.recover(lun, consent)
        if outcome is None:
            return _nothing_was_interrupted(lun)
    assert isinstance(outcome.proposal, Settlement)
    mark = outcome.proposal.mark
    text = _TAKEN_BACK if engine.goes_back(mark) else FINISHED
    return answer(lun, outcome, text.format(lun.name, KINDS[mark.commit_record.kind]))


def _question(name: str, mark: Mark) -> str:
    """Return the question: what `recover` will do, and which SR the LUN will then hold."""
    kind, ids = KINDS[mark.commit_record.kind], mark.journal.run.ids
    what, sr_uuid = ("Roll back", ids.sr) if engine.goes_back(mark) else ("Finish", ids.new_sr)
    return printable(f"{what} the {kind} of {name} that was interrupted, to SR {sr_uuid}?")


def _nothing_was_interrupted(lun: OpenLun) -> Answer:
    with in_state(NOTHING_WRITTEN):
        found = engine.inspect(lun.device)
        if found.problem is not None:
            raise found.problem
    facts = report.inspection_facts(lun.name, found)
    facts["lun"] = identify(lun, NOBODY_NEEDED, found.lun).facts()
    text = f"{lun.name}: no run was interrupted; state {found.state}. Nothing was written."
    return Answer(facts, text + "\n" + next_line(found.state, lun.name))


def _undo(arguments: argparse.Namespace) -> Answer:
    with opened_to_write(arguments) as lun:
        terminal = Terminal(arguments, lun)

        def consent(proposal: Proposal) -> None:
            assert isinstance(proposal, Undoing)
            terminal.identify(proposal)
            terminal.ask(proposal, printable(f"Give {lun.name} back the identities of SR {proposal.old_sr}?"))

        outcome = run.undo(lun, os.urandom, consent)
    return answer(lun, outcome, f"{lun.name} has its old identities back.")
