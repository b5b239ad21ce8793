# SPDX-License-Identifier: LGPL-2.1-only
"""The second SR driver of the package, for LUNs of Fibre Channel and other adapters. It shares all but its file."""

import os
from typing import List

from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.driver import INSTALL, PACKAGE_DIRECTORY, sm_directory
from relvmoiscsi.doctor.finding import Finding, listed, ok, problem, unknown, warning
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host import flock
from relvmoiscsi.host.disk.udev import RUN_DIRECTORY, switch_name
from relvmoiscsi.host.hba.adapters import adapters
from relvmoiscsi.host.hba.scan import NOTES
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf

TYPE = "relvmohba"
EXECUTABLE = "ReLVMoHBASR"


def examine_hba(host: Host) -> Finding:
    """Would xapi take the driver, and is there anything for it to do?"""
    try:
        directory = sm_directory(host.root)
        whitelist = conf.read_whitelist(host.root)
    except (NotFound, OSError) as error:
        return unknown("fibre-channel", str(error), "Run `relvmoiscsi doctor` as root.")
    path = os.path.join(directory, EXECUTABLE)
    if not host_root.is_program(host, path):
        sentence = f"There is no executable {path}: xapi has no SR type {TYPE}."
        return problem("fibre-channel", sentence, INSTALL)
    if not whitelist.allows(TYPE):
        sentence = f"sm-plugins in {whitelist.source}, the last such line that xapi reads, does not have {TYPE}."
        advice = f"Run `{PACKAGE_DIRECTORY}/sm-whitelist sync`, then `xe-toolstack-restart`."
        return problem("fibre-channel", sentence, advice)
    names = sorted({adapter.driver for adapter in adapters(host=host)})
    has = "this host's adapters are of {}".format(", ".join(names)) if names else "this host has no adapter for it"
    return ok("fibre-channel", f"{path} is there, and xapi accepts {TYPE}; {has}.")


def examine_scans(host: Host) -> List[Finding]:
    """LUNs that a scan of a call that was killed, or that was given up, may have brought, as their originals."""
    try:
        names = sorted(name for name in host_root.names_in(host, NOTES) if not name.endswith(".new"))
    except OSError:
        return []  # nobody has scanned, or it is not for us
    left = [name for name in names if not _is_hidden_now(host, name)]
    if not left:
        return []
    sentence = (
        f"A call that was killed, whose scan was given up or that could not take all away again has left the LUN "
        f"{listed(left)}, which may be visible, a clone with the identities of its original."
    )
    advice = "Repeat it, or `xe sr-probe type=relvmohba` for that SCSIid: either takes away what the scan has brought."
    return [warning("scans", sentence, advice)]


def _is_hidden_now(host: Host, scsi_id: str) -> bool:
    """Is a call at work on it?"""
    try:
        path = os.path.join(host_root.path_of(host, RUN_DIRECTORY + "/hide"), switch_name(scsi_id))
        return bool(flock.owners_of(os.lstat(path), host))
    except OSError:
        return False
