# SPDX-License-Identifier: LGPL-2.1-only
"""The command that finishes a run that was cut."""

import argparse
from typing import Optional

from relvmoiscsi import engine, report
from relvmoiscsi.cli import guard
from relvmoiscsi.cli.on_lun import FINISHED, answer, opened, writes
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.device import Device
from relvmoiscsi.engine import Result
from relvmoiscsi.errors import NOTHING_WRITTEN, in_state
from relvmoiscsi.resignature.protocol.journal import Mark

_RECOVER = """\
After a power cut, a lost connection, a killed process: with the same new identities, on any host. Harmless where
nothing was cut.

example:
  relvmoiscsi recover /dev/sdc"""


_TAKEN_BACK = "{}: the resignature was to make one VDI and was cut before its commit; it was taken back. Run it again."


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    parser = writes(make(_recover, _RECOVER), "accepted for scripts; recover never asks")
    parser.add_argument("--scsi-id", metavar="ID", help="SCSIid of the LUN; read from the device where it has one")


def _recover(arguments: argparse.Namespace) -> Answer:
    with opened(arguments, writable=True) as (device, ids):
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


def _finished(path: str, device: Device, mark: Mark, scsi_id: Optional[str]) -> Answer:
    with guard.write_locks(path, engine.vg_names(mark.journal.run)):
        result = engine.recover(device, mark, scsi_id)
    if mark.journal.run.rebuilt is not None and result.state == engine.CLEAN:
        return answer(path, result, _TAKEN_BACK.format(path))
    return answer(path, result, FINISHED.format(path, _kind(result)))


def _kind(result: Result) -> str:
    return "resignature" if result.state == engine.RESIGNATURED else "undo"
