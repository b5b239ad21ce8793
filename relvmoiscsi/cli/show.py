# SPDX-License-Identifier: LGPL-2.1-only
"""The command that tells what is on a LUN."""

import argparse
import sys

from relvmoiscsi import engine, report
from relvmoiscsi.cli.device_word import is_url, takes_device
from relvmoiscsi.cli.guard import ScsiIds, ask_pool
from relvmoiscsi.cli.identification import identify
from relvmoiscsi.cli.listing import listed
from relvmoiscsi.cli.opening import opened_to_read, scsi_id_of
from relvmoiscsi.cli.output import Answer, Maker
from relvmoiscsi.engine import saved as saved_vms

_SHOW = """\
Writes nothing; the device may be in use. In dom0, asks xapi who uses the LUN. A URL without a LUN lists the
LUNs behind the target. A URL without an IQN lists the targets.

example:
  relvmoiscsi show /dev/sdc
  relvmoiscsi show iscsi://10.0.0.1
  relvmoiscsi show iscsi://10.0.0.1/iqn.2026-01.example:array"""


def add_command(make: Maker) -> None:
    """Describe the command and its arguments."""
    takes_device(make(_show, _SHOW))


def _show(arguments: argparse.Namespace) -> Answer:
    if is_url(arguments.device):
        found_there = listed(arguments)
        if found_there is not None:
            return found_there
    with opened_to_read(arguments, arguments.device) as device:
        found = engine.inspect(device)
        one = engine.one_vdi(device, found.lun) if found.lun is not None else None
        saved = saved_vms(device, found.lun) if found.lun is not None else None
        ids = ScsiIds(None, scsi_id_of(device))
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
