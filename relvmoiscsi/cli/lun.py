# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on a LUN: show, check, resignature, recover, undo."""

import argparse
import json
import os
import stat
import sys
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

from relvmoiscsi import engine, mapfile, report
from relvmoiscsi.cli.output import Adder, Answer, say, write_line
from relvmoiscsi.device import Device, Range
from relvmoiscsi.engine import AlreadyDone, Prepared, Result
from relvmoiscsi.errors import Refused, RelvmoiscsiError, Unfinished, UsageError
from relvmoiscsi.host import command
from relvmoiscsi.host.device import HostDevice, data_ranges, open_device, same_device
from relvmoiscsi.host.lock import lvm_locks
from relvmoiscsi.host.lvm import tell_lvm
from relvmoiscsi.host.scsi import scsi_id_of
from relvmoiscsi.identity import IdMap
from relvmoiscsi.journal import RESIGNATURE, Run
from relvmoiscsi.lun import warnings
from relvmoiscsi.recovery import Mark
from relvmoiscsi.wording import error_facts, human_size, printable


def add_commands(add: Adder) -> None:
    """Describe the commands and their arguments."""
    _on_device(add("show", _show, "what is on it: SR, VDIs as a tree of chains, state", _SHOW))
    check = _on_device(add("check", _check, "verify every structure on it", _CHECK))
    check.add_argument("--original", metavar="DEVICE", help="prove that the two share no identity and all data")
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")
    resignature = _on_device(add("resignature", _resignature, "give it new identities", _RESIGNATURE))
    _add_resignature_arguments(resignature)
    recover = _on_device(add("recover", _recover, "finish a run that was cut", _RECOVER))
    recover.add_argument("--scsi-id", metavar="ID", help="SCSIid of the LUN; read from the device where it has one")
    recover.add_argument("--yes", action="store_true", help="accepted for scripts; recover never asks")
    undo = _on_device(add("undo", _undo, "give the old identities back, while that is possible", _UNDO))
    undo.add_argument("--yes", action="store_true", help="do not ask")


def _on_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("device", metavar="DEVICE", help="block device or image file")
    return parser


def _add_resignature_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
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
    text = "{}: every structure checks; state {}.".format(arguments.device, found.state)
    return Answer(facts, "\n".join([text] + ["note: " + sentence for sentence in facts["warnings"]]))


def _compare(arguments: argparse.Namespace, clone: HostDevice, facts: Dict[str, Any]) -> Answer:
    if same_device(arguments.original, arguments.device):
        raise UsageError("{} and {} are the same device.".format(arguments.original, arguments.device))
    with open_device(arguments.original, writable=False) as original:
        data: Optional[List[Range]] = None
        if not arguments.identities_only:
            data = _joined(data_ranges(original) + data_ranges(clone))
        found = engine.compare(original, clone, data)
    facts.update(report.comparison_facts(arguments.device, arguments.original, found))
    if found.problems:
        refused = Refused(found.problems[0]).in_state("Nothing was written.")
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
    with _nothing_written():
        _must_be_able_to_ask(arguments)
        chosen = _chosen(arguments)
        opened = open_device(arguments.device, writable=not arguments.dry_run)
    with opened as device:
        scsi_id = _scsi_id(arguments)
        try:
            prepared = engine.prepare(device, os.urandom, scsi_id, chosen, arguments.again, arguments.sr_uuid)
        except Unfinished as problem:
            return _finish_first(arguments, device, problem, scsi_id)
        if isinstance(prepared, AlreadyDone):
            return _already_done(arguments.device, prepared, scsi_id)
        if arguments.dry_run:
            return _planned(arguments.device, prepared, scsi_id)
        _say_plan(arguments, prepared)
        _ask(arguments, "Give {} these new identities?".format(arguments.device))
        with _locks(arguments.device, prepared.plan.run):
            result = engine.resignature(device, prepared)
    return _done(arguments.device, result, "{} was resignatured.".format(arguments.device))


def _finish_first(arguments: argparse.Namespace, device: Device, problem: Unfinished, scsi_id: Optional[str]) -> Answer:
    """An earlier resignature was cut: the ids it chose must win. An undo that was cut is the user's to finish."""
    with _nothing_written():
        mark = engine.find_unfinished(device)
    if arguments.dry_run or mark is None or mark.tail.kind != RESIGNATURE:
        raise problem
    say("{} holds a resignature that was cut; it is finished with the ids it had chosen.".format(arguments.device))
    _ask(arguments, "Finish it?")
    return _finished(arguments.device, device, mark, scsi_id)


def _finished(path: str, device: Device, mark: Mark, scsi_id: Optional[str]) -> Answer:
    with _locks(path, mark.journal.run):
        result = engine.recover(device, mark, scsi_id)
    return _done(path, result, "{}: the {} was finished.".format(path, _kind(result)))


def _kind(result: Result) -> str:
    return "resignature" if result.state == engine.RESIGNATURED else "undo"


def _recover(arguments: argparse.Namespace) -> Answer:
    with _nothing_written():
        opened = open_device(arguments.device, writable=True)
    with opened as device:
        scsi_id = _scsi_id(arguments)
        with _nothing_written():
            mark = engine.find_unfinished(device)
        if mark is not None:
            return _finished(arguments.device, device, mark, scsi_id)
        with _nothing_written():
            found = engine.inspect(device)
            if found.problem is not None:
                raise found.problem
    text = "{}: nothing was cut; state {}. Nothing was written.".format(arguments.device, found.state)
    return Answer(report.inspection_facts(arguments.device, found), text)


def _undo(arguments: argparse.Namespace) -> Answer:
    with _nothing_written():
        _must_be_able_to_ask(arguments)
        opened = open_device(arguments.device, writable=True)
    with opened as device:
        mark = engine.read_undoable(device)
        ids = mark.journal.run.ids
        old = ids.sr if mark.tail.kind == RESIGNATURE else ids.new_sr
        _ask(arguments, printable("Give {} back the identities of SR {}?".format(arguments.device, old)))
        with _locks(arguments.device, mark.journal.run):
            result = engine.undo(device, os.urandom)
    return _done(arguments.device, result, "{} has its old identities back.".format(arguments.device))


# --- what commands share


@contextmanager
def _nothing_written() -> Iterator[None]:
    """Around what comes before the first write: an error from there says that there was none."""
    try:
        yield
    except RelvmoiscsiError as error:
        error.in_state("Nothing was written.")
        raise


def _scsi_id(arguments: argparse.Namespace) -> Optional[str]:
    """The SCSIid that was given, or that of the device, which is open: so it is there."""
    with _nothing_written():
        return arguments.scsi_id or scsi_id_of(arguments.device)


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
        raise Refused("Not confirmed.").in_state("Nothing was written.")


def _say_plan(arguments: argparse.Namespace, prepared: Prepared) -> None:
    if not arguments.yes:
        lun, run = prepared.lun, prepared.plan.run
        say("{}: {} VDIs, {} volumes".format(arguments.device, len(lun.disks()), len(lun.volumes)))
        write_line(sys.stderr, report.map_text(lun, run.ids))
    for sentence in warnings(prepared.lun):
        say("note: " + printable(sentence))


def _locks(path: str, run: Run) -> ExitStack:
    """LVM's own locks on both names, where the device is one that LVM can see."""
    stack = ExitStack()
    if stat.S_ISBLK(os.stat(path).st_mode):
        stack.enter_context(lvm_locks(engine.vg_names(run)))
    return stack


def _done(path: str, result: Result, headline: str) -> Answer:
    if stat.S_ISBLK(os.stat(path).st_mode):
        for sentence in tell_lvm(path, command.run):
            say(sentence)
    lines = [headline]
    if result.ids is not None:
        lines.append(report.map_text(result.lun, result.ids))
    lines.append("  {} writes, {}, {} flushes".format(result.writes, human_size(result.bytes_written), result.flushes))
    return Answer(report.result_facts(path, result), "\n".join(lines))


def _already_done(path: str, done: AlreadyDone, scsi_id: Optional[str]) -> Answer:
    ids = done.run.ids if done.run else None
    result = Result(engine.RESIGNATURED, done.lun, ids, scsi_id, already_done=True)
    text = "{} was resignatured already, as SR {}. Nothing was written.".format(path, done.lun.sr_uuid)
    return Answer(report.result_facts(path, result), text)


def _planned(path: str, prepared: Prepared, scsi_id: Optional[str]) -> Answer:
    result = Result(prepared.state, prepared.lun, prepared.plan.run.ids, scsi_id)
    facts = report.result_facts(path, result)
    facts["plan"] = report.plan_facts(prepared.plan)
    text = "{}: this would be written; nothing was.\n{}\n\n{}".format(
        path, report.map_text(prepared.lun, prepared.plan.run.ids), report.plan_text(prepared.plan)
    )
    return Answer(facts, text)


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
        raise UsageError("{}: {}.".format(arguments.map, error.strerror)) from error
    except ValueError as error:
        raise UsageError("{} does not read as JSON: {}.".format(arguments.map, error)) from error


# --- when it fails


def failure_facts(path: str) -> Dict[str, Any]:
    """What --json gives beside the error: the device, and its state unless it does not even open."""
    try:
        with open_device(path, writable=False) as device:
            return {"state": engine.inspect(device).state, "device": path}
    except RelvmoiscsiError:
        return {"state": None, "device": path}
