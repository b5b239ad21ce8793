# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on a LUN: show, check, resignature, recover, undo."""

import argparse
import json
import os
import stat
import sys
from contextlib import ExitStack, contextmanager
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

from relvmoiscsi import engine, procedure, report
from relvmoiscsi.cli import guard
from relvmoiscsi.cli.output import Adder, Answer, say, write_line
from relvmoiscsi.device import Device, Range
from relvmoiscsi.engine import AlreadyDone, Prepared, Result
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, Unfinished, UsageError, in_state
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host import command
from relvmoiscsi.host.disk.block_device import HostDevice, data_ranges, open_device, same_device
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.resignature import mapfile
from relvmoiscsi.resignature.journal import Mark
from relvmoiscsi.resignature.lun import Lun
from relvmoiscsi.resignature.notes import notes
from relvmoiscsi.resignature.run import Run
from relvmoiscsi.resignature.tail import RESIGNATURE
from relvmoiscsi.wording import error_facts, human_size, printable


def add_commands(add: Adder) -> None:
    """Describe the commands and their arguments."""
    _on_device(add("show", _show, "what is on it: SR, VDIs as a tree of chains, state", _SHOW))
    check = _on_device(add("check", _check, "verify every structure on it", _CHECK))
    check.add_argument("--original", metavar="DEVICE", help="prove that the two share no identity and all data")
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")
    resignature = _writing(add("resignature", _resignature, "give it new identities", _RESIGNATURE), "do not ask")
    _add_resignature_arguments(resignature)
    recover = add("recover", _recover, "finish a run that was cut", _RECOVER)
    _writing(recover, "accepted for scripts; recover never asks")
    recover.add_argument("--scsi-id", metavar="ID", help="SCSIid of the LUN; read from the device where it has one")
    _writing(add("undo", _undo, "give the old identities back, while that is possible", _UNDO), "do not ask")


def _writing(parser: argparse.ArgumentParser, yes: str) -> argparse.ArgumentParser:
    parser.add_argument("--yes", action="store_true", help=yes)
    parser.add_argument("--not-in-use", action="store_true", help="although xapi knows a user of the LUN, or is mute")
    return _on_device(parser)


def _on_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("device", metavar="DEVICE", help="block device or image file")
    return parser


def _add_resignature_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--sr-uuid", metavar="UUID", help="the new SR UUID; a random one otherwise")
    parser.add_argument("--map", metavar="FILE", help="old-to-new map (JSON, as --json prints it) to take ids from")
    parser.add_argument("--scsi-id", metavar="ID", help="SCSIid of the LUN; read from the device where it has one")
    parser.add_argument("--again", action="store_true", help="resignature it although that was done before")


_SHOW = """\
Nothing is written, and the device may be in use.

example:
  relvmoiscsi show /dev/sdc"""

_CHECK = """\
Nothing is written. With --original, both are read in full where they hold data: on a block device that takes as
long as reading it.

example:
  relvmoiscsi check /dev/sdc --original /dev/sdb"""

_RESIGNATURE = """\
DEVICE must be the clone. Everything is read, planned and checked before the first byte is written; then a journal
on the LUN makes the change one atomic step. Snapshots, chains, labels and CBT survive.
In dom0, a LUN that an SR or a VDI of the pool uses is refused, attached or not.

example:
  relvmoiscsi resignature /dev/sdc --dry-run
  relvmoiscsi resignature /dev/sdc --yes --json >map.json"""

_RECOVER = """\
After a power cut, a lost connection, a killed process: with the same new identities, on any host. Harmless where
nothing was cut.

example:
  relvmoiscsi recover /dev/sdc"""

_UNDO = """\
Possible until LVM next changes the volume group, for example when the SR is used. A run that was cut is taken back.

example:
  relvmoiscsi undo /dev/sdc"""


# --- commands


def _show(arguments: argparse.Namespace) -> Answer:
    with open_device(arguments.device, writable=False) as device:
        found = engine.inspect(device)
    return Answer(
        report.inspection_facts(arguments.device, found),
        report.inspection_text(arguments.device, found, _branches()),
    )


def _branches() -> report.Branches:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return report.UNICODE_BRANCHES if encoding == "utf8" else report.ASCII_BRANCHES


def _check(arguments: argparse.Namespace) -> Answer:
    if arguments.identities_only and not arguments.original:
        raise UsageError("--identities-only goes with --original.")
    with open_device(arguments.device, writable=False) as device:
        found = engine.inspect(device)
        if found.problem is not None:
            raise found.problem
        facts = report.inspection_facts(arguments.device, found)
        if arguments.original:
            return _compare(arguments, device, facts)
    text = f"{arguments.device}: every structure checks; state {found.state}."
    return Answer(facts, "\n".join([text] + ["note: " + sentence for sentence in facts["notes"]]))


def _compare(arguments: argparse.Namespace, clone: HostDevice, facts: Dict[str, Any]) -> Answer:
    if same_device(arguments.original, arguments.device):
        raise UsageError(f"{arguments.original} and {arguments.device} are the same device.")
    with open_device(arguments.original, writable=False) as original:
        data: Optional[List[Range]] = None
        if not arguments.identities_only:
            data = _joined(data_ranges(original) + data_ranges(clone))
        found = engine.compare(original, clone, data)
    facts.update(report.comparison_facts(arguments.device, arguments.original, found))
    if found.problems:
        refused = Refused(found.problems[0]).in_state(NOTHING_WRITTEN)
        facts.update(error_facts(refused))
        return Answer(facts, "\n".join(printable(problem) for problem in found.problems), refused.exit_status)
    compared = human_size(found.bytes_compared)
    text = "{} shares no identity with {}, and nothing else differs ({} of data compared).".format(
        arguments.device, arguments.original, compared if data is not None else "none"
    )
    return Answer(facts, text)


def _joined(ranges: Sequence[Range]) -> List[Range]:
    """Ranges in order, overlapping ones joined."""
    found: List[Range] = []
    for part in sorted(ranges):
        if found and part.offset <= found[-1].end:
            found[-1] = Range(found[-1].offset, max(found[-1].end, part.end) - found[-1].offset)
        else:
            found.append(part)
    return found


def _resignature(arguments: argparse.Namespace) -> Answer:
    path = arguments.device
    with in_state(NOTHING_WRITTEN):
        _must_be_able_to_ask(arguments)
        chosen = _chosen(arguments)
    finished = None if arguments.again else _finished_before(arguments, chosen)
    if finished is not None:
        return finished
    with _opened(arguments, not arguments.dry_run) as (device, ids):
        scsi_id = ids[0] if ids else None
        voice = _Terminal(arguments, ids, chosen)
        done = procedure.resignature(device, os.urandom, voice, scsi_id, chosen, arguments.again, arguments.sr_uuid)
        lun = engine.inspect(device).lun if isinstance(done, AlreadyDone) else None
    if isinstance(done, AlreadyDone):
        return _already_done(arguments, chosen, done, lun, scsi_id)
    if isinstance(done, Prepared):
        return _planned(path, done, scsi_id)
    return _done(path, done.result, _FINISHED.format(path, "resignature") if done.was_cut else _NEW.format(path))


def _finished_before(arguments: argparse.Namespace, chosen: IdMap) -> Optional[Answer]:
    """The answer where the same was done before. The LUN may be in use by now: it is read only."""
    with _opened(arguments, False) as (device, ids):
        scsi_id = ids[0] if ids else None
        with in_state(NOTHING_WRITTEN):
            done = engine.find_done(device, scsi_id)
        return None if done is None else _already_done(arguments, chosen, done, engine.inspect(device).lun, scsi_id)


def _refuse_contradictions(arguments: argparse.Namespace, chosen: IdMap, ids: IdMap, instead: str) -> None:
    """A script that has chosen ids must not take others for them."""
    found = mapfile.contradictions(chosen, arguments.sr_uuid, ids)
    if found:
        problem = f"{arguments.device} was given other ids before: {found[0]}. {instead}"
        raise Refused(problem).in_state(NOTHING_WRITTEN)


_NEW = "{} was resignatured."
_OF_A_COPY = "{} is a copy of a LUN whose resignature was cut (SCSIid {}); that is taken back here first."
_LATE = "{}: a write of a run that was taken back has landed late; it is taken back here first."
_FINISHED = "{}: the {} was finished."


class _Terminal(procedure.Voice):
    """Somebody at a terminal, who is told and asked; or a script, which has said yes."""

    def __init__(self, arguments: argparse.Namespace, ids: Sequence[str], chosen: IdMap) -> None:
        self._arguments, self._ids, self._chosen = arguments, ids, chosen

    def agrees_to_settle(self, mark: Mark, take_back: bool, problem: Unfinished) -> None:
        """A cut undo is the user's to finish; a dry run finishes nothing."""
        if self._arguments.dry_run or mark.tail.kind != RESIGNATURE:
            raise problem
        guard.verify_not_in_use(self._arguments, self._ids)
        path = self._arguments.device
        if take_back:
            is_copy = mark.journal.run.scsi_id not in (None, *self._ids)
            say((_OF_A_COPY if is_copy else _LATE).format(path, printable(str(mark.journal.run.scsi_id))))
            _ask(self._arguments, "Take it back?")
        else:
            instead = f"`relvmoiscsi recover {path}` finishes that, `relvmoiscsi undo {path}` takes it back."
            _refuse_contradictions(self._arguments, self._chosen, mark.journal.run.ids, instead)
            say(f"{path} holds a resignature that was cut; it is finished with the ids it had chosen.")
            _ask(self._arguments, "Finish it?")

    def agrees_to(self, prepared: Prepared) -> bool:
        guard.verify_not_in_use(self._arguments, self._ids)
        if self._arguments.dry_run:
            return False
        _say_plan(self._arguments, prepared)
        _ask(self._arguments, f"Give {self._arguments.device} these new identities?")
        return True

    def locks(self, run: Run) -> ContextManager[Any]:
        return guard.write_locks(self._arguments.device, engine.vg_names(run))

    def has_settled(self, mark: Mark, result: Result) -> None:
        """What is finished is the result; what was taken back is as the message before had it."""


def _finished(path: str, device: Device, mark: Mark, scsi_id: Optional[str]) -> Answer:
    with guard.write_locks(path, engine.vg_names(mark.journal.run)):
        result = engine.recover(device, mark, scsi_id)
    return _done(path, result, _FINISHED.format(path, _kind(result)))


def _kind(result: Result) -> str:
    return "resignature" if result.state == engine.RESIGNATURED else "undo"


def _recover(arguments: argparse.Namespace) -> Answer:
    with _opened(arguments, writable=True) as (device, ids):
        with in_state(NOTHING_WRITTEN):
            mark = engine.find_unfinished(device)
        if mark is not None:
            guard.verify_not_in_use(arguments, ids)
            return _finished(arguments.device, device, mark, ids[0] if ids else None)
        with in_state(NOTHING_WRITTEN):
            found = engine.inspect(device)
            if found.problem is not None:
                raise found.problem
    text = f"{arguments.device}: nothing was cut; state {found.state}. Nothing was written."
    return Answer(report.inspection_facts(arguments.device, found), text)


def _undo(arguments: argparse.Namespace) -> Answer:
    with in_state(NOTHING_WRITTEN):
        _must_be_able_to_ask(arguments)
    with _opened(arguments, writable=True) as (device, ids):
        mark = engine.read_undoable(device)
        guard.verify_not_in_use(arguments, ids)
        run = mark.journal.run
        old = run.ids.sr if mark.tail.kind == RESIGNATURE else run.ids.new_sr
        _ask(arguments, printable(f"Give {arguments.device} back the identities of SR {old}?"))
        with guard.write_locks(arguments.device, engine.vg_names(run)):
            result = engine.undo(device, os.urandom)
    return _done(arguments.device, result, f"{arguments.device} has its old identities back.")


# --- what commands share


@contextmanager
def _opened(arguments: argparse.Namespace, writable: bool) -> Iterator[Tuple[HostDevice, List[str]]]:
    """The device, for us alone if it is to be written; and its SCSIids, the one that was given first."""
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            ids = guard.scsi_ids(arguments.device, getattr(arguments, "scsi_id", None))
            if writable:
                held.enter_context(guard.lun_lock(arguments.device, ids))
            device = held.enter_context(open_device(arguments.device, writable))
        yield device, ids


def _must_be_able_to_ask(arguments: argparse.Namespace) -> None:
    if arguments.yes or getattr(arguments, "dry_run", False):
        return
    if arguments.json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("Nobody can be asked here; say --yes, or --dry-run to see the plan.")


def _ask(arguments: argparse.Namespace, question: str) -> None:
    if arguments.yes:
        return
    sys.stderr.write(question + " [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("Not confirmed.").in_state(NOTHING_WRITTEN)


def _say_plan(arguments: argparse.Namespace, prepared: Prepared) -> None:
    if not arguments.yes:
        lun, run = prepared.lun, prepared.plan.run
        say(f"{arguments.device}: {len(lun.disks())} VDIs, {len(lun.volumes)} volumes")
        write_line(sys.stderr, report.map_text(lun, run.ids))
    for sentence in notes(prepared.lun):
        say("note: " + printable(sentence))


def _done(path: str, result: Result, headline: str) -> Answer:
    if stat.S_ISBLK(os.stat(path).st_mode):
        for sentence in tell_lvm(path, command.run):
            say(sentence)
    lines = [headline]
    if result.ids is not None:
        lines.append(report.map_text(result.lun, result.ids))
    lines.append(f"  {result.writes} writes, {human_size(result.bytes_written)}, {result.flushes} flushes")
    return Answer(report.result_facts(path, result), "\n".join(lines))


def _already_done(
    arguments: argparse.Namespace, chosen: IdMap, done: AlreadyDone, lun: Optional[Lun], scsi_id: Optional[str]
) -> Answer:
    """`lun` is what is on it, as far as that reads now: it may be in use.

    Raises Refused where other ids were chosen than it has.
    """
    path, ids = arguments.device, done.run.ids if done.run else None
    known = ids or IdMap("", {"": done.sr_uuid}, {})
    _refuse_contradictions(arguments, chosen, known, "With --again it is resignatured once more.")
    result = Result(engine.RESIGNATURED, lun, ids, scsi_id, already_done=True)
    text = f"{path} was resignatured already, as SR {done.sr_uuid}. Nothing was written."
    facts = report.result_facts(path, result)
    facts.setdefault("sr", {"old": None, "new": done.sr_uuid})
    return Answer(facts, text)


def _planned(path: str, prepared: Prepared, scsi_id: Optional[str]) -> Answer:
    result = Result(prepared.state, prepared.lun, prepared.plan.run.ids, scsi_id)
    facts = report.result_facts(path, result)
    facts["plan"] = report.plan_facts(prepared.plan)
    lines = [f"{path}: this would be written; nothing was."]
    lines += [report.map_text(prepared.lun, prepared.plan.run.ids), "", report.plan_text(prepared.plan)]
    return Answer(facts, "\n".join(lines + report.note_lines(facts["notes"])))


# --- chosen ids


def _chosen(arguments: argparse.Namespace) -> IdMap:
    """The ids of --map. Raises UsageError."""
    if arguments.sr_uuid is not None:
        mapfile.checked_uuid(arguments.sr_uuid)
    if arguments.map is None:
        return IdMap("", {}, {})
    try:
        with open(arguments.map, encoding="utf-8") as file:
            return mapfile.read_map(json.load(file), arguments.map)
    except OSError as error:
        raise UsageError(f"{arguments.map}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{arguments.map} does not read as JSON: {error}.") from error


# --- when it fails


def failure_facts(path: str) -> Dict[str, Any]:
    """What --json gives beside the error: the device, and its state unless it does not even open."""
    try:
        with open_device(path, writable=False) as device:
            return {"state": engine.inspect(device).state, "device": path}
    except RelvmoiscsiError:
        return {"state": None, "device": path}
