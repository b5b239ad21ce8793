# SPDX-License-Identifier: LGPL-2.1-only
"""The command that verifies a LUN, alone or against its original."""

import argparse
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from relvmoiscsi import engine, report
from relvmoiscsi.cli.device_word import device_word, takes_device
from relvmoiscsi.cli.opening import is_same, opened_to_read, ranges_with_data
from relvmoiscsi.cli.output import Answer, Maker, say
from relvmoiscsi.cli.progress import Bar
from relvmoiscsi.device import Range
from relvmoiscsi.engine import Inspection
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.wording import error_facts, human_size, printable

if TYPE_CHECKING:
    from relvmoiscsi.cli.opening import Opened

_CHECK = """\
Writes nothing. On a damaged LUN, prints every defect with its position; the exit status is 5. With
--original, reads all data of both devices and compares them. On a terminal, a bar shows the progress and the
remaining time.

example:
  relvmoiscsi check /dev/sdc --original /dev/sdb"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    check = takes_device(make(_check, _CHECK))
    what = "also check that both devices share no identity and hold the same data"
    check.add_argument("--original", metavar="DEVICE", type=device_word, help=what)
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")


def _check(arguments: argparse.Namespace) -> Answer:
    if arguments.identities_only and not arguments.original:
        raise UsageError("--identities-only needs --original.")
    with opened_to_read(arguments, arguments.device) as device:
        found = engine.inspect(device)
        facts = report.inspection_facts(arguments.device, found)
        if found.defects:
            return _damaged(arguments, found, found.defects[0], facts)
        if found.problem is not None:
            raise found.problem
        if arguments.original:
            return _compare(arguments, device, facts)
    text = f"{arguments.device}: every structure checks; state {found.state}."
    return Answer(facts, "\n".join([text] + ["note: " + sentence for sentence in facts["notes"]]))


def _damaged(
    arguments: argparse.Namespace, found: Inspection, first: RelvmoiscsiError, facts: Dict[str, Any]
) -> Answer:
    """The findings are the result. Who reads JSON is told of the failure as by any other command."""
    if arguments.json:
        say(printable(str(first)))
    return Answer({**facts, **error_facts(first)}, report.defects_text(arguments.device, found), first.exit_status)


def _compare(arguments: argparse.Namespace, clone: "Opened", facts: Dict[str, Any]) -> Answer:
    if is_same(arguments.original, arguments.device):
        raise UsageError(f"{arguments.original} and {arguments.device} are the same device.")
    with opened_to_read(arguments, arguments.original) as original:
        data: Optional[List[Range]] = None
        if not arguments.identities_only:
            data = _joined(ranges_with_data(original) + ranges_with_data(clone))
        with Bar() as bar:
            found = engine.compare(original, clone, data, bar)
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
