# SPDX-License-Identifier: LGPL-2.1-only
"""Does xapi run here, and has it seen what there is now? It looks at drivers and settings once, when it starts."""

import os
import re
import time
from typing import List, NamedTuple, Optional, Tuple

from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.driver import Driver
from relvmoiscsi.doctor.finding import (
    Finding,
    listed,
    ok,
    problem,
    unknown,
    warning,
)
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi import conf

RESTART = "Run `xe-toolstack-restart` on this host; running VMs are not touched."

_TICKS = os.sysconf("SC_CLK_TCK")
_START_TIME = 19  #: of the words in /proc/<number>/stat behind the name in parentheses
_TOLERANCE_SECONDS = 1.0  #: the kernel's time of boot is rounded, and xapi needs longer than that to get to the drivers


class Change(NamedTuple):
    """A file that xapi reads when it starts, and when it last changed."""

    path: str
    seconds: float  #: since the epoch


def xapi_started(host: Host) -> Tuple[Optional[float], Finding]:
    """When xapi started (seconds since the epoch), None if that is not known; and what there is to say about it."""
    numbers = host_root.processes(host, "xapi")
    if numbers is None:
        sentence = f"Whether xapi runs cannot be told: there is no /proc in {host.root}."
        return None, unknown("xapi", sentence, "Run `relvmoiscsi doctor` on the running host.")
    if not numbers:
        return None, problem("xapi", "xapi does not run on this host.", "Start it: `xe-toolstack-restart`.")
    boot = re.search(r"^btime (\d+)$", host_root.text_of(host, "/proc/stat"), re.MULTILINE)
    ticks = [_start_ticks(host, number) for number in numbers]
    known = [found for found in ticks if found is not None]
    if boot is None or not known:
        sentence = "xapi runs; since when, the kernel does not say."
        return None, unknown("xapi", sentence, RESTART)
    # Where it has a watchdog there are two; the first is never younger than the one that looked for drivers.
    started = int(boot.group(1)) + min(known) / _TICKS
    return started, ok("xapi", f"xapi runs since {_moment(started)}.")


def _start_ticks(host: Host, number: int) -> Optional[int]:
    words = host_root.text_of(host, f"/proc/{number}/stat").rpartition(")")[2].split()
    return int(words[_START_TIME]) if len(words) > _START_TIME and words[_START_TIME].isdigit() else None


def examine_restart(
    host: Host, started: Optional[float], driver: Optional[Driver], is_registered: Optional[bool] = None
) -> Finding:
    """Has xapi started since the driver and the lists changed?

    `is_registered`: whether this host's xapi is known to have the driver; None if that cannot be asked. Then what
    changed matters less: it runs the file that is there now.
    """
    if started is None:
        sentence = "Whether xapi has seen the driver and its settings is not known."
        return unknown("restart", sentence, RESTART)
    try:
        changes = _changes(host, driver)
        directory = _change(host, conf.CONF_D)
    except (NotFound, OSError) as error:
        return unknown("restart", f"When files of xapi changed is not known: {error}.", RESTART)
    late = [change for change in changes if change.seconds > started + _TOLERANCE_SECONDS]
    if late:
        newest = max(late, key=lambda change: change.seconds)
        sentence = "xapi has not seen what {} now: changed at {}, after xapi had started.".format(
            listed([change.path for change in late]) + (" is" if len(late) == 1 else " are"), _moment(newest.seconds)
        )
        if is_registered:
            return warning("restart", sentence + " It has the driver, as it was before.", RESTART)
        return problem("restart", sentence, RESTART)
    if directory is not None and directory.seconds > started + _TOLERANCE_SECONDS:
        sentence = (
            f"Something was added to {conf.CONF_D} or removed from it at {_moment(directory.seconds)}, after xapi "
            "had started."
        )
        return warning("restart", sentence, "If that was a list of storage drivers: " + RESTART)
    return ok("restart", "xapi has started since the driver and the lists of drivers last changed.")


def _changes(host: Host, driver: Optional[Driver]) -> List[Change]:
    """The driver, and the files with a list of drivers. Raises NotFound and OSError."""
    paths = [driver.path] if driver else []
    paths += [setting.path for setting in conf.read_whitelist(host.root).sources]
    changes = (_change(host, path) for path in dict.fromkeys(paths))
    return [change for change in changes if change is not None]


def _change(host: Host, path: str) -> Optional[Change]:
    """None if it is not there. An installed file may have any mtime; ctime is when it came here."""
    found = []
    for name in (host.at(path), host_root.path_of(host, path)):
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        found.append(max(status.st_mtime, status.st_ctime))
    return Change(path, max(found)) if found else None


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
