# SPDX-License-Identifier: LGPL-2.1-only
"""The command that gives a LUN new identities."""

import argparse
import json
import os
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, Optional

from relvmoiscsi import engine, report, untrusted
from relvmoiscsi.cli import opening
from relvmoiscsi.cli.on_lun import FINISHED, Terminal, answer, opened_to_write, permission_of, warn, writes
from relvmoiscsi.cli.opening import source_of
from relvmoiscsi.cli.output import Answer, Bar, Maker, say, tell
from relvmoiscsi.engine import (
    RESIGNATURE,
    AlreadyDone,
    LaterCopy,
    OneVdiRequest,
    Prepared,
    ResignatureRequest,
    notes,
)
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError, in_state
from relvmoiscsi.formats import mapfile
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.own_path import NotOwn, verify_own_file
from relvmoiscsi.host.settings import ALL, VDIS
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import (
    already_done_facts,
    dry_run_facts,
    find_finished,
    identify,
    refuse_other_run,
    unsaid_copy,
)
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.run import NewRun, Proposal, Settlement
from relvmoiscsi.lun.source import LunSource
from relvmoiscsi.wording import printable

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
    parser.add_argument("-n", "--dry-run", action="store_true", help="print the plan and write nothing")
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
    parser.add_argument(
        "--later-copy",
        action="store_true",
        help="with --yes: the LUN is a copy of a resignatured LUN, and not that LUN under a new SCSIid",
    )


def _resignature(arguments: argparse.Namespace) -> Answer:
    name = arguments.device
    with in_state(NOTHING_WRITTEN):
        chosen, one = _chosen(arguments), _one(arguments)
        without = tuple(mapfile.checked_uuid(uuid.lower()) for uuid in arguments.without)
        source = source_of(arguments, name)

    def request(lun: OpenLun) -> ResignatureRequest:
        clear = arguments.clear_metadata_vdi
        return ResignatureRequest(
            lun.ids.own, chosen, arguments.again, arguments.sr_uuid, one, clear, without, arguments.words
        )

    if arguments.dry_run:
        return _dry_run(arguments, source, request)
    if not arguments.again:
        with _opened_to_look(arguments, source) as lun:
            finished = find_finished(lun, request(lun))
            if finished is not None:
                return _already_done(finished)
    with opened_to_write(arguments, source) as lun, Bar() as bar:
        consent = _Consent(arguments, lun, request(lun))
        done = run.resignature(lun, request(lun), os.urandom, consent, lambda _what, copied, total: bar(copied, total))
        if isinstance(done, AlreadyDone):
            return _already_done(already_done_facts(lun, request(lun), done, engine.inspect(lun.device).lun))
    headline = FINISHED.format(name, "resignature") if done.was_cut else f"{name} was resignatured."
    return answer(lun, done, headline)


def _already_done(facts: Dict[str, Any]) -> Answer:
    text = f"{facts['device']} was already resignatured, as SR {facts['sr']['new']}. Nothing was written."
    return Answer(facts, text)


def _dry_run(
    arguments: argparse.Namespace, source: LunSource, request: Callable[[OpenLun], ResignatureRequest]
) -> Answer:
    with run.recording(opening.HOST), _opened_to_look(arguments, source) as lun:
        done = run.plan(lun, request(lun), os.urandom)
        if isinstance(done, AlreadyDone):
            return _already_done(already_done_facts(lun, request(lun), done, engine.inspect(lun.device).lun))
        objection, prepared = done.pool.objection, done.prepared
        if done.pool.is_overridden and objection is not None:
            warn(f"--not-in-use: {lun.name} will be changed despite this refusal: {objection.message}")
        elif objection is not None:
            say("note: a run without --dry-run is refused: " + printable(objection.message))
        if prepared.later_copy is not None:
            try:
                _as_later_copy(arguments, lun.name, prepared.later_copy)
            except Refused as refusal:
                say("note: a run without --dry-run is refused: " + printable(refusal.message))
    facts, loss = dry_run_facts(lun, done), report.loss_of(prepared)
    lines = [f"{lun.name}: dry run. These writes are planned; nothing was written."]
    lines += identify(lun, done.pool, prepared.lun).lines()
    lines += [report.cost_text(prepared.cost)] if prepared.cost is not None else []
    lines += loss.lines if loss is not None else []
    lines += [report.map_text(prepared.lun, prepared.plan.run.ids), "", report.plan_text(prepared.plan)]
    return Answer(facts, "\n".join(lines + report.note_lines(facts["notes"])))


@contextmanager
def _opened_to_look(arguments: argparse.Namespace, source: LunSource) -> Iterator[OpenLun]:
    """Open the LUN, which may be in use, for reading only.

    Opening for writing would be refused, and udev would scan the LUN when the command closes it.
    """
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            lun = held.enter_context(source.opened_to_read(permission_of(arguments)))
        yield lun


# --- questions at a terminal

_WHY = {
    run.OF_A_COPY: "{} is a copy of a LUN whose resignature was cut (SCSIid {}); this run rolls it back first.",
    run.OTHER_VDIS: "{} holds an interrupted resignature that keeps other VDIs; this run rolls it back first.",
    run.BEFORE_COMMIT: "{} holds a resignature that was interrupted before its commit; this run rolls it back first.",
}


class _Consent(Terminal):
    """The consent to a new run, and to settling an interrupted run first."""

    def __init__(self, arguments: argparse.Namespace, lun: OpenLun, request: ResignatureRequest) -> None:
        super().__init__(arguments, lun)
        self._request = request

    def __call__(self, proposal: Proposal) -> None:
        if isinstance(proposal, Settlement):
            self._to_settle(proposal)
        elif isinstance(proposal, NewRun):
            self.identify(proposal)
            as_copy = _as_later_copy(self._arguments, self._lun.name, proposal.prepared.later_copy)
            question = f"Give {self._lun.name} these new identities{as_copy}?"
            self.ask(proposal, question, _say_plan(self._arguments, proposal.prepared))

    def _to_settle(self, proposal: Settlement) -> None:
        """Raise the problem of an interrupted undo, which the user must finish. Ask otherwise."""
        name, run_cut = self._lun.name, proposal.mark.journal.run
        if proposal.mark.commit_record.kind != RESIGNATURE and proposal.problem is not None:
            raise proposal.problem
        self.identify(proposal)
        if proposal.why:
            say(_WHY[proposal.why].format(name, printable(str(run_cut.scsi_id))))
            self.ask(proposal, "Roll the interrupted resignature back?")
            return
        refuse_other_run(name, self._request, run_cut.ids)
        say(f"{name} holds an interrupted resignature. This run finishes it with the ids that were chosen then.")
        self.ask(proposal, f"Finish the resignature to SR {run_cut.ids.new_sr}?")


def _as_later_copy(arguments: argparse.Namespace, name: str, copy: Optional[LaterCopy]) -> str:
    """Say that the LUN is taken for a later copy; return the words for the question, "" for any other LUN.

    Raises Refused for a script that has not said so.
    """
    if copy is None:
        return ""
    if arguments.yes and not (arguments.again or arguments.later_copy):
        raise unsaid_copy(name, copy)
    say("note: " + printable(copy.sentence(name)))
    return ", as a later copy"


def _say_plan(arguments: argparse.Namespace, prepared: Prepared) -> str:
    """Print the plan; return the question about the loss of data, "" without a loss."""
    asks, loss = not arguments.yes, report.loss_of(prepared)
    if asks:
        tell(report.map_text(prepared.lun, prepared.plan.run.ids))
    for sentence in notes(prepared.lun):
        say("note: " + printable(sentence))
    if prepared.cost is not None:
        say(report.cost_text(prepared.cost))
    if loss is None:
        return ""
    (tell if asks else say)("\n".join(loss.lines))
    return loss.question


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
        verify_own_file(arguments.map)
        with open(arguments.map, "rb") as file:
            facts = untrusted.json_of(file.read(), _MOST_MAP_BYTES, _MOST_MAP_VALUES)
        chosen = mapfile.read_map(facts, arguments.map)
    except NotOwn as problem:
        raise UsageError(f"The file of --map is not safe: {problem}. Copy it into a directory of your own.") from None
    except OSError as error:
        raise UsageError(f"{arguments.map}: {error.strerror}.") from error
    except ValueError as error:  # the message shows nothing of the file: root may read what the caller may not
        at = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "a value"
        raise UsageError(f"{arguments.map} is not valid JSON: {at} cannot be read.") from None
    new_sr = mapfile.chosen_sr(facts)
    if None not in (new_sr, arguments.sr_uuid) and new_sr != arguments.sr_uuid:
        raise UsageError(f"{arguments.map} is a map for the SR {new_sr}, but --sr-uuid says {arguments.sr_uuid}.")
    arguments.sr_uuid = arguments.sr_uuid or new_sr
    return chosen
