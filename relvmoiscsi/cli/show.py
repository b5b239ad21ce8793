# SPDX-License-Identifier: LGPL-2.1-only
"""The command that tells what is on a LUN."""

import argparse
import sys

from relvmoiscsi import engine, report
from relvmoiscsi.cli.guard import ScsiIds, ask_pool, own_scsi_id
from relvmoiscsi.cli.identification import identify
from relvmoiscsi.cli.on_lun import takes_device
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.resignature.reading.saved import saved as saved_vms

_SHOW = """\
Nothing is written, and the device may be in use. In dom0, xapi is asked who uses the LUN.

example:
  relvmoiscsi show /dev/sdc"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    takes_device(make(_show, _SHOW))


def _show(arguments: argparse.Namespace) -> Answer:
    with open_device(arguments.device, writable=False) as device:
        found = engine.inspect(device)
        one = engine.one_vdi(device, found.lun) if found.lun is not None else None
        saved = saved_vms(device, found.lun) if found.lun is not None else None
        ids = ScsiIds(None, own_scsi_id(arguments.device))
        told = identify(device, ids.own, ask_pool(arguments.device, ids), found.lun, found.run and found.run.ids.sr)
    facts = report.inspection_facts(arguments.device, found)
    facts["lun"] = told.facts()
    if one is not None:
        facts["one_vdi"] = report.one_vdi_facts(one)
        facts["saved_vms"] = report.saved_vms_facts(saved)
    who = [told.device_line(), told.pool_line()]
    return Answer(facts, report.inspection_text(arguments.device, found, _branches(), one, saved, who))


def _branches() -> report.Branches:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return report.UNICODE_BRANCHES if encoding == "utf8" else report.ASCII_BRANCHES
