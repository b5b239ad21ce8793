# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on an earlier run: `recover` an interrupted run; `undo` any run, and restore its old ids."""

import os

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import FINISHED, WriteCommand, on_lun, unread_text, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import DONE, KINDS, Inspection, Result
from relvmoiscsi.errors import NOTHING_WRITTEN, FormatError, Truncated, error_facts
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import Identification, identification, unwritten_facts
from relvmoiscsi.lun.opened import NOBODY_NEEDED, LunSource, OpenLun
from relvmoiscsi.lun.proposals import Proposal, Recovery, Undoing
from relvmoiscsi.wording import counted, printable

_RECOVER = """\
Run the command on any host after a power cut, a lost connection or a killed process. The command rolls back a
run that was interrupted before its commit. The command finishes a run that was interrupted after its commit,
with the same new identities. If no run was interrupted, the command changes nothing and does not ask.

example:
  relvmoiscsi recover /dev/sdc"""

_UNDO = """\
A host that attaches the SR makes LVM change the volume group. The command also rolls back an interrupted run.
It restores every byte, except some KiB of free space in LVM's metadata area, where the journals of both runs
stay.

example:
  relvmoiscsi undo /dev/sdc"""


def add_recover(make: Maker) -> None:
    writes(make(on_lun(RecoverCommand), _RECOVER))


def add_undo(make: Maker) -> None:
    writes(make(on_lun(UndoCommand), _UNDO))


class RecoverCommand(WriteCommand):
    """Roll back or finish an interrupted run."""

    def run(self) -> Answer:
        source, consent = self.source(self.device), None if self.dry_run else self.consent
        words = self.command_words("relvmoiscsi resignature", self.device)
        lun, outcome = run.recover(source, self.permission, consent, words)
        if isinstance(outcome, Inspection):
            return self._of_unended(lun, outcome)
        assert isinstance(outcome.proposal, Recovery)
        earlier = outcome.proposal.earlier
        kind = KINDS[earlier.commit_record.kind]
        if self.dry_run:
            way = "rolled back" if engine.goes_back(earlier) else "finished"
            answer = _unwritten(self, source, lun, outcome, f"the interrupted {kind} would be {way}")
        elif engine.goes_back(earlier):
            text = f"{lun.name}: the {kind} was interrupted before its commit and has been rolled back."
            answer = self.answer(lun, outcome, text)
        else:
            answer = self.answer(lun, outcome, FINISHED.format(lun.name, kind))
        return answer if outcome.damaged is None else self._of_damaged(lun, answer, outcome.damaged)

    def _of_unended(self, lun: OpenLun, found: Inspection) -> Answer:
        """Return the answer about a LUN without an interrupted run that can be ended. Nothing was written."""
        problem = found.problem
        if problem is None:
            ids, of = (found.run.ids, found.run.scsi_id) if found.run is not None else (None, None)
            facts = report.result_facts(lun.name, Result(found.state, found.lun, ids, of, already_done=True))
            facts["lun"] = Identification(lun, NOBODY_NEEDED, found.lun).facts()
            text = f"{lun.name}: no run was interrupted; state {found.state}. Nothing was written."
            return Answer(facts, text).leading(self.next_step(found.state, lun, found.run))
        what = "no run was interrupted"
        if found.state == engine.UNFINISHED:
            why = "its journal cannot be read" if isinstance(problem, FormatError) else "recover is refused"
            what = f"a run was interrupted, and {'the copy is truncated' if isinstance(problem, Truncated) else why}"
        elif not found.knows_run:
            what = "whether a run was interrupted cannot be known: no label of LVM can be read"
        step, state = self.step_of_unread(found, lun), problem.in_state(NOTHING_WRITTEN).disk_state
        lines = [f"{lun.name}: state {found.state}; {what}.", printable(problem.told_before(step, state))]
        return self.told(problem, {"state": found.state, "device": self.device}, "\n".join(lines), step)

    def _of_damaged(self, lun: OpenLun, answer: Answer, found: Inspection) -> Answer:
        """Return the answer about a LUN that is damaged when its interrupted run has ended, or would be."""
        problem = found.problem
        assert problem is not None
        facts = {**answer.facts, "defects": report.defect_facts(found.defects, found.readable), **error_facts(problem)}
        step = answer.next_steps[0] if self.dry_run else self.step_of_unread(found, lun)
        lines = [answer.text, unread_text(lun.name, found, step), problem.disk_state]
        status = answer.status or problem.exit_status
        told = Answer(facts, "\n".join(lines), status, answer.done, alerts=[str(problem)])
        return told.leading(step)

    def consent(self, lun: OpenLun, proposal: Proposal) -> None:
        """Ask whether to recover the run, with the SR that the LUN will then hold."""
        assert isinstance(proposal, Recovery)
        kind, ids = KINDS[proposal.earlier.commit_record.kind], proposal.earlier.journal.run.ids
        what, sr_uuid = ("Roll back", ids.sr) if engine.goes_back(proposal.earlier) else ("Finish", ids.new_sr)
        self.identify(lun, proposal)
        question = f"{what} the {kind} of {lun.name} that was interrupted, to SR {sr_uuid}?"
        self.ask(lun, proposal, printable(question))


class UndoCommand(WriteCommand):
    """Give a LUN its old identities back."""

    def run(self) -> Answer:
        source = self.source(self.device)
        lun, outcome = run.undo(source, self.permission, os.urandom, None if self.dry_run else self.consent)
        if self.dry_run:
            return _unwritten(self, source, lun, outcome, "the LUN would have its old identities back")
        return self.answer(lun, outcome, f"{lun.name} has its old identities back.")

    def consent(self, lun: OpenLun, proposal: Proposal) -> None:
        assert isinstance(proposal, Undoing)
        self.identify(lun, proposal)
        self.ask(lun, proposal, printable(f"Give {lun.name} back the identities of SR {proposal.old_sr}?"))


def _unwritten(command: WriteCommand, source: LunSource, lun: OpenLun, outcome: run.CompletedRun, what: str) -> Answer:
    """Return the answer of a dry run: the same run in memory, and the command that carries it out."""
    proposal, result = outcome.proposal, outcome.result
    assert isinstance(proposal, (Recovery, Undoing))
    status = command.tell_objection(source, lun, proposal)
    is_cut = proposal.earlier.commit_record.phase != DONE
    lines = [f"{lun.name}: dry run. A run would make {counted(len(outcome.planned), 'write')}: {what}."]
    lines += identification(lun, proposal).lines()
    if result.ids is not None and not proposal.is_rollback:
        lines.append(report.map_text(result.lun, result.ids, is_plan=True))
    lines.append("Nothing was written.")
    facts = unwritten_facts(lun, engine.UNFINISHED if is_cut else engine.RESIGNATURED, outcome)
    step = command.shell_command(
        "relvmoiscsi recover" if isinstance(proposal, Recovery) else "relvmoiscsi undo",
        command.device,
        not_in_use=command.overrides(lun),
    )
    lines += command.comes_first(lun, proposal)
    return Answer(facts, "\n".join(lines), status, next_steps=[step])
