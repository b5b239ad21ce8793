# SPDX-License-Identifier: LGPL-2.1-only
"""Does xapi run here, and has xapi started since the last change? xapi reads drivers and settings only at its start."""

import os
import re
import time
from typing import Optional, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import Finding, listed, ok, problem, unknown, warning
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf

RESTART = "Run `xe-toolstack-restart` on this host; running VMs are not touched."

_TICKS = os.sysconf("SC_CLK_TCK")
_START_TIME = 19  #: index in the words of /proc/<number>/stat after the name in parentheses
_TOLERANCE_SECONDS = 1.0  #: the kernel rounds the boot time, and xapi needs longer until it reads the drivers


def xapi_started(host: Host) -> Tuple[Optional[float], Finding]:
    """Return the start time of xapi (seconds since the epoch; None if unknown), and the finding."""
    numbers = host_root.processes(host, "xapi")
    if numbers is None:
        return None, unknown("xapi", "Cannot check whether xapi runs: there is no /proc.", "Mount /proc.")
    if not numbers:
        return None, problem("xapi", "xapi does not run on this host.", "Start it: `xe-toolstack-restart`.")
    boot = re.search(r"^btime (\d+)$", host_root.text_of(host, "/proc/stat"), re.MULTILINE)
    ticks = [host_root.text_of(host, f"/proc/{number}/stat").rpartition(")")[2].split() for number in numbers]
    said = [words[_START_TIME] for words in ticks if len(words) > _START_TIME]
    known = [untrusted.number(word) for word in said if untrusted.is_number(word)]
    if boot is None or not known:
        return None, unknown("xapi", "xapi runs; the kernel does not give its start time.", RESTART)
    # With a watchdog, xapi has two processes. The first process is at least as old as the process that read the
    # drivers.
    started = int(boot.group(1)) + min(known) / _TICKS
    return started, ok("xapi", f"xapi runs since {_moment(started)}.")


def examine_restart(host: Host, started: Optional[float], driver: str) -> Finding:
    """Has xapi started since the last change of the driver at this path and of the lists?

    If not, the finding is a warning only: xapi runs the current file of the driver, and another check asks the master.
    """
    if started is None:
        return unknown("restart", "Cannot check whether xapi has loaded the driver and its settings.", RESTART)
    try:
        paths = [driver] if driver else []
        paths += [setting.path for setting in conf.read_whitelist(host.root).sources] + [conf.CONF_D]
        late = [path for path in dict.fromkeys(paths) if _changed_at(host, path) > started + _TOLERANCE_SECONDS]
    except (NotFound, OSError) as error:
        return unknown("restart", f"Cannot check when xapi's files changed: {error}.", RESTART)
    if not late:
        return ok("restart", "xapi has started since the driver and the lists of drivers last changed.")
    sentence = f"These files changed after xapi started, and xapi has not read them: {listed(late)}."
    return warning("restart", sentence, RESTART)


def _changed_at(host: Host, path: str) -> float:
    """Return the last change of the file, or of the link to the file; 0 without a file.

    The ctime counts too, because an installed file may have any mtime.
    """
    found = [0.0]
    for name in (host.at(path), os.path.realpath(host.at(path))):
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        found.append(max(status.st_mtime, status.st_ctime))
    return max(found)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
