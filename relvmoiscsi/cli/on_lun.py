# SPDX-License-Identifier: LGPL-2.1-only
"""Common code of the commands that write to a LUN: options, the open LUN, questions, the answer."""

import argparse
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Optional

from relvmoiscsi import engine, report, wording
from relvmoiscsi.cli import map_out, opening
from relvmoiscsi.cli.opening import source_of, takes_device
from relvmoiscsi.cli.output import Answer, ask, ask_for, must_be_able_to_ask, say, tell
from relvmoiscsi.engine import Result
from relvmoiscsi.errors import NOTHING_WRITTEN, RelvmoiscsiError, in_state
from relvmoiscsi.lun import run
from relvmoiscsi.lun.answer import completed_facts, identification
from relvmoiscsi.lun.guard import Permission
from relvmoiscsi.lun.lun_url import is_url, parse_url
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.run import Proposal
from relvmoiscsi.lun.source import LunSource
from relvmoiscsi.portal import DEFAULT_PORT
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.wording import human_size, printable, shell_words

FINISHED = "{}: the {} was finished."


def writes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add DEVICE and the options of a command that writes; return the parser."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--not-in-use", action="store_true", help="proceed even if xapi reports the LUN in use or does not answer"
    )
    parser.add_argument("--scsi-id", metavar="ID", help="SCSIid of the clone; refuse a device with another SCSIid")
    parser.add_argument(
        "--map-out", metavar="FILE", help="write the JSON output, with the old-to-new map, to a new FILE"
    )
    parser.set_defaults(run=map_out.written(parser.get_default("run")))
    return takes_device(parser)


@contextmanager
def opened_to_write(arguments: argparse.Namespace, source: Optional[LunSource] = None) -> Iterator[OpenLun]:
    """Open the device for a write. The map of a run goes to SMlog, or to syslog on a machine without SM."""
    with ExitStack() as held, run.recording(opening.HOST):
        with in_state(NOTHING_WRITTEN):
            source = source or source_of(arguments, arguments.device)
            lun = held.enter_context(source.opened_to_write(permission_of(arguments)))
        yield lun


def permission_of(arguments: argparse.Namespace) -> Permission:
    """Return what the options say about the LUN. Raises UsageError for a malformed SCSIid."""
    scsi_id = None if arguments.scsi_id is None else typed_scsi_id(arguments.scsi_id)
    return Permission(scsi_id, arguments.not_in_use, not arguments.yes)


class Terminal:
    """The consent of a person at a terminal, or of a script by its options."""

    def __init__(self, arguments: argparse.Namespace, lun: OpenLun) -> None:
        self._arguments, self._lun = arguments, lun

    def identify(self, proposal: Proposal) -> None:
        """Print what the LUN is, before a question. Raises UsageError where a question needs a missing terminal."""
        must_be_able_to_ask(self._arguments, self._beside_yes(proposal))
        if proposal.pool.is_overridden and proposal.pool.objection is not None:
            problem = proposal.pool.objection.message
            warn(f"--not-in-use: {self._lun.name} will be changed despite this refusal: {problem}")
        if not self._arguments.yes:
            say(f"{self._lun.name} will be changed:")
            tell("\n".join(identification(self._lun, proposal).lines()))

    def ask(self, proposal: Proposal, question: str, loss: str = "") -> None:
        """Return after a confirmation. Ask for the SCSIid where no pool has answered, otherwise for a yes.

        `loss` is a second question, about data that the run destroys. Raises Refused.
        """
        if loss:
            ask(self._arguments, loss)
        if self._is_unknown(proposal) and not self._lun.ids.is_named:
            ask_for(self._arguments, question + " Type the SCSIid of the clone:", str(self._lun.ids.own))
        elif not loss:
            ask(self._arguments, question)

    def _is_unknown(self, proposal: Proposal) -> bool:
        """Has neither a pool nor --not-in-use said that the LUN is unused?"""
        return self._lun.is_lun and proposal.pool.is_missing and not self._arguments.not_in_use

    def _beside_yes(self, proposal: Proposal) -> str:
        """Return the options without which --yes is refused; "" where --yes is enough."""
        if not self._is_unknown(proposal) or self._lun.ids.is_named:
            return ""
        return "--not-in-use" if self._lun.ids.own is None else "--scsi-id ID or --not-in-use"


def warn(sentence: str) -> None:
    """Print a warning on stderr and write the warning to the log of the runs."""
    text = printable(sentence)
    say("warning: " + text)
    run.record.warning("%s", text)


def answer(lun: OpenLun, outcome: run.CompletedRun, headline: str) -> Answer:
    """Return the answer after a write, when the LUN is closed; refresh what this machine remembers of the LUN."""
    result = outcome.result
    for sentence in lun.refresh():
        say(sentence)
    lines = [headline]
    if result.ids is not None:
        lines.append(report.map_text(result.lun, result.ids))
    lines.append(f"  {result.writes} writes, {human_size(result.bytes_written)}, {result.flushes} flushes")
    return Answer(completed_facts(lun, outcome), "\n".join([*lines, *_next_steps(lun, result)]))


def _next_steps(lun: OpenLun, result: Result) -> List[str]:
    """Return the next steps: the commands that attach the new SR, with its values.

    For a clone with its old identities, return how to resignature the clone. Return nothing for an image file with new
    identities, because no host attaches an image file.
    """
    if result.state != engine.RESIGNATURED:
        resignature = wording.command("relvmoiscsi", "resignature", lun.name)
        return [
            f"next: give the clone new identities with {resignature}, or detach it. "
            "No host may attach it beside its original."
        ]
    scsi_id = lun.ids.own
    if scsi_id is None or result.ids is None or result.lun is None:
        return []
    sr, config, sr_type = result.ids.new_sr, [], "lvmohba"  # type: str, List[str], str
    if is_url(lun.name):
        url = parse_url(lun.name)
        sr_type, config = "lvmoiscsi", [f"target={url.portal.host}", f"targetIQN={url.iqn}"]
        config += [f"port={url.portal.port}"] if url.portal.port != DEFAULT_PORT else []
    name = (result.lun.mgt.name_label if result.lun.mgt else "") + " copy"
    introduce = [f"uuid={sr}", f"type={sr_type}", f"name-label={name}", "shared=true", "content-type=user"]
    create = [f"sr-uuid={sr}", "host-uuid=HOST", *(f"device-config:{one}" for one in [*config, f"SCSIid={scsi_id}"])]
    lines = ["next, on the pool master (pbd-create and pbd-plug for each host):"]
    if not config:
        lines.append("  for a LUN behind iSCSI, use type=lvmoiscsi and add device-config:target and targetIQN")
    return [
        *lines,
        f"  {shell_words('xe', 'sr-introduce', *introduce)}",
        f"  {shell_words('xe', 'pbd-create', *create)}",
        "  xe pbd-plug uuid=PBD",
    ]


def next_line(state: str, device: str) -> str:
    """Return the next step with a LUN in this state."""
    if state == engine.RESIGNATURED:
        return "next: " + shell_words("relvmoiscsi", "check", "--original", "ORIGINAL", device)
    return "next: " + shell_words("relvmoiscsi", "resignature", device)


def failure_facts(arguments: argparse.Namespace, problem: RelvmoiscsiError) -> Dict[str, Any]:
    """Return the device and its state, for --json beside the error; None as state if the device does not open."""
    path = arguments.device
    try:
        source = source_of(arguments, path)
        if source.may_open_after(problem):
            with source.opened_to_read() as lun:
                return {"state": engine.inspect(lun.device).state, "device": path}
    except RelvmoiscsiError:
        pass
    return {"state": None, "device": path}
