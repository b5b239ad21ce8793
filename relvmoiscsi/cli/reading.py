# SPDX-License-Identifier: LGPL-2.1-only
"""The commands that only read a LUN: `show` prints its content; `check` verifies it, alone or against its original."""

import argparse
import re
import sys
from typing import Any, Dict, List, Optional, Sequence

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import failure_facts, next_line
from relvmoiscsi.cli.opening import device_word, source_of, takes_device
from relvmoiscsi.cli.output import Answer, Bar, Maker, say
from relvmoiscsi.device import Range
from relvmoiscsi.engine import saved as saved_vms
from relvmoiscsi.errors import NOTHING_WRITTEN, Partial, Refused, RelvmoiscsiError, UsageError, error_facts
from relvmoiscsi.lun.answer import identify
from relvmoiscsi.lun.lun_url import is_url
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.source import LunSource
from relvmoiscsi.wording import counted, human_size, printable, shell_words

_SHOW = """\
The command writes nothing, and the LUN may be in use. In dom0, the command asks xapi who uses the LUN. A URL
without a LUN lists the LUNs behind the target. A URL without an IQN lists the targets.

example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi show iscsi://10.0.0.1
  relvmoiscsi show iscsi://10.0.0.1/iqn.2026-01.example:array"""

_CHECK = """\
The command writes nothing. Of a damaged LUN, the command prints every defect with its position, and the exit
status is 5. With --original, the command reads all data of both devices and compares them. On a terminal, a
bar shows the progress and the remaining time.

example:
  relvmoiscsi check /dev/sdc --original /dev/sdb"""


def add_show(make: Maker) -> None:
    takes_device(make(_show, _SHOW), nargs="+", action=_Devices)


def add_check(make: Maker) -> None:
    check = takes_device(make(_check, _CHECK))
    what = "also check that both devices share no identity and hold the same data"
    check.add_argument("--original", metavar="DEVICE", type=device_word, help=what)
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")


# --- show


class _Devices(argparse.Action):
    """Stores all devices, and the first device as `device`."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        namespace.devices, namespace.device = values, values[0]


def _show(arguments: argparse.Namespace) -> Answer:
    """Show each device. A device that cannot be read hides no other; the error of an only device propagates."""
    if len(arguments.devices) == 1:
        return _show_one(arguments)
    answers = []
    for device in arguments.devices:
        one = argparse.Namespace(**{**vars(arguments), "device": device})
        try:
            answers.append(_show_one(one))
        except RelvmoiscsiError as error:
            facts = {**failure_facts(one, error), **error_facts(error)}
            answers.append(Answer(facts, printable(str(error)), error.exit_status))
    failed = [answer.status for answer in answers if answer.status]
    status = Partial.exit_status if failed and len(failed) < len(answers) else max(failed, default=0)
    return Answer({"devices": [each.facts for each in answers]}, "\n\n".join(each.text for each in answers), status)


def _show_one(arguments: argparse.Namespace) -> Answer:
    if is_url(arguments.device):
        from relvmoiscsi.cli.listing import listed  # noqa: PLC0415 - a path needs no initiator

        found_there = listed(arguments)
        if found_there is not None:
            return found_there
    with source_of(arguments, arguments.device).opened_to_read() as lun:
        found = engine.inspect(lun.device, _resignature_words(arguments))
        one = engine.one_vdi(lun.device, found.lun) if found.lun is not None else None
        saved = saved_vms(lun.device, found.lun) if found.lun is not None else None
        pool = lun.guard.ask([found.lun.sr_uuid] if found.lun is not None else [], "")
        told = identify(lun, pool, found.lun, found.run and found.run.ids.sr)
    facts = report.inspection_facts(arguments.device, found)
    facts["lun"] = told.facts()
    if one is not None:
        facts["one_vdi"] = report.one_vdi_facts(one)
        facts["saved_vms"] = report.saved_vms_facts(saved)
    who = [told.device_line(), told.pool_line()]
    return Answer(facts, report.inspection_text(arguments.device, found, _branches(), one, saved, who))


def _resignature_words(arguments: argparse.Namespace) -> Sequence[str]:
    """Return the command that resignatures the device, with the same login."""
    login = {"--initiator-name": arguments.initiator_name, "--chap-file": arguments.chap_file}
    options = [word for option, value in login.items() if value is not None for word in (option, value)]
    return ("relvmoiscsi", "resignature", arguments.device, *options)


def _branches() -> report.Branches:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return report.UNICODE_BRANCHES if encoding == "utf8" else report.ASCII_BRANCHES


# --- check


def _check(arguments: argparse.Namespace) -> Answer:
    if arguments.identities_only and not arguments.original:
        raise UsageError("--identities-only needs --original.")
    source = source_of(arguments, arguments.device)
    with source.opened_to_read() as lun:
        found = engine.inspect(lun.device, _resignature_words(arguments))
        facts = report.inspection_facts(arguments.device, found)
        if found.defects:
            return _told(
                arguments,
                found.defects[0],
                facts,
                report.defects_text(arguments.device, found) + "\n" + _way_out(arguments, found.defects),
            )
        if found.problem is not None:
            raise found.problem
        if arguments.original:
            return _compare(arguments, source, lun, facts)
    if found.contradictions:
        return _told(arguments, found.contradictions[0], facts, report.contradictions_text(arguments.device, found))
    text = f"{arguments.device}: every structure checks; state {found.state}."
    notes = ["note: " + sentence for sentence in facts["notes"]]
    return Answer(facts, "\n".join([text, *notes, next_line(found.state, arguments.device)]))


def _way_out(arguments: argparse.Namespace, defects: Sequence[RelvmoiscsiError]) -> str:
    """Return the next step for a damaged LUN: the command that a defect names, or a look at the original."""
    commands = [found for defect in defects for found in re.findall(r"`([^`]+ [^`]+)`", defect.message)]
    for found in sorted(commands, key=lambda words: not words.startswith("relvmoiscsi ")):
        return f"next: {found}"
    words = shell_words("relvmoiscsi", "check", "ORIGINAL")
    return f"next: {words}\nIf the original is whole, the copy is incomplete: take the copy again from the array."


def _told(arguments: argparse.Namespace, first: RelvmoiscsiError, facts: Dict[str, Any], text: str) -> Answer:
    """Return all defects as the result. With --json, stderr also gets the first defect, as for other commands."""
    if arguments.json:
        say(printable(str(first)))
    return Answer({**facts, **error_facts(first)}, text, first.exit_status)


def _compare(arguments: argparse.Namespace, source: LunSource, clone: OpenLun, facts: Dict[str, Any]) -> Answer:
    original_source = source_of(arguments, arguments.original)
    if original_source.is_same(source):
        raise UsageError(f"{arguments.original} and {arguments.device} are the same device.")
    with original_source.opened_to_read() as original:
        data: Optional[List[Range]] = None
        if not arguments.identities_only:
            data = _joined(original.data_ranges() + clone.data_ranges())
        with Bar() as bar:
            found = engine.compare(original.device, clone.device, data, bar)
    facts.update(report.comparison_facts(arguments.device, arguments.original, found))
    if found.problems:
        refused = Refused(found.problems[0]).in_state(NOTHING_WRITTEN)
        facts.update(error_facts(refused))
        count = counted(len(found.problems), "finding")
        verdict = f"{arguments.device}, state {facts['state']}, is no finished copy of {arguments.original}: {count}."
        lines = [verdict, *map(printable, found.problems)]
        after = _TAKE_AGAIN if facts["state"] == engine.RESIGNATURED else next_line(facts["state"], arguments.device)
        if found.problems[0].startswith("The original is another SR"):
            after = next_line(engine.RESIGNATURED, arguments.device)
        return Answer(facts, "\n".join([*lines, after]), refused.exit_status)
    compared = human_size(found.bytes_compared)
    text = "{} shares no identity with {}, and nothing else differs ({} of data compared).".format(
        arguments.device, arguments.original, compared if data is not None else "none"
    )
    lost = [f"note: the clone does not hold VDI {uuid} of the original." for uuid in found.left_behind]
    return Answer(facts, "\n".join([text, *lost]))


_TAKE_AGAIN = "next: attach neither beside the other; take the copy again from the array, and resignature that copy."


def _joined(ranges: Sequence[Range]) -> List[Range]:
    """Return the ranges in order, with overlapping and touching ranges joined."""
    found: List[Range] = []
    for part in sorted(ranges):
        if found and part.offset <= found[-1].end:
            found[-1] = Range(found[-1].offset, max(found[-1].end, part.end) - found[-1].offset)
        else:
            found.append(part)
    return found
