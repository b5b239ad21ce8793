# SPDX-License-Identifier: LGPL-2.1-only
"""The command that verifies a LUN, alone or against its original."""

import argparse
from typing import Any, Dict, List, Optional, Sequence

from relvmoiscsi import engine, report
from relvmoiscsi.cli.on_lun import takes_device
from relvmoiscsi.cli.output import Adder, Answer
from relvmoiscsi.device import Range
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError
from relvmoiscsi.host.disk.block_device import HostDevice, data_ranges, open_device, same_device
from relvmoiscsi.wording import error_facts, human_size, printable

_CHECK = """\
Nothing is written. With --original, both are read in full where they hold data: on a block device that takes as
long as reading it.

example:
  relvmoiscsi check /dev/sdc --original /dev/sdb"""


def add_command(add: Adder) -> None:
    """Describe the command and its arguments."""
    check = takes_device(add("check", _check, "verify every structure on it", _CHECK))
    check.add_argument("--original", metavar="DEVICE", help="prove that the two share no identity and all data")
    check.add_argument("--identities-only", action="store_true", help="with --original: do not compare guest data")


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
