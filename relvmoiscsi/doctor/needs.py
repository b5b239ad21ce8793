# SPDX-License-Identifier: LGPL-2.1-only
"""What the drivers need: a running xapi, udev rules, free space, valid settings, no leftovers of killed calls.

xapi reads drivers and settings only at its start. So xapi must have started since the last change.
"""

import os
import re
import time
from typing import List, Optional, Tuple

from relvmoiscsi import untrusted
from relvmoiscsi.direct.direct_config import luns_of
from relvmoiscsi.direct.lvm_filter import lvm_problems
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.finding import AS_ROOT, Finding, ok, problem, unknown, warning
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.config_file import settings_of
from relvmoiscsi.host.disk import cleanup_journal, hiding
from relvmoiscsi.host.files import words_in
from relvmoiscsi.host.settings import KEYS, SECTION, settings_in
from relvmoiscsi.host.this_host import UDEV_RULES, Host
from relvmoiscsi.host.xapi import conf
from relvmoiscsi.wording import ONE, quoted, some_of

RESTART = "Run `xe-toolstack-restart` on this host; running VMs are not touched."
_TICKS = os.sysconf("SC_CLK_TCK")
_START_TIME = 19  #: index in the words of /proc/<number>/stat after the name in parentheses
_TOLERANCE_SECONDS = 1.0  #: the kernel rounds the boot time, and xapi needs longer until it reads the drivers

OUR_RULES = (
    "57-relvmoiscsi.rules",
    "58-relvmoiscsi-direct.rules",
    "99-zz-relvmoiscsi-direct.rules",
    "99-zz-relvmoiscsi.rules",
)
DIRECTORIES = ("/run/relvmoiscsi", "/var/lib/relvmoiscsi")
LEAST_BYTES = 1 << 20  #: free bytes in each; the driver needs a few KiB

CONFIG = "/etc/relvmoiscsi.conf"
#: sentences by which the settings of the pool's hosts are compared
KEEPS_ALL = "The SR driver keeps every VDI of a LUN."
MAKES_ONE = "The SR driver makes each LUN one with a single VDI."
_CORRECT = f"Correct that line of {CONFIG}, then check the result with `relvmoiscsi settings`."

_NEXT_CALL = "Repeat the call, or run `xe sr-probe type=relvmohba` for that SCSIid: both remove the LUN from this host."


def xapi_started(host: Host) -> Tuple[Optional[float], Finding]:
    """Return the start time of xapi (seconds since the epoch; None if unknown), and the finding."""
    numbers = host_root.processes(host, "xapi")
    if numbers is None:
        return None, unknown("xapi", "Cannot check whether xapi runs: there is no /proc.", "Mount /proc.")
    if not numbers:
        return None, problem("xapi", "xapi does not run on this host.", "Start it: `xe-toolstack-restart`.")
    boot = re.search(r"^btime (\d+)$", host_root.text_of(host, "/proc/stat"), re.MULTILINE)
    ticks = [host_root.text_of(host, f"/proc/{number}/stat").rpartition(")")[2] for number in numbers]
    said = [words[_START_TIME] for words in map(words_in, ticks) if len(words) > _START_TIME]
    known = [untrusted.number(word) for word in said if untrusted.is_number(word)]
    if boot is None or not known:
        return None, unknown("xapi", "xapi runs; the kernel does not give its start time.", RESTART)
    # With a watchdog, xapi has two processes. The first process is at least as old as the process that read the
    # drivers.
    started = int(boot.group(1)) + min(known) / _TICKS
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    return started, ok("xapi", f"xapi runs since {moment}.")


def examine_restart(host: Host, started: Optional[float], driver: str) -> Finding:
    """Has xapi started since the last change of the driver at this path and of the lists?

    If not, the finding is a warning only: xapi runs the current file of the driver, and another check asks the master.
    """
    if started is None:
        return unknown("restart", "Cannot check whether xapi has loaded the driver and its settings.", RESTART)
    try:
        paths = [driver] if driver else []
        paths += [setting.path for setting in conf.sm_plugins(host)] + [conf.CONF_D]
        late = [path for path in dict.fromkeys(paths) if _changed_at(host, path) > started + _TOLERANCE_SECONDS]
    except (NotFound, OSError) as error:
        return unknown("restart", f"Cannot check when xapi's files changed: {error}.", RESTART)
    if not late:
        return ok("restart", "xapi has started since the driver and the lists of drivers last changed.")
    sentence = f"These files changed after xapi started, and xapi has not read them: {some_of(late)}."
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


def examine_rules(host: Host) -> Finding:
    """Are the udev rules installed that hide a LUN during a change, and that link direct LUNs?

    A file of the same name in /etc replaces a rule.
    """
    for name in OUR_RULES:
        paths = [os.path.join(directory, name) for directory in UDEV_RULES]
        path = next((each for each in paths if os.path.lexists(host.at(each))), None)
        try:
            is_empty = path is None or not host_root.read(host, path).strip()
        except PermissionError as error:
            return unknown("udev-rules", f"{path} cannot be read: {error.strerror}.", AS_ROOT)
        except OSError:  # a link to /dev/null switches a rule off
            is_empty = True
        if is_empty:
            sentence = f"The udev rules {name} are not installed, or an empty file replaces them."
            return problem("udev-rules", sentence, "Remove that empty file and reinstall relvmoiscsi.")
    return ok("udev-rules", "The udev rules, which hide a LUN while it changes and link direct LUNs, are there.")


def examine_direct(host: Host) -> List[Finding]:
    """Does LVM ignore what guests write to the direct LUNs of this host? No finding without direct LUNs."""
    try:
        luns = luns_of(host)
    except Refused as error:
        return [unknown("direct-luns", f"The list of direct LUNs cannot be read: {error.message}", AS_ROOT)]
    problems = [warning("direct-luns", each.message, each.advice) for each in lvm_problems(luns, host)]
    return problems or ([ok("direct-luns", "LVM ignores the direct LUNs.")] if luns else [])


def examine_room(host: Host) -> Finding:
    """Can the driver write its notes?"""
    for wanted in DIRECTORIES:
        parents = [wanted, os.path.dirname(wanted), "/"]
        directory = next(each for each in parents if os.path.lexists(host.at(each)))
        try:
            room = os.statvfs(host.at(directory))
        except OSError as error:
            return problem("room", f"{directory} cannot be used: {error.strerror}.", "Remove it.")
        if room.f_flag & os.ST_RDONLY:
            return problem("room", f"{directory} cannot be written to.", "Mount it for writing.")
        if room.f_bavail * room.f_frsize < LEAST_BYTES or (room.f_files and not room.f_favail):
            return problem("room", f"The file system of {directory} is full.", "Make room on it.")
    return ok("room", f"There is room for notes in {' and '.join(DIRECTORIES)}.")


def examine_settings(host: Host) -> List[Finding]:
    """Are the settings of the SR driver valid, and is every name a known setting?"""
    try:
        text = host_root.read(host, CONFIG).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        return [unknown("settings", f"{CONFIG} cannot be read: {error.strerror}.", AS_ROOT)]
    found = [
        warning("settings", f"The SR driver ignores {key!r} in section [{SECTION}] of {CONFIG}: no such setting.",
                f"Use one of {', '.join(KEYS)}, or remove the line.")
        for key in settings_of(text, SECTION) if key not in KEYS
    ]  # fmt: skip
    try:
        wanted = settings_in(text, CONFIG)["vdis_setting"]
    except Refused as error:
        return [*found, problem("settings", error.message, _CORRECT)]
    return [*found, ok("settings", MAKES_ONE if wanted == ONE else KEEPS_ALL)]


def examine_stale_resources(host: Host) -> Finding:
    """Look for LUNs that a call has scanned and left, and for disks that are still hidden; no call works on these."""
    try:
        scanned, disks = cleanup_journal.unattended(host), hiding.stale_hidden(host)
    except (OSError, NotFound, Refused) as error:
        return unknown("left-overs", f"Leftovers of killed calls cannot be listed: {error}", AS_ROOT)
    if scanned:
        sentence = (
            f"A killed call, or a program that used a disk, has left LUN {some_of(scanned)} on this host. "
            "The LUN may be a clone with the identities of its original."
        )
        return warning("left-overs", sentence, _NEXT_CALL)
    if disks:
        sentence = f"A killed call has left {some_of(disks)} hidden from udev, so its links are missing."
        switch = f"/sys/block/{disks[0]}/uevent"
        advice = f"Repeat the call. Or, if LVM may see that disk: `echo add > {quoted(switch)}`."
        return warning("left-overs", sentence, advice)
    return ok("left-overs", "There are no leftovers of killed calls.")
