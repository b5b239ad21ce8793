# SPDX-License-Identifier: LGPL-2.1-only
"""What the commands on a LUN share: arguments, the device, and the answer."""

import argparse
import os
import stat
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, Tuple

from relvmoiscsi import engine, report
from relvmoiscsi.cli import guard
from relvmoiscsi.cli.output import Answer, say
from relvmoiscsi.engine import Result
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, in_state
from relvmoiscsi.host import command
from relvmoiscsi.host.disk.block_device import HostDevice, open_device
from relvmoiscsi.host.disk.lvm_memory import tell_lvm
from relvmoiscsi.wording import human_size

FINISHED = "{}: the {} was finished."


def takes_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, which takes DEVICE."""
    parser.add_argument("device", metavar="DEVICE", help="block device or image file")
    return parser


def writes(parser: argparse.ArgumentParser, yes: str) -> argparse.ArgumentParser:
    """The same parser, which takes DEVICE and what a command that writes takes; `yes` is the help of --yes."""
    parser.add_argument("--yes", action="store_true", help=yes)
    parser.add_argument("--not-in-use", action="store_true", help="although xapi knows a user of the LUN, or is mute")
    return takes_device(parser)


@contextmanager
def opened(arguments: argparse.Namespace, writable: bool) -> Iterator[Tuple[HostDevice, List[str]]]:
    """The device, for us alone if it is to be written; and its SCSIids, the one that was given first."""
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            ids = guard.scsi_ids(arguments.device, getattr(arguments, "scsi_id", None))
            if writable:
                held.enter_context(guard.lun_lock(arguments.device, ids))
            try:
                device = held.enter_context(open_device(arguments.device, writable))
            except Refused as refused:
                if writable:
                    refused.message = (
                        f"{refused.message} {guard.way_out(ids, partial(_sr_on, arguments.device))}".strip()
                    )
                raise
        yield device, ids


def _sr_on(path: str) -> str:
    """The UUID of the SR on a LUN; "" where there is none that can be read. Raises RelvmoiscsiError."""
    with open_device(path, writable=False) as device:
        lun = engine.inspect(device).lun
    return lun.sr_uuid if lun is not None else ""


def answer(path: str, result: Result, headline: str) -> Answer:
    """What a command that has written says; LVM is told of it where it keeps what it has seen."""
    if stat.S_ISBLK(os.stat(path).st_mode):
        for sentence in tell_lvm(path, command.run):
            say(sentence)
    lines = [headline]
    if result.ids is not None:
        lines.append(report.map_text(result.lun, result.ids))
    lines.append(f"  {result.writes} writes, {human_size(result.bytes_written)}, {result.flushes} flushes")
    return Answer(report.result_facts(path, result), "\n".join(lines))


def failure_facts(path: str) -> Dict[str, Any]:
    """What --json gives beside the error: the device, and its state unless it does not even open."""
    try:
        with open_device(path, writable=False) as device:
            return {"state": engine.inspect(device).state, "device": path}
    except RelvmoiscsiError:
        return {"state": None, "device": path}
