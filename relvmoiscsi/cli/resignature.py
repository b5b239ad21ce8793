# SPDX-License-Identifier: LGPL-2.1-only
"""The command that gives a LUN new identities."""

import argparse
import json
import os
from typing import Optional, Union

from relvmoiscsi import report, untrusted
from relvmoiscsi.cli.map_out import file_name
from relvmoiscsi.cli.on_lun import FINISHED, WriteCommand, on_lun, say_would_be_refused, writes
from relvmoiscsi.cli.output import Answer, Bar, Maker, say, tell
from relvmoiscsi.engine import RESIGNATURED, AlreadyDone, LaterCopy, OneVdiRequest, ResignatureRequest, notes
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError, in_state
from relvmoiscsi.formats import mapfile
from relvmoiscsi.host.own_path import NotOwn, read_named
from relvmoiscsi.lun import proposals, run
from relvmoiscsi.lun.answer import dry_run_facts, finished_facts, identification, unsaid_copy
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.proposals import NewRun, Proposal, Recovery
from relvmoiscsi.wording import ALL, ONE, VDIS, ShellCommand, printable, said

_MOST_MAP_BYTES, _MOST_MAP_VALUES = 64 << 20, 1 << 22  #: of --map: more than the map of the largest LUN

_RESIGNATURE = """\
DEVICE must be the clone. The command reads, plans and checks everything before it writes the first byte. A
journal on the LUN then makes the change one atomic step. Snapshots, chains, labels and CBT survive. In dom0,
the command refuses a LUN that an SR or a VDI of the pool uses, attached or not.

example:
  relvmoiscsi resignature /dev/sdc --dry-run
  relvmoiscsi resignature /dev/sdc --yes \\
      --scsi-id 36001405aaaa --map-out map.json"""


def add_resignature(make: Maker) -> None:
    parser = writes(make(on_lun(ResignatureCommand), _RESIGNATURE))
    parser.add_argument(
        "--sr-uuid",
        metavar="UUID",
        type=mapfile.checked_uuid,
        help="UUID of the new SR; never use one UUID for two clones; default: random",
    )
    what = "take ids from this old-to-new map (JSON, as --json prints it)"
    parser.add_argument("--map", metavar="FILE", type=file_name, help=what)
    parser.add_argument(
        "--vdis",
        choices=VDIS,
        default=ALL,
        metavar="WHICH",
        help="one: reduce the LUN to a single VDI without snapshots; all (default): keep every VDI",
    )
    parser.add_argument(
        "--vdi",
        metavar="UUID",
        type=mapfile.checked_uuid,
        help="with --vdis one: the VDI to keep, if the LUN has several live VDIs",
    )
    parser.add_argument(
        "--without",
        metavar="UUID",
        type=mapfile.checked_uuid,
        action="append",
        default=[],
        help="leave this VDI of the clone behind, and VDIs made of it; repeatable; for a VDI that cannot be read",
    )
    parser.add_argument("--clear-metadata-vdi", action="store_true", help="clear the pool-metadata flag on all VDIs")
    parser.add_argument("--again", action="store_true", help="resignature the LUN even if it was resignatured before")
    parser.add_argument(
        "--later-copy",
        action="store_true",
        help="with --yes: the LUN is a copy of a resignatured LUN, and not that LUN under a new SCSIid; a copy without "
        "a SCSIid needs --again",
    )


_WHY = {
    proposals.OF_A_COPY: "{} is a copy of a LUN whose resignature was cut (SCSIid {}); this run rolls it back first.",
    proposals.OF_UNKNOWN_LUN: (
        "{} holds an interrupted resignature that did not know the SCSIid of its LUN; this run rolls it back first."
    ),
    proposals.OTHER_VDIS: "{} holds an interrupted resignature that keeps other VDIs; this run rolls it back first.",
    proposals.BEFORE_COMMIT: (
        "{} holds a resignature that was interrupted before its commit; this run rolls it back first."
    ),
}


_OTHER_IDS = "A run makes other new ids, unless --map-out saves these."


class ResignatureCommand(WriteCommand):
    """Give a LUN new identities."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises UsageError."""
        super().__init__(arguments)
        self.clone = self.device
        self.is_later_copy: bool = arguments.again or arguments.later_copy
        with in_state(NOTHING_WRITTEN):
            if arguments.vdi is not None and arguments.vdis == ALL:
                raise UsageError("--vdi names the VDI to keep and needs --vdis one.")
            self._map: Optional[str] = arguments.map
            self._map_out: Optional[str] = arguments.map_out
            self._sr_uuid: Optional[str] = arguments.sr_uuid
            #: without the SCSIid, which the open LUN has, and without the ids of --map
            self.request = ResignatureRequest(
                again=arguments.again,
                sr_uuid=arguments.sr_uuid,
                one=None if arguments.vdis == ALL else OneVdiRequest(arguments.vdi),
                clear_databases=arguments.clear_metadata_vdi,
                without=tuple(arguments.without),
                words=arguments.words,
            )

    def _with_map(self, path: str) -> ResignatureRequest:
        """Return the request with the ids that the file of --map chooses. Raises UsageError for what is in the file."""
        try:
            facts = untrusted.json_of(read_named(path, _MOST_MAP_BYTES), _MOST_MAP_BYTES, _MOST_MAP_VALUES)
            chosen, new_sr = mapfile.read_map(facts, path), mapfile.chosen_sr(facts)
        except NotOwn as problem:
            not_safe = UsageError(f"The file of --map is not safe: {problem}.")
            raise not_safe.advising("Copy it into a directory of your own.") from None
        except OSError as error:
            raise UsageError(f"The file of --map, {path}, cannot be read: {error.strerror}.") from error
        except ValueError as error:  # no word of the file: root may read what the caller may not
            at = "a value"
            if isinstance(error, json.JSONDecodeError):
                at = f"line {error.lineno}, column {error.colno}"
            raise UsageError(f"{path} is not valid JSON: {at} cannot be read.") from None
        wanted = self.request.sr_uuid
        if None not in (new_sr, wanted) and new_sr != wanted:
            raise UsageError(f"{path} is a map for the SR {new_sr}, but --sr-uuid says {wanted}.")
        return self.request._replace(chosen=chosen, sr_uuid=wanted or new_sr)

    def run(self) -> Answer:
        path = self._map
        if path is not None:
            with in_state(NOTHING_WRITTEN):
                self.request = self._with_map(path)
        source, asked = self.source(self.device), (self.permission, self.request, os.urandom)
        found: Union[run.CompletedRun, AlreadyDone, NewRun]
        if self.dry_run:
            lun, found = run.plan_of(source, *asked)
        else:
            with Bar() as bar:
                lun, found = run.resignature_of(source, *asked, self.consent, lambda _, done, total: bar(done, total))
        if isinstance(found, AlreadyDone):
            headline = f"{lun.name} was already resignatured, as SR {found.sr_uuid}."
            if self.is_later_copy and lun.scsi_id is None:
                problem = f"{headline} It has no SCSIid, by which --later-copy would know a copy."
                raise Refused(problem).advising(self.if_copy(lun, None)).in_state(NOTHING_WRITTEN)
            text = f"{headline} {NOTHING_WRITTEN}"
            answer = Answer(finished_facts(lun, found), text, done=self.done(text, RESIGNATURED))
            return answer.leading(self.if_copy(lun, lun.scsi_id))
        if isinstance(found, run.CompletedRun):
            headline = (
                FINISHED.format(self.device, "resignature") if found.was_cut else f"{self.device} was resignatured."
            )
            return self.answer(lun, found, headline)
        # The answer to a dry run is the plan, with what would refuse the run.
        prepared = found.prepared
        status = self.tell_objection(source, lun, found)
        try:
            self._as_later_copy(lun.name, prepared.later_copy)
        except Refused as refusal:
            status = say_would_be_refused(refusal)
        facts = dry_run_facts(lun, found)
        lines = [f"{lun.name}: dry run. These writes are planned; nothing was written."]
        lines += identification(lun, found).lines()
        lines += [report.cost_text(prepared.cost)] if prepared.cost is not None else []
        lines += report.loss_of(prepared)[0]
        lines += [
            report.map_text(prepared.lun, prepared.plan.run.ids, is_plan=True),
            *([] if self.request.sr_uuid or self._map_out else [_OTHER_IDS]),
            "",
            report.plan_text(prepared.plan),
        ]
        lines += report.note_lines(facts["notes"]) + self.comes_first(lun, found)
        return Answer(facts, "\n".join(lines), status).leading(self._step_of_plan(lun))

    def _step_of_plan(self, lun: OpenLun) -> ShellCommand:
        """Return the command of the run that was planned: with the ids of the plan, where a file has them."""
        one = self.request.one
        return self.shell_command(
            "relvmoiscsi resignature",
            self.device,
            again=self.request.again,
            clear_metadata_vdi=self.request.clear_databases,
            map=self._map_out or self._map,
            not_in_use=self.overrides(lun),
            scsi_id=self.permission.scsi_id,
            sr_uuid=None if self._map_out else self._sr_uuid,
            vdis=None if one is None else ONE,
            vdi=None if one is None else one.vdi,
            without=list(self.request.without),
        )

    def consent(self, lun: OpenLun, proposal: Proposal) -> None:
        """Ask before a new run, with its plan, and before an interrupted run is recovered."""
        self.identify(lun, proposal)
        if isinstance(proposal, Recovery):
            run_cut = proposal.earlier.journal.run
            if proposal.why:
                say(_WHY[proposal.why].format(lun.name, said(str(run_cut.scsi_id))))
                self.ask(lun, proposal, "Roll the interrupted resignature back?")
            else:
                ends = "This run finishes it with the ids that were chosen then."
                say(f"{lun.name} holds an interrupted resignature. {ends}")
                self.ask(lun, proposal, f"Finish the resignature to SR {run_cut.ids.new_sr}?")
        elif isinstance(proposal, NewRun):
            prepared = proposal.prepared
            as_copy = self._as_later_copy(lun.name, prepared.later_copy)
            loss, to_lose = report.loss_of(prepared)
            if not self.yes:
                tell(report.map_text(prepared.lun, prepared.plan.run.ids, is_plan=True))
            for sentence in notes(prepared.lun):
                say("note: " + printable(sentence))
            if prepared.cost is not None:
                say(report.cost_text(prepared.cost))
            if loss:
                if self.yes:
                    say("\n".join([f"{lun.name} will be changed:", *loss]))
                else:
                    tell("\n".join(loss))
            question = f"Give {lun.name} these new identities{as_copy}?"
            self.ask(lun, proposal, question, to_lose)

    def _as_later_copy(self, name: str, copy: Optional[LaterCopy]) -> str:
        """Say that the LUN is taken for a later copy; return the words for the question, "" for any other LUN.

        Raises Refused for a script that has not said so.
        """
        if copy is None:
            return ""
        if self.yes and not self.is_later_copy:
            raise unsaid_copy(name, copy)
        say("note: " + printable(copy.sentence(name)))
        return ", as a later copy"
