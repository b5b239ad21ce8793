# SPDX-License-Identifier: LGPL-2.1-only
"""The command that gives a LUN new identities."""

import argparse
import os
from typing import Any, ContextManager, Optional

from relvmoiscsi import engine, procedure, report, untrusted
from relvmoiscsi.cli.identification import identify
from relvmoiscsi.cli.on_lun import FINISHED, Target, answer, opened, writes
from relvmoiscsi.cli.output import Answer, Bar, Maker, say, tell
from relvmoiscsi.engine import (
    RESIGNATURE,
    AlreadyDone,
    Lun,
    Mark,
    OneVdiRequest,
    Prepared,
    ResignatureRequest,
    Result,
    Run,
    notes,
)
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, Unfinished, UsageError, in_state
from relvmoiscsi.formats import mapfile
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.settings import ALL, VDIS
from relvmoiscsi.lun.users import NOBODY_NEEDED
from relvmoiscsi.wording import command, printable

_MOST_MAP_BYTES, _MOST_MAP_VALUES = 64 << 20, 1 << 22  #: of --map: more than the map of the largest LUN

_RESIGNATURE = """\
DEVICE must be the clone. The command reads, plans and checks everything before it writes the first byte. A
journal on the LUN then makes the change one atomic step. Snapshots, chains, labels and CBT survive. In dom0,
the command refuses a LUN that an SR or a VDI of the pool uses, attached or not.

example:
  relvmoiscsi resignature /dev/sdc --dry-run
  relvmoiscsi resignature /dev/sdc --yes --scsi-id 36001405aaaa --map-out map.json"""


def add_resignature(make: Maker) -> None:
    parser = writes(make(_resignature, _RESIGNATURE))
    parser.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    parser.add_argument(
        "--sr-uuid", metavar="UUID", help="UUID of the new SR; never use one UUID for two clones; default: random"
    )
    parser.add_argument("--map", metavar="FILE", help="take ids from this old-to-new map (JSON, as --json prints it)")
    parser.add_argument(
        "--vdis",
        choices=VDIS,
        default=ALL,
        metavar="WHICH",
        help="one: reduce the LUN to a single VDI without snapshots; all (default): keep every VDI",
    )
    parser.add_argument(
        "--vdi", metavar="UUID", help="with --vdis one: the VDI to keep, if the LUN has several live VDIs"
    )
    parser.add_argument(
        "--without",
        metavar="UUID",
        action="append",
        default=[],
        help="leave this VDI of the clone behind, and VDIs made of it; repeatable; for a VDI that cannot be read",
    )
    parser.add_argument("--clear-metadata-vdi", action="store_true", help="clear the pool-metadata flag on all VDIs")
    parser.add_argument("--again", action="store_true", help="resignature the LUN even if it was resignatured before")


def _resignature(arguments: argparse.Namespace) -> Answer:
    path = arguments.device
    with in_state(NOTHING_WRITTEN):
        chosen, one = _chosen(arguments), _one(arguments)
        without = tuple(mapfile.checked_uuid(uuid.lower()) for uuid in arguments.without)
    finished = None if arguments.again or arguments.dry_run else _finished_before(arguments, chosen, one)
    if finished is not None:
        return finished
    with opened(arguments, writable=not arguments.dry_run) as target, Bar() as bar:
        request = ResignatureRequest(
            target.ids.recorded,
            chosen,
            arguments.again,
            arguments.sr_uuid,
            one,
            arguments.clear_metadata_vdi,
            without,
            arguments.words,
        )
        done = procedure.resignature(target.named, os.urandom, _Terminal(arguments, target, chosen, bar), request)
        if isinstance(done, AlreadyDone):
            return _already_done(arguments, chosen, done, target, engine.inspect(target.device).lun)
    if isinstance(done, Prepared):
        return _planned(target, done)
    headline = FINISHED.format(path, "resignature") if done.was_cut else _NEW.format(path)
    return answer(target, done.result, headline)


def _finished_before(arguments: argparse.Namespace, chosen: IdMap, one: Optional[OneVdiRequest]) -> Optional[Answer]:
    """Return the answer for a LUN that an earlier run has resignatured; None for any other LUN.

    The LUN may be in use, so the command opens the LUN for reading only. Opening for writing would be refused, and udev
    would scan the LUN when the command closes it.
    """
    with opened(arguments, writable=False) as target, in_state(NOTHING_WRITTEN):
        done = engine.find_done(target.device, target.ids.recorded)
        if done is None:
            return None
        lun = engine.inspect(target.device).lun
        if lun is not None:
            engine.refuse_other_vdis(target.device, lun, done.run, one)
        return _already_done(arguments, chosen, done, target, lun)


def _already_done(
    arguments: argparse.Namespace, chosen: IdMap, done: AlreadyDone, target: Target, lun: Optional[Lun]
) -> Answer:
    """Return the answer for a resignatured LUN. `lun` is the readable content of the LUN, which may be in use.

    Raises Refused where the options choose other ids than the ids on the LUN.
    """
    with in_state(NOTHING_WRITTEN):
        engine.refuse_databases(arguments.device, lun, arguments.clear_metadata_vdi)
        engine.refuse_left_behind(arguments.device, lun, done.run, [uuid.lower() for uuid in arguments.without])
    path, new_ids = arguments.device, done.run.ids if done.run else None
    known = new_ids or IdMap("", {"": done.sr_uuid}, {})
    _refuse_contradictions(arguments, chosen, known, "Use --again to resignature the LUN once more.")
    result = Result(engine.RESIGNATURED, lun, new_ids, target.ids.recorded, already_done=True)
    text = f"{path} was already resignatured, as SR {done.sr_uuid}. Nothing was written."
    facts = report.result_facts(path, result)
    facts.setdefault("sr", {"old": None, "new": done.sr_uuid})
    facts["lun"] = identify(target.device, target.ids.own, NOBODY_NEEDED, lun, done.sr_uuid).facts()
    return Answer(facts, text)


def _planned(target: Target, prepared: Prepared) -> Answer:
    path, lun, run, found = target.path, prepared.lun, prepared.plan.run, target.identification
    assert found is not None  # `agrees_to` has called `identify`
    facts = report.result_facts(path, Result(prepared.state, lun, run.ids, target.ids.recorded))
    facts["lun"] = found.facts()
    facts["plan"] = report.plan_facts(prepared.plan)
    lines = [f"{path}: dry run. These writes are planned; nothing was written.", *found.lines()]
    if prepared.cost is not None:
        facts["cost"] = report.cost_facts(prepared.cost)
        lines.append(report.cost_text(prepared.cost))
    loss = report.loss_of(prepared)
    if loss is not None:
        facts["dropped"] = report.dropped_facts(lun, prepared.defects)
        lines += loss.lines
    lines += [report.map_text(lun, run.ids), "", report.plan_text(prepared.plan)]
    return Answer(facts, "\n".join(lines + report.note_lines(facts["notes"])))


# --- questions at a terminal

_NEW = "{} was resignatured."
_OF_A_COPY = "{} is a copy of a LUN whose resignature was cut (SCSIid {}); this run rolls it back first."
_OTHER_VDIS = "{} holds an interrupted resignature that keeps other VDIs; this run rolls it back first."
_BEFORE_COMMIT = "{} holds a resignature that was interrupted before its commit; this run rolls it back first."
_WHY = {
    procedure.OF_A_COPY: _OF_A_COPY,
    procedure.OTHER_VDIS: _OTHER_VDIS,
    procedure.BEFORE_COMMIT: _BEFORE_COMMIT,
}


class _Terminal(procedure.Voice):
    """Tells and asks a person at a terminal, or follows the options of a script."""

    def __init__(self, arguments: argparse.Namespace, target: Target, chosen: IdMap, bar: Bar) -> None:
        self._arguments, self._target, self._chosen = arguments, target, chosen
        self._bar = bar

    def agrees_to_settle(self, mark: Mark, take_back: str, problem: Unfinished) -> None:
        """Raise `problem` for an interrupted undo, which the user must finish, and in a dry run. Ask otherwise."""
        if mark.commit_record.kind != RESIGNATURE:
            raise problem
        if self._arguments.dry_run:
            what = "rolls it back first and starts a new run" if take_back else "finishes it"
            problem.message += f" The same call without --dry-run {what}."
            raise problem
        self._target.identify(None, mark.journal.run.ids.sr, procedure.replaced_srs(mark, take_back))
        path = self._arguments.device
        if take_back:
            say(_WHY[take_back].format(path, printable(str(mark.journal.run.scsi_id))))
            self._target.ask("Roll the interrupted resignature back?")
        else:
            instead = (
                f"{command('relvmoiscsi', 'recover', path)} finishes the interrupted run, "
                f"{command('relvmoiscsi', 'undo', path)} rolls it back."
            )
            _refuse_contradictions(self._arguments, self._chosen, mark.journal.run.ids, instead)
            say(f"{path} holds an interrupted resignature. This run finishes it with the ids that were chosen then.")
            self._target.ask(f"Finish the resignature to SR {mark.journal.run.ids.new_sr}?")

    def agrees_to(self, prepared: Prepared) -> bool:
        ids = prepared.plan.run.ids
        self._target.identify(prepared.lun, replaced=(ids.sr,), new_sr=ids.new_sr)
        if prepared.cost is not None:
            procedure.check_copy(self._target.device, prepared.cost.data_bytes)
        if self._arguments.dry_run:
            return False
        self._target.ask(f"Give {self._target.path} these new identities?", self._say_plan(prepared))
        return True

    def _say_plan(self, prepared: Prepared) -> str:
        """Print the plan; return the question about the loss of data, "" without a loss."""
        asks, loss = not self._arguments.yes, report.loss_of(prepared)
        if asks:
            tell(report.map_text(prepared.lun, prepared.plan.run.ids))
        for sentence in notes(prepared.lun):
            say("note: " + printable(sentence))
        if prepared.cost is not None:
            say(report.cost_text(prepared.cost))
        if loss is None:
            return ""
        if asks:
            tell("\n".join(loss.lines))
        return loss.question

    def locks(self, run: Run) -> ContextManager[Any]:
        return self._target.locks(run)

    def copying(self, done: int, total: int) -> None:
        """Draw the bar for the copying."""
        self._bar(done, total)

    def reading_back(self, done: int, total: int) -> None:
        """Draw a second bar, for the read-back."""
        self.copying(done, total)

    def has_settled(self, mark: Mark, result: Result) -> None:
        """Print nothing: the answer reports a finished run, and an earlier message has announced a rollback."""


# --- chosen ids


def _one(arguments: argparse.Namespace) -> Optional[OneVdiRequest]:
    """Return the request of --vdis and --vdi; None keeps all VDIs. Raises UsageError."""
    if arguments.vdis == ALL:
        if arguments.vdi is not None:
            raise UsageError("--vdi names the VDI to keep and needs --vdis one.")
        return None
    return OneVdiRequest(arguments.vdi if arguments.vdi is None else mapfile.checked_uuid(arguments.vdi.lower()))


def _chosen(arguments: argparse.Namespace) -> IdMap:
    """Return the ids of --map; the new SR of the map becomes --sr-uuid. Raises UsageError."""
    if arguments.sr_uuid is not None:
        mapfile.checked_uuid(arguments.sr_uuid)
    if arguments.map is None:
        return IdMap("", {}, {})
    try:
        with open(arguments.map, "rb") as file:
            facts = untrusted.json_of(file.read(), _MOST_MAP_BYTES, _MOST_MAP_VALUES)
        chosen = mapfile.read_map(facts, arguments.map)
    except OSError as error:
        raise UsageError(f"{arguments.map}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{arguments.map} is not valid JSON: {error}.") from error
    new_sr = mapfile.chosen_sr(facts)
    if None not in (new_sr, arguments.sr_uuid) and new_sr != arguments.sr_uuid:
        raise UsageError(f"{arguments.map} is a map for the SR {new_sr}, but --sr-uuid says {arguments.sr_uuid}.")
    arguments.sr_uuid = arguments.sr_uuid or new_sr
    return chosen


def _refuse_contradictions(arguments: argparse.Namespace, chosen: IdMap, ids: IdMap, instead: str) -> None:
    """Raises Refused where the ids of the run differ from the chosen ids, on which a script relies."""
    found = mapfile.contradictions(chosen, arguments.sr_uuid, ids)
    if found:
        problem = f"{arguments.device} already has other ids: {found[0]}. {instead}"
        raise Refused(problem).in_state(NOTHING_WRITTEN)
